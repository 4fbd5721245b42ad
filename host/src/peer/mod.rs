//! The memory of experts that do not fit on a device: all of them in host memory, the ones in use in a cache on the device.
//!
//! [`cache`] decides which row is in which slot of the device and which one leaves for another: data structures of the host only. [`rows`] is the
//! memory that it decides about. Both know bytes and numbers of rows, not experts.

pub mod cache;
mod options;
pub mod rows;

pub use cache::{CacheStatistics, RowCache};
pub use options::{CAPACITY_VARIABLE, CacheOptions, DEFAULT_CAPACITY_MIB, ExpertMemory, MANAGED_VARIABLE};
pub use rows::CachedRows;
