//! A problem: its sequences, its operands and what the result has to be, in f64.
//!
//! All operands are multiples of small powers of two that 16-bit types have, so that products and their sums in f32 are exact. What is left are
//! roundings of which a bound is known: see [`Expected`].

mod gradient;

use warpsmith_dsl::attention::portable::Parts;
use warpsmith_dsl::attention::window::Window;

use super::number::Number;

pub(super) use gradient::Gradients;

/// What surrounds what kernels read.
const SURROUNDING: f64 = f64::NAN;
/// What surrounds what they write.
const UNTOUCHED: f64 = 77.0;

/// What Q and K are. V always has small integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbers {
    /// Drawn ones: several keys of a row have weights that count.
    Drawn,
    /// Of each row one key whose score is larger than all others, by 200 at least where keys are 256 or fewer.
    Selected,
    /// Those of which all scores are 0.
    Equal,
}

/// A problem. `rows` and `keys` are those of packed sequences together.
#[derive(Clone, Debug)]
pub(super) struct Size {
    pub(super) batch: u32,
    pub(super) heads: u32,
    pub(super) group: u32,
    pub(super) rows: u32,
    pub(super) keys: u32,
    /// Columns of Q and K, and of V and O.
    pub(super) columns: [u32; 2],
    /// Where packed sequences begin, of Q and of K.
    pub(super) offsets: Option<[Vec<u32>; 2]>,
    /// How long padded ones are.
    pub(super) lengths: [Option<Vec<u32>>; 2],
    pub(super) window: Window,
    pub(super) numbers: Numbers,
    pub(super) scale: f32,
    pub(super) cap: f32,
    pub(super) bias: bool,
    pub(super) mask: bool,
    /// Rows and keys of a block of the mask of blocks.
    pub(super) blocks: Option<[u32; 2]>,
    /// Whether all heads have the same bias and masks.
    pub(super) is_shared: bool,
    pub(super) slopes: bool,
    pub(super) sinks: bool,
    pub(super) lse: bool,
    /// Whether the rows of the heads of a group alternate in tiles.
    pub(super) packs: bool,
    /// Keys of a page.
    pub(super) page: Option<u32>,
    /// Whether keys, and values, of 8 bits have scales, and if so whether each head has one of its own.
    pub(super) scales: [Option<bool>; 2],
    /// Keys of a part, if there are several.
    pub(super) part: Option<u32>,
    /// Blocks of the grid where any number does, and heads whose tiles alternate.
    pub(super) grid: u32,
    pub(super) section: u32,
}

pub(super) const EVERYTHING: Window =
    Window { left: Window::UNBOUNDED, right: Window::UNBOUNDED, is_bottom_right: 0, reserved: 0 };

/// A problem of one head and drawn numbers, whose scores nothing changes.
pub(super) fn size(rows: u32, keys: u32, columns: [u32; 2]) -> Size {
    Size {
        batch: 1,
        heads: 1,
        group: 1,
        rows,
        keys,
        columns,
        offsets: None,
        lengths: [None, None],
        window: EVERYTHING,
        numbers: Numbers::Drawn,
        scale: 0.5,
        cap: 0.0,
        bias: false,
        mask: false,
        blocks: None,
        is_shared: false,
        slopes: false,
        sinks: false,
        lse: true,
        packs: false,
        page: None,
        scales: [None; 2],
        part: None,
        grid: 1,
        section: 1,
    }
}

/// A sequence: its index, first row and first key in the tensors, and what counts of it.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    number: u32,
    index: u32,
    row: u32,
    key: u32,
    rows: u32,
    written: u32,
    keys: u32,
}

/// Where a tensor of sequences, rows, heads and columns has its elements; gaps between rows, and rows between sequences.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) axes: [u32; 3],
    pub(super) columns: u32,
    pub(super) sequence: u64,
    pub(super) row: u64,
    pub(super) head: u64,
}

impl Layout {
    /// With `gap` elements behind each row, and heads that begin at multiples of `align`.
    pub(super) fn new(axes: [u32; 3], columns: u32, align: u32, gap: u32) -> Self {
        let head = columns.next_multiple_of(align);
        let row = u64::from(axes[2] * head + gap);
        Self { axes, columns, sequence: row * u64::from(axes[1] + 1), row, head: head.into() }
    }

    fn at(&self, sequence: u32, row: u32, head: u32) -> usize {
        let to =
            u64::from(sequence) * self.sequence + u64::from(row) * self.row + u64::from(head) * self.head;
        to as usize
    }

    /// Elements up to the last.
    pub(super) fn len(&self) -> usize {
        let last = self.axes.map(|length| length.max(1) - 1);
        self.at(last[0], last[1], last[2]) + self.columns as usize
    }
}

/// A tensor that kernels read.
pub(super) struct Tensor {
    pub(super) layout: Layout,
    pub(super) bytes: Vec<u8>,
}

impl Tensor {
    fn new(of: Number, layout: Layout) -> Self {
        Self { layout, bytes: of.put(SURROUNDING).repeat(layout.len()) }
    }

    fn fill(&mut self, of: Number, [sequence, row, head]: [u32; 3], value: impl Fn(u32) -> f64) {
        let first = self.layout.at(sequence, row, head);
        for column in 0..self.layout.columns {
            let at = of.bytes() * (first + column as usize);
            self.bytes[at..][..of.bytes()].copy_from_slice(&of.put(value(column)));
        }
    }
}

/// What is to be written: numbers, and how far each may be off.
///
/// A weight is rounded to the type by at most `unit` of itself, and so is what is stored; sums of products are in f32, with exponentials that are off by
/// about 2⁻²². So O is off by at most `unit · (Σ weight · |value| + |O|)`, with weights that add up to 1, and a little more of second order. The log-sum-exp is of weights before
/// they are rounded.
#[derive(Clone)]
pub(super) struct Expected {
    numbers: Vec<(f64, f64)>,
}

impl Expected {
    pub(super) fn untouched(len: usize) -> Self {
        Self { numbers: vec![(UNTOUCHED, 0.0); len] }
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn set(&mut self, at: usize, value: f64, tolerance: f64) {
        self.numbers[at] = (value, tolerance);
    }

    pub(super) fn set_lse(&mut self, at: usize, value: f64) {
        let tolerance = if value.is_finite() { 1e-5 + value.abs() * 1e-6 } else { 0.0 };
        self.set(at, value, tolerance);
    }

    pub(super) fn is(&self, got: impl Iterator<Item = f64>) -> bool {
        let is_close =
            |(got, &(value, tolerance)): (f64, &(f64, f64))| got == value || (got - value).abs() <= tolerance;
        got.zip(&self.numbers).all(is_close)
    }

    /// The bytes of what is there before.
    pub(super) fn before(&self, of: Number) -> Vec<u8> {
        of.put(UNTOUCHED).repeat(self.len())
    }
}

/// The operands of a problem and its results.
pub(super) struct Operands {
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
    pub(super) bias: Vec<u8>,
    pub(super) mask: Vec<u8>,
    pub(super) blocks: Vec<u8>,
    pub(super) slopes: Vec<f32>,
    pub(super) sinks: Vec<f32>,
    /// Of keys and of values.
    pub(super) scales: [Vec<f32>; 2],
    /// The pages of each sequence.
    pub(super) table: Vec<u32>,
    pub(super) o_layout: Layout,
    pub(super) o: Expected,
    pub(super) lse: Expected,
    /// Of parts: their sums and the log-sum-exps.
    pub(super) part_sums: Expected,
    pub(super) part_lse: Expected,
}

/// A number that depends on all of `of`.
pub(super) fn hash(of: &[u32]) -> u32 {
    let mix = |state: u32, next: &u32| {
        let mixed = (state ^ next.wrapping_mul(0x9e37_79b1)).wrapping_mul(0x85eb_ca6b);
        mixed ^ mixed >> 15
    };
    of.iter().fold(0x2545_f491, mix).wrapping_mul(0xc2b2_ae35) >> 8
}

/// A multiple of 1/4 from -1 to 1.
fn drawn(of: &[u32]) -> f64 {
    f64::from(hash(of) % 9) / 4.0 - 1.0
}

impl Size {
    fn key_heads(&self) -> u32 {
        self.heads / self.group
    }

    pub(super) fn pack(&self) -> u32 {
        if self.packs { self.group } else { 1 }
    }

    /// Pages of a sequence.
    pub(super) fn pages(&self) -> u32 {
        self.page.map_or(0, |page| self.keys.div_ceil(page))
    }

    pub(super) fn parts(&self) -> u32 {
        self.part.map_or(1, |keys| self.keys.div_ceil(keys))
    }

    /// Rows of all heads and sequences.
    fn all_rows(&self) -> usize {
        let sequences = if self.offsets.is_some() { 1 } else { self.batch };
        (sequences * self.heads * self.rows) as usize
    }

    fn sequences(&self) -> Vec<Sequence> {
        let one = |number: u32| {
            let at = number as usize;
            if let Some([q, k]) = &self.offsets {
                let rows = q[at + 1] - q[at];
                let keys = k[at + 1] - k[at];
                return Sequence { number, index: 0, row: q[at], key: k[at], rows, written: rows, keys };
            }
            let [rows, keys] = [(0, self.rows), (1, self.keys)].map(|(side, all): (usize, u32)| {
                self.lengths[side].as_ref().map_or(all, |of| of[at].min(all))
            });
            Sequence { number, index: number, row: 0, key: 0, rows, written: self.rows, keys }
        };
        (0..self.batch).map(one).collect()
    }

    fn q(&self, of: Sequence, row: u32, head: u32, column: u32) -> f64 {
        match self.numbers {
            Numbers::Drawn => drawn(&[1, of.number, row, head, column]),
            Numbers::Equal => 0.0,
            Numbers::Selected => {
                let key = (row * 7 + head * 3 + 5) % of.keys.max(1);
                128.0 * self.digit(key, column)
            }
        }
    }

    fn k(&self, of: Sequence, key: u32, head: u32, column: u32) -> f64 {
        match self.numbers {
            Numbers::Selected => self.digit(key, column),
            _ => drawn(&[2, of.number, key, head, column]),
        }
    }

    /// A binary digit of a key's number, as 1 or -1.
    fn digit(&self, key: u32, column: u32) -> f64 {
        let digits = self.columns[0].clamp(1, 9);
        if key >> (column % digits) & 1 == 0 { -1.0 } else { 1.0 }
    }

    fn v(&self, of: Sequence, key: u32, head: u32, column: u32) -> f64 {
        let number = hash(&[3, of.number, key, head, column]) % 9;
        f64::from(number) - 4.0
    }

    /// The scale of a head's keys, or of its values: a power of two, so that nothing is rounded.
    fn key_scale(&self, of_values: bool, head: u32) -> f64 {
        self.scales[usize::from(of_values)]
            .map_or(1.0, |of_heads| if of_heads { f64::from(1 + head % 2) } else { 2.0 })
    }

    fn operand_head(&self, head: u32) -> u32 {
        if self.is_shared { 0 } else { head }
    }

    /// Where an operand of `rows` × `keys` for each head has an element.
    fn place(&self, of: Sequence, head: u32, [row, key]: [u32; 2], [rows, keys]: [u32; 2]) -> usize {
        let heads = if self.is_shared { 1 } else { self.heads };
        let row = (of.number * heads + self.operand_head(head)) * rows + row;
        (row * keys + key) as usize
    }

    fn block_axes(&self) -> [u32; 2] {
        let [rows, keys] = self.blocks.unwrap_or([1, 1]);
        [self.rows.div_ceil(rows), self.keys.div_ceil(keys)]
    }

    /// Elements from sequence to sequence, head to head and row to row of such an operand.
    pub(super) fn strides(&self, [rows, keys]: [u32; 2]) -> [u64; 3] {
        let heads = if self.is_shared { 1 } else { self.heads };
        let head = if self.is_shared { 0 } else { rows * keys };
        [heads * rows * keys, head, keys].map(u64::from)
    }

    pub(super) fn block_strides(&self) -> [u64; 3] {
        self.strides(self.block_axes())
    }

    fn bias(&self, of: Sequence, head: u32, row: u32, key: u32) -> f64 {
        drawn(&[4, of.number, self.operand_head(head), row, key])
    }

    fn keeps(&self, of: Sequence, head: u32, row: u32, key: u32) -> bool {
        // One row attends to nothing.
        !hash(&[5, of.number, self.operand_head(head), row, key]).is_multiple_of(3) && row != 2
    }

    fn keeps_block(&self, of: Sequence, head: u32, row: u32, key: u32) -> bool {
        hash(&[6, of.number, self.operand_head(head), row, key]).is_multiple_of(3)
    }

    fn slope(&self, of: Sequence, head: u32) -> f64 {
        f64::from(1 + hash(&[7, of.number, head]) % 7) / 16.0
    }

    fn sink(head: u32) -> f64 {
        f64::from(head % 5) - 1.0
    }

    /// The scores of a row, of the keys that it attends to.
    fn scores(&self, of: Sequence, head: u32, row: u32) -> Vec<(u32, f64)> {
        let offset = self.window.offset(of.rows, of.keys);
        let [first, end] = self.window.keys_of(row, offset, of.keys);
        let q: Vec<f64> = (0..self.columns[0]).map(|column| self.q(of, row, head, column)).collect();
        let key_head = head / self.group;
        let mut scores = Vec::new();
        for key in first.max(0)..end.max(0) {
            let key = key as u32;
            if self.mask && !self.keeps(of, head, row, key) {
                continue;
            }
            if let Some([rows, keys]) = self.blocks
                && !self.keeps_block(of, head, row / rows, key / keys)
            {
                continue;
            }
            let product = |(q, column): (&f64, u32)| q * self.k(of, key, key_head, column);
            let mut score: f64 = q.iter().zip(0..).map(product).sum();
            score *= f64::from(self.scale) * self.key_scale(false, key_head);
            if self.cap != 0.0 {
                let cap = f64::from(self.cap);
                score = cap * (score / cap).tanh();
            }
            if self.bias {
                score += self.bias(of, head, row, key);
            }
            if self.slopes {
                // Distances count from the last row where the window does.
                let beside = i64::from(row) + i64::from(offset);
                score -= self.slope(of, head) * (i64::from(key) - beside).abs() as f64;
            }
            scores.push((key, score));
        }
        scores
    }

    /// All operands and the results.
    pub(super) fn operands(&self, of: Number, of_keys: Number, o_layout: Layout) -> Operands {
        let sequences = if self.offsets.is_some() { 1 } else { self.batch };
        let key_heads = self.key_heads();
        let [width, values] = self.columns;
        // Rows begin at multiples of 16 bytes.
        let tensor = |of: Number, axes, columns| {
            let chunk = if of.bytes() == 1 { 16 } else { 8 };
            Tensor::new(of, Layout::new(axes, columns, chunk, chunk))
        };
        let key_axes = match self.page {
            // One page that nobody has.
            Some(page) => [self.batch * self.pages() + 1, page, key_heads],
            None => [sequences, self.keys, key_heads],
        };
        let mut q = tensor(of, [sequences, self.rows, self.heads], width);
        let (mut k, mut v) = (tensor(of_keys, key_axes, width), tensor(of_keys, key_axes, values));
        let all_pages = self.batch * self.pages();
        // Backwards, so that no page is where its keys would be without pages.
        let table: Vec<u32> = (0..all_pages).map(|page| all_pages - page).collect();
        let full = |is_there: bool, bytes: usize, axes: [u32; 2]| {
            let heads = if self.is_shared { 1 } else { self.heads };
            vec![0xffu8; if is_there { (self.batch * heads * axes[0] * axes[1]) as usize * bytes } else { 0 }]
        };
        let axes = [self.rows, self.keys];
        let mut bias = full(self.bias, of.bytes(), axes);
        let mut mask = full(self.mask, 1, axes);
        let mut blocks = full(self.blocks.is_some(), 1, self.block_axes());
        let mut slopes = Vec::new();
        for of_sequence in self.sequences() {
            let Sequence { number, index, row: first_row, key: first_key, rows, keys, .. } = of_sequence;
            for (head, row) in (0..self.heads).flat_map(|head| (0..rows).map(move |row| (head, row))) {
                q.fill(of, [index, first_row + row, head], |column| self.q(of_sequence, row, head, column));
                for key in 0..keys {
                    let at = self.place(of_sequence, head, [row, key], axes);
                    if self.bias {
                        let number = self.bias(of_sequence, head, row, key);
                        bias[of.bytes() * at..][..of.bytes()].copy_from_slice(&of.put(number));
                    }
                    if self.mask {
                        mask[at] = self.keeps(of_sequence, head, row, key).into();
                    }
                    if let Some([of_rows, of_keys]) = self.blocks {
                        let block = [row / of_rows, key / of_keys];
                        let at = self.place(of_sequence, head, block, self.block_axes());
                        blocks[at] = self.keeps_block(of_sequence, head, block[0], block[1]).into();
                    }
                }
            }
            for (head, key) in (0..key_heads).flat_map(|head| (0..keys).map(move |key| (head, key))) {
                let place = match self.page {
                    Some(page) => [table[(number * self.pages() + key / page) as usize], key % page, head],
                    None => [index, first_key + key, head],
                };
                k.fill(of_keys, place, |column| self.k(of_sequence, key, head, column));
                v.fill(of_keys, place, |column| self.v(of_sequence, key, head, column));
            }
            if self.slopes {
                slopes.extend((0..self.heads).map(|head| self.slope(of_sequence, head) as f32));
            }
        }
        let sinks =
            if self.sinks { (0..self.heads).map(|head| Self::sink(head) as f32).collect() } else { vec![] };
        let scales = [false, true].map(|of_values| {
            let count = match self.scales[usize::from(of_values)] {
                Some(true) => key_heads,
                Some(false) => 1,
                None => 0,
            };
            (0..count).map(|head| self.key_scale(of_values, head) as f32).collect()
        });
        let parts = self.parts();
        let part_rows = if parts > 1 { self.all_rows() * parts as usize } else { 0 };
        let mut made = Operands {
            q,
            k,
            v,
            bias,
            mask,
            blocks,
            slopes,
            sinks,
            scales,
            table,
            o_layout,
            o: Expected::untouched(o_layout.len()),
            lse: Expected::untouched(if self.lse { self.all_rows() } else { 0 }),
            part_sums: Expected::untouched(part_rows * Parts::columns(values) as usize),
            part_lse: Expected::untouched(part_rows),
        };
        for sequence in self.sequences() {
            for head in 0..self.heads {
                for row in 0..sequence.written {
                    self.expect_row(of, &mut made, sequence, head, row);
                }
            }
        }
        made
    }

    fn expect_row(&self, of: Number, made: &mut Operands, sequence: Sequence, head: u32, row: u32) {
        let counts = row < sequence.rows;
        let scores = if counts { self.scores(sequence, head, row) } else { Vec::new() };
        let in_tensor = sequence.row + row;
        let number = ((sequence.index * self.heads + head) * self.rows + in_tensor) as usize;
        let values = self.columns[1];
        if self.parts() == 1 {
            let sink = (self.sinks && counts).then(|| Self::sink(head));
            let (lse, sums) = self.sums(sequence, head, &scores, sink);
            let first = made.o_layout.at(sequence.index, in_tensor, head);
            for (column, (sum, size)) in sums.into_iter().enumerate() {
                let tolerance = 1.1 * of.unit() * (size + sum.abs()) + 1e-6;
                made.o.set(first + column, sum, tolerance);
            }
            if self.lse {
                made.lse.set_lse(number, lse);
            }
            return;
        }
        for part in 0..self.parts() {
            let keys = self.part.unwrap_or(1);
            let is_of = |&&(key, _): &&(u32, f64)| key / keys == part;
            let scores: Vec<(u32, f64)> = scores.iter().filter(is_of).copied().collect();
            let at = number * self.parts() as usize + part as usize;
            let (lse, sums) = self.sums(sequence, head, &scores, None);
            made.part_lse.set_lse(at, if counts { lse } else { Parts::NO_ROW.into() });
            if scores.is_empty() {
                continue;
            }
            let columns = Parts::columns(values) as usize;
            let first = at * columns;
            // Behind the columns are zeros.
            for column in 0..columns {
                let (sum, size) = sums.get(column).copied().unwrap_or_default();
                made.part_sums.set(first + column, sum, 1.1 * of.unit() * size + 1e-6);
            }
        }
    }

    /// The log-sum-exp, and of each column the weighted sum and that of what it is made of.
    fn sums(
        &self,
        sequence: Sequence,
        head: u32,
        scores: &[(u32, f64)],
        sink: Option<f64>,
    ) -> (f64, Vec<(f64, f64)>) {
        let sink = sink.unwrap_or(f64::NEG_INFINITY);
        let largest = scores.iter().fold(sink, |largest, &(_, score)| largest.max(score));
        let mut sums = vec![(0.0, 0.0); self.columns[1] as usize];
        if largest == f64::NEG_INFINITY {
            return (largest, sums);
        }
        let weights: Vec<(u32, f64)> =
            scores.iter().map(|&(key, score)| (key, (score - largest).exp())).collect();
        let total = weights.iter().map(|(_, weight)| weight).sum::<f64>() + (sink - largest).exp();
        for (key, weight) in weights.into_iter().filter(|&(_, weight)| weight > 1e-12) {
            for (column, (sum, size)) in sums.iter_mut().enumerate() {
                let key_head = head / self.group;
                let value = self.v(sequence, key, key_head, column as u32) * self.key_scale(true, key_head);
                let part = weight / total * value;
                *sum += part;
                *size += part.abs();
            }
        }
        (largest + total.ln(), sums)
    }
}
