//! Reasons for the kernels that keep a cache of rows.

use super::{ANYTHING, BOUNDS, Equivalent};
use crate::mutants::mutate::Kind;

const FILE: &str = "kernels-gpu/src/expert_cache.rs";

pub(super) const EQUIVALENTS: &[Equivalent] = &[
    Equivalent {
        family: "note_rows",
        kinds: BOUNDS,
        statement: "setp.",
        source: (FILE, "while first < p.ids {"),
        then: ANYTHING,
        reason: "a warp behind the last id goes round once, and none of its lanes has an id",
    },
    Equivalent {
        family: "note_rows",
        kinds: &[Kind::Bound],
        statement: "setp.ne.b32",
        source: (FILE, "if ptx::ld_relaxed_gpu_u32(place) & bit == 0 {"),
        then: ANYTHING,
        reason: "a bit that is set is set again",
    },
    Equivalent {
        family: "note_rows",
        kinds: BOUNDS,
        statement: "setp.",
        source: (FILE, "if lane == 0 && hits != 0 {"),
        then: ANYTHING,
        reason: "all lanes of a warp have its hits: lane 1 adds them, or nothing is added where there are none",
    },
    Equivalent {
        family: "fill_slots",
        kinds: &[Kind::OffByOne],
        statement: "setp.",
        source: (FILE, "while first < p.loads {"),
        then: ANYTHING,
        reason: "a warp that begins where the loads end goes round once, with none of them",
    },
    Equivalent {
        family: "fill_slots",
        kinds: &[Kind::Bound],
        statement: "setp.eq.b32",
        source: (FILE, "while row_chunks != 0 && index < count {"),
        then: ANYTHING,
        reason: "a warp has a load at least, and of a row without chunks it copies none",
    },
];
