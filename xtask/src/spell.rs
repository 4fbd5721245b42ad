//! Spells out the rows of the emulator's table of opcode forms: every row stands for many forms, one for each choice of
//! its modifiers. What generates PTX takes its instructions from here.

use warpsmith::emulator::forms::{self, Form};

/// A form: an opcode with its modifiers, and the operands that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spelling {
    pub(crate) opcode: &'static str,
    pub(crate) modifiers: Vec<&'static str>,
    pub(crate) operands: Vec<Operand>,
}

/// An operand of a form. Those that may be left out are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// A value, or a vector of `count` values.
    Value(Value),
    Address,
    Immediate,
    /// A label or a list of labels.
    Label,
}

/// A value in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) ty: &'static str,
    pub(crate) destination: bool,
    /// The number of elements, if it is a vector.
    pub(crate) count: Option<u8>,
    /// A predicate may follow behind `|`.
    pub(crate) pair: bool,
    /// The register may be wider than the type.
    pub(crate) wider: bool,
}

/// Opcodes whose results depend on their operands alone: those of this list do not, or are no computation at all.
pub(crate) fn is_pure(opcode: &str) -> bool {
    const OTHERS: [&str; 39] = [
        "bar",
        "barrier",
        "bra",
        "brx",
        "ret",
        "exit",
        "trap",
        "brkpt",
        "pmevent",
        "nanosleep",
        "mma",
        "wgmma",
        "wmma",
        "alloca",
        "stacksave",
        "stackrestore",
        "cvta",
        "isspacep",
        "mapa",
        "getctarank",
        "mbarrier",
        "setmaxnreg",
        "griddepcontrol",
        "elect",
        "membar",
        "fence",
        "tensormap",
        "multimem",
        "stmatrix",
        "cp",
        "prefetch",
        "prefetchu",
        "createpolicy",
        "clusterlaunchcontrol",
        "activemask",
        "movmatrix",
        "discard",
        "applypriority",
        "st",
    ];
    !OTHERS.contains(&opcode)
}

/// Whether an opcode is one of the video instructions, on parts of words.
pub(crate) fn is_video(opcode: &str) -> bool {
    const STEMS: [&str; 9] = ["vadd", "vsub", "vabsdiff", "vavrg", "vmin", "vmax", "vset", "vshl", "vshr"];
    opcode == "vmad" || STEMS.contains(&opcode.trim_end_matches(['2', '4']))
}

const TYPES: [&str; 24] = [
    "e4m3x2", "e5m2x2", "pred", "b8", "u8", "s8", "b16", "u16", "s16", "f16", "bf16", "b32", "u32", "s32",
    "f32", "tf32", "f16x2", "bf16x2", "u16x2", "s16x2", "b64", "u64", "s64", "f64",
];

/// The width of a type in bits; a predicate has one.
pub(crate) fn bits(ty: &str) -> u32 {
    match ty {
        "pred" => 1,
        "b8" | "u8" | "s8" => 8,
        "b16" | "u16" | "s16" | "f16" | "bf16" | "e4m3x2" | "e5m2x2" => 16,
        "b64" | "u64" | "s64" | "f64" => 64,
        _ => 32,
    }
}

/// The choices of each slot; `None` where it is left out.
fn slots(row: &Form) -> Vec<Vec<Option<&'static str>>> {
    let slot = |slot: &'static str| {
        let (choices, optional) = slot.strip_suffix('?').map_or((slot, false), |slot| (slot, true));
        optional.then_some(None).into_iter().chain(choices.split('|').map(Some)).collect()
    };
    row.modifiers.split_whitespace().map(slot).collect()
}

/// How many forms a row stands for.
pub(crate) fn count(row: &Form) -> usize {
    slots(row).iter().map(Vec::len).product()
}

/// One of a row's forms, by its number below [`count`].
pub(crate) fn nth(row: &Form, mut number: usize) -> Spelling {
    let mut modifiers = Vec::new();
    for choices in slots(row) {
        modifiers.extend(choices[number % choices.len()]);
        number /= choices.len();
    }
    let operands = operands(row, &modifiers);
    Spelling { opcode: row.opcode, modifiers, operands }
}

/// At most `most` of a row's forms, spread evenly over its choices.
pub(crate) fn cover(row: &Form, most: usize) -> impl Iterator<Item = Spelling> {
    let count = count(row);
    // A stride that shares no factor with the count visits every choice of every slot in turn.
    let stride = (count / most.max(1) + 1..).find(|&stride| gcd(stride, count) == 1).unwrap_or(1);
    let stride = if count <= most { 1 } else { stride };
    let row = *row;
    (0..count.min(most)).map(move |i| nth(&row, i * stride % count))
}

/// The form that a text spells, if the table has it.
pub(crate) fn find(text: &str) -> Option<Spelling> {
    let mut parts = text.split('.');
    let opcode = parts.next()?;
    let modifiers: Vec<&str> = parts.collect();
    forms::all().filter(|row| row.opcode == opcode).find_map(|row| {
        let mut chosen = Vec::new();
        for choices in slots(&row) {
            let wanted = modifiers.get(chosen.len());
            match choices.iter().flatten().find(|choice| Some(*choice) == wanted) {
                Some(choice) => chosen.push(*choice),
                None if choices.contains(&None) => {}
                None => return None,
            }
        }
        let operands = operands(&row, &chosen);
        (chosen.len() == modifiers.len()).then_some(Spelling {
            opcode: row.opcode,
            modifiers: chosen,
            operands,
        })
    })
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn operands(row: &Form, modifiers: &[&'static str]) -> Vec<Operand> {
    let text = if row.operands == "any" { "=t t" } else { row.operands };
    let mut types = modifiers.iter().copied().filter(|m| TYPES.contains(m));
    let (first, second) = (types.next().unwrap_or("b32"), types.next().unwrap_or("b32"));
    // A video instruction that merges its result with another number has that.
    let merges = is_video(row.opcode) && modifiers.iter().any(|m| ["add", "min", "max"].contains(m));
    let given = text.split_whitespace().filter(|operand| merges || !operand.ends_with('?'));
    given
        .map(|operand| match operand.trim_end_matches('?') {
            "[]" => Operand::Address,
            "#" => Operand::Immediate,
            "label" | "targets" => Operand::Label,
            operand => {
                let (destination, operand) =
                    operand.strip_prefix('=').map_or((false, operand), |operand| (true, operand));
                let wider = operand.starts_with('~');
                let operand = operand.trim_start_matches(['~', '+']);
                let (operand, pair) =
                    operand.split_once('|').map_or((operand, false), |(o, second)| (o, !second.is_empty()));
                let (ty, count) = operand.split_once('*').map_or((operand, None), |(ty, n)| (ty, Some(n)));
                let ty = match ty {
                    "t" => first,
                    "u" => second,
                    "w" => match first {
                        "u16" => "u32",
                        "s16" => "s32",
                        "u32" => "u64",
                        _ => "s64",
                    },
                    ty => ty,
                };
                let vector = modifiers.iter().find_map(|m| m.strip_prefix('v').and_then(|n| n.parse().ok()));
                let count = count.and_then(|n| if n == "v" { vector } else { n.parse().ok() });
                Operand::Value(Value { ty, destination, count, pair, wider })
            }
        })
        .collect()
}

impl Spelling {
    /// The form as it is written: `cvt.rn.bf16x2.f32`.
    pub(crate) fn text(&self) -> String {
        let parts: Vec<&str> = std::iter::once(self.opcode).chain(self.modifiers.iter().copied()).collect();
        parts.join(".")
    }

    /// Whether it has a modifier.
    pub(crate) fn has(&self, modifier: &str) -> bool {
        self.modifiers.contains(&modifier)
    }

    /// Whether an exact result is asked of it: not so of the functions that a GPU approximates.
    pub(crate) fn is_exact(&self) -> bool {
        !self.has("approx") && !self.has("full")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_row_is_told_apart() {
        let row = forms::all().find(|row| row.opcode == "fma" && row.modifiers.contains("f32")).unwrap();
        let all: Vec<_> = (0..count(&row)).map(|n| nth(&row, n).text()).collect();
        assert_eq!(all.len(), 16);
        assert!(all.contains(&"fma.rn.f32".to_owned()) && all.contains(&"fma.rp.ftz.sat.f32".to_owned()));
        let mut distinct = all.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn a_form_is_found_by_its_text() {
        for text in ["fma.rn.ftz.f32", "ld.global.nc.L1::no_allocate.v4.b32", "cvt.rn.bf16x2.f32"] {
            assert_eq!(find(text).map(|s| s.text()).as_deref(), Some(text));
        }
        assert_eq!(find("add.b32"), None);
    }

    #[test]
    fn a_cover_has_every_choice_of_every_slot() {
        for row in forms::all() {
            let spellings: Vec<_> = cover(&row, 200).collect();
            for choice in slots(&row).into_iter().flatten().flatten() {
                assert!(spellings.iter().any(|s| s.has(choice)), "{row:?} lacks {choice}");
            }
        }
    }

    #[test]
    fn operands_have_the_types_that_the_modifiers_name() {
        let row = forms::all().find(|row| row.opcode == "mul" && row.modifiers.contains("wide")).unwrap();
        let types: Vec<_> = nth(&row, 3)
            .operands
            .iter()
            .map(|o| match o {
                Operand::Value(v) => v.ty,
                _ => "",
            })
            .collect();
        assert_eq!(types, ["s64", "s32", "s32"]);
    }
}
