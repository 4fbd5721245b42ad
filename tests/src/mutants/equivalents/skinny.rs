//! Reasons for the kernels that split K over a cluster.

use super::{ANYTHING, BOUNDS, Equivalent};
use crate::mutants::mutate::Kind;

const AHEAD: &str = "before the first product all stages are free, and fewer steps of W are fetched ahead than its ring has stages: there \
                    is nothing to wait for, and the ring does not come round";
const ONE_MORE: &str = "a step of W behind the last is fetched too, to a stage that is free, and nothing reads it; it arrives while the \
                       products are awaited that end the block";

const ROW_BY_ROW: &str = "the rows of a lane are stored one after the other, as with any epilogue, instead of at once: slower, and the \
                          same result";

pub(super) const EQUIVALENTS: &[Equivalent] = &[
    Equivalent {
        family: "linear_skinny_",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: ("dsl/src/epilogue/activation.rs", "match self {"),
        then: ANYTHING,
        reason: ROW_BY_ROW,
    },
    Equivalent {
        family: "linear_skinny_",
        kinds: BOUNDS,
        statement: "setp.eq.b64",
        source: (
            "dsl/src/epilogue/linear.rs",
            "p.residual.is_null() && p.mask.is_null() && p.preactivation.is_null()",
        ),
        then: ANYTHING,
        reason: ROW_BY_ROW,
    },
    Equivalent {
        family: "linear_skinny_",
        kinds: BOUNDS,
        statement: "setp.",
        source: ("dsl/src/gemm/split_k.rs", "Some(simple) if is_whole && epilogue.fits_registers() => {"),
        then: ANYTHING,
        reason: ROW_BY_ROW,
    },
    Equivalent {
        family: "linear_skinny_",
        kinds: BOUNDS,
        statement: "setp.",
        source: ("dsl/src/gemm/split_k/transposed.rs", "while fragment < fragments {"),
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
        source: ("dsl/src/gemm/split_k/transposed.rs", "if warp::lane_id() == 0 {"),
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
        source: ("dsl/src/gemm/split_k/transposed.rs", "if next < share.steps {"),
        then: ANYTHING,
        reason: ONE_MORE,
    },
];
