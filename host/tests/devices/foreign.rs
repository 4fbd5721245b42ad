//! Memory and streams of other libraries.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::{CudaContext, CudaStream as OtherStream, DevicePtr, DevicePtrMut};
use libtest_mimic::Failed;
use warpsmith::ops;
use warpsmith::{Device, DeviceKind, Element, Error, Stream, Tensor};

use crate::{Case, On, cases};

pub(crate) const CASES: &[(&str, On, Case)] = &cases!(On::All =>
    foreign_memory_is_used_where_it_is,
    memory_that_may_only_be_read_is_not_written,
    the_owner_is_dropped_after_the_last_view,
    tensors_of_the_same_foreign_memory_overlap,
    what_cannot_be_a_tensor_is_refused,
);

pub(crate) const CUDA_CASES: &[(&str, On, Case)] = &cases!(On::Cuda =>
    owners_dropped_right_after_the_call_outlive_the_work,
    foreign_memory_outlives_a_graph_that_uses_it,
    operations_are_recorded_by_another_librarys_capture,
    owners_dropped_during_a_capture_wait_for_the_work_before_it,
    exported_tensors_outlive_the_work_of_their_users,
    default_streams_are_borrowed_as_they_are,
    tensors_of_a_threads_stream_are_dropped_by_another_without_waiting,
    ends_of_allocations_and_other_contexts_are_known,
    the_threads_context_is_restored,
);

/// Memory that is not a tensor's where that can be told: the host's on devices that have no other.
struct Memory<T: Element> {
    host: Option<Box<[T]>>,
    device: Option<Tensor<T>>,
}

impl<T: Element> Memory<T> {
    fn new(device: &Device, values: Vec<T>) -> Result<Self, Error> {
        match device.kind() {
            DeviceKind::Cuda(_) => {
                let length = values.len();
                Ok(Self { host: None, device: Some(Tensor::from_slice(device, &values, [length])?) })
            }
            _ => Ok(Self { host: Some(values.into()), device: None }),
        }
    }

    fn address(&mut self) -> u64 {
        match (&mut self.host, &self.device) {
            (Some(host), _) => host.as_mut_ptr().expose_provenance() as u64,
            (None, device) => device.as_ref().map_or(0, Tensor::device_address),
        }
    }

    fn values(&self) -> Vec<T> {
        match (&self.host, &self.device) {
            (Some(host), _) => host.to_vec(),
            (None, device) => device.as_ref().unwrap().to_vec().unwrap(),
        }
    }
}

fn foreign_memory_is_used_where_it_is(device: &Device) -> Result<(), Failed> {
    let stream = device.new_stream()?;
    // Rows of three among four, and of two among five.
    let mut x = Memory::new(device, vec![1.0f32, 2.0, 3.0, -1.0, 4.0, 5.0, 6.0, -1.0])?;
    let mut w = Memory::new(device, vec![1.0f32, 0.0, 1.0, 0.0, 2.0, 0.0])?;
    let mut y = Memory::new(device, vec![9.0f32; 10])?;
    device.synchronize()?;
    {
        // SAFETY: the memory outlives the tensors, and nothing else uses it until the stream is waited for.
        let (x, w, mut y) = unsafe {
            (
                Tensor::<f32>::from_foreign(&stream, x.address(), [2, 3], [4, 1], ())?,
                Tensor::<f32>::from_foreign(&stream, w.address(), [2, 3], [3, 1], ())?,
                Tensor::<f32>::from_foreign_mut(&stream, y.address(), [2, 2], [5, 1], ())?,
            )
        };
        assert_eq!((x.shape(), x.strides(), x.home_stream()), (&[2, 3][..], &[4, 1][..], stream.clone()));
        assert_eq!(x.to_vec()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        ops::linear(&x, &w).run_into(&mut y)?;
        assert_eq!(y.to_vec()?, [4.0, 4.0, 10.0, 10.0]);
        // Its own results are as always.
        assert_eq!(ops::linear(&x, &w).run()?.to_vec()?, [4.0, 4.0, 10.0, 10.0]);
        y.slice(1, 0..1)?.write_slice(&[7.0, 8.0])?;
    }
    stream.synchronize()?;
    assert_eq!(y.values(), [7.0, 4.0, 9.0, 9.0, 9.0, 8.0, 10.0, 9.0, 9.0, 9.0]);
    assert_eq!(x.values(), [1.0, 2.0, 3.0, -1.0, 4.0, 5.0, 6.0, -1.0]);
    Ok(())
}

fn memory_that_may_only_be_read_is_not_written(device: &Device) -> Result<(), Failed> {
    let mut memory = Memory::new(device, vec![1.0f32; 4])?;
    let x = Tensor::from_slice(device, &[1.0f32; 4], [2, 2])?;
    // SAFETY: the memory outlives the tensor, which nothing writes.
    let mut y = unsafe {
        Tensor::<f32>::from_foreign(&device.default_stream(), memory.address(), [2, 2], [2, 1], ())?
    };
    let refused = ops::linear(&x, &x).run_into(&mut y);
    assert!(matches!(refused, Err(Error::ReadOnly { operand: "y", .. })), "{refused:?}");
    let refused = y.write_slice(&[0.0; 4]);
    assert!(matches!(refused, Err(Error::ReadOnly { operand: "tensor", .. })), "{refused:?}");
    let refused = y.copy_from(&x);
    assert!(matches!(refused, Err(Error::ReadOnly { operand: "destination", .. })), "{refused:?}");
    assert_eq!(y.to_vec()?, [1.0; 4]);
    Ok(())
}

/// Counts how often it is dropped, and owns whatever else.
struct Owner(Arc<AtomicUsize>, Option<Box<dyn Any + Send + Sync>>);

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.1.take());
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn the_owner_is_dropped_after_the_last_view(device: &Device) -> Result<(), Failed> {
    let drops = Arc::new(AtomicUsize::new(0));
    let mut memory = Memory::new(device, vec![1.0f32, 2.0, 3.0])?;
    device.synchronize()?;
    let owner = Owner(drops.clone(), None);
    // SAFETY: the memory outlives the tensor.
    let x =
        unsafe { Tensor::<f32>::from_foreign(&device.default_stream(), memory.address(), [3], [1], owner)? };
    let view = x.slice(0, 1..3)?;
    drop(x);
    device.synchronize()?;
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    assert_eq!(view.to_vec()?, [2.0, 3.0]);
    drop(view);
    device.synchronize()?;
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    // So is that of a tensor that there was not to be, and of one of nothing.
    let owner = Owner(drops.clone(), None);
    // SAFETY: it is refused.
    assert!(unsafe { Tensor::<f32>::from_foreign(&device.default_stream(), 2, [3], [1], owner) }.is_err());
    assert_eq!(drops.load(Ordering::SeqCst), 2);
    let owner = Owner(drops.clone(), None);
    // SAFETY: nothing is read.
    let nothing = unsafe { Tensor::<f32>::from_foreign(&device.default_stream(), 0, [0, 3], [3, 1], owner)? };
    assert!(nothing.to_vec()?.is_empty());
    drop(nothing);
    device.synchronize()?;
    assert_eq!(drops.load(Ordering::SeqCst), 3);
    Ok(())
}

fn tensors_of_the_same_foreign_memory_overlap(device: &Device) -> Result<(), Failed> {
    let mut memory = Memory::new(device, vec![1.0f32; 8])?;
    let stream = device.default_stream();
    let address = memory.address();
    // SAFETY: the memory outlives the tensors, whose uses this thread orders.
    let (x, mut same, mut behind) = unsafe {
        (
            Tensor::<f32>::from_foreign(&stream, address, [2, 2], [2, 1], ())?,
            Tensor::<f32>::from_foreign_mut(&stream, address + 8, [2, 2], [2, 1], ())?,
            Tensor::<f32>::from_foreign_mut(&stream, address + 16, [2, 2], [2, 1], ())?,
        )
    };
    assert!(x.shares_memory(&same) && !x.shares_memory(&behind) && same.shares_memory(&behind));
    let refused = ops::linear(&x, &x).run_into(&mut same);
    assert!(matches!(refused, Err(Error::Overlap { operand: "y", .. })), "{refused:?}");
    ops::linear(&x, &x).run_into(&mut behind)?;
    assert_eq!(behind.to_vec()?, [2.0; 4]);
    assert!(!x.shares_memory(&Tensor::<f32>::zeros(device, [4])?));
    Ok(())
}

fn what_cannot_be_a_tensor_is_refused(device: &Device) -> Result<(), Failed> {
    let stream = device.default_stream();
    // SAFETY: all are refused.
    let adopt = |address: u64, shape: &[usize], strides: &[usize]| unsafe {
        Tensor::<f32>::from_foreign(&stream, address, shape, strides, ()).unwrap_err()
    };
    let expected = |error: Error, text: &str| assert!(error.to_string().contains(text), "{error}");
    expected(adopt(0, &[1], &[1]), "address is 0x0");
    expected(adopt(0x1002, &[1], &[1]), "a multiple of 4");
    expected(adopt(0x1000, &[2, 3], &[1]), "2 strides");
    expected(adopt(0x1000, &[2, 3], &[0, 1]), "copy a broadcast view");
    expected(adopt(0x1000, &[2, 3], &[2, 1]), "share an element");
    expected(adopt(0x1000, &[2, 3], &[usize::MAX / 2, 1]), "span");
    expected(adopt(0x1000, &[usize::MAX, 3], &[3, 1]), "shape");
    // An axis of length 1 has any stride.
    let mut memory = Memory::new(device, vec![1.0f32; 3])?;
    // SAFETY: the memory outlives the tensor.
    let x = unsafe { Tensor::<f32>::from_foreign(&stream, memory.address(), [1, 3], [0, 1], ())? };
    assert_eq!(x.to_vec()?, [1.0; 3]);
    Ok(())
}

/// A stream of another library's on the device's GPU, and the same one borrowed.
fn borrowed(device: &Device) -> Result<(Arc<OtherStream>, Stream), Failed> {
    let DeviceKind::Cuda(ordinal) = device.kind() else { return Err("not a GPU".into()) };
    let other = CudaContext::new(ordinal)?.new_stream()?;
    // SAFETY: the owner keeps the stream.
    let stream = unsafe { Stream::borrow(device, other.cu_stream().cast(), other.clone())? };
    Ok((other, stream))
}

/// Memory of another library's with `values`, which it fills on its stream, as a tensor that owns it.
fn tensor(
    (other, stream): (&Arc<OtherStream>, &Stream),
    values: &[f32],
    shape: [usize; 2],
    drops: &Arc<AtomicUsize>,
) -> Result<Tensor<f32>, Failed> {
    let slice = other.clone_htod(values)?;
    let address = slice.device_ptr(other).0;
    let owner = Owner(drops.clone(), Some(Box::new(slice)));
    // SAFETY: the owner keeps the memory.
    Ok(unsafe { Tensor::from_foreign(stream, address, shape, [shape[1], 1], owner)? })
}

fn owners_dropped_right_after_the_call_outlive_the_work(device: &Device) -> Result<(), Failed> {
    const ROUNDS: usize = 1000;
    let (other, stream) = borrowed(device)?;
    let drops = Arc::new(AtomicUsize::new(0));
    let (m, k, n) = (300, 200, 150);
    let mut results = Vec::new();
    for round in 0..ROUNDS {
        let x = tensor((&other, &stream), &vec![(round % 7) as f32; m * k], [m, k], &drops)?;
        let w = tensor((&other, &stream), &vec![1.0; n * k], [n, k], &drops)?;
        let y = ops::linear(&x, &w).on(&stream).run()?;
        drop((x, w));
        // Of the rest one element is enough.
        let mut kept = Tensor::uninit_on(&stream, [1, 1])?;
        kept.copy_from(&y.slice(0, m - 1..m)?.slice(1, n - 1..n)?)?;
        results.push(kept);
    }
    stream.synchronize()?;
    for (round, result) in results.iter().enumerate() {
        assert_eq!(result.to_vec()?, [((round % 7) * k) as f32], "round {round}");
    }
    device.synchronize()?;
    assert_eq!(drops.load(Ordering::SeqCst), 2 * ROUNDS);
    Ok(())
}

fn foreign_memory_outlives_a_graph_that_uses_it(device: &Device) -> Result<(), Failed> {
    let (other, stream) = borrowed(device)?;
    let drops = Arc::new(AtomicUsize::new(0));
    let mut result = other.alloc_zeros::<f32>(4)?;
    let address = result.device_ptr_mut(&other).0;
    // SAFETY: the memory outlives the tensor.
    let mut y = unsafe { Tensor::<f32>::from_foreign_mut(&stream, address, [2, 2], [2, 1], ())? };
    let x = tensor((&other, &stream), &[1.0, 2.0, 3.0, 4.0], [2, 2], &drops)?;
    let x_again = x.clone();
    let on = stream.clone();
    // SAFETY: only this thread uses the stream, and the work owns what it uses.
    let graph = unsafe { stream.capture(move || ops::linear(&x, &x).on(&on).run_into(&mut y))? };
    drop(x_again);
    device.synchronize()?;
    assert_eq!(drops.load(Ordering::SeqCst), 0, "the graph uses it");
    let mut graph = graph;
    for _ in 0..3 {
        graph.launch()?;
        assert_eq!(other.clone_dtoh(&result)?, [5.0, 11.0, 11.0, 25.0]);
        other.memset_zeros(&mut result)?;
    }
    drop(graph);
    device.synchronize()?;
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    Ok(())
}

/// The other library records; what is here only launches on its stream.
fn operations_are_recorded_by_another_librarys_capture(device: &Device) -> Result<(), Failed> {
    use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
    let (other, stream) = borrowed(device)?;
    let input = other.clone_htod(&[1.0f32, 2.0, 3.0, 4.0])?;
    let mut result = other.alloc_zeros::<f32>(4)?;
    let (x, mut y) = {
        let (input, result) = (input.device_ptr(&other).0, result.device_ptr_mut(&other).0);
        // SAFETY: the memory outlives the tensors.
        unsafe {
            (
                Tensor::<f32>::from_foreign(&stream, input, [2, 2], [2, 1], ())?,
                Tensor::<f32>::from_foreign_mut(&stream, result, [2, 2], [2, 1], ())?,
            )
        }
    };
    // Loads the kernel, which a capture must not.
    ops::linear(&x, &x).beta(1.0).on(&stream).run_into(&mut y)?;
    other.memset_zeros(&mut result)?;
    for mode in [
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    ] {
        other.synchronize()?;
        other.begin_capture(mode)?;
        let recorded = ops::linear(&x, &x).beta(1.0).on(&stream).run_into(&mut y);
        let graph = other.end_capture(CUgraphInstantiate_flags(0))?.ok_or("nothing was recorded")?;
        recorded?;
        assert_eq!(other.clone_dtoh(&result)?, [0.0; 4], "recording runs nothing");
        for round in 1..=3 {
            graph.launch()?;
            assert_eq!(other.clone_dtoh(&result)?, [5.0, 11.0, 11.0, 25.0].map(|sum| sum * round as f32));
        }
        other.memset_zeros(&mut result)?;
    }
    Ok(())
}

fn owners_dropped_during_a_capture_wait_for_the_work_before_it(device: &Device) -> Result<(), Failed> {
    let (other, stream) = borrowed(device)?;
    let elsewhere = device.new_stream()?;
    let drops = Arc::new(AtomicUsize::new(0));
    let w = Tensor::from_slice(device, &[1.0f32, 0.0, 0.0, 1.0], [2, 2])?;
    let mut y = Tensor::<f32>::zeros_on(&stream, [2, 2])?;
    let mut used = Vec::new();
    for home in [&stream, &elsewhere] {
        let x = tensor((&other, home), &[1.0, 2.0, 3.0, 4.0], [2, 2], &drops)?;
        used.push(ops::linear(&x, &w).on(home).run()?);
        let mut x = Some(x);
        let (drops, dropped) = (drops.clone(), drops.load(Ordering::SeqCst));
        let w = Tensor::from_slice(device, &[1.0f32, 0.0, 0.0, 1.0], [2, 2])?;
        device.synchronize()?;
        let (y, mut calls, counted) = (&mut y, 0, drops.clone());
        // SAFETY: only this thread uses the stream; what the work uses outlives the graph.
        let mut graph = unsafe {
            stream.capture(|| {
                calls += 1;
                // The second call is recorded. The owner frees its memory on the captured stream, which would end the capture.
                if calls == 2 {
                    x.take();
                    assert_eq!(counted.load(Ordering::SeqCst), dropped, "it waits for the capture's end");
                }
                ops::linear(&w, &w).on(&stream).run_into(y)
            })?
        };
        graph.launch()?;
        drop(graph);
        device.synchronize()?;
        assert_eq!(drops.load(Ordering::SeqCst), dropped + 1);
    }
    assert_eq!(y.to_vec()?, [1.0, 0.0, 0.0, 1.0]);
    for result in used {
        assert_eq!(result.to_vec()?, [1.0, 2.0, 3.0, 4.0]);
    }
    Ok(())
}

#[cfg(feature = "dlpack")]
fn exported_tensors_outlive_the_work_of_their_users(device: &Device) -> Result<(), Failed> {
    let user = device.new_stream()?;
    let w = Tensor::from_slice(device, &[2.0f32, 0.0, 0.0, 2.0], [2, 2])?;
    let mut results = Vec::new();
    for round in 0..500 {
        let x = Tensor::from_slice(device, &[round as f32; 4], [2, 2])?;
        let given = x.to_dlpack(Some(&user))?;
        drop(x);
        // SAFETY: the tensor is the one from above, and ordered with the stream that it was asked for.
        let taken: Tensor<f32> = unsafe { given.into_tensor(&user)? };
        results.push(ops::linear(&taken, &w).on(&user).run()?);
        // Deleted by another thread, with the work under way.
        std::thread::spawn(move || drop(taken)).join().unwrap();
    }
    for (round, result) in results.into_iter().enumerate() {
        assert_eq!(result.to_vec()?, [2.0 * round as f32; 4], "{round}");
    }
    // What is written there is a result that overlaps an operand here.
    let mut x = Tensor::from_slice(device, &[1.0f32; 4], [2, 2])?;
    let given = x.to_dlpack_mut(None)?;
    // SAFETY: both are used on one stream.
    let mut same: Tensor<f32> = unsafe { given.into_tensor(&x.home_stream())? };
    let refused = ops::linear(&x, &w).run_into(&mut same);
    assert!(matches!(refused, Err(Error::Overlap { .. })), "{refused:?}");
    Ok(())
}

#[cfg(not(feature = "dlpack"))]
fn exported_tensors_outlive_the_work_of_their_users(_: &Device) -> Result<(), Failed> {
    println!("NOT RUN without the feature `dlpack`, which the tests of the whole workspace have");
    Ok(())
}

fn default_streams_are_borrowed_as_they_are(device: &Device) -> Result<(), Failed> {
    for handle in 0..3usize {
        // SAFETY: the default streams are always there.
        let stream = unsafe { Stream::borrow(device, std::ptr::without_provenance_mut(handle), ())? };
        assert_eq!(stream.cuda_handle().map(|raw| raw.addr()), Some(handle));
        let mut x = Tensor::<f32>::zeros_on(&stream, [2, 2])?;
        x.write_slice(&[1.0, 2.0, 3.0, 4.0])?;
        let y = ops::linear(&x, &x).on(&stream).run()?;
        assert_eq!(y.home_stream(), stream);
        assert_eq!(y.to_vec()?, [5.0, 11.0, 11.0, 25.0]);
        let elsewhere = std::thread::spawn(move || {
            let used = y.to_vec();
            // It is freed there, whichever stream that is.
            drop((y, x));
            used
        });
        let used = elsewhere.join().unwrap();
        match handle {
            2 => assert!(matches!(used, Err(Error::Argument { argument: "stream", .. })), "{used:?}"),
            _ => assert_eq!(used?, [5.0, 11.0, 11.0, 25.0]),
        }
    }
    Ok(())
}

fn tensors_of_a_threads_stream_are_dropped_by_another_without_waiting(device: &Device) -> Result<(), Failed> {
    const PER_THREAD: usize = 2;
    let drops = Arc::new(AtomicUsize::new(0));
    // SAFETY: the default streams are always there.
    let stream = unsafe { Stream::borrow(device, std::ptr::without_provenance_mut(PER_THREAD), ())? };
    let size = 4096;
    let x = Tensor::<f32>::zeros_on(&stream, [size, size])?;
    let mut y = Tensor::<f32>::zeros_on(&stream, [size, size])?;
    let foreign = {
        let memory = Tensor::<f32>::zeros_on(&stream, [size, size])?;
        let address = memory.device_address();
        let owner = Owner(drops.clone(), Some(Box::new(memory)));
        // SAFETY: the owner keeps the memory.
        unsafe { Tensor::<f32>::from_foreign(&stream, address, [size, size], [size, 1], owner)? }
    };
    ops::linear(&x, &foreign).run_into(&mut y)?;
    stream.synchronize()?;
    // Some hundred milliseconds of work.
    for _ in 0..100 {
        ops::linear(&x, &foreign).run_into(&mut y)?;
    }
    let end = stream.record()?;
    std::thread::spawn(move || drop((x, foreign))).join().unwrap();
    assert!(!end.is_done()?, "the drop waited");
    assert_eq!(drops.load(Ordering::SeqCst), 0, "the work uses it");
    device.synchronize()?;
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    assert_eq!(y.slice(0, 0..1)?.slice(1, 0..1)?.to_vec()?, [0.0]);
    Ok(())
}

fn ends_of_allocations_and_other_contexts_are_known(device: &Device) -> Result<(), Failed> {
    let (other, stream) = borrowed(device)?;
    let slice = other.alloc_zeros::<f32>(1 << 20)?;
    let address = slice.device_ptr(&other).0;
    // SAFETY: it is refused.
    let beyond = unsafe { Tensor::<f32>::from_foreign(&stream, address, [1 << 40], [1], ()) };
    assert!(matches!(beyond, Err(Error::SizeLimit { quantity: "end", .. })), "{beyond:?}");
    Ok(())
}

fn the_threads_context_is_restored(device: &Device) -> Result<(), Failed> {
    use cudarc::driver::result::ctx::{get_current, set_current};
    let current = || get_current().unwrap().unwrap_or(std::ptr::null_mut());
    let before = current();
    // SAFETY: none is current then, which the device must not need.
    unsafe { set_current(std::ptr::null_mut())? };
    let x = Tensor::from_slice(device, &[1.0f32; 4], [2, 2])?;
    assert_eq!(ops::linear(&x, &x).run()?.to_vec()?, [2.0; 4]);
    drop(x);
    assert!(current().is_null());
    {
        let _current = device.make_current()?;
        assert!(!current().is_null());
        let x = Tensor::from_slice(device, &[1.0f32; 4], [2, 2])?;
        assert_eq!(ops::linear(&x, &x).run()?.to_vec()?, [2.0; 4]);
        assert!(!current().is_null());
    }
    assert!(current().is_null());
    // SAFETY: it was current.
    unsafe { set_current(before)? };
    Ok(())
}
