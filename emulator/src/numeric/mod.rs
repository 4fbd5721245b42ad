//! The arithmetic of the GPU where it is not the host's: narrow floats, rounding modes, NaN, conversions, tensor cores.
//!
//! Everything here is pure and works on single values, or on the fragments of one matrix instruction.

#![allow(clippy::needless_range_loop, reason = "rows and columns index several fragments at once")]

pub(crate) mod convert;
pub(crate) mod directed;
pub(crate) mod float;
pub(crate) mod half;
pub(crate) mod mma;
pub(crate) mod narrow;
pub(crate) mod printf;
pub(crate) mod wgmma;
