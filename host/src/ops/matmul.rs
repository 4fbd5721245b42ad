//! `Y = act(alpha · A B + beta · C + …)`: products of matrices, one or many at a time.
//!
//! [`matmul`] starts a builder, which takes what a linear layer takes: a matrix product is one whose second operand is not
//! transposed ([`gemm`](crate::ops::gemm) has what they share).

pub mod backward;

pub use backward::{MatmulBackwardOp, MatmulGradientOutputs, MatmulGradients, matmul_backward};

use crate::cpu::FromAccumulator;
use crate::error::{Error, Result};
use crate::ops::gemm::{Options, Product, Tile, broadcast, product_methods};
use crate::ops::linear::{LinearInput, LinearTypes};
use crate::ops::{Activation, Implementation, Precision};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};

/// The operation's name in errors.
const OPERATION: &str = "matmul";

/// The product of `a` `[.., M, K]` and `b` `[.., K, N]`: `y = act(alpha · a b + …)`, `[.., M, N]`.
///
/// Leading axes are batches of matrices. They are equal, or 1 or missing in one operand, whose matrices then serve all of the other's.
/// Any strides are read: a transposed view (`swap_axes`) costs at most a copy, and none where the kernels take its layout.
///
/// ```
/// use ndarray::array;
/// use warpsmith::{Device, Tensor, ops};
///
/// let device = Device::cpu();
/// let a = Tensor::from_array(&device, &array![[1.0f32, 2.0], [3.0, 4.0]])?;
/// let b = Tensor::from_array(&device, &array![[5.0f32, 6.0], [7.0, 8.0]])?;
/// assert_eq!(ops::matmul(&a, &b).run()?.to_vec()?, [19.0, 22.0, 43.0, 50.0]);
/// assert_eq!(ops::matmul(&a, &b).transpose_b().run()?.to_vec()?, [17.0, 23.0, 39.0, 53.0]);
///
/// // y = 2 · aᵀ b − y
/// let mut y = Tensor::from_array(&device, &array![[1.0f32, 1.0], [1.0, 1.0]])?;
/// ops::matmul(&a, &b).transpose_a().alpha(2.0).beta(-1.0).run_into(&mut y)?;
/// assert_eq!(y.to_vec()?, [51.0, 59.0, 75.0, 87.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn matmul<'a, T: LinearInput>(a: &'a Tensor<T>, b: &'a Tensor<T>) -> MatmulOp<'a, T, T> {
    with_output(a, b)
}

/// As [`matmul`], with any output type that the inputs' type has kernels for.
pub fn with_output<'a, T, O>(a: &'a Tensor<T>, b: &'a Tensor<T>) -> MatmulOp<'a, T, O>
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    MatmulOp { a, b, transpose: [false; 2], options: Options::new() }
}

/// A product that has yet to run; see [`matmul`].
#[derive(Debug)]
#[must_use = "an operation does nothing until `run` or `run_into`"]
pub struct MatmulOp<'a, T: Element, O: Element> {
    a: &'a Tensor<T>,
    b: &'a Tensor<T>,
    transpose: [bool; 2],
    options: Options<'a, T, O>,
}

impl<'a, T, O> MatmulOp<'a, T, O>
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    product_methods!(MatmulOp { a, b, transpose }, "[.., M, N]");

    /// Takes `a` as `[.., K, M]`.
    pub fn transpose_a(mut self) -> Self {
        self.transpose[0] = true;
        self
    }

    /// Takes `b` as `[.., N, K]`.
    pub fn transpose_b(mut self) -> Self {
        self.transpose[1] = true;
        self
    }

    fn product(&self) -> Result<Product<'_, T, O>> {
        let shape = |operand, expected: String, tensor: &Tensor<T>| Error::Shape {
            operation: OPERATION,
            operand,
            expected,
            actual: tensor.shape().to_vec(),
        };
        let turned = |tensor: &Tensor<T>| tensor.swap_axes(tensor.rank() - 2, tensor.rank() - 1);
        let [transpose_a, transpose_b] = self.transpose;
        for (operand, tensor) in [("a", self.a), ("b", self.b)] {
            if tensor.rank() < 2 {
                return Err(shape(operand, "at least two axes".into(), tensor));
            }
        }
        let a = if transpose_a { turned(self.a)? } else { self.a.clone() };
        // The product takes the rows of B's transpose, which are its columns.
        let b = if transpose_b { self.b.clone() } else { turned(self.b)? };
        let (leading_a, leading_b) = (&a.shape()[..a.rank() - 2], &b.shape()[..b.rank() - 2]);
        let (m, k) = (a.shape()[a.rank() - 2], a.shape()[a.rank() - 1]);
        let (n, b_k) = (b.shape()[b.rank() - 2], b.shape()[b.rank() - 1]);
        if b_k != k {
            let axes = if transpose_b { format!("[.., N, {k}]") } else { format!("[.., {k}, N]") };
            return Err(shape("b", format!("{axes}, since a sums over {k}"), self.b));
        }
        let Some(leading) = broadcast(leading_a, leading_b) else {
            let expected = format!("leading axes that are equal to {leading_a:?}, or 1 or missing in one");
            return Err(shape("b", expected, self.b));
        };
        let output_shape = [&leading[..], &[m, n]].concat();
        let options = &self.options;
        Ok(Product { operation: OPERATION, names: ["a", "b"], a, b, leading, output_shape, options })
    }
}
