//! Matrix products against what an H100 gave, bit for bit.
//!
//! `data/mma/*.bin` was recorded on an H100 (driver 580): for each of 36 warps the registers of A, B and C of every lane,
//! then the results. The operands are random: of moderate and of all exponents, with cancellation, subnormal numbers,
//! infinities and NaN, and plain random bits.

use crate::common::{launch, module};
use warpsmith_emulator::{Config, Machine, Numerics};

fn replay(shape: &str, [a, b, c]: [usize; 3], data: &[u8]) {
    let inputs = (a + b + c) * 4;
    let list =
        |name: &str, count: usize| (0..count).map(|i| format!("%{name}{i}")).collect::<Vec<_>>().join(", ");
    let mut text = format!(
        ".visible .entry test(.param .u64 p_in, .param .u64 p_out)\n{{\n.reg .b64 %in, %out;\n\
         .reg .b32 %t, %u, %a<4>, %b<2>, %c<4>, %d<4>;\nld.param.u64 %in, [p_in];\nld.param.u64 %out, [p_out];\n\
         mov.u32 %t, %tid.x;\nmov.u32 %u, %ctaid.x;\nmad.lo.u32 %t, %u, 32, %t;\n\
         mad.wide.u32 %in, %t, {inputs}, %in;\nmad.wide.u32 %out, %t, {}, %out;\n",
        4 * c
    );
    let mut offset = 0;
    for (name, count) in [("a", a), ("b", b), ("c", c)] {
        for i in 0..count {
            text += &format!("ld.global.u32 %{name}{i}, [%in+{offset}];\n");
            offset += 4;
        }
    }
    text += &format!(
        "mma.sync.aligned.{shape} {{{}}}, {{{}}}, {{{}}}, {{{}}};\n",
        list("d", c),
        list("a", a),
        list("b", b),
        list("c", c)
    );
    for i in 0..c {
        text += &format!("st.global.u32 [%out+{}], %d{i};\n", 4 * i);
    }
    text += "ret;\n}\n";
    let (inputs, outputs) = (32 * inputs, 32 * 4 * c);
    let warps: Vec<(&[u8], &[u8])> =
        data.chunks_exact(inputs + outputs).map(|warp| warp.split_at(inputs)).collect();
    assert_eq!((warps.len(), data.len() % (inputs + outputs)), (36, 0));
    let numerics = Numerics::Exact;
    let machine = Machine::new(Config { compute_capability: (9, 0), numerics, ..Config::default() });
    let given: Vec<u8> = warps.iter().flat_map(|(input, _)| input.iter().copied()).collect();
    let input = machine.allocate(given.len() as u64).unwrap();
    machine.write(input, &given).unwrap();
    let output = machine.allocate((warps.len() * outputs) as u64).unwrap();
    launch(&machine, &module(&text), warps.len() as u32, 32, 0, &[input, output])
        .unwrap_or_else(|error| panic!("{error}"));
    let mut got = vec![0; warps.len() * outputs];
    machine.read(output, &mut got).unwrap();
    for (warp, (got, (_, expected))) in got.chunks_exact(outputs).zip(warps).enumerate() {
        assert_eq!(got, expected, "{shape}, warp {warp}");
    }
}

#[test]
fn products_of_f16_are_those_of_the_gpu() {
    replay("m16n8k16.row.col.f32.f16.f16.f32", [4, 2, 4], include_bytes!("../data/mma/f16k16.bin"));
    replay("m16n8k8.row.col.f32.f16.f16.f32", [2, 1, 4], include_bytes!("../data/mma/f16k8.bin"));
}

#[test]
fn products_of_f16_with_f16_sums_are_those_of_the_gpu() {
    replay("m16n8k16.row.col.f16.f16.f16.f16", [4, 2, 2], include_bytes!("../data/mma/halfk16.bin"));
}

#[test]
fn products_of_bf16_are_those_of_the_gpu() {
    replay("m16n8k16.row.col.f32.bf16.bf16.f32", [4, 2, 4], include_bytes!("../data/mma/bf16k16.bin"));
}

#[test]
fn products_of_tf32_are_those_of_the_gpu() {
    replay("m16n8k8.row.col.f32.tf32.tf32.f32", [4, 2, 4], include_bytes!("../data/mma/tf32k8.bin"));
}
