//! Copies of matrices into aligned rows.

use warpsmith::DType;

/// The layout of the matrices that are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// Their rows, apart by as many elements more than they have.
    #[default]
    Rows,
    /// Their columns.
    Columns,
}

/// One copy of matrices to validate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RepackCase {
    /// The elements' type: u8, f16, bf16, u32 or f32.
    pub dtype: DType,
    /// Matrices.
    pub batch: usize,
    /// Rows of each.
    pub rows: usize,
    /// Columns of each.
    pub columns: usize,
    /// Their layout.
    pub source: Source,
    /// Elements before each row or column in memory, and after it.
    pub beside: [usize; 2],
    /// Decides the elements.
    pub seed: u64,
}

impl RepackCase {
    /// The sizes in short.
    #[must_use]
    pub fn shape(&self) -> String {
        format!("{}×{}×{}", self.batch, self.rows, self.columns)
    }

    /// The layout of the matrices, in short.
    #[must_use]
    pub fn options(&self) -> String {
        let source = match self.source {
            Source::Rows => "rows",
            Source::Columns => "columns",
        };
        match self.beside {
            [0, 0] => source.into(),
            [before, after] => format!("{source}, {before} elements before and {after} after"),
        }
    }
}
