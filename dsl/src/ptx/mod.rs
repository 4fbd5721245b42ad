//! One function for one instruction: no logic, no state, nothing that could be wrong but the instruction's text.
//!
//! Each function names the PTX it stands for, the PTX ISA version and the architecture that it needs when they are above
//! the base of this crate (PTX ISA 7.0, sm_80), and what the caller must guarantee. Addresses in shared memory are the
//! 32-bit addresses of the `.shared` window; addresses in global memory are 64-bit device addresses.
//!
//! Instructions exist on the GPU only. On the host these functions exist so that kernels type-check on stable Rust, and
//! panic when they are called.
//!
//! | module | instructions |
//! |---|---|
//! | [`special`] | special registers |
//! | [`sync`] | barriers, traps |
//! | [`memory`], [`scalar`] | loads and stores; shuffles, votes and `atom` |
//! | [`async_copy`] | `cp.async` |
//! | [`matrix`] | `ldmatrix`, `stmatrix`, `mma.sync` |
//! | [`wgmma`] | `wgmma`, its descriptors, groups and accumulators |
//! | [`wgmma_fp8`] | `wgmma` of 8-bit floating-point types |
//! | [`wgmma_tf32`] | the same on f32 operands |
//! | [`wgmma_registers`] | products with A in registers |
//! | [`wgmma_update`] | wider products |
//! | [`mbarrier`] | barriers in shared memory |
//! | [`tma`] | `cp.async.bulk` and `cp.async.bulk.tensor`, and the fence between the proxies |
//! | [`cluster`] | the block's place in its cluster, addresses in other blocks, the cluster's barrier |
//! | [`specialization`] | `setmaxnreg`, `elect.sync`, `griddepcontrol` |
//! | [`turing`] | what stands for some of them on sm_75 |
//! | [`arithmetic`] | conversions and approximations |

#![cfg_attr(
    not(target_arch = "nvptx64"),
    allow(unused_variables, unused_mut, unreachable_code, clippy::diverging_sub_expression)
)]

/// `asm!` on the GPU, a panic on the host.
///
/// Line information names the function that stands for the instruction, not this macro.
#[collapse_debuginfo(yes)]
macro_rules! instruction {
    ($($asm:tt)*) => {{
        #[cfg(target_arch = "nvptx64")]
        {
            core::arch::asm!($($asm)*)
        }
        #[cfg(not(target_arch = "nvptx64"))]
        {
            $crate::ptx::not_on_the_host()
        }
    }};
}

/// A function that reads a special register.
macro_rules! special_register {
    ($name:ident, $register:literal, $what:literal) => {
        #[doc = concat!("The ", $what, ": `mov.u32 r, ", $register, "`.")]
        #[inline(always)]
        #[must_use]
        pub fn $name() -> u32 {
            let value: u32;
            // SAFETY: reads a register that never changes while the thread runs.
            unsafe {
                instruction!(concat!("mov.u32 {}, ", $register, ";"), out(reg32) value, options(pure, nomem, nostack))
            };
            value
        }
    };
}

pub mod arithmetic;
pub mod async_copy;
pub mod cluster;
pub mod matrix;
pub mod mbarrier;
pub mod memory;
pub mod scalar;
pub mod special;
pub mod specialization;
pub mod sync;
pub mod tma;
pub mod turing;
pub mod wgmma;
pub mod wgmma_fp8;
pub mod wgmma_registers;
pub mod wgmma_tf32;
pub mod wgmma_update;

pub use arithmetic::*;
pub use async_copy::*;
pub use cluster::*;
pub use matrix::*;
pub use mbarrier::*;
pub use memory::*;
pub use scalar::*;
pub use special::*;
pub use specialization::*;
pub use sync::*;
pub use tma::*;
#[cfg(feature = "turing")]
pub use turing::*;
pub use wgmma::*;
pub use wgmma_fp8::*;
pub use wgmma_registers::*;
pub use wgmma_tf32::*;
pub use wgmma_update::*;

/// What an instruction is on the host.
///
/// # Safety
///
/// It has no precondition: it is unsafe as `asm!` is, so that both stand in the same block.
#[cfg(not(target_arch = "nvptx64"))]
#[cold]
pub(crate) unsafe fn not_on_the_host() -> ! {
    panic!("a GPU instruction was called on the host")
}
