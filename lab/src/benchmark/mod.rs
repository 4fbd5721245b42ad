//! Measuring: how long an operation takes on a device, compared fairly with another.
//!
//! What is compared is measured in rounds on one stream, after a warm-up in which the clocks settle. A round takes one sample
//! of each, and rounds differ in their order (A B, B A, …), so that no subject is always the one that runs on a chip that
//! another has heated or left idle. A sample is the time between two events around a batch of launches, divided by their
//! number; the
//! result is the median of the samples. The inputs rotate through more memory than the last-level cache holds.
//!
//! On a GPU a batch is recorded once, as a graph, and each sample enqueues it whole behind a copy that keeps the GPU busy
//! meanwhile. A sample counts only if the GPU had not yet come to the batch when all of it was enqueued, so the host's speed
//! does not enter, however short a launch is.

mod attention;
mod linear;
mod peer;
mod residency;
mod rows;
mod scaled;
mod topk;
mod training;
mod update;

pub use attention::{AttentionSubject, attention_backward_subject, attention_subject};
pub use linear::{LinearMeasurement, LinearSubject, linear, linear_subject, matmul_subject};
pub use peer::{PeerMeasurement, peer, peer_subjects};
pub use residency::{Popularity, ResidencyMeasurement, ResidencyPoint, residency};
pub use rows::{RowOperation, RowSubject, row_subject};
pub(crate) use scaled::scaled_subject;
pub use topk::{TopkMeasurement, topk};
pub use training::{TrainingSubject, TrainingWork, training_subject};
pub use update::{UpdateMeasurement, UpdateSubjects, generated_update, update_subjects, ways_of_update};

use std::time::{Duration, Instant};

use warpsmith::Graph;
use warpsmith::device::{Device, DeviceKind};
use warpsmith::error::{Error, Result};
use warpsmith::stream::Stream;
use warpsmith::tensor::Tensor;

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

/// The operands together take this many times the last-level cache.
const CACHE_MULTIPLE: u64 = 3;
/// The most sets of operands, for problems so small that no number of them would fill the cache soon.
const MOST_SETS: u64 = 512;

/// How many sets of operands, each of so many bytes, launches rotate through, so that no cache of `device` serves the next launch: 2 to 512.
#[must_use]
pub fn sets_beyond_cache(device: &Device, bytes: u64) -> usize {
    let wanted = CACHE_MULTIPLE * device.properties().l2_bytes;
    wanted.div_ceil(bytes.max(1)).clamp(2, MOST_SETS) as usize
}

/// The most launches in one batch.
const MOST_LAUNCHES: usize = 512;
/// What enqueueing a recorded batch takes the host at first guess, and what it may take at most.
const HOST_TIME: (Duration, Duration) = (Duration::from_micros(150), Duration::from_millis(300));
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
    /// Launches in each; 1 for what a [`Sampler`] gave.
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
    /// On a GPU this may be captured and launched again. So the subject keeps the tensors that its work uses, and drops before it returns
    /// what it makes meanwhile.
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

/// Something whose time is taken elsewhere, as by another process on the same device.
pub trait Sampler {
    /// The time of one launch, over a batch; `None` if there are to be no more samples. When it returns, the device has nothing of it left to do.
    fn sample(&mut self) -> Option<Duration>;
}

/// Measures `subjects` interleaved on `stream`. No other thread uses the stream meanwhile: on a GPU, what it enqueued could become a part of a batch.
///
/// # Errors
///
/// Whatever a subject, an allocation or the timing returns.
pub fn interleaved(
    stream: &Stream,
    subjects: &mut [&mut dyn Subject],
    options: &Options,
) -> Result<Vec<Timing>> {
    Ok(interleaved_with(stream, subjects, &mut [], options)?.0)
}

/// Measures `subjects` on `stream` and `samplers` elsewhere, all interleaved, and gives the times of each. A sampler that ends before it has
/// given every sample has none.
///
/// # Errors
///
/// Whatever a subject, an allocation or the timing returns.
pub fn interleaved_with(
    stream: &Stream,
    subjects: &mut [&mut dyn Subject],
    samplers: &mut [&mut dyn Sampler],
    options: &Options,
) -> Result<(Vec<Timing>, Vec<Option<Timing>>)> {
    measure(stream, subjects, samplers, options, true)
}

/// As [`interleaved_with`]; a batch that is not `recorded` is enqueued launch by launch.
fn measure(
    stream: &Stream,
    subjects: &mut [&mut dyn Subject],
    samplers: &mut [&mut dyn Sampler],
    options: &Options,
    recorded: bool,
) -> Result<(Vec<Timing>, Vec<Option<Timing>>)> {
    let plug = Plug::new(stream)?;
    let mut runs: Vec<Run> = Vec::with_capacity(subjects.len());
    let outcome = rounds(stream, &plug, &mut runs, subjects, samplers, options, recorded);
    if outcome.is_err() {
        // A batch may still be under way, which works on memory that its subject or its graph has.
        stream.synchronize()?;
    }
    let elsewhere = outcome?;
    let timings = runs.into_iter().map(|run| Timing::of(run.samples, run.launches)).collect();
    Ok((timings, elsewhere.into_iter().map(|samples| Some(Timing::of(samples?, 1))).collect()))
}

/// Takes all samples; gives those of the samplers that have not ended.
fn rounds<'a>(
    stream: &Stream,
    plug: &Plug,
    runs: &mut Vec<Run<'a>>,
    subjects: &'a mut [&mut dyn Subject],
    samplers: &mut [&mut dyn Sampler],
    options: &Options,
    recorded: bool,
) -> Result<Vec<Option<Vec<Duration>>>> {
    for subject in subjects {
        runs.push(Run::prepare(stream, plug, &mut **subject, options, recorded)?);
    }
    let count = runs.len();
    let mut elsewhere: Vec<Option<Vec<Duration>>> = vec![Some(Vec::new()); samplers.len()];
    let mut round = |number: usize, counts: bool| -> Result<()> {
        for index in order(number, count + samplers.len()) {
            if let Some(run) = runs.get_mut(index) {
                let sample = run.sample(stream, plug)?;
                run.samples.extend(counts.then_some(sample));
                continue;
            }
            let (sampler, samples) = (&mut samplers[index - count], &mut elsewhere[index - count]);
            if let Some(so_far) = samples {
                match sampler.sample() {
                    Some(sample) => so_far.extend(counts.then_some(sample)),
                    None => *samples = None,
                }
            }
        }
        Ok(())
    };
    let (start, mut number) = (Instant::now(), 0);
    while start.elapsed() < options.warm_up {
        round(number, false)?;
        number += 1;
    }
    (0..options.samples.max(1)).try_for_each(|number| round(number, true))?;
    Ok(elsewhere)
}

/// The order of `count` subjects in a round: forwards and backwards in turn, and every second time from the next subject on. So over
/// 2 · `count` rounds each is equally often at each place, and as often before each neighbour as after it.
fn order(round: usize, count: usize) -> impl Iterator<Item = usize> {
    let (first, is_forwards) = (round / 2, round.is_multiple_of(2));
    (0..count).map(move |place| {
        let place = if is_forwards { place } else { count - 1 - place };
        (first + place) % count
    })
}

/// A subject's progress.
struct Run<'a> {
    launches: usize,
    batch: Batch<'a>,
    host_time: Duration,
    samples: Vec<Duration>,
}

/// How a subject's launches are enqueued.
enum Batch<'a> {
    /// One after the other, from this number on.
    Direct(&'a mut dyn Subject, usize),
    /// All at once; they work on the same memory every time.
    Recorded(Graph<'a>),
}

impl Batch<'_> {
    fn enqueue(&mut self, launches: usize) -> Result<()> {
        match self {
            Self::Direct(subject, next) => (0..launches).try_for_each(|_| {
                *next += 1;
                subject.enqueue(*next - 1)
            }),
            Self::Recorded(graph) => graph.launch(),
        }
    }
}

impl<'a> Run<'a> {
    /// Runs the subject once to load what it needs, then to see how many launches fill a batch, and records one on devices that have such.
    fn prepare(
        stream: &Stream,
        plug: &Plug,
        subject: &'a mut dyn Subject,
        options: &Options,
        recorded: bool,
    ) -> Result<Self> {
        subject.enqueue(0)?;
        let (time, host_time) = {
            let mut once = Run::new(1, Batch::Direct(&mut *subject, 1));
            (once.sample(stream, plug)?, once.host_time)
        };
        let fitting = options.batch.as_secs_f64() / time.as_secs_f64().max(1e-6);
        let launches = (fitting as usize).clamp(1, MOST_LAUNCHES);
        let mut batch = Batch::Direct(subject, 2);
        if recorded && matches!(stream.device().kind(), DeviceKind::Cuda(_)) {
            let work = move || batch.enqueue(launches);
            // SAFETY: the stream is its caller's alone, as `interleaved` says. The work borrows the subject, which keeps its operands, and drops before
            // it returns what it makes meanwhile, such as copies of operands in aligned rows.
            batch = Batch::Recorded(unsafe { stream.capture(work) }?);
        }
        Ok(Self { host_time, ..Self::new(launches, batch) })
    }

    fn new(launches: usize, batch: Batch<'a>) -> Self {
        Self { launches, batch, host_time: HOST_TIME.0, samples: Vec::new() }
    }

    /// The time of one launch, over a batch.
    fn sample(&mut self, stream: &Stream, plug: &Plug) -> Result<Duration> {
        loop {
            plug.enqueue(stream, self.host_time)?;
            let start = stream.record()?;
            self.batch.enqueue(self.launches)?;
            let end = stream.record()?;
            let ahead = plug.copy.is_none() || !start.is_done()?;
            let elapsed = end.elapsed_since(&start)?;
            if ahead {
                return Ok(elapsed / self.launches as u32);
            }
            if self.host_time > HOST_TIME.1 {
                return Err(Error::Argument {
                    operation: "benchmark",
                    argument: "subject",
                    expected: format!("work that the host enqueues within {:?}", HOST_TIME.1),
                    actual: format!("{} launches that take it longer", self.launches),
                });
            }
            self.host_time *= 2;
        }
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
    // Recorded, the driver's copies are done in another way, which took a fifth longer on an H100.
    let (timings, _) = measure(&stream, &mut [&mut copy], &mut [], options, false)?;
    Ok(2.0 * BYTES as f64 / timings[0].median.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use warpsmith::Device;

    use super::{Options, Sampler, Timing, interleaved, interleaved_with, order, sets_beyond_cache};

    #[test]
    fn launches_rotate_through_several_times_the_cache_within_reason() {
        // The CPU's caches are not asked for.
        assert_eq!(sets_beyond_cache(&Device::cpu(), 0), 2);
        let gpu = Device::emulator();
        let cache = gpu.properties().l2_bytes;
        assert_eq!(sets_beyond_cache(&gpu, cache), 3);
        assert_eq!(sets_beyond_cache(&gpu, cache / 10 - 1), 31);
        assert_eq!((sets_beyond_cache(&gpu, 10 * cache), sets_beyond_cache(&gpu, 1)), (2, 512));
    }

    #[test]
    fn a_median_is_no_outlier() {
        let samples = [5, 1, 2, 900, 3].map(Duration::from_micros).to_vec();
        let timing = Timing::of(samples, 1);
        assert_eq!((timing.median, timing.fastest), (Duration::from_micros(3), Duration::from_micros(1)));
    }

    #[test]
    fn rounds_give_every_subject_every_place_and_both_sides_of_its_neighbours() {
        for count in 1..=7 {
            let mut places = vec![vec![0; count]; count];
            let mut follows = vec![vec![0; count]; count];
            for round in 0..2 * count {
                let order: Vec<usize> = order(round, count).collect();
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..count), "a round has every subject once: {order:?}");
                order.iter().enumerate().for_each(|(place, &subject)| places[subject][place] += 1);
                order.windows(2).for_each(|pair| follows[pair[0]][pair[1]] += 1);
            }
            assert!(places.iter().flatten().all(|&times| times == 2), "{count}: {places:?}");
            for (a, b) in (0..count).flat_map(|a| (0..count).map(move |b| (a, b))) {
                assert_eq!(follows[a][b], follows[b][a], "{count}: {a} and {b}");
            }
        }
    }

    /// Every sample is one turn; no subject has two turns more than another.
    #[test]
    fn samples_are_taken_in_rounds_over_all_subjects() {
        let turns = RefCell::new(Vec::new());
        let subject = |own: usize| {
            let turns = &turns;
            move |_: usize| {
                std::thread::sleep(Duration::from_micros(100));
                turns.borrow_mut().push(own);
                Ok(())
            }
        };
        let (mut a, mut b, mut c) = (subject(0), subject(1), subject(2));
        // Batches of one launch.
        let options = Options { warm_up: Duration::ZERO, samples: 4, batch: Duration::ZERO };
        let stream = Device::cpu().default_stream();
        interleaved(&stream, &mut [&mut a, &mut b, &mut c], &options).expect("nothing fails");
        let turns = turns.borrow();
        // Each has been run twice before, to load it and to see how long it takes.
        let expected: Vec<usize> = (0..4).flat_map(|round| order(round, 3)).collect();
        assert_eq!(turns[6..], expected);
    }

    /// A sampler has its turns among the subjects; one that ends has no time and does not end the others.
    #[test]
    fn what_is_sampled_elsewhere_takes_its_turns() {
        struct Elsewhere<'a>(&'a RefCell<Vec<usize>>, usize, std::ops::Range<u64>);
        impl Sampler for Elsewhere<'_> {
            fn sample(&mut self) -> Option<Duration> {
                self.0.borrow_mut().push(self.1);
                self.2.next().map(Duration::from_millis)
            }
        }
        let turns = RefCell::new(Vec::new());
        let mut subject = |_: usize| {
            turns.borrow_mut().push(0);
            Ok(())
        };
        let (mut lasting, mut ending) = (Elsewhere(&turns, 1, 1..100), Elsewhere(&turns, 2, 1..3));
        let options = Options { warm_up: Duration::ZERO, samples: 5, batch: Duration::ZERO };
        let stream = Device::cpu().default_stream();
        let (timings, elsewhere) =
            interleaved_with(&stream, &mut [&mut subject], &mut [&mut lasting, &mut ending], &options)
                .expect("nothing fails");
        assert_eq!(timings[0].samples, 5);
        let lasting = elsewhere[0].expect("it gave every sample");
        assert_eq!((lasting.samples, lasting.median), (5, Duration::from_millis(3)));
        assert_eq!(elsewhere[1], None);
        // The third time it ends.
        let expected: Vec<usize> =
            (0..5).flat_map(|round| order(round, 3).filter(move |&own| own != 2 || round < 3)).collect();
        assert_eq!(turns.borrow()[2..], expected);
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
