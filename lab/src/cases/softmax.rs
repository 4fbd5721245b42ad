//! Softmax of rows, and losses of rows of logits.

use std::fmt::Write as _;

use warpsmith::DType;
use warpsmith::cpu::CrossEntropy;
use warpsmith::ops::cross_entropy::Reduction;

use super::linear::Placement;

/// Rows of a mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MaskRows {
    /// There is no mask.
    #[default]
    None,
    /// One that all rows have.
    One,
    /// As many as there are rows.
    All,
}

/// One softmax to validate, with its gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftmaxCase {
    /// The type of the rows, and of gradients: f16, bf16 or f32.
    pub dtype: DType,
    /// The type of the shares.
    pub output: DType,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub columns: usize,
    /// Numbers are up to so large.
    pub range: f32,
    /// What they are multiplied by.
    pub scale: f32,
    /// What columns are left out by.
    pub mask: MaskRows,
    /// Whether some numbers are −∞.
    pub infinities: bool,
    /// Whether results replace operands, where they have the same type.
    pub in_place: bool,
    /// Where rows are in larger ones: those of operands, of the mask, and of results.
    pub placements: [Placement; 3],
    /// Decides the numbers.
    pub seed: u64,
}

impl SoftmaxCase {
    /// A softmax without options.
    #[must_use]
    pub fn new(dtype: DType, rows: usize, columns: usize) -> Self {
        Self {
            dtype,
            output: dtype,
            rows,
            columns,
            range: 6.0,
            scale: 1.0,
            mask: MaskRows::None,
            infinities: false,
            in_place: false,
            placements: [Placement::default(); 3],
            seed: 0,
        }
    }

    /// The sizes in short.
    #[must_use]
    pub fn shape(&self) -> String {
        format!("{}×{}", self.rows, self.columns)
    }

    /// The options in short.
    #[must_use]
    pub fn options(&self) -> String {
        let mut told = format!("to {}", self.range);
        if self.scale != 1.0 {
            let _ = write!(told, " scale {}", self.scale);
        }
        match self.mask {
            MaskRows::None => {}
            MaskRows::One => told.push_str(" mask of a row"),
            MaskRows::All => told.push_str(" mask"),
        }
        if self.infinities {
            told.push_str(" infinities");
        }
        if self.in_place {
            told.push_str(" in place");
        }
        told + &placed(&self.placements)
    }
}

fn placed(placements: &[Placement]) -> String {
    if placements.iter().all(|placement| *placement == Placement::default()) {
        return String::new();
    }
    let each = placements.iter().map(|Placement { before, after }| format!("{before}+{after}"));
    format!(" {}", each.collect::<Vec<_>>().join(","))
}

/// One loss of rows of logits to validate, with its gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropyCase {
    /// The type of the logits: f16, bf16 or f32.
    pub dtype: DType,
    /// The type of the gradient.
    pub output: DType,
    /// The type of the labels: i64, i32 or u32.
    pub labels: DType,
    /// Rows.
    pub rows: usize,
    /// Logits of a row.
    pub columns: usize,
    /// Logits are up to so large.
    pub range: f32,
    /// What the loss is made of.
    pub options: CrossEntropy,
    /// What becomes of the rows' losses.
    pub reduction: Reduction,
    /// The label of rows that do not count. It may be a column.
    pub ignored: i64,
    /// Whether there are labels that are neither columns nor ignored.
    pub outside: bool,
    /// What the gradient is multiplied by.
    pub gradient_scale: f32,
    /// Whether the gradient replaces the logits, if it has their type.
    pub in_place: bool,
    /// Where rows are in larger ones: those of the logits, and of the gradient.
    pub placements: [Placement; 2],
    /// Decides logits and labels.
    pub seed: u64,
}

impl CrossEntropyCase {
    /// The mean of losses without options.
    #[must_use]
    pub fn new(dtype: DType, rows: usize, columns: usize) -> Self {
        Self {
            dtype,
            output: dtype,
            labels: DType::I64,
            rows,
            columns,
            range: 6.0,
            options: CrossEntropy::default(),
            reduction: Reduction::Mean,
            ignored: warpsmith::ops::cross_entropy::IGNORED,
            outside: false,
            gradient_scale: 1.0,
            in_place: false,
            placements: [Placement::default(); 2],
            seed: 0,
        }
    }

    /// Whether the gradient takes the logits' place, as one of another type cannot.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.in_place && self.dtype == self.output
    }

    /// The sizes in short.
    #[must_use]
    pub fn shape(&self) -> String {
        format!("{}×{}", self.rows, self.columns)
    }

    /// The options in short.
    #[must_use]
    pub fn options(&self) -> String {
        let reduction = match self.reduction {
            Reduction::Mean => "mean",
            Reduction::Sum => "sum",
            Reduction::None => "each",
        };
        let mut told = format!("{reduction} {} to {}", self.labels, self.range);
        for (name, number) in [("smoothing", self.options.smoothing), ("z loss", self.options.z_loss)] {
            if number != 0.0 {
                let _ = write!(told, " {name} {number}");
            }
        }
        if let Some(cap) = self.options.soft_cap {
            let _ = write!(told, " cap {cap}");
        }
        if self.gradient_scale != 1.0 {
            let _ = write!(told, " times {}", self.gradient_scale);
        }
        for (name, is_so) in [("outside", self.outside), ("in place", self.in_place)] {
            if is_so {
                let _ = write!(told, " {name}");
            }
        }
        told + &placed(&self.placements)
    }
}
