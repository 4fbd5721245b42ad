//! Weights, gradients and moments that are split over the ranks.
//!
//! Weights come in units, a layer or a few. A rank keeps a block of each unit's weights; the whole is gathered when a pass
//! needs it, a unit ahead, and dropped after. Gradients of a unit are averaged and split as soon as they are there.

use std::ops::Range;

use warpsmith::ops::elementwise::ElementwiseElement;
use warpsmith::optim::AdamW;
use warpsmith::{Device, Stream, StreamPriority, Tensor, ops};

use super::layout::{ALIGNMENT, Packed, as_rows};
use crate::checkpoint::{Checkpoint, Part, Saved};
use crate::communicator::{Communicator, Reduction};
use crate::error::{Result, argument};
use crate::ranges::block_len;

const OPERATION: &str = "Sharded";

/// In which order units are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The first one first.
    Forward,
    /// The last one first.
    Backward,
}

/// Weights that are used together.
#[derive(Debug)]
struct Unit<T: ElementwiseElement> {
    name: String,
    packed: Packed,
    /// What this rank has of the weights, and of the averaged gradient: as many on all ranks, of which the last ones use fewer.
    shard: Tensor<T>,
    gradient: Tensor<f32>,
    /// Which of all elements those are that it uses.
    own: Range<usize>,
    /// All weights, where a pass needs them.
    whole: Option<Tensor<T>>,
    /// The gradient of all weights, until it is averaged.
    whole_gradient: Option<Tensor<f32>>,
    /// The home of what is whole, so that passes over other units do not wait for it.
    home: Stream,
}

/// A model whose weights are split over the ranks, with their gradients and moments.
///
/// A pass takes the weights of each unit in turn from [`weights`](Self::weights), which gathers the next unit meanwhile, and
/// calls [`release`](Self::release). The backward pass writes gradients where [`gradients`](Self::gradients) says, then calls
/// [`reduce`](Self::reduce). The optimiser moves the shards.
///
/// ```
/// use warpsmith::optim::{AdamW, AdamWOptions};
/// use warpsmith::{Device, Tensor};
/// use warpsmith_parallel::data::{Pass, Sharded};
/// use warpsmith_parallel::launch;
///
/// let weights = launch::threads(2, |communicator| {
///     let device = Device::cpu();
///     let mut model = Sharded::new(&communicator, &device)?;
///     let weight = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], [3])?;
///     model.add("layer", &[&weight])?;
///     let mut optimizer = AdamW::new(&device, AdamWOptions::default())?;
///     model.add_to(&mut optimizer)?;
///
///     let gradient = model.gradients(0)?;
///     gradient[0].clone().write_slice(&[communicator.rank() as f32; 3])?;
///     model.reduce(0)?;
///     model.step(&mut optimizer)?;
///     Ok(model.weights(0, Pass::Forward)?[0].to_vec()?)
/// })?;
/// assert_eq!(weights[0], weights[1]);
/// # Ok::<(), warpsmith_parallel::Error>(())
/// ```
#[derive(Debug)]
pub struct Sharded<T: ElementwiseElement> {
    communicator: Communicator,
    device: Device,
    units: Vec<Unit<T>>,
}

impl<T: ElementwiseElement> Unit<T> {
    /// The part of the shard that is used.
    fn own_shard(&self) -> Result<Tensor<T>> {
        Ok(self.shard.slice(0, 0..self.own.len())?)
    }
}

impl<T: ElementwiseElement> Sharded<T> {
    /// A model without weights.
    ///
    /// # Errors
    ///
    /// As for [`Device::new_stream`].
    pub fn new(communicator: &Communicator, device: &Device) -> Result<Self> {
        let communicator = communicator.on(&device.new_stream_with_priority(StreamPriority::High)?);
        Ok(Self { communicator, device: device.clone(), units: Vec::new() })
    }

    /// Adds a unit of weights, of which this rank keeps a copy of its block. All ranks give the same weights.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if there is a unit of that name; [`Device`](crate::Error::Device) if a
    /// tensor is another device's.
    pub fn add(&mut self, name: impl Into<String>, weights: &[&Tensor<T>]) -> Result<()> {
        let name = name.into();
        if self.units.iter().any(|unit| unit.name == name) {
            return Err(argument(OPERATION, "name", "a name that no other unit has", name));
        }
        let mut packed = Packed::default();
        weights.iter().try_for_each(|tensor| packed.add(tensor.shape()))?;
        let home = self.device.new_stream()?;
        let (rank, block) = (self.communicator.rank(), self.block(&packed));
        let whole = Tensor::zeros_on(&home, [block * self.communicator.size()])?;
        for (index, tensor) in weights.iter().enumerate() {
            packed.view(&whole, index)?.copy_from(tensor)?;
        }
        let shard = whole.slice(0, rank * block..(rank + 1) * block)?.deep_clone()?;
        // As the whole: what is averaged into it holds up no pass over other units.
        let gradient = Tensor::zeros_on(&home, [block])?;
        let at = |rank: usize| (rank * block).min(packed.len());
        let own = at(rank)..at(rank + 1);
        self.units.push(Unit { name, packed, shard, gradient, own, whole: None, whole_gradient: None, home });
        Ok(())
    }

    /// Elements of a rank's block.
    fn block(&self, packed: &Packed) -> usize {
        block_len(packed.len(), self.communicator.size()).next_multiple_of(ALIGNMENT)
    }

    fn unit(&mut self, index: usize) -> Result<&mut Unit<T>> {
        let count = self.units.len();
        let found = self.units.get_mut(index);
        found.ok_or_else(|| argument(OPERATION, "unit", format!("below {count}"), index))
    }

    /// How many units there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.units.len()
    }

    /// Bytes of what this rank keeps between steps: shards and their gradients. An optimiser's moments have twice the
    /// gradients' bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let of = |unit: &Unit<T>| unit.shard.len() * size_of::<T>() + unit.gradient.len() * size_of::<f32>();
        self.units.iter().map(of).sum()
    }

    /// The whole weights of a unit, as views that are valid until [`release`](Self::release). The next unit of the pass is
    /// gathered on another stream meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if there is no such unit; otherwise as [`Communicator::all_gather`].
    pub fn weights(&mut self, unit: usize, pass: Pass) -> Result<Vec<Tensor<T>>> {
        self.unit(unit)?;
        let next = match pass {
            Pass::Forward => Some(unit + 1).filter(|&next| next < self.units.len()),
            Pass::Backward => unit.checked_sub(1),
        };
        self.gather(unit)?;
        if let Some(next) = next {
            self.gather(next)?;
        }
        let unit = self.unit(unit)?;
        unit.whole.as_ref().map_or_else(|| Ok(Vec::new()), |whole| unit.packed.views(whole))
    }

    /// `stream` for passes over units: while other units are gathered and gradients averaged, products on it leave
    /// multiprocessors to that, as [`Communicator::beside`] says.
    #[must_use]
    pub fn beside(&self, stream: &Stream) -> Stream {
        self.communicator.beside(stream)
    }

    fn gather(&mut self, unit: usize) -> Result<()> {
        let (size, communicator) = (self.communicator.size(), self.communicator.clone());
        let unit = self.unit(unit)?;
        if unit.whole.is_none() {
            let mut whole = Tensor::uninit_on(&unit.home, [unit.shard.len() * size])?;
            communicator.all_gather(&unit.shard, &mut whole)?;
            unit.whole = Some(whole);
        }
        Ok(())
    }

    /// Drops the whole weights of a unit. Their memory is free when the views of it are gone, too.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if there is no such unit.
    pub fn release(&mut self, unit: usize) -> Result<()> {
        self.unit(unit)?.whole = None;
        Ok(())
    }

    /// Where the gradients of a unit's whole weights are to be written: views of zeros.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if there is no such unit; otherwise as for [`Tensor::zeros_on`].
    pub fn gradients(&mut self, unit: usize) -> Result<Vec<Tensor<f32>>> {
        let size = self.communicator.size();
        let unit = self.unit(unit)?;
        let whole = match unit.whole_gradient.take() {
            Some(whole) => whole,
            None => Tensor::zeros_on(&unit.home, [unit.shard.len() * size])?,
        };
        let views = unit.packed.views(&whole);
        unit.whole_gradient = Some(whole);
        views
    }

    /// Averages a unit's gradients over the ranks, of which each keeps its block, and drops its whole weights and gradients.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if there is no such unit, or its gradients have not been asked for;
    /// otherwise as [`Communicator::reduce_scatter`].
    pub fn reduce(&mut self, unit: usize) -> Result<()> {
        let communicator = self.communicator.clone();
        let unit = self.unit(unit)?;
        let Some(whole) = unit.whole_gradient.take() else {
            let expected = "called after `gradients` of the unit";
            return Err(argument(
                OPERATION,
                "reduce",
                expected,
                format!("called before, of `{}`", unit.name),
            ));
        };
        unit.whole = None;
        communicator.reduce_scatter(&whole, &mut unit.gradient, Reduction::Mean)
    }

    /// Which part this rank has of the unit `name`, whose weights a checkpoint and an optimiser have as one vector. `None` if
    /// there is no such unit.
    #[must_use]
    pub fn part(&self, name: &str) -> Option<Part> {
        let unit = self.units.iter().find(|unit| unit.name == name)?;
        Some(Part { axis: 0, range: unit.own.clone(), total: unit.packed.len() })
    }

    /// Adds this rank's part of all weights to a checkpoint.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::add_part`].
    pub fn save_into(&self, checkpoint: &mut Checkpoint) -> Result<()> {
        for unit in &self.units {
            let part = Part { axis: 0, range: unit.own.clone(), total: unit.packed.len() };
            checkpoint.add_part(unit.name.clone(), &unit.own_shard()?, part)?;
        }
        Ok(())
    }

    /// Takes this rank's part of all weights from a checkpoint, which any number of ranks may have saved.
    ///
    /// # Errors
    ///
    /// As [`Saved::part`].
    pub fn load_from(&mut self, saved: &Saved) -> Result<()> {
        for unit in &mut self.units {
            let loaded = saved.part::<T>(&unit.name, 0, unit.own.clone(), &self.device)?;
            unit.own_shard()?.copy_from(&loaded)?;
            unit.whole = None;
        }
        Ok(())
    }

    /// Adds the shards to an optimiser, in the order of the units.
    ///
    /// # Errors
    ///
    /// As [`AdamW::add`].
    pub fn add_to(&self, optimizer: &mut AdamW) -> Result<()> {
        for unit in &self.units {
            optimizer.add(unit.name.clone(), T::any(&unit.own_shard()?))?;
        }
        Ok(())
    }

    /// Moves the shards by their averaged gradients.
    ///
    /// # Errors
    ///
    /// As [`AdamW::step`].
    pub fn step(&mut self, optimizer: &mut AdamW) -> Result<()> {
        // What was gathered would be the weights before.
        self.units.iter_mut().for_each(|unit| unit.whole = None);
        let gradients = self.units.iter().map(|unit| unit.gradient.slice(0, 0..unit.own.len()));
        let gradients = gradients.collect::<warpsmith::Result<Vec<_>>>()?;
        Ok(optimizer.step(&gradients.iter().map(Into::into).collect::<Vec<_>>())?)
    }

    /// Limits the norm of the averaged gradients of all ranks, and returns what it was. Waits for them.
    ///
    /// Each rank's sum of squares is in f32, and all ranks have the same factor. An optimiser's own limit would be of each
    /// rank's shards.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if the limit is not a finite number above 0; otherwise as
    /// [`Communicator::all_reduce`] and [`ops::linear`](warpsmith::ops::linear()).
    pub fn clip(&mut self, max_norm: f32) -> Result<f32> {
        if !(max_norm > 0.0 && max_norm.is_finite()) {
            return Err(argument(OPERATION, "max_norm", "a finite number above 0", max_norm));
        }
        let mut squares = Tensor::<f32>::zeros(&self.device, [1, 1])?;
        for unit in &self.units {
            let row = unit.gradient.reshape([1, unit.gradient.len()])?;
            ops::linear(&row, &row).beta(1.0).run_into(&mut squares)?;
        }
        let communicator = self.communicator.clone();
        communicator.all_reduce(&mut squares, Reduction::Sum)?;
        // What a failed communicator leaves is no norm.
        communicator.synchronize(&self.device)?;
        let norm = squares.to_vec()?[0].sqrt();
        if norm > max_norm {
            let factor =
                Tensor::from_slice(&self.device, &[max_norm / (norm + 1e-6); ALIGNMENT], [ALIGNMENT])?;
            for unit in &mut self.units {
                let scaled = ops::mul(&as_rows(&unit.gradient)?, &factor).run()?;
                unit.gradient.copy_from(&scaled.reshape([unit.gradient.len()])?)?;
            }
        }
        Ok(norm)
    }
}
