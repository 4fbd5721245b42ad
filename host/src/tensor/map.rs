//! Tensor maps: how a tensor is described to the copy engine of a GPU, with the boxes that kernels copy.

pub use warpsmith_emulator::{L2Promotion, OobFill, Swizzle, TensorMapError, TensorType};

use warpsmith_dsl::attention::hopper::Rows;
use warpsmith_dsl::launch::TensorMap;
use warpsmith_emulator::{Interleave, TensorMapArguments};

use super::layout::PerAxis;
use super::{DType, Element, Tensor};
use crate::error::{Error, Result};

/// What a tensor map says beside the tensor and the size of its boxes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorMapOptions {
    /// How a tile's chunks of 16 bytes are permuted in shared memory.
    pub swizzle: Swizzle,
    /// What a load puts in the place of elements outside the tensor.
    pub oob_fill: OobFill,
    /// The granularity of reads into the level-2 cache.
    pub l2_promotion: L2Promotion,
    /// The boxes take every so-manieth element along each axis; empty for every one. The last axis, along which elements
    /// are contiguous, has 1.
    pub element_strides: Vec<usize>,
    /// The type of the elements for the copy engine, if it is not the tensor's own: one of the same size.
    pub data_type: Option<TensorType>,
}

/// The type of an element as the copy engine calls it.
fn data_type(dtype: DType) -> TensorType {
    match dtype {
        DType::F16 => TensorType::F16,
        DType::Bf16 => TensorType::Bf16,
        DType::F32 => TensorType::F32,
        DType::F64 => TensorType::F64,
        DType::F8E4M3 | DType::F8E5M2 | DType::U8 => TensorType::U8,
        DType::I32 => TensorType::S32,
        DType::U32 => TensorType::U32,
        DType::I64 => TensorType::S64,
    }
}

impl<T: Element> Tensor<T> {
    /// A tensor map of this tensor, for a kernel that reads boxes of `box_shape` elements: a length for each axis, in the
    /// order of the tensor's shape.
    ///
    /// The coordinates that a kernel gives begin with the last axis. The map holds the address of the tensor, not the
    /// tensor: it is an argument like [`Tensor::arg`].
    ///
    /// ```
    /// use warpsmith::tensor::{Swizzle, TensorMapOptions};
    /// use warpsmith::{Device, Tensor};
    ///
    /// # fn main() -> warpsmith::Result<()> {
    /// let device: Device = "emulator:9.0".parse()?;
    /// let x = Tensor::<f32>::zeros(&device, [1024, 256])?;
    /// let options = TensorMapOptions { swizzle: Swizzle::B128, ..TensorMapOptions::default() };
    /// let map = x.tensor_map([64, 32], &options)?;
    /// let error = x.tensor_map([64, 33], &options).unwrap_err().to_string();
    /// assert!(error.contains("132 bytes along its innermost axis, expected a multiple of 16"));
    /// # let _ = map;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedDevice`] if the device is not of compute capability 9.0 or later. [`Error::Stride`] if the last axis
    /// is not contiguous. [`Error::Type`] if the options name a type of another size, and [`Error::TensorMap`] if anything else
    /// breaks a rule of the copy engine.
    pub fn tensor_map(
        &self,
        box_shape: impl AsRef<[usize]>,
        options: &TensorMapOptions,
    ) -> Result<TensorMap> {
        self.encode_as("Tensor::tensor_map", self.shape(), self.strides(), box_shape.as_ref(), options)
    }

    /// As [`Tensor::tensor_map`], for a kernel that writes boxes.
    ///
    /// # Errors
    ///
    /// As for [`Tensor::tensor_map`].
    pub fn tensor_map_mut(
        &mut self,
        box_shape: impl AsRef<[usize]>,
        options: &TensorMapOptions,
    ) -> Result<TensorMap> {
        self.encode_as("Tensor::tensor_map_mut", self.shape(), self.strides(), box_shape.as_ref(), options)
    }

    /// A tensor map of the memory from the tensor's first element on, seen with other axes; `shape` and `strides`, in elements, stay
    /// within it.
    pub(crate) fn encode_as(
        &self,
        operation: &'static str,
        shape: &[usize],
        strides: &[usize],
        box_shape: &[usize],
        options: &TensorMapOptions,
    ) -> Result<TensorMap> {
        let capability = self.device().properties().compute_capability;
        if capability != (0, 0) && capability < (9, 0) {
            return Err(Error::UnsupportedDevice {
                operation,
                device: self.device().to_string(),
                expected: "compute capability 9.0 or later, which has a copy engine for tensors".into(),
                actual: format!("{}.{}", capability.0, capability.1),
            });
        }
        if let (Some(&length), Some(&stride)) = (shape.last(), strides.last())
            && length > 1
            && stride != 1
        {
            let expected = "1 for the last axis".into();
            let actual = strides.to_vec();
            return Err(Error::Stride { operation, operand: "tensor", expected, actual });
        }
        let own = data_type(T::DTYPE);
        let data_type = options.data_type.unwrap_or(own);
        if data_type.bytes() != own.bytes() {
            return Err(Error::Type {
                operation,
                operand: "tensor",
                expected: format!("a type of {} bytes for {data_type:?}", data_type.bytes()),
                actual: T::DTYPE,
            });
        }
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let dims: PerAxis<u64> = shape.iter().rev().map(|&length| length as u64).collect();
        let byte_strides: PerAxis<u64> = shape
            .iter()
            .zip(strides)
            .rev()
            .skip(1)
            .map(|(&length, &stride)| {
                let bytes = (stride as u64).saturating_mul(size_of::<T>() as u64);
                // Where there is but one index, the stride counts for nothing.
                if length == 1 { bytes.checked_next_multiple_of(16).unwrap_or(0) } else { bytes }
            })
            .collect();
        let box_dims: PerAxis<u32> = box_shape.iter().rev().map(|&length| number(length)).collect();
        let element_strides: PerAxis<u32> = match options.element_strides.as_slice() {
            [] => PerAxis::from_elem(1, shape.len()),
            given => given.iter().rev().map(|&step| number(step)).collect(),
        };
        let arguments = TensorMapArguments {
            data_type,
            address: self.address(),
            dims: &dims,
            strides: &byte_strides,
            box_dims: &box_dims,
            element_strides: &element_strides,
            interleave: Interleave::None,
            swizzle: options.swizzle,
            l2_promotion: options.l2_promotion,
            oob_fill: options.oob_fill,
        };
        self.device().backend().tensor_map(&arguments).map(TensorMap::from_words)
    }

    /// A tensor map of five axes, as [`Rows`](warpsmith_dsl::attention::hopper::Rows) says, with boxes in the 128-byte swizzle: for a tensor that ends where it does
    /// itself, or with each sequence.
    ///
    /// `axes` are the lengths and strides, in elements, of sequences, heads and rows; `columns` are contiguous.
    pub(crate) fn map_of_rows(
        &self,
        axes: [(usize, u64); 3],
        columns: usize,
        [box_rows, box_columns]: [u32; 2],
        ends: bool,
    ) -> Result<TensorMap> {
        let [sequences, heads, rows] = axes.map(|(length, stride)| {
            // Where there is but one index, the stride counts for nothing.
            let single = (columns * size_of::<T>()).next_multiple_of(16) as u64;
            let bytes = stride.saturating_mul(size_of::<T>() as u64);
            (length.max(1) as u64, if length <= 1 { single } else { bytes })
        });
        let far = u64::from(Rows::FAR);
        let (dims, strides) = if ends {
            let wrap = Rows::WRAP.saturating_sub(rows.1);
            ([columns as u64, far, rows.0 + 1, heads.0, far + 1], [rows.1, rows.1, heads.1, wrap])
        } else {
            ([columns as u64, rows.0, 1, heads.0, sequences.0], [rows.1, rows.1, heads.1, sequences.1])
        };
        let arguments = TensorMapArguments {
            data_type: data_type(T::DTYPE),
            address: self.address(),
            dims: &dims,
            strides: &strides,
            box_dims: &[box_columns, box_rows, 1, 1, 1],
            element_strides: &[1; 5],
            interleave: Interleave::None,
            swizzle: Swizzle::B128,
            l2_promotion: L2Promotion::B128,
            oob_fill: OobFill::Zeros,
        };
        self.device().backend().tensor_map(&arguments).map(TensorMap::from_words)
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::Device;

    fn hopper() -> Device {
        "emulator:9.0".parse().unwrap()
    }

    /// What the map of a tensor should be, by its arguments.
    fn expected(arguments: &TensorMapArguments<'_>) -> TensorMap {
        let map = warpsmith_emulator::TensorMap::encode(arguments).unwrap();
        let (words, _) = map.as_bytes().as_chunks::<8>();
        TensorMap::from_words(std::array::from_fn(|i| u64::from_le_bytes(words[i])))
    }

    #[test]
    fn axes_are_turned_round_and_strides_are_in_bytes() {
        let x = Tensor::<bf16>::zeros(&hopper(), [3, 50, 104]).unwrap();
        let view = x.slice(2, 8..72).unwrap().slice(1, 5..40).unwrap();
        let options = TensorMapOptions {
            swizzle: Swizzle::B64,
            oob_fill: OobFill::Nan,
            l2_promotion: L2Promotion::B128,
            element_strides: vec![1, 2, 1],
            data_type: None,
        };
        let arguments = TensorMapArguments {
            data_type: TensorType::Bf16,
            address: x.arg().address() + 2 * (5 * 104 + 8),
            dims: &[64, 35, 3],
            strides: &[208, 10_400],
            box_dims: &[32, 16, 2],
            element_strides: &[1, 2, 1],
            interleave: Interleave::None,
            swizzle: Swizzle::B64,
            l2_promotion: L2Promotion::B128,
            oob_fill: OobFill::Nan,
        };
        assert_eq!(view.tensor_map([2, 16, 32], &options).unwrap(), expected(&arguments));
    }

    #[test]
    fn the_stride_of_a_single_index_counts_for_nothing() {
        let x = Tensor::<f32>::zeros(&hopper(), [10, 5]).unwrap();
        let row = x.slice(0, 4..5).unwrap().slice(1, 0..4).unwrap();
        assert!(row.tensor_map([1, 4], &TensorMapOptions::default()).is_ok());
        let error = x.tensor_map([1, 4], &TensorMapOptions::default()).unwrap_err().to_string();
        assert_eq!(
            error,
            "making a tensor map: the stride of axis 1 is 20, expected a multiple of 16 below 2^40"
        );
    }

    #[test]
    fn what_breaks_a_rule_is_named() {
        let device = hopper();
        let mut x = Tensor::<f32>::zeros(&device, [16, 8]).unwrap();
        let options = TensorMapOptions::default();
        let message = |result: Result<TensorMap>| result.unwrap_err().to_string();
        assert!(
            message(x.swap_axes(0, 1).unwrap().tensor_map([8, 4], &options)).contains("1 for the last axis")
        );
        assert!(message(x.tensor_map([4], &options)).contains("the box's sizes has 1 numbers, expected 2"));
        assert!(message(x.tensor_map_mut([4, 300], &options)).contains("axis 0 is 300, expected 1 to 256"));
        let half = TensorMapOptions { data_type: Some(TensorType::F16), ..options.clone() };
        assert!(message(x.tensor_map([4, 4], &half)).contains("a type of 2 bytes for F16"));
        let tf32 = TensorMapOptions { data_type: Some(TensorType::Tf32), ..options.clone() };
        assert!(x.tensor_map([4, 4], &tf32).is_ok());
        let empty = Tensor::<f32>::zeros(&device, [0, 4]).unwrap();
        assert!(message(empty.tensor_map([1, 4], &options)).contains("size of axis 1 is 0"));
        let scalar = Tensor::<f32>::zeros(&device, []).unwrap();
        assert!(message(scalar.tensor_map([], &options)).contains("0 axes"));
        assert!(message(x.slice(1, 1..8).unwrap().tensor_map([4, 4], &options)).contains("the address is"));
    }

    #[test]
    fn devices_without_a_copy_engine_say_so() {
        let options = TensorMapOptions::default();
        for (device, part) in
            [(Device::cpu(), "a device that runs kernels"), (Device::emulator(), "9.0 or later")]
        {
            let x = Tensor::<f32>::zeros(&device, [4, 4]).unwrap();
            let error = x.tensor_map([4, 4], &options).unwrap_err();
            assert!(matches!(error, Error::UnsupportedDevice { .. }), "{error}");
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
