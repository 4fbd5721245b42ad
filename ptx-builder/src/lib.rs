//! Compiles kernel crates written in Rust to PTX, and checks the result.
//!
//! The compiler is rustc itself, with its `nvptx64-nvidia-cuda` target. That target needs unstable flags and `core` built
//! from source, so the compiler is a *device toolchain* beside the stable one that builds the host program: any rustup
//! toolchain with `rust-src`, or a system rustc with its sources. [`find_toolchain`] looks for one; nothing here downloads
//! or installs anything.
//!
//! [`Builder`] turns a kernel crate into one PTX file for each kernel family (a Cargo feature of the crate) and
//! architecture. It lifts launch bounds out of the kernels' bodies ([`module`]), writes a header that says what the file
//! was made from ([`header`]), and refuses what would ruin a kernel without a compiler error: local memory, calls, unresolved
//! symbols ([`mod@check`]). With `ptxas` at hand, [`Ptxas`] adds spills, stack frames and serialisation warnings, and counts
//! registers. With `nvdisasm` too, [`Nvdisasm`] shows the machine code, and [`machine_code`] finds arrivals at barriers that overtake
//! loads from shared memory.
//!
//! A package that holds its kernels beside its host program builds them from its build script, by [`KernelFiles`]:
//!
//! ```no_run
//! fn main() -> Result<(), warpsmith_builder::Error> {
//!     warpsmith_builder::KernelFiles::new().file("src/kernels.rs").build()
//! }
//! ```

pub mod arch;
pub mod check;
pub mod header;
pub mod machine_code;
pub mod module;
pub mod sources;
pub mod store;
pub mod toolchain;

mod builder;
mod compile;
mod error;
mod kernel_files;
mod nvdisasm;
mod nvidia;
mod ptxas;

pub use arch::Arch;
pub use builder::{Artefact, Builder, Target};
pub use check::{Report, Violation, check};
pub use error::Error;
pub use header::Header;
pub use kernel_files::KernelFiles;
pub use nvdisasm::{NVDISASM_VARIABLE, Nvdisasm};
pub use ptxas::{Assembly, KernelUsage, PTXAS_VARIABLE, Ptxas};
pub use toolchain::{Toolchain, find_toolchain};
