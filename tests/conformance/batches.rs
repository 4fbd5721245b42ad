//! Products of tensors with several leading axes, whose strides no single launch can follow: every matrix is the product of its own
//! operands.

use half::f16;
use libtest_mimic::Failed;
use ndarray::{Array2, ArrayD, Axis, Dimension, Ix2, IxDyn};
use warpsmith::ops::gemm::{Access, Fused, Tile};
use warpsmith::ops::linear::LinearInput;
use warpsmith::ops::{self, Activation};
use warpsmith::weights::FloatElement;
use warpsmith::{Device, DeviceKind, Tensor};

use crate::{Case, cases};

pub(crate) const CASES: &[(&str, Case)] = cases![
    leading_axes_are_broadcast_against_each_other,
    clusters_stay_within_their_matrix,
    views_of_leading_axes_are_followed,
    single_rows_of_matrices_that_lie_across_are_rows,
    every_term_belongs_to_its_matrix,
    an_output_may_be_a_view_of_more_matrices,
    leading_axes_of_a_linear_layer_may_be_views,
];

/// Rows, columns, and the length of the sums: less than a tile, and rows of X, W and Y in multiples of the 16 bytes that fast kernels read and
/// store.
const M: usize = 9;
const N: usize = 24;
const K: usize = 40;

/// Tiles to ask for: what would be chosen, and every tile that serves aligned rows and has what is asked of the products, since each family
/// counts its matrices in its own way.
fn tiles<T: LinearInput>(device: &Device, fused: Fused) -> Vec<Option<Tile>> {
    let capability = device.properties().compute_capability;
    let own = Tile::ALL.into_iter().filter(|tile| {
        device.kind() != DeviceKind::Cpu
            && tile.runs_on(capability)
            && tile.serves(T::DTYPE, Access::Aligned)
            && tile.serves_fused(fused)
    });
    std::iter::once(None).chain(own.map(Some)).collect()
}

/// Small integers, whose products and sums are exact in every type.
fn integers(shape: &[usize], seed: u32) -> ArrayD<f64> {
    let mut state = seed;
    ArrayD::from_shape_simple_fn(shape, || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 24) % 5.0 - 2.0
    })
}

fn tensor<T: FloatElement>(device: &Device, array: &ArrayD<f64>) -> warpsmith::Result<Tensor<T>> {
    Tensor::from_array(device, &array.mapv(T::round))
}

/// `a bᵀ` for each index of `leading`, of which operands may lack axes or have 1.
fn products(a: &ArrayD<f64>, b: &ArrayD<f64>, leading: &[usize]) -> ArrayD<f64> {
    let widened = |array: &ArrayD<f64>| {
        let matrix = &array.shape()[array.ndim() - 2..];
        array.broadcast([leading, matrix].concat()).expect("the leading axes fit").to_owned()
    };
    let (a, b) = (widened(a), widened(b));
    let (m, n) = (a.shape()[leading.len()], b.shape()[leading.len()]);
    let mut all = ArrayD::zeros([leading, &[m, n]].concat());
    for index in ndarray::indices(IxDyn(leading)) {
        let matrix = |array: &ArrayD<f64>| -> Array2<f64> {
            let mut view = array.view();
            for axis in 0..leading.len() {
                view.index_axis_inplace(ndarray::Axis(0), index[axis]);
            }
            view.into_dimensionality::<Ix2>().expect("two axes are left").to_owned()
        };
        let product = matrix(&a).dot(&matrix(&b).t());
        for ((row, column), &value) in product.indexed_iter() {
            all[IxDyn(&[index.slice(), &[row, column]].concat())] = value;
        }
    }
    all
}

fn expect<T: FloatElement>(y: &Tensor<T>, expected: &ArrayD<f64>, context: &str) -> Result<(), Failed> {
    assert_eq!(y.shape(), expected.shape(), "{context}");
    let expected: Vec<T> = expected.iter().map(|&value| T::round(value)).collect();
    let actual = y.to_vec()?;
    let wrong = actual.iter().zip(&expected).position(|(actual, expected)| actual != expected);
    assert_eq!(wrong, None, "{context}: the element where they differ first");
    Ok(())
}

/// Runs a check with every type and tile.
macro_rules! with_types_and_tiles {
    ($device:expr, $fused:expr, $check:ident) => {{
        for tile in tiles::<f16>($device, $fused) {
            $check::<f16>($device, tile)?;
        }
        for tile in tiles::<f32>($device, $fused) {
            $check::<f32>($device, tile)?;
        }
        Ok(())
    }};
}

fn broadcast<T: LinearInput + FloatElement>(device: &Device, tile: Option<Tile>) -> Result<(), Failed> {
    let shapes: [(&[usize], &[usize], &[usize]); 6] = [
        (&[2, 1], &[3], &[2, 3]),
        (&[2, 1], &[1, 3], &[2, 3]),
        (&[1, 3, 1], &[2, 1, 2], &[2, 3, 2]),
        (&[2, 1, 3, 1], &[2, 2, 1, 2], &[2, 2, 3, 2]),
        (&[2, 2, 2], &[], &[2, 2, 2]),
        (&[2, 0, 1], &[3], &[2, 0, 3]),
    ];
    for (a_leading, b_leading, leading) in shapes {
        let a = integers(&[a_leading, &[M, K]].concat(), 1);
        let b = integers(&[b_leading, &[N, K]].concat(), 2);
        let op_a = tensor::<T>(device, &a)?;
        let op_b = tensor::<T>(device, &b)?;
        let op = ops::matmul(&op_a, &op_b).transpose_b().tile(tile);
        let precision = tile.map(|tile| tile.precision(T::DTYPE)).unwrap_or_default();
        let y = op.precision(precision).run()?;
        expect(&y, &products(&a, &b, leading), &format!("{tile:?}, {a_leading:?} by {b_leading:?}"))?;
    }
    Ok(())
}

fn leading_axes_are_broadcast_against_each_other(device: &Device) -> Result<(), Failed> {
    with_types_and_tiles!(device, Fused::Floor, broadcast)
}

/// Several tiles and clusters of every persistent kernel along both axes, of which the last reach beyond their matrix.
fn clusters_stay_within_their_matrix(device: &Device) -> Result<(), Failed> {
    let (a, b) = (integers(&[2, 200, K], 13), integers(&[2, 528, K], 14));
    let expected = products(&a, &b, &[2]);
    let (op_a, op_b) = (tensor::<f16>(device, &a)?, tensor::<f16>(device, &b)?);
    for tile in tiles::<f16>(device, Fused::Floor).into_iter().flatten().filter(|tile| tile.is_persistent()) {
        let y = ops::matmul(&op_a, &op_b).transpose_b().tile(tile).run()?;
        expect(&y, &expected, &format!("{tile:?}"))?;
    }
    Ok(())
}

fn views<T: LinearInput + FloatElement + Into<f64>>(
    device: &Device,
    tile: Option<Tile>,
) -> Result<(), Failed> {
    let (a, b) = (integers(&[3, 2, 4, M, K], 3), integers(&[2, 3, 2, N, K], 4));
    let expected = {
        let a = a.view().permuted_axes([1, 0, 2, 3, 4].to_vec());
        let a = a.slice_axis(ndarray::Axis(2), ndarray::Slice::from(1..3)).to_owned();
        products(&a, &b, &[2, 3, 2])
    };
    let a = tensor::<T>(device, &a)?.swap_axes(0, 1)?.slice(2, 1..3)?;
    let b = tensor::<T>(device, &b)?;
    let precision = tile.map(|tile| tile.precision(T::DTYPE)).unwrap_or_default();
    let y = ops::matmul(&a, &b).transpose_b().tile(tile).precision(precision).run()?;
    expect(&y, &expected, &format!("{tile:?}"))?;
    // The rows of a cut short and shifted: no kernel reads such chunks, so that copies of rank 5 may be made.
    let (a, b) = (a.slice(4, 1..K - 2)?, b.slice(4, 1..K - 2)?);
    let y = ops::matmul(&a, &b).transpose_b().tile(tile).precision(precision).run()?;
    let host = |tensor: &Tensor<T>| -> Result<ArrayD<f64>, Failed> {
        let values = tensor.to_vec()?.into_iter().map(Into::into).collect();
        Ok(ArrayD::from_shape_vec(tensor.shape(), values)?)
    };
    expect(&y, &products(&host(&a)?, &host(&b)?, &[2, 3, 2]), &format!("{tile:?}, cut short"))
}

/// One row of each of several matrices that are stored across, by one b: the leading axis is the rows', which are not contiguous, whatever the
/// stride of a single row is called.
fn single_rows<T: LinearInput + FloatElement>(device: &Device, tile: Option<Tile>) -> Result<(), Failed> {
    let (a, b) = (integers(&[3, K, 8], 9), integers(&[N, K], 10));
    let rows = a.view().permuted_axes([0, 2, 1].to_vec()).slice_axis(Axis(1), (0..1).into()).to_owned();
    let (a, b_tensor) = (tensor::<T>(device, &a)?, tensor::<T>(device, &b)?);
    let a = a.slice(2, 0..1)?.swap_axes(1, 2)?;
    let precision = tile.map(|tile| tile.precision(T::DTYPE)).unwrap_or_default();
    let y = ops::matmul(&a, &b_tensor).transpose_b().tile(tile).precision(precision).run()?;
    expect(&y, &products(&rows, &b, &[3]), &format!("{tile:?}, single rows"))
}

fn single_rows_of_matrices_that_lie_across_are_rows(device: &Device) -> Result<(), Failed> {
    with_types_and_tiles!(device, Fused::Floor, single_rows)
}

fn views_of_leading_axes_are_followed(device: &Device) -> Result<(), Failed> {
    with_types_and_tiles!(device, Fused::Floor, views)
}

/// Scales of rows and a residual of their own for each matrix, beside what is stored for each.
fn terms<T: LinearInput + FloatElement>(device: &Device, tile: Option<Tile>) -> Result<(), Failed> {
    let leading = [2, 3];
    let full = [2, 3, M, N];
    let (a, b) = (integers(&[2, 1, M, K], 5), integers(&[3, N, K], 6));
    let residual = integers(&full, 7);
    // The memory of the residual has another order of axes.
    let in_memory = residual.view().permuted_axes([1, 0, 2, 3].to_vec()).as_standard_layout().to_owned();
    let scales = integers(&[2, 3, M], 8).mapv(|value| if value < 0.0 { -1.0 } else { 2.0 });

    let mut expected = products(&a, &b, &leading);
    for (index, value) in expected.indexed_iter_mut() {
        *value = *value * scales[[index[0], index[1], index[2]].as_slice()] - residual[index.clone()];
    }
    let (a, b) = (tensor::<T>(device, &a)?, tensor::<T>(device, &b)?);
    let scales = Tensor::from_array(device, &scales.mapv(|value| value as f32))?;
    let residual = tensor::<T>(device, &in_memory)?.swap_axes(0, 1)?;
    let mut mask = Tensor::uninit(device, [2, 3, M, N.div_ceil(32)])?;
    let mut preactivation = Tensor::uninit(device, full)?;
    let precision = tile.map(|tile| tile.precision(T::DTYPE)).unwrap_or_default();
    let y = ops::matmul(&a, &b)
        .transpose_b()
        .row_scale(&scales)
        .residual(&residual, -1.0)
        .activation(Activation::Relu)
        .relu_mask(&mut mask)
        .preactivation(&mut preactivation)
        .tile(tile)
        .precision(precision)
        .run()?;
    expect(&preactivation, &expected, &format!("preactivation of {tile:?}"))?;
    expect(&y, &expected.mapv(|value| value.max(0.0)), &format!("{tile:?}"))?;
    let words = expected
        .lanes(Axis(3))
        .into_iter()
        .map(|row| row.iter().enumerate().fold(0, |word, (i, &value)| word | u32::from(value > 0.0) << i));
    assert_eq!(mask.to_vec()?, words.collect::<Vec<_>>(), "mask of {tile:?}");
    Ok(())
}

fn every_term_belongs_to_its_matrix(device: &Device) -> Result<(), Failed> {
    with_types_and_tiles!(device, Fused::Terms, terms)
}

fn an_output_may_be_a_view_of_more_matrices(device: &Device) -> Result<(), Failed> {
    for tile in tiles::<f32>(device, Fused::Terms) {
        let (a, b) = (integers(&[2, 3, M, K], 9), integers(&[2, 3, N, K], 10));
        let (op_a, op_b) = (tensor::<f32>(device, &a)?, tensor::<f32>(device, &b)?);
        let filler = ArrayD::from_elem([2, 5, M, N].as_slice(), -7.0f32);
        let around = Tensor::from_array(device, &filler)?;
        let mut y = around.slice(1, 1..4)?;
        let precision = tile.map(|tile| tile.precision(warpsmith::DType::F32)).unwrap_or_default();
        let op = ops::matmul(&op_a, &op_b).transpose_b().beta(1.0).tile(tile).precision(precision);
        op.run_into(&mut y)?;
        let mut expected = filler.mapv(f64::from);
        let mut inside = expected.slice_axis_mut(ndarray::Axis(1), ndarray::Slice::from(1..4));
        inside += &products(&a, &b, &[2, 3]);
        expect(&around, &expected, &format!("{tile:?}"))?;
    }
    Ok(())
}

fn leading_axes_of_a_linear_layer_may_be_views(device: &Device) -> Result<(), Failed> {
    for tile in tiles::<f16>(device, Fused::Floor) {
        let (x, w) = (integers(&[2, 4, 3, 5, K], 11), integers(&[N, K], 12));
        let op_x = tensor::<f16>(device, &x)?.slice(1, 1..3)?.slice(2, 0..2)?;
        let op_w = tensor::<f16>(device, &w)?;
        let x = x.slice_axis(ndarray::Axis(1), ndarray::Slice::from(1..3));
        let x = x.slice_axis(ndarray::Axis(2), ndarray::Slice::from(0..2)).to_owned();
        let y = ops::linear(&op_x, &op_w).tile(tile).run()?;
        expect(&y, &products(&x, &w, &[2, 2, 2]), &format!("{tile:?}"))?;
    }
    Ok(())
}
