//! Why mutants that nothing finds do what the kernel does: a reason for each, where there is no proof by machine.

use super::mutate::{Kind, Mutant};
use super::ptx::Entry;

/// Mutants that do what the kernel does.
struct Equivalent {
    /// What the entry's name begins with, and behind an asterisk what else it has.
    family: &'static str,
    /// The kinds of mutation.
    kinds: &'static [Kind],
    /// What the statement begins with.
    statement: &'static str,
    /// What the Rust source file ends with, and the text of the line that the statement, or a branch that it decides,
    /// comes from.
    source: (&'static str, &'static str),
    /// What the next statement that accesses memory or synchronises begins with; anything if empty.
    then: &'static str,
    /// Why it does not matter.
    reason: &'static str,
}

impl Equivalent {
    fn is_of(&self, entry: &str) -> bool {
        let (start, part) = self.family.split_once('*').unwrap_or((self.family, ""));
        entry.starts_with(start) && entry.contains(part)
    }
}

const ANYTHING: &str = "";
const BOUNDS: &[Kind] = &[Kind::Bound, Kind::OffByOne];

/// Statements that come from no line.
const NOWHERE: (&str, &str) = ("", "");
const BAR_WARP_SYNC: (&str, &str) = (
    "dsl/src/ptx/sync.rs",
    r#"unsafe { instruction!("bar.warp.sync {};", in(reg32) mask, options(nostack)) }"#,
);
const NEXT_TILE: &str = "the last barrier of a tile, after its staging buffer was read: before the next tile's writes to that \
                         buffer stand its products, whose `.sync.aligned` instructions no lane passes alone";

const NO_STORES: &str = "a launch stores all its tiles in one way: where they are stored row by row, the copy engine has nothing to read";
const ONE_AHEAD: &str = "the ring of W is one stage deeper than that of X: the loop that fetches W ahead, two steps at a time, never runs";
const AHEAD: &str = "before the first product all stages are free, and fewer steps of W are fetched ahead than its ring has stages: there \
                    is nothing to wait for, and the ring does not come round";
const ONE_MORE: &str = "a step of W behind the last is fetched too, to a stage that is free, and nothing reads it; it arrives while the \
                       products are awaited that end the block";
const NO_STEPS: &str = "a sum of no steps, which the caller rules out: K is at least 1";
const BY_ROWS: &str = "another copy of a tile's code is taken, which stores row by row what the copy engine could store, or asks again: \
                       slower, and the same result";

const EQUIVALENTS: &[Equivalent] = &[
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.eq.b64",
        source: ("dsl/src/layout.rs", "let group = block / per_group;"),
        then: ANYTHING,
        reason: "the test for a division by zero, which traps: Y has a column if the grid has a block",
    },
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: ("dsl/src/layout.rs", "TileIndex { m: first + within % height, n: within / height }"),
        then: ANYTHING,
        reason: "the test for a division by zero, which traps: the grid has no group without a row of tiles",
    },
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.lt.u32",
        source: ("dsl/src/gemm/mma_sync.rs", "if index < slots {"),
        then: ANYTHING,
        reason: "a slot after the last is filled too, with zeros, since K ends before it: no product reads it, and its copies \
                 have been waited for, or it lies beyond the staging buffer",
    },
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.ge.u32",
        source: ("dsl/src/gemm/mma_sync.rs", "if index < slots {"),
        then: ANYTHING,
        reason: "a slot after the last is filled too, with zeros, since K ends before it: no product reads it, and its copies \
                 have been waited for, or it lies beyond the staging buffer",
    },
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.ne.b64",
        source: ("dsl/src/tile.rs", "if vector_aligned && column + 4 <= self.columns {"),
        then: ANYTHING,
        reason: "four elements are stored one by one instead of together: slower, and the same result",
    },
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.gt.u32",
        source: ("dsl/src/tile.rs", "if vector_aligned && column + 4 <= self.columns {"),
        then: ANYTHING,
        reason: "four elements are stored one by one instead of together: slower, and the same result",
    },
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.",
        source: ("dsl/src/epilogue/linear.rs", "if N == 4 && aligned && self.is_inside::<N>(at) {"),
        then: ANYTHING,
        reason: "four elements of the residual are read one by one instead of together: slower, and the same result",
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
        source: (
            "kernels-gpu/src/linear_hopper.rs",
            "if !S::STORES_ROWS || p.has_boxes != 0 && epilogue.fits_registers() {",
        ),
        then: ANYTHING,
        reason: BY_ROWS,
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: BOUNDS,
        statement: "setp.",
        source: (
            "dsl/src/epilogue/linear.rs",
            "if self.params.activation == Activation::RELU { 0.0 } else { f32::NEG_INFINITY }",
        ),
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
        source: ("dsl/src/gemm/wgmma_f32.rs", "while strip < count {"),
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
            "if self.next >= self.groups_m * self.tiles_n * self.matrices {",
        ),
        then: ANYTHING,
        reason: NO_STEPS,
    },
    Equivalent {
        family: "linear_hopper_f32_",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: ("dsl/src/gemm/wgmma_f32.rs", "if strip == ptx::opaque(candidate) {"),
        then: ANYTHING,
        reason: "the first strip is staged for every strip, and what the strip has itself is staged over it",
    },
    Equivalent {
        family: "linear_hopper_f32_",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: ("dsl/src/gemm/wgmma_f32.rs", "while pass < passes {"),
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
        family: "linear_fp8_hopper_",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: ("dsl/src/gemm/wgmma.rs", "Self::warpgroup() == 0"),
        then: ANYTHING,
        reason: NO_STEPS,
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
    Equivalent {
        family: "linear_fp8_hopper_bf16_128x192",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "st.shared",
        reason: "a tile of three boxes is waited for at its end: the buffers of the next one's first two are free",
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: &[Kind::OffByOne],
        statement: "setp.ne.b32",
        source: ("dsl/src/gemm/fragments.rs", "if at.lane == 0 {"),
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
            "dsl/src/epilogue/linear.rs",
            "let is_floor = p.activation == Activation::NONE || p.activation == Activation::RELU;",
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
            "staging: SharedAddress::dynamic().offset(Self::STAGING_AT + warp * STAGING_BYTES),",
        ),
        then: ANYTHING,
        reason: "lane 1 of each warp starts the stores and waits for them instead of lane 0",
    },
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.eq.b32",
        source: ("dsl/src/gemm/fragments.rs", "if strip == ptx::opaque(candidate) {"),
        then: ANYTHING,
        reason: "the first strip is staged for every strip, and what the strip has itself is staged over it",
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
            "dsl/src/epilogue.rs",
            "unsafe { T::load_read_only_if(self.vector.offset(column as u64), column < self.columns).to_f32() }",
        ),
        then: ANYTHING,
        reason: "it leaves out the last column of Y, in a tile beyond it: what is read here is used only in tiles that lie within \
                 Y and end before",
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: BOUNDS,
        statement: "setp.le.u32",
        source: ("dsl/src/gemm/wgmma.rs", "(tile.m + 1) * Self::BLOCK_M <= output.rows"),
        then: ANYTHING,
        reason: "a tile within Y is stored as one at its edge: slower, and the same result",
    },
    Equivalent {
        family: "linear_*hopper",
        kinds: BOUNDS,
        statement: "setp.eq.b64",
        source: ("dsl/src/gemm/wgmma.rs", "(tile.m + 1) * Self::BLOCK_M <= output.rows"),
        then: ANYTHING,
        reason: "a tile within Y is stored as one at its edge: slower, and the same result",
    },
    Equivalent {
        family: "linear_",
        kinds: BOUNDS,
        statement: "setp.",
        source: ("dsl/src/gemm/fragments.rs", "while row < rows {"),
        then: ANYTHING,
        reason: "the test before the first pass: a lane's first row is at most 3, of 16",
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

/// The reason for a mutant, if there is one.
pub(crate) fn reason(entry: &Entry, mutant: &Mutant) -> Option<String> {
    let statement = entry.statement_text(mutant.statement);
    let sources: Vec<_> =
        decided(entry, mutant.statement).into_iter().filter_map(|at| entry.source(at)).collect();
    let next = next_effect(entry, mutant.statement);
    let known = EQUIVALENTS.iter().find(|known| {
        known.is_of(&entry.name)
            && known.kinds.contains(&mutant.kind)
            && statement.starts_with(known.statement)
            && next.starts_with(known.then)
            && match known.source {
                NOWHERE => sources.iter().all(|&(file, line)| source_line(file, line).is_none()),
                (in_file, text) => sources.iter().any(|&(file, line)| {
                    file.ends_with(in_file) && source_line(file, line).is_some_and(|found| found == text)
                }),
            }
    })?;
    Some(known.reason.to_owned())
}

/// The opcode of the next statement in the text that accesses memory or synchronises.
fn next_effect(entry: &Entry, after: usize) -> &str {
    const SYNCHRONISES: [&str; 7] = ["mbarrier", "bar", "barrier", "fence", "wgmma", "ret", "exit"];
    let next = entry.statements[after + 1..]
        .iter()
        .find(|statement| statement.accesses_memory() || SYNCHRONISES.iter().any(|name| statement.is(name)));
    next.map_or("", |statement| statement.opcode.as_str())
}

/// A line of one of this repository's files, without the space around it.
fn source_line(file: &str, line: u32) -> Option<String> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    let text = std::fs::read_to_string(root.join(file)).ok()?;
    Some(text.lines().nth(line.checked_sub(1)? as usize)?.trim().to_owned())
}

/// The lines of source that a mutant's statement, and what it decides, come from: what a reason can be found by.
#[must_use]
pub fn sources(entry: &Entry, mutant: &Mutant) -> Vec<String> {
    let lines = decided(entry, mutant.statement).into_iter().filter_map(|at| entry.source(at));
    let mut sources: Vec<_> = lines
        .filter_map(|(file, line)| Some(format!("{file}:{line}: {}", source_line(file, line)?)))
        .collect();
    sources.dedup();
    sources
}

/// The statements whose execution a statement's result decides, and the statement itself.
fn decided(entry: &Entry, statement: usize) -> Vec<usize> {
    const PASSES_ON: [&str; 6] = ["and", "or", "xor", "not", "mov", "selp"];
    let result = |at: usize| entry.statements[at].operands.first().cloned().unwrap_or_default();
    let mut names = vec![result(statement)];
    let mut decided = vec![statement];
    let mut next = 0;
    while let Some(name) = names.get(next).cloned() {
        next += 1;
        for (at, user) in entry.statements.iter().enumerate() {
            if user.guard.as_ref().is_some_and(|(predicate, _)| *predicate == name) && !decided.contains(&at)
            {
                decided.push(at);
            }
            let passes_on = PASSES_ON.iter().any(|opcode| user.is(opcode));
            if passes_on && user.operands.iter().skip(1).any(|operand| *operand == name) {
                let to = result(at);
                if !names.contains(&to) {
                    names.push(to);
                }
            }
        }
    }
    decided
}
