//! What the emulator knows, as data: the rows of its table of opcode forms, and the forms that a text uses.
//!
//! Tools that write PTX (a fuzzer, a recorder of conformance data, a comparison with an assembler) take the rows from
//! here, so that a new instruction is covered without being listed a second time.

use std::collections::BTreeMap;

use crate::error::ParseError;
use crate::ir::forms::FORMS;
use crate::ir::lower::spelled;
use crate::syntax::{self, Source};

/// A row of the table of opcode forms.
///
/// `modifiers` are slots in the order in which PTX wants them: alternatives joined by `|`, and a `?` behind a slot that
/// may be left out. `operands` are written thus:
///
/// | notation | operand |
/// |---|---|
/// | `t`, `u` | a value of the first or second type among the modifiers |
/// | `w` | a value of twice the first type's width |
/// | `b32`, `pred`, … | a value of this type |
/// | `=…` | a destination |
/// | `t*4` | a vector of 4; `t*v`: as many as the `.v2` or `.v4` modifier says |
/// | `~t` | the register may be wider than the type |
/// | `=t\|pred` | a destination with an optional predicate behind `\|`; `=pred\|`: PTX does not allow it here |
/// | `[]`, `#`, `label`, `targets` | an address, an integer constant, a label, a list of labels |
/// | `any` | a destination and a source of the first type |
/// | `…?` | may be left out |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Form {
    /// The opcode: `add`.
    pub opcode: &'static str,
    /// The modifiers' slots: `rn|rz? ftz? f32`.
    pub modifiers: &'static str,
    /// The operands: `=t t t`.
    pub operands: &'static str,
}

/// All rows. Of several for one opcode, the first that fits an instruction is taken.
pub fn all() -> impl Iterator<Item = Form> {
    FORMS.into_iter().flatten().map(|form| Form {
        opcode: form.opcode,
        modifiers: form.modifiers,
        operands: form.operands,
    })
}

/// The forms that a text's entries and functions use, as they are spelled there (`cvt.rn.bf16x2.f32`), and the
/// line of each one's first
/// use. The emulator need not know them.
///
/// # Errors
///
/// A text whose grammar is broken.
pub fn used_in(file: &str, text: &str) -> Result<BTreeMap<String, u32>, ParseError> {
    let module = syntax::parse(&Source { file, text })?;
    let mut forms = BTreeMap::new();
    for instruction in module.bodies().flat_map(|body| &body.instructions) {
        forms.entry(spelled(instruction)).or_insert(instruction.span.line);
    }
    Ok(forms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_spelled_as_in_the_text_also_where_nothing_knows_them() {
        let text = ".version 8.0\n.target sm_80\n.entry t() {\n.reg .b32 %r;\nadd.u32 %r, %r, 1;\n\
                    { @!%p frobnicate.x::y.b32 {%r, %r}, [%r+4]; }\nadd.u32 %r, %r, 1;\n}";
        let forms = used_in("t.ptx", text).unwrap();
        let forms: Vec<_> = forms.iter().map(|(form, &line)| (form.as_str(), line)).collect();
        assert_eq!(forms, [("add.u32", 5), ("frobnicate.x::y.b32", 6)]);
        assert!(used_in("t.ptx", "nothing").is_err());
    }

    #[test]
    fn the_table_is_listed_whole() {
        assert!(all().any(|form| form.opcode == "mma") && all().any(|form| form.opcode == "add"));
    }
}
