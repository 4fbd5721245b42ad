//! Direct access to a CPU tensor's elements, for the operations' CPU implementations.
//!
//! Only for reading: a result is written with [`Tensor::write_slice`] once the views of its operands are released. A
//! thread that held a view while it waited to write could block, and be blocked by, one that does so the other way round.

use std::marker::PhantomData;

use ndarray::{ArrayViewD, IxDyn, ShapeBuilder, StrideShape};
use parking_lot::RecursiveRwLockReadGuard;

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

impl<T: Element> Tensor<T> {
    /// Locks a CPU tensor's elements for reading. Several may be held, also of one tensor.
    pub(crate) fn host_view(&self, operation: &'static str) -> Result<HostView<'_, T>> {
        let bytes = self.host_memory(operation)?.map(HostMemory::read);
        Ok(HostView { bytes, layout: &self.layout, elements: PhantomData })
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
