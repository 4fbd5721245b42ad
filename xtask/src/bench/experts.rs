//! `xtask bench --operation experts`: the experts of the layer that PEER is measured by, for every number of blocks that may share a token, and
//! in the order of the table.
//!
//! What is chosen is measured beside what could be: so the rule of the choice can be judged, and changed.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use half::bf16;
use warpsmith::ops;
use warpsmith::ops::peer::{ExpertBlocks, ExpertFormat, ExpertLayout, ExpertTable, ExpertVectors, Routing};
use warpsmith::{Device, Tensor};
use warpsmith_lab::benchmark::{self, Options, Subject, Timing};
use warpsmith_lab::cases::PeerSizes;

use super::{Args, microseconds};
use crate::provenance::Provenance;
use crate::random::Random;

/// Tokens.
const TOKENS: [usize; 14] = [1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];
/// From so many on, tokens have no clusters, and experts that are used more or less often are measured too.
const MANY: usize = 2048;
/// Formats of rows.
const FORMATS: [ExpertFormat; 5] =
    [ExpertFormat::F32, ExpertFormat::Bf16, ExpertFormat::Int8, ExpertFormat::Int4, ExpertFormat::F8E4M3];
/// Blocks of a token.
const BLOCKS: [ExpertBlocks; 6] = [
    ExpertBlocks::One,
    ExpertBlocks::Cluster(1),
    ExpertBlocks::Cluster(2),
    ExpertBlocks::Cluster(4),
    ExpertBlocks::Cluster(8),
    ExpertBlocks::Sorted,
];
/// Experts that are drawn; the table repeats them.
const DRAWN: usize = 1 << 10;
/// The most sets of tokens.
const MOST_SETS: usize = 128;

/// Tokens and the experts that they use.
type Set = (Tensor<bf16>, Routing);

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let device = args.open_gpu()?;
    let options = args.options()?;
    println!("{}", Provenance::collect(&device, args.commit.clone()));
    let bandwidth = benchmark::copy_bandwidth(&device, &options).context("measuring the bandwidth")?;
    device.release_memory()?;
    println!("Copy within the GPU's memory: {:.2} TB/s, read and written", bandwidth * 1e-12);

    let mut table = Table::new();
    let header = ["rows", "T", "uses", "µs: chosen"].map(String::from).into_iter();
    let header = header.chain(BLOCKS.iter().map(|blocks| format!("µs: {blocks}")));
    let header = header.chain(["best, of the gather", "chosen"].map(String::from));
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header);
    for format in FORMATS {
        let wanted = |(tokens, uses): &(usize, Uses)| {
            let name = format!("experts {format} T={tokens} {}", uses.name());
            let is_measured = *uses == Uses::Alike || *tokens >= MANY;
            is_measured && args.filter.as_ref().is_none_or(|filter| name.contains(filter))
        };
        let cases: Vec<_> = TOKENS.into_iter().flat_map(|tokens| USES.map(|uses| (tokens, uses))).collect();
        let cases: Vec<_> = cases.into_iter().filter(wanted).collect();
        if cases.is_empty() {
            continue;
        }
        let experts = drawn_table(&device, format)?;
        for (tokens, uses) in cases {
            let what = format!("experts {format} T={tokens} {}", uses.name());
            eprintln!("{what}");
            table.add_row(measure(&device, &experts, tokens, uses, &options, bandwidth).context(what)?);
            device.release_memory()?;
        }
        drop(experts);
        device.release_memory()?;
    }
    if table.is_empty() {
        bail!("nothing to measure: no experts have this format and so many tokens");
    }
    println!("{table}");
    Ok(ExitCode::SUCCESS)
}

/// The cells of a row: the times, what share of the best of them a copy of the rows would take, and what was chosen.
fn measure(
    device: &Device,
    experts: &ExpertTable,
    tokens: usize,
    uses: Uses,
    options: &Options,
    bandwidth: f64,
) -> Result<Vec<String>> {
    let stream = device.default_stream();
    let sizes = PeerSizes::reference(tokens);
    let gathered = (tokens * sizes.heads * sizes.top_k * experts.layout().row_bytes()) as u64;
    let count = benchmark::sets_beyond_cache(device, gathered).min(MOST_SETS);
    let sets: Vec<_> = (0..count as u64).map(|set| draw(device, &sizes, uses, set)).collect::<Result<_>>()?;
    let (x, routing) = &sets[0];
    let chosen = ops::expert_mlp(x, routing, experts).implementation()?;

    let has = |blocks: &ExpertBlocks| match blocks {
        ExpertBlocks::Cluster(_) => tokens < MANY,
        ExpertBlocks::Sorted => tokens >= MANY && !experts.layout().format().is_scaled(),
        _ => true,
    };
    let measured: Vec<_> = [None].into_iter().chain(BLOCKS.into_iter().filter(has).map(Some)).collect();
    let mut launches: Vec<_> = measured
        .iter()
        .map(|&blocks| {
            let (sets, stream) = (&sets, &stream);
            move |index: usize| {
                let (x, routing) = &sets[index % sets.len()];
                ops::expert_mlp(x, routing, experts).blocks(blocks).on(stream).run().map(|_| ())
            }
        })
        .collect();
    let mut subjects: Vec<&mut dyn Subject> =
        launches.iter_mut().map(|launch| launch as &mut dyn Subject).collect();
    let timings = benchmark::interleaved(&stream, &mut subjects, options)?;
    let best = timings.iter().map(|timing| timing.median.as_secs_f64()).fold(f64::INFINITY, f64::min);
    let share = gathered as f64 / bandwidth / best;
    let time = |timing: &Timing| format!("{:.2}", microseconds(timing));
    let mut cells = vec![experts.layout().format().to_string(), tokens.to_string(), uses.name().into()];
    for blocks in [None].into_iter().chain(BLOCKS.map(Some)) {
        let at = measured.iter().position(|measured| *measured == blocks);
        cells.push(at.and_then(|at| timings.get(at)).map(time).unwrap_or_default());
    }
    cells.extend([format!("{:.0} %", share * 100.0), chosen.to_string()]);
    Ok(cells)
}

/// How often experts are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Uses {
    /// All alike.
    Alike,
    /// As words in a text (Zipf): the second one half as often as the first, and so on. Those that are used often are anywhere in the table.
    Zipf,
}

/// All of them.
const USES: [Uses; 2] = [Uses::Alike, Uses::Zipf];

impl Uses {
    const fn name(self) -> &'static str {
        match self {
            Self::Alike => "uniform",
            Self::Zipf => "Zipf",
        }
    }

    /// An expert of `count`, a power of two.
    fn draw(self, random: &mut Random, count: usize) -> u32 {
        match self {
            Self::Alike => random.below(count) as u32,
            Self::Zipf => {
                let fraction = random.below(1 << 30) as f64 / f64::from(1 << 30);
                let rank = ((count as f64 + 1.0).powf(fraction) as usize - 1).min(count - 1);
                // An odd factor: each rank has a place of its own.
                (rank * 0x9e37_79b1 % count) as u32
            }
        }
    }
}

/// Set `set` of tokens, which use experts so often.
fn draw(device: &Device, sizes: &PeerSizes, uses: Uses, set: u64) -> Result<Set> {
    let mut random = Random::new(set);
    let PeerSizes { tokens, heads, top_k, .. } = *sizes;
    let ids: Vec<u32> =
        (0..tokens * heads * top_k).map(|_| uses.draw(&mut random, sizes.experts())).collect();
    let x: Vec<_> = numbers(&mut random, tokens * sizes.input).into_iter().map(bf16::from_f32).collect();
    let shape = [tokens, heads, top_k];
    let ids = Tensor::from_slice(device, &ids, shape)?;
    let gates = Tensor::from_slice(device, &numbers(&mut random, tokens * heads * top_k), shape)?;
    Ok((Tensor::from_slice(device, &x, [tokens, sizes.input])?, Routing { ids, gates }))
}

/// Numbers from -1 to 1.
fn numbers(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.below(1 << 16) as f32 / 32768.0 - 1.0).collect()
}

/// A table of drawn experts.
fn drawn_table(device: &Device, format: ExpertFormat) -> Result<ExpertTable> {
    let sizes = PeerSizes::reference(1);
    let layout = ExpertLayout::new(format, sizes.input, 1, sizes.output, false)?;
    let mut random = Random::new(u64::MAX);
    let (u, v) = (numbers(&mut random, DRAWN * sizes.input), numbers(&mut random, DRAWN * sizes.output));
    let mut rows = vec![0; DRAWN * layout.row_bytes()];
    layout.pack_rows(ExpertVectors { u: &u, w: &[], v: &v }, &mut rows)?;
    let mut table = ExpertTable::zeros(device, layout, sizes.experts())?;
    for first in (0..sizes.experts()).step_by(DRAWN) {
        table.write_rows(first, &rows)?;
    }
    Ok(table)
}
