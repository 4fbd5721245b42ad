//! Validates, measures and tunes the operations of [`warpsmith`].
//!
//! A case ([`cases`]) is one problem: sizes, types, options and data. [`validate`] runs it on a device and compares the result with a
//! reference in f64, within the bound that [`bound`] derives. [`benchmark`] says how long it takes, [`tune`] how long each kernel takes
//! that computes it. A program that uses operations needs none of this: `warpsmith` names nothing of this crate.
//!
//! ```
//! use warpsmith::{DType, Device};
//! use warpsmith_lab::cases::LinearCase;
//! use warpsmith_lab::validate;
//!
//! let outcome = validate::linear(&Device::emulator(), &LinearCase::new(DType::F16, 17, 31, 13))?;
//! assert!(outcome.passed());
//! # Ok::<(), warpsmith::Error>(())
//! ```

pub mod benchmark;
pub mod bound;
pub mod cases;
mod reference;
pub mod tune;
pub mod validate;

/// The README's program, compiled and run with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The book's programs that validate and tune, likewise.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../docs/src/tuning.md")]
    struct Tuning;
    #[doc = include_str!("../../docs/src/validation.md")]
    struct Validation;
}
