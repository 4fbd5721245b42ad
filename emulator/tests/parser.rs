//! Text that is not right gives an error with its place, never a panic and never a module that skips something.

mod common;

use proptest::prelude::*;
use warpsmith_emulator::{
    Config, FindingKind, LaunchConfig, LaunchError, Limits, Machine, Module, ParseError,
};

/// The error of a kernel whose body is `body`; lines are counted from the body's first.
fn body_error(body: &str) -> ParseError {
    let text = format!(
        ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry t(.param .u64 p)\n{{\n\
         .reg .b16 %h<4>;\n.reg .b32 %r<4>;\n.reg .b64 %d<4>;\n.reg .pred %p<4>;\n{body}\n}}\n"
    );
    let mut error = Module::parse("bad.ptx", &text).expect_err(body);
    assert_eq!(error.file, "bad.ptx");
    error.line = error.line.saturating_sub(9);
    error
}

fn assert_error(body: &str, line: u32, column: u32, parts: &[&str]) {
    let error = body_error(body);
    assert_eq!((error.line, error.column), (line, column), "{error}");
    for part in parts {
        assert!(error.message.contains(part), "{error}: lacks {part:?}");
    }
}

#[test]
fn an_unknown_instruction_or_modifier_is_named_with_its_place() {
    assert_error("frobnicate.b32 %r0, %r1;", 1, 1, &["`frobnicate`"]);
    assert_error(
        "\n  add.u33 %r0, %r1, %r2;",
        2,
        6,
        &["`add.u33`", "expected `.u16`, `.s16`", "found `.u33`"],
    );
    // The row that fits furthest decides: f32 has `.ftz`.
    assert_error("add.rn.ftz.f64 %d0, %d1, %d2;", 1, 11, &["expected `.f32`", "found `.f64`"]);
    assert_error("shl %r0, %r1, %r2;", 1, 4, &["found the end of the modifiers"]);
    assert_error(
        "mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {%r0}, {%r0}, {%r0}, {%r0};",
        1,
        17,
        &["m16n8k16"],
    );
    assert_error("tcgen05.wait.ld.sync.aligned;", 1, 1, &["`tcgen05`"]);
    assert_error("ld.global.v4.u64 {%d0, %d1, %d2, %d3}, [%d0];", 1, 1, &["more than 16 bytes"]);
}

#[test]
fn operands_must_fit_their_form() {
    assert_error("add.u32 %r0, %r1;", 1, 1, &["2 operands", "=t t t"]);
    assert_error("add.u32 %r0, %r1, %d0;", 1, 19, &["32-bit register", "`%d0` is a 64-bit register"]);
    assert_error("add.u32 1, %r1, %r0;", 1, 9, &["expected a 32-bit register"]);
    assert_error("setp.eq.u32 %r0, %r1, %r2;", 1, 13, &["predicate register"]);
    assert_error("@%r0 mov.u32 %r0, 1;", 1, 2, &["no predicate register"]);
    assert_error("mov.u32 %r7, 1;", 1, 9, &["`%r7` is not declared"]);
    assert_error("mov.u32 %r0, %tid.q;", 1, 14, &["%tid.q"]);
    assert_error("mov.u64 %d0, %laneid;", 1, 14, &["`%laneid`"]);
    assert_error("ld.global.v2.u32 {%r0, %r1, %r2}, [%d0];", 1, 18, &["vector of 2", "vector of 3"]);
    assert_error("ld.global.v2.u32 %r0, [%d0];", 1, 18, &["vector of 2"]);
    assert_error("ld.global.u32 %r0, %d0;", 1, 20, &["address"]);
    assert_error("ld.global.u32 %r0, [p];", 1, 21, &["`p` is in .param"]);
    assert_error("lop3.b32 %r0, %r1, %r2, %r3, %r0;", 1, 30, &["integer constant"]);
    assert_error("cp.async.cg.shared.global [%r0], [%d0], 8;", 1, 41, &["8 bytes"]);
    assert_error("add.f32 %r0, %r1, 1;", 1, 19, &["floating-point constant"]);
    assert_error("mov.b64 {%r0, %r1, %r2}, %d0;", 1, 9, &["3 parts"]);
}

#[test]
fn labels_and_scopes_are_checked() {
    assert_error("bra $NOWHERE;", 1, 5, &["no label `$NOWHERE`"]);
    assert_error("{ $INNER: }\nbra $INNER;", 2, 5, &["no label `$INNER`"]);
    assert_error("$A:\n$A:", 2, 1, &["declared twice"]);
    assert_error("{ .reg .b32 %x; }\nmov.u32 %x, 1;", 2, 9, &["`%x` is not declared"]);
    assert_error(".reg .b32 %r<2>;", 1, 11, &["declared twice"]);
    assert_error("brx.idx %r0, nowhere;", 1, 14, &["no `.branchtargets` list"]);
    // Inner declarations hide outer ones; a label is seen from inside.
    let text = ".version 7.0\n.target sm_80\n.entry t() {\n.reg .b32 %r;\n$TOP:\n{ .reg .b64 %r; mov.u64 %r, 1;\n\
                { bra $TOP; } }\nmov.u32 %r, 1;\n}";
    Module::parse("good.ptx", text).unwrap();
}

#[test]
fn calls_and_what_else_is_left_out_are_refused_with_a_reason() {
    assert_error("call (%r0), f, (%r1);", 1, 13, &["`f` is not declared"]);
    assert_error(".reg .b128 %q;", 1, 6, &["128-bit"]);
    let error = Module::parse("x", ".version 7.0\n.target sm_80\n.address_size 32\n").unwrap_err();
    assert!(error.message.contains("32 bits"), "{error}");
    let error = Module::parse("x", ".version 7.0\n.target sm_80\n.extern .global .b32 g;").unwrap_err();
    assert!(error.message.contains("another module"), "{error}");
}

#[test]
fn broken_grammar_says_what_was_expected() {
    assert_error("mov.u32 %r0, 1", 2, 1, &["expected `,` or `;`", "found `}`"]);
    assert_error("mov.u32 %r0, ;", 1, 14, &["expected an operand"]);
    assert_error("mov.u32 %r0, 99999999999999999999;", 1, 14, &["64 bits"]);
    assert_error("mov.f32 %r0, 0f3F80;", 1, 14, &["8 hexadecimal digits"]);
    assert_error("/* no end", 1, 1, &["comment"]);
    assert_error("mov.u32 %r0, \u{fc};", 1, 14, &["no character"]);
    for (text, part) in [
        ("", "`.version`"),
        (".version 7.0", "`.target`"),
        (".version 7.0\n.target sm_80\n.entry t(", "`.param`"),
        (".version 7.0\n.target sm_80\n.entry t() {", "no end"),
        (".version 7.0\n.target gpu\n", "sm_80"),
        (".version 7.0\n.target sm_80\n.shared .b8 s[];", "no size"),
        (".version 7.0\n.target sm_80\n.global .b8 g[99999999999];", "4 GiB"),
        (".version 7.0\n.target sm_80\n.global .b8 g[2] = {1, 2, 3};", "more initial values"),
    ] {
        let error = Module::parse("x", text).expect_err(text);
        assert!(
            error.to_string().starts_with("x:") && error.message.contains(part),
            "{error}: lacks {part:?}"
        );
    }
}

#[test]
fn huge_declarations_cost_nothing_and_deep_nesting_ends() {
    let text =
        ".version 7.0\n.target sm_80\n.entry t() {\n.reg .b32 %r<4000000000>;\nmov.u32 %r3999999999, 1;\n}";
    Module::parse("x", text).unwrap();
    let deep = format!(".version 7.0\n.target sm_80\n.entry t() {{\n{}", "{".repeat(100_000));
    assert!(Module::parse("x", &deep).unwrap_err().message.contains("too deeply"));
    let vector = format!(".version 7.0\n.target sm_80\n.entry t() {{\nmov.u32 {}", "{%r0, ".repeat(100_000));
    assert!(Module::parse("x", &vector).is_err());
    let params = format!(".version 7.0\n.target sm_80\n.entry t(.param .b8 p[{}]) {{ }}", u64::MAX);
    assert!(Module::parse("x", &params).unwrap_err().message.contains("64 KiB"));
}

/// A module that could cost its reader far more than its length; it must be parsed or refused in little time.
fn assert_cheap(name: &str, body: &str) -> Result<Module, ParseError> {
    let text = format!(
        ".version 7.0\n.target sm_80\n.entry t() {{\n.reg .pred %p;\n.reg .b32 %r<99999>;\n{body}\n}}"
    );
    let start = std::time::Instant::now();
    let result = Module::parse("x", &text);
    let seconds = start.elapsed().as_secs_f64();
    assert!(seconds < 10.0, "{name}: {seconds} s for {} bytes", text.len());
    result
}

#[test]
fn jumps_back_by_the_thousand_are_parsed_in_little_time() {
    let lines = |count: usize, line: &dyn Fn(usize) -> String| (0..count).map(line).collect::<String>();
    // Each loop learns what is live from the next one, so that a sweep over all of them moves it on by one.
    let heads = lines(8000, &|i| format!("$L{i}: add.u32 %r{i}, %r{}, 1;\n@%p bra $M{i};\n", i + 1));
    let tails = lines(8000, &|i| format!("$M{i}: @%p bra $L{};\n", (i * 4099 + 1) % 8000));
    let _ = assert_cheap("loops", &format!("setp.eq.u32 %p, 0, 0;\n{heads}{tails}"));
    let nested = lines(8000, &|i| format!("$L{i}: mov.u32 %r{i}, {i};\n"));
    let ends = lines(8000, &|i| format!("add.u32 %r9000, %r9000, %r{0};\n@%p bra $L{0};\n", 7999 - i));
    assert_cheap("nested loops", &format!("setp.eq.u32 %p, 0, 0;\nmov.u32 %r9000, 0;\n{nested}{ends}"))
        .unwrap();
    let to_one = lines(20_000, &|i| format!("add.u32 %r{i}, %r{i}, 1;\n@%p bra $TOP;\n"));
    let _ = assert_cheap("one head", &format!("setp.eq.u32 %p, 0, 0;\n$TOP:\n{to_one}"));
}

#[test]
fn long_lists_of_targets_are_bounded() {
    let labels = (0..5000).map(|i| format!("$L{i}: mov.u32 %r{i}, 0;\n")).collect::<String>();
    let list = (0..5000).map(|i| format!("$L{i}")).collect::<Vec<_>>().join(", ");
    let one = format!("mov.u32 %r0, 1;\n$T: .branchtargets {list};\nbrx.idx %r0, $T;\n{labels}");
    assert_cheap("one list", &one).unwrap();
    let many = format!("$T: .branchtargets {list};\n{}{labels}", "@%p brx.idx %r0, $T;\n".repeat(20_000));
    assert!(assert_cheap("many uses", &many).unwrap_err().message.contains("targets"));
    let lists = (0..20_000).map(|i| format!("$T{i}: .branchtargets $L{};\n", i % 5000)).collect::<String>();
    let uses = (0..20_000).map(|i| format!("@%p brx.idx %r0, $T{i};\n")).collect::<String>();
    assert_cheap("many lists", &format!("{lists}{uses}{labels}")).unwrap();
}

#[test]
fn names_and_declarations_by_the_thousand_are_looked_up_in_little_time() {
    let digits = "7".repeat(200_000);
    assert!(assert_cheap("digits", &format!("mov.u32 %r{digits}, 1;")).is_err());
    let zeros = "0".repeat(200_000);
    assert!(assert_cheap("zeros", &format!("mov.u32 %r{zeros}, 1;")).is_err());
    let start = std::time::Instant::now();
    let variables = (0..30_000).map(|i| format!(".global .b32 g{i} = 1;\n")).collect::<String>();
    let entries = (0..200).map(|i| format!(".entry e{i}() {{ }}\n")).collect::<String>();
    Module::parse("x", &format!(".version 7.0\n.target sm_80\n{variables}{entries}")).unwrap();
    let entries = (0..30_000).map(|i| format!(".entry e{i}() {{ }}\n")).collect::<String>();
    Module::parse("x", &format!(".version 7.0\n.target sm_80\n{entries}")).unwrap();
    assert!(start.elapsed().as_secs_f64() < 10.0, "{:?}", start.elapsed());
    let text = format!(".version 7.0\n.target sm_80\n//{}", "x".repeat(33 << 20));
    assert!(Module::parse("x", &text).unwrap_err().message.contains("32 MiB"));
}

#[test]
fn functions_by_the_thousand_are_translated_in_little_time() {
    let start = std::time::Instant::now();
    let declared = (0..100_000).map(|i| format!(".func d{i}();\n")).collect::<String>();
    let chain = (0..3000).map(|i| format!(".func f{i}() {{ call f{}; }}\n", i + 1)).collect::<String>();
    let text = format!(
        ".version 7.0\n.target sm_80\n{declared}.func f3000();\n{chain}.func f3000() {{ ret; }}\n.entry e() {{ call f0; }}"
    );
    let module = Module::parse("x", &text).unwrap();
    assert!(start.elapsed().as_secs_f64() < 10.0, "{:?}", start.elapsed());
    let config = LaunchConfig { block: [32, 1, 1], ..LaunchConfig::default() };
    Machine::default().launch(&module, "e", &config, &[]).unwrap();
}

#[test]
fn more_live_registers_than_a_warp_can_have_are_refused() {
    let writes = (0..40_000).map(|i| format!("mov.u32 %r{i}, {i};\n")).collect::<String>();
    let reads = (0..40_000).map(|i| format!("add.u32 %r50000, %r50000, %r{i};\n")).collect::<String>();
    let error = assert_cheap("registers", &format!("{writes}mov.u32 %r50000, 0;\n{reads}")).unwrap_err();
    assert!(error.message.contains("registers"), "{error}");
}

#[test]
fn endless_loops_end_with_a_finding() {
    for body in [
        "$L: bra $L;",
        "$L: bar.sync 0; bra.uni $L;",
        "mov.u32 %r0, %laneid; setp.gt.u32 %p, %r0, 7;\n$L: @%p bra $L;\n$M: bra $M;",
        "mov.u32 %r0, 0;\n$L: add.u32 %r0, %r0, 1; activemask.b32 %r1; bra $L;",
    ] {
        let module = assert_cheap(body, body).unwrap();
        let limits = Limits { instructions_per_block: 100_000, ..Limits::default() };
        let machine = Machine::new(Config { limits, threads: Some(1), ..Config::default() });
        let config = LaunchConfig { grid: [2, 1, 1], block: [64, 1, 1], ..LaunchConfig::default() };
        match machine.launch(&module, "t", &config, &[]) {
            Err(LaunchError::Finding(found)) => assert_eq!(found.kind, FindingKind::Budget, "{found}"),
            other => panic!("{body}: {other:?}"),
        }
    }
}

#[test]
fn what_the_assembler_refuses_is_refused() {
    for body in [
        "add.b32 %r0, %r1, %r2;",
        "mul.lo.b64 %d0, %d1, %d2;",
        "setp.lt.b32 %p0, %r0, %r1;",
        "setp.lo.s32 %p0, %r0, %r1;",
        "setp.lt.ftz.f64 %p0, %d0, %d1;",
        "setp.lt.f16 %p0|%p1, %h0, %h1;",
        "selp.f16 %h0, %h1, %h2, %p0;",
        "add.sat.bf16 %h0, %h1, %h2;",
        "min.NaN.f64 %d0, %d1, %d2;",
        "cvt.sat.u32.u16 %r0, %h0;",
        "ex2.approx.bf16 %h0, %h1;",
    ] {
        body_error(body);
    }
}

#[test]
fn what_does_not_fit_the_declaration_is_refused_before_the_launch() {
    let text = ".version 7.0\n.target sm_80\n.extern .shared .align 16 .b8 s[];\n\
                .entry t(.param .u64 p, .param .align 8 .b8 q[24])\n.reqntid 64, 2, 1\n{ .reg .b32 %r; mov.u32 %r, s; }\n\
                .entry u()\n.maxntid 128, 1, 1\n{ }";
    let module = Module::parse("x", text).unwrap();
    let info = module.kernel("t").unwrap();
    assert_eq!(info.params.iter().map(|p| (p.size, p.align)).collect::<Vec<_>>(), [(8, 8), (24, 8)]);
    assert!(info.uses_dynamic_shared && info.reqntid == Some([64, 2, 1]));
    let machine = Machine::default();
    let good =
        LaunchConfig { grid: [1; 3], block: [64, 2, 1], dynamic_shared: 1024, ..LaunchConfig::default() };
    let arguments: [&[u8]; 2] = [&[0; 8], &[0; 24]];
    let launch = |config: LaunchConfig, arguments: &[&[u8]]| machine.launch(&module, "t", &config, arguments);
    launch(good, &arguments).unwrap();
    assert!(matches!(
        launch(good, &arguments[..1]),
        Err(LaunchError::ArgumentCount { expected: 2, actual: 1, .. })
    ));
    let short: [&[u8]; 2] = [&[0; 8], &[0; 20]];
    assert!(matches!(
        launch(good, &short),
        Err(LaunchError::ArgumentSize { index: 1, expected: 24, actual: 20, .. })
    ));
    let limit = |config| matches!(launch(config, &arguments), Err(LaunchError::Limit { .. }));
    assert!(limit(LaunchConfig { grid: [0, 1, 1], ..good }));
    assert!(limit(LaunchConfig { grid: [1, 65_536, 1], ..good }));
    assert!(limit(LaunchConfig { block: [2048, 1, 1], ..good }));
    assert!(limit(LaunchConfig { block: [64, 64, 1], ..good }));
    assert!(limit(LaunchConfig { dynamic_shared: u32::MAX, ..good }));
    let wrong = LaunchConfig { block: [128, 1, 1], ..good };
    assert!(matches!(launch(wrong, &arguments), Err(LaunchError::BlockShape { .. })));
    let large = LaunchConfig { block: [256, 1, 1], ..good };
    assert!(matches!(machine.launch(&module, "u", &large, &[]), Err(LaunchError::BlockShape { .. })));
    assert!(matches!(machine.launch(&module, "v", &large, &[]), Err(LaunchError::UnknownKernel { .. })));
    let hopper = Module::parse("x", &text.replace("sm_80", "sm_90a")).unwrap();
    assert!(matches!(machine.launch(&hopper, "t", &good, &arguments), Err(LaunchError::Architecture { .. })));
}

const SOURCES: [&str; 3] = [
    include_str!("data/gemm.ptx"),
    include_str!("data/compiled.sm_80.ptx"),
    include_str!("data/functions.ptx"),
];

#[test]
fn the_modules_that_are_damaged_are_right_at_first() {
    SOURCES.iter().for_each(|source| drop(common::parse("source.ptx", source).unwrap()));
}

/// Runs every kernel that a text has, if it is a module: with arguments that point nowhere, and little patience.
fn parse_and_run(text: &str) {
    let Ok(module) = Module::parse("fuzz.ptx", text) else { return };
    let limits = Limits { instructions_per_block: 20_000, ..Limits::default() };
    let machine = Machine::new(Config { limits, threads: Some(1), ..Config::default() });
    let memory = machine.allocate(4096).unwrap();
    machine.fill(memory, 1, 4096).unwrap();
    for kernel in module.kernels() {
        let arguments: Vec<Vec<u8>> = kernel
            .params
            .iter()
            .map(|p| if p.size == 8 { memory.to_le_bytes().to_vec() } else { vec![1; p.size] })
            .collect();
        let arguments: Vec<&[u8]> = arguments.iter().map(|a| &a[..]).collect();
        let block = kernel.reqntid.unwrap_or([64, 1, 1]);
        let config = LaunchConfig { grid: [2, 1, 1], block, dynamic_shared: 1024, ..LaunchConfig::default() };
        // Whatever comes of it, it comes back.
        let _ = machine.launch(&module, &kernel.name, &config, &arguments);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn random_text_never_panics(text in "\\PC{0,400}") {
        let _ = Module::parse("fuzz.ptx", &text);
        let _ = Module::parse("fuzz.ptx", &format!(".version 7.0\n.target sm_80\n.entry t() {{\n{text}\n}}"));
    }

    #[test]
    fn random_tokens_never_panic(tokens in prop::collection::vec(
        prop::sample::select(vec![
            "add", ".u32", ".b64", "%r0", "%d0", "%p0", ",", ";", "{", "}", "[", "]", "(", ")", "|", "+", "-", "1", "0x7f",
            "_", "!", "@", "$L", ":", "bra", "mov", "ld", ".global", ".param", ".shared", "st", "bar", ".sync", ".reg",
            "setp", ".eq", ".pred", "%tid", ".x", ".v2", ".v4", "ret", "0f3F800000", ".branchtargets", "brx", ".idx", ".loc",
            "call", "t", ".calltargets", ".callprototype", ".local", ".b32", "WARP_SZ", "*", "/", "%", "<", ">", "~", "?", "&",
            "(.s64)", "alloca", ".u64", "vadd4", "vset", ".s32", ".b1", "wmma", ".load", ".m16n16k16", "1.5", ".5",
        ]),
        0..60,
    )) {
        let body = tokens.join(" ");
        parse_and_run(&format!(
            ".version 7.0\n.target sm_80\n.entry t() {{\n.reg .b32 %r<3>; .reg .b64 %d<3>; .reg .pred %p<3>;\n{body}\n}}"
        ));
    }

    #[test]
    fn damaged_modules_never_panic(
        which in 0usize..3, at in any::<prop::sample::Index>(), length in 0usize..40, insert in "[ -~]{0,12}",
    ) {
        let source = SOURCES[which];
        let start = at.index(source.len());
        let mut text = source.as_bytes().to_vec();
        text.splice(start..(start + length).min(source.len()), insert.bytes());
        parse_and_run(&String::from_utf8_lossy(&text));
    }

    #[test]
    fn bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let soup = String::from_utf8_lossy(&bytes);
        let _ = Module::parse("fuzz.ptx", &soup);
        let _ = Module::parse("fuzz.ptx", &format!(".version 7.0\n.target sm_80\n{soup}"));
        let _ = Module::parse("fuzz.ptx", &format!(".version 7.0\n.target sm_80\n.entry t() {{\n{soup}"));
    }

    #[test]
    fn modules_with_changed_bits_never_panic(
        which in 0usize..3, flips in prop::collection::vec((any::<prop::sample::Index>(), 0u32..8), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut text = SOURCES[which].as_bytes().to_vec();
        for (at, bit) in flips {
            let at = at.index(text.len());
            text[at] ^= 1 << bit;
        }
        if let Some(cut) = cut {
            text.truncate(cut.index(text.len()));
        }
        parse_and_run(&String::from_utf8_lossy(&text));
    }

    #[test]
    fn modules_with_tokens_repeated_or_swapped_never_panic(
        which in 0usize..3, from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(), times in 1usize..40,
        number in prop::option::of(prop::sample::select(vec!["4294967296", "18446744073709551615", "-1", "0", "0x80000000"])),
    ) {
        let source = SOURCES[which];
        // Words and the blanks between them.
        let mut tokens: Vec<&str> = source.split_inclusive([' ', ',', ';', '\n', '\t', '[', '{', '<']).collect();
        let token = number.unwrap_or(tokens[from.index(tokens.len())]);
        let at = to.index(tokens.len());
        tokens.splice(at..at + 1, std::iter::repeat_n(token, times));
        parse_and_run(&tokens.concat());
    }

    #[test]
    fn modules_with_lines_moved_never_panic(
        which in 0usize..3, from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(), delete in any::<bool>(),
    ) {
        let mut lines: Vec<&str> = SOURCES[which].lines().collect();
        let line = lines[from.index(lines.len())];
        if delete {
            lines.remove(from.index(lines.len()));
        }
        let place = to.index(lines.len());
        lines.insert(place, line);
        parse_and_run(&lines.join("\n"));
    }
}
