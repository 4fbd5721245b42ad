//! Warpgroups' matrix products: against what an H100 gave, and what the emulator finds in kernels that use them wrongly.

#[path = "../common/mod.rs"]
mod common;

mod checks;
mod operands;
mod recorded;
