//! AdamW for many tensors.

use std::fmt;

use half::{bf16, f16};
use warpsmith_dsl::adamw::{
    AdamWParams, HISTORY_WORDS, KIND_BF16, KIND_F16, KIND_F32, PIECE, STATUS_WORDS, StepFlags, status,
};
use warpsmith_dsl::launch::{GlobalMut, Kernel};
use warpsmith_kernels::adamw::{adamw_prepare, adamw_square_sums, adamw_update};

use super::options::{AdamWOptions, Group, LossScaleOptions, ParameterOptions, Rounding, check_norm};
use super::tables::Tables;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::ops::rows::{AnyTensor, with_tensor};
use crate::ops::{self, Implementation};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};
use crate::trace;

/// Weights of any type that an optimiser moves: views of the memory that the model has.
#[derive(Clone, Debug)]
pub(super) enum Weights {
    F16(Tensor<f16>),
    Bf16(Tensor<bf16>),
    F32(Tensor<f32>),
}

impl Weights {
    fn of(tensor: AnyTensor<'_>) -> Self {
        match tensor {
            AnyTensor::F16(tensor) => Self::F16(tensor.clone()),
            AnyTensor::Bf16(tensor) => Self::Bf16(tensor.clone()),
            AnyTensor::F32(tensor) => Self::F32(tensor.clone()),
        }
    }

    pub(super) fn any(&self) -> AnyTensor<'_> {
        match self {
            Self::F16(tensor) => tensor.into(),
            Self::Bf16(tensor) => tensor.into(),
            Self::F32(tensor) => tensor.into(),
        }
    }
}

/// The number of a type in the kernels' tables.
pub(super) fn kind_of(tensor: AnyTensor<'_>) -> u32 {
    match tensor {
        AnyTensor::F16(_) => KIND_F16,
        AnyTensor::Bf16(_) => KIND_BF16,
        AnyTensor::F32(_) => KIND_F32,
    }
}

/// Weights with what the optimiser has of them.
#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) name: String,
    pub(super) weights: Weights,
    /// The weights in f32, of those of 16 bits that are not rounded randomly.
    pub(super) master: Option<Tensor<f32>>,
    pub(super) moments: [Tensor<f32>; 2],
    pub(super) group: usize,
}

impl Parameter {
    pub(super) fn len(&self) -> usize {
        with_tensor!(self.weights.any(), tensor => tensor.len())
    }

    fn operands(&self) -> impl Iterator<Item = &dyn Operand> {
        let moments = self.moments.iter().map(|moment| moment as &dyn Operand);
        let master = self.master.iter().map(|master| master as &dyn Operand);
        std::iter::once(self.weights.any().operand()).chain(moments).chain(master)
    }
}

/// AdamW (Loshchilov and Hutter, 2019) for many tensors: one launch moves all of them.
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
        let Self { device, groups, parameters, max_norm, loss_scale, seed, .. } = self;
        formatter
            .debug_struct("AdamW")
            .field("device", device)
            .field("groups", groups)
            .field("parameters", &parameters.len())
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

    /// Adds weights, contiguous and of any shape, to the first group. Those of 16 bits get a copy in f32. Their gradient comes after those of the weights before.
    ///
    /// # Errors
    ///
    /// As [`add_with`](Self::add_with).
    pub fn add<'a>(&mut self, name: impl Into<String>, weights: impl Into<AnyTensor<'a>>) -> Result<()> {
        self.add_with(name, weights, ParameterOptions::default())
    }

    /// Adds weights with a group and a rounding of their own.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there are weights of that name, or there is no such group. [`Error::Stride`] if the weights are
    /// not contiguous. [`Error::DeviceMismatch`] if they are another device's. [`Error::ReadOnly`] if they cannot be written.
    /// [`Error::Overlap`] if they share memory with others of this optimiser. Otherwise as for [`Tensor::zeros`] and
    /// [`ops::cast`].
    pub fn add_with<'a>(
        &mut self,
        name: impl Into<String>,
        weights: impl Into<AnyTensor<'a>>,
        options: ParameterOptions,
    ) -> Result<()> {
        const OPERATION: &str = "AdamW::add";
        let (name, weights, group) = (name.into(), weights.into(), options.group.0);
        if self.parameters.iter().any(|parameter| parameter.name == name) {
            let expected = "a name that no other weights have".into();
            return Err(Error::Argument { operation: OPERATION, argument: "name", expected, actual: name });
        }
        if group >= self.groups.len() {
            let (expected, actual) =
                (format!("one of {} groups", self.groups.len()), format!("number {group}"));
            return Err(Error::Argument { operation: OPERATION, argument: "group", expected, actual });
        }
        self.device.expect_same(OPERATION, "weights", weights.device())?;
        with_tensor!(weights, tensor => {
            tensor.expect_writable(OPERATION, "weights")?;
            expect_contiguous(OPERATION, "weights", tensor)?;
        });
        if self.parameters.iter().any(|other| other.weights.any().span().meets(&weights.span())) {
            return Err(Error::Overlap { operation: OPERATION, operand: "weights", other: "weights" });
        }
        let shape = weights.shape();
        let is_f32 = matches!(weights, AnyTensor::F32(_));
        let master = match options.rounding {
            Rounding::Master if !is_f32 => Some(widened_copy(weights)?),
            _ => None,
        };
        let moments = [Tensor::zeros(&self.device, shape)?, Tensor::zeros(&self.device, shape)?];
        self.parameters.push(Parameter { name, weights: Weights::of(weights), master, moments, group });
        self.tables = None;
        Ok(())
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

    /// The names of the weights, in the order of their gradients.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parameters.iter().map(|parameter| parameter.name.as_str())
    }

    /// The first and the second moment of the weights `name`: views of what the optimiser has. `None` if there are no such weights.
    #[must_use]
    pub fn moments(&self, name: &str) -> Option<[Tensor<f32>; 2]> {
        self.parameter(name).map(|parameter| parameter.moments.clone())
    }

    /// The copy in f32 of the weights `name`: a view of what the optimiser has. `None` if there are no such weights, or no copy.
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
        Ok(self.history_words()?.chunks_exact(HISTORY_WORDS).map(|words| words[0]).collect())
    }

    /// The history of all tensors, of those too that have been added since the last step.
    pub(super) fn history_words(&self) -> Result<Vec<u32>> {
        let mut words = self.history.to_vec()?;
        while words.len() < self.parameters.len() * HISTORY_WORDS {
            words.extend(fresh_history());
        }
        Ok(words)
    }

    /// Moves all weights by their gradients, which come in the order in which weights were added and have their shapes. On a GPU the work may still be under way
    /// when this returns.
    ///
    /// # Errors
    ///
    /// As [`step_on`](Self::step_on).
    pub fn step(&mut self, gradients: &[AnyTensor<'_>]) -> Result<()> {
        let gradients: Vec<_> = gradients.iter().copied().map(Some).collect();
        self.step_on(&self.device.default_stream(), &gradients)
    }

    /// The same on `stream`. Weights whose gradient is `None` stay as they are: they neither decay nor take a step.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is another number of gradients than of weights, or a GPU's stream is being captured and the
    /// step differs from the last one in options or in where gradients are. [`Error::Shape`], [`Error::Stride`] and
    /// [`Error::DeviceMismatch`] if a gradient does not fit its weights, or is not contiguous. [`Error::Overlap`] if one shares
    /// memory with weights. Otherwise whatever loading the kernels and launching them may return.
    pub fn step_on(&mut self, stream: &Stream, gradients: &[Option<AnyTensor<'_>>]) -> Result<()> {
        let _range = trace::operation("AdamW::step");
        self.check(stream, gradients)?;
        if self.parameters.is_empty() {
            return Ok(());
        }
        if self.tables.is_none() {
            // Before the tables: what they are made from says how many steps there were.
            let words = self.history_words()?;
            self.history = Tensor::from_slice(&self.device, &words, [self.parameters.len(), HISTORY_WORDS])?;
        }
        if self.device.kind() == DeviceKind::Cpu {
            self.check_apart(gradients)?;
            self.tables = Some(Tables::none());
            return self.step_on_cpu(gradients);
        }
        self.step_on_device(stream, gradients)
    }

    fn check(&self, stream: &Stream, gradients: &[Option<AnyTensor<'_>>]) -> Result<()> {
        const OPERATION: &str = "AdamW::step";
        self.device.expect_same(OPERATION, "stream", stream.device())?;
        if gradients.len() != self.parameters.len() {
            let expected = format!("one of each of {} weights", self.parameters.len());
            let actual = gradients.len().to_string();
            return Err(Error::Argument { operation: OPERATION, argument: "gradients", expected, actual });
        }
        for (parameter, gradient) in self.parameters.iter().zip(gradients) {
            let Some(gradient) = gradient else { continue };
            self.device.expect_same(OPERATION, "gradient", gradient.device())?;
            let shape = parameter.weights.any().shape();
            if gradient.shape() != shape {
                return Err(Error::Shape {
                    operation: OPERATION,
                    operand: "gradient",
                    expected: format!("{shape:?}, as `{}` has", parameter.name),
                    actual: gradient.shape().to_vec(),
                });
            }
            with_tensor!(*gradient, tensor => expect_contiguous(OPERATION, "gradient", tensor)?);
        }
        Ok(())
    }

    /// The error for a gradient that shares memory with weights.
    fn check_apart(&self, gradients: &[Option<AnyTensor<'_>>]) -> Result<()> {
        for gradient in gradients.iter().flatten() {
            let meets = |parameter: &Parameter| parameter.weights.any().span().meets(&gradient.span());
            if self.parameters.iter().any(meets) {
                let (operation, operand, other) = ("AdamW::step", "gradient", "weights");
                return Err(Error::Overlap { operation, operand, other });
            }
        }
        Ok(())
    }

    /// What a step does, and whether it needs the sums of squares.
    pub(super) fn flags(&self) -> StepFlags {
        let clips = if self.max_norm.is_some() { StepFlags::CLIPS } else { 0 };
        let scales = if self.loss_scale.is_some() { StepFlags::SCALES } else { 0 };
        let has_sums = if clips | scales != 0 || self.has_norm { StepFlags::HAS_SUMS } else { 0 };
        StepFlags(clips | scales | has_sums)
    }

    /// Which implementation [`step`](Self::step) takes.
    #[must_use]
    pub fn implementation(&self) -> Implementation {
        let pieces =
            self.parameters.iter().map(|one| (one.len() as u64).div_ceil(u64::from(PIECE))).sum::<u64>();
        if pieces == 0 {
            return Implementation::Empty;
        }
        if self.device.kind() == DeviceKind::Cpu {
            return Implementation::Cpu;
        }
        let of = |name, blocks| Implementation::kernel(&self.device, name, blocks);
        let pieces = u32::try_from(pieces).unwrap_or(u32::MAX);
        let mut all = Implementation::Empty;
        if self.flags().has(StepFlags::HAS_SUMS) {
            all = of(adamw_square_sums::DECLARATION.name, pieces);
        }
        all = all.then(of(adamw_prepare::DECLARATION.name, 1));
        all.then(of(adamw_update::DECLARATION.name, pieces))
    }

    fn step_on_device(&mut self, stream: &Stream, gradients: &[Option<AnyTensor<'_>>]) -> Result<()> {
        if self.tables.is_none() {
            self.tables = Some(Tables::new(&self.device, &self.parameters, &self.groups)?);
        }
        let flags = self.flags();
        let scale = self.loss_scale.unwrap_or_default();
        let Some(tables) = &mut self.tables else { return Ok(()) };
        tables.set_options(stream, &self.groups)?;
        tables.set_gradients(stream, gradients)?;
        let Some(pieces) = tables.piece_count() else { return Ok(()) };
        let params = AdamWParams {
            history: self.history.arg_mut(),
            status: GlobalMut::new(self.status.arg_mut().address()),
            seed: self.seed,
            tensor_count: self.parameters.len() as u32,
            flags,
            max_norm: self.max_norm.unwrap_or(f32::INFINITY),
            growth: scale.growth,
            backoff: scale.backoff,
            growth_interval: scale.growth_interval,
            ..tables.params()
        };
        let device = &self.device;
        let (prepare, update) = (device.kernel::<adamw_prepare>()?, device.kernel::<adamw_update>()?);
        let squares = match flags.has(StepFlags::HAS_SUMS) {
            true => Some(device.kernel::<adamw_square_sums>()?),
            false => None,
        };
        let mut operands: Vec<&dyn Operand> = vec![&self.history, &self.status];
        operands.extend(tables.operands());
        operands.extend(self.parameters.iter().flat_map(Parameter::operands));
        operands.extend(gradients.iter().flatten().map(AnyTensor::operand));
        stream.with_operands(&operands, || {
            // SAFETY: the tables say where the operands are, whose sizes and alignment they were made from; weights, moments and copies share no memory with each
            // other or with gradients. `with_operands` orders the work with their other uses.
            unsafe {
                if let Some(squares) = squares {
                    squares.launch(stream, [pieces, 1, 1], (params,))?;
                }
                prepare.launch(stream, [1, 1, 1], (params,))?;
                update.launch(stream, [pieces, 1, 1], (params,))
            }
        })
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

fn expect_contiguous<T: Element>(
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
