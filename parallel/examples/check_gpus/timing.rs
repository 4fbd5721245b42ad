//! Times of collectives beside NCCL called directly, and of layers and steps beside one rank's.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use warpsmith::{DeviceKind, Stream, Tensor};
use warpsmith_parallel::{Reduction, Result};

use crate::{Arguments, Rank, steps};

/// Calls before any is timed, times that are taken, and calls of each.
const WARM_UP: usize = 5;
const SAMPLES: usize = 9;
const CALLS: usize = 10;

/// NCCL's function, its type's number and the sum's.
type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
const NCCL_FLOAT: c_int = 7;
const NCCL_SUM: c_int = 0;
const NCCL_IN_PROGRESS: c_int = 7;
type AsyncError = unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int;

/// The median time of a call in µs, on this rank's stream.
pub(crate) fn median(rank: &Rank, stream: &Stream, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..WARM_UP {
        call()?;
    }
    let mut times = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        rank.communicator.barrier(&rank.device)?;
        let start = stream.record()?;
        for _ in 0..CALLS {
            call()?;
        }
        let time: Duration = stream.record()?.elapsed_since(&start)?;
        times.push(time.as_secs_f64() * 1e6 / CALLS as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[SAMPLES / 2])
}

pub(crate) fn all(arguments: &Arguments, rank: &Rank) -> Result<()> {
    rank.say(&format!(
        "{} × {} ({}), medians of {SAMPLES} times of {CALLS} calls",
        rank.communicator.size(),
        rank.device,
        rank.device.name()
    ));
    collectives(arguments, rank)?;
    steps::split_layers(arguments, rank)?;
    steps::replicas(arguments, rank)?;
    steps::pipelines(arguments, rank)?;
    steps::experts(arguments, rank)
}

fn collectives(arguments: &Arguments, rank: &Rank) -> Result<()> {
    let Rank { communicator, device, .. } = rank;
    let (size, stream) = (communicator.size(), device.new_stream()?);
    let communicator = communicator.on(&stream);
    rank.say(
        "MiB a rank | all_reduce µs, bus GB/s, NCCL directly µs, ratio | all_gather µs | reduce_scatter µs",
    );
    for mib in [1, 4, 16, 64, 256, 1024].into_iter().filter(|mib| *mib <= arguments.largest) {
        let count = (mib << 20) / size_of::<f32>();
        let mut tensor = Tensor::<f32>::zeros_on(&stream, [count])?;
        let reduce = median(rank, &stream, || communicator.all_reduce(&mut tensor, Reduction::Sum))?;
        let direct = directly(rank, &stream, &mut tensor)?;
        let mut whole = Tensor::<f32>::zeros_on(&stream, [count * size])?;
        let gather = median(rank, &stream, || communicator.all_gather(&tensor, &mut whole))?;
        let scatter =
            median(rank, &stream, || communicator.reduce_scatter(&whole, &mut tensor, Reduction::Sum))?;
        let bus = 2.0 * (size - 1) as f64 / size as f64 * (mib << 20) as f64 / reduce / 1e3;
        let direct = direct.map_or_else(|| "–, –".into(), |of| format!("{of:.1}, {:.3}", reduce / of));
        rank.say(&format!("{mib:10} | {reduce:.1}, {bus:.0}, {direct} | {gather:.1} | {scatter:.1}"));
    }
    Ok(())
}

/// The time of NCCL's own call, where there is NCCL.
fn directly(rank: &Rank, stream: &Stream, tensor: &mut Tensor<f32>) -> Result<Option<f64>> {
    let (Some(comm), Some(handle), DeviceKind::Cuda(_)) =
        (rank.communicator.nccl_handle(), stream.cuda_handle(), rank.device.kind())
    else {
        return Ok(None);
    };
    // SAFETY: it is open already, so that nothing is initialised; the function has this type in all versions.
    let library = unsafe { libloading::Library::new("libnccl.so.2") };
    let Ok(library) = library else { return Ok(None) };
    // SAFETY: as above.
    let Ok(function) = (unsafe { library.get::<AllReduce>(b"ncclAllReduce") }) else { return Ok(None) };
    // SAFETY: as above.
    let Ok(state) = (unsafe { library.get::<AsyncError>(b"ncclCommGetAsyncError") }) else { return Ok(None) };
    let _current = rank.device.make_current()?;
    let (address, count) = (tensor.device_address() as *mut c_void, tensor.len());
    let mut failed = None;
    let time = median(rank, stream, || {
        // SAFETY: the tensor has so many elements and is this stream's; no other thread uses the communicator.
        let mut code = unsafe { function(address, address, count, NCCL_FLOAT, NCCL_SUM, comm, handle) };
        // The communicator does not block: a call is over when it is no longer under way.
        while code == NCCL_IN_PROGRESS {
            // SAFETY: the code is written to a local variable.
            let asked = unsafe { state(comm, &raw mut code) };
            code = if asked == 0 { code } else { asked };
        }
        failed = failed.or((code != 0).then_some(code));
        Ok(())
    })?;
    if let Some(code) = failed {
        rank.say(&format!("NCCL called directly failed with code {code}"));
        return Ok(None);
    }
    Ok(Some(time))
}
