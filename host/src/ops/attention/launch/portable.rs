//! Attention by the kernels for every GPU from compute capability 8.0 on.

use half::{bf16, f16};
use warpsmith_dsl::attention::portable::{
    Parts, PortableElement, PortableShape, PortableTile, Strided, THREADS, Tensors,
};
use warpsmith_dsl::attention::scores::ScoreOperands;
use warpsmith_dsl::attention::work::Sizes;
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel, KernelArgs};
use warpsmith_dsl::ptx::Accumulators;
use warpsmith_dsl::warp;
use warpsmith_kernels::attention::{
    AttentionParams, CombineParams, Few64, Few96, Few128, Few192, Few256, Rows64, Rows96, Rows128, Rows192,
    Rows256, Single64, Single128, Single256, attention, attention_combine,
};

use super::super::AttentionInput;
use super::super::check::{Checked, leading_strides};
use super::super::problem::Problem;
use super::{aligned, is_aligned};
use crate::device::Device;
use crate::error::Result;
use crate::kernel::is_built;
use crate::ops::Implementation;
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};

/// Multiprocessors for each tile of a sequence from which on its keys are dealt to several blocks, and keys for each row.
const IDLE: usize = 8;
const MANY_KEYS: usize = 64;
/// The least keys of a part.
const PART: u32 = 256;

/// The arguments of a kernel.
type Args = (Tensors, GlobalMut<f32>, Parts, ScoreOperands, AttentionParams);
/// The arguments of one that adds up parts.
type CombineArgs<D> = (Parts, GlobalMut<D>, GlobalMut<f32>, Global<f32>, CombineParams);

/// A kernel, its tile, and how it is launched.
#[derive(Clone, Copy)]
pub struct Instance<T: Element> {
    declaration: Declaration,
    rows: u32,
    keys: u32,
    /// Columns of V that a launch has.
    values: u32,
    launch: Launch<Args>,
    /// What adds up parts.
    combine: Declaration,
    launch_combine: Launch<CombineArgs<T::Device>>,
}

/// How a kernel is launched on so many blocks.
type Launch<A> = unsafe fn(&Device, &Stream, u32, A) -> Result<()>;

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
    unsafe { device.kernel::<K>()?.launch(stream, [blocks, 1, 1], args) }
}

/// The kernels of an element type.
#[doc(hidden)]
pub trait Kernels: Element {
    /// The kernel for heads of so many columns and values, for few rows or for many.
    #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
    fn instance(width: usize, value_width: usize, few: bool) -> Option<Instance<Self>>;
}

macro_rules! kernels {
    ($element:ident $device:ident, $columns:expr, rows: [$($rows:literal $of_rows:ident),*], few: [$($few:literal $of_few:ident),*]) => {
        impl Kernels for $element {
            #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
            fn instance(width: usize, value_width: usize, few: bool) -> Option<Instance<Self>> {
                let columns: fn(usize, usize) -> usize = $columns;
                Some(match (columns(width, value_width), few) {
                    $((..=$rows, false) => kernels!(@of $device, $of_rows),)*
                    $((..=$few, true) => kernels!(@of $device, $of_few),)*
                    _ => return None,
                })
            }
        }
    };
    (@of $device:ident, $shape:ident) => { Instance::of::<attention<$device, $shape>, attention_combine<$device>, $shape>() };
}
macro_rules! half_kernels {
    ($($element:ident $device:ident),*) => {
        $(kernels!(
            $element $device,
            usize::max,
            rows: [64 Rows64, 96 Rows96, 128 Rows128, 192 Rows192, 256 Rows256],
            few: [64 Few64, 96 Few96, 128 Few128, 192 Few192, 256 Few256]
        );)*
    };
}
half_kernels!(f16 F16, bf16 Bf16);
// What values have more columns than a kernel takes another launch.
kernels!(f32 f32, |width, values| width.max(values.min(128)), rows: [64 Single64, 128 Single128, 256 Single256], few: []);

impl<T: Element> Instance<T>
where
    T::Device: PortableElement,
{
    fn of<K: Kernel<Args = Args>, C: Kernel<Args = CombineArgs<T::Device>>, S: PortableShape>() -> Self {
        Self {
            declaration: K::DECLARATION,
            rows: PortableTile::<T::Device, S>::BLOCK_ROWS,
            keys: PortableTile::<T::Device, S>::BLOCK_KEYS,
            values: S::Sums::COLUMNS,
            launch: launch::<Args, K>,
            combine: C::DECLARATION,
            launch_combine: launch::<CombineArgs<T::Device>, C>,
        }
    }
}

impl<T: Element> Instance<T> {
    fn runs_on(&self, device: &Device) -> bool {
        let properties = device.properties();
        properties.compute_capability >= (8, 0)
            && is_built(self.declaration.family)
            && self.declaration.shared_bytes <= properties.max_shared_per_block
    }
}

/// A kernel and its grid.
pub(super) struct Plan<T: Element> {
    instance: Instance<T>,
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
    /// multiprocessors idle, and keys are many for each row: otherwise whole tiles are faster as soon as there are several sequences.
    pub(super) fn split(checked: &Checked<'_, '_, T>, asked: bool) -> Option<Self> {
        let problem = &checked.problem;
        if problem.is_packed {
            return None;
        }
        let group = problem.heads / problem.key_heads.max(1);
        let rows = problem.rows.saturating_mul(group);
        let instance = |few| <T as Kernels>::instance(problem.width, problem.value_width, few);
        if instance(true).is_some_and(|few| rows <= few.rows as usize)
            && let Some(plan) = Self::with(checked, true, group, true)
        {
            return Some(plan);
        }
        let tiles = problem.key_heads.saturating_mul(rows.div_ceil(instance(false)?.rows as usize));
        let multiprocessors = checked.stream.device().properties().multiprocessors as usize;
        let is_idle = tiles.saturating_mul(IDLE) <= multiprocessors;
        let has_many_keys = problem.keys / MANY_KEYS >= problem.rows;
        let plan =
            if is_idle && has_many_keys || asked { Self::with(checked, false, group, true) } else { None };
        plan.filter(|plan| plan.parts.0 > 1)
    }

    /// The plan for any rows, if a kernel serves them.
    pub(super) fn whole(checked: &Checked<'_, '_, T>) -> Option<Self> {
        Self::with(checked, false, 1, false)
    }

    fn with(checked: &Checked<'_, '_, T>, few: bool, pack: usize, splits: bool) -> Option<Self> {
        let problem = &checked.problem;
        let instance = <T as Kernels>::instance(problem.width, problem.value_width, few)?;
        if !instance.runs_on(checked.stream.device()) {
            return None;
        }
        let of_tile = instance.rows as usize;
        let rows = problem.rows * pack;
        // Each packed sequence may begin a tile of its own.
        let tiles = if problem.is_packed { rows / of_tile + problem.batch } else { rows.div_ceil(of_tile) };
        let keys = PART.next_multiple_of(instance.keys);
        let most = if splits { Parts::MOST as usize } else { 1 };
        let parts = problem.keys.div_ceil(keys as usize).clamp(1, most);
        let heads = problem.all_heads() / pack;
        let all = (tiles as u64).checked_mul(heads as u64)?.checked_mul(parts as u64)?;
        // A grid has less than 2³¹ blocks, and rows of heads that alternate are counted in 32 bits.
        let blocks = u32::try_from(all).ok().filter(|&all| all < 1 << 31)?;
        (rows < 1 << 31).then_some(Self {
            instance,
            pack,
            tiles: tiles as u32,
            parts: (parts as u32, keys),
            blocks,
        })
    }

    pub(super) fn implementation(&self, checked: &Checked<'_, '_, T>) -> Implementation {
        let operands = checked.operands;
        let copies = [operands.q, operands.k, operands.v].into_iter().filter(|x| !is_aligned(x)).count();
        let device = checked.stream.device();
        let first = Implementation::kernel(device, self.instance.declaration.name, self.blocks);
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
    pub(super) fn launch(
        &self,
        checked: &Checked<'_, '_, T>,
        y: &mut Tensor<T>,
        mut lse: Option<&mut Tensor<f32>>,
    ) -> Result<()> {
        let (operands, stream) = (checked.operands, &checked.stream);
        let [q, k, v] =
            [aligned(operands.q, stream)?, aligned(operands.k, stream)?, aligned(operands.v, stream)?];
        let (axis, columns) = (v.rank() - 1, checked.problem.value_width);
        for first in (0..columns.max(1)).step_by(self.instance.values as usize) {
            let slice = first..columns.min(first + self.instance.values as usize);
            let (v, mut y) = (v.slice(axis, slice.clone())?, y.slice(axis, slice)?);
            self.launch_columns(checked, [&q, &k, &v], &mut y, lse.take())?;
        }
        Ok(())
    }

    fn launch_columns(
        &self,
        checked: &Checked<'_, '_, T>,
        [q, k, v]: [&Tensor<T>; 3],
        y: &mut Tensor<T>,
        mut lse: Option<&mut Tensor<f32>>,
    ) -> Result<()> {
        let (operands, problem, stream) = (checked.operands, &checked.problem, &checked.stream);
        let strided = |x: &Tensor<T>| {
            let [sequence, row, head] = leading_strides(x);
            Strided { base: GlobalMut::new(x.arg().address()), sequence, row, head }
        };
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
        let sizes = Sizes {
            pack: self.pack as u32,
            tiles: self.tiles,
            rows_of_heads: (problem.all_heads() / self.pack) as u32,
            section: (problem.all_heads() / self.pack).max(1) as u32,
            ..problem.sizes()
        };
        let params = AttentionParams { sizes, sequences: operands.sequences() };
        let (changes, y_arg) = (checked.score_operands(), y.arg_mut());
        let args = (tensors, lse_arg, parts, changes, params);
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
            // Tensors are freed in the order of their home streams, which `with_operands` makes wait for this work.
            unsafe {
                (self.instance.launch)(device, stream, self.blocks, args)?;
                if count > 1 {
                    let args = (parts, y_arg, lse_arg, changes.sinks, combine);
                    (self.instance.launch_combine)(device, stream, Self::combine_blocks(problem), args)?;
                }
            }
            Ok(())
        })
    }
}
