//! The k largest elements of each row.
//!
//! [`topk`] is the operation. A warp selects from a row, or from a part of it where there are few rows; what is selected of the parts
//! goes through the same kernel again, until a warp has a whole row.

use half::{bf16, f16};
use ndarray::{Array2, Ix2};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::{Global, GlobalMut, Kernel};
use warpsmith_kernels::topk::{TopkParams, WARPS, topk as topk_kernel};

use crate::cpu::{self, Operand as CpuOperand};
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::ops::{Implementation, SIDE_LIMIT, expect_result, repack};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};
use crate::trace;

/// The operation's name in errors.
const OPERATION: &str = "topk";
/// The most elements that are selected of a row.
pub const MAX_K: usize = 64;
/// What the kernel for few elements selects at most.
const FEW: u32 = 32;
/// A part of a row has at least so many elements, and at least so many times as many as are selected of it.
const PART: usize = 1024;
const LEAST_GAIN: usize = 16;
/// Warps that keep a multiprocessor's memory accesses going.
const WARPS_PER_MULTIPROCESSOR: usize = 32;

/// The arguments of a kernel.
type Args<D> = (Global<D>, Global<u32>, GlobalMut<D>, GlobalMut<u32>, TopkParams);

/// An element type that the largest elements are selected of.
pub trait TopkElement: Element + CpuOperand {
    /// The kernel for up to 32 elements.
    #[doc(hidden)]
    type Few: Kernel<Args = Args<Self::Device>>;
    /// The kernel for up to 64.
    #[doc(hidden)]
    type Many: Kernel<Args = Args<Self::Device>>;
}

impl TopkElement for f16 {
    type Few = topk_kernel<F16, 1>;
    type Many = topk_kernel<F16, 2>;
}
impl TopkElement for bf16 {
    type Few = topk_kernel<Bf16, 1>;
    type Many = topk_kernel<Bf16, 2>;
}
impl TopkElement for f32 {
    type Few = topk_kernel<f32, 1>;
    type Many = topk_kernel<f32, 2>;
}

/// The `k` largest elements of each row of `x` `[.., N]`, and where they are: values and ids, both `[.., k]`, best first.
///
/// Of equal elements the one that comes first is the better. Every NaN is larger than every number and equal to every other NaN; −0 is
/// equal to 0. Elements are copied as they are, so the result is exact, and the same on every device.
///
/// ```
/// use ndarray::array;
/// use warpsmith::{Device, Tensor, ops};
///
/// let x = Tensor::from_array(&Device::cpu(), &array![[1.0f32, 4.0, 2.0, 4.0], [0.0, -1.0, f32::NAN, 5.0]])?;
/// let (values, ids) = ops::topk(&x, 2).run()?;
/// assert_eq!(ids.to_vec()?, [1, 3, 2, 3]);
/// assert_eq!(values.to_vec()?[..2], [4.0, 4.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn topk<T: TopkElement>(x: &Tensor<T>, k: usize) -> TopkOp<'_, T> {
    TopkOp { x, k, stream: None }
}

/// A selection that has yet to be made; see [`topk`](fn@topk).
#[derive(Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct TopkOp<'a, T: Element> {
    x: &'a Tensor<T>,
    k: usize,
    stream: Option<&'a Stream>,
}

impl<'a, T: TopkElement> TopkOp<'a, T> {
    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// Makes the selection: values and ids. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if `x` has no axis. [`Error::Argument`] if `k` is 0, above 64 or above N. [`Error::SizeLimit`] if x has
    /// 2³¹ rows or more, or as many columns. [`Error::DeviceMismatch`] if the stream is another device's. Otherwise whatever
    /// allocating the results, loading the kernel and launching it may return.
    pub fn run(&self) -> Result<(Tensor<T>, Tensor<u32>)> {
        let _range = trace::operation(OPERATION);
        let sizes = self.sizes()?;
        let (stream, shape) = (self.stream()?, self.shape());
        let mut values = Tensor::uninit_on(&stream, &shape)?;
        let mut ids = Tensor::uninit_on(&stream, &shape)?;
        self.write(sizes, &stream, &mut values, &mut ids)?;
        Ok((values, ids))
    }

    /// Selects into `values` and `ids` `[.., k]`, tensors without gaps, so that the work can be [captured](Stream::capture) with its results kept.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`] and [`Error::Overlap`] if the results do not fit or
    /// share memory with each other or x.
    pub fn run_into(&self, values: &mut Tensor<T>, ids: &mut Tensor<u32>) -> Result<()> {
        let _range = trace::operation(OPERATION);
        let (operation, origin) = (OPERATION, "x and k");
        let sizes = self.sizes()?;
        let (stream, device, shape) = (self.stream()?, self.x.device(), self.shape());
        expect_result(operation, "values", values, device, &shape, origin)?;
        expect_result(operation, "ids", ids, device, &shape, origin)?;
        let shared = [
            ("values", "ids", values.shares_memory(ids)),
            ("values", "x", values.shares_memory(self.x)),
            ("ids", "x", ids.shares_memory(self.x)),
        ];
        if let Some((operand, other, _)) = shared.into_iter().find(|(_, _, is_shared)| *is_shared) {
            return Err(Error::Overlap { operation, operand, other });
        }
        self.write(sizes, &stream, values, ids)
    }

    fn stream(&self) -> Result<Stream> {
        if let Some(stream) = self.stream {
            self.x.device().expect_same(OPERATION, "stream", stream.device())?;
        }
        Ok(self.stream.cloned().unwrap_or_else(|| self.x.device().default_stream()))
    }

    /// The shape of the results.
    fn shape(&self) -> Vec<usize> {
        let mut shape = self.x.shape().to_vec();
        shape.pop();
        shape.push(self.k);
        shape
    }

    /// Selects into results that have been checked, or are new.
    fn write(
        &self,
        sizes: Sizes,
        stream: &Stream,
        values: &mut Tensor<T>,
        ids: &mut Tensor<u32>,
    ) -> Result<()> {
        let device = self.x.device();
        if sizes.rows == 0 {
            return Ok(());
        }
        if device.kind() == DeviceKind::Cpu {
            return self.run_on_cpu(sizes, values, ids);
        }
        let mut x = self.rows(stream)?;
        // The places of what has been selected of parts so far.
        let mut places: Option<Tensor<u32>> = None;
        for (sizes, parts) in sizes.passes(device.properties().multiprocessors as usize) {
            if parts == 1 {
                return launch(stream, &x, places.as_ref(), (values, ids), sizes, 1);
            }
            let shape = [sizes.rows, parts * self.k];
            let mut best = (Tensor::uninit_on(stream, shape)?, Tensor::uninit_on(stream, shape)?);
            launch(stream, &x, places.as_ref(), (&mut best.0, &mut best.1), sizes, parts)?;
            (x, places) = (best.0, Some(best.1));
        }
        Ok(())
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for `x` and `k`.
    pub fn implementation(&self) -> Result<Implementation> {
        let (sizes, device) = (self.sizes()?, self.x.device());
        if sizes.rows == 0 {
            return Ok(Implementation::Empty);
        }
        if device.kind() == DeviceKind::Cpu {
            return Ok(Implementation::Cpu);
        }
        let name = kernel_name::<T>(sizes.k);
        let mut all = Implementation::Empty;
        for (sizes, parts) in sizes.passes(device.properties().multiprocessors as usize) {
            let pass = Implementation::kernel(device, name, sizes.blocks(parts)?);
            all = all.then(pass);
        }
        Ok(all.with_copies(usize::from(self.rows_in_place().is_none())))
    }

    fn sizes(&self) -> Result<Sizes> {
        let (operation, k) = (OPERATION, self.k);
        let Some((&columns, leading)) = self.x.shape().split_last() else {
            let expected = "[.., N], at least one axis".into();
            return Err(Error::Shape { operation, operand: "x", expected, actual: Vec::new() });
        };
        if k == 0 || k > MAX_K.min(columns) {
            return Err(Error::Argument {
                operation,
                argument: "k",
                expected: format!("1 to {MAX_K}, and at most the {columns} columns of x"),
                actual: k.to_string(),
            });
        }
        let rows = leading.iter().product::<usize>();
        for (quantity, size) in [("number of rows", rows), ("number of columns", columns)] {
            if size as u64 >= SIDE_LIMIT {
                let (limit, actual) = (format!("less than {SIDE_LIMIT}"), size.to_string());
                return Err(Error::SizeLimit { operation, operand: "x", quantity, limit, actual });
            }
        }
        Ok(Sizes { rows, columns, k })
    }

    /// x as a matrix with contiguous rows, if it is one.
    fn rows_in_place(&self) -> Option<Tensor<T>> {
        let x = self.x.flatten_leading().ok()?;
        (x.strides()[1] == 1 || x.shape()[1] == 1).then_some(x)
    }

    /// x as a matrix with contiguous rows: a copy, if it is none.
    fn rows(&self, stream: &Stream) -> Result<Tensor<T>> {
        if let Some(x) = self.rows_in_place() {
            return Ok(x);
        }
        let x = if self.x.rank() == 1 { self.x.reshape([1, self.x.len()])? } else { self.x.clone() };
        repack(&x).on(stream).run()?.flatten_leading()
    }

    fn run_on_cpu(&self, sizes: Sizes, values: &mut Tensor<T>, ids: &mut Tensor<u32>) -> Result<()> {
        let shape = |operand, error: ndarray::ShapeError, actual: &[usize]| Error::Shape {
            operation: OPERATION,
            operand,
            expected: error.to_string(),
            actual: actual.to_vec(),
        };
        let (rows, k) = (sizes.rows, sizes.k);
        let copy = self.rows_in_place();
        let x = match copy {
            Some(x) => x,
            None => self.x.deep_clone()?.flatten_leading()?,
        };
        let view = x.host_view(OPERATION)?;
        let matrix =
            view.array().into_dimensionality::<Ix2>().map_err(|error| shape("x", error, x.shape()))?;
        let mut best = Array2::from_elem((rows, k), T::zeroed());
        let mut places = Array2::zeros((rows, k));
        cpu::topk(matrix, best.view_mut(), places.view_mut())?;
        values.write_slice(best.as_slice().unwrap_or_default())?;
        ids.write_slice(places.as_slice().unwrap_or_default())
    }
}

/// The sizes of a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    rows: usize,
    columns: usize,
    k: usize,
}

impl Sizes {
    /// The passes of a selection on a GPU of so many multiprocessors: the rows that each reads, and into how many parts it cuts them. Each
    /// selects of the parts of the pass before; the last one has whole rows.
    fn passes(self, multiprocessors: usize) -> impl Iterator<Item = (Self, usize)> {
        let of = move |sizes: Self| (sizes, sizes.parts(multiprocessors));
        std::iter::successors(Some(of(self)), move |&(sizes, parts)| {
            (parts > 1).then(|| of(Self { columns: parts * sizes.k, ..sizes }))
        })
    }

    /// Into how many parts each row is cut: enough for a GPU of so many multiprocessors, but not so many that they are short, or that
    /// little is won by it.
    fn parts(&self, multiprocessors: usize) -> usize {
        let wanted = (multiprocessors * WARPS_PER_MULTIPROCESSOR) / self.rows.max(1);
        wanted.min(self.columns / PART.max(LEAST_GAIN * self.k)).max(1)
    }

    /// Blocks of a launch.
    fn blocks(&self, parts: usize) -> Result<u32> {
        let blocks = (self.rows as u64 * parts as u64).div_ceil(u64::from(WARPS));
        u32::try_from(blocks).map_err(|_| Error::SizeLimit {
            operation: OPERATION,
            operand: "x",
            quantity: "number of blocks",
            limit: format!("at most {}", u32::MAX),
            actual: blocks.to_string(),
        })
    }
}

/// The entry point for `k` elements.
fn kernel_name<T: TopkElement>(k: usize) -> &'static str {
    if k <= FEW as usize { T::Few::DECLARATION.name } else { T::Many::DECLARATION.name }
}

/// Selects from each of `parts` parts of the rows of `x`, whose elements have the ids `from`, or their places.
fn launch<T: TopkElement>(
    stream: &Stream,
    x: &Tensor<T>,
    from: Option<&Tensor<u32>>,
    (values, ids): (&mut Tensor<T>, &mut Tensor<u32>),
    sizes: Sizes,
    parts: usize,
) -> Result<()> {
    let params = TopkParams {
        row_stride: x.strides()[0] as u64,
        rows: sizes.rows as u32,
        columns: sizes.columns as u32,
        parts: parts as u32,
        k: sizes.k as u32,
    };
    let grid = [sizes.blocks(parts)?, 1, 1];
    let from_arg = from.map_or(Global::new(0), Tensor::arg);
    let arguments = (x.arg(), from_arg, values.arg_mut(), ids.arg_mut(), params);
    let mut operands: Vec<&dyn Operand> = vec![x, values, ids];
    operands.extend(from.map(|from| from as &dyn Operand));
    // SAFETY: the sizes are those of the tensors; the results are new, or were checked to share memory with nothing else. Tensors are freed in the order of their home streams, which
    // `with_operands` makes wait for this work.
    stream.with_operands(&operands, || unsafe {
        if sizes.k <= FEW as usize {
            launch_kernel::<T, T::Few>(stream.device(), stream, grid, arguments)
        } else {
            launch_kernel::<T, T::Many>(stream.device(), stream, grid, arguments)
        }
    })
}

/// # Safety
///
/// The arguments are valid for what the kernel does with them.
unsafe fn launch_kernel<T: TopkElement, K: Kernel<Args = Args<T::Device>>>(
    device: &Device,
    stream: &Stream,
    grid: [u32; 3],
    arguments: Args<T::Device>,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { device.kernel::<K>()?.launch(stream, grid, arguments) }
}

#[cfg(test)]
mod tests {
    use super::Sizes;

    #[test]
    fn few_long_rows_are_cut_into_parts_and_many_or_short_ones_are_not() {
        let parts = |rows, columns, k| Sizes { rows, columns, k }.parts(132);
        assert_eq!(parts(1 << 16, 1 << 17, 16), 1);
        assert_eq!(parts(1, 1000, 16), 1);
        assert_eq!(parts(0, 1 << 17, 16), 128);
        assert!(parts(1, 1 << 17, 16) > 32 && parts(64, 1 << 17, 16) > 32);
        for (rows, columns, k) in [(1, 1 << 20, 64), (1, 1 << 30, 1), (7, 5000, 64), (132, 1 << 16, 3)] {
            let parts = parts(rows, columns, k);
            assert!(columns / parts >= 16 * k || parts == 1, "a pass leaves few of a part");
        }
    }

    #[test]
    fn passes_select_of_what_the_one_before_has_selected_until_a_row_is_whole() {
        let passes = |rows, columns, k| -> Vec<(usize, usize)> {
            Sizes { rows, columns, k }
                .passes(132)
                .map(|(sizes, parts)| {
                    assert_eq!((sizes.rows, sizes.k), (rows, k));
                    (sizes.columns, parts)
                })
                .collect()
        };
        assert_eq!(passes(1 << 16, 1 << 17, 16), [(1 << 17, 1)]);
        assert_eq!(passes(1, 1 << 17, 16), [(1 << 17, 128), (2048, 2), (32, 1)]);
        assert_eq!(passes(1, 1 << 24, 64), [(1 << 24, 4224), (270_336, 264), (16_896, 16), (1024, 1)]);
        assert_eq!(passes(1, 64, 64), [(64, 1)]);
        for (rows, columns, k) in
            [(1, (1 << 31) - 1, 64), (1, (1 << 31) - 1, 1), (4224, 1 << 20, 3), (0, 9, 9)]
        {
            let passes = passes(rows, columns, k);
            assert!(passes.len() <= 5 && passes.last().is_some_and(|&(_, parts)| parts == 1), "{passes:?}");
            assert!(passes.windows(2).all(|pair| pair[1].0 == pair[0].1 * k && pair[1].0 >= k), "{passes:?}");
        }
    }
}
