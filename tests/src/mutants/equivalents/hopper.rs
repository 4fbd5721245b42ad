//! Reasons for the persistent kernels of Hopper.

use super::{ANYTHING, BAR_WARP_SYNC, BOUNDS, Equivalent, NO_STEPS, NOWHERE};
use crate::mutants::mutate::Kind;

const NEXT_TILE: &str = "the last barrier of a tile, after its staging buffer was read: before the next tile's writes to that \
                         buffer stand its products, whose `.sync.aligned` instructions no lane passes alone";
const NO_STORES: &str = "a launch stores all its tiles in one way: where they are stored row by row, the copy engine has nothing to read";
const BY_ROWS: &str = "another copy of a tile's code is taken, which stores row by row what the copy engine could store, or asks again: \
                       slower, and the same result";

pub(super) const EQUIVALENTS: &[Equivalent] = &[
    Equivalent {
        family: "linear_*hopper",
        kinds: &[Kind::Wait, Kind::WaitFewer],
        statement: "cp.async.bulk.wait_group.read 0",
        source: (
            "dsl/src/ptx/tma.rs",
            r#"unsafe { instruction!("cp.async.bulk.wait_group.read {};", const PENDING, options(nostack)) }"#,
        ),
        then: "bar.warp",
        reason: NO_STORES,
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: BOUNDS,
        statement: "setp.",
        source: ("kernels-gpu/src/linear_hopper.rs", "let mut consumer = S::consumer();"),
        then: ANYTHING,
        reason: BY_ROWS,
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: BOUNDS,
        statement: "setp.",
        source: ("kernels-gpu/src/linear_hopper.rs", "if !S::STORES_ROWS || p.has_boxes != 0 {"),
        then: ANYTHING,
        reason: BY_ROWS,
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "bar.warp",
        reason: NO_STORES,
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
        family: "linear_fp8_hopper_bf16_128x192",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "st.shared",
        reason: "a tile of three boxes is waited for at its end: the buffers of the next one's first two are free",
    },
    Equivalent {
        family: "linear_hopper_*_128x160",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "stmatrix",
        reason: "a tile of three boxes is waited for at its end: the buffers of the next one's first two are free",
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
        kinds: BOUNDS,
        statement: "setp.",
        source: (
            "kernels-gpu/src/linear_fp8_hopper.rs",
            "while let Some(tile) = S::next_tile(&mut consumer, &mut tiles, steps) {",
        ),
        then: ANYTHING,
        reason: BY_ROWS,
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: BOUNDS,
        statement: "setp.",
        source: (
            "kernels-gpu/src/linear_fp8_hopper.rs",
            "if p.has_boxes != 0 && epilogue.fits_registers_scaled() {",
        ),
        then: ANYTHING,
        reason: BY_ROWS,
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
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "ret",
        reason: NEXT_TILE,
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "ld.global.nc",
        reason: NEXT_TILE,
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "mbarrier.try_wait",
        reason: NEXT_TILE,
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "st.global",
        reason: "behind the last strip of a tile: nothing but stores to global memory stands between it and the barrier at the \
                 end of the tile",
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
