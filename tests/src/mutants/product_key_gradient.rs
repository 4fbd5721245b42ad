//! How the kernels of the family `product_key_gradient` are run: on rows, sub-keys and columns of every number around what a warp has
//! at a time, with every norm and gate. In some an expert is none, or only some results are wanted.

use half::{bf16, f16};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::product_key::{
    GATE_IDENTITY, GATE_RELU, GATE_SIGMOID, GATE_SOFTMAX, GRADIENT_ROWS, NORM_BATCH, NORM_L2, NORM_LAYER,
    NORM_NONE, NORM_RMS, ProductKeyGradientParams, ProductKeyParams, QueryNormParams,
};
use warpsmith_emulator::{Config, LaunchConfig, LaunchError, Machine, Module, Report};

use super::{Problem, launch};

/// What results hold before.
const UNTOUCHED: f32 = 77.0;
/// What is far from a right result. Sums are of at most a few hundred numbers of a few units.
const FAR: f64 = 1e-4;
/// The least length that is divided by, and the largest factor.
const SHORTEST: f32 = 30.0;

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(crate) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let element = match name.strip_prefix("product_key_gradient_")? {
        "f16" => Element { bytes: 2, bits: |number| u32::from(f16::from_f32(number).to_bits()) },
        "bf16" => Element { bytes: 2, bits: |number| u32::from(bf16::from_f32(number).to_bits()) },
        "f32" => Element { bytes: 4, bits: f32::to_bits },
        _ => return None,
    };
    let case = |tokens, heads, per_head, n, half, k, norm, gate| Case {
        element,
        tokens,
        heads,
        per_head,
        n,
        half,
        k,
        norm,
        gate,
        part: 5,
        weighs: true,
        bad: false,
        only_queries: false,
        is_short: false,
    };
    let mut all = vec![
        case(1, 1, false, 1, 1, 1, NORM_NONE, GATE_IDENTITY),
        case(3, 3, true, 7, 5, 4, NORM_LAYER, GATE_SOFTMAX),
        // More experts than a warp has lanes, and as many as there may be; more features than a warp has at a time.
        case(2, 2, true, 9, 67, 33, NORM_BATCH, GATE_SIGMOID),
        case(1, 3, false, 70, 64, 64, NORM_RMS, GATE_SOFTMAX),
        case(2, 1, false, 12, 140, 6, NORM_L2, GATE_RELU),
        case(5, 1, false, 8, 16, 31, NORM_LAYER, GATE_RELU),
        case(2, 2, true, 5, 31, 5, NORM_NONE, GATE_SOFTMAX),
    ];
    let plain = case(3, 2, true, 6, 12, 7, NORM_LAYER, GATE_SIGMOID);
    all.extend([
        Case { weighs: false, ..plain },
        Case { bad: true, ..plain },
        Case { only_queries: true, norm: NORM_RMS, ..plain },
        Case { is_short: true, norm: NORM_L2, part: 100, ..plain },
        Case { norm: NORM_BATCH, weighs: false, per_head: false, gate: GATE_SOFTMAX, part: 1, ..plain },
    ]);
    Some(all.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

/// A type of elements.
#[derive(Clone, Copy)]
struct Element {
    bytes: u32,
    /// The bits of a number.
    bits: fn(f32) -> u32,
}

#[derive(Clone, Copy)]
struct Case {
    element: Element,
    tokens: u32,
    heads: u32,
    per_head: bool,
    n: u32,
    half: u32,
    k: u32,
    norm: u32,
    gate: u32,
    /// Experts of a part.
    part: u32,
    /// Whether the norm has weight and bias.
    weighs: bool,
    /// Whether the last expert of the last row is none.
    bad: bool,
    /// Whether only the gradients of queries are wanted.
    only_queries: bool,
    /// Whether queries are shorter than what is divided by at least.
    is_short: bool,
}

/// A small integer: −2 to 2.
fn integer(seed: u32, a: u32, b: u32) -> f32 {
    let mixed = (a.wrapping_mul(0x9e37_79b1) ^ b.wrapping_mul(0x85eb_ca77) ^ seed.wrapping_mul(0xc2b2_ae3d))
        .wrapping_mul(0x27d4_eb2f);
    ((mixed >> 15) % 5) as f32 - 2.0
}

/// What is to come out of a row.
struct Expected {
    dq: Vec<f64>,
    normalised: Vec<f64>,
    of_weight: Vec<f64>,
    of_bias: Vec<f64>,
    dscores: Vec<f64>,
    places: [Vec<u32>; 2],
}

impl Case {
    fn rows(&self) -> u32 {
        self.tokens * self.heads
    }

    fn width(&self) -> u32 {
        2 * self.half
    }

    fn groups(&self) -> u32 {
        if self.per_head { self.heads } else { 1 }
    }

    /// Elements from one sub-key to the next.
    fn pitch(&self) -> u32 {
        self.half + 3
    }

    fn query(&self, row: u32, feature: u32) -> f32 {
        let number = integer(1, row, feature) + 0.5 + if feature.is_multiple_of(7) { 3.0 } else { 0.0 };
        if self.is_short { number / 16.0 } else { number }
    }

    fn key(&self, half: u32, group: u32, key: u32, column: u32) -> f32 {
        integer(2 + half, group * self.n + key, column)
    }

    fn keys(&self, half: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let last = self.groups() * self.n - 1;
        for row in 0..=last {
            let (group, key) = (row / self.n, row % self.n);
            for column in 0..if row < last { self.pitch() } else { self.half } {
                let number = if column < self.half { self.key(half, group, key, column) } else { f32::NAN };
                bytes.extend(&(self.element.bits)(number).to_le_bytes()[..self.element.bytes as usize]);
            }
        }
        bytes
    }

    fn id(&self, row: u32, expert: u32) -> u32 {
        if self.bad && row + 1 == self.rows() && expert + 1 == self.k {
            return self.n * self.n + 3;
        }
        (row * 31 + expert * 17 + row * expert) % (self.n * self.n)
    }

    fn gate(&self, row: u32, expert: u32) -> f32 {
        (integer(7, row, expert) + 2.0) / 8.0
    }

    fn dgate(&self, row: u32, expert: u32) -> f32 {
        integer(8, row, expert)
    }

    fn feature(&self, seed: u32, row: u32, feature: u32) -> f64 {
        f64::from(integer(seed, row % self.heads, feature))
    }

    fn expected(&self, row: u32) -> Expected {
        let (width, k, head) = (self.width(), self.k, row % self.heads);
        let d = f64::from(width);
        let experts = 0..k;
        let gates: Vec<f64> = experts.clone().map(|expert| self.gate(row, expert).into()).collect();
        let dgates: Vec<f64> = experts.clone().map(|expert| self.dgate(row, expert).into()).collect();
        let both = || gates.iter().zip(&dgates);
        let sum: f64 = both().map(|(gate, dgate)| gate * dgate).sum();
        let of_score = |(&gate, &dgate): (&f64, &f64)| match self.gate {
            GATE_SOFTMAX => gate * (dgate - sum),
            GATE_SIGMOID => gate * (1.0 - gate) * dgate,
            GATE_RELU => {
                if gate > 0.0 {
                    dgate
                } else {
                    0.0
                }
            }
            _ => dgate,
        };
        let dscores: Vec<f64> = both().map(|pair| 0.5 * of_score(pair)).collect();
        let ids: Vec<u32> = experts.map(|expert| self.id(row, expert)).collect();
        let group = if self.per_head { head } else { 0 };
        let dquery: Vec<f64> = (0..width)
            .map(|feature| {
                let (half, column) = (feature / self.half, feature % self.half);
                let term = |(&id, dscore): (&u32, &f64)| {
                    if id >= self.n * self.n {
                        return f64::NAN;
                    }
                    let key = if half == 0 { id / self.n } else { id % self.n };
                    dscore * f64::from(self.key(half, group, key, column))
                };
                ids.iter().zip(&dscores).map(term).sum()
            })
            .collect();
        let raw: Vec<f64> = (0..width).map(|feature| self.query(row, feature).into()).collect();
        let mean = raw.iter().sum::<f64>() / d;
        let squares = |mean: f64| raw.iter().map(|q| (q - mean) * (q - mean)).sum::<f64>();
        let (mean, factor) = match self.norm {
            NORM_LAYER => (mean, 1.0 / (squares(mean) / d + 0.25).sqrt()),
            NORM_RMS => (0.0, 1.0 / (squares(0.0) / d + 0.25).sqrt()),
            NORM_L2 if self.is_short => (0.0, 1.0 / f64::from(SHORTEST)),
            NORM_L2 => (0.0, 1.0 / squares(0.0).sqrt()),
            _ => (0.0, 1.0),
        };
        let own = |feature: u32| {
            if self.norm == NORM_BATCH {
                1.0 / (3.0 + self.feature(5, row, feature) + 0.25).sqrt()
            } else {
                factor
            }
        };
        let hat: Vec<f64> = (0..width)
            .map(|feature| {
                let mean = if self.norm == NORM_BATCH { self.feature(4, row, feature) } else { mean };
                (raw[feature as usize] - mean) * own(feature)
            })
            .collect();
        let weight = |feature: u32| if self.weighs { self.feature(6, row, feature) + 0.5 } else { 1.0 };
        let bias = |feature: u32| if self.weighs { self.feature(9, row, feature) } else { 0.0 };
        let dhat: Vec<f64> = (0..width).map(|feature| dquery[feature as usize] * weight(feature)).collect();
        let along: f64 = dhat.iter().zip(&hat).map(|(dhat, hat)| dhat * hat).sum();
        let of_mean = if self.norm == NORM_LAYER { dhat.iter().sum::<f64>() / d } else { 0.0 };
        let along = match self.norm {
            NORM_LAYER | NORM_RMS => along / d,
            NORM_L2 if !self.is_short => along,
            _ => 0.0,
        };
        let part = |expert: u32| (row * k + expert) / self.part * self.groups() * self.n;
        let place = |half: u32| {
            let of = |(expert, &id): (usize, &u32)| {
                let key = if half == 0 { id / self.n } else { id % self.n };
                let begin = part(expert as u32) + if self.per_head { head * self.n } else { 0 };
                if id < self.n * self.n { begin + key } else { u32::MAX }
            };
            ids.iter().enumerate().map(of).collect::<Vec<u32>>()
        };
        Expected {
            dq: (0..width)
                .map(|feature| {
                    own(feature) * (dhat[feature as usize] - of_mean - hat[feature as usize] * along)
                })
                .collect(),
            normalised: (0..width)
                .map(|feature| hat[feature as usize] * weight(feature) + bias(feature))
                .collect(),
            of_weight: dquery.iter().zip(&hat).map(|(dquery, hat)| dquery * hat).collect(),
            of_bias: dquery,
            dscores,
            places: [place(0), place(1)],
        }
    }
}

impl Problem for Case {
    fn name(&self) -> &str {
        "gradients of retrieval with integers"
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let machine = Machine::new(config);
        let upload = |bytes: &[u8]| -> Result<u64, LaunchError> {
            let at = machine.allocate(bytes.len() as u64)?;
            machine.write(at, bytes)?;
            Ok(at)
        };
        let floats = |values: Vec<f32>| values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
        let words = |values: Vec<u32>| values.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
        let (width, rows, k) = (self.width(), self.rows(), self.k);
        let of_rows = |columns: u32| (0..rows).flat_map(move |row| (0..columns).map(move |i| (row, i)));
        let q = upload(&floats(of_rows(width).map(|(row, feature)| self.query(row, feature)).collect()))?;
        let keys = [upload(&self.keys(0))?, upload(&self.keys(1))?];
        let features = |is_there: bool, seed: u32, offset: f32| -> Result<Global<f32>, LaunchError> {
            if !is_there {
                return Ok(Global::new(0));
            }
            let of_heads = (0..self.heads).flat_map(|head| (0..width).map(move |feature| (head, feature)));
            let numbers = of_heads.map(|(head, feature)| integer(seed, head, feature) + offset).collect();
            Ok(Global::new(upload(&floats(numbers))?))
        };
        let batch = self.norm == NORM_BATCH;
        let norm = QueryNormParams {
            weight: features(self.weighs, 6, 0.5)?,
            bias: features(self.weighs, 9, 0.0)?,
            mean: features(batch, 4, 0.0)?,
            variance: features(batch, 5, 3.0)?,
            kind: self.norm,
            epsilon: if self.norm == NORM_L2 {
                if self.is_short { 1.0 / SHORTEST } else { 1e30 }
            } else {
                0.25
            },
            weight_stride: width,
            mean_stride: width,
        };
        let ids = upload(&words(of_rows(k).map(|(row, expert)| self.id(row, expert)).collect()))?;
        let gates = upload(&floats(of_rows(k).map(|(row, expert)| self.gate(row, expert)).collect()))?;
        let dgates = upload(&floats(of_rows(k).map(|(row, expert)| self.dgate(row, expert)).collect()))?;
        let result = |count: u32, is_wanted: bool| -> Result<u64, LaunchError> {
            if is_wanted { upload(&floats(vec![UNTOUCHED; count as usize])) } else { Ok(0) }
        };
        let more = !self.only_queries;
        let dq = result(rows * width, true)?;
        let normalised = result(rows * width, more)?;
        let dscores = result(rows * k, more)?;
        let places = [result(rows * k, more)?, result(rows * k, more)?];
        let of_weight = result(rows * width, more && self.weighs)?;
        let of_bias = result(rows * width, more && self.weighs)?;
        let Some(kernel) = module.kernels().next() else { return Ok((Report::default(), false)) };
        let config = LaunchConfig {
            grid: [rows.div_ceil(GRADIENT_ROWS), 1, 1],
            cluster: [1; 3],
            block: kernel.reqntid.unwrap_or([1; 3]),
            dynamic_shared: shared_bytes,
            beside_last: false,
        };
        let pitch = u64::from(self.pitch());
        let group = if self.per_head { pitch * u64::from(self.n) } else { 0 };
        let params = ProductKeyParams {
            key_stride_1: pitch,
            key_stride_2: pitch,
            head_stride_1: group,
            head_stride_2: group,
            rows,
            row_step: 1,
            heads: self.heads,
            n: self.n,
            half: self.half,
            k,
            pairs: 0,
            gate: self.gate,
            inverse_temperature: 0.5,
            cluster_log2: 0,
        };
        let gradient = ProductKeyGradientParams {
            ids: Global::new(ids),
            gates: Global::new(gates),
            dgates: Global::new(dgates),
            dq: GlobalMut::new(dq),
            normalised: GlobalMut::new(normalised),
            dscores: GlobalMut::new(dscores),
            places_1: GlobalMut::new(places[0]),
            places_2: GlobalMut::new(places[1]),
            of_weight: GlobalMut::new(of_weight),
            of_bias: GlobalMut::new(of_bias),
            of_head: if self.per_head { self.n } else { 0 },
            sub_keys: self.groups() * self.n,
            part: self.part,
            reserved: 0,
        };
        let keys = keys.map(Global::<u8>::new);
        let arguments = (Global::<f32>::new(q), keys[0], keys[1], norm, gradient, params);
        let report = launch(&machine, module, &kernel.name, &config, arguments)?;

        let all: Vec<Expected> = (0..rows).map(|row| self.expected(row)).collect();
        let joined =
            |part: fn(&Expected) -> &Vec<f64>| all.iter().flat_map(part).copied().collect::<Vec<f64>>();
        let mut right = true;
        for (at, expected) in [
            (dq, joined(|of| &of.dq)),
            (normalised, joined(|of| &of.normalised)),
            (dscores, joined(|of| &of.dscores)),
            (of_weight, joined(|of| &of.of_weight)),
            (of_bias, joined(|of| &of.of_bias)),
        ] {
            if at == 0 {
                continue;
            }
            let mut bytes = vec![0; 4 * expected.len()];
            machine.read(at, &mut bytes)?;
            let got = bytes.as_chunks::<4>().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes)));
            right &= got.zip(&expected).all(|(got, &expected)| {
                got.is_nan() && expected.is_nan() || (got - expected).abs() <= FAR * (1.0 + expected.abs())
            });
        }
        for (half, at) in places.into_iter().enumerate() {
            if at == 0 {
                continue;
            }
            let mut bytes = vec![0; 4 * (rows * k) as usize];
            machine.read(at, &mut bytes)?;
            right &= bytes == words(all.iter().flat_map(|of| of.places[half].clone()).collect());
        }
        Ok((report, right))
    }
}
