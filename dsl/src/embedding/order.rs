//! Ids in ascending order, those of equal ones in the order of their tokens: a radix sort, of which each pass is of 8 bits.
//!
//! A pass has three launches. Blocks count how often each digit is in their tile; a block for each digit makes of its counts where it begins in each tile; blocks
//! put their elements there, behind those of lower digits. Within a tile each warp has a part, whose elements it goes through in their order, 32 at a time.

// Registers are indexed by constants: an iterator over several arrays at once might put them in memory.
#![allow(clippy::needless_range_loop, clippy::manual_memcpy)]

use super::Ids;
use crate::launch::{Global, GlobalMut, KernelParam};
use crate::shared::SharedAddress;
use crate::{ptx, thread, warp};

/// Threads of a block.
pub const ORDER_THREADS: u32 = 256;
/// Bits of a digit.
pub const DIGIT_BITS: u32 = 8;
/// Values of a digit: one for each thread.
pub const DIGITS: u32 = 1 << DIGIT_BITS;
/// Elements of a tile.
pub const TILE: u32 = ORDER_THREADS * ROUNDS as u32;
/// Shared memory of a block, in bytes.
pub const ORDER_BYTES: u32 = WARPS * DIGITS * 4;

const WARPS: u32 = ORDER_THREADS / warp::SIZE;
/// Elements of a thread.
const ROUNDS: usize = 8;
const _: () = assert!(DIGITS == ORDER_THREADS);

/// A pass of the sort.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PassParams {
    /// What is sorted, if this is the first pass.
    pub ids: Ids,
    /// What the pass before has sorted; null if this is the first.
    pub keys: Global<u32>,
    /// The tokens of these keys.
    pub tokens: Global<u32>,
    /// Where the sorted keys go.
    pub sorted_keys: GlobalMut<u32>,
    /// Where their tokens go.
    pub sorted_tokens: GlobalMut<u32>,
    /// For each digit how often each tile has it, [`pitch`] of them, and then how often the tiles before have it. Behind those of all digits, how often there is each.
    pub counts: GlobalMut<u32>,
    /// How many there are.
    pub count: u32,
    /// Tiles: blocks of the grid.
    pub tiles: u32,
    /// The lowest bit of the digit.
    pub shift: u32,
    /// Nothing.
    pub reserved: u32,
}

// SAFETY: sixteen bytes, five fields of eight, four of four: no padding.
unsafe impl KernelParam for PassParams {}

/// From the counts of a digit to those of the next, of so many tiles: fours of them.
#[inline(always)]
#[must_use]
pub const fn pitch(tiles: u32) -> u32 {
    tiles.next_multiple_of(4)
}

impl PassParams {
    /// Where the count of a digit is in a block's tile.
    #[inline(always)]
    fn count_of(&self, digit: u32) -> u64 {
        let at = digit as u64 * pitch(self.tiles) as u64 + thread::block_idx_x() as u64;
        self.counts.offset(at).address()
    }

    /// The key at a place, if there is one.
    #[inline(always)]
    unsafe fn key(&self, at: u32) -> u32 {
        let is_there = at < self.count;
        // SAFETY: the caller's promise.
        unsafe {
            if self.keys.is_null() {
                return self.ids.get(at, is_there);
            }
            ptx::ld_global_f32_if(self.keys.offset(at as u64).address(), is_there).to_bits()
        }
    }

    #[inline(always)]
    fn digit(&self, key: u32) -> u32 {
        (key >> self.shift) & (DIGITS - 1)
    }

    /// The place of a thread's element of a round: warps have parts one after the other.
    #[inline(always)]
    fn place(&self, round: usize) -> u32 {
        let of_warp = warp::SIZE * ROUNDS as u32;
        thread::block_idx_x() * TILE + warp::warp_id() * of_warp + round as u32 * warp::SIZE + warp::lane_id()
    }
}

/// Counts the digits of each tile.
///
/// # Safety
///
/// All threads of a grid of a block for each tile call it. What `p` describes is valid.
#[inline(always)]
pub unsafe fn count_digits(p: &PassParams) {
    let (shared, id) = (SharedAddress::dynamic().get(), thread::thread_idx_x());
    // SAFETY: the caller's promise; barriers are between what threads write and read.
    unsafe {
        ptx::st_shared_b32(shared + id * 4, 0);
        let mut keys = [0; ROUNDS];
        for round in 0..ROUNDS {
            keys[round] = p.key(p.place(round));
        }
        thread::sync_threads();
        for round in 0..ROUNDS {
            if p.place(round) < p.count {
                // In any order: it is the sum alone that is used.
                let _ = ptx::atom_shared_add_u32(shared + p.digit(keys[round]) * 4, 1);
            }
        }
        thread::sync_threads();
        let own = ptx::ld_shared_b32(shared + id * 4);
        ptx::st_global_b32(p.count_of(id), own);
    }
}

/// What the numbers of a block's threads before this one add up to, and what all do.
///
/// # Safety
///
/// All threads of the block call it, and use no shared memory meanwhile.
#[inline(always)]
unsafe fn sums_before(own: u32) -> [u32; 2] {
    let shared = SharedAddress::dynamic().get();
    let (lane, of_warp) = (warp::lane_id(), warp::warp_id());
    // SAFETY: the caller's promise; barriers are between what threads write and read.
    unsafe {
        let (mut sum, mut distance) = (own, 1);
        while distance < warp::SIZE {
            let other = ptx::shfl_sync_up(sum, distance);
            sum += if lane >= distance { other } else { 0 };
            distance *= 2;
        }
        thread::sync_threads();
        if lane == warp::SIZE - 1 {
            ptx::st_shared_b32(shared + of_warp * 4, sum);
        }
        thread::sync_threads();
        let (mut before, mut all) = (sum - own, 0);
        for other in 0..WARPS {
            let of_other = ptx::ld_shared_b32(shared + other * 4);
            before += if other < of_warp { of_other } else { 0 };
            all += of_other;
        }
        [before, all]
    }
}

/// Makes of rows of `count` numbers, [`pitch`] apart, what those before each add up to in its row. What all of a row add up to goes to its place in `totals`.
///
/// # Safety
///
/// All threads of a block for each row call it. The numbers are valid for reads and writes, and aligned to four of them.
#[inline(always)]
pub unsafe fn sum_before(numbers: GlobalMut<u32>, totals: GlobalMut<u32>, count: u32) {
    let row = thread::block_idx_x() as u64;
    let numbers = numbers.offset(row * pitch(count) as u64);
    // Fours of a thread at a time: it waits for all of them at once.
    const FOURS: usize = 8;
    const OF_THREAD: u32 = 4 * FOURS as u32;
    let id = thread::thread_idx_x();
    let (mut base, mut sum) = (0, 0);
    // SAFETY: the caller's promise; each thread has places of its own.
    unsafe {
        while base < count {
            let (mut own, mut of_thread) = ([[0; 4]; FOURS], 0);
            let first = base + id * OF_THREAD;
            for four in 0..FOURS {
                let at = first + 4 * four as u32;
                let from = |i: u32| numbers.offset((at + i) as u64).address();
                if at + 4 <= count {
                    own[four] = ptx::ld_global_v4_b32(from(0));
                } else {
                    for i in 0..4 {
                        let number = ptx::ld_global_f32_if(from(i as u32), at + (i as u32) < count);
                        own[four][i] = number.to_bits();
                    }
                }
            }
            for four in 0..FOURS {
                for i in 0..4 {
                    of_thread += own[four][i];
                }
            }
            let [mut before, all] = sums_before(of_thread);
            before += sum;
            for four in 0..FOURS {
                let at = first + 4 * four as u32;
                for i in 0..4 {
                    let number = own[four][i];
                    own[four][i] = before;
                    before += number;
                }
                let to = |i: u32| numbers.offset((at + i) as u64).address();
                if at + 4 <= count {
                    ptx::st_global_v4_b32(to(0), own[four]);
                } else {
                    for i in 0..4 {
                        if at + (i as u32) < count {
                            ptx::st_global_b32(to(i as u32), own[four][i]);
                        }
                    }
                }
            }
            sum += all;
            base += ORDER_THREADS * OF_THREAD;
        }
        if id == 0 {
            ptx::st_global_b32(totals.offset(row).address(), sum);
        }
    }
}

/// Puts the elements of each tile where their digits begin.
///
/// # Safety
///
/// As [`count_digits`]; `p.counts` is what [`sum_before`] has made of what that has counted, with the totals of digits behind it.
#[inline(always)]
pub unsafe fn put_in_order(p: &PassParams) {
    let (shared, id) = (SharedAddress::dynamic().get(), thread::thread_idx_x());
    let (lane, of_warp) = (warp::lane_id(), warp::warp_id());
    // How many elements of each digit this warp has had so far; then where the next one goes.
    let own = shared + of_warp * DIGITS * 4;
    // SAFETY: the caller's promise; each warp has numbers of its own, but between barriers.
    unsafe {
        let (mut keys, mut tokens, mut ranks) = ([0; ROUNDS], [0; ROUNDS], [0; ROUNDS]);
        for round in 0..ROUNDS {
            let at = p.place(round);
            keys[round] = p.key(at);
            tokens[round] = at;
            if !p.keys.is_null() {
                let from = p.tokens.offset(at as u64).address();
                tokens[round] = ptx::ld_global_f32_if(from, at < p.count).to_bits();
            }
        }
        // Behind all elements with a lower digit than this thread's.
        let total = p.counts.offset(DIGITS as u64 * pitch(p.tiles) as u64 + id as u64);
        let [begin, _] = sums_before(ptx::ld_global_b32(total.address()));
        thread::sync_threads();
        for of in 0..DIGITS / warp::SIZE {
            ptx::st_shared_b32(own + (of * warp::SIZE + lane) * 4, 0);
        }
        warp::sync_warp();
        for round in 0..ROUNDS {
            let (is_there, digit) = (p.place(round) < p.count, p.digit(keys[round]));
            // The lanes with this lane's digit.
            let mut alike = ptx::vote_sync_ballot(is_there);
            for bit in 0..DIGIT_BITS {
                let is_set = digit >> bit & 1 != 0;
                let set = ptx::vote_sync_ballot(is_set);
                alike &= if is_set { set } else { !set };
            }
            let before = (alike & ((1 << lane) - 1)).count_ones();
            let so_far = ptx::ld_shared_b32(own + digit * 4);
            ranks[round] = so_far + before;
            warp::sync_warp();
            if is_there && before == 0 {
                ptx::st_shared_b32(own + digit * 4, so_far + alike.count_ones());
            }
            warp::sync_warp();
        }
        thread::sync_threads();
        // A digit for each thread: where it begins for each warp.
        let mut start = begin + ptx::ld_global_b32(p.count_of(id));
        for other in 0..WARPS {
            let place = shared + (other * DIGITS + id) * 4;
            let count = ptx::ld_shared_b32(place);
            ptx::st_shared_b32(place, start);
            start += count;
        }
        thread::sync_threads();
        for round in 0..ROUNDS {
            if p.place(round) < p.count {
                let to = (ptx::ld_shared_b32(own + p.digit(keys[round]) * 4) + ranks[round]) as u64;
                ptx::st_global_b32(p.sorted_keys.offset(to).address(), keys[round]);
                ptx::st_global_b32(p.sorted_tokens.offset(to).address(), tokens[round]);
            }
        }
    }
}

/// Keys in ascending order, of which the different ones below a limit are wanted.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct DistinctParams {
    /// The keys.
    pub keys: Global<u32>,
    /// How many different ones begin in each tile, and then in the tiles before.
    pub counts: GlobalMut<u32>,
    /// Where the different keys go.
    pub distinct: GlobalMut<u32>,
    /// Where each one begins, and behind the last where that ends.
    pub starts: GlobalMut<u32>,
    /// How many keys there are.
    pub count: u32,
    /// What wanted keys are less than.
    pub limit: u32,
    /// What there is room for.
    pub room: u32,
    /// Nothing.
    pub reserved: u32,
}

// SAFETY: four fields of eight bytes, four of four: no padding.
unsafe impl KernelParam for DistinctParams {}

/// Counts the different keys that begin in each tile; if `PUTS`, puts them, and where they begin, behind those of the tiles before.
///
/// # Safety
///
/// All threads of a grid of a block for each tile call it. What `p` describes is valid. If `PUTS`, `p.counts` is what [`sum_before`] has made of what was counted.
#[inline(always)]
pub unsafe fn find_distinct<const PUTS: bool>(p: &DistinctParams) {
    let first = thread::block_idx_x() * TILE + thread::thread_idx_x() * ROUNDS as u32;
    // SAFETY: the caller's promise.
    unsafe {
        let mut keys = [0; ROUNDS];
        for i in 0..ROUNDS {
            let at = first + i as u32;
            keys[i] = ptx::ld_global_f32_if(p.keys.offset(at as u64).address(), at < p.count).to_bits();
        }
        let is_first = first == 0;
        let before_first = p.keys.offset(first.max(1) as u64 - 1).address();
        let mut last = ptx::ld_global_f32_if(before_first, !is_first && first < p.count).to_bits();
        let (mut begins, mut ends, mut own) = ([false; ROUNDS], [false; ROUNDS], 0);
        for i in 0..ROUNDS {
            let at = first + i as u32;
            begins[i] = at < p.count && keys[i] < p.limit && (at == 0 || keys[i] != last);
            // The first key that is not wanted.
            ends[i] = at < p.count && keys[i] >= p.limit && (at == 0 || last < p.limit);
            last = keys[i];
            own += begins[i] as u32;
        }
        let [mut before, all] = sums_before(own);
        let of_tile = p.counts.offset(thread::block_idx_x() as u64).address();
        if !PUTS {
            if thread::thread_idx_x() == 0 {
                ptx::st_global_b32(of_tile, all);
            }
            return;
        }
        before += ptx::ld_global_b32(of_tile);
        for i in 0..ROUNDS {
            let at = first + i as u32;
            if begins[i] | ends[i] {
                ptx::st_global_b32(p.starts.offset(before as u64).address(), at);
            }
            if begins[i] {
                ptx::st_global_b32(p.distinct.offset(before as u64).address(), keys[i]);
                before += 1;
            }
            if at + 1 == p.count && keys[i] < p.limit {
                ptx::st_global_b32(p.starts.offset(before as u64).address(), p.count);
            }
        }
    }
}
