//! AdamW for many tensors.

use std::fmt;
use std::ops::Range;

use warpsmith_dsl::adamw::{HISTORY_WORDS, PIECE, STATUS_WORDS, StepFlags, status};
use warpsmith_dsl::launch::Kernel;
use warpsmith_kernels::adamw::{
    adamw_prepare, adamw_row_square_sums, adamw_square_sums, adamw_update, adamw_update_rows,
};

use super::on_device::RowsLaunch;
use super::operands::{AnyWeights, Gradient, Weights, vectors_of};
use super::options::{
    AdamWOptions, Group, LossScaleOptions, ParameterOptions, Rounding, SecondMoment, check_norm,
};
use super::tables::Tables;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::ops::rows::{AnyTensor, with_tensor};
use crate::ops::{self, Implementation};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};
use crate::trace;

/// What adding weights is called in errors.
const ADD: &str = "AdamW::add";
/// What a step is called in errors.
pub(super) const STEP: &str = "AdamW::step";

/// What was added under a name.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Its tensors, among those of the optimiser.
    pub(super) tensors: Range<usize>,
    /// Whether they are the vectors of a table of experts.
    pub(super) is_experts: bool,
}

/// A tensor of weights, with what the optimiser has of it.
#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) name: String,
    pub(super) weights: Weights,
    /// The weights in f32, of those of 16 bits that are not rounded randomly.
    pub(super) master: Option<Tensor<f32>>,
    pub(super) moments: [Tensor<f32>; 2],
    pub(super) group: usize,
    /// Whether it is the vectors of a table of experts.
    pub(super) is_experts: bool,
    /// How many second moments it has.
    pub(super) second_moment: SecondMoment,
}

impl Parameter {
    pub(super) fn len(&self) -> usize {
        with_tensor!(self.weights.any(), tensor => tensor.len())
    }

    /// Rows, vectors of a row, and elements of a vector.
    pub(super) fn sizes(&self) -> [usize; 3] {
        match *self.weights.any().shape() {
            [rows, vectors, columns] if self.is_experts => [rows, vectors, columns],
            // All axes but the last one are rows of one vector.
            [ref rows @ .., columns] => [rows.iter().product(), 1, columns],
            [] => [1, 1, 1],
        }
    }

    /// Whether it is moved by rows, whatever its gradient is.
    pub(super) fn is_by_rows(&self) -> bool {
        self.is_experts || self.second_moment == SecondMoment::PerRow
    }

    /// Pieces of it that the kernels for whole tensors have.
    pub(super) fn pieces(&self) -> usize {
        if self.is_by_rows() { 0 } else { self.len().div_ceil(PIECE as usize) }
    }

    pub(super) fn operands(&self) -> impl Iterator<Item = &dyn Operand> {
        let moments = self.moments.iter().map(|moment| moment as &dyn Operand);
        let master = self.master.iter().map(|master| master as &dyn Operand);
        std::iter::once(self.weights.any().operand()).chain(moments).chain(master)
    }
}

/// AdamW (Loshchilov and Hutter, 2019) for many tensors: one launch moves all whole ones, another one each that is moved by rows.
///
/// Weights are [added](Self::add) by name; the optimiser keeps a view of their memory, and writes it in each [step](Self::step). Weights are f32, or of 16 bits
/// with a copy in f32, or [rounded randomly](Rounding::Stochastic); moments are f32; gradients f16, bf16 or f32, of each tensor its own.
///
/// With g the gradient of a weight w in its step t, over the loss scale and times what clips it, all of it in f32:
///
/// ```text
/// w ← w − lr · decay · w
/// m ← m + (1 − β₁) (g − m)        v ← v + (1 − β₂) (g² − v)
/// w ← w − lr / (1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + ε)
/// ```
///
/// Where a [gradient has only some rows](Gradient), these alone and their moments move; steps are counted of the tensor. With
/// [one second moment for a row](SecondMoment::PerRow), g² is the mean of the row's.
///
/// A step waits for nothing that the device does: step counts, the norm of gradients and the loss scale are on the device. It can be
/// [captured](Stream::capture) if gradients stay in the same tensors.
///
/// Results are the same bits on every device, and each time.
///
/// ```
/// use warpsmith::optim::{AdamW, AdamWOptions};
/// use warpsmith::{Device, Tensor};
///
/// let device = Device::emulator();
/// let w = Tensor::from_slice(&device, &[1.0f32, -1.0, 2.0], [3])?;
/// let options = AdamWOptions { learning_rate: 0.5, weight_decay: 0.0, ..AdamWOptions::default() };
/// let mut optimizer = AdamW::new(&device, options)?;
/// optimizer.add("w", &w)?;
/// let gradient = Tensor::from_slice(&device, &[4.0f32, -0.5, 0.0], [3])?;
/// optimizer.step(&[(&gradient).into()])?;
/// // A first step moves each weight by the learning rate, whatever its gradient's size is.
/// let moved = w.to_vec()?;
/// assert!(moved.iter().zip([0.5, -0.5, 2.0]).all(|(w, expected)| (w - expected).abs() < 1e-6));
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub struct AdamW {
    pub(super) device: Device,
    pub(super) groups: Vec<AdamWOptions>,
    /// What was added, in the order of gradients.
    pub(super) entries: Vec<Entry>,
    /// The tensors of all entries.
    pub(super) parameters: Vec<Parameter>,
    pub(super) max_norm: Option<f32>,
    pub(super) loss_scale: Option<LossScaleOptions>,
    /// Whether the norm is computed though nothing needs it.
    has_norm: bool,
    pub(super) seed: u64,
    /// The loss scale, and what came of the last step; some of it integers, as their bits.
    pub(super) status: Tensor<f32>,
    /// How many steps each tensor has taken.
    pub(super) history: Tensor<u32>,
    /// `None` until the first step with these tensors.
    pub(super) tables: Option<Tables>,
}

impl fmt::Debug for AdamW {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, groups, entries, max_norm, loss_scale, seed, .. } = self;
        formatter
            .debug_struct("AdamW")
            .field("device", device)
            .field("groups", groups)
            .field("parameters", &entries.len())
            .field("max_norm", max_norm)
            .field("loss_scale", loss_scale)
            .field("seed", seed)
            .finish_non_exhaustive()
    }
}

/// What a tensor's history is before its first step: powers of 1.
pub(super) fn fresh_history() -> [u32; HISTORY_WORDS] {
    let one = 1f64.to_bits();
    [0, 0, one as u32, (one >> 32) as u32, one as u32, (one >> 32) as u32]
}

impl AdamW {
    /// An optimiser of weights on `device`. The options are those of the first group.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if an option is out of its range; otherwise as for [`Tensor::zeros`].
    pub fn new(device: &Device, options: AdamWOptions) -> Result<Self> {
        options.check("AdamW::new")?;
        let status = Tensor::from_slice(device, &fresh_status(1.0), [STATUS_WORDS])?;
        Ok(Self {
            device: device.clone(),
            groups: vec![options],
            entries: Vec::new(),
            parameters: Vec::new(),
            max_norm: None,
            loss_scale: None,
            has_norm: false,
            seed: 0,
            status,
            history: Tensor::uninit(device, [0, HISTORY_WORDS])?,
            tables: None,
        })
    }

    /// A group of weights that have options of their own.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if an option is out of its range.
    pub fn add_group(&mut self, options: AdamWOptions) -> Result<Group> {
        options.check("AdamW::add_group")?;
        self.groups.push(options);
        self.tables = None;
        Ok(Group(self.groups.len() - 1))
    }

    /// Adds weights to the first group: a contiguous tensor of any shape, or a table of experts. Those of 16 bits get a copy in f32. Their gradient comes after those
    /// of the weights before.
    ///
    /// # Errors
    ///
    /// As [`add_with`](Self::add_with).
    pub fn add<'a>(&mut self, name: impl Into<String>, weights: impl Into<AnyWeights<'a>>) -> Result<()> {
        self.add_with(name, weights, ParameterOptions::default())
    }

    /// Adds weights with a group, a rounding and moments of their own.
    ///
    /// The vectors of a table `name` are the tensors `name.u`, `name.v` and, if its units are gated, `name.w`, of shape `[N, hidden, D]` or `[N, hidden, O]`. All its
    /// rows have to be on the device, in f32, f16 or bf16.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there are weights of that name, there is no such group, or a table is none of these. [`Error::Stride`] if a tensor is
    /// not contiguous. [`Error::DeviceMismatch`] if the weights are another device's. [`Error::ReadOnly`] if they cannot be written.
    /// [`Error::Overlap`] if they share memory with others of this optimiser. [`Error::SizeLimit`] if what is moved by rows has 2³¹ of them, or as many columns. Otherwise as
    /// for [`Tensor::zeros`] and [`ops::cast`].
    pub fn add_with<'a>(
        &mut self,
        name: impl Into<String>,
        weights: impl Into<AnyWeights<'a>>,
        options: ParameterOptions,
    ) -> Result<()> {
        let (name, weights, group) = (name.into(), weights.into(), options.group.0);
        let is_experts = matches!(weights, AnyWeights::Experts(_));
        let all = match weights {
            AnyWeights::Tensor(tensor) => vec![(name.clone(), Weights::of(tensor))],
            AnyWeights::Experts(table) => vectors_of(ADD, table)?
                .into_iter()
                .map(|(of, vectors)| (format!("{name}.{of}"), vectors))
                .collect(),
        };
        let is_taken = |name: &str| {
            self.entries.iter().any(|entry| entry.name == name)
                || self.parameters.iter().any(|parameter| parameter.name == name)
        };
        if let Some(taken) =
            std::iter::once(&name).chain(all.iter().map(|(name, _)| name)).find(|name| is_taken(name))
        {
            let (expected, actual) = ("a name that no other weights have".into(), taken.clone());
            return Err(Error::Argument { operation: ADD, argument: "name", expected, actual });
        }
        if group >= self.groups.len() {
            let (expected, actual) =
                (format!("one of {} groups", self.groups.len()), format!("number {group}"));
            return Err(Error::Argument { operation: ADD, argument: "group", expected, actual });
        }
        let mut parameters = Vec::with_capacity(all.len());
        for (name, weights) in all {
            parameters.push(self.parameter_of(name, weights, is_experts, options)?);
        }
        let first = self.parameters.len();
        self.parameters.extend(parameters);
        self.entries.push(Entry { name, tensors: first..self.parameters.len(), is_experts });
        self.tables = None;
        Ok(())
    }

    /// A tensor of weights, checked, with its moments.
    fn parameter_of(
        &self,
        name: String,
        own: Weights,
        is_experts: bool,
        options: ParameterOptions,
    ) -> Result<Parameter> {
        let ParameterOptions { group, rounding, second_moment } = options;
        let weights = own.any();
        self.device.expect_same(ADD, "weights", weights.device())?;
        with_tensor!(weights, tensor => {
            tensor.expect_writable(ADD, "weights")?;
            // Vectors of experts are not, and kernels know their strides.
            if !is_experts {
                expect_contiguous(ADD, "weights", tensor)?;
            }
        });
        if self.parameters.iter().any(|other| other.weights.any().span().meets(&weights.span())) {
            return Err(Error::Overlap { operation: ADD, operand: "weights", other: "weights" });
        }
        let master = match rounding {
            Rounding::Master if !matches!(weights, AnyTensor::F32(_)) => Some(widened_copy(weights)?),
            _ => None,
        };
        let mut of_squares = weights.shape().to_vec();
        if let (SecondMoment::PerRow, Some(last)) = (second_moment, of_squares.last_mut()) {
            *last = 1;
        }
        let moments =
            [Tensor::zeros(&self.device, weights.shape())?, Tensor::zeros(&self.device, of_squares)?];
        let parameter =
            Parameter { name, weights: own, master, moments, group: group.0, is_experts, second_moment };
        if parameter.is_by_rows() {
            // What has too many rows for every step is found here.
            RowsLaunch::of_room(ADD, &parameter, 0)?;
        }
        Ok(parameter)
    }

    /// The norm that all gradients together are limited to: those of a larger one are multiplied with `max_norm` / (norm + 10⁻⁶), after the loss scale is taken off.
    /// `None` is no limit.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if it is not a finite number above 0.
    pub fn set_max_norm(&mut self, max_norm: Option<f32>) -> Result<()> {
        if let Some(norm) = max_norm {
            check_norm("AdamW::set_max_norm", norm)?;
        }
        self.max_norm = max_norm;
        Ok(())
    }

    /// Whether [`gradient_norm`](Self::gradient_norm) is computed where neither a limit nor a loss scale needs it.
    pub fn set_gradient_norm(&mut self, is_wanted: bool) {
        self.has_norm = is_wanted;
    }

    /// Scales the loss, from now on. Gradients are divided by the [scale](Self::loss_scale); if one of them is infinite or NaN, neither weights nor moments nor
    /// step counts move, and the scale shrinks. `None` is no scale.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if an option is out of its range; otherwise as for [`Tensor::write_slice`].
    pub fn set_loss_scale(&mut self, options: Option<LossScaleOptions>) -> Result<()> {
        if let Some(options) = options {
            options.check("AdamW::set_loss_scale")?;
        }
        self.status.write_slice(&fresh_status(options.map_or(1.0, |options| options.initial)))?;
        self.loss_scale = options;
        Ok(())
    }

    /// What random bits of [`Rounding::Stochastic`] are made from. 0 unless it is set.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The options of a group; `None` if it is another optimiser's.
    #[must_use]
    pub fn options(&self, group: Group) -> Option<AdamWOptions> {
        self.groups.get(group.0).copied()
    }

    /// Sets the options of a group, for the steps from now on.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if an option is out of its range, or there is no such group.
    pub fn set_options(&mut self, group: Group, options: AdamWOptions) -> Result<()> {
        const OPERATION: &str = "AdamW::set_options";
        options.check(OPERATION)?;
        let count = self.groups.len();
        let Some(of_group) = self.groups.get_mut(group.0) else {
            let (expected, actual) = (format!("one of {count} groups"), format!("number {}", group.0));
            return Err(Error::Argument { operation: OPERATION, argument: "group", expected, actual });
        };
        *of_group = options;
        Ok(())
    }

    /// Sets the learning rate of all groups, for the steps from now on.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if it is negative or not finite.
    pub fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()> {
        for group in 0..self.groups.len() {
            self.set_options(Group(group), AdamWOptions { learning_rate, ..self.groups[group] })?;
        }
        Ok(())
    }

    /// The names of the weights, in the order of their gradients. A table of experts is one of them, and has [several tensors](Self::add_with).
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// The first and the second moment of the tensor `name`: views of what the optimiser has. `None` if there is no such tensor. With one second moment for a row,
    /// the last axis of that has length 1.
    #[must_use]
    pub fn moments(&self, name: &str) -> Option<[Tensor<f32>; 2]> {
        self.parameter(name).map(|parameter| parameter.moments.clone())
    }

    /// The copy in f32 of the tensor `name`: a view of what the optimiser has. `None` if there is no such tensor, or no copy.
    #[must_use]
    pub fn master(&self, name: &str) -> Option<Tensor<f32>> {
        self.parameter(name).and_then(|parameter| parameter.master.clone())
    }

    fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// The loss scale, of shape `[1]`: a view of what the device has, which each step may change. 1 if the loss is not scaled.
    ///
    /// # Errors
    ///
    /// None that a program can cause.
    pub fn loss_scale(&self) -> Result<Tensor<f32>> {
        self.status.slice(0, status::SCALE..status::SCALE + 1)
    }

    /// The norm of the last step's gradients, of shape `[1]`, over the loss scale and before they were limited: a view of what the device has. NaN if one is not
    /// finite, infinity if the sum of squares is beyond f32's numbers. 0 where it is [not computed](Self::set_gradient_norm).
    ///
    /// # Errors
    ///
    /// None that a program can cause.
    pub fn gradient_norm(&self) -> Result<Tensor<f32>> {
        self.status.slice(0, status::NORM..status::NORM + 1)
    }

    /// Whether the last step found a gradient that is not finite and moved nothing. Waits for the step.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the step, or work before it, failed.
    pub fn was_skipped(&self) -> Result<bool> {
        Ok(self.status.to_vec()?[status::FOUND_INF].to_bits() != 0)
    }

    /// How many steps each of the weights has taken, modulo 2³². Waits for the last one.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if a step, or work before it, failed.
    pub fn steps(&self) -> Result<Vec<u32>> {
        let words = self.history_words()?;
        Ok(self.entries.iter().map(|entry| words[entry.tensors.start * HISTORY_WORDS]).collect())
    }

    /// The history of all tensors, of those too that have been added since the last step.
    pub(super) fn history_words(&self) -> Result<Vec<u32>> {
        let mut words = self.history.to_vec()?;
        while words.len() < self.parameters.len() * HISTORY_WORDS {
            words.extend(fresh_history());
        }
        Ok(words)
    }

    /// Moves all weights by their gradients, which come in the order in which weights were added. On a GPU the work may still be under way
    /// when this returns.
    ///
    /// ```
    /// use warpsmith::layers::Embedding;
    /// use warpsmith::optim::{AdamW, AdamWOptions};
    /// use warpsmith::{Device, Tensor};
    ///
    /// let device = Device::emulator();
    /// let layer = Embedding::new(Tensor::<f32>::zeros(&device, [1000, 2])?)?;
    /// let options = AdamWOptions { learning_rate: 0.5, ..AdamWOptions::default() };
    /// let mut optimizer = AdamW::new(&device, options)?;
    /// optimizer.add("table", layer.table())?;
    /// let (y, saved) = layer.forward_train(&Tensor::from_slice(&device, &[7u32, 9, 7], [3])?)?;
    /// let dy = Tensor::from_slice(&device, &[-1.0f32; 6], [3, 2])?;
    /// // The gradient has two rows of the thousand, and only these are touched.
    /// optimizer.step(&[(&layer.backward(&saved, &dy)?).into()])?;
    /// assert_eq!(layer.table().slice(0, 6..10)?.to_vec()?, [0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.5, 0.5]);
    /// # assert_eq!(y.shape(), [3, 2]);
    /// # Ok::<(), warpsmith::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`step_on`](Self::step_on).
    pub fn step(&mut self, gradients: &[Gradient<'_>]) -> Result<()> {
        let gradients: Vec<_> = gradients.iter().copied().map(Some).collect();
        self.step_on(&self.device.default_stream(), &gradients)
    }

    /// The same on `stream`. Weights whose gradient is `None` stay as they are: they neither decay nor take a step.
    ///
    /// A gradient of rows has different ones, in ascending order. The CPU refuses others. Elsewhere a number of no row moves nothing, though its gradient counts in the norm. Of a
    /// row that is named twice the numbers are unspecified then.
    ///
    /// A step can be captured if it has the same kinds of gradients as one before, and no more rows.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is another number of gradients than of weights, or one is of another kind than its weights. Likewise if a GPU's stream is being captured
    /// and the step differs from the last one in options or in where gradients are; on the CPU, if ids are not as they should be. [`Error::Shape`], [`Error::Stride`] and
    /// [`Error::DeviceMismatch`] if a gradient does not fit its weights, or is not contiguous. [`Error::SizeLimit`] if it has too many rows. [`Error::Overlap`] if one shares
    /// memory with weights. Otherwise whatever loading the kernels and launching them may return.
    pub fn step_on(&mut self, stream: &Stream, gradients: &[Option<Gradient<'_>>]) -> Result<()> {
        let _range = trace::operation(STEP);
        self.device.expect_same(STEP, "stream", stream.device())?;
        let gradients = self.of_tensors(gradients)?;
        if self.parameters.iter().all(|parameter| parameter.len() == 0) {
            return Ok(());
        }
        if self.tables.is_none() {
            // Before the tables: what they are made from says how many steps there were.
            let words = self.history_words()?;
            self.history = Tensor::from_slice(&self.device, &words, [self.parameters.len(), HISTORY_WORDS])?;
        }
        if self.device.kind() == DeviceKind::Cpu {
            self.check_apart(&gradients)?;
            self.tables = Some(Tables::none());
            return self.step_on_cpu(&gradients);
        }
        self.step_on_device(stream, &gradients)
    }

    /// What a step does, and whether it needs the sums of squares.
    pub(super) fn flags(&self) -> StepFlags {
        let clips = if self.max_norm.is_some() { StepFlags::CLIPS } else { 0 };
        let scales = if self.loss_scale.is_some() { StepFlags::SCALES } else { 0 };
        let has_sums = if clips | scales != 0 || self.has_norm { StepFlags::HAS_SUMS } else { 0 };
        StepFlags(clips | scales | has_sums)
    }

    /// Which implementation [`step_on`](Self::step_on) takes for these gradients.
    ///
    /// # Errors
    ///
    /// As [`step_on`](Self::step_on) for gradients that do not fit.
    pub fn implementation(&self, gradients: &[Option<Gradient<'_>>]) -> Result<Implementation> {
        let gradients = self.of_tensors(gradients)?;
        let (mut pieces, mut blocks_of_pieces, mut blocks_of_rows) = (0, 0, 0);
        for (parameter, gradient) in self.parameters.iter().zip(&gradients) {
            match RowsLaunch::of(parameter, gradient.as_ref())? {
                Some(launch) => {
                    blocks_of_pieces += launch.pieces;
                    blocks_of_rows += launch.grid[0] * launch.grid[1];
                }
                None => pieces += parameter.pieces(),
            }
        }
        if self.parameters.iter().all(|parameter| parameter.len() == 0) {
            return Ok(Implementation::Empty);
        }
        if self.device.kind() == DeviceKind::Cpu {
            return Ok(Implementation::Cpu);
        }
        let of = |name, blocks: usize| match blocks {
            0 => Implementation::Empty,
            _ => Implementation::kernel(&self.device, name, u32::try_from(blocks).unwrap_or(u32::MAX)),
        };
        let mut all = Implementation::Empty;
        if self.flags().has(StepFlags::HAS_SUMS) {
            all = of(adamw_square_sums::DECLARATION.name, pieces);
            all = all.then(of(adamw_row_square_sums::DECLARATION.name, blocks_of_pieces));
        }
        all = all.then(of(adamw_prepare::DECLARATION.name, 1));
        all = all.then(of(adamw_update::DECLARATION.name, pieces));
        Ok(all.then(of(adamw_update_rows::DECLARATION.name, blocks_of_rows)))
    }
}

/// The status before a step: the loss scale, and factors of 1.
fn fresh_status(scale: f32) -> [f32; STATUS_WORDS] {
    let mut words = [0.0; STATUS_WORDS];
    words[status::SCALE] = scale;
    words[status::UNSCALE] = 1.0;
    words[status::CLIP] = 1.0;
    words
}

/// A copy in f32.
fn widened_copy(weights: AnyTensor<'_>) -> Result<Tensor<f32>> {
    if weights.shape().is_empty() {
        // An operation on rows takes no tensor without axes.
        return with_tensor!(weights, tensor => ops::cast::<f32>(&tensor.reshape([1])?).run()?.reshape([]));
    }
    ops::cast::<f32>(weights).run()
}

pub(super) fn expect_contiguous<T: Element>(
    operation: &'static str,
    operand: &'static str,
    tensor: &Tensor<T>,
) -> Result<()> {
    if tensor.is_contiguous() {
        return Ok(());
    }
    let (expected, actual) = ("those of a contiguous tensor".into(), tensor.strides().to_vec());
    Err(Error::Stride { operation, operand, expected, actual })
}
