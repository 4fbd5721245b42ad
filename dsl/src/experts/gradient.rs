//! Gradients of experts that tokens use: those of x and of the gates, and what the gradients of experts are made of.
//!
//! For a hidden unit of an expert with the gate g, with z = x·u, h = act(z) [· (x·w)] and t = dy·v, y has the term g h v.
//! So dg is the sum of h t over the expert's units, dz = g t act′(z) [· (x·w)], and dx the sum of dz u. The gradient of u
//! is the sum of dz x over all uses of the expert, that of v the sum of g h dy. A gated unit adds g t act(z) w to dx, and
//! as much of x to the gradient of w.
//!
//! A block has a token. Its warps take the experts in turn, and multiply x and dy with their vectors. Then each thread
//! adds up a chunk of dx over all units. The factors of x and dy, two or three a unit, are results: the rows of a table's
//! gradient are sums over the tokens that use them.

use super::tokens;
use super::{ExpertParams, ExpertRows, RowFormat};
use crate::epilogue::Function as _;
use crate::launch::{Global, GlobalMut, KernelParam};
use crate::layout::CHUNK_BYTES;
use crate::reduce::sum_of_lanes;
use crate::shared::SharedAddress;
use crate::{ptx, thread, warp};

/// Threads of a block.
pub const GRADIENT_THREADS: u32 = 128;
/// Bytes of its shared memory.
pub const GRADIENT_BYTES: u32 = ENTRIES * ENTRY_BYTES;

/// Vectors whose addresses and factors are in shared memory at a time.
const ENTRIES: u32 = 256;
/// Bytes of what is known of a vector: its address, its factor, and what is added.
const ENTRY_BYTES: u32 = 16;
/// Where in it the factor is.
const FACTOR_AT: u32 = 8;
/// Chunks that a thread loads together.
const LOADED: usize = 4;

/// What is read beside the rows, and what is written. A kernel parameter.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ExpertGradientParams {
    /// A row of `d` elements for each token.
    pub x: Global<u8>,
    /// A row of `o` elements for each token.
    pub dy: Global<u8>,
    /// A row of `d` elements for each token.
    pub dx: GlobalMut<u8>,
    /// Elements from one row of dx to the next.
    pub stride_dx: u64,
    /// The numbers of each token's experts.
    pub ids: Global<u32>,
    /// Their gates.
    pub gates: Global<f32>,
    /// The gradients of these.
    pub dgates: GlobalMut<f32>,
    /// For each unit of each token's experts what x is multiplied with in the gradient of u.
    pub of_u: GlobalMut<f32>,
    /// The same of w; null if the units are not gated.
    pub of_w: GlobalMut<f32>,
    /// For each such unit what dy is multiplied with in the gradient of v.
    pub of_v: GlobalMut<f32>,
}

// SAFETY: ten fields of eight bytes, without padding.
unsafe impl KernelParam for ExpertGradientParams {}

/// What a token's block works with.
struct Token<'p> {
    rows: &'p ExpertRows,
    p: &'p ExpertParams,
    g: &'p ExpertGradientParams,
    /// The addresses of its rows.
    x: u64,
    dy: u64,
    /// The number of its first expert among those of all tokens.
    first: u64,
}

/// Scale and bias of a vector: 1 and 0 of formats without.
#[inline(always)]
unsafe fn scale_and_bias<F: RowFormat>(unit: u64, p: &ExpertParams, word: u32) -> [f32; 2] {
    if !F::IS_SCALED {
        return [1.0, 0.0];
    }
    // SAFETY: the caller's promise: it is a unit of a format with scales.
    F::scale_and_bias(unsafe { ptx::ld_global_b32(unit + (p.scales_at + word) as u64) })
}

/// The product of a row of `columns` elements with a vector of `chunks` chunks, and the sum of the row for formats with biases. All lanes have both.
#[inline(always)]
unsafe fn product<F: RowFormat>(
    (row, columns): (u64, u32),
    p: &ExpertParams,
    vector: u64,
    chunks: u32,
) -> [f32; 2] {
    let of_row = ExpertParams { d: columns, ..*p };
    let (mut sum, mut sum_of_x, mut chunk) = (0.0, 0.0, warp::lane_id());
    while chunk < chunks {
        let mut words = [[0u32; 4]; LOADED];
        for (i, words) in words.iter_mut().enumerate() {
            let own = chunk + i as u32 * warp::SIZE;
            // SAFETY: the caller's promise: the vector has this chunk.
            let read =
                unsafe { ptx::ld_global_nc_v4_b32(vector + own.min(chunks - 1) as u64 * CHUNK_BYTES as u64) };
            // Not the last one's again: that might be infinite, and x is zero there.
            *words = read.map(|word| if own < chunks { word } else { 0 });
        }
        for (i, words) in words.iter().enumerate() {
            let first = (chunk + i as u32 * warp::SIZE) * 4 * F::WORD as u32;
            for four in 0..F::WORD {
                // SAFETY: the caller's promise.
                let x = unsafe { tokens::four_of(row, first + 4 * four as u32, &of_row) };
                for (n, x) in x.iter().enumerate() {
                    let index = 4 * four + n;
                    sum = ptx::fma(*x, F::number(words[index / F::WORD], index % F::WORD), sum);
                    if F::IS_SCALED {
                        sum_of_x += *x;
                    }
                }
            }
        }
        chunk = ptx::opaque(chunk + const { LOADED as u32 * warp::SIZE });
    }
    // SAFETY: all lanes of the warp are here.
    unsafe {
        let sum_of_x = if F::IS_SCALED { sum_of_lanes(sum_of_x, warp::SIZE) } else { 0.0 };
        [sum_of_lanes(sum, warp::SIZE), sum_of_x]
    }
}

impl Token<'_> {
    /// The address of an expert's row, its gate, and whether there is such an expert. If not, the row is another one, and the gate no number.
    #[inline(always)]
    unsafe fn expert(&self, expert: u32) -> (u64, f32, bool) {
        let at = self.first + expert as u64;
        // SAFETY: the caller's promise: the token has this expert.
        unsafe {
            let id = ptx::ld_global_b32(self.g.ids.offset(at).address());
            match self.rows.find(id) {
                Some(row) => {
                    (row, f32::from_bits(ptx::ld_global_b32(self.g.gates.offset(at).address())), true)
                }
                None => (self.rows.resident.address(), f32::NAN, false),
            }
        }
    }

    /// Writes the gradient of an expert's gate and the factors of its units. All lanes of a warp call it.
    #[inline(always)]
    unsafe fn factors<F: RowFormat>(&self, expert: u32) {
        let (p, g) = (self.p, self.g);
        let input_chunks = p.input_bytes / CHUNK_BYTES;
        let output_chunks = p.o.div_ceil(4 * F::WORD as u32);
        let is_gated = p.v_at != p.input_bytes;
        // SAFETY: the caller's promise.
        unsafe {
            let (row, gate, is_there) = self.expert(expert);
            let at = self.first + expert as u64;
            let (mut dgate, mut unit) = (0.0, 0);
            while unit < p.hidden {
                let address = row + unit as u64 * p.unit_bytes;
                let (mut z, mut t, mut other) = (0.0, 0.0, 1.0);
                // Of u, v and w, in the order of their scales. One loop, as the code of a product is long.
                let mut vector = 0;
                while vector < if is_gated { 3 } else { 2 } {
                    let of_v = vector == 1;
                    let token = if of_v { (self.dy, p.o) } else { (self.x, p.d) };
                    let from = if of_v { p.v_at } else { vector / 2 * p.input_bytes };
                    let chunks = if of_v { output_chunks } else { input_chunks };
                    let [sum, sum_of_x] = product::<F>(token, p, address + from as u64, chunks);
                    let [scale, bias] = scale_and_bias::<F>(address, p, vector * 4);
                    let product = if F::IS_SCALED { ptx::fma(scale, sum, bias * sum_of_x) } else { sum };
                    z = if vector == 0 { product } else { z };
                    t = if of_v { product } else { t };
                    other = if vector == 2 { product } else { other };
                    vector = ptx::opaque(vector + 1);
                }
                let [activated] = p.activation.of([z]);
                let mut slope = [z];
                p.activation.slopes(&mut slope);
                let h = activated * other;
                dgate = ptx::fma(h, t, dgate);
                if warp::lane_id() == 0 {
                    let place = at * p.hidden as u64 + unit as u64;
                    let store = |to: GlobalMut<f32>, value: f32| {
                        ptx::st_global_b32(to.offset(place).address(), value.to_bits());
                    };
                    let of_t = gate * t;
                    store(g.of_u, of_t * other * slope[0]);
                    store(g.of_v, gate * h);
                    if is_gated {
                        store(g.of_w, of_t * activated);
                    }
                }
                unit = ptx::opaque(unit + 1);
            }
            if warp::lane_id() == 0 {
                // Of an expert that is none it is no number.
                let dgate = if is_there { dgate } else { f32::NAN };
                ptx::st_global_b32(g.dgates.offset(at).address(), dgate.to_bits());
            }
        }
    }

    /// Puts what is known of `count` vectors from `first` on into shared memory, up to whole groups of those that are loaded together.
    #[inline(always)]
    unsafe fn look_up<F: RowFormat>(&self, first: u32, count: u32, vectors: u32) {
        let (p, shared) = (self.p, SharedAddress::dynamic().get());
        let mut entry = thread::thread_idx_x();
        while entry < count.next_multiple_of(LOADED as u32) {
            let vector = first + entry.min(count - 1);
            let (unit, second) = (vector >> (vectors - 1), vector & (vectors - 1));
            // SAFETY: the caller's promise: the token has this unit, and its factors were written before a barrier.
            unsafe {
                let (row, ..) = self.expert(unit / p.hidden.max(1));
                let unit_at = row + (unit % p.hidden.max(1)) as u64 * p.unit_bytes;
                let factors = if second == 0 { self.g.of_u } else { self.g.of_w };
                let place = self.first * p.hidden as u64 + unit as u64;
                let factor = f32::from_bits(ptx::ld_global_b32(factors.offset(place).address()));
                let factor = if entry < count { factor } else { 0.0 };
                let [scale, bias] = scale_and_bias::<F>(unit_at, p, second * 8);
                let address = unit_at + (second * p.input_bytes) as u64;
                let [low, high] = [address as u32, (address >> 32) as u32];
                let record = [low, high, (factor * scale).to_bits(), (factor * bias).to_bits()];
                ptx::st_shared_v4_b32(shared + entry * ENTRY_BYTES, record);
            }
            entry = ptx::opaque(entry + GRADIENT_THREADS);
        }
    }

    /// Adds chunk `chunk` of the vectors that are in shared memory to `sums`, and their biases to `bias`.
    #[inline(always)]
    unsafe fn add<F: RowFormat>(&self, chunk: u32, count: u32, sums: &mut [[f32; 8]; 4], bias: &mut f32) {
        let shared = SharedAddress::dynamic().get();
        let mut first = 0;
        while first < count {
            let mut words = [[0u32; 4]; LOADED];
            let entry = |i: usize| shared + (first + i as u32) * ENTRY_BYTES;
            for (i, words) in words.iter_mut().enumerate() {
                // SAFETY: whole groups of entries are complete and visible, and each vector has this chunk.
                let read = unsafe {
                    let [low, high] = ptx::ld_shared_v2_f32(entry(i));
                    let address = low.to_bits() as u64 | (high.to_bits() as u64) << 32;
                    ptx::ld_global_nc_v4_b32(address + (chunk * CHUNK_BYTES) as u64)
                };
                *words = read.map(|word| if first + (i as u32) < count { word } else { 0 });
            }
            for (i, words) in words.iter().enumerate() {
                // SAFETY: as above.
                let [factor, added] = unsafe { ptx::ld_shared_v2_f32(entry(i) + FACTOR_AT) };
                for (word, sums) in words.iter().zip(sums.iter_mut()) {
                    for (n, sum) in sums[..F::WORD].iter_mut().enumerate() {
                        *sum = ptx::fma(factor, F::number(*word, n), *sum);
                    }
                }
                if F::IS_SCALED {
                    *bias += added;
                }
            }
            first = ptx::opaque(first + LOADED as u32);
        }
    }

    /// Adds up dx, a chunk of columns a thread, and stores it.
    #[inline(always)]
    unsafe fn inputs<F: RowFormat>(&self, dx: u64) {
        let p = self.p;
        let vectors = if p.v_at == p.input_bytes { 1 } else { 2 };
        let all = p.experts * p.hidden * vectors;
        let chunks = p.input_bytes / CHUNK_BYTES;
        let mut first_chunk = 0;
        while first_chunk < chunks {
            let chunk = first_chunk + thread::thread_idx_x();
            let (mut sums, mut bias, mut first) = ([[0f32; 8]; 4], 0.0, 0);
            while first < all {
                let count = (all - first).min(ENTRIES);
                // SAFETY: all threads of the block take the same way; what is in shared memory is read after a barrier, and written over after another.
                unsafe {
                    if first_chunk == 0 || all > ENTRIES {
                        thread::sync_threads();
                        self.look_up::<F>(first, count, vectors);
                        thread::sync_threads();
                    }
                    if chunk < chunks {
                        self.add::<F>(chunk, count, &mut sums, &mut bias);
                    }
                }
                first += count;
            }
            for (word, sums) in sums.iter().enumerate() {
                for (n, sum) in sums[..F::WORD].iter().enumerate() {
                    let column = (chunk * 4 + word as u32) * F::WORD as u32 + n as u32;
                    if column < p.d {
                        // SAFETY: the column is this thread's.
                        unsafe { tokens::store(dx, column, *sum + bias, p.element) }
                    }
                }
            }
            first_chunk += GRADIENT_THREADS;
        }
    }
}

/// Writes the gradients of a token's x and of its gates, and the factors of x and dy in those of its experts.
///
/// An id of no expert makes no numbers of its gate's gradient, of its units' factors and of the token's dx.
///
/// # Safety
///
/// Every thread of a one-dimensional grid of a block for each token calls it. X is valid for reads of a row of `p.d` elements
/// for each token, dy of one of `p.o`, `p.stride_x` and `p.stride_y` elements from one row to the next. `ids` and `gates` are
/// valid for reads of `p.experts` elements for each token. dx, `dgates` and the factors are valid for writes of what they say.
/// The rows are valid for reads wherever `rows` says that they are, and have the format `F`. Nothing else writes any of them
/// meanwhile, and what is written overlaps nothing else.
#[inline(always)]
pub unsafe fn expert_gradients<F: RowFormat>(rows: &ExpertRows, p: &ExpertParams, g: &ExpertGradientParams) {
    let token = thread::block_idx_x() as u64;
    let size = tokens::size(p);
    let token = Token {
        rows,
        p,
        g,
        x: g.x.address() + token * p.stride_x * size,
        dy: g.dy.address() + token * p.stride_y * size,
        first: token * p.experts as u64,
    };
    let mut expert = warp::warp_id();
    while expert < p.experts {
        // SAFETY: the caller's promise; all lanes of the warp are here.
        unsafe { token.factors::<F>(expert) }
        expert = ptx::opaque(expert + const { GRADIENT_THREADS / warp::SIZE });
    }
    let dx = g.dx.address() + thread::block_idx_x() as u64 * g.stride_dx * size;
    // SAFETY: the caller's promise; the first barrier of those within orders the factors that other warps have written.
    unsafe { token.inputs::<F>(dx) }
}
