//! mbarriers, clusters and what else came with compute capability 9.0: every check has a kernel that it must flag, and a correct
//! twin that it must not.

use crate::common::{finding, hopper_module, launch};
use warpsmith_emulator::{Completion, Config, Finding, FindingKind, LaunchError, Limits, Machine, Report};

/// A kernel of one pointer parameter, `%p`, thread index `%t`, block rank `%k`, and shared memory `s` of 4 KiB and the mbarriers
/// `m` of 64 bytes.
fn kernel(cluster: u32, body: &str) -> String {
    format!(
        ".visible .entry test(.param .u64 p)\n.reqnctapercluster {cluster}, 1, 1\n{{\n\
         .shared .align 128 .b8 s[4096];\n.shared .align 8 .b8 m[64];\n\
         .reg .b64 %p, %q, %x<8>;\n.reg .b32 %t, %k, %w, %r<16>;\n.reg .pred %c<8>;\n\
         ld.param.u64 %p, [p];\nmov.u32 %t, %tid.x;\nmov.u32 %k, %cluster_ctarank;\nshr.u32 %w, %t, 5;\n\
         mov.u32 %r15, %ctaid.x;\nmov.u32 %r14, %ntid.x;\nmad.lo.u32 %r15, %r15, %r14, %t;\n\
         mad.wide.u32 %q, %r15, 4, %p;\nsetp.eq.u32 %c7, %t, 0;\n{body}\nret;\n}}\n"
    )
}

fn run_as(
    text: &str,
    blocks: u32,
    threads: u32,
    completion: Completion,
) -> (Result<Report, LaunchError>, Vec<u32>) {
    let limits = Limits { instructions_per_block: 1 << 18, ..Limits::hopper() };
    let machine = Machine::new(Config { completion, limits, ..Config::hopper() });
    let bytes = 4 * u64::from(blocks * threads);
    let p = machine.allocate(bytes).unwrap();
    machine.fill(p, 0, bytes).unwrap();
    let result = launch(&machine, &hopper_module(text), blocks, threads, 0, &[p]);
    let mut back = vec![0; bytes as usize];
    machine.read(p, &mut back).unwrap();
    (result, back.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect())
}

/// What the kernel wrote, the same in every mode.
fn passes(text: &str, blocks: u32, threads: u32) -> Vec<u32> {
    let mut all = [Completion::Eager, Completion::Latest, Completion::Random].map(|completion| {
        let (result, output) = run_as(text, blocks, threads, completion);
        result.unwrap_or_else(|error| panic!("{completion:?}: {error}\n{text}"));
        output
    });
    assert!(all[0] == all[1] && all[1] == all[2]);
    std::mem::take(&mut all[0])
}

fn fails(text: &str, blocks: u32, threads: u32, kind: FindingKind) -> Finding {
    let found = finding(run_as(text, blocks, threads, Completion::Latest).0);
    assert_eq!(found.kind, kind, "{found}");
    found
}

/// Initialises the mbarrier at `m` for `count` arrivals, in thread 0, and lets all threads know.
fn init(count: u32) -> String {
    format!("@%c7 mbarrier.init.shared::cta.b64 [m], {count};\nbar.sync 0;\n")
}

/// Waits for the phase of a parity; `label` is the loop's.
fn wait(label: &str, parity: u32) -> String {
    format!("{label}:\nmbarrier.try_wait.parity.shared::cta.b64 %c6, [m], {parity};\n@!%c6 bra {label};\n")
}

#[test]
fn an_mbarrier_orders_what_was_before_the_arrivals() {
    // Warp 0 writes and arrives, warp 1 waits and reads.
    let body = |order: &str| {
        format!(
            "{}setp.ne.u32 %c0, %w, 0;\nmov.b32 %r1, s;\nand.b32 %r2, %t, 31;\nmad.lo.u32 %r1, %r2, 4, %r1;\n\
             @%c0 bra READ;\n{order}\nbra END;\nREAD:\n{}ld.shared.u32 %r3, [%r1];\nst.global.u32 [%q], %r3;\nEND:",
            init(32),
            wait("L", 0)
        )
    };
    let write = "add.u32 %r4, %t, 7;\nst.shared.u32 [%r1], %r4;";
    let arrive = "mbarrier.arrive.shared::cta.b64 _, [m];";
    let output = passes(&kernel(1, &body(&format!("{write}\n{arrive}"))), 1, 64);
    assert!((0..32).all(|i| output[32 + i] == i as u32 + 7));
    let found = fails(&kernel(1, &body(&format!("{arrive}\n{write}"))), 1, 64, FindingKind::SharedRace);
    assert!(found.message.contains("races with"), "{found}");
    let relaxed = arrive.replace("arrive.", "arrive.relaxed.cta.");
    fails(&kernel(1, &body(&format!("{write}\n{relaxed}"))), 1, 64, FindingKind::SharedRace);
}

#[test]
fn phases_alternate_and_a_fresh_barrier_passes_the_phase_before() {
    let body = format!(
        "{}{}mbarrier.arrive.shared::cta.b64 _, [m];\n{}mbarrier.arrive.shared::cta.b64 _, [m];\n{}st.global.u32 [%q], 1;",
        init(64),
        wait("A", 1),
        wait("B", 0),
        wait("C", 1)
    );
    assert_eq!(passes(&kernel(1, &body), 1, 64), [1; 64]);
    // Polling instead of waiting, with the state that an arrival gives.
    let body = format!(
        "{}mbarrier.arrive.shared::cta.b64 %x0, [m];\nL:\nmbarrier.test_wait.shared::cta.b64 %c1, [m], %x0;\n@!%c1 bra L;\n\
         mbarrier.pending_count.b64 %r1, %x0;\nsetp.eq.u32 %c2, %r1, 0;\n@%c2 trap;\nst.global.u32 [%q], 2;",
        init(64)
    );
    assert_eq!(passes(&kernel(1, &body), 1, 64), [2; 64]);
}

#[test]
fn a_wait_for_arrivals_that_never_come_says_what_is_missing() {
    let body = format!("{}mbarrier.arrive.shared::cta.b64 _, [m];\n{}", init(33), wait("L", 0));
    let found = fails(&kernel(1, &body), 1, 32, FindingKind::BarrierDeadlock);
    assert!(
        found.message.contains("`m`") && found.message.contains("lacks 1 of 33 arrivals and 0 bytes"),
        "{found}"
    );
    let body =
        format!("{}@%c7 mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], 48;\n{}", init(1), wait("L", 0));
    let found = fails(&kernel(1, &body), 1, 32, FindingKind::BarrierDeadlock);
    assert!(found.message.contains("lacks 0 of 1 arrivals and 48 bytes"), "{found}");
}

#[test]
fn misuse_of_mbarriers_is_reported() {
    let misuse = |body: &str| fails(&kernel(1, body), 1, 32, FindingKind::BarrierMisuse).message;
    assert!(misuse("mbarrier.arrive.shared::cta.b64 _, [m];").contains("no mbarrier"));
    assert!(misuse("mbarrier.init.shared::cta.b64 [m], 1;").contains("again while it is live"));
    assert!(misuse("@%c7 mbarrier.init.shared::cta.b64 [m], 0;").contains("0 arrivals"));
    let many = format!("{}@%c7 mbarrier.arrive.shared::cta.b64 _, [m], 3;", init(2));
    assert!(misuse(&many).contains("3 arrivals at the mbarrier"));
    let again = format!(
        "{}@%c7 mbarrier.inval.shared::cta.b64 [m];\nbar.sync 0;\n@%c7 mbarrier.init.shared::cta.b64 [m], 1;",
        init(1)
    );
    passes(&kernel(1, &again), 1, 32);
    assert!(
        misuse(
            &again.replace("mbarrier.inval.shared::cta.b64 [m];", "mbarrier.arrive.shared::cta.b64 _, [m];")
        )
        .contains("again while it is live")
    );
    // An ordinary store to a live mbarrier, and an arrival that no barrier orders behind the initialisation.
    let store = format!("{}@%c7 st.shared.u32 [m+4], %t;", init(1));
    let found = fails(&kernel(1, &store), 1, 32, FindingKind::AsynchronousCopy);
    assert!(found.message.contains("a live mbarrier"), "{found}");
    let early = init(64).replace("bar.sync 0;", "") + "mbarrier.arrive.shared::cta.b64 _, [m];";
    let found = fails(&kernel(1, &early), 1, 64, FindingKind::SharedRace);
    assert!(found.message.contains("races with its initialisation"), "{found}");
}

const SYNC: &str = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n";

#[test]
fn blocks_of_a_cluster_read_and_write_each_others_shared_memory() {
    let body = |between: &str, end: &str| {
        format!(
            "mov.b32 %r1, s;\nmad.lo.u32 %r1, %t, 4, %r1;\nxor.b32 %r2, %k, 1;\nmapa.shared::cluster.u32 %r3, %r1, %r2;\n\
             mad.lo.u32 %r4, %k, 100, %t;\nst.shared::cluster.u32 [%r3], %r4;\n{between}ld.shared.u32 %r5, [%r1];\n\
             getctarank.shared::cluster.u32 %r6, %r3;\nadd.u32 %r5, %r5, %r6;\nst.global.u32 [%q], %r5;\n{end}"
        )
    };
    let output = passes(&kernel(2, &body(SYNC, "")), 4, 32);
    for block in 0..4 {
        for t in 0..32 {
            let other = 1 - block as u32 % 2;
            assert_eq!(output[block * 32 + t], other * 100 + t as u32 + other);
        }
    }
    // Four words at a time, to the own block and to the other.
    let four = |place: &str, at: &str| {
        let body = format!(
            "mov.b32 %r1, s;\nmad.lo.u32 %r1, %t, 16, %r1;\nxor.b32 %r2, %k, 1;\nmapa.shared::cluster.u32 %r3, %r1, %r2;\n\
             mad.lo.u32 %r4, %k, 100, %t;\nst.shared{place}.v4.f32 [{at}], {{%r2, %r4, %t, %k}};\n{SYNC}\
             ld.shared.u32 %r5, [%r1+4];\nld.shared.u32 %r6, [%r1+8];\nmad.lo.u32 %r5, %r6, 1000, %r5;\nst.global.u32 [%q], %r5;"
        );
        let output = passes(&kernel(2, &body), 4, 32);
        for block in 0..4u32 {
            let writer = if place.is_empty() { block % 2 } else { 1 - block % 2 };
            for t in 0..32 {
                assert_eq!(output[(block * 32 + t) as usize], writer * 100 + t + 1000 * t, "{place}");
            }
        }
    };
    four("", "%r1");
    four("::cluster", "%r3");
    let ordered = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n";
    assert_eq!(passes(&kernel(2, &body(ordered, "")), 4, 32), output);
    let written = format!("mov.b32 %r1, s;\nmad.lo.u32 %r1, %t, 4, %r1;\nst.shared.u32 [%r1], %t;\n{SYNC}");
    fails(&kernel(2, &format!("{written}{}", body("bar.sync 0;\n", SYNC))), 4, 32, FindingKind::SharedRace);
    // The generic address of the same place, read after the barrier: the owner must not exit before.
    let read = |end: &str| {
        format!(
            "mov.b32 %r1, s;\nmad.lo.u32 %r1, %t, 4, %r1;\nst.shared.u32 [%r1], %t;\n{SYNC}cvta.shared.u64 %x0, s;\n\
             mad.wide.u32 %x0, %t, 4, %x0;\nxor.b32 %r2, %k, 1;\nmapa.u64 %x1, %x0, %r2;\nld.u32 %r5, [%x1];\n\
             st.global.u32 [%q], %r5;\n{end}"
        )
    };
    assert_eq!(passes(&kernel(2, &read(SYNC)), 2, 32)[32..], (0..32).collect::<Vec<_>>());
    let found = fails(&kernel(2, &read("")), 2, 32, FindingKind::UseAfterFree);
    assert!(found.message.contains("has exited"), "{found}");
}

#[test]
fn blocks_arrive_at_each_others_mbarriers() {
    // Block 1 writes into block 0's memory, then arrives at its barrier.
    let body = |arrive: &str| {
        format!(
            "@%c7 mbarrier.init.shared::cta.b64 [m], 32;\n{SYNC}setp.eq.u32 %c0, %k, 0;\n@%c0 bra READ;\n\
             mov.b32 %r1, s;\nmad.lo.u32 %r1, %t, 4, %r1;\nmapa.shared::cluster.u32 %r3, %r1, 0;\n\
             st.shared::cluster.u32 [%r3], %t;\nmov.b32 %r4, m;\nmapa.shared::cluster.u32 %r5, %r4, 0;\n{arrive}\nbra END;\n\
             READ:\n{}mov.b32 %r1, s;\nmad.lo.u32 %r1, %t, 4, %r1;\nld.shared.u32 %r5, [%r1];\nst.global.u32 [%q], %r5;\n\
             END:\n{SYNC}",
            wait("L", 0)
        )
    };
    let arrive = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];";
    for arrive in [arrive, "mbarrier.arrive.shared::cluster.b64 _, [%r5];"] {
        assert_eq!(passes(&kernel(2, &body(arrive)), 2, 32)[..32], (0..32).collect::<Vec<_>>());
    }
    fails(&kernel(2, &body("")), 2, 32, FindingKind::BarrierDeadlock);
}

#[test]
fn asynchronous_stores_are_counted_by_the_mbarrier_beside_them() {
    // Each block stores to the other's memory, and waits for what comes to its own.
    let body = |bytes: u32, before: &str, store: &str, wait: &str, after: &str| {
        let init = "@%c7 mbarrier.init.shared::cta.b64 [m], 1;\n@%c7 fence.mbarrier_init.release.cluster;\n";
        format!(
            "{init}{SYNC}@%c7 mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], {bytes};\n\
             mov.b32 %r1, s;\nmad.lo.u32 %r1, %t, 16, %r1;\nxor.b32 %r2, %k, 1;\nmapa.shared::cluster.u32 %r3, %r1, %r2;\n\
             mov.b32 %r4, m;\nmapa.shared::cluster.u32 %r5, %r4, %r2;\nmad.lo.u32 %r6, %k, 100, %t;\nmov.u32 %r7, 7;\n\
             cvt.u64.u32 %x0, %r6;\nmov.u64 %x1, 8;\n{before}{store}\n{wait}{after}ld.shared.u32 %r6, [%r1];\n\
             st.global.u32 [%q], %r6;\n{SYNC}"
        )
    };
    let expected: Vec<u32> = (0..64).map(|i| (1 - i / 32) * 100 + i % 32).collect();
    let head = "st.async.shared::cluster.mbarrier::complete_tx::bytes";
    for (bytes, form, values) in [
        (4, "b32", "%r6"),
        (4, "f32", "%r6"),
        (8, "u64", "%x0"),
        (8, "v2.s32", "{%r6, %r7}"),
        (16, "v2.b64", "{%x0, %x1}"),
        (16, "v4.f32", "{%r6, %r7, %r7, %r7}"),
    ] {
        let store = format!("{head}.{form} [%r3], {values}, [%r5];");
        assert_eq!(
            passes(&kernel(2, &body(32 * bytes, "", &store, &wait("L", 0), "")), 2, 32),
            expected,
            "{form}"
        );
    }
    // The second of four words.
    let store = format!("{head}.v4.u32 [%r3], {{%r7, %r6, %r7, %r7}}, [%r5];");
    let text = body(512, "", &store, &wait("L", 0), "add.u32 %r1, %r1, 4;\n");
    assert_eq!(passes(&kernel(2, &text), 2, 32), expected);
    // `.weak` changes nothing.
    let weak = store.replace("st.async", "st.async.weak");
    assert_eq!(passes(&kernel(2, &text.replace(&store, &weak)), 2, 32), expected);

    let fails = |text: &str, kind| fails(&kernel(2, text), 2, 32, kind);
    // Nobody has waited, also not a barrier of the cluster's threads.
    fails(&body(512, "", &store, SYNC, ""), FindingKind::AsynchronousCopy);
    // More bytes are expected than come.
    fails(&body(516, "", &store, &wait("L", 0), ""), FindingKind::BarrierDeadlock);
    // The mbarrier is the own block's, but the memory is the other's; nowhere; not aligned.
    let found = fails(&body(512, "", &store.replace("%r5", "%r4"), "", ""), FindingKind::BarrierMisuse);
    assert!(found.message.contains("expected one of the block that it writes to"), "{found}");
    let found = fails(&body(512, "add.u32 %r3, %r3, 8;\n", &store, "", ""), FindingKind::Misaligned);
    assert!(found.message.contains("an asynchronous store"), "{found}");
    fails(&body(512, "add.u32 %r3, %r3, 0x80000;\n", &store, "", ""), FindingKind::OutOfBounds);
    // A value that nothing wrote is one where it arrives.
    let text = body(512, "", &store.replace("%r6", "%r9"), &wait("L", 0), "add.u32 %r1, %r1, 4;\n");
    fails(&text, FindingKind::Uninitialised);
}

#[test]
fn who_waits_for_an_asynchronous_store_knows_what_its_thread_did() {
    // Block 0 reads its memory, then stores to block 1's; that has waited for it when it stores to what block 0 has read. No proxy fence is asked for.
    let head = "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32";
    let text = |read: &str, late: &str| {
        format!(
            "@%c7 mbarrier.init.shared::cta.b64 [m], 1;\n@%c7 fence.mbarrier_init.release.cluster;\n\
             mov.b32 %r1, s;\nmad.lo.u32 %r1, %t, 4, %r1;\nst.shared.u32 [%r1], %t;\n{SYNC}\
             @%c7 mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], 128;\nxor.b32 %r2, %k, 1;\n\
             mapa.shared::cluster.u32 %r3, %r1, %r2;\nmov.b32 %r4, m;\nmapa.shared::cluster.u32 %r5, %r4, %r2;\n\
             setp.eq.u32 %c0, %k, 0;\n@!%c0 bra SECOND;\n{read}{head} [%r3+128], %t, [%r5];\n{late}{}bra END;\n\
             SECOND:\n{}{head} [%r3], %k, [%r5];\nEND:\n{SYNC}ld.shared.u32 %r6, [%r1];\nst.global.u32 [%q], %r6;",
            wait("L", 0),
            wait("M", 0),
        )
    };
    let read = "ld.shared.u32 %r7, [%r1];\n";
    assert_eq!(passes(&kernel(2, &text(read, "")), 2, 32)[..32], [1; 32]);
    // A read behind the store is not ordered before what comes back.
    fails(&kernel(2, &text("", read)), 2, 32, FindingKind::SharedRace);
}

#[test]
fn the_clusters_barrier_is_used_in_turns() {
    let arrive = "barrier.cluster.arrive.aligned;\n";
    let wait = "barrier.cluster.wait.aligned;\n";
    let misuse = |body: &str| fails(&kernel(2, body), 2, 64, FindingKind::BarrierMisuse);
    misuse(&format!("{arrive}{arrive}"));
    misuse(wait);
    passes(&kernel(2, &format!("{SYNC}{SYNC}{SYNC}")), 6, 64);
    // One block never arrives.
    let found = fails(
        &kernel(2, &format!("setp.eq.u32 %c0, %k, 0;\n@%c0 bra E;\n{SYNC}E:\nL:\n@%c0 bra L;")),
        2,
        32,
        FindingKind::Budget,
    );
    assert!(found.message.contains("limit"), "{found}");
}

#[test]
fn registers_move_between_warps() {
    // 64 threads have 256 registers each; the first warp gives, the second cannot have more than all.
    let body = "setp.eq.u32 %c0, %w, 0;\n@%c0 bra A;\nsetmaxnreg.dec.sync.aligned.u32 40;\nbra B;\nA:\n\
                setmaxnreg.dec.sync.aligned.u32 160;\nsetmaxnreg.inc.sync.aligned.u32 232;\nB:\nst.global.u32 [%q], %t;";
    assert_eq!(passes(&kernel(1, body), 1, 64), (0..64).collect::<Vec<_>>());
    let found = fails(&kernel(1, &body.replace("232", "236")), 1, 64, FindingKind::Registers);
    assert!(found.message.contains("from 160 to 236"), "{found}");
    fails(
        &kernel(1, &body.replace("dec.sync.aligned.u32 40", "inc.sync.aligned.u32 40")),
        1,
        64,
        FindingKind::Registers,
    );
    let greedy = "setmaxnreg.dec.sync.aligned.u32 64;\nsetmaxnreg.inc.sync.aligned.u32 232;\nsetmaxnreg.dec.sync.aligned.u32 24;\n\
                  setmaxnreg.inc.sync.aligned.u32 256;\nbar.sync 0;";
    let found = fails(&kernel(1, greedy), 1, 512, FindingKind::BarrierDeadlock);
    assert!(
        found.message.contains("waits for registers") || found.to_string().contains("waits for registers"),
        "{found}"
    );
}

#[test]
fn one_lane_is_elected() {
    let body =
        "mov.u32 %r2, 5;\nelect.sync %r1|%c0, 0xffffffff;\n@%c0 mov.u32 %r2, 6;\nst.global.u32 [%q], %r2;";
    let output = passes(&kernel(1, body), 1, 64);
    assert_eq!(output.iter().filter(|&&v| v == 6).count(), 2);
    assert_eq!((output[0], output[32]), (6, 6));
}

#[test]
fn special_registers_describe_the_cluster() {
    let body = "mov.u32 %r0, %cluster_nctarank;\nmov.u32 %r1, %clusterid.x;\nmov.u32 %r2, %nclusterid.x;\n\
                mov.u32 %r3, %cluster_ctaid.x;\nmov.u32 %r4, %cluster_nctaid.x;\nmov.pred %c1, %is_explicit_cluster;\n\
                selp.u32 %r5, 1, 0, %c1;\nmad.lo.u32 %r6, %r0, 10, %r1;\nmad.lo.u32 %r6, %r6, 10, %r2;\n\
                mad.lo.u32 %r6, %r6, 10, %r3;\nmad.lo.u32 %r6, %r6, 10, %r4;\nmad.lo.u32 %r6, %r6, 10, %r5;\n\
                st.global.u32 [%q], %r6;";
    let output = passes(&kernel(2, body), 6, 32);
    for block in 0..6 {
        assert_eq!(output[block * 32] as usize, 203_021 + block / 2 * 10_000 + block % 2 * 100);
    }
}

#[test]
fn launches_must_fit_the_cluster() {
    let text = kernel(2, "");
    let (result, _) = run_as(&text, 3, 32, Completion::Latest);
    assert!(matches!(result, Err(LaunchError::ClusterShape { .. })), "{result:?}");
    let (result, _) = run_as(&kernel(9, ""), 9, 32, Completion::Latest);
    assert!(matches!(result, Err(LaunchError::Limit { .. })), "{result:?}");
}

#[test]
fn mbarriers_lie_in_shared_memory_and_are_initialised_by_their_own_block() {
    let outside = "cvta.shared.u64 %x0, s;\n@%c7 mbarrier.init.b64 [%x0+8192], 1;";
    fails(&kernel(1, outside), 1, 32, FindingKind::OutOfBounds);
    fails(&kernel(1, "@%c7 mbarrier.init.shared::cta.b64 [s+0x10000], 1;"), 1, 32, FindingKind::OutOfBounds);
    let remote = "cvta.shared.u64 %x0, m;\nmapa.u64 %x0, %x0, 1;\nsetp.eq.u32 %c0, %r15, 0;\n@%c0 mbarrier.init.b64 [%x0], 1;";
    fails(&kernel(2, remote), 2, 32, FindingKind::BarrierMisuse);
}

#[test]
fn a_drop_lowers_what_later_phases_expect_by_its_count() {
    let body = format!(
        "{}@%c7 mbarrier.arrive_drop.shared::cta.b64 _, [m], 3;\nbar.sync 0;\n@%c7 mbarrier.arrive.shared::cta.b64 _, [m];\n{}\
         @%c7 mbarrier.arrive.shared::cta.b64 _, [m];\n{}",
        init(4),
        wait("A", 0),
        wait("B", 1)
    );
    passes(&kernel(1, &body), 1, 32);
}

#[test]
fn relaxed_arrivals_pass_on_what_fences_released() {
    let relaxed = "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;\n";
    // The initialisation of an mbarrier behind its own fence, and ordinary writes behind a fence of the threads.
    let remote = "mov.b32 %r4, m;\nxor.b32 %r2, %k, 1;\nmapa.shared::cluster.u32 %r5, %r4, %r2;\n\
                  mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];\n";
    let init = |fence: &str| {
        format!("@%c7 mbarrier.init.shared::cta.b64 [m], 32;\n{fence}{relaxed}{remote}{}{SYNC}", wait("L", 0))
    };
    passes(&kernel(2, &init("fence.mbarrier_init.release.cluster;\n")), 2, 32);
    fails(&kernel(2, &init("")), 2, 32, FindingKind::SharedRace);
    let exchange = |fence: &str| {
        format!(
            "mov.b32 %r1, s;\nmad.lo.u32 %r1, %t, 4, %r1;\nst.shared.u32 [%r1], %t;\n{fence}{relaxed}xor.b32 %r2, %k, 1;\n\
             mapa.shared::cluster.u32 %r3, %r1, %r2;\nld.shared::cluster.u32 %r5, [%r3];\n{SYNC}"
        )
    };
    passes(&kernel(2, &exchange("fence.acq_rel.cluster;\n")), 2, 32);
    fails(&kernel(2, &exchange("")), 2, 32, FindingKind::SharedRace);
}
