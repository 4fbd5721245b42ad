//! Memory: what is in use, what is released, what happens when there is none left, and pinned buffers.

use libtest_mimic::Failed;
use warpsmith::{Device, DeviceKind, Error, PinnedBuffer, Tensor};

use crate::{Case, On, cases};

#[rustfmt::skip]
pub(crate) const CASES: &[(&str, On, Case)] = &cases![On::All =>
    memory_in_use_goes_up_and_down_with_tensors,
    views_keep_the_memory_and_nothing_else_does,
    too_large_a_tensor_is_an_error_that_says_how_much,
    memory_that_the_pool_holds_is_released_when_it_is_needed,
    pinned_buffers_go_to_the_device_and_come_back,
    pinned_buffers_of_the_wrong_length_or_device_are_errors,
    a_dropped_transfer_has_happened,
];

fn used(device: &Device) -> Result<u64, Failed> {
    device.synchronize()?;
    Ok(device.memory_stats()?.used)
}

fn memory_in_use_goes_up_and_down_with_tensors(device: &Device) -> Result<(), Failed> {
    let before = used(device)?;
    let tensor = Tensor::<f32>::zeros(device, [1 << 20])?;
    assert!(used(device)? >= before + (4 << 20));
    drop(tensor);
    assert_eq!(used(device)?, before);
    device.release_memory()?;
    let stats = device.memory_stats()?;
    assert!(stats.used <= stats.reserved && stats.free <= stats.total, "{stats:?}");
    Ok(())
}

fn views_keep_the_memory_and_nothing_else_does(device: &Device) -> Result<(), Failed> {
    let before = used(device)?;
    let tensor = Tensor::<f32>::zeros(device, [1 << 18])?;
    assert!(tensor.is_unique());
    let view = tensor.slice(0, 5..9)?;
    assert!(!tensor.is_unique());
    drop(tensor);
    assert!(used(device)? > before);
    assert_eq!(view.to_vec()?, [0.0; 4]);
    drop(view);
    assert_eq!(used(device)?, before);
    Ok(())
}

fn too_large_a_tensor_is_an_error_that_says_how_much(device: &Device) -> Result<(), Failed> {
    const BYTES: usize = 1 << 52;
    match Tensor::<u8>::uninit(device, [BYTES]) {
        Err(Error::OutOfMemory { requested, free, total, .. }) => {
            assert_eq!(requested, BYTES as u64);
            assert!(free <= total);
        }
        other => return Err(format!("expected an error, got {other:?}").into()),
    }
    // The device is as usable as before.
    assert_eq!(Tensor::<u8>::zeros(device, [3])?.to_vec()?, [0; 3]);
    Ok(())
}

fn memory_that_the_pool_holds_is_released_when_it_is_needed(device: &Device) -> Result<(), Failed> {
    if device.kind() == DeviceKind::Cpu {
        // The CPU's memory is not pooled; the pool's statistics say so.
        let tensor = Tensor::<u8>::zeros(device, [1 << 20])?;
        let stats = device.memory_stats()?;
        assert_eq!(stats.used, stats.reserved);
        drop(tensor);
        return Ok(());
    }
    device.release_memory()?;
    let free = usize::try_from(device.memory_stats()?.free)?;
    // Many blocks that together leave no room, freed into the pool; then one that only fits when they are given back.
    let block = free / 16;
    let blocks = (0..12).map(|_| Tensor::<u8>::uninit(device, [block])).collect::<Result<Vec<_>, _>>()?;
    drop(blocks);
    let large = Tensor::<u8>::uninit(device, [free / 10 * 9])?;
    assert_eq!(large.len(), free / 10 * 9);
    drop(large);
    device.release_memory()?;
    let stats = device.memory_stats()?;
    assert_eq!(stats.reserved, stats.used, "the pool holds nothing unused");
    Ok(())
}

fn pinned_buffers_go_to_the_device_and_come_back(device: &Device) -> Result<(), Failed> {
    let values: Vec<f32> = (0..60_000u16).map(f32::from).collect();
    let stream = device.new_stream()?;
    let source = PinnedBuffer::from_slice(device, &values)?;
    assert_eq!(source.is_pinned(), matches!(device.kind(), DeviceKind::Cuda(_)));
    let mut tensor = Tensor::<f32>::uninit(device, [200, 300])?;
    let sent = tensor.copy_from_pinned(source, &stream)?;
    // Ordered with the tensor's home stream, so this reads what the transfer wrote.
    assert_eq!(tensor.to_vec()?, values);
    let source = sent.wait()?;
    assert_eq!(&source[..], &values[..]);

    let view = tensor.slice(1, 10..20)?.swap_axes(0, 1)?;
    let received = view.copy_to_pinned(PinnedBuffer::zeros(device, 2000)?, &stream)?.wait()?;
    assert_eq!(&received[..], &view.to_vec()?[..]);

    // A strided destination.
    let mut view = tensor.slice(1, 10..20)?;
    let sent = view.copy_from_pinned(PinnedBuffer::from_slice(device, &[7.0; 2000])?, &stream)?;
    while !sent.is_done()? {
        std::thread::yield_now();
    }
    assert_eq!(tensor.to_vec()?.iter().filter(|&&x| x == 7.0).count(), 2001, "and the 7 that was there");
    assert_eq!(sent.wait()?.len(), 2000);
    Ok(())
}

fn pinned_buffers_of_the_wrong_length_or_device_are_errors(device: &Device) -> Result<(), Failed> {
    let stream = device.default_stream();
    let mut tensor = Tensor::<f32>::zeros(device, [4])?;
    let short = tensor.copy_from_pinned(PinnedBuffer::zeros(device, 3)?, &stream);
    assert!(matches!(short, Err(Error::Shape { operand: "source", .. })), "{short:?}");
    let long = tensor.copy_to_pinned(PinnedBuffer::zeros(device, 5)?, &stream);
    assert!(matches!(long, Err(Error::Shape { operand: "destination", .. })), "{long:?}");
    let foreign = Device::emulator().default_stream();
    let elsewhere = tensor.copy_from_pinned(PinnedBuffer::zeros(device, 4)?, &foreign);
    assert!(matches!(elsewhere, Err(Error::DeviceMismatch { .. })), "{elsewhere:?}");
    let other = Device::emulator();
    let sent = tensor.copy_from_pinned(PinnedBuffer::zeros(&other, 4)?, &stream);
    assert!(matches!(sent, Err(Error::DeviceMismatch { operand: "source", .. })), "{sent:?}");
    let received = tensor.copy_to_pinned(PinnedBuffer::zeros(&other, 4)?, &stream);
    assert!(matches!(received, Err(Error::DeviceMismatch { operand: "destination", .. })), "{received:?}");
    let absurd = PinnedBuffer::<f32>::zeros(device, usize::MAX);
    assert!(matches!(absurd, Err(Error::SizeLimit { .. })), "{absurd:?}");
    assert!(PinnedBuffer::<f32>::zeros(device, 0)?.is_empty());
    Ok(())
}

fn a_dropped_transfer_has_happened(device: &Device) -> Result<(), Failed> {
    let mut tensor = Tensor::<i32>::zeros(device, [1 << 20])?;
    drop(tensor.copy_from_pinned(PinnedBuffer::from_slice(device, &[5; 1 << 20])?, &device.new_stream()?)?);
    assert!(tensor.to_vec()?.iter().all(|&x| x == 5));
    Ok(())
}
