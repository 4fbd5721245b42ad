//! Accesses to the same bytes that nothing orders, in shared and global memory, and what does order them.

use warpsmith_emulator::{Checks, Config, FindingKind, Machine};

use crate::common::{finding, launch, module};
use crate::{fails, kernel, passes, run_on};

#[test]
fn warps_that_share_memory_need_a_barrier() {
    // Each thread writes its word and reads that of a thread of another warp.
    let text = |barrier: &str| {
        kernel(
            ".shared .align 4 .b8 s[256];",
            &format!(
                "mov.u32 %r0, s;\nmad.lo.u32 %r1, %t, 4, %r0;\nst.shared.u32 [%r1], 0;\nbar.sync 0;\n\
                 st.shared.u32 [%r1], %t;\n{barrier}\nxor.b32 %r2, %t, 32;\nmad.lo.u32 %r3, %r2, 4, %r0;\nld.shared.u32 %r4, [%r3];\n\
                 st.global.u32 [%q], %r4;"
            ),
        )
    };
    passes(&text("bar.sync 0;"), 64);
    passes(&text("barrier.sync.aligned 3, 64;"), 64);
    let found = fails(&text("bar.warp.sync 0xffffffff;"), 64, FindingKind::SharedRace);
    assert!(found.related[0].text.contains("st.shared") || found.text.contains("st.shared"), "{found}");
    // A write after a read is a race as well.
    let body = "ld.shared.u32 %r0, [s];\n";
    let write = "setp.eq.u32 %c0, %t, 40;\n@%c0 st.shared.u32 [s], %t;";
    let shared = ".shared .align 4 .b8 s[4];";
    fails(&kernel(shared, &format!("{body}{write}")), 64, FindingKind::SharedRace);
    passes(&kernel(shared, &format!("{body}bar.sync 0;\n{write}")), 64);
    // Atomic operations do not race with each other.
    passes(&kernel(shared, "red.shared.add.u32 [s], 1;"), 64);
}

#[test]
fn named_barriers_order_only_their_warps() {
    // Warp 0 writes, warps 0 and 1 meet at barrier 1; warp 2 does not, and must not read.
    let text = |reader: u32| {
        kernel(
            ".shared .align 4 .b8 s[4];",
            &format!(
                "shr.u32 %r0, %t, 5;\nsetp.eq.u32 %c0, %t, 0;\n@%c0 st.shared.u32 [s], %t;\n\
                 setp.lt.u32 %c1, %r0, 2;\n@%c1 bar.sync 1, 64;\nsetp.eq.u32 %c2, %r0, {reader};\n\
                 @%c2 ld.shared.u32 %r1, [s];"
            ),
        )
    };
    passes(&text(1), 96);
    fails(&text(2), 96, FindingKind::SharedRace);
}

#[test]
fn producer_and_consumer_meet_through_arrive_and_sync() {
    let text = |wait: &str| {
        kernel(
            ".shared .align 4 .b8 s[128];",
            &format!(
                "mov.u32 %r0, s;\nand.b32 %r1, %t, 31;\nmad.lo.u32 %r0, %r1, 4, %r0;\nsetp.lt.u32 %c0, %t, 32;\n\
                 @!%c0 bra $CONSUMER;\nst.shared.u32 [%r0], %t;\nbar.arrive 2, 64;\nret;\n$CONSUMER:\n{wait}\n\
                 ld.shared.u32 %r2, [%r0];\nst.global.u32 [%q], %r2;"
            ),
        )
    };
    passes(&text("bar.sync 2, 64;"), 64);
    fails(&text(""), 64, FindingKind::SharedRace);
}

/// A warp that tells others that it is there, and then waits, counts for both.
#[test]
fn a_warp_that_arrives_and_waits_counts_twice() {
    let text = |threads: u32| {
        kernel(
            ".shared .align 4 .b8 s[128];",
            &format!(
                "mov.u32 %r0, s;\nand.b32 %r1, %t, 31;\nmad.lo.u32 %r0, %r1, 4, %r0;\nsetp.lt.u32 %c0, %t, 32;\n\
                 @%c0 st.shared.u32 [%r0], %t;\n@%c0 bar.arrive 2, {threads};\nsetp.lt.u32 %c1, %t, 64;\n\
                 @!%c1 ret;\nbar.sync 2, {threads};\nld.shared.u32 %r2, [%r0];\nst.global.u32 [%q], %r2;"
            ),
        )
    };
    // Of two warps, one counts for two.
    passes(&text(96), 128);
    fails(&text(128), 128, FindingKind::BarrierDeadlock);
}

#[test]
fn a_read_knows_all_atomic_writers() {
    let text = |thread: u32, barrier: &str| {
        kernel(
            ".shared .align 4 .b8 s[8];",
            &format!(
                "setp.eq.u32 %c0, %t, {thread};\n@%c0 st.shared.u32 [s], 0;\nbar.sync 0;\n\
                 red.shared.add.u32 [s], 1;\n{barrier}\n@%c0 ld.shared.u32 %r0, [s];\n\
                 @%c0 st.global.u32 [%q], %r0;"
            ),
        )
    };
    for thread in [0, 32, 64] {
        passes(&text(thread, "bar.sync 0;"), 96);
        fails(&text(thread, ""), 96, FindingKind::SharedRace);
        // A barrier that only some of the writers take part in.
        let some = "setp.lt.u32 %c1, %t, 32;\n@%c1 bra $L;\nbar.sync 1, 64;\n$L:";
        fails(&text(thread, some), 96, FindingKind::SharedRace);
    }
}

#[test]
fn warps_and_blocks_that_share_bytes_of_global_memory_race() {
    // Each thread writes its word, then reads one of another warp.
    let exchange = |between: &str| {
        kernel(
            "",
            &format!(
                "st.global.u32 [%q], %t;\n{between}xor.b32 %r1, %t, 32;\nmad.wide.u32 %x1, %r1, 4, %p;\n\
                 ld.global.u32 %r2, [%x1];"
            ),
        )
    };
    passes(&exchange("bar.sync 0;\n"), 64);
    let found = fails(&exchange(""), 64, FindingKind::GlobalRace);
    assert!(found.message.contains("argument 1, `p`") && found.related.len() == 1, "{found}");
    // Bytes that share a word, and atomic operations, do not race.
    passes(&kernel("", "cvt.u64.u32 %x1, %t;\nadd.s64 %q, %p, %x1;\nst.global.u8 [%q], %t;"), 64);
    passes(&kernel("", "red.global.add.u32 [%p], %t;"), 64);
    fails(&kernel("", "red.global.add.u32 [%p], %t;\nld.global.u32 %r0, [%p];"), 64, FindingKind::GlobalRace);
}

#[test]
fn races_between_blocks_are_the_same_whatever_the_number_of_threads() {
    let text = kernel(
        "",
        "mov.u32 %r0, %ctaid.x;\nadd.u32 %r1, %t, %r0;\nmad.wide.u32 %x1, %r1, 4, %p;\nst.global.u32 [%x1], %r0;",
    );
    let run = |threads, grid| {
        let machine = Machine::new(Config { threads: Some(threads), ..Config::default() });
        let p = machine.allocate(4096).unwrap();
        launch(&machine, &module(&text), grid, 32, 0, &[p])
    };
    assert!(run(1, 1).is_ok());
    let all: Vec<_> = [1, 2, 4].map(|threads| finding(run(threads, 64))).into();
    assert_eq!(all[0].kind, FindingKind::GlobalRace);
    assert!(all.iter().all(|found| found == &all[0]), "{}", all[1]);
    assert_eq!((all[0].block, all[0].message.contains("block (0, 0, 0)")), ([1, 0, 0], true), "{}", all[0]);
    // Each block its own bytes.
    let apart = text.replace("add.u32 %r1, %t, %r0", "mad.lo.u32 %r1, %r0, 32, %t");
    let machine = Machine::default();
    let p = machine.allocate(4096).unwrap();
    launch(&machine, &module(&apart), 32, 32, 0, &[p]).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn release_and_acquire_order_what_is_around_them() {
    // Thread 0 writes data, then a flag; the second warp polls the flag, then reads the data.
    let text = |space: &str, write: &str, read: &str| {
        let (data, flag) = if space == "shared" { ("sh", "sh+256") } else { ("%p", "%p+128") };
        kernel(
            ".shared .align 16 .b8 sh[512];",
            &format!(
                "setp.eq.u32 %c1, %t, 0;\n@%c1 st.shared.u32 [sh+256], 0;\nbar.sync 0;\nshr.u32 %r1, %t, 5;\n\
                 setp.ne.u32 %c0, %r1, 0;\n@%c0 bra READ;\n@!%c1 bra END;\nst.{space}.u32 [{data}], 5;\n\
                 {}\nbra END;\nREAD:\n{}\nsetp.eq.u32 %c2, %r2, 0;\n@%c2 bra READ;\nld.{space}.u32 %r3, [{data}];\nEND:",
                write.replace("FLAG", &format!("{space}.u32 [{flag}], 1;")),
                read.replace("FLAG", &format!("{space}.u32 %r2, [{flag}];"))
            ),
        )
    };
    for (space, race) in [("shared", FindingKind::SharedRace), ("global", FindingKind::GlobalRace)] {
        let (release, acquire) = ("st.release.cta.FLAG", "ld.acquire.cta.FLAG");
        let (write, read) = ("st.relaxed.cta.FLAG", "ld.relaxed.cta.FLAG");
        let fence = "fence.acq_rel.cta;\n";
        passes(&text(space, release, acquire), 64);
        passes(&text(space, &format!("{fence}{write}"), &format!("{read}\n{fence}")), 64);
        passes(&text(space, &format!("{fence}{write}"), acquire), 64);
        fails(&text(space, write, acquire), 64, race);
        fails(&text(space, release, read), 64, race);
        fails(&text(space, &format!("{fence}{write}"), read), 64, race);
        fails(&text(space, "st.FLAG", "ld.FLAG"), 64, race);
    }
}

#[test]
fn lanes_of_a_warp_that_share_bytes_need_an_order() {
    let exchange = |between: &str, read: &str| {
        kernel(
            ".shared .align 16 .b8 sh[256];",
            &format!(
                "mov.u32 %r0, sh;\nmad.lo.u32 %r1, %t, 4, %r0;\nxor.b32 %r2, %t, 1;\nmad.lo.u32 %r2, %r2, 4, %r0;\n\
                 st.shared.u32 [%r1], %t;\n{between}{read}"
            ),
        )
    };
    let other = "ld.shared.u32 %r3, [%r2];";
    passes(&exchange("bar.warp.sync 0xffffffff;\n", other), 32);
    passes(&exchange("bar.sync 0;\n", other), 32);
    passes(&exchange("", "ld.shared.u32 %r3, [%r1];"), 32);
    let found = fails(&exchange("", other), 32, FindingKind::SharedRace);
    assert!(found.message.contains("by lane 0 races with the write by lane 1 of the same warp"), "{found}");
    // A shuffle orders no memory; a matrix is read by all lanes.
    fails(&exchange("shfl.sync.idx.b32 %r5, %t, 0, 31, 0xffffffff;\n", other), 32, FindingKind::SharedRace);
    let matrix = "and.b32 %r6, %t, 7;\nmad.lo.u32 %r6, %r6, 16, %r0;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r7}, [%r6];";
    passes(&exchange("bar.warp.sync 0xffffffff;\n", matrix), 32);
    fails(&exchange("", matrix), 32, FindingKind::SharedRace);
    // Nor may a lane write what another one reads before.
    let overwrite = format!("{other}\nst.shared.u32 [%r1], %t;");
    fails(&exchange("bar.warp.sync 0xffffffff;\n", &overwrite), 32, FindingKind::SharedRace);
}

#[test]
fn a_lane_that_waits_for_its_copies_tells_the_others_nothing() {
    let copied = |between: &str, read: &str| {
        kernel(
            ".shared .align 16 .b8 sh[256];",
            &format!(
                "st.global.u32 [%q], %t;\nmov.u32 %r0, sh;\nmad.lo.u32 %r1, %t, 4, %r0;\nxor.b32 %r2, %t, 1;\n\
                 mad.lo.u32 %r2, %r2, 4, %r0;\ncp.async.ca.shared.global [%r1], [%q], 4;\ncp.async.wait_all;\n\
                 {between}{read}"
            ),
        )
    };
    let other = "ld.shared.u32 %r3, [%r2];";
    let matrix = "and.b32 %r6, %t, 7;\nmad.lo.u32 %r6, %r6, 16, %r0;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r7}, [%r6];";
    for read in [other, matrix] {
        passes(&copied("bar.warp.sync 0xffffffff;\n", read), 32);
        passes(&copied("bar.sync 0;\n", read), 32);
        let found = fails(&copied("", read), 32, FindingKind::SharedRace);
        assert!(found.message.contains("of the same warp"), "{found}");
    }
    passes(&copied("", "ld.shared.u32 %r3, [%r1];"), 32);
}

#[test]
fn a_copy_does_not_begin_to_overwrite_what_other_lanes_may_still_read() {
    let text = |between: &str, read: &str| {
        kernel(
            ".shared .align 16 .b8 sh[128];",
            &format!(
                "st.global.u32 [%q], %t;\nmov.u32 %r0, sh;\nmad.lo.u32 %r1, %t, 4, %r0;\nxor.b32 %r2, %t, 1;\n\
                 mad.lo.u32 %r2, %r2, 4, %r0;\nst.shared.u32 [%r1], 7;\nbar.sync 0;\n{read}\n{between}\
                 cp.async.ca.shared.global [%r1], [%q], 4;\nbar.warp.sync 0xffffffff;\ncp.async.wait_all;\n\
                 bar.sync 0;"
            ),
        )
    };
    let (own, other) = ("ld.shared.u32 %r3, [%r1];", "ld.shared.u32 %r3, [%r2];");
    passes(&text("", own), 32);
    passes(&text("bar.warp.sync 0xffffffff;\n", other), 32);
    let found = fails(&text("", other), 32, FindingKind::SharedRace);
    assert!(found.message.contains("races with the read by lane"), "{found}");
}

#[test]
fn a_lane_that_arrives_passes_on_what_it_has_done_itself() {
    // Warp 0 touches words of shared memory, and tells warp 1 that it may overwrite them.
    let text = |count: u32, touch: &str, arrive: &str| {
        kernel(
            ".shared .align 16 .b8 sh[128];\n.shared .align 8 .b64 b;",
            &format!(
                "mov.u32 %r0, sh;\nmov.u32 %r5, b;\nsetp.eq.u32 %c0, %t, 0;\n\
                 @%c0 mbarrier.init.shared.b64 [%r5], {count};\nand.b32 %r6, %t, 31;\n\
                 mad.lo.u32 %r1, %r6, 4, %r0;\nsetp.ge.u32 %c1, %t, 32;\n@!%c1 st.shared.u32 [%r1], 1;\n\
                 bar.sync 0;\n@%c1 bra $B;\n{touch}\n{arrive}\nret;\n$B:\n\
                 mbarrier.test_wait.parity.shared.b64 %c2, [%r5], 0;\n@!%c2 bra $B;\nst.shared.u32 [%r1], 2;"
            ),
        )
    };
    let one = "@%c0 mbarrier.arrive.shared.b64 %x0, [%r5];";
    let all = "mbarrier.arrive.shared.b64 %x0, [%r5];";
    let meet = "bar.warp.sync 0xffffffff;\n";
    for touch in ["ld.shared.u32 %r2, [%r1];", "st.shared.u32 [%r1], 3;"] {
        passes(&text(1, touch, &format!("{meet}{one}")), 64);
        passes(&text(32, touch, all), 64);
        // Each for itself, one after the other, is enough.
        passes(&text(32, touch, &format!("{one}\n@!%c0 mbarrier.arrive.shared.b64 %x0, [%r5];")), 64);
        fails(&text(1, touch, one), 64, FindingKind::SharedRace);
        // What it does behind the point that orders the lanes is not passed on by another lane, either.
        fails(&text(1, "", &format!("{meet}{touch}\n{one}")), 64, FindingKind::SharedRace);
        passes(&text(1, "", &format!("@%c0 {touch}\n{one}")), 64);
    }
}

/// Blocks that publish what they wrote through a word: `release` before the flag, `acquire` behind it.
fn published(write: &str, store: &str, load: &str, release: &str, acquire: &str) -> String {
    kernel(
        "",
        &format!(
            "mov.u32 %r1, %ctaid.x;\nsetp.ne.u32 %c0, %r1, 0;\n@%c0 bra READ;\n\
             {write} [%p], 7;\n{release}\n{store} [%p+64], 1;\nret;\n\
             READ:\n{load} %r2, [%p+64];\nsetp.eq.u32 %c1, %r2, 0;\n@%c1 bra READ;\n{acquire}\nld.global.u32 %r3, [%p];\n\
             st.global.u32 [%p+128], %r3;"
        ),
    )
}

#[test]
fn blocks_that_communicate_are_ordered_by_what_they_release_and_acquire() {
    let run = |text: &str| {
        let machine = Machine::default();
        let p = machine.allocate(256).unwrap();
        machine.fill(p, 0, 256).unwrap();
        launch(&machine, &module(text), 2, 1, 0, &[p])
    };
    let (write, fence) = ("st.global.u32", "fence.acq_rel.gpu;");
    let (relaxed, release) = ("st.relaxed.gpu.global.u32", "st.release.gpu.global.u32");
    let (poll, acquire) = ("ld.relaxed.gpu.global.u32", "ld.acquire.gpu.global.u32");
    for (store, load, before, behind, ordered) in [
        (release, acquire, "", "", true),
        (relaxed, poll, fence, fence, true),
        ("st.volatile.global.u32", "ld.volatile.global.u32", "membar.gl;", "membar.gl;", true),
        (release, poll, "", fence, true),
        (relaxed, acquire, fence, "", true),
        (relaxed, poll, "", "", false),
        (relaxed, poll, fence, "", false),
        (relaxed, poll, "", fence, false),
        (relaxed, poll, "membar.cta;", "membar.cta;", false),
        ("st.volatile.global.u32", "ld.volatile.global.u32", "", "", false),
        (write, poll, fence, fence, false),
        // Another block is not in the scope.
        ("st.release.cta.global.u32", acquire, "", "", false),
        (release, "ld.acquire.cta.global.u32", "", "", false),
        ("st.relaxed.cta.global.u32", poll, fence, fence, false),
        ("st.volatile.global.u32", poll, fence, fence, true),
    ] {
        let text = published(write, store, load, before, behind);
        match run(&text) {
            Ok(_) => assert!(ordered, "{text}"),
            result => {
                let found = finding(result);
                assert!(!ordered && found.kind == FindingKind::GlobalRace, "{found}");
            }
        }
    }
}

#[test]
fn the_last_block_of_a_reduction_reads_what_the_others_wrote() {
    let last = |fence: &str, behind: &str| {
        kernel(
            "",
            &format!(
                "mov.u32 %r1, %ctaid.x;\nmad.wide.u32 %x0, %r1, 4, %p;\nst.global.u32 [%x0+64], %r1;\n{fence}\n\
                 atom.global.add.u32 %r2, [%p], 1;\nsetp.ne.u32 %c0, %r2, 9;\n@%c0 bra END;\n{behind}\nmov.u32 %r3, 0;\n\
                 LOOP: mad.wide.u32 %x1, %r3, 4, %p;\nld.global.u32 %r4, [%x1+64];\nadd.u32 %r5, %r5, %r4;\nadd.u32 %r3, %r3, 1;\n\
                 setp.lt.u32 %c1, %r3, 10;\n@%c1 bra LOOP;\nst.global.u32 [%p+4], %r5;\nEND:"
            ),
        )
        .replace("mov.u32 %t, %tid.x;", "mov.u32 %t, %tid.x;\nmov.u32 %r5, 0;")
    };
    let run = |text: &str| {
        let machine = Machine::default();
        let p = machine.allocate(256).unwrap();
        machine.fill(p, 0, 256).unwrap();
        let report = launch(&machine, &module(text), 10, 1, 0, &[p]);
        let mut sum = [0; 4];
        machine.read(p + 4, &mut sum).unwrap();
        (report, u32::from_le_bytes(sum))
    };
    let fence = "fence.acq_rel.gpu;";
    let (report, sum) = run(&last(fence, fence));
    assert!(report.is_ok() && sum == 45, "{report:?}");
    for (before, behind) in [("", fence), (fence, ""), ("", "")] {
        assert_eq!(finding(run(&last(before, behind)).0).kind, FindingKind::GlobalRace);
    }
    // The last block may reset the counter by a plain write, behind its own atomic operation.
    let resets = last(fence, fence)
        .replace("st.global.u32 [%p+4], %r5;", "st.global.u32 [%p+4], %r5;\nst.global.u32 [%p], 0;");
    let (report, sum) = run(&resets);
    assert!(report.is_ok() && sum == 45, "{report:?}");
    // Who has not counted may not.
    let stray = resets.replace(
        "atom.global.add.u32 %r2, [%p], 1;",
        "mov.u32 %r2, %r1;\n@%c3 bra END;\nred.global.add.u32 [%p+8], 1;",
    );
    let stray = stray
        .replace("mov.u32 %t, %tid.x;", "mov.u32 %t, %tid.x;\nsetp.eq.u32 %c3, 0, 1;")
        .replace("setp.ne.u32 %c0, %r2, 9;", "setp.ge.u32 %c0, %r2, 10;");
    assert_eq!(finding(run(&stray).0).kind, FindingKind::GlobalRace);
}

#[test]
fn a_plain_write_beside_atomic_operations_of_other_words_races() {
    let text = kernel("", "mov.u32 %r1, %ctaid.x;\nred.global.add.u32 [%p+4], 1;\nst.global.u32 [%p], %r1;");
    let machine = Machine::default();
    let p = machine.allocate(8).unwrap();
    machine.fill(p, 0, 8).unwrap();
    let found = finding(launch(&machine, &module(&text), 4, 1, 0, &[p]));
    assert_eq!(found.kind, FindingKind::GlobalRace, "{found}");
    assert!(found.message.starts_with("write of byte 0 of argument 1"), "{found}");
}

#[test]
fn what_ld_global_nc_reads_nobody_may_write() {
    let read = |load: &str, shift: u32| {
        kernel(
            "",
            &format!(
                "st.global.u32 [%q], %t;\nbar.sync 0;\n{load} %r1, [%p+{shift}];\nst.global.u32 [%q+512], %r1;"
            ),
        )
    };
    let run = |text: &str| {
        let machine = Machine::default();
        let p = machine.allocate(1024).unwrap();
        machine.fill(p, 0, 1024).unwrap();
        launch(&machine, &module(text), 1, 64, 0, &[p])
    };
    run(&read("ld.global.u32", 4)).unwrap();
    run(&read("ld.global.nc.u32", 256)).unwrap();
    let found = finding(run(&read("ld.global.nc.u32", 4)));
    assert_eq!(found.kind, FindingKind::GlobalRace, "{found}");
    assert!(found.hint.as_ref().unwrap().contains("nobody writes"), "{found}");
    // The other way round, and of 16 bytes.
    let text =
        kernel("", "ld.global.nc.v4.u32 {%r1, %r2, %r3, %r4}, [%p];\nbar.sync 0;\nst.global.u32 [%q], %r1;");
    assert_eq!(finding(run(&text)).kind, FindingKind::GlobalRace);
}

#[test]
fn atomic_operations_of_a_warp_do_not_hide_its_plain_write_before() {
    let text = |barrier: &str, other: &str| {
        kernel(
            ".shared .align 4 .b8 s[4];",
            &format!(
                "setp.ne.u32 %c0, %t, 0;\n@%c0 bra ADD;\nst.shared.u32 [s], 0;\n\
                 ADD:\n{barrier}\nbar.warp.sync 0xffffffff;\n{other}\nbar.sync 0;\nld.shared.u32 %r2, [s];\nst.global.u32 [%q], %r2;"
            ),
        )
    };
    for access in [
        "atom.shared.add.u32 %r1, [s], 1;",
        "atom.shared.add.u32 %r1, [s], 1;\natom.shared.add.u32 %r1, [s], 1;",
    ] {
        passes(&text("bar.sync 0;", access), 64);
        let found = fails(&text("", access), 64, FindingKind::SharedRace);
        assert!(found.message.contains("the write by warp 0"), "{found}");
    }
}

#[test]
fn lanes_that_write_one_word_write_the_same() {
    for space in ["shared", "global"] {
        let target = if space == "shared" { "s" } else { "%p" };
        let text = |value: &str, store: &str| {
            kernel(
                ".shared .align 4 .b8 s[4];",
                &format!(
                    "shr.u32 %r1, %t, 5;\n{store}.{space}.u32 [{target}], {value};\nbar.sync 0;\nst.global.u32 [%q], %t;"
                ),
            )
        };
        passes(&text("%r1", "st"), 32);
        passes(&text("%t", "st.volatile"), 32);
        let kind = if space == "shared" { FindingKind::SharedRace } else { FindingKind::GlobalRace };
        let found = fails(&text("%t", "st"), 32, kind);
        assert!(found.message.contains("lanes 0 and 1 write different values"), "{found}");
        assert_eq!(found.lanes, 3);
        // Between warps it is a race in any case; whether the value is the same is told.
        for (value, same) in [("7", true), ("%r1", false)] {
            let found = fails(&text(value, "st"), 64, kind);
            assert_eq!(found.hint.as_ref().unwrap().contains("stands there already"), same, "{found}");
        }
    }
}

#[test]
fn warps_may_write_what_is_there_if_that_is_no_race() {
    let checks = Checks { equal_writes: false, ..Checks::default() };
    let machine = Machine::new(Config { checks, ..Config::default() });
    // Lanes of both warps write the same words, of which `value` is the content.
    let text = |space: &str, value: &str, more: &str| {
        let (around, start) = match space {
            "shared" => (".shared .align 16 .b8 s[512];", "mov.u32 %r0, s;\ncvt.u64.u32 %x0, %r0;"),
            _ => ("", "mov.b64 %x0, %p;"),
        };
        let body = format!(
            "{start}\nand.b32 %r1, %t, 31;\nmad.wide.u32 %x0, %r1, 16, %x0;\nshr.u32 %r2, %t, 5;\n\
             st.{space}.v4.u32 [%x0], {{%r1, {value}, %r1, 7}};\n{more}"
        );
        kernel(around, &body)
    };
    for space in ["shared", "global"] {
        let run = |value: &str, more: &str| run_on(&machine, &text(space, value, more), 64, 512);
        run("%r1", "").unwrap_or_else(|error| panic!("{error}"));
        // One lane of the warp that writes something else makes a race, and so does a reader.
        finding(run("%r2", ""));
        finding(run(
            "%r1",
            &format!("xor.b32 %r3, %r1, 1;\nsetp.eq.u32 %c0, %r2, 0;\n@%c0 st.{space}.u32 [%x0], %r3;"),
        ));
        finding(run("%r1", &format!("ld.{space}.u32 %r3, [%x0+4];\nst.{space}.u32 [%x0], %r3;")));
    }
}

#[test]
fn a_missing_barrier_is_called_that_and_not_a_value_that_nothing_wrote() {
    let text = |barrier: &str| {
        kernel(
            ".shared .align 4 .b8 s[256];",
            &format!(
                "mov.u32 %r1, s;\nmad.lo.u32 %r2, %t, 4, %r1;\nst.shared.u32 [%r2], %t;\n{barrier}\nxor.b32 %r3, %t, 63;\n\
                 mad.lo.u32 %r2, %r3, 4, %r1;\nld.shared.u32 %r4, [%r2];\nst.global.u32 [%q], %r4;"
            ),
        )
    };
    passes(&text("bar.sync 0;"), 64);
    let found = fails(&text(""), 64, FindingKind::SharedRace);
    assert!(
        found.message.starts_with("write of shared memory") && found.message.contains("the read by warp 0"),
        "{found}"
    );
    // What no warp writes stays what it is.
    fails(&text("").replace("st.shared.u32 [%r2], %t;", ""), 64, FindingKind::Uninitialised);
}

#[test]
fn lanes_of_a_warp_that_share_global_memory_need_an_order() {
    let text = |first: &str, order: &str, second: &str| {
        kernel("", &format!("xor.b32 %r1, %t, 1;\nmad.wide.u32 %x1, %r1, 4, %p;\n{first}\n{order}\n{second}"))
    };
    let (own, read, write) =
        ("st.global.u32 [%q], %t;", "ld.global.u32 %r2, [%x1];", "st.global.u32 [%x1], %t;");
    for (first, second) in [(own, read), (read, own), (own, write)] {
        passes(&text(first, "bar.warp.sync 0xffffffff;", second), 32);
        passes(&text(first, "bar.sync 0;", second), 32);
        let found = fails(&text(first, "", second), 32, FindingKind::GlobalRace);
        assert!(found.message.contains("by lane 1 of the same warp"), "{found}");
    }
    // What a lane has written itself it may read.
    passes(&text(own, "", "ld.global.u32 %r2, [%q];\nst.global.u32 [%q], %r2;"), 32);
}

#[test]
fn warps_that_have_counted_may_reset_the_counter() {
    let text = |count: &str| {
        kernel(
            ".shared .align 4 .b8 s[4];",
            &format!(
                "setp.eq.u32 %c0, %t, 0;\n@%c0 st.shared.u32 [s], 0;\nbar.sync 0;\nand.b32 %r1, %t, 31;\nsetp.ne.u32 %c1, %r1, 0;\n\
                 @%c1 bra END;\n{count}\nsetp.ne.u32 %c2, %r2, 3;\n@%c2 bra END;\nst.shared.u32 [s], 0;\nEND:\nst.global.u32 [%q], %t;"
            ),
        )
    };
    passes(&text("atom.shared.add.u32 %r2, [s], 1;"), 128);
    let found = fails(
        &text(
            "setp.eq.u32 %c3, %t, 96;\nmov.u32 %r2, 3;\n@%c3 bra ON;\natom.shared.add.u32 %r2, [s], 1;\nmov.u32 %r2, 0;\nON:",
        ),
        128,
        FindingKind::SharedRace,
    );
    assert!(found.message.contains("atomic operation"), "{found}");
}

#[test]
fn lanes_that_take_a_lock_after_each_other_are_ordered() {
    let text = |take: &str, give: &str| {
        kernel(
            "",
            &format!(
                "mov.u32 %r4, 0;\nTRY:\n{take}.cas.b32 %r1, [%p], 0, 1;\nsetp.ne.u32 %c0, %r1, 0;\n@%c0 bra NEXT;\n\
                 ld.global.u32 %r2, [%p+64];\nadd.u32 %r2, %r2, 1;\nst.global.u32 [%p+64], %r2;\n{give}.u32 [%p], 0;\nmov.u32 %r4, 1;\n\
                 NEXT:\nsetp.eq.u32 %c1, %r4, 0;\n@%c1 bra TRY;"
            ),
        )
    };
    passes(&text("atom.acquire.gpu.global", "st.release.gpu.global"), 32);
    fails(&text("atom.relaxed.gpu.global", "st.relaxed.gpu.global"), 32, FindingKind::GlobalRace);
}
