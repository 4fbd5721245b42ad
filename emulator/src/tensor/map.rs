//! The tensor map: its arguments, the rules that the driver has for them, and the 128 bytes that a kernel gets.

use crate::error::shown_when_debugged;

/// Bytes of a tensor map.
pub(crate) const MAP_BYTES: usize = 128;
/// The most axes of a tensor.
const MAX_RANK: usize = 5;
/// What a tensor map begins with, so that other bytes are not taken for one.
const MAGIC: [u8; 8] = *b"WSTMAP\x01\0";

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TensorType {
    /// Unsigned 8-bit integer, or any other type of one byte.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    S32,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 64-bit integer.
    S64,
    /// IEEE 754 half precision.
    F16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
    /// bfloat16.
    Bf16,
    /// Single precision, of which reductions flush subnormal numbers to zero. Copies leave them as they are.
    F32Ftz,
    /// Single precision that a load rounds to TF32.
    Tf32,
    /// As [`TensorType::Tf32`], flushing as [`TensorType::F32Ftz`] does.
    Tf32Ftz,
}

impl TensorType {
    /// All types, in the order of the driver's numbers for them.
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::U16,
        Self::U32,
        Self::S32,
        Self::U64,
        Self::S64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::Bf16,
        Self::F32Ftz,
        Self::Tf32,
        Self::Tf32Ftz,
    ];

    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::U8 => 1,
            Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::S32 | Self::F32 | Self::F32Ftz | Self::Tf32 | Self::Tf32Ftz => 4,
            Self::U64 | Self::S64 | Self::F64 => 8,
        }
    }

    /// Whether it is a floating-point type.
    #[must_use]
    pub const fn is_float(self) -> bool {
        !matches!(self, Self::U8 | Self::U16 | Self::U32 | Self::S32 | Self::U64 | Self::S64)
    }
}

/// Whether the innermost axis is cut into slices that are apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Interleave {
    /// It is not.
    #[default]
    None,
    /// Slices of 16 bytes, which the emulator does not know.
    B16,
    /// Slices of 32 bytes, which the emulator does not know.
    B32,
}

/// How 16-byte chunks are permuted in shared memory. The permutation takes the absolute address, so a tile that begins
/// where the pattern repeats is simplest to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Swizzle {
    /// Not at all.
    #[default]
    None,
    /// Within 32 bytes: bit 4 of the address takes bit 7.
    B32,
    /// Within 64 bytes: bits 4 and 5 take bits 7 and 8.
    B64,
    /// Within 128 bytes: bits 4 to 6 take bits 7 to 9.
    B128,
}

impl Swizzle {
    /// Bytes within which chunks change places; 0 without a swizzle.
    #[must_use]
    pub const fn span(self) -> u32 {
        match self {
            Self::None => 0,
            Self::B32 => 32,
            Self::B64 => 64,
            Self::B128 => 128,
        }
    }

    /// Where the byte that belongs at `address` without a swizzle is.
    #[must_use]
    pub const fn apply(self, address: u32) -> u32 {
        let bits = match self {
            Self::None => 0,
            Self::B32 => 1,
            Self::B64 => 3,
            Self::B128 => 7,
        };
        address ^ ((address >> 7 & bits) << 4)
    }
}

/// The granularity of reads from memory into the level-2 cache; of no consequence for a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum L2Promotion {
    /// The hardware's own.
    #[default]
    None,
    /// 64 bytes.
    B64,
    /// 128 bytes.
    B128,
    /// 256 bytes.
    B256,
}

/// What a load puts in the place of elements outside the tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OobFill {
    /// Zeros.
    #[default]
    Zeros,
    /// A NaN that `fma.oob` takes for zero; for floating-point types only.
    Nan,
}

/// The arguments of [`TensorMap::encode`], which are those of the driver's `cuTensorMapEncodeTiled`. Axes are in the
/// order of the driver, the innermost one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMapArguments<'a> {
    /// The type of the elements.
    pub data_type: TensorType,
    /// The address of the first element: a multiple of 16.
    pub address: u64,
    /// Elements along each axis, 1 to 2³²; as many numbers as the tensor has axes, 1 to 5.
    pub dims: &'a [u64],
    /// Bytes from one index to the next along each axis but the innermost one: multiples of 16, less than 2⁴⁰.
    pub strides: &'a [u64],
    /// Elements of the box along each axis, 1 to 256. Along the innermost axis they make a multiple of 16 bytes, and with
    /// a swizzle no more than its span.
    pub box_dims: &'a [u32],
    /// The box takes every such element along each axis, 1 to 8. The innermost axis takes every element whatever this
    /// says.
    pub element_strides: &'a [u32],
    /// Whether the innermost axis is in slices.
    pub interleave: Interleave,
    /// The permutation of shared memory.
    pub swizzle: Swizzle,
    /// The granularity of reads into the level-2 cache.
    pub l2_promotion: L2Promotion,
    /// What is outside the tensor.
    pub oob_fill: OobFill,
}

/// The most bytes that a box may have. (An H100's driver takes so many and refuses one KiB more.)
const BOX_BYTES: u64 = 228 << 10;

/// Why arguments do not make a tensor map.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorMapError {
    /// The box has more bytes than a multiprocessor has for shared memory.
    #[error("the box has {actual} bytes, expected at most {BOX_BYTES}")]
    BoxBytes {
        /// The bytes of the elements that it takes.
        actual: u64,
    },
    /// The tensor has no axis, or too many.
    #[error("the tensor has {actual} axes, expected 1 to 5")]
    Rank {
        /// The number of axes.
        actual: usize,
    },
    /// A list has not one number for each axis that it is about.
    #[error("{operand} has {actual} numbers, expected {expected}")]
    Length {
        /// The list.
        operand: &'static str,
        /// Numbers wanted.
        expected: usize,
        /// Numbers given.
        actual: usize,
    },
    /// A number is out of its range.
    #[error("{operand} of axis {axis} is {actual}, expected {expected}")]
    Range {
        /// The quantity.
        operand: &'static str,
        /// The axis, counted from the innermost one.
        axis: usize,
        /// What is taken.
        expected: &'static str,
        /// What came.
        actual: u64,
    },
    /// The address of the tensor is not aligned.
    #[error("the address is {actual:#x}, expected a multiple of 16")]
    Address {
        /// The address.
        actual: u64,
    },
    /// The innermost axis of the box does not have whole chunks of 16 bytes.
    #[error("the box has {actual} bytes along its innermost axis, expected a multiple of 16")]
    InnerBytes {
        /// Its bytes.
        actual: u64,
    },
    /// The innermost axis of the box is longer than what the swizzle permutes.
    #[error(
        "the box has {actual} bytes along its innermost axis, expected at most {span}, the span of the swizzle"
    )]
    SwizzleSpan {
        /// The swizzle's span in bytes.
        span: u32,
        /// The box's bytes.
        actual: u64,
    },
    /// A fill with NaN for elements that are no floating-point numbers.
    #[error(
        "elements of type {actual:?} are filled with NaN outside the tensor, expected a floating-point type"
    )]
    Fill {
        /// The type of the elements.
        actual: TensorType,
    },
    /// A layout that is not known.
    #[error(
        "the layout is interleaved by {actual:?}, expected no interleaving: other layouts are not supported"
    )]
    Interleaved {
        /// The layout.
        actual: Interleave,
    },
}

shown_when_debugged!(TensorMapError);

impl TensorMapArguments<'_> {
    /// Whether these arguments make a tensor map. A GPU's driver takes what this takes.
    ///
    /// # Errors
    ///
    /// Says which argument breaks which rule.
    pub fn check(&self) -> Result<(), TensorMapError> {
        let rank = self.dims.len();
        if rank == 0 || rank > MAX_RANK {
            return Err(TensorMapError::Rank { actual: rank });
        }
        for (operand, expected, actual) in [
            ("the list of strides", rank - 1, self.strides.len()),
            ("the list of the box's sizes", rank, self.box_dims.len()),
            ("the list of element strides", rank, self.element_strides.len()),
        ] {
            if actual != expected {
                return Err(TensorMapError::Length { operand, expected, actual });
            }
        }
        if self.interleave != Interleave::None {
            return Err(TensorMapError::Interleaved { actual: self.interleave });
        }
        if !self.address.is_multiple_of(16) {
            return Err(TensorMapError::Address { actual: self.address });
        }
        let ranges =
            |operand, expected, first, values: &mut dyn Iterator<Item = u64>, good: fn(u64) -> bool| {
                match values.enumerate().find(|&(_, value)| !good(value)) {
                    None => Ok(()),
                    Some((axis, actual)) => {
                        Err(TensorMapError::Range { operand, axis: axis + first, expected, actual })
                    }
                }
            };
        ranges("the size", "1 to 2^32 elements", 0, &mut self.dims.iter().copied(), |n| {
            (1..=1 << 32).contains(&n)
        })?;
        ranges("the stride", "a multiple of 16 below 2^40", 1, &mut self.strides.iter().copied(), |n| {
            n.is_multiple_of(16) && n < 1 << 40
        })?;
        let boxes = &mut self.box_dims.iter().map(|&n| u64::from(n));
        ranges("the box's size", "1 to 256 elements", 0, boxes, |n| (1..=256).contains(&n))?;
        let steps = &mut self.element_strides.iter().map(|&n| u64::from(n));
        ranges("the element stride", "1 to 8", 0, steps, |n| (1..=8).contains(&n))?;
        let inner = u64::from(self.box_dims[0]) * u64::from(self.data_type.bytes());
        if !inner.is_multiple_of(16) {
            return Err(TensorMapError::InnerBytes { actual: inner });
        }
        let span = self.swizzle.span();
        if span != 0 && inner > u64::from(span) {
            return Err(TensorMapError::SwizzleSpan { span, actual: inner });
        }
        if self.oob_fill == OobFill::Nan && !self.data_type.is_float() {
            return Err(TensorMapError::Fill { actual: self.data_type });
        }
        let whole = self
            .box_dims
            .iter()
            .zip(self.element_strides)
            .map(|(&n, &step)| u64::from(n.div_ceil(step)))
            .product::<u64>()
            * u64::from(self.data_type.bytes());
        if whole > BOX_BYTES {
            return Err(TensorMapError::BoxBytes { actual: whole });
        }
        Ok(())
    }
}

/// A tensor map of the emulator: 128 bytes that a kernel gets as a parameter or in memory, aligned to 64.
///
/// It stands for the driver's `CUtensorMap`, but its bytes are the emulator's own: neither understands the other's.
///
/// ```
/// use warpsmith_emulator::{
///     Interleave, L2Promotion, Machine, OobFill, Swizzle, TensorMap, TensorMapArguments, TensorType,
/// };
///
/// let machine = Machine::default();
/// let matrix = TensorMapArguments {
///     data_type: TensorType::Bf16,
///     address: machine.allocate(100 * 256)?,
///     dims: &[128, 100], // 100 rows of 128 elements
///     strides: &[256],
///     box_dims: &[64, 32],
///     element_strides: &[1, 1],
///     interleave: Interleave::None,
///     swizzle: Swizzle::B128,
///     l2_promotion: L2Promotion::None,
///     oob_fill: OobFill::Zeros,
/// };
/// // These bytes are the argument of a parameter `.param .align 64 .b8 map[128]`.
/// let map = TensorMap::encode(&matrix)?;
/// let argument: &[u8; 128] = map.as_bytes();
///
/// let error = TensorMap::encode(&TensorMapArguments { strides: &[250], ..matrix }).unwrap_err();
/// assert_eq!(error.to_string(), "the stride of axis 1 is 250, expected a multiple of 16 below 2^40");
/// # let _ = argument;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct TensorMap([u8; MAP_BYTES]);

impl TensorMap {
    /// The map of a tensor.
    ///
    /// # Errors
    ///
    /// As for [`TensorMapArguments::check`].
    pub fn encode(arguments: &TensorMapArguments<'_>) -> Result<Self, TensorMapError> {
        arguments.check()?;
        let mut bytes = [0; MAP_BYTES];
        let mut put = |at: usize, from: &[u8]| bytes[at..at + from.len()].copy_from_slice(from);
        put(0, &MAGIC);
        put(
            8,
            &[
                arguments.data_type as u8,
                arguments.dims.len() as u8,
                arguments.swizzle as u8,
                arguments.l2_promotion as u8,
                arguments.oob_fill as u8,
            ],
        );
        put(16, &arguments.address.to_le_bytes());
        for (axis, &size) in arguments.dims.iter().enumerate() {
            // One less, so that 2^32 fits.
            put(24 + 4 * axis, &((size - 1) as u32).to_le_bytes());
        }
        for axis in 0..arguments.dims.len() {
            put(44 + 2 * axis, &(arguments.box_dims[axis] as u16).to_le_bytes());
            put(54 + axis, &[arguments.element_strides[axis] as u8]);
        }
        for (axis, stride) in arguments.strides.iter().enumerate() {
            put(64 + 8 * axis, &stride.to_le_bytes());
        }
        let sum = checksum(&bytes);
        bytes[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
        Ok(Self(bytes))
    }

    /// The bytes that a kernel gets.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; MAP_BYTES] {
        &self.0
    }
}

/// Where the checksum of the bytes before it is.
const CHECKSUM: usize = MAP_BYTES - 8;

/// A checksum of a map's bytes (64-bit FNV-1a).
fn checksum(bytes: &[u8; MAP_BYTES]) -> u64 {
    bytes[..CHECKSUM]
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// What a tensor map says, as the copy engine sees it. Axes that the tensor lacks have one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiled {
    pub(crate) data_type: TensorType,
    pub(crate) rank: usize,
    pub(crate) address: u64,
    pub(crate) dims: [u64; MAX_RANK],
    /// Bytes from one index to the next, along the innermost axis too.
    pub(crate) strides: [u64; MAX_RANK],
    /// Elements that the box takes along each axis.
    pub(crate) counts: [u32; MAX_RANK],
    /// From one of these elements to the next.
    pub(crate) steps: [u32; MAX_RANK],
    pub(crate) swizzle: Swizzle,
    pub(crate) oob_fill: OobFill,
}

impl Tiled {
    /// Reads what [`TensorMap::encode`] wrote; `None` if the bytes are something else.
    pub(crate) fn decode(bytes: &[u8; MAP_BYTES]) -> Option<Self> {
        let sum = u64::from_le_bytes(bytes[CHECKSUM..].try_into().ok()?);
        if bytes[..8] != MAGIC || sum != checksum(bytes) {
            return None;
        }
        let word = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
        let data_type = *TensorType::ALL.get(usize::from(bytes[8]))?;
        let rank = usize::from(bytes[9]);
        let swizzle = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];
        let fill = [OobFill::Zeros, OobFill::Nan];
        let mut map = Self {
            data_type,
            rank,
            address: word(16)?,
            dims: [1; MAX_RANK],
            strides: [0; MAX_RANK],
            counts: [1; MAX_RANK],
            steps: [1; MAX_RANK],
            swizzle: *swizzle.get(usize::from(bytes[10]))?,
            oob_fill: *fill.get(usize::from(bytes[12]))?,
        };
        map.strides[0] = u64::from(data_type.bytes());
        for axis in 0..rank.min(MAX_RANK) {
            let size = u32::from_le_bytes(bytes[24 + 4 * axis..28 + 4 * axis].try_into().ok()?);
            let box_dim = u16::from_le_bytes(bytes[44 + 2 * axis..46 + 2 * axis].try_into().ok()?);
            map.dims[axis] = u64::from(size) + 1;
            if axis > 0 {
                map.steps[axis] = u32::from(bytes[54 + axis]).max(1);
                map.strides[axis] = word(64 + 8 * (axis - 1))?;
            }
            map.counts[axis] = u32::from(box_dim).div_ceil(map.steps[axis]);
        }
        Some(map)
    }
}

#[cfg(test)]
mod tests;
