//! Loads and stores of one number, for each size of number and each memory that a kernel names; shuffles and votes; `atom`.
//!
//! # Safety
//!
//! For every load, store and atomic of this module: the address is valid for an access of the type's size and aligned
//! to it. It is in the space that the name says. No other thread writes it (for a load) or touches it (for a store)
//! unordered. For an atomic, all who touch the place meanwhile do it atomically.

macro_rules! loads_and_stores {
    ($($size:literal $class:ident $value:ty: $load:ident $load_nc:ident $store:ident $load_shared:ident $store_shared:ident;)*) => { $(
        #[doc = concat!("`ld.global.", $size, "`: memory that the kernel may write.")]
        ///
        /// # Safety
        ///
        /// As the module says.
        #[inline(always)]
        #[must_use]
        pub unsafe fn $load(address: u64) -> $value {
            let value: $value;
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(concat!("ld.global.", $size, " {0}, [{1}];"), out($class) value, in(reg64) address, options(pure, readonly, nostack))
            };
            value
        }

        #[doc = concat!("`ld.global.nc.", $size, "`: memory that nothing writes while the kernel runs.")]
        ///
        /// # Safety
        ///
        /// As the module says.
        #[inline(always)]
        #[must_use]
        pub unsafe fn $load_nc(address: u64) -> $value {
            let value: $value;
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(concat!("ld.global.nc.", $size, " {0}, [{1}];"), out($class) value, in(reg64) address, options(pure, readonly, nostack))
            };
            value
        }

        #[doc = concat!("`st.global.", $size, "`.")]
        ///
        /// # Safety
        ///
        /// As the module says.
        #[inline(always)]
        pub unsafe fn $store(address: u64, value: $value) {
            // SAFETY: the caller's promise is the instruction's.
            unsafe { instruction!(concat!("st.global.", $size, " [{0}], {1};"), in(reg64) address, in($class) value, options(nostack)) }
        }

        #[doc = concat!("`ld.shared.", $size, "`.")]
        ///
        /// # Safety
        ///
        /// As the module says.
        #[inline(always)]
        #[must_use]
        pub unsafe fn $load_shared(address: u32) -> $value {
            let value: $value;
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(concat!("ld.shared.", $size, " {0}, [{1}];"), out($class) value, in(reg32) address, options(pure, readonly, nostack))
            };
            value
        }

        #[doc = concat!("`st.shared.", $size, "`.")]
        ///
        /// # Safety
        ///
        /// As the module says.
        #[inline(always)]
        pub unsafe fn $store_shared(address: u32, value: $value) {
            // SAFETY: the caller's promise is the instruction's.
            unsafe { instruction!(concat!("st.shared.", $size, " [{0}], {1};"), in(reg32) address, in($class) value, options(nostack)) }
        }
    )* };
}
loads_and_stores! {
    "b8" reg16 u16: load_global_b8 load_global_nc_b8 store_global_b8 load_shared_b8 store_shared_b8;
    "b16" reg16 u16: load_global_b16 load_global_nc_b16 store_global_b16 load_shared_b16 store_shared_b16;
    "b32" reg32 u32: load_global_b32 load_global_nc_b32 store_global_b32 load_shared_b32 store_shared_b32;
    "b64" reg64 u64: load_global_b64 load_global_nc_b64 store_global_b64 load_shared_b64 store_shared_b64;
}

/// An atomic of one operand, in global and in shared memory, that returns what was there.
macro_rules! atomics {
    ($($text:literal $class:ident $value:ty: $global:ident $shared:ident;)*) => { $(
        #[doc = concat!("`atom.relaxed.gpu.global.", $text, "`: returns what was there.")]
        ///
        /// # Safety
        ///
        /// As the module says.
        #[inline(always)]
        pub unsafe fn $global(address: u64, value: $value) -> $value {
            let before: $value;
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(concat!("atom.relaxed.gpu.global.", $text, " {0}, [{1}], {2};"), out($class) before, in(reg64) address, in($class) value, options(nostack))
            };
            before
        }

        #[doc = concat!("`atom.relaxed.cta.shared.", $text, "`: returns what was there.")]
        ///
        /// # Safety
        ///
        /// As the module says.
        #[inline(always)]
        pub unsafe fn $shared(address: u32, value: $value) -> $value {
            let before: $value;
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(concat!("atom.relaxed.cta.shared.", $text, " {0}, [{1}], {2};"), out($class) before, in(reg32) address, in($class) value, options(nostack))
            };
            before
        }
    )* };
}
atomics! {
    "add.u32" reg32 u32: atom_global_add_u32 atom_shared_relaxed_add_u32;
    "add.f32" reg32 f32: atom_global_add_f32 atom_shared_add_f32;
    "add.noftz.f16" reg16 u16: atom_global_add_f16 atom_shared_add_f16;
    "min.u32" reg32 u32: atom_global_min_u32 atom_shared_min_u32;
    "max.u32" reg32 u32: atom_global_max_u32 atom_shared_max_u32;
    "min.s32" reg32 i32: atom_global_min_s32 atom_shared_min_s32;
    "max.s32" reg32 i32: atom_global_max_s32 atom_shared_max_s32;
    "and.b32" reg32 u32: atom_global_and_b32 atom_shared_and_b32;
    "or.b32" reg32 u32: atom_global_or_b32 atom_shared_or_b32;
    "xor.b32" reg32 u32: atom_global_xor_b32 atom_shared_xor_b32;
    "exch.b32" reg32 u32: atom_global_exch_b32 atom_shared_exch_b32;
}

macro_rules! compare_and_swap {
    ($($text:literal $class:ident $value:ty: $global:ident $shared:ident;)*) => { $(
        #[doc = concat!("`atom.relaxed.gpu.global.", $text, "`: stores `new` where `expected` is there, and returns what was there.")]
        ///
        /// # Safety
        ///
        /// As the module says.
        #[inline(always)]
        pub unsafe fn $global(address: u64, expected: $value, new: $value) -> $value {
            let before: $value;
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(concat!("atom.relaxed.gpu.global.", $text, " {0}, [{1}], {2}, {3};"), out($class) before, in(reg64) address, in($class) expected, in($class) new, options(nostack))
            };
            before
        }

        #[doc = concat!("`atom.relaxed.cta.shared.", $text, "`: stores `new` where `expected` is there, and returns what was there.")]
        ///
        /// # Safety
        ///
        /// As the module says.
        #[inline(always)]
        pub unsafe fn $shared(address: u32, expected: $value, new: $value) -> $value {
            let before: $value;
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(concat!("atom.relaxed.cta.shared.", $text, " {0}, [{1}], {2}, {3};"), out($class) before, in(reg32) address, in($class) expected, in($class) new, options(nostack))
            };
            before
        }
    )* };
}
compare_and_swap! {
    "cas.b32" reg32 u32: atom_global_cas_b32 atom_shared_cas_b32;
    "cas.b16" reg16 u16: atom_global_cas_b16 atom_shared_cas_b16;
}

/// `shfl.sync.down.b32` among all lanes: `value` as the lane `distance` above has it; the last `distance` lanes get their own.
///
/// # Safety
///
/// All lanes of the warp execute it; `distance` is less than 32.
#[inline(always)]
#[must_use]
pub unsafe fn shfl_sync_down(value: u32, distance: u32) -> u32 {
    let result: u32;
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("shfl.sync.down.b32 {0}, {1}, {2}, 0x1f, 0xffffffff;", out(reg32) result, in(reg32) value, in(reg32) distance, options(nostack))
    };
    result
}

macro_rules! block_vote {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As [`bar_sync`](super::bar_sync).
        #[inline(always)]
        #[must_use]
        pub unsafe fn $name(condition: bool) -> bool {
            let result: u32;
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(
                    concat!("{{ .reg .pred p, q; setp.ne.u32 p, {1}, 0; bar.red.", $text, ".pred q, 0, p; selp.u32 {0}, 1, 0, q; }}"),
                    out(reg32) result, in(reg32) u32::from(condition), options(nostack)
                )
            };
            result != 0
        }
    )* };
}
block_vote! {
    /// `bar.red.and.pred`: a barrier, and whether `condition` holds in every thread of the block.
    bar_red_and = "and";
    /// `bar.red.or.pred`: a barrier, and whether `condition` holds in any thread of the block.
    bar_red_or = "or";
}
