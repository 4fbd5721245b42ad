//! Tuning: measuring which kernel is fastest on the GPU at hand, keeping that, and using what was kept. All of it is opt-in.
//!
//! By itself an operation takes the kernel that a cost model chooses ([`select`]). [`linear`] measures every candidate for one
//! problem, and [`Store`] keeps the winners in a file of the user's cache folder, one for each kind of GPU. A device uses what was
//! kept only if it is asked to, by [`Device::set_tuning`] or by the environment variable `WARPSMITH_TUNE=read`.
//!
//! A kept choice says which kernel is fast, never which is right: one that does not compute the problem on the device is ignored, so
//! that a damaged or foreign file can cost time but change no result beyond the operation's error bound. Results carry where they come from,
//! and those of another GPU, driver, version of this crate or of its kernels do not count.

mod store;

use std::cell::RefCell;
use std::collections::HashMap;

use parking_lot::Mutex;

pub use store::{Found, Kept, Origin, Store};

use crate::benchmark::{self, LinearSubject, Options, Subject, Timing};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::linear::Tile;
use crate::ops::linear::select::{Limits, Problem, candidates, select};
use crate::stream::Stream;
use crate::validate::LinearCase;

/// The variable that says what devices do with kept results where the program does not: `read` or `off`.
pub const MODE_VARIABLE: &str = "WARPSMITH_TUNE";
/// The variable that names another folder than the user's cache folder.
pub const FOLDER_VARIABLE: &str = "WARPSMITH_CACHE_DIR";

/// What a device does with kept results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tuning {
    /// Nothing: the cost model chooses.
    #[default]
    Off,
    /// It takes what was kept for a problem, and what the cost model chooses for all others.
    Read,
}

impl std::str::FromStr for Tuning {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "" | "off" => Ok(Self::Off),
            "read" => Ok(Self::Read),
            other => Err(Error::Argument {
                operation: "tuning",
                argument: MODE_VARIABLE,
                expected: "`read` or `off`".into(),
                actual: format!("`{other}`"),
            }),
        }
    }
}

/// A device's part in tuning.
#[derive(Default)]
pub(crate) struct State(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// `None` until it is set, or read from the environment.
    mode: Option<Tuning>,
    /// What was kept, once it was asked for.
    kept: Option<HashMap<String, Tile>>,
}

impl Device {
    /// Says whether operations on this device take kept results of [tuning](crate::tune). Unless this is called, the environment
    /// variable `WARPSMITH_TUNE` says so, and without it they do not. Results that are kept later are seen after another call.
    pub fn set_tuning(&self, tuning: Tuning) {
        *self.tuning().0.lock() = Inner { mode: Some(tuning), kept: None };
    }
}

impl State {
    fn mode(&self) -> Result<Tuning> {
        let mut inner = self.0.lock();
        if let Some(mode) = inner.mode {
            return Ok(mode);
        }
        let mode = match std::env::var(MODE_VARIABLE) {
            Ok(text) => text.parse()?,
            Err(_) => Tuning::Off,
        };
        inner.mode = Some(mode);
        Ok(mode)
    }

    /// What was kept for a problem on `device`, whose state this is.
    fn kept(&self, device: &Device, problem: &Problem) -> Option<Tile> {
        let mut inner = self.0.lock();
        // A file that is absent or does not count holds no results: there is nothing to fail for.
        let kept = inner.kept.get_or_insert_with(|| {
            Store::open(device).map_or_else(|_| HashMap::new(), |store| store.tiles().collect())
        });
        kept.get(&key(problem)).copied()
    }
}

/// What a problem is kept under: all of its fields as Rust prints them, so that one which a later version adds changes every key.
fn key(problem: &Problem) -> String {
    format!("linear {problem:?}")
}

/// The tile for a problem: the one that was kept, if the device is to use it, else the model's. `None` if no tile fits the device.
pub(crate) fn choose(device: &Device, problem: &Problem, limits: &Limits) -> Result<Option<Tile>> {
    let kept = match device.tuning().mode()? {
        Tuning::Off => None,
        Tuning::Read => device.tuning().kept(device, problem),
    };
    let kept = kept.filter(|&tile| candidates(problem, limits).any(|candidate| candidate == tile));
    Ok(kept.or_else(|| select(problem, limits)))
}

/// A problem that an operation runs a kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Observation {
    problem: Problem,
    limits: Limits,
}

thread_local! {
    /// The problems that this thread's operations run kernels for, while someone wants to know.
    static OBSERVED: RefCell<Option<Vec<Observation>>> = const { RefCell::new(None) };
}

/// Says that a kernel is about to run for a problem, whoever chooses it.
pub(crate) fn notice(problem: &Problem, limits: &Limits) {
    OBSERVED.with_borrow_mut(|observed| {
        if let Some(observed) = observed {
            observed.push(Observation { problem: *problem, limits: *limits });
        }
    });
}

/// The problems that `work` runs kernels for.
fn observe(work: impl FnOnce() -> Result<()>) -> Result<Vec<Observation>> {
    OBSERVED.set(Some(Vec::new()));
    let outcome = work();
    let observed = OBSERVED.take().unwrap_or_default();
    outcome.map(|()| observed)
}

/// What the candidates for one problem take.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tuned {
    /// What the results are kept under.
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
/// The candidates read operands that lie as the operation's own kernel sees them: where it would copy them into aligned rows first,
/// they have been copied. So all of them are measured at the problem that the result is kept for, and the copies, which are
/// the same for all, do not count.
///
/// # Errors
///
/// As [`benchmark::linear`](fn@crate::benchmark::linear). A candidate that fails is left out.
pub fn linear(device: &Device, case: &LinearCase, options: &Options) -> Result<Option<Tuned>> {
    let Some(prepared) = Candidates::new(device, case)? else { return Ok(None) };
    let Candidates { observation: Observation { problem, limits }, stream, tiles, mut subjects } = prepared;
    let Some(model) = select(&problem, &limits) else { return Ok(None) };
    let mut running: Vec<&mut dyn Subject> =
        subjects.iter_mut().map(|subject| &mut **subject as &mut dyn Subject).collect();
    let timings = benchmark::interleaved(&stream, &mut running, options)?;
    Ok(Some(Tuned { key: key(&problem), model, candidates: tiles.into_iter().zip(timings).collect() }))
}

/// The kernels that compute one problem, each with operands to run on.
struct Candidates {
    /// The problem that all of them run, and the device's limits.
    observation: Observation,
    stream: Stream,
    tiles: Vec<Tile>,
    subjects: Vec<Box<dyn LinearSubject>>,
}

impl Candidates {
    /// Those of `case`; `None` where no kernel runs.
    fn new(device: &Device, case: &LinearCase) -> Result<Option<Self>> {
        let stream = device.default_stream();
        let mut by_itself = benchmark::linear_subject(&stream, &LinearCase { tile: None, ..case.clone() })?;
        let observed = observe(|| by_itself.enqueue(0))?;
        let Some(&observation) = observed.first() else { return Ok(None) };
        if by_itself.implementation()?.copies() > 0 {
            by_itself = by_itself.with_aligned_rows()?;
        }
        let (mut tiles, mut subjects) = (Vec::new(), Vec::new());
        for tile in candidates(&observation.problem, &observation.limits) {
            let mut candidate = by_itself.with_tile(Some(tile));
            // One that cannot run is left out; so is one that would run another problem, whose time says nothing about this one.
            if observe(|| candidate.enqueue(0)).is_ok_and(|observed| observed == [observation]) {
                tiles.push(tile);
                subjects.push(candidate);
            }
        }
        stream.synchronize()?;
        Ok(Some(Self { observation, stream, tiles, subjects }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::linear::select::Access;
    use crate::ops::{self, Implementation};
    use crate::tensor::Tensor;
    use crate::{DType, EmulatorOptions};

    fn implementation(device: &Device) -> Implementation {
        let x = Tensor::<f32>::zeros(device, [64, 64]).expect("memory");
        let w = Tensor::<f32>::zeros(device, [64, 64]).expect("memory");
        ops::linear(&x, &w).implementation().expect("a kernel")
    }

    fn problem(device: &Device) -> (Problem, Limits) {
        let observed = observe(|| {
            implementation(device);
            Ok(())
        });
        let observed = observed.expect("nothing fails").first().copied().expect("a choice");
        (observed.problem, observed.limits)
    }

    #[test]
    fn a_kept_choice_counts_only_where_it_was_asked_for() {
        let device = Device::emulator();
        let by_itself = implementation(&device);
        let (problem, limits) = problem(&device);
        let model = select(&problem, &limits).expect("a tile");
        let other = candidates(&problem, &limits).find(|&tile| tile != model).expect("a choice");

        let keep = |mode| {
            let kept = HashMap::from([(key(&problem), other)]);
            *device.tuning().0.lock() = Inner { mode: Some(mode), kept: Some(kept) };
        };
        keep(Tuning::Off);
        assert_eq!(implementation(&device), by_itself);
        keep(Tuning::Read);
        assert_ne!(implementation(&device), by_itself);
    }

    #[test]
    fn a_kept_choice_that_does_not_compute_the_problem_is_ignored() {
        let device = Device::emulator();
        let (problem, limits) = problem(&device);
        let wrong = Tile::ALL
            .into_iter()
            .find(|&tile| !candidates(&problem, &limits).any(|candidate| candidate == tile));
        let kept = HashMap::from([(key(&problem), wrong.expect("tiles of another GPU"))]);
        let by_itself = implementation(&device);
        *device.tuning().0.lock() = Inner { mode: Some(Tuning::Read), kept: Some(kept) };
        assert_eq!(implementation(&device), by_itself);
    }

    #[test]
    fn an_unknown_mode_is_an_error_that_names_the_variable() {
        assert_eq!("read".parse::<Tuning>().expect("a mode"), Tuning::Read);
        assert_eq!("off".parse::<Tuning>().expect("a mode"), Tuning::Off);
        let error = "raed".parse::<Tuning>().expect_err("no mode").to_string();
        assert!(error.contains(MODE_VARIABLE) && error.contains("`raed`"), "{error}");
    }

    /// What is measured is what is kept, with aligned rows and with rows that are copied into such first.
    #[test]
    fn every_candidate_runs_the_problem_that_its_time_is_kept_for() {
        let hopper = EmulatorOptions { compute_capability: (9, 0), ..EmulatorOptions::default() };
        for device in [Device::emulator(), Device::emulator_with(hopper)] {
            for (m, k, n, access) in [
                (16, 32, 16, Access::Aligned),
                (16, 34, 16, Access::Words),
                (16, 33, 16, Access::Aligned),
                // So long that the copies pay.
                (4, 8191, 8, Access::Aligned),
                (1, 8191, 8, Access::Aligned),
            ] {
                let case = LinearCase::new(DType::F16, m, k, n);
                let own = Candidates::new(&device, &case).expect("nothing fails").expect("a choice");
                let Observation { problem, limits } = own.observation;
                assert_eq!((problem.k, problem.access), (k as u32, access), "{device}");
                let all: Vec<_> = candidates(&problem, &limits).collect();
                assert_eq!(own.tiles, all, "{device}: all of {m}x{k}x{n} run");
                for subject in &own.subjects {
                    assert_eq!(subject.implementation().expect("a kernel").copies(), 0, "{device}");
                }
            }
        }
    }

    #[test]
    fn every_candidate_is_measured_and_the_models_choice_is_one() {
        let device = Device::emulator();
        let mut options = Options::default();
        (options.samples, options.warm_up, options.batch) =
            (1, std::time::Duration::ZERO, std::time::Duration::ZERO);
        let case = LinearCase::new(DType::F32, 16, 32, 16);
        let tuned = linear(&device, &case, &options).expect("nothing fails").expect("a choice");
        assert!(tuned.candidates.len() > 1);
        assert!(tuned.model_over_best().is_some_and(|ratio| ratio >= 1.0));
        assert!(tuned.candidates.iter().any(|(tile, _)| *tile == tuned.model));
        let cpu = linear(&Device::cpu(), &case, &options).expect("nothing fails");
        assert!(cpu.is_none(), "the CPU has no kernels to choose from");
    }
}
