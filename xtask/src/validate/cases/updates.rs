//! The cases of generated low-rank updates.

use warpsmith::DType;
use warpsmith::ops::Activation;
use warpsmith::ops::update::Way;
use warpsmith_lab::cases::{CodesPer, Data, Placement, UpdateCase};

use super::{Level, Target};

const TYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

/// M, K, N, R: nothing, single elements, odd sizes, sizes of tiles and one more and one less, few rows.
const QUICK_SIZES: [[usize; 4]; 8] = [
    [0, 5, 7, 2],
    [5, 0, 7, 2],
    [1, 1, 1, 1],
    [17, 31, 13, 3],
    [64, 64, 64, 8],
    [65, 136, 72, 16],
    [1, 1000, 104, 8],
    [129, 104, 264, 33],
];
const MORE_SIZES: [[usize; 4]; 10] = [
    [5, 7, 0, 4],
    [3, 768, 768, 8],
    [16, 512, 304, 64],
    [128, 128, 128, 128],
    [127, 255, 131, 100],
    [33, 2048, 72, 17],
    [200, 96, 520, 48],
    [256, 256, 512, 24],
    [300, 72, 128, 8],
    [130, 64, 257, 127],
];
/// What is validated on a GPU, and the first in the emulator too.
const LARGE_SIZES: [[usize; 4]; 6] = [
    [128, 768, 768, 8],
    [4096, 768, 768, 8],
    [5120, 2048, 3072, 8],
    [16384, 768, 768, 8],
    [16384, 4096, 4096, 16],
    [16384, 4096, 4096, 64],
];

/// The cases of updates alone and onto linear operations.
pub(in super::super) fn updates(level: Level, target: Target, seed: u64) -> Vec<UpdateCase> {
    let mut cases = Vec::new();
    for dtype in TYPES {
        let case = |[m, k, n, rank]: [usize; 4]| UpdateCase::new(dtype, m, k, n, rank);
        let mut sizes = QUICK_SIZES.to_vec();
        if level >= Level::Default {
            sizes.extend(MORE_SIZES);
        }
        for size in sizes {
            for data in [Data::Uniform, Data::Integers] {
                let case = UpdateCase { data, ..case(size) };
                cases.extend([case.clone().alone(false), case]);
            }
        }
        cases.extend(options(&case));
        // Sums that go on in a second pair of matrices: fewer steps than rings have stages, and more.
        let has_way = |way: &Way| dtype != DType::F32 || matches!(way, Way::Kernel | Way::Products);
        for way in Way::all().into_iter().filter(has_way) {
            let case = |size| UpdateCase { way: Some(way), data: Data::Integers, ..case(size) };
            let both = [case([37, 72, 200, 5]), case([200, 1160, 264, 100])];
            let is_alone = matches!(way, Way::Modulated(_));
            cases.extend(both.map(|case| if is_alone { case.alone(false) } else { case }));
        }
        // Several updates are put together in rows of whole chunks: a cluster's blocks past the last column then begin within one.
        let together = UpdateCase { ranks: vec![4, 5], way: Some(Way::Kernel), ..case([1, 1, 7, 9]) };
        cases.push(together.alone(false));
        let alone = |way, size| UpdateCase { way: Some(way), ..case(size) }.alone(true);
        cases.extend([alone(Way::Products, [65, 136, 72, 16]), alone(Way::Kernel, [5, 1160, 200, 12])]);
        if level == Level::Full {
            let fits = |size: &[usize; 4]| target.on_gpu || size == &LARGE_SIZES[0];
            for size in LARGE_SIZES.into_iter().filter(fits) {
                cases.extend([case(size), case(size).alone(true)]);
            }
        }
        // What is told beside the usual tolerances.
        let unit = UpdateCase {
            unit_scaled: true,
            ..case(if target.on_gpu { LARGE_SIZES[1] } else { [64, 768, 128, 8] })
        };
        cases.extend([unit.clone().alone(false), unit]);
    }
    for (number, case) in cases.iter_mut().enumerate() {
        case.seed = seed.wrapping_mul(1 << 20).wrapping_add(number as u64);
    }
    cases
}

/// Several updates, every way to share codes, every epilogue, and operands inside larger matrices.
fn options(case: &impl Fn([usize; 4]) -> UpdateCase) -> Vec<UpdateCase> {
    let sized = case([96, 72, 136, 8]);
    // So many rows that blocks with few of them would take turns.
    let mut cases = vec![case([8192, 64, 72, 48]).alone(false)];
    let codes: Vec<_> = [CodesPer::Sequence, CodesPer::Operation, CodesPer::Mixed]
        .into_iter()
        .flat_map(|codes| {
            let case = UpdateCase { codes, sequence: 16, ranks: vec![8, 3, 5, 16], ..sized.clone() };
            [case.clone().alone(true), UpdateCase { scaling: -0.37, ..case.clone() }, case]
        })
        .collect();
    cases.extend(codes);
    cases.extend(Activation::ALL.map(|activation| UpdateCase { activation, ..sized.clone() }));
    let relu = UpdateCase { activation: Activation::Relu, mask: true, ..sized.clone() };
    let at = |before, after| Placement { before, after };
    cases.extend([
        UpdateCase { ranks: vec![16; 8], ..sized.clone() },
        UpdateCase { ranks: vec![1; 8], v_across: true, ..sized.clone() }.alone(false),
        UpdateCase { bias: false, beta: -0.5, ..sized.clone() },
        UpdateCase { beta: 1.0, in_place: true, activation: Activation::Silu, ..sized.clone() },
        UpdateCase { beta: 0.3, preactivation: true, ..relu.clone() },
        UpdateCase { data: Data::Integers, beta: 2.0, preactivation: true, ..relu.clone() },
        UpdateCase { n: 131, ..relu },
        UpdateCase { v_across: true, ..sized.clone() },
        UpdateCase { x: at(8, 16), w: at(16, 8), factors: at(8, 8), y: at(8, 16), ..sized.clone() },
        UpdateCase { x: at(8, 16), factors: at(8, 8), y: at(8, 6), ..sized.clone() }.alone(true),
        UpdateCase { x: at(1, 0), ..sized.clone() },
        UpdateCase { w: at(0, 3), ..sized.clone() },
        UpdateCase { factors: at(3, 2), ..sized.clone() },
        UpdateCase { y: at(1, 2), ..sized.clone() },
        UpdateCase { x: at(3, 2), factors: at(5, 1), y: at(7, 1), ..case([9, 61, 67, 5]) }.alone(true),
        UpdateCase { x: at(3, 2), w: at(5, 1), factors: at(1, 1), y: at(7, 1), ..case([9, 61, 67, 5]) },
    ]);
    cases
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use half::{bf16, f16};
    use warpsmith::ops::update::UpdateInput;
    use warpsmith::{DType, Device, Tensor, ops};
    use warpsmith_lab::cases::{Placement, UpdateCase};

    use super::super::{Level, Target};
    use super::updates;

    /// The kernels that `case` runs in the emulator.
    fn kernels<T: UpdateInput>(device: &Device, case: &UpdateCase) -> warpsmith::Result<Vec<&'static str>> {
        let place = |rows, columns, place: Placement| {
            let inside = place.before..place.before + columns;
            Tensor::<T>::zeros(device, [rows, inside.end + place.after])?.slice(1, inside)
        };
        let (x, w) = (place(case.m, case.k, case.x)?, place(case.n, case.k, case.w)?);
        let mut parts = Vec::new();
        for &rank in &case.ranks {
            let v = if case.v_across {
                place(rank, case.k, case.factors)?.swap_axes(0, 1)?
            } else {
                place(case.k, rank, case.factors)?
            };
            parts.push((v, Tensor::zeros(device, [rank])?, place(rank, case.n, case.factors)?));
        }
        let ((v, codes, u), others) = parts.split_first().expect("at least one update");
        let implementation = if case.linear {
            let residual = Tensor::zeros(device, [case.m, case.n])?;
            let mut op = ops::linear_with_update(&x, &w, v, codes, u, 1.0).activation(case.activation);
            if case.beta != 0.0 {
                op = op.residual(&residual, case.beta);
            }
            for (v, codes, u) in others {
                op = op.and(v, codes, u, 1.0);
            }
            op.implementation_as(None, case.way).or_else(|_| op.implementation())?
        } else {
            let mut op = ops::generated_update(&x, v, codes, u, 1.0);
            for (v, codes, u) in others {
                op = op.and(v, codes, u, 1.0);
            }
            op.implementation_as(None, case.way).or_else(|_| op.implementation())?
        };
        Ok(implementation.launches().iter().map(|launch| launch.kernel).collect())
    }

    /// Those of a GPU, since the largest tiles are for sizes that the emulator would take long for.
    #[test]
    fn the_cases_run_every_update_kernel_that_ships() -> warpsmith::Result<()> {
        let is_update = |name: &&str| {
            ["linear_update", "linear_joined", "linear_modulated", "generated_update", "modulate"]
                .iter()
                .any(|family| name.starts_with(family))
        };
        let modules = warpsmith_kernels::MODULES.iter().filter(|module| is_update(&module.family));
        let names = modules.flat_map(|module| module.entries).map(|entry| entry.name);
        let shipped: BTreeSet<_> = names.filter(is_update).collect();
        assert!(!shipped.is_empty());
        let mut reached = BTreeSet::new();
        for device in ["emulator:7.5", "emulator", "emulator:9.0"] {
            let device: Device = device.parse()?;
            let target = Target { on_gpu: true, ..Target::of(&device) };
            let mut cases = updates(Level::Full, target, 1);
            // Larger ones would only take memory.
            cases.retain(|case| case.m * case.k.max(case.n) <= 1 << 26);
            for case in cases {
                let kernels = match case.dtype {
                    DType::F16 => kernels::<f16>(&device, &case)?,
                    DType::Bf16 => kernels::<bf16>(&device, &case)?,
                    _ => kernels::<f32>(&device, &case)?,
                };
                reached.extend(kernels.into_iter().filter(is_update));
            }
        }
        assert_eq!(reached, shipped);
        Ok(())
    }

    #[test]
    fn each_level_of_updates_holds_the_cases_of_the_one_before() {
        let target = Target { on_gpu: false, compute_capability: (8, 0) };
        let of = |level| updates(level, target, 1);
        let (quick, default, full) = (of(Level::Quick), of(Level::Default), of(Level::Full));
        assert!(quick.len() < default.len() && default.len() < full.len());
        let kinds = |case: &UpdateCase| (case.linear, case.unit_scaled, case.is_exact());
        for kind in [(true, false, false), (true, false, true), (false, false, true), (true, true, false)] {
            assert!(quick.iter().any(|case| kinds(case) == kind), "{kind:?}");
        }
    }
}
