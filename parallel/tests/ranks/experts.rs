//! Experts that are split over ranks, beside one table.

use warpsmith::ops::peer::{ExpertBlocks, ExpertFormat, ExpertLayout, ExpertTable, ExpertVectors, Routing};
use warpsmith::ops::{self, Activation};
use warpsmith::{Device, EmulatorOptions, Tensor};
use warpsmith_parallel::experts::{Placement, SplitExperts};
use warpsmith_parallel::{Result, launch};

use crate::support::{F32_UNIT, LIMIT, Random};

#[test]
fn every_expert_has_one_row_and_ranks_have_as_many() {
    for count in [0, 1, 2, 7, 64, 1000, 2_654_435_769usize % 5000] {
        for size in 1..=8 {
            let placement = Placement::new(count, size);
            let all: Vec<_> = (0..size).map(|rank| placement.experts_of(rank)).collect();
            let lengths = all.iter().map(Vec::len);
            assert!(lengths.clone().max().unwrap_or(0) - lengths.min().unwrap_or(0) <= 1);
            let mut seen = vec![0; count];
            for (rank, experts) in all.iter().enumerate() {
                for (row, &expert) in experts.iter().enumerate() {
                    assert_eq!(placement.find(expert), Some([rank, row]), "{count} on {size}");
                    seen[expert] += 1;
                }
            }
            assert!(seen.iter().all(|&times| times == 1));
        }
    }
}

#[test]
fn neighbours_are_on_different_ranks() {
    let placement = Placement::new(1 << 16, 8);
    let mut counts = [0usize; 8];
    for expert in 0..1000 {
        counts[placement.find(expert).expect("it is there")[0]] += 1;
    }
    // An eighth is 125.
    assert!(counts.iter().all(|count| (100..150).contains(count)), "{counts:?}");
}

const D: usize = 3;
const HIDDEN: usize = 2;
const O: usize = 4;

/// u, w and v of some experts.
fn vectors(experts: &[usize], is_whole: bool, gated: bool) -> [Vec<f32>; 3] {
    let mut all = [vec![], vec![], vec![]];
    for &expert in experts {
        let mut random = Random(expert as u64);
        let mut numbers = |count| if is_whole { random.whole(count) } else { random.numbers(count) };
        all[0].extend(numbers(HIDDEN * D));
        let w = numbers(HIDDEN * D);
        all[1].extend(if gated { w } else { vec![] });
        all[2].extend(numbers(HIDDEN * O));
    }
    all
}

/// A rank's tokens, and the experts of each.
fn tokens(
    device: &Device,
    rank: usize,
    count: usize,
    experts: usize,
    is_whole: bool,
) -> Result<(Tensor<f32>, Routing)> {
    let mut random = Random(rank as u64 + 77);
    let [heads, k] = [2, 3];
    let x = if is_whole { random.whole(count * D) } else { random.numbers(count * D) };
    let ids: Vec<u32> = (0..count * heads * k).map(|_| (random.next() % experts as u64) as u32).collect();
    let gates = if is_whole { random.whole(ids.len()) } else { random.numbers(ids.len()) };
    let routing = Routing {
        ids: Tensor::from_slice(device, &ids, [count, heads, k])?,
        gates: Tensor::from_slice(device, &gates, [count, heads, k])?,
    };
    Ok((Tensor::from_slice(device, &x, [count, D])?, routing))
}

struct Case {
    size: usize,
    tokens: usize,
    experts: usize,
    gated: bool,
    is_whole: bool,
}

/// What the split table and one table give for each rank's tokens, and the sum of the sizes of the terms.
fn outputs(case: &Case, device: fn() -> Device) -> Result<Vec<[Vec<f32>; 3]>> {
    let &Case { size, tokens: count, experts, gated, is_whole } = case;
    launch::threads_within(LIMIT, size, |communicator| {
        let device = device();
        let layout = ExpertLayout::new(ExpertFormat::F32, D, HIDDEN, O, gated)?;
        let split = SplitExperts::new(&communicator, &device, layout, experts, |ids| {
            Ok(vectors(ids, is_whole, gated))
        })?
        .activation(Activation::Relu);
        assert_eq!(split.own_count(), split.placement().experts_of(communicator.rank()).len());
        let (x, routing) = tokens(&device, communicator.rank(), count, experts, is_whole)?;
        let found = split.forward(&x, &routing)?.to_vec()?;

        let [u, w, v] = vectors(&(0..experts).collect::<Vec<_>>(), is_whole, gated);
        let table = |v: &[f32], u: &[f32], w: &[f32]| -> Result<ExpertTable> {
            let mut table = ExpertTable::zeros(&device, layout, experts)?;
            let mut rows = vec![0; experts * layout.row_bytes()];
            layout.pack_rows(ExpertVectors { u, w, v }, &mut rows)?;
            table.write_rows(0, &rows)?;
            Ok(table)
        };
        let whole = ops::expert_mlp(&x, &routing, &table(&v, &u, &w)?).activation(Activation::Relu).run()?;
        // With all numbers positive nothing cancels: the output is the sum of the sizes.
        let sizes = |numbers: &[f32]| numbers.iter().map(|number| number.abs()).collect::<Vec<_>>();
        let absolute = |tensor: &Tensor<f32>| -> Result<Tensor<f32>> {
            Ok(Tensor::from_slice(&device, &sizes(&tensor.to_vec()?), tensor.shape())?)
        };
        let positive = Routing { ids: routing.ids.clone(), gates: absolute(&routing.gates)? };
        let sized = table(&sizes(&v), &sizes(&u), &sizes(&w))?;
        let sums = ops::expert_mlp(&absolute(&x)?, &positive, &sized).activation(Activation::Relu).run()?;
        Ok([found, whole.to_vec()?, sums.to_vec()?])
    })
}

#[test]
fn whole_numbers_give_the_bits_of_one_table() -> Result<()> {
    for size in [1, 2, 3, 8] {
        for (tokens, experts) in [(0, 5), (1, 1), (5, 7), (4, 100)] {
            for gated in [false, true] {
                let case = Case { size, tokens, experts, gated, is_whole: true };
                for [found, whole, _] in outputs(&case, Device::cpu)? {
                    assert_eq!(found, whole, "{experts} experts on {size} ranks");
                }
            }
        }
    }
    let case = Case { size: 2, tokens: 3, experts: 9, gated: false, is_whole: true };
    for [found, whole, _] in outputs(&case, Device::emulator)? {
        assert_eq!(found, whole);
    }
    Ok(())
}

#[test]
fn outputs_are_within_the_bound_of_one_table() -> Result<()> {
    for size in 1..=8 {
        let case = Case { size, tokens: 4, experts: 50, gated: true, is_whole: false };
        for [found, whole, sizes] in outputs(&case, Device::cpu)? {
            for ((found, whole), size_of_terms) in found.iter().zip(&whole).zip(&sizes) {
                // Both are sums of 12 products of a gate, two sums over 3 columns and a factor, of which each rounds; the split
                // one adds up the ranks'.
                let roundings = (2 * (2 * D + 4 + 12) + 12 + size + 2) as f64;
                let bound = roundings * F32_UNIT * f64::from(*size_of_terms) * (1.0 + 1e-5);
                let apart = (f64::from(*found) - f64::from(*whole)).abs();
                assert!(apart <= bound, "{found} and {whole} on {size} ranks, expected within {bound:e}");
            }
        }
    }
    Ok(())
}

#[test]
fn pieces_have_the_bits_of_all_tokens_at_once() -> Result<()> {
    for (device, sizes) in [(Device::cpu as fn() -> Device, &[1, 2, 3, 8][..]), (hopper, &[2])] {
        for &size in sizes {
            for count in [0, 1, 5, 7] {
                let results = launch::threads_within(LIMIT, size, |communicator| {
                    let device = device();
                    let layout = ExpertLayout::new(ExpertFormat::F32, D, HIDDEN, O, true)?;
                    let (x, routing) = tokens(&device, communicator.rank(), count, 50, false)?;
                    let mut outputs = Vec::new();
                    for pieces in [1, 2, 3, 5, 100] {
                        let split = SplitExperts::new(&communicator, &device, layout, 50, |ids| {
                            Ok(vectors(ids, false, true))
                        })?;
                        outputs.push(split.pieces(pieces).forward(&x, &routing)?.to_vec()?);
                    }
                    Ok(outputs)
                })?;
                for outputs in results {
                    assert_eq!(outputs[0].len(), count * O);
                    assert!(outputs.iter().all(|output| *output == outputs[0]), "{count} tokens on {size}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn operands_that_do_not_fit_are_refused() -> Result<()> {
    let results = launch::all_threads(LIMIT, 1, |communicator| {
        let device = Device::cpu();
        let layout = ExpertLayout::new(ExpertFormat::F32, D, HIDDEN, O, false)?;
        let split =
            SplitExperts::new(&communicator, &device, layout, 5, |ids| Ok(vectors(ids, true, false)))?;
        let (x, routing) = tokens(&device, 0, 4, 5, true)?;
        let expect = |result: Result<Tensor<f32>>, words: &str| {
            let error = result.expect_err("it does not fit").to_string();
            assert!(error.contains(words), "{error} lacks {words}");
        };
        expect(split.forward(&x.swap_axes(0, 1)?.contiguous()?, &routing), "3 columns");
        expect(split.forward(&x.slice(0, 0..3)?, &routing), "3 tokens");
        let short = Routing { ids: routing.ids.clone(), gates: routing.gates.slice(0, 0..1)? };
        expect(split.forward(&x, &short), "as ids have");
        let flat = Routing { ids: routing.ids.reshape([4, 6])?, gates: routing.gates.reshape([4, 6])? };
        expect(split.forward(&x, &flat), "[tokens, heads, k]");
        let (_, far) = tokens(&device, 0, 4, 1000, true)?;
        expect(split.forward(&x, &far), "expected that of an expert");
        let short = SplitExperts::new(&communicator, &device, layout, 5, |_| Ok([vec![], vec![], vec![]]));
        assert!(short.is_err());
        Ok(())
    })?;
    results.into_iter().collect()
}

/// An emulator with clusters.
fn hopper() -> Device {
    Device::emulator_with(EmulatorOptions { compute_capability: (9, 0), ..EmulatorOptions::default() })
}

/// A table of the experts `own` of `experts`, and a row of zeros.
fn part_of(device: &Device, layout: ExpertLayout, own: &[usize], experts: usize) -> Result<ExpertTable> {
    let [u, w, v] = vectors(own, true, layout.is_gated());
    let mut bytes = vec![0; own.len() * layout.row_bytes()];
    layout.pack_rows(ExpertVectors { u: &u, w: &w, v: &v }, &mut bytes)?;
    let mut rows = ExpertTable::zeros(device, layout, own.len() + 1)?;
    rows.write_rows(0, &bytes)?;
    let mut slot_of = vec![own.len() as u32; experts];
    own.iter().enumerate().for_each(|(row, &expert)| slot_of[expert] = row as u32);
    Ok(ExpertTable::part(&rows, &slot_of)?)
}

/// A table of all experts, of which all but `own` are zeros.
fn zeros_but(device: &Device, layout: ExpertLayout, own: &[usize], experts: usize) -> Result<ExpertTable> {
    let mut table = ExpertTable::zeros(device, layout, experts)?;
    for &expert in own {
        let [u, w, v] = vectors(&[expert], true, layout.is_gated());
        let mut bytes = vec![0; layout.row_bytes()];
        layout.pack_rows(ExpertVectors { u: &u, w: &w, v: &v }, &mut bytes)?;
        table.write_rows(expert, &bytes)?;
    }
    Ok(table)
}

#[test]
fn parts_of_a_table_add_up_to_it_in_every_way_to_evaluate_them() -> Result<()> {
    let ways = [None, Some(ExpertBlocks::One), Some(ExpertBlocks::Cluster(2)), Some(ExpertBlocks::Sorted)];
    for (device, ways) in [(Device::cpu(), &ways[..1]), (hopper(), &ways[1..])] {
        for (format, gated) in [(ExpertFormat::F32, true), (ExpertFormat::Bf16, false)] {
            let layout = ExpertLayout::new(format, D, HIDDEN, O, gated)?;
            for (count, experts, size) in [(1, 2, 2), (5, 50, 3), (37, 9, 2), (3, 2, 5)] {
                let (x, routing) = tokens(&device, 0, count, experts, true)?;
                for &blocks in ways {
                    let run = |table: &ExpertTable| -> Result<Vec<f32>> {
                        let operation = ops::expert_mlp(&x, &routing, table);
                        Ok(operation.activation(Activation::Relu).blocks(blocks).run()?.to_vec()?)
                    };
                    let all: Vec<_> = (0..experts).collect();
                    let whole = run(&part_of(&device, layout, &all, experts)?)?;
                    assert!(whole.iter().any(|&number| number != 0.0));
                    let placement = Placement::new(experts, size);
                    let mut sums = vec![0.0; whole.len()];
                    for rank in 0..size {
                        let own = placement.experts_of(rank);
                        let part = run(&part_of(&device, layout, &own, experts)?)?;
                        let expected = run(&zeros_but(&device, layout, &own, experts)?)?;
                        assert_eq!(
                            part, expected,
                            "rank {rank}: {device} {format} {count} {experts} {size} {blocks:?}"
                        );
                        sums.iter_mut().zip(part).for_each(|(sum, number)| *sum += number);
                    }
                    assert_eq!(sums, whole, "{device} {format} {count} {experts} {size} {blocks:?}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn experts_that_are_none_are_found_in_parts_too() -> Result<()> {
    for (device, blocks) in
        [(Device::cpu(), None), (hopper(), Some(ExpertBlocks::One)), (hopper(), Some(ExpertBlocks::Sorted))]
    {
        let layout = ExpertLayout::new(ExpertFormat::F32, D, HIDDEN, O, false)?;
        let table = part_of(&device, layout, &[1, 3], 5)?;
        let x = Tensor::from_slice(&device, &[1.0f32; 2 * D], [2, D])?;
        let routing = Routing {
            ids: Tensor::from_slice(&device, &[0u32, 5, 1, 2], [2, 1, 2])?,
            gates: Tensor::from_slice(&device, &[1.0f32; 4], [2, 1, 2])?,
        };
        let found = ops::expert_mlp(&x, &routing, &table).blocks(blocks).run();
        if blocks.is_none() {
            let error = found.expect_err("the CPU looks").to_string();
            assert!(error.contains('5'), "{error}");
            continue;
        }
        let found = found?.to_vec()?;
        assert!(found[..O].iter().all(|number| number.is_nan()), "{found:?}");
        assert!(found[O..].iter().all(|number| number.is_finite()), "{found:?}");
    }
    Ok(())
}

#[test]
fn parts_that_do_not_fit_are_refused() -> Result<()> {
    let device = Device::cpu();
    let layout = ExpertLayout::new(ExpertFormat::F32, D, HIDDEN, O, false)?;
    let zeros = ExpertTable::zeros(&device, layout, 2)?;
    let part = ExpertTable::part(&zeros, &[0, 1, 1])?;
    assert_eq!(part.count(), 3);
    let [u, w, v] = vectors(&[1, 2], true, false);
    let mut bytes = vec![0; 2 * layout.row_bytes()];
    layout.pack_rows(ExpertVectors { u: &u, w: &w, v: &v }, &mut bytes)?;
    let mut full = ExpertTable::zeros(&device, layout, 2)?;
    full.write_rows(0, &bytes)?;
    let none = ExpertTable::zeros(&device, layout, 0)?;
    for (rows, slots, words) in [
        (&zeros, &[0u32, 2][..], "numbers below 2"),
        (&full, &[0], "zeros as the last row"),
        (&part, &[0], "all on the device"),
        (&none, &[], "at least 1"),
    ] {
        let error = ExpertTable::part(rows, slots).expect_err("it does not fit").to_string();
        assert!(error.contains(words), "{error} lacks {words}");
    }
    assert!(part.read_rows(0..1).is_err());
    Ok(())
}
