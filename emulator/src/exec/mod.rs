//! Runs kernels: a warp at a time, all its lanes in one loop.
//!
//! | module | what it does |
//! |---|---|
//! | `registers` | the register files of a warp, and slots that name a register or a constant |
//! | `lane` | loops over lanes for operations on typed values |
//! | `code` | the bytecode: an instruction bound to the function that runs it |
//! | `arithmetic`, `bits`, `floating`, `video`, `compare`, `convert`, `data` | operations inside a lane |
//! | `access`, `race`, `values` | addresses, and the checks of every access to memory |
//! | `memory`, `atomic`, `copy` | loads, stores, atomic operations, asynchronous copies |
//! | `bulk`, `tensor` | copies of ranges and of boxes of tensors, as the copy engine gets them |
//! | `strong` | what fences and strong accesses pass on |
//! | `carry` | the bytes that the copy engine moves |
//! | `agent`, `agent_checks`, `mbarrier` | the copy engine, and the barriers in shared memory that tell of it |
//! | `collective`, `matrix`, `wmma` | operations across the lanes of a warp |
//! | `wgmma` | matrix products of warpgroups |
//! | `control` | branches, exits, barriers |
//! | `call`, `builtin` | calls of functions, and their frames; what the driver brings: `printf`, `assert`, `malloc` |
//! | `warp` | which lanes run next: divergence and convergence |
//! | `block`, `deadlock` | the warps of a block, its barriers; when nothing can go on |
//! | `cluster` | the blocks of a cluster, and what they share |
//! | `launch` | the clusters of a grid over threads |

#![allow(clippy::needless_range_loop, reason = "a lane indexes several registers at once")]

mod access;
pub(crate) mod agent;
mod agent_checks;
mod arithmetic;
mod atomic;
mod bits;
pub(crate) mod block;
mod builtin;
mod bulk;
mod call;
mod carry;
pub(crate) mod cluster;
pub(crate) mod code;
mod collective;
mod compare;
mod control;
mod convert;
mod copy;
mod data;
mod deadlock;
mod definedness;
mod floating;
mod held;
mod lane;
mod late;
pub(crate) mod launch;
mod matrix;
mod mbarrier;
mod memory;
mod race;
pub(crate) mod registers;
mod store_async;
mod strong;
mod tensor;
pub(crate) mod trace;
mod values;
mod video;
mod warp;
pub(crate) mod wgmma;
mod wmma;
