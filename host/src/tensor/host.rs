//! Direct access to a CPU tensor's elements, for the operations' CPU implementations.

use std::marker::PhantomData;

use ndarray::{ArrayViewD, ArrayViewMutD, IxDyn, ShapeBuilder, StrideShape};
use parking_lot::{RecursiveRwLockReadGuard, RecursiveRwLockWriteGuard};

use super::{Element, Layout, Tensor};
use crate::device::backend::Memory;
use crate::error::{Error, Result};
use crate::memory::{HostBytes, HostMemory};

/// A CPU tensor's elements, locked for reading.
pub(crate) struct HostView<'a, T: Element> {
    /// `None` for a tensor of no elements.
    bytes: Option<RecursiveRwLockReadGuard<'a, HostBytes>>,
    layout: &'a Layout,
    elements: PhantomData<T>,
}

/// A CPU tensor's elements, locked for writing.
pub(crate) struct HostViewMut<'a, T: Element> {
    bytes: Option<RecursiveRwLockWriteGuard<'a, HostBytes>>,
    layout: &'a Layout,
    elements: PhantomData<T>,
}

impl<T: Element> Tensor<T> {
    /// Locks a CPU tensor's elements for reading. Several may be held, also of one tensor.
    pub(crate) fn host_view(&self, operation: &'static str) -> Result<HostView<'_, T>> {
        let bytes = self.host_memory(operation)?.map(HostMemory::read);
        Ok(HostView { bytes, layout: &self.layout, elements: PhantomData })
    }

    /// Locks a CPU tensor's elements for writing.
    ///
    /// No other view of the same memory may be held by this thread: check [`Tensor::shares_buffer`] first. Take it
    /// after all views for reading are released, or write to a tensor that nobody else has yet; else two threads
    /// that each read what the other one writes block each other.
    pub(crate) fn host_view_mut(&mut self, operation: &'static str) -> Result<HostViewMut<'_, T>> {
        let bytes = self.host_memory(operation)?.map(HostMemory::write);
        Ok(HostViewMut { bytes, layout: &self.layout, elements: PhantomData })
    }

    /// Whether two tensors are views of one buffer, and so under one lock on the CPU.
    pub(crate) fn shares_buffer<U: Element>(&self, other: &Tensor<U>) -> bool {
        std::sync::Arc::ptr_eq(&self.buffer, &other.buffer)
    }

    fn host_memory(&self, operation: &'static str) -> Result<Option<&HostMemory>> {
        match self.buffer.memory() {
            Memory::Host(memory) => Ok(Some(memory)),
            Memory::Empty => Ok(None),
            Memory::Device(_) => Err(Error::DeviceMismatch {
                operation,
                operand: "tensor",
                expected: "cpu".into(),
                actual: self.device().to_string(),
            }),
        }
    }
}

fn array_shape(layout: &Layout) -> StrideShape<IxDyn> {
    // Where there are no elements any strides do, and `ndarray` checks even those.
    if layout.len() == 0 {
        return IxDyn(layout.shape()).into();
    }
    IxDyn(layout.shape()).strides(IxDyn(layout.strides()))
}

impl<T: Element> HostView<'_, T> {
    /// The elements as an array.
    pub(crate) fn array(&self) -> ArrayViewD<'_, T> {
        let elements = self.bytes.as_ref().map_or(&[][..], |bytes| bytemuck::cast_slice(bytes.as_slice()));
        let start = if self.layout.len() == 0 { 0 } else { self.layout.offset() };
        ArrayViewD::from_shape(array_shape(self.layout), &elements[start..])
            .expect("a layout lies within its buffer")
    }
}

impl<T: Element> HostViewMut<'_, T> {
    /// The elements as an array.
    pub(crate) fn array(&mut self) -> ArrayViewMutD<'_, T> {
        let elements = match &mut self.bytes {
            Some(bytes) => bytemuck::cast_slice_mut(bytes.as_mut_slice()),
            None => &mut [][..],
        };
        let start = if self.layout.len() == 0 { 0 } else { self.layout.offset() };
        ArrayViewMutD::from_shape(array_shape(self.layout), &mut elements[start..])
            .expect("a layout lies within its buffer, and its elements are distinct")
    }
}
