//! How the kernels of the families `product_key_topk` and `product_key_topk_cluster` are run. On rows, sub-keys and columns of
//! every number around what a block has at a time, with every norm, with integers, so that scores are exact: small ones, so
//! that most are ties, and large ones, so that few are.

use half::{bf16, f16};
use warpsmith_dsl::float::Bf16;
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::product_key::{
    GATE_IDENTITY, NORM_BATCH, NORM_L2, NORM_LAYER, NORM_NONE, NORM_RMS, ProductKeyParams, ProductKeyShape,
    QueryNormParams, pairs,
};
use warpsmith_emulator::{Config, LaunchConfig, LaunchError, Machine, Module, Report};
use warpsmith_kernels::product_key_topk::{Few, Many};
use warpsmith_kernels::product_key_topk_cluster::{InRounds, OfFewRows, OfManyRows};

use super::{Problem, launch};

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(crate) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let parts: Vec<&str> = name.strip_prefix("product_key_topk_")?.split('_').collect();
    // All types have the same shapes.
    let (dtype, shape) = match parts[..] {
        ["cluster", "32", dtype] => (dtype, Shape::of::<OfFewRows<f32>>()),
        ["cluster", "64", dtype] => (dtype, Shape::of::<OfManyRows<Bf16>>()),
        ["cluster", "rounds", "64", dtype] => (dtype, Shape { rounds: 2, ..Shape::of::<InRounds<Bf16>>() }),
        [dtype, "32"] => (dtype, Shape::of::<Few<f32>>()),
        [dtype, "64"] => (dtype, Shape::of::<Many<f32>>()),
        _ => return None,
    };
    let (rows, most) = (shape.rows, shape.most);
    let element = match dtype {
        "f16" => Element { bytes: 2, bits: |number| u32::from(f16::from_f32(number).to_bits()) },
        "bf16" => Element { bytes: 2, bits: |number| u32::from(bf16::from_f32(number).to_bits()) },
        "f32" => Element { bytes: 4, bits: f32::to_bits },
        _ => return None,
    };
    let case = |tokens, heads, per_head, n, half, k: u32, norm| Case {
        element,
        shape,
        tokens,
        heads,
        per_head,
        n,
        half,
        k: k.min(most).min(n),
        norm,
        range: 2,
        infinite: false,
    };
    let mut all = vec![
        case(1, 1, false, 1, 1, 1, NORM_NONE),
        case(2, 3, true, 5, 3, 4, NORM_BATCH),
        case(7, 5, false, 33, 7, 33, NORM_NONE),
        case(33, 2, true, 40, 17, 9, NORM_NONE),
        case(3, 1, false, 257, 33, most, NORM_BATCH),
        case(rows + 1, 1, false, 256, 8, 16, NORM_NONE),
        case(2, 2, false, 70, 128, most - 1, NORM_NONE),
    ];
    for half in [16, 24, 63, 260] {
        all.push(case(3, 1, false, 35, half, 5, NORM_NONE));
    }
    // The last sub-key in each group of eight that a warp has, its last chunk in each slot that is copied before the first product, and
    // behind them.
    for (n, halves) in [(35, [9, 41, 100]), (42, [13, 45, 129]), (52, [29, 52, 99]), (61, [31, 33, 150])] {
        for half in halves {
            all.push(case(1, 1, false, n, half, 5, NORM_NONE));
        }
    }
    // Rows whose moments are exact: of a power of two of features, less and more than a warp has lanes.
    for half in [8, 32] {
        for norm in [NORM_LAYER, NORM_RMS, NORM_L2] {
            all.push(case(3, 2, true, 36, half, 6, norm));
        }
    }
    for (n, k) in [(300, most), (290, 3)] {
        all.push(Case { range: 9, ..case(2, 1, false, n, 20, k, NORM_NONE) });
    }
    // Of f32, scores that are not finite are added up again.
    if element.bytes == 4 {
        let infinite = |case: Case| Case { infinite: true, range: 9, ..case };
        all.push(infinite(case(3, 2, true, 70, 24, 7, NORM_NONE)));
        all.push(infinite(case(rows + 3, 1, false, 37, 133, 5, NORM_NONE)));
    }
    if shape.cluster > 1 {
        for (case, cluster) in all.iter_mut().zip([2, 4, 8].into_iter().cycle()) {
            case.shape.cluster = cluster;
        }
        // Several chunks in a block, with more candidates than there is room for.
        let shape = Shape { cluster: 2, ..shape };
        all.push(Case { shape, range: 9, ..case(2, 1, false, 530, 20, most, NORM_NONE) });
    }
    Some(all.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

/// A type of elements.
#[derive(Clone, Copy)]
struct Element {
    bytes: u32,
    /// The bits of a number.
    bits: fn(f32) -> u32,
}

/// What the blocks of a kernel have.
#[derive(Clone, Copy)]
struct Shape {
    rows: u32,
    cluster: u32,
    most: u32,
    /// Rows that a cluster takes one after the other.
    rounds: u32,
}

impl Shape {
    fn of<S: ProductKeyShape>() -> Self {
        Self { rows: S::ROWS, cluster: S::CLUSTER, most: S::MOST, rounds: 1 }
    }
}

struct Case {
    element: Element,
    shape: Shape,
    tokens: u32,
    heads: u32,
    per_head: bool,
    n: u32,
    half: u32,
    k: u32,
    norm: u32,
    /// The largest of the integers.
    range: u32,
    /// Whether some sub-keys have an infinity, which the first column of all queries shows.
    infinite: bool,
}

/// A small integer: -2 to 2.
fn integer(seed: u32, a: u32, b: u32) -> f32 {
    integer_to(2, seed, a, b)
}

/// An integer of at most `range`, or the negative of one.
fn integer_to(range: u32, seed: u32, a: u32, b: u32) -> f32 {
    let mixed = (a.wrapping_mul(0x9e37_79b1) ^ b.wrapping_mul(0x85eb_ca77) ^ seed.wrapping_mul(0xc2b2_ae3d))
        .wrapping_mul(0x27d4_eb2f);
    ((mixed >> 15) % (2 * range + 1)) as f32 - range as f32
}

impl Case {
    fn rows(&self) -> u32 {
        self.tokens * self.heads
    }

    /// Elements of a sub-key in memory: whole chunks, and one more.
    fn pitch(&self) -> u32 {
        let chunk = 16 / self.element.bytes;
        self.half.next_multiple_of(chunk) + chunk
    }

    /// Column `feature` of a row of queries. Of rows that are normalised by their own moments, half are 2 above the row's mean, half are
    /// 2 below it.
    fn query(&self, row: u32, feature: u32) -> f32 {
        if self.infinite && feature.is_multiple_of(self.half) {
            return 1.0 + integer_to(self.range, 1, row, feature).abs();
        }
        if self.norm == NORM_NONE || self.norm == NORM_BATCH {
            return integer_to(self.range, 1, row, feature);
        }
        let above = (integer(1, row, feature / 2) > 0.0) == feature.is_multiple_of(2);
        self.mean(row, feature) + if above { 2.0 } else { -2.0 }
    }

    /// What is subtracted from a query.
    fn mean(&self, row: u32, feature: u32) -> f32 {
        match self.norm {
            NORM_BATCH => integer(4, 0, row % self.heads * 2 * self.half + feature),
            NORM_LAYER => integer(4, row, 0),
            _ => 0.0,
        }
    }

    /// A query, normalised: variances and mean squares are 4, and the weights are whole.
    fn normalised(&self, row: u32, feature: u32) -> f32 {
        let centred = self.query(row, feature) - self.mean(row, feature);
        let factor = match self.norm {
            NORM_NONE => return centred,
            NORM_L2 => 1.0 / (8.0 * self.half as f32).sqrt(),
            _ => 0.5,
        };
        centred * factor * (2.0 * integer(5, 0, feature)) + integer(6, 0, feature)
    }

    /// Column `column` of a sub-key. The last of a group is the best for the group's first row.
    fn key(&self, half: u32, group: u32, key: u32, column: u32) -> f32 {
        if self.infinite && key % 11 == 3 && column == 0 {
            return f32::NEG_INFINITY;
        }
        if key + 1 == self.n {
            let query = self.normalised(group, half * self.half + column);
            return if query < 0.0 { -(self.range as f32) } else { self.range as f32 };
        }
        integer_to(self.range, 2 + half, group * self.n + key, column)
    }

    /// The sub-keys of a half, which end with the last one's last element.
    fn keys(&self, half: u32) -> Vec<u8> {
        let groups = if self.per_head { self.heads } else { 1 };
        let mut bytes = Vec::new();
        for row in 0..groups * self.n {
            let columns = if row + 1 < groups * self.n { self.pitch() } else { self.half };
            let (group, key) = (row / self.n, row % self.n);
            for column in 0..columns {
                let number = if column < self.half { self.key(half, group, key, column) } else { 100.0 };
                let bits = (self.element.bits)(number).to_le_bytes();
                bytes.extend(&bits[..self.element.bytes as usize]);
            }
        }
        bytes
    }

    /// Ids and gates.
    fn expected(&self) -> [Vec<u8>; 2] {
        let (mut ids, mut gates) = (Vec::new(), Vec::new());
        for row in 0..self.rows() {
            let group = if self.per_head { row % self.heads } else { 0 };
            let scores = [0, 1].map(|half| -> Vec<f32> {
                let score = |key: u32| {
                    (0..self.half)
                        .map(|c| self.normalised(row, half * self.half + c) * self.key(half, group, key, c))
                        .sum()
                };
                (0..self.n).map(score).collect()
            });
            let score = |id: u32| scores[0][(id / self.n) as usize] + scores[1][(id % self.n) as usize];
            let mut all: Vec<u32> = (0..self.n * self.n).collect();
            all.sort_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
            for &id in &all[..self.k as usize] {
                ids.extend(id.to_le_bytes());
                // Of a zero no sign.
                gates.extend((score(id) + 0.0).to_le_bytes());
            }
        }
        [ids, gates]
    }
}

impl Problem for Case {
    fn name(&self) -> &str {
        match (self.norm, self.range) {
            (NORM_LAYER | NORM_RMS | NORM_L2, _) => "queries with moments of their own",
            (_, 2) => "integers, most of them ties",
            _ => "integers, few of them ties",
        }
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let machine = Machine::new(config);
        let upload = |bytes: &[u8]| -> Result<u64, LaunchError> {
            let at = machine.allocate(bytes.len() as u64)?;
            machine.write(at, bytes)?;
            Ok(at)
        };
        let floats = |values: Vec<f32>| values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
        let width = 2 * self.half;
        let q = (0..self.rows()).flat_map(|row| (0..width).map(move |feature| (row, feature)));
        let q = upload(&floats(q.map(|(row, feature)| self.query(row, feature)).collect()))?;
        let keys = [upload(&self.keys(0))?, upload(&self.keys(1))?];
        let features =
            |is_there: bool, count: u32, value: &dyn Fn(u32) -> f32| -> Result<Global<f32>, LaunchError> {
                let at = if is_there { upload(&floats((0..count).map(value).collect()))? } else { 0 };
                Ok(Global::new(at))
            };
        let (weighs, batch) = (self.norm != NORM_NONE, self.norm == NORM_BATCH);
        let norm = QueryNormParams {
            weight: features(weighs, width, &|feature| 2.0 * integer(5, 0, feature))?,
            bias: features(weighs, width, &|feature| integer(6, 0, feature))?,
            mean: features(batch, self.heads * width, &|feature| integer(4, 0, feature))?,
            variance: features(batch, self.heads * width, &|_| 4.0)?,
            kind: self.norm,
            // The largest factor.
            epsilon: if self.norm == NORM_L2 { 1e30 } else { 0.0 },
            weight_stride: 0,
            mean_stride: width,
        };
        let expected = self.expected();
        let ids = machine.allocate(expected[0].len() as u64)?;
        let gates = machine.allocate(expected[1].len() as u64)?;
        let Some(kernel) = module.kernels().next() else { return Ok((Report::default(), false)) };
        let (blocks, step) = if self.per_head { (self.tokens, self.heads) } else { (self.rows(), 1) };
        let config = LaunchConfig {
            grid: [
                blocks.div_ceil(self.shape.rows).div_ceil(self.shape.rounds) * self.shape.cluster,
                step,
                1,
            ],
            cluster: [self.shape.cluster, 1, 1],
            block: kernel.reqntid.unwrap_or([1; 3]),
            dynamic_shared: shared_bytes,
            beside_last: false,
        };
        let (pitch, group) = (u64::from(self.pitch()), u64::from(self.pitch() * self.n));
        let params = ProductKeyParams {
            key_stride_1: pitch,
            key_stride_2: pitch,
            head_stride_1: group,
            head_stride_2: group,
            rows: blocks,
            row_step: step,
            heads: self.heads,
            n: self.n,
            half: self.half,
            k: self.k,
            pairs: pairs(self.k),
            gate: GATE_IDENTITY,
            inverse_temperature: 1.0,
            cluster_log2: self.shape.cluster.trailing_zeros(),
        };
        let arguments = (
            Global::<f32>::new(q),
            Global::<u8>::new(keys[0]),
            Global::<u8>::new(keys[1]),
            norm,
            GlobalMut::<u32>::new(ids),
            GlobalMut::<f32>::new(gates),
            params,
        );
        let report = launch(&machine, module, &kernel.name, &config, arguments)?;
        let mut got = [vec![0; expected[0].len()], vec![0; expected[1].len()]];
        machine.read(ids, &mut got[0])?;
        machine.read(gates, &mut got[1])?;
        Ok((report, got == expected))
    }
}
