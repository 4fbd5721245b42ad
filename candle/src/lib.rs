//! warpsmith's operations on tensors of [candle](candle_core)'s, with gradients.
//!
//! Functions of this crate's root take candle tensors, run warpsmith's kernels on them where they are, and return a
//! candle tensor that `backward` goes through.
//! [`nn`] has layers with the names of [`candle_nn`]'s.
//!
//! ```
//! use candle_core::{DType, Device, Tensor, Var};
//! use warpsmith_candle::{Activation, linear};
//!
//! let device = Device::cuda_if_available(0)?;
//! let x = Tensor::ones((4, 8), DType::F32, &device)?;
//! let w = Var::zeros((3, 8), DType::F32, &device)?;
//! let y = linear(&x, &w).activation(Activation::Silu).run()?;
//! let gradients = y.sum_all()?.backward()?;
//! assert_eq!(gradients.get(&w).unwrap().dims(), [3, 8]);
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! # Devices
//!
//! With the feature `cuda`, tensors on a CUDA device are worked on by GPU kernels, on candle's own stream: the work
//! follows what candle has enqueued, and nobody waits for
//! it. Without it, and for tensors on the CPU, the same calls run the CPU implementation.
//!
//! # Element types
//!
//! f32, f16 and bf16, the same for all operands of a call. Others are [`Error::Type`], which names the operand.
//!
//! # Layouts
//!
//! Views are passed on with their offset and strides. A view of which two indices share an element, such as a
//! broadcast one, is copied first.
//!
//! # Gradients
//!
//! Results are custom operations of candle's. Gradients have no gradients of their own.

pub mod error;
mod graph;
mod memory;
pub mod nn;
pub mod ops;
mod place;

pub use error::{Error, Result};
pub use ops::*;
pub use warpsmith;
pub use warpsmith::ops::attention::Alignment;
pub use warpsmith::ops::cross_entropy::Reduction;
pub use warpsmith::ops::{Activation, Pairing, Precision};

/// The README's program, compiled and run with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
