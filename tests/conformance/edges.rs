//! f32 at its edges: infinities, NaN, sums that overflow, and numbers near zero. Results are what IEEE 754 says of products and sums in f32,
//! though kernels multiply parts of the numbers.

use libtest_mimic::Failed;
use ndarray::{Array1, Array2};
use proptest::prelude::*;
use warpsmith::ops::gemm::Tile;
use warpsmith::ops::peer::{Gate, QueryNorm};
use warpsmith::ops::{self, Precision};
use warpsmith::{DType, Device, DeviceKind, Tensor};
use warpsmith_lab::cases::{Data, LinearCase, MatmulCase, UpdateCase};

use crate::{Case, cases, drawn, properties, update};

pub(crate) const CASES: &[(&str, Case)] = cases![
    infinities_drawn_in_products_are_those_of_plain_f32,
    numbers_drawn_of_every_size_stay_within_the_bound,
    infinities_drawn_in_updates_are_those_of_plain_f32,
    every_tile_adds_infinities_as_plain_f32_does,
    sums_of_finite_numbers_overflow_and_never_become_nan,
    infinities_in_rank_coordinates_pass_on,
    subnormal_numbers_are_kept_to_a_tf32,
];

/// Cases of kernels that a Turing GPU has not.
pub(crate) const RETRIEVALS: &[(&str, Case)] = cases![infinite_scores_are_ranked];

/// Products of f32, with batches, operands in other layouts, every option and every tile.
fn products(device: &Device, data: Data) -> impl Strategy<Value = MatmulCase> {
    let capability = device.properties().compute_capability;
    properties::matmul_case(device, data).prop_map(move |case| {
        let product = LinearCase { input: DType::F32, output: DType::F32, ..case.product };
        let tile = product.tile.filter(|&tile| properties::has_kernel(&product, tile, capability));
        let precision = tile.map_or_else(Precision::default, |tile| tile.precision(DType::F32));
        MatmulCase { product: LinearCase { tile, precision, ..product }, ..case }
    })
}

fn infinities_drawn_in_products_are_those_of_plain_f32(device: &Device) -> Result<(), Failed> {
    let cases = products(device, Data::Infinities);
    Ok(drawn::runner(device, [96, 400])?.run(&cases, |case| properties::check_matmul(device, &case))?)
}

fn numbers_drawn_of_every_size_stay_within_the_bound(device: &Device) -> Result<(), Failed> {
    let cases = products(device, Data::Exponents);
    Ok(drawn::runner(device, [64, 400])?.run(&cases, |case| properties::check_matmul(device, &case))?)
}

fn infinities_drawn_in_updates_are_those_of_plain_f32(device: &Device) -> Result<(), Failed> {
    let cases = update::update_case(Data::Infinities);
    // Without columns of x nothing is run, whatever the codes are.
    let cases = cases.prop_map(|case| UpdateCase { dtype: DType::F32, k: case.k.max(1), ..case });
    Ok(drawn::runner(device, [64, 300])?.run(&cases, |case| update::check(device, &case))?)
}

/// The tiles of f32 at f32 accuracy that a device has, and what it would choose.
fn tiles(device: &Device) -> Vec<Option<Tile>> {
    let capability = device.properties().compute_capability;
    let case = LinearCase::new(DType::F32, 8, 8, 8);
    let all = Tile::ALL.into_iter().filter(|&tile| {
        properties::has_kernel(&case, tile, capability) && tile.precision(DType::F32) == Precision::Full
    });
    std::iter::once(None).chain(all.map(Some)).collect()
}

/// What a sum in f32 may be: any of several numbers, since an overflow on the way depends on the order. `size` is that of its products
/// together.
fn expect(got: f32, expected: &[f32], size: f32, what: &str) {
    let is = |&one: &f32| {
        if one.is_nan() { got.is_nan() } else { got == one || (got - one).abs() <= 1e-5 * size }
    };
    assert!(expected.iter().any(is), "{what}: {got} is none of {expected:?}");
}

const INF: f32 = f32::INFINITY;

/// In each of many places of x and w, so that every lane, fragment and tail has some.
fn every_tile_adds_infinities_as_plain_f32_does(device: &Device) -> Result<(), Failed> {
    let (m, k, n) = (133, 67, 131);
    let mut x = Array2::from_shape_fn((m, k), |(i, j)| ((i * 5 + j * 3) % 7) as f32 + 0.25);
    let mut w = Array2::from_shape_fn((n, k), |(i, j)| ((i * 3 + j * 11) % 5) as f32 + 0.5);
    for (row, mut x) in x.rows_mut().into_iter().enumerate() {
        match row % 9 {
            1 => x[row % k] = INF,
            3 => x[(row * 7) % k] = -INF,
            5 => (x[row % k], x[(row + 1) % k]) = (INF, -INF),
            7 => x[k - 1] = f32::from_bits(0xff80_0001),
            _ => {}
        }
    }
    for (row, mut w) in w.rows_mut().into_iter().enumerate() {
        match row % 7 {
            1 => w[(row * 3) % k] = 0.0,
            3 => w[(row * 5) % k] = -INF,
            5 => w.iter_mut().step_by(2).for_each(|w| *w = -*w),
            _ => {}
        }
    }
    let exact = |row: usize, column: usize| {
        let products = x
            .row(row)
            .iter()
            .zip(w.row(column))
            .map(|(x, w)| f64::from(*x) * f64::from(*w))
            .collect::<Vec<_>>();
        products.into_iter().sum::<f64>() as f32
    };
    let bias = Array1::from_shape_fn(n, |column| column as f32);
    for tile in tiles(device) {
        let (x, w) = (Tensor::from_array(device, &x)?, Tensor::from_array(device, &w)?);
        let bias = Tensor::from_array(device, &bias)?;
        let y = ops::linear(&x, &w).bias(&bias).tile(tile).run()?.to_vec()?;
        for (at, &y) in y.iter().enumerate() {
            let (row, column) = (at / n, at % n);
            let what = format!("tile {tile:?}, row {row}, column {column}");
            expect(y, &[exact(row, column) + column as f32], 1e3, &what);
        }
    }
    Ok(())
}

fn sums_of_finite_numbers_overflow_and_never_become_nan(device: &Device) -> Result<(), Failed> {
    const MAX: f32 = f32::MAX;
    // Rows of x, and what their products with ones may be. Sums of both signs may be infinite, as a part of them is.
    let rows: [(&[f32], &[f32]); 9] = [
        (&[INF, 1.0], &[INF]),
        (&[MAX], &[MAX]),
        (&[-MAX, 0.0, 1.0], &[-MAX]),
        (&[MAX, MAX], &[INF]),
        (&[-3e38, -3e38, 1.0], &[-INF]),
        (&[3e38, 3e38, -3e38, -3e38], &[0.0, INF, -INF]),
        (&[3e38, -3e38, 3e38, -3e38, 1e38], &[1e38]),
        (&[1.7e38, 1.7e38, -1.7e38, -1.7e38], &[0.0]),
        (&[MAX, -MAX], &[0.0]),
    ];
    let k = 40;
    let mut x = Array2::<f32>::zeros((rows.len(), k));
    for (mut to, (from, _)) in x.rows_mut().into_iter().zip(&rows) {
        // From the first column on, or across several steps of a kernel.
        to.iter_mut().zip(*from).for_each(|(to, from)| *to = *from);
    }
    let across = Array2::from_shape_fn((rows.len(), k), |(row, column)| {
        let at = column / 8;
        if column % 8 == 3 { rows[row].0.get(at).copied().unwrap_or(0.0) } else { 0.0 }
    });
    for x in [x, across] {
        let (x, w) =
            (Tensor::from_array(device, &x)?, Tensor::from_array(device, &Array2::<f32>::ones((5, k)))?);
        for tile in tiles(device) {
            let y = ops::linear(&x, &w).tile(tile).run()?.to_vec()?;
            for (row, (_, expected)) in rows.iter().enumerate() {
                for &y in &y[row * 5..(row + 1) * 5] {
                    expect(y, expected, MAX, &format!("tile {tile:?}, row {row}"));
                }
            }
        }
    }
    // Products that overflow themselves, of both signs.
    let x = Array2::from_shape_fn((3, k), |(_, column)| if column % 2 == 0 { 3e19 } else { -3e19 });
    let w = Array2::from_elem((4, k), 2e19f32);
    let (x, w) = (Tensor::from_array(device, &x)?, Tensor::from_array(device, &w)?);
    if device.kind() != DeviceKind::Cpu {
        for tile in tiles(device) {
            let y = ops::linear(&x, &w).tile(tile).run()?.to_vec()?;
            assert!(y.iter().all(|y| !y.is_nan()), "tile {tile:?}: {y:?}");
        }
    }
    Ok(())
}

/// Infinities in X, in V and in U, alone and onto a product, at ranks that every kernel is for.
fn infinities_in_rank_coordinates_pass_on(device: &Device) -> Result<(), Failed> {
    for (m, k, n, rank) in [(37, 70, 75, 5), (19, 40, 33, 16), (70, 37, 130, 60), (9, 200, 40, 100)] {
        let mut x = Array2::from_shape_fn((m, k), |(i, j)| ((i * 5 + j * 3) % 7) as f32 - 2.5);
        let mut v = Array2::from_shape_fn((k, rank), |(i, j)| ((i * 3 + j * 11) % 5) as f32 - 1.5);
        let codes = Array2::from_shape_fn((m, rank), |(i, j)| ((i + j) % 3) as f32 - 0.5);
        let mut u = Array2::from_shape_fn((rank, n), |(i, j)| ((i * 7 + j) % 9) as f32 - 4.0);
        let w = Array2::from_shape_fn((n, k), |(i, j)| ((i + 2 * j) % 5) as f32 - 1.25);
        (x[[1, 0]], x[[m - 1, k - 1]], x[[5, k / 2]]) = (INF, -INF, f32::NAN);
        (v[[k - 1, rank - 1]], v[[2, 1]]) = (INF, 0.0);
        (u[[0, n - 1]], u[[rank - 1, 3]]) = (-INF, INF);
        let wide = |matrix: &Array2<f32>| matrix.mapv(f64::from);
        // A sum for each element: `dot` may add zeros.
        let product = |a: &Array2<f64>, b: &Array2<f64>| {
            Array2::from_shape_fn((a.nrows(), b.ncols()), |(i, j)| {
                a.row(i).iter().zip(b.column(j)).map(|(a, b)| a * b).fold(0.0, |sum, product| sum + product)
            })
        };
        let hidden = product(&wide(&x), &wide(&v)) * wide(&codes) * 0.5;
        let alone = product(&hidden, &wide(&u));
        let onto = &alone + &product(&wide(&x), &wide(&w).reversed_axes());
        let tensor = |matrix: &Array2<f32>| Tensor::from_array(device, matrix);
        let (x, v, codes, u, w) = (tensor(&x)?, tensor(&v)?, tensor(&codes)?, tensor(&u)?, tensor(&w)?);
        let mut added = ops::linear(&x, &w).run()?;
        ops::generated_update(&x, &v, &codes, &u, 0.5).add_to(&mut added)?;
        let together = ops::linear_with_update(&x, &w, &v, &codes, &u, 0.5).run()?;
        let update = ops::generated_update(&x, &v, &codes, &u, 0.5).run()?;
        for (got, expected, name) in
            [(&update, &alone, "alone"), (&added, &onto, "added"), (&together, &onto, "together")]
        {
            for (got, (at, &expected)) in got.to_vec()?.into_iter().zip(expected.indexed_iter()) {
                let what = format!("{name}, rank {rank}, {at:?}: {got} for {expected}");
                if expected.is_finite() {
                    assert!((f64::from(got) - expected).abs() <= 0.1, "{what}");
                } else {
                    expect(got, &[expected as f32], 0.0, &what);
                }
            }
        }
    }
    Ok(())
}

/// What the bound says of them: a factor may be off by 2⁻¹³⁶.
fn subnormal_numbers_are_kept_to_a_tf32(device: &Device) -> Result<(), Failed> {
    let numbers = [1e-40f32, -1e-40, 1e-38, 3e-45, 1e-44, f32::MIN_POSITIVE, 1.5e-37, -2e-39];
    for factor in [1.0f32, -2.0, 0.5, 1e10, 1e38] {
        let x = Array2::from_shape_fn((numbers.len(), 9), |(i, j)| if j == 4 { numbers[i] } else { 0.0 });
        let w = Array2::from_elem((3, 9), factor);
        let (x, w) = (Tensor::from_array(device, &x)?, Tensor::from_array(device, &w)?);
        for tile in tiles(device) {
            for (at, y) in ops::linear(&x, &w).tile(tile).run()?.to_vec()?.into_iter().enumerate() {
                let exact = f64::from(numbers[at / 3]) * f64::from(factor);
                let lost = 2f64.powi(-136) * f64::from(factor.abs()) + 2f64.powi(-149);
                let error = (f64::from(y) - exact).abs();
                assert!(error <= lost + 1e-6 * exact.abs(), "{y} for {exact}, tile {tile:?}");
            }
        }
    }
    Ok(())
}

/// Sub-keys with an infinity have infinite scores: the lowest of all, or the highest.
fn infinite_scores_are_ranked(device: &Device) -> Result<(), Failed> {
    let cpu = Device::cpu();
    for (n, half, k, tokens) in [(40, 3, 8, 5), (300, 130, 8, 40), (70, 20, 40, 3)] {
        let bias: Vec<f32> = (0..2 * half).map(|column| 1.0 + (column % 3) as f32).collect();
        let key = |row: usize, column: usize| ((row * 7 + column * 5 + row * column) % 11) as f32 - 5.0;
        let mut keys = [0, 3].map(|first| Array2::from_shape_fn((n, half), |(i, j)| key(i + first, j)));
        for (row, column, value) in [(5, 0, -INF), (n - 1, half - 1, -INF), (12, 1, -3e38)] {
            keys[0][[row, column]] = value;
            keys[1][[row / 2, column]] = value;
        }
        keys[0][[12, 2]] = -3e38;
        let run = |device: &Device, keys: &[Array2<f32>; 2]| {
            let x = Array2::from_shape_fn((tokens, 1), |(token, _)| 1.0 + (token % 4) as f32);
            let (x, w) = (Tensor::from_array(device, &x)?, Array2::from_elem((2 * half, 1), 0.5f32));
            let (w, bias) = (Tensor::from_array(device, &w)?, Tensor::from_slice(device, &bias, [2 * half])?);
            let (first, second) =
                (Tensor::from_array(device, &keys[0])?, Tensor::from_array(device, &keys[1])?);
            let routing = ops::product_key_topk(&x, &w, &first, &second, 1, k)
                .bias(&bias)
                .query_norm(QueryNorm::none())
                .gate(Gate::Identity)
                .run()?;
            Ok::<_, warpsmith::Error>((routing.ids.to_vec()?, routing.gates.to_vec()?))
        };
        let (got, expected) = (run(device, &keys)?, run(&cpu, &keys)?);
        assert!(expected.1.iter().all(|gate| gate.is_finite()), "finite scores are higher");
        assert_eq!(got, expected, "n {n}, half {half}");
        // The first sub-key that is best has one infinite product among finite ones.
        keys[0][[7, 1]] = INF;
        let (ids, gates) = run(device, &keys)?;
        for (&id, &gate) in ids.iter().zip(&gates) {
            assert!(id as usize / n == 7 && gate == INF, "n {n}, half {half}: {id} has {gate}");
        }
    }
    Ok(())
}
