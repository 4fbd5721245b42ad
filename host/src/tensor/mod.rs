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

/// The memory of a tensor's elements, whatever their type.
#[derive(Clone, Copy)]
pub(crate) struct Span<'t> {
    buffer: &'t Arc<Buffer>,
    layout: &'t Layout,
    /// Of an element, in bytes.
    size: usize,
}

impl Span<'_> {
    /// Where they start, as addresses or in the buffer of both; `None` if they cannot meet.
    fn starts(&self, other: &Span<'_>) -> Option<[u64; 2]> {
        let [own, others] = [self, other].map(|span| (span.layout.offset() * span.size) as u64);
        match (self.buffer.foreign_address(), other.buffer.foreign_address()) {
            _ if Arc::ptr_eq(self.buffer, other.buffer) => Some([own, others]),
            (None, None) => None,
            // Foreign memory may be that of another tensor, foreign or this crate's.
            (base, other_base) => {
                let base = base.unwrap_or_else(|| self.buffer.address());
                let other_base = other_base.unwrap_or_else(|| other.buffer.address());
                (self.buffer.device() == other.buffer.device()).then(|| [base + own, other_base + others])
            }
        }
    }

    /// Whether they may have a byte in common. That is told exactly of ranges without gaps, and of parts of one tensor along its axes.
    pub(crate) fn meets(&self, other: &Span<'_>) -> bool {
        let Some([start, other_start]) = self.starts(other) else { return false };
        let [end, other_end] = [(start, self), (other_start, other)]
            .map(|(start, span)| start + (span.layout.span() * span.size) as u64);
        start.max(other_start) < end.min(other_end)
            && !layout::are_apart([(self.layout, self.size, start), (other.layout, other.size, other_start)])
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
        let tensor = Self::allocate("Tensor::zeros", stream, shape.as_ref())?;
        tensor.fill_zero_in(stream)?;
        Ok(tensor)
    }

    /// Sets the elements of a tensor without gaps to zero.
    pub(crate) fn fill_zero_on(&mut self, stream: &Stream) -> Result<()> {
        let tensor = &*self;
        stream.with_operands(&[tensor], || tensor.fill_zero_in(stream))
    }

    /// The same of a tensor that no other stream uses.
    fn fill_zero_in(&self, stream: &Stream) -> Result<()> {
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
    /// That is told exactly of ranges without gaps, and of [slices](Self::slice) of one tensor, such as blocks of its columns. Other
    /// views that interleave may count as sharing.
    #[must_use]
    pub fn shares_memory<U: Element>(&self, other: &Tensor<U>) -> bool {
        self.span().meets(&other.span())
    }

    /// Whether the other tensor is the same view of the same memory, whose elements have the same type.
    pub(crate) fn is_same_view_as<U: Element>(&self, other: &Tensor<U>) -> bool {
        T::DTYPE == U::DTYPE && Arc::ptr_eq(&self.buffer, &other.buffer) && self.layout == other.layout
    }

    /// The memory of the elements.
    pub(crate) fn span(&self) -> Span<'_> {
        Span { buffer: &self.buffer, layout: &self.layout, size: size_of::<T>() }
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

    /// The memory of this view as elements of another type, from `start` of those after its first byte on. `None` if it does not begin at a multiple of such an element.
    /// The caller sees to it that the axes reach no element beyond the view's last.
    pub(crate) fn reinterpreted<U: Element>(
        &self,
        start: usize,
        shape: &[usize],
        strides: &[usize],
    ) -> Option<Tensor<U>> {
        let before = self.layout.offset() * size_of::<T>();
        let bytes = self.layout.span() * size_of::<T>();
        let memory = Layout::contiguous("Tensor::reinterpreted", &[bytes / size_of::<U>()], size_of::<U>());
        let memory = memory.ok()?.starting_at(before / size_of::<U>());
        let layout = memory.with_axes(start, shape, strides);
        before.is_multiple_of(size_of::<U>()).then(|| Tensor {
            buffer: self.buffer.clone(),
            layout,
            elements: PhantomData,
        })
    }

    /// Elements from the first to the last one, both among them.
    pub(crate) fn span_elements(&self) -> usize {
        self.layout.span()
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

    use super::{Element, Tensor};
    use crate::device::Device;

    /// A part of `0..length`, which may be empty.
    fn part(length: usize) -> impl Strategy<Value = std::ops::Range<usize>> {
        (0..=length, 0..=length).prop_map(|(a, b)| a.min(b)..a.max(b))
    }

    /// The bytes of the elements.
    fn places<T: Element>(tensor: &Tensor<T>) -> HashSet<usize> {
        let mut places = vec![tensor.layout.offset()];
        for (&length, &stride) in std::iter::zip(tensor.shape(), tensor.strides()) {
            places =
                places.iter().flat_map(|&place| (0..length).map(move |at| place + at * stride)).collect();
        }
        let size = size_of::<T>();
        places.into_iter().flat_map(|place| place * size..(place + 1) * size).collect()
    }

    /// The part of a tensor along each axis.
    fn part_of<T: Element>(whole: &Tensor<T>, parts: &[std::ops::Range<usize>; 3]) -> Tensor<T> {
        parts.iter().enumerate().fold(whole.clone(), |view, (axis, part)| {
            let length = view.shape()[axis];
            view.slice(axis, part.start.min(length)..part.end.min(length)).unwrap()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn parts_of_one_tensor_share_what_their_elements_share(
            shape in [1usize..4, 1usize..5, 1usize..7],
            parts in [part(3), part(4), part(6)],
            other_parts in [part(3), part(4), part(6)],
            (axis, other_axis) in (0usize..3, 0usize..3),
        ) {
            let whole = Tensor::<half::f16>::zeros(&Device::cpu(), shape).unwrap();
            let (a, b) = (part_of(&whole, &parts), part_of(&whole, &other_parts));
            let share = !places(&a).is_disjoint(&places(&b));
            // The order of the axes says nothing.
            let (a, b) = (a.swap_axes(axis, other_axis).unwrap(), b.swap_axes(0, axis).unwrap());
            prop_assert_eq!(a.shares_memory(&b), share, "{:?} and {:?}", a, b);
            prop_assert_eq!(b.shares_memory(&a), share, "{:?} and {:?}", a, b);
        }

        #[test]
        fn what_shares_an_element_is_told_of_any_views(
            shapes in [[1usize..4, 1usize..5, 1usize..7], [1usize..4, 1usize..5, 1usize..7]],
            parts in [[part(3), part(4), part(6)], [part(3), part(4), part(6)]],
            starts in [0usize..30, 0usize..30],
            (axis, other_axis) in (0usize..3, 0usize..3),
        ) {
            let flat = Tensor::<u8>::zeros(&Device::cpu(), [120]).unwrap();
            let view = |at: usize| {
                let length = shapes[at].iter().product::<usize>();
                let whole = flat.slice(0, starts[at]..starts[at] + length).unwrap().reshape(shapes[at]).unwrap();
                part_of(&whole, &parts[at]).swap_axes(axis, other_axis).unwrap()
            };
            let (a, b) = (view(0), view(1));
            if !places(&a).is_disjoint(&places(&b)) {
                prop_assert!(a.shares_memory(&b) && b.shares_memory(&a), "{:?} and {:?}", a, b);
            }
        }

        #[test]
        fn ranges_share_what_they_have_in_common(starts in [0usize..9, 0usize..9], lengths in [0usize..9, 0usize..9]) {
            let flat = Tensor::<f32>::zeros(&Device::cpu(), [18]).unwrap();
            let view = |at: usize| flat.slice(0, starts[at]..starts[at] + lengths[at]).unwrap();
            let (a, b) = (view(0), view(1));
            prop_assert_eq!(a.shares_memory(&b), !places(&a).is_disjoint(&places(&b)), "{:?} and {:?}", a, b);
        }
    }
}
