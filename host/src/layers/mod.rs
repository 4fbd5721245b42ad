//! Layers: operations together with their weights.

mod attention;
mod experts;
mod linear;
mod peer;
mod update;

pub use attention::{Attention, AttentionConfig, AttentionForward, AttentionNames, KvCache};
pub use experts::{ExpertOptions, Experts};
pub use linear::Linear;
pub use peer::{Norm, Peer, PeerConfig, PeerImplementation, PeerInput, PeerRouter};
pub use update::{GeneratedUpdate, UpdatedLinear};
