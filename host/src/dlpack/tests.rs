//! Conversions of tensors that the CPU and the emulator have, both ways.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::bf16;

use super::*;

fn import<T: Element>(tensor: ManagedTensor) -> Result<Tensor<T>> {
    // SAFETY: the tests' tensors are what they say, and nothing else writes them.
    unsafe { tensor.into_tensor(&Device::cpu().default_stream()) }
}

fn some() -> Tensor<f32> {
    Tensor::from_slice(&Device::cpu(), &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]).unwrap()
}

/// A tensor of the tests' own, whose deletions are counted.
fn foreign(values: &mut [f32], shape: &[usize], strides: &[usize]) -> (ManagedTensor, Arc<AtomicUsize>) {
    struct Count(Arc<AtomicUsize>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let deleted = Arc::new(AtomicUsize::new(0));
    let (data, owner) = (values.as_mut_ptr().cast(), Box::new(Count(deleted.clone())));
    (Exported::managed(data, CPU, DType::F32, [shape, strides], 0, owner).unwrap(), deleted)
}

#[test]
fn views_go_there_and_back_in_both_forms() {
    let turned = some().swap_axes(0, 1).unwrap();
    for tensor in [some(), turned.clone(), some().slice(1, 1..2).unwrap(), some().slice(0, 0..0).unwrap()] {
        let versioned = tensor.to_dlpack(None).unwrap();
        assert_eq!((versioned.dtype(), versioned.is_read_only()), (Some(DType::F32), false));
        assert!(format!("{versioned:?}").contains("f32"), "{versioned:?}");
        // SAFETY: each pointer is taken once.
        let again = unsafe { ManagedTensor::from_raw(versioned.into_raw()).unwrap() };
        // SAFETY: as above.
        let again = unsafe { ManagedTensor::from_raw_unversioned(again.into_raw_unversioned()).unwrap() };
        // SAFETY: as above.
        let again = unsafe { ManagedTensor::from_raw(again.into_raw()).unwrap() };
        let back = import::<f32>(again).unwrap();
        assert_eq!((back.shape(), back.to_vec().unwrap()), (tensor.shape(), tensor.to_vec().unwrap()));
    }
    let scalar = Tensor::from_slice(&Device::cpu(), &[bf16::ONE], []).unwrap();
    assert_eq!(import::<bf16>(scalar.to_dlpack(None).unwrap()).unwrap().to_vec().unwrap(), [bf16::ONE]);
}

#[test]
fn memory_of_another_library_is_used_where_it_is_and_given_back_once() {
    let mut values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let (theirs, deleted) = foreign(&mut values, &[2, 2], &[3, 1]);
    let mut x = import::<f32>(theirs).unwrap();
    assert_eq!(x.to_vec().unwrap(), [1.0, 2.0, 4.0, 5.0]);
    x.write_slice(&[7.0; 4]).unwrap();
    let view = x.slice(0, 1..2).unwrap();
    drop(x);
    assert_eq!(deleted.load(Ordering::SeqCst), 0);
    drop(view);
    assert_eq!((deleted.load(Ordering::SeqCst), values), (1, [7.0, 7.0, 3.0, 7.0, 7.0, 6.0]));
}

#[test]
fn one_that_may_only_be_read_is_not_written() {
    let mut values = [1.0f32; 4];
    let (theirs, _) = foreign(&mut values, &[4], &[1]);
    let raw = theirs.into_raw();
    // SAFETY: it is the tests' own.
    let theirs = unsafe {
        (*raw).flags |= u64::from(ffi::DLPACK_FLAG_BITMASK_READ_ONLY);
        ManagedTensor::from_raw(raw).unwrap()
    };
    let mut x = import::<f32>(theirs).unwrap();
    assert!(matches!(x.write_slice(&[0.0; 4]), Err(Error::ReadOnly { .. })));
    assert!(matches!(x.to_dlpack_mut(None), Err(Error::ReadOnly { .. })));
}

#[test]
fn what_is_no_tensor_of_ours_is_refused_by_name_and_given_back() {
    let refused = |change: &dyn Fn(&mut DLManagedTensorVersioned)| {
        let mut values = [1.0f32; 4];
        let (theirs, deleted) = foreign(&mut values, &[2, 2], &[2, 1]);
        let raw = theirs.into_raw();
        // SAFETY: it is the tests' own; what they change is looked at before the elements are.
        let error = unsafe {
            change(&mut *raw);
            ManagedTensor::from_raw(raw).and_then(import::<f32>).unwrap_err().to_string()
        };
        assert_eq!(deleted.load(Ordering::SeqCst), 1, "{error}");
        error
    };
    assert!(refused(&|it| it.version.major = 2).contains("DLPack 1"));
    assert!(refused(&|it| it.dl_tensor.dtype.bits = 64).contains("f64"));
    assert!(refused(&|it| it.dl_tensor.dtype.lanes = 4).contains("4 lanes"));
    assert!(refused(&|it| it.dl_tensor.device.device_type = DLDeviceType::kDLCUDA).contains("cuda:0"));
    assert!(refused(&|it| it.dl_tensor.device.device_type = DLDeviceType::kDLMetal).contains("device 8"));
    assert!(refused(&|it| it.dl_tensor.data = std::ptr::null_mut()).contains("address"));
    assert!(refused(&|it| it.dl_tensor.ndim = -1).contains("one for each axis"));
    // SAFETY: there are two.
    assert!(refused(&|it| unsafe { it.dl_tensor.strides.write(-2) }).contains("reversed"));
    let mut values = [1.0f32; 4];
    let (theirs, _) = foreign(&mut values, &[1, 2], &[2, 1]);
    let raw = theirs.into_raw();
    // SAFETY: it is the tests' own; there are two.
    let one = unsafe {
        (*raw).dl_tensor.strides.write(-7);
        ManagedTensor::from_raw(raw).and_then(import::<f32>)
    };
    assert_eq!(one.unwrap().shape(), [1, 2]);
    // SAFETY: as above.
    assert!(refused(&|it| unsafe { it.dl_tensor.shape.write(-2) }).contains("[-2, 2]"));
    // SAFETY: null is told from a tensor.
    let error = unsafe { ManagedTensor::from_raw(std::ptr::null_mut()) }.unwrap_err();
    assert!(error.to_string().contains("null"), "{error}");
}

#[test]
fn without_strides_there_are_no_gaps() {
    let mut values = [1.0, 2.0, 3.0, 4.0];
    let (theirs, _) = foreign(&mut values, &[2, 2], &[2, 1]);
    let raw = theirs.into_raw();
    // SAFETY: it is the tests' own.
    let theirs = unsafe {
        (*raw).dl_tensor.strides = std::ptr::null_mut();
        (*raw).dl_tensor.shape.write(1);
        (*raw).dl_tensor.byte_offset = 8;
        ManagedTensor::from_raw(raw).unwrap()
    };
    let x = import::<f32>(theirs).unwrap();
    assert_eq!((x.strides(), x.to_vec().unwrap()), (&[2, 1][..], vec![3.0, 4.0]));
}

#[test]
fn devices_say_what_they_share() {
    let emulated = Tensor::<f32>::zeros(&Device::emulator(), [2]).unwrap();
    let error = emulated.to_dlpack(None).unwrap_err();
    assert!(matches!(error, Error::UnsupportedDevice { .. }), "{error}");
    let error = some().to_dlpack_mut(None).unwrap_err();
    assert!(matches!(error, Error::UnsupportedDevice { .. }), "{error}");
    let other = Device::emulator().default_stream();
    let error = some().to_dlpack(Some(&other)).unwrap_err();
    assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
    // The emulator takes the host's memory, too.
    let mut values = [1.0f32, 2.0];
    let (theirs, _) = foreign(&mut values, &[2], &[1]);
    // SAFETY: nothing else uses the memory.
    let x: Tensor<f32> = unsafe { theirs.into_tensor(&other).unwrap() };
    assert_eq!(x.to_vec().unwrap(), [1.0, 2.0]);
}

#[test]
fn every_type_has_one_of_dlpacks_and_back() {
    for (dtype, ..) in DTYPES {
        let of = as_dlpack(dtype);
        assert_eq!(described(of), dtype.to_string());
        assert_eq!(usize::from(of.bits), dtype.size() * 8);
    }
}
