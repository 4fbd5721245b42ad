//! How the kernels that apply codes are run: those of the first product of an update, and those of its f32 sums. On small integers, of which every result
//! is exact.

use warpsmith_dsl::gemm::{Layouts, SplitKTile};
use warpsmith_dsl::launch::{Global, GlobalMut, KernelArgs, RawArg, TensorMap};
use warpsmith_emulator::{
    Config, Interleave, L2Promotion, LaunchConfig, LaunchError, Machine, Module, OobFill, Report, Swizzle,
    TensorMap as EncodedMap, TensorMapArguments, TensorType,
};
use warpsmith_kernels::modulate::{BLOCK_ROWS, ModulateParams};
use warpsmith_kernels::skinny::{
    Skinny16x64, Skinny16x64Split2, Skinny16x64Split4, Skinny32x64, Skinny64x64, Skinny64x64Split2,
    Skinny64x64Split8, SkinnyParams,
};

use super::Problem;
use super::generated::{
    Float, Matrix, SCALING, SHARED, SURROUNDING, UNTOUCHED, codes_of_two, small, without_negative_zeros,
};

/// What is known of a tile.
#[derive(Clone, Copy, Debug)]
struct Tile {
    shape: [u32; 2],
    /// Rows of the boxes of X and of Vᵗ.
    box_rows: [u32; 2],
    /// Blocks that share a tile.
    split: u32,
    /// Whether V may be contiguous along its ranks.
    transposes: bool,
}

impl Tile {
    fn of<S: SplitKTile>() -> Self {
        Self {
            shape: [S::BLOCK_M, S::BLOCK_N],
            box_rows: [S::A_BOX_ROWS, S::B_BOX_ROWS],
            split: S::SPLIT,
            transposes: S::TRANSPOSES,
        }
    }

    fn named(name: &[&str]) -> Option<Self> {
        Some(match name {
            ["64x64"] => Self::of::<Skinny64x64>(),
            ["64x64", "split2"] => Self::of::<Skinny64x64Split2>(),
            ["64x64", "split8"] => Self::of::<Skinny64x64Split8>(),
            ["32x64"] => Self::of::<Skinny32x64>(),
            ["16x64"] => Self::of::<Skinny16x64>(),
            ["16x64", "split2"] => Self::of::<Skinny16x64Split2>(),
            ["16x64", "split4"] => Self::of::<Skinny16x64Split4>(),
            _ => return None,
        })
    }
}

/// A kernel.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// G = (X V) ⊙ codes.
    Product(Tile),
    /// G = H ⊙ codes.
    Sums,
}

/// A problem of a kernel.
#[derive(Clone, Copy, Debug)]
struct Size {
    m: u32,
    k: u32,
    ranks: [u32; 2],
    /// Elements before and behind each row of what is written.
    margin: u32,
    /// Whether V is contiguous along its ranks.
    is_across: bool,
}

const fn size(m: u32, k: u32, ranks: [u32; 2]) -> Size {
    Size { m, k, ranks, margin: 0, is_across: false }
}

/// The problems that an entry of these families is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let float = |name: &str| match name {
        "f16" => Some(Float::F16),
        "bf16" => Some(Float::Bf16),
        "f32" => Some(Float::F32),
        _ => None,
    };
    let parts: Vec<&str> = name.split('_').collect();
    let (of, kind) = match parts[..] {
        ["linear", "modulated", of, ref tile @ ..] => (float(of)?, Kind::Product(Tile::named(tile)?)),
        ["modulate", of] => (float(of)?, Kind::Sums),
        _ => return None,
    };
    let sizes = match kind {
        Kind::Product(tile) => product_sizes(tile),
        Kind::Sums => {
            // Rows that end at each of a warp's.
            let rows = (1..=5).map(|rows| Size { margin: rows % 2, ..size(rows, 0, [rows, 3]) });
            let many = [
                Size { margin: 1, ..size(BLOCK_ROWS + 3, 0, [5, 4]) },
                Size { margin: 3, ..size(2 * BLOCK_ROWS - 1, 0, [31, 33]) },
                size(9, 0, [100, 28]),
            ];
            rows.chain(many).collect()
        }
    };
    Some(sizes.into_iter().map(|size| Box::new(Case::new(of, kind, size)) as Box<dyn Problem>).collect())
}

/// Sums of fewer steps than blocks share them, of as many as their rings have stages and of more. Rows that end in every
/// fragment of accumulators, ranks on both sides of a tile's columns, that end at each of a lane's.
fn product_sizes(tile: Tile) -> Vec<Size> {
    let [m, _] = tile.shape;
    let step = 128 * tile.split;
    let mut sizes = vec![
        size(5, 8, [1, 0]),
        size(m, step, [64, 0]),
        Size { margin: 1, ..size(m + 3, step + 8, [5, 4]) },
        size(m - 3, 3 * step - 40, [63, 2]),
        Size { margin: 8, ..size(2 * m + 1, 136, [100, 28]) },
    ];
    sizes.extend([4, 5, 6, 9, 11, 15].map(|boxes| size(7, 64 * tile.split * boxes, [8, 3])));
    sizes.extend((1..=m).map(|rows| Size { margin: rows % 3, ..size(rows, 16, [20 + rows % 4, 4]) }));
    sizes.extend((1..=8).map(|rank| Size { margin: 1, ..size(m + 1, 16, [rank, 60]) }));
    if tile.transposes {
        let across = |size: Size| Size { is_across: true, ..size };
        sizes.extend([size(m, step, [64, 0]), size(m + 3, 72, [8, 3])].map(across));
        sizes.extend([5, 10, 15, 29].map(|boxes| across(size(7, 64 * tile.split * boxes, [16, 8]))));
    }
    sizes
}

struct Case {
    name: String,
    of: Float,
    kind: Kind,
    size: Size,
    /// X and V or Vᵗ, or H.
    read: Vec<Matrix>,
    codes: [Matrix; 2],
    /// Columns that are written: of sums also some past the last rank, which become zero.
    columns: u32,
    /// What is written, before and as it has to be.
    before: Matrix,
    after: Matrix,
}

impl Case {
    fn new(of: Float, kind: Kind, size: Size) -> Self {
        let Size { m, k, ranks, margin, is_across } = size;
        let rank = ranks[0] + ranks[1];
        // Whole chunks from row to row, as the copy engine wants them.
        let padded = |of: Float, [rows, columns]: [u32; 2], value: &dyn Fn(u32, u32) -> f64| {
            let whole = columns.next_multiple_of(16 / of.bytes());
            Matrix::new(of, [rows, whole], 0, SURROUNDING, |row, column| {
                if column < columns { value(row, column) } else { SURROUNDING }
            })
        };
        let code = |row: u32, r: u32| {
            let (update, own) = if r < ranks[0] { (0, r) } else { (1, r - ranks[0]) };
            small(row / SHARED[update], own, 5 + update as u32) * f64::from(SCALING[update])
        };
        let codes = |update: usize| {
            let sides = [m.div_ceil(SHARED[update]), ranks[update]];
            Matrix::new(of, sides, 1, SURROUNDING, |row, column| small(row, column, 5 + update as u32))
        };
        let (x, v) = (|row, k| small(row, k, 0), |k, r| small(r, k, 1));
        let (read, sum): (_, Box<dyn Fn(u32, u32) -> f64>) = match kind {
            Kind::Product(_) => {
                let v_matrix = match is_across {
                    true => padded(of, [k, rank], &v),
                    false => padded(of, [rank, k], &|r, k| v(k, r)),
                };
                let sum = move |row, r| (0..k).map(|k| x(row, k) * v(k, r)).sum();
                (vec![padded(of, [m, k], &x), v_matrix], Box::new(sum))
            }
            Kind::Sums => (vec![padded(Float::F32, [m, rank], &x)], Box::new(x)),
        };
        let columns = if matches!(kind, Kind::Sums) { rank.next_multiple_of(8) } else { rank };
        let written =
            |value: &dyn Fn(u32, u32) -> f64| Matrix::new(of, [m, columns], margin, UNTOUCHED, value);
        Self {
            name: format!("M {m}, K {k}, ranks {ranks:?}, margin {margin}, V across {is_across}"),
            of,
            kind,
            size,
            read,
            codes: [codes(0), codes(1)],
            columns,
            before: written(&|_, _| UNTOUCHED),
            after: written(&|row, r| if r < rank { sum(row, r) * code(row, r) } else { 0.0 }),
        }
    }

    /// The map of a matrix of `columns` columns and `rows` rows, with these boxes.
    fn map(&self, address: u64, [columns, rows]: [u32; 2], stride: u64, boxes: [u32; 2]) -> TensorMap {
        let bytes = u64::from(self.of.bytes());
        let encoded = EncodedMap::encode(&TensorMapArguments {
            data_type: if self.of == Float::F16 { TensorType::F16 } else { TensorType::Bf16 },
            address,
            dims: &[columns, rows, 1].map(|length| u64::from(length.max(1))),
            strides: &[stride, stride * u64::from(rows)].map(|stride| (stride * bytes).next_multiple_of(16)),
            box_dims: &[boxes[0], boxes[1], 1],
            element_strides: &[1; 3],
            interleave: Interleave::None,
            swizzle: Swizzle::B128,
            l2_promotion: L2Promotion::None,
            oob_fill: OobFill::Zeros,
        });
        let encoded = encoded.expect("the sizes of the cases make tensor maps");
        let words = std::array::from_fn(|at| {
            u64::from_le_bytes(std::array::from_fn(|byte| encoded.as_bytes()[8 * at + byte]))
        });
        TensorMap::from_words(words)
    }

    /// Hands the kernel's arguments to `launch`, with the blocks of the grid: what is read, the codes and what is written are at `read`, `codes` and `y`.
    fn launch<R>(
        &self,
        read: &[u64],
        codes: [u64; 2],
        y: u64,
        launch: impl FnOnce(u32, &[RawArg]) -> R,
    ) -> R {
        let Size { m, k, ranks, is_across, .. } = self.size;
        let rank = ranks[0] + ranks[1];
        let codes = codes_of_two(ranks, codes, &self.codes);
        let (y, stride_y) = (GlobalMut::<u8>::new(y + self.after.first), self.after.stride);
        match (self.kind, read, &self.read[..]) {
            (Kind::Product(tile), &[x_at, v_at], [x, v]) => {
                let x = self.map(x_at, [k, m], x.stride, [64, tile.box_rows[0]]);
                let v = if is_across {
                    self.map(v_at, [rank, k], v.stride, [64, 64])
                } else {
                    self.map(v_at, [k, rank], v.stride, [64, tile.box_rows[1]])
                };
                let layouts = Layouts::K_MAJOR.with_b_mn(is_across);
                let params = SkinnyParams { stride_y, batch_y: 0, m, n: rank, k, layouts };
                let tiles = m.div_ceil(tile.shape[0]) * rank.div_ceil(tile.shape[1]);
                (x, v, y, codes, params).with_raw(|raw| launch(tiles * tile.split, raw))
            }
            _ => {
                let stride_h = self.read[0].stride;
                let params = ModulateParams { stride_h, stride_g: stride_y, m, columns: self.columns };
                let h = Global::<f32>::new(read[0]);
                (h, codes, y, params).with_raw(|raw| launch(m.div_ceil(BLOCK_ROWS), raw))
            }
        }
    }
}

impl Problem for Case {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let machine = Machine::new(config);
        let place = |matrix: &Matrix| {
            let address = machine.allocate(matrix.bytes.len() as u64)?;
            machine.write(address, &matrix.bytes)?;
            Ok::<u64, LaunchError>(address)
        };
        let read = self.read.iter().map(place).collect::<Result<Vec<u64>, _>>()?;
        let (codes, y) = ([place(&self.codes[0])?, place(&self.codes[1])?], place(&self.before)?);
        let Some(kernel) = module.kernels().next() else { return Ok((Report::default(), false)) };
        let report = self.launch(&read, codes, y, |blocks, raw| {
            let config = LaunchConfig {
                grid: [blocks, 1, 1],
                block: kernel.reqntid.unwrap_or([1; 3]),
                dynamic_shared: shared_bytes,
                ..LaunchConfig::default()
            };
            // SAFETY: `with_raw` hands over bytes that are valid for the length given, for this call.
            let bytes: Vec<&[u8]> =
                raw.iter().map(|arg| unsafe { std::slice::from_raw_parts(arg.data, arg.size) }).collect();
            machine.launch(module, &kernel.name, &config, &bytes)
        })?;
        let mut got = vec![0; self.after.bytes.len()];
        machine.read(y, &mut got)?;
        // Zeros have a sign that no one asks for.
        let [got, expected] = [&got, &self.after.bytes].map(|bytes| without_negative_zeros(self.of, bytes));
        Ok((report, got == expected))
    }
}
