//! Reads what `nvdisasm -c -hex` prints: sections, labels, instructions, and the control bits of each instruction.

use std::collections::BTreeMap;

use super::ListingError;

/// Bytes of one instruction, in every architecture since Volta.
pub const INSTRUCTION_BYTES: u32 = 16;

/// Scoreboards that a warp has.
pub const SCOREBOARDS: u8 = 6;

/// The scheduling bits of an instruction, which ptxas sets and the hardware obeys.
///
/// They are bits 105 to 125 of the 128: 4 bits of stall, 1 of yield, 3 of write barrier, 3 of read barrier, 6 of wait mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// The scoreboard that is released when the results have been written; `None` for an instruction without one.
    pub write: Option<u8>,
    /// The scoreboard that is released when the source registers have been read.
    pub read: Option<u8>,
    /// The scoreboards that must be zero before the instruction is issued, one bit each.
    pub wait: u8,
}

impl Control {
    /// The control bits in the upper 64 bits of an instruction.
    pub fn of(upper: u64) -> Self {
        let bits = upper >> 41;
        let field = |shift: u32| (bits >> shift) as u8 & 7;
        let scoreboard = |field: u8| (field < SCOREBOARDS).then_some(field);
        Self { write: scoreboard(field(5)), read: scoreboard(field(8)), wait: (bits >> 11) as u8 & 63 }
    }
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Byte offset in its section.
    pub address: u32,
    /// The text: predicate, opcode, operands.
    pub text: String,
    /// The scheduling bits.
    pub control: Control,
    /// The possible targets of an indirect jump, as nvdisasm infers them.
    pub targets: Vec<String>,
}

impl Instruction {
    /// The predicate with its sign, such as `@!P0`.
    pub fn predicate(&self) -> Option<&str> {
        self.text.split_whitespace().next().filter(|word| word.starts_with('@'))
    }

    /// Whether the instruction is executed by no thread, whatever the registers hold.
    pub fn is_never_executed(&self) -> bool {
        matches!(self.predicate(), Some("@!PT" | "@!UPT"))
    }

    /// The opcode with its modifiers, such as `LDS.128`.
    pub fn opcode(&self) -> &str {
        let skipped = usize::from(self.predicate().is_some());
        self.text.split_whitespace().nth(skipped).unwrap_or_default()
    }

    /// The opcode without its modifiers, such as `LDS`.
    pub fn base(&self) -> &str {
        self.opcode().split('.').next().unwrap_or_default()
    }

    /// Whether the opcode has a modifier, such as `RED`.
    pub fn has(&self, modifier: &str) -> bool {
        self.opcode().split('.').skip(1).any(|part| part == modifier)
    }

    /// The operands, separated by commas.
    pub fn operands(&self) -> impl Iterator<Item = &str> {
        let rest = self.text.split_once(self.opcode()).map_or("", |(_, rest)| rest);
        rest.split(',').map(str::trim).filter(|operand| !operand.is_empty())
    }

    /// The label among the operands: nvdisasm prints `` `(name) ``.
    pub fn label(&self) -> Option<&str> {
        let (_, rest) = self.text.split_once("`(")?;
        rest.split_once(')').map(|(name, _)| name)
    }
}

/// The code of one section: an entry and what it calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// The entry's name: the section's without `.text.`.
    pub name: String,
    /// The instructions, at consecutive addresses from 0 on.
    pub instructions: Vec<Instruction>,
    /// The index of the instruction that each label stands before.
    pub labels: BTreeMap<String, usize>,
}

/// Reads the sections of a listing.
///
/// # Errors
///
/// A line that should hold an instruction and cannot be read, an instruction without its second half, a gap between addresses,
/// a listing without code. Nothing is skipped in silence, so that output of another shape is an error and not a clean result.
pub fn parse(listing: &str) -> Result<Vec<Section>, ListingError> {
    let mut sections: Vec<Section> = Vec::new();
    let mut half: Option<(u32, String, Vec<String>)> = None;
    for (index, line) in listing.lines().enumerate() {
        let unread = |expected| ListingError::Line { number: index + 1, text: line.trim().into(), expected };
        let text = line.trim();
        if text.starts_with("//") || text.is_empty() {
            continue;
        }
        if let Some(upper) = encoding_alone(text) {
            let (Some((address, text, targets)), Some(section)) = (half.take(), sections.last_mut()) else {
                return Err(unread("the first half of an instruction before its second half"));
            };
            let upper = upper.ok_or_else(|| unread("16 hexadecimal digits"))?;
            let control = Control::of(upper);
            section.instructions.push(Instruction { address, text, control, targets });
            continue;
        }
        if half.is_some() {
            return Err(unread("the second half of the instruction before it"));
        }
        if let Some(name) = section_of(text) {
            sections.push(Section { name: name.into(), ..Section::default() });
        } else if let Some(label) = text.strip_suffix(':') {
            // The entry's name is printed once more before its section's label.
            if let Some(section) = sections.last_mut() {
                section.labels.insert(label.into(), section.instructions.len());
            }
        } else if text.starts_with("/*") {
            let section = sections.last().ok_or_else(|| unread("a section before its first instruction"))?;
            let (address, code) =
                instruction(text).ok_or_else(|| unread("an address, an instruction and its encoding"))?;
            let expected = section.instructions.len() as u32 * INSTRUCTION_BYTES;
            if address != expected {
                return Err(ListingError::Gap { section: section.name.clone(), expected, found: address });
            }
            let (code, targets) = annotated(code);
            half = Some((address, code, targets));
        } else if !text.starts_with('.') {
            return Err(unread("a directive, a label or an instruction"));
        }
    }
    if half.is_some() {
        let number = listing.lines().count();
        let expected = "the second half of the last instruction";
        return Err(ListingError::Line { number, text: String::new(), expected });
    }
    match sections.iter().find(|section| section.instructions.is_empty()) {
        Some(section) => Err(ListingError::Empty { section: Some(section.name.clone()) }),
        None if sections.is_empty() => Err(ListingError::Empty { section: None }),
        None => Ok(sections),
    }
}

/// The name in a section's label, `.text.name:`.
fn section_of(text: &str) -> Option<&str> {
    text.strip_prefix(".text.")?.strip_suffix(':')
}

/// The upper half of an encoding, which stands on a line of its own; `Some(None)` when its digits cannot be read.
fn encoding_alone(text: &str) -> Option<Option<u64>> {
    let digits = text.strip_prefix("/* 0x")?.strip_suffix("*/")?.trim();
    Some(u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 16))
}

/// Address and text of `/*0050*/  LDS R0, [R1] ;  /* 0x… */`.
fn instruction(text: &str) -> Option<(u32, &str)> {
    let (address, rest) = text.strip_prefix("/*")?.split_once("*/")?;
    let (code, encoding) = rest.rsplit_once("/* 0x")?;
    let digits = encoding.strip_suffix("*/")?.trim();
    u64::from_str_radix(digits, 16).ok()?;
    let code = code.trim();
    Some((u32::from_str_radix(address, 16).ok()?, code.strip_suffix(';')?.trim()))
}

/// Takes an annotation `(*"BRANCH_TARGETS .L_1,.L_2"*)` off an instruction's text.
fn annotated(code: &str) -> (String, Vec<String>) {
    let (code, note) = code.split_once("(*\"").unwrap_or((code, ""));
    let list = note.strip_prefix("BRANCH_TARGETS ").and_then(|rest| rest.split_once('"'));
    let targets = list.into_iter().flat_map(|(list, _)| list.split(','));
    let code: Vec<&str> = code.split_whitespace().collect();
    (code.join(" "), targets.map(|label| label.trim().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "\t.target\tsm_90a\n\n//--------------------- .text.k ----\n\t.section\t.text.k,\"ax\",@progbits\n\
        .global         k\nk:\n.text.k:\n\
        \x20       /*0000*/              @!P0 LDSM.16.M88.4 R4, [UR4] ;           /* 0x000000040404783b */\n\
        \x20                                                                       /* 0x000e620008000200 */\n\
        .L_x_1:\n\
        \x20       /*0010*/                   BRX R50 -0x20  (*\"BRANCH_TARGETS .L_x_1,.L_x_2\"*); /* 0x0000000000007992 */\n\
        \x20                                                                       /* 0x008fec0000000000 */\n";

    #[test]
    fn instructions_labels_and_control_bits_are_read() {
        let sections = parse(LISTING).unwrap();
        let [section] = sections.as_slice() else { panic!("{sections:?}") };
        let [load, jump] = section.instructions.as_slice() else { panic!("{section:?}") };
        assert_eq!(section.name, "k");
        assert_eq!(section.labels, BTreeMap::from([(".L_x_1".to_owned(), 1)]));
        assert_eq!((load.predicate(), load.opcode(), load.base()), (Some("@!P0"), "LDSM.16.M88.4", "LDSM"));
        assert_eq!(load.operands().collect::<Vec<_>>(), ["R4", "[UR4]"]);
        assert_eq!(load.control, Control { write: Some(1), read: None, wait: 0 });
        assert_eq!((jump.text.as_str(), jump.control.wait), ("BRX R50 -0x20", 0b10_00));
        assert_eq!(jump.targets, [".L_x_1", ".L_x_2"]);
    }

    #[test]
    fn control_bits_hold_both_scoreboards_and_every_wait() {
        let bits = |write: u64, read: u64, wait: u64| (write << 5 | read << 8 | wait << 11) << 41;
        assert_eq!(
            Control::of(bits(5, 0, 0b10_0001)),
            Control { write: Some(5), read: Some(0), wait: 0b10_0001 }
        );
        assert_eq!(Control::of(bits(7, 7, 0)), Control { write: None, read: None, wait: 0 });
    }

    #[test]
    fn listings_of_another_shape_are_refused() {
        let without_second_half = LISTING.replace("/* 0x000e620008000200 */", "");
        assert!(matches!(parse(&without_second_half), Err(ListingError::Line { number: 10, .. })));
        let gap = LISTING.replace("/*0010*/", "/*0020*/");
        assert!(matches!(parse(&gap), Err(ListingError::Gap { expected: 16, found: 32, .. })));
        let without_encoding = LISTING.replace("/* 0x000000040404783b */", "");
        assert!(matches!(parse(&without_encoding), Err(ListingError::Line { number: 8, .. })));
        let other = LISTING.replace(".L_x_1:\n", "LDS R0, [R1]\n");
        assert!(matches!(parse(&other), Err(ListingError::Line { number: 10, .. })));
        assert!(matches!(parse("\t.target sm_90\n"), Err(ListingError::Empty { section: None })));
    }
}
