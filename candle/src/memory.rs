//! candle's memory as operands and results here, without a copy.
//!
//! A [`Call`] checks the operands of an operation. [`Call::lock`] keeps candle from writing them meanwhile, and
//! [`Locked::view`] is a tensor over their memory.
//! A [`Fresh`] is new memory of candle's that an operation writes.

use std::ops::{Deref, DerefMut};

use candle_core::op::BackpropOp;
use candle_core::{DType, Layout, Shape, Storage, StorageRef, Tensor as CandleTensor, WithDType};
use warpsmith::{Element, Stream, Tensor};

use crate::error::{Error, Result};
use crate::place::{Place, expect_same, name};

/// An element type that both sides have.
pub(crate) trait Shared: Element + WithDType + CudaShared {}

impl<T: Element + WithDType + CudaShared> Shared for T {}

/// What candle asks of element types on a GPU.
#[cfg(feature = "cuda")]
pub(crate) trait CudaShared:
    candle_core::cuda::CudaDType
    + candle_core::cuda::cudarc::driver::DeviceRepr
    + candle_core::cuda::cudarc::driver::ValidAsZeroBits
{
}
#[cfg(feature = "cuda")]
impl<T> CudaShared for T where
    T: candle_core::cuda::CudaDType
        + candle_core::cuda::cudarc::driver::DeviceRepr
        + candle_core::cuda::cudarc::driver::ValidAsZeroBits
{
}

/// Nothing without GPUs.
#[cfg(not(feature = "cuda"))]
pub(crate) trait CudaShared {}
#[cfg(not(feature = "cuda"))]
impl<T> CudaShared for T {}

/// An operand and its name in errors.
pub(crate) type Named<'a> = (&'static str, &'a CandleTensor);

/// The operands of an operation, which have been checked, and where it runs.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) operation: &'static str,
    pub(crate) place: Place,
    /// The element type of the floating-point operands.
    pub(crate) dtype: DType,
    operands: Vec<(&'static str, CandleTensor)>,
}

impl Call {
    /// Checks that `operands` are on one device, and of one type: f32, f16 or bf16. Views of which two indices share
    /// an element are copied.
    pub(crate) fn new(operation: &'static str, operands: &[Named<'_>]) -> Result<Self> {
        let &[(operand, first), ..] = operands else {
            return Err(Error::Candle(Box::new(candle_core::Error::msg(format!(
                "{operation}: no operands"
            )))));
        };
        let place = Place::of(operation, operand, first.device())?;
        let mut call = Self { operation, place, dtype: first.dtype(), operands: Vec::new() };
        for &(operand, tensor) in operands {
            let is_float = matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16);
            if !is_float {
                return Err(call.wrong_type(operand, tensor, "f32, f16 or bf16".into()));
            }
            if tensor.dtype() != call.dtype {
                let expected = format!("{}, as `{}` has", call.dtype.as_str(), operands[0].0);
                return Err(call.wrong_type(operand, tensor, expected));
            }
            call.add(operand, tensor)?;
        }
        Ok(call)
    }

    /// Another operand, of one of these types.
    pub(crate) fn with(mut self, operand: Named<'_>, types: &[DType]) -> Result<Self> {
        let (operand, tensor) = operand;
        if !types.contains(&tensor.dtype()) {
            let names: Vec<&str> = types.iter().map(DType::as_str).collect();
            return Err(self.wrong_type(operand, tensor, names.join(" or ")));
        }
        self.add(operand, tensor)?;
        Ok(self)
    }

    /// The same with operands whose last axis has gaps copied.
    pub(crate) fn with_contiguous_rows(mut self) -> Result<Self> {
        for (_, tensor) in &mut self.operands {
            let has_gaps = tensor.stride().last().is_some_and(|&stride| stride != 1);
            if has_gaps && tensor.dims().last().is_some_and(|&length| length > 1) {
                *tensor = tensor.contiguous()?;
            }
        }
        Ok(self)
    }

    /// The operand number `index`, not tracked.
    pub(crate) fn operand(&self, index: usize) -> &CandleTensor {
        &self.operands[index].1
    }

    /// The operands, kept from being written by other threads of candle's.
    pub(crate) fn lock(&self) -> Locked<'_> {
        let guards = self.operands.iter().map(|(_, tensor)| tensor.storage_and_layout()).collect();
        Locked { call: self, guards }
    }

    /// New memory for a result.
    pub(crate) fn fresh<T: Shared>(&self, shape: impl Into<Shape>) -> Result<Fresh<T>> {
        Fresh::new(&self.place, shape.into(), false)
    }

    /// New memory for a result, filled with zeros.
    pub(crate) fn zeros<T: Shared>(&self, shape: impl Into<Shape>) -> Result<Fresh<T>> {
        Fresh::new(&self.place, shape.into(), true)
    }

    /// New memory for a result, if it is wanted.
    pub(crate) fn wanted<T: Shared>(
        &self,
        is_wanted: bool,
        shape: impl Into<Shape>,
    ) -> Result<Option<Fresh<T>>> {
        is_wanted.then(|| self.fresh(shape)).transpose()
    }

    /// The stream of the call.
    pub(crate) fn stream(&self) -> &Stream {
        &self.place.stream
    }

    fn wrong_type(&self, operand: &'static str, tensor: &CandleTensor, expected: String) -> Error {
        Error::Type { operation: self.operation, operand, expected, actual: tensor.dtype() }
    }

    fn add(&mut self, operand: &'static str, tensor: &CandleTensor) -> Result<()> {
        let first = self.operands.first().map_or(operand, |&(first, _)| first);
        expect_same(self.operation, (operand, tensor.device()), (first, &self.place.candle))?;
        let tensor = tensor.detach();
        // Vectors, ids and the like are small; operations read them without gaps.
        let is_dense = tensor.rank() < 2 || matches!(tensor.dtype(), DType::U32 | DType::I64);
        let tensor = match is_apart(tensor.layout()) {
            true if is_dense => tensor.contiguous()?,
            true => tensor,
            false => tensor.force_contiguous()?,
        };
        self.operands.push((operand, tensor));
        Ok(())
    }
}

/// Whether no two indices of a view share an element, by strides that are each beyond the axes of smaller ones.
fn is_apart(layout: &Layout) -> bool {
    let mut axes: Vec<(usize, usize)> = std::iter::zip(layout.stride(), layout.dims())
        .map(|(&stride, &length)| (stride, length))
        .filter(|&(_, length)| length > 1)
        .collect();
    axes.sort_unstable();
    let mut span = 1usize;
    axes.iter().all(|&(stride, length)| {
        let is_beyond = stride >= span;
        span = stride.saturating_mul(length - 1).saturating_add(span);
        is_beyond
    }) || layout.shape().elem_count() == 0
}

/// The operands of a call, locked.
pub(crate) struct Locked<'c> {
    call: &'c Call,
    guards: Vec<(StorageRef<'c>, &'c Layout)>,
}

impl Locked<'_> {
    /// The operand number `index` as a tensor here. It is dropped once the work that reads it is enqueued.
    pub(crate) fn view<T: Shared>(&self, index: usize) -> Result<View<'_, T>> {
        let (storage, layout) = &self.guards[index];
        let place = &self.call.place;
        let (shape, strides) = (layout.dims(), layout.stride());
        match &**storage {
            Storage::Cpu(storage) => {
                // Behind the last element of a view of none there may be nothing.
                let elements = storage.as_slice::<T>()?.get(layout.start_offset()..).unwrap_or_default();
                let address = elements.as_ptr() as u64;
                // SAFETY: a layout of candle's lies within its storage, which the guard keeps alive and unwritten
                // for longer than the view.
                let tensor = unsafe { Tensor::from_foreign(&place.stream, address, shape, strides, ())? };
                Ok(View::new(tensor))
            }
            #[cfg(feature = "cuda")]
            Storage::Cuda(storage) => {
                use candle_core::cuda::cudarc::driver::DevicePtr;
                let slice = storage.as_cuda_slice::<T>()?;
                // The stream of the device, as of all its tensors.
                let (address, sync) = slice.device_ptr(slice.stream());
                let address = address + (layout.start_offset() * size_of::<T>()) as u64;
                // SAFETY: as above. candle frees the memory in the order of the stream that the view's uses are
                // enqueued on, as long as one thread uses the device's default stream, which the page asks for.
                let tensor = unsafe { Tensor::from_foreign(&place.stream, address, shape, strides, ())? };
                Ok(View { tensor, _sync: Some(sync) })
            }
            _ => Err(self.unsupported(index)),
        }
    }

    fn unsupported(&self, index: usize) -> Error {
        let (operation, operand) = (self.call.operation, self.call.operands[index].0);
        Error::UnsupportedDevice { operation, operand, actual: name(&self.call.place.candle) }
    }
}

/// A tensor over memory of candle's.
pub(crate) struct View<'g, T: Element> {
    // Dropped before the guard, which tells candle that the work so far has used the memory.
    tensor: Tensor<T>,
    #[cfg(feature = "cuda")]
    _sync: Option<candle_core::cuda::cudarc::driver::SyncOnDrop<'g>>,
    #[cfg(not(feature = "cuda"))]
    _sync: std::marker::PhantomData<&'g ()>,
}

impl<T: Element> View<'_, T> {
    fn new(tensor: Tensor<T>) -> Self {
        Self { tensor, _sync: Default::default() }
    }
}

impl<T: Element> Deref for View<'_, T> {
    type Target = Tensor<T>;

    fn deref(&self) -> &Tensor<T> {
        &self.tensor
    }
}

impl<T: Element> DerefMut for View<'_, T> {
    fn deref_mut(&mut self) -> &mut Tensor<T> {
        &mut self.tensor
    }
}

/// Memory of candle's for a result.
pub(crate) struct Fresh<T: Shared> {
    place: Place,
    shape: Shape,
    memory: Memory<T>,
}

enum Memory<T> {
    Host(Vec<T>),
    #[cfg(feature = "cuda")]
    Cuda {
        slice: candle_core::cuda::cudarc::driver::CudaSlice<T>,
        stream: std::sync::Arc<candle_core::cuda::cudarc::driver::CudaStream>,
        device: candle_core::CudaDevice,
    },
}

impl<T: Shared> Fresh<T> {
    fn new(place: &Place, shape: Shape, is_zero: bool) -> Result<Self> {
        #[cfg(not(feature = "cuda"))]
        let _ = is_zero;
        let memory = match &place.candle {
            #[cfg(feature = "cuda")]
            candle_core::Device::Cuda(device) => {
                // The driver has no memory of no bytes.
                let length = shape.elem_count().max(1);
                let slice = match is_zero {
                    true => device.alloc_zeros::<T>(length)?,
                    // SAFETY: the operation writes every element before candle, which works on the same stream,
                    // reads one.
                    false => unsafe { device.alloc::<T>(length)? },
                };
                Memory::Cuda { slice, stream: device.cuda_stream(), device: device.clone() }
            }
            _ => Memory::Host(vec![T::zero(); shape.elem_count()]),
        };
        Ok(Self { place: place.clone(), shape, memory })
    }

    /// The memory as a tensor that operations may write. It is dropped once the work that writes it is enqueued.
    pub(crate) fn open(&mut self) -> Result<View<'_, T>> {
        let (stream, shape) = (&self.place.stream, self.shape.dims());
        let layout = Layout::contiguous(&self.shape);
        let strides = layout.stride();
        match &mut self.memory {
            Memory::Host(elements) => {
                let address = elements.as_mut_ptr() as u64;
                // SAFETY: the view borrows the memory, which has as many elements as the shape, none of them
                // uninitialised.
                let tensor = unsafe { Tensor::from_foreign_mut(stream, address, shape, strides, ())? };
                Ok(View::new(tensor))
            }
            #[cfg(feature = "cuda")]
            Memory::Cuda { slice, stream: theirs, .. } => {
                use candle_core::cuda::cudarc::driver::DevicePtrMut;
                let (address, sync) = slice.device_ptr_mut(theirs);
                // SAFETY: as above. candle frees the memory in the order of the stream that the view's uses are
                // enqueued on, as long as one thread uses the device's default stream, which the page asks for.
                let tensor = unsafe { Tensor::from_foreign_mut(stream, address, shape, strides, ())? };
                Ok(View { tensor, _sync: Some(sync) })
            }
        }
    }

    /// What has been written.
    pub(crate) fn finish(self) -> Computed {
        let storage = match self.memory {
            Memory::Host(elements) => Storage::Cpu(T::to_cpu_storage_owned(elements)),
            #[cfg(feature = "cuda")]
            Memory::Cuda { slice, device, .. } => {
                Storage::Cuda(candle_core::CudaStorage::wrap_cuda_slice(slice, device))
            }
        };
        Computed { storage, shape: self.shape }
    }
}

/// The memory of a result as a tensor, if the result is wanted.
pub(crate) fn open<T: Shared>(fresh: &mut Option<Fresh<T>>) -> Result<Option<View<'_, T>>> {
    fresh.as_mut().map(Fresh::open).transpose()
}

/// A result that no gradient flows through, if it was wanted.
pub(crate) fn finished<T: Shared>(fresh: Option<Fresh<T>>) -> Option<CandleTensor> {
    fresh.map(|fresh| fresh.finish().detached())
}

/// A result that is in no graph yet.
pub(crate) struct Computed {
    pub(crate) storage: Storage,
    pub(crate) shape: Shape,
}

impl Computed {
    /// The result as a tensor that no gradient flows through.
    pub(crate) fn detached(self) -> CandleTensor {
        CandleTensor::from_storage(self.storage, self.shape, BackpropOp::none(), false)
    }
}

/// `$body` with `$element` as the type of a call's floating-point operands.
macro_rules! with_element {
    ($call:expr, $element:ident => $body:expr) => {
        match $call.dtype {
            candle_core::DType::F16 => {
                type $element = half::f16;
                $body
            }
            candle_core::DType::BF16 => {
                type $element = half::bf16;
                $body
            }
            // `Call::new` takes these three.
            _ => {
                type $element = f32;
                $body
            }
        }
    };
}
pub(crate) use with_element;
