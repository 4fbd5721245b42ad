//! Reasons for the kernels that split K over a cluster.

use super::{ANYTHING, BAR_WARP_SYNC, BOUNDS, Equivalent, NOWHERE};
use crate::mutants::mutate::Kind;

const ONE_AHEAD: &str = "the ring of W is one stage deeper than that of X: the loop that fetches W ahead, two steps at a time, never runs";
const AHEAD: &str = "before the first product all stages are free, and fewer steps of W are fetched ahead than its ring has stages: there \
                    is nothing to wait for, and the ring does not come round";
const ONE_MORE: &str = "a step of W behind the last is fetched too, to a stage that is free, and nothing reads it; it arrives while the \
                       products are awaited that end the block";

pub(super) const EQUIVALENTS: &[Equivalent] = &[
    Equivalent {
        family: "linear_skinny_",
        kinds: BOUNDS,
        statement: "setp.",
        source: ("dsl/src/gemm/split_k.rs", "if index < fragments {"),
        then: ANYTHING,
        reason: "a part beyond the rows of Y is sent too, to a place of its own that nothing reads",
    },
    Equivalent {
        family: "linear_skinny_",
        kinds: BOUNDS,
        statement: "setp.",
        source: ("dsl/src/gemm/split_k.rs", "while fragment < fragments {"),
        then: ANYTHING,
        reason: "rows beyond those of Y are worked on too, of which nothing is stored",
    },
    Equivalent {
        family: "linear_skinny_",
        kinds: &[Kind::Fence],
        statement: "fence.mbarrier_init",
        source: (
            "dsl/src/ptx/mbarrier.rs",
            r#"unsafe { instruction!("fence.mbarrier_init.release.cluster;", options(nostack)) }"#,
        ),
        then: "mbarrier.init",
        reason: "the fence behind the second ring's barriers, by the same thread, is one for both rings",
    },
    Equivalent {
        family: "linear_skinny_",
        kinds: &[Kind::OffByOne],
        statement: "setp.ne.b32",
        source: ("dsl/src/gemm/split_k.rs", "if warp::lane_id() == 0 {"),
        then: ANYTHING,
        reason: "lane 1 of its warp is the producer instead of lane 0",
    },
    Equivalent {
        family: "linear_skinny_",
        kinds: &[Kind::Barrier],
        statement: "barrier.cluster.wait",
        source: (
            "dsl/src/ptx/cluster.rs",
            r#"unsafe { instruction!("barrier.cluster.wait.acquire.aligned;", options(nostack)) }"#,
        ),
        then: "ld.global.nc",
        reason: "the warp ends after it, and for the barrier's other phases threads that have ended count as arrived",
    },
    Equivalent {
        family: "linear_skinny_*_128x128",
        kinds: &[Kind::Wait],
        statement: "mbarrier.try_wait",
        source: ("dsl/src/ptx/mbarrier.rs", "instruction!("),
        then: ANYTHING,
        reason: ONE_AHEAD,
    },
    Equivalent {
        family: "linear_skinny_*_128x128",
        kinds: &[Kind::Expect, Kind::Arrive],
        statement: "mbarrier.arrive.expect_tx",
        source: (
            "dsl/src/ptx/mbarrier.rs",
            r#"instruction!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{0}], {1};", in(reg32) barrier, in(reg32) bytes, options(nostack))"#,
        ),
        then: ANYTHING,
        reason: ONE_AHEAD,
    },
    Equivalent {
        family: "linear_skinny_*_128x128",
        kinds: &[Kind::Swizzle, Kind::Bound, Kind::OffByOne],
        statement: "",
        source: ("dsl/src/pipeline.rs", "if self.stage + 1 == STAGES {"),
        then: ANYTHING,
        reason: ONE_AHEAD,
    },
    Equivalent {
        family: "linear_skinny_*_128x128",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: NOWHERE,
        then: ANYTHING,
        reason: ONE_AHEAD,
    },
    Equivalent {
        family: "linear_skinny_*_128x128",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: (
            "dsl/src/barrier.rs",
            "while !unsafe { ptx::mbarrier_try_wait_parity(self.0.get(), parity) } {}",
        ),
        then: ANYTHING,
        reason: ONE_AHEAD,
    },
    Equivalent {
        family: "linear_skinny_*_16x64",
        kinds: &[Kind::Wait],
        statement: "mbarrier.try_wait",
        source: ("dsl/src/ptx/mbarrier.rs", "instruction!("),
        then: ANYTHING,
        reason: ONE_AHEAD,
    },
    Equivalent {
        family: "linear_skinny_*_16x64",
        kinds: &[Kind::Expect, Kind::Arrive],
        statement: "mbarrier.arrive.expect_tx",
        source: (
            "dsl/src/ptx/mbarrier.rs",
            r#"instruction!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{0}], {1};", in(reg32) barrier, in(reg32) bytes, options(nostack))"#,
        ),
        then: ANYTHING,
        reason: ONE_AHEAD,
    },
    Equivalent {
        family: "linear_skinny_*_16x64",
        kinds: &[Kind::Swizzle, Kind::Bound, Kind::OffByOne],
        statement: "",
        source: ("dsl/src/pipeline.rs", "if self.stage + 1 == STAGES {"),
        then: ANYTHING,
        reason: ONE_AHEAD,
    },
    Equivalent {
        family: "linear_skinny_*_16x64",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: NOWHERE,
        then: ANYTHING,
        reason: ONE_AHEAD,
    },
    Equivalent {
        family: "linear_skinny_*_16x64",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: (
            "dsl/src/barrier.rs",
            "while !unsafe { ptx::mbarrier_try_wait_parity(self.0.get(), parity) } {}",
        ),
        then: ANYTHING,
        reason: ONE_AHEAD,
    },
    Equivalent {
        family: "linear_skinny_",
        kinds: &[Kind::Wait],
        statement: "mbarrier.try_wait",
        source: ("dsl/src/ptx/mbarrier.rs", "instruction!("),
        then: ANYTHING,
        reason: AHEAD,
    },
    Equivalent {
        family: "linear_skinny_",
        kinds: &[Kind::Swizzle, Kind::Bound, Kind::OffByOne],
        statement: "",
        source: ("dsl/src/pipeline.rs", "if self.stage + 1 == STAGES {"),
        then: ANYTHING,
        reason: AHEAD,
    },
    Equivalent {
        family: "linear_skinny_",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: (
            "dsl/src/barrier.rs",
            "while !unsafe { ptx::mbarrier_try_wait_parity(self.0.get(), parity) } {}",
        ),
        then: ANYTHING,
        reason: ONE_MORE,
    },
    Equivalent {
        family: "linear_skinny_",
        kinds: BOUNDS,
        statement: "setp.",
        source: ("dsl/src/gemm/split_k.rs", "if index + ahead < share.steps {"),
        then: ANYTHING,
        reason: ONE_MORE,
    },
    Equivalent {
        family: "linear_skinny_*_16x64_split",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "ld.global.nc",
        reason: "a block has one fragment of the tile at most: its staging buffer is not written again",
    },
];
