//! How the kernels of the linear family are run: on sizes that reach every path of a tile, with results known exactly.
//!
//! Inputs are small integers, so that every sum is exact in f32 and rounded once. The rows of x and w are followed by NaNs
//! and their last row by nothing, so that an element too many shows as a wrong result or as an access out of bounds; the
//! rows of y are followed by elements that must stay as they are.

use half::{bf16, f16};
use warpsmith_dsl::epilogue::{Activation, LinearEpilogue};
use warpsmith_dsl::gemm::wgmma_f32::SplitTile;
use warpsmith_dsl::gemm::{Layouts, PersistentTile};
use warpsmith_dsl::launch::{Global, GlobalMut, KernelArgs, RawArg, TensorMap};
use warpsmith_emulator::{
    Config, Interleave, L2Promotion, LaunchConfig, LaunchError, Machine, Module, OobFill, Report, Swizzle,
    TensorMap as EncodedMap, TensorMapArguments, TensorType,
};
use warpsmith_kernels::linear::LinearParams;
use warpsmith_kernels::linear_hopper::{
    HopperCooperative128x128, HopperCooperative128x256, HopperParams, HopperPingPong128x128,
    HopperPingPong128x192,
};
use warpsmith_kernels::linear_hopper_f32::{
    HopperF32Params, Split64x64, Split64x128, Split128x128, Split128x256,
};

use super::Problem;

/// A type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Float {
    F16,
    Bf16,
    F32,
}

impl Float {
    fn named(name: &str) -> Option<Self> {
        match name {
            "f16" => Some(Self::F16),
            "bf16" => Some(Self::Bf16),
            "f32" | "tf32" => Some(Self::F32),
            _ => None,
        }
    }

    fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
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

/// How a kernel gets at x and w.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Aligned,
    Unaligned,
    /// By tensor maps: rows of their boxes, and blocks in a cluster.
    Maps {
        rows: [u32; 2],
        cluster: u32,
        /// Whether the kernel is one of f32 at f32 accuracy.
        split: bool,
    },
}

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(crate) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let cases = Instance::named(name)?.cases();
    Some(cases.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

/// What an entry's name says of it: `linear_<input>_<output>_<M>x<N>[_unaligned]`, or
/// `linear_hopper_<input>_<output>_<schedule>_<M>x<N>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instance {
    input: Float,
    output: Float,
    tile: [u32; 2],
    access: Access,
}

impl Instance {
    fn named(name: &str) -> Option<Self> {
        fn maps<S: PersistentTile>() -> Access {
            Access::Maps { rows: [S::A_BOX_ROWS, S::B_BOX_ROWS], cluster: S::CLUSTER_M, split: false }
        }
        fn split_maps<S: SplitTile>() -> Access {
            Access::Maps { rows: [S::A_BOX_ROWS, S::B_BOX_ROWS], cluster: S::CLUSTER_M, split: true }
        }
        let name = name.strip_prefix("linear_")?;
        let hopper = name.strip_prefix("hopper_");
        let mut parts = hopper.unwrap_or(name).split('_');
        let input = Float::named(parts.next()?)?;
        let output = Float::named(parts.next()?)?;
        let schedule = if hopper.is_some() { parts.next() } else { None };
        let shape = parts.next()?;
        let (m, n) = shape.split_once('x')?;
        let access = match (schedule, parts.next(), shape) {
            (None, None, _) => Access::Aligned,
            (None, Some("unaligned"), _) => Access::Unaligned,
            (Some("pingpong"), None, "128x128") => maps::<HopperPingPong128x128>(),
            (Some("pingpong"), None, "128x192") => maps::<HopperPingPong128x192>(),
            (Some("cooperative"), None, "128x256") => maps::<HopperCooperative128x256>(),
            (Some("cooperative"), None, "128x128") => maps::<HopperCooperative128x128>(),
            (Some("split"), None, "128x256") => split_maps::<Split128x256>(),
            (Some("split"), None, "128x128") => split_maps::<Split128x128>(),
            (Some("split"), None, "64x128") => split_maps::<Split64x128>(),
            (Some("split"), None, "64x64") => split_maps::<Split64x64>(),
            _ => return None,
        };
        Some(Self { input, output, tile: [m.parse().ok()?, n.parse().ok()?], access })
    }

    /// The cases, those that cost least first.
    fn cases(self) -> Vec<Case> {
        let mut sizes = self.sizes();
        sizes.sort_by_key(|size| (size.m + 16) * (size.n + 16) * (size.k + 100));
        sizes.into_iter().map(|size| Case::new(self, size)).collect()
    }

    /// Columns of x in a slot of the ring: rows of 64 bytes in the large tiles, of 128 in the others.
    fn slot(self) -> u32 {
        let row = if self.tile[0] == 128 { 64 } else { 128 };
        row / self.input.bytes() as u32
    }

    /// Elements in a chunk of 16 bytes.
    fn chunk(self) -> u32 {
        16 / self.input.bytes() as u32
    }

    fn sizes(self) -> Vec<Size> {
        if let Access::Maps { cluster, .. } = self.access {
            return self.hopper_sizes(cluster);
        }
        let (slot, chunk) = (self.slot(), self.chunk());
        // Sums that end in each slot of the ring before it comes round, some with the slot and some within it; longer
        // ones that end in its first, its last and between.
        let mut sizes = vec![size(5, 0, 9)];
        for slots in 1..=SLOTS {
            sizes.push(size(5, slots * slot, 6));
            sizes.push(size(37, slots * slot - slot / 2, 53));
        }
        for slots in [11, 12, 14, 17] {
            sizes.push(size(61, slots * slot - chunk, 61));
        }
        // Rows and columns that end in every part of a tile, and leave every number of columns after fours.
        for (at, &(m, n)) in EDGES.iter().enumerate() {
            let odd = at % 3 == 2;
            sizes.push(Size {
                bias: at % 4 != 1,
                relu: false,
                skip: odd.into(),
                pad: if odd { 1 } else { 8 - n % 4 },
                ..size(m, chunk, n)
            });
        }
        if self.access == Access::Unaligned {
            // Rows that end at every element of a chunk, in every slot.
            for slots in 1..=SLOTS {
                for tail in 1..chunk {
                    sizes.push(size(64, (slots - 1) * slot + chunk + tail, 64));
                }
            }
        }
        sizes
    }

    /// Sums of fewer steps than the ring has stages, of as many and of more; tiles that lie within y and tiles at its edges; blocks
    /// with no tile, with one and with several.
    fn hopper_sizes(self, cluster: u32) -> Vec<Size> {
        let [m, n] = self.tile;
        let launch = |clusters: u32, size: Size| Size { blocks: clusters * cluster, ..size };
        let plain = |m: u32, k: u32, n: u32| Size { relu: false, ..size(m, k, n) };
        let mut sizes = vec![
            launch(1, size(5, 8, 9)),
            launch(2, Size { bias: false, ..plain(m * cluster, 64, n) }),
            launch(1, Size { skip: 1, pad: 1, ..plain(m + 3, 40, n + 6) }),
            launch(1, Size { pad: 8, ..plain(m * cluster, 64 * 3, 2 * n) }),
            launch(1, plain(m * cluster + 5, 64 * 5, n + 7)),
            launch(2, size(m - 1, 64 * 7 + 16, 2 * n - 2)),
            launch(1, size(m * cluster, 64 * 9, n)),
            // Aligned for whole tiles, of which one lacks rows and one columns.
            launch(1, Size { pad: 8, ..plain(m - 1, 64, n) }),
            launch(1, Size { pad: 16, ..plain(m, 64, n - 8) }),
            // So many tiles that the ring comes round after every number of them.
            launch(1, plain(8 * m * cluster, 64, 9)),
            launch(1, plain(5 * m * cluster, 64 * 3, 10)),
        ];
        // Columns that end in every strip of a tile, rows and columns that are aligned or are not.
        for tail in 1..=n / 8 {
            let (columns, rows) = (8 * tail - tail % 4, 1 + 5 * tail % m);
            sizes.push(launch(1, Size { pad: 8 - columns % 8, ..plain(rows, 8, columns) }));
            if tail % 4 == 0 {
                sizes.push(launch(1, Size { pad: 1, ..plain(rows, 8, columns) }));
            }
        }
        for (m, n) in [(m - 1, n - 1), (m, n - 1), (m - 1, n), (m, n - 2), (m - 2, n - 3)] {
            sizes.push(launch(1, Size { pad: 8 - n % 8, ..plain(m, 8, n) }));
        }
        sizes.push(launch(1, plain(9, 0, 10)));
        sizes
    }
}

/// More slots than any ring has.
const SLOTS: u32 = 7;

/// Rows and columns of y.
const EDGES: [(u32, u32); 12] = [
    (1, 1),
    (3, 64),
    (20, 101),
    (64, 67),
    (37, 85),
    (52, 70),
    (70, 52),
    (85, 37),
    (101, 20),
    (117, 117),
    (65, 66),
    (130, 131),
];

/// A problem's size, and what else selects a path.
#[derive(Clone, Copy, Debug)]
struct Size {
    m: u32,
    k: u32,
    n: u32,
    bias: bool,
    relu: bool,
    /// Elements of y before its first, and between its rows.
    skip: u32,
    pad: u32,
    /// Blocks of a persistent launch; 0 where every tile has its own.
    blocks: u32,
}

/// With a bias and ReLU, and y aligned for stores of four elements.
const fn size(m: u32, k: u32, n: u32) -> Size {
    Size { m, k, n, bias: true, relu: true, skip: 0, pad: 8 - n % 4, blocks: 0 }
}

/// One problem, its data and its result.
struct Case {
    name: String,
    instance: Instance,
    size: Size,
    /// Elements from one row of x and of w to the next.
    stride: u32,
    inputs: [Vec<u8>; 3],
    initial: Vec<u8>,
    expected: Vec<u8>,
}

/// What bytes that the kernel must not touch are filled with.
const UNTOUCHED: u8 = 0xa5;

impl Case {
    fn new(instance: Instance, size: Size) -> Self {
        let Instance { input, output, access, .. } = instance;
        let Size { m, k, n, bias, relu, skip, pad, .. } = size;
        // Between rows: what keeps them aligned, or what does not.
        let gap = if access == Access::Unaligned { k % 2 + 1 } else { instance.chunk() };
        let integer = |i: u32, j: u32, step: u32| ((i * step + j * 3 + i * j) % 5) as f32 - 2.0;
        let operand = |rows: u32, step: u32| {
            let mut data = Vec::new();
            for row in 0..rows {
                for column in 0..k {
                    input.push(integer(row, column, step), &mut data);
                }
                for _ in 0..if row + 1 < rows { gap } else { 0 } {
                    input.push(f32::NAN, &mut data);
                }
            }
            data
        };
        let added = |column: u32| if bias { (column % 9) as f32 - 4.0 } else { 0.0 };
        let mut biases = Vec::new();
        for column in 0..if bias { n } else { 0 } {
            input.push(added(column), &mut biases);
        }
        let mut expected = vec![UNTOUCHED; skip as usize * output.bytes()];
        for row in 0..m {
            for column in 0..n {
                let sum: f32 = (0..k).map(|j| integer(row, j, 7) * integer(column, j, 11)).sum();
                let sum = sum + added(column);
                output.push(if relu { sum.max(0.0) } else { sum }, &mut expected);
            }
            expected.resize(expected.len() + pad as usize * output.bytes(), UNTOUCHED);
        }
        Self {
            name: format!("M {m}, K {k}, N {n}"),
            instance,
            size,
            stride: k + gap,
            inputs: [operand(m, 7), operand(n, 11), biases],
            initial: vec![UNTOUCHED; expected.len()],
            expected,
        }
    }

    /// The tensor map of one matrix of `rows` × `columns` elements, in boxes of `box_rows` rows of 128 bytes.
    fn map(
        &self,
        of: Float,
        address: u64,
        [rows, columns]: [u32; 2],
        stride: u64,
        box_rows: u32,
    ) -> TensorMap {
        let bytes = of.bytes() as u64;
        let data_type = match of {
            Float::F16 => TensorType::F16,
            Float::Bf16 => TensorType::Bf16,
            Float::F32 => TensorType::F32,
        };
        let encoded = EncodedMap::encode(&TensorMapArguments {
            data_type,
            address,
            // A tensor has columns, also one that is not to be read.
            dims: &[columns.max(1).into(), rows.into(), 1],
            strides: &[stride * bytes, (stride * bytes).next_multiple_of(16)],
            box_dims: &[128 / bytes as u32, box_rows, 1],
            element_strides: &[1, 1, 1],
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
        let [x, w, bias] = [place(&self.inputs[0])?, place(&self.inputs[1])?, place(&self.inputs[2])?];
        let y = place(&self.initial)?;
        let Instance { output, tile, access, .. } = self.instance;
        let Size { m, n, k, relu, skip, pad, .. } = self.size;
        let (pointer, first) = (Global::<u8>::new, u64::from(skip) * output.bytes() as u64);
        let (bias, y_at) = (pointer(bias), y + first);
        let y_first = GlobalMut::<u8>::new(y_at);
        let epilogue = LinearEpilogue {
            bias,
            residual: Global::<u8>::new(0),
            row_scale: Global::new(0),
            column_scale: Global::new(0),
            mask: GlobalMut::new(0),
            preactivation: GlobalMut::new(0),
            residual_stride: 0,
            residual_batch: 0,
            mask_stride: 0,
            mask_batch: 0,
            preactivation_stride: 0,
            preactivation_batch: 0,
            row_scale_stride: 0,
            column_scale_stride: 0,
            alpha: 1.0,
            beta: 0.0,
            activation: if relu { Activation::RELU } else { Activation::NONE },
            reserved: 0,
        };
        let (stride, stride_y) = (u64::from(self.stride), u64::from(n + pad));
        let Some(kernel) = module.kernels().next() else { return Ok((Report::default(), false)) };
        let config = LaunchConfig {
            grid: [m.div_ceil(tile[0]) * n.div_ceil(tile[1]), 1, 1],
            block: kernel.reqntid.unwrap_or([1; 3]),
            dynamic_shared: shared_bytes,
            ..LaunchConfig::default()
        };
        let launch = |config: LaunchConfig, raw: &[RawArg]| {
            // SAFETY: `with_raw` hands over bytes that are valid for the length given, for this call.
            let bytes: Vec<&[u8]> =
                raw.iter().map(|arg| unsafe { std::slice::from_raw_parts(arg.data, arg.size) }).collect();
            machine.launch(module, &kernel.name, &config, &bytes)
        };
        let report = match access {
            Access::Maps { rows, split: true, .. } => {
                let layouts = Layouts::K_MAJOR;
                let params =
                    HopperF32Params { stride_y, batch_y: 0, batch: 1, m, n, k, layouts, reserved: 0 };
                let x = self.map(Float::F32, x, [m, k], stride, rows[0]);
                let w = self.map(Float::F32, w, [n, k], stride, rows[1]);
                let config = LaunchConfig { grid: [self.size.blocks, 1, 1], ..config };
                (x, w, y_first, epilogue, params).with_raw(|raw| launch(config, raw))?
            }
            Access::Maps { rows, .. } => {
                let input = self.instance.input;
                let row = n as u64 * output.bytes() as u64;
                let has_boxes = (y_at | row | (stride_y * output.bytes() as u64)).is_multiple_of(16);
                let params = HopperParams {
                    stride_y,
                    batch_y: 0,
                    batch: 1,
                    m,
                    n,
                    k,
                    layouts: Layouts::K_MAJOR,
                    has_boxes: has_boxes.into(),
                };
                let x = self.map(input, x, [m, k], stride, rows[0]);
                let w = self.map(input, w, [n, k], stride, rows[1]);
                let y_boxes = if has_boxes {
                    self.map(output, y_at, [m, n], stride_y, 16)
                } else {
                    TensorMap::from_words([0; 16])
                };
                let config = LaunchConfig { grid: [self.size.blocks, 1, 1], ..config };
                (x, w, y_boxes, y_first, epilogue, params).with_raw(|raw| launch(config, raw))?
            }
            Access::Aligned | Access::Unaligned => {
                let params = LinearParams {
                    stride_x: stride,
                    stride_w: stride,
                    stride_y,
                    batch_x: 0,
                    batch_w: 0,
                    batch_y: 0,
                    m,
                    n,
                    k,
                    reserved: 0,
                };
                (pointer(x), pointer(w), y_first, epilogue, params).with_raw(|raw| launch(config, raw))?
            }
        };
        let mut result = vec![0; self.expected.len()];
        machine.read(y, &mut result)?;
        Ok((report, result == self.expected))
    }
}
