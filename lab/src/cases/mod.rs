//! Cases: the sizes, types and options of operations that are validated, measured or tuned, and the data that they run on.

mod adamw;
mod attention;
mod backward;
mod data;
mod elementwise;
mod embedding;
mod experts;
mod kv_cache;
mod linear;
mod norm;
mod peer;
mod repack;
mod rotary;
mod routing;
mod scaled;
mod softmax;
mod topk;
mod update;

pub use adamw::{AdamWCase, AdamWRows};
pub use attention::{AttentionCase, AttentionLayout, KeyScales, Sequences, Slopes};
pub use backward::{
    LinearBackwardCase, MatmulBackwardCase, ScaledBackwardCase, SlopesFrom, UpdateBackwardCase,
};
pub use data::Data;
pub(crate) use data::{filled, split_mix};
pub use elementwise::ElementwiseCase;
pub use embedding::EmbeddingCase;
pub use experts::{ExpertCase, Residence, RoutingKind};
pub use kv_cache::KvCacheCase;
pub use linear::{LinearCase, MatmulCase, Placement, Scales, Terms};
pub use norm::NormCase;
pub use peer::PeerSizes;
pub use repack::{RepackCase, Source};
pub use rotary::RotaryCase;
pub use routing::{NormKind, RoutingCase};
pub use scaled::{ScaleKind, ScaledCase};
pub use softmax::{CrossEntropyCase, MaskRows, SoftmaxCase};
pub use topk::TopkCase;
pub use update::{CodesPer, UpdateCase};
