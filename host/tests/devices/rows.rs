//! Rows in host memory behind a cache: what kernels read, late and while the next rows are copied, and what is noted of ids on the device.

use std::collections::VecDeque;

use libtest_mimic::Failed;
use warpsmith::peer::rows::{RowAddresses, Step};
use warpsmith::peer::{CacheOptions, CachedRows};
use warpsmith::{Device, DeviceKind, Event, Function, Stream, Tensor};

use crate::{Case, On, cases, raw};

#[rustfmt::skip]
pub(crate) const CASES: &[(&str, On, Case)] = &cases![On::Kernels =>
    late_readers_find_their_rows_in_pinned_memory,
    late_readers_find_their_rows_in_managed_memory,
    late_ids_are_waited_for_and_noted_on_the_device,
];

/// Rows by a map: `out[i] = row ids[i]`, a block for each, after a loop that takes its time.
const TEXT: &str = r"
.version 7.0
.target sm_75
.address_size 64

.visible .entry gather_rows(
    .param .u64 gather_rows_ids,
    .param .u64 gather_rows_slots,
    .param .u64 gather_rows_host,
    .param .u64 gather_rows_slot_of,
    .param .u64 gather_rows_out,
    .param .u32 gather_rows_words,
    .param .u32 gather_rows_loops
)
.reqntid 32, 1, 1
{
    .reg .pred %p<4>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<16>;
    ld.param.u64 %rd1, [gather_rows_ids];
    ld.param.u64 %rd2, [gather_rows_slots];
    ld.param.u64 %rd3, [gather_rows_host];
    ld.param.u64 %rd4, [gather_rows_slot_of];
    ld.param.u64 %rd5, [gather_rows_out];
    ld.param.u32 %r1, [gather_rows_words];
    ld.param.u32 %r2, [gather_rows_loops];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %tid.x;
    mov.u32 %r5, %r2;
    mov.u32 %r6, 1;
$L_wait:
    mad.lo.s32 %r6, %r6, 1664525, 1013904223;
    add.s32 %r5, %r5, -1;
    setp.gt.s32 %p1, %r5, 0;
    @%p1 bra $L_wait;
    // The loop's result is never this, but nobody knows that who does not run it.
    setp.eq.u32 %p1, %r6, 0;
    @%p1 bra $L_end;
    mul.wide.u32 %rd6, %r3, 4;
    add.s64 %rd6, %rd1, %rd6;
    ld.global.u32 %r7, [%rd6];
    mul.wide.u32 %rd7, %r7, 4;
    add.s64 %rd7, %rd4, %rd7;
    ld.global.u32 %r8, [%rd7];
    setp.eq.u32 %p2, %r8, 0xffffffff;
    selp.b32 %r9, %r7, %r8, %p2;
    selp.b64 %rd8, %rd3, %rd2, %p2;
    mul.wide.u32 %rd9, %r9, %r1;
    shl.b64 %rd9, %rd9, 2;
    add.s64 %rd8, %rd8, %rd9;
    mul.wide.u32 %rd10, %r3, %r1;
    shl.b64 %rd10, %rd10, 2;
    add.s64 %rd10, %rd5, %rd10;
$L_word:
    setp.ge.u32 %p3, %r4, %r1;
    @%p3 bra $L_end;
    mul.wide.u32 %rd11, %r4, 4;
    add.s64 %rd12, %rd8, %rd11;
    add.s64 %rd13, %rd10, %rd11;
    ld.global.u32 %r10, [%rd12];
    st.global.u32 [%rd13], %r10;
    add.s32 %r4, %r4, 32;
    bra $L_word;
$L_end:
    ret;
}
";

/// The words of a row, none of which are the poison.
fn row(id: usize, words: usize) -> Vec<u32> {
    (0..words).map(|word| (id * 10_007 + word) as u32).collect()
}

/// Enqueues a launch that reads the rows `ids`.
fn gather(
    gather: &Function,
    stream: &Stream,
    ids: &[u32],
    at: RowAddresses,
    loops: u32,
) -> Result<Tensor<u32>, Failed> {
    let words = u32::try_from(at.row_bytes / 4)?;
    let numbers = Tensor::from_slice(stream.device(), ids, [ids.len()])?;
    let mut out = Tensor::uninit_on(stream, [ids.len(), words as usize])?;
    let (from, to) = (numbers.arg().address(), out.arg_mut().address());
    let arguments = raw![from, at.slots, at.host, at.slot_of, to, words, loops];
    let blocks = u32::try_from(ids.len())?;
    stream.with_operands(&[&numbers], || {
        // SAFETY: the arguments are the entry's; ids are rows, and the step keeps them where they are until it is released.
        unsafe { gather.launch(stream, [blocks, 1, 1], [32, 1, 1], 0, &arguments) }
    })?;
    Ok(out)
}

/// Ids of which small ones are more frequent.
fn drawn(rows: usize, length: usize, state: &mut u64) -> Vec<u32> {
    let mut random = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as usize % rows
    };
    (0..length).map(|_| (random() * random() / rows) as u32).collect()
}

fn late_readers_find_their_rows(device: &Device, managed: bool) -> Result<(), Failed> {
    // On a GPU a launch reads long after the next step was staged; the emulator has no later.
    let (rows, words, steps, loops) = match device.kind() {
        DeviceKind::Emulator => (60, 20, 12, 1),
        _ => (5000, 1024, 60, 300_000),
    };
    for slots in [1, 7, rows / 3, rows] {
        let options = CacheOptions::default().slots(slots).managed(managed).poison(true);
        let mut cached = CachedRows::new(device, rows, words * 4, &options)?;
        for id in 0..rows {
            cached.write(id, bytemuck::cast_slice(&row(id, words)))?;
        }
        let function = device.load_ptx("gather_rows", TEXT)?.function("gather_rows")?;
        let streams = [device.new_stream()?, device.new_stream()?];
        let mut flying: VecDeque<(Step, Event)> = VecDeque::new();
        let mut results = Vec::new();
        let mut state = 1u64;
        for number in 0..steps {
            let ids = drawn(rows, rows / 10, &mut state);
            // The stream changes now and then: what is copied waits for the readers of both.
            let stream = &streams[number / 5 % 2];
            let step = match number % 3 {
                0 => cached.stage(&ids)?,
                _ => cached.stage_ids(&Tensor::from_slice(device, &ids, [ids.len()])?, stream)?,
            };
            cached.begin_reading(&step, stream)?;
            results.push((gather(&function, stream, &ids, cached.addresses(&step), loops)?, ids));
            let read = cached.end_reading(stream)?;
            flying.push_back((step, read));
            if flying.len() == 2
                && let Some((step, read)) = flying.pop_front()
            {
                cached.release_after(step, read)?;
            }
        }
        for (step, read) in flying {
            cached.release_after(step, read)?;
        }
        for (number, (out, ids)) in results.iter().enumerate() {
            let expected: Vec<u32> = ids.iter().flat_map(|&id| row(id as usize, words)).collect();
            assert!(out.to_vec()? == expected, "step {number} with {slots} slots read something else");
        }
        let statistics = cached.statistics();
        assert_eq!(statistics.hits + statistics.misses, statistics.requests);
        assert_eq!(cached.cache().pinned(), 0);
    }
    Ok(())
}

fn late_readers_find_their_rows_in_pinned_memory(device: &Device) -> Result<(), Failed> {
    late_readers_find_their_rows(device, false)
}

fn late_readers_find_their_rows_in_managed_memory(device: &Device) -> Result<(), Failed> {
    late_readers_find_their_rows(device, true)
}

fn late_ids_are_waited_for_and_noted_on_the_device(device: &Device) -> Result<(), Failed> {
    // The ids of a step are what a slow launch gathers, from rows of one word.
    let (rows, length, loops) = match device.kind() {
        DeviceKind::Emulator => (300, 64, 1),
        _ => (1_000_000, 4096, 1_000_000),
    };
    let mut numbers = CachedRows::new(device, rows, 16, &CacheOptions::default().slots(rows))?;
    let mut state = 7u64;
    let values = drawn(rows, 4 * rows, &mut state);
    numbers.write(0, bytemuck::cast_slice(&values))?;
    let function = device.load_ptx("gather_rows", TEXT)?.function("gather_rows")?;
    let stream = device.new_stream()?;
    for slots in [1, rows / 7, rows] {
        let new = || CachedRows::new(device, rows, 16, &CacheOptions::default().slots(slots));
        let (mut cached, mut other) = (new()?, new()?);
        for _ in 0..6 {
            let places = drawn(rows, length, &mut state);
            let of_numbers = numbers.stage(&places)?;
            numbers.begin_reading(&of_numbers, &stream)?;
            let ids = gather(&function, &stream, &places, numbers.addresses(&of_numbers), loops)?;
            numbers.release(of_numbers, &stream)?;
            let step = cached.stage_ids(&ids, &stream)?;
            cached.release(step, &stream)?;
            let step = other.stage(&ids.to_vec()?)?;
            other.release(step, &stream)?;
            assert!(cached.cache().slot_of() == other.cache().slot_of());
            let (mut noted, mut counted) = (cached.statistics(), other.statistics());
            (noted.stalls, counted.stalls) = (0, 0);
            assert_eq!(noted, counted);
        }
        assert!(cached.heat()? == other.heat()?);
    }
    Ok(())
}
