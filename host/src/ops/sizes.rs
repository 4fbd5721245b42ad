//! Sizes that the kernels of several operations ask for, and what their 32-bit coordinates allow.

/// What rows start at multiples of, in bytes, where kernels read and write them in chunks.
pub(crate) const CHUNK_BYTES: usize = warpsmith_dsl::layout::CHUNK_BYTES as usize;
/// Rows of an output that a warp has the copy engine store at a time.
pub(crate) const STORED_ROWS: usize = 16;
/// No side of a matrix may reach this, so that coordinates of a tile that sticks out stay 32-bit numbers.
pub(crate) const SIDE_LIMIT: u64 = 1 << 31;
/// Nor may a row of an operand, in bytes.
pub(crate) const ROW_LIMIT: u64 = 1 << 31;
