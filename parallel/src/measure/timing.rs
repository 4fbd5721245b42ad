//! Times of collectives beside NCCL called directly, and of layers and steps beside one rank's.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use crate::{Reduction, Result};
use half::bf16;
use warpsmith::{Device, DeviceKind, Stream, Tensor};

use super::checks::{whole_numbers, wrong};
use super::{Options, Rank, pipelines, replicas, steps};

/// How often something is called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Few {
    /// Calls before any is timed.
    warm_up: usize,
    /// Times that are taken.
    samples: usize,
    /// Calls of each time.
    calls: usize,
}

impl Few {
    /// For calls of up to a few milliseconds.
    pub(super) const CALLS: Self = Self { warm_up: 10, samples: 15, calls: 10 };
    /// For whole steps.
    pub(super) const STEPS: Self = Self { warm_up: 3, samples: 7, calls: 3 };
}

/// NCCL's function, its type's number and the sum's.
type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
const NCCL_FLOAT: c_int = 7;
const NCCL_SUM: c_int = 0;
const NCCL_IN_PROGRESS: c_int = 7;
type AsyncError = unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int;

/// Numbers of both signs: products of zeros would need less power.
pub(super) fn numbers(device: &Device, seed: usize, shape: [usize; 2]) -> Result<Tensor<bf16>> {
    let numbers = whole_numbers(seed, shape[0] * shape[1]).into_iter().map(|of| bf16::from_f32(of / 64.0));
    Ok(Tensor::from_slice(device, &numbers.collect::<Vec<_>>(), shape)?)
}

/// The time of a call in µs, as the mean of some on this rank's stream.
fn sample(rank: &Rank, stream: &Stream, calls: usize, call: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    rank.communicator.barrier(&rank.device)?;
    let start = stream.record()?;
    for _ in 0..calls {
        call()?;
    }
    let time: Duration = stream.record()?.elapsed_since(&start)?;
    Ok(time.as_secs_f64() * 1e6 / calls as f64)
}

/// The median times of several calls in µs. Samples of all of them take turns, so that what changes with time changes all.
fn medians(
    rank: &Rank,
    stream: &Stream,
    few: Few,
    calls: &mut [&mut dyn FnMut() -> Result<()>],
) -> Result<Vec<f64>> {
    for call in calls.iter_mut() {
        (0..few.warm_up).try_for_each(|_| call())?;
    }
    let mut times = vec![Vec::with_capacity(few.samples); calls.len()];
    for _ in 0..few.samples {
        for (call, times) in calls.iter_mut().zip(&mut times) {
            times.push(sample(rank, stream, few.calls, call)?);
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok(times.into_iter().map(median).collect())
}

/// The median time of a call in µs.
pub(super) fn median_of(
    rank: &Rank,
    stream: &Stream,
    few: Few,
    mut call: impl FnMut() -> Result<()>,
) -> Result<f64> {
    Ok(medians(rank, stream, few, &mut [&mut call])?[0])
}

pub(super) fn all(options: &Options, rank: &Rank) -> Result<()> {
    rank.say(&format!(
        "{} × {} ({}), medians of times of several calls",
        rank.communicator.size(),
        rank.device,
        rank.device.name()
    ));
    for (name, part) in PARTS {
        if options.parts.is_empty() || options.parts.iter().any(|asked| asked == name) {
            part(options, rank)?;
        }
    }
    Ok(())
}

/// What is timed, by its name.
type Part = fn(&Options, &Rank) -> Result<()>;
pub(super) const PARTS: [(&str, Part); 5] = [
    ("collectives", collectives),
    ("tensor", steps::split_layers),
    ("data", replicas::replicas),
    ("pipeline", pipelines::pipelines),
    ("experts", steps::experts),
];

fn collectives(options: &Options, rank: &Rank) -> Result<()> {
    let Rank { communicator, device, .. } = rank;
    let (size, stream) = (communicator.size(), device.new_stream()?);
    let communicator = communicator.on(&stream);
    rank.say(
        "KiB a rank | all_reduce µs, bus GB/s, NCCL directly µs, ratio | all_gather µs | reduce_scatter µs",
    );
    for kib in (2..=20).step_by(2).map(|bits| 1usize << bits).filter(|kib| *kib <= options.largest << 10) {
        let count = (kib << 10) / size_of::<f32>();
        let [mut tensor, mut own] =
            [Tensor::<f32>::zeros_on(&stream, [count])?, Tensor::<f32>::zeros_on(&stream, [count])?];
        let mut whole = Tensor::<f32>::zeros_on(&stream, [count * size])?;
        let mut ours = || communicator.all_reduce(&mut tensor, Reduction::Sum);
        let (reduce, direct) = match Direct::open(rank, &stream) {
            Some(direct) => {
                let mut theirs = || direct.all_reduce(rank, &mut own);
                let times = medians(rank, &stream, Few::CALLS, &mut [&mut ours, &mut theirs])?;
                (times[0], Some(times[1]))
            }
            None => (median_of(rank, &stream, Few::CALLS, ours)?, None),
        };
        let gather = median_of(rank, &stream, Few::CALLS, || communicator.all_gather(&own, &mut whole))?;
        let scatter = median_of(rank, &stream, Few::CALLS, || {
            communicator.reduce_scatter(&whole, &mut own, Reduction::Sum)
        })?;
        let bus = 2.0 * (size - 1) as f64 / size as f64 * (kib << 10) as f64 / reduce / 1e3;
        let beside = direct.map_or_else(|| "–, –".into(), |of| format!("{of:.1}, {:.3}", reduce / of));
        rank.say(&format!("{kib:10} | {reduce:.1}, {bus:.0}, {beside} | {gather:.1} | {scatter:.1}"));
        let shape = (kib << 10).to_string();
        let peer = direct.map(|time| ("NCCL directly", time));
        rank.row("all_reduce", "f32", &shape, "bytes a rank", reduce, peer);
        rank.row("all_gather", "f32", &shape, "bytes a rank", gather, None);
        rank.row("reduce_scatter", "f32", &shape, "bytes a rank", scatter, None);
    }
    Ok(())
}

/// NCCL's own functions, and what they are called with.
struct Direct {
    _library: libloading::Library,
    function: AllReduce,
    state: AsyncError,
    comm: *mut c_void,
    stream: *mut c_void,
}

impl Direct {
    /// `None` where there is no NCCL.
    fn open(rank: &Rank, stream: &Stream) -> Option<Self> {
        let (Some(comm), Some(stream), DeviceKind::Cuda(_)) =
            (rank.communicator.nccl_handle(), stream.cuda_handle(), rank.device.kind())
        else {
            return None;
        };
        // SAFETY: it is open already, so that nothing is initialised; the functions have these types in all versions.
        unsafe {
            let library = libloading::Library::new("libnccl.so.2").ok()?;
            let function = *library.get::<AllReduce>(b"ncclAllReduce").ok()?;
            let state = *library.get::<AsyncError>(b"ncclCommGetAsyncError").ok()?;
            Some(Self { _library: library, function, state, comm, stream })
        }
    }

    fn all_reduce(&self, rank: &Rank, tensor: &mut Tensor<f32>) -> Result<()> {
        let _current = rank.device.make_current()?;
        let (address, count) = (tensor.device_address() as *mut c_void, tensor.len());
        // SAFETY: the tensor has so many elements and is this stream's; no other thread uses the communicator.
        let mut code =
            unsafe { (self.function)(address, address, count, NCCL_FLOAT, NCCL_SUM, self.comm, self.stream) };
        // The communicator does not block: a call is over when it is no longer under way.
        while code == NCCL_IN_PROGRESS {
            // SAFETY: the code is written to a local variable.
            let asked = unsafe { (self.state)(self.comm, &raw mut code) };
            code = if asked == 0 { code } else { asked };
        }
        match code {
            0 => Ok(()),
            code => Err(wrong("NCCL directly", "code 0".into(), format!("code {code}"))),
        }
    }
}
