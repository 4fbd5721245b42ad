//! What to validate: one evaluation of experts, its sizes, types, routing, and where the rows are.

use warpsmith::DType;
use warpsmith::ops::Activation;
use warpsmith::ops::peer::{ExpertBlocks, ExpertFormat};

use super::data::Data;
use super::linear::Placement;

/// Which experts tokens use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RoutingKind {
    /// Any, all alike.
    #[default]
    Uniform,
    /// Few of them often: half of all uses are of a sixteenth of the experts.
    Skewed,
    /// All heads of all tokens the same one.
    Same,
}

impl RoutingKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Uniform, Self::Skewed, Self::Same];

    const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Skewed => "skewed",
            Self::Same => "same",
        }
    }
}

/// Where the experts' rows are. What is not to be read holds bits that are no numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Residence {
    /// On the device, in their order.
    #[default]
    Resident,
    /// All in slots, in another order, with unused slots between them.
    Slots,
    /// Half of them in slots, the others in host memory only.
    Mixed,
}

impl Residence {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Resident, Self::Slots, Self::Mixed];

    const fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Slots => "slots",
            Self::Mixed => "mixed",
        }
    }
}

/// One evaluation of experts to validate.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertCase {
    /// Tokens.
    pub tokens: usize,
    /// Inputs.
    pub d: usize,
    /// Outputs.
    pub o: usize,
    /// Experts of the table.
    pub experts: usize,
    /// Heads of a token.
    pub heads: usize,
    /// Experts of a head.
    pub k: usize,
    /// Hidden units of an expert.
    pub hidden: usize,
    /// Whether the hidden units are gated.
    pub gated: bool,
    /// Type of x and y: f16, bf16 or f32.
    pub dtype: DType,
    /// How the table holds the experts.
    pub format: ExpertFormat,
    /// What the hidden units do.
    pub activation: Activation,
    /// Which experts the tokens use.
    pub routing: RoutingKind,
    /// Where the rows are.
    pub residence: Residence,
    /// The blocks of a token, instead of those that would be chosen.
    pub blocks: Option<ExpertBlocks>,
    /// The placement of x.
    pub x: Placement,
    /// The placement of y.
    pub y: Placement,
    /// Whether results are compared with those of the experts before they were rounded to the format, with a bound that includes that;
    /// else with those of the experts as the table holds them.
    pub before_rounding: bool,
    /// What the inputs are drawn from.
    pub data: Data,
    /// What they are drawn with.
    pub seed: u64,
}

impl ExpertCase {
    /// Tokens of `dtype` with `d` numbers, of which each uses `k` of `experts` experts for each of `heads` heads.
    #[must_use]
    pub fn new(dtype: DType, format: ExpertFormat, tokens: usize, d: usize, [heads, k]: [usize; 2]) -> Self {
        Self {
            tokens,
            d,
            o: d,
            experts: 61,
            heads,
            k,
            hidden: 1,
            gated: false,
            dtype,
            format,
            activation: Activation::GeluErf,
            routing: RoutingKind::Uniform,
            residence: Residence::Resident,
            blocks: None,
            x: Placement::default(),
            y: Placement::default(),
            before_rounding: false,
            data: Data::Uniform,
            seed: 0,
        }
    }

    /// The sizes, in a line.
    #[must_use]
    pub fn shape(&self) -> String {
        let Self { tokens, d, o, experts, heads, k, hidden, .. } = self;
        format!("T={tokens} D={d} O={o} N={experts} H={heads} k={k} e={hidden}")
    }

    /// The options, in a line.
    #[must_use]
    pub fn options(&self) -> String {
        let mut options = vec![self.activation.to_string(), self.routing.name().into()];
        if self.gated {
            options.push("gated".into());
        }
        options.push(self.residence.name().into());
        if let Some(blocks) = self.blocks {
            options.push(format!("blocks: {blocks}"));
        }
        for (operand, placement) in [("x", self.x), ("y", self.y)] {
            if !placement.is_whole() {
                options.push(format!("{operand} in columns {}+{}", placement.before, placement.after));
            }
        }
        if self.before_rounding {
            options.push("of experts before rounding".into());
        }
        if self.data == Data::Integers {
            options.push("integers".into());
        }
        options.join(", ")
    }
}
