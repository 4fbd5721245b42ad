//! The gradients of attention on the CPU.

use ndarray::{Array1, Ix3, Ix4};

use super::{AttentionGradientOp, AttentionGradientOutputs, AttentionInput, OPERATION};
use crate::cpu;
use crate::error::Result;
use crate::ops::attention::check::Checked;
use crate::ops::attention::on_cpu::{Views, held, of_axes, of_axes_mut};
use crate::tensor::Tensor;

impl<T: AttentionInput> AttentionGradientOp<'_, T> {
    /// Works on snapshots of the inputs and on arrays of its own for the results, so no lock is held meanwhile.
    pub(super) fn run_on_cpu(
        &self,
        checked: &Checked<'_, '_, T, T>,
        outputs: AttentionGradientOutputs<'_, T>,
    ) -> Result<()> {
        let (operands, problem) = (checked.operands, &checked.problem);
        let views = Views::new(operands)?;
        let sizes = operands.block_mask.map(|blocks| blocks.sizes.map(|size| size as usize));
        let mut terms = views.terms(problem.heads, sizes)?;
        (terms.scale, terms.soft_cap, terms.window) = (problem.scale, problem.soft_cap, problem.window);
        let (q, k) = (operands.q.host_view(OPERATION)?, operands.k.host_view(OPERATION)?);
        let (v, dy) = (operands.v.host_view(OPERATION)?, self.dy.host_view(OPERATION)?);
        let (q, k, v, dy) = (q.array(), k.array(), v.array(), dy.array());
        let AttentionGradientOutputs { dq, dk, dv, dsinks, adds } = outputs;
        // A gradient that is not asked for is computed all the same.
        let new = |output: &Option<&mut Tensor<T>>, like: &Tensor<T>| match output {
            Some(output) => held(output, problem.is_packed),
            None => held(like, false),
        };
        let mut results = [new(&dq, operands.q)?, new(&dk, operands.k)?, new(&dv, operands.v)?];
        let mut of_sinks = dsinks.as_ref().map(|_| Array1::<f32>::zeros(problem.heads));
        let to_sinks = of_sinks.as_mut().map(|of_sinks| of_sinks.view_mut());
        let [to_q, to_k, to_v] = results.each_mut().map(|result| result.view_mut());
        match operands.packing {
            Some(packing) => {
                let offsets = (packing.q.host_view(OPERATION)?, packing.k.host_view(OPERATION)?);
                let offsets = [of_axes(offsets.0.array())?, of_axes(offsets.1.array())?];
                let operands = [of_axes::<_, Ix3>(q)?, of_axes(k)?, of_axes(v)?];
                let to = [of_axes_mut::<_, Ix3>(to_q)?, of_axes_mut(to_k)?, of_axes_mut(to_v)?];
                cpu::packed_attention_gradient(operands, of_axes(dy)?, offsets, &terms, to, to_sinks)?;
            }
            None => {
                let operands = [of_axes::<_, Ix4>(q)?, of_axes(k)?, of_axes(v)?];
                let to = [of_axes_mut::<_, Ix4>(to_q)?, of_axes_mut(to_k)?, of_axes_mut(to_v)?];
                cpu::attention_gradient(operands, of_axes(dy)?, &terms, to, to_sinks)?;
            }
        }
        for (to, result) in [dq, dk, dv].into_iter().zip(&results) {
            if let Some(to) = to {
                to.write_slice(result.as_slice().unwrap_or_default())?;
            }
        }
        let Some((to, mut sums)) = dsinks.zip(of_sinks.map(|of_sinks| of_sinks.to_vec())) else {
            return Ok(());
        };
        if adds {
            for (sum, before) in sums.iter_mut().zip(to.to_vec()?) {
                *sum += before;
            }
        }
        to.write_slice(&sums)
    }
}
