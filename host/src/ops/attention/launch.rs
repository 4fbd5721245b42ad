//! Attention on a GPU or in the emulator.

use super::check::Checked;
use super::{AttentionInput, OPERATION};
use crate::error::{Error, Result};
use crate::ops::Implementation;
use crate::tensor::Tensor;

/// Which kernels [`launch`] would launch.
pub(super) fn implementation<T: AttentionInput>(checked: &Checked<'_, '_, T>) -> Result<Implementation> {
    Err(no_kernel(checked))
}

/// Launches the kernels that compute `y` and, where it is there, `lse`. The results have elements.
pub(super) fn launch<T: AttentionInput>(
    checked: &Checked<'_, '_, T>,
    _y: &mut Tensor<T>,
    _lse: Option<&mut Tensor<f32>>,
) -> Result<()> {
    Err(no_kernel(checked))
}

/// The error where no kernel of the device can compute the attention.
fn no_kernel<T: AttentionInput>(checked: &Checked<'_, '_, T>) -> Error {
    let device = checked.stream.device();
    let (major, minor) = device.properties().compute_capability;
    Error::UnsupportedDevice {
        operation: OPERATION,
        device: device.to_string(),
        expected: format!("the CPU: there are no kernels for {}", T::DTYPE),
        actual: format!("compute capability {major}.{minor}"),
    }
}
