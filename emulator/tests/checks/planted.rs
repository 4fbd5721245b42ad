//! Mistakes that programmers make, planted one at a time in kernels that are right, and what is reported of each.

use warpsmith_emulator::FindingKind::{
    AsynchronousCopy, BarrierDeadlock, BarrierMisuse, Divergence, GlobalRace, Misaligned, OutOfBounds,
    SharedRace, Uninitialised,
};
use warpsmith_emulator::{Config, LaunchError, Machine, Report};

use crate::common::{finding, hopper_module, launch, module};
use crate::stages::{self, COPY, EXPECT};
use crate::{fails, kernel, passes};

/// Two warps exchange words through shared memory, and write them back.
const EXCHANGE: &str = "mov.u32 %r1, s;\nmad.lo.u32 %r2, %t, 4, %r1;\nst.shared.u32 [%r2], %t;\nbar.sync 0;\n\
     xor.b32 %r3, %t, 32;\nmad.lo.u32 %r4, %r3, 4, %r1;\nld.shared.u32 %r5, [%r4];\nbar.sync 0;\n\
     st.shared.u32 [%r2], %r5;\nst.global.u32 [%q], %r5;";

/// All threads count in one word.
const COUNT: &str = "mov.u32 %r1, s;\nsetp.eq.u32 %c0, %t, 0;\n@%c0 st.shared.u32 [%r1], 0;\nbar.sync 0;\n\
     atom.shared.add.u32 %r2, [%r1], 1;\nbar.sync 0;\nld.shared.u32 %r3, [%r1];\nst.global.u32 [%q], %r3;";

/// Warps add up words, of which there are 40.
const SUM: &str = "setp.lt.u32 %c0, %t, 40;\nmov.u32 %r1, 0;\n@%c0 mov.u32 %r1, %t;\n\
     shfl.sync.down.b32 %r2, %r1, 16, 31, 0xffffffff;\nadd.u32 %r1, %r1, %r2;\nst.global.u32 [%q], %r1;";

/// Pairs of warps exchange words; each pair has its barrier.
const PAIRS: &str = "shr.u32 %r1, %t, 6;\nadd.u32 %r2, %r1, 1;\nmov.u32 %r3, s;\nmad.lo.u32 %r4, %t, 4, %r3;\n\
     st.shared.u32 [%r4], %t;\nbar.sync %r2, 64;\nxor.b32 %r5, %t, 32;\nmad.lo.u32 %r6, %r5, 4, %r3;\n\
     ld.shared.u32 %r7, [%r6];\nst.global.u32 [%q], %r7;";

/// Two warps fetch words by asynchronous copies, and read each other's.
const FETCH: &str = "mov.u32 %r1, s;\nmad.lo.u32 %r2, %t, 4, %r1;\ncp.async.ca.shared.global [%r2], [%q], 4;\n\
     cp.async.commit_group;\ncp.async.wait_group 0;\nbar.sync 0;\nxor.b32 %r3, %t, 32;\nmad.lo.u32 %r4, %r3, 4, %r1;\n\
     ld.shared.u32 %r5, [%r4];\nbar.sync 0;\nst.global.u32 [%q], %r5;";

/// Two warps exchange words in place, in global memory.
const IN_PLACE: &str = "st.global.u32 [%q], %t;\nbar.sync 0;\nxor.b32 %r1, %t, 32;\nmad.wide.u32 %x0, %r1, 4, %p;\n\
     ld.global.u32 %r2, [%x0];\nbar.sync 0;\nst.global.u32 [%q], %r2;";

#[test]
fn each_planted_mistake_is_called_what_it_is() {
    let table = [
        ("the barrier behind the write is left out", EXCHANGE, "bar.sync 0;\nxor", "xor", SharedRace),
        ("the barrier before the next write is left out", EXCHANGE, "bar.sync 0;\nst", "st", SharedRace),
        (
            "a barrier of the warp where two warps meet",
            EXCHANGE,
            "bar.sync 0;\nxor",
            "bar.warp.sync 0xffffffff;\nxor",
            SharedRace,
        ),
        ("one index past the array", EXCHANGE, "xor.b32 %r3, %t, 32", "add.u32 %r3, %t, 193", OutOfBounds),
        ("a vector at an odd word", EXCHANGE, "ld.shared.u32 %r5", "ld.shared.v2.u32 {%r5, %r6}", Misaligned),
        (
            "one warp alone writes",
            EXCHANGE,
            "st.shared.u32 [%r2], %t",
            "setp.lt.u32 %c0, %t, 32;\n@%c0 st.shared.u32 [%r2], %t",
            Uninitialised,
        ),
        (
            "a count of threads that are not there",
            EXCHANGE,
            "bar.sync 0;\nxor",
            "bar.sync 0, 288;\nxor",
            BarrierMisuse,
        ),
        ("the counter begins without a value", COUNT, "@%c0 st.shared.u32 [%r1], 0;", "", Uninitialised),
        (
            "a plain addition in place of an atomic one",
            COUNT,
            "atom.shared.add.u32 %r2, [%r1], 1;",
            "ld.shared.u32 %r2, [%r1];\nadd.u32 %r2, %r2, 1;\nst.shared.u32 [%r1], %r2;",
            SharedRace,
        ),
        ("the sum is read before all have counted", COUNT, "bar.sync 0;\nld", "ld", SharedRace),
        ("threads beyond the end return early", SUM, "@%c0 mov.u32", "@!%c0 ret;\nmov.u32", Uninitialised),
        ("the mask names half of the lanes", SUM, "0xffffffff", "0xffff", Divergence),
        ("two pairs share a barrier", PAIRS, "bar.sync %r2", "bar.sync 1", BarrierMisuse),
        ("a pair waits for the whole block", PAIRS, "%r2, 64", "%r2, 256", BarrierDeadlock),
        ("no commit before the wait", FETCH, "cp.async.commit_group;\n", "", AsynchronousCopy),
        ("a wait for one group too few", FETCH, "wait_group 0", "wait_group 1", AsynchronousCopy),
        ("no barrier behind the wait", FETCH, "bar.sync 0;\nxor", "xor", SharedRace),
        ("what the launch writes is read as constant", IN_PLACE, "ld.global", "ld.global.nc", GlobalRace),
        ("no barrier before the words are overwritten", IN_PLACE, "bar.sync 0;\nst", "st", GlobalRace),
        (
            "an index beyond 31 bits",
            IN_PLACE,
            "mad.wide.u32 %x0, %r1, 4, %p",
            "shl.b32 %r1, %r1, 26;\nmad.wide.s32 %x0, %r1, 4, %p",
            OutOfBounds,
        ),
        ("all lanes write to one word", IN_PLACE, "[%q], %r2", "[%p], %r2", GlobalRace),
    ];
    let threads = 256;
    let text = |body: &str| kernel(".shared .align 16 .b8 s[1024];\n.shared .align 16 .b8 other[64];", body);
    for (what, right, part, wrong, kind) in table {
        assert!(right.contains(part), "{what}");
        passes(&text(right), threads);
        let found = finding(crate::run_on(
            &Machine::default(),
            &text(&right.replacen(part, wrong, 1)),
            threads,
            1024,
        ));
        assert_eq!(found.kind, kind, "{what}: {found}");
    }
}

/// Runs blocks of 64 threads on memory of which so many bytes are written.
fn run(text: &str, grid: u32, written: u64) -> Result<Report, LaunchError> {
    let machine = Machine::default();
    let p = machine.allocate(1024).unwrap();
    machine.fill(p, 0, written).unwrap();
    launch(&machine, &module(text), grid, 64, 0, &[p])
}

#[test]
fn a_missing_barrier_is_called_that_where_the_write_comes_late() {
    // The first warp of block 0 writes when block 1 has told it to.
    let text = |barrier: &str| {
        kernel(
            ".shared .align 4 .b8 s[4];",
            &format!(
                "mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, s;\nsetp.ne.u32 %c0, %r1, 0;\n@%c0 bra OTHER;\n\
                 setp.ge.u32 %c1, %t, 32;\n@%c1 bra LATE;\nPOLL:\nld.acquire.gpu.global.u32 %r3, [%p];\n\
                 setp.eq.u32 %c2, %r3, 0;\n@%c2 bra POLL;\nst.shared.u32 [%r2], %r3;\nLATE:\n{barrier}\n\
                 ld.shared.u32 %r4, [%r2];\nst.global.u32 [%q+128], %r4;\nret;\n\
                 OTHER:\nsetp.eq.u32 %c3, %t, 0;\n@%c3 st.release.gpu.global.u32 [%p], 1;"
            ),
        )
    };
    run(&text("bar.sync 0;"), 2, 1024).unwrap_or_else(|error| panic!("{error}"));
    let found = finding(run(&text("bar.warp.sync 0xffffffff;"), 2, 1024));
    assert_eq!(found.kind, SharedRace, "{found}");
    // Where the write never comes, the value is what is missing.
    let never = text("bar.warp.sync 0xffffffff;").replace("st.shared.u32 [%r2], %r3;", "");
    let found = finding(run(&never, 2, 1024));
    assert_eq!(found.kind, Uninitialised, "{found}");
    assert!(found.related.iter().any(|related| related.text == "ld.shared.u32 %r4, [%r2];"), "{found}");
}

#[test]
fn a_missing_order_is_called_that_however_many_warps_read_first() {
    // The last of three warps writes what all read.
    let text = |barrier: &str| {
        kernel(
            ".shared .align 4 .b8 s[4];",
            &format!(
                "mov.u32 %r2, s;\nsetp.lt.u32 %c0, %t, 64;\n@!%c0 st.shared.u32 [%r2], 7;\n{barrier}\n\
                 ld.shared.u32 %r4, [%r2];\nst.global.u32 [%q], %r4;"
            ),
        )
    };
    passes(&text("bar.sync 0;"), 96);
    fails(&text(""), 96, SharedRace);
}

#[test]
fn a_missing_order_of_blocks_is_called_that_where_the_write_comes_late() {
    let text = |write: &str| {
        kernel(
            "",
            &format!(
                "mov.u32 %r1, %ctaid.x;\nsetp.ne.u32 %c1, %t, 0;\n@%c1 ret;\nsetp.ne.u32 %c0, %r1, 0;\n@%c0 bra WRITE;\n\
                 ld.global.u32 %r2, [%p+64];\nst.global.u32 [%p+128], %r2;\nret;\n\
                 WRITE:\n{write}\natom.global.add.u32 %r3, [%p], 1;"
            ),
        )
    };
    let found = finding(run(&text("st.global.u32 [%p+64], 5;"), 2, 4));
    assert_eq!(found.kind, GlobalRace, "{found}");
    assert_eq!(finding(run(&text(""), 2, 4)).kind, Uninitialised);
}

#[test]
fn a_barrier_that_groups_use_in_turn_needs_an_order_of_the_turns() {
    // The second pair of warps comes to the barrier of the first, once it knows that this is done.
    let text = |order: &str| {
        kernel(
            "",
            &format!(
                "setp.lt.u32 %c0, %t, 64;\n@%c0 bar.sync 1, 64;\n{order}\n@!%c0 bar.sync 1, 64;\nst.global.u32 [%q], %t;"
            ),
        )
    };
    passes(&text("bar.sync 0;"), 128);
    let found = fails(&text(""), 128, BarrierMisuse);
    assert!(
        found.message.starts_with("nothing orders this arrival at barrier 1 behind its last phase"),
        "{found}"
    );
    assert_eq!((found.warp, found.related.len()), (2, 1), "{found}");
    // The same warps come again and again; those that only arrive wait elsewhere.
    passes(&kernel("", "bar.sync 1, 128;\nbar.sync 1, 128;\nbar.sync 2, 128;\nbar.sync 1, 128;"), 128);
    let ring = |wait: &str| {
        kernel(
            "",
            &format!(
                "setp.lt.u32 %c0, %t, 32;\nmov.u32 %r1, 0;\nLOOP:\n@!%c0 bar.sync 1, 64;\n@!%c0 bar.arrive 2, 64;\n\
                 @%c0 bar.arrive 1, 64;\n{wait}\nadd.u32 %r1, %r1, 1;\nsetp.lt.u32 %c1, %r1, 3;\n@%c1 bra LOOP;"
            ),
        )
    };
    passes(&ring("@%c0 bar.sync 2, 64;"), 64);
    // An order that passes on nothing of memory is one all the same.
    let relaxed = "barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;";
    let module = hopper_module(&text(relaxed));
    let machine = Machine::new(Config::hopper());
    let p = machine.allocate(4 * 128).expect("there is room");
    launch(&machine, &module, 1, 128, 0, &[p]).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_shuffle_from_lanes_that_are_gone_is_named() {
    let text = kernel("", &SUM.replace("@%c0 mov.u32", "@!%c0 ret;\nmov.u32"));
    let found = fails(&text, 64, Uninitialised);
    assert!(
        found.related[0].message.starts_with("the warp's last shuffle that gave lanes nothing"),
        "{found}"
    );
    assert!(found.related[0].text.starts_with("shfl.sync.down"), "{found}");
}

#[test]
fn a_plain_addition_is_to_be_atomic() {
    let plain = "ld.shared.u32 %r2, [%r1];\nadd.u32 %r2, %r2, 1;\nst.shared.u32 [%r1], %r2;";
    let text =
        kernel(".shared .align 4 .b8 s[4];", &COUNT.replace("atom.shared.add.u32 %r2, [%r1], 1;", plain));
    let found = fails(&text, 64, SharedRace);
    assert!(found.hint.as_ref().unwrap().contains("use atomic operations"), "{found}");
}

#[test]
fn what_an_mbarrier_has_got_too_much_is_told_and_who_polls_it() {
    let run = |expect: &str, wait: &str| {
        let text = stages::kernel(1, "", &format!("@!%first bra $W;\n{expect}\n{COPY}\n$W:\n{wait}"));
        let machine = Machine::new(Config::hopper());
        let p = machine.allocate(4096).unwrap();
        machine.fill(p, 0, 4096).unwrap();
        launch(&machine, &hopper_module(&text), 1, 32, 0, &[p])
    };
    let wait = stages::wait("$FULL", "%full", 0);
    run(EXPECT, &wait).unwrap_or_else(|error| panic!("{error}"));
    let few = EXPECT.replace("512", "496");
    let found = finding(run(&few, &wait));
    assert_eq!(found.kind, BarrierDeadlock, "{found}");
    assert!(found.message.contains("has got 16 bytes more than it was told to expect"), "{found}");
    let found = finding(run(&few, &wait.replace("try_wait", "test_wait")));
    assert_eq!(found.kind, BarrierDeadlock, "{found}");
    assert!(found.message.contains("warp 0 polls the mbarrier at byte 0 of `bars`"), "{found}");
}
