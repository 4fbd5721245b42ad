//! Rotary position embedding: pairs of elements of each head, turned by angles that grow with the token's position.

mod positions;
#[cfg(test)]
mod tests;

use warpsmith_dsl::launch::{Global, Kernel};
use warpsmith_dsl::rotary::{HEADS, RotaryParams};
use warpsmith_dsl::rows::THREADS;
use warpsmith_kernels::rotary::rotary as rotary_kernel;

use crate::cpu;
pub use crate::cpu::Pairing;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::ops::rows::{MOST_BLOCKS, RowElement, widened};
use crate::ops::{CHUNK_BYTES, Implementation, SIDE_LIMIT};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};
use crate::trace;
pub(crate) use positions::positions;

/// The operation's name in errors.
const OPERATION: &str = "rotary";
/// The name of tables in errors.
const TABLE: &str = "RotaryTable";
/// Blocks of a multiprocessor that have enough threads to hide that angles are read.
const BLOCKS: u32 = 8;

/// An element type of heads.
pub trait RotaryElement: RowElement {
    /// The kernel for aligned heads.
    #[doc(hidden)]
    type Vector: Kernel<Args = (RotaryParams<Self::Device>,)>;
    /// The kernel for any.
    #[doc(hidden)]
    type Any: Kernel<Args = (RotaryParams<Self::Device>,)>;
}

macro_rules! elements {
    ($($element:ty, $chunk:literal;)*) => {$(
        impl RotaryElement for $element {
            type Vector = rotary_kernel<<Self as Element>::Device, $chunk>;
            type Any = rotary_kernel<<Self as Element>::Device, 1>;
        }
    )*};
}
elements! {
    half::f16, 8;
    half::bf16, 8;
    f32, 4;
}

/// The angles of pairs at each position, on a device.
///
/// Pair i of position p is turned by `p · θ_i`. Cosines and sines are computed in f64 and rounded to f32.
#[derive(Clone, Debug)]
pub struct RotaryTable {
    /// `[positions, pairs, 2]`: the cosine and the sine.
    angles: Tensor<f32>,
}

impl RotaryTable {
    /// Angles with `θ_i = base^(−2i / rotary_dim)`, for `rotary_dim / 2` pairs and positions below `positions`.
    ///
    /// `rotary_dim` is the number of elements of a head that are turned, which may be less than the head has: it is this number that frequencies depend on.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if `base` is not a positive number, or `rotary_dim` is odd or 0; otherwise as [`with_frequencies`](Self::with_frequencies).
    pub fn new(device: &Device, base: f64, rotary_dim: usize, positions: usize) -> Result<Self> {
        let refused = |argument, expected: &str, actual: String| Error::Argument {
            operation: TABLE,
            argument,
            expected: expected.into(),
            actual,
        };
        if !(base > 0.0 && base.is_finite()) {
            return Err(refused("base", "a number above 0", base.to_string()));
        }
        if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
            return Err(refused("rotary_dim", "an even number of at least 2", rotary_dim.to_string()));
        }
        let frequencies: Vec<f64> =
            (0..rotary_dim / 2).map(|pair| base.powf(-2.0 * pair as f64 / rotary_dim as f64)).collect();
        Self::with_frequencies(device, &frequencies, positions)
    }

    /// Angles with these `θ_i`, one for each pair: for variants that scale them.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there are none or one is not finite, [`Error::SizeLimit`] if there are 2³¹ positions or pairs; whatever [`Tensor::from_slice`] may
    /// return.
    pub fn with_frequencies(device: &Device, frequencies: &[f64], positions: usize) -> Result<Self> {
        if let Some(actual) = frequencies.iter().find(|frequency| !frequency.is_finite()) {
            return Err(Error::Argument {
                operation: TABLE,
                argument: "frequencies",
                expected: "finite numbers".into(),
                actual: actual.to_string(),
            });
        }
        if frequencies.is_empty() {
            return Err(Error::Argument {
                operation: TABLE,
                argument: "frequencies",
                expected: "at least one".into(),
                actual: "none".into(),
            });
        }
        for (quantity, size) in [("positions", positions), ("pairs", frequencies.len())] {
            if size as u64 >= SIDE_LIMIT {
                let (limit, actual) = (format!("less than {SIDE_LIMIT}"), size.to_string());
                return Err(Error::SizeLimit {
                    operation: TABLE,
                    operand: "angles",
                    quantity,
                    limit,
                    actual,
                });
            }
        }
        let angles: Vec<f32> = (0..positions)
            .flat_map(|position| {
                frequencies.iter().flat_map(move |frequency| {
                    let (sine, cosine) = (position as f64 * frequency).sin_cos();
                    [cosine as f32, sine as f32]
                })
            })
            .collect();
        let angles = Tensor::from_slice(device, &angles, [positions, frequencies.len(), 2])?;
        Ok(Self { angles })
    }

    /// Positions whose angles it has.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.angles.shape()[0]
    }

    /// Elements of a head that are turned.
    #[must_use]
    pub fn rotary_dim(&self) -> usize {
        2 * self.pairs()
    }

    /// The cosines and sines, `[positions, rotary_dim / 2, 2]`.
    #[must_use]
    pub fn angles(&self) -> &Tensor<f32> {
        &self.angles
    }

    fn pairs(&self) -> usize {
        self.angles.shape()[1]
    }
}

/// `x` `[.., S, H, D]`, tokens S and heads H of D elements, with the first `table.rotary_dim()` elements of each head turned, the others as they are.
///
/// A token's position is its place in S. See [`RotaryOp::offset`] and [`RotaryOp::positions`] for others, [`RotaryOp::pairing`] for which elements are a pair. Heads
/// are read in place if their elements are neighbours in memory. `x` may be `[B, S, H, D]`, a view of `[B, H, S, D]`, or those
/// of q and k together in a packed tensor of q, k and v, which takes one launch for both.
///
/// ```
/// use warpsmith::{Device, Tensor, ops};
///
/// let device = Device::emulator();
/// let table = ops::RotaryTable::new(&device, 10_000.0, 4, 16)?;
/// // Two tokens, a head.
/// let x = Tensor::from_slice(&device, &[1.0f32, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], [2, 1, 4])?;
/// let y = ops::rotary(&x, &table).run()?.to_vec()?;
/// assert_eq!(y[..4], [1.0, 0.0, 0.0, 0.0]);
/// assert!((y[4] - 1f32.cos()).abs() < 1e-6 && (y[6] - 1f32.sin()).abs() < 1e-6);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn rotary<'a, T: RotaryElement>(x: &'a Tensor<T>, table: &'a RotaryTable) -> RotaryOp<'a, T> {
    RotaryOp {
        x,
        table,
        pairing: Pairing::default(),
        offset: 0,
        positions: None,
        is_inverse: false,
        stream: None,
    }
}

/// A rotation that has yet to be made; see [`rotary`](fn@rotary).
#[derive(Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct RotaryOp<'a, T: Element> {
    x: &'a Tensor<T>,
    table: &'a RotaryTable,
    pairing: Pairing,
    offset: usize,
    positions: Option<&'a Tensor<u32>>,
    is_inverse: bool,
    stream: Option<&'a Stream>,
}

impl<'a, T: RotaryElement> RotaryOp<'a, T> {
    /// Which elements are a pair; [`Pairing::Halves`] unless this says otherwise.
    pub fn pairing(self, pairing: Pairing) -> Self {
        Self { pairing, ..self }
    }

    /// The position of the first token of each sequence, the number of tokens in a cache, say; 0 unless this says otherwise.
    pub fn offset(self, offset: usize) -> Self {
        Self { offset, ..self }
    }

    /// The position of each token, `[.., S]`, in place of its place and the offset.
    ///
    /// Where the table lacks a position, the elements that would be turned become NaN.
    pub fn positions(self, positions: &'a Tensor<u32>) -> Self {
        Self { positions: Some(positions), ..self }
    }

    /// Turns back, by the negative angles.
    pub fn inverse(self) -> Self {
        Self { is_inverse: !self.is_inverse, ..self }
    }

    /// The gradient of the same rotation, where `x` is that of its result: a rotation is orthogonal, so this is its [`inverse`](Self::inverse).
    pub fn backward(self) -> Self {
        self.inverse()
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// The heads, turned, in a tensor without gaps. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if `x` has less than three axes, less than `rotary_dim` elements in a head, or if positions have
    /// another shape. [`Error::Argument`] if the table lacks positions that are counted from the offset. [`Error::SizeLimit`]
    /// if there are 2³¹ tokens, heads or elements of a head. [`Error::DeviceMismatch`] if the table, the positions or the
    /// stream are another device's. Otherwise whatever allocating the result, loading the kernel and launching it may return.
    pub fn run(&self) -> Result<Tensor<T>> {
        let _range = trace::operation(OPERATION);
        let (sizes, stream) = self.checked()?;
        let mut y = Tensor::uninit_on(&stream, self.x.shape())?;
        self.write(sizes, &stream, &mut y)?;
        Ok(y)
    }

    /// Writes the heads into `y`, of the shape of `x` and as readable in place, so that the work can be [captured](Stream::capture) with its result kept.
    ///
    /// `y` may be the same view as `x`. Then only what is turned is read and written.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`] and [`Error::ReadOnly`] if `y` does not fit, [`Error::Overlap`] if it
    /// shares memory with the positions, the table, or x, and is not the same view.
    pub fn run_into(&self, y: &mut Tensor<T>) -> Result<()> {
        let _range = trace::operation(OPERATION);
        let (operation, operand) = (OPERATION, "y");
        let (sizes, stream) = self.checked()?;
        self.x.device().expect_same(operation, operand, y.device())?;
        y.expect_writable(operation, operand)?;
        super::rows::expect_shape(operation, operand, y.shape(), self.x.shape(), "x")?;
        if Heads::of(y).is_none() {
            let expected = "1 along the last axis, and leading axes that are one".into();
            return Err(Error::Stride { operation, operand, expected, actual: y.strides().to_vec() });
        }
        let shared = [
            ("x", y.shares_memory(self.x) && !y.is_same_view(self.x)),
            ("table", y.shares_memory(&self.table.angles)),
            ("positions", self.positions.is_some_and(|positions| y.shares_memory(positions))),
        ];
        if let Some((other, _)) = shared.into_iter().find(|(_, is_shared)| *is_shared) {
            return Err(Error::Overlap { operation, operand, other });
        }
        self.write(sizes, &stream, y)
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn implementation(&self) -> Result<Implementation> {
        let (sizes, _) = self.checked()?;
        let device = self.x.device();
        if sizes.are_none() {
            return Ok(Implementation::Empty);
        }
        if device.kind() == DeviceKind::Cpu {
            return Ok(Implementation::Cpu);
        }
        let x = Heads::of(self.x);
        // Allocations are aligned as much as any chunk.
        let dense = Heads::dense(sizes);
        let launch = Launch::new::<T>(self, sizes, [x.unwrap_or(dense), dense], false, device);
        let implementation = Implementation::kernel(device, launch.name::<T>(), launch.blocks);
        Ok(implementation.with_copies(usize::from(x.is_none())))
    }

    fn checked(&self) -> Result<(Sizes, Stream)> {
        let (operation, x, rotary) = (OPERATION, self.x, self.table.rotary_dim());
        let device = x.device();
        let &[ref leading @ .., length, heads, width] = x.shape() else {
            let expected = "[.., S, H, D], at least three axes".into();
            return Err(Error::Shape { operation, operand: "x", expected, actual: x.shape().to_vec() });
        };
        if width < rotary {
            let expected = format!("heads of at least {rotary} elements, which the table turns");
            return Err(Error::Shape { operation, operand: "x", expected, actual: x.shape().to_vec() });
        }
        let tokens = leading.iter().chain([&length]).try_fold(1usize, |product, &n| product.checked_mul(n));
        let tokens = tokens.unwrap_or(usize::MAX);
        for (quantity, size) in
            [("number of tokens", tokens), ("number of heads", heads), ("elements of a head", width)]
        {
            if size as u64 >= SIDE_LIMIT {
                let (limit, actual) = (format!("less than {SIDE_LIMIT}"), size.to_string());
                return Err(Error::SizeLimit { operation, operand: "x", quantity, limit, actual });
            }
        }
        device.expect_same(operation, "table", self.table.angles.device())?;
        match self.positions {
            Some(positions) => {
                let shape = &x.shape()[..x.rank() - 2];
                super::rows::expect_shape(
                    operation,
                    "positions",
                    positions.shape(),
                    shape,
                    "x without its heads",
                )?;
                device.expect_same(operation, "positions", positions.device())?;
            }
            None if tokens > 0 && self.offset.saturating_add(length) > self.table.positions() => {
                return Err(Error::Argument {
                    operation,
                    argument: "offset",
                    expected: format!(
                        "so that {length} tokens are within the table's {} positions",
                        self.table.positions()
                    ),
                    actual: self.offset.to_string(),
                });
            }
            None => {}
        }
        if let Some(stream) = self.stream {
            device.expect_same(operation, "stream", stream.device())?;
        }
        let sizes = Sizes { tokens, length, heads, width };
        Ok((sizes, self.stream.cloned().unwrap_or_else(|| device.default_stream())))
    }

    /// Turns heads into a result that has been checked, or is new.
    fn write(&self, sizes: Sizes, stream: &Stream, y: &mut Tensor<T>) -> Result<()> {
        let device = self.x.device();
        if sizes.are_none() {
            return Ok(());
        }
        if device.kind() == DeviceKind::Cpu {
            return self.run_on_cpu(sizes, y);
        }
        let is_in_place = y.is_same_view(self.x);
        let x = match Heads::of(self.x) {
            Some(_) => self.x.clone(),
            None => self.x.contiguous_on(stream)?,
        };
        let heads =
            [Heads::of(&x).unwrap_or(Heads::dense(sizes)), Heads::of(y).unwrap_or(Heads::dense(sizes))];
        let positions = self.positions.map(|positions| positions.contiguous_on(stream)).transpose()?;
        let launch = Launch::new::<T>(self, sizes, heads, is_in_place, device);
        let mut params = launch.params(self, sizes);
        params.x = x.arg();
        params.y = y.arg_mut();
        params.positions = positions.as_ref().map_or(Global::new(0), Tensor::arg);
        let mut operands: Vec<&dyn Operand> = vec![&x, &*y, &self.table.angles];
        operands.extend(positions.as_ref().map(|positions| positions as &dyn Operand));
        // SAFETY: the sizes and strides are those of the tensors; y is new, shares no memory with what is read, or is the same view as x. Tensors are freed in the order
        // of their home streams, which `with_operands` makes wait for this work.
        stream.with_operands(&operands, || unsafe {
            let grid = [launch.blocks, 1, 1];
            if launch.vector {
                device.kernel::<T::Vector>()?.launch_early(stream, grid, (params,))
            } else {
                device.kernel::<T::Any>()?.launch_early(stream, grid, (params,))
            }
        })
    }

    fn run_on_cpu(&self, sizes: Sizes, y: &mut Tensor<T>) -> Result<()> {
        let (pairs, rotary) = (self.table.pairs(), self.table.rotary_dim());
        let (angles, numbers) = (self.table.angles.to_vec()?, widened(self.x)?);
        let positions = self.positions.map(Tensor::to_vec).transpose()?;
        let mut elements = self.x.to_vec()?;
        let sign = if self.is_inverse { -1.0 } else { 1.0 };
        let mut turned = vec![0.0f32; rotary];
        for token in 0..sizes.tokens {
            let position = positions
                .as_ref()
                .map_or(self.offset + token % sizes.length, |positions| positions[token] as usize);
            let row: Vec<[f32; 2]> = (0..pairs)
                .map(|pair| {
                    let at = 2 * (position * pairs + pair);
                    if position < self.table.positions() {
                        [angles[at], sign * angles[at + 1]]
                    } else {
                        [f32::NAN; 2]
                    }
                })
                .collect();
            for head in 0..sizes.heads {
                let at = (token * sizes.heads + head) * sizes.width;
                cpu::rotate(self.pairing, &numbers[at..at + rotary], &row, &mut turned);
                for (element, &number) in elements[at..at + rotary].iter_mut().zip(&turned) {
                    *element = T::from_accumulator(number);
                }
            }
        }
        y.write_slice(&elements)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    /// Of all sequences.
    tokens: usize,
    /// Tokens of a sequence.
    length: usize,
    heads: usize,
    width: usize,
}

impl Sizes {
    fn are_none(self) -> bool {
        self.tokens == 0 || self.heads == 0 || self.width == 0
    }
}

/// The place of heads: the address of the first, and the strides of sequences, tokens and heads in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heads {
    address: u64,
    strides: [u64; 3],
}

impl Heads {
    /// Those of a tensor, if the elements of a head are neighbours and its leading axes are one. Along an axis of length 1 the stride is 0.
    fn of<T: Element>(tensor: &Tensor<T>) -> Option<Self> {
        let (shape, strides) = (tensor.shape(), tensor.strides());
        let first = shape.len().checked_sub(3)?;
        if shape[first + 2] > 1 && strides[first + 2] != 1 {
            return None;
        }
        let stride = |axis: usize| if shape[axis] > 1 { strides[axis] as u64 } else { 0 };
        // From the last one on, each goes on where the one behind it ends.
        let mut leading: Option<(u64, u64)> = None;
        for axis in (0..first).rev().filter(|&axis| shape[axis] > 1) {
            leading = Some(match leading {
                None => (stride(axis), shape[axis] as u64),
                Some((inner, length)) if stride(axis) == inner * length => {
                    (inner, length * shape[axis] as u64)
                }
                Some(_) => return None,
            });
        }
        let strides = [leading.map_or(0, |(stride, _)| stride), stride(first), stride(first + 1)];
        Some(Self { address: tensor.device_address(), strides })
    }

    /// Those of a new tensor without gaps.
    fn dense(sizes: Sizes) -> Self {
        let of_token = (sizes.heads * sizes.width) as u64;
        Self { address: 1 << 8, strides: [of_token * sizes.length as u64, of_token, sizes.width as u64] }
    }

    fn are_aligned(&self, element: usize) -> bool {
        let is_multiple = |bytes: u64| bytes.is_multiple_of(CHUNK_BYTES as u64);
        is_multiple(self.address) && self.strides.iter().all(|&stride| is_multiple(stride * element as u64))
    }
}

/// A launch of the kernel.
#[derive(Clone, Copy, Debug)]
struct Launch {
    heads: [Heads; 2],
    vector: bool,
    copies: bool,
    lanes: u32,
    teams: u32,
    blocks: u32,
}

impl Launch {
    fn new<T: Element>(
        op: &RotaryOp<'_, T>,
        sizes: Sizes,
        heads: [Heads; 2],
        is_in_place: bool,
        device: &Device,
    ) -> Self {
        let (pairs, rotary) = (op.table.pairs(), op.table.rotary_dim());
        let chunk = CHUNK_BYTES / size_of::<T>();
        let copies = !is_in_place && sizes.width > rotary;
        let are_whole = match op.pairing {
            Pairing::Halves => pairs.is_multiple_of(chunk),
            Pairing::Neighbours => rotary.is_multiple_of(chunk),
        } && (!copies || sizes.width.is_multiple_of(chunk));
        let vector = are_whole && heads.iter().all(|heads| heads.are_aligned(size_of::<T>()));
        let per = if vector { chunk } else { 1 };
        let rest = if copies { sizes.width - rotary } else { 0 };
        let slots = pairs.div_ceil(per) + rest.div_ceil(2 * per);
        let lanes = slots.next_power_of_two().min(THREADS as usize) as u32;
        let resident = device.properties().multiprocessors.max(1) * BLOCKS;
        let of_heads = sizes.heads.div_ceil(HEADS).next_power_of_two().min((THREADS / lanes) as usize) as u32;
        // Fewer threads for a token read its angles less often, where there are tokens enough for all.
        let fills =
            |teams: u32| sizes.tokens as u64 * u64::from(lanes * teams) >= u64::from(resident * THREADS);
        let mut teams = of_heads;
        while teams > 1 && fills(teams / 2) {
            teams /= 2;
        }
        let blocks =
            (sizes.tokens as u64).div_ceil(u64::from(THREADS / (lanes * teams))).min(u64::from(MOST_BLOCKS));
        Self { heads, vector, copies, lanes, teams, blocks: blocks as u32 }
    }

    fn name<T: RotaryElement>(&self) -> &'static str {
        if self.vector { T::Vector::DECLARATION.name } else { T::Any::DECLARATION.name }
    }

    fn params<T: RotaryElement>(&self, op: &RotaryOp<'_, T>, sizes: Sizes) -> RotaryParams<T::Device> {
        RotaryParams {
            x: Global::new(0),
            y: warpsmith_dsl::launch::GlobalMut::new(0),
            table: op.table.angles.arg(),
            positions: Global::new(0),
            x_strides: self.heads[0].strides,
            y_strides: self.heads[1].strides,
            tokens: sizes.tokens as u32,
            length: sizes.length as u32,
            heads: sizes.heads as u32,
            width: sizes.width as u32,
            rotary: op.table.rotary_dim() as u32,
            known: op.table.positions() as u32,
            offset: op.offset as u32,
            lanes: self.lanes,
            teams: self.teams,
            sign: if op.is_inverse { -1.0 } else { 1.0 },
            neighbours: u32::from(op.pairing == Pairing::Neighbours),
            copies: u32::from(self.copies),
        }
    }
}
