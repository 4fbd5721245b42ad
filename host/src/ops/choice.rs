//! What is chosen by a model or by what was kept: for each kind of operation its tiles, and what the choice depends on.
//!
//! Whoever measures kernels does not work out again which problem an operation has: the operation runs once and says it, so that what is
//! measured is what it looks up.

use std::cell::RefCell;

use crate::error::Result;
use crate::ops::gemm;
use crate::tune::Choice;

/// The choice for a linear layer, a scaled one or a matrix product. A scaled one tells apart whether there is more than scales, a bias and an activation, and no
/// more of what is done to the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductChoice {
    /// What is computed.
    pub problem: gemm::Problem,
    /// What the device has.
    pub limits: gemm::Limits,
}

impl Choice for ProductChoice {
    type Tile = gemm::Tile;

    fn key(&self) -> String {
        format!("linear {:?}", self.problem)
    }

    fn candidates(&self) -> Vec<Self::Tile> {
        gemm::candidates(&self.problem, &self.limits).collect()
    }

    fn model(&self) -> Option<Self::Tile> {
        gemm::select(&self.problem, &self.limits)
    }
}

/// A problem that an operation runs a kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The problem, and the device's limits.
    pub choice: ProductChoice,
    /// Which of the operands are copied into aligned rows first.
    pub copied: [bool; 2],
}

thread_local! {
    /// The problems that this thread's operations run kernels for, while someone wants to know.
    static OBSERVED: RefCell<Option<Vec<Observation>>> = const { RefCell::new(None) };
}

/// Says that a kernel is about to run for a problem, whoever chooses it.
pub(crate) fn notice(observation: Observation) {
    OBSERVED.with_borrow_mut(|observed| {
        if let Some(observed) = observed {
            observed.push(observation);
        }
    });
}

/// The problems that `work` runs kernels for, on this thread.
///
/// # Errors
///
/// Whatever `work` returns.
pub fn observe(work: impl FnOnce() -> Result<()>) -> Result<Vec<Observation>> {
    OBSERVED.set(Some(Vec::new()));
    let outcome = work();
    let observed = OBSERVED.take().unwrap_or_default();
    outcome.map(|()| observed)
}
