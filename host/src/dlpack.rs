//! Tensors to and from other libraries of the same program by [DLPack](https://dmlc.github.io/dlpack/latest/), without a copy.
//!
//! A [`ManagedTensor`] owns a tensor in DLPack's form, its own or another library's. The streams are as the array API standard says: the producer
//! makes the consumer's stream wait for what it has enqueued.
//!
//! ```
//! use warpsmith::dlpack::ManagedTensor;
//! use warpsmith::{Device, Tensor};
//!
//! let device = Device::cpu();
//! let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
//! let raw = x.to_dlpack(None)?.into_raw(); // for another library
//!
//! // SAFETY: it is the tensor from above, of which nobody else knows.
//! let y: Tensor<f32> = unsafe { ManagedTensor::from_raw(raw)?.into_tensor(&device.default_stream())? };
//! assert_eq!(y.to_vec()?, [1.0, 2.0, 3.0, 4.0]);
//! # Ok::<(), warpsmith::Error>(())
//! ```

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::slice;

pub use dlpack_ffi as ffi;

use ffi::{
    DLDataType, DLDataTypeCode as Code, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned,
    DLPackVersion, DLTensor,
};

use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::stream::Stream;
use crate::tensor::{DType, Element, Tensor, contiguous_strides};

/// What the operations are called in errors.
const EXPORT: &str = "exporting a tensor by DLPack";
const IMPORT: &str = "importing a tensor by DLPack";
/// The oldest version of the form that exported tensors have: all of its fields are used.
const VERSION: DLPackVersion = DLPackVersion { major: ffi::DLPACK_MAJOR_VERSION, minor: 0 };

/// A tensor in DLPack's form. Dropping it gives the tensor back to the library that it is from.
pub struct ManagedTensor(Raw);

/// The two forms that there are.
#[derive(Clone, Copy)]
enum Raw {
    Versioned(NonNull<DLManagedTensorVersioned>),
    /// From before version 1.0, without flags.
    Unversioned(NonNull<DLManagedTensor>),
}

// SAFETY: who makes one from a pointer promises that any thread may delete it; it is not changed before.
unsafe impl Send for ManagedTensor {}
// SAFETY: as above.
unsafe impl Sync for ManagedTensor {}

impl fmt::Debug for ManagedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.tensor().device;
        f.debug_struct("ManagedTensor")
            .field("dtype", &described(self.tensor().dtype))
            .field("shape", &self.numbers(self.tensor().shape))
            .field("device", &(device.device_type.0, device.device_id))
            .finish_non_exhaustive()
    }
}

impl Drop for ManagedTensor {
    fn drop(&mut self) {
        // SAFETY: the tensor is owned, and not used again.
        unsafe {
            match self.0 {
                Raw::Versioned(raw) => {
                    if let Some(deleter) = raw.as_ref().deleter {
                        deleter(raw.as_ptr());
                    }
                }
                Raw::Unversioned(raw) => {
                    if let Some(deleter) = raw.as_ref().deleter {
                        deleter(raw.as_ptr());
                    }
                }
            }
        }
    }
}

/// The error for a null pointer.
fn null() -> Error {
    Error::Argument {
        operation: IMPORT,
        argument: "tensor",
        expected: "a pointer to a tensor".into(),
        actual: "null".into(),
    }
}

impl ManagedTensor {
    /// Takes a tensor from another library: what a Python capsule `dltensor_versioned` points to.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the pointer is null, or the tensor of another major version than 1. The latter is given back.
    ///
    /// # Safety
    ///
    /// The pointer is null or to a valid tensor, which becomes this one's. Its deleter may be called from any thread.
    pub unsafe fn from_raw(raw: *mut DLManagedTensorVersioned) -> Result<Self> {
        let raw = NonNull::new(raw).ok_or_else(null)?;
        // SAFETY: the version and the deleter are where they are in every version.
        let (version, tensor) = unsafe { (raw.as_ref().version, Self(Raw::Versioned(raw))) };
        if version.major != VERSION.major {
            // Its other fields may be elsewhere: this drops it by its deleter.
            drop(tensor);
            return Err(Error::Argument {
                operation: IMPORT,
                argument: "version",
                expected: format!("DLPack {}", VERSION.major),
                actual: format!("{}.{}", version.major, version.minor),
            });
        }
        Ok(tensor)
    }

    /// As [`from_raw`](Self::from_raw), for the form from before version 1.0: what a Python capsule `dltensor` points to.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the pointer is null.
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn from_raw_unversioned(raw: *mut DLManagedTensor) -> Result<Self> {
        NonNull::new(raw).map(|raw| Self(Raw::Unversioned(raw))).ok_or_else(null)
    }

    /// Gives the tensor to another library, which calls its deleter once.
    #[must_use = "the tensor is only freed by its deleter"]
    pub fn into_raw(self) -> *mut DLManagedTensorVersioned {
        match self.0 {
            Raw::Versioned(raw) => {
                std::mem::forget(self);
                raw.as_ptr()
            }
            Raw::Unversioned(_) => self.wrapped(|context, tensor| context.versioned(tensor, 0)).as_ptr(),
        }
    }

    /// As [`into_raw`](Self::into_raw), in the form from before version 1.0. That cannot say that a tensor may only be read.
    #[must_use = "the tensor is only freed by its deleter"]
    pub fn into_raw_unversioned(self) -> *mut DLManagedTensor {
        match self.0 {
            Raw::Unversioned(raw) => {
                std::mem::forget(self);
                raw.as_ptr()
            }
            Raw::Versioned(_) => self.wrapped(Exported::unversioned).as_ptr(),
        }
    }

    /// The same tensor in the other form, which `wrap` makes. Its numbers stay this one's.
    fn wrapped<R>(self, wrap: impl FnOnce(Box<Exported>, DLTensor) -> R) -> R {
        let tensor = *self.tensor();
        wrap(Box::new(Exported { numbers: Vec::new(), owner: Box::new(self) }), tensor)
    }

    fn tensor(&self) -> &DLTensor {
        // SAFETY: it is valid as long as it is owned.
        unsafe {
            match &self.0 {
                Raw::Versioned(raw) => &raw.as_ref().dl_tensor,
                Raw::Unversioned(raw) => &raw.as_ref().dl_tensor,
            }
        }
    }

    /// The shape or the strides; none where the pointer is null.
    fn numbers(&self, of: *const i64) -> Option<&[i64]> {
        let rank = usize::try_from(self.tensor().ndim).unwrap_or(0);
        match rank {
            0 => Some(&[]),
            // SAFETY: there are so many.
            _ => (!of.is_null()).then(|| unsafe { slice::from_raw_parts(of, rank) }),
        }
    }

    /// The elements' type; `None` if it is none of this crate's.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        known(self.tensor().dtype)
    }

    /// Whether the memory may only be read, which the form from before version 1.0 does not say.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        match self.0 {
            // SAFETY: it is valid as long as it is owned.
            Raw::Versioned(raw) => unsafe {
                raw.as_ref().flags & u64::from(ffi::DLPACK_FLAG_BITMASK_READ_ONLY) != 0
            },
            Raw::Unversioned(_) => false,
        }
    }

    /// The tensor as one of this crate's, over the same memory, with `stream` as its home. It goes back to the library that it is from once the work that
    /// used it is done.
    ///
    /// Memory of a GPU becomes a tensor of that GPU, the host's one of the CPU or the emulator. One that [may only be read](Self::is_read_only) is as
    /// that of [`Tensor::from_foreign`], others as that of [`Tensor::from_foreign_mut`].
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the elements are no `T` or a stride is negative, [`Error::DeviceMismatch`] if the memory is not what the stream's
    /// device uses; otherwise as [`Tensor::from_foreign`].
    ///
    /// # Safety
    ///
    /// The tensor is what it says. What the library enqueues that writes the memory, or reads what is written here, is ordered with the stream's work: that is
    /// so if it was asked for the tensor for this stream.
    pub unsafe fn into_tensor<T: Element>(self, stream: &Stream) -> Result<Tensor<T>> {
        let of = *self.tensor();
        if self.dtype() != Some(T::DTYPE) {
            return Err(Error::Argument {
                operation: IMPORT,
                argument: "tensor",
                expected: format!("elements of type {}", T::DTYPE),
                actual: described(of.dtype),
            });
        }
        expect_device(stream.device(), of.device)?;
        let number = |number: &i64| usize::try_from(*number).ok();
        let refuse = |expected: &str, actual: &[i64]| Error::Argument {
            operation: IMPORT,
            argument: "tensor",
            expected: expected.into(),
            actual: format!("{actual:?}"),
        };
        let shape = self.numbers(of.shape).unwrap_or(&[]);
        let lengths: Option<Vec<usize>> = shape.iter().map(number).collect();
        let lengths = lengths
            .filter(|lengths| usize::try_from(of.ndim) == Ok(lengths.len()))
            .ok_or_else(|| refuse("a shape of numbers from 0 on, one for each axis", shape))?;
        let steps: Vec<usize> = match self.numbers(of.strides) {
            // That of an axis of one index says nothing.
            Some(strides) => std::iter::zip(strides, &lengths)
                .map(|(stride, &length)| if length > 1 { number(stride) } else { Some(0) })
                .collect::<Option<_>>()
                .ok_or_else(|| refuse("strides from 0 on; copy a reversed view first", strides))?,
            // Before version 1.2, for one without gaps.
            None => contiguous_strides(&lengths).to_vec(),
        };
        let address = (of.data.expose_provenance() as u64).wrapping_add(of.byte_offset);
        // SAFETY: the caller's promise; the memory is there until the tensor is deleted, as its owner is.
        unsafe {
            match self.is_read_only() {
                true => Tensor::from_foreign(stream, address, lengths, steps, self),
                false => Tensor::from_foreign_mut(stream, address, lengths, steps, self),
            }
        }
    }
}

impl<T: Element> Tensor<T> {
    /// This tensor for another library, which may only read it. On a GPU its memory is shared, and kept until the library deletes the tensor. The
    /// CPU's is copied.
    ///
    /// `consumer` is the stream that the library uses the tensor on. It waits for the tensor's work so far, and the memory is freed when its work is done.
    /// Without one, the library is to use the tensor's [home stream](Self::home_stream).
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedDevice`] on the emulator, whose memory no library knows, [`Error::DeviceMismatch`] if the stream is another device's,
    /// [`Error::SizeLimit`] if an axis is too long for DLPack, [`Error::Driver`] if the driver refuses.
    pub fn to_dlpack(&self, consumer: Option<&Stream>) -> Result<ManagedTensor> {
        if self.device().kind() != DeviceKind::Cpu {
            return self.shared(consumer, ffi::DLPACK_FLAG_BITMASK_READ_ONLY);
        }
        if let Some(consumer) = consumer {
            self.device().expect_same(EXPORT, "stream", consumer.device())?;
        }
        let mut copy = self.to_vec()?;
        let (data, strides) = (copy.as_mut_ptr().cast(), contiguous_strides(self.shape()).to_vec());
        let numbers = [self.shape(), &strides];
        Exported::managed(data, CPU, T::DTYPE, numbers, ffi::DLPACK_FLAG_BITMASK_IS_COPIED, Box::new(copy))
    }

    /// As [`to_dlpack`](Self::to_dlpack), for a library that may write it.
    ///
    /// # Errors
    ///
    /// As there, and [`Error::UnsupportedDevice`] on the CPU, whose memory is not shared; [`Error::ReadOnly`] if it is memory of another library's that may
    /// only be read.
    pub fn to_dlpack_mut(&mut self, consumer: Option<&Stream>) -> Result<ManagedTensor> {
        self.expect_writable(EXPORT, "tensor")?;
        self.shared(consumer, 0)
    }

    fn shared(&self, consumer: Option<&Stream>, flags: u32) -> Result<ManagedTensor> {
        let DeviceKind::Cuda(ordinal) = self.device().kind() else {
            return Err(Error::UnsupportedDevice {
                operation: EXPORT,
                device: self.device().to_string(),
                expected: "a GPU, whose memory other libraries know".into(),
                actual: "memory of its own".into(),
            });
        };
        if let Some(consumer) = consumer {
            self.device().expect_same(EXPORT, "stream", consumer.device())?;
        }
        let home = self.home_stream();
        let consumer = consumer.filter(|consumer| **consumer != home).cloned();
        if let Some(consumer) = &consumer {
            consumer.wait(&home.record()?)?;
        }
        let device = DLDevice {
            device_type: DLDeviceType::kDLCUDA,
            device_id: i32::try_from(ordinal).unwrap_or(i32::MAX),
        };
        let data = std::ptr::with_exposed_provenance_mut(self.device_address() as usize);
        let owner = Box::new(Lent { tensor: self.clone(), consumer });
        Exported::managed(data, device, T::DTYPE, [self.shape(), self.strides()], flags, owner)
    }
}

/// A tensor that another library uses, on this stream if it is not the tensor's home.
struct Lent<T: Element> {
    tensor: Tensor<T>,
    consumer: Option<Stream>,
}

impl<T: Element> Drop for Lent<T> {
    fn drop(&mut self) {
        // The memory is freed in the order of the home stream, so that the library's work has to be done.
        if let Some(consumer) = &self.consumer {
            self.tensor.device().backend().keep(Box::new(self.tensor.clone()), consumer.handle());
        }
    }
}

/// What an exported tensor's numbers are in, and what keeps its memory.
struct Exported {
    /// Lengths, then strides.
    numbers: Vec<i64>,
    #[expect(dead_code, reason = "it is there to be dropped")]
    owner: Box<dyn Any + Send + Sync>,
}

impl Exported {
    /// The form of a tensor at `data` of these lengths and strides. The memory is the `owner`'s.
    fn managed(
        data: *mut c_void,
        device: DLDevice,
        dtype: DType,
        [shape, strides]: [&[usize]; 2],
        flags: u32,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<ManagedTensor> {
        let limit = |quantity, limit: i64, actual: usize| Error::SizeLimit {
            operation: EXPORT,
            operand: "tensor",
            quantity,
            limit: format!("at most {limit}"),
            actual: actual.to_string(),
        };
        let rank = shape.len();
        let ndim = i32::try_from(rank).map_err(|_| limit("number of axes", i32::MAX.into(), rank))?;
        let fits = |&number: &usize| {
            i64::try_from(number).map_err(|_| limit("length or stride of an axis", i64::MAX, number))
        };
        let numbers = shape.iter().chain(strides).map(fits).collect::<Result<Vec<_>>>()?;
        let mut context = Box::new(Self { numbers, owner });
        let start = context.numbers.as_mut_ptr();
        let tensor = DLTensor {
            data,
            device,
            ndim,
            dtype: as_dlpack(dtype),
            shape: start,
            strides: start.wrapping_add(rank),
            byte_offset: 0,
        };
        Ok(ManagedTensor(Raw::Versioned(context.versioned(tensor, flags))))
    }

    fn versioned(self: Box<Self>, dl_tensor: DLTensor, flags: u32) -> NonNull<DLManagedTensorVersioned> {
        unsafe extern "C" fn delete(managed: *mut DLManagedTensorVersioned) {
            // SAFETY: DLPack has it called once, with what it is the deleter of: both boxes are those from below.
            unsafe {
                drop((Box::from_raw((*managed).manager_ctx.cast::<Exported>()), Box::from_raw(managed)))
            };
        }
        NonNull::from(Box::leak(Box::new(DLManagedTensorVersioned {
            version: VERSION,
            manager_ctx: Box::into_raw(self).cast(),
            deleter: Some(delete),
            flags: flags.into(),
            dl_tensor,
        })))
    }

    fn unversioned(self: Box<Self>, dl_tensor: DLTensor) -> NonNull<DLManagedTensor> {
        unsafe extern "C" fn delete(managed: *mut DLManagedTensor) {
            // SAFETY: as in the other form.
            unsafe {
                drop((Box::from_raw((*managed).manager_ctx.cast::<Exported>()), Box::from_raw(managed)))
            };
        }
        NonNull::from(Box::leak(Box::new(DLManagedTensor {
            manager_ctx: Box::into_raw(self).cast(),
            deleter: Some(delete),
            dl_tensor,
        })))
    }
}

/// The host's memory.
const CPU: DLDevice = DLDevice { device_type: DLDeviceType::kDLCPU, device_id: 0 };

/// The types that both sides have, with DLPack's code and bits.
const DTYPES: [(DType, Code, u8); 10] = [
    (DType::F8E4M3, Code::kDLFloat8_e4m3fn, 8),
    (DType::F8E5M2, Code::kDLFloat8_e5m2, 8),
    (DType::F16, Code::kDLFloat, 16),
    (DType::Bf16, Code::kDLBfloat, 16),
    (DType::F32, Code::kDLFloat, 32),
    (DType::F64, Code::kDLFloat, 64),
    (DType::U8, Code::kDLUInt, 8),
    (DType::I32, Code::kDLInt, 32),
    (DType::U32, Code::kDLUInt, 32),
    (DType::I64, Code::kDLInt, 64),
];

/// A type as DLPack has it.
fn as_dlpack(dtype: DType) -> DLDataType {
    let (_, code, bits) = DTYPES[DTYPES.iter().position(|(known, ..)| *known == dtype).unwrap_or(0)];
    DLDataType { code: code.0 as u8, bits, lanes: 1 }
}

/// The type that DLPack means.
fn known(of: DLDataType) -> Option<DType> {
    let is_it =
        |(_, code, bits): &&(DType, Code, u8)| (code.0, *bits, 1) == (of.code.into(), of.bits, of.lanes);
    DTYPES.iter().find(is_it).map(|(dtype, ..)| *dtype)
}

/// A type in words.
fn described(of: DLDataType) -> String {
    match known(of) {
        Some(dtype) => dtype.to_string(),
        None => format!("DLPack's code {}, {} bits, {} lanes", of.code, of.bits, of.lanes),
    }
}

/// The error for memory that `device` does not use, if it is.
fn expect_device(device: &Device, of: DLDevice) -> Result<()> {
    let fits = match device.kind() {
        DeviceKind::Cuda(ordinal) => match of.device_type {
            DLDeviceType::kDLCUDA => usize::try_from(of.device_id) == Ok(ordinal),
            // Every GPU of the system accesses it.
            DLDeviceType::kDLCUDAManaged => true,
            _ => false,
        },
        DeviceKind::Cpu | DeviceKind::Emulator => {
            matches!(of.device_type, DLDeviceType::kDLCPU | DLDeviceType::kDLCUDAHost)
        }
    };
    if fits {
        return Ok(());
    }
    let expected = match device.kind() {
        DeviceKind::Cuda(_) => format!("memory of {device}"),
        DeviceKind::Cpu | DeviceKind::Emulator => format!("memory of the host, which {device} takes"),
    };
    let actual = match of.device_type {
        DLDeviceType::kDLCPU => "memory of the host".into(),
        DLDeviceType::kDLCUDA => format!("memory of cuda:{}", of.device_id),
        DLDeviceType::kDLCUDAHost => "pinned memory of the host".into(),
        DLDeviceType::kDLCUDAManaged => "managed memory".into(),
        DLDeviceType(kind) => format!("memory of DLPack's device {kind}:{}", of.device_id),
    };
    Err(Error::DeviceMismatch { operation: IMPORT, operand: "tensor", expected, actual })
}

#[cfg(test)]
mod tests;
