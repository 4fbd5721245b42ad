//! Experts evaluated where their rows are: against their f64 reference, exact where they have to be, bit by bit the same wherever
//! rows are, and what is refused.

use half::bf16;
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use warpsmith::ops::peer::{ExpertBlocks, ExpertFormat, ExpertLayout, ExpertTable, ExpertVectors, Routing};
use warpsmith::ops::{self, Activation};
use warpsmith::{DType, Device, DeviceKind, Error, Tensor, Weights};
use warpsmith_lab::cases::{Data, ExpertCase, Residence, RoutingKind};
use warpsmith_lab::validate;

use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    experts_drawn_stay_within_their_bound,
    experts_before_quantisation_stay_within_its_bound,
    integer_experts_drawn_are_exact,
    sizes_beyond_a_block_are_cut_into_parts,
    results_are_the_same_bits_wherever_rows_are,
    sorted_experts_do_not_depend_on_the_tokens_beside,
    tables_are_the_same_from_tensors_weights_and_rows,
    ids_of_no_expert_are_not_read,
    no_experts_give_zeros,
    captured_experts_read_a_part_of_their_routing_each_time,
    experts_that_do_not_fit_are_refused,
];

const TYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

/// Blocks that the device has for the format.
fn blocks_of(device: &Device, case: &ExpertCase) -> Option<ExpertBlocks> {
    case.blocks.filter(|blocks| match blocks {
        ExpertBlocks::Cluster(_) => device.properties().compute_capability >= (9, 0),
        ExpertBlocks::Sorted => !case.format.is_scaled(),
        _ => true,
    })
}

/// Whether the result was exact.
fn check(device: &Device, case: &ExpertCase) -> Result<bool, TestCaseError> {
    let case = &ExpertCase { blocks: blocks_of(device, case), ..case.clone() };
    let what = format!("{} x {} {}: {}", case.format, case.dtype, case.shape(), case.options());
    let outcome = drawn::passed(validate::experts(device, case), &what, case.tokens * case.o)?;
    Ok(outcome.exact)
}

fn side(most: usize) -> impl Strategy<Value = usize> {
    drawn::side(most, &[8, 16, 32, 64, 128, 256], &[37, 61, 97, 136, 257])
}

pub(crate) fn runner(device: &Device) -> Result<TestRunner, Failed> {
    drawn::runner(device, [96, 300])
}

pub(crate) fn expert_case(data: Data) -> impl Strategy<Value = ExpertCase> {
    let sizes = (0usize..6, side(257), side(257), 1usize..80, 0usize..5, 0usize..9, 1usize..4);
    let kinds = (
        prop::sample::select(TYPES.to_vec()),
        prop::sample::select(ExpertFormat::ALL.to_vec()),
        prop::sample::select(Activation::ALL.to_vec()),
        prop::sample::select(RoutingKind::ALL.to_vec()),
        prop::sample::select(Residence::ALL.to_vec()),
        prop_oneof![
            2 => Just(None),
            1 => Just(Some(ExpertBlocks::One)),
            2 => (1u32..=8).prop_map(|blocks| Some(ExpertBlocks::Cluster(blocks))),
            2 => Just(Some(ExpertBlocks::Sorted)),
        ],
    );
    (sizes, kinds, drawn::placement(8), drawn::placement(8), any::<bool>(), any::<u64>()).prop_map(
        move |(sizes, kinds, x, y, gated, seed)| {
            let (tokens, d, o, experts, heads, k, hidden) = sizes;
            let (dtype, format, activation, routing, residence, blocks) = kinds;
            ExpertCase {
                o,
                experts,
                hidden,
                gated,
                activation,
                routing,
                residence,
                blocks,
                x,
                y,
                data,
                seed,
                ..ExpertCase::new(dtype, format, tokens, d, [heads, k])
            }
        },
    )
}

fn experts_drawn_stay_within_their_bound(device: &Device) -> Result<(), Failed> {
    Ok(runner(device)?.run(&expert_case(Data::Uniform), |case| check(device, &case).map(|_| ()))?)
}

fn experts_before_quantisation_stay_within_its_bound(device: &Device) -> Result<(), Failed> {
    let cases = expert_case(Data::Uniform).prop_map(|case| ExpertCase { before_rounding: true, ..case });
    Ok(runner(device)?.run(&cases, |case| check(device, &case).map(|_| ()))?)
}

/// Few hidden units of a token, so that no sum outgrows the integers that f32 holds.
fn integer_experts_drawn_are_exact(device: &Device) -> Result<(), Failed> {
    let exact = expert_case(Data::Integers).prop_map(|case| ExpertCase {
        activation: if case.gated { Activation::Relu } else { Activation::None },
        hidden: 1,
        heads: case.heads.min(3),
        k: case.k.min(4),
        gated: case.gated && case.format != ExpertFormat::Int8,
        ..case
    });
    Ok(runner(device)?.run(&exact, |case| {
        prop_assert!(check(device, &case)?, "not exact");
        Ok(())
    })?)
}

/// More numbers of x than shared memory holds, more hidden units than a block holds at a time, more columns than it has threads for: each alone
/// and together, for every format.
fn sizes_beyond_a_block_are_cut_into_parts(device: &Device) -> Result<(), Failed> {
    for format in ExpertFormat::ALL {
        let case = |d, o, heads, k, hidden| ExpertCase {
            o,
            hidden,
            experts: 40,
            residence: Residence::Mixed,
            ..ExpertCase::new(DType::Bf16, format, 2, d, [heads, k])
        };
        for case in [
            case(2048, 64, 1, 3, 1),
            case(4100, 40, 2, 2, 1),
            case(24, 33, 9, 58, 1),
            case(16, 4500, 1, 2, 1),
            ExpertCase { gated: true, ..case(40, 4500, 8, 13, 5) },
            ExpertCase { tokens: 1, gated: true, ..case(2100, 1100, 8, 64, 2) },
        ] {
            check(device, &case)?;
        }
    }
    Ok(())
}

fn results_are_the_same_bits_wherever_rows_are(device: &Device) -> Result<(), Failed> {
    let cases = expert_case(Data::Uniform);
    Ok(runner(device)?.run(&cases, |case| {
        let bits = |residence| {
            let blocks = blocks_of(device, &case);
            validate::expert_bits(device, &ExpertCase { residence, blocks, ..case.clone() })
                .map_err(|error| TestCaseError::fail(error.to_string()))
        };
        let resident = bits(Residence::Resident)?;
        prop_assert_eq!(&resident, &bits(Residence::Slots)?);
        prop_assert_eq!(&resident, &bits(Residence::Mixed)?);
        Ok(())
    })?)
}

/// Tokens of which each is a group of its own, and a few of those of many that share groups.
fn sorted_experts_do_not_depend_on_the_tokens_beside(device: &Device) -> Result<(), Failed> {
    match device.kind() {
        DeviceKind::Cpu => return Ok(()),
        // So few warps that all tokens take several passes.
        DeviceKind::Emulator => sorted_in_parts(&"emulator:7.5".parse()?, 1300)?,
        _ => {}
    }
    // More than a warp each for all multiprocessors.
    sorted_in_parts(device, device.properties().multiprocessors as usize * 48 + 5)
}

/// Several parts of the table, and v of which some numbers are infinite.
fn sorted_in_parts(device: &Device, tokens: usize) -> Result<(), Failed> {
    let (heads, k, count) = (2, 8, 253);
    let u = Tensor::from_slice(device, &numbers(count * 40, 5), [count, 40])?;
    let mut v = numbers(count * 24, 6);
    v.iter_mut().step_by(97).for_each(|v| *v = f32::INFINITY);
    let v = Tensor::from_slice(device, &v, [count, 24])?;
    let table = ExpertTable::from_tensors(ExpertFormat::F32, &u, None, &v)?;
    let x = Tensor::from_slice(device, &numbers(tokens * 40, 8), [tokens, 40])?;
    let ids: Vec<u32> = (0..tokens * heads * k).map(|i| ((i * i + i / 7) % count) as u32).collect();
    let routing = routing(device, &ids, &[tokens, heads, k])?;
    let run = |range: std::ops::Range<usize>| -> warpsmith::Result<Vec<f32>> {
        let part = Routing {
            ids: routing.ids.slice(0, range.clone())?,
            gates: routing.gates.slice(0, range.clone())?,
        };
        let x = x.slice(0, range)?;
        ops::expert_mlp(&x, &part, &table).blocks(ExpertBlocks::Sorted).run()?.to_vec()
    };
    let all = run(0..tokens)?;
    assert!(all.iter().any(|y| y.is_infinite()));
    for range in [0..1, 1..8, tokens - 3..tokens, 100..200] {
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&run(range.clone())?), bits(&all[range.start * 24..range.end * 24]), "{range:?}");
    }
    Ok(())
}

pub(crate) fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + seed * 11) % 29) as f32 / 8.0 - 1.5).collect()
}

fn tables_are_the_same_from_tensors_weights_and_rows(device: &Device) -> Result<(), Failed> {
    let (count, hidden, d, o) = (7, 2, 19, 24);
    let (u, w, v) =
        (numbers(count * hidden * d, 1), numbers(count * hidden * d, 2), numbers(count * hidden * o, 3));
    let bytes = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let data = [bytes(&u), bytes(&w), bytes(&v)];
    let view = |index: usize, last| TensorView::new(Dtype::F32, vec![count, hidden, last], &data[index]);
    let tensors = [("u", view(0, d)?), ("w", view(1, d)?), ("v", view(2, o)?)];
    let weights = Weights::from_bytes(safetensors::serialize(tensors, None)?)?;
    let tensor = |values: &[f32], last| Tensor::from_slice(device, values, [count, hidden, last]);
    let (u_tensor, w_tensor, v_tensor) = (tensor(&u, d)?, tensor(&w, d)?, tensor(&v, o)?);
    for format in ExpertFormat::ALL {
        for gated in [false, true] {
            let layout = ExpertLayout::new(format, d, hidden, o, gated)?;
            let mut rows = vec![0; count * layout.row_bytes()];
            layout.pack_rows(ExpertVectors { u: &u, w: if gated { &w } else { &[] }, v: &v }, &mut rows)?;
            let from_tensors =
                ExpertTable::from_tensors(format, &u_tensor, gated.then_some(&w_tensor), &v_tensor)?;
            let loaded = ExpertTable::load(&weights, ["u", "v"], gated.then_some("w"), format, device)?;
            let mut written = ExpertTable::zeros(device, layout, count)?;
            let (first, rest) = rows.split_at(2 * layout.row_bytes());
            written.write_rows(2, rest)?;
            written.write_rows(0, first)?;
            for table in [from_tensors, loaded, written] {
                assert_eq!((table.count(), *table.layout()), (count, layout));
                assert!(table.read_rows(0..count)? == rows, "{format}");
            }
        }
    }
    assert!(matches!(
        ExpertTable::load(&weights, ["u", "none"], None, ExpertFormat::Int8, device),
        Err(Error::Weights { .. })
    ));
    Ok(())
}

pub(crate) fn table(device: &Device, count: usize, d: usize, o: usize) -> warpsmith::Result<ExpertTable> {
    let u = Tensor::from_slice(device, &numbers(count * d, 4), [count, d])?;
    let v = Tensor::from_slice(device, &numbers(count * o, 5), [count, o])?;
    ExpertTable::from_tensors(ExpertFormat::Bf16, &u, None, &v)
}

pub(crate) fn routing(device: &Device, ids: &[u32], shape: &[usize]) -> warpsmith::Result<Routing> {
    let gates = vec![1.0; ids.len()];
    Ok(Routing {
        ids: Tensor::from_slice(device, ids, shape)?,
        gates: Tensor::from_slice(device, &gates, shape)?,
    })
}

/// Only the token that names such an expert has no result.
fn ids_of_no_expert_are_not_read(device: &Device) -> Result<(), Failed> {
    let table = table(device, 5, 16, 8)?;
    let x = Tensor::from_slice(device, &numbers(48, 6), [3, 16])?;
    for bad in [5, 6, u32::MAX] {
        let routing = routing(device, &[0, 1, 4, bad, 2, 3], &[3, 1, 2])?;
        let result = ops::expert_mlp(&x, &routing, &table).run().and_then(|y| y.to_vec());
        if device.kind() == DeviceKind::Cpu {
            assert!(matches!(result, Err(Error::Argument { argument: "an id", .. })));
            continue;
        }
        let y = result?;
        assert!(y[..8].iter().chain(&y[16..]).all(|y| y.is_finite()));
        assert!(y[8..16].iter().all(|y| y.is_nan()));
    }
    Ok(())
}

fn no_experts_give_zeros(device: &Device) -> Result<(), Failed> {
    let x = Tensor::from_slice(device, &numbers(32, 6), [2, 16])?;
    for count in [0, 3] {
        let table = table(device, count, 16, 8)?;
        let y = ops::expert_mlp(&x, &routing(device, &[], &[2, 4, 0])?, &table).run()?;
        assert_eq!(y.to_vec()?, [0.0; 16]);
    }
    let none = Tensor::<f32>::zeros(device, [0, 16])?;
    let y = ops::expert_mlp(&none, &routing(device, &[], &[0, 1, 2])?, &table(device, 3, 16, 8)?).run()?;
    assert_eq!(y.shape(), [0, 8]);
    Ok(())
}

/// Ids and gates with gaps are copied in the order of the operation's stream: in a graph with every launch of it.
fn captured_experts_read_a_part_of_their_routing_each_time(device: &Device) -> Result<(), Failed> {
    let table = table(device, 5, 16, 8)?;
    let x = Tensor::from_slice(device, &numbers(48, 6), [3, 16])?;
    let mut whole = routing(device, &[0; 12], &[3, 1, 4])?;
    let part = Routing { ids: whole.ids.slice(2, 1..3)?, gates: whole.gates.slice(2, 1..3)? };
    let y = Tensor::<f32>::zeros(device, [3, 8])?;
    let (stream, mut written) = (device.new_stream()?, y.clone());
    let work = || ops::expert_mlp(&x, &part, &table).on(&stream).run_into(&mut written);
    // SAFETY: the work borrows the tensors that it uses; what it makes it drops.
    let mut graph = unsafe { stream.capture(work)? };
    for first in 0..3u32 {
        whole.ids.write_slice(&(first..first + 12).map(|id| id % 5).collect::<Vec<_>>())?;
        let expected = ops::expert_mlp(&x, &part, &table).run()?.to_vec()?;
        graph.launch()?;
        assert_eq!(y.to_vec()?, expected, "ids from {first} on");
    }
    Ok(())
}

fn experts_that_do_not_fit_are_refused(device: &Device) -> Result<(), Failed> {
    let experts = table(device, 5, 16, 8)?;
    let x = Tensor::from_slice(device, &numbers(32, 6), [2, 16])?;
    let good = routing(device, &[0, 1], &[2, 1, 1])?;
    ops::expert_mlp(&x, &good, &experts).run()?;
    let narrow = x.slice(1, 0..15)?;
    let refused = ops::expert_mlp(&narrow, &good, &experts).run();
    assert!(matches!(refused, Err(Error::Shape { operand: "x", .. })));
    let refused = ops::expert_mlp(&x, &routing(device, &[0], &[1, 1, 1])?, &experts).run();
    assert!(matches!(refused, Err(Error::Shape { operand: "ids", .. })));
    let across = Tensor::<f32>::zeros(device, [16, 2])?.swap_axes(0, 1)?;
    let refused = ops::expert_mlp(&across, &good, &experts).run();
    assert!(matches!(refused, Err(Error::Stride { operand: "x", .. })));
    let refused = ops::expert_mlp(&x, &good, &table(device, 0, 16, 8)?).run();
    assert!(matches!(refused, Err(Error::SizeLimit { operand: "experts", .. })));
    let both = Tensor::<f32>::zeros(device, [2, 24])?;
    let (own, mut beside) = (both.slice(1, 0..16)?, both.slice(1, 10..18)?);
    let refused = ops::expert_mlp(&own, &good, &experts).run_into(&mut beside);
    assert!(matches!(refused, Err(Error::Overlap { operand: "y", other: "x", .. })));
    if device.kind() != DeviceKind::Cpu {
        let has_clusters = device.properties().compute_capability >= (9, 0);
        for blocks in [0, 1, 8, 9] {
            let refused = ops::expert_mlp(&x, &good, &experts).blocks(ExpertBlocks::Cluster(blocks)).run();
            match (has_clusters, blocks) {
                (false, _) => assert!(matches!(refused, Err(Error::UnsupportedDevice { .. }))),
                (true, 1 | 8) => assert!(refused.is_ok()),
                (true, _) => assert!(matches!(refused, Err(Error::SizeLimit { operand: "blocks", .. }))),
            }
        }
    }
    if device.kind() != DeviceKind::Cpu {
        let sorted = |routing: &Routing, table: &ExpertTable| {
            ops::expert_mlp(&x, routing, table).blocks(ExpertBlocks::Sorted).run()
        };
        sorted(&good, &experts)?;
        let none = ExpertTable::zeros(device, ExpertLayout::new(ExpertFormat::Int8, 16, 1, 8, false)?, 5)?;
        assert!(matches!(sorted(&good, &none), Err(Error::Argument { argument: "blocks", .. })));
        let many = routing(device, &[0; 2 * 2049], &[2, 1, 2049])?;
        assert!(matches!(sorted(&many, &experts), Err(Error::SizeLimit { operand: "blocks", .. })));
    }
    let mut other = Tensor::<f32>::zeros(device, [2, 9])?;
    let refused = ops::expert_mlp(&x, &good, &experts).run_into(&mut other);
    assert!(matches!(refused, Err(Error::Shape { operand: "y", .. })));

    let layout = *experts.layout();
    let rows = Tensor::<u8>::zeros(device, [5, layout.row_bytes()])?;
    let slot_of = Tensor::<u32>::zeros(device, [5])?;
    ExpertTable::cached(layout, &rows, &slot_of, &rows)?;
    let few = Tensor::<u32>::zeros(device, [4])?;
    assert!(ExpertTable::cached(layout, &rows, &few, &rows).is_err());
    assert!(ExpertTable::cached(layout, &rows.slice(0, 0..0)?, &slot_of, &rows).is_err());
    assert!(ExpertTable::from_rows(layout, &rows.slice(1, 0..16)?).is_err());
    let nan = Tensor::from_slice(device, &[bf16::NAN; 4], [2, 2])?;
    assert!(ExpertTable::from_tensors(ExpertFormat::Int4, &nan, None, &nan).is_err());
    Ok(())
}
