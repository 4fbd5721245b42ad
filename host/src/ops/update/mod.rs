//! Generated low-rank updates, `ΔY = ((X V) ⊙ codes) U · scaling`: alone, and together with a linear operation.
//!
//! [`generated_update`] and [`linear_with_update`] start builders. Both check their operands first (`check`), bring V, U and
//! the codes of all updates into the form that kernels take (`operands`), and take the way that needs the least time. The first
//! way is one kernel, which the pure functions of `alone`, `hopper` and `portable` choose. The second is two products with the
//! codes in between (`products`), of which the second may be one with the linear operation (`joined`). The third is the updates
//! and then the linear operation (`linear`). On the CPU there is one implementation (`on_cpu`).
//!
//! Several updates, each with codes and a scaling of its own, run as one whose rank is the sum of theirs. Every way adds H = X V up in f32, multiplies
//! it by codes and scaling, rounds that to the operands' type, and multiplies that by U.

mod alone;
mod backward;
mod check;
mod hopper;
mod joined;
mod linear;
mod on_cpu;
mod operands;
mod portable;
mod products;

pub use backward::{
    GradientsOfUpdate, UpdateBackwardOp, UpdateGradientElement, UpdateGradientOutputs, UpdateGradientPlaces,
    UpdateGradients, generated_update_backward, linear_with_update_backward,
};
pub(crate) use check::{expect_count, expect_rank, expect_total};
pub use linear::{LinearUpdateOp, linear_with_update};
pub(crate) use operands::Packed;

use half::{bf16, f16};
use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::launch::Global;
pub use warpsmith_kernels::codes::MAX_UPDATES;

use crate::device::DeviceKind;
use crate::error::{Error, Result};
use crate::ops::Implementation;
use crate::ops::gemm::{Access, Tile};
use crate::ops::linear::LinearInput;
use crate::ops::matrix::row_stride;
use crate::stream::{Operand, Stream};
use crate::tensor::{DType, Element, Tensor};
use crate::trace;
use check::Checked;
use operands::{Alone, BoltOn, Problem, Updates, in_chunks, is_chunked, limits, no_kernel};

/// The largest rank, and the largest sum of the ranks of updates that run together.
pub const MAX_RANK: usize = 128;

/// An element type of generated low-rank updates: [`f16`](struct@f16), [`bf16`] or `f32`.
pub trait UpdateInput:
    LinearInput + alone::Kernels + hopper::Kernels + portable::Kernels + products::Kernels
{
}

impl UpdateInput for f16 {}
impl UpdateInput for bf16 {}
impl UpdateInput for f32 {}

/// How updates are computed, for tests and measurements; without one, whichever way takes the least time by the models.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Way {
    /// All in one kernel.
    Kernel,
    /// H and G before a linear operation whose sums go on in G, in tiles of this size.
    Joined(Tile),
    /// The same, with sums in two parts that another launch adds.
    JoinedInParts(Tile),
    /// Two products alone, of which the first applies the codes, in tiles of this size.
    Modulated(Tile),
    /// Two products alone; onto a linear operation the updates, whichever way they are fastest, before it.
    Products,
}

impl std::fmt::Display for Way {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kernel => formatter.write_str("kernel"),
            Self::Joined(tile) => write!(formatter, "joined-{tile}"),
            Self::JoinedInParts(tile) => write!(formatter, "joined-{tile}-in-parts"),
            Self::Modulated(tile) => write!(formatter, "modulated-{tile}"),
            Self::Products => formatter.write_str("products"),
        }
    }
}

impl Way {
    /// Every way, onto a linear operation and alone.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let joins = || Tile::of_input(DType::Bf16).filter(|tile| tile.joins());
        let in_parts = joins().filter(|tile| tile.has_passes()).map(Self::JoinedInParts);
        let modulated = products::TILES.map(Self::Modulated);
        let all = [Self::Kernel, Self::Products].into_iter().chain(joins().map(Self::Joined));
        all.chain(in_parts).chain(modulated).collect()
    }
}

/// The error for a way that is none for the problem.
fn no_way(operation: &'static str, way: Way) -> Error {
    let expected = "a way that the device has kernels for, of these types and sizes".into();
    Error::Argument { operation, argument: "way", expected, actual: way.to_string() }
}

/// One update as it was given.
#[derive(Debug)]
pub(crate) struct Update<'a, T: Element> {
    v: &'a Tensor<T>,
    codes: &'a Tensor<T>,
    u: &'a Tensor<T>,
    scaling: f32,
}

/// The operation's name in errors.
const OPERATION: &str = "generated_update";

/// The generated low-rank update of `x` `[.., K1]`: `ΔY = ((x v) ⊙ codes) u · scaling`, `[.., K2]`, with v `[K1, R]` and u `[R, K2]`.
///
/// `codes` are `[.., R]`: a row for each row of x, or a row for all rows with the same indices of the first axes of x. For x of
/// [batch, sequence, K1] they are [batch, sequence, R], or [batch, R], or `[R]`.
///
/// ```
/// use ndarray::array;
/// use warpsmith::{Device, Tensor, ops};
///
/// let device = Device::cpu();
/// let x = Tensor::from_array(&device, &array![[1.0f32, 2.0], [3.0, -1.0]])?;
/// let v = Tensor::from_array(&device, &array![[1.0f32], [1.0]])?;
/// let codes = Tensor::from_array(&device, &array![[1.0f32], [0.5]])?;
/// let u = Tensor::from_array(&device, &array![[10.0f32, 20.0, 30.0]])?;
/// let mut y = ops::generated_update(&x, &v, &codes, &u, 2.0).run()?;
/// assert_eq!(y.to_vec()?, [60.0, 120.0, 180.0, 20.0, 40.0, 60.0]);
/// ops::generated_update(&x, &v, &codes, &u, -1.0).add_to(&mut y)?;
/// assert_eq!(y.to_vec()?, [30.0, 60.0, 90.0, 10.0, 20.0, 30.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn generated_update<'a, T: UpdateInput>(
    x: &'a Tensor<T>,
    v: &'a Tensor<T>,
    codes: &'a Tensor<T>,
    u: &'a Tensor<T>,
    scaling: f32,
) -> UpdateOp<'a, T> {
    UpdateOp { x, updates: Updates::Given(vec![Update { v, codes, u, scaling }]), stream: None, way: None }
}

/// Generated low-rank updates that have yet to run; see [`generated_update`].
#[derive(Debug)]
#[must_use = "an operation does nothing until `run`, `run_into` or `add_to`"]
pub struct UpdateOp<'a, T: Element> {
    x: &'a Tensor<T>,
    updates: Updates<'a, T>,
    stream: Option<&'a Stream>,
    way: Option<Way>,
}

impl<'a, T: UpdateInput> UpdateOp<'a, T> {
    /// Adds another update; there may be [`MAX_UPDATES`], with ranks of [`MAX_RANK`] together.
    pub fn and(mut self, v: &'a Tensor<T>, codes: &'a Tensor<T>, u: &'a Tensor<T>, scaling: f32) -> Self {
        self.updates.push(Update { v, codes, u, scaling });
        self
    }

    /// Computes them in this way instead of the fastest.
    #[doc(hidden)]
    pub fn way(self, way: impl Into<Option<Way>>) -> Self {
        Self { way: way.into(), ..self }
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(self, stream: &'a Stream) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// Runs the operation into a new tensor of shape [.., K2]. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`] and [`Error::SizeLimit`] if an operand does not fit;
    /// whatever allocating the output, loading the kernel and launching it may return.
    pub fn run(&self) -> Result<Tensor<T>> {
        let _range = trace::operation(OPERATION);
        let checked = self.checked()?;
        let stream = self.stream();
        let mut y = Tensor::uninit_on(&stream, checked.output_shape())?;
        checked.run_alone_as(&stream, &mut y, false, self.way)?;
        Ok(y)
    }

    /// Runs the operation into `y`, a view whose last axis is contiguous.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), and [`Error::Overlap`] if `y` shares memory with another operand: if the spans from first to last
    /// element of the two meet, even if their elements alternate.
    pub fn run_into(&self, y: &mut Tensor<T>) -> Result<()> {
        let _range = trace::operation(OPERATION);
        self.write(y, false)
    }

    /// Adds the update to what `y` holds, `y += ΔY`: added up in f32 and rounded once.
    ///
    /// # Errors
    ///
    /// As [`run_into`](Self::run_into).
    pub fn add_to(&self, y: &mut Tensor<T>) -> Result<()> {
        self.write(y, true)
    }

    /// Which implementation [`run`](Self::run) would take for the update itself. Operands that the kernel cannot read as they are get
    /// copied by another one first.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        self.implementation_as(None, self.way)
    }

    /// Which implementation [`run_into`](Self::run_into) and [`add_to`](Self::add_to) would take for `y`, after the checks that they make of it.
    ///
    /// # Errors
    ///
    /// As [`run_into`](Self::run_into), for the operands and `y`.
    pub fn implementation_into(&self, y: &Tensor<T>) -> Result<Implementation> {
        self.implementation_as(Some(y), self.way)
    }

    /// That for `y`, or for a new output, in a way.
    #[doc(hidden)]
    pub fn implementation_as(&self, y: Option<&Tensor<T>>, way: Option<Way>) -> Result<Implementation> {
        let checked = self.checked()?;
        let flat = match y {
            None => None,
            Some(y) => {
                checked.expect_output(y)?;
                Some(y.flatten_leading()?)
            }
        };
        checked.implementation_alone(flat.as_ref(), way)
    }

    fn checked(&self) -> Result<Checked<T>> {
        if let Some(stream) = self.stream {
            self.x.device().expect_same(OPERATION, "stream", stream.device())?;
        }
        Checked::new(OPERATION, self.x, &self.updates)
    }

    fn stream(&self) -> Stream {
        self.stream.cloned().unwrap_or_else(|| self.x.device().default_stream())
    }

    fn write(&self, y: &mut Tensor<T>, add: bool) -> Result<()> {
        let checked = self.checked()?;
        checked.expect_output(y)?;
        checked.run_alone_as(&self.stream(), y, add, self.way)
    }
}

/// What runs updates alone.
#[derive(Clone, Copy, Debug)]
enum PathAlone {
    /// For compute capability 8.0 and later.
    Ampere(alone::Choice),
    /// For 7.5.
    Turing(portable::Choice),
    /// Two matrix products.
    Products(products::CodesChoice),
}

impl<T: UpdateInput> Checked<T> {
    /// What runs the updates alone into the matrix `y`, or a new one, in a way.
    fn implementation_alone(&self, y: Option<&Tensor<T>>, way: Option<Way>) -> Result<Implementation> {
        let device = self.x.device();
        if self.is_empty() {
            return Ok(Implementation::Empty);
        }
        if device.kind() == DeviceKind::Cpu {
            return Ok(Implementation::Cpu);
        }
        if self.k == 0 {
            return Ok(Implementation::Empty);
        }
        Ok(match self.path_alone(y, way)? {
            PathAlone::Ampere(choice) => {
                Implementation::kernel(device, alone::kernel::<T>(choice), choice.blocks)
                    .with_copies(self.copies_alone())
            }
            PathAlone::Turing(choice) => {
                Implementation::kernel(device, portable::kernel::<T>(choice), choice.blocks)
                    .with_copies(self.copies_bolt_on() + usize::from(!is_chunked(&self.x)))
            }
            PathAlone::Products(codes) => self.implementation_of_products(codes)?,
        })
    }

    /// What runs the updates alone into a matrix with the layout of `y`, or is new.
    fn path_alone(&self, y: Option<&Tensor<T>>, way: Option<Way>) -> Result<PathAlone> {
        let (device, problem, v) = (self.x.device(), self.problem_alone(y)?, self.v_layout());
        let mut key = problem.key("update alone");
        key.number(v as usize);
        let decide = || {
            let limits = limits(device);
            let kernel = alone::choose(&problem, &limits);
            let tile = match way {
                Some(Way::Modulated(tile)) => Some(tile),
                _ => None,
            };
            let products = products::choose(&problem, v, tile, &limits);
            // What is not aligned is copied.
            let aligned =
                Problem { access: Access::Aligned, x_is_chunked: true, u_is_chunked: true, ..problem };
            let turing = portable::choose_alone(&aligned, &limits).map(PathAlone::Turing);
            let of_kernel = turing.or(kernel.map(|(choice, _)| PathAlone::Ampere(choice)));
            let of_products = products.map(|(codes, _)| PathAlone::Products(codes));
            let are_faster = match (kernel, products) {
                (Some((_, kernel)), Some((_, products))) => products < kernel,
                (kernel, _) => kernel.is_none() && turing.is_none(),
            };
            let path = match way {
                None if are_faster => of_products,
                None | Some(Way::Kernel) => of_kernel,
                Some(Way::Products | Way::Modulated(_)) => of_products,
                Some(Way::Joined(_) | Way::JoinedInParts(_)) => None,
            };
            tracing::debug!(target: "warpsmith::plan", operation = self.operation, ?path, "plan chosen");
            path.ok_or_else(|| match way {
                Some(way) => no_way(self.operation, way),
                None => no_kernel(self.operation, device),
            })
        };
        match way {
            None => Ok(*device.decisions().get(key, decide)?),
            Some(_) => decide(),
        }
    }

    /// Runs the updates alone into `y`, which has been checked, or is new; or adds them to it.
    fn run_alone(&self, stream: &Stream, y: &mut Tensor<T>, add: bool) -> Result<()> {
        self.run_alone_as(stream, y, add, None)
    }

    /// The same in a way.
    fn run_alone_as(&self, stream: &Stream, y: &mut Tensor<T>, add: bool, way: Option<Way>) -> Result<()> {
        let device = self.x.device();
        if self.is_empty() {
            return Ok(());
        }
        if device.kind() == DeviceKind::Cpu {
            return self.run_on_cpu(y, add);
        }
        if self.k == 0 {
            return if add { Ok(()) } else { y.copy_from_on(&Tensor::zeros_on(stream, y.shape())?, stream) };
        }
        let mut y = y.flatten_leading()?;
        let choice = match self.path_alone(Some(&y), way)? {
            PathAlone::Ampere(choice) => choice,
            PathAlone::Turing(choice) => return self.run_alone_on_turing(stream, choice, &mut y, add),
            PathAlone::Products(codes) => return self.run_products(codes, stream, &mut y, add),
        };
        let (v, u) = self.factors_alone(stream)?;
        let y_arg = y.arg_mut();
        let operands = Alone {
            x: &self.x,
            v: &v,
            u: &u,
            y: &y,
            y_arg,
            codes: self.codes(),
            m: self.m as u32,
            k: self.k as u32,
            n: self.n as u32,
            add,
        };
        let mut used: Vec<&dyn Operand> = vec![&self.x, &v, &u, &y];
        used.extend(self.codes.iter().map(|codes| &codes.codes as &dyn Operand));
        stream.with_operands(&used, || {
            // SAFETY: shapes, strides and device of every operand have been checked, the sizes with the problem, and that what is written is
            // apart from the rest. Tensors are freed in the order of their home streams, which `with_operands` makes wait for
            // this work.
            unsafe { alone::launch::<T>(device, stream, choice, &operands) }
        })
    }

    /// Runs the updates alone into the matrix `y`, or adds them to it, with a kernel for Turing.
    fn run_alone_on_turing(
        &self,
        stream: &Stream,
        choice: portable::Choice,
        y: &mut Tensor<T>,
        add: bool,
    ) -> Result<()> {
        let device = self.x.device();
        let x = in_chunks(stream, &self.x)?;
        let (vt, u) = self.factors_bolt_on(stream)?;
        let y_arg = y.arg_mut();
        // What is added to lies where the sum goes.
        let epilogue = LinearEpilogue {
            residual: if add { y.arg() } else { Global::new(0) },
            residual_stride: row_stride(y),
            beta: 1.0,
            ..LinearEpilogue::plain()
        };
        let operands = BoltOn {
            x: &x,
            w: None,
            vt: &vt,
            u: &u,
            y,
            y_arg,
            codes: self.codes(),
            epilogue,
            m: self.m as u32,
            n: self.n as u32,
            k: self.k as u32,
        };
        let mut used: Vec<&dyn Operand> = vec![&x, &vt, &u, &*y];
        used.extend(self.codes.iter().map(|codes| &codes.codes as &dyn Operand));
        stream.with_operands(&used, || {
            // SAFETY: as in `run_alone`; all rows that the kernel reads start at multiples of 16 bytes.
            unsafe { portable::launch::<T>(device, stream, choice, &operands) }
        })
    }
}
