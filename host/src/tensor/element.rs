//! Element types: which Rust types a tensor holds, and which type each of them is in a kernel.

use std::fmt;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use warpsmith_dsl::float::{self as device, Bf16, F16};

/// The element type of a tensor, as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// 8-bit floating point of 4 exponent and 3 fraction bits, without infinities (OCP's E4M3): up to 448.
    F8E4M3,
    /// 8-bit floating point of 5 exponent and 2 fraction bits (OCP's E5M2): up to 57344.
    F8E5M2,
    /// IEEE 754 half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 64-bit integer.
    I64,
}

impl DType {
    /// Bytes an element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            DType::F8E4M3 | DType::F8E5M2 | DType::U8 => 1,
            DType::F16 | DType::Bf16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 => 8,
        }
    }

    /// Whether it is a floating-point type.
    #[must_use]
    pub const fn is_float(self) -> bool {
        match self {
            DType::F8E4M3 | DType::F8E5M2 | DType::F16 | DType::Bf16 | DType::F32 | DType::F64 => true,
            DType::U8 | DType::I32 | DType::U32 | DType::I64 => false,
        }
    }

    /// The type's name as Rust spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DType::F8E4M3 => "f8e4m3",
            DType::F8E5M2 => "f8e5m2",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::U8 => "u8",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::I64 => "i64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A type that a [`Tensor`](crate::Tensor) can hold: a number without padding, valid for every bit pattern.
pub trait Element: bytemuck::Pod + PartialEq + fmt::Debug + Send + Sync + sealed::Sealed {
    /// The same type as kernels name it. (Kernels see the 8-bit and 16-bit floats as their bits.)
    type Device: 'static;
    /// The type as a value.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($host:ty => $device:ty, $dtype:ident;)*) => {
        $(
            impl sealed::Sealed for $host {}
            impl Element for $host {
                type Device = $device;
                const DTYPE: DType = DType::$dtype;
            }
            const _: () = assert!(size_of::<$host>() == size_of::<$device>());
            const _: () = assert!(size_of::<$host>() == DType::$dtype.size());
        )*
    };
}
elements! {
    F8E4M3 => device::F8E4M3, F8E4M3;
    F8E5M2 => device::F8E5M2, F8E5M2;
    f16 => F16, F16;
    bf16 => Bf16, Bf16;
    f32 => f32, F32;
    f64 => f64, F64;
    u8 => u8, U8;
    i32 => i32, I32;
    u32 => u32, U32;
    i64 => i64, I64;
}
