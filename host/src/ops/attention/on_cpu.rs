//! Attention on the CPU.

use ndarray::{ArrayD, ArrayViewD, ArrayViewMutD, Dimension, Ix1, Ix2, Ix3, Ix4, IxDyn, ShapeError};

use super::check::Checked;
use super::operands::Operands;
use super::{AttentionInput, AttentionKeys, OPERATION};
use crate::cpu::{self, AttentionTerms};
use crate::error::{Error, Result};
use crate::memory::zeros;
use crate::tensor::host::HostView;
use crate::tensor::{Element, Tensor};

impl<T: AttentionInput, K: AttentionKeys<T>> Checked<'_, '_, T, K> {
    /// Works on snapshots of the inputs and on arrays of its own for the results, so no lock is held meanwhile.
    pub(super) fn run_on_cpu(&self, y: &mut Tensor<T>, lse: Option<&mut Tensor<f32>>) -> Result<()> {
        let (operands, problem) = (self.operands, &self.problem);
        let views = Views::new(operands)?;
        let sizes = operands.block_mask.map(|blocks| blocks.sizes.map(|size| size as usize));
        let mut terms = views.terms(problem.heads, sizes)?;
        (terms.scale, terms.soft_cap, terms.window) = (problem.scale, problem.soft_cap, problem.window);

        let q = operands.q.host_view(OPERATION)?;
        let (k, v) = (operands.k.host_view(OPERATION)?, operands.v.host_view(OPERATION)?);
        let (q, k, v) = (q.array(), k.array(), v.array());
        let mut result = held(y, problem.is_packed)?;
        let mut lse_result = lse.as_deref().map(|lse| held(lse, problem.is_packed)).transpose()?;
        let (to, lse_to) = (result.view_mut(), lse_result.as_mut().map(|lse| lse.view_mut()));
        match operands.packing {
            Some(packing) => {
                let offsets = (packing.q.host_view(OPERATION)?, packing.k.host_view(OPERATION)?);
                let offsets = [of_axes::<_, Ix1>(offsets.0.array())?, of_axes(offsets.1.array())?];
                let lse_to = lse_to.map(of_axes_mut::<_, Ix2>).transpose()?;
                let (q, k, v) = (of_axes::<_, Ix3>(q)?, of_axes(k)?, of_axes(v)?);
                cpu::packed_attention::<f32, _, _, _, _>(q, k, v, offsets, &terms, of_axes_mut(to)?, lse_to)?;
            }
            None => {
                let lse_to = lse_to.map(of_axes_mut::<_, Ix3>).transpose()?;
                let (q, k, v) = (of_axes::<_, Ix4>(q)?, of_axes(k)?, of_axes(v)?);
                cpu::attention::<f32, _, _, _, _>(q, k, v, &terms, of_axes_mut(to)?, lse_to)?;
            }
        }
        y.write_slice(result.as_slice().unwrap_or_default())?;
        match (lse, lse_result) {
            (Some(lse), Some(result)) => lse.write_slice(result.as_slice().unwrap_or_default()),
            _ => Ok(()),
        }
    }
}

/// The elements of the existing operands.
pub(super) struct Views<'t, T: Element> {
    mask: Option<HostView<'t, u8>>,
    bias: Option<HostView<'t, T>>,
    block_mask: Option<HostView<'t, u8>>,
    slopes: Option<HostView<'t, f32>>,
    sinks: Option<HostView<'t, f32>>,
    lengths: [Option<HostView<'t, u32>>; 2],
    pages: Option<HostView<'t, u32>>,
    /// Of k and of v.
    scales: [Option<HostView<'t, f32>>; 2],
}

impl<'t, T: AttentionInput> Views<'t, T> {
    pub(super) fn new<K: AttentionKeys<T>>(operands: &Operands<'t, T, K>) -> Result<Self> {
        Ok(Self {
            mask: view(operands.mask)?,
            bias: view(operands.bias)?,
            block_mask: view(operands.block_mask.as_ref().map(|blocks| blocks.mask))?,
            slopes: view(operands.slopes)?,
            sinks: view(operands.sinks)?,
            lengths: [view(operands.lengths[0])?, view(operands.lengths[1])?],
            pages: view(operands.pages)?,
            scales: [view(operands.scales[0])?, view(operands.scales[1])?],
        })
    }

    /// What is done to the scores, with blocks of so many rows and keys.
    pub(super) fn terms(&self, heads: usize, sizes: Option<[usize; 2]>) -> Result<AttentionTerms<'_, T>> {
        let ([lengths_q, lengths_k], [k_scale, v_scale]) = (&self.lengths, &self.scales);
        let slopes = self.slopes.as_ref().map(|slopes| {
            let slopes = slopes.array();
            // Those of heads are one row.
            let of_sequences = slopes.ndim() == 2;
            let rows = if of_sequences { slopes.shape()[0] } else { 1 };
            slopes.into_shape_with_order((rows, heads)).map_err(|error| other_axes(&error))
        });
        Ok(AttentionTerms {
            mask: axes(&self.mask)?,
            bias: axes(&self.bias)?,
            block_mask: axes(&self.block_mask)?.zip(sizes),
            slopes: slopes.transpose()?,
            sinks: axes(&self.sinks)?,
            lengths_q: axes(lengths_q)?,
            lengths_k: axes(lengths_k)?,
            pages: axes(&self.pages)?,
            k_scale: axes(k_scale)?,
            v_scale: axes(v_scale)?,
            ..AttentionTerms::new(1.0)
        })
    }
}

fn view<'t, U: Element>(tensor: Option<&'t Tensor<U>>) -> Result<Option<HostView<'t, U>>> {
    tensor.map(|tensor| tensor.host_view(OPERATION)).transpose()
}

fn axes<'v, U: Element, D: Dimension>(
    view: &'v Option<HostView<'_, U>>,
) -> Result<Option<ndarray::ArrayView<'v, U, D>>> {
    view.as_ref().map(|view| of_axes(view.array())).transpose()
}

/// An array of a result's shape: with its elements if some of them may have to stay, else zeros.
pub(super) fn held<U: Element>(tensor: &Tensor<U>, may_stay: bool) -> Result<ArrayD<U>> {
    let elements = if may_stay { tensor.to_vec()? } else { zeros(OPERATION, tensor.len())? };
    ArrayD::from_shape_vec(IxDyn(tensor.shape()), elements).map_err(|error| other_axes(&error))
}

/// An array with the number of axes that its tensor was checked to have.
pub(super) fn of_axes<U, D: Dimension>(array: ArrayViewD<'_, U>) -> Result<ndarray::ArrayView<'_, U, D>> {
    array.into_dimensionality().map_err(|error| other_axes(&error))
}

pub(super) fn of_axes_mut<U, D: Dimension>(
    array: ArrayViewMutD<'_, U>,
) -> Result<ndarray::ArrayViewMut<'_, U, D>> {
    array.into_dimensionality().map_err(|error| other_axes(&error))
}

fn other_axes(error: &ShapeError) -> Error {
    Error::Shape {
        operation: OPERATION,
        operand: "operand",
        expected: format!("the axes that were checked: {error}"),
        actual: Vec::new(),
    }
}
