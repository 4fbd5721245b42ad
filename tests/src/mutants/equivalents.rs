//! Why mutants that nothing finds do what the kernel does: a reason for each, where there is no proof by machine.

use super::mutate::{Kind, Mutant};
use super::ptx::Entry;

/// Mutants that do what the kernel does.
struct Equivalent {
    /// What the entry's name begins with.
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

const ANYTHING: &str = "";
const BOUNDS: &[Kind] = &[Kind::Bound, Kind::OffByOne];

const BAR_WARP_SYNC: (&str, &str) = (
    "dsl/src/ptx/sync.rs",
    r#"unsafe { instruction!("bar.warp.sync {};", in(reg32) mask, options(nostack)) }"#,
);
const NEXT_TILE: &str = "the last barrier of a tile, after its staging buffer was read: before the next tile's writes to that \
                         buffer stand its products, whose `.sync.aligned` instructions no lane passes alone";

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
        family: "linear_hopper_",
        kinds: &[Kind::OffByOne],
        statement: "setp.ne.b32",
        source: ("dsl/src/gemm/wgmma.rs", "if thread::thread_idx_x() == 0 {"),
        then: ANYTHING,
        reason: "thread 1 of the warp makes the barriers and is the producer instead of thread 0",
    },
    Equivalent {
        family: "linear_hopper_",
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
        family: "linear_hopper_",
        kinds: BOUNDS,
        statement: "setp.le.u32",
        source: ("dsl/src/gemm/wgmma.rs", "(tile.m + 1) * Self::BLOCK_M <= output.rows"),
        then: ANYTHING,
        reason: "a tile within Y is stored as one at its edge: slower, and the same result",
    },
    Equivalent {
        family: "linear_hopper_",
        kinds: BOUNDS,
        statement: "setp.eq.b64",
        source: ("dsl/src/gemm/wgmma.rs", "(tile.m + 1) * Self::BLOCK_M <= output.rows"),
        then: ANYTHING,
        reason: "a tile within Y is stored as one at its edge: slower, and the same result",
    },
    Equivalent {
        family: "linear_hopper_",
        kinds: BOUNDS,
        statement: "setp.ge.u32",
        source: ("dsl/src/gemm/wgmma.rs", "while row < rows {"),
        then: ANYTHING,
        reason: "the test before the first pass: a lane's first row is at most 3, of 16",
    },
    Equivalent {
        family: "linear_hopper_",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "ret",
        reason: NEXT_TILE,
    },
    Equivalent {
        family: "linear_hopper_",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "ld.global.nc",
        reason: NEXT_TILE,
    },
    Equivalent {
        family: "linear_hopper_",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "mbarrier.try_wait",
        reason: NEXT_TILE,
    },
    Equivalent {
        family: "linear_hopper_",
        kinds: &[Kind::Barrier],
        statement: "bar.warp.sync",
        source: BAR_WARP_SYNC,
        then: "st.global",
        reason: "behind the last strip of a tile: nothing but stores to global memory stands between it and the barrier at the \
                 end of the tile",
    },
    Equivalent {
        family: "linear_hopper_",
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
        entry.name.starts_with(known.family)
            && known.kinds.contains(&mutant.kind)
            && statement.starts_with(known.statement)
            && next.starts_with(known.then)
            && sources.iter().any(|&(file, line)| {
                file.ends_with(known.source.0)
                    && source_line(file, line).is_some_and(|text| text == known.source.1)
            })
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
