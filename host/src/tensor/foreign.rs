//! Tensors of memory that is somebody else's.

use std::marker::PhantomData;
use std::sync::Arc;

use super::layout::Layout;
use super::{Element, Tensor};
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::stream::Stream;

impl<T: Element> Tensor<T> {
    /// A tensor of `shape` and `strides` (in elements) over memory of another library's, whose first element is at `address`. Operations read it where it
    /// is, and refuse to write it.
    ///
    /// `stream` is its home stream: uses here are ordered with that stream's work. Where the other library uses the memory on a stream of
    /// its own, that stream [is borrowed](Stream::borrow) for this. On a GPU the address is one that its kernels may access; on the CPU and the
    /// emulator, one of the host's memory.
    ///
    /// The `owner` keeps the memory alive. It is dropped after the tensor, its views and the graphs that use it, once the work that used the
    /// memory is done: when a stream is next waited for, foreign memory next dropped, or the device closed.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the address is null or not aligned to an element. [`Error::Stride`] if there is not one stride
    /// for each axis, or two indices share an element. [`Error::SizeLimit`] if the memory's size overflows or the driver knows
    /// of a shorter allocation. [`Error::DeviceMismatch`] if it knows that the memory is another GPU's.
    ///
    /// # Safety
    ///
    /// Until the owner is dropped, the memory from the first element to the last is valid for reads, gaps included, and initialised. What else writes it,
    /// the gaps too, is ordered with the home stream's work. On the CPU and the emulator nothing else does while a call here uses it.
    ///
    /// A graph of another library's that captures uses of the tensor does not keep the owner: the memory must outlive the graph.
    pub unsafe fn from_foreign(
        stream: &Stream,
        address: u64,
        shape: impl AsRef<[usize]>,
        strides: impl AsRef<[usize]>,
        owner: impl Send + Sync + 'static,
    ) -> Result<Self> {
        const OPERATION: &str = "Tensor::from_foreign";
        let layout = Layout::strided(OPERATION, shape.as_ref(), strides.as_ref(), size_of::<T>())?;
        // SAFETY: the caller's promise.
        unsafe { Self::adopt(OPERATION, stream, address, layout, owner, false) }
    }

    /// As [`from_foreign`](Self::from_foreign), of memory that operations may write.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Safety
    ///
    /// As there, and the memory is valid for writes, gaps included; what else reads it is ordered with the home stream's work, too.
    pub unsafe fn from_foreign_mut(
        stream: &Stream,
        address: u64,
        shape: impl AsRef<[usize]>,
        strides: impl AsRef<[usize]>,
        owner: impl Send + Sync + 'static,
    ) -> Result<Self> {
        const OPERATION: &str = "Tensor::from_foreign_mut";
        let layout = Layout::strided(OPERATION, shape.as_ref(), strides.as_ref(), size_of::<T>())?;
        // SAFETY: the caller's promise.
        unsafe { Self::adopt(OPERATION, stream, address, layout, owner, true) }
    }

    /// As [`from_foreign`](Self::from_foreign) or, if `is_writable`, [`from_foreign_mut`](Self::from_foreign_mut), of `length` elements without gaps.
    ///
    /// # Safety
    ///
    /// As there.
    #[cfg(feature = "cust")]
    pub(crate) unsafe fn adopt_dense(
        operation: &'static str,
        stream: &Stream,
        (address, length): (u64, usize),
        shape: &[usize],
        owner: impl Send + Sync + 'static,
        is_writable: bool,
    ) -> Result<Self> {
        let layout = Layout::contiguous(operation, shape, size_of::<T>())?;
        if layout.len() != length {
            return Err(Error::Shape {
                operation,
                operand: "memory",
                expected: format!("{} elements for shape {shape:?}", layout.len()),
                actual: vec![length],
            });
        }
        // SAFETY: the caller's promise.
        unsafe { Self::adopt(operation, stream, address, layout, owner, is_writable) }
    }

    unsafe fn adopt(
        operation: &'static str,
        stream: &Stream,
        address: u64,
        layout: Layout,
        owner: impl Send + Sync + 'static,
        is_writable: bool,
    ) -> Result<Self> {
        let bytes = layout.span() * size_of::<T>();
        if bytes != 0 && (address == 0 || !address.is_multiple_of(size_of::<T>() as u64)) {
            return Err(Error::Argument {
                operation,
                argument: "address",
                expected: format!(
                    "an address that is not null and a multiple of {}, the bytes of an element",
                    size_of::<T>()
                ),
                actual: format!("{address:#x}"),
            });
        }
        if address.checked_add(bytes as u64).is_none() {
            return Err(Error::SizeLimit {
                operation,
                operand: "memory",
                quantity: "end of its addresses",
                limit: "below 2^64".into(),
                actual: format!("{address:#x} and {bytes} bytes"),
            });
        }
        // SAFETY: the span is from the first element to the last.
        let buffer =
            unsafe { Buffer::adopt(operation, stream, address, bytes, Box::new(owner), is_writable)? };
        Ok(Self { buffer: Arc::new(buffer), layout, elements: PhantomData })
    }
}
