//! The memories of the machine.

pub(crate) mod global;
pub(crate) mod heap;
pub(crate) mod local;
pub(crate) mod storage;
