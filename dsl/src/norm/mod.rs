//! Layer norm and RMS norm of rows, and their gradients.
//!
//! With x̂ = (x − mean) / √(variance + ε) the layer norm is `y = x̂ ⊙ weight + bias`. The RMS norm has 0 in place of the mean, so that the
//! variance is the mean square.
//!
//! The mean and the variance are of two passes over registers: the second sums x − m and its square, where m is the mean as it was rounded, and what the
//! first sum shows of m's error is taken off. So nothing cancels but what cancels in the rows themselves.

mod backward;
mod columns;
mod forward;

pub use backward::{GRADIENT_SHARED_BYTES, NormGradientParams, norm_gradients};
pub use columns::norm_column_gradients;
pub use forward::{NormParams, norm_rows};
