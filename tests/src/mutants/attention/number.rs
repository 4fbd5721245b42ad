//! The types of elements, and their bytes.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    F16,
    Bf16,
    F32,
    E4m3,
    E5m2,
}

impl Number {
    /// Bytes of an element.
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::E4m3 | Self::E5m2 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    pub(super) fn put(self, value: f64) -> Vec<u8> {
        match self {
            Self::E4m3 => vec![F8E4M3::from_f64(value).to_bits()],
            Self::E5m2 => vec![F8E5M2::from_f64(value).to_bits()],
            Self::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
            Self::Bf16 => bf16::from_f64(value).to_le_bytes().to_vec(),
            Self::F32 => (value as f32).to_le_bytes().to_vec(),
        }
    }

    /// The number of an element's bytes.
    pub(super) fn get(self, bytes: &[u8]) -> f64 {
        match (self, bytes) {
            (Self::E4m3, &[a]) => F8E4M3::from_bits(a).to_f64(),
            (Self::E5m2, &[a]) => F8E5M2::from_bits(a).to_f64(),
            (Self::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f64(),
            (Self::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f64(),
            (Self::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
            _ => f64::NAN,
        }
    }

    /// The most by which rounding changes a number, relative to it; in f32 what exponents of scores of thousands are off by.
    pub(super) fn unit(self) -> f64 {
        match self {
            Self::E4m3 => 2f64.powi(-4),
            Self::E5m2 => 2f64.powi(-3),
            Self::F16 => 2f64.powi(-11),
            Self::Bf16 => 2f64.powi(-8),
            Self::F32 => 2f64.powi(-13),
        }
    }
}
