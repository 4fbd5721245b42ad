//! Branches, returns, barriers, parameters, and copies whose source is shorter than their destination.

use warpsmith_emulator::{FindingKind, LaunchConfig, Machine};

use crate::common::{evaluate, finding, launch, module};
use crate::harness::check;

fn lanes() -> Vec<[u64; 4]> {
    (0..64).map(|lane| [lane, lane % 4, lane * 7 % 64, lane % 3]).collect()
}

#[test]
fn branches_choose_a_path_for_each_lane() {
    let body = "setp.lt.u32 %dp, %a32, 20;\n@%dp bra $LESS;\n@!%ep bra $THIRD;\nadd.u32 %d32, %a32, 100;\n\
                bra.uni $END;\n$THIRD:\nmov.u32 %d32, 7;\nbra $END;\n$LESS:\nadd.u32 %d32, %a32, 1000;\n$END:";
    check(body, "32", &lanes(), |[a, _, _, e]| match (a, e) {
        (0..20, _) => a + 1000,
        (_, 0) => 7,
        _ => a + 100,
    });
    // A loop whose count differs from lane to lane.
    let body =
        "$AGAIN:\nsetp.ge.u32 %dp, %d32, %c32;\n@%dp bra $DONE;\nadd.u32 %d32, %d32, 3;\nbra $AGAIN;\n$DONE:";
    check(body, "32", &lanes(), |[_, _, c, _]| c.div_ceil(3) * 3);
}

#[test]
fn an_indexed_branch_takes_the_label_of_its_number() {
    let body = "$LIST: .branchtargets $ONE, $TWO, $ONE, $FOUR;\nbrx.idx %b32, $LIST;\n\
                $ONE:\nmov.u32 %d32, 11;\nbra.uni $END;\n$TWO:\nmov.u32 %d32, 22;\nbra.uni $END;\n\
                $FOUR:\nmov.u32 %d32, 44;\n$END:";
    check(body, "32", &lanes(), |[_, b, ..]| [11, 22, 11, 44][b as usize]);
}

#[test]
fn lanes_that_return_leave_the_others_running() {
    for leave in ["ret", "exit"] {
        let module = module(&format!(
            ".visible .entry test(.param .u64 p) {{\n.reg .b64 %p; .reg .b32 %t, %m; .reg .pred %q;\n\
             ld.param.b64 %p, [p];\nmov.u32 %t, %tid.x;\nmad.wide.u32 %p, %t, 4, %p;\nsetp.lt.u32 %q, %t, 5;\n\
             @%q {leave};\nactivemask.b32 %m;\nst.global.b32 [%p], %m;\n{leave};\n}}"
        ));
        let machine = Machine::default();
        let memory = machine.allocate(128).unwrap();
        machine.fill(memory, 0, 128).unwrap();
        launch(&machine, &module, 1, 32, 0, &[memory]).unwrap();
        let mut out = [0; 128];
        machine.read(memory, &mut out).unwrap();
        let words: Vec<u32> =
            out.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
        assert!(
            words[..5].iter().all(|&w| w == 0) && words[5..].iter().all(|&w| w == 0xffff_ffe0),
            "{leave}"
        );
    }
}

#[test]
fn a_trap_ends_the_launch() {
    let module = module(
        ".visible .entry test(.param .u64 p) {\n.reg .b32 %t; .reg .pred %q;\nmov.u32 %t, %tid.x;\n\
         setp.eq.u32 %q, %t, 9;\n@%q trap;\nret;\n}",
    );
    let found = finding(launch(&Machine::default(), &module, 1, 32, 0, &[0]));
    assert_eq!(found.kind, FindingKind::Trap);
    launch(&Machine::default(), &module, 1, 8, 0, &[0]).unwrap();
}

#[test]
fn barriers_make_shared_writes_visible() {
    // 64 threads: each reads what the thread at the other end wrote.
    for barrier in
        ["bar.sync 0", "barrier.sync.aligned 1", "barrier.sync 2, 64", "bar.warp.sync -1;\nbar.cta.sync 3"]
    {
        let body = format!(
            "{{ .shared .b32 s[64]; .reg .b32 %p, %q, %r; mov.u32 %p, s; shl.b32 %r, %t, 2; add.u32 %q, %p, %r;\n\
             st.shared.b32 [%q], %c32;\n{barrier};\nsub.u32 %r, 252, %r; add.u32 %q, %p, %r; ld.shared.b32 %d32, [%q]; }}"
        );
        check(&body, "32", &lanes(), |[a, ..]| (63 - a) * 7 % 64);
    }
}

#[test]
fn parameters_of_every_size_are_read() {
    let sizes =
        ["b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"];
    let value = 0x8182_8384_8586_8788u64;
    for ty in sizes {
        let bits: u32 = ty[1..].parse().unwrap();
        let (register, widen) = match bits {
            8 | 16 => {
                ("b16", format!("cvt.{0}64.{0}16 %x, %v;", if ty.starts_with('s') { "s" } else { "u" }))
            }
            32 => ("b32", "cvt.u64.u32 %x, %v;".to_owned()),
            _ => ("b64", "mov.b64 %x, %v;".to_owned()),
        };
        let module = module(&format!(
            ".visible .entry test(.param .u64 out, .param .align 8 .b8 bytes[16]) {{\n.reg .b64 %p, %x; .reg .{register} %v;\n\
             ld.param.u64 %p, [out];\nld.param.{ty} %v, [bytes+8];\n{widen}\nst.global.b64 [%p], %x;\nret;\n}}"
        ));
        let machine = Machine::default();
        let memory = machine.allocate(8).unwrap();
        let config = LaunchConfig { grid: [1; 3], block: [1; 3], ..LaunchConfig::default() };
        let mut bytes = [0; 16];
        bytes[8..].copy_from_slice(&value.to_le_bytes());
        machine.launch(&module, "test", &config, &[&memory.to_le_bytes(), &bytes]).unwrap();
        let mut out = [0; 8];
        machine.read(memory, &mut out).unwrap();
        let kept = value << (64 - bits);
        let expected = match ty.starts_with('s') && bits < 32 {
            true => (kept.cast_signed() >> (64 - bits)).cast_unsigned(),
            false => kept >> (64 - bits),
        };
        assert_eq!(u64::from_le_bytes(out), expected, "{ty}");
    }
}

#[test]
fn a_parameter_has_a_generic_address() {
    let module = module(
        ".visible .entry test(.param .u64 out, .param .align 64 .b8 bytes[128]) {\n.reg .b64 %p, %q; .reg .b32 %v;\n\
         ld.param.u64 %p, [out];\nmov.b64 %q, bytes;\ncvta.param.u64 %q, %q;\nld.b32 %v, [%q+100];\n\
         st.global.b32 [%p], %v;\nret;\n}",
    );
    let machine = Machine::default();
    let memory = machine.allocate(4).unwrap();
    let config = LaunchConfig { grid: [1; 3], block: [1; 3], ..LaunchConfig::default() };
    let bytes: Vec<u8> = (0..128).collect();
    machine.launch(&module, "test", &config, &[&memory.to_le_bytes(), &bytes]).unwrap();
    let mut out = [0; 4];
    machine.read(memory, &mut out).unwrap();
    assert_eq!(out, [100, 101, 102, 103]);
}

#[test]
fn shared_memory_is_accessed_in_vectors() {
    let prelude = "{ .shared .align 16 .b8 s[2048]; .reg .b32 %p, %v<4>; .reg .b64 %w<2>; mov.u32 %p, s;\n\
                   mad.lo.u32 %p, %t, 32, %p;";
    // The thread's inputs are 64 bits each: a, b, c, e.
    let words = ["st.shared.v2.b64 [%p], {%a64, %b64};", "st.shared.v2.b64 [%p+16], {%c64, %e64};"].concat();
    for (load, sum) in [
        ("ld.shared.v2.f32 {%v0, %v1}, [%p+8];", "add.s32 %d32, %v0, %v1;"),
        (
            "ld.shared.v4.b32 {%v0, %v1, %v2, %v3}, [%p];",
            "add.s32 %d32, %v0, %v1; sub.s32 %d32, %d32, %v2; sub.s32 %d32, %d32, %v3; neg.s32 %d32, %d32;",
        ),
        ("ld.shared.v4.f32 {%v0, %v1, %v2, %v3}, [%p+16];", "mad.lo.s32 %d32, %v2, 7, %v0;"),
    ] {
        let expected = |[a, b, c, e]: [u64; 4]| match () {
            () if load.contains(".v2") => b,
            () if load.contains(".v4.b32") => b.wrapping_sub(a) & 0xffff_ffff,
            () => e * 7 + c,
        };
        check(&format!("{prelude}\n{words}\n{load}\n{sum} }}"), "32", &lanes(), expected);
    }
    let single = "st.shared.f32 [%p], %c32; st.shared.v2.f32 [%p+8], {%a32, %b32}; st.shared.v4.b32 [%p+16], {%a32, %b32, %c32, %e32};\n\
                  ld.shared.b32 %d32, [%p]; ld.shared.b32 %v0, [%p+12]; ld.shared.b32 %v1, [%p+24];\n\
                  mad.lo.s32 %d32, %v0, 64, %d32; mad.lo.s32 %d32, %v1, 4096, %d32;";
    check(&format!("{prelude}\n{single} }}"), "32", &lanes(), |[_, b, c, _]| c + 64 * b + 4096 * c);
}

#[test]
fn constants_are_read() {
    let module = module(
        ".const .align 4 .b32 table[4] = {3, 1, 4, 1};\n.visible .entry test(.param .u64 p) {\n\
         .reg .b64 %p, %c; .reg .b32 %t, %v; .reg .b64 %d;\nld.param.u64 %p, [p];\nmov.u32 %t, %tid.x;\nmov.u64 %c, table;\n\
         mul.wide.u32 %d, %t, 4;\nadd.s64 %c, %c, %d;\nadd.s64 %p, %p, %d;\nld.const.b32 %v, [%c];\n\
         st.global.b32 [%p], %v;\nret;\n}",
    );
    let machine = Machine::default();
    let memory = machine.allocate(16).unwrap();
    launch(&machine, &module, 1, 4, 0, &[memory]).unwrap();
    let mut out = [0; 16];
    machine.read(memory, &mut out).unwrap();
    assert_eq!(out, [3, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0]);
}

#[test]
fn a_copy_fills_up_with_zeros_what_its_source_lacks() {
    for (form, size) in [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)] {
        let body = format!(
            "{{ .shared .align 16 .b8 s[1024]; .reg .b32 %p, %n; mov.u32 %p, s; mad.lo.u32 %p, %t, 16, %p;\n\
             min.u32 %n, %b32, {size};\nst.shared.v2.b64 [%p], {{-1, -1}};\n\
             cp.async.{form}.shared.global [%p], [%in], {size}, %n;\ncp.async.wait_all;\nld.shared.v2.b64 {{%d64, %c64}}, [%p];\n\
             xor.b64 %d64, %d64, %c64; }}"
        );
        // Threads take 32 bytes each: the copy's source is the thread's first two values.
        let inputs: Vec<[u64; 4]> =
            (0..64).map(|i| [0x0102_0304_0506_0708 * (i + 1), i % 17, 0, 0]).collect();
        check(&body, "64", &inputs, |[a, b, ..]| {
            let mut bytes = [0xff; 16];
            let source: Vec<u8> = [a, b].iter().flat_map(|v| v.to_le_bytes()).collect();
            for (i, byte) in bytes.iter_mut().enumerate().take(size) {
                *byte = if (i as u64) < b { source[i] } else { 0 };
            }
            let half = |i: usize| u64::from_le_bytes(bytes[i..i + 8].try_into().unwrap());
            half(0) ^ half(8)
        });
    }
}

#[test]
fn groups_of_copies_are_waited_for_by_their_number() {
    let body = "{ .shared .align 16 .b8 s[2048]; .reg .b32 %p; .reg .b64 %x, %y; mov.u32 %p, s; mad.lo.u32 %p, %t, 32, %p;\n\
                cp.async.ca.shared.global [%p], [%in], 8;\ncp.async.commit_group;\n\
                cp.async.cg.shared.global [%p+16], [%in+16], 16;\ncp.async.commit_group;\n\
                cp.async.wait_group 1;\nld.shared.b64 %x, [%p];\ncp.async.wait_group 0;\nld.shared.b64 %y, [%p+16];\n\
                sub.s64 %d64, %x, %y; }";
    check(body, "64", &lanes(), |[a, _, c, _]| a.wrapping_sub(c));
}

#[test]
fn addresses_of_all_spaces_can_be_made_generic() {
    for space in ["shared", "local"] {
        let body = format!(
            "{{ .{space} .align 8 .b64 v[64]; .reg .b64 %p, %q; .reg .pred %is;\nmov.u64 %p, v;\n\
             mad.wide.u32 %p, %a32, 8, %p;\nst.{space}.b64 [%p], %c64;\ncvta.{space}.u64 %q, %p;\nld.b64 %d64, [%q];\n\
             isspacep.{space} %is, %q;\n@!%is mov.b64 %d64, -1;\nisspacep.global %is, %q;\n@%is mov.b64 %d64, -2;\n\
             cvta.to.{space}.u64 %p, %q;\nld.{space}.b64 %q, [%p];\nadd.s64 %d64, %d64, %q; }}"
        );
        check(&body, "64", &lanes(), |[_, _, c, _]| 2 * c);
    }
    let got = evaluate(
        "cvta.to.global.u64 %d64, %in;\ncvta.global.u64 %d64, %d64;\nld.b64 %d64, [%d64];",
        "64",
        &lanes(),
    );
    assert_eq!(got, (0..64).collect::<Vec<u64>>());
}
