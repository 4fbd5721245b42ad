//! Pipeline parallelism: the layers of a model on different ranks, which work on different parts of a batch at the same time.
//!
//! [`Schedule`] says, as a pure function, what each stage does in which order. [`simulate`] finds how long that takes and what
//! it keeps. [`run`] does it.

mod runner;
mod schedule;
mod simulate;

pub use runner::{Links, Stage, run};
pub use schedule::{Action, Place, Schedule};
pub use simulate::{Costs, Simulation, simulate};
