//! Gradients of norms.

use warpsmith_dsl::launch::{Global, GlobalMut, Kernel};
use warpsmith_dsl::norm::NormGradientParams;
use warpsmith_dsl::rows::{AnyRows, THREADS};

use super::{NormElement, NormOp, NormOutputs};
use crate::cpu::{self, Statistics};
use crate::device::DeviceKind;
use crate::error::{Error, Result};
use crate::ops::column_sums::{SumElement, column_sums, launch_of};
use crate::ops::rows::{
    AnyTensor, Plan, Shares, Sizes, Variant, as_result_rows, as_rows, expect_rows, expect_shape, is_copied,
    is_in_place, launch, rounded, rows_of, widened,
};
use crate::ops::{Implementation, expect_result};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};
use crate::trace;

/// Chunks that a thread of a kernel has.
const CHUNKS: u32 = 2;
/// Parts that a gradient of columns is added up in, at most, where a block has the registers for it. It is the same for every GPU, so that the order of sums is.
const PARTS: u32 = 264;
/// About how many blocks add up the columns of wide rows.
const COLUMN_BLOCKS: u32 = 4 * PARTS;
/// The fewest rows of a part of theirs, if there are as many.
const LEAST_ROWS: u32 = 16;

/// The launch for gradients of columns, where rows are too wide for registers to hold what is added up of them: blocks along the columns, and parts.
fn column_grid(sizes: Sizes, shares: Shares) -> [u32; 3] {
    let across = (sizes.columns as u64).div_ceil(u64::from(THREADS * shares.chunk)) as u32;
    let most = (sizes.rows as u64).div_ceil(u64::from(LEAST_ROWS));
    let parts = u64::from(COLUMN_BLOCKS.div_ceil(across)).min(most).max(1);
    [across, parts as u32, 1]
}

/// A gradient of a norm that has yet to be computed; see [`NormOp::backward`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until `run`"]
pub struct NormGradientOp<'a, T: Element> {
    norm: NormOp<'a, T>,
    dy: &'a Tensor<T>,
    dsum: Option<&'a Tensor<T>>,
    statistics: Option<(Option<&'a Tensor<f32>>, &'a Tensor<f32>)>,
}

/// The gradients of a norm.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NormGradients<T: Element> {
    /// Of the rows that were normed, and so of x and of the residual.
    pub dx: Tensor<T>,
    /// Of the weight `[N]`, whether it was ones or not.
    pub dweight: Tensor<f32>,
    /// Of the bias `[N]`, whether it was zeros or not.
    pub dbias: Tensor<f32>,
}

/// Where [`NormGradientOp::run_into`] writes gradients; what is none is not computed.
#[derive(Debug)]
pub struct NormGradientOutputs<'o, T: Element, W: Element> {
    /// Of the rows, of the shape of x; any strides with contiguous rows. It may be x, dy or dsum itself.
    pub dx: Option<&'o mut Tensor<T>>,
    /// Of the weight `[N]`, without gaps.
    pub dweight: Option<&'o mut Tensor<W>>,
    /// Of the bias `[N]`, without gaps.
    pub dbias: Option<&'o mut Tensor<W>>,
    /// Whether the gradients of weight and bias are added to what is there.
    pub adds: bool,
}

// A derived one would ask for it of the element types.
impl<T: Element, W: Element> Default for NormGradientOutputs<'_, T, W> {
    fn default() -> Self {
        Self { dx: None, dweight: None, dbias: None, adds: false }
    }
}

impl<'a, T: NormElement> NormGradientOp<'a, T> {
    pub(super) fn new(norm: NormOp<'a, T>, dy: &'a Tensor<T>) -> Self {
        Self { norm, dy, dsum: None, statistics: None }
    }

    /// Takes the statistics that the norm has saved, each of the shape of x without its last axis: the mean, which an RMS norm does not have, and the inverse
    /// deviation. Without them they are computed again.
    pub fn statistics(
        mut self,
        mean: impl Into<Option<&'a Tensor<f32>>>,
        inverse_deviation: &'a Tensor<f32>,
    ) -> Self {
        self.statistics = Some((mean.into(), inverse_deviation));
        self
    }

    /// Adds `dsum`, the gradient of the rows from elsewhere, to dx: that of the sum which a residual's norm has returned.
    pub fn dsum(mut self, dsum: impl Into<Option<&'a Tensor<T>>>) -> Self {
        self.dsum = dsum.into();
        self
    }

    /// Runs on `stream` instead of the device's default stream.
    pub fn on(mut self, stream: &'a Stream) -> Self {
        self.norm = self.norm.on(stream);
        self
    }

    /// Computes all gradients. On a GPU the work may still be under way when this returns.
    ///
    /// Sums over rows are in f32. Their order depends on the sizes, on the alignment and on how large the GPU's clusters are.
    ///
    /// # Errors
    ///
    /// As [`NormOp::run`], also for dy, dsum and the statistics; [`Error::Argument`] if a layer norm's statistics have no mean, or an RMS norm's have one.
    pub fn run(&self) -> Result<NormGradients<T>> {
        let (sizes, stream) = self.check()?;
        let mut dx = Tensor::uninit_on(&stream, self.norm.x.shape())?;
        let mut dweight = Tensor::uninit_on(&stream, [sizes.columns])?;
        let mut dbias = Tensor::uninit_on(&stream, [sizes.columns])?;
        self.run_into(NormGradientOutputs {
            dx: Some(&mut dx),
            dweight: Some(&mut dweight),
            dbias: Some(&mut dbias),
            adds: false,
        })?;
        Ok(NormGradients { dx, dweight, dbias })
    }

    /// Computes gradients into tensors of the caller's.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`Error::Shape`], [`Error::Stride`], [`Error::DeviceMismatch`], [`Error::ReadOnly`] and [`Error::Overlap`] if a result does not fit, or
    /// shares memory with another tensor whose elements it does not replace.
    pub fn run_into<W: SumElement>(&self, mut outputs: NormGradientOutputs<'_, T, W>) -> Result<()> {
        let _range = trace::operation(self.norm.options.operation);
        let (sizes, stream) = self.check()?;
        self.check_outputs(sizes, &outputs)?;
        if sizes.are_none() {
            // The sum over no rows.
            for sums in [&mut outputs.dweight, &mut outputs.dbias].into_iter().flatten() {
                if !outputs.adds {
                    sums.fill_zero_on(&stream)?;
                }
            }
            return Ok(());
        }
        if self.norm.x.device().kind() == DeviceKind::Cpu {
            return self.run_on_cpu(sizes, outputs);
        }
        self.launch(sizes, &stream, outputs)
    }

    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        self.implementation_into::<f32>()
    }

    /// Which implementation [`run_into`](Self::run_into) would take, for gradients of weight and bias of this type.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation_into<W: SumElement>(&self) -> Result<Implementation> {
        let (sizes, _) = self.check()?;
        let device = self.norm.x.device();
        if sizes.are_none() {
            return Ok(Implementation::Empty);
        }
        if device.kind() == DeviceKind::Cpu {
            return Ok(Implementation::Cpu);
        }
        let tensors = [Some(self.norm.x), Some(self.dy), self.dsum].into_iter().flatten();
        let in_place = tensors.clone().filter(|tensor| !is_copied(tensor));
        let views = in_place.map(Tensor::flatten_leading).collect::<Result<Vec<_>>>()?;
        let mut rows: Vec<AnyRows> = views.iter().map(rows_of).collect();
        rows.push(self.norm.options.weight_row());
        let (shares, plan) = self.plan(sizes, &rows);
        let (name, blocks) = launch_of::<W>(sizes.columns);
        let gradient = Implementation::kernel(device, kernel_name::<T>(shares, plan), plan.blocks);
        let sums = Implementation::kernel(device, name, blocks);
        let gradient = if plan.rounds > 1 {
            let [across, parts, _] = column_grid(sizes, shares);
            let name = column_name::<T>(shares);
            Implementation::kernel(device, name, across * parts).then(gradient)
        } else {
            gradient
        };
        let all = gradient.then(sums).with_copies(tensors.filter(|x| is_copied(x)).count());
        Ok(if self.statistics.is_some() { all } else { self.norm.implementation()?.then(all) })
    }

    fn plan(&self, sizes: Sizes, rows: &[AnyRows]) -> (Shares, Plan) {
        let max_cluster = self.norm.x.device().properties().max_cluster;
        let shares = Shares::of::<T>(sizes.columns, rows, CHUNKS);
        let plan = Plan::in_blocks(sizes, shares, max_cluster, PARTS);
        // For as many multiprocessors on every GPU: the order of columns' sums depends on the threads of a row.
        (shares, plan.spread(sizes, shares, PARTS / 2))
    }

    fn check(&self) -> Result<(Sizes, Stream)> {
        let (sizes, stream) = self.norm.check()?;
        let (operation, x) = (self.norm.options.operation, self.norm.x);
        let device = x.device();
        if self.norm.residual.is_some() {
            let expected = "none: x is the sum that was normed".into();
            let actual = "a residual".into();
            return Err(Error::Argument { operation, argument: "residual", expected, actual });
        }
        for (operand, tensor) in [("dy", Some(self.dy)), ("dsum", self.dsum)] {
            let Some(tensor) = tensor else { continue };
            device.expect_same(operation, operand, tensor.device())?;
            expect_shape(operation, operand, tensor.shape(), x.shape(), "x")?;
        }
        let Some((mean, deviation)) = self.statistics else { return Ok((sizes, stream)) };
        if mean.is_some() != self.norm.options.is_centered {
            let [expected, actual] = match mean {
                Some(_) => ["no mean, of which an RMS norm has none", "a mean"],
                None => ["the mean of each row", "none"],
            };
            let argument = "statistics";
            return Err(Error::Argument {
                operation,
                argument,
                expected: expected.into(),
                actual: actual.into(),
            });
        }
        let leading = &x.shape()[..x.rank() - 1];
        for (operand, tensor) in [("mean", mean), ("inverse_deviation", Some(deviation))] {
            let Some(tensor) = tensor else { continue };
            device.expect_same(operation, operand, tensor.device())?;
            expect_shape(operation, operand, tensor.shape(), leading, "x")?;
            crate::ops::matrix::expect_contiguous(operation, operand, tensor)?;
        }
        Ok((sizes, stream))
    }

    fn check_outputs<W: SumElement>(
        &self,
        sizes: Sizes,
        outputs: &NormGradientOutputs<'_, T, W>,
    ) -> Result<()> {
        let (operation, x) = (self.norm.options.operation, self.norm.x);
        let device = x.device();
        let apart = |operand, other, shares: bool| match shares {
            true => Err(Error::Overlap { operation, operand, other }),
            false => Ok(()),
        };
        let rows = [("x", Some(x)), ("dy", Some(self.dy)), ("dsum", self.dsum)];
        let rows = || rows.into_iter().filter_map(|(name, tensor)| Some((name, tensor?)));
        let mut others = vec![];
        others.extend(self.norm.options.weight.map(|weight| ("weight", weight.span())));
        if let Some((mean, deviation)) = self.statistics {
            others.extend(mean.map(|mean| ("mean", mean.span())));
            others.push(("inverse_deviation", deviation.span()));
        }
        if let Some(dx) = &outputs.dx {
            expect_rows(operation, "dx", dx, device, (x.shape(), "x"))?;
            for (other, tensor) in rows() {
                apart("dx", other, dx.shares_memory(tensor) && !is_in_place(dx, tensor))?;
            }
            for (other, span) in &others {
                apart("dx", other, dx.span().meets(span))?;
            }
            others.push(("dx", dx.span()));
        }
        for (operand, sums) in [("dweight", &outputs.dweight), ("dbias", &outputs.dbias)] {
            let Some(sums) = sums else { continue };
            expect_result(operation, operand, sums, device, &[sizes.columns], "x")?;
            for (other, tensor) in rows() {
                apart(operand, other, sums.shares_memory(tensor))?;
            }
            for (other, span) in &others {
                apart(operand, other, sums.span().meets(span))?;
            }
            others.push((operand, sums.span()));
        }
        Ok(())
    }

    fn launch<W: SumElement>(
        &self,
        sizes: Sizes,
        stream: &Stream,
        outputs: NormGradientOutputs<'_, T, W>,
    ) -> Result<()> {
        let norm = &self.norm;
        let operation = norm.options.operation;
        let [x, dy] = [as_rows(norm.x, stream)?, as_rows(self.dy, stream)?];
        let dsum = self.dsum.map(|dsum| as_rows(dsum, stream)).transpose()?;
        let dx = outputs.dx.as_ref().map(|dx| as_result_rows(operation, "dx", dx)).transpose()?;
        let again = match self.statistics {
            Some(_) => None,
            None => Some(self.statistics_again(stream)?),
        };
        let (mean, deviation) = match (&self.statistics, &again) {
            (Some((mean, deviation)), _) => (*mean, Some(*deviation)),
            (None, Some((mean, deviation))) => (mean.as_ref(), Some(deviation)),
            (None, None) => (None, None),
        };
        let rows_or_none = |tensor: Option<&Tensor<T>>| tensor.map_or(AnyRows::NONE, rows_of);
        let rows = [Some(&x), Some(&dy), dsum.as_ref(), dx.as_ref()].map(rows_or_none);
        let weight = norm.options.weight_row();
        let (shares, plan) = self.plan(sizes, &[rows[0], rows[1], rows[2], rows[3], weight]);
        let is_wide = plan.rounds > 1;
        let grid = column_grid(sizes, shares);
        let parts = if is_wide { grid[1] } else { plan.blocks / plan.cluster } as usize;
        let new_parts = |wanted: bool| {
            wanted.then(|| Tensor::<f32>::uninit_on(stream, [parts, sizes.columns])).transpose()
        };
        let mut dweight = new_parts(outputs.dweight.is_some())?;
        let mut dbias = new_parts(outputs.dbias.is_some())?;
        let null = || Global::new(0);
        let params = NormGradientParams {
            weight,
            x: Global::new(rows[0].base),
            dy: Global::new(rows[1].base),
            dsum: Global::new(rows[2].base),
            dx: GlobalMut::new(rows[3].base),
            strides: rows.map(|rows| rows.stride),
            mean: mean.map_or_else(null, Tensor::arg),
            deviation: deviation.map_or_else(null, Tensor::arg),
            dweight: dweight.as_mut().map_or(GlobalMut::new(0), Tensor::arg_mut),
            dbias: dbias.as_mut().map_or(GlobalMut::new(0), Tensor::arg_mut),
            rows: sizes.rows as u32,
            columns: sizes.columns as u32,
            threads: plan.threads,
            rounds: plan.rounds,
            inverse: 1.0 / sizes.columns as f32,
            is_centered: u32::from(norm.options.is_centered),
        };
        let mut operands: Vec<&dyn Operand> = vec![&x, &dy];
        for tensor in [&dsum, &dx].into_iter().flatten() {
            operands.push(tensor);
        }
        for tensor in [mean, deviation, dweight.as_ref(), dbias.as_ref()].into_iter().flatten() {
            operands.push(tensor);
        }
        operands.extend(norm.options.weight.as_ref().map(AnyTensor::operand));
        let is_wanted = dweight.is_some() || dbias.is_some();
        // SAFETY: as for the norm; each block, or cluster, has a row of the parts. Of wide rows each part of the rows has one, and is read before dx may replace it.
        stream.with_operands(&operands, || unsafe {
            let none = GlobalMut::new(0);
            let params = match is_wide {
                true => {
                    if is_wanted {
                        launch_columns::<T>(stream, shares, grid, params)?;
                    }
                    if params.dx.is_null() {
                        return Ok(());
                    }
                    NormGradientParams { dweight: none, dbias: none, ..params }
                }
                false => params,
            };
            match Variant::of(shares, plan) {
                Variant::Block => launch::<T::Gradient>(stream, plan, (params,)),
                Variant::BlockAny => launch::<T::GradientAny>(stream, plan, (params,)),
                Variant::Cluster => launch::<T::GradientCluster>(stream, plan, (params,)),
                Variant::ClusterAny => launch::<T::GradientClusterAny>(stream, plan, (params,)),
            }
        })?;
        let of = |parts, to| Option::zip(parts, to);
        let sums = [of(dweight.as_ref(), outputs.dweight), of(dbias.as_ref(), outputs.dbias)];
        column_sums(stream, sums, outputs.adds)
    }

    /// The statistics of x: the mean, if it is taken off, and the inverse deviation.
    fn statistics_again(&self, stream: &Stream) -> Result<(Option<Tensor<f32>>, Tensor<f32>)> {
        let leading = &self.norm.x.shape()[..self.norm.x.rank() - 1];
        let is_centered = self.norm.options.is_centered;
        let mut mean = is_centered.then(|| Tensor::uninit_on(stream, leading)).transpose()?;
        let mut deviation = Tensor::uninit_on(stream, leading)?;
        let outputs = NormOutputs::<T, T> {
            y: None,
            sum: None,
            mean: mean.as_mut(),
            inverse_deviation: Some(&mut deviation),
        };
        self.norm.on(stream).run_into(outputs)?;
        Ok((mean, deviation))
    }

    fn run_on_cpu<W: SumElement>(&self, sizes: Sizes, outputs: NormGradientOutputs<'_, T, W>) -> Result<()> {
        let options = &self.norm.options;
        let [weight, bias] = options.numbers()?;
        let norm = options.norm(weight.as_deref(), bias.as_deref());
        let [x, dy] = [widened(self.norm.x)?, widened(self.dy)?];
        let dsum = self.dsum.map(widened).transpose()?;
        let saved = match self.statistics {
            Some((mean, deviation)) => Some((mean.map(Tensor::to_vec).transpose()?, deviation.to_vec()?)),
            None => None,
        };
        let mut dx = vec![0.0f32; x.len()];
        let columns = sizes.columns;
        let mut sums = [vec![0.0f32; columns], vec![0.0f32; columns]];
        let mut scratch = vec![0.0f32; columns];
        for (row, dx) in dx.chunks_mut(columns).enumerate() {
            let of_row = row * columns..(row + 1) * columns;
            let x = &x[of_row.clone()];
            let statistics = match &saved {
                Some((mean, deviation)) => Statistics {
                    mean: mean.as_ref().map_or(0.0, |mean| mean[row]),
                    inverse_deviation: deviation[row],
                },
                None => cpu::norm(x, &norm, &mut scratch),
            };
            let [dweight, dbias] = &mut sums;
            let dsum = dsum.as_ref().map(|dsum| &dsum[of_row.clone()]);
            cpu::norm_gradient([x, &dy[of_row.clone()]], dsum, statistics, &norm, dx, [dweight, dbias]);
        }
        if let Some(to) = outputs.dx {
            to.write_slice(&rounded::<T>(&dx))?;
        }
        for (sums, to) in sums.iter_mut().zip([outputs.dweight, outputs.dbias]) {
            let Some(to) = to else { continue };
            if outputs.adds {
                for (sum, before) in sums.iter_mut().zip(widened(to)?) {
                    *sum += before;
                }
            }
            to.write_slice(&rounded::<W>(sums))?;
        }
        Ok(())
    }
}

fn kernel_name<T: NormElement>(shares: Shares, plan: Plan) -> &'static str {
    Variant::of(shares, plan)
        .of_four::<T::Gradient, T::GradientAny, T::GradientCluster, T::GradientClusterAny>()
}

fn column_name<T: NormElement>(shares: Shares) -> &'static str {
    if shares.vector { T::Columns::DECLARATION.name } else { T::ColumnsAny::DECLARATION.name }
}

/// # Safety
///
/// As for the kernel.
unsafe fn launch_columns<T: NormElement>(
    stream: &Stream,
    shares: Shares,
    grid: [u32; 3],
    params: NormGradientParams<T::Device>,
) -> Result<()> {
    let device = stream.device();
    // SAFETY: the caller's promise.
    unsafe {
        if shares.vector {
            device.kernel::<T::Columns>()?.launch_early(stream, grid, (params,))
        } else {
            device.kernel::<T::ColumnsAny>()?.launch_early(stream, grid, (params,))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_wide_rows_have_parts_of_enough_rows_and_a_grid_that_launches() {
        for (vector, chunk) in [(true, 8), (true, 4), (false, 8), (false, 4)] {
            let shares = Shares { vector, chunk, chunks: CHUNKS };
            for columns in [4097, 8200, 100_003, 1 << 20, (1 << 31) - 1] {
                for rows in [1, 15, 16, 17, 1000, 100_000, (1 << 31) - 1] {
                    let [across, parts, deep] = column_grid(Sizes { rows, columns }, shares);
                    let case = format!("{rows} × {columns}, {chunk}");
                    assert!(across as usize * (THREADS * chunk) as usize >= columns, "{case}");
                    assert!((1..=65_535).contains(&parts) && deep == 1, "{case}: {parts}");
                    assert!(parts == 1 || rows.div_ceil(parts as usize) > LEAST_ROWS as usize / 2, "{case}");
                }
            }
        }
    }
}
