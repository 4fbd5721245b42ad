//! Who does what in which order.

use crate::error::{Result, argument};

const OPERATION: &str = "Schedule";
/// Layers, and microbatches times stages, at most: products of them are numbers.
const MOST: usize = 1 << 24;

/// A part of a batch in a chunk of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The part of the batch.
    pub microbatch: usize,
    /// The chunk of the stage's layers; 0 unless the schedule is interleaved.
    pub chunk: usize,
}

/// What a stage does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// The forward pass.
    Forward(Place),
    /// Both backward passes. The gradient of the input is sent before those of the weights are computed.
    Backward(Place),
    /// The gradient of the input, which the stage before waits for.
    BackwardInput(Place),
    /// The gradients of the weights, which nobody waits for.
    BackwardWeight(Place),
}

/// An order of the stages' work. With p stages, m microbatches, and passes that take as long on all stages:
///
/// | schedule | bubble, of the time of the work | microbatches kept by stage s, at most |
/// |---|---|---|
/// | `OneForwardOneBackward` | (p − 1) / m | min(m, p − s) |
/// | `Interleaved` with v chunks | (p − 1) / (v m) | min(v m, 2 (p − s − 1) + (v − 1) p + 1) chunks |
/// | `ZeroBubble` | (p − 1) / (3 m) from m = p on | min(m, p) |
/// | `EagerOneForwardOneBackward` | (p − 1) / m | min(m, 2 (p − s − 1) + 1) |
/// | `EagerZeroBubble` | (p − 1) / (3 m) from m = 2 p − 1 on | min(m, 2 p − 1) |
///
/// Rows of whole backward passes are for results that are sent when all of the pass is done, so that they are upper limits.
/// Those of gradients apart are for gradients of inputs and of weights that take as long as a forward pass each.
///
/// All of that is for transfers that take no time. Where a transfer takes t, a microbatch goes from a stage to the next one and
/// comes back in both passes and 2 t. The eager schedules have enough microbatches under way to fill that time: up to a t of half
/// the passes in 1F1B, and of one pass in `EagerZeroBubble`. They wait for transfers only while the pipeline fills and drains,
/// which adds 2 (p − 1) t and (p − 1) t to the duration. `OneForwardOneBackward` waits 2 (p − 1) / p · t in each microbatch, and
/// `ZeroBubble` what passes of weights do not fill of that.
///
/// Sources: PipeDream-Flush (Narayanan et al., 2021, arXiv:2006.09503), interleaved stages (Narayanan et al., 2021,
/// arXiv:2104.04473), ZB-H1 (Qi et al., 2023, arXiv:2401.10241), eager 1F1B (Zhuang et al., 2022, arXiv:2211.05322).
///
/// ```
/// use warpsmith_parallel::pipeline::{Action, Place, Schedule};
///
/// let last = Schedule::OneForwardOneBackward.actions([1, 2], 2)?;
/// let place = |microbatch| Place { microbatch, chunk: 0 };
/// assert_eq!(last[..2], [Action::Forward(place(0)), Action::Backward(place(0))]);
/// # Ok::<(), warpsmith_parallel::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Schedule {
    /// A stage starts as many forward passes as there are stages after it, then does one backward pass for each forward pass
    /// (1F1B).
    OneForwardOneBackward,
    /// Each stage has several chunks of layers: chunk c of stage s of p comes as number c · p + s. Microbatches are a multiple
    /// of the stages.
    Interleaved {
        /// How many chunks, at least 1.
        chunks: usize,
    },
    /// Gradients of weights wait until a stage would have nothing to do (ZB-H1). No stage keeps more than the first one does in
    /// 1F1B.
    ZeroBubble,
    /// 1F1B with one more microbatch under way for each later stage, which hides transfers.
    EagerOneForwardOneBackward,
    /// As `ZeroBubble`, on the order of eager 1F1B. No stage keeps more than the first one does there.
    EagerZeroBubble,
}

impl Schedule {
    /// How many chunks of layers a stage has.
    #[must_use]
    pub fn chunks(self) -> usize {
        match self {
            Self::Interleaved { chunks } => chunks,
            _ => 1,
        }
    }

    /// What stage `stage` of `stages` does with so many microbatches.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if there is no such stage, there are no chunks, or interleaved microbatches
    /// are no multiple of the stages.
    pub fn actions(self, [stage, stages]: [usize; 2], microbatches: usize) -> Result<Vec<Action>> {
        if stage >= stages {
            return Err(argument(OPERATION, "stage", format!("below {stages}"), stage));
        }
        let turns = |each| one_forward_one_backward((stages - 1 - stage).saturating_mul(each), microbatches);
        match self {
            Self::OneForwardOneBackward => Ok(turns(1)),
            Self::ZeroBubble => Ok(zero_bubble(&turns(1), stage)),
            Self::EagerOneForwardOneBackward => Ok(turns(2)),
            Self::EagerZeroBubble => Ok(zero_bubble(&turns(2), stage.saturating_mul(2))),
            Self::Interleaved { chunks: 0 } => Err(argument(OPERATION, "chunks", "at least 1", 0)),
            Self::Interleaved { chunks } if chunks.max(microbatches) > MOST / stages => {
                let (expected, actual) = (format!("at most {}", MOST / stages), chunks.max(microbatches));
                Err(argument(OPERATION, "chunks or microbatches", expected, actual))
            }
            Self::Interleaved { .. } if !microbatches.is_multiple_of(stages) => {
                Err(argument(OPERATION, "microbatches", format!("a multiple of {stages}"), microbatches))
            }
            Self::Interleaved { chunks } => Ok(interleaved([stage, stages], microbatches, chunks)),
        }
    }

    /// What each stage does.
    ///
    /// # Errors
    ///
    /// As [`actions`](Self::actions).
    pub fn all(self, stages: usize, microbatches: usize) -> Result<Vec<Vec<Action>>> {
        (0..stages).map(|stage| self.actions([stage, stages], microbatches)).collect()
    }
}

fn whole(microbatch: usize) -> Place {
    Place { microbatch, chunk: 0 }
}

/// Some forward passes, then a forward and a backward pass in turn, then the backward passes that are left.
fn in_turns(
    count: usize,
    ahead: usize,
    forward: impl Fn(usize) -> Place,
    backward_of: impl Fn(usize) -> Place,
) -> Vec<Action> {
    let ahead = ahead.min(count);
    let mut actions: Vec<_> = (0..ahead).map(|at| Action::Forward(forward(at))).collect();
    for at in 0..count {
        if ahead + at < count {
            actions.push(Action::Forward(forward(ahead + at)));
        }
        actions.push(Action::Backward(backward_of(at)));
    }
    actions
}

fn one_forward_one_backward(ahead: usize, microbatches: usize) -> Vec<Action> {
    in_turns(microbatches, ahead, whole, whole)
}

fn interleaved([stage, stages]: [usize; 2], microbatches: usize, chunks: usize) -> Vec<Action> {
    // As many microbatches as there are stages go through all chunks, then the next ones.
    let round = stages * chunks;
    let place =
        |at: usize| Place { microbatch: at / round * stages + at % stages, chunk: at % round / stages };
    let backward_of = |at: usize| Place { chunk: chunks - 1 - place(at).chunk, ..place(at) };
    let ahead = 2 * (stages - 1 - stage) + (chunks - 1) * stages;
    in_turns(microbatches * chunks, ahead, place, backward_of)
}

/// The gradients apart: those of the weights follow `behind` microbatches later.
fn zero_bubble(turns: &[Action], behind: usize) -> Vec<Action> {
    let microbatches = turns.len() / 2;
    let mut actions = Vec::with_capacity(3 * microbatches);
    let mut weights = 0;
    for &action in turns {
        match action {
            Action::Backward(place) => {
                actions.push(Action::BackwardInput(place));
                // A later stage keeps fewer microbatches for their backward passes, and so may keep more for their weights.
                if place.microbatch >= behind {
                    actions.push(Action::BackwardWeight(whole(weights)));
                    weights += 1;
                }
            }
            other => actions.push(other),
        }
    }
    actions.extend((weights..microbatches).map(|microbatch| Action::BackwardWeight(whole(microbatch))));
    actions
}
