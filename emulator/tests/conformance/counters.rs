//! Counters in global memory, by which blocks that run at the same time tell each other what they have written.

use warpsmith_emulator::{Config, Machine};

use crate::common::{launch, module};

/// Each of `blocks` blocks stores a word a lane, counts up, waits until all have, and reads the words of the block after it.
fn exchanged(blocks: u32) -> (Vec<u32>, u32) {
    let text = format!(
        ".visible .entry test(.param .u64 p_words, .param .u64 p_counter, .param .u64 p_out)\n.reqntid 32, 1, 1\n{{\n\
         .reg .b64 %words, %counter, %out, %at;\n.reg .b32 %block, %lane, %own, %next, %word, %count;\n.reg .pred %p;\n\
         ld.param.u64 %words, [p_words];\nld.param.u64 %counter, [p_counter];\nld.param.u64 %out, [p_out];\n\
         mov.u32 %block, %ctaid.x;\nmov.u32 %lane, %tid.x;\nmad.lo.u32 %own, %block, 32, %lane;\n\
         mul.lo.u32 %word, %own, 3;\nmad.wide.u32 %at, %own, 4, %words;\nst.global.u32 [%at], %word;\n\
         bar.warp.sync -1;\nsetp.ne.u32 %p, %lane, 0;\n@!%p red.release.gpu.global.add.u32 [%counter], 1;\n\
         WAIT:\nld.acquire.gpu.global.u32 %count, [%counter];\nsetp.lt.u32 %p, %count, {blocks};\n@%p bra WAIT;\n\
         add.u32 %next, %block, 1;\nrem.u32 %next, %next, {blocks};\nmad.lo.u32 %next, %next, 32, %lane;\n\
         mad.wide.u32 %at, %next, 4, %words;\nld.global.u32 %word, [%at];\n\
         mad.wide.u32 %at, %own, 4, %out;\nst.global.u32 [%at], %word;\n}}\n"
    );
    let machine = Machine::new(Config { compute_capability: (8, 0), ..Config::default() });
    let bytes = u64::from(blocks) * 32 * 4;
    let [words, out] = [machine.allocate(bytes).unwrap(), machine.allocate(bytes).unwrap()];
    let counter = machine.allocate(4).unwrap();
    machine.write(counter, &[0; 4]).unwrap();
    let arguments = [words, counter, out];
    launch(&machine, &module(&text), blocks, 32, 0, &arguments).unwrap_or_else(|error| panic!("{error}"));
    let (mut read, mut count) = (vec![0; bytes as usize], [0; 4]);
    machine.read(out, &mut read).unwrap();
    machine.read(counter, &mut count).unwrap();
    let read = read.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    (read, u32::from_le_bytes(count))
}

#[test]
fn blocks_that_count_up_see_what_others_wrote_before_they_did() {
    for blocks in [1, 2, 5] {
        let (read, count) = exchanged(blocks);
        assert_eq!(count, blocks);
        let expected = |own: u32| 3 * ((own / 32 + 1) % blocks * 32 + own % 32);
        assert_eq!(read, (0..32 * blocks).map(expected).collect::<Vec<_>>());
    }
}

/// What a word is after every lane but one of each of `blocks` blocks has done `operation` to it with a number of its own.
fn reduced(operation: &str, blocks: u32, before: u32) -> u32 {
    let text = format!(
        ".visible .entry test(.param .u64 p_word)\n.reqntid 32, 1, 1\n{{\n.reg .b64 %word;\n\
         .reg .b32 %block, %lane, %number, %old;\n.reg .pred %p;\nld.param.u64 %word, [p_word];\n\
         mov.u32 %block, %ctaid.x;\nmov.u32 %lane, %tid.x;\nmad.lo.u32 %number, %block, 32, %lane;\n\
         mul.lo.u32 %number, %number, 13;\nld.relaxed.gpu.global.u32 %old, [%word];\n\
         setp.eq.u32 %p, %lane, 7;\n@!%p red.relaxed.gpu.global.{operation} [%word], %number;\n}}\n"
    );
    let machine = Machine::new(Config { compute_capability: (8, 0), ..Config::default() });
    let word = machine.allocate(4).unwrap();
    machine.write(word, &before.to_le_bytes()).unwrap();
    launch(&machine, &module(&text), blocks, 32, 0, &[word]).unwrap_or_else(|error| panic!("{error}"));
    let mut after = [0; 4];
    machine.read(word, &mut after).unwrap();
    u32::from_le_bytes(after)
}

#[test]
fn blocks_reduce_a_word_that_they_read_meanwhile() {
    for blocks in [1, 3] {
        let numbers = || (0..32 * blocks).filter(|own| own % 32 != 7).map(|own| 13 * own);
        for before in [0, 5, 1000, u32::MAX] {
            let sum = numbers().fold(before, u32::wrapping_add);
            assert_eq!(reduced("add.u32", blocks, before), sum);
            assert_eq!(reduced("max.u32", blocks, before), numbers().fold(before, u32::max));
            assert_eq!(
                reduced("or.b32", blocks, before),
                numbers().fold(before, |bits, number| bits | number)
            );
        }
    }
}

/// What `threads` threads of a block get that each add 1 + lane / 16 to a number in shared memory, and what it is afterwards.
fn places(threads: u32) -> (Vec<u32>, u32) {
    let text = format!(
        ".visible .entry test(.param .u64 p_out)\n.reqntid {threads}, 1, 1\n{{\n.shared .align 4 .b8 count[4];\n.reg .b64 %out, %at;\n\
         .reg .b32 %thread, %number, %before, %count;\n.reg .pred %p;\nld.param.u64 %out, [p_out];\nmov.u32 %thread, %tid.x;\n\
         mov.u32 %count, count;\nsetp.eq.u32 %p, %thread, 0;\n@%p st.shared.u32 [%count], 0;\nbar.sync 0;\n\
         and.b32 %number, %thread, 31;\nshr.u32 %number, %number, 4;\nadd.u32 %number, %number, 1;\n\
         atom.shared.add.u32 %before, [%count], %number;\nmad.wide.u32 %at, %thread, 4, %out;\nst.global.u32 [%at], %before;\n\
         bar.sync 0;\n@!%p bra END;\nld.shared.u32 %before, [%count];\nst.global.u32 [%out+{}], %before;\nEND:\nret;\n}}\n",
        4 * threads
    );
    let machine = Machine::new(Config { compute_capability: (8, 0), ..Config::default() });
    let bytes = 4 * (threads as usize + 1);
    let out = machine.allocate(bytes as u64).unwrap();
    launch(&machine, &module(&text), 1, threads, 0, &[out]).unwrap_or_else(|error| panic!("{error}"));
    let mut read = vec![0; bytes];
    machine.read(out, &mut read).unwrap();
    let mut words: Vec<u32> =
        read.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    let after = words.pop().unwrap();
    (words, after)
}

#[test]
fn threads_that_add_to_a_shared_number_get_places_that_do_not_overlap() {
    for threads in [32, 96] {
        let (places, after) = places(threads);
        let mut taken: Vec<u32> =
            (0..).zip(&places).flat_map(|(thread, &place)| place..place + 1 + thread % 32 / 16).collect();
        taken.sort_unstable();
        assert_eq!(taken, (0..after).collect::<Vec<_>>());
        assert_eq!(after, threads + threads / 2);
    }
}
