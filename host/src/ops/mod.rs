//! Operations on tensors: typed, checked, and the same on every device.
//!
//! An operation is a builder: `ops::linear(&x, &w).bias(&b).activation(Activation::Relu).run()`. It checks its operands first;
//! then a GPU or the emulator runs the kernel that one pure function has chosen, the CPU its own implementation.

pub mod attention;
#[doc(hidden)]
pub mod choice;
pub mod column_sums;
pub mod cross_entropy;
pub mod elementwise;
pub mod embedding;
pub mod fused;
pub mod gemm;
mod implementation;
pub mod linear;
pub mod matmul;
mod matrix;
pub mod norm;
pub mod peer;
mod precision;
mod repack;
mod result;
pub mod rotary;
pub mod rows;
pub mod scaled;
pub mod softmax;
pub mod topk;
pub mod update;

pub(crate) use crate::sizes::{CHUNK_BYTES, ROW_LIMIT, SIDE_LIMIT, STORED_ROWS, has_short_rows};

pub use crate::cpu::Activation;
pub use attention::attention;
pub use cross_entropy::cross_entropy;
pub use elementwise::{activation, activation_backward, add, cast, gated, gated_backward, mul};
pub use embedding::{SparseRows, embedding, embedding_backward};
pub use implementation::{Implementation, Launch, Launches};
pub use linear::{linear, linear_backward};
pub use matmul::{matmul, matmul_backward};
pub use norm::{layer_norm, rms_norm};
pub use peer::product_key_topk;
pub use peer::{expert_mlp, expert_mlp_backward};
pub use precision::{Precision, Products};
pub(crate) use repack::repack_both;
pub use repack::{RepackOp, repack};
pub(crate) use result::expect_result;
pub use rotary::{Pairing, RotaryTable, rotary};
pub use scaled::{Scale, linear_scaled, linear_scaled_backward};
pub use softmax::{softmax, softmax_gradient};
pub use topk::topk;
pub use update::{
    generated_update, generated_update_backward, linear_with_update, linear_with_update_backward,
};
