//! Doing what a schedule says, with the stages before and after on other ranks.

use std::sync::Arc;

use parking_lot::Mutex;
use warpsmith::{Device, Element, Stream, StreamPriority, Tensor};

use super::schedule::{Action, Place, Schedule};
use crate::communicator::{Communicator, NcclOptions};
use crate::error::{Result, argument};

/// A stage's layers.
///
/// The first chunk of the first stage has no input from another stage, and the last chunk of the last one no gradient: they
/// have the examples and the loss themselves.
pub trait Stage<T: Element> {
    /// The shape of what a chunk gets from the one before, and gives it the gradient of.
    fn input_shape(&self, place: Place) -> Vec<usize>;

    /// The shape of what a chunk gives to the one after, and gets the gradient of.
    fn output_shape(&self, place: Place) -> Vec<usize>;

    /// A forward pass, of which the stage keeps what it needs. Returns the output; that of the last chunk is dropped.
    ///
    /// # Errors
    ///
    /// Whatever the stage's work may fail with.
    fn forward(&mut self, place: Place, x: Option<Tensor<T>>) -> Result<Tensor<T>>;

    /// The gradient of the input, given that of the output. The first chunk's is dropped.
    ///
    /// # Errors
    ///
    /// Whatever the stage's work may fail with.
    fn backward_input(&mut self, place: Place, dy: Option<Tensor<T>>) -> Result<Tensor<T>>;

    /// Adds to the gradients of the weights, after which the stage need keep nothing of the place.
    ///
    /// # Errors
    ///
    /// Whatever the stage's work may fail with.
    fn backward_weight(&mut self, place: Place) -> Result<()>;
}

/// A communicator and the streams that its work and its tensors have.
#[derive(Clone, Debug)]
struct Link {
    communicator: Communicator,
    homes: Arc<Homes>,
}

/// The home streams of tensors on their way, in turn. Work on a tensor is ordered with its home stream alone. So passes do not
/// wait for transfers of other tensors, nor transfers for passes over these, until a home comes round again.
#[derive(Debug)]
struct Homes {
    device: Device,
    most: usize,
    /// Those that there are: a link that nothing goes over has none. And how many tensors have had one.
    streams: Mutex<(Vec<Stream>, usize)>,
}

impl Homes {
    fn next(&self) -> Result<Stream> {
        let (streams, count) = &mut *self.streams.lock();
        if streams.len() < self.most {
            streams.push(self.device.new_stream()?);
        }
        *count += 1;
        Ok(streams[(*count - 1) % streams.len()].clone())
    }
}

/// Home streams of a link at most: a GPU has few queues for streams.
const MOST_HOMES: usize = 8;

/// How many links there are in one direction: those from even and from odd stages, and the one from the last to the first.
const LINKS: usize = 3;

/// What connects a stage with those before and after.
///
/// Activations and gradients do not wait for each other, nor what a stage sends for what it receives: each has a communicator
/// and a stream.
#[derive(Clone, Debug)]
pub struct Links {
    activations: [Link; LINKS],
    gradients: [Link; LINKS],
}

impl Links {
    /// Links over a communicator in host memory, where sending never waits.
    ///
    /// # Errors
    ///
    /// As for [`Device::new_stream`].
    pub fn over_host(communicator: &Communicator, device: &Device) -> Result<Self> {
        Self::of(device, || Ok(communicator.clone()))
    }

    /// Links of NCCL communicators, six for each rank; see [`Communicator::nccl`].
    ///
    /// # Errors
    ///
    /// As [`Communicator::nccl`].
    pub fn nccl(host: &Communicator, device: &Device, options: NcclOptions) -> Result<Self> {
        Self::of(device, || Communicator::nccl(host, device, options))
    }

    fn of(device: &Device, mut communicator: impl FnMut() -> Result<Communicator>) -> Result<Self> {
        let mut link = || -> Result<Link> {
            // What other stages wait for comes before this stage's own work.
            let stream = device.new_stream_with_priority(StreamPriority::High)?;
            let communicator = communicator()?.on(&stream);
            // A stage keeps fewer microbatches than twice as many as there are stages. With as many homes, passes over the last
            // tensor that had one are over when it comes round, and its transfer too.
            let most = (2 * communicator.size()).clamp(2, MOST_HOMES);
            let homes = Homes { device: device.clone(), most, streams: Mutex::default() };
            Ok(Link { communicator, homes: homes.into() })
        };
        let mut three = || -> Result<[Link; LINKS]> { Ok([link()?, link()?, link()?]) };
        Ok(Self { activations: three()?, gradients: three()? })
    }

    /// The calling thread's default stream, whose products leave multiprocessors to transfers.
    fn beside_transfers(&self) -> Stream {
        let link = &self.activations[0];
        link.communicator.beside(&link.homes.device.default_stream())
    }

    /// The number of this rank's stage, and of all stages.
    fn stage(&self) -> [usize; 2] {
        let communicator = &self.activations[0].communicator;
        [communicator.rank(), communicator.size()]
    }
}

/// Which of the links goes from a stage to the next one in the ring, or to the one before.
fn link_from(stage: usize, is_last: bool) -> usize {
    if is_last { LINKS - 1 } else { stage % 2 }
}

impl Link {
    /// Sends a copy, so that later work on the tensor need not wait until the other stage takes it. The copy has a home of its
    /// own: it does not wait for the copies that are sent before.
    fn send<T: Element>(&self, tensor: &Tensor<T>, to: usize) -> Result<()> {
        let mut copy = Tensor::uninit_on(&self.homes.next()?, tensor.shape())?;
        copy.copy_from(tensor)?;
        self.communicator.send(&copy, to)
    }

    fn receive<T: Element>(&self, shape: Vec<usize>, from: usize) -> Result<Tensor<T>> {
        let mut tensor = Tensor::uninit_on(&self.homes.next()?, shape)?;
        self.communicator.recv(&mut tensor, from)?;
        Ok(tensor)
    }
}

/// A stage's neighbours in the ring of all stages.
struct Ring<'a> {
    links: &'a Links,
    stage: usize,
    stages: usize,
    chunks: usize,
}

impl Ring<'_> {
    fn is_first(&self, place: Place) -> bool {
        self.stage == 0 && place.chunk == 0
    }

    fn is_last(&self, place: Place) -> bool {
        self.stage + 1 == self.stages && place.chunk + 1 == self.chunks
    }

    fn before(&self) -> usize {
        (self.stage + self.stages - 1) % self.stages
    }

    fn after(&self) -> usize {
        (self.stage + 1) % self.stages
    }

    /// The link from a stage to the one after, for activations.
    fn down(&self, from: usize) -> &Link {
        &self.links.activations[link_from(from, from + 1 == self.stages)]
    }

    /// The link from a stage to the one before, for gradients.
    fn up(&self, from: usize) -> &Link {
        &self.links.gradients[link_from(from, from == 0)]
    }

    fn forward<T: Element>(&self, place: Place, stage: &mut impl Stage<T>) -> Result<()> {
        let x = match self.is_first(place) {
            true => None,
            false => Some(self.down(self.before()).receive(stage.input_shape(place), self.before())?),
        };
        let y = stage.forward(place, x)?;
        if self.is_last(place) {
            return Ok(());
        }
        expect_shape("output", &y, &stage.output_shape(place))?;
        self.down(self.stage).send(&y, self.after())
    }

    fn backward_input<T: Element>(&self, place: Place, stage: &mut impl Stage<T>) -> Result<()> {
        let dy = match self.is_last(place) {
            true => None,
            false => Some(self.up(self.after()).receive(stage.output_shape(place), self.after())?),
        };
        let dx = stage.backward_input(place, dy)?;
        if self.is_first(place) {
            return Ok(());
        }
        expect_shape("gradient", &dx, &stage.input_shape(place))?;
        self.up(self.stage).send(&dx, self.before())
    }
}

/// Does what the schedule says for this rank's stage, with microbatches 0 to `microbatches` − 1. The rank is the number of the
/// stage.
///
/// # Errors
///
/// [`Error::Argument`](crate::Error::Argument) if the schedule does not take these sizes, a stage of several chunks is alone,
/// or a result has not the shape that the stage has said; whatever the stage, [`Communicator::send`] and [`Communicator::recv`]
/// may return.
pub fn run<T: Element>(
    schedule: Schedule,
    microbatches: usize,
    links: &Links,
    stage: &mut impl Stage<T>,
) -> Result<()> {
    let [rank, stages] = links.stage();
    if stages == 1 && schedule.chunks() > 1 {
        let expected = "one chunk for a stage that is alone";
        return Err(argument("pipeline::run", "schedule", expected, schedule.chunks()));
    }
    let ring = Ring { links, stage: rank, stages, chunks: schedule.chunks() };
    let actions = schedule.actions([rank, stages], microbatches)?;
    // Transfers are under way beside all passes.
    links.beside_transfers().as_default(|| {
        for action in actions {
            match action {
                Action::Forward(place) => ring.forward(place, stage)?,
                Action::Backward(place) => {
                    ring.backward_input(place, stage)?;
                    stage.backward_weight(place)?;
                }
                Action::BackwardInput(place) => ring.backward_input(place, stage)?,
                Action::BackwardWeight(place) => stage.backward_weight(place)?,
            }
        }
        Ok(())
    })
}

fn expect_shape<T: Element>(operand: &'static str, tensor: &Tensor<T>, shape: &[usize]) -> Result<()> {
    if tensor.shape() == shape {
        return Ok(());
    }
    let actual = format!("of shape {:?}", tensor.shape());
    Err(argument("pipeline::run", operand, format!("shape {shape:?}"), actual))
}
