//! Selections of the largest elements.

use warpsmith::DType;

use super::data::Data;

/// One selection to validate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopkCase {
    /// The elements' type: f16, bf16 or f32.
    pub dtype: DType,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub columns: usize,
    /// How many are selected of each.
    pub k: usize,
    /// What the elements are drawn from; integers are few, so that most are ties.
    pub data: Data,
    /// Decides the elements.
    pub seed: u64,
}

impl TopkCase {
    /// The sizes in short.
    #[must_use]
    pub fn shape(&self) -> String {
        format!("{}×{} k={}", self.rows, self.columns, self.k)
    }

    /// The options in short.
    #[must_use]
    pub fn options(&self) -> String {
        if self.data == Data::Integers { "ties".into() } else { String::new() }
    }
}
