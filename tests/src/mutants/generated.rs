//! How the kernels of an update alone are run: on small integers, of which every result is exact, with several updates, tails in
//! every direction, and rows of every alignment.

use half::{bf16, f16};
use warpsmith_dsl::gemm::low_rank::{LowRankShape, RowsShape};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_emulator::{Config, LaunchConfig, LaunchError, Machine, Module, Report};
use warpsmith_kernels::codes::{Codes, MAX_UPDATES};
use warpsmith_kernels::generated_update::{Rank8, Rows768};
use warpsmith_kernels::generated_update_cluster::Cluster16;
use warpsmith_kernels::update::UpdateParams;

use super::{Problem, launch};

/// What surrounds the rows that kernels read.
pub(super) const SURROUNDING: f64 = f64::NAN;
/// What surrounds those that they write.
pub(super) const UNTOUCHED: f64 = 77.0;

/// A type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Float {
    F16,
    Bf16,
    F32,
}

impl Float {
    pub(super) fn bytes(self) -> u32 {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// The element's bytes.
    fn put(self, value: f64, to: &mut Vec<u8>) {
        match self {
            Self::F16 => to.extend(f16::from_f64(value).to_le_bytes()),
            Self::Bf16 => to.extend(bf16::from_f64(value).to_le_bytes()),
            Self::F32 => to.extend((value as f32).to_le_bytes()),
        }
    }
}

/// What is known of a kernel.
#[derive(Clone, Copy, Debug)]
struct Instance {
    of: Float,
    rows: u32,
    max_rank: u32,
    split: u32,
    /// Whether the rows of X, U and Y are whole chunks of 16 bytes.
    is_chunked: bool,
}

impl Instance {
    fn of<S: LowRankShape>(of: Float) -> Self {
        Self { of, rows: S::BLOCK_M, max_rank: S::MAX_RANK, split: S::SPLIT, is_chunked: false }
    }

    fn of_rows<S: RowsShape>(of: Float) -> Self {
        Self { of, rows: S::BLOCK_M, max_rank: S::MAX_RANK, split: 1, is_chunked: true }
    }

    fn named(name: &str) -> Option<Self> {
        let parts: Vec<&str> = name.strip_prefix("generated_update_")?.split('_').collect();
        let float = |name: &str| match name {
            "f16" => Some(Float::F16),
            "bf16" => Some(Float::Bf16),
            "f32" => Some(Float::F32),
            _ => None,
        };
        match parts[..] {
            ["cluster", of, "rank16"] => Some(Self::of::<Cluster16>(float(of)?)),
            [of, "rank8"] => Some(Self::of::<Rank8>(float(of)?)),
            [of, "rows768"] => Some(Self::of_rows::<Rows768>(float(of)?)),
            _ => None,
        }
    }
}

/// The problems that an entry of these families is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let instance = Instance::named(name)?;
    let (rows, rank) = (instance.rows, instance.max_rank);
    let line = 128 / instance.of.bytes();
    let chunk = 16 / instance.of.bytes();
    let size = |m: u32, k: u32, n: u32, ranks: [u32; 2]| Size {
        m,
        k,
        n,
        ranks,
        slice: n.div_ceil(instance.split).next_multiple_of(line),
        blocks: 1,
        add: false,
        margin: 0,
        infinite: false,
    };
    let half = (rank / 2).max(2);
    if instance.is_chunked {
        let sizes = [
            size(5, 3 * chunk, 2 * chunk, [1, half - 1]),
            // One row, of the first tile and of the next.
            size(1, 2 * chunk, 3 * chunk, [1, half]),
            size(rows + 1, 2 * chunk, chunk, [half, 1]),
            Size { add: true, margin: chunk, ..size(rows + 3, 2 * line + chunk, line, [half, 1]) },
            Size { margin: chunk, ..size(rows - 1, line, 3 * line + chunk, [half - 1, half]) },
            // Several tiles of a block, all groups of columns of a warp and all warps.
            Size { add: true, blocks: 2, ..size(5 * rows - 2, 12 * line, 11 * line, [rank - 1, 1]) },
            size(3 * rows, 11 * line - chunk, 12 * line, [half, rank - half]),
        ];
        return Some(
            sizes.into_iter().map(|size| Box::new(Case::new(instance, size)) as Box<dyn Problem>).collect(),
        );
    }
    let mut sizes = vec![
        size(5, 3 * chunk, 2 * chunk, [1, half - 1]),
        Size { add: true, ..size(rows + 3, 2 * line + chunk, line + 3, [half, 1]) },
        Size { margin: 1, ..size(rows - 1, line + 5, line + chunk + 1, [half - 1, half]) },
        Size { margin: 2, add: true, blocks: 2, ..size(2 * rows + 1, 9, chunk + 1, [rank - 1, 1]) },
        // Several tiles of a block, all stages of a ring and more.
        size(3 * rows - 2, 5 * line, 6 * line, [rank - half, half]),
        Size { margin: chunk, ..size(2 * rows, 9 * line + 1, 9 * line, [half, rank - half]) },
        Size { slice: line, blocks: 2, ..size(rows + 1, line, 3 * line - 1, [half, 1]) },
    ];
    // Of f32, sums that are not finite are added up again.
    if instance.of == Float::F32 {
        let infinite = |size: Size| Size { infinite: true, ..size };
        sizes.extend([
            infinite(size(rows + 3, 11, line + 3, [half - 1, 1])),
            infinite(Size {
                add: true,
                margin: 1,
                ..size(2 * rows - 1, line + 5, chunk + 1, [half, rank - half])
            }),
            infinite(Size { blocks: 2, ..size(2 * rows + 1, 3 * line, 5 * line, [1, half]) }),
        ]);
    }
    if instance.split > 1 {
        sizes.push(Size { slice: line, ..size(2, 20 * line, 9 * line, [rank - 1, 1]) });
    }
    Some(sizes.into_iter().map(|size| Box::new(Case::new(instance, size)) as Box<dyn Problem>).collect())
}

#[derive(Clone, Copy, Debug)]
struct Size {
    m: u32,
    k: u32,
    n: u32,
    ranks: [u32; 2],
    slice: u32,
    /// Blocks that share the tiles, if they are not a cluster's.
    blocks: u32,
    add: bool,
    /// Elements before and behind each row.
    margin: u32,
    /// Whether X and U have infinities.
    infinite: bool,
}

/// Rows of X that share a row of the codes of each update, and the updates' scalings.
pub(super) const SHARED: [u32; 2] = [1, 7];
pub(super) const SCALING: [f32; 2] = [-1.0, 0.5];

/// A matrix in bytes.
pub(super) struct Matrix {
    pub(super) bytes: Vec<u8>,
    /// Elements from row to row, and bytes before the first.
    pub(super) stride: u64,
    pub(super) first: u64,
}

impl Matrix {
    pub(super) fn new(
        of: Float,
        [rows, columns]: [u32; 2],
        margin: u32,
        around: f64,
        value: impl Fn(u32, u32) -> f64,
    ) -> Self {
        let mut bytes = Vec::new();
        let stride = columns + 2 * margin;
        for at in 0..rows * stride {
            let (row, column) = (at / stride, at % stride);
            let inside = (margin..margin + columns).contains(&column);
            of.put(if inside { value(row, column - margin) } else { around }, &mut bytes);
        }
        Self { bytes, stride: u64::from(stride), first: u64::from(margin * of.bytes()) }
    }
}

/// -1, 0 or 1.
pub(super) fn small(a: u32, b: u32, step: u32) -> f64 {
    let mixed =
        (a.wrapping_mul(2_654_435_761) ^ b.wrapping_mul(2_246_822_519) ^ step).wrapping_mul(3_266_489_917);
    f64::from(mixed >> 20 & 0xfff).rem_euclid(3.0) - 1.0
}

struct Case {
    name: String,
    instance: Instance,
    size: Size,
    x: Matrix,
    v: Matrix,
    u: Matrix,
    codes: [Matrix; 2],
    /// Y before, and as it has to be.
    before: Matrix,
    after: Matrix,
}

impl Case {
    fn new(instance: Instance, size: Size) -> Self {
        let Size { m, k, n, ranks, add, margin, infinite, .. } = size;
        let (of, rank) = (instance.of, ranks[0] + ranks[1]);
        let read = |sides, step| {
            Matrix::new(of, sides, margin, SURROUNDING, move |row, column| small(row, column, step))
        };
        let codes = |update: usize| read([m.div_ceil(SHARED[update]), ranks[update]], 3 + update as u32);
        let x = move |row: u32, column: u32| match infinite && row % 5 == 2 && column == row * 7 % k {
            true => f64::INFINITY * if row.is_multiple_of(2) { 1.0 } else { -1.0 },
            false => small(row, column, 0),
        };
        let u = move |r: u32, column: u32| match infinite && column % 4 == 1 && r == column % rank {
            true => f64::INFINITY,
            false => small(r, column, 2),
        };
        let held = |row: u32, column: u32| small(row, column, 9);
        let hidden = |row: u32, r: u32| {
            let sum: f64 = (0..k).map(|k| x(row, k) * small(k, r, 1)).sum();
            let (update, own) = if r < ranks[0] { (0, r) } else { (1, r - ranks[0]) };
            sum * small(row / SHARED[update], own, 3 + update as u32) * f64::from(SCALING[update])
        };
        let hidden: Vec<f64> =
            (0..m).flat_map(|row| (0..rank).map(move |r| (row, r))).map(|(row, r)| hidden(row, r)).collect();
        let after = |row: u32, column: u32| {
            let of_row = &hidden[(row * rank) as usize..][..rank as usize];
            let sum: f64 = of_row.iter().zip(0..).map(|(hidden, r)| hidden * u(r, column)).sum();
            sum + if add { held(row, column) } else { 0.0 }
        };
        let name = format!("M {m}, K1 {k}, K2 {n}, ranks {ranks:?}, margin {margin}, add {add}");
        Self {
            name,
            instance,
            size,
            x: Matrix::new(of, [m, k], margin, SURROUNDING, x),
            v: read([k, rank], 1),
            u: Matrix::new(of, [rank, n], margin, SURROUNDING, u),
            codes: [codes(0), codes(1)],
            before: Matrix::new(of, [m, n], margin, UNTOUCHED, |row, column| {
                if add { held(row, column) } else { UNTOUCHED }
            }),
            after: Matrix::new(of, [m, n], margin, UNTOUCHED, after),
        }
    }
}

impl Problem for Case {
    fn name(&self) -> &str {
        &self.name
    }

    fn has_infinities(&self) -> bool {
        self.size.infinite
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let machine = Machine::new(config);
        let place = |matrix: &Matrix| {
            let address = machine.allocate(matrix.bytes.len() as u64)?;
            machine.write(address, &matrix.bytes)?;
            Ok::<u64, LaunchError>(address)
        };
        let Size { m, k, n, ranks, slice, blocks, add, .. } = self.size;
        let Some(kernel) = module.kernels().next() else { return Ok((Report::default(), false)) };
        let y = place(&self.before)?;
        let [first, second] = [place(&self.codes[0])?, place(&self.codes[1])?];
        let codes = codes_of_two(ranks, [first, second], &self.codes);
        let params = UpdateParams {
            stride_x: self.x.stride,
            stride_v: self.v.stride,
            stride_u: self.u.stride,
            stride_y: self.after.stride,
            m,
            k1: k,
            k2: n,
            slice,
            add: add.into(),
            reserved: 0,
        };
        let split = self.instance.split;
        let clusters = m.div_ceil(self.instance.rows) * n.div_ceil(slice).div_ceil(split);
        let config = LaunchConfig {
            grid: [if split > 1 { clusters * split } else { blocks }, 1, 1],
            block: kernel.reqntid.unwrap_or([1; 3]),
            cluster: [split, 1, 1],
            dynamic_shared: shared_bytes,
            beside_last: false,
        };
        let global = |matrix: &Matrix| Ok::<_, LaunchError>(Global::<u8>::new(place(matrix)? + matrix.first));
        let target = GlobalMut::<u8>::new(y + self.after.first);
        let arguments = (global(&self.x)?, global(&self.v)?, codes, global(&self.u)?, target, params);
        let report = launch(&machine, module, &kernel.name, &config, arguments)?;
        let mut got = vec![0; self.after.bytes.len()];
        machine.read(y, &mut got)?;
        // Zeros have a sign that no one asks for, and so has NaN.
        let [got, expected] =
            [&got, &self.after.bytes].map(|bytes| without_negative_zeros(self.instance.of, bytes));
        Ok((report, got == expected))
    }
}

/// The codes of two updates of these ranks, whose matrices are at `addresses`.
pub(super) fn codes_of_two(ranks: [u32; 2], [first, second]: [u64; 2], matrices: &[Matrix; 2]) -> Codes<u8> {
    let mut codes = Codes::<u8> {
        codes: [Global::new(second + matrices[1].first); MAX_UPDATES],
        strides: [matrices[1].stride; MAX_UPDATES],
        ends: [ranks[0] + ranks[1]; MAX_UPDATES],
        rows: [SHARED[1]; MAX_UPDATES],
        scaling: [SCALING[1]; MAX_UPDATES],
    };
    codes.codes[0] = Global::new(first + matrices[0].first);
    (codes.strides[0], codes.ends[0]) = (matrices[0].stride, ranks[0]);
    (codes.rows[0], codes.scaling[0]) = (SHARED[0], SCALING[0]);
    codes
}

/// The bytes with zeros in place of negative zeros, and the same NaN of f32 in place of each.
pub(super) fn without_negative_zeros(of: Float, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for element in bytes.chunks_exact_mut(of.bytes() as usize) {
        if let Some((last, rest)) = element.split_last_mut()
            && *last == 0x80
            && rest.iter().all(|&byte| byte == 0)
        {
            *last = 0;
        }
        if let Ok(word) = <[u8; 4]>::try_from(&*element)
            && f32::from_le_bytes(word).is_nan()
        {
            element.copy_from_slice(&f32::NAN.to_le_bytes());
        }
    }
    bytes
}
