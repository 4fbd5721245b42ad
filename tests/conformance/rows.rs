//! What tests of operations on rows share: numbers, and the layout of matrices.

use half::{bf16, f16};
use libtest_mimic::Failed;
use proptest::prelude::*;
use warpsmith::ops::rows::RowElement;
use warpsmith::{Device, Tensor};
use warpsmith_lab::cases::Placement;

/// Columns before a matrix, and behind it, of a wider one.
pub(crate) type Gaps = (usize, usize);

/// Gaps of none, of whole chunks, or of any number of columns.
pub(crate) fn gaps() -> impl Strategy<Value = Gaps> {
    prop_oneof![2 => Just((0usize, 0usize)), 1 => Just((8, 8)), 1 => (0usize..9, 0usize..9)]
}

/// The same as a placement.
pub(crate) fn placement() -> impl Strategy<Value = Placement> {
    gaps().prop_map(|(before, after)| Placement { before, after })
}

/// Rows and columns: of parts of warps, of blocks, of tails; few of the wide ones.
pub(crate) fn sizes() -> impl Strategy<Value = [usize; 2]> {
    let around = vec![64usize, 127, 128, 129, 256, 257, 1000, 1024, 1031, 2048, 4104, 8192, 8200];
    let columns = prop_oneof![2 => 1usize..70, 3 => prop::sample::select(around)];
    let rows = prop_oneof![3 => 1usize..4, 1 => prop::sample::select(vec![33usize, 70])];
    (rows, columns).prop_map(|(rows, columns)| [if columns > 500 { rows.min(3) } else { rows }, columns])
}

/// Numbers that a seed decides, in ±1.
pub(crate) fn random(seed: u64, at: usize) -> f32 {
    let mut z = seed ^ (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / 8_388_608.0 - 1.0
}

/// An element type, with its rounding.
pub(crate) trait Rounded: RowElement {
    fn round(number: f32) -> Self;
}

impl Rounded for f16 {
    fn round(number: f32) -> Self {
        Self::from_f32(number)
    }
}
impl Rounded for bf16 {
    fn round(number: f32) -> Self {
        Self::from_f32(number)
    }
}
impl Rounded for f32 {
    fn round(number: f32) -> Self {
        number
    }
}

/// A matrix in this layout, of numbers rounded to `T`.
pub(crate) fn matrix<T: Rounded>(
    device: &Device,
    [rows, columns]: [usize; 2],
    (before, behind): Gaps,
    number: impl Fn(usize) -> f32,
) -> warpsmith::Result<Tensor<T>> {
    let width = before + columns + behind;
    let element = |at: usize| match (at / width, at % width) {
        (row, column) if (before..before + columns).contains(&column) => {
            T::round(number(row * columns + column - before))
        }
        _ => T::round(777.0),
    };
    let elements: Vec<T> = (0..rows * width).map(element).collect();
    Tensor::from_slice(device, &elements, [rows, width])?.slice(1, before..before + columns)
}

/// The numbers of a tensor.
pub(crate) fn numbers<T: RowElement>(tensor: &Tensor<T>) -> Result<Vec<f32>, Failed> {
    Ok(tensor.to_vec()?.into_iter().map(|element| element.to_f32()).collect())
}
