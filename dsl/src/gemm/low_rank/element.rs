//! How each element type goes through the two products of a low-rank update.

use crate::float::{Bf16, Element, F16, HalfElement};
use crate::gemm::MmaElement;
use crate::launch::Global;
use crate::layout::{PANEL_COLUMNS, staged_fragment};
use crate::ptx;
use crate::warp;

/// Bytes of a row of a block's columns of the output that a warp has.
const TILE_ROW_BYTES: u32 = 128;

/// A type that low-rank updates are computed in: fragments of B come from panels (see
/// [`panel_chunk`](crate::layout::panel_chunk)), fragments of A of the second product from the accumulators of the first.
pub trait LowRankElement: MmaElement {
    /// Elements of a k-step.
    const STEP: u32 = 32 / Self::BYTES;
    /// Panels of 128 bytes of a row.
    const PANELS: usize = (TILE_ROW_BYTES / (PANEL_COLUMNS * Self::BYTES)) as usize;

    /// Fragments of B of one k-step, of the panels `panel` and `panel` + 1, of which the first is even. `at` is where the step's rows
    /// begin in panel 0, `stride` the bytes from panel to panel.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it; the rows are in shared memory and visible to the warp.
    unsafe fn load_pair(at: u32, panel: u32, stride: u32) -> [[u32; 2]; 2];

    /// The fragment of panel 0.
    ///
    /// # Safety
    ///
    /// As [`load_pair`](Self::load_pair).
    unsafe fn load_first(at: u32) -> [u32; 2];

    /// Fragments of B whose k-step has eight rows, zeros below them, of the panels `panel` to `panel` + 3, of which the first is a
    /// multiple of four.
    ///
    /// # Safety
    ///
    /// As [`load_pair`](Self::load_pair).
    unsafe fn load_four_of_eight_rows(at: u32, panel: u32, stride: u32) -> [[u32; 2]; 4];

    /// The fragment of A of k-step `step`, rounded, whose columns are those of the accumulators `h`, zeros where there are none.
    fn fragment_a<const N: usize>(h: &[[f32; 4]; N], step: usize) -> [u32; 4];

    /// Rounds a lane's two columns of fragment `fragment` in row `row` (0 to 15) into a buffer of
    /// [`staged_fragment`](crate::layout::staged_fragment)s.
    ///
    /// # Safety
    ///
    /// The buffer is shared memory, and nothing else uses the place.
    unsafe fn put(buffer: u32, lane: u32, row: u32, fragment: u32, values: [f32; 2]);

    /// What stands there.
    ///
    /// # Safety
    ///
    /// As [`put`](Self::put); it is written and visible to the lane.
    unsafe fn get(buffer: u32, lane: u32, row: u32, fragment: u32) -> [f32; 2];

    /// The bits of a code if `condition` holds, else 0, in a register that nothing is done with before they are used: so nothing waits for
    /// them.
    ///
    /// # Safety
    ///
    /// As [`load_read_only_if`](Element::load_read_only_if).
    unsafe fn load_code_bits(from: Global<Self>, condition: bool) -> u32;

    /// The code of these bits.
    fn code_of_bits(bits: u32) -> f32;

    /// The bits of the codes of a lane's four accumulators, as 16 bytes.
    fn code_words(bits: [u32; 4]) -> [u32; 4];

    /// The codes of these words.
    fn codes_of_words(words: [u32; 4]) -> [f32; 4];
}

macro_rules! half_low_rank {
    ($element:ident) => {
        impl LowRankElement for $element {
            #[inline(always)]
            unsafe fn load_pair(at: u32, panel: u32, stride: u32) -> [[u32; 2]; 2] {
                let (matrix, row) = (warp::lane_id() / 8, warp::lane_id() % 8);
                let (half, next) = (matrix % 2, matrix / 2);
                let own = next * stride + half * 128 + (row ^ next) * 16;
                let from = at + panel * stride + (own ^ (panel % 8 * 16));
                // SAFETY: the caller's promise.
                let [a, b, c, d] = unsafe { ptx::ldmatrix_x4_trans(from) };
                [[a, b], [c, d]]
            }

            #[inline(always)]
            unsafe fn load_first(at: u32) -> [u32; 2] {
                // SAFETY: the caller's promise; the upper lanes' addresses are not used.
                unsafe { ptx::ldmatrix_x2_trans(at + warp::lane_id() % 16 * 16) }
            }

            #[inline(always)]
            unsafe fn load_four_of_eight_rows(at: u32, panel: u32, stride: u32) -> [[u32; 2]; 4] {
                let (matrix, row) = (warp::lane_id() / 8, warp::lane_id() % 8);
                let own = matrix * stride + (row ^ matrix) * 16;
                let from = at + panel * stride + (own ^ (panel % 8 * 16));
                // SAFETY: the caller's promise.
                let [a, b, c, d] = unsafe { ptx::ldmatrix_x4_trans(from) };
                [[a, 0], [b, 0], [c, 0], [d, 0]]
            }

            #[inline(always)]
            fn fragment_a<const N: usize>(h: &[[f32; 4]; N], step: usize) -> [u32; 4] {
                let [a, b, c, d] = h[2 * step];
                let (first, second) = (Self::pack([a, b]), Self::pack([c, d]));
                if 2 * step + 1 < N {
                    let [a, b, c, d] = h[2 * step + 1];
                    [first, second, Self::pack([a, b]), Self::pack([c, d])]
                } else {
                    [first, second, 0, 0]
                }
            }

            #[inline(always)]
            unsafe fn put(buffer: u32, lane: u32, row: u32, fragment: u32, values: [f32; 2]) {
                // SAFETY: the caller's promise.
                unsafe {
                    ptx::st_shared_b32(buffer + staged_fragment(2, lane, row, fragment), Self::pack(values))
                }
            }

            #[inline(always)]
            unsafe fn get(buffer: u32, lane: u32, row: u32, fragment: u32) -> [f32; 2] {
                // SAFETY: the caller's promise.
                let word = unsafe { ptx::ld_shared_b32(buffer + staged_fragment(2, lane, row, fragment)) };
                [Self(word as u16), Self((word >> 16) as u16)].map(Self::to_f32)
            }

            #[inline(always)]
            unsafe fn load_code_bits(from: Global<Self>, condition: bool) -> u32 {
                // SAFETY: the caller's promise.
                unsafe { ptx::ld_global_nc_u16_wide_if(from.address(), condition) }
            }

            #[inline(always)]
            fn code_of_bits(bits: u32) -> f32 {
                Self(bits as u16).to_f32()
            }

            #[inline(always)]
            fn code_words([a, b, c, d]: [u32; 4]) -> [u32; 4] {
                [a | b << 16, c | d << 16, 0, 0]
            }

            #[inline(always)]
            fn codes_of_words([low, high, ..]: [u32; 4]) -> [f32; 4] {
                [low, low >> 16, high, high >> 16].map(|bits| Self(bits as u16).to_f32())
            }
        }
    };
}
half_low_rank!(F16);
half_low_rank!(Bf16);

impl LowRankElement for f32 {
    #[inline(always)]
    unsafe fn load_pair(at: u32, panel: u32, stride: u32) -> [[u32; 2]; 2] {
        let own = warp::lane_id() % 4 * 32 + warp::lane_id() / 4 * 4;
        let load = |panel: u32| {
            let from = at + panel * stride + (own ^ (panel % 4 * 32));
            // SAFETY: the caller's promise.
            unsafe { [ptx::ld_shared_b32(from), ptx::ld_shared_b32(from + 128)] }
        };
        [load(panel), load(panel + 1)]
    }

    #[inline(always)]
    unsafe fn load_first(at: u32) -> [u32; 2] {
        let from = at + warp::lane_id() % 4 * 32 + warp::lane_id() / 4 * 4;
        // SAFETY: the caller's promise.
        unsafe { [ptx::ld_shared_b32(from), ptx::ld_shared_b32(from + 128)] }
    }

    #[inline(always)]
    unsafe fn load_four_of_eight_rows(at: u32, panel: u32, stride: u32) -> [[u32; 2]; 4] {
        // SAFETY: the caller's promise. Eight rows are a k-step.
        let ([a, b], [c, d]) =
            unsafe { (Self::load_pair(at, panel, stride), Self::load_pair(at, panel + 2, stride)) };
        [a, b, c, d]
    }

    #[inline(always)]
    fn fragment_a<const N: usize>(h: &[[f32; 4]; N], step: usize) -> [u32; 4] {
        // Columns 2t and 2t + 1 of the accumulators are what `mma` has as columns t and t + 4: the rows of B are paired alike.
        let [a, b, c, d] = h[step].map(f32::to_bits);
        [a, c, b, d]
    }

    #[inline(always)]
    unsafe fn put(buffer: u32, lane: u32, row: u32, fragment: u32, values: [f32; 2]) {
        // SAFETY: the caller's promise.
        unsafe { ptx::st_shared_v2_f32(buffer + staged_fragment(4, lane, row, fragment), values) }
    }

    #[inline(always)]
    unsafe fn get(buffer: u32, lane: u32, row: u32, fragment: u32) -> [f32; 2] {
        // SAFETY: the caller's promise.
        unsafe { ptx::ld_shared_v2_f32(buffer + staged_fragment(4, lane, row, fragment)) }
    }

    #[inline(always)]
    unsafe fn load_code_bits(from: Global<Self>, condition: bool) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { ptx::ld_global_nc_f32_if(from.address(), condition) }.to_bits()
    }

    #[inline(always)]
    fn code_of_bits(bits: u32) -> f32 {
        f32::from_bits(bits)
    }

    #[inline(always)]
    fn code_words(bits: [u32; 4]) -> [u32; 4] {
        bits
    }

    #[inline(always)]
    fn codes_of_words(words: [u32; 4]) -> [f32; 4] {
        words.map(f32::from_bits)
    }
}
