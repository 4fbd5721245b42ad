//! Units in the order of the parts of the table: what a group's warp goes through later.

use super::{BATCH, ENTRY_BYTES, GROUP_UNITS, NO_TOKEN, SortedParams};
use crate::experts::params::{ExpertParams, ExpertRows};
use crate::launch::{Global, GlobalMut};
use crate::shared::SharedAddress;
use crate::{ptx, thread, warp};

/// Threads of a block that sorts.
pub const ORDER_THREADS: u32 = 256;
/// Bytes of its shared memory.
pub const ORDER_BYTES: u32 = SUMS_AT + ORDER_THREADS / warp::SIZE * 4;

/// Units of a thread of such a block.
const OF_THREAD: usize = (GROUP_UNITS / ORDER_THREADS) as usize;
/// How many units there are in each bin, then where the bin begins; behind them where the last one ends.
const COUNTS_AT: u32 = 0;
/// The units in the order of their bins.
const PLACES_AT: u32 = COUNTS_AT + (GROUP_UNITS + 2) * 4;
/// The units' entries in the order of the list, in place of both.
const ENTRIES_AT: u32 = COUNTS_AT;
/// Their gates.
const GATES_AT: u32 = PLACES_AT + GROUP_UNITS * 4;
/// What stands in place of a unit that is none.
const NO_UNIT: u32 = u32::MAX;
/// A number for each warp.
const SUMS_AT: u32 = GATES_AT + GROUP_UNITS * 4;

/// A word's upper and lower half.
#[inline(always)]
fn halves(word: u32) -> [u32; 2] {
    [word >> 16, word & 0xffff]
}

/// Makes of the `count` numbers at `at`, which are at most [`GROUP_UNITS`], what those before each add up to; behind the last is written what all add
/// up to. `sums` is room for a number for each warp.
#[inline(always)]
unsafe fn starts_of(at: u32, count: u32, sums: u32) {
    let first = thread::thread_idx_x() * OF_THREAD as u32;
    let lane = warp::lane_id();
    // SAFETY: the caller's promise: all threads of the block are here; each writes its own numbers.
    unsafe {
        let mut own = 0;
        let mut i = 0;
        while i < OF_THREAD as u32 && first + i < count {
            own += ptx::ld_shared_b32(at + (first + i) * 4);
            i = ptx::opaque(i + 1);
        }
        let (mut sum, mut distance) = (own, 1);
        while distance < warp::SIZE {
            let other = ptx::shfl_sync_up(sum, distance);
            sum += if lane >= distance { other } else { 0 };
            distance *= 2;
        }
        if lane == warp::SIZE - 1 {
            ptx::st_shared_b32(sums + warp::warp_id() * 4, sum);
        }
        thread::sync_threads();
        let mut before = sum - own;
        for warp in 0..ORDER_THREADS / warp::SIZE {
            let of_warp = ptx::ld_shared_b32(sums + warp * 4);
            before += if warp < warp::warp_id() { of_warp } else { 0 };
        }
        let mut i = 0;
        while i < OF_THREAD as u32 && first + i < count {
            let number = ptx::ld_shared_b32(at + (first + i) * 4);
            ptx::st_shared_b32(at + (first + i) * 4, before);
            before += number;
            i = ptx::opaque(i + 1);
            if first + i == count {
                ptx::st_shared_b32(at + count * 4, before);
            }
        }
    }
}

/// Sorts the units of a group of tokens, the block's, by their experts: each one's address and gate, to whole batches of them.
///
/// They are in the order of the table's parts; in a part those of a token follow one another, in the order of its list. A unit of an expert that is none or
/// nowhere has the address of one that is, and a gate that is no number. Units of experts that [add nothing](ExpertRows) are left out. Behind the last unit
/// it is repeated, as one of no token.
///
/// # Safety
///
/// Every thread of a one-dimensional grid of a block for each group calls it. `ids` and `gates` are valid for reads of `experts` numbers for each token, whose
/// units are at most [`GROUP_UNITS`] in a group; `units` is valid for writes of `room` pairs of words for each group, `sorted` for as many numbers. Slots
/// of `rows` are valid for reads, and there is one row. Nothing else writes any of them meanwhile.
#[inline(always)]
pub unsafe fn order_units(
    ids: Global<u32>,
    gates: Global<f32>,
    rows: ExpertRows,
    units: GlobalMut<u32>,
    sorted: GlobalMut<f32>,
    p: ExpertParams,
    s: SortedParams,
) {
    let (shared, thread) = (SharedAddress::dynamic().get(), thread::thread_idx_x());
    let group = thread::block_idx_x();
    let [first, tokens] = s.tokens_of(group);
    let hidden = p.hidden.max(1);
    let of_token = p.experts * hidden;
    let count = tokens * of_token;
    let of_group = first as u64 * p.experts as u64 * 4;
    // Of bins, in the order of the list: each part of the table, and in it each token.
    let last = rows.count.max(1) - 1;
    let bins = ((last >> s.part_bits) + 1) * tokens;
    let [counts, places] = [shared + COUNTS_AT, shared + PLACES_AT];
    let number_of = |i: usize| thread + i as u32 * ORDER_THREADS;
    // What is known of the thread's units: all of them are looked up at the same time.
    let (mut ids_of, mut gates_of, mut at) = ([0; OF_THREAD], [0.0; OF_THREAD], [0; OF_THREAD]);
    let is_part = rows.host.is_null() && !rows.slot_of.is_null();
    // SAFETY: the caller's promise; all threads of the block take the same way, and wait before they read what others have written, or write over
    // what others have read.
    unsafe {
        for i in 0..OF_THREAD {
            let from = of_group + (number_of(i) / hidden) as u64 * 4;
            let is_there = number_of(i) < count;
            ids_of[i] = ptx::ld_global_f32_if(ids.address() + from, is_there).to_bits();
            gates_of[i] = ptx::ld_global_f32_if(gates.address() + from, is_there);
            at[i] = if is_there { 0 } else { NO_UNIT };
        }
        if is_part {
            for i in 0..OF_THREAD {
                let slot = rows.slot_of.address() + ids_of[i] as u64 * 4;
                let is_known = at[i] != NO_UNIT && ids_of[i] < rows.count;
                let slot = ptx::ld_global_f32_if(slot, is_known).to_bits();
                at[i] = if is_known && slot == rows.slots - 1 { NO_UNIT } else { at[i] };
            }
        }
        let mut bin = thread;
        while bin < bins {
            ptx::st_shared_b32(counts + bin * 4, 0);
            bin = ptx::opaque(bin + ORDER_THREADS);
        }
        thread::sync_threads();
        for i in 0..OF_THREAD {
            if at[i] != NO_UNIT {
                // In any order within the bin.
                let bin = (ids_of[i].min(last) >> s.part_bits) * tokens + number_of(i) / of_token.max(1);
                at[i] = bin << 16 | ptx::atom_shared_add_u32(counts + bin * 4, 1);
            }
        }
        thread::sync_threads();
        starts_of(counts, bins, shared + SUMS_AT);
        thread::sync_threads();
        let own = ptx::ld_shared_b32(counts + bins * 4);
        for (i, at) in at.iter().enumerate() {
            if *at != NO_UNIT {
                let [bin, place] = halves(*at);
                let start = ptx::ld_shared_b32(counts + bin * 4);
                ptx::st_shared_b32(places + (start + place) * 4, number_of(i));
            }
        }
        thread::sync_threads();
        for (i, at) in at.iter_mut().enumerate() {
            if *at != NO_UNIT {
                let [bin, _] = halves(*at);
                let mut other = ptx::ld_shared_b32(counts + bin * 4);
                let end = ptx::ld_shared_b32(counts + (bin + 1) * 4);
                *at = other;
                while other < end {
                    *at += (ptx::ld_shared_b32(places + other * 4) < number_of(i)) as u32;
                    other = ptx::opaque(other + 1);
                }
            }
        }
        thread::sync_threads();
        for i in 0..OF_THREAD {
            if at[i] != NO_UNIT {
                let row = rows.find(ids_of[i]);
                let address = match row {
                    Some(row) => row + (number_of(i) % hidden) as u64 * p.unit_bytes,
                    None => rows.resident.address(),
                };
                let gate = if row.is_some() { gates_of[i] } else { f32::NAN };
                let entry = [address as u32 | (number_of(i) / of_token.max(1)), (address >> 32) as u32];
                ptx::st_shared_v2_f32(shared + ENTRIES_AT + at[i] * ENTRY_BYTES, entry.map(f32::from_bits));
                ptx::st_shared_f32(shared + GATES_AT + at[i] * 4, gate);
            }
        }
        thread::sync_threads();
        let list = group as u64 * s.room as u64;
        let mut place = thread;
        while place < count.next_multiple_of(BATCH) {
            let (mut entry, mut gate) =
                ([rows.resident.address() as u32, (rows.resident.address() >> 32) as u32], 0);
            if own > 0 {
                let from = place.min(own - 1);
                entry = ptx::ld_shared_v2_f32(shared + ENTRIES_AT + from * ENTRY_BYTES).map(f32::to_bits);
                gate = ptx::ld_shared_b32(shared + GATES_AT + from * 4);
            }
            let [mut low, high] = entry;
            low |= if place < own { 0 } else { NO_TOKEN };
            ptx::st_global_v2_b32(units.address() + (list + place as u64) * ENTRY_BYTES as u64, [low, high]);
            ptx::st_global_b32(sorted.address() + (list + place as u64) * 4, gate);
            place = ptx::opaque(place + ORDER_THREADS);
        }
    }
}
