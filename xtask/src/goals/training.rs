//! What parts of training are to reach.

use std::fmt;

/// The operation that is a step of an optimiser.
pub(crate) const OPTIMIZER: &str = "adamw";
/// The operation that is a step of a network.
pub(crate) const NETWORK: &str = "mlp";

/// The operation that is a layer with an activation, and its gradients.
#[cfg_attr(not(feature = "host"), allow(dead_code, reason = "benchmarks alone name it"))]
pub(crate) fn layer(activation: &str) -> String {
    format!("linear-{activation}-training")
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// The best baseline's time over ours.
    Ratio(f64),
    /// The share of a copy's bandwidth.
    OfCopy(f64),
}

impl Goal {
    /// What it is about, of what was measured.
    pub(crate) fn measured(self, ratio: Option<f64>, share: Option<f64>) -> Option<f64> {
        match self {
            Self::Ratio(_) => ratio,
            Self::OfCopy(_) => share,
        }
    }

    /// Whether it is reached; `None` if nothing was measured that could tell.
    pub(crate) fn reached(self, ratio: Option<f64>, share: Option<f64>) -> Option<bool> {
        let (Self::Ratio(least) | Self::OfCopy(least)) = self;
        self.measured(ratio, share).map(|measured| measured >= least)
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ratio(least) => write!(formatter, "{least}"),
            Self::OfCopy(least) => write!(formatter, "{:.0} %", least * 100.0),
        }
    }
}

const RELU: &str = "linear-relu-training";
const GELU: &str = "linear-gelu-tanh-training";
const LAYERS: [(&str, &str, &str, f64); 4] = [
    (RELU, "bf16", "1024x784x2048", 1.5),
    (RELU, "bf16", "8192x4096x4096", 1.08),
    (RELU, "f32", "8192x4096x4096", 2.3),
    (GELU, "bf16", "8192x4096x16384", 1.08),
];
/// The widest of narrow networks, and what is asked of such and of wider ones.
const NARROW: (usize, f64, f64) = (2048, 1.5, 1.1);
/// The parameters of which a step is to reach the share of a copy's bandwidth.
const STEP: (&str, f64) = ("134217728", 0.92);

/// What is asked of an operation of a type and size.
pub(crate) fn goal(operation: &str, dtype: &str, shape: &str) -> Option<Goal> {
    match operation {
        NETWORK if dtype == "bf16" => {
            let (narrow, of_narrow, of_wide) = NARROW;
            // The first is the number of rows.
            let widest = shape.split('x').skip(1).filter_map(|width| width.parse::<usize>().ok()).max()?;
            Some(Goal::Ratio(if widest <= narrow { of_narrow } else { of_wide }))
        }
        OPTIMIZER => (shape == STEP.0).then_some(Goal::OfCopy(STEP.1)),
        _ => {
            let same =
                |goal: &&(&str, &str, &str, f64)| (goal.0, goal.1, goal.2) == (operation, dtype, shape);
            LAYERS.iter().find(same).map(|goal| Goal::Ratio(goal.3))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{GELU, Goal, NETWORK, OPTIMIZER, RELU, goal, layer};

    #[test]
    fn goals_are_of_sizes_and_types() {
        assert_eq!(goal(RELU, "bf16", "1024x784x2048"), Some(Goal::Ratio(1.5)));
        assert_eq!(goal(RELU, "f16", "1024x784x2048"), None);
        assert_eq!(goal(RELU, "f32", "8192x4096x4096"), Some(Goal::Ratio(2.3)));
        assert_eq!(goal(NETWORK, "bf16", "8192x784x2048x10"), Some(Goal::Ratio(1.5)));
        assert_eq!(goal(NETWORK, "bf16", "1024x784x4096x10"), Some(Goal::Ratio(1.1)));
        assert_eq!(goal(OPTIMIZER, "f32", "134217728"), Some(Goal::OfCopy(0.92)));
        assert_eq!(goal(OPTIMIZER, "f32", "1048576 in 200"), None);
        assert_eq!(goal(NETWORK, "f32", "1024x784x4096x10"), None);
        assert_eq!((layer("relu"), layer("gelu-tanh")), (RELU.into(), GELU.into()));
    }

    #[test]
    fn a_goal_is_judged_by_what_it_is_about() {
        let reached = |goal: Goal| goal.reached(Some(1.2), Some(0.9));
        assert_eq!(
            [Goal::Ratio(1.2), Goal::Ratio(1.3), Goal::OfCopy(0.92)].map(reached),
            [Some(true), Some(false), Some(false)]
        );
        assert_eq!(Goal::Ratio(1.0).reached(None, Some(2.0)), None);
    }
}
