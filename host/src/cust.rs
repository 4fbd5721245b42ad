//! Devices, streams and memory to and from the crate [`cust`](https://docs.rs/cust), without a copy.
//!
//! A program with the feature `cust` links to the driver (`-lcuda`), since `cust` does. So it starts only where the driver is installed. It is built where
//! cust finds the driver's library: in `lib64` or `lib64/stubs` of `/usr/local/cuda`, or of a folder that `CUDA_LIBRARY_PATH` names.
//!
//! | of `cust` | here | back |
//! |---|---|---|
//! | `context::Context`, `context::legacy::UnownedContext` | [`Device::from_cust_context`] | [`Device::to_cust_context`] |
//! | `device::Device` | [`Device::from_cust_device`] | [`Device::to_cust_device`] |
//! | `stream::Stream` | [`Stream::from_cust`] | [`Stream::to_cust`], of those that came from there; [`Stream::cust_handle`], of all |
//! | `memory::DeviceBuffer` | [`Tensor::from_cust`], [`Tensor::from_cust_mut`] | |
//! | `memory::DeviceSlice` | [`Tensor::from_cust_slice`], [`Tensor::from_cust_slice_mut`] | [`Tensor::to_cust_slice`], [`Tensor::to_cust_slice_mut`] |
//! | `memory::DevicePointer` | [`Tensor::from_foreign`] and [`Tensor::from_foreign_mut`], of its `as_raw()` | [`Tensor::to_cust_pointer`], [`Tensor::to_cust_pointer_mut`] |
//! | `error::CudaError` | [`Error::Driver`], by `From` and `?` | |
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use cust::memory::{CopyDestination, DeviceBuffer};
//! use cust::stream::StreamFlags;
//! use warpsmith::{Device, Stream, Tensor, ops};
//!
//! # fn main() -> warpsmith::Result<()> {
//! let context = cust::quick_init()?;
//! let device = Device::from_cust_context(&context)?;
//! let theirs = Arc::new(cust::stream::Stream::new(StreamFlags::DEFAULT, None)?);
//! let stream = Stream::from_cust(&device, theirs.clone())?;
//!
//! let x = DeviceBuffer::from_slice(&[1.0f32, 2.0, 3.0, 4.0])?;
//! let y = Arc::new(DeviceBuffer::from_slice(&[0.0f32; 4])?);
//! // SAFETY: nothing else uses the memory until the stream has been waited for.
//! let (x, mut sums) = unsafe {
//!     (Tensor::<f32>::from_cust(&stream, x, [2, 2])?, Tensor::<f32>::from_cust_mut(&stream, y.clone(), [2, 2])?)
//! };
//! ops::linear(&x, &x).on(&stream).run_into(&mut sums)?; // on cust's stream
//! theirs.synchronize()?;
//! let mut host = [0.0f32; 4];
//! y.copy_to(&mut host)?;
//! assert_eq!(host, [5.0, 11.0, 11.0, 25.0]);
//! # Ok(())
//! # }
//! ```
//!
//! # Contexts
//!
//! Both sides have to work in a GPU's primary context. `cust::quick_init` and `cust::context::Context::new` give it. The contexts of `cust::context::legacy`
//! are others, and are refused, with what was made in them.
//!
//! A call here leaves the thread's current context as it was. A call of cust's works in the current one: [`Device::to_cust_context`] makes it the
//! device's.
//!
//! # Order
//!
//! cust copies between host and device on the legacy default stream. A copy to the device may still be under way when the call returns. Streams of cust's wait
//! for that stream, and streams that are made here do not. So a tensor over memory of cust's gets a stream of cust's as its home. For another home, the host
//! waits first, by `cust::context::CurrentContext::synchronize`.
//!
//! Work of both sides on one stream is done in the order of the calls. [`Stream::wait`] orders a stream [from cust](Stream::from_cust) with any other.
//!
//! # Element types
//!
//! cust's memory holds types that are `cust::memory::DeviceCopy`. [`CustElement`] says which of them stands for an element here.

use std::sync::Arc;

use ::cust::CudaFlags;
use ::cust::context::{Context, ContextHandle};
use ::cust::error::CudaError;
use ::cust::memory::{DeviceBuffer, DeviceCopy, DevicePointer, DeviceSlice};
use ::cust::sys::CUstream;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::device::Device;
use crate::device::cuda;
use crate::driver;
use crate::error::{Error, Result};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};

/// What calls of cust's are called in errors.
const CALL: &str = "a call of cust's";

/// An element that is in cust's memory too, as a type of the same size.
///
/// | element | in cust's memory |
/// |---|---|
/// | `f32`, `f64`, `u8`, `i32`, `u32`, `i64` | the same type |
/// | `half::f16`, `half::bf16` | `u16`, their bits |
/// | `float8::F8E4M3`, `float8::F8E5M2` | `u8`, their bits |
///
/// The feature `impl_half` of cust is about the types of `half` 1, which are others than those here, of `half` 2. `DeviceBuffer::cast` makes
/// buffers of bits of such.
pub trait CustElement: Element {
    /// The type in cust's memory.
    type Cust: DeviceCopy + Send + Sync;
}

macro_rules! elements {
    ($($element:ty => $cust:ty;)*) => {
        $(
            impl CustElement for $element {
                type Cust = $cust;
            }
            const _: () = assert!(size_of::<$element>() == size_of::<$cust>());
        )*
    };
}
elements! {
    F8E4M3 => u8;
    F8E5M2 => u8;
    f16 => u16;
    bf16 => u16;
    f32 => f32;
    f64 => f64;
    u8 => u8;
    i32 => i32;
    u32 => u32;
    i64 => i64;
}

/// An error of cust's, with the driver's text where it is one of the driver's.
impl From<CudaError> for Error {
    fn from(error: CudaError) -> Self {
        let code = error as i32;
        match error {
            CudaError::InvalidMemoryAllocation | CudaError::OptixError => Self::Driver {
                operation: CALL,
                code,
                name: format!("{error:?}"),
                message: "an error of cust's own, not the driver's".into(),
            },
            _ => driver::error(CALL, code),
        }
    }
}

impl Device {
    /// The device whose primary context this is: one of `cust::context::Context`, or the unowned handle of one.
    ///
    /// The device keeps the context too, so that either may be dropped first.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] if it is another context than the GPU's primary one, as those that `cust::context::legacy::Context` makes,
    /// [`Error::Argument`] if the handle is of no context, [`Error::Driver`] if the context is gone; otherwise as [`Device::cuda`].
    pub fn from_cust_context(context: &impl ContextHandle) -> Result<Self> {
        cuda::device_of_context("Device::from_cust_context", context.get_inner().cast())
    }

    /// The device that this is to cust. Only a GPU is one.
    ///
    /// # Errors
    ///
    /// As [`Device::cuda`].
    pub fn from_cust_device(device: ::cust::device::Device) -> Result<Self> {
        cuda::device_of_handle("Device::from_cust_device", device.as_raw())
    }

    /// This GPU as a device of cust's, with the driver initialised for cust.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedDevice`] on the CPU and the emulator, [`Error::Driver`] if the driver refuses.
    pub fn to_cust_device(&self) -> Result<::cust::device::Device> {
        let ordinal = cuda::shared_ordinal("Device::to_cust_device", self)?;
        ::cust::init(CudaFlags::empty())?;
        Ok(::cust::device::Device::get_device(u32::try_from(ordinal).unwrap_or(u32::MAX))?)
    }

    /// This GPU's primary context as one of cust's, made the calling thread's current one: what cust does next, it does on this GPU.
    ///
    /// It stays current until another one is made so, even when the value is dropped. Another thread makes it current there by
    /// `cust::context::CurrentContext::set_current`.
    ///
    /// # Errors
    ///
    /// As [`to_cust_device`](Self::to_cust_device).
    pub fn to_cust_context(&self) -> Result<Context> {
        Ok(Context::new(self.to_cust_device()?)?)
    }
}

impl Stream {
    /// A stream of cust's, by itself or shared: what is enqueued here follows what cust has enqueued, and precedes what it enqueues later.
    ///
    /// The stream is kept as long as this one, its clones, and the tensors whose home it is.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedDevice`] on the CPU and the emulator, [`Error::DeviceMismatch`] if the stream is of another GPU or another context than
    /// the primary one.
    pub fn from_cust(device: &Device, stream: impl Into<Arc<::cust::stream::Stream>>) -> Result<Self> {
        const OPERATION: &str = "Stream::from_cust";
        let stream = stream.into();
        let handle = stream.as_inner();
        let owner = cuda::in_context(OPERATION, device, stream)?;
        // SAFETY: the stream is destroyed when nobody shares it any more, and the owner does.
        unsafe { Self::borrow(device, handle.cast(), owner) }.map_err(|error| match error {
            Error::DeviceMismatch { operand, actual, .. } => Error::DeviceMismatch {
                operation: OPERATION,
                operand,
                expected: format!(
                    "{device} in its primary context, as a stream made while `cust::context::Context::new`'s is current"
                ),
                actual,
            },
            other => other,
        })
    }

    /// The stream of cust's that this one [is of](Self::from_cust); `None` for others. `launch!` and cust's copies take it.
    ///
    /// cust makes no stream of a handle. A program that uses a stream on both sides therefore has cust make it.
    #[must_use]
    pub fn to_cust(&self) -> Option<Arc<::cust::stream::Stream>> {
        cuda::kept::<Arc<::cust::stream::Stream>>(self.handle()).cloned()
    }

    /// The driver's handle of a GPU's stream as cust's type, for the functions of `cust::sys`; `None` on other devices. It is valid as long as this stream
    /// or a clone of it is.
    #[must_use]
    pub fn cust_handle(&self) -> Option<CUstream> {
        self.cuda_handle().map(<*mut _>::cast)
    }
}

impl<T: CustElement> Tensor<T> {
    /// A tensor of `shape`, without gaps, over a buffer of cust's, by itself or shared. Operations read it where it is, and refuse to write it.
    ///
    /// `stream` is its home stream, best [one of cust's](Stream::from_cust): see [Order](crate::cust#order). The buffer is kept until the work that used it
    /// is done. Who shares it keeps it longer.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedDevice`] if the stream is not a GPU's, [`Error::Shape`] if the shape has another number of elements than the buffer,
    /// [`Error::DeviceMismatch`] if the buffer is of another GPU or another context than the primary one; otherwise as [`Tensor::from_foreign`].
    ///
    /// # Safety
    ///
    /// The buffer's elements are initialised. What else writes them is ordered with the home stream's work, until the tensor is gone and that
    /// work is done.
    pub unsafe fn from_cust(
        stream: &Stream,
        buffer: impl Into<Arc<DeviceBuffer<T::Cust>>>,
        shape: impl AsRef<[usize]>,
    ) -> Result<Self> {
        let buffer = buffer.into();
        let memory = (buffer.as_device_ptr(), buffer.len());
        // SAFETY: the caller's promise; the buffer is its own owner.
        unsafe { Self::over("Tensor::from_cust", stream, memory, shape.as_ref(), buffer, false) }
    }

    /// As [`from_cust`](Self::from_cust), of a buffer that operations may write.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Safety
    ///
    /// As there, and what else reads the buffer is ordered with the home stream's work, too.
    pub unsafe fn from_cust_mut(
        stream: &Stream,
        buffer: impl Into<Arc<DeviceBuffer<T::Cust>>>,
        shape: impl AsRef<[usize]>,
    ) -> Result<Self> {
        let buffer = buffer.into();
        let memory = (buffer.as_device_ptr(), buffer.len());
        // SAFETY: the caller's promise; the buffer is its own owner.
        unsafe { Self::over("Tensor::from_cust_mut", stream, memory, shape.as_ref(), buffer, true) }
    }

    /// As [`from_cust`](Self::from_cust), over a part of a buffer, or memory of which cust has a pointer and a length. The `owner` keeps it alive.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Safety
    ///
    /// As there, and the memory is valid until the owner is dropped.
    pub unsafe fn from_cust_slice(
        stream: &Stream,
        slice: &DeviceSlice<T::Cust>,
        shape: impl AsRef<[usize]>,
        owner: impl Send + Sync + 'static,
    ) -> Result<Self> {
        let memory = (slice.as_device_ptr(), slice.len());
        // SAFETY: the caller's promise.
        unsafe { Self::over("Tensor::from_cust_slice", stream, memory, shape.as_ref(), owner, false) }
    }

    /// As [`from_cust_slice`](Self::from_cust_slice), of memory that operations may write.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Safety
    ///
    /// As there, and what else reads the memory is ordered with the home stream's work, too.
    pub unsafe fn from_cust_slice_mut(
        stream: &Stream,
        slice: &mut DeviceSlice<T::Cust>,
        shape: impl AsRef<[usize]>,
        owner: impl Send + Sync + 'static,
    ) -> Result<Self> {
        let memory = (slice.as_device_ptr(), slice.len());
        // SAFETY: the caller's promise.
        unsafe { Self::over("Tensor::from_cust_slice_mut", stream, memory, shape.as_ref(), owner, true) }
    }

    unsafe fn over(
        operation: &'static str,
        stream: &Stream,
        (start, length): (DevicePointer<T::Cust>, usize),
        shape: &[usize],
        owner: impl Send + Sync + 'static,
        is_writable: bool,
    ) -> Result<Self> {
        let owner = cuda::in_context(operation, stream.device(), owner)?;
        cuda::expect_primary(operation, stream.device(), start.as_raw())?;
        // SAFETY: the caller's promise; so many elements are there.
        unsafe { Self::adopt_dense(operation, stream, (start.as_raw(), length), shape, owner, is_writable) }
    }

    /// The address of the first element as an argument of a kernel that cust launches to read it. Null for a tensor of no elements.
    ///
    /// Elements are at the tensor's [strides](Self::strides). The pointer is valid as long as the tensor's memory. A kernel on the tensor's [home
    /// stream](Self::home_stream) may still run when the tensor is dropped: the memory is freed in that stream's order. On other streams,
    /// [`Stream::with_operands`] orders a launch with all else.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedDevice`] on the CPU and the emulator.
    pub fn to_cust_pointer(&self) -> Result<DevicePointer<T::Cust>> {
        self.pointer("Tensor::to_cust_pointer")
    }

    /// As [`to_cust_pointer`](Self::to_cust_pointer), for a kernel that writes the tensor.
    ///
    /// # Errors
    ///
    /// As there, and [`Error::ReadOnly`] if it is memory of another library's that may only be read.
    pub fn to_cust_pointer_mut(&mut self) -> Result<DevicePointer<T::Cust>> {
        const OPERATION: &str = "Tensor::to_cust_pointer_mut";
        self.expect_writable(OPERATION, "tensor")?;
        self.pointer(OPERATION)
    }

    fn pointer(&self, operation: &'static str) -> Result<DevicePointer<T::Cust>> {
        cuda::shared_ordinal(operation, self.device())?;
        Ok(DevicePointer::from_raw(self.device_address()))
    }

    /// The elements as a slice of cust's, for its copies.
    ///
    /// cust's copies without a stream are on the legacy default stream, with which no stream that was made here is ordered:
    /// [wait](Stream::synchronize) for the home stream first, if it is such a one.
    ///
    /// # Errors
    ///
    /// As [`to_cust_pointer`](Self::to_cust_pointer), and [`Error::Stride`] if the elements are not in row-major order without gaps.
    ///
    /// # Safety
    ///
    /// The slice is not used after the tensor is gone, and not written. Its uses are ordered with the home stream's work.
    pub unsafe fn to_cust_slice(&self) -> Result<DeviceSlice<T::Cust>> {
        const OPERATION: &str = "Tensor::to_cust_slice";
        let start = self.dense(OPERATION)?;
        // SAFETY: so many elements are there, as long as the caller promises.
        Ok(unsafe { DeviceSlice::from_raw_parts(start, self.len()) })
    }

    /// As [`to_cust_slice`](Self::to_cust_slice), of elements that may be written.
    ///
    /// # Errors
    ///
    /// As there, and [`Error::ReadOnly`] if it is memory of another library's that may only be read.
    ///
    /// # Safety
    ///
    /// As there, but that it may be written.
    pub unsafe fn to_cust_slice_mut(&mut self) -> Result<DeviceSlice<T::Cust>> {
        const OPERATION: &str = "Tensor::to_cust_slice_mut";
        self.expect_writable(OPERATION, "tensor")?;
        let start = self.dense(OPERATION)?;
        // SAFETY: so many elements are there, as long as the caller promises.
        Ok(unsafe { DeviceSlice::from_raw_parts_mut(start, self.len()) })
    }

    /// The address of elements without gaps.
    fn dense(&self, operation: &'static str) -> Result<DevicePointer<T::Cust>> {
        if !self.is_contiguous() {
            return Err(Error::Stride {
                operation,
                operand: "tensor",
                expected: format!("those of shape {:?} without gaps; copy it first", self.shape()),
                actual: self.strides().to_vec(),
            });
        }
        self.pointer(operation)
    }
}
