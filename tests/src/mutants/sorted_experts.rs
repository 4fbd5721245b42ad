//! How the kernels that evaluate experts in the order of the table are run: each alone, on lists, products and factors as the ones before it leave them, with
//! small integers, of which every result is exact.

use half::{bf16, f16};
use warpsmith::ops::peer::{ExpertFormat, ExpertLayout, ExpertVectors};
use warpsmith_dsl::epilogue::Activation;
use warpsmith_dsl::experts::{
    BATCH, ExpertParams, ExpertRows, LANES, SortedParams, TYPE_BF16, TYPE_F16, TYPE_F32,
};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_emulator::{Config, LaunchConfig, LaunchError, Machine, Module, Report};

use super::{Problem, launch};

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let (step, format) = match name.strip_prefix("expert_mlp_")? {
        "order" => (Step::Order, "f32"),
        name => match name.split_once('_')? {
            ("products", format) => (Step::Products, format),
            ("outputs", format) => (Step::Outputs, format),
            _ => return None,
        },
    };
    let format = match format {
        "f32" => ExpertFormat::F32,
        "f16" => ExpertFormat::F16,
        "bf16" => ExpertFormat::Bf16,
        _ => return None,
    };
    // Columns of a slice.
    let slice = LANES as usize * 128 / format.bits();
    let case = Case {
        step,
        format,
        tokens: 3,
        group: 2,
        columns: 5,
        experts: 3,
        hidden: 1,
        gated: false,
        activation: Activation::NONE,
        element: TYPE_F32,
        margin: 0,
        first_slice: 0,
        vector: 0,
        ends: true,
        part_bits: 1,
        cached: false,
        bad: false,
    };
    let cases = match step {
        Step::Order => vec![
            case,
            Case { tokens: 9, group: 8, experts: 40, part_bits: 2, cached: true, ..case },
            Case { tokens: 1, group: 1, experts: 1, part_bits: 3, bad: true, ..case },
            Case { tokens: 5, group: 3, experts: 29, hidden: 3, part_bits: 0, bad: true, ..case },
            // More units than threads, and as many as there may be.
            Case { tokens: 3, group: 2, experts: 260, part_bits: 1, cached: true, ..case },
            Case { tokens: 1, group: 1, experts: 1024, hidden: 2, part_bits: 31, ..case },
        ],
        Step::Products => vec![
            case,
            // Groups for several blocks, the last block not full.
            Case { tokens: 11, group: 2, columns: slice, element: TYPE_BF16, margin: 1, ends: false, ..case },
            Case { columns: 2 * slice - 3, first_slice: 1, element: TYPE_F16, experts: 37, ..case },
            Case {
                columns: slice + 1,
                first_slice: 1,
                ends: false,
                gated: true,
                vector: 1,
                hidden: 2,
                ..case
            },
            Case {
                columns: slice - 9,
                gated: true,
                vector: 1,
                activation: Activation::RELU,
                experts: 70,
                ..case
            },
            Case {
                tokens: 9,
                group: 8,
                experts: 16,
                columns: 40,
                activation: Activation::RELU,
                bad: true,
                ..case
            },
        ],
        Step::Outputs => vec![
            case,
            Case { tokens: 11, group: 2, columns: slice, element: TYPE_BF16, margin: 1, ..case },
            Case { columns: 2 * slice - 3, first_slice: 1, element: TYPE_F16, experts: 37, ..case },
            Case { tokens: 9, group: 8, experts: 16, columns: slice + 1, hidden: 2, gated: true, ..case },
            Case { tokens: 9, group: 8, experts: 9, columns: 40, margin: 2, bad: true, ..case },
        ],
    };
    Some(cases.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Order,
    Products,
    Outputs,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    step: Step,
    format: ExpertFormat,
    tokens: usize,
    /// Tokens of a group.
    group: usize,
    /// Columns of x and of y.
    columns: usize,
    /// Experts of a token.
    experts: usize,
    hidden: usize,
    gated: bool,
    activation: Activation,
    element: u32,
    /// Elements between the rows of X and of Y, and before the first.
    margin: usize,
    /// Which slice of the columns this is.
    first_slice: u32,
    vector: u32,
    ends: bool,
    part_bits: u32,
    /// Whether some rows are in slots, the others in host memory.
    cached: bool,
    /// Whether a token names an expert that is none.
    bad: bool,
}

/// Experts of the table.
const COUNT: usize = 11;
/// What is not written.
const UNTOUCHED: f32 = 77.0;
/// The sums of the slices before one, and the products with u before those with w.
const BEFORE: f32 = 5.0;

/// Small integers without a pattern.
fn number(index: usize, seed: usize) -> f32 {
    ((index * 7919 + seed * 104_729 + index * index * 31) % 1009 % 5) as f32 - 2.0
}

fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn floats(values: &[f32]) -> Vec<u8> {
    words(values.iter().map(|value| value.to_bits()))
}

fn to_words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

/// A hidden unit in a group's list.
#[derive(Clone, Copy, Debug)]
struct Unit {
    /// Its token's number in the group, and of all tokens.
    token: [usize; 2],
    id: u32,
    part: usize,
    gate: f32,
}

impl Case {
    fn layout(&self) -> Option<ExpertLayout> {
        ExpertLayout::new(self.format, self.columns, self.hidden, self.columns, self.gated).ok()
    }

    fn units(&self) -> usize {
        self.experts * self.hidden
    }

    fn room(&self) -> usize {
        (self.group * self.units()).next_multiple_of(BATCH as usize)
    }

    fn groups(&self) -> usize {
        self.tokens.div_ceil(self.group)
    }

    fn id(&self, token: usize, expert: usize) -> u32 {
        let index = token * self.experts + expert;
        let is_bad = self.bad && index + 1 == self.tokens * self.experts;
        if is_bad { COUNT as u32 } else { ((index * 7 + index / 3) % COUNT) as u32 }
    }

    /// Few that are not zero where there are many.
    fn gate(&self, token: usize, expert: usize) -> f32 {
        let index = token * self.experts + expert;
        let counts = index.is_multiple_of((self.experts / 40).max(1)) || expert + 3 > self.experts;
        if counts { [1.0, -1.0, 0.5][index % 3] } else { 0.0 }
    }

    /// The units of a group as they are sorted.
    fn list(&self, group: usize) -> Vec<Unit> {
        let tokens = (group * self.group..self.tokens.min((group + 1) * self.group)).enumerate();
        let mut units: Vec<_> = tokens
            .flat_map(|(place, token)| {
                (0..self.units()).map(move |unit| {
                    let expert = unit / self.hidden;
                    let (id, gate) = (self.id(token, expert), self.gate(token, expert));
                    let gate = if id < COUNT as u32 { gate } else { f32::NAN };
                    Unit { token: [place, token], id, part: unit % self.hidden, gate }
                })
            })
            .collect();
        units.sort_by_key(|unit| (unit.id.min(COUNT as u32 - 1) >> self.part_bits, unit.token[0]));
        units
    }

    fn params(&self, layout: &ExpertLayout) -> ExpertParams {
        let chunks = (self.columns.div_ceil(128 / self.format.bits()) * 16) as u32;
        let v_at = chunks * if self.gated { 2 } else { 1 };
        ExpertParams {
            stride_x: (self.columns + self.margin) as u64,
            stride_y: (self.columns + self.margin) as u64,
            unit_bytes: u64::from(v_at + chunks),
            d: layout.d() as u32,
            o: layout.o() as u32,
            experts: self.experts as u32,
            hidden: self.hidden as u32,
            input_bytes: chunks,
            v_at,
            scales_at: v_at + chunks,
            lanes: 1,
            splits: 1,
            activation: self.activation,
            element: self.element,
            cluster: 1,
        }
    }

    fn sorted_params(&self) -> SortedParams {
        SortedParams {
            tokens: self.tokens as u32,
            group: self.group as u32,
            room: self.room() as u32,
            first_chunk: self.first_slice * LANES,
            vector: self.vector,
            ends: self.ends.into(),
            part_bits: self.part_bits,
            reserved: 0,
        }
    }

    fn size(&self) -> usize {
        if self.element == TYPE_F32 { 4 } else { 2 }
    }

    fn put(&self, value: f32, to: &mut Vec<u8>) {
        match self.element {
            TYPE_F32 => to.extend(value.to_le_bytes()),
            TYPE_F16 => to.extend(f16::from_f32(value).to_le_bytes()),
            _ => to.extend(bf16::from_f32(value).to_le_bytes()),
        }
    }

    /// Rows of `columns` elements with the margin before each.
    fn matrix(&self, margin: f32, element: impl Fn(usize, usize) -> f32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for token in 0..self.tokens {
            (0..self.margin).for_each(|_| self.put(margin, &mut bytes));
            (0..self.columns).for_each(|column| self.put(element(token, column), &mut bytes));
        }
        bytes
    }

    /// The columns of the slice.
    fn slice(&self) -> std::ops::Range<usize> {
        let length = LANES as usize * 128 / self.format.bits();
        let first = self.first_slice as usize * length;
        first..self.columns.min(first + length)
    }
}

/// Of a vector of all experts: how many numbers it has for each, and what they are drawn with.
fn vectors(length: usize, seed: usize) -> Vec<f32> {
    (0..COUNT * length).map(|i| number(i, seed)).collect()
}

impl Problem for Case {
    fn name(&self) -> &str {
        "sorted experts with integers"
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let failed = || Ok((Report::default(), false));
        let (Some(layout), Some(kernel)) = (self.layout(), module.kernels().next()) else { return failed() };
        let per_row = self.hidden * self.columns;
        let (u, v) = (vectors(per_row, 2), vectors(per_row, 4));
        let w = if self.gated { vectors(per_row, 3) } else { Vec::new() };
        let mut rows = vec![0; COUNT * layout.row_bytes()];
        if layout.pack_rows(ExpertVectors { u: &u, w: &w, v: &v }, &mut rows).is_err() {
            return failed();
        }
        let (params, sorted) = (self.params(&layout), self.sorted_params());
        let (groups, room) = (self.groups(), self.room());

        let machine = Machine::new(config);
        let place = |bytes: &[u8]| -> Result<u64, LaunchError> {
            let at = machine.allocate(bytes.len() as u64)?;
            machine.write(at, bytes)?;
            Ok(at)
        };
        let read = |at: u64, length: usize| -> Result<Vec<u8>, LaunchError> {
            let mut bytes = vec![0; length];
            machine.read(at, &mut bytes)?;
            Ok(bytes)
        };
        let rows_at = place(&rows)?;
        let warps = kernel.reqntid.map_or(1, |[threads, ..]| threads as usize / LANES as usize);
        let blocks = if self.step == Step::Order { groups } else { groups.div_ceil(warps) };
        let config = LaunchConfig {
            grid: [blocks as u32, 1, 1],
            block: kernel.reqntid.unwrap_or([1; 3]),
            dynamic_shared: shared_bytes,
            ..LaunchConfig::default()
        };

        // Where each row is, wherever it is to be read.
        let row_bytes = layout.row_bytes() as u64;
        let mut row_at: Vec<u64> = (0..COUNT as u64).map(|id| rows_at + id * row_bytes).collect();
        let mut table = ExpertRows {
            resident: Global::new(rows_at),
            host: Global::new(0),
            slot_of: Global::new(0),
            row_bytes,
            count: COUNT as u32,
            slots: COUNT as u32,
        };
        if self.cached {
            // Every third row is in a slot; what is next to the last slot is none.
            let slots = COUNT.div_ceil(3);
            let mut slot_of = vec![u32::MAX; COUNT];
            slot_of[1] = slots as u32;
            let slots_at = place(&vec![0; slots * layout.row_bytes()])?;
            for slot in 0..slots {
                slot_of[3 * slot] = slot as u32;
                row_at[3 * slot] = slots_at + slot as u64 * row_bytes;
            }
            table.resident = Global::new(slots_at);
            table.host = Global::new(rows_at);
            table.slot_of = Global::new(place(&words(slot_of))?);
            table.slots = slots as u32;
        }
        let resident = table.resident.address();
        let address = |unit: &Unit| match row_at.get(unit.id as usize) {
            Some(row) => row + unit.part as u64 * params.unit_bytes,
            None => resident,
        };
        // The lists, padded, and what there is of each unit.
        let lists: Vec<Vec<Unit>> = (0..groups).map(|group| self.list(group)).collect();
        let padded = |list: &Vec<Unit>| list.len().next_multiple_of(BATCH as usize);
        let mut entries = vec![0; groups * room * 2];
        let mut gates = vec![UNTOUCHED; groups * room];
        for (group, list) in lists.iter().enumerate() {
            for place in 0..padded(list) {
                let Some(unit) = list.get(place).or(list.last()) else { return failed() };
                // What is repeated behind the last is of no token.
                let token = if place < list.len() { unit.token[0] as u64 } else { 15 };
                let (at, entry) = (group * room + place, address(unit) | token);
                (entries[2 * at], entries[2 * at + 1]) = (entry as u32, (entry >> 32) as u32);
                // Those that are repeated count nothing: of products they have any sums.
                let counts = self.step != Step::Outputs || place < list.len();
                gates[at] = if counts { unit.gate } else { f32::NAN };
            }
        }

        let (report, right) = match self.step {
            Step::Order => {
                let pairs = (0..self.tokens).flat_map(|token| (0..self.experts).map(move |e| (token, e)));
                let ids_at = place(&words(pairs.clone().map(|(token, e)| self.id(token, e))))?;
                let all: Vec<f32> = pairs.map(|(token, e)| self.gate(token, e)).collect();
                let gates_at = place(&floats(&all))?;
                let units_at = place(&vec![0; entries.len() * 4])?;
                let sorted_at = place(&floats(&vec![UNTOUCHED; gates.len()]))?;
                let arguments = (
                    Global::<u32>::new(ids_at),
                    Global::<f32>::new(gates_at),
                    table,
                    GlobalMut::<u32>::new(units_at),
                    GlobalMut::<f32>::new(sorted_at),
                    params,
                    sorted,
                );
                let report = launch(&machine, module, &kernel.name, &config, arguments)?;
                let got = to_words(&read(units_at, entries.len() * 4)?);
                let of_gates = to_words(&read(sorted_at, gates.len() * 4)?);
                let same = of_gates.iter().zip(&gates).all(|(&got, &gate)| {
                    let got = f32::from_bits(got);
                    got == gate || got.is_nan() && gate.is_nan()
                });
                (report, got == entries && same)
            }
            Step::Products => {
                let x = |token: usize, column: usize| number(token * self.columns + column, 1);
                let x_at = place(&self.matrix(f32::NAN, x))? + (self.margin * self.size()) as u64;
                let (units_at, gates_at) = (place(&words(entries.iter().copied()))?, place(&floats(&gates))?);
                let vectors = if self.gated { 2 } else { 1 };
                let mut products = vec![BEFORE; vectors * groups * room];
                let products_at = place(&floats(&products))?;
                let arguments = (
                    Global::<u8>::new(x_at),
                    Global::<u32>::new(units_at),
                    Global::<f32>::new(gates_at),
                    GlobalMut::<f32>::new(products_at),
                    params,
                    sorted,
                );
                let report = launch(&machine, module, &kernel.name, &config, arguments)?;
                let factors = if self.vector == 0 { &u } else { &w };
                for (group, list) in lists.iter().enumerate() {
                    for place in 0..padded(list) {
                        let Some(unit) = list.get(place).or(list.last()) else { return failed() };
                        let row = if (unit.id as usize) < COUNT { unit.id as usize } else { 0 };
                        let part = if (unit.id as usize) < COUNT { unit.part } else { 0 };
                        let vector = &factors[(row * self.hidden + part) * self.columns..][..self.columns];
                        let slice = self.slice();
                        let sum: f32 = slice.map(|column| x(unit.token[1], column) * vector[column]).sum();
                        let sum = sum + if self.first_slice > 0 { BEFORE } else { 0.0 };
                        let at = group * room + place;
                        if !self.ends {
                            products[self.vector as usize * groups * room + at] = sum;
                            continue;
                        }
                        let z = if self.vector > 0 { BEFORE } else { sum };
                        let activated = if self.activation == Activation::RELU { z.max(0.0) } else { z };
                        products[at] = unit.gate * activated * if self.vector > 0 { sum } else { 1.0 };
                    }
                }
                let got = to_words(&read(products_at, products.len() * 4)?);
                let same = got.iter().zip(&products).all(|(&got, &product)| {
                    let got = f32::from_bits(got);
                    got == product || got.is_nan() && product.is_nan()
                });
                (report, same)
            }
            Step::Outputs => {
                let units_at = place(&words(entries.iter().copied()))?;
                let factors_at = place(&floats(&gates))?;
                let y_at = place(&self.matrix(UNTOUCHED, |_, _| UNTOUCHED))?;
                let arguments = (
                    Global::<u32>::new(units_at),
                    Global::<f32>::new(factors_at),
                    GlobalMut::<u8>::new(y_at + (self.margin * self.size()) as u64),
                    params,
                    sorted,
                );
                let report = launch(&machine, module, &kernel.name, &config, arguments)?;
                let mut sums = vec![0.0; self.tokens * self.columns];
                for unit in lists.iter().flatten() {
                    let row = if (unit.id as usize) < COUNT { unit.id as usize } else { 0 };
                    let vector = &v[(row * self.hidden + unit.part) * self.columns..][..self.columns];
                    for (column, v) in vector.iter().enumerate() {
                        sums[unit.token[1] * self.columns + column] += unit.gate * v;
                    }
                }
                let slice = self.slice();
                let expected = self.matrix(UNTOUCHED, |token, column| {
                    if slice.contains(&column) { sums[token * self.columns + column] } else { UNTOUCHED }
                });
                let got = read(y_at, expected.len())?;
                let same = got
                    .chunks_exact(self.size())
                    .zip(expected.chunks_exact(self.size()))
                    .all(|(got, expected)| got == expected || self.is_nan(got) && self.is_nan(expected));
                (report, same)
            }
        };
        Ok((report, right))
    }
}

impl Case {
    fn is_nan(&self, bytes: &[u8]) -> bool {
        let half = || u16::from_le_bytes([bytes[0], bytes[1]]);
        match self.element {
            TYPE_F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).is_nan(),
            TYPE_F16 => f16::from_bits(half()).is_nan(),
            TYPE_BF16 => bf16::from_bits(half()).is_nan(),
            _ => false,
        }
    }
}
