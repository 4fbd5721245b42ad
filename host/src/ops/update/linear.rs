//! A linear operation with generated low-rank updates, `Y = act(X Wᵀ + ΔY + b + …)`, in one kernel where there is one for it.
//!
//! V's columns ride along in the product of X and W as more columns of the output, which stay on the multiprocessor. Scaled by
//! the codes they are the left operand of one more step, with U as the right one, before the epilogue.
//!
//! Where no kernel does both, one computes the updates, then the linear operation adds them as it adds a residual. They are then
//! rounded to the operands' type in between.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::launch::Global;

use super::check::Checked;
use super::operands::{BoltOn, Packed, Problem, Updates, in_chunks, is_chunked, limits};
use super::products::{CodesChoice, NEXT, VLies, one_of_a_batch};
use super::{Update, UpdateInput, Way, alone, hopper, joined, no_way, portable, products};
use crate::device::DeviceKind;
use crate::error::{Error, Result};
use crate::ops::gemm::{
    self, Access, Fused, Limits, Operands, Options, Product, Terms, Tile, epilogue_methods,
};
use crate::ops::matrix::as_matrix;
use crate::ops::{Activation, Implementation, repack_both};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};
use crate::trace;

/// The operation's name in errors.
const OPERATION: &str = "linear_with_update";

/// The linear operation on `x` `[.., K]` and `w` `[N, K]`, with a generated low-rank update:
/// `y = act(x wᵀ + ((x v) ⊙ codes) u · scaling + bias)`, `[.., N]`. v is `[K, R]`, u `[R, N]`; codes are as
/// [`generated_update`](super::generated_update) takes them.
///
/// ```
/// use ndarray::array;
/// use warpsmith::{Device, Tensor, ops, ops::Activation};
///
/// let device = Device::cpu();
/// let x = Tensor::from_array(&device, &array![[1.0f32, 2.0]])?;
/// let w = Tensor::from_array(&device, &array![[3.0f32, 4.0], [-5.0, 0.0]])?;
/// let v = Tensor::from_array(&device, &array![[1.0f32], [1.0]])?;
/// let codes = Tensor::from_array(&device, &array![[2.0f32]])?;
/// let u = Tensor::from_array(&device, &array![[0.5f32, 1.0]])?;
/// let op = ops::linear_with_update(&x, &w, &v, &codes, &u, 1.0).activation(Activation::Relu);
/// assert_eq!(op.run()?.to_vec()?, [14.0, 1.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn linear_with_update<'a, T: UpdateInput>(
    x: &'a Tensor<T>,
    w: &'a Tensor<T>,
    v: &'a Tensor<T>,
    codes: &'a Tensor<T>,
    u: &'a Tensor<T>,
    scaling: f32,
) -> LinearUpdateOp<'a, T> {
    let updates = Updates::Given(vec![Update { v, codes, u, scaling }]);
    LinearUpdateOp { x, w, updates, options: Options::new(), way: None }
}

/// A linear operation with generated low-rank updates that has yet to run; see [`linear_with_update`].
#[derive(Debug)]
#[must_use = "an operation does nothing until `run` or `run_into`"]
pub struct LinearUpdateOp<'a, T: Element> {
    x: &'a Tensor<T>,
    w: &'a Tensor<T>,
    updates: Updates<'a, T>,
    options: Options<'a, T, T>,
    way: Option<Way>,
}

/// What runs on a device that has kernels.
#[derive(Clone, Copy, Debug)]
enum Path {
    Hopper(hopper::Choice),
    Portable(portable::Choice),
    /// H and G, then the linear operation with sums that go on in G.
    Joined(joined::Choice, CodesChoice),
    /// The updates alone, then the linear operation.
    Sequence,
}

impl<'a, T: UpdateInput> LinearUpdateOp<'a, T> {
    /// The updates of a layer, whose V and U are packed.
    pub(crate) fn of_packed(
        x: &'a Tensor<T>,
        w: &'a Tensor<T>,
        packed: &'a Packed<T>,
        codes: Vec<&'a Tensor<T>>,
    ) -> Self {
        Self { x, w, updates: Updates::Packed(packed, codes), options: Options::new(), way: None }
    }

    /// Adds another update; there may be [`MAX_UPDATES`](super::MAX_UPDATES), with ranks of [`MAX_RANK`](super::MAX_RANK) together.
    pub fn and(mut self, v: &'a Tensor<T>, codes: &'a Tensor<T>, u: &'a Tensor<T>, scaling: f32) -> Self {
        self.updates.push(Update { v, codes, u, scaling });
        self
    }

    epilogue_methods!(T, T, options);

    /// Computes it in this way instead of the fastest.
    #[doc(hidden)]
    pub fn way(self, way: impl Into<Option<Way>>) -> Self {
        Self { way: way.into(), ..self }
    }

    /// Runs the operation into a new tensor of shape [.., N]. On a GPU the work may still be under way when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`], [`Error::Overlap`] and [`Error::SizeLimit`] if an operand does
    /// not fit; whatever allocating the output, loading the kernel and launching it may return.
    pub fn run(&self) -> Result<Tensor<T>> {
        let _range = trace::operation(OPERATION);
        let (checked, base) = self.checked()?;
        let stream = base.stream();
        let mut y = Tensor::uninit_on(&stream, checked.output_shape())?;
        self.execute(&checked, &base, &stream, &mut y)?;
        Ok(y)
    }

    /// Runs the operation into `y`, which may be a view whose last axis is contiguous.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), and [`Error::Overlap`] if `y` shares memory with another operand: if the spans from first to last
    /// element of the two meet, even if their elements alternate. Only a residual may be the same tensor.
    pub fn run_into(&self, y: &mut Tensor<T>) -> Result<()> {
        let _range = trace::operation(OPERATION);
        let (checked, base) = self.checked()?;
        base.check_output(y)?;
        checked.expect_output(y)?;
        self.execute(&checked, &base, &base.stream(), y)
    }

    /// Which implementation [`run`](Self::run) would take: one kernel, or a [`Sequence`](Implementation::Sequence). Operands
    /// that a kernel cannot read as they are get copied by another one first.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        self.implementation_as(None, self.way)
    }

    /// Which implementation [`run_into`](Self::run_into) would take for `y`, after the checks that `run_into` makes of it: where the rows of `y` do not
    /// start at multiples of 16 bytes it may be another one than for a new output.
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
        let (checked, base) = self.checked()?;
        if let Some(y) = y {
            base.check_output(y)?;
            checked.expect_output(y)?;
        }
        let device = self.x.device();
        let of_product = |base: &Product<'_, T, T>| match y {
            Some(y) => base.implementation_into(y),
            None => base.implementation(),
        };
        if checked.is_empty() || device.kind() == DeviceKind::Cpu || checked.k == 0 {
            return of_product(&base);
        }
        let flat = y.map(|y| as_matrix(OPERATION, "y", y)).transpose()?;
        let kernel =
            |name, blocks| Implementation::kernel(device, name, blocks).with_copies(checked.copies_bolt_on());
        Ok(match self.path(&checked, flat.as_ref(), way)? {
            Path::Hopper(choice) => kernel(hopper::kernel::<T>(choice), choice.blocks),
            Path::Portable(choice) => kernel(portable::kernel::<T>(choice), choice.blocks),
            Path::Joined(choice, codes) => {
                let copies = self.unaligned(&checked).into_iter().filter(|&unaligned| unaligned).count();
                let copies = copies + usize::from(checked.packed.is_none());
                let sizes = [checked.m as u32, checked.n as u32];
                let joined = joined::implementation::<T>(device, choice, sizes, copies)?;
                checked.implementation_of_codes(codes)?.then(joined)
            }
            Path::Sequence => {
                let then = self.after_updates(&checked, 1.0, None, of_product)?;
                checked.implementation_alone(flat.as_ref(), None)?.then(then)
            }
        })
    }

    /// The updates and the linear operation, if all operands but the output fit.
    fn checked(&self) -> Result<(Checked<T>, Product<'_, T, T>)> {
        let (x, w) = (self.x, self.w);
        let checked = Checked::new(OPERATION, x, &self.updates)?;
        let (k, n) = (checked.k, checked.n);
        if w.shape() != [n, k] {
            return Err(Error::Shape {
                operation: OPERATION,
                operand: "w",
                expected: format!("[{n}, {k}], since x has {k} columns and u has {n}"),
                actual: w.shape().to_vec(),
            });
        }
        let base = self.base(&checked, &self.options)?;
        base.check()?;
        if let Some(preactivation) = self.options.terms.preactivation.as_deref() {
            checked.expect_apart("preactivation", preactivation)?;
        }
        if let Some(mask) = self.options.terms.mask.as_deref() {
            checked.expect_apart("relu_mask", mask)?;
        }
        Ok((checked, base))
    }

    /// The linear operation without the updates.
    fn base<'o>(&self, checked: &Checked<T>, options: &'o Options<'o, T, T>) -> Result<Product<'o, T, T>> {
        let x = self.x;
        // A vector is a matrix of one row.
        let a = if x.rank() == 1 { x.reshape([1, checked.k])? } else { x.clone() };
        let leading = a.shape()[..a.rank() - 2].to_vec();
        let (b, output_shape) = (self.w.clone(), checked.output_shape());
        Ok(Product { operation: OPERATION, names: ["x", "w"], a, b, leading, output_shape, options })
    }

    /// What runs for an output with the layout of the matrix `y`, or is new.
    fn path(&self, checked: &Checked<T>, y: Option<&Tensor<T>>, way: Option<Way>) -> Result<Path> {
        checked.check_sizes()?;
        let unaligned = self.unaligned(checked);
        let is_aligned = unaligned == [false; 2];
        let mut problem = checked.problem(is_aligned, true, y);
        problem.fits_registers = self.options.fused().is_plain();
        let device = self.x.device();
        let limits = limits(device);
        let bolted = Bolted {
            problem,
            fused: self.options.fused(),
            v: checked.v_layout(),
            copied: copied_picoseconds(checked, self.w, unaligned),
            is_packed: checked.packed.is_some(),
        };
        if let Some(way) = way {
            return bolted.only(way, &limits).ok_or_else(|| no_way(OPERATION, way));
        }
        let mut key = bolted.problem.key("update bolt-on");
        key.number(bolted.fused as usize).number(bolted.v as usize).number(bolted.is_packed.into());
        key.number(2 * usize::from(unaligned[0]) + usize::from(unaligned[1]));
        Ok(*device.decisions().get(key, || {
            let way = bolted.fastest(&limits);
            tracing::debug!(target: "warpsmith::plan", operation = OPERATION, ?way, "plan chosen");
            Ok(way)
        })?)
    }

    /// Whether X, and whether W, has other rows than contiguous ones that start at multiples of 16 bytes.
    fn unaligned(&self, checked: &Checked<T>) -> [bool; 2] {
        [!is_chunked(&checked.x), !is_chunked(self.w)]
    }

    /// Runs into `y`, which has been checked, or is new.
    fn execute(
        &self,
        checked: &Checked<T>,
        base: &Product<'_, T, T>,
        stream: &Stream,
        y: &mut Tensor<T>,
    ) -> Result<()> {
        let device = self.x.device();
        if checked.is_empty() {
            return Ok(());
        }
        if device.kind() == DeviceKind::Cpu {
            return checked.run_linear_on_cpu(base, y);
        }
        if checked.k == 0 {
            return base.run_into(y);
        }
        let mut flat = as_matrix(OPERATION, "y", y)?;
        let path = self.path(checked, Some(&flat), self.way)?;
        match path {
            Path::Sequence => return self.sequence(checked, stream, y),
            Path::Joined(choice, codes) => return self.joined(checked, stream, (choice, codes), &mut flat),
            Path::Hopper(_) | Path::Portable(_) => {}
        }
        let (vt, u) = checked.factors_bolt_on(stream)?;
        let options = &self.options;
        let epilogue = self.epilogue(&flat)?;
        let y_arg = flat.arg_mut();
        let operands = BoltOn {
            x: &checked.x,
            w: Some(self.w),
            vt: &vt,
            u: &u,
            y: &flat,
            y_arg,
            codes: checked.codes(),
            epilogue,
            m: checked.m as u32,
            n: checked.n as u32,
            k: checked.k as u32,
        };
        let mut used: Vec<&dyn Operand> = vec![&checked.x, self.w, &vt, &u, &flat];
        used.extend(checked.codes.iter().map(|codes| &codes.codes as &dyn Operand));
        used.extend(options.bias.map(|bias| bias as &dyn Operand));
        used.extend(options.terms.operands());
        stream.with_operands(&used, || {
            // SAFETY: `checked` and `path` have checked shapes, strides, alignment, sizes and device of every operand, and that what is
            // written is apart from the rest. Tensors are freed in the order of their home streams, which `with_operands` makes
            // wait for this work.
            unsafe {
                match path {
                    Path::Hopper(choice) => hopper::launch::<T>(device, stream, choice, &operands),
                    Path::Portable(choice) => portable::launch::<T>(device, stream, choice, &operands),
                    Path::Joined(..) | Path::Sequence => Ok(()),
                }
            }
        })
    }

    /// H and G, then the linear operation whose sums go on in G, into the matrix `y`.
    fn joined(
        &self,
        checked: &Checked<T>,
        stream: &Stream,
        (choice, codes): (joined::Choice, CodesChoice),
        y: &mut Tensor<T>,
    ) -> Result<()> {
        let [x, w] = match self.unaligned(checked) {
            [true, true] => repack_both([&checked.x, self.w], stream)?,
            _ => [in_chunks(stream, &checked.x)?, in_chunks(stream, self.w)?],
        };
        let aligned = checked.of_copy(x);
        let (g, ut) = (aligned.modulated(codes, stream)?, aligned.expansion_in_chunks(stream)?);
        let epilogue = self.epilogue(y)?;
        let y_arg = y.arg_mut();
        let (x, w, y) = (one_of_a_batch(&aligned.x), one_of_a_batch(&w), one_of_a_batch(y));
        let (g, ut) = (one_of_a_batch(&g), one_of_a_batch(&ut));
        let operands = Operands {
            x: &x,
            w: &w,
            y: &y,
            y_arg,
            m: checked.m as u32,
            n: checked.n as u32,
            k: checked.k as u32,
            parts: 1,
            epilogue,
            joined: Some([&g, &ut]),
        };
        let options = &self.options;
        let mut used: Vec<&dyn Operand> = vec![&x, &w, &g, &ut, &y];
        used.extend(options.bias.map(|bias| bias as &dyn Operand));
        used.extend(options.terms.operands());
        stream.with_operands(&used, || {
            // SAFETY: as in `execute`; G and Uᵀ are as large as M, N and the ranks ask. What makes them waits before it lets this launch begin, or does not let it.
            unsafe { joined::launch::<T>(self.x.device(), stream, choice, operands) }
        })
    }

    /// The updates alone into `y`, then the linear operation, to which what `y` holds is a residual.
    fn sequence(&self, checked: &Checked<T>, stream: &Stream, y: &mut Tensor<T>) -> Result<()> {
        let given = &self.options;
        let added = given.terms.residual.filter(|(_, beta)| *beta != 0.0);
        let beta = match added {
            None => {
                checked.run_alone(stream, y, false)?;
                1.0
            }
            Some((residual, beta)) if beta.abs() < 1.0 => {
                // beta · r + ΔY: the quotient by a small beta could exceed the type's numbers.
                self.put_residual(checked, (residual, beta), stream, y)?;
                checked.run_alone(stream, y, true)?;
                1.0
            }
            Some((residual, beta)) => {
                // beta · (r + ΔY / beta): the product with a large beta could.
                if !residual.is_same_view(y) {
                    y.copy_from_on(residual, stream)?;
                }
                checked.scaled(1.0 / beta).run_alone(stream, y, true)?;
                beta
            }
        };
        self.after_updates(checked, beta, Some(stream), |base| base.run_into(y))
    }

    /// Puts a residual times its factor into `y`, as the linear operation of no columns does.
    fn put_residual(
        &self,
        checked: &Checked<T>,
        residual: (&Tensor<T>, f32),
        stream: &Stream,
        y: &mut Tensor<T>,
    ) -> Result<()> {
        let options = Options {
            terms: Terms { residual: Some(residual), ..Terms::default() },
            stream: Some(stream),
            ..Options::new()
        };
        let base = self.base(checked, &options)?;
        let (last, columns) = (base.a.rank() - 1, 0..0);
        let (a, b) = (base.a.slice(last, columns.clone())?, base.b.slice(1, columns)?);
        Product { a, b, ..base }.run_into(y)
    }

    /// The linear operation that adds `beta` times what the output holds, with all else that was asked for, to do something with.
    fn after_updates<R>(
        &self,
        checked: &Checked<T>,
        beta: f32,
        stream: Option<&Stream>,
        work: impl FnOnce(&Product<'_, T, T>) -> Result<R>,
    ) -> Result<R> {
        let given = &self.options;
        let mut mask = given.terms.mask.as_deref().cloned();
        let mut preactivation = given.terms.preactivation.as_deref().cloned();
        let options = Options {
            bias: given.bias,
            activation: given.activation,
            terms: Terms {
                beta,
                mask: mask.as_mut(),
                preactivation: preactivation.as_mut(),
                ..Terms::default()
            },
            stream,
            ..Options::new()
        };
        work(&self.base(checked, &options)?)
    }

    /// The kernels' epilogue for the matrix `y`.
    fn epilogue(&self, y: &Tensor<T>) -> Result<LinearEpilogue<T::Device, T::Device>> {
        let options = &self.options;
        Ok(LinearEpilogue {
            bias: options.bias.map_or(Global::new(0), Tensor::arg),
            activation: options.activation.on_device(),
            ..options.terms.flattened(OPERATION)?.epilogue(y)
        })
    }
}

/// What the choice among the ways depends on.
struct Bolted {
    problem: Problem,
    fused: Fused,
    v: VLies,
    /// What copies of X and W into aligned rows take, in picoseconds on an H100.
    copied: u128,
    /// Whether Uᵀ is there.
    is_packed: bool,
}

/// What a launch that transposes U takes, in picoseconds on an H100.
const TRANSPOSE: u128 = 1_500_000;
/// What a launch that copies operands into aligned rows takes, and the bytes that it moves in a microsecond.
const COPY: u128 = 2_000_000;
const COPY_RATE: u128 = 2_400_000;
/// What a launch takes that runs beside the one that makes G, once both have done what they can at the same time. It learns
/// that G is there, as any launch that waits for another one ([`NEXT`]), and only then reads G and Uᵀ, multiplies them and
/// stores Y, with nothing to do in between. In picoseconds on an H100.
const LAST_OF_BOTH: u128 = 2_400_000;

impl Bolted {
    /// That which takes the least time by the models.
    fn fastest(&self, limits: &Limits) -> Path {
        let problem = &self.problem;
        let hopper = hopper::choose(problem, limits).map(|(choice, time)| (Path::Hopper(choice), time));
        let portable = portable::choose(problem, limits).map(|choice| {
            let time = portable::picoseconds(choice, problem, limits).unwrap_or(u128::MAX);
            (Path::Portable(choice), time)
        });
        let joined = self.joined(None, None, limits);
        let sequence = sequence_picoseconds(problem, self.v, self.copied, limits).unwrap_or(u128::MAX);
        let all = [hopper, portable, joined, Some((Path::Sequence, sequence))];
        all.into_iter().flatten().min_by_key(|&(_, time)| time).map_or(Path::Sequence, |(path, _)| path)
    }

    /// What runs it in a way; `None` if nothing does.
    fn only(&self, way: Way, limits: &Limits) -> Option<Path> {
        match way {
            Way::Kernel => hopper::choose(&self.problem, limits)
                .map(|(choice, _)| Path::Hopper(choice))
                .or_else(|| portable::choose(&self.problem, limits).map(Path::Portable)),
            Way::Joined(tile) => self.joined(Some(tile), Some(1), limits).map(|(path, _)| path),
            Way::JoinedInParts(tile) => self.joined(Some(tile), Some(2), limits).map(|(path, _)| path),
            Way::Products => Some(Path::Sequence),
            Way::Modulated(_) => None,
        }
    }

    /// G, and then a kernel whose sums go on in it, with its time; operands that it cannot read in place are copied.
    fn joined(&self, tile: Option<Tile>, parts: Option<u32>, limits: &Limits) -> Option<(Path, u128)> {
        let problem = Problem { access: Access::Aligned, x_is_chunked: true, ..self.problem };
        let (choice, time) = joined::choose(&problem, self.fused, tile, parts, limits)?;
        let (codes, before) = products::choose_codes(&problem, self.v, None, limits)?;
        let transposed = if self.is_packed { 0 } else { TRANSPOSE };
        // Where there is room for all blocks, the second launch reads X and W while the first makes G.
        let are_beside = codes
            .blocks()
            .is_some_and(|blocks| blocks.saturating_add(choice.blocks()) <= limits.multiprocessors);
        let both = if are_beside { before.max(time) + LAST_OF_BOTH } else { before + time + NEXT };
        Some((Path::Joined(choice, codes), both + transposed + self.copied))
    }
}

/// What copies of X and W into aligned rows take.
fn copied_picoseconds<T: UpdateInput>(checked: &Checked<T>, w: &Tensor<T>, unaligned: [bool; 2]) -> u128 {
    let sizes = [checked.x.len(), w.len()];
    let copied: usize = (0..2).filter(|&which| unaligned[which]).map(|which| sizes[which]).sum();
    let bytes = 2 * copied as u128 * size_of::<T>() as u128;
    if copied == 0 { 0 } else { COPY + bytes * 1_000_000 / COPY_RATE }
}

/// How long the updates alone and then the linear operation take, in picoseconds on an H100.
fn sequence_picoseconds(problem: &Problem, v: VLies, copied: u128, limits: &Limits) -> Option<u128> {
    let alone = Problem { fits_registers: true, ..*problem };
    let of_kernel = alone::choose(&alone, limits).map(|(_, time)| time);
    let of_products = products::choose(&alone, v, None, limits).map(|(_, time)| time);
    let updates = [of_kernel, of_products].into_iter().flatten().min()?;
    let linear = gemm::Problem { fused: Fused::Terms, ..problem.linear(limits) };
    // What kernels do not read as it lies, or not as fast, is copied.
    let aligned = gemm::Problem { access: Access::Aligned, ..linear };
    let times = [
        gemm::estimate(None, &linear, limits),
        gemm::estimate(None, &aligned, limits).map(|time| time + copied),
    ];
    Some(updates + NEXT + times.into_iter().flatten().min()?)
}

#[cfg(test)]
mod tests;
