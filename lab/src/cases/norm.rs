//! Norms of rows.

use std::fmt::Write as _;

use warpsmith::DType;

use super::data::Data;
use super::linear::Placement;

/// One norm to validate, with its gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormCase {
    /// The type of the rows that are normed: f16, bf16 or f32.
    pub dtype: DType,
    /// The type of the result, and of x if there is a residual.
    pub output: DType,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub columns: usize,
    /// Whether the mean is taken off: a layer norm, or an RMS norm.
    pub is_centered: bool,
    /// The type of the weight, if there is one.
    pub weight: Option<DType>,
    /// What is added to each weight.
    pub weight_offset: f32,
    /// The type of the bias, if there is one.
    pub bias: Option<DType>,
    /// Whether a residual is added first.
    pub residual: bool,
    /// The mean of the elements, about which they are spread by 1.
    pub mean: f32,
    /// Where rows are in larger ones.
    pub placement: Placement,
    /// What the elements are drawn from. Integers are as many 2ᵏ as −2ᵏ in each row, so that normed elements are exactly 1 and −1.
    pub data: Data,
    /// Decides the elements.
    pub seed: u64,
}

impl NormCase {
    /// A layer norm without options.
    #[must_use]
    pub fn new(dtype: DType, rows: usize, columns: usize) -> Self {
        Self {
            dtype,
            output: dtype,
            rows,
            columns,
            is_centered: true,
            weight: None,
            weight_offset: 0.0,
            bias: None,
            residual: false,
            mean: 0.0,
            placement: Placement { before: 0, after: 0 },
            data: Data::Uniform,
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
        let mut told = String::from(if self.is_centered { "layer" } else { "rms" });
        for (name, dtype) in [("weight", self.weight), ("bias", self.bias)] {
            if let Some(dtype) = dtype {
                let _ = write!(told, " {name} {dtype}");
            }
        }
        if self.weight_offset != 0.0 {
            let _ = write!(told, " offset {}", self.weight_offset);
        }
        if self.residual {
            told.push_str(" residual");
        }
        if self.mean != 0.0 {
            let _ = write!(told, " mean {}", self.mean);
        }
        if self.placement != (Placement { before: 0, after: 0 }) {
            let _ = write!(told, " {}+{}", self.placement.before, self.placement.after);
        }
        if self.data == Data::Integers {
            told.push_str(" exact");
        }
        told
    }
}
