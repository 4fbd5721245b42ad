//! Rows of X and of Y, whose elements are of any type that these may have.

use super::params::{ExpertParams, TYPE_F16, TYPE_F32};
use crate::float::{Bf16, Element, F16};
use crate::launch::{Global, GlobalMut};
use crate::ptx;

/// Bytes of an element.
#[inline(always)]
pub(super) fn size(p: &ExpertParams) -> u64 {
    if p.element == TYPE_F32 { 4 } else { 2 }
}

/// The four elements from `at` on of the row of X at `row`, with zeros past the last.
///
/// # Safety
///
/// The row is valid for reads of `d` elements.
#[inline(always)]
pub(super) unsafe fn four_of(row: u64, at: u32, p: &ExpertParams) -> [f32; 4] {
    let (present, is_f32) = (p.d.saturating_sub(at), p.element == TYPE_F32);
    let from = row + ((at as u64) << if is_f32 { 2 } else { 1 });
    // SAFETY: the caller's promise: X has `d` columns.
    unsafe {
        if is_f32 {
            if from.is_multiple_of(16) && present >= 4 {
                return f32::load_4(Global::new(from));
            }
            return [0, 1, 2, 3].map(|i| ptx::ld_global_f32_if(from + 4 * i as u64, i < present));
        }
        let bits = if from.is_multiple_of(8) && present >= 4 {
            let [low, high] = ptx::ld_global_v2_b32(from);
            [low, low >> 16, high, high >> 16]
        } else {
            [0, 1, 2, 3].map(|i| ptx::ld_global_nc_u16_wide_if(from + 2 * i as u64, i < present))
        };
        bits.map(|bits| half(bits, p.element))
    }
}

/// The number of the lower 16 bits.
#[inline(always)]
fn half(bits: u32, element: u32) -> f32 {
    if element == TYPE_F16 { F16(bits as u16).to_f32() } else { Bf16(bits as u16).to_f32() }
}

/// Stores an element of the row of Y at `row`, rounded.
///
/// # Safety
///
/// The row is valid for writes of that element, which nothing else uses.
#[inline(always)]
pub(super) unsafe fn store(row: u64, column: u32, value: f32, element: u32) {
    let column = column as u64;
    // SAFETY: the caller's promise.
    unsafe {
        match element {
            TYPE_F32 => f32::store_rounded(GlobalMut::new(row).offset(column), value),
            TYPE_F16 => F16::store_rounded(GlobalMut::new(row).offset(column), value),
            _ => Bf16::store_rounded(GlobalMut::new(row).offset(column), value),
        }
    }
}
