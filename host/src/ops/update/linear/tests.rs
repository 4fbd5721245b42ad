//! The choice among the ways, against what was measured of all of them.

use std::collections::BTreeMap;

use super::super::{Way, alone};
use super::{Bolted, Path, hopper, products};
use crate::DType;
use crate::ops::gemm::{Access, Fused, Limits};
use crate::ops::update::operands::Problem;
use crate::ops::update::products::VLies;

const H100: Limits = Limits {
    compute_capability: (9, 0),
    multiprocessors: 132,
    max_shared_per_block: 232_448,
    shared_per_multiprocessor: 233_472,
    memory_bandwidth: 0,
    takes_fp8_mma: true,
};

/// What `cargo xtask bench --operation update --variants` measured: an operation, a size and a rank, a way, microseconds.
const MEASURED: &str = include_str!("../ways-h100.csv");

/// The way that is chosen, in the words of the table; `None` if the table has none for it.
fn chosen(operation: &str, problem: &Problem) -> Option<String> {
    if operation == "linear with update" {
        let bolted =
            Bolted { problem: *problem, fused: Fused::Floor, v: VLies::AlongK, copied: 0, is_packed: true };
        return match bolted.fastest(&H100) {
            Path::Hopper(_) => Some(Way::Kernel),
            // On Hopper the table has this way only where no other kernel does all.
            Path::Portable(_) => hopper::choose(problem, &H100).is_none().then_some(Way::Kernel),
            // Which sums in parts the table does not have.
            Path::Joined(choice, _) => (choice.parts() == 1).then(|| Way::Joined(choice.tile())),
            Path::Sequence => Some(Way::Products),
        }
        .map(|way| way.to_string());
    }
    let v = if problem.rank.is_multiple_of(8) { VLies::AlongR } else { VLies::Otherwise };
    let kernel = alone::choose(problem, &H100).map(|(_, time)| time);
    let products = products::choose(problem, v, None, &H100).map(|(_, time)| time)?;
    let way = if kernel.is_some_and(|kernel| kernel <= products) { Way::Kernel } else { Way::Products };
    Some(way.to_string())
}

#[test]
fn the_way_that_is_chosen_is_near_the_fastest_measured() {
    let mut cases: BTreeMap<(&str, &str), BTreeMap<&str, f64>> = BTreeMap::new();
    for line in MEASURED.lines().filter(|line| !line.starts_with('#')).skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let &[operation, size, way, microseconds] = &fields[..] else { panic!("four fields in `{line}`") };
        let time = microseconds.parse().expect("a number");
        cases.entry((operation, size)).or_default().insert(way, time);
    }
    let known = Way::all();
    for (operation, least, mean, most) in
        [("linear with update", 80, MEAN, MOST), ("generated update", 80, MEAN, MOST)]
    {
        let mut losses = Vec::new();
        for ((_, size), times) in cases.iter().filter(|((of, _), _)| *of == operation) {
            let sides: Vec<u32> = size.split('x').map(|side| side.parse().expect("a number")).collect();
            let &[m, k, n, rank] = &sides[..] else { panic!("four numbers in `{size}`") };
            let is_layer = operation == "linear with update";
            let problem = Problem {
                m,
                k,
                n,
                rank,
                dtype: DType::Bf16,
                access: if is_layer || rank.is_multiple_of(8) { Access::Aligned } else { Access::Words },
                x_is_chunked: true,
                u_is_chunked: true,
                y_is_chunked: true,
                fits_registers: true,
            };
            // Of the ways that are named for tiles, and of the others, at least one that there is: else names have changed, and what is compared
            // below is none of what runs.
            let is_there = |way: &Way| times.contains_key(way.to_string().as_str());
            let is_tile = |way: &Way| {
                if is_layer { matches!(way, Way::Joined(_)) } else { matches!(way, Way::Modulated(_)) }
            };
            let (tiles, others): (Vec<Way>, Vec<Way>) =
                known.iter().copied().filter(is_there).partition(is_tile);
            assert!(!tiles.is_empty() && !others.is_empty(), "{operation} {size}: {tiles:?}, {others:?}");
            // Some ways are younger than the table.
            let way = chosen(operation, &problem).filter(|way| times.contains_key(way.as_str()));
            let Some(way) = way else { continue };
            let fastest = times.values().copied().fold(f64::INFINITY, f64::min);
            losses.push((times[way.as_str()] / fastest, format!("{size}: {way} of {fastest} us")));
        }
        assert!(losses.len() >= least, "{operation}: {}", losses.len());
        let logarithms: f64 = losses.iter().map(|(loss, _)| loss.ln()).sum();
        let of_all = (logarithms / losses.len() as f64).exp();
        losses.retain(|(loss, _)| *loss > most);
        assert!(of_all <= mean && losses.is_empty(), "{operation}: {of_all}, {losses:#?}");
    }
}

/// What choices may lose of the fastest way's time in the geometric mean, and each.
const MEAN: f64 = 1.05;
const MOST: f64 = 1.5;
