//! `KernelTest`: a kernel's results and its mistakes in every mode of completion; and traces of what lanes execute.

mod common;

use std::sync::{Arc, Mutex};

use common::module;
use warpsmith_emulator::{
    Checks, Completion, Config, FindingKind, KernelTest, LaunchError, Module, TestError, TraceFilter,
    TraceStep, Tracer,
};

/// Copies 32 words to shared memory asynchronously and reads them after `wait`.
fn copying(wait: &str) -> Module {
    module(&format!(
        ".visible .entry copying(.param .u64 y, .param .u64 x)\n{{\n\
         .shared .align 16 .b8 tile[128];\n.reg .b64 %x, %y;\n.reg .b32 %t, %s, %v;\n\
         ld.param.u64 %x, [x];\nld.param.u64 %y, [y];\nmov.u32 %t, %tid.x;\n\
         mad.wide.u32 %x, %t, 4, %x;\nmad.wide.u32 %y, %t, 4, %y;\n\
         mov.u32 %s, tile;\nmad.lo.u32 %s, %t, 4, %s;\n\
         st.shared.u32 [%s], 0;\n\
         cp.async.ca.shared.global [%s], [%x], 4;\ncp.async.commit_group;\n{wait}\n\
         ld.shared.u32 %v, [%s];\nst.global.u32 [%y], %v;\nret;\n}}\n"
    ))
}

fn test<'m>(module: &'m Module, input: &[u32]) -> KernelTest<'m> {
    KernelTest::new(module, "copying").block([32, 1, 1]).output::<u32>(32).input(input)
}

#[test]
fn a_sound_kernel_has_one_result_in_all_modes() {
    let module = copying("cp.async.wait_group 0;");
    let input: Vec<u32> = (0..32).map(|i| i * i).collect();
    assert_eq!(test(&module, &input).check().unwrap().read::<u32>(0), input);
}

#[test]
fn a_missing_wait_is_reported_with_its_mode() {
    let module = copying("");
    match test(&module, &[1; 32]).check() {
        Err(TestError::Launch { completion, error: LaunchError::Finding(finding), .. }) => {
            assert_eq!(completion, Completion::Latest);
            assert_eq!(finding.kind, FindingKind::AsynchronousCopy, "{finding}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_result_that_depends_on_the_mode_is_told_from_one_that_does_not() {
    let module = copying("");
    let config = Config { checks: Checks::none(), ..Config::default() };
    match test(&module, &[1; 32]).config(config.clone()).check() {
        Err(TestError::Differs { completion, output, byte, .. }) => {
            assert_eq!((completion, output, byte), (Completion::Eager, 0, 0));
        }
        other => panic!("{other:?}"),
    }
    // What is copied is what was there.
    assert!(test(&module, &[0; 32]).config(config).check().is_ok());
}

#[test]
fn a_refused_launch_is_an_error() {
    let module = copying("");
    assert!(matches!(
        KernelTest::new(&module, "copying").check(),
        Err(TestError::Launch { error: LaunchError::ArgumentCount { .. }, .. })
    ));
    assert!(matches!(
        KernelTest::new(&module, "another").run(),
        Err(TestError::Launch { error: LaunchError::UnknownKernel { .. }, .. })
    ));
}

/// The steps of the lanes that a filter chooses, of a kernel on two blocks of 64 threads.
fn traced(filter: &str) -> Vec<TraceStep> {
    let module = module(
        ".visible .entry test(.param .u64 y)\n{\n.reg .b64 %y;\n.reg .b32 %t, %v<4>;\n.reg .pred %p;\n\
         ld.param.u64 %y, [y];\nmov.u32 %t, %tid.x;\nadd.u32 %v3, %t, 5;\nsetp.gt.u32 %p, %t, 2;\n\
         @%p mul.lo.u32 %v3, %v3, 2;\nmad.wide.u32 %y, %t, 4, %y;\nst.global.u32 [%y], %v3;\nret;\n}\n",
    );
    let steps = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&steps);
    let trace = Tracer::new(filter.parse::<TraceFilter>().unwrap(), move |step| {
        sink.lock().unwrap().push(step.clone())
    });
    let config = Config { trace: Some(trace), ..Config::default() };
    KernelTest::new(&module, "test").block([64, 1, 1]).output::<u32>(64).config(config).run().unwrap();
    let steps = steps.lock().unwrap();
    steps.clone()
}

#[test]
fn a_trace_shows_registers_by_their_names() {
    let steps = traced("test:lane=2-3,warp=0");
    let shown: Vec<_> = steps.iter().map(ToString::to_string).collect();
    let add = shown.iter().find(|step| step.contains("add.u32")).unwrap();
    assert!(add.starts_with("(0, 0, 0) warp 0, lanes 2-3 |"), "{add}");
    assert!(add.ends_with("\n       %t = 2: 0x2, 3: 0x3\n    -> %v3 = 2: 0x7, 3: 0x8"), "{add}");
    // Only lane 3 executes this one.
    let double = steps.iter().find(|step| step.text.contains("mul.lo")).unwrap();
    assert_eq!((double.lanes, double.writes[0].values.as_slice()), (1 << 3, &[(3, Some(16))][..]));
    let branch = steps.iter().find(|step| step.text.contains("setp")).unwrap();
    assert_eq!(branch.writes[0].register, "%p");
    assert_eq!(branch.writes[0].values, [(2, Some(0)), (3, Some(1))]);
}

#[test]
fn a_trace_has_the_lanes_chosen_and_no_others() {
    assert!(traced("test:warp=1").iter().all(|step| step.warp == 1));
    assert!(!traced("test:warp=1").is_empty());
    assert!(traced("test:block=1").is_empty());
    assert!(traced("other").is_empty());
    assert_eq!(traced("test:warp=0").len() + traced("test:warp=1").len(), traced("").len());
}

/// A kernel of three parameters that executes `body` with their values in `%y`, `%x` and `%f`.
fn of_three(body: &str) -> Module {
    module(&format!(
        ".visible .entry three(.param .u64 three_y, .param .u64 three_param_1, .param .f32 factor)\n{{\n\
         .reg .b64 %x, %y;\n.reg .f32 %f;\n.reg .b32 %t, %v;\nld.param.u64 %y, [three_y];\n\
         ld.param.u64 %x, [three_param_1];\nld.param.f32 %f, [factor];\n{body}\nret;\n}}\n"
    ))
}

fn finding(result: Result<warpsmith_emulator::Outputs, TestError>) -> Box<warpsmith_emulator::Finding> {
    match result {
        Err(TestError::Launch { error: LaunchError::Finding(finding), .. }) => finding,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_input_that_the_kernel_writes_is_reported() {
    for write in ["st.global.f32 [%x+4], %f;", "mov.u32 %v, 1;\nred.global.add.u32 [%x+4], %v;"] {
        let module = of_three(write);
        let test = KernelTest::new(&module, "three").output::<f32>(4);
        let found = finding(test.clone().input(&[1.0f32; 4]).value(2.0f32).check());
        assert_eq!(found.kind, FindingKind::ReadOnly, "{found}");
        assert!(found.message.contains("byte 4 of argument 2 (16 bytes"), "{found}");
        assert!(found.hint.as_ref().unwrap().contains("`in_place`"), "{found}");
        assert!(test.in_place(&[1.0f32; 4]).value(2.0f32).check().is_ok());
    }
}

#[test]
fn an_argument_is_named_as_its_parameter() {
    let test = |module: &Module| {
        finding(KernelTest::new(module, "three").output::<f32>(4).input(&[1.0f32; 4]).value(2.0f32).check())
    };
    let found = test(&of_three("st.global.f32 [%y+16], %f;"));
    assert!(found.message.contains("0 bytes past the end of argument 1, `y` (16 bytes"), "{found}");
    // The compiler's number is no name.
    let found = test(&of_three("ld.global.f32 %f, [%x+16];"));
    assert!(found.message.contains("0 bytes past the end of argument 2 (16 bytes"), "{found}");
}

#[test]
fn arguments_must_be_of_the_parameters_types() {
    let module = of_three("");
    let test = KernelTest::new(&module, "three");
    let (y, x) = (test.clone().output::<f32>(4), [1.0f32; 4]);
    let wrong = [
        (test.value(1u32), "argument 1, `y`", "`.u64` of 8 bytes", "a value of type u32"),
        (y.clone().value(1.0f64), "argument 2", "`.u64` of 8 bytes", "a value of type f64"),
        (y.clone().input(&x).value(2u32), "argument 3, `factor`", "`.f32` of 4 bytes", "a value of type u32"),
        (
            y.clone().input(&x).input(&x),
            "argument 3, `factor`",
            "`.f32` of 4 bytes",
            "the address of a buffer",
        ),
        (
            y.clone().input(&x).bytes(&[0; 5]),
            "argument 3, `factor`",
            "`.f32` of 4 bytes",
            "a value of 5 bytes",
        ),
    ];
    for (test, argument, expected, actual) in wrong {
        let error = test.check().unwrap_err().to_string();
        for part in [argument, "kernel `three`", expected, actual] {
            assert!(error.contains(part), "{error}: {part}");
        }
    }
    // An address may be a number.
    assert!(y.value(7u64).bytes(&[0; 4]).check().is_ok());
}

#[test]
fn shared_memory_is_what_the_text_says_or_the_test() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.extern .shared .align 16 .b8 memory[];\n\
                .visible .entry last(\n.param .u64 y\n)\n// warpsmith.shared_bytes 64\n{\n.shared .align 4 .b8 own[32];\n\
                .reg .b32 %v;\n.reg .b64 %y;\nld.param.u64 %y, [y];\nmov.u32 %v, 5;\nst.shared.u32 [own], %v;\n\
                st.shared.u32 [memory+60], %v;\nld.shared.u32 %v, [memory+60];\nst.global.u32 [%y], %v;\nret;\n}\n";
    let module = Module::parse("last.ptx", text).unwrap();
    let info = module.kernel("last").unwrap();
    assert_eq!((info.dynamic_shared, info.static_shared), (Some(64), 32));
    let test = KernelTest::new(&module, "last").output::<u32>(1);
    assert_eq!(test.clone().check().unwrap().read::<u32>(0), [5]);
    assert_eq!(finding(test.dynamic_shared(32).check()).kind, FindingKind::OutOfBounds);
}

#[test]
fn an_error_shows_its_diagnostic_when_main_returns_it() {
    let module = of_three("st.global.f32 [%y+16], %f;");
    let error = KernelTest::new(&module, "three").output::<f32>(4).input(&[1.0f32; 4]).value(2.0f32).check();
    let error = error.unwrap_err();
    let shown = format!("{error:?}");
    assert_eq!(shown, format!("\n{error}"));
    assert!(
        shown.contains("\nerror[out-of-bounds]: ") && shown.contains("st.global.f32 [%y+16], %f;"),
        "{shown}"
    );
    let TestError::Launch { error, .. } = error else { panic!("{error:?}") };
    assert_eq!(format!("{error:?}"), format!("\n{error}"));
    // What is one line stays behind `Error: `.
    let error = KernelTest::new(&module, "another").run().unwrap_err();
    let TestError::Launch { error, .. } = error else { panic!("{error:?}") };
    assert!(format!("{error:?}").starts_with("no kernel `another` in "), "{error:?}");
    let error = Module::parse("none.ptx", "nothing").unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
}

#[test]
fn a_missing_barrier_of_a_block_is_asked_for() {
    // Each thread reads what its neighbour writes, in its own warp or in the next.
    let text = |between: &str, distance: u32| {
        module(&format!(
            ".visible .entry next(.param .u64 y)\n{{\n.shared .align 16 .b8 tile[256];\n.reg .b64 %y;\n.reg .b32 %t, %s, %v;\n\
             ld.param.u64 %y, [y];\nmov.u32 %t, %tid.x;\nmov.u32 %s, tile;\nmad.lo.u32 %s, %t, 4, %s;\n\
             st.shared.u32 [%s], 0;\nbar.sync 0;\nst.shared.u32 [%s], %t;\n{between}\nxor.b32 %s, %s, {distance};\nld.shared.u32 %v, [%s];\n\
             mad.wide.u32 %y, %t, 4, %y;\nst.global.u32 [%y], %v;\nret;\n}}\n"
        ))
    };
    for (between, threads) in [("", 64), ("bar.warp.sync 0xffffffff;", 64), ("", 32)] {
        let module = text(between, if between.is_empty() { 4 } else { 128 });
        let found =
            finding(KernelTest::new(&module, "next").block([threads, 1, 1]).output::<u32>(64).check());
        assert_eq!(found.kind, FindingKind::SharedRace, "{found}");
        let hint = found.hint.as_ref().unwrap();
        assert_eq!(
            hint.contains("a barrier of the block") && hint.contains("`sync_threads`"),
            threads > 32,
            "{found}"
        );
        assert_eq!(hint.contains("bar.warp.sync"), between.is_empty(), "{found}");
    }
}
