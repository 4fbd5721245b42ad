//! What to validate: one scaled linear operation's sizes, types, scales, options and memory layout.

use warpsmith::DType;
use warpsmith::error::{Error, Result};
use warpsmith::ops::Activation;
use warpsmith::ops::gemm::Tile;

use super::data::Data;
use super::linear::{LinearCase, Placement, Scales, Terms, drawn_and_placed, keeps_integers};

/// Which scale an operand has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScaleKind {
    /// None.
    #[default]
    One,
    /// One number.
    Tensor,
    /// One number in the device's memory.
    Device,
    /// A number for each row.
    Rows,
}

impl ScaleKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::One, Self::Tensor, Self::Device, Self::Rows];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Tensor => "tensor",
            Self::Device => "device",
            Self::Rows => "rows",
        }
    }
}

/// One scaled linear operation to validate.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledCase {
    /// Rows of x.
    pub m: usize,
    /// Columns of x and w.
    pub k: usize,
    /// Rows of w.
    pub n: usize,
    /// Type of x: f8e4m3 or f8e5m2.
    pub x_type: DType,
    /// Type of w: f8e4m3 or f8e5m2.
    pub w_type: DType,
    /// Type of y and of the bias: f16, bf16 or f32.
    pub output: DType,
    /// The scale of x.
    pub x_scale: ScaleKind,
    /// The scale of w.
    pub w_scale: ScaleKind,
    /// What the product is multiplied with beside the scales.
    pub alpha: f32,
    /// Whether there is a bias.
    pub bias: bool,
    /// The function applied last.
    pub activation: Activation,
    /// What is added beside the bias, and what is stored beside y; scales are x's and w's.
    pub terms: Terms,
    /// The placement of x, as it is stored.
    pub x: Placement,
    /// The placement of w, as it is stored.
    pub w: Placement,
    /// The placement of y.
    pub y: Placement,
    /// Whether x is stored as K × M, and w as K × N, of which the operation gets transposed views.
    pub across: [bool; 2],
    /// What the inputs are drawn from.
    pub data: Data,
    /// The tile to take; `None` for the one that would be chosen.
    pub tile: Option<Tile>,
    /// Into how many parts sums are split, of a tile that can; `None` for as many as would be chosen.
    pub parts: Option<u32>,
    /// Decides the inputs.
    pub seed: u64,
}

impl ScaledCase {
    /// `[m, k] × [n, k]ᵀ` of e4m3 in bf16 with a bias, ReLU and a scale for each row of both, on uniform data.
    #[must_use]
    pub fn new(m: usize, k: usize, n: usize) -> Self {
        Self {
            m,
            k,
            n,
            x_type: DType::F8E4M3,
            w_type: DType::F8E4M3,
            output: DType::Bf16,
            x_scale: ScaleKind::Rows,
            w_scale: ScaleKind::Rows,
            alpha: 1.0,
            bias: true,
            activation: Activation::Relu,
            terms: Terms::default(),
            x: Placement::default(),
            w: Placement::default(),
            y: Placement::default(),
            across: [false; 2],
            data: Data::Uniform,
            tile: None,
            parts: None,
            seed: 0,
        }
    }

    /// The error for scales among the terms, and for sizes of which a matrix, with what is beside it, cannot be addressed.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        let Self { m, k, n, x, w, y, terms, .. } = *self;
        if [terms.row_scale, terms.column_scale] != [Scales::None; 2] {
            return Err(Error::Argument {
                operation,
                argument: "terms",
                expected: "none that scale rows or columns, which x_scale and w_scale do".into(),
                actual: format!("{terms:?}"),
            });
        }
        let case = LinearCase { x, w, y, terms, ..LinearCase::new(self.output, m, k, n) };
        case.check_sizes(operation)?;
        // As they are stored across.
        LinearCase { m: k, n: k, k: m.max(n), ..case }.check_sizes(operation)
    }

    /// Whether an exact result can be asked for: integer data, an activation that keeps integers, a factor that is a power
    /// of two (down to a half), a residual that is added once or twice. Scales are powers of two with integer data.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        keeps_integers(self.data, self.activation)
            && matches!(self.alpha, 0.5 | 1.0)
            && matches!(self.terms.beta.abs(), 0.0 | 1.0 | 2.0)
    }

    /// The types, as in `f8e4m3·f8e5m2→bf16`.
    #[must_use]
    pub fn types(&self) -> String {
        format!("{}·{}→{}", self.x_type, self.w_type, self.output)
    }

    /// The sizes, as M×K×N.
    #[must_use]
    pub fn shape(&self) -> String {
        format!("{}×{}×{}", self.m, self.k, self.n)
    }

    /// The options in short, as in `relu bias scales rows·tensor x:1+0 w across`.
    #[must_use]
    pub fn options(&self) -> String {
        let mut options = self.activation.to_string();
        if self.bias {
            options.push_str(" bias");
        }
        options.push_str(&format!(" scales {}·{}", self.x_scale.name(), self.w_scale.name()));
        if self.alpha != 1.0 {
            options.push_str(&format!(" alpha {}", self.alpha));
        }
        options.push_str(&self.terms.note());
        for (across, name) in self.across.into_iter().zip(["x", "w"]) {
            if across {
                options.push_str(&format!(" {name} across"));
            }
        }
        if let Some(parts) = self.parts {
            options.push_str(&format!(" in {parts} parts"));
        }
        options + &drawn_and_placed([(self.x, "x"), (self.w, "w"), (self.y, "y")], self.data, self.tile)
    }
}
