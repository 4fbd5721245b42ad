//! Every device gives the same bits; what is skipped stays; saved state goes on with the same bits; what is refused.

mod rows;

use half::{bf16, f16};
use proptest::prelude::*;

use super::{AdamW, AdamWOptions, Group, LossScaleOptions, ParameterOptions, Rounding};
use crate::error::{Error, Result};
use crate::ops::rows::{AnyTensor, RowElement};
use crate::{DType, Device, Tensor};

/// A tensor of any type.
enum Any {
    F16(Tensor<f16>),
    Bf16(Tensor<bf16>),
    F32(Tensor<f32>),
}

impl Any {
    /// Numbers of a type, `offset` elements into memory that has others around them.
    fn new(device: &Device, dtype: DType, numbers: &[f32], offset: usize) -> Result<Self> {
        fn placed<T: RowElement>(device: &Device, numbers: &[f32], offset: usize) -> Result<Tensor<T>> {
            let all: Vec<T> = std::iter::repeat_n(7.0, offset)
                .chain(numbers.iter().copied())
                .chain([7.0; 3])
                .map(T::from_accumulator)
                .collect();
            Tensor::from_slice(device, &all, [all.len()])?.slice(0, offset..offset + numbers.len())
        }
        Ok(match dtype {
            DType::F16 => Self::F16(placed(device, numbers, offset)?),
            DType::Bf16 => Self::Bf16(placed(device, numbers, offset)?),
            _ => Self::F32(placed(device, numbers, offset)?),
        })
    }

    fn any(&self) -> AnyTensor<'_> {
        match self {
            Self::F16(tensor) => tensor.into(),
            Self::Bf16(tensor) => tensor.into(),
            Self::F32(tensor) => tensor.into(),
        }
    }

    fn bits(&self) -> Vec<u32> {
        match self {
            Self::F16(tensor) => tensor.to_vec().unwrap().iter().map(|x| x.to_bits().into()).collect(),
            Self::Bf16(tensor) => tensor.to_vec().unwrap().iter().map(|x| x.to_bits().into()).collect(),
            Self::F32(tensor) => tensor.to_vec().unwrap().iter().map(|x| x.to_bits()).collect(),
        }
    }
}

/// Numbers in [−1, 1), some of them zero, that a seed decides.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state >> 33
    };
    (0..count)
        .map(|_| match next() {
            number if number % 16 == 0 => 0.0,
            number => (number % (1 << 20)) as f32 / (1 << 19) as f32 - 1.0,
        })
        .collect()
}

/// Weights to draw.
#[derive(Clone, Debug)]
struct Drawn {
    dtype: DType,
    gradient: DType,
    length: usize,
    rounding: Rounding,
    /// Elements before the weights, and before their gradient.
    offsets: [usize; 2],
    group: usize,
    /// Whether they have a gradient in the second step.
    has_second: bool,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let dtype = || prop::sample::select(vec![DType::F16, DType::Bf16, DType::F32]);
    let lengths = prop_oneof![0usize..12, 1000usize..1100, 4090usize..4100, 8190usize..8200, Just(9000usize)];
    let rounding = prop::sample::select(vec![Rounding::Master, Rounding::Stochastic]);
    let offset = || prop::sample::select(vec![0usize, 0, 4, 8, 1, 2, 3]);
    (dtype(), dtype(), lengths, rounding, [offset(), offset()], 0usize..2, any::<bool>()).prop_map(
        |(dtype, gradient, length, rounding, offsets, group, has_second)| Drawn {
            dtype,
            gradient,
            length,
            rounding,
            offsets,
            group,
            has_second,
        },
    )
}

#[derive(Clone, Debug)]
struct Options {
    max_norm: Option<f32>,
    loss_scale: Option<LossScaleOptions>,
    seed: u64,
    correction: bool,
}

fn options() -> impl Strategy<Value = Options> {
    let max_norm = prop::sample::select(vec![None, Some(0.5), Some(1e9)]);
    let scale = LossScaleOptions { initial: 1024.0, growth_interval: 2, ..LossScaleOptions::default() };
    let loss_scale = prop::sample::select(vec![None, Some(scale)]);
    (max_norm, loss_scale, any::<u64>(), any::<bool>()).prop_map(
        |(max_norm, loss_scale, seed, correction)| Options { max_norm, loss_scale, seed, correction },
    )
}

/// An optimiser of drawn weights.
struct Run {
    device: Device,
    drawn: Vec<Drawn>,
    weights: Vec<Any>,
    optimizer: AdamW,
}

impl Run {
    fn new(device: &Device, drawn: &[Drawn], options: &Options) -> Result<Self> {
        let first = AdamWOptions { bias_correction: options.correction, ..AdamWOptions::default() };
        let mut optimizer = AdamW::new(device, first)?;
        let group = AdamWOptions {
            learning_rate: 0.1,
            betas: [0.5, 0.75],
            epsilon: 1e-3,
            weight_decay: 0.5,
            ..first
        };
        let groups = [Group::default(), optimizer.add_group(group)?];
        let mut weights = Vec::new();
        for (number, one) in drawn.iter().enumerate() {
            let values = numbers(number as u64, one.length);
            let tensor = Any::new(device, one.dtype, &values, one.offsets[0])?;
            let options = ParameterOptions {
                group: groups[one.group],
                rounding: one.rounding,
                ..ParameterOptions::default()
            };
            optimizer.add_with(format!("w{number}"), tensor.any(), options)?;
            weights.push(tensor);
        }
        optimizer.set_max_norm(options.max_norm)?;
        optimizer.set_loss_scale(options.loss_scale)?;
        optimizer.set_gradient_norm(options.seed.is_multiple_of(2));
        optimizer.set_seed(options.seed);
        Ok(Self { device: device.clone(), drawn: drawn.to_vec(), weights, optimizer })
    }

    fn gradients(&self, step: u64) -> Result<Vec<Any>> {
        let of_weights = self.drawn.iter().enumerate().map(|(number, one)| {
            let values = numbers(1000 * step + number as u64, one.length);
            Any::new(&self.device, one.gradient, &values, one.offsets[1])
        });
        of_weights.collect()
    }

    fn step(&mut self, step: u64, change: impl FnOnce(&mut Vec<Any>)) -> Result<()> {
        let mut gradients = self.gradients(step)?;
        change(&mut gradients);
        let gradients: Vec<_> = gradients
            .iter()
            .zip(&self.drawn)
            .map(|(gradient, one)| (step != 2 || one.has_second).then(|| gradient.any().into()))
            .collect();
        self.optimizer.step_on(&self.device.default_stream(), &gradients)
    }

    /// The bits of all that a step may change.
    fn bits(&self) -> Vec<Vec<u32>> {
        let mut all: Vec<_> = self.weights.iter().map(Any::bits).collect();
        let bits = |tensor: &Tensor<f32>| -> Vec<u32> {
            tensor.to_vec().unwrap().into_iter().map(f32::to_bits).collect()
        };
        for parameter in &self.optimizer.parameters {
            all.extend(parameter.moments.iter().chain(&parameter.master).map(bits));
        }
        all.push(self.optimizer.history_words().unwrap());
        all.push(bits(&self.optimizer.status)[..6].to_vec());
        all
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn the_cpu_and_the_emulator_give_the_same_bits(
        drawn in prop::collection::vec(drawn(), 1..5),
        options in options(),
    ) {
        let mut runs = [Device::cpu(), Device::emulator()]
            .map(|device| Run::new(&device, &drawn, &options).unwrap());
        for step in 1..4 {
            for run in &mut runs {
                run.step(step, |_| ()).unwrap();
                run.optimizer.set_learning_rate(0.01 / step as f64).unwrap();
            }
            let [cpu, emulator] = runs.each_ref().map(Run::bits);
            prop_assert_eq!(cpu, emulator, "step {}", step);
        }
    }
}

/// One tensor of each kind.
fn kinds() -> Vec<Drawn> {
    let mut all = Vec::new();
    for dtype in [DType::F16, DType::Bf16, DType::F32] {
        for rounding in [Rounding::Master, Rounding::Stochastic] {
            let length = 50 + all.len();
            all.push(Drawn {
                dtype,
                gradient: dtype,
                length,
                rounding,
                offsets: [0, 0],
                group: all.len() % 2,
                has_second: true,
            });
        }
    }
    all
}

fn plain() -> Options {
    Options { max_norm: None, loss_scale: None, seed: 3, correction: true }
}

#[test]
fn weights_move_as_the_definition_says() {
    for device in [Device::cpu(), Device::emulator()] {
        let start = numbers(5, 300);
        let w = Tensor::from_slice(&device, &start, [3, 100]).unwrap();
        let options = AdamWOptions { learning_rate: 0.01, weight_decay: 0.1, ..AdamWOptions::default() };
        let mut optimizer = AdamW::new(&device, options).unwrap();
        optimizer.add("w", &w).unwrap();
        let mut exact: Vec<[f64; 3]> = start.iter().map(|&w| [w.into(), 0.0, 0.0]).collect();
        for step in 1..=5 {
            let gradients = numbers(step, 300);
            optimizer.step(&[(&Tensor::from_slice(&device, &gradients, [3, 100]).unwrap()).into()]).unwrap();
            for ([w, m, v], g) in exact.iter_mut().zip(gradients.iter().map(|&g| f64::from(g))) {
                *w -= 0.01 * 0.1 * *w;
                *m = 0.9 * *m + 0.1 * g;
                *v = 0.999 * *v + 0.001 * g * g;
                let (corrected, root) =
                    (*m / (1.0 - 0.9f64.powi(step as i32)), (*v / (1.0 - 0.999f64.powi(step as i32))).sqrt());
                *w -= 0.01 * corrected / (root + 1e-8);
            }
            // A weight is rounded twice, and what it moves by, at most 0.01 · (1 + ..), has an error of a few units: 16, say, of each step.
            let bound = |w: f64| f64::from(step as u32) * (2.0 * w.abs() + 16.0 * 0.02) / f64::from(1 << 24);
            for (at, (got, [w, ..])) in w.to_vec().unwrap().into_iter().zip(&exact).enumerate() {
                let error = (f64::from(got) - w).abs();
                assert!(error <= bound(*w), "{device}, step {step}, element {at}: {got}, exactly {w}");
            }
        }
        assert_eq!(optimizer.steps().unwrap(), [5]);
    }
}

#[test]
fn a_gradient_that_is_not_finite_moves_nothing_and_halves_the_scale() {
    for device in [Device::cpu(), Device::emulator()] {
        let scale = LossScaleOptions { initial: 8.0, growth_interval: 2, ..LossScaleOptions::default() };
        let options = Options { loss_scale: Some(scale), max_norm: Some(0.1), ..plain() };
        let mut run = Run::new(&device, &kinds(), &options).unwrap();
        let scale = |run: &Run| run.optimizer.loss_scale().unwrap().to_vec().unwrap()[0];
        run.step(1, |_| ()).unwrap();
        assert_eq!((scale(&run), run.optimizer.was_skipped().unwrap()), (8.0, false));
        for (number, bad) in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN].into_iter().enumerate() {
            let before = run.bits();
            run.step(3, |gradients| {
                let of = &run_kind(number);
                let mut values = numbers(9, of.length);
                values[of.length - 1] = bad;
                gradients[number] = Any::new(&device, of.gradient, &values, 0).unwrap();
            })
            .unwrap();
            let after = run.bits();
            assert_eq!(before[..before.len() - 1], after[..after.len() - 1], "{device}, {bad}");
            assert!(run.optimizer.was_skipped().unwrap());
            assert_eq!(scale(&run), 4.0 / (1 << number) as f32);
            assert!(run.optimizer.gradient_norm().unwrap().to_vec().unwrap()[0].is_nan());
        }
        assert_eq!(run.optimizer.steps().unwrap(), [1; 6]);
        // Two good steps in a row, since the last one that was none.
        run.step(3, |_| ()).unwrap();
        assert_eq!((scale(&run), run.optimizer.was_skipped().unwrap()), (1.0, false));
        run.step(4, |_| ()).unwrap();
        assert_eq!(scale(&run), 2.0);
        assert_eq!(run.optimizer.steps().unwrap(), [3; 6]);
    }
}

fn run_kind(number: usize) -> Drawn {
    kinds()[number].clone()
}

#[test]
fn a_scale_does_not_grow_beyond_the_numbers_there_are() {
    for device in [Device::cpu(), Device::emulator()] {
        let w = Tensor::from_slice(&device, &[1.0f32], [1]).unwrap();
        let mut optimizer = AdamW::new(&device, AdamWOptions::default()).unwrap();
        optimizer.add("w", &w).unwrap();
        let half_of_2_128 = 2f32.powi(127);
        let largest =
            LossScaleOptions { initial: half_of_2_128, growth_interval: 1, ..LossScaleOptions::default() };
        optimizer.set_loss_scale(Some(largest)).unwrap();
        let gradient = Tensor::from_slice(&device, &[half_of_2_128], [1]).unwrap();
        optimizer.step(&[(&gradient).into()]).unwrap();
        assert_eq!(optimizer.loss_scale().unwrap().to_vec().unwrap(), [half_of_2_128]);
        assert_eq!(optimizer.gradient_norm().unwrap().to_vec().unwrap(), [1.0]);
    }
}

#[test]
fn gradients_above_the_norm_are_shortened_and_others_are_not() {
    for device in [Device::cpu(), Device::emulator()] {
        let moved = |max_norm: Option<f32>, gradient: [f32; 2]| {
            let w = Tensor::from_slice(&device, &[0.0f32, 0.0], [2]).unwrap();
            // The first moment after a step is half of the gradient.
            let options = AdamWOptions { betas: [0.5, 0.5], ..AdamWOptions::default() };
            let mut optimizer = AdamW::new(&device, options).unwrap();
            optimizer.add("w", &w).unwrap();
            optimizer.set_max_norm(max_norm).unwrap();
            let gradient = Tensor::from_slice(&device, &gradient, [2]).unwrap();
            optimizer.step(&[(&gradient).into()]).unwrap();
            let norm = optimizer.gradient_norm().unwrap().to_vec().unwrap()[0];
            (norm, optimizer.parameters[0].moments[0].to_vec().unwrap())
        };
        assert_eq!(moved(Some(5.1), [3.0, -4.0]), (5.0, vec![1.5, -2.0]));
        assert_eq!(moved(None, [3.0, -4.0]), (0.0, vec![1.5, -2.0]));
        let factor = 2.5f32 / (5.0 + 1e-6);
        assert_eq!(moved(Some(2.5), [3.0, -4.0]), (5.0, vec![1.5 * factor, -2.0 * factor]));
        // The sum of squares of finite gradients may be infinite: then they count as nothing.
        assert_eq!(moved(Some(1.0), [1e30, 0.0]), (f32::INFINITY, vec![0.0, 0.0]));
        let (norm, moments) = moved(Some(1.0), [f32::INFINITY, 1.0]);
        assert!(norm.is_nan() && moments.iter().all(|moment| moment.is_nan()));
    }
}

#[test]
fn a_state_that_was_saved_goes_on_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.safetensors");
    let scale = LossScaleOptions { growth_interval: 3, ..LossScaleOptions::default() };
    let options = Options { max_norm: Some(0.7), loss_scale: Some(scale), ..plain() };
    for (device, other) in [(Device::cpu(), Device::emulator()), (Device::emulator(), Device::cpu())] {
        let mut run = Run::new(&device, &kinds(), &options).unwrap();
        for step in 1..3 {
            run.step(step, |_| ()).unwrap();
        }
        run.optimizer.set_learning_rate(0.02).unwrap();
        run.optimizer.save(&path).unwrap();
        // Another seed and other options: all of it is in the file.
        let mut resumed = Run::new(&other, &kinds(), &Options { seed: 99, ..options.clone() }).unwrap();
        for (weights, (old, kind)) in resumed.weights.iter_mut().zip(run.weights.iter().zip(kinds())) {
            let values = old.any().to_f32().unwrap();
            let new = Any::new(&other, kind.dtype, &values, 0).unwrap();
            match (weights, new) {
                (Any::F16(to), Any::F16(from)) => to.write_slice(&from.to_vec().unwrap()).unwrap(),
                (Any::Bf16(to), Any::Bf16(from)) => to.write_slice(&from.to_vec().unwrap()).unwrap(),
                (Any::F32(to), Any::F32(from)) => to.write_slice(&from.to_vec().unwrap()).unwrap(),
                _ => panic!("the types are the same"),
            }
        }
        resumed.optimizer.load(&path).unwrap();
        assert_eq!(resumed.optimizer.seed(), 3);
        for step in 3..6 {
            run.step(step, |_| ()).unwrap();
            resumed.step(step, |_| ()).unwrap();
            assert_eq!(run.bits(), resumed.bits(), "{device} → {other}, step {step}");
        }
        assert_eq!(resumed.optimizer.steps().unwrap(), [5; 6]);
    }
}

#[test]
fn a_file_that_does_not_fit_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.safetensors");
    let device = Device::cpu();
    let mut run = Run::new(&device, &kinds(), &plain()).unwrap();
    run.step(1, |_| ()).unwrap();
    run.optimizer.save(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    for length in (0..bytes.len()).step_by(97) {
        let part = folder.path().join("part");
        std::fs::write(&part, &bytes[..length]).unwrap();
        assert!(matches!(run.optimizer.load(&part), Err(Error::Weights { .. })), "{length}");
    }
    // Weights in another order, of which some are rounded randomly; other shapes; another number of groups; a name that is not there.
    let mut kinds_in_reverse = kinds();
    kinds_in_reverse.swap(1, 3);
    let mut longer = kinds();
    longer[4].length += 1;
    let mut more = kinds();
    more.push(more[0].clone());
    for drawn in [kinds_in_reverse, longer, more] {
        let mut other = Run::new(&device, &drawn, &plain()).unwrap();
        let before = other.bits();
        let error = other.optimizer.load(&path).unwrap_err();
        assert!(matches!(error, Error::Weights { .. }), "{error}");
        assert_eq!(before, other.bits());
    }
    let mut other = Run::new(&device, &kinds(), &plain()).unwrap();
    other.optimizer.add_group(AdamWOptions::default()).unwrap();
    let error = other.optimizer.load(&path).unwrap_err().to_string();
    assert!(error.contains("groups") && error.contains("[3, 6]"), "{error}");
    other =
        Run::new(&device, &kinds(), &Options { loss_scale: Some(LossScaleOptions::default()), ..plain() })
            .unwrap();
    assert!(other.optimizer.load(&path).unwrap_err().to_string().contains("loss_scale"));
    assert!(matches!(other.optimizer.load(folder.path().join("none")), Err(Error::Io { .. })));
    assert!(matches!(other.optimizer.save(folder.path().join("no/folder")), Err(Error::Io { .. })));
}

#[test]
fn weights_without_elements_or_axes_or_a_gradient_are_no_trouble() {
    for device in [Device::cpu(), Device::emulator()] {
        let mut optimizer = AdamW::new(&device, AdamWOptions::default()).unwrap();
        optimizer.step(&[]).unwrap();
        let none = Tensor::<f32>::zeros(&device, [0, 3]).unwrap();
        optimizer.add("none", &none).unwrap();
        optimizer.set_max_norm(Some(1.0)).unwrap();
        optimizer.step(&[(&none).into()]).unwrap();
        let one = Tensor::from_slice(&device, &[bf16::ONE], []).unwrap();
        optimizer.add("one", &one).unwrap();
        let gradient = Tensor::from_slice(&device, &[-1.0f32], []).unwrap();
        let stream = device.default_stream();
        optimizer.step_on(&stream, &[None, None]).unwrap();
        assert_eq!(one.to_vec().unwrap(), [bf16::ONE]);
        for _ in 0..4 {
            optimizer.step(&[(&none).into(), (&gradient).into()]).unwrap();
        }
        // Four steps of a thousandth are one number of bf16, of the copy alone.
        assert_eq!(one.to_vec().unwrap(), [bf16::from_f32(1.0 + 1.0 / 128.0)], "{device}");
        assert_eq!(optimizer.steps().unwrap()[1], 4);
        assert_eq!(optimizer.names().collect::<Vec<_>>(), ["none", "one"]);
    }
}

#[test]
fn random_rounding_has_the_right_mean_and_is_the_same_each_time() {
    let count = 1 << 14;
    let run = |seed: u64, device: &Device| {
        let w = Tensor::from_slice(device, &vec![bf16::ONE; count], [count]).unwrap();
        let options = AdamWOptions { weight_decay: 0.0, ..AdamWOptions::default() };
        let mut optimizer = AdamW::new(device, options).unwrap();
        let random = ParameterOptions { rounding: Rounding::Stochastic, ..ParameterOptions::default() };
        optimizer.add_with("w", &w, random).unwrap();
        optimizer.set_seed(seed);
        let gradient = Tensor::from_slice(device, &vec![-1.0f32; count], [count]).unwrap();
        optimizer.step(&[(&gradient).into()]).unwrap();
        w.to_vec().unwrap()
    };
    let (first, again, other) = (run(1, &Device::cpu()), run(1, &Device::emulator()), run(2, &Device::cpu()));
    assert_eq!(first, again);
    assert_ne!(first, other);
    // Each goes up by 1/128 with a probability of 0.128: of 16384 that is 2097, with a deviation of 43.
    let up = first.iter().filter(|&&w| w == bf16::from_f32(1.0 + 1.0 / 128.0)).count();
    assert!(up.abs_diff(2097) < 4 * 43, "{up}");
    assert_eq!(up + first.iter().filter(|&&w| w == bf16::ONE).count(), count);
}

#[test]
fn a_captured_step_takes_what_gradients_are_then() {
    for device in [Device::cpu(), Device::emulator()] {
        let stream = device.new_stream().unwrap();
        let make = || {
            let w = Tensor::from_slice(&device, &numbers(1, 70), [70]).unwrap();
            let mut optimizer = AdamW::new(&device, AdamWOptions::default()).unwrap();
            optimizer.add("w", &w).unwrap();
            (w, optimizer)
        };
        let ((w, mut optimizer), (expected, mut other)) = (make(), make());
        let mut gradient = Tensor::from_slice(&device, &numbers(2, 70), [70]).unwrap();
        let view = gradient.clone();
        let work = || optimizer.step_on(&stream, &[Some((&view).into())]);
        // SAFETY: nobody else has the stream; the work borrows every tensor that it uses.
        let mut graph = unsafe { stream.capture(work) }.unwrap();
        other.step(&[(&gradient).into()]).unwrap();
        for seed in 3..5 {
            gradient.write_slice(&numbers(seed, 70)).unwrap();
            graph.launch().unwrap();
            other.step(&[(&gradient).into()]).unwrap();
            assert_eq!(w.to_vec().unwrap(), expected.to_vec().unwrap());
        }
    }
}

#[test]
fn what_does_not_fit_is_named() {
    for device in [Device::cpu(), Device::emulator()] {
        let mut optimizer = AdamW::new(&device, AdamWOptions::default()).unwrap();
        let w = Tensor::<f32>::zeros(&device, [4, 6]).unwrap();
        optimizer.add("w", &w).unwrap();
        let told = |result: Result<()>, what: [&str; 2]| {
            let error = result.expect_err(what[0]).to_string();
            assert!(what.iter().all(|what| error.contains(what)), "{error}, expected {what:?}");
        };
        let of = |shape: &[usize]| Tensor::<f32>::zeros(&device, shape).unwrap();
        told(optimizer.add("w", &of(&[1])), ["name is w", "no other weights"]);
        told(optimizer.add("x", &w.slice(0, 1..2).unwrap()), ["`weights`", "shares memory"]);
        told(optimizer.add("x", &of(&[4, 6]).slice(1, 0..2).unwrap()), ["`weights`", "contiguous"]);
        let elsewhere = Tensor::<f32>::zeros(&Device::emulator(), [4]).unwrap();
        told(optimizer.add("x", &elsewhere), ["`weights`", "emulator"]);
        let group = ParameterOptions { group: Group(7), ..ParameterOptions::default() };
        told(optimizer.add_with("x", &of(&[1]), group), ["number 7", "1 groups"]);
        told(optimizer.set_options(Group(7), AdamWOptions::default()), ["number 7", "1 groups"]);
        told(optimizer.step(&[]), ["gradients is 0", "1 weights"]);
        told(optimizer.step(&[(&of(&[24])).into()]), ["`gradient`", "[4, 6], for `w`"]);
        let apart = of(&[6, 4]).swap_axes(0, 1).unwrap();
        told(optimizer.step(&[(&apart).into()]), ["`gradient`", "contiguous"]);
        told(optimizer.step(&[(&w).into()]), ["`gradient`", "shares memory with `weights`"]);
        let stream = Device::emulator().default_stream();
        told(optimizer.step_on(&stream, &[None]), ["`stream`", "emulator"]);
        for options in [
            AdamWOptions { learning_rate: -1.0, ..AdamWOptions::default() },
            AdamWOptions { learning_rate: f64::NAN, ..AdamWOptions::default() },
            AdamWOptions { epsilon: f64::INFINITY, ..AdamWOptions::default() },
            AdamWOptions { weight_decay: -0.1, ..AdamWOptions::default() },
            AdamWOptions { betas: [1.0, 0.5], ..AdamWOptions::default() },
            AdamWOptions { betas: [0.5, -0.5], ..AdamWOptions::default() },
        ] {
            let is_refused = |result: Result<()>| matches!(result, Err(Error::Argument { .. }));
            assert!(is_refused(AdamW::new(&device, options).map(drop)), "{options:?}");
            assert!(is_refused(optimizer.add_group(options).map(drop)), "{options:?}");
            assert!(is_refused(optimizer.set_options(Group::default(), options)), "{options:?}");
        }
        told(optimizer.set_learning_rate(-2.0), ["learning_rate is -2", "at least 0"]);
        for norm in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            told(optimizer.set_max_norm(Some(norm)), ["max_norm", "above 0"]);
        }
        let scale = LossScaleOptions::default();
        for options in [
            LossScaleOptions { initial: 0.0, ..scale },
            LossScaleOptions { growth: 0.5, ..scale },
            LossScaleOptions { backoff: 0.0, ..scale },
            LossScaleOptions { backoff: 1.5, ..scale },
            LossScaleOptions { growth_interval: 0, ..scale },
        ] {
            let error = optimizer.set_loss_scale(Some(options)).unwrap_err();
            assert!(matches!(error, Error::Argument { .. }), "{error}");
        }
        // None of it has changed anything.
        assert_eq!(optimizer.options(Group::default()), Some(AdamWOptions::default()));
        assert_eq!(w.to_vec().unwrap(), [0.0; 24]);
    }
}
