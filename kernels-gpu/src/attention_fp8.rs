//! Attention of keys and values of 8 bits, on sm_80 and later: they are widened to the type of Q in shared memory, by integer arithmetic.

use warpsmith_dsl::attention::portable::{
    Fp8, Fp8Keys, Parts, PortableShape, PortableTile, THREADS, Tensors, WidenedElement,
};
use warpsmith_dsl::attention::scores::ScoreOperands;
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::kernel;
use warpsmith_dsl::launch::GlobalMut;

use crate::attention_shapes::{AttentionParams, Few128, Few256, Fp8Few64, Rows64, Rows128, Rows256};

/// The tile of shape `S`.
type Tile<T, S> = PortableTile<T, S, Fp8<false>>;

/// [`attention`](fn@crate::attention::attention) of keys and values of 8 bits. An instance's name tells the type of Q and O, the columns of a head at most, and whether it is for few
/// rows.
///
/// # Safety
///
/// As [`attention`](fn@crate::attention::attention), also for the scales.
#[kernel(
    family = attention_fp8,
    block = [THREADS, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = Tile::<T, S>::SHARED_BYTES,
    instances = [
        attention_fp8_f16_64 = <F16, Rows64>,
        attention_fp8_f16_128 = <F16, Rows128>,
        attention_fp8_f16_256 = <F16, Rows256>,
        attention_fp8_f16_64_few = <F16, Fp8Few64>,
        attention_fp8_f16_128_few = <F16, Few128>,
        attention_fp8_f16_256_few = <F16, Few256>,
        attention_fp8_bf16_64 = <Bf16, Rows64>,
        attention_fp8_bf16_128 = <Bf16, Rows128>,
        attention_fp8_bf16_256 = <Bf16, Rows256>,
        attention_fp8_bf16_64_few = <Bf16, Fp8Few64>,
        attention_fp8_bf16_128_few = <Bf16, Few128>,
        attention_fp8_bf16_256_few = <Bf16, Few256>,
    ],
)]
pub unsafe fn attention_fp8<T, S>(
    tensors: Tensors,
    lse: GlobalMut<f32>,
    parts: Parts,
    operands: ScoreOperands,
    fp8: Fp8Keys,
    p: AttentionParams,
) where
    T: WidenedElement,
    S: PortableShape,
{
    // SAFETY: the whole block is here; the caller's promise.
    unsafe { Tile::<T, S>::run(&tensors, lse, &parts, operands, &fp8, (&p.sizes, p.sequences)) }
}
