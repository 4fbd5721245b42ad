//! A matrix product written by hand: `cp.async`, `ldmatrix`, `mma.sync`, two stages, barriers.

mod common;

use common::finding;
use warpsmith_emulator::{
    Completion, Config, Finding, FindingKind, LaunchConfig, LaunchError, Machine, Module, Numerics, Report,
};

const TEXT: &str = include_str!("data/gemm.ptx");

/// Runs the product of small integers; gives the result and what it should be.
fn run(
    text: &str,
    config: Config,
    [m, n, k]: [usize; 3],
) -> Result<(Report, Vec<f32>, Vec<f32>), LaunchError> {
    let module = Module::parse("gemm.ptx", text).unwrap_or_else(|error| panic!("{error}"));
    let machine = Machine::new(config);
    let a: Vec<i32> = (0..m * k).map(|i| (i * 7919 % 9) as i32 - 4).collect();
    let b: Vec<i32> = (0..n * k).map(|i| (i * 104_729 % 7) as i32 - 3).collect();
    let upload = |values: &[i32]| {
        let bytes: Vec<u8> =
            values.iter().flat_map(|&v| half::f16::from_f32(v as f32).to_le_bytes()).collect();
        let address = machine.allocate(bytes.len() as u64).unwrap();
        machine.write(address, &bytes).unwrap();
        address
    };
    let (da, db) = (upload(&a), upload(&b));
    let dc = machine.allocate((m * n * 4) as u64).unwrap();
    let grid = LaunchConfig {
        grid: [n as u32 / 64, m as u32 / 64, 1],
        block: [128, 1, 1],
        dynamic_shared: 0,
        ..LaunchConfig::default()
    };
    let arguments: [&[u8]; 5] = [
        &da.to_le_bytes(),
        &db.to_le_bytes(),
        &dc.to_le_bytes(),
        &(n as u32).to_le_bytes(),
        &(k as u32).to_le_bytes(),
    ];
    let report = machine.launch(&module, "gemm", &grid, &arguments)?;
    let mut bytes = vec![0; m * n * 4];
    machine.read(dc, &mut bytes).unwrap();
    let got = bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
    let expected =
        (0..m * n).map(|i| (0..k).map(|q| a[i / n * k + q] * b[i % n * k + q]).sum::<i32>() as f32).collect();
    Ok((report, got, expected))
}

/// The text with one piece replaced, which must be there `times` times.
fn mutant(from: &str, to: &str, times: usize) -> String {
    assert_eq!(TEXT.matches(from).count(), times, "{from}");
    TEXT.replace(from, to)
}

#[test]
fn integers_are_exact_in_every_mode() {
    for completion in [Completion::Eager, Completion::Latest, Completion::Random] {
        for numerics in [Numerics::Fast, Numerics::Exact] {
            for capability in [(8, 0), (9, 0)] {
                let config = Config {
                    completion,
                    numerics,
                    compute_capability: capability,
                    seed: 3,
                    ..Config::default()
                };
                let (_, got, expected) = run(TEXT, config, [128, 64, 96]).unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(got, expected, "{completion:?}, {numerics:?}, {capability:?}");
            }
        }
    }
}

#[test]
fn the_result_does_not_depend_on_the_number_of_threads() {
    let run = |threads| {
        let config =
            Config { threads: Some(threads), completion: Completion::Random, seed: 11, ..Config::default() };
        let (report, got, _) = run(TEXT, config, [192, 128, 64]).unwrap_or_else(|e| panic!("{e}"));
        (report, got)
    };
    let one = run(1);
    assert_eq!(one, run(2));
    assert_eq!(one, run(5));
}

/// One warp copies to a stage while another reads it: which of the two comes second depends on who ran first.
fn assert_stage_conflict(found: &Finding) {
    assert!(matches!(found.kind, FindingKind::SharedRace | FindingKind::AsynchronousCopy), "{found}");
    let places = [&found.text, &found.related[0].text];
    assert!(places.iter().any(|text| text.contains("ldmatrix")), "{found}");
    assert!(places.iter().any(|text| text.contains("cp.async")), "{found}");
}

#[test]
fn a_missing_barrier_is_a_race() {
    let barrier = "\t// Nobody may fill this stage again before all have read it.\n\tbar.sync \t0;\n";
    let text = mutant(barrier, "", 1);
    for completion in [Completion::Eager, Completion::Latest, Completion::Random] {
        let config = Config { completion, ..Config::default() };
        let found = finding(run(&text, config, [64, 64, 128]).map(|(report, ..)| report));
        assert_stage_conflict(&found);
    }
}

#[test]
fn a_missing_barrier_after_the_wait_is_a_race() {
    let text = mutant("\tcp.async.wait_group \t1;\n\tbar.sync \t0;\n", "\tcp.async.wait_group \t1;\n", 1);
    let found = finding(run(&text, Config::default(), [64, 64, 64]).map(|(report, ..)| report));
    assert_stage_conflict(&found);
}

#[test]
fn a_wait_for_too_few_groups_is_found_whenever_the_copies_land() {
    let text = mutant("cp.async.wait_group \t1;", "cp.async.wait_group \t2;", 1);
    for completion in [Completion::Eager, Completion::Latest, Completion::Random] {
        let config = Config { completion, ..Config::default() };
        let found = finding(run(&text, config, [64, 64, 64]).map(|(report, ..)| report));
        assert_eq!(found.kind, FindingKind::AsynchronousCopy, "{found}");
    }
}

#[test]
fn a_wrong_swizzle_gives_wrong_numbers() {
    // The copies and ldmatrix no longer agree on where a chunk stands.
    let text = TEXT.replacen("bfe.u32 \t%t0, %row, 1, 2;", "bfe.u32 \t%t0, %row, 2, 2;", 1);
    assert_ne!(text, TEXT);
    let (_, got, expected) = run(&text, Config::default(), [64, 64, 64]).unwrap_or_else(|e| panic!("{e}"));
    assert_ne!(got, expected);
}

#[test]
fn a_copy_beyond_the_matrix_is_out_of_bounds() {
    // One more tile than there is.
    let text = mutant("shr.u32 \t%left, %k, 5;", "shr.u32 \t%left, %k, 5;\n\tadd.u32 \t%left, %left, 1;", 1);
    let found = finding(run(&text, Config::default(), [64, 64, 64]).map(|(report, ..)| report));
    assert_eq!(found.kind, FindingKind::OutOfBounds, "{found}");
    assert!(found.message.contains("past the end of argument 1, `a`"), "{found}");
}
