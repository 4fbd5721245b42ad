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
//! | [`sync`] | barriers, votes, traps |
//! | [`memory`] | loads and stores |
//! | [`async_copy`] | `cp.async` |
//! | [`matrix`] | `ldmatrix`, `mma.sync` |
//! | [`arithmetic`] | conversions and approximations |

#![cfg_attr(
    not(target_arch = "nvptx64"),
    allow(unused_variables, unreachable_code, clippy::diverging_sub_expression)
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

pub mod arithmetic;
pub mod async_copy;
pub mod matrix;
pub mod memory;
pub mod special;
pub mod sync;

pub use arithmetic::*;
pub use async_copy::*;
pub use matrix::*;
pub use memory::*;
pub use special::*;
pub use sync::*;

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
