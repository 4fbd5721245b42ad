//! Validation of gradients: those of linear layers, of scaled ones, of matrix products, and of generated updates.

mod linear;
mod matmul;
mod products;
mod scaled;
mod update;

pub(super) use linear::prepare as prepare_linear;
pub use linear::{linear_backward, linear_backward_bits};
pub(super) use matmul::prepare as prepare_matmul;
pub use matmul::{matmul_backward, matmul_backward_bits};
pub(super) use products::Gradient;
pub(super) use scaled::prepare as prepare_scaled;
pub use scaled::{scaled_backward, scaled_backward_bits};
pub(super) use update::prepare as prepare_update;
pub use update::{update_backward, update_backward_bits};

use warpsmith::weights::FloatElement;

use super::outputs::Bits;

/// A type of operands and gradients.
trait Number: FloatElement + Bits {}
impl<U: FloatElement + Bits> Number for U {}
