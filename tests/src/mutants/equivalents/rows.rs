//! Reasons that hold for the kernels of rows, and for those that count labels and sum losses.

use super::{ANYTHING, BOUNDS, Equivalent};

const LABELS: &str = "dsl/src/cross_entropy/labels.rs";
const LAST_PART: &str = "let end = if rows - first < part { rows } else { first + part };";
const SAME_END: &str = "a part of as many rows as are left ends with the last of them either way";

/// Where a warp stores what its lanes have added up.
const STORE_OF_WARP: (&str, &str) = ("dsl/src/rows/team.rs", "if lane == 0 {");
const SAME_IN_LANES: &str =
    "all lanes have the warp's numbers, which any of them may store in the warp's place";

const fn store_of_warp(family: &'static str) -> Equivalent {
    Equivalent {
        family,
        kinds: BOUNDS,
        statement: "setp.ne.b32",
        source: STORE_OF_WARP,
        then: ANYTHING,
        reason: SAME_IN_LANES,
    }
}

pub(super) const EQUIVALENTS: &[Equivalent] = &[
    store_of_warp("loss_sums"),
    store_of_warp("norm_"),
    store_of_warp("softmax_"),
    store_of_warp("cross_entropy_"),
    Equivalent {
        family: "label_counts",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: (LABELS, "if warp::lane_id() == 0 {"),
        then: ANYTHING,
        reason: "all lanes have the warp's count, which any of them may store in the warp's place",
    },
    Equivalent {
        family: "label_counts",
        kinds: BOUNDS,
        statement: "setp.ne.b32",
        source: (LABELS, "if id == 0 {"),
        then: ANYTHING,
        reason: "all lanes of the first warp have its count, so that any of them may add the others'",
    },
    Equivalent {
        family: "label_counts",
        kinds: BOUNDS,
        statement: "setp.lt.u32…setp.le.u32",
        source: (LABELS, LAST_PART),
        then: ANYTHING,
        reason: SAME_END,
    },
    Equivalent {
        family: "loss_sums",
        kinds: BOUNDS,
        statement: "setp.lt.u32…setp.le.u32",
        source: (LABELS, LAST_PART),
        then: ANYTHING,
        reason: SAME_END,
    },
    Equivalent {
        family: "loss_sums",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: (LABELS, "if id == 0 {"),
        then: ANYTHING,
        reason: "all threads have the same sum, which any of them may store",
    },
];
