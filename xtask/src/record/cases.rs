//! The cases to record: one for each form, made from the emulator's own table.

use std::collections::{BTreeMap, BTreeSet};

use warpsmith::emulator::forms;

use super::recording::{BLOCK, Case, Input};
use crate::random::Random;
use crate::spell::{self, Operand, Spelling};
use crate::values;

/// Threads of a case whose inputs are samples.
const SAMPLES: usize = 3 * BLOCK as usize;
/// Forms that only approximate are held against a bound, which takes more inputs.
const APPROXIMATE_SAMPLES: usize = 8 * BLOCK as usize;
/// The letters of source and destination registers.
const SOURCES: [&str; 4] = ["a", "b", "c", "e"];
const RESULTS: [&str; 4] = ["d", "f", "g", "h"];

/// The cases: of each row of the table at most `each` forms, and all that the given texts use.
pub(super) fn all(each: usize, texts: &[String]) -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    let mut known = BTreeSet::new();
    let mut add = |spelling: &Spelling| {
        if known.insert(spelling.text()) {
            cases.extend(case(spelling));
        }
    };
    for text in texts {
        for form in forms::used_in("shipped.ptx", text)?.keys() {
            spell::find(form).iter().for_each(&mut add);
        }
    }
    for row in forms::all() {
        // Relations and roundings multiply; what matters is that each is there with each type.
        let most = if matches!(row.opcode, "set" | "ld" | "st" | "atom" | "red") { each / 2 } else { each };
        spell::cover(&row, most).for_each(|spelling| add(&spelling));
    }
    Ok(cases)
}

/// The case of a form; nothing for a form that is tested in other ways.
fn case(spelling: &Spelling) -> Option<Case> {
    let copies = spelling.opcode == "cp" && !spelling.has("bulk") && spelling.operands.len() == 3;
    let memory = matches!(spelling.opcode, "st" | "atom" | "red");
    if !spell::is_pure(spelling.opcode) && !copies && !memory
        || ["param", "param::entry", "param::func", "const", "shared::cluster"]
            .iter()
            .any(|space| spelling.has(space))
    {
        return None;
    }
    let wide = |operand: &Operand| matches!(operand, Operand::Value(v) if v.count == Some(4) && spell::bits(v.ty) == 64);
    if spelling.operands.iter().any(wide) {
        // 32 bytes at a time need a later GPU.
        return None;
    }
    let shared = ["shared", "shared::cta"].iter().any(|space| spelling.has(space));
    let vector = ["v2", "v4", "v8"].iter().any(|count| spelling.has(count));
    if shared && vector && matches!(spelling.opcode, "atom" | "red") {
        // Assemblers refuse these.
        return None;
    }
    if matches!(spelling.opcode, "shfl" | "vote") && !spelling.has("sync") {
        // Those are of GPUs before sm_70.
        return None;
    }
    if shared && spelling.has("noftz") && (spelling.has("f16x2") || spelling.has("bf16x2")) {
        // The compiler in driver 580 drops the operand's upper half; the assembler of CUDA 13.5 does not.
        return None;
    }
    if spelling.has("approx") && spelling.has("f64") {
        // No bound is stated.
        return None;
    }
    if copies {
        return Some(copy(spelling));
    }
    let form = spelling.text();
    let mut body = before(spelling);
    let mut results: Vec<String> = Vec::new();
    let tables: &[&str] = if spelling.opcode == "lop3" { &["0x96", "0xe8", "0x1b", "0x40"] } else { &["1"] };
    for table in tables {
        let operands = instruction(spelling, table, &mut results)?.join(", ");
        body += &format!("{form} {operands};\n");
    }
    for parts in selections(spelling) {
        let mut operands = instruction(spelling, "1", &mut results)?;
        operands.iter_mut().zip(parts).for_each(|(operand, part)| operand.push_str(part));
        if !parts[0].is_empty() && operands.len() == 3 {
            // What keeps the parts that are not written.
            operands.push("%c32".to_owned());
        }
        body += &format!("{form} {};\n", operands.join(", "));
    }
    body += after(spelling, &mut results);
    if results.is_empty() {
        return None;
    }
    Some(Case { inputs: inputs(spelling), form, body, results, outputs: Vec::new() })
}

/// The parts of its result and its two operands that a video instruction is recorded with, besides the whole ones.
fn selections(spelling: &Spelling) -> &'static [[&'static str; 3]] {
    if !spell::is_video(spelling.opcode) {
        return &[];
    }
    match spelling.opcode.as_bytes().last() {
        Some(b'2') => &[["", ".h12", ".h30"], [".h1", ".h03", ".h21"], [".h0", ".h33", ".h10"]],
        Some(b'4') => {
            &[["", ".b7531", ".b0264"], [".b20", ".b4567", ".b1234"], [".b321", ".b0000", ".b7654"]]
        }
        _ if merges(spelling) => &[["", ".b3", ".h0"], ["", ".h1", ".b0"], ["", ".b1", ".b2"]],
        _ => &[["", ".b3", ".h0"], [".b2", ".h1", ""], [".h1", ".b0", ".b1"]],
    }
}

/// Whether a video instruction does something else with its last operand than to keep parts of it.
fn merges(spelling: &Spelling) -> bool {
    spelling.operands.len() == 4
}

/// The operands; the results' registers go to `results`.
fn instruction(spelling: &Spelling, table: &str, results: &mut Vec<String>) -> Option<Vec<String>> {
    let mut operands = Vec::new();
    // What an atomic operation finds in memory are the first two.
    let first = if matches!(spelling.opcode, "atom" | "red") { 2 } else { 0 };
    let mut sources = SOURCES.iter().skip(first);
    // The last operand of what goes across lanes is the lanes.
    let mask = spelling.has("sync") && !spelling.operands.contains(&Operand::Address);
    for (i, operand) in spelling.operands.iter().enumerate() {
        operands.push(match operand {
            Operand::Label => return None,
            Operand::Immediate => table.to_owned(),
            Operand::Address => address(spelling).to_owned(),
            Operand::Value(_) if mask && i + 1 == spelling.operands.len() => "-1".to_owned(),
            Operand::Value(value) => {
                let mut parts = Vec::new();
                for _ in 0..value.count.unwrap_or(1) {
                    let letter =
                        if value.destination { RESULTS.get(results.len())? } else { sources.next()? };
                    let suffix = match spell::bits(value.ty) {
                        1 => "p".to_owned(),
                        bits => bits.max(16).to_string(),
                    };
                    parts.push(format!("%{letter}{suffix}"));
                    if value.destination {
                        results.push(format!("{letter}{suffix}"));
                    }
                }
                let mut text =
                    if value.count.is_some() { format!("{{{}}}", parts.join(", ")) } else { parts.concat() };
                if value.pair {
                    text += "|%gp";
                    results.push("gp".to_owned());
                }
                text
            }
        });
    }
    Some(operands)
}

fn address(spelling: &Spelling) -> &'static str {
    let shared = ["shared", "shared::cta"].iter().any(|space| spelling.has(space));
    match () {
        () if shared || matches!(spelling.opcode, "ldmatrix") => "[%s]",
        () if spelling.has("local") => "[%l]",
        () => "[%in]",
    }
}

/// What has to come before the instruction.
fn before(spelling: &Spelling) -> String {
    let subtracts = spelling.opcode == "subc";
    match spelling.opcode {
        "addc" | "madc" => "add.cc.u32 %v32, %e32, %e32;\n".to_owned(),
        _ if subtracts => "sub.cc.u32 %v32, %e32, %c32;\n".to_owned(),
        // Other lanes' rows.
        "ldmatrix" => "bar.warp.sync -1;\n".to_owned(),
        // Positions and lengths of more than 8 bits mean nothing.
        "bfe" => "and.b32 %b32, %b32, 255;\nand.b32 %c32, %c32, 255;\n".to_owned(),
        "bfi" => "and.b32 %c32, %c32, 255;\nand.b32 %e32, %e32, 255;\n".to_owned(),
        _ => String::new(),
    }
}

/// What reads back what the instruction left elsewhere than in its destinations.
fn after(spelling: &Spelling, results: &mut Vec<String>) -> &'static str {
    if spelling.has("cc") {
        results.push("v32".to_owned());
        return if spelling.opcode.starts_with("sub") {
            "subc.u32 %v32, 0, 0;"
        } else {
            "addc.u32 %v32, 0, 0;"
        };
    }
    if matches!(spelling.opcode, "st" | "atom" | "red") {
        results.extend(["g64".to_owned(), "h64".to_owned()]);
        return match address(spelling) {
            "[%s]" => "ld.shared.v2.b64 {%g64, %h64}, [%s];",
            "[%l]" => "ld.local.v2.b64 {%g64, %h64}, [%l];",
            _ => "ld.global.v2.b64 {%g64, %h64}, [%in];",
        };
    }
    ""
}

/// `cp.async` of a thread's inputs to shared memory, whose first bytes hold something else before.
fn copy(spelling: &Spelling) -> Case {
    let form = spelling.text();
    let bytes = if spelling.has("cg") { 16 } else { 8 };
    Case {
        body: format!(
            "st.shared.v2.b64 [%s], {{%e64, %c64}};\n{form} [%s], [%in], {bytes};\ncp.async.commit_group;\n\
             cp.async.wait_group 0;\nld.shared.v2.b64 {{%g64, %h64}}, [%s];"
        ),
        form,
        results: vec!["g64".to_owned(), "h64".to_owned()],
        inputs: "b64".to_owned(),
        outputs: Vec::new(),
    }
}

/// The name of a form's inputs: the type of its first source, and how many.
fn inputs(spelling: &Spelling) -> String {
    let mut sources = spelling.operands.iter().filter_map(|operand| match operand {
        Operand::Value(value) if !value.destination => Some(value.ty),
        _ => None,
    });
    let first = sources.next().unwrap_or("b64");
    let ty = match first {
        // As the type of the instruction says, where that of the operand is only a width.
        "b32" if spelling.operands.contains(&Operand::Address) => "b64",
        "pred" | "u64" | "s64" | "b64" => "b64",
        "u8" | "s8" | "b8" | "u16" | "s16" | "b16" => "b16",
        "u32" | "s32" | "b32" => "b32",
        other => other,
    };
    let alone = sources.next().is_none() && !spelling.operands.contains(&Operand::Address);
    match spell::bits(first) {
        8 if alone => "all8".to_owned(),
        16 if alone => "all16".to_owned(),
        _ if !spelling.is_exact() => format!("{ty} many"),
        _ => ty.to_owned(),
    }
}

/// The inputs that the cases name, but for those that hold all values.
pub(super) fn all_inputs(cases: &[Case]) -> BTreeMap<String, Vec<Input>> {
    let names: BTreeSet<&str> = cases.iter().map(|case| case.inputs.as_str()).collect();
    let kept = names.into_iter().filter(|name| super::recording::exhaustive(name).is_none());
    kept.map(|name| (name.to_owned(), samples(name))).collect()
}

/// Edges against each other, then random values.
fn samples(name: &str) -> Vec<Input> {
    let (ty, count) = match name.strip_suffix(" many") {
        Some(ty) => (ty, APPROXIMATE_SAMPLES),
        None => (name, SAMPLES),
    };
    let mut random = Random::new(name.bytes().fold(0, |seed, byte| seed * 31 + u64::from(byte)));
    let edges = values::edges(ty);
    let mut inputs: Vec<Input> = Vec::new();
    for i in 0..count {
        let first =
            if i < edges.len() * 3 { edges[i % edges.len()] } else { values::random(ty, &mut random) };
        let mut input = [first, 0, 0, 0];
        for value in &mut input[1..] {
            *value = values::random(ty, &mut random);
        }
        match i % 8 {
            // Equal operands, and operands that nearly cancel.
            3 => input[1] = input[0],
            5 if ty.contains('f') => input[1] = input[0] ^ sign(ty) ^ (input[2] & 3),
            // NaN of every operand, each with a payload of its own.
            1 if ty == "f64" => input.iter_mut().zip(1..).for_each(|(value, payload)| {
                if random.chance(60) {
                    *value = 0x7ff0_0000_0000_0000 | random.next() << 63 | random.next() & 1 << 51 | payload;
                }
            }),
            // Small numbers in the last ones: distances of shifts, positions of fields, lanes.
            6 => input[2..].iter_mut().for_each(|value| *value &= 63),
            7 => input[1..].iter_mut().for_each(|value| *value &= 63),
            _ => {}
        }
        inputs.push(input);
    }
    inputs
}

fn sign(ty: &str) -> u64 {
    match ty {
        "f64" => 1 << 63,
        "f32" => 1 << 31,
        _ => 0x8000_8000,
    }
}
