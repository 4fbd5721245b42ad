//! Matrix instructions: every element at its place.

use half::{bf16, f16};

use crate::common::evaluate;

#[test]
fn ldmatrix_gives_each_lane_its_elements() {
    // Shared memory holds halves that count up; row r of each matrix is row r of an 8-column array.
    let prelude = "{ .shared .align 16 .b8 s[512]; .reg .b32 %x, %y; .reg .b16 %h;\nmad.lo.u32 %x, %t, 16, 0;\n\
                   mov.u32 %y, s;\nadd.u32 %y, %y, %x;\nshl.b32 %x, %t, 3;\n";
    let fill: String = (0..8)
        .map(|i| {
            format!("add.u32 %b32, %x, {i};\ncvt.u16.u32 %h, %b32;\nst.shared.b16 [%y+{}], %h;\n", 2 * i)
        })
        .collect();
    let run = |trans: &str, register: usize| {
        let body = format!(
            "{prelude}{fill}bar.sync 0;\n{{ .reg .b32 %m<4>;\n\
             ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%m0, %m1, %m2, %m3}}, [%y];\nmov.b32 %d32, %m{register}; }} }}"
        );
        evaluate(&body, "32", &[[0; 4]; 32])
    };
    for register in 0..4 {
        for lane in 0..32u64 {
            let (g, t) = (lane / 4, lane % 4);
            let element = |row: u64, column: u64| register as u64 * 64 + row * 8 + column;
            let plain = element(g, 2 * t) | element(g, 2 * t + 1) << 16;
            assert_eq!(run("", register)[lane as usize], plain);
            let transposed = element(2 * t, g) | element(2 * t + 1, g) << 16;
            assert_eq!(run(".trans", register)[lane as usize], transposed);
        }
    }
}

/// A matrix product through one `mma`: every fragment element at its place in the layout of the PTX ISA.
fn mma(shape: &str, registers: [usize; 3], half_bits: &dyn Fn(i32) -> u64, k: usize, tf32: bool) {
    let a = |row: usize, q: usize| (row * 5 + q * 3) as i32 % 7 - 3;
    let b = |q: usize, column: usize| (q * 2 + column * 5) as i32 % 9 - 4;
    let c = |row: usize, column: usize| (row * 8 + column) as i32 - 60;
    let words = |f: &dyn Fn(usize, usize, usize) -> i32, register: usize, lane: usize| {
        if tf32 {
            u64::from((f(register, lane, 0) as f32).to_bits() | 0x1abc)
        } else {
            half_bits(f(register, lane, 0)) | half_bits(f(register, lane, 1)) << 16
        }
    };
    let width = if tf32 { 1 } else { 2 };
    let fa = |r: usize, lane: usize, h: usize| {
        a(lane / 4 + 8 * (r % 2), width * (lane % 4) + h + 4 * width * (r / 2))
    };
    let fb = |r: usize, lane: usize, h: usize| b(width * (lane % 4) + h + 4 * width * r, lane / 4);
    let [na, nb, nc] = registers;
    let mut body = String::from("{ .reg .b32 %ma<4>, %mb<2>, %mc<4>, %md<4>;\n.reg .pred %is;\n");
    for (name, count) in [("ma", na), ("mb", nb), ("mc", nc)] {
        for r in 0..count {
            body += &format!("mov.b32 %{name}{r}, 0;\n");
        }
    }
    for lane in 0..32 {
        body += &format!("setp.eq.u32 %is, %t, {lane};\n");
        for r in 0..na {
            body += &format!("@%is mov.b32 %ma{r}, {};\n", words(&fa, r, lane));
        }
        for r in 0..nb {
            body += &format!("@%is mov.b32 %mb{r}, {};\n", words(&fb, r, lane));
        }
        for r in 0..nc {
            let value = |half: usize| c(lane / 4 + 8 * r, 2 * (lane % 4) + half);
            let word = if nc == 2 {
                half_bits(value(0)) | half_bits(value(1)) << 16
            } else {
                u64::from((c(lane / 4 + 8 * (r / 2), 2 * (lane % 4) + r % 2) as f32).to_bits())
            };
            body += &format!("@%is mov.b32 %mc{r}, {word};\n");
        }
    }
    let list =
        |name: &str, count: usize| (0..count).map(|i| format!("%{name}{i}")).collect::<Vec<_>>().join(", ");
    body += &format!(
        "mma.sync.aligned.{shape} {{{}}}, {{{}}}, {{{}}}, {{{}}};\n",
        list("md", nc),
        list("ma", na),
        list("mb", nb),
        list("mc", nc)
    );
    let expected =
        |row: usize, column: usize| c(row, column) + (0..k).map(|q| a(row, q) * b(q, column)).sum::<i32>();
    for r in 0..nc {
        let got = evaluate(&format!("{body}mov.b32 %d32, %md{r}; }}"), "32", &[[0; 4]; 32]);
        for (lane, &got) in got.iter().enumerate() {
            let want = if nc == 2 {
                let value = |half: usize| half_bits(expected(lane / 4 + 8 * r, 2 * (lane % 4) + half));
                value(0) | value(1) << 16
            } else {
                u64::from((expected(lane / 4 + 8 * (r / 2), 2 * (lane % 4) + r % 2) as f32).to_bits())
            };
            assert_eq!(got, want, "{shape}, register {r}, lane {lane}");
        }
    }
}

#[test]
fn mma_multiplies_in_every_shape() {
    let half = |v: i32| u64::from(f16::from_f32(v as f32).to_bits());
    let brain = |v: i32| u64::from(bf16::from_f32(v as f32).to_bits());
    mma("m16n8k16.row.col.f32.f16.f16.f32", [4, 2, 4], &half, 16, false);
    mma("m16n8k16.row.col.f32.bf16.bf16.f32", [4, 2, 4], &brain, 16, false);
    mma("m16n8k8.row.col.f32.f16.f16.f32", [2, 1, 4], &half, 8, false);
    mma("m16n8k8.row.col.f32.bf16.bf16.f32", [2, 1, 4], &brain, 8, false);
    mma("m16n8k16.row.col.f16.f16.f16.f16", [4, 2, 2], &half, 16, false);
    mma("m16n8k8.row.col.f16.f16.f16.f16", [2, 1, 2], &half, 8, false);
    // The low 13 bits of TF32 operands are set, and must not count.
    mma("m16n8k8.row.col.f32.tf32.tf32.f32", [4, 2, 4], &half, 8, true);
    mma("m16n8k4.row.col.f32.tf32.tf32.f32", [2, 1, 4], &half, 4, true);
}
