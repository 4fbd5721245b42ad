//! Functions: calls by lane, parameters of every shape, recursion, addresses of functions, stacks, and what the
//! driver brings.

mod common;

use common::{finding, launch};
use warpsmith_emulator::{FindingKind, Machine, Module, ParseError};

fn parse(text: &str) -> Result<Module, ParseError> {
    common::parse("test.ptx", &format!(".version 8.0\n.target sm_80\n.address_size 64\n{text}"))
}

/// An entry that puts `%v` of each of 32 threads to `y[t]`, after `body`; `%t` is the thread.
fn entry(body: &str) -> String {
    format!(
        ".visible .entry k(.param .u64 y)\n{{\n.reg .b32 %t, %v, %w; .reg .b64 %y, %a, %f; .reg .pred %p, %q;\n\
         ld.param.u64 %y, [y];\nmov.u32 %t, %tid.x;\nmad.wide.u32 %a, %t, 4, %y;\n{body}\nst.global.b32 [%a], %v;\nret;\n}}\n"
    )
}

/// What 32 threads of a module leave.
fn run(text: &str) -> Vec<u32> {
    let module = parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let machine = Machine::default();
    let y = machine.allocate(128).unwrap();
    launch(&machine, &module, 1, 32, 0, &[y]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut bytes = [0; 128];
    machine.read(y, &mut bytes).unwrap();
    bytes.as_chunks::<4>().0.iter().map(|c| u32::from_le_bytes(*c)).collect()
}

fn fails(text: &str) -> warpsmith_emulator::Finding {
    let module = parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let machine = Machine::default();
    let y = machine.allocate(128).unwrap();
    finding(launch(&machine, &module, 1, 32, 0, &[y]))
}

const DOUBLE: &str = ".func (.param .b32 out) double(.param .b32 in)\n{\n.reg .b32 %r;\n\
    ld.param.b32 %r, [in];\nadd.u32 %r, %r, %r;\nst.param.b32 [out], %r;\nret;\n}\n";

fn call_double(guard: &str) -> String {
    format!(
        "{{ .param .b32 p; .param .b32 r; {guard} st.param.b32 [p], %t;\n{guard} call (r), double, (p);\n\
         {guard} ld.param.b32 %v, [r]; }}"
    )
}

#[test]
fn a_function_is_called_by_all_lanes_and_by_some() {
    let all = run(&(DOUBLE.to_owned() + &entry(&call_double(""))));
    assert_eq!(all, (0..32).map(|t| 2 * t).collect::<Vec<_>>());
    let body = format!("mov.b32 %v, 7; setp.gt.u32 %p, %t, 20;\n{}", call_double("@%p"));
    let some = run(&(DOUBLE.to_owned() + &entry(&body)));
    assert_eq!(some, (0..32).map(|t| if t > 20 { 2 * t } else { 7 }).collect::<Vec<_>>());
}

#[test]
fn lanes_that_part_for_a_call_meet_again_behind_it() {
    let body = format!(
        "mov.b32 %v, 7; setp.gt.u32 %p, %t, 20; @!%p bra $AFTER;\n{}\n$AFTER: activemask.b32 %v;",
        call_double("")
    );
    assert_eq!(run(&(DOUBLE.to_owned() + &entry(&body))), [u32::MAX; 32]);
}

#[test]
fn parameters_may_be_registers_constants_and_arrays() {
    let text = ".func (.reg .b32 %out) add3(.reg .b32 %x, .reg .b32 %y, .param .b16 z)\n{\n.reg .b32 %z;\n.reg .pred %p;\n\
         ld.param.u16 %z, [z];\nadd.u32 %out, %x, %y;\nadd.u32 %out, %out, %z;\n\
         setp.gt.u32 %p, %x, 9;\n@%p ret;\nadd.u32 %out, %out, 100;\n}\n\
         .func (.param .align 8 .b8 out[12]) turn(.param .align 8 .b8 in[12])\n{\n.reg .b32 %a<3>;\n\
         ld.param.v2.b32 {%a0, %a1}, [in];\nld.param.b32 %a2, [in+8];\n\
         st.param.v2.b32 [out], {%a2, %a1};\nst.param.b32 [out+8], %a0;\nret;\n}\n";
    let body = "call (%v), add3, (%t, 5, 3);\n\
        { .param .align 8 .b8 p[12]; \
        .param .align 8 .b8 r[12];\nst.param.v2.b32 [p], {%v, 1};\nst.param.b32 [p+8], %t;\n\
        call.uni (r), turn, (p);\nld.param.b32 %w, [r];\nld.param.b32 %v, [r+8]; }\nmad.lo.u32 %v, %w, 1000, %v;";
    let expected = |t: u32| 1000 * t + t + 8 + if t > 9 { 0 } else { 100 };
    assert_eq!(run(&(text.to_owned() + &entry(body))), (0..32).map(expected).collect::<Vec<_>>());
}

/// Fibonacci numbers, with a local variable that must outlive the inner calls.
const FIBONACCI: &str = ".func (.param .b32 out) fib(.param .b32 n)\n{\n.reg .b32 %n, %a, %b, %m; \
    .reg .pred %p; .reg .b64 %l;\n\
    .local .align 4 .b8 kept[4];\nld.param.b32 %n, [n];\nst.local.b32 [kept], %n;\nmov.u64 %l, kept;\ncvta.local.u64 %l, %l;\n\
    setp.lt.u32 %p, %n, 2;\n@%p st.param.b32 [out], %n;\n@%p ret;\n\
    { .param .b32 p; .param .b32 r; add.u32 %m, %n, -1; st.param.b32 [p], %m; call (r), fib, (p); \
    ld.param.b32 %a, [r]; }\n\
    ld.b32 %n, [%l];\n\
    { .param .b32 p; .param .b32 r; add.u32 %m, %n, -2; st.param.b32 [p], %m; call (r), fib, (p); \
    ld.param.b32 %b, [r]; }\n\
    add.u32 %a, %a, %b;\nst.param.b32 [out], %a;\nret;\n}\n";

#[test]
fn a_function_may_call_itself_in_each_lane_to_another_depth() {
    let body = "{ .param .b32 p; .param .b32 r; and.b32 %w, %t, 15; st.param.b32 [p], %w; call (r), fib, (p); \
        ld.param.b32 %v, [r]; }";
    let mut numbers = vec![0, 1];
    (2..16).for_each(|i| numbers.push(numbers[i - 1] + numbers[i - 2]));
    let expected: Vec<u32> = (0..32).map(|t| numbers[t % 16]).collect();
    assert_eq!(run(&(FIBONACCI.to_owned() + &entry(body))), expected);
}

#[test]
fn a_recursion_without_end_is_a_finding() {
    let text =
        ".func forever() { call forever; ret; }\n".to_owned() + &entry("call forever;\nmov.b32 %v, 0;");
    let found = fails(&text);
    assert_eq!(found.kind, FindingKind::StackOverflow);
    assert!(found.message.contains("a call of `forever`") && found.message.contains("1025 calls"), "{found}");
}

const TABLE: &str = ".global .u64 table[2] = {double, triple};\n";
const TRIPLE: &str = ".func (.param .b32 out) triple(.param .b32 in)\n{\n.reg .b32 %r;\n\
    ld.param.b32 %r, [in];\nmul.lo.u32 %r, %r, 3;\nst.param.b32 [out], %r;\nret;\n}\n";

#[test]
fn each_lane_may_call_another_function_by_its_address() {
    let declared =
        ".func (.param .b32 out) double(.param .b32 in);\n.func (.param .b32 out) triple(.param .b32 in);\n";
    for list in
        ["proto: .callprototype (.param .b32 _) _ (.param .b32 _);", "proto: .calltargets double, triple;"]
    {
        let body = format!(
            "and.b32 %w, %t, 1; mov.u64 %f, table; mad.wide.u32 %f, %w, 8, %f; ld.global.u64 %f, [%f];\n\
             {{ .param .b32 p; .param .b32 r; st.param.b32 [p], %t;\n{list}\ncall (r), %f, (p), proto;\nld.param.b32 %v, [r]; }}"
        );
        let got = run(&[declared, TABLE, DOUBLE, TRIPLE, &entry(&body)].concat());
        assert_eq!(got, (0..32).map(|t| t * (2 + t % 2)).collect::<Vec<_>>());
    }
    // By its name.
    let body = "mov.u64 %f, double;\n{ .param .b32 p; .param .b32 r; st.param.b32 [p], %t;\n\
        proto: .callprototype (.param .b32 _) _ (.param .b32 _);\ncall (r), %f, (p), proto;\nld.param.b32 %v, [r]; }";
    assert_eq!(run(&(DOUBLE.to_owned() + &entry(body)))[31], 62);
}

#[test]
fn calls_of_what_is_no_such_function_are_findings_and_errors() {
    let call = |prototype: &str, passed: &str| {
        format!(
            "{{ .param .b32 p; .param .b64 q; .param .b32 r; st.param.b32 [p], %t; st.param.b64 [q], %y;\n\
             proto: .callprototype {prototype};\ncall (r), %f, ({passed}), proto;\nld.param.b32 %v, [r]; }}"
        )
    };
    let right = call("(.param .b32 _) _ (.param .b32 _)", "p");
    let found =
        fails(&(DOUBLE.to_owned() + &entry(&format!("mov.u64 %f, double; add.u64 %f, %f, 8;\n{right}"))));
    assert_eq!(found.kind, FindingKind::BadCall);
    let wrong = call("(.param .b32 _) _ (.param .b64 _)", "q");
    let found = fails(&(DOUBLE.to_owned() + &entry(&format!("mov.u64 %f, double;\n{wrong}"))));
    assert!(found.kind == FindingKind::BadCall && found.message.contains("`double`"), "{found}");
    for (body, part) in [
        ("call nothing;", "not declared"),
        ("call double, (%t, %t);", "2 arguments"),
        ("{ .param .b64 p; st.param.b64 [p], %y; call double, (p); }", "takes 4"),
        ("call %f, (%t);", "needs a `.callprototype`"),
        ("call declared;", "no body"),
        ("st.param.b32 [y], %t;", "cannot be written"),
    ] {
        let text = [".func declared();\n", DOUBLE, &entry(&format!("mov.u64 %f, 0; {body}\nmov.b32 %v, 0;"))]
            .concat();
        let error = parse(&text).expect_err(body);
        assert!(error.message.contains(part), "{error}: lacks {part:?}");
    }
}

#[test]
fn bodies_of_functions_are_checked_whether_or_not_they_are_called() {
    let error = parse(".func f() { frobnicate.b32 x, y; ret; }\n.visible .entry k() { ret; }").unwrap_err();
    assert!(error.line == 4 && error.message.contains("frobnicate"), "{error}");
}

#[test]
fn declarations_that_are_left_out_are_refused() {
    for (text, part) in [
        (".func f(.param .b8 rest[]) { ret; }", "any number of parameters"),
        (".func f() { ret; }\n.alias g, f;", "`.alias`"),
        (".func f(.reg .pred p) { ret; }", "predicate"),
        (".func f() { ret; }\n.func f() { ret; }", "defined twice"),
        (".func f(.param .b32 a);\n.func f(.param .b64 a) { ret; }", "other parameters"),
        (".func f() .unknown { ret; }", "`.unknown`"),
        (".func f(.param .b8 a[99999999]) { ret; }", "too many"),
    ] {
        let error = parse(text).expect_err(text);
        assert!(error.message.contains(part), "{error}: lacks {part:?}");
    }
}

#[test]
fn variables_of_every_space_may_stand_in_functions_and_entries() {
    let text = ".func (.reg .b32 %out) count()\n{\n.global .u32 calls = 5;\n.shared .u32 seen;\n\
        .const .u32 step = 2;\n.reg .b32 %s;\n\
        ld.const.u32 %s, [step];\natom.global.add.u32 %out, [calls], %s;\nst.shared.u32 [seen], %out;\nret;\n}\n";
    let body = "mov.b32 %v, 0; \
        setp.eq.u32 %p, %t, 3;\n@%p call (%v), count;\n@%p call (%v), count;\n.shared .u32 own;\n@%p st.shared.u32 [own], 1;";
    let got = run(&(text.to_owned() + &entry(body)));
    assert_eq!((got[3], got[4]), (7, 0));
}

#[test]
fn exit_in_a_function_ends_the_thread() {
    let text = ".func leave() { exit; }\n".to_owned()
        + &entry(
            "setp.lt.u32 %p, %t, 4; mov.b32 %v, 1; st.global.b32 [%a], %v; @%p call leave; mov.b32 %v, 2;",
        );
    assert_eq!(run(&text), [[1; 4].as_slice(), &[2; 28]].concat());
}

#[test]
fn the_stack_grows_by_alloca_and_shrinks_again() {
    let body = "{ .reg .b64 %s, %p1, %p2, %n; cvt.u64.u32 %n, %t; add.u64 %n, %n, 4;\nstacksave.u64 %s;\n\
        alloca.u64 %p1, %n;\nst.local.b32 [%p1], %t;\nalloca.u64 %p2, %n, 64;\nst.local.b32 [%p2], 9;\nld.local.b32 %v, [%p1];\n\
        and.b64 %p2, %p2, 63; cvt.u32.u64 %w, %p2; add.u32 %v, %v, %w;\nstackrestore.u64 %s; }";
    assert_eq!(run(&entry(body)), (0..32).collect::<Vec<_>>());
    let found = fails(&entry("{ .reg .b64 %p1; alloca.u64 %p1, 1000000; }\nmov.b32 %v, 0;"));
    assert_eq!(found.kind, FindingKind::StackOverflow);
}

/// A text as an initialised variable.
fn text(name: &str, value: &str) -> String {
    let bytes: Vec<String> = value.bytes().chain([0]).map(|b| b.to_string()).collect();
    format!(".global .align 1 .b8 {name}[{}] = {{{}}};\n", bytes.len(), bytes.join(", "))
}

const DRIVER: &str = ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n\
    .extern .func __assertfail(.param .b64 c, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 s);\n\
    .extern .func (.param .b64 r) malloc(.param .b64 n);\n.extern .func free(.param .b64 p);\n";

#[test]
fn what_threads_print_can_be_read_from_the_machine() {
    let body = "{ .local .align 8 .b8 args[16]; .reg .b64 %l; .reg .pred %few; mov.u64 %l, args; \
        cvta.local.u64 %l, %l;\n\
        st.local.b32 [args], %t; st.local.f64 [args+8], 0d3FF8000000000000; mov.u64 %f, format;\n\
        .param .b64 p; .param .b64 q; .param .b32 r; st.param.b64 [p], %f; st.param.b64 [q], %l; \
        setp.lt.u32 %few, %t, 2; mov.b32 %v, 0;\n\
        @%few call (r), vprintf, (p, q); @%few ld.param.b32 %v, [r]; }";
    let module = parse(&[DRIVER, &text("format", "thread %d: %.2f\n"), &entry(body)].concat()).unwrap();
    let machine = Machine::default();
    let y = machine.allocate(128).unwrap();
    launch(&machine, &module, 2, 32, 0, &[y]).unwrap_err();
    launch(&machine, &module, 1, 32, 0, &[y]).unwrap();
    let line = "thread 0: 1.50\nthread 1: 1.50\n";
    // The first launch has a race, and has printed what it did.
    assert_eq!(machine.take_printed(), [line; 3].concat());
    assert_eq!(machine.take_printed(), "");
    let mut bytes = [0; 4];
    machine.read(y, &mut bytes).unwrap();
    assert_eq!(u32::from_le_bytes(bytes), 2);
}

#[test]
fn an_assertion_that_fails_is_a_finding_with_its_place() {
    let body = "{ .param .b64 c; .param .b64 f; .param .b32 l; .param .b64 n; .param .b64 s;\n\
        mov.u64 %f, condition; st.param.b64 [c], %f; mov.u64 %f, file; st.param.b64 [f], %f; st.param.b32 [l], 12;\n\
        mov.u64 %f, function; st.param.b64 [n], %f; st.param.b64 [s], 1; setp.eq.u32 %p, %t, 5;\n\
        @%p call __assertfail, (c, f, l, n, s); }\nmov.b32 %v, 0;";
    let texts = [text("condition", "n < 3"), text("file", "a.cu"), text("function", "void k(int)")].concat();
    let found = fails(&[DRIVER, &texts, &entry(body)].concat());
    assert_eq!((found.kind, found.lanes), (FindingKind::Assertion, 1 << 5));
    assert_eq!(found.message, "the assertion `n < 3` failed at a.cu:12 in `void k(int)`");
}

#[test]
fn memory_of_the_heap_is_used_and_given_back_once() {
    let allocate = "{ .param .b64 n; .param .b64 r; st.param.b64 [n], 12; call (r), malloc, (n); \
        ld.param.b64 %f, [r]; }\n\
        st.b32 [%f+8], %t;\n ld.b32 %v, [%f+8];";
    let free = "{ .param .b64 n; st.param.b64 [n], %f; call free, (n); }";
    let got = run(&[DRIVER, &entry(&[allocate, free].concat())].concat());
    assert_eq!(got, (0..32).collect::<Vec<_>>());
    let found = fails(&[DRIVER, &entry(&[allocate, free, free].concat())].concat());
    assert_eq!(found.kind, FindingKind::UseAfterFree);
    let found = fails(&[DRIVER, &entry(&[allocate, "add.u64 %f, %f, 4;", free].concat())].concat());
    assert!(found.message.contains("did not give"), "{found}");
    let found = fails(&[DRIVER, &entry(&[allocate, "ld.b32 %v, [%f];", free].concat())].concat());
    assert_eq!(found.kind, FindingKind::Uninitialised);
}

#[test]
fn the_next_owner_of_memory_of_the_heap_is_ordered_behind_the_last() {
    // Two blocks of 3 MB fit; whoever comes later gets one that was given back.
    let allocate = "st.param.b64 [n], 3145728; call (r), malloc, (n); ld.param.b64 %f, [r];\n";
    let (store, free) = ("st.b32 [%f], %t;\n", "st.param.b64 [q], %f; call free, (q);\n");
    let run = |body: &[&str]| {
        let text = format!(
            "{DRIVER}.visible .entry test()\n{{\n.reg .b64 %f; .reg .b32 %t; .param .b64 n; .param .b64 r; .param .b64 q;\n\
             mov.u32 %t, %ctaid.x;\n{}ret;\n}}\n",
            body.concat()
        );
        launch(&Machine::default(), &parse(&text).unwrap(), 5, 1, 0, &[])
    };
    run(&[allocate, store, free]).unwrap_or_else(|error| panic!("{error}"));
    let found = finding(run(&[allocate, free, store]));
    assert_eq!(found.kind, FindingKind::GlobalRace, "{found}");
}
