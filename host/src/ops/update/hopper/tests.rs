//! The kernels on the emulator against sums in f64, in every mode of completion; and the choice among them.

use half::{bf16, f16};
use warpsmith_dsl::epilogue::{Activation, LinearEpilogue};
use warpsmith_emulator::Completion;
use warpsmith_kernels::codes::{Codes, MAX_UPDATES};

use super::{Choice, Kernels, Sharing, Tile, candidates, choose, kernel, launch, plan};
use crate::ops::gemm::{Access, Limits};
use crate::ops::update::operands::{BoltOn, Problem};
use crate::tensor::{DType, Element};
use crate::weights::FloatElement;
use crate::{Device, EmulatorOptions, Tensor};

const H100: Limits = Limits {
    compute_capability: (9, 0),
    multiprocessors: 132,
    max_shared_per_block: 232_448,
    shared_per_multiprocessor: 233_472,
    memory_bandwidth: 0,
    takes_fp8_mma: true,
};

/// Emulated H100s whose asynchronous operations complete late, at once, and at random.
fn devices() -> Vec<(String, Device)> {
    let modes =
        [(Completion::Latest, 0), (Completion::Eager, 0), (Completion::Random, 1), (Completion::Random, 2)];
    let options = |completion, seed| EmulatorOptions {
        compute_capability: (9, 0),
        completion,
        seed,
        ..EmulatorOptions::default()
    };
    modes.map(|(mode, seed)| (format!("{mode:?} {seed}"), Device::emulator_with(options(mode, seed)))).into()
}

/// What the numbers are.
#[derive(Clone, Copy, PartialEq)]
enum Data {
    /// Small integers, of which every sum is exact.
    Integers,
    /// Numbers between -1 and 1.
    Reals,
}

/// One update: its rank, and how many rows of X share a row of codes (0: all).
#[derive(Clone, Copy)]
struct Part(usize, usize);

#[derive(Clone)]
struct Case {
    m: usize,
    k: usize,
    n: usize,
    parts: Vec<Part>,
    data: Data,
    /// Multiprocessors of the GPU that the launch is made for.
    multiprocessors: u32,
    activation: Activation,
}

impl Case {
    fn new(m: usize, k: usize, n: usize, rank: usize) -> Self {
        let parts = vec![Part(rank, 1)];
        Self { m, k, n, parts, data: Data::Integers, multiprocessors: 132, activation: Activation::NONE }
    }

    fn rank(&self) -> usize {
        self.parts.iter().map(|part| part.0).sum()
    }

    fn problem(&self, dtype: DType) -> Problem {
        Problem {
            m: self.m as u32,
            k: self.k as u32,
            n: self.n as u32,
            rank: self.rank() as u32,
            dtype,
            access: Access::Aligned,
            x_is_chunked: true,
            u_is_chunked: true,
            y_is_chunked: self.n.is_multiple_of(8),
            fits_registers: true,
        }
    }

    /// The launch with a tile.
    fn plan(&self, dtype: DType, tile: Tile, sharing: Sharing) -> Option<Choice> {
        plan(tile, sharing, &self.problem(dtype), &Limits { multiprocessors: self.multiprocessors, ..H100 })
    }
}

/// A sequence of numbers that looks random.
struct Numbers(u32);

impl Numbers {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }

    /// A matrix, of integers from -`most` to `most`, or of real numbers.
    fn matrix<T: FloatElement>(&mut self, elements: usize, data: Data, most: u32) -> Vec<T> {
        let mut one = || match data {
            Data::Integers => f64::from(self.next() % (2 * most + 1)) - f64::from(most),
            Data::Reals => f64::from(self.next()) / f64::from(1 << 23) - 1.0,
        };
        (0..elements).map(|_| T::round(one())).collect()
    }
}

/// A matrix on a device, in rows that start at multiples of 16 bytes with numbers between them that must not matter.
fn rows<T: FloatElement>(device: &Device, values: &[T], rows: usize, columns: usize) -> Tensor<T> {
    let pitch = columns.next_multiple_of(8) + 8;
    let mut all = vec![T::round(f64::NAN); rows * pitch];
    for (row, values) in all.chunks_mut(pitch).zip(values.chunks(columns)) {
        row[..columns].copy_from_slice(values);
    }
    Tensor::from_slice(device, &all, [rows, pitch]).unwrap().slice(1, 0..columns).unwrap()
}

/// Half the distance of neighbouring numbers of the type near `value`.
fn half_ulp<T: Element>(value: f64) -> f64 {
    let (relative, smallest) = match T::DTYPE {
        DType::F16 => (2f64.powi(-11), 2f64.powi(-25)),
        _ => (2f64.powi(-8), 2f64.powi(-134)),
    };
    (value.abs() * relative).max(smallest)
}

/// Runs a case in every mode, and compares every element: with integers exactly, else within the bound that follows from the
/// roundings. Gives the bits that all modes have in common.
fn check<T>(case: &Case, tile: Tile, sharing: Sharing)
where
    T: Kernels + FloatElement + Into<f64>,
{
    let &Case { m, k, n, data, .. } = case;
    let rank = case.rank();
    let choice = case.plan(T::DTYPE, tile, sharing).expect("the case has such a launch");
    let mut numbers = Numbers(1);
    let x: Vec<T> = numbers.matrix(m * k, data, 1);
    let w: Vec<T> = numbers.matrix(n * k, data, 1);
    let vt: Vec<T> = numbers.matrix(rank * k, data, 1);
    let u: Vec<T> = numbers.matrix(rank * n, data, 1);
    let bias: Vec<T> = numbers.matrix(n, data, 3);
    let scaling = |part: usize| [0.5, 1.0, -2.0, 0.25][part % 4];
    let codes: Vec<Vec<T>> = case
        .parts
        .iter()
        .map(|&Part(rank, shared)| {
            let rows = if shared == 0 { 1 } else { m.div_ceil(shared) };
            // Twice the integers, so that half of them is one.
            numbers.matrix::<T>(rows * rank, data, 1).iter().map(|&c| T::round(2.0 * c.into())).collect()
        })
        .collect();

    // What H' and Y have to be, and how far off they may be.
    let f = |value: T| -> f64 { value.into() };
    let u32ulp = 2f64.powi(-24);
    let sum_error = |length: usize| (length + 16) as f64 * 2.0 * u32ulp;
    let mut scaled = vec![(0.0, 0.0); m * rank];
    let mut first = 0;
    for (part, (&Part(own, shared), codes)) in case.parts.iter().zip(&codes).enumerate() {
        for row in 0..m {
            for r in 0..own {
                let (xs, vs) = (&x[row * k..][..k], &vt[(first + r) * k..][..k]);
                let (mut sum, mut size) = (0.0, 0.0);
                for (&a, &b) in xs.iter().zip(vs) {
                    sum += f(a) * f(b);
                    size += (f(a) * f(b)).abs();
                }
                let of = row.checked_div(shared).unwrap_or(0);
                let code = f(codes[of * own + r]) * scaling(part);
                let exact = sum * code;
                let error = (sum_error(k) * size + 3.0 * u32ulp * sum.abs()) * code.abs() * 1.001;
                scaled[row * rank + first + r] = (exact, error + half_ulp::<T>(exact.abs() + error));
            }
        }
        first += own;
    }
    let relu = case.activation == Activation::RELU;
    let gelu = case.activation == Activation::GELU_TANH;
    let expected: Vec<(f64, f64)> = (0..m * n)
        .map(|i| {
            let (row, column) = (i / n, i % n);
            let (mut sum, mut size, mut error) = (f(bias[column]), f(bias[column]).abs(), 0.0);
            for (&a, &b) in x[row * k..][..k].iter().zip(&w[column * k..][..k]) {
                sum += f(a) * f(b);
                size += (f(a) * f(b)).abs();
            }
            for r in 0..rank {
                let ((h, off), u) = (scaled[row * rank + r], f(u[r * n + column]));
                sum += h * u;
                size += (h * u).abs();
                error += off * u.abs();
            }
            error += sum_error(k + rank) * (size + error);
            if relu {
                sum = sum.max(0.0);
            }
            if gelu {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (sum + 0.044715 * sum.powi(3));
                error = 1.13 * error + 64.0 * u32ulp * sum.abs();
                sum *= 0.5 * (1.0 + inner.tanh());
            }
            (sum, error + half_ulp::<T>(sum.abs() + error))
        })
        .collect();

    let mut common: Option<Vec<f64>> = None;
    for (mode, device) in devices() {
        let (x, w) = (rows(&device, &x, m, k), rows(&device, &w, n, k));
        let (vt, u) = (rows(&device, &vt, rank, k), rows(&device, &u, rank, n));
        let bias = Tensor::from_slice(&device, &bias, [n]).unwrap();
        let codes: Vec<_> =
            codes.iter().map(|codes| Tensor::from_slice(&device, codes, [codes.len()]).unwrap()).collect();
        let mut y = Tensor::<T>::uninit(&device, [m, n]).unwrap();
        let mut of_kernel = Codes {
            codes: [codes[0].arg(); MAX_UPDATES],
            strides: [0; MAX_UPDATES],
            ends: [rank as u32; MAX_UPDATES],
            rows: [1; MAX_UPDATES],
            scaling: [0.0; MAX_UPDATES],
        };
        let mut end = 0;
        for (i, &Part(own, shared)) in case.parts.iter().enumerate() {
            end += own;
            of_kernel.codes[i] = codes[i].arg();
            of_kernel.strides[i] = own as u64;
            of_kernel.ends[i] = end as u32;
            of_kernel.rows[i] = if shared == 0 { m as u32 } else { shared as u32 };
            of_kernel.scaling[i] = scaling(i) as f32;
        }
        let epilogue =
            LinearEpilogue { bias: bias.arg(), activation: case.activation, ..LinearEpilogue::plain() };
        let y_arg = y.arg_mut();
        let operands = BoltOn {
            x: &x,
            w: Some(&w),
            vt: &vt,
            u: &u,
            y: &y,
            y_arg,
            codes: of_kernel,
            epilogue,
            m: m as u32,
            n: n as u32,
            k: k as u32,
        };
        // SAFETY: shapes and strides are as the launch asks, and the emulator checks every access.
        let result = unsafe { launch::<T>(&device, &device.default_stream(), choice, &operands) };
        result.unwrap_or_else(|error| panic!("{mode}, {choice:?}: {error}"));
        let y: Vec<f64> = y.to_vec().unwrap().into_iter().map(f).collect();
        for (i, (&value, &(sum, bound))) in y.iter().zip(&expected).enumerate() {
            let off = (value - sum).abs();
            let allowed = match data {
                Data::Integers if !gelu => (f(T::round(sum)) - sum).abs(),
                _ => bound,
            };
            assert!(
                off <= allowed,
                "{mode}, {choice:?}: row {}, column {}: {value} instead of {sum}, off by {off}, bound {allowed}",
                i / n,
                i % n
            );
        }
        match &common {
            None => common = Some(y),
            Some(common) => assert!(*common == y, "{mode} differs from late, {choice:?}"),
        }
    }
}

/// The tiles that exchange H, with their rows and columns.
const EXCHANGING: [(Tile, usize, usize); 2] =
    [(Tile::PingPong128x192, 128, 192), (Tile::Cooperative128x192, 128, 192)];

#[test]
fn integers_are_exact_where_each_tile_computes_its_own_h() {
    for tile in Tile::ALL {
        for rank in [1, 5, 8] {
            check::<bf16>(&Case::new(150, 136, 264, rank), tile, Sharing::Own);
        }
        check::<f16>(&Case::new(65, 40, 200, 3), tile, Sharing::Own);
    }
}

/// Sums of fewer steps than the rings have stages, of as many, and of more.
#[test]
fn few_rows_are_exact_for_sums_of_every_length() {
    for (k, m, n) in [(8, 1, 8), (120, 16, 64), (256, 17, 72), (520, 33, 130), (1160, 5, 61), (2000, 20, 40)]
    {
        check::<bf16>(&Case::new(m, k, n, 8), Tile::FewRows16x64, Sharing::Own);
        check::<f16>(&Case::new(m, k, n, 3), Tile::FewRows16x64, Sharing::Own);
    }
}

#[test]
fn integers_are_exact_where_tiles_exchange_h() {
    for (tile, _, columns) in EXCHANGING {
        for rank in [5usize, 9, 16, 17, 40] {
            let tiles = rank.div_ceil(8).max(2);
            check::<bf16>(&Case::new(140, 40, tiles * columns - 40, rank), tile, Sharing::Exchanged);
        }
    }
}

#[test]
fn integers_are_exact_with_ranks_of_several_rounds() {
    for tile in [Tile::PingPong128x192, Tile::Cooperative128x192] {
        check::<bf16>(&Case::new(130, 40, 9 * 192, 72), tile, Sharing::Exchanged);
        check::<f16>(&Case::new(40, 40, 16 * 192, 128), tile, Sharing::Exchanged);
    }
}

/// Each tile has rows of U and codes of its own, which come to where those of the consumer's tile before were.
#[test]
fn few_blocks_compute_many_tiles_with_their_own_h() {
    // Tiles of few rows have a block each, whatever the device has.
    for tile in Tile::ALL.into_iter().filter(|tile| *tile != Tile::FewRows16x64) {
        let case = Case { multiprocessors: 2, ..Case::new(780, 72, 520, 8) };
        check::<bf16>(&case, tile, Sharing::Own);
    }
}

/// Blocks work through many tiles, and some wait for others that have yet to come to theirs.
#[test]
fn few_blocks_exchange_h_without_waiting_for_ever() {
    for (tile, rows, columns) in EXCHANGING {
        for (multiprocessors, rank) in [(4, 16), (10, 33)] {
            let case = Case { multiprocessors, ..Case::new(4 * rows - 20, 40, 6 * columns - 8, rank) };
            check::<bf16>(&case, tile, Sharing::Exchanged);
        }
    }
}

#[test]
fn several_updates_have_codes_and_scalings_of_their_own() {
    let parts = vec![Part(3, 1), Part(8, 50), Part(1, 0), Part(6, 7)];
    for (tile, ..) in EXCHANGING {
        let case = Case { parts: parts.clone(), ..Case::new(150, 72, 576, 0) };
        check::<bf16>(&case, tile, Sharing::Exchanged);
    }
    for tile in Tile::ALL {
        let parts = (0..8).map(|i| Part(1, i)).collect();
        check::<f16>(&Case { parts, ..Case::new(150, 72, 384, 0) }, tile, Sharing::Own);
    }
}

#[test]
fn real_numbers_are_within_the_bound_of_the_roundings() {
    for tile in Tile::ALL {
        for (rank, sharing) in [(8, Sharing::Own), (12, Sharing::Exchanged)] {
            if tile.facts().is_own && sharing == Sharing::Exchanged {
                continue;
            }
            let case =
                Case { data: Data::Reals, activation: Activation::RELU, ..Case::new(150, 200, 384, rank) };
            check::<bf16>(&case, tile, sharing);
            check::<f16>(&case, tile, sharing);
        }
    }
}

#[test]
fn outputs_that_the_copy_engine_cannot_store_are_right() {
    let plain = Case::new(150, 72, 259, 7);
    check::<bf16>(&plain, Tile::FewRows16x64, Sharing::Own);
    let case = Case { data: Data::Reals, activation: Activation::GELU_TANH, ..plain };
    check::<f16>(&case, Tile::FewRows16x64, Sharing::Own);
}

/// A problem whose operands are all aligned.
fn problem(m: u32, k: u32, n: u32, rank: u32) -> Problem {
    Case::new(m as usize, k as usize, n as usize, rank as usize).problem(DType::Bf16)
}

#[test]
fn only_operands_that_the_copy_engine_reads_have_a_kernel_and_only_on_hopper() {
    let good = problem(4096, 768, 768, 8);
    assert!(choose(&good, &H100).is_some());
    for bad in [
        Problem { dtype: DType::F32, ..good },
        Problem { access: Access::Words, ..good },
        Problem { u_is_chunked: false, ..good },
        Problem { k: 0, ..good },
    ] {
        assert_eq!(choose(&bad, &H100), None, "{bad:?}");
    }
    for capability in [(8, 0), (10, 0)] {
        assert_eq!(choose(&good, &Limits { compute_capability: capability, ..H100 }), None);
    }
}

#[test]
fn each_tile_computes_its_own_h_where_it_is_narrow_and_the_tiles_are_few() {
    for (m, n) in [(128, 768), (4096, 768), (16_384, 768)] {
        let (choice, _) = choose(&problem(m, 768, n, 8), &H100).unwrap();
        assert_eq!(choice.sharing, Sharing::Own, "{m} x {n}");
    }
    // Where blocks have several tiles, by the kernel that knows no other way.
    let many = choose(&problem(16_384, 768, 768, 8), &H100).unwrap().0;
    assert_eq!((many.tile, many.blocks, many.height), (Tile::Own128x128, 132, 1));
    for rank in [16, 64, 128] {
        let (choice, _) = choose(&problem(16_384, 4096, 4096, rank), &H100).unwrap();
        assert_eq!(choice.sharing, Sharing::Exchanged, "rank {rank}");
    }
    assert_eq!(choose(&problem(128, 768, 768, 8), &H100).unwrap().0.tile, Tile::FewRows16x64);
    assert_ne!(choose(&problem(16_384, 4096, 4096, 64), &H100).unwrap().0.tile, Tile::FewRows16x64);
}

#[test]
fn outputs_that_the_copy_engine_does_not_store_have_the_tile_for_few_rows_or_none() {
    let good = problem(16_384, 4096, 4096, 8);
    for other in [
        Problem { fits_registers: false, ..good },
        Problem { y_is_chunked: false, ..good },
        Problem { n: 4090, ..good },
    ] {
        assert_eq!(choose(&other, &H100).unwrap().0.tile, Tile::FewRows16x64, "{other:?}");
        assert_eq!(choose(&Problem { rank: 9, ..other }, &H100), None, "{other:?}");
    }
}

/// The rules that keep blocks from waiting for ever.
#[test]
fn no_cluster_computes_two_chunks_of_the_same_rows() {
    for multiprocessors in [2, 7, 20, 114, 132] {
        let limits = Limits { multiprocessors, ..H100 };
        for (m, n, rank) in
            [(1, 1024, 64), (300, 512, 20), (5000, 4096, 128), (16_384, 768, 16), (100_000, 2048, 40)]
        {
            for choice in candidates(&problem(m, 512, n, rank), &limits) {
                let facts = choice.tile.facts();
                assert!(choice.height > 0);
                assert!(choice.tile == Tile::FewRows16x64 || choice.blocks <= multiprocessors, "{choice:?}");
                assert!(choice.blocks.is_multiple_of(facts.cluster), "{choice:?}");
                if choice.sharing == Sharing::Exchanged {
                    let chunks = rank.div_ceil(8);
                    assert!(choice.height * chunks <= choice.blocks / facts.cluster, "{choice:?}");
                    assert!(chunks <= n.div_ceil(facts.columns), "{choice:?}");
                }
            }
        }
    }
}

#[test]
fn every_choice_has_its_kernel() {
    for tile in Tile::ALL {
        let choice = Choice { blocks: 1, tile, sharing: Sharing::Own, height: 1 };
        assert!(kernel::<f16>(choice).starts_with("linear_update_hopper_f16_"));
        assert!(kernel::<bf16>(choice).starts_with("linear_update_hopper_bf16_"));
        assert!(<f32 as Kernels>::instance(tile).is_none());
    }
}

/// What a launch with operands of zeros says, with W or without.
fn message<T: Kernels + FloatElement>(tile: Tile, with_w: bool) -> String {
    let device = Device::emulator();
    let zeros = |rows, columns| Tensor::<T>::zeros(&device, [rows, columns]).unwrap();
    let (x, w, vt, u, mut y) = (zeros(4, 8), zeros(8, 8), zeros(8, 8), zeros(8, 8), zeros(4, 8));
    let y_arg = y.arg_mut();
    let codes = Codes {
        codes: [x.arg(); MAX_UPDATES],
        strides: [0; MAX_UPDATES],
        ends: [8; MAX_UPDATES],
        rows: [4; MAX_UPDATES],
        scaling: [0.0; MAX_UPDATES],
    };
    let w = with_w.then_some(&w);
    let epilogue = LinearEpilogue::plain();
    let operands = BoltOn { x: &x, w, vt: &vt, u: &u, y: &y, y_arg, codes, epilogue, m: 4, n: 8, k: 8 };
    let choice = Choice { blocks: 1, tile, sharing: Sharing::Own, height: 1 };
    // SAFETY: it is refused before anything is launched.
    let result = unsafe { launch::<T>(&device, &device.default_stream(), choice, &operands) };
    result.expect_err("nothing to launch").to_string()
}

#[test]
fn a_launch_says_which_operand_it_lacks_or_has_no_kernel_for() {
    let missing =
        "linear_with_update: w is none, expected a matrix, which the kernels for Hopper multiply X with";
    for tile in Tile::ALL {
        assert_eq!(message::<bf16>(tile, false), missing);
        let text = message::<f32>(tile, true);
        let start = "linear_with_update: `x` has elements of type f32, expected";
        assert!(text.starts_with(start) && text.ends_with("f16 or bf16"), "{text}");
    }
}
