//! The tiles of attention by `mma.sync`, and what its launches are told.

use warpsmith_dsl::KernelParam;
use warpsmith_dsl::attention::portable::PortableShape;
use warpsmith_dsl::attention::work::{Sequences, Sizes};

macro_rules! shape {
    ($(#[$doc:meta])* $name:ident, $columns:literal, $values:literal, $keys:literal, $key_warps:literal, $stages:literal, $blocks:literal) => {
        $(#[$doc])*
        pub struct $name;

        impl PortableShape for $name {
            type Scores = [f32; $keys / 2];
            type Sums = [f32; $values / 2];
            const COLUMNS: u32 = $columns;
            const KEY_WARPS: u32 = $key_warps;
            const STAGES: u32 = $stages;
            const MIN_BLOCKS: u32 = $blocks;
        }
    };
}
shape!(
    /// Heads of up to 64 columns: 64 rows, and blocks of 64 keys.
    Rows64, 64, 64, 64, 1, 3, 1
);
shape!(
    /// Heads of up to 96 columns: 64 rows, and blocks of 64 keys.
    Rows96, 96, 96, 64, 1, 2, 1
);
shape!(
    /// Heads of up to 128 columns: 64 rows, and blocks of 64 keys.
    Rows128, 128, 128, 64, 1, 2, 1
);
shape!(
    /// Heads of up to 192 columns: 64 rows, and blocks of 32 keys.
    Rows192, 192, 192, 32, 1, 2, 1
);
shape!(
    /// Heads of up to 256 columns: 64 rows, and blocks of 16 keys.
    Rows256, 256, 256, 16, 1, 3, 1
);
shape!(
    /// Heads of up to 64 columns: 16 rows, and blocks of 128 keys, 32 for each warp.
    Few64, 64, 64, 32, 4, 2, 3
);
shape!(
    /// Heads of up to 96 columns: 16 rows, and blocks of 64 keys, 16 for each warp.
    Few96, 96, 96, 16, 4, 2, 3
);
shape!(
    /// Heads of up to 128 columns: 16 rows, and blocks of 64 keys, 16 for each warp.
    Few128, 128, 128, 16, 4, 2, 3
);
shape!(
    /// Heads of up to 192 columns: 16 rows, and blocks of 64 keys, 16 for each warp.
    Few192, 192, 192, 16, 4, 2, 2
);
shape!(
    /// Heads of up to 256 columns: 16 rows, and blocks of 64 keys, 16 for each warp.
    Few256, 256, 256, 16, 4, 2, 1
);
shape!(
    /// Heads of up to 64 columns, of keys and values of 8 bits: 16 rows, and blocks of 64 keys, 16 for each warp.
    Fp8Few64, 64, 64, 16, 4, 3, 3
);

shape!(
    /// Heads of up to 64 columns of f32: 64 rows, and blocks of 32 keys.
    Single64, 64, 64, 32, 1, 4, 1
);
shape!(
    /// Heads of up to 128 columns of f32: 64 rows, and blocks of 16 keys.
    Single128, 128, 128, 16, 1, 4, 1
);
shape!(
    /// Heads of up to 256 columns of f32, of which 128 values at a time: 64 rows, and blocks of 16 keys.
    Single256, 256, 128, 16, 1, 2, 1
);

/// What a launch is told beside its operands.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct AttentionParams {
    /// Sequences, heads, rows and keys.
    pub sizes: Sizes,
    /// Where sequences begin, and how long they are.
    pub sequences: Sequences,
}
