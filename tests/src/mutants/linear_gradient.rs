//! How the kernels of the family `linear_gradient` are run: every source of slopes and every result, on strips that end at each of a thread's rows, and rows that end where
//! any chunk begins.

use warpsmith::ops::Activation;
use warpsmith_dsl::launch::Global;
use warpsmith_dsl::linear_gradient::{LinearGradientParams, ROWS};
use warpsmith_dsl::rows::{AnyRows, THREADS};
use warpsmith_emulator::{Config, LaunchError, Module, Report};
use warpsmith_lab::bound::backward::Near;

use super::Problem;
use super::elementwise::on_device;
use super::rows::{Float, Layout, Operands, number};

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let rest = name.strip_prefix("linear_gradient_")?;
    let (is_any, rest) = rest.strip_prefix("any_").map_or((false, rest), |rest| (true, rest));
    let of = Float::named(rest)?;
    // What columns are a multiple of: a row may end before each element of a chunk, or of each chunk.
    let layout = Layout::new(of, 1, is_any, false);
    let Layout { chunk, unit, .. } = layout;
    // Fewer where they are read one by one.
    let chunk = if is_any { 4 } else { chunk };
    let least = layout.least() as u32;
    let base = Case {
        of,
        slopes: Slopes::Ones,
        scales: [0; 2],
        dz: Some(of),
        dresidual: true,
        sums: Some(Float::F32),
        adds: false,
        rows: 1,
        strip: u32::MAX,
        columns: unit,
        gap: unit,
        threads: least,
        chunk,
    };
    let all_slopes = Activation::ALL
        .into_iter()
        .filter(|activation| *activation != Activation::None)
        .map(Slopes::At)
        .chain([Slopes::Ones, Slopes::Bits]);
    let mut cases = Vec::new();
    // Every function, with scales of each kind, results of each type, and without some.
    for (number, slopes) in all_slopes.enumerate() {
        let columns = if is_any { 32 * (chunk - 1) + 1 } else { 3 * chunk };
        let case = Case { slopes, rows: 3, columns, threads: least.max(4), ..base };
        let types = [Float::F16, Float::Bf16, Float::F32];
        cases.push(Case { scales: [number % 3, (number + 1) % 3], dz: Some(types[number % 3]), ..case });
        cases.push(Case {
            scales: [(number + 2) % 3, number % 3],
            dz: Some(types[(number + 1) % 3]),
            sums: Some(types[number % 3]),
            adds: number % 2 == 0,
            ..case
        });
    }
    for (dz, dresidual, sums) in [
        (None, false, Some(Float::F16)),
        (None, true, None),
        (Some(of), false, None),
        (None, true, Some(Float::Bf16)),
    ] {
        cases.push(Case {
            dz,
            dresidual,
            sums,
            adds: sums == Some(Float::F16),
            slopes: Slopes::Bits,
            ..base
        });
    }
    // Rows that end at each of a thread's chunks or elements, and at a word of the mask.
    let loaded = [Slopes::At(Activation::Silu), Slopes::Bits, Slopes::Ones];
    let ends = if is_any { chunk + 1 } else { 5 };
    let apart = unit.max(least as usize);
    for end in 1..=ends {
        for (slopes, dz) in loaded.into_iter().zip([Float::F16, Float::Bf16, Float::F32]) {
            let case = Case { slopes, dz: Some(dz), scales: [0, 2], rows: 2, ..base };
            cases.push(Case { columns: end * apart, threads: least.max(2), ..case });
        }
        let columns = 32 + end * unit;
        cases.push(Case { columns, threads: 32, slopes: Slopes::Bits, rows: 2, ..base });
    }
    cases.push(Case { columns: 32, threads: 32, slopes: Slopes::Bits, rows: 2, ..base });
    // Strips that end at each of the rows of one round and of two, or before; several strips, and several blocks of columns.
    let some = if is_any { 37 } else { 3 * chunk };
    for threads in [8, 32].into_iter().filter(|threads| *threads >= least) {
        let teams = THREADS / threads;
        for end in 1..=2 * ROWS {
            for (before, slopes) in [0, 1].into_iter().zip(loaded.into_iter().cycle().skip(end as usize)) {
                let case = Case { rows: (end * teams - before) as usize, threads, slopes, ..base };
                cases.push(Case { columns: some, scales: [2, 0], ..case });
                cases.push(Case { columns: 32, ..case });
            }
        }
        // All rows of two rounds of each kind.
        for slopes in loaded {
            let rows = (2 * ROWS * teams) as usize;
            cases.push(Case { rows, threads, slopes, columns: some, scales: [2, 2], ..base });
        }
        let columns = threads as usize * chunk + chunk;
        let strip = teams * ROWS;
        let rows = 2 * strip as usize + 5;
        cases.push(Case { rows, strip, threads, columns, slopes: Slopes::At(Activation::Relu), ..base });
        cases.push(Case { rows: 2 * strip as usize, strip, threads, columns, slopes: Slopes::Bits, ..base });
    }
    // The last row is any of those that are loaded together, and ends at any element of a thread's, or where a word of the mask does.
    for end in 1..=ROWS {
        for element in 0..if is_any { chunk } else { 1 } {
            let case = Case { rows: (end * THREADS / 32) as usize, threads: 32, ..base };
            cases.push(Case { columns: 32 * (element + 1), slopes: Slopes::Bits, ..case });
            for slopes in loaded {
                cases.push(Case { columns: 32 * element + unit, slopes, ..case });
            }
        }
    }
    // Lanes that have nothing of the first elements, in a row's first block and in its second.
    for (columns, slopes) in
        [5, 32 * chunk + 5].into_iter().flat_map(|columns| loaded.map(|of| (columns, of)))
    {
        if is_any {
            cases.push(Case { columns, slopes, rows: 3, scales: [2, 2], ..base });
        }
    }
    // A thread for each row, or a warp.
    cases.push(Case { rows: 700, columns: chunk, gap: 0, ..base });
    Some(cases.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

/// Where slopes are known from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Slopes {
    Ones,
    At(Activation),
    Bits,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    of: Float,
    slopes: Slopes,
    /// Of rows and columns: none, one for all, or one for each.
    scales: [usize; 2],
    dz: Option<Float>,
    dresidual: bool,
    sums: Option<Float>,
    adds: bool,
    rows: usize,
    strip: u32,
    columns: usize,
    /// Elements between rows.
    gap: usize,
    threads: u32,
    /// Columns of a chunk.
    chunk: usize,
}

const BETA: f64 = -1.25;

impl Problem for Case {
    fn name(&self) -> &str {
        match self.slopes {
            Slopes::Ones => "the gradient of a layer",
            Slopes::At(_) => "the gradient of a layer with an activation",
            Slopes::Bits => "the gradient of a layer with a mask",
        }
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let &Self { of, slopes, rows, columns, gap, threads, .. } = self;
        let mut operands = Operands::new(config);
        let shape = [rows, columns, gap];
        let element = |operand: u64, row: usize, column: usize| number(operand, row * columns + column);
        let dy = operands.rows(of, shape, |row, column| element(0, row, column))?;
        let z_of = |row: usize, column: usize| of.round(4.0 * element(1, row, column));
        let z = match slopes {
            Slopes::At(_) => operands.rows(of, shape, z_of)?,
            _ => AnyRows::NONE,
        };
        let words = columns.div_ceil(32) + gap;
        let bit = |row: usize, column: usize| element(2, row, column) > 0.0;
        let mask = match slopes {
            Slopes::Bits => {
                let word = |row: usize, word: usize| {
                    let bits =
                        (32 * word..columns.min(32 * word + 32)).map(|column| (column, bit(row, column)));
                    bits.fold(0, |all, (column, bit)| all | u32::from(bit) << (column % 32))
                };
                // It ends with its last word.
                let count = (rows * words).saturating_sub(gap);
                let all = (0..count).map(|at| word(at / words, at % words));
                let bytes: Vec<u8> = all.flat_map(u32::to_le_bytes).collect();
                operands.bytes(&bytes)?
            }
            _ => 0,
        };
        let scale_of = |which: usize, at: usize| match self.scales[which] {
            0 => 1.0,
            1 => number(3 + which as u64, 0) + 2.0,
            _ => number(3 + which as u64, at) + 2.0,
        };
        let scale = |which: usize, count: usize| match self.scales[which] {
            0 => Ok(0),
            1 => operands.rows(Float::F32, [1, 1, 0], |_, _| scale_of(which, 0)).map(|of| of.base),
            _ => operands.rows(Float::F32, [1, count, 0], |_, at| scale_of(which, at)).map(|of| of.base),
        };
        let (row_scale, column_scale) = (scale(0, rows)?, scale(1, columns)?);

        let gradient = |row: usize, column: usize| {
            let dy = of.round(element(0, row, column));
            match slopes {
                Slopes::Ones => Near::gradient(dy, 1.0, Activation::None),
                Slopes::At(activation) => {
                    Near::gradient(dy, activation.derivative(z_of(row, column)), activation)
                }
                Slopes::Bits => Near::gradient(dy, f64::from(u8::from(bit(row, column))), Activation::None),
            }
        };
        let bounded = |near: Near, of: Float| {
            let near = near.rounded(of.dtype());
            (near.exact, near.error)
        };
        let dz = match self.dz {
            Some(of_dz) => operands.results(of_dz, shape, |row, column| {
                let factor = scale_of(0, row) * scale_of(1, column);
                bounded(gradient(row, column).times(factor, 2.0), of_dz)
            })?,
            None => AnyRows::NONE,
        };
        let dresidual = match self.dresidual {
            true => operands
                .results(of, shape, |row, column| bounded(gradient(row, column).times(BETA, 1.0), of))?,
            false => AnyRows::NONE,
        };
        let strip = (self.strip as usize).min(rows.next_multiple_of((THREADS / threads * ROWS) as usize));
        let strips = rows.div_ceil(strip);
        let sums = match self.sums {
            Some(of_sums) => {
                let before =
                    |column: usize| if self.adds { of_sums.round(element(5, 0, column)) } else { 0.0 };
                let expected = |part: usize, column: usize| {
                    let of_part = part * strip..rows.min((part + 1) * strip);
                    bounded(Near::sum(of_part.map(|row| gradient(row, column)), before(column)), of_sums)
                };
                if self.adds {
                    let there =
                        operands.rows(of_sums, [strips, columns, 0], |_, column| element(5, 0, column))?;
                    operands.become_results(of_sums, there, [strips, columns], expected);
                    there
                } else {
                    operands.results(of_sums, [strips, columns, 0], expected)?
                }
            }
            None => AnyRows::NONE,
        };
        let params = LinearGradientParams::<u8> {
            dy: Global::new(dy.base),
            dy_stride: dy.stride,
            z: Global::new(z.base),
            z_stride: z.stride,
            mask: Global::new(mask),
            mask_stride: words as u64,
            row_scale: Global::new(row_scale),
            column_scale: Global::new(column_scale),
            dz,
            dresidual,
            sums,
            rows: rows as u32,
            columns: columns as u32,
            strip: strip as u32,
            threads,
            row_scale_stride: u32::from(self.scales[0] > 1),
            column_scale_stride: u32::from(self.scales[1] > 1),
            beta: BETA as f32,
            activation: match slopes {
                Slopes::At(activation) => on_device(activation),
                _ => on_device(Activation::Relu),
            },
            adds: u32::from(self.adds),
            reserved: 0,
        };
        let across = columns.div_ceil(threads as usize * self.chunk) as u32;
        operands.launch_grid(module, shared_bytes, [across, strips as u32, 1], 1, (params,))
    }
}
