//! Reasons for the persistent kernels of Hopper.

use super::{ANYTHING, BAR_WARP_SYNC, BOUNDS, Equivalent, NO_STEPS, NOWHERE};
use crate::mutants::mutate::Kind;

const NO_STORES: &str = "a launch stores all its tiles in one way: where they are stored row by row, the copy engine has nothing to read, \
                         and behind each strip of a tile stands a barrier";
const BY_ROWS: &str = "another copy of a tile's code is taken, which stores row by row what the copy engine could store: slower, and the \
                       same result";
const THREE_BOXES: &str = "a tile of three boxes begins with a wait for all stores of the one before: of the two barriers in front of its \
                           first box, and of its second, one is enough";
const FETCHED: &str = "before the update's parts are fetched, to where tiles are stored from, the stores of the tile before are waited for";
const BY_LANES: &str = "lanes store what the copy engine would, or the other way round: the same result";

/// What follows the wait and the barrier with which a tile begins that is stored row by row.
const STRIPS: (&str, &str) = ("dsl/src/gemm/fragments/rows.rs", "while strip < count {");

pub(super) const EQUIVALENTS: &[Equivalent] = &[
    Equivalent {
        family: "linear_update_hopper_",
        kinds: &[Kind::Fence],
        statement: "fence.proxy.async.shared::cta",
        source: (
            "dsl/src/ptx/tma.rs",
            r#"unsafe { instruction!("fence.proxy.async.shared::cta;", options(nostack)) }"#,
        ),
        then: "bar.sync mbarrier cp.async.bulk",
        reason: "where parts of U go, threads have stored boxes, behind which there is a fence, or nothing since the fence before the first parts: \
                 only rows that are stored one by one need this one",
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: &[Kind::Wait, Kind::WaitFewer],
        statement: "cp.async.bulk.wait_group.read 0",
        source: STRIPS,
        then: "bar.warp bar.warp ld.global",
        reason: NO_STORES,
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: STRIPS,
        then: "bar.warp ld.global",
        reason: NO_STORES,
    },
    Equivalent {
        family: "linear_update_hopper_*_cooperative_128x192",
        kinds: &[Kind::Wait, Kind::WaitFewer],
        statement: "cp.async.bulk.wait_group.read 0",
        source: (
            "dsl/src/ptx/tma.rs",
            r#"unsafe { instruction!("cp.async.bulk.wait_group.read {};", const PENDING, options(nostack)) }"#,
        ),
        then: "bar.warp bar.warp stmatrix",
        reason: FETCHED,
    },
    Equivalent {
        family: "linear_update_hopper_*_cooperative_128x192",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "bar.warp stmatrix",
        reason: FETCHED,
    },
    Equivalent {
        family: "linear_fp8_hopper_",
        kinds: &[Kind::Bound],
        statement: "setp.eq.b32…, 0` always true",
        source: (
            "kernels-gpu/src/linear_fp8_hopper.rs",
            "let fits_registers = p.has_boxes != 0 && epilogue.fits_registers_scaled();",
        ),
        then: ANYTHING,
        reason: BY_ROWS,
    },
    Equivalent {
        family: "linear_fp8_hopper_",
        kinds: &[Kind::Bound],
        statement: "setp.ne.b64…, 0` always true",
        source: (
            "kernels-gpu/src/linear_fp8_hopper.rs",
            "let fits_registers = p.has_boxes != 0 && epilogue.fits_registers_scaled();",
        ),
        then: ANYTHING,
        reason: BY_ROWS,
    },
    Equivalent {
        family: "linear_fp8_hopper_",
        kinds: &[Kind::OffByOne],
        statement: "setp.ne.b64…, 1`",
        source: (
            "kernels-gpu/src/linear_fp8_hopper.rs",
            "let fits_registers = p.has_boxes != 0 && epilogue.fits_registers_scaled();",
        ),
        then: ANYTHING,
        reason: BY_ROWS,
    },
    Equivalent {
        family: "linear_hopper_",
        kinds: &[Kind::OffByOne],
        statement: "setp.gt.u64…, 4294967295` as `setp.ge.u64",
        source: ("kernels-gpu/src/hopper.rs", "if !S::STORES_ROWS || p.has_boxes != 0 {"),
        then: ANYTHING,
        reason: "it asks the upper half of a number, of which the lower one is the layouts: they are bits, and not all ones",
    },
    Equivalent {
        family: "linear_hopper_",
        kinds: &[Kind::Bound],
        statement: "setp.ne.b64…, 2` always false",
        source: ("dsl/src/gemm/fragments/boxes.rs", "if let Some(rows) = &output.rows {"),
        then: ANYTHING,
        reason: BY_LANES,
    },
    Equivalent {
        family: "linear_hopper_",
        kinds: &[Kind::Bound],
        statement: "setp.eq.b64…, 2` always false",
        source: ("dsl/src/gemm/fragments/boxes.rs", "if let Some(rows) = &output.rows {"),
        then: ANYTHING,
        reason: BY_LANES,
    },
    Equivalent {
        family: "linear_hopper_",
        kinds: &[Kind::OffByOne],
        statement: "setp.eq.b64…, 3`",
        source: ("dsl/src/gemm/fragments/boxes.rs", "if let Some(rows) = &output.rows {"),
        then: ANYTHING,
        reason: BY_LANES,
    },
    Equivalent {
        family: "linear_hopper_",
        kinds: &[Kind::Commit],
        statement: "cp.async.commit_group",
        source: (
            "dsl/src/ptx/async_copy.rs",
            r#"unsafe { instruction!("cp.async.commit_group;", options(nostack)) }"#,
        ),
        then: ANYTHING,
        reason: "all copies are waited for at once, whatever group they are of",
    },
    Equivalent {
        family: "linear_hopper_*x160",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "bar.warp stmatrix",
        reason: THREE_BOXES,
    },
    Equivalent {
        family: "linear_hopper_*x160",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "stmatrix",
        reason: THREE_BOXES,
    },
    Equivalent {
        family: "linear_fp8_hopper_*16_128x192",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "bar.warp stmatrix",
        reason: THREE_BOXES,
    },
    Equivalent {
        family: "linear_fp8_hopper_*16_128x192",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "stmatrix",
        reason: THREE_BOXES,
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: &[Kind::Bound],
        statement: "setp.eq.b32",
        source: NOWHERE,
        then: ANYTHING,
        reason: NO_STEPS,
    },
    // The compiler has taken the question out of the loop over the tiles.
    Equivalent {
        family: "linear_*hopper",
        kinds: &[Kind::Bound],
        statement: "setp.eq.b32",
        source: (
            "dsl/src/gemm/schedule.rs",
            "if self.next >= self.groups_m * self.groups_n * self.matrices {",
        ),
        then: ANYTHING,
        reason: NO_STEPS,
    },
    Equivalent {
        family: "linear_fp8_hopper_",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: ("dsl/src/gemm/wgmma.rs", "Self::warpgroup() == 0"),
        then: ANYTHING,
        reason: NO_STEPS,
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: &[Kind::OffByOne],
        statement: "setp.ne.b32",
        source: ("dsl/src/gemm/fragments/boxes.rs", "if at.lane == 0 {"),
        then: ANYTHING,
        reason: "lane 1 of each warp starts the stores and waits for them instead of lane 0",
    },
    Equivalent {
        family: "linear_fp8_hopper_",
        kinds: &[Kind::Barrier],
        statement: "bar.sync",
        source: (
            "dsl/src/ptx/sync.rs",
            r#"unsafe { instruction!("bar.sync {}, {};", in(reg32) barrier, in(reg32) threads, options(nostack)) }"#,
        ),
        then: ANYTHING,
        reason: "consumers take turns with the tensor cores: it is faster, and no data depend on it",
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: &[Kind::OffByOne],
        statement: "setp.ne.b32",
        source: (
            "dsl/src/gemm/wgmma.rs",
            "staging: SharedAddress::dynamic().offset(Self::STAGING_AT + warp * Self::STAGING_BYTES),",
        ),
        then: ANYTHING,
        reason: "lane 1 of each warp starts the stores and waits for them instead of lane 0",
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: &[Kind::OffByOne],
        statement: "setp.ne.b32",
        source: ("dsl/src/gemm/wgmma.rs", "if thread::thread_idx_x() == 0 {"),
        then: ANYTHING,
        reason: "thread 1 of the warp makes the barriers and is the producer instead of thread 0",
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: BOUNDS,
        statement: "setp.lt.u32",
        source: (
            "dsl/src/epilogue/mod.rs",
            "unsafe { T::load_read_only_if(self.vector.offset(column as u64), column < self.columns).to_f32() }",
        ),
        then: ANYTHING,
        reason: "it leaves out the last column of Y, in a tile beyond it: what is read here is used only in tiles that lie within \
                 Y and end before",
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: &[Kind::Wait],
        statement: "mbarrier.try_wait",
        source: ("dsl/src/ptx/mbarrier.rs", "instruction!("),
        then: "mbarrier.try_wait",
        reason: "a producer that ends waits for all stages in turn: warps give them back in that order, so that the last of \
                 them, for which it still waits, is given back after this one",
    },
];
