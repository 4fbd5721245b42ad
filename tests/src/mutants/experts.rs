//! How the kernels that evaluate experts are run. Mostly on small integers, of which every result is exact, with rows in slots
//! and in host memory, ids of no expert, parts of x, of the units and of the columns, and tails of all of them.

use std::ops::Range;

use half::{bf16, f16};
use ndarray::{Array2, ArrayView2};
use warpsmith::cpu::{self, TokenExperts};
use warpsmith::ops::Activation;
use warpsmith::ops::peer::{ExpertFormat, ExpertLayout, ExpertVectors};
use warpsmith_dsl::epilogue;
use warpsmith_dsl::experts::{ExpertParams, ExpertRows, TYPE_BF16, TYPE_F16, TYPE_F32};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_emulator::{Config, LaunchConfig, LaunchError, Machine, Module, Report};

use super::{Problem, launch};

/// The format that a part of an entry's name stands for.
pub(super) fn format_named(name: &str) -> Option<ExpertFormat> {
    Some(match name {
        "f32" => ExpertFormat::F32,
        "f16" => ExpertFormat::F16,
        "bf16" => ExpertFormat::Bf16,
        "int8" => ExpertFormat::Int8,
        "int4" => ExpertFormat::Int4,
        "e4m3" => ExpertFormat::F8E4M3,
        _ => return None,
    })
}

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let format = name.strip_prefix("expert_mlp_")?;
    let (blocks, format) = match format.strip_prefix("cluster_") {
        Some(format) => (8, format),
        None => (1, format),
    };
    let format = format_named(format)?;
    let chunk = 128 / format.bits();
    let case = Case { blocks, ..Case::new(format) };
    let cases = [
        case,
        Case { element: TYPE_BF16, margin: 1, gated: true, hidden: 2, cached: true, experts: 5, ..case },
        // Clusters of fewer blocks.
        Case { blocks: blocks.min(3), o: 5 * chunk, lanes: 5, splits: 4, experts: 30, ..case },
        Case { blocks: 1, o: 2 * chunk, lanes: 2, splits: 3, experts: 29, ..case },
        Case {
            element: TYPE_F16,
            d: 12 * chunk,
            o: 2 * chunk,
            lanes: 2,
            splits: 3,
            experts: 29,
            bad: true,
            ..case
        },
        Case { element: TYPE_BF16, d: 4 * chunk, o: 3 * chunk - 1, lanes: 2, splits: 2, experts: 20, ..case },
        // Groups of 16 and of 32 lanes.
        Case {
            d: 9 * chunk + 1,
            o: 5 * chunk,
            lanes: 5,
            splits: 4,
            experts: 37,
            activation: Activation::Relu,
            ..case
        },
        Case {
            d: 40 * chunk - 3,
            element: TYPE_F16,
            margin: 2,
            lanes: 1,
            splits: 1,
            gated: true,
            experts: 19,
            cached: true,
            ..case
        },
        // Several parts of x.
        Case { tokens: 1, d: 2048 + chunk + 2, o: 2, element: TYPE_BF16, splits: 5, experts: 9, ..case },
        // Several parts of the units, and of the columns.
        Case {
            tokens: 1,
            d: 2,
            o: 2 * chunk + 1,
            lanes: 2,
            splits: 7,
            hidden: 5,
            experts: 105,
            bad: true,
            cached: true,
            ..case
        },
        Case { tokens: 1, d: 3, o: 120 * chunk, lanes: 120, splits: 1, experts: 17, gated: true, ..case },
        Case { activation: Activation::GeluErf, d: 3, experts: 40, o: 2, splits: 2, ..case },
        Case { activation: Activation::GeluTanh, d: 3, experts: 40, o: 2, gated: true, ..case },
        Case { activation: Activation::Silu, d: 3, experts: 40, o: 2, element: TYPE_F16, ..case },
    ];
    Some(cases.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) format: ExpertFormat,
    /// Blocks of a token.
    pub(super) blocks: u32,
    pub(super) tokens: usize,
    pub(super) d: usize,
    pub(super) o: usize,
    /// Experts of a token.
    pub(super) experts: usize,
    pub(super) hidden: usize,
    pub(super) gated: bool,
    pub(super) activation: Activation,
    pub(super) element: u32,
    /// Elements between the rows of X and of Y, and before the first.
    pub(super) margin: usize,
    pub(super) lanes: u32,
    pub(super) splits: u32,
    /// Whether some rows are in slots, the others in host memory.
    pub(super) cached: bool,
    /// Whether the last token names an expert that is none.
    pub(super) bad: bool,
}

/// Experts of the table.
pub(super) const COUNT: usize = 11;
/// What surrounds the rows of Y.
pub(super) const UNTOUCHED: f32 = 77.0;

/// Small integers without a pattern.
pub(super) fn number(index: usize, seed: usize) -> f32 {
    ((index * 7919 + seed * 104_729 + index * index * 31) % 1009 % 7) as f32 - 3.0
}

impl Case {
    /// Two tokens of three experts each, with a few numbers.
    pub(super) fn new(format: ExpertFormat) -> Self {
        Self {
            format,
            blocks: 1,
            tokens: 2,
            d: 5,
            o: 3,
            experts: 3,
            hidden: 1,
            gated: false,
            activation: Activation::None,
            element: TYPE_F32,
            margin: 0,
            lanes: 1,
            splits: 8,
            cached: false,
            bad: false,
        }
    }

    pub(super) fn put(&self, value: f32, to: &mut Vec<u8>) {
        match self.element {
            TYPE_F32 => to.extend(value.to_le_bytes()),
            TYPE_F16 => to.extend(f16::from_f32(value).to_le_bytes()),
            _ => to.extend(bf16::from_f32(value).to_le_bytes()),
        }
    }

    pub(super) fn get(&self, bytes: &[u8], index: usize) -> f32 {
        let half = || u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]);
        match self.element {
            TYPE_F32 => f32::from_bits(u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[4 * index + i]))),
            TYPE_F16 => f16::from_bits(half()).to_f32(),
            _ => bf16::from_bits(half()).to_f32(),
        }
    }

    /// Numbers of x: small enough that sums are exact, and for smooth activations where these bend.
    pub(super) fn x(&self) -> Array2<f32> {
        let factor = match self.activation {
            Activation::None | Activation::Relu => 1.0,
            _ => 0.25,
        };
        // Few that are not zero where there are many.
        let every = (self.d / 24).max(1);
        Array2::from_shape_fn((self.tokens, self.d), |(token, i)| {
            // Also the last ones, and those at the edges of parts.
            let counts = (i + token).is_multiple_of(every) || i + 4 > self.d || (2044..2052).contains(&i);
            if counts { number(token * self.d + i, 1) * factor } else { 0.0 }
        })
    }

    /// Rows of all experts, with the numbers that give integers a scale of 1.
    pub(super) fn rows(&self, layout: &ExpertLayout) -> Option<Vec<u8>> {
        let vectors = |length: usize, seed: usize| -> Vec<f32> {
            let mut values: Vec<f32> = (0..COUNT * self.hidden * length).map(|i| number(i, seed)).collect();
            let range = match self.format {
                ExpertFormat::Int8 => [-3.0, 252.0],
                ExpertFormat::Int4 => [-8.0, 7.0],
                _ => return values,
            };
            for vector in values.chunks_exact_mut(length) {
                let middle = length / 2;
                if length > 1 {
                    (vector[0], vector[middle]) = (range[0], range[1]);
                }
            }
            values
        };
        let (u, v) = (vectors(self.d, 2), vectors(self.o, 4));
        let w = if self.gated { vectors(self.d, 3) } else { Vec::new() };
        let mut rows = vec![0; COUNT * layout.row_bytes()];
        layout.pack_rows(ExpertVectors { u: &u, w: &w, v: &v }, &mut rows).ok()?;
        Some(rows)
    }

    pub(super) fn params(&self, layout: &ExpertLayout) -> ExpertParams {
        let chunks = |length: usize| (length.div_ceil(128 / self.format.bits()) * 16) as u32;
        let v_at = chunks(self.d) * if self.gated { 2 } else { 1 };
        let scales_at = v_at + chunks(self.o);
        let is_scaled = layout.format().is_scaled();
        ExpertParams {
            stride_x: (self.d + self.margin) as u64,
            stride_y: (self.o + self.margin) as u64,
            unit_bytes: u64::from(scales_at) + if is_scaled { 16 } else { 0 },
            d: self.d as u32,
            o: self.o as u32,
            experts: self.experts as u32,
            hidden: self.hidden as u32,
            input_bytes: chunks(self.d),
            v_at,
            scales_at,
            lanes: self.lanes,
            splits: self.splits,
            activation: match self.activation {
                Activation::Relu => epilogue::Activation::RELU,
                Activation::GeluErf => epilogue::Activation::GELU_ERF,
                Activation::GeluTanh => epilogue::Activation::GELU_TANH,
                Activation::Silu => epilogue::Activation::SILU,
                _ => epilogue::Activation::NONE,
            },
            element: self.element,
            cluster: self.blocks,
        }
    }

    /// What is to come out, and the largest error of it.
    fn expected(
        &self,
        layout: &ExpertLayout,
        rows: &[u8],
        ids: &[u32],
        gates: &[f32],
    ) -> Option<Array2<f64>> {
        let x = self.x();
        let good: Vec<u32> = ids.iter().map(|&id| id.min(COUNT as u32 - 1)).collect();
        let experts = TokenExperts { ids: &good, gates, activation: self.activation };
        let mut y = Array2::zeros((self.tokens, self.o));
        let row = |id: u32| rows.chunks_exact(layout.row_bytes()).nth(id as usize);
        let x: ArrayView2<'_, f32> = x.view();
        cpu::expert_mlp::<f64, f32, f64>(x, experts, layout, row, y.view_mut()).ok()?;
        if self.bad {
            y.row_mut(self.tokens - 1).fill(f64::NAN);
        }
        Some(y)
    }

    /// The experts' numbers and their gates.
    pub(super) fn routing(&self) -> (Vec<u32>, Vec<f32>) {
        let pairs = self.tokens * self.experts;
        let mut ids: Vec<u32> = (0..pairs).map(|i| ((i * 7 + i / 3) % COUNT) as u32).collect();
        if self.bad {
            ids[pairs - 1] = COUNT as u32;
        }
        // A few that are not zero where there are many.
        let every = (self.experts * self.hidden / 40).max(1);
        let gate = |i: usize| {
            let counts = i.is_multiple_of(every) || i % self.experts + 3 > self.experts;
            if counts { [1.0, -1.0, 0.5][i % 3] } else { 0.0 }
        };
        let gates: Vec<f32> = (0..pairs).map(gate).collect();
        (ids, gates)
    }

    /// Puts rows where a kernel finds them.
    pub(super) fn place_rows(
        &self,
        machine: &Machine,
        layout: &ExpertLayout,
        rows: &[u8],
    ) -> Result<ExpertRows, LaunchError> {
        let place = |bytes: &[u8]| -> Result<u64, LaunchError> {
            let at = machine.allocate(bytes.len() as u64)?;
            machine.write(at, bytes)?;
            Ok(at)
        };
        let bytes = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
        let row =
            |index: usize| -> Range<usize> { index * layout.row_bytes()..(index + 1) * layout.row_bytes() };
        let table = if self.cached {
            // Every other row is in a slot, in the opposite order; what is there twice is right once.
            let slots = COUNT / 2 + 1;
            let (mut in_slots, mut in_host, mut slot_of) = (Vec::new(), rows.to_vec(), vec![u32::MAX; COUNT]);
            for slot in 0..slots {
                let index = 2 * (slots - 1 - slot);
                slot_of[index] = slot as u32;
                in_slots.extend(&rows[row(index)]);
                in_host[row(index)].fill(0xff);
            }
            // What is next to the last slot is none.
            slot_of[1] = slots as u32;
            (place(&in_slots)?, place(&in_host)?, place(&bytes(&slot_of))?, slots)
        } else {
            (place(rows)?, 0, 0, COUNT)
        };
        Ok(ExpertRows {
            resident: Global::new(table.0),
            host: Global::new(table.1),
            slot_of: Global::new(table.2),
            row_bytes: layout.row_bytes() as u64,
            count: COUNT as u32,
            slots: table.3 as u32,
        })
    }

    pub(super) fn is_right(&self, got: f32, expected: f64) -> bool {
        let rounded = match self.element {
            TYPE_F32 => expected as f32,
            TYPE_F16 => f16::from_f64(expected).to_f32(),
            _ => bf16::from_f64(expected).to_f32(),
        };
        if expected.is_nan() {
            return got.is_nan();
        }
        let is_smooth = !matches!(self.activation, Activation::None | Activation::Relu);
        // Codes of 8 bits are so large that not all sums are exact.
        let size = if self.format == ExpertFormat::Int8 { 1e5 } else { 10.0 };
        if !is_smooth && self.format != ExpertFormat::Int8 || rounded.is_infinite() {
            return got == rounded;
        }
        let unit = if self.element == TYPE_F32 { 2e-6 } else { 8e-3 };
        (f64::from(got) - expected).abs() <= unit * (expected.abs() + size)
    }
}

impl Problem for Case {
    fn name(&self) -> &str {
        "experts with integers"
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let failed = || Ok((Report::default(), false));
        let Ok(layout) = ExpertLayout::new(self.format, self.d, self.hidden, self.o, self.gated) else {
            return failed();
        };
        let Some(rows) = self.rows(&layout) else { return failed() };
        let (ids, gates) = self.routing();
        let Some(expected) = self.expected(&layout, &rows, &ids, &gates) else { return failed() };

        let machine = Machine::new(config);
        let place = |bytes: &[u8]| -> Result<u64, LaunchError> {
            let at = machine.allocate(bytes.len() as u64)?;
            machine.write(at, bytes)?;
            Ok(at)
        };
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for row in self.x().rows() {
            (0..self.margin).for_each(|_| self.put(f32::NAN, &mut x));
            row.iter().for_each(|&value| self.put(value, &mut x));
            (0..self.margin + self.o).for_each(|_| self.put(UNTOUCHED, &mut y));
        }
        let bytes = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
        let margin = (self.margin * if self.element == TYPE_F32 { 4 } else { 2 }) as u64;
        let (x_at, y_at) = (place(&x)?, place(&y)?);
        let ids_at = place(&bytes(&ids))?;
        let gates_at = place(&gates.iter().flat_map(|gate| gate.to_le_bytes()).collect::<Vec<_>>())?;
        let table = self.place_rows(&machine, &layout, &rows)?;
        let Some(kernel) = module.kernels().next() else { return failed() };
        let config = LaunchConfig {
            grid: [self.tokens as u32 * self.blocks, 1, 1],
            cluster: [self.blocks, 1, 1],
            block: kernel.reqntid.unwrap_or([1; 3]),
            dynamic_shared: shared_bytes,
            beside_last: false,
        };
        let arguments = (
            Global::<u8>::new(x_at + margin),
            Global::<u32>::new(ids_at),
            Global::<f32>::new(gates_at),
            table,
            GlobalMut::<u8>::new(y_at + margin),
            self.params(&layout),
        );
        let report = launch(&machine, module, &kernel.name, &config, arguments)?;
        machine.read(y_at, &mut y)?;
        let stride = self.margin + self.o;
        let right = (0..self.tokens * stride).all(|at| {
            let (token, column) = (at / stride, at % stride);
            let got = self.get(&y, at);
            match column.checked_sub(self.margin) {
                None => got == UNTOUCHED,
                Some(column) => self.is_right(got, expected[[token, column]]),
            }
        });
        Ok((report, right))
    }
}
