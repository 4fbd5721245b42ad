//! Optimisers: weights moved by their gradients, on the device that has them.
//!
//! [`AdamW`] is AdamW for many tensors in one launch, with clipping by the norm of all gradients, loss scaling, and weights of 16 bits. Nothing in a step waits for
//! the device. [`schedule`] has learning rates that change.
//!
//! The CPU, the emulator and a GPU give the same bits: every operation is correctly rounded, and every sum has an order that follows from sizes only.

mod adamw;
mod on_cpu;
mod options;
pub mod schedule;
mod state;
mod tables;
#[cfg(test)]
mod tests;

pub use adamw::AdamW;
pub use options::{AdamWOptions, Group, LossScaleOptions, ParameterOptions, Rounding};
