//! Copies: host to device and back, between views, and between devices.
//!
//! A copy of a strided view is a list of two-dimensional copies (rows of bytes with a pitch), so gaps are neither read
//! nor written. Copies from and to ordinary host memory have happened when the call returns; those from and to pinned
//! memory go on in the background and own the memory meanwhile.

use std::sync::Arc;

use ndarray::{ArrayBase, ArrayD, Data, Dimension, IxDyn};

use super::{Element, Layout, Tensor};
use crate::device::Device;
use crate::device::backend::Rows;
use crate::device::cpu::out_of_memory;
use crate::error::{Error, Result};
use crate::memory::{PinnedBuffer, Transfer, zeros};
use crate::stream::Stream;

/// A view that is read in more two-dimensional copies than this is read whole, gaps included, and gathered on the host.
const MOST_READS: usize = 64;

impl<T: Element> Tensor<T> {
    /// A tensor with the elements of `array`, which may have any layout.
    ///
    /// # Errors
    ///
    /// As for [`Tensor::uninit`].
    pub fn from_array<S, D>(device: &Device, array: &ArrayBase<S, D>) -> Result<Self>
    where
        S: Data<Elem = T>,
        D: Dimension,
    {
        let standard = array.as_standard_layout();
        let elements = standard.as_slice().expect("an array in standard layout is a slice");
        Self::from_elements("Tensor::from_array", device, elements, array.shape())
    }

    /// A tensor with the elements of `elements` in row-major order.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if `shape` has another number of elements; otherwise as for [`Tensor::uninit`].
    pub fn from_slice(device: &Device, elements: &[T], shape: impl AsRef<[usize]>) -> Result<Self> {
        Self::from_elements("Tensor::from_slice", device, elements, shape.as_ref())
    }

    fn from_elements(
        operation: &'static str,
        device: &Device,
        elements: &[T],
        shape: &[usize],
    ) -> Result<Self> {
        let layout = Layout::contiguous(operation, shape, size_of::<T>())?;
        if layout.len() != elements.len() {
            return Err(Error::Shape {
                operation,
                operand: "elements",
                expected: format!("{} elements for shape {shape:?}", layout.len()),
                actual: vec![elements.len()],
            });
        }
        let mut tensor = Self::allocate(operation, &device.default_stream(), shape)?;
        tensor.write_dense(elements)?;
        Ok(tensor)
    }

    /// Overwrites the elements with those of `elements`, in row-major order.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the number of elements differs, [`Error::Driver`] if the copy failed.
    pub fn write_slice(&mut self, elements: &[T]) -> Result<()> {
        self.expect_length("Tensor::write_slice", "elements", elements.len())?;
        self.write_dense(elements)
    }

    fn write_dense(&mut self, elements: &[T]) -> Result<()> {
        self.expect_writable("Tensor::write_slice", "tensor")?;
        let stream = self.home_stream();
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        let result =
            self.copies_with_dense("Tensor::write_slice")?.into_iter().try_for_each(|(ours, dense)| {
                // SAFETY: the rows were checked to lie within the buffer, the dense ones lie within `bytes`, which outlives
                // the work: the stream is waited for below, also after an error.
                unsafe {
                    let source = bytes.as_ptr().add(dense.offset);
                    self.device().backend().write(self.buffer.memory(), ours, source, stream.handle())
                }
            });
        let finished = stream.synchronize();
        result.and(finished)
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the copy, or work before it, failed.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let copies = self.copies_with_dense("Tensor::to_vec")?;
        if copies.len() > MOST_READS {
            return self.gather();
        }
        let mut elements = zeros("Tensor::to_vec", self.len())?;
        self.read_rows(copies, &mut elements)?;
        Ok(elements)
    }

    /// The elements as an array in standard layout.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the copy, or work before it, failed.
    pub fn to_array(&self) -> Result<ArrayD<T>> {
        let elements = self.to_vec()?;
        Ok(ArrayD::from_shape_vec(IxDyn(self.shape()), elements)
            .expect("there are as many elements as the shape says"))
    }

    /// Reads the whole span of the view and picks its elements on the host.
    fn gather(&self) -> Result<Vec<T>> {
        let mut span = zeros::<T>("Tensor::to_vec", self.layout.span())?;
        let bytes = size_of_val(&span[..]);
        let rows =
            Rows { offset: self.layout.offset() * size_of::<T>(), pitch: bytes, width: bytes, height: 1 };
        self.buffer.check_rows("Tensor::to_vec", rows)?;
        self.read_rows(vec![(rows, Rows { offset: 0, ..rows })], &mut span)?;
        let mut elements: Vec<T> = Vec::new();
        elements
            .try_reserve_exact(self.len())
            .map_err(|_| out_of_memory("Tensor::to_vec", self.len() * size_of::<T>()))?;
        let dense = Layout::contiguous("Tensor::to_vec", self.shape(), size_of::<T>())?;
        for (ours, _) in self.layout.row_copies(&dense, 1) {
            for row in 0..ours.height {
                let start = ours.offset - self.layout.offset() + row * ours.pitch;
                elements.extend_from_slice(&span[start..start + ours.width]);
            }
        }
        Ok(elements)
    }

    fn read_rows(&self, copies: Vec<(Rows, Rows)>, elements: &mut [T]) -> Result<()> {
        let stream = self.home_stream();
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(elements);
        let start = bytes.as_mut_ptr();
        let result = copies.into_iter().try_for_each(|(ours, dense)| {
            // SAFETY: the rows were checked to lie within the buffer, the dense ones lie within `bytes`, which outlives
            // the work: the stream is waited for below, also after an error.
            unsafe {
                let destination = start.add(dense.offset);
                self.device().backend().read(self.buffer.memory(), ours, destination, stream.handle())
            }
        });
        let finished = stream.synchronize();
        result.and(finished)
    }

    /// The copies between this view and densely packed elements. Dense rows follow each other without a gap.
    fn copies_with_dense(&self, operation: &'static str) -> Result<Vec<(Rows, Rows)>> {
        let dense = Layout::contiguous(operation, self.shape(), size_of::<T>())?;
        let copies = self.layout.row_copies(&dense, size_of::<T>());
        copies.iter().try_for_each(|&(ours, _)| self.buffer.check_rows(operation, ours))?;
        // The rows of one copy are consecutive in the dense array: its pitch is the width.
        debug_assert!(copies.iter().all(|(_, dense)| dense.height == 1 || dense.pitch == dense.width));
        Ok(copies)
    }

    /// Copies the elements of `source`, a tensor of the same shape on the same device.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the shapes differ, [`Error::DeviceMismatch`] if the devices do, [`Error::Overlap`] if the
    /// two share memory, [`Error::Driver`] if the copy could not be enqueued.
    pub fn copy_from(&mut self, source: &Tensor<T>) -> Result<()> {
        let stream = self.home_stream();
        self.copy_from_on(source, &stream)
    }

    /// As [`copy_from`](Self::copy_from), on `stream`.
    pub(crate) fn copy_from_on(&mut self, source: &Tensor<T>, stream: &Stream) -> Result<()> {
        const OPERATION: &str = "Tensor::copy_from";
        self.expect_writable(OPERATION, "destination")?;
        self.expect_shape(OPERATION, "source", source.shape())?;
        self.device().expect_same(OPERATION, "source", source.device())?;
        if self.shares_memory(source) {
            return Err(Error::Overlap { operation: OPERATION, operand: "destination", other: "source" });
        }
        let copies = self.layout.row_copies(&source.layout, size_of::<T>());
        for &(ours, theirs) in &copies {
            self.buffer.check_rows(OPERATION, ours)?;
            source.buffer.check_rows(OPERATION, theirs)?;
        }
        let backend = self.device().backend();
        stream.with_operands(&[source, self], || {
            copies.iter().try_for_each(|&(ours, theirs)| {
                backend.copy((self.buffer.memory(), ours), (source.buffer.memory(), theirs), stream.handle())
            })
        })
    }

    /// A tensor with the same elements in memory of its own, in row-major order without gaps.
    ///
    /// # Errors
    ///
    /// As for [`Tensor::uninit`] and [`Tensor::copy_from`].
    pub fn deep_clone(&self) -> Result<Self> {
        let mut copy = Self::allocate("Tensor::deep_clone", &self.home_stream(), self.shape())?;
        copy.copy_from(self)?;
        Ok(copy)
    }

    /// This tensor if its elements are in row-major order without gaps, else a copy in which they do.
    ///
    /// # Errors
    ///
    /// As for [`Tensor::deep_clone`].
    pub fn contiguous(&self) -> Result<Self> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.deep_clone() }
    }

    /// The same, where the copy is made in the order of `stream`, and of memory from its pool.
    pub(crate) fn contiguous_on(&self, stream: &Stream) -> Result<Self> {
        if self.is_contiguous() {
            return Ok(self.clone());
        }
        let mut copy = Self::allocate("Tensor::contiguous", stream, self.shape())?;
        copy.copy_from_on(self, stream)?;
        Ok(copy)
    }

    /// The tensor on `device`: itself if it is there, else a copy by way of the host.
    ///
    /// # Errors
    ///
    /// As for [`Tensor::to_vec`] and [`Tensor::from_slice`].
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        if self.device() == device {
            return Ok(self.clone());
        }
        Self::from_elements("Tensor::to_device", device, &self.to_vec()?, self.shape())
    }

    fn expect_length(&self, operation: &'static str, operand: &'static str, length: usize) -> Result<()> {
        if length == self.len() {
            return Ok(());
        }
        Err(Error::Shape {
            operation,
            operand,
            expected: format!("{} elements for shape {:?}", self.len(), self.shape()),
            actual: vec![length],
        })
    }

    /// Starts to overwrite the elements with those of `source`, in row-major order, on `stream`.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the number of elements differs, [`Error::DeviceMismatch`] if the buffer or the stream is another
    /// device's, [`Error::Driver`] if the copy could not be enqueued. The buffer is lost then.
    pub fn copy_from_pinned(&mut self, mut source: PinnedBuffer<T>, stream: &Stream) -> Result<Transfer<T>> {
        const OPERATION: &str = "Tensor::copy_from_pinned";
        self.expect_writable(OPERATION, "tensor")?;
        self.expect_length(OPERATION, "source", source.len())?;
        self.device().expect_same(OPERATION, "source", source.device())?;
        let copies = self.copies_with_dense(OPERATION)?;
        let start = source.as_bytes_ptr();
        let backend = self.device().backend();
        let enqueued = stream.with_operands(&[self], || {
            copies.iter().try_for_each(|&(ours, dense)| {
                // SAFETY: the rows were checked to lie within the buffer, the dense ones lie within `source`, which
                // `finish_transfer` keeps until the stream has done the work.
                unsafe {
                    let from = start.add(dense.offset);
                    backend.write(self.buffer.memory(), ours, from, stream.handle())
                }
            })
        });
        finish_transfer(enqueued, source, stream)
    }

    /// Starts to copy the elements to `destination`, in row-major order, on `stream`.
    ///
    /// # Errors
    ///
    /// As for [`Tensor::copy_from_pinned`].
    pub fn copy_to_pinned(&self, mut destination: PinnedBuffer<T>, stream: &Stream) -> Result<Transfer<T>> {
        const OPERATION: &str = "Tensor::copy_to_pinned";
        self.expect_length(OPERATION, "destination", destination.len())?;
        self.device().expect_same(OPERATION, "destination", destination.device())?;
        let copies = self.copies_with_dense(OPERATION)?;
        let start = destination.as_bytes_ptr();
        let backend = self.device().backend();
        let enqueued = stream.with_operands(&[self], || {
            copies.iter().try_for_each(|&(ours, dense)| {
                // SAFETY: the rows were checked to lie within the buffer, the dense ones lie within `destination`,
                // which `finish_transfer` keeps until the stream has done the work.
                unsafe {
                    let to = start.add(dense.offset);
                    backend.read(self.buffer.memory(), ours, to, stream.handle())
                }
            })
        });
        finish_transfer(enqueued, destination, stream)
    }

    /// Whether this is the only view of its memory.
    #[must_use]
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.buffer) == 1
    }
}

/// Hands the buffer to a transfer that waits for the stream. After an error part of the copy may be under way, so the
/// stream is waited for; where even that fails the buffer is leaked rather than freed in use.
fn finish_transfer<T: Element>(
    enqueued: Result<()>,
    buffer: PinnedBuffer<T>,
    stream: &Stream,
) -> Result<Transfer<T>> {
    match enqueued.and_then(|()| stream.record()) {
        Ok(done) => Ok(Transfer::new(buffer, done)),
        Err(error) => {
            if stream.synchronize().is_err() {
                std::mem::forget(buffer);
            }
            Err(error)
        }
    }
}
