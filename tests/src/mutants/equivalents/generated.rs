//! Reasons for the kernels of an update alone.

use super::{ANYTHING, Equivalent};
use crate::mutants::mutate::Kind;

const WHOLE_CHUNKS: &str =
    "columns and where a lane's part of them begins are multiples of eight: none is one short of the other";

pub(super) const EQUIVALENTS: &[Equivalent] = &[
    Equivalent {
        family: "generated_update_*_rows",
        kinds: &[Kind::OffByOne],
        statement: "setp.",
        source: ("dsl/src/gemm/low_rank/rows.rs", "let is_there = column + offset < x.k;"),
        then: ANYTHING,
        reason: WHOLE_CHUNKS,
    },
    Equivalent {
        family: "generated_update_*_rows",
        kinds: &[Kind::OffByOne],
        statement: "setp.",
        source: (
            "dsl/src/gemm/low_rank/rows.rs",
            "unsafe { ptx::ld_global_v4_b32_if(at.address(), row < u.rows && column < u.k) }",
        ),
        then: ANYTHING,
        reason: WHOLE_CHUNKS,
    },
    Equivalent {
        family: "generated_update_*_rows",
        kinds: &[Kind::OffByOne],
        statement: "setp.",
        source: (
            "dsl/src/gemm/low_rank/rows.rs",
            "let is_there = column + group as u32 * GROUP < y.columns;",
        ),
        then: ANYTHING,
        reason: WHOLE_CHUNKS,
    },
];
