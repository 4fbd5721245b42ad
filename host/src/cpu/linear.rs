//! `Y = act(alpha · r · c · X Wᵀ + b + beta · R)` on the CPU.
//!
//! W is packed in slabs of a few megabytes that all threads share; the output is cut into tiles, each the work of one
//! thread, so a result does not depend on how many threads there are.

use ndarray::{ArrayView1, ArrayView2, ArrayViewMut2, Axis, s};
use rayon::prelude::*;

use super::gemm::{K_BLOCK, MicroKernel, pack};
use super::number::{Accumulator, FromAccumulator, Operand};
use super::update::LowRank;
use crate::cpu::Activation;
use crate::device::cpu::out_of_memory;
use crate::error::{Error, Result};
use crate::memory::zeros;

/// The operation's name in errors.
const OPERATION: &str = "cpu::linear";
/// Rows of an output tile: a multiple of every micro-kernel's rows, and its packed rows fit the second-level cache.
const TILE_ROWS: usize = 96;
/// Columns of an output tile: its sums fit the second-level cache too.
const TILE_COLUMNS: usize = 256;
/// What a packed slab of W may take, in bytes, before W is worked through in several slabs.
const SLAB_BYTES: usize = 32 << 20;

/// What [`linear`] does to the product, and what it gives beside the result.
///
/// With the sum s of an element's products, `z = alpha · row_scale · column_scale · s + bias + beta · residual`, and the result is the
/// activation's value at z.
#[derive(Debug)]
pub struct LinearTerms<'a, B, R, O> {
    /// Multiplies the product.
    pub alpha: f32,
    /// `[M]`: multiplies the product's rows.
    pub row_scale: Option<ArrayView1<'a, f32>>,
    /// `[N]`: multiplies the product's columns.
    pub column_scale: Option<ArrayView1<'a, f32>>,
    /// `[N]`: is added to every row.
    pub bias: Option<ArrayView1<'a, B>>,
    /// What the residual is multiplied with; 1 by default.
    pub beta: f32,
    /// `[M, N]`: is added, `beta` times.
    pub residual: Option<ArrayView2<'a, R>>,
    /// Applied last, before rounding.
    pub activation: Activation,
    /// `[M, ⌈N / 32⌉]`: takes whether z > 0, column n as bit n mod 32 of word ⌊n / 32⌋; bits past N become 0.
    pub mask: Option<ArrayViewMut2<'a, u32>>,
    /// `[M, N]`: takes z.
    pub preactivation: Option<ArrayViewMut2<'a, O>>,
}

impl<B, R, O> Default for LinearTerms<'_, B, R, O> {
    fn default() -> Self {
        Self {
            alpha: 1.0,
            row_scale: None,
            column_scale: None,
            bias: None,
            beta: 1.0,
            residual: None,
            activation: Activation::None,
            mask: None,
            preactivation: None,
        }
    }
}

/// Computes `y = act(z)` as [`LinearTerms`] says, adding up in `A` and rounding once to `O`.
///
/// `x` is `[M, K]`, `w` `[N, K]`, `y` `[M, N]`; any strides, any sizes. With K = 0 the product is zero.
///
/// # Errors
///
/// [`Error::Shape`] if the shapes do not fit together, [`Error::OutOfMemory`] if the host has too little memory to pack `w`.
pub fn linear<A, T, B, R, O>(
    x: ArrayView2<'_, T>,
    w: ArrayView2<'_, T>,
    terms: LinearTerms<'_, B, R, O>,
    y: ArrayViewMut2<'_, O>,
) -> Result<()>
where
    A: Accumulator,
    T: Operand,
    B: Operand,
    R: Operand,
    O: FromAccumulator<A>,
{
    linear_and::<A, T, B, R, O>(OPERATION, x, w, terms, None, y)
}

/// As [`linear`], of the sum of `x wᵀ` and the product `low_rank`, whose sizes fit; `operation` is its name in errors.
pub(super) fn linear_and<A, T, B, R, O>(
    operation: &'static str,
    x: ArrayView2<'_, T>,
    w: ArrayView2<'_, T>,
    terms: LinearTerms<'_, B, R, O>,
    low_rank: Option<&LowRank<A>>,
    mut y: ArrayViewMut2<'_, O>,
) -> Result<()>
where
    A: Accumulator,
    T: Operand,
    B: Operand,
    R: Operand,
    O: FromAccumulator<A>,
{
    let (n, k) = w.dim();
    let m = x.nrows();
    let LinearTerms { row_scale, column_scale, bias, residual, mut mask, mut preactivation, .. } = terms;
    expect_shape(operation, "x", x.shape(), &[m, k])?;
    expect_shape(operation, "y", y.shape(), &[m, n])?;
    row_scale.as_ref().map_or(Ok(()), |scale| expect_shape(operation, "row_scale", scale.shape(), &[m]))?;
    column_scale
        .as_ref()
        .map_or(Ok(()), |scale| expect_shape(operation, "column_scale", scale.shape(), &[n]))?;
    bias.as_ref().map_or(Ok(()), |bias| expect_shape(operation, "bias", bias.shape(), &[n]))?;
    residual
        .as_ref()
        .map_or(Ok(()), |residual| expect_shape(operation, "residual", residual.shape(), &[m, n]))?;
    mask.as_ref()
        .map_or(Ok(()), |mask| expect_shape(operation, "relu_mask", mask.shape(), &[m, n.div_ceil(32)]))?;
    preactivation
        .as_ref()
        .map_or(Ok(()), |z| expect_shape(operation, "preactivation", z.shape(), &[m, n]))?;
    if y.is_empty() {
        return Ok(());
    }
    let kernel = A::micro_kernel();
    // Whole words of a mask, so that no two tiles share one.
    let tile_columns = TILE_COLUMNS.next_multiple_of(kernel.nr).next_multiple_of(32);
    let slab = (SLAB_BYTES / k.max(1).saturating_mul(size_of::<A>()) / tile_columns).max(1) * tile_columns;
    let packed_columns = slab.min(n.next_multiple_of(kernel.nr));
    let mut packed_w = zeros::<A>(operation, packed_columns.saturating_mul(k))?;

    for slab_start in (0..n).step_by(slab) {
        let columns = slab_start..n.min(slab_start + slab);
        let w = w.slice(s![columns.clone(), ..]);
        let padded = w.nrows().next_multiple_of(kernel.nr);
        if k > 0 {
            let panels = &|block: usize, panel: usize, packed: &mut [A]| {
                let rows = panel * kernel.nr..w.nrows().min((panel + 1) * kernel.nr);
                pack(w.slice(s![rows, ..]), block * K_BLOCK, packed.len() / kernel.nr, kernel.nr, packed);
            };
            pack_all(&mut packed_w[..padded * k], padded, kernel.nr, panels);
        }
        let packed_w = &packed_w[..padded * k];
        let words = columns.start / 32..columns.end.div_ceil(32);
        let masks = mask.as_mut().map(|mask| mask.slice_mut(s![.., words]));
        let stored = preactivation.as_mut().map(|z| z.slice_mut(s![.., columns.clone()]));
        let tiles = tiles(operation, y.slice_mut(s![.., columns]), TILE_ROWS, tile_columns)?;
        let masks = tiles_if_any(operation, masks, tile_columns / 32, tiles.len())?;
        let stored = tiles_if_any(operation, stored, tile_columns, tiles.len())?;
        let of_tile: &TileWork<'_, A, O> = &|scratch, (((row, column, mut tile), mut mask), mut stored)| {
            let x = x.slice(s![row..row + tile.nrows(), ..]);
            let width = tile.ncols().next_multiple_of(kernel.nr);
            let sums = product(kernel, x, packed_w, padded, column..column + width, scratch);
            if let Some(mask) = &mut mask {
                mask.fill(0);
            }
            for (i, (mut y, sums)) in
                tile.rows_mut().into_iter().zip(sums.chunks_exact_mut(width)).enumerate()
            {
                let at = row + i;
                if let Some(low_rank) = low_rank {
                    low_rank.add_to(at, slab_start + column, n, sums);
                }
                let row_scale = row_scale.as_ref().map(|scale| A::from_f32(scale[at]));
                for (j, (y, &sum)) in y.iter_mut().zip(&*sums).enumerate() {
                    let to = slab_start + column + j;
                    let mut z = if terms.alpha == 1.0 { sum } else { sum * A::from_f32(terms.alpha) };
                    if let Some(scale) = row_scale {
                        z = z * scale;
                    }
                    if let Some(scale) = &column_scale {
                        z = z * A::from_f32(scale[to]);
                    }
                    if let Some(bias) = &bias {
                        z += A::from_f32(bias[to].to_f32());
                    }
                    if let Some(residual) = &residual {
                        z += A::from_f32(terms.beta) * A::from_f32(residual[[at, to]].to_f32());
                    }
                    if let Some(mask) = &mut mask
                        && z > A::zero()
                    {
                        mask[[i, j / 32]] |= 1 << (j % 32);
                    }
                    if let Some(stored) = &mut stored {
                        stored[[i, j]] = O::from_accumulator(z);
                    }
                    *y = O::from_accumulator(terms.activation.apply(z));
                }
            }
        };
        tiles.into_par_iter().zip(masks).zip(stored).for_each_init(Scratch::default, of_tile);
    }
    Ok(())
}

/// A tile of results with its row and its column, and those of a mask and of what is stored beside, if there are such.
type Tiles<'a, O> =
    (((usize, usize, ArrayViewMut2<'a, O>), Option<ArrayViewMut2<'a, u32>>), Option<ArrayViewMut2<'a, O>>);
/// What is done with a tile. A function behind a pointer: programs have what spreads the work once for each type of results, not for all operands' types.
type TileWork<'w, A, O> = dyn for<'a> Fn(&mut Scratch<A>, Tiles<'a, O>) + Sync + 'w;

/// Fills each block of `K_BLOCK` columns of `padded` rows, panel by panel of `width` rows: `pack` gets the numbers of both, and the place.
fn pack_all<A: Accumulator>(
    packed: &mut [A],
    padded: usize,
    width: usize,
    pack: &(dyn Fn(usize, usize, &mut [A]) + Sync),
) {
    packed.par_chunks_mut(K_BLOCK * padded).enumerate().for_each(|(block, packed)| {
        let depth = packed.len() / padded;
        let panels = packed.par_chunks_mut(depth * width).enumerate();
        panels.for_each(|(panel, packed)| pack(block, panel, packed));
    });
}

fn expect_shape(
    operation: &'static str,
    operand: &'static str,
    actual: &[usize],
    expected: &[usize],
) -> Result<()> {
    if actual == expected {
        return Ok(());
    }
    let expected = format!("{expected:?}, as the other operands give");
    Err(Error::Shape { operation, operand, expected, actual: actual.to_vec() })
}

/// Cuts `y` into disjoint tiles of at most `rows` × `columns`, each with the row and column it starts at.
fn tiles<'y, O>(
    operation: &'static str,
    y: ArrayViewMut2<'y, O>,
    rows: usize,
    columns: usize,
) -> Result<Vec<(usize, usize, ArrayViewMut2<'y, O>)>> {
    let count = y.nrows().div_ceil(rows) * y.ncols().div_ceil(columns);
    let bytes = count.saturating_mul(size_of::<(usize, usize, ArrayViewMut2<'_, O>)>());
    let mut tiles = Vec::new();
    tiles.try_reserve_exact(count).map_err(|_| out_of_memory(operation, bytes))?;
    let (mut below, mut row) = (y, 0);
    while below.nrows() > 0 {
        let height = rows.min(below.nrows());
        let (mut right, rest) = below.split_at(Axis(0), height);
        let mut column = 0;
        while right.ncols() > 0 {
            let width = columns.min(right.ncols());
            let (tile, rest) = right.split_at(Axis(1), width);
            tiles.push((row, column, tile));
            right = rest;
            column += width;
        }
        below = rest;
        row += height;
    }
    Ok(tiles)
}

/// The tiles of `view` as [`tiles`] cuts them; without a view, nothing for each of `count` tiles.
fn tiles_if_any<'y, O>(
    operation: &'static str,
    view: Option<ArrayViewMut2<'y, O>>,
    columns: usize,
    count: usize,
) -> Result<Vec<Option<ArrayViewMut2<'y, O>>>> {
    Ok(match view {
        Some(view) => {
            tiles(operation, view, TILE_ROWS, columns)?.into_iter().map(|(_, _, tile)| Some(tile)).collect()
        }
        None => std::iter::repeat_with(|| None).take(count).collect(),
    })
}

/// A thread's buffers, kept from tile to tile.
#[derive(Default)]
struct Scratch<A> {
    packed_x: Vec<A>,
    sums: Vec<A>,
}

/// The product of the rows `x` with the slab's `columns`, row-major in `scratch`.
///
/// The slab is packed by blocks of K, each of them `padded` columns wide; `columns` starts and ends on panels.
fn product<'a, T: Operand, A: Accumulator>(
    kernel: MicroKernel<A>,
    x: ArrayView2<'_, T>,
    packed_w: &[A],
    padded: usize,
    columns: core::ops::Range<usize>,
    scratch: &'a mut Scratch<A>,
) -> &'a mut [A] {
    let (rows, k) = x.dim();
    let (rows, width) = (rows.next_multiple_of(kernel.mr), columns.len());
    scratch.sums.clear();
    scratch.sums.resize(rows * width, A::zero());
    scratch.packed_x.resize(rows * K_BLOCK.min(k), A::zero());
    for start in (0..k).step_by(K_BLOCK) {
        let depth = K_BLOCK.min(k - start);
        let packed_x = &mut scratch.packed_x[..rows * depth];
        pack(x, start, depth, kernel.mr, packed_x);
        let packed_w = &packed_w[start * padded..][columns.start * depth..columns.end * depth];
        for (column, packed_w) in packed_w.chunks_exact(depth * kernel.nr).enumerate() {
            for (row, packed_x) in packed_x.chunks_exact(depth * kernel.mr).enumerate() {
                let sums = &mut scratch.sums[row * kernel.mr * width + column * kernel.nr..];
                kernel.run(packed_x, packed_w, sums, width);
            }
        }
    }
    &mut scratch.sums
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use ndarray::{Array1, Array2, ArrayView2, s};

    use super::{LinearTerms, linear};
    use crate::cpu::Activation;
    use crate::cpu::Operand;
    use crate::error::Error;

    fn pattern(rows: usize, columns: usize, seed: usize) -> Array2<f32> {
        Array2::from_shape_fn((rows, columns), |(i, j)| ((i * 31 + j * 17 + seed) % 19) as f32 - 9.0)
    }

    fn naive<T: Operand>(x: ArrayView2<'_, T>, w: ArrayView2<'_, T>) -> Array2<f64> {
        Array2::from_shape_fn((x.nrows(), w.nrows()), |(i, j)| {
            x.row(i).iter().zip(w.row(j)).map(|(a, b)| f64::from(a.to_f32()) * f64::from(b.to_f32())).sum()
        })
    }

    fn check_exact<T: Operand>(m: usize, n: usize, k: usize, convert: fn(f32) -> T) {
        let (x, w) = (pattern(m, k, 1).mapv(convert), pattern(n, k, 2).mapv(convert));
        let mut y = Array2::from_elem((m, n), f32::NAN);
        linear::<f32, T, T, f32, _>(x.view(), w.view(), LinearTerms::default(), y.view_mut())
            .expect("the shapes fit");
        assert_eq!(y.mapv(f64::from), naive(x.view(), w.view()), "{m}x{n}x{k} in f32");
        let mut y = Array2::from_elem((m, n), f64::NAN);
        linear::<f64, T, T, f32, _>(x.view(), w.view(), LinearTerms::default(), y.view_mut())
            .expect("the shapes fit");
        assert_eq!(y, naive(x.view(), w.view()), "{m}x{n}x{k} in f64");
    }

    #[test]
    fn integer_products_are_exact_at_every_edge() {
        for m in [0, 1, 2, 5, 6, 7, 13, 96, 97, 193] {
            for n in [0, 1, 3, 8, 16, 17, 33, 255, 257] {
                for k in [0, 1, 2, 31, 127, 128, 129, 260] {
                    check_exact(m, n, k, |v| v);
                }
            }
        }
        check_exact(97, 130, 257, f16::from_f32);
        check_exact(33, 300, 129, bf16::from_f32);
    }

    #[test]
    fn several_slabs_give_the_same_as_one() {
        // 2 x 4096 x 9000 elements: more than one slab at f64.
        check_exact(2, 1100, 9000, |v| v);
    }

    #[test]
    fn strided_and_reversed_views_are_read_and_written_in_place() {
        let (x, w) = (pattern(20, 60, 3), pattern(40, 60, 4));
        let (x, w) = (x.slice(s![1..;2, 5..;3]), w.slice(s![..;-2, ..19]));
        let mut y = Array2::from_elem((20, 41), -1.0f32);
        linear::<f32, _, f32, f32, f32>(x, w, LinearTerms::default(), y.slice_mut(s![..;2, 1..;2]))
            .expect("the shapes fit");
        let expected = naive(x, w);
        for ((i, j), &value) in y.indexed_iter() {
            let expected = if i % 2 == 0 && j % 2 == 1 { expected[[i / 2, j / 2]] } else { -1.0 };
            assert_eq!(f64::from(value), expected, "at [{i}, {j}]");
        }
    }

    #[test]
    fn scale_comes_before_the_bias_and_the_activation_last() {
        let (x, w) = (pattern(3, 5, 5), pattern(4, 5, 6));
        let bias = Array1::from_vec(vec![1.0f32, -200.0, 3.0, 0.25]);
        let options = LinearTerms {
            alpha: 0.5,
            activation: Activation::Relu,
            bias: Some(bias.view()),
            ..LinearTerms::default()
        };
        let mut y = Array2::<f32>::zeros((3, 4));
        linear::<f32, _, f32, f32, f32>(x.view(), w.view(), options, y.view_mut()).expect("the shapes fit");
        for ((i, j), &sum) in naive(x.view(), w.view()).indexed_iter() {
            assert_eq!(f64::from(y[[i, j]]), (0.5 * sum + f64::from(bias[j])).max(0.0));
        }
    }

    #[test]
    fn an_empty_k_gives_the_activated_bias() {
        let bias = Array1::from_vec(vec![-1.0f32, 2.0]);
        let options = LinearTerms {
            alpha: 1.0,
            activation: Activation::Relu,
            bias: Some(bias.view()),
            ..LinearTerms::default()
        };
        let mut y = Array2::from_elem((2, 2), f32::NAN);
        let (x, w) = (Array2::<f32>::zeros((2, 0)), Array2::zeros((2, 0)));
        linear::<f32, _, f32, f32, f32>(x.view(), w.view(), options, y.view_mut()).expect("the shapes fit");
        assert_eq!(y, ndarray::array![[0.0, 2.0], [0.0, 2.0]]);
    }

    #[test]
    fn shapes_that_do_not_fit_are_errors() {
        let run = |x: (usize, usize), w: (usize, usize), bias: usize, y: (usize, usize)| {
            let (x, w) = (Array2::<f32>::zeros(x), Array2::zeros(w));
            let (bias, mut y) = (Array1::zeros(bias), Array2::<f32>::zeros(y));
            let options = LinearTerms { bias: Some(bias.view()), ..LinearTerms::default() };
            linear::<f32, _, f32, f32, f32>(x.view(), w.view(), options, y.view_mut())
        };
        let operand = |result| match result {
            Err(Error::Shape { operand, .. }) => operand,
            other => panic!("expected an error of shape, got {other:?}"),
        };
        assert_eq!(operand(run((2, 3), (4, 5), 4, (2, 4))), "x");
        assert_eq!(operand(run((2, 3), (4, 3), 4, (4, 2))), "y");
        assert_eq!(operand(run((2, 3), (4, 3), 1, (2, 4))), "bias");
        run((2, 3), (4, 3), 4, (2, 4)).expect("these fit");
    }

    /// Small integers, so that every value is exact: each term, the mask and the value before the activation.
    #[test]
    fn every_term_enters_where_it_is_defined_to() {
        let (m, n, k) = (100, 300, 7);
        let (x, w) = (pattern(m, k, 1), pattern(n, k, 2));
        let bias = Array1::from_shape_fn(n, |j| j as f32 - 150.0);
        let residual = pattern(m, n, 3);
        let (rows, columns) = (
            Array1::from_shape_fn(m, |i| if i % 2 == 0 { 1.0 } else { -2.0 }),
            Array1::from_shape_fn(n, |j| [0.5, 1.0, 4.0][j % 3]),
        );
        let mut mask = Array2::from_elem((m, n.div_ceil(32)), u32::MAX);
        let (mut z, mut y) = (Array2::<f32>::zeros((m, n)), Array2::<f32>::zeros((m, n)));
        let terms = LinearTerms {
            alpha: 2.0,
            row_scale: Some(rows.view()),
            column_scale: Some(columns.view()),
            bias: Some(bias.view()),
            beta: -3.0,
            residual: Some(residual.view()),
            activation: Activation::Relu,
            mask: Some(mask.view_mut()),
            preactivation: Some(z.view_mut()),
        };
        linear::<f32, _, f32, f32, f32>(x.view(), w.view(), terms, y.view_mut()).expect("the shapes fit");
        let sums = naive(x.view(), w.view());
        for ((i, j), &sum) in sums.indexed_iter() {
            let scale = 2.0 * f64::from(rows[i]) * f64::from(columns[j]);
            let expected = scale * sum + f64::from(bias[j]) - 3.0 * f64::from(residual[[i, j]]);
            assert_eq!(f64::from(z[[i, j]]), expected, "[{i}, {j}]");
            assert_eq!(f64::from(y[[i, j]]), expected.max(0.0));
            assert_eq!(mask[[i, j / 32]] >> (j % 32) & 1 == 1, expected > 0.0);
        }
        assert!(mask.column(9).iter().all(|word| word >> (n % 32) == 0), "bits past the last column");
    }
}
