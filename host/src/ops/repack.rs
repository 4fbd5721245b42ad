//! Copies of matrices into rows that are contiguous and start at multiples of 16 bytes: what the kernels of products read fastest.
//!
//! [`repack`] is the operation. The kernel and its launch are chosen by one pure function of address, shape and strides.

mod pair;

pub(crate) use pair::repack_both;

use warpsmith_dsl::launch::{Global, GlobalMut, Kernel};
use warpsmith_kernels::repack::{
    PASSES, RepackParams, THREADS, TILE_BYTES, Word1, Word2, Word4, Word8, repack_rows, repack_transpose,
};

use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
pub(crate) use crate::ops::CHUNK_BYTES;
use crate::ops::{Implementation, ROW_LIMIT, SIDE_LIMIT};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor, contiguous_strides};
use crate::trace;

/// The operation's name in errors.
const OPERATION: &str = "repack";
/// Blocks of a grid along y, and along z.
const MOST_ALONG_Y: u64 = 65_535;

/// A copy of `x` `[.., M, K]` whose rows are contiguous and start at multiples of 16 bytes; any strides are taken, those of a
/// transposed view as well.
///
/// The copy is a view `[.., M, K]` of rows with room for whole chunks of 16 bytes; what follows a row there is zero. On a GPU it
/// takes about the time of a plain copy.
///
/// ```
/// use ndarray::array;
/// use warpsmith::{Device, Tensor, ops};
///
/// let device = Device::emulator();
/// let x = Tensor::from_array(&device, &array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
/// let y = ops::repack(&x.swap_axes(0, 1)?).run()?;
/// assert_eq!((y.shape(), y.strides()), (&[3, 2][..], &[4, 1][..]));
/// assert_eq!(y.to_vec()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn repack<T: Element>(x: &Tensor<T>) -> RepackOp<'_, T> {
    RepackOp { x, stream: None }
}

/// A copy that has yet to be made; see [`repack`].
#[derive(Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct RepackOp<'a, T: Element> {
    x: &'a Tensor<T>,
    stream: Option<&'a Stream>,
}

impl<'a, T: Element> RepackOp<'a, T> {
    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// Makes the copy. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if `x` has less than two axes. [`Error::Type`] if its elements have more than 4 bytes.
    /// [`Error::SizeLimit`] if it has 2³¹ rows or 2³¹ bytes in a row. [`Error::DeviceMismatch`] if the stream is another
    /// device's. Otherwise whatever allocating the copy, loading the kernel and launching it may return.
    pub fn run(&self) -> Result<Tensor<T>> {
        let _range = trace::operation(OPERATION);
        let (x, stream) = (self.x, self.checked()?);
        let mut copy =
            Tensor::uninit_on(&stream, padded(x))?.slice(x.rank() - 1, 0..x.shape()[x.rank() - 1])?;
        self.write(&stream, &mut copy)?;
        Ok(copy)
    }

    /// Makes the copy in `y` `[.., M, K]`, so that the work can be [captured](Stream::capture) with its result kept.
    ///
    /// `y` has the layout of what [`run`](Self::run) returns. What follows a row of it up to a multiple of 16 bytes is set to zero.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`] and [`Error::ReadOnly`] if `y` does not fit,
    /// [`Error::Overlap`] if it shares memory with `x`.
    pub fn run_into(&self, y: &mut Tensor<T>) -> Result<()> {
        let _range = trace::operation(OPERATION);
        let stream = self.checked()?;
        self.check_output(y)?;
        self.write(&stream, y)
    }

    /// The stream to run on, once `x` and the stream have been checked.
    fn checked(&self) -> Result<Stream> {
        let device = self.x.device();
        if let Some(stream) = self.stream {
            device.expect_same(OPERATION, "stream", stream.device())?;
        }
        check(self.x)?;
        Ok(self.stream.cloned().unwrap_or_else(|| device.default_stream()))
    }

    /// The error for a tensor that does not have the layout of a new copy.
    fn check_output(&self, y: &Tensor<T>) -> Result<()> {
        let (operation, operand, x) = (OPERATION, "y", self.x);
        x.device().expect_same(operation, operand, y.device())?;
        y.expect_writable(operation, operand)?;
        if y.shape() != x.shape() {
            let expected = format!("{:?}, the shape of x", x.shape());
            return Err(Error::Shape { operation, operand, expected, actual: y.shape().to_vec() });
        }
        if y.is_empty() {
            return Ok(());
        }
        let padded = padded(x);
        let strides = contiguous_strides(&padded);
        let mut lies = y.shape().iter().zip(y.strides()).zip(&strides);
        let lies = lies.all(|((&length, stride), expected)| length == 1 || stride == expected);
        if !lies || !y.arg().address().is_multiple_of(CHUNK_BYTES as u64) {
            let expected =
                format!("{:?}, from an address that is a multiple of {CHUNK_BYTES} bytes", &strides[..]);
            return Err(Error::Stride { operation, operand, expected, actual: y.strides().to_vec() });
        }
        let whole = y.dense_from_start(operation, operand, &padded)?;
        if whole.shares_memory(x) {
            return Err(Error::Overlap { operation, operand, other: "x" });
        }
        Ok(())
    }

    /// Copies into a tensor with the layout of a new copy.
    fn write(&self, stream: &Stream, copy: &mut Tensor<T>) -> Result<()> {
        let (x, device) = (self.x, self.x.device());
        if x.is_empty() {
            return Ok(());
        }
        if device.kind() == DeviceKind::Cpu {
            copy.dense_from_start(OPERATION, "y", &padded(x))?.fill_zero_on(stream)?;
            return copy.copy_from_on(x, stream);
        }
        let launches = Launch::all(x)?;
        let target = copy.arg_mut().address();
        stream.with_operands(&[x as &dyn Operand, &*copy], || {
            // SAFETY: the launches were made for these two tensors, which share no memory. Tensors are freed in the order of their home
            // streams, which `with_operands` makes wait for this work.
            launches.iter().try_for_each(|launch| unsafe {
                launch.run(device, stream, x.arg().address(), target, size_of::<T>())
            })
        })
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for `x`.
    pub fn implementation(&self) -> Result<Implementation> {
        check(self.x)?;
        let device = self.x.device();
        if self.x.is_empty() {
            return Ok(Implementation::Empty);
        }
        if device.kind() == DeviceKind::Cpu {
            return Ok(Implementation::Cpu);
        }
        let launches = Launch::all(self.x)?;
        let Some(launch) = launches.first() else { return Ok(Implementation::Empty) };
        let blocks = u32::try_from(launch.blocks().saturating_mul(launches.len() as u64)).unwrap_or(u32::MAX);
        Ok(Implementation::kernel(device, launch.variant.name(), blocks))
    }
}

/// The shape of the copy of `x` with room for whole chunks in a row.
fn padded<T: Element>(x: &Tensor<T>) -> Vec<usize> {
    let mut padded = x.shape().to_vec();
    if let Some(columns) = padded.last_mut() {
        *columns = columns.next_multiple_of(CHUNK_BYTES / size_of::<T>());
    }
    padded
}

fn check<T: Element>(x: &Tensor<T>) -> Result<()> {
    let (operation, operand) = (OPERATION, "x");
    let &[.., rows, columns] = x.shape() else {
        let expected = "[.., M, K], at least two axes".into();
        return Err(Error::Shape { operation, operand, expected, actual: x.shape().to_vec() });
    };
    if size_of::<T>() > 4 {
        let expected = "one of 1, 2 or 4 bytes".into();
        return Err(Error::Type { operation, operand, expected, actual: T::DTYPE });
    }
    let row_bytes = (columns as u64).saturating_mul(size_of::<T>() as u64);
    for (quantity, size, limit) in
        [("number of rows", rows as u64, SIDE_LIMIT), ("size of a row in bytes", row_bytes, ROW_LIMIT)]
    {
        if size >= limit {
            let (limit, actual) = (format!("less than {limit}"), size.to_string());
            return Err(Error::SizeLimit { operation, operand, quantity, limit, actual });
        }
    }
    Ok(())
}

/// A batch of matrices as a launch reads them; strides in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source {
    address: u64,
    element: u64,
    rows: u64,
    columns: u64,
    batch: u64,
    row_stride: u64,
    column_stride: u64,
    batch_stride: u64,
    /// From one row of the copy to the next, and from one matrix to the next.
    copy_row_stride: u64,
    copy_batch_stride: u64,
}

/// Which kernel copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// Rows that are contiguous, in words of so many bytes.
    Rows(u64),
    /// Elements of so many bytes, transposed.
    Transpose(u64),
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Self::Rows(8) => repack_rows::<Word8>::DECLARATION.name,
            Self::Rows(4) => repack_rows::<Word4>::DECLARATION.name,
            Self::Rows(2) => repack_rows::<Word2>::DECLARATION.name,
            Self::Rows(_) => repack_rows::<Word1>::DECLARATION.name,
            Self::Transpose(4) => repack_transpose::<Word4>::DECLARATION.name,
            Self::Transpose(2) => repack_transpose::<Word2>::DECLARATION.name,
            Self::Transpose(_) => repack_transpose::<Word1>::DECLARATION.name,
        }
    }
}

/// An axis of a tensor and its copy: its length, and the strides along it in both, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    length: u64,
    source: u64,
    copy: u64,
}

/// All axes of a tensor but the last, beside those of a copy whose rows are `pitch` elements apart.
fn axes(shape: &[usize], strides: &[usize], pitch: u64) -> Vec<Axis> {
    let mut copy = pitch;
    let mut axes: Vec<Axis> = Vec::with_capacity(shape.len());
    for (&length, &source) in shape.iter().zip(strides).rev().skip(1) {
        axes.push(Axis { length: length as u64, source: source as u64, copy });
        copy = copy.saturating_mul(length as u64);
    }
    axes.reverse();
    axes
}

/// How the axes before the last make up launches.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Nest {
    /// The rows of a matrix.
    rows: Axis,
    /// The matrices of a launch.
    batch: Axis,
    /// There is a launch for each index of these.
    outer: Vec<Axis>,
}

impl Nest {
    /// The fewest launches for axes that are all longer than 0, the rows last.
    ///
    /// Neighbours become one axis where the outer one goes on where the inner one ends, in the tensor and in the copy; so a tensor
    /// without gaps is one long matrix. Of what is left the last are the rows, the longest of the others the batch.
    fn of(axes: &[Axis]) -> Self {
        let single = Axis { length: 1, source: 0, copy: 0 };
        let mut merged: Vec<Axis> = Vec::with_capacity(axes.len());
        for &inner in axes.iter().filter(|axis| axis.length != 1) {
            match merged.last_mut() {
                Some(outer)
                    if outer.source == inner.source.saturating_mul(inner.length)
                        && outer.copy == inner.copy.saturating_mul(inner.length)
                        // What a kernel counts is a number of 32 bits.
                        && outer.length.saturating_mul(inner.length) < SIDE_LIMIT =>
                {
                    *outer = Axis { length: outer.length * inner.length, ..inner };
                }
                _ => merged.push(inner),
            }
        }
        // A kernel puts the rows of a matrix one after the other, whatever their strides are in the source.
        let rows = merged.pop().unwrap_or(single);
        let longest = (0..merged.len()).max_by_key(|&axis| merged[axis].length);
        let batch = longest.map_or(single, |axis| merged.remove(axis));
        Self { rows, batch, outer: merged }
    }

    /// Where the matrices of each launch start, in the source and in the copy.
    fn starts(&self) -> Vec<(u64, u64)> {
        let mut starts = vec![(0, 0)];
        for &Axis { length, source, copy } in &self.outer {
            let along = |(a, b): (u64, u64)| (0..length).map(move |i| (a + i * source, b + i * copy));
            starts = starts.into_iter().flat_map(along).collect();
        }
        starts
    }
}

impl Source {
    /// The matrices of a launch for `x`.
    fn of<T: Element>(x: &Tensor<T>, nest: &Nest) -> Self {
        let last = x.rank() - 1;
        Self {
            address: x.arg().address(),
            element: size_of::<T>() as u64,
            rows: nest.rows.length,
            columns: x.shape()[last] as u64,
            batch: nest.batch.length,
            row_stride: nest.rows.source,
            column_stride: x.strides()[last] as u64,
            batch_stride: nest.batch.source,
            copy_row_stride: nest.rows.copy,
            copy_batch_stride: nest.batch.copy,
        }
    }

    /// Whether the address, and whatever strides matter beside that of the columns, are multiples of `bytes`.
    fn is_aligned(&self, bytes: u64, strides: [(u64, u64); 2]) -> bool {
        let strides = strides.into_iter().filter(|&(length, _)| length > 1);
        self.address.is_multiple_of(bytes)
            && strides.into_iter().all(|(_, stride)| (stride * self.element).is_multiple_of(bytes))
    }

    /// The bytes of the largest words that rows can be read in, if they are contiguous.
    fn word(&self) -> Option<u64> {
        let strides = [(self.rows, self.row_stride), (self.batch, self.batch_stride)];
        let fits = |word: u64| {
            word >= self.element
                && (self.columns * self.element).is_multiple_of(word)
                && self.is_aligned(word, strides)
        };
        let word = [8, 4, 2].into_iter().find(|&word| fits(word)).unwrap_or(self.element);
        (self.columns == 1 || self.column_stride == 1).then_some(word)
    }

    /// The kernel and its launch.
    fn launch(&self) -> Launch {
        if let Some(word) = self.word() {
            return self.launch_rows(word);
        }
        let tile = u64::from(TILE_BYTES) / self.element;
        let blocks = self.rows.div_ceil(tile) * self.columns.div_ceil(tile);
        let contiguous = self.rows == 1 || self.row_stride == 1;
        let strides = [(self.columns, self.column_stride), (self.batch, self.batch_stride)];
        let chunked = contiguous && self.is_aligned(CHUNK_BYTES as u64, strides);
        let params = RepackParams { chunked: chunked.into(), ..self.params(self.element) };
        self.launch_of(Variant::Transpose(self.element), params, blocks)
    }

    /// The launch that reads contiguous rows in words of `word` bytes, which fit them.
    fn launch_rows(&self, word: u64) -> Launch {
        // Few chunks leave more rows to the threads.
        let chunks = (self.columns * self.element).div_ceil(CHUNK_BYTES as u64);
        let lanes = chunks.next_power_of_two().min(32);
        let block_rows = u64::from(PASSES) * u64::from(THREADS) / lanes;
        let blocks = self.rows.div_ceil(block_rows) * chunks.div_ceil(lanes);
        let params = RepackParams { lanes_log2: lanes.trailing_zeros(), ..self.params(word) };
        self.launch_of(Variant::Rows(word), params, blocks)
    }

    /// The sizes and strides in words of `unit` bytes.
    fn params(&self, unit: u64) -> RepackParams {
        let in_units = |elements: u64| elements * self.element / unit;
        RepackParams {
            row_stride: if self.rows > 1 { in_units(self.row_stride) } else { 0 },
            column_stride: if self.columns > 1 { in_units(self.column_stride) } else { 0 },
            batch_stride: if self.batch > 1 { in_units(self.batch_stride) } else { 0 },
            pitch: self.copy_row_stride * self.element,
            copy_batch_stride: self.copy_batch_stride * self.element,
            rows: self.rows as u32,
            columns: in_units(self.columns) as u32,
            batch: self.batch as u32,
            lanes_log2: 0,
            chunked: 0,
            reserved: 0,
        }
    }

    fn launch_of(&self, variant: Variant, params: RepackParams, along_x: u64) -> Launch {
        let along_y = self.batch.min(MOST_ALONG_Y);
        let grid = [along_x, along_y, self.batch.div_ceil(along_y.max(1))];
        Launch { variant, params, grid, source: 0, target: 0 }
    }
}

/// A launch of a kernel.
#[derive(Clone, Copy, Debug)]
struct Launch {
    variant: Variant,
    params: RepackParams,
    grid: [u64; 3],
    /// Elements before the first matrix, in the source and in the copy.
    source: u64,
    target: u64,
}

impl Launch {
    /// The launches for `x`, of the least number that [`Nest`] finds.
    fn all<T: Element>(x: &Tensor<T>) -> Result<Vec<Self>> {
        let columns = x.shape()[x.rank() - 1];
        let pitch = columns.next_multiple_of(CHUNK_BYTES / size_of::<T>());
        let nest = Nest::of(&axes(x.shape(), x.strides(), pitch as u64));
        let base = Source::of(x, &nest);
        nest.starts()
            .into_iter()
            .map(|(source, target)| {
                let launch = Source { address: base.address + source * base.element, ..base }.launch();
                let most = x.device().properties().max_grid;
                if (0..3).any(|axis| launch.grid[axis] > u64::from(most[axis])) || base.batch >= SIDE_LIMIT {
                    return Err(Error::SizeLimit {
                        operation: OPERATION,
                        operand: "x",
                        quantity: "number of blocks",
                        limit: format!("at most {most:?}"),
                        actual: format!("{:?}", launch.grid),
                    });
                }
                Ok(Self { source, target, ..launch })
            })
            .collect()
    }

    fn blocks(&self) -> u64 {
        self.grid.iter().product()
    }

    /// Launches the kernel for the source and the copy that begin at these addresses.
    ///
    /// # Safety
    ///
    /// They are those of the tensors that the launch was made for; the copy overlaps nothing.
    unsafe fn run(
        &self,
        device: &Device,
        stream: &Stream,
        source: u64,
        target: u64,
        element: usize,
    ) -> Result<()> {
        let source = Global::new(source + self.source * element as u64);
        let target = GlobalMut::new(target + self.target * element as u64);
        // SAFETY: the caller's promise is the kernels'.
        unsafe {
            match self.variant {
                Variant::Rows(8) => self.launch::<repack_rows<Word8>>(device, stream, source, target),
                Variant::Rows(4) => self.launch::<repack_rows<Word4>>(device, stream, source, target),
                Variant::Rows(2) => self.launch::<repack_rows<Word2>>(device, stream, source, target),
                Variant::Rows(_) => self.launch::<repack_rows<Word1>>(device, stream, source, target),
                Variant::Transpose(4) => {
                    self.launch::<repack_transpose<Word4>>(device, stream, source, target)
                }
                Variant::Transpose(2) => {
                    self.launch::<repack_transpose<Word2>>(device, stream, source, target)
                }
                Variant::Transpose(_) => {
                    self.launch::<repack_transpose<Word1>>(device, stream, source, target)
                }
            }
        }
    }

    /// # Safety
    ///
    /// As [`run`](Self::run), for the kernel that the variant names.
    unsafe fn launch<K: Kernel<Args = (Global<u8>, GlobalMut<u8>, RepackParams)>>(
        &self,
        device: &Device,
        stream: &Stream,
        source: Global<u8>,
        target: GlobalMut<u8>,
    ) -> Result<()> {
        // `all` has found each of them within the device's limits, which are numbers of 32 bits.
        let grid = self.grid.map(|blocks| blocks as u32);
        // SAFETY: the caller's promise.
        unsafe { device.kernel::<K>()?.launch(stream, grid, (source, target, self.params)) }
    }
}

#[cfg(test)]
mod tests;
