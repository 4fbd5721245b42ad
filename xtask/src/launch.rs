//! Running PTX that was generated: one entry, one buffer in, one out.

use anyhow::{Context as _, Result, bail};
use warpsmith::emulator::Numerics;
use warpsmith::kernel::RawArg;
use warpsmith::{Device, EmulatorOptions, Error, Module, Tensor};

/// The first lines of a generated module.
pub(crate) const HEADER: &str = ".version 8.6\n.target sm_90\n.address_size 64\n";

/// A launch of a generated entry, whose parameters are the addresses of its inputs and its outputs.
pub(crate) struct Program<'a> {
    pub(crate) entry: &'a str,
    pub(crate) grid: u32,
    pub(crate) block: u32,
    pub(crate) inputs: &'a [u64],
    /// How many values come back; they are zeros before.
    pub(crate) outputs: usize,
}

/// Opens a device that runs PTX.
pub(crate) fn open(name: &str) -> Result<Device> {
    if name == "emulator" {
        return Ok(emulator(EmulatorOptions::default()));
    }
    match name.parse() {
        Err(error @ (Error::NoDriver { .. } | Error::NoSuchDevice { .. })) => {
            bail!("this compares with a GPU, and there is none here: {error}; `--device emulator` needs none")
        }
        Ok(device) => Ok(device),
        Err(error) => Err(error).with_context(|| format!("opening device `{name}`")),
    }
}

/// An emulated GPU of the generation that the generated modules are for, with the tensor cores' own sums.
pub(crate) fn emulator(options: EmulatorOptions) -> Device {
    Device::emulator_with(EmulatorOptions {
        compute_capability: (9, 0),
        numerics: Numerics::Exact,
        ..options
    })
}

/// Runs a program: its outputs.
pub(crate) fn run(device: &Device, module: &Module, program: &Program<'_>) -> Result<Vec<u64>> {
    let function = module.function(program.entry)?;
    let signed = |values: &[u64]| values.iter().map(|v| v.cast_signed()).collect::<Vec<_>>();
    let mut inputs = Tensor::from_slice(device, &signed(program.inputs), [program.inputs.len()])?;
    let mut outputs = Tensor::<i64>::zeros(device, [program.outputs])?;
    let addresses = [inputs.arg_mut().address(), outputs.arg_mut().address()];
    let arguments =
        addresses.each_ref().map(|a| RawArg { data: std::ptr::from_ref(a).cast(), size: size_of_val(a) });
    let stream = device.default_stream();
    // SAFETY: generated entries take the two addresses, and reach no further than the sizes they were generated for,
    // which are those of the tensors; both live until the results are read.
    unsafe { function.launch(&stream, [program.grid, 1, 1], [program.block, 1, 1], 0, &arguments)? };
    Ok(outputs.to_vec()?.into_iter().map(i64::cast_unsigned).collect())
}
