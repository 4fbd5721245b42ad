//! `xtask bench`: times the operations on a GPU, beside the vendor's library and the GPU's own ceilings.
//!
//! What is compared runs interleaved in this process on one stream; ceilings are measured first. Results are data: each row of
//! the CSV says where it came from.

mod cublas;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use comfy_table::{Table, presets};
use warpsmith::benchmark::{self, LinearSubject, Options, Subject, Timing};
use warpsmith::ops::linear::Tile;
use warpsmith::validate::LinearCase;
use warpsmith::{DType, Device, DeviceKind, Error};

use crate::measurement::Measurement;
use crate::provenance::Provenance;
use cublas::Cublas;

/// Time the operations on a GPU, beside cuBLAS and the GPU's ceilings.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The GPU: cuda or cuda:N.
    #[arg(long, default_value = "cuda:0")]
    device: String,
    /// Only these input types; f16, bf16 or f32, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = parse_dtype)]
    dtype: Vec<DType>,
    /// Only these sizes, as MxKxN separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = parse_shape)]
    shape: Vec<[usize; 3]>,
    /// Take this tile instead of the one that would be chosen.
    #[arg(long)]
    tile: Option<Tile>,
    /// Measure every tile beside the choice.
    #[arg(long, conflicts_with = "tile")]
    variants: bool,
    /// Samples of each subject.
    #[arg(long, default_value_t = 15)]
    samples: usize,
    /// Seconds to run before the first sample of each size.
    #[arg(long, default_value_t = 0.5)]
    warm_up: f64,
    /// Write the results to this file.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// The commit to note in the results; by default the one that `git` reports here.
    #[arg(long)]
    commit: Option<String>,
}

/// M, K, N: from a size at which launching dominates to one at which the products do.
const SHAPES: [[usize; 3]; 6] = [
    [256, 256, 512],
    [1024, 784, 2048],
    [2048, 2048, 2048],
    [4096, 4096, 4096],
    [8192, 4096, 4096],
    [8192, 8192, 8192],
];
const DTYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

/// What this GPU reaches at best, measured.
struct Ceilings {
    /// Bytes a second, read and written, of a copy within the GPU's memory.
    bandwidth: f64,
    /// Floating-point operations a second of the library's largest bf16 product, if the library is there.
    flops: Option<f64>,
}

impl Ceilings {
    /// The least time that the ceilings allow for this work. f32 work is three TF32 products, each at half the rate of bf16.
    fn least_seconds(&self, dtype: DType, flops: f64, bytes: f64) -> f64 {
        let slowdown = if dtype == DType::F32 { 6.0 } else { 1.0 };
        let computing = self.flops.map_or(0.0, |rate| flops * slowdown / rate);
        computing.max(bytes / self.bandwidth)
    }
}

/// One measured variant of one size.
struct Row {
    dtype: DType,
    shape: [usize; 3],
    variant: String,
    implementation: String,
    timing: Timing,
    tflops: f64,
    share: f64,
    peer: Option<Timing>,
}

impl Row {
    fn ratio(&self) -> Option<f64> {
        self.peer.map(|peer| peer.median.as_secs_f64() / self.timing.median.as_secs_f64())
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let device = open_gpu(&args.device)?;
    let mut options = Options::default();
    options.samples = args.samples;
    options.warm_up = Duration::try_from_secs_f64(args.warm_up).context("--warm-up")?;
    let stream = device.default_stream();
    let mut library = Cublas::open(&stream).map_err(|reason| eprintln!("cuBLAS is absent: {reason}")).ok();

    let provenance = Provenance::collect(&device, args.commit.clone());
    println!("{provenance}");
    if let Some(library) = &library {
        println!("cuBLAS {}", library.version());
    }
    let ceilings = measure_ceilings(&device, library.as_mut(), &options)?;
    println!("Copy within the GPU's memory: {:.2} TB/s, read and written", ceilings.bandwidth * 1e-12);
    match ceilings.flops {
        Some(flops) => println!("cuBLAS bf16 8192×8192×8192: {:.0} TFLOP/s", flops * 1e-12),
        None => println!("Without cuBLAS there is no ceiling of products; shares are of the bandwidth only"),
    }

    let mut rows = Vec::new();
    let (dtypes, shapes) = (or_all(&args.dtype, &DTYPES), or_all(&args.shape, &SHAPES));
    for &dtype in dtypes {
        for &shape in shapes {
            eprintln!("Measuring linear {dtype} {shape:?}");
            rows.extend(measure(&device, dtype, shape, args, library.as_mut(), &ceilings, &options)?);
            device.release_memory()?;
        }
    }
    println!("{}", table(&rows));
    if let Some(path) = &args.csv {
        write_csv(path, &rows, &provenance).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn open_gpu(name: &str) -> anyhow::Result<Device> {
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

fn or_all<'a, T>(chosen: &'a [T], all: &'a [T]) -> &'a [T] {
    if chosen.is_empty() { all } else { chosen }
}

fn parse_dtype(text: &str) -> Result<DType, String> {
    let dtype = DTYPES.into_iter().find(|dtype| dtype.name() == text);
    dtype.ok_or_else(|| format!("`{text}` is none of f16, bf16 and f32"))
}

fn parse_shape(text: &str) -> Result<[usize; 3], String> {
    let sides: Result<Vec<usize>, _> = text.split(['x', '×']).map(str::parse).collect();
    let sides = sides.map_err(|error| format!("`{text}`: {error}"))?;
    sides.try_into().map_err(|_| format!("`{text}` is not of the form MxKxN"))
}

fn measure_ceilings(
    device: &Device,
    library: Option<&mut Cublas>,
    options: &Options,
) -> anyhow::Result<Ceilings> {
    let bandwidth = benchmark::copy_bandwidth(device, options).context("measuring the bandwidth")?;
    device.release_memory()?;
    let Some(library) = library else { return Ok(Ceilings { bandwidth, flops: None }) };
    let case = LinearCase { bias: false, ..LinearCase::new(DType::Bf16, 8192, 8192, 8192) };
    let stream = device.default_stream();
    let mut operands = benchmark::linear_subject(&stream, &case)?;
    let flops = operands.flops();
    let mut product = library.product(&case, &mut *operands);
    let timing = benchmark::interleaved(&stream, &mut [&mut product], options)?[0];
    Ok(Ceilings { bandwidth, flops: Some(flops / timing.median.as_secs_f64()) })
}

/// Measures the variants of one size, and the library's plain product beside them.
fn measure(
    device: &Device,
    dtype: DType,
    shape: [usize; 3],
    args: &Args,
    library: Option<&mut Cublas>,
    ceilings: &Ceilings,
    options: &Options,
) -> anyhow::Result<Vec<Row>> {
    let [m, k, n] = shape;
    let stream = device.default_stream();
    let mut variants = vec![args.tile];
    if args.variants {
        variants.extend(tiles_of(device, dtype).map(Some));
    }
    let case = LinearCase::new(dtype, m, k, n);
    let with_tile = |&tile: &Option<Tile>| {
        benchmark::linear_subject(&stream, &LinearCase { tile, ..case.clone() })
            .with_context(|| format!("preparing {dtype} {shape:?}"))
    };
    let mut ours: Vec<Box<dyn LinearSubject>> = variants.iter().map(with_tile).collect::<Result<_, _>>()?;
    let mut peer_operands = library.is_some().then(|| with_tile(&None)).transpose()?;
    let mut peer = match (library, peer_operands.as_deref_mut()) {
        (Some(library), Some(operands)) => Some(library.product(&case, operands)),
        _ => None,
    };
    let mut subjects: Vec<&mut dyn Subject> =
        ours.iter_mut().map(|ours| &mut **ours as &mut dyn Subject).collect();
    subjects.extend(peer.as_mut().map(|peer| peer as &mut dyn Subject));
    let timings = benchmark::interleaved(&stream, &mut subjects, options)?;
    drop(subjects);

    let peer = peer.is_some().then(|| timings[timings.len() - 1]);
    ours.iter()
        .zip(&variants)
        .zip(&timings)
        .map(|((ours, variant), &timing)| {
            let least = ceilings.least_seconds(dtype, ours.flops(), ours.bytes());
            Ok(Row {
                dtype,
                shape,
                variant: variant.map_or("chosen".into(), |tile| tile.to_string()),
                implementation: ours.implementation()?.to_string(),
                timing,
                tflops: timing.tera_per_second(ours.flops()),
                share: least / timing.median.as_secs_f64(),
                peer,
            })
        })
        .collect()
}

fn tiles_of(device: &Device, dtype: DType) -> impl Iterator<Item = Tile> {
    use warpsmith::ops::linear::select::Access;
    let capability = device.properties().compute_capability;
    let serves = move |tile: &Tile| tile.runs_on(capability) && tile.serves(dtype, Access::Aligned);
    Tile::ALL.into_iter().filter(serves)
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "operation",
        "type",
        "M×K×N",
        "tile",
        "µs",
        "fastest",
        "TFLOP/s",
        "of ceiling",
        "cuBLAS µs",
        "cuBLAS / ours",
        "ran",
    ]);
    for row in rows {
        let [m, k, n] = row.shape;
        let absent = || "–".to_string();
        table.add_row([
            "linear bias relu".into(),
            row.dtype.to_string(),
            format!("{m}×{k}×{n}"),
            row.variant.clone(),
            format!("{:.2}", microseconds(row.timing.median)),
            format!("{:.2}", microseconds(row.timing.fastest)),
            format!("{:.1}", row.tflops),
            format!("{:.0} %", row.share * 100.0),
            row.peer.map_or_else(absent, |peer| format!("{:.2}", microseconds(peer.median))),
            row.ratio().map_or_else(absent, |ratio| format!("{ratio:.3}")),
            row.implementation.clone(),
        ]);
    }
    table
}

fn measurement(row: &Row, provenance: &Provenance) -> Measurement {
    let [m, k, n] = row.shape;
    let rounded = |value: f64, digits: f64| (value * digits).round() / digits;
    Measurement {
        operation: "linear bias relu".into(),
        dtype: row.dtype.to_string(),
        shape: format!("{m}x{k}x{n}"),
        variant: row.variant.clone(),
        median_us: rounded(microseconds(row.timing.median), 1e3),
        peer: if row.peer.is_some() { "cublas product".into() } else { String::new() },
        peer_us: row.peer.map(|peer| rounded(microseconds(peer.median), 1e3)),
        ratio: row.ratio().map(|ratio| rounded(ratio, 1e4)),
        gpu: provenance.gpu.clone(),
        driver: provenance.driver.clone(),
        commit: provenance.commit.clone(),
        command: provenance.command.clone(),
        clock_mhz: provenance.clock_mhz,
        tflops: Some(rounded(row.tflops, 1e3)),
        share: Some(rounded(row.share, 1e4)),
    }
}

fn write_csv(path: &Path, rows: &[Row], provenance: &Provenance) -> anyhow::Result<()> {
    let mut writer = csv::Writer::from_path(path)?;
    for row in rows {
        writer.serialize(measurement(row, provenance))?;
    }
    Ok(writer.flush()?)
}

#[cfg(test)]
mod tests {
    use super::{Ceilings, parse_shape};
    use warpsmith::DType;

    #[test]
    fn shapes_are_read_in_the_order_they_are_printed() {
        assert_eq!(parse_shape("1024x784x2048"), Ok([1024, 784, 2048]));
        assert!(parse_shape("1024x784").is_err() && parse_shape("axbxc").is_err());
    }

    #[test]
    fn the_tighter_ceiling_counts() {
        let ceilings = Ceilings { bandwidth: 1e12, flops: Some(1e14) };
        assert_eq!(ceilings.least_seconds(DType::Bf16, 1e14, 1e10), 1.0);
        assert_eq!(ceilings.least_seconds(DType::F32, 1e14, 1e10), 6.0);
        assert_eq!(ceilings.least_seconds(DType::Bf16, 1e10, 1e12), 1.0);
    }
}
