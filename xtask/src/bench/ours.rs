//! Our operations on sets of operands that are as large together as the peers'.

use anyhow::Result;
use float8::F8E4M3;
use half::bf16;
use warpsmith::benchmark::{self, LinearSubject, Subject};
use warpsmith::ops::linear::Tile;
use warpsmith::ops::{self, Scale};
use warpsmith::validate::LinearCase;
use warpsmith::{Element, Error, Stream, Tensor};

use super::case::{Case, Operation, Precision};
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

    use super::{Case, Precision, subjects};
    use crate::bench::case::{Layout, Operation};
    use crate::bench::suites::Suite;

    #[test]
    fn every_type_and_layout_has_an_operation_that_runs() {
        let device = Device::emulator();
        let stream = device.default_stream();
        let types = [Precision::Bf16, Precision::F16, Precision::F32, Precision::F8];
        let linear = types.map(|precision| (precision, Operation::BIAS_RELU));
        let layouts = [Layout::Nn, Layout::Tn, Layout::Tt];
        let products = layouts.map(|layout| (Precision::Bf16, Operation::product(layout)));
        for (precision, operation) in linear.into_iter().chain(products) {
            let case = Case { suite: Suite::Main, operation, precision, shape: [8, 32, 16] };
            let mut subjects = subjects(&stream, &case, &[None]).expect("memory");
            assert_eq!(subjects.len(), 1, "{case}");
            subjects[0].enqueue(0).expect("no finding");
            assert!(subjects[0].implementation().expect("a kernel").contains("kernel"), "{case}");
        }
    }
}
