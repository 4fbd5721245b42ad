//! What tests of several crates and the development commands share.
//!
//! | module | |
//! |---|---|
//! | [`mutants`] | shipped kernels with one thing wrong, each of which the emulator has to find |

pub mod mutants;
