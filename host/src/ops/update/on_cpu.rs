//! Generated low-rank updates on the CPU: its implementation on snapshots of the operands.

use ndarray::{ArrayView1, ArrayView2, ArrayViewMut2, Ix2};

use super::UpdateInput;
use super::check::Checked;
use crate::cpu::{self, LinearTerms};
use crate::device::cpu::out_of_memory;
use crate::error::Result;
use crate::memory::HostBytes;
use crate::ops::gemm::{Product, two_axes, zeroed};
use crate::tensor::Tensor;
use crate::tensor::host::HostView;

impl<T: UpdateInput> Checked<T> {
    /// Runs the updates alone into `y`, or adds them to it.
    pub(super) fn run_on_cpu(&self, y: &mut Tensor<T>, add: bool) -> Result<()> {
        let (operation, shape) = (self.operation, (self.m, self.n));
        let bytes = self.m.saturating_mul(self.n).saturating_mul(size_of::<T>());
        let mut result = HostBytes::zeroed(bytes).ok_or_else(|| out_of_memory(operation, bytes))?;
        let held: Option<Vec<T>> = add.then(|| y.to_vec()).transpose()?;
        let held = held.as_ref().map(|held| ArrayView2::from_shape(shape, held)).transpose();
        let held = held.map_err(|error| two_axes(operation, &error))?;
        let x = self.x.host_view(operation)?;
        let (factors, codes) = self.host_views()?;
        let updates = self.updates(&factors, &codes)?;
        let target = bytemuck::cast_slice_mut(result.as_mut_slice());
        let target = ArrayViewMut2::from_shape(shape, target).map_err(|error| two_axes(operation, &error))?;
        cpu::generated_update::<f32, T, T, T>(self.matrix(&x)?, &updates, held, target)?;
        y.put_host_bytes(operation, result)
    }

    /// Runs the linear operation `base` with the updates.
    pub(super) fn run_linear_on_cpu(&self, base: &Product<'_, T, T>, y: &mut Tensor<T>) -> Result<()> {
        let (operation, options, shape) = (self.operation, base.options, (self.m, self.n));
        let mut result = zeroed::<T>(operation, y.len())?;
        let mut on_host = options.terms.on_host(operation, y)?;
        let bias = options.bias.map(Tensor::to_vec).transpose()?;
        let x = self.x.host_view(operation)?;
        let w = base.b.host_view(operation)?;
        let (factors, codes) = self.host_views()?;
        let updates = self.updates(&factors, &codes)?;
        {
            let target = bytemuck::cast_slice_mut(result.as_mut_slice());
            let target =
                ArrayViewMut2::from_shape(shape, target).map_err(|error| two_axes(operation, &error))?;
            let terms = LinearTerms {
                alpha: options.alpha,
                bias: bias.as_ref().map(|bias| ArrayView1::from(&bias[..])),
                activation: options.activation,
                ..on_host.of_matrix(operation, 0, shape)?
            };
            cpu::linear_with_update::<f32, T, T, f32, T>(
                self.matrix(&x)?,
                self.matrix(&w)?,
                &updates,
                terms,
                target,
            )?;
        }
        options.terms.put(operation, on_host)?;
        y.put_host_bytes(operation, result)
    }

    /// V and U of each update, and the codes, as they are now.
    #[allow(clippy::type_complexity, reason = "two lists of views")]
    fn host_views(&self) -> Result<(Vec<[HostView<'_, T>; 2]>, Vec<HostView<'_, T>>)> {
        let operation = self.operation;
        let factors = match &self.packed {
            Some(packed) => vec![[packed.v.host_view(operation)?, packed.u.host_view(operation)?]],
            None => self
                .factors
                .iter()
                .map(|(v, u)| Ok([v.host_view(operation)?, u.host_view(operation)?]))
                .collect::<Result<_>>()?,
        };
        let codes = self.codes.iter().map(|codes| codes.codes.host_view(operation));
        Ok((factors, codes.collect::<Result<_>>()?))
    }

    /// The updates as the CPU implementation takes them.
    fn updates<'v>(
        &self,
        factors: &'v [[HostView<'_, T>; 2]],
        codes: &'v [HostView<'_, T>],
    ) -> Result<Vec<cpu::Update<'v, T>>> {
        let mut begin = 0;
        self.codes
            .iter()
            .zip(codes)
            .enumerate()
            .map(|(i, (of, codes))| {
                let (mut v, mut u) = (self.matrix(&factors[0][0])?, self.matrix(&factors[0][1])?);
                if self.packed.is_some() {
                    let ranks = begin..begin + of.rank;
                    v = v.slice_move(ndarray::s![.., ranks.clone()]);
                    u = u.slice_move(ndarray::s![ranks, ..]);
                    begin += of.rank;
                } else {
                    (v, u) = (self.matrix(&factors[i][0])?, self.matrix(&factors[i][1])?);
                }
                let codes = self.matrix(codes)?;
                Ok(cpu::Update { v, codes, rows: of.rows, u, scaling: of.scaling })
            })
            .collect()
    }

    fn matrix<'v>(&self, view: &'v HostView<'_, T>) -> Result<ArrayView2<'v, T>> {
        view.array().into_dimensionality::<Ix2>().map_err(|error| two_axes(self.operation, &error))
    }
}
