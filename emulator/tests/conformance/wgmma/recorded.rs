//! Products against what an H100 gave, bit for bit.
//!
//! `data/wgmma/recorded.z` was recorded on an H100 (driver 580) with the kernels beside it, in November 2026: a zlib
//! stream of named pieces, each the results in the order in which the kernel writes them. The operands come from
//! [`operands`](super::operands). Layouts were recorded with descriptors of random addresses, distances and base offsets,
//! and with operands so small that sums are exact; their results are kept in a byte each.

use std::collections::HashMap;
use std::sync::LazyLock;

use warpsmith_emulator::{Completion, Config, Machine, Module, Numerics};

use super::operands::{KINDS, addends, elements, small, width};
use crate::common::{launch, parse};

/// Bytes of shared memory where layouts are tested.
const IMAGE: usize = 32 << 10;
const FLOATS: [&str; 2] = ["e4m3", "e5m2"];
const INTEGERS: [&str; 2] = ["s8", "u8"];

static RECORDED: LazyLock<HashMap<String, Vec<u8>>> = LazyLock::new(|| {
    let packed = include_bytes!("../../data/wgmma/recorded.z");
    let bytes = miniz_oxide::inflate::decompress_to_vec_zlib(packed).expect("a zlib stream");
    let mut rest = &bytes[..];
    let mut piece = || {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (piece, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        rest = after;
        Some(piece.to_vec())
    };
    let mut pieces = HashMap::new();
    while let Some(name) = piece() {
        pieces.insert(String::from_utf8(name).expect("a name"), piece().expect("a piece"));
    }
    pieces
});

/// All pairs of the types of A and B, with the type of the sums, in the order of the keys of their operands.
fn numeric() -> Vec<(&'static str, &'static str, &'static str)> {
    let pairs = |types: [&'static str; 2]| types.into_iter().flat_map(move |a| types.map(|b| (a, b)));
    let mut all = vec![("f32", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32")];
    all.extend(pairs(FLOATS).map(|(a, b)| ("f32", a, b)));
    all.push(("f16", "f16", "f16"));
    all.extend(pairs(FLOATS).map(|(a, b)| ("f16", a, b)));
    all.extend(pairs(INTEGERS).map(|(a, b)| ("s32", a, b)));
    all
}

/// The kernel of one product.
fn kernel(shape: &str, count: usize, image: usize, registers: bool, modifiers: &str) -> Module {
    let lines = |line: &dyn Fn(usize) -> String| (0..count).map(line).collect::<Vec<_>>().join("\n");
    let results = (0..count).map(|i| format!("%d{i}")).collect::<Vec<_>>().join(", ");
    let text = include_str!("../../data/wgmma/wgmma.ptx")
        .replace("COUNT", &count.to_string())
        .replace("BYTES", &image.to_string())
        .replace("SHAPE", shape)
        .replace("RESULTS", &results)
        .replace("OPERAND", if registers { "{%a0, %a1, %a2, %a3}" } else { "%da" })
        .replace("MODIFIERS", modifiers)
        .replace("LOADS", &lines(&|i| format!("    ld.global.u32 %d{i}, [%c+{}];", 4 * i)))
        .replace("STORES", &lines(&|i| format!("    st.global.u32 [%out+{}], %d{i};", 4 * i)));
    parse("wgmma.ptx", &text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn machine(numerics: Numerics, completion: Completion) -> Machine {
    Machine::new(Config { compute_capability: (9, 0), numerics, completion, seed: 5, ..Config::default() })
}

/// What the kernel is run on.
struct Inputs {
    /// The blocks' shared memory, which differs from block to block if there is more than one.
    image: Vec<u8>,
    step: u64,
    descriptors: Vec<[u64; 2]>,
    a: Vec<u8>,
    c: Vec<u8>,
    scale: u64,
}

fn run(machine: &Machine, module: &Module, inputs: &Inputs, outputs: usize) -> Vec<u8> {
    let put = |bytes: &[u8]| {
        let at = machine.allocate(bytes.len() as u64).unwrap();
        machine.write(at, bytes).unwrap();
        at
    };
    let descriptors: Vec<u8> = inputs.descriptors.iter().flatten().flat_map(|d| d.to_le_bytes()).collect();
    let out = machine.allocate(outputs as u64).unwrap();
    let blocks = inputs.descriptors.len() as u32;
    let arguments = [
        put(&inputs.image),
        inputs.step,
        put(&descriptors),
        put(&inputs.a),
        put(&inputs.c),
        out,
        inputs.scale,
    ];
    launch(machine, module, blocks, 128, 0, &arguments).unwrap_or_else(|error| panic!("{error}"));
    let mut back = vec![0; outputs];
    machine.read(out, &mut back).unwrap();
    for at in [arguments[0], arguments[2], arguments[3], arguments[4], out] {
        machine.free(at).unwrap();
    }
    back
}

fn descriptor(address: u64, leading: u64, stride: u64) -> u64 {
    address >> 4 | leading >> 4 << 16 | stride >> 4 << 32
}

/// Rows of 32 bytes in place in shared memory without a swizzle: 8 rows' first halves, their second halves, 8 more.
fn core_matrices(rows: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for eight in rows.chunks(256) {
        for half in 0..2 {
            out.extend(eight.chunks(32).flat_map(|row| &row[16 * half..16 * half + 16]));
        }
    }
    out
}

fn replay(index: usize, (sums, a, b): (&str, &str, &str)) {
    let machine = machine(Numerics::Exact, Completion::Latest);
    let k = 32 / width(a);
    let count = if sums == "f16" { 2 } else { 4 };
    let modifiers = match (sums, width(a)) {
        ("s32", _) => "",
        (_, 2) => ", 1, 1, 0, 0",
        _ => ", 1, 1",
    };
    let module = kernel(&format!("m64n8k{k}.{sums}.{a}.{b}"), count, 2304, false, modifiers);
    for scale in [1, 0] {
        let name = format!("{sums}_{a}_{b}_{scale}");
        let expected = &RECORDED[&name];
        let blocks = expected.len() / (128 * 4 * count);
        let first = if scale == 0 && sums != "s32" { KINDS } else { 0 };
        let (mut image, mut c) = (Vec::new(), Vec::new());
        for operation in first..first + blocks as u64 {
            let (kind, key) = (operation % KINDS, (index as u64 * 64 + operation) * 4);
            image.extend(core_matrices(&elements(a, kind, key, 64 * k as u64)));
            image.extend(core_matrices(&elements(b, kind, key + 1, 8 * k as u64)));
            c.extend(addends(sums, kind, key + 2, 512));
        }
        let descriptors = vec![[descriptor(0, 128, 256), descriptor(2048, 128, 256)]; blocks];
        let inputs = Inputs { image, step: 2304, descriptors, a: vec![0; 2048 * blocks], c, scale };
        let got = run(&machine, &module, &inputs, expected.len());
        let (words, _) = got.as_chunks::<4>();
        for (i, (got, expected)) in words.iter().zip(expected.as_chunks::<4>().0).enumerate() {
            let (block, thread, register) = (i / (128 * count), i / count % 128, i % count);
            assert_eq!(
                u32::from_le_bytes(*got),
                u32::from_le_bytes(*expected),
                "{name}: operands of kind {block}, thread {thread}, register {register}"
            );
        }
    }
}

#[test]
fn sums_are_those_of_the_gpu() {
    for (index, types) in numeric().into_iter().enumerate() {
        replay(index, types);
    }
}

#[test]
fn matrices_are_read_from_where_the_gpu_reads_them() {
    for (numerics, completion) in [
        (Numerics::Fast, Completion::Latest),
        (Numerics::Exact, Completion::Eager),
        (Numerics::Fast, Completion::Random),
    ] {
        let machine = machine(numerics, completion);
        let transposes = [(0, 0), (0, 1), (1, 0), (1, 1)];
        let halves = [16, 64].into_iter().flat_map(|n| transposes.map(|t| ("f16", n, t)));
        for (ty, n, (a, b)) in halves.chain([("tf32", 16, (0, 0)), ("e4m3", 16, (0, 0))]) {
            let transpose = if width(ty) == 2 { format!(", {a}, {b}") } else { String::new() };
            let shape = format!("m64n{n}k{}.f32.{ty}.{ty}", 32 / width(ty));
            let module = kernel(&shape, n / 2, IMAGE, false, &format!(", 1, 1{transpose}"));
            let name = format!("{ty}_{n}_{a}{b}");
            let descriptors = RECORDED[&format!("descriptors_{name}")].as_chunks::<8>().0;
            let descriptors: Vec<[u64; 2]> =
                descriptors.as_chunks::<2>().0.iter().map(|pair| pair.map(u64::from_le_bytes)).collect();
            let expected = &RECORDED[&format!("layout_{name}")];
            let (image, blocks) = (small(ty, IMAGE as u64), descriptors.len());
            let c = vec![0; expected.len() * 4];
            let all = descriptors.clone();
            let inputs = Inputs { image, step: 0, descriptors, a: vec![0; 2048 * blocks], c, scale: 0 };
            let got = run(&machine, &module, &inputs, expected.len() * 4);
            let each = expected.len() / blocks;
            for (i, (got, &expected)) in got.as_chunks::<4>().0.iter().zip(expected).enumerate() {
                let sum = f32::from_le_bytes(*got);
                let [a, b] = all[i / each];
                let expected = f32::from(expected.cast_signed());
                assert_eq!(sum, expected, "{name}, A {a:#018x}, B {b:#018x}, value {}", i % each);
            }
        }
    }
}

#[test]
fn registers_of_a_hold_what_the_gpu_reads_there() {
    let machine = machine(Numerics::Fast, Completion::Latest);
    for (ty, sums) in [("f16", "f32"), ("bf16", "f32"), ("tf32", "f32"), ("e4m3", "f32"), ("f16", "f16")] {
        for transpose in 0..if width(ty) == 2 { 2 } else { 1 } {
            let expected = &RECORDED[&format!("registers_{sums}_{ty}_{transpose}")];
            let modifiers =
                if width(ty) == 2 { format!(", -1, 1, {transpose}") } else { ", -1, 1".to_owned() };
            let count = if sums == "f16" { 4 } else { 8 };
            let shape = format!("m64n16k{}.{sums}.{ty}.{ty}", 32 / width(ty));
            let module = kernel(&shape, count, IMAGE, true, &modifiers);
            let image = small(ty, IMAGE as u64);
            let mut a = image.clone();
            a.rotate_right(1024);
            a.truncate(2048);
            let descriptors = vec![[0, descriptor(4096, 2048, 256)]];
            let inputs = Inputs { image, step: 0, descriptors, a, c: vec![0; expected.len()], scale: 0 };
            assert_eq!(&run(&machine, &module, &inputs, expected.len()), expected, "{ty} to {sums}");
        }
    }
}

#[test]
fn sums_of_bytes_by_one_warp_are_those_of_the_gpu() {
    let machine = machine(Numerics::Exact, Completion::Latest);
    let pairs = |types: [&'static str; 2]| types.into_iter().flat_map(move |a| types.map(|b| (a, b)));
    let all = pairs(FLOATS).map(|(a, b)| (a, b, "f32")).chain(pairs(INTEGERS).map(|(a, b)| (a, b, "s32")));
    for (index, (a, b, sums)) in all.enumerate() {
        let shape = format!("m16n8k32.row.col.{sums}.{a}.{b}.{sums}");
        let text = include_str!("../../data/wgmma/mma.ptx").replace("SHAPE", &shape);
        let module = parse("mma.ptx", &text).unwrap_or_else(|error| panic!("{error}"));
        let expected = &RECORDED[&format!("mma_{sums}_{a}_{b}")];
        let blocks = expected.len() / 512;
        let (mut of_a, mut of_b, mut of_c) = (Vec::new(), Vec::new(), Vec::new());
        for operation in 0..blocks as u64 {
            let (kind, key) = (operation % KINDS, (10_000 + index as u64 * 64 + operation) * 4);
            of_a.extend(elements(a, kind, key, 512));
            of_b.extend(elements(b, kind, key + 1, 256));
            of_c.extend(addends(sums, kind, key + 2, 128));
        }
        let put = |bytes: &[u8]| {
            let at = machine.allocate(bytes.len() as u64).unwrap();
            machine.write(at, bytes).unwrap();
            at
        };
        let out = machine.allocate(expected.len() as u64).unwrap();
        let arguments = [put(&of_a), put(&of_b), put(&of_c), out];
        launch(&machine, &module, blocks as u32, 32, 0, &arguments).unwrap_or_else(|error| panic!("{error}"));
        let mut got = vec![0; expected.len()];
        machine.read(out, &mut got).unwrap();
        for (i, (got, expected)) in got.as_chunks::<4>().0.iter().zip(expected.as_chunks::<4>().0).enumerate()
        {
            let (got, expected) = (u32::from_le_bytes(*got), u32::from_le_bytes(*expected));
            assert_eq!(got, expected, "{shape}, block {}, lane {}, register {}", i / 128, i / 4 % 32, i % 4);
        }
    }
}

#[test]
fn wide_products_of_integers_are_exact_in_every_element() {
    let machine = machine(Numerics::Exact, Completion::Latest);
    let a = |row: usize, k: usize| (row * 5 + k * 3) as i32 % 13 - 6;
    let b = |column: usize, k: usize| (column * 7 + k * 11) as i32 % 17 - 8;
    for ty in ["f16", "bf16"] {
        let half = |value: i32| match ty {
            "f16" => half::f16::from_f32(value as f32).to_bits(),
            _ => half::bf16::from_f32(value as f32).to_bits(),
        };
        for n in [64, 128, 192, 256] {
            let rows = |count: usize, value: &dyn Fn(usize, usize) -> i32| -> Vec<u8> {
                let elements = (0..count).flat_map(|row| (0..16).map(move |k| (row, k)));
                core_matrices(
                    &elements.flat_map(|(row, k)| half(value(row, k)).to_le_bytes()).collect::<Vec<_>>(),
                )
            };
            let image = [rows(64, &a), rows(n, &b)].concat();
            let count = n / 2;
            let module =
                kernel(&format!("m64n{n}k16.f32.{ty}.{ty}"), count, image.len(), false, ", 1, 1, 0, 0");
            let descriptors = vec![[descriptor(0, 128, 256), descriptor(2048, 128, 256)]];
            let c = vec![0; 128 * 4 * count];
            let inputs = Inputs { image, step: 0, descriptors, a: vec![0; 2048], c, scale: 0 };
            let got = run(&machine, &module, &inputs, 128 * 4 * count);
            for (at, bytes) in got.as_chunks::<4>().0.iter().enumerate() {
                let (thread, i) = (at / count, at % count);
                let (warp, lane) = (thread / 32, thread % 32);
                let row = 16 * warp + lane / 4 + 8 * (i / 2 % 2);
                let column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
                let sum: i32 = (0..16).map(|k| a(row, k) * b(column, k)).sum();
                assert_eq!(f32::from_le_bytes(*bytes), sum as f32, "{ty}, n {n}, row {row}, column {column}");
            }
        }
    }
}
