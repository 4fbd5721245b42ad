//! Warpgroups' matrix products: against what an H100 gave, and what the emulator finds in kernels that use them wrongly.

mod checks;
pub(crate) mod operands;
mod recorded;
