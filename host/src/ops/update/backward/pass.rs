//! What is between the products: their operands, and the gradient of the codes.

use warpsmith_dsl::launch::{Global, GlobalMut, Kernel};
use warpsmith_dsl::rows::{AnyRows, THREADS};
use warpsmith_dsl::update_gradient::{ROWS, UpdateGradientParams};

use super::{UpdateBackwardOp, UpdateGradientElement};
use crate::cpu::UpdateGradient;
use crate::device::DeviceKind;
use crate::error::Result;
use crate::ops::column_sums::{SumElement, column_sums};
use crate::ops::matrix::row_stride;
use crate::ops::rows::{as_result_rows, rounded, rows_of, widened};
use crate::ops::update::operands::CodesOfUpdate;
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};

/// Strips that all groups have together at most: a few for each multiprocessor of any GPU. It is the same for all of them, so that the order of sums is.
const STRIPS: u64 = 1024;
/// Rounds of rows up to which one strip has all rows of a group: the sum of parts would take another launch.
const ROUNDS: u64 = 2;

impl<T: UpdateGradientElement> UpdateBackwardOp<'_, T> {
    /// A and dH of one update, of its columns of H and P, and the gradient of its codes.
    pub(super) fn pass<C: SumElement>(
        &self,
        stream: &Stream,
        of: &CodesOfUpdate<T>,
        [h, p]: [Option<Tensor<f32>>; 2],
        [a, dh]: [Option<&Tensor<T>>; 2],
        dcodes: Option<&mut Tensor<C>>,
        adds: bool,
    ) -> Result<()> {
        if a.is_none() && dh.is_none() && dcodes.is_none() {
            return Ok(());
        }
        let Some(m) = h.as_ref().or(p.as_ref()).map(|side| side.shape()[0]) else { return Ok(()) };
        let mut dcodes = dcodes.map(|dcodes| as_result_rows(self.operation, "dcodes", dcodes)).transpose()?;
        if m == 0 {
            // The sum over no rows.
            return match dcodes.as_mut().filter(|dcodes| !adds && !dcodes.is_empty()) {
                Some(dcodes) => dcodes.copy_from_on(&Tensor::zeros_on(stream, dcodes.shape())?, stream),
                None => Ok(()),
            };
        }
        if self.x.device().kind() == DeviceKind::Cpu {
            return on_cpu(of, [h, p], [a, dh], dcodes, adds);
        }
        let plan = Plan::new(of, m);
        let (groups, strips) = (plan.groups as usize, plan.strips as usize);
        let has_parts = dcodes.is_some() && strips > 1;
        let is_dense = dcodes.as_ref().is_some_and(Tensor::is_contiguous);
        let parts = has_parts.then(|| Tensor::<f32>::uninit_on(stream, [groups * strips, of.rank]));
        let parts = parts.transpose()?;
        let sums = match (&parts, &dcodes) {
            (Some(parts), _) => rows_of(parts),
            (None, Some(dcodes)) => rows_of(dcodes),
            (None, None) => AnyRows::NONE,
        };
        // Strips of all groups side by side, or those of each group below each other.
        let [of_group, of_strip] = match (has_parts, is_dense) {
            (false, _) => [1, 0],
            (true, true) => [1, plan.groups],
            (true, false) => [plan.strips, 1],
        };
        let address = |of: Option<&Tensor<T>>| GlobalMut::new(of.map_or(0, Tensor::device_address));
        let single = |of: &Option<Tensor<f32>>, is_read: bool| {
            of.as_ref().filter(|_| is_read).map_or(Global::new(0), Tensor::arg)
        };
        let params = UpdateGradientParams {
            h: single(&h, a.is_some() || dcodes.is_some()),
            p: single(&p, dh.is_some() || dcodes.is_some()),
            stride: h.as_ref().or(p.as_ref()).map_or(0, row_stride),
            codes: of.codes.arg(),
            codes_stride: row_stride(&of.codes),
            a: address(a),
            dh: address(dh),
            result_stride: a.or(dh).map_or(0, row_stride),
            dcodes: sums,
            rows: m as u32,
            columns: of.rank as u32,
            groups: plan.groups,
            group: plan.group,
            strip: plan.strip,
            threads: plan.threads,
            teams: plan.teams,
            own: u32::from(plan.own),
            of_group,
            of_strip,
            scaling: of.scaling,
            adds: u32::from(adds && !has_parts),
        };
        let mut operands: Vec<&dyn Operand> = vec![&of.codes];
        operands.extend(h.iter().chain(&p).map(|side| side as &dyn Operand));
        operands.extend([a, dh].into_iter().flatten().map(|result| result as &dyn Operand));
        operands.extend(parts.iter().map(|parts| parts as &dyn Operand));
        operands.extend(dcodes.iter().map(|dcodes| dcodes as &dyn Operand));
        // SAFETY: H, P, A and dH have the rows and columns of the update, with the same strides in pairs; codes and their gradient have a row for each group, or for each row.
        // Results are new or apart from all else, as has been checked. Parts have a row for each strip. Tensors are freed in the order of their home streams, which
        // `with_operands` makes wait for this work.
        stream.with_operands(&operands, || unsafe {
            let kernel = stream.device().kernel::<T::Gradient>()?;
            kernel.launch(stream, [plan.across(), plan.strips, 1], (params,))
        })?;
        let (Some(parts), Some(dcodes)) = (parts, dcodes) else { return Ok(()) };
        if is_dense {
            let parts = parts.reshape([strips, groups * of.rank])?;
            let mut sums = dcodes.reshape([groups * of.rank])?;
            return column_sums(stream, [Some((&parts, &mut sums)), None], adds);
        }
        for group in 0..groups {
            let parts = parts.slice(0, group * strips..(group + 1) * strips)?;
            let mut sums = dcodes.slice(0, group..group + 1)?.reshape([of.rank])?;
            column_sums(stream, [Some((&parts, &mut sums)), None], adds)?;
        }
        Ok(())
    }
}

fn on_cpu<T: UpdateGradientElement, C: SumElement>(
    of: &CodesOfUpdate<T>,
    [h, p]: [Option<Tensor<f32>>; 2],
    [a, dh]: [Option<&Tensor<T>>; 2],
    dcodes: Option<Tensor<C>>,
    adds: bool,
) -> Result<()> {
    let numbers = |side: &Option<Tensor<f32>>| side.as_ref().map(Tensor::to_vec).transpose();
    let (h, p, codes) =
        (numbers(&h)?.unwrap_or_default(), numbers(&p)?.unwrap_or_default(), widened(&of.codes)?);
    let (rows, rank, scaling) = (of.rows, of.rank, of.scaling);
    let gradient = UpdateGradient { h: &h, p: &p, codes: &codes, rows, rank, scaling };
    for (to, side) in [(a, &h), (dh, &p)] {
        if let Some(to) = to {
            to.clone().write_slice(&rounded::<T>(&gradient.modulated(side)))?;
        }
    }
    let Some(mut dcodes) = dcodes else { return Ok(()) };
    let mut sums = gradient.of_codes();
    if adds {
        for (sum, before) in sums.iter_mut().zip(widened(&dcodes)?) {
            *sum += before;
        }
    }
    dcodes.write_slice(&rounded::<C>(&sums))
}

/// How a pass deals its rows to threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Whether each row has codes of its own.
    pub(super) own: bool,
    pub(super) groups: u32,
    /// Rows of a group.
    pub(super) group: u32,
    /// Threads that have a row.
    pub(super) threads: u32,
    /// Rows of a strip that threads of a block have at a time.
    pub(super) teams: u32,
    /// Rows of a strip.
    pub(super) strip: u32,
    /// Strips of a group.
    pub(super) strips: u32,
}

impl Plan {
    /// Of the codes of an update of so many rows. It depends on the sizes only.
    pub(super) fn new<T: Element>(of: &CodesOfUpdate<T>, m: usize) -> Self {
        Self::of_sizes(of.rank, of.rows, m)
    }

    pub(super) fn of_sizes(rank: usize, shared: usize, m: usize) -> Self {
        let (rows, shared) = (m as u64, (shared as u64).max(1));
        let threads = (rank as u64).next_power_of_two();
        let all_teams = (u64::from(THREADS) / threads).max(1);
        let round = all_teams * u64::from(ROWS);
        let of = |own, groups: u64, group: u64, teams: u64, strip: u64, strips: u64| Self {
            own,
            groups: groups as u32,
            group: group as u32,
            threads: threads as u32,
            teams: teams as u32,
            strip: strip as u32,
            strips: strips as u32,
        };
        if shared == 1 {
            return of(true, rows.div_ceil(round), round, all_teams, round, 1);
        }
        let groups = rows / shared;
        if shared <= ROUNDS * round {
            let teams = shared.div_ceil(u64::from(ROWS)).next_power_of_two().min(all_teams);
            return of(false, groups, shared, teams, shared, 1);
        }
        let most = (STRIPS / groups.max(1)).max(1);
        let strips = shared.div_ceil(round).min(most);
        let strip = shared.div_ceil(strips).next_multiple_of(round);
        of(false, groups, shared, all_teams, strip, shared.div_ceil(strip))
    }

    /// Blocks along x.
    pub(super) fn across(&self) -> u32 {
        self.groups.div_ceil(THREADS / (self.threads * self.teams)).max(1)
    }

    pub(super) fn blocks(&self) -> u32 {
        self.across().saturating_mul(self.strips)
    }
}

/// The kernel's name.
pub(super) fn kernel<T: UpdateGradientElement>() -> &'static str {
    T::Gradient::DECLARATION.name
}
