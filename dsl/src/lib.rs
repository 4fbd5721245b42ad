//! The device library that warpsmith's GPU kernels are written in.
#![cfg_attr(not(test), no_std)]

pub mod float;
pub mod launch;
