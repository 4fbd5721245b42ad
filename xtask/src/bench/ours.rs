//! Our operations on sets of operands that are as large together as the peers'.

use anyhow::Result;
use float8::F8E4M3;
use half::bf16;
use warpsmith::benchmark::{self, LinearSubject, Subject};
use warpsmith::ops::linear::Tile;
use warpsmith::ops::{self, Scale};
use warpsmith::validate::LinearCase;
use warpsmith::{Element, Error, Stream, Tensor};

use super::case::{Case, Extra, Operation, Precision};
use super::operands::{self, Operand};

/// One of our operations, to measure.
pub(super) trait Ours: Subject {
    /// What runs, as an operation says it.
    fn implementation(&self) -> Result<String>;
}

/// Our operation for a case with each of some tiles, on the same operands; empty where there is none.
pub(super) fn subjects(stream: &Stream, case: &Case, tiles: &[Option<Tile>]) -> Result<Vec<Box<dyn Ours>>> {
    if let Some(linear) = case.ours() {
        let mut subjects: Vec<Box<dyn Ours>> = Vec::new();
        let mut first: Option<Box<dyn LinearSubject>> = None;
        for &tile in tiles {
            let subject = match &first {
                Some(first) => first.with_tile(tile),
                None => benchmark::linear_subject(stream, &LinearCase { tile, ..linear.clone() })?,
            };
            first.get_or_insert_with(|| subject.with_tile(tile));
            subjects.push(Box::new(Linear(subject)));
        }
        return Ok(subjects);
    }
    if let (Precision::Bf16, Some(_)) = (case.precision, case.without_extra()) {
        let first = Extended::new(stream, *case)?;
        return Ok(tiles.iter().map(|&tile| Box::new(first.with_tile(tile)) as Box<dyn Ours>).collect());
    }
    // The tiles are those of linear layers; other operations only run by themselves.
    if tiles.first() != Some(&None) {
        return Ok(Vec::new());
    }
    Ok(match case.precision {
        Precision::F8 => vec![Box::new(Scaled::new(stream, *case)?)],
        Precision::Bf16 if case.operation == Operation::product(case.operation.layout) => {
            vec![Box::new(Matmul::new(stream, *case)?)]
        }
        _ => Vec::new(),
    })
}

/// A linear layer.
struct Linear(Box<dyn LinearSubject>);

impl Subject for Linear {
    fn enqueue(&mut self, index: usize) -> Result<(), Error> {
        self.0.enqueue(index)
    }
}

impl Ours for Linear {
    fn implementation(&self) -> Result<String> {
        Ok(self.0.implementation()?.to_string())
    }
}

/// `count` tensors with the same elements, each in memory of its own.
fn copies<T: Element>(first: Tensor<T>, count: usize) -> Result<Vec<Tensor<T>>> {
    let mut tensors = vec![first];
    for _ in 1..count {
        tensors.push(tensors[0].deep_clone()?);
    }
    Ok(tensors)
}

fn bf16_tensor(stream: &Stream, case: &Case, operand: Operand, shape: &[usize]) -> Result<Tensor<bf16>> {
    let bytes = operands::encoded(case.precision, operand, shape.iter().product());
    let elements: Vec<bf16> =
        bytes.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]])).collect();
    Ok(Tensor::from_slice(stream.device(), &elements, shape)?)
}

fn f8_tensor(stream: &Stream, case: &Case, operand: Operand, shape: &[usize]) -> Result<Tensor<F8E4M3>> {
    let bytes = operands::encoded(case.precision, operand, shape.iter().product());
    let elements: Vec<F8E4M3> = bytes.into_iter().map(F8E4M3::from_bits).collect();
    Ok(Tensor::from_slice(stream.device(), &elements, shape)?)
}

/// A linear layer of bf16 operands that reads or stores more than x, w, a bias and y.
struct Extended {
    case: Case,
    stream: Stream,
    tile: Option<Tile>,
    sets: Vec<ExtendedSet>,
}

/// Operands of one launch. Clones share their memory.
#[derive(Clone)]
struct ExtendedSet {
    x: Tensor<bf16>,
    w: Tensor<bf16>,
    bias: Option<Tensor<bf16>>,
    residual: Option<Tensor<bf16>>,
    /// Of the rows, and of the columns.
    scales: Option<[Tensor<f32>; 2]>,
    mask: Option<Tensor<u32>>,
    preactivation: Option<Tensor<bf16>>,
    y: Tensor<bf16>,
}

impl ExtendedSet {
    fn new(stream: &Stream, case: &Case) -> Result<Self> {
        let ([m, k, n], Operation { bias, extra, .. }) = (case.shape, case.operation);
        let device = stream.device();
        let drawn = |operand, shape: &[usize]| bf16_tensor(stream, case, operand, shape);
        let scales = |operand, count: usize| {
            let scales: Vec<f32> = (0..count).map(|index| operands::drawn(operand, index)).collect();
            Tensor::from_slice(device, &scales, [count])
        };
        let scales =
            || -> Result<_> { Ok([scales(Operand::RowScale, m)?, scales(Operand::ColumnScale, n)?]) };
        let mask = || Tensor::zeros_on(stream, [m, n.div_ceil(32)]);
        Ok(Self {
            x: drawn(Operand::X, &[m, k])?,
            w: drawn(Operand::W, &[n, k])?,
            bias: bias.then(|| drawn(Operand::Bias, &[n])).transpose()?,
            residual: (extra == Extra::Residual).then(|| drawn(Operand::Residual, &[m, n])).transpose()?,
            scales: (extra == Extra::Scales).then(scales).transpose()?,
            mask: (extra == Extra::Mask).then(mask).transpose()?,
            preactivation: (extra == Extra::Preactivation)
                .then(|| Tensor::zeros_on(stream, [m, n]))
                .transpose()?,
            y: Tensor::zeros_on(stream, [m, n])?,
        })
    }

    /// The same in memory of its own; scales, which are small, stay where they are.
    fn copy(&self) -> Result<Self> {
        let bf16 = |tensor: &Option<Tensor<bf16>>| tensor.as_ref().map(Tensor::deep_clone).transpose();
        Ok(Self {
            x: self.x.deep_clone()?,
            w: self.w.deep_clone()?,
            bias: bf16(&self.bias)?,
            residual: bf16(&self.residual)?,
            scales: self.scales.clone(),
            mask: self.mask.as_ref().map(Tensor::deep_clone).transpose()?,
            preactivation: bf16(&self.preactivation)?,
            y: self.y.deep_clone()?,
        })
    }
}

impl Extended {
    fn new(stream: &Stream, case: Case) -> Result<Self> {
        let mut sets = vec![ExtendedSet::new(stream, &case)?];
        for _ in 1..operands::sets(stream, &case) {
            sets.push(sets[0].copy()?);
        }
        Ok(Self { case, stream: stream.clone(), tile: None, sets })
    }

    /// The same operation on the same operands, by another tile.
    fn with_tile(&self, tile: Option<Tile>) -> Self {
        Self { case: self.case, stream: self.stream.clone(), tile, sets: self.sets.clone() }
    }

    /// What `run` makes of the operation on set number `index` and its output.
    fn with_op<R>(
        &self,
        index: usize,
        run: impl FnOnce(ops::linear::LinearOp<'_, bf16, bf16>, &mut Tensor<bf16>) -> R,
    ) -> R {
        let set = &self.sets[index % self.sets.len()];
        let (mut mask, mut preactivation, mut y) =
            (set.mask.clone(), set.preactivation.clone(), set.y.clone());
        let mut op = ops::linear(&set.x, &set.w)
            .bias(&set.bias)
            .activation(self.case.operation.activation)
            .tile(self.tile)
            .on(&self.stream);
        if let Some(residual) = &set.residual {
            op = op.residual(residual, 1.0);
        }
        if let Some([rows, columns]) = &set.scales {
            op = op.row_scale(rows).column_scale(columns);
        }
        if let Some(mask) = &mut mask {
            op = op.relu_mask(mask);
        }
        if let Some(preactivation) = &mut preactivation {
            op = op.preactivation(preactivation);
        }
        run(op, &mut y)
    }
}

impl Subject for Extended {
    fn enqueue(&mut self, index: usize) -> Result<(), Error> {
        self.with_op(index, |op, y| op.run_into(y))
    }
}

impl Ours for Extended {
    fn implementation(&self) -> Result<String> {
        Ok(self.with_op(0, |op, _| op.implementation())?.to_string())
    }
}

/// A linear layer of FP8 operands, whose scales lie in the device's memory, as the peers' do.
struct Scaled {
    case: Case,
    stream: Stream,
    x: Vec<Tensor<F8E4M3>>,
    w: Vec<Tensor<F8E4M3>>,
    bias: Tensor<bf16>,
    y: Vec<Tensor<bf16>>,
    scale: Tensor<f32>,
}

impl Scaled {
    fn new(stream: &Stream, case: Case) -> Result<Self> {
        let [m, k, n] = case.shape;
        let count = operands::sets(stream, &case);
        Ok(Self {
            case,
            stream: stream.clone(),
            x: copies(f8_tensor(stream, &case, Operand::X, &[m, k])?, count)?,
            w: copies(f8_tensor(stream, &case, Operand::W, &[n, k])?, count)?,
            bias: bf16_tensor(stream, &case, Operand::Bias, &[n])?,
            y: copies(Tensor::zeros_on(stream, [m, n])?, count)?,
            scale: Tensor::from_slice(stream.device(), &[1.0], [1])?,
        })
    }

    fn op(&self, index: usize) -> ops::scaled::ScaledLinearOp<'_, F8E4M3, F8E4M3, bf16> {
        let operation = self.case.operation;
        let op = ops::linear_scaled(&self.x[index], &self.w[index])
            .x_scale(Scale::Device(&self.scale))
            .w_scale(Scale::Device(&self.scale))
            .activation(operation.activation)
            .on(&self.stream);
        if operation.bias { op.bias(&self.bias) } else { op }
    }
}

impl Subject for Scaled {
    fn enqueue(&mut self, index: usize) -> Result<(), Error> {
        let index = index % self.y.len();
        let mut y = self.y[index].clone();
        self.op(index).run_into(&mut y)
    }
}

impl Ours for Scaled {
    fn implementation(&self) -> Result<String> {
        Ok(self.op(0).implementation()?.to_string())
    }
}

/// A product of bf16 operands, as they lie.
struct Matmul {
    case: Case,
    stream: Stream,
    x: Vec<Tensor<bf16>>,
    w: Vec<Tensor<bf16>>,
    y: Vec<Tensor<bf16>>,
}

impl Matmul {
    fn new(stream: &Stream, case: Case) -> Result<Self> {
        let ([m, k, n], layout) = (case.shape, case.operation.layout);
        let x = if layout.transposes_x() { [k, m] } else { [m, k] };
        let w = if layout.transposes_w() { [n, k] } else { [k, n] };
        let count = operands::sets(stream, &case);
        Ok(Self {
            case,
            stream: stream.clone(),
            x: copies(bf16_tensor(stream, &case, Operand::X, &x)?, count)?,
            w: copies(bf16_tensor(stream, &case, Operand::W, &w)?, count)?,
            y: copies(Tensor::zeros_on(stream, [m, n])?, count)?,
        })
    }

    fn op(&self, index: usize) -> ops::matmul::MatmulOp<'_, bf16, bf16> {
        let layout = self.case.operation.layout;
        let op = ops::matmul(&self.x[index], &self.w[index]).on(&self.stream);
        let op = if layout.transposes_x() { op.transpose_a() } else { op };
        if layout.transposes_w() { op.transpose_b() } else { op }
    }
}

impl Subject for Matmul {
    fn enqueue(&mut self, index: usize) -> Result<(), Error> {
        let index = index % self.y.len();
        let mut y = self.y[index].clone();
        self.op(index).run_into(&mut y)
    }
}

impl Ours for Matmul {
    fn implementation(&self) -> Result<String> {
        Ok(self.op(0).implementation()?.to_string())
    }
}

#[cfg(test)]
mod tests {
    use warpsmith::Device;
    use warpsmith::benchmark::Subject;
    use warpsmith::ops::Activation;

    use super::{Case, Extended, Extra, Precision, operands::Operands, subjects};
    use crate::bench::case::{Layout, Operation};
    use crate::bench::suites::Suite;

    const EXTRAS: [Extra; 4] = [Extra::Residual, Extra::Scales, Extra::Mask, Extra::Preactivation];

    #[test]
    fn every_type_and_layout_has_an_operation_that_runs() {
        let device = Device::emulator();
        let stream = device.default_stream();
        let types = [Precision::Bf16, Precision::F16, Precision::F32, Precision::F8];
        let linear = types.map(|precision| (precision, Operation::BIAS_RELU));
        let layouts = [Layout::Nn, Layout::Tn, Layout::Tt];
        let products = layouts.map(|layout| (Precision::Bf16, Operation::product(layout)));
        let extras = EXTRAS.map(|extra| (Precision::Bf16, Operation { extra, ..Operation::BIAS_RELU }));
        for (precision, operation) in linear.into_iter().chain(products).chain(extras) {
            let case = Case { suite: Suite::Main, operation, precision, shape: [8, 32, 16] };
            let mut subjects = subjects(&stream, &case, &[None]).expect("memory");
            assert_eq!(subjects.len(), 1, "{case}");
            subjects[0].enqueue(0).expect("no finding");
            assert!(subjects[0].implementation().expect("a kernel").contains("kernel"), "{case}");
        }
    }

    /// What a peer's results are held to is what the operation means.
    #[test]
    fn peers_are_asked_for_what_ours_computes() {
        let device = Device::emulator();
        let stream = device.default_stream();
        let bytes = |values: Vec<half::bf16>| values.into_iter().flat_map(half::bf16::to_le_bytes).collect();
        for (extra, activation) in EXTRAS.into_iter().zip([
            Activation::Silu,
            Activation::None,
            Activation::Relu,
            Activation::GeluTanh,
        ]) {
            let operation = Operation { activation, extra, ..Operation::BIAS_RELU };
            let case =
                Case { suite: Suite::Main, operation, precision: Precision::Bf16, shape: [8, 32, 128] };
            let mut ours = Extended::new(&stream, case).expect("memory");
            ours.enqueue(0).expect("no finding");
            let set = &ours.sets[0];
            let y: Vec<u8> = bytes(set.y.to_vec().expect("copied"));
            let mask = set.mask.as_ref().map_or(Vec::new(), |mask| mask.to_vec().expect("copied"));
            let mask: Vec<u8> = mask.into_iter().flat_map(u32::to_le_bytes).collect();
            let argument = set.preactivation.as_ref().map_or(Vec::new(), |z| z.to_vec().expect("copied"));
            let argument: Vec<u8> = bytes(argument);
            let stored = [mask, argument].concat();

            let mut peers = Operands::new(&stream, case).expect("memory");
            assert_ne!(peers.addresses(0).extra == 0, extra != Extra::Scales);
            peers.set_results(&device, &y, &stored).expect("memory");
            peers.check(operation).expect("the same");
            assert!(peers.check(Operation::PRODUCT).is_err(), "{case}");
            if !stored.is_empty() {
                peers.set_results(&device, &y, &vec![0; stored.len()]).expect("memory");
                assert!(peers.check(operation).is_err(), "{case}");
            }
        }
    }
}
