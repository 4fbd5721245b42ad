//! Every check has a kernel that it must flag, and a correct twin that it must not.

#[path = "../common/mod.rs"]
mod common;
mod late;
mod planted;
mod races;
mod stages;
mod threads;

use common::{finding, launch, module};
use warpsmith_emulator::{Checks, Completion, Config, Finding, FindingKind, Limits, Machine, Module, Report};

/// A kernel of one pointer parameter, `%p`, and thread index `%t`.
fn kernel(declarations: &str, body: &str) -> String {
    format!(
        ".visible .entry test(.param .u64 p)\n{{\n.reg .b64 %p, %q, %x<8>;\n.reg .b32 %t, %r<16>;\n\
         .reg .pred %c<4>;\n{declarations}\nld.param.u64 %p, [p];\nmov.u32 %t, %tid.x;\n\
         mad.wide.u32 %q, %t, 4, %p;\n{body}\nret;\n}}\n"
    )
}

/// Runs a kernel on `bytes` bytes of zeros.
fn run_on(
    machine: &Machine,
    text: &str,
    threads: u32,
    bytes: u64,
) -> Result<Report, warpsmith_emulator::LaunchError> {
    let p = machine.allocate(bytes).unwrap();
    machine.fill(p, 0, bytes).unwrap();
    launch(machine, &module(text), 1, threads, 0, &[p])
}

fn passes(text: &str, threads: u32) {
    run_on(&Machine::default(), text, threads, 4 * u64::from(threads))
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
}

fn fails(text: &str, threads: u32, kind: FindingKind) -> Finding {
    let found = finding(run_on(&Machine::default(), text, threads, 4 * u64::from(threads)));
    assert_eq!(found.kind, kind, "{found}");
    found
}

#[test]
fn an_access_past_the_end_names_allocation_and_lanes() {
    passes(&kernel("", "st.global.u32 [%q], %t;"), 40);
    let found = fails(&kernel("", "st.global.u32 [%q+8], %t;"), 40, FindingKind::OutOfBounds);
    assert_eq!((found.warp, found.lanes), (1, 0xc0), "{found}");
    assert!(found.message.contains("0 bytes past the end of argument 1, `p` (160 bytes"), "{found}");
    assert_eq!(found.text, "st.global.u32 [%q+8], %t;");
    fails(&kernel("", "ld.global.u32 %r0, [%q+-4];"), 32, FindingKind::OutOfBounds);
    fails(&kernel("", "mov.b64 %q, 0;\nld.global.u32 %r0, [%q];"), 32, FindingKind::OutOfBounds);
    fails(&kernel("", "ld.u32 %r0, [%q+1000000];"), 32, FindingKind::OutOfBounds);
    fails(&kernel("", "red.global.add.u32 [%q+128], %t;"), 32, FindingKind::OutOfBounds);
}

#[test]
fn an_access_past_the_end_of_a_view_names_its_argument() {
    let machine = Machine::default();
    let p = machine.allocate(160).unwrap();
    machine.fill(p, 0, 160).unwrap();
    let text = module(&kernel("", "st.global.u32 [%q], %t;"));
    let found = finding(launch(&machine, &text, 1, 40, 0, &[p + 4]));
    let expected = "0 bytes past the end of the allocation of argument 1, `p` (160 bytes";
    assert!(found.message.contains(expected), "{found}");
}

#[test]
fn an_access_through_a_stale_pointer_is_a_use_after_free() {
    let machine = Machine::default();
    let text = kernel("", "ld.global.u32 %r0, [%q];");
    let p = machine.allocate(128).unwrap();
    machine.fill(p, 0, 128).unwrap();
    launch(&machine, &module(&text), 1, 32, 0, &[p]).unwrap();
    machine.free(p).unwrap();
    let found = finding(launch(&machine, &module(&text), 1, 32, 0, &[p]));
    assert_eq!(found.kind, FindingKind::UseAfterFree, "{found}");
}

#[test]
fn a_crooked_address_is_misaligned() {
    passes(&kernel("", "ld.global.u16 %r0, [%p+2];"), 32);
    fails(&kernel("", "ld.global.u32 %r0, [%p+2];"), 32, FindingKind::Misaligned);
    fails(&kernel("", "ld.global.v2.u32 {%r0, %r1}, [%p+4];"), 32, FindingKind::Misaligned);
    fails(&kernel(".shared .align 16 .b8 s[64];", "st.shared.u32 [s+1], %t;"), 32, FindingKind::Misaligned);
}

#[test]
fn shared_memory_has_an_end() {
    let text = |offset: u32| {
        kernel(".shared .align 4 .b8 s[128];", &format!("mov.u32 %r0, s;\nst.shared.u32 [%r0+{offset}], 1;"))
    };
    passes(&text(124), 32);
    fails(&text(128), 32, FindingKind::OutOfBounds);
    let local =
        |offset: u32| kernel(".local .align 4 .b8 l[16];", &format!("st.local.u32 [l+{offset}], %t;"));
    passes(&local(12), 32);
    fails(&local(16), 32, FindingKind::OutOfBounds);
}

#[test]
fn a_register_that_nothing_wrote_matters_only_where_it_decides() {
    // Arithmetic on it, or a store to shared memory, does no harm by itself.
    passes(&kernel(".shared .align 4 .b8 s[4];", "add.u32 %r1, %r0, 1;\nst.shared.u32 [s], %r1;"), 32);
    fails(&kernel("", "add.u32 %r1, %r0, 1;\nst.global.u32 [%q], %r1;"), 32, FindingKind::Uninitialised);
    fails(&kernel("", "setp.eq.u32 %c0, %r0, 1;\n@%c0 bra $L;\n$L:"), 32, FindingKind::Uninitialised);
    fails(&kernel("", "ld.global.u32 %r1, [%x0];"), 32, FindingKind::Uninitialised);
    // Written in some lanes only.
    let half = "setp.lt.u32 %c0, %t, 16;\n@%c0 mov.u32 %r0, 1;\n";
    let found =
        fails(&kernel("", &format!("{half}st.global.u32 [%q], %r0;")), 32, FindingKind::Uninitialised);
    assert_eq!(found.lanes, 0xffff_0000, "{found}");
    passes(&kernel("", &format!("{half}@!%c0 mov.u32 %r0, 2;\nst.global.u32 [%q], %r0;")), 32);
}

#[test]
fn memory_that_nothing_wrote_is_followed_through_loads_and_copies() {
    let copy = kernel("", "ld.global.u32 %r0, [%q];\nst.global.u32 [%q], %r0;");
    let machine = Machine::default();
    let p = machine.allocate(128).unwrap();
    let found = finding(launch(&machine, &module(&copy), 1, 32, 0, &[p]));
    assert_eq!(found.kind, FindingKind::Uninitialised, "{found}");
    machine.fill(p, 0, 64).unwrap();
    let found = finding(launch(&machine, &module(&copy), 1, 32, 0, &[p]));
    assert_eq!(found.lanes, 0xffff_0000, "{found}");
    // Through shared memory, and for single bytes.
    let shared = ".shared .align 4 .b8 s[8];";
    let body =
        "st.shared.u8 [s], 1;\nst.shared.u8 [s+1], 1;\nld.shared.u16 %r0, [s];\nst.global.u16 [%q], %r0;";
    passes(&kernel(shared, body), 32);
    let body = body.replace("ld.shared.u16 %r0, [s]", "ld.shared.u16 %r0, [s+2]");
    fails(&kernel(shared, &body), 32, FindingKind::Uninitialised);
}

#[test]
fn a_barrier_that_some_warps_miss_is_a_deadlock() {
    let text = |condition: &str| {
        kernel(
            "",
            &format!("shr.u32 %r0, %t, 5;\nsetp.{condition} %c0, %r0, 1;\n@%c0 bar.sync 0, 96;\nbar.sync 1;"),
        )
    };
    passes(&text("le.u32").replace("0, 96", "0, 64"), 96);
    let found = fails(&text("le.u32"), 96, FindingKind::BarrierDeadlock);
    assert_eq!(found.related.len(), 2, "each warp's place is told: {found}");
    // A warp that has exited is not waited for.
    passes(&kernel("", "setp.ge.u32 %c0, %t, 32;\n@%c0 exit;\nbar.sync 0;"), 64);
}

#[test]
fn a_barrier_with_a_bad_number_or_count_is_misuse() {
    fails(&kernel("", "bar.sync 16;"), 32, FindingKind::BarrierMisuse);
    fails(&kernel("", "bar.sync 1, 48;"), 64, FindingKind::BarrierMisuse);
    fails(&kernel("", "bar.sync 1, 128;"), 64, FindingKind::BarrierMisuse);
    let different = "shr.u32 %r0, %t, 5;\nadd.u32 %r0, %r0, 1;\nshl.b32 %r0, %r0, 5;\nbar.sync 1, %r0;";
    fails(
        &kernel("", &different.replace("add.u32 %r0, %r0, 1", "add.u32 %r0, %r0, 2")),
        96,
        FindingKind::BarrierMisuse,
    );
}

#[test]
fn lanes_that_a_mask_names_must_come() {
    let text = |mask: &str, rest: &str| {
        kernel(
            "",
            &format!(
                "setp.lt.u32 %c0, %t, 16;\n@!%c0 bra $END;\nshfl.sync.idx.b32 %r0, %t, 0, 31, {mask};\n$END:\n{rest}"
            ),
        )
    };
    let meet = "bar.warp.sync 0xffffffff;";
    passes(&text("0xffff", meet), 32);
    fails(&text("0xffffffff", meet), 32, FindingKind::Divergence);
    fails(&text("0xff", meet), 32, FindingKind::Divergence);
    // Lanes that have exited are not waited for.
    passes(&text("0xffffffff", ""), 32);
    // Aligned instructions need the whole warp at once.
    let aligned = "setp.lt.u32 %c0, %t, 16;\n@%c0 bra $END;\nbar.sync 0;\n$END:\nret;";
    passes(
        &kernel(
            "",
            &aligned.replace("$END:\nret", "$END:\nbar.sync 0;\nret").replacen(
                "bar.sync 0;\n$END",
                "$END",
                1,
            ),
        ),
        32,
    );
    let both = "setp.lt.u32 %c0, %t, 16;\n@%c0 bra $A;\nbar.sync 0;\nbra $B;\n$A:\nbar.sync 0;\n$B:";
    fails(&kernel("", both), 32, FindingKind::Divergence);
}

#[test]
fn warp_barriers_at_different_places_meet() {
    let text = "setp.lt.u32 %c0, %t, 16;\n@%c0 bra $A;\nbar.warp.sync 0xffffffff;\nbra $B;\n$A:\n\
                bar.warp.sync 0xffffffff;\n$B:";
    passes(&kernel("", text), 32);
}

#[test]
fn a_lane_that_polls_its_neighbour_lets_it_run() {
    // Lane 0 waits for what lane 1 writes; its loop stands first in the text.
    let text = "st.global.u32 [%q], 0;\nsetp.eq.u32 %c0, %t, 1;\n@%c0 bra $WRITE;\nsetp.ne.u32 %c1, %t, 0;\n\
                @%c1 bra $END;\n$POLL:\nld.volatile.global.u32 %r0, [%p+4];\nsetp.eq.u32 %c2, %r0, 0;\n\
                @%c2 bra $POLL;\nbra $END;\n$WRITE:\nst.volatile.global.u32 [%p+4], 7;\n$END:";
    passes(&kernel("", text), 32);
}

#[test]
fn an_endless_loop_ends_with_a_finding() {
    let limits = Limits { instructions_per_block: 100_000, ..Limits::default() };
    let machine = Machine::new(Config { limits, ..Config::default() });
    let found = finding(run_on(&machine, &kernel("", "$L:\nbra $L;"), 32, 4));
    assert_eq!(found.kind, FindingKind::Budget, "{found}");
}

#[test]
fn blocks_that_wait_for_each_other_take_turns() {
    // Block 0 waits for block 1.
    let text = kernel(
        "",
        "mov.u32 %r0, %ctaid.x;\nsetp.eq.u32 %c0, %r0, 1;\n@%c0 bra $SET;\n$WAIT:\n\
         ld.acquire.gpu.global.u32 %r1, [%p];\nsetp.eq.u32 %c1, %r1, 0;\n@%c1 bra $WAIT;\nret;\n$SET:\n\
         st.release.gpu.global.u32 [%p], 1;",
    );
    let machine = Machine::default();
    let p = machine.allocate(4).unwrap();
    machine.fill(p, 0, 4).unwrap();
    launch(&machine, &module(&text), 2, 1, 0, &[p]).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_warp_that_asks_for_a_word_does_not_hold_up_the_copies_of_its_block() {
    // Warp 0 waits for a word that warp 1 sets when its copy is there.
    let text = kernel(
        ".shared .align 16 .b8 s[16];\n.shared .align 8 .b64 b;",
        "setp.ge.u32 %c0, %t, 32;\n@%c0 bra $COPY;\n$WAIT:\n\
         ld.acquire.gpu.global.u32 %r1, [%p];\nsetp.eq.u32 %c1, %r1, 0;\n@%c1 bra $WAIT;\nret;\n$COPY:\n\
         setp.ne.u32 %c0, %t, 32;\n@%c0 ret;\nmov.u32 %r2, s;\nmov.u32 %r3, b;\n\
         mbarrier.init.shared::cta.b64 [%r3], 1;\nfence.mbarrier_init.release.cluster;\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 16;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%p+16], 16, [%r3];\n$POLL:\n\
         mbarrier.try_wait.parity.shared::cta.b64 %c2, [%r3], 0;\n@!%c2 bra $POLL;\n\
         st.release.gpu.global.u32 [%p], 1;",
    );
    let module = Module::parse("test.ptx", &format!(".version 8.0\n.target sm_90\n.address_size 64\n{text}"));
    for completion in [Completion::Latest, Completion::Eager, Completion::Random] {
        let limits = Limits { instructions_per_block: 1_000_000, ..Config::hopper().limits };
        let machine = Machine::new(Config { completion, limits, ..Config::hopper() });
        let p = machine.allocate(32).unwrap();
        machine.fill(p, 0, 32).unwrap();
        launch(&machine, module.as_ref().unwrap(), 1, 64, 0, &[p]).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn constants_are_read_only_and_traps_are_told() {
    let text = format!(
        ".const .align 4 .u32 table[2] = {{5, 6}};\n{}",
        kernel("", "mov.b64 %x0, table;\nst.global.u32 [%x0], %t;")
    );
    fails(&text, 32, FindingKind::ReadOnly);
    let read = format!(
        ".const .align 4 .u32 table[2] = {{5, 6}};\n{}",
        kernel("", "ld.const.u32 %r0, [table+4];\nst.global.u32 [%q], %r0;")
    );
    passes(&read, 32);
    fails(&kernel("", "trap;"), 32, FindingKind::Trap);
}

#[test]
fn a_predicate_is_written_where_the_other_operand_decides_it() {
    // Nothing writes %r0, and so nothing %c0; %c1 is false, %c2 is true.
    let text = |body: &str| {
        let known = "setp.lt.u32 %c0, %r0, 7;\nsetp.gt.u32 %c1, %t, 99;\nsetp.lt.u32 %c2, %t, 99;\n";
        kernel("", &format!("{known}{body}\n@%c3 st.global.u32 [%q], %t;"))
    };
    for (body, other) in [
        ("and.pred %c3, %c0, %c1;", "and.pred %c3, %c0, %c2;"),
        ("and.pred %c3, %c1, %c0;", "and.pred %c3, %c2, %c0;"),
        ("or.pred %c3, %c0, %c2;", "or.pred %c3, %c1, %c0;"),
        ("setp.lt.and.u32 %c3, %r0, 7, %c1;", "setp.lt.and.u32 %c3, %r0, 7, %c2;"),
        ("setp.lt.or.u32 %c3, %r0, 7, %c2;", "setp.lt.or.u32 %c3, %r0, 7, %c1;"),
        ("setp.gt.and.u32 %c3, %t, 99, %c0;", "setp.lt.and.u32 %c3, %t, 99, %c0;"),
        ("setp.lt.and.u32 %c0|%c3, %t, 99, %c0;", "setp.gt.and.u32 %c0|%c3, %t, 99, %c0;"),
        ("lop3.and.b32 %r1|%c3, %r0, 0, 0, 0x80, %c1;", "xor.pred %c3, %c0, %c1;"),
    ] {
        passes(&text(body), 32);
        fails(&text(other), 32, FindingKind::Uninitialised);
    }
}

#[test]
fn what_is_switched_off_is_not_reported() {
    let machine = Machine::new(Config { checks: Checks::none(), ..Config::default() });
    let race = kernel(
        ".shared .align 4 .b8 s[4];",
        "st.shared.u32 [s], %t;\nld.shared.u32 %r0, [s];\nst.global.u32 [%q], %r9;\nst.global.u32 [%q+4000], %r0;\n\
         ld.global.u32 %r1, [%p+1];",
    );
    run_on(&machine, &race, 64, 256).unwrap_or_else(|error| panic!("{error}"));
    for (name, checks) in [
        ("uninitialised", Checks { uninitialised: true, ..Checks::none() }),
        ("out-of-bounds", Checks { bounds: true, ..Checks::none() }),
        ("shared-race", Checks { races: true, ..Checks::none() }),
        ("misaligned", Checks { alignment: true, ..Checks::none() }),
    ] {
        let machine = Machine::new(Config { checks, ..Config::default() });
        assert_eq!(finding(run_on(&machine, &race, 64, 256)).kind.name(), name);
    }
}

#[test]
fn the_first_failing_block_is_reported_whatever_the_number_of_threads() {
    let text = kernel("", "mov.u32 %r0, %ctaid.x;\nsetp.lt.u32 %c0, %r0, 37;\n@%c0 exit;\ntrap;");
    for threads in [1, 2, 7] {
        let machine = Machine::new(Config { threads: Some(threads), ..Config::default() });
        let found = finding(launch(&machine, &module(&text), 200, 32, 0, &[0]));
        assert_eq!(found.block, [37, 0, 0]);
    }
}

#[test]
fn a_stray_lane_does_not_keep_the_others_from_memory() {
    let machine = Machine::new(Config { checks: Checks::none(), ..Config::default() });
    // Lane 0 is astray; the others load and store.
    let text = kernel(
        "",
        "setp.eq.u32 %c0, %t, 0;\n@%c0 mov.b64 %q, 0;\nld.global.u32 %r0, [%q];\nadd.u32 %r0, %r0, 1;\n\
         st.global.u32 [%q], %r0;",
    );
    let p = machine.allocate(128).unwrap();
    machine.write(p, &[7u32; 32].map(u32::to_le_bytes).concat()).unwrap();
    launch(&machine, &module(&text), 1, 32, 0, &[p]).unwrap_or_else(|error| panic!("{error}"));
    let mut back = [0; 128];
    machine.read(p, &mut back).unwrap();
    let words: Vec<u8> = back.iter().copied().step_by(4).collect();
    assert!(words[0] == 7 && words[1..] == [8; 31], "{words:?}");
}

#[test]
fn a_copy_in_flight_is_not_settled_by_its_neighbours_wait() {
    let text = |allowed: u32| {
        kernel(
            ".shared .align 16 .b8 s[16];",
            &format!(
                "setp.ne.u32 %c0, %t, 0;\n@%c0 exit;\nmov.u32 %r0, 0;\n\
                 st.shared.v4.u32 [s], {{%r0, %r0, %r0, %r0}};\nbar.sync 0;\n\
                 cp.async.ca.shared.global [s], [%p], 4;\ncp.async.commit_group;\n\
                 cp.async.ca.shared.global [s+4], [%p+4], 4;\ncp.async.commit_group;\n\
                 cp.async.wait_group {allowed};\nld.shared.u32 %r1, [s];\nld.shared.u32 %r1, [s+8];\n\
                 ld.shared.u32 %r1, [s+4];\nst.global.u32 [%p], %r1;"
            ),
        )
    };
    passes(&text(0), 32);
    let found = fails(&text(1), 32, FindingKind::AsynchronousCopy);
    assert!(found.text.contains("[s+4]"), "{found}");
}

#[test]
fn a_failing_block_ends_the_launch_of_a_large_grid() {
    let start = std::time::Instant::now();
    let text = kernel("", "st.global.u32 [%q], %t;");
    let found = finding(launch(&Machine::default(), &module(&text), i32::MAX as u32, 32, 0, &[0]));
    assert_eq!((found.kind, found.block), (FindingKind::OutOfBounds, [0; 3]), "{found}");
    assert!(start.elapsed().as_secs() < 1, "{:?}", start.elapsed());
}

#[test]
fn a_finding_reads_like_a_compilers_diagnostic() {
    let text = format!(".file 1 \"src/lib.rs\"\n{}", kernel("", ".loc 1 42 7\nld.global.u32 %r0, [%q+4];"));
    let found = fails(&text, 32, FindingKind::OutOfBounds);
    let shown = found.to_string();
    assert!(shown.starts_with("error[out-of-bounds]: load of 4 bytes at 0x"), "{shown}");
    assert!(
        shown.contains("(from src/lib.rs:42)") && shown.contains("| ld.global.u32 %r0, [%q+4];"),
        "{shown}"
    );
    assert!(shown.contains("kernel `test`, block (0, 0, 0), warp 0, lane 31"), "{shown}");
}

#[test]
fn groups_of_a_warp_may_name_different_lanes() {
    // Even lanes shuffle among themselves, odd ones too, at the same instruction.
    let text = |mask: &str| {
        format!(
            "and.b32 %r0, %t, 1;\nmov.u32 %r1, 0x55555555;\nshl.b32 %r1, %r1, %r0;\n{mask}xor.b32 %r2, %t, 2;\n\
             shfl.sync.idx.b32 %r3, %t, %r2, 31, %r1;\nst.global.u32 [%q], %r3;\nbar.warp.sync %r1;"
        )
    };
    let machine = Machine::default();
    let p = machine.allocate(128).unwrap();
    launch(&machine, &module(&kernel("", &text(""))), 1, 32, 0, &[p])
        .unwrap_or_else(|error| panic!("{error}"));
    let mut back = [0; 128];
    machine.read(p, &mut back).unwrap();
    let values: Vec<u32> = back.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    assert_eq!(values, (0..32).map(|t| t ^ 2).collect::<Vec<_>>());
    // A lane that its own mask does not name; masks that wait for each other's lanes.
    fails(&kernel("", &text("mov.u32 %r1, 0x55555555;\n")), 32, FindingKind::Divergence);
    let crossed = "setp.lt.u32 %c0, %t, 16;\nselp.u32 %r1, 0x0001ffff, 0xffff8000, %c0;\n";
    fails(&kernel("", &text(crossed)), 32, FindingKind::Divergence);
}

#[test]
fn a_copy_that_nothing_waits_for_is_left_behind_at_exit() {
    let text = |wait: &str| {
        kernel(
            ".shared .align 16 .b8 s[512];",
            &format!(
                "mov.u32 %r1, s;\nmad.lo.u32 %r1, %t, 16, %r1;\nmad.wide.u32 %x0, %t, 16, %p;\ncp.async.cg.shared.global [%r1], [%x0], 16;\n{wait}"
            ),
        )
    };
    let run = |text: &str| run_on(&Machine::default(), text, 32, 512);
    run(&text("cp.async.wait_all;")).unwrap();
    run(&text("cp.async.commit_group;\ncp.async.wait_group 0;")).unwrap();
    for wait in ["", "cp.async.commit_group;", "cp.async.commit_group;\ncp.async.wait_group 1;"] {
        let found = finding(run(&text(wait)));
        assert_eq!((found.kind, found.lanes), (FindingKind::AsynchronousCopy, u32::MAX), "{found}");
        assert!(found.message.contains("byte 0 of `s`") && found.related.len() == 1, "{found}");
    }
}

#[test]
fn a_launch_has_a_budget_of_instructions_and_of_time() {
    let limits = |change: fn(&mut Limits)| {
        let mut config = Config::default();
        change(&mut config.limits);
        Machine::new(config)
    };
    // A grid of empty blocks that would take hours is given up soon.
    for body in ["", "membar.gl;"] {
        let found = finding(launch(&Machine::default(), &module(&kernel("", body)), 0x7fff_ffff, 1, 0, &[0]));
        assert!(
            found.kind == FindingKind::Budget && found.message.contains("the grid's blocks count as"),
            "{found}"
        );
    }
    // Blocks that are each within their limit may be too many together.
    let loops =
        kernel("", "mov.u32 %r0, 0;\nL: add.u32 %r0, %r0, 1;\nsetp.lt.u32 %c0, %r0, 1000;\n@%c0 bra L;");
    let machine = limits(|limits| limits.instructions_per_launch = 100_000);
    assert!(launch(&machine, &module(&loops), 10, 32, 0, &[0]).is_ok());
    let found = finding(launch(&machine, &module(&loops), 1000, 32, 0, &[0]));
    assert_eq!(found.kind, FindingKind::Budget, "{found}");
    assert!(found.message.contains("the launch has run"), "{found}");
    let machine = limits(|limits| limits.time_per_launch = std::time::Duration::ZERO);
    let found = finding(launch(&machine, &module(&loops), 1, 32, 0, &[0]));
    assert!(
        found.kind == FindingKind::Budget && found.message.contains("more than the limit of 0 s"),
        "{found}"
    );
}

/// A kernel with a frame of 16 bytes of local memory.
fn framed(body: &str) -> String {
    kernel(".local .align 16 .b8 f[16];\n.reg .b16 %h<4>;", body)
}

#[test]
fn what_was_written_is_known_by_byte_and_bit() {
    for body in [
        // A wide load of which a half was written, and is used.
        "st.local.u32 [f], %t;\nld.local.b64 %x0, [f];\ncvt.u32.u64 %r1, %x0;\nst.global.u32 [%q], %r1;",
        "st.local.u32 [f], %t;\nld.local.b64 %x0, [f];\nmov.b64 {%r1, %r2}, %x0;\nst.global.u32 [%q], %r1;",
        "st.local.u32 [f+4], %t;\nld.local.b64 %x0, [f];\nshr.u64 %x0, %x0, 32;\ncvt.u32.u64 %r1, %x0;\nst.global.u32 [%q], %r1;",
        "st.local.u8 [f+1], %t;\nld.local.u32 %r1, [f];\nand.b32 %r1, %r1, 65280;\nst.global.u32 [%q], %r1;",
        "st.local.u8 [f+1], %t;\nld.local.u32 %r1, [f];\nbfe.u32 %r1, %r1, 8, 8;\nst.global.u32 [%q], %r1;",
        "st.local.u8 [f+1], %t;\nld.local.u32 %r1, [f];\nprmt.b32 %r1, %r1, 0, 0x4441;\nst.global.u32 [%q], %r1;",
        // A structure with padding, copied as a whole.
        "st.local.u8 [f], %t;\nld.local.u32 %r1, [f];\nst.global.u32 [%q], %r1;",
        // Bit fields put into what nothing wrote.
        "bfi.b32 %r1, 7, %r2, 0, 5;\nbfi.b32 %r1, 9, %r1, 5, 27;\nst.global.u32 [%q], %r1;",
        "and.b32 %r1, %r2, 0;\nor.b32 %r1, %r1, %t;\nst.global.u32 [%q], %r1;",
        "lop3.b32 %r1, %r2, %t, 0, 0x0c;\nlop3.b32 %r3, %r2, 0, %t, 0x3c;\nand.b32 %r2, %r2, 0;\nst.global.u32 [%q], %r2;",
        // Zeros that come in from below, where the rest is what was written.
        "st.local.u8 [f], %t;\nld.local.u32 %r1, [f];\nshl.b32 %r1, %r1, 24;\nsetp.ge.u32 %c0, %r1, 0;\n@%c0 st.global.u32 [%q], 1;",
        // The fields of a byte, one after the other.
        "ld.local.u8 %r1, [f];\nand.b32 %r1, %r1, 240;\nor.b32 %r1, %r1, 5;\nst.local.u8 [f], %r1;\nld.local.u8 %r1, [f];\n\
         and.b32 %r1, %r1, 15;\nor.b32 %r1, %r1, 144;\nst.local.u8 [f], %r1;\nld.local.u8 %r1, [f];\nsetp.eq.u32 %c0, %r1, 149;\n\
         @%c0 st.global.u32 [%q], 1;",
        // A vector with an element that is padding, and a choice between such.
        "st.local.u32 [f], 7;\nld.local.v2.u32 {%r1, %r2}, [f];\nsetp.eq.u32 %c0, %t, 0;\n@%c0 st.global.v2.u32 [%p], {%r1, %r2};",
        "st.local.u8 [f], %t;\nld.local.u32 %r1, [f];\nsetp.eq.u32 %c0, %t, %t;\nselp.b32 %r2, %r1, 0, %c0;\nst.global.u32 [%q], %r2;",
        // Parts of words that video instructions select, and parts that they leave as they were.
        "st.local.u8 [f+1], %t;\nld.local.u32 %r1, [f];\nvadd.u32.u32.u32 %r2, %r1.b1, %t;\nst.global.u32 [%q], %r2;",
        "vadd.u32.u32.u32 %r1.h0, %t, %t, %r2;\nand.b32 %r1, %r1, 65535;\nst.global.u32 [%q], %r1;",
        "st.local.u8 [f+1], %t;\nld.local.u32 %r1, [f];\nvset.u32.u32.lt %r2.b3, %t, %t, %r1;\nand.b32 %r2, %r2, 0xff00ff00;\n\
         st.global.u32 [%q], %r2;",
        "mov.b32 %r1, {%h0, 7};\nvadd2.u32.u32.u32 %r2, %r1.h11, %t.h32, %r3;\nst.global.u32 [%q], %r2;",
        "vadd4.u32.u32.u32 %r2.b20, %t, %t, %r3;\nand.b32 %r2, %r2, 0xff00ff;\nst.global.u32 [%q], %r2;",
        // A register with itself.
        "xor.b32 %r1, %r2, %r2;\nst.global.u32 [%q], %r1;",
        "sub.s32 %r2, %r2, %r2;\nst.global.u32 [%q], %r2;",
        "mov.b32 {%h0, %h1}, %t;\nmov.b32 %r1, {%h0, %h2};\nmov.b32 {%h1, %h3}, %r1;\ncvt.u32.u16 %r2, %h1;\nst.global.u32 [%q], %r2;",
    ] {
        passes(&framed(body), 32);
    }
    for body in [
        "st.local.u32 [f+4], %t;\nld.local.b64 %x0, [f];\ncvt.u32.u64 %r1, %x0;\nst.global.u32 [%q], %r1;",
        "st.local.u8 [f+1], %t;\nld.local.u32 %r1, [f];\nsetp.eq.u32 %c0, %r1, 0;\n@%c0 st.global.u32 [%q], 1;",
        "bfi.b32 %r1, 7, %r2, 0, 5;\nsetp.eq.u32 %c0, %r1, 0;\n@%c0 st.global.u32 [%q], 1;",
        "xor.b32 %r1, %r2, %r3;\nst.global.u32 [%q], %r1;",
        "and.b32 %r1, %r2, %t;\nmul.lo.u32 %r1, %r1, 3;\nst.global.u32 [%q], %r1;",
        "vadd.u32.u32.u32 %r1.h0, %t, %t, %r2;\nsetp.eq.u32 %c0, %r1, 0;\n@%c0 st.global.u32 [%q], 1;",
        "st.local.u8 [f+1], %t;\nld.local.u32 %r1, [f];\nvadd.u32.u32.u32 %r2, %r1.b2, %t;\nst.global.u32 [%q], %r2;",
        "vmad.u32.u32.u32 %r1, %t, %t, %r2;\nst.global.u32 [%q], %r1;",
        "vmax.u32.u32.u32.min %r1, %t, %t, %r2;\nst.global.u32 [%q], %r1;",
        "vadd4.u32.u32.u32 %r2.b20, %t, %t, %r3;\nsetp.eq.u32 %c0, %r2, 0;\n@%c0 st.global.u32 [%q], 1;",
        "vadd2.u32.u32.u32.add %r1, %t, %t, %r2;\nst.global.u32 [%q], %r1;",
        // What is written at last is what counts.
        "st.local.u32 [f], %t;\nld.local.b64 %x0, [f];\nmov.b64 %x0, %x1;\ncvt.u32.u64 %r1, %x0;\nst.global.u32 [%q], %r1;",
    ] {
        fails(&framed(body), 32, FindingKind::Uninitialised);
    }
}

#[test]
fn bytes_that_nothing_wrote_stay_so_in_memory() {
    // Padding goes to global memory, and is found where it decides something.
    let copy = "st.local.u8 [f], %t;\nld.local.u32 %r1, [f];\nst.global.u32 [%q], %r1;";
    passes(
        &framed(&format!(
            "{copy}\nld.global.u8 %r2, [%q];\nsetp.eq.u32 %c0, %r2, 0;\n@%c0 st.global.u32 [%q], 1;"
        )),
        32,
    );
    fails(
        &framed(&format!(
            "{copy}\nld.global.u8 %r2, [%q+1];\nsetp.eq.u32 %c0, %r2, 0;\n@%c0 st.global.u32 [%q], 1;"
        )),
        32,
        FindingKind::Uninitialised,
    );
}

#[test]
fn an_index_past_a_variable_of_shared_memory_is_not_one_of_the_next() {
    let text = |array: &str, shift: u32| {
        kernel(
            ".shared .align 4 .b8 a[128];\n.shared .align 4 .b8 b[128];",
            &format!(
                "mov.u32 %r0, a;\nmov.u32 %r1, b;\nmad.lo.u32 %r2, %t, 4, {array};\nst.shared.u32 [%r2+{shift}], %t;\nst.global.u32 [%q], %t;"
            ),
        )
    };
    passes(&text("%r0", 0), 32);
    passes(&text("%r1", 0), 32);
    let found = fails(&text("%r0", 4), 32, FindingKind::OutOfBounds);
    assert_eq!(found.lanes, 1 << 31);
    assert!(found.message.contains("0 bytes past the end of `a` (128 bytes)"), "{found}");
    fails(&text("%r1", 4), 32, FindingKind::OutOfBounds);
    // Before dynamic shared memory, too, whose size is what the launch says.
    let text = format!(
        ".extern .shared .align 16 .b8 d[];\n{}",
        kernel(
            ".shared .align 4 .b8 a[128];",
            "mov.u32 %r0, a;\nmov.u32 %r1, d;\nst.shared.u32 [%r1+60], 1;\nst.shared.u32 [%r0+128], 1;"
        )
    );
    let machine = Machine::default();
    let p = machine.allocate(4).unwrap();
    let found = finding(launch(&machine, &module(&text), 1, 1, 64, &[p]));
    assert!(found.text.contains("%r0+128"), "{found}");
    let found = finding(launch(&machine, &module(&text), 1, 1, 60, &[p]));
    assert!(found.text.contains("%r1+60"), "{found}");
}
