//! The cases of the scaled linear operation: types, scales, layouts, and what is done to the products.

use warpsmith::DType;
use warpsmith::ops::Activation;
use warpsmith::ops::gemm::Tile;
use warpsmith_lab::cases::{Data, Placement, ScaleKind, ScaledCase, Terms};

use super::{EMULATED_WORK, LARGE_SIZES, Level, MORE_SIZES, QUICK_SIZES, Target};

/// The cases of the scaled linear operation.
pub(in super::super) fn scaled(level: Level, target: Target, seed: u64) -> Vec<ScaledCase> {
    let mut cases = Vec::new();
    let integers = |case: ScaledCase| ScaledCase { data: Data::Integers, alpha: 0.5, ..case };
    for x_type in [DType::F8E4M3, DType::F8E5M2] {
        for w_type in [DType::F8E4M3, DType::F8E5M2] {
            for output in [DType::F16, DType::Bf16, DType::F32] {
                let case = |(m, k, n)| ScaledCase { x_type, w_type, output, ..ScaledCase::new(m, k, n) };
                cases.extend([(17, 31, 13), (65, 130, 67)].map(case));
                cases.extend([(17, 31, 13), (130, 300, 200)].map(|size| integers(case(size))));
            }
        }
    }
    // Of one type of operands, since the path of the others is the same.
    for output in [DType::F16, DType::Bf16, DType::F32] {
        let case = |(m, k, n)| ScaledCase { output, ..ScaledCase::new(m, k, n) };
        cases.extend(QUICK_SIZES.map(case));
        let sized = case((37, 80, 45));
        cases.extend(Activation::ALL.map(|activation| ScaledCase {
            activation,
            alpha: -0.37,
            ..sized.clone()
        }));
        for scale in ScaleKind::ALL {
            cases.push(ScaledCase { x_scale: scale, bias: false, ..sized.clone() });
            cases.push(ScaledCase { w_scale: scale, activation: Activation::None, ..sized.clone() });
        }
        let at = |before, after| Placement { before, after };
        cases.extend([
            ScaledCase { x: at(16, 32), w: at(32, 16), y: at(16, 16), ..case((70, 176, 96)) },
            ScaledCase { x: at(1, 0), ..sized.clone() },
            ScaledCase { w: at(0, 3), ..sized.clone() },
            ScaledCase { y: at(0, 3), ..sized.clone() },
            ScaledCase { x: at(3, 2), w: at(5, 1), y: at(7, 1), ..case((9, 61, 67)) },
            ScaledCase { across: [true, false], ..case((70, 176, 96)) },
            ScaledCase { across: [false, true], w: at(0, 3), ..sized.clone() },
            ScaledCase { across: [true, true], x: at(16, 0), ..case((9, 61, 67)) },
        ]);
        cases.extend(scaled_terms(&case));
        // Sums in parts, of several tiles of which the last lack rows and columns.
        for tile in Tile::of_input(DType::F8E4M3) {
            if tile.has_passes() && tile.runs_on(target.compute_capability) {
                let terms = Terms { beta: 1.0, mask: true, ..Terms::default() };
                for terms in [Terms::default(), terms] {
                    cases.push(ScaledCase {
                        tile: Some(tile),
                        parts: Some(3),
                        terms,
                        ..case((70, 400, 140))
                    });
                }
            }
        }
        if level >= Level::Default {
            cases.extend(MORE_SIZES.map(case));
            cases.extend(QUICK_SIZES.into_iter().chain(MORE_SIZES).map(|size| integers(case(size))));
            let runs = |tile: &Tile| tile.runs_on(target.compute_capability);
            for tile in Tile::of_input(DType::F8E4M3).filter(runs) {
                // The last has a sum longer than any ring of stages.
                for size in [(300, 256, 400), (150, 200, 140), (260, 1300, 264)] {
                    cases.push(ScaledCase { tile: Some(tile), ..case(size) });
                    cases.push(ScaledCase { tile: Some(tile), ..integers(case(size)) });
                }
                if tile.shares() {
                    // Parts of several steps, of one, and more than there are steps.
                    for (parts, size) in [(3, (300, 1030, 401)), (9, (70, 1300, 262)), (40, (33, 200, 71))] {
                        let split = ScaledCase { tile: Some(tile), parts: Some(parts), ..case(size) };
                        cases.push(integers(split.clone()));
                        cases.push(split);
                    }
                }
                let all = Terms { beta: 1.0, mask: true, preactivation: true, ..Terms::default() };
                for terms in [all, Terms { in_place: true, ..all }] {
                    let whole = ScaledCase { tile: Some(tile), terms, ..case((260, 200, 392)) };
                    cases.push(ScaledCase { activation: Activation::Silu, ..whole.clone() });
                    cases.push(ScaledCase { parts: tile.shares().then_some(2), ..whole.clone() });
                    cases.push(ScaledCase { y: at(8, 0), ..integers(whole) });
                }
            }
        }
        if level == Level::Full {
            let fits = |&(m, k, n): &(usize, usize, usize)| target.on_gpu || m * k * n <= EMULATED_WORK;
            cases.extend(LARGE_SIZES.into_iter().filter(fits).map(case));
        }
    }
    numbered_scaled(cases, seed)
}

/// Residuals, and what training needs: each alone and all together, in rows that start at multiples of 16 bytes and in others.
fn scaled_terms(case: &impl Fn((usize, usize, usize)) -> ScaledCase) -> Vec<ScaledCase> {
    let none = Terms::default();
    let beside = Placement { before: 3, after: 2 };
    let all = Terms { beta: -0.5, mask: true, preactivation: true, ..none };
    let terms = [
        Terms { beta: 2.0, ..none },
        Terms { beta: 1.0, in_place: true, ..none },
        Terms { mask: true, ..none },
        Terms { preactivation: true, beside, ..none },
        Terms { beside, ..all },
        Terms { beta: -1.0, in_place: true, ..all },
    ];
    let with = |terms| [(37, 70, 45), (70, 136, 96)].map(|size| ScaledCase { terms, ..case(size) });
    terms.into_iter().flat_map(with).collect()
}

/// Those validated by default, every layout and term of them, on integers: what a GPU and the emulator must agree on to the bit.
pub(in super::super) fn compared_scaled(target: Target, seed: u64) -> Vec<ScaledCase> {
    let exact = |case: ScaledCase| {
        let terms = Terms { beta: case.terms.beta.round(), ..case.terms };
        ScaledCase { data: Data::Integers, alpha: 0.5, terms, ..case }
    };
    let mut cases: Vec<_> = scaled(Level::Default, target, seed).into_iter().map(exact).collect();
    // A GPU's `ex2` and `rcp` are approximate in their own way.
    cases.retain(ScaledCase::is_exact);
    numbered_scaled(cases, seed)
}

fn numbered_scaled(mut cases: Vec<ScaledCase>, seed: u64) -> Vec<ScaledCase> {
    for (number, case) in cases.iter_mut().enumerate() {
        case.seed = seed.wrapping_mul(1 << 20).wrapping_add(number as u64);
    }
    cases
}
