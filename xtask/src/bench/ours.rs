//! Our operations on sets of operands that are as large together as the baselines'.

mod extended;

use std::fmt;

use anyhow::Result;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use warpsmith::ops::gemm::{Access, Tile};
use warpsmith::ops::linear::LinearInput;
use warpsmith::ops::scaled::{ScaledInput, ScaledLinearOp};
use warpsmith::ops::{self, Products, Scale};
use warpsmith::{DType, Device, Element, Error, Stream, Tensor};
use warpsmith_lab::benchmark::{self, LinearSubject, Subject};
use warpsmith_lab::cases::LinearCase;

use super::case::{Case, Extra, Operation, Precision};
use super::operands::{self, Operand};
use extended::Extended;

/// One of our operations, to measure.
pub(super) trait Ours: Subject {
    /// What runs, as an operation says it.
    fn implementation(&self) -> Result<String>;
}

/// How one of our operations is asked to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// As it chooses.
    Chosen,
    /// By this tile, with so many blocks sharing sums, if that is not left to it.
    By(Tile, Option<u32>),
}

impl Variant {
    /// Its tile and parts.
    const fn asked(self) -> (Option<Tile>, Option<u32>) {
        match self {
            Self::By(tile, parts) => (Some(tile), parts),
            Self::Chosen => (None, None),
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chosen => formatter.pad("chosen"),
            Self::By(tile, None) => tile.fmt(formatter),
            Self::By(tile, Some(parts)) => formatter.pad(&format!("{tile}/{parts}")),
        }
    }
}

/// Every tile that runs on `device` and computes `case` as exactly as it asks.
pub(super) fn tiles_of(device: &Device, case: &Case) -> Vec<Variant> {
    let capability = device.properties().compute_capability;
    let with_parts =
        |tile: Tile| parts_of(tile.shares(), case.shape).map(move |parts| Variant::By(tile, parts));
    let linear = case.without_extra().map(|linear| [linear.input, linear.output]);
    // Of products also what reads operands element by element, which may take longer than a copy of them.
    let is_product = linear.is_none();
    if let Some([input, output]) = linear.or_else(|| case.product()) {
        let asked = Products::choose(input, case.shape[1], case.precision.asked(), true);
        let serves = |tile: &Tile| {
            tile.runs_on(capability)
                && (tile.serves(input, Access::Aligned) || is_product && tile.serves(input, Access::Strided))
                && tile.serves_output(input, output)
                && tile.products(input).is_at_least(asked)
        };
        return Tile::ALL.into_iter().filter(serves).flat_map(with_parts).collect();
    }
    if case.is_plain_scaled() {
        let tiles = Tile::of_input(DType::F8E4M3).filter(|tile| tile.runs_on(capability));
        return tiles.flat_map(with_parts).collect();
    }
    Vec::new()
}

/// How many blocks share the sums of a tile, in what is measured of tiles that can do that.
const PARTS: [Option<u32>; 8] = [Some(1), Some(2), Some(3), Some(4), Some(6), Some(8), Some(16), Some(32)];

/// As many of them as are worth the memory; no number where blocks do not share sums.
fn parts_of(shares: bool, [m, _, n]: [usize; 3]) -> impl Iterator<Item = Option<u32>> {
    let parts = if shares { PARTS.to_vec() } else { vec![None] };
    parts.into_iter().filter(move |parts| parts.is_none_or(|parts| m * n * parts as usize <= MOST_SUMS))
}

/// Sums of all parts at most.
const MOST_SUMS: usize = 1 << 26;

/// Our operation for a case in each of some variants, on the same operands; empty where there is none.
pub(super) fn subjects(stream: &Stream, case: &Case, variants: &[Variant]) -> Result<Vec<Box<dyn Ours>>> {
    if let Some(linear) = case.ours() {
        let mut subjects: Vec<Box<dyn Ours>> = Vec::new();
        let mut first: Option<Box<dyn LinearSubject>> = None;
        for (tile, parts) in variants.iter().map(|variant| variant.asked()) {
            let subject = match &first {
                Some(first) => first.with_parts(tile, parts),
                None => benchmark::linear_subject(stream, &LinearCase { tile, parts, ..linear.clone() })?,
            };
            first.get_or_insert_with(|| subject.with_parts(tile, parts));
            subjects.push(Box::new(Linear(subject)));
        }
        return Ok(subjects);
    }
    if case.without_extra().is_some() {
        return match case.precision {
            Precision::Bf16 => extended::<bf16>(stream, case, variants),
            Precision::F16 => extended::<f16>(stream, case, variants),
            Precision::Tf32 | Precision::F32 => extended::<f32>(stream, case, variants),
            Precision::Bf16ToF32 | Precision::F8 | Precision::F8Mixed => Ok(Vec::new()),
        };
    }
    if case.product().is_some() {
        return match case.precision {
            Precision::Bf16 => products::<bf16>(stream, case, variants),
            Precision::F16 => products::<f16>(stream, case, variants),
            _ => products::<f32>(stream, case, variants),
        };
    }
    // Others are asked for no tiles, but those of 8-bit types for theirs.
    let is_scaled = matches!(case.precision, Precision::F8 | Precision::F8Mixed);
    let serves = |tile: Tile| is_scaled && tile.serves(DType::F8E4M3, Access::Aligned);
    if variants.iter().any(|variant| variant.asked().0.is_some_and(|tile| !serves(tile))) {
        return Ok(Vec::new());
    }
    let scaled = variants.iter().map(|variant| variant.asked());
    Ok(match case.precision {
        // Of what else there is in 8 bits nothing is measured, rather than this under another name.
        Precision::F8 if case.is_plain_scaled() => {
            let first = Scaled::<F8E4M3>::new(stream, *case)?;
            scaled.map(|(tile, parts)| Box::new(first.with_parts(tile, parts)) as Box<dyn Ours>).collect()
        }
        Precision::F8Mixed if case.is_plain_scaled() => {
            let first = Scaled::<F8E5M2>::new(stream, *case)?;
            scaled.map(|(tile, parts)| Box::new(first.with_parts(tile, parts)) as Box<dyn Ours>).collect()
        }
        _ => Vec::new(),
    })
}

/// A linear layer that reads or stores more, in each of some variants.
fn extended<T: LinearInput + 'static>(
    stream: &Stream,
    case: &Case,
    variants: &[Variant],
) -> Result<Vec<Box<dyn Ours>>> {
    let first = Extended::<T>::new(stream, *case)?;
    let with_tile = |variant: &Variant| {
        let (tile, parts) = variant.asked();
        Box::new(first.with_tile(tile, parts)) as Box<dyn Ours>
    };
    Ok(variants.iter().map(with_tile).collect())
}

/// A product or a batch of them, in each of some variants.
fn products<T: LinearInput + 'static>(
    stream: &Stream,
    case: &Case,
    variants: &[Variant],
) -> Result<Vec<Box<dyn Ours>>> {
    let first = Matmul::<T>::new(stream, *case)?;
    let with_tile = |variant: &Variant| {
        let (tile, parts) = variant.asked();
        Box::new(Matmul { tile, parts, ..first.clone() }) as Box<dyn Ours>
    };
    Ok(variants.iter().map(with_tile).collect())
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

/// An operand of the case, whose operands are of type `T`.
fn tensor<T: Element>(stream: &Stream, case: &Case, operand: Operand, shape: &[usize]) -> Result<Tensor<T>> {
    let bytes = operands::encoded(case.precision, operand, shape.iter().product());
    // The driver's host is little-endian, as the bytes are.
    let elements: Vec<T> = bytemuck::allocation::pod_collect_to_vec(&bytes);
    Ok(Tensor::from_slice(stream.device(), &elements, shape)?)
}

/// `count` scales, of the rows or of the columns.
fn scales(stream: &Stream, operand: Operand, count: usize) -> Result<Tensor<f32>, Error> {
    let scales: Vec<f32> = (0..count).map(|index| operands::drawn(operand, index)).collect();
    Tensor::from_slice(stream.device(), &scales, [count])
}

/// A linear layer of FP8 operands, of which x is e4m3. Clones share their memory. One scale for each, or one for each row of them, is in the device's memory,
/// as the baselines' do.
#[derive(Clone)]
struct Scaled<W: Element> {
    case: Case,
    stream: Stream,
    tile: Option<Tile>,
    parts: Option<u32>,
    x: Vec<Tensor<F8E4M3>>,
    w: Vec<Tensor<W>>,
    bias: Tensor<bf16>,
    y: Vec<Tensor<bf16>>,
    /// Of x, and of w.
    scales: [Tensor<f32>; 2],
}

impl<W: ScaledInput> Scaled<W> {
    fn new(stream: &Stream, case: Case) -> Result<Self> {
        let [m, k, n] = case.shape;
        let count = operands::sets(stream, &case);
        let one = || Tensor::from_slice(stream.device(), &[1.0], [1]);
        let scales = match case.operation.extra {
            Extra::Scales => {
                [scales(stream, Operand::RowScale, m)?, scales(stream, Operand::ColumnScale, n)?]
            }
            _ => [one()?, one()?],
        };
        Ok(Self {
            case,
            stream: stream.clone(),
            tile: None,
            parts: None,
            x: copies(tensor(stream, &case, Operand::X, &[m, k])?, count)?,
            w: copies(tensor(stream, &case, Operand::W, &[n, k])?, count)?,
            bias: tensor(stream, &case, Operand::Bias, &[n])?,
            y: copies(Tensor::zeros_on(stream, [m, n])?, count)?,
            scales,
        })
    }

    /// The same operation on the same operands, by another tile and with other parts of sums.
    fn with_parts(&self, tile: Option<Tile>, parts: Option<u32>) -> Self {
        Self { tile, parts, ..self.clone() }
    }

    fn op(&self, index: usize) -> ScaledLinearOp<'_, F8E4M3, W, bf16> {
        let operation = self.case.operation;
        let has_rows = operation.extra == Extra::Scales;
        let [x_scale, w_scale] = self
            .scales
            .each_ref()
            .map(|scale| if has_rows { Scale::Rows(scale) } else { Scale::Device(scale) });
        let op = ops::linear_scaled(&self.x[index], &self.w[index])
            .x_scale(x_scale)
            .w_scale(w_scale)
            .activation(operation.activation)
            .tile(self.tile)
            .parts(self.parts)
            .on(&self.stream);
        if operation.bias { op.bias(&self.bias) } else { op }
    }
}

impl<W: ScaledInput> Subject for Scaled<W> {
    fn enqueue(&mut self, index: usize) -> Result<(), Error> {
        let index = index % self.y.len();
        let mut y = self.y[index].clone();
        self.op(index).run_into(&mut y)
    }
}

impl<W: ScaledInput> Ours for Scaled<W> {
    fn implementation(&self) -> Result<String> {
        Ok(self.op(0).implementation()?.to_string())
    }
}

/// A product of operands in place, or a batch of them. Clones share their memory.
#[derive(Clone)]
struct Matmul<T: Element> {
    case: Case,
    stream: Stream,
    tile: Option<Tile>,
    parts: Option<u32>,
    x: Vec<Tensor<T>>,
    w: Vec<Tensor<T>>,
    y: Vec<Tensor<T>>,
}

impl<T: LinearInput> Matmul<T> {
    fn new(stream: &Stream, case: Case) -> Result<Self> {
        let ([m, k, n], Operation { layout, batch, .. }) = (case.shape, case.operation);
        let several =
            |matrix: [usize; 2]| if batch == 1 { matrix.to_vec() } else { vec![batch, matrix[0], matrix[1]] };
        let x = several(if layout.transposes_x() { [k, m] } else { [m, k] });
        let w = several(if layout.transposes_w() { [n, k] } else { [k, n] });
        let count = operands::sets(stream, &case);
        Ok(Self {
            case,
            stream: stream.clone(),
            tile: None,
            parts: None,
            x: copies(tensor(stream, &case, Operand::X, &x)?, count)?,
            w: copies(tensor(stream, &case, Operand::W, &w)?, count)?,
            y: copies(Tensor::zeros_on(stream, several([m, n]))?, count)?,
        })
    }

    fn op(&self, index: usize) -> ops::matmul::MatmulOp<'_, T, T> {
        let layout = self.case.operation.layout;
        let op = ops::matmul(&self.x[index], &self.w[index]);
        let op = op.precision(self.case.precision.asked()).tile(self.tile).parts(self.parts);
        let op = op.on(&self.stream);
        let op = if layout.transposes_x() { op.transpose_a() } else { op };
        if layout.transposes_w() { op.transpose_b() } else { op }
    }
}

impl<T: LinearInput> Subject for Matmul<T> {
    fn enqueue(&mut self, index: usize) -> Result<(), Error> {
        let index = index % self.y.len();
        let mut y = self.y[index].clone();
        self.op(index).run_into(&mut y)
    }
}

impl<T: LinearInput> Ours for Matmul<T> {
    fn implementation(&self) -> Result<String> {
        Ok(self.op(0).implementation()?.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use warpsmith::Device;
    use warpsmith::ops::Activation;
    use warpsmith_lab::benchmark::Subject;

    use float8::{F8E4M3, F8E5M2};
    use half::bf16;
    use warpsmith::{Tensor, ops};

    use super::{
        Case, Extended, Extra, Matmul, Precision, Scaled, Tile, Variant, operands::Operands, subjects,
        tensor, tiles_of,
    };
    use crate::bench::case::{Layout, Operation};
    use crate::bench::operands::Operand;
    use crate::bench::suites::Suite;

    const EXTRAS: [Extra; 4] = [Extra::Residual, Extra::Scales, Extra::Mask, Extra::Preactivation];

    #[test]
    fn every_type_and_layout_has_an_operation_that_runs() {
        let device = Device::emulator();
        let stream = device.default_stream();
        let linear = Precision::ALL.map(|precision| (precision, Operation::BIAS_RELU));
        let layouts = [Layout::Nn, Layout::Tn, Layout::Tt];
        let types = [Precision::Bf16, Precision::F16, Precision::Tf32, Precision::F32];
        let products = layouts.map(Operation::product);
        let extras = EXTRAS.map(|extra| Operation { extra, ..Operation::BIAS_RELU });
        let batches = layouts.map(|layout| Operation { batch: 3, ..Operation::product(layout) });
        let others = products.into_iter().chain(extras).chain(batches);
        let others = others.flat_map(|operation| types.map(|precision| (precision, operation)));
        let scaled = (Precision::F8, Operation { extra: Extra::Scales, ..Operation::PRODUCT });
        for (precision, operation) in linear.into_iter().chain(others).chain([scaled]) {
            let case = Case { suite: Suite::Main, operation, precision, shape: [8, 32, 16] };
            let mut subjects = subjects(&stream, &case, &[Variant::Chosen]).expect("memory");
            assert_eq!(subjects.len(), 1, "{case}");
            subjects[0].enqueue(0).expect("no finding");
            assert!(subjects[0].implementation().expect("a kernel").contains("kernel"), "{case}");
        }
    }

    /// What runs under the name of a case is what the case says, or nothing.
    #[test]
    fn of_8_bit_operands_only_what_is_computed_is_measured() {
        let device = "emulator:9.0".parse::<Device>().expect("it is a device");
        let stream = device.default_stream();
        let measured = |operation, precision| {
            let case = Case { suite: Suite::Main, operation, precision, shape: [8, 32, 16] };
            let mut variants = vec![Variant::Chosen];
            variants.extend(tiles_of(&device, &case));
            let measured = subjects(&stream, &case, &variants).expect("memory").len();
            assert!(measured == 0 || measured == variants.len(), "{case}");
            measured
        };
        let layouts = [Layout::Nn, Layout::Tn, Layout::Tt].map(Operation::product);
        let batch = Operation { batch: 3, ..Operation::PRODUCT };
        let with = |extra| Operation { extra, ..Operation::BIAS_RELU };
        for precision in [Precision::F8, Precision::F8Mixed] {
            let more = [Extra::Residual, Extra::Mask, Extra::Preactivation].map(with);
            for operation in layouts.into_iter().chain([batch]).chain(more) {
                assert_eq!(measured(operation, precision), 0, "{operation} {}", precision.name());
            }
            for operation in [Operation::PRODUCT, Operation::BIAS_RELU, with(Extra::Scales)] {
                assert!(measured(operation, precision) > 1, "{operation} {}", precision.name());
            }
        }
    }

    #[test]
    fn each_variant_is_another_tile_of_the_case() {
        let device = "emulator:9.0".parse::<Device>().expect("it is a device");
        let stream = device.default_stream();
        for precision in [Precision::Bf16, Precision::F32, Precision::F8, Precision::F8Mixed] {
            // As many steps along K as parts, at least.
            let shape = [8, 4096, 16];
            let case = Case { suite: Suite::Main, operation: Operation::BIAS_RELU, precision, shape };
            let variants = tiles_of(&device, &case);
            let kernels =
                subjects(&stream, &case, &variants).expect("memory").into_iter().map(|mut subject| {
                    subject.enqueue(0).expect("no finding");
                    subject.implementation().expect("a kernel")
                });
            let kernels: HashSet<String> = kernels.collect();
            assert!(variants.len() > 3, "{case}: {variants:?}");
            // The kernel with halves is that without, launched in another way. Other parts are as many blocks more.
            let halves = Variant::By(Tile::HopperCooperative128x256Halves, None);
            let alike = usize::from(variants.contains(&halves));
            assert_eq!(kernels.len(), variants.len() - alike, "{case}: {kernels:?}");
        }
        // Of products, in all of their layouts and in batches, each tile computes what the chosen one does.
        let batches =
            [Layout::Nn, Layout::Tt].map(|layout| Operation { batch: 3, ..Operation::product(layout) });
        let products = [Layout::Nn, Layout::Tn].map(Operation::product);
        for operation in products.into_iter().chain(batches) {
            for shape in [[8, 32, 16], [5, 33, 16]] {
                let case = Case { suite: Suite::Main, operation, precision: Precision::Bf16, shape };
                let variants = tiles_of(&device, &case);
                assert!(variants.len() > 3, "{case}: {variants:?}");
                for mut subject in subjects(&stream, &case, &variants).expect("memory") {
                    subject.enqueue(0).unwrap_or_else(|error| panic!("{case}: {error}"));
                }
            }
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
            let mut ours = Extended::<bf16>::new(&stream, case).expect("memory");
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

    #[test]
    fn peers_are_asked_for_the_same_batches_types_and_scales() {
        let device = Device::emulator();
        let stream = device.default_stream();
        let case =
            |precision, operation| Case { suite: Suite::Main, operation, precision, shape: [8, 32, 16] };
        let check = |case: Case, y: Vec<u8>| {
            let mut peers = Operands::new(&stream, case).expect("memory");
            peers.set_results(&device, &y, &[]).expect("memory");
            peers.check(case.operation).unwrap_or_else(|reason| panic!("{case}: {reason:#}"));
            // What is checked last is in the last matrix.
            let mut wrong = y;
            let last = wrong.len() - 16 * case.precision.output_bytes();
            wrong[last..].fill(0x40);
            peers.set_results(&device, &wrong, &[]).expect("memory");
            assert!(peers.check(case.operation).is_err(), "{case}");
        };
        let bytes =
            |y: &Tensor<bf16>| y.to_vec().expect("copied").into_iter().flat_map(bf16::to_le_bytes).collect();
        for layout in [Layout::Nn, Layout::Nt, Layout::Tn, Layout::Tt] {
            let case = case(Precision::Bf16, Operation { batch: 3, ..Operation::product(layout) });
            let mut ours = Matmul::<bf16>::new(&stream, case).expect("memory");
            ours.enqueue(0).expect("no finding");
            assert_eq!(ours.y[0].shape(), [3, 8, 16]);
            check(case, bytes(&ours.y[0]));
        }
        for extra in [Extra::None, Extra::Scales] {
            let operation = Operation { extra, ..Operation::PRODUCT };
            let same = case(Precision::F8, operation);
            let mut ours = Scaled::<F8E4M3>::new(&stream, same).expect("memory");
            ours.enqueue(0).expect("no finding");
            check(same, bytes(&ours.y[0]));
            let mixed = case(Precision::F8Mixed, operation);
            let mut ours = Scaled::<F8E5M2>::new(&stream, mixed).expect("memory");
            ours.enqueue(0).expect("no finding");
            check(mixed, bytes(&ours.y[0]));
        }
        let wide = case(Precision::Bf16ToF32, Operation::PRODUCT);
        let drawn =
            |operand, shape: [usize; 2]| tensor::<bf16>(&stream, &wide, operand, &shape).expect("memory");
        let (x, w) = (drawn(Operand::X, [8, 32]), drawn(Operand::W, [16, 32]));
        let y = ops::linear(&x, &w).output::<f32>().run().and_then(|y| y.to_vec()).expect("no finding");
        check(wide, y.into_iter().flat_map(f32::to_le_bytes).collect());
    }
}
