//! What is added to a product and what is stored beside its result, whatever the types of the operands: linear layers, matrix products,
//! updates and scaled products take these terms alike.
//!
//! They are checked in one place, and become the kernels' epilogue or what the CPU implementation takes.

use half::{bf16, f16};
use ndarray::{ArrayView2, ArrayViewMut2, ShapeError};
use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::launch::{Global, GlobalMut};

use crate::cpu::{self, LinearTerms};
use crate::device::Device;
use crate::device::cpu::out_of_memory;
use crate::error::{Error, Result};
use crate::memory::HostBytes;
use crate::ops::matrix::{as_matrix, expect_unit_stride, row_stride};
use crate::stream::Operand;
use crate::tensor::{DType, Element, Span, Tensor};

/// What an operation's builder has been told of them.
#[derive(Debug)]
pub(crate) struct Terms<'a, O: Element> {
    pub(crate) residual: Option<(&'a Tensor<O>, f32)>,
    /// Adds so much of what the output holds.
    pub(crate) beta: f32,
    pub(crate) mask: Option<&'a mut Tensor<u32>>,
    pub(crate) preactivation: Option<&'a mut Tensor<O>>,
    /// An operand of the output's type that was given before the output's type was changed.
    pub(crate) of_another_output: Option<&'static str>,
}

impl<O: Element> Default for Terms<'_, O> {
    fn default() -> Self {
        Self { residual: None, beta: 0.0, mask: None, preactivation: None, of_another_output: None }
    }
}

/// The operation that terms belong to, for their checks.
pub(crate) struct TermsOf<'s> {
    /// The operation's name in errors.
    pub(crate) operation: &'static str,
    /// Those of the two operands that give the output's shape.
    pub(crate) names: [&'static str; 2],
    pub(crate) device: &'s Device,
    pub(crate) output_shape: &'s [usize],
    /// What the operation reads beside a residual.
    pub(crate) inputs: Vec<(&'static str, Span<'s>)>,
}

impl<'a, O: Element> Terms<'a, O> {
    /// The same for an output of type `P`, without the operands that have the output's type.
    pub(crate) fn output<P: Element>(self) -> Terms<'a, P> {
        let lost = self.residual.map(|_| "residual").or(self.preactivation.map(|_| "preactivation"));
        let of_another_output = self.of_another_output.or(lost);
        Terms { residual: None, beta: self.beta, mask: self.mask, preactivation: None, of_another_output }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_more_than_mask() && self.mask.is_none()
    }

    /// Whether there is something beside the mask.
    pub(crate) fn has_more_than_mask(&self) -> bool {
        self.read_residual().is_some() || self.beta != 0.0 || self.preactivation.is_some()
    }

    /// The residual and its factor, unless that is 0: then it is not read.
    pub(crate) fn read_residual(&self) -> Option<(&'a Tensor<O>, f32)> {
        self.residual.filter(|&(_, beta)| beta != 0.0)
    }

    /// The tensors among them.
    pub(crate) fn operands(&self) -> impl Iterator<Item = &dyn Operand> {
        let residual = self.residual.map(|(residual, _)| residual as &dyn Operand);
        let mask = self.mask.as_deref().map(|mask| mask as &dyn Operand);
        let preactivation = self.preactivation.as_deref().map(|z| z as &dyn Operand);
        [residual, mask, preactivation].into_iter().flatten()
    }

    /// What is added, and how often: the residual, or what the output holds.
    pub(crate) fn added<'r>(&'r self, y: &'r Tensor<O>) -> Option<(&'r Tensor<O>, f32)> {
        match self.residual {
            Some(_) => self.read_residual(),
            None => (self.beta != 0.0).then_some((y, self.beta)),
        }
    }

    /// Checks devices, shapes and strides of all but the output, and that what is written is apart from the rest.
    pub(crate) fn check(&self, of: &TermsOf<'_>) -> Result<()> {
        let operation = of.operation;
        let same = |operand, other| of.device.expect_same(operation, operand, other);
        if let Some(argument) = self.of_another_output {
            return Err(Error::Argument {
                operation,
                argument,
                expected: format!(
                    "no tensor of the output's type before `output`, but one of {} after it",
                    O::DTYPE
                ),
                actual: "one given before the output's type was set".into(),
            });
        }
        if self.residual.is_some() && self.beta != 0.0 {
            return Err(Error::Argument {
                operation,
                argument: "beta",
                expected: "0 beside a residual, which is added instead of what the output holds".into(),
                actual: self.beta.to_string(),
            });
        }
        if let Some((residual, _)) = self.residual {
            same("residual", residual.device())?;
            of.expect_output_shape("residual", residual)?;
            expect_unit_stride(operation, "residual", residual)?;
        }
        if let Some(preactivation) = self.preactivation.as_deref() {
            same("preactivation", preactivation.device())?;
            of.expect_output_shape("preactivation", preactivation)?;
            expect_unit_stride(operation, "preactivation", preactivation)?;
            self.expect_apart(of, "preactivation", preactivation, None)?;
        }
        if let Some(mask) = self.mask.as_deref() {
            same("relu_mask", mask.device())?;
            let mut words = of.output_shape.to_vec();
            if let Some(last) = words.last_mut() {
                *last = last.div_ceil(32);
            }
            if mask.shape() != words {
                return Err(Error::Shape {
                    operation,
                    operand: "relu_mask",
                    expected: format!("{words:?}, a word for every 32 columns of the output"),
                    actual: mask.shape().to_vec(),
                });
            }
            expect_unit_stride(operation, "relu_mask", mask)?;
            self.expect_apart(of, "relu_mask", mask, None)?;
            if self.preactivation.as_deref().is_some_and(|other| mask.shares_memory(other)) {
                return Err(Error::Overlap { operation, operand: "relu_mask", other: "preactivation" });
            }
        }
        Ok(())
    }

    /// Checks a tensor that is to take the result.
    pub(crate) fn check_output(&self, of: &TermsOf<'_>, y: &Tensor<O>) -> Result<()> {
        let operation = of.operation;
        of.device.expect_same(operation, "y", y.device())?;
        of.expect_output_shape("y", y)?;
        expect_unit_stride(operation, "y", y)?;
        // An element of the residual is read by who then writes its place in y, so they may be the same tensor.
        let residual = self.residual.map(|(residual, _)| residual);
        let same = residual.filter(|residual| residual.is_same_view(y));
        self.expect_apart(of, "y", y, same)?;
        for (other, written) in [
            ("preactivation", self.preactivation.as_deref().is_some_and(|other| y.shares_memory(other))),
            ("relu_mask", self.mask.as_deref().is_some_and(|other| y.shares_memory(other))),
        ] {
            if written {
                return Err(Error::Overlap { operation, operand: "y", other });
            }
        }
        Ok(())
    }

    /// The error for a new output, where what the output holds is to be added.
    pub(crate) fn expect_no_beta(&self, operation: &'static str) -> Result<()> {
        if self.beta == 0.0 {
            return Ok(());
        }
        Err(Error::Argument {
            operation,
            argument: "beta",
            expected: "0 for `run`, whose output is new: `run_into` adds to an existing one".into(),
            actual: self.beta.to_string(),
        })
    }

    /// The error for a written operand that may only be read, or shares memory with one that is read, other than `except`.
    fn expect_apart<U: Element>(
        &self,
        of: &TermsOf<'_>,
        operand: &'static str,
        written: &Tensor<U>,
        except: Option<&Tensor<O>>,
    ) -> Result<()> {
        written.expect_writable(of.operation, operand)?;
        let residual = self.residual.map(|(residual, _)| residual).filter(|_| except.is_none());
        let read = residual.map(|residual| ("residual", residual.span()));
        let mut read = of.inputs.iter().copied().chain(read);
        match read.find(|(_, other)| written.span().meets(other)) {
            Some((other, _)) => Err(Error::Overlap { operation: of.operation, operand, other }),
            None => Ok(()),
        }
    }

    /// The terms of an output whose leading axes are rows.
    pub(crate) fn flattened(&self, operation: &'static str) -> Result<FlatTerms<O>> {
        let flat = |operand, tensor: Option<&Tensor<O>>| {
            tensor.map(|tensor| as_matrix(operation, operand, tensor)).transpose()
        };
        let mask = self.mask.as_deref().map(|mask| as_matrix(operation, "relu_mask", mask));
        // What is not read need not be a matrix.
        let residual = self.read_residual().map(|(residual, _)| residual);
        Ok(FlatTerms {
            residual: flat("residual", residual)?,
            beta: self.residual.map_or(self.beta, |(_, beta)| beta),
            mask: mask.transpose()?,
            preactivation: flat("preactivation", self.preactivation.as_deref())?,
        })
    }

    /// The terms for the CPU implementation: what is added to `y` as it is now, and room for what is stored.
    pub(crate) fn on_host(&self, operation: &'static str, y: &Tensor<O>) -> Result<HostTerms> {
        let added = self.added(y);
        let stored = self.preactivation.as_deref();
        Ok(HostTerms {
            beta: added.map_or(0.0, |(_, beta)| beta),
            residual: added.map(|(residual, _)| widened(operation, residual)).transpose()?,
            mask: self.mask.as_deref().map(|mask| zeroed::<u32>(operation, mask.len())).transpose()?,
            preactivation: stored.map(|z| zeroed::<O>(operation, z.len())).transpose()?,
        })
    }

    /// Stores what the CPU implementation has given.
    pub(crate) fn put(&self, operation: &'static str, host: HostTerms) -> Result<()> {
        if let (Some(mask), Some(target)) = (host.mask, self.mask.as_deref()) {
            target.clone().put_host_bytes(operation, mask)?;
        }
        if let (Some(z), Some(target)) = (host.preactivation, self.preactivation.as_deref()) {
            target.clone().put_host_bytes(operation, z)?;
        }
        Ok(())
    }
}

impl TermsOf<'_> {
    fn expect_output_shape<O: Element>(&self, operand: &'static str, tensor: &Tensor<O>) -> Result<()> {
        if tensor.shape() == self.output_shape {
            return Ok(());
        }
        let [a, b] = self.names;
        Err(Error::Shape {
            operation: self.operation,
            operand,
            expected: format!("{:?}, as {a} and {b} give", self.output_shape),
            actual: tensor.shape().to_vec(),
        })
    }
}

/// Terms as matrices, with the output's leading axes as rows.
pub(crate) struct FlatTerms<O: Element> {
    residual: Option<Tensor<O>>,
    beta: f32,
    mask: Option<Tensor<u32>>,
    preactivation: Option<Tensor<O>>,
}

impl<O: Element> FlatTerms<O> {
    /// The kernels' epilogue with these terms and no others, for the matrix `y`.
    pub(crate) fn epilogue<B>(&self, y: &Tensor<O>) -> LinearEpilogue<B, O::Device> {
        let added = (self.beta != 0.0).then(|| self.residual.as_ref().unwrap_or(y));
        let (mask, z) = (self.mask.as_ref(), self.preactivation.as_ref());
        LinearEpilogue {
            residual: added.map_or(Global::new(0), Tensor::arg),
            mask: mask.map_or(GlobalMut::new(0), |mask| mask.clone().arg_mut()),
            preactivation: z.map_or(GlobalMut::new(0), |z| z.clone().arg_mut()),
            residual_stride: added.map_or(0, row_stride),
            mask_stride: mask.map_or(0, row_stride),
            preactivation_stride: z.map_or(0, row_stride),
            beta: self.beta,
            ..LinearEpilogue::plain()
        }
    }
}

/// Terms in the host's memory, row by row without gaps.
pub(crate) struct HostTerms {
    beta: f32,
    residual: Option<Vec<f32>>,
    mask: Option<HostBytes>,
    preactivation: Option<HostBytes>,
}

impl HostTerms {
    /// Those of matrix `index` of the output, if each has `rows` rows and `n` columns; nothing else is done to the product.
    pub(crate) fn of_matrix<B, O: Element>(
        &mut self,
        operation: &'static str,
        index: usize,
        (rows, n): (usize, usize),
    ) -> Result<LinearTerms<'_, B, f32, O>> {
        let two = |error: ShapeError| two_axes(operation, &error);
        let (elements, words) = (rows * n, rows * n.div_ceil(32));
        let residual = self.residual.as_ref().map(|residual| {
            ArrayView2::from_shape((rows, n), &residual[index * elements..][..elements]).map_err(two)
        });
        let mask = self.mask.as_mut().map(|mask| {
            let mask = &mut bytemuck::cast_slice_mut(mask.as_mut_slice())[index * words..][..words];
            ArrayViewMut2::from_shape((rows, n.div_ceil(32)), mask).map_err(two)
        });
        let preactivation = self.preactivation.as_mut().map(|z| {
            let z = &mut bytemuck::cast_slice_mut(z.as_mut_slice())[index * elements..][..elements];
            ArrayViewMut2::from_shape((rows, n), z).map_err(two)
        });
        Ok(LinearTerms {
            beta: self.beta,
            residual: residual.transpose()?,
            mask: mask.transpose()?,
            preactivation: preactivation.transpose()?,
            ..LinearTerms::default()
        })
    }
}

/// Zeros for so many elements.
pub(crate) fn zeroed<U>(operation: &'static str, elements: usize) -> Result<HostBytes> {
    let bytes = elements.saturating_mul(size_of::<U>());
    HostBytes::zeroed(bytes).ok_or_else(|| out_of_memory(operation, bytes))
}

/// The error for an array that has not the axes of a matrix.
pub(crate) fn two_axes(operation: &'static str, error: &ShapeError) -> Error {
    Error::Argument { operation, argument: "shape", expected: "two axes".into(), actual: error.to_string() }
}

/// The elements in row-major order, as f32.
fn widened<O: Element>(operation: &'static str, tensor: &Tensor<O>) -> Result<Vec<f32>> {
    let view = tensor.host_view(operation)?;
    let elements: Vec<O> = view.array().iter().copied().collect();
    match O::DTYPE {
        DType::F16 => Ok(to_f32::<f16>(bytemuck::cast_slice(&elements))),
        DType::Bf16 => Ok(to_f32::<bf16>(bytemuck::cast_slice(&elements))),
        DType::F32 => Ok(bytemuck::cast_slice(&elements).to_vec()),
        actual => {
            Err(Error::Type { operation, operand: "residual", expected: "f16, bf16 or f32".into(), actual })
        }
    }
}

fn to_f32<U: cpu::Operand>(elements: &[U]) -> Vec<f32> {
    elements.iter().map(|element| element.to_f32()).collect()
}
