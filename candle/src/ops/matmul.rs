//! Matrix products: `y = alpha · a b`.

use candle_core::Tensor;
use warpsmith::ops::matmul::backward::MatmulGradientOutputs;
use warpsmith::ops::{self, Precision};

use super::linear::LinearElement;
use super::tracked;
use crate::error::{Error, Result};
use crate::graph::attach;
use crate::memory::{Call, finished, open, with_element};

/// The operation's name in errors.
const OPERATION: &str = "matmul";

/// The product of `a` `[.., M, K]` and `b` `[.., K, N]`: `y = alpha · a b`, `[.., M, N]`.
///
/// Leading axes are batches of matrices. They are equal, or 1 or missing in one operand, whose matrices then serve
/// all of the other's. Both operands have gradients, and
/// any strides: a transposed view is read in place where the kernels take its layout.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use warpsmith_candle::matmul;
///
/// let a = Tensor::new(&[[1.0f32, 2.0], [3.0, 4.0]], &Device::Cpu)?;
/// let b = Tensor::new(&[[5.0f32, 6.0], [7.0, 8.0]], &Device::Cpu)?;
/// assert_eq!(matmul(&a, &b.t()?).run()?.to_vec2::<f32>()?, [[17.0, 23.0], [39.0, 53.0]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn matmul<'a>(a: &'a Tensor, b: &'a Tensor) -> MatmulOp<'a> {
    MatmulOp { a, b, alpha: 1.0, precision: Precision::default() }
}

/// A product that has yet to run; see [`matmul`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct MatmulOp<'a> {
    a: &'a Tensor,
    b: &'a Tensor,
    alpha: f32,
    precision: Precision,
}

impl MatmulOp<'_> {
    /// Multiplies the product by `alpha`. 1 unless it is set.
    pub fn alpha(mut self, alpha: f32) -> Self {
        self.alpha = alpha;
        self
    }

    /// How exact products have to be, also those of the gradients; the accuracy of the operands' type unless it is set.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Runs the operation.
    ///
    /// # Errors
    ///
    /// [`Error::Type`] unless both operands are of the same type, f32, f16 or bf16; [`Error::DeviceMismatch`] if
    /// they are on different devices; [`Error::Shape`] and
    /// [`Error::Warpsmith`] if a shape does not fit.
    pub fn run(&self) -> Result<Tensor> {
        let call = Call::new(OPERATION, &[("a", self.a), ("b", self.b)])?;
        with_element!(call, T => self.run_as::<T>(call))
    }

    fn run_as<T: LinearElement>(&self, call: Call) -> Result<Tensor> {
        let Self { a, b, alpha, precision } = *self;
        let mut y = call.fresh::<T>(output_shape(a, b)?)?;
        {
            let locked = call.lock();
            let (a, b) = (locked.view::<T>(0)?, locked.view::<T>(1)?);
            let operation = ops::matmul(&a, &b).alpha(alpha).precision(precision).on(call.stream());
            operation.run_into(&mut *y.open()?)?;
        }
        let wanted = tracked([Some(a), Some(b)]);
        attach(OPERATION, y.finish(), &[a, b], move |_, dy| {
            backward::<T>(&call, dy, wanted, alpha, precision)
        })
    }
}

/// The shape of the product: that of `b` where it broadcasts, which the operation checks.
fn output_shape(a: &Tensor, b: &Tensor) -> Result<Vec<usize>> {
    for (operand, tensor) in [("a", a), ("b", b)] {
        if tensor.rank() < 2 {
            let (expected, actual) = ("at least two axes".into(), tensor.dims().to_vec());
            return Err(Error::Shape { operation: OPERATION, operand, expected, actual });
        }
    }
    let ([leading_a @ .., m, _], [leading_b @ .., _, n]) = (a.dims(), b.dims()) else {
        return Ok(Vec::new());
    };
    let rank = leading_a.len().max(leading_b.len());
    let length =
        |leading: &[usize], axis: usize| (axis + leading.len()).checked_sub(rank).map_or(1, |at| leading[at]);
    let joined = |axis| match [length(leading_a, axis), length(leading_b, axis)] {
        [1, b] => b,
        [a, _] => a,
    };
    Ok((0..rank).map(joined).chain([*m, *n]).collect())
}

/// The gradients of both operands.
fn backward<T: LinearElement>(
    forward: &Call,
    dy: &Tensor,
    [has_da, has_db]: [bool; 2],
    alpha: f32,
    precision: Precision,
) -> Result<Vec<Option<Tensor>>> {
    let (a, b) = (forward.operand(0), forward.operand(1));
    let call = Call::new("matmul_backward", &[("a", a), ("b", b), ("dy", dy)])?;
    let mut da = call.wanted::<T>(has_da, a.shape())?;
    let mut db = call.wanted::<T>(has_db, b.shape())?;
    {
        let locked = call.lock();
        let (a, b, dy) = (locked.view::<T>(0)?, locked.view::<T>(1)?, locked.view::<T>(2)?);
        let (mut da, mut db) = (open(&mut da)?, open(&mut db)?);
        let outputs =
            MatmulGradientOutputs { da: da.as_deref_mut(), db: db.as_deref_mut(), adds: [false; 2] };
        ops::matmul_backward(&a, &b, &dy)
            .alpha(alpha)
            .precision(precision)
            .on(call.stream())
            .run_into(outputs)?;
    }
    Ok(vec![finished(da), finished(db)])
}
