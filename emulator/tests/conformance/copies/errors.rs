//! What is reported of kernels that use the copy engine wrongly.

use warpsmith_emulator::{
    Checks, Config, Finding, FindingKind, LaunchConfig, Machine, OobFill, Swizzle, TensorType,
};

use super::{INIT, MAP, Shape, WAIT, finding, kernel, machines, memory, noise, run, threads};

const MATRIX: Shape<'static> = Shape {
    data_type: TensorType::F32,
    dims: &[32, 32],
    strides: &[128],
    box_dims: &[16, 8],
    element_strides: &[1, 1],
    swizzle: Swizzle::None,
    oob_fill: OobFill::Zeros,
};

/// The finding of a kernel in which thread 0 runs `body`, with `%map` the map of a tensor and `%p` its memory, which may be
/// larger or smaller than the tensor.
fn found_with(machine: &Machine, shape: &Shape<'_>, bytes: u64, body: &str) -> Finding {
    let body = format!("ld.param.u64 %p, [p];\n{MAP}{INIT}@!%one bra $END;\n{body}\n$END:");
    let module = kernel(".param .align 64 .b8 map[128], .param .u64 p", "", 1024, &body);
    let tensor = memory(machine, &noise(bytes));
    let map = shape.map(tensor);
    finding(run(machine, &module, threads(32), &[map.as_bytes(), &tensor.to_le_bytes()]))
}

/// The same in every mode, which must find the same.
fn found(body: &str, kind: FindingKind, part: &str) {
    for machine in machines() {
        let found = found_with(&machine, &MATRIX, MATRIX.bytes(), body);
        assert_eq!(found.kind, kind, "{found}");
        assert!(found.message.contains(part), "{found}");
        assert_eq!(found.lanes, 1, "{found}");
    }
}

const LOAD: &str = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes";
const STORE: &str = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group";
const RANGE: &str = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes";

#[test]
fn bytes_that_are_no_map_are_named() {
    let load = |map: &str| format!("{LOAD} [%tile], [{map}, {{0, 0}}], [%bar];");
    found(&load("%p"), FindingKind::TensorMap, "byte 0 of argument 2, `p`");
    found(&load("%map+64"), FindingKind::TensorMap, "byte 64 of the parameters");
    found(&load("%map+8"), FindingKind::Misaligned, "not a multiple of 64");
    found(&load("%p+4096"), FindingKind::OutOfBounds, "0 bytes past the end of argument 2, `p`");
    found(
        "cvt.u64.u32 %x0, %tile;\ncvta.shared.u64 %x0, %x0;\nprefetch.tensormap [%x0];",
        FindingKind::TensorMap,
        "shared memory",
    );
    let one = LOAD.replace("2d", "1d");
    found(
        &format!("{one} [%tile], [%map, {{0}}], [%bar];"),
        FindingKind::TensorMap,
        "1 axes with a tensor map of 2",
    );
    found(
        "cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%map, {0, 0, 0}];",
        FindingKind::TensorMap,
        "3 axes with a tensor map of 2",
    );
}

#[test]
fn addresses_and_sizes_must_be_aligned() {
    let cases = [
        (format!("{LOAD} [%tile+64], [%map, {{0, 0}}], [%bar];"), "a multiple of 128"),
        (format!("{LOAD} [%tile], [%map, {{0, 0}}], [%bar+4];"), "a multiple of 8"),
        (format!("{STORE} [%map, {{0, 0}}], [%tile+16];"), "a multiple of 128"),
        (format!("{RANGE} [%tile+8], [%p], 16, [%bar];"), "a multiple of 16"),
        (format!("{RANGE} [%tile], [%p+4], 16, [%bar];"), "a multiple of 16"),
        (format!("{RANGE} [%tile], [%p], 20, [%bar];"), "20 bytes, which is not a multiple of 16"),
    ];
    for (body, part) in cases {
        found(&body, FindingKind::Misaligned, part);
    }
}

#[test]
fn copies_must_lie_in_memory() {
    found(
        &format!("{LOAD} [%tile+640], [%map, {{0, 0}}], [%bar];"),
        FindingKind::OutOfBounds,
        "0 bytes past the end of `",
    );
    found(&format!("{RANGE} [%tile+1024], [%p], 32, [%bar];"), FindingKind::OutOfBounds, "shared memory");
    found(
        &format!("{RANGE} [%tile], [%p+4080], 32, [%bar];"),
        FindingKind::OutOfBounds,
        "past the end of argument 2, `p`",
    );
    found(&format!("{STORE} [%map, {{-8, 0}}], [%tile];"), FindingKind::OutOfBounds, "begins at [-8, 0]");
    // The map promises more than there is.
    let machine = machines().next().unwrap();
    let found = found_with(
        &machine,
        &MATRIX,
        MATRIX.bytes() - 128,
        &format!("{LOAD} [%tile], [%map, {{16, 24}}], [%bar];"),
    );
    assert_eq!(found.kind, FindingKind::OutOfBounds, "{found}");
    assert!(found.message.contains("box of [16, 8] elements at [16, 24] of a tensor of [32, 32]"), "{found}");
}

#[test]
fn copies_of_global_memory_come_after_the_wait_for_other_grids() {
    let arrive = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 512;";
    let finish = "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;";
    let reduce =
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%map, {0, 0}], [%tile];";
    let fill = format!("{arrive}\n{LOAD} [%tile], [%map, {{16, 8}}], [%bar];\n{WAIT}");
    let tests = [
        ("a tensor load", format!("{arrive}\n{LOAD} [%tile], [%map, {{0, 0}}], [%bar];\n{WAIT}"), ""),
        ("a tensor store", format!("{STORE} [%map, {{0, 0}}], [%tile];\n{finish}"), &*fill),
        ("a tensor reduction", format!("{reduce}\n{finish}"), &fill),
        ("a bulk copy", format!("{arrive}\n{RANGE} [%tile], [%p], 512, [%bar];\n{WAIT}"), ""),
        (
            "a bulk copy",
            format!("cp.async.bulk.global.shared::cta.bulk_group [%p], [%tile], 512;\n{finish}"),
            &fill,
        ),
        (
            "a bulk reduction",
            format!(
                "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%p], [%tile], 512;\n{finish}"
            ),
            &fill,
        ),
    ];
    // Prefetches bring nothing that anybody sees.
    let prefetch = "cp.async.bulk.prefetch.L2.global [%p], 512;\nprefetch.tensormap [%map];\n\
                    cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%map, {0, 0}];";
    for (what, copy, before) in tests {
        found(&format!("{copy}\ngriddepcontrol.wait;"), FindingKind::GridDependency, &format!("{what} of "));
        let body = format!(
            "{MAP}ld.param.u64 %p, [p];\n{INIT}@!%one bra $END;\n{prefetch}\ngriddepcontrol.wait;\n{before}\n{copy}\n$END:"
        );
        let module = kernel(".param .align 64 .b8 map[128], .param .u64 p", "", 1024, &body);
        for machine in machines() {
            let tensor = memory(&machine, &noise(MATRIX.bytes()));
            let map = MATRIX.map(tensor);
            run(&machine, &module, threads(32), &[map.as_bytes(), &tensor.to_le_bytes()])
                .unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
}

#[test]
fn a_barrier_must_be_where_the_copy_goes() {
    found(
        &format!("{LOAD} [%tile], [%map, {{0, 0}}], [%bar+8];"),
        FindingKind::BarrierMisuse,
        "no mbarrier at byte 8 of `bars`",
    );
    let cluster = |body: &str| {
        let body = format!(
            "ld.param.u64 %p, [p];\n{INIT}barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n\
             mapa.shared::cluster.u32 %r6, %tile, 1;\nmapa.shared::cluster.u32 %r7, %bar, 1;\nmov.u16 %h0, 4;\n\
             mov.u32 %r5, %cluster_ctarank;\nsetp.ne.u32 %c2, %r5, 0;\n@%c2 bra $END;\n\
             @!%one bra $END;\n{body}\n$END:\nbarrier.cluster.arrive;\nbarrier.cluster.wait;"
        );
        let module = kernel(".param .u64 p", ".explicitcluster\n.reqnctapercluster 2, 1, 1", 1024, &body);
        let machine = machines().next().unwrap();
        let memory = memory(&machine, &noise(1024));
        let launch = LaunchConfig { grid: [2, 1, 1], cluster: [2, 1, 1], ..threads(32) };
        finding(run(&machine, &module, launch, &[&memory.to_le_bytes()]))
    };
    let found = cluster(&format!("{RANGE} [%r6], [%p], 16, [%bar];"));
    assert!(found.message.contains("block 1 of the cluster tells an mbarrier of block 0"), "{found}");
    let own = RANGE.replace("shared::cluster", "shared::cta");
    let found = cluster(&format!("{own} [%r6], [%p], 16, [%r7];"));
    assert!(found.message.contains("to `.shared::cta`, but the address is in block 1"), "{found}");
    let found = cluster(&format!("{RANGE}.multicast::cluster [%tile], [%p], 16, [%bar], %h0;"));
    assert!(found.message.contains("to block 2 of a cluster of 2"), "{found}");
    let found = cluster("cp.async.bulk.global.shared::cta.bulk_group [%p], [%r6], 16;");
    assert!(found.message.contains("from `.shared::cta`, but the address is in block 1"), "{found}");
}

#[test]
fn elements_that_have_no_such_operation_are_not_reduced() {
    let reduce = |op: &str| {
        format!(
            "cp.reduce.async.bulk.tensor.2d.global.shared::cta.{op}.tile.bulk_group [%map, {{0, 0}}], [%tile];"
        )
    };
    found(&reduce("min"), FindingKind::TensorMap, "no `Min` for elements of type F32");
    found(&reduce("and"), FindingKind::TensorMap, "no `And` for elements of type F32");
    found(&reduce("inc"), FindingKind::TensorMap, "no `Inc` for elements of type F32");
}

#[test]
fn values_that_nothing_wrote_are_not_operands() {
    for body in [
        format!("{LOAD} [%tile], [%map, {{%r9, 0}}], [%bar];"),
        format!("{RANGE} [%tile], [%p], %r9, [%bar];"),
        format!("{RANGE}.multicast::cluster [%tile], [%p], 16, [%bar], %h1;"),
        format!("{STORE} [%map, {{0, 0}}], [%r9];"),
    ] {
        found(&body, FindingKind::Uninitialised, "nothing wrote");
    }
    found(
        &format!(
            "{STORE} [%map, {{0, 0}}], [%tile];\ncp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;"
        ),
        FindingKind::Uninitialised,
        "which a tensor store stores",
    );
}

/// All lanes write the tile, one has it stored, and all write it again.
fn lanes_share_a_store(before: &str, behind: &str) -> String {
    let write = "st.shared.v4.u32 [%r1], {%r0, %r0, %r0, %r0};\n";
    format!(
        "ld.param.u64 %p, [p];\n{MAP}shl.b32 %r0, %t, 4;\nadd.u32 %r1, %tile, %r0;\n{write}\
         fence.proxy.async.shared::cta;\n{before}@!%one bra $JOIN;\n\
         {STORE} [%map, {{0, 0}}], [%tile];\ncp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;\n\
         $JOIN:\n{behind}{write}"
    )
}

#[test]
fn the_lane_that_starts_a_store_and_waits_for_it_does_not_run_in_step_with_the_others() {
    let sync = "bar.warp.sync 0xffffffff;\n";
    for (before, behind, part) in [
        (sync, sync, None),
        ("", sync, Some("read of shared memory at")),
        (sync, "", Some("write of shared memory at")),
    ] {
        let body = lanes_share_a_store(before, behind);
        let module = kernel(".param .align 64 .b8 map[128], .param .u64 p", "", 1024, &body);
        for machine in machines() {
            let tensor = memory(&machine, &noise(MATRIX.bytes()));
            let map = MATRIX.map(tensor);
            let result = run(&machine, &module, threads(32), &[map.as_bytes(), &tensor.to_le_bytes()]);
            let Some(part) = part else {
                result.unwrap_or_else(|error| panic!("{error}"));
                continue;
            };
            let found = finding(result);
            assert_eq!(found.kind, FindingKind::SharedRace, "{found}");
            assert!(found.message.starts_with(part) && found.message.contains("by lane"), "{found}");
        }
    }
}

#[test]
fn the_tile_is_not_to_be_touched_before_the_copy_was_waited_for() {
    let load = format!(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 512;\n{LOAD} [%tile], [%map, {{0, 0}}], [%bar];\n"
    );
    found(
        &format!("{load}ld.shared.u32 %r0, [%tile+4];"),
        FindingKind::AsynchronousCopy,
        "has not been waited for",
    );
    found(
        &format!("{load}st.shared.u32 [%tile+508], 0;"),
        FindingKind::AsynchronousCopy,
        "has not been waited for",
    );
    let stored = format!("{load}{WAIT}{STORE} [%map, {{0, 0}}], [%tile];\ncp.async.bulk.commit_group;\n");
    found(&format!("{stored}st.shared.u32 [%tile], 0;"), FindingKind::AsynchronousCopy, "still uses");
}

#[test]
fn a_write_must_be_made_visible_before_the_copy_engine_reads_it() {
    for machine in machines() {
        let body = "mov.u32 %r0, 1;\nst.shared.v4.u32 [%tile], {%r0, %r0, %r0, %r0};\n\
            cp.async.bulk.global.shared::cta.bulk_group [%p], [%tile], 16;\ncp.async.bulk.commit_group;\n\
            cp.async.bulk.wait_group 0;";
        let found = found_with(&machine, &MATRIX, 4096, body);
        assert_eq!(found.kind, FindingKind::ProxyFence, "{found}");
    }
}

#[test]
fn what_a_group_is_to_write_is_not_to_be_touched_before_the_group_was_waited_for() {
    let start = |copy: &str| {
        format!(
            "mov.u32 %r0, 1;\nst.shared.v4.u32 [%tile], {{%r0, %r0, %r0, %r0}};\nfence.proxy.async.shared::cta;\n\
             {copy} [%p+64], [%tile], 16;\ncp.async.bulk.commit_group;\n"
        )
    };
    let plain = start("cp.async.bulk.global.shared::cta.bulk_group");
    let adding = start("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32");
    let wait = "cp.async.bulk.wait_group 0;\n";
    for (started, access) in [
        (&plain, "ld.global.u32 %r1, [%p+64];"),
        (&plain, "st.global.u32 [%p+76], %r0;"),
        (&plain, "red.global.add.u32 [%p+68], %r0;"),
        (&plain, "cp.async.bulk.global.shared::cta.bulk_group [%p+64], [%tile], 16;"),
        (&plain, "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%p, {0, 0}];"),
        (&adding, "ld.global.u32 %r1, [%p+64];"),
    ] {
        found(
            &format!("{started}{access}\n{wait}"),
            FindingKind::AsynchronousCopy,
            "has not been waited for",
        );
    }
    // Beside it, after the wait, or adding to what is being added to, there is nothing wrong.
    let body = format!(
        "ld.param.u64 %p, [p];\n{INIT}@!%one bra $END;\n{plain}st.global.u32 [%p+60], 7;\nst.global.u32 [%p+80], 7;\n{wait}\
         ld.global.u32 %r1, [%p+64];\n{adding}red.global.add.u32 [%p+64], 1;\n{wait}$END:"
    );
    let module = kernel(".param .u64 p", "", 1024, &body);
    for machine in machines() {
        let memory = memory(&machine, &[0; 256]);
        run(&machine, &module, threads(32), &[&memory.to_le_bytes()])
            .unwrap_or_else(|error| panic!("{error}"));
        let words = super::read(&machine, memory, 84);
        let word = |at: usize| u32::from_le_bytes(words[at..at + 4].try_into().unwrap());
        assert_eq!([word(60), word(64), word(68), word(76), word(80)], [7, 3, 2, 2, 7]);
    }
}

#[test]
fn a_map_in_memory_must_be_there_before_it_is_used() {
    // One warp copies the map to global memory, another one uses the copy.
    let body = |between: &str| {
        format!(
            "ld.param.u64 %p, [p];\n{MAP}{INIT}setp.ge.u32 %c1, %t, 32;\nshl.b32 %r4, %t, 2;\ncvt.u64.u32 %x0, %r4;\n\
             add.u64 %x1, %x0, %map;\nadd.u64 %x2, %x0, %p;\n@%c1 bra $USE;\n\
             ld.param.u32 %r5, [%x1];\nst.global.u32 [%x2], %r5;\nbra $GO;\n$USE:\n$GO:\n{between}\n\
             setp.ne.u32 %c2, %t, 32;\n@%c2 bra $END;\nprefetch.tensormap [%p];\n$END:"
        )
        .replace("ld.param.u32 %r5, [%x1]", "ld.u32 %r5, [%x1]")
    };
    for machine in machines() {
        let run = |between: &str| {
            let module = kernel(".param .align 64 .b8 map[128], .param .u64 p", "", 1024, &body(between));
            let tensor = memory(&machine, &noise(4096));
            let map = MATRIX.map(tensor);
            run(&machine, &module, threads(64), &[map.as_bytes(), &tensor.to_le_bytes()])
        };
        let fences = [
            "fence.proxy.tensormap::generic.release.cta;",
            "fence.proxy.tensormap::generic.acquire.cta [%p], 128;",
        ];
        run(&format!("{}\nbar.sync 0;\n{}", fences[0], fences[1])).unwrap_or_else(|error| panic!("{error}"));
        let found = finding(run("bar.sync 0;"));
        assert_eq!(found.kind, FindingKind::ProxyFence, "{found}");
        assert!(found.hint.as_ref().is_some_and(|hint| hint.contains("tensormap")), "{found}");
        let found = finding(run(fences[0]));
        // The one warp may come before the other or behind it.
        assert!(matches!(found.kind, FindingKind::GlobalRace | FindingKind::TensorMap), "{found}");
    }
}

#[test]
fn wrong_byte_counts_leave_the_wait_hanging() {
    for machine in machines() {
        let body = format!(
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 528;\n\
             {LOAD} [%tile], [%map, {{0, 0}}], [%bar];\n{WAIT}"
        );
        let found = found_with(&machine, &MATRIX, 4096, &body);
        assert_eq!(found.kind, FindingKind::BarrierDeadlock, "{found}");
        assert!(found.to_string().contains("16 bytes"), "{found}");
    }
}

#[test]
fn without_the_checks_nothing_is_touched_outside_memory() {
    let config = Config { compute_capability: (9, 0), checks: Checks::none(), ..Config::default() };
    let machine = Machine::new(config);
    for body in [
        format!("{LOAD} [%tile+640], [%map, {{0, 0}}], [%bar];"),
        format!("{LOAD} [%tile+8], [%map, {{0, 0}}], [%bar];"),
        format!("{LOAD} [%tile], [%map, {{16, 30}}], [%bar];"),
        format!("{RANGE} [%tile+1000], [%p], 4000, [%bar];"),
        format!("{RANGE} [%tile+3], [%p+1], 17, [%bar];"),
        format!("{STORE} [%map, {{-8, 0}}], [%tile+512];"),
        "cp.async.bulk.global.shared::cta.bulk_group [%p+4090], [%tile], 16;".to_owned(),
    ] {
        let text = format!("ld.param.u64 %p, [p];\n{MAP}{INIT}@!%one bra $END;\n{body}\n$END:");
        let module = kernel(".param .align 64 .b8 map[128], .param .u64 p", "", 1024, &text);
        let tensor = memory(&machine, &noise(2048));
        let map = MATRIX.map(tensor);
        run(&machine, &module, threads(32), &[map.as_bytes(), &tensor.to_le_bytes()])
            .unwrap_or_else(|error| panic!("{body}: {error}"));
    }
}

#[test]
fn boxes_begin_at_multiples_of_16_bytes() {
    // An H100 takes a box that begins elsewhere for an illegal instruction.
    found(&format!("{STORE} [%map, {{3, 0}}], [%tile];"), FindingKind::Misaligned, "not a multiple of 16");
}
