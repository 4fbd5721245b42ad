//! Makes a program smaller while it keeps showing what it shows.

use super::program::{Operand, Program, Statement};

/// The smallest program found that `still` holds for, with at most `tries` questions.
pub(super) fn shrink(program: &Program, tries: usize, mut still: impl FnMut(&Program) -> bool) -> Program {
    let mut best = program.clone();
    let mut left = tries;
    let mut ask = |candidate: &Program| {
        if left == 0 {
            return false;
        }
        left -= 1;
        still(candidate)
    };
    // First by halves, quarters and so on of the outermost statements.
    let mut size = best.statements.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < best.statements.len() {
            let mut candidate = best.clone();
            candidate.statements.drain(at..(at + size).min(best.statements.len()));
            if ask(&candidate) {
                best = candidate;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    // Then one small change after the other, until none is left that keeps it.
    let mut number = 0;
    while let Some(candidate) = changed(&best, number) {
        if ask(&candidate) {
            best = candidate;
        } else {
            number += 1;
        }
    }
    best
}

/// The program with the change of this number; nothing beyond the last one.
fn changed(program: &Program, number: usize) -> Option<Program> {
    let mut left = number;
    let mut changed = program.clone();
    change(&mut changed.statements, &mut left).then_some(changed)
}

/// Makes the change that `left` counts down to, if it is within these statements.
fn change(statements: &mut Vec<Statement>, left: &mut usize) -> bool {
    let mut here = || {
        let now = *left == 0;
        *left = left.wrapping_sub(1);
        now
    };
    for i in 0..statements.len() {
        if here() {
            statements.remove(i);
            return true;
        }
        // A branch or a loop gives way to what it holds.
        let inside = match &statements[i] {
            Statement::Group(_) => None,
            Statement::If { then, otherwise, .. } => Some([then.clone(), otherwise.clone()].concat()),
            Statement::Loop { body, .. } => Some(body.clone()),
        };
        if let Some(inside) = inside
            && here()
        {
            statements.splice(i..=i, inside);
            return true;
        }
        if let Statement::Group(instructions) = &mut statements[i] {
            for instruction in instructions {
                if instruction.guard.is_some() && here() {
                    instruction.guard = None;
                    return true;
                }
                for operand in &mut instruction.operands {
                    if let Operand::Source(register) = operand
                        && register.1 != 0
                        && here()
                    {
                        register.1 = 0;
                        return true;
                    }
                }
            }
        }
    }
    for statement in statements {
        let found = match statement {
            Statement::Group(_) => false,
            Statement::If { then, otherwise, .. } => change(then, left) || change(otherwise, left),
            Statement::Loop { body, .. } => change(body, left),
        };
        if found {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::generate::{Style, program};
    use super::super::scalar::Table;
    use super::*;

    #[test]
    fn what_does_not_matter_is_removed() {
        let table = Table::new();
        let style = Style { statements: 30, products: false };
        let seed = (0..).find(|&seed| program(seed, &table, style).listing().contains("popc")).unwrap();
        let original = program(seed, &table, style);
        let small = shrink(&original, 10_000, |candidate| candidate.listing().contains("popc"));
        assert!(small.len() <= 2 && small.listing().contains("popc"), "{}", small.listing());
        assert!(original.len() > small.len());
    }
}
