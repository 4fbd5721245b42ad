//! The cases of element-wise operations, of rotations of heads, of caches of keys and of look-ups in tables: sizes around those of a chunk, a block and a grid; every type, option and layout.

use warpsmith::DType;
use warpsmith::cpu::Elementwise;
use warpsmith::layers::CacheFormat;
use warpsmith::ops::{Activation, Pairing};
use warpsmith_lab::cases::{ElementwiseCase, EmbeddingCase, KeyScales, KvCacheCase, Placement, RotaryCase};

use super::{Level, Target};

/// The types of elements.
const TYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];
/// Where rows are in larger ones.
const PLACEMENTS: [[usize; 2]; 4] = [[8, 8], [1, 0], [0, 3], [4, 4]];

fn placement([before, after]: [usize; 2]) -> Placement {
    Placement { before, after }
}

/// The seed of a case.
fn seed_of(seed: u64, number: usize) -> u64 {
    seed.wrapping_mul(1 << 20).wrapping_add(number as u64)
}

/// Every function.
fn functions() -> Vec<Elementwise> {
    let mut all = vec![Elementwise::Add, Elementwise::Multiply];
    for of in Activation::ALL {
        all.extend([
            Elementwise::Activation(of),
            Elementwise::Gated(of),
            Elementwise::ActivationGradient(of),
            Elementwise::GatedGradient(of),
        ]);
    }
    all
}

/// The cases of element-wise operations.
pub(in super::super) fn elementwise(level: Level, target: Target, seed: u64) -> Vec<ElementwiseCase> {
    let mut sizes = vec![[0, 7], [5, 0], [1, 1], [33, 8], [70, 24], [3, 129], [1, 5003]];
    if level >= Level::Default {
        sizes.extend([[7, 1], [9, 128], [17, 768], [4, 1000], [2, 16_384], [1, 140_003], [600, 40]]);
    }
    if level == Level::Full && target.on_gpu {
        sizes.extend([[8192, 4096], [65_536, 1000], [131_072, 7], [3, 10_000_001]]);
    }
    let mut cases = Vec::new();
    for (dtype, other) in TYPES.into_iter().zip([DType::F32, DType::Bf16, DType::F16]) {
        for (number, function) in functions().into_iter().enumerate() {
            let case = |[rows, columns]: [usize; 2]| ElementwiseCase::new(function, dtype, rows, columns);
            // A few sizes of each function.
            let keep = if level == Level::Quick { 2 } else { sizes.len() };
            let some = (0..keep).map(|at| sizes[(number * 2 + at) % sizes.len()]);
            cases.extend(some.map(case));
            let beside = placement(PLACEMENTS[number % PLACEMENTS.len()]);
            cases.push(ElementwiseCase { other, placement: beside, ..case([19, 328]) });
            if level >= Level::Default {
                cases.extend(
                    PLACEMENTS
                        .map(|beside| ElementwiseCase { placement: placement(beside), ..case([37, 264]) }),
                );
            }
            if matches!(function, Elementwise::Add | Elementwise::Multiply) {
                cases.extend([[33, 40], [9, 77]].map(|size| ElementwiseCase { is_row: true, ..case(size) }));
                cases.push(ElementwiseCase { is_row: true, other, ..case([130, 72]) });
            }
        }
    }
    if target.compute_capability < (8, 0) {
        cases.clear();
    }
    for (number, case) in cases.iter_mut().enumerate() {
        case.seed = seed_of(seed, number);
    }
    cases
}

/// The cases of rotations of heads.
pub(in super::super) fn rotations(level: Level, target: Target, seed: u64) -> Vec<RotaryCase> {
    let mut widths = vec![(2, 2), (6, 4), (64, 64), (80, 48), (128, 72), (40, 38)];
    if level >= Level::Default {
        widths.extend([(64, 16), (96, 96), (128, 128), (128, 64), (256, 64)]);
    }
    let mut sizes = vec![[2, 9, 3]];
    if level >= Level::Default {
        sizes.extend([[0, 4, 2], [1, 1, 1], [3, 40, 8], [1, 70, 33]]);
    }
    if level == Level::Full && target.on_gpu {
        sizes.extend([[4, 2048, 32], [1, 4000, 128]]);
    }
    let mut cases = Vec::new();
    for dtype in TYPES {
        for [batch, length, heads] in sizes.clone() {
            for (number, &(width, rotary)) in widths.iter().enumerate() {
                for pairing in [Pairing::Halves, Pairing::Neighbours] {
                    let case = RotaryCase {
                        rotary,
                        pairing,
                        ..RotaryCase::new(dtype, [batch, length, heads, width])
                    };
                    let beside = placement(PLACEMENTS[number % PLACEMENTS.len()]);
                    cases.extend([
                        RotaryCase { offset: Some(4000), ..case },
                        RotaryCase { offset: None, is_inverse: true, placement: beside, ..case },
                        RotaryCase { in_place: true, placement: beside, ..case },
                    ]);
                }
            }
        }
    }
    if target.compute_capability < (8, 0) {
        cases.clear();
    }
    for (number, case) in cases.iter_mut().enumerate() {
        case.seed = seed_of(seed, number);
    }
    cases
}

/// The cases of caches of keys and values: nothing, single tokens and many, to the capacity and beyond it, in chunks and not.
pub(in super::super) fn caches(level: Level, target: Target, seed: u64) -> Vec<KvCacheCase> {
    let mut sizes = vec![
        ([1, 1], [1, 0], [8, 8]),
        ([2, 9], [3, 1], [16, 24]),
        ([3, 12], [5, 20], [64, 40]),
        ([2, 6], [0, 2], [13, 5]),
        ([0, 6], [1, 1], [8, 8]),
    ];
    if level >= Level::Default {
        sizes.extend([([4, 300], [257, 1], [128, 128]), ([1, 70], [33, 1], [72, 1])]);
    }
    if level == Level::Full && target.on_gpu {
        sizes.push(([8, 8192], [8000, 1], [128, 128]));
    }
    let mut cases = Vec::new();
    for dtype in TYPES {
        for format in [CacheFormat::Same, CacheFormat::F8E4M3, CacheFormat::F8E5M2] {
            let is_same = format == CacheFormat::Same;
            if dtype == DType::F32 && !is_same {
                continue;
            }
            for &([batch, capacity], tokens, widths) in &sizes {
                let case = KvCacheCase::new(dtype, format, [batch, capacity], tokens, widths);
                let scales = |scales| if is_same { None } else { Some(scales) };
                cases.push(KvCacheCase { scales: scales(KeyScales::OfHeads), ..case });
                cases.push(KvCacheCase { gap: 3, scales: scales(KeyScales::OfTensor), ..case });
                if tokens[0] + tokens[1] <= capacity {
                    cases.push(KvCacheCase { on_device: false, ..case });
                }
            }
        }
    }
    if target.compute_capability < (8, 0) {
        cases.clear();
    }
    for (number, case) in cases.iter_mut().enumerate() {
        case.seed = seed_of(seed, number);
    }
    cases
}

/// The cases of look-ups in tables, and of their gradients.
pub(in super::super) fn embeddings(level: Level, target: Target, seed: u64) -> Vec<EmbeddingCase> {
    // Rows of the table, their elements, tokens: nothing; one pass of the sort and more; a part of a tile, a tile and several.
    let mut sizes = vec![
        [5, 4, 0],
        [3, 0, 9],
        [1, 1, 1],
        [7, 8, 33],
        [255, 24, 300],
        [256, 3, 300],
        [1000, 129, 70],
        [700, 5, 2048],
        [70_000, 4, 2100],
    ];
    if level >= Level::Default {
        sizes.extend([
            [300, 768, 200],
            [1000, 1024, 100],
            [500, 7, 9001],
            [20_000, 16, 5000],
            [40, 1001, 300],
        ]);
    }
    if level == Level::Full && target.on_gpu {
        sizes.extend([[50_257, 768, 32_768], [128_256, 512, 16_384], [70_001, 101, 200_003]]);
    }
    let mut cases = Vec::new();
    for dtype in TYPES {
        for (number, &size) in sizes.iter().enumerate() {
            let case = EmbeddingCase::new(dtype, size);
            let beside = placement(PLACEMENTS[number % PLACEMENTS.len()]);
            cases.extend([
                case,
                EmbeddingCase { is_wide: false, placement: beside, ..case },
                EmbeddingCase { is_wide: number % 2 == 0, different: 3, ..case },
            ]);
        }
    }
    if target.compute_capability < (8, 0) {
        cases.clear();
    }
    for (number, case) in cases.iter_mut().enumerate() {
        case.seed = seed_of(seed, number);
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::{Level, Target, elementwise, embeddings, rotations};

    #[test]
    fn every_level_has_more_cases_and_old_gpus_none() {
        let target = Target { on_gpu: true, compute_capability: (9, 0) };
        let count = |level, target| {
            [
                elementwise(level, target, 1).len(),
                rotations(level, target, 1).len(),
                embeddings(level, target, 1).len(),
            ]
        };
        let counts = [Level::Quick, Level::Default, Level::Full].map(|level| count(level, target));
        for op in 0..3 {
            let of_op = counts.map(|counts| counts[op]);
            assert!(of_op[0] > 70 && of_op[0] < of_op[1] && of_op[1] < of_op[2], "{counts:?}");
        }
        assert_eq!(count(Level::Full, Target { compute_capability: (7, 5), ..target }), [0; 3]);
    }
}
