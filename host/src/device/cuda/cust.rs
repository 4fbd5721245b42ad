//! What is shared with the crate `cust`: contexts, and owners that call the driver when they are dropped.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::context::{self, GpuContext};
use super::{Device, gpus, initialise, open};
use crate::device::DeviceKind;
use crate::device::backend::{StreamHandle, foreign_handle};
use crate::driver::sys::{self as cuda, CUcontext, CUdevice};
use crate::error::{Error, Result};

/// What is expected in the place of another context, and where it is from.
const PRIMARY: &str = "its primary context, which `cust::context::Context::new` gives";

/// The error for an operand of another context than the primary one.
fn other_context(operation: &'static str, operand: &'static str, device: DeviceKind) -> Error {
    Error::DeviceMismatch {
        operation,
        operand,
        expected: format!("{device} in {PRIMARY}"),
        actual: format!("{device} in a context of its own"),
    }
}

/// The number of a GPU, by the driver's handle.
fn ordinal_of(operation: &'static str, device: CUdevice) -> Result<usize> {
    initialise()?;
    let count = gpus(operation)?;
    let is_it = |number: i32| {
        let mut handle = 0;
        // SAFETY: the handle is written to a local variable.
        unsafe { cuda::cuDeviceGet(&raw mut handle, number) }.is_ok() && handle == device
    };
    (0..count).find(|&ordinal| i32::try_from(ordinal).is_ok_and(is_it)).ok_or_else(|| Error::NoSuchDevice {
        requested: format!("the GPU of the driver's handle {device}"),
        available: format!("one of the driver's {count}"),
    })
}

/// The device of a GPU, by the driver's handle.
pub(crate) fn device_of_handle(operation: &'static str, device: CUdevice) -> Result<Device> {
    open(ordinal_of(operation, device)?)
}

/// The device that the context is the primary one of.
pub(crate) fn device_of_context(operation: &'static str, raw: *mut c_void) -> Result<Device> {
    let raw: CUcontext = raw.cast();
    if raw.is_null() {
        return Err(Error::Argument {
            operation,
            argument: "context",
            expected: format!("a GPU's context: {PRIMARY}"),
            actual: "none".into(),
        });
    }
    initialise()?;
    let handle = context::gpu_of(raw)?;
    let ordinal = ordinal_of(operation, handle)?;
    // Before the device is opened, which takes memory and a stream in the primary context.
    if !GpuContext::new(handle)?.is(raw) {
        return Err(other_context(operation, "context", DeviceKind::Cuda(ordinal)));
    }
    open(ordinal)
}

/// The number of a GPU whose memory and streams another library of the driver's can use.
pub(crate) fn shared_ordinal(operation: &'static str, device: &Device) -> Result<usize> {
    match device.kind() {
        DeviceKind::Cuda(ordinal) => Ok(ordinal),
        DeviceKind::Emulator | DeviceKind::Cpu => Err(Error::UnsupportedDevice {
            operation,
            device: device.to_string(),
            expected: "a GPU, which `cust` knows".into(),
            actual: "memory and streams of its own".into(),
        }),
    }
}

/// The error for memory that the device's streams cannot use, if the driver knows that it is of another context.
pub(crate) fn expect_primary(operation: &'static str, device: &Device, address: u64) -> Result<()> {
    let context = context_of(operation, device)?;
    let mut of: CUcontext = ptr::null_mut();
    let attribute = cuda::CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT;
    let known = {
        let _bound = context.bind()?;
        // SAFETY: the attribute is a handle, which is written to a local variable; any address may be asked for.
        unsafe { cuda::cuPointerGetAttribute((&raw mut of).cast(), attribute, address) }
    };
    // Memory of the driver's pools is of no context.
    if known.is_ok() && !of.is_null() && !context.is(of) {
        return Err(other_context(operation, "memory", device.kind()));
    }
    Ok(())
}

/// The primary context of a GPU.
fn context_of<'a>(operation: &'static str, device: &'a Device) -> Result<&'a Arc<GpuContext>> {
    shared_ordinal(operation, device)?;
    match &*device.0.default_stream {
        StreamHandle::Cuda(stream) => Ok(stream.context()),
        StreamHandle::Immediate => Err(foreign_handle(operation, "stream", device.kind())),
    }
}

/// Something whose drop calls the driver, by way of another library: the GPU's primary context is there then, and the calling thread's
/// current one.
struct InContext<T> {
    /// Until it is dropped.
    value: Option<T>,
    context: Arc<GpuContext>,
}

impl<T> Drop for InContext<T> {
    fn drop(&mut self) {
        // An error has nowhere to go. The driver then refuses what the value asks it for, too.
        let _bound = self.context.bind();
        self.value = None;
    }
}

/// The value as an owner that is dropped in the context of the device.
pub(crate) fn in_context<T: Send + Sync + 'static>(
    operation: &'static str,
    device: &Device,
    value: T,
) -> Result<impl Send + Sync + 'static> {
    Ok(InContext { value: Some(value), context: context_of(operation, device)?.clone() })
}

/// What was [kept](in_context) as a borrowed stream's owner, if it is a `T`.
pub(crate) fn kept<T: Send + Sync + 'static>(stream: &StreamHandle) -> Option<&T> {
    match stream {
        StreamHandle::Cuda(stream) => stream.owner::<InContext<T>>()?.value.as_ref(),
        StreamHandle::Immediate => None,
    }
}
