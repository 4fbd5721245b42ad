//! AdamW over many tensors at once: their gradients' norm, the scalars of a step, and the update.
//!
//! Tensors are cut into pieces of [`PIECE`] elements, each of which a block looks up in a table and works on. So one launch has all tensors, whatever their
//! sizes and types. A step is up to three launches: [`square_sums`] adds up the squares of each piece's gradients, [`prepare`] makes the scalars of
//! each tensor from them, and [`update`] moves weights and moments. A gradient that has only some rows of its tensor has launches of its own:
//! [`row_square_sums`] and [`update_rows`]. Nothing of it needs the host: norm, loss scale and step counts stay in tables on the device.
//!
//! All arithmetic is correctly rounded, in an order that follows from the sizes only, so that the host computes the same bits.
//!
//! | words | table |
//! |---|---|
//! | [`PIECE_WORDS`] | of each piece: its tensor, and its number within it |
//! | [`TENSOR_WORDS`] | of each tensor: addresses of its weights, of both moments and of the weights' copy, its length, types and group |
//! | [`GRADIENT_WORDS`] | of each tensor: its gradient's address (0: none in this step), its type ([`KIND_ROWS`]: it has rows), and whether it is aligned |
//! | [`GROUP_WORDS`] | of each group: what its options are, in f64 |
//! | [`HISTORY_WORDS`] | of each tensor: how many steps it has taken, and the powers of the decay rates, in f64 |
//! | [`SCALAR_WORDS`] | of each tensor: the scalars of the step, which [`prepare`] writes |
//! | [`STATUS_WORDS`] | once: the loss scale, and what came of the last step |

mod prepare;
mod random;
mod rows;
mod squares;
mod update;

pub use prepare::prepare;
pub use random::{philox_4x32, round_randomly};
pub use rows::{AdamWRowsParams, ROWS_OF_BLOCK, RowsFlags, row_square_sums, update_rows};
pub use squares::square_sums;
pub use update::update;

use crate::launch::{Global, GlobalMut, KernelParam};
use crate::ptx;

/// Elements of a piece.
pub const PIECE: u32 = 4096;
/// Threads of a block that adds up a piece.
pub const THREADS: u32 = 256;
/// Threads of a block that updates one: they need so many registers that smaller blocks fill a multiprocessor better.
pub const UPDATE_THREADS: u32 = 128;
/// Threads of the only block of [`prepare`].
pub const PREPARE_THREADS: u32 = 1024;
/// Neighbours that a thread has.
pub const CHUNK: u32 = 4;
/// Chunks of a piece that a thread has that adds up.
pub const CHUNKS: u32 = PIECE / (THREADS * CHUNK);

/// Words of a piece's entry.
pub const PIECE_WORDS: usize = 2;
/// Words of a tensor's entry.
pub const TENSOR_WORDS: usize = 16;
/// Words of a gradient's entry.
pub const GRADIENT_WORDS: usize = 4;
/// Words of a group's entry.
pub const GROUP_WORDS: usize = 12;
/// Words of a tensor's history.
pub const HISTORY_WORDS: usize = 6;
/// Words of a tensor's scalars.
pub const SCALAR_WORDS: usize = 8;
/// Words of the status.
pub const STATUS_WORDS: usize = 8;

/// Places in the status.
pub mod status {
    /// The loss scale, in f32: what the loss of the next step is multiplied with.
    pub const SCALE: usize = 0;
    /// Steps in a row whose gradients were finite, since the scale has changed.
    pub const GOOD_STEPS: usize = 1;
    /// Whether the last step found a gradient that is not finite, and was left out: 1 or 0.
    pub const FOUND_INF: usize = 2;
    /// The norm of the last step's gradients, in f32.
    pub const NORM: usize = 3;
    /// What the last step multiplied its gradients with first, in f32: 1 over the loss scale.
    pub const UNSCALE: usize = 4;
    /// What it multiplied them with then, in f32: less than 1 if their norm was above the limit.
    pub const CLIP: usize = 5;
}

/// What a step is told that is the same for all tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct StepFlags(pub u32);

impl StepFlags {
    /// The squares of gradients have been added up.
    pub const HAS_SUMS: u32 = 1;
    /// Gradients are limited by their norm.
    pub const CLIPS: u32 = 2;
    /// The loss is scaled.
    pub const SCALES: u32 = 4;

    /// Whether all of these are set.
    #[inline(always)]
    #[must_use]
    pub const fn has(self, flags: u32) -> bool {
        self.0 & flags == flags
    }
}

// SAFETY: transparent over a `u32`.
unsafe impl KernelParam for StepFlags {}

/// The tables of a step, and its options.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct AdamWParams {
    /// A block's piece.
    pub pieces: Global<u32>,
    /// What each tensor is.
    pub tensors: Global<u32>,
    /// What each tensor's gradient is.
    pub gradients: Global<u32>,
    /// Options of each group of tensors.
    pub groups: Global<u32>,
    /// What has become of each tensor.
    pub history: GlobalMut<u32>,
    /// Scalars of this step, of each tensor.
    pub scalars: GlobalMut<u32>,
    /// The loss scale, and what comes of this step.
    pub status: GlobalMut<u32>,
    /// The sum of squares of each piece's gradients.
    pub sums: GlobalMut<f32>,
    /// What random bits are made from.
    pub seed: u64,
    /// How many tensors there are.
    pub tensor_count: u32,
    /// How many pieces.
    pub piece_count: u32,
    /// What is done.
    pub flags: StepFlags,
    /// The largest norm of gradients that are not clipped.
    pub max_norm: f32,
    /// What the loss scale is multiplied with after `growth_interval` good steps.
    pub growth: f32,
    /// What it is multiplied with after a step that was left out.
    pub backoff: f32,
    /// Good steps until it grows.
    pub growth_interval: u32,
    /// Nothing.
    pub reserved: u32,
}

// SAFETY: nine fields of eight bytes, eight of four: no padding.
unsafe impl KernelParam for AdamWParams {}

/// The scalars of a tensor's step.
#[derive(Clone, Copy)]
struct Scalars {
    /// The learning rate over the correction of the first moment's bias.
    step_size: f32,
    /// 1 over the root of the correction of the second moment's bias.
    inverse_root: f32,
    /// The learning rate times the weight decay.
    decay: f32,
    /// 1 − β₁ and 1 − β₂.
    shares: [f32; 2],
    /// ε.
    epsilon: f32,
    /// Which step it is, modulo 2³².
    step: u32,
    /// Whether the tensor takes part.
    is_active: bool,
}

impl Scalars {
    /// # Safety
    ///
    /// The table has an entry of this number.
    #[inline(always)]
    unsafe fn load(from: GlobalMut<u32>, tensor: u32) -> Self {
        let at = from.offset(tensor as u64 * SCALAR_WORDS as u64);
        // SAFETY: the caller's promise; entries are aligned to 16 bytes.
        let (a, b) =
            unsafe { (ptx::ld_global_v4_b32(at.address()), ptx::ld_global_v4_b32(at.offset(4).address())) };
        Self {
            step_size: f32::from_bits(a[0]),
            inverse_root: f32::from_bits(a[1]),
            decay: f32::from_bits(a[2]),
            shares: [f32::from_bits(a[3]), f32::from_bits(b[0])],
            epsilon: f32::from_bits(b[1]),
            step: b[2],
            is_active: b[3] != 0,
        }
    }

    /// # Safety
    ///
    /// The table has an entry of this number, which is this thread's.
    #[inline(always)]
    unsafe fn store(&self, to: GlobalMut<u32>, tensor: u32) {
        let at = to.offset(tensor as u64 * SCALAR_WORDS as u64);
        let [first, second] = self.shares.map(f32::to_bits);
        let a = [self.step_size.to_bits(), self.inverse_root.to_bits(), self.decay.to_bits(), first];
        let b = [second, self.epsilon.to_bits(), self.step, self.is_active as u32];
        // SAFETY: the caller's promise; entries are aligned to 16 bytes.
        unsafe {
            ptx::st_global_v4_b32(at.address(), a);
            ptx::st_global_v4_b32(at.offset(4).address(), b);
        }
    }
}

/// Where a block's piece of a gradient is.
struct GradientPiece {
    /// The address of its first element.
    address: u64,
    is_f32: bool,
    /// Whether elements of two bytes are f16 and not bf16.
    is_f16: bool,
    is_aligned: bool,
    is_there: bool,
}

impl GradientPiece {
    /// # Safety
    ///
    /// The table has an entry of this number.
    #[inline(always)]
    unsafe fn load(p: &AdamWParams, tensor: u32, piece: u32) -> Self {
        let entry = p.gradients.offset(tensor as u64 * GRADIENT_WORDS as u64).address();
        // SAFETY: the caller's promise; entries are aligned to 16 bytes.
        let [low, high, kind, is_aligned] = unsafe { ptx::ld_global_v4_b32(entry) };
        let base = join(low, high);
        let is_f32 = kind == KIND_F32;
        Self {
            address: base + piece as u64 * (PIECE * if is_f32 { 4 } else { 2 }) as u64,
            is_f32,
            is_f16: kind == KIND_F16,
            is_aligned: is_aligned != 0,
            is_there: base != 0 && kind != KIND_ROWS,
        }
    }
}

/// The number of f32 in tables.
pub const KIND_F32: u32 = 0;
/// The number of f16.
pub const KIND_F16: u32 = 1;
/// The number of bf16.
pub const KIND_BF16: u32 = 2;
/// The number of a gradient that has rows of its tensor, in the table of gradients: [`update`] leaves it to [`update_rows`].
pub const KIND_ROWS: u32 = 3;

/// Two words, the lower first.
#[inline(always)]
const fn join(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// The number of two words, the lower first.
///
/// # Safety
///
/// As the load's.
#[inline(always)]
unsafe fn load_f64(address: u64) -> f64 {
    // SAFETY: the caller's promise.
    let [low, high] = unsafe { ptx::ld_global_v2_b32(address) };
    f64::from_bits(join(low, high))
}

/// # Safety
///
/// As the store's.
#[inline(always)]
unsafe fn store_f64(address: u64, value: f64) {
    let bits = value.to_bits();
    // SAFETY: the caller's promise.
    unsafe { ptx::st_global_v2_b32(address, [bits as u32, (bits >> 32) as u32]) }
}

/// What this block works on: the tensor, the piece's number, and how many elements of the tensor are left from it on, at most [`PIECE`].
///
/// # Safety
///
/// The block has an entry.
#[inline(always)]
unsafe fn piece_of_block(p: &AdamWParams, block: u32) -> [u32; 2] {
    // SAFETY: the caller's promise.
    unsafe { ptx::ld_global_v2_b32(p.pieces.offset(block as u64 * PIECE_WORDS as u64).address()) }
}

/// Elements of a piece of a tensor of so many elements.
#[inline(always)]
const fn count_of(length: u64, piece: u32) -> u32 {
    let left = length - piece as u64 * PIECE as u64;
    if left < PIECE as u64 { left as u32 } else { PIECE }
}
