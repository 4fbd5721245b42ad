//! Products on the CPU: its implementation on each matrix of a batch.

use half::{bf16, f16};
use ndarray::{ArrayView1, ArrayView2, ArrayViewD, ArrayViewMut2, Axis, ShapeError};

use super::Product;
use crate::cpu::{self, FromAccumulator, LinearTerms, Operand};
use crate::device::cpu::out_of_memory;
use crate::error::{Error, Result};
use crate::memory::HostBytes;
use crate::ops::linear::LinearTypes;
use crate::tensor::{DType, Element, Tensor};

impl<T, O> Product<'_, T, O>
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    /// Works on snapshots of the inputs and on blocks of its own for the results, so no lock is held meanwhile.
    pub(super) fn execute_on_cpu(&self, y: &mut Tensor<O>) -> Result<()> {
        let (operation, options, (n, k)) = (self.operation, self.options, (self.n(), self.k()));
        let (a, b) = (self.a.host_view(operation)?, self.b.host_view(operation)?);
        let (a, b) = (a.array(), b.array());
        // Matrices that share one B are one matrix of many rows.
        let shared = b.shape()[..b.ndim() - 2].iter().all(|&length| length == 1);
        let matrices = if shared { 1 } else { self.leading.iter().product() };
        let rows = y.len() / n / matrices;

        let words = n.div_ceil(32);
        let mut result = self.zeroed::<O>(y.len())?;
        let mut mask = options.mask.as_ref().map(|mask| self.zeroed::<u32>(mask.len())).transpose()?;
        let mut z = options.preactivation.as_ref().map(|z| self.zeroed::<O>(z.len())).transpose()?;
        let bias = options.bias.map(|bias| bias.host_view(operation)).transpose()?;
        let bias: Option<Vec<T>> = bias.as_ref().map(|bias| bias.array().iter().copied().collect());
        let added = self.added(y);
        let residual = added.map(|(residual, _)| self.widened(residual)).transpose()?;
        // A vector of fewer numbers than rows or columns is repeated.
        let repeated = |scale: Option<&Tensor<f32>>, count: usize| -> Result<Option<Vec<f32>>> {
            let Some(scale) = scale else { return Ok(None) };
            let scale = scale.host_view(operation)?;
            let numbers: Vec<f32> = scale.array().iter().copied().collect();
            Ok(Some(numbers.iter().copied().cycle().take(count).collect()))
        };
        let row_scale = repeated(options.row_scale, rows * matrices)?;
        let column_scale = repeated(options.column_scale, n)?;

        // Cows, so that rows that one stride gives are not copied.
        let flat =
            if shared { Some(a.to_shape((rows, k)).map_err(|error| self.two_axes(&error))?) } else { None };
        for index in 0..matrices {
            let x = match &flat {
                Some(flat) => flat.view(),
                None => self.matrix(&a, index)?,
            };
            let w = self.matrix(&b, index)?;
            let elements = index * rows * n..(index + 1) * rows * n;
            let two = |error: ShapeError| self.two_axes(&error);
            let result = &mut bytemuck::cast_slice_mut::<u8, O>(result.as_mut_slice())[elements.clone()];
            let result = ArrayViewMut2::from_shape((rows, n), result).map_err(two)?;
            let mask = mask.as_mut().map(|mask| {
                let mask = &mut bytemuck::cast_slice_mut::<u8, u32>(mask.as_mut_slice())
                    [index * rows * words..][..rows * words];
                ArrayViewMut2::from_shape((rows, words), mask).map_err(two)
            });
            let z = z.as_mut().map(|z| {
                let z = &mut bytemuck::cast_slice_mut::<u8, O>(z.as_mut_slice())[elements.clone()];
                ArrayViewMut2::from_shape((rows, n), z).map_err(two)
            });
            let residual = residual
                .as_ref()
                .map(|residual| ArrayView2::from_shape((rows, n), &residual[elements.clone()]).map_err(two));
            let terms = LinearTerms {
                alpha: options.alpha,
                row_scale: row_scale.as_ref().map(|scale| ArrayView1::from(&scale[index * rows..][..rows])),
                column_scale: column_scale.as_ref().map(|scale| ArrayView1::from(&scale[..])),
                bias: bias.as_ref().map(|bias| ArrayView1::from(&bias[..])),
                beta: added.map_or(0.0, |(_, beta)| beta),
                residual: residual.transpose()?,
                activation: options.activation,
                mask: mask.transpose()?,
                preactivation: z.transpose()?,
            };
            cpu::linear::<f32, _, _, _, _>(x, w, terms, result)?;
        }
        if let (Some(mask), Some(target)) = (mask, options.mask.as_deref()) {
            target.clone().put_host_bytes(operation, mask)?;
        }
        if let (Some(z), Some(target)) = (z, options.preactivation.as_deref()) {
            target.clone().put_host_bytes(operation, z)?;
        }
        y.put_host_bytes(operation, result)
    }

    pub(crate) fn zeroed<U>(&self, elements: usize) -> Result<HostBytes> {
        let bytes = elements.saturating_mul(size_of::<U>());
        HostBytes::zeroed(bytes).ok_or_else(|| out_of_memory(self.operation, bytes))
    }

    /// Matrix `index` of the broadcast leading axes, of an operand.
    fn matrix<'v>(&self, operand: &'v ArrayViewD<'_, T>, index: usize) -> Result<ArrayView2<'v, T>> {
        let (mut view, mut left) = (operand.view(), index);
        for &length in self.leading.iter().rev() {
            let axes = view.ndim() - 2;
            if axes == 0 {
                break;
            }
            let at = if view.shape()[axes - 1] == 1 { 0 } else { left % length };
            view = view.index_axis_move(Axis(axes - 1), at);
            left /= length;
        }
        view.into_dimensionality().map_err(|error| self.two_axes(&error))
    }

    /// The elements in row-major order, as f32.
    pub(crate) fn widened(&self, tensor: &Tensor<O>) -> Result<Vec<f32>> {
        let view = tensor.host_view(self.operation)?;
        let elements: Vec<O> = view.array().iter().copied().collect();
        match O::DTYPE {
            DType::F16 => Ok(to_f32::<f16>(bytemuck::cast_slice(&elements))),
            DType::Bf16 => Ok(to_f32::<bf16>(bytemuck::cast_slice(&elements))),
            DType::F32 => Ok(bytemuck::cast_slice(&elements).to_vec()),
            actual => Err(Error::Type {
                operation: self.operation,
                operand: "residual",
                expected: "f16, bf16 or f32".into(),
                actual,
            }),
        }
    }

    pub(crate) fn two_axes(&self, error: &ShapeError) -> Error {
        Error::Argument {
            operation: self.operation,
            argument: "shape",
            expected: "two axes".into(),
            actual: error.to_string(),
        }
    }
}

fn to_f32<U: Operand>(elements: &[U]) -> Vec<f32> {
    elements.iter().map(|element| element.to_f32()).collect()
}
