//! How the kernels for 8-bit types are launched.
//!
//! From Ada on one kernel multiplies the 8-bit operands, on Hopper another. Elsewhere they are widened to f16, which holds every 8-bit
//! number exactly, and multiplied by a kernel for that. Rows that a kernel cannot read in place are repacked first.

use half::f16;
use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::F16;
use warpsmith_dsl::gemm::PersistentTile;
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel, TensorMap};
use warpsmith_kernels::fp8::Fp8Types;
use warpsmith_kernels::linear_fp8::{Fp8Params, WIDEN_CHUNK, WidenParams};
use warpsmith_kernels::linear_fp8_ada::Fp8AdaParams;
use warpsmith_kernels::linear_fp8_hopper::Fp8HopperParams;

use super::persistent::persistent_blocks;
use super::{has_only_tiles, is_early, tiles};
use crate::device::Device;
use crate::error::Result;
use crate::ops::gemm::passes::{Sums, Total, parts_of};
use crate::ops::gemm::plan::{self, Plan};
use crate::ops::gemm::variants::{ScaledInput, ScaledOutput};
use crate::ops::matrix::row_stride;
use crate::ops::{CHUNK_BYTES, Implementation, STORED_ROWS, repack};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Swizzle, Tensor, TensorMapOptions};

/// A kernel and how it is launched.
#[doc(hidden)]
pub struct Instance<O: Element> {
    pub(in crate::ops::gemm) declaration: Declaration,
    kind: Kind<O>,
}

enum Kind<O: Element> {
    /// It reads 8-bit operands through tensor maps.
    Hopper(LaunchHopper<O>),
    /// It reads 8-bit operands.
    Ada(LaunchAda<O>),
    /// It reads f16.
    Portable(LaunchPortable<O>),
}

type LaunchHopper<O> = unsafe fn(&Stream, u32, &Matrices<'_>, &Output<'_, O>, Fp8Types) -> Result<()>;
type LaunchAda<O> = unsafe fn(&Stream, u32, &[Rows; 2], &Output<'_, O>, u32, Fp8Types) -> Result<()>;
type LaunchPortable<O> = unsafe fn(&Stream, u32, [&Tensor<f16>; 2], &Output<'_, O>, u32) -> Result<()>;

/// Encodes a matrix for boxes of so many rows, as one of a batch.
type Encode<'a> = &'a dyn Fn(u32) -> Result<TensorMap>;

/// The operands of a Hopper kernel, whatever their types.
struct Matrices<'a> {
    x: Encode<'a>,
    w: Encode<'a>,
    /// Elements of a sum, or of a part of it.
    k: u32,
    /// Parts of each sum.
    parts: u32,
}

/// An operand in aligned rows, whatever its type.
struct Rows {
    base: Global<u8>,
    stride: u64,
}

impl Rows {
    fn of<T: Element>(matrix: &Tensor<T>) -> Self {
        Self { base: Global::new(matrix.arg().address()), stride: row_stride(matrix) }
    }
}

/// Where the result of a kernel goes.
struct Output<'a, O: Element> {
    /// y as a matrix, or the parts of its sums as one below the other.
    y: &'a Tensor<O>,
    place: GlobalMut<O::Device>,
    epilogue: LinearEpilogue<O::Device, O::Device>,
    m: u32,
    n: u32,
}

impl<O: Element> Instance<O> {
    pub(in crate::ops::gemm) fn hopper<K: Kernel<Args = HopperArgs<O>>, S: PersistentTile>() -> Self {
        Self { declaration: K::DECLARATION, kind: Kind::Hopper(launch_hopper::<O, K, S>) }
    }

    pub(in crate::ops::gemm) fn ada<K: Kernel<Args = AdaArgs<O>>>() -> Self {
        Self { declaration: K::DECLARATION, kind: Kind::Ada(launch_ada::<O, K>) }
    }

    pub(in crate::ops::gemm) fn portable<K: Kernel<Args = PortableArgs<O>>>() -> Self {
        Self { declaration: K::DECLARATION, kind: Kind::Portable(launch_portable::<O, K>) }
    }
}

/// The arguments of a Hopper kernel.
type HopperArgs<O> = (
    TensorMap,
    TensorMap,
    TensorMap,
    GlobalMut<<O as Element>::Device>,
    LinearEpilogue<<O as Element>::Device, <O as Element>::Device>,
    Fp8HopperParams,
);

/// Launches the Hopper kernel `K` of tile `S`.
///
/// # Safety
///
/// The operands and what the epilogue names are valid for what the kernel does with them, and live until the stream's work is done.
unsafe fn launch_hopper<O: Element, K: Kernel<Args = HopperArgs<O>>, S: PersistentTile>(
    stream: &Stream,
    blocks: u32,
    matrices: &Matrices<'_>,
    output: &Output<'_, O>,
    types: Fp8Types,
) -> Result<()> {
    let &Output { y, place, epilogue, m, n } = output;
    let (x, w) = ((matrices.x)(S::A_BOX_ROWS)?, (matrices.w)(S::B_BOX_ROWS)?);
    // The copy engine writes chunks of 16 bytes whole, so a row must end with one, too.
    let [stride_bytes, row_bytes] =
        [row_stride(y), n.into()].map(|elements| elements * size_of::<O>() as u64);
    let has_boxes = (place.address() | stride_bytes | row_bytes).is_multiple_of(CHUNK_BYTES as u64);
    const { assert!(S::STORED_ROW_BYTES == S::ROW_BYTES, "the map is of boxes with rows of 128 bytes") };
    let y_boxes = if has_boxes {
        matrices_map(y, matrices.parts as usize, STORED_ROWS, S::ROW_BYTES as usize / size_of::<O>())?
    } else {
        TensorMap::from_words([0; 16])
    };
    let tiles = tiles::<S>(m, n).saturating_mul(matrices.parts.into());
    let blocks = persistent_blocks::<S>(stream, blocks, tiles);
    let are_only = has_only_tiles(tiles, blocks);
    let params = Fp8HopperParams {
        stride_y: row_stride(y),
        m,
        n,
        k: matrices.k,
        types,
        has_boxes: match (has_boxes, are_only) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => Fp8HopperParams::LANES_STORE,
        },
        parts: matrices.parts,
    };
    let kernel = stream.device().kernel::<K>()?;
    // SAFETY: the maps are of matrices of bytes, with the boxes that the tile asks for; the rest is the caller's promise.
    unsafe {
        let (grid, args) = ([blocks, 1, 1], (x, w, y_boxes, place, epilogue, params));
        let multiprocessors = stream.device().properties().multiprocessors;
        if is_early::<S>(matrices.k.into(), [m, n], blocks, are_only, multiprocessors) {
            kernel.launch_early(stream, grid, args)
        } else {
            kernel.launch(stream, grid, args)
        }
    }
}

/// The arguments of a kernel for Ada.
type AdaArgs<O> = (
    Global<u8>,
    Global<u8>,
    GlobalMut<<O as Element>::Device>,
    LinearEpilogue<<O as Element>::Device, <O as Element>::Device>,
    Fp8AdaParams,
);

/// Launches the kernel `K` for Ada.
///
/// # Safety
///
/// As [`launch_hopper`]; the operands' rows are aligned.
unsafe fn launch_ada<O: Element, K: Kernel<Args = AdaArgs<O>>>(
    stream: &Stream,
    blocks: u32,
    [x, w]: &[Rows; 2],
    output: &Output<'_, O>,
    k: u32,
    types: Fp8Types,
) -> Result<()> {
    let &Output { y, place, epilogue, m, n } = output;
    let params =
        Fp8AdaParams { stride_x: x.stride, stride_w: w.stride, stride_y: row_stride(y), m, n, k, types };
    let kernel = stream.device().kernel::<K>()?;
    // SAFETY: the caller's promise.
    unsafe { kernel.launch(stream, [blocks, 1, 1], (x.base, w.base, place, epilogue, params)) }
}

/// The arguments of a portable kernel.
type PortableArgs<O> = (
    Global<F16>,
    Global<F16>,
    GlobalMut<<O as Element>::Device>,
    LinearEpilogue<<O as Element>::Device, <O as Element>::Device>,
    Fp8Params,
);

/// Launches the portable kernel `K`.
///
/// # Safety
///
/// As [`launch_hopper`].
unsafe fn launch_portable<O: Element, K: Kernel<Args = PortableArgs<O>>>(
    stream: &Stream,
    blocks: u32,
    [x, w]: [&Tensor<f16>; 2],
    output: &Output<'_, O>,
    k: u32,
) -> Result<()> {
    let &Output { y, place, epilogue, m, n } = output;
    let stride = x.shape()[1] as u64;
    let params = Fp8Params { stride, stride_y: row_stride(y), m, n, k, reserved: 0 };
    let kernel = stream.device().kernel::<K>()?;
    // SAFETY: the copies are contiguous rows of whole chunks; the rest is the caller's promise.
    unsafe { kernel.launch(stream, [blocks, 1, 1], (x.arg(), w.arg(), place, epilogue, params)) }
}

/// Widens `from`, a matrix of rows of whole chunks, to `to`, contiguous rows of as many, with the kernel `K`.
pub(in crate::ops::gemm) fn widen<T, K>(stream: &Stream, from: &Tensor<T>, to: &mut Tensor<f16>) -> Result<()>
where
    T: Element,
    K: Kernel<Args = (Global<T::Device>, GlobalMut<F16>, WidenParams)>,
{
    let &[rows, columns] = to.shape() else { return Ok(()) };
    let params = WidenParams { stride: row_stride(from), chunks: columns as u32 / WIDEN_CHUNK, reserved: 0 };
    let kernel = stream.device().kernel::<K>()?;
    let place = to.arg_mut();
    stream.with_operands(&[from as &dyn Operand, to], || {
        // SAFETY: `widened` has made both so that every chunk is there and aligned. Tensors are freed in the order of their home
        // streams, which `with_operands` makes wait for this work.
        unsafe { kernel.launch(stream, [rows as u32, 1, 1], (from.arg(), place, params)) }
    })
}

/// A tensor map of a matrix as one of a batch, with boxes of `rows` × `columns`.
fn matrix_map<T: Element>(matrix: &Tensor<T>, rows: usize, columns: usize) -> Result<TensorMap> {
    matrices_map(matrix, 1, rows, columns)
}

/// A tensor map of as many matrices one below the other, with boxes of `rows` × `columns`.
fn matrices_map<T: Element>(
    all: &Tensor<T>,
    matrices: usize,
    rows: usize,
    columns: usize,
) -> Result<TensorMap> {
    let options = TensorMapOptions { swizzle: Swizzle::B128, ..TensorMapOptions::default() };
    let shape = [matrices, all.shape()[0] / matrices, all.shape()[1]];
    all.reshape(shape)?.tensor_map([1, rows, columns], &options)
}

/// The leading axes of a tensor as rows of a matrix, of its own elements or, if it `is_copied`, of a copy whose rows start at multiples of 16 bytes, with zeros
/// up to the next such multiple behind them.
pub(crate) fn matrix<T: Element>(stream: &Stream, tensor: &Tensor<T>, is_copied: bool) -> Result<Tensor<T>> {
    let matrix = tensor.flatten_leading();
    if !is_copied {
        return matrix;
    }
    // Leading axes without a common stride are copied as they are.
    repack(matrix.as_ref().unwrap_or(tensor)).on(stream).run()?.flatten_leading()
}

/// A copy in f16 of a matrix, its rows filled up to whole chunks.
pub(crate) fn widened<T: ScaledInput>(
    stream: &Stream,
    tensor: &Tensor<T>,
    is_copied: bool,
    [rows, columns]: [u32; 2],
) -> Result<Tensor<f16>> {
    let (rows, columns, chunk) = (rows as usize, columns as usize, WIDEN_CHUNK as usize);
    let mut wide = Tensor::uninit_on(stream, [rows, columns.next_multiple_of(chunk)])?;
    if wide.is_empty() {
        return Ok(wide);
    }
    let from = matrix(stream, tensor, is_copied || !columns.is_multiple_of(chunk))?;
    T::widen_to_f16(stream, &from, &mut wide)?;
    Ok(wide)
}

/// The kernels that compute a product of 8-bit operands.
pub(crate) struct Kernels<O: Element> {
    instance: Instance<O>,
    /// Of sums that are computed in parts, how the parts are, and how they are added.
    passes: Option<(Instance<f32>, Sums<O, O>)>,
}

impl<O: ScaledOutput> plan::Kernels for Kernels<O> {
    fn of(plan: &Plan) -> Option<Self> {
        let instance = O::instance(plan.tile)?;
        let passes = if plan.is_split() { Some((f32::instance(plan.tile)?, O::sums())) } else { None };
        Some(Self { instance, passes })
    }

    fn implementation(&self, plan: &Plan, device: &Device) -> Implementation {
        let implementation = match &self.passes {
            None => plan.implementation(device, self.instance.declaration.name, None),
            Some((parts, sums)) => {
                plan.implementation(device, parts.declaration.name, Some(sums.declaration.name))
            }
        };
        match self.instance.kind {
            Kind::Hopper(_) | Kind::Ada(_) => implementation,
            // Both are copied in f16.
            Kind::Portable(_) => implementation.with_copies(2),
        }
    }
}

/// What these kernels work on.
pub(crate) struct Operands<'a, X: Element, W: Element, O: Element> {
    /// `[.., K]`.
    pub(crate) x: &'a Tensor<X>,
    /// `[N, K]`.
    pub(crate) w: &'a Tensor<W>,
    /// The matrix y.
    pub(crate) y: &'a Tensor<O>,
    /// The place of y.
    pub(crate) y_arg: GlobalMut<O::Device>,
    /// What is done to the product.
    pub(crate) epilogue: LinearEpilogue<O::Device, O::Device>,
}

impl<O: ScaledOutput> Kernels<O> {
    /// Computes a product; `others` are the operands beside x and w.
    ///
    /// # Safety
    ///
    /// The operands and what the epilogue names are valid for what the planned kernels do with them; what is written is apart from the rest.
    pub(crate) unsafe fn launch<X: ScaledInput, W: ScaledInput>(
        &self,
        plan: &Plan,
        stream: &Stream,
        operands: &Operands<'_, X, W, O>,
        others: &[&dyn Operand],
    ) -> Result<()> {
        let &Operands { x, w, y, y_arg: place, epilogue } = operands;
        let &Plan { m, n, k, blocks, .. } = plan;
        let [copy_x, copy_w] = plan.path.repack;
        let output = Output { y, place, epilogue, m, n };
        let types = Fp8Types::new(X::IS_E5M2, W::IS_E5M2);
        match self.instance.kind {
            Kind::Hopper(launch) => {
                let (x, w) = (matrix(stream, x, copy_x)?, matrix(stream, w, copy_w)?);
                // A stage holds 128 bytes of each row.
                let encode_x = |rows: u32| matrix_map(&x, rows as usize, 128);
                let encode_w = |rows: u32| matrix_map(&w, rows as usize, 128);
                let matrices = Matrices { x: &encode_x, w: &encode_w, k, parts: plan.parts };
                let operands = [&[&x as &dyn Operand, &w], others].concat();
                stream.with_operands(&operands, || {
                    // SAFETY: the caller's promise; rows are aligned. Tensors are freed in the order of their home streams, which `with_operands` makes wait
                    // for this work.
                    unsafe {
                        match &self.passes {
                            None => launch(stream, blocks, &matrices, &output, types),
                            Some(passes) => launch_passes(stream, blocks, passes, &matrices, &output, types),
                        }
                    }
                })
            }
            Kind::Ada(launch) => {
                let (x, w) = (matrix(stream, x, copy_x)?, matrix(stream, w, copy_w)?);
                let rows = [Rows::of(&x), Rows::of(&w)];
                let operands = [&[&x as &dyn Operand, &w], others].concat();
                stream.with_operands(&operands, || {
                    // SAFETY: as above.
                    unsafe { launch(stream, blocks, &rows, &output, k, types) }
                })
            }
            Kind::Portable(launch) => {
                let (x, w) = (widened(stream, x, copy_x, [m, k])?, widened(stream, w, copy_w, [n, k])?);
                let operands = [&[&x as &dyn Operand, &w], others].concat();
                stream.with_operands(&operands, || {
                    // SAFETY: as above; the copies are made for this kernel.
                    unsafe { launch(stream, blocks, [&x, &w], &output, k) }
                })
            }
        }
    }
}

/// Launches what computes the parts of the sums, and what adds them.
///
/// # Safety
///
/// As [`launch_hopper`].
unsafe fn launch_passes<O: Element>(
    stream: &Stream,
    blocks: u32,
    (of_parts, sums): &(Instance<f32>, Sums<O, O>),
    matrices: &Matrices<'_>,
    output: &Output<'_, O>,
    types: Fp8Types,
) -> Result<()> {
    let &Output { y, place, epilogue, m, n } = output;
    let Kind::Hopper(launch) = of_parts.kind else { return Ok(()) };
    let (parts, columns) = parts_of(stream, [m, n, 1], matrices.parts)?;
    let mut flat = parts.flatten_leading()?;
    let of_parts =
        Output { place: flat.arg_mut(), y: &flat, epilogue: LinearEpilogue::plain(), m, n: columns };
    let total = Total { y_arg: place, strides: [row_stride(y), 0], sizes: [m, n, 1], epilogue };
    // SAFETY: the parts are these launches' own, in the order of the stream; the rest is the caller's promise.
    unsafe {
        launch(stream, blocks, matrices, &of_parts, types)?;
        sums.launch(stream, &parts, matrices.parts, &total)
    }
}
