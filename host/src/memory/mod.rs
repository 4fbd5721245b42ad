//! Memory: buffers on a device, and host memory that a device copies from and to without waiting.

mod buffer;
mod host;
mod mapped;
mod pinned;

pub(crate) use buffer::{Buffer, Owner};
pub(crate) use host::{HostBytes, HostMemory, zeros};
pub(crate) use mapped::MappedMemory;
pub use pinned::{PinnedBuffer, Transfer};
