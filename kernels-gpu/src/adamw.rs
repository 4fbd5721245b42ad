//! AdamW over many tensors in one launch: the norm of their gradients, the scalars of a step, and the update.

use warpsmith_dsl::adamw::{self, AdamWParams, AdamWRowsParams, PREPARE_THREADS, THREADS, UPDATE_THREADS};
use warpsmith_dsl::{kernel, warp};

/// The sums of squares of gradients, as [`square_sums`](adamw::square_sums) says.
///
/// # Safety
///
/// As [`square_sums`](adamw::square_sums).
#[kernel(
    family = adamw,
    block = [THREADS, 1, 1],
    min_blocks = 6,
    shared = THREADS / warp::SIZE * 4,
)]
pub unsafe fn adamw_square_sums(p: AdamWParams) {
    // SAFETY: the caller's promise.
    unsafe { adamw::square_sums(&p) }
}

/// The scalars of a step, as [`prepare`](adamw::prepare) says.
///
/// # Safety
///
/// As [`prepare`](adamw::prepare).
#[kernel(
    family = adamw,
    block = [PREPARE_THREADS, 1, 1],
    min_blocks = 1,
    shared = PREPARE_THREADS / warp::SIZE * 4,
)]
pub unsafe fn adamw_prepare(p: AdamWParams) {
    // SAFETY: the caller's promise.
    unsafe { adamw::prepare(&p) }
}

/// The update of weights and moments, as [`update`](adamw::update) says.
///
/// # Safety
///
/// As [`update`](adamw::update).
#[kernel(
    family = adamw,
    block = [UPDATE_THREADS, 1, 1],
    min_blocks = 5,
)]
pub unsafe fn adamw_update(p: AdamWParams) {
    // SAFETY: the caller's promise.
    unsafe { adamw::update(&p) }
}

/// The sums of squares of a gradient of rows, as [`row_square_sums`](adamw::row_square_sums) says.
///
/// # Safety
///
/// As [`row_square_sums`](adamw::row_square_sums).
#[kernel(
    family = adamw,
    block = [THREADS, 1, 1],
    min_blocks = 6,
    shared = THREADS / warp::SIZE * 4,
)]
pub unsafe fn adamw_row_square_sums(p: AdamWRowsParams) {
    // SAFETY: the caller's promise.
    unsafe { adamw::row_square_sums(&p) }
}

/// The update of the rows that have a gradient, as [`update_rows`](adamw::update_rows) says.
///
/// # Safety
///
/// As [`update_rows`](adamw::update_rows).
#[kernel(
    family = adamw,
    block = [UPDATE_THREADS, 1, 1],
    min_blocks = 4,
)]
pub unsafe fn adamw_update_rows(p: AdamWRowsParams) {
    // SAFETY: the caller's promise.
    unsafe { adamw::update_rows(&p) }
}
