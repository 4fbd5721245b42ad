//! How the kernels of the family `adamw` are run: tensors of every type, rounding and alignment that end at every element of a
//! chunk and in every chunk of a thread. With scales and norms, and after gradients that are not finite. Results are those of
//! the CPU, bit for bit.

use half::{bf16, f16};
use warpsmith::cpu::AdamWScalars;
use warpsmith::cpu::adamw::{philox_4x32, round_randomly, square_sums, sum_of_pieces};
use warpsmith_dsl::adamw::{
    AdamWParams, KIND_BF16, KIND_F16, KIND_F32, PIECE, SCALAR_WORDS, STATUS_WORDS, StepFlags,
};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_emulator::{Config, LaunchConfig, LaunchError, Machine, Module, Report};

use super::{Problem, launch};

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let kernel = match name {
        "adamw_square_sums" => Kernel::Squares,
        "adamw_prepare" => Kernel::Prepare,
        "adamw_update" => Kernel::Update,
        _ => return None,
    };
    let mut all: Vec<Box<dyn Problem>> = Vec::new();
    match kernel {
        Kernel::Squares => {
            for (number, gradient) in [KIND_F32, KIND_F16, KIND_BF16].into_iter().enumerate() {
                // Ends at every element of a chunk, in every chunk of a thread.
                let ends = (0..4).flat_map(|c| (1..4).map(move |j| 1024 * c + 8 + j));
                for length in
                    [1, 2, 3, 4, 7, 130, 1024, 1028, 2051, 4092, 4095, 4097, 9001].into_iter().chain(ends)
                {
                    for offset in [0, 1] {
                        let flags = if (number + length) % 2 == 0 { 7 } else { 1 };
                        let one = One { gradient: Some(gradient), offset, ..One::new(length) };
                        all.push(Box::new(Case { flags, ..Case::new(kernel, vec![one]) }));
                    }
                }
            }
            let none = One { gradient: None, ..One::new(5000) };
            all.push(Box::new(Case::new(kernel, vec![One::new(9), none, One::new(4100)])));
            for bad in [f32::INFINITY, f32::NAN] {
                for length in [1, 1500, 4096] {
                    all.push(Box::new(Case { bad: Some(bad), ..Case::new(kernel, vec![One::new(length)]) }));
                }
            }
        }
        Kernel::Prepare => {
            for count in [1, 2, 31, 33, 1023, 1025, 2050] {
                for flags in [0, 1, 3, 5, 7] {
                    let tensors = (0..count)
                        .map(|number| One {
                            gradient: (number % 3 != 1).then_some(KIND_F32),
                            group: number % 2,
                            ..One::new(1)
                        })
                        .collect();
                    let pieces = [count, 8 * 1024 + 5, 7000][count % 3];
                    let grows = count % 2 == 0;
                    all.push(Box::new(Case { flags, pieces, grows, ..Case::new(kernel, tensors) }));
                }
            }
            // The last sum is in every load of a thread.
            for load in 0..8 {
                let pieces = 1024 * load + 7;
                all.push(Box::new(Case { pieces, flags: 3, ..Case::new(kernel, vec![One::new(1)]) }));
            }
            for bad in [f32::INFINITY, f32::NAN] {
                for flags in [1, 3, 7] {
                    let tensors = vec![One::new(1), One::new(2)];
                    all.push(Box::new(Case { bad: Some(bad), flags, ..Case::new(kernel, tensors) }));
                }
            }
            let largest =
                Case { scale: 2f32.powi(127), grows: true, flags: 5, ..Case::new(kernel, vec![One::new(1)]) };
            all.push(Box::new(largest));
        }
        Kernel::Update => {
            let lengths = [1usize, 2, 3, 5, 129, 512, 515, 516, 1030, 2044, 3585, 4096, 4099, 8200];
            for (weights, rounded) in [
                (KIND_F32, None),
                (KIND_F32, Some(KIND_F16)),
                (KIND_F32, Some(KIND_BF16)),
                (KIND_F16, None),
                (KIND_BF16, None),
            ] {
                for (number, gradient) in [KIND_F32, KIND_F16, KIND_BF16].into_iter().enumerate() {
                    for (at, length) in lengths.into_iter().enumerate() {
                        // Aligned pieces end with a chunk.
                        for (offset, length) in
                            [(0, length), (0, length.next_multiple_of(4)), ((at + number) % 4, length)]
                        {
                            let gradient = Some(gradient);
                            let one = One { weights, rounded, gradient, offset, ..One::new(length) };
                            all.push(Box::new(Case::new(kernel, vec![one])));
                        }
                    }
                }
            }
            let idle = One { gradient: None, ..One::new(600) };
            all.push(Box::new(Case::new(kernel, vec![One::new(5), idle, One::new(4100)])));
        }
    }
    Some(all)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    Squares,
    Prepare,
    Update,
}

/// A tensor.
#[derive(Clone, Copy, Debug)]
struct One {
    length: usize,
    /// The types of the weights that move, of their copy of 16 bits, and of the gradient.
    weights: u32,
    rounded: Option<u32>,
    gradient: Option<u32>,
    /// Elements of memory before each operand.
    offset: usize,
    group: usize,
}

impl One {
    fn new(length: usize) -> Self {
        Self { length, weights: KIND_F32, rounded: None, gradient: Some(KIND_F32), offset: 0, group: 0 }
    }

    fn pieces(&self) -> usize {
        self.length.div_ceil(PIECE as usize)
    }
}

#[derive(Clone, Debug)]
struct Case {
    kernel: Kernel,
    tensors: Vec<One>,
    flags: u32,
    /// Sums that are added up.
    pieces: usize,
    /// Whether the loss scale grows after this step.
    grows: bool,
    scale: f32,
    /// What the last gradient, or sum, is.
    bad: Option<f32>,
}

/// Options of both groups: learning rate, β₁, β₂, ε, decay, whether moments are corrected.
const GROUPS: [[f64; 6]; 2] = [[0.01, 0.9, 0.95, 1e-3, 0.25, 1.0], [0.5, 0.625, 0.75, 0.125, 0.0625, 0.0]];
const MAX_NORM: f32 = 3.0;
const GROWTH: f32 = 4.0;
const BACKOFF: f32 = 0.25;
const INTERVAL: u32 = 9;
const SEED: u64 = 0x1234_5678_9abc_def0;
/// What is around operands: of any type, numbers that sums do not lose.
const UNTOUCHED: u8 = 0xc5;

/// A number between −1 and 1 that all types have, for a place of an operand.
pub(super) fn number(operand: usize, at: usize) -> f32 {
    super::rows::number(operand as u64, at) as f32
}

/// Bytes of numbers of a type.
pub(super) fn bytes_of(kind: u32, numbers: impl Iterator<Item = f32>) -> Vec<u8> {
    numbers
        .flat_map(|number| match kind {
            KIND_F16 => f16::from_f32(number).to_le_bytes().to_vec(),
            KIND_BF16 => bf16::from_f32(number).to_le_bytes().to_vec(),
            _ => number.to_le_bytes().to_vec(),
        })
        .collect()
}

fn words_of_f64(numbers: &[f64]) -> Vec<u32> {
    numbers
        .iter()
        .map(|number| number.to_bits())
        .flat_map(|bits| [bits as u32, (bits >> 32) as u32])
        .collect()
}

/// Memory of a launch, and what it has to be afterwards.
pub(super) struct Memory {
    pub(super) machine: Machine,
    expected: Vec<(u64, Vec<u8>)>,
}

impl Memory {
    pub(super) fn new(config: Config) -> Self {
        Self { machine: Machine::new(config), expected: Vec::new() }
    }

    /// Bytes with others around them, of which the first `before` are not theirs: the address of the first that is.
    pub(super) fn put(
        &mut self,
        before: usize,
        bytes: &[u8],
        after: Option<Vec<u8>>,
    ) -> Result<u64, LaunchError> {
        let around = |bytes: &[u8]| [&vec![UNTOUCHED; before], bytes, &[UNTOUCHED; 16]].concat();
        let all = around(bytes);
        let address = self.machine.allocate(all.len() as u64)?;
        self.machine.write(address, &all)?;
        if let Some(after) = after {
            self.expected.push((address, around(&after)));
        }
        Ok(address + before as u64)
    }

    pub(super) fn words(&mut self, words: &[u32], after: Option<Vec<u32>>) -> Result<u64, LaunchError> {
        let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        self.put(0, &bytes(words), after.map(|words| bytes(&words)))
    }

    pub(super) fn is_right(&self) -> Result<bool, LaunchError> {
        for (address, expected) in &self.expected {
            let mut bytes = vec![0; expected.len()];
            self.machine.read(*address, &mut bytes)?;
            if bytes != *expected {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Case {
    fn new(kernel: Kernel, tensors: Vec<One>) -> Self {
        Self { kernel, tensors, flags: 1, pieces: 3, grows: false, scale: 8.0, bad: None }
    }

    fn has(&self, flag: u32) -> bool {
        StepFlags(self.flags).has(flag)
    }

    /// The gradient of a tensor, of which the last one may be bad.
    fn gradient(&self, place: usize) -> Vec<f32> {
        let length = self.tensors[place].length;
        let mut numbers: Vec<f32> = (0..length).map(|at| number(4 * place, at)).collect();
        if let (Some(bad), Some(last)) = (self.bad, numbers.last_mut()) {
            *last = bad;
        }
        numbers
    }

    /// The scalars of a tensor's step, and its words.
    fn scalars(&self, place: usize) -> (AdamWScalars<f32>, u32, [u32; SCALAR_WORDS]) {
        let one = &self.tensors[place];
        let [rate, first, second, epsilon, decay, corrects] = GROUPS[one.group];
        let (step, powers) = (place as u32 % 5 + 1, powers_after(place, one.group));
        let powers = (corrects != 0.0).then_some(powers);
        let scalars = AdamWScalars::<f32>::new(rate, [first, second], epsilon, decay, powers);
        let AdamWScalars { step_size, inverse_root, decay, shares, epsilon } = scalars;
        let is_active = one.gradient.is_some() && !(self.has(StepFlags::SCALES) && self.is_nan());
        let words = [step_size, inverse_root, decay, shares[0], shares[1], epsilon].map(f32::to_bits);
        let mut all = [0; SCALAR_WORDS];
        all[..6].copy_from_slice(&words);
        (all[6], all[7]) = (step, u32::from(is_active));
        (scalars, step, all)
    }

    /// The sums that are added up.
    fn sums(&self) -> Vec<f32> {
        let mut sums: Vec<f32> = (0..self.pieces).map(|at| number(3, at).abs()).collect();
        if let (Some(bad), Some(last)) = (self.bad, sums.last_mut()) {
            *last = bad;
        }
        sums
    }

    /// Whether the sum is none.
    fn is_nan(&self) -> bool {
        self.kernel == Kernel::Prepare && self.has(StepFlags::HAS_SUMS) && self.bad.is_some_and(f32::is_nan)
    }

    /// The status before and after the scalars are made.
    fn status(&self) -> [[f32; STATUS_WORDS]; 2] {
        let good = if self.grows { INTERVAL - 1 } else { 3 };
        let before = [self.scale, f32::from_bits(good), 0.0, 9.0, 0.5, 0.75, 6.0, 7.0];
        let norm = if self.has(StepFlags::HAS_SUMS) { sum_of_pieces(&self.sums()).sqrt() } else { 0.0 };
        let ratio = MAX_NORM / (norm + 1e-6);
        let clip = if !self.has(StepFlags::CLIPS) || ratio >= 1.0 { 1.0 } else { ratio };
        let mut after = before;
        let found = self.has(StepFlags::SCALES) && norm.is_nan();
        (after[2], after[3], after[4], after[5]) = (f32::from_bits(u32::from(found)), norm, 1.0, clip);
        if self.has(StepFlags::SCALES) {
            after[4] = 1.0 / self.scale;
            let (scale, good) = match (found, self.grows) {
                (true, _) => (self.scale * BACKOFF, 0),
                (_, true) => (self.scale * GROWTH, 0),
                _ => (self.scale, good + 1),
            };
            after[0] = if scale < f32::INFINITY { scale } else { self.scale };
            after[1] = f32::from_bits(good);
        }
        [before, after]
    }

    /// Places the tables of this case; the arguments of the kernel.
    fn place(&self, memory: &mut Memory) -> Result<AdamWParams, LaunchError> {
        let (mut pieces, mut tensors, mut gradients) = (Vec::new(), Vec::new(), Vec::new());
        let (mut history, mut history_after) = (Vec::new(), Vec::new());
        let (mut scalars, mut sums) = (Vec::new(), Vec::new());
        let [before, after] = self.status();
        let factors = [before[4], before[5]];
        for (place, one) in self.tensors.iter().enumerate() {
            pieces.extend((0..one.pieces()).flat_map(|piece| [place as u32, piece as u32]));
            let unscale = if self.has(StepFlags::SCALES) { 1.0 / self.scale } else { 1.0 };
            let gradient = self.gradient(place);
            match one.gradient {
                Some(_) => sums.extend(square_sums(&gradient, unscale)),
                None => sums.extend(vec![0.0; one.pieces()]),
            }
            let (of_step, step, words) = self.scalars(place);
            scalars.extend(words);
            let start = [0.5f64, 0.25].map(|power| power / (1 + place % 3) as f64);
            history.extend([step - 1, 0]);
            history.extend(words_of_f64(&start));
            let is_active = words[7] != 0;
            history_after.extend([if is_active { step } else { step - 1 }, 0]);
            history_after.extend(words_of_f64(&if is_active {
                powers_after(place, one.group)
            } else {
                start
            }));

            let size = |kind: u32| if kind == KIND_F32 { 4 } else { 2 };
            let address = match one.gradient {
                Some(kind) if self.kernel != Kernel::Prepare => {
                    let bytes = bytes_of(kind, gradient.iter().copied());
                    memory.put(one.offset * size(kind), &bytes, Some(bytes.clone()))?
                }
                Some(_) => 1 << 40 | 8,
                None => 0,
            };
            let kind = one.gradient.unwrap_or(KIND_F32);
            let is_aligned = |kind: u32| u32::from(one.offset * size(kind) % (4 * size(kind)) == 0);
            gradients.extend([address as u32, (address >> 32) as u32, kind, is_aligned(kind)]);

            let mut addresses = [0; 4];
            if self.kernel == Kernel::Update {
                let old: Vec<[f32; 3]> = (0..one.length)
                    .map(|at| {
                        [
                            number(4 * place + 1, at),
                            number(4 * place + 2, at),
                            number(4 * place + 3, at).abs(),
                        ]
                    })
                    .collect();
                let moved: Vec<[f32; 3]> = old
                    .iter()
                    .zip(&gradient)
                    .map(
                        |(&old, &gradient)| {
                            if is_active { of_step.element(gradient, factors, old) } else { old }
                        },
                    )
                    .collect();
                let column = |of: &[[f32; 3]], at: usize| of.iter().map(|of| of[at]).collect::<Vec<_>>();
                for (at, field) in [(1, 1), (2, 2)] {
                    let [bytes, after] =
                        [&old, &moved].map(|of| bytes_of(KIND_F32, column(of, at).into_iter()));
                    addresses[field] = memory.put(one.offset * 4, &bytes, Some(after))?;
                }
                let weights = column(&moved, 0);
                let bytes = bytes_of(one.weights, column(&old, 0).into_iter());
                let after = if one.weights == KIND_F32 || !is_active {
                    bytes_of(one.weights, weights.iter().copied())
                } else {
                    let key = [SEED as u32, (SEED >> 32) as u32];
                    let round = |(at, &weight): (usize, &f32)| {
                        let random = philox_4x32([at as u32 / 4, 0, step, place as u32], key);
                        round_randomly(weight, one.weights, random[at % 4]).to_le_bytes()
                    };
                    weights.iter().enumerate().flat_map(round).collect()
                };
                addresses[0] = memory.put(one.offset * size(one.weights), &bytes, Some(after))?;
                if let Some(kind) = one.rounded {
                    let bytes = bytes_of(kind, column(&old, 0).into_iter());
                    let after = bytes_of(kind, weights.into_iter());
                    addresses[3] = memory.put(one.offset * 2, &bytes, Some(after))?;
                }
            }
            let halves = |value: u64| [value as u32, (value >> 32) as u32];
            tensors.extend(addresses.into_iter().chain([one.length as u64]).flat_map(halves));
            let rounded = one.rounded.unwrap_or(one.weights);
            tensors.extend([one.weights, rounded, one.group as u32, u32::from(one.offset % 4 == 0), 0, 0]);
        }
        let is = |kernel: Kernel| self.kernel == kernel;
        let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<u32>>();
        let groups: Vec<u32> = GROUPS.iter().flat_map(|group| words_of_f64(group)).collect();
        let of_sums = if is(Kernel::Prepare) { bits(&self.sums()) } else { vec![1; sums.len()] };
        // The host's NaN may be another one than the kernel's.
        let canonical = |number: &f32| if number.is_nan() { 0x7fff_ffff } else { number.to_bits() };
        let status_after =
            if is(Kernel::Prepare) { after.iter().map(canonical).collect() } else { bits(&before) };
        let sums_after =
            if is(Kernel::Squares) { sums.iter().map(canonical).collect() } else { of_sums.clone() };
        let no_scalars = vec![1; scalars.len()];
        let scalars_before = if is(Kernel::Prepare) { no_scalars } else { scalars.clone() };
        let history_after = if is(Kernel::Prepare) { history_after } else { history.clone() };
        Ok(AdamWParams {
            pieces: Global::new(memory.words(&pieces, None)?),
            tensors: Global::new(memory.words(&tensors, None)?),
            gradients: Global::new(memory.words(&gradients, None)?),
            groups: Global::new(memory.words(&groups, None)?),
            history: GlobalMut::new(memory.words(&history, Some(history_after))?),
            scalars: GlobalMut::new(memory.words(&scalars_before, Some(scalars))?),
            status: GlobalMut::new(memory.words(&bits(&before), Some(status_after))?),
            sums: GlobalMut::new(memory.words(&of_sums, Some(sums_after))?),
            seed: SEED,
            tensor_count: self.tensors.len() as u32,
            piece_count: if is(Kernel::Prepare) { self.pieces as u32 } else { pieces.len() as u32 / 2 },
            flags: StepFlags(self.flags),
            max_norm: MAX_NORM,
            growth: GROWTH,
            backoff: BACKOFF,
            growth_interval: INTERVAL,
            reserved: 0,
        })
    }
}

/// The powers of the decay rates after a tensor's step.
fn powers_after(place: usize, group: usize) -> [f64; 2] {
    let start = [0.5f64, 0.25].map(|power| power / (1 + place % 3) as f64);
    [start[0] * GROUPS[group][1], start[1] * GROUPS[group][2]]
}

impl Problem for Case {
    fn name(&self) -> &str {
        match self.kernel {
            Kernel::Squares => "sums of squares",
            Kernel::Prepare => "the scalars of a step",
            Kernel::Update => "an update",
        }
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let mut memory = Memory::new(config);
        let params = self.place(&mut memory)?;
        let Some(kernel) = module.kernels().next() else { return Ok((Report::default(), false)) };
        let config = LaunchConfig {
            grid: [if self.kernel == Kernel::Prepare { 1 } else { params.piece_count }, 1, 1],
            block: kernel.reqntid.unwrap_or([1; 3]),
            dynamic_shared: shared_bytes,
            ..LaunchConfig::default()
        };
        let report = launch(&memory.machine, module, &kernel.name, &config, (params,))?;
        Ok((report, memory.is_right()?))
    }
}
