//! Layers: operations together with their weights.

mod experts;
mod linear;
mod peer;
mod update;

pub use experts::{ExpertOptions, Experts};
pub use linear::Linear;
pub use peer::{Norm, Peer, PeerConfig, PeerImplementation, PeerInput, PeerRouter};
pub use update::{GeneratedUpdate, UpdatedLinear};
