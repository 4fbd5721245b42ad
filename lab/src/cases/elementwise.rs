//! Element-wise operations.

use std::fmt::Write as _;

use warpsmith::DType;
use warpsmith::cpu::Elementwise;

use super::linear::Placement;

/// One function of elements to validate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElementwiseCase {
    /// What is made of the elements.
    pub function: Elementwise,
    /// The type of the first operand, and of the third and the second result where there are any: f16, bf16 or f32.
    pub dtype: DType,
    /// The type of the second operand and of the result.
    pub other: DType,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub columns: usize,
    /// Whether the second operand of a sum or a product is one row for all.
    pub is_row: bool,
    /// Where rows are in larger ones.
    pub placement: Placement,
    /// Decides the elements.
    pub seed: u64,
}

impl ElementwiseCase {
    /// A function of rows without gaps, of one type.
    #[must_use]
    pub fn new(function: Elementwise, dtype: DType, rows: usize, columns: usize) -> Self {
        let placement = Placement { before: 0, after: 0 };
        Self { function, dtype, other: dtype, rows, columns, is_row: false, placement, seed: 0 }
    }

    /// The sizes in short.
    #[must_use]
    pub fn shape(&self) -> String {
        format!("{}×{}", self.rows, self.columns)
    }

    /// The options in short.
    #[must_use]
    pub fn options(&self) -> String {
        let mut told = match self.function {
            Elementwise::Activation(of) => format!("act {of}"),
            Elementwise::Add => "add".into(),
            Elementwise::Multiply => "mul".into(),
            Elementwise::Gated(of) => format!("gated {of}"),
            Elementwise::ActivationGradient(of) => format!("act′ {of}"),
            Elementwise::GatedGradient(of) => format!("gated′ {of}"),
        };
        if self.is_row {
            told.push_str(" row");
        }
        told + &beside(self.placement)
    }
}

/// Where rows are in larger ones, in short.
pub(super) fn beside(placement: Placement) -> String {
    let mut told = String::new();
    if placement != (Placement { before: 0, after: 0 }) {
        let _ = write!(told, " {}+{}", placement.before, placement.after);
    }
    told
}
