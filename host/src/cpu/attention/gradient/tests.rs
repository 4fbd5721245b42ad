use ndarray::{Array1, Array2, Array3, Array4, array};

use super::super::{Alignment, AttentionTerms, Window, attention, packed_attention};
use super::{attention_gradient, packed_attention_gradient};
use crate::error::Error;

/// Multiples of 2⁻¹⁰, so that what differences add to them is exact in f32.
fn numbers(shape: [usize; 4], seed: usize) -> Array4<f32> {
    let mut index = seed;
    Array4::from_shape_fn(shape, |_| {
        index = (index * 7919 + 12_345) % 1_000_003;
        (index % 2048) as f32 / 1024.0 - 1.0
    })
}

/// The operands of an attention, and the gradient of its result.
struct Problem {
    operands: [Array4<f32>; 3],
    dy: Array4<f32>,
}

impl Problem {
    fn new(
        [batch, rows, keys]: [usize; 3],
        [key_heads, group]: [usize; 2],
        [width, values]: [usize; 2],
    ) -> Self {
        let heads = key_heads * group;
        Self {
            operands: [
                numbers([batch, rows, heads, width], 1),
                numbers([batch, keys, key_heads, width], 2),
                numbers([batch, keys, key_heads, values], 3),
            ],
            dy: numbers([batch, rows, heads, values], 4),
        }
    }

    /// The sum of dy ∘ y in f64: what the gradients are those of.
    fn value(&self, operands: &[Array4<f32>; 3], terms: &AttentionTerms<'_, f32>) -> f64 {
        let [q, k, v] = operands.each_ref().map(|operand| operand.view());
        let mut y = Array4::<f64>::zeros(self.dy.dim());
        let lse = None::<ndarray::ArrayViewMut3<'_, f64>>;
        attention::<f64, _, _, _, _>(q, k, v, terms, y.view_mut(), lse).expect("the shapes fit");
        y.iter().zip(&self.dy).map(|(y, &dy)| y * f64::from(dy)).sum()
    }

    fn gradients(&self, terms: &AttentionTerms<'_, f32>) -> ([Array4<f64>; 3], Array1<f64>) {
        let mut gradients =
            self.operands.each_ref().map(|operand| Array4::from_elem(operand.dim(), f64::NAN));
        let mut dsinks = Array1::zeros(self.dy.dim().2);
        let to_sinks = terms.sinks.is_some().then(|| dsinks.view_mut());
        let to = gradients.each_mut().map(|gradient| gradient.view_mut());
        let operands = self.operands.each_ref().map(|operand| operand.view());
        attention_gradient(operands, self.dy.view(), terms, to, to_sinks).expect("the shapes fit");
        (gradients, dsinks)
    }
}

/// Whether a derivative is what differences of this step and of half of it tend to: their error falls to a quarter.
fn is_limit_of(derivative: f64, [whole, half]: [f64; 2]) -> bool {
    (derivative - half).abs() <= (whole - half).abs() + 1e-9
}

/// The central difference of the step, and of half of it.
fn differences(value: impl Fn(f32) -> f64) -> [f64; 2] {
    [1.0f32 / 1024.0, 1.0 / 2048.0].map(|step| (value(step) - value(-step)) / (2.0 * f64::from(step)))
}

fn check(problem: &Problem, terms: &AttentionTerms<'_, f32>) {
    let (gradients, dsinks) = problem.gradients(terms);
    for (which, gradient) in gradients.iter().enumerate() {
        for (at, &derivative) in gradient.indexed_iter() {
            let differences = differences(|step| {
                let mut operands = problem.operands.clone();
                operands[which][at] += step;
                problem.value(&operands, terms)
            });
            assert!(is_limit_of(derivative, differences), "{which} {at:?}: {derivative} {differences:?}");
        }
    }
    let Some(sinks) = &terms.sinks else { return };
    for (head, &derivative) in dsinks.iter().enumerate() {
        let differences = differences(|step| {
            let mut sinks = sinks.to_owned();
            sinks[head] += step;
            let terms = AttentionTerms { sinks: Some(sinks.view()), ..terms.clone() };
            problem.value(&problem.operands, &terms)
        });
        assert!(is_limit_of(derivative, differences), "sink {head}: {derivative} {differences:?}");
    }
}

#[test]
fn gradients_are_what_differences_tend_to() {
    let problem = Problem::new([2, 5, 7], [2, 2], [3, 4]);
    let terms = || AttentionTerms::new(0.75);
    check(&problem, &terms());
    for alignment in [Alignment::TopLeft, Alignment::BottomRight] {
        for (left, right) in [(None, Some(0)), (Some(2), Some(1)), (Some(0), None)] {
            check(&problem, &AttentionTerms { window: Window::new(left, right, alignment), ..terms() });
        }
    }
    check(&problem, &AttentionTerms { scale: -0.5, soft_cap: Some(1.5), ..terms() });
    let bias = numbers([1, 4, 5, 7], 5);
    let mask = Array4::from_shape_fn((2, 1, 5, 7), |(b, _, i, j)| u8::from((b + i * 3 + j * 5) % 4 != 0));
    let with_mask = AttentionTerms { bias: Some(bias.view()), mask: Some(mask.view()), ..terms() };
    check(&problem, &with_mask);
    let blocks = Array4::from_shape_fn((2, 4, 3, 3), |(b, h, i, j)| u8::from((b + h + i + j) % 3 != 0));
    check(&problem, &AttentionTerms { block_mask: Some((blocks.view(), [2, 3])), ..terms() });
    let slopes = array![[0.5f32, 0.25, 0.125, 1.0]];
    let sinks = array![0.5f32, -1.0, 2.0, 0.0];
    let (lengths_q, lengths_k) = (array![4u32, 9], array![0u32, 6]);
    check(
        &problem,
        &AttentionTerms {
            slopes: Some(slopes.view()),
            sinks: Some(sinks.view()),
            lengths_q: Some(lengths_q.view()),
            lengths_k: Some(lengths_k.view()),
            ..terms()
        },
    );
}

#[test]
fn one_key_has_all_the_weight_whatever_its_score() {
    let problem = Problem::new([1, 3, 1], [1, 1], [16, 16]);
    let ([dq, dk, dv], _) = problem.gradients(&AttentionTerms::new(1.0));
    assert!(dq.iter().chain(&dk).all(|&gradient| gradient == 0.0));
    for (column, &dv) in dv.iter().enumerate() {
        let sum: f64 = (0..3).map(|row| f64::from(problem.dy[[0, row, 0, column]])).sum();
        assert!((dv - sum).abs() < 1e-12);
    }
}

#[test]
fn what_no_row_attends_to_does_not_show() {
    let mut problem = Problem::new([2, 4, 6], [1, 2], [8, 8]);
    let (lengths_q, lengths_k) = (array![3u32, 0], array![5u32, 6]);
    let terms = AttentionTerms {
        lengths_q: Some(lengths_q.view()),
        lengths_k: Some(lengths_k.view()),
        ..AttentionTerms::new(1.0)
    };
    let (expected, _) = problem.gradients(&terms);
    for b in 0..2 {
        let (rows, keys) = (lengths_q[b] as usize, lengths_k[b] as usize);
        problem.operands[0].slice_mut(ndarray::s![b, rows.., .., ..]).fill(f32::NAN);
        problem.dy.slice_mut(ndarray::s![b, rows.., .., ..]).fill(f32::NAN);
        for operand in &mut problem.operands[1..] {
            operand.slice_mut(ndarray::s![b, keys.., .., ..]).fill(f32::NAN);
        }
    }
    let (gradients, _) = problem.gradients(&terms);
    assert_eq!(gradients, expected);
    assert!(gradients[1].slice(ndarray::s![0, 5.., .., ..]).iter().all(|&dk| dk == 0.0));
    assert!(gradients[0].slice(ndarray::s![1, .., .., ..]).iter().all(|&dq| dq == 0.0));
}

#[test]
fn packed_sequences_are_those_on_their_own() {
    let (offsets_q, offsets_k) = (array![1u32, 4, 4, 9], array![0u32, 5, 6, 8]);
    let window = Window::new(None, Some(0), Alignment::BottomRight);
    let sinks = array![0.5f32, -1.0];
    let terms = AttentionTerms { window, sinks: Some(sinks.view()), ..AttentionTerms::new(0.5) };
    let problem = Problem::new([1, 10, 9], [1, 2], [8, 5]);
    let [q, k, v] = problem.operands.each_ref().map(|operand| operand.index_axis(ndarray::Axis(0), 0));
    let dy = problem.dy.index_axis(ndarray::Axis(0), 0);
    let mut gradients = [q, k, v].map(|operand| Array3::from_elem(operand.dim(), 7.0f64));
    let mut dsinks = Array1::<f64>::zeros(2);
    let to = gradients.each_mut().map(|gradient| gradient.view_mut());
    let offsets = [offsets_q.view(), offsets_k.view()];
    packed_attention_gradient([q, k, v], dy, offsets, &terms, to, Some(dsinks.view_mut())).expect("they fit");

    let mut of_sinks = Array1::<f64>::zeros(2);
    for b in 0..3 {
        let range = |offsets: &Array1<u32>| offsets[b] as usize..offsets[b + 1] as usize;
        let (rows, keys) = (range(&offsets_q), range(&offsets_k));
        let of_rows = |x: &Array4<f32>| x.slice(ndarray::s![.., rows.clone(), .., ..]).to_owned();
        let of_keys = |x: &Array4<f32>| x.slice(ndarray::s![.., keys.clone(), .., ..]).to_owned();
        let [q, k, v] = &problem.operands;
        let own = Problem { operands: [of_rows(q), of_keys(k), of_keys(v)], dy: of_rows(&problem.dy) };
        let (expected, of_sequence) = own.gradients(&terms);
        of_sinks += &of_sequence;
        for (which, (gradient, expected)) in gradients.iter().zip(&expected).enumerate() {
            let range = if which == 0 { rows.clone() } else { keys.clone() };
            assert_eq!(gradient.slice(ndarray::s![range, .., ..]), expected.index_axis(ndarray::Axis(0), 0));
        }
    }
    assert_eq!(dsinks, of_sinks);
    // Rows and keys of no sequence.
    assert!(gradients[0].slice(ndarray::s![9.., .., ..]).iter().all(|&dq| dq == 7.0));
    assert!(gradients[1].slice(ndarray::s![8.., .., ..]).iter().all(|&dk| dk == 7.0));
    let mut y = Array3::<f64>::zeros(dy.dim());
    let lse = None::<ndarray::ArrayViewMut2<'_, f64>>;
    let offsets = [offsets_q.view(), offsets_k.view()];
    packed_attention::<f64, _, _, _, _>(q, k, v, offsets, &terms, y.view_mut(), lse).expect("they fit");
    assert!(y.iter().all(|y| y.is_finite()));
}

#[test]
fn what_does_not_fit_is_an_error() {
    let problem = Problem::new([1, 3, 5], [2, 2], [8, 6]);
    let run = |terms: &AttentionTerms<'_, f32>, dy: [usize; 4], dk: [usize; 4], dsinks: Option<usize>| {
        let dy = numbers(dy, 1);
        let [q, _, v] = problem.operands.each_ref().map(|operand| operand.dim());
        let mut to = [Array4::<f32>::zeros(q), Array4::zeros(dk), Array4::zeros(v)];
        let mut dsinks = dsinks.map(Array1::<f32>::zeros);
        let operands = problem.operands.each_ref().map(|operand| operand.view());
        let dsinks = dsinks.as_mut().map(|dsinks| dsinks.view_mut());
        attention_gradient(operands, dy.view(), terms, to.each_mut().map(|to| to.view_mut()), dsinks)
    };
    let terms = AttentionTerms::new(1.0);
    let (dy, dk) = ([1, 3, 4, 6], [1, 5, 2, 8]);
    run(&terms, dy, dk, None).expect("these fit");
    for (dy, dk) in [([1, 3, 4, 5], dk), ([1, 2, 4, 6], dk), (dy, [1, 5, 2, 6])] {
        let error = run(&terms, dy, dk, None).expect_err("these do not fit");
        assert!(matches!(error, Error::Shape { .. }), "{error}");
    }
    let refused = |terms: &AttentionTerms<'_, f32>, dsinks, argument: &str| {
        let error = run(terms, dy, dk, dsinks).expect_err("it is refused");
        assert!(matches!(&error, Error::Argument { argument: told, .. } if *told == argument), "{error}");
    };
    refused(&terms, Some(4), "dsinks");
    let table = Array2::<u32>::zeros((1, 1));
    refused(&AttentionTerms { pages: Some(table.view()), ..terms.clone() }, None, "pages");
    let scale = array![1.0f32];
    refused(&AttentionTerms { k_scale: Some(scale.view()), ..terms.clone() }, None, "k_scale");
}
