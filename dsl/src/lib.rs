//! The device library that warpsmith's GPU kernels are written in.
//!
//! A kernel crate is `no_std` Rust, compiled to PTX by rustc's own `nvptx64` backend. This library gives it what Rust's
//! `core` has no notion of: the machine's instructions, threads and warps, shared memory, tiles, and the building blocks
//! of a matrix product. A lower layer never names a higher one.
//!
//! | module | what it is |
//! |---|---|
//! | [`ptx`] | one function for one instruction, nothing else |
//! | [`thread`], [`warp`], [`block`] | indices and synchronisation, under the names a CUDA programmer expects |
//! | [`float`], [`scalar`] | element types, their conversions, loads and stores |
//! | [`math`] | the elementary functions that kernels need, with their error |
//! | [`layout`] | pure functions: which element is where. Proven by tests on the host |
//! | [`shared`] | shared memory, laid out at compile time |
//! | [`mod@slice`], [`atomic`] | global memory with bounds, elements that a thread alone has, and atomics |
//! | [`prelude`] | what most kernels name |
//! | [`barrier`], [`pipeline`] | barriers that copies arrive at, and the ring of stages that they guard |
//! | [`tile`] | tiles of global and shared memory and of registers |
//! | [`reduce`] | sums and maxima over lanes |
//! | [`warpgroup`] | products of a warpgroup, as functions of values |
//! | [`gemm`] | the main loop of a matrix product |
//! | [`topk`] | the best of many numbers, kept by a warp |
//! | [`epilogue`] | what happens to a product before it is rounded and stored |
//! | [`product_key`] | the experts that a token uses, found by product keys |
//! | [`attention`] | attention, whose scores are never stored |
//! | [`rows`] | operations on the rows of a matrix: who has which columns, sums over a row |
//! | [`norm`] | norms of rows, and their gradients |
//! | [`linear_gradient`] | what the gradients of a product begin with |
//! | [`update_gradient`] | what the gradients of a generated update have between their products |
//! | [`elementwise`] | functions of the elements of tensors of one shape, and their gradients |
//! | [`rotary`] | pairs of elements of heads, turned by angles that grow with the position |
//! | [`embedding`] | rows of a table that ids name, and its gradient |
//! | [`softmax`] | the softmax of rows, and its gradient |
//! | [`cross_entropy`] | the cross-entropy of rows of logits, and its gradient |
//! | [`adamw`] | AdamW over many tensors at once |
//! | [`experts`] | the experts that a token uses, evaluated where they are stored |
//! | [`launch`] | what the host and the device agree on: parameter types and a kernel's declaration |
//!
//! The same source builds for the host, on stable Rust, where it serves type checking, documentation and the typed
//! launches of [`launch`]. An instruction that is called there panics.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(asm_experimental_arch, f16, stdarch_nvptx))]

// The derive names the crate as its users do.
extern crate self as warpsmith_dsl;
#[cfg(test)]
extern crate std;

pub use warpsmith_dsl_macros::{KernelParam, kernel, product_kernels, row_kernels};

pub mod adamw;
pub mod atomic;
pub mod attention;
pub mod barrier;
pub mod block;
pub mod cross_entropy;
pub mod elementwise;
pub mod embedding;
pub mod epilogue;
pub mod experts;
pub mod float;
pub mod gemm;
pub mod grid;
pub mod launch;
pub mod layout;
pub mod linear_gradient;
pub mod math;
pub mod norm;
pub mod operands;
pub mod pipeline;
pub mod prelude;
pub mod product_key;
pub mod ptx;
pub mod reduce;
pub mod rotary;
pub mod rows;
pub mod scalar;
pub mod shared;
pub mod slice;
pub mod softmax;
pub mod thread;
pub mod tile;
pub mod topk;
pub mod update_gradient;
pub mod warp;
pub mod warpgroup;

/// What a kernel crate's root needs once: the panic handler (a trap) and the block's dynamic shared memory.
///
/// Expands to nothing on the host.
#[macro_export]
macro_rules! device_crate {
    () => {
        #[cfg(target_arch = "nvptx64")]
        core::arch::global_asm!(".extern .shared .align 1024 .b8 dynamic_shared[];");

        #[cfg(target_arch = "nvptx64")]
        #[panic_handler]
        fn panic(_: &core::panic::PanicInfo) -> ! {
            // SAFETY: a trap ends the kernel with an error; it has no precondition.
            unsafe { $crate::ptx::trap() }
        }
    };
}
