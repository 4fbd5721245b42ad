//! How the kernels for gradients of rows of the family `adamw` are run: rows with gaps and without, of one vector and several, of every type, rounding and alignment,
//! that end at every element of a chunk. With moments by row; with more room than rows, and ids of no row. Results are those of the CPU, bit for bit.

use half::{bf16, f16};
use warpsmith::cpu::AdamWScalars;
use warpsmith::cpu::adamw::{mean_of_squares, philox_4x32, round_randomly, square_sums};
use warpsmith_dsl::adamw::{
    AdamWRowsParams, KIND_BF16, KIND_F16, KIND_F32, PIECE, ROWS_OF_BLOCK, RowsFlags, StepFlags,
};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_emulator::{Config, LaunchConfig, LaunchError, Module, Report};

use super::adamw::{Memory, bytes_of, number};
use super::{Problem, launch};

const SEED: u64 = 0x1234_5678_9abc_def0;
/// The tensor's number, and its step.
const TENSOR: u32 = 2;
const STEP: u32 = 5;
const SCALE: f32 = 8.0;
const FACTORS: [f32; 2] = [0.5, 0.75];

/// The problems that an entry is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let all = match name {
        "adamw_row_square_sums" => squares(),
        "adamw_update_rows" => updates(),
        _ => return None,
    };
    Some(all.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

fn squares() -> Vec<Case> {
    let mut all = Vec::new();
    for (place, gradient) in [KIND_F32, KIND_F16, KIND_BF16].into_iter().enumerate() {
        for (rows, vectors, columns) in
            [(1, 1, 1), (3, 1, 7), (4, 2, 130), (5, 1, 1024), (9, 3, 500), (2, 1, 4097)]
        {
            for offset in [0, 1] {
                let kinds = [KIND_F32, KIND_F32, gradient];
                let flags = if (place + rows) % 2 == 0 { StepFlags::SCALES } else { 0 };
                let case = Case {
                    is_update: false,
                    rows,
                    vectors,
                    columns,
                    kinds,
                    offset,
                    flags,
                    ..Case::default()
                };
                let more = rows + 2 + columns % 3;
                let used = Some((0..rows as u32).collect());
                all.extend([case.clone(), Case { room: more, used, ..case }]);
            }
        }
        // Ends at every element of a chunk, in every chunk of a thread.
        for columns in (0..4).flat_map(|c| (0..4).map(move |j| 1024 * c + 8 + j)) {
            let kinds = [KIND_F32, KIND_F32, gradient];
            all.push(Case { is_update: false, rows: 1, columns, kinds, offset: 1, ..Case::default() });
        }
        let nothing =
            Case { is_update: false, room: 9, used: Some(Vec::new()), columns: 700, ..Case::default() };
        all.push(nothing);
    }
    all
}

fn updates() -> Vec<Case> {
    let mut all = Vec::new();
    let types = [
        (KIND_F32, None),
        (KIND_F32, Some(KIND_F16)),
        (KIND_F32, Some(KIND_BF16)),
        (KIND_F16, None),
        (KIND_BF16, None),
    ];
    for (of, (weights, rounded)) in types.into_iter().enumerate() {
        for (place, gradient) in [KIND_F32, KIND_F16, KIND_BF16].into_iter().enumerate() {
            for (at, columns) in [1, 2, 3, 4, 5, 31, 32, 128, 132, 255, 256, 260, 389].into_iter().enumerate()
            {
                for is_shared in [false, true] {
                    let kinds = [weights, rounded.unwrap_or(weights), gradient];
                    let (vectors, gap) = (1 + (at + of) % 3, [0, 8, 5][(at + place) % 3]);
                    let offset = if (at + place + of) % 3 == 0 { 1 } else { 0 };
                    let case = Case {
                        rows: 6,
                        vectors,
                        columns,
                        kinds,
                        is_rounded: rounded.is_some(),
                        gap,
                        offset,
                        is_shared,
                        ..Case::default()
                    };
                    // Rows in ascending order, one behind the last and one that is none.
                    let used = Some(vec![0, 2, 3, 5, 6, u32::MAX]);
                    all.push(match at % 3 {
                        0 => case,
                        _ => Case { used, room: 6 + at, ..case },
                    });
                }
            }
        }
    }
    let one = Case { rows: 5, vectors: 2, columns: 36, ..Case::default() };
    all.extend([
        Case { is_idle: true, ..one.clone() },
        Case { used: Some(Vec::new()), room: 3, ..one.clone() },
        // A count that is more than there is room for.
        Case { used: Some(vec![1, 2]), room: 2, counted: Some(9), ..one.clone() },
        // As many blocks for the vectors of a row as these, and fewer.
        Case { vectors: 5, blocks: 5, ..one.clone() },
        Case { vectors: 5, blocks: 2, ..one.clone() },
        Case { rows: 131, columns: 4, used: Some((0..131).step_by(2).collect()), room: 66, ..one },
    ]);
    all
}

#[derive(Clone, Debug)]
struct Case {
    is_update: bool,
    rows: usize,
    /// The rows that the gradient has; all without.
    used: Option<Vec<u32>>,
    /// How many there are said to be, if not as many.
    counted: Option<u32>,
    /// Rows that the gradient has room for, if it has not all.
    room: usize,
    vectors: usize,
    columns: usize,
    /// The types of the weights that move, of the rounded ones and of the gradient.
    kinds: [u32; 3],
    is_rounded: bool,
    /// Elements between the vectors of weights.
    gap: usize,
    /// Elements of memory before each operand.
    offset: usize,
    is_shared: bool,
    is_idle: bool,
    flags: u32,
    /// Blocks for the vectors of a row.
    blocks: usize,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            is_update: true,
            rows: 3,
            used: None,
            counted: None,
            room: 0,
            vectors: 1,
            columns: 4,
            kinds: [KIND_F32; 3],
            is_rounded: false,
            gap: 0,
            offset: 0,
            is_shared: false,
            is_idle: false,
            flags: 0,
            blocks: 1,
        }
    }
}

fn size(kind: u32) -> usize {
    if kind == KIND_F32 { 4 } else { 2 }
}

/// A number of a type, as it is there.
fn rounded(kind: u32, number: f32) -> f32 {
    match kind {
        KIND_F16 => f16::from_f32(number).to_f32(),
        KIND_BF16 => bf16::from_f32(number).to_f32(),
        _ => number,
    }
}

impl Case {
    fn room(&self) -> usize {
        if self.used.is_some() { self.room } else { self.rows }
    }

    /// The numbers of an operand's rows, one after the other.
    fn numbers(&self, operand: usize, rows: usize, columns: usize) -> Vec<f32> {
        (0..rows * self.vectors * columns).map(|at| number(operand, at)).collect()
    }

    /// Vectors with gaps between them, whose bytes are 0.
    fn spread(&self, kind: u32, vectors: &[Vec<u8>]) -> Vec<u8> {
        vectors.iter().flat_map(|own| [own.clone(), vec![0; self.gap * size(kind)]].concat()).collect()
    }

    fn scalars(&self) -> AdamWScalars<f32> {
        AdamWScalars::new(0.01, [0.9, 0.95], 1e-3, 0.25, Some([0.5, 0.25]))
    }

    fn place(&self, memory: &mut Memory) -> Result<AdamWRowsParams, LaunchError> {
        let (room, columns, scalars) = (self.room(), self.columns, self.scalars());
        let [moving, of_rounded, of_gradient] = self.kinds;
        let gradient = self.numbers(0, room, columns);
        let bytes = bytes_of(of_gradient, gradient.iter().copied());
        let of = memory.put(self.offset * size(of_gradient), &bytes, Some(bytes.clone()))?;
        let used: Vec<u32> = self.used.clone().unwrap_or_else(|| (0..self.rows as u32).collect());
        let count = self.counted.unwrap_or(used.len() as u32);
        let there = used.len().min(room);

        // Each vector before and after, of all rows.
        let vectors = self.rows * self.vectors;
        let of_squares = if self.is_shared { 1 } else { columns };
        let operand = |which: usize, columns: usize| {
            let all = self.numbers(which, self.rows, columns);
            all.chunks(columns).map(<[f32]>::to_vec).collect::<Vec<_>>()
        };
        let (weights, means) = (operand(1, columns), operand(2, columns));
        let squares: Vec<Vec<f32>> =
            operand(3, of_squares).into_iter().map(|own| own.into_iter().map(f32::abs).collect()).collect();
        let mut after = [weights.clone(), means.clone(), squares.clone()];
        let mut bits: Vec<Vec<u8>> =
            weights.iter().map(|own| bytes_of(moving, own.iter().copied())).collect();
        let mut of_copy: Vec<Vec<u8>> =
            weights.iter().map(|own| bytes_of(of_rounded, own.iter().copied())).collect();
        let gradients: Vec<&[f32]> = gradient.chunks(columns).collect();
        for (place, &id) in used.iter().take(there).enumerate() {
            if id as usize >= self.rows || self.is_idle || !self.is_update {
                continue;
            }
            for vector in 0..self.vectors {
                let at = id as usize * self.vectors + vector;
                let own: Vec<f32> = gradients[place * self.vectors + vector]
                    .iter()
                    .map(|&g| rounded(of_gradient, g) * FACTORS[0] * FACTORS[1])
                    .collect();
                let [w, m, v] = &mut after;
                if self.is_shared {
                    v[at][0] = scalars.square(mean_of_squares(&own), v[at][0]);
                }
                for (j, &g) in own.iter().enumerate() {
                    let weight = rounded(moving, w[at][j]);
                    if self.is_shared {
                        [w[at][j], m[at][j]] =
                            scalars.moved(g, scalars.divisor(v[at][0]), [weight, m[at][j]]);
                    } else {
                        [w[at][j], m[at][j], v[at][j]] =
                            scalars.element(g, [1.0; 2], [weight, m[at][j], v[at][j]]);
                    }
                }
                of_copy[at] = bytes_of(of_rounded, w[at].iter().copied());
                bits[at] = match moving {
                    KIND_F32 => bytes_of(KIND_F32, w[at].iter().copied()),
                    kind => {
                        let key = [SEED as u32, (SEED >> 32) as u32];
                        let round = |(j, &weight): (usize, &f32)| {
                            let element = at * columns + j;
                            let random = philox_4x32([element as u32 / 4, 0, STEP, TENSOR], key);
                            round_randomly(weight, kind, random[element % 4]).to_le_bytes()
                        };
                        w[at].iter().enumerate().flat_map(round).collect()
                    }
                };
            }
        }
        let old: Vec<Vec<u8>> = weights.iter().map(|own| bytes_of(moving, own.iter().copied())).collect();
        let (before, now) = (self.spread(moving, &old), self.spread(moving, &bits));
        let of_weights = memory.put(self.offset * size(moving), &before, Some(now))?;
        let of_old: Vec<Vec<u8>> =
            weights.iter().map(|own| bytes_of(of_rounded, own.iter().copied())).collect();
        let copy = match self.is_rounded {
            true => {
                let [before, now] = [&of_old, &of_copy].map(|of| self.spread(of_rounded, of));
                memory.put(self.offset * 2, &before, Some(now))?
            }
            false => 0,
        };
        let flat = |of: &[Vec<f32>]| bytes_of(KIND_F32, of.iter().flatten().copied());
        let of_means = memory.put(self.offset * 4, &flat(&means), Some(flat(&after[1])))?;
        let of_squares = memory.put(self.offset * 4, &flat(&squares), Some(flat(&after[2])))?;

        let length = count.min(room as u32) as usize * self.vectors * columns;
        let pieces = (room * self.vectors * columns).div_ceil(PIECE as usize);
        let numbers: Vec<f32> = gradient[..length].iter().map(|&g| rounded(of_gradient, g)).collect();
        let unscale = if StepFlags(self.flags).has(StepFlags::SCALES) { 1.0 / SCALE } else { 1.0 };
        let mut sums: Vec<u32> = square_sums(&numbers, unscale).into_iter().map(f32::to_bits).collect();
        sums.resize(pieces, 0);
        let before = vec![1; pieces];
        let sums = memory.words(&before, Some(if self.is_update { before.clone() } else { sums }))?;

        let AdamWScalars { step_size, inverse_root, decay, shares, epsilon } = scalars;
        let mut table = vec![7u32; 8 * TENSOR as usize];
        table.extend([step_size, inverse_root, decay, shares[0], shares[1], epsilon].map(f32::to_bits));
        table.extend([STEP, u32::from(!self.is_idle)]);
        let status = [SCALE, 0.0, 0.0, 9.0, FACTORS[0], FACTORS[1], 6.0, 7.0].map(f32::to_bits);
        let ids = match &self.used {
            Some(used) => {
                // Behind those that there are is another row.
                let mut named = used.clone();
                named.resize(room.max(used.len()), 1);
                [memory.words(&named, Some(named.clone()))?, memory.words(&[count], Some(vec![count]))?]
            }
            None => [0; 2],
        };
        let (row, vector) = ((self.vectors * (columns + self.gap)) as u64, (columns + self.gap) as u64);
        let aligned = |kind: u32| (self.offset * size(kind)).is_multiple_of(4 * size(kind));
        let has_chunks = [columns, self.gap, self.offset].iter().all(|of| of.is_multiple_of(4));
        debug_assert_eq!(vectors, after[0].len());
        let traits = [
            (has_chunks, RowsFlags::ALIGNED),
            (aligned(of_gradient), RowsFlags::GRADIENT_ALIGNED),
            (self.is_shared, RowsFlags::SHARED_SQUARES),
        ];
        Ok(AdamWRowsParams {
            ids: Global::new(ids[0]),
            count: Global::new(ids[1]),
            gradient: of,
            weights: of_weights,
            strides: [row, vector],
            means: of_means,
            squares: of_squares,
            rounded: copy,
            rounded_strides: [row, vector],
            scalars: GlobalMut::new(memory.words(&table, Some(table.clone()))?),
            status: GlobalMut::new(memory.words(&status, Some(status.to_vec()))?),
            sums: GlobalMut::new(sums),
            seed: SEED,
            tensor: TENSOR,
            rows: self.rows as u32,
            room: room as u32,
            vectors: self.vectors as u32,
            columns: columns as u32,
            kinds: self.kinds,
            flags: StepFlags(self.flags),
            traits: RowsFlags(traits.iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum()),
        })
    }
}

impl Problem for Case {
    fn name(&self) -> &str {
        if self.is_update { "an update of rows" } else { "sums of squares of rows" }
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let mut memory = Memory::new(config);
        let params = self.place(&mut memory)?;
        let Some(kernel) = module.kernels().next() else { return Ok((Report::default(), false)) };
        let pieces = (self.room() * self.vectors * self.columns).div_ceil(PIECE as usize);
        let config = LaunchConfig {
            grid: match self.is_update {
                true => [(self.room() as u32).div_ceil(ROWS_OF_BLOCK), self.blocks as u32, 1],
                false => [pieces as u32, 1, 1],
            },
            block: kernel.reqntid.unwrap_or([1; 3]),
            dynamic_shared: shared_bytes,
            ..LaunchConfig::default()
        };
        let report = launch(&memory.machine, module, &kernel.name, &config, (params,))?;
        Ok((report, memory.is_right()?))
    }
}
