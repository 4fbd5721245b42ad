//! Expert MLPs, evaluated where the experts are stored: `y = Σ gate · act(x·u) [· (x·w)] · v` over the hidden units of
//! the experts that a token uses.
//!
//! There are two ways. A block, or a cluster of blocks, has a token and reads its experts one after the other
//! (`block`): each use of an expert is a read of its row. Or, for many tokens, the units of a few tokens at a time are
//! sorted by the number of their expert (`sorted`). All warps of the device go through the table from its first row to
//! its last at the same time. Rows that several tokens use are then in the cache when they are read again.
//!
//! Sums are in f32, in an order that never depends on where a row is.

mod block;
mod format;
mod gradient;
mod params;
mod sorted;
mod sums;
mod tokens;

pub use block::{ExpertBlock, ExpertShape, MAX_SPLITS};
pub use format::{Int4, Int8, RowFormat};
pub use gradient::{ExpertGradientParams, GRADIENT_BYTES, GRADIENT_THREADS, expert_gradients};
pub use params::{ExpertParams, ExpertRows, TYPE_BF16, TYPE_F16, TYPE_F32};
pub use sorted::{
    BATCH, GROUP_TOKENS, GROUP_UNITS, LANES, ORDER_BYTES, ORDER_THREADS, SortedExperts, SortedParams,
    SortedShape, order_units,
};

/// Vectors u of which a lane has a chunk each on their way; and units, of which blocks have whole sets.
pub const SET: usize = 8;
/// Vectors u of half a set.
const HALF: usize = SET / 2;

/// Elements of x that are in shared memory at a time.
const X_TILE: u32 = 2048;
/// Their bytes.
const X_BYTES: u32 = X_TILE * 4;
/// Bytes of what is known of a unit: its address, and its gate until what v is multiplied with and what is added are known.
const UNIT_BYTES: u32 = 16;
