//! Every kernel in the emulator, in every mode of completion, and the choice between them.

use warpsmith_emulator::Completion;

use super::*;
use crate::device::EmulatorOptions;
use crate::ops::gemm::Access;
use crate::ops::update::{MAX_UPDATES, UpdateInput};
use crate::tensor::Tensor;
use crate::weights::FloatElement;

/// An update's rank, how many rows of X share a row of its codes, and its scaling.
type Part = (usize, usize, f32);

#[derive(Clone, Debug)]
struct Case {
    m: usize,
    k: usize,
    n: usize,
    parts: Vec<Part>,
    add: bool,
    /// Columns before and behind every matrix, which nothing may touch.
    margin: usize,
    /// Small integers, of which the result is exact.
    integers: bool,
}

impl Case {
    fn new(m: usize, k: usize, n: usize, rank: usize) -> Self {
        let parts = vec![(rank, 1, 1.0)];
        Self { m, k, n, parts, add: false, margin: 0, integers: true }
    }

    fn with(self, parts: &[Part]) -> Self {
        Self { parts: parts.to_vec(), ..self }
    }

    fn added(self) -> Self {
        Self { add: true, ..self }
    }

    fn margin(self, margin: usize) -> Self {
        Self { margin, ..self }
    }

    fn random(self) -> Self {
        Self { integers: false, ..self }
    }

    fn rank(&self) -> usize {
        self.parts.iter().map(|part| part.0).sum()
    }
}

/// Numbers of a test.
struct Numbers(u32);

impl Numbers {
    fn next(&mut self, integers: bool) -> f64 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let number = f64::from(self.0 >> 8) / f64::from(1 << 24);
        if integers { (number * 3.0).floor() - 1.0 } else { 2.0 * number - 1.0 }
    }
}

/// A matrix with a margin of numbers that are not part of it, as its rows.
struct Matrix<T: Element> {
    all: Vec<T>,
    whole: Tensor<T>,
    view: Tensor<T>,
    rows: usize,
    columns: usize,
    margin: usize,
}

impl<T: FloatElement + Element> Matrix<T> {
    fn new(device: &Device, numbers: &mut Numbers, [rows, columns]: [usize; 2], case: &Case) -> Self {
        let margin = case.margin;
        let all: Vec<T> =
            (0..rows * (columns + 2 * margin)).map(|_| T::round(numbers.next(case.integers))).collect();
        let whole = Tensor::from_slice(device, &all, [rows, columns + 2 * margin]).unwrap();
        let view = whole.slice(1, margin..margin + columns).unwrap();
        Self { all, whole, view, rows, columns, margin }
    }

    fn get(&self, row: usize, column: usize) -> f64
    where
        T: Into<f64>,
    {
        assert!(row < self.rows && column < self.columns);
        self.all[row * (self.columns + 2 * self.margin) + self.margin + column].into()
    }
}

fn device(completion: Completion, seed: u64, compute_capability: (u32, u32)) -> Device {
    Device::emulator_with(EmulatorOptions {
        completion,
        seed,
        compute_capability,
        ..EmulatorOptions::default()
    })
}

/// Half a unit in the last place of an f32 near 1.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// The error of a sum of `length` products, in units of the sum of their sizes: see `warpsmith_lab::bound`. Up to 32 blocks and warps add
/// their parts up.
fn sum_error(dtype: DType, length: usize) -> f64 {
    let length = length as f64;
    let parts = 32.0 * U;
    match dtype {
        DType::F32 => (2f64).powi(-19) + (42.0 + (length / 8.0).ceil()) * U + parts,
        _ => (length + 8.0) * 2.0 * U + parts,
    }
}

/// Half a unit in the last place of a number near 1, and of the smallest numbers.
fn rounding(dtype: DType) -> [f64; 2] {
    match dtype {
        DType::F16 => [2f64.powi(-11), 2f64.powi(-25)],
        DType::Bf16 => [2f64.powi(-8), 2f64.powi(-134)],
        _ => [2f64.powi(-24), 2f64.powi(-150)],
    }
}

/// Runs `case` with the kernel of `shape`, in slices of `slices` parts and with `blocks` blocks for all tiles, in one mode; checks every element.
fn check_in<T>(device: &Device, case: &Case, shape: Shape, parts: u32, most_blocks: u32) -> Vec<u64>
where
    T: UpdateInput + FloatElement + Into<f64>,
{
    let mut numbers = Numbers(7);
    let rank = case.rank();
    let x = Matrix::<T>::new(device, &mut numbers, [case.m, case.k], case);
    let v = Matrix::<T>::new(device, &mut numbers, [case.k, rank], case);
    let u = Matrix::<T>::new(device, &mut numbers, [rank, case.n], case);
    let mut y = Matrix::<T>::new(device, &mut numbers, [case.m, case.n], case);
    let codes: Vec<_> = case
        .parts
        .iter()
        .map(|&(rank, shared, _)| {
            Matrix::<T>::new(device, &mut numbers, [case.m.div_ceil(shared), rank], case)
        })
        .collect();
    let mut all = Codes {
        codes: [codes[0].view.arg(); MAX_UPDATES],
        strides: [0; MAX_UPDATES],
        ends: [rank as u32; MAX_UPDATES],
        rows: [1; MAX_UPDATES],
        scaling: [0.0; MAX_UPDATES],
    };
    let mut end = 0;
    for (i, (codes, &(rank, shared, scaling))) in codes.iter().zip(&case.parts).enumerate() {
        end += rank as u32;
        (all.codes[i], all.strides[i]) = (codes.view.arg(), row_stride(&codes.view));
        (all.ends[i], all.rows[i], all.scaling[i]) = (end, shared as u32, scaling);
    }
    let stream = device.default_stream();
    let y_arg = y.view.arg_mut();
    let operands = Alone {
        x: &x.view,
        v: &v.view,
        u: &u.view,
        y: &y.view,
        y_arg,
        codes: all,
        m: case.m as u32,
        k: case.k as u32,
        n: case.n as u32,
        add: case.add,
    };
    let sizes = <T as Kernels>::instance(shape).sizes;
    let unit = SLICE_BYTES / size_of::<T>() as u32;
    let slice = (case.n as u32).div_ceil(unit).div_ceil(parts * sizes.split) * unit;
    let slices = (case.n as u32).div_ceil(slice).next_multiple_of(sizes.split);
    let jobs = (case.m as u32).div_ceil(sizes.block_m) * slices;
    let blocks = if sizes.split > 1 { jobs } else { jobs.min(most_blocks) };
    let choice = Choice { shape, slice, blocks };
    // SAFETY: the operands were checked, and live until the results are read.
    unsafe { launch::<T>(device, &stream, choice, &operands) }
        .unwrap_or_else(|error| panic!("{case:?} {choice:?}: {error}"));
    let got = y.view.to_vec().unwrap();

    let [unit_error, smallest] = rounding(T::DTYPE);
    let mut bits = Vec::new();
    for row in 0..case.m {
        let mut h = Vec::new();
        for (codes, &(rank, shared, scaling)) in codes.iter().zip(&case.parts) {
            for r in 0..rank {
                let of_v = h.len();
                let products = (0..case.k).map(|k| x.get(row, k) * v.get(k, of_v));
                let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + f64::abs(p)));
                let factor = codes.get(row / shared, r) * f64::from(scaling);
                let value = sum * factor;
                let error = size * (sum_error(T::DTYPE, case.k) + 3.0 * U) * factor.abs();
                h.push((value, error + unit_error * (value.abs() + error) + smallest));
            }
        }
        for column in 0..case.n {
            let (mut sum, mut size, mut error) = (0.0, 0.0, 0.0);
            for (r, (value, of_value)) in h.iter().enumerate() {
                let u = u.get(r, column);
                sum += u * value;
                size += (u * value).abs();
                error += u.abs() * of_value;
            }
            let before = if case.add { y.get(row, column) } else { 0.0 };
            let expected = sum + before;
            let number: f64 = got[row * case.n + column].into();
            bits.push(number.to_bits());
            let place = || format!("{case:?} {choice:?} {}: row {row}, column {column}", T::DTYPE);
            if case.integers {
                let rounded: f64 = T::round(expected).into();
                assert_eq!(number, rounded, "{}", place());
                continue;
            }
            error += (size + error) * sum_error(T::DTYPE, rank) + U * (expected.abs() + before.abs());
            let bound = error + unit_error * (expected.abs() + error) + smallest;
            assert!((number - expected).abs() <= bound, "{}: {number}, not {expected} ± {bound}", place());
        }
    }
    // The margin is as it was.
    if case.margin > 0 {
        let columns = case.n + 2 * case.margin;
        for (at, (now, before)) in
            y.whole.to_vec().unwrap().into_iter().zip(y.all.iter().copied()).enumerate()
        {
            if !(case.margin..case.margin + case.n).contains(&(at % columns)) {
                assert_eq!(Into::<f64>::into(now), Into::<f64>::into(before), "{case:?}: element {at}");
            }
        }
    }
    bits
}

/// Runs `case` in every mode; they give the same bits.
fn check<T>(case: &Case, shape: Shape, parts: u32, most_blocks: u32)
where
    T: UpdateInput + FloatElement + Into<f64>,
{
    let modes =
        [(Completion::Latest, 0), (Completion::Eager, 0), (Completion::Random, 1), (Completion::Random, 2)];
    let mut first = None;
    for (completion, seed) in modes {
        let device = device(completion, seed, (9, 0));
        let bits = check_in::<T>(&device, case, shape, parts, most_blocks);
        let first = first.get_or_insert_with(|| bits.clone());
        assert!(*first == bits, "{case:?} {shape:?}: {completion:?} {seed} differs");
    }
}

fn check_all(case: &Case, shape: Shape, parts: u32, most_blocks: u32) {
    check::<f16>(case, shape, parts, most_blocks);
    check::<bf16>(case, shape, parts, most_blocks);
    check::<f32>(case, shape, parts, most_blocks);
}

/// The shapes, and ranks that they serve.
const SHAPES: [(Shape, [usize; 3]); 2] = [(Shape::Rank8, [1, 7, 8]), (Shape::Cluster16, [3, 9, 16])];

#[test]
fn integers_come_out_exactly_with_tails_in_every_direction() {
    for (shape, ranks) in SHAPES {
        for (rank, (m, k, n)) in ranks.into_iter().zip([(1, 40, 72), (37, 131, 101), (83, 264, 328)]) {
            check_all(&Case::new(m, k, n, rank), shape, 1, 1);
        }
    }
}

#[test]
fn random_numbers_stay_within_the_bound() {
    for (shape, [_, rank, most]) in SHAPES {
        check_all(&Case::new(50, 300, 136, rank).random(), shape, 1, 3);
        check_all(&Case::new(17, 520, 80, most).random().added(), shape, 2, 100);
    }
}

#[test]
fn updates_are_added_in_place_and_nothing_else_is_touched() {
    for (shape, ranks) in SHAPES {
        for (margin, rank) in [1, 4, 8].into_iter().zip(ranks) {
            check_all(&Case::new(21, 70, 90 + margin, rank).margin(margin).added(), shape, 1, 2);
        }
    }
}

#[test]
fn several_updates_have_codes_and_scalings_of_their_own() {
    for (shape, [few, some, most]) in SHAPES {
        let parts = match shape {
            Shape::Rank8 => vec![(1, 4, 2.0), (4, 1, -1.0), (3, 100, 0.5)],
            _ => vec![(few - 2, 1, 2.0), (1, 20, -1.0), (most - some + 1, 7, 0.5)],
        };
        check_all(&Case::new(41, 72, 136, 0).with(&parts), shape, 1, 2);
        check_all(&Case::new(41, 72, 136, 0).with(&parts).random().margin(3), shape, 3, 2);
    }
}

/// V and U in registers: whole chunks in every row, tails in every direction, and codes of every kind.
#[test]
fn few_columns_by_warps_that_hold_v_and_u_are_right() {
    let shape = Shape::Rows768;
    let parts = [(1, 4, 2.0), (4, 1, -1.0), (3, 100, 0.5)];
    let cases = [
        Case::new(1, 40, 72, 1),
        Case::new(37, 136, 104, 7),
        Case::new(50, 768, 64, 8).random(),
        Case::new(17, 96, 768, 8).random().added(),
        Case::new(21, 72, 88, 3).margin(8).added(),
        Case::new(41, 72, 136, 0).with(&parts),
        Case::new(41, 264, 768, 0).with(&parts).random().margin(8),
        Case::new(77, 200, 136, 8),
    ];
    for case in cases {
        for blocks in [1, 2, 100] {
            check::<f16>(&case, shape, 1, blocks);
            check::<bf16>(&case, shape, 1, blocks);
        }
    }
}

/// V and U of eight coordinates stay in shared memory, and a block works through many tiles; other shapes copy them again.
#[test]
fn blocks_that_work_through_several_tiles_are_right() {
    for (shape, [_, rank, _]) in SHAPES {
        let most_rows = <f16 as Kernels>::instance(shape).sizes.block_m as usize * 5 - 3;
        for blocks in [1, 2] {
            check_all(&Case::new(most_rows, 200, 136, rank), shape, 1, blocks);
        }
    }
    // More columns than stay.
    check_all(&Case::new(70, 600, 1100, 8), Shape::Rank8, 1, 2);
    check_all(&Case::new(70, 600, 1100, 8).random(), Shape::Rank8, 3, 2);
    // Where a block of the cluster had a part of V in the ring, it has a part of U later.
    check_all(&Case::new(3, 6000, 4000, 9), Shape::Cluster16, 1, 8);
}

/// A row of X that is not finite makes that row of Y so, and no other; nor do the coordinates that fill up the rank.
#[test]
fn rows_that_are_not_finite_stay_by_themselves() {
    let shapes = SHAPES.map(|(shape, [few, ..])| (shape, few));
    for (shape, few) in shapes.into_iter().chain([(Shape::Rows768, 7)]) {
        let device = device(Completion::Latest, 0, (9, 0));
        let (m, k, n) = (19, 24, 16);
        let mut x = vec![f16::ONE; m * k];
        x[5 * k] = f16::INFINITY;
        let ones = |rows: usize, columns: usize| {
            Tensor::from_slice(&device, &vec![f16::ONE; rows * columns], [rows, columns]).unwrap()
        };
        let x = Tensor::from_slice(&device, &x, [m, k]).unwrap();
        let (v, codes, u) = (ones(k, few), ones(m, few), ones(few, n));
        let mut y = ones(m, n);
        let y_arg = y.arg_mut();
        let codes = Codes {
            codes: [codes.arg(); MAX_UPDATES],
            strides: [few as u64; MAX_UPDATES],
            ends: [few as u32; MAX_UPDATES],
            rows: [1; MAX_UPDATES],
            scaling: [0.5; MAX_UPDATES],
        };
        let (x, v, u) = (&x, &v, &u);
        let operands = Alone { x, v, u, y: &y, y_arg, codes, m: 19, k: 24, n: 16, add: false };
        let split = <f16 as Kernels>::instance(shape).sizes.split;
        let blocks = 2u32.next_multiple_of(split) * split.min(2);
        let choice = Choice { shape, slice: 64, blocks };
        // SAFETY: the tensors are as large as the operands say.
        unsafe { launch::<f16>(&device, &device.default_stream(), choice, &operands) }.unwrap();
        for (at, number) in y.to_vec().unwrap().into_iter().enumerate() {
            let expected = if at / n == 5 { f16::INFINITY } else { f16::from_f64((k * few) as f64 * 0.5) };
            assert_eq!(number, expected, "{shape:?}: row {}", at / n);
        }
    }
}

fn h100() -> Limits {
    Limits {
        compute_capability: (9, 0),
        multiprocessors: 132,
        max_shared_per_block: 232_448,
        shared_per_multiprocessor: 233_472,
        memory_bandwidth: 0,
        takes_fp8_mma: true,
    }
}

fn problem(m: u32, k: u32, n: u32, rank: u32, dtype: DType) -> Problem {
    Problem {
        m,
        k,
        n,
        rank,
        dtype,
        access: Access::Aligned,
        x_is_chunked: true,
        u_is_chunked: true,
        y_is_chunked: true,
        fits_registers: true,
    }
}

#[test]
fn many_rows_run_in_one_slice_on_all_multiprocessors() {
    for dtype in [DType::F16, DType::Bf16] {
        let (choice, _) = choose(&problem(16_384, 768, 768, 8, dtype), &h100()).unwrap();
        assert_eq!(choice, Choice { shape: Shape::Rows768, slice: 768, blocks: 264 });
    }
    for m in [1, 128, 1024] {
        let (choice, _) = choose(&problem(m, 768, 768, 8, DType::F16), &h100()).unwrap();
        assert_eq!(choice, Choice { shape: Shape::Rows768, slice: 768, blocks: m.div_ceil(16) });
    }
    // f32, rows that are not whole chunks, and more columns.
    for other in [
        problem(16_384, 768, 768, 8, DType::F32),
        problem(16_384, 764, 768, 8, DType::F16),
        problem(16_384, 768, 776, 8, DType::F16),
        Problem { access: Access::Words, ..problem(16_384, 768, 768, 8, DType::F16) },
        Problem { y_is_chunked: false, ..problem(16_384, 768, 768, 8, DType::F16) },
    ] {
        let (choice, _) = choose(&other, &h100()).unwrap();
        assert_eq!((choice.shape, choice.blocks), (Shape::Rank8, 264), "{other:?}");
    }
    for dtype in [DType::F16, DType::F32] {
        assert_eq!(choose(&problem(16_384, 4096, 4096, 17, dtype), &h100()), None, "two products");
    }
}

#[test]
fn few_rows_run_in_clusters() {
    for (m, k, n, rank) in [(1, 2048, 768, 8), (16, 4096, 4096, 8), (64, 4096, 4096, 16)] {
        let (choice, _) = choose(&problem(m, k, n, rank, DType::Bf16), &h100()).unwrap();
        assert_eq!(choice.shape, Shape::Cluster16, "{m} {k} {n} {rank}");
    }
}

/// Every choice has a place for every column, whole clusters, and shared memory that the device has.
#[test]
fn choices_cover_y_within_the_device() {
    let ada = Limits {
        compute_capability: (8, 9),
        multiprocessors: 128,
        max_shared_per_block: 101_376,
        shared_per_multiprocessor: 102_400,
        memory_bandwidth: 0,
        takes_fp8_mma: true,
    };
    for limits in [h100(), ada] {
        for dtype in [DType::F16, DType::F32] {
            for (m, k, n) in
                [(1, 1, 1), (7, 100, 130), (300, 5000, 20_000), (100_000, 17, 64), (16_384, 768, 1)]
            {
                for rank in [1, 8, 9, 16] {
                    // Clusters are Hopper's.
                    let Some((choice, _)) = choose(&problem(m, k, n, rank, dtype), &limits) else {
                        assert!(rank > 8 && limits == ada, "{rank}");
                        continue;
                    };
                    let sizes = sizes(choice.shape, dtype).unwrap();
                    assert!(
                        choice.slice.is_multiple_of(SLICE_BYTES / size_of_type(dtype)) && choice.slice > 0
                    );
                    assert!(choice.blocks > 0 && choice.blocks.is_multiple_of(sizes.split));
                    let clusters = m.div_ceil(sizes.block_m) * n.div_ceil(choice.slice * sizes.split);
                    assert!(sizes.split == 1 || choice.blocks == clusters * sizes.split);
                    assert!(
                        rank <= sizes.max_rank
                            && sizes.declaration.shared_bytes <= limits.max_shared_per_block
                    );
                }
            }
        }
    }
    let turing = Limits {
        compute_capability: (7, 5),
        multiprocessors: 40,
        max_shared_per_block: 65_536,
        shared_per_multiprocessor: 65_536,
        memory_bandwidth: 0,
        takes_fp8_mma: true,
    };
    assert_eq!(choose(&problem(100, 100, 100, 8, DType::F16), &turing), None);
}
