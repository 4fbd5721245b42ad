//! Optimisers: weights moved by their gradients, on the device that has them.
//!
//! [`AdamW`] is AdamW for many tensors in one launch, with clipping by the norm of all gradients, loss scaling, and weights of 16 bits. A [`Gradient`] may have
//! only some rows of its weights, as those of embeddings and of tables of experts do. Nothing in a step waits for the device. [`schedule`] has learning rates that
//! change.
//!
//! The CPU, the emulator and a GPU give the same bits: every operation is correctly rounded, and every sum has an order that follows from sizes only.

mod adamw;
mod gradients;
mod on_cpu;
mod on_device;
mod operands;
mod options;
pub mod schedule;
mod state;
mod tables;
#[cfg(test)]
mod tests;

pub use adamw::AdamW;
pub use operands::{AnyWeights, Gradient};
pub use options::{AdamWOptions, Group, LossScaleOptions, ParameterOptions, Rounding, SecondMoment};
