//! How the kernels of the families `linear_fp8` and `linear_fp8_hopper` are run: on sizes that reach every path of a tile, with
//! results known exactly.
//!
//! As for [`linear`](super::linear), inputs are small integers, rows are followed by NaNs or by elements that must stay as they
//! are, and last rows by nothing. Scales are powers of two.

use half::{bf16, f16};
use warpsmith_dsl::epilogue::{Activation, LinearEpilogue};
use warpsmith_dsl::gemm::{PersistentTile, TileShape};
use warpsmith_dsl::launch::{Global, GlobalMut, KernelArgs, RawArg, TensorMap};
use warpsmith_emulator::{
    Config, Interleave, L2Promotion, LaunchConfig, LaunchError, Machine, Module, OobFill, Report, Swizzle,
    TensorMap as EncodedMap, TensorMapArguments, TensorType,
};
use warpsmith_kernels::linear_fp8::{Fp8Params, Fp8Portable64x64, WIDEN_CHUNK, WIDEN_THREADS, WidenParams};
use warpsmith_kernels::linear_fp8_hopper::{
    Fp8Hopper128x128, Fp8Hopper128x192, Fp8Hopper256x128, Fp8HopperParams, Fp8Types,
};

use super::Problem;

/// What bytes that the kernel must not touch are filled with.
const UNTOUCHED: u8 = 0xa5;
/// The bits of the integers from −2 to 2 in e4m3 and in e5m2, and a NaN in both.
const INTEGERS: [[u8; 5]; 2] = [[0xc0, 0xb8, 0x00, 0x38, 0x40], [0xc0, 0xbc, 0x00, 0x3c, 0x40]];
const NAN: u8 = 0x7f;

/// The problems that an entry of these families is run on; none if the name is no such entry's.
pub(crate) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    if let Some(is_e5m2) = name.strip_prefix("widen_fp8_").map(|of| of == "e5m2") {
        let chunks = [1, 2, WIDEN_THREADS - 1, WIDEN_THREADS, WIDEN_THREADS + 1, 2 * WIDEN_THREADS + 3];
        let cases = chunks.map(|chunks| Box::new(Widening { is_e5m2, rows: 3, chunks }) as Box<dyn Problem>);
        return Some(cases.into_iter().collect());
    }
    let name = name.strip_prefix("linear_fp8_")?;
    let hopper = name.strip_prefix("hopper_");
    let (output, tile) = hopper.unwrap_or(name).split_once('_')?;
    let output = match output {
        "f16" => Output::F16,
        "bf16" => Output::Bf16,
        "f32" => Output::F32,
        _ => return None,
    };
    fn boxes<S: PersistentTile>() -> Tile {
        Tile { shape: [S::BLOCK_M, S::BLOCK_N], boxes: Some([S::A_BOX_ROWS, S::B_BOX_ROWS]) }
    }
    let tile = match (hopper.is_some(), tile) {
        (true, "256x128") => boxes::<Fp8Hopper256x128>(),
        (true, "128x192") => boxes::<Fp8Hopper128x192>(),
        (true, "128x128") => boxes::<Fp8Hopper128x128>(),
        (false, "64x64") => {
            Tile { shape: [Fp8Portable64x64::BLOCK_M, Fp8Portable64x64::BLOCK_N], boxes: None }
        }
        _ => return None,
    };
    let mut sizes = sizes(tile);
    sizes.sort_by_key(|size| (size.m + 16) * (size.n + 16) * (size.k + 100));
    Some(sizes.into_iter().map(|size| Box::new(Case::new(output, tile, size)) as Box<dyn Problem>).collect())
}

/// A copy to f16 of every value there is.
struct Widening {
    is_e5m2: bool,
    rows: u32,
    chunks: u32,
}

impl Problem for Widening {
    fn name(&self) -> &str {
        "rows of chunks"
    }

    fn run(&self, module: &Module, _: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let machine = Machine::new(config);
        let columns = self.chunks * WIDEN_CHUNK;
        let stride = u64::from(columns) + 16;
        let source: Vec<u8> =
            (0..stride * u64::from(self.rows) - 16).map(|i| (i * 5 + i / 256) as u8).collect();
        let length = 2 * self.rows * columns;
        let (from, to) = (machine.allocate(source.len() as u64)?, machine.allocate(u64::from(length))?);
        machine.write(from, &source)?;
        machine.write(to, &vec![UNTOUCHED; length as usize])?;
        let Some(kernel) = module.kernels().next() else { return Ok((Report::default(), false)) };
        let config = LaunchConfig {
            grid: [self.rows, 1, 1],
            block: kernel.reqntid.unwrap_or([1; 3]),
            ..LaunchConfig::default()
        };
        let params = WidenParams { stride, chunks: self.chunks, reserved: 0 };
        let arguments = (Global::<u8>::new(from), GlobalMut::<u8>::new(to), params);
        let report = arguments.with_raw(|raw| machine.launch(module, &kernel.name, &config, &bytes(raw)))?;
        let mut copy = vec![0; length as usize];
        machine.read(to, &mut copy)?;
        let right = copy.as_chunks::<2>().0.iter().enumerate().all(|(i, &half)| {
            let (row, column) = (i as u64 / u64::from(columns), i as u64 % u64::from(columns));
            let (got, bits) = (f16::from_le_bytes(half).to_f32(), source[(row * stride + column) as usize]);
            let expected = self.value(bits);
            got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan()
        });
        Ok((report, right))
    }
}

impl Widening {
    fn value(&self, bits: u8) -> f32 {
        if self.is_e5m2 {
            return f16::from_bits(u16::from(bits) << 8).to_f32();
        }
        let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
        let (exponent, fraction) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
        match (bits & 0x7f, exponent) {
            (NAN, _) => f32::NAN,
            (_, 0) => sign * fraction * 2f32.powi(-9),
            _ => sign * (8.0 + fraction) * 2f32.powi(exponent - 10),
        }
    }
}

#[derive(Clone, Copy)]
enum Output {
    F16,
    Bf16,
    F32,
}

impl Output {
    fn bytes(self) -> usize {
        if matches!(self, Self::F32) { 4 } else { 2 }
    }

    /// Rounds once, to the nearest, ties to even.
    fn push(self, value: f32, to: &mut Vec<u8>) {
        match self {
            Self::F16 => to.extend(f16::from_f32(value).to_le_bytes()),
            Self::Bf16 => to.extend(bf16::from_f32(value).to_le_bytes()),
            Self::F32 => to.extend(value.to_le_bytes()),
        }
    }
}

#[derive(Clone, Copy)]
struct Tile {
    shape: [u32; 2],
    /// Rows of the boxes of X and of W, for kernels that read by tensor maps.
    boxes: Option<[u32; 2]>,
}

/// A problem's size, and what else selects a path.
#[derive(Clone, Copy)]
struct Size {
    m: u32,
    k: u32,
    n: u32,
    /// e5m2 instead of e4m3: X, W.
    e5m2: [bool; 2],
    scales: bool,
    bias: bool,
    relu: bool,
    /// Elements between the rows of y.
    pad: u32,
    /// Blocks of a persistent launch.
    blocks: u32,
}

fn sizes(tile: Tile) -> Vec<Size> {
    let [m, n] = tile.shape;
    let size = |m: u32, k: u32, n: u32| Size {
        m,
        k,
        n,
        e5m2: [false; 2],
        scales: true,
        bias: true,
        relu: true,
        pad: 8 - n % 8,
        blocks: 1,
    };
    let plain = |m, k, n| Size { relu: false, pad: 0, ..size(m, k, n) };
    let mut sizes = vec![
        size(5, 16, 9),
        Size { bias: false, ..plain(m, 128, n) },
        Size { scales: false, ..plain(m - 1, 128, n) },
        Size { pad: 1, ..plain(m + 3, 40, n + 6) },
        Size { pad: 8, ..plain(m, 128 * 3, 2 * n) },
        Size { blocks: 2, ..size(m - 1, 128 * 7 + 16, 2 * n - 8) },
        plain(m, 128 * 9, n),
        Size { pad: 16, ..plain(m, 64, n - 8) },
        // So many tiles that the ring comes round after every number of them.
        plain(8 * m, 64, 9),
    ];
    for e5m2 in [[false, true], [true, false], [true, true]] {
        sizes.push(Size { e5m2, ..plain(m, 128 * 2 + 48, n) });
        sizes.push(Size { e5m2, ..size(7, 200, 10) });
    }
    // Columns that end in every strip of a tile, aligned or not.
    for tail in 1..=n / 8 {
        sizes.push(Size { pad: 0, ..plain(1 + 5 * tail % m, 16, 8 * tail) });
        sizes.push(plain(1 + 7 * tail % m, 16, 8 * tail - tail % 4));
    }
    if tile.boxes.is_none() {
        sizes.push(plain(9, 0, 10));
    }
    sizes
}

/// One problem, its data and its result.
struct Case {
    name: String,
    output: Output,
    tile: Tile,
    size: Size,
    /// Elements from one row of x and of w to the next.
    stride: u32,
    /// x, w, the bias, the scales of rows and of columns.
    inputs: [Vec<u8>; 5],
    initial: Vec<u8>,
    expected: Vec<u8>,
}

impl Case {
    fn new(output: Output, tile: Tile, size: Size) -> Self {
        let Size { m, k, n, e5m2, scales, bias, relu, pad, .. } = size;
        let stride = k.next_multiple_of(16) + 16;
        let integer = |i: u32, j: u32, step: u32| ((i * step + j * 3 + i * j) % 5) as usize;
        let operand = |rows: u32, step: u32, e5m2: bool| {
            let mut data = Vec::new();
            for row in 0..rows {
                let value = |column| INTEGERS[usize::from(e5m2)][integer(row, column, step)];
                let length = if row + 1 < rows { stride } else { k };
                for column in 0..length {
                    let element = if column < k { value(column) } else { NAN };
                    match tile.boxes {
                        Some(_) => data.push(element),
                        // Widened: integers from −2 to 2, or NaN.
                        None if column < k => {
                            let number = integer(row, column, step) as f32 - 2.0;
                            data.extend(f16::from_f32(number).to_le_bytes());
                        }
                        None => data.extend(f16::NAN.to_le_bytes()),
                    }
                }
            }
            data
        };
        let added = |column: u32| if bias { (column % 9) as f32 - 4.0 } else { 0.0 };
        let scale = |index: u32| -> f32 { if scales { [0.5, 1.0, 2.0][(index % 3) as usize] } else { 1.0 } };
        let mut biases = Vec::new();
        for column in 0..if bias { n } else { 0 } {
            output.push(added(column), &mut biases);
        }
        let vector = |length: u32| -> Vec<u8> {
            let length = if scales { length } else { 0 };
            (0..length).flat_map(|index| scale(index).to_le_bytes()).collect()
        };
        let mut expected = Vec::new();
        for row in 0..m {
            for column in 0..n {
                let sum: i32 = (0..k)
                    .map(|j| (integer(row, j, 7) as i32 - 2) * (integer(column, j, 11) as i32 - 2))
                    .sum();
                let z = scale(row) * scale(column) * sum as f32 + added(column);
                output.push(if relu { z.max(0.0) } else { z }, &mut expected);
            }
            expected.resize(expected.len() + pad as usize * output.bytes(), UNTOUCHED);
        }
        Self {
            name: format!("M {m}, K {k}, N {n}"),
            output,
            tile,
            size,
            stride,
            inputs: [operand(m, 7, e5m2[0]), operand(n, 11, e5m2[1]), biases, vector(m), vector(n)],
            initial: vec![UNTOUCHED; expected.len()],
            expected,
        }
    }
}

/// The tensor map of one matrix of `rows` × `columns` elements of `bytes` bytes, in boxes of `box_rows` rows of 128 bytes.
fn map(bytes: u64, address: u64, [rows, columns]: [u32; 2], stride: u64, box_rows: u32) -> TensorMap {
    let encoded = EncodedMap::encode(&TensorMapArguments {
        data_type: match bytes {
            1 => TensorType::U8,
            2 => TensorType::U16,
            _ => TensorType::U32,
        },
        address,
        dims: &[columns.into(), rows.into(), 1],
        strides: &[stride * bytes, (stride * bytes).next_multiple_of(16)],
        box_dims: &[128 / bytes as u32, box_rows, 1],
        element_strides: &[1, 1, 1],
        interleave: Interleave::None,
        swizzle: Swizzle::B128,
        l2_promotion: L2Promotion::None,
        oob_fill: OobFill::Zeros,
    });
    let encoded = encoded.expect("the sizes of the cases make tensor maps");
    TensorMap::from_words(std::array::from_fn(|at| {
        u64::from_le_bytes(std::array::from_fn(|byte| encoded.as_bytes()[8 * at + byte]))
    }))
}

fn bytes<'a>(raw: &'a [RawArg]) -> Vec<&'a [u8]> {
    // SAFETY: `with_raw` hands over bytes that are valid for the length given, for its call.
    raw.iter().map(|arg| unsafe { std::slice::from_raw_parts(arg.data, arg.size) }).collect()
}

impl Problem for Case {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let machine = Machine::new(config);
        let place = |bytes: &[u8]| -> Result<u64, LaunchError> {
            if bytes.is_empty() {
                return Ok(0);
            }
            let address = machine.allocate(bytes.len() as u64)?;
            machine.write(address, bytes)?;
            Ok(address)
        };
        let mut addresses = [0; 5];
        for (address, input) in addresses.iter_mut().zip(&self.inputs) {
            *address = place(input)?;
        }
        let [x, w, bias, row_scale, column_scale] = addresses;
        let y = place(&self.initial)?;
        let Size { m, k, n, e5m2, relu, pad, blocks, .. } = self.size;
        let epilogue = LinearEpilogue {
            bias: Global::<u8>::new(bias),
            residual: Global::<u8>::new(0),
            row_scale: Global::new(row_scale),
            column_scale: Global::new(column_scale),
            mask: GlobalMut::new(0),
            preactivation: GlobalMut::new(0),
            residual_stride: 0,
            residual_batch: 0,
            mask_stride: 0,
            mask_batch: 0,
            preactivation_stride: 0,
            preactivation_batch: 0,
            row_scale_stride: 1,
            column_scale_stride: 1,
            alpha: 1.0,
            beta: 0.0,
            activation: if relu { Activation::RELU } else { Activation::NONE },
            reserved: 0,
        };
        let (stride, stride_y) = (u64::from(self.stride), u64::from(n + pad));
        let Some(kernel) = module.kernels().next() else { return Ok((Report::default(), false)) };
        let [tile_m, tile_n] = self.tile.shape;
        let config = LaunchConfig {
            grid: [m.div_ceil(tile_m) * n.div_ceil(tile_n), 1, 1],
            block: kernel.reqntid.unwrap_or([1; 3]),
            dynamic_shared: shared_bytes,
            ..LaunchConfig::default()
        };
        let launch =
            |config: LaunchConfig, raw: &[RawArg]| machine.launch(module, &kernel.name, &config, &bytes(raw));
        let to = GlobalMut::<u8>::new(y);
        let report = match self.tile.boxes {
            Some([x_rows, w_rows]) => {
                let size = self.output.bytes() as u64;
                let has_boxes = (y | u64::from(n) * size | stride_y * size).is_multiple_of(16);
                let params = Fp8HopperParams {
                    stride_y,
                    m,
                    n,
                    k,
                    types: Fp8Types::new(e5m2[0], e5m2[1]),
                    has_boxes: has_boxes.into(),
                    reserved: 0,
                };
                let (x, w) = (map(1, x, [m, k], stride, x_rows), map(1, w, [n, k], stride, w_rows));
                let y_boxes = if has_boxes {
                    map(size, y, [m, n], stride_y, 16)
                } else {
                    TensorMap::from_words([0; 16])
                };
                let config = LaunchConfig { grid: [blocks, 1, 1], ..config };
                (x, w, y_boxes, to, epilogue, params).with_raw(|raw| launch(config, raw))?
            }
            None => {
                let params = Fp8Params { stride, stride_y, m, n, k, reserved: 0 };
                let (x, w) = (Global::<u8>::new(x), Global::<u8>::new(w));
                (x, w, to, epilogue, params).with_raw(|raw| launch(config, raw))?
            }
        };
        let mut result = vec![0; self.expected.len()];
        machine.read(y, &mut result)?;
        Ok((report, result == self.expected))
    }
}
