//! The update of weights and moments.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop)]

use super::{
    AdamWParams, CHUNK, GradientPiece, KIND_BF16, KIND_F16, KIND_F32, PIECE, Scalars, TENSOR_WORDS,
    UPDATE_THREADS, count_of, join, philox_4x32, piece_of_block, round_randomly, status,
};
use crate::float::{Bf16, F16, HalfElement};
use crate::launch::GlobalMut;
use crate::rows::hidden;
use crate::{ptx, thread};

/// Elements of a chunk.
const PER: usize = CHUNK as usize;
/// Chunks that a thread loads together.
const LOADED: usize = 2;
/// Chunks of a piece that a thread has.
const CHUNKS_OF_THREAD: u32 = PIECE / (UPDATE_THREADS * CHUNK);

/// What a block moves, from its piece's first element on.
struct Piece {
    /// Weights in f32, or those of 16 bits that are rounded randomly.
    weights: u64,
    moments: [u64; 2],
    /// The weights that have a copy in f32, which is what moves; 0 if there are none.
    rounded: u64,
    /// The type of the weights that move, and of `rounded`.
    kinds: [u32; 2],
    gradient: GradientPiece,
    /// Elements.
    count: u32,
    step: Step,
    /// What random bits are made from, but for the chunk.
    counter: [u32; 2],
    key: [u32; 2],
    /// Which of the tensor's pieces it is.
    number: u32,
}

/// Moves a piece's weights and moments. The grid has a block for each piece.
///
/// With g the gradient, times the two factors of the status one after the other, all in f32:
///
/// - w ← w − decay · w, by one multiplication and addition that are rounded together, as all that follow
/// - m ← m + (1 − β₁) · (g − m)
/// - v ← v + (1 − β₂) · (g² − v)
/// - w ← w − step size · (m / (√v · root + ε))
///
/// # Safety
///
/// The tables are valid, and say what is: weights, moments and copies are nobody else's.
#[inline(always)]
pub unsafe fn update(p: &AdamWParams) {
    // SAFETY: the caller's promise.
    unsafe {
        let [tensor, number] = piece_of_block(p, thread::block_idx_x());
        let scalars = Scalars::load(p.scalars, tensor);
        let gradient = GradientPiece::load(p, tensor, number);
        let entry = p.tensors.offset(tensor as u64 * TENSOR_WORDS as u64);
        let [a, b] =
            [ptx::ld_global_v4_b32(entry.address()), ptx::ld_global_v4_b32(entry.offset(4).address())];
        let c = ptx::ld_global_v4_b32(entry.offset(8).address());
        let is_aligned = ptx::ld_global_b32(entry.offset(13).address()) != 0;
        let factors = factors_of(p.status);
        if !scalars.is_active || !gradient.is_there {
            return;
        }
        let kinds = [c[2], c[3]];
        let before = number as u64 * PIECE as u64;
        let from = |low, high, bytes: u64| join(low, high) + before * bytes;
        let copy = join(b[2], b[3]);
        let piece = Piece {
            weights: from(a[0], a[1], if kinds[0] == KIND_F32 { 4 } else { 2 }),
            moments: [from(a[2], a[3], 4), from(b[0], b[1], 4)],
            rounded: if copy == 0 { 0 } else { copy + before * 2 },
            kinds,
            count: count_of(join(c[0], c[1]), number),
            step: Step { scalars, factors },
            counter: [scalars.step, tensor],
            key: [p.seed as u32, (p.seed >> 32) as u32],
            number,
            gradient,
        };
        let is_vector = is_aligned && piece.gradient.is_aligned && piece.count & (CHUNK - 1) == 0;
        if kinds[0] == KIND_F32 {
            if piece.gradient.is_f32 {
                piece.update::<true, true>(is_vector);
            } else {
                piece.update::<true, false>(is_vector);
            }
        } else if piece.gradient.is_f32 {
            piece.update::<false, true>(is_vector);
        } else {
            piece.update::<false, false>(is_vector);
        }
    }
}

impl Piece {
    /// # Safety
    ///
    /// As [`update`]; the types and the alignment are these.
    #[inline(always)]
    unsafe fn update<const F32: bool, const GRADIENT_F32: bool>(&self, is_vector: bool) {
        // SAFETY: the caller's promise.
        unsafe {
            if is_vector {
                self.update_chunks::<F32, GRADIENT_F32>();
            } else {
                self.update_elements::<F32, GRADIENT_F32>();
            }
        }
    }

    /// Moves the chunks that a thread has of an aligned piece.
    ///
    /// # Safety
    ///
    /// As [`update`](Self::update).
    #[inline(always)]
    unsafe fn update_chunks<const F32: bool, const GRADIENT_F32: bool>(&self) {
        let count = self.count;
        let mut first = 0;
        // SAFETY: the caller's promise; a thread stores where it has loaded.
        unsafe {
            while first < CHUNKS_OF_THREAD {
                let (mut w, mut g) = ([[0; PER]; LOADED], [[0; PER]; LOADED]);
                let (mut m, mut v) = ([[0; PER]; LOADED], [[0; PER]; LOADED]);
                for c in 0..LOADED {
                    let at = first_of(first + c as u32);
                    w[c] = load::<F32, true>(self.weights, at, count);
                    g[c] = load::<GRADIENT_F32, true>(self.gradient.address, at, count);
                    m[c] = load::<true, true>(self.moments[0], at, count);
                    v[c] = load::<true, true>(self.moments[1], at, count);
                }
                for c in 0..LOADED {
                    let at = first_of(first + c as u32);
                    // A chunk's numbers are not widened before the other's are stored.
                    let [w, g, m, v] = [hidden(w[c]), hidden(g[c]), hidden(m[c]), hidden(v[c])];
                    let mut weights = unpack::<F32>(w, self.kinds[0] == KIND_F16);
                    let gradients = unpack::<GRADIENT_F32>(g, self.gradient.is_f16);
                    let (mut means, mut squares) = (unpack::<true>(m, false), unpack::<true>(v, false));
                    for j in 0..PER {
                        (weights[j], means[j], squares[j]) =
                            self.step.element(weights[j], gradients[j], means[j], squares[j]);
                    }
                    if at >= count {
                        continue;
                    }
                    store::<true>(self.moments[0], at, means.map(f32::to_bits));
                    store::<true>(self.moments[1], at, squares.map(f32::to_bits));
                    if F32 {
                        store::<true>(self.weights, at, weights.map(f32::to_bits));
                        if self.rounded != 0 {
                            store::<false>(self.rounded, at, pack(weights, self.kinds[1] == KIND_F16));
                        }
                    } else {
                        let random = self.random(at);
                        let mut words = [0; PER];
                        for j in 0..PER {
                            let bits = self.round(weights[j], random[j]) as u32;
                            words[j / 2] |= bits << (j % 2 * 16);
                        }
                        store::<false>(self.weights, at, words);
                    }
                }
                // Not unrolled: the loads of all rounds together take more registers than there are.
                first = ptx::opaque(first + LOADED as u32);
            }
        }
    }

    /// Moves every [`UPDATE_THREADS`]th element of a piece of any alignment.
    ///
    /// # Safety
    ///
    /// As [`update`](Self::update).
    #[inline(always)]
    unsafe fn update_elements<const F32: bool, const GRADIENT_F32: bool>(&self) {
        let count = self.count;
        let mut first = thread::thread_idx_x();
        // SAFETY: the caller's promise; a thread stores where it has loaded.
        unsafe {
            while first < count {
                let [mut w, mut g, mut m, mut v] = [[0; LOADED]; 4];
                for j in 0..LOADED {
                    let at = first + j as u32 * UPDATE_THREADS;
                    w[j] = load_element::<F32>(self.weights, at, at < count);
                    g[j] = load_element::<GRADIENT_F32>(self.gradient.address, at, at < count);
                    m[j] = load_element::<true>(self.moments[0], at, at < count);
                    v[j] = load_element::<true>(self.moments[1], at, at < count);
                }
                for j in 0..LOADED {
                    let at = first + j as u32 * UPDATE_THREADS;
                    let weight = widen::<F32>(w[j], self.kinds[0] == KIND_F16);
                    let gradient = widen::<GRADIENT_F32>(g[j], self.gradient.is_f16);
                    let (weight, mean, square) =
                        self.step.element(weight, gradient, f32::from_bits(m[j]), f32::from_bits(v[j]));
                    if at >= count {
                        continue;
                    }
                    ptx::st_global_b32(self.moments[0] + at as u64 * 4, mean.to_bits());
                    ptx::st_global_b32(self.moments[1] + at as u64 * 4, square.to_bits());
                    if F32 {
                        ptx::st_global_b32(self.weights + at as u64 * 4, weight.to_bits());
                        if self.rounded != 0 {
                            let [bits, ..] = pack([weight, 0.0, 0.0, 0.0], self.kinds[1] == KIND_F16);
                            ptx::st_global_b16(self.rounded + at as u64 * 2, bits as u16);
                        }
                    } else {
                        let [a, b, c, d] = self.random(at);
                        let (low, high) = (if at & 1 == 0 { a } else { b }, if at & 1 == 0 { c } else { d });
                        let bits = self.round(weight, if at & 2 == 0 { low } else { high });
                        ptx::st_global_b16(self.weights + at as u64 * 2, bits);
                    }
                }
                first = ptx::opaque(first + LOADED as u32 * UPDATE_THREADS);
            }
        }
    }

    /// The random words of the four elements of the chunk that an element is in.
    #[inline(always)]
    fn random(&self, element: u32) -> [u32; PER] {
        let chunk = self.number as u64 * (PIECE / CHUNK) as u64 + (element / CHUNK) as u64;
        let [step, tensor] = self.counter;
        philox_4x32([chunk as u32, (chunk >> 32) as u32, step, tensor], self.key)
    }

    /// The weight, rounded randomly.
    #[inline(always)]
    fn round(&self, weight: f32, random: u32) -> u16 {
        round(weight, self.kinds[0], random)
    }
}

/// The factors of a step, which [`prepare`](super::prepare) has written.
///
/// # Safety
///
/// The table is the status.
#[inline(always)]
pub(super) unsafe fn factors_of(table: GlobalMut<u32>) -> [f32; 2] {
    const { assert!(status::CLIP == status::UNSCALE + 1 && status::UNSCALE.is_multiple_of(2)) };
    // SAFETY: the caller's promise.
    unsafe { ptx::ld_global_v2_b32(table.offset(status::UNSCALE as u64).address()) }.map(f32::from_bits)
}

/// What a step does to an element.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) scalars: Scalars,
    /// What gradients are multiplied with, one after the other.
    pub(super) factors: [f32; 2],
}

impl Step {
    /// The new weight and moments of an element.
    #[inline(always)]
    pub(super) fn element(&self, weight: f32, gradient: f32, mean: f32, square: f32) -> (f32, f32, f32) {
        let gradient = self.scaled(gradient);
        let square = ptx::fma(self.scalars.shares[1], ptx::fma(gradient, gradient, -square), square);
        let (weight, mean) = self.moved(weight, gradient, mean, self.divisor(square));
        (weight, mean, square)
    }

    /// A gradient times the factors.
    #[inline(always)]
    pub(super) fn scaled(&self, gradient: f32) -> f32 {
        gradient * self.factors[0] * self.factors[1]
    }

    /// What the first moment is divided by, of the new second one.
    #[inline(always)]
    pub(super) fn divisor(&self, square: f32) -> f32 {
        ptx::fma(ptx::sqrt_rn(square), self.scalars.inverse_root, self.scalars.epsilon)
    }

    /// The new weight and first moment.
    #[inline(always)]
    pub(super) fn moved(&self, weight: f32, gradient: f32, mean: f32, divisor: f32) -> (f32, f32) {
        let &Scalars { step_size, decay, shares, .. } = &self.scalars;
        let decayed = ptx::fma(-decay, weight, weight);
        let mean = ptx::fma(shares[0], gradient - mean, mean);
        (ptx::fma(-step_size, mean / divisor, decayed), mean)
    }
}

/// A weight of 16 bits, rounded randomly.
#[inline(always)]
pub(super) fn round(weight: f32, kind: u32, random: u32) -> u16 {
    if kind == KIND_F16 {
        round_randomly(weight, KIND_F16, random)
    } else {
        round_randomly(weight, KIND_BF16, random)
    }
}

/// The first element of a thread's chunk.
#[inline(always)]
fn first_of(chunk: u32) -> u32 {
    (chunk * UPDATE_THREADS + thread::thread_idx_x()) * CHUNK
}

/// The elements of a chunk, of a word each if they are f32, else two in a word; zeros where there are none.
///
/// # Safety
///
/// The piece of `count` elements from `base` on is valid for reads, and the chunk aligned to its size if `VECTOR`, where it is there as a whole or not at all.
#[inline(always)]
pub(super) unsafe fn load<const F32: bool, const VECTOR: bool>(
    base: u64,
    first: u32,
    count: u32,
) -> [u32; PER] {
    let mut words = [0; PER];
    // SAFETY: the caller's promise.
    unsafe {
        if VECTOR && F32 {
            return ptx::ld_global_v4_b32_if(base + first as u64 * 4, first < count);
        }
        if VECTOR {
            let [a, b] = ptx::ld_global_v2_b32_if(base + first as u64 * 2, first < count);
            return [a, b, 0, 0];
        }
        for j in 0..PER {
            let at = first + j as u32;
            let bits = load_element::<F32>(base, at, at < count);
            if F32 {
                words[j] = bits;
            } else {
                words[j / 2] |= bits << (j % 2 * 16);
            }
        }
    }
    words
}

/// The bits of an element, 0 if it is not there.
///
/// # Safety
///
/// The element is valid for a read if it is there.
#[inline(always)]
unsafe fn load_element<const F32: bool>(base: u64, at: u32, is_there: bool) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        if F32 {
            ptx::ld_global_f32_if(base + at as u64 * 4, is_there).to_bits()
        } else {
            ptx::ld_global_b16_if(base + at as u64 * 2, is_there) as u32
        }
    }
}

/// Stores a chunk as [`load`] has it.
///
/// # Safety
///
/// The chunk is valid for writes, aligned to its size, and this thread's.
#[inline(always)]
pub(super) unsafe fn store<const F32: bool>(base: u64, first: u32, words: [u32; PER]) {
    // SAFETY: the caller's promise.
    unsafe {
        if F32 {
            ptx::st_global_v4_b32(base + first as u64 * 4, words);
        } else {
            ptx::st_global_v2_b32(base + first as u64 * 2, [words[0], words[1]]);
        }
    }
}

/// An element's number.
#[inline(always)]
fn widen<const F32: bool>(bits: u32, is_f16: bool) -> f32 {
    if F32 {
        f32::from_bits(bits)
    } else if is_f16 {
        ptx::cvt_f32_f16(bits as u16)
    } else {
        f32::from_bits(bits << 16)
    }
}

/// A chunk's numbers.
#[inline(always)]
pub(super) fn unpack<const F32: bool>(words: [u32; PER], is_f16: bool) -> [f32; PER] {
    if F32 {
        return words.map(f32::from_bits);
    }
    let [[a, b], [c, d]] = if is_f16 {
        [F16::unpack(words[0]), F16::unpack(words[1])]
    } else {
        [Bf16::unpack(words[0]), Bf16::unpack(words[1])]
    };
    [a, b, c, d]
}

/// A chunk of numbers rounded to the nearest of 16 bits, ties to even.
#[inline(always)]
pub(super) fn pack(values: [f32; PER], is_f16: bool) -> [u32; PER] {
    let [a, b, c, d] = values;
    if is_f16 {
        [F16::pack([a, b]), F16::pack([c, d]), 0, 0]
    } else {
        [Bf16::pack([a, b]), Bf16::pack([c, d]), 0, 0]
    }
}
