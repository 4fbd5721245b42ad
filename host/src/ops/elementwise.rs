//! Functions of the elements of tensors: sums, products, activations, gates, conversions, and their gradients.
//!
//! One kernel has all of them. It reads each operand once and writes each result once, 16 bytes at a time where they are aligned.

#[cfg(test)]
pub(crate) mod tests;

use warpsmith_dsl::elementwise::{ElementwiseParams, Operation};
use warpsmith_dsl::launch::{Global, Kernel};
use warpsmith_dsl::rows::{AnyRows, THREADS};
use warpsmith_kernels::elementwise::elementwise as elementwise_kernel;

use crate::cpu::{self, Activation, Elementwise};
use crate::device::DeviceKind;
use crate::error::{Error, Result};
use crate::ops::rows::{
    AnyTensor, LANES, RowElement, Shares, Sizes, as_result_rows, as_rows, is_copied, kind, rounded, rows_of,
    widened, with_tensor,
};
use crate::ops::{Implementation, SIDE_LIMIT};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};
use crate::trace;

/// Blocks of a grid along y.
const MOST_ALONG_Y: u64 = 65_535;
/// Columns into which a longer tensor is cut.
const CUT: u64 = 1 << 20;

/// An element type that a kernel takes as the first operand's.
pub trait ElementwiseElement: RowElement {
    /// The kernel of one operand, aligned.
    #[doc(hidden)]
    type Unary: Kernel<Args = (ElementwiseParams<Self::Device>,)>;
    /// The kernel of one operand, of any alignment.
    #[doc(hidden)]
    type UnaryAny: Kernel<Args = (ElementwiseParams<Self::Device>,)>;
    /// The kernel of two, aligned.
    #[doc(hidden)]
    type Binary: Kernel<Args = (ElementwiseParams<Self::Device>,)>;
    /// The kernel of two, of any alignment.
    #[doc(hidden)]
    type BinaryAny: Kernel<Args = (ElementwiseParams<Self::Device>,)>;
    /// The kernel of three, aligned.
    #[doc(hidden)]
    type Ternary: Kernel<Args = (ElementwiseParams<Self::Device>,)>;
    /// The kernel of three, of any alignment.
    #[doc(hidden)]
    type TernaryAny: Kernel<Args = (ElementwiseParams<Self::Device>,)>;
}

macro_rules! elements {
    ($($element:ty, $chunk:literal;)*) => {$(
        impl ElementwiseElement for $element {
            type Unary = elementwise_kernel<<Self as Element>::Device, $chunk, true, 1>;
            type UnaryAny = elementwise_kernel<<Self as Element>::Device, $chunk, false, 1>;
            type Binary = elementwise_kernel<<Self as Element>::Device, $chunk, true, 2>;
            type BinaryAny = elementwise_kernel<<Self as Element>::Device, $chunk, false, 2>;
            type Ternary = elementwise_kernel<<Self as Element>::Device, $chunk, true, 3>;
            type TernaryAny = elementwise_kernel<<Self as Element>::Device, $chunk, false, 3>;
        }
    )*};
}
elements! {
    half::f16, 8;
    half::bf16, 8;
    f32, 4;
}

/// `a + b`, for `b` of the shape of `a`, `[.., N]`, or `[N]` for all rows.
///
/// The sum is rounded to f32, and then to the type of the result. That is a's by [`run`](ElementwiseOp::run), any other by
/// [`run_as`](ElementwiseOp::run_as).
///
/// ```
/// use ndarray::array;
/// use warpsmith::{Device, Tensor, ops};
///
/// let device = Device::emulator();
/// let a = Tensor::from_array(&device, &array![[1.0f32, 2.0], [3.0, 4.0]])?;
/// let b = Tensor::from_array(&device, &array![10.0f32, 20.0])?;
/// assert_eq!(ops::add(&a, &b).run()?.to_vec()?, [11.0, 22.0, 13.0, 24.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn add<'a, T: ElementwiseElement>(a: &'a Tensor<T>, b: impl Into<AnyTensor<'a>>) -> ElementwiseOp<'a, T> {
    ElementwiseOp::new("add", Elementwise::Add, ("a", a), Some(("b", b.into())), true)
}

/// `a · b`, element by element, for `b` of the shape of `a`, `[.., N]`, or `[N]` for all rows. Rounded as [`add`] rounds.
pub fn mul<'a, T: ElementwiseElement>(a: &'a Tensor<T>, b: impl Into<AnyTensor<'a>>) -> ElementwiseOp<'a, T> {
    ElementwiseOp::new("mul", Elementwise::Multiply, ("a", a), Some(("b", b.into())), true)
}

/// `act(x)`, element by element. Its error before rounding is at most [`Activation::evaluation_ulps`] · 2⁻²⁴ · |x|.
pub fn activation<T: ElementwiseElement>(x: &Tensor<T>, activation: Activation) -> ElementwiseOp<'_, T> {
    ElementwiseOp::new("activation", Elementwise::Activation(activation), ("x", x), None, false)
}

/// `act(gate) ⊙ value`, both `[.., N]`: SwiGLU with [`Activation::Silu`], GEGLU with a GELU, ReGLU with [`Activation::Relu`].
///
/// The two may be halves of one tensor: they are read in place.
///
/// ```
/// use ndarray::array;
/// use warpsmith::{Device, Tensor, ops};
///
/// let device = Device::emulator();
/// let h = Tensor::from_array(&device, &array![[1.0f32, -2.0, 3.0, 4.0], [0.5, 0.0, 5.0, 6.0]])?;
/// let (gate, value) = (h.slice(1, 0..2)?, h.slice(1, 2..4)?);
/// let y = ops::gated(&gate, &value, ops::Activation::Relu).run()?;
/// assert_eq!(y.to_vec()?, [3.0, 0.0, 2.5, 0.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn gated<'a, T: ElementwiseElement>(
    gate: &'a Tensor<T>,
    value: impl Into<AnyTensor<'a>>,
    activation: Activation,
) -> ElementwiseOp<'a, T> {
    let value = Some(("value", value.into()));
    ElementwiseOp::new("gated", Elementwise::Gated(activation), ("gate", gate), value, false)
}

/// The gradient of [`activation`](fn@activation): `dx = act′(x) ⊙ dy`. Its error before rounding is at most ([`Activation::derivative_ulps`] + 2) · 2⁻²⁴ · |dy|.
///
/// ReLU's derivative at 0 is 0. A dy that is infinite or NaN gives NaN where the derivative is 0.
pub fn activation_backward<'a, T: ElementwiseElement>(
    x: &'a Tensor<T>,
    dy: impl Into<AnyTensor<'a>>,
    activation: Activation,
) -> ElementwiseOp<'a, T> {
    let (function, dy) = (Elementwise::ActivationGradient(activation), Some(("dy", dy.into())));
    ElementwiseOp::new("activation_backward", function, ("x", x), dy, false)
}

/// The elements of `x` in type `Y`, rounded to the nearest, ties to even. Widening is exact; what is beyond the largest number becomes infinite.
///
/// ```
/// use half::f16;
/// use warpsmith::{Device, Tensor, ops};
///
/// let x = Tensor::from_slice(&Device::emulator(), &[1.0f32, 2049.0, 1e6], [3])?;
/// let y = ops::cast::<f16>(&x).run()?;
/// assert_eq!(y.to_vec()?, [f16::ONE, f16::from_f32(2048.0), f16::INFINITY]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn cast<'a, Y: RowElement>(x: impl Into<AnyTensor<'a>>) -> CastOp<'a, Y> {
    CastOp { x: x.into(), stream: None, to: std::marker::PhantomData }
}

/// The gradients of [`gated`]: `dgate = act′(gate) ⊙ value ⊙ dy` and `dvalue = act(gate) ⊙ dy`.
pub fn gated_backward<'a, T: ElementwiseElement, V: RowElement>(
    gate: &'a Tensor<T>,
    value: &'a Tensor<V>,
    dy: impl Into<AnyTensor<'a>>,
    activation: Activation,
) -> GatedBackwardOp<'a, T, V> {
    let function = Elementwise::GatedGradient(activation);
    let mut op =
        ElementwiseOp::new("gated_backward", function, ("gate", gate), Some(("value", V::any(value))), false);
    op.c = Some(("dy", dy.into()));
    GatedBackwardOp { op, value: std::marker::PhantomData }
}

/// An operation on elements that has yet to be made; see [`add`], [`mul`], [`activation`](fn@activation), [`gated`] and [`activation_backward`].
#[derive(Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct ElementwiseOp<'a, T: Element> {
    operation: &'static str,
    function: Elementwise,
    a: (&'static str, &'a Tensor<T>),
    b: Option<(&'static str, AnyTensor<'a>)>,
    /// Whether b may be one row for all.
    takes_row: bool,
    c: Option<(&'static str, AnyTensor<'a>)>,
    stream: Option<&'a Stream>,
}

impl<'a, T: ElementwiseElement> ElementwiseOp<'a, T> {
    fn new(
        operation: &'static str,
        function: Elementwise,
        a: (&'static str, &'a Tensor<T>),
        b: Option<(&'static str, AnyTensor<'a>)>,
        takes_row: bool,
    ) -> Self {
        Self { operation, function, a, b, takes_row, c: None, stream: None }
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// The result in the type of the first operand. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if an operand has no axis or another shape. [`Error::SizeLimit`] if there are 2³¹ rows or more, or as
    /// many columns. [`Error::DeviceMismatch`] if an operand or the stream is another device's. Otherwise whatever allocating
    /// the result, loading the kernel and launching it may return.
    pub fn run(&self) -> Result<Tensor<T>> {
        self.run_as::<T>()
    }

    /// The result in type `Y`.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_as<Y: RowElement>(&self) -> Result<Tensor<Y>> {
        let _range = trace::operation(self.operation);
        let (sizes, stream) = self.checked()?;
        let mut y = Tensor::uninit_on(&stream, self.a.1.shape())?;
        self.write::<Y, Y>(sizes, &stream, &mut y, None)?;
        Ok(y)
    }

    /// Writes the result into `y`, of the shape of the first operand and contiguous rows, so that the work can be [captured](Stream::capture) with its result kept.
    ///
    /// `y` may be the same view as an operand of its type.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`] and [`Error::ReadOnly`] if `y` does not fit, [`Error::Overlap`] if it
    /// shares memory with an operand and is not the same view.
    pub fn run_into<Y: RowElement>(&self, y: &mut Tensor<Y>) -> Result<()> {
        let _range = trace::operation(self.operation);
        let (sizes, stream) = self.checked()?;
        self.check_result("y", y)?;
        self.write::<Y, Y>(sizes, &stream, y, None)
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        self.implementation_of(&[kind::<T>()])
    }

    fn implementation_of(&self, results: &[warpsmith_dsl::rows::Kind]) -> Result<Implementation> {
        let (sizes, _) = self.checked()?;
        let device = self.a.1.device();
        if sizes.are_none() {
            return Ok(Implementation::Empty);
        }
        if device.kind() == DeviceKind::Cpu {
            return Ok(Implementation::Cpu);
        }
        let columns = sizes.columns as u64;
        // Allocations, those of copies too, are aligned as much as any chunk.
        let dense = |kind| AnyRows { base: 1 << 8, stride: columns, kind, offset: 0.0 };
        let in_place = |tensor: AnyTensor<'_>| {
            with_tensor!(tensor, x => {
                let matrix = x.flatten_leading();
                let kind = kind_of(x);
                matrix.map_or_else(|_| dense(kind), |matrix| if is_copied(x) { dense(kind) } else { rows_of(&matrix) })
            })
        };
        let mut rows = vec![in_place(T::any(self.a.1))];
        let mut is_row = false;
        if let Some((_, b)) = self.b {
            let mut of_b = in_place(b);
            is_row = self.is_row(b);
            if is_row {
                of_b.stride = 0;
            }
            rows.push(of_b);
        }
        rows.extend(self.c.map(|(_, c)| in_place(c)));
        let operands = rows.len();
        rows.extend(results.iter().map(|&kind| dense(kind)));
        let mut all = Implementation::Empty;
        for launch in launches::<T>(sizes, &rows, operands, is_row) {
            let one = Implementation::kernel(device, launch.name::<T>(), launch.grid[0] * launch.grid[1]);
            all = all.then(one);
        }
        let others = [self.b, self.c].into_iter().flatten();
        let copies = others.filter(|&(_, x)| with_tensor!(x, x => is_copied(x))).count();
        Ok(all.with_copies(copies + usize::from(is_copied(self.a.1))))
    }

    /// Whether an operand is one row for all.
    fn is_row(&self, b: AnyTensor<'_>) -> bool {
        b.shape() != self.a.1.shape()
    }

    fn checked(&self) -> Result<(Sizes, Stream)> {
        let (operation, (name, a)) = (self.operation, self.a);
        let device = a.device();
        let sizes = Sizes::of(operation, name, a.shape())?;
        for (operand, other) in [self.b, self.c].into_iter().flatten() {
            let is_row = self.takes_row && other.shape() == [sizes.columns];
            if other.shape() != a.shape() && !is_row {
                let row = if self.takes_row { format!(", or [{}]", sizes.columns) } else { String::new() };
                let expected = format!("{:?}, as `{name}` has{row}", a.shape());
                return Err(Error::Shape { operation, operand, expected, actual: other.shape().to_vec() });
            }
            device.expect_same(operation, operand, other.device())?;
        }
        if let Some(stream) = self.stream {
            device.expect_same(operation, "stream", stream.device())?;
        }
        Ok((sizes, self.stream.cloned().unwrap_or_else(|| device.default_stream())))
    }

    /// The error for a result that does not fit.
    fn check_result<Y: RowElement>(&self, operand: &'static str, y: &Tensor<Y>) -> Result<()> {
        let (operation, (name, a)) = (self.operation, self.a);
        a.device().expect_same(operation, operand, y.device())?;
        y.expect_writable(operation, operand)?;
        if y.shape() != a.shape() {
            let expected = format!("{:?}, as `{name}` has", a.shape());
            return Err(Error::Shape { operation, operand, expected, actual: y.shape().to_vec() });
        }
        as_result_rows(operation, operand, y)?;
        let operands = [Some((name, T::any(a))), self.b, self.c];
        for (other, x) in operands.into_iter().flatten() {
            let meets = with_tensor!(x, x => y.shares_memory(x) && !y.is_same_view_as(x));
            if meets {
                return Err(Error::Overlap { operation, operand, other });
            }
        }
        Ok(())
    }

    /// Writes results that have been checked, or are new.
    fn write<Y: RowElement, Z: RowElement>(
        &self,
        sizes: Sizes,
        stream: &Stream,
        y: &mut Tensor<Y>,
        z: Option<&mut Tensor<Z>>,
    ) -> Result<()> {
        let device = self.a.1.device();
        if sizes.are_none() {
            return Ok(());
        }
        if device.kind() == DeviceKind::Cpu {
            return self.run_on_cpu(y, z);
        }
        let a = as_rows(self.a.1, stream)?;
        let mut rows = vec![rows_of(&a)];
        let mut kept: Vec<Box<dyn Operand>> = vec![Box::new(a)];
        let mut is_row = false;
        for (_, other) in [self.b, self.c].into_iter().flatten() {
            is_row |= self.is_row(other);
            with_tensor!(other, x => {
                let matrix = as_rows(x, stream)?;
                rows.push(rows_of(&matrix));
                kept.push(Box::new(matrix));
            });
        }
        let operands = rows.len();
        let result = as_result_rows(self.operation, "y", y)?;
        rows.push(rows_of(&result));
        kept.push(Box::new(result));
        if let Some(z) = z {
            let result = as_result_rows(self.operation, "z", z)?;
            rows.push(rows_of(&result));
            kept.push(Box::new(result));
        }
        let kept: Vec<&dyn Operand> = kept.iter().map(|operand| &**operand).collect();
        stream.with_operands(&kept, || {
            for launch in launches::<T>(sizes, &rows, operands, is_row) {
                // SAFETY: the rows are those of the tensors, of the sizes that were checked; results are new, or share no element with operands but where these are the
                // same views. Tensors are freed in the order of their home streams, which `with_operands` makes wait for this work.
                unsafe { launch.run::<T>(stream, self.function)? };
            }
            Ok(())
        })
    }

    fn run_on_cpu<Y: RowElement, Z: RowElement>(
        &self,
        y: &mut Tensor<Y>,
        z: Option<&mut Tensor<Z>>,
    ) -> Result<()> {
        let numbers = |of: Option<(&'static str, AnyTensor<'_>)>| {
            of.map_or_else(|| Ok(Vec::new()), |(_, x)| x.to_f32())
        };
        let (a, b, c) = (widened(self.a.1)?, numbers(self.b)?, numbers(self.c)?);
        let mut values = vec![0.0f32; a.len()];
        let mut seconds = vec![0.0f32; if z.is_some() { a.len() } else { 0 }];
        cpu::elementwise(self.function, [&a, &b, &c], &mut values, &mut seconds);
        y.write_slice(&rounded(&values))?;
        z.map_or(Ok(()), |z| z.write_slice(&rounded(&seconds)))
    }
}

/// A conversion that has yet to be made; see [`cast`].
#[derive(Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct CastOp<'a, Y> {
    x: AnyTensor<'a>,
    stream: Option<&'a Stream>,
    to: std::marker::PhantomData<fn() -> Y>,
}

/// The activation that a cast applies: none.
fn cast_of<'a, T: ElementwiseElement>(x: &'a Tensor<T>, stream: Option<&'a Stream>) -> ElementwiseOp<'a, T> {
    let op = ElementwiseOp::new("cast", Elementwise::Activation(Activation::None), ("x", x), None, false);
    ElementwiseOp { stream, ..op }
}

impl<'a, Y: RowElement> CastOp<'a, Y> {
    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// The elements in type `Y`.
    ///
    /// # Errors
    ///
    /// As [`ElementwiseOp::run`].
    pub fn run(&self) -> Result<Tensor<Y>> {
        with_tensor!(self.x, x => cast_of(x, self.stream).run_as::<Y>())
    }

    /// Writes them into `y`; see [`ElementwiseOp::run_into`].
    ///
    /// # Errors
    ///
    /// As [`ElementwiseOp::run_into`].
    pub fn run_into(&self, y: &mut Tensor<Y>) -> Result<()> {
        with_tensor!(self.x, x => cast_of(x, self.stream).run_into(y))
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn implementation(&self) -> Result<Implementation> {
        with_tensor!(self.x, x => cast_of(x, self.stream).implementation_of(&[kind::<Y>()]))
    }
}

/// Gradients that have yet to be computed; see [`gated_backward`].
#[derive(Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct GatedBackwardOp<'a, T: Element, V> {
    op: ElementwiseOp<'a, T>,
    value: std::marker::PhantomData<fn() -> V>,
}

impl<'a, T: ElementwiseElement, V: RowElement> GatedBackwardOp<'a, T, V> {
    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { op: self.op.on(stream), ..self }
    }

    /// The gradients of the gate and of the value, in their types.
    ///
    /// # Errors
    ///
    /// As [`ElementwiseOp::run`].
    pub fn run(&self) -> Result<(Tensor<T>, Tensor<V>)> {
        let _range = trace::operation(self.op.operation);
        let (sizes, stream) = self.op.checked()?;
        let shape = self.op.a.1.shape();
        let (mut dgate, mut dvalue) =
            (Tensor::uninit_on(&stream, shape)?, Tensor::uninit_on(&stream, shape)?);
        self.op.write(sizes, &stream, &mut dgate, Some(&mut dvalue))?;
        Ok((dgate, dvalue))
    }

    /// Writes the gradients into `dgate` and `dvalue`, of the operands' shape and contiguous rows, which may be halves of one tensor.
    ///
    /// Each may be the same view as an operand of its type.
    ///
    /// # Errors
    ///
    /// As [`ElementwiseOp::run_into`], for each of the two; [`Error::Overlap`] also if they have an element in common.
    pub fn run_into<Y: RowElement, Z: RowElement>(
        &self,
        dgate: &mut Tensor<Y>,
        dvalue: &mut Tensor<Z>,
    ) -> Result<()> {
        let _range = trace::operation(self.op.operation);
        let (sizes, stream) = self.op.checked()?;
        self.op.check_result("dgate", dgate)?;
        self.op.check_result("dvalue", dvalue)?;
        if dgate.shares_memory(dvalue) {
            let operation = self.op.operation;
            return Err(Error::Overlap { operation, operand: "dgate", other: "dvalue" });
        }
        self.op.write(sizes, &stream, dgate, Some(dvalue))
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn implementation(&self) -> Result<Implementation> {
        self.op.implementation_of(&[kind::<T>(), kind::<V>()])
    }
}

fn kind_of<T: RowElement>(_: &Tensor<T>) -> warpsmith_dsl::rows::Kind {
    kind::<T>()
}

/// Rows and columns that a launch has, from a row on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Rows before the first.
    before: u64,
    rows: u64,
    columns: u64,
    /// Elements from one row of operands without gaps to the next; `None` if operands have strides of their own.
    stride: Option<u64>,
}

/// What launches there are. Operands without gaps are one long row, or some and a rest.
fn parts(sizes: Sizes, rows: &[AnyRows], is_row: bool) -> Vec<Part> {
    let (count, columns) = (sizes.rows as u64, sizes.columns as u64);
    let is_dense = count == 1 || !is_row && rows.iter().all(|of| of.stride == columns);
    if !is_dense {
        return vec![Part { before: 0, rows: count, columns, stride: None }];
    }
    let all = count * columns;
    if all < SIDE_LIMIT {
        return vec![Part { before: 0, rows: 1, columns: all, stride: Some(all) }];
    }
    let mut parts = vec![Part { before: 0, rows: all / CUT, columns: CUT, stride: Some(CUT) }];
    if !all.is_multiple_of(CUT) {
        parts.push(Part { before: all / CUT, rows: 1, columns: all % CUT, stride: Some(CUT) });
    }
    parts
}

/// What launches there are, none of more blocks than a grid has.
fn launches<T: Element>(sizes: Sizes, rows: &[AnyRows], operands: usize, is_row: bool) -> Vec<Launch> {
    let mut all = Vec::new();
    for part in parts(sizes, rows, is_row) {
        let most = MOST_ALONG_Y * u64::from(THREADS / Launch::new::<T>(part, rows, operands).threads);
        for before in (0..part.rows).step_by(most as usize) {
            let piece = Part { before: part.before + before, rows: most.min(part.rows - before), ..part };
            all.push(Launch::new::<T>(piece, rows, operands));
        }
    }
    all
}

/// A launch of the kernel.
#[derive(Clone, Debug)]
struct Launch {
    part: Part,
    /// Operands, then results, from the part's first element on.
    rows: Vec<AnyRows>,
    operands: usize,
    vector: bool,
    threads: u32,
    grid: [u32; 3],
}

impl Launch {
    fn new<T: Element>(part: Part, rows: &[AnyRows], operands: usize) -> Self {
        let rows: Vec<AnyRows> = rows
            .iter()
            .map(|of| {
                let stride = part.stride.unwrap_or(of.stride);
                let base = of.base + part.before * stride * u64::from(of.kind.bytes());
                AnyRows { base, stride: if part.rows == 1 { 0 } else { stride }, ..*of }
            })
            .collect();
        // The last chunk of a row that is the only one may be cut.
        let aligned = if part.rows == 1 { 0 } else { part.columns as usize };
        let shares = Shares::of::<T>(aligned, &rows, 1);
        let (threads, grid) = grid(part.rows, part.columns, shares);
        Self { part, rows, operands, vector: shares.vector, threads, grid }
    }

    fn name<T: ElementwiseElement>(&self) -> &'static str {
        match (self.operands, self.vector) {
            (1, true) => T::Unary::DECLARATION.name,
            (1, false) => T::UnaryAny::DECLARATION.name,
            (2, true) => T::Binary::DECLARATION.name,
            (2, false) => T::BinaryAny::DECLARATION.name,
            (_, true) => T::Ternary::DECLARATION.name,
            (_, false) => T::TernaryAny::DECLARATION.name,
        }
    }

    /// # Safety
    ///
    /// The rows are valid for the operation, and nothing else touches what is written.
    unsafe fn run<T: ElementwiseElement>(&self, stream: &Stream, function: Elementwise) -> Result<()> {
        let at = |place: usize| self.rows.get(place).copied().unwrap_or(AnyRows::NONE);
        let device = stream.device();
        let operand = |place: usize| if place < self.operands { at(place) } else { AnyRows::NONE };
        let (operation, activation) = match function {
            Elementwise::Activation(activation) => (Operation::ACTIVATION, activation),
            Elementwise::Add => (Operation::ADD, Activation::None),
            Elementwise::Multiply => (Operation::MULTIPLY, Activation::None),
            Elementwise::Gated(activation) => (Operation::GATED, activation),
            Elementwise::ActivationGradient(activation) => (Operation::ACTIVATION_GRADIENT, activation),
            Elementwise::GatedGradient(activation) => (Operation::GATED_GRADIENT, activation),
        };
        let params = ElementwiseParams {
            a: Global::new(at(0).base),
            a_stride: at(0).stride,
            b: operand(1),
            c: operand(2),
            y: at(self.operands),
            z: at(self.operands + 1),
            rows: self.part.rows as u32,
            columns: self.part.columns as u32,
            threads: self.threads,
            operation,
            activation: activation.on_device(),
            reserved: 0,
        };
        // SAFETY: the caller's promise.
        unsafe {
            match (self.operands, self.vector) {
                (1, true) => device.kernel::<T::Unary>()?.launch_early(stream, self.grid, (params,)),
                (1, false) => device.kernel::<T::UnaryAny>()?.launch_early(stream, self.grid, (params,)),
                (2, true) => device.kernel::<T::Binary>()?.launch_early(stream, self.grid, (params,)),
                (2, false) => device.kernel::<T::BinaryAny>()?.launch_early(stream, self.grid, (params,)),
                (_, true) => device.kernel::<T::Ternary>()?.launch_early(stream, self.grid, (params,)),
                (_, false) => device.kernel::<T::TernaryAny>()?.launch_early(stream, self.grid, (params,)),
            }
        }
    }
}

/// Threads of a block that share a row, and the grid: along x blocks for the columns, less than 2³¹, along y for the rows.
///
/// Along y there are at most [`MOST_ALONG_Y`]. A kernel whose teams have one row each is [launched](launches) for no more rows; others go on to further rows.
pub(crate) fn grid(rows: u64, columns: u64, shares: Shares) -> (u32, [u32; 3]) {
    /// Threads that read neighbours, where there are as many chunks.
    const LEAST: u32 = 8;
    let all = columns.div_ceil(u64::from(shares.chunk)).max(1);
    let chunks = u64::from(shares.chunks);
    // Threads may go on to further chunks, which only those of whole warps have.
    let least = if shares.vector { shares.least_threads(all, LEAST) } else { u64::from(LANES) };
    let threads = all.div_ceil(chunks).next_power_of_two().max(least).min(u64::from(THREADS));
    let along_x = all.div_ceil(threads * chunks);
    let along_y = rows.div_ceil(u64::from(THREADS) / threads).clamp(1, MOST_ALONG_Y);
    (threads as u32, [along_x as u32, along_y as u32, 1])
}
