//! Modules for sm_75: run by machines from 7.5 on, and refused where they use what came later.

use warpsmith_emulator::{Config, KernelTest, LaunchError, Module, TestError};

fn parse(target: &str, body: &str) -> Result<Module, String> {
    let text = format!(
        ".version 8.0\n.target {target}\n.address_size 64\n.extern .shared .align 16 .b8 memory[];\n\
         .visible .entry test(.param .u64 y)\n{{\n.reg .b64 %y, %z;\n.reg .b32 %a<8>;\n.reg .b16 %h<4>;\n.reg .f32 %f<8>;\n.reg .pred %p;\n\
         ld.param.u64 %y, [y];\nmov.u64 %z, %y;\nmov.b32 %a0, 0;\nmov.b32 %a1, 0;\nmov.b32 %a2, 0;\nmov.f32 %f0, 0f3F800000;\n\
         mov.f32 %f1, 0f3F800000;\nmov.f32 %f2, 0f3F800000;\nmov.f32 %f3, 0f3F800000;\nmov.b16 %h0, 0;\n{body}\nret;\n}}\n"
    );
    Module::parse("test.ptx", &text).map_err(|error| error.to_string())
}

#[test]
fn what_came_with_later_architectures_is_refused_and_named() {
    for instruction in [
        "cp.async.ca.shared.global [%a0], [%y], 4;",
        "cp.async.commit_group;",
        "cp.async.wait_all;",
        "cvt.rn.f16x2.f32 %a3, %f0, %f1;",
        "cvt.rn.bf16.f32 %h1, %f0;",
        "cvt.rn.bf16x2.f32 %a3, %f0, %f1;",
        "max.NaN.f32 %f4, %f0, %f1;",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%a0, %a1, %a2, %a0}, {%a1, %a2}, {%f0, %f1, %f2, %f3};",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%a0, %a1, %a2, %a0}, {%a1, %a2}, {%f0, %f1, %f2, %f3};",
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%a0, %a1}, {%a1}, {%f0, %f1, %f2, %f3};",
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0, %f1, %f2, %f3}, {%a0, %a1, %a2, %a0}, {%a1, %a2}, {%f0, %f1, %f2, %f3};",
        "mbarrier.init.shared.b64 [%a0], 1;",
        "griddepcontrol.wait;",
        "griddepcontrol.launch_dependents;",
    ] {
        let opcode = instruction.split_whitespace().next().unwrap().trim_end_matches(';');
        let refused = parse("sm_75", instruction).expect_err(instruction);
        assert!(refused.contains(opcode) && refused.contains("sm_75"), "{refused}");
        if let Err(error) = parse("sm_80", instruction) {
            // Forms that the emulator does not know are another matter.
            assert!(!error.contains("sm_80 has"), "{error}");
        }
    }
}

#[test]
fn what_sm_75_has_is_run_on_a_machine_of_7_5() {
    let module = parse(
        "sm_75",
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%a0, %a1}, {%a2}, {%f0, %f1, %f2, %f3};\n\
         max.f32 %f4, %f0, %f1;\ncvt.rn.f16.f32 %h1, %f0;\nbar.warp.sync 0xffffffff;\nmov.u32 %a3, %laneid;\n\
         setp.eq.u32 %p, %a3, 0;\n@%p st.global.f32 [%y], %f4;",
    )
    .unwrap();
    let config = Config { compute_capability: (7, 5), ..Config::default() };
    let test = KernelTest::new(&module, "test").block([32, 1, 1]).output::<f32>(1).config(config);
    assert_eq!(test.check().unwrap().read::<f32>(0), [1.0]);
}

#[test]
fn a_machine_of_7_5_refuses_modules_for_later_ones() {
    let module = parse("sm_80", "").unwrap();
    let config = Config { compute_capability: (7, 5), ..Config::default() };
    let test = KernelTest::new(&module, "test").block([32, 1, 1]).output::<f32>(1).config(config);
    assert!(matches!(test.run(), Err(TestError::Launch { error: LaunchError::Architecture { .. }, .. })));
}
