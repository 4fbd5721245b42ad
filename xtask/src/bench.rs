//! `xtask bench`: times the operations on a GPU, beside the vendor's libraries, a framework, and the GPU's own ceilings.
//!
//! What is compared runs interleaved: in this process on one stream, but for the framework, whose process takes each of its samples when this one
//! asks for it. The memory's ceiling is measured first, those of products are the fastest of the run. Results are data: each row of the CSV says where it came from.

mod accuracy;
mod attention;
mod calls;
mod case;
mod ceilings;
mod clocks;
mod cublas;
mod cublaslt;
mod draw;
mod experts;
mod operands;
mod ours;
mod parallel;
mod pass;
mod peer;
mod profile;
mod report;
mod residency;
mod row_operations;
mod rows;
mod session;
mod suites;
mod topk;
mod torch;
mod training;
pub(crate) mod tune;
mod update;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use warpsmith::ops::gemm::Tile;
use warpsmith::{Device, DeviceKind, Error};
use warpsmith_lab::benchmark::{self, Options, Sampler, Subject, Timing};

use crate::measurement::Measurement;
use crate::provenance::Provenance;
use accuracy::{Compared, Reference};
use case::{Case, Precision, parse_shape};
use ceilings::Ceilings;
use clocks::Monitor;
use cublas::Cublas;
use cublaslt::CublasLt;
use draw::Draw;
use operands::Operands;
use ours::Variant;
use report::{Control, Ours, Peer, Row, Verdict};
use suites::Suite;
use torch::{Prepared, Torch};

/// Time the operations on a GPU, beside cuBLASLt, PyTorch and the GPU's ceilings.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The GPU: cuda or cuda:N.
    #[arg(long, default_value = "cuda:0")]
    device: String,
    /// Load the PTX in this folder, which `xtask ptx` wrote, in the place of the built-in modules of the same names, to compare with an
    /// earlier state.
    #[arg(long, value_name = "FOLDER")]
    ptx: Option<PathBuf>,
    /// What to measure: linear operations, or what has sizes of its own: attention, generated low-rank updates, PEER layers, top-k, operations on rows, training, the time of
    /// the caller or several ranks.
    #[arg(long, value_enum, default_value_t = Measured::Linear)]
    operation: Measured,
    /// Only these sets of sizes, separated by commas.
    #[arg(long, value_delimiter = ',')]
    suite: Vec<Suite>,
    /// Only these types instead of each set's own: bf16, f16, tf32, f32, f8e4m3, bf16-to-f32 or f8e4m3-by-e5m2, separated by commas.
    #[arg(long, value_delimiter = ',')]
    dtype: Vec<Precision>,
    /// Only these sizes, as MxKxN separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = parse_shape)]
    shape: Vec<[usize; 3]>,
    #[command(flatten)]
    draw: Draw,
    /// Only what has this text in its operation, type and size, e.g. `f16 1024` or `peer residency`.
    #[arg(long)]
    filter: Option<String>,
    /// Take this tile instead of the one that would be chosen.
    #[arg(long)]
    tile: Option<Tile>,
    /// Measure every tile beside the choice.
    #[arg(long, conflicts_with = "tile")]
    variants: bool,
    /// Samples of each subject.
    #[arg(long, default_value_t = 11)]
    samples: usize,
    /// Seconds to run before the first sample of each size.
    #[arg(long, default_value_t = 0.3)]
    warm_up: f64,
    /// Fewer samples and less warm-up, and no framework: for a first look.
    #[arg(long)]
    quick: bool,
    /// The Python to ask for PyTorch.
    #[arg(long, default_value = "python3")]
    python: String,
    /// Do not compare with PyTorch.
    #[arg(long)]
    no_torch: bool,
    /// How PyTorch compiles its compiled variant, which the suites main and epilogue have.
    #[arg(long, default_value = "default")]
    torch_compile: String,
    /// Take no times, but launch each subject so often while a profiler is asked to look: for `ncu --profile-from-start off cargo xtask bench …`.
    #[arg(long, value_name = "LAUNCHES", conflicts_with_all = ["csv", "check"])]
    profile: Option<usize>,
    /// Write the results to this file, and how exact products of f32 are to one with `-error` at the end of its name. Until the run has ended, what has
    /// been measured so far of linear operations is in one with `-partial`.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// The commit to note in the results; by default the one that `git` reports here.
    #[arg(long)]
    commit: Option<String>,
    /// Fail if a goal is missed.
    #[arg(long)]
    check: bool,
    /// Of several ranks: how many.
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Of several ranks: draw timelines of steps into this folder.
    #[arg(long, value_name = "FOLDER")]
    svg: Option<PathBuf>,
}

/// The operations that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Measured {
    Linear,
    Attention,
    Update,
    Peer,
    /// The experts of PEER layers alone, for each number of blocks that may share a token.
    Experts,
    /// Top-k.
    Topk,
    /// Norms and other operations on rows.
    Rows,
    /// Layers with their gradients, steps of an optimiser, and whole steps of networks.
    Training,
    /// What calls cost their caller until the work is enqueued.
    Calls,
    /// Collectives, and steps that several ranks share.
    Parallel,
}

impl Args {
    /// The GPU, with the kernels that are to be measured.
    fn open_gpu(&self) -> Result<Device> {
        let device = open_gpu(&self.device)?;
        if let Some(folder) = &self.ptx {
            let names = device.replace_modules(folder).context("--ptx")?;
            println!("Kernels from {}: {}", folder.display(), names.join(", "));
        }
        Ok(device)
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = suites::cases(&self.suite, &self.dtype, &self.shape, self.draw);
        if let Some(filter) = &self.filter {
            let filter = filter.replace('x', "×");
            cases.retain(|case| case.to_string().contains(&filter));
        }
        cases
    }

    fn options(&self) -> Result<Options> {
        let mut options = Options::default();
        options.samples = if self.quick { 5 } else { self.samples };
        let warm_up = if self.quick { 0.05 } else { self.warm_up };
        options.warm_up = Duration::try_from_secs_f64(warm_up).context("--warm-up")?;
        Ok(options)
    }
}

/// Everything that measurements are made with.
struct Bench<'a> {
    args: &'a Args,
    device: Device,
    options: Options,
    cublaslt: Option<Rc<CublasLt>>,
    cublas: Option<Rc<Cublas>>,
    torch: Option<Torch>,
    ceilings: Ceilings,
    rows: Vec<Row>,
    controls: Vec<Control>,
    errors: Vec<Compared>,
    clocks: Option<Monitor>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match args.operation {
        Measured::Linear => {}
        Measured::Attention => return attention::run(args),
        Measured::Update => return update::run(args),
        Measured::Peer => return peer::run(args),
        Measured::Experts => return experts::run(args),
        Measured::Topk => return topk::run(args),
        Measured::Rows => return row_operations::run(args),
        Measured::Training => return training::run(args),
        Measured::Calls => return calls::run(args),
        Measured::Parallel => return parallel::run(args),
    }
    let start = Instant::now();
    let device = args.open_gpu()?;
    let options = args.options()?;
    let cases = args.cases();
    if cases.is_empty() {
        bail!("nothing to measure: no case is of these suites, types and sizes");
    }
    let stream = device.default_stream();
    let cublaslt = present("cuBLASLt", CublasLt::open(&stream));
    let cublas = present("cuBLAS", Cublas::open(&stream));
    // A profiler looks at this process.
    let absent = args.no_torch || args.quick || args.profile.is_some();
    let torch = if absent { None } else { present("PyTorch", Torch::open(&args.python, torch::LINEAR)) };

    let mut provenance = Provenance::collect(&device, args.commit.clone());
    println!("{provenance}");
    if let Some(library) = &cublaslt {
        println!("cuBLASLt {}", library.version());
        provenance.libraries.push(format!("cuBLASLt {}", library.version()));
    }
    if let Some(torch) = &torch {
        println!(
            "PyTorch {}, in a process of its own whose samples alternate with those of this one",
            torch.version
        );
        provenance.libraries.push(format!("PyTorch {}", torch.version));
    }
    let ceilings =
        Ceilings::new(benchmark::copy_bandwidth(&device, &options).context("measuring the bandwidth")?);
    device.release_memory()?;
    println!("Copy within the GPU's memory: {:.2} TB/s, read and written", ceilings.bandwidth * 1e-12);
    provenance.ceiling_tbps = Some(ceilings.bandwidth * 1e-12);

    let (rows, controls, errors) = (Vec::new(), Vec::new(), Vec::new());
    let clocks = match device.kind() {
        DeviceKind::Cuda(gpu) => present("The clock", Monitor::open(gpu)),
        _ => None,
    };
    let mut bench =
        Bench { args, device, options, cublaslt, cublas, torch, ceilings, rows, controls, errors, clocks };
    let mut failed = 0;
    for (number, case) in cases.iter().enumerate() {
        let seconds = start.elapsed().as_secs();
        eprintln!("[{seconds:3} s, {}/{}] {} {case}", number + 1, cases.len(), case.suite.name());
        // What was measured before is worth keeping.
        if let Err(error) = bench.measure(case) {
            eprintln!("error: {error:#}");
            failed += 1;
        }
        // So is it if the run is ended.
        if let Some(path) = &args.csv {
            bench.write(&beside(path, "-partial"), &provenance)?;
        }
        bench.device.release_memory()?;
    }
    let code = match args.profile {
        Some(_) => ExitCode::SUCCESS,
        None => bench.report(&provenance, &cases, start)?,
    };
    if failed > 0 {
        bail!("{failed} of {} cases could not be measured", cases.len());
    }
    Ok(code)
}

fn open_gpu(name: &str) -> Result<Device> {
    let device: Device = match name.parse() {
        Err(error @ (Error::NoDriver { .. } | Error::NoSuchDevice { .. })) => {
            bail!("bench measures a GPU, and there is none here: {error}")
        }
        other => other.with_context(|| format!("opening device `{name}`"))?,
    };
    match device.kind() {
        DeviceKind::Cuda(_) => Ok(device),
        _ => bail!("bench measures a GPU: times of {device} would say nothing about one"),
    }
}

/// A peer, or nothing but a word on why it is not there.
fn present<T>(name: &str, peer: Result<T>) -> Option<T> {
    peer.inspect_err(|reason| eprintln!("{name} is absent: {reason:#}")).ok()
}

/// A goal that is met if all of what was measured does; the numbers that miss it are told, or the one that is closest.
fn judged(goal: String, measured: impl Iterator<Item = (String, f64, bool)>) -> Verdict {
    let all: Vec<_> = measured.collect();
    if all.is_empty() {
        return Verdict { goal, measured: "not measured".into(), met: None };
    }
    let missed: Vec<_> = all.iter().filter(|(_, _, met)| !met).collect();
    let said: Vec<_> = missed.iter().map(|(label, value, _)| format!("{label} {value:.3}")).collect();
    let told = if said.is_empty() { format!("all of {}", all.len()) } else { said.join("; ") };
    Verdict { goal, measured: told, met: Some(missed.is_empty()) }
}

/// The file beside `path` whose name has `part` at the end of its stem.
fn beside(path: &Path, part: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(part);
    name.push(".csv");
    path.with_file_name(name)
}

fn microseconds(timing: &Timing) -> f64 {
    timing.median.as_secs_f64() * 1e6
}

impl Bench<'_> {
    /// Measures the variants of one case and everything to compare them with.
    fn measure(&mut self, case: &Case) -> Result<()> {
        let stream = self.device.default_stream();
        let asked = self.args.tile.map_or(Variant::Chosen, |tile| Variant::By(tile, None));
        let mut variants = vec![asked];
        if self.args.variants {
            variants.extend(ours::tiles_of(&self.device, case));
        }
        let ours = ours::subjects(&stream, case, &variants)?;
        // Some tiles do not serve what is stored besides y; one that was asked for by name is to fail, rather.
        let (variants, mut ours): (Vec<_>, Vec<_>) = variants
            .into_iter()
            .zip(ours)
            .filter(|(variant, ours)| *variant == asked || ours.implementation().is_ok())
            .unzip();
        let (mut peers, mut control) = self.peers(case)?;
        if let Some(launches) = self.args.profile {
            let ours = variants.iter().map(Variant::to_string).zip(ours);
            let ours = ours.map(|(name, ours)| (name, ours as Box<dyn Subject>));
            let peers = peers.into_iter().map(|(name, peer)| (name.to_owned(), peer));
            return profile::launch(&stream, launches, ours.chain(peers));
        }

        let mut subjects: Vec<&mut dyn Subject> =
            ours.iter_mut().map(|ours| &mut **ours as &mut dyn Subject).collect();
        subjects.extend(peers.iter_mut().map(|(_, peer)| &mut **peer as &mut dyn Subject));
        subjects.extend(control.as_mut().map(|control| control as &mut dyn Subject));
        // Before the clock is watched: what loads a kernel is no part of its state.
        subjects.iter_mut().try_for_each(|subject| subject.enqueue(0))?;
        stream.synchronize()?;
        let compiled = matches!(case.suite, Suite::Main | Suite::Epilogue);
        let compile = compiled.then_some(self.args.torch_compile.as_str());
        let framework = self.torch.as_mut().map(|torch| torch.prepare(case, compile, &self.options));
        let mut samplers: Vec<_> = framework.iter().flatten().flat_map(Prepared::samplers).collect();
        let mut samplers: Vec<_> = samplers.iter_mut().map(|sampler| sampler as &mut dyn Sampler).collect();
        let start = Instant::now();
        let timed = benchmark::interleaved_with(&stream, &mut subjects, &mut samplers, &self.options);
        let state = self.clocks.as_ref().and_then(|clocks| clocks.since(start));
        drop((subjects, samplers));
        // PyTorch's process is asked for its memory, or given up, whatever has become of ours.
        let elsewhere = timed.as_ref().map_or(&[][..], |(_, elsewhere)| elsewhere);
        let framework = framework.map(|framework| framework?.finish(elsewhere));
        if let Some(Err(reason)) = &framework {
            eprintln!("PyTorch is absent from here on: {reason:#}");
            self.torch = None;
        }
        let (timings, _) = timed?;
        let peer_times = timings[ours.len()..].iter();
        let mut peers: Vec<Peer> = peers
            .into_iter()
            .zip(peer_times)
            .map(|((name, _), timing)| Peer { name: name.into(), microseconds: microseconds(timing) })
            .collect();
        let control = control.and(timings.last()).map(microseconds);

        let mut measured = Vec::new();
        for ((ours, variant), timing) in ours.iter().zip(&variants).zip(&timings) {
            let kernel = ours.implementation()?;
            measured.push((variant.to_string(), Some(Ours { kernel, microseconds: microseconds(timing) })));
        }
        if measured.is_empty() {
            measured.push(("none".into(), None));
        }
        if let Some(Ok(framework)) = framework {
            peers.extend(self.controlled(case, control, framework));
        }

        let times =
            measured.iter().filter_map(|(variant, ours)| Some((variant, ours.as_ref()?.microseconds)));
        let times = times.chain(peers.iter().map(|peer| (&peer.name, peer.microseconds)));
        let times: Vec<_> = times.map(|(name, time)| format!("{name} {time:.2}")).collect();
        eprintln!("  {}", times.join(", "));
        let rows: Vec<Row> = measured
            .into_iter()
            .map(|(variant, ours)| Row { case: *case, variant, ours, peers: peers.clone(), state })
            .collect();
        for time in rows.iter().flat_map(Row::times_of_products) {
            self.ceilings.note(case, time * 1e-6);
        }
        self.rows.extend(rows);
        Ok(())
    }

    /// The baselines of this process, by their names, and cuBLAS's own choice as a control where PyTorch is there to be compared
    /// with it.
    #[allow(clippy::type_complexity, reason = "names and subjects side by side")]
    fn peers(
        &mut self,
        case: &Case,
    ) -> Result<(Vec<(&'static str, Box<dyn Subject>)>, Option<cublas::Product>)> {
        let mut peers: Vec<(&'static str, Box<dyn Subject>)> = Vec::new();
        let stream = self.device.default_stream();
        let operands = Rc::new(Operands::new(&stream, *case)?);
        let reference = accuracy::is_compared(case).then(|| Reference::new(case));
        // What the fused peer has just left in the first y.
        let mut sampled = None;
        if let Some(library) = &self.cublaslt {
            let fastest = |operation| present("  A peer", library.fastest(&operands, operation)).flatten();
            let product = case.operation.its_product();
            let is_product = case.operation == product;
            if let Some(product) = fastest(product) {
                let unfused = pass::Unfused::new(&stream, product.clone(), &operands);
                let unfused = present("  A peer", unfused).flatten();
                peers.extend(unfused.map(|it| ("cublaslt-unfused", Box::new(it) as Box<dyn Subject>)));
                peers.push(("cublaslt-product", Box::new(product)));
            }
            if !is_product && let Some(fused) = fastest(case.operation) {
                sampled =
                    reference.as_ref().map(|reference| operands.sampled(&reference.rows)).transpose()?;
                peers.push(("cublaslt-fused", Box::new(fused)));
            }
        }
        if let Some(reference) = &reference {
            let theirs = sampled.map(|sampled| ("cublaslt-fused", sampled));
            let compared = present("  A comparison with f64", Compared::new(&stream, reference, theirs));
            self.errors.extend(compared);
        }
        let control = match (&self.cublas, &self.torch) {
            (Some(library), Some(_)) => present("  A peer", library.product(&operands)).flatten(),
            _ => None,
        };
        Ok((peers, control))
    }

    /// PyTorch's times as baselines; that of its plain product is compared with `control`, what this process took for the same.
    fn controlled(&mut self, case: &Case, control: Option<f64>, measured: Vec<torch::Measured>) -> Vec<Peer> {
        let mut peers = Vec::new();
        for torch::Measured { variant, median_us } in measured {
            let peer = Peer { name: variant, microseconds: median_us };
            match control {
                _ if peer.name != torch::PRODUCT => peers.push(peer),
                Some(ours) => self.controls.push(Control { case: *case, ours, peer }),
                None => {}
            }
        }
        peers
    }

    fn measurements(&self, provenance: &Provenance) -> Vec<Measurement> {
        report::measurements(&self.rows, &self.controls, &self.ceilings, provenance)
    }

    /// Writes what has been measured so far to `path`, and how exact products of f32 are to the file beside it.
    fn write(&self, path: &Path, provenance: &Provenance) -> Result<()> {
        rows::write(path, self.measurements(provenance))?;
        if !self.errors.is_empty() {
            let errors = self.errors.iter().flat_map(|compared| compared.rows(provenance));
            rows::write(&beside(path, "-error"), errors)?;
        }
        Ok(())
    }

    fn report(&self, provenance: &Provenance, cases: &[Case], start: Instant) -> Result<ExitCode> {
        println!("{}", report::table(&self.rows, &self.ceilings));
        self.ceilings.print();
        report::print_controls(&self.controls);
        self.errors.iter().for_each(Compared::print);
        if let Some(path) = &self.args.csv {
            self.write(path, provenance)?;
            let partial = beside(path, "-partial");
            for part in [beside(&partial, "-error"), partial] {
                if part.exists() {
                    std::fs::remove_file(&part).with_context(|| format!("removing {}", part.display()))?;
                }
            }
        }
        let measurements = self.measurements(provenance);
        println!("{}: {} cases in {} s", report::suites_of(cases), cases.len(), start.elapsed().as_secs());
        let missed = report::print_verdicts(report::verdicts(&measurements));
        Ok(if missed && self.args.check { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}
