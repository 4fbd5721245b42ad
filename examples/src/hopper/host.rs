//! The launches of the eight steps, and what they are checked against.

use half::bf16;
use warpsmith::tensor::{Swizzle, TensorMapOptions};
use warpsmith::{Error, KernelFile, KernelModule, Result, Tensor};
use warpsmith_dsl::launch::{Kernel, TensorMap};
use warpsmith_dsl::slice::GlobalMatrixMut;

use super::first::{copied, step_1};
use super::{Bf16, RING, specialised};

const KERNELS: KernelFile = warpsmith::include_kernels!("hopper");

/// How many steps there are.
pub const STEPS: usize = 8;

type Wide = [f32; 128];
type Args = (TensorMap, TensorMap, GlobalMatrixMut<Bf16>, u32);

/// The kernels, loaded on a device.
pub struct Ladder(KernelModule);

impl Ladder {
    /// Loads them.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedDevice`] unless the device is of compute capability 9.0.
    pub fn new(device: &warpsmith::Device) -> Result<Self> {
        Ok(Self(device.load_kernels(&KERNELS)?))
    }

    /// `Y = X Wᵀ` by the step of this number, from 1: `x` [M, K], `w` [N, K], `y` [M, N], K a multiple of 8.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the shapes do not fit, [`Error::TensorMap`] if the copy engine cannot read them, those of the launch.
    pub fn run(&self, step: usize, x: &Tensor<bf16>, w: &Tensor<bf16>, y: &mut Tensor<bf16>) -> Result<()> {
        let (&[m, k], &[n, of_w]) = (x.shape(), w.shape()) else {
            return Err(shape(x, "a matrix, as `w`"));
        };
        if of_w != k || y.shape() != [m, n] || k == 0 {
            return Err(shape(x, "as many columns as `w`, at least one, and the rows of `y`"));
        }
        let blocks = |rows: usize, columns: usize| [n.div_ceil(columns) as u32, m.div_ceil(rows) as u32, 1];
        let tiles = |rows: usize, columns: usize| (m.div_ceil(rows) * n.div_ceil(columns)) as u32;
        let multiprocessors = x.device().properties().multiprocessors;
        match step {
            1 => self.0.kernel::<step_1>()?.run(&x.home_stream(), blocks(64, 64), (x, w, y)),
            2 => self.launch::<copied<1>>(blocks(64, 64), [64, 64], x, w, y),
            3 => self.launch::<copied<RING>>(blocks(64, 64), [64, 64], x, w, y),
            4 => {
                let grid = [tiles(64, 128), 1, 1];
                self.launch::<specialised<[f32; 64], 1, 4, 1, 0, false>>(grid, [64, 128], x, w, y)
            }
            5 => {
                let grid = [tiles(128, 256), 1, 1];
                self.launch::<specialised<Wide, 2, 4, 1, 0, false>>(grid, [128, 256], x, w, y)
            }
            6 => {
                let grid = [tiles(128, 256), 1, 1];
                self.launch::<specialised<Wide, 2, 4, 1, 1, false>>(grid, [128, 256], x, w, y)
            }
            7 => {
                let grid = [2 * tiles(256, 256), 1, 1];
                self.launch::<specialised<Wide, 2, 4, 2, 1, false>>(grid, [128, 128], x, w, y)
            }
            _ => {
                let grid = [2 * tiles(256, 256).min(multiprocessors / 2).max(1), 1, 1];
                self.launch::<specialised<Wide, 2, 4, 2, 1, true>>(grid, [128, 128], x, w, y)
            }
        }
    }

    fn launch<K: Kernel<Args = Args>>(
        &self,
        grid: [u32; 3],
        [box_x, box_w]: [usize; 2],
        x: &Tensor<bf16>,
        w: &Tensor<bf16>,
        y: &mut Tensor<bf16>,
    ) -> Result<()> {
        let options = TensorMapOptions { swizzle: Swizzle::B128, ..TensorMapOptions::default() };
        let maps = [x.tensor_map([box_x, 64], &options)?, w.tensor_map([box_w, 64], &options)?];
        let (rows, columns) = (y.shape()[0] as u32, y.shape()[1] as u32);
        if y.strides()[1] != 1 || y.shares_memory(x) || y.shares_memory(w) {
            return Err(shape(y, "rows of neighbours, in memory of its own"));
        }
        // SAFETY: these are y's elements, in memory that neither x nor w has, and `with_operands` orders the work with their other uses.
        let out = unsafe { GlobalMatrixMut::new(y.arg_mut(), rows, columns, y.strides()[0] as u64) };
        let (stream, kernel) = (x.home_stream(), self.0.kernel::<K>()?);
        let depth = x.shape()[1] as u32;
        // SAFETY: the maps and y are of these tensors, whose shapes and boxes fit; `with_operands` orders the work with
        // their other uses.
        stream.with_operands(&[x, w, y], || unsafe {
            kernel.launch(&stream, grid, (maps[0], maps[1], out, depth))
        })
    }
}

fn shape(x: &Tensor<bf16>, expected: &str) -> Error {
    let actual = x.shape().to_vec();
    Error::Shape { operation: "a product on Hopper", operand: "x", expected: expected.into(), actual }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{U, assert_within, numbers};

    #[test]
    fn every_step_is_within_the_bound_for_any_size() -> Result<()> {
        let device: warpsmith::Device = "emulator:9.0".parse()?;
        let ladder = Ladder::new(&device)?;
        for [m, n, k] in [[1, 1, 8], [64, 128, 64], [131, 67, 136], [300, 270, 72], [70, 530, 328]] {
            let halves =
                |seed, count| numbers(seed, count).into_iter().map(bf16::from_f32).collect::<Vec<_>>();
            let (x, w) = (halves(14, m * k), halves(15, n * k));
            let (of_x, of_w) =
                (Tensor::from_slice(&device, &x, [m, k])?, Tensor::from_slice(&device, &w, [n, k])?);
            let exact: Vec<(f64, f64)> = (0..m * n)
                .map(|at| {
                    let products = (0..k).map(|i| x[at / n * k + i].to_f64() * w[at % n * k + i].to_f64());
                    products.fold((0.0, 0.0), |(sum, terms), x| (sum + x, terms + x.abs()))
                })
                .collect();
            // The last one is step 1 again, on another grid.
            for step in 1..=STEPS + 1 {
                let mut y = Tensor::zeros(&device, [m, n])?;
                if step <= STEPS {
                    ladder.run(step, &of_x, &of_w, &mut y)?;
                } else {
                    let args = (&of_x, &of_w, &mut y);
                    ladder.0.kernel::<step_1>()?.run(&device.default_stream(), [1, 2, 3], args)?;
                }
                for (at, (actual, &(exact, terms))) in y.to_vec()?.into_iter().zip(&exact).enumerate() {
                    // Products of bf16 are exact; each goes through at most k additions, which may truncate. Then it is
                    // rounded to bf16.
                    let of_sum = 1.01 * 2.0 * (k + 1) as f64 * U * terms;
                    let bound = of_sum + (exact.abs() + of_sum) / 256.0;
                    assert_within(actual.to_f32(), exact, bound, (step, at / n, at % n));
                }
            }
        }
        Ok(())
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() -> Result<()> {
        let device: warpsmith::Device = "emulator:9.0".parse()?;
        let (x, mut y) = (Tensor::zeros(&device, [8, 16])?, Tensor::zeros(&device, [8, 8])?);
        let error = Ladder::new(&device)?.run(4, &x, &Tensor::zeros(&device, [8, 8])?, &mut y).unwrap_err();
        assert!(error.to_string().contains("`x` has shape [8, 16]"), "{error}");
        Ok(())
    }
}
