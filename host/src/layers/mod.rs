//! Layers: operations together with their weights.

mod linear;

pub use linear::Linear;
