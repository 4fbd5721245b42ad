//! Tensors: typed, strided views of a device's memory.
//!
//! A tensor is a view of a buffer. Clones and the views that `slice`, `reshape` and the like return share its memory.
//! Transfers between host and device are in `transfer`, tensor maps for the copy engine in `map`, the CPU device's direct access to the elements in `host`.

mod element;
mod foreign;
pub(crate) mod host;
mod layout;
mod map;
mod transfer;

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

pub use element::{DType, Element};
use layout::Layout;
pub(crate) use layout::contiguous_strides;
pub use map::{L2Promotion, OobFill, Swizzle, TensorMapError, TensorMapOptions, TensorType};
use warpsmith_dsl::launch::{Global, GlobalMut};

use crate::device::Device;
use crate::device::backend::Rows;
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::stream::Stream;

/// A strided, typed view of a device's memory.
///
/// Cloning a tensor, and every method that returns a view, shares the memory; [`Tensor::deep_clone`] does not. Strides
/// are in elements and never negative.
pub struct Tensor<T: Element> {
    buffer: Arc<Buffer>,
    layout: Layout,
    elements: PhantomData<T>,
}

/// The memory that a tensor spans, whatever its type.
#[derive(Clone, Copy)]
pub(crate) struct Span<'t> {
    buffer: &'t Arc<Buffer>,
    /// Where it starts and ends in the buffer.
    bytes: [usize; 2],
}

impl Span<'_> {
    /// How many bytes behind its start the other one starts, where both are of one buffer.
    pub(crate) fn distance(&self, other: &Span<'_>) -> Option<i128> {
        Arc::ptr_eq(self.buffer, other.buffer).then(|| other.bytes[0] as i128 - self.bytes[0] as i128)
    }

    /// Whether they have a byte in common.
    pub(crate) fn meets(&self, other: &Span<'_>) -> bool {
        let meet = |[start, end]: [u64; 2], [other_start, other_end]: [u64; 2]| {
            start.max(other_start) < end.min(other_end)
        };
        let (own, others) = (self.bytes.map(|at| at as u64), other.bytes.map(|at| at as u64));
        match (self.buffer.foreign_address(), other.buffer.foreign_address()) {
            _ if Arc::ptr_eq(self.buffer, other.buffer) => meet(own, others),
            (None, None) => false,
            // Foreign memory may be that of another tensor, foreign or this crate's.
            (base, other_base) => {
                let base = base.unwrap_or_else(|| self.buffer.address());
                let other_base = other_base.unwrap_or_else(|| other.buffer.address());
                self.buffer.device() == other.buffer.device()
                    && meet(own.map(|at| base + at), others.map(|at| other_base + at))
            }
        }
    }
}

/// Rows of neighbours that a tensor's elements make, whatever its type: what [`Span`] tells of, without the gaps between rows.
#[derive(Clone, Copy)]
pub(crate) struct RowSpan<'t> {
    span: Span<'t>,
    /// From the start of a row to that of the next, in bytes; `None` for a single row, or none.
    pitch: Option<usize>,
    /// Of a row, in bytes.
    width: usize,
}

impl RowSpan<'_> {
    /// Whether they may have a byte in common. Told exactly of rows that are as far apart in both, a single row by the other's; those
    /// may be side by side.
    pub(crate) fn meets(&self, other: &RowSpan<'_>) -> bool {
        if !self.span.meets(&other.span) {
            return false;
        }
        let pitch = match (self.pitch, other.pitch) {
            (Some(own), Some(others)) if own == others => own,
            (Some(pitch), None) | (None, Some(pitch)) => pitch,
            _ => return true,
        };
        let is_told =
            pitch >= self.width.max(other.width) && Arc::ptr_eq(self.span.buffer, other.span.buffer);
        if !is_told || pitch == 0 {
            return true;
        }
        let [start, other_start] = [self.span.bytes[0], other.span.bytes[0]];
        // From the start of a row here to the next start of one there.
        let between = (other_start % pitch + pitch - start % pitch) % pitch;
        between < self.width || between + other.width > pitch
    }
}

/// A tensor's layout, whatever its type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'t> {
    /// The type of its elements.
    pub(crate) element: DType,
    /// Where the first of them is.
    pub(crate) address: u64,
    pub(crate) shape: &'t [usize],
    /// In elements.
    pub(crate) strides: &'t [usize],
}

impl<'t> View<'t> {
    pub(crate) fn of<T: Element>(tensor: &'t Tensor<T>) -> Self {
        let address = tensor.arg().address();
        Self { element: T::DTYPE, address, shape: tensor.shape(), strides: tensor.strides() }
    }
}

impl<T: Element> Tensor<T> {
    /// A tensor whose elements are unspecified, on `device`'s default stream.
    ///
    /// For results that are written before they are read; the emulator reports a kernel that reads them first.
    ///
    /// # Errors
    ///
    /// [`Error::SizeLimit`] if the shape's size overflows, [`Error::OutOfMemory`] if the device has too little memory.
    pub fn uninit(device: &Device, shape: impl AsRef<[usize]>) -> Result<Self> {
        Self::uninit_on(&device.default_stream(), shape)
    }

    /// A tensor whose elements are unspecified, with `stream` as its home stream.
    ///
    /// # Errors
    ///
    /// As for [`Tensor::uninit`].
    pub fn uninit_on(stream: &Stream, shape: impl AsRef<[usize]>) -> Result<Self> {
        Self::allocate("Tensor::uninit", stream, shape.as_ref())
    }

    fn allocate(operation: &'static str, stream: &Stream, shape: &[usize]) -> Result<Self> {
        let layout = Layout::contiguous(operation, shape, size_of::<T>())?;
        let buffer = Buffer::allocate(operation, stream, layout.len() * size_of::<T>())?;
        Ok(Self { buffer: Arc::new(buffer), layout, elements: PhantomData })
    }

    /// A tensor of zeros on `device`'s default stream.
    ///
    /// # Errors
    ///
    /// As for [`Tensor::uninit`].
    pub fn zeros(device: &Device, shape: impl AsRef<[usize]>) -> Result<Self> {
        Self::zeros_on(&device.default_stream(), shape)
    }

    /// A tensor of zeros with `stream` as its home stream.
    ///
    /// # Errors
    ///
    /// As for [`Tensor::uninit`].
    pub fn zeros_on(stream: &Stream, shape: impl AsRef<[usize]>) -> Result<Self> {
        let mut tensor = Self::allocate("Tensor::zeros", stream, shape.as_ref())?;
        tensor.fill_zero_on(stream)?;
        Ok(tensor)
    }

    /// Sets the elements of a tensor without gaps to zero, ordered with no other stream than this one.
    pub(crate) fn fill_zero_on(&mut self, stream: &Stream) -> Result<()> {
        debug_assert!(self.is_contiguous(), "{self:?}");
        let bytes = self.len() * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        let rows =
            Rows { offset: self.layout.offset() * size_of::<T>(), pitch: bytes, width: bytes, height: 1 };
        self.device().backend().fill(self.buffer.memory(), rows, 0, stream.handle())
    }

    fn with_layout(&self, layout: Layout) -> Self {
        Self { buffer: self.buffer.clone(), layout, elements: PhantomData }
    }

    /// The length of each axis.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// The elements from one index of each axis to the next.
    #[must_use]
    pub fn strides(&self) -> &[usize] {
        self.layout.strides()
    }

    /// The number of axes.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.shape().len()
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// The device that holds the elements.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.buffer.device()
    }

    /// The stream that the memory was allocated on.
    #[must_use]
    pub fn home_stream(&self) -> Stream {
        Stream::new(self.device().clone(), self.buffer.home().clone())
    }

    /// Whether the elements are in row-major order without gaps.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// Whether this tensor and `other` may have an element in common.
    ///
    /// Compares the ranges of memory that the views span, so two views that interleave count as sharing.
    #[must_use]
    pub fn shares_memory<U: Element>(&self, other: &Tensor<U>) -> bool {
        self.span().meets(&other.span())
    }

    /// As [`shares_memory`](Self::shares_memory), but told exactly of matrices whose rows are as far apart in both: rows that are side by side have nothing in
    /// common.
    pub(crate) fn shares_rows<U: Element>(&self, other: &Tensor<U>) -> bool {
        match (self.row_span(), other.row_span()) {
            (Some(own), Some(others)) => own.meets(&others),
            _ => self.shares_memory(other),
        }
    }

    /// The rows that the elements make, if they do: all axes but the last one are one of rows, and elements of a row are neighbours.
    pub(crate) fn row_span(&self) -> Option<RowSpan<'_>> {
        let matrix = self.layout.flatten_leading().ok()?;
        let (&[rows, columns], &[stride, between]) = (matrix.shape(), matrix.strides()) else { return None };
        let pitch = (rows > 1).then_some(stride * size_of::<T>());
        (columns <= 1 || between == 1).then_some(RowSpan {
            span: self.span(),
            pitch,
            width: columns * size_of::<T>(),
        })
    }

    /// Whether the other tensor is the same view of the same memory, whose elements have the same type.
    pub(crate) fn is_same_view_as<U: Element>(&self, other: &Tensor<U>) -> bool {
        T::DTYPE == U::DTYPE && Arc::ptr_eq(&self.buffer, &other.buffer) && self.layout == other.layout
    }

    /// The memory from the first element to the last.
    pub(crate) fn span(&self) -> Span<'_> {
        let (offset, size) = (self.layout.offset(), size_of::<T>());
        Span { buffer: &self.buffer, bytes: [offset * size, (offset + self.layout.span()) * size] }
    }

    /// Whether the other tensor is the same view of the same memory.
    pub(crate) fn is_same_view(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer) && self.layout == other.layout
    }

    /// The indices `range` of `axis`, as a view.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is no such axis or the range is not within it.
    pub fn slice(&self, axis: usize, range: Range<usize>) -> Result<Self> {
        Ok(self.with_layout(self.layout.slice(axis, range)?))
    }

    /// The elements in the same order under another shape, as a view.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the shape has another number of elements, [`Error::Stride`] if no strides give that view,
    /// [`Error::SizeLimit`] if it has no elements, but axes whose strides overflow.
    pub fn reshape(&self, shape: impl AsRef<[usize]>) -> Result<Self> {
        Ok(self.with_layout(self.layout.reshape("Tensor::reshape", shape.as_ref())?))
    }

    /// The tensor as a matrix, all axes but the last one flattened, as a view. A vector becomes one row.
    ///
    /// # Errors
    ///
    /// [`Error::Stride`] if the leading axes do not have a common stride, [`Error::Shape`] if there is no axis.
    pub fn flatten_leading(&self) -> Result<Self> {
        Ok(self.with_layout(self.layout.flatten_leading()?))
    }

    /// The tensor with two axes exchanged, as a view.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is no such axis.
    pub fn swap_axes(&self, first: usize, second: usize) -> Result<Self> {
        Ok(self.with_layout(self.layout.swap_axes(first, second)?))
    }

    /// Other axes over this view's memory; see [`Layout::with_axes`].
    pub(crate) fn with_axes(&self, start: usize, shape: &[usize], strides: &[usize]) -> Self {
        self.with_layout(self.layout.with_axes(start, shape, strides))
    }

    /// The tensor of `shape` without gaps that starts where this view does, or the error that names this operand if its memory ends before.
    pub(crate) fn dense_from_start(
        &self,
        operation: &'static str,
        operand: &'static str,
        shape: &[usize],
    ) -> Result<Self> {
        let layout = Layout::contiguous(operation, shape, size_of::<T>())?;
        let there = self.buffer.bytes() / size_of::<T>() - self.layout.offset();
        if layout.len() > there {
            return Err(Error::SizeLimit {
                operation,
                operand,
                quantity: "memory from its first element on",
                limit: format!("at least {} elements, those of {shape:?}", layout.len()),
                actual: there.to_string(),
            });
        }
        Ok(self.with_layout(layout.starting_at(self.layout.offset())))
    }

    /// The address of the first element as an argument of a kernel that reads it. Null for a tensor of no elements.
    #[must_use]
    pub fn arg(&self) -> Global<T::Device> {
        Global::new(self.address())
    }

    /// The address of the first element as an argument of a kernel that writes it. Null for a tensor of no elements.
    #[must_use]
    pub fn arg_mut(&mut self) -> GlobalMut<T::Device> {
        GlobalMut::new(self.address())
    }

    fn address(&self) -> u64 {
        match self.buffer.address() {
            0 => 0,
            base => base + (self.layout.offset() * size_of::<T>()) as u64,
        }
    }

    /// The address of the first element on the device, for other libraries; 0 for a tensor of no elements and on the CPU.
    ///
    /// Work of other libraries is ordered with this crate's by the stream that both use: [`home_stream`](Self::home_stream) here, whose
    /// [`cuda_handle`](Stream::cuda_handle) they take, or theirs, which [`Stream::borrow`] takes.
    #[must_use]
    pub fn device_address(&self) -> u64 {
        self.address()
    }

    /// Whether the memory may be written; foreign memory may be read-only.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.buffer.is_writable()
    }

    /// The error for memory that may only be read, if it is.
    pub(crate) fn expect_writable(&self, operation: &'static str, operand: &'static str) -> Result<()> {
        if self.buffer.is_writable() {
            return Ok(());
        }
        Err(Error::ReadOnly { operation, operand })
    }

    pub(crate) fn storage(&self) -> &Buffer {
        &self.buffer
    }

    pub(crate) fn shared_storage(&self) -> &Arc<Buffer> {
        &self.buffer
    }

    /// The error for a shape other than this tensor's, if it is.
    fn expect_shape(&self, operation: &'static str, operand: &'static str, shape: &[usize]) -> Result<()> {
        if shape == self.shape() {
            return Ok(());
        }
        Err(Error::Shape {
            operation,
            operand,
            expected: format!("{:?}, the destination's", self.shape()),
            actual: shape.to_vec(),
        })
    }
}

impl<T: Element> Clone for Tensor<T> {
    fn clone(&self) -> Self {
        self.with_layout(self.layout.clone())
    }
}

impl<T: Element> fmt::Debug for Tensor<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Tensor")
            .field("dtype", &T::DTYPE)
            .field("shape", &self.shape())
            .field("strides", &self.strides())
            .field("device", &self.device())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::Tensor;
    use crate::device::Device;

    /// A part of `0..length`, which may be empty.
    fn part(length: usize) -> impl Strategy<Value = std::ops::Range<usize>> {
        (0..=length, 0..=length).prop_map(|(a, b)| a.min(b)..a.max(b))
    }

    fn places(tensor: &Tensor<u8>) -> HashSet<usize> {
        let [rows, columns] = [0, 1].map(|axis| tensor.shape()[axis]);
        let [stride, between] = [0, 1].map(|axis| tensor.strides()[axis]);
        let place = move |row, column| tensor.layout.offset() + row * stride + column * between;
        (0..rows).flat_map(|row| (0..columns).map(move |column| place(row, column))).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn rows_that_are_as_far_apart_share_what_their_elements_share(
            (rows, columns) in (1usize..6, 1usize..9),
            (of_rows, of_columns) in (part(5), part(8)),
            (other_rows, other_columns) in (part(5), part(8)),
        ) {
            let whole = Tensor::<u8>::zeros(&Device::cpu(), [rows, columns]).unwrap();
            let within = |range: std::ops::Range<usize>, length: usize| range.start.min(length)..range.end.min(length);
            let part = |of_rows, of_columns| {
                whole.slice(0, within(of_rows, rows)).and_then(|x| x.slice(1, within(of_columns, columns))).unwrap()
            };
            let (a, b) = (part(of_rows, of_columns), part(other_rows, other_columns));
            let share = !places(&a).is_disjoint(&places(&b));
            prop_assert_eq!(a.shares_rows(&b), share, "{:?} and {:?}", a, b);
            prop_assert_eq!(b.shares_rows(&a), share, "{:?} and {:?}", a, b);
        }

        #[test]
        fn what_shares_an_element_is_told_of_any_views(
            (rows, columns) in (1usize..6, 1usize..9),
            (start, length) in (0usize..40, 0usize..40),
            part in part(8),
            is_across in any::<bool>(),
        ) {
            let flat = Tensor::<u8>::zeros(&Device::cpu(), [80]).unwrap();
            let a = flat.slice(0, 0..rows * columns).and_then(|x| x.reshape([rows, columns])).unwrap();
            let a = a.slice(1, part.start.min(columns)..part.end.min(columns)).unwrap();
            let a = if is_across { a.swap_axes(0, 1).unwrap() } else { a };
            let b = flat.slice(0, start..start + length).and_then(|x| x.reshape([1, length])).unwrap();
            if !places(&a).is_disjoint(&places(&b)) {
                prop_assert!(a.shares_rows(&b) && b.shares_rows(&a), "{:?} and {:?}", a, b);
            }
        }
    }
}
