//! A linear layer and generated low-rank updates of it in one kernel on Hopper: what [`linear_hopper`](mod@crate::linear_hopper)
//! computes, and `((X V) ⊙ codes) U · scaling` added to its sums.
//!
//! It costs little more than the layer alone. The columns of V ride along in the products of X and W. Their sums, times
//! the codes and rounded to X's type, are one operand of a last product before the epilogue. [`UpdateTile`] says how.
//! For few rows of X there is a kernel that sums X V in a warp of its own, as
//! [`linear_skinny`](mod@crate::linear_skinny) multiplies.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, F16, HalfElement};
use warpsmith_dsl::gemm::split_k::TransposedUpdate;
use warpsmith_dsl::gemm::wgmma::{CHUNK, Cooperative, Exchange, PingPong, UpdateTile, WgmmaUpdateTile};
use warpsmith_dsl::gemm::{BoxOutput, MmaElement, OutputElement};
use warpsmith_dsl::grid;
use warpsmith_dsl::launch::{Global, GlobalMut, TensorMap};
use warpsmith_dsl::ptx::{self, Wgmma, WgmmaUpdate};
use warpsmith_dsl::tile::Output;
use warpsmith_dsl::{KernelParam, kernel, thread, warp};

use crate::codes::Codes;

/// 128 × 128 outputs by each of two warpgroups in turn, for updates of at most eight ranks together. Each tile computes
/// all for itself, whatever the launch says of an exchange. For epilogues that need no memory, and aligned rows only.
pub type UpdateOwn128x128 = WgmmaUpdateTile<[f32; 64], 2, PingPong, 5, 1, true>;
/// 128 × 192 outputs by each of two warpgroups in turn, in clusters of two blocks: for epilogues that need no memory, and
/// aligned rows only.
pub type UpdatePingPong128x192 = WgmmaUpdateTile<[f32; 96], 2, PingPong, 4, 2, false>;
/// 128 × 192 outputs by two warpgroups together, in clusters of two blocks: the sooner done where a block has but one tile. For epilogues
/// that need no memory, and aligned rows only.
pub type UpdateCooperative128x192 = WgmmaUpdateTile<[f32; 96], 1, Cooperative<2>, 4, 2, false>;

/// The sizes and strides of a launch.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct UpdateHopperParams {
    /// Elements from one row of Y to the next.
    pub stride_y: u64,
    /// Rows of X and of Y.
    pub m: u32,
    /// Rows of W, and columns of Y and U.
    pub n: u32,
    /// Columns of X and W, rows of V, at least 1; a row has less than 2³¹ bytes.
    pub k: u32,
    /// 1 if `y_boxes` describes Y, which then has aligned rows; else 0.
    pub has_boxes: u32,
    /// Clusters' tiles along M that the order visits before it steps along N, at least 1. Where H' is exchanged, this many times the chunks
    /// of V are no more than the grid's clusters, or than there are tiles of clusters.
    pub height: u32,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

/// `Y = activation(alpha · (X Wᵀ + ((X V) ⊙ codes) U) + …)`, all that [`LinearEpilogue`] says, on a one-dimensional grid of any
/// number of clusters.
///
/// `codes` has each code's scaling. The name of an instance tells the type of all matrices, the schedule, and the tile.
///
/// # Safety
///
/// `x`, `w`, `vt` and `u` describe X, W, Vᵀ and U as [`UpdateTile`] asks, `y_boxes` Y if `has_boxes` is 1; `y`, `codes`
/// and the pointers of `epilogue` are valid for what `p` describes. `exchange` is as [`Exchange`] says, with as many
/// chunks of eight as the codes have ranks. If H' is exchanged, no row of tiles has fewer tiles than that, and all blocks
/// of the grid are on the chip at once. What is written overlaps nothing else, but that Y may be the epilogue's residual.
#[kernel(
    family = linear_update_hopper,
    block = [S::THREADS, 1, 1],
    cluster = [S::CLUSTER_M, 1, 1],
    shared = S::SHARED_BYTES,
    instances = [
        linear_update_hopper_f16_own_128x128 = <F16, UpdateOwn128x128>,
        linear_update_hopper_f16_pingpong_128x192 = <F16, UpdatePingPong128x192>,
        linear_update_hopper_f16_cooperative_128x192 = <F16, UpdateCooperative128x192>,
        linear_update_hopper_bf16_own_128x128 = <Bf16, UpdateOwn128x128>,
        linear_update_hopper_bf16_pingpong_128x192 = <Bf16, UpdatePingPong128x192>,
        linear_update_hopper_bf16_cooperative_128x192 = <Bf16, UpdateCooperative128x192>,
    ],
)]
#[allow(clippy::too_many_arguments, reason = "a kernel's parameters")]
pub unsafe fn linear_update_hopper<
    T: WgmmaUpdate<S::Fragment> + HalfElement + OutputElement,
    S: UpdateTile,
>(
    x: &TensorMap,
    w: &TensorMap,
    vt: &TensorMap,
    u: &TensorMap,
    y_boxes: &TensorMap,
    y: GlobalMut<T>,
    epilogue: LinearEpilogue<T, T>,
    codes: Codes<T>,
    exchange: Exchange,
    p: UpdateHopperParams,
) {
    let exchange = exchange.of_tiles::<S>();
    let steps = (p.k * T::BYTES).div_ceil(S::ROW_BYTES);
    let mut tiles = S::tiles(p.m, p.n, p.height);

    // SAFETY: the whole grid is here, with the threads, the shared memory and the clusters that the tile asks for; the caller
    // vouches for maps and pointers, and each tile of Y belongs to one block. Every chunk of H' is published by the tile that computes it,
    // before it waits for others.
    unsafe {
        // By a warp that has nothing else to do, while the barriers are made.
        if thread::thread_idx_x() == warp::SIZE {
            for map in [x, w, vt, u] {
                ptx::prefetch_tensormap(map.address());
            }
            if p.has_boxes != 0 {
                ptx::prefetch_tensormap(y_boxes.address());
            }
        }
        S::start();
        if S::is_producer() {
            if let Some(mut producer) = S::producer() {
                while let Some(tile) = tiles.next_tile() {
                    // Behind the start and the first tile's divisions, which depend on no other launch; again it takes no time.
                    grid::wait_for_earlier_launches();
                    S::load::<T>(&mut producer, x, w, vt, steps, tile, exchange.chunk_of(tile));
                }
                S::finish(producer);
            }
        } else {
            grid::wait_for_earlier_launches();
            let mut consumer = S::consumer();
            while let Some(tile) = S::next_tile(&mut consumer, &mut tiles, steps) {
                S::fetch(&consumer, u, &exchange, tile);
                let chunk = exchange.chunk_of(tile);
                if let Some(chunk) = chunk {
                    let rank = chunk * CHUNK + S::chunk_column();
                    if let Some(words) = codes.words_of_rank(rank) {
                        S::put_codes(&consumer, tile, words.scaling(), |row, to| {
                            words.copy(row, row < p.m, to);
                        });
                    } else {
                        let [left, right] = [codes.of_rank(rank), codes.of_rank(rank + 1)];
                        S::put_codes(&consumer, tile, [left.scaling(), right.scaling()], |row, to| {
                            left.put_beside(&right, row, row < p.m, to);
                        });
                    }
                }
                let epilogue = epilogue.of_matrix(0, p.m, p.n);
                let in_registers = epilogue.in_registers();
                let columns = S::columns(&in_registers, tile);

                let mut accumulators = S::multiply::<T>(&mut consumer, steps, chunk.is_some());
                let mut own = S::no_chunk();
                if let Some(chunk) = chunk {
                    let rank = chunk * CHUNK + S::chunk_column();
                    let inside = [rank < codes.rank(), rank + 1 < codes.rank()];
                    own = S::scale::<T>(&consumer, &accumulators, inside);
                    if exchange.is_own == 0 {
                        S::publish(&consumer, &exchange, tile, chunk, own);
                    }
                }
                S::update::<T>(&mut consumer, &mut accumulators, u, &exchange, tile, own);

                if !S::STORES_ROWS || p.has_boxes != 0 && epilogue.fits_registers() {
                    let boxes = BoxOutput { map: y_boxes, rows: None };
                    match in_registers.with_floor() {
                        Some(e) if S::UNROLLS => {
                            S::store_boxes::<T, _, true>(&accumulators, &e, &columns, &boxes, tile)
                        }
                        _ => S::store_boxes::<T, _, false>(
                            &accumulators,
                            &in_registers,
                            &columns,
                            &boxes,
                            tile,
                        ),
                    }
                } else {
                    let y = Output { base: y, stride: p.stride_y, rows: p.m, columns: p.n };
                    S::store_rows(&accumulators, &epilogue, &y, tile);
                }
            }
            S::finish_stores();
        }
    }
}

/// The sizes and strides of a launch for few rows of X.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct UpdateFewRowsParams {
    /// Elements from one row of Y to the next.
    pub stride_y: u64,
    /// Elements from one row of U to the next.
    pub stride_u: u64,
    /// Rows of X and of Y.
    pub m: u32,
    /// Rows of W, and columns of Y and U.
    pub n: u32,
    /// Columns of X and W, rows of V; a row has less than 2³¹ bytes.
    pub k: u32,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

/// As [`linear_update_hopper`](fn@linear_update_hopper), for few rows of X and updates of at most eight ranks together, on a one-dimensional grid of one block for
/// each tile of 16 × 64 outputs.
///
/// # Safety
///
/// `x`, `w` and `vt` describe X, W and Vᵀ as [`TransposedUpdate`] asks; `u`, `y`, `codes` and the pointers of `epilogue` are valid for what
/// `p` describes. What is written overlaps nothing else, but that Y may be the epilogue's residual.
#[kernel(
    family = linear_update_hopper,
    block = [TransposedUpdate::THREADS, 1, 1],
    min_blocks = TransposedUpdate::MIN_BLOCKS,
    shared = TransposedUpdate::SHARED_BYTES,
    instances = [
        linear_update_hopper_f16_16x64 = <F16>,
        linear_update_hopper_bf16_16x64 = <Bf16>,
    ],
)]
#[allow(clippy::too_many_arguments, reason = "a kernel's parameters")]
pub unsafe fn linear_update_few_rows<T: Wgmma<[f32; 8]> + MmaElement + HalfElement>(
    x: &TensorMap,
    w: &TensorMap,
    vt: &TensorMap,
    u: Global<T>,
    y: GlobalMut<T>,
    epilogue: LinearEpilogue<T, T>,
    codes: Codes<T>,
    p: UpdateFewRowsParams,
) {
    type S = TransposedUpdate;
    // SAFETY: the whole grid is here, with the threads and the shared memory that the tile asks for; the caller vouches for maps and
    // pointers, and each tile of Y belongs to one block.
    unsafe {
        S::start(x, w, vt);
        // Behind the start, under which its divisions run.
        let share = S::share(p.m, p.n, p.k * T::BYTES);
        let (tile, ranks) = (share.tile, codes.rank());
        grid::wait_for_earlier_launches();
        if S::is_producer() {
            S::load::<T>(x, w, vt, share);
        } else if S::sums_h() {
            let rank = S::rank();
            let scaling = if let Some(words) = codes.words_of_rank(rank) {
                S::put_codes(share, |row, to| words.copy(row, row < p.m, to));
                words.scaling()
            } else {
                let [left, right] = [codes.of_rank(rank), codes.of_rank(rank + 1)];
                S::put_codes(share, |row, to| left.put_beside(&right, row, row < p.m, to));
                [left.scaling(), right.scaling()]
            };
            S::sum_h::<T>(share, ranks, scaling);
        } else {
            let rows_of_u = S::rows_of_u(u, p.stride_u, ranks, p.n, tile);
            let epilogue = epilogue.of_matrix(0, p.m, p.n);
            let columns = S::columns(&epilogue, tile);
            let accumulators = S::multiply::<T>(share, rows_of_u);
            S::exchange(accumulators);
            let y = Output { base: y, stride: p.stride_y, rows: p.m, columns: p.n };
            S::store_linear(&epilogue, columns, &y, tile);
        }
    }
}
