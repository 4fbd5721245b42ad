//! How the kernels of the families `norm`, `norm_cluster` and `column_sums` are run. On rows of a part of a warp, of some
//! warps, of a block and of more than its threads hold at a time, with and without each operand. Gradients in grids with fewer teams
//! than rows, and of columns in parts.

use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::norm::{NormGradientParams, NormParams};
use warpsmith_dsl::rows::AnyRows;
use warpsmith_emulator::{Config, LaunchError, Module, Report};
use warpsmith_kernels::column_sums::ColumnSumsParams;

use super::Problem;
use super::rows::{Float, Layout, Operands, number};

/// The problems that an entry of these families is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let parts: Vec<&str> = name.split('_').collect();
    if let ["column", "sums", of] = parts[..] {
        return Some(sums(Float::named(of)?));
    }
    let rest = parts.strip_prefix(&["norm"][..])?;
    let (is_clustered, rest) = match rest {
        ["cluster", rest @ ..] => (true, rest),
        _ => (false, rest),
    };
    let (what, rest) = match rest {
        ["gradient", rest @ ..] => (What::Gradient, rest),
        ["columns", rest @ ..] => (What::Columns, rest),
        _ => (What::Norm, rest),
    };
    let is_gradient = what != What::Norm;
    let (is_any, of) = match *rest {
        ["any", of] => (true, Float::named(of)?),
        [of] => (false, Float::named(of)?),
        _ => return None,
    };
    let chunks_of = match what {
        What::Norm => 4,
        What::Gradient => 2,
        What::Columns => 1,
    };
    let layout = Layout::new(of, chunks_of, is_any, is_clustered);
    let Layout { chunk, chunks, unit, .. } = layout;
    let kernel = Kernel { of, what, layout };
    let case = |rows: usize, columns: usize| Case {
        kernel,
        shares: None,
        rows,
        columns: columns.next_multiple_of(unit),
        blocks: 2,
        gap: unit,
        is_centered: true,
        other: of,
        weight: true,
        offset: OFFSET,
        bias: true,
        residual: false,
        statistics: true,
        y: true,
    };
    let of_block = layout.most();
    if what == What::Columns {
        // Parts that end with each of the rows that a thread loads together, and with none; columns of one block and of two.
        let sizes = [(1, 1, 1), (5, 3, 1), (8, 7, 2), (9, 2 * chunk, 3), (6, 40 * chunk + 1, 2), (7, 33, 3)];
        let mut all: Vec<Case> =
            sizes.map(|(rows, columns, blocks)| Case { blocks, ..case(rows, columns) }).into();
        all.push(Case { is_centered: false, bias: false, ..case(6, of_block + 3 * chunk + 1) });
        all.push(Case { statistics: false, gap: 0, ..case(4, of_block - chunk) });
        return Some(all.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect());
    }
    let mut all = vec![
        case(3, 1),
        Case { is_centered: false, bias: false, ..case(70, 2 * chunk + 1) },
        Case { residual: true, gap: 0, ..case(5, 3 * chunk) },
        Case { weight: false, other: Float::F32, ..case(20, 5 * chunk + 2) },
        Case { bias: false, statistics: false, other: Float::F16, ..case(9, 37 * chunk + 3) },
        Case { residual: true, is_centered: false, ..case(7, 35 * chunks * chunk) },
    ];
    if is_clustered {
        all.truncate(3);
        all.iter_mut().for_each(|case| case.rows = case.rows.min(5));
    }
    for (columns, shares) in layout.edges() {
        let rows = if is_clustered { 1 } else { 2 };
        let case = Case { shares: Some(shares), ..case(rows, columns) };
        for other in [Float::F16, Float::Bf16, Float::F32] {
            all.push(Case { other, residual: other == of, ..case });
            if !is_gradient {
                all.push(Case { other, residual: other != of, ..case });
            }
        }
        if !is_gradient && shares[1] == 1 {
            // What is loaded and stored without conversions, if weights have no offset.
            all.push(Case { offset: 0.0, ..case });
            all.push(Case { offset: 0.0, is_centered: false, bias: false, ..case });
        }
    }
    if !is_gradient {
        // Each thing that keeps a norm from that way, alone; and norms of which only the statistics are wanted.
        let case = Case { offset: 0.0, ..case(3, 5 * chunk) };
        let others = [Float::F16, Float::Bf16, Float::F32];
        all.extend(others.map(|other| Case { other, ..case }));
        all.extend([
            Case { weight: false, ..case },
            Case { bias: false, ..case },
            Case { is_centered: false, ..case },
            Case { is_centered: false, weight: false, bias: false, ..case },
            Case { y: false, ..case },
            Case { y: false, rows: 2, columns: of_block + 5 * chunk, ..case },
        ]);
    }
    // Every chunk of a thread, partly; and more than one round.
    all.push(Case { other: Float::Bf16, ..case(3, of_block - 3 * chunk) });
    all.push(Case { residual: true, blocks: 1, ..case(2, of_block + 5 * chunk) });
    all.push(Case { is_centered: false, blocks: 1, ..case(2, of_block + 5 * chunk) });
    Some(all.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

/// What a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Norm,
    Gradient,
    /// The gradients of columns alone.
    Columns,
}

/// What is known of a kernel.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    of: Float,
    what: What,
    layout: Layout,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    kernel: Kernel,
    /// Threads of a block that share a row, and rounds, if they are not as usual.
    shares: Option<[u32; 2]>,
    rows: usize,
    columns: usize,
    /// Blocks, or clusters; at least so many, where each has rows at most once.
    blocks: u32,
    /// Elements between rows.
    gap: usize,
    is_centered: bool,
    /// The type of the result and of weights.
    other: Float,
    weight: bool,
    /// What is added to weights.
    offset: f32,
    bias: bool,
    residual: bool,
    /// Whether statistics are written, or a gradient of columns.
    statistics: bool,
    /// Whether the result is written.
    y: bool,
}

const EPSILON: f32 = 0.125;
const OFFSET: f32 = 1.0;

impl Case {
    fn shares(&self) -> [u32; 2] {
        self.shares.unwrap_or_else(|| self.kernel.layout.shares(self.columns))
    }

    fn x(&self, row: usize, column: usize) -> f64 {
        number(0, row * self.columns + column) + 2.0
    }

    fn residual(&self, row: usize, column: usize) -> f64 {
        2.0 * number(1, row * self.columns + column)
    }

    /// What is normed.
    fn sum(&self, row: usize, column: usize) -> f64 {
        let residual =
            if self.residual && self.kernel.what == What::Norm { self.residual(row, column) } else { 0.0 };
        self.kernel.of.round(self.x(row, column) + residual)
    }

    fn weight(&self, column: usize) -> f64 {
        if self.weight { self.other.round(number(2, column)) + f64::from(self.offset) } else { 1.0 }
    }

    fn bias(&self, column: usize) -> f64 {
        if self.bias { self.other.round(number(3, column)) } else { 0.0 }
    }

    /// The mean and the inverse deviation.
    fn statistics(&self, row: usize) -> [f64; 2] {
        let count = self.columns as f64;
        let mean = |of: &dyn Fn(f64) -> f64| {
            (0..self.columns).map(|column| of(self.sum(row, column))).sum::<f64>() / count
        };
        let center = if self.is_centered { mean(&|x| x) } else { 0.0 };
        [center, 1.0 / (mean(&|x| (x - center) * (x - center)) + f64::from(EPSILON)).sqrt()]
    }

    fn vectors(&self, operands: &Operands) -> Result<[AnyRows; 2], LaunchError> {
        let shape = [1, self.columns, 0];
        let vector = |is_there: bool, which| -> Result<AnyRows, LaunchError> {
            if !is_there {
                return Ok(AnyRows::NONE);
            }
            let rows = operands.rows(self.other, shape, |_, column| number(which, column))?;
            Ok(AnyRows { stride: 0, ..rows })
        };
        Ok([AnyRows { offset: self.offset, ..vector(self.weight, 2)? }, vector(self.bias, 3)?])
    }

    fn forward(
        &self,
        mut operands: Operands,
        module: &Module,
        shared_bytes: u32,
    ) -> Result<(Report, bool), LaunchError> {
        let &Self { kernel, rows, columns, gap, .. } = self;
        let of = kernel.of;
        let shape = [rows, columns, gap];
        let x = operands
            .rows(if self.residual { self.other } else { of }, shape, |row, column| self.x(row, column))?;
        let [weight, bias] = self.vectors(&operands)?;
        let statistics: Vec<[f64; 2]> = (0..rows).map(|row| self.statistics(row)).collect();
        let mut y = AnyRows::NONE;
        if self.y {
            y = operands.results(self.other, shape, |row, column| {
                let [mean, deviation] = statistics[row];
                let y = (self.sum(row, column) - mean) * deviation * self.weight(column) + self.bias(column);
                (y, 1.01 * self.other.unit() * y.abs() + 2e-5)
            })?;
        }
        let mut vector = |which: usize| {
            operands.results(Float::F32, [1, rows, 0], |_, row| (statistics[row][which], 2e-5))
        };
        let [mut mean, mut deviation] = [AnyRows::NONE; 2];
        if self.statistics {
            deviation = vector(1)?;
            if self.is_centered {
                mean = vector(0)?;
            }
        }
        let (mut residual, mut sum) = (AnyRows::NONE, AnyRows::NONE);
        if self.residual {
            residual = operands.rows(of, shape, |row, column| self.residual(row, column))?;
            sum = operands.results(of, shape, |row, column| (self.sum(row, column), 0.0))?;
        }
        let [threads, rounds] = self.shares();
        let params = NormParams::<u8> {
            x,
            weight,
            bias,
            y,
            residual: Global::new(residual.base),
            sum: GlobalMut::new(sum.base),
            residual_stride: residual.stride,
            sum_stride: sum.stride,
            mean: GlobalMut::new(mean.base),
            deviation: GlobalMut::new(deviation.base),
            rows: rows as u32,
            columns: columns as u32,
            threads,
            rounds,
            inverse: 1.0 / columns as f32,
            epsilon: EPSILON,
            is_centered: u32::from(self.is_centered),
            reserved: 0,
        };
        let grid = kernel.layout.grid(rows, threads, self.blocks);
        operands.launch(module, shared_bytes, grid, (params,))
    }

    fn backward(
        &self,
        mut operands: Operands,
        module: &Module,
        shared_bytes: u32,
    ) -> Result<(Report, bool), LaunchError> {
        let &Self { kernel, rows, columns, gap, .. } = self;
        let of = kernel.of;
        let shape = [rows, columns, gap];
        let x = operands.rows(of, shape, |row, column| self.x(row, column))?;
        let dy_of = |row: usize, column: usize| number(4, row * columns + column);
        let dy = operands.rows(of, shape, dy_of)?;
        let mut dsum = AnyRows::NONE;
        if self.residual {
            dsum = operands.rows(of, shape, |row, column| self.residual(row, column))?;
        }
        let [weight, _] = self.vectors(&operands)?;
        let statistics: Vec<[f64; 2]> = (0..rows).map(|row| self.statistics(row)).collect();
        let gradient = |row: usize, column: usize| dy_of(row, column) * self.weight(column);
        let mean_of = |of: &dyn Fn(usize) -> f64| (0..columns).map(of).sum::<f64>() / columns as f64;
        let sums: Vec<[f64; 2]> = (0..rows)
            .map(|row| {
                let of_mean = if self.is_centered { mean_of(&|column| gradient(row, column)) } else { 0.0 };
                [
                    of_mean,
                    mean_of(&|column| gradient(row, column) * self.normed_by(statistics[row], row, column)),
                ]
            })
            .collect();
        let mut dx = AnyRows::NONE;
        if kernel.what == What::Gradient {
            dx = operands.results(of, shape, |row, column| {
                let [of_mean, of_deviation] = sums[row];
                let normed = self.normed_by(statistics[row], row, column);
                let rest = gradient(row, column) - of_mean - normed * of_deviation;
                let dx =
                    rest * statistics[row][1] + if self.residual { self.residual(row, column) } else { 0.0 };
                (dx, 1.01 * of.unit() * dx.abs() + 2e-5)
            })?;
        }
        let vector = |which: usize| operands.rows(Float::F32, [1, rows, 0], |_, row| statistics[row][which]);
        let [mean, deviation] = [vector(0)?, vector(1)?];
        // The rows of each block, or cluster, in turn; of columns alone one after the other.
        let [threads, rounds] = self.shares();
        let is_columns = kernel.what == What::Columns;
        let teams = if kernel.layout.cluster > 1 { 1 } else { 256 / threads as usize };
        let blocks = self.blocks as usize;
        let part_of =
            |row: usize| if is_columns { row / rows.div_ceil(blocks) } else { row / teams % blocks };
        let of_part = |part: usize| (0..rows).filter(move |&row| part_of(row) == part);
        let parts = if is_columns { blocks } else { blocks.min(rows.div_ceil(teams)) };
        let part_shape = [parts, columns, 0];
        let [mut dweight, mut dbias] = [AnyRows::NONE; 2];
        let adds_up = is_columns || rounds == 1;
        if self.statistics && adds_up {
            dweight = operands.results(Float::F32, part_shape, |part, column| {
                let term = |row| dy_of(row, column) * self.normed_by(statistics[row], row, column);
                (of_part(part).map(term).sum(), 1e-4)
            })?;
        }
        if self.bias && adds_up {
            dbias = operands.results(Float::F32, part_shape, |part, column| {
                (of_part(part).map(|row| dy_of(row, column)).sum(), 1e-4)
            })?;
        }
        let params = NormGradientParams::<u8> {
            weight,
            x: Global::new(x.base),
            dy: Global::new(dy.base),
            dsum: Global::new(dsum.base),
            dx: GlobalMut::new(dx.base),
            strides: [x.stride, dy.stride, dsum.stride, dx.stride],
            mean: Global::new(if self.is_centered { mean.base } else { 0 }),
            deviation: Global::new(deviation.base),
            dweight: GlobalMut::new(dweight.base),
            dbias: GlobalMut::new(dbias.base),
            rows: rows as u32,
            columns: columns as u32,
            threads,
            rounds,
            inverse: 1.0 / columns as f32,
            is_centered: u32::from(self.is_centered),
        };
        if is_columns {
            let across = columns.div_ceil(256 * kernel.layout.chunk) as u32;
            return operands.launch_grid(module, shared_bytes, [across, parts as u32, 1], 1, (params,));
        }
        let cluster = kernel.layout.cluster as u32;
        operands.launch(module, shared_bytes, [parts as u32 * cluster, cluster], (params,))
    }

    fn normed_by(&self, [mean, deviation]: [f64; 2], row: usize, column: usize) -> f64 {
        (self.sum(row, column) - mean) * deviation
    }
}

impl Problem for Case {
    fn name(&self) -> &str {
        match (self.residual, self.is_centered) {
            (true, true) => "a layer norm with a residual",
            (true, false) => "an RMS norm with a residual",
            (false, true) => "a layer norm",
            (false, false) => "an RMS norm",
        }
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let operands = Operands::new(config);
        if self.kernel.what != What::Norm {
            self.backward(operands, module, shared_bytes)
        } else {
            self.forward(operands, module, shared_bytes)
        }
    }
}

/// Rows around what a warp has of a block, and columns around a block's, added to what is there or not.
fn sums(of: Float) -> Vec<Box<dyn Problem>> {
    // Those behind the first six end with each of the rows that a thread reads at a time.
    let sizes = [[1, 1], [7, 31], [8, 33], [65, 64], [70, 5], [129, 40]];
    let ends = (2..=8).map(|reads| [8 * reads, 3]);
    let sizes = sizes.into_iter().chain(ends);
    let case = |(index, [rows, columns]): (usize, [usize; 2])| Sum {
        of,
        rows,
        columns,
        adds: index % 2 == 1,
        is_alone: index > 3,
    };
    sizes.enumerate().map(|size| Box::new(case(size)) as Box<dyn Problem>).collect()
}

struct Sum {
    of: Float,
    rows: usize,
    columns: usize,
    adds: bool,
    /// Whether there is one matrix, not two.
    is_alone: bool,
}

impl Problem for Sum {
    fn name(&self) -> &str {
        if self.adds { "sums of columns onto others" } else { "sums of columns" }
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let &Self { of, rows, columns, adds, is_alone } = self;
        let mut operands = Operands::new(config);
        let x = |which: u64, at: usize| number(which, at);
        let mut matrix = |which: u64| -> Result<[AnyRows; 2], LaunchError> {
            let parts = operands
                .rows(Float::F32, [rows, columns, 0], |row, column| x(which, row * columns + column))?;
            let before = |column: usize| if adds { number(2, column) } else { 0.0 };
            let y = operands.rows(of, [1, columns, 0], |_, column| number(2, column))?;
            operands.become_results(of, y, [1, columns], |_, column| {
                let sum: f64 = (0..rows).map(|row| x(which, row * columns + column)).sum();
                // Multiples of 1/64, whose sums are exact in f32.
                (of.round(sum + before(column)), 0.0)
            });
            Ok([parts, y])
        };
        let first = matrix(0)?;
        let second = if is_alone { [AnyRows::NONE; 2] } else { matrix(1)? };
        let params = ColumnSumsParams::<u8> {
            x: [Global::new(first[0].base), Global::new(second[0].base)],
            y: [GlobalMut::new(first[1].base), GlobalMut::new(second[1].base)],
            rows: rows as u32,
            columns: columns as u32,
            adds: u32::from(adds),
            reserved: 0,
        };
        operands.launch_grid(module, shared_bytes, [columns.div_ceil(32) as u32, 2, 1], 1, (params,))
    }
}
