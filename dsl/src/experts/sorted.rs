//! Experts of many tokens, in the order of the table.
//!
//! A warp has a group of a few tokens, whose hidden units are sorted by the part of the table that their expert is in ([`order_units`]).
//! It goes through them in this order, with a slice of the columns at a time. First it goes through u (and w), with its tokens' x of these
//! columns in shared memory ([`SortedShape::products`]). Then it goes through v, with its tokens' y there ([`SortedShape::outputs`]). As
//! many warps as the device has room for begin at the same time, and have about as many units in each part of the table. So they are in
//! about the same part at any time, and a row that a token of another warp has used is in the level-2 cache: memory is read once for all
//! of them. A token has a few units in each part, which follow one another: while they do, x and the sums of y are in registers.
//!
//! Nothing waits for another warp, so it is only the time that depends on that. Sums of a product are added up over columns, then over
//! lanes, then over slices; those of an output over the token's units in the order of parts, of a part in the order of the token's list. So results
//! depend neither on the tokens of a group, nor on how many there are, nor on where a row is.

mod order;

use core::marker::PhantomData;

pub use order::{ORDER_BYTES, ORDER_THREADS, order_units};

use super::format::RowFormat;
use super::params::ExpertParams;
use super::sums::over_lanes;
use super::{SET, tokens};
use crate::epilogue::Function;
use crate::launch::{Global, GlobalMut, KernelParam};
use crate::layout::CHUNK_BYTES;
use crate::shared::SharedAddress;
use crate::{ptx, thread, warp};

/// The most tokens of a group: their number within it has the bits of an address that are zeros.
pub const GROUP_TOKENS: u32 = 8;
/// The most hidden units of a group's tokens, all together.
pub const GROUP_UNITS: u32 = 2048;
/// Units of which a warp looks up the places at a time: a group's lists have whole batches.
pub const BATCH: u32 = warp::SIZE;
/// Chunks of a slice of columns: one for each lane.
pub const LANES: u32 = warp::SIZE;
/// Bytes of a unit in a list: its address, in which the lowest bits are its token's number in the group.
const ENTRY_BYTES: u32 = 8;
/// The bits of that number.
const TOKEN_MASK: u32 = CHUNK_BYTES - 1;
/// That of what stands behind the last unit: nothing is to be added to a token's sums, not even a product with 0, which is NaN for an infinity.
const NO_TOKEN: u32 = TOKEN_MASK;
/// Bytes that all lanes' fours of columns take.
const PLANE_BYTES: u32 = LANES * 16;
/// Units of which a lane has a chunk each on their way.
const IN_FLIGHT: usize = 16;
/// Of these the units that are asked for at a time: as soon as so many are used.
const QUARTER: usize = IN_FLIGHT / 4;
/// Warps of a block that goes through the table: they have nothing to do with each other.
const WARPS: u32 = 4;

/// How tokens and their units are divided, and which step this is. A kernel parameter.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SortedParams {
    /// Tokens, at least 1.
    pub tokens: u32,
    /// Tokens of a group, 1 to [`GROUP_TOKENS`]; the last one has what is left.
    pub group: u32,
    /// Units that a group's list has room for: a multiple of [`BATCH`].
    pub room: u32,
    /// The first chunk of the slice.
    pub first_chunk: u32,
    /// Which vector of a unit is multiplied with x: 0 for u, 1 for w.
    pub vector: u32,
    /// Whether products are completed, activated and multiplied with the gates.
    pub ends: u32,
    /// Experts of a part of the table are 2 to this power: so many that the parts, times a group's tokens, are at most [`GROUP_UNITS`].
    pub part_bits: u32,
    /// Keeps the size a multiple of the alignment of those beside it; its value is not read.
    pub reserved: u32,
}

// SAFETY: a fixed layout of kernel parameters, without padding: eight fields of four bytes.
unsafe impl KernelParam for SortedParams {}

impl SortedParams {
    #[inline(always)]
    fn groups(&self) -> u32 {
        self.tokens.div_ceil(self.group.max(1))
    }

    /// The first token of a group, and how many it has.
    #[inline(always)]
    fn tokens_of(&self, group: u32) -> [u32; 2] {
        let first = group * self.group;
        [first, self.group.min(self.tokens - first)]
    }
}

/// How warps go through the table.
pub trait SortedShape {
    /// Threads of a block.
    const THREADS: u32;
    /// Blocks that a multiprocessor is to hold at a time.
    const MIN_BLOCKS: u32;
    /// Bytes of shared memory.
    const SHARED_BYTES: u32;

    /// Multiplies a slice of x with those of the units' vectors, and adds that to their products, which it begins where the slice is the first. With
    /// the last of them, products become what v is multiplied with.
    ///
    /// # Safety
    ///
    /// Every thread of a one-dimensional grid of a warp or more for each group calls it. X is valid for reads of rows of `d` elements. `units`
    /// and `gates` are the lists of [`order_units`], whose rows have the format that the type says. `products` is valid for one number for
    /// each of these for each vector of a unit. It holds the sums of the slices before this one. Nothing else uses what is written.
    unsafe fn products(
        x: Global<u8>,
        units: Global<u32>,
        gates: Global<f32>,
        products: GlobalMut<f32>,
        p: ExpertParams,
        s: SortedParams,
    );

    /// Adds up a slice of the units' v, times what they are multiplied with, for each token, and stores that in Y.
    ///
    /// # Safety
    ///
    /// As [`products`](Self::products), with the completed products as `factors`; Y is valid for writes of rows of `o` elements, which nothing else uses.
    unsafe fn outputs(
        units: Global<u32>,
        factors: Global<f32>,
        y: GlobalMut<u8>,
        p: ExpertParams,
        s: SortedParams,
    );
}

/// Blocks of four warps, for rows of format `F`.
pub struct SortedExperts<F>(PhantomData<F>);

/// A group's list, as its warp goes through it.
#[derive(Clone, Copy)]
struct List {
    /// Where the list is.
    units: u64,
    /// Where two batches of it are in shared memory.
    ring: u32,
    /// The units, in whole batches.
    count: u32,
}

impl List {
    /// The lane's entry of the batch that begins with unit `first`, or of the last one if there is no such batch.
    #[inline(always)]
    unsafe fn read(&self, first: u32) -> [u32; 2] {
        let unit = first.min(self.count - BATCH) + warp::lane_id();
        // SAFETY: the caller's promise: the list has so many units.
        unsafe { ptx::ld_global_v2_b32(self.units + (unit * ENTRY_BYTES) as u64) }
    }

    /// Where unit `unit`, of this batch or of the next, is in shared memory.
    #[inline(always)]
    fn at(&self, unit: u32) -> u32 {
        self.ring + unit % (2 * BATCH) * ENTRY_BYTES
    }

    /// Puts the lane's entry of the batch that begins with unit `first` into shared memory.
    #[inline(always)]
    unsafe fn put(&self, first: u32, [low, high]: [u32; 2]) {
        let entry = [f32::from_bits(low), f32::from_bits(high)];
        // SAFETY: the place is this lane's; what it held has been used.
        unsafe { ptx::st_shared_v2_f32(self.at(first + warp::lane_id()), entry) }
    }

    /// The address of a unit.
    #[inline(always)]
    unsafe fn address(&self, unit: u32) -> u64 {
        // SAFETY: the caller's promise: the unit's batch is in shared memory.
        let [low, high] = unsafe { ptx::ld_shared_v2_f32(self.at(unit)) };
        (low.to_bits() & !TOKEN_MASK) as u64 | (high.to_bits() as u64) << 32
    }

    /// The number in the group of a unit's token.
    #[inline(always)]
    unsafe fn token(&self, unit: u32) -> u32 {
        // SAFETY: the caller's promise: the unit's batch is in shared memory.
        (unsafe { ptx::ld_shared_b32(self.at(unit)) }) & TOKEN_MASK
    }

    /// Whether no unit is left from `unit` on, where a batch begins that is in shared memory.
    #[inline(always)]
    unsafe fn ends_at(&self, unit: u32) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.token(unit) == NO_TOKEN }
    }

    /// Asks for the lane's chunk of a quarter of the units on their way, from unit `first` on, of vectors which begin at byte `from` of their units.
    #[inline(always)]
    unsafe fn ask(
        &self,
        first: u32,
        from: u64,
        is_there: bool,
        words: &mut [[u32; 4]; IN_FLIGHT],
        quarter: usize,
    ) {
        if first >= self.count || !is_there {
            return;
        }
        for i in 0..QUARTER {
            // SAFETY: the caller's promise: the units' batch is in shared memory, and their vectors have this chunk.
            unsafe {
                let address = self.address(first + i as u32);
                words[quarter * QUARTER + i] = ptx::ld_global_nc_v4_b32(address + from);
            }
        }
    }

    /// Asks for the first units, as [`ask`](Self::ask) does.
    #[inline(always)]
    unsafe fn ask_first(&self, from: u64, is_there: bool) -> [[u32; 4]; IN_FLIGHT] {
        let mut words = [[0; 4]; IN_FLIGHT];
        for quarter in 0..IN_FLIGHT / QUARTER {
            // SAFETY: the caller's promise.
            unsafe { self.ask((quarter * QUARTER) as u32, from, is_there, &mut words, quarter) }
        }
        words
    }
}

impl<F: RowFormat> SortedExperts<F> {
    /// Numbers of a chunk of 16 bytes.
    const CHUNK: u32 = 4 * F::WORD as u32;
    /// Bytes of a slice of a token.
    const TOKEN_BYTES: u32 = F::WORD as u32 * PLANE_BYTES;
    const RING_AT: u32 = GROUP_TOKENS * Self::TOKEN_BYTES;
    /// A number for each unit of two batches.
    const FACTORS_AT: u32 = Self::RING_AT + 2 * BATCH * ENTRY_BYTES;
    const WARP_BYTES: u32 = Self::FACTORS_AT + 2 * BATCH * 4;

    /// The warp's group and its shared memory; none if there is no such group.
    #[inline(always)]
    fn group(s: &SortedParams) -> Option<(u32, u32)> {
        let group = thread::block_idx_x() * WARPS + warp::warp_id();
        let at = SharedAddress::dynamic().offset(warp::warp_id() * Self::WARP_BYTES);
        (group < s.groups()).then_some((group, at.get()))
    }

    /// The list of a group, none of whose tokens is without units.
    #[inline(always)]
    fn list(units: Global<u32>, p: &ExpertParams, s: &SortedParams, group: u32, shared: u32) -> List {
        let [_, tokens] = s.tokens_of(group);
        List {
            units: units.address() + group as u64 * s.room as u64 * ENTRY_BYTES as u64,
            ring: shared + Self::RING_AT,
            count: (tokens * p.experts * p.hidden).next_multiple_of(BATCH),
        }
    }

    /// Puts the slice of the group's x into shared memory, four columns after four of all lanes.
    #[inline(always)]
    unsafe fn stage_x(x: u64, p: &ExpertParams, s: &SortedParams, group: u32, shared: u32) {
        let ([first, tokens], lane) = (s.tokens_of(group), warp::lane_id());
        let column = (s.first_chunk + lane) * Self::CHUNK;
        let mut token = 0;
        while token < tokens {
            let row = x + (first + token) as u64 * p.stride_x * tokens::size(p);
            for four in 0..F::WORD as u32 {
                let to = shared + token * Self::TOKEN_BYTES + four * PLANE_BYTES + lane * 16;
                // SAFETY: the caller's promise; the place is this lane's.
                unsafe { ptx::st_shared_v4_f32(to, tokens::four_of(row, column + 4 * four, p)) }
            }
            // Opaque: the compiler would copy the loop.
            token = ptx::opaque(token + 1);
        }
    }

    /// Stores the slice of the group's y, of which each lane has the sums of its own columns.
    #[inline(always)]
    unsafe fn store_y(y: u64, p: &ExpertParams, s: &SortedParams, group: u32, shared: u32) {
        let [first, tokens] = s.tokens_of(group);
        let mut token = 0;
        while token < tokens {
            let row = y + (first + token) as u64 * p.stride_y * tokens::size(p);
            // Neighbouring lanes store neighbouring columns.
            for part in 0..Self::CHUNK {
                let number = part * LANES + warp::lane_id();
                let (lane, place) = (number / Self::CHUNK, number % Self::CHUNK);
                let at =
                    shared + token * Self::TOKEN_BYTES + place / 4 * PLANE_BYTES + lane * 16 + place % 4 * 4;
                let column = s.first_chunk * Self::CHUNK + number;
                if column < p.o {
                    // SAFETY: the lanes' sums are complete and visible; the column is this thread's.
                    unsafe { tokens::store(row, column, ptx::ld_shared_f32(at), p.element) }
                }
            }
            // Opaque: the compiler would copy the loop.
            token = ptx::opaque(token + 1);
        }
    }
}

impl<F: RowFormat> SortedShape for SortedExperts<F> {
    const THREADS: u32 = WARPS * warp::SIZE;
    const MIN_BLOCKS: u32 = 4;
    const SHARED_BYTES: u32 = {
        assert!(!F::IS_SCALED, "a unit has no scales");
        assert!(GROUP_TOKENS <= NO_TOKEN);
        WARPS * Self::WARP_BYTES
    };

    #[inline(always)]
    unsafe fn products(
        x: Global<u8>,
        units: Global<u32>,
        gates: Global<f32>,
        products: GlobalMut<f32>,
        p: ExpertParams,
        s: SortedParams,
    ) {
        let Some((group, shared)) = Self::group(&s) else { return };
        let (list, lane) = (Self::list(units, &p, &s, group, shared), warp::lane_id());
        let chunk = s.first_chunk + lane;
        let is_there = chunk < p.input_bytes / CHUNK_BYTES;
        let from = (s.vector * p.input_bytes + chunk * CHUNK_BYTES) as u64;
        let numbers = shared + Self::FACTORS_AT;
        let own = (group * s.room + lane) as u64 * 4;
        let of_u = products.address() + own;
        let of_vector = of_u + (s.vector * s.groups() * s.room) as u64 * 4;
        // SAFETY: the caller's promise; all lanes of the warp are here, and take the same way.
        unsafe {
            list.put(0, list.read(0));
            let mut next = list.read(BATCH);
            warp::sync_warp();
            let mut words = list.ask_first(from, is_there);
            Self::stage_x(x.address(), &p, &s, group, shared);
            let (mut unit, mut current, mut x) = (0, u32::MAX, [[0f32; 4]; 8]);
            while unit < list.count {
                if list.ends_at(unit) {
                    // Later launches ask for these, but do not use them.
                    while unit < list.count {
                        ptx::st_global_b32(of_vector + unit as u64 * 4, 0);
                        unit = ptx::opaque(unit + BATCH);
                    }
                    break;
                }
                let batch = unit;
                list.put(batch + BATCH, next);
                next = list.read(batch + 2 * BATCH);
                let at = batch as u64 * 4;
                let before = ptx::ld_global_f32_if(of_vector + at, s.first_chunk > 0);
                let other = ptx::ld_global_f32_if(of_u + at, s.vector > 0);
                let gate = ptx::ld_global_f32_if(gates.address() + own + at, s.ends > 0);
                warp::sync_warp();
                while unit < batch + BATCH {
                    let mut sums = [0f32; SET];
                    for quarter in 0..IN_FLIGHT / QUARTER {
                        for i in 0..QUARTER {
                            let token = list.token(unit + i as u32);
                            if token != current {
                                current = token;
                                let at = shared + token * Self::TOKEN_BYTES + lane * 16;
                                if token != NO_TOKEN {
                                    for (four, x) in x[..F::WORD].iter_mut().enumerate() {
                                        *x = ptx::ld_shared_v4_f32(at + four as u32 * PLANE_BYTES);
                                    }
                                }
                            }
                            let (words, mut sum) = (words[quarter * QUARTER + i], 0.0);
                            for n in 0..4 * F::WORD {
                                sum = ptx::fma(
                                    F::number(words[n / F::WORD], n % F::WORD),
                                    x[n / 4][n % 4],
                                    sum,
                                );
                            }
                            sums[(quarter * QUARTER + i) % SET] = sum;
                        }
                        list.ask(unit + IN_FLIGHT as u32, from, is_there, &mut words, quarter);
                        unit += QUARTER as u32;
                        if ((quarter + 1) * QUARTER).is_multiple_of(SET) {
                            let (sum, vector) = over_lanes(warp::SIZE, sums);
                            if lane < SET as u32 {
                                let place = unit - SET as u32 - batch + vector;
                                ptx::st_shared_f32(numbers + place * 4, sum);
                            }
                        }
                    }
                    // Opaque: the compiler would copy the loop.
                    unit = ptx::opaque(unit);
                }
                warp::sync_warp();
                let sum = before + ptx::ld_shared_f32(numbers + lane * 4);
                if s.ends == 0 {
                    ptx::st_global_b32(of_vector + at, sum.to_bits());
                } else {
                    let [activated] = p.activation.of([if s.vector > 0 { other } else { sum }]);
                    let h = gate * activated;
                    ptx::st_global_b32(of_u + at, (if s.vector > 0 { h * sum } else { h }).to_bits());
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn outputs(
        units: Global<u32>,
        factors: Global<f32>,
        y: GlobalMut<u8>,
        p: ExpertParams,
        s: SortedParams,
    ) {
        let Some((group, shared)) = Self::group(&s) else { return };
        let (list, lane) = (Self::list(units, &p, &s, group, shared), warp::lane_id());
        let [_, tokens] = s.tokens_of(group);
        let chunk = s.first_chunk + lane;
        let is_there = chunk < p.o.div_ceil(Self::CHUNK);
        let from = (p.v_at + chunk * CHUNK_BYTES) as u64;
        let numbers = shared + Self::FACTORS_AT;
        let own = factors.address() + (group * s.room + lane) as u64 * 4;
        // Of the lane's unit of the batch that begins with this one; of those behind the last, and of batches that are none, nothing.
        let last = tokens * p.experts * p.hidden;
        let factor_of = |first: u32| {
            // SAFETY: the caller's promise: there are so many products.
            unsafe { ptx::ld_global_f32_if(own + first as u64 * 4, first + lane < last) }
        };
        // SAFETY: the caller's promise; all lanes of the warp are here, and take the same way.
        unsafe {
            let mut plane = 0;
            while plane < tokens * F::WORD as u32 {
                ptx::st_shared_v4_f32(shared + plane * PLANE_BYTES + lane * 16, [0.0; 4]);
                plane = ptx::opaque(plane + 1);
            }
            list.put(0, list.read(0));
            ptx::st_shared_f32(numbers + lane * 4, factor_of(0));
            let (mut next, mut factor) = (list.read(BATCH), factor_of(BATCH));
            warp::sync_warp();
            let mut words = list.ask_first(from, is_there);
            let at_token = |token: u32| shared + token * Self::TOKEN_BYTES + lane * 16;
            let none = at_token(NO_TOKEN);
            let (mut unit, mut current, mut sums) = (0, at_token(0), [[0f32; 4]; 8]);
            while unit < list.count && !list.ends_at(unit) {
                let batch = unit;
                list.put(batch + BATCH, next);
                ptx::st_shared_f32(numbers + (batch + BATCH + lane) % (2 * BATCH) * 4, factor);
                (next, factor) = (list.read(batch + 2 * BATCH), factor_of(batch + 2 * BATCH));
                warp::sync_warp();
                while unit < batch + BATCH {
                    for quarter in 0..IN_FLIGHT / QUARTER {
                        for i in 0..QUARTER {
                            let number = unit + i as u32;
                            let token = at_token(list.token(number));
                            if token != current {
                                for (four, sums) in sums[..F::WORD].iter_mut().enumerate() {
                                    let plane = four as u32 * PLANE_BYTES;
                                    ptx::st_shared_v4_f32(current + plane, *sums);
                                    if token != none {
                                        *sums = ptx::ld_shared_v4_f32(token + plane);
                                    }
                                }
                                current = token;
                            }
                            let factor = ptx::ld_shared_f32(numbers + number % (2 * BATCH) * 4);
                            let words = words[quarter * QUARTER + i];
                            for n in 0..4 * F::WORD {
                                let v = F::number(words[n / F::WORD], n % F::WORD);
                                sums[n / 4][n % 4] = ptx::fma(factor, v, sums[n / 4][n % 4]);
                            }
                        }
                        list.ask(unit + IN_FLIGHT as u32, from, is_there, &mut words, quarter);
                        unit += QUARTER as u32;
                    }
                    // Opaque: the compiler would copy the loop.
                    unit = ptx::opaque(unit);
                }
                warp::sync_warp();
            }
            if current != none {
                for (four, sums) in sums[..F::WORD].iter().enumerate() {
                    ptx::st_shared_v4_f32(current + four as u32 * PLANE_BYTES, *sums);
                }
            }
            warp::sync_warp();
            Self::store_y(y.address(), &p, &s, group, shared);
        }
    }
}
