//! The number types of the CPU implementations: what they read, what they accumulate in, what they write.

use float8::{F8E4M3, F8E5M2};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::gemm::MicroKernel;

/// An input element: every value of it is exactly an `f32`.
pub trait Operand: Copy + Send + Sync + 'static {
    /// Converts `source` to f32, element by element; both slices have the same length.
    fn widen(source: &[Self], target: &mut [f32]);

    /// The element as f32.
    fn to_f32(self) -> f32;
}

impl Operand for f32 {
    fn widen(source: &[Self], target: &mut [f32]) {
        target.copy_from_slice(source);
    }

    fn to_f32(self) -> f32 {
        self
    }
}

macro_rules! half_operand {
    ($half:ty) => {
        impl Operand for $half {
            fn widen(source: &[Self], target: &mut [f32]) {
                source.convert_to_f32_slice(target);
            }

            fn to_f32(self) -> f32 {
                <$half>::to_f32(self)
            }
        }
    };
}
half_operand!(f16);
half_operand!(bf16);

macro_rules! eight_bit_operand {
    ($element:ty) => {
        impl Operand for $element {
            fn widen(source: &[Self], target: &mut [f32]) {
                for (target, source) in target.iter_mut().zip(source) {
                    *target = source.to_f32();
                }
            }

            fn to_f32(self) -> f32 {
                <$element>::to_f32(&self)
            }
        }
    };
}
eight_bit_operand!(F8E4M3);
eight_bit_operand!(F8E5M2);

/// A type to add up in: `f32` for speed, `f64` for the reference.
pub trait Accumulator:
    num_traits::Float
    + num_traits::FloatConst
    + bytemuck::Zeroable
    + Default
    + Send
    + Sync
    + core::ops::AddAssign
    + 'static
{
    /// `value` in this type, exactly.
    fn from_f32(value: f32) -> Self;

    /// `value` rounded to this type.
    fn from_f64(value: f64) -> Self;

    /// The complementary error function, `1 − erf(self)` without the cancellation for arguments above 0.
    fn erfc(self) -> Self;

    /// The fastest micro-kernel that this machine can run.
    fn micro_kernel() -> MicroKernel<Self>;
}

impl Accumulator for f32 {
    fn from_f32(value: f32) -> Self {
        value
    }

    fn from_f64(value: f64) -> Self {
        value as f32
    }

    fn erfc(self) -> Self {
        libm::erfcf(self)
    }

    fn micro_kernel() -> MicroKernel<Self> {
        super::gemm::micro_kernel_f32()
    }
}

impl Accumulator for f64 {
    fn from_f32(value: f32) -> Self {
        f64::from(value)
    }

    fn from_f64(value: f64) -> Self {
        value
    }

    fn erfc(self) -> Self {
        libm::erfc(self)
    }

    fn micro_kernel() -> MicroKernel<Self> {
        super::gemm::micro_kernel_f64()
    }
}

/// An output element that results accumulated in `A` are rounded to, once, to nearest with ties to even.
pub trait FromAccumulator<A>: Copy + Send + Sync + 'static {
    /// `value` rounded to this type.
    fn from_accumulator(value: A) -> Self;
}

impl FromAccumulator<f32> for f32 {
    fn from_accumulator(value: f32) -> Self {
        value
    }
}

impl FromAccumulator<f32> for f16 {
    fn from_accumulator(value: f32) -> Self {
        f16::from_f32(value)
    }
}

impl FromAccumulator<f32> for bf16 {
    fn from_accumulator(value: f32) -> Self {
        bf16::from_f32(value)
    }
}

impl FromAccumulator<f64> for f64 {
    fn from_accumulator(value: f64) -> Self {
        value
    }
}
