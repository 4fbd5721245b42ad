//! What kernels of 8-bit operands have in common.

/// The types of X and of W, which are chosen at the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Fp8Types(u32);

impl Fp8Types {
    /// Both are e4m3.
    pub const E4M3: Self = Self::new(false, false);
    /// X is e5m2, W is e4m3.
    pub const E5M2_BY_E4M3: Self = Self::new(true, false);
    /// X is e4m3, W is e5m2.
    pub const E4M3_BY_E5M2: Self = Self::new(false, true);

    /// e4m3 or e5m2 for each operand.
    #[must_use]
    pub const fn new(x_is_e5m2: bool, w_is_e5m2: bool) -> Self {
        Self(x_is_e5m2 as u32 | (w_is_e5m2 as u32) << 1)
    }
}

// SAFETY: transparent over a `u32`.
unsafe impl warpsmith_dsl::launch::KernelParam for Fp8Types {}
