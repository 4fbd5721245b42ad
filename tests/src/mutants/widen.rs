//! How the kernels that widen 8-bit floats to f16 are run: on rows of every number of chunks around those that the threads of a
//! block copy at a time, with all finite numbers.

use half::f16;
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_emulator::{Config, LaunchConfig, LaunchError, Machine, Module, Report};
use warpsmith_kernels::linear_fp8::{WIDEN_CHUNK, WIDEN_THREADS, WidenParams};

use super::{Problem, launch};

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let mantissa_bits = match name.strip_prefix("widen_fp8_")? {
        "e4m3" => 3,
        "e5m2" => 2,
        _ => return None,
    };
    let sizes = [(1, 1), (3, 2), (2, 33), (2, WIDEN_THREADS - 1), (1, WIDEN_THREADS), (3, WIDEN_THREADS + 1)];
    let case = |(rows, chunks)| Box::new(Case { rows, chunks, mantissa_bits }) as Box<dyn Problem>;
    Some(sizes.into_iter().map(case).collect())
}

struct Case {
    rows: u32,
    chunks: u32,
    mantissa_bits: u32,
}

impl Case {
    /// The number of some bits, and whether it is finite.
    fn number(&self, bits: u8) -> Option<f32> {
        let exponent_bits = 7 - self.mantissa_bits;
        let bias = (1 << (exponent_bits - 1)) - 1;
        let (magnitude, sign) = (u32::from(bits & 0x7f), if bits < 0x80 { 1.0 } else { -1.0 });
        let exponent = (magnitude >> self.mantissa_bits) as i32;
        let mantissa = (magnitude & ((1 << self.mantissa_bits) - 1)) as f32;
        let is_finite = if self.mantissa_bits == 3 { magnitude != 0x7f } else { exponent != 31 };
        let scale = 2f32.powi(-(self.mantissa_bits as i32));
        let value = match exponent {
            0 => mantissa * scale * 2f32.powi(1 - bias),
            _ => (1.0 + mantissa * scale) * 2f32.powi(exponent - bias),
        };
        is_finite.then_some(sign * value)
    }
}

impl Problem for Case {
    fn name(&self) -> &str {
        "rows of all finite numbers"
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let columns = self.chunks * WIDEN_CHUNK;
        // A chunk between the rows, and nothing after the last.
        let stride = columns + WIDEN_CHUNK;
        let finite: Vec<u8> = (0..=u8::MAX).filter(|&bits| self.number(bits).is_some()).collect();
        let length = (stride * (self.rows - 1) + columns) as usize;
        let source: Vec<u8> = (0..length).map(|at| finite[at * 7 % finite.len()]).collect();
        let element = |at: u32| {
            let bits = source[(at / columns * stride + at % columns) as usize];
            f16::from_f32(self.number(bits).unwrap_or(f32::NAN)).to_le_bytes()
        };
        let expected: Vec<u8> = (0..self.rows * columns).flat_map(element).collect();

        let machine = Machine::new(config);
        let (from, to) = (machine.allocate(source.len() as u64)?, machine.allocate(expected.len() as u64)?);
        machine.write(from, &source)?;
        let Some(kernel) = module.kernels().next() else { return Ok((Report::default(), false)) };
        let config = LaunchConfig {
            grid: [self.rows, 1, 1],
            block: kernel.reqntid.unwrap_or([1; 3]),
            dynamic_shared: shared_bytes,
            ..LaunchConfig::default()
        };
        let params = WidenParams { stride: stride.into(), chunks: self.chunks, reserved: 0 };
        let arguments = (Global::<u8>::new(from), GlobalMut::<u8>::new(to), params);
        let report = launch(&machine, module, &kernel.name, &config, arguments)?;
        let mut copy = vec![0; expected.len()];
        machine.read(to, &mut copy)?;
        Ok((report, copy == expected))
    }
}
