//! Gradients of linear layers and of matrix products.

use std::fmt::Write as _;

use warpsmith::DType;
use warpsmith::ops::{Activation, Precision};

use super::elementwise::beside;
use super::linear::{Placement, Scales, keeps_integers};
use super::{Data, MatmulCase, ScaleKind, ScaledCase, UpdateCase};

/// What the slopes of an activation are known from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlopesFrom {
    /// The activation's argument.
    #[default]
    Preactivation,
    /// Of ReLU, the bits that say where it was above 0.
    Mask,
    /// Of ReLU, its value.
    Output,
}

/// The gradients of one linear layer to validate: all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearBackwardCase {
    /// Rows of x.
    pub m: usize,
    /// Columns of x and w.
    pub k: usize,
    /// Rows of w.
    pub n: usize,
    /// Type of x, w and dx: f16, bf16 or f32.
    pub input: DType,
    /// Type of the layer's output: the input's, or f32.
    pub output: DType,
    /// Type of the gradients of w and the bias: the input's, or f32.
    pub gradient: DType,
    /// The layer's activation.
    pub activation: Activation,
    /// Where its slopes are known from; of others than ReLU only the argument tells them.
    pub slopes: SlopesFrom,
    /// What rows and columns of the product were multiplied with.
    pub scales: [Scales; 2],
    /// What the product was multiplied with.
    pub alpha: f32,
    /// What a residual was multiplied with.
    pub beta: f32,
    /// Whether gradients are added to what is there.
    pub adds: bool,
    /// Whether dZ is asked for, too.
    pub dz: bool,
    /// How exact the products have to be.
    pub precision: Precision,
    /// Where rows of dy, of the argument or the output, and of the residual's gradient are in larger ones.
    pub placement: Placement,
    /// What operands are drawn from.
    pub data: Data,
    /// Decides them.
    pub seed: u64,
}

impl LinearBackwardCase {
    /// The gradients of a layer of one type with an activation and nothing else.
    #[must_use]
    pub fn new(dtype: DType, activation: Activation, [m, k, n]: [usize; 3]) -> Self {
        Self {
            m,
            k,
            n,
            input: dtype,
            output: dtype,
            gradient: DType::F32,
            activation,
            slopes: SlopesFrom::Preactivation,
            scales: [Scales::None; 2],
            alpha: 1.0,
            beta: 1.0,
            adds: false,
            dz: false,
            precision: Precision::Full,
            placement: Placement::default(),
            data: Data::Uniform,
            seed: 0,
        }
    }

    /// Whether every result has to be exact: integers, of which every sum is one that f32 has.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        let is_power = |factor: f32| matches!(factor.abs(), 0.5 | 1.0 | 2.0);
        keeps_integers(self.data, self.activation) && is_power(self.alpha) && is_power(self.beta)
    }

    /// The types, as in `bf16→f32→f32`: of x, of y, of the gradients of w and the bias.
    #[must_use]
    pub fn types(&self) -> String {
        format!("{}→{}→{}", self.input, self.output, self.gradient)
    }

    /// The sizes, as M×K×N.
    #[must_use]
    pub fn shape(&self) -> String {
        format!("{}×{}×{}", self.m, self.k, self.n)
    }

    /// The options in short.
    #[must_use]
    pub fn options(&self) -> String {
        let mut told = self.activation.to_string();
        match self.slopes {
            SlopesFrom::Preactivation => {}
            SlopesFrom::Mask => told.push_str(" mask"),
            SlopesFrom::Output => told.push_str(" output"),
        }
        for (scales, name) in self.scales.into_iter().zip(["row", "column"]) {
            match scales {
                Scales::None => {}
                Scales::One => {
                    let _ = write!(told, " {name} scale 1");
                }
                Scales::Each => {
                    let _ = write!(told, " {name} scales");
                }
            }
        }
        for (factor, name) in [(self.alpha, "scale"), (self.beta, "residual")] {
            if factor != 1.0 {
                let _ = write!(told, " {name} {factor}");
            }
        }
        for (is_so, name) in [(self.adds, "added"), (self.dz, "dz")] {
            if is_so {
                let _ = write!(told, " {name}");
            }
        }
        if self.data == Data::Integers {
            told.push_str(" integers");
        }
        if self.precision == Precision::Tf32 {
            told.push_str(" tf32");
        }
        told + &beside(self.placement)
    }
}

/// The gradients of one matrix product to validate.
#[derive(Clone, Debug, PartialEq)]
pub struct MatmulBackwardCase {
    /// The product: its sizes, types, scale, precision, data and seed, its batches, and how its operands are stored. It has no other options.
    pub product: MatmulCase,
    /// Whether gradients are added to what is there.
    pub adds: bool,
}

impl MatmulBackwardCase {
    /// The options in short.
    #[must_use]
    pub fn options(&self) -> String {
        self.product.options() + if self.adds { " added" } else { "" }
    }
}

/// The gradients of generated low-rank updates to validate: all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateBackwardCase {
    /// The updates: their sizes, type, codes, scaling, data and seed, whether they are onto a linear operation, its activation
    /// and the factor of its residual, and where x, w and the factors are in larger ones. Where dy is, for y. It has no other
    /// options.
    pub update: UpdateCase,
    /// Type of the gradients of v, u and the bias: the operands', or f32.
    pub gradient: DType,
    /// Type of the gradients of codes: the operands', or f32.
    pub of_codes: DType,
    /// Where the activation's slopes are known from; of others than ReLU only the argument tells them.
    pub slopes: SlopesFrom,
    /// Whether gradients are added to what is there.
    pub adds: bool,
}

impl UpdateBackwardCase {
    /// The gradients of updates, those of weights in f32, those of codes in the operands' type.
    #[must_use]
    pub fn new(update: UpdateCase) -> Self {
        let of_codes = update.dtype;
        Self { update, gradient: DType::F32, of_codes, slopes: SlopesFrom::Preactivation, adds: false }
    }

    /// Whether every result has to be exact: integers, of which every number in between is one that its type has. That of x is rounded before the linear operation's is added.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        let UpdateCase { linear, dtype, .. } = self.update;
        self.update.is_exact() && (!linear || dtype == DType::F32)
    }

    /// The operation's name.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        if self.update.linear { "linear_with_update_backward" } else { "generated_update_backward" }
    }

    /// The types, as in `bf16→f32→bf16`: of x, of the gradients of weights, of those of codes.
    #[must_use]
    pub fn types(&self) -> String {
        format!("{}→{}→{}", self.update.dtype, self.gradient, self.of_codes)
    }

    /// The options in short.
    #[must_use]
    pub fn options(&self) -> String {
        let mut told = self.update.options();
        match self.slopes {
            SlopesFrom::Preactivation => {}
            SlopesFrom::Mask => told.push_str(" from the mask"),
            SlopesFrom::Output => told.push_str(" from the output"),
        }
        if self.adds {
            told.push_str(" added");
        }
        told
    }
}

/// The gradients of one scaled linear layer to validate: all that there are for its types.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledBackwardCase {
    /// The layer: its sizes, types, scales, alpha, data and seed, where x and w are, and dy, for y; the type of dx, for that of y. It has no other options.
    pub product: ScaledCase,
    /// Type of dy: f8e4m3, f8e5m2, f16, bf16 or f32.
    pub dy_type: DType,
    /// The scale of an 8-bit dy.
    pub dy_scale: ScaleKind,
    /// Whether gradients are added to what is there.
    pub adds: bool,
}

impl ScaledBackwardCase {
    /// Gradients of a layer of e4m3 for a dy of e5m2, with one number for each operand's scale.
    #[must_use]
    pub fn new(m: usize, k: usize, n: usize) -> Self {
        let product = ScaledCase {
            bias: false,
            activation: Activation::None,
            x_scale: ScaleKind::Tensor,
            w_scale: ScaleKind::Tensor,
            ..ScaledCase::new(m, k, n)
        };
        Self { product, dy_type: DType::F8E5M2, dy_scale: ScaleKind::Tensor, adds: false }
    }

    /// The type of the gradients of w and the bias: f32 if that of x is bf16, else bf16.
    #[must_use]
    pub fn gradient(&self) -> DType {
        if self.product.output == DType::Bf16 { DType::F32 } else { DType::Bf16 }
    }

    /// Whether dy has 8 bits.
    #[must_use]
    pub fn has_8_bits(&self) -> bool {
        matches!(self.dy_type, DType::F8E4M3 | DType::F8E5M2)
    }

    /// The types, as in `f8e4m3·f8e4m3·f8e5m2→bf16·f32`: of x, w and dy, of dx and dw.
    #[must_use]
    pub fn types(&self) -> String {
        let ScaledCase { x_type, w_type, output, .. } = self.product;
        format!("{x_type}·{w_type}·{}→{output}·{}", self.dy_type, self.gradient())
    }

    /// The options in short.
    #[must_use]
    pub fn options(&self) -> String {
        let of_dy =
            if self.has_8_bits() { format!(" dy scale {}", self.dy_scale.name()) } else { String::new() };
        self.product.options() + &of_dy + if self.adds { " added" } else { "" }
    }
}
