//! Reasons for the kernels that multiply f32 as three TF32 products.

use super::{ANYTHING, BOUNDS, Equivalent, NO_STEPS};
use crate::mutants::mutate::Kind;

pub(super) const EQUIVALENTS: &[Equivalent] = &[
    Equivalent {
        family: "linear_hopper_f32_",
        kinds: &[Kind::OffByOne],
        statement: "setp.ne.b32",
        source: ("dsl/src/gemm/wgmma_f32.rs", "if thread::thread_idx_x() == 0 {"),
        then: ANYTHING,
        reason: "thread 1 of the block makes the barriers instead of thread 0",
    },
    Equivalent {
        family: "linear_hopper_f32_",
        kinds: &[Kind::Fence],
        statement: "fence.mbarrier_init",
        source: (
            "dsl/src/ptx/mbarrier.rs",
            r#"unsafe { instruction!("fence.mbarrier_init.release.cluster;", options(nostack)) }"#,
        ),
        then: "mbarrier.init",
        reason: "the fence behind the last ring's barriers, by the same thread, is one for all rings",
    },
    Equivalent {
        family: "linear_hopper_f32_",
        kinds: BOUNDS,
        statement: "setp.eq.b64",
        source: ("dsl/src/gemm/wgmma_f32/store.rs", "while strip < count {"),
        then: ANYTHING,
        reason: NO_STEPS,
    },
    Equivalent {
        family: "linear_hopper_f32_",
        kinds: BOUNDS,
        statement: "setp.eq.b64",
        source: ("kernels-gpu/src/linear_hopper_f32.rs", "while tiles.next_tile().is_some() {"),
        then: ANYTHING,
        reason: NO_STEPS,
    },
    Equivalent {
        family: "linear_hopper_f32_",
        kinds: BOUNDS,
        statement: "setp.eq.b64",
        source: (
            "dsl/src/gemm/schedule.rs",
            "if self.next >= self.groups_m * self.groups_n * self.matrices {",
        ),
        then: ANYTHING,
        reason: NO_STEPS,
    },
    Equivalent {
        family: "linear_hopper_f32_",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: ("dsl/src/gemm/wgmma_f32/store.rs", "if strip == ptx::opaque(candidate) {"),
        then: ANYTHING,
        reason: "the first strip is staged for every strip, and what the strip has itself is staged over it",
    },
    Equivalent {
        family: "linear_hopper_f32_",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: ("dsl/src/gemm/wgmma_f32/store.rs", "while pass < passes {"),
        then: ANYTHING,
        reason: "the test before the first of several passes",
    },
    Equivalent {
        family: "linear_hopper_f32_",
        kinds: BOUNDS,
        statement: "setp.",
        source: ("dsl/src/gemm/wgmma_f32.rs", "while first < end {"),
        then: ANYTHING,
        reason: "the rows do not end at this test: each thread has chunks in the first round, and none in a round behind the last",
    },
    Equivalent {
        family: "linear_hopper_f32_",
        kinds: BOUNDS,
        statement: "setp.",
        source: ("dsl/src/gemm/wgmma_f32.rs", "if at < end {"),
        then: ANYTHING,
        reason: "the rows do not end in this of a thread's chunks",
    },
    Equivalent {
        family: "linear_hopper_f32_",
        kinds: &[Kind::Fence],
        statement: "fence.mbarrier_init",
        source: (
            "dsl/src/ptx/mbarrier.rs",
            r#"unsafe { instruction!("fence.mbarrier_init.release.cluster;", options(nostack)) }"#,
        ),
        then: "bar",
        reason: "the barriers of the last ring are arrived at by threads only, for which the block's barrier is enough",
    },
];
