//! Reasons for the kernels that copy matrices into aligned rows.

use super::{ANYTHING, BOUNDS, Equivalent};
use crate::mutants::mutate::Kind;

const FIRST_WORD: &str = "the test for a thread's first word, of its first row, is whether its chunk lies before the end of the row: where it does not, the \
                          thread has returned";

pub(super) const EQUIVALENTS: &[Equivalent] = &[
    Equivalent {
        family: "repack_transpose_",
        kinds: &[Kind::Bound],
        statement: "setp.ne.b",
        source: ("kernels-gpu/src/repack.rs", "let elements = if p.chunked != 0 && rows >= E::PER_CHUNK {"),
        then: ANYTHING,
        reason: "chunks are read element by element instead of together: slower, and the same result",
    },
    Equivalent {
        family: "repack_rows_1",
        kinds: &[Kind::Bound],
        statement: "setp.ne.b32",
        source: (
            "kernels-gpu/src/repack.rs",
            "unsafe { ptx::ld_global_nc_b8_if(from + i as u64 * stride, i < count) as u32 }",
        ),
        then: ANYTHING,
        reason: FIRST_WORD,
    },
    Equivalent {
        family: "repack_rows_2",
        kinds: BOUNDS,
        statement: "setp.ne.b32",
        source: (
            "kernels-gpu/src/repack.rs",
            "unsafe { ptx::ld_global_nc_b16_if(from + i as u64 * stride, i < count) as u32 }",
        ),
        then: ANYTHING,
        reason: FIRST_WORD,
    },
    Equivalent {
        family: "repack_rows_4",
        kinds: BOUNDS,
        statement: "setp.ne.b32",
        source: (
            "kernels-gpu/src/repack.rs",
            "unsafe { ptx::ld_global_nc_f32_if(from + i as u64 * stride, i < count).to_bits() }",
        ),
        then: ANYTHING,
        reason: FIRST_WORD,
    },
    Equivalent {
        family: "repack_rows_8",
        kinds: BOUNDS,
        statement: "setp.ne.b32",
        source: (
            "kernels-gpu/src/repack.rs",
            "unsafe { ptx::ld_global_nc_v2_f32_if(from + i as u64 * stride, i < count).map(f32::to_bits) }",
        ),
        then: ANYTHING,
        reason: FIRST_WORD,
    },
    Equivalent {
        family: "repack_pair_2",
        kinds: BOUNDS,
        statement: "setp.ne.b32",
        source: (
            "kernels-gpu/src/repack.rs",
            "unsafe { ptx::ld_global_nc_b16_if(from + i as u64 * stride, i < count) as u32 }",
        ),
        then: ANYTHING,
        reason: FIRST_WORD,
    },
    Equivalent {
        family: "repack_pair_4",
        kinds: BOUNDS,
        statement: "setp.ne.b32",
        source: (
            "kernels-gpu/src/repack.rs",
            "unsafe { ptx::ld_global_nc_f32_if(from + i as u64 * stride, i < count).to_bits() }",
        ),
        then: ANYTHING,
        reason: FIRST_WORD,
    },
    Equivalent {
        family: "repack_pair_8",
        kinds: BOUNDS,
        statement: "setp.ne.b32",
        source: (
            "kernels-gpu/src/repack.rs",
            "unsafe { ptx::ld_global_nc_v2_f32_if(from + i as u64 * stride, i < count).map(f32::to_bits) }",
        ),
        then: ANYTHING,
        reason: FIRST_WORD,
    },
];
