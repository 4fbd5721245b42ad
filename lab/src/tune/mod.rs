//! Measuring: every kernel that computes one problem, on operands as the operation's own kernel sees them.
//!
//! Which problem a case becomes is not worked out again here: the operation runs once and says it, so that what is measured is what it
//! looks up.

use warpsmith::device::Device;
use warpsmith::error::Result;
use warpsmith::ops::choice::{Observation, ProductChoice, observe};
use warpsmith::ops::gemm::Tile;
use warpsmith::stream::Stream;
use warpsmith::trace;
use warpsmith::tune::{Choice, Store};

use crate::benchmark::{self, LinearSubject, Options, Subject, Timing};
use crate::cases::{LinearCase, MatmulCase, ScaledCase};

/// How much longer than the fastest a kernel takes at most that is measured once more.
const NEARLY_THE_FASTEST: f64 = 1.25;

/// What the candidates for one problem take.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tuned {
    /// What the results are kept under: the same for operations whose kernel is chosen alike.
    pub key: String,
    /// What the cost model chooses.
    pub model: Tile,
    /// Every candidate that ran, and its time.
    pub candidates: Vec<(Tile, Timing)>,
}

impl Tuned {
    /// The fastest candidate.
    #[must_use]
    pub fn best(&self) -> Option<(Tile, Timing)> {
        self.candidates.iter().copied().min_by_key(|(_, timing)| timing.median)
    }

    /// Keeps the fastest candidate in `store`, instead of what was kept for the problem. Nothing is written before [`Store::save`].
    pub fn keep_in(&self, store: &mut Store) {
        if let Some((tile, timing)) = self.best() {
            store.keep(&self.key, tile, timing.median);
        }
    }

    /// The time of the model's choice over that of the fastest: 1 where they are the same.
    #[must_use]
    pub fn model_over_best(&self) -> Option<f64> {
        let (_, model) = self.candidates.iter().find(|(tile, _)| *tile == self.model)?;
        let (_, best) = self.best()?;
        Some(model.median.as_secs_f64() / best.median.as_secs_f64())
    }
}

/// Measures every kernel that computes the linear operation of `case` on `device`, whatever tile the case asks for. `None` if there is
/// nothing to choose: on the CPU, and where nothing is computed.
///
/// The candidates read operands as the operation's own kernel sees them: where it would copy them into aligned rows first,
/// they have been copied. So all of them are measured at the problem that the result is kept for, and the copies, which are
/// the same for all, do not count. Placement in larger matrices does not apply here.
///
/// # Errors
///
/// As [`benchmark::linear`](fn@crate::benchmark::linear). A candidate that fails is left out.
pub fn linear(device: &Device, case: &LinearCase, options: &Options) -> Result<Option<Tuned>> {
    let stream = device.default_stream();
    let subject = benchmark::linear_subject(&stream, case)?;
    Candidates::of_product(&stream, &*subject)?.map_or(Ok(None), |candidates| candidates.measure(options))
}

/// As [`linear`], for matrix products: of operands in any layout, single or in batches.
///
/// # Errors
///
/// As [`linear`], and [`Error::Argument`](warpsmith::Error::Argument) if the case's batches do not fit together.
pub fn matmul(device: &Device, case: &MatmulCase, options: &Options) -> Result<Option<Tuned>> {
    let stream = device.default_stream();
    let subject = benchmark::matmul_subject(&stream, case)?;
    Candidates::of_product(&stream, &*subject)?.map_or(Ok(None), |candidates| candidates.measure(options))
}

/// As [`linear`], for the linear operation on 8-bit operands. Their rows start at multiples of 16 bytes; the portable kernel's copies of them in
/// f16 count.
///
/// # Errors
///
/// [`Error::Type`](warpsmith::Error::Type) if the case's types are not 8-bit inputs and an output of f16, bf16 or f32; otherwise as [`linear`].
pub fn linear_scaled(device: &Device, case: &ScaledCase, options: &Options) -> Result<Option<Tuned>> {
    Candidates::of_scaled(device, case)?.map_or(Ok(None), |candidates| candidates.measure(options))
}

/// The kernels that compute one problem, each with operands to run on.
pub(super) struct Candidates {
    /// The problem that all of them run, and the device's limits.
    pub(super) choice: ProductChoice,
    stream: Stream,
    pub(super) tiles: Vec<Tile>,
    pub(super) subjects: Vec<Box<dyn Subject>>,
}

impl Candidates {
    /// Those of a product; `None` where no kernel runs.
    pub(super) fn of_product(stream: &Stream, subject: &dyn LinearSubject) -> Result<Option<Self>> {
        let mut by_itself = subject.with_tile(None);
        let observed = observe(|| by_itself.enqueue(0))?;
        let Some(&Observation { choice, copied }) = observed.first() else { return Ok(None) };
        if copied != [false; 2] {
            by_itself = by_itself.with_aligned_rows(copied)?;
        }
        Self::running(stream, choice, |tile| by_itself.with_tile(Some(tile))).map(Some)
    }

    /// Those of a scaled linear operation; `None` where no kernel runs.
    pub(super) fn of_scaled(device: &Device, case: &ScaledCase) -> Result<Option<Self>> {
        let stream = device.default_stream();
        let mut by_itself = benchmark::scaled_subject(&stream, case)?.with_parts(None, None);
        let observed = observe(|| by_itself.enqueue(0))?;
        let Some(&Observation { choice, .. }) = observed.first() else { return Ok(None) };
        Self::running(&stream, choice, |tile| by_itself.with_parts(Some(tile), None)).map(Some)
    }

    /// The candidates that run the problem of this choice, without copies. One that cannot run is left out; so is one that would run another problem,
    /// whose time says nothing about this one.
    fn running(
        stream: &Stream,
        choice: ProductChoice,
        subject: impl Fn(Tile) -> Box<dyn Subject>,
    ) -> Result<Self> {
        let expected = Observation { choice, copied: [false; 2] };
        let (mut tiles, mut subjects) = (Vec::new(), Vec::new());
        let candidates = choice.candidates();
        let all = candidates.len();
        for (index, tile) in candidates.into_iter().enumerate() {
            let mut candidate = subject(tile);
            if observe(|| candidate.enqueue(0)).is_ok_and(|observed| observed == [expected]) {
                tiles.push(tile);
                subjects.push(candidate);
            }
            trace::progress("loading candidates", index + 1, all);
        }
        stream.synchronize()?;
        Ok(Self { choice, stream: stream.clone(), tiles, subjects })
    }

    /// What each of them takes: of those that are nearly the fastest, what they take alternately. Beside slow kernels, which draw
    /// little power, a GPU has clocks that one of the fastest alone would not keep.
    fn measure(mut self, options: &Options) -> Result<Option<Tuned>> {
        let Some(model) = self.choice.model() else { return Ok(None) };
        let mut running: Vec<&mut dyn Subject> =
            self.subjects.iter_mut().map(|subject| &mut **subject as &mut dyn Subject).collect();
        let mut timings = benchmark::interleaved(&self.stream, &mut running, options)?;
        let fastest = timings.iter().map(|timing| timing.median).min().unwrap_or_default();
        let is_near: Vec<bool> =
            timings.iter().map(|timing| timing.median <= fastest.mul_f64(NEARLY_THE_FASTEST)).collect();
        if is_near.iter().filter(|&&near| near).count() > 1 {
            let near = |(subject, near): (_, &bool)| near.then_some(subject);
            let mut finalists: Vec<&mut dyn Subject> =
                running.into_iter().zip(&is_near).filter_map(near).collect();
            let mut finals = benchmark::interleaved(&self.stream, &mut finalists, options)?.into_iter();
            for (timing, _) in timings.iter_mut().zip(&is_near).filter(|(_, near)| **near) {
                *timing = finals.next().unwrap_or(*timing);
            }
        }
        Ok(Some(Tuned {
            key: self.choice.key(),
            model,
            candidates: self.tiles.into_iter().zip(timings).collect(),
        }))
    }
}

#[cfg(test)]
mod tests;
