//! A product with an epilogue of one's own: `y[r, c] = softplus(scales[r] · (X Wᵀ)[r, c])`, by the library's main loops for
//! `mma.sync`.
//!
//! The kernel is the library's: load, multiply, transform, store. What is one's own is `ScaledSoftplus`.

use warpsmith_dsl::epilogue::Epilogue;
use warpsmith_dsl::gemm::mma_sync::MmaTile;
use warpsmith_dsl::gemm::{Rule, TileShape, again};
use warpsmith_dsl::layout::{self, Coord};
use warpsmith_dsl::prelude::*;
use warpsmith_dsl::ptx;
use warpsmith_dsl::tile::{Access, Aligned, Operand, Output, Words};

/// `softplus(scale of the row · sum)`
#[derive(Clone, Copy)]
struct ScaledSoftplus {
    scales: GlobalSlice<f32>,
}

impl Epilogue for ScaledSoftplus {
    type Column = ();
    type Row = f32;

    #[inline(always)]
    unsafe fn column(&self, _: u32) {}

    #[inline(always)]
    unsafe fn row(&self, row: u32) -> f32 {
        self.scales.get(row as usize).unwrap_or(0.0)
    }

    #[inline(always)]
    unsafe fn apply<const N: usize>(&self, _: Coord, scale: f32, _: [(); N], sums: [f32; N]) -> [f32; N] {
        sums.map(|sum| softplus(scale * sum))
    }
}

/// `ln(1 + eˣ)`, written so that nothing overflows.
#[inline(always)]
fn softplus(x: f32) -> f32 {
    x.max(0.0) + math::ln(1.0 + math::exp(-x.abs()))
}

/// The tiles that launches choose from.
pub type Tile128x128 = MmaTile<4, 8, 2, 2, 4, 64>;
/// For smaller results.
pub type Tile64x64 = MmaTile<2, 4, 2, 2, 4, 128>;
/// For few rows.
pub type Tile16x64 = MmaTile<1, 2, 1, 4, 6, 128>;

/// `y = softplus(scales · X Wᵀ)` on a block for each tile of y; further blocks do nothing. Rows of X and W start at multiples
/// of 4 bytes, for [`Aligned`] 16.
#[kernel(
    block = [S::THREADS, 1, 1],
    shared = S::SHARED_BYTES,
    instances = [
        fused_128x128 = <Tile128x128, Aligned>,
        fused_64x64 = <Tile64x64, Words>,
        fused_16x64 = <Tile16x64, Words>,
    ],
)]
pub fn fused<S: TileShape, A: Access>(
    x: GlobalMatrix<F16>,
    w: GlobalMatrix<F16>,
    y: GlobalMatrixMut<f32>,
    scales: GlobalSlice<f32>,
) {
    let operand = |x: GlobalMatrix<F16>| Operand {
        base: x.base(),
        stride: x.stride() as u64,
        rows: x.rows() as u32,
        k: x.columns() as u32,
    };
    let (of_x, of_w) = (operand(x), operand(w));
    let of_y = Output {
        base: y.base(),
        stride: y.stride() as u64,
        rows: y.rows() as u32,
        columns: y.columns() as u32,
    };
    let aligned = Words::are_aligned(&of_x, &of_w);
    let words = [x, w].map(|x| x.base().address() as usize | (2 * x.stride()));
    let fits = x.columns() == w.columns() && x.rows() == y.rows() && w.rows() == y.columns();
    let tiles = [of_y.rows.div_ceil(S::BLOCK_M), of_y.columns.div_ceil(S::BLOCK_N)];
    let count = tiles[0] as usize * tiles[1] as usize;
    // A row has less than 2³¹ bytes, and tiles have numbers of 32 bits.
    let is_small = x.columns() < 1 << 30 && count <= u32::MAX as usize;
    if !fits || !is_small || (A::IS_ALIGNED && !aligned) || !(words[0] | words[1]).is_multiple_of(4) {
        // SAFETY: no precondition.
        unsafe { ptx::trap() }
    }
    let index = block::index_in_grid();
    if index >= count {
        return;
    }
    let tile = layout::raster(index as u32, tiles[0], tiles[1]);
    // SAFETY: the whole block is here, with the threads and the shared memory that the tile asks for; sizes and alignment
    // were checked; each tile is one block's.
    unsafe {
        let sums = match aligned {
            true => S::multiply::<F16, Aligned>(of_x, of_w, tile),
            false => S::multiply::<F16, A>(of_x, of_w, tile),
        };
        let again = again::of_rows::<F16, <S::Rule as Rule>::Of<F16>>(move || [of_x, of_w]);
        S::store(sums, &again, ScaledSoftplus { scales }, of_y, tile);
    }
}

/// The launch: any sizes, the tile by the number of waves of blocks.
#[cfg(not(target_arch = "nvptx64"))]
pub mod host {
    use half::f16;
    use warpsmith::{Error, KernelFile, Result, Tensor};
    use warpsmith_dsl::launch::SafeKernel;
    use warpsmith_dsl::slice::{GlobalMatrix, GlobalMatrixMut, GlobalSlice};

    use super::{Aligned, F16, Tile16x64, Tile64x64, Tile128x128, TileShape, Words, fused};

    type Args = (GlobalMatrix<F16>, GlobalMatrix<F16>, GlobalMatrixMut<f32>, GlobalSlice<f32>);

    /// `softplus(scales · X Wᵀ)` of `x` [M, K], `w` [N, K] and `scales` [M].
    ///
    /// # Errors
    ///
    /// Those of the launch; `Error::Shape` for sizes that do not fit.
    pub fn run(x: &Tensor<f16>, w: &Tensor<f16>, scales: &Tensor<f32>) -> Result<Tensor<f32>> {
        let operation = "softplus of a product";
        let ([m, k], [n, of_w]) = (sizes(operation, "x", x)?, sizes(operation, "w", w)?);
        let refuse = |operand, expected: String, actual: &[usize]| {
            Err(Error::Shape { operation, operand, expected, actual: actual.to_vec() })
        };
        if of_w != k {
            return refuse("w", format!("[{n}, {k}], with as many columns as `x`"), w.shape());
        }
        if scales.shape() != [m] {
            return refuse("scales", format!("[{m}], one for each row of `x`"), scales.shape());
        }
        let (x, w) = (with_aligned_rows(x)?, with_aligned_rows(w)?);
        let mut y = Tensor::zeros(x.device(), [m, n])?;
        let multiprocessors = x.device().properties().multiprocessors as usize;
        // The time of a tile is about its area, and a part for its rows and columns, which are loaded.
        let cost = |[rows, columns]: [usize; 2]| {
            let blocks = m.div_ceil(rows) * n.div_ceil(columns);
            blocks.div_ceil(multiprocessors) * (rows * columns + 32 * (rows + columns))
        };
        let best = [[128, 128], [64, 64], [16, 64]].into_iter().min_by_key(|&tile| cost(tile));
        match best {
            Some([128, _]) => launch::<fused<Tile128x128, Aligned>, Tile128x128>(&x, &w, &mut y, scales)?,
            Some([64, _]) => launch::<fused<Tile64x64, Words>, Tile64x64>(&x, &w, &mut y, scales)?,
            _ => launch::<fused<Tile16x64, Words>, Tile16x64>(&x, &w, &mut y, scales)?,
        }
        Ok(y)
    }

    fn sizes(operation: &'static str, operand: &'static str, x: &Tensor<f16>) -> Result<[usize; 2]> {
        let expected = || "a matrix".to_owned();
        let shape = || x.shape().to_vec();
        x.shape().try_into().map_err(|_| Error::Shape {
            operation,
            operand,
            expected: expected(),
            actual: shape(),
        })
    }

    /// The same matrix, in memory whose rows start at multiples of 16 bytes.
    ///
    /// # Errors
    ///
    /// `Error::Shape` for a tensor that is no matrix, those of the copy.
    pub fn with_aligned_rows(x: &Tensor<f16>) -> Result<Tensor<f16>> {
        let [rows, columns] = sizes("with_aligned_rows", "x", x)?;
        let is_aligned =
            x.strides()[1] == 1 && x.strides()[0].is_multiple_of(8) && x.device_address().is_multiple_of(16);
        if is_aligned {
            return Ok(x.clone());
        }
        let mut copy =
            Tensor::zeros(x.device(), [rows, columns.next_multiple_of(8)])?.slice(1, 0..columns)?;
        copy.copy_from(x)?;
        Ok(copy)
    }

    const KERNELS: KernelFile = warpsmith::include_kernels!("fused");

    /// One tile's instance.
    ///
    /// # Errors
    ///
    /// Those of loading and of launching.
    pub fn launch<K: SafeKernel<Args = Args>, S: TileShape>(
        x: &Tensor<f16>,
        w: &Tensor<f16>,
        y: &mut Tensor<f32>,
        scales: &Tensor<f32>,
    ) -> Result<()> {
        let kernel = x.device().load_kernels(&KERNELS)?.kernel::<K>()?;
        let [rows, columns] = [S::BLOCK_M, S::BLOCK_N].map(|side| side as usize);
        let blocks = y.shape()[0].div_ceil(rows) * y.shape()[1].div_ceil(columns);
        let grid = [u32::try_from(blocks).unwrap_or(u32::MAX), 1, 1];
        kernel.run(&x.home_stream(), grid, (x, w, y, scales))
    }
}

#[cfg(test)]
mod tests {
    use half::f16;
    use warpsmith::{Device, Result, Tensor};

    use super::*;
    use crate::testing::{U, assert_within, numbers};

    fn check(
        sizes: [usize; 3],
        run: impl Fn(&Tensor<f16>, &Tensor<f16>, &Tensor<f32>) -> Result<Tensor<f32>>,
    ) -> Result<()> {
        let ([m, n, k], device) = (sizes, Device::emulator());
        let halves = |seed, count| numbers(seed, count).into_iter().map(f16::from_f32).collect::<Vec<_>>();
        let (x, w, scales) = (halves(11, m * k), halves(12, n * k), numbers(13, m));
        let tensor = |x: &[f16], rows| Tensor::from_slice(&device, x, [rows, k]);
        let y = run(&tensor(&x, m)?, &tensor(&w, n)?, &Tensor::from_slice(&device, &scales, [m])?)?;
        for (at, actual) in y.to_vec()?.into_iter().enumerate() {
            let (row, column, scale) = (at / n, at % n, f64::from(scales[at / n]));
            let products = (0..k).map(|i| x[row * k + i].to_f64() * w[column * k + i].to_f64());
            let (sum, terms) = products.fold((0.0, 0.0), |(sum, terms), x| (sum + x, terms + x.abs()));
            let exact = (scale * sum).max(0.0) + (-(scale * sum).abs()).exp().ln_1p();
            // The sum's error and the scale's rounding pass through softplus, whose slope is at most 1. Of its own: the
            // exponential's 8 u and the addition's, halved by the logarithm's slope; the logarithm's 5 u, of ln 2 at most;
            // and the last rounding.
            let of_sum = 2.0 * (k + 1) as f64 * terms + terms;
            let bound = 1.01 * U * (scale.abs() * of_sum + 4.5 + 3.5 + exact);
            assert_within(actual, exact, bound, (row, column));
        }
        Ok(())
    }

    #[test]
    fn products_of_any_size_are_within_the_bound() -> Result<()> {
        for sizes in [[1, 1, 1], [16, 64, 64], [17, 5, 33], [131, 67, 72], [200, 300, 19]] {
            check(sizes, host::run)?;
        }
        Ok(())
    }

    #[test]
    fn operands_that_do_not_fit_are_refused_by_name() -> Result<()> {
        let device = Device::emulator();
        let x = Tensor::<f16>::zeros(&device, [3, 5])?;
        let run = |w: [usize; 2], scales: usize| {
            host::run(&x, &Tensor::zeros(&device, w)?, &Tensor::zeros(&device, [scales])?).map(drop)
        };
        let error = run([2, 4], 3).unwrap_err().to_string();
        assert!(error.contains("`w` has shape [2, 4], expected [2, 5]"), "{error}");
        let error = run([2, 5], 2).unwrap_err().to_string();
        assert!(error.contains("`scales` has shape [2], expected [3]"), "{error}");
        for shape in [&[][..], &[6], &[1, 2, 3]] {
            let error = host::with_aligned_rows(&Tensor::zeros(&device, shape)?).unwrap_err().to_string();
            assert!(error.contains("`x` has shape") && error.contains("a matrix"), "{error}");
        }
        Ok(())
    }

    #[test]
    fn blocks_along_any_axis_have_a_tile_each() -> Result<()> {
        let kernel = |device: &Device| {
            device.load_kernels(&warpsmith::include_kernels!("fused"))?.kernel::<fused<Tile16x64, Words>>()
        };
        // Two times two tiles, and more blocks than those.
        for grid in [[4, 1, 1], [1, 4, 1], [2, 1, 2], [3, 3, 1]] {
            check([17, 70, 8], |x, w, scales| {
                let mut y = Tensor::zeros(x.device(), [17, 70])?;
                kernel(x.device())?.run(&x.home_stream(), grid, (x, w, &mut y, scales))?;
                Ok(y)
            })?;
        }
        Ok(())
    }

    #[test]
    fn every_tile_computes_the_same_function() -> Result<()> {
        fn by<K, S: TileShape>(x: &Tensor<f16>, w: &Tensor<f16>, scales: &Tensor<f32>) -> Result<Tensor<f32>>
        where
            K: warpsmith_dsl::launch::SafeKernel<
                    Args = (GlobalMatrix<F16>, GlobalMatrix<F16>, GlobalMatrixMut<f32>, GlobalSlice<f32>),
                >,
        {
            let mut y = Tensor::zeros(x.device(), [x.shape()[0], w.shape()[0]])?;
            let (x, w) = (host::with_aligned_rows(x)?, host::with_aligned_rows(w)?);
            host::launch::<K, S>(&x, &w, &mut y, scales)?;
            Ok(y)
        }
        let sizes = [131, 67, 75];
        check(sizes, by::<fused<Tile128x128, Aligned>, Tile128x128>)?;
        check(sizes, by::<fused<Tile64x64, Words>, Tile64x64>)?;
        check(sizes, by::<fused<Tile16x64, Words>, Tile16x64>)
    }
}
