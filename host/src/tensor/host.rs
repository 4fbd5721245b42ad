//! Direct access to a CPU tensor's elements, for the operations' CPU implementations.
//!
//! A view is a snapshot: it holds no lock, so parallel work may read through it, and a result is put in place whole with
//! [`Tensor::put_host_bytes`].

use std::marker::PhantomData;
use std::sync::Arc;

use ndarray::{ArrayViewD, IxDyn, ShapeBuilder, StrideShape};

use super::{Element, Layout, Tensor};
use crate::device::backend::Memory;
use crate::device::cpu::out_of_memory;
use crate::error::{Error, Result};
use crate::memory::{HostBytes, HostMemory};

/// A CPU tensor's elements at one moment.
pub(crate) struct HostView<'a, T: Element> {
    /// `None` for a tensor of no elements.
    bytes: Option<Arc<HostBytes>>,
    layout: &'a Layout,
    elements: PhantomData<T>,
}

impl<T: Element> Tensor<T> {
    /// A CPU tensor's elements as they are now.
    pub(crate) fn host_view(&self, operation: &'static str) -> Result<HostView<'_, T>> {
        let bytes = match self.host_memory(operation)? {
            Some(memory) => Some(memory.snapshot().ok_or_else(|| out_of_memory(operation, memory.bytes()))?),
            None => None,
        };
        Ok(HostView { bytes, layout: &self.layout, elements: PhantomData })
    }

    /// Overwrites a CPU tensor's elements with those in `bytes`, in row-major order, without a copy where they are all
    /// that the tensor's memory holds.
    pub(crate) fn put_host_bytes(&mut self, operation: &'static str, bytes: HostBytes) -> Result<()> {
        let Some(memory) = self.host_memory(operation)? else { return Ok(()) };
        self.expect_writable(operation, "output")?;
        // As long as its memory, a tensor without gaps or overlaps starts where that does.
        if self.is_contiguous() && self.len() * size_of::<T>() == self.buffer.bytes() {
            memory.replace(bytes);
            return Ok(());
        }
        self.write_slice(bytemuck::cast_slice(bytes.as_slice()))
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
    /// The elements of a tensor that are in row-major order without gaps.
    pub(crate) fn slice(&self) -> &[T] {
        debug_assert!(self.layout.is_contiguous());
        let elements = self.bytes.as_ref().map_or(&[][..], |bytes| bytemuck::cast_slice(bytes.as_slice()));
        let start = if self.layout.len() == 0 { 0 } else { self.layout.offset() };
        &elements[start..start + self.layout.len()]
    }

    /// The length of the last axis.
    pub(crate) fn columns(&self) -> usize {
        self.layout.shape().last().copied().unwrap_or(1)
    }

    /// The elements as an array.
    pub(crate) fn array(&self) -> ArrayViewD<'_, T> {
        let elements = self.bytes.as_ref().map_or(&[][..], |bytes| bytemuck::cast_slice(bytes.as_slice()));
        let start = if self.layout.len() == 0 { 0 } else { self.layout.offset() };
        ArrayViewD::from_shape(array_shape(self.layout), &elements[start..])
            .expect("a layout lies within its buffer")
    }
}
