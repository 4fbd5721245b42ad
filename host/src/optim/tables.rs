//! The tables of a step on the device, which stay from step to step.

use warpsmith_dsl::adamw::{
    AdamWParams, GRADIENT_WORDS, GROUP_WORDS, KIND_BF16, KIND_F16, KIND_F32, KIND_ROWS, PIECE, PIECE_WORDS,
    SCALAR_WORDS, StepFlags, TENSOR_WORDS,
};
use warpsmith_dsl::launch::GlobalMut;

use super::adamw::{Parameter, STEP};
use super::operands::{OfTensor, place_of};
use super::options::AdamWOptions;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::memory::{PinnedBuffer, Transfer};
use crate::ops::rows::{AnyTensor, with_tensor};
use crate::stream::{Operand, Stream};
use crate::tensor::Tensor;

/// A table that the host changes between steps, without waiting for those before.
#[derive(Debug)]
struct Table {
    words: Vec<u32>,
    on_device: Tensor<u32>,
    /// Copies that may be under way.
    transfers: Vec<Transfer<u32>>,
}

impl Table {
    fn new(device: &Device, words: Vec<u32>) -> Result<Self> {
        let on_device = Tensor::from_slice(device, &words, [words.len()])?;
        Ok(Self { words, on_device, transfers: Vec::new() })
    }

    /// Makes the table have these words for what `stream` does next.
    fn set(&mut self, stream: &Stream, words: Vec<u32>) -> Result<()> {
        let device = self.on_device.device();
        if matches!(device.kind(), DeviceKind::Cuda(_)) && stream.is_capturing() {
            let differing = words.iter().zip(&self.words).filter(|(new, old)| new != old).count()
                + words.len().abs_diff(self.words.len());
            return Err(Error::Argument {
                operation: STEP,
                argument: "a table of options and gradients in a capture",
                expected: "that of the step before, which the graph reads".into(),
                actual: format!("another, which differs in {differing} of {} words", words.len()),
            });
        }
        let mut done = None;
        for (place, transfer) in self.transfers.iter().enumerate() {
            if transfer.is_done()? {
                done = Some(place);
                break;
            }
        }
        let buffer = match done {
            Some(place) => {
                let mut buffer = self.transfers.swap_remove(place).wait()?;
                buffer.copy_from_slice(&words);
                buffer
            }
            None => PinnedBuffer::from_slice(device, &words)?,
        };
        self.transfers.push(self.on_device.copy_from_pinned(buffer, stream)?);
        self.words = words;
        Ok(())
    }
}

/// The tables.
#[derive(Debug)]
pub(super) struct Tables {
    /// `None` of the CPU, which needs no tables.
    on_device: Option<OnDevice>,
}

#[derive(Debug)]
struct OnDevice {
    /// The pieces of whole tensors, for each set of tensors that are moved by rows so far.
    pieces: Vec<Pieces>,
    /// Which of them the step has.
    now: usize,
    tensors: Tensor<u32>,
    gradients: Table,
    groups: Table,
    scalars: Tensor<u32>,
    /// The sums of pieces; before it smaller ones, which captured graphs may still write.
    sums: Vec<Tensor<f32>>,
    /// Where weights, moments and copies are, sorted: from the first byte to the last one's end, and what they are.
    places: Vec<Place>,
}

/// The pieces of whole tensors.
#[derive(Debug)]
struct Pieces {
    /// Which tensors are moved by rows and have none.
    by_rows: Vec<bool>,
    on_device: Tensor<u32>,
    count: u32,
}

impl Pieces {
    fn new(device: &Device, parameters: &[Parameter], by_rows: &[bool]) -> Result<Self> {
        let mut words = Vec::new();
        for (number, (parameter, by_rows)) in parameters.iter().zip(by_rows).enumerate() {
            let pieces = if *by_rows { 0 } else { parameter.pieces() };
            words.extend((0..pieces).flat_map(|piece| [number as u32, piece as u32]));
        }
        let count = expect_pieces("weights", words.len() / PIECE_WORDS)?;
        let on_device = Tensor::from_slice(device, &words, [words.len()])?;
        Ok(Self { by_rows: by_rows.to_vec(), on_device, count })
    }
}

type Place = ([u64; 2], &'static str);

fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// The number of a type in the kernels' tables.
pub(super) fn kind_of(tensor: AnyTensor<'_>) -> u32 {
    match tensor {
        AnyTensor::F16(_) => KIND_F16,
        AnyTensor::Bf16(_) => KIND_BF16,
        AnyTensor::F32(_) => KIND_F32,
    }
}

/// Whether elements of this size are at multiples of four of them.
pub(super) fn is_aligned(address: u64, bytes: u64) -> bool {
    address.is_multiple_of(4 * bytes)
}

impl Tables {
    pub(super) fn none() -> Self {
        Self { on_device: None }
    }

    pub(super) fn new(device: &Device, parameters: &[Parameter], groups: &[AdamWOptions]) -> Result<Self> {
        let (mut tensors, mut places) = (Vec::new(), Vec::new());
        for parameter in parameters {
            let weights = parameter.weights.any();
            let length = parameter.len() as u64;
            let own = with_tensor!(weights, tensor => tensor.device_address());
            let master = parameter.master.as_ref().map(Tensor::device_address);
            let (moving, kind) = master.map_or((own, kind_of(weights)), |master| (master, KIND_F32));
            let rounded = if master.is_some() { own } else { 0 };
            let moments = parameter.moments.each_ref().map(Tensor::device_address);
            let bytes = if kind == KIND_F32 { 4 } else { 2 };
            let all_aligned = is_aligned(moving, bytes)
                && is_aligned(rounded, 2)
                && moments.iter().all(|&moment| is_aligned(moment, 4));
            tensors.extend([moving, moments[0], moments[1], rounded, length].into_iter().flat_map(halves));
            let (group, aligned) = (parameter.group as u32, u32::from(all_aligned));
            tensors.extend([kind, kind_of(weights), group, aligned, 0, 0]);
            places.push((with_tensor!(weights, tensor => place_of(tensor)), "weights"));
            places.extend(parameter.moments.iter().map(|moment| (place_of(moment), "moments")));
            places.extend(parameter.master.iter().map(|master| (place_of(master), "the copy of weights")));
        }
        places.retain(|([first, last], _)| last > first);
        places.sort_unstable();
        debug_assert_eq!(tensors.len(), parameters.len() * TENSOR_WORDS);
        let on_device = OnDevice {
            pieces: Vec::new(),
            now: 0,
            tensors: Tensor::from_slice(device, &tensors, [tensors.len()])?,
            gradients: Table::new(device, vec![0; parameters.len() * GRADIENT_WORDS])?,
            groups: Table::new(device, words_of(groups))?,
            scalars: Tensor::uninit(device, [parameters.len() * SCALAR_WORDS])?,
            sums: Vec::new(),
            places,
        };
        Ok(Self { on_device: Some(on_device) })
    }

    /// Takes which tensors are moved by rows, and makes room for the sums of so many pieces of their gradients, behind those of whole tensors: how many pieces whole
    /// tensors have, and how many there are in all.
    pub(super) fn set_pieces(
        &mut self,
        stream: &Stream,
        parameters: &[Parameter],
        by_rows: &[bool],
        of_rows: usize,
    ) -> Result<[u32; 2]> {
        let Some(tables) = &mut self.on_device else { return Ok([0; 2]) };
        let known = tables.pieces.iter().position(|pieces| pieces.by_rows == by_rows);
        let room = tables.sums.last().map_or(0, Tensor::len);
        tables.now = match known {
            Some(known) => known,
            None => {
                expect_no_capture(stream, "other gradients of rows than in a step before")?;
                tables.pieces.push(Pieces::new(stream.device(), parameters, by_rows)?);
                tables.pieces.len() - 1
            }
        };
        let whole = tables.pieces[tables.now].count;
        let all = expect_pieces("gradients", whole as usize + of_rows)?;
        if tables.sums.is_empty() || room < all as usize {
            expect_no_capture(stream, "more rows than in a step before")?;
            // So few times that all of them together are as large as the last.
            tables.sums.push(Tensor::uninit_on(stream, [(all as usize).next_power_of_two()])?);
        }
        Ok([whole, all])
    }

    /// Takes the options of groups that have changed.
    pub(super) fn set_options(&mut self, stream: &Stream, groups: &[AdamWOptions]) -> Result<()> {
        let Some(tables) = &mut self.on_device else { return Ok(()) };
        let words = words_of(groups);
        if words == tables.groups.words { Ok(()) } else { tables.groups.set(stream, words) }
    }

    /// Takes the places of gradients, if they have changed.
    pub(super) fn set_gradients(
        &mut self,
        stream: &Stream,
        gradients: &[Option<OfTensor<'_>>],
    ) -> Result<()> {
        let Some(tables) = &mut self.on_device else { return Ok(()) };
        let mut words = Vec::with_capacity(tables.gradients.words.len());
        for gradient in gradients {
            let Some(OfTensor { elements: gradient, rows }) = *gradient else {
                words.extend([0; GRADIENT_WORDS]);
                continue;
            };
            // What is not 0 says that there is one: of rows kernels are told the address itself, and of no elements there is none.
            let there = u64::from(PIECE);
            let (address, bytes) =
                with_tensor!(gradient, tensor => (tensor.device_address(), tensor.dtype().size() as u64));
            let (address, kind) = match rows {
                Some(_) => (there, KIND_ROWS),
                None => (if address == 0 { there } else { address }, kind_of(gradient)),
            };
            let [low, high] = halves(address);
            words.extend([low, high, kind, u32::from(is_aligned(address, bytes))]);
        }
        let is_new = words != tables.gradients.words;
        for OfTensor { elements, rows } in gradients.iter().flatten() {
            if is_new || rows.is_some() {
                tables.check_apart("gradient", with_tensor!(*elements, tensor => place_of(tensor)))?;
            }
            if let Some([ids, count]) = rows {
                tables.check_apart("ids", place_of(ids))?;
                tables.check_apart("count", place_of(count))?;
            }
        }
        if !is_new {
            return Ok(());
        }
        tables.gradients.set(stream, words)
    }

    /// The arguments that say where the tables are; the others are not set.
    pub(super) fn params(&mut self) -> AdamWParams {
        let none = GlobalMut::new(0);
        let mut params = AdamWParams {
            pieces: warpsmith_dsl::launch::Global::new(0),
            tensors: warpsmith_dsl::launch::Global::new(0),
            gradients: warpsmith_dsl::launch::Global::new(0),
            groups: warpsmith_dsl::launch::Global::new(0),
            history: none,
            scalars: none,
            status: none,
            sums: GlobalMut::new(0),
            seed: 0,
            tensor_count: 0,
            piece_count: 0,
            flags: StepFlags(0),
            max_norm: 0.0,
            growth: 0.0,
            backoff: 0.0,
            growth_interval: 0,
            reserved: 0,
        };
        if let Some(tables) = &mut self.on_device {
            params.pieces = tables.pieces[tables.now].on_device.arg();
            params.tensors = tables.tensors.arg();
            params.gradients = tables.gradients.on_device.arg();
            params.groups = tables.groups.on_device.arg();
            params.scalars = tables.scalars.arg_mut();
            if let Some(sums) = tables.sums.last_mut() {
                params.sums = sums.arg_mut();
            }
        }
        params
    }

    pub(super) fn operands(&self) -> impl Iterator<Item = &dyn Operand> {
        self.on_device.iter().flat_map(|tables| {
            let OnDevice { pieces, now, tensors, gradients, groups, scalars, sums, .. } = tables;
            let pieces = &pieces[*now].on_device;
            let operands: [&dyn Operand; 5] =
                [pieces, tensors, &gradients.on_device, &groups.on_device, scalars];
            operands.into_iter().chain(sums.last().map(|sums| sums as &dyn Operand))
        })
    }
}

impl OnDevice {
    /// The error for an operand that shares memory with what a step writes.
    fn check_apart(&self, operand: &'static str, [start, end]: [u64; 2]) -> Result<()> {
        // The last of those that begin before the operand ends: those before it end before it begins.
        let before = self.places.partition_point(|([first, _], _)| *first < end);
        match self.places[..before].last() {
            Some(([_, last], other)) if start < end && *last > start => {
                Err(Error::Overlap { operation: STEP, operand, other })
            }
            _ => Ok(()),
        }
    }
}

/// The error if a GPU's stream is being captured.
fn expect_no_capture(stream: &Stream, actual: &str) -> Result<()> {
    if !(matches!(stream.device().kind(), DeviceKind::Cuda(_)) && stream.is_capturing()) {
        return Ok(());
    }
    Err(Error::Argument {
        operation: STEP,
        argument: "a table of options and gradients in a capture",
        expected: "that of the step before, which the graph reads".into(),
        actual: actual.into(),
    })
}

/// So many pieces, or the error if there are too many.
fn expect_pieces(operand: &'static str, pieces: usize) -> Result<u32> {
    u32::try_from(pieces).ok().filter(|&count| i32::try_from(count).is_ok()).ok_or_else(|| Error::SizeLimit {
        operation: STEP,
        operand,
        quantity: "number of elements",
        limit: format!("at most {} pieces of {PIECE}", i32::MAX),
        actual: format!("{pieces} pieces"),
    })
}

/// The options of groups as the kernels read them.
fn words_of(groups: &[AdamWOptions]) -> Vec<u32> {
    let numbers = groups.iter().flat_map(|options| {
        let [first, second] = options.betas;
        let corrects = if options.bias_correction { 1.0 } else { 0.0 };
        let AdamWOptions { learning_rate, epsilon, weight_decay, .. } = *options;
        [learning_rate, first, second, epsilon, weight_decay, corrects]
    });
    let words: Vec<u32> = numbers.flat_map(|number: f64| halves(number.to_bits())).collect();
    debug_assert_eq!(words.len(), groups.len() * GROUP_WORDS);
    words
}
