//! Reasons that hold for the kernels of every linear family.

use super::{ANYTHING, BOUNDS, Equivalent};

pub(super) const EQUIVALENTS: &[Equivalent] = &[
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.eq.b64",
        source: ("dsl/src/layout.rs", "let index = block / per_group;"),
        then: ANYTHING,
        reason: "the test for a division by zero, which traps: Y has a column if the grid has a block",
    },
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: ("dsl/src/layout.rs", "TileIndex { batch, m: first + within % height, n: within / height }"),
        then: ANYTHING,
        reason: "the test for a division by zero, which traps: the grid has no group without a row of tiles",
    },
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.lt.u32",
        source: ("dsl/src/gemm/mma_sync.rs", "if index < slots {"),
        then: ANYTHING,
        reason: "a slot after the last is filled too, with zeros, since K ends before it: no product reads it, and its copies \
                 have been waited for, or it lies beyond the staging buffer",
    },
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.ge.u32",
        source: ("dsl/src/gemm/mma_sync.rs", "if index < slots {"),
        then: ANYTHING,
        reason: "a slot after the last is filled too, with zeros, since K ends before it: no product reads it, and its copies \
                 have been waited for, or it lies beyond the staging buffer",
    },
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.gt.s32…, 0` as `setp.ge.s32",
        source: (
            "dsl/src/tile.rs",
            "let bytes = if left <= 0 { 0 } else { (left as u32).min(1 << self.word_log2) };",
        ),
        then: ANYTHING,
        reason: "of no bytes that are left none are copied either way",
    },
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.gt.s32…, 0` as `setp.ge.s32",
        // The copies are inlined there.
        source: ("dsl/src/gemm/mma_sync.rs", "if index < slots {"),
        then: ANYTHING,
        reason: "of no bytes that are left none are copied either way",
    },
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.ne.b64",
        source: ("dsl/src/tile.rs", "if vector_aligned && column + 4 <= self.columns {"),
        then: ANYTHING,
        reason: "four elements are stored one by one instead of together: slower, and the same result",
    },
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.gt.u32",
        source: ("dsl/src/tile.rs", "if vector_aligned && column + 4 <= self.columns {"),
        then: ANYTHING,
        reason: "four elements are stored one by one instead of together: slower, and the same result",
    },
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.",
        source: (
            "dsl/src/epilogue/linear.rs",
            "if N == 4 && self.is_residual_aligned::<N>(from) && self.is_inside::<N>(at) {",
        ),
        then: ANYTHING,
        reason: "four elements of the residual are read one by one instead of together: slower, and the same result",
    },
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: ("dsl/src/gemm/fragments/rows.rs", "if strip == ptx::opaque(candidate) {"),
        then: ANYTHING,
        reason: "the first strip is staged for every strip, and what the strip has itself is staged over it",
    },
];
