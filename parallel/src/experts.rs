//! Tables of experts that are split over the ranks.
//!
//! Tokens of all ranks go to all ranks, each of which evaluates its own experts, and the outputs are summed where the tokens
//! came from. With many experts a token nearly every token needs every rank, so that sending tokens to some of them would save
//! nothing.

use std::ops::Range;

use warpsmith::ops::peer::{ExpertInput, ExpertLayout, ExpertTable, ExpertVectors, Routing};
use warpsmith::ops::{self, Activation};
use warpsmith::{Device, Event, Stream, StreamPriority, Tensor};

use crate::communicator::{Communicator, Reduction};
use crate::error::{Result, argument};
use crate::ranges::even_range;

const OPERATION: &str = "SplitExperts";
/// What numbers of experts are multiplied with: the whole number next to 2³² over the golden ratio, so that neighbours are
/// spread evenly.
const SPREAD: u64 = 2_654_435_769;
/// Experts that are packed at a time.
const AT_A_TIME: usize = 1024;

/// Which rank has which expert, as follows from a hash of its number. All ranks have as many experts, or one more or less.
///
/// ```
/// use warpsmith_parallel::experts::Placement;
///
/// let placement = Placement::new(10, 3);
/// let [rank, row] = placement.find(7).expect("there is such an expert");
/// assert_eq!(placement.experts_of(rank)[row], 7);
/// assert_eq!(placement.find(10), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    count: usize,
    size: usize,
    factor: u64,
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Placement {
    /// The placement of `count` experts on `size` ranks, at least one.
    #[must_use]
    pub fn new(count: usize, size: usize) -> Self {
        let modulus = count.max(1) as u64;
        // Without a common divisor each expert has a place of its own.
        let factor = (SPREAD..).find(|&factor| gcd(factor, modulus) == 1).unwrap_or(1) % modulus;
        Self { count, size: size.max(1), factor: factor.max(1) }
    }

    /// An expert's place among all.
    fn place(&self, expert: usize) -> usize {
        (u128::from(self.factor) * expert as u128 % self.count.max(1) as u128) as usize
    }

    /// The rank that has an expert, and its row there. `None` if there is no such expert.
    #[must_use]
    pub fn find(&self, expert: usize) -> Option<[usize; 2]> {
        if expert >= self.count {
            return None;
        }
        let place = self.place(expert);
        // The first ranks have one more.
        let (each, more) = (self.count / self.size, self.count % self.size);
        let rank = match place.checked_sub(more * (each + 1)) {
            None => place / (each + 1),
            Some(after) => more + after / each,
        };
        Some([rank, place - even_range(self.count, self.size, rank).start])
    }

    /// The experts of a rank, row by row.
    #[must_use]
    pub fn experts_of(&self, rank: usize) -> Vec<usize> {
        let range = even_range(self.count, self.size, rank);
        let mut experts = vec![0; range.len()];
        for expert in 0..self.count {
            let place = self.place(expert);
            if range.contains(&place) {
                experts[place - range.start] = expert;
            }
        }
        experts
    }
}

/// This rank's experts of a table that all ranks have together.
///
/// ```
/// use warpsmith::ops::Activation;
/// use warpsmith::ops::peer::{ExpertFormat, ExpertLayout, Routing};
/// use warpsmith::{Device, Tensor};
/// use warpsmith_parallel::experts::SplitExperts;
/// use warpsmith_parallel::launch;
///
/// // Expert i has u = [1] and v = [i].
/// let outputs = launch::threads(2, |communicator| {
///     let device = Device::cpu();
///     let layout = ExpertLayout::new(ExpertFormat::F32, 1, 1, 1, false)?;
///     let experts = SplitExperts::new(&communicator, &device, layout, 5, |ids| {
///         let v = ids.iter().map(|&id| id as f32).collect();
///         Ok([vec![1.0; ids.len()], vec![], v])
///     })?;
///     let experts = experts.activation(Activation::Relu);
///     let routing = Routing {
///         ids: Tensor::from_slice(&device, &[1u32, 4], [1, 1, 2])?,
///         gates: Tensor::from_slice(&device, &[1.0f32, 0.5], [1, 1, 2])?,
///     };
///     let x = Tensor::from_slice(&device, &[10.0f32 + communicator.rank() as f32], [1, 1])?;
///     Ok(experts.forward(&x, &routing)?.to_vec()?)
/// })?;
/// assert_eq!(outputs, [[30.0], [33.0]]);
/// # Ok::<(), warpsmith_parallel::Error>(())
/// ```
#[derive(Debug)]
pub struct SplitExperts {
    communicator: Communicator,
    placement: Placement,
    layout: ExpertLayout,
    /// This rank's rows, and one of zeros for the experts of all others.
    table: ExpertTable,
    own_count: usize,
    activation: Activation,
    pieces: usize,
}

/// A piece of the tokens of all ranks.
struct Piece {
    /// Which of each rank's tokens.
    range: Range<usize>,
    routing: Routing,
}

impl SplitExperts {
    /// A table of `count` experts, of which each rank loads its own. `vectors` gives those of the experts whose numbers it
    /// gets, one after the other: u `[hidden, d]`, w likewise if units are gated, and v `[hidden, o]`. The activation is GELU
    /// unless another is asked for.
    ///
    /// # Errors
    ///
    /// As [`ExpertTable::zeros`], [`ExpertTable::write_rows`] and `vectors`.
    pub fn new(
        communicator: &Communicator,
        device: &Device,
        layout: ExpertLayout,
        count: usize,
        mut vectors: impl FnMut(&[usize]) -> Result<[Vec<f32>; 3]>,
    ) -> Result<Self> {
        let placement = Placement::new(count, communicator.size());
        let own = placement.experts_of(communicator.rank());
        let mut rows = ExpertTable::zeros(device, layout, own.len() + 1)?;
        for (index, experts) in own.chunks(AT_A_TIME).enumerate() {
            let [u, w, v] = vectors(experts)?;
            let mut bytes = vec![0; experts.len() * layout.row_bytes()];
            layout.pack_rows(ExpertVectors { u: &u, w: &w, v: &v }, &mut bytes)?;
            rows.write_rows(index * AT_A_TIME, &bytes)?;
        }
        // Below 2³², as the table's rows are.
        let mut slot_of = vec![own.len() as u32; count];
        own.iter().enumerate().for_each(|(row, &expert)| slot_of[expert] = row as u32);
        let table = ExpertTable::part(&rows, &slot_of)?;
        let (communicator, activation, own_count) = (communicator.clone(), Activation::GeluErf, own.len());
        Ok(Self { communicator, placement, layout, table, own_count, activation, pieces: 1 })
    }

    /// What the hidden units do to x·u.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Cuts each rank's tokens into so many pieces, at least one. While experts are evaluated for one, the next one is gathered
    /// and the outputs of the one before are added up. It is 1 unless it is set: more are worth it only where a call takes much
    /// less time than the experts of a piece. Outputs have the same bits. All ranks give the same number.
    #[must_use]
    pub fn pieces(self, pieces: usize) -> Self {
        Self { pieces, ..self }
    }

    /// Which rank has which expert.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// How many experts this rank has.
    #[must_use]
    pub fn own_count(&self) -> usize {
        self.own_count
    }

    /// The outputs `[T, O]` of this rank's tokens `[T, D]`, for the experts of all ranks that `routing` names, `[T, H, k]`. All
    /// ranks have as many tokens.
    ///
    /// Each rank's output of a token is rounded to the type of x before these are added. All of it is enqueued on the device, which
    /// leaves out the experts of other ranks; the host does not wait. Numbers of a token or gates that are not finite may make
    /// its output NaN.
    ///
    /// A number of no expert is an error on the CPU. A GPU and the emulator make the token's outputs NaN, as [`ops::expert_mlp`]
    /// does.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`](crate::Error::Argument) if shapes do not fit. Otherwise as [`ops::expert_mlp`],
    /// [`Communicator::all_gather`] and [`Communicator::reduce_scatter`]. Outputs are a new tensor, so that nothing of the
    /// caller's is written by pieces before the one that fails.
    pub fn forward<T: ExpertInput>(&self, x: &Tensor<T>, routing: &Routing) -> Result<Tensor<T>> {
        let (device, size) = (x.device(), self.communicator.size());
        let [tokens, heads, k] = self.expect_shapes(x, routing)?;
        let (own_ids, own_gates, own_x) =
            (routing.ids.contiguous()?, routing.gates.contiguous()?, x.contiguous()?);
        let stream = device.default_stream();
        let y = Tensor::uninit_on(&stream, [tokens, self.layout.o()])?;
        let pieces = self.pieces.clamp(1, tokens.max(1));
        let mut gathered = Vec::with_capacity(pieces);
        for piece in 0..pieces {
            let range = even_range(tokens, pieces, piece);
            let rows = range.len() * size;
            let routing = Routing {
                ids: Tensor::uninit_on(&stream, [rows, heads, k])?,
                gates: Tensor::uninit_on(&stream, [rows, heads, k])?,
            };
            gathered.push((Piece { range, routing }, Tensor::uninit_on(&stream, [rows, self.layout.d()])?));
        }
        // They are freed in the order of this stream, which waits for the branch at its end.
        let mut partials = Vec::with_capacity(pieces);
        stream.beside_with_priority(StreamPriority::High, &[&own_ids, &own_gates, &own_x], |branch| {
            let communicator = self.communicator.on(branch);
            let gather = |(piece, x): &mut (Piece, Tensor<T>)| -> Result<Event> {
                let Piece { range, routing: Routing { ids, gates } } = piece;
                let (own_ids, own_gates) =
                    (own_ids.slice(0, range.clone())?, own_gates.slice(0, range.clone())?);
                let own_x = own_x.slice(0, range.clone())?;
                let mut parts = [
                    communicator.gather(&own_ids, ids)?,
                    communicator.gather(&own_gates, gates)?,
                    communicator.gather(&own_x, x)?,
                ];
                communicator.all_gathers(device, &mut parts)?;
                Ok(branch.record()?)
            };
            let mut work = || -> Result<()> {
                let mut next = gathered.first_mut().map(gather).transpose()?;
                for piece in 0..pieces {
                    let Some(is_gathered) = next.take() else { break };
                    next = gathered.get_mut(piece + 1).map(gather).transpose()?;
                    stream.wait(&is_gathered)?;
                    let (Piece { range, routing }, x) = &gathered[piece];
                    // Kept before it is used: a call that fails may have enqueued work that reads it.
                    partials.push(self.evaluate(&stream, x, routing, tokens * size)?);
                    branch.wait(&stream.record()?)?;
                    let mut part = y.slice(0, range.clone())?;
                    communicator.reduce_scatter(&partials[piece], &mut part, Reduction::Sum)?;
                }
                Ok(())
            };
            Ok(work())
        })??;
        Ok(y)
    }

    /// This rank's part of the outputs of some tokens, with the bits that it has if `tokens` tokens are evaluated at once.
    fn evaluate<T: ExpertInput>(
        &self,
        stream: &Stream,
        x: &Tensor<T>,
        routing: &Routing,
        tokens: usize,
    ) -> Result<Tensor<T>> {
        let operation = ops::expert_mlp(x, routing, &self.table).activation(self.activation);
        Ok(operation.part_of(tokens).on(stream).run()?)
    }

    /// Tokens, heads, and experts of each.
    fn expect_shapes<T: ExpertInput>(&self, x: &Tensor<T>, routing: &Routing) -> Result<[usize; 3]> {
        let of = |shape: &[usize]| format!("of shape {shape:?}");
        let &[tokens, columns] = x.shape() else {
            return Err(argument(OPERATION, "x", "[tokens, columns]", of(x.shape())));
        };
        if columns != self.layout.d() {
            return Err(argument(OPERATION, "x", format!("{} columns", self.layout.d()), of(x.shape())));
        }
        let ids = routing.ids.shape();
        let &[of_ids, heads, k] = ids else {
            return Err(argument(OPERATION, "ids", "[tokens, heads, k]", of(ids)));
        };
        if of_ids != tokens {
            return Err(argument(OPERATION, "ids", format!("{tokens} tokens, as x has"), of(ids)));
        }
        if routing.gates.shape() != ids {
            let gates = routing.gates.shape();
            return Err(argument(OPERATION, "gates", format!("shape {ids:?}, as ids have"), of(gates)));
        }
        Ok([tokens, heads, k])
    }
}
