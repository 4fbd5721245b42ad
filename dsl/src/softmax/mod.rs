//! The softmax of rows, and its gradient.
//!
//! `y = exp(scale · (x − max)) / Σ exp(scale · (x − max))` over the columns of a row that count; the others have 0, and so has −∞. A row of which none counts
//! has zeros.
//!
//! A row that fits the registers of those who share it is read once. Of a wider one each thread keeps the largest number so far and the sum relative to it
//! ([`Exponentials`](crate::rows::Exponentials)), so that it is read twice: for the sum and for the results.

mod backward;
mod forward;

pub use backward::{SoftmaxGradientParams, softmax_gradients};
pub use forward::{SoftmaxParams, softmax_rows};
