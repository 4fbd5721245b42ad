//! How the kernels that add up parts are run: on parts of which some have no keys, with sinks, and with rows that do not count.

use warpsmith_dsl::attention::portable::Parts;
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_emulator::{Config, LaunchError, Machine, Module, Report};
use warpsmith_kernels::attention::CombineParams;

use super::super::Problem;
use super::case::{Expected, hash};
use super::number::Number;
use super::run::{is_right, launch};

/// Rows of a block: one for each warp.
const BLOCK_ROWS: u32 = 4;

/// The problems of such a kernel.
pub(super) fn problems(of: Number) -> Vec<Box<dyn Problem>> {
    let size = |rows: u32, columns: u32, parts: u32| Size {
        batch: 1,
        heads: 1,
        rows,
        columns,
        parts,
        sinks: false,
        lse: true,
        counts: rows,
    };
    let sizes = [
        size(1, 1, 1),
        Size { heads: 3, batch: 2, sinks: true, ..size(3, 33, 3) },
        Size { heads: 2, lse: false, ..size(5, 40, 2) },
        Size { heads: 2, batch: 3, ..size(1, 97, 5) },
        size(5, 10, 4),
        Size { sinks: true, ..size(3, 5, 7) },
        Size { heads: 2, lse: false, ..size(2, 35, 8) },
        size(4, 3, 9),
        Size { heads: 2, ..size(2, 258, 17) },
        size(3, 16, 32),
        Size { heads: 2, sinks: true, counts: 6, ..size(8, 9, 2) },
        Size { lse: false, counts: 3, ..size(7, 64, 3) },
        Size { counts: 0, ..size(4, 8, 2) },
    ];
    sizes.into_iter().map(|size| Box::new(Case::new(of, size)) as Box<dyn Problem>).collect()
}

#[derive(Clone, Debug)]
struct Size {
    batch: u32,
    heads: u32,
    rows: u32,
    columns: u32,
    parts: u32,
    sinks: bool,
    lse: bool,
    /// Rows that count.
    counts: u32,
}

struct Case {
    name: String,
    of: Number,
    size: Size,
    sums: Vec<f32>,
    part_lse: Vec<f32>,
    sinks: Vec<f32>,
    o: Expected,
    lse: Expected,
    /// Elements of O from sequence to sequence, row to row and head to head.
    strides: [u64; 3],
}

impl Case {
    fn new(of: Number, size: Size) -> Self {
        let Size { batch, heads, rows, columns, parts, .. } = size;
        let head_stride = u64::from(columns + 1);
        let row_stride = head_stride * u64::from(heads) + 1;
        let strides = [row_stride * u64::from(rows + 1), row_stride, head_stride];
        let place = |sequence: u32, row: u32, head: u32| {
            [sequence, row, head]
                .into_iter()
                .zip(strides)
                .map(|(at, stride)| u64::from(at) * stride)
                .sum::<u64>() as usize
        };
        let all = (batch * heads * rows) as usize;
        let mut o = Expected::untouched(place(batch - 1, rows - 1, heads - 1) + columns as usize);
        let mut lse = Expected::untouched(if size.lse { all } else { 0 });
        let (mut sums, mut part_lse) = (Vec::new(), Vec::new());
        let sink = |head: u32| if head == 1 { f32::NEG_INFINITY } else { head as f32 - 0.5 };
        for number in 0..batch * heads * rows {
            let (sequence, head, row) = (number / (heads * rows), number / rows % heads, number % rows);
            let is_there = row < size.counts;
            let whole = Parts::columns(columns);
            let mut weighted = vec![[0.0; 2]; columns as usize];
            let mut numbers = vec![if size.sinks { f64::from(sink(head)) } else { f64::NEG_INFINITY }];
            let mut of_parts = Vec::new();
            for part in 0..parts {
                // Of one row in five no part has keys.
                let is_empty = number % 5 == 3 || hash(&[8, number, part]).is_multiple_of(3);
                let part_number = match (is_there, is_empty) {
                    (false, _) => Parts::NO_ROW,
                    (true, true) => f32::NEG_INFINITY,
                    (true, false) => (hash(&[9, number, part]) % 33) as f32 / 8.0 - 3.0,
                };
                let value = |column: u32| match part_number.is_finite() && column < columns {
                    true => (hash(&[10, number, part, column]) % 65) as f32 / 4.0 - 8.0,
                    false => f32::NAN,
                };
                sums.extend((0..whole).map(value));
                part_lse.push(part_number);
                numbers.push(part_number.into());
                if part_number.is_finite() {
                    of_parts.push((
                        f64::from(part_number),
                        (0..columns).map(value).map(f64::from).collect::<Vec<_>>(),
                    ));
                }
            }
            if !is_there {
                numbers.clear();
            }
            let largest = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let is_empty = largest == f64::NEG_INFINITY;
            let total: f64 = numbers.iter().map(|number| (number - largest).exp()).sum();
            for (number, values) in of_parts {
                for (sum, value) in weighted.iter_mut().zip(values) {
                    let part = (number - largest).exp() / total * value;
                    *sum = [sum[0] + part, sum[1] + part.abs()];
                }
            }
            for (column, [sum, magnitude]) in weighted.into_iter().enumerate() {
                // One rounding to the type; weights, sums and quotients are in f32, off by a few 2⁻²².
                let tolerance = of.unit() * sum.abs() * 1.001 + magnitude * 1e-5 + 1e-7;
                o.set(place(sequence, row, head) + column, sum, tolerance);
            }
            if size.lse {
                lse.set_lse(number as usize, if is_empty { largest } else { largest + total.ln() });
            }
        }
        let sinks = if size.sinks { (0..heads).map(sink).collect() } else { Vec::new() };
        Self { name: format!("{size:?}"), of, size, sums, part_lse, sinks, o, lse, strides }
    }
}

impl Problem for Case {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let machine = Machine::new(config);
        let place = |bytes: &[u8]| {
            if bytes.is_empty() {
                return Ok(0);
            }
            let address = machine.allocate(bytes.len() as u64)?;
            machine.write(address, bytes)?;
            Ok::<u64, LaunchError>(address)
        };
        let numbers = |numbers: &[f32]| {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            place(&bytes)
        };
        let size = &self.size;
        let (o, lse) = (place(&self.o.before(self.of))?, place(&self.lse.before(Number::F32))?);
        let rows = size.batch * size.heads * size.rows;
        let [stride_sequence, stride_row, stride_head] = self.strides;
        let parts = Parts {
            sums: GlobalMut::new(numbers(&self.sums)?),
            lse: GlobalMut::new(numbers(&self.part_lse)?),
            count: size.parts,
            keys: 64,
        };
        let p = CombineParams {
            stride_sequence,
            stride_row,
            stride_head,
            rows: rows.into(),
            rows_of_head: size.rows,
            heads: size.heads,
            columns: size.columns,
            reserved: 0,
        };
        let sinks = Global::<f32>::new(numbers(&self.sinks)?);
        let arguments = (parts, GlobalMut::<u8>::new(o), GlobalMut::<f32>::new(lse), sinks, p);
        let report = launch(&machine, module, shared_bytes, rows.div_ceil(BLOCK_ROWS), arguments)?;
        let is_sound =
            is_right(&machine, o, self.of, &self.o)? && is_right(&machine, lse, Number::F32, &self.lse)?;
        Ok((report, is_sound))
    }
}
