//! How the kernels of the family `embedding` are run: look-ups with ids of both types, of which some are out of range. Passes
//! of the sort over parts of a tile and over several. Sums of few rows and of more than are loaded together, into rows of their
//! own and onto those of a table.

use warpsmith_dsl::embedding::order::{DIGITS, DistinctParams, PassParams, TILE, pitch};
use warpsmith_dsl::embedding::{GatherParams, GradientParams, Ids, WeightedParams};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_emulator::{Config, LaunchError, Module, Report};

use super::Problem;
use super::rows::{Float, Layout, Operands, number};

/// What is behind the numbers of a row.
const UNTOUCHED_WORD: u32 = 7;

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let rest = name.strip_prefix("embedding_")?;
    match rest {
        "count" => return Some(boxed(Pass::all(false))),
        "order" => return Some(boxed(Pass::all(true))),
        "sums" => return Some(boxed(Sums::all())),
        "distinct_count" => return Some(boxed(Distinct::all(false))),
        "distinct_put" => return Some(boxed(Distinct::all(true))),
        _ => {}
    }
    let (is_weighted, rest) = rest.strip_prefix("weighted_").map_or((false, rest), |rest| (true, rest));
    let (is_gradient, rest) = rest.strip_prefix("gradient_").map_or((is_weighted, rest), |rest| (true, rest));
    let (is_any, rest) = rest.strip_prefix("any_").map_or((false, rest), |rest| (true, rest));
    let of = match (is_gradient, rest) {
        (false, "16") => Float::F16,
        (false, "32") => Float::F32,
        (false, _) => return None,
        (true, _) => Float::named(rest)?,
    };
    Some(if is_weighted {
        boxed(Weighted::all(of, Layout::new(of, 1, is_any, false)))
    } else if is_gradient {
        boxed(Gradient::all(of, Layout::new(of, 1, is_any, false)))
    } else {
        boxed(Gather::all(of, Layout::new(of, 4, is_any, false)))
    })
}

fn boxed<P: Problem + 'static>(problems: Vec<P>) -> Vec<Box<dyn Problem>> {
    problems.into_iter().map(|problem| Box::new(problem) as Box<dyn Problem>).collect()
}

/// Rows of a table.
const ROWS: usize = 5;

/// Ids as a kernel takes them.
fn ids(operands: &Operands, ids: &[i64], is_wide: bool, limit: usize) -> Result<Ids, LaunchError> {
    let bytes: Vec<u8> = match is_wide {
        true => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
        false => ids.iter().flat_map(|&id| (id as u32).to_le_bytes()).collect(),
    };
    Ok(Ids { base: operands.bytes(&bytes)?, is_wide: u32::from(is_wide), limit: limit as u32 })
}

/// An id, as it is and as a row of a table of so many; the number of rows stands for those that are none.
fn id(at: usize, is_wide: bool, limit: usize) -> (i64, u32) {
    let row = (number(3, at) + 1.0) * 64.0 * (number(4, at) + 1.0) * 64.0;
    let row = row as usize % limit;
    match at % 7 {
        1 => (limit as i64 - 1, limit as u32 - 1),
        2 => (limit as i64, limit as u32),
        4 if is_wide => (row as i64 + (1 << 33), limit as u32),
        4 => (-1, limit as u32),
        _ => (row as i64, row as u32),
    }
}

#[derive(Clone, Copy, Debug)]
struct Gather {
    of: Float,
    tokens: usize,
    columns: usize,
    gap: usize,
    is_wide: bool,
    threads: u32,
    grid: [u32; 3],
}

impl Gather {
    fn all(of: Float, layout: Layout) -> Vec<Self> {
        let Layout { chunk, unit, .. } = layout;
        let least = layout.least();
        let round = least * layout.chunks * chunk;
        // Where each chunk of a thread ends, or each element of chunks that are no neighbours.
        let apart = unit.max(least);
        let case = |columns: usize, is_wide: bool| Self {
            of,
            tokens: 9,
            columns,
            gap: unit,
            is_wide,
            threads: least as u32,
            grid: [1, 1, 1],
        };
        let mut all: Vec<Self> = (1..=round / apart + 1).map(|end| case(end * apart, end % 2 == 0)).collect();
        all.extend([
            // The last of the tokens has a row, and another.
            Self { tokens: 2, ..case(unit, false) },
            Self { tokens: 3, ..case(unit, true) },
            Self { threads: 64, grid: [1, 2, 1], gap: 0, ..case(64 * chunk, true) },
            Self { threads: least.max(2) as u32, tokens: 300, ..case(2 * unit, false) },
            Self { grid: [2, 1, 1], tokens: 4, ..case(7 * round, false) },
        ]);
        all
    }
}

impl Problem for Gather {
    fn name(&self) -> &'static str {
        "a look-up"
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let &Self { of, tokens, columns, gap, is_wide, threads, grid } = self;
        let mut operands = Operands::new(config);
        let element = |row: usize, column: usize| number(0, row * columns + column);
        let table = operands.rows(of, [ROWS, columns, gap], element)?;
        let all: Vec<(i64, u32)> = (0..tokens).map(|token| id(token, is_wide, ROWS)).collect();
        let given: Vec<i64> = all.iter().map(|&(id, _)| id).collect();
        let ids = ids(&operands, &given, is_wide, ROWS)?;
        let y = operands.results(of, [tokens, columns, 2 * gap], |token, column| {
            let row = all[token].1 as usize;
            (if row < ROWS { element(row, column) } else { f64::NAN }, 0.0)
        })?;
        let params = GatherParams::<u8> {
            table: Global::new(table.base),
            table_stride: table.stride,
            ids,
            y: GlobalMut::new(y.base),
            y_stride: y.stride,
            tokens: tokens as u32,
            columns: columns as u32,
            threads,
            missing: if of == Float::F32 { 0x7fc0_0000 } else { 0x7e00_7e00 },
        };
        operands.launch_grid(module, shared_bytes, grid, 1, (params,))
    }
}

/// What the numbers before each add up to, and what all do.
fn sums_before(numbers: &[u32]) -> (Vec<u32>, u32) {
    let mut sum = 0;
    let mut before = Vec::new();
    for number in numbers {
        before.push(sum);
        sum += number;
    }
    (before, sum)
}

/// Where the ids of a pass come from: they are narrow or wide, or the keys of the pass before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Narrow,
    Wide,
    Keys,
}

/// A pass of the sort: what counts digits, or what puts ids in order.
#[derive(Clone, Copy, Debug)]
struct Pass {
    puts: bool,
    count: usize,
    from: From,
    limit: usize,
}

impl Pass {
    fn all(puts: bool) -> Vec<Self> {
        let case = |count, from| Self { puts, count, from, limit: 700 };
        let froms = [From::Narrow, From::Wide, From::Keys];
        // The last element of each round of a warp, from each place.
        let mut all: Vec<Self> =
            (0..8).flat_map(|round| froms.map(|from| case(32 * round + 5, from))).collect();
        all.extend([
            Self { limit: 3, ..case(256, From::Narrow) },
            case(TILE as usize, From::Wide),
            case(TILE as usize + 700, From::Keys),
        ]);
        all
    }
}

impl Problem for Pass {
    fn name(&self) -> &'static str {
        if self.puts { "ids in order" } else { "counts of digits" }
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let &Self { puts, count, from, limit } = self;
        let mut operands = Operands::new(config);
        let all: Vec<(i64, u32)> = (0..count).map(|at| id(at, from == From::Wide, limit)).collect();
        let keys: Vec<u32> = all.iter().map(|&(_, row)| row).collect();
        let (mut given, mut of_keys, mut tokens) = (Ids { base: 0, is_wide: 0, limit: limit as u32 }, 0, 0);
        let token = |at: usize| if from == From::Keys { (at * 7 % count) as u32 } else { at as u32 };
        let shift = if from == From::Keys { 8 } else { 0 };
        if from == From::Keys {
            let bytes = |words: Vec<u32>| words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
            of_keys = operands.bytes(&bytes(keys.clone()))?;
            tokens = operands.bytes(&bytes((0..count).map(token).collect()))?;
        } else {
            let ids_of: Vec<i64> = all.iter().map(|&(id, _)| id).collect();
            given = ids(&operands, &ids_of, from == From::Wide, limit)?;
        }
        let digit = |key: u32| (key >> shift & (DIGITS - 1)) as usize;
        let tiles = count.div_ceil(TILE as usize);
        let pitch = pitch(tiles as u32) as usize;
        let mut counts = vec![[0u32; DIGITS as usize]; tiles];
        for (at, &key) in keys.iter().enumerate() {
            counts[at / TILE as usize][digit(key)] += 1;
        }
        // A row for each digit, with nothing behind the last tile.
        let rows = |of: &[[u32; DIGITS as usize]]| -> Vec<u32> {
            let row = |digit: usize| {
                let padding = vec![UNTOUCHED_WORD; pitch - tiles];
                of.iter().map(move |counts| counts[digit]).chain(padding)
            };
            (0..DIGITS as usize).flat_map(row).collect()
        };
        let (mut sorted_keys, mut sorted_tokens) = (0, 0);
        let of_counts = if puts {
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by_key(|&at| digit(keys[at]));
            let sorted: Vec<u32> = order.iter().map(|&at| keys[at]).collect();
            sorted_keys = operands.words(None, &sorted)?;
            let sorted: Vec<u32> = order.iter().map(|&at| token(at)).collect();
            sorted_tokens = operands.words(None, &sorted)?;
            let (mut before, mut totals) = (Vec::new(), [0; DIGITS as usize]);
            for of_tile in &counts {
                before.push(totals);
                totals.iter_mut().zip(of_tile).for_each(|(total, count)| *total += count);
            }
            let given = [rows(&before), totals.to_vec()].concat();
            operands.words(Some(&given), &given)?
        } else {
            let expected = rows(&counts);
            let before = vec![UNTOUCHED_WORD; expected.len()];
            operands.words(Some(&before), &expected)?
        };
        let params = PassParams {
            ids: given,
            keys: Global::new(of_keys),
            tokens: Global::new(tokens),
            sorted_keys: GlobalMut::new(sorted_keys),
            sorted_tokens: GlobalMut::new(sorted_tokens),
            counts: GlobalMut::new(of_counts),
            count: count as u32,
            tiles: tiles as u32,
            shift,
            reserved: 0,
        };
        operands.launch(module, shared_bytes, [tiles as u32, 1], (params,))
    }
}

#[derive(Clone, Copy, Debug)]
struct Sums {
    rows: usize,
    count: usize,
}

impl Sums {
    fn all() -> Vec<Self> {
        let counts = [1, 2, 3, 4, 5, 131, 1022, 1025, 8189, 8190, 8192, 8193, 16400];
        let case = |(number, count): (usize, usize)| Self { rows: 1 + number % 3, count };
        counts.into_iter().enumerate().map(case).collect()
    }
}

impl Problem for Sums {
    fn name(&self) -> &'static str {
        "sums of what is before"
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let &Self { rows, count } = self;
        let mut operands = Operands::new(config);
        let pitch = pitch(count as u32) as usize;
        let (mut given, mut expected, mut totals) = (Vec::new(), Vec::new(), Vec::new());
        for row in 0..rows {
            let numbers = (0..count).map(|at| (64.0 * (number(row as u64, at) + 1.0)) as u32 + 1);
            let numbers: Vec<u32> = numbers.collect();
            let (before, sum) = sums_before(&numbers);
            let padding = || std::iter::repeat_n(UNTOUCHED_WORD, pitch - count);
            given.extend(numbers.into_iter().chain(padding()));
            expected.extend(before.into_iter().chain(padding()));
            totals.push(sum);
        }
        let base = operands.words(Some(&given), &expected)?;
        let totals = operands.words(None, &totals)?;
        let args = (GlobalMut::<u32>::new(base), GlobalMut::<u32>::new(totals), count as u32);
        operands.launch(module, shared_bytes, [rows as u32, 1], args)
    }
}

#[derive(Clone, Copy, Debug)]
struct Distinct {
    puts: bool,
    count: usize,
    /// How many there are of each key.
    alike: usize,
    /// Wanted keys are less than this.
    limit: u32,
}

impl Distinct {
    fn all(puts: bool) -> Vec<Self> {
        let case = |count: usize, alike: usize| Self { puts, count, alike, limit: 1 << 20 };
        let mut all = Vec::new();
        for count in 1..=17usize {
            // All of them are wanted, or all but the last.
            all.extend([case(count, 1), Self { limit: count as u32 - 1, ..case(count, 1) }]);
        }
        all.extend([
            case(30, 40),
            case(261, 5),
            Self { limit: 100, ..case(300, 2) },
            case(TILE as usize, 3),
            case(TILE as usize + 1, 1),
            Self { limit: 1500, ..case(2 * TILE as usize + 333, 2) },
        ]);
        all
    }
}

impl Problem for Distinct {
    fn name(&self) -> &'static str {
        if self.puts { "different ids" } else { "counts of different ids" }
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let &Self { puts, count, alike, limit } = self;
        let mut operands = Operands::new(config);
        let keys: Vec<u32> = (0..count).map(|at| (at / alike) as u32).collect();
        let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        let keys_at = operands.bytes(&bytes)?;
        let begins: Vec<usize> =
            (0..count).filter(|&at| keys[at] < limit && at.is_multiple_of(alike)).collect();
        let tiles = count.div_ceil(TILE as usize);
        let mut counts = vec![0u32; tiles];
        for at in &begins {
            counts[at / TILE as usize] += 1;
        }
        let (mut distinct, mut starts) = (0, 0);
        let of_counts = if puts {
            let found: Vec<u32> = begins.iter().map(|&at| keys[at]).collect();
            distinct = operands.words(None, &found)?;
            let end = keys.iter().filter(|&&key| key < limit).count();
            let found: Vec<u32> = begins.iter().chain([&end]).map(|&at| at as u32).collect();
            starts = operands.words(None, &found)?;
            let (before, _) = sums_before(&counts);
            operands.words(Some(&before), &before)?
        } else {
            operands.words(None, &counts)?
        };
        let params = DistinctParams {
            keys: Global::new(keys_at),
            counts: GlobalMut::new(of_counts),
            distinct: GlobalMut::new(distinct),
            starts: GlobalMut::new(starts),
            count: count as u32,
            limit,
            room: begins.len() as u32,
            reserved: 0,
        };
        operands.launch(module, shared_bytes, [tiles as u32, 1], (params,))
    }
}

#[derive(Clone, Debug)]
struct Gradient {
    of: Float,
    /// The type of sums.
    other: Float,
    /// How many tokens each id has; of the last ones, which do not count, as many as that says.
    runs: Vec<usize>,
    behind: usize,
    is_dense: bool,
    columns: usize,
    gap: usize,
    threads: u32,
    grid: [u32; 3],
}

impl Gradient {
    fn all(of: Float, layout: Layout) -> Vec<Self> {
        let Layout { chunk, unit, .. } = layout;
        let least = layout.least();
        let (round, apart) = (least * chunk, unit.max(least));
        let case = |columns: usize, runs: &[usize]| Self {
            of,
            other: Float::F32,
            runs: runs.to_vec(),
            behind: 0,
            is_dense: false,
            columns,
            gap: unit,
            threads: least as u32,
            grid: [1, 1, 1],
        };
        let mut all = Vec::new();
        for end in 1..=round / apart + 1 {
            for (other, is_dense) in [Float::F16, Float::Bf16, Float::F32]
                .into_iter()
                .flat_map(|other| [(other, false), (other, true)])
            {
                all.push(Self { other, is_dense, ..case(end * apart, &[2, 1]) });
            }
        }
        for is_dense in [false, true] {
            let of_case = |columns, runs: &[usize]| Self { is_dense, ..case(columns, runs) };
            // What is loaded together ends with each token.
            all.extend((1..=9).map(|run| of_case(unit, &[run])));
            all.extend((1..=9).map(|run| of_case(unit, &[run, 1, 9])));
            all.extend([
                Self { behind: 3, ..of_case(unit, &[3, 17, 1]) },
                Self { behind: 9, ..of_case(2 * unit, &[8, 2]) },
                Self { threads: 64, grid: [1, 2, 1], ..of_case(64 * chunk, &[1, 2, 1, 3, 1, 1, 2, 1, 1]) },
                Self { grid: [2, 1, 1], ..of_case(7 * round, &[2, 3]) },
                of_case(unit, &[1; 300]),
            ]);
        }
        all
    }
}

impl Problem for Gradient {
    fn name(&self) -> &'static str {
        if self.is_dense { "sums onto a table's rows" } else { "sums of rows" }
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let &Self { of, other, ref runs, behind, is_dense, columns, gap, threads, grid } = self;
        let mut operands = Operands::new(config);
        // Of the ids each second one is named, and the last one.
        let id = |at: usize| 2 * at;
        let limit = id(runs.len()) - 1;
        let mut keys: Vec<u32> = Vec::new();
        let mut starts = Vec::new();
        for (at, &run) in runs.iter().enumerate() {
            starts.push(keys.len() as u32);
            keys.resize(keys.len() + run, id(at) as u32);
        }
        starts.push(keys.len() as u32);
        keys.resize(keys.len() + behind, limit as u32);
        let count = keys.len();
        // Another token in each place.
        let token = |place: usize| count - 1 - place;
        let element = |token: usize, column: usize| number(0, token * columns + column);
        let dy = operands.rows(of, [count, columns, gap], element)?;
        let sum = |at: usize, column: usize| -> f64 {
            (0..runs[at]).map(|of_run| element(token(starts[at] as usize + of_run), column)).sum()
        };
        let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let keys_at = operands.bytes(&bytes(&keys))?;
        let tokens: Vec<u32> = (0..count).map(|place| token(place) as u32).collect();
        let tokens = operands.bytes(&bytes(&tokens))?;
        let (mut starts_at, mut distinct) = (0, 0);
        let to = if is_dense {
            let before = |row: usize, column: usize| number(1, row * columns + column);
            let to = operands.rows(other, [limit, columns, 0], before)?;
            operands.become_results(other, to, [limit, columns], |row, column| {
                let sum = if row % 2 == 0 { sum(row / 2, column) } else { 0.0 };
                // Multiples of 1/64, whose sums are exact in f32.
                (other.round(before(row, column) + sum), 0.0)
            });
            to
        } else {
            starts_at = operands.bytes(&bytes(&starts))?;
            distinct = operands.bytes(&bytes(&[runs.len() as u32]))?;
            let shape = [runs.len(), columns, 2 * gap];
            operands.results(other, shape, |at, column| (other.round(sum(at, column)), 0.0))?
        };
        let params = GradientParams::<u8> {
            dy: Global::new(dy.base),
            dy_stride: dy.stride,
            keys: Global::new(keys_at),
            tokens: Global::new(tokens),
            starts: Global::new(starts_at),
            distinct: Global::new(distinct),
            to,
            count: count as u32,
            columns: columns as u32,
            threads,
            limit: limit as u32,
        };
        operands.launch_grid(module, shared_bytes, grid, 1, (params,))
    }
}

/// Sums of rows times weights.
#[derive(Clone, Debug)]
struct Weighted {
    of: Float,
    other: Float,
    /// Uses of a row, and sums of an id.
    uses: usize,
    sums: usize,
    /// How many uses each id has, and of those that do not count.
    runs: Vec<usize>,
    behind: usize,
    columns: usize,
    threads: u32,
    grid: [u32; 2],
}

impl Weighted {
    fn all(of: Float, layout: Layout) -> Vec<Self> {
        let Layout { chunk, unit, .. } = layout;
        let least = layout.least();
        let (round, apart) = (least * chunk, unit.max(least));
        let case = |columns: usize, runs: &[usize]| Self {
            of,
            other: Float::F32,
            uses: 3,
            sums: 2,
            runs: runs.to_vec(),
            behind: 0,
            columns,
            threads: least as u32,
            grid: [1, 1],
        };
        let mut all = Vec::new();
        for end in 1..=round / apart + 1 {
            for other in [Float::F16, Float::Bf16, Float::F32] {
                all.push(Self { other, ..case(end * apart, &[2, 1]) });
            }
        }
        // What is loaded together ends with each use.
        all.extend((1..=9).map(|run| case(unit, &[run])));
        all.extend((1..=9).map(|run| case(unit, &[run, 1, 9])));
        all.extend([
            Self { behind: 5, uses: 1, sums: 1, ..case(unit, &[1, 2, 3]) },
            Self { behind: 1, uses: 2, sums: 3, grid: [1, 3], ..case(2 * unit, &[17, 1, 1, 8, 2]) },
            Self { threads: 64, grid: [1, 2], ..case(64 * chunk, &[3, 1, 2]) },
            Self { grid: [2, 1], ..case(5 * round, &[2, 2]) },
        ]);
        all
    }
}

impl Problem for Weighted {
    fn name(&self) -> &'static str {
        "sums of rows times weights"
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let &Self { of, other, uses, sums, ref runs, behind, columns, threads, grid } = self;
        let mut operands = Operands::new(config);
        let (mut keys, mut starts): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
        for (at, &run) in runs.iter().enumerate() {
            starts.push(keys.len() as u32);
            keys.resize(keys.len() + run, 2 * at as u32);
        }
        starts.push(keys.len() as u32);
        let limit = 2 * runs.len();
        keys.resize(keys.len() + behind, limit as u32);
        let count = keys.len();
        // Another use in each place.
        let of_place = |place: usize| count - 1 - place;
        let element = |row: usize, column: usize| number(0, row * columns + column);
        // Powers of two, with which every sum is exact.
        let weight = |of: usize, sum: usize| [1.0f32, -0.5, 2.0, 0.25, -1.0][(of * 3 + sum) % 5];
        let rows = operands.rows(of, [count.div_ceil(uses), columns, 0], element)?;
        let weights: Vec<u32> = (0..count * sums).map(|at| weight(at / sums, at % sums).to_bits()).collect();
        let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let weights = operands.bytes(&bytes(&weights))?;
        let keys_at = operands.bytes(&bytes(&keys))?;
        let places: Vec<u32> = (0..count).map(|place| of_place(place) as u32).collect();
        let places = operands.bytes(&bytes(&places))?;
        let starts_at = operands.bytes(&bytes(&starts))?;
        let distinct = operands.bytes(&bytes(&[runs.len() as u32]))?;
        let to = operands.results(other, [runs.len(), sums * columns, 0], |at, column| {
            let (sum, column) = (column / columns, column % columns);
            let terms = (0..runs[at]).map(|of_run| {
                let of = of_place(starts[at] as usize + of_run);
                f64::from(weight(of, sum)) * element(of / uses, column)
            });
            (other.round(terms.sum()), 0.0)
        })?;
        let params = WeightedParams::<u8> {
            rows: GradientParams {
                dy: Global::new(rows.base),
                dy_stride: rows.stride,
                keys: Global::new(keys_at),
                tokens: Global::new(places),
                starts: Global::new(starts_at),
                distinct: Global::new(distinct),
                to,
                count: count as u32,
                columns: columns as u32,
                threads,
                limit: limit as u32,
            },
            weights: Global::new(weights),
            sum_bytes: (columns * if other == Float::F32 { 4 } else { 2 }) as u64,
            uses: uses as u32,
            sums: sums as u32,
        };
        operands.launch_grid(module, shared_bytes, [grid[0], grid[1], sums as u32], 1, (params,))
    }
}
