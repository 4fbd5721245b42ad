//! The memory of experts that do not fit on a device: all of them in host memory, the ones in use in a cache on the device.
//!
//! [`cache`] decides which row is in which slot of the device and which one leaves for another: data structures of the host only.

pub mod cache;

pub use cache::{CacheStatistics, RowCache};
