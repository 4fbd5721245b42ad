//! PEER: layers of very many small experts, of which each token uses a few.
//!
//! A token's experts are found first, and evaluated then; a [`Routing`] is what goes from the one to the other.

mod experts;
mod keys;
mod layer;
mod options;
mod product_key;
mod retrieval;
mod routing;

pub use crate::cpu::Gate;
#[doc(hidden)]
pub use crate::experts::Part;
pub use crate::experts::{ExpertFormat, ExpertLayout, ExpertVectors};
pub(crate) use experts::NUMBERS_AT_A_TIME;
pub use experts::{
    ExpertBlocks, ExpertGradients, ExpertInput, ExpertMlpBackwardOp, ExpertMlpGradients, ExpertMlpOp,
    ExpertTable, expert_mlp, expert_mlp_backward,
};
pub use keys::normalized_keys;
#[doc(hidden)]
pub use layer::{peer, peer_is_in_parts};
pub use options::QueryNorm;
pub use product_key::{
    ProductKeyBackwardOp, ProductKeyGradientOutputs, ProductKeyGradients, ProductKeyOp, product_key_topk,
};
pub use retrieval::{RetrievalBlocks, RoutingInput};
pub use routing::Routing;
