//! Runs kernels: a warp at a time, all its lanes in one loop.
//!
//! | module | what it does |
//! |---|---|
//! | `registers` | the register files of a warp, and slots that name a register or a constant |
//! | `lane` | loops over lanes for operations on typed values |
//! | `code` | the bytecode: an instruction bound to the function that runs it |
//! | `arithmetic`, `floating`, `compare`, `convert`, `data` | operations inside a lane |
//! | `access` | addresses, and the checks of every access to memory |
//! | `memory`, `atomic`, `copy` | loads, stores, atomic operations, asynchronous copies |
//! | `collective`, `matrix` | operations across the lanes of a warp |
//! | `control` | branches, exits, barriers |
//! | `warp` | which lanes run next: divergence and convergence |
//! | `block` | the warps of a block, barriers, shared memory |
//! | `launch` | the blocks of a grid over threads |

#![allow(clippy::needless_range_loop, reason = "a lane indexes several registers at once")]

mod access;
mod arithmetic;
mod atomic;
pub(crate) mod block;
pub(crate) mod code;
mod collective;
mod compare;
mod control;
mod convert;
mod copy;
mod data;
mod floating;
mod lane;
pub(crate) mod launch;
mod matrix;
mod memory;
pub(crate) mod registers;
mod warp;
