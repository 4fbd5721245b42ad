//! Numbers that kernels read and write, as bytes: integers small enough that every sum of products is exact.

use half::{bf16, f16};
use warpsmith_emulator::TensorType;

/// A type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Float {
    F16,
    Bf16,
    F32,
    E4m3,
    E5m2,
}

impl Float {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "f16" => Some(Self::F16),
            "bf16" => Some(Self::Bf16),
            "f32" | "tf32" => Some(Self::F32),
            "e4m3" => Some(Self::E4m3),
            _ => None,
        }
    }

    pub(super) fn bytes(self) -> u32 {
        match self {
            Self::E4m3 | Self::E5m2 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    /// What tensor maps call it.
    pub(super) fn tensor_type(self) -> TensorType {
        match self {
            Self::F16 => TensorType::F16,
            Self::Bf16 => TensorType::Bf16,
            Self::F32 => TensorType::F32,
            Self::E4m3 | Self::E5m2 => TensorType::U8,
        }
    }

    /// The element's bytes: rounded once, to the nearest, ties to even. Of 8-bit numbers only ±0, ±1, ±2 and NaN are known.
    pub(super) fn put(self, value: f32, at: usize, to: &mut [u8]) {
        let size = self.bytes() as usize;
        let to = &mut to[at * size..(at + 1) * size];
        match self {
            Self::F16 => to.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            Self::Bf16 => to.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
            Self::F32 => to.copy_from_slice(&value.to_le_bytes()),
            Self::E4m3 | Self::E5m2 => {
                let [one, two, nan] =
                    if self == Self::E4m3 { [0x38, 0x40, 0x7f] } else { [0x3c, 0x40, 0x7f] };
                let magnitude = match value.abs() {
                    0.0 => 0,
                    1.0 => one,
                    2.0 => two,
                    _ => nan,
                };
                to[0] = magnitude | if value < 0.0 { 0x80 } else { 0 };
            }
        }
    }

    /// The element whose bytes these are, of the types that kernels write.
    pub(super) fn get(self, at: usize, from: &[u8]) -> f32 {
        let size = self.bytes() as usize;
        match (self, &from[at * size..(at + 1) * size]) {
            (Self::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            (Self::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            (Self::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            _ => f32::NAN,
        }
    }

    /// Elements in a chunk of 16 bytes.
    pub(super) fn chunk(self) -> u32 {
        16 / self.bytes()
    }
}
