//! Sizes that the kernels of several operations ask for, and what their 32-bit coordinates allow.

/// What rows start at multiples of, in bytes, where kernels read and write them in chunks.
pub(crate) const CHUNK_BYTES: usize = warpsmith_dsl::layout::CHUNK_BYTES as usize;
/// Rows of an output that a warp has the copy engine store at a time.
pub(crate) const STORED_ROWS: usize = 16;
/// No side of a matrix may reach this, so that coordinates of a tile that sticks out stay 32-bit numbers.
pub(crate) const SIDE_LIMIT: u64 = 1 << 31;
/// Nor may a row of an operand, in bytes.
pub(crate) const ROW_LIMIT: u64 = 1 << 31;

/// Whether kernels can have boxes of a residual whose rows are `columns` elements of `bytes` bytes: where in a row they are is a number of 32 bits,
/// for a tile that sticks out too.
pub(crate) fn has_short_rows(columns: usize, bytes: usize) -> bool {
    (columns as u64).saturating_mul(bytes as u64) < ROW_LIMIT
}

#[cfg(test)]
mod tests {
    use super::has_short_rows;

    #[test]
    fn rows_of_two_gibibytes_are_not_short() {
        assert!(has_short_rows(0, 4) && has_short_rows((1 << 29) - 4, 4) && has_short_rows((1 << 30) - 8, 2));
        assert!(!has_short_rows(1 << 29, 4) && !has_short_rows(1 << 30, 2) && !has_short_rows(usize::MAX, 4));
    }
}
