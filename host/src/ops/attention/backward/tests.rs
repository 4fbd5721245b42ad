use half::f16;

use super::AttentionGradientOutputs;
use crate::ops::attention::{Alignment, AttentionOp, Rotary};
use crate::ops::{Implementation, RotaryTable};
use crate::{Device, Element, Error, Tensor, ops};

const DEVICES: [&str; 3] = ["cpu", "emulator:8.0", "emulator:9.0"];

fn numbers(device: &Device, shape: &[usize], seed: usize) -> Tensor<f16> {
    let number = |i: usize| f16::from_f32(((i * 7919 + seed * 131) % 1009) as f32 / 500.0 - 1.0);
    let elements: Vec<f16> = (0..shape.iter().product()).map(number).collect();
    Tensor::from_slice(device, &elements, shape).expect("it fits")
}

/// Queries, keys, values and the gradient of results.
struct Operands {
    q: Tensor<f16>,
    k: Tensor<f16>,
    v: Tensor<f16>,
    dy: Tensor<f16>,
    sinks: Tensor<f32>,
}

impl Operands {
    fn new(device: &Device) -> Self {
        Self {
            q: numbers(device, &[2, 70, 4, 24], 1),
            k: numbers(device, &[2, 66, 2, 24], 2),
            v: numbers(device, &[2, 66, 2, 16], 3),
            dy: numbers(device, &[2, 70, 4, 16], 4),
            sinks: Tensor::from_slice(device, &[0.5, -1.0, 2.0, 0.0], [4]).expect("it fits"),
        }
    }

    fn operation(&self) -> AttentionOp<'_, f16> {
        ops::attention(&self.q, &self.k, &self.v).causal(Alignment::BottomRight)
    }
}

fn bits<T: Element>(tensor: &Tensor<T>) -> Vec<T> {
    tensor.to_vec().expect("it is there")
}

#[test]
fn each_gradient_alone_is_that_of_all() {
    for name in DEVICES {
        let device: Device = name.parse().expect("a device");
        let of = Operands::new(&device);
        let operation = || of.operation().sinks(&of.sinks);
        let (y, lse) = operation().run_with_lse().expect("it fits");
        let backward = operation().backward(&y, &lse, &of.dy);
        let all = backward.run().expect("it fits");
        let new = |like: &Tensor<f16>| Tensor::<f16>::zeros(&device, like.shape()).expect("it fits");
        let (mut dq, mut dk, mut dv) = (new(&of.q), new(&of.k), new(&of.v));
        let mut dsinks = Tensor::from_slice(&device, &[1.0f32; 4], [4]).expect("it fits");
        let none = AttentionGradientOutputs::default;
        backward.run_into(AttentionGradientOutputs { dq: Some(&mut dq), ..none() }).expect("it fits");
        backward.run_into(AttentionGradientOutputs { dk: Some(&mut dk), ..none() }).expect("it fits");
        backward.run_into(AttentionGradientOutputs { dv: Some(&mut dv), ..none() }).expect("it fits");
        let outputs = AttentionGradientOutputs { dsinks: Some(&mut dsinks), adds: true, ..none() };
        backward.run_into(outputs).expect("it fits");
        backward.run_into(none()).expect("nothing is asked for");
        assert_eq!(
            [bits(&dq), bits(&dk), bits(&dv)],
            [bits(&all.dq), bits(&all.dk), bits(&all.dv)],
            "{name}"
        );
        let of_sinks = all.dsinks.map(|dsinks| bits(&dsinks)).expect("there are sinks");
        // One more rounding, of what is added to 1.
        let is_sum =
            |(&sum, &of_sink): (&f32, &f32)| (sum - (1.0 + of_sink)).abs() <= sum.abs() * f32::EPSILON;
        assert!(bits(&dsinks).iter().zip(&of_sinks).all(is_sum), "{name}");
        assert!(of_sinks.iter().any(|&of_sink| of_sink != 0.0));
    }
}

#[test]
fn no_numbers_of_one_head_stay_there() {
    for name in DEVICES {
        let device: Device = name.parse().expect("a device");
        let mut of = Operands::new(&device);
        let run = |of: &Operands| {
            let (y, lse) = of.operation().run_with_lse().expect("it fits");
            let gradients = of.operation().backward(&y, &lse, &of.dy).run().expect("it fits");
            // Of the first sequence: heads 0 and 1 of the queries, which have head 0 of the keys.
            let first = |tensor: &Tensor<f16>, heads: usize| {
                let tensor =
                    tensor.slice(0, 0..1).and_then(|tensor| tensor.slice(2, 0..heads)).expect("it fits");
                bits(&tensor).into_iter().map(f16::to_bits).collect::<Vec<_>>()
            };
            [first(&gradients.dq, 2), first(&gradients.dk, 1), first(&gradients.dv, 1)]
        };
        let expected = run(&of);
        // All others, of which the first rows come behind the last ones of head 1 where rows have their numbers.
        let is_other = |i: usize| i / (70 * 4 * 16) == 1 || i / 16 % 4 >= 2;
        let dy = bits(&of.dy).into_iter().enumerate();
        let dy: Vec<f16> = dy.map(|(i, dy)| if is_other(i) { f16::NAN } else { dy }).collect();
        of.dy = Tensor::from_slice(&device, &dy, of.dy.shape()).expect("it fits");
        assert_eq!(run(&of), expected, "{name}");
    }
}

#[test]
fn gradients_may_be_heads_of_one_tensor() {
    for name in DEVICES {
        let device: Device = name.parse().expect("a device");
        let of = Operands::new(&device);
        let (q, v) = (numbers(&device, &[2, 66, 4, 24], 5), numbers(&device, &[2, 66, 2, 24], 6));
        let dy = numbers(&device, &[2, 66, 4, 24], 7);
        let operation = || ops::attention(&q, &of.k, &v);
        let (y, lse) = operation().run_with_lse().expect("it fits");
        let expected = operation().backward(&y, &lse, &dy).run().expect("it fits");
        let all = Tensor::<f16>::zeros(&device, [2, 66, 8, 24]).expect("it fits");
        let part = |range| all.slice(2, range).expect("it is there");
        let (mut dq, mut dk, mut dv) = (part(0..4), part(4..6), part(6..8));
        let outputs = AttentionGradientOutputs {
            dq: Some(&mut dq),
            dk: Some(&mut dk),
            dv: Some(&mut dv),
            ..AttentionGradientOutputs::default()
        };
        operation().backward(&y, &lse, &dy).run_into(outputs).expect("they are side by side");
        for (got, expected) in [(dq, expected.dq), (dk, expected.dk), (dv, expected.dv)] {
            assert_eq!(bits(&got), bits(&expected), "{name}");
        }
        // Heads that two of them have.
        let (mut dk, mut dv) = (part(4..6), part(5..7));
        let outputs = AttentionGradientOutputs {
            dk: Some(&mut dk),
            dv: Some(&mut dv),
            ..AttentionGradientOutputs::default()
        };
        let error = operation().backward(&y, &lse, &dy).run_into(outputs).expect_err("they meet");
        assert!(matches!(error, Error::Overlap { operand: "dv", other: "dk", .. }), "{error}");
    }
}

#[test]
fn gradients_of_what_is_turned_are_turned_back() {
    for name in DEVICES {
        let device: Device = name.parse().expect("a device");
        let of = Operands::new(&device);
        let table = RotaryTable::new(&device, 10_000.0, 16, 200).expect("it fits");
        let turn = |x: &Tensor<f16>, offset| ops::rotary(x, &table).offset(offset).run().expect("it fits");
        let back = |x: &Tensor<f16>, offset| {
            bits(&ops::rotary(x, &table).offset(offset).backward().run().expect("it fits"))
        };
        let (q, k) = (turn(&of.q, 3), turn(&of.k, 0));
        let turned = || ops::attention(&q, &k, &of.v);
        let (y, lse) = turned().run_with_lse().expect("it fits");
        let expected = turned().backward(&y, &lse, &of.dy).run().expect("it fits");
        let rotary = Rotary::new(&table).offsets(3, 0);
        let operation = ops::attention(&of.q, &of.k, &of.v).rotary(rotary);
        let got = operation.backward(&y, &lse, &of.dy).run().expect("it fits");
        assert_eq!(bits(&got.dq), back(&expected.dq, 3), "{name}");
        assert_eq!(bits(&got.dk), back(&expected.dk, 0), "{name}");
        assert_eq!(bits(&got.dv), bits(&expected.dv), "{name}");
        // Keys that are turned already have gradients of what they are.
        let operation = ops::attention(&of.q, &k, &of.v).rotary(rotary.queries_only());
        let got = operation.backward(&y, &lse, &of.dy).run().expect("it fits");
        assert_eq!(bits(&got.dk), bits(&expected.dk), "{name}");
    }
}

#[test]
fn rows_and_keys_of_no_sequence_stay_or_are_zeros() {
    for name in DEVICES {
        let device: Device = name.parse().expect("a device");
        let (q, k) = (numbers(&device, &[20, 2, 8], 1), numbers(&device, &[30, 1, 8], 2));
        let offsets = |all: [u32; 3]| Tensor::from_slice(&device, &all, [3]).expect("it fits");
        let (of_q, of_k) = (offsets([2, 9, 15]), offsets([1, 20, 28]));
        let operation = || ops::attention(&q, &k, &k).packed(&of_q, &of_k);
        let (y, lse) = operation().run_with_lse().expect("it fits");
        let gradients = operation().backward(&y, &lse, &q).run().expect("it fits");
        let mut dq = numbers(&device, &[20, 2, 8], 3);
        let before = bits(&dq);
        let outputs = AttentionGradientOutputs { dq: Some(&mut dq), ..AttentionGradientOutputs::default() };
        operation().backward(&y, &lse, &q).run_into(outputs).expect("it fits");
        let (got, whole) = (bits(&dq), bits(&gradients.dq));
        assert_eq!((&got[..32], &got[240..]), (&before[..32], &before[240..]), "{name}");
        assert_eq!(got[32..240], whole[32..240], "{name}");
        let zeros = |part: &[f16]| part.iter().all(|&number| number == f16::ZERO);
        let dk = bits(&gradients.dk);
        assert!(
            zeros(&whole[..32]) && zeros(&whole[240..]) && zeros(&dk[..8]) && zeros(&dk[224..]),
            "{name}"
        );
        assert!(!zeros(&whole[32..240]) && !zeros(&dk[8..224]));
    }
}

#[test]
fn nothing_runs_where_there_is_nothing() {
    for name in DEVICES {
        let device: Device = name.parse().expect("a device");
        let new = |shape: &[usize]| numbers(&device, shape, 1);
        let (q, k) = (new(&[2, 0, 4, 8]), new(&[2, 5, 2, 8]));
        let sinks = Tensor::from_slice(&device, &[1.0f32; 4], [4]).expect("it fits");
        let operation = || ops::attention(&q, &k, &k).sinks(&sinks);
        let (y, lse) = operation().run_with_lse().expect("it fits");
        let backward = operation().backward(&y, &lse, &q);
        let gradients = backward.run().expect("it fits");
        assert!(bits(&gradients.dk).iter().all(|&number| number == f16::ZERO), "{name}");
        assert_eq!(gradients.dsinks.map(|dsinks| bits(&dsinks)), Some(vec![0.0; 4]), "{name}");
        let mut dsinks = sinks.clone();
        let outputs =
            AttentionGradientOutputs { dsinks: Some(&mut dsinks), adds: true, ..Default::default() };
        let error = backward.run_into(outputs).expect_err("it is read");
        assert!(matches!(error, Error::Overlap { operand: "dsinks", other: "sinks", .. }), "{error}");

        let none = new(&[0, 5, 2, 8]);
        let operation = || ops::attention(&none, &none, &none);
        let (y, lse) = operation().run_with_lse().expect("it fits");
        let backward = operation().backward(&y, &lse, &none);
        assert_eq!(backward.implementation().expect("it fits"), Implementation::Empty);
        assert_eq!(backward.run().expect("it fits").dq.shape(), [0, 5, 2, 8]);
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let device = Device::cpu();
    let of = Operands::new(&device);
    let (y, lse) = of.operation().run_with_lse().expect("it fits");
    let refused = |y: &Tensor<f16>, lse: &Tensor<f32>, dy: &Tensor<f16>| {
        of.operation().backward(y, lse, dy).run().expect_err("it does not fit").to_string()
    };
    let error = refused(&of.q, &lse, &of.dy);
    assert!(error.contains("`y` has shape [2, 70, 4, 24], expected [2, 70, 4, 16]"), "{error}");
    let error = refused(&y, &lse, &of.v);
    assert!(error.contains("`dy` has shape [2, 66, 2, 16], expected [2, 70, 4, 16]"), "{error}");
    let error = refused(&y, &lse.swap_axes(1, 2).expect("two axes"), &of.dy);
    assert!(error.contains("`lse` has shape [2, 70, 4], expected [2, 4, 70]"), "{error}");
    let wide = numbers(&device, &[2, 70, 4, 32], 1);
    let every_second = wide.reshape([2, 70, 4, 16, 2]).and_then(|wide| wide.slice(4, 0..1));
    let every_second = every_second.and_then(|part| part.reshape([2, 70, 4, 16]));
    if let Ok(every_second) = every_second {
        let error = of.operation().backward(&y, &lse, &every_second).run().expect_err("it has gaps");
        assert!(matches!(error, Error::Stride { operand: "dy", .. }), "{error}");
    }

    let backward = of.operation().backward(&y, &lse, &of.dy);
    let (mut dq, mut dsinks) = (of.q.clone(), Tensor::<f32>::zeros(&device, [4]).expect("it fits"));
    let outputs = AttentionGradientOutputs { dq: Some(&mut dq), ..Default::default() };
    let error = backward.run_into(outputs).expect_err("it is read");
    assert!(matches!(error, Error::Overlap { operand: "dq", other: "q", .. }), "{error}");
    let outputs = AttentionGradientOutputs { dsinks: Some(&mut dsinks), ..Default::default() };
    let error = backward.run_into(outputs).expect_err("there are none");
    assert!(matches!(error, Error::Argument { argument: "dsinks", .. }), "{error}");
    let mut dk = numbers(&device, &[2, 66, 2, 16], 1);
    let outputs = AttentionGradientOutputs { dk: Some(&mut dk), ..Default::default() };
    let error = backward.run_into(outputs).expect_err("it does not fit");
    assert!(matches!(error, Error::Shape { operand: "dk", .. }), "{error}");

    let table = Tensor::from_slice(&device, &[0u32, 1], [2, 1]).expect("it fits");
    let paged = of.operation().pages(&table);
    let error = paged.backward(&y, &lse, &of.dy).run().expect_err("pages have no gradients");
    assert!(matches!(error, Error::Argument { argument: "page_table", .. }), "{error}");
}

#[test]
fn sizes_without_a_kernel_are_refused_with_the_reason() {
    let device: Device = "emulator:8.0".parse().expect("a device");
    let q = Tensor::<f32>::zeros(&device, [1, 3, 1, 136]).expect("it fits");
    let (y, lse) = ops::attention(&q, &q, &q).run_with_lse().expect("the forward pass takes it");
    let error = ops::attention(&q, &q, &q).backward(&y, &lse, &q).run().expect_err("no kernel takes it");
    assert!(matches!(error, Error::UnsupportedDevice { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("with 193 KiB of shared memory") && text.contains("136 and 136 columns"), "{text}");
}
