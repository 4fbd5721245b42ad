//! Several GPUs: ranks that work on one problem together.
//!
//! A [`Communicator`] carries tensors between ranks: NCCL between GPUs, host memory between threads or processes on any device.
//! Above it are the ways to share work: [`data`] has replicas of a model that read different examples, [`tensor`] layers whose
//! weights are split, [`pipeline`] layers on different ranks, [`experts`] tables of experts that are split. [`checkpoint`]
//! saves what is split and loads it at another number of ranks.
//!
//! Everything works without a GPU, on ranks that are threads; results are the same bits each time.

pub mod checkpoint;
pub mod communicator;
pub mod cost;
pub mod data;
mod digest;
pub mod error;
pub mod experts;
pub mod launch;
#[cfg(feature = "measure")]
pub mod measure;
pub mod pipeline;
pub mod ranges;
pub mod tensor;

pub use communicator::{Communicator, NcclOptions, Reduction, nccl_version};
pub use error::{Error, Failure, Result};
pub use launch::Launch;

/// The crate's README, compiled and run with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The book's page, likewise.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/several-gpus.md")]
struct Book;
