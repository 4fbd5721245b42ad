//! An attention as plain numbers: what a launch is made of.

use crate::cpu::Window;

/// Sizes, strides and options of an attention whose operands have been checked.
///
/// Every size is below 2³¹, so that those that a kernel gets are numbers of 32 bits. Strides are in elements, of the axes [batch, row, head] of `q` and
/// `y`, [batch, key, head] of `k` and `v`; that of the last axis is 1. Packed sequences have no batch axis: its stride is 0. With pages, `k` and `v` have the
/// axes [page, key of the page, head].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Problem {
    /// Sequences.
    pub(crate) batch: usize,
    /// Heads of the queries.
    pub(crate) heads: usize,
    /// Heads of the keys and values.
    pub(crate) key_heads: usize,
    /// Rows of each sequence, or of all packed ones.
    pub(crate) rows: usize,
    /// Keys of each sequence, or of all packed ones; with pages, those that a row of the table has.
    pub(crate) keys: usize,
    /// Elements of a query and of a key.
    pub(crate) width: usize,
    /// Elements of a value and of a result.
    pub(crate) value_width: usize,
    /// Whether sequences follow each other, as the offsets say.
    pub(crate) is_packed: bool,
    pub(crate) pages: Option<Paging>,
    pub(crate) q_strides: [u64; 3],
    pub(crate) k_strides: [u64; 3],
    pub(crate) v_strides: [u64; 3],
    pub(crate) scale: f32,
    pub(crate) soft_cap: Option<f32>,
    pub(crate) window: Window,
    /// Strides of [batch, head, row, key], 0 where an axis is broadcast.
    pub(crate) mask_strides: Option<[u64; 4]>,
    /// The same of the bias.
    pub(crate) bias_strides: Option<[u64; 4]>,
    /// Strides of [batch, head, block of rows, block of keys], and the sizes of a block.
    pub(crate) block_mask: Option<([u64; 4], [u32; 2])>,
    /// The stride of the slopes' batch axis: 0 if they are those of heads. Heads have the stride 1.
    pub(crate) slopes_stride: Option<u64>,
    /// Whether the scales of k, and those of v, are of its heads.
    pub(crate) scales_per_head: [bool; 2],
}

/// Pages of keys and values, and the table that says which of them a sequence has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Paging {
    pub(crate) pages: usize,
    /// Keys of a page.
    pub(crate) size: usize,
    /// Elements of the table from one sequence to the next.
    pub(crate) table_stride: u64,
}

impl Problem {
    /// Whether the results have no elements.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0 || self.heads == 0 || self.batch == 0
    }

    /// The shape of `y`.
    pub(crate) fn output_shape(&self) -> Vec<usize> {
        let row = [self.rows, self.heads, self.value_width];
        if self.is_packed { row.to_vec() } else { [&[self.batch], &row[..]].concat() }
    }

    /// The shape of `lse`.
    pub(crate) fn lse_shape(&self) -> Vec<usize> {
        if self.is_packed { vec![self.heads, self.rows] } else { vec![self.batch, self.heads, self.rows] }
    }
}
