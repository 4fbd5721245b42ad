//! Attention by the kernels for every GPU from compute capability 8.0 on, and by those of Hopper's whose keys are dealt to several blocks.

use warpsmith_dsl::attention::portable::{Parts, Strided, THREADS, Tensors};
use warpsmith_dsl::attention::work::Sizes;
use warpsmith_dsl::launch::GlobalMut;
use warpsmith_dsl::warp;
use warpsmith_kernels::attention::CombineParams;
use warpsmith_kernels::attention_shapes::AttentionParams;

use super::super::check::{Checked, leading_strides};
use super::super::problem::Problem;
use super::super::{AttentionInput, AttentionKeys};
use super::hopper::Dealt;
use super::instances::Instance;
use super::{aligned, is_aligned, no_kernel};
use crate::error::Result;
use crate::ops::{Implementation, repack};
use crate::stream::Operand;
use crate::tensor::{Element, Tensor};

/// Multiprocessors for each tile of a sequence from which on its keys are dealt to several blocks, and keys for each row.
const IDLE: usize = 8;
const MANY_KEYS: usize = 64;
/// The least keys of a part.
const PART: u32 = 256;
/// Hopper's kernels deal keys where a sequence's tiles are at most one for so many multiprocessors, to as many blocks as fill these. Those with narrower blocks of keys are
/// slower than kernels for whole tiles, and do so for as many times fewer.
const HOPPER_IDLE: usize = 4;
const WIDE_BLOCK: usize = 128;
/// The least keys of a part for each of a tile's rows there: what a part's sums take to write and to read is in proportion to them.
const KEYS_FOR_ROW: usize = 16;
/// Hopper's kernels let rows of heads alternate where that makes as many times fewer tiles, at least.
const FEWER: usize = 2;

/// A kernel and its grid.
pub(super) struct Plan<T: Element> {
    instance: Instance<T>,
    /// Hopper's kernel, which is launched in the place of the instance's.
    dealt: Option<Dealt>,
    /// Heads whose rows alternate.
    pack: usize,
    tiles: u32,
    /// Parts of the keys, and the least keys of each.
    parts: (u32, u32),
    blocks: u32,
}

impl<T: AttentionInput> Plan<T> {
    /// The plan that deals the keys of each sequence to several blocks, if a kernel serves it: where rows are few, or if `asked`.
    ///
    /// Rows of the heads that share keys alternate in a tile, so that keys are read once. Where they are more than a tile for few has, a sequence's tiles leave most
    /// multiprocessors idle, and keys are many for each row: otherwise whole tiles are faster as soon as there are several sequences. Hopper's kernels also compute those that
    /// alternate in a fraction of the tiles.
    pub(super) fn split<K: AttentionKeys<T>>(checked: &Checked<'_, '_, T, K>, asked: bool) -> Option<Self> {
        let problem = &checked.problem;
        if problem.is_packed {
            return None;
        }
        let group = problem.heads / problem.key_heads.max(1);
        let rows = problem.rows.saturating_mul(group);
        let device = checked.stream.device();
        let instance = |few| K::instance(device, problem.width, problem.value_width, few);
        let multiprocessors = device.properties().multiprocessors as usize;
        let is_few = instance(true).is_some_and(|few| rows <= few.rows as usize);
        let most = Parts::MOST as usize;
        if is_few && let Some(plan) = Self::with(checked, None, true, group, most) {
            return Some(plan);
        }
        if let Some(dealt) = Dealt::serving(checked) {
            let of_tile = dealt.rows as usize;
            let tiles = problem.key_heads.saturating_mul(rows.div_ceil(of_tile));
            let of_others = problem.heads.saturating_mul(problem.rows.div_ceil(of_tile));
            let idle = HOPPER_IDLE * (WIDE_BLOCK / dealt.keys as usize).max(1);
            let is_idle = tiles.saturating_mul(idle) <= multiprocessors;
            let is_worth_it = |plan: &Self| {
                let has_parts = plan.parts.0 > 1 && problem.reach() > plan.parts.1 as usize;
                asked || is_idle && has_parts || tiles.saturating_mul(FEWER) <= of_others
            };
            let filling = multiprocessors.div_ceil(tiles.max(1)).min(most);
            let most = if is_idle || asked { filling } else { 1 };
            return Self::with(checked, Some(dealt), false, group, most).filter(is_worth_it);
        }
        let tiles = problem.key_heads.saturating_mul(rows.div_ceil(instance(false)?.rows as usize));
        let is_idle = tiles.saturating_mul(IDLE) <= multiprocessors;
        let has_many_keys = problem.keys / MANY_KEYS >= problem.rows;
        let plan = if is_idle && has_many_keys || asked {
            Self::with(checked, None, false, group, most)
        } else {
            None
        };
        plan.filter(|plan| plan.parts.0 > 1)
    }

    /// The plan for any rows, if a kernel serves them.
    pub(super) fn whole<K: AttentionKeys<T>>(checked: &Checked<'_, '_, T, K>) -> Option<Self> {
        Self::with(checked, None, false, 1, 1)
    }

    fn with<K: AttentionKeys<T>>(
        checked: &Checked<'_, '_, T, K>,
        dealt: Option<Dealt>,
        few: bool,
        pack: usize,
        most: usize,
    ) -> Option<Self> {
        let problem = &checked.problem;
        let properties = checked.stream.device().properties();
        let instance = K::instance(checked.stream.device(), problem.width, problem.value_width, few)?;
        let (of_tile, of_block) =
            dealt.map_or((instance.rows, instance.keys), |dealt| (dealt.rows, dealt.keys));
        let of_tile = of_tile as usize;
        let rows = problem.rows.checked_mul(pack)?;
        // Each packed sequence may begin a tile of its own.
        let tiles = if problem.is_packed { rows / of_tile + problem.batch } else { rows.div_ceil(of_tile) };
        // Whatever the axis of keys: a sequence's bits do not depend on the longest one beside it.
        let least = if dealt.is_some() { (rows.min(of_tile) * KEYS_FOR_ROW) as u32 } else { 0 };
        let keys = PART.max(least).next_multiple_of(of_block);
        let parts = problem.keys.div_ceil(keys as usize).clamp(1, most);
        let heads = problem.all_heads() / pack;
        let all = (tiles as u64).checked_mul(heads as u64)?.checked_mul(parts as u64)?;
        // A grid has less than 2³¹ blocks, and rows of heads that alternate are counted in 32 bits.
        let blocks = u32::try_from(all).ok().filter(|&all| all < 1 << 31)?;
        // Those of Hopper work through several parts.
        let blocks = if dealt.is_some() { blocks.min(properties.multiprocessors) } else { blocks };
        (rows < 1 << 31).then_some(Self {
            instance,
            dealt,
            pack,
            tiles: tiles as u32,
            parts: (parts as u32, keys),
            blocks,
        })
    }

    pub(super) fn implementation<K: AttentionKeys<T>>(
        &self,
        checked: &Checked<'_, '_, T, K>,
    ) -> Implementation {
        let [q, k] = checked.are_in_place();
        let v = if self.dealt.is_some() { checked.v_is_in_place() } else { is_aligned(checked.operands.v) };
        let in_place = [q, k, v];
        let copies = in_place.into_iter().filter(|is| !is).count();
        let device = checked.stream.device();
        let name = self.dealt.as_ref().map_or(self.instance.name(), Dealt::name);
        let first = Implementation::kernel(device, name, self.blocks);
        if self.parts.0 == 1 {
            return first.with_copies(copies);
        }
        let second = Implementation::kernel(
            device,
            self.instance.combine.name,
            Self::combine_blocks(&checked.problem),
        );
        first.with_copies(copies).then(second)
    }

    /// Blocks of the kernel that adds up parts, of which each warp has a row.
    fn combine_blocks(problem: &Problem) -> u32 {
        let rows = problem.all_heads() as u64 * problem.rows as u64;
        rows.div_ceil(u64::from(THREADS / warp::SIZE)) as u32
    }

    /// Launches the kernel, after copies of operands that it cannot read in place, and the one that adds up parts; again for further columns of V.
    pub(super) fn launch<K: AttentionKeys<T>>(
        &self,
        checked: &Checked<'_, '_, T, K>,
        y: &mut Tensor<T>,
        mut lse: Option<&mut Tensor<f32>>,
    ) -> Result<()> {
        let (operands, stream) = (checked.operands, &checked.stream);
        let q = aligned(operands.q, stream)?;
        let k = aligned(operands.k, stream)?;
        let v = if self.dealt.is_some() && !checked.v_is_in_place() {
            repack(operands.v).on(stream).run()?
        } else {
            aligned(operands.v, stream)?
        };
        let (axis, columns) = (v.rank() - 1, checked.problem.value_width);
        for first in (0..columns.max(1)).step_by(self.instance.values as usize) {
            let slice = first..columns.min(first + self.instance.values as usize);
            let (v, mut y) = (v.slice(axis, slice.clone())?, y.slice(axis, slice)?);
            self.launch_columns(checked, &q, [&k, &v], &mut y, lse.take())?;
        }
        Ok(())
    }

    fn launch_columns<K: AttentionKeys<T>>(
        &self,
        checked: &Checked<'_, '_, T, K>,
        q: &Tensor<T>,
        [k, v]: [&Tensor<K>; 2],
        y: &mut Tensor<T>,
        mut lse: Option<&mut Tensor<f32>>,
    ) -> Result<()> {
        let (operands, problem, stream) = (checked.operands, &checked.problem, &checked.stream);
        let value_columns = v.shape()[v.rank() - 1] as u32;
        let tensors = Tensors {
            q: strided(q),
            k: strided(k),
            v: strided(v),
            o: strided(y),
            pages: checked.pages(),
            columns: problem.width as u32,
            value_columns,
        };
        let rows = problem.all_heads() * problem.rows;
        let (count, keys) = self.parts;
        // Of each part of each row its sums, and one number more.
        let columns = Parts::columns(value_columns) as usize;
        let all = if count > 1 { rows.saturating_mul(count as usize) } else { 0 };
        let mut results = Tensor::<f32>::uninit_on(stream, [all.saturating_mul(columns + 1)])?;
        let sums = results.arg_mut();
        let parts = Parts { sums, lse: sums.offset((all * columns) as u64), count, keys };
        let lse_arg = lse.as_mut().map_or(GlobalMut::new(0), |lse| lse.arg_mut());
        let heads = problem.all_heads() / self.pack;
        // Hopper's tiles of a head read its keys one after the other; those for every GPU rarely have several, and other blocks beside them.
        let section = if self.dealt.is_some() { problem.resident_heads::<T>().min(heads) } else { heads };
        let sizes = Sizes {
            pack: self.pack as u32,
            tiles: self.tiles,
            rows_of_heads: heads as u32,
            section: section.max(1) as u32,
            ..problem.sizes()
        };
        let params = AttentionParams { sizes, sequences: operands.sequences() };
        let (changes, y_arg) = (checked.score_operands(), y.arg_mut());
        let [stride_sequence, stride_row, stride_head] = leading_strides(y);
        let combine = CombineParams {
            stride_sequence,
            stride_row,
            stride_head,
            rows: rows as u64,
            rows_of_head: problem.rows as u32,
            heads: problem.heads as u32,
            columns: value_columns,
            reserved: 0,
        };
        let mut used: Vec<&dyn Operand> = vec![q, k, v, &*y, &results];
        used.extend(lse.as_deref().map(|lse| lse as &dyn Operand));
        used.extend(operands.options());
        stream.with_operands(&used, || {
            let device = stream.device();
            // SAFETY: shapes, strides and device of the operands have been checked; offsets, lengths and numbers of pages are bounded by the kernel, and there is room for each part of each row.
            // The plan's tiles and parts are those of the kernel that it launches.
            // Tensors are freed in the order of their home streams, which `with_operands` makes wait for this work.
            unsafe {
                let args = (tensors, lse_arg, parts, changes);
                if let Some(dealt) = &self.dealt {
                    let Some((k, v)) = K::native(k).zip(K::native(v)) else { return Err(no_kernel(checked)) };
                    let what = (params.sizes, params.sequences);
                    dealt.launch(checked, self.blocks, q, [k, v], args, what)?;
                } else {
                    self.instance.launch(stream, self.blocks, args, checked.fp8_keys(), params)?;
                }
                if count > 1 {
                    let args = (parts, y_arg, lse_arg, changes.sinks, combine);
                    (self.instance.launch_combine)(device, stream, Self::combine_blocks(problem), args)?;
                }
            }
            Ok(())
        })
    }
}

/// A tensor as kernels take it.
pub(in super::super) fn strided<E: Element>(x: &Tensor<E>) -> Strided {
    let [sequence, row, head] = leading_strides(x);
    // The stride of one row may be no multiple of 16 bytes, and kernels find the places of rows that are not there by it.
    let is_one = x.shape().iter().rev().nth(2) == Some(&1);
    let row = if is_one { 0 } else { row };
    Strided { base: GlobalMut::new(x.arg().address()), sequence, row, head }
}
