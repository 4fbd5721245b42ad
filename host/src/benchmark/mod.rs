//! Measuring: how long an operation takes on a device, compared fairly with another.
//!
//! What is compared is measured interleaved (A B A B …) on one stream, after a warm-up in which the clocks settle. A sample is the
//! time between two events around a batch of launches, divided by their number; the result is the median of the samples.
//! The inputs rotate through more memory than the last-level cache holds. On a GPU each batch is enqueued behind a copy that
//! keeps the GPU busy meanwhile, so that the host's speed does not enter.

mod linear;

pub use linear::{LinearMeasurement, LinearSubject, linear, linear_subject};

use std::time::{Duration, Instant};

use crate::device::{Device, DeviceKind};
use crate::error::Result;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// How long and how often to measure.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How long to run before the first sample.
    pub warm_up: Duration,
    /// Samples of each subject.
    pub samples: usize,
    /// The time that one batch of launches should take.
    pub batch: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { warm_up: Duration::from_secs(1), samples: 15, batch: Duration::from_millis(4) }
    }
}

/// The most launches in one batch: as many as fit a GPU's queue.
const MOST_LAUNCHES: usize = 512;
/// What enqueueing a launch may take the host, generously.
const HOST_TIME: Duration = Duration::from_micros(12);
/// What the copy that hides the host's time moves at a time.
const PLUG_BYTES: usize = 256 << 20;

/// The time of one launch.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Timing {
    /// The median of the samples.
    pub median: Duration,
    /// The fastest sample.
    pub fastest: Duration,
    /// The slowest sample.
    pub slowest: Duration,
    /// Samples taken.
    pub samples: usize,
    /// Launches in each.
    pub launches: usize,
}

impl Timing {
    fn of(mut samples: Vec<Duration>, launches: usize) -> Self {
        samples.sort_unstable();
        let at = |index: usize| samples.get(index).copied().unwrap_or_default();
        Self {
            median: at(samples.len() / 2),
            fastest: at(0),
            slowest: at(samples.len().saturating_sub(1)),
            samples: samples.len(),
            launches,
        }
    }

    /// `amount` of the median time, in units of 10¹² a second.
    #[must_use]
    pub fn tera_per_second(&self, amount: f64) -> f64 {
        amount / self.median.as_secs_f64() * 1e-12
    }
}

/// Something to measure: enqueues its work number `index` on the stream that it is measured on.
pub trait Subject {
    /// Enqueues the work number `index`; numbers rotate through the subject's memory.
    ///
    /// # Errors
    ///
    /// Whatever enqueueing returns.
    fn enqueue(&mut self, index: usize) -> Result<()>;
}

impl<F: FnMut(usize) -> Result<()>> Subject for F {
    fn enqueue(&mut self, index: usize) -> Result<()> {
        self(index)
    }
}

/// Measures `subjects` interleaved on `stream`.
///
/// # Errors
///
/// Whatever a subject, an allocation or the timing returns.
pub fn interleaved(
    stream: &Stream,
    subjects: &mut [&mut dyn Subject],
    options: &Options,
) -> Result<Vec<Timing>> {
    let plug = Plug::new(stream)?;
    let mut runs: Vec<Run> = Vec::with_capacity(subjects.len());
    for subject in subjects.iter_mut() {
        runs.push(Run::prepare(stream, *subject, options)?);
    }
    let start = Instant::now();
    while start.elapsed() < options.warm_up {
        for (run, subject) in runs.iter_mut().zip(subjects.iter_mut()) {
            run.sample(stream, &plug, *subject)?;
        }
    }
    for _ in 0..options.samples.max(1) {
        for (run, subject) in runs.iter_mut().zip(subjects.iter_mut()) {
            let sample = run.sample(stream, &plug, *subject)?;
            run.samples.push(sample);
        }
    }
    Ok(runs.into_iter().map(|run| Timing::of(run.samples, run.launches)).collect())
}

/// A subject's progress.
struct Run {
    launches: usize,
    next: usize,
    samples: Vec<Duration>,
}

impl Run {
    /// Runs the subject once to load what it needs, then to see how many launches fill a batch.
    fn prepare(stream: &Stream, subject: &mut dyn Subject, options: &Options) -> Result<Self> {
        let mut run = Self { launches: 1, next: 0, samples: Vec::new() };
        let no_plug = Plug { copy: None };
        run.sample(stream, &no_plug, subject)?;
        let once = run.sample(stream, &no_plug, subject)?;
        let fitting = options.batch.as_secs_f64() / once.as_secs_f64().max(1e-6);
        run.launches = (fitting as usize).clamp(1, MOST_LAUNCHES);
        Ok(run)
    }

    /// The time of one launch, over a batch.
    fn sample(&mut self, stream: &Stream, plug: &Plug, subject: &mut dyn Subject) -> Result<Duration> {
        plug.enqueue(stream, HOST_TIME * self.launches as u32)?;
        let start = stream.record()?;
        for _ in 0..self.launches {
            subject.enqueue(self.next)?;
            self.next += 1;
        }
        let elapsed = stream.record()?.elapsed_since(&start)?;
        Ok(elapsed / self.launches as u32)
    }
}

/// Work that keeps a GPU busy while the host enqueues a batch.
struct Plug {
    copy: Option<(Tensor<u8>, Tensor<u8>)>,
}

impl Plug {
    fn new(stream: &Stream) -> Result<Self> {
        if !matches!(stream.device().kind(), DeviceKind::Cuda(_)) {
            return Ok(Self { copy: None });
        }
        let tensor = || Tensor::<u8>::zeros_on(stream, [PLUG_BYTES]);
        Ok(Self { copy: Some((tensor()?, tensor()?)) })
    }

    /// Enqueues at least `time` of work.
    fn enqueue(&self, stream: &Stream, time: Duration) -> Result<()> {
        // No GPU copies within its memory at more than this many bytes a second, read and written.
        const FASTEST: f64 = 8e12;
        let Some((from, to)) = &self.copy else { return Ok(()) };
        debug_assert_eq!(to.home_stream(), *stream);
        let copies = (time.as_secs_f64() * FASTEST / (2 * PLUG_BYTES) as f64).ceil() as usize;
        let mut to = to.clone();
        (0..copies).try_for_each(|_| to.copy_from(from))
    }
}

/// The rate at which `device` copies within its memory, in bytes read and written a second.
///
/// # Errors
///
/// Whatever allocating and copying return.
pub fn copy_bandwidth(device: &Device, options: &Options) -> Result<f64> {
    const BYTES: usize = 1 << 30;
    let stream = device.default_stream();
    let from = Tensor::<u8>::zeros_on(&stream, [BYTES])?;
    let mut to = Tensor::<u8>::zeros_on(&stream, [BYTES])?;
    let mut copy = |_: usize| to.copy_from(&from);
    let timings = interleaved(&stream, &mut [&mut copy], options)?;
    Ok(2.0 * BYTES as f64 / timings[0].median.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Options, Timing, interleaved};
    use crate::Device;

    #[test]
    fn a_median_is_no_outlier() {
        let samples = [5, 1, 2, 900, 3].map(Duration::from_micros).to_vec();
        let timing = Timing::of(samples, 1);
        assert_eq!((timing.median, timing.fastest), (Duration::from_micros(3), Duration::from_micros(1)));
    }

    #[test]
    fn subjects_are_told_apart_by_their_time() {
        let busy = |time: Duration| {
            move |_: usize| {
                std::thread::sleep(time);
                Ok(())
            }
        };
        let (mut short, mut long) = (busy(Duration::from_millis(1)), busy(Duration::from_millis(4)));
        let options = Options { warm_up: Duration::ZERO, samples: 3, batch: Duration::from_millis(4) };
        let stream = Device::cpu().default_stream();
        let timings = interleaved(&stream, &mut [&mut short, &mut long], &options).expect("nothing fails");
        assert!(timings[0].median >= Duration::from_millis(1));
        assert!(timings[1].median >= Duration::from_millis(4));
        assert!(timings[0].median < timings[1].median);
    }
}
