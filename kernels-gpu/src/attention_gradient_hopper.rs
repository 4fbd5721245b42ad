//! The gradients of attention on Hopper: scores are computed again, and live in registers only.
//!
//! The name of an instance tells what it gives, dQ, dK or dV, the type, and the columns of a head at most.

use warpsmith_dsl::attention::gradient::hopper::{
    HopperElement, HopperShape, HopperTensors, HopperTile, Maps, THREADS,
};
use warpsmith_dsl::attention::gradient::{
    Gives, GivesKeys, GivesKeysAndValues, GivesQueries, GivesValues, GradientParams,
};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::launch::TensorMap;

macro_rules! shape {
    ($(#[$doc:meta])* $name:ident, $columns:literal, $others:literal) => {
        $(#[$doc])*
        pub struct $name;

        impl HopperShape for $name {
            type Scores = [f32; $others / 2];
            type Weights = [[u32; 4]; $others / 16];
            type Sums = [f32; $columns / 2];
        }
    };
}
shape!(
    /// Heads of up to 64 columns, and blocks of 128 others.
    Gradient64, 64, 128
);
shape!(
    /// Heads of up to 64 columns, and blocks of 96 others, of which two sums take registers.
    Gradient64By96, 64, 96
);
shape!(
    /// Heads of up to 96 columns, and blocks of 96 others.
    Gradient96, 96, 96
);
shape!(
    /// Heads of up to 96 columns, and blocks of 64 others, of which two sums take registers.
    Gradient96By64, 96, 64
);
shape!(
    /// Heads of up to 128 columns, and blocks of 128 others.
    Gradient128, 128, 128
);
shape!(
    /// Heads of up to 128 columns, and blocks of 64 others, of which two sums take registers.
    Gradient128By64, 128, 64
);
shape!(
    /// Heads of up to 192 columns, and blocks of 64 others.
    Gradient192, 192, 64
);
shape!(
    /// Heads of up to 256 columns, and blocks of 32 others: shared memory holds no more.
    Gradient256, 256, 32
);

/// Gradients of a tile's rows, queries or keys, on a one-dimensional grid of a block for each tile.
///
/// # Safety
///
/// As [`HopperTile::run`], of which the first four arguments are the maps.
#[kernel(
    family = attention_gradient_hopper,
    block = [THREADS, 1, 1],
    min_blocks = 1,
    shared = HopperTile::<S, G>::SHARED_BYTES,
    instances = [
        attention_gradient_hopper_q_f16_64 = <F16, Gradient64, GivesQueries>,
        attention_gradient_hopper_q_f16_96 = <F16, Gradient96, GivesQueries>,
        attention_gradient_hopper_q_f16_128 = <F16, Gradient128, GivesQueries>,
        attention_gradient_hopper_q_f16_192 = <F16, Gradient192, GivesQueries>,
        attention_gradient_hopper_q_f16_256 = <F16, Gradient256, GivesQueries>,
        attention_gradient_hopper_kv_f16_64 = <F16, Gradient64By96, GivesKeysAndValues>,
        attention_gradient_hopper_kv_f16_96 = <F16, Gradient96By64, GivesKeysAndValues>,
        attention_gradient_hopper_kv_f16_128 = <F16, Gradient128By64, GivesKeysAndValues>,
        attention_gradient_hopper_k_f16_192 = <F16, Gradient192, GivesKeys>,
        attention_gradient_hopper_k_f16_256 = <F16, Gradient256, GivesKeys>,
        attention_gradient_hopper_v_f16_192 = <F16, Gradient192, GivesValues>,
        attention_gradient_hopper_v_f16_256 = <F16, Gradient256, GivesValues>,
        attention_gradient_hopper_q_bf16_64 = <Bf16, Gradient64, GivesQueries>,
        attention_gradient_hopper_q_bf16_96 = <Bf16, Gradient96, GivesQueries>,
        attention_gradient_hopper_q_bf16_128 = <Bf16, Gradient128, GivesQueries>,
        attention_gradient_hopper_q_bf16_192 = <Bf16, Gradient192, GivesQueries>,
        attention_gradient_hopper_q_bf16_256 = <Bf16, Gradient256, GivesQueries>,
        attention_gradient_hopper_kv_bf16_64 = <Bf16, Gradient64By96, GivesKeysAndValues>,
        attention_gradient_hopper_kv_bf16_96 = <Bf16, Gradient96By64, GivesKeysAndValues>,
        attention_gradient_hopper_kv_bf16_128 = <Bf16, Gradient128By64, GivesKeysAndValues>,
        attention_gradient_hopper_k_bf16_192 = <Bf16, Gradient192, GivesKeys>,
        attention_gradient_hopper_k_bf16_256 = <Bf16, Gradient256, GivesKeys>,
        attention_gradient_hopper_v_bf16_192 = <Bf16, Gradient192, GivesValues>,
        attention_gradient_hopper_v_bf16_256 = <Bf16, Gradient256, GivesValues>,
    ],
)]
pub unsafe fn attention_gradient_hopper<T: HopperElement<S>, S: HopperShape, G: Gives>(
    own: &TensorMap,
    second: &TensorMap,
    others: &TensorMap,
    second_others: &TensorMap,
    tensors: HopperTensors,
    p: GradientParams,
) {
    let maps = Maps { own, second, others, second_others };
    // SAFETY: the whole block is here; the caller's promise.
    unsafe { HopperTile::<S, G>::run::<T>(maps, &tensors, (&p.sizes, p.sequences)) }
}
