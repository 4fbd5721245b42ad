//! What a program says of an epilogue of its own, and what the host knows of the kernels that are made for it.

use super::{HopperParams, LinearParams, SkinnyParams, SumsParams};
use crate::epilogue::{ColumnState, Epilogue};
use crate::gemm::parts::Parts;
use crate::launch::{Global, GlobalMut, Kernel, KernelParam, TensorMap};
use crate::layout::Coord;
use crate::operands::FieldOperands;

/// A function of each element of a product `X Wᵀ`, applied to the f32 sum before it is rounded and stored.
///
/// It may read what its fields hold: numbers and [slices](crate::slice::GlobalSlice), which know how far they go. Rows and columns outside of
/// the output may be asked for; what is returned for them is not used.
///
/// [`product_kernels`](crate::product_kernels) makes the kernels, and has the example. It makes a function one of these, too.
pub trait ProductEpilogue: KernelParam {
    /// What the function knows of a row: `()`, or a number or several.
    type Row: Copy;
    /// What it knows of a column, which is read once and used for many rows: `()`, an `f32`, or a pair of such.
    type Column: ColumnState;

    /// Reads what the function knows of row `row`.
    fn row(&self, row: u32) -> Self::Row;

    /// Reads what the function knows of column `column`.
    fn column(&self, column: u32) -> Self::Column;

    /// The result of an element.
    fn apply(&self, row: Self::Row, column: Self::Column, sum: f32) -> f32;
}

/// A [`ProductEpilogue`] as the [`Epilogue`] of the main loops.
#[derive(Clone, Copy)]
pub struct PerElement<E>(pub E);

impl<E: ProductEpilogue> Epilogue for PerElement<E> {
    type Column = E::Column;
    type Row = E::Row;

    #[inline(always)]
    unsafe fn column(&self, column: u32) -> E::Column {
        self.0.column(column)
    }

    #[inline(always)]
    unsafe fn row(&self, row: u32) -> E::Row {
        self.0.row(row)
    }

    #[inline(always)]
    unsafe fn apply<const N: usize>(
        &self,
        _: Coord,
        row: E::Row,
        columns: [E::Column; N],
        sums: [f32; N],
    ) -> [f32; N] {
        let mut results = sums;
        for (result, column) in results.iter_mut().zip(&columns) {
            *result = self.0.apply(row, *column, *result);
        }
        results
    }
}

/// The arguments of a kernel with the body [`portable`](super::portable).
pub type PortableArgs<T, O, E> = (Global<T>, Global<T>, GlobalMut<O>, E, Parts, LinearParams);
/// The arguments of a kernel with the body [`persistent`](super::persistent).
pub type PersistentArgs<O, E> = (TensorMap, TensorMap, TensorMap, GlobalMut<O>, E, HopperParams);
/// The arguments of a kernel with the body [`few_rows`](super::few_rows).
pub type FewRowsArgs<O, E> = (TensorMap, TensorMap, GlobalMut<O>, E, SkinnyParams);
/// The arguments of a kernel with the body [`add_parts`](super::add_parts).
pub type SumsArgs<O, E> = (Global<f32>, GlobalMut<O>, E, SumsParams);

/// The kernels of a product with an epilogue of a program's own: one for each variant that the planner chooses from.
///
/// # Safety
///
/// Each kernel has the body that its arguments name, of the tile that it is called after, for these types and [`PerElement`] of this
/// epilogue. [`product_kernels`](crate::product_kernels) guarantees it by writing both.
pub unsafe trait ProductKernels: 'static {
    /// The operation's name in errors.
    const NAME: &'static str;
    /// The type of X and W.
    type Input: 'static;
    /// The type of Y.
    type Output: 'static;
    /// What is done to the sums.
    type Epilogue: ProductEpilogue + FieldOperands;

    /// [`Tile128x128`](super::Tile128x128), of aligned rows.
    type T128x128: Kernel<Args = PortableArgs<Self::Input, Self::Output, Self::Epilogue>>;
    /// [`Tile128x64`](super::Tile128x64), of aligned rows.
    type T128x64: Kernel<Args = PortableArgs<Self::Input, Self::Output, Self::Epilogue>>;
    /// [`Tile64x64`](super::Tile64x64), of rows that start at multiples of 4 bytes.
    type T64x64: Kernel<Args = PortableArgs<Self::Input, Self::Output, Self::Epilogue>>;
    /// [`Tile16x64`](super::Tile16x64), of rows that start at multiples of 4 bytes.
    type T16x64: Kernel<Args = PortableArgs<Self::Input, Self::Output, Self::Epilogue>>;
    /// [`HopperPingPong128x128`](super::HopperPingPong128x128).
    type PingPong128x128: Kernel<Args = PersistentArgs<Self::Output, Self::Epilogue>>;
    /// [`HopperCooperative128x256`](super::HopperCooperative128x256).
    type Cooperative128x256: Kernel<Args = PersistentArgs<Self::Output, Self::Epilogue>>;
    /// [`HopperCooperative128x192`](super::HopperCooperative128x192).
    type Cooperative128x192: Kernel<Args = PersistentArgs<Self::Output, Self::Epilogue>>;
    /// [`Skinny16x64`](super::Skinny16x64).
    type Skinny16x64: Kernel<Args = FewRowsArgs<Self::Output, Self::Epilogue>>;
    /// [`Skinny16x64Split4`](super::Skinny16x64Split4).
    type Skinny16x64Split4: Kernel<Args = FewRowsArgs<Self::Output, Self::Epilogue>>;
    /// Adds parts of sums.
    type Sums: Kernel<Args = SumsArgs<Self::Output, Self::Epilogue>>;
}
