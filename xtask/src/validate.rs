//! `xtask validate`: runs every operation at many sizes, types and options, and compares each result with the f64 reference.
//!
//! It needs nothing but this program: on a GPU it runs the kernels there, without one in the emulator.

mod cases;
mod load;
mod report;
mod sanitize;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use warpsmith::{DType, Device, DeviceKind, EmulatorOptions};
use warpsmith_emulator::{TraceFilter, Tracer};
use warpsmith_lab::cases::{
    AdamWCase, AttentionCase, CrossEntropyCase, ElementwiseCase, EmbeddingCase, ExpertCase, KvCacheCase,
    LinearBackwardCase, LinearCase, MatmulBackwardCase, MatmulCase, NormCase, RepackCase, RotaryCase,
    RoutingCase, ScaledBackwardCase, ScaledCase, SoftmaxCase, TopkCase, UpdateBackwardCase, UpdateCase,
};
use warpsmith_lab::validate::{self, Outcome};

use cases::{Level, Target};
use report::{Json, Report, Row};

/// Compare every operation with its reference, on a GPU or in the emulator.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where to run: auto (the first GPU, else the emulator), cuda:N, emulator, emulator:9.0 or cpu.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Only this operation.
    #[arg(long, value_enum)]
    op: Option<Operation>,
    /// Fewer cases: a minute's worth at most.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// More and larger cases; on a GPU also compares it with the emulator, bit by bit, on integers. Ends with what `--load` does.
    #[arg(long)]
    full: bool,
    /// Instead of that, puts operations under load: every kernel, on many streams at a time, the bits compared with those of a run alone.
    #[arg(long, conflicts_with_all = ["quick", "full", "trace"])]
    load: bool,
    #[command(flatten)]
    under_load: load::Args,
    /// Instead of that, runs the quick cases on a GPU under a tool of NVIDIA's compute-sanitizer, each operation in a process of its own.
    #[arg(long, value_enum, value_name = "TOOL", conflicts_with_all = ["quick", "full", "load", "trace", "json"])]
    sanitize: Option<sanitize::Tool>,
    /// Write the results as JSON to this file, or to standard output for `-`.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// In the emulator, print what chosen lanes of a kernel execute: a part of the kernel's name, and `block=X[.Y[.Z]]`,
    /// `warp=W` and `lane=FIRST[-LAST]`, each of which may be left out.
    #[arg(long, value_name = "KERNEL[:FILTER]")]
    trace: Option<String>,
    /// Decides the random inputs, and the order of what runs under load.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs the PTX in this folder, which `xtask ptx` wrote, in the place of the built-in modules of the same names.
    #[arg(long, value_name = "FOLDER", hide = true)]
    ptx: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Operation {
    Linear,
    Matmul,
    LinearBackward,
    MatmulBackward,
    UpdateBackward,
    LinearScaled,
    LinearScaledBackward,
    Update,
    Topk,
    ProductKeyTopk,
    ProductKeyTopkBackward,
    ExpertMlp,
    ExpertMlpBackward,
    Repack,
    Attention,
    AttentionBackward,
    Norm,
    Softmax,
    CrossEntropy,
    Elementwise,
    Rotary,
    KvCache,
    Embedding,
    Adamw,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if !args.load && !args.full {
        args.under_load.expect_none()?;
    }
    if let Some(tool) = args.sanitize {
        return sanitize::run(tool, args);
    }
    let json = args.json.as_deref().map(Json::open).transpose()?;
    let device = match &args.trace {
        Some(filter) => tracing_emulator(&args.device, filter)?,
        None => open_device(&args.device)?,
    };
    let level = match (args.quick, args.full) {
        (true, _) => Level::Quick,
        (_, true) => Level::Full,
        _ => Level::Default,
    };
    if let Some(folder) = &args.ptx {
        let names = device.replace_modules(folder).context("replacing the built-in PTX")?;
        eprintln!("In the place of built-in modules, from {}: {}", folder.display(), names.join(", "));
    }
    if args.load {
        eprintln!("Operations under load on {device}: {}", device.name());
        let load = load::run(&device, args)?;
        if !matches!(json, Some(Json::Stdout)) {
            load.print();
        }
        if let Some(json) = json {
            json.write(&load)?;
        }
        return Ok(if load.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    eprintln!("Validating on {device}: {}", device.name());

    let start = Instant::now();
    let mut rows = Vec::new();
    if args.op.is_none_or(|op| op == Operation::Linear) {
        let target = Target::of(&device);
        let cases = cases::linear(level, target, args.seed);
        let compare = target.on_gpu && level == Level::Full;
        let compared_bits = if compare { cases::compared_bits(target, args.seed) } else { vec![] };
        let progress = progress_bar(cases.len() + compared_bits.len());
        for case in &cases {
            progress.set_message(format!("linear {} {}", case.types(), case.shape()));
            rows.push(row_of(Label::linear(case), || validate::linear(&device, case)));
            progress.inc(1);
        }
        let devices = [&device, &target.emulator()];
        for case in &compared_bits {
            progress.set_message(format!("GPU = emulator {} {}", case.types(), case.shape()));
            rows.push(compare_bits(Label::linear(case), devices, |device| {
                validate::linear_bits(device, case)
            }));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::Matmul) {
        let target = Target::of(&device);
        let cases = cases::matmul(level, target, args.seed);
        let compare = target.on_gpu && level == Level::Full;
        let compared_bits = if compare { cases::compared_products(target, args.seed) } else { vec![] };
        let progress = progress_bar(cases.len() + compared_bits.len());
        for case in &cases {
            progress.set_message(format!("matmul {} {}", case.product.types(), case.shape()));
            rows.push(row_of(Label::matmul(case), || validate::matmul(&device, case)));
            progress.inc(1);
        }
        let devices = [&device, &target.emulator()];
        for case in &compared_bits {
            progress.set_message(format!("GPU = emulator {} {}", case.product.types(), case.shape()));
            rows.push(compare_bits(Label::matmul(case), devices, |device| {
                validate::matmul_bits(device, case)
            }));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::LinearScaled) {
        let target = Target::of(&device);
        let cases = cases::scaled(level, target, args.seed);
        let compare = target.on_gpu && level == Level::Full;
        let compared_bits = if compare { cases::compared_scaled(target, args.seed) } else { vec![] };
        let progress = progress_bar(cases.len() + compared_bits.len());
        for case in &cases {
            progress.set_message(format!("linear_scaled {} {}", case.types(), case.shape()));
            rows.push(row_of(Label::scaled(case), || validate::linear_scaled(&device, case)));
            progress.inc(1);
        }
        let devices = [&device, &target.emulator()];
        for case in &compared_bits {
            progress.set_message(format!("GPU = emulator {} {}", case.types(), case.shape()));
            let bits = |device: &Device| validate::linear_scaled_bits(device, case);
            rows.push(compare_bits(Label::scaled(case), devices, bits));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    let mut unit_scaled = Vec::new();
    if args.op.is_none_or(|op| op == Operation::Update) {
        let cases = cases::updates(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("{} {} {}", case.operation(), case.dtype, case.shape()));
            let row = row_of(Label::update(case), || validate::generated_update(&device, case));
            if case.unit_scaled {
                unit_scaled.push(UnitScaled::new(case, &row));
            }
            rows.push(row);
            progress.inc(1);
        }
        progress.finish_and_clear();
    }

    if args.op.is_none_or(|op| op == Operation::Topk) {
        let cases = cases::selections(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("topk {} {}", case.dtype, case.shape()));
            rows.push(row_of(Label::topk(case), || validate::topk(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::LinearBackward) {
        let cases = cases::linear_gradients(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("linear_backward {} {}", case.types(), case.shape()));
            rows.push(row_of(Label::linear_backward(case), || validate::linear_backward(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::MatmulBackward) {
        let cases = cases::matmul_gradients(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("matmul_backward {}", case.product.shape()));
            rows.push(row_of(Label::matmul_backward(case), || validate::matmul_backward(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::LinearScaledBackward) {
        let cases = cases::scaled_gradients(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("linear_scaled_backward {}", case.product.shape()));
            rows.push(row_of(Label::scaled_backward(case), || validate::scaled_backward(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::UpdateBackward) {
        let cases = cases::update_gradients(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("{} {}", case.operation(), case.update.shape()));
            rows.push(row_of(Label::update_backward(case), || validate::update_backward(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::Norm) {
        let cases = cases::norms(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("norm {} {}", case.dtype, case.shape()));
            rows.push(row_of(Label::norm(case), || validate::norm(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::Softmax) {
        let cases = cases::softmaxes(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("softmax {} {}", case.dtype, case.shape()));
            rows.push(row_of(Label::softmax(case), || validate::softmax(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::CrossEntropy) {
        let cases = cases::losses(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("cross_entropy {} {}", case.dtype, case.shape()));
            rows.push(row_of(Label::cross_entropy(case), || validate::cross_entropy(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::Elementwise) {
        let cases = cases::elementwise(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("elementwise {} {}", case.dtype, case.shape()));
            rows.push(row_of(Label::elementwise(case), || validate::elementwise(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::Rotary) {
        let cases = cases::rotations(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("rotary {} {}", case.dtype, case.sizes()));
            rows.push(row_of(Label::rotary(case), || validate::rotary(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::KvCache) {
        let cases = cases::caches(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("kv_cache {} {}", case.dtype, case.shape()));
            rows.push(row_of(Label::kv_cache(case), || validate::kv_cache(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::Embedding) {
        let cases = cases::embeddings(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("embedding {} {}", case.dtype, case.shape()));
            rows.push(row_of(Label::embedding(case), || validate::embedding(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::Adamw) {
        let cases = cases::optimizers(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("adamw {} {}", case.dtype, case.shape()));
            rows.push(row_of(Label::adamw(case), || validate::adamw(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::ProductKeyTopk) {
        let cases = cases::retrievals(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("product_key_topk {} {}", case.dtype, case.shape()));
            rows.push(retrieval_row(&device, case));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::ProductKeyTopkBackward) {
        let cases = cases::retrieval_gradients(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("product_key_topk_backward {} {}", case.dtype, case.shape()));
            let label = Label { operation: "product_key_topk_backward", ..Label::retrieval(case) };
            rows.push(row_of(label, || validate::product_key_topk_backward(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::ExpertMlp) {
        let cases = cases::experts(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("expert_mlp {} {}", case.format, case.shape()));
            rows.push(row_of(Label::experts(case), || validate::experts(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::ExpertMlpBackward) {
        let cases = cases::expert_gradients(level, Target::of(&device), args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("expert_mlp_backward {} {}", case.format, case.shape()));
            rows.push(row_of(Label::expert_gradients(case), || validate::expert_gradients(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }

    if args.op.is_none_or(|op| op == Operation::Repack) {
        let cases = cases::copies(level, args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("repack {} {}", case.dtype, case.shape()));
            rows.push(row_of(Label::repack(case), || validate::repack(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }

    if args.op.is_none_or(|op| op == Operation::Attention) {
        let cases = cases::attentions(level, &device, args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("attention {} {}", case.dtype, case.shape()));
            rows.push(row_of(Label::attention(case), || validate::attention(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }
    if args.op.is_none_or(|op| op == Operation::AttentionBackward) {
        let cases = cases::attention_gradients(level, &device, args.seed);
        let progress = progress_bar(cases.len());
        for case in &cases {
            progress.set_message(format!("attention_backward {} {}", case.dtype, case.shape()));
            let label = Label { operation: "attention_backward", ..Label::attention(case) };
            rows.push(row_of(label, || validate::attention_backward(&device, case)));
            progress.inc(1);
        }
        progress.finish_and_clear();
    }

    let load = (level == Level::Full).then(|| load::run(&device, args)).transpose()?;
    let failures = rows.iter().filter(|row| !row.passed).count();
    let report = Report {
        device: device.to_string(),
        device_name: device.name(),
        level,
        seed: args.seed,
        cases: rows.len(),
        failures,
        seconds: start.elapsed().as_secs_f64(),
        rows: &rows,
        load: load.as_ref(),
    };
    if !matches!(json, Some(Json::Stdout)) {
        report.print();
        unit_scaled.iter().for_each(|line| println!("{line}"));
        load.iter().for_each(load::Load::print);
    }
    if let Some(json) = json {
        json.write(&report)?;
    }
    let passed = failures == 0 && !rows.is_empty() && load.is_none_or(|load| load.passed);
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The emulator, printing what the lanes of a filter execute.
fn tracing_emulator(name: &str, filter: &str) -> anyhow::Result<Device> {
    let filter: TraceFilter = filter.parse().map_err(|error| anyhow!("{error}"))?;
    let compute_capability = match name.parse::<Device>() {
        Ok(device) if device.kind() == DeviceKind::Emulator => device.properties().compute_capability,
        _ => bail!("only the emulator traces what it runs: add `--device emulator`, not `{name}`"),
    };
    let trace = Some(Tracer::new(filter, |step| println!("{step}")));
    Ok(Device::emulator_with(EmulatorOptions { compute_capability, trace, ..EmulatorOptions::default() }))
}

/// The device of that name; `auto` is the first GPU, else the emulator, and says which.
fn open_device(name: &str) -> anyhow::Result<Device> {
    if name != "auto" {
        return name.parse().with_context(|| format!("opening device `{name}`"));
    }
    Ok(Device::cuda(0).unwrap_or_else(|error| {
        eprintln!("No GPU ({error}); the kernels run in the emulator.");
        Device::emulator()
    }))
}

fn progress_bar(cases: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let progress = ProgressBar::new(cases as u64).with_style(style);
    progress.enable_steady_tick(Duration::from_millis(200));
    progress
}

/// What a row says of its case.
#[derive(Clone, Debug)]
struct Label {
    operation: &'static str,
    types: String,
    shape: String,
    options: String,
}

impl Label {
    fn linear(case: &LinearCase) -> Self {
        Self { operation: "linear", types: case.types(), shape: case.shape(), options: case.options() }
    }

    fn scaled(case: &ScaledCase) -> Self {
        let (types, shape, options) = (case.types(), case.shape(), case.options());
        Self { operation: "linear_scaled", types, shape, options }
    }

    fn update(case: &UpdateCase) -> Self {
        let (operation, types) = (case.operation(), case.dtype.to_string());
        Self { operation, types, shape: case.shape(), options: case.options() }
    }

    fn topk(case: &TopkCase) -> Self {
        let (types, shape, options) = (case.dtype.to_string(), case.shape(), case.options());
        Self { operation: "topk", types, shape, options }
    }

    fn linear_backward(case: &LinearBackwardCase) -> Self {
        let (types, shape, options) = (case.types(), case.shape(), case.options());
        Self { operation: "linear_backward", types, shape, options }
    }

    fn matmul_backward(case: &MatmulBackwardCase) -> Self {
        let (types, shape) = (case.product.product.types(), case.product.shape());
        Self { operation: "matmul_backward", types, shape, options: case.options() }
    }

    fn scaled_backward(case: &ScaledBackwardCase) -> Self {
        let (types, shape, options) = (case.types(), case.product.shape(), case.options());
        Self { operation: "linear_scaled_backward", types, shape, options }
    }

    fn update_backward(case: &UpdateBackwardCase) -> Self {
        let (types, shape) = (case.types(), case.update.shape());
        Self { operation: case.operation(), types, shape, options: case.options() }
    }

    fn norm(case: &NormCase) -> Self {
        let types = format!("{}→{}", case.dtype, case.output);
        Self { operation: "norm", types, shape: case.shape(), options: case.options() }
    }

    fn softmax(case: &SoftmaxCase) -> Self {
        let types = format!("{}→{}", case.dtype, case.output);
        Self { operation: "softmax", types, shape: case.shape(), options: case.options() }
    }

    fn cross_entropy(case: &CrossEntropyCase) -> Self {
        let types = format!("{}→{}", case.dtype, case.output);
        Self { operation: "cross_entropy", types, shape: case.shape(), options: case.options() }
    }

    fn elementwise(case: &ElementwiseCase) -> Self {
        let types = format!("{}→{}", case.dtype, case.other);
        Self { operation: "elementwise", types, shape: case.shape(), options: case.options() }
    }

    fn rotary(case: &RotaryCase) -> Self {
        let (types, shape, options) = (case.dtype.to_string(), case.sizes(), case.options());
        Self { operation: "rotary", types, shape, options }
    }

    fn kv_cache(case: &KvCacheCase) -> Self {
        let (types, shape, options) = (case.dtype.to_string(), case.shape(), case.options());
        Self { operation: "kv_cache", types, shape, options }
    }

    fn embedding(case: &EmbeddingCase) -> Self {
        let (types, shape, options) = (case.dtype.to_string(), case.shape(), case.options());
        Self { operation: "embedding", types, shape, options }
    }

    fn adamw(case: &AdamWCase) -> Self {
        let types = format!("{}←{}", case.dtype, case.gradient);
        Self { operation: "adamw", types, shape: case.shape(), options: case.options() }
    }

    fn retrieval(case: &RoutingCase) -> Self {
        let (types, shape, options) = (case.dtype.to_string(), case.shape(), case.options());
        Self { operation: "product_key_topk", types, shape, options }
    }

    fn experts(case: &ExpertCase) -> Self {
        let types = format!("{} x {}", case.format, case.dtype);
        Self { operation: "expert_mlp", types, shape: case.shape(), options: case.options() }
    }

    fn expert_gradients(case: &ExpertCase) -> Self {
        Self { operation: "expert_mlp_backward", ..Self::experts(case) }
    }

    fn repack(case: &RepackCase) -> Self {
        let (types, shape, options) = (case.dtype.to_string(), case.shape(), case.options());
        Self { operation: "repack", types, shape, options }
    }

    fn attention(case: &AttentionCase) -> Self {
        let (types, shape, options) = (case.dtype.to_string(), case.shape(), case.options());
        Self { operation: "attention", types, shape, options }
    }

    fn matmul(case: &MatmulCase) -> Self {
        Self {
            operation: "matmul",
            types: case.product.types(),
            shape: case.shape(),
            options: case.options(),
        }
    }
}

/// The largest errors of a generated update on inputs of variance 1, beside the relative tolerance that is usual for its type.
struct UnitScaled {
    label: String,
    absolute: f64,
    relative: f64,
    usual: f64,
}

impl UnitScaled {
    fn new(case: &UpdateCase, row: &Row) -> Self {
        let usual = match case.dtype {
            DType::F16 => 1e-3,
            DType::Bf16 => 1e-2,
            _ => 1e-5,
        };
        let label = format!("{} {} {}", case.operation(), case.dtype, case.shape());
        let or_nan = |error| if row.compared > 0 { error } else { f64::NAN };
        let (absolute, relative) = (or_nan(row.max_absolute_error), or_nan(row.max_relative_error));
        Self { label, absolute, relative, usual }
    }
}

impl fmt::Display for UnitScaled {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { label, absolute, relative, usual } = self;
        write!(
            formatter,
            "Unit-scaled {label}: largest absolute error {absolute:.2e}, {relative:.2e} of the largest result; \
             usual tolerance {usual:.0e}"
        )
    }
}

/// Runs a validation; the row tells what came of it.
fn row_of(label: Label, validate: impl FnOnce() -> warpsmith::Result<Outcome>) -> Row {
    let start = Instant::now();
    let result = validate();
    let seconds = start.elapsed().as_secs_f64();
    match result {
        Ok(outcome) => Row {
            implementation: outcome.implementation.to_string(),
            max_absolute_error: outcome.max_absolute_error,
            max_relative_error: outcome.max_relative_error,
            bound: outcome.worst.map_or(0.0, |worst| worst.bound),
            ratio: outcome.worst_ratio(),
            compared: outcome.compared,
            exact: outcome.exact,
            passed: outcome.passed(),
            ..failed_row(label, seconds, note(&outcome))
        },
        Err(error) => failed_row(label, seconds, error.to_string()),
    }
}

/// Validates a retrieval; the row tells the share of the reference's experts that were found, too.
fn retrieval_row(device: &Device, case: &RoutingCase) -> Row {
    let mut told = String::new();
    let mut row = row_of(Label::retrieval(case), || {
        let found = validate::product_key_topk(device, case)?;
        told = format!(", recall {:.4}", found.recall);
        if found.near_ties > 0 {
            told.push_str(&format!(", {} near ties", found.near_ties));
        }
        Ok(found.outcome)
    });
    row.options.push_str(&told);
    row
}

/// Runs a case on a GPU and in the emulator; the results must be the same bits.
fn compare_bits(
    label: Label,
    [gpu, emulator]: [&Device; 2],
    bits: impl Fn(&Device) -> warpsmith::Result<Vec<u32>>,
) -> Row {
    let start = Instant::now();
    let both = bits(gpu).and_then(|gpu| Ok((gpu, bits(emulator)?)));
    let seconds = start.elapsed().as_secs_f64();
    match both {
        Ok((gpu, emulated)) => {
            let different = gpu.iter().zip(&emulated).filter(|(a, b)| a != b).count();
            Row {
                implementation: "GPU and emulator, bit by bit".into(),
                compared: gpu.len(),
                exact: true,
                passed: different == 0 && gpu.len() == emulated.len(),
                ..failed_row(label, seconds, format!("{different} elements differ"))
            }
        }
        Err(error) => failed_row(label, seconds, error.to_string()),
    }
}

fn failed_row(label: Label, seconds: f64, note: String) -> Row {
    let Label { operation, types, shape, options } = label;
    Row {
        operation,
        types,
        shape,
        options,
        implementation: String::new(),
        max_absolute_error: 0.0,
        max_relative_error: 0.0,
        bound: 0.0,
        ratio: 0.0,
        compared: 0,
        exact: false,
        seconds,
        passed: false,
        note,
    }
}

fn note(outcome: &Outcome) -> String {
    match (outcome.passed(), outcome.worst) {
        (true, _) => String::new(),
        (false, _) if outcome.stray_writes > 0 => {
            format!("{} elements beside the output were written", outcome.stray_writes)
        }
        (false, Some(worst)) => format!(
            "{} of {} elements; the worst is {} at [{}, {}], expected {} ± {:.3e}",
            outcome.failures,
            outcome.compared,
            worst.got,
            worst.row,
            worst.column,
            worst.expected,
            worst.bound
        ),
        (false, None) => "nothing was compared".into(),
    }
}

#[cfg(test)]
mod tests {
    use warpsmith::{DType, Device, DeviceKind};
    use warpsmith_lab::cases::LinearCase;
    use warpsmith_lab::validate;

    use super::{Label, Target, cases, compare_bits};

    /// As a GPU is, so is the CPU's implementation compared with the emulator: both are exact where the cases are.
    #[test]
    fn products_of_all_layouts_have_the_same_bits_on_two_devices() {
        let (cpu, emulator) = (Device::cpu(), "emulator:9.0".parse().expect("a device"));
        let target = Target { on_gpu: true, ..Target::of(&emulator) };
        let cases = cases::compared_products(target, 1);
        let is = |across| cases.iter().filter(|case| case.across == across).count();
        assert!([[false, false], [false, true], [true, false], [true, true]].map(is).iter().all(|&n| n > 50));
        // A prime, so that every layout, type and batch has its turn.
        for case in cases.iter().step_by(31) {
            let row = compare_bits(Label::matmul(case), [&cpu, &emulator], |device| {
                validate::matmul_bits(device, case)
            });
            assert!(row.passed && row.exact, "{row:?}");
            assert!(row.compared >= case.matrices() * case.product.m * case.product.n, "{row:?}");
        }
    }

    #[test]
    fn a_bit_that_differs_fails_and_so_does_one_that_is_missing() {
        let label = Label::linear(&LinearCase::new(DType::F16, 1, 1, 2));
        let devices = [&Device::cpu(), &Device::emulator()];
        let compare = |others: &[u32]| {
            compare_bits(label.clone(), devices, |device| {
                Ok(if device.kind() == DeviceKind::Cpu { vec![1, 2] } else { others.to_vec() })
            })
        };
        assert!(compare(&[1, 2]).passed);
        assert!(!compare(&[1, 3]).passed && compare(&[1, 3]).note.starts_with("1 element"));
        assert!(!compare(&[1]).passed && !compare(&[]).passed);
    }
}
