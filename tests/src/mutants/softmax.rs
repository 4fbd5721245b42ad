//! How the kernels of the families `softmax`, `softmax_cluster`, `cross_entropy` and `cross_entropy_cluster` are run. On rows
//! of a part of a warp, of some warps, of a block and of more than its threads hold at a time, with and without each operand.

use warpsmith::cpu::{self, CrossEntropy, Target};
use warpsmith_dsl::cross_entropy::{CrossEntropyParams, LabelKind, Labels};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::rows::AnyRows;
use warpsmith_dsl::softmax::{SoftmaxGradientParams, SoftmaxParams};
use warpsmith_emulator::{Config, LaunchError, Module, Report};
use warpsmith_lab::bound::softmax as bound;

use super::Problem;
use super::rows::{Float, Layout, Operands, number};

/// The problems that an entry of these families is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    match name {
        "label_counts" => return Some(boxed(Count::all())),
        "loss_sums" => return Some(boxed(Sum::all())),
        _ => {}
    }
    let (is_loss, rest) = match name.strip_prefix("cross_entropy_") {
        Some(rest) => (true, rest),
        None => (false, name.strip_prefix("softmax_")?),
    };
    let (is_clustered, rest) = rest.strip_prefix("cluster_").map_or((false, rest), |rest| (true, rest));
    let (is_gradient, rest) = rest.strip_prefix("gradient_").map_or((false, rest), |rest| (true, rest));
    let (is_any, rest) = rest.strip_prefix("any_").map_or((false, rest), |rest| (true, rest));
    let of = Float::named(rest)?;
    let layout = Layout::new(of, if is_gradient { 2 } else { 4 }, is_any, is_clustered);
    let kernel = Kernel { of, layout };
    Some(match (is_loss, is_gradient) {
        (true, _) => boxed(Loss::all(kernel)),
        (false, true) => boxed(Gradient::all(kernel)),
        (false, false) => boxed(Softmax::all(kernel)),
    })
}

fn boxed<P: Problem + 'static>(problems: Vec<P>) -> Vec<Box<dyn Problem>> {
    problems.into_iter().map(|problem| Box::new(problem) as Box<dyn Problem>).collect()
}

/// What is known of a kernel.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    of: Float,
    layout: Layout,
}

impl Kernel {
    /// Columns where rows end, with who shares them, and each type of a result.
    fn edges(&self) -> impl Iterator<Item = (usize, [u32; 2], Float)> {
        self.layout.edges().into_iter().flat_map(|(columns, shares)| {
            [Float::F16, Float::Bf16, Float::F32].map(|of| (columns, shares, of))
        })
    }

    /// Rows of what ends there: few of a cluster's.
    fn rows(&self) -> usize {
        if self.layout.cluster > 1 { 1 } else { 2 }
    }

    fn columns(&self, columns: usize) -> usize {
        columns.next_multiple_of(self.layout.unit)
    }
}

/// Numbers rounded to a type.
fn rounded(of: Float, count: usize, value: impl Fn(usize) -> f64) -> Vec<f32> {
    (0..count).map(|at| of.round(value(at)) as f32).collect()
}

fn row_of<T>(numbers: &[T], columns: usize, row: usize) -> &[T] {
    &numbers[row * columns..][..columns]
}

#[derive(Clone, Copy, Debug)]
struct Softmax {
    kernel: Kernel,
    /// Threads of a block that share a row, and rounds, if they are not as usual.
    shares: Option<[u32; 2]>,
    rows: usize,
    columns: usize,
    /// Blocks, or clusters, that there are at least.
    blocks: u32,
    gap: usize,
    /// The type of results.
    other: Float,
    /// Rows of the mask: none, one or all.
    masks: usize,
    scale: f32,
}

impl Softmax {
    fn all(kernel: Kernel) -> Vec<Self> {
        let case = |rows: usize, columns: usize| Self {
            kernel,
            shares: None,
            rows,
            columns: kernel.columns(columns),
            blocks: 2,
            gap: kernel.layout.unit,
            other: kernel.of,
            masks: 0,
            scale: 0.75,
        };
        let Layout { chunk, chunks, .. } = kernel.layout;
        let mut all = vec![
            case(3, 1),
            Self { masks: 70, ..case(70, 2 * chunk + 1) },
            Self { masks: 1, gap: 0, other: Float::F32, ..case(20, 5 * chunk + 2) },
            Self { masks: 9, other: Float::F16, scale: 3.0, ..case(9, 37 * chunk + 3) },
            case(7, 35 * chunks * chunk),
        ];
        if kernel.layout.cluster > 1 {
            all.truncate(3);
            for case in &mut all {
                case.rows = case.rows.min(5);
                case.masks = case.masks.min(case.rows);
            }
        }
        for (number, (columns, shares, other)) in kernel.edges().enumerate() {
            let masks = [0, 1, kernel.rows()][number / 3 % 3];
            let plain = Self { shares: Some(shares), other, masks: 0, ..case(kernel.rows(), columns) };
            all.push(plain);
            all.push(Self { masks: masks.max(1), ..plain });
        }
        // Every chunk of a thread, partly; and more than one round.
        all.push(Self { other: Float::Bf16, ..case(3, kernel.layout.most() - 3 * chunk) });
        all.push(Self { masks: 2, blocks: 1, ..case(2, kernel.layout.most() + 5 * chunk) });
        all
    }
}

impl Problem for Softmax {
    fn name(&self) -> &str {
        if self.masks > 0 { "a softmax with a mask" } else { "a softmax" }
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let &Self { kernel, rows, columns, gap, other, masks, scale, .. } = self;
        let mut operands = Operands::new(config);
        // The last row has nothing, the one before NaN, of more than one.
        let value = |at: usize| match (rows - 1 - at / columns, at % columns) {
            (0, _) if rows > 2 => f64::NEG_INFINITY,
            (1, 0) if rows > 2 => f64::NAN,
            _ if at % 11 == 5 => f64::NEG_INFINITY,
            _ => 6.0 * number(0, at) + 3.0 * (at % 97) as f64 / 97.0,
        };
        let x = rounded(kernel.of, rows * columns, value);
        let counts: Vec<u8> = (0..masks * columns).map(|at| u8::from(number(1, at) > -0.5) * 5).collect();
        let expected: Vec<Vec<bound::Bounded>> = (0..rows)
            .map(|row| {
                let mask = match masks {
                    0 => None,
                    1 => Some(&counts[..]),
                    _ => Some(row_of(&counts, columns, row)),
                };
                bound::softmax(row_of(&x, columns, row), mask, scale, other.dtype())
            })
            .collect();
        let shape = [rows, columns, gap];
        let from = operands.rows(kernel.of, shape, |row, column| f64::from(x[row * columns + column]))?;
        let y = operands.results(other, shape, |row, column| expected[row][column])?;
        let mut mask = 0;
        if masks > 0 {
            let with_gaps: Vec<u8> = (0..masks * (columns + gap) - gap)
                .map(|at| match (at / (columns + gap), at % (columns + gap)) {
                    (row, column) if column < columns => counts[row * columns + column],
                    _ => 1,
                })
                .collect();
            mask = operands.bytes(&with_gaps)?;
        }
        let [threads, rounds] = self.shares.unwrap_or_else(|| kernel.layout.shares(columns));
        let params = SoftmaxParams::<u8> {
            y,
            x: Global::new(from.base),
            mask: Global::new(mask),
            x_stride: from.stride,
            mask_stride: if masks > 1 { (columns + gap) as u64 } else { 0 },
            rows: rows as u32,
            columns: columns as u32,
            threads,
            rounds,
            factor: scale * std::f32::consts::LOG2_E,
            reserved: 0,
        };
        operands.launch(module, shared_bytes, kernel.layout.grid(rows, threads, self.blocks), (params,))
    }
}

#[derive(Clone, Copy, Debug)]
struct Gradient {
    kernel: Kernel,
    /// Threads of a block that share a row, and rounds, if they are not as usual.
    shares: Option<[u32; 2]>,
    rows: usize,
    columns: usize,
    /// Blocks, or clusters, that there are at least.
    blocks: u32,
    gap: usize,
    /// The types of both gradients.
    others: [Float; 2],
}

impl Gradient {
    fn all(kernel: Kernel) -> Vec<Self> {
        let case = |rows: usize, columns: usize| Self {
            kernel,
            shares: None,
            rows,
            columns: kernel.columns(columns),
            blocks: 2,
            gap: kernel.layout.unit,
            others: [kernel.of; 2],
        };
        let Layout { chunk, chunks, .. } = kernel.layout;
        let mut all = vec![
            case(3, 1),
            Self { others: [Float::F32, Float::F16], ..case(70, 2 * chunk + 1) },
            Self { gap: 0, others: [Float::Bf16, Float::F32], ..case(20, 5 * chunk + 2) },
            Self { others: [Float::F16, Float::Bf16], ..case(9, 37 * chunk + 3) },
            case(7, 35 * chunks * chunk),
        ];
        if kernel.layout.cluster > 1 {
            all.truncate(4);
            all.iter_mut().for_each(|case| case.rows = case.rows.min(5));
        }
        for (columns, shares, of) in kernel.edges() {
            all.push(Self { shares: Some(shares), others: [of; 2], ..case(kernel.rows(), columns) });
        }
        all.push(case(3, kernel.layout.most() - 3 * chunk));
        all.push(Self { blocks: 1, ..case(2, kernel.layout.most() + 5 * chunk) });
        all
    }
}

impl Problem for Gradient {
    fn name(&self) -> &'static str {
        "a softmax's gradient"
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        const SCALE: f32 = 0.75;
        let &Self { kernel, rows, columns, gap, others: [of_dy, of_dx], .. } = self;
        let mut operands = Operands::new(config);
        let mut y = Vec::new();
        for row in 0..rows {
            let x: Vec<f32> =
                (0..columns).map(|column| number(0, row * columns + column) as f32 * 3.0).collect();
            let mut shares = vec![0.0f64; columns];
            cpu::softmax(&x, None, 1.0, &mut shares);
            // Without a part of them, as with a mask.
            let value = |column: usize| if column % 11 == 5 { 0.0 } else { shares[column] };
            y.extend(rounded(kernel.of, columns, value));
        }
        let value = |at: usize| if y[at] == 0.0 { f64::NAN } else { 4.0 * number(1, at) };
        let dy = rounded(of_dy, rows * columns, value);
        let expected: Vec<Vec<bound::Bounded>> = (0..rows)
            .map(|row| {
                bound::softmax_gradient(
                    row_of(&y, columns, row),
                    row_of(&dy, columns, row),
                    SCALE,
                    of_dx.dtype(),
                )
            })
            .collect();
        let shape = [rows, columns, gap];
        let from = operands.rows(kernel.of, shape, |row, column| f64::from(y[row * columns + column]))?;
        let dy = operands.rows(of_dy, shape, |row, column| f64::from(dy[row * columns + column]))?;
        let dx = operands.results(of_dx, shape, |row, column| expected[row][column])?;
        let [threads, rounds] = self.shares.unwrap_or_else(|| kernel.layout.shares(columns));
        let params = SoftmaxGradientParams::<u8> {
            dy,
            dx,
            y: Global::new(from.base),
            y_stride: from.stride,
            rows: rows as u32,
            columns: columns as u32,
            threads,
            rounds,
            scale: SCALE,
            reserved: 0,
        };
        operands.launch(module, shared_bytes, kernel.layout.grid(rows, threads, self.blocks), (params,))
    }
}

#[derive(Clone, Copy, Debug)]
struct Loss {
    kernel: Kernel,
    /// Threads of a block that share a row, and rounds, if they are not as usual.
    shares: Option<[u32; 2]>,
    rows: usize,
    columns: usize,
    /// Blocks, or clusters, that there are at least.
    blocks: u32,
    gap: usize,
    options: CrossEntropy,
    /// The type of the gradient; none if it is not written.
    gradient: Option<Float>,
    lse: bool,
    /// Parts that labels have been counted in; none if the gradient is not divided.
    parts: usize,
    labels: LabelKind,
}

const PLAIN: CrossEntropy = CrossEntropy { smoothing: 0.0, z_loss: 0.0, soft_cap: None };
const IGNORED: i64 = -7;

impl Loss {
    fn all(kernel: Kernel) -> Vec<Self> {
        let case = |rows: usize, columns: usize| Self {
            kernel,
            shares: None,
            rows,
            columns: kernel.columns(columns),
            blocks: 2,
            gap: kernel.layout.unit,
            options: PLAIN,
            gradient: Some(kernel.of),
            lse: true,
            parts: 0,
            labels: LabelKind::I64,
        };
        let Layout { chunk, chunks, .. } = kernel.layout;
        let smooth = CrossEntropy { smoothing: 0.125, ..PLAIN };
        let capped = CrossEntropy { soft_cap: Some(3.0), ..PLAIN };
        let every = CrossEntropy { smoothing: 0.125, z_loss: 0.25, soft_cap: Some(3.0) };
        let mut all = vec![
            case(5, 1),
            Self { options: every, parts: 40, gradient: Some(Float::F32), ..case(70, 2 * chunk + 1) },
            Self { options: capped, gap: 0, labels: LabelKind::I32, parts: 1, ..case(20, 5 * chunk + 2) },
            Self { options: smooth, lse: false, gradient: Some(Float::F16), ..case(9, 37 * chunk + 3) },
            Self { labels: LabelKind::U32, gradient: None, lse: false, ..case(7, 35 * chunks * chunk) },
        ];
        if kernel.layout.cluster > 1 {
            all.truncate(4);
            all.iter_mut().for_each(|case| case.rows = case.rows.min(5));
        }
        for (columns, shares, of) in kernel.edges() {
            let (shares, gradient) = (Some(shares), Some(of));
            all.push(Self { shares, gradient, options: capped, ..case(kernel.rows(), columns) });
        }
        // Every chunk of a thread, partly; and more than one round.
        all.push(Self {
            gradient: Some(Float::Bf16),
            options: smooth,
            ..case(3, kernel.layout.most() - 3 * chunk)
        });
        all.push(Self { options: every, blocks: 1, ..case(3, kernel.layout.most() + 5 * chunk) });
        all
    }

    /// The label of a row: some are ignored, some no columns.
    fn label(&self, row: usize) -> (i64, Target) {
        match row % 5 {
            1 if self.labels != LabelKind::U32 => (IGNORED, Target::Ignored),
            4 => (self.columns as i64, Target::Outside),
            _ => {
                let column = (row * 131 + self.columns * 3 / 4) % self.columns;
                (column as i64, Target::Column(column))
            }
        }
    }
}

impl Problem for Loss {
    fn name(&self) -> &str {
        if self.gradient.is_some() { "losses and their gradient" } else { "losses" }
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        const SCALE: f32 = 1.5;
        let &Self { kernel, rows, columns, gap, options, parts, .. } = self;
        let mut operands = Operands::new(config);
        let x = rounded(kernel.of, rows * columns, |at| 6.0 * number(0, at) + 3.0 * (at % 97) as f64 / 97.0);
        // Of the parts each has so many; their sum is what the gradient is divided by.
        let counts: Vec<u32> = (0..parts as u32).map(|part| part % 3 + 1).collect();
        let divisor = if parts == 0 { 1.0 } else { f64::from(counts.iter().sum::<u32>()) };
        let of_gradient = self.gradient.unwrap_or(Float::F32);
        let expected: Vec<bound::Loss> = (0..rows)
            .map(|row| {
                let factor = f64::from(SCALE) / divisor;
                bound::loss(row_of(&x, columns, row), self.label(row).1, options, factor, of_gradient.dtype())
            })
            .collect();
        let bytes: Vec<u8> = (0..rows)
            .flat_map(|row| match (self.labels, self.label(row).0) {
                (LabelKind::I64, label) => label.to_le_bytes().to_vec(),
                (_, label) => (label as i32).to_le_bytes().to_vec(),
            })
            .collect();
        let labels =
            Labels { base: operands.bytes(&bytes)?, ignored: IGNORED, kind: self.labels, ignores: 1 };
        let shape = [rows, columns, gap];
        let logits = operands.rows(kernel.of, shape, |row, column| f64::from(x[row * columns + column]))?;
        let mut gradient = AnyRows::NONE;
        if self.gradient.is_some() {
            gradient = operands.results(of_gradient, shape, |row, column| expected[row].gradient[column])?;
        }
        let loss = operands.results(Float::F32, [1, rows, 0], |_, row| expected[row].loss)?;
        let mut lse = AnyRows::NONE;
        if self.lse {
            lse = operands.results(Float::F32, [1, rows, 0], |_, row| expected[row].lse)?;
        }
        let mut of_counts = 0;
        if parts > 0 {
            let bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
            of_counts = operands.bytes(&bytes)?;
        }
        // Half of the scale, from memory.
        let device_scale = if self.lse { operands.bytes(&0.5f32.to_le_bytes())? } else { 0 };
        let gradient_scale = if self.lse { 2.0 * SCALE } else { SCALE };
        let [threads, rounds] = self.shares.unwrap_or_else(|| kernel.layout.shares(columns));
        let cap = options.soft_cap;
        let params = CrossEntropyParams::<u8> {
            gradient,
            labels,
            logits: Global::new(logits.base),
            logits_stride: logits.stride,
            loss: GlobalMut::new(loss.base),
            lse: GlobalMut::new(lse.base),
            counts: Global::new(of_counts),
            device_scale: Global::new(device_scale),
            parts: parts as u32,
            rows: rows as u32,
            columns: columns as u32,
            threads,
            rounds,
            smoothing: options.smoothing,
            inverse: 1.0 / columns as f32,
            z_loss: options.z_loss,
            cap: cap.unwrap_or(0.0),
            inverse_cap: cap.map_or(0.0, f32::recip),
            gradient_scale,
            reserved: 0,
        };
        operands.launch(module, shared_bytes, kernel.layout.grid(rows, threads, self.blocks), (params,))
    }
}

#[derive(Clone, Copy, Debug)]
struct Count {
    rows: usize,
    part: usize,
    labels: LabelKind,
    ignores: bool,
}

impl Count {
    fn all() -> Vec<Self> {
        vec![
            Self { rows: 1, part: 2048, labels: LabelKind::I64, ignores: true },
            Self { rows: 700, part: 300, labels: LabelKind::I64, ignores: true },
            Self { rows: 530, part: 400, labels: LabelKind::I32, ignores: true },
            Self { rows: 530, part: 265, labels: LabelKind::U32, ignores: true },
            Self { rows: 300, part: 300, labels: LabelKind::U32, ignores: false },
            Self { rows: 513, part: 256, labels: LabelKind::I32, ignores: true },
            Self { rows: 511, part: 256, labels: LabelKind::I64, ignores: true },
        ]
    }
}

impl Problem for Count {
    fn name(&self) -> &'static str {
        "labels that count"
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let &Self { rows, part, labels: kind, ignores } = self;
        let mut operands = Operands::new(config);
        let ignored = if kind == LabelKind::U32 { i64::from(u32::MAX) } else { IGNORED };
        let is_ignored = |row: usize| number(0, row) > 0.5;
        let label = |row: usize| match (is_ignored(row), kind) {
            (true, _) => ignored,
            // What differs from it in either half of the bits only.
            (false, LabelKind::I64) if row.is_multiple_of(3) => ignored ^ 1 << 40,
            (false, _) => row as i64,
        };
        let bytes: Vec<u8> = (0..rows)
            .flat_map(|row| match kind {
                LabelKind::I64 => label(row).to_le_bytes().to_vec(),
                _ => (label(row) as u32).to_le_bytes().to_vec(),
            })
            .collect();
        let labels = Labels { base: operands.bytes(&bytes)?, ignored, kind, ignores: u32::from(ignores) };
        let parts = rows.div_ceil(part);
        let counts = operands.results(Float::F32, [1, parts, 0], |_, at| {
            let of_part = at * part..((at + 1) * part).min(rows);
            let count = of_part.filter(|&row| !ignores || !is_ignored(row)).count();
            // The bits are compared, as those of a number.
            (f32::from_bits(count as u32).into(), 0.0)
        })?;
        let args = (labels, GlobalMut::<u32>::new(counts.base), rows as u32, part as u32);
        operands.launch(module, shared_bytes, [parts as u32, 1], args)
    }
}

#[derive(Clone, Copy, Debug)]
struct Sum {
    rows: usize,
    part: usize,
    /// Parts that labels have been counted in, and what they come to.
    counts: [u32; 2],
}

impl Sum {
    fn all() -> Vec<Self> {
        vec![
            Self { rows: 1, part: 2048, counts: [0, 0] },
            Self { rows: 700, part: 300, counts: [0, 0] },
            Self { rows: 530, part: 530, counts: [1, 64] },
            Self { rows: 20, part: 2048, counts: [40, 8] },
            Self { rows: 300, part: 300, counts: [3, 0] },
            Self { rows: 511, part: 256, counts: [0, 0] },
            Self { rows: 40, part: 2048, counts: [32, 64] },
        ]
    }
}

impl Problem for Sum {
    fn name(&self) -> &'static str {
        "sums of losses"
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let &Self { rows, part, counts: [of_counts, count] } = self;
        let mut operands = Operands::new(config);
        let losses = operands.rows(Float::F32, [1, rows, 0], |_, row| number(0, row))?;
        // Where there are fewer rows than parts, the last parts have one each.
        let of_part = |at: u32| match count < of_counts {
            true => u32::from(at + count >= of_counts),
            false => count / of_counts,
        };
        let counts: Vec<u8> = (0..of_counts).flat_map(|at| of_part(at).to_le_bytes()).collect();
        let counts = if of_counts > 0 { operands.bytes(&counts)? } else { 0 };
        let parts = rows.div_ceil(part);
        let sums = operands.results(Float::F32, [1, parts, 0], |_, at| {
            // Multiples of 1/64, whose sums are exact in f32.
            let sum: f64 = (at * part..((at + 1) * part).min(rows)).map(|row| number(0, row)).sum();
            match (of_counts, count) {
                (0, _) => (sum, 0.0),
                (_, 0) => (0.0, 0.0),
                _ => (sum / f64::from(count), 1e-6 * sum.abs()),
            }
        })?;
        let args = (
            Global::<f32>::new(losses.base),
            Global::<u32>::new(counts),
            GlobalMut::<f32>::new(sums.base),
            rows as u32,
            part as u32,
            of_counts,
        );
        operands.launch(module, shared_bytes, [parts as u32, 1], args)
    }
}
