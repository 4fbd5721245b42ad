//! How the table of opcode forms is written and matched.
//!
//! A row has the opcode, the modifiers and the operands of one form. Modifiers are slots in the order of PTX's
//! manual: alternatives joined by `|`, a `?` behind a slot that may be left out. A text may have them in any
//! order. Operands
//! are written thus:
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

    /// The value that belongs to the first modifier that is present.
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

    /// The modifiers in the order of the slots, if they fit those in some order. Assemblers take them as a set;
    /// of types, and of
    /// several that fit the same slots (`.row.col`), the order counts.
    pub(crate) fn arrange<'m>(&self, modifiers: &[&'m str]) -> Option<Vec<&'m str>> {
        let mut used = vec![false; modifiers.len()];
        let mut arranged = Vec::with_capacity(modifiers.len());
        let slots: Vec<&str> = self.modifiers.split_whitespace().collect();
        for (number, slot) in slots.iter().enumerate() {
            let fits = |slot: &str, m: &str| slot.trim_end_matches('?').split('|').any(|a| a == m);
            let first_type = (0..modifiers.len()).find(|&i| !used[i] && Ty::parse(modifiers[i]).is_some());
            let in_turn = |i: usize| Ty::parse(modifiers[i]).is_none() || first_type == Some(i);
            let mut candidates =
                (0..modifiers.len()).filter(|&i| !used[i] && in_turn(i) && fits(slot, modifiers[i]));
            let Some(index) = candidates.next() else {
                if slot.ends_with('?') {
                    continue;
                }
                return None;
            };
            // A slot that may be empty must not take what a later one needs.
            let needed =
                slots[number + 1..].iter().filter(|s| !s.ends_with('?') && fits(s, modifiers[index]));
            let left = (0..modifiers.len()).filter(|&i| !used[i] && modifiers[i] == modifiers[index]);
            if slot.ends_with('?') && left.count() <= needed.count() {
                continue;
            }
            used[index] = true;
            arranged.push(modifiers[index]);
        }
        used.iter().all(|&used| used).then_some(arranged)
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

    #[test]
    fn modifiers_are_arranged_as_a_set_and_types_keep_their_order() {
        let form = |modifiers| Form { opcode: "x", modifiers, operands: "", build: |_| Op::Nop };
        let arranged = form("rn|rz? ftz? f32").arrange(&["f32", "ftz", "rn"]);
        assert_eq!(arranged.as_deref(), Some(&["rn", "ftz", "f32"][..]));
        assert_eq!(form("rn|rz? ftz? f32").arrange(&["f32", "rn", "rz"]), None);
        assert_eq!(form("sat u16 u32").arrange(&["sat", "u32", "u16"]), None);
        assert_eq!(form("rn f32 u32|s32").arrange(&["f32", "s32", "rn"]).map(|a| a.len()), Some(3));
        let arranged = form("row|col row|col f16 f32").arrange(&["f16", "col", "row", "f32"]);
        assert_eq!(arranged.as_deref(), Some(&["col", "row", "f16", "f32"][..]));
        let arranged = form("satfinite? s32 satfinite").arrange(&["satfinite", "s32"]);
        assert_eq!(arranged.as_deref(), Some(&["s32", "satfinite"][..]));
    }
}
