//! Attention on a GPU or in the emulator.

mod hopper;

pub(super) use hopper::Kernels;

use super::check::Checked;
use super::{AttentionInput, OPERATION};
use crate::error::{Error, Result};
use crate::ops::Implementation;
use crate::tensor::Tensor;

/// Which kernels [`launch`] would launch.
pub(super) fn implementation<T: AttentionInput>(checked: &Checked<'_, '_, T>) -> Result<Implementation> {
    let plan = hopper::Plan::new(checked).ok_or_else(|| no_kernel(checked))?;
    Ok(plan.implementation(checked))
}

/// Launches the kernels that compute `y` and, where it is there, `lse`. The results have elements.
pub(super) fn launch<T: AttentionInput>(
    checked: &Checked<'_, '_, T>,
    y: &mut Tensor<T>,
    lse: Option<&mut Tensor<f32>>,
) -> Result<()> {
    let plan = hopper::Plan::new(checked).ok_or_else(|| no_kernel(checked))?;
    plan.launch(checked, y, lse)
}

/// The error where no kernel of the device can compute the attention.
fn no_kernel<T: AttentionInput>(checked: &Checked<'_, '_, T>) -> Error {
    let device = checked.stream.device();
    let (major, minor) = device.properties().compute_capability;
    let problem = &checked.problem;
    Error::UnsupportedDevice {
        operation: OPERATION,
        device: device.to_string(),
        expected: format!(
            "compute capability 9.0, and f16 or bf16 with at most {MAX} columns of q and of v, and less than 2^30 rows and keys",
            MAX = hopper::MAX_COLUMNS
        ),
        actual: format!(
            "compute capability {major}.{minor}, {} with {} and {} columns, {} rows and {} keys",
            T::DTYPE,
            problem.width,
            problem.value_width,
            problem.rows,
            problem.keys
        ),
    }
}
