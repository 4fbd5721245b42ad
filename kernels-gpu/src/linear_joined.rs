//! Products of pairs of matrices on Hopper, `[X | G] [W | Uᵀ]ᵀ`, without copies that put them beside each other: what
//! [`linear_hopper`](mod@crate::linear_hopper) and [`linear_skinny`](mod@crate::linear_skinny) compute, with sums that go on in G and U.
//!
//! With G = (X V) ⊙ codes that is a linear layer with its generated updates: they cost as many columns of X more as they have ranks.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, Element, F16};
use warpsmith_dsl::gemm::{HalfFragment, OutputElement, PersistentTile, SplitKTile};
use warpsmith_dsl::kernel;
use warpsmith_dsl::launch::{GlobalMut, TensorMap};
use warpsmith_dsl::ptx::Wgmma;

use crate::hopper::{
    HopperCooperative64x128, HopperCooperative64x160, HopperCooperative128x128, HopperCooperative128x160,
    HopperCooperative128x192, HopperCooperative128x256, HopperCooperative192x176, HopperCooperative256x176,
    HopperParams, HopperPingPong128x128, HopperPingPong128x192, Joined, product,
};
use crate::skinny::{
    Skinny16x64, Skinny16x64Split2, Skinny16x64Split4, Skinny32x64, Skinny64x64, Skinny64x64Split2,
    Skinny64x64Split8, Skinny64x64Split8Deep, SkinnyParams, few_rows,
};

/// `Y = activation(alpha · (X Wᵀ + G U) + …)`, all that [`LinearEpilogue`] says, on a one-dimensional grid of any number of clusters.
///
/// `rank` is the number of columns of G and rows of U. Of sums in parts, the first part of each product has these columns, and those of the others are
/// zeros. The name of an instance tells the type of X and W, the type of Y, the schedule, and the tile.
///
/// # Safety
///
/// As [`linear_hopper`](fn@crate::linear_hopper::linear_hopper), where X and W are K-major; `g` and `ut` describe G and Uᵀ as `x` and `w` do X and W.
#[kernel(
    family = linear_joined,
    block = [S::THREADS, 1, 1],
    cluster = [S::CLUSTER, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = S::SHARED_BYTES,
    instances = [
        linear_joined_f16_f16_pingpong_128x128 = <F16, F16, HopperPingPong128x128>,
        linear_joined_f16_f16_pingpong_128x192 = <F16, F16, HopperPingPong128x192>,
        linear_joined_f16_f16_cooperative_128x256 = <F16, F16, HopperCooperative128x256>,
        linear_joined_f16_f16_cooperative_128x192 = <F16, F16, HopperCooperative128x192>,
        linear_joined_f16_f16_cooperative_128x128 = <F16, F16, HopperCooperative128x128>,
        linear_joined_f16_f16_cooperative_64x128 = <F16, F16, HopperCooperative64x128>,
        linear_joined_f16_f16_cooperative_64x160 = <F16, F16, HopperCooperative64x160>,
        linear_joined_f16_f16_cooperative_128x160 = <F16, F16, HopperCooperative128x160>,
        linear_joined_f16_f16_cooperative_256x176 = <F16, F16, HopperCooperative256x176>,
        linear_joined_f16_f16_cooperative_192x176 = <F16, F16, HopperCooperative192x176>,
        linear_joined_f16_f32_pingpong_128x128 = <F16, f32, HopperPingPong128x128>,
        linear_joined_f16_f32_cooperative_128x256 = <F16, f32, HopperCooperative128x256>,
        linear_joined_f16_f32_cooperative_128x192 = <F16, f32, HopperCooperative128x192>,
        linear_joined_bf16_bf16_pingpong_128x128 = <Bf16, Bf16, HopperPingPong128x128>,
        linear_joined_bf16_bf16_pingpong_128x192 = <Bf16, Bf16, HopperPingPong128x192>,
        linear_joined_bf16_bf16_cooperative_128x256 = <Bf16, Bf16, HopperCooperative128x256>,
        linear_joined_bf16_bf16_cooperative_128x192 = <Bf16, Bf16, HopperCooperative128x192>,
        linear_joined_bf16_bf16_cooperative_128x128 = <Bf16, Bf16, HopperCooperative128x128>,
        linear_joined_bf16_bf16_cooperative_64x128 = <Bf16, Bf16, HopperCooperative64x128>,
        linear_joined_bf16_bf16_cooperative_64x160 = <Bf16, Bf16, HopperCooperative64x160>,
        linear_joined_bf16_bf16_cooperative_128x160 = <Bf16, Bf16, HopperCooperative128x160>,
        linear_joined_bf16_bf16_cooperative_256x176 = <Bf16, Bf16, HopperCooperative256x176>,
        linear_joined_bf16_bf16_cooperative_192x176 = <Bf16, Bf16, HopperCooperative192x176>,
        linear_joined_bf16_f32_pingpong_128x128 = <Bf16, f32, HopperPingPong128x128>,
        linear_joined_bf16_f32_cooperative_128x256 = <Bf16, f32, HopperCooperative128x256>,
        linear_joined_bf16_f32_cooperative_128x192 = <Bf16, f32, HopperCooperative128x192>,
    ],
)]
#[allow(clippy::too_many_arguments, reason = "a kernel's parameters")]
pub unsafe fn linear_joined<T, O: OutputElement, S: PersistentTile>(
    x: &TensorMap,
    w: &TensorMap,
    g: &TensorMap,
    ut: &TensorMap,
    y_boxes: &TensorMap,
    y: GlobalMut<O>,
    epilogue: LinearEpilogue<T, O>,
    rank: u32,
    p: HopperParams,
) where
    T: Wgmma<S::Fragment> + Wgmma<HalfFragment<S>>,
{
    // SAFETY: the caller's promise.
    unsafe { product::<T, O, S, 1>(x, w, [Joined { g, ut, rank }], y_boxes, y, epilogue, p) }
}

/// As [`linear_joined`](fn@linear_joined), for few rows of X or few tiles of Y, on a one-dimensional grid of one cluster for each tile.
///
/// # Safety
///
/// As [`linear_skinny`](fn@crate::linear_skinny::linear_skinny), where X and W are K-major; `g` and `ut` describe G and Uᵀ as `x` and `w` do X and W.
#[kernel(
    family = linear_joined,
    block = [S::THREADS, 1, 1],
    cluster = [S::SPLIT, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = S::SHARED_BYTES,
    instances = [
        linear_joined_f16_f16_64x64 = <F16, Skinny64x64>,
        linear_joined_f16_f16_64x64_split2 = <F16, Skinny64x64Split2>,
        linear_joined_f16_f16_64x64_split8 = <F16, Skinny64x64Split8>,
        linear_joined_f16_f16_64x64_split8_deep = <F16, Skinny64x64Split8Deep>,
        linear_joined_f16_f16_32x64 = <F16, Skinny32x64>,
        linear_joined_f16_f16_16x64 = <F16, Skinny16x64>,
        linear_joined_f16_f16_16x64_split2 = <F16, Skinny16x64Split2>,
        linear_joined_f16_f16_16x64_split4 = <F16, Skinny16x64Split4>,
        linear_joined_bf16_bf16_64x64 = <Bf16, Skinny64x64>,
        linear_joined_bf16_bf16_64x64_split2 = <Bf16, Skinny64x64Split2>,
        linear_joined_bf16_bf16_64x64_split8 = <Bf16, Skinny64x64Split8>,
        linear_joined_bf16_bf16_64x64_split8_deep = <Bf16, Skinny64x64Split8Deep>,
        linear_joined_bf16_bf16_32x64 = <Bf16, Skinny32x64>,
        linear_joined_bf16_bf16_16x64 = <Bf16, Skinny16x64>,
        linear_joined_bf16_bf16_16x64_split2 = <Bf16, Skinny16x64Split2>,
        linear_joined_bf16_bf16_16x64_split4 = <Bf16, Skinny16x64Split4>,
    ],
)]
#[allow(clippy::too_many_arguments, reason = "a kernel's parameters")]
pub unsafe fn linear_joined_few_rows<T: Wgmma<S::Accumulators> + Element, S: SplitKTile>(
    x: &TensorMap,
    w: &TensorMap,
    g: &TensorMap,
    ut: &TensorMap,
    y: GlobalMut<T>,
    epilogue: LinearEpilogue<T, T>,
    rank: u32,
    p: SkinnyParams,
) {
    // SAFETY: the caller's promise.
    unsafe { few_rows::<T, T, S, 1>(x, w, [Joined { g, ut, rank }], y, epilogue, p) }
}
