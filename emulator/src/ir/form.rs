//! How the table of opcode forms is written and matched.
//!
//! A row has the opcode, the modifiers and the operands of one form. Modifiers are slots in the order in which PTX
//! wants them: alternatives joined by `|`, a `?` behind a slot that may be left out. Operands are written thus:
//!
//! | notation | operand |
//! |---|---|
//! | `t`, `u` | a value of the first or second type among the modifiers |
//! | `w` | a value of twice the first type's width |
//! | `b32`, `pred`, … | a value of this type |
//! | `=…` | a destination |
//! | `+…` | a destination whose old value counts too |
//! | `t*4` | a vector of 4; `t*v` as many as the `.v2`/`.v4` modifier says |
//! | `t*d` | a vector of as many as the result of a warpgroup's matrix product takes |
//! | `b32*4/b64` | a vector of 4, or a single value of the other type |
//! | `~t`, `=~t` | as `t`, and the register may be wider than the type |
//! | `=t\|pred` | a destination with an optional predicate behind `\|`; `=pred\|`: PTX does not allow it here |
//! | `[]` | an address |
//! | `[map]` | the address of a tensor map, and the coordinates of a box |
//! | `#` | an integer constant |
//! | `label`, `targets` | a label; the name of a list of labels |
//! | `any` | operands that the row's own code takes apart |
//! | `…?` | may be left out |

use super::op::Op;
use super::types::Ty;

/// One row of the table.
pub(crate) struct Form {
    pub(crate) opcode: &'static str,
    pub(crate) modifiers: &'static str,
    pub(crate) operands: &'static str,
    pub(crate) build: fn(&Chosen<'_>) -> Op,
}

/// The modifiers that an instruction has, which the form allows.
pub(crate) struct Chosen<'m> {
    pub(crate) modifiers: &'m [&'m str],
    /// How many operands the instruction has.
    pub(crate) operands: usize,
}

impl Chosen<'_> {
    /// Whether a modifier is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.modifiers.contains(&name)
    }

    /// The type modifiers, in order.
    pub(crate) fn types(&self) -> impl Iterator<Item = Ty> {
        self.modifiers.iter().filter_map(|m| Ty::parse(m))
    }

    /// The type at a position; the forms that ask for it have it.
    pub(crate) fn ty(&self, index: usize) -> Ty {
        self.types().nth(index).unwrap_or(Ty::B32)
    }

    /// The value that belongs to the first of the modifiers that is there.
    pub(crate) fn pick<T: Copy>(&self, choices: &[(&str, T)], otherwise: T) -> T {
        choices.iter().find(|(name, _)| self.has(name)).map_or(otherwise, |&(_, value)| value)
    }

    /// Elements of a vector access.
    pub(crate) fn vector(&self) -> u8 {
        self.pick(&[("v2", 2), ("v4", 4), ("v8", 8)], 1)
    }
}

impl Form {
    /// Whether the modifiers fit the slots. If not: how many fitted, and the slot that the next should have.
    pub(crate) fn matches(&self, modifiers: &[&str]) -> Result<(), (usize, Option<&'static str>)> {
        let mut at = 0;
        for slot in self.modifiers.split_whitespace() {
            let (alternatives, optional) = match slot.strip_suffix('?') {
                Some(alternatives) => (alternatives, true),
                None => (slot, false),
            };
            if modifiers.get(at).is_some_and(|m| alternatives.split('|').any(|a| a == *m)) {
                at += 1;
            } else if !optional {
                return Err((at, Some(alternatives)));
            }
        }
        if at == modifiers.len() { Ok(()) } else { Err((at, None)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_matched_in_order() {
        let form = Form { opcode: "x", modifiers: "rn|rz? ftz? f32", operands: "", build: |_| Op::Nop };
        assert_eq!(form.matches(&["f32"]), Ok(()));
        assert_eq!(form.matches(&["rz", "ftz", "f32"]), Ok(()));
        assert_eq!(form.matches(&["ftz", "rz", "f32"]), Err((1, Some("f32"))));
        assert_eq!(form.matches(&["f32", "rn"]), Err((1, None)));
        assert_eq!(form.matches(&[]), Err((0, Some("f32"))));
    }
}
