//! `wmma` and the small products of `mma`: exact for small integers, in every shape, type and layout.

use half::{bf16, f16};
use warpsmith_emulator::{Config, FindingKind, Machine, Numerics};

use crate::common::{finding, launch, module};

/// The bits of a small integer in a type, and their number.
fn encode(ty: &str, value: i32) -> (u64, usize) {
    match ty {
        "f16" => (u64::from(f16::from_f32(value as f32).to_bits()), 2),
        "bf16" => (u64::from(bf16::from_f32(value as f32).to_bits()), 2),
        "s8" | "u8" => (u64::from(value as u8), 1),
        "s32" => (u64::from(value.cast_unsigned()), 4),
        "f64" => (f64::from(value).to_bits(), 8),
        _ => (u64::from((value as f32).to_bits()), 4),
    }
}

/// A matrix in memory, its lines `stride` elements apart.
fn stored(
    ty: &str,
    rows: usize,
    columns: usize,
    column_major: bool,
    stride: usize,
    value: impl Fn(usize, usize) -> i32,
) -> Vec<u8> {
    let lines = if column_major { columns } else { rows };
    let (_, bytes) = encode(ty, 0);
    let mut data = vec![0; lines * stride * bytes];
    for (row, column) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
        let at = if column_major { column * stride + row } else { row * stride + column };
        data[at * bytes..][..bytes].copy_from_slice(&encode(ty, value(row, column)).0.to_le_bytes()[..bytes]);
    }
    data
}

struct Case<'c> {
    shape: (usize, usize, usize),
    types: [&'c str; 4],
    layouts: [bool; 4],
    /// Elements between lines beyond the lines' own; none: the instruction leaves the stride out.
    gap: Option<usize>,
}

/// Registers of A, B, C and D.
fn registers(shape: (usize, usize, usize), types: [&str; 4]) -> [usize; 4] {
    let (m, n, k) = shape;
    let count = |ty: &str, total: usize| match ty {
        "f64" => total / 32,
        "f16" if total <= 256 => 8,
        ty => total * encode(ty, 0).1 / 128,
    };
    let sums = |ty: &str| if ty == "f64" { 2 } else { m * n * encode(ty, 0).1 / 128 };
    [count(types[1], m * k), count(types[2], k * n), sums(types[3]), sums(types[0])]
}

fn run(case: &Case<'_>, numerics: Numerics) {
    let (m, n, k) = case.shape;
    let [d, a, b, c] = case.types;
    let name = format!("m{m}n{n}k{k}");
    let layout = |i: usize| if case.layouts[i] { "col" } else { "row" };
    let negative = if matches!(a, "u8") { 0 } else { 3 };
    let value_a = |r: usize, c: usize| (r * 5 + c * 3) as i32 % 7 - negative;
    let value_b = |r: usize, c: usize| (r * 2 + c * 7) as i32 % 5 - if b == "u8" { 0 } else { 2 };
    let value_c = |r: usize, c: usize| (r * 3 + c) as i32 % 11 - 5;
    let line = |rows, columns, i: usize| if case.layouts[i] { rows } else { columns };
    let [sa, sb, sc, sd] =
        [line(m, k, 0), line(k, n, 1), line(m, n, 2), line(m, n, 3)].map(|l| l + case.gap.unwrap_or(0));
    let [ra, rb, rc, rd] = registers(case.shape, case.types);
    let class = if a == "f64" { "%d" } else { "%r" };
    let list = |first: usize, count: usize| {
        (first..first + count).map(|i| format!("{class}{}", i + 10)).collect::<Vec<_>>().join(", ")
    };
    let stride = |s: usize| if case.gap.is_some() { format!(", {s}") } else { String::new() };
    let of_mma = match a {
        "f16" => format!("{d}.{c}"),
        _ => format!("{d}.{a}.{b}.{c}"),
    };
    let text = format!(
        ".visible .entry t(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)\n{{\n.reg .b32 %r<60>; \
            .reg .b64 %d<40>;\n\
         ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b]; ld.param.u64 %d2, [c]; ld.param.u64 %d3, [d];\n\
         wmma.load.a.sync.aligned.{}.{name}.global.{a} {{{}}}, [%d0]{};\n\
         wmma.load.b.sync.aligned.{}.{name}.{b} {{{}}}, [%d1]{};\n\
         wmma.load.c.sync.aligned.{}.{name}.global.{c} {{{}}}, [%d2]{};\n\
         wmma.mma.sync.aligned.{}.{}.{name}.{of_mma} {{{}}}, {{{}}}, {{{}}}, {{{}}};\n\
         wmma.store.d.sync.aligned.{}.{name}.global.{d} [%d3], {{{}}}{};\nret;\n}}\n",
        layout(0),
        list(0, ra),
        stride(sa),
        layout(1),
        list(ra, rb),
        stride(sb),
        layout(2),
        list(ra + rb, rc),
        stride(sc),
        layout(0),
        layout(1),
        list(ra + rb + rc, rd),
        list(0, ra),
        list(ra, rb),
        list(ra + rb, rc),
        layout(3),
        list(ra + rb + rc, rd),
        stride(sd),
    );
    let machine = Machine::new(Config { numerics, ..Config::default() });
    let put = |data: &[u8]| {
        let at = machine.allocate(data.len() as u64).unwrap();
        machine.write(at, data).unwrap();
        at
    };
    let at_a = put(&stored(a, m, k, case.layouts[0], sa, value_a));
    let at_b = put(&stored(b, k, n, case.layouts[1], sb, value_b));
    let at_c = put(&stored(c, m, n, case.layouts[2], sc, value_c));
    let product = |row: usize, column: usize| {
        (0..k).map(|i| value_a(row, i) * value_b(i, column)).sum::<i32>() + value_c(row, column)
    };
    let expected = stored(d, m, n, case.layouts[3], sd, product);
    let at_d = put(&vec![0; expected.len()]);
    launch(&machine, &module(&text), 1, 32, 0, &[at_a, at_b, at_c, at_d])
        .unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut got = vec![0; expected.len()];
    machine.read(at_d, &mut got).unwrap();
    assert!(got == expected, "wrong sums:\n{text}");
}

const SHAPES: [(usize, usize, usize); 3] = [(16, 16, 16), (8, 32, 16), (32, 8, 16)];

fn cases(mut f: impl FnMut(&Case<'_>)) {
    let halves = [
        ["f16", "f16", "f16", "f16"],
        ["f32", "f16", "f16", "f32"],
        ["f32", "f16", "f16", "f16"],
        ["f16", "f16", "f16", "f32"],
    ];
    let others = [
        ["f32", "bf16", "bf16", "f32"],
        ["s32", "s8", "s8", "s32"],
        ["s32", "u8", "u8", "s32"],
        ["s32", "s8", "u8", "s32"],
    ];
    let wide =
        SHAPES.iter().flat_map(|&shape| halves.iter().chain(&others).map(move |&types| (shape, types)));
    let narrow = [((16, 16, 8), ["f32", "tf32", "tf32", "f32"]), ((8, 8, 4), ["f64", "f64", "f64", "f64"])];
    for (shape, types) in wide.chain(narrow) {
        for bits in 0..16 {
            let layouts = [0, 1, 2, 3].map(|i| bits >> i & 1 == 1);
            for gap in [None, Some(16)] {
                f(&Case { shape, types, layouts, gap });
            }
        }
    }
}

#[test]
fn products_of_matrices_are_exact_in_every_shape_type_and_layout() {
    let mut count = 0;
    cases(|case| {
        run(case, Numerics::Fast);
        count += 1;
    });
    assert_eq!(count, (3 * 8 + 2) * 32);
}

#[test]
fn so_they_are_as_tensor_cores_add() {
    cases(|case| {
        if case.layouts == [false, true, false, false] {
            run(case, Numerics::Exact);
        }
    });
}

#[test]
fn a_matrix_outside_its_memory_and_a_partial_warp_are_findings() {
    let text = ".visible .entry t(.param .u64 a)\n{\n.reg .b32 %r<8>; .reg .b64 %a;\nld.param.u64 %a, [a];\n\
        wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}, [%a], 16;\nret;\n}\n";
    let machine = Machine::default();
    let a = machine.allocate(511).unwrap();
    assert_eq!(finding(launch(&machine, &module(text), 1, 32, 0, &[a])).kind, FindingKind::OutOfBounds);
    let a = machine.allocate(512).unwrap();
    launch(&machine, &module(text), 1, 32, 0, &[a]).unwrap();
    assert_eq!(finding(launch(&machine, &module(text), 1, 16, 0, &[a])).kind, FindingKind::Divergence);
}

#[test]
fn products_of_doubles_and_of_eight_rows_of_bytes() {
    for (shape, m, k) in [("m8n8k4", 8, 4), ("m16n8k4", 16, 4), ("m16n8k8", 16, 8), ("m16n8k16", 16, 16)] {
        let (of_a, of_b, sums) = (m * k / 32, k * 8 / 32, m * 8 / 32);
        let list =
            |name: &str, n: usize| (0..n).map(|i| format!("%{name}{i}")).collect::<Vec<_>>().join(", ");
        // A[r][k] = r + 10k, B[k][c] = c - k, C = 1.
        let mut text = ".visible .entry t(.param .u64 y)\n{\n.reg .b32 %t, %g, %q, %v; .reg .b64 %y, %s<4>; \
            .reg .f64 %a<8>, %b<4>, %c<4>, %u, %w;\n\
            ld.param.u64 %y, [y]; mov.u32 %t, %laneid; shr.u32 %g, %t, 2; and.b32 %q, %t, 3;\n"
            .to_owned();
        for i in 0..of_a {
            let (row, column) = (8 * (i % (m / 8)), 4 * (i / (m / 8)));
            text += &format!(
                "mad.lo.u32 %v, %q, 10, {}; add.u32 %v, %v, %g; cvt.rn.f64.u32 %a{i}, %v;\n",
                row + 10 * column
            );
        }
        for i in 0..of_b {
            text += &format!("sub.s32 %v, %g, %q; sub.s32 %v, %v, {}; cvt.rn.f64.s32 %b{i}, %v;\n", 4 * i);
        }
        for i in 0..sums {
            text += &format!("mov.f64 %c{i}, 1.0;\n");
        }
        text += &format!(
            "mma.sync.aligned.{shape}.row.col.f64.f64.f64.f64 {{{}}}, {{{}}}, {{{}}}, {{{}}};\n",
            list("c", sums),
            list("a", of_a),
            list("b", of_b),
            list("c", sums)
        );
        text += &format!("mul.wide.u32 %s0, %t, {}; add.u64 %y, %y, %s0;\n", sums * 8);
        for i in 0..sums {
            text += &format!("st.global.f64 [%y+{}], %c{i};\n", 8 * i);
        }
        text += "ret;\n}\n";
        let machine = Machine::default();
        let y = machine.allocate((32 * sums * 8) as u64).unwrap();
        launch(&machine, &crate::common::hopper_module(&text), 1, 32, 0, &[y]).err();
        let machine = Machine::new(Config::hopper());
        let y = machine.allocate((32 * sums * 8) as u64).unwrap();
        launch(&machine, &crate::common::hopper_module(&text), 1, 32, 0, &[y]).unwrap();
        let mut bytes = vec![0; 32 * sums * 8];
        machine.read(y, &mut bytes).unwrap();
        for lane in 0..32 {
            for i in 0..sums {
                let (row, column) = (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2);
                let terms = (0..k).map(|k| (row as f64 + 10.0 * k as f64) * (column as f64 - k as f64));
                let got = f64::from_le_bytes(bytes[(lane * sums + i) * 8..][..8].try_into().unwrap());
                assert_eq!(got, 1.0 + terms.sum::<f64>(), "{shape}: {row}, {column}");
            }
        }
    }
    for (a, b, satfinite) in
        [("s8", "s8", ""), ("u8", "u8", ""), ("s8", "u8", ".satfinite"), ("u8", "s8", "")]
    {
        let text = format!(
            ".visible .entry t(.param .u64 y)\n{{\n.reg .b32 %t, %a, %b, %c, %d; \
                .reg .b64 %y, %s;\nld.param.u64 %y, [y]; mov.u32 %t, %laneid;\n\
             mul.lo.u32 %a, %t, 0x01030507; add.u32 %a, %a, 0x80c0f011; mul.lo.u32 %b, %t, 0x07050301; \
             add.u32 %b, %b, 0xff80017f;\n\
             mov.b32 %c, 5; mov.b32 %d, -5;\n\
             mma.sync.aligned.m8n8k16.row.col{satfinite}.s32.{a}.{b}.s32 {{%c, %d}}, {{%a}}, {{%b}}, {{%c, %d}};\n\
             mul.wide.u32 %s, %t, 8; add.u64 %y, %y, %s; st.global.v2.b32 [%y], {{%c, %d}};\nret;\n}}\n"
        );
        let machine = Machine::default();
        let y = machine.allocate(256).unwrap();
        launch(&machine, &module(&text), 1, 32, 0, &[y]).unwrap();
        let mut bytes = [0; 256];
        machine.read(y, &mut bytes).unwrap();
        let word = |lane: u32, factor: u32, addend: u32| {
            lane.wrapping_mul(factor).wrapping_add(addend).to_le_bytes()
        };
        let value =
            |byte: u8, ty: &str| if ty == "s8" { i32::from(byte.cast_signed()) } else { i32::from(byte) };
        for (row, column) in (0..8u32).flat_map(|r| (0..8u32).map(move |c| (r, c))) {
            let sum: i32 = (0..16u32)
                .map(|k| {
                    let of_a = word(row * 4 + k / 4, 0x0103_0507, 0x80c0_f011)[k as usize % 4];
                    let of_b = word(column * 4 + k / 4, 0x0705_0301, 0xff80_017f)[k as usize % 4];
                    value(of_a, a) * value(of_b, b)
                })
                .sum();
            let at = ((row * 4 + column / 2) * 8 + column % 2 * 4) as usize;
            let got = i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            assert_eq!(got, sum + if column % 2 == 0 { 5 } else { -5 }, "{a} {b}: {row}, {column}");
        }
    }
}
