//! What linear layers are to reach beside their baselines: the bench tells at its end what became of it, the book beside its tables.

pub(crate) mod training;

use crate::measurement::Measurement;
use crate::tables::results::chosen;

/// What a goal is a multiple of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Against {
    /// The fastest peer that computes the same.
    Best,
    /// PyTorch's product with a bias, then its ReLU.
    Eager,
}

impl Against {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Best => "best baseline",
            Self::Eager => "torch-eager",
        }
    }
}

/// A peer's time over ours that is to be reached, by the layer with a bias and ReLU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Goal {
    pub(crate) dtype: &'static str,
    /// M x K x N.
    pub(crate) shape: &'static str,
    pub(crate) against: Against,
    pub(crate) ratio: f64,
}

const fn goal(dtype: &'static str, shape: &'static str, against: Against, ratio: f64) -> Goal {
    Goal { dtype, shape, against, ratio }
}

/// The operation that all goals are about.
pub(crate) const OPERATION: &str = "linear bias relu";
const GOALS: [Goal; 13] = [
    goal("bf16", "256x256x512", Against::Best, 1.15),
    goal("bf16", "1024x784x2048", Against::Best, 1.15),
    goal("bf16", "4096x4096x4096", Against::Best, 1.05),
    goal("bf16", "8192x4096x4096", Against::Best, 1.05),
    goal("bf16", "8192x8192x8192", Against::Best, 1.05),
    goal("f16", "1024x784x2048", Against::Best, 1.15),
    goal("tf32", "8192x4096x4096", Against::Best, 1.1),
    goal("f32", "8192x4096x4096", Against::Best, 2.5),
    goal("f8e4m3", "8192x4096x4096", Against::Best, 1.0),
    goal("f8e4m3", "8192x8192x8192", Against::Best, 1.0),
    goal("bf16", "256x256x512", Against::Eager, 1.0),
    goal("bf16", "1024x784x2048", Against::Eager, 1.05),
    goal("bf16", "8192x4096x4096", Against::Eager, 1.18),
];

/// The least that every operation and size is to reach beside its best baseline, in the 16-bit types.
pub(crate) const FLOOR: f64 = 0.95;
const SIXTEEN_BITS: [&str; 2] = ["bf16", "f16"];

/// A goal, and what was measured of it.
pub(crate) struct Judged<'a> {
    pub(crate) goal: &'static Goal,
    /// Ours beside the peer that the goal names; `None` if that was not measured.
    pub(crate) row: Option<&'a Measurement>,
}

impl Judged<'_> {
    /// Whether it is reached; `None` if nothing was measured that could tell.
    pub(crate) fn reached(&self) -> Option<bool> {
        Some(self.row?.ratio? >= self.goal.ratio)
    }
}

/// What became of each goal.
pub(crate) fn judge(rows: &[Measurement]) -> Vec<Judged<'_>> {
    let of = |goal: &Goal| -> Vec<&Measurement> {
        let same = |row: &&Measurement| {
            (row.operation.as_str(), row.variant.as_str()) == (OPERATION, "chosen")
                && (row.dtype.as_str(), row.shape.as_str()) == (goal.dtype, goal.shape)
        };
        rows.iter().filter(same).collect()
    };
    let row = |goal: &Goal| match goal.against {
        Against::Best => chosen(&of(goal)).first()?.best,
        Against::Eager => of(goal).into_iter().find(|row| row.peer == Against::Eager.name()),
    };
    GOALS.iter().map(|goal| Judged { goal, row: row(goal) }).collect()
}

/// What became of the floor.
pub(crate) struct Floor<'a> {
    /// Operations and sizes that have a peer.
    pub(crate) all: usize,
    /// Those below, beside their best baselines.
    pub(crate) below: Vec<&'a Measurement>,
}

pub(crate) fn floor(rows: &[Measurement]) -> Floor<'_> {
    let sixteen = rows.iter().filter(|row| SIXTEEN_BITS.contains(&row.dtype.as_str()));
    let best: Vec<&Measurement> =
        chosen(&sixteen.collect::<Vec<_>>()).iter().filter_map(|entry| entry.best).collect();
    let is_below = |row: &&Measurement| row.ratio.is_some_and(|ratio| ratio < FLOOR);
    Floor { all: best.len(), below: best.into_iter().filter(is_below).collect() }
}

#[cfg(test)]
mod tests {
    use super::{Against, GOALS, OPERATION, floor, judge};
    use crate::measurement::Measurement;

    fn row(dtype: &str, shape: &str, ours: f64, peer: &str, peer_us: f64) -> Measurement {
        Measurement::against(OPERATION, dtype, shape, [ours, peer_us], peer)
    }

    #[test]
    fn a_goal_without_a_measurement_is_neither_reached_nor_missed() {
        assert!(judge(&[]).iter().all(|judged| judged.reached().is_none()));
        assert_eq!(floor(&[]).all, 0);
    }

    #[test]
    fn each_goal_is_judged_by_its_own_peer() {
        let rows = [
            row("bf16", "256x256x512", 10.0, "cublaslt-fused", 11.4),
            row("bf16", "256x256x512", 10.0, "cublaslt-product", 9.0),
            row("bf16", "256x256x512", 10.0, "torch-eager", 12.0),
            row("bf16", "8192x4096x4096", 100.0, "torch-eager", 117.0),
            row("f32", "8192x4096x4096", 100.0, "cublaslt-fused", 250.0),
            row("f32", "1024x784x2048", 100.0, "cublaslt-fused", 50.0),
            row("f16", "1x2x3", 100.0, "cublaslt-fused", 94.0),
        ];
        let judged = judge(&rows);
        let of = |dtype: &str, shape: &str, against| {
            let same =
                |goal: &&super::Goal| (goal.dtype, goal.shape, goal.against) == (dtype, shape, against);
            let index = GOALS.iter().position(|goal| same(&goal)).expect("a goal");
            judged[index].reached()
        };
        // The plain product is less work; the sequence is slower than the best.
        assert_eq!(of("bf16", "256x256x512", Against::Best), Some(false));
        assert_eq!(of("bf16", "256x256x512", Against::Eager), Some(true));
        assert_eq!(of("bf16", "8192x4096x4096", Against::Eager), Some(false));
        assert_eq!(of("f32", "8192x4096x4096", Against::Best), Some(true));
        assert_eq!(of("tf32", "8192x4096x4096", Against::Best), None);
        let floor = floor(&rows);
        let below: Vec<_> = floor.below.iter().map(|row| row.shape.as_str()).collect();
        assert_eq!((floor.all, below), (3, vec!["1x2x3"]));
    }
}
