//! What is found in kernels that use `wgmma` wrongly, and that nothing is in those that use it rightly.

use warpsmith_emulator::{Completion, Config, Finding, FindingKind, LaunchError, Machine};

use crate::common::{launch, parse};

const MODES: [Completion; 3] = [Completion::Eager, Completion::Latest, Completion::Random];

/// Makes the shared memory ready: 4 KiB of ones, which matrices without a swizzle are read from.
const READY: &str = "
    mov.u32 %s, image;
    mad.lo.u32 %s, %t, 16, %s;
    st.shared.v4.u32 [%s], {%one, %one, %one, %one};
    st.shared.v4.u32 [%s+2048], {%one, %one, %one, %one};
    fence.proxy.async;
    bar.sync 0, 128;
";
const FENCE: &str = "wgmma.fence.sync.aligned;\n";
const COMMIT: &str = "wgmma.commit_group.sync.aligned;\n";
const ZERO: &str = "mov.b32 %d0, 0; mov.b32 %d1, 0; mov.b32 %d2, 0; mov.b32 %d3, 0;\n";
const STORE: &str = "st.global.v4.b32 [%out], {%d0, %d1, %d2, %d3};\n";
const D: &str = "{%d0, %d1, %d2, %d3}";

fn wait(groups: u32) -> String {
    format!("wgmma.wait_group.sync.aligned {groups};\n")
}

/// A product of `k` = 16 with the usual descriptors, to some registers.
fn multiply(to: &str) -> String {
    format!("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {to}, %da, %db, 1, 1, 1, 0, 0;\n")
}

fn run(completion: Completion, threads: u32, parts: &[&str]) -> Result<Vec<f32>, Box<Finding>> {
    let text = format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry test(.param .u64 p_out)\n{{\n\
         .reg .pred %p, %q; .reg .b32 %t, %w, %s, %x, %y, %one, %d<4>, %e<8>, %a<4>; .reg .b64 %da, %db, %out;\n\
         .shared .align 1024 .b8 image[4096];\n.shared .align 8 .b8 other[64];\n\
         ld.param.u64 %out, [p_out];\nmov.u32 %t, %tid.x;\nshr.u32 %w, %t, 5;\nmov.b32 %one, 0x3c003c00;\n\
         mad.wide.u32 %out, %t, 16, %out;\nmov.u32 %s, image;\nshr.u32 %s, %s, 4;\ncvt.u64.u32 %da, %s;\n\
         or.b64 %da, %da, {:#x};\nadd.u64 %db, %da, 128;\n{}\nret;\n}}\n",
        8u64 << 16 | 16 << 32,
        parts.concat()
    );
    let module = parse("test.ptx", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let machine =
        Machine::new(Config { compute_capability: (9, 0), completion, seed: 3, ..Config::default() });
    let out = machine.allocate(16 * 256).unwrap();
    machine.fill(out, 0, 16 * 256).unwrap();
    match launch(&machine, &module, 1, threads, 0, &[out]) {
        Ok(_) => {}
        Err(LaunchError::Finding(finding)) => return Err(finding),
        Err(error) => panic!("{error}\n{text}"),
    }
    let mut bytes = vec![0; 16 * 256];
    machine.read(out, &mut bytes).unwrap();
    Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

/// The finding that every mode gives, and that its message has some words.
fn found(threads: u32, parts: &[&str], kind: FindingKind, words: &str) {
    for mode in MODES {
        let finding = run(mode, threads, parts).expect_err("the kernel is wrong");
        assert_eq!(finding.kind, kind, "{mode:?}: {finding}");
        assert!(finding.message.contains(words), "{mode:?}: {finding}");
    }
}

fn right(threads: u32, parts: &[&str]) -> Vec<f32> {
    let all = MODES.map(|mode| run(mode, threads, parts).unwrap_or_else(|finding| panic!("{finding}")));
    assert!(all[0] == all[1] && all[0] == all[2], "the modes differ");
    all.into_iter().next().unwrap()
}

#[test]
fn chains_of_products_add_up_alike_in_every_mode() {
    let once = multiply(D);
    let sums = right(128, &[READY, ZERO, FENCE, &once, &once, COMMIT, &once, COMMIT, &wait(0), STORE]);
    assert_eq!(sums[..512], [48.0; 512]);
    assert_eq!(sums[512..], [0.0; 512]);
}

#[test]
fn groups_are_waited_for_in_their_order() {
    let other = "{%e0, %e1, %e2, %e3}";
    let start = [READY, ZERO, "mov.b32 %e0, 0; mov.b32 %e1, 0; mov.b32 %e2, 0; mov.b32 %e3, 0;\n", FENCE];
    let products = [&multiply(D), COMMIT, &multiply(other), COMMIT, &wait(1)];
    let read_second = "st.global.v4.b32 [%out], {%e0, %e1, %e2, %e3};\n";
    let early = [&start.concat(), &products.concat(), STORE, &wait(0)];
    assert_eq!(right(128, &early)[..512], [16.0; 512]);
    let late = [&start.concat(), &products.concat(), read_second];
    found(128, &late, FindingKind::AsynchronousProduct, "was not waited for");
}

#[test]
fn a_product_without_a_fence_is_found() {
    let kind = FindingKind::AsynchronousProduct;
    let once = multiply(D);
    found(128, &[READY, ZERO, &once, COMMIT, &wait(0), STORE], kind, "the first `wgmma` of a warp");
    let touched = "touched after the last `wgmma.fence`";
    found(128, &[READY, FENCE, ZERO, &once, COMMIT, &wait(0), STORE], kind, touched);
    // Reading the sums between two products counts as well.
    let read = "add.f32 %x, %d0, %d1;\n";
    found(128, &[READY, ZERO, FENCE, &once, COMMIT, &wait(0), read, &once, COMMIT, &wait(0)], kind, touched);
    let fenced = [READY, ZERO, FENCE, &once, COMMIT, &wait(0), read, FENCE, &once, COMMIT, &wait(0), STORE];
    assert_eq!(right(128, &fenced)[..512], [32.0; 512]);
}

#[test]
fn sums_that_are_touched_too_early_are_found() {
    let kind = FindingKind::AsynchronousProduct;
    let once = multiply(D);
    let early = "is a sum of a matrix product which was not waited for";
    found(128, &[READY, ZERO, FENCE, &once, COMMIT, STORE], kind, early);
    found(128, &[READY, ZERO, FENCE, &once, COMMIT, "mov.b32 %d2, 0;\n", &wait(0)], kind, early);
    // A wait waits for what was committed only.
    found(128, &[READY, ZERO, FENCE, &once, &wait(0), STORE], kind, early);
    // Who never reads them need not wait.
    right(128, &[READY, ZERO, FENCE, &once, COMMIT]);
}

#[test]
fn registers_of_a_are_in_use_until_the_wait() {
    let a = "mov.b32 %a0, %one; mov.b32 %a1, %one; mov.b32 %a2, %one; mov.b32 %a3, %one;\n";
    let once = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, {%a0, %a1, %a2, %a3}, %db, \
                1, 1, 1, 0;\n";
    let start = [READY, ZERO, a, FENCE, once, once, COMMIT].concat();
    let rest = [&start, "mov.b32 %a3, 0;\n"];
    found(128, &rest, FindingKind::AsynchronousProduct, "holds A of");
    // Registers that are not the product's may be used, although A is read by nobody else from here on.
    let work = "mov.b32 %e0, 5; mov.b32 %e1, 6; add.u32 %e2, %e0, %e1; add.u32 %e3, %e2, %e1;\n";
    let rest = [&start, work, &wait(0), STORE];
    assert_eq!(right(128, &rest)[..512], [32.0; 512]);
}

#[test]
fn sums_go_to_products_of_the_same_shape_only() {
    let wide = "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%d0, %d1, %d2, %d3, %e0, %e1, %e2, %e3}, %da, %db, \
                0, 1, 1, 0, 0;\n";
    let parts = [READY, ZERO, FENCE, &multiply(D), wide, COMMIT, &wait(0)];
    found(128, &parts, FindingKind::AsynchronousProduct, "of another shape");
    let fragment = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%e0, %e1, %e2, %e3}, {%d0, %d1, %d2, %d3}, %db, \
                    0, 1, 1, 0;\n";
    let parts = [READY, ZERO, FENCE, &multiply(D), fragment, COMMIT, &wait(0)];
    found(128, &parts, FindingKind::AsynchronousProduct, "takes as A the sums");
}

#[test]
fn all_warps_of_a_warpgroup_execute_the_same_product() {
    let kind = FindingKind::WarpgroupMisuse;
    let tail = [FENCE, &multiply(D), COMMIT, &wait(0), STORE].concat();
    let other = "setp.eq.u32 %p, %w, 2;\n@%p add.u64 %db, %db, 8;\n";
    found(128, &[READY, ZERO, other, &tail], kind, "another descriptor of B");
    let exits = "setp.eq.u32 %p, %w, 3;\n@%p ret;\n";
    found(128, &[READY, ZERO, exits, &tail], kind, "warp 3 exits without executing");
    let first = "setp.eq.u32 %p, %w, 0;\n@%p ret;\n";
    found(128, &[READY, ZERO, first, &tail], kind, "warp 0 exits without executing");
    found(96, &[ZERO, &tail], kind, "needs a warpgroup of 4 warps");
    let branches = "setp.eq.u32 %p, %w, 1;\n@%p bra ELSE;\n";
    let two = [FENCE, &multiply(D), "bra JOIN;\nELSE:\n", FENCE, &multiply(D), "JOIN:\n"].concat();
    found(128, &[READY, ZERO, branches, &two, COMMIT, &wait(0)], kind, "another `wgmma`");
}

#[test]
fn a_warp_must_be_whole() {
    let tail = [FENCE, &multiply(D), COMMIT, &wait(0)].concat();
    let part = "setp.eq.u32 %p, %t, 37;\n@%p ret;\n";
    found(128, &[READY, ZERO, part, &tail], FindingKind::Divergence, "all 32 lanes");
    let differs = "mul.wide.u32 %da, %t, 1;\n";
    found(
        128,
        &[READY, ZERO, differs, &tail],
        FindingKind::Divergence,
        "the descriptor of A is not the same",
    );
}

#[test]
fn wrong_descriptors_are_found() {
    let tail = [FENCE, &multiply(D), COMMIT, &wait(0)].concat();
    let reserved = "or.b64 %db, %db, 0x4000;\n";
    found(128, &[READY, ZERO, reserved, &tail], FindingKind::WarpgroupMisuse, "must be zeros");
    let outside = "or.b64 %db, %db, 0x2000;\n";
    found(128, &[READY, ZERO, outside, &tail], FindingKind::OutOfBounds, "reads B at offset 0x2");
}

#[test]
fn writes_that_the_matrix_unit_does_not_see_are_found() {
    let tail = [FENCE, &multiply(D), COMMIT, &wait(0)].concat();
    let unfenced = READY.replace("fence.proxy.async;", "");
    found(128, &[&unfenced, ZERO, &tail], FindingKind::ProxyFence, "not visible");
    let unordered = READY.replace("bar.sync 0, 128;", "");
    // Which of the two comes first is open: the write meets the product, or the product the write.
    for mode in MODES {
        let finding = run(mode, 128, &[&unordered, ZERO, &tail]).expect_err("the kernel is wrong");
        let kinds = [FindingKind::SharedRace, FindingKind::AsynchronousCopy];
        assert!(kinds.contains(&finding.kind), "{mode:?}: {finding}");
    }
}

#[test]
fn writes_to_what_a_product_reads_are_found_until_the_wait() {
    let write = "mov.u32 %s, image;\nst.shared.u32 [%s+2048], %one;\n";
    let early = [READY, ZERO, FENCE, &multiply(D), COMMIT, write, &wait(0)];
    for mode in MODES {
        let finding = run(mode, 128, &early).expect_err("the write is too early");
        assert!(finding.line > 0 && finding.message.contains("shared memory"), "{finding}");
    }
    let late = [READY, ZERO, FENCE, &multiply(D), COMMIT, &wait(0), "bar.sync 0, 128;\n", STORE].concat();
    let one = "setp.eq.u32 %p, %t, 0;\nmov.u32 %s, image;\n@%p st.shared.u32 [%s+2048], %one;\n";
    right(128, &[&late, one]);
}

#[test]
fn one_warps_wait_is_for_the_reads_of_all_four() {
    // Warp 0 tells a fifth warp, which is in no whole warpgroup, that the memory is free.
    let start = "setp.ge.u32 %q, %w, 4;\n@%q bra WRITER;\n";
    let tell = "setp.eq.u32 %p, %w, 0;\n@%p bar.arrive 1, 64;\nbra END;\nWRITER:\nbar.sync 1, 64;\nmov.u32 %s, image;\n\
                st.shared.u32 [%s+2048], %one;\nbra END;\nEND:\n";
    let writer = tell.replace("st.shared.u32", "setp.eq.u32 %p, %t, 128;\n@%p st.shared.u32");
    let product = [ZERO, FENCE, &multiply(D), COMMIT, &wait(0), STORE].concat();
    let sums = right(160, &[start, READY, &product, &writer]);
    assert_eq!(sums[..512], [16.0; 512]);
    // Without the wait, it is not free.
    let product = [ZERO, FENCE, &multiply(D), COMMIT].concat();
    assert!(run(Completion::Latest, 160, &[start, READY, &product, &writer]).is_err());
}

#[test]
fn memory_that_nothing_wrote_is_found_where_a_result_of_it_is_stored() {
    let half = READY.replace("st.shared.v4.u32 [%s+2048], {%one, %one, %one, %one};", "");
    let product = [ZERO, FENCE, &multiply(D), COMMIT, &wait(0)].concat();
    right(128, &[&half, &product]);
    found(128, &[&half, &product, STORE], FindingKind::Uninitialised, "nothing wrote");
    // A fresh product does not ask for the old sums.
    let fresh = multiply(D).replace("%db, 1,", "%db, 0,");
    assert_eq!(right(128, &[READY, FENCE, &fresh, COMMIT, &wait(0), STORE])[..512], [16.0; 512]);
    found(
        128,
        &[READY, FENCE, &multiply(D), COMMIT, &wait(0), STORE],
        FindingKind::Uninitialised,
        "nothing wrote",
    );
}

#[test]
fn a_warpgroup_that_waits_for_one_of_its_warps_is_reported() {
    let stuck = "setp.eq.u32 %p, %w, 3;\n@%p bar.sync 5, 64;\n";
    let parts = [READY, ZERO, FENCE, stuck, &multiply(D), COMMIT, &wait(0), STORE];
    found(128, &parts, FindingKind::BarrierDeadlock, "to execute the same `wgmma`");
}

#[test]
fn operands_may_be_constants_and_results_unwanted() {
    let sums = "{%d0, _, %d2, _}";
    let once = format!(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {sums}, {{0x3c003c00, %one, %one, %one}}, %db, 0, -1, 1, 1;\n"
    );
    let parts = [READY, ZERO, FENCE, &once, COMMIT, &wait(0), STORE];
    let all = right(128, &parts);
    for thread in all[..512].as_chunks::<4>().0 {
        assert_eq!(*thread, [-16.0, 0.0, -16.0, 0.0]);
    }
}

#[test]
fn a_warp_does_not_run_ahead_without_bounds() {
    // Three hundred products, of which none is waited for until the end.
    let start = [READY, ZERO, FENCE, "mov.u32 %x, 0;\nLOOP:\n"].concat();
    let end =
        [COMMIT, "add.u32 %x, %x, 1;\nsetp.lt.u32 %p, %x, 300;\n@%p bra LOOP;\n", &wait(0), STORE].concat();
    let sums = right(128, &[&start, &multiply(D), &end]);
    assert_eq!(sums[..512], [4800.0; 512]);
}

#[test]
fn a_product_is_no_proxy_fence() {
    // All warps read what a copy then overwrites. They have waited for a product in between, which orders them, but no more.
    let start = "setp.eq.u32 %p, %t, 0;\nmov.u32 %x, other;\n@%p mbarrier.init.shared::cta.b64 [%x], 1;\n\
                 @%p fence.mbarrier_init.release.cluster;\nbar.sync 0, 128;\n";
    let read = "mov.u32 %y, image;\nmad.lo.u32 %y, %t, 4, %y;\nld.shared.u32 %y, [%y];\n";
    let product = [ZERO, FENCE, &multiply(D), COMMIT, &wait(0)].concat();
    let copy = "bar.sync 0, 128;\nmov.u32 %s, image;\n@%p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%x], 512;\n\
                @%p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%s], [%out], 512, [%x];\n\
                WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 %q, [%x], 0;\n@!%q bra WAIT;\n";
    // What only the product has read needs no fence.
    right(128, &[READY, start, &product, copy]);
    found(128, &[READY, start, read, &product, copy], FindingKind::UnfencedRead, "overwrites shared memory");
    right(128, &[READY, start, read, &product, "fence.proxy.async;\n", copy]);
}
