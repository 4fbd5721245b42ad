//! Data parallelism: each rank has the model and reads examples of its own; gradients are averaged over the ranks.
//!
//! [`Gradients`] has replicas: every rank has all weights, gradients and moments. [`Sharded`] splits all three over the ranks, so that a rank's part is about
//! 1 / size of them. Both give every rank weights of the same bits.

mod buckets;
mod layout;
mod sharded;

pub use buckets::{GradientOptions, Gradients, Wire};
pub use sharded::{Pass, Sharded};

use warpsmith::{Element, Tensor};

use crate::communicator::Communicator;
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
/// [`Error::Argument`](crate::Error::Argument) on every rank if they have not; it names the first rank that differs from rank 0. Otherwise as
/// [`Communicator::gather_bytes`].
pub fn expect_same_bits<T: Element>(communicator: &Communicator, tensors: &[Tensor<T>]) -> Result<()> {
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    for tensor in tensors {
        let elements = tensor.to_vec()?;
        for word in bytemuck::cast_slice::<T, u8>(&elements).chunks(8) {
            let mut bytes = [0; 8];
            bytes[..word.len()].copy_from_slice(word);
            // A multiplication and a shift for each word: every bit counts, and so does the order.
            digest = (digest ^ u64::from_le_bytes(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            digest ^= digest >> 29;
        }
    }
    let all = communicator.gather_bytes(digest.to_le_bytes().to_vec())?;
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
