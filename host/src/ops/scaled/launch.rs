//! The kernels of the scaled linear operation, and how they are launched.
//!
//! On Hopper one kernel multiplies the 8-bit operands. Elsewhere they are widened to f16, which holds every 8-bit number exactly, and
//! multiplied by a kernel for that. Rows that a kernel cannot read as they lie are repacked first.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{self as device_float, Bf16, F16};
use warpsmith_dsl::gemm::PersistentTile;
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel, TensorMap};
use warpsmith_kernels::linear_fp8::{
    Fp8Params, Fp8Portable64x64, WIDEN_CHUNK, WidenParams, linear_fp8, widen_fp8,
};
use warpsmith_kernels::linear_fp8_hopper::{
    Fp8Hopper64x64, Fp8Hopper64x128, Fp8Hopper128x128, Fp8Hopper128x192, Fp8Hopper256x128, Fp8HopperParams,
    Fp8Types, linear_fp8_hopper,
};
use warpsmith_kernels::linear_sums::linear_sums;

use super::plan::{Matrix, Plan, size_limit};
use super::select::{Fp8Tile, Limits, Problem, split_evenly};
use super::{OPERATION, Scale, ScaledLinearOp};
use crate::cpu::{FromAccumulator, Operand as CpuOperand};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernel::is_built;
use crate::ops::choice::{Observation, ScaledChoice, notice};
use crate::ops::gemm::{MOST_PARTS, TURING};
use crate::ops::gemm::{SUMS, Sums, Total, has_only_tiles, is_early, parts_of, sums_blocks, tiles};
use crate::ops::matrix::{as_matrix, row_stride};
use crate::ops::{CHUNK_BYTES, Implementation, STORED_ROWS};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Swizzle, Tensor, TensorMapOptions};
use crate::tune;

mod sealed {
    pub trait Sealed {}
}

/// An 8-bit type of x or w: [`F8E4M3`](float8::F8E4M3) or [`F8E5M2`](float8::F8E5M2).
pub trait ScaledInput: Element + CpuOperand + sealed::Sealed {
    /// Whether it is e5m2.
    #[doc(hidden)]
    const IS_E5M2: bool;
    /// Copies a matrix of whole chunks to f16.
    #[doc(hidden)]
    fn widen_to_f16(stream: &Stream, from: &Tensor<Self>, to: &mut Tensor<f16>) -> Result<()>;
}

macro_rules! inputs {
    ($($host:ident, $is_e5m2:literal;)*) => {
        $(
            impl sealed::Sealed for $host {}
            impl ScaledInput for $host {
                const IS_E5M2: bool = $is_e5m2;

                fn widen_to_f16(stream: &Stream, from: &Tensor<Self>, to: &mut Tensor<f16>) -> Result<()> {
                    widen::<Self, widen_fp8<device_float::$host>>(stream, from, to)
                }
            }
        )*
    };
}
inputs! {
    F8E4M3, false;
    F8E5M2, true;
}

/// A type of y: [`f16`](half::f16), [`bf16`](half::bf16) or `f32`.
pub trait ScaledOutput: Element + FromAccumulator<f32> + CpuOperand + sealed::Sealed {
    /// The kernel for a tile.
    #[doc(hidden)]
    fn instance(tile: Fp8Tile) -> Instance<Self>;
    /// The kernel that adds sums that are in parts.
    #[doc(hidden)]
    fn sums() -> Sums<Self, Self>;
}

macro_rules! outputs {
    ($($host:ident / $device:ident;)*) => {
        $(
            impl sealed::Sealed for $host {}
            impl ScaledOutput for $host {
                fn instance(tile: Fp8Tile) -> Instance<Self> {
                    match tile {
                        Fp8Tile::Hopper256x128 => {
                            Instance::hopper::<linear_fp8_hopper<$device, Fp8Hopper256x128>, Fp8Hopper256x128>()
                        }
                        Fp8Tile::Hopper128x192 => {
                            Instance::hopper::<linear_fp8_hopper<$device, Fp8Hopper128x192>, Fp8Hopper128x192>()
                        }
                        Fp8Tile::Hopper128x128 => {
                            Instance::hopper::<linear_fp8_hopper<$device, Fp8Hopper128x128>, Fp8Hopper128x128>()
                        }
                        Fp8Tile::Hopper64x128 => {
                            Instance::hopper::<linear_fp8_hopper<$device, Fp8Hopper64x128>, Fp8Hopper64x128>()
                        }
                        Fp8Tile::Hopper64x64 => {
                            Instance::hopper::<linear_fp8_hopper<$device, Fp8Hopper64x64>, Fp8Hopper64x64>()
                        }
                        Fp8Tile::Portable64x64 => Instance::portable::<linear_fp8<$device, Fp8Portable64x64>>(),
                    }
                }

                fn sums() -> Sums<Self, Self> {
                    Sums::new::<linear_sums<$device, $device>>()
                }
            }
        )*
    };
}
outputs! {
    f16 / F16;
    bf16 / Bf16;
    f32 / f32;
}

/// A kernel and how it is launched.
#[doc(hidden)]
pub struct Instance<O: Element> {
    declaration: Declaration,
    kind: Kind<O>,
}

enum Kind<O: Element> {
    /// It reads 8-bit operands.
    Hopper(LaunchHopper<O>),
    /// It reads f16.
    Portable(LaunchPortable<O>),
}

type LaunchHopper<O> = unsafe fn(&Stream, u32, &Matrices<'_>, &Output<'_, O>, Fp8Types) -> Result<()>;
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
    fn hopper<K: Kernel<Args = HopperArgs<O>>, S: PersistentTile>() -> Self {
        Self { declaration: K::DECLARATION, kind: Kind::Hopper(launch_hopper::<O, K, S>) }
    }

    fn portable<K: Kernel<Args = PortableArgs<O>>>() -> Self {
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
    let are_only = has_only_tiles(tiles::<S>(m, n).saturating_mul(matrices.parts.into()), blocks);
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
fn widen<T, K>(stream: &Stream, from: &Tensor<T>, to: &mut Tensor<f16>) -> Result<()>
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

/// Whether rows of an 8-bit matrix start at multiples of 16 bytes.
fn is_aligned<T: Element>(matrix: &Tensor<T>) -> bool {
    (matrix.arg().address() | row_stride(matrix)).is_multiple_of(CHUNK_BYTES as u64)
}

/// The matrix, or a copy of it if its rows are not contiguous or not aligned.
fn aligned<T: Element>(stream: &Stream, matrix: &Matrix<T>) -> Result<Tensor<T>> {
    matrix.in_place(is_aligned).map_or_else(|| matrix.copy(stream), Ok)
}

/// A copy in f16, its rows filled up to whole chunks.
fn widened<T: ScaledInput>(
    stream: &Stream,
    matrix: &Matrix<T>,
    [rows, columns]: [u32; 2],
) -> Result<Tensor<f16>> {
    let (rows, columns, chunk) = (rows as usize, columns as usize, WIDEN_CHUNK as usize);
    let mut wide = Tensor::uninit_on(stream, [rows, columns.next_multiple_of(chunk)])?;
    if wide.is_empty() {
        return Ok(wide);
    }
    let is_whole = |matrix: &Tensor<T>| is_aligned(matrix) && columns.is_multiple_of(chunk);
    let from = matrix.in_place(is_whole).map_or_else(|| matrix.copy(stream), Ok)?;
    T::widen_to_f16(stream, &from, &mut wide)?;
    Ok(wide)
}

/// Kernel launches that fit the operands.
pub(super) struct Launch<O: Element> {
    instance: Instance<O>,
    /// Of sums that are computed in parts, how the parts are, and how they are added.
    passes: Option<(Instance<f32>, Sums<O, O>)>,
    blocks: u32,
    /// Parts of each sum.
    parts: u32,
    m: u32,
    n: u32,
    /// Elements of a sum, or of a part of it.
    k: u32,
}

impl<O: ScaledOutput> Launch<O> {
    pub(super) fn new<X: ScaledInput, W: ScaledInput>(
        op: &ScaledLinearOp<'_, X, W, O>,
        [m, n]: [u32; 2],
        k: u32,
    ) -> Result<Self> {
        let device = op.x.device();
        let properties = device.properties();
        let limits = Limits {
            compute_capability: properties.compute_capability,
            multiprocessors: properties.multiprocessors,
            max_shared_per_block: properties.max_shared_per_block,
        };
        let choice = ScaledChoice {
            output: O::DTYPE,
            has_terms: !op.terms.is_empty(),
            problem: Problem { m, n, k },
            limits,
        };
        notice(Observation::Scaled(choice));
        let tile = match op.tile {
            Some(tile) => expect_tile(tile, k, &limits)?,
            None => tune::choose(device, &choice)?.ok_or_else(|| no_tile(device, &limits))?,
        };
        let most_blocks = properties.max_grid[0];
        let parts = match op.parts {
            Some(parts) if tile.is_hopper() && is_built(SUMS) => parts.clamp(1, MOST_PARTS),
            _ => tile.parts(&choice.problem, &limits),
        };
        // The second launch has its limit too.
        let fits = sums_blocks([m, n, 1]) <= u64::from(most_blocks);
        let (parts, k) = if parts > 1 && fits { split_evenly(k, parts) } else { (1, k) };
        let tiles = tile.tiles(m, n);
        let most_tiles = u64::from(most_blocks / parts);
        if tiles > most_tiles {
            return Err(size_limit("y", "number of tiles", format!("at most {most_tiles}"), tiles));
        }
        // No more than the tiles of all parts, and so a number of 32 bits.
        let blocks = tile.blocks(m, n, parts, properties.multiprocessors) as u32;
        let passes = (parts > 1).then(|| (f32::instance(tile), O::sums()));
        Ok(Self { instance: O::instance(tile), passes, blocks, parts, m, n, k })
    }

    /// What runs, with the operands that it has copied first: where it multiplies f16, both.
    pub(super) fn implementation<X: Element, W: Element>(
        &self,
        device: &Device,
        x: &Matrix<X>,
        w: &Matrix<W>,
    ) -> Implementation {
        let copies = match self.instance.kind {
            Kind::Hopper(_) => {
                let in_place = [x.in_place(is_aligned).is_some(), w.in_place(is_aligned).is_some()];
                in_place.into_iter().filter(|&in_place| !in_place).count()
            }
            Kind::Portable(_) => 2,
        };
        let first = |kernel| Implementation::kernel(device, kernel, self.blocks).with_copies(copies);
        match &self.passes {
            None => first(self.instance.declaration.name),
            Some((parts, sums)) => {
                let blocks = sums_blocks([self.m, self.n, 1]) as u32;
                let sums = Implementation::kernel(device, sums.declaration.name, blocks);
                Implementation::sequence(first(parts.declaration.name), sums)
            }
        }
    }

    /// Launches what computes the parts of the sums, and what adds them.
    ///
    /// # Safety
    ///
    /// As [`launch_hopper`].
    unsafe fn run_passes(
        &self,
        stream: &Stream,
        (of_parts, sums): &(Instance<f32>, Sums<O, O>),
        matrices: &Matrices<'_>,
        output: &Output<'_, O>,
        types: Fp8Types,
    ) -> Result<()> {
        let &Output { y, place, epilogue, m, n } = output;
        let Kind::Hopper(launch) = of_parts.kind else { return Ok(()) };
        let (parts, columns) = parts_of(stream, [m, n, 1], self.parts)?;
        let mut flat = parts.flatten_leading()?;
        let of_parts =
            Output { place: flat.arg_mut(), y: &flat, epilogue: LinearEpilogue::NONE, m, n: columns };
        let total = Total { y_arg: place, strides: [row_stride(y), 0], sizes: [m, n, 1], epilogue };
        // SAFETY: the parts are these launches' own, in the order of the stream; the rest is the caller's promise.
        unsafe {
            launch(stream, self.blocks, matrices, &of_parts, types)?;
            sums.launch(stream, &parts, self.parts, &total)
        }
    }

    /// Launches what computes `op`, as `plan` has checked it, into `y`.
    pub(super) fn run<X: ScaledInput, W: ScaledInput>(
        &self,
        op: &ScaledLinearOp<'_, X, W, O>,
        plan: &Plan<X, W, O>,
        stream: &Stream,
        y: &mut Tensor<O>,
    ) -> Result<()> {
        let (x, w) = (&plan.x, &plan.w);
        let mut flat = as_matrix(OPERATION, "y", y)?;
        let place = flat.arg_mut();
        let epilogue = self.epilogue(op, plan, &flat);
        let output = Output { y: &flat, place, epilogue, m: self.m, n: self.n };
        match self.instance.kind {
            Kind::Hopper(launch) => {
                let (x, w) = (aligned(stream, x)?, aligned(stream, w)?);
                // A stage holds 128 bytes of each row.
                let encode_x = |rows: u32| matrix_map(&x, rows as usize, 128);
                let encode_w = |rows: u32| matrix_map(&w, rows as usize, 128);
                let matrices = Matrices { x: &encode_x, w: &encode_w, k: self.k, parts: self.parts };
                let mut operands: Vec<&dyn Operand> = vec![&x, &w, &*y];
                operands.extend(op.others());
                stream.with_operands(&operands, || {
                    // SAFETY: the plan has checked shapes, strides and device of every operand, and that what is written is apart
                    // from the rest; rows are aligned. Tensors are freed in the order of their home streams, which
                    // `with_operands` makes wait for this work.
                    unsafe {
                        let types = Fp8Types::new(X::IS_E5M2, W::IS_E5M2);
                        match &self.passes {
                            None => launch(stream, self.blocks, &matrices, &output, types),
                            Some(passes) => self.run_passes(stream, passes, &matrices, &output, types),
                        }
                    }
                })
            }
            Kind::Portable(launch) => {
                let x = widened(stream, x, [self.m, self.k])?;
                let w = widened(stream, w, [self.n, self.k])?;
                let mut operands: Vec<&dyn Operand> = vec![&x, &w, &*y];
                operands.extend(op.others());
                stream.with_operands(&operands, || {
                    // SAFETY: as above; the copies are made for this kernel.
                    unsafe { launch(stream, self.blocks, [&x, &w], &output, self.k) }
                })
            }
        }
    }

    /// What is done to the product for the matrix `y`.
    fn epilogue<X: ScaledInput, W: ScaledInput>(
        &self,
        op: &ScaledLinearOp<'_, X, W, O>,
        plan: &Plan<X, W, O>,
        y: &Tensor<O>,
    ) -> LinearEpilogue<O::Device, O::Device> {
        let vector = |scale: Scale<'_>| {
            let stride = u32::from(matches!(scale, Scale::Rows(_)));
            (scale.tensor().map_or(Global::new(0), Tensor::arg), stride)
        };
        let ((row_scale, row_scale_stride), (column_scale, column_scale_stride)) =
            (vector(op.x_scale), vector(op.w_scale));
        LinearEpilogue {
            bias: op.bias.map_or(Global::new(0), Tensor::arg),
            row_scale,
            column_scale,
            row_scale_stride,
            column_scale_stride,
            alpha: op.factor(),
            activation: op.activation.on_device(),
            ..plan.terms.epilogue(y)
        }
    }
}

/// The tile that was asked for, if the device runs it on operands of so many columns.
fn expect_tile(tile: Fp8Tile, k: u32, limits: &Limits) -> Result<Fp8Tile> {
    let (major, minor) = limits.compute_capability;
    let expected = if !tile.runs_on(limits.compute_capability) {
        format!("one that runs on compute capability {major}.{minor}")
    } else if tile.is_hopper() && k == 0 {
        "one that takes operands without columns, which no tensor map describes".into()
    } else if tile.shared_bytes() > limits.max_shared_per_block {
        format!("one of at most {} bytes of shared memory", limits.max_shared_per_block)
    } else {
        return Ok(tile);
    };
    Err(Error::Argument { operation: OPERATION, argument: "tile", expected, actual: tile.to_string() })
}

/// The error where no tile runs on the device.
fn no_tile(device: &Device, limits: &Limits) -> Error {
    const LEAST: &str = "linear_fp8";
    if !is_built(LEAST) {
        return Error::MissingFamily { family: LEAST, feature: LEAST };
    }
    let (major, minor) = limits.compute_capability;
    let (expected, actual) = if limits.compute_capability < TURING {
        ("compute capability 7.5 or later".into(), format!("{major}.{minor}"))
    } else {
        let least = Fp8Tile::Portable64x64.shared_bytes();
        let expected = format!("at least {least} bytes of shared memory a block");
        (expected, format!("{} bytes", limits.max_shared_per_block))
    };
    Error::UnsupportedDevice { operation: OPERATION, device: device.to_string(), expected, actual }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::{Fp8Tile, Limits, ScaledOutput, expect_tile, no_tile};
    use crate::device::Device;

    fn instances_are_what_select_counts_on<O: ScaledOutput>() {
        for tile in Fp8Tile::ALL {
            let declaration = O::instance(tile).declaration;
            assert_eq!(declaration.shared_bytes, tile.shared_bytes(), "{}", declaration.name);
            assert!(declaration.name.contains(tile.name().trim_start_matches("hopper-")), "{tile}");
            assert_eq!(declaration.name.contains("hopper"), tile.is_hopper(), "{}", declaration.name);
            assert!(declaration.name.contains(O::DTYPE.name()), "{}", declaration.name);
            let [along_m, along_n] = tile.cluster();
            assert_eq!(declaration.cluster, [along_m * along_n, 1, 1], "{}", declaration.name);
        }
    }

    #[test]
    fn every_tile_that_select_offers_has_its_kernel() {
        instances_are_what_select_counts_on::<f16>();
        instances_are_what_select_counts_on::<bf16>();
        instances_are_what_select_counts_on::<f32>();
    }
    const H100: Limits =
        Limits { compute_capability: (9, 0), multiprocessors: 132, max_shared_per_block: 232_448 };

    #[test]
    fn a_tile_that_was_asked_for_fits_the_device_or_is_refused() {
        let says = |tile: Fp8Tile, k: u32, limits: &Limits| match expect_tile(tile, k, limits) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        let small = Limits { max_shared_per_block: 49_152, ..H100 };
        let volta = Limits { compute_capability: (7, 0), ..H100 };
        for tile in Fp8Tile::ALL {
            assert_eq!(says(tile, 8, &H100), "");
            let fits = tile.shared_bytes() <= small.max_shared_per_block;
            let message = "expected one of at most 49152 bytes of shared memory";
            assert!(if fits {
                says(tile, 8, &small).is_empty()
            } else {
                says(tile, 8, &small).contains(message)
            });
            assert!(
                says(tile, 8, &volta).contains("expected one that runs on compute capability 7.0"),
                "{tile}"
            );
            assert_eq!(says(tile, 0, &H100).contains("without columns"), tile.is_hopper(), "{tile}");
        }
        let refused = |limits: &Limits| no_tile(&Device::cpu(), limits).to_string();
        assert!(refused(&volta).contains("compute capability 7.5 or later"), "{}", refused(&volta));
        let none = Limits { max_shared_per_block: 1024, ..H100 };
        assert!(refused(&none).contains("bytes of shared memory"), "{}", refused(&none));
    }
}
