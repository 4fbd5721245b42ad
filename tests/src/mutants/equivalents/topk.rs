//! Reasons that hold for the kernels that select the largest elements.

use super::{ANYTHING, BOUNDS, Equivalent};

const NOT_AMONG_THE_BEST: &str =
    "a candidate that does not beat the k-th best is put behind it, where nothing is selected of";
const NO_NEIGHBOURS: &str = "a candidate that does not beat the k-th best is put behind it, where nothing is selected of; and the \
                             keys of two numbers of 16 bits differ by more than one";

/// Where candidates are compared with the k-th best.
const FIRST_OFFER: (&str, &str) =
    ("dsl/src/topk/mod.rs", "let mut mask = ptx::vote_sync_ballot(key > self.bar);");
const NEXT_OFFER: (&str, &str) =
    ("dsl/src/topk/mod.rs", "mask = ptx::vote_sync_ballot(key > self.bar && warp::lane_id() > lane);");

pub(super) const EQUIVALENTS: &[Equivalent] = &[
    Equivalent {
        family: "topk_",
        kinds: BOUNDS,
        statement: "setp.ge.u32",
        source: ("kernels-gpu/src/topk.rs", "while first < end {"),
        then: ANYTHING,
        reason: "the test before the first pass: every part has an element",
    },
    Equivalent {
        family: "topk_",
        kinds: BOUNDS,
        statement: "setp.lt.u32",
        source: ("kernels-gpu/src/topk.rs", "while first < end {"),
        then: ANYTHING,
        reason: "one more pass behind the end of the part, where there is no candidate",
    },
    Equivalent {
        family: "topk_*f16_",
        kinds: BOUNDS,
        statement: "setp.gt.u32",
        source: FIRST_OFFER,
        then: ANYTHING,
        reason: NO_NEIGHBOURS,
    },
    Equivalent {
        family: "topk_*f16_",
        kinds: BOUNDS,
        statement: "setp.gt.u32",
        source: NEXT_OFFER,
        then: ANYTHING,
        reason: NO_NEIGHBOURS,
    },
    Equivalent {
        family: "topk_f32_",
        kinds: BOUNDS,
        statement: "setp.gt.u32",
        source: FIRST_OFFER,
        then: ANYTHING,
        reason: NOT_AMONG_THE_BEST,
    },
    Equivalent {
        family: "topk_f32_",
        kinds: BOUNDS,
        statement: "setp.gt.u32",
        source: NEXT_OFFER,
        then: ANYTHING,
        reason: NOT_AMONG_THE_BEST,
    },
];
