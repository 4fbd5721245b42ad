//! Which predicates are bounds: those that decide whether memory is accessed, or how much of it.

use std::collections::{HashMap, HashSet};

use super::flow::Flow;
use super::ptx::{Entry, Statement};

/// The predicates and registers of an entry that accesses depend on.
pub(crate) struct Bounds {
    predicates: HashMap<String, Guard>,
    /// Registers that a copy's size or a bound is taken from.
    sizes: HashSet<String>,
}

/// For which values of a predicate accesses are made that are not made for the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) when_true: bool,
    pub(crate) when_false: bool,
}

impl Guard {
    fn when(value: bool) -> Self {
        Self { when_true: value, when_false: !value }
    }

    fn or(self, other: Self) -> Self {
        Self { when_true: self.when_true || other.when_true, when_false: self.when_false || other.when_false }
    }

    fn negated(self) -> Self {
        Self { when_true: self.when_false, when_false: self.when_true }
    }
}

impl Bounds {
    pub(crate) fn of(entry: &Entry) -> Self {
        let mut bounds = Self { predicates: HashMap::new(), sizes: HashSet::new() };
        let flow = Flow::of(entry);
        for (at, statement) in entry.statements.iter().enumerate() {
            bounds.guarded(entry, &flow, at, statement);
        }
        // What a bound is made of is a bound too.
        loop {
            let new = entry.statements.iter().rev().filter(|statement| bounds.derived(statement)).count();
            if new == 0 {
                break;
            }
        }
        bounds
    }

    /// What it means that this predicate is true or false.
    pub(crate) fn of_predicate(&self, name: &str) -> Guard {
        // A comparison may give two predicates, the second the opposite of the first.
        let (first, second) = name.split_once('|').unwrap_or((name, "_"));
        let of = |name: &str| self.predicates.get(name).copied().unwrap_or_default();
        of(first).or(of(second).negated())
    }

    fn guarded(&mut self, entry: &Entry, flow: &Flow, at: usize, statement: &Statement) {
        if let Some(bytes) = copied_bytes(statement) {
            self.size(bytes);
        }
        let Some((predicate, negated)) = &statement.guard else { return };
        if statement.accesses_memory() {
            self.predicate(predicate, Guard::when(!negated));
        }
        if let (true, Some(edges)) = (statement.is("bra"), flow.edges(at)) {
            for (taken, to) in [false, true].into_iter().zip(edges) {
                let accesses = flow.dependent(at, to).iter().any(|&s| entry.statements[s].accesses_memory());
                if accesses {
                    self.predicate(predicate, Guard::when(taken != *negated));
                }
            }
        }
    }

    /// Goes back from a statement's results to its operands; whether that told anything new.
    fn derived(&mut self, statement: &Statement) -> bool {
        let Some((to, from)) = statement.operands.split_first() else { return false };
        let guard = self.of_predicate(to);
        let mut changed = false;
        if guard != Guard::default() {
            if statement.is("setp") {
                for operand in from.iter().take(2) {
                    changed |= self.size(operand);
                }
                if let Some(combined) = from.get(2) {
                    changed |= self.predicate(combined, guard);
                }
            } else if ["and", "or", "mov", "selp"].iter().any(|name| statement.is(name)) {
                for operand in from {
                    changed |= self.predicate(operand, guard);
                }
            } else if statement.is("not") {
                changed |= self.predicate(&from[0], guard.negated());
            } else if statement.is("xor") {
                for operand in from {
                    changed |= self.predicate(operand, Guard { when_true: true, when_false: true });
                }
            }
        }
        if self.sizes.contains(to) && ["mov", "selp", "min", "max"].iter().any(|name| statement.is(name)) {
            match (statement.is("selp"), from) {
                (true, [yes, no, selector]) => {
                    let guard = Guard { when_true: yes != "0", when_false: no != "0" };
                    changed |= self.size(yes) | self.size(no) | self.predicate(selector, guard);
                }
                _ => {
                    for operand in from {
                        changed |= self.size(operand);
                    }
                }
            }
        }
        changed
    }

    fn predicate(&mut self, name: &str, guard: Guard) -> bool {
        let known = self.predicates.entry(name.to_owned()).or_default();
        let before = *known;
        *known = known.or(guard);
        *known != before
    }

    fn size(&mut self, operand: &str) -> bool {
        operand.starts_with('%') && self.sizes.insert(operand.to_owned())
    }
}

/// The operand of an asynchronous copy that says how many bytes it reads; the rest of its destination becomes zeros.
pub(crate) fn copied_bytes(statement: &Statement) -> Option<&str> {
    let copies = statement.is("cp.async.ca") || statement.is("cp.async.cg");
    statement.operands.get(3).filter(|_| copies).map(String::as_str)
}
