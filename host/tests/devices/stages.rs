//! Stages that are given back with and without a proxy fence behind the reads of them: what the emulator says of the two, and how often
//! a GPU computes something wrong.

use libtest_mimic::Failed;
use warpsmith::emulator::FindingKind;
use warpsmith::{Device, DeviceKind, Error, Stream, Tensor};

use crate::{Case, On, cases, raw};

#[rustfmt::skip]
pub(crate) const CASES: &[(&str, On, Case)] = &cases![On::Hopper =>
    stages_that_are_given_back_behind_a_fence_are_read_in_time,
    stages_that_the_producer_fences_are_in_order,
    stages_that_are_given_back_without_a_fence_are_told_of,
];

const TEXT: &str = include_str!("ring.ptx");

/// Threads of a block, half of which add up: one ring for each warp of these.
const THREADS: u32 = 256;
const ADDING: usize = 128;
/// Words of a stage, each of two numbers in f16.
const STAGE_WORDS: usize = 1024;
/// Two ones and two twos.
const ONES: u32 = 0x3c00_3c00;
const TWOS: u32 = 0x4000_4000;

/// How much is run: streams, launches on each, blocks and steps of a launch.
struct Load {
    streams: usize,
    launches: usize,
    blocks: u32,
    steps: u32,
}

impl Load {
    /// On a GPU, seconds of blocks that share its multiprocessors.
    fn of(device: &Device) -> Self {
        match device.kind() {
            DeviceKind::Cuda(_) => {
                let blocks = 4 * device.properties().multiprocessors;
                Self { streams: 4, launches: 50, blocks, steps: 4000 }
            }
            _ => Self { streams: 1, launches: 2, blocks: 2, steps: 11 },
        }
    }

    /// What each thread has to give.
    fn expected(&self) -> f32 {
        let sum: u32 = (0..self.steps).map(|step| 1 + step / 2 % 2).sum();
        // A product adds 16 numbers, and a step has eight products. All sums are exact.
        (128 * sum) as f32
    }
}

/// Enqueues a launch, which gives four sums for each thread that adds.
fn enqueue(
    device: &Device,
    entry: &str,
    patterns: &Tensor<u32>,
    stream: &Stream,
    load: &Load,
) -> warpsmith::Result<Tensor<f32>> {
    let function = device.load_ptx("ring.ptx", TEXT)?.function(entry)?;
    let mut sums = Tensor::<f32>::uninit_on(stream, [load.blocks as usize, ADDING, 4])?;
    let (to, from, steps) = (sums.arg_mut().address(), patterns.arg().address(), load.steps);
    // SAFETY: the arguments are the entry's: there are four sums for each of a block's first 128 threads, and two patterns.
    unsafe { function.launch(stream, [load.blocks, 1, 1], [THREADS, 1, 1], 0, &raw![to, from, steps])? };
    Ok(sums)
}

/// How many warps of an entry's launches had a wrong sum, and how many there were.
fn wrong_sums(device: &Device, entry: &str) -> warpsmith::Result<(usize, usize)> {
    let load = Load::of(device);
    let streams: Vec<_> = (0..load.streams).map(|_| device.new_stream()).collect::<Result<_, _>>()?;
    let words: Vec<u32> = [ONES, TWOS].into_iter().flat_map(|word| [word; STAGE_WORDS]).collect();
    let patterns = Tensor::from_slice(device, &words, [words.len()])?;
    let mut results = Vec::new();
    for _ in 0..load.launches {
        for stream in &streams {
            results.push(enqueue(device, entry, &patterns, stream, &load)?);
        }
    }
    let expected = load.expected();
    let (mut wrong, mut all) = (0, 0);
    for sums in results {
        let sums = sums.to_vec()?;
        // The lanes of a warp have the same ring.
        for warp in sums.chunks(32 * 4) {
            all += 1;
            wrong += usize::from(warp.iter().any(|&sum| sum != expected));
        }
    }
    Ok((wrong, all))
}

fn expect_right_sums(device: &Device, entry: &str) -> Result<(), Failed> {
    let (wrong, all) = wrong_sums(device, entry)?;
    if wrong != 0 {
        return Err(format!("{wrong} of {all} warps read something else than their stages had").into());
    }
    Ok(())
}

fn stages_that_are_given_back_behind_a_fence_are_read_in_time(device: &Device) -> Result<(), Failed> {
    expect_right_sums(device, "ring_fenced")
}

/// The memory model allows it: the fence is on the causality path from the loads to the copy. An H100 keeps to that, and the emulator has no finding.
fn stages_that_the_producer_fences_are_in_order(device: &Device) -> Result<(), Failed> {
    expect_right_sums(device, "ring_fenced_by_producer")
}

/// The emulator reports the read. On a GPU most sums are wrong. If none is, its assembler waits for the loads by itself, and this test says
/// nothing of the others any more.
fn stages_that_are_given_back_without_a_fence_are_told_of(device: &Device) -> Result<(), Failed> {
    let is_gpu = matches!(device.kind(), DeviceKind::Cuda(_));
    match wrong_sums(device, "ring_unfenced") {
        Ok((wrong, all)) if is_gpu => {
            println!("without a fence, {wrong} of {all} warps read something else than their stages had");
            if wrong == 0 {
                return Err(
                    "without a fence all sums are right: this GPU and driver do not show the fault".into()
                );
            }
            Ok(())
        }
        Err(Error::Finding(finding)) if !is_gpu => {
            assert_eq!(finding.kind, FindingKind::UnfencedRead, "{finding}");
            assert!(
                finding.text.contains("cp.async.bulk") && finding.related[0].text.contains("ldmatrix"),
                "{finding}"
            );
            assert!(finding.related[1].text.contains("mbarrier.arrive"), "{finding}");
            Ok(())
        }
        other => Err(format!("expected a finding or, on a GPU, a rate, got {other:?}").into()),
    }
}
