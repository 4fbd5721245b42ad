//! The gradients of attention. Scores are computed again, and never stored.
//!
//! With `P = exp(S − lse)`, `dP = dY Vᵀ` and, of each row, `Δ = Σ dY ∘ Y`:
//!
//! ```text
//! dS = P ∘ (dP − Δ)      dQ = scale · dS K      dK = scale · dSᵀ Q      dV = Pᵀ dY
//! ```
//!
//! A tile has rows of its own, and goes over blocks of others. Of queries it goes over keys, and adds up dQ. Of keys it goes over the queries of all heads that share them,
//! and adds up dK and dV; it computes Sᵀ and dPᵀ, which are then operands of the last products where they are, in registers. So each sum is in an order that depends on the
//! sizes only.
//!
//! What tiles of keys are told has the places of rows and keys exchanged: their rows are keys, and what a row attends to are the queries that attend to the key. That
//! holds for sizes, sequences, windows and the operands of scores.
//!
//! | module | what it is |
//! |---|---|
//! | [`hopper`] | the tile of Hopper's kernels: copy engine and `wgmma` |
//! | [`portable`] | the tile of all others: `cp.async` and `mma.sync` |

pub mod hopper;
mod output;
pub mod portable;
mod rows;

pub use rows::{BLOCK_ROWS, RowParams, find_rows};

use super::work::{Sequences, Sizes};
use crate::KernelParam;

pub use super::portable::THREADS;

/// Numbers of a row that tiles read: its log-sum-exp and Δ, and again, the former as that of powers of 2.
pub const ROW_NUMBERS: u32 = 4;

/// Which gradients a tile gives.
pub trait Gives: 'static {
    /// Whether its rows are keys; else they are queries.
    const OF_KEYS: bool;
    /// Whether it gives the gradient of its rows: dQ, or dK.
    const OWN: bool;
    /// Whether it gives dV.
    const VALUES: bool;
}

macro_rules! gives {
    ($(#[$doc:meta])* $name:ident, $of_keys:literal, $own:literal, $values:literal) => {
        $(#[$doc])*
        pub struct $name;

        impl Gives for $name {
            const OF_KEYS: bool = $of_keys;
            const OWN: bool = $own;
            const VALUES: bool = $values;
        }
    };
}
gives!(
    /// dQ.
    GivesQueries, false, true, false
);
gives!(
    /// dK and dV.
    GivesKeysAndValues, true, true, true
);
gives!(
    /// dK alone, where registers are short.
    GivesKeys, true, true, false
);
gives!(
    /// dV alone.
    GivesValues, true, false, true
);

/// What a launch is told beside its operands.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct GradientParams {
    /// Sequences, heads, rows and keys.
    pub sizes: Sizes,
    /// Where sequences begin, and how long they are.
    pub sequences: Sequences,
}
