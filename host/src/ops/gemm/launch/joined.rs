//! How the kernels are launched whose sums go on in a second pair of operands: as those of one pair, and told of two matrices more.
//!
//! They are launched early whatever their tile, since they read the first pair while the launch before them makes the second.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::gemm::{PersistentTile, SplitKTile};
use warpsmith_dsl::launch::{GlobalMut, Kernel, TensorMap};
use warpsmith_kernels::hopper::HopperParams;
use warpsmith_kernels::skinny::SkinnyParams;

use super::persistent::{Dealt, hopper_launch, hopper_map};
use super::skinny::{skinny_launch, skinny_map};
use super::{Instance, Operands};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};

/// The arguments of a persistent kernel.
type PersistentArgs<T, O> = (
    TensorMap,
    TensorMap,
    TensorMap,
    TensorMap,
    TensorMap,
    GlobalMut<<O as Element>::Device>,
    LinearEpilogue<<T as Element>::Device, <O as Element>::Device>,
    u32,
    HopperParams,
);

/// The arguments of a kernel for few rows.
type FewRowsArgs<T, O> = (
    TensorMap,
    TensorMap,
    TensorMap,
    TensorMap,
    GlobalMut<<O as Element>::Device>,
    LinearEpilogue<<T as Element>::Device, <O as Element>::Device>,
    u32,
    SkinnyParams,
);

impl<T: Element, O: Element> Instance<T, O> {
    pub(in crate::ops::gemm) fn joined<K: Kernel<Args = PersistentArgs<T, O>>, S: PersistentTile>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_whole::<T, O, K, S> }
    }

    pub(in crate::ops::gemm) fn joined_halves<K: Kernel<Args = PersistentArgs<T, O>>, S: PersistentTile>()
    -> Self {
        const { assert!(S::HALVES, "a tile that has halves") };
        Self { declaration: K::DECLARATION, launch: launch_halves::<T, O, K, S> }
    }

    pub(in crate::ops::gemm) fn joined_few_rows<K: Kernel<Args = FewRowsArgs<T, O>>, S: SplitKTile>() -> Self
    {
        Self { declaration: K::DECLARATION, launch: launch_few_rows::<T, O, K, S> }
    }
}

/// The second pair of operands.
fn second_pair<'a, T: Element, O: Element>(operands: &Operands<'a, T, O>) -> Result<[&'a Tensor<T>; 2]> {
    operands.joined.ok_or_else(|| Error::Argument {
        operation: "linear_with_update",
        argument: "g",
        expected: "a second pair of operands".into(),
        actual: "none".into(),
    })
}

/// Launches the kernel `K` of tile `S` for whole tiles.
///
/// # Safety
///
/// As [`Instance::launch`]. The launch before on the stream writes nothing of x, w and the residual, and lets this one begin only behind those before it.
unsafe fn launch_whole<T: Element, O: Element, K: Kernel<Args = PersistentArgs<T, O>>, S: PersistentTile>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    operands: &Operands<'_, T, O>,
) -> Result<()> {
    let dealt = Dealt::whole::<T, O, S>(stream, operands, blocks);
    // SAFETY: the caller's promise.
    unsafe { launch_dealt::<T, O, K, S>(device, stream, operands, &dealt) }
}

/// As [`launch_whole`], with the last tiles in halves where that is sooner done.
///
/// # Safety
///
/// As [`Instance::launch`]. The launch before on the stream writes nothing of x, w and the residual, and lets this one begin only behind those before it.
unsafe fn launch_halves<T: Element, O: Element, K: Kernel<Args = PersistentArgs<T, O>>, S: PersistentTile>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    operands: &Operands<'_, T, O>,
) -> Result<()> {
    let dealt = Dealt::halves::<T, O, S>(stream, operands, blocks);
    // SAFETY: the caller's promise.
    unsafe { launch_dealt::<T, O, K, S>(device, stream, operands, &dealt) }
}

/// Launches the kernel `K` of tile `S`.
///
/// # Safety
///
/// As [`Instance::launch`]. The launch before on the stream writes nothing of x, w and the residual, and lets this one begin only behind those before it.
unsafe fn launch_dealt<T: Element, O: Element, K: Kernel<Args = PersistentArgs<T, O>>, S: PersistentTile>(
    device: &Device,
    stream: &Stream,
    operands: &Operands<'_, T, O>,
    dealt: &Dealt,
) -> Result<()> {
    let [g, ut] = second_pair(operands)?;
    let &Operands { y_arg, epilogue, .. } = operands;
    let launch = hopper_launch::<T, O, S>(operands, dealt)?;
    let rank = g.shape()[2] as u32;
    let args = (
        launch.x,
        launch.w,
        hopper_map::<T, S>(g, S::A_BOX_ROWS)?,
        hopper_map::<T, S>(ut, S::B_BOX_ROWS)?,
        launch.y_boxes,
        y_arg,
        epilogue,
        rank,
        launch.params,
    );
    let kernel = device.kernel::<K>()?;
    // SAFETY: the maps are of matrices of `T`, with the boxes that the tile asks for; the rest is the caller's promise.
    unsafe { kernel.launch_beside_last(stream, [dealt.blocks, 1, 1], args) }
}

/// Launches the kernel `K` of tile `S`, which is for few rows.
///
/// # Safety
///
/// As [`Instance::launch`]. The launch before on the stream writes nothing of x, w and the residual, and lets this one begin only behind those before it.
unsafe fn launch_few_rows<T: Element, O: Element, K: Kernel<Args = FewRowsArgs<T, O>>, S: SplitKTile>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    operands: &Operands<'_, T, O>,
) -> Result<()> {
    let [g, ut] = second_pair(operands)?;
    let launch = skinny_launch::<T, O, S>(operands)?;
    let args = (
        launch.x,
        launch.w,
        skinny_map::<T, S>(g, S::A_BOX_ROWS)?,
        skinny_map::<T, S>(ut, S::B_BOX_ROWS)?,
        operands.y_arg,
        operands.epilogue,
        g.shape()[2] as u32,
        launch.params,
    );
    let kernel = device.kernel::<K>()?;
    // SAFETY: the maps are of matrices of `T`, with the boxes that the tile asks for; the rest is the caller's promise.
    unsafe { kernel.launch_beside_last(stream, [blocks, 1, 1], args) }
}
