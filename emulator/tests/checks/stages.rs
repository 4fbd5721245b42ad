//! Stages of shared memory that threads read or write before the copy engine overwrites them: what a proxy fence has to stand between.

use warpsmith_emulator::{
    Checks, Completion, Config, Finding, FindingKind, LaunchConfig, LaunchError, Machine, Report,
};

use crate::common::{finding, hopper_module};

/// Bytes of the stage.
const STAGE: u32 = 512;

pub(crate) const COPY: &str =
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%s], [%p], 512, [%full];";
pub(crate) const EXPECT: &str = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%full], 512;";
pub(crate) const FENCE: &str = "fence.proxy.async.shared::cta;";
pub(crate) const MEET: &str = "bar.warp.sync 0xffffffff;";
pub(crate) const ARRIVE: &str = "@%one mbarrier.arrive.shared::cta.b64 _, [%empty];";
pub(crate) const LOAD: &str = "ld.shared.u32 %r1, [%mine];";

/// A kernel with a stage at `%s`, that all threads see two mbarriers of: `%full` for one arrival, `%empty` for `readers` of them. `%mine` is
/// the lane's word of the stage, `%row` its 16 bytes; `%one` holds in the first lane of each warp, `%w` is the warp.
pub(crate) fn kernel(readers: u32, directives: &str, body: &str) -> String {
    format!(
        ".visible .entry test(.param .u64 p)\n{directives}\n{{\n.shared .align 128 .b8 stage[{STAGE}];\n\
         .shared .align 16 .b8 other[{STAGE}];\n.shared .align 8 .b8 bars[24];\n\
         .reg .b64 %p, %g, %x<4>;\n.reg .b32 %t, %w, %l, %s, %o, %full, %empty, %mine, %row, %r<16>;\n\
         .reg .b16 %h<2>;\n.reg .pred %one, %first, %c<4>;\n\
         ld.param.u64 %p, [p];\ncvta.to.global.u64 %p, %p;\nmov.u32 %t, %tid.x;\nshr.u32 %w, %t, 5;\nand.b32 %l, %t, 31;\n\
         setp.eq.u32 %one, %l, 0;\nsetp.eq.u32 %first, %t, 0;\nmov.u32 %s, stage;\nmov.u32 %o, other;\nmov.u32 %full, bars;\n\
         add.u32 %empty, %full, 8;\nmad.lo.u32 %mine, %l, 4, %s;\nmad.lo.u32 %row, %l, 16, %s;\n\
         @%first mbarrier.init.shared::cta.b64 [%full], 1;\n@%first mbarrier.init.shared::cta.b64 [%empty], {readers};\n\
         @%first fence.mbarrier_init.release.cluster;\nbar.sync 0;\n{body}\nret;\n}}\n"
    )
}

/// A wait for a phase of an mbarrier.
pub(crate) fn wait(name: &str, barrier: &str, parity: u32) -> String {
    format!(
        "{name}:\nmbarrier.try_wait.parity.shared::cta.b64 %c0, [{barrier}], {parity};\n@!%c0 bra {name};\n"
    )
}

/// A ring of one stage: the warp behind those of the readers fills it, and again when they have given it back; each reader executes `read`.
pub(crate) fn ring(readers: u32, read: &str, producer: &str) -> String {
    let body = format!(
        "setp.eq.u32 %c1, %w, {readers};\n@%c1 bra $PRODUCER;\n{}{read}\nret;\n\
         $PRODUCER:\n@!%one ret;\n{EXPECT}\n{COPY}\n{}{producer}{EXPECT}\n{COPY}\n{}",
        wait("$FULL", "%full", 0),
        wait("$EMPTY", "%empty", 0),
        wait("$AGAIN", "%full", 1),
    );
    kernel(readers, "", &body)
}

/// Runs a kernel on global memory of zeros.
fn run_with(machine: &Machine, text: &str, grid: u32, threads: u32) -> Result<Report, LaunchError> {
    let module = hopper_module(text);
    let p = machine.allocate(4096).unwrap();
    machine.fill(p, 0, 4096).unwrap();
    let config = LaunchConfig { grid: [grid, 1, 1], block: [threads, 1, 1], ..LaunchConfig::default() };
    machine.launch(&module, "test", &config, &[&p.to_le_bytes()])
}

/// What becomes of a kernel whenever copies land.
fn outcomes(text: &str, grid: u32, threads: u32) -> [Result<Report, LaunchError>; 3] {
    [Completion::Latest, Completion::Eager, Completion::Random].map(|completion| {
        let machine = Machine::new(Config { completion, ..Config::hopper() });
        run_with(&machine, text, grid, threads)
    })
}

fn passes_on(text: &str, grid: u32, threads: u32) {
    for result in outcomes(text, grid, threads) {
        result.unwrap_or_else(|error| panic!("{error}\n{text}"));
    }
}

fn passes(text: &str, threads: u32) {
    passes_on(text, 1, threads);
}

/// The finding for copies that land as late as they can; the others must be of the same kind.
fn fails_on(text: &str, grid: u32, threads: u32, kind: FindingKind) -> Finding {
    let [latest, eager, random] = outcomes(text, grid, threads).map(finding);
    for found in [&latest, &eager, &random] {
        assert_eq!(found.kind, kind, "{found}\n{text}");
    }
    latest
}

fn fails(text: &str, threads: u32) -> Finding {
    fails_on(text, 1, threads, FindingKind::UnfencedRead)
}

#[test]
fn a_stage_that_was_read_is_given_back_behind_a_fence() {
    let matrix = |count: &str, registers: &str| {
        format!("ldmatrix.sync.aligned.m8n8.{count}.shared.b16 {{{registers}}}, [%row];")
    };
    let reads = [
        LOAD.to_owned(),
        "ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%row];".to_owned(),
        "ld.shared.u8 %h0, [%mine+3];".to_owned(),
        "ld.volatile.shared.u32 %r1, [%mine];".to_owned(),
        "cvt.u64.u32 %x0, %mine;\ncvta.shared.u64 %x0, %x0;\nld.u32 %r1, [%x0];".to_owned(),
        "mapa.shared::cluster.u32 %r2, %mine, 0;\nld.shared::cluster.u32 %r1, [%r2];".to_owned(),
        matrix("x1", "%r1"),
        matrix("x4", "%r1, %r2, %r3, %r4"),
    ];
    for read in reads {
        let line = read.lines().last().unwrap();
        passes(&ring(1, &format!("{read}\n{FENCE}\n{MEET}\n{ARRIVE}"), ""), 64);
        passes(&ring(1, &format!("{read}\nfence.proxy.async;\n{MEET}\n{ARRIVE}"), ""), 64);
        let found = fails(&ring(1, &format!("{read}\n{MEET}\n{ARRIVE}"), ""), 64);
        assert_eq!((found.text.as_str(), found.warp, found.lanes), (COPY, 1, 1), "{found}");
        assert!(found.message.starts_with("a bulk copy overwrites shared memory at byte "), "{found}");
        assert!(
            found.message.contains("which warp 0 has read and given back without a proxy fence"),
            "{found}"
        );
        let related: Vec<_> = found.related.iter().map(|r| (r.message.as_str(), r.text.as_str())).collect();
        let arrival = ("the first arrival of warp 0 behind the read", ARRIVE);
        assert_eq!(related, [("the read by warp 0", line), arrival], "{found}");
        assert!(found.hint.as_ref().unwrap().contains("behind the read, before the arrival"), "{found}");
    }
}

#[test]
fn a_fence_before_the_read_does_not_count() {
    fails(&ring(1, &format!("{FENCE}\n{LOAD}\n{MEET}\n{ARRIVE}"), ""), 64);
    // Nor does one behind the arrival that the copy waits for.
    fails(&ring(1, &format!("{LOAD}\n{MEET}\n{ARRIVE}\n{FENCE}"), ""), 64);
    // Nor one of another kind.
    for other in ["fence.acq_rel.cta;", "fence.mbarrier_init.release.cluster;", "fence.proxy.alias;"] {
        fails(&ring(1, &format!("{LOAD}\n{other}\n{MEET}\n{ARRIVE}"), ""), 64);
    }
}

#[test]
fn each_warp_that_reads_a_stage_needs_its_fence() {
    let both = |other: &str| {
        format!(
            "{LOAD}\nsetp.eq.u32 %c2, %w, 1;\n@%c2 bra $FENCE;\n{other}\nbra $GO;\n$FENCE:\n{FENCE}\n$GO:\n{MEET}\n{ARRIVE}"
        )
    };
    passes(&ring(2, &both(FENCE), ""), 96);
    let found = fails(&ring(2, &both(""), ""), 96);
    assert_eq!(found.related[0].message, "the read by warp 0", "{found}");
    let found = fails(&ring(2, &both("").replace("%w, 1", "%w, 0"), ""), 96);
    assert_eq!(found.related[0].message, "the read by warp 1", "{found}");
}

#[test]
fn a_warp_that_reads_late_is_not_covered_by_its_own_fence_before() {
    // Both warps read and fence; then warp 1 reads again, while warp 0 does no more.
    let all = format!(
        "{LOAD}\n{FENCE}\nsetp.eq.u32 %c2, %w, 0;\n@%c2 bra $GO;\n{MEET}\n{LOAD}\n$GO:\n{MEET}\n{ARRIVE}"
    );
    let found = fails(&ring(2, &all, ""), 96);
    assert_eq!(found.related[0].message, "the read by warp 1", "{found}");
    passes(&ring(2, &all.replace("$GO:", &format!("{FENCE}\n$GO:")), ""), 96);
}

#[test]
fn a_fence_may_be_anyones_on_the_way() {
    // The producer's, behind its wait.
    passes(&ring(1, &format!("{LOAD}\n{MEET}\n{ARRIVE}"), &format!("{FENCE}\n")), 64);
    // A third warp's, which the reader has told and which gives back the stage.
    let text = |fence: &str| {
        ring(2, &format!("setp.eq.u32 %c2, %w, 1;\n@!%c2 {LOAD}\nbar.sync 1, 64;\n{fence}\n{ARRIVE}"), "")
    };
    passes(&text(&format!("@%c2 {FENCE}")), 96);
    fails(&text(""), 96);
    // What another warp fences that knows nothing of the read does not count.
    let found = fails(
        &ring(2, &format!("setp.eq.u32 %c2, %w, 1;\n@!%c2 {LOAD}\n@%c2 {FENCE}\n{MEET}\n{ARRIVE}"), ""),
        96,
    );
    assert_eq!(found.related[0].message, "the read by warp 0", "{found}");
}

#[test]
fn a_fence_counts_for_the_lanes_that_execute_it() {
    let reads = [
        LOAD,
        "ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%row];",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%row];",
    ];
    let low = "setp.lt.u32 %c2, %l, 16;\n";
    for read in reads {
        // All lanes have read, and only one or some fence.
        for (prepare, fence) in [("", format!("@%one {FENCE}")), (low, format!("@%c2 {FENCE}"))] {
            let text = ring(1, &format!("{prepare}{read}\n{fence}\n{MEET}\n{ARRIVE}"), "");
            let found = fails(&text, 64);
            assert_eq!(found.related[0].text, read, "{found}");
            assert!(found.hint.as_ref().unwrap().contains("counts for the lanes that execute it"), "{found}");
            // The others may do so in another place,
            let others = fence.replace("@%", "@!%");
            passes(&ring(1, &format!("{prepare}{read}\n{fence}\n{others}\n{MEET}\n{ARRIVE}"), ""), 64);
            // have done so before,
            passes(&ring(1, &format!("{prepare}{read}\n{FENCE}\n{fence}\n{MEET}\n{ARRIVE}"), ""), 64);
            // or tell those that fence what they have read.
            passes(&ring(1, &format!("{prepare}{read}\n{MEET}\n{fence}\n{MEET}\n{ARRIVE}"), ""), 64);
        }
    }
    // Lanes that have not read need none.
    passes(&ring(1, &format!("{low}@%c2 {LOAD}\n@%c2 {FENCE}\n{MEET}\n{ARRIVE}"), ""), 64);
    let found = fails(&ring(1, &format!("{low}@%c2 {LOAD}\n@!%c2 {FENCE}\n{MEET}\n{ARRIVE}"), ""), 64);
    assert_eq!(found.related[0].message, "the read by warp 0", "{found}");
}

#[test]
fn a_fence_counts_for_the_lanes_that_execute_it_behind_writes_too() {
    // The lanes write, and the first has the copy engine read what all have written.
    let text = |fences: &str| {
        let body = format!(
            "mov.u32 %r9, 0;\nst.shared.v4.u32 [%row], {{%r9, %r9, %r9, %r9}};\n{fences}\n@!%first ret;\n\
             cp.async.bulk.global.shared::cta.bulk_group [%p+1024], [%s], 512;\ncp.async.bulk.commit_group;\n\
             cp.async.bulk.wait_group 0;"
        );
        kernel(1, "", &body)
    };
    passes(&text(&format!("{FENCE}\n{MEET}")), 32);
    passes(&text(&format!("{MEET}\n@%one {FENCE}\n{MEET}")), 32);
    let found = fails_on(&text(&format!("@%one {FENCE}\n{MEET}")), 1, 32, FindingKind::ProxyFence);
    assert!(found.related[0].text.contains("st.shared.v4"), "{found}");
}

#[test]
fn a_fence_counts_for_the_memory_that_it_names() {
    let with = |fence: &str| ring(1, &format!("{LOAD}\n{fence}\n{MEET}\n{ARRIVE}"), "");
    for fence in
        ["fence.proxy.async;", "fence.proxy.async.shared::cta;", "fence.proxy.async.shared::cluster;"]
    {
        passes(&with(fence), 64);
    }
    let others = ["fence.proxy.async.global;", "fence.proxy.tensormap::generic.release.gpu;"];
    for fence in others {
        fails(&with(fence), 64);
        let write = with(fence).replace(LOAD, "st.shared.u32 [%mine], 7;");
        fails_on(&write, 1, 64, FindingKind::ProxyFence);
        // Nor behind the initialisation of an mbarrier.
        let text = ring(1, &format!("{LOAD}\n{FENCE}\n{MEET}\n{ARRIVE}"), "");
        let found = fails_on(
            &text.replace("@%first fence.mbarrier_init.release.cluster;", fence),
            1,
            64,
            FindingKind::ProxyFence,
        );
        assert_eq!(found.text, COPY, "{found}");
    }
    // The other way round: a copy of what was written to global memory.
    let global = |fence: &str| {
        let body = format!(
            "mul.wide.u32 %x1, %l, 16;\nadd.u64 %x1, %p, %x1;\nmov.u32 %r9, 0;\n\
             st.global.v4.u32 [%x1], {{%r9, %r9, %r9, %r9}};\n{fence}\n{MEET}\n@!%first ret;\n{EXPECT}\n{COPY}\n{}",
            wait("$FULL", "%full", 0),
        );
        kernel(1, "", &body)
    };
    for fence in ["fence.proxy.async;", "fence.proxy.async.global;"] {
        passes(&global(fence), 32);
    }
    let found = fails_on(&global(FENCE), 1, 32, FindingKind::ProxyFence);
    assert!(found.related[0].text.contains("st.global.v4"), "{found}");
}

/// PTX asks for a fence on the causality path from the read to the copy. The copying thread's own is on it once that thread has waited for
/// the readers, and not before.
#[test]
fn the_producer_may_fence_for_the_consumers_behind_its_wait() {
    let readers = format!("{LOAD}\n{MEET}\n{ARRIVE}");
    let producer = format!("{FENCE}\n");
    let text = ring(2, &readers, &producer);
    passes(&text, 96);
    // In front of the wait, it knows of no reads.
    let wait = wait("$EMPTY", "%empty", 0);
    let early = text.replace(&format!("{wait}{producer}"), &format!("{producer}{wait}"));
    assert_ne!(early, text);
    fails(&early, 96);
    // For the memory that is copied to, as ever.
    fails(&ring(2, &readers, "fence.proxy.async.global;\n"), 96);
    // Behind the copy is too late.
    fails(&ring(2, &readers, &format!("{EXPECT}\n{COPY}\n{FENCE}\nret;\n")), 96);
}

#[test]
fn program_order_is_no_proxy_fence() {
    let text = |between: &str| {
        let fill = format!("@%first {EXPECT}\n@%first {COPY}\n");
        let body = format!(
            "{fill}{}{LOAD}\n{between}\n{fill}{}",
            wait("$FULL", "%full", 0),
            wait("$AGAIN", "%full", 1)
        );
        kernel(1, "", &body)
    };
    passes(&text(&format!("{FENCE}\n{MEET}")), 32);
    passes(&text(&format!("{MEET}\n@%first {FENCE}")), 32);
    let found = fails(&text(MEET), 32);
    assert_eq!(found.related.len(), 1, "{found}");
    assert!(found.hint.as_ref().unwrap().contains("before the copy"), "{found}");
    // By a barrier of the block, too.
    let block = fails(&text("bar.sync 0;"), 64);
    assert_eq!(block.related.len(), 1, "{block}");
    passes(&text(&format!("{FENCE}\nbar.sync 0;")), 64);
}

#[test]
fn writes_need_a_fence_before_a_copy_overwrites_them() {
    for write in [
        "st.shared.u32 [%mine], 7;",
        "atom.shared.add.u32 %r1, [%mine], 7;",
        "red.shared.add.u32 [%mine], 7;",
    ] {
        passes(&ring(1, &format!("{write}\n{FENCE}\n{MEET}\n{ARRIVE}"), ""), 64);
        let found =
            fails_on(&ring(1, &format!("{write}\n{MEET}\n{ARRIVE}"), ""), 1, 64, FindingKind::ProxyFence);
        assert_eq!((found.text.as_str(), found.related[0].text.as_str()), (COPY, write), "{found}");
    }
    // A write behind a read does not hide the read.
    let half = format!("{LOAD}\nsetp.lt.u32 %c2, %l, 2;\n@%c2 st.shared.u32 [%mine], 7;");
    passes(&ring(1, &format!("{half}\n{FENCE}\n{MEET}\n{ARRIVE}"), ""), 64);
    fails_on(&ring(1, &format!("{half}\n{MEET}\n{ARRIVE}"), ""), 1, 64, FindingKind::ProxyFence);
}

/// A pair of blocks, of which block 0 fills the stages of both at once, twice; each block reads its own stage, and gives it back to block 0.
fn multicast(fence: &str) -> String {
    let copy = COPY.replace("::bytes [", "::bytes.multicast::cluster [").replace("[%full];", "[%full], 3;");
    let body = format!(
        "mov.u32 %r5, %cluster_ctarank;\nsetp.eq.u32 %c3, %r5, 0;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n\
         mapa.shared::cluster.u32 %r6, %empty, 0;\nsetp.eq.u32 %c1, %w, 1;\n@%c1 bra $PRODUCER;\n{}{LOAD}\n{fence}\n{MEET}\n\
         @%one mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];\nbra $END;\n\
         $PRODUCER:\n@!%one bra $END;\n{EXPECT}\n@!%c3 bra $LAST;\n{copy}\n{}$LAST:\n{}{EXPECT}\n@!%c3 bra $OVER;\n{copy}\n$OVER:\n{}\
         $END:\n{MEET}\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
        wait("$FULL", "%full", 0),
        wait("$EMPTY", "%empty", 0),
        wait("$FIRST", "%full", 0),
        wait("$AGAIN", "%full", 1),
    );
    kernel(2, ".reqnctapercluster 2", &body)
}

#[test]
fn a_copy_to_several_blocks_needs_the_fences_of_all_their_readers() {
    let some = |rank: u32| format!("setp.ne.u32 %c2, %r5, {rank};\n@%c2 {FENCE}");
    passes_on(&multicast(FENCE), 2, 64);
    for rank in [0, 1] {
        let found = fails_on(&multicast(&some(rank)), 2, 64, FindingKind::UnfencedRead);
        let party = format!("the read by warp 0 of the cluster's block {rank}");
        assert_eq!((found.block, found.related[0].message.as_str()), ([0; 3], party.as_str()), "{found}");
        assert!(found.related[1].text.contains("mbarrier.arrive.release.cluster"), "{found}");
    }
}

#[test]
fn reads_by_another_block_count() {
    // Block 1 reads what block 0 then refills.
    let text = |fence: &str| {
        let body = format!(
            "mov.u32 %r5, %cluster_ctarank;\nsetp.eq.u32 %c3, %r5, 0;\n@!%c3 bra $READ;\n@%first {EXPECT}\n@%first {COPY}\n{}\
             barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\nbarrier.cluster.arrive.aligned;\n\
             barrier.cluster.wait.aligned;\n@%first {EXPECT}\n@%first {COPY}\n{}ret;\n\
             $READ:\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\nmapa.shared::cluster.u32 %r6, %mine, 0;\n\
             ld.shared::cluster.u32 %r7, [%r6];\n{fence}\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
            wait("$FULL", "%full", 0),
            wait("$AGAIN", "%full", 1),
        );
        kernel(1, ".reqnctapercluster 2", &body)
    };
    passes_on(&text("fence.proxy.async;"), 2, 32);
    let found = fails_on(&text(""), 2, 32, FindingKind::UnfencedRead);
    assert_eq!(found.related[0].message, "the read by warp 0 of the cluster's block 1", "{found}");
}

#[test]
fn a_copy_between_blocks_overwrites_reads_too() {
    // Block 0 copies to block 1 what that has read before.
    let text = |fence: &str| {
        let body = format!(
            "mov.u32 %r5, %cluster_ctarank;\nsetp.eq.u32 %c3, %r5, 0;\nmad.lo.u32 %r8, %l, 16, %o;\nmov.u32 %r9, 0;\n\
             st.shared.v4.u32 [%row], {{%r9, %r9, %r9, %r9}};\nst.shared.v4.u32 [%r8], {{%r9, %r9, %r9, %r9}};\n\
             {FENCE}\n{MEET}\n@!%c3 {LOAD}\n{fence}\nsetp.eq.and.u32 %c2, %t, 0, %c3;\n\
             setp.eq.and.u32 %c1, %t, 0, !%c3;\n@%c1 {EXPECT}\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n\
             mapa.shared::cluster.u32 %r6, %s, 1;\nmapa.shared::cluster.u32 %r7, %full, 1;\n@%c2 \
             cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r6], [%o], 512, [%r7];\n@%c3 bra $END;\n{}\
             $END:\n{MEET}\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
            wait("$FULL", "%full", 0),
        );
        kernel(1, ".reqnctapercluster 2", &body)
    };
    passes_on(&text(FENCE), 2, 32);
    let found = fails_on(&text(""), 2, 32, FindingKind::UnfencedRead);
    assert_eq!(found.related[0].message, "the read by warp 0 of the cluster's block 1", "{found}");
    assert!(found.text.contains("cp.async.bulk.shared::cluster.shared::cta"), "{found}");
}

#[test]
fn what_the_copy_engine_reads_needs_no_fence_before_it_overwrites_that() {
    let body = format!(
        "mov.u32 %r9, 0;\nst.shared.v4.u32 [%row], {{%r9, %r9, %r9, %r9}};\n{FENCE}\n{MEET}\n@!%first ret;\n\
         cp.async.bulk.global.shared::cta.bulk_group [%p+1024], [%s], 512;\ncp.async.bulk.commit_group;\n\
         cp.async.bulk.wait_group.read 0;\n{EXPECT}\n{COPY}\n{}cp.async.bulk.wait_group 0;",
        wait("$FULL", "%full", 0),
    );
    passes(&kernel(1, "", &body), 32);
}

#[test]
fn a_read_of_bytes_that_no_copy_refills_needs_no_fence() {
    let other = "mad.lo.u32 %r8, %l, 4, %o;\nst.shared.u32 [%r8], 1;\nld.shared.u32 %r1, [%r8];";
    passes(&ring(1, &format!("{other}\n{MEET}\n{ARRIVE}"), ""), 64);
}

#[test]
fn a_fence_that_is_missing_is_not_asked_for_with_the_check_off() {
    let text = ring(1, &format!("{LOAD}\n{MEET}\n{ARRIVE}"), "");
    let checks = Checks { asynchronous: false, ..Checks::default() };
    let machine = Machine::new(Config { checks, ..Config::hopper() });
    run_with(&machine, &text, 1, 64).unwrap_or_else(|error| panic!("{error}"));
}
