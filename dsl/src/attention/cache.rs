//! Keys and values of new tokens become those of a cache, at places that the device knows.
//!
//! A block has a token. Its keys and values go behind those that its sequence has, in the cache's type.

// Registers are indexed by constants: an iterator over several arrays at once might put them in memory.
#![allow(clippy::needless_range_loop)]

use crate::float::{Element, HalfElement, Stored, e4m3_from_f32, e5m2_from_f32};
use crate::launch::{Global, GlobalMut};
use crate::{KernelParam, ptx, thread};

/// Threads of a block.
pub const THREADS: u32 = 128;

/// Keys or values: those of new tokens, and the cache's.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct Appended {
    /// The first element of the new ones.
    pub from: Global<u8>,
    /// The first of the cache.
    pub to: GlobalMut<u8>,
    /// What the cache's numbers of 8 bits are multiplied with; null for 1.
    pub scale: Global<f32>,
    /// Elements from one sequence, token and head of the new ones to the next.
    pub from_sequence: u64,
    /// To the next token.
    pub from_token: u64,
    /// To the next head.
    pub from_head: u64,
    /// Columns of a head.
    pub columns: u32,
    /// Scales from one head to the next: 0 or 1.
    pub scale_head: u32,
}

/// What is appended to a cache `[B, capacity, heads, columns]` without gaps.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct AppendParams {
    /// The keys.
    pub k: Appended,
    /// The values.
    pub v: Appended,
    /// How many tokens each sequence has; null if all have `length`.
    pub lengths: Global<u32>,
    /// How many of its new ones count; null if all do.
    pub rows: Global<u32>,
    /// How many it has afterwards, if that is asked for; null if not. It is not `lengths`.
    pub next: GlobalMut<u32>,
    /// What all sequences have where they are alike.
    pub length: u32,
    /// New tokens of each sequence, at least 1.
    pub tokens: u32,
    /// Heads of keys and values.
    pub heads: u32,
    /// The most tokens of a sequence: those beyond are left out.
    pub capacity: u32,
    /// 1 if numbers of 8 bits are e5m2, else 0.
    pub is_e5m2: u32,
    /// Keeps the size a multiple of eight; its value is not read.
    pub reserved: u32,
}

/// How elements of new tokens become those of a cache.
pub trait Append: 'static {
    /// Bytes of an element of the new ones.
    const FROM_BYTES: u32;
    /// Bytes of one of the cache.
    const TO_BYTES: u32;
    /// Elements of 16 bytes of the new ones.
    const CHUNK: u32 = 16 / Self::FROM_BYTES;

    /// Appends a chunk, or a single element.
    ///
    /// # Safety
    ///
    /// The new ones are valid for reads, and those of the cache for writes; a chunk is aligned to its size in either.
    unsafe fn append(from: u64, to: u64, is_chunk: bool, scale: f32, is_e5m2: bool);
}

/// Elements of so many bytes, 2 or 4, stay what they are.
pub struct Kept<const BYTES: u32>;

impl<const BYTES: u32> Append for Kept<BYTES> {
    const FROM_BYTES: u32 = BYTES;
    const TO_BYTES: u32 = BYTES;

    #[inline(always)]
    unsafe fn append(from: u64, to: u64, is_chunk: bool, _: f32, _: bool) {
        // SAFETY: the caller's promise.
        unsafe {
            if is_chunk {
                ptx::st_global_v4_b32(to, ptx::ld_global_v4_b32(from));
            } else if BYTES == 2 {
                ptx::st_global_b16(to, ptx::ld_global_b16_if(from, true));
            } else {
                ptx::st_global_b32(to, ptx::ld_global_b32(from));
            }
        }
    }
}

/// Elements of this type become numbers of 8 bits.
pub struct Narrowed<T>(core::marker::PhantomData<T>);

impl<T: HalfElement + Element> Append for Narrowed<T> {
    const FROM_BYTES: u32 = <T as Stored>::BYTES;
    const TO_BYTES: u32 = 1;

    #[inline(always)]
    unsafe fn append(from: u64, to: u64, is_chunk: bool, scale: f32, is_e5m2: bool) {
        let narrow = |number: f32| {
            let number = number / scale;
            if is_e5m2 { e5m2_from_f32(number) } else { e4m3_from_f32(number) }
        };
        // SAFETY: the caller's promise.
        unsafe {
            if !is_chunk {
                ptx::st_global_b8(to, narrow(T::load_if(Global::new(from), true).to_f32()));
                return;
            }
            let words = ptx::ld_global_v4_b32(from);
            let mut narrowed = [0; 2];
            for index in 0..2 {
                let ([a, b], [c, d]) = (T::unpack(words[2 * index]), T::unpack(words[2 * index + 1]));
                narrowed[index] = narrow(a) | narrow(b) << 8 | narrow(c) << 16 | narrow(d) << 24;
            }
            ptx::st_global_v2_b32(to, narrowed);
        }
    }
}

/// Appends the block's token, on a one-dimensional grid of a block for each token of each sequence. `CHUNKS` if whole chunks may be read and written: heads begin at
/// multiples of 16 bytes and have whole chunks.
///
/// # Safety
///
/// What `p` describes is valid; all threads of the block call it. What is written overlaps nothing else.
#[inline(always)]
pub unsafe fn append<A: Append, const CHUNKS: bool>(p: &AppendParams) {
    // At least 1: a division by zero would be a trap.
    let tokens = p.tokens.max(1);
    let (sequence, token) = (thread::block_idx_x() / tokens, thread::block_idx_x() % tokens);
    // SAFETY: the caller's promise: each sequence has a length, and a number of rows.
    unsafe {
        let of_sequence = |from: Global<u32>, otherwise: u32| {
            if from.is_null() {
                otherwise
            } else {
                ptx::ld_global_nc_f32(from.offset(sequence as u64).address()).to_bits()
            }
        };
        let length = of_sequence(p.lengths, p.length).min(p.capacity);
        let rows = of_sequence(p.rows, p.tokens).min(p.tokens);
        if token == 0 && thread::thread_idx_x() == 0 && !p.next.is_null() {
            let next = (length + rows).min(p.capacity);
            ptx::st_global_b32(p.next.offset(sequence as u64).address(), next);
        }
        let place = length + token;
        if token >= rows || place >= p.capacity {
            return;
        }
        let to = sequence as u64 * p.capacity as u64 + place as u64;
        append_one::<A, CHUNKS>(&p.k, p, [sequence, token], to);
        append_one::<A, CHUNKS>(&p.v, p, [sequence, token], to);
    }
}

/// Appends the token's keys, or its values, as row `to` of all sequences' rows.
///
/// # Safety
///
/// As [`append`].
#[inline(always)]
unsafe fn append_one<A: Append, const CHUNKS: bool>(
    of: &Appended,
    p: &AppendParams,
    [sequence, token]: [u32; 2],
    to: u64,
) {
    let per = if CHUNKS { A::CHUNK } else { 1 };
    let of_head = (of.columns / per).max(1);
    let from = sequence as u64 * of.from_sequence + token as u64 * of.from_token;
    let mut index = thread::thread_idx_x();
    while index < p.heads * of_head {
        let (head, part) = (index / of_head, index % of_head);
        let from = from + head as u64 * of.from_head + (part * per) as u64;
        let to = (to * p.heads as u64 + head as u64) * of.columns as u64 + (part * per) as u64;
        // SAFETY: the caller's promise.
        unsafe {
            let scale = if A::TO_BYTES == 1 && !of.scale.is_null() {
                ptx::ld_global_nc_f32(of.scale.offset((of.scale_head * head) as u64).address())
            } else {
                1.0
            };
            let from = of.from.address() + from * A::FROM_BYTES as u64;
            A::append(from, of.to.address() + to * A::TO_BYTES as u64, CHUNKS, scale, p.is_e5m2 != 0);
        }
        index += THREADS;
    }
}

/// Where tokens stand in their sequences.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct PositionParams {
    /// The position of each sequence's first token; null for 0.
    pub first: Global<u32>,
    /// Of packed sequences the first token of each, and behind the last; null if all have `length` tokens.
    pub offsets: Global<u32>,
    /// The positions.
    pub positions: GlobalMut<u32>,
    /// Tokens of all sequences.
    pub tokens: u32,
    /// Tokens of each sequence.
    pub length: u32,
    /// Sequences.
    pub sequences: u32,
    /// Keeps the size a multiple of eight; its value is not read.
    pub reserved: u32,
}

/// Writes the position of each token, on a one-dimensional grid with a thread for each. A token of no sequence has the position 0.
///
/// # Safety
///
/// What `p` describes is valid. What is written overlaps nothing else.
#[inline(always)]
pub unsafe fn positions(p: &PositionParams) {
    let token = thread::block_idx_x() * THREADS + thread::thread_idx_x();
    if token >= p.tokens {
        return;
    }
    // SAFETY: the caller's promise: each sequence has a first position, and an offset, behind which there is one more.
    unsafe {
        let read =
            |from: Global<u32>, at: u32| ptx::ld_global_nc_f32(from.offset(at as u64).address()).to_bits();
        let (sequence, place, is_counted) = if p.offsets.is_null() {
            let length = p.length.max(1);
            (token / length, token % length, true)
        } else {
            // The last sequence that begins at the token or before it.
            let (mut sequence, mut end) = (0, p.sequences);
            while end - sequence > 1 {
                let middle = sequence + (end - sequence) / 2;
                if read(p.offsets, middle) <= token {
                    sequence = middle;
                } else {
                    end = middle;
                }
            }
            let is_counted = sequence < p.sequences
                && read(p.offsets, sequence) <= token
                && token < read(p.offsets, sequence + 1);
            let place = if is_counted { token - read(p.offsets, sequence) } else { 0 };
            (sequence, place, is_counted)
        };
        let first = if p.first.is_null() || !is_counted { 0 } else { read(p.first, sequence) };
        ptx::st_global_b32(p.positions.offset(token as u64).address(), first + place);
    }
}

#[cfg(test)]
mod tests {
    use core::mem::size_of;

    use super::{AppendParams, Appended, PositionParams};
    use crate::launch::KernelParam;

    #[test]
    fn parameters_have_no_padding() {
        const fn is_param<T: KernelParam>() -> usize {
            size_of::<T>()
        }
        assert_eq!(
            [is_param::<Appended>(), is_param::<AppendParams>(), is_param::<PositionParams>()],
            [56, 160, 40]
        );
    }
}
