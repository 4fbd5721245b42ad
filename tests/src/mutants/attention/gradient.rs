//! How the kernels of gradients are run: on rows and keys around tiles and blocks of others, with windows, sequences of every kind, and everything that changes scores.

use warpsmith_dsl::attention::gradient::hopper::{self, HopperShape, HopperTensors};
use warpsmith_dsl::attention::gradient::portable::{GradientTensors, GradientTile};
use warpsmith_dsl::attention::gradient::{BLOCK_ROWS, GivesQueries, GradientParams, RowParams};
use warpsmith_dsl::attention::portable::Strided;
use warpsmith_dsl::attention::scores::{ScoreOperands, ScoreStrides};
use warpsmith_dsl::attention::softmax::LOG2_E;
use warpsmith_dsl::attention::window::Window;
use warpsmith_dsl::attention::work::{Sequences, Sizes};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::ptx::Accumulators;
use warpsmith_dsl::warpgroup::ROWS;
use warpsmith_emulator::{Config, LaunchError, Machine, Module, Report};
use warpsmith_kernels::attention_gradient::{Gradient128Sliced, Gradient256Sliced};
use warpsmith_kernels::attention_gradient_hopper::{
    Gradient64, Gradient64By96, Gradient96, Gradient96By64, Gradient128, Gradient128By64, Gradient192,
    Gradient256,
};

use super::super::Problem;
use super::case::{EVERYTHING, Gradients, Layout, Operands, Size, size};
use super::number::Number;
use super::run::{Memory, is_right, launch, map};

/// What a kernel gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gives {
    Rows,
    Queries,
    KeysAndValues,
    Keys,
    Values,
}

/// The problems of such a kernel, by the parts of its name behind those of the family.
pub(super) fn problems(
    parts: &[&str],
    number: impl Fn(&str) -> Option<Number>,
) -> Option<Vec<Box<dyn Problem>>> {
    let (is_hopper, parts) = match parts {
        ["hopper", of_hopper @ ..] => (true, of_hopper),
        _ => (false, parts),
    };
    let (gives, of, most, others) = match *parts {
        ["rows", of] => (Gives::Rows, number(of)?, 40, 16),
        [gives, of, columns] => {
            let gives = match gives {
                "q" => Gives::Queries,
                "kv" => Gives::KeysAndValues,
                "k" => Gives::Keys,
                "v" => Gives::Values,
                _ => return None,
            };
            let most: u32 = columns.parse().ok()?;
            let of = number(of)?;
            // Others of a block.
            let others = match (of, most, gives) {
                _ if is_hopper => others_of_hopper(gives, most)?,
                (Number::F32, ..) | (_, 256, _) | (_, 128, Gives::KeysAndValues) => 16,
                (_, 64, Gives::Queries) => 64,
                _ => 32,
            };
            (gives, of, most, others)
        }
        _ => return None,
    };
    let tile = if is_hopper { hopper::BLOCK_ROWS } else { BLOCK_ROWS };
    let mut sizes = sizes(gives, most, others, tile);
    // Hopper's kernels have no operands that change scores.
    sizes.retain(|size| !is_hopper || !changes_scores(size));
    let hopper = is_hopper.then_some(others);
    let slices = match (of, most) {
        (Number::F32, 128) => GradientTile::<f32, Gradient128Sliced, GivesQueries>::SLICES,
        (Number::F32, 256) => GradientTile::<f32, Gradient256Sliced, GivesQueries>::SLICES,
        _ => 1,
    };
    let cases = sizes.into_iter().map(|size| Case::new(gives, of, size, (hopper, slices)));
    Some(cases.map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

/// Others of a block of Hopper's kernels for at most so many columns.
fn others_of_hopper(gives: Gives, most: u32) -> Option<u32> {
    fn of<S: HopperShape>() -> u32 {
        <S::Scores as Accumulators>::COLUMNS
    }
    Some(match (gives, most) {
        (Gives::Queries, 64) => of::<Gradient64>(),
        (Gives::Queries, 96) => of::<Gradient96>(),
        (Gives::Queries, 128) => of::<Gradient128>(),
        (_, 64) => of::<Gradient64By96>(),
        (_, 96) => of::<Gradient96By64>(),
        (_, 128) => of::<Gradient128By64>(),
        (_, 192) => of::<Gradient192>(),
        (_, 256) => of::<Gradient256>(),
        _ => return None,
    })
}

/// Whether operands change scores, or the sign of the scale does.
fn changes_scores(size: &Size) -> bool {
    let options = [size.bias, size.mask, size.blocks.is_some(), size.slopes, size.cap != 0.0];
    size.scale <= 0.0 || options.contains(&true)
}

/// Problems of tiles of so many rows and columns at most, and blocks of so many others.
fn sizes(gives: Gives, most: u32, others: u32, tile: u32) -> Vec<Size> {
    let of_keys = matches!(gives, Gives::KeysAndValues | Gives::Keys | Gives::Values);
    // Of rows of a tile and of others.
    let sides = |own: u32, other: u32, columns: [u32; 2]| {
        if of_keys { size(other, own, columns) } else { size(own, other, columns) }
    };
    let causal = |is_bottom_right: u32| Window { right: 0, is_bottom_right, ..EVERYTHING };
    let window =
        |left: u32, right: u32, is_bottom_right: u32| Window { left, right, is_bottom_right, reserved: 0 };
    let two = |size: Size| Size { batch: 2, heads: 2, ..size };
    let mut sizes = vec![
        size(1, 1, [most, most]),
        Size { heads: 2, group: 2, ..sides(5, others + 1, [13, 16]) },
        Size { batch: 2, window: causal(1), ..sides(7, others - 1, [most - 11, most - 9]) },
        Size {
            batch: 2,
            heads: 6,
            group: 3,
            window: window(3, 2, 0),
            lengths: [Some(vec![5, 20]), Some(vec![11, 0])],
            section: 2,
            ..size(9, 12, [24, 32])
        },
        Size {
            batch: 4,
            heads: 2,
            group: 2,
            window: causal(1),
            sinks: true,
            offsets: Some([vec![1, 4, 4, 9, 12], vec![2, 7, 11, 11, others + 14]]),
            ..size(14, others + 16, [16, 24])
        },
        Size { window: causal(0), ..sides(tile + 3, 2 * others + 5, [16, most]) },
        Size { window: window(others / 2 + 3, 5, 1), ..sides(tile - 1, 3 * others, [most, 8]) },
        Size { heads: 2, group: 2, window: causal(1), ..sides(tile + 1, others + 3, [8, 8]) },
        Size { sinks: true, bias: true, scale: -0.5, ..two(sides(11, others + 3, [16, 16])) },
        Size { slopes: true, window: window(7, 3, 1), sinks: true, ..two(sides(11, others - 5, [16, 8])) },
        Size { slopes: true, cap: 1.5, is_shared: true, mask: true, ..two(sides(11, others + 2, [24, 8])) },
        Size {
            blocks: Some([3, others / 4 + 1]),
            lengths: [Some(vec![10, 11]), Some(vec![2 * others, others + 7])],
            ..two(size(11, 3 * others - 1, [8, 24]))
        },
        Size {
            blocks: Some([2, 3]),
            mask: true,
            bias: true,
            is_shared: true,
            group: 2,
            window: causal(1),
            sinks: true,
            ..two(sides(14, others + 9, [16, 8]))
        },
        Size { blocks: Some([tile / 2, 2 * others]), sinks: true, ..sides(tile + 2, 5 * others + 1, [8, 8]) },
    ];
    if gives == Gives::Rows {
        // Every column may be the last.
        sizes.extend((1..=20).map(|columns| size(3, 2, [8, columns])));
        sizes.extend([1, 33, 63, 64, 65].map(|rows| Size { sinks: true, ..two(size(rows, 2, [8, 8])) }));
        return sizes;
    }
    // The last column is the first of each fragment's.
    sizes.extend((0..most).step_by(8).map(|first| sides(9, 2, [first + 1, first + 1])));
    // Each of a thread's columns is once the first behind the others.
    let ends = (0..others).step_by(8).flat_map(|first| [first + 2, first + 3]);
    sizes.extend(ends.flat_map(|end| {
        [1, 9].map(|own| Size { bias: true, mask: true, blocks: Some([1, 1]), ..sides(own, end, [8, 8]) })
    }));
    sizes
}

struct Case {
    name: String,
    gives: Gives,
    of: Number,
    size: Size,
    operands: Operands,
    gradients: Gradients,
    /// Of Hopper's kernels the others of a block.
    hopper: Option<u32>,
    /// Blocks of a tile.
    slices: u32,
}

impl Case {
    fn new(gives: Gives, of: Number, size: Size, (hopper, slices): (Option<u32>, u32)) -> Self {
        let sequences = if size.offsets.is_some() { 1 } else { size.batch };
        let o = Layout::new([sequences, size.rows, size.heads], size.columns[1], 1, 1);
        let operands = size.operands(of, of, o);
        let gradients = size.gradients(of);
        Self { name: format!("{size:?}"), gives, of, size, operands, gradients, hopper, slices }
    }

    /// Sizes with tiles of so many rows, of so many heads of each sequence.
    fn sizes(&self, of_keys: bool) -> Sizes {
        let size = &self.size;
        let is_packed = size.offsets.is_some();
        let of_tile = if self.hopper.is_some() { hopper::BLOCK_ROWS } else { BLOCK_ROWS };
        let (rows, heads) =
            if of_keys { (size.keys, size.heads / size.group) } else { (size.rows, size.heads) };
        let Window { left, right, .. } = size.window;
        let window = if of_keys { Window { left: right, right: left, ..size.window } } else { size.window };
        Sizes {
            lse_batch: if is_packed { 0 } else { u64::from(size.heads * size.rows) },
            lse_head: size.rows.into(),
            batch: size.batch,
            heads,
            group: size.group,
            pack: 1,
            rows,
            keys: if of_keys { size.rows } else { size.keys },
            // Each packed sequence may begin a tile of its own.
            tiles: if is_packed { rows / of_tile + size.batch } else { rows.div_ceil(of_tile) },
            section: size.section.min(heads),
            rows_of_heads: if is_packed { heads } else { heads * size.batch },
            reserved: 0,
            window,
        }
    }
}

/// Sequences, and operands that change scores, with the places of rows and keys exchanged.
fn exchanged(sequences: Sequences, operands: ScoreOperands) -> (Sequences, ScoreOperands) {
    let strides = |strides: ScoreStrides| ScoreStrides { row: strides.key, key: strides.row, ..strides };
    let exchanged = ScoreOperands {
        bias_strides: strides(operands.bias_strides),
        mask_strides: strides(operands.mask_strides),
        block_strides: strides(operands.block_strides),
        block_rows: operands.block_keys,
        block_keys: operands.block_rows,
        paired: 0,
        ..operands
    };
    let sequences = Sequences {
        offsets_q: sequences.offsets_k,
        offsets_k: sequences.offsets_q,
        lengths_q: sequences.lengths_k,
        lengths_k: sequences.lengths_q,
    };
    (sequences, exchanged)
}

fn strided(address: u64, layout: &Layout) -> Strided {
    Strided { base: GlobalMut::new(address), sequence: layout.sequence, row: layout.row, head: layout.head }
}

impl Problem for Case {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let machine = Machine::new(config);
        let memory = Memory(&machine);
        let Self { gives, of, size, operands, gradients, .. } = self;
        let (gives, of) = (*gives, *of);
        let sequences = memory.sequences(size)?;
        let dy_at = memory.place(&gradients.dy.bytes)?;
        let dy = strided(dy_at, &gradients.dy.layout);
        if gives == Gives::Rows {
            let found = memory.place(&gradients.found.before(Number::F32))?;
            let dsinks = memory.place(&gradients.dsinks.before(Number::F32))?;
            let sizes = self.sizes(false);
            let p = RowParams {
                y: strided(memory.place(&gradients.y.bytes)?, &gradients.y.layout),
                dy,
                lse: memory.numbers(&gradients.lse)?,
                sinks: memory.numbers(&operands.sinks)?,
                rows: GlobalMut::new(found),
                dsinks: GlobalMut::new(dsinks),
                columns: size.columns[1],
                reserved: 0,
                sizes,
                sequences,
            };
            let blocks = sizes.tiles * sizes.rows_of_heads;
            let report = launch(&machine, module, shared_bytes, blocks, (p,))?;
            let is_sound = is_right(&machine, found, Number::F32, &gradients.found)?
                && is_right(&machine, dsinks, Number::F32, &gradients.dsinks)?;
            return Ok((report, is_sound));
        }
        let of_keys = gives != Gives::Queries;
        let changes = memory.score_operands(size, operands)?;
        let (sequences, changes) = if of_keys { exchanged(sequences, changes) } else { (sequences, changes) };
        let (expected, own_layout) = if of_keys {
            (&gradients.dk, &gradients.dk_layout)
        } else {
            (&gradients.dq, &gradients.dq_layout)
        };
        let has_own = gives != Gives::Values;
        let has_values = matches!(gives, Gives::KeysAndValues | Gives::Values);
        let place = |is_there: bool, bytes: Vec<u8>| if is_there { memory.place(&bytes) } else { Ok(0) };
        let own_at = place(has_own, expected.before(of))?;
        let dv_at = place(has_values, gradients.dv.before(of))?;
        let [q, k, v] = [&operands.q, &operands.k, &operands.v];
        let [q_at, k_at, v_at] = [memory.place(&q.bytes)?, memory.place(&k.bytes)?, memory.place(&v.bytes)?];
        let (own, dv) = (strided(own_at, own_layout), strided(dv_at, &gradients.dv_layout));
        let sizes = self.sizes(of_keys);
        let blocks = sizes.tiles * sizes.rows_of_heads * self.slices;
        let [columns, value_columns] = size.columns;
        let report = if let Some(others) = self.hopper {
            // Copies go on behind the last row.
            let behind = vec![f32::NAN; 4 * others as usize];
            let rows = memory.numbers(&[&gradients.rows[..], &behind[..]].concat())?;
            let [queries, keys] =
                [[(q_at, &q.layout), (dy_at, &gradients.dy.layout)], [(k_at, &k.layout), (v_at, &v.layout)]];
            let (rows_of_tile, of_block) = if of_keys { (keys, queries) } else { (queries, keys) };
            let ends = size.offsets.is_some() || size.lengths[usize::from(!of_keys)].is_some();
            let [first_apart, second_apart] =
                of_block.map(|(_, layout)| (layout.sequence / layout.row.max(1)) as u32);
            let tensors = HopperTensors {
                own,
                dv,
                rows: Global::new(rows.address()),
                columns,
                value_columns,
                scale: size.scale,
                factor: size.scale * LOG2_E,
                ends: ends.into(),
                others_sequence: first_apart,
                second_sequence: second_apart,
                reserved: 0,
            };
            let of_own = |(at, layout): (u64, &Layout)| map(of, at, layout, ROWS, None);
            let of_others =
                |(at, layout): (u64, &Layout), apart: u32| map(of, at, layout, others, ends.then_some(apart));
            let p = GradientParams { sizes, sequences };
            let args = (
                of_own(rows_of_tile[0]),
                of_own(rows_of_tile[1]),
                of_others(of_block[0], first_apart),
                of_others(of_block[1], second_apart),
                tensors,
                p,
            );
            launch(&machine, module, shared_bytes, blocks, args)?
        } else {
            let tensors = GradientTensors {
                q: strided(q_at, &q.layout),
                k: strided(k_at, &k.layout),
                v: strided(v_at, &v.layout),
                dy,
                own,
                dv,
                rows: Global::new(memory.numbers(&gradients.rows)?.address()),
                columns,
                value_columns,
            };
            launch(
                &machine,
                module,
                shared_bytes,
                blocks,
                (tensors, changes, GradientParams { sizes, sequences }),
            )?
        };
        let is_sound = (!has_own || is_right(&machine, own_at, of, expected)?)
            && (!has_values || is_right(&machine, dv_at, of, &gradients.dv)?);
        Ok((report, is_sound))
    }
}
