//! The gradients of matrix products: dA = dY Bᵀ and dB = Aᵀ dY, added up over the matrices that an operand served.

#[cfg(test)]
mod tests;

use crate::cpu::FromAccumulator;
use crate::error::{Error, Result};
use crate::ops::gemm::{Options, Product, Terms, broadcast, implementation_of_views};
use crate::ops::linear::{LinearInput, LinearTypes};
use crate::ops::matrix::expect_unit_stride;
use crate::ops::rows::expect_shape;
use crate::ops::{CHUNK_BYTES, Implementation, Precision, repack};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor, View, contiguous_strides};
use crate::trace;

/// The operation's name in errors.
const OPERATION: &str = "matmul_backward";

/// The gradients of [`matmul`](crate::ops::matmul()) for `a` `[.., M, K]`, `b` `[.., K, N]` and `dy` `[.., M, N]`, the gradient of its result.
///
/// With y = alpha · a b they are da = alpha · dy bᵀ and db = alpha · aᵀ dy. The options are those that the product was computed with. An operand that had
/// one matrix for several of the other's gets the sum of their gradients: one product, whose sums go over all of them in f32.
///
/// ```
/// use ndarray::array;
/// use warpsmith::{Device, Tensor, ops};
///
/// let device = Device::cpu();
/// let a = Tensor::from_array(&device, &array![[1.0f32, 2.0], [3.0, 4.0]])?;
/// let b = Tensor::from_array(&device, &array![[5.0f32, 6.0], [7.0, 8.0]])?;
/// let dy = Tensor::from_array(&device, &array![[1.0f32, 0.0], [0.0, 1.0]])?;
/// let gradients = ops::matmul_backward(&a, &b, &dy).run()?;
/// assert_eq!(gradients.da.to_vec()?, [5.0, 7.0, 6.0, 8.0]);
/// assert_eq!(gradients.db.to_vec()?, [1.0, 3.0, 2.0, 4.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn matmul_backward<'a, T: LinearInput>(
    a: &'a Tensor<T>,
    b: &'a Tensor<T>,
    dy: &'a Tensor<T>,
) -> MatmulBackwardOp<'a, T> {
    MatmulBackwardOp {
        a,
        b,
        dy,
        transpose: [false; 2],
        alpha: 1.0,
        precision: Precision::default(),
        stream: None,
    }
}

/// Gradients of a matrix product that have yet to be computed; see [`matmul_backward`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct MatmulBackwardOp<'a, T: Element> {
    a: &'a Tensor<T>,
    b: &'a Tensor<T>,
    dy: &'a Tensor<T>,
    transpose: [bool; 2],
    alpha: f32,
    precision: Precision,
    stream: Option<&'a Stream>,
}

/// The gradients of a matrix product, each of its operand's shape.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MatmulGradients<T: Element> {
    /// Of a.
    pub da: Tensor<T>,
    /// Of b.
    pub db: Tensor<T>,
}

/// Where [`MatmulBackwardOp::run_into`] writes gradients, of type `A` and `B`; what is none is not computed.
///
/// The last axis of each is contiguous. Neither may share memory with an operand or with the other.
#[derive(Debug)]
pub struct MatmulGradientOutputs<'o, A: Element, B: Element> {
    /// Of a, of its shape.
    pub da: Option<&'o mut Tensor<A>>,
    /// Of b, of its shape.
    pub db: Option<&'o mut Tensor<B>>,
    /// Whether each is added to what is there.
    pub adds: [bool; 2],
}

// A derived one would ask for it of the element types.
impl<A: Element, B: Element> Default for MatmulGradientOutputs<'_, A, B> {
    fn default() -> Self {
        Self { da: None, db: None, adds: [false; 2] }
    }
}

/// One of the two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    A,
    B,
}

impl<'a, T: LinearInput> MatmulBackwardOp<'a, T> {
    /// Takes `a` as `[.., K, M]`, and its gradient, too.
    pub fn transpose_a(mut self) -> Self {
        self.transpose[0] = true;
        self
    }

    /// Takes `b` as `[.., N, K]`, and its gradient, too.
    pub fn transpose_b(mut self) -> Self {
        self.transpose[1] = true;
        self
    }

    /// What the product was multiplied with. 1 unless it is set.
    pub fn alpha(mut self, alpha: f32) -> Self {
        self.alpha = alpha;
        self
    }

    /// How exact the products have to be; the accuracy of the operands' type unless it is set.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(mut self, stream: &'a Stream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Computes both gradients. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::DeviceMismatch`] and [`Error::SizeLimit`] if an operand does not fit; whatever allocating the results, loading kernels and
    /// launching them may return.
    pub fn run(&self) -> Result<MatmulGradients<T>> {
        self.check()?;
        let stream = self.stream();
        let mut da = Tensor::uninit_on(&stream, self.a.shape())?;
        let mut db = Tensor::uninit_on(&stream, self.b.shape())?;
        let outputs = MatmulGradientOutputs { da: Some(&mut da), db: Some(&mut db), adds: [false; 2] };
        self.run_into(outputs)?;
        Ok(MatmulGradients { da, db })
    }

    /// Computes gradients into tensors of the caller's, of the operands' type or in f32.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`], [`Error::ReadOnly`] and [`Error::Overlap`] if a result does not fit.
    pub fn run_into<A, B>(&self, outputs: MatmulGradientOutputs<'_, A, B>) -> Result<()>
    where
        T: LinearTypes<A> + LinearTypes<B>,
        A: Element + FromAccumulator<f32>,
        B: Element + FromAccumulator<f32>,
    {
        let _range = trace::operation(OPERATION);
        let leading = self.check()?;
        let MatmulGradientOutputs { da, db, adds } = outputs;
        if let Some(da) = &da {
            self.check_output("da", da, self.a)?;
        }
        if let Some(db) = &db {
            self.check_output("db", db, self.b)?;
            if da.as_ref().is_some_and(|da| da.shares_memory(db)) {
                return Err(Error::Overlap { operation: OPERATION, operand: "db", other: "da" });
            }
        }
        if let Some(da) = da {
            self.run_one(&self.product(Side::A, &leading)?, da, adds[0])?;
        }
        if let Some(db) = db {
            self.run_one(&self.product(Side::B, &leading)?, db, adds[1])?;
        }
        Ok(())
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        let leading = self.check()?;
        let device = self.a.device();
        let mut all = Implementation::Empty;
        for side in [Side::A, Side::B] {
            let Summed { operands, names, kept, .. } = self.product(side, &leading)?;
            let layouts = operands.each_ref().map(Folded::layout);
            let views = layouts.each_ref().map(|(address, shape, strides)| View {
                element: T::DTYPE,
                address: *address,
                shape,
                strides,
            });
            let options = self.options::<T>(false);
            let lengths: Vec<usize> = kept.iter().map(|&axis| leading[axis]).collect();
            let one = implementation_of_views::<T, T>(device, (OPERATION, names, views, &lengths), &options)?;
            let copies = operands.iter().filter(|operand| operand.copied.is_some()).count();
            let copies = if one.launches().is_empty() { 0 } else { copies };
            all = match all {
                Implementation::Empty => one.with_copies(one.copies() as usize + copies),
                _ => all.then(one.with_copies(one.copies() as usize + copies)),
            };
        }
        Ok(all)
    }

    fn stream(&self) -> Stream {
        self.stream.cloned().unwrap_or_else(|| self.a.device().default_stream())
    }

    fn options<Y: Element>(&self, adds: bool) -> Options<'a, T, Y> {
        let terms = Terms { beta: if adds { 1.0 } else { 0.0 }, ..Terms::default() };
        let (alpha, precision, stream) = (self.alpha, self.precision, self.stream);
        Options { alpha, precision, stream, terms, ..Options::new() }
    }

    /// Checks devices and shapes; the leading axes of both operands, broadcast.
    fn check(&self) -> Result<Vec<usize>> {
        let (a, b) = (self.a, self.b);
        let device = a.device();
        let shape = |operand, expected: String, tensor: &Tensor<T>| Error::Shape {
            operation: OPERATION,
            operand,
            expected,
            actual: tensor.shape().to_vec(),
        };
        for (operand, tensor) in [("a", a), ("b", b)] {
            if tensor.rank() < 2 {
                return Err(shape(operand, "at least two axes".into(), tensor));
            }
        }
        device.expect_same(OPERATION, "b", b.device())?;
        device.expect_same(OPERATION, "dy", self.dy.device())?;
        if let Some(stream) = self.stream {
            device.expect_same(OPERATION, "stream", stream.device())?;
        }
        let ([m, k], [b_k, n]) = (matrix(a, self.transpose[0]), matrix(b, self.transpose[1]));
        if b_k != k {
            let axes = if self.transpose[1] { format!("[.., N, {k}]") } else { format!("[.., {k}, N]") };
            return Err(shape("b", format!("{axes}, since a sums over {k}"), b));
        }
        let leading_of = |tensor: &'a Tensor<T>| &tensor.shape()[..tensor.rank() - 2];
        let Some(leading) = broadcast(leading_of(a), leading_of(b)) else {
            let of_a = leading_of(a);
            let expected = format!("leading axes that are equal to {of_a:?}, or 1 or missing in one");
            return Err(shape("b", expected, b));
        };
        let full = [&leading[..], &[m, n]].concat();
        expect_shape(OPERATION, "dy", self.dy.shape(), &full, "the product of a and b")?;
        Ok(leading)
    }

    /// Checks a tensor that is to take the gradient of `of`.
    fn check_output<Y: Element>(&self, operand: &'static str, to: &Tensor<Y>, of: &Tensor<T>) -> Result<()> {
        of.device().expect_same(OPERATION, operand, to.device())?;
        to.expect_writable(OPERATION, operand)?;
        let origin = if operand == "da" { "a" } else { "b" };
        expect_shape(OPERATION, operand, to.shape(), of.shape(), origin)?;
        expect_unit_stride(OPERATION, operand, to)?;
        for (other, tensor) in [("a", self.a), ("b", self.b), ("dy", self.dy)] {
            if to.shares_memory(tensor) {
                return Err(Error::Overlap { operation: OPERATION, operand, other });
            }
        }
        Ok(())
    }

    /// The product that is the gradient of an operand, of operands that have been checked.
    fn product(&self, side: Side, leading: &[usize]) -> Result<Summed<T>> {
        let turned = |tensor: &Tensor<T>| tensor.swap_axes(tensor.rank() - 2, tensor.rank() - 1);
        let [transpose_a, transpose_b] = self.transpose;
        let own = if side == Side::A { self.a } else { self.b };
        let rank_of = |tensor: &Tensor<T>| tensor.rank() - 2;
        let missing = leading.len() - rank_of(own);
        let is_kept = |axis: usize| match axis.checked_sub(missing) {
            Some(at) => own.shape()[at] == leading[axis],
            None => leading[axis] == 1,
        };
        let (kept, summed): (Vec<usize>, Vec<usize>) = (0..leading.len()).partition(|&axis| is_kept(axis));
        // Each as matrices whose columns are summed over.
        let (other, dy, is_turned) = match side {
            Side::A => {
                let b = if transpose_b { turned(self.b)? } else { self.b.clone() };
                (b, self.dy.clone(), transpose_a)
            }
            Side::B => {
                let a = if transpose_a { self.a.clone() } else { turned(self.a)? };
                (a, turned(self.dy)?, !transpose_b)
            }
        };
        let other = Source { tensor: other, rank: leading.len() };
        let dy = Source { tensor: dy, rank: leading.len() };
        let name = if side == Side::A { "b" } else { "a" };
        let (sources, names) =
            if is_turned { ([other, dy], [name, "dy"]) } else { ([dy, other], ["dy", name]) };
        let operands = folded(sources, &kept, &summed)?;
        Ok(Summed { operands, names, kept, rank: leading.len() })
    }

    /// Copies what has to be copied, and runs a product into a gradient.
    fn run_one<Y>(&self, product: &Summed<T>, to: &Tensor<Y>, adds: bool) -> Result<()>
    where
        T: LinearTypes<Y>,
        Y: Element + FromAccumulator<f32>,
    {
        let Summed { operands: [a, b], names, kept, rank } = product;
        let stream = self.stream();
        let to = Source { tensor: to.clone(), rank: *rank };
        let (shape, strides) = to.axes(kept, &[]);
        let mut to = to.tensor.with_axes(0, &shape, &strides);
        let options = self.options::<Y>(adds);
        let leading = shape[..kept.len()].to_vec();
        let product = Product {
            operation: OPERATION,
            names: *names,
            a: a.on(&stream)?,
            b: b.on(&stream)?,
            leading,
            output_shape: shape,
            options: &options,
        };
        product.run_into(&mut to)
    }
}

/// Rows and columns of the matrices of an operand.
fn matrix<T: Element>(tensor: &Tensor<T>, is_transposed: bool) -> [usize; 2] {
    let [rows, columns] = [tensor.shape()[tensor.rank() - 2], tensor.shape()[tensor.rank() - 1]];
    if is_transposed { [columns, rows] } else { [rows, columns] }
}

/// A product that is a gradient.
struct Summed<T: Element> {
    operands: [Folded<T>; 2],
    names: [&'static str; 2],
    /// The leading axes that the gradient has.
    kept: Vec<usize>,
    /// How many leading axes there are.
    rank: usize,
}

/// Matrices `[.., rows, columns]` with leading axes that are broadcast to `rank` of them.
struct Source<T: Element> {
    tensor: Tensor<T>,
    rank: usize,
}

impl<T: Element> Source<T> {
    /// Lengths and strides of some of the leading axes, of the rows, of other leading axes, and of the columns.
    fn axes(&self, first: &[usize], between: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let (shape, strides, last) = (self.tensor.shape(), self.tensor.strides(), self.tensor.rank() - 1);
        let missing = self.rank - (last - 1);
        let leading = |&axis: &usize| match axis.checked_sub(missing) {
            Some(at) => (shape[at], strides[at]),
            None => (1, 0),
        };
        let of = |axis: usize| std::iter::once((shape[axis], strides[axis]));
        let first = first.iter().map(leading).chain(of(last - 1));
        first.chain(between.iter().map(leading)).chain(of(last)).unzip()
    }

    fn columns(&self) -> usize {
        self.tensor.shape()[self.tensor.rank() - 1]
    }
}

/// An operand of a product, `[.., rows, sums]`.
struct Folded<T: Element> {
    /// The operand, or what is copied to become it.
    source: Tensor<T>,
    /// Shape and strides of the operand in the copy's memory.
    copied: Option<(Vec<usize>, Vec<usize>)>,
}

impl<T: Element> Folded<T> {
    /// Address, shape and strides.
    fn layout(&self) -> (u64, Vec<usize>, Vec<usize>) {
        match &self.copied {
            // Allocations are aligned as much as any operand has to be.
            Some((shape, strides)) => (1 << 8, shape.clone(), strides.clone()),
            None => {
                let source = &self.source;
                (source.arg().address(), source.shape().to_vec(), source.strides().to_vec())
            }
        }
    }

    /// The operand, after a copy on `stream` where it takes one.
    fn on(&self, stream: &Stream) -> Result<Tensor<T>> {
        let Some((shape, strides)) = &self.copied else { return Ok(self.source.clone()) };
        let copy = repack(&self.source).on(stream).run()?;
        let mut padded = copy.shape().to_vec();
        if let Some(columns) = padded.last_mut() {
            *columns = columns.next_multiple_of(chunk::<T>());
        }
        let whole = copy.dense_from_start(OPERATION, "copy", &padded)?;
        Ok(whole.with_axes(0, shape, strides))
    }
}

/// Elements in 16 bytes: what the rows of copies are padded to.
fn chunk<T>() -> usize {
    CHUNK_BYTES / size_of::<T>()
}

/// Makes the axes `summed` and the columns of both operands one axis.
///
/// The order of the sums is that of the axes. An operand that has no such view is copied, so that its rows, or its columns if these are contiguous, are side by
/// side for all matrices. Columns are padded with zeros then, which both operands need alike.
fn folded<T: Element>(sources: [Source<T>; 2], kept: &[usize], summed: &[usize]) -> Result<[Folded<T>; 2]> {
    let ways = sources.map(|source| {
        let (shape, strides) = source.axes(kept, summed);
        let tensor = source.tensor.with_axes(0, &shape, &strides);
        let mut target = shape[..=kept.len()].to_vec();
        // A product that overflows is of an operand without elements.
        target.push(shape[kept.len() + 1..].iter().fold(1, |all: usize, &length| all.saturating_mul(length)));
        let view = tensor.reshape(&target).ok();
        let is_along_sums = strides.last() == Some(&1);
        (source.columns(), tensor, target, view, is_along_sums)
    });
    let pads = ways.iter().any(|(columns, _, _, view, is_along_sums)| {
        view.is_none() && *is_along_sums && !columns.is_multiple_of(chunk::<T>())
    });
    let of_way = |(columns, tensor, mut target, view, is_along_sums)| -> Result<Folded<T>> {
        let (columns, tensor): (usize, Tensor<T>) = (columns, tensor);
        let view: Option<Tensor<T>> = view;
        if let (Some(view), false) = (view, pads) {
            return Ok(Folded { source: view, copied: None });
        }
        let sums = kept.len() + 1;
        if pads || is_along_sums {
            let target: &mut Vec<usize> = &mut target;
            let matrices = target[sums] / columns.max(1);
            target[sums] = matrices * columns.next_multiple_of(chunk::<T>());
            let strides = contiguous_strides(target).to_vec();
            return Ok(Folded { source: tensor, copied: Some((target.clone(), strides)) });
        }
        // The rows last, so that what is contiguous stays so.
        let mut order: Vec<usize> = (0..tensor.rank()).collect();
        let rows = order.remove(kept.len());
        order.push(rows);
        let pick = |of: &[usize]| order.iter().map(|&axis| of[axis]).collect::<Vec<_>>();
        let source = tensor.with_axes(0, &pick(tensor.shape()), &pick(tensor.strides()));
        let pitch = target[kept.len()].next_multiple_of(chunk::<T>());
        let mut strides = vec![1; target.len()];
        strides[sums] = pitch;
        let mut stride = pitch.saturating_mul(target[sums]);
        for axis in (0..kept.len()).rev() {
            strides[axis] = stride;
            stride = stride.saturating_mul(target[axis]);
        }
        Ok(Folded { source, copied: Some((target, strides)) })
    };
    let [first, second] = ways;
    Ok([of_way(first)?, of_way(second)?])
}
