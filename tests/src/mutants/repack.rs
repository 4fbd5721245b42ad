//! How the kernels of the family `repack` are run: on batches of matrices that end in every part of a tile, with strides of every
//! kind. Every byte of a copy is known: the elements, the zeros that fill a row's last chunk, and what must stay as it was.

use warpsmith_dsl::launch::{Global, GlobalMut, KernelArgs};
use warpsmith_emulator::{Config, LaunchConfig, LaunchError, Machine, Module, Report};
use warpsmith_kernels::repack::{PASSES, RepackParams, THREADS, TILE_BYTES};

use super::Problem;

/// What bytes that the kernel must not touch are filled with.
const UNTOUCHED: u8 = 0xa5;

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(crate) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let name = name.strip_prefix("repack_")?;
    let (kind, word) = name.split_once('_')?;
    let word: u64 = word.parse().ok()?;
    let cases = match kind {
        "pair" => return Some(pairs(word)),
        "rows" => rows(word),
        "transpose" => transpose(word),
        _ => return None,
    };
    Some(cases.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

/// One batch of matrices: sizes in words, strides as the kernel is told them.
struct Case {
    name: String,
    word: u64,
    grid: [u64; 3],
    params: RepackParams,
    /// Bytes between the rows of the copy beside a row's chunks.
    gap: u64,
}

/// Matrices of contiguous rows, for threads that are spread over the chunks of a row in every way.
fn rows(word: u64) -> Vec<Case> {
    let per_chunk = 16 / word;
    let case = |lanes_log2: u32, [batch, rows, columns]: [u64; 3], gap: u64, along_y: u64| {
        let block_rows = u64::from(PASSES * (THREADS >> lanes_log2));
        let pitch = (columns * word).next_multiple_of(16) + gap;
        let along_x = rows.div_ceil(block_rows) * (columns * word).div_ceil(16).div_ceil(1 << lanes_log2);
        let strides = [columns + 3, 1, rows * (columns + 3) + 5];
        Case::new(
            word,
            strides,
            [batch, rows, columns],
            pitch,
            gap,
            [along_x, along_y, batch.div_ceil(along_y)],
        )
        .with_lanes(lanes_log2)
    };
    let mut all = vec![case(0, [1, 3, 1], 0, 1), case(5, [3, 5, per_chunk * 3], 0, 2)];
    for tail in 1..=per_chunk {
        all.push(case(4, [2, 70, 3 * per_chunk + tail], 16, 2));
    }
    for rows in [1, 31, 32, 33, 63, 64, 97] {
        all.push(case(5, [1, rows, 33 * per_chunk - 1], 0, 1));
    }
    // Last rows in every pass of a block, and as their last chunk every number of words, after which there is nothing to read.
    for pass in 0..u64::from(PASSES) {
        for tail in 1..=per_chunk {
            all.push(case(5, [1, pass * u64::from(THREADS >> 5) + 2, per_chunk + tail], 0, 1));
        }
    }
    all.push(case(5, [1, 130, 31 * per_chunk], 32, 1));
    all
}

/// Two matrices of contiguous rows each: the same ones as of [`rows`], beside others.
fn pairs(word: u64) -> Vec<Box<dyn Problem>> {
    let single = || rows(word).into_iter().filter(|case| case.params.batch == 1);
    let seconds = single().collect::<Vec<_>>().into_iter().rev();
    single()
        .zip(seconds)
        .map(|(first, second)| Box::new(Pair::new(first, second)) as Box<dyn Problem>)
        .collect()
}

/// Matrices whose columns are contiguous, in chunks and not, and matrices with no contiguous elements.
fn transpose(word: u64) -> Vec<Case> {
    let (tile, per_chunk) = (u64::from(TILE_BYTES) / word, 16 / word);
    let case = |[batch, rows, columns]: [u64; 3], row_stride: u64, chunked: bool, gap: u64| {
        let column = rows * row_stride;
        let column_stride = if chunked { column.next_multiple_of(per_chunk) + per_chunk } else { column + 1 };
        let batch_stride = columns * column_stride + if chunked { per_chunk } else { 1 };
        let along_x = rows.div_ceil(tile) * columns.div_ceil(tile);
        let pitch = (columns * word).next_multiple_of(16) + gap;
        let strides = [row_stride, column_stride, batch_stride];
        let case =
            Case::new(word, strides, [batch, rows, columns], pitch, gap, [along_x, 2, batch.div_ceil(2)]);
        case.with_chunks(chunked)
    };
    let mut all = vec![
        case([1, 1, 2], 1, true, 0),
        case([1, 3, 1], 1, true, 0),
        case([3, 5, 7], 1, false, 0),
        case([2, 6, 9], 3, false, 16),
    ];
    for tail in 1..=per_chunk {
        all.push(case([1, tile - tail, 2 * per_chunk + tail], 1, tail % 2 == 0, 0));
        all.push(case([1, 2 * per_chunk + tail, tile + per_chunk - tail], 1, tail % 2 == 1, 16));
    }
    // Last columns in every pass of a tile, whose rows end after every number of elements of a chunk: there is nothing behind.
    let columns_per_pass = u64::from(THREADS) / u64::from(TILE_BYTES / 16);
    for pass in 0..tile / columns_per_pass {
        for tail in 1..=per_chunk {
            all.push(case([1, per_chunk + tail, pass * columns_per_pass + 3], 1, tail % 2 == 0, 0));
        }
    }
    // Last rows in every pass of a tile, beside whose last chunks there is room.
    for pass in 0..tile / columns_per_pass {
        all.push(case([1, pass * columns_per_pass + 3, 2 * per_chunk], 1, pass % 2 == 0, 16));
        all.push(case([1, pass * columns_per_pass + 3, 2 * per_chunk - 1], 1, pass % 2 == 1, 0));
    }
    for sides in [[1, tile, tile], [2, tile + 1, 2 * tile - 1], [1, 2 * tile + 3, tile + 1]] {
        all.push(case(sides, 1, true, 0));
        all.push(case(sides, 1, false, 0));
    }
    all
}

impl Case {
    fn new(word: u64, strides: [u64; 3], sizes: [u64; 3], pitch: u64, gap: u64, grid: [u64; 3]) -> Self {
        let [batch, rows, columns] = sizes;
        let params = RepackParams {
            row_stride: strides[0],
            column_stride: strides[1],
            batch_stride: strides[2],
            pitch,
            copy_batch_stride: rows * pitch + gap,
            rows: rows as u32,
            columns: columns as u32,
            batch: batch as u32,
            lanes_log2: 0,
            chunked: 0,
            reserved: 0,
        };
        let name = format!("{batch} of {rows} × {columns} words, strides {strides:?}");
        Self { name, word, grid, params, gap }
    }

    fn with_lanes(mut self, lanes_log2: u32) -> Self {
        self.params.lanes_log2 = lanes_log2;
        self
    }

    fn with_chunks(mut self, chunked: bool) -> Self {
        self.params.chunked = chunked.into();
        self
    }

    /// The source, which ends with its last element, and the copy.
    fn data(&self) -> (Vec<u8>, Vec<u8>) {
        let p = &self.params;
        let (batch, rows, columns) = (u64::from(p.batch), u64::from(p.rows), u64::from(p.columns));
        let at = |b: u64, r: u64, c: u64| {
            (b * p.batch_stride + r * p.row_stride + c * p.column_stride) * self.word
        };
        let length = at(batch - 1, rows - 1, columns - 1) + self.word;
        let source: Vec<u8> = (0..length).map(|i| (i * 37 % 251) as u8 | 1).collect();
        let mut copy = vec![UNTOUCHED; (batch * p.copy_batch_stride) as usize];
        for (b, r) in (0..batch).flat_map(|b| (0..rows).map(move |r| (b, r))) {
            let start = (b * p.copy_batch_stride + r * p.pitch) as usize;
            copy[start..start + (p.pitch - self.gap) as usize].fill(0);
            for c in 0..columns {
                let (to, from) = (start + (c * self.word) as usize, at(b, r, c) as usize);
                copy[to..to + self.word as usize].copy_from_slice(&source[from..from + self.word as usize]);
            }
        }
        (source, copy)
    }
}

/// Where a source and its copy are, and what the copy is to be.
type Placed = (Global<u8>, GlobalMut<u8>, Vec<u8>);

impl Case {
    /// The source and the copy on `machine`, and what is to become of the copy.
    fn place(&self, machine: &Machine) -> Result<Placed, LaunchError> {
        let (source, expected) = self.data();
        let (from, to) = (machine.allocate(source.len() as u64)?, machine.allocate(expected.len() as u64)?);
        machine.write(from, &source)?;
        machine.write(to, &vec![UNTOUCHED; expected.len()])?;
        Ok((Global::new(from), GlobalMut::new(to), expected))
    }
}

/// Launches the module's kernel; nothing if it has none.
fn launch(
    machine: &Machine,
    module: &Module,
    grid: [u64; 3],
    shared_bytes: u32,
    arguments: impl KernelArgs,
) -> Result<Report, LaunchError> {
    let Some(kernel) = module.kernels().next() else { return Ok(Report::default()) };
    let config = LaunchConfig {
        grid: grid.map(|blocks| blocks as u32),
        block: kernel.reqntid.unwrap_or([1; 3]),
        dynamic_shared: shared_bytes,
        ..LaunchConfig::default()
    };
    super::launch(machine, module, &kernel.name, &config, arguments)
}

/// Whether the copy at `to` is as expected.
fn is_as_expected(machine: &Machine, to: GlobalMut<u8>, expected: &[u8]) -> Result<bool, LaunchError> {
    let mut copy = vec![0; expected.len()];
    machine.read(to.address(), &mut copy)?;
    Ok(copy == expected)
}

impl Problem for Case {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let machine = Machine::new(config);
        let (from, to, expected) = self.place(&machine)?;
        let report = launch(&machine, module, self.grid, shared_bytes, (from, to, self.params))?;
        Ok((report, is_as_expected(&machine, to, &expected)?))
    }
}

/// Two matrices that one launch copies.
struct Pair {
    name: String,
    cases: [Case; 2],
}

impl Pair {
    fn new(first: Case, second: Case) -> Self {
        Self { name: format!("{}; {}", first.name, second.name), cases: [first, second] }
    }
}

impl Problem for Pair {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let machine = Machine::new(config);
        let [first, second] = &self.cases;
        let (from, to, expected) = first.place(&machine)?;
        let (second_from, second_to, second_expected) = second.place(&machine)?;
        let arguments = (from, to, second_from, second_to, first.params, second.params);
        let grid = [first.grid[0] + second.grid[0], 1, 1];
        let report = launch(&machine, module, grid, shared_bytes, arguments)?;
        let are_right = is_as_expected(&machine, to, &expected)?
            && is_as_expected(&machine, second_to, &second_expected)?;
        Ok((report, are_right))
    }
}
