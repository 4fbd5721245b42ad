//! Generated low-rank updates: `Y (+)= Σ scaling · ((X V) ⊙ codes) U`, with `X [M, K1]`, `V [K1, R]`, `U [R, K2]` and codes of each row.
//!
//! All are row-major with any row stride. The product of X and V stays in registers: multiplied with the codes and rounded to the operands'
//! type, it is the left operand of the product with U. So X is read once and Y written once, and the time is that of a copy.

use warpsmith_dsl::float::{Bf16, F16, HalfElement, Stored};
use warpsmith_dsl::gemm::low_rank::{
    LowRankElement, LowRankShape, LowRankTile, RowsProblem, RowsShape, RowsTile,
};
use warpsmith_dsl::kernel;
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::tile::{Operand, Output};

use crate::codes::Codes;
use crate::update::{UpdateParams, update};

/// 32 rows by eight warps, of which four share the sums: V and U stay in shared memory if they are small.
pub type Rank8 = LowRankTile<1, 2, 4, 3, 6, 1, 2>;
/// 16 rows by eight warps that share the sums, for up to 768 columns of 16-bit types: V and U stay in registers.
pub type Rows768 = RowsTile<3, 8, 2>;
/// `Y (+)= Σ scaling · ((X V) ⊙ codes) U`, where the sum goes over the updates of `codes`, on a one-dimensional grid of any number of
/// blocks: they take turns with the tiles of `BLOCK_M` rows × `slice` columns.
///
/// The name of an instance tells the type of all operands, and the largest rank.
///
/// # Safety
///
/// The pointers, those of `codes` too, are valid for what `p` describes. The rank of `codes` is that of V and U, and at most the
/// instance's; `codes.rows` holds no zero. Y overlaps nothing else.
#[kernel(
    family = generated_update,
    block = [S::THREADS, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = S::BASE_BYTES + S::CODES * <T as Stored>::BYTES,
    instances = [
        generated_update_f16_rank8 = <F16, Rank8>,
        generated_update_bf16_rank8 = <Bf16, Rank8>,
        generated_update_f32_rank8 = <f32, Rank8>,
    ],
)]
pub unsafe fn generated_update<T: LowRankElement, S: LowRankShape>(
    x: Global<T>,
    v: Global<T>,
    codes: Codes<T>,
    u: Global<T>,
    y: GlobalMut<T>,
    p: UpdateParams,
) {
    // SAFETY: the caller's promise is `update`'s.
    unsafe { update::<T, S>(x, v, codes, u, y, p) }
}

/// As [`generated_update`](fn@generated_update), where X, U and Y are whole chunks of 16 bytes at multiples of 16 bytes and have few columns: V and U stay in
/// the warps' registers.
///
/// # Safety
///
/// As [`generated_update`](fn@generated_update); and the rows of X, U and Y start at multiples of 16 bytes and have a multiple of 16 bytes, at most
/// `MAX_COLUMNS` elements.
#[kernel(
    family = generated_update,
    block = [S::THREADS, 1, 1],
    min_blocks = S::MIN_BLOCKS,
    shared = S::SHARED_BYTES,
    instances = [
        generated_update_f16_rows768 = <F16, Rows768>,
        generated_update_bf16_rows768 = <Bf16, Rows768>,
    ],
)]
pub unsafe fn generated_update_rows<T: LowRankElement + HalfElement, S: RowsShape>(
    x: Global<T>,
    v: Global<T>,
    codes: Codes<T>,
    u: Global<T>,
    y: GlobalMut<T>,
    p: UpdateParams,
) {
    let rank = codes.rank();
    let problem = RowsProblem {
        x: Operand { base: x, stride: p.stride_x, rows: p.m, k: p.k1 },
        v: Operand { base: v, stride: p.stride_v, rows: p.k1, k: rank },
        u: Operand { base: u, stride: p.stride_u, rows: rank, k: p.k2 },
        y: Output { base: y, stride: p.stride_y, rows: p.m, columns: p.k2 },
        add: p.add != 0,
    };
    // SAFETY: the caller's promise is the shape's.
    unsafe { S::update(&problem, &codes) }
}
