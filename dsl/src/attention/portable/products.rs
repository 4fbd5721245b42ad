//! Products of a warp's rows with rows in shared memory, whatever these are: keys, values or, for gradients, the others.

use super::{PortableElement, place};
use crate::layout::{CHUNK_BYTES, a_fragment_chunk, b_fragment_chunk};
use crate::ptx::{self, Accumulators};
use crate::shared::SharedAddress;
use crate::tile::registers::Fragment;
use crate::warp;
use crate::warpgroup::BOX_ROW_BYTES;

/// The lane, worked out where it is used, so that what follows from it takes no registers before.
#[inline(always)]
fn opaque_lane() -> u32 {
    ptx::opaque(warp::lane_id()) % warp::SIZE
}

/// Adds to `products` those of the warp's rows, in boxes of `own_rows` rows at `own`, and of others in boxes of `other_rows` rows at `others`: over `steps` of
/// 32 bytes of each.
///
/// # Safety
///
/// All lanes of the warp call it. The rows have come. A warp's rows, and each pair of fragments' others, are whole units of the swizzle.
#[inline(always)]
pub(in crate::attention) unsafe fn multiply_rows<T: PortableElement, P: Accumulators>(
    products: &mut Fragment<P>,
    (own, own_rows): (SharedAddress, u32),
    (others, other_rows): (SharedAddress, u32),
    steps: u32,
) {
    let lane = opaque_lane();
    let all = ptx::opaque(u32::MAX);
    let (of_own, of_other) = (a_fragment_chunk(lane), b_fragment_chunk(lane));
    let (fragments, _) = products.0.as_mut().as_chunks_mut::<4>();
    for step in 0..steps {
        let own_at = place(own_rows, of_own.row, (2 * step + of_own.chunk) * CHUNK_BYTES);
        let other_at = place(other_rows, of_other.row, (2 * step + of_other.chunk) * CHUNK_BYTES);
        // SAFETY: within the warp's rows, and below within the others.
        let a = T::prepare_a(unsafe { ptx::ldmatrix_x4(own.offset(own_at).get()) });
        for (pair, fragments) in fragments.chunks_exact_mut(2).enumerate() {
            let other_at = other_at + pair as u32 * 16 * BOX_ROW_BYTES;
            // SAFETY: as above; all lanes are here.
            unsafe {
                let [b0, b1, b2, b3] = ptx::ldmatrix_x4(others.offset(other_at).get());
                T::multiply_add(&mut fragments[0], a, T::prepare_b([b0, b1]));
                T::multiply_add(&mut fragments[1], a, T::prepare_b([b2, b3]));
                if T::IS_SPLIT {
                    ptx::bar_warp_sync(all);
                }
            }
        }
    }
}

/// Adds to `sums` the `count` rows at `rows`, in boxes of `box_rows`, with these weights.
///
/// # Safety
///
/// All lanes of the warp call it. The rows have come. Steps of [`PortableElement::STEP`] rows are whole units of the swizzle.
#[inline(always)]
pub(in crate::attention) unsafe fn add_weighted<T: PortableElement, P: Accumulators, W: Accumulators>(
    sums: &mut Fragment<P>,
    weights: &Fragment<W>,
    (rows, box_rows): (SharedAddress, u32),
    count: u32,
) {
    let lane = opaque_lane();
    let all = ptx::opaque(u32::MAX);
    let (fragments, _) = sums.0.as_mut().as_chunks_mut::<4>();
    for step in 0..count / T::STEP {
        let a = T::prepare_a(T::weights(weights, step as usize));
        let of_step = rows.offset(step * T::STEP * BOX_ROW_BYTES);
        let at = |row: u32, byte: u32| of_step.offset(place(box_rows, row, byte));
        for (pair, fragments) in fragments.chunks_exact_mut(2).enumerate() {
            // SAFETY: within the rows; all lanes are here.
            unsafe {
                let [b0, b1, b2, b3] = T::values(at, lane, 16 * pair as u32);
                T::multiply_add(&mut fragments[0], a, T::prepare_b([b0, b1]));
                T::multiply_add(&mut fragments[1], a, T::prepare_b([b2, b3]));
                if T::IS_SPLIT {
                    ptx::bar_warp_sync(all);
                }
            }
        }
    }
}
