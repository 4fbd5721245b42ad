//! Instructions, one at a time: against the same computation written in Rust, and against what a GPU gave.
//!
//! `coverage` holds the forms in the texts that these tests run, and those recorded, against the PTX that ships: a new form
//! needs a test in one of these modules or a recording (`cargo xtask record`).

mod approximate;
#[path = "../common/mod.rs"]
mod common;
mod comparisons;
mod control;
mod conversions;
mod copies;
mod counters;
mod coverage;
mod floats;
mod grids;
mod harness;
mod hopper;
mod integers;
mod lanes;
mod matrix;
mod narrow;
mod narrow_loads;
mod products;
#[path = "../common/recording.rs"]
#[allow(dead_code, reason = "what records shares it")]
mod recording;
mod replay;
mod stmatrix;
mod video;
mod wgmma;
mod wmma;
