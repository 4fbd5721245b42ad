//! A load on devices that do work at once: what it runs, what it notices, and what it refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use half::f16;
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::ops::peer::{ExpertBlocks, ExpertFormat};
use warpsmith::tensor::{DType, Tensor};

use super::{Options, Output, Phase, Prepared, Report, Work, run};
use crate::cases::PeerSizes;
use crate::cases::{
    AttentionCase, Data, ExpertCase, LinearCase, MatmulCase, Placement, RoutingCase, ScaledCase, Terms,
    TopkCase, UpdateCase,
};

fn options(threads: usize, rounds: usize, phases: &[Phase]) -> Options {
    Options { threads, rounds, together: 4, seed: 3, phases: phases.to_vec() }
}

/// A work of every operation; an output with everything beside it among them.
fn works() -> Vec<Work> {
    let terms = Terms { beta: 0.5, in_place: true, mask: true, preactivation: true, ..Terms::default() };
    let linear = LinearCase { terms, seed: 4, ..LinearCase::new(DType::Bf16, 33, 200, 40) };
    let update = |case: UpdateCase| [case.clone(), case.alone(true)].map(Work::generated_update);
    let experts = ExpertCase::new(DType::F32, ExpertFormat::F16, 5, 40, [2, 3]);
    let sizes = PeerSizes {
        tokens: 6,
        input: 24,
        output: 16,
        heads: 2,
        top_k: 3,
        query: 8,
        sub_keys: 6,
        dtype: DType::F16,
        format: ExpertFormat::F16,
    };
    let mut works = vec![
        Work::linear(linear.clone()),
        Work::linear(LinearCase { seed: 3, ..linear }),
        Work::matmul(MatmulCase { batch: [2, 1], ..MatmulCase::new(LinearCase::new(DType::F16, 9, 40, 24)) }),
        Work::linear_scaled(ScaledCase::new(17, 48, 32)),
        Work::topk(TopkCase { dtype: DType::F16, rows: 3, columns: 100, k: 5, data: Data::Uniform, seed: 1 }),
        Work::product_key_topk(RoutingCase::new(DType::F32, [3, 16], [9, 8], 4)),
        Work::product_key_gradients(RoutingCase {
            affine: true,
            bias: true,
            ..RoutingCase::new(DType::Bf16, [3, 16], [9, 8], 4)
        }),
        Work::experts(experts.clone()),
        Work::experts(ExpertCase { blocks: Some(ExpertBlocks::Sorted), ..experts.clone() }),
        Work::expert_gradients(ExpertCase { gated: true, ..experts }),
        Work::repack(DType::F16, [9, 21], Placement::default(), true),
        Work::repack(DType::U8, [9, 21], Placement { before: 1, after: 2 }, false),
        Work::peer(sizes, false, 1),
        Work::peer(sizes, true, 1),
    ];
    works.extend(update(UpdateCase { mask: true, ..UpdateCase::new(DType::Bf16, 33, 40, 24, 4) }));
    works
}

fn assert_passed(report: &Report) {
    for work in &report.works {
        assert!(work.passed() && !work.implementation.is_empty(), "{work:?}");
    }
    assert!(report.passed(), "{report:?}");
}

/// Each work runs in each phase as often as was asked for, and three times alone.
#[test]
fn every_operation_gives_the_same_bits_in_every_phase() -> Result<()> {
    for device in [Device::cpu(), Device::emulator()] {
        let mut works = works();
        works.push(Work::attention(AttentionCase::new(DType::F16, [2, 5, 7], [1, 2], 8)));
        works.push(Work::attention_backward(AttentionCase::new(DType::F16, [2, 5, 7], [1, 2], 8)));
        let report = run(&device, &works, &options(2, 2, &Phase::ALL), &|_| ())?;
        assert_passed(&report);
        assert_eq!(report.phases.len(), 1 + Phase::ALL.len());
        assert!(report.phases.iter().all(|phase| phase.runs > 0), "{:?}", report.phases);
        assert_eq!(report.phases[0].runs, 3 * works.len() as u64);
        assert_eq!(report.phases[1].runs, 2 * works.len() as u64);
        assert_eq!(report.phases.iter().map(|phase| phase.runs).sum::<u64>(), report.runs());
    }
    Ok(())
}

/// A work that writes `[3, 100]` numbers, the same on each run but one, that with the number `wrong` of all threads' together.
fn wrong_once(wrong: u64) -> Work {
    let runs = Arc::new(AtomicU64::new(0));
    Work::new("wrong once", move |device, slots| {
        let results = (0..slots).map(|_| Tensor::<f16>::zeros(device, [3, 100]));
        let mut results = results.collect::<Result<Vec<_>>>()?;
        let outputs = results.iter().map(|y| Ok(vec![Output::new("y", y)?])).collect::<Result<_>>()?;
        let runs = runs.clone();
        Ok(Prepared::new("a closure", outputs, move |slot| {
            let mut numbers = vec![f16::ONE; 300];
            if runs.fetch_add(1, Ordering::Relaxed) + 1 == wrong {
                (numbers[207], numbers[250]) = (f16::from_f32(-2.5), f16::NAN);
            }
            results[slot].write_slice(&numbers)
        }))
    })
}

#[test]
fn a_run_with_other_bits_is_found_and_its_element_told() -> Result<()> {
    for device in [Device::cpu(), Device::emulator()] {
        // Three runs alone are before it.
        let works = [wrong_once(7), wrong_once(u64::MAX)];
        let report = run(&device, &works, &options(1, 10, &[Phase::Queue, Phase::Streams]), &|_| ())?;
        assert!(!report.passed() && report.works[1].passed());
        let work = &report.works[0];
        assert_eq!((work.runs, work.differing, report.differing()), (23, 1, 1), "{work:?}");
        let first = work.first.as_ref().expect("there is a difference");
        assert_eq!((first.phase, first.thread, first.round), (Phase::Queue, 0, 4));
        assert_eq!((first.output, first.different, first.elements), ("y", 2, 300));
        assert_eq!(first.index, [2, 7]);
        assert_eq!((first.got.as_str(), first.expected.as_str()), ("-2.5 (0xc100)", "1 (0x3c00)"));
        assert_eq!((report.phases[1].differing, report.phases[2].differing), (1, 0));
    }
    Ok(())
}

/// A launch of a graph that goes wrong is told from those before and after it.
#[test]
fn a_launch_of_a_graph_with_other_bits_is_found() -> Result<()> {
    for device in [Device::cpu(), Device::emulator()] {
        let report = run(&device, &[wrong_once(10)], &options(1, 150, &[Phase::Graphs]), &|_| ())?;
        let work = &report.works[0];
        // Two runs when it is captured, and two for each of 75 launches.
        assert_eq!((work.runs, work.differing), (3 + 152, 1), "{work:?}");
        let first = work.first.as_ref().expect("there is a difference");
        assert_eq!((first.phase, first.round, &first.index[..]), (Phase::Graphs, 7, &[2, 7][..]));
    }
    Ok(())
}

/// Alone, too, bits have to be the same.
#[test]
fn a_run_alone_with_other_bits_is_found() -> Result<()> {
    let report = run(&Device::cpu(), &[wrong_once(3)], &options(2, 4, &[Phase::Streams]), &|_| ())?;
    let first = report.works[0].first.as_ref().expect("there is a difference");
    assert_eq!((first.phase, first.round, report.differing()), (Phase::Alone, 3, 1));
    Ok(())
}

/// What a run leaves as it was differs from what was written before.
#[test]
fn a_run_that_writes_nothing_is_found() -> Result<()> {
    let runs = Arc::new(AtomicU64::new(0));
    let work = Work::new("lazy", move |device, slots| {
        let mut results =
            (0..slots).map(|_| Tensor::<u32>::zeros(device, [5])).collect::<Result<Vec<_>>>()?;
        let outputs = results.iter().map(|y| Ok(vec![Output::new("y", y)?])).collect::<Result<_>>()?;
        let runs = runs.clone();
        Ok(Prepared::new("a closure", outputs, move |slot| match runs.fetch_add(1, Ordering::Relaxed) {
            20 => Ok(()),
            _ => results[slot].write_slice(&[7; 5]),
        }))
    });
    let report = run(&Device::emulator(), &[work], &options(1, 40, &[Phase::Queue]), &|_| ())?;
    let first = report.works[0].first.as_ref().expect("there is a difference");
    assert_eq!((first.round, first.different, report.differing()), (18, 5, 1));
    assert_eq!(first.got, "0 (0x00000000)");
    Ok(())
}

#[test]
fn a_work_that_fails_is_named_and_the_others_run_if_it_was_never_prepared() -> Result<()> {
    let refused = || Error::Emulator { operation: "the work", reason: "refused".into() };
    let unprepared = Work::new("unprepared", move |_, _| Err(refused()));
    let works = [unprepared, wrong_once(u64::MAX)];
    let report = run(&Device::cpu(), &works, &options(2, 2, &[Phase::Streams]), &|_| ())?;
    let failure = report.works[0].failure.as_ref().expect("it was refused").to_string();
    assert!(failure.starts_with("preparing") && failure.contains("refused"), "{failure}");
    assert!(report.works[1].passed() && !report.passed());

    let runs = Arc::new(AtomicU64::new(0));
    let failing = Work::new("failing", move |device, slots| {
        let results = (0..slots).map(|_| Tensor::<u32>::zeros(device, [1])).collect::<Result<Vec<_>>>()?;
        let outputs = results.iter().map(|y| Ok(vec![Output::new("y", y)?])).collect::<Result<_>>()?;
        let runs = runs.clone();
        let run = move |_| if runs.fetch_add(1, Ordering::Relaxed) < 5 { Ok(()) } else { Err(refused()) };
        Ok(Prepared::new("a closure", outputs, run))
    });
    let report = run(&Device::cpu(), &[failing], &options(1, 9, &[Phase::Queue, Phase::Graphs]), &|_| ())?;
    let failure = report.works[0].failure.as_ref().expect("it was refused");
    assert_eq!(failure.phase, Some(Phase::Queue));
    assert_eq!(report.phases[2].runs, 0, "nothing runs after an error");
    Ok(())
}

#[test]
fn options_that_make_no_load_are_refused() {
    let refused = |options: Options| match run(&Device::cpu(), &[], &options, &|_| ()) {
        Err(Error::Argument { argument, .. }) => argument,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(options(0, 1, &[])), "threads");
    assert_eq!(refused(options(1025, 1, &[])), "threads");
    assert_eq!(refused(options(1, 0, &[])), "rounds");
    assert_eq!(refused(Options { together: 0, ..Options::default() }), "together");
    // Without works nothing was shown.
    let report = run(&Device::cpu(), &[], &Options::default(), &|_| ()).expect("the options are good");
    assert!(!report.passed());
}
