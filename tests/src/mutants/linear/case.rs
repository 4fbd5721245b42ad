//! One problem of the linear family: its operands, its result, and (in `launch`) how a kernel is run on it.
//!
//! The rows of X and W are followed by NaNs and their last row by nothing, so that an element too many shows as a wrong result
//! or as an access out of bounds. What is written is between bytes that must stay as they are.

mod launch;

use warpsmith_dsl::epilogue::Activation;
use warpsmith_dsl::launch::TensorMap;
use warpsmith_emulator::{
    Interleave, L2Promotion, OobFill, Swizzle, TensorMap as EncodedMap, TensorMapArguments,
};

use super::instance::{Family, Instance};
use super::numbers::Float;
use super::size::{Function, Scales, Size};
use super::update::Update;

/// What bytes that the kernel must not touch are filled with.
const UNTOUCHED: u8 = 0xa5;
/// What the residual is multiplied with.
const BETA: f32 = 2.0;

/// Elements of one operand: the length of its contiguous axis and of the other, and the elements from one matrix to the next.
struct Operand {
    bytes: Vec<u8>,
    of: Float,
    /// Contiguous elements, and how many runs of them.
    lengths: [u32; 2],
    stride: u64,
    batch_stride: u64,
}

/// What a kernel writes: elements or words in rows.
struct Written {
    initial: Vec<u8>,
    expected: Vec<u8>,
    /// Bytes before the first row.
    skip: u64,
    /// Elements from row to row, from matrix to matrix.
    stride: u64,
    batch_stride: u64,
}

/// One problem, its data and its results.
pub(super) struct Case {
    name: String,
    instance: Instance,
    size: Size,
    operands: [Operand; 2],
    update: Option<Update>,
    bias: Vec<u8>,
    scales: [Vec<u8>; 2],
    residual: Vec<u8>,
    /// Of a kernel that adds them, the parts of the sums.
    parts: Vec<u8>,
    y: Written,
    mask: Written,
    preactivation: Written,
}

/// X's element (row, index along K), or W's.
///
/// The numbers of an f32 operand whose products are made of parts have low parts too; of two that meet one has none, as the
/// product of the low parts is left out.
fn element(which: usize, batch: u32, row: u32, k: u32, size: &Size, has_parts: bool) -> f32 {
    // Some rows have one that is infinite, which stands anywhere.
    if size.infinite && row % [5, 3][which] == 2 && k == (row * 7 + batch) % size.k {
        return if row.is_multiple_of(2) { f32::INFINITY } else { f32::NEG_INFINITY };
    }
    let step = [7, 11][which];
    let small = ((row * step + k * 3 + row * k + batch * 2) % 5) as f32 - 2.0;
    if has_parts && k as usize % 2 == which { small + 4096.0 * ((row + k) % 3) as f32 } else { small }
}

fn scale(index: u32, scales: Scales) -> f32 {
    match scales {
        Scales::None => 1.0,
        Scales::One => 2.0,
        Scales::Each => [1.0, 2.0, -0.5, -1.0, 4.0][index as usize % 5],
    }
}

fn residual(batch: u32, row: u32, column: u32) -> f32 {
    ((row * 5 + column * 3 + batch) % 8) as f32 - 3.0
}

impl Function {
    fn activation(self) -> Activation {
        match self {
            Self::None => Activation::NONE,
            Self::Relu => Activation::RELU,
            Self::Silu => Activation::SILU,
            Self::GeluTanh => Activation::GELU_TANH,
            Self::GeluErf => Activation::GELU_ERF,
        }
    }

    fn of(self, z: f32) -> f32 {
        match self {
            Self::None => z,
            // NaN stays one.
            Self::Relu if z.is_nan() => z,
            Self::Relu => z.max(0.0),
            Self::Silu => z / (1.0 + (-z).exp()),
            Self::GeluTanh => {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (z + 0.044_715 * z * z * z);
                0.5 * z * (1.0 + inner.tanh())
            }
            Self::GeluErf => warpsmith::ops::Activation::GeluErf.apply(z),
        }
    }

    /// Whether kernels compute it with approximations.
    fn is_smooth(self) -> bool {
        matches!(self, Self::Silu | Self::GeluTanh | Self::GeluErf)
    }
}

impl Operand {
    fn new(instance: Instance, size: &Size, which: usize) -> Self {
        let of = instance.input(size, which);
        let (rows, k, mn) = ([size.m, size.n][which], size.k, size.mn[which]);
        let lengths = if mn { [rows, k] } else { [k, rows] };
        let matrices = if size.shared[which] { 1 } else { size.batch };
        // Between the runs: what keeps them aligned, or what does not.
        let chunk = of.chunk();
        let word = size.words[which];
        let stride = if word < 16 {
            ((lengths[0] * of.bytes() / word + 1) | 1) * (word / of.bytes())
        } else if instance.family == Family::Narrow && which == 0 {
            lengths[0]
        } else if instance.family == Family::Fp8Portable {
            // X and W have one stride, which K alone decides.
            k.next_multiple_of(chunk)
        } else {
            lengths[0].next_multiple_of(chunk) + chunk
        };
        let batch_stride = u64::from(stride) * u64::from(lengths[1]) + u64::from(chunk);
        let at = |batch: u32, line: u32, along: u32| {
            (u64::from(batch) * batch_stride + u64::from(line) * u64::from(stride) + u64::from(along))
                as usize
        };
        let length =
            if lengths.contains(&0) { 0 } else { at(matrices - 1, lengths[1] - 1, lengths[0] - 1) + 1 };
        let mut bytes = vec![0; length * of.bytes() as usize];
        for i in 0..length {
            of.put(f32::NAN, i, &mut bytes);
        }
        for batch in 0..matrices {
            for row in 0..rows {
                for k in 0..k {
                    let (line, along) = if mn { (k, row) } else { (row, k) };
                    let value = element(which, batch, row, k, size, instance.has_parts());
                    of.put(value, at(batch, line, along), &mut bytes);
                }
            }
        }
        Self { bytes, of, lengths, stride: stride.into(), batch_stride }
    }

    /// Its tensor map, in boxes of `box_rows` rows of 128 bytes, or panels of 64 × 64 if it is contiguous along its rows' index.
    fn map(&self, address: u64, size: &Size, which: usize, box_rows: u32) -> TensorMap {
        let matrices = if size.shared[which] { 1 } else { size.batch };
        let inner = 128 / self.of.bytes();
        let box_dims = if size.mn[which] { [64, 64, 1] } else { [inner, box_rows, 1] };
        map(
            self.of,
            address,
            [self.lengths[0], self.lengths[1], matrices],
            [self.stride, self.batch_stride],
            box_dims,
        )
    }
}

/// A tensor map of rank 3 with the swizzle of the boxes' rows, 64 or 128 bytes.
fn map(of: Float, address: u64, dims: [u32; 3], strides: [u64; 2], box_dims: [u32; 3]) -> TensorMap {
    let bytes = u64::from(of.bytes());
    let encoded = EncodedMap::encode(&TensorMapArguments {
        data_type: of.tensor_type(),
        address,
        // A tensor has elements, also one that is not to be read.
        dims: &dims.map(|length| u64::from(length.max(1))),
        strides: &strides.map(|stride| (stride * bytes).next_multiple_of(16)),
        box_dims: &box_dims,
        element_strides: &[1; 3],
        interleave: Interleave::None,
        swizzle: if u64::from(box_dims[0]) * bytes == 64 { Swizzle::B64 } else { Swizzle::B128 },
        l2_promotion: L2Promotion::None,
        oob_fill: OobFill::Zeros,
    });
    let encoded = encoded.expect("the sizes of the cases make tensor maps");
    let words = std::array::from_fn(|at| {
        u64::from_le_bytes(std::array::from_fn(|byte| encoded.as_bytes()[8 * at + byte]))
    });
    TensorMap::from_words(words)
}

impl Written {
    /// Nothing.
    const NONE: Self =
        Self { initial: Vec::new(), expected: Vec::new(), skip: 0, stride: 0, batch_stride: 0 };

    fn new(size: &Size, row: u32, bytes: u32, skip: u32, pad: u32) -> Self {
        let (stride, bytes) = (u64::from(row + pad), u64::from(bytes));
        // Whole chunks from matrix to matrix, where there are several; parts of a matrix follow each other.
        let gap = if size.batch > 1 && size.split == 1 { 16 / bytes } else { 0 };
        let batch_stride = stride * u64::from(size.m) + gap;
        let length = (u64::from(skip) + batch_stride * u64::from(size.batch)) * bytes;
        let initial = vec![UNTOUCHED; length as usize];
        Self { expected: initial.clone(), initial, skip: u64::from(skip) * bytes, stride, batch_stride }
    }

    fn place(&self, batch: u32, row: u32, column: u32) -> usize {
        (u64::from(batch) * self.batch_stride + u64::from(row) * self.stride + u64::from(column)) as usize
    }
}

impl Case {
    pub(super) fn new(instance: Instance, size: Size) -> Self {
        let Size { batch, m, k, n, fused, skip, pad, .. } = size;
        let output = instance.output;
        let operands = [Operand::new(instance, &size, 0), Operand::new(instance, &size, 1)];
        let update =
            matches!(instance.family, Family::Update | Family::UpdateHopper(_) | Family::UpdateFewRows)
                .then(|| Update::new(instance.input, &size));
        let added = |column: u32| if fused.bias { (column % 9) as f32 - 4.0 } else { 0.0 };
        let bias = list(if fused.bias { n } else { 0 }, instance.bias(), added);
        let scales = [(m, fused.row_scale), (n, fused.column_scale)].map(|(count, scales)| {
            let count = match scales {
                Scales::None => 0,
                Scales::One => 1,
                Scales::Each => count,
            };
            list(count, Float::F32, |index| scale(index, scales))
        });
        let part = size.part(128 / instance.input.bytes());
        let matrices = Size { batch: batch * size.split, ..size };
        let mut y = Written::new(&matrices, n, output.bytes(), skip, pad);
        let mut preactivation = if fused.preactivation {
            Written::new(&size, n, output.bytes(), skip, pad)
        } else {
            Written::NONE
        };
        let mut mask = if fused.mask { Written::new(&size, n.div_ceil(32), 4, 0, 1) } else { Written::NONE };
        let mut added_to_it = if fused.residual { y.initial.clone() } else { Vec::new() };

        for (matrix, row) in (0..matrices.batch).flat_map(|matrix| (0..m).map(move |row| (matrix, row))) {
            let batch = matrix / size.split;
            let begin = matrix % size.split * part;
            let own = |which: usize| if size.shared[which] { 0 } else { batch };
            let mut bits = vec![0u32; n.div_ceil(32) as usize];
            let x = |k| element(0, own(0), row, k, &size, instance.has_parts());
            let hidden = update.as_ref().map(|update| update.hidden(&size, row, x)).unwrap_or_default();
            for column in 0..n {
                let w = |k| element(1, own(1), column, k, &size, instance.has_parts());
                let product: f32 = (begin..k.min(begin + part)).map(|k| x(k) * w(k)).sum();
                let sum =
                    product + update.as_ref().map_or(0.0, |update| update.added(&size, &hidden, column));
                let mut z =
                    fused.alpha * scale(row, fused.row_scale) * scale(column, fused.column_scale) * sum
                        + added(column);
                let at = y.place(matrix, row, column);
                let first = skip as usize;
                if fused.residual {
                    let value = residual(batch, row, column);
                    output.put(value, first + at, &mut added_to_it);
                    z += BETA * value;
                }
                if fused.preactivation {
                    output.put(z, first + at, &mut preactivation.expected);
                }
                if z > 0.0 {
                    bits[column as usize / 32] |= 1 << (column % 32);
                }
                output.put(fused.function.of(z), first + at, &mut y.expected);
            }
            if fused.mask {
                for (word, bits) in bits.into_iter().enumerate() {
                    let at = 4 * mask.place(batch, row, word as u32);
                    mask.expected[at..at + 4].copy_from_slice(&bits.to_le_bytes());
                }
            }
        }
        // What is only read ends with its last element.
        if fused.residual {
            let end = skip as usize + y.place(batch - 1, m - 1, n - 1) + 1;
            added_to_it.truncate(end * output.bytes() as usize);
        }
        let parts = if instance.family == Family::Sums { outer_products(&size) } else { Vec::new() };
        let kind = if fused.residual { ", all that an epilogue does" } else { "" };
        let ranks = if update.is_some() { format!(", ranks {:?}", size.ranks) } else { String::new() };
        let name = format!("{batch} of M {m}, K {k}, N {n}{ranks}{kind}");
        Self {
            name,
            instance,
            size,
            operands,
            update,
            bias,
            scales,
            residual: added_to_it,
            parts,
            y,
            mask,
            preactivation,
        }
    }

    /// Whether y is what it has to be. Any NaN is one.
    fn is_right(&self, y: &[u8]) -> bool {
        if !self.size.fused.function.is_smooth() && !self.size.infinite {
            return y == self.y.expected;
        }
        // Elements that the kernel does not write are patterns of bytes, which have to be the same.
        let output = self.instance.output;
        let bytes = output.bytes() as usize;
        (0..y.len() / bytes).all(|at| {
            let (got, expected) = (output.get(at, y), output.get(at, &self.y.expected));
            let same = y[at * bytes..][..bytes] == self.y.expected[at * bytes..][..bytes];
            let is_close = || {
                let is_smooth = self.size.fused.function.is_smooth();
                is_smooth && (got - expected).abs() <= expected.abs().max(1.0) / 64.0
            };
            same || got.is_nan() && expected.is_nan() || is_close()
        })
    }
}

/// Columns of a row of [parts](outer_products): as many, and some more that are read together with them.
pub(super) const fn part_columns(size: &Size) -> u32 {
    size.n.next_multiple_of(4)
}

/// The products of each column of X and W, for each matrix: as many parts of sums as K. Columns beyond N are no numbers.
fn outer_products(size: &Size) -> Vec<u8> {
    let columns = part_columns(size);
    let count = size.batch * size.k * size.m * columns;
    list(count, Float::F32, |index| {
        let (column, row) = (index % columns, index / columns % size.m);
        let part = index / columns / size.m;
        let (k, batch) = (part % size.k, part / size.k);
        let own = |which: usize| if size.shared[which] { 0 } else { batch };
        if column >= size.n {
            return f32::NAN;
        }
        element(0, own(0), row, k, size, false) * element(1, own(1), column, k, size, false)
    })
}

fn list(count: u32, of: Float, value: impl Fn(u32) -> f32) -> Vec<u8> {
    let mut bytes = vec![0; (count * of.bytes()) as usize];
    for index in 0..count {
        of.put(value(index), index as usize, &mut bytes);
    }
    bytes
}
