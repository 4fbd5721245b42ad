//! The kernels of linear layers with generated updates, launched as they are. Exact on integers, within the bound on random
//! numbers, for ranks on both sides of every limit of their tiles, with tails along each axis and operands that stand in rows
//! of NaN.

use std::fmt::Debug;

use half::{bf16, f16};
use libtest_mimic::{Failed, Trial};
use warpsmith::emulator::Completion;
use warpsmith::ops::Products;
use warpsmith::weights::FloatElement;
use warpsmith::{DType, Device, Element, EmulatorOptions, Tensor};
use warpsmith_dsl::epilogue::{Activation, LinearEpilogue};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::{Global, GlobalMut, Kernel};
use warpsmith_kernels::codes::{Codes, MAX_UPDATES};
use warpsmith_kernels::linear_update::{LinearUpdateParams, Update64x64, Update128x128, linear_update};

pub(crate) fn trials() -> Vec<Trial> {
    let cases: [(&str, Check); 4] = [
        ("integers_come_out_exact_for_every_rank", integers_come_out_exact_for_every_rank),
        ("random_numbers_are_within_the_bound", random_numbers_are_within_the_bound),
        (
            "several_updates_have_codes_and_scalings_of_their_own",
            several_updates_have_codes_and_scalings_of_their_own,
        ),
        ("results_do_not_depend_on_when_copies_land", results_do_not_depend_on_when_copies_land),
    ];
    cases
        .into_iter()
        .map(|(name, case)| crate::timed::trial(format!("linear_update::{name}"), case))
        .collect()
}

/// A test.
type Check = fn() -> Result<(), Failed>;

/// On both sides of what a k-step, a pair of fragments, a slot and the registers hold.
const RANKS: [usize; 9] = [1, 5, 8, 16, 17, 33, 64, 100, 128];

type Args<D> = (
    Global<D>,
    Global<D>,
    Global<D>,
    Global<D>,
    GlobalMut<D>,
    Codes<D>,
    LinearEpilogue<D, D>,
    LinearUpdateParams,
);

/// A type, its kernel and the sides of that one's tile.
trait Tested: Element + FloatElement + Copy + PartialEq + Debug + Into<f64> {
    type Kernel: Kernel<Args = Args<Self::Device>>;
    const TILE: [usize; 2];
    /// Half a unit in the last place of a number near 1, and half the smallest subnormal number.
    const ROUNDING: [f64; 2];
}

impl Tested for f16 {
    type Kernel = linear_update<F16, F16, Update128x128<F16>>;
    const TILE: [usize; 2] = [128, 128];
    const ROUNDING: [f64; 2] = [1.0 / 2048.0, 1.0 / (1u64 << 25) as f64];
}

impl Tested for bf16 {
    type Kernel = linear_update<Bf16, Bf16, Update128x128<Bf16>>;
    const TILE: [usize; 2] = [128, 128];
    const ROUNDING: [f64; 2] = [1.0 / 256.0, 0.0];
}

impl Tested for f32 {
    type Kernel = linear_update<f32, f32, Update64x64<f32>>;
    const TILE: [usize; 2] = [64, 64];
    const ROUNDING: [f64; 2] = [1.0 / (1u64 << 24) as f64, 0.0];
}

/// A matrix on the host, in f64.
#[derive(Clone)]
struct Matrix {
    columns: usize,
    values: Vec<f64>,
}

impl Matrix {
    fn new(rows: usize, columns: usize, mut value: impl FnMut(usize, usize) -> f64) -> Self {
        let values = (0..rows * columns).map(|i| value(i / columns, i % columns)).collect();
        Self { columns, values }
    }

    fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.values[row * self.columns + column]
    }

    /// On a device, in rows of a multiple of 16 bytes and 16 more, of which the rest is NaN.
    fn upload<T: Tested>(&self, device: &Device) -> warpsmith::Result<Tensor<T>> {
        let unit = 16 / size_of::<T>();
        let stride = self.columns.next_multiple_of(unit) + unit;
        let padded: Vec<T> = (0..self.rows() * stride)
            .map(|i| match i % stride {
                column if column < self.columns => T::round(self.at(i / stride, column)),
                _ => T::round(f64::NAN),
            })
            .collect();
        Tensor::from_slice(device, &padded, [self.rows(), stride])
    }
}

/// An update: its codes, how many rows of X share one row of them, and what it is multiplied with.
struct Part {
    codes: Matrix,
    rows: usize,
    scaling: f32,
}

struct Problem {
    x: Matrix,
    w: Matrix,
    v: Matrix,
    u: Matrix,
    bias: Matrix,
    parts: Vec<Part>,
    relu: bool,
    /// Tiles of a block.
    tiles: u32,
}

impl Problem {
    /// The code, with the scaling, of a row of X and a rank.
    fn code(&self, row: usize, rank: usize) -> f64 {
        let mut begin = 0;
        for part in &self.parts {
            if rank < begin + part.codes.columns {
                return part.codes.at(row / part.rows, rank - begin) * f64::from(part.scaling);
            }
            begin += part.codes.columns;
        }
        unreachable!("every rank belongs to a part")
    }

    fn run<T: Tested>(&self, device: &Device) -> Result<Vec<T>, Failed> {
        let (m, k, n) = (self.x.rows(), self.x.columns, self.w.rows());
        let (x, w) = (self.x.upload::<T>(device)?, self.w.upload::<T>(device)?);
        let vt =
            Matrix::new(self.v.columns, k, |rank, column| self.v.at(column, rank)).upload::<T>(device)?;
        let (u, bias) = (self.u.upload::<T>(device)?, self.bias.upload::<T>(device)?);
        let mut y = Tensor::<T>::uninit(device, [m, n])?;
        let parts = self.parts.iter().map(|part| part.codes.upload::<T>(device));
        let parts = parts.collect::<warpsmith::Result<Vec<_>>>()?;
        let mut codes = Codes {
            codes: [parts[0].arg(); MAX_UPDATES],
            strides: [0; MAX_UPDATES],
            ends: [self.v.columns as u32; MAX_UPDATES],
            rows: [1; MAX_UPDATES],
            scaling: [1.0; MAX_UPDATES],
        };
        let mut end = 0;
        for (i, (part, tensor)) in self.parts.iter().zip(&parts).enumerate() {
            end += part.codes.columns;
            codes.codes[i] = tensor.arg();
            codes.strides[i] = tensor.strides()[0] as u64;
            codes.ends[i] = end as u32;
            codes.rows[i] = part.rows as u32;
            codes.scaling[i] = part.scaling;
        }
        let epilogue = LinearEpilogue {
            bias: bias.arg(),
            activation: if self.relu { Activation::RELU } else { Activation::NONE },
            ..LinearEpilogue::plain()
        };
        let stride = |tensor: &Tensor<T>| tensor.strides()[0] as u64;
        let params = LinearUpdateParams {
            stride_x: stride(&x),
            stride_w: stride(&w),
            stride_vt: stride(&vt),
            stride_u: stride(&u),
            stride_y: n as u64,
            m: m as u32,
            n: n as u32,
            k: k as u32,
            tiles: self.tiles,
        };
        let [rows, columns] = T::TILE;
        let blocks = m.div_ceil(rows) * n.div_ceil(columns).div_ceil(self.tiles as usize);
        let kernel = device.kernel::<T::Kernel>()?;
        let arguments = (x.arg(), w.arg(), vt.arg(), u.arg(), y.arg_mut(), codes, epilogue, params);
        // SAFETY: the operands are those that the parameters describe, and live until the result is read.
        unsafe { kernel.launch(&device.default_stream(), [blocks as u32, 1, 1], arguments)? };
        Ok(y.to_vec()?)
    }

    /// The result and the largest error of it, for element type `T`.
    ///
    /// Every sum is off by at most [`Products::error`] of the magnitudes of its terms. An element of `H ⊙ codes` is also off by two
    /// roundings in f32, of the scaled code and of the product with it, and one to `T`; its error is multiplied with U. The bias is one
    /// rounding more, and the result is rounded to `T`.
    fn expected<T: Tested>(&self, row: usize, column: usize) -> (f64, f64) {
        const U: f64 = 1.0 / (1u64 << 24) as f64;
        let products = if T::DTYPE == DType::F32 { Products::ThreeTf32 } else { Products::Direct };
        let (k, ranks) = (self.x.columns, self.v.columns);
        let [relative, absolute] = T::ROUNDING;
        let (mut sum, mut magnitude, mut error) = (0.0, 0.0, 0.0);
        for i in 0..k {
            let product = self.x.at(row, i) * self.w.at(column, i);
            (sum, magnitude) = (sum + product, magnitude + product.abs());
        }
        for rank in 0..ranks {
            let (mut hidden, mut size) = (0.0, 0.0);
            for i in 0..k {
                let product = self.x.at(row, i) * self.v.at(i, rank);
                (hidden, size) = (hidden + product, size + product.abs());
            }
            let (code, u) = (self.code(row, rank), self.u.at(rank, column));
            let before = code.abs() * (products.error(k) * size + 2.0 * U * size);
            let rounded = (hidden * code).abs() + before;
            let off = before + (relative * rounded).max(absolute);
            sum += hidden * code * u;
            magnitude += (rounded + off) * u.abs();
            error += off * u.abs();
        }
        let bias = self.bias.at(0, column);
        error +=
            products.error(k + ranks.next_multiple_of(16)) * magnitude + 2.0 * U * (magnitude + bias.abs());
        let z = sum + bias;
        let y = if self.relu { z.max(0.0) } else { z };
        (y, error + (relative * (y.abs() + error)).max(absolute))
    }

    /// Runs it and compares every element: within the bound, or, if `exact`, equal to the rounded result.
    fn check<T: Tested>(&self, device: &Device, exact: bool) -> Result<(), Failed> {
        let n = self.w.rows();
        for (i, &got) in self.run::<T>(device)?.iter().enumerate() {
            let (row, column) = (i / n, i % n);
            let (y, bound) = self.expected::<T>(row, column);
            let off = (got.into() - y).abs();
            let is_right = if exact { got == T::round(y) } else { off <= bound };
            if !is_right {
                let ranks = self.v.columns;
                return Err(format!(
                    "{:?}, {} ranks, {} tiles a block: y[{row}, {column}] is {got:?}, expected {y} ± {bound}",
                    T::DTYPE,
                    ranks,
                    self.tiles
                )
                .into());
            }
        }
        Ok(())
    }
}

/// A sequence of numbers below 2²⁴.
fn sequence(seed: u32) -> impl FnMut() -> u32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    }
}

/// Small integers, of which no sum leaves what the types hold exactly: those of H have few terms.
fn integers(m: usize, k: usize, n: usize, parts: &[(usize, usize, f32)], tiles: u32) -> Problem {
    let mut next = sequence(parts.len() as u32 + m as u32);
    let mut small = |most: i32| f64::from((next() % (2 * most as u32 + 1)) as i32 - most);
    let ranks = parts.iter().map(|part| part.0).sum();
    Problem {
        x: Matrix::new(m, k, |_, _| small(2)),
        w: Matrix::new(n, k, |_, _| small(2)),
        v: Matrix::new(k, ranks, |row, rank| if (row + rank) % 5 == 0 { small(1) } else { 0.0 }),
        u: Matrix::new(ranks, n, |_, _| small(2)),
        bias: Matrix::new(1, n, |_, _| small(2)),
        parts: parts
            .iter()
            .map(|&(rank, rows, scaling)| Part {
                codes: Matrix::new(m.div_ceil(rows), rank, |_, _| small(2)),
                rows,
                scaling,
            })
            .collect(),
        relu: false,
        tiles,
    }
}

fn random<T: Tested>(m: usize, k: usize, n: usize, parts: &[(usize, usize, f32)], tiles: u32) -> Problem {
    let mut next = sequence(m as u32 + n as u32);
    let mut value = || -> f64 { T::round(f64::from(next()) / f64::from(1 << 23) - 1.0).into() };
    let ranks = parts.iter().map(|part| part.0).sum();
    Problem {
        x: Matrix::new(m, k, |_, _| value()),
        w: Matrix::new(n, k, |_, _| value()),
        v: Matrix::new(k, ranks, |_, _| value()),
        u: Matrix::new(ranks, n, |_, _| value()),
        bias: Matrix::new(1, n, |_, _| value()),
        parts: parts
            .iter()
            .map(|&(rank, rows, scaling)| Part {
                codes: Matrix::new(m.div_ceil(rows), rank, |_, _| value()),
                rows,
                scaling,
            })
            .collect(),
        relu: true,
        tiles,
    }
}

fn integers_come_out_exact_for_every_rank() -> Result<(), Failed> {
    fn check<T: Tested>(device: &Device) -> Result<(), Failed> {
        let [rows, columns] = T::TILE;
        for (i, rank) in RANKS.into_iter().enumerate() {
            // One tile and a tail in each direction, by one block or several; K of less than a slot, of one, and of more than the ring.
            let k = [24, 43, 160][i % 3];
            integers(rows + 3, k, columns + 5, &[(rank, 1, 0.5)], 1 + i as u32 % 3)
                .check::<T>(device, true)?;
        }
        integers(1, 1, 1, &[(3, 1, 1.0)], 1).check::<T>(device, true)
    }
    let device = Device::emulator();
    check::<f16>(&device)?;
    check::<bf16>(&device)?;
    check::<f32>(&device)
}

fn random_numbers_are_within_the_bound() -> Result<(), Failed> {
    fn check<T: Tested>(device: &Device) -> Result<(), Failed> {
        let [rows, columns] = T::TILE;
        for (i, rank) in RANKS.into_iter().enumerate() {
            let k = [200, 77, 24][i % 3];
            random::<T>(rows + 9, k, 2 * columns + 7, &[(rank, 1, 1.5)], 1 + i as u32 % 3)
                .check::<T>(device, false)?;
        }
        Ok(())
    }
    let device = Device::emulator();
    check::<f16>(&device)?;
    check::<bf16>(&device)?;
    check::<f32>(&device)
}

/// Eight updates, of codes for each row, for some rows, and for all.
fn several_updates_have_codes_and_scalings_of_their_own() -> Result<(), Failed> {
    fn check<T: Tested>(device: &Device) -> Result<(), Failed> {
        let m = 140;
        let eight = [
            (3, 1, 1.0),
            (16, 10, 2.0),
            (1, m, 0.5),
            (9, 1, -1.0),
            (7, 70, 1.0),
            (30, 1, 0.5),
            (8, m, 2.0),
            (5, 3, -0.5),
        ];
        integers(m, 40, 80, &eight, 1).check::<T>(device, true)?;
        integers(m, 40, 80, &eight[2..4], 2).check::<T>(device, true)?;
        random::<T>(m, 40, 80, &eight[..5], 1).check::<T>(device, false)
    }
    let device = Device::emulator();
    check::<f16>(&device)?;
    check::<bf16>(&device)?;
    check::<f32>(&device)
}

fn results_do_not_depend_on_when_copies_land() -> Result<(), Failed> {
    fn check<T: Tested>(devices: &[Device]) -> Result<(), Failed> {
        for (rank, tiles) in [(9, 3), (100, 2)] {
            let problem = random::<T>(70, 150, 2 * T::TILE[1] + 8, &[(rank, 1, 1.0)], tiles);
            let first = problem.run::<T>(&devices[0])?;
            for device in &devices[1..] {
                if problem.run::<T>(device)? != first {
                    return Err(format!("{:?}, {rank} ranks: results differ", T::DTYPE).into());
                }
            }
        }
        Ok(())
    }
    let modes =
        [(Completion::Latest, 0), (Completion::Eager, 0), (Completion::Random, 1), (Completion::Random, 2)];
    let devices = modes.map(|(completion, seed)| {
        Device::emulator_with(EmulatorOptions { completion, seed, ..EmulatorOptions::default() })
    });
    check::<f16>(&devices)?;
    check::<bf16>(&devices)?;
    check::<f32>(&devices)
}
