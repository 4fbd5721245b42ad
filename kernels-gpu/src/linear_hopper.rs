//! Matrix products on Hopper: what [`linear`](mod@crate::linear) computes, with the copy engine and `wgmma`.
//!
//! The launch is persistent: a block works through several tiles of Y. One of its threads has X and W copied to shared memory, its
//! consumers multiply, apply the epilogue to the f32 accumulators and round them to Y's type, once.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::gemm::{HalfFragment, OutputElement, PersistentTile};
use warpsmith_dsl::kernel;
use warpsmith_dsl::launch::{GlobalMut, TensorMap};
use warpsmith_dsl::ptx::Wgmma;

use crate::hopper::product;
pub use crate::hopper::{
    HopperCooperative64x128, HopperCooperative64x160, HopperCooperative128x128, HopperCooperative128x160,
    HopperCooperative128x192, HopperCooperative128x256, HopperCooperative192x176, HopperCooperative256x176,
    HopperParams, HopperPingPong128x128, HopperPingPong128x192,
};

/// `Y = activation(alpha · X Wᵀ + …)`, all that [`LinearEpilogue`] says, on a one-dimensional grid of any number of clusters.
///
/// The name of an instance tells the type of X and W, the type of Y, the schedule, and the tile.
/// TF32 operands are f32 in memory; the copy engine rounds them if their maps ask for it, else they are cut off.
///
/// # Safety
///
/// `x` and `w` describe X and W as [`PersistentTile`] asks, `y_boxes` Y if `has_boxes` is not 0; `y` and the pointers of `epilogue` are valid for
/// what `p` describes. Y and what else is written overlap nothing else, but that Y may be the epilogue's residual.
#[kernel(
    family = linear_hopper,
    block = [S::THREADS, 1, 1],
    cluster = [S::CLUSTER, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = S::SHARED_BYTES,
    instances = [
        linear_hopper_f16_f16_pingpong_128x128 = <F16, F16, HopperPingPong128x128>,
        linear_hopper_f16_f16_pingpong_128x192 = <F16, F16, HopperPingPong128x192>,
        linear_hopper_f16_f16_cooperative_128x256 = <F16, F16, HopperCooperative128x256>,
        linear_hopper_f16_f16_cooperative_128x192 = <F16, F16, HopperCooperative128x192>,
        linear_hopper_f16_f16_cooperative_128x128 = <F16, F16, HopperCooperative128x128>,
        linear_hopper_f16_f16_cooperative_64x128 = <F16, F16, HopperCooperative64x128>,
        linear_hopper_f16_f16_cooperative_64x160 = <F16, F16, HopperCooperative64x160>,
        linear_hopper_f16_f16_cooperative_128x160 = <F16, F16, HopperCooperative128x160>,
        linear_hopper_f16_f16_cooperative_256x176 = <F16, F16, HopperCooperative256x176>,
        linear_hopper_f16_f16_cooperative_192x176 = <F16, F16, HopperCooperative192x176>,
        linear_hopper_f16_f32_pingpong_128x128 = <F16, f32, HopperPingPong128x128>,
        linear_hopper_f16_f32_cooperative_128x256 = <F16, f32, HopperCooperative128x256>,
        linear_hopper_f16_f32_cooperative_128x192 = <F16, f32, HopperCooperative128x192>,
        linear_hopper_bf16_bf16_pingpong_128x128 = <Bf16, Bf16, HopperPingPong128x128>,
        linear_hopper_bf16_bf16_pingpong_128x192 = <Bf16, Bf16, HopperPingPong128x192>,
        linear_hopper_bf16_bf16_cooperative_128x256 = <Bf16, Bf16, HopperCooperative128x256>,
        linear_hopper_bf16_bf16_cooperative_128x192 = <Bf16, Bf16, HopperCooperative128x192>,
        linear_hopper_bf16_bf16_cooperative_128x128 = <Bf16, Bf16, HopperCooperative128x128>,
        linear_hopper_bf16_bf16_cooperative_64x128 = <Bf16, Bf16, HopperCooperative64x128>,
        linear_hopper_bf16_bf16_cooperative_64x160 = <Bf16, Bf16, HopperCooperative64x160>,
        linear_hopper_bf16_bf16_cooperative_128x160 = <Bf16, Bf16, HopperCooperative128x160>,
        linear_hopper_bf16_bf16_cooperative_256x176 = <Bf16, Bf16, HopperCooperative256x176>,
        linear_hopper_bf16_bf16_cooperative_192x176 = <Bf16, Bf16, HopperCooperative192x176>,
        linear_hopper_bf16_f32_pingpong_128x128 = <Bf16, f32, HopperPingPong128x128>,
        linear_hopper_bf16_f32_cooperative_128x256 = <Bf16, f32, HopperCooperative128x256>,
        linear_hopper_bf16_f32_cooperative_128x192 = <Bf16, f32, HopperCooperative128x192>,
        linear_hopper_tf32_f32_pingpong_128x128 = <f32, f32, HopperPingPong128x128>,
        linear_hopper_tf32_f32_cooperative_128x128 = <f32, f32, HopperCooperative128x128>,
        linear_hopper_tf32_f32_cooperative_128x256 = <f32, f32, HopperCooperative128x256>,
    ],
)]
pub unsafe fn linear_hopper<T, O: OutputElement, S: PersistentTile>(
    x: &TensorMap,
    w: &TensorMap,
    y_boxes: &TensorMap,
    y: GlobalMut<O>,
    epilogue: LinearEpilogue<T, O>,
    p: HopperParams,
) where
    T: Wgmma<S::Fragment> + Wgmma<HalfFragment<S>>,
{
    // SAFETY: the caller's promise.
    unsafe { product::<T, O, S, 0>(x, w, [], y_boxes, y, epilogue, p) }
}
