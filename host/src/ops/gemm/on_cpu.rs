//! Products on the CPU: its implementation on each matrix of a batch.

use ndarray::{ArrayView1, ArrayView2, ArrayViewD, ArrayViewMut2, Axis, ShapeError};

use super::{LinearTypes, Product, two_axes, zeroed};
use crate::cpu::{self, FromAccumulator, LinearTerms};
use crate::error::Result;
use crate::tensor::{Element, Tensor};

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

        let mut result = zeroed::<O>(operation, y.len())?;
        let mut on_host = options.terms.on_host(operation, y)?;
        let bias = options.bias.map(|bias| bias.host_view(operation)).transpose()?;
        let bias: Option<Vec<T>> = bias.as_ref().map(|bias| bias.array().iter().copied().collect());
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
        let flat = if shared {
            Some(a.to_shape((rows, k)).map_err(|error| two_axes(operation, &error))?)
        } else {
            None
        };
        for index in 0..matrices {
            let x = match &flat {
                Some(flat) => flat.view(),
                None => self.matrix(&a, index)?,
            };
            let w = self.matrix(&b, index)?;
            let elements = index * rows * n..(index + 1) * rows * n;
            let two = |error: ShapeError| two_axes(operation, &error);
            let result = &mut bytemuck::cast_slice_mut::<u8, O>(result.as_mut_slice())[elements.clone()];
            let result = ArrayViewMut2::from_shape((rows, n), result).map_err(two)?;
            let terms = LinearTerms {
                alpha: options.alpha,
                row_scale: row_scale.as_ref().map(|scale| ArrayView1::from(&scale[index * rows..][..rows])),
                column_scale: column_scale.as_ref().map(|scale| ArrayView1::from(&scale[..])),
                bias: bias.as_ref().map(|bias| ArrayView1::from(&bias[..])),
                activation: options.activation,
                ..on_host.of_matrix(operation, index, (rows, n))?
            };
            cpu::linear::<f32, _, _, _, _>(x, w, terms, result)?;
        }
        options.terms.put(operation, on_host)?;
        y.put_host_bytes(operation, result)
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
        view.into_dimensionality().map_err(|error| two_axes(self.operation, &error))
    }
}
