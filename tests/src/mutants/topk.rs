//! How the kernels of the family `topk` are run. On rows of every number of elements around what a warp reads at a time, whole
//! and in parts, with few different numbers, so that which of them is selected shows that ties are decided rightly. With NaN,
//! zeros of both signs and infinities. With candidates that are barely larger than the best before them.

use std::cmp::Ordering;

use half::{bf16, f16};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::warp;
use warpsmith_emulator::{Config, LaunchConfig, LaunchError, Machine, Module, Report};
use warpsmith_kernels::topk::{LOADED, TopkParams, WARPS};

use super::{Problem, launch};

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(crate) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let (dtype, most) = name.strip_prefix("topk_")?.split_once('_')?;
    let most: u32 = most.parse().ok()?;
    let element = match dtype {
        "f16" => Element { bytes: 2, bits: |number| u32::from(f16::from_f32(number).to_bits()), step: 13 },
        "bf16" => Element { bytes: 2, bits: |number| u32::from(bf16::from_f32(number).to_bits()), step: 16 },
        "f32" => Element { bytes: 4, bits: f32::to_bits, step: 0 },
        _ => return None,
    };
    let case = |rows, columns, parts, k, has_ids| Case {
        element,
        numbers: Numbers::Ties,
        rows,
        columns,
        parts,
        k,
        has_ids,
    };
    let mut all = vec![case(1, 1, 1, 1, false), case(3, 2, 1, 2, true), case(5, 31, 1, 7, false)];
    // Parts of one element each, most of which are not the row's first.
    all.push(case(2, 5, 5, 1, false));
    // Rows that end around each of the elements that a lane loads together, and behind them.
    let around = (1..=LOADED as u32)
        .flat_map(|step| [step * warp::SIZE - 1, step * warp::SIZE, step * warp::SIZE + 1]);
    for columns in around.chain([LOADED as u32 * warp::SIZE + 2]) {
        all.push(case(3, columns, 1, most.min(columns), columns % 2 == 0));
        all.push(case(2, columns, 1, (most / 2 + 1).min(columns), columns % 2 == 1));
        all.push(Case { numbers: Numbers::Last, ..case(1, columns, 1, 1, false) });
    }
    for k in [1, most - 1, most] {
        all.push(case(3, 400, 5, k, false));
        all.push(case(4, 333, 3, k, true));
    }
    // Parts of more elements than a warp loads at a time, 261 or 262, and of twice as many, 512.
    all.push(case(2, 785, 3, most, true));
    all.push(case(1, 1024, 2, most / 2, false));
    all.push(Case { numbers: Numbers::Special, ..case(3, 150, 1, most, false) });
    all.push(Case { numbers: Numbers::Special, ..case(2, 290, 2, most - 1, true) });
    // Rises in each of the elements that a lane loads together, and in those after them.
    for k in [1, most] {
        all.push(Case { numbers: Numbers::Rise, ..case(18, 290, 1, k, false) });
    }
    Some(all.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

/// A type of elements.
#[derive(Clone, Copy)]
struct Element {
    bytes: usize,
    /// The bits of a number.
    bits: fn(f32) -> u32,
    /// How many bits of an f32's fraction the type lacks: a number and the next one differ in the bit above these.
    step: u32,
}

/// What the elements are.
#[derive(Clone, Copy, PartialEq)]
enum Numbers {
    /// A few small integers.
    Ties,
    /// Those, and NaN of both signs with different payloads, infinities and zeros of both signs.
    Special,
    /// The same number, and in each row at another place the next one that the type has; in every other row, that one's next behind it.
    Rise,
    /// The same number, and behind it, the last of the row, a larger one.
    Last,
}

struct Case {
    element: Element,
    numbers: Numbers,
    rows: u32,
    columns: u32,
    parts: u32,
    k: u32,
    /// Whether the elements have ids of their own.
    has_ids: bool,
}

impl Case {
    /// Elements between rows.
    const GAP: u32 = 3;

    fn number(&self, row: u32, column: u32) -> f32 {
        let mixed = (row * 7919 + column * 104_729 + 17) % 193;
        let number = (mixed % 37) as f32 - 18.0;
        match self.numbers {
            Numbers::Ties => number,
            Numbers::Last => (column + 1 == self.columns).into(),
            Numbers::Rise => {
                let place = row / 2 * 32 + 5;
                let rise = match column {
                    _ if column == place => 1,
                    _ if column == place + 4 && row % 2 == 1 => 2,
                    _ => 0,
                };
                f32::from_bits(1f32.to_bits() + (rise << self.element.step))
            }
            Numbers::Special => match mixed % 16 {
                // The payload of each is its own as far as 16 bits have room.
                0 => f32::from_bits(0x7fc0_0000 | (column % 64) << 16),
                1 => f32::from_bits(0xffc0_0000 | (column % 64) << 16),
                2 => f32::INFINITY,
                3 => f32::NEG_INFINITY,
                4 | 5 => 0.0,
                6 | 7 => -0.0,
                _ => number,
            },
        }
    }

    /// Which of two elements of a row comes first.
    fn before(&self, row: u32, a: u32, b: u32) -> Ordering {
        let (x, y) = (self.number(row, a), self.number(row, b));
        // NaN are equal to each other, and above what compares with them as nothing does.
        let by_number = y.partial_cmp(&x).unwrap_or_else(|| y.is_nan().cmp(&x.is_nan()));
        by_number.then(a.cmp(&b))
    }

    fn id(&self, row: u32, column: u32) -> u32 {
        if self.has_ids { 1_000_000 + row * self.columns + column * 2 } else { column }
    }

    fn put(&self, bytes: &mut Vec<u8>, number: f32) {
        bytes.extend(&(self.element.bits)(number).to_le_bytes()[..self.element.bytes]);
    }

    /// The source, which ends with its last element.
    fn source(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for row in 0..self.rows {
            (0..self.columns).for_each(|column| self.put(&mut bytes, self.number(row, column)));
            if row + 1 < self.rows {
                (0..Self::GAP).for_each(|_| self.put(&mut bytes, 100.0));
            }
        }
        bytes
    }

    /// The elements selected and their ids.
    fn expected(&self) -> [Vec<u8>; 2] {
        let (mut values, mut ids) = (Vec::new(), Vec::new());
        for row in 0..self.rows {
            for part in 0..self.parts {
                let bound = |part: u32| part * self.columns / self.parts;
                let mut columns: Vec<u32> = (bound(part)..bound(part + 1)).collect();
                columns.sort_by(|&a, &b| self.before(row, a, b));
                for &column in &columns[..self.k as usize] {
                    self.put(&mut values, self.number(row, column));
                    ids.extend(self.id(row, column).to_le_bytes());
                }
            }
        }
        [values, ids]
    }
}

impl Problem for Case {
    fn name(&self) -> &str {
        match self.numbers {
            Numbers::Ties => "rows with many ties",
            Numbers::Special => "rows with NaN, infinities and zeros of both signs",
            Numbers::Rise => "rows that rise to the next number",
            Numbers::Last => "rows whose last is the largest",
        }
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let machine = Machine::new(config);
        let source = self.source();
        let expected = self.expected();
        let x = machine.allocate(source.len() as u64)?;
        machine.write(x, &source)?;
        let mut from = 0;
        if self.has_ids {
            let at = (0..self.rows).flat_map(|row| (0..self.columns).map(move |column| (row, column)));
            let ids: Vec<u8> = at.flat_map(|(row, column)| self.id(row, column).to_le_bytes()).collect();
            from = machine.allocate(ids.len() as u64)?;
            machine.write(from, &ids)?;
        }
        let values = machine.allocate(expected[0].len() as u64)?;
        let ids = machine.allocate(expected[1].len() as u64)?;
        let Some(kernel) = module.kernels().next() else { return Ok((Report::default(), false)) };
        let config = LaunchConfig {
            grid: [(self.rows * self.parts).div_ceil(WARPS), 1, 1],
            block: kernel.reqntid.unwrap_or([1; 3]),
            dynamic_shared: shared_bytes,
            ..LaunchConfig::default()
        };
        let params = TopkParams {
            row_stride: (self.columns + Self::GAP).into(),
            rows: self.rows,
            columns: self.columns,
            parts: self.parts,
            k: self.k,
        };
        let arguments = (
            Global::<u8>::new(x),
            Global::<u32>::new(from),
            GlobalMut::<u8>::new(values),
            GlobalMut::<u32>::new(ids),
            params,
        );
        let report = launch(&machine, module, &kernel.name, &config, arguments)?;
        let mut got = [vec![0; expected[0].len()], vec![0; expected[1].len()]];
        machine.read(values, &mut got[0])?;
        machine.read(ids, &mut got[1])?;
        Ok((report, got == expected))
    }
}
