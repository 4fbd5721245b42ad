//! What decides whether a statement is executed: the flow of control through an entry, and what its branches guard.

use std::collections::HashSet;

use super::ptx::Entry;

/// The flow graph of an entry's statements.
pub(crate) struct Flow {
    /// Where each statement may go on; an index beyond the last stands for the end.
    next: Vec<Vec<usize>>,
    /// The first statement after each that is executed on every path from it to the end.
    joins: Vec<usize>,
}

impl Flow {
    pub(crate) fn of(entry: &Entry) -> Self {
        let end = entry.statements.len();
        let next: Vec<Vec<usize>> = entry
            .statements
            .iter()
            .enumerate()
            .map(|(at, statement)| {
                let mut next = Vec::new();
                if !statement.ends_path() {
                    next.push(at + 1);
                }
                if statement.is("bra") || statement.is("brx") {
                    next.extend(entry.targets(at));
                }
                if next.is_empty() {
                    next.push(end);
                }
                next
            })
            .collect();
        let joins = joins(&next);
        Self { next, joins }
    }

    /// The statements that are executed or not as `branch` takes its edge to `to`.
    pub(crate) fn dependent(&self, branch: usize, to: usize) -> HashSet<usize> {
        let end = self.next.len();
        let join = self.joins[branch];
        let mut found = HashSet::new();
        let mut open = vec![to];
        while let Some(at) = open.pop() {
            if at != join && at != end && found.insert(at) {
                open.extend(&self.next[at]);
            }
        }
        found
    }

    /// The statements that may be executed after one.
    pub(crate) fn after(&self, statement: usize) -> HashSet<usize> {
        let mut found = HashSet::new();
        let mut open = self.next[statement].clone();
        while let Some(at) = open.pop() {
            if at != self.next.len() && found.insert(at) {
                open.extend(&self.next[at]);
            }
        }
        found
    }

    /// Where a statement may go on; beyond the last is the end.
    pub(crate) fn next(&self, statement: usize) -> &[usize] {
        self.next.get(statement).map_or(&[], Vec::as_slice)
    }

    /// Where each statement may have come from.
    pub(crate) fn reversed(&self) -> Vec<Vec<usize>> {
        let mut previous = vec![Vec::new(); self.next.len() + 1];
        for (at, successors) in self.next.iter().enumerate() {
            for &to in successors {
                previous[to].push(at);
            }
        }
        previous
    }

    /// Where a branch goes if it is not taken, and where if it is.
    pub(crate) fn edges(&self, branch: usize) -> Option<[usize; 2]> {
        self.next[branch].clone().try_into().ok()
    }
}

/// Immediate post-dominators (Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm", on the reversed graph).
/// A statement from which no path leads to the end, in an endless loop, has the end for one.
fn joins(next: &[Vec<usize>]) -> Vec<usize> {
    let end = next.len();
    let mut previous = vec![Vec::new(); end + 1];
    for (at, successors) in next.iter().enumerate() {
        for &to in successors {
            previous[to].push(at);
        }
    }
    // Numbers in the order in which a walk back from the end is done with the statements.
    let mut order = Vec::with_capacity(end + 1);
    let mut number = vec![usize::MAX; end + 1];
    let mut seen = vec![false; end + 1];
    let mut stack = vec![(end, 0)];
    seen[end] = true;
    while let Some(top) = stack.last_mut() {
        let at = top.0;
        if let Some(&before) = previous[at].get(top.1) {
            top.1 += 1;
            if !seen[before] {
                seen[before] = true;
                stack.push((before, 0));
            }
        } else {
            number[at] = order.len();
            order.push(at);
            stack.pop();
        }
    }
    let mut joins = vec![usize::MAX; end + 1];
    joins[end] = end;
    let mut changed = true;
    while changed {
        changed = false;
        for &at in order.iter().rev().filter(|&&at| at != end) {
            let mut join = usize::MAX;
            for &to in next[at].iter().filter(|&&to| joins[to] != usize::MAX) {
                let (mut a, mut b) = (to, if join == usize::MAX { to } else { join });
                while a != b {
                    while number[a] < number[b] {
                        a = joins[a];
                    }
                    while number[b] < number[a] {
                        b = joins[b];
                    }
                }
                join = a;
            }
            if joins[at] != join {
                joins[at] = join;
                changed = true;
            }
        }
    }
    joins.into_iter().map(|join| if join == usize::MAX { end } else { join }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::ptx::entries;
    use super::*;

    fn flow(body: &str) -> Flow {
        Flow::of(&entries(&format!(".visible .entry e()\n{{\n{body}\n}}\n"))[0])
    }

    #[test]
    fn a_branch_decides_what_it_may_skip() {
        let flow = flow("@%p1 bra A;\nadd.s32 %r1, %r1, 1;\nbra B;\nA:\nsub.s32 %r1, %r1, 1;\nB:\nret;");
        let [otherwise, taken] = flow.edges(0).unwrap();
        assert_eq!(flow.dependent(0, otherwise), HashSet::from([1, 2]));
        assert_eq!(flow.dependent(0, taken), HashSet::from([3]));
        assert_eq!(flow.edges(2), None);
    }

    #[test]
    fn a_loop_depends_on_its_own_branch() {
        let flow = flow("mov.u32 %r1, 0;\nL:\nadd.s32 %r1, %r1, 1;\n@%p1 bra L;\nret;");
        let [otherwise, taken] = flow.edges(2).unwrap();
        assert_eq!(flow.dependent(2, taken), HashSet::from([1, 2]));
        assert!(flow.dependent(2, otherwise).is_empty());
    }

    #[test]
    fn a_loop_without_an_end_is_no_trouble() {
        let flow = flow("@%p1 bra L;\nret;\nL:\nbra L;");
        let [_, taken] = flow.edges(0).unwrap();
        assert_eq!(flow.dependent(0, taken), HashSet::from([2]));
    }
}
