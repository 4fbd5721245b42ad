//! The operations: builders over candle tensors, whose results are in candle's graph.
//!
//! Each computes its result first, by the operation of the same name in [`warpsmith::ops`], and puts it into the
//! graph together with its gradients.

mod attention;
mod cross_entropy;
mod embedding;
mod experts;
mod linear;
mod matmul;
mod norm;
mod rotary;
mod softmax;
mod update;

pub use attention::{AttentionOp, attention};
pub use cross_entropy::{CrossEntropyOp, cross_entropy};
pub use embedding::embedding;
pub use experts::{ExpertMlpOp, Experts, ProductKeyOp, expert_mlp, product_key_topk};
pub use linear::{LinearOp, linear};
pub use matmul::{MatmulOp, matmul};
pub use norm::{NormOp, layer_norm, rms_norm};
pub use rotary::{RotaryOp, RotaryTable, rotary};
pub use softmax::{SoftmaxOp, softmax};
pub use update::{Alone, UpdateOp, WithLinear, generated_update, linear_with_update};

use candle_core::Tensor;

/// Which of an operation's operands are tracked, when it ran.
fn tracked<const N: usize>(operands: [Option<&Tensor>; N]) -> [bool; N] {
    operands.map(|operand| operand.is_some_and(Tensor::track_op))
}

/// The shape of `x` with another last axis. A tensor without axes has that axis alone; operations refuse it.
fn with_columns(x: &Tensor, columns: usize) -> Vec<usize> {
    let mut shape = x.dims().to_vec();
    shape.pop();
    shape.push(columns);
    shape
}
