//! What problems of kernels on rows share: matrices and vectors in the emulator's memory, of which results have to be within a tolerance and nothing else
//! may change.

use half::{bf16, f16};
use warpsmith::DType;
use warpsmith_dsl::launch::KernelArgs;
use warpsmith_dsl::rows::{AnyRows, Kind};
use warpsmith_emulator::{Config, LaunchConfig, LaunchError, Machine, Module, Report};

use super::launch;

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Float {
    F16,
    Bf16,
    F32,
}

impl Float {
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "f32" => Self::F32,
            _ => return None,
        })
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            Self::F16 => Kind::F16,
            Self::Bf16 => Kind::BF16,
            Self::F32 => Kind::F32,
        }
    }

    pub(super) fn dtype(self) -> DType {
        match self {
            Self::F16 => DType::F16,
            Self::Bf16 => DType::Bf16,
            Self::F32 => DType::F32,
        }
    }

    pub(super) fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    fn put(self, value: f64) -> Vec<u8> {
        match self {
            Self::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
            Self::Bf16 => bf16::from_f64(value).to_le_bytes().to_vec(),
            Self::F32 => (value as f32).to_le_bytes().to_vec(),
        }
    }

    fn get(self, bytes: &[u8]) -> f64 {
        match (self, bytes) {
            (Self::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f64(),
            (Self::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f64(),
            (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
            _ => f64::NAN,
        }
    }

    /// The nearest number of this type.
    pub(super) fn round(self, value: f64) -> f64 {
        self.get(&self.put(value))
    }

    /// The most that rounding changes a number by, relative to it.
    pub(super) fn unit(self) -> f64 {
        match self {
            Self::F16 => 2f64.powi(-11),
            Self::Bf16 => 2f64.powi(-8),
            Self::F32 => 2f64.powi(-22),
        }
    }
}

/// A number between −1 and 1 that 16-bit types have, for a place of an operand.
pub(super) fn number(operand: u64, at: usize) -> f64 {
    let mixed = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(operand << 32 | 0x1234_5678);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 57) as f64 / 64.0 - 1.0
}

/// What is beside results.
pub(super) const UNTOUCHED: f64 = 77.0;

/// A result, as it has to be.
struct Expected {
    address: u64,
    of: Float,
    /// Numbers and how far off each may be; of the others nothing may change.
    numbers: Vec<Option<(f64, f64)>>,
}

/// Operands of a launch.
pub(super) struct Operands {
    machine: Machine,
    results: Vec<Expected>,
}

impl Operands {
    pub(super) fn new(config: Config) -> Self {
        Self { machine: Machine::new(config), results: Vec::new() }
    }

    fn write(&self, of: Float, numbers: impl Iterator<Item = f64>) -> Result<u64, LaunchError> {
        let bytes: Vec<u8> = numbers.flat_map(|number| of.put(number)).collect();
        let address = self.machine.allocate(bytes.len().max(1) as u64)?;
        self.machine.write(address, &bytes)?;
        Ok(address)
    }

    /// Rows of elements with `gap` elements between them, which ends with its last element.
    pub(super) fn rows(
        &self,
        of: Float,
        [rows, columns, gap]: [usize; 3],
        number: impl Fn(usize, usize) -> f64,
    ) -> Result<AnyRows, LaunchError> {
        let stride = columns + gap;
        let count = if rows == 0 { 0 } else { rows * stride - gap };
        let at = |place: usize| {
            let (row, column) = (place / stride, place % stride);
            if column < columns { number(row, column) } else { f64::NAN }
        };
        let base = self.write(of, (0..count).map(at))?;
        Ok(AnyRows { base, stride: stride as u64, kind: of.kind(), offset: 0.0 })
    }

    /// Rows of results, with what each has to be and may be off by.
    pub(super) fn results(
        &mut self,
        of: Float,
        [rows, columns, gap]: [usize; 3],
        expected: impl Fn(usize, usize) -> (f64, f64),
    ) -> Result<AnyRows, LaunchError> {
        let stride = columns + gap;
        let count = if rows == 0 { 0 } else { rows * stride - gap };
        let base = self.write(of, (0..count).map(|_| UNTOUCHED))?;
        let at = |place: usize| {
            let (row, column) = (place / stride, place % stride);
            (column < columns).then(|| expected(row, column))
        };
        self.results.push(Expected { address: base, of, numbers: (0..count).map(at).collect() });
        Ok(AnyRows { base, stride: stride as u64, kind: of.kind(), offset: 0.0 })
    }

    /// The same rows, which are written over: they have to become these.
    pub(super) fn become_results(
        &mut self,
        of: Float,
        rows: AnyRows,
        [count, columns]: [usize; 2],
        expected: impl Fn(usize, usize) -> (f64, f64),
    ) {
        let numbers = (0..count * columns).map(|at| Some(expected(at / columns, at % columns))).collect();
        self.results.push(Expected { address: rows.base, of, numbers });
    }

    /// Other bytes.
    pub(super) fn bytes(&self, bytes: &[u8]) -> Result<u64, LaunchError> {
        let address = self.machine.allocate(bytes.len().max(1) as u64)?;
        self.machine.write(address, bytes)?;
        Ok(address)
    }

    /// Words that have to be these afterwards: where there are none before, what is there is none of them.
    pub(super) fn words(&mut self, before: Option<&[u32]>, after: &[u32]) -> Result<u64, LaunchError> {
        let number = |word: u32| f64::from(f32::from_bits(word));
        let shape = [1, after.len(), 0];
        let base = match before {
            Some(words) => self.rows(Float::F32, shape, |_, at| number(words[at]))?,
            None => self.rows(Float::F32, shape, |_, _| UNTOUCHED)?,
        };
        self.become_results(Float::F32, base, [1, after.len()], |_, at| (number(after[at]), 0.0));
        Ok(base.base)
    }

    /// Launches the module's only entry in clusters of so many blocks; what it did, and whether all results are right.
    pub(super) fn launch(
        &self,
        module: &Module,
        shared_bytes: u32,
        [blocks, cluster]: [u32; 2],
        arguments: impl KernelArgs,
    ) -> Result<(Report, bool), LaunchError> {
        self.launch_grid(module, shared_bytes, [blocks, 1, 1], cluster, arguments)
    }

    /// The same for a grid of any form.
    pub(super) fn launch_grid(
        &self,
        module: &Module,
        shared_bytes: u32,
        grid: [u32; 3],
        cluster: u32,
        arguments: impl KernelArgs,
    ) -> Result<(Report, bool), LaunchError> {
        let Some(kernel) = module.kernels().next() else { return Ok((Report::default(), false)) };
        let config = LaunchConfig {
            grid,
            block: kernel.reqntid.unwrap_or([1; 3]),
            cluster: [cluster, 1, 1],
            dynamic_shared: shared_bytes,
            ..LaunchConfig::default()
        };
        let report = launch(&self.machine, module, &kernel.name, &config, arguments)?;
        let mut is_right = true;
        for result in &self.results {
            let mut bytes = vec![0; result.numbers.len() * result.of.bytes()];
            self.machine.read(result.address, &mut bytes)?;
            let got = bytes.chunks(result.of.bytes()).map(|bytes| result.of.get(bytes));
            is_right &= got.zip(&result.numbers).all(|(got, expected)| match *expected {
                Some((expected, tolerance)) => {
                    (got - expected).abs() <= tolerance || got.is_nan() && expected.is_nan()
                }
                None => got == UNTOUCHED,
            });
        }
        Ok((report, is_right))
    }
}

/// How a kernel's threads have the columns of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Elements of a chunk.
    pub(super) chunk: usize,
    /// Chunks of a thread that are in registers at a time.
    pub(super) chunks: usize,
    /// What columns and gaps are a multiple of: of chunks that are no neighbours 1.
    pub(super) unit: usize,
    /// Blocks of a cluster that share a row.
    pub(super) cluster: usize,
}

impl Layout {
    /// Of elements of a type, 16 bytes to a chunk.
    pub(super) fn new(of: Float, chunks: usize, is_any: bool, is_clustered: bool) -> Self {
        let chunk = 16 / of.bytes();
        Self { chunk, chunks, unit: if is_any { 1 } else { chunk }, cluster: 1 + usize::from(is_clustered) }
    }

    /// The fewest threads of a block that share a row: a warp, where the elements of a chunk are a warp's lanes apart.
    pub(super) fn least(self) -> usize {
        if self.unit > 1 { 1 } else { 32 }
    }

    /// Columns that a block, or a cluster, has registers for.
    pub(super) fn most(self) -> usize {
        256 * self.chunk * self.chunks * self.cluster
    }

    /// How threads share a row: the least power of two whose chunks hold it, from the fewest on, and how often.
    pub(super) fn shares(self, columns: usize) -> [u32; 2] {
        let Self { chunk, chunks, cluster, .. } = self;
        let all = columns.div_ceil(chunk).max(1);
        // A part of a warp has all of a row of as many chunks as there are lanes.
        let least = match self.unit {
            1 if all <= 32 => 32 / chunks,
            1 => 32,
            _ => all.next_power_of_two().min(4),
        };
        let threads = all.div_ceil(chunks).next_power_of_two().clamp(least, 256);
        let threads = if cluster > 1 { 256 } else { threads };
        [threads as u32, all.div_ceil(threads * chunks * cluster) as u32]
    }

    /// Blocks of a grid that has a team, or a cluster, for each of the rows, and at least so many blocks or clusters; and the blocks of a cluster.
    pub(super) fn grid(self, rows: usize, threads: u32, least: u32) -> [u32; 2] {
        let (rows, cluster) = (rows as u32, self.cluster as u32);
        let teams = if cluster > 1 { 1 } else { 256 / threads };
        [rows.div_ceil(teams).max(least) * cluster, cluster]
    }

    /// Columns with which a row ends where each chunk of a thread begins, and where half of the threads have theirs; or, of chunks that are no neighbours, where
    /// each of a chunk's elements begins, and within the first. Of rows of one round and of two. With the threads that share such a row, and the rounds.
    pub(super) fn edges(self) -> Vec<(usize, [u32; 2])> {
        let Self { chunk, chunks, unit, cluster } = self;
        let of_block = if cluster > 1 { 256 } else { self.least().max(4) };
        let threads = of_block * cluster;
        let of_chunks = threads * chunk;
        // Elements of a warp's chunks, which are neighbours; in turn of each warp.
        let of_element = move |slot: usize, element: usize| {
            let warp = (slot + element) % (threads / 32);
            slot * of_chunks + (warp * chunk + element) * 32
        };
        let of_slot = move |slot: usize| -> Vec<usize> {
            if unit > 1 {
                return vec![slot * of_chunks + of_chunks / 2, (slot + 1) * of_chunks];
            }
            let within_first = slot * of_chunks + 16;
            std::iter::once(within_first)
                .chain((1..=chunk).map(|element| of_element(slot, element)))
                .collect()
        };
        let mut all = Vec::new();
        for rounds in [1, 2] {
            for slot in 0..chunks {
                // Of a cluster's wide rows, the other elements of two rounds have all that there is in the first one.
                let before =
                    if cluster == 1 || unit > 1 || slot == 0 { (rounds - 1) * of_chunks * chunks } else { 0 };
                let ends = of_slot(slot).into_iter();
                all.extend(ends.map(|columns| (before + columns, [of_block as u32, rounds as u32])));
            }
        }
        // Where each chunk of a part of a warp begins, in turn of its elements.
        if unit == 1 && cluster == 1 && chunks > 1 {
            let lanes = 32 / chunks;
            let end = |slot: usize| (slot * 3 % chunk) * 32 + slot * lanes + lanes / 2;
            all.extend((0..chunks).map(|slot| (end(slot), [lanes as u32, 1])));
        }
        all
    }
}
