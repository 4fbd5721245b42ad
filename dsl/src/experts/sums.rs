//! Products of the token's x with the vectors u and w of hidden units: `z = Σ xᵢ · uᵢ`, a set of vectors at a time.

use super::{HALF, RowFormat, SET, UNIT_BYTES, X_BYTES};
use crate::layout::CHUNK_BYTES;
use crate::shared::SharedAddress;
use crate::{ptx, warp};

/// The fewest lanes of a group: each ends with the sum of one vector of a set.
const FEWEST_LANES: u32 = SET as u32;

/// The products of a block's units: which lanes have which part of which vectors.
///
/// A group of 8, 16 or 32 lanes has sets of vectors. Where there are so few sets that groups would have nothing to do, several groups share
/// one: each has some of the chunks, and their sums are added up when they are [asked for](Sums::get). If there are not chunks enough for
/// that, sets are of half as many vectors.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    /// Where the sums and the units are in shared memory.
    at: u32,
    units_at: u32,
    warps: u32,
    /// Chunks of a vector.
    chunks: u32,
    /// Lanes of a group.
    lanes: u32,
    /// Vectors.
    count: u32,
    /// Sets of vectors, and how many these have.
    sets: u32,
    of_set: u32,
    /// Groups that share a set.
    parts: u32,
    /// Bytes of the sums of a part.
    part_bytes: u32,
}

impl Sums {
    /// For vectors of `chunks` chunks.
    #[inline(always)]
    pub(super) fn new(warps: u32, at: u32, units_at: u32, chunks: u32) -> Self {
        let lanes = if chunks > 16 {
            32
        } else if chunks > 8 {
            16
        } else {
            FEWEST_LANES
        };
        let of_set = SET as u32;
        Self { at, units_at, warps, chunks, lanes, count: 0, sets: 0, of_set, parts: 1, part_bytes: 0 }
    }

    /// For `count` vectors, at least 1.
    #[inline(always)]
    pub(super) fn of(self, count: u32) -> Self {
        let groups = self.warps * warp::SIZE / self.lanes;
        let most_parts = self.chunks.div_ceil(self.lanes).max(1);
        let sets_of = |of_set: usize| count.div_ceil(of_set as u32).max(1);
        let of_set = if sets_of(SET) * most_parts < groups { HALF } else { SET };
        let sets = sets_of(of_set);
        let parts = (groups / sets).clamp(1, most_parts);
        Self { count, sets, of_set: of_set as u32, parts, part_bytes: sets * of_set as u32 * 4, ..self }
    }

    /// The sum of vector `vector`.
    ///
    /// # Safety
    ///
    /// It is complete and visible.
    #[inline(always)]
    pub(super) unsafe fn get(&self, vector: u32) -> f32 {
        let mut at = SharedAddress::dynamic().offset(self.at + vector * 4).get();
        let (mut sum, mut part) = (0.0, 0);
        while part < self.parts {
            // SAFETY: the caller's promise.
            sum += unsafe { ptx::ld_shared_f32(at) };
            at += self.part_bytes;
            // Opaque: the compiler would copy the loop.
            part = ptx::opaque(part + 1);
        }
        sum
    }

    /// The address of vector `vector`, or of the last one; otherwise as [`add`](Self::add).
    ///
    /// # Safety
    ///
    /// The units' records are complete and visible.
    #[inline(always)]
    unsafe fn address(&self, vector: u32, bytes: u32, vectors: u32) -> u64 {
        let vector = vector.min(self.count - 1);
        let (unit, second) = (vector >> (vectors - 1), vector & (vectors - 1));
        let record = SharedAddress::dynamic().offset(self.units_at + unit * UNIT_BYTES).get();
        // SAFETY: the caller's promise.
        let [low, high] = unsafe { ptx::ld_shared_v2_f32(record) };
        (low.to_bits() as u64 | (high.to_bits() as u64) << 32) + (second * bytes) as u64
    }

    /// Multiplies the chunks `first` to `first + chunks` of the vectors with x, of which they are in shared memory, and adds that to
    /// the sums if `adds`, else begins them. A unit has `vectors` vectors, 1 or 2, one after the other, of `bytes` bytes each. `zero` is 0, of which
    /// the compiler is not to know that.
    ///
    /// # Safety
    ///
    /// All threads of the block call it; x and the units' records are complete and visible, and the vectors valid for reads.
    #[inline(always)]
    pub(super) unsafe fn add<F: RowFormat>(
        &self,
        [first, chunks]: [u32; 2],
        bytes: u32,
        vectors: u32,
        zero: u32,
        adds: bool,
    ) {
        let shared = SharedAddress::dynamic().get();
        let of_warp = warp::SIZE / self.lanes;
        let (group, lane) = (warp::lane_id() / self.lanes, warp::lane_id() % self.lanes);
        let items = self.sets * self.parts;
        let mut item_of_warp = warp::warp_id() * of_warp;
        while item_of_warp < items {
            let item = (item_of_warp + group).min(items - 1);
            let sets = self.sets.max(1);
            let (part, set) = (item / sets, item % sets);
            let mut addresses = [0u64; SET];
            if !F::IS_SCALED {
                for (i, address) in addresses.iter_mut().enumerate() {
                    // SAFETY: the records are complete and visible.
                    *address = unsafe { self.address(set * self.of_set + i as u32, bytes, vectors) };
                }
            }
            let mut sums = [0f32; SET];
            let mut chunk = part * self.lanes + lane;
            let is_whole = self.of_set == SET as u32;
            while chunk < chunks {
                let mut words = [[0u32; 4]; SET];
                let at = ((first + chunk) * CHUNK_BYTES) as u64;
                for i in 0..SET {
                    if i < HALF || is_whole {
                        // SAFETY: the caller's promise: the records are complete and visible, the vectors have this chunk.
                        unsafe {
                            // Where numbers need many registers, addresses have none.
                            if F::IS_SCALED {
                                addresses[i] = self.address(set * self.of_set + i as u32, bytes, vectors);
                            }
                            words[i] = ptx::ld_global_nc_v4_b32(addresses[i] + at);
                        }
                    }
                }
                let mut x_at = shared + chunk * CHUNK_BYTES;
                if F::IS_SCALED {
                    // No product before all chunks have been asked for: ptxas would put that off, to have more registers.
                    for words in &words {
                        x_at += words[3] & zero;
                    }
                }
                for half in 0..2 {
                    if half == 1 {
                        if !is_whole {
                            break;
                        }
                        if F::IS_SCALED {
                            // Nor of this half before the other is done.
                            x_at += sums[0].to_bits() & zero;
                        }
                    }
                    for four in 0..F::WORD {
                        let plane = four as u32 * const { X_BYTES / F::WORD as u32 };
                        // SAFETY: x is complete and visible.
                        let x = unsafe { ptx::ld_shared_v4_f32(x_at + plane) };
                        for i in half * HALF..(half + 1) * HALF {
                            for (j, &x) in x.iter().enumerate() {
                                let n = 4 * four + j;
                                sums[i] = ptx::fma(F::number(words[i][n / F::WORD], n % F::WORD), x, sums[i]);
                            }
                        }
                    }
                }
                chunk += self.parts * self.lanes;
            }
            // SAFETY: all lanes of the warp are here; the sums' places are this group's.
            unsafe {
                let (sum, vector) = over_lanes(self.lanes, sums);
                if lane < SET as u32 && vector < self.of_set && item_of_warp + group < items {
                    let at = shared + self.at + part * self.part_bytes + (set * self.of_set + vector) * 4;
                    let before = if adds { ptx::ld_shared_f32(at) } else { 0.0 };
                    ptx::st_shared_f32(at, before + sum);
                }
            }
            item_of_warp += self.warps * of_warp;
        }
    }
}

/// Adds up the sums of groups of `lanes` lanes, which are at least [`FEWEST_LANES`]: half of them go to the one half of the lanes, half to the other, and so on. The sum that the lane has then, and
/// which vector's that is: the lowest bits of the lane, the other way round.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
pub(super) unsafe fn over_lanes(lanes: u32, mut sums: [f32; SET]) -> (f32, u32) {
    let exchange = |value: f32, mask: u32| {
        // SAFETY: the caller's promise.
        f32::from_bits(unsafe { ptx::shfl_sync_bfly(value.to_bits(), mask) })
    };
    let (lane, mut vector) = (warp::lane_id(), 0);
    let (mut count, mut mask) = (SET, 1);
    while count > 1 {
        count /= 2;
        let is_upper = lane & mask != 0;
        for i in 0..count {
            let (low, high) = (sums[i], sums[i + count]);
            let (kept, given) = if is_upper { (high, low) } else { (low, high) };
            sums[i] = kept + exchange(given, mask);
        }
        vector += if is_upper { count as u32 } else { 0 };
        mask *= 2;
    }
    let mut sum = sums[0];
    while mask < warp::SIZE {
        let other = exchange(sum, mask);
        if lanes > mask {
            sum += other;
        }
        mask *= 2;
    }
    (sum, vector)
}
