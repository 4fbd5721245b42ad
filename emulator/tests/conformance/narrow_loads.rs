//! Loads of bytes, of halves and of several words, in shared memory and in memory that nothing writes.

use warpsmith_emulator::{Config, Machine};

use crate::common::{launch, module};

/// Runs `body` in one thread, which finds 64 bytes at `%in` and, copied, at `%tile` in shared memory, and puts four words at `%out`.
fn results(body: &str) -> [u32; 4] {
    let text = format!(
        ".visible .entry test(.param .u64 p_in, .param .u64 p_out)\n{{\n\
         .reg .b64 %in, %out;\n.reg .b32 %tile, %w0, %w1, %w2, %w3;\n.reg .b16 %h;\n.reg .f32 %f0, %f1, %f2, %f3;\n\
         .shared .align 16 .b8 buffer[64];\n\
         ld.param.u64 %in, [p_in];\nld.param.u64 %out, [p_out];\nmov.u32 %tile, buffer;\n\
         ld.global.v4.u32 {{%w0, %w1, %w2, %w3}}, [%in];\nst.shared.v4.b32 [%tile], {{%w0, %w1, %w2, %w3}};\n\
         mov.b32 %w0, 0; mov.b32 %w1, 0; mov.b32 %w2, 0; mov.b32 %w3, 0;\n\
         {body}\nst.global.v4.b32 [%out], {{%w0, %w1, %w2, %w3}};\n}}\n"
    );
    let machine = Machine::new(Config { compute_capability: (8, 0), ..Config::default() });
    let input: Vec<u8> = (0..64u32).map(|i| (0x81 + 3 * i) as u8).collect();
    let (from, to) = (machine.allocate(64).unwrap(), machine.allocate(16).unwrap());
    machine.write(from, &input).unwrap();
    launch(&machine, &module(&text), 1, 1, 0, &[from, to]).unwrap_or_else(|error| panic!("{error}"));
    let mut out = [0; 16];
    machine.read(to, &mut out).unwrap();
    std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|byte| out[4 * i + byte])))
}

/// The word of the input at a byte.
fn word(at: u32) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| (0x81 + 3 * (at + i as u32)) as u8))
}

#[test]
fn a_byte_of_shared_memory_is_zero_extended() {
    for at in 0..16 {
        let body = format!("ld.shared.b8 %h, [%tile+{at}];\ncvt.u32.u16 %w1, %h;");
        assert_eq!(results(&body), [0, word(at) & 0xff, 0, 0]);
    }
}

#[test]
fn a_half_of_shared_memory_is_the_two_bytes() {
    for at in (0..16).step_by(2) {
        let body = format!("ld.shared.b16 %h, [%tile+{at}];\ncvt.u32.u16 %w2, %h;");
        assert_eq!(results(&body), [0, 0, word(at) & 0xffff, 0]);
    }
}

#[test]
fn a_number_of_shared_memory_keeps_its_bits() {
    for at in (0..16).step_by(4) {
        let body = format!("ld.shared.f32 %f0, [%tile+{at}];\nmov.b32 %w0, %f0;");
        assert_eq!(results(&body), [word(at), 0, 0, 0]);
    }
}

#[test]
fn memory_that_may_be_written_is_loaded_alike() {
    for at in (0..48).step_by(16) {
        let body = format!("ld.global.b16 %h, [%in+{}];\ncvt.u32.u16 %w2, %h;", at + 6);
        assert_eq!(results(&body), [0, 0, word(at + 6) & 0xffff, 0]);
        let body = format!("ld.global.f32 %f0, [%in+{at}];\nmov.b32 %w1, %f0;");
        assert_eq!(results(&body), [0, word(at), 0, 0]);
        let body = format!("ld.global.v2.b32 {{%w3, %w0}}, [%in+{}];", at + 8);
        assert_eq!(results(&body), [word(at + 12), 0, 0, word(at + 8)]);
        for cache in ["", ".cs"] {
            let body = format!("ld.global{cache}.v4.b32 {{%w3, %w2, %w1, %w0}}, [%in+{at}];");
            assert_eq!(results(&body), [word(at + 12), word(at + 8), word(at + 4), word(at)]);
        }
    }
}

#[test]
fn a_byte_is_stored_alone() {
    for at in 0..4 {
        let body = format!(
            "ld.global.v4.b32 {{%w0, %w1, %w2, %w3}}, [%in];\nst.global.b8 [%in+{at}], %w1;\n\
             ld.global.v4.b32 {{%w0, %w1, %w2, %w3}}, [%in];"
        );
        let shift = 8 * at;
        let first = word(0) & !(0xff << shift) | ((word(4) & 0xff) << shift);
        assert_eq!(results(&body), [first, word(4), word(8), word(12)]);
    }
}

#[test]
fn several_numbers_are_consecutive_words() {
    for at in (0..48).step_by(16) {
        let body = format!("ld.global.nc.v4.b32 {{%w3, %w2, %w1, %w0}}, [%in+{at}];");
        assert_eq!(results(&body), [word(at + 12), word(at + 8), word(at + 4), word(at)]);
        let body = format!(
            "ld.global.nc.v4.f32 {{%f0, %f1, %f2, %f3}}, [%in+{at}];\n\
             mov.b32 %w0, %f0; mov.b32 %w1, %f1; mov.b32 %w2, %f2; mov.b32 %w3, %f3;"
        );
        assert_eq!(results(&body), [word(at), word(at + 4), word(at + 8), word(at + 12)]);
        let body = format!(
            "ld.global.nc.v2.f32 {{%f0, %f1}}, [%in+{}];\nmov.b32 %w0, %f0; mov.b32 %w3, %f1;",
            at + 8
        );
        assert_eq!(results(&body), [word(at + 8), 0, 0, word(at + 12)]);
    }
}

#[test]
fn a_register_wider_than_the_number_has_zeros_above_it() {
    for at in (0..16).step_by(2) {
        let body = format!("mov.b32 %w0, -1;\nld.global.nc.u16 %w0, [%in+{at}];");
        let half = word(at / 4 * 4) >> (8 * (at % 4)) & 0xffff;
        assert_eq!(results(&body)[0], half, "{at}");
    }
}
