//! Streams and events: order, time, threads, and the end of everything in any order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use libtest_mimic::Failed;
use warpsmith::peer::{CacheOptions, CachedRows};
use warpsmith::{Device, DeviceKind, Error, PinnedBuffer, Tensor};

use crate::ptx::TEXT;
use crate::{Case, On, cases};

#[rustfmt::skip]
pub(crate) const CASES: &[(&str, On, Case)] = &cases![On::All =>
    time_between_events_is_positive_and_only_one_way,
    events_are_done_when_their_work_is,
    tensors_of_different_streams_are_ordered,
    streams_and_events_of_other_devices_are_errors,
    all_threads_may_use_a_device,
    things_may_be_dropped_in_any_order,
    captured_work_is_done_again_with_what_is_there,
    captured_work_is_ordered_with_the_streams_of_its_operands,
    a_capture_that_fails_leaves_the_stream_as_it_was,
    captures_and_what_other_threads_do_leave_each_other_alone,
    work_that_waits_for_its_device_is_not_captured,
];

fn time_between_events_is_positive_and_only_one_way(device: &Device) -> Result<(), Failed> {
    let stream = device.new_stream()?;
    let start = stream.record()?;
    let work = Tensor::<u8>::zeros_on(&stream, [32 << 20])?;
    std::thread::sleep(Duration::from_millis(2));
    let end = stream.record()?;
    assert!(end.elapsed_since(&start)? > Duration::ZERO);
    let backwards = start.elapsed_since(&end);
    assert!(matches!(backwards, Err(Error::Argument { argument: "start", .. })), "{backwards:?}");
    drop(work);
    Ok(())
}

fn events_are_done_when_their_work_is(device: &Device) -> Result<(), Failed> {
    let stream = device.new_stream()?;
    let tensor = Tensor::<u8>::zeros_on(&stream, [64 << 20])?;
    let event = stream.record()?;
    event.synchronize()?;
    assert!(event.is_done()?);
    stream.synchronize()?;
    drop(tensor);
    Ok(())
}

fn tensors_of_different_streams_are_ordered(device: &Device) -> Result<(), Failed> {
    // Each copy reads what the one before it wrote, on another stream.
    let streams = [device.default_stream(), device.new_stream()?, device.new_stream()?];
    let values: Vec<i32> = (0..1 << 20).collect();
    let mut last = Tensor::from_slice(device, &values, [values.len()])?;
    for round in 0..12 {
        let mut next = Tensor::<i32>::uninit_on(&streams[round % 3], [values.len()])?;
        next.copy_from(&last)?;
        last = next;
    }
    assert_eq!(last.to_vec()?, values);
    // A failure within is handed on, and the operands stay usable.
    let stream = device.new_stream()?;
    let failed = stream.with_operands(&[&last], || last.slice(7, 0..1).map(|_| ()));
    assert!(matches!(failed, Err(Error::Argument { .. })), "{failed:?}");
    // So is the order after a panic.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        stream.with_operands(&[&last], || -> warpsmith::Result<()> {
            panic!("the work panics, as it is meant to")
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(last.home_stream().device(), device);
    assert_eq!(last.to_vec()?[9], 9);
    Ok(())
}

fn streams_and_events_of_other_devices_are_errors(device: &Device) -> Result<(), Failed> {
    let other = Device::emulator();
    let event = other.default_stream().record()?;
    assert!(matches!(
        device.default_stream().wait(&event),
        Err(Error::DeviceMismatch { operand: "event", .. })
    ));
    let ours = device.default_stream().record()?;
    assert!(matches!(ours.elapsed_since(&event), Err(Error::DeviceMismatch { operand: "start", .. })));
    let tensor = Tensor::<f32>::zeros(device, [1])?;
    let result = other.default_stream().with_operands(&[&tensor], || Ok(()));
    assert!(matches!(result, Err(Error::DeviceMismatch { operand: "operand", .. })));
    assert_eq!(device.default_stream(), device.default_stream());
    assert_ne!(device.default_stream(), device.new_stream()?);
    Ok(())
}

fn all_threads_may_use_a_device(device: &Device) -> Result<(), Failed> {
    let shared = Tensor::from_slice(device, &[1, 2, 3], [3])?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let shared = &shared;
                scope.spawn(move || -> warpsmith::Result<Vec<i32>> {
                    let stream = shared.device().new_stream()?;
                    let mut own = Tensor::uninit_on(&stream, [3])?;
                    for _ in 0..20 {
                        own.copy_from(shared)?;
                    }
                    own.slice(0, 0..1)?.write_slice(&[thread])?;
                    own.to_vec()
                })
            })
            .collect();
        for (thread, handle) in threads.into_iter().enumerate() {
            assert_eq!(handle.join().unwrap().unwrap(), [i32::try_from(thread).unwrap(), 2, 3]);
        }
    });
    Ok(())
}

fn things_may_be_dropped_in_any_order(device: &Device) -> Result<(), Failed> {
    let device = device.clone();
    let stream = device.new_stream()?;
    let tensor = Tensor::<f32>::zeros_on(&stream, [1 << 16])?;
    let view = tensor.slice(0, 1..3)?;
    let event = stream.record()?;
    drop(stream);
    drop(device);
    drop(tensor);
    // What is left works, also on another thread, and frees everything there.
    std::thread::spawn(move || {
        assert_eq!(view.to_vec().unwrap(), [0.0, 0.0]);
        drop(view);
        event.synchronize().unwrap();
    })
    .join()
    .unwrap();
    Ok(())
}

fn captured_work_is_done_again_with_what_is_there(device: &Device) -> Result<(), Failed> {
    for stream in [device.default_stream(), device.new_stream()?] {
        let mut from = Tensor::from_slice(device, &[1, 2, 3], [3])?;
        let tensor = || Tensor::<i32>::zeros_on(&stream, [3]);
        let (mut source, mut target) = (tensor()?, tensor()?);
        let (mut to, read) = (target.clone(), source.clone());
        let work = || {
            // What is made within the work is a part of it.
            let mut between = Tensor::uninit_on(&stream, [3])?;
            between.copy_from(&read)?;
            to.copy_from(&between)
        };
        // SAFETY: the work borrows the tensors that it uses but one, which it makes and drops.
        let mut graph = unsafe { stream.capture(work)? };
        assert!(!stream.is_capturing());
        assert_eq!(*graph.stream(), stream);
        for round in 0..10 {
            let values = [round, 7 * round, -round];
            match round % 2 {
                0 => source.write_slice(&values)?,
                // Nobody waits for it.
                _ => {
                    from.write_slice(&values)?;
                    source.copy_from(&from)?;
                }
            }
            graph.launch()?;
            assert_eq!(target.to_vec()?, values);
            target.write_slice(&[0; 3])?;
        }
        source.write_slice(&[4, 5, 6])?;
        graph.launch()?;
        graph.launch()?;
        drop(graph);
        assert_eq!(target.to_vec()?, [4, 5, 6]);
    }
    Ok(())
}

fn captured_work_is_ordered_with_the_streams_of_its_operands(device: &Device) -> Result<(), Failed> {
    const LENGTH: usize = 1 << 20;
    let (stream, other) = (device.new_stream()?, device.new_stream()?);
    let source = Tensor::<i32>::zeros_on(&other, [LENGTH])?;
    let target = Tensor::<i32>::zeros_on(&stream, [LENGTH])?;
    let (mut to, read) = (target.clone(), source.clone());
    // SAFETY: the work owns the tensors that it uses.
    let mut graph = unsafe { stream.capture(move || to.copy_from(&read))? };
    let mut input = source.clone();
    for round in 0..8 {
        // On the other stream, before and after: the launch is between.
        let next = Tensor::from_slice(device, &vec![round; LENGTH], [LENGTH])?;
        input.copy_from(&next)?;
        graph.launch()?;
        input.copy_from(&Tensor::zeros_on(&other, [LENGTH])?)?;
        assert!(target.to_vec()?.iter().all(|&value| value == round), "round {round}");
    }
    // What the graph works on is there until it is over.
    input.copy_from(&Tensor::from_slice(device, &vec![9; LENGTH], [LENGTH])?)?;
    graph.launch()?;
    drop((graph, source, input));
    assert!(target.to_vec()?.iter().all(|&value| value == 9));
    Ok(())
}

fn a_capture_that_fails_leaves_the_stream_as_it_was(device: &Device) -> Result<(), Failed> {
    let stream = device.new_stream()?;
    let (from, mut to) = (Tensor::from_slice(device, &[5], [1])?, Tensor::<i32>::zeros_on(&stream, [1])?);
    // On a GPU the first call is not recorded, the second is; elsewhere the second is a launch.
    for (failing, panics) in [(1, false), (1, true), (2, false), (2, true)] {
        let (mut output, mut calls) = (to.clone(), 0);
        let work = || {
            calls += 1;
            output.copy_from(&from)?;
            if calls == failing {
                assert!(!panics, "the work panics, as it is meant to");
                return from.slice(7, 0..1).map(drop);
            }
            Ok(())
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // SAFETY: the work borrows the tensors that it uses.
            unsafe { stream.capture(work) }.and_then(|mut graph| graph.launch())
        }));
        match outcome {
            Err(_) => assert!(panics),
            Ok(result) => assert!(!panics && matches!(result, Err(Error::Argument { .. })), "{result:?}"),
        }
        assert!(!stream.is_capturing());
        to.write_slice(&[0])?;
        to.clone().copy_from(&from)?;
        assert_eq!(to.to_vec()?, [5], "call {failing}, panic: {panics}");
    }
    // A capture within another.
    let nested = || {
        // SAFETY: it does nothing.
        unsafe { stream.capture(|| Ok(())) }.map(drop)
    };
    // SAFETY: it uses no tensors.
    let refused = unsafe { stream.capture(nested) };
    assert!(matches!(refused, Err(Error::Argument { argument: "stream", .. })), "{refused:?}");
    stream.synchronize()?;
    Ok(())
}

/// Threads that capture and launch, while another one waits for the device and does all that the driver might mind during a capture.
fn captures_and_what_other_threads_do_leave_each_other_alone(device: &Device) -> Result<(), Failed> {
    /// Far longer than it takes.
    const PATIENCE: Duration = Duration::from_secs(240);

    /// Tells the others when it is dropped, which a panic does too.
    struct Over<'a>(&'a AtomicBool);

    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let device = device.clone();
    let (done, finished) = mpsc::channel();
    std::thread::spawn(move || {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let disturbing = scope.spawn(|| {
                // Once at least: where threads are started late, the captures are over by then.
                let mut rounds = 0;
                loop {
                    disturb(&device, rounds).expect("a capture does not mind");
                    rounds += 1;
                    if over.load(Ordering::Relaxed) {
                        break rounds;
                    }
                }
            });
            let capturing = Over(&over);
            let threads = [3, 5].map(|factor| {
                let device = &device;
                scope.spawn(move || capture_often(device, factor).expect("nothing disturbs it"))
            });
            for thread in threads {
                thread.join().expect("its results are right");
            }
            drop(capturing);
            assert!(disturbing.join().expect("it fails at nothing") > 0);
        });
        done.send(()).expect("the test waits");
    });
    // A deadlock must fail, not hang.
    Ok(finished.recv_timeout(PATIENCE)?)
}

/// Captures work, launches it, and drops the graph, many times.
fn capture_often(device: &Device, factor: i32) -> warpsmith::Result<()> {
    let rounds = if matches!(device.kind(), DeviceKind::Cuda(_)) { 200 } else { 20 };
    let stream = device.new_stream()?;
    let mut source = Tensor::<i32>::zeros_on(&stream, [3])?;
    let target = Tensor::<i32>::zeros_on(&stream, [3])?;
    let (read, mut to) = (source.clone(), target.clone());
    for round in 0..rounds {
        let work = || {
            let mut between = Tensor::uninit_on(&stream, [3])?;
            (0..20).try_for_each(|_| {
                between.copy_from(&read)?;
                to.copy_from(&between)
            })
        };
        // SAFETY: nobody else has the stream; the work borrows the tensors that it uses but one, which it makes and drops.
        let mut graph = unsafe { stream.capture(work)? };
        let values = [round, factor * round, -round];
        source.write_slice(&values)?;
        graph.launch()?;
        assert_eq!(target.to_vec()?, values, "round {round}");
    }
    Ok(())
}

/// Waits for the device in every way, and asks the driver for everything that is not enqueued on a stream.
fn disturb(device: &Device, round: u32) -> warpsmith::Result<()> {
    device.synchronize()?;
    let stream = device.new_stream()?;
    let memory = Tensor::<u8>::zeros_on(&stream, [1 << 20])?;
    let event = stream.record()?;
    event.is_done()?;
    event.synchronize()?;
    stream.synchronize()?;
    drop((memory, stream, event));
    device.memory_stats()?;
    device.release_memory()?;
    drop(PinnedBuffer::<u8>::zeros(device, 1 << 16)?);
    let options = CacheOptions::default().slots(2).managed(round.is_multiple_of(2));
    drop(CachedRows::new(device, 4, 16, &options)?);
    if device.kind() != DeviceKind::Cpu {
        // Its drop waits for the device as well.
        device.load_ptx("hand-written.ptx", TEXT)?.function("scale")?;
    }
    Ok(())
}

/// On a GPU the wait is refused; elsewhere there is nothing to wait for.
fn work_that_waits_for_its_device_is_not_captured(device: &Device) -> Result<(), Failed> {
    let is_gpu = matches!(device.kind(), DeviceKind::Cuda(_));
    let stream = device.new_stream()?;
    for wait in [Device::synchronize, Device::release_memory] {
        // SAFETY: the work uses no tensors.
        match unsafe { stream.capture(|| wait(device)) } {
            Ok(_) => assert!(!is_gpu, "it was captured"),
            Err(error) => assert!(is_gpu && matches!(error, Error::Driver { code: 900, .. }), "{error}"),
        }
        wait(device)?;
    }
    // Neither the capture nor the device suffers from a wait that was refused.
    let mut source = Tensor::from_slice(device, &[1, 2, 3], [3])?;
    let target = Tensor::<i32>::zeros_on(&stream, [3])?;
    let (read, mut to, mut refusals) = (source.clone(), target.clone(), 0);
    let work = || {
        to.copy_from(&read)?;
        refusals += u32::from(device.synchronize().is_err());
        Ok(())
    };
    // SAFETY: the work borrows the tensors that it uses.
    let mut graph = unsafe { stream.capture(work)? };
    source.write_slice(&[4, 5, 6])?;
    graph.launch()?;
    assert_eq!(target.to_vec()?, [4, 5, 6]);
    drop(graph);
    assert_eq!(refusals, u32::from(is_gpu));
    device.synchronize()?;
    Ok(())
}
