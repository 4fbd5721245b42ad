//! Shared memory: a kernel's buffers laid out at compile time in the block's dynamic shared memory.

use crate::ptx;

/// Alignment in bytes that the block's dynamic shared memory starts at.
pub const ALIGNMENT: u32 = 1024;

/// A place in the block's shared memory, as a 32-bit address.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct SharedAddress(u32);

impl SharedAddress {
    /// The start of the block's dynamic shared memory, aligned to [`ALIGNMENT`] bytes.
    #[inline(always)]
    #[must_use]
    pub fn dynamic() -> Self {
        Self(ptx::dynamic_shared())
    }

    /// The same place, as lane 0 has it: an address that the compiler keeps in a register, where it would compute this one again at each
    /// use.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, with the same address.
    #[inline(always)]
    #[must_use]
    pub unsafe fn kept(self) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { ptx::shfl_sync_idx(self.0, 0) })
    }

    /// The place `bytes` further on.
    #[inline(always)]
    #[must_use]
    pub fn offset(self, bytes: u32) -> Self {
        Self(self.0 + bytes)
    }

    /// The address.
    #[inline(always)]
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}
