//! The pass over dY: what the products of both gradients read, the gradient of the residual, and the sums for that of the bias.

use warpsmith_dsl::launch::{Global, Kernel};
use warpsmith_dsl::linear_gradient::{LinearGradientParams, MOST_THREADS, ROWS};
use warpsmith_dsl::rows::{AnyRows, THREADS};

use super::{LinearBackwardOp, LinearGradientElement, flattened};
use crate::cpu::{self, Slopes};
use crate::device::DeviceKind;
use crate::error::Result;
use crate::ops::column_sums::{SumElement, column_sums};
use crate::ops::linear::{LinearInput, LinearTypes};
use crate::ops::matrix::row_stride;
use crate::ops::rows::{RowElement, Shares, Sizes, as_result_rows, as_rows, rounded, rows_of, widened};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};

/// Blocks that a large matrix is dealt to, a few for each multiprocessor of any GPU. It is the same for all of them, so that the order of sums is.
const BLOCKS: u64 = 1024;
/// Rounds of rows up to which one strip has all rows: the sum of parts would take another launch.
const ROUNDS: u64 = 2;

impl<T, O> LinearBackwardOp<'_, T, O>
where
    T: LinearInput + LinearTypes<O> + RowElement,
    O: LinearGradientElement,
{
    /// The pass over dY: what the products read, the gradient of the residual, and that of the bias. There are elements.
    pub(super) fn pass<W: SumElement>(
        &self,
        sizes: Sizes,
        stream: &Stream,
        dz: Option<&mut Tensor<T>>,
        dresidual: Option<&mut Tensor<O>>,
        db: Option<&mut Tensor<W>>,
        adds: bool,
    ) -> Result<()> {
        if self.dy.device().kind() == DeviceKind::Cpu {
            return self.pass_on_cpu(sizes, dz, dresidual, db, adds);
        }
        let dy = as_rows(self.dy, stream)?;
        let z = self.slopes_at().map(|(_, z)| as_rows(z, stream)).transpose()?;
        let mask = self.mask.map(|mask| flattened(mask, stream)).transpose()?;
        let mask = match mask {
            Some(mask) if mask.is_empty() || mask.strides()[1] == 1 || mask.shape()[1] == 1 => Some(mask),
            Some(mask) => Some(mask.contiguous_on(stream)?),
            None => None,
        };
        let row_scale = self.row_scale.map(|scale| scale_of_rows(scale, sizes.rows, stream)).transpose()?;
        let dz = dz.map(|dz| as_result_rows(self.operation, "dz", dz)).transpose()?;
        let dresidual = dresidual.map(|of| as_result_rows(self.operation, "dresidual", of)).transpose()?;
        let of_dz = dz.as_ref().map_or(AnyRows::NONE, rows_of);
        let of_dresidual = dresidual.as_ref().map_or(AnyRows::NONE, rows_of);
        let of_z = z.as_ref().map_or(AnyRows::NONE, rows_of);
        let plan = Plan::new::<O>(sizes, &[rows_of(&dy), of_z, of_dz, of_dresidual]);
        let has_parts = db.is_some() && plan.strips > 1;
        let parts =
            has_parts.then(|| Tensor::<f32>::uninit_on(stream, [plan.strips as usize, sizes.columns]));
        let parts = parts.transpose()?;
        let sums = match (&parts, &db) {
            (Some(parts), _) => rows_of(parts),
            (None, Some(db)) => rows_of(&**db),
            (None, None) => AnyRows::NONE,
        };
        let params = LinearGradientParams {
            dy: dy.arg(),
            dy_stride: row_stride(&dy),
            z: z.as_ref().map_or(Global::new(0), Tensor::arg),
            z_stride: of_z.stride,
            mask: mask.as_ref().map_or(Global::new(0), Tensor::arg),
            mask_stride: mask.as_ref().map_or(0, row_stride),
            row_scale: row_scale.as_ref().map_or(Global::new(0), Tensor::arg),
            column_scale: self.column_scale.map_or(Global::new(0), Tensor::arg),
            dz: of_dz,
            dresidual: of_dresidual,
            sums,
            rows: sizes.rows as u32,
            columns: sizes.columns as u32,
            strip: plan.strip,
            threads: plan.threads,
            row_scale_stride: row_scale.as_ref().map_or(0, |scale| u32::from(scale.len() > 1)),
            column_scale_stride: self.column_scale.map_or(0, |scale| u32::from(scale.len() > 1)),
            beta: self.beta.unwrap_or(1.0),
            activation: self.activation.on_device(),
            adds: u32::from(adds && parts.is_none()),
            reserved: 0,
        };
        let mut operands: Vec<&dyn Operand> = vec![&dy];
        operands.extend(z.as_ref().map(|z| z as &dyn Operand));
        operands.extend(mask.as_ref().map(|mask| mask as &dyn Operand));
        operands.extend(row_scale.as_ref().map(|scale| scale as &dyn Operand));
        operands.extend(self.column_scale.map(|scale| scale as &dyn Operand));
        operands.extend(dz.as_ref().map(|dz| dz as &dyn Operand));
        operands.extend(dresidual.as_ref().map(|dresidual| dresidual as &dyn Operand));
        operands.extend(parts.as_ref().map(|parts| parts as &dyn Operand));
        operands.extend(db.as_deref().map(|db| db as &dyn Operand));
        let grid = [plan.across, plan.strips, 1];
        // SAFETY: the rows are those of the tensors, of the sizes that were checked, and aligned as the plan says. Results are new, or share no element with another
        // operand but where dz is the same view as one of its type. A single strip's sums go to db itself, those of several to a row each of the parts. Tensors
        // are freed in the order of their home streams, which `with_operands` makes wait for this work.
        stream.with_operands(&operands, || unsafe {
            if plan.vector {
                stream.device().kernel::<O::Vector>()?.launch_early(stream, grid, (params,))
            } else {
                stream.device().kernel::<O::Any>()?.launch_early(stream, grid, (params,))
            }
        })?;
        column_sums(stream, [Option::zip(parts.as_ref(), db), None], adds)
    }

    fn pass_on_cpu<W: SumElement>(
        &self,
        sizes: Sizes,
        dz: Option<&mut Tensor<T>>,
        dresidual: Option<&mut Tensor<O>>,
        db: Option<&mut Tensor<W>>,
        adds: bool,
    ) -> Result<()> {
        let (dy, columns) = (widened(self.dy)?, sizes.columns);
        let z = self.slopes_at().map(|(_, z)| widened(z)).transpose()?;
        let mask = self.mask.map(Tensor::to_vec).transpose()?;
        let slopes = match (&z, &mask) {
            (Some(z), _) => Slopes::At(self.activation, z),
            (None, Some(mask)) => Slopes::Bits(mask),
            (None, None) => Slopes::Ones,
        };
        let (mut gradient, mut sums) = (vec![0.0f32; dy.len()], vec![0.0f32; columns]);
        cpu::linear_gradient(columns, &dy, slopes, &mut gradient, &mut sums);
        if let Some(to) = dresidual {
            let beta = self.beta.unwrap_or(1.0);
            let scaled: Vec<f32> = gradient.iter().map(|dz| beta * dz).collect();
            to.write_slice(&rounded::<O>(&scaled))?;
        }
        if let Some(to) = db {
            if adds {
                for (sum, before) in sums.iter_mut().zip(widened(to)?) {
                    *sum += before;
                }
            }
            to.write_slice(&rounded::<W>(&sums))?;
        }
        let Some(to) = dz else { return Ok(()) };
        let numbers = |scale: Option<&Tensor<f32>>| scale.map(Tensor::to_vec).transpose();
        let (of_rows, of_columns) = (numbers(self.row_scale)?, numbers(self.column_scale)?);
        // Of fewer numbers than rows or columns, the first follows the last.
        let of =
            |scale: &Option<Vec<f32>>, at: usize| scale.as_ref().map_or(1.0, |scale| scale[at % scale.len()]);
        for (row, gradient) in gradient.chunks_mut(columns).enumerate() {
            for (column, gradient) in gradient.iter_mut().enumerate() {
                *gradient *= of(&of_rows, row) * of(&of_columns, column);
            }
        }
        to.write_slice(&rounded::<T>(&gradient))
    }
}

/// A scale for each row, or one for all.
fn scale_of_rows(scale: &Tensor<f32>, rows: usize, stream: &Stream) -> Result<Tensor<f32>> {
    let count = scale.len();
    if count <= 1 || count == rows {
        return scale.reshape([count]);
    }
    scale.with_axes(0, &[rows / count, count], &[0, 1]).contiguous_on(stream)?.reshape([rows])
}

/// How a pass deals its rows and columns to blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) vector: bool,
    /// Threads of a block that share a row.
    pub(super) threads: u32,
    /// Blocks that a row is dealt to.
    pub(super) across: u32,
    /// Rows of a strip.
    pub(super) strip: u32,
    pub(super) strips: u32,
}

impl Plan {
    /// Of matrices with elements of type `O`. It depends on the sizes and the alignment only.
    pub(super) fn new<O: Element>(sizes: Sizes, rows: &[AnyRows]) -> Self {
        let there: Vec<AnyRows> = rows.iter().copied().filter(AnyRows::is_there).collect();
        let shares = Shares::of::<O>(sizes.columns, &there, 1);
        // A thread has no registers for more that are read one by one.
        let chunk = if shares.vector { shares.chunk } else { 4 };
        let chunks = (sizes.columns as u64).div_ceil(u64::from(chunk)).max(1);
        let threads = shares.least_threads(chunks, MOST_THREADS);
        let across = chunks.div_ceil(threads);
        let (rows, round) = (sizes.rows as u64, u64::from(THREADS) / threads * u64::from(ROWS));
        let most = if rows <= ROUNDS * round { 1 } else { rows.div_ceil(round) };
        let strips = BLOCKS.div_ceil(across).min(most).max(1);
        let strip = rows.div_ceil(strips).next_multiple_of(round);
        Self {
            vector: shares.vector,
            threads: threads as u32,
            across: across as u32,
            strip: strip as u32,
            strips: rows.div_ceil(strip).max(1) as u32,
        }
    }

    pub(super) fn blocks(&self) -> u32 {
        self.across.saturating_mul(self.strips)
    }

    pub(super) fn kernel<O: LinearGradientElement>(&self) -> &'static str {
        if self.vector { O::Vector::DECLARATION.name } else { O::Any::DECLARATION.name }
    }
}
