//! The unfused sequence: a plain product, then a pass over its result that adds the bias and applies ReLU.
//!
//! The pass is what a framework's own would be: 16 bytes a thread, read and written once. It exists to be compared with, so it
//! is written here in PTX rather than shipped among the kernels.

use std::rc::Rc;

use anyhow::{Context, Result};
use warpsmith::benchmark::Subject;
use warpsmith::kernel::RawArg;
use warpsmith::{Device, Error, Function, Stream};

use super::case::{Operation, Precision};
use super::cublaslt::Product;
use super::operands::Operands;

const THREADS: u32 = 256;

/// A product and the pass after it.
pub(super) struct Unfused {
    product: Product,
    pass: Pass,
    operands: Rc<Operands>,
    stream: Stream,
}

impl Unfused {
    /// The sequence that computes what the fused operation `linear bias relu` does.
    pub(super) fn new(stream: &Stream, product: Product, operands: &Rc<Operands>) -> Result<Self> {
        let [m, _, n] = operands.case.shape;
        let pass = Pass::new(stream.device(), operands.case.precision, m, n)?;
        let mut unfused = Self { product, pass, operands: operands.clone(), stream: stream.clone() };
        unfused.enqueue(0)?;
        stream.synchronize()?;
        operands.check(Operation::BIAS_RELU).context("a product and a pass compute something else")?;
        Ok(unfused)
    }
}

impl Subject for Unfused {
    fn enqueue(&mut self, index: usize) -> Result<(), Error> {
        self.product.enqueue(index)?;
        let addresses = self.operands.addresses(index);
        // SAFETY: both are live memory of the sizes that the pass was made for, and the stream orders the pass after the
        // product.
        unsafe { self.pass.enqueue(&self.stream, addresses.y, addresses.bias) }
    }
}

/// `y = max(y + bias, 0)`, in place.
struct Pass {
    function: Function,
    chunks: u32,
    chunks_a_row: u32,
}

impl Pass {
    fn new(device: &Device, precision: Precision, m: usize, n: usize) -> Result<Self> {
        let chunk = 16 / precision.output_bytes();
        // Chunks that would reach into the next row are single elements instead.
        let chunk = if n.is_multiple_of(chunk) { chunk } else { 1 };
        let module = device.load_ptx("bias_relu", &text(precision, chunk > 1))?;
        let number = |size: usize| u32::try_from(size).context("a result too large for the pass");
        Ok(Self {
            function: module.function("bias_relu")?,
            chunks: number(m * n / chunk)?,
            chunks_a_row: number(n / chunk)?,
        })
    }

    /// # Safety
    ///
    /// `y` and `bias` are addresses of as many elements as the pass was made for, and nothing else touches them meanwhile.
    unsafe fn enqueue(&self, stream: &Stream, y: u64, bias: u64) -> Result<(), Error> {
        let argument = |bytes: &[u8]| RawArg { data: bytes.as_ptr(), size: bytes.len() };
        let (y, bias) = (y.to_ne_bytes(), bias.to_ne_bytes());
        let (chunks, chunks_a_row) = (self.chunks.to_ne_bytes(), self.chunks_a_row.to_ne_bytes());
        let arguments = [argument(&y), argument(&bias), argument(&chunks), argument(&chunks_a_row)];
        let grid = [self.chunks.div_ceil(THREADS), 1, 1];
        // SAFETY: the arguments are of the types that the entry declares; the caller answers for the addresses.
        unsafe { self.function.launch(stream, grid, [THREADS, 1, 1], 0, &arguments) }
    }
}

/// The pass in PTX, on chunks of 16 bytes or on single elements.
fn text(precision: Precision, vector: bool) -> String {
    // The type of the arithmetic and the number one in it, of which a 32-bit register holds one or two.
    let (arithmetic, one, scalar) = match precision {
        Precision::Bf16 | Precision::F8 => ("bf16x2", "0x3f803f80", "b16"),
        Precision::F16 => ("f16x2", "0x3c003c00", "b16"),
        Precision::Tf32 | Precision::F32 => ("f32", "0x3f800000", "b32"),
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
    format!(
        "\
.version 7.8
.target sm_80
.address_size 64

.visible .entry bias_relu(
    .param .u64 y,
    .param .u64 bias,
    .param .u32 chunks,
    .param .u32 chunks_a_row
)
{{
    .reg .pred %outside;
    .reg .b16 %h<2>;
    .reg .b32 %r<16>;
    .reg .b64 %d<2>;

    ld.param.u64 %d0, [y];
    ld.param.u64 %d1, [bias];
    ld.param.u32 %r0, [chunks];
    ld.param.u32 %r1, [chunks_a_row];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    setp.ge.u32 %outside, %r2, %r0;
    @%outside ret;
    rem.u32 %r3, %r2, %r1;
    cvta.to.global.u64 %d0, %d0;
    cvta.to.global.u64 %d1, %d1;
    mad.wide.u32 %d0, %r2, {bytes}, %d0;
    mad.wide.u32 %d1, %r3, {bytes}, %d1;
    mov.b32 %r5, {one};
    mov.b32 %r6, 0;
    {load}
{compute}    {store}
    ret;
}}
"
    )
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use warpsmith::{Device, Tensor};

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

            let pass = Pass::new(&device, Precision::Bf16, m, n).expect("valid PTX");
            let mut result = Tensor::from_slice(&device, &narrow(&y), [m, n]).expect("memory");
            let narrow_bias = Tensor::from_slice(&device, &narrow(&bias), [n]).expect("memory");
            let addresses = (result.arg_mut().address(), narrow_bias.arg().address());
            // SAFETY: both tensors are alive and of the sizes that the pass was made for.
            unsafe { pass.enqueue(&stream, addresses.0, addresses.1) }.expect("no finding");
            assert_eq!(result.to_vec().expect("copied"), narrow(&expected), "bf16 {m}×{n}");

            let pass = Pass::new(&device, Precision::F32, m, n).expect("valid PTX");
            let mut result = Tensor::from_slice(&device, &y, [m, n]).expect("memory");
            let wide_bias = Tensor::from_slice(&device, &bias, [n]).expect("memory");
            let addresses = (result.arg_mut().address(), wide_bias.arg().address());
            // SAFETY: as above.
            unsafe { pass.enqueue(&stream, addresses.0, addresses.1) }.expect("no finding");
            assert_eq!(result.to_vec().expect("copied"), expected, "f32 {m}×{n}");
        }
    }
}
