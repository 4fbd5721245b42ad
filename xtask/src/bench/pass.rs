//! Unfused sequences: a plain product, then a pass over its result that adds the bias and applies ReLU, or that multiplies rows and
//! columns with numbers.
//!
//! A pass is what a framework's own would be: 16 bytes a thread, read and written once. It exists to be compared with, so it
//! is written here in PTX rather than shipped among the kernels.

use std::rc::Rc;

use anyhow::{Context, Result};
use warpsmith::kernel::RawArg;
use warpsmith::{Device, Error, Function, Stream};
use warpsmith_lab::benchmark::Subject;

use super::case::{Case, Extra, Operation, Precision};
use super::cublaslt::Product;
use super::operands::{Addresses, Operands};

const THREADS: u32 = 256;

/// A product and the pass after it.
pub(super) struct Unfused {
    product: Product,
    pass: Pass,
    operands: Rc<Operands>,
    stream: Stream,
}

impl Unfused {
    /// The sequence that computes what the case's operation does; `None` if there is no pass for that.
    pub(super) fn new(stream: &Stream, product: Product, operands: &Rc<Operands>) -> Result<Option<Self>> {
        let Case { operation, precision, shape: [m, _, n], .. } = operands.case;
        let scales = Operation { extra: Extra::Scales, ..Operation::PRODUCT };
        let pass = match operation {
            Operation::BIAS_RELU => Pass::bias_relu(stream.device(), precision, m, n)?,
            operation if operation == scales && has_halves(precision) && n.is_multiple_of(8) => {
                Pass::scales(stream.device(), precision, m, n)?
            }
            _ => return Ok(None),
        };
        let mut unfused = Self { product, pass, operands: operands.clone(), stream: stream.clone() };
        unfused.enqueue(0)?;
        stream.synchronize()?;
        operands.check(operation).context("a product and a pass compute something else")?;
        Ok(Some(unfused))
    }
}

impl Subject for Unfused {
    fn enqueue(&mut self, index: usize) -> Result<(), Error> {
        self.product.enqueue(index)?;
        let Addresses { y, bias, .. } = self.operands.addresses(index);
        // SAFETY: all are live memory of the sizes that the pass was made for, and the stream orders the pass after the product.
        unsafe {
            match self.operands.scale_addresses() {
                Some([rows, columns]) => self.pass.enqueue(&self.stream, &[y, rows, columns]),
                None => self.pass.enqueue(&self.stream, &[y, bias]),
            }
        }
    }
}

/// Whether the output is of 16 bits.
const fn has_halves(precision: Precision) -> bool {
    precision.output_bytes() == 2
}

/// A pass over y, in place.
struct Pass {
    function: Function,
    chunks: u32,
    chunks_a_row: u32,
}

impl Pass {
    /// `y = max(y + bias, 0)`, of y and the bias.
    fn bias_relu(device: &Device, precision: Precision, m: usize, n: usize) -> Result<Self> {
        let chunk = 16 / precision.output_bytes();
        // Chunks that would reach into the next row are single elements instead.
        let chunk = if n.is_multiple_of(chunk) { chunk } else { 1 };
        let module = device.load_ptx("bias_relu", &bias_relu_text(precision, chunk > 1))?;
        Self::new(module.function("bias_relu")?, chunk, m, n)
    }

    /// `y = y · row · column`, of y in 16 bits, whose rows are multiples of 16 bytes, and of the rows' and the columns' numbers in f32.
    fn scales(device: &Device, precision: Precision, m: usize, n: usize) -> Result<Self> {
        let module = device.load_ptx("scales", &scales_text(precision))?;
        Self::new(module.function("scales")?, 8, m, n)
    }

    fn new(function: Function, chunk: usize, m: usize, n: usize) -> Result<Self> {
        let number = |size: usize| u32::try_from(size).context("a result too large for the pass");
        Ok(Self { function, chunks: number(m * n / chunk)?, chunks_a_row: number(n / chunk)? })
    }

    /// # Safety
    ///
    /// `operands` are the addresses of y and what else the pass is of, of as many elements as it was made for, and nothing else touches
    /// them meanwhile.
    unsafe fn enqueue(&self, stream: &Stream, operands: &[u64]) -> Result<(), Error> {
        let operands: Vec<[u8; 8]> = operands.iter().map(|address| address.to_ne_bytes()).collect();
        let sizes = [self.chunks, self.chunks_a_row].map(u32::to_ne_bytes);
        let argument = |bytes: &[u8]| RawArg { data: bytes.as_ptr(), size: bytes.len() };
        let addresses = operands.iter().map(|bytes| argument(bytes));
        let arguments: Vec<RawArg> = addresses.chain(sizes.iter().map(|bytes| argument(bytes))).collect();
        let grid = [self.chunks.div_ceil(THREADS), 1, 1];
        // SAFETY: the arguments are of the types that the entry declares; the caller answers for the addresses.
        unsafe { self.function.launch(stream, grid, [THREADS, 1, 1], 0, &arguments) }
    }
}

/// A pass in PTX: the entry `name`, whose arguments are the addresses of its operands and how many chunks there are in all and in a row. A thread has one
/// chunk.
///
/// `body` finds the operands' addresses in `%d0` and on, in the global space; in `%r1` the chunks of a row, in `%r2` the chunk's number, and in `%r3` that
/// within its row. `registers` declares what else it uses, and all of `%r`, five at least.
fn entry(name: &str, operands: &[&str], registers: &str, body: &str) -> String {
    let of_each = |line: &dyn Fn(usize, &str) -> String| -> String {
        operands.iter().enumerate().map(|(index, operand)| line(index, operand)).collect()
    };
    let parameters = of_each(&|_, operand| format!("    .param .u64 {operand},\n"));
    let loads = of_each(&|index, operand| format!("    ld.param.u64 %d{index}, [{operand}];\n"));
    let addresses = of_each(&|index, _| format!("    cvta.to.global.u64 %d{index}, %d{index};\n"));
    let count = operands.len();
    format!(
        "\
.version 7.8
.target sm_80
.address_size 64

.visible .entry {name}(
{parameters}    .param .u32 chunks,
    .param .u32 chunks_a_row
)
{{
    .reg .pred %outside;
    .reg .b64 %d<{count}>;
{registers}
{loads}    ld.param.u32 %r0, [chunks];
    ld.param.u32 %r1, [chunks_a_row];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    setp.ge.u32 %outside, %r2, %r0;
    @%outside ret;
    rem.u32 %r3, %r2, %r1;
{addresses}{body}    ret;
}}
"
    )
}

/// The pass that scales in PTX, on chunks of 16 bytes.
fn scales_text(precision: Precision) -> String {
    let is_f16 = precision == Precision::F16;
    let compute: String = (0..4)
        .map(|word| {
            let (y, low, high) = (4 + word, 1 + 2 * word, 2 + 2 * word);
            let widen = if is_f16 {
                format!(
                    "    mov.b32 {{%h0, %h1}}, %r{y};
    cvt.f32.f16 %f9, %h0;
    cvt.f32.f16 %f10, %h1;
"
                )
            } else {
                format!(
                    "    shl.b32 %r0, %r{y}, 16;
    mov.b32 %f9, %r0;
    and.b32 %r0, %r{y}, 0xffff0000;
    mov.b32 %f10, %r0;
"
                )
            };
            let pair = if is_f16 { "f16x2" } else { "bf16x2" };
            format!(
                "{widen}    mul.rn.f32 %f9, %f9, %f0;
    mul.rn.f32 %f10, %f10, %f0;
    mul.rn.f32 %f9, %f9, %f{low};
    mul.rn.f32 %f10, %f10, %f{high};
    cvt.rn.{pair}.f32 %r{y}, %f10, %f9;
"
            )
        })
        .collect();
    let registers = "    .reg .b16 %h<2>;\n    .reg .b32 %r<8>;\n    .reg .f32 %f<11>;\n";
    let body = format!(
        "    div.u32 %r4, %r2, %r1;
    mad.wide.u32 %d0, %r2, 16, %d0;
    mad.wide.u32 %d1, %r4, 4, %d1;
    mad.wide.u32 %d2, %r3, 32, %d2;
    ld.global.nc.f32 %f0, [%d1];
    ld.global.nc.v4.f32 {{%f1, %f2, %f3, %f4}}, [%d2];
    ld.global.nc.v4.f32 {{%f5, %f6, %f7, %f8}}, [%d2+16];
    ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%d0];
{compute}    st.global.v4.b32 [%d0], {{%r4, %r5, %r6, %r7}};
"
    );
    entry("scales", &["y", "rows", "columns"], registers, &body)
}

/// The pass with a bias in PTX, on chunks of 16 bytes or on single elements.
fn bias_relu_text(precision: Precision, vector: bool) -> String {
    // The type of the arithmetic and the number one in it, of which a 32-bit register holds one or two.
    let (arithmetic, one, scalar) = match precision {
        Precision::Bf16 | Precision::F8 | Precision::F8Mixed => ("bf16x2", "0x3f803f80", "b16"),
        Precision::F16 => ("f16x2", "0x3c003c00", "b16"),
        Precision::Tf32 | Precision::F32 | Precision::Bf16ToF32 => ("f32", "0x3f800000", "b32"),
    };
    let (bytes, words) = if vector { (16, 4) } else { (precision.output_bytes(), 1) };
    let list = |first: usize| {
        let names: Vec<_> = (first..first + words).map(|index| format!("%r{index}")).collect();
        names.join(", ")
    };
    let (load, store) = match (vector, scalar) {
        (true, _) => (
            format!(
                "ld.global.v4.b32 {{{}}}, [%d0];\n    ld.global.nc.v4.b32 {{{}}}, [%d1];",
                list(8),
                list(12)
            ),
            format!("st.global.v4.b32 [%d0], {{{}}};", list(8)),
        ),
        (false, "b16") => (
            "ld.global.b16 %h0, [%d0];\n    ld.global.nc.b16 %h1, [%d1];\n    mov.b32 %r8, {%h0, %h0};\n    \
             mov.b32 %r12, {%h1, %h1};"
                .to_owned(),
            "mov.b32 {%h0, %h1}, %r8;\n    st.global.b16 [%d0], %h0;".to_owned(),
        ),
        (false, _) => (
            "ld.global.b32 %r8, [%d0];\n    ld.global.nc.b32 %r12, [%d1];".to_owned(),
            "st.global.b32 [%d0], %r8;".to_owned(),
        ),
    };
    let compute: String = (8..8 + words)
        .map(|y| {
            let bias = y + 4;
            format!(
                "    fma.rn.{arithmetic} %r{y}, %r{y}, %r5, %r{bias};\n    max.{arithmetic} %r{y}, %r{y}, %r6;\n"
            )
        })
        .collect();
    let registers = "    .reg .b16 %h<2>;\n    .reg .b32 %r<16>;\n";
    let body = format!(
        "    mad.wide.u32 %d0, %r2, {bytes}, %d0;
    mad.wide.u32 %d1, %r3, {bytes}, %d1;
    mov.b32 %r5, {one};
    mov.b32 %r6, 0;
    {load}
{compute}    {store}
"
    );
    entry("bias_relu", &["y", "bias"], registers, &body)
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use warpsmith::{Device, Element, Tensor};

    use super::Pass;
    use crate::bench::case::Precision;

    #[test]
    fn the_pass_adds_the_bias_of_each_column_and_cuts_at_zero() {
        let device = Device::emulator();
        let stream = device.default_stream();
        for (m, n) in [(3, 16), (5, 7), (1, 1), (40, 24)] {
            let y: Vec<f32> = (0..m * n).map(|index| (index % 13) as f32 - 6.0).collect();
            let bias: Vec<f32> = (0..n).map(|index| (index % 5) as f32 - 2.0).collect();
            let expected: Vec<f32> = (0..m * n).map(|index| (y[index] + bias[index % n]).max(0.0)).collect();
            let narrow =
                |values: &[f32]| values.iter().map(|&value| bf16::from_f32(value)).collect::<Vec<_>>();

            let pass = Pass::bias_relu(&device, Precision::Bf16, m, n).expect("valid PTX");
            let mut result = Tensor::from_slice(&device, &narrow(&y), [m, n]).expect("memory");
            let narrow_bias = Tensor::from_slice(&device, &narrow(&bias), [n]).expect("memory");
            let addresses = (result.arg_mut().address(), narrow_bias.arg().address());
            // SAFETY: both tensors are alive and of the sizes that the pass was made for.
            unsafe { pass.enqueue(&stream, &[addresses.0, addresses.1]) }.expect("no finding");
            assert_eq!(result.to_vec().expect("copied"), narrow(&expected), "bf16 {m}×{n}");

            let pass = Pass::bias_relu(&device, Precision::F32, m, n).expect("valid PTX");
            let mut result = Tensor::from_slice(&device, &y, [m, n]).expect("memory");
            let wide_bias = Tensor::from_slice(&device, &bias, [n]).expect("memory");
            let addresses = (result.arg_mut().address(), wide_bias.arg().address());
            // SAFETY: as above.
            unsafe { pass.enqueue(&stream, &[addresses.0, addresses.1]) }.expect("no finding");
            assert_eq!(result.to_vec().expect("copied"), expected, "f32 {m}×{n}");
        }
    }

    #[test]
    fn the_other_pass_multiplies_rows_and_columns() {
        scales_are_applied(Precision::Bf16, bf16::from_f32, bf16::to_f32);
        scales_are_applied(Precision::F8, bf16::from_f32, bf16::to_f32);
        scales_are_applied(Precision::F16, f16::from_f32, f16::to_f32);
    }

    fn scales_are_applied<T: Element>(precision: Precision, narrow: fn(f32) -> T, wide: fn(T) -> f32) {
        let device = Device::emulator();
        let stream = device.default_stream();
        for (m, n) in [(3, 16), (40, 24), (1, 8)] {
            let y: Vec<T> = (0..m * n).map(|index| narrow((index % 13) as f32 - 6.0)).collect();
            let rows: Vec<f32> = (0..m).map(|index| 1.5 - index as f32).collect();
            let columns: Vec<f32> = (0..n).map(|index| 0.3 * index as f32).collect();
            let scaled = |index: usize| wide(y[index]) * rows[index / n] * columns[index % n];
            let expected: Vec<T> = (0..m * n).map(|index| narrow(scaled(index))).collect();
            let pass = Pass::scales(&device, precision, m, n).expect("valid PTX");
            let mut result = Tensor::from_slice(&device, &y, [m, n]).expect("memory");
            let rows = Tensor::from_slice(&device, &rows, [m]).expect("memory");
            let columns = Tensor::from_slice(&device, &columns, [n]).expect("memory");
            let addresses = [result.arg_mut().address(), rows.arg().address(), columns.arg().address()];
            // SAFETY: the tensors are alive and of the sizes that the pass was made for.
            unsafe { pass.enqueue(&stream, &addresses) }.expect("no finding");
            assert_eq!(result.to_vec().expect("copied"), expected, "{} {m}×{n}", precision.name());
        }
    }
}
