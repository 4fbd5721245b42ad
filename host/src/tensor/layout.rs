//! View arithmetic: which element of the memory an index of a view stands for.
//!
//! A layout is a shape, a stride for each axis and an offset, all in elements. Strides are never negative, and two
//! indices of one view never share an element. Nothing here touches memory, so everything is tested against `ndarray`.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use crate::device::backend::Rows;
use crate::error::{Error, Result};

/// One number for each axis. The few axes that most views have take no allocation, since operations make views at every call.
pub(crate) type PerAxis<T> = SmallVec<[T; 4]>;

/// A view's shape, strides and offset, in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    shape: PerAxis<usize>,
    strides: PerAxis<usize>,
    offset: usize,
}

impl Layout {
    /// The row-major layout of `shape` with no gaps, for elements of `element_size` bytes.
    pub(crate) fn contiguous(operation: &'static str, shape: &[usize], element_size: usize) -> Result<Self> {
        // Zero-sized axes are left out of the product: an array of no elements must have addressable strides too.
        let elements = shape
            .iter()
            .filter(|&&length| length != 0)
            .try_fold(1usize, |product, &n| product.checked_mul(n));
        let fits = elements
            .and_then(|elements| elements.checked_mul(element_size))
            .is_some_and(|bytes| isize::try_from(bytes).is_ok());
        if !fits {
            return Err(Error::SizeLimit {
                operation,
                operand: "tensor",
                quantity: "shape",
                limit: format!("a product of at most {} elements", isize::MAX as usize / element_size),
                actual: format!("{shape:?}"),
            });
        }
        Ok(Self { strides: contiguous_strides(shape), shape: shape.into(), offset: 0 })
    }

    /// The layout of these strides, for elements of `element_size` bytes. Two indices must not share an element.
    pub(crate) fn strided(
        operation: &'static str,
        shape: &[usize],
        strides: &[usize],
        element_size: usize,
    ) -> Result<Self> {
        // Checks the shape.
        let contiguous = Self::contiguous(operation, shape, element_size)?;
        let stride_error = |expected: String| Error::Stride {
            operation,
            operand: "tensor",
            expected,
            actual: strides.to_vec(),
        };
        if strides.len() != shape.len() {
            return Err(stride_error(format!("{} strides, one for each axis of {shape:?}", shape.len())));
        }
        if contiguous.len() == 0 {
            return Ok(contiguous);
        }
        let mut axes: PerAxis<(usize, usize)> = std::iter::zip(strides, shape)
            .map(|(&stride, &length)| (stride, length))
            .filter(|&(_, length)| length > 1)
            .collect();
        axes.sort_unstable();
        let mut span = 1usize;
        for (stride, length) in axes {
            if stride < span {
                return Err(stride_error(format!(
                    "strides with which no two indices of {shape:?} share an element; copy a broadcast view first"
                )));
            }
            let further = stride.checked_mul(length - 1).and_then(|further| further.checked_add(span));
            let fits = further.filter(|&span| {
                span.checked_mul(element_size).is_some_and(|bytes| isize::try_from(bytes).is_ok())
            });
            span = fits.ok_or_else(|| Error::SizeLimit {
                operation,
                operand: "tensor",
                quantity: "span",
                limit: format!("at most {} elements", isize::MAX as usize / element_size),
                actual: format!("that of shape {shape:?} with strides {strides:?}"),
            })?;
        }
        Ok(Self { shape: shape.into(), strides: strides.into(), offset: 0 })
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn strides(&self) -> &[usize] {
        &self.strides
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// The number of elements.
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the elements are in row-major order without gaps.
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut next = 1;
        let mut follows = |(&length, &stride): (&usize, &usize)| {
            let follows = length == 1 || stride == next;
            next *= length;
            follows
        };
        self.len() == 0 || std::iter::zip(&self.shape, &self.strides).rev().all(&mut follows)
    }

    /// The elements from the first to the last one, gaps included.
    pub(crate) fn span(&self) -> usize {
        if self.len() == 0 {
            return 0;
        }
        self.shape.iter().zip(&self.strides).map(|(&length, &stride)| (length - 1) * stride).sum::<usize>()
            + 1
    }

    fn check_axis(&self, operation: &'static str, argument: &'static str, axis: usize) -> Result<()> {
        if axis < self.shape.len() {
            return Ok(());
        }
        Err(Error::Argument {
            operation,
            argument,
            expected: format!("less than {}, the number of axes", self.shape.len()),
            actual: axis.to_string(),
        })
    }

    /// The indices `range` of `axis`.
    pub(crate) fn slice(&self, axis: usize, range: Range<usize>) -> Result<Self> {
        const OPERATION: &str = "Tensor::slice";
        self.check_axis(OPERATION, "axis", axis)?;
        if range.start > range.end || range.end > self.shape[axis] {
            return Err(Error::Argument {
                operation: OPERATION,
                argument: "range",
                expected: format!("a range within 0..{}", self.shape[axis]),
                actual: format!("{range:?}"),
            });
        }
        let mut sliced = self.clone();
        sliced.shape[axis] = range.len();
        // An empty view's offset is never read; keeping it leaves it within the buffer.
        if sliced.len() != 0 {
            sliced.offset += range.start * self.strides[axis];
        }
        Ok(sliced)
    }

    /// The view with two axes exchanged.
    pub(crate) fn swap_axes(&self, first: usize, second: usize) -> Result<Self> {
        self.check_axis("Tensor::swap_axes", "first axis", first)?;
        self.check_axis("Tensor::swap_axes", "second axis", second)?;
        let mut swapped = self.clone();
        swapped.shape.swap(first, second);
        swapped.strides.swap(first, second);
        Ok(swapped)
    }

    /// The same elements, in the same order, as another shape; an error if that needs a copy.
    pub(crate) fn reshape(&self, operation: &'static str, shape: &[usize]) -> Result<Self> {
        let elements = shape.iter().try_fold(1usize, |product, &length| product.checked_mul(length));
        if elements != Some(self.len()) {
            return Err(Error::Shape {
                operation,
                operand: "tensor",
                expected: format!("{shape:?}, which has as many elements"),
                actual: self.shape.to_vec(),
            });
        }
        if shape == self.shape() {
            return Ok(self.clone());
        }
        if self.len() == 0 {
            // The strides of an empty view must be addressable, too; 8 bytes is the largest element.
            return Ok(Self { offset: self.offset, ..Self::contiguous(operation, shape, 8)? });
        }
        let strides = self.reshaped_strides(shape).ok_or_else(|| Error::Stride {
            operation,
            operand: "tensor",
            expected: format!(
                "strides with which shape {:?} is also {shape:?} without a copy (see `contiguous`)",
                self.shape
            ),
            actual: self.strides.to_vec(),
        })?;
        Ok(Self { shape: shape.into(), strides, offset: self.offset })
    }

    /// The strides of `shape` over the same elements, of which there are some; `None` if no strides give them.
    fn reshaped_strides(&self, shape: &[usize]) -> Option<PerAxis<usize>> {
        // Every group of axes with a common stride must be a product of consecutive axes of the new shape.
        let mut groups = self.collapsed().into_iter().rev();
        let (mut left, mut stride) = groups.next().unwrap_or((1, 1));
        let mut strides: PerAxis<usize> = smallvec![0; shape.len()];
        for (axis, &length) in shape.iter().enumerate().rev() {
            if left == 1 && length != 1 {
                (left, stride) = groups.next()?;
            }
            if !left.is_multiple_of(length) {
                return None;
            }
            strides[axis] = stride;
            left /= length;
            stride *= length;
        }
        Some(strides)
    }

    /// The view as a matrix: all axes but the last one flattened.
    pub(crate) fn flatten_leading(&self) -> Result<Self> {
        const OPERATION: &str = "Tensor::flatten_leading";
        let Some((&columns, leading)) = self.shape.split_last() else {
            return Err(Error::Shape {
                operation: OPERATION,
                operand: "tensor",
                expected: "at least one axis".into(),
                actual: Vec::new(),
            });
        };
        if self.shape.len() == 2 && self.shape[0] > 1 && self.len() != 0 {
            return Ok(self.clone());
        }
        // With no columns the number of elements says nothing about that of rows, and no stride matters.
        let rows = leading.iter().try_fold(1usize, |product, &length| product.checked_mul(length));
        let rows = rows.ok_or_else(|| Error::SizeLimit {
            operation: OPERATION,
            operand: "tensor",
            quantity: "number of rows",
            limit: "at most 64 bits".into(),
            actual: format!("the product of {leading:?}"),
        })?;
        let last_stride = self.strides[leading.len()];
        let stride = if self.len() == 0 {
            columns
        } else {
            let mut leading = Self {
                shape: leading.into(),
                strides: self.strides[..leading.len()].into(),
                offset: self.offset,
            };
            leading = leading.reshape(OPERATION, &[rows]).map_err(|error| match error {
                Error::Stride { operation, operand, .. } => Error::Stride {
                    operation,
                    operand,
                    expected: format!(
                        "strides with which the leading axes of shape {:?} are one axis (see `contiguous`)",
                        self.shape
                    ),
                    actual: self.strides.to_vec(),
                },
                other => other,
            })?;
            // The stride of a single row is arbitrary: choose the one of a matrix without gaps.
            if rows == 1 { columns * last_stride } else { leading.strides[0] }
        };
        Ok(Self {
            shape: smallvec![rows, columns],
            strides: smallvec![stride, last_stride],
            offset: self.offset,
        })
    }

    /// Other axes over the same memory, from `start` elements after the first on. The caller sees to it that they reach no
    /// element beyond the view's last.
    pub(crate) fn with_axes(&self, start: usize, shape: &[usize], strides: &[usize]) -> Self {
        let axes = Self { shape: shape.into(), strides: strides.into(), offset: self.offset + start };
        debug_assert!(axes.len() == 0 || start + axes.span() <= self.span(), "{axes:?} in {self:?}");
        axes
    }

    /// The same axes, from another element of the memory on.
    pub(crate) fn starting_at(self, offset: usize) -> Self {
        Self { offset, ..self }
    }

    /// The axes as (length, stride) with axes of length 1 left out and neighbours merged where one stride serves both.
    fn collapsed(&self) -> PerAxis<(usize, usize)> {
        collapse(&self.shape, [&self.strides])
            .into_iter()
            .map(|(length, [stride])| (length, stride))
            .collect()
    }

    /// The copies that move this view's elements to or from `other`, a view of the same shape.
    pub(crate) fn row_copies(&self, other: &Layout, element_size: usize) -> Vec<(Rows, Rows)> {
        debug_assert_eq!(self.shape, other.shape);
        if self.len() == 0 {
            return Vec::new();
        }
        let mut axes = collapse(&self.shape, [&self.strides, &other.strides]);
        let columns = match axes.last() {
            Some(&(length, [1, 1])) => {
                axes.pop();
                length
            }
            _ => 1,
        };
        let (rows, pitches) = axes.pop().unwrap_or((1, [columns; 2]));
        let mut starts = vec![[self.offset, other.offset]];
        for (length, strides) in axes {
            starts = starts
                .into_iter()
                .flat_map(|start| {
                    (0..length).map(move |i| [start[0] + i * strides[0], start[1] + i * strides[1]])
                })
                .collect();
        }
        let rows_at = |offset: usize, pitch: usize| Rows {
            offset: offset * element_size,
            pitch: pitch * element_size,
            width: columns * element_size,
            height: rows,
        };
        starts
            .into_iter()
            .map(|start| (rows_at(start[0], pitches[0]), rows_at(start[1], pitches[1])))
            .collect()
    }
}

/// The strides of a tensor without gaps.
pub(crate) fn contiguous_strides(shape: &[usize]) -> PerAxis<usize> {
    let mut strides: PerAxis<usize> = smallvec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis].max(1));
    }
    strides
}

/// The axes of views of one shape, with axes of length 1 left out and neighbours merged where each view has one stride
/// for both.
fn collapse<const N: usize>(shape: &[usize], strides: [&[usize]; N]) -> PerAxis<(usize, [usize; N])> {
    let mut axes: PerAxis<(usize, [usize; N])> = PerAxis::new();
    for (axis, &length) in shape.iter().enumerate().filter(|&(_, &length)| length != 1) {
        let inner = strides.map(|strides| strides[axis]);
        match axes.last_mut() {
            Some((outer_length, outer)) if (0..N).all(|i| outer[i] == inner[i] * length) => {
                *outer_length *= length;
                *outer = inner;
            }
            _ => axes.push((length, inner)),
        }
    }
    axes
}

/// Elements of a view, in bytes: within `width` from its start, or from places that are multiples of a pitch behind that.
struct Cover {
    pitch: Option<u64>,
    width: u64,
}

/// The ways to see a view as rows, for elements of `size` bytes.
fn covers(layout: &Layout, size: usize) -> SmallVec<[Cover; 4]> {
    let mut axes: PerAxis<(usize, usize)> = std::iter::zip(&layout.strides, &layout.shape)
        .map(|(&stride, &length)| (stride, length))
        .filter(|&(_, length)| length > 1)
        .collect();
    axes.sort_unstable();
    let bytes = |elements: usize| elements as u64 * size as u64;
    let (mut covers, mut extent) = (SmallVec::new(), 1);
    for (at, &(stride, length)) in axes.iter().enumerate() {
        if stride > extent && axes[at..].iter().all(|(other, _)| other % stride == 0) {
            covers.push(Cover { pitch: Some(bytes(stride)), width: bytes(extent) });
        }
        extent += stride * (length - 1);
    }
    covers.push(Cover { pitch: None, width: bytes(extent) });
    covers
}

/// Whether two views that are not empty, each with the bytes of an element and its start, are seen to have no byte in common: their
/// rows are side by side.
pub(crate) fn are_apart(
    [(layout, size, start), (other_layout, other_size, other_start)]: [(&Layout, usize, u64); 2],
) -> bool {
    let others = covers(other_layout, other_size);
    covers(layout, size).iter().any(|own| {
        others.iter().any(|other| {
            // What is a multiple of two pitches behind the start is one of their common divisor.
            let pitch = match (own.pitch, other.pitch) {
                (Some(own), Some(other)) => gcd(own, other),
                (Some(pitch), None) | (None, Some(pitch)) => pitch,
                (None, None) => return false,
            };
            // From the start of a row here to the next start of one there.
            let between = (other_start % pitch + pitch - start % pitch) % pitch;
            between >= own.width && between + other.width <= pitch
        })
    })
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
