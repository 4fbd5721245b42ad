//! Whole kernels of a product, for every epilogue: what stands between a `#[kernel]`'s signature and the main loops.
//!
//! A program that brings its own [`ProductEpilogue`] gets its kernels from [`product_kernels`](crate::product_kernels). They are the
//! variants that the library's planner chooses from ([`ProductKernels`]), with bodies from here: [`portable`], [`persistent`], [`few_rows`]
//! and [`add_parts`].

mod bodies;
mod kernels;
mod params;
mod tiles;

pub use bodies::{LANE_COLUMNS, SUMS_THREADS, WARP_COLUMNS, add_parts, few_rows, persistent, portable};
pub use kernels::{
    FewRowsArgs, PerElement, PersistentArgs, PortableArgs, ProductEpilogue, ProductKernels, SumsArgs,
};
pub use params::{HopperParams, LinearParams, SkinnyParams, SumsParams};
pub use tiles::{
    HopperCooperative128x192, HopperCooperative128x256, HopperPingPong128x128, Skinny16x64,
    Skinny16x64Split4, Tile16x64, Tile64x64, Tile128x64, Tile128x128,
};
