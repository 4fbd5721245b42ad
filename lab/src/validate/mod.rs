//! Validation: runs one operation at a size and type on a device, and says how far the result is from the reference.
//!
//! The reference is the CPU implementation with f64 sums on the very inputs that the device reads; the bound is derived
//! ([`bound`](crate::bound)), not tuned; with integer inputs the result has to be exact. An output placed inside a larger matrix is also
//! checked for writes beside it.

mod adamw;
mod attention;
mod backward;
mod cross_entropy;
mod elementwise;
mod embedding;
mod experts;
mod kv_cache;
pub mod load;
mod norm;
mod outputs;
mod placed;
mod product;
mod repack;
mod rotary;
mod routing;
mod scaled;
mod softmax;
mod tally;
mod topk;
mod update;

pub use adamw::{adamw, adamw_bits};
pub use attention::{attention, attention_backward, attention_backward_bits, attention_bits};
pub use backward::{
    linear_backward, linear_backward_bits, matmul_backward, matmul_backward_bits, scaled_backward,
    scaled_backward_bits, update_backward, update_backward_bits,
};
pub use cross_entropy::{cross_entropy, cross_entropy_bits};
pub use elementwise::{elementwise, elementwise_bits};
pub use embedding::{embedding, embedding_bits};
pub use experts::{expert_bits, expert_gradient_bits, expert_gradients, experts};
pub use kv_cache::{kv_cache, kv_cache_bits};
pub use norm::{norm, norm_bits};
pub use product::{linear, linear_bits, matmul, matmul_bits};
pub use repack::repack;
pub use rotary::{rotary, rotary_bits};
pub use routing::{RoutingOutcome, product_key_gradient_bits, product_key_topk, product_key_topk_backward};
pub use scaled::{linear_scaled, linear_scaled_bits};
pub use softmax::{softmax, softmax_bits};
pub use topk::topk;
pub use update::{generated_update, generated_update_bits};

use warpsmith::ops::Implementation;

/// Runs `$f::<T>` with the type of a case's x.
macro_rules! of_type {
    ($operation:expr, $case:expr, $f:ident($($argument:expr),*)) => {
        match $case.dtype {
            warpsmith::DType::F16 => $f::<half::f16>($($argument),*),
            warpsmith::DType::Bf16 => $f::<half::bf16>($($argument),*),
            warpsmith::DType::F32 => $f::<f32>($($argument),*),
            actual => {
                let expected = "f16, bf16 or f32".into();
                Err(warpsmith::Error::Type { operation: $operation, operand: "x", expected, actual })
            }
        }
    };
}
use of_type;

/// What a validation found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// What ran.
    pub implementation: Implementation,
    /// Output elements compared.
    pub compared: usize,
    /// The largest |ŷ − y|.
    pub max_absolute_error: f64,
    /// The largest |ŷ − y|, relative to the largest |y|.
    pub max_relative_error: f64,
    /// The element that comes closest to its bound, or exceeds it most; none if nothing was compared.
    pub worst: Option<Worst>,
    /// Whether the results had to be exact.
    pub exact: bool,
    /// Elements outside their bound.
    pub failures: usize,
    /// Elements beside the output that were written.
    pub stray_writes: usize,
}

impl Outcome {
    /// Whether every compared element is within its bound, and nothing else was written.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.failures == 0 && self.stray_writes == 0
    }

    /// The largest error in units of its bound: above 1 is a failure.
    #[must_use]
    pub fn worst_ratio(&self) -> f64 {
        self.worst.map_or(0.0, |worst| worst.ratio)
    }
}

/// The element of an output that is worst in terms of its bound.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Worst {
    /// Its row.
    pub row: usize,
    /// Its column.
    pub column: usize,
    /// The result.
    pub got: f64,
    /// The reference.
    pub expected: f64,
    /// The largest error allowed.
    pub bound: f64,
    /// The error in units of the bound.
    pub ratio: f64,
}
