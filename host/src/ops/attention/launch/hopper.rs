//! Attention by Hopper's kernels.

mod dealt;

pub(super) use dealt::Dealt;

use half::{bf16, f16};
use warpsmith_dsl::attention::hopper::{AttentionShape, Ends, Rows, Tile};
use warpsmith_dsl::attention::scores::ScoreOperands;
use warpsmith_dsl::attention::work::Sizes;
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::{Declaration, GlobalMut, Kernel, KernelArgs, TensorMap};
use warpsmith_dsl::warpgroup::{BOX_COLUMNS, ROWS, WARP_ROWS};
use warpsmith_kernels::attention_hopper::{
    AttentionParams, Changed64, Changed96, Changed128, Changed192, Changed256, Heads64, Heads96, Heads128,
    Heads192, Heads256, Short64, attention_hopper, attention_hopper_dealt,
};

use super::super::check::{Checked, leading_strides};
use super::super::problem::Problem;
use super::super::{AttentionInput, AttentionKeys};
use super::{aligned, is_aligned, no_kernel};
use crate::device::Device;
use crate::error::Result;
use crate::kernel::is_built;
use crate::ops::gemm::is_hopper;
use crate::ops::{CHUNK_BYTES, Implementation, repack};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};

/// Bytes of keys and values that the level-2 cache is to hold while the tiles of their heads are computed.
pub(in crate::ops::attention) const RESIDENT_BYTES: u64 = 24 << 20;

/// More rows of a tile share what is read: fewer are worth it where they leave less than this share of the work.
const WORTH: (u64, u64) = (7, 8);
/// Tiles of a head beyond which their size matters little.
const MANY_TILES: usize = 32;
/// Key blocks that the beginning and the end of a tile are worth.
const TILE_BLOCKS: usize = 1;

/// The arguments of a kernel.
type Args = (TensorMap, TensorMap, TensorMap, TensorMap, GlobalMut<f32>, ScoreOperands, AttentionParams);

/// A kernel, its tile, and how it is launched.
#[derive(Clone, Copy, Debug)]
pub struct Instance {
    declaration: Declaration,
    rows: u32,
    keys: u32,
    launch: unsafe fn(&Device, &Stream, u32, Args) -> Result<()>,
}

impl Instance {
    fn of<K: Kernel<Args = Args>, S: AttentionShape, const CHANGES: bool>() -> Self {
        let (rows, keys) = (Tile::<S, CHANGES>::BLOCK_ROWS, Tile::<S, CHANGES>::BLOCK_KEYS);
        Self { declaration: K::DECLARATION, rows, keys, launch: launch::<Args, K> }
    }
}

/// Launches the kernel `K`.
///
/// # Safety
///
/// The arguments are valid for what the kernel does with them.
unsafe fn launch<A: KernelArgs, K: Kernel<Args = A>>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    args: A,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { device.kernel::<K>()?.launch_early(stream, [blocks, 1, 1], args) }
}

/// The kernels of an element type.
#[doc(hidden)]
pub trait Kernels: Element {
    /// Those for heads of at most so many columns, whose scores operands change or not: the one with the most rows first.
    #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
    fn instances(columns: usize, changes: bool) -> Vec<Instance>;

    /// The one for heads of at most so many columns whose keys are dealt to blocks, and whose scores no operand changes.
    #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
    fn dealt(columns: usize) -> Option<Dealt>;
}

macro_rules! kernels {
    ($($element:ident $device:ident),*) => {
        $(
            impl Kernels for $element {
                #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
                fn instances(columns: usize, changes: bool) -> Vec<Instance> {
                    match (columns, changes) {
                        (..=64, false) => {
                            vec![kernels!(@of $device, Heads64, false), kernels!(@of $device, Short64, false)]
                        }
                        (..=96, false) => vec![kernels!(@of $device, Heads96, false)],
                        (..=128, false) => vec![kernels!(@of $device, Heads128, false)],
                        (..=192, false) => vec![kernels!(@of $device, Heads192, false)],
                        (..=256, false) => vec![kernels!(@of $device, Heads256, false)],
                        (..=64, true) => vec![kernels!(@of $device, Changed64, true)],
                        (..=96, true) => vec![kernels!(@of $device, Changed96, true)],
                        (..=128, true) => vec![kernels!(@of $device, Changed128, true)],
                        (..=192, true) => vec![kernels!(@of $device, Changed192, true)],
                        (..=256, true) => vec![kernels!(@of $device, Changed256, true)],
                        _ => Vec::new(),
                    }
                }

                #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
                fn dealt(columns: usize) -> Option<Dealt> {
                    Some(match columns {
                        ..=64 => Dealt::of::<attention_hopper_dealt<$device, Short64>, Short64>(),
                        ..=128 => Dealt::of::<attention_hopper_dealt<$device, Heads128>, Heads128>(),
                        ..=192 => Dealt::of::<attention_hopper_dealt<$device, Heads192>, Heads192>(),
                        ..=256 => Dealt::of::<attention_hopper_dealt<$device, Changed256>, Changed256>(),
                        _ => return None,
                    })
                }
            }
        )*
    };
    (@of $device:ident, $shape:ident, $changes:literal) => {
        Instance::of::<attention_hopper<$device, $shape, $changes>, $shape, $changes>()
    };
}
kernels!(f16 F16, bf16 Bf16);

impl Kernels for f32 {
    #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
    fn instances(_: usize, _: bool) -> Vec<Instance> {
        Vec::new()
    }

    #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
    fn dealt(_: usize) -> Option<Dealt> {
        None
    }
}

/// A kernel and its grid.
pub(super) struct Plan {
    instance: Instance,
    tiles: u32,
    blocks: u32,
}

impl Plan {
    /// The plan for an attention, if a kernel serves it.
    pub(super) fn new<T: AttentionInput, K: AttentionKeys<T>>(
        checked: &Checked<'_, '_, T, K>,
    ) -> Option<Self> {
        if !checked.has_hopper() {
            return None;
        }
        let problem = &checked.problem;
        let properties = checked.stream.device().properties();
        let instances =
            <T as Kernels>::instances(problem.width.max(problem.value_width), !checked.is_plain());
        let least_work = |best: Instance, other: Instance| {
            let [of_best, of_other] = [best, other].map(|instance| problem.work(&instance));
            if of_other * WORTH.1 < of_best * WORTH.0 { other } else { best }
        };
        let instance = instances.into_iter().reduce(least_work)?;
        let rows = instance.rows as usize;
        // Each packed sequence may begin a tile of its own.
        let tiles =
            if problem.is_packed { problem.rows / rows + problem.batch } else { problem.rows.div_ceil(rows) };
        let tiles = u32::try_from(tiles).ok()?;
        let all = u64::from(tiles) * problem.all_heads() as u64;
        // A block's tiles are counted in 32 bits, one round beyond the last.
        let blocks = u32::try_from(all).ok().filter(|&all| all < 1 << 31)?.min(properties.multiprocessors);
        Some(Self { instance, tiles, blocks })
    }

    pub(super) fn implementation<T: AttentionInput, K: AttentionKeys<T>>(
        &self,
        checked: &Checked<'_, '_, T, K>,
    ) -> Implementation {
        let [q, k] = checked.are_in_place();
        let in_place = [q, k, checked.v_is_in_place()];
        let copies = in_place.into_iter().filter(|is| !is).count();
        let device = checked.stream.device();
        Implementation::kernel(device, self.instance.declaration.name, self.blocks).with_copies(copies)
    }

    /// Launches the kernel, after copies of operands that it cannot read in place.
    pub(super) fn launch<T: AttentionInput, K: AttentionKeys<T>>(
        &self,
        checked: &Checked<'_, '_, T, K>,
        y: &mut Tensor<T>,
        lse: Option<&mut Tensor<f32>>,
    ) -> Result<()> {
        let columns = y.shape()[y.rank() - 1];
        // The copy engine writes whole chunks.
        if is_aligned(y) && (columns * size_of::<T>()).is_multiple_of(CHUNK_BYTES) {
            return self.launch_into(checked, y, lse);
        }
        let mut shape = y.shape().to_vec();
        shape[y.rank() - 1] = columns.next_multiple_of(CHUNK_BYTES / size_of::<T>());
        // Zeros: tools that watch memory do not see what the copy engine writes.
        let mut aligned = Tensor::zeros_on(&checked.stream, shape)?.slice(y.rank() - 1, 0..columns)?;
        if checked.problem.is_packed {
            // Rows of no sequence stay as they are.
            aligned.copy_from_on(y, &checked.stream)?;
        }
        self.launch_into(checked, &mut aligned, lse)?;
        y.copy_from_on(&aligned, &checked.stream)
    }

    fn launch_into<T: AttentionInput, K: AttentionKeys<T>>(
        &self,
        checked: &Checked<'_, '_, T, K>,
        y: &mut Tensor<T>,
        mut lse: Option<&mut Tensor<f32>>,
    ) -> Result<()> {
        let (operands, problem, stream) = (checked.operands, &checked.problem, &checked.stream);
        // A plan is only made for keys and values of the queries' type.
        let Some((of_k, of_v)) = K::native(operands.k).zip(K::native(operands.v)) else {
            return Err(no_kernel(checked));
        };
        let [q, k] = [aligned(operands.q, stream)?, aligned(of_k, stream)?];
        let v = if checked.v_is_in_place() { of_v.clone() } else { repack(of_v).on(stream).run()? };
        let sequences = if problem.is_packed { 1 } else { problem.batch };
        let Problem { rows, heads, width, value_width, .. } = *problem;
        let axes = |x: &Tensor<T>, rows: usize, heads: usize| axes(x, [sequences, heads, rows]);
        let map_q = q.map_of_rows(axes(&q, rows, heads), width, [ROWS, BOX_COLUMNS], false)?;
        let ([map_k, map_v], ends) = checked.maps_of_keys(&q, [&k, &v], self.instance.keys)?;
        let ends_y = problem.is_packed;
        let map_y = y.map_of_rows(axes(y, rows, heads), value_width, [WARP_ROWS, BOX_COLUMNS], ends_y)?;
        let ends = Ends { o: ends_y.into(), ..ends };
        let counter = stream.scratch(1, 0)?;
        let lse_arg = lse.as_mut().map_or(GlobalMut::new(0), |lse| lse.arg_mut());
        let params = AttentionParams {
            sizes: self.sizes(checked),
            sequences: operands.sequences(),
            ends,
            taken: counter.zeros(),
            factor: problem.scale * std::f32::consts::LOG2_E,
            reserved: 0,
        };
        let args = (map_q, map_k, map_v, map_y, lse_arg, checked.score_operands(), params);
        let mut used: Vec<&dyn Operand> = vec![&q, &k, &v, &*y];
        used.extend(lse.as_deref().map(|lse| lse as &dyn Operand));
        used.extend(operands.options());
        let tiles = u64::from(self.tiles) * problem.all_heads() as u64;
        let blocks = stream.persistent_blocks(self.blocks, tiles, |multiprocessors| multiprocessors);
        stream.with_operands(&used, || {
            // SAFETY: shapes, strides and device of the operands have been checked, and the maps are of these; offsets and lengths are bounded by the kernel.
            // Tensors are freed in the order of their home streams, which `with_operands` makes wait for this work.
            unsafe { (self.instance.launch)(stream.device(), stream, blocks, args) }
        })
    }

    fn sizes<T: AttentionInput, K: AttentionKeys<T>>(&self, checked: &Checked<'_, '_, T, K>) -> Sizes {
        let problem = &checked.problem;
        // The heads of K and V that the cache holds, times the heads of Q that share them.
        let group = problem.heads / problem.key_heads.max(1);
        let section = problem.resident_heads::<T>().saturating_mul(group);
        let section = section.clamp(1, problem.all_heads().max(1)) as u32;
        Sizes { tiles: self.tiles, section, ..problem.sizes() }
    }
}

impl Problem {
    /// Heads of K and V of element type `T` that the level-2 cache holds: one at least.
    pub(super) fn resident_heads<T>(&self) -> usize {
        let bytes = ((self.width + self.value_width) * size_of::<T>()) as u64 * self.keys.max(1) as u64;
        (RESIDENT_BYTES / bytes.max(1)).max(1) as usize
    }

    /// The most keys that all rows of a sequence together attend to by their places.
    pub(super) fn reach(&self) -> usize {
        match (self.window.left(), self.window.right()) {
            (Some(left), Some(right)) => {
                let beside = (left as usize).saturating_add(right as usize);
                self.keys.min(beside.saturating_add(self.rows))
            }
            _ => self.keys,
        }
    }

    /// What a head of a sequence takes in tiles of an instance: rows times the key blocks of each tile, with those that its
    /// beginning and end are worth. 0 if there are so many tiles that their size matters little. Rows of packed sequences are
    /// taken for evenly dealt.
    ///
    /// Results have the same bits in all tiles whose blocks have as many keys, so that the sequences beside one may decide.
    fn work(&self, instance: &Instance) -> u64 {
        let sequences = if self.is_packed { self.batch.max(1) } else { 1 };
        let [rows, keys] = [self.rows, self.keys].map(|all| all.div_ceil(sequences));
        let (of_tile, of_block) = (instance.rows as usize, instance.keys as usize);
        let tiles = rows.div_ceil(of_tile);
        if tiles > MANY_TILES {
            return 0;
        }
        let offset = self.window.alignment().offset([rows, keys]);
        let blocks = |tile: usize| {
            let first = tile * of_tile;
            let begin = self.window.keys(first, offset, keys).start;
            let end = self.window.keys(rows.min(first + of_tile) - 1, offset, keys).end;
            end.div_ceil(of_block).saturating_sub(begin / of_block) + TILE_BLOCKS
        };
        ((0..tiles).map(blocks).sum::<usize>() * of_tile) as u64
    }
}

/// The axes of a tensor whose sequences are one after the other along its rows, and the rows from one to the next.
pub(in crate::ops::attention) fn all_rows(
    [sequences, heads, rows]: [(usize, u64); 3],
) -> ([(usize, u64); 3], u32) {
    // Of a single row in each sequence, the stride is that of sequences.
    let (count, stride) = if rows.0 <= 1 && sequences.0 > 1 { (rows.0, sequences.1) } else { rows };
    let of_sequence = if sequences.0 <= 1 { 0 } else { sequences.1.checked_div(stride).unwrap_or(0) };
    let all = (sequences.0.max(1) - 1) * of_sequence as usize + count;
    ([(1, 0), heads, (all, stride)], of_sequence as u32)
}

/// Whether the copy engine reads a tensor in place that has `rows` rows of each of `batch` sequences, or of all packed ones, and ends with each of them. Sequences then begin
/// whole rows apart, and a row is shorter than what wraps around.
pub(in crate::ops::attention) fn ends_in_place<U: Element>(
    x: &Tensor<U>,
    problem: &Problem,
    rows: usize,
) -> bool {
    let [of_sequences, of_rows, _] = leading_strides(x);
    let batch = problem.batch;
    // Rows of all sequences, with those between them.
    let apart = of_sequences.checked_div(of_rows).unwrap_or(0);
    let is_counted = (batch as u64).saturating_mul(apart).saturating_add(rows as u64) < 1 << 31;
    let is_short = of_rows.saturating_mul(size_of::<U>() as u64) < Rows::WRAP;
    let is_apart = problem.is_packed || batch <= 1 || rows <= 1 || of_rows > 0 && of_sequences % of_rows == 0;
    is_aligned(x) && is_short && is_counted && is_apart && (rows <= 1 || of_rows > 0)
}

/// The axes of a tensor of so many sequences, heads and rows, as maps of its rows have them.
fn axes<U: Element>(x: &Tensor<U>, [sequences, heads, rows]: [usize; 3]) -> [(usize, u64); 3] {
    let [of_sequences, of_rows, of_heads] = leading_strides(x);
    [(sequences, of_sequences), (heads, of_heads), (rows, of_rows)]
}

impl<T: AttentionInput, K: AttentionKeys<T>> Checked<'_, '_, T, K> {
    /// Whether Hopper's kernels are there for keys and values as these.
    fn has_hopper(&self) -> bool {
        let problem = &self.problem;
        // The copy engine's boxes are of keys that follow each other, beyond the end of a page.
        let has_pages = problem.pages.is_some();
        let properties = self.stream.device().properties();
        // It counts rows of all sequences in 32 bits, where tensors end with each of them.
        let has_ends = problem.is_packed || self.operands.lengths[1].is_some();
        !has_pages
            && !K::IS_FP8
            && is_hopper(properties.compute_capability)
            && is_built("attention_hopper")
            && !(has_ends && (problem.batch as u64).saturating_mul(problem.keys as u64) >= 1 << 31)
    }

    /// Whether the kernels whose scores no operand changes compute it.
    fn is_plain(&self) -> bool {
        !self.problem.changes_scores() && self.operands.sinks.is_none()
    }

    /// The maps of K and V with boxes of `of_block` keys, and where they end.
    fn maps_of_keys(
        &self,
        q: &Tensor<T>,
        [k, v]: [&Tensor<T>; 2],
        of_block: u32,
    ) -> Result<([TensorMap; 2], Ends)> {
        let problem = &self.problem;
        let sequences = if problem.is_packed { 1 } else { problem.batch };
        // Without keys no box is loaded, and a map has at least one row.
        let [k, v] = if problem.keys == 0 { [q, q] } else { [k, v] };
        let sizes = [sequences, problem.key_heads, problem.keys.max(1)];
        let boxes = [of_block, BOX_COLUMNS];
        let ends_v = problem.is_packed || self.operands.lengths[1].is_some();
        let (axes_v, v_sequence) = if ends_v { all_rows(axes(v, sizes)) } else { (axes(v, sizes), 0) };
        let map_k = k.map_of_rows(axes(k, sizes), problem.width, boxes, false)?;
        let map_v = v.map_of_rows(axes_v, problem.value_width, boxes, ends_v)?;
        Ok(([map_k, map_v], Ends { v: ends_v.into(), v_sequence, o: 0, reserved: 0 }))
    }

    /// Whether the copy engine reads V in place.
    pub(super) fn v_is_in_place(&self) -> bool {
        let v = self.operands.v;
        if self.operands.lengths[1].is_none() && !self.problem.is_packed {
            return is_aligned(v);
        }
        ends_in_place(v, &self.problem, self.problem.keys)
    }
}
