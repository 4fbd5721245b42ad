//! Ranges of bytes.

use warpsmith_emulator::LaunchConfig;

use super::{INIT, WAIT, dump_tile, kernel, machines, memory, noise, read, read_tile, run, threads};

#[test]
fn a_range_goes_to_shared_memory_and_back() {
    let body = format!(
        "ld.param.u64 %q, [from];\nld.param.u64 %p, [to];\n{INIT}@!%one bra $WAIT;\n\
         cp.async.bulk.prefetch.L2.global [%q], 2048;\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 2048;\nmov.u32 %r4, 1024;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%tile], [%q], 1024, [%bar];\n\
         cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%tile+1024], [%q+1024], %r4, [%bar];\n\
         {WAIT}@!%one bra $END;\n\
         cp.async.bulk.global.shared::cta.bulk_group [%p], [%tile+1040], 1008;\ncp.async.bulk.commit_group;\n\
         cp.async.bulk.global.shared::cta.bulk_group [%p+1008], [%tile], 1040;\ncp.async.bulk.commit_group;\n\
         cp.async.bulk.wait_group.read 1;\ncp.async.bulk.wait_group 0;\n$END:"
    );
    let module = kernel(".param .u64 from, .param .u64 to", "", 2048, &body);
    let data = noise(2048);
    for machine in machines() {
        let (from, to) = (memory(&machine, &data), machine.allocate(2048).unwrap());
        run(&machine, &module, threads(64), &[&from.to_le_bytes(), &to.to_le_bytes()])
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(read(&machine, to, 2048) == [&data[1040..], &data[..1040]].concat());
    }
}

#[test]
fn what_the_engine_has_stored_it_loads_without_a_fence() {
    let body = format!(
        "ld.param.u64 %q, [from];\nld.param.u64 %p, [to];\n{INIT}@!%one bra $END;\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 512;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%tile], [%q], 512, [%bar];\n{WAIT}\
         cp.async.bulk.global.shared::cta.bulk_group [%p], [%tile], 512;\ncp.async.bulk.commit_group;\n\
         cp.async.bulk.wait_group 0;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 512;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%tile+512], [%p], 512, [%bar];\n\
         $AGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 %c0, [%bar], 1;\n@!%c0 bra $AGAIN;\n\
         cp.async.bulk.global.shared::cta.bulk_group [%p+512], [%tile+512], 512;\ncp.async.bulk.commit_group;\n\
         cp.async.bulk.wait_group 0;\n$END:"
    );
    let module = kernel(".param .u64 from, .param .u64 to", "", 1024, &body);
    let data = noise(512);
    for machine in machines() {
        let (from, to) = (memory(&machine, &data), machine.allocate(1024).unwrap());
        run(&machine, &module, threads(32), &[&from.to_le_bytes(), &to.to_le_bytes()])
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(read(&machine, to, 1024) == data.repeat(2));
    }
}

#[test]
fn each_lane_starts_a_copy_of_its_own() {
    let body = format!(
        "ld.param.u64 %q, [from];\nld.param.u64 %p, [to];\n{INIT}\
         @%one mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 512;\nbar.sync 0;\n\
         sub.u32 %r4, 31, %t;\nmad.lo.u32 %r4, %r4, 16, %tile;\nmad.wide.u32 %q, %t, 16, %q;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%q], 16, [%bar];\n{WAIT}{}",
        dump_tile(512)
    );
    let module = kernel(".param .u64 from, .param .u64 to", "", 512, &body);
    let data = noise(512);
    let expected: Vec<u8> = data.chunks(16).rev().flatten().copied().collect();
    for machine in machines() {
        let (from, to) = (memory(&machine, &data), machine.allocate(512).unwrap());
        run(&machine, &module, threads(32), &[&from.to_le_bytes(), &to.to_le_bytes()])
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(read(&machine, to, 512) == expected);
    }
}

#[test]
fn reductions_of_ranges_combine_their_elements() {
    type Combine = fn(u64, u64) -> u64;
    let forms: [(&str, usize, Combine); 9] = [
        ("add.u32", 4, |a, b| a.wrapping_add(b)),
        ("add.u64", 8, u64::wrapping_add),
        ("min.s64", 8, |a, b| (a as i64).min(b as i64) as u64),
        ("max.u64", 8, u64::max),
        ("min.s32", 4, |a, b| (a as i32).min(b as i32) as u32 as u64),
        ("or.b64", 8, |a, b| a | b),
        ("xor.b32", 4, |a, b| a ^ b),
        ("add.f64", 8, |a, b| (f64::from_bits(a) + f64::from_bits(b)).to_bits()),
        ("add.f32", 4, |a, b| {
            let sum = f32::from_bits(a as u32) + f32::from_bits(b as u32);
            u64::from(if sum.is_nan() { 0x7fff_ffff } else { sum.to_bits() })
        }),
    ];
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |all, &byte| all << 8 | u64::from(byte));
    // Exponents that are no NaN's.
    let clean = |mut bytes: Vec<u8>| {
        bytes.iter_mut().skip(3).step_by(4).for_each(|byte| *byte &= 0xbf);
        bytes
    };
    let (old, new) = (clean(noise(256)), clean(noise(512)[256..].to_vec()));
    for (form, size, combine) in forms {
        let body = format!(
            "ld.param.u64 %p, [from];\nld.param.u64 %q, [to];\n{}@!%one bra $END;\n\
             cp.reduce.async.bulk.global.shared::cta.bulk_group.{form} [%q], [%tile], 256;\n\
             cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n$END:",
            read_tile(256)
        );
        let module = kernel(".param .u64 from, .param .u64 to", "", 256, &body);
        let expected: Vec<u8> = old
            .chunks(size)
            .zip(new.chunks(size))
            .flat_map(|(a, b)| combine(number(a), number(b)).to_le_bytes()[..size].to_vec())
            .collect();
        for machine in machines() {
            let (from, to) = (memory(&machine, &new), memory(&machine, &old));
            run(&machine, &module, threads(32), &[&from.to_le_bytes(), &to.to_le_bytes()])
                .unwrap_or_else(|error| panic!("{error}"));
            assert!(read(&machine, to, 256) == expected, "{form}");
        }
    }
}

#[test]
fn blocks_add_to_the_same_range_one_after_the_other() {
    let body = format!(
        "ld.param.u64 %q, [to];\n{}@!%one bra $END;\n\
         cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%q], [%tile], 64;\n\
         cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n$END:",
        super::fill_tile(64, 3)
    );
    let module = kernel(".param .u64 to", "", 64, &body);
    for machine in machines() {
        let to = memory(&machine, &[0; 64]);
        let launch = LaunchConfig { grid: [100, 1, 1], ..threads(32) };
        run(&machine, &module, launch, &[&to.to_le_bytes()]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(read(&machine, to, 64), [44, 1, 0, 0].repeat(16));
    }
}

#[test]
fn a_block_sends_its_shared_memory_to_its_neighbour() {
    for (form, reduces) in [("cp.async.bulk", false), ("cp.reduce.async.bulk", true)] {
        let suffix = if reduces { ".add.u32" } else { "" };
        // The tile's first half is sent to the second half of the other block's.
        let body = format!(
            "{}{INIT}@%one mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 256;\n\
             barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n\
             mov.u32 %r4, %cluster_ctarank;\nxor.b32 %r5, %r4, 1;\n@!%one bra $WAIT;\n\
             mapa.shared::cluster.u32 %r6, %tile, %r5;\nmapa.shared::cluster.u32 %r7, %bar, %r5;\n\
             {form}.shared::cluster.shared::cta.mbarrier::complete_tx::bytes{suffix} [%r6+256], [%tile], 256, [%r7];\n\
             {WAIT}mov.u32 %r5, %ctaid.x;\nld.param.u64 %p, [to];\nmul.wide.u32 %x1, %r5, 512;\nadd.u64 %p, %p, %x1;\n\
             {}barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
            "ld.param.u64 %p, [from];\nmov.u32 %r5, %ctaid.x;\nmul.wide.u32 %x1, %r5, 512;\nadd.u64 %p, %p, %x1;\n"
                .to_owned()
                + &read_tile(512),
            dump_tile(512)
        );
        let module = kernel(
            ".param .u64 from, .param .u64 to",
            ".explicitcluster\n.reqnctapercluster 2, 1, 1",
            512,
            &body,
        );
        let data = noise(1024);
        let mut expected = data.clone();
        for (to, from) in [(256, 512), (768, 0)] {
            for i in (0..256).step_by(4) {
                let word = |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().unwrap());
                let old = if reduces { word(to + i) } else { 0 };
                expected[to + i..to + i + 4].copy_from_slice(&old.wrapping_add(word(from + i)).to_le_bytes());
            }
        }
        for machine in machines() {
            let (from, to) = (memory(&machine, &data), machine.allocate(1024).unwrap());
            let launch = LaunchConfig { grid: [2, 1, 1], cluster: [2, 1, 1], ..threads(32) };
            run(&machine, &module, launch, &[&from.to_le_bytes(), &to.to_le_bytes()])
                .unwrap_or_else(|error| panic!("{error}"));
            assert!(read(&machine, to, 1024) == expected, "{form}");
        }
    }
}
