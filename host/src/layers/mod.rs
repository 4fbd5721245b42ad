//! Layers: operations together with their weights.

mod attention;
#[cfg(test)]
mod differences;
mod embedding;
mod experts;
mod linear;
mod mlp;
mod norm;
mod parameters;
mod peer;
mod training;
mod transformer;
mod update;

pub use attention::{
    Attention, AttentionConfig, AttentionForward, AttentionLayerGradients, AttentionNames, AttentionSaved,
    CacheFormat, KvCache, KvCacheConfig, ProjectionGradients,
};
pub use embedding::Embedding;
pub use experts::{ExpertOptions, Experts};
pub use linear::Linear;
pub use mlp::{Mlp, MlpGradients, MlpNames, MlpSaved};
pub use norm::{LayerNorm, RmsNorm};
pub use parameters::Parameters;
pub use peer::{Norm, Peer, PeerConfig, PeerGradients, PeerImplementation, PeerInput, PeerRouter, PeerSaved};
pub use training::{EmbeddingSaved, LinearSaved, NormSaved, UpdateSaved};
pub use transformer::{
    BlockConfig, BlockForward, BlockGradients, BlockNames, BlockNorm, BlockSaved, TransformerBlock,
    TransformerInput,
};
pub use update::{GeneratedUpdate, UpdatedLinear};
