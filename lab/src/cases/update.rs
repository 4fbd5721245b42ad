//! What to validate: one generated low-rank update, alone or onto a linear operation.

use warpsmith::DType;
use warpsmith::error::{Error, Result};
use warpsmith::ops::update::Way;
use warpsmith::ops::{Activation, Implementation};

use super::data::Data;
use super::linear::{LinearCase, Placement};

/// Which rows of x share a row of codes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CodesPer {
    /// Each row has its own.
    #[default]
    Token,
    /// Those of a sequence.
    Sequence,
    /// All.
    Operation,
    /// Of several updates the first has codes for each token, the next for each sequence, then for the operation, and so on.
    Mixed,
}

/// One generated low-rank update to validate, or several that run together.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateCase {
    /// Rows of x.
    pub m: usize,
    /// Columns of x.
    pub k: usize,
    /// Columns of u and y.
    pub n: usize,
    /// The rank of each update.
    pub ranks: Vec<usize>,
    /// The operands' type: f16, bf16 or f32.
    pub dtype: DType,
    /// Which rows share codes.
    pub codes: CodesPer,
    /// Rows of a sequence; x has an axis for sequences if it divides m and is not 0.
    pub sequence: usize,
    /// What the first update is multiplied with; the second with half of it, and so on in turn.
    pub scaling: f32,
    /// Whether it is together with a linear operation.
    pub linear: bool,
    /// Whether there is a bias. Onto a linear operation only, as the rest of these.
    pub bias: bool,
    /// The function applied last.
    pub activation: Activation,
    /// What a residual is multiplied with; 0 for none. Alone, an update is added to y with 1.
    pub beta: f32,
    /// Whether the residual is what y holds. Alone, it always is.
    pub in_place: bool,
    /// Whether the ReLU mask is asked for.
    pub mask: bool,
    /// Whether the activation's argument is asked for.
    pub preactivation: bool,
    /// Whether V is stored transposed, as R × K, and given as a view.
    pub v_across: bool,
    /// The placement of x.
    pub x: Placement,
    /// The placement of w.
    pub w: Placement,
    /// The placement of V and U.
    pub factors: Placement,
    /// The placement of y.
    pub y: Placement,
    /// How it is computed, where it can be computed so.
    #[doc(hidden)]
    pub way: Option<Way>,
    /// What the inputs are drawn from.
    pub data: Data,
    /// Whether uniform inputs are scaled so that x, codes and what is multiplied with them have elements of variance 1.
    pub unit_scaled: bool,
    /// Decides the inputs.
    pub seed: u64,
}

impl UpdateCase {
    /// An update of rank `rank` onto a linear operation with a bias, on uniform data.
    #[must_use]
    pub fn new(dtype: DType, m: usize, k: usize, n: usize, rank: usize) -> Self {
        Self {
            m,
            k,
            n,
            ranks: vec![rank],
            dtype,
            codes: CodesPer::Token,
            sequence: 0,
            scaling: 1.0,
            linear: true,
            bias: true,
            activation: Activation::None,
            beta: 0.0,
            in_place: false,
            mask: false,
            preactivation: false,
            v_across: false,
            x: Placement::default(),
            w: Placement::default(),
            factors: Placement::default(),
            y: Placement::default(),
            way: None,
            data: Data::Uniform,
            unit_scaled: false,
            seed: 0,
        }
    }

    /// The same update alone, or added to y if `add`.
    #[must_use]
    pub fn alone(self, add: bool) -> Self {
        Self {
            linear: false,
            bias: false,
            activation: Activation::None,
            beta: if add { 1.0 } else { 0.0 },
            in_place: add,
            mask: false,
            preactivation: false,
            ..self
        }
    }

    /// The sum of the ranks.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.ranks.iter().fold(0, |sum, rank| sum.saturating_add(*rank))
    }

    /// Rows of a sequence.
    pub(crate) fn sequence_rows(&self) -> usize {
        if self.has_sequences() { self.sequence } else { self.m.max(1) }
    }

    /// Whether x has an axis for sequences.
    pub(crate) fn has_sequences(&self) -> bool {
        self.sequence > 0 && self.m.is_multiple_of(self.sequence)
    }

    /// Rows of x that share a row of codes, of update `index`.
    pub(crate) fn rows_of_codes(&self, index: usize) -> usize {
        match (self.codes, index % 3) {
            (CodesPer::Token, _) | (CodesPer::Mixed, 0) => 1,
            (CodesPer::Sequence, _) | (CodesPer::Mixed, 1) => self.sequence_rows(),
            _ => self.m.max(1),
        }
    }

    /// What update `index` is multiplied with.
    pub(crate) fn scaling_of(&self, index: usize) -> f32 {
        if index.is_multiple_of(2) { self.scaling } else { 0.5 * self.scaling }
    }

    /// The error for sizes of which a matrix, with what is beside it, cannot be addressed, and for no updates.
    pub(crate) fn check_sizes(&self, operation: &'static str) -> Result<()> {
        if self.ranks.is_empty() {
            return Err(Error::Argument {
                operation,
                argument: "ranks",
                expected: "at least one".into(),
                actual: "none".into(),
            });
        }
        let Self { m, k, n, x, w, y, factors, .. } = *self;
        let (plain, rank) = (LinearCase::new(self.dtype, m, k, n), self.rank());
        [
            LinearCase { x, w, y, ..plain.clone() },
            LinearCase { m: k.max(rank), k: rank.max(k), n: rank.max(n), x: factors, w: factors, ..plain },
        ]
        .iter()
        .try_for_each(|case| case.check_sizes(operation))
    }

    /// Whether the update is rounded to the operands' type before it is added to the linear operation's sums.
    #[must_use]
    pub fn rounds_between(&self, implementation: &Implementation) -> bool {
        let launches = implementation.launches();
        let joins = launches.iter().any(|launch| launch.kernel.starts_with("linear_joined_"));
        self.linear && launches.len() > 1 && !joins
    }

    /// Whether an exact result can be asked for: integer data, an activation that keeps integers, factors that are powers of two.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.data == Data::Integers
            && matches!(self.activation, Activation::None | Activation::Relu)
            && matches!(self.scaling.abs(), 1.0 | 2.0)
            && matches!(self.beta.abs(), 0.0 | 1.0 | 2.0)
    }

    /// The operation's name.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        if self.linear { "linear_with_update" } else { "generated_update" }
    }

    /// The sizes, as M×K×N and the ranks.
    #[must_use]
    pub fn shape(&self) -> String {
        let ranks: Vec<_> = self.ranks.iter().map(ToString::to_string).collect();
        format!("{}×{}×{} R={}", self.m, self.k, self.n, ranks.join("+"))
    }

    /// The options in short, as in `relu bias codes per sequence of 16`.
    #[must_use]
    pub fn options(&self) -> String {
        let mut options = if self.linear { self.activation.to_string() } else { "alone".into() };
        for (is_there, name) in [
            (self.bias, " bias"),
            (self.mask, " mask"),
            (self.preactivation, " preactivation"),
            (self.v_across, " v across"),
            (self.data == Data::Integers, " integers"),
            (self.unit_scaled, " unit-scaled"),
        ] {
            if is_there {
                options.push_str(name);
            }
        }
        options.push_str(&match self.codes {
            CodesPer::Token => String::new(),
            CodesPer::Sequence => format!(" codes per {} rows", self.sequence_rows()),
            CodesPer::Operation => " one row of codes".into(),
            CodesPer::Mixed => format!(" codes per token, per {} rows, one row", self.sequence_rows()),
        });
        if self.scaling != 1.0 {
            options.push_str(&format!(" scaling {}", self.scaling));
        }
        if self.beta != 0.0 {
            options.push_str(&format!(
                " {} {}",
                if self.in_place { "onto y" } else { "residual" },
                self.beta
            ));
        }
        if let Some(way) = self.way {
            options.push_str(&format!(" as {way}"));
        }
        for (placement, name) in [(self.x, "x"), (self.w, "w"), (self.factors, "v,u"), (self.y, "y")] {
            options.push_str(&placement.note(name));
        }
        options
    }
}
