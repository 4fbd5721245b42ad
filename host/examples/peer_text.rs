//! Runs a PEER layer over real text, and shows which experts it uses and what a cache of them would hold.
//!
//! `cargo run --release --example peer_text [-- --device auto|cuda:N|emulator|cpu] [--tokens N] [--sub-keys N] [--svg FILE] [FILES]`
//!
//! A token is a byte of the text, by default that of this repository's book, with the seven before it. Each of these and its
//! distance chooses a fixed random vector, and the token is their sum, nearer bytes counting more. The layer is random too;
//! nothing is trained. So
//! what is seen is how a router spreads real text: bytes that follow the same ones use the same experts.
//!
//! On a GPU the layer has 1 048 576 experts, on the CPU 65 536, in the emulator 1024.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Parser;
use half::bf16;
use plotters::prelude::*;
use rayon::prelude::*;
use warpsmith::layers::{Peer, PeerConfig, PeerRouter};
use warpsmith::peer::RowCache;
use warpsmith::{Device, DeviceKind, Tensor};

/// Bytes that make a token.
const CONTEXT: usize = 8;
/// Columns of tokens and outputs.
const COLUMNS: usize = 256;
/// Columns of a head's query, heads, and experts of each.
const QUERY: usize = 64;
const HEADS: usize = 4;
const EXPERTS_PER_HEAD: usize = 16;
/// Tokens that go through the layer at a time, and that a cache's step has.
const STEP: usize = 64;
/// Shares of the table that caches of it hold, in percent.
const CAPACITIES: [f64; 7] = [0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0];

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Run a PEER layer over real text.
#[derive(Parser)]
struct Arguments {
    /// Where the layer runs.
    #[arg(long, default_value = "auto")]
    device: String,
    /// The most tokens. [default: all on a GPU, 20000 on the CPU, 200 in the emulator]
    #[arg(long)]
    tokens: Option<usize>,
    /// Sub-keys of a half; of n there are n² experts. [default: 1024 on a GPU, 256 on the CPU, 32 in the emulator]
    #[arg(long)]
    sub_keys: Option<usize>,
    /// Draw how many experts are used how often, into this file.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// The text; by default the book of this repository.
    files: Vec<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let device: Device = arguments.device.parse()?;
    let (tokens, sub_keys) = match device.kind() {
        DeviceKind::Cuda(_) => (usize::MAX, 1024),
        DeviceKind::Cpu => (20_000, 256),
        _ => (200, 32),
    };
    let (tokens, sub_keys) = (arguments.tokens.unwrap_or(tokens), arguments.sub_keys.unwrap_or(sub_keys));
    let text = if arguments.files.is_empty() { book()? } else { read(&arguments.files)? };
    let text = &text[..text.len().min(tokens)];

    let config = PeerConfig::default()
        .input(COLUMNS)
        .output(COLUMNS)
        .sub_keys(sub_keys)
        .heads(HEADS)
        .experts_per_head(EXPERTS_PER_HEAD)
        .query(QUERY);
    let layer = layer(&device, &config)?;
    let experts = config.expert_count();
    println!("{} tokens, {experts} experts, on {device} ({})", text.len(), device.name());

    let (mut ids, mut checksum, start) = (Vec::new(), 0.0, Instant::now());
    for first in (0..text.len()).step_by(STEP) {
        let x = embed(&device, text, first..text.len().min(first + STEP))?;
        ids.push(layer.route(&x)?.ids.to_vec()?);
        checksum += layer.forward(&x)?.to_vec()?.iter().map(|y| f64::from(y.to_f32()).abs()).sum::<f64>();
    }
    let seconds = start.elapsed().as_secs_f64();
    let mean = checksum / (text.len().max(1) * COLUMNS) as f64;
    println!(
        "mean magnitude of the outputs {mean:.4}; {:.0} tokens a second, with all else",
        text.len() as f64 / seconds
    );

    let uses = uses(&ids);
    print_uses(&uses, experts);
    print_caches(&ids, experts)?;
    if let Some(file) = &arguments.svg {
        draw(file, &uses, experts)?;
        println!("drawn into {}", file.display());
    }
    Ok(())
}

/// The pages of this repository's book, one after the other.
fn book() -> Result<Vec<u8>> {
    fn pages(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                pages(&path, found)?;
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
        Ok(())
    }
    let mut files = Vec::new();
    pages(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src"), &mut files)?;
    files.sort();
    read(&files)
}

fn read(files: &[PathBuf]) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    for file in files {
        text.extend(std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?);
    }
    Ok(text)
}

/// A fixed number between −1 and 1 for each pair of numbers.
fn random(stream: u64, index: u64) -> f32 {
    let mut bits = (stream << 48 ^ index).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((bits ^ bits >> 31) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// `count` of these, the first that of `first`, times `scale`.
fn drawn(stream: u64, first: usize, count: usize, scale: f32) -> Vec<f32> {
    (first..first + count).into_par_iter().map(|index| scale * random(stream, index as u64)).collect()
}

/// The tokens of some bytes of the text.
fn embed(device: &Device, text: &[u8], range: std::ops::Range<usize>) -> Result<Tensor<bf16>> {
    let (count, mut x) = (range.len(), vec![bf16::ZERO; range.len() * COLUMNS]);
    x.par_chunks_exact_mut(COLUMNS).zip(range).for_each(|(x, at)| {
        for (column, x) in x.iter_mut().enumerate() {
            let mut sum = 0.0;
            for distance in 0..CONTEXT.min(at + 1) {
                let feature = (distance * 256 + usize::from(text[at - distance])) * COLUMNS + column;
                sum += random(1, feature as u64) / (1 + distance) as f32;
            }
            *x = bf16::from_f32(sum);
        }
    });
    Ok(Tensor::from_slice(device, &x, [count, COLUMNS])?)
}

fn layer(device: &Device, config: &PeerConfig) -> Result<Peer<bf16>> {
    let tensor = |stream: u64, shape: &[usize], scale: f32| {
        let numbers = drawn(stream, 0, shape.iter().product(), scale);
        let numbers: Vec<_> = numbers.into_iter().map(bf16::from_f32).collect();
        Tensor::from_slice(device, &numbers, shape)
    };
    let n = config.expert_count().isqrt();
    let unit = (COLUMNS as f32).sqrt().recip();
    let keys = |stream| tensor(stream, &[HEADS, n, QUERY / 2], 1.0);
    let router = PeerRouter::new(tensor(2, &[HEADS * QUERY, COLUMNS], unit)?, [keys(3)?, keys(4)?]);
    Ok(Peer::new(device, config, router, |range| {
        let part = |stream| drawn(stream, range.start * COLUMNS, range.len() * COLUMNS, unit);
        Ok([part(5), Vec::new(), part(6)])
    })?)
}

/// How often each expert is used that is used at all, the most used first.
fn uses(ids: &[Vec<u32>]) -> Vec<usize> {
    let mut uses = HashMap::new();
    for &id in ids.iter().flatten() {
        *uses.entry(id).or_insert(0) += 1;
    }
    let mut uses: Vec<usize> = uses.into_values().collect();
    uses.sort_unstable_by(|a, b| b.cmp(a));
    uses
}

fn print_uses(uses: &[usize], experts: usize) {
    let all: usize = uses.iter().sum();
    let share = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
    println!("{all} uses of {} experts, {:.1} % of all", uses.len(), share(uses.len(), experts));
    for percent in [1, 10] {
        let most: usize = uses.iter().take(experts * percent / 100).sum();
        println!(
            "the {percent} % of all experts that are used most have {:.1} % of the uses",
            share(most, all)
        );
    }
}

/// What caches of the experts would have held, step by step.
fn print_caches(ids: &[Vec<u32>], experts: usize) -> Result<()> {
    println!("cache   hits");
    for percent in CAPACITIES {
        let slots = ((experts as f64 * percent / 100.0) as usize).max(1);
        let mut cache = RowCache::new(experts, slots, 2 * 2 * COLUMNS as u64)?;
        for step in ids {
            let pins = cache.plan(step)?.commit();
            cache.release(pins);
        }
        println!("{percent:4} %  {:5.1} %", 100.0 * cache.statistics().hit_rate());
    }
    Ok(())
}

/// A histogram: how many experts are used once, twice, up to four times, up to eight …
fn draw(file: &Path, uses: &[usize], experts: usize) -> Result<()> {
    let mut bins = vec![experts - uses.len()];
    for &count in uses {
        let bin = 1 + count.next_power_of_two().trailing_zeros() as usize;
        bins.resize(bins.len().max(bin + 1), 0);
        bins[bin] += 1;
    }
    let most = bins.iter().copied().max().unwrap_or(1) as f64;
    let area = SVGBackend::new(file, (760, 380)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d((0..bins.len() - 1).into_segmented(), (0.5..2.0 * most).log_scale())?;
    let label = |at: &SegmentValue<usize>| match at {
        SegmentValue::CenterOf(0) => "never".to_owned(),
        SegmentValue::CenterOf(bin) => format!("≤ {}", 1usize << (bin - 1)),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(bins.len())
        .x_label_formatter(&label)
        .y_label_formatter(&|count| format!("{count:.0}"))
        .x_desc("uses of an expert")
        .y_desc("experts")
        .draw()?;
    chart.draw_series(bins.iter().enumerate().filter(|(_, count)| **count > 0).map(|(bin, &count)| {
        let corners = [(SegmentValue::Exact(bin), 0.5), (SegmentValue::Exact(bin + 1), count as f64)];
        let mut bar = Rectangle::new(corners, RGBColor(0, 114, 178).mix(0.7).filled());
        bar.set_margin(0, 0, 3, 3);
        bar
    }))?;
    area.present()?;
    Ok(())
}
