//! Fused operations with a function of a program's own, by the library's kernels and its planner: a [`product`] with an epilogue, and an operation on
//! [`rows`](rows()).
//!
//! The program writes the function in a file of kernels and has `#[product_kernels]` or `#[row_kernels]` make the variants
//! ([`product_kernels`](warpsmith_dsl::product_kernels), [`row_kernels`](warpsmith_dsl::row_kernels)). The host loads them once for a device. A launch then
//! chooses among them as the library's own operations do: tile, clusters, how many blocks share a sum, how many threads share a row, and which operands are
//! copied first.
//!
//! ```ignore
//! // In the file of kernels:
//! #[product_kernels(softplus_f16: F16 -> f32)]
//! pub fn softplus(sum: f32, #[row] scale: f32) -> f32 {
//!     math::ln(1.0 + math::exp(scale * sum))
//! }
//! ```
//!
//! ```ignore
//! const KERNELS: warpsmith::KernelFile = warpsmith::include_kernels!("softplus");
//!
//! let softplus = ops::fused::product::<kernels::softplus_f16, f16, f32>(&device, &KERNELS)?;
//! let y = softplus.of(&x, &w, (&scales,)).run()?;
//! ```

mod check;
mod loaded;
mod product;
mod rows;

pub use check::{RowOf, Sum, Worst};
pub(crate) use loaded::Loaded;
pub use product::{FusedProduct, FusedProductOp, product};
pub use rows::{FusedRows, FusedRowsOp, rows};
