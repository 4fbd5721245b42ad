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

pub use experts::{
    ExpertBlocks, ExpertFormat, ExpertInput, ExpertLayout, ExpertMlpOp, ExpertTable, ExpertVectors,
    expert_mlp,
};
pub(crate) use experts::{NUMBERS_AT_A_TIME, Part};
pub use keys::normalized_keys;
pub(crate) use layer::{peer, peer_is_in_parts};
pub use options::{Gate, QueryNorm};
pub use product_key::{ProductKeyOp, product_key_topk};
pub use retrieval::{RetrievalBlocks, RoutingInput};
pub use routing::Routing;
