//! What was measured is what operations look up, and only that.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use float8::F8E4M3;
use half::bf16;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use warpsmith::layers::Linear;
use warpsmith::ops::gemm::{Access, Fused, Tile};
use warpsmith::ops::{self, Activation, Implementation, Precision};
use warpsmith::tensor::Tensor;
use warpsmith::tune::{Origin, Store, Tuning};
use warpsmith::{DType, EmulatorOptions, Error};

use super::*;
use crate::benchmark::{self, Options};
use crate::cases::{LinearCase, MatmulCase, ScaledCase, Scales, Terms};

/// Options that measure as little as possible.
fn shortly() -> Options {
    let mut options = Options::default();
    (options.samples, options.warm_up, options.batch) = (1, Duration::ZERO, Duration::ZERO);
    options
}

/// What a tile took, if anyone asks.
const TIME: Duration = Duration::from_micros(1);

fn hopper() -> Device {
    Device::emulator_with(EmulatorOptions { compute_capability: (9, 0), ..EmulatorOptions::default() })
}

fn of_linear(device: &Device, case: &LinearCase) -> Candidates {
    let stream = device.default_stream();
    let subject = benchmark::linear_subject(&stream, case).expect("memory");
    Candidates::of_product(&stream, &*subject).expect("nothing fails").expect("a choice")
}

fn of_matmul(device: &Device, case: &MatmulCase) -> Candidates {
    let stream = device.default_stream();
    let subject = benchmark::matmul_subject(&stream, case).expect("memory");
    Candidates::of_product(&stream, &*subject).expect("nothing fails").expect("a choice")
}

/// Checks that operations follow a result for these candidates where, and only where, it counts. `run` says what such an operation is
/// run by, alone or with a tile of its own choice.
fn is_followed(
    device: &Device,
    candidates: &Candidates,
    run: impl Fn(Option<Tile>) -> Result<Implementation>,
) {
    let run = |tile| run(tile).expect("a kernel");
    let (choice, by_itself) = (&candidates.choice, run(None));
    let key = choice.key();
    assert_eq!(candidates.tiles, choice.candidates(), "{key}: all run");
    assert_eq!(run(choice.model()), by_itself, "{key}");
    let other = candidates.tiles.iter().copied().find(|&tile| run(Some(tile)) != by_itself);
    let other = other.expect("a choice");

    let folder = tempfile::tempdir().expect("a folder");
    let reopened = |origin: Origin| Store::open_in(folder.path(), origin);
    let mut store = reopened(Origin::of(device));
    store.keep(&key, other, TIME);
    store.save().expect("written");
    device.set_tuned(&reopened(Origin::of(device)));
    assert_eq!(run(None), run(Some(other)), "{key}");
    device.set_tuning(Tuning::Off);
    assert_eq!(run(None), by_itself, "{key}");

    // Of another GPU, another build, or nothing that anyone wrote.
    let origin = Origin::of(device);
    let changes: [fn(&mut Origin); 4] = [
        |origin| origin.gpu = "another".into(),
        |origin| origin.multiprocessors = 7,
        |origin| origin.version = "0.0.0".into(),
        |origin| origin.kernels = "0".into(),
    ];
    for change in changes {
        let mut other = origin.clone();
        change(&mut other);
        device.set_tuned(&reopened(other));
        assert_eq!(run(None), by_itself, "{key}");
    }
    let whole = std::fs::read(store.path()).expect("the file");
    std::fs::write(store.path(), &whole[..whole.len() - 3]).expect("written");
    device.set_tuned(&reopened(origin));
    assert_eq!(run(None), by_itself, "{key}");
    device.set_tuning(Tuning::Off);
}

const M: usize = 24;
const K: usize = 32;
const N: usize = 16;

fn bf16_tensor(device: &Device, shape: &[usize]) -> Tensor<bf16> {
    Tensor::zeros(device, shape).expect("memory")
}

#[test]
fn linear_layers_follow_what_was_kept_for_their_epilogue_types_and_precision() {
    let device = hopper();
    let (x, w) = (bf16_tensor(&device, &[M, K]), bf16_tensor(&device, &[N, K]));
    let case = LinearCase::new(DType::Bf16, M, K, N);
    let plain = of_linear(&device, &case);
    assert_eq!(plain.choice.problem.fused, Fused::Floor);
    is_followed(&device, &plain, |tile| ops::linear(&x, &w).tile(tile).implementation());

    // A layer is the same operation.
    let layer = Linear::new(w.clone(), None, Activation::Relu).expect("it fits");
    is_followed(&device, &plain, |tile| match tile {
        None => layer.implementation(&x),
        Some(_) => ops::linear(&x, &w).activation(Activation::Relu).tile(tile).implementation(),
    });

    let gelu = of_linear(&device, &LinearCase { activation: Activation::GeluErf, ..case.clone() });
    assert_eq!(gelu.choice.problem.fused, Fused::Activation);
    let activation = Activation::Silu;
    is_followed(&device, &gelu, |tile| {
        ops::linear(&x, &w).activation(activation).tile(tile).implementation()
    });

    let y = bf16_tensor(&device, &[M, N]);
    let terms = [
        Terms { beta: 1.0, ..Terms::default() },
        Terms { beta: 0.5, in_place: true, mask: true, preactivation: true, ..Terms::default() },
        Terms { row_scale: Scales::Each, column_scale: Scales::One, ..Terms::default() },
    ];
    for terms in terms {
        let candidates = of_linear(&device, &LinearCase { terms, ..case.clone() });
        assert_eq!(candidates.choice.problem.fused, Fused::Terms);
        is_followed(&device, &candidates, |tile| {
            ops::linear(&x, &w).residual(&y, 1.0).tile(tile).implementation()
        });
    }

    let wide = of_linear(&device, &LinearCase { output: DType::F32, ..case });
    is_followed(&device, &wide, |tile| ops::linear(&x, &w).output::<f32>().tile(tile).implementation());

    let tensor = |shape: [usize; 2]| Tensor::<f32>::zeros(&device, shape).expect("memory");
    let (x, w) = (tensor([M, K]), tensor([N, K]));
    for precision in [Precision::Full, Precision::Tf32] {
        let case = LinearCase { precision, ..LinearCase::new(DType::F32, M, K, N) };
        let op = |tile| ops::linear(&x, &w).precision(precision).tile(tile).implementation();
        is_followed(&device, &of_linear(&device, &case), op);
    }
}

#[test]
fn matrix_products_follow_what_was_kept_for_their_layout_and_batch() {
    let device = hopper();
    let case = MatmulCase::new(LinearCase {
        bias: false,
        activation: Activation::None,
        ..LinearCase::new(DType::Bf16, M, K, N)
    });
    for batch in [[1, 1], [3, 3], [3, 1], [1, 3]] {
        for across in [[false, false], [false, true], [true, false], [true, true]] {
            // Where one operand serves all, two layouts will do.
            if batch[0] != batch[1] && across[0] != across[1] {
                continue;
            }
            let candidates = of_matmul(&device, &MatmulCase { batch, across, ..case.clone() });
            let problem = candidates.choice.problem;
            let access = match across {
                [false, false] => Access::Aligned,
                [false, true] => Access::WAcross,
                [true, _] => Access::Across,
            };
            assert_eq!(problem.access, access, "{across:?}");
            // One B for all of A's matrices, whose rows are evenly spaced, is one product of more rows.
            let is_one = batch == [1; 2] || (batch == [3, 1] && !across[0]);
            assert_eq!(problem.batch, if is_one { 1 } else { 3 }, "{batch:?} {across:?}");

            let stored = |count: usize, matrix: [usize; 2]| {
                let shape = if batch == [1; 2] { matrix.to_vec() } else { vec![count, matrix[0], matrix[1]] };
                bf16_tensor(&device, &shape)
            };
            let a = stored(batch[0], if across[0] { [K, M] } else { [M, K] });
            let b = stored(batch[1], if across[1] { [K, N] } else { [N, K] });
            is_followed(&device, &candidates, |tile| {
                let op = ops::matmul(&a, &b).tile(tile);
                let op = if across[0] { op.transpose_a() } else { op };
                if across[1] { op.implementation() } else { op.transpose_b().implementation() }
            });
        }
    }
}

/// A linear layer is the product with a transposed B.
#[test]
fn what_was_kept_for_a_product_serves_the_same_linear_layer() {
    let device = hopper();
    let case = LinearCase::new(DType::Bf16, M, K, N);
    let product = of_matmul(&device, &MatmulCase::new(case.clone()));
    assert_eq!(product.choice, of_linear(&device, &case).choice);
    // Leading axes are rows.
    let (x, w) = (bf16_tensor(&device, &[2, M / 2, K]), bf16_tensor(&device, &[N, K]));
    is_followed(&device, &product, |tile| ops::linear(&x, &w).tile(tile).implementation());
}

#[test]
fn scaled_linear_layers_follow_what_was_kept_for_their_output() {
    let device = hopper();
    let tensor = |shape: [usize; 2]| Tensor::<F8E4M3>::zeros(&device, shape).expect("memory");
    let (x, w) = (tensor([M, K]), tensor([N, K]));
    let of_case =
        |case: &ScaledCase| Candidates::of_scaled(&device, case).expect("nothing fails").expect("a choice");
    let of = |output| of_case(&ScaledCase { output, ..ScaledCase::new(M, K, N) });
    is_followed(&device, &of(DType::Bf16), |tile| ops::linear_scaled(&x, &w).tile(tile).implementation());
    is_followed(&device, &of(DType::F32), |tile| {
        ops::linear_scaled(&x, &w).output::<f32>().tile(tile).implementation()
    });
    assert_ne!(of(DType::Bf16).choice.key(), of(DType::F16).choice.key());
    let y = bf16_tensor(&device, &[M, N]);
    for terms in [
        Terms { beta: 1.0, ..Terms::default() },
        Terms { beta: 0.5, in_place: true, mask: true, preactivation: true, ..Terms::default() },
    ] {
        // Other layouts are copied into this one.
        let terms = of_case(&ScaledCase { terms, across: [true, true], ..ScaledCase::new(M, K, N) });
        let op = |tile| ops::linear_scaled(&x, &w).residual(&y, 1.0).tile(tile).implementation();
        is_followed(&device, &terms, op);
        assert_ne!(terms.choice.key(), of(DType::Bf16).choice.key());
    }
}

#[test]
fn a_kept_choice_that_does_not_compute_the_problem_or_is_unknown_is_ignored() {
    let device = Device::emulator();
    let (x, w) = (bf16_tensor(&device, &[M, K]), bf16_tensor(&device, &[N, K]));
    let candidates = of_linear(&device, &LinearCase::new(DType::Bf16, M, K, N));
    let implementation = || ops::linear(&x, &w).implementation().expect("a kernel");
    let by_itself = implementation();
    let wrong = Tile::ALL.into_iter().find(|tile| !candidates.tiles.contains(tile));
    for name in [wrong.expect("tiles of another GPU").name(), "of tomorrow", ""] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut store = Store::open_in(folder.path(), Origin::of(&device));
        store.keep(&candidates.choice.key(), name, TIME);
        device.set_tuned(&store);
        assert_eq!(implementation(), by_itself, "`{name}`");
    }
}

/// What is measured is what is kept, with aligned rows and with rows that are copied into such first.
#[test]
fn every_candidate_runs_the_problem_that_its_time_is_kept_for() {
    for (device, odd) in [(Device::emulator(), Access::Aligned), (hopper(), Access::Strided)] {
        for (m, k, n, access) in [
            (16, 32, 16, Access::Aligned),
            (16, 34, 16, Access::Words),
            (16, 33, 16, odd),
            // So long that the copies pay.
            (4, 8191, 8, Access::Aligned),
            (1, 8191, 8, Access::Aligned),
        ] {
            let own = of_linear(&device, &LinearCase::new(DType::F16, m, k, n));
            let problem = own.choice.problem;
            assert_eq!((problem.k, problem.access), (k as u32, access), "{device}");
            assert_eq!(own.tiles, own.choice.candidates(), "{device}: all of {m}x{k}x{n} run");
        }
    }
}

/// Only the operand is copied that the operation would copy: on Hopper, A that has rows of an odd length across, but not B, and of small products
/// none.
#[test]
fn candidates_for_products_read_what_the_operation_does_not_copy_where_it_lies() {
    let of = |device: &Device, k, across| {
        let product = LinearCase::new(DType::F16, M - 1, k, N);
        let own = of_matmul(device, &MatmulCase { batch: [2, 2], across, ..MatmulCase::new(product) });
        assert_eq!(own.tiles, own.choice.candidates(), "{device}: all of {across:?} run");
        own.choice.problem.access
    };
    for across in [[true, false], [false, true], [true, true]] {
        assert_eq!(of(&Device::emulator(), K, across), Access::Aligned);
        let copied = if across[1] { Access::WAcross } else { Access::Aligned };
        assert_eq!(of(&hopper(), 64 * K, across), copied);
        assert_eq!(of(&hopper(), K, across), if across[0] { Access::Strided } else { copied });
    }
}

#[test]
fn every_candidate_is_measured_and_the_models_choice_is_one() {
    fn check(tuned: Result<Option<Tuned>>) {
        let tuned = tuned.expect("nothing fails").expect("a choice");
        assert!(tuned.candidates.len() > 1);
        assert!(tuned.model_over_best().is_some_and(|ratio| ratio >= 1.0));
        assert!(tuned.candidates.iter().any(|(tile, _)| *tile == tuned.model));
    }
    let (device, options) = (Device::emulator(), shortly());
    let case = LinearCase { tile: Some(Tile::T16x64), ..LinearCase::new(DType::F32, 16, 32, 16) };
    check(linear(&device, &case, &options));
    let product = MatmulCase { batch: [2, 2], across: [true, true], ..MatmulCase::new(case.clone()) };
    check(matmul(&device, &product, &options));
    check(linear_scaled(&hopper(), &ScaledCase::new(16, 40, 16), &options));

    // The CPU has no kernels to choose from, and nothing runs for no rows.
    assert!(linear(&Device::cpu(), &case, &options).expect("nothing fails").is_none());
    assert!(matmul(&Device::cpu(), &product, &options).expect("nothing fails").is_none());
    let scaled = linear_scaled(&Device::cpu(), &ScaledCase::new(16, 40, 16), &options);
    assert!(scaled.expect("nothing fails").is_none());
    assert!(linear(&device, &LinearCase { m: 0, ..case }, &options).expect("nothing fails").is_none());
    let apart = MatmulCase { batch: [2, 3], ..product };
    assert!(matches!(matmul(&device, &apart, &options), Err(Error::Argument { argument: "batch", .. })));
}

/// Keeps what events of progress say: what is done, and how much there is.
#[derive(Clone, Default)]
struct Progress(Arc<Mutex<Vec<[Option<u64>; 2]>>>);

/// The fields of one such event.
#[derive(Default)]
struct Fields([Option<u64>; 2]);

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "done" => self.0[0] = Some(value),
            "all" => self.0[1] = Some(value),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

impl Subscriber for Progress {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "warpsmith::progress"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.0.lock().expect("no test panics while it holds the lock").push(fields.0);
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn each_candidate_that_is_loaded_is_told_as_progress() {
    let told = Progress::default();
    let case = LinearCase::new(DType::Bf16, M, K, N);
    let count = tracing::subscriber::with_default(told.clone(), || {
        of_linear(&hopper(), &case).choice.candidates().len() as u64
    });
    assert!(count > 1, "{count} candidates");
    let told = told.0.lock().expect("no test panics while it holds the lock");
    let expected: Vec<_> = (1..=count).map(|done| [Some(done), Some(count)]).collect();
    assert_eq!(*told, expected);
}
