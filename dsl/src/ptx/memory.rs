//! Loads and stores that name their memory space.
//!
//! # Safety
//!
//! For every function of this module: the address is valid for an access of the type's size and aligned to it. It is in
//! the space that the name says. No other thread writes it (for a load) or touches it (for a store) unordered.

/// The address of the block's dynamic shared memory: `mov.u32 r, dynamic_shared`.
///
/// The symbol is declared by [`device_crate!`](crate::device_crate), aligned to 1024 bytes.
#[inline(always)]
#[must_use]
pub fn dynamic_shared() -> u32 {
    let address: u32;
    // SAFETY: takes the address of a symbol.
    unsafe { instruction!("mov.u32 {}, dynamic_shared;", out(reg32) address, options(pure, nomem, nostack)) };
    address
}

macro_rules! load {
    ($(#[$doc:meta])* $name:ident, $text:literal, $class:ident, $value:ty, $address:ident: $address_type:ty, $address_class:ident, [$($option:ident),*]) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As the module says.
        #[inline(always)]
        #[must_use]
        pub unsafe fn $name($address: $address_type) -> $value {
            let value: $value;
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(concat!($text, " {0}, [{1}];"), out($class) value, in($address_class) $address, options($($option),*))
            };
            value
        }
    };
}

load!(
    /// `ld.global.nc.b16`: two bytes of memory that nothing writes while the kernel runs.
    ld_global_nc_b16, "ld.global.nc.b16", reg16, u16, address: u64, reg64, [pure, nomem, nostack]
);
load!(
    /// `ld.global.nc.f32`: a number from memory that nothing writes while the kernel runs.
    ld_global_nc_f32, "ld.global.nc.f32", reg32, f32, address: u64, reg64, [pure, nomem, nostack]
);
load!(
    /// `ld.shared.b8`: a byte.
    ld_shared_b8, "ld.shared.b8", reg16, u16, address: u32, reg32, [nostack]
);
load!(
    /// `ld.shared.b16`: two bytes.
    ld_shared_b16, "ld.shared.b16", reg16, u16, address: u32, reg32, [nostack]
);
load!(
    /// `ld.shared.f32`: a number.
    ld_shared_f32, "ld.shared.f32", reg32, f32, address: u32, reg32, [nostack]
);

/// `ld.global.nc.v4.f32`: four numbers from memory that nothing writes while the kernel runs.
///
/// # Safety
///
/// As the module says.
#[inline(always)]
#[must_use]
pub unsafe fn ld_global_nc_v4_f32(address: u64) -> [f32; 4] {
    let (a, b, c, d): (f32, f32, f32, f32);
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("ld.global.nc.v4.f32 {{{0}, {1}, {2}, {3}}}, [{4}];", out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) address, options(pure, nomem, nostack))
    };
    [a, b, c, d]
}

/// `prefetch.global.L2`: has the level-2 cache get the line of an address, which need not be valid.
#[inline(always)]
pub fn prefetch_global_l2(address: u64) {
    // SAFETY: a hint.
    unsafe { instruction!("prefetch.global.L2 [{0}];", in(reg64) address, options(nostack)) }
}

/// `ld.global.nc.v4.b32`: sixteen bytes of memory that nothing writes while the kernel runs. It stays where it is among loads and barriers:
/// a loop asks for the bytes of several steps before it uses the first.
///
/// # Safety
///
/// As the module says.
#[inline(always)]
#[must_use]
pub unsafe fn ld_global_nc_v4_b32(address: u64) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "ld.global.nc.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) address, options(nostack)
        )
    };
    [a, b, c, d]
}

/// `@condition ld.global.nc.v2.f32`: two numbers from memory that nothing writes while the kernel runs if `condition` holds,
/// else 0.
///
/// # Safety
///
/// As the module says, if `condition` holds.
#[inline(always)]
#[must_use]
pub unsafe fn ld_global_nc_v2_f32_if(address: u64, condition: bool) -> [f32; 2] {
    let (a, b): (f32, f32);
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "{{ .reg .pred holds; setp.ne.u32 holds, {3}, 0; mov.b32 {0}, 0; mov.b32 {1}, 0; @holds ld.global.nc.v2.f32 {{{0}, {1}}}, [{2}]; }}",
            out(reg32) a, out(reg32) b, in(reg64) address, in(reg32) u32::from(condition),
            options(pure, nomem, nostack)
        )
    };
    [a, b]
}

/// `@condition ld.global.v2.b32`: eight bytes if `condition` holds, else zeros; as [`ld_global_v4_b32_if`].
///
/// # Safety
///
/// As the module says, if `condition` holds.
#[inline(always)]
#[must_use]
pub unsafe fn ld_global_v2_b32_if(address: u64, condition: bool) -> [u32; 2] {
    let (a, b): (u32, u32);
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "{{ .reg .pred holds; setp.ne.u32 holds, {3}, 0; mov.b32 {0}, 0; mov.b32 {1}, 0; @holds ld.global.v2.b32 {{{0}, {1}}}, [{2}]; }}",
            out(reg32) a, out(reg32) b, in(reg64) address, in(reg32) u32::from(condition),
            options(nomem, nostack)
        )
    };
    [a, b]
}

/// `@condition ld.global.v4.b32`: 16 bytes if `condition` holds, else zeros. Unlike an `nc` load, it is not moved behind a barrier: a loop
/// asks for bytes long before it uses them.
///
/// # Safety
///
/// As the module says, if `condition` holds.
#[inline(always)]
#[must_use]
pub unsafe fn ld_global_v4_b32_if(address: u64, condition: bool) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "{{ .reg .pred holds; setp.ne.u32 holds, {5}, 0; mov.b32 {0}, 0; mov.b32 {1}, 0; mov.b32 {2}, 0; mov.b32 {3}, 0; @holds ld.global.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}]; }}",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) address, in(reg32) u32::from(condition),
            options(nomem, nostack)
        )
    };
    [a, b, c, d]
}

/// As [`ld_global_v4_b32_if`], with words of one's own in the place of zeros.
///
/// # Safety
///
/// As [`ld_global_v4_b32_if`].
#[inline(always)]
#[must_use]
pub unsafe fn ld_global_v4_b32_or(address: u64, condition: bool, otherwise: u32) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "{{ .reg .pred holds; setp.ne.u32 holds, {5}, 0; mov.b32 {0}, {6}; mov.b32 {1}, {6}; mov.b32 {2}, {6}; mov.b32 {3}, {6}; @holds ld.global.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}]; }}",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) address, in(reg32) u32::from(condition), in(reg32) otherwise,
            options(nomem, nostack)
        )
    };
    [a, b, c, d]
}

macro_rules! load_if {
    ($(#[$doc:meta])* $name:ident, $text:literal, $zero:literal, $class:ident, $value:ty) => {
        load_if!($(#[$doc])* $name, $text, $zero, $class, $value, [pure, nomem, nostack]);
    };
    ($(#[$doc:meta])* $name:ident, $text:literal, $zero:literal, $class:ident, $value:ty, [$($option:ident),*]) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As the module says, if `condition` holds.
        #[inline(always)]
        #[must_use]
        pub unsafe fn $name(address: u64, condition: bool) -> $value {
            let value: $value;
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(
                    concat!(
                        "{{ .reg .pred holds; setp.ne.u32 holds, {2}, 0; ", $zero, "; @holds ", $text, " {0}, [{1}]; }}"
                    ),
                    out($class) value, in(reg64) address, in(reg32) u32::from(condition),
                    options($($option),*)
                )
            };
            value
        }
    };
}

load_if!(
    /// `@condition ld.global.nc.b8`: a byte of memory that nothing writes while the kernel runs if `condition` holds, else 0.
    ld_global_nc_b8_if, "ld.global.nc.b8", "mov.b16 {0}, 0", reg16, u16
);
load_if!(
    /// `@condition ld.global.nc.b16`: as [`ld_global_nc_b16`] if `condition` holds, else 0.
    ld_global_nc_b16_if, "ld.global.nc.b16", "mov.b16 {0}, 0", reg16, u16
);
load_if!(
    /// `@condition ld.global.nc.u16`: as [`ld_global_nc_b16_if`], into a register of 32 bits, so that nothing has to wait for the two
    /// bytes only to widen them.
    ld_global_nc_u16_wide_if, "ld.global.nc.u16", "mov.b32 {0}, 0", reg32, u32
);
load_if!(
    /// `@condition ld.global.nc.f32`: as [`ld_global_nc_f32`] if `condition` holds, else 0.
    ld_global_nc_f32_if, "ld.global.nc.f32", "mov.b32 {0}, 0", reg32, f32
);

/// `@condition ld.global.b16`: two bytes in order if `condition` holds, else those of one's own.
///
/// # Safety
///
/// As the module says, if `condition` holds.
#[inline(always)]
#[must_use]
pub unsafe fn ld_global_b16_in_order_or(address: u64, condition: bool, otherwise: u16) -> u16 {
    let value: u16;
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "{{ .reg .pred holds; setp.ne.u32 holds, {2}, 0; mov.b16 {0}, {3}; @holds ld.global.b16 {0}, [{1}]; }}",
            out(reg16) value, in(reg64) address, in(reg32) u32::from(condition), in(reg16) otherwise,
            options(nostack)
        )
    };
    value
}

load_if!(
    /// `@condition ld.global.b16`: as [`ld_global_b16_if`], of memory that this thread may have written before: it stays where it is among loads and stores.
    ld_global_b16_in_order_if, "ld.global.b16", "mov.b16 {0}, 0", reg16, u16, [nostack]
);
load_if!(
    /// `@condition ld.global.b32`: the same, of four bytes.
    ld_global_b32_in_order_if, "ld.global.b32", "mov.b32 {0}, 0", reg32, u32, [nostack]
);

load_if!(
    /// `@condition ld.global.b8`: as [`ld_global_b16_if`], of a byte.
    ld_global_b8_if, "ld.global.b8", "mov.b16 {0}, 0", reg16, u16
);
load_if!(
    /// `@condition ld.global.b16`: two bytes if `condition` holds, else 0. Unlike the `nc` form, of memory that the kernel may write.
    ld_global_b16_if, "ld.global.b16", "mov.b16 {0}, 0", reg16, u16
);
load_if!(
    /// `@condition ld.global.f32`: as [`ld_global_b16_if`], of an f32.
    ld_global_f32_if, "ld.global.f32", "mov.b32 {0}, 0", reg32, f32
);

load!(
    /// `ld.global.b32`: four bytes.
    ld_global_b32, "ld.global.b32", reg32, u32, address: u64, reg64, [readonly, nostack]
);

/// `ld.global.v2.b32`: eight bytes.
///
/// # Safety
///
/// As the module says.
#[inline(always)]
#[must_use]
pub unsafe fn ld_global_v2_b32(address: u64) -> [u32; 2] {
    let (a, b): (u32, u32);
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("ld.global.v2.b32 {{{0}, {1}}}, [{2}];", out(reg32) a, out(reg32) b, in(reg64) address, options(readonly, nostack))
    };
    [a, b]
}

/// `ld.global.v4.b32`: sixteen bytes.
///
/// # Safety
///
/// As the module says.
#[inline(always)]
#[must_use]
pub unsafe fn ld_global_v4_b32(address: u64) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "ld.global.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) address, options(readonly, nostack)
        )
    };
    [a, b, c, d]
}

macro_rules! store {
    ($(#[$doc:meta])* $name:ident, $text:literal, $class:ident, $value:ty) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As the module says.
        #[inline(always)]
        pub unsafe fn $name(address: u64, value: $value) {
            // SAFETY: the caller's promise is the instruction's.
            unsafe { instruction!(concat!($text, " [{0}], {1};"), in(reg64) address, in($class) value, options(nostack)) }
        }
    };
}

store!(
    /// `st.global.b8`: the lowest byte of a register.
    st_global_b8, "st.global.b8", reg32, u32
);
store!(
    /// `st.global.b16`: two bytes.
    st_global_b16, "st.global.b16", reg16, u16
);
store!(
    /// `st.global.b32`: four bytes.
    st_global_b32, "st.global.b32", reg32, u32
);

/// `st.global.v2.b32`: eight bytes.
///
/// # Safety
///
/// As the module says.
#[inline(always)]
pub unsafe fn st_global_v2_b32(address: u64, value: [u32; 2]) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("st.global.v2.b32 [{0}], {{{1}, {2}}};", in(reg64) address, in(reg32) value[0], in(reg32) value[1], options(nostack))
    }
}

/// `st.global.v4.b32`: sixteen bytes.
///
/// # Safety
///
/// As the module says.
#[inline(always)]
pub unsafe fn st_global_v4_b32(address: u64, value: [u32; 4]) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "st.global.v4.b32 [{0}], {{{1}, {2}, {3}, {4}}};",
            in(reg64) address, in(reg32) value[0], in(reg32) value[1], in(reg32) value[2], in(reg32) value[3],
            options(nostack)
        )
    }
}

/// `st.shared.v4.b32`: sixteen bytes.
///
/// # Safety
///
/// As the module says.
#[inline(always)]
pub unsafe fn st_shared_v4_b32(address: u32, value: [u32; 4]) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "st.shared.v4.b32 [{0}], {{{1}, {2}, {3}, {4}}};",
            in(reg32) address, in(reg32) value[0], in(reg32) value[1], in(reg32) value[2], in(reg32) value[3],
            options(nostack)
        )
    }
}

/// `st.shared.v4.f32`: four numbers.
///
/// # Safety
///
/// As the module says.
#[inline(always)]
pub unsafe fn st_shared_v4_f32(address: u32, value: [f32; 4]) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "st.shared.v4.f32 [{0}], {{{1}, {2}, {3}, {4}}};",
            in(reg32) address, in(reg32) value[0], in(reg32) value[1], in(reg32) value[2], in(reg32) value[3],
            options(nostack)
        )
    }
}

/// `st.shared.v2.f32`: two numbers.
///
/// # Safety
///
/// As the module says.
#[inline(always)]
pub unsafe fn st_shared_v2_f32(address: u32, value: [f32; 2]) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("st.shared.v2.f32 [{0}], {{{1}, {2}}};", in(reg32) address, in(reg32) value[0], in(reg32) value[1], options(nostack))
    }
}

/// `st.shared.f32`: a number.
///
/// # Safety
///
/// As the module says.
#[inline(always)]
pub unsafe fn st_shared_f32(address: u32, value: f32) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe { instruction!("st.shared.f32 [{0}], {1};", in(reg32) address, in(reg32) value, options(nostack)) }
}

/// `ld.shared.b32`: four bytes.
///
/// # Safety
///
/// As the module says.
#[inline(always)]
#[must_use]
pub unsafe fn ld_shared_b32(address: u32) -> u32 {
    let value: u32;
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("ld.shared.b32 {0}, [{1}];", out(reg32) value, in(reg32) address, options(nostack))
    };
    value
}

/// `st.shared.b32`: four bytes.
///
/// # Safety
///
/// As the module says.
#[inline(always)]
pub unsafe fn st_shared_b32(address: u32, value: u32) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe { instruction!("st.shared.b32 [{0}], {1};", in(reg32) address, in(reg32) value, options(nostack)) }
}

/// `st.shared.b16`: two bytes.
///
/// # Safety
///
/// As the module says.
#[inline(always)]
pub unsafe fn st_shared_b16(address: u32, value: u16) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe { instruction!("st.shared.b16 [{0}], {1};", in(reg32) address, in(reg16) value, options(nostack)) }
}

macro_rules! store_if {
    ($(#[$doc:meta])* $name:ident, $type:literal, $class:ident, $value:ty) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As the module says, if `condition` holds.
        #[inline(always)]
        pub unsafe fn $name(address: u32, value: $value, condition: bool) {
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(
                    concat!("{{ .reg .pred p; setp.ne.u32 p, {2}, 0; @p st.shared.", $type, " [{0}], {1}; }}"),
                    in(reg32) address, in($class) value, in(reg32) condition as u32, options(nostack)
                )
            }
        }
    };
}
store_if!(
    /// `st.shared.b32` if `condition` holds, without a branch.
    st_shared_b32_if, "b32", reg32, u32
);
store_if!(
    /// `st.shared.b16` if `condition` holds, without a branch.
    st_shared_b16_if, "b16", reg16, u16
);

/// `ld.shared.v2.f32`: two numbers.
///
/// # Safety
///
/// As the module says.
#[inline(always)]
#[must_use]
pub unsafe fn ld_shared_v2_f32(address: u32) -> [f32; 2] {
    let (a, b): (f32, f32);
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!("ld.shared.v2.f32 {{{0}, {1}}}, [{2}];", out(reg32) a, out(reg32) b, in(reg32) address, options(nostack))
    };
    [a, b]
}

/// `ld.shared.v4.f32`: four numbers.
///
/// # Safety
///
/// As the module says.
#[inline(always)]
#[must_use]
pub unsafe fn ld_shared_v4_f32(address: u32) -> [f32; 4] {
    let (a, b, c, d): (f32, f32, f32, f32);
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "ld.shared.v4.f32 {{{0}, {1}, {2}, {3}}}, [{4}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
            options(nostack)
        )
    };
    [a, b, c, d]
}

/// `ld.shared.v4.b32`: sixteen bytes.
///
/// # Safety
///
/// As the module says.
#[inline(always)]
#[must_use]
pub unsafe fn ld_shared_v4_b32(address: u32) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "ld.shared.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
            options(nostack)
        )
    };
    [a, b, c, d]
}

/// As [`ld_global_v4_b32_if`], of bytes that few others read: `.cs`, the first that a cache gives up.
///
/// # Safety
///
/// As [`ld_global_v4_b32_if`].
#[inline(always)]
#[must_use]
pub unsafe fn ld_global_v4_b32_once_if(address: u64, condition: bool) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "{{ .reg .pred holds; setp.ne.u32 holds, {5}, 0; mov.b32 {0}, 0; mov.b32 {1}, 0; mov.b32 {2}, 0; mov.b32 {3}, 0; @holds ld.global.cs.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}]; }}",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) address, in(reg32) u32::from(condition),
            options(nomem, nostack)
        )
    };
    [a, b, c, d]
}
