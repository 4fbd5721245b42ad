//! The mutants of an entry: what can be wrong with each of its statements.
//!
//! Everything here works on the text, so that a new kernel has its mutants without a word about it. What is mutated:
//!
//! | | mutations |
//! |---|---|
//! | a wait for copies or products | left out; one group fewer waited for; for an mbarrier: passed at once |
//! | a wait for the grids before | lets those behind start instead (to leave that out changes no result, only when they start) |
//! | a fence, a barrier | left out; for a barrier of some threads: of one warp fewer |
//! | a commit, an arrival, an mbarrier's initialisation | left out; for the last: one arrival more |
//! | an expected number of bytes | left out; 16 more; 16 fewer |
//! | a comparison that decides an access, or how many bytes a copy reads | such that the access is always made; off by one, either way |
//! | the number of bytes that a copy reads | left out, so that it reads all |
//! | an exclusive or, which makes swizzled addresses | left out; with a constant: of another chunk |

use std::fmt;

use super::bounds::{Bounds, copied_bytes};
use super::ptx::{Entry, Statement};

/// The kinds of mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A wait is left out, or passes at once.
    Wait,
    /// A wait leaves one group more open.
    WaitFewer,
    /// A fence is left out.
    Fence,
    /// A barrier is left out, or one warp is not waited for.
    Barrier,
    /// Bytes are not expected, or another number of them.
    Expect,
    /// A group is not committed.
    Commit,
    /// An arrival is left out, or an mbarrier is initialised otherwise.
    Arrive,
    /// An access is made whatever its bound says.
    Bound,
    /// A bound is off by one.
    OffByOne,
    /// A copy reads all its bytes.
    Size,
    /// A swizzle goes wrong.
    Swizzle,
}

/// An entry with one thing wrong.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// What is wrong.
    pub kind: Kind,
    /// The index of the statement.
    pub(crate) statement: usize,
    /// What stands in its place.
    pub(crate) replacement: String,
    /// What the statement did, and what it does now, for people.
    pub description: String,
    /// For a comparison: the pairs of values of which one has to be equal for it to matter; none if that is not known.
    pub(crate) differs_if: Vec<[Value; 2]>,
}

/// An operand, or one more than it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) operand: String,
    pub(crate) plus: u64,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.operand)?;
        if self.plus != 0 { write!(f, " + {}", self.plus) } else { Ok(()) }
    }
}

/// All mutants of an entry, in the order of its text.
#[must_use]
pub fn mutants(entry: &Entry) -> Vec<Mutant> {
    let bounds = Bounds::of(entry);
    let mut list = List { entry, mutants: Vec::new() };
    for at in 0..entry.statements.len() {
        list.synchronisation(at);
        list.bounds(at, &bounds);
        list.swizzle(at);
    }
    list.mutants
}

struct List<'e> {
    entry: &'e Entry,
    mutants: Vec<Mutant>,
}

impl List<'_> {
    fn push(&mut self, kind: Kind, statement: usize, replacement: String, differs_if: Vec<[Value; 2]>) {
        let before = self.entry.statement_text(statement);
        let before = before.trim_end_matches(';');
        let after = replacement.split_whitespace().collect::<Vec<_>>().join(" ");
        let after = after.trim_end_matches([';', ' ', '}']);
        let description = match after {
            "" => format!("`{before}` left out"),
            _ if after.ends_with(", 0, 0") && after.contains("setp.eq.u32") => {
                format!("`{before}` always true")
            }
            _ if after.ends_with(", 0, 0") && after.contains("setp.ne.u32") => {
                format!("`{before}` always false")
            }
            // The rest of what a changed operand is computed by is of no interest.
            _ => match after.split_once("%mutant, ").and_then(|(_, rest)| rest.split_once(';')) {
                Some((sum, _)) => format!("`{before}` with {}", sum.replacen(", ", " + ", 1)),
                None => format!("`{before}` as `{after}`"),
            },
        };
        self.mutants.push(Mutant { kind, statement, replacement, description, differs_if });
    }

    fn remove(&mut self, kind: Kind, statement: usize) {
        self.push(kind, statement, String::new(), Vec::new());
    }

    /// The same statement with another opcode and other operands.
    fn replace(&mut self, kind: Kind, at: usize, opcode: &str, operands: &[String]) {
        let replacement = rebuilt(&self.entry.statements[at], opcode, operands);
        self.push(kind, at, replacement, Vec::new());
    }

    fn synchronisation(&mut self, at: usize) {
        let statement = &self.entry.statements[at];
        let (opcode, operands) = (statement.opcode.clone(), statement.operands.clone());
        let last = operands.last().cloned().unwrap_or_default();
        if statement.has("wait_group") {
            self.remove(Kind::Wait, at);
            if let Ok(groups) = last.parse::<u32>() {
                self.replace(Kind::WaitFewer, at, &opcode, &[(groups + 1).to_string()]);
            }
            if statement.is("cp.async.bulk") && !statement.has("read") {
                let read = opcode.replace("wait_group", "wait_group.read");
                self.replace(Kind::WaitFewer, at, &read, &operands);
            }
        } else if statement.has("wait_all") {
            self.remove(Kind::Wait, at);
        } else if statement.is("griddepcontrol.wait") {
            // Left out, it might leave a kernel that does not look as if it could start before others have ended.
            self.replace(Kind::Wait, at, "griddepcontrol.launch_dependents", &[]);
        } else if statement.is("mbarrier.try_wait") || statement.is("mbarrier.test_wait") {
            let arrived = operands.first().cloned().unwrap_or_default();
            let passed = rebuilt(statement, "setp.eq.u32", &[arrived, "0".into(), "0".into()]);
            self.push(Kind::Wait, at, passed, Vec::new());
        } else if statement.is("mbarrier.init") {
            self.remove(Kind::Arrive, at);
            if let (Ok(count), [barrier, _]) = (last.parse::<u32>(), operands.as_slice()) {
                self.replace(Kind::Arrive, at, &opcode, &[barrier.clone(), (count + 1).to_string()]);
            }
        } else if statement.is("fence") || statement.is("membar") || statement.is("wgmma.fence") {
            self.remove(Kind::Fence, at);
        } else if statement.has("commit_group") || statement.is("tcgen05.commit") {
            self.remove(Kind::Commit, at);
        } else if statement.has("expect_tx") || statement.is("mbarrier.expect_tx") {
            self.expected_bytes(at);
        } else if statement.is("mbarrier.arrive")
            || statement.is("mbarrier.arrive_drop")
            || statement.is("cp.async.mbarrier.arrive")
        {
            self.remove(Kind::Arrive, at);
        } else if statement.is("bar") || statement.is("barrier") {
            self.remove(Kind::Barrier, at);
            let of_some =
                !statement.is("bar.warp") && !statement.is("barrier.cluster") && operands.len() == 2;
            if let (true, Ok(threads)) = (of_some, last.parse::<u32>())
                && threads > 32
            {
                let fewer = [operands[0].clone(), (threads - 32).to_string()];
                self.replace(Kind::Barrier, at, &opcode, &fewer);
            }
        }
    }

    /// `mbarrier.expect_tx` and `mbarrier.arrive.expect_tx`, whose last operand is the number of bytes.
    fn expected_bytes(&mut self, at: usize) {
        let statement = &self.entry.statements[at];
        let Some((bytes, others)) = statement.operands.split_last() else { return };
        let (bytes, others) = (bytes.clone(), others.to_vec());
        let opcode = statement.opcode.clone();
        if statement.is("mbarrier.expect_tx") {
            self.remove(Kind::Expect, at);
        } else {
            self.replace(Kind::Expect, at, &opcode.replace(".expect_tx", ""), &others);
            self.remove(Kind::Arrive, at);
        }
        for change in ["16", "-16"] {
            let statement = &self.entry.statements[at];
            let changed = [others.clone(), vec!["%mutant".to_owned()]].concat();
            let replacement = format!(
                "{{ .reg .b32 %mutant; add.s32 %mutant, {bytes}, {change}; {} }}",
                rebuilt(statement, &opcode, &changed)
            );
            self.push(Kind::Expect, at, replacement, Vec::new());
        }
    }

    fn bounds(&mut self, at: usize, bounds: &Bounds) {
        let entry = self.entry;
        let statement = &entry.statements[at];
        if copied_bytes(statement).is_some() {
            let (opcode, operands) = (statement.opcode.clone(), statement.operands[..3].to_vec());
            self.replace(Kind::Size, at, &opcode, &operands);
        }
        if !statement.is("setp") {
            return;
        }
        let [to, a, b, ..] = statement.operands.as_slice() else { return };
        let (to, a, b) = (to.clone(), a.clone(), b.clone());
        let guard = bounds.of_predicate(&to);
        for (forces, name) in [(guard.when_true, "eq"), (guard.when_false, "ne")] {
            if forces {
                // A test for equality that is never met may as well be a constant.
                let opposite = if name == "eq" { "ne" } else { "eq" };
                let pairs = if statement.has(opposite) { vec![[plain(&a), plain(&b)]] } else { Vec::new() };
                let constant =
                    rebuilt(statement, &format!("setp.{name}.u32"), &[to.clone(), "0".into(), "0".into()]);
                self.push(Kind::Bound, at, constant, pairs);
            }
        }
        if guard.when_true || guard.when_false {
            self.off_by_one(at, &a, &b);
        }
    }

    fn swizzle(&mut self, at: usize) {
        let statement = &self.entry.statements[at];
        let [to, a, b] = statement.operands.clone().try_into().unwrap_or_default();
        if !statement.is("xor") || !statement.has("b32") {
            return;
        }
        match b.parse::<u32>() {
            Ok(bits) => {
                let opcode = statement.opcode.clone();
                self.replace(Kind::Swizzle, at, &opcode, &[to, a, (bits ^ 16).to_string()]);
            }
            Err(_) => self.replace(Kind::Swizzle, at, "mov.b32", &[to, a]),
        }
    }

    fn off_by_one(&mut self, at: usize, a: &str, b: &str) {
        let statement = self.entry.statements[at].clone();
        let modifiers: Vec<_> = statement.opcode.split('.').collect();
        let (Some(&comparison), Some(&ty)) = (modifiers.get(1), modifiers.last()) else { return };
        let width = match ty.get(1..) {
            Some(width @ ("16" | "32" | "64")) if !ty.starts_with('f') => width,
            _ => return,
        };
        let swapped = match comparison {
            "lt" => "le",
            "le" => "lt",
            "gt" => "ge",
            "ge" => "gt",
            "lo" => "ls",
            "ls" => "lo",
            "hi" => "hs",
            "hs" => "hi",
            _ => "",
        };
        if !swapped.is_empty() {
            let opcode = statement.opcode.replacen(&format!(".{comparison}."), &format!(".{swapped}."), 1);
            let replacement = rebuilt(&statement, &opcode, &statement.operands);
            self.push(Kind::OffByOne, at, replacement, vec![[plain(a), plain(b)]]);
        }
        // The other way, or the only one for a test of equality: one more on one side, which unlike one fewer has no
        // zero to wrap around at.
        let (changed, kept, differs_if) = match comparison {
            "lt" | "lo" | "ge" | "hs" => (1, 2, vec![[one_more(a), plain(b)]]),
            "gt" | "hi" | "le" | "ls" => (2, 1, vec![[plain(a), one_more(b)]]),
            "eq" | "ne" => (2, 1, vec![[plain(a), plain(b)], [plain(a), one_more(b)]]),
            _ => return,
        };
        let mut operands = statement.operands.clone();
        let add = format!("add.u{width} %mutant, {}, 1;", operands[changed]);
        // `add` takes no two constants, and there is none to spare for.
        if statement.operands[kept].parse::<i64>().is_ok() && operands[changed].parse::<i64>().is_ok() {
            return;
        }
        let replacement = match operands[changed].parse::<i64>() {
            Ok(number) => {
                operands[changed] = (number + 1).to_string();
                rebuilt(&statement, &statement.opcode, &operands)
            }
            Err(_) => {
                operands[changed] = "%mutant".to_owned();
                let compare = rebuilt(&statement, &statement.opcode, &operands);
                format!("{{ .reg .b{width} %mutant; {add} {compare} }}")
            }
        };
        self.push(Kind::OffByOne, at, replacement, differs_if);
    }
}

fn plain(operand: &str) -> Value {
    Value { operand: operand.to_owned(), plus: 0 }
}

fn one_more(operand: &str) -> Value {
    Value { operand: operand.to_owned(), plus: 1 }
}

/// A statement with the guard of `statement`.
fn rebuilt(statement: &Statement, opcode: &str, operands: &[String]) -> String {
    let guard = match &statement.guard {
        Some((predicate, negated)) => format!("@{}{predicate} ", if *negated { "!" } else { "" }),
        None => String::new(),
    };
    let space = if operands.is_empty() { "" } else { " " };
    format!("{guard}{opcode}{space}{};", operands.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::ptx::entries;
    use super::*;

    fn described(body: &str) -> Vec<(Kind, String)> {
        let entry = &entries(&format!(".visible .entry e()\n{{\n{body}\n}}\n"))[0];
        mutants(entry).into_iter().map(|mutant| (mutant.kind, mutant.description)).collect()
    }

    #[test]
    fn waits_are_left_out_and_weakened() {
        assert_eq!(
            described("cp.async.wait_group 2;\ncp.async.bulk.wait_group 0;"),
            [
                (Kind::Wait, "`cp.async.wait_group 2` left out".to_owned()),
                (Kind::WaitFewer, "`cp.async.wait_group 2` as `cp.async.wait_group 3`".to_owned()),
                (Kind::Wait, "`cp.async.bulk.wait_group 0` left out".to_owned()),
                (Kind::WaitFewer, "`cp.async.bulk.wait_group 0` as `cp.async.bulk.wait_group 1`".to_owned()),
                (
                    Kind::WaitFewer,
                    "`cp.async.bulk.wait_group 0` as `cp.async.bulk.wait_group.read 0`".to_owned()
                ),
            ]
        );
    }

    #[test]
    fn a_wait_for_other_grids_is_left_out_of_a_kernel_that_still_depends_on_them() {
        let found =
            described("@%p1 griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\ngriddepcontrol.wait;");
        let as_launch = |guard: &str| {
            let [from, to] =
                ["wait", "launch_dependents"].map(|what| format!("{guard}griddepcontrol.{what}"));
            (Kind::Wait, format!("`{from}` as `{to}`"))
        };
        assert_eq!(found, [as_launch("@%p1 "), as_launch("")]);
    }

    #[test]
    fn barriers_in_memory_are_passed_and_expect_other_bytes() {
        let found = described(
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%r1], %r2;\n\
             mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 4096;",
        );
        assert_eq!(found[0].1, "`mbarrier.try_wait.parity.shared::cta.b64 p, [%r1], %r2` always true");
        assert_eq!(found.iter().filter(|(kind, _)| *kind == Kind::Expect).count(), 3);
        assert_eq!(found.iter().filter(|(kind, _)| *kind == Kind::Arrive).count(), 1);
    }

    #[test]
    fn only_comparisons_that_decide_an_access_are_mutated() {
        let found = described(
            "setp.lt.u32 %p1, %r1, %r2;\n\
             @!%p1 bra A;\n\
             ld.global.b32 %r3, [%rd1];\n\
             A:\n\
             setp.eq.s32 %p2, %r3, 0;\n\
             selp.b32 %r4, 1, 2, %p2;\n\
             ret;",
        );
        let descriptions: Vec<_> = found.iter().map(|(_, description)| description.as_str()).collect();
        assert_eq!(
            descriptions,
            [
                "`setp.lt.u32 %p1, %r1, %r2` always true",
                "`setp.lt.u32 %p1, %r1, %r2` as `setp.le.u32 %p1, %r1, %r2`",
                "`setp.lt.u32 %p1, %r1, %r2` with %r1 + 1",
            ]
        );
    }

    #[test]
    fn the_size_of_a_copy_and_what_decides_it_are_mutated() {
        let found = described(
            "setp.gt.u32 %p1, %r1, 96;\n\
             selp.b32 %r2, 16, 0, %p1;\n\
             cp.async.cg.shared.global [%r3], [%rd1], 16, %r2;",
        );
        let kinds: Vec<_> = found.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [Kind::Bound, Kind::OffByOne, Kind::OffByOne, Kind::Size]);
        assert_eq!(
            found[3].1,
            "`cp.async.cg.shared.global [%r3], [%rd1], 16, %r2` as `cp.async.cg.shared.global [%r3], [%rd1], 16`"
        );
    }
}
