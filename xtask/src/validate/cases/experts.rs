//! The cases of experts that are evaluated where their rows are.

use warpsmith::DType;
use warpsmith::ops::Activation;
use warpsmith::ops::peer::{ExpertBlocks, ExpertFormat};
use warpsmith_lab::cases::{Data, ExpertCase, Placement, Residence, RoutingKind};

use super::{Level, Target};

const TYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

/// T, D, O, H, k: nothing, single elements, odd sizes, the reference configuration's sizes for a few tokens.
const QUICK_SIZES: [[usize; 5]; 6] = [
    [0, 5, 7, 2, 3],
    [3, 0, 7, 1, 2],
    [1, 1, 1, 1, 1],
    [5, 31, 13, 3, 5],
    [2, 64, 128, 8, 2],
    [3, 257, 129, 2, 16],
];
const MORE_SIZES: [[usize; 5]; 4] =
    [[4, 256, 256, 8, 16], [1, 1024, 1024, 8, 16], [2, 2100, 40, 1, 9], [2, 24, 2500, 3, 3]];
/// On a GPU only: T, D, O, H, k, with very many experts.
const LARGE_SIZES: [[usize; 5]; 3] =
    [[2048, 1024, 1024, 8, 16], [257, 768, 512, 4, 64], [1, 4096, 4096, 8, 16]];
/// T, D, O, H, k, sorted by experts: a slice of the columns and several, groups of one token and of several, one expert and as many as there may be.
const SORTED_SIZES: [[usize; 5]; 5] =
    [[5, 31, 13, 3, 5], [40, 257, 520, 1, 3], [1, 1, 1, 1, 1], [3, 600, 270, 8, 16], [2, 8, 9, 8, 256]];
/// Experts of the tables of those: more bytes than caches hold.
const MANY: usize = 1 << 13;

/// The cases for every format and type.
pub(in super::super) fn experts(level: Level, target: Target, seed: u64) -> Vec<ExpertCase> {
    of_every_type(level, seed, |case, format, cases| {
        cases.extend(options(case([4, 100, 72, 3, 4])));
        if !format.is_scaled() {
            let sizes = if level >= Level::Default { &SORTED_SIZES[..] } else { &SORTED_SIZES[..2] };
            cases.extend(sorted(sizes.iter().map(|&sizes| case(sizes))));
        }
        if level == Level::Full && target.on_gpu {
            let large = LARGE_SIZES.map(|sizes| ExpertCase { experts: MANY, ..case(sizes) });
            if !format.is_scaled() {
                let blocks = Some(ExpertBlocks::Sorted);
                cases.extend(large.iter().map(|case| ExpertCase { blocks, ..case.clone() }));
            }
            cases.extend(large);
        }
    })
}

/// The gradients' cases for every format and type.
pub(in super::super) fn expert_gradients(level: Level, target: Target, seed: u64) -> Vec<ExpertCase> {
    of_every_type(level, seed, |case, _, cases| {
        // There are no gradients before rounding to a format.
        cases.extend(options(case([4, 100, 72, 3, 4])).into_iter().filter(|case| !case.before_rounding));
        // More vectors than are looked up at a time, and more columns than a pass of the block has.
        cases.push(ExpertCase { hidden: 5, gated: true, ..case([1, 40, 24, 8, 7]) });
        cases.push(case([2, 4500, 40, 1, 3]));
        if level == Level::Full && target.on_gpu {
            cases.extend(LARGE_SIZES.map(|sizes| ExpertCase { experts: MANY, ..case(sizes) }));
        }
    })
}

/// Cases of the usual sizes for every format and type, and what `add` adds to them: it is given a case of any sizes, and the format.
fn of_every_type(
    level: Level,
    seed: u64,
    add: impl Fn(&dyn Fn([usize; 5]) -> ExpertCase, ExpertFormat, &mut Vec<ExpertCase>),
) -> Vec<ExpertCase> {
    let mut cases = Vec::new();
    for format in ExpertFormat::ALL {
        for dtype in TYPES {
            let case = |[tokens, d, o, heads, k]: [usize; 5]| ExpertCase {
                o,
                ..ExpertCase::new(dtype, format, tokens, d, [heads, k])
            };
            cases.extend(QUICK_SIZES.map(case));
            if level >= Level::Default {
                cases.extend(MORE_SIZES.map(case));
            }
            add(&case, format, &mut cases);
        }
    }
    for (index, case) in cases.iter_mut().enumerate() {
        case.seed = seed.wrapping_add(index as u64);
    }
    cases
}

/// Cases of these sizes in the order of the table, with every option that makes a difference there.
fn sorted(cases: impl Iterator<Item = ExpertCase>) -> Vec<ExpertCase> {
    let mut all = Vec::new();
    for case in cases.map(|case| ExpertCase { blocks: Some(ExpertBlocks::Sorted), ..case }) {
        let beside = Placement { before: 1, after: 2 };
        all.push(ExpertCase { residence: Residence::Mixed, routing: RoutingKind::Skewed, ..case.clone() });
        all.push(ExpertCase { routing: RoutingKind::Same, x: beside, y: beside, ..case.clone() });
        let integers = ExpertCase { data: Data::Integers, activation: Activation::Relu, ..case.clone() };
        all.push(ExpertCase { residence: Residence::Slots, ..integers });
        if case.heads * case.k <= 128 {
            all.push(ExpertCase { gated: true, hidden: 2, ..case });
        }
    }
    all
}

/// Every option once, and some together.
fn options(case: ExpertCase) -> Vec<ExpertCase> {
    let beside = Placement { before: 3, after: 5 };
    let mut cases = vec![
        ExpertCase { gated: true, ..case.clone() },
        ExpertCase { hidden: 3, ..case.clone() },
        ExpertCase { hidden: 2, gated: true, x: beside, y: beside, ..case.clone() },
        ExpertCase { residence: Residence::Slots, routing: RoutingKind::Skewed, ..case.clone() },
        ExpertCase { residence: Residence::Mixed, routing: RoutingKind::Same, ..case.clone() },
        ExpertCase { before_rounding: true, ..case.clone() },
    ];
    cases.extend(Activation::ALL.map(|activation| ExpertCase { activation, ..case.clone() }));
    let integers = ExpertCase { data: Data::Integers, activation: Activation::Relu, heads: 2, ..case };
    cases.extend([integers.clone(), ExpertCase { residence: Residence::Mixed, ..integers }]);
    cases
}
