//! Proofs that a `wgmma.fence` may be left out: products of one shape, one after the other, need none between them.
//!
//! A fence orders what other instructions did to the registers of a product. Where nothing but products has touched them since the
//! fence before, on every path, there is nothing to order.

use std::collections::HashSet;

use super::flow::Flow;
use super::ptx::{Entry, Statement};

/// Why the fence at `fence` orders nothing that the one before it has not, if that is so.
pub(crate) fn is_repeated(entry: &Entry, flow: &Flow, fence: usize) -> Option<String> {
    // The end is behind the last statement.
    let is = |at: usize, name: &str| entry.statements.get(at).is_some_and(|statement| statement.is(name));
    let is_fence = |at: usize| is(at, "wgmma.fence");
    let is_product = |at: usize| is(at, "wgmma.mma_async");
    let registers: HashSet<&str> = walk(fence, is_fence, |at| flow.next(at))
        .into_iter()
        .filter(|&at| is_product(at))
        .flat_map(|at| multiplied(&entry.statements[at]))
        .collect();
    let previous = flow.reversed();
    let before = walk(fence, is_fence, |at| &previous[at]);
    let touches = |at: &usize| {
        let statement = &entry.statements[*at];
        !is_product(*at) && !is_fence(*at) && self::registers(statement).any(|name| registers.contains(name))
    };
    // The entry's beginning is on a path without a fence.
    let begins = fence == 0 || (before.contains(&0) && !is_fence(0));
    let proven = !registers.is_empty() && !begins && !before.iter().any(touches);
    proven.then(|| {
        "since the fence before it nothing but products of this shape has touched their registers, which needs no fence"
            .to_owned()
    })
}

/// The statements that are reached from one, itself left out unless it is reached again, without going on behind another for which `ends`
/// holds.
fn walk<'n>(
    from: usize,
    ends: impl Fn(usize) -> bool,
    next: impl Fn(usize) -> &'n [usize],
) -> HashSet<usize> {
    let mut found = HashSet::new();
    let mut open = next(from).to_vec();
    while let Some(at) = open.pop() {
        if found.insert(at) && (at == from || !ends(at)) {
            open.extend(next(at));
        }
    }
    found
}

/// The registers of a product: its sums, and a matrix that is no descriptor.
fn multiplied(product: &Statement) -> impl Iterator<Item = &str> {
    let lists = product.operands.iter().filter(|operand| operand.starts_with('{'));
    lists.flat_map(|list| named(list))
}

/// The registers that a statement's operands name.
fn registers(statement: &Statement) -> impl Iterator<Item = &str> {
    statement.operands.iter().flat_map(|operand| named(operand))
}

/// The registers in an operand.
fn named(operand: &str) -> impl Iterator<Item = &str> {
    operand
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '%'))
        .filter(|name| name.starts_with('%') && name.ends_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::super::ptx::entries;
    use super::*;

    /// Whether each fence of a body is proven to be repeated.
    fn proven(body: &str) -> Vec<bool> {
        let entry = &entries(&format!(".visible .entry e()\n{{\n{body}\n}}\n"))[0];
        let flow = Flow::of(entry);
        (0..entry.statements.len())
            .filter(|&at| entry.statements[at].is("wgmma.fence"))
            .map(|at| is_repeated(entry, &flow, at).is_some())
            .collect()
    }

    const PRODUCT: &str = "wgmma.fence.sync.aligned;\nwgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r1, %r2}, %rd1, %rd2;\nadd.s64 %rd1, %rd1, 2;\n";

    #[test]
    fn the_fence_of_a_loop_is_repeated_and_the_first_is_not() {
        let body = format!("{PRODUCT}L:\n{PRODUCT}add.s32 %r9, %r9, 1;\n@%p1 bra L;\nret;");
        assert_eq!(proven(&body), [false, true]);
    }

    #[test]
    fn registers_that_are_touched_between_need_a_fence() {
        assert_eq!(proven(&format!("{PRODUCT}add.f32 %r3, %r2, %r2;\n{PRODUCT}ret;")), [false, false]);
        // In the loop around.
        let around = format!("L:\n{PRODUCT}M:\n{PRODUCT}@%p1 bra M;\nst.global.b32 [%rd3], %r1;\nbra L;");
        assert_eq!(proven(&around), [false, true]);
        let one = format!("{PRODUCT}L:\n{PRODUCT}st.global.b32 [%rd3], %r1;\n@%p1 bra L;\nret;");
        assert_eq!(proven(&one), [false, false]);
    }

    #[test]
    fn a_fence_that_may_be_jumped_over_does_not_count() {
        assert_eq!(proven(&format!("@%p1 bra L;\n{PRODUCT}L:\n{PRODUCT}ret;")), [false, false]);
    }
}
