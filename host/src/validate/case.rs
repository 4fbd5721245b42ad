//! What to validate: one linear operation's sizes, types, options and memory layout.

use super::data::Data;
use crate::DType;
use crate::error::{Error, Result};
use crate::ops::Activation;
use crate::ops::linear::Tile;

/// Where an operand lies: a matrix of its own, or columns of a larger one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Columns of the larger matrix before the operand's.
    pub before: usize,
    /// Columns of the larger matrix after the operand's.
    pub after: usize,
}

impl Placement {
    /// Whether the operand is a matrix of its own.
    #[must_use]
    pub fn is_whole(self) -> bool {
        self == Self::default()
    }

    pub(super) fn note(self, name: &str) -> String {
        if self.is_whole() { String::new() } else { format!(" {name}:{}+{}", self.before, self.after) }
    }
}

/// One linear operation to validate.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearCase {
    /// Rows of x.
    pub m: usize,
    /// Columns of x and w.
    pub k: usize,
    /// Rows of w.
    pub n: usize,
    /// Type of x, w and the bias: f16, bf16 or f32.
    pub input: DType,
    /// Type of y: the input's, or f32.
    pub output: DType,
    /// The function applied last.
    pub activation: Activation,
    /// Whether there is a bias.
    pub bias: bool,
    /// What the product is multiplied with.
    pub scale: f32,
    /// Where x lies.
    pub x: Placement,
    /// Where w lies.
    pub w: Placement,
    /// Where y lies.
    pub y: Placement,
    /// What the inputs are drawn from.
    pub data: Data,
    /// The tile to take; `None` for the one that would be chosen.
    pub tile: Option<Tile>,
    /// Decides the inputs.
    pub seed: u64,
}

impl LinearCase {
    /// `[m, k] × [n, k]ᵀ` of type `dtype` with a bias and ReLU, on uniform data.
    #[must_use]
    pub fn new(dtype: DType, m: usize, k: usize, n: usize) -> Self {
        Self {
            m,
            k,
            n,
            input: dtype,
            output: dtype,
            activation: Activation::Relu,
            bias: true,
            scale: 1.0,
            x: Placement::default(),
            w: Placement::default(),
            y: Placement::default(),
            data: Data::Uniform,
            tile: None,
            seed: 0,
        }
    }

    /// The error for sizes of which a matrix, with what lies beside it, cannot be addressed.
    pub(crate) fn check_sizes(&self, operation: &'static str) -> Result<()> {
        // In f64, as the reference has them. A quarter of the address space for each leaves their sum addressable.
        const ELEMENT_BYTES: usize = 4 * size_of::<f64>();
        let matrices =
            [("x", self.m, self.k, self.x), ("w", self.n, self.k, self.w), ("y", self.m, self.n, self.y)];
        for (operand, rows, columns, placement) in matrices {
            let limit = isize::MAX as usize / ELEMENT_BYTES;
            // A matrix of no elements has strides, too, so no side of it counts as zero.
            let elements = placement
                .before
                .checked_add(columns)
                .and_then(|columns| columns.checked_add(placement.after))
                .and_then(|columns| columns.max(1).checked_mul(rows.max(1)));
            if elements.is_none_or(|elements| elements > limit) {
                return Err(Error::SizeLimit {
                    operation,
                    operand,
                    quantity: "shape",
                    limit: format!("at most {limit} elements, with the columns beside it"),
                    actual: format!(
                        "{rows} × {columns}, {}+{} columns beside it",
                        placement.before, placement.after
                    ),
                });
            }
        }
        Ok(())
    }

    /// Whether an exact result can be asked for: integer data, an activation that keeps integers, a scale that is a power
    /// of two (down to a half).
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.data == Data::Integers
            && matches!(self.activation, Activation::None | Activation::Relu)
            && matches!(self.scale, 0.5 | 1.0 | 2.0)
    }

    /// The types, as in `bf16` or `bf16→f32`.
    #[must_use]
    pub fn types(&self) -> String {
        if self.input == self.output {
            self.input.to_string()
        } else {
            format!("{}→{}", self.input, self.output)
        }
    }

    /// The sizes, as M×K×N.
    #[must_use]
    pub fn shape(&self) -> String {
        format!("{}×{}×{}", self.m, self.k, self.n)
    }

    /// The options in short, as in `relu bias x:1+0`.
    #[must_use]
    pub fn options(&self) -> String {
        let mut options = self.activation.to_string();
        if self.bias {
            options.push_str(" bias");
        }
        if self.scale != 1.0 {
            options.push_str(&format!(" scale {}", self.scale));
        }
        for (placement, name) in [(self.x, "x"), (self.w, "w"), (self.y, "y")] {
            options.push_str(&placement.note(name));
        }
        if self.data == Data::Integers {
            options.push_str(" integers");
        }
        if let Some(tile) = self.tile {
            options.push_str(&format!(" tile {tile}"));
        }
        options
    }
}
