//! `griddepcontrol`: launches do not overlap here, so that it changes no result; but a thread that touches global memory before
//! its wait is found.

use warpsmith_emulator::{
    Checks, Completion, Config, Finding, FindingKind, LaunchConfig, LaunchError, Machine, Report,
};

use crate::common::{finding, hopper_module, launch};

const WAIT: &str = "griddepcontrol.wait;\n";
const LAUNCH: &str = "griddepcontrol.launch_dependents;\n";
/// Each thread adds 3 to its word.
const ADD: &str = "ld.global.u32 %r0, [%q];\nadd.u32 %r0, %r0, 3;\nst.global.u32 [%q], %r0;\n";

/// A kernel of one pointer parameter, `%p`, thread index `%t`, and the address `%q` of the thread's word, a generic one, too;
/// `%c` holds in the lower half of a warp.
fn kernel(body: &str) -> String {
    format!(
        ".const .align 4 .u32 table[2] = {{5, 6}};\n.visible .entry test(.param .u64 p)\n{{\n\
         .shared .align 128 .b8 s[1024];\n.local .align 4 .b8 l[4];\n.reg .b64 %p, %q, %x;\n.reg .b32 %t, %s, %r<4>;\n\
         .reg .pred %c;\nld.param.u64 %p, [p];\nmov.u32 %t, %tid.x;\nmad.wide.u32 %q, %t, 4, %p;\n\
         mov.u32 %s, s;\nmad.lo.u32 %s, %t, 4, %s;\nand.b32 %r3, %t, 16;\nsetp.eq.u32 %c, %r3, 0;\n{body}ret;\n}}\n"
    )
}

/// Runs a kernel on words that hold their numbers; gives what they hold then.
fn run_as(body: &str, config: Config) -> (Result<Report, LaunchError>, Vec<u32>) {
    let machine = Machine::new(config);
    let p = machine.allocate(256).unwrap();
    machine.write(p, &(0..64u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    let result = launch(&machine, &hopper_module(&kernel(body)), 1, 64, 0, &[p]);
    let mut back = [0; 256];
    machine.read(p, &mut back).unwrap();
    (result, back.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

/// The words that a kernel leaves, the same in every mode.
fn passes(body: &str) -> Vec<u32> {
    let mut all = [Completion::Eager, Completion::Latest, Completion::Random].map(|completion| {
        let (result, words) = run_as(body, Config { completion, ..Config::hopper() });
        result.unwrap_or_else(|error| panic!("{completion:?}: {error}\n{body}"));
        words
    });
    assert!(all[0] == all[1] && all[1] == all[2]);
    std::mem::take(&mut all[0])
}

/// The finding of a kernel, which there must be in every mode, and none with this check off.
fn fails(body: &str) -> Finding {
    let checks = Checks { dependencies: false, ..Checks::all() };
    run_as(body, Config { checks, ..Config::hopper() }).0.unwrap_or_else(|error| panic!("{error}\n{body}"));
    let [_, _, found] = [Completion::Eager, Completion::Random, Completion::Latest].map(|completion| {
        let found = finding(run_as(body, Config { completion, ..Config::hopper() }).0);
        assert_eq!(found.kind, FindingKind::GridDependency, "{found}");
        found
    });
    found
}

#[test]
fn waiting_for_other_grids_and_letting_them_start_change_no_result() {
    let expected: Vec<u32> = (3..67).collect();
    for body in [
        ADD.to_owned(),
        format!("{WAIT}{ADD}"),
        format!("{WAIT}{ADD}{LAUNCH}"),
        format!("{LAUNCH}{WAIT}{ADD}"),
    ] {
        assert_eq!(passes(&body), expected, "{body}");
        let (result, words) = run_as(&body, Config { checks: Checks::none(), ..Config::hopper() });
        result.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(words, expected, "{body}");
    }
}

#[test]
fn every_access_to_global_memory_comes_after_the_wait() {
    let found = fails(&format!("ld.global.u32 %r0, [%q];\n{WAIT}"));
    assert!(found.message.starts_with("load of 4 bytes at 0x"), "{found}");
    assert!(
        found.message.ends_with(
            "access to global memory before `griddepcontrol.wait`: byte 0 of argument 1, `p` (256 bytes at 0x700000000000)"
        ),
        "{found}"
    );
    assert_eq!((found.text.as_str(), found.lanes), ("ld.global.u32 %r0, [%q];", u32::MAX), "{found}");
    for access in [
        "ld.u32 %r0, [%q];",
        "ld.global.nc.v2.u32 {%r0, %r1}, [%p];",
        "ld.acquire.gpu.global.u32 %r0, [%q];",
        "st.global.u32 [%q], %t;",
        "st.u32 [%q], %t;",
        "atom.global.add.u32 %r0, [%q], 1;",
        "red.global.add.u32 [%q], 1;",
        "cp.async.ca.shared.global [%s], [%q], 4;\ncp.async.wait_all;",
    ] {
        let found = fails(&format!("{access}\n{WAIT}"));
        assert_eq!(found.text, access.lines().next().unwrap(), "{found}");
        // Behind the wait of the same thread all is well, however the words are changed.
        passes(&format!("{WAIT}{access}\n"));
        // A kernel without `griddepcontrol` begins when those before it have ended.
        passes(&format!("{access}\n"));
    }
}

#[test]
fn what_no_other_grid_writes_may_be_touched_before_the_wait() {
    for access in [
        "ld.param.u64 %x, [p];",
        "ld.const.u32 %r0, [table+4];",
        "mov.b64 %x, table;\ncvta.const.u64 %x, %x;\nld.u32 %r0, [%x];",
        "st.shared.u32 [%s], %t;\nld.shared.u32 %r0, [%s];",
        "cvt.u64.u32 %x, %s;\ncvta.shared.u64 %x, %x;\nst.u32 [%x], %t;",
        "st.local.u32 [l], %t;\nld.local.u32 %r0, [l];",
        "mov.b64 %x, p;\ncvta.param.u64 %x, %x;\nld.u32 %r0, [%x];",
        "prefetch.global.L2 [%q];",
        // Nothing is read.
        "cp.async.ca.shared.global [%s], [%q], 4, 0;\ncp.async.wait_all;",
        "@%c bra $ON;\n$ON:",
    ] {
        assert_eq!(passes(&format!("{access}\n{WAIT}{ADD}")), (3..67).collect::<Vec<_>>(), "{access}");
    }
}

#[test]
fn the_wait_of_one_thread_is_not_that_of_another() {
    for skip in [
        format!("@%c {WAIT}"),
        format!("@!%c bra $PAST;\n{WAIT}$PAST:\n"),
        // Nor does a barrier pass it on.
        format!("@%c {WAIT}bar.sync 0;\n"),
    ] {
        let found = fails(&format!("{skip}{ADD}"));
        assert_eq!(found.lanes, 0xffff_0000, "{found}");
        // Behind a barrier the warp that came last goes on first.
        let byte = if found.warp == 0 { "byte 64 of" } else { "byte 192 of" };
        assert!(found.message.contains(byte), "{found}");
        // Those that have waited may go on alone.
        passes(&format!("{skip}@!%c exit;\n{ADD}"));
    }
    // Both halves, each on its own path.
    let apart = format!("@%c bra $LOW;\n{WAIT}bra $ON;\n$LOW:\n{WAIT}$ON:\n{ADD}");
    assert_eq!(passes(&apart), (3..67).collect::<Vec<_>>());
    // The second warp alone does not wait.
    let found = fails(&format!("setp.lt.u32 %c, %t, 32;\n@%c {WAIT}{ADD}"));
    assert_eq!((found.warp, found.lanes), (1, u32::MAX), "{found}");
}

#[test]
fn a_kernel_that_lets_others_start_and_does_not_wait_itself_is_found() {
    let found = fails(&format!("{LAUNCH}{ADD}"));
    assert!(found.hint.unwrap().contains("`griddepcontrol.wait` first"));
    fails(&format!("{ADD}{LAUNCH}"));
    passes(LAUNCH);
}

#[test]
fn beside_the_last_launch_what_that_did_not_write_may_be_read_before_the_wait() {
    let machine = Machine::new(Config::hopper());
    let p = machine.allocate(256).unwrap();
    machine.write(p, &[1; 256]).unwrap();
    let config = LaunchConfig { block: [64, 1, 1], beside_last: true, ..LaunchConfig::default() };
    let run =
        |body: &str| machine.launch(&hopper_module(&kernel(body)), "test", &config, &[&p.to_le_bytes()]);
    let is_found = |body: &str| assert_eq!(finding(run(body)).kind, FindingKind::GridDependency, "{body}");
    let (load, store) =
        (format!("ld.global.u32 %r0, [%q];\n{WAIT}"), format!("st.global.u32 [%q], %t;\n{WAIT}"));
    run(&load).unwrap();
    // Stores never.
    is_found(&store);
    run(&load).unwrap();
    // What the last launch has written, if there was no other since.
    run(&format!("{WAIT}{ADD}")).unwrap();
    is_found(&load);
    run(&load).unwrap();
    machine.assume_written(p).unwrap();
    is_found(&load);
    assert!(machine.assume_written(p - 1).is_err());
}
