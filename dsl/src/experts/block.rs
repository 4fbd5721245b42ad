//! A token's experts by a block, or by the blocks of a cluster, each of which has some of the token's hidden units.
//!
//! The units' addresses are looked up first. Then groups of lanes take a set of vectors u (and w) at a time, multiply their chunks of 16 bytes with the token's x, which is in shared
//! memory in f32, and add up over the lanes. Last, each thread has a chunk of columns of y, and adds up over the units, a set of v at a time.
//! So each byte of an expert is read once, by 128-bit loads of which every thread has a set on their way, and it is these bytes that take the
//! time. The first v are asked for before it is known what they are multiplied with, and those of the next set as soon as half of this
//! one's are added up: memory is not left idle in between.
//!
//! Sums are in f32, in an order that depends on the sizes alone: never on where a row is.

use core::marker::PhantomData;

use super::format::RowFormat;
use super::params::{ExpertParams, ExpertRows, TYPE_F32};
use super::sums::Sums;
use super::tokens;
use super::{SET, UNIT_BYTES, X_BYTES, X_TILE};
use crate::epilogue::Function;
use crate::launch::{Global, GlobalMut};
use crate::layout::CHUNK_BYTES;
use crate::shared::SharedAddress;
use crate::{ptx, thread, warp};

/// The most threads that share the units of a chunk of columns.
pub const MAX_SPLITS: u32 = 8;

/// Where in that these two are.
const FACTOR_AT: u32 = 8;
/// Sums of a column that a thread reads at a time, when it adds them up over threads.
const ROWS: usize = 4;

/// Chunks of the units of a set.
type Words = [[u32; 4]; SET];

/// How a block evaluates experts.
pub trait ExpertShape {
    /// Threads of a block.
    const THREADS: u32;
    /// The most blocks that share a token. Where that is more than one, a launch says how many they are.
    const CLUSTER: u32;
    /// Blocks that a multiprocessor is to hold at a time.
    const MIN_BLOCKS: u32;
    /// Hidden units of a token that a block has in shared memory at a time. A cluster's block has no more than that.
    const UNITS: u32;
    /// Bytes of shared memory.
    const SHARED_BYTES: u32;

    /// Evaluates the experts of one token, the block's or the cluster's.
    ///
    /// An id that is no row's, or that of one that is nowhere, makes the token's outputs NaN.
    ///
    /// # Safety
    ///
    /// Every thread of every block of the grid calls it, of a cluster of `p.cluster` blocks for each token, 1 to `CLUSTER`. X and Y are
    /// valid for reads and writes of a row of `d` and `o` elements for each token. `ids` and `gates` are valid for reads of `experts`
    /// elements for each token. The rows are valid for reads wherever `rows` says that they are, and have the format that the type says.
    /// Nothing else writes any of them meanwhile. Where `CLUSTER` is more than 1, each block's share of a token's units is at most `UNITS`.
    unsafe fn evaluate(
        x: Global<u8>,
        ids: Global<u32>,
        gates: Global<f32>,
        rows: ExpertRows,
        y: GlobalMut<u8>,
        p: ExpertParams,
    );
}

/// A block of `WARPS` warps, one of up to `CLUSTER` that share a token, that holds `UNITS` hidden units at a time and of which a multiprocessor
/// holds `BLOCKS`, for rows of format `F`.
pub struct ExpertBlock<F, const WARPS: u32, const CLUSTER: u32, const UNITS: u32, const BLOCKS: u32>(
    PhantomData<F>,
);

impl<F: RowFormat, const WARPS: u32, const CLUSTER: u32, const UNITS: u32, const BLOCKS: u32>
    ExpertBlock<F, WARPS, CLUSTER, UNITS, BLOCKS>
{
    /// Units of a set.
    const SET_UNITS: u32 = SET as u32;
    /// Units after whose v those of the next set are asked for.
    const HALF_UNITS: u32 = F::HALF as u32;
    /// Numbers of a chunk of 16 bytes.
    const CHUNK: u32 = 4 * F::WORD as u32;
    const UNITS_AT: u32 = X_BYTES;
    const SUMS_AT: u32 = Self::UNITS_AT + UNITS * UNIT_BYTES;
    /// Two sums a unit; and where few units are shared by many lanes, one for each eighth of a lane.
    const SUMS_BYTES: u32 = UNITS * 8;
    const X_SUMS_AT: u32 = Self::SUMS_AT + Self::SUMS_BYTES;
    const EXCHANGE_AT: u32 = Self::X_SUMS_AT + 64;
    /// For each thread a chunk of f32; in a cluster the number of chunks that a block gets of each is rounded up.
    const EXCHANGE_BYTES: u32 =
        (WARPS * warp::SIZE + MAX_SPLITS * (CLUSTER - 1)) * Self::CHUNK * size_of::<f32>() as u32;

    /// Blocks that share a token.
    #[inline(always)]
    fn blocks_of_token(p: &ExpertParams) -> u32 {
        if CLUSTER > 1 { p.cluster.max(1) } else { 1 }
    }

    /// Asks for id and gate of unit `unit` of the `count` from `first` on, which are not none: the last one's from there on.
    #[inline(always)]
    unsafe fn ask([ids, gates]: [u64; 2], p: &ExpertParams, [first, count]: [u32; 2], unit: u32) -> [u32; 2] {
        let expert = ((first + unit.min(count - 1)) / p.hidden.max(1)) as u64 * 4;
        // SAFETY: the caller's promise: there are so many experts.
        unsafe { [ptx::ld_global_b32(ids + expert), ptx::ld_global_b32(gates + expert)] }
    }

    /// Looks up the units `first` to `first + count` of the token, which are not none, up to whole sets: addresses and gates. Of the thread's
    /// first unit, id and gate have been [asked](Self::ask) for; scales are asked for, for formats that have them.
    #[inline(always)]
    unsafe fn look_up(
        lists: [u64; 2],
        rows: &ExpertRows,
        p: &ExpertParams,
        [first, count]: [u32; 2],
        mut asked: [u32; 2],
    ) -> [u32; 2] {
        let shared = SharedAddress::dynamic().get();
        let mut unit = thread::thread_idx_x();
        let padded = count.next_multiple_of(Self::SET_UNITS);
        let mut own = rows.resident.address();
        while unit < padded {
            let [id, gate] = asked;
            // SAFETY: the caller's promise: there is a resident row to read in place of one that is not there.
            unsafe {
                let (row, gate) = match rows.find(id) {
                    Some(row) => (row, gate),
                    None => (rows.resident.address(), f32::NAN.to_bits()),
                };
                let part = (first + unit.min(count - 1)) % p.hidden.max(1);
                let address = row + part as u64 * p.unit_bytes;
                let record = [address as u32, (address >> 32) as u32, gate, 0];
                ptx::st_shared_v4_b32(shared + Self::UNITS_AT + unit * UNIT_BYTES, record);
                if F::IS_SCALED && unit == thread::thread_idx_x() {
                    own = address;
                }
                // Opaque: the compiler would copy the loop.
                unit = ptx::opaque(unit + WARPS * warp::SIZE);
                if unit < padded {
                    asked = Self::ask(lists, p, [first, count], unit);
                }
            }
        }
        // SAFETY: the unit's scales, or bytes of a row of which no unit is this thread's.
        if F::IS_SCALED { unsafe { Self::scales(p, own) } } else { [0; 2] }
    }

    /// The words that stand for scale and bias of u and of v of the unit at `address`.
    #[inline(always)]
    unsafe fn scales(p: &ExpertParams, address: u64) -> [u32; 2] {
        // SAFETY: the caller's promise.
        unsafe { ptx::ld_global_v2_b32(address + p.scales_at as u64) }
    }

    /// The address in a unit's record.
    #[inline(always)]
    unsafe fn address(record: u32) -> u64 {
        // SAFETY: the caller's promise: the record is complete and visible.
        let [low, high] = unsafe { ptx::ld_shared_v2_f32(record) };
        low.to_bits() as u64 | (high.to_bits() as u64) << 32
    }

    /// Has the cache get what will be read of the units' v, if it is little: where a block has few units, nothing else hides how long that
    /// takes.
    #[inline(always)]
    unsafe fn prefetch(p: &ExpertParams, count: u32) {
        const LINE: u32 = 128;
        let units = SharedAddress::dynamic().offset(Self::UNITS_AT).get();
        let lines = (p.o.div_ceil(Self::CHUNK) * CHUNK_BYTES).div_ceil(LINE).max(1);
        if count * lines > const { 2 * WARPS * warp::SIZE } {
            return;
        }
        let mut number = thread::thread_idx_x();
        while number < count * lines {
            let (unit, line) = (number / lines, number % lines);
            // SAFETY: the unit's record is complete and visible.
            let address = unsafe { Self::address(units + unit * UNIT_BYTES) };
            ptx::prefetch_global_l2(address + (p.v_at + line * LINE) as u64);
            number = ptx::opaque(number + WARPS * warp::SIZE);
        }
    }

    /// Puts the elements of x from `first` on into shared memory, up to `chunks` chunks, with zeros past the last.
    /// Fours that have the same place in their chunks are stored one after the other, in the order of the chunks. So
    /// neighbouring lanes read neighbouring fours. The result is what the thread's elements add up to.
    #[inline(always)]
    unsafe fn stage_x(x: u64, p: &ExpertParams, first: u32, chunks: u32) -> f32 {
        let shared = SharedAddress::dynamic().get();
        let mut sum = 0.0;
        let mut four = thread::thread_idx_x();
        while four < chunks * F::WORD as u32 {
            let at = first + 4 * four;
            // SAFETY: the caller's promise.
            let values = unsafe { tokens::four_of(x, at, p) };
            let (chunk, place) = (four / F::WORD as u32, four % F::WORD as u32);
            let to = shared + place * const { X_BYTES / F::WORD as u32 } + chunk * CHUNK_BYTES;
            // SAFETY: the place is this thread's.
            unsafe { ptx::st_shared_v4_f32(to, values) }
            if F::IS_SCALED {
                sum += (values[0] + values[1]) + (values[2] + values[3]);
            }
            four += WARPS * warp::SIZE;
        }
        sum
    }

    /// Leaves the sum of the threads' numbers to be added up by [`sum_of_x`](Self::sum_of_x).
    #[inline(always)]
    unsafe fn put_sum(mut sum: f32) {
        let mut mask = 16;
        while mask > 0 {
            // SAFETY: all lanes are here.
            sum += f32::from_bits(unsafe { ptx::shfl_sync_bfly(sum.to_bits(), mask) });
            mask /= 2;
        }
        if warp::lane_id() == 0 {
            let to = SharedAddress::dynamic().offset(Self::X_SUMS_AT + warp::warp_id() * 4);
            // SAFETY: the place is this warp's.
            unsafe { ptx::st_shared_f32(to.get(), sum) }
        }
    }

    #[inline(always)]
    unsafe fn sum_of_x() -> f32 {
        let at = SharedAddress::dynamic().offset(Self::X_SUMS_AT).get();
        let mut sum = 0.0;
        for warp in 0..WARPS {
            // SAFETY: every warp has put its sum there.
            sum += unsafe { ptx::ld_shared_f32(at + 4 * warp) };
        }
        sum
    }

    /// Makes of the units' sums what their v are multiplied with, and what is added. The scales are those of the thread's first unit.
    #[inline(always)]
    unsafe fn activate(p: &ExpertParams, sums: &Sums, [count, vectors]: [u32; 2], mut scales: [u32; 2]) {
        let shared = SharedAddress::dynamic().get();
        let mut unit = thread::thread_idx_x();
        while unit < count.next_multiple_of(Self::SET_UNITS) {
            let at = shared + Self::UNITS_AT + unit * UNIT_BYTES + FACTOR_AT;
            let mut factors = [0.0; 2];
            if unit < count {
                // SAFETY: the sums and the unit's record are complete and visible, its scales valid for reads.
                unsafe {
                    let mut sum_of_x = 0.0;
                    if F::IS_SCALED {
                        if unit >= WARPS * warp::SIZE {
                            scales = Self::scales(p, Self::address(at - FACTOR_AT));
                        }
                        sum_of_x = Self::sum_of_x();
                    }
                    let scaled = |sum: f32, word: u32| {
                        if !F::IS_SCALED {
                            return sum;
                        }
                        let [scale, bias] = F::scale_and_bias(word);
                        ptx::fma(scale, sum, bias * sum_of_x)
                    };
                    let mut h = ptx::ld_shared_f32(at);
                    // Opaque: the compiler would copy the loop.
                    let mut vector = ptx::opaque(0);
                    while vector < vectors {
                        let mut of_vector = scales[0];
                        if F::IS_SCALED && vector > 0 {
                            // The word of w is behind those of u and v.
                            let words = Self::address(at - FACTOR_AT) + p.scales_at as u64;
                            of_vector = ptx::ld_global_b32(words + 8);
                        }
                        let z = scaled(sums.get(vectors * unit + vector), of_vector);
                        let [activated] = p.activation.of([z]);
                        h *= if vector == 0 { activated } else { z };
                        vector = ptx::opaque(vector + 1);
                    }
                    factors[0] = h;
                    if F::IS_SCALED {
                        let [scale, bias] = F::scale_and_bias(scales[1]);
                        factors = [h * scale, h * bias];
                    }
                }
            }
            // SAFETY: the place is this thread's.
            unsafe { ptx::st_shared_v2_f32(at, factors) }
            unit += WARPS * warp::SIZE;
        }
    }

    /// Where in the memory of the block that has it the sums of chunk `chunk` of this pass are, of the threads of split `split` of this block.
    #[inline(always)]
    fn exchange(p: &ExpertParams, chunk: u32, split: u32) -> (u32, u32) {
        let own = p.lanes.div_ceil(Self::blocks_of_token(p)).max(1);
        let (owner, place) = if CLUSTER > 1 { (chunk / own, chunk % own) } else { (0, chunk) };
        let rank = if CLUSTER > 1 { ptx::cluster_ctarank() } else { 0 };
        let row = rank * p.splits + split;
        let at = Self::EXCHANGE_AT + (row * own + place) * const { Self::CHUNK * 4 };
        (owner, SharedAddress::dynamic().offset(at).get())
    }

    /// The thread's share of v: from which byte of a unit on, the first unit, and units from one half of its set to the next; none if it has
    /// none.
    #[inline(always)]
    fn share(p: &ExpertParams, first_chunk: u32) -> Option<(u64, u32, u32)> {
        let lanes = p.lanes.max(1);
        let (split, lane) = (thread::thread_idx_x() / lanes, thread::thread_idx_x() % lanes);
        let chunk = first_chunk + lane;
        if split >= p.splits || chunk >= p.o.div_ceil(Self::CHUNK) {
            return None;
        }
        let from = p.v_at as u64 + (chunk * CHUNK_BYTES) as u64;
        Some((from, split * Self::HALF_UNITS, p.splits * Self::HALF_UNITS))
    }

    /// Asks for chunks of v, from byte `from` of units on: of the units from `first` on, as that half of the thread's set, if there are any.
    #[inline(always)]
    unsafe fn ask_half(from: u64, [first, count]: [u32; 2], half: usize, words: &mut Words) {
        if first >= count {
            return;
        }
        let units = SharedAddress::dynamic().offset(Self::UNITS_AT).get();
        for i in 0..F::HALF {
            // SAFETY: the caller's promise: the records of whole sets are complete and visible, and of each unit all chunks of v are there.
            unsafe {
                let address = Self::address(units + (first + i as u32) * UNIT_BYTES);
                words[half * F::HALF + i] = ptx::ld_global_nc_v4_b32(address + from);
            }
        }
    }

    /// Asks for the thread's first set of v, of `count` units.
    #[inline(always)]
    unsafe fn ask_first(p: &ExpertParams, first_chunk: u32, count: u32, words: &mut Words) {
        if let Some((from, first, step)) = Self::share(p, first_chunk) {
            // SAFETY: the caller's promise.
            unsafe {
                Self::ask_half(from, [first, count], 0, words);
                Self::ask_half(from, [first + step, count], 1, words);
            }
        }
    }

    /// Adds up the v of `count` units in the thread's chunk of columns, the first set of which has been [asked](Self::ask_first)
    /// for. It puts that where it is added up over the threads, and adds it to what is there if these are not the first units.
    #[inline(always)]
    unsafe fn combine(p: &ExpertParams, first_chunk: u32, count: u32, is_first: bool, words: &mut Words) {
        let Some((from, mut first, step)) = Self::share(p, first_chunk) else { return };
        let units = SharedAddress::dynamic().offset(Self::UNITS_AT).get();
        let (mut sums, mut bias) = ([[0f32; 8]; 4], 0.0);
        while first < count {
            for half in 0..2 {
                if half == 1 && first >= count {
                    break;
                }
                for i in 0..F::HALF {
                    let record = units + (first + i as u32) * UNIT_BYTES;
                    // SAFETY: the units of whole sets are complete and visible.
                    let [factor, added] = unsafe { ptx::ld_shared_v2_f32(record + FACTOR_AT) };
                    for (word, sums) in words[half * F::HALF + i].iter().zip(&mut sums) {
                        for (n, sum) in sums[..F::WORD].iter_mut().enumerate() {
                            *sum = ptx::fma(factor, F::number(*word, n), *sum);
                        }
                    }
                    if F::IS_SCALED {
                        bias += added;
                    }
                }
                // SAFETY: the caller's promise.
                unsafe { Self::ask_half(from, [first + 2 * step, count], half, words) }
                first += step;
            }
        }
        let lanes = p.lanes.max(1);
        let (split, lane) = (thread::thread_idx_x() / lanes, thread::thread_idx_x() % lanes);
        let (owner, at) = Self::exchange(p, lane, split);
        let at = if CLUSTER > 1 { ptx::mapa(at, owner) } else { at };
        for four in 0..F::WORD {
            let mut values = [0f32; 4];
            for (i, value) in values.iter_mut().enumerate() {
                let n = 4 * four + i;
                *value = sums[n / F::WORD][n % F::WORD] + bias;
            }
            let to = at + four as u32 * 16;
            // SAFETY: the place is this thread's, until all have come to a barrier.
            unsafe {
                if CLUSTER > 1 {
                    ptx::st_shared_cluster_v4_f32(to, values);
                } else {
                    if !is_first {
                        let before = ptx::ld_shared_v4_f32(to);
                        for (value, before) in values.iter_mut().zip(&before) {
                            *value += before;
                        }
                    }
                    ptx::st_shared_v4_f32(to, values);
                }
            }
        }
    }

    /// Adds up over the threads, and stores the columns that this block has.
    #[inline(always)]
    unsafe fn store(p: &ExpertParams, y: u64, first_chunk: u32) {
        let blocks = Self::blocks_of_token(p);
        let own = p.lanes.div_ceil(blocks);
        let skipped = if CLUSTER > 1 { ptx::cluster_ctarank() * own } else { 0 };
        let lanes = own.min(p.lanes.saturating_sub(skipped));
        let exchange = SharedAddress::dynamic().offset(Self::EXCHANGE_AT).get();
        let mut number = thread::thread_idx_x();
        while number < lanes * Self::CHUNK {
            let column = (first_chunk + skipped) * Self::CHUNK + number;
            if column < p.o {
                let (mut sum, mut row, rows) = (0.0, 0, (blocks * p.splits).max(1));
                while row < rows {
                    // Several at a time, the last one again in place of those past it.
                    let mut values = [0f32; ROWS];
                    for (i, value) in values.iter_mut().enumerate() {
                        let at = ((row + i as u32).min(rows - 1) * own * Self::CHUNK + number) * 4;
                        // SAFETY: all have put their sums there, and come to a barrier.
                        *value = unsafe { ptx::ld_shared_f32(exchange + at) };
                    }
                    for (i, value) in values.iter().enumerate() {
                        sum += if row + (i as u32) < rows { *value } else { 0.0 };
                    }
                    // Opaque: the compiler would copy the loop.
                    row = ptx::opaque(row + ROWS as u32);
                }
                // SAFETY: the column is this thread's.
                unsafe { tokens::store(y, column, sum, p.element) }
            }
            number += WARPS * warp::SIZE;
        }
    }

    /// Waits for all threads that share the token.
    #[inline(always)]
    unsafe fn synchronize() {
        // SAFETY: the caller's promise: they all are here.
        unsafe {
            if CLUSTER > 1 {
                ptx::barrier_cluster_arrive();
                ptx::barrier_cluster_wait();
            } else {
                thread::sync_threads();
            }
        }
    }
}

impl<F: RowFormat, const WARPS: u32, const CLUSTER: u32, const UNITS: u32, const BLOCKS: u32> ExpertShape
    for ExpertBlock<F, WARPS, CLUSTER, UNITS, BLOCKS>
{
    const THREADS: u32 = WARPS * warp::SIZE;
    const CLUSTER: u32 = CLUSTER;
    const MIN_BLOCKS: u32 = BLOCKS;
    const UNITS: u32 = UNITS;
    const SHARED_BYTES: u32 = {
        assert!(
            UNITS.is_multiple_of(Self::SET_UNITS)
                && Self::SUMS_BYTES >= Self::THREADS / 8 * Self::SET_UNITS * 4
        );
        assert!(WARPS <= 16, "each warp's sum of x has its place");
        Self::EXCHANGE_AT + Self::EXCHANGE_BYTES
    };

    #[inline(always)]
    unsafe fn evaluate(
        x: Global<u8>,
        ids: Global<u32>,
        gates: Global<f32>,
        rows: ExpertRows,
        y: GlobalMut<u8>,
        p: ExpertParams,
    ) {
        let blocks = Self::blocks_of_token(&p);
        let token = (thread::block_idx_x() / blocks) as u64;
        let rank = if CLUSTER > 1 { ptx::cluster_ctarank() } else { 0 };
        let size = if p.element == TYPE_F32 { 4 } else { 2 };
        let x = x.address() + token * p.stride_x * size;
        let of_token = token * p.experts as u64 * 4;
        let lists = [ids.address() + of_token, gates.address() + of_token];
        // Whole sets of units for each block.
        let units = p.experts * p.hidden;
        let sets = units.div_ceil(Self::SET_UNITS);
        let (begin, end) =
            (rank * sets / blocks * Self::SET_UNITS, units.min((rank + 1) * sets / blocks * Self::SET_UNITS));
        let in_one_go = end - begin <= UNITS;
        let input_chunks = p.input_bytes / CHUNK_BYTES;
        let tile = const { X_TILE / Self::CHUNK };
        let vectors = if p.v_at == p.input_bytes { 1 } else { 2 };
        let sums = Sums::new(WARPS, Self::SUMS_AT, Self::UNITS_AT, input_chunks);

        if CLUSTER > 1 {
            // SAFETY: all threads of the cluster; each waits before it writes to another block.
            unsafe { ptx::barrier_cluster_arrive_relaxed() }
        }
        let mut first_chunk = 0;
        while first_chunk < p.o.div_ceil(Self::CHUNK) {
            let mut first = begin;
            loop {
                let count = (end - first).min(UNITS);
                let looks_up = count > 0 && (first_chunk == 0 || !in_one_go);
                let (mut words, mut scales) = ([[0u32; 4]; SET], [0; 2]);
                let sums = sums.of(count * vectors);
                // SAFETY: the caller's promise; all threads of the block are here, and take the same way.
                unsafe {
                    if looks_up {
                        let asked = Self::ask(lists, &p, [first, count], thread::thread_idx_x());
                        let (mut tile_begin, mut sum) = (0, 0.0);
                        // Also where x has no columns: the sums are zeros then.
                        loop {
                            let chunks = (input_chunks - tile_begin).min(tile);
                            sum += Self::stage_x(x, &p, tile_begin * Self::CHUNK, chunks);
                            if tile_begin == 0 {
                                scales = Self::look_up(lists, &rows, &p, [first, count], asked);
                            }
                            thread::sync_threads();
                            if CLUSTER > 1 && tile_begin == 0 {
                                Self::prefetch(&p, count);
                            }
                            let from = [tile_begin, chunks];
                            // Of less than 2³¹ columns.
                            sums.add::<F>(from, p.input_bytes, vectors, p.d >> 31, tile_begin > 0);
                            tile_begin += chunks;
                            if tile_begin == input_chunks {
                                break;
                            }
                            thread::sync_threads();
                        }
                        if F::IS_SCALED {
                            Self::put_sum(sum);
                        }
                    }
                    Self::ask_first(&p, first_chunk, count, &mut words);
                    if looks_up {
                        thread::sync_threads();
                        Self::activate(&p, &sums, [count, vectors], scales);
                        thread::sync_threads();
                    }
                    if CLUSTER > 1 && first_chunk == 0 {
                        ptx::barrier_cluster_wait();
                    }
                    Self::combine(&p, first_chunk, count, first == begin, &mut words);
                }
                first += count;
                if CLUSTER > 1 || first == end {
                    break;
                }
                // SAFETY: all threads of the block are here.
                unsafe { thread::sync_threads() }
            }
            // SAFETY: all threads that share the token are here; between the two, sums are read that all have written.
            unsafe {
                Self::synchronize();
                // Opaque: it would take registers all the time.
                let token = ptx::opaque(token as u32) as u64;
                Self::store(&p, y.address() + token * p.stride_y * size, first_chunk);
                first_chunk += p.lanes;
                if first_chunk < p.o.div_ceil(Self::CHUNK) {
                    Self::synchronize();
                }
            }
        }
    }
}
