//! Weights from safetensors files: named tensors, checked when the file is opened.
//!
//! A file is read whole. Nothing in it is trusted: a damaged header, overlapping or missing data, a shape that does not fit its
//! data are errors, and so is asking for a tensor that is not there or has another type.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use ndarray::{ArrayD, IxDyn};
use safetensors::{Dtype, SafeTensors};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::{DType, Element, Tensor};

/// A safetensors file in memory.
#[derive(Clone, Debug)]
pub struct Weights {
    source: String,
    bytes: Vec<u8>,
    entries: BTreeMap<String, Entry>,
}

/// One tensor of the file.
#[derive(Clone, Debug)]
struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Range<usize>,
}

impl Weights {
    /// Reads the file at `path`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it cannot be read, [`Error::Weights`] if it is not a safetensors file or is damaged.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|source| Error::Io {
            operation: "reading",
            path: path.to_owned(),
            source,
        })?;
        Self::parse(path.display().to_string(), bytes)
    }

    /// Takes the contents of a safetensors file.
    ///
    /// # Errors
    ///
    /// [`Error::Weights`] if it is not one or is damaged.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let bytes = bytes.into();
        Self::parse(format!("a buffer of {} bytes", bytes.len()), bytes)
    }

    fn parse(source: String, bytes: Vec<u8>) -> Result<Self> {
        let damaged = |actual: String| Error::Weights {
            source_name: source.clone(),
            tensor: String::new(),
            expected: "a whole safetensors file".into(),
            actual,
        };
        let file = SafeTensors::deserialize(&bytes).map_err(|error| damaged(error.to_string()))?;
        let mut entries = BTreeMap::new();
        for (name, view) in file.iter() {
            // The view's data is a part of `bytes`; its place in it outlives the borrow.
            let start = view.data().as_ptr().addr().wrapping_sub(bytes.as_ptr().addr());
            let data = start..start.saturating_add(view.data().len());
            let elements =
                view.shape().iter().try_fold(1usize, |product, &length| product.checked_mul(length));
            let size = elements.and_then(|elements| elements.checked_mul(view.dtype().bitsize()));
            if size != data.len().checked_mul(8) || data.end > bytes.len() {
                return Err(damaged(format!(
                    "`{name}` has {} bytes for shape {:?}",
                    data.len(),
                    view.shape()
                )));
            }
            entries
                .insert(name.to_owned(), Entry { dtype: view.dtype(), shape: view.shape().to_vec(), data });
        }
        Ok(Self { source, bytes, entries })
    }

    /// The names of its tensors, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Whether it has a tensor of this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The shape of a tensor; `None` if there is none of this name.
    #[must_use]
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entries.get(name).map(|entry| entry.shape.as_slice())
    }

    /// The tensor `name`, whose elements are of type `T`, as an array.
    ///
    /// # Errors
    ///
    /// [`Error::Weights`] if there is no such tensor or it has another type.
    pub fn array<T: Element>(&self, name: &str) -> Result<ArrayD<T>> {
        let entry = self.entry(name)?;
        let stored = element_type(entry.dtype);
        if stored != Some(T::DTYPE) {
            // Any floating-point type can be converted to any other.
            let is_float = |dtype: DType| dtype.is_float();
            let expected = match stored.is_some_and(is_float) && is_float(T::DTYPE) {
                true => format!(
                    "{}, or a call that converts, like `tensor_converted` and `from_safetensors_converted`",
                    T::DTYPE
                ),
                false => T::DTYPE.to_string(),
            };
            return Err(self.unexpected_type(name, expected, entry));
        }
        self.array_of(name, entry, self.elements::<T>(entry))
    }

    /// The tensor `name`, of any floating-point type, rounded to `T`.
    ///
    /// # Errors
    ///
    /// [`Error::Weights`] if there is no such tensor or it has no floating-point type.
    pub fn array_converted<T: FloatElement>(&self, name: &str) -> Result<ArrayD<T>> {
        let entry = self.entry(name)?;
        let elements = self.converted(name, entry, entry.data.clone())?;
        self.array_of(name, entry, elements)
    }

    /// The elements with the indices `rows` of the first axis of the tensor `name`, of any floating-point type, rounded to `T`.
    ///
    /// # Errors
    ///
    /// [`Error::Weights`] if there is no such tensor, it has no floating-point type or no such indices.
    pub fn rows_converted<T: FloatElement>(&self, name: &str, rows: Range<usize>) -> Result<Vec<T>> {
        let entry = self.entry(name)?;
        let count = entry.shape.first().copied().unwrap_or(0);
        if rows.start > rows.end || rows.end > count {
            return Err(Error::Weights {
                source_name: self.source.clone(),
                tensor: name.into(),
                expected: format!("indices {rows:?} of its first axis"),
                actual: format!("it has the shape {:?}", entry.shape),
            });
        }
        let bytes = entry.data.len() / count.max(1);
        let start = entry.data.start;
        self.converted(name, entry, start + rows.start * bytes..start + rows.end * bytes)
    }

    /// The shape of the tensor `name`, or the error for none.
    pub(crate) fn expect_shape(&self, name: &str) -> Result<&[usize]> {
        Ok(&self.entry(name)?.shape)
    }

    /// Refuses a tensor whose name begins with `prefix` and a dot, if it `is_known` not. An empty prefix is that of all tensors.
    pub(crate) fn expect_known(&self, prefix: &str, is_known: impl Fn(&str) -> bool) -> Result<()> {
        let is_under = |name: &str| {
            prefix.is_empty() || name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'))
        };
        match self.entries.iter().find(|(name, _)| is_under(name) && !is_known(name)) {
            None => Ok(()),
            Some((name, entry)) => Err(Error::Weights {
                source_name: self.source.clone(),
                tensor: name.clone(),
                expected:
                    "no such tensor, which the layer would not read (`ignored` of its names leaves it out)"
                        .into(),
                actual: format!("it has {:?} {:?}", entry.dtype, entry.shape),
            }),
        }
    }

    /// The elements of a tensor that are the bytes `data`, rounded to `T`.
    fn converted<T: FloatElement>(&self, name: &str, entry: &Entry, data: Range<usize>) -> Result<Vec<T>> {
        Ok(match entry.dtype {
            Dtype::F8_E4M3 => self.round(data, |v: F8E4M3| v.to_f64()),
            Dtype::F8_E5M2 => self.round(data, |v: F8E5M2| v.to_f64()),
            Dtype::F16 => self.round(data, |v: f16| v.into()),
            Dtype::BF16 => self.round(data, |v: bf16| v.into()),
            Dtype::F32 => self.round(data, |v: f32| v.into()),
            Dtype::F64 => self.round(data, |v: f64| v),
            _ => {
                let expected = "f8e4m3, f8e5m2, f16, bf16, f32 or f64".into();
                return Err(self.unexpected_type(name, expected, entry));
            }
        })
    }

    fn round<S: Element, T: FloatElement>(&self, data: Range<usize>, widen: fn(S) -> f64) -> Vec<T> {
        self.elements_in(data).map(|value| T::round(widen(value))).collect()
    }

    /// [`array`](Self::array) as a tensor on `device`.
    ///
    /// # Errors
    ///
    /// As [`array`](Self::array), and for copying to the device.
    pub fn tensor<T: Element>(&self, name: &str, device: &Device) -> Result<Tensor<T>> {
        Tensor::from_array(device, &self.array(name)?)
    }

    /// [`array_converted`](Self::array_converted) as a tensor on `device`.
    ///
    /// # Errors
    ///
    /// As [`array_converted`](Self::array_converted), and for copying to the device.
    pub fn tensor_converted<T: FloatElement>(&self, name: &str, device: &Device) -> Result<Tensor<T>> {
        Tensor::from_array(device, &self.array_converted(name)?)
    }

    fn entry(&self, name: &str) -> Result<&Entry> {
        self.entries.get(name).ok_or_else(|| Error::Weights {
            source_name: self.source.clone(),
            tensor: name.into(),
            expected: "a tensor of that name".into(),
            actual: format!("it has {}", self.names().collect::<Vec<_>>().join(", ")),
        })
    }

    fn elements<T: Element>(&self, entry: &Entry) -> Vec<T> {
        self.elements_in(entry.data.clone()).collect()
    }

    fn elements_in<T: Element>(&self, data: Range<usize>) -> impl Iterator<Item = T> {
        // The file's data need not be aligned for `T`.
        self.bytes[data].chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned)
    }

    fn array_of<T>(&self, name: &str, entry: &Entry, elements: Vec<T>) -> Result<ArrayD<T>> {
        ArrayD::from_shape_vec(IxDyn(&entry.shape), elements).map_err(|error| Error::Weights {
            source_name: self.source.clone(),
            tensor: name.into(),
            expected: format!("data for shape {:?}", entry.shape),
            actual: error.to_string(),
        })
    }

    /// The error for a tensor of another shape than `expected` says.
    pub(crate) fn unexpected_shape(&self, name: &str, expected: String) -> Error {
        Error::Weights {
            source_name: self.source.clone(),
            tensor: name.into(),
            expected,
            actual: format!("it has {:?}", self.shape(name).unwrap_or_default()),
        }
    }

    fn unexpected_type(&self, name: &str, expected: String, entry: &Entry) -> Error {
        Error::Weights {
            source_name: self.source.clone(),
            tensor: name.into(),
            expected: format!("elements of type {expected}"),
            actual: format!("it has {:?}", entry.dtype),
        }
    }
}

/// The element type that a file's type stands for.
fn element_type(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F8_E4M3 => Some(DType::F8E4M3),
        Dtype::F8_E5M2 => Some(DType::F8E5M2),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::Bf16),
        Dtype::F32 => Some(DType::F32),
        Dtype::F64 => Some(DType::F64),
        Dtype::U8 => Some(DType::U8),
        Dtype::I32 => Some(DType::I32),
        Dtype::U32 => Some(DType::U32),
        Dtype::I64 => Some(DType::I64),
        _ => None,
    }
}

/// A floating-point element type, to which others can be rounded.
pub trait FloatElement: Element {
    /// The nearest number of this type, ties to even.
    ///
    /// What is too large for a type becomes infinite, but for the 8-bit types, where it becomes the largest number of its sign,
    /// as infinity does. GPUs convert so (`cvt.satfinite`), and a scale is chosen for the largest number to be used. A NaN
    /// stays one.
    fn round(value: f64) -> Self;
}

impl FloatElement for F8E4M3 {
    fn round(value: f64) -> Self {
        F8E4M3::from_f64(value)
    }
}

impl FloatElement for F8E5M2 {
    fn round(value: f64) -> Self {
        F8E5M2::from_f64(value)
    }
}

impl FloatElement for f64 {
    fn round(value: f64) -> Self {
        value
    }
}

impl FloatElement for f32 {
    fn round(value: f64) -> Self {
        value as f32
    }
}

impl FloatElement for f16 {
    fn round(value: f64) -> Self {
        f16::from_f32(round_to_odd(value))
    }
}

impl FloatElement for bf16 {
    fn round(value: f64) -> Self {
        bf16::from_f32(round_to_odd(value))
    }
}

/// `value` as f32, an inexact one rounded to the neighbour with an odd significand: rounding that to a shorter type gives the
/// same as rounding `value` itself.
fn round_to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    if back == value || value.is_nan() || nearest.to_bits() & 1 == 1 {
        nearest
    } else if back.abs() > value.abs() {
        // Also for an overflow to infinity, whose neighbour is f32's largest number.
        f32::from_bits(nearest.to_bits() - 1)
    } else {
        f32::from_bits(nearest.to_bits() + 1)
    }
}

#[cfg(test)]
mod tests {
    use float8::{F8E4M3, F8E5M2};
    use half::{bf16, f16};

    use super::{FloatElement, Weights};

    fn file() -> Vec<u8> {
        let data: Vec<u8> = [1.0f32, -2.5, 3.0, 65504.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let view =
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2, 2], &data).expect("fits");
        safetensors::serialize([("weight", view)], None).expect("serialises")
    }

    #[test]
    fn a_tensor_is_read_as_its_own_type_and_converted_on_request() {
        let weights = Weights::from_bytes(file()).expect("the file is sound");
        assert_eq!(weights.names().collect::<Vec<_>>(), ["weight"]);
        assert_eq!(weights.array::<f32>("weight").expect("it is f32")[[1, 1]], 65504.0);
        let half = weights.array_converted::<f16>("weight").expect("f32 converts");
        assert_eq!(half[[0, 1]], f16::from_f32(-2.5));
    }

    #[test]
    fn a_missing_tensor_and_another_type_are_named() {
        let weights = Weights::from_bytes(file()).expect("the file is sound");
        let missing = weights.array::<f32>("bias").expect_err("there is no bias").to_string();
        assert!(missing.contains("bias") && missing.contains("weight"), "{missing}");
        let wrong = weights.array::<f16>("weight").expect_err("it is f32").to_string();
        assert!(wrong.contains("f16") && wrong.contains("F32"), "{wrong}");
    }

    #[test]
    fn every_truncation_is_an_error() {
        let file = file();
        for length in 0..file.len() {
            assert!(Weights::from_bytes(&file[..length]).is_err(), "the first {length} bytes were taken");
        }
    }

    #[test]
    fn rounding_from_f64_is_done_once() {
        // Just above halfway between two f16 numbers: by way of the nearest f32 it would become a tie and round down.
        let above_halfway = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(<f16 as FloatElement>::round(above_halfway), f16::from_f32(1.0 + 2f32.powi(-10)));
        assert_eq!(
            <bf16 as FloatElement>::round(1.0 + 2f64.powi(-8) + 2f64.powi(-40)),
            bf16::from_f32(1.007_812_5)
        );
        assert_eq!(<f16 as FloatElement>::round(1e300), f16::INFINITY);
        assert!(<f16 as FloatElement>::round(f64::NAN).is_nan());
        assert_eq!(<f16 as FloatElement>::round(-2.5), f16::from_f32(-2.5));
    }

    /// The value of an 8-bit float's bits, by the definition of its format.
    fn value_of(bits: u8, fraction_bits: u32, bias: i32, infinities: bool) -> f64 {
        let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
        let (exponent, fraction) = ((bits & 0x7f) >> fraction_bits, bits & ((1 << fraction_bits) - 1));
        let largest = 0x7f >> fraction_bits;
        let part = f64::from(fraction) / f64::from(1u32 << fraction_bits);
        match (exponent, infinities) {
            (0, _) => sign * part * 2f64.powi(1 - bias),
            (e, true) if e == largest => {
                if fraction == 0 {
                    sign * f64::INFINITY
                } else {
                    f64::NAN
                }
            }
            _ if bits & 0x7f == 0x7f => f64::NAN,
            (e, _) => sign * (1.0 + part) * 2f64.powi(i32::from(e) - bias),
        }
    }

    /// All 256 numbers of a type, and what is between and beyond them.
    fn rounds_as_defined<T: FloatElement>(
        infinities: bool,
        (fraction_bits, bias): (u32, i32),
        from_bits: fn(u8) -> T,
        widen: fn(T) -> f64,
    ) {
        let bits = |value: T| bytemuck::bytes_of(&value)[0];
        let value = |bits| value_of(bits, fraction_bits, bias, infinities);
        let largest = (0..0x7f).rev().find(|&b| value(b).is_finite()).expect("there are numbers");
        for code in 0..=255 {
            let wide = widen(from_bits(code));
            assert!(wide == value(code) || wide.is_nan() && value(code).is_nan(), "{code:#x} is {wide}");
            let back = bits(T::round(wide));
            if wide.is_nan() {
                assert!(value(back).is_nan(), "NaN became {back:#x}");
            } else if wide.is_infinite() {
                assert_eq!(back, code & 0x80 | largest, "infinity saturates");
            } else {
                assert_eq!(back, code);
            }
        }
        for code in 0..largest {
            let middle = value(code).midpoint(value(code + 1));
            for sign in [0, 0x80u8] {
                let signed = |v: f64| if sign == 0 { v } else { -v };
                assert_eq!(bits(T::round(signed(middle))), sign | (code + (code & 1)), "tie above {code:#x}");
                assert_eq!(bits(T::round(signed(middle.next_down()))), sign | code, "below the tie");
                assert_eq!(bits(T::round(signed(middle.next_up()))), sign | (code + 1), "above the tie");
            }
        }
        for beyond in [value(largest) * 1.01, value(largest) * 1.5, 1e300, f64::INFINITY] {
            assert_eq!(bits(T::round(beyond)), largest);
            assert_eq!(bits(T::round(-beyond)), 0x80 | largest);
        }
        assert_eq!((bits(T::round(1e-300)), bits(T::round(-1e-300))), (0, 0x80));
    }

    #[test]
    fn eight_bit_floats_round_to_nearest_even_and_saturate() {
        rounds_as_defined(false, (3, 7), F8E4M3::from_bits, |v| v.to_f64());
        rounds_as_defined(true, (2, 15), F8E5M2::from_bits, |v| v.to_f64());
        assert_eq!((F8E4M3::from_bits(0x7e).to_f64(), F8E5M2::from_bits(0x7b).to_f64()), (448.0, 57344.0));
    }

    #[test]
    fn eight_bit_tensors_are_read_by_their_names_in_the_file() {
        let data = [0x38u8, 0xb8, 0x01, 0x7e];
        let view = |dtype| safetensors::tensor::TensorView::new(dtype, vec![2, 2], &data).expect("fits");
        let file = safetensors::serialize(
            [("a", view(safetensors::Dtype::F8_E4M3)), ("b", view(safetensors::Dtype::F8_E5M2))],
            None,
        );
        let weights = Weights::from_bytes(file.expect("serialises")).expect("the file is sound");
        let a = weights.array::<F8E4M3>("a").expect("it is e4m3");
        assert_eq!(a.iter().map(|v| v.to_f64()).collect::<Vec<_>>(), [1.0, -1.0, 2f64.powi(-9), 448.0]);
        assert!(weights.array::<F8E5M2>("a").is_err());
        let wide = weights.array_converted::<f32>("b").expect("e5m2 converts");
        assert_eq!(wide[[0, 0]], 0.5);
    }
}
