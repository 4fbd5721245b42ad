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
