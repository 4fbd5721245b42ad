//! Plain implementations of the operations on `ndarray`, multi-threaded.
//!
//! They are what [`Device::cpu`](crate::Device::cpu) runs where there is no GPU. Each is generic over the type that it
//! accumulates in: at `f32` it is the fallback, and the same function at `f64` is the reference that every validation
//! compares with. They assume nothing of strides or alignment and take any size, zero included.

mod activation;
#[doc(hidden)]
pub mod adamw;
mod attention;
mod cross_entropy;
mod elementwise;
mod embedding;
mod experts;
mod experts_gradient;
mod gate;
mod gemm;
mod linear;
mod linear_gradient;
mod norm;
mod number;
#[doc(hidden)]
pub mod product_key;
mod product_key_gradient;
mod rotary;
mod scaled;
mod softmax;
mod sums;
mod topk;
mod update;
mod update_gradient;

pub use activation::Activation;
pub use adamw::AdamWScalars;
pub use attention::LANES as PRODUCT_LANES;
pub use attention::{
    Alignment, AttentionTerms, Window, attention, attention_gradient, packed_attention,
    packed_attention_gradient,
};
pub use cross_entropy::{CrossEntropy, RowLoss, Target, cross_entropy};
pub use elementwise::{Elementwise, elementwise};
pub(crate) use embedding::{add_rows, tokens_of_ids};
pub use experts::{TokenExperts, expert_mlp};
pub(crate) use experts_gradient::add_weighted_rows;
pub use experts_gradient::{ExpertFactors, expert_mlp_backward};
pub use gate::Gate;
pub use gemm::K_BLOCK as SUM_BLOCK;
pub use linear::{LinearTerms, linear};
pub use linear_gradient::{Slopes, linear_gradient};
pub use norm::{Norm, Statistics, norm, norm_gradient};
pub use number::{Accumulator, FromAccumulator, Operand};
pub use product_key::{Normalization, ProductKeys, product_key_topk};
pub use product_key_gradient::{ProductKeyGradients, product_key_topk_backward};
pub use rotary::{Pairing, rotate};
pub use scaled::linear_scaled;
pub use softmax::{softmax, softmax_gradient};
pub(crate) use sums::pairwise;
pub use topk::topk;
pub use update::{Update, generated_update, linear_with_update, rank_coordinates};
pub use update_gradient::UpdateGradient;
