//! Instructions, one at a time: against the same computation written in Rust, and against what a GPU gave.

#[path = "../common/mod.rs"]
mod common;
mod comparisons;
mod control;
mod conversions;
mod floats;
mod harness;
mod integers;
mod lanes;
mod matrix;
mod products;
