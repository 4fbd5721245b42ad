//! Rows of a table that ids name, and the gradient of the table.
//!
//! The gradient is of the rows that ids name. [`order`] sorts the ids, each with the number of its token, by 8 bits at a time, so that tokens of equal ids stay in their order.
//! Then a team of threads has each different id, and adds up the rows of its tokens one after the other. So the sums are the same every time.

mod gather;
mod gradient;
pub mod order;

pub use gather::{GatherParams, gather_rows};
pub use gradient::{GradientParams, WeightedParams, add_rows, add_weighted_rows};

use crate::ptx;

/// Where ids are, and of what type.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Ids {
    /// The address of the first.
    pub base: u64,
    /// Whether they have 64 bits each, not 32.
    pub is_wide: u32,
    /// Rows of the table: what ids are less than.
    pub limit: u32,
}

// SAFETY: fields of 8, 4 and 4 bytes, without padding.
unsafe impl crate::launch::KernelParam for Ids {}

impl Ids {
    /// The id of a token; the limit if it is out of range, or the condition does not hold.
    ///
    /// # Safety
    ///
    /// There is one, if the condition holds.
    #[inline(always)]
    #[must_use]
    pub unsafe fn get(&self, token: u32, condition: bool) -> u32 {
        // SAFETY: the caller's promise.
        unsafe {
            if self.is_wide != 0 {
                let [low, high] = ptx::ld_global_v2_b32_if(self.base + token as u64 * 8, condition);
                return if condition && high == 0 { low.min(self.limit) } else { self.limit };
            }
            let id = ptx::ld_global_f32_if(self.base + token as u64 * 4, condition).to_bits();
            if condition { id.min(self.limit) } else { self.limit }
        }
    }
}
