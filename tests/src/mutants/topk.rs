//! How the kernels of the family `topk` are run: on rows of every number of elements around what a warp reads at a time, whole and in
//! parts, with few different numbers, so that which of them is selected shows that ties are decided rightly.

use half::{bf16, f16};
use warpsmith_dsl::launch::{Global, GlobalMut, KernelArgs, RawArg};
use warpsmith_emulator::{Config, LaunchConfig, LaunchError, Machine, Module, Report};
use warpsmith_kernels::topk::{TopkParams, WARPS};

use super::Problem;

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(crate) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let (dtype, most) = name.strip_prefix("topk_")?.split_once('_')?;
    let most: u32 = most.parse().ok()?;
    let element = match dtype {
        "f16" => Element { bytes: 2, bits: |number| u32::from(f16::from_f32(number).to_bits()) },
        "bf16" => Element { bytes: 2, bits: |number| u32::from(bf16::from_f32(number).to_bits()) },
        "f32" => Element { bytes: 4, bits: f32::to_bits },
        _ => return None,
    };
    let case = |rows, columns, parts, k, has_ids| Case { element, rows, columns, parts, k, has_ids };
    let mut all = vec![case(1, 1, 1, 1, false), case(3, 2, 1, 2, true), case(5, 31, 1, 7, false)];
    for columns in [32, 33, 63, 64, 65, 127, 128, 129, 130, 257] {
        all.push(case(3, columns, 1, most.min(columns), columns % 2 == 0));
        all.push(case(2, columns, 1, (most / 2 + 1).min(columns), columns % 2 == 1));
    }
    for k in [1, most - 1, most] {
        all.push(case(3, 400, 5, k, false));
        all.push(case(4, 333, 3, k, true));
    }
    Some(all.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

/// A type of elements.
#[derive(Clone, Copy)]
struct Element {
    bytes: usize,
    /// The bits of a number.
    bits: fn(f32) -> u32,
}

struct Case {
    element: Element,
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
        ((row * 7919 + column * 104_729 + 17) % 193 % 37) as f32 - 18.0
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
                columns.sort_by(|&a, &b| self.number(row, b).total_cmp(&self.number(row, a)).then(a.cmp(&b)));
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
        "rows with many ties"
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
        let launch = |raw: &[RawArg]| {
            // SAFETY: `with_raw` hands over bytes that are valid for the length given, for this call.
            let bytes: Vec<&[u8]> =
                raw.iter().map(|arg| unsafe { std::slice::from_raw_parts(arg.data, arg.size) }).collect();
            machine.launch(module, &kernel.name, &config, &bytes)
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
        let report = arguments.with_raw(launch)?;
        let mut got = [vec![0; expected[0].len()], vec![0; expected[1].len()]];
        machine.read(values, &mut got[0])?;
        machine.read(ids, &mut got[1])?;
        Ok((report, got == expected))
    }
}
