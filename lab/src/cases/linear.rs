//! What to validate: one linear operation's sizes, types, options and memory layout.

use std::fmt::Display;

use warpsmith::DType;
use warpsmith::error::{Error, Result};
use warpsmith::ops::gemm::{Fused, Tile};
use warpsmith::ops::{Activation, Precision};

use super::data::Data;

/// The placement of an operand: a matrix of its own, or columns of a larger one.
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

    /// The largest power of two, up to 8, of which the begin of each row of such a matrix is a multiple, in elements.
    pub(crate) fn alignment(self, [rows, columns]: [usize; 2]) -> usize {
        let stride = if rows > 1 { self.before + columns + self.after } else { 0 };
        1 << (self.before | stride).trailing_zeros().min(3)
    }

    pub(crate) fn note(self, name: &str) -> String {
        if self.is_whole() { String::new() } else { format!(" {name}:{}+{}", self.before, self.after) }
    }
}

/// What the options of every kind of case end with: where its operands are, what they are drawn from, the tile that it asks for.
pub(crate) fn drawn_and_placed(
    placements: [(Placement, &str); 3],
    data: Data,
    tile: Option<impl Display>,
) -> String {
    let mut options: String = placements.iter().map(|(placement, name)| placement.note(name)).collect();
    options.push_str(match data {
        Data::Uniform => "",
        Data::Integers => " integers",
        Data::Infinities => " infinities",
        Data::Exponents => " exponents",
    });
    if let Some(tile) = tile {
        options.push_str(&format!(" tile {tile}"));
    }
    options
}

/// Whether sums of these data are integers, and stay such under the activation.
pub(crate) fn keeps_integers(data: Data, activation: Activation) -> bool {
    data == Data::Integers && matches!(activation, Activation::None | Activation::Relu)
}

/// Numbers that rows or columns are multiplied with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scales {
    /// None.
    #[default]
    None,
    /// One for all.
    One,
    /// One for each.
    Each,
}

/// What an operation does beside scale, bias and activation, and what it gives beside its result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    /// What the rows are multiplied with.
    pub row_scale: Scales,
    /// What the columns are multiplied with.
    pub column_scale: Scales,
    /// What a residual is multiplied with; 0 for none.
    pub beta: f32,
    /// Whether the residual is what the output holds.
    pub in_place: bool,
    /// Whether the ReLU mask is asked for.
    pub mask: bool,
    /// Whether the activation's argument is asked for.
    pub preactivation: bool,
    /// The placement of each of these three: the residual, unless it is what the output holds, the mask, in words, and the argument.
    pub beside: Placement,
}

impl Terms {
    pub(crate) fn note(self) -> String {
        let mut note = String::new();
        for (scales, name) in [(self.row_scale, "row"), (self.column_scale, "column")] {
            match scales {
                Scales::None => {}
                Scales::One => note.push_str(&format!(" {name} scale 1")),
                Scales::Each => note.push_str(&format!(" {name} scales")),
            }
        }
        if self.beta != 0.0 {
            note.push_str(&format!(" {} {}", if self.in_place { "onto y" } else { "residual" }, self.beta));
        }
        if self.mask {
            note.push_str(" mask");
        }
        if self.preactivation {
            note.push_str(" preactivation");
        }
        note + &self.beside.note("terms")
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
    /// What else there is.
    pub terms: Terms,
    /// How exact the product has to be.
    pub precision: Precision,
    /// The placement of x.
    pub x: Placement,
    /// The placement of w.
    pub w: Placement,
    /// The placement of y.
    pub y: Placement,
    /// What the inputs are drawn from.
    pub data: Data,
    /// The tile to take; `None` for the one that would be chosen.
    pub tile: Option<Tile>,
    /// How many blocks share the sums of a tile whose kernels can do that; `None` for as many as would be chosen.
    pub parts: Option<u32>,
    /// Decides the inputs.
    pub seed: u64,
}

impl LinearCase {
    /// What is done to the products.
    #[must_use]
    pub fn fused(&self) -> Fused {
        let Terms { row_scale, column_scale, beta, mask, preactivation, .. } = self.terms;
        let has_scales = row_scale != Scales::None || column_scale != Scales::None;
        match self.activation {
            _ if has_scales || beta != 0.0 || preactivation => Fused::Terms,
            _ if mask => Fused::Mask,
            Activation::None | Activation::Relu => Fused::Floor,
            _ => Fused::Activation,
        }
    }

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
            terms: Terms::default(),
            precision: Precision::Full,
            x: Placement::default(),
            w: Placement::default(),
            y: Placement::default(),
            data: Data::Uniform,
            tile: None,
            parts: None,
            seed: 0,
        }
    }

    /// The error for sizes of which a matrix, with what is beside it, cannot be addressed.
    pub(crate) fn check_sizes(&self, operation: &'static str) -> Result<()> {
        // In f64, as the reference has them. A quarter of the address space for each leaves their sum addressable.
        const ELEMENT_BYTES: usize = 4 * size_of::<f64>();
        let matrices = [
            ("x", self.m, self.k, self.x),
            ("w", self.n, self.k, self.w),
            ("y", self.m, self.n, self.y),
            ("residual", self.m, self.n, self.terms.beside),
        ];
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
    /// of two (down to a half), a residual that is added once or twice. (Scales of integer data are 1 and −1.)
    #[must_use]
    pub fn is_exact(&self) -> bool {
        keeps_integers(self.data, self.activation)
            && matches!(self.scale, 0.5 | 1.0 | 2.0)
            && matches!(self.terms.beta.abs(), 0.0 | 1.0 | 2.0)
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
        options.push_str(&self.terms.note());
        match self.precision {
            Precision::Full => {}
            Precision::Tf32 => options.push_str(" tf32"),
            Precision::Within(allowed) => options.push_str(&format!(" within {allowed:e}")),
            other => options.push_str(&format!(" {other:?}")),
        }
        options += &drawn_and_placed([(self.x, "x"), (self.w, "w"), (self.y, "y")], self.data, self.tile);
        if let Some(parts) = self.parts {
            options.push_str(&format!(" in {parts} parts"));
        }
        options
    }
}

/// One matrix product to validate: a batch of products of the sizes and options of a linear operation.
#[derive(Clone, Debug, PartialEq)]
pub struct MatmulCase {
    /// Sizes, types and options; x stands for a, w for b. The placement of an operand is that of its stored form.
    pub product: LinearCase,
    /// Matrices of a and of b: as many of each, or one of one of them.
    pub batch: [usize; 2],
    /// Whether a is stored as K × M, and b as K × N: contiguous along M, along N.
    pub across: [bool; 2],
}

impl MatmulCase {
    /// Single products of `product`'s sizes and options, both operands contiguous along K.
    #[must_use]
    pub fn new(product: LinearCase) -> Self {
        Self { product, batch: [1; 2], across: [false; 2] }
    }

    /// Matrices of the output.
    #[must_use]
    pub fn matrices(&self) -> usize {
        // A batch of none and one for all is one of none.
        if self.batch.contains(&0) { 0 } else { self.batch[0].max(self.batch[1]) }
    }

    /// The error for batches that do not fit together, and for sizes that cannot be addressed.
    pub(crate) fn check_sizes(&self, operation: &'static str) -> Result<()> {
        let [a, b] = self.batch;
        if a != b && a != 1 && b != 1 {
            return Err(Error::Argument {
                operation,
                argument: "batch",
                expected: "as many matrices of each operand, or one of one of them".into(),
                actual: format!("{a} and {b}"),
            });
        }
        let LinearCase { m, k, n, .. } = self.product;
        let rows = |count: usize, rows: usize| count.max(1).saturating_mul(rows);
        // Each as rows of one matrix, as it is stored, and as the reference reads it.
        let stored = [
            LinearCase { m: rows(a, m), n: rows(b, n), ..self.product.clone() },
            LinearCase { m: rows(a, k), n: rows(b, k), k: m.max(n), ..self.product.clone() },
            LinearCase { m: rows(a.max(b), m), ..self.product.clone() },
        ];
        stored.iter().try_for_each(|case| case.check_sizes(operation))
    }

    /// The sizes, as M×K×N, with the matrices before them if there are several.
    #[must_use]
    pub fn shape(&self) -> String {
        match self.batch {
            [1, 1] => self.product.shape(),
            [a, b] if a == b => format!("{a}×{}", self.product.shape()),
            [a, b] => format!("{a}|{b}×{}", self.product.shape()),
        }
    }

    /// The options in short: the layouts as in `NT`, where N is for M × K and for K × N, then those of the product.
    #[must_use]
    pub fn options(&self) -> String {
        let letter = |transposed: bool| if transposed { 'T' } else { 'N' };
        let [a, b] = self.across;
        format!("{}{} {}", letter(a), letter(!b), self.product.options())
    }
}
