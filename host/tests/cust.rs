//! Conversions from and to the crate `cust`.
//!
//! They are about handles and addresses, so a driver that does nothing will do: `cargo xtask cust` runs this with the one of `calls/driver.rs`, which says
//! that there is a GPU.

use std::sync::Arc;

use cust::context::legacy::{self, ContextFlags};
use cust::context::{Context, CurrentContext};
use cust::error::CudaError;
use cust::memory::{CopyDestination, DeviceBuffer, DevicePointer, DeviceSlice};
use cust::stream::StreamFlags;
use float8::F8E4M3;
use half::{bf16, f16};
use warpsmith::cust::CustElement;
use warpsmith::{Device, DeviceKind, Error, Result, Stream, Tensor};

type Theirs = cust::stream::Stream;

/// A GPU's context of cust's, its device, and a stream of both.
fn gpu() -> Result<(Context, Device, Arc<Theirs>, Stream)> {
    let context = cust::quick_init()?;
    let device = Device::from_cust_context(&context)?;
    let theirs = Arc::new(Theirs::new(StreamFlags::DEFAULT, None)?);
    let stream = Stream::from_cust(&device, theirs.clone())?;
    Ok((context, device, theirs, stream))
}

/// A context that is not the primary one, current until the primary one is made so again.
fn other_context(primary: &Device) -> Result<legacy::Context> {
    Ok(legacy::Context::create_and_push(ContextFlags::SCHED_AUTO, primary.to_cust_device()?)?)
}

#[test]
fn a_primary_context_and_its_device_are_one_gpu_to_both() -> Result<()> {
    let (context, device, ..) = gpu()?;
    assert_eq!(device.kind(), DeviceKind::Cuda(0));
    assert_eq!(device.to_cust_device()?.as_raw(), 0);
    assert_eq!(Device::from_cust_device(device.to_cust_device()?)?, device);
    assert_eq!(Device::from_cust_context(&legacy::CurrentContext::get_current()?)?, device);
    let again = device.to_cust_context()?;
    assert_eq!(again.as_raw(), context.as_raw());
    drop(context);
    assert_eq!(Device::from_cust_context(&again)?, device);
    Ok(())
}

#[test]
fn other_contexts_are_refused_with_all_that_is_theirs() -> Result<()> {
    let (context, device, _, stream) = gpu()?;
    let other = other_context(&device)?;
    let in_other = (Theirs::new(StreamFlags::DEFAULT, None)?, DeviceBuffer::from_slice(&[1.0f32; 6])?);

    let refused = Device::from_cust_context(&other).unwrap_err();
    assert!(matches!(refused, Error::DeviceMismatch { operand: "context", .. }), "{refused}");
    assert!(refused.to_string().contains("cust::context::Context::new"), "{refused}");
    // The thread's context is as it was.
    assert!(Device::from_cust_context(&legacy::CurrentContext::get_current()?).is_err());

    let refused = Stream::from_cust(&device, in_other.0).unwrap_err();
    assert!(
        matches!(refused, Error::DeviceMismatch { operation: "Stream::from_cust", operand: "stream", .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains("cust::context::Context::new"), "{refused}");

    // SAFETY: it is refused.
    let refused = unsafe { Tensor::<f32>::from_cust(&stream, in_other.1, [2, 3]) }.unwrap_err();
    assert!(
        matches!(refused, Error::DeviceMismatch { operation: "Tensor::from_cust", operand: "memory", .. }),
        "{refused}"
    );
    CurrentContext::set_current(&context)?;
    Ok(())
}

#[test]
fn no_context_is_none_of_a_gpu() -> Result<()> {
    cust::init(cust::CudaFlags::empty())?;
    // A thread begins without one.
    let refused = std::thread::spawn(|| {
        let none = legacy::CurrentContext::get_current()?;
        Device::from_cust_context(&none)
    });
    let refused = refused.join().expect("it does not panic").unwrap_err();
    assert!(matches!(refused, Error::Argument { argument: "context", .. }), "{refused}");
    Ok(())
}

#[test]
fn streams_of_custs_come_back_and_are_kept() -> Result<()> {
    let (_context, device, theirs, stream) = gpu()?;
    assert_eq!(stream.cust_handle(), Some(theirs.as_inner()));
    let clone = stream.clone();
    assert!(Arc::ptr_eq(&clone.to_cust().expect("it is one of cust's"), &theirs));
    assert_eq!(Arc::strong_count(&theirs), 2);
    let tensor = Tensor::<f32>::zeros_on(&stream, [2])?;
    drop((stream, clone));
    assert!(tensor.home_stream().to_cust().is_some_and(|home| Arc::ptr_eq(&home, &theirs)));
    drop(tensor);
    assert_eq!(Arc::strong_count(&theirs), 1);

    let ours = device.new_stream()?;
    assert!(ours.to_cust().is_none() && ours.cust_handle().is_some());
    assert!(Device::cpu().default_stream().cust_handle().is_none());
    Ok(())
}

#[test]
fn buffers_and_their_parts_are_tensors_where_they_are() -> Result<()> {
    let (_context, device, _, stream) = gpu()?;
    let buffer = Arc::new(DeviceBuffer::from_slice(&[1u16; 12])?);
    let start = buffer.as_device_ptr().as_raw();
    // SAFETY: the stand-in for the driver accesses no memory, and nothing is run on a GPU.
    let (read, mut written, part, copy) = unsafe {
        (
            Tensor::<bf16>::from_cust(&stream, buffer.clone(), [3, 4])?,
            Tensor::<f16>::from_cust_mut(&stream, buffer.clone(), [12])?,
            Tensor::<bf16>::from_cust_slice(&stream, &buffer.index(4..8), [2, 2], buffer.clone())?,
            Tensor::<f16>::from_cust_slice_mut(&stream, &mut buffer.index(8..), [4], buffer.clone())?,
        )
    };
    assert_eq!((read.shape(), read.strides(), read.device_address()), (&[3, 4][..], &[4, 1][..], start));
    assert_eq!((part.device_address(), copy.device_address()), (start + 8, start + 16));
    assert!(read.shares_memory(&written) && !part.shares_memory(&copy));

    assert_eq!(read.to_cust_pointer()?.as_raw(), start);
    assert_eq!(written.to_cust_pointer_mut()?.as_raw(), start);
    // SAFETY: the slices are not used after the tensors are gone.
    let (slice, slice_mut) = unsafe { (read.to_cust_slice()?, written.to_cust_slice_mut()?) };
    assert_eq!((slice.len(), slice.as_device_ptr().as_raw()), (12, start));
    assert_eq!(slice_mut.len(), 12);

    assert_eq!(Arc::strong_count(&buffer), 5);
    drop((read, written, part, copy));
    device.synchronize()?;
    assert_eq!(Arc::strong_count(&buffer), 1);
    buffer.copy_to(&mut [0u16; 12])?;
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let (_context, _, _, stream) = gpu()?;
    let buffer = Arc::new(DeviceBuffer::from_slice(&[1.0f32; 12])?);
    // SAFETY: they are refused.
    let refused = |shape: &[usize]| unsafe { Tensor::<f32>::from_cust(&stream, buffer.clone(), shape) };
    for shape in [&[11][..], &[3, 5], &[0], &[]] {
        let error = refused(shape).unwrap_err();
        assert!(matches!(error, Error::Shape { operand: "memory", .. }), "{error}");
        assert!(error.to_string().contains("[12]"), "{error}");
    }
    let error = refused(&[usize::MAX, 2]).unwrap_err();
    assert!(matches!(error, Error::SizeLimit { .. }), "{error}");

    // SAFETY: it is refused.
    let null = unsafe {
        let slice = DeviceSlice::from_raw_parts(DevicePointer::<i64>::null(), 3);
        Tensor::<i64>::from_cust_slice(&stream, &slice, [3], ())
    };
    assert!(matches!(null, Err(Error::Argument { argument: "address", .. })), "{null:?}");

    // SAFETY: nothing is accessed.
    let mut read_only = unsafe { Tensor::<f32>::from_cust(&stream, buffer.clone(), [3, 4])? };
    let error = read_only.to_cust_pointer_mut().unwrap_err();
    assert!(matches!(error, Error::ReadOnly { operand: "tensor", .. }), "{error}");
    // SAFETY: it is refused.
    let error = unsafe { read_only.to_cust_slice_mut() }.map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
    // SAFETY: it is refused.
    let error = unsafe { read_only.swap_axes(0, 1)?.to_cust_slice() }.map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Stride { operand: "tensor", .. }), "{error}");
    Ok(())
}

#[test]
fn memory_of_nothing_is_a_tensor_of_nothing() -> Result<()> {
    let (_context, _, _, stream) = gpu()?;
    // SAFETY: nothing is accessed.
    let tensor =
        unsafe { Tensor::<F8E4M3>::from_cust(&stream, DeviceBuffer::from_slice(&[0u8; 0])?, [0, 7])? };
    assert!(tensor.is_empty() && tensor.to_cust_pointer()?.is_null());
    Ok(())
}

fn unsupported<T>(result: Result<T>, operation: &str) {
    match result.map(|_| ()) {
        Err(Error::UnsupportedDevice { operation: refused, expected, .. }) => {
            assert_eq!(refused, operation);
            assert!(expected.contains("GPU"), "{expected}");
        }
        other => panic!("{operation}: {other:?}"),
    }
}

#[test]
fn devices_that_cust_does_not_know_are_refused() -> Result<()> {
    let (_context, _, theirs, _) = gpu()?;
    for device in [Device::cpu(), Device::emulator()] {
        unsupported(device.to_cust_device(), "Device::to_cust_device");
        unsupported(device.to_cust_context(), "Device::to_cust_device");
        unsupported(Stream::from_cust(&device, theirs.clone()), "Stream::from_cust");
        assert!(device.default_stream().to_cust().is_none());
        let buffer = DeviceBuffer::from_slice(&[1u32; 2])?;
        // SAFETY: it is refused.
        let tensor = unsafe { Tensor::<u32>::from_cust(&device.default_stream(), buffer, [2]) };
        unsupported(tensor, "Tensor::from_cust");
        let mut tensor = Tensor::<u32>::zeros(&device, [2])?;
        unsupported(tensor.to_cust_pointer(), "Tensor::to_cust_pointer");
        unsupported(tensor.to_cust_pointer_mut(), "Tensor::to_cust_pointer_mut");
        // SAFETY: they are refused.
        unsafe {
            unsupported(tensor.to_cust_slice(), "Tensor::to_cust_slice");
            unsupported(tensor.to_cust_slice_mut(), "Tensor::to_cust_slice_mut");
        }
    }
    Ok(())
}

#[test]
fn errors_of_custs_keep_their_code_and_say_what_they_are() {
    let Error::Driver { code, name, message, .. } = Error::from(CudaError::NoDevice) else {
        panic!("another variant")
    };
    assert_eq!(code, 100);
    assert!(!name.is_empty() && !message.is_empty());
    let own = Error::from(CudaError::InvalidMemoryAllocation).to_string();
    assert!(own.contains("InvalidMemoryAllocation") && own.contains("cust's own"), "{own}");
}

#[test]
fn types_in_custs_memory_are_as_large_as_elements() {
    fn check<T: CustElement<Cust = U>, U>() {
        assert_eq!(size_of::<T>(), size_of::<U>());
    }
    check::<f32, f32>();
    check::<f64, f64>();
    check::<u8, u8>();
    check::<i32, i32>();
    check::<u32, u32>();
    check::<i64, i64>();
    check::<f16, u16>();
    check::<bf16, u16>();
    check::<F8E4M3, u8>();
    check::<float8::F8E5M2, u8>();
}
