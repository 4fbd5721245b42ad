//! `xtask bench --operation experts`: the experts of the layer that PEER is measured by, for every number of blocks that may share a token.
//!
//! What is chosen is measured beside what could be: so the rule of the choice can be judged, and changed.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use half::bf16;
use warpsmith::benchmark::{self, Options, PeerSizes, Subject, Timing};
use warpsmith::ops;
use warpsmith::ops::peer::{ExpertBlocks, ExpertFormat, ExpertLayout, ExpertTable, ExpertVectors, Routing};
use warpsmith::{Device, Tensor};

use super::{Args, microseconds, open_gpu};
use crate::provenance::Provenance;
use crate::random::Random;

/// Tokens.
const TOKENS: [usize; 9] = [1, 16, 64, 128, 256, 512, 1024, 2048, 16384];
/// Formats of rows.
const FORMATS: [ExpertFormat; 4] =
    [ExpertFormat::Bf16, ExpertFormat::Int8, ExpertFormat::Int4, ExpertFormat::F8E4M3];
/// Blocks of a token.
const BLOCKS: [ExpertBlocks; 5] = [
    ExpertBlocks::One,
    ExpertBlocks::Cluster(1),
    ExpertBlocks::Cluster(2),
    ExpertBlocks::Cluster(4),
    ExpertBlocks::Cluster(8),
];
/// Experts that are drawn; the table repeats them.
const DRAWN: usize = 1 << 10;
/// How often the rows that are read in turn would fill the cache, and the most sets of tokens that there are for that.
const CACHE_MULTIPLE: u64 = 3;
const MOST_SETS: u64 = 128;

/// Tokens and the experts that they use.
type Set = (Tensor<bf16>, Routing);

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let device = open_gpu(&args.device)?;
    let options = args.options()?;
    println!("{}", Provenance::collect(&device, args.commit.clone()));
    let bandwidth = benchmark::copy_bandwidth(&device, &options).context("measuring the bandwidth")?;
    device.release_memory()?;
    println!("Copy within the GPU's memory: {:.2} TB/s, read and written", bandwidth * 1e-12);

    let mut table = Table::new();
    let header = ["rows", "T", "µs: chosen"].map(String::from).into_iter();
    let header = header.chain(BLOCKS.iter().map(|blocks| format!("µs: {blocks}")));
    let header = header.chain(["best, of the gather", "chosen"].map(String::from));
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header);
    for format in FORMATS {
        let wanted = |tokens: &usize| {
            let name = format!("experts {format} T={tokens}");
            args.filter.as_ref().is_none_or(|filter| name.contains(filter))
        };
        let tokens: Vec<_> = TOKENS.into_iter().filter(wanted).collect();
        if tokens.is_empty() {
            continue;
        }
        let experts = drawn_table(&device, format)?;
        for tokens in tokens {
            eprintln!("experts {format} T={tokens}");
            let row = measure(&device, &experts, tokens, &options, bandwidth);
            table.add_row(row.with_context(|| format!("experts {format} T={tokens}"))?);
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
    options: &Options,
    bandwidth: f64,
) -> Result<Vec<String>> {
    let stream = device.default_stream();
    let sizes = PeerSizes::reference(tokens);
    let gathered = (tokens * sizes.heads * sizes.top_k * experts.layout().row_bytes()) as u64;
    let wanted = CACHE_MULTIPLE * device.properties().l2_bytes;
    let count = wanted.div_ceil(gathered).clamp(2, MOST_SETS);
    let sets: Vec<_> = (0..count).map(|set| draw(device, &sizes, set)).collect::<Result<_>>()?;
    let (x, routing) = &sets[0];
    let chosen = ops::expert_mlp(x, routing, experts).implementation()?;

    let all = [None].into_iter().chain(BLOCKS.map(Some));
    let mut launches: Vec<_> = all
        .map(|blocks| {
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
    let times = timings.iter().map(|timing: &Timing| format!("{:.2}", microseconds(timing)));
    let mut cells = vec![experts.layout().format().to_string(), tokens.to_string()];
    cells.extend(times);
    cells.extend([format!("{:.0} %", share * 100.0), chosen.to_string()]);
    Ok(cells)
}

/// Set `set` of tokens, which use any experts.
fn draw(device: &Device, sizes: &PeerSizes, set: u64) -> Result<Set> {
    let mut random = Random::new(set);
    let PeerSizes { tokens, heads, top_k, .. } = *sizes;
    let ids: Vec<u32> = (0..tokens * heads * top_k).map(|_| random.below(sizes.experts()) as u32).collect();
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
