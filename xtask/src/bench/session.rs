//! A run over operations that have sizes of their own: what their benches share, from the GPU and the framework to the verdicts.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use comfy_table::Table;
use serde::Serialize;
use warpsmith::Device;
use warpsmith_lab::benchmark::{self, Options, Sampler, Subject, Timing};

use super::clocks::{Mean, Monitor};
use super::report::{self, Verdict};
use super::torch::{Prepared, Script, Torch};
use super::{Args, present, rows};
use crate::measurement::Measurement;
use crate::provenance::Provenance;

/// The GPU, the framework, and what has become of the cases so far.
pub(super) struct Session<'a> {
    args: &'a Args,
    pub(super) device: Device,
    pub(super) options: Options,
    /// Bytes a second of a copy within the GPU's memory, read and written.
    pub(super) bandwidth: f64,
    pub(super) provenance: Provenance,
    torch: Option<Torch>,
    start: Instant,
    cases: usize,
    failed: usize,
}

/// What was measured together.
pub(super) struct Beside {
    /// Of each subject.
    pub(super) timings: Vec<Timing>,
    /// The framework's names and microseconds.
    pub(super) peers: Vec<(String, f64)>,
    /// What the GPU was at meanwhile, if that is known.
    pub(super) state: Option<Mean>,
}

impl<'a> Session<'a> {
    /// Opens the GPU that `args` name, measures its memory and starts the framework with `script`, if there is one and it is wanted.
    pub(super) fn open(args: &'a Args, script: Option<Script>) -> Result<Self> {
        let mut session = Self::of_caller(args, script)?;
        let bandwidth = benchmark::copy_bandwidth(&session.device, &session.options)
            .context("measuring the bandwidth")?;
        session.device.release_memory()?;
        println!("Copy within the GPU's memory: {:.2} TB/s, read and written", bandwidth * 1e-12);
        session.provenance.ceiling_tbps = Some(bandwidth * 1e-12);
        Ok(Self { bandwidth, ..session })
    }

    /// The same for what is about the caller's time: nothing is known of the GPU's memory.
    pub(super) fn of_caller(args: &'a Args, script: Option<Script>) -> Result<Self> {
        let device = args.open_gpu()?;
        let options = args.options()?;
        let script = script.filter(|_| !args.no_torch && !args.quick);
        let torch = script.and_then(|script| present("PyTorch", Torch::open(&args.python, script)));
        let mut provenance = Provenance::collect(&device, args.commit.clone());
        println!("{provenance}");
        if let Some(torch) = &torch {
            println!("PyTorch {}, in a process of its own that takes turns with this one", torch.version);
            provenance.libraries.push(format!("PyTorch {}", torch.version));
        }
        let (start, bandwidth) = (Instant::now(), f64::NAN);
        Ok(Self { args, device, options, bandwidth, provenance, torch, start, cases: 0, failed: 0 })
    }

    /// What `measure` gives for each of `cases` that can be measured. What cannot is told and counted: the others are worth keeping.
    pub(super) fn measure<C, R>(
        &mut self,
        cases: &[C],
        name: impl Fn(&C) -> String,
        mut measure: impl FnMut(&mut Self, &C) -> Result<R>,
    ) -> Result<Vec<R>> {
        let mut measured = Vec::new();
        for (number, case) in cases.iter().enumerate() {
            let seconds = self.start.elapsed().as_secs();
            eprintln!("[{seconds:3} s, {}/{}] {}", number + 1, cases.len(), name(case));
            let result = measure(self, case);
            measured.extend(self.counted(result));
            self.device.release_memory()?;
        }
        Ok(measured)
    }

    /// The result of a case; an error is told.
    pub(super) fn counted<R>(&mut self, result: Result<R>) -> Option<R> {
        self.cases += 1;
        result
            .inspect_err(|error| {
                eprintln!("error: {error:#}");
                self.failed += 1;
            })
            .ok()
    }

    /// The framework's names and microseconds for a request. If it fails it is absent from then on.
    pub(super) fn framework(&mut self, request: &impl Serialize) -> Vec<(String, f64)> {
        let Some(torch) = &mut self.torch else { return Vec::new() };
        match torch.ask(&self.device.default_stream(), request, &self.options) {
            Ok(times) => times.into_iter().map(|peer| (peer.variant, peer.median_us)).collect(),
            Err(reason) => {
                eprintln!("PyTorch is absent from here on: {reason:#}");
                self.torch = None;
                Vec::new()
            }
        }
    }

    /// The times of `subjects` and the framework's for a request, whose samples alternate. If the framework fails it is absent from then on.
    pub(super) fn beside(
        &mut self,
        subjects: &mut [&mut dyn Subject],
        request: &impl Serialize,
        clocks: Option<&Monitor>,
    ) -> Result<Beside> {
        let stream = self.device.default_stream();
        let framework = self.torch.as_mut().map(|torch| torch.make_ready(request, &self.options));
        let mut samplers: Vec<_> = framework.iter().flatten().flat_map(Prepared::samplers).collect();
        let mut samplers: Vec<_> = samplers.iter_mut().map(|sampler| sampler as &mut dyn Sampler).collect();
        let start = Instant::now();
        let timed = benchmark::interleaved_with(&stream, subjects, &mut samplers, &self.options);
        let state = clocks.and_then(|clocks| clocks.since(start));
        drop(samplers);
        // The framework's process is asked for its memory, or given up, whatever has become of ours.
        let elsewhere = timed.as_ref().map_or(&[][..], |(_, elsewhere)| elsewhere);
        let peers = match framework.map(|framework| framework?.finish(elsewhere)) {
            Some(Ok(measured)) => measured.into_iter().map(|peer| (peer.variant, peer.median_us)).collect(),
            Some(Err(reason)) => {
                eprintln!("PyTorch is absent from here on: {reason:#}");
                self.torch = None;
                Vec::new()
            }
            None => Vec::new(),
        };
        Ok(Beside { timings: timed?.0, peers, state })
    }

    /// A row of this session's results.
    pub(super) fn measurement(&self, suite: &str) -> Measurement {
        Measurement::of(&self.provenance, suite)
    }

    /// Prints the tables that have rows and the verdicts, and writes the results.
    ///
    /// An error if a case could not be measured.
    pub(super) fn finish(
        &self,
        tables: &[Table],
        measurements: impl IntoIterator<Item = Measurement>,
        verdicts: Vec<Verdict>,
    ) -> Result<ExitCode> {
        tables.iter().filter(|table| !table.is_empty()).for_each(|table| println!("{table}"));
        if let Some(path) = &self.args.csv {
            rows::write(path, measurements)?;
        }
        let missed = report::print_verdicts(verdicts);
        if self.failed > 0 {
            bail!("{} of {} cases could not be measured", self.failed, self.cases);
        }
        Ok(if missed && self.args.check { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}
