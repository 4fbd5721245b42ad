//! Why mutants that nothing finds do what the kernel does: a reason for each, where there is no proof by machine.
//!
//! The reasons stand in tables, one for each kind of kernel; here is how a mutant's is found.

mod elements;
mod expert_cache;
mod generated;
mod hopper;
mod hopper_f32;
mod linear;
mod repack;
mod rows;
mod skinny;
mod topk;

use super::mutate::{Kind, Mutant};
use super::ptx::Entry;

/// Mutants that do what the kernel does.
struct Equivalent {
    /// What the entry's name begins with, and behind an asterisk what else it has.
    family: &'static str,
    /// The kinds of mutation.
    kinds: &'static [Kind],
    /// What the statement begins with, and behind an ellipsis what the mutant's description has after that.
    statement: &'static str,
    /// What the Rust source file ends with, and the text of the line that the statement, or a branch that it decides,
    /// comes from. A wait or a barrier may also be told by the [line after it](line_after): its own is the same wherever it is used.
    source: (&'static str, &'static str),
    /// What the next statements that access memory or synchronise begin with, in the order of the text; anything if empty.
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
const NO_STEPS: &str = "a sum of no steps, which the caller rules out: K is at least 1";

/// Every table, in the order in which they are searched.
const TABLES: [&[Equivalent]; 10] = [
    linear::EQUIVALENTS,
    generated::EQUIVALENTS,
    hopper::EQUIVALENTS,
    skinny::EQUIVALENTS,
    hopper_f32::EQUIVALENTS,
    repack::EQUIVALENTS,
    topk::EQUIVALENTS,
    rows::EQUIVALENTS,
    expert_cache::EQUIVALENTS,
    elements::EQUIVALENTS,
];

/// The reason for a mutant, if there is one.
pub(crate) fn reason(entry: &Entry, mutant: &Mutant) -> Option<String> {
    let at = origin(entry, mutant.statement);
    let statement = entry.statement_text(at);
    let sources: Vec<_> = decided(entry, at)
        .into_iter()
        .filter_map(|at| entry.source(at))
        .chain(line_after(entry, mutant))
        .collect();
    let known = TABLES.into_iter().flatten().find(|known| {
        known.is_of(&entry.name)
            && known.kinds.contains(&mutant.kind)
            && is_described(known.statement, &statement, mutant)
            && is_followed_by(known.then, effects(entry, at))
            && match known.source {
                NOWHERE => sources.iter().all(|&(file, line)| source_line(file, line).is_none()),
                (in_file, text) => sources.iter().any(|&(file, line)| {
                    file.ends_with(in_file) && source_line(file, line).is_some_and(|found| found == text)
                }),
            }
    })?;
    Some(known.reason.to_owned())
}

/// Where the condition of a guarded load comes from: the load's own text tests a number that a comparison has set to 1 or 0, and what is
/// said of the comparison holds for the test. Any other statement is its own.
fn origin(entry: &Entry, at: usize) -> usize {
    let before = |at: usize, name: &str| {
        (0..at).rev().find(|&at| entry.statements[at].operands.first().is_some_and(|result| result == name))
    };
    let guarded = &entry.statements[at];
    let ("setp.ne.u32", [_, number, zero]) = (guarded.opcode.as_str(), &guarded.operands[..]) else {
        return at;
    };
    let Some(selected) = before(at, number).filter(|_| zero == "0") else { return at };
    match &entry.statements[selected] {
        select if select.is("selp") => match &select.operands[..] {
            [_, one, zero, predicate] if one == "1" && zero == "0" => {
                before(selected, predicate).unwrap_or(at)
            }
            _ => at,
        },
        _ => at,
    }
}

/// Whether a statement, and what a mutant makes of it, is what a table has for it.
fn is_described(known: &str, statement: &str, mutant: &Mutant) -> bool {
    let Some((start, change)) = known.split_once('…') else { return statement.starts_with(known) };
    let description = mutant.description.trim_start_matches('`');
    description.strip_prefix(start).is_some_and(|rest| rest.contains(change))
}

/// Whether the opcodes of statements begin with the words of a text.
fn is_followed_by<'e>(words: &str, mut opcodes: impl Iterator<Item = &'e str>) -> bool {
    words
        .split(' ')
        .filter(|word| !word.is_empty())
        .all(|word| opcodes.next().is_some_and(|opcode| opcode.starts_with(word)))
}

/// The source line of the first statement after a wait or a barrier that is not one of the wrappers of single instructions.
fn line_after<'e>(entry: &'e Entry, mutant: &Mutant) -> Option<(&'e str, u32)> {
    matches!(mutant.kind, Kind::Wait | Kind::WaitFewer | Kind::Barrier).then_some(())?;
    (mutant.statement + 1..entry.statements.len())
        .filter_map(|at| entry.source(at))
        .find(|(file, _)| !file.starts_with("dsl/src/ptx/"))
}

/// The opcodes of the statements in the text after one that access memory or synchronise.
fn effects(entry: &Entry, after: usize) -> impl Iterator<Item = &str> {
    const SYNCHRONISES: [&str; 7] = ["mbarrier", "bar", "barrier", "fence", "wgmma", "ret", "exit"];
    entry.statements[after + 1..]
        .iter()
        .filter(|statement| statement.accesses_memory() || SYNCHRONISES.iter().any(|name| statement.is(name)))
        .map(|statement| statement.opcode.as_str())
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

#[cfg(test)]
mod tests {
    use super::super::mutate::{Kind, mutants};
    use super::super::ptx::entries;
    use super::{NOWHERE, TABLES, effects, is_described, is_followed_by, line_after, origin};

    /// The same wait and the same barrier are told apart by what comes after them, and what is made of a comparison by its description.
    #[test]
    fn a_statement_is_told_by_what_follows_it_and_a_mutant_by_its_description() {
        let text = ".version 8.0\n.target sm_90a\n.address_size 64\n.file 1 \"dsl/src/ptx/sync.rs\"\n.file 2 \"dsl/src/rows.rs\"\n\
                    .visible .entry k()\n{\n\
                    .loc 1 57 14\nbar.warp.sync %r1;\nmov.b32 %r2, 0;\n\
                    .loc 2 74 11\nsetp.ne.b64 %p1, %rd1, 2;\n\
                    cp.async.bulk.wait_group.read 0;\nbar.warp.sync %r1;\n@%p1 bra A;\nld.global.b32 %r3, [%rd2];\nA: ret;\n}\n";
        let entries = entries(text);
        let entry = entries.first().expect("there is one");
        let all = mutants(entry);
        let barrier = all.iter().find(|mutant| mutant.kind == Kind::Barrier).expect("there is a barrier");
        assert_eq!(line_after(entry, barrier), Some(("dsl/src/rows.rs", 74)));
        let follows = |words| is_followed_by(words, effects(entry, barrier.statement));
        assert!(["", "bar.warp", "bar.warp ld.global", "bar.warp ld ret"].into_iter().all(follows));
        assert!(!["ld", "bar.warp bar.warp", "bar.warp ld ret ret"].into_iter().any(follows));

        let bounds: Vec<_> = all.iter().filter(|mutant| mutant.kind == Kind::Bound).collect();
        assert!(!bounds.is_empty());
        for bound in bounds {
            assert_eq!(line_after(entry, bound), None);
            let statement = entry.statement_text(bound.statement);
            let described = |known| is_described(known, &statement, bound);
            assert!(described("setp.ne.b64") && described("setp.ne.b64…, 2` always"));
            assert!(
                !described("setp.eq") && !described("setp.ne.b64…, 3`") && !described("setp.eq…, 2` always")
            );
        }
    }

    /// A guarded load's test leads back to the comparison; a test of anything else is its own.
    #[test]
    fn the_test_of_a_guarded_load_is_the_comparison_that_it_was_made_from() {
        let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\n\
                    setp.gt.u32 %p1, %r1, 3;\n\
                    selp.b32 %r2, 1, 0, %p1;\n\
                    { .reg .pred holds; setp.ne.u32 holds, %r2, 0; mov.b32 %r3, 0; @holds ld.global.f32 %r3, [%rd1]; }\n\
                    add.s32 %r4, %r1, 1;\n\
                    setp.ne.u32 %p2, %r4, 0;\n\
                    setp.ne.u32 %p3, %r2, 1;\n\
                    selp.b32 %r5, 7, 0, %p1;\n\
                    setp.ne.u32 %p4, %r5, 0;\n\
                    ret;\n}\n";
        let entries = entries(text);
        let entry = entries.first().expect("there is one");
        let tests: Vec<usize> =
            (0..entry.statements.len()).filter(|&at| entry.statements[at].is("setp")).collect();
        let [comparison, guarded, others @ ..] = &tests[..] else { panic!("{tests:?}") };
        assert_eq!(origin(entry, *guarded), *comparison);
        assert_eq!(origin(entry, *comparison), *comparison);
        assert_eq!(others.len(), 3);
        for &other in others {
            assert_eq!(origin(entry, other), other, "{}", entry.statement_text(other));
        }
    }

    /// Else it stands for nothing, and what it was for is found missing.
    #[test]
    fn every_reason_names_a_line_that_is_there() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace's folder");
        for known in TABLES.into_iter().flatten().filter(|known| known.source != NOWHERE) {
            let (file, text) = known.source;
            let source = std::fs::read_to_string(root.join(file));
            let source = source.unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(source.lines().any(|line| line.trim() == text), "{file} has no line `{text}`");
        }
    }
}
