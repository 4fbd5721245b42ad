//! The gradients of attention on sm_80 and later: scores are computed again, and never stored.
//!
//! The name of an instance tells what it gives, dQ, dK or dV, the type, and the columns of a head at most.

use warpsmith_dsl::attention::gradient::portable::{GradientShape, GradientTensors, GradientTile};
use warpsmith_dsl::attention::gradient::{
    Gives, GivesKeys, GivesKeysAndValues, GivesQueries, GivesValues, GradientParams, RowParams, THREADS,
    find_rows,
};
use warpsmith_dsl::attention::portable::PortableElement;
use warpsmith_dsl::attention::scores::ScoreOperands;
use warpsmith_dsl::float::{Bf16, Element, F16};
use warpsmith_dsl::kernel;

macro_rules! shape {
    ($(#[$doc:meta])* $name:ident, $columns:literal, $others:literal, $blocks:literal) => {
        shape!($(#[$doc])* $name, $columns by $columns, $others, $blocks);
    };
    ($(#[$doc:meta])* $name:ident, $columns:literal by $slice:literal, $others:literal, $blocks:literal) => {
        $(#[$doc])*
        pub struct $name;

        impl GradientShape for $name {
            type Scores = [f32; $others / 2];
            type Sums = [f32; $slice / 2];
            const COLUMNS: u32 = $columns;
            const MIN_BLOCKS: u32 = $blocks;
        }
    };
}
shape!(
    /// Heads of up to 64 columns, and blocks of 64 others.
    Gradient64, 64, 64, 2
);
shape!(
    /// Heads of up to 64 columns, and blocks of 32 others.
    Gradient64By32, 64, 32, 2
);
shape!(
    /// Heads of up to 64 columns, and blocks of 16 others.
    Gradient64By16, 64, 16, 2
);
shape!(
    /// Heads of up to 96 columns, and blocks of 32 others.
    Gradient96, 96, 32, 2
);
shape!(
    /// Heads of up to 128 columns, and blocks of 32 others.
    Gradient128, 128, 32, 2
);
shape!(
    /// Heads of up to 128 columns, and blocks of 16 others.
    Gradient128By16, 128, 16, 2
);
shape!(
    /// Heads of up to 192 columns, and blocks of 32 others.
    Gradient192, 192, 32, 2
);
shape!(
    /// Heads of up to 256 columns, and blocks of 16 others.
    Gradient256, 256, 16, 2
);
shape!(
    /// Heads of up to 128 columns in slices of 64, and blocks of 16 others.
    Gradient128Sliced, 128 by 64, 16, 2
);
shape!(
    /// Heads of up to 256 columns in slices of 64, and blocks of 16 others.
    Gradient256Sliced, 256 by 64, 16, 1
);

/// Gradients of a tile's rows, queries or keys, on a one-dimensional grid of a block for each tile and each slice of columns.
///
/// # Safety
///
/// As [`GradientTile::run`].
#[kernel(
    family = attention_gradient,
    block = [THREADS, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = GradientTile::<T, S, G>::SHARED_BYTES,
    instances = [
        attention_gradient_q_f16_64 = <F16, Gradient64, GivesQueries>,
        attention_gradient_q_f16_96 = <F16, Gradient96, GivesQueries>,
        attention_gradient_q_f16_128 = <F16, Gradient128, GivesQueries>,
        attention_gradient_q_f16_192 = <F16, Gradient192, GivesQueries>,
        attention_gradient_q_f16_256 = <F16, Gradient256, GivesQueries>,
        attention_gradient_kv_f16_64 = <F16, Gradient64By32, GivesKeysAndValues>,
        attention_gradient_kv_f16_96 = <F16, Gradient96, GivesKeysAndValues>,
        attention_gradient_kv_f16_128 = <F16, Gradient128By16, GivesKeysAndValues>,
        attention_gradient_k_f16_192 = <F16, Gradient192, GivesKeys>,
        attention_gradient_k_f16_256 = <F16, Gradient256, GivesKeys>,
        attention_gradient_v_f16_192 = <F16, Gradient192, GivesValues>,
        attention_gradient_v_f16_256 = <F16, Gradient256, GivesValues>,
        attention_gradient_q_bf16_64 = <Bf16, Gradient64, GivesQueries>,
        attention_gradient_q_bf16_96 = <Bf16, Gradient96, GivesQueries>,
        attention_gradient_q_bf16_128 = <Bf16, Gradient128, GivesQueries>,
        attention_gradient_q_bf16_192 = <Bf16, Gradient192, GivesQueries>,
        attention_gradient_q_bf16_256 = <Bf16, Gradient256, GivesQueries>,
        attention_gradient_kv_bf16_64 = <Bf16, Gradient64By32, GivesKeysAndValues>,
        attention_gradient_kv_bf16_96 = <Bf16, Gradient96, GivesKeysAndValues>,
        attention_gradient_kv_bf16_128 = <Bf16, Gradient128By16, GivesKeysAndValues>,
        attention_gradient_k_bf16_192 = <Bf16, Gradient192, GivesKeys>,
        attention_gradient_k_bf16_256 = <Bf16, Gradient256, GivesKeys>,
        attention_gradient_v_bf16_192 = <Bf16, Gradient192, GivesValues>,
        attention_gradient_v_bf16_256 = <Bf16, Gradient256, GivesValues>,
        attention_gradient_q_f32_64 = <f32, Gradient64By16, GivesQueries>,
        attention_gradient_k_f32_64 = <f32, Gradient64By16, GivesKeys>,
        attention_gradient_v_f32_64 = <f32, Gradient64By16, GivesValues>,
        attention_gradient_q_f32_128 = <f32, Gradient128Sliced, GivesQueries>,
        attention_gradient_k_f32_128 = <f32, Gradient128Sliced, GivesKeys>,
        attention_gradient_v_f32_128 = <f32, Gradient128Sliced, GivesValues>,
        attention_gradient_q_f32_256 = <f32, Gradient256Sliced, GivesQueries>,
        attention_gradient_k_f32_256 = <f32, Gradient256Sliced, GivesKeys>,
        attention_gradient_v_f32_256 = <f32, Gradient256Sliced, GivesValues>,
    ],
)]
pub unsafe fn attention_gradient<T, S, G>(
    tensors: GradientTensors,
    operands: ScoreOperands,
    p: GradientParams,
) where
    T: PortableElement,
    S: GradientShape,
    G: Gives,
{
    // SAFETY: the whole block is here; the caller's promise.
    unsafe { GradientTile::<T, S, G>::run(&tensors, &operands, (&p.sizes, p.sequences)) }
}

/// What the gradients read of each row, on a one-dimensional grid of a block for each tile.
///
/// # Safety
///
/// As [`find_rows`].
#[kernel(
    family = attention_gradient,
    block = [THREADS, 1, 1],
    instances = [
        attention_gradient_rows_f16 = <F16>,
        attention_gradient_rows_bf16 = <Bf16>,
        attention_gradient_rows_f32 = <f32>,
    ],
)]
pub unsafe fn attention_gradient_rows<T: Element>(p: RowParams) {
    // SAFETY: the caller's promise.
    unsafe { find_rows::<T>(&p) }
}
