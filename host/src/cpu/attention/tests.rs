use ndarray::{Array1, Array2, Array3, Array4};

use super::{AttentionTerms, TILE_ROWS, attention, packed_attention};
use crate::error::Error;

fn numbers(shape: [usize; 4], seed: usize) -> Array4<f32> {
    let mut index = seed;
    Array4::from_shape_fn(shape, |_| {
        index = (index * 7919 + 12_345) % 1_000_003;
        index as f32 / 500_001.5 - 1.0
    })
}

#[test]
fn sums_in_f32_are_those_in_f64_but_for_rounding() {
    let (rows, keys) = (2 * TILE_ROWS + 3, 131);
    let (q, k, v) = (numbers([2, rows, 4, 40], 1), numbers([2, keys, 2, 40], 2), numbers([2, keys, 2, 9], 3));
    let terms = AttentionTerms::new(0.3);
    let (mut y, mut lse) = (Array4::<f32>::zeros((2, rows, 4, 9)), Array3::<f32>::zeros((2, 4, rows)));
    let (mut exact, mut exact_lse) = (Array4::<f64>::zeros(y.dim()), Array3::<f64>::zeros(lse.dim()));
    let inputs = || (q.view(), k.view(), v.view());
    let (a, b, c) = inputs();
    attention::<f32, _, _, _, _>(a, b, c, &terms, y.view_mut(), Some(lse.view_mut()))
        .expect("the shapes fit");
    let (a, b, c) = inputs();
    attention::<f64, _, _, _, _>(a, b, c, &terms, exact.view_mut(), Some(exact_lse.view_mut()))
        .expect("they fit");
    assert!(y.iter().zip(&exact).all(|(&y, exact)| (f64::from(y) - exact).abs() < 1e-6));
    assert!(lse.iter().zip(&exact_lse).all(|(&lse, exact)| (f64::from(lse) - exact).abs() < 2e-6));
    assert!(exact.iter().any(|y| y.abs() > 0.1));
}

#[test]
fn shapes_that_do_not_fit_are_errors() {
    let run = |k: [usize; 4], v: [usize; 4], y: [usize; 4]| {
        let (q, k, v) = (numbers([1, 3, 4, 8], 1), numbers(k, 2), numbers(v, 3));
        let mut y = Array4::<f32>::zeros(y);
        let lse = None::<ndarray::ArrayViewMut3<'_, f32>>;
        attention::<f32, _, _, _, _>(
            q.view(),
            k.view(),
            v.view(),
            &AttentionTerms::new(1.0),
            y.view_mut(),
            lse,
        )
    };
    run([1, 5, 2, 8], [1, 5, 2, 6], [1, 3, 4, 6]).expect("these fit");
    for (k, v, y) in [
        ([1, 5, 2, 7], [1, 5, 2, 6], [1, 3, 4, 6]),
        ([1, 5, 2, 8], [1, 4, 2, 6], [1, 3, 4, 6]),
        ([1, 5, 3, 8], [1, 5, 3, 6], [1, 3, 4, 6]),
        ([1, 5, 0, 8], [1, 5, 0, 6], [1, 3, 4, 6]),
        ([1, 5, 2, 8], [1, 5, 2, 6], [1, 3, 4, 7]),
    ] {
        let error = run(k, v, y).expect_err("these do not fit");
        assert!(matches!(error, Error::Shape { .. }), "{error}");
    }
}

#[test]
fn pages_that_do_not_fit_are_errors() {
    let run = |k: [usize; 4], table: [usize; 2]| {
        let (q, k, table) = (numbers([2, 3, 4, 8], 1), numbers(k, 2), Array2::zeros(table));
        let terms = AttentionTerms { pages: Some(table.view()), ..AttentionTerms::new(1.0) };
        let mut y = Array4::<f32>::zeros([2, 3, 4, 8]);
        let lse = None::<ndarray::ArrayViewMut3<'_, f32>>;
        attention::<f32, _, _, _, _>(q.view(), k.view(), k.view(), &terms, y.view_mut(), lse)
    };
    run([7, 5, 2, 8], [2, 3]).expect("these fit");
    run([0, 5, 2, 8], [2, 0]).expect("nothing is read");
    for (k, table) in [([7, 5, 2, 8], [1, 3]), ([0, 5, 2, 8], [2, 1]), ([7, 0, 2, 8], [2, 1])] {
        let error = run(k, table).expect_err("these do not fit");
        assert!(matches!(error, Error::Shape { .. }), "{error}");
    }
}

#[test]
fn packed_sequences_have_no_masks() {
    let q = Array3::<f32>::zeros((3, 1, 8));
    let offsets = Array1::from(vec![0u32, 3]);
    let mask = Array4::<u8>::zeros((1, 1, 1, 1));
    let run = |terms: &AttentionTerms<'_, f32>, offsets: &Array1<u32>| {
        let mut y = Array3::<f32>::zeros((3, 1, 8));
        let lse = None::<ndarray::ArrayViewMut2<'_, f32>>;
        let both = [offsets.view(), offsets.view()];
        packed_attention::<f32, _, _, _, _>(q.view(), q.view(), q.view(), both, terms, y.view_mut(), lse)
    };
    let terms = AttentionTerms::new(1.0);
    run(&terms, &offsets).expect("these fit");
    assert!(matches!(run(&terms, &Array1::zeros(0)), Err(Error::Shape { operand: "offsets_q", .. })));
    let terms = AttentionTerms { mask: Some(mask.view()), ..terms };
    assert!(matches!(run(&terms, &offsets), Err(Error::Argument { argument: "mask", .. })));
    let pages = Array2::zeros((1, 1));
    let terms = AttentionTerms { pages: Some(pages.view()), ..AttentionTerms::new(1.0) };
    assert!(matches!(run(&terms, &offsets), Err(Error::Argument { argument: "pages", .. })));
    let slopes = Array2::<f32>::zeros((2, 1));
    let terms = AttentionTerms { slopes: Some(slopes.view()), ..AttentionTerms::new(1.0) };
    assert!(matches!(run(&terms, &offsets), Err(Error::Shape { operand: "slopes", .. })));
}
