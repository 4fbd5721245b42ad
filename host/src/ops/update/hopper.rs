//! The launches of the kernels that compute a linear operation with its updates on Hopper.
//!
//! There are none yet: [`choose`] finds no kernel for any problem.

use half::{bf16, f16};

use super::operands::{BoltOn, Problem};
use crate::device::Device;
use crate::error::Result;
use crate::ops::linear::select::Limits;
use crate::stream::Stream;
use crate::tensor::Element;

/// The kernels of an element type.
pub trait Kernels: Element {}

impl Kernels for f16 {}
impl Kernels for bf16 {}
impl Kernels for f32 {}

/// A kernel and its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Blocks of the launch.
    pub(super) blocks: u32,
}

/// The kernel that computes a linear operation with updates on Hopper; `None` if none can.
pub(super) fn choose(_problem: &Problem, _limits: &Limits) -> Option<Choice> {
    None
}

/// The entry point of a choice.
pub(super) fn kernel<T: Kernels>(_choice: Choice) -> &'static str {
    ""
}

/// Launches a choice for `operands`, for which it was made.
///
/// # Safety
///
/// The operands are valid for what the kernel does with them, and live until the stream's work is done.
pub(super) unsafe fn launch<T: Kernels>(
    _device: &Device,
    _stream: &Stream,
    _choice: Choice,
    _operands: &BoltOn<'_, T>,
) -> Result<()> {
    Ok(())
}
