//! PTX that must be refused, and PTX that looks like it and must not be.

use warpsmith_builder::{Violation, check};

/// A module with one kernel.
fn module(body: &str) -> String {
    kernel(".reqntid 128, 1, 1", body)
}

fn kernel(bounds: &str, body: &str) -> String {
    format!(
        ".version 7.0\n.target sm_80\n.address_size 64\n.extern .shared .align 1024 .b8 dynamic_shared[];\n\
         .visible .entry k(\n\t.param .u64 k_param_0\n)\n{bounds}\n{{\n{body}\n\tret;\n}}\n"
    )
}

#[test]
fn a_sound_kernel_passes_and_its_bounds_are_read() {
    let text = kernel(
        ".reqntid 16, 8, 2\n.minnctapersm 1\n// warpsmith.shared_bytes 4096",
        "\tmov.u32 %r1, dynamic_shared;",
    );
    let report = check(&text);
    assert_eq!(report.violations, []);
    assert_eq!(report.entries.len(), 1);
    assert_eq!(report.entries[0].name, "k");
    assert_eq!(report.entries[0].threads, Some([16, 8, 2]));
    assert_eq!(report.entries[0].dynamic_shared, Some(4096));
    assert_eq!(check(&kernel(".maxntid 256", "")).entries[0].threads, Some([256, 1, 1]));
}

#[test]
fn local_memory_is_refused_in_every_form() {
    for statement in [
        ".local .align 16 .b8 \t__local_depot0[512];",
        "mov.b64 \t%SPL, __local_depot0;",
        "ld.local.b32 \t%r1, [%rd1];",
        "ld.volatile.local.v4.b32 \t{%r1, %r2, %r3, %r4}, [%rd1];",
        "@%p1 st.local.b32 \t[%rd1], %r1;",
        "cvta.local.u64 \t%SP, %SPL;",
        "add.u64 \t%rd1, %SP, 16;",
        "{ mov.u32 %r1, %r2; st.local.b32 [%rd1], %r1; }",
        "$L__BB0_1: st.local.b32 [%rd1], %r1;",
        ".reg .b64 \t%SPL;",
    ] {
        let report = check(&module(&format!("\t{statement}")));
        let [Violation::LocalMemory { function, line, text }] = report.violations.as_slice() else {
            panic!("`{statement}` gives {:?}", report.violations);
        };
        assert_eq!((function.as_str(), *line, text.as_str()), ("k", 10, statement));
    }
}

#[test]
fn local_memory_is_refused_once_for_each_array() {
    let lines = |body: &str| -> Vec<usize> {
        let violations = check(&module(body)).violations;
        let line = |violation: &Violation| match violation {
            Violation::LocalMemory { line, .. } => *line,
            other => panic!("{other}"),
        };
        violations.iter().map(line).collect()
    };
    let two = "\t.local .align 16 .b8 \t__local_depot0[512];
\t.reg .b64 \t%SP;
\tmov.b64 \t%SPL, __local_depot0;
\tcvta.local.u64 \t%SP, %SPL;
\tadd.u64 \t%rd3, %SPL, 0;
\tadd.u64 \t%rd4, %SP, 0;
\tst.local.b32 \t[%rd3], %r1;
\tadd.u64 \t%rd5, %SPL, 64;
\tld.local.b32 \t%r2, [%rd5+4];
\tadd.u64 \t%rd9, %SPL, 64;";
    assert_eq!(lines(two), [14, 17]);
    // Only constant places: what belongs to which array cannot be told.
    assert_eq!(
        lines("\t.local .b8 \t__local_depot0[8];\n\tst.local.b32 [%SPL], 0;\n\tst.local.b32 [%SPL+4], 0;"),
        [10]
    );
    assert_eq!(
        lines("\t.local .b32 a[4];\n\t.local .b32 b;\n\tst.local.b32 [a], 0;\n\tst.local.b32 [b], 0;"),
        [10, 11]
    );
}

#[test]
fn a_trap_that_nobody_asked_for_is_refused() {
    for statement in ["trap; exit;", "@%p1 trap;", "$L__BB0_1: trap;", "{ trap; }"] {
        let report = check(&module(&format!("\t{statement}")));
        assert!(
            matches!(report.violations.as_slice(), [Violation::Trap { line: 10, .. }]),
            "`{statement}` gives {:?}",
            report.violations
        );
    }
    let asked = module("\ttrap; // asked for\n\t.loc 1 2 3\n\ttrap; exit;\n$trap: bra $trap;");
    let file = ".file 1 \"rust-src/library/stdarch/crates/core_arch/src/nvptx/mod.rs\"\n.extern";
    assert_eq!(check(&asked.replacen(".extern", file, 1)).violations, []);
    assert_eq!(check(&asked).violations.len(), 1);
}

#[test]
fn calls_are_refused_in_every_form() {
    for statement in [
        "call.uni memcpy, (param0, param1);",
        "call \t(retval0), f, (param0);",
        "@!%p1 call.uni f;",
        "{ .param .b64 param0; call.uni f, (param0); }",
        "call.uni (retval0), %rd1, (param0), prototype_0;",
    ] {
        let report = check(&module(&format!("\t{statement}")));
        assert!(
            matches!(report.violations.as_slice(), [Violation::Call { line: 10, .. }]),
            "`{statement}` gives {:?}",
            report.violations
        );
    }
}

#[test]
fn words_that_only_resemble_them_are_not_refused() {
    for statement in [
        "// call.uni f; st.local.b32 [%rd1], %r1;",
        "/* call.uni f; */ mov.u32 %r1, %r2;",
        "mov.u32 %call, %r1;",
        "callee: bra callee;",
        "{ .reg .b32 local_variable; mov.u32 %r1, local_variable; }",
        "cvta.to.global.u64 %rd1, %rd2;",
        "cp.async.cg.shared.global [%r1], [%rd1], 16;",
        ".loc 1 2 3",
    ] {
        assert_eq!(check(&module(&format!("\t{statement}"))).violations, [], "`{statement}`");
    }
}

#[test]
fn an_entry_without_bounds_is_refused_by_name() {
    for bounds in ["", ".minnctapersm 1", "// .reqntid 128, 1, 1", ".reqntid 0, 1, 1", ".reqntid none"] {
        let report = check(&kernel(bounds, ""));
        assert!(
            matches!(report.violations.as_slice(), [Violation::NoBounds { entry, line: 5 }] if entry == "k"),
            "`{bounds}` gives {:?}",
            report.violations
        );
    }
}

#[test]
fn unresolved_symbols_are_refused() {
    for declaration in [
        ".extern .func memcpy(.param .b64 a, .param .b64 b);",
        ".extern .func  (.param .b32 func_retval0) memcmp\n(\n\t.param .b64 memcmp_param_0\n)\n;",
        ".extern .global .align 4 .b8 table[64];",
    ] {
        let report = check(&format!("{declaration}\n{}", module("")));
        assert!(
            matches!(report.violations.as_slice(), [Violation::Unresolved { line: 1, .. }]),
            "`{declaration}` gives {:?}",
            report.violations
        );
    }
}

#[test]
fn texts_that_hold_no_kernel_are_refused() {
    assert_eq!(check("").violations, [Violation::NoEntry]);
    assert_eq!(check(".version 7.0\n.target sm_80\n").violations, [Violation::NoEntry]);
    let cut = module("").replace('}', "");
    assert!(
        matches!(check(&cut).violations.as_slice(), [Violation::Malformed { reason }] if reason.contains("`k`"))
    );
}

#[test]
fn every_violation_is_reported_at_once() {
    let text = kernel("", "\tcall.uni f;\n\tst.local.b32 [%rd1], %r1;");
    assert_eq!(check(&text).violations.len(), 3);
}

#[test]
fn a_symbol_that_nothing_declares_is_refused() {
    for statement in [
        "mov.u32 \t%r1, nowhere;",
        "ld.global.u32 \t%r2, [nowhere+4];",
        "@%p1 bra \t$L__BB0_7;",
        "{ mov.u32 %r1, nowhere; }",
    ] {
        let report = check(&module(&format!("\t{statement}")));
        let [Violation::Unresolved { line: 10, text }] = report.violations.as_slice() else {
            panic!("`{statement}` gives {:?}", report.violations);
        };
        assert_eq!(text, statement);
    }
    let body = "\t.shared .b8 own[4];\n\tmov.u32 %r1, own;\n\tmov.u32 %r2, %tid.x;\n\tmov.f32 %f1, 0f3F800000;\n\
                \tld.param.u64 %rd1, [k_param_0];\n\tmov.u32 %r3, WARP_SZ;\n$L__BB0_1:\n\tbra $L__BB0_1;";
    assert_eq!(check(&module(body)).violations, []);
}

#[test]
fn a_block_comment_within_a_line_comment_hides_nothing() {
    let report = check(&module("\t// loads A/*\n\tcall helper, ();\n\t// */ done"));
    assert!(
        matches!(report.violations.as_slice(), [Violation::Call { line: 11, .. }]),
        "{:?}",
        report.violations
    );
}
