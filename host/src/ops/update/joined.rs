//! The launches of the kernels whose sums over X and W go on in two more matrices: `Y = act([X | G] [W | Uᵀ]ᵀ + …)`.
//!
//! Another product and the codes make G before ([`products`](super::products)). So the updates cost the linear operation no more than as many
//! columns of X as they have ranks, whichever its tile.

use half::{bf16, f16};
use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::gemm::{PersistentTile, SplitKTile};
use warpsmith_dsl::launch::{Declaration, GlobalMut, Kernel, TensorMap};
use warpsmith_kernels::hopper::{
    HopperCooperative64x128, HopperCooperative128x128, HopperCooperative128x256, HopperParams,
    HopperPingPong128x128, HopperPingPong128x192,
};
use warpsmith_kernels::linear_joined::{linear_joined, linear_joined_few_rows};
use warpsmith_kernels::skinny::{
    Skinny16x64, Skinny16x64Split2, Skinny16x64Split4, Skinny32x64, Skinny64x64, Skinny64x64Split2,
    Skinny64x64Split8, SkinnyParams,
};

use super::operands::Problem;
use super::{Way, no_way};
use crate::device::Device;
use crate::error::Result;
use crate::kernel::is_built;
use crate::ops::gemm::{
    self, Access, Fused, Limits, Operands, Tile, estimate_of_launch, hopper_launch, hopper_map, is_early,
    is_hopper, skinny_launch, skinny_map,
};
use crate::ops::{CHUNK_BYTES, Products};
use crate::stream::Stream;
use crate::tensor::{DType, Element, Tensor};

/// Columns along K that the tiles take at a time, of 16-bit types: G begins with a step of its own.
const STEP: u32 = 128;

/// Elements of 16 bits in a line of the level-2 cache.
const LINE: u32 = 64;

/// The tiles that have kernels.
pub(super) const TILES: [Tile; 12] = [
    Tile::HopperPingPong128x128,
    Tile::HopperPingPong128x192,
    Tile::HopperCooperative128x256,
    Tile::HopperCooperative128x128,
    Tile::HopperCooperative64x128,
    Tile::Skinny64x64,
    Tile::Skinny64x64Split2,
    Tile::Skinny64x64Split8,
    Tile::Skinny32x64,
    Tile::Skinny16x64,
    Tile::Skinny16x64Split2,
    Tile::Skinny16x64Split4,
];

/// A kernel and its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Blocks of the launch.
    pub(super) blocks: u32,
    tile: Tile,
}

#[cfg(test)]
impl Choice {
    pub(super) fn tile(self) -> Tile {
        self.tile
    }
}

/// The kernel that is the fastest for a linear operation and its updates once G is there, and its time in picoseconds by the model of the
/// linear operation; `None` if none can. `fused` is what is done to the sums, `tile` the only tile that will do.
pub(super) fn choose(
    problem: &Problem,
    fused: Fused,
    tile: Option<Tile>,
    limits: &Limits,
) -> Option<(Choice, u128)> {
    let has_kernels = is_hopper(limits.compute_capability) && is_built("linear_joined");
    if !has_kernels || problem.dtype == DType::F32 || problem.k == 0 {
        return None;
    }
    let &Problem { m, n, k, rank, dtype, access, y_is_chunked, .. } = problem;
    if access != Access::Aligned {
        return None;
    }
    let product = |k: u32| gemm::Problem {
        m,
        n,
        k,
        batch: 1,
        input: dtype,
        output: dtype,
        access,
        products: Products::Direct,
        stores_boxes: y_is_chunked && (n as usize * dtype.size()).is_multiple_of(CHUNK_BYTES),
        fused,
    };
    // What the ranks' columns cost more: lines of the level-2 cache lie in X and W as without them.
    let whole = k.checked_next_multiple_of(STEP)?;
    let more = whole.checked_add(rank.next_multiple_of(LINE))?;
    let tiles = TILES.into_iter().filter(|&one| tile.is_none_or(|tile| tile == one));
    let timed = tiles.filter_map(|tile| {
        let time = |k| estimate_of_launch(tile, &product(k), limits);
        let time = time(k)? + time(more)?.saturating_sub(time(whole)?);
        let blocks = u32::try_from(tile.blocks(m, n, 1, limits.multiprocessors)).ok()?;
        (blocks <= i32::MAX as u32).then_some((Choice { blocks, tile }, time))
    });
    timed.min_by_key(|&(_, time)| time)
}

/// What these kernels work on: those of the linear operation, and G `[M, R]` and Uᵀ `[N, R]`, rows at multiples of 16 bytes.
pub(super) struct Joined<'a, T: Element> {
    pub(super) linear: Operands<'a, T, T>,
    pub(super) g: &'a Tensor<T>,
    pub(super) ut: &'a Tensor<T>,
}

/// The arguments of these kernels.
type Args<D> = (
    TensorMap,
    TensorMap,
    TensorMap,
    TensorMap,
    TensorMap,
    GlobalMut<D>,
    LinearEpilogue<D, D>,
    u32,
    HopperParams,
);

/// The arguments of the kernels for few rows.
type FewRowsArgs<D> =
    (TensorMap, TensorMap, TensorMap, TensorMap, GlobalMut<D>, LinearEpilogue<D, D>, u32, SkinnyParams);

/// A kernel and how it is launched.
#[doc(hidden)]
pub struct Instance<T: Element> {
    declaration: Declaration,
    launch: unsafe fn(&Device, &Stream, u32, &Joined<'_, T>) -> Result<()>,
}

impl<T: Element> Instance<T> {
    fn of<K: Kernel<Args = Args<T::Device>>, S: PersistentTile>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_as::<T, K, S> }
    }

    fn few_rows<K: Kernel<Args = FewRowsArgs<T::Device>>, S: SplitKTile>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_few_rows::<T, K, S> }
    }
}

/// The kernels of an element type.
pub trait Kernels: Element {
    /// The kernel with a tile; `None` if there is none.
    #[doc(hidden)]
    #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
    fn instance(tile: Tile) -> Option<Instance<Self>>;
}

macro_rules! kernels {
    ($($element:ident $device:ident),*) => {
        $(
            impl Kernels for $element {
                #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
                fn instance(tile: Tile) -> Option<Instance<Self>> {
                    Some(match tile {
                        Tile::HopperPingPong128x128 => kernels!(@of $device, HopperPingPong128x128),
                        Tile::HopperPingPong128x192 => kernels!(@of $device, HopperPingPong128x192),
                        Tile::HopperCooperative128x256 => kernels!(@of $device, HopperCooperative128x256),
                        Tile::HopperCooperative128x128 => kernels!(@of $device, HopperCooperative128x128),
                        Tile::HopperCooperative64x128 => kernels!(@of $device, HopperCooperative64x128),
                        Tile::Skinny64x64 => kernels!(@few_rows $device, Skinny64x64),
                        Tile::Skinny64x64Split2 => kernels!(@few_rows $device, Skinny64x64Split2),
                        Tile::Skinny64x64Split8 => kernels!(@few_rows $device, Skinny64x64Split8),
                        Tile::Skinny32x64 => kernels!(@few_rows $device, Skinny32x64),
                        Tile::Skinny16x64 => kernels!(@few_rows $device, Skinny16x64),
                        Tile::Skinny16x64Split2 => kernels!(@few_rows $device, Skinny16x64Split2),
                        Tile::Skinny16x64Split4 => kernels!(@few_rows $device, Skinny16x64Split4),
                        _ => return None,
                    })
                }
            }
        )*
    };
    (@of $device:ident, $shape:ident) => { Instance::of::<linear_joined<$device, $shape>, $shape>() };
    (@few_rows $device:ident, $shape:ident) => {
        Instance::few_rows::<linear_joined_few_rows<$device, $shape>, $shape>()
    };
}
kernels!(f16 F16, bf16 Bf16);

impl Kernels for f32 {
    #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
    fn instance(_: Tile) -> Option<Instance<Self>> {
        None
    }
}

/// The entry point of a choice.
pub(super) fn kernel<T: Kernels>(choice: Choice) -> &'static str {
    T::instance(choice.tile).map_or("", |instance| instance.declaration.name)
}

/// Launches a choice for `operands`, for which it was made.
///
/// # Safety
///
/// The operands are valid for what the kernel does with them, and live until the stream's work is done.
pub(super) unsafe fn launch<T: Kernels>(
    device: &Device,
    stream: &Stream,
    choice: Choice,
    operands: &Joined<'_, T>,
) -> Result<()> {
    let instance =
        T::instance(choice.tile).ok_or_else(|| no_way("linear_with_update", Way::Joined(choice.tile)))?;
    // SAFETY: the caller's promise.
    unsafe { (instance.launch)(device, stream, choice.blocks, operands) }
}

/// Launches the kernel `K` of tile `S`.
///
/// # Safety
///
/// As [`launch`].
unsafe fn launch_as<T: Element, K: Kernel<Args = Args<T::Device>>, S: PersistentTile>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    operands: &Joined<'_, T>,
) -> Result<()> {
    let Joined { linear, g, ut } = operands;
    let launch = hopper_launch::<T, T, S>(linear, blocks)?;
    let rank = g.shape()[2] as u32;
    let (m, n) = (linear.m, linear.n);
    let args = (
        launch.x,
        launch.w,
        hopper_map::<T, S>(g, S::A_BOX_ROWS)?,
        hopper_map::<T, S>(ut, S::B_BOX_ROWS)?,
        launch.y_boxes,
        linear.y_arg,
        linear.epilogue,
        rank,
        launch.params,
    );
    let kernel = device.kernel::<K>()?;
    let row_bytes = (u64::from(linear.k) + u64::from(rank)) * size_of::<T>() as u64;
    // SAFETY: the maps are of matrices of `T`, with the boxes that the tile asks for; the rest is the caller's promise.
    unsafe {
        if is_early::<S>(row_bytes, [m, n], blocks, launch.are_only, device.properties().multiprocessors) {
            kernel.launch_early(stream, [blocks, 1, 1], args)
        } else {
            kernel.launch(stream, [blocks, 1, 1], args)
        }
    }
}

/// Launches the kernel `K` of tile `S`, which is for few rows.
///
/// # Safety
///
/// As [`launch`].
unsafe fn launch_few_rows<T: Element, K: Kernel<Args = FewRowsArgs<T::Device>>, S: SplitKTile>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    operands: &Joined<'_, T>,
) -> Result<()> {
    let Joined { linear, g, ut } = operands;
    let launch = skinny_launch::<T, T, S>(linear)?;
    let args = (
        launch.x,
        launch.w,
        skinny_map::<T, S>(g, S::A_BOX_ROWS)?,
        skinny_map::<T, S>(ut, S::B_BOX_ROWS)?,
        linear.y_arg,
        linear.epilogue,
        g.shape()[2] as u32,
        launch.params,
    );
    let kernel = device.kernel::<K>()?;
    // SAFETY: the maps are of matrices of `T`, with the boxes that the tile asks for; the rest is the caller's promise.
    unsafe {
        if launch.is_early {
            kernel.launch_early(stream, [blocks, 1, 1], args)
        } else {
            kernel.launch(stream, [blocks, 1, 1], args)
        }
    }
}
