//! What assemblers accept beside the forms that compilers write most: each kind of spelling runs, and gives what
//! it should.

mod common;

use common::{finding, launch};
use warpsmith_emulator::{FindingKind, Machine, Module};

/// What 32 threads leave in `y[0..32]`, which begins as zeros. `body` finds `%y`, `%a` = &y[t], `%t` = t, and
/// `%r…`, `%d…`, `%f…`.
fn run_for(version: &str, target: &str, around: &str, body: &str) -> Result<Vec<u32>, String> {
    let text = format!(
        ".version {version}\n.target {target}\n.address_size 64\n{around}\n.visible .entry k(.param .u64 y)\n{{\n\
         .reg .b32 %t, %r<10>; .reg .b64 %y, %a, %d<8>; .reg .f32 %f<8>; .reg .pred %p<4>; .reg .b16 %h<4>;\n\
         ld.param.u64 %y, [y];\nmov.u32 %t, %tid.x;\nmad.wide.u32 %a, %t, 4, %y;\n{body}\nret;\n}}\n"
    );
    let module = common::parse("test.ptx", &text).map_err(|error| error.to_string())?;
    let machine = Machine::default();
    let y = machine.allocate(128).unwrap();
    machine.write(y, &[0; 128]).unwrap();
    launch(&machine, &module, 1, 32, 0, &[y]).map_err(|error| error.to_string())?;
    let mut bytes = [0; 128];
    machine.read(y, &mut bytes).unwrap();
    Ok(bytes.as_chunks::<4>().0.iter().map(|c| u32::from_le_bytes(*c)).collect())
}

fn run(body: &str) -> Vec<u32> {
    run_for("8.0", "sm_80", "", body).unwrap_or_else(|error| panic!("{error}\n{body}"))
}

/// The value that a constant expression has in every lane.
fn constant(expression: &str) -> u32 {
    let got = run(&format!("mov.u32 %r0, {expression};\nst.global.u32 [%a], %r0;"));
    assert!(got.iter().all(|&v| v == got[0]));
    got[0]
}

#[test]
fn modifiers_may_stand_in_any_order() {
    for atom in [
        "atom.global.cta.add.u32",
        "atom.add.acquire.cta.u32",
        "atom.u32.add.global",
        "atom.global.gpu.acq_rel.add.u32",
    ] {
        assert_eq!(run(&format!("{atom} %r0, [%y], 1;"))[0], 32, "{atom}");
    }
    let body = "mov.b32 %f1, 0f3F800000; add.f32.ftz.rn %f0, %f1, %f1; st.f32.global [%a], %f0;";
    assert_eq!(run(body), [0x4000_0000; 32]);
    // Of types, and of layouts, the order counts.
    let body = "mov.b32 %r1, -1; cvt.s64.s32 %d0, %r1; cvt.u32.rn.f32 %r0, %f0;";
    let error = run_for("8.0", "sm_80", "", body).unwrap_err();
    assert!(error.contains("cvt.u32.rn.f32"), "{error}");
    assert_eq!(
        run("mov.b32 %r1, -7; cvt.f32.rn.s32 %f0, %r1; st.global.f32 [%a], %f0;"),
        [(-7f32).to_bits(); 32]
    );
}

#[test]
fn an_operand_may_stand_in_braces_alone() {
    assert_eq!(run("mov.b32 %r1, 5; st.global.b32 [ %a + 0 ], { %r1 };"), [5; 32]);
    assert_eq!(
        run("ld.global.b32 { %r1 }, [ %a + 0 ]; add.u32 %r1, %r1, 3; st.global.b32 [%a], {%r1};"),
        [3; 32]
    );
}

#[test]
fn registers_may_be_vectors() {
    let body = ".reg .v2 .b32 %v; .reg .v4 .b32 %w<2>; mov.b32 %v.x, %t; mov.b32 %v.g, 3; \
        mov.v2.b32 %v, {%v.y, %v.x};\n\
        add.u32 %r0, %v.r, %v.y; mov.b64 %d0, %v; shr.u64 %d0, %d0, 32; cvt.u32.u64 %r1, %d0; \
        mad.lo.u32 %r0, %r1, 100, %r0;\n\
        mov.b32 %w1.w, %r0; mov.b32 %w1.x, 1; mov.b32 %w1.y, 1; mov.b32 %w1.z, 1; add.u32 %r0, %w1.a, %w1.b; \
        st.global.b32 [%a], %r0;";
    assert_eq!(run(body), (0..32).map(|t| 100 * t + t + 3 + 1).collect::<Vec<_>>());
    let body = ".reg .v2 .b32 %v; setp.eq.u32 %p0, %t, 0; mov.b32 %v.x, 7; mov.b32 %v.y, 8; \
        @%p0 st.global.v2.b32 [%y], %v;\n\
        bar.sync 0; ld.global.v2.b32 %v, [%y]; add.u32 %v.x, %v.x, %v.y; setp.eq.u32 %p0, %t, 0; \
        @%p0 st.global.b32 [%y+8], %v.x;";
    assert_eq!(run(body)[..3], [7, 8, 15]);
    for (body, part) in [
        (".reg .v2 .b32 %v; mov.b32 %v.z, 1;", "no element `.z`"),
        (".reg .v2 .b32 %v; add.u32 %v, %t, 1;", "vector of 2"),
        ("mov.b32 %r0.x, 1;", "not a vector"),
        (".reg .v4 .b64 %v; mov.v2.b32 %v, %r0;", "not a vector"),
    ] {
        let error = run_for("8.0", "sm_80", "", body).unwrap_err();
        assert!(error.contains(part), "{error}: lacks {part:?}");
    }
}

#[test]
fn a_constant_expression_may_stand_for_a_number() {
    for (expression, value) in [
        ("(1 + 2) * 3", 9),
        ("1 + 2 * 3", 7),
        ("7 - 2 - 1", 4),
        ("WARP_SZ * 2 - 1", 63),
        ("-5 / 2", (-2i32).cast_unsigned()),
        ("-5 % 3", (-2i32).cast_unsigned()),
        ("0xffffffffffffffffU / 2 >> 60", 7),
        ("-1 >> 1", u32::MAX),
        ("~0 & 0xff | 0x100 ^ 1", 0x1ff),
        ("1 << 4 < 17 ? 2 : 3", 2),
        ("0 ? 1 : 0 ? 2 : 3", 3),
        ("3 == 3 && !(2 >= 3) || 0", 1),
        ("1 != 1", 0),
        ("(.s64)-3 < 0", 1),
        ("(.u64)-3 < 0", 0),
        ("(.s64)2.75 + 1.5 > 3.4", 1),
        ("0b101 + 010 + 0X10", 29),
        ("+4", 4),
    ] {
        assert_eq!(constant(expression), value, "{expression}");
    }
    assert_eq!(run("mov.f32 %f0, 1.5 * 2; st.global.f32 [%a], %f0;"), [3f32.to_bits(); 32]);
    assert_eq!(run("mov.f32 %f0, -.5; st.global.f32 [%a], %f0;"), [(-0.5f32).to_bits(); 32]);
    assert_eq!(run("mov.f32 %f0, 1e1; st.global.f32 [%a], %f0;"), [10f32.to_bits(); 32]);
    // In an address, as the size of a variable and as its contents.
    let around = ".global .u32 g[2 * 2] = {1, 2 + 3, 1 << 3, -(4)};";
    let body = "ld.global.u32 %r0, [g + 4 * (1 + 1)]; ld.global.u32 %r1, [g + 8 - 4]; mov.u64 %d0, g + 4 * 3;\n\
        ld.global.u32 %r2, [%d0]; add.u32 %r0, %r0, %r1; sub.u32 %r0, %r0, %r2; \
        st.global.u32 [%a + (4 - 2 * 2)], %r0;";
    assert_eq!(run_for("8.0", "sm_80", around, body).unwrap(), [8 + 5 + 4; 32]);
    for (expression, part) in
        [("1 / 0", "division by zero"), ("1.5 & 1", "integers"), ("~1.5", "integer"), ("(1", "`)`")]
    {
        let error = run_for("8.0", "sm_80", "", &format!("mov.u32 %r0, {expression};")).unwrap_err();
        assert!(error.contains(part), "{expression}: {error}");
    }
}

#[test]
fn expressions_that_are_nested_too_deeply_are_refused() {
    for deep in ["(", "-", "~", "(.s64)", "1 ? 1 : "] {
        let error =
            run_for("8.0", "sm_80", "", &format!("mov.u32 %r0, {}1;", deep.repeat(10_000))).unwrap_err();
        assert!(error.contains("too deeply") || error.contains("`)`"), "{deep}: {error}");
    }
}

#[test]
fn votes_and_shuffles_without_sync_are_those_of_older_ptx() {
    let body = "setp.lt.u32 %p0, %t, 5; vote.ballot.b32 %r0, %p0; vote.any.pred %p1, %p0; \
        shfl.idx.b32 %r1, %t, 3, 31;\n\
        selp.b32 %r2, 1000, 0, %p1; add.u32 %r0, %r0, %r1; add.u32 %r0, %r0, %r2; st.global.u32 [%a], %r0;";
    for (version, target) in [("6.0", "sm_70"), ("8.0", "sm_61"), ("3.2", "sm_30")] {
        assert_eq!(run_for(version, target, "", body).unwrap(), [31 + 3 + 1000; 32], "{version} {target}");
    }
    let error = run_for("6.4", "sm_70", "", body).unwrap_err();
    assert!(error.contains("without `.sync`"), "{error}");
    // The lanes that are there take part, in whatever branch.
    let body = "setp.lt.u32 %p0, %t, 5; @%p0 bra $LOW; bra $END;\n$LOW: vote.ballot.b32 %r0, %p0; \
        st.global.u32 [%a], %r0;\n$END:";
    assert_eq!(run_for("6.0", "sm_70", "", body).unwrap()[..6], [31, 31, 31, 31, 31, 0]);
}

#[test]
fn hints_for_the_caches_change_nothing() {
    let body = "createpolicy.fractional.L2::evict_last.b64 %d1, 1.0; createpolicy.cvt.L2.b64 %d2, %d1;\n\
        createpolicy.range.global.L2::evict_last.L2::evict_unchanged.b64 %d3, [%y], 128, 128;\n\
        prefetch.global.L2::evict_last [%y]; prefetch.global.L1 [%y]; \
        applypriority.global.L2::evict_normal [%y], 128;\n\
        mov.b32 %r0, 1; st.global.L1::evict_last.L2::cache_hint.b32 [%a], %r0, %d1;\n\
        ld.global.L1::evict_first.L2::cache_hint.b32 {%r1}, [%a], %d1; add.u32 %r1, %r1, 1; \
        st.global.L2::cache_hint.b32 [%a], %r1, %d2;\n\
        atom.global.add.L2::cache_hint.u32 %r2, [%a], %r1, %d1; red.global.add.L2::cache_hint.u32 [%a], %r1, %d1;";
    assert_eq!(run(body), [6; 32]);
    let error = run_for("8.0", "sm_80", "", "ld.global.L2::cache_hint.b32 %r1, [%a], %r2;").unwrap_err();
    assert!(error.contains("cache policy"), "{error}");
}

#[test]
fn atomic_operations_on_vectors_are_one_for_each_element() {
    let body = "setp.lt.u32 %p0, %t, 2; mov.b32 %f0, 0f3F800000; mov.b32 %f1, 0f40000000; \
        mul.wide.u32 %d0, %t, 0; add.u64 %d0, %d0, %y;\n\
        @%p0 atom.global.v2.f32.add {%f2, %f3}, [%d0], {%f0, %f1}; mov.b32 %r0, 0x3c004000;\n\
        @%p0 red.global.add.noftz.v4.f16x2 [%y+16], {%r0, %r0, %r0, %r0}; \
        @%p0 red.global.max.noftz.v2.f16x2 [%y+32], {%r0, %r0};";
    let got = run(body);
    assert_eq!(got[..2], [2f32.to_bits(), 4f32.to_bits()]);
    assert_eq!((got[4], got[7], got[8], got[10]), (0x4000_4400, 0x4000_4400, 0x3c00_4000, 0));
}

#[test]
fn a_half_is_exchanged_where_it_compares_equal() {
    let body = "setp.eq.u32 %p0, %t, 0; mov.b16 %h0, 0; mov.b16 %h1, 9; \
        @%p0 atom.global.cas.b16 %h2, [%y+2], %h0, %h1;\n\
        @%p0 atom.global.cas.b16 %h2, [%y+2], %h0, 11;";
    assert_eq!(run(body)[..2], [9 << 16, 0]);
}

#[test]
fn matrices_of_shared_memory_are_loaded_and_stored_at_generic_addresses() {
    let body = ".shared .align 16 .b8 tile[128]; mov.u64 %d0, tile; cvta.shared.u64 %d0, %d0; \
        mul.wide.u32 %d1, %t, 4; add.s64 %d1, %d1, %d0;\n\
        st.b32 [%d1], %t; bar.sync 0; and.b32 %r0, %t, 7; mad.wide.u32 %d2, %r0, 16, %d0;\n\
        ldmatrix.sync.aligned.m8n8.x1.b16 {%r1}, [%d2]; st.global.b32 [%a], %r1;";
    assert_eq!(run(body), (0..32).collect::<Vec<_>>());
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n\
        .visible .entry k(.param .u64 y)\n{\n.reg .b32 %r; .reg .b64 %y;\n\
        ld.param.u64 %y, [y];\nldmatrix.sync.aligned.m8n8.x1.b16 {%r}, [%y];\nret;\n}\n";
    let machine = Machine::default();
    let y = machine.allocate(128).unwrap();
    let found = finding(launch(&machine, &Module::parse("t.ptx", text).unwrap(), 1, 32, 0, &[y]));
    assert_eq!(found.kind, FindingKind::OutOfBounds);
}

#[test]
fn a_borrow_switches_the_carry_off() {
    let body = "mov.b32 %r1, 1; sub.cc.u32 %r2, %r1, 2; addc.u32 %r3, 0, 0; mov.b32 %r1, 2; \
        sub.cc.u32 %r2, %r1, 1; addc.u32 %r4, 0, 0;\n\
        mad.lo.u32 %r3, %r4, 10, %r3; sub.cc.u32 %r2, 1, 2; subc.u32 %r4, 5, 0; mad.lo.u32 %r3, %r4, 100, %r3; \
        st.global.u32 [%a], %r3;";
    assert_eq!(run(body), [410; 32]);
}

#[test]
fn what_is_left_out_is_refused_with_a_reason() {
    for (body, part) in [
        ("tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%d0, {%f0, %f1}];", "the memory itself"),
        ("suld.b.2d.b32.trap {%r0}, [%d0, {%r0, %r1}];", "ld.global"),
        (
            "mma.sync.aligned.m8n8k32.row.col.s32.s4.s4.s32 {%r0, %r1}, {%r2}, {%r3}, {%r0, %r1};",
            "below 8 bits",
        ),
        (
            "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0}, {%r0}, {%r0}, {%f0}, %r0, 0;",
            "sparse",
        ),
        ("vmad.s32.s32.s32 %r0, -%r1, %r2, %r3;", "expected"),
        ("multimem.red.add.u32 [%d0], %r0;", "several GPUs"),
        ("atom.global.exch.b128 %d0, [%d0], %d1;", "128-bit"),
        (
            "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%d0], %r0, [%d1];",
            "not supported",
        ),
        ("tensormap.replace.tile.global_address.global.b1024.b64 [%d0], %d1;", "by the host"),
    ] {
        let error = run_for("8.6", "sm_80", "", body).expect_err(body);
        assert!(error.starts_with("test.ptx:11:") && error.contains(part), "{error}: lacks {part:?}");
    }
}

#[test]
fn video_instructions_on_several_parts_take_registers_and_parts_in_order() {
    let refused = |body: &str| run_for("8.0", "sm_80", "", body).unwrap_err();
    for operands in ["5, %r1, %r2", "%r1, 5, %r2", "%r1, %r2, 5", "%r1, WARP_SZ, %r2", "%r1, %r2, 1+2"] {
        for form in ["vadd2.u32.u32.u32", "vabsdiff4.s32.s32.s32.add", "vset4.u32.u32.lt"] {
            let error = refused(&format!("{form} %r0, {operands};"));
            assert!(error.contains("takes no constants"), "{error}");
        }
    }
    for body in ["vadd2.u32.u32.u32 %r0.h01, %t, %t, %t;", "vadd4.u32.u32.u32 %r0.b22, %t, %t, %t;"] {
        let error = refused(body);
        assert!(error.contains("does not name parts of the result"), "{error}");
    }
    let body = "vadd4.u32.u32.u32 %r0.b20, %t, %t, %t; vadd.u32.u32.u32.add %r0, %r0, 5, 7; st.global.u32 [%a], %r0;";
    assert_eq!(run(body), std::array::from_fn::<u32, 32, _>(|t| 2 * t as u32 + 12).to_vec());
}

#[test]
fn libraries_have_shared_memory_of_their_own() {
    // The program's variables and the dynamic part are elsewhere.
    let around = ".extern .shared .align 16 .b8 more[];";
    let body = ".shared .align 4 .b8 own[128];\n\
        mov.u32 %r0, %reserved_smem_offset_1; mov.u32 %r1, own; mov.u32 %r2, more;\n\
        mad.lo.u32 %r3, %t, 4, %r1; st.shared.u32 [%r3], 5; bar.warp.sync -1;\n\
        red.shared.or.b32 [%r0+284], %t; bar.warp.sync -1; ld.shared.u32 %r4, [%r0+284];\n\
        ld.shared.u32 %r5, [%r3]; shl.b32 %r5, %r5, 8; or.b32 %r4, %r4, %r5;\n\
        mov.u32 %r6, %reserved_smem_offset_begin; mov.u32 %r7, %reserved_smem_offset_end;\n\
        mov.u32 %r8, %reserved_smem_offset_cap; sub.u32 %r7, %r7, %r6; setp.eq.u32 %p0, %r7, %r8;\n\
        mov.u32 %r7, %reserved_smem_offset_0; setp.eq.and.u32 %p0, %r6, %r7, %p0;\n\
        mov.u32 %r7, %total_smem_size; mov.u32 %r6, %aggr_smem_size; sub.u32 %r6, %r6, %r7;\n\
        setp.eq.and.u32 %p0, %r6, %r8, %p0; setp.eq.and.u32 %p0, %r7, 128, %p0;\n\
        selp.u32 %r5, 0x10000, 0, %p0; or.b32 %r4, %r4, %r5; st.global.u32 [%a], %r4;";
    assert_eq!(run_for("8.1", "sm_80", around, body).unwrap(), [0x1051f; 32]);
    // It has an end.
    let body = "mov.u32 %r0, %reserved_smem_offset_end; ld.shared.u32 %r1, [%r0]; st.global.u32 [%a], %r1;";
    let error = run_for("8.0", "sm_80", "", body).unwrap_err();
    assert!(error.contains("out-of-bounds"), "{error}");
}

#[test]
fn blocks_of_a_grid_meet_where_the_driver_says() {
    // The barrier of cooperative groups: the first block adds so much that the sign flips when all have come.
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 y)\n{\n\
        .reg .b32 %r<8>; .reg .b64 %y, %a, %w; .reg .pred %p;\n\
        ld.param.u64 %y, [y]; mov.u32 %r0, %ctaid.x; mad.wide.u32 %a, %r0, 4, %y;\n\
        mov.u32 %r1, %envreg1; mov.u32 %r2, %envreg2; mov.b64 %w, {%r2, %r1};\n\
        st.global.u32 [%a], %r0; mov.u32 %r3, 1; setp.eq.u32 %p, %r0, 0; @%p mov.u32 %r3, 0x7ffffffd;\n\
        atom.add.acq_rel.gpu.u32 %r4, [%w+4], %r3;\n\
        AGAIN: ld.acquire.gpu.u32 %r5, [%w+4]; xor.b32 %r5, %r5, %r4; setp.ge.s32 %p, %r5, 0; @%p bra AGAIN;\n\
        xor.b32 %r0, %r0, 3; mad.wide.u32 %y, %r0, 4, %y; ld.global.u32 %r6, [%y];\n\
        ld.u32 %r7, [%w]; setp.eq.u32 %p, %r7, 0; @%p trap;\n\
        st.global.u32 [%a+16], %r6;\nret;\n}\n";
    let module = common::parse("test.ptx", text).unwrap();
    let machine = Machine::default();
    let y = machine.allocate(32).unwrap();
    // Every launch has a barrier of its own.
    for _ in 0..2 {
        launch(&machine, &module, 4, 1, 0, &[y]).unwrap();
    }
    let mut bytes = [0; 32];
    machine.read(y, &mut bytes).unwrap();
    let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|c| u32::from_le_bytes(*c)).collect();
    assert_eq!(words, [0, 1, 2, 3, 3, 2, 1, 0]);
    for body in ["mov.u32 %r0, %envreg32;", "mov.u32 %r0, %envreg01;"] {
        assert!(run_for("8.0", "sm_80", "", body).unwrap_err().contains("%envreg"), "{body}");
    }
}
