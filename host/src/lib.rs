//! GPU kernels written in Rust, as typed operations on tensors.
//!
//! A [`Device`] is an NVIDIA GPU, an emulator that runs the same PTX on the CPU, or the CPU. A [`Tensor`] is a typed,
//! strided view of a device's memory. Operations take tensors, run on whatever device those are on, and say what is
//! wrong where they cannot.
//!
//! ```
//! use ndarray::array;
//! use warpsmith::{Device, Tensor};
//!
//! # fn main() -> warpsmith::Result<()> {
//! let device = Device::auto(); // the first GPU, else the CPU
//! let x = Tensor::from_array(&device, &array![[1.0f32, 2.0], [3.0, 4.0]])?;
//! assert_eq!(x.slice(1, 1..2)?.to_vec()?, [2.0, 4.0]);
//! # Ok(())
//! # }
//! ```
//!
//! Nothing of CUDA is needed to build this crate, and the driver is looked for when a program runs: one binary works
//! with and without a GPU. The feature `cust` alone links to the driver.

pub mod cpu;
#[cfg(feature = "cust")]
pub mod cust;
pub mod device;
#[cfg(feature = "dlpack")]
pub mod dlpack;
mod driver;
pub mod error;
mod experts;
pub mod graph;
pub mod kernel;
pub mod layers;
pub mod memory;
pub mod ops;
pub mod optim;
pub mod peer;
mod sizes;
pub mod stream;
pub mod tensor;
pub mod trace;
pub mod tune;
pub mod weights;

pub use device::{CurrentDevice, Device, DeviceKind, EmulatorOptions, MemoryStats, Properties};
pub use error::{Error, Result};
pub use graph::Graph;
pub use kernel::{Function, KernelFile, KernelModule, Module, TypedKernel};
pub use memory::{PinnedBuffer, Transfer};
pub use ndarray;
pub use stream::{Event, Stream, StreamPriority};
pub use tensor::{DType, Element, Tensor};
pub use warpsmith_emulator as emulator;
pub use weights::Weights;

/// The README's program, compiled and run with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The repository's README, likewise.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct RepositoryReadme;

/// The book's programs that need nothing but this crate, likewise.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../docs/src/quick-start.md")]
    struct QuickStart;
    #[doc = include_str!("../../docs/src/how-to/load-weights.md")]
    struct LoadWeights;
    #[doc = include_str!("../../docs/src/how-to/run-a-layer.md")]
    struct RunALayer;
    #[doc = include_str!("../../docs/src/how-to/test-without-a-gpu.md")]
    struct TestWithoutAGpu;
    #[doc = include_str!("../../docs/src/training.md")]
    struct Training;
    #[doc = include_str!("../../docs/src/interop.md")]
    struct Interop;
    #[doc = include_str!("../../docs/src/operations/linear.md")]
    struct Linear;
    #[doc = include_str!("../../docs/src/operations/linear-scaled.md")]
    struct LinearScaled;
    #[doc = include_str!("../../docs/src/operations/matmul.md")]
    struct Matmul;
    #[doc = include_str!("../../docs/src/operations/attention.md")]
    struct Attention;
    #[doc = include_str!("../../docs/src/operations/generated-update.md")]
    struct GeneratedUpdate;
    #[doc = include_str!("../../docs/src/operations/peer.md")]
    struct Peer;
    #[doc = include_str!("../../docs/src/operations/expert-mlp.md")]
    struct ExpertMlp;
    #[doc = include_str!("../../docs/src/operations/cross-entropy.md")]
    struct CrossEntropy;
    #[doc = include_str!("../../docs/src/operations/elementwise.md")]
    struct Elementwise;
    #[doc = include_str!("../../docs/src/operations/embedding.md")]
    struct Embedding;
    #[doc = include_str!("../../docs/src/operations/norms.md")]
    struct Norms;
    #[doc = include_str!("../../docs/src/operations/product-key-topk.md")]
    struct ProductKeyTopk;
    #[doc = include_str!("../../docs/src/operations/repack.md")]
    struct Repack;
    #[doc = include_str!("../../docs/src/operations/rotary.md")]
    struct Rotary;
    #[doc = include_str!("../../docs/src/operations/softmax.md")]
    struct Softmax;
    #[doc = include_str!("../../docs/src/operations/topk.md")]
    struct Topk;
    #[doc = include_str!("../../docs/src/operations/optimiser.md")]
    struct Optimiser;
}
