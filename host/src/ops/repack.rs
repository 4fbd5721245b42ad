//! Copies of matrices into rows that are contiguous and start at multiples of 16 bytes: what the kernels of products read fastest.
//!
//! [`repack`] is the operation. The kernel and its launch are chosen by one pure function of address, shape and strides.

use warpsmith_dsl::launch::{Global, GlobalMut, Kernel};
use warpsmith_kernels::repack::{
    PASSES, RepackParams, THREADS, TILE_BYTES, Word1, Word2, Word4, Word8, repack_rows, repack_transpose,
};

use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
pub(crate) use crate::ops::CHUNK_BYTES;
use crate::ops::{Implementation, ROW_LIMIT, SIDE_LIMIT};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};

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
    /// [`Error::Shape`] if `x` has less than two axes, [`Error::Type`] if its elements have more than 4 bytes,
    /// [`Error::SizeLimit`] if it has 2³¹ rows or 2³¹ bytes in a row, [`Error::DeviceMismatch`] if the stream is another device's;
    /// whatever allocating the copy, loading the kernel and launching it may return.
    pub fn run(&self) -> Result<Tensor<T>> {
        let (x, device) = (self.x, self.x.device());
        if let Some(stream) = self.stream {
            device.expect_same(OPERATION, "stream", stream.device())?;
        }
        check(x)?;
        let stream = self.stream.cloned().unwrap_or_else(|| device.default_stream());
        let columns = x.shape()[x.rank() - 1];
        let mut padded = x.shape().to_vec();
        padded[x.rank() - 1] = columns.next_multiple_of(CHUNK_BYTES / size_of::<T>());
        if x.is_empty() || device.kind() == DeviceKind::Cpu {
            let mut copy = Tensor::zeros_on(&stream, &padded)?.slice(x.rank() - 1, 0..columns)?;
            copy.copy_from(x)?;
            return Ok(copy);
        }
        let mut copy = Tensor::uninit_on(&stream, &padded)?.slice(x.rank() - 1, 0..columns)?;
        let launches = Launch::all(x, &copy)?;
        let target = copy.arg_mut().address();
        stream.with_operands(&[x as &dyn Operand, &copy], || {
            // SAFETY: the launches were made for these two tensors; the copy is new. Tensors are freed in the order of their home
            // streams, which `with_operands` makes wait for this work.
            launches.iter().try_for_each(|launch| unsafe {
                launch.run(device, &stream, x.arg().address(), target, size_of::<T>())
            })
        })?;
        Ok(copy)
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
        let source = Source::of(self.x);
        let launch = source.launch();
        let blocks = u32::try_from(launch.blocks()).unwrap_or(u32::MAX);
        Ok(Implementation::kernel(device, launch.variant.name(), blocks))
    }
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

impl Source {
    /// The matrices of the innermost leading axis.
    fn of<T: Element>(x: &Tensor<T>) -> Self {
        let axes = x.rank() - 2;
        let (batch, batch_stride) = match axes {
            0 => (1, 0),
            _ => (x.shape()[axes - 1] as u64, x.strides()[axes - 1] as u64),
        };
        Self {
            address: x.arg().address(),
            element: size_of::<T>() as u64,
            rows: x.shape()[axes] as u64,
            columns: x.shape()[axes + 1] as u64,
            batch,
            row_stride: x.strides()[axes] as u64,
            column_stride: x.strides()[axes + 1] as u64,
            batch_stride,
        }
    }

    /// Whether the address, and whatever strides matter beside that of the columns, are multiples of `bytes`.
    fn is_aligned(&self, bytes: u64, strides: [(u64, u64); 2]) -> bool {
        let strides = strides.into_iter().filter(|&(length, _)| length > 1);
        self.address.is_multiple_of(bytes)
            && strides.into_iter().all(|(_, stride)| (stride * self.element).is_multiple_of(bytes))
    }

    /// The kernel and its launch, with the copy's matrices one after the other.
    fn launch(&self) -> Launch {
        let pitch = (self.columns * self.element).next_multiple_of(CHUNK_BYTES as u64);
        let (rows, batch) = ((self.rows, self.row_stride), (self.batch, self.batch_stride));
        let (variant, unit, along_x, lanes_log2, chunked) = if self.columns == 1 || self.column_stride == 1 {
            let fits = |word: u64| {
                word >= self.element
                    && (self.columns * self.element).is_multiple_of(word)
                    && self.is_aligned(word, [rows, batch])
            };
            let word = [8, 4, 2].into_iter().find(|&word| fits(word)).unwrap_or(self.element);
            // Few chunks leave more rows to the threads.
            let chunks = pitch / CHUNK_BYTES as u64;
            let lanes = chunks.next_power_of_two().min(32);
            let block_rows = u64::from(PASSES) * u64::from(THREADS) / lanes;
            let blocks = self.rows.div_ceil(block_rows) * chunks.div_ceil(lanes);
            (Variant::Rows(word), word, blocks, lanes.trailing_zeros(), false)
        } else {
            let tile = u64::from(TILE_BYTES) / self.element;
            let blocks = self.rows.div_ceil(tile) * self.columns.div_ceil(tile);
            let contiguous = self.rows == 1 || self.row_stride == 1;
            let chunked = contiguous
                && self.is_aligned(CHUNK_BYTES as u64, [(self.columns, self.column_stride), batch]);
            (Variant::Transpose(self.element), self.element, blocks, 0, chunked)
        };
        let in_units = |elements: u64| elements * self.element / unit;
        let params = RepackParams {
            row_stride: if self.rows > 1 { in_units(self.row_stride) } else { 0 },
            column_stride: if self.columns > 1 { in_units(self.column_stride) } else { 0 },
            batch_stride: if self.batch > 1 { in_units(self.batch_stride) } else { 0 },
            pitch,
            copy_batch_stride: self.rows * pitch,
            rows: self.rows as u32,
            columns: in_units(self.columns) as u32,
            batch: self.batch as u32,
            lanes_log2,
            chunked: chunked.into(),
            reserved: 0,
        };
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
    /// One launch for each index of the leading axes but the last, which is a launch's batch.
    fn all<T: Element>(x: &Tensor<T>, copy: &Tensor<T>) -> Result<Vec<Self>> {
        let outer = x.rank().saturating_sub(3);
        let mut starts = vec![(0, 0)];
        for axis in 0..outer {
            let (from, to) = (x.strides()[axis] as u64, copy.strides()[axis] as u64);
            starts = starts
                .into_iter()
                .flat_map(|(a, b)| (0..x.shape()[axis] as u64).map(move |i| (a + i * from, b + i * to)))
                .collect();
        }
        let base = Source::of(x);
        starts
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
mod tests {
    use super::{Source, Variant};

    /// A row-major matrix of 2-byte elements.
    const ROWS: Source = Source {
        address: 256,
        element: 2,
        rows: 100,
        columns: 64,
        batch: 1,
        row_stride: 64,
        column_stride: 1,
        batch_stride: 0,
    };

    #[test]
    fn rows_are_read_in_the_largest_words_that_everything_is_aligned_to() {
        let variant = |source: Source| source.launch().variant;
        assert_eq!(variant(ROWS), Variant::Rows(8));
        assert_eq!(variant(Source { address: 260, ..ROWS }), Variant::Rows(4));
        assert_eq!(variant(Source { address: 258, ..ROWS }), Variant::Rows(2));
        assert_eq!(variant(Source { row_stride: 65, ..ROWS }), Variant::Rows(2));
        assert_eq!(variant(Source { row_stride: 65, rows: 1, ..ROWS }), Variant::Rows(8));
        assert_eq!(variant(Source { columns: 62, ..ROWS }), Variant::Rows(4));
        assert_eq!(variant(Source { batch: 2, batch_stride: 6401, ..ROWS }), Variant::Rows(2));
        assert_eq!(variant(Source { element: 1, columns: 63, ..ROWS }), Variant::Rows(1));
        assert_eq!(variant(Source { element: 4, address: 260, ..ROWS }), Variant::Rows(4));
        let params = Source { columns: 62, ..ROWS }.launch().params;
        assert_eq!((params.columns, params.row_stride, params.pitch), (31, 32, 128));
    }

    #[test]
    fn columns_are_read_in_chunks_where_they_are_aligned() {
        let columns = Source { row_stride: 1, column_stride: 104, ..ROWS };
        let launch = |source: Source| (source.launch().variant, source.launch().params.chunked);
        assert_eq!(launch(columns), (Variant::Transpose(2), 1));
        assert_eq!(launch(Source { address: 264, ..columns }), (Variant::Transpose(2), 0));
        assert_eq!(launch(Source { column_stride: 100, ..columns }), (Variant::Transpose(2), 0));
        assert_eq!(launch(Source { row_stride: 2, ..columns }), (Variant::Transpose(2), 0));
        assert_eq!(launch(Source { batch: 2, batch_stride: 3, ..columns }), (Variant::Transpose(2), 0));
        assert_eq!(launch(Source { element: 4, ..columns }), (Variant::Transpose(4), 1));
    }

    #[test]
    fn grids_cover_every_row_every_chunk_and_every_matrix() {
        for (rows, columns) in [(1, 1), (1, 4096), (33, 7), (1000, 784), (70_000, 3)] {
            let launch = Source { rows, columns, row_stride: columns, ..ROWS }.launch();
            let lanes = 1 << launch.params.lanes_log2;
            let chunks = (columns * 2).div_ceil(16);
            assert_eq!(launch.grid[0], rows.div_ceil(1024 / lanes) * chunks.div_ceil(lanes));
            let across = Source { row_stride: 1, column_stride: rows.max(2), rows, columns, ..ROWS }.launch();
            if columns > 1 {
                assert_eq!(across.grid[0], rows.div_ceil(64) * columns.div_ceil(64));
            }
        }
        for batch in [1, 2, 65_535, 65_536, 1_000_000] {
            let grid = Source { batch, batch_stride: 6400, ..ROWS }.launch().grid;
            assert!(grid[1] * grid[2] >= batch && grid[1] <= 65_535 && grid[2] <= 65_535, "{grid:?}");
        }
    }
}
