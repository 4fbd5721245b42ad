//! `cp.async`: copies from global to shared memory that do not pass through registers.
//!
//! A thread's copies complete in groups: [`cp_async_commit_group`] closes a group, [`cp_async_wait_group`] waits until at
//! most so many of the newest groups are unfinished. Completion is visible to the waiting thread; other threads see the
//! data after a barrier that follows the wait.

/// `cp.async.cg.shared.global [destination], [source], 16, source_bytes`: copies sixteen bytes through L2, of which the
/// first `source_bytes` come from `source` and the rest are zeros.
///
/// # Safety
///
/// `destination` (shared memory) and `source` (global memory) are multiples of 16; `source` is valid for `source_bytes`
/// ≤ 16 bytes; nothing touches the destination, and nothing writes the source, until the copy has completed.
#[inline(always)]
pub unsafe fn cp_async_cg_16(destination: u32, source: u64, source_bytes: u32) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("cp.async.cg.shared.global [{0}], [{1}], 16, {2};", in(reg32) destination, in(reg64) source, in(reg32) source_bytes, options(nostack))
    }
}

macro_rules! copy_through_l1 {
    ($name:ident, $whole:ident, $bytes:literal) => {
        #[doc = concat!("`cp.async.ca.shared.global [destination], [source], ", $bytes, ", source_bytes`: copies ", $bytes, " bytes, of which the first")]
        /// `source_bytes` come from `source` and the rest are zeros.
        ///
        /// # Safety
        ///
        #[doc = concat!("As [`cp_async_cg_16`], with addresses that are multiples of ", $bytes, " and `source_bytes` ≤ ", $bytes, ".")]
        #[inline(always)]
        pub unsafe fn $name(destination: u32, source: u64, source_bytes: u32) {
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(
                    concat!("cp.async.ca.shared.global [{0}], [{1}], ", $bytes, ", {2};"),
                    in(reg32) destination, in(reg64) source, in(reg32) source_bytes, options(nostack)
                )
            }
        }

        #[doc = concat!("`cp.async.ca.shared.global [destination], [source], ", $bytes, "`: copies ", $bytes, " bytes.")]
        ///
        /// # Safety
        ///
        #[doc = concat!("As [`cp_async_cg_16`], with addresses that are multiples of ", $bytes, ", for all of these bytes.")]
        #[inline(always)]
        pub unsafe fn $whole(destination: u32, source: u64) {
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(
                    concat!("cp.async.ca.shared.global [{0}], [{1}], ", $bytes, ";"),
                    in(reg32) destination, in(reg64) source, options(nostack)
                )
            }
        }
    };
}
copy_through_l1!(cp_async_ca_4, cp_async_ca_whole_4, "4");
copy_through_l1!(cp_async_ca_8, cp_async_ca_whole_8, "8");

/// `cp.async.commit_group`: closes the group of the copies that this thread has issued since the last one.
#[inline(always)]
pub fn cp_async_commit_group() {
    // SAFETY: closing a group, an empty one too, has no precondition.
    unsafe { instruction!("cp.async.commit_group;", options(nostack)) }
}

/// `cp.async.wait_group pending`: waits until at most `pending` of this thread's newest groups are unfinished.
///
/// The instruction takes a constant: `pending` must be one after inlining, 0 to 7.
#[inline(always)]
pub fn cp_async_wait_group(pending: u32) {
    macro_rules! wait {
        ($($n:literal)*) => {
            match pending {
                // SAFETY: waiting has no precondition.
                $($n => unsafe { instruction!(concat!("cp.async.wait_group ", $n, ";"), options(nostack)) },)*
                _ => cp_async_wait_all(),
            }
        };
    }
    wait!(0 1 2 3 4 5 6 7)
}

/// `cp.async.wait_all`: waits until all of this thread's copies have completed.
#[inline(always)]
pub fn cp_async_wait_all() {
    // SAFETY: waiting has no precondition.
    unsafe { instruction!("cp.async.wait_all;", options(nostack)) }
}
