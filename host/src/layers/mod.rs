//! Layers: operations together with their weights.

mod linear;
mod update;

pub use linear::Linear;
pub use update::{GeneratedUpdate, UpdatedLinear};
