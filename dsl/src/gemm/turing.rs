//! The main loop of sm_75, which has `ldmatrix` and `mma.sync` for f16, but no `cp.async`, and of other types no products on tensor cores
//! that would be exact enough.
//!
//! Rows go through registers to two slots of shared memory in turn.

use core::marker::PhantomData;

use super::mma_sync::{FragmentLoader, MMA_M, MMA_N, STEP_BYTES};
use super::two_slots::{self, SlotProducts, SlotReader, Slots};
use crate::float::{Bf16, Element, F16};
use crate::layout::{CHUNK_BYTES, swizzled_chunk};
use crate::ptx;
use crate::shared::SharedAddress;
use crate::thread;
use crate::tile::{CopyShape, Operand};
use crate::warp;

/// The most chunks of an operand that a thread copies at a time.
const MAX_PASSES: usize = 4;

/// What a warp's products of a slot are made of.
#[derive(Clone, Copy)]
pub struct SlotPart {
    /// Where the rows of A begin.
    pub slot: SharedAddress,
    /// Where the rows of B begin, from there on; the sum may wrap around.
    pub b_offset: u32,
    /// The warp's first row of A.
    pub row: u32,
    /// The warp's first row of B.
    pub column: u32,
}

/// A type that is multiplied on sm_75.
pub trait TuringElement: Element {
    /// Adds the products of a slot with rows of `ROW_BYTES` bytes to accumulators in the layout of `mma`.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it; the slot is complete and visible to it.
    unsafe fn multiply_slot<const MI: usize, const NI: usize, const ROW_BYTES: u32>(
        accumulators: &mut [[[f32; 4]; NI]; MI],
        part: SlotPart,
    );
}

/// On tensor cores, half a k-step at a time.
impl TuringElement for F16 {
    #[inline(always)]
    unsafe fn multiply_slot<const MI: usize, const NI: usize, const ROW_BYTES: u32>(
        accumulators: &mut [[[f32; 4]; NI]; MI],
        part: SlotPart,
    ) {
        let loader = FragmentLoader::<MI, NI, ROW_BYTES>::new(part.row, part.column, part.b_offset);
        for step in 0..ROW_BYTES / STEP_BYTES {
            // SAFETY: the caller's promise.
            let fragments = unsafe { loader.load(part.slot, step) };
            for (row, a) in accumulators.iter_mut().zip(&fragments.a) {
                for (accumulator, b) in row.iter_mut().zip(&fragments.b) {
                    // SAFETY: the caller's promise.
                    unsafe {
                        ptx::mma_m16n8k8_f16(accumulator, [a[0], a[1]], b[0]);
                        ptx::mma_m16n8k8_f16(accumulator, [a[2], a[3]], b[1]);
                    }
                }
            }
        }
    }
}

/// A type that is multiplied in f32, outside the tensor cores.
trait Widened: Element {
    /// Elements of a chunk.
    const CHUNK: usize;

    /// Element `index` of a chunk.
    fn widen(chunk: &[u32; 4], index: usize) -> f32;
}

impl Widened for f32 {
    const CHUNK: usize = 4;

    #[inline(always)]
    fn widen(chunk: &[u32; 4], index: usize) -> f32 {
        f32::from_bits(chunk[index])
    }
}

impl Widened for Bf16 {
    const CHUNK: usize = 8;

    #[inline(always)]
    fn widen(chunk: &[u32; 4], index: usize) -> f32 {
        let word = chunk[index / 2];
        f32::from_bits(if index.is_multiple_of(2) { word << 16 } else { word & 0xffff_0000 })
    }
}

/// Fused multiply-adds. A slot is summed from zero and then added, which keeps the error of long sums small.
#[inline(always)]
unsafe fn multiply_slot_in_f32<T: Widened, const MI: usize, const NI: usize, const ROW_BYTES: u32>(
    accumulators: &mut [[[f32; 4]; NI]; MI],
    part: SlotPart,
) {
    let lane = warp::lane_id();
    // SAFETY: all-zero bits are numbers. (An array literal of this length would be filled by a loop with a variable index and so live
    // in local memory.)
    let mut sums: [[[f32; 4]; NI]; MI] = unsafe { core::mem::zeroed() };
    let (a_row, b_row) = (part.row + lane / 4, part.column + 2 * (lane % 4));
    let chunks = ptx::opaque(ROW_BYTES / CHUNK_BYTES);
    let mut chunk = 0;
    while chunk < chunks {
        // SAFETY: all-zero bits are integers.
        let mut a: [[[u32; 4]; 2]; MI] = unsafe { core::mem::zeroed() };
        // SAFETY: as above.
        let mut b: [[[u32; 4]; 2]; NI] = unsafe { core::mem::zeroed() };
        let load = |offset: u32, row: u32| {
            let at = part.slot.get().wrapping_add(offset).wrapping_add(swizzled_chunk(ROW_BYTES, row, chunk));
            // SAFETY: a chunk of the slot, which the caller vouches for.
            unsafe { ptx::ld_shared_v4_b32(at) }
        };
        for (i, rows) in a.iter_mut().enumerate() {
            for (half, words) in rows.iter_mut().enumerate() {
                *words = load(0, a_row + i as u32 * MMA_M + half as u32 * (MMA_M / 2));
            }
        }
        for (j, columns) in b.iter_mut().enumerate() {
            for (neighbour, words) in columns.iter_mut().enumerate() {
                *words = load(part.b_offset, b_row + j as u32 * MMA_N + neighbour as u32);
            }
        }
        for k in 0..T::CHUNK {
            for (row, a) in sums.iter_mut().zip(&a) {
                for (sum, b) in row.iter_mut().zip(&b) {
                    for (index, value) in sum.iter_mut().enumerate() {
                        *value = ptx::fma(T::widen(&a[index / 2], k), T::widen(&b[index % 2], k), *value);
                    }
                }
            }
        }
        chunk = ptx::opaque(chunk + 1);
    }
    for (row, sums) in accumulators.iter_mut().zip(&sums) {
        for (accumulator, sum) in row.iter_mut().zip(sums) {
            for (value, sum) in accumulator.iter_mut().zip(sum) {
                *value += *sum;
            }
        }
    }
}

macro_rules! in_f32 {
    ($element:ident) => {
        impl TuringElement for $element {
            #[inline(always)]
            unsafe fn multiply_slot<const MI: usize, const NI: usize, const ROW_BYTES: u32>(
                accumulators: &mut [[[f32; 4]; NI]; MI],
                part: SlotPart,
            ) {
                // SAFETY: the caller's promise.
                unsafe { multiply_slot_in_f32::<Self, MI, NI, ROW_BYTES>(accumulators, part) }
            }
        }
    };
}
in_f32!(Bf16);
in_f32!(f32);

/// A thread's share of reading the rows of an operand and of putting them into a slot.
#[derive(Clone, Copy)]
pub(super) struct RowReader<T, S> {
    /// This thread's chunk of the operand's first row, of the first slot.
    from: u64,
    row_bytes: u64,
    /// This thread's first row, and the operand's last.
    row: u32,
    last: u32,
    /// Offset of the first chunk in the slot's rows.
    to: u32,
    /// Bytes of a row from this thread's chunk of the first slot on; negative if the chunk is outside.
    bytes_left: i32,
    kind: PhantomData<(T, S)>,
}

impl<T: Element, S: CopyShape> RowReader<T, S> {
    const PASSES: usize = {
        assert!(S::PASSES as usize <= MAX_PASSES, "the chunks fit the registers that are meant for them");
        S::PASSES as usize
    };

    /// The reader of the rows of `operand` from `first_row` on, which is within it.
    #[inline(always)]
    pub(super) fn new(operand: Operand<T>, first_row: u32) -> Self {
        let thread = thread::thread_idx_x();
        let (row, chunk) = (thread / S::CHUNKS_PER_ROW, thread % S::CHUNKS_PER_ROW);
        Self {
            from: operand.base.address() + (chunk * CHUNK_BYTES) as u64,
            row_bytes: operand.stride * T::BYTES as u64,
            row: first_row + row,
            last: operand.rows - 1,
            to: swizzled_chunk(S::ROW_BYTES, row, chunk),
            bytes_left: (operand.k * T::BYTES) as i32 - (chunk * CHUNK_BYTES) as i32,
            kind: PhantomData,
        }
    }
}

// SAFETY: all-zero bits are integers.
unsafe impl<T: Element, S: CopyShape> SlotReader for RowReader<T, S> {
    type Words = [[u32; 4]; MAX_PASSES];

    /// This thread's chunks. What is beyond K is zero; rows beyond the last are the last again, for what comes of them is not stored.
    #[inline(always)]
    unsafe fn read(&self, slot: u32) -> Self::Words {
        let left = self.bytes_left - (slot * S::ROW_BYTES) as i32;
        let from = self.from + (slot * S::ROW_BYTES) as u64;
        // SAFETY: all-zero bits are integers.
        let mut chunks: [[u32; 4]; MAX_PASSES] = unsafe { core::mem::zeroed() };
        let at = |pass: usize| {
            let row = (self.row + pass as u32 * S::ROWS_PER_PASS).min(self.last);
            from + row as u64 * self.row_bytes
        };
        if left >= CHUNK_BYTES as i32 {
            for (pass, chunk) in chunks.iter_mut().enumerate().take(Self::PASSES) {
                // SAFETY: within a row of the operand.
                *chunk = unsafe { ptx::ld_global_nc_v4_f32(at(pass)) }.map(f32::to_bits);
            }
        } else {
            for (pass, chunk) in chunks.iter_mut().enumerate().take(Self::PASSES) {
                let from = at(pass);
                // Of an odd number of 16-bit elements the last is half a word.
                let half = if T::BYTES == 2 {
                    // SAFETY: within a row of the operand, if there is such an element.
                    unsafe { ptx::ld_global_nc_b16_if(from + (left & !3) as u64, left > 0 && left & 2 != 0) }
                } else {
                    0
                };
                for (i, word) in chunk.iter_mut().enumerate() {
                    let begin = 4 * i as i32;
                    // SAFETY: within a row of the operand, if the condition holds.
                    let whole = unsafe { ptx::ld_global_nc_f32_if(from + begin as u64, left >= begin + 4) };
                    *word = whole.to_bits() | if left & !3 == begin { half as u32 } else { 0 };
                }
            }
        }
        chunks
    }

    #[inline(always)]
    unsafe fn put(&self, to: SharedAddress, chunks: &Self::Words) {
        for (pass, chunk) in chunks.iter().enumerate().take(Self::PASSES) {
            let to = to.offset(self.to + pass as u32 * (S::ROWS_PER_PASS * S::ROW_BYTES));
            // SAFETY: the caller's promise; this thread's own chunk.
            unsafe { ptx::st_shared_v4_b32(to.get(), *chunk) }
        }
    }
}

/// The products of a warp at row and column `origin` of the tile.
struct WarpProducts<T, const MI: usize, const NI: usize, const ROW_BYTES: u32> {
    accumulators: [[[f32; 4]; NI]; MI],
    b_offset: u32,
    origin: (u32, u32),
    kind: PhantomData<T>,
}

impl<T: TuringElement, const MI: usize, const NI: usize, const ROW_BYTES: u32> SlotProducts
    for WarpProducts<T, MI, NI, ROW_BYTES>
{
    #[inline(always)]
    unsafe fn add(&mut self, slot: SharedAddress) {
        let part = SlotPart { slot, b_offset: self.b_offset, row: self.origin.0, column: self.origin.1 };
        // SAFETY: the caller's promise.
        unsafe { T::multiply_slot::<MI, NI, ROW_BYTES>(&mut self.accumulators, part) }
    }
}

/// The products of the rows of `a` and `b`, which the readers read, for a warp at row and column `origin` of the tile.
///
/// # Safety
///
/// As [`TileShape::multiply`](super::TileShape::multiply), with aligned access.
#[inline(always)]
pub(super) unsafe fn multiply<
    T: TuringElement,
    A: CopyShape,
    B: CopyShape,
    const MI: usize,
    const NI: usize,
    const ROW_BYTES: u32,
>(
    a: &RowReader<T, A>,
    b: &RowReader<T, B>,
    k: u32,
    origin: (u32, u32),
) -> [[[f32; 4]; NI]; MI] {
    let slots = Slots {
        count: (k * T::BYTES).div_ceil(ROW_BYTES),
        bytes: const { (A::ROWS + B::ROWS) * ROW_BYTES },
        b_offset: const { A::ROWS * ROW_BYTES },
    };
    // SAFETY: all-zero bits are numbers.
    let accumulators = unsafe { core::mem::zeroed() };
    let mut products = WarpProducts::<T, MI, NI, ROW_BYTES> {
        accumulators,
        b_offset: slots.b_offset,
        origin,
        kind: PhantomData,
    };
    // SAFETY: the caller's promise.
    unsafe { two_slots::multiply(a, b, slots, &mut products) };
    products.accumulators
}
