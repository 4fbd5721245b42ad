//! When two texts are the same kernel: of an entry, built twice, and of two entries that differ in a type.
//!
//! Where a statement comes from in Rust, and how the files are numbered, is nothing to the mutants: [`hash`] leaves it out, so that a
//! table stays up to date when only lines move. Entries for f16 and for bf16 are made from one source and differ in how numbers
//! are converted; `twins` tells whether that is all, so that one stands for both.

use std::collections::HashMap;
use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::mutate::{Mutant, mutants};
use super::ptx::{Entry, Statement};

/// A hash of all that decides what an entry does: of the instructions, not of where they come from.
#[must_use]
pub fn hash(entry: &Entry) -> String {
    let text: String = entry
        .module()
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with(SHARED_BYTES) || !line.starts_with("//"))
        .filter(|line| !line.is_empty() && !line.starts_with(".loc") && !line.starts_with(".file"))
        .map(|line| format!("{line}\n"))
        .collect();
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The one comment that a launch depends on.
const SHARED_BYTES: &str = "// warpsmith.shared_bytes";

/// Types of the same size that are converted differently and multiplied by the same instructions.
const ALIKE: [(&str, &str); 2] = [("bf16", "f16"), ("e5m2", "e4m3")];

/// A text with one name for types that are alike.
fn one_name(text: &str) -> String {
    ALIKE.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// What an entry may be a twin by.
pub(crate) struct Likeness {
    /// The name with one name for types that are alike.
    pub(crate) name: String,
    skeleton: String,
    /// The mutants' statements, counted in the skeleton, and their kinds.
    mutants: Vec<(usize, super::Kind)>,
}

impl Likeness {
    pub(crate) fn of(entry: &Entry) -> Self {
        let mut counts = Vec::with_capacity(entry.statements.len());
        let mut kept = 0;
        for statement in &entry.statements {
            counts.push(kept);
            kept += usize::from(!computes_with_floats(statement));
        }
        let place = |mutant: Mutant| (counts[mutant.statement], mutant.kind);
        Self {
            name: one_name(&entry.name),
            skeleton: skeleton(entry, &counts),
            mutants: mutants(entry).into_iter().map(place).collect(),
        }
    }
}

/// Whether two entries are the same but for types that are alike, and instructions that convert floats and compute with them:
/// everything that accesses memory, synchronises, decides or makes addresses is the same, and so are the mutants.
pub(crate) fn twins(a: &Likeness, b: &Likeness) -> bool {
    a.name == b.name && a.skeleton == b.skeleton && a.mutants == b.mutants
}

/// Whether an instruction takes part in converting 16-bit floats, or computes with f32.
fn computes_with_floats(statement: &Statement) -> bool {
    const ARITHMETIC: [&str; 6] = ["add", "sub", "mul", "fma", "max", "min"];
    let last = statement.operands.last().map_or("", String::as_str);
    let narrow = ["f16", "bf16", "f16x2", "bf16x2", "e4m3x2", "e5m2x2"];
    match statement.opcode.as_str() {
        // A bf16 is the upper half of an f32.
        "mov.b32" | "cvt.u32.u16" | "cvt.u16.u32" => true,
        "shl.b32" => last == "16",
        "and.b32" => last == "-65536",
        _ if statement.is("cvt") => narrow.iter().any(|name| statement.has(name)),
        _ => statement.has("f32") && ARITHMETIC.iter().any(|name| statement.is(name)),
    }
}

/// An entry without its floats: parameters and all other instructions, registers named in the order in which they appear.
fn skeleton(entry: &Entry, counts: &[usize]) -> String {
    let mut names = Names::default();
    let head = entry.text().split("\n{").next().unwrap_or_default().replace(&entry.name, "");
    let mut text = one_name(&head);
    for (at, statement) in entry.statements.iter().enumerate().filter(|(_, s)| !computes_with_floats(s)) {
        if let Some((predicate, negated)) = &statement.guard {
            text += if *negated { "@!" } else { "@" };
            text += &names.canonical(predicate);
        }
        let _ = write!(text, " {}", one_name(&statement.opcode));
        if statement.is("bra") || statement.is("brx") {
            for to in entry.targets(at) {
                let _ = write!(text, " ->{}", counts.get(to).copied().unwrap_or(usize::MAX));
            }
        } else {
            let operands = one_name(&statement.operands.join(", ").replace(&entry.name, ""));
            text += &names.canonical(&operands);
        }
        text.push('\n');
    }
    text
}

/// The registers by the order in which they appear.
#[derive(Default)]
struct Names(HashMap<String, usize>);

impl Names {
    /// A text with each register's number in the place of its name.
    fn canonical(&mut self, text: &str) -> String {
        let mut result = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('%') {
            let name = &rest[at..];
            let end = name[1..].find(|c: char| !c.is_ascii_alphanumeric()).map_or(name.len(), |end| end + 1);
            let (name, behind) = name.split_at(end);
            result += &rest[..at];
            // Special registers have no numbers.
            if name.ends_with(|c: char| c.is_ascii_digit()) {
                let next = self.0.len();
                let number = *self.0.entry(name.to_owned()).or_insert(next);
                let class = name.trim_end_matches(|c: char| c.is_ascii_digit());
                let _ = write!(result, "{class}#{number}");
            } else {
                result += name;
            }
            rest = behind;
        }
        result + rest
    }
}

#[cfg(test)]
mod tests {
    use super::super::ptx::entries;
    use super::*;

    fn entry(name: &str, body: &str) -> Entry {
        let text = format!(
            ".version 8.0\n.file 1 \"a.rs\"\n.visible .entry {name}(\n\t.param .u64 {name}_param_0\n)\n// warpsmith.shared_bytes 16\n{{\n{body}\n}}\n"
        );
        entries(&text).remove(0)
    }

    #[test]
    fn where_statements_come_from_does_not_change_the_hash_and_what_they_do_does() {
        let first = hash(&entry("k", "\t.loc 1 2 3\n\tmov.u32 %r1, 1; \n\tret;"));
        assert_eq!(first, hash(&entry("k", "\t.loc 1 9 3\n// a comment\n\tmov.u32 %r1, 1; \n\tret;")));
        assert_ne!(first, hash(&entry("k", "\tmov.u32 %r1, 2;\n\tret;")));
        assert_ne!(first, hash(&entry("l", "\tmov.u32 %r1, 1;\n\tret;")));
        let more = entries(&entry("k", "\tmov.u32 %r1, 1;\n\tret;").module().replace("bytes 16", "bytes 32"));
        assert_ne!(first, hash(&more[0]));
    }

    fn are_twins(a: (&str, &str), b: (&str, &str)) -> bool {
        twins(&Likeness::of(&entry(a.0, a.1)), &Likeness::of(&entry(b.0, b.1)))
    }

    const F16: &str = "ld.param.b64 %rd1, [k_f16_param_0];\nld.global.b16 %rs1, [%rd1];\n{ cvt.f32.f16 %r1, %rs1; }\n\
                       mul.rn.f32 %r2, %r1, %r9;\nsetp.lt.u32 %p1, %r3, %r4;\n@%p1 bra A;\nbar.sync 0;\nA:\nret;";
    const BF16: &str = "ld.param.b64 %rd1, [k_bf16_param_0];\nld.global.b16 %rs1, [%rd1];\ncvt.u32.u16 %r1, %rs1;\n\
                        shl.b32 %r2, %r1, 16;\nmul.rn.f32 %r3, %r9, %r2;\nsetp.lt.u32 %p4, %r5, %r6;\n@%p4 bra B;\n\
                        bar.sync 0;\nB:\nret;";

    #[test]
    fn entries_that_only_convert_differently_are_twins() {
        assert!(are_twins(("k_f16", F16), ("k_bf16", BF16)));
        assert!(!are_twins(("k_f16", F16), ("other_bf16", BF16)));
    }

    #[test]
    fn entries_that_access_decide_or_jump_differently_are_no_twins() {
        for (from, to) in [
            ("bar.sync 0;\n", ""),
            ("bar.sync 0", "bar.sync 1"),
            ("ld.global.b16 %rs1, [%rd1]", "ld.global.b16 %rs1, [%rd1+2]"),
            ("setp.lt.u32 %p4, %r5, %r6", "setp.lt.u32 %p4, %r6, %r5"),
            ("@%p4 bra B;", "@!%p4 bra B;"),
            ("@%p4 bra B;", "@%p5 bra B;"),
            ("bar.sync 0;\nB:", "B:\nbar.sync 0;"),
        ] {
            let changed = BF16.replace(from, to);
            assert_ne!(changed, BF16);
            // What is exchanged is the first use of both, which get their names there; so it is used again.
            let (first, second) = (format!("st.shared.v2.b32 [0], {{%r3, %r4}};\n{F16}"), changed);
            let second = format!("st.shared.v2.b32 [0], {{%r5, %r6}};\n{second}");
            assert!(!are_twins(("k_f16", &first), ("k_bf16", &second)), "{from} as {to}");
        }
    }
}
