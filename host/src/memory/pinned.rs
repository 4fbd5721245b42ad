//! Pinned host memory, and the transfers that use it without making the host wait.
//!
//! A transfer owns its host memory until it is done, so nothing can touch the memory while the device's copy engine
//! does: [`Tensor::copy_from_pinned`](crate::Tensor::copy_from_pinned) takes the buffer and [`Transfer::wait`] gives it
//! back.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use crate::device::Device;
use crate::device::backend::HostBlock;
use crate::error::{Error, Result};
use crate::stream::Event;
use crate::tensor::Element;

/// Host memory that a device's copy engines reach directly; ordinary memory where the device has none.
#[derive(Debug)]
pub struct PinnedBuffer<T: Element> {
    block: HostBlock,
    device: Device,
    length: usize,
    elements: PhantomData<T>,
}

impl<T: Element> PinnedBuffer<T> {
    /// A buffer of `length` zeros for transfers to and from `device`.
    ///
    /// # Errors
    ///
    /// [`Error::SizeLimit`] if the buffer's size overflows, [`Error::OutOfMemory`] if the host has too little memory.
    pub fn zeros(device: &Device, length: usize) -> Result<Self> {
        let bytes = length
            .checked_mul(size_of::<T>())
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| Error::SizeLimit {
                operation: "PinnedBuffer::zeros",
                operand: "buffer",
                quantity: "length",
                limit: format!("at most {} elements", isize::MAX as usize / size_of::<T>()),
                actual: length.to_string(),
            })?;
        let block = device.backend().allocate_pinned(bytes)?;
        Ok(Self { block, device: device.clone(), length, elements: PhantomData })
    }

    /// A buffer that holds a copy of `values`.
    ///
    /// # Errors
    ///
    /// As for [`PinnedBuffer::zeros`].
    pub fn from_slice(device: &Device, values: &[T]) -> Result<Self> {
        let mut buffer = Self::zeros(device, values.len())?;
        buffer.copy_from_slice(values);
        Ok(buffer)
    }

    /// Whether the memory is pinned, rather than ordinary memory on a device that has no use for pinned memory.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        matches!(self.block, HostBlock::Cuda(_))
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn as_bytes_ptr(&mut self) -> *mut u8 {
        bytemuck::cast_slice_mut::<T, u8>(self).as_mut_ptr()
    }
}

impl<T: Element> Deref for PinnedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let bytes = match &self.block {
            HostBlock::Pageable(bytes) => bytes.as_slice(),
            HostBlock::Cuda(memory) => memory.as_slice(),
        };
        bytemuck::cast_slice(&bytes[..self.length * size_of::<T>()])
    }
}

impl<T: Element> DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let bytes = match &mut self.block {
            HostBlock::Pageable(bytes) => bytes.as_mut_slice(),
            HostBlock::Cuda(memory) => memory.as_mut_slice(),
        };
        bytemuck::cast_slice_mut(&mut bytes[..self.length * size_of::<T>()])
    }
}

/// A copy under way between a tensor and a [`PinnedBuffer`], which it owns until the copy is done.
///
/// Dropping it waits for the copy. Leaking it leaks the buffer, so the copy never touches freed memory.
#[derive(Debug)]
#[must_use = "dropping a transfer waits for it"]
pub struct Transfer<T: Element> {
    buffer: ManuallyDrop<PinnedBuffer<T>>,
    /// `None` once it has been waited for.
    done: Option<Event>,
}

impl<T: Element> Transfer<T> {
    pub(crate) fn new(buffer: PinnedBuffer<T>, done: Event) -> Self {
        Self { buffer: ManuallyDrop::new(buffer), done: Some(done) }
    }

    /// Whether the copy is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the copy, or work before it, failed.
    pub fn is_done(&self) -> Result<bool> {
        self.done.as_ref().map_or(Ok(true), Event::is_done)
    }

    /// Waits for the copy and gives the buffer back.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the copy, or work before it, failed.
    pub fn wait(mut self) -> Result<PinnedBuffer<T>> {
        if let Some(done) = &self.done {
            done.synchronize()?;
        }
        self.done = None;
        // SAFETY: `self.buffer` is not used again: `self` is forgotten.
        let buffer = unsafe { ManuallyDrop::take(&mut self.buffer) };
        std::mem::forget(self);
        Ok(buffer)
    }
}

impl<T: Element> Drop for Transfer<T> {
    fn drop(&mut self) {
        // Where waiting fails the driver's context is broken: whether the copy engine still runs is unknown, so the
        // memory is leaked rather than handed out again.
        if self.done.as_ref().is_none_or(|done| done.synchronize().is_ok()) {
            // SAFETY: the buffer is dropped here and nowhere else; `wait` forgets `self`.
            unsafe { ManuallyDrop::drop(&mut self.buffer) };
        }
    }
}
