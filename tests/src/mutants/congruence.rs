//! Proofs that two values of an entry are never equal, from the low bits that are the same in every execution.
//!
//! A bound that is off by one matters only where the two sides meet. Where one is always even and the other is 3, they do
//! not, and the mutant is the kernel itself in other words. The analysis knows nothing of the order of statements: what it
//! says of a register holds for whatever any of its definitions gives.

use std::collections::HashMap;

use super::mutate::Value;
use super::ptx::{Entry, Statement};

/// The lowest bits of a value that are always the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LowBits {
    /// How many are known.
    known: u32,
    /// What they are; the others are 0.
    bits: u64,
}

impl LowBits {
    const UNKNOWN: Self = Self { known: 0, bits: 0 };

    fn new(known: u32, bits: u64) -> Self {
        let known = known.min(64);
        Self { known, bits: if known == 64 { bits } else { bits & ((1 << known) - 1) } }
    }

    fn number(value: i64) -> Self {
        Self::new(64, value as u64)
    }

    /// What holds of both.
    fn join(self, other: Self) -> Self {
        Self::new(self.known.min(other.known).min((self.bits ^ other.bits).trailing_zeros()), self.bits)
    }

    /// How many of the lowest bits are known to be 0.
    fn zeros(self) -> u32 {
        self.bits.trailing_zeros().min(self.known)
    }

    fn map(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self::new(self.known.min(other.known), f(self.bits, other.bits))
    }

    fn times(self, other: Self) -> Self {
        let known = self.known.min(other.known).max((self.zeros() + other.zeros()).min(64));
        Self::new(known, self.bits.wrapping_mul(other.bits))
    }

    fn and(self, other: Self) -> Self {
        // Where one has zeros the other does not matter.
        let run = |known: Self, any: Self| {
            let mut bit = any.known.min(known.known);
            while bit < known.known && known.bits >> bit & 1 == 0 {
                bit += 1;
            }
            bit
        };
        Self::new(run(self, other).max(run(other, self)), self.bits & other.bits)
    }
}

/// What is known of each register of an entry.
pub(crate) struct Congruence {
    registers: HashMap<String, LowBits>,
}

impl Congruence {
    pub(crate) fn of(entry: &Entry) -> Self {
        // From "nothing is assigned" on, until no statement adds anything. What is known of a register only shrinks, so
        // it ends.
        let mut found = Self { registers: HashMap::new() };
        let mut changed = true;
        while changed {
            changed = false;
            for statement in &entry.statements {
                changed |= found.step(statement);
            }
        }
        found
    }

    /// A sentence that says why no two of these are ever equal, if that follows and there are any.
    pub(crate) fn never_equal(&self, pairs: &[[Value; 2]]) -> Option<String> {
        let reasons: Option<Vec<_>> = pairs.iter().map(|pair| self.differ(pair)).collect();
        let reasons = reasons.filter(|reasons| !reasons.is_empty())?;
        Some(format!("it matters only where {}", reasons.join(", and where ")))
    }

    fn differ(&self, values: &[Value; 2]) -> Option<String> {
        let [a, b] = values.each_ref().map(|value| {
            self.of_operand(&value.operand)
                .unwrap_or(LowBits::UNKNOWN)
                .map(LowBits::number(value.plus as i64), u64::wrapping_add)
        });
        let known = a.known.min(b.known);
        let bit = (a.bits ^ b.bits).trailing_zeros();
        (bit < known).then(|| {
            let modulus = 1u128 << (bit + 1);
            let (x, y) = (u128::from(a.bits) % modulus, u128::from(b.bits) % modulus);
            format!("{} = {}, which modulo {modulus} are always {x} and {y}", values[0], values[1])
        })
    }

    /// `None` for a register that nothing was assigned to yet.
    fn of_operand(&self, operand: &str) -> Option<LowBits> {
        if let Ok(number) = operand.parse::<i64>() {
            return Some(LowBits::number(number));
        }
        if !operand.starts_with('%') || operand.starts_with("%tid") || operand.starts_with("%cta") {
            return Some(LowBits::UNKNOWN);
        }
        self.registers.get(operand).copied()
    }

    fn step(&mut self, statement: &Statement) -> bool {
        let Some((to, from)) = statement.operands.split_first() else { return false };
        let mut changed = false;
        // What is loaded or taken apart into several registers is not followed.
        if to.starts_with('{') {
            for register in to.trim_matches(['{', '}']).split(',') {
                changed |= self.assign(register.trim(), LowBits::UNKNOWN);
            }
            return changed;
        }
        let Some(result) = self.result(statement, from) else { return false };
        for register in to.split('|') {
            changed |= self.assign(register.trim(), result);
        }
        changed
    }

    fn assign(&mut self, register: &str, value: LowBits) -> bool {
        let known = self.registers.get(register).copied();
        let joined = known.map_or(value, |known| known.join(value));
        self.registers.insert(register.to_owned(), joined);
        known != Some(joined)
    }

    /// What a statement gives; `None` if an operand has no value yet.
    fn result(&self, statement: &Statement, from: &[String]) -> Option<LowBits> {
        let operand = |at: usize| from.get(at).map_or(Some(LowBits::UNKNOWN), |name| self.of_operand(name));
        let width = statement.opcode.rsplit('.').next().and_then(|ty| ty.get(1..)?.parse::<u32>().ok());
        let ty = statement.opcode.rsplit('.').next().unwrap_or_default();
        if ty.starts_with('f') || ty.starts_with("bf") {
            return Some(LowBits::UNKNOWN);
        }
        let amount = || from.get(1).and_then(|shift| shift.parse::<u32>().ok());
        let name = statement.opcode.split('.').next().unwrap_or_default();
        let value = match name {
            "mov" => operand(0)?,
            "cvt" if statement.opcode.matches('.').count() == 2 => {
                // Widening and narrowing both keep the bits that are in both types.
                let source = statement.opcode.rsplit('.').next()?;
                let bits = source.get(1..)?.parse::<u32>().ok()?;
                let known = operand(0)?;
                LowBits::new(known.known.min(bits), known.bits)
            }
            "add" => operand(0)?.map(operand(1)?, u64::wrapping_add),
            "sub" => operand(0)?.map(operand(1)?, u64::wrapping_sub),
            "xor" => operand(0)?.map(operand(1)?, |a, b| a ^ b),
            "or" => operand(0)?.map(operand(1)?, |a, b| a | b),
            "and" => operand(0)?.and(operand(1)?),
            "mul" if statement.has("lo") => operand(0)?.times(operand(1)?),
            "mad" if statement.has("lo") => {
                operand(0)?.times(operand(1)?).map(operand(2)?, u64::wrapping_add)
            }
            "shl" => {
                let value = operand(0)?;
                match amount() {
                    Some(amount) if amount < 64 => {
                        LowBits::new(value.known + amount, value.bits.wrapping_shl(amount))
                    }
                    _ => LowBits::UNKNOWN,
                }
            }
            "min" | "max" => operand(0)?.join(operand(1)?),
            "selp" => operand(0)?.join(operand(1)?),
            _ => LowBits::UNKNOWN,
        };
        let width = width.unwrap_or(0);
        Some(LowBits::new(value.known.min(width), value.bits))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ptx::entries;
    use super::*;

    fn reason(body: &str, a: &str, plus: u64, b: &str) -> Option<String> {
        let entry = &entries(&format!(".visible .entry e()\n{{\n{body}\n}}\n"))[0];
        let value = |operand: &str, plus| Value { operand: operand.to_owned(), plus };
        Congruence::of(entry).never_equal(&[[value(a, plus), value(b, 0)]])
    }

    const EVEN: &str = "\
ld.param.b32 %r1, [p];
shl.b32 %r2, %r1, 1;
mov.u32 %r3, %tid.x;
shl.b32 %r4, %r3, 4;
and.b32 %r5, %r4, 112;
sub.s32 %r6, %r2, %r5;
max.s32 %r7, %r6, 0;
min.s32 %r8, %r7, 16;
selp.b32 %r9, %r8, 0, %p1;";

    #[test]
    fn an_even_value_is_never_three() {
        let expected = "it matters only where %r9 = 3, which modulo 2 are always 0 and 1";
        assert_eq!(reason(EVEN, "%r9", 0, "3").as_deref(), Some(expected));
        assert!(reason(EVEN, "%r5", 0, "24").is_some(), "a multiple of 16");
    }

    #[test]
    fn what_may_be_equal_is_not_proven() {
        assert_eq!(reason(EVEN, "%r9", 1, "3"), None);
        assert_eq!(reason(EVEN, "%r1", 0, "3"), None);
        assert_eq!(reason(EVEN, "%r3", 0, "3"), None);
        let body = "ld.shared.b32 %r1, [p];\nand.b32 %r2, %r1, 15;\nand.b32 %r3, 12, %r1;";
        assert_eq!(reason(body, "%r2", 0, "15"), None, "what is loaded is not known");
        assert_eq!(reason(body, "%r3", 0, "8"), None);
        assert!(reason(body, "%r3", 0, "3").is_some());
    }

    #[test]
    fn every_definition_of_a_register_counts() {
        let body = "mov.b32 %r1, 0;\nL:\nadd.s32 %r1, %r1, 6;\n@%p1 bra L;";
        assert!(reason(body, "%r1", 0, "3").is_some());
        assert_eq!(reason(body, "%r1", 0, "4"), None);
        let body = "mov.b32 %r1, 0;\nL:\nadd.s32 %r1, %r1, 3;\n@%p1 bra L;";
        assert_eq!(reason(body, "%r1", 0, "3"), None);
    }
}
