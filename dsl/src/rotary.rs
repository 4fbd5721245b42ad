//! Rotary position embedding: pairs of elements of a head, turned by angles that grow with the token's position.
//!
//! A thread has the same pairs of some heads of a token, so it reads their angles once. All arithmetic is in f32, and a result is rounded once.

// Registers are indexed by constants: an iterator over several arrays at once might put them in memory.
#![allow(clippy::needless_range_loop, clippy::manual_memcpy)]

use core::num::NonZeroU32;

use crate::launch::{Global, GlobalMut, KernelParam};
use crate::rows::{RowElement, THREADS};
use crate::{ptx, thread};

/// Heads that a thread loads together.
pub const HEADS: usize = 2;

/// What is turned, and by what.
#[repr(C)]
pub struct RotaryParams<T> {
    /// The heads.
    pub x: Global<T>,
    /// Where they go.
    pub y: GlobalMut<T>,
    /// The cosine and the sine of each pair's angle, for each position.
    pub table: Global<f32>,
    /// The tokens' positions; null if they are counted from `offset`.
    pub positions: Global<u32>,
    /// Elements of x from one sequence, token and head to the next.
    pub x_strides: [u64; 3],
    /// The same of y.
    pub y_strides: [u64; 3],
    /// Tokens of all sequences.
    pub tokens: u32,
    /// Tokens of a sequence, at least one.
    pub length: u32,
    /// Heads of a token.
    pub heads: u32,
    /// Elements of a head.
    pub width: u32,
    /// Elements of them that are turned, an even number.
    pub rotary: u32,
    /// Positions of the table.
    pub known: u32,
    /// The first token's position.
    pub offset: u32,
    /// Threads of a block that share a head, a power of two.
    pub lanes: u32,
    /// How many times as many share a token, a power of two.
    pub teams: u32,
    /// What sines are multiplied with: 1, or −1 to turn back.
    pub sign: f32,
    /// Whether the elements of a pair are neighbours, not half the turned ones apart.
    pub neighbours: u32,
    /// Whether the elements that are not turned are copied.
    pub copies: u32,
}

impl<T> Clone for RotaryParams<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for RotaryParams<T> {}

// SAFETY: ten fields of eight bytes, twelve of four: no padding.
unsafe impl<T: 'static> KernelParam for RotaryParams<T> {}

/// Turns pairs. A part is `PER` neighbouring elements at a multiple of their size, or a single one. The grid has as many blocks as it likes.
///
/// # Safety
///
/// What `p` describes is valid; `length` is not 0. If `PER` is not 1, heads and their turned elements are whole parts at multiples of 16 bytes. So are
/// the halves of the turned ones, unless pairs are neighbours. What is written overlaps nothing else, but y may be x if their strides are the same.
#[inline(always)]
pub unsafe fn rotate_heads<T: RowElement, const PER: usize>(p: &RotaryParams<T>) {
    // SAFETY: the caller's promise.
    let length = unsafe { NonZeroU32::new_unchecked(p.length) };
    let (id, lane_bits, team_bits) =
        (thread::thread_idx_x(), p.lanes.trailing_zeros(), p.teams.trailing_zeros());
    let (lane, team) = (id & (p.lanes - 1), (id >> lane_bits) & (p.teams - 1));
    let of_block = THREADS >> (lane_bits + team_bits);
    let pairs = p.rotary / 2;
    let turned = pairs.div_ceil(PER as u32);
    let rest = if p.copies == 0 { 0 } else { (p.width - p.rotary).div_ceil(2 * PER as u32) };
    // SAFETY: the caller's promise; angles are read of positions that the table has; a thread stores where it has loaded.
    unsafe {
        let mut token = thread::block_idx_x() * of_block + (id >> (lane_bits + team_bits));
        while token < p.tokens {
            let (sequence, place) = (token / length, token % length);
            let mut position = p.offset + place;
            if !p.positions.is_null() {
                position = ptx::ld_global_b32(p.positions.offset(token as u64).address());
            }
            let start = |strides: [u64; 3]| sequence as u64 * strides[0] + place as u64 * strides[1];
            let (from, to) = (start(p.x_strides), start(p.y_strides));
            let mut slot = lane;
            while slot < turned + rest {
                let is_turned = slot < turned;
                let is_known = position < p.known;
                let pair = slot * PER as u32;
                let (first, second, end);
                if !is_turned {
                    first = p.rotary + 2 * (pair - turned * PER as u32);
                    (second, end) = (first + PER as u32, p.width);
                } else if p.neighbours != 0 {
                    first = 2 * pair;
                    (second, end) = (first + PER as u32, p.rotary);
                } else {
                    first = pair;
                    (second, end) = (first + pairs, p.rotary);
                }
                let both = second < end;
                let row = p.table.offset((position as u64 * pairs as u64 + pair as u64) * 2).address();
                let angles = load_angles::<PER>(row, pairs - pair.min(pairs), is_turned && is_known);
                let mut head = team * HEADS as u32;
                while head < p.heads {
                    let mut parts = [[[0; 4]; 2]; HEADS];
                    for k in 0..HEADS {
                        let is_there = head + (k as u32) < p.heads;
                        let x = p.x.offset(from + (head + k as u32) as u64 * p.x_strides[2]);
                        parts[k] = [
                            load_part::<T, PER>(x.offset(first as u64).address(), is_there),
                            load_part::<T, PER>(x.offset(second as u64).address(), is_there && both),
                        ];
                    }
                    for k in 0..HEADS {
                        if head + (k as u32) < p.heads {
                            let mut turned = parts[k];
                            if is_turned {
                                turned = turn::<T, PER>(turned, &angles, p.sign, is_known, p.neighbours != 0);
                            }
                            let y = p.y.offset(to + (head + k as u32) as u64 * p.y_strides[2]);
                            store_part::<T, PER>(y.offset(first as u64).address(), turned[0]);
                            if both {
                                store_part::<T, PER>(y.offset(second as u64).address(), turned[1]);
                            }
                        }
                    }
                    head += p.teams * HEADS as u32;
                }
                slot += p.lanes;
            }
            token += thread::grid_dim_x() * of_block;
        }
    }
}

/// Cosines and sines of `PER` pairs, of which `count` are there.
///
/// # Safety
///
/// The row is valid for reads of them if `condition` holds.
#[inline(always)]
unsafe fn load_angles<const PER: usize>(row: u64, count: u32, condition: bool) -> [[f32; 2]; PER] {
    let mut angles = [[0.0; 2]; PER];
    for i in 0..PER {
        let is_there = condition && (i as u32) < count;
        let at = row + i as u64 * 8;
        if PER == 1 {
            // SAFETY: the caller's promise.
            let [cosine, sine] = unsafe { ptx::ld_global_v2_b32_if(at, is_there) };
            angles[i] = [f32::from_bits(cosine), f32::from_bits(sine)];
        } else if i % 2 == 0 {
            // SAFETY: as above; the pairs are even in number, and rows begin at multiples of 16 bytes.
            let four = unsafe { ptx::ld_global_v4_b32_if(at, is_there) };
            angles[i] = [f32::from_bits(four[0]), f32::from_bits(four[1])];
            angles[i + 1] = [f32::from_bits(four[2]), f32::from_bits(four[3])];
        }
    }
    angles
}

/// # Safety
///
/// The address is valid for a read of a part if `condition` holds, and aligned to it.
#[inline(always)]
unsafe fn load_part<T: RowElement, const PER: usize>(at: u64, condition: bool) -> [u32; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        if PER == 1 {
            return [T::load_bits_if(at, condition), 0, 0, 0];
        }
        ptx::ld_global_v4_b32_if(at, condition)
    }
}

/// # Safety
///
/// As [`load_part`], for a write.
#[inline(always)]
unsafe fn store_part<T: RowElement, const PER: usize>(at: u64, words: [u32; 4]) {
    // SAFETY: the caller's promise.
    unsafe {
        if PER > 1 {
            ptx::st_global_v4_b32(at, words);
        } else if T::BYTES == 2 {
            ptx::st_global_b16(at, words[0] as u16);
        } else {
            ptx::st_global_b32(at, words[0]);
        }
    }
}

/// Two parts, turned; NaN where the position is not known.
#[inline(always)]
fn turn<T: RowElement, const PER: usize>(
    parts: [[u32; 4]; 2],
    angles: &[[f32; 2]; PER],
    sign: f32,
    is_known: bool,
    neighbours: bool,
) -> [[u32; 4]; 2] {
    if PER == 1 {
        // Of two numbers the first is the element, in every type.
        let [a, _]: [f32; 2] = T::unpack(parts[0]);
        let [b, _]: [f32; 2] = T::unpack(parts[1]);
        let [a, b] = turn_pair([a, b], angles[0], sign, is_known);
        return [T::pack([a, 0.0]), T::pack([b, 0.0])];
    }
    let (mut a, mut b): ([f32; PER], [f32; PER]) = (T::unpack(parts[0]), T::unpack(parts[1]));
    if neighbours {
        for i in 0..PER / 2 {
            let low = turn_pair([a[2 * i], a[2 * i + 1]], angles[i], sign, is_known);
            let high = turn_pair([b[2 * i], b[2 * i + 1]], angles[PER / 2 + i], sign, is_known);
            a[2 * i] = low[0];
            a[2 * i + 1] = low[1];
            b[2 * i] = high[0];
            b[2 * i + 1] = high[1];
        }
    } else {
        for i in 0..PER {
            let pair = turn_pair([a[i], b[i]], angles[i], sign, is_known);
            a[i] = pair[0];
            b[i] = pair[1];
        }
    }
    [T::pack(a), T::pack(b)]
}

#[inline(always)]
fn turn_pair([a, b]: [f32; 2], [cosine, sine]: [f32; 2], sign: f32, is_known: bool) -> [f32; 2] {
    let sine = sine * sign;
    let turned = [ptx::fma(a, cosine, -(b * sine)), ptx::fma(b, cosine, a * sine)];
    if is_known { turned } else { [f32::NAN; 2] }
}
