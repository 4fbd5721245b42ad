//! Layers: operations together with their weights.

mod attention;
mod embedding;
mod experts;
mod linear;
mod norm;
mod peer;
mod training;
mod update;

pub use attention::{
    Attention, AttentionConfig, AttentionForward, AttentionLayerGradients, AttentionNames, AttentionSaved,
    CacheFormat, KvCache, KvCacheConfig, ProjectionGradients,
};
pub use embedding::Embedding;
pub use experts::{ExpertOptions, Experts};
pub use linear::Linear;
pub use norm::{LayerNorm, RmsNorm};
pub use peer::{Norm, Peer, PeerConfig, PeerImplementation, PeerInput, PeerRouter};
pub use training::{EmbeddingSaved, LinearSaved, NormSaved, UpdateSaved};
pub use update::{GeneratedUpdate, UpdatedLinear};
