//! Data parallelism: each rank has the model and reads examples of its own; gradients are averaged over the ranks.
//!
//! [`Gradients`] has replicas: every rank has all weights, gradients and moments. [`Sharded`] splits all three over the ranks,
//! so that a rank's part is about 1 / size of them. Both give every rank weights of the same bits.

mod buckets;
mod layout;
mod sharded;

pub use buckets::{GradientOptions, Gradients, Wire};
pub use sharded::{Pass, Sharded};

use warpsmith::{Element, Tensor};

use crate::communicator::Communicator;
use crate::digest::digest;
use crate::error::{Result, argument};

/// Gives all ranks the elements that rank 0 has of each tensor, so that replicas begin with the same bits.
///
/// # Errors
///
/// As [`Communicator::broadcast`].
pub fn replicate<T: Element>(communicator: &Communicator, tensors: &mut [Tensor<T>]) -> Result<()> {
    tensors.iter_mut().try_for_each(|tensor| communicator.broadcast(tensor, 0))
}

/// Checks that all ranks have the same bits in tensors. Waits for the work on them, and compares digests of 64 bits.
///
/// # Errors
///
/// [`Error::Argument`](crate::Error::Argument) on every rank if they have not; it names the first rank that differs from rank
/// 0. Otherwise as [`Communicator::gather_bytes`].
pub fn expect_same_bits<T: Element>(communicator: &Communicator, tensors: &[Tensor<T>]) -> Result<()> {
    let digests = tensors.iter().map(|tensor| Ok(digest(bytemuck::cast_slice(&tensor.to_vec()?))));
    let digests: Vec<u64> = digests.collect::<Result<_>>()?;
    let all = communicator.gather_bytes(bytemuck::cast_slice(&digests).to_vec())?;
    match all.iter().position(|other| *other != all[0]) {
        None => Ok(()),
        Some(rank) => {
            let expected = "the same bits on all ranks";
            Err(argument(
                "expect_same_bits",
                "tensors",
                expected,
                format!("others on rank {rank} than on rank 0"),
            ))
        }
    }
}
