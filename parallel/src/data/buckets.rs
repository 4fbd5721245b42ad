//! Gradients of replicas, averaged in buckets while the backward pass goes on.

use half::bf16;
use warpsmith::{Device, Stream, StreamPriority, Tensor, ops};

use super::layout::{Packed, as_rows};
use crate::communicator::{Communicator, Reduction};
use crate::error::{Result, argument};

const OPERATION: &str = "Gradients";

/// The type in which gradients travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wire {
    /// f32, which loses nothing.
    #[default]
    F32,
    /// bf16: half the bytes. A gradient is rounded before it is sent, and the mean again.
    Bf16,
}

/// How gradients are averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradientOptions {
    /// Bytes of gradients in f32 after which a bucket is full, at least 1. 64 MiB unless it is set.
    pub bucket_bytes: usize,
    /// The type in which they travel.
    pub wire: Wire,
    /// The priority of the stream that averages run on. High unless it is set: the sooner an average begins, the sooner the
    /// optimiser can.
    pub priority: StreamPriority,
}

impl Default for GradientOptions {
    fn default() -> Self {
        Self { bucket_bytes: 64 << 20, wire: Wire::F32, priority: StreamPriority::High }
    }
}

/// Gradients that are averaged together.
#[derive(Debug)]
struct Bucket {
    packed: Packed,
    gradients: Tensor<f32>,
    wire: Option<Tensor<bf16>>,
    /// How many of its tensors are not ready.
    waiting: usize,
}

/// The gradients of weights that each rank has, averaged over the ranks.
///
/// The gradients are in buckets, in f32; backward passes write them where [`tensor`](Self::tensor) says, the last layers first.
/// When all of a bucket are [`ready`](Self::ready) its average is under way on a stream of its own, while the backward pass
/// goes on. After [`finish`](Self::finish) all ranks have the same bits.
///
/// ```
/// use warpsmith::{Device, Tensor};
/// use warpsmith_parallel::data::{GradientOptions, Gradients};
/// use warpsmith_parallel::launch;
///
/// let means = launch::threads(2, |communicator| {
///     let options = GradientOptions::default();
///     let mut gradients = Gradients::new(&communicator, &Device::cpu(), &[&[2]], options)?;
///     let own = [communicator.rank() as f32, 4.0];
///     gradients.tensor(0)?.write_slice(&own)?;
///     gradients.ready(0)?;
///     gradients.finish()?;
///     Ok(gradients.tensor(0)?.to_vec()?)
/// })?;
/// assert_eq!(means, [[0.5, 4.0], [0.5, 4.0]]);
/// # Ok::<(), warpsmith_parallel::Error>(())
/// ```
#[derive(Debug)]
pub struct Gradients {
    communicator: Communicator,
    stream: Stream,
    buckets: Vec<Bucket>,
    /// The bucket of each tensor, and its place there.
    places: Vec<[usize; 2]>,
    is_ready: Vec<bool>,
    /// The first bucket whose average has not started.
    next: usize,
}

impl Gradients {
    /// Gradients of these shapes, in the order of the weights. All ranks give the same shapes.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if buckets have no bytes; otherwise as for [`Tensor::zeros`] and
    /// [`Device::new_stream`].
    pub fn new(
        communicator: &Communicator,
        device: &Device,
        shapes: &[&[usize]],
        options: GradientOptions,
    ) -> Result<Self> {
        if options.bucket_bytes == 0 {
            return Err(argument(OPERATION, "bucket_bytes", "at least 1", 0));
        }
        let (mut packed, mut places) = (vec![Packed::default()], vec![[0; 2]; shapes.len()]);
        for (index, shape) in shapes.iter().enumerate().rev() {
            if packed[packed.len() - 1].len().saturating_mul(size_of::<f32>()) >= options.bucket_bytes {
                packed.push(Packed::default());
            }
            let bucket = packed.len() - 1;
            places[index] = [bucket, packed[bucket].count()];
            packed[bucket].add(shape)?;
        }
        let buckets = packed.into_iter().map(|packed| Bucket::new(device, packed, options.wire));
        let stream = device.new_stream_with_priority(options.priority)?;
        Ok(Self {
            communicator: communicator.on(&stream),
            stream,
            buckets: buckets.collect::<Result<_>>()?,
            is_ready: vec![false; places.len()],
            places,
            next: 0,
        })
    }

    /// The stream that averages run on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// `stream` for the next part of a backward pass: while an average is under way, products on it leave multiprocessors to
    /// that, as [`Communicator::beside`] says.
    ///
    /// ```no_run
    /// # fn backward(gradients: &warpsmith_parallel::data::Gradients, device: &warpsmith::Device) {
    /// let stream = gradients.beside(&device.default_stream());
    /// stream.as_default(|| { /* the backward pass of a layer */ });
    /// # }
    /// ```
    #[must_use]
    pub fn beside(&self, stream: &Stream) -> Stream {
        match self.next {
            0 => stream.clone(),
            _ => self.communicator.beside(stream),
        }
    }

    /// How many gradients there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// How many buckets there are.
    #[must_use]
    pub fn bucket_count(&self) -> usize {
        self.buckets.len()
    }

    /// The gradient of weights number `index`: a view of its bucket, without gaps.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if there are no such weights.
    pub fn tensor(&self, index: usize) -> Result<Tensor<f32>> {
        let [bucket, place] = self.place(index)?;
        let Bucket { packed, gradients, .. } = &self.buckets[bucket];
        packed.view(gradients, place)
    }

    /// All gradients, in the order of the weights.
    ///
    /// # Errors
    ///
    /// None that a program can cause.
    pub fn tensors(&self) -> Result<Vec<Tensor<f32>>> {
        (0..self.count()).map(|index| self.tensor(index)).collect()
    }

    fn place(&self, index: usize) -> Result<[usize; 2]> {
        let found = self.places.get(index).copied();
        found.ok_or_else(|| argument(OPERATION, "index", format!("below {}", self.places.len()), index))
    }

    /// Says that the work that writes gradient number `index` has been enqueued. The last one of a bucket starts its average, once
    /// the buckets before have started: so all ranks start them in the same order, whatever the order of their backward passes.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if there is no such gradient, or it has been ready since the last
    /// [`finish`](Self::finish); otherwise as [`Communicator::all_reduce`].
    pub fn ready(&mut self, index: usize) -> Result<()> {
        let [bucket, _] = self.place(index)?;
        if std::mem::replace(&mut self.is_ready[index], true) {
            return Err(argument(OPERATION, "index", "a gradient that is not ready", index));
        }
        let bucket = &mut self.buckets[bucket];
        bucket.waiting -= 1;
        while let Some(bucket) = self.buckets.get_mut(self.next).filter(|bucket| bucket.waiting == 0) {
            self.next += 1;
            bucket.average(&self.communicator, &self.stream)?;
        }
        Ok(())
    }

    /// Ends a backward pass: later uses of the gradients wait for their averages. The next pass begins.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if gradients are not ready; the other ranks wait for them.
    pub fn finish(&mut self) -> Result<()> {
        if let Some(index) = self.is_ready.iter().position(|is_ready| !is_ready) {
            let actual = format!("not for number {index}");
            return Err(argument(OPERATION, "ready", "called for each gradient", actual));
        }
        self.is_ready.fill(false);
        self.next = 0;
        for bucket in &mut self.buckets {
            bucket.waiting = bucket.packed.count();
        }
        Ok(())
    }
}

impl Bucket {
    fn new(device: &Device, packed: Packed, wire: Wire) -> Result<Self> {
        // A home stream of its own: a backward pass that writes other buckets does not wait for this one's average.
        let home = device.new_stream()?;
        let gradients = Tensor::zeros_on(&home, [packed.len()])?;
        let wire = match wire {
            Wire::F32 => None,
            Wire::Bf16 => Some(Tensor::zeros_on(&home, [packed.len()])?),
        };
        let waiting = packed.count();
        Ok(Self { packed, gradients, wire, waiting })
    }

    fn average(&mut self, communicator: &Communicator, stream: &Stream) -> Result<()> {
        let Some(wire) = &mut self.wire else {
            return communicator.all_reduce(&mut self.gradients, Reduction::Mean);
        };
        let mut gradients = as_rows(&self.gradients)?;
        ops::cast::<bf16>(&gradients).on(stream).run_into(&mut as_rows(wire)?)?;
        communicator.all_reduce(wire, Reduction::Mean)?;
        let wire = as_rows(wire)?;
        Ok(ops::cast::<f32>(&wire).on(stream).run_into(&mut gradients)?)
    }
}
