//! Everything that is checked and decided before a linear operation runs.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::launch::{Global, GlobalMut};

use super::instances::{Instance, LinearTypes, Operands};
use super::select::{Access, Limits, Problem, Tile};
use super::{LinearOp, OPERATION};
use crate::cpu::FromAccumulator;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::ops::Implementation;
use crate::tensor::{Element, Tensor};
use crate::tune;

/// The address alignment of 16-byte copies.
const CHUNK_BYTES: u64 = 16;
/// No side may reach this, so that coordinates of a tile that sticks out stay 32-bit numbers.
const SIDE_LIMIT: u64 = 1 << 31;
/// Nor may a row of x or w, in bytes.
const ROW_LIMIT: u64 = 1 << 31;

/// A checked operation.
pub(super) struct Plan<T: Element, O: Element> {
    /// x as a matrix.
    pub(super) x: Tensor<T>,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) output_shape: Vec<usize>,
    /// The kernel to launch; none on the CPU, and none if y has no elements.
    pub(super) launch: Option<Launch<T, O>>,
    pub(super) implementation: Implementation,
}

/// A kernel launch that fits the operands.
pub(super) struct Launch<T: Element, O: Element> {
    pub(super) instance: Instance<T, O>,
    pub(super) blocks: u32,
    m: u32,
    n: u32,
    k: u32,
}

impl<T, O> Plan<T, O>
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    pub(super) fn new(op: &LinearOp<'_, T, O>) -> Result<Self> {
        let device = op.x.device();
        device.expect_same(OPERATION, "w", op.w.device())?;
        if let Some(bias) = op.bias {
            device.expect_same(OPERATION, "bias", bias.device())?;
        }
        if let Some(stream) = op.stream {
            device.expect_same(OPERATION, "stream", stream.device())?;
        }

        let Some((&k, leading)) = op.x.shape().split_last() else {
            return Err(shape("x", "[.., K], at least one axis", op.x));
        };
        let &[n, w_k] = op.w.shape() else { return Err(shape("w", format!("[N, {k}], two axes"), op.w)) };
        if w_k != k {
            return Err(shape("w", format!("[N, {k}], since x has {k} columns"), op.w));
        }
        if let Some(bias) = op.bias
            && bias.shape() != [n]
        {
            return Err(shape("bias", format!("[{n}], since w has {n} rows"), bias));
        }

        let x = flatten("x", op.x)?;
        let m = x.shape()[0];
        unit_stride("x", &x)?;
        unit_stride("w", op.w)?;
        if let Some(bias) = op.bias {
            unit_stride("bias", bias)?;
        }
        let mut output_shape = leading.to_vec();
        output_shape.push(n);
        let (launch, implementation) = if m == 0 || n == 0 {
            (None, Implementation::Empty)
        } else if device.kind() == DeviceKind::Cpu {
            (None, Implementation::Cpu)
        } else {
            let launch = Launch::new(op, &x, n, k)?;
            let kernel = launch.instance.declaration.name;
            let implementation = Implementation::kernel(device, kernel, launch.blocks);
            (Some(launch), implementation)
        };
        Ok(Self { x, m, n, k, output_shape, launch, implementation })
    }

    /// Checks a tensor that is to take the result.
    pub(super) fn check_output(&self, op: &LinearOp<'_, T, O>, y: &Tensor<O>) -> Result<()> {
        op.x.device().expect_same(OPERATION, "y", y.device())?;
        if y.shape() != self.output_shape {
            return Err(shape("y", format!("{:?}, as x and w give", self.output_shape), y));
        }
        unit_stride("y", &flatten("y", y)?)?;
        let inputs = [("x", op.x), ("w", op.w)].into_iter().chain(op.bias.map(|bias| ("bias", bias)));
        for (other, input) in inputs {
            if y.shares_memory(input) {
                return Err(Error::Overlap { operation: OPERATION, operand: "y", other });
            }
        }
        Ok(())
    }
}

impl<T, O> Launch<T, O>
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    fn new(op: &LinearOp<'_, T, O>, x: &Tensor<T>, n: usize, k: usize) -> Result<Self> {
        let device = x.device();
        let side = |operand, quantity, size: usize| match u32::try_from(size) {
            Ok(size) if u64::from(size) < SIDE_LIMIT => Ok(size),
            _ => Err(limit(operand, quantity, format!("less than {SIDE_LIMIT}"), size as u64)),
        };
        let m = side("x", "number of rows", x.shape()[0])?;
        let n = side("w", "number of rows", n)?;
        let row_bytes = (k as u64).saturating_mul(size_of::<T>() as u64);
        if row_bytes >= ROW_LIMIT {
            return Err(limit("x", "size of a row", format!("less than {ROW_LIMIT} bytes"), row_bytes));
        }
        let k = k as u32;

        // Of no columns nothing is read, wherever they are.
        let chunked = k == 0 || is_chunked(x) && is_chunked(op.w);
        let access = if chunked { Access::Aligned } else { Access::Unaligned };
        let properties = device.properties();
        let tile = choose_tile(op.tile, device, Problem { m, n, k, input: T::DTYPE, access })?;
        let missing = || Error::Argument {
            operation: OPERATION,
            argument: "tile",
            expected: format!(
                "one that has a kernel for {} inputs with {access:?} access and {k} columns on compute capability {}.{}",
                T::DTYPE,
                properties.compute_capability.0,
                properties.compute_capability.1
            ),
            actual: tile.to_string(),
        };
        if !tile.runs_on(properties.compute_capability) || (tile.is_hopper() && k == 0) {
            return Err(missing());
        }
        let instance = T::instance(tile, access).ok_or_else(missing)?;
        let most_blocks = properties.max_grid[0];
        let tiles = tile.tiles(m, n);
        if tiles > u64::from(most_blocks) {
            return Err(limit("y", "number of tiles", format!("at most {most_blocks}"), tiles));
        }
        // No more than the tiles, and so a number of 32 bits.
        let blocks = tile.blocks(m, n, properties.multiprocessors) as u32;
        Ok(Self { instance, blocks, m, n, k })
    }

    /// The kernel's operands for the output `y`, a matrix at `y_arg`.
    pub(super) fn operands<'a>(
        &self,
        plan: &'a Plan<T, O>,
        op: &LinearOp<'a, T, O>,
        y: &'a Tensor<O>,
        y_arg: GlobalMut<O::Device>,
    ) -> Operands<'a, T, O> {
        debug_assert_eq!(plan.k, self.k as usize);
        let epilogue = LinearEpilogue {
            bias: op.bias.map_or(Global::new(0), Tensor::arg),
            residual: Global::new(0),
            row_scale: Global::new(0),
            column_scale: Global::new(0),
            mask: GlobalMut::new(0),
            preactivation: GlobalMut::new(0),
            residual_stride: 0,
            residual_batch: 0,
            mask_stride: 0,
            mask_batch: 0,
            preactivation_stride: 0,
            preactivation_batch: 0,
            row_scale_stride: 0,
            column_scale_stride: 0,
            alpha: op.scale,
            beta: 0.0,
            activation: op.activation.on_device(),
            reserved: 0,
        };
        Operands { x: &plan.x, w: op.w, y, y_arg, m: self.m, n: self.n, k: self.k, epilogue }
    }
}

fn choose_tile(forced: Option<Tile>, device: &Device, problem: Problem) -> Result<Tile> {
    let properties = device.properties();
    let limits = Limits {
        compute_capability: properties.compute_capability,
        multiprocessors: properties.multiprocessors,
        max_shared_per_block: properties.max_shared_per_block,
        shared_per_multiprocessor: properties.shared_per_multiprocessor,
    };
    let tile = match forced {
        Some(tile) => Some(tile),
        None => tune::choose(device, &problem, &limits)?,
    };
    tile.ok_or_else(|| Error::UnsupportedDevice {
        operation: OPERATION,
        device: device.to_string(),
        expected: format!("at least {} bytes of shared memory a block", Tile::T16x64.shared_bytes()),
        actual: format!("{} bytes", properties.max_shared_per_block),
    })
}

/// Elements from one row to the next.
///
/// A single row has no stride to speak of. Zero keeps the addresses of the rows that a tile has and the matrix lacks as
/// aligned as its own.
pub(super) fn row_stride<T: Element>(matrix: &Tensor<T>) -> u64 {
    if matrix.shape()[0] <= 1 { 0 } else { matrix.strides()[0] as u64 }
}

/// Whether the rows of a matrix can be read in chunks of 16 bytes.
fn is_chunked<T: Element>(matrix: &Tensor<T>) -> bool {
    is_chunked_at(matrix.arg().address(), matrix)
}

/// The same of a matrix at `address`.
pub(super) fn is_chunked_at<T: Element>(address: u64, matrix: &Tensor<T>) -> bool {
    let stride_bytes = row_stride(matrix) * size_of::<T>() as u64;
    (address | stride_bytes).is_multiple_of(CHUNK_BYTES)
}

/// `tensor` as a matrix, with its leading axes as rows.
pub(super) fn flatten<T: Element>(operand: &'static str, tensor: &Tensor<T>) -> Result<Tensor<T>> {
    tensor.flatten_leading().map_err(|error| match error {
        Error::Stride { expected, actual, .. } => {
            Error::Stride { operation: OPERATION, operand, expected, actual }
        }
        Error::SizeLimit { quantity, limit, actual, .. } => {
            Error::SizeLimit { operation: OPERATION, operand, quantity, limit, actual }
        }
        other => other,
    })
}

fn unit_stride<T: Element>(operand: &'static str, tensor: &Tensor<T>) -> Result<()> {
    let last = tensor.rank() - 1;
    if tensor.is_empty() || tensor.shape()[last] == 1 || tensor.strides()[last] == 1 {
        return Ok(());
    }
    Err(Error::Stride {
        operation: OPERATION,
        operand,
        expected: "1 along the last axis (`contiguous` makes a copy that has it)".into(),
        actual: tensor.strides().to_vec(),
    })
}

fn shape<T: Element>(operand: &'static str, expected: impl Into<String>, tensor: &Tensor<T>) -> Error {
    Error::Shape { operation: OPERATION, operand, expected: expected.into(), actual: tensor.shape().to_vec() }
}

fn limit(operand: &'static str, quantity: &'static str, limit: String, actual: u64) -> Error {
    Error::SizeLimit { operation: OPERATION, operand, quantity, limit, actual: actual.to_string() }
}
