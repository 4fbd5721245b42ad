//! `xtask validate --load`: operations under load, their bits compared with those of a run alone.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::bail;
use comfy_table::{Cell, Color, Table, presets};
use serde::Serialize;
use warpsmith::{Device, DeviceKind};
use warpsmith_lab::validate::load::{self, Options, Phase, Work};

use super::cases;
use super::progress_bar;

/// Threads and runs of each work on devices that are not GPUs.
const ELSEWHERE: (usize, usize) = (2, 1);
/// Works that run beside those that were asked for, on a GPU, and how much more seldom.
const BESIDE: usize = 16;
const MORE_SELDOM: usize = 20;

/// How much load there is.
#[derive(clap::Args, Debug)]
#[group(id = "under_load")]
pub(crate) struct Args {
    /// Under load: threads, each with a stream and operands of its own (16; 2 where there is no GPU).
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Under load: how often each work runs in each phase, by all threads together (1000; once where there is no GPU).
    #[arg(long, value_name = "M")]
    rounds: Option<usize>,
    /// Under load: only works in whose name this text is, or if there are none in the names of whose kernels.
    #[arg(long, value_name = "PATTERN")]
    only: Option<String>,
    /// Under load: how many of the other works run beside those of `--only`, each a twentieth as often (16; none where there is no GPU).
    #[arg(long, value_name = "COUNT", requires = "only")]
    beside: Option<usize>,
    /// Under load: only these phases; may be given several times.
    #[arg(long = "phase", value_name = "PHASE", value_parser = phase)]
    phases: Vec<Phase>,
    /// Under load: how many works are mixed at a time (32).
    #[arg(long, value_name = "K")]
    together: Option<usize>,
}

impl Args {
    /// The error for options of a load where there is none.
    pub(super) fn expect_none(&self) -> anyhow::Result<()> {
        let Self { threads, rounds, only, beside: _, phases, together } = self;
        let given = [
            ("--threads", threads.is_some()),
            ("--rounds", rounds.is_some()),
            ("--only", only.is_some()),
            ("--phase", !phases.is_empty()),
            ("--together", together.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => bail!("{option} is about operations under load: add `--load` or `--full`"),
            None => Ok(()),
        }
    }

    fn options(&self, device: &Device, seed: u64) -> Options {
        let mut options = Options::default();
        if !matches!(device.kind(), DeviceKind::Cuda(_)) {
            (options.threads, options.rounds) = ELSEWHERE;
        }
        options.threads = self.threads.unwrap_or(options.threads);
        options.rounds = self.rounds.unwrap_or(options.rounds);
        options.together = self.together.unwrap_or(options.together);
        options.seed = seed;
        if !self.phases.is_empty() {
            options.phases = Phase::ALL.into_iter().filter(|phase| self.phases.contains(phase)).collect();
        }
        options
    }
}

fn phase(name: &str) -> Result<Phase, String> {
    let all = Phase::ALL.map(Phase::name).join(", ");
    Phase::ALL.into_iter().find(|phase| phase.name() == name).ok_or_else(|| format!("expected one of {all}"))
}

/// What ran, and what came of it.
#[derive(Debug, Serialize)]
pub(super) struct Load {
    device: String,
    device_name: String,
    seed: u64,
    threads: usize,
    rounds: usize,
    /// The folder whose PTX ran in the place of the built-in.
    ptx: Option<String>,
    seconds: f64,
    runs: u64,
    differing: u64,
    pub(super) passed: bool,
    phases: Vec<OfPhase>,
    works: Vec<OfWork>,
    failures: Vec<String>,
}

#[derive(Debug, Serialize)]
struct OfPhase {
    phase: &'static str,
    runs: u64,
    differing: u64,
    seconds: f64,
    /// What the device has not got that the phase is about.
    lacks: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct OfWork {
    name: String,
    implementation: String,
    runs: u64,
    differing: u64,
    first: Option<First>,
    failure: Option<String>,
    passed: bool,
}

/// The first run of a work that differs.
#[derive(Debug, Serialize)]
struct First {
    phase: &'static str,
    thread: usize,
    round: u64,
    output: &'static str,
    different: u64,
    elements: u64,
    index: Vec<usize>,
    got: String,
    expected: String,
    #[serde(skip)]
    text: String,
}

/// Runs every operation that was asked for under load.
pub(super) fn run(device: &Device, args: &super::Args) -> anyhow::Result<Load> {
    let of_load = &args.under_load;
    let options = of_load.options(device, args.seed);
    let mut works = cases::load(device, args.op, args.seed);
    if let Some(pattern) = &of_load.only {
        let others = keep(device, &mut works, pattern);
        let on_gpu = matches!(device.kind(), DeviceKind::Cuda(_));
        let count = of_load.beside.unwrap_or(if on_gpu { BESIDE } else { 0 });
        if !works.is_empty() {
            works.extend(spread(others, count).map(|work| work.rounds(options.rounds / MORE_SELDOM)));
        }
        if works.is_empty() {
            bail!(
                "--only: expected a part of a work's or a kernel's name, no work has `{pattern}` in either"
            );
        }
    }
    let start = Instant::now();
    let progress = progress_bar(0);
    let runs = AtomicU64::new(0);
    let report = load::run(device, &works, &options, &|so_far: load::Progress| {
        let runs = runs.fetch_add(so_far.runs, Ordering::Relaxed) + so_far.runs;
        progress.set_length(so_far.steps as u64);
        progress.set_position(so_far.step as u64);
        progress.set_message(format!("under load: {}, {runs} runs", so_far.phase));
    });
    progress.finish_and_clear();
    let report = report?;
    let kind = device.kind();
    Ok(Load {
        device: device.to_string(),
        device_name: device.name().to_owned(),
        seed: args.seed,
        threads: options.threads,
        rounds: options.rounds,
        ptx: args.ptx.as_ref().map(|folder| folder.display().to_string()),
        seconds: start.elapsed().as_secs_f64(),
        runs: report.runs(),
        differing: report.differing(),
        passed: report.passed(),
        phases: report
            .phases
            .iter()
            .map(|outcome| OfPhase {
                phase: outcome.phase.name(),
                runs: outcome.runs,
                differing: outcome.differing,
                seconds: outcome.seconds,
                lacks: outcome.phase.lacks(kind),
            })
            .collect(),
        failures: report.failures.iter().map(ToString::to_string).collect(),
        works: report.works.into_iter().map(OfWork::from).collect(),
    })
}

/// Keeps the works in whose names there is `pattern`, or if there are none those in whose kernels' names it is, and gives the others.
fn keep(device: &Device, works: &mut Vec<Work>, pattern: &str) -> Vec<Work> {
    let has_name = |work: &Work| work.name().contains(pattern);
    if works.iter().any(has_name) {
        return works.extract_if(.., |work| !has_name(work)).collect();
    }
    // What cannot be prepared is left to whoever asks for it by its name.
    let has_kernel = |text: warpsmith::Result<String>| text.is_ok_and(|text| text.contains(pattern));
    let mut is_kept = implementations(device, works).into_iter().map(has_kernel);
    works.extract_if(.., |_| !is_kept.next().unwrap_or(false)).collect()
}

/// What each work runs.
///
/// In threads of their own, not rayon's: one of those that waits for a part of a work would take another work meanwhile.
fn implementations(device: &Device, works: &[Work]) -> Vec<warpsmith::Result<String>> {
    let progress = progress_bar(works.len());
    let threads = thread::available_parallelism().map_or(1, |count| count.get());
    let parts: Vec<Vec<_>> = thread::scope(|scope| {
        let part = |chunk| {
            let progress = &progress;
            scope.spawn(move || {
                let of = |work: &Work| {
                    progress.inc(1);
                    work.implementation(device)
                };
                <[Work]>::iter(chunk).map(of).collect()
            })
        };
        let all: Vec<_> = works.chunks(works.len().div_ceil(threads).max(1)).map(part).collect();
        all.into_iter().map(|part| part.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    progress.finish_and_clear();
    parts.into_iter().flatten().collect()
}

/// `count` of some works, as far from each other as can be: operations come one after the other.
fn spread(works: Vec<Work>, count: usize) -> impl Iterator<Item = Work> {
    let (all, count) = (works.len(), count.min(works.len()));
    let is_one = move |index: usize| (index + 1) * count / all > index * count / all;
    works.into_iter().enumerate().filter(move |(index, _)| is_one(*index)).map(|(_, work)| work)
}

impl From<load::WorkOutcome> for OfWork {
    fn from(outcome: load::WorkOutcome) -> Self {
        let passed = outcome.passed();
        let first = outcome.first.map(|first| First {
            text: first.to_string(),
            phase: first.phase.name(),
            thread: first.thread,
            round: first.round,
            output: first.output,
            different: first.different,
            elements: first.elements,
            index: first.index,
            got: first.got,
            expected: first.expected,
        });
        Self {
            name: outcome.name,
            implementation: outcome.implementation,
            runs: outcome.runs,
            differing: outcome.differing,
            first,
            failure: outcome.failure.map(|failure| failure.to_string()),
            passed,
        }
    }
}

impl Load {
    /// Prints every work and phase, and what they come to.
    pub(super) fn print(&self) {
        println!("{}", self.table());
        for OfPhase { phase, runs, differing, seconds, lacks } in &self.phases {
            let lacks = lacks.map_or_else(String::new, |lacks| format!(" ({lacks})"));
            println!("{phase}: {runs} runs, {differing} differ, {seconds:.1} s{lacks}");
        }
        let Self { device, device_name, threads, rounds, seconds, runs, differing, works, .. } = self;
        let failed = works.iter().filter(|work| work.failure.is_some()).count();
        self.failures.iter().for_each(|failure| println!("FAILED: {failure}"));
        println!(
            "Under load on {device} ({device_name}): {runs} runs of {} works, by {threads} threads, {rounds} runs of each a \
             phase, in {seconds:.1} s; {differing} runs differ, {failed} works failed",
            works.len()
        );
        if let Some(folder) = &self.ptx {
            println!("With PTX from {folder} in the place of the built-in.");
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table
            .load_style(presets::UTF8_FULL_CONDENSED)
            .set_header(["work", "what ran", "runs", "differ", "verdict"]);
        for work in &self.works {
            let verdict = match (&work.failure, &work.first) {
                (Some(failure), _) => Cell::new(format!("FAILED: {failure}")).fg(Color::Red),
                (None, Some(first)) => Cell::new(format!("DIFFERS: {}", first.text)).fg(Color::Red),
                (None, None) if work.passed => Cell::new("same bits").fg(Color::Green),
                (None, None) => Cell::new("did not run").fg(Color::Red),
            };
            table.add_row(vec![
                Cell::new(&work.name),
                Cell::new(&work.implementation),
                Cell::new(work.runs),
                Cell::new(work.differing),
                verdict,
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use clap::Parser;
    use warpsmith::{DType, Device};
    use warpsmith_kernels::{MODULES, PtxModule};
    use warpsmith_lab::validate::load::Phase;

    use super::super::cases::{self, Target};
    use super::{implementations, keep, run, spread};

    #[derive(clap::Parser, Debug)]
    struct Command {
        #[command(flatten)]
        args: super::super::Args,
    }

    fn parse(arguments: &[&str]) -> Result<super::super::Args, String> {
        let all = ["validate"].iter().chain(arguments);
        Command::try_parse_from(all).map(|command| command.args).map_err(|error| error.to_string())
    }

    #[test]
    fn bad_options_say_what_is_expected() {
        let refused = |arguments: &[&str]| {
            let args = parse(arguments).expect("they can be read");
            format!("{:#}", run(&Device::cpu(), &args).expect_err("they make no load"))
        };
        assert!(refused(&["--load", "--threads", "0"]).contains("threads is 0, expected 1 to 1024"));
        assert!(refused(&["--load", "--rounds", "0"]).contains("rounds is 0, expected at least 1"));
        assert!(refused(&["--load", "--only", "nothing like it"]).contains("nothing like it"));
        let unread = |arguments: &[&str]| parse(arguments).expect_err("they cannot be read");
        assert!(unread(&["--load", "--phase", "tea"]).contains("queue, streams, graphs, captures"));
        assert!(unread(&["--load", "--quick"]).contains("cannot be used with"));
        let args = parse(&["--threads", "3"]).expect("they can be read");
        let error = args.under_load.expect_none().expect_err("there is no load");
        assert!(error.to_string().contains("--threads") && error.to_string().contains("--load"));
    }

    /// The options of an ordinary run, with the one work that they leave.
    #[test]
    fn a_work_is_found_by_its_kernel_and_runs_in_the_phases_asked_for() {
        let device = "emulator:9.0".parse().expect("a device");
        let kernel = "linear_update_hopper_bf16_16x64";
        let arguments = ["--load", "--op", "update", "--only", kernel, "--phase", "streams", "--rounds", "2"];
        let load = run(&device, &parse(&arguments).expect("they can be read")).expect("it runs");
        assert!(
            load.passed && load.works.iter().all(|work| work.implementation.contains(kernel)),
            "{load:?}"
        );
        let phases: Vec<_> = load.phases.iter().map(|phase| (phase.phase, phase.lacks.is_some())).collect();
        assert_eq!(phases, [("alone", false), (Phase::Streams.name(), true)]);
        let json = serde_json::to_value(&load).expect("it can be written");
        assert_eq!(json["works"][0]["differing"], 0);
    }

    /// Kernels that operations launch beside those that they name: copies of both operands at once, conversions, those of a cache, of sorted experts and
    /// of the second part of a layer's tokens.
    const UNNAMED: [&str; 9] = [
        "kv_cache_positions",
        "product_key_topk_cluster_rounds",
        "repack_pair",
        "widen_fp8",
        "fill_slots",
        "note_rows",
        "settle_notes",
        "expert_mlp_order",
        "expert_mlp_outputs",
    ];

    /// Whether it is a linear operation of more rows than those that ask for each tile by name have, and as many columns of K.
    fn is_of_many_tiles(name: &str) -> bool {
        let is_linear = name.starts_with("linear ") || name.starts_with("linear_scaled ");
        is_linear && (name.contains("×1000×") || name.contains("×1008×")) && !name.contains(" 333×")
    }

    /// With the sizes for the emulator, and for Hopper with those for a GPU, which are only prepared here.
    #[test]
    fn every_kernel_of_a_device_is_under_load() {
        // Hopper's kernels for updates of large outputs are chosen for none that the emulator would run in seconds.
        for (name, on_gpu) in [("emulator:7.5", false), ("emulator", false), ("emulator:9.0", true)] {
            let device: Device = name.parse().expect("a device");
            let capability = device.properties().compute_capability;
            let mut reached = BTreeSet::new();
            let mut works = cases::load_works(Target { on_gpu, ..Target::of(&device) }, true, None, 1);
            // Many tiles are made by the kernels of few.
            works.retain(|work| !is_of_many_tiles(work.name()));
            for (work, text) in works.iter().zip(implementations(&device, &works)) {
                let text = text.unwrap_or_else(|error| panic!("{}: {error}", work.name()));
                let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                reached.extend(words.map(str::to_owned));
            }
            let runs = |module: &&PtxModule| match module.arch_specific {
                true => module.arch == capability,
                false => module.arch <= capability,
            };
            // Of each family that which is for the latest architecture.
            let mut modules: BTreeMap<&str, &PtxModule> = BTreeMap::new();
            for module in MODULES.iter().filter(runs) {
                let best = modules.entry(module.family).or_insert(module);
                if (module.arch, module.arch_specific) > (best.arch, best.arch_specific) {
                    *best = module;
                }
            }
            // Keys of 8 bits are widened by an instruction where there is one.
            if modules.contains_key("attention_fp8_ada") {
                modules.remove("attention_fp8");
            }
            let names = modules.values().flat_map(|module| module.entries).map(|entry| entry.name);
            let is_wide = |name: &str| name.starts_with("attention_gradient_") && name.ends_with("_f32_256");
            let takes_wide = cases::widest_gradients(DType::F32, &device) == 256;
            let is_named = |name: &&str| {
                !UNNAMED.iter().any(|unnamed| name.starts_with(unnamed)) && (takes_wide || !is_wide(name))
            };
            let missing: Vec<_> = names.filter(is_named).filter(|name| !reached.contains(*name)).collect();
            assert!(missing.is_empty(), "{name}, sizes for a GPU: {on_gpu}: {missing:?}");
        }
    }

    #[test]
    fn a_pattern_keeps_works_by_name_and_by_kernel() {
        let device = Device::emulator();
        let mut works = cases::load(&device, Some(super::super::Operation::Topk), 1);
        let all = works.len();
        let others = keep(&device, &mut works, "topk_f16_64");
        assert!(!works.is_empty() && works.len() + others.len() == all && !others.is_empty());
        assert_eq!(spread(others, 2).count(), 2);
        assert_eq!(spread(Vec::new(), 2).count(), 0);
        keep(&device, &mut works, "topk f16");
        assert!(!works.is_empty());
        keep(&device, &mut works, "topk f32");
        assert!(works.is_empty());
    }
}
