//! Tests of a kernel in a few lines: arguments as slices, every mode of completion, and one result or the reason why not.
//!
//! What a GPU leaves open – when asynchronous copies land, which warp goes first – must not matter. [`KernelTest::check`] runs a
//! kernel with copies that land at once, as late as possible and at random, and compares.
//!
//! ```
//! use warpsmith_emulator::{KernelTest, Module};
//!
//! let ptx = "
//! .version 7.0
//! .target sm_80
//! .visible .entry scale(.param .u64 y, .param .u64 x, .param .f32 factor) {
//!     .reg .b32 %t, %v, %f;
//!     .reg .b64 %x, %y;
//!     ld.param.u64 %x, [x];
//!     ld.param.u64 %y, [y];
//!     ld.param.f32 %f, [factor];
//!     mov.u32 %t, %tid.x;
//!     mad.wide.u32 %x, %t, 4, %x;
//!     mad.wide.u32 %y, %t, 4, %y;
//!     ld.global.f32 %v, [%x];
//!     mul.rn.f32 %v, %v, %f;
//!     st.global.f32 [%y], %v;
//! }";
//! let module = Module::parse("scale.ptx", ptx)?;
//! let outputs = KernelTest::new(&module, "scale")
//!     .block([64, 1, 1])
//!     .output::<f32>(64)
//!     .input(&[1.5f32; 64])
//!     .value(2.0f32)
//!     .check()?;
//! assert_eq!(outputs.read::<f32>(0), [3.0; 64]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use half::{bf16, f16};

use crate::config::{Completion, Config};
use crate::error::{LaunchError, shown_when_debugged};
use crate::machine::{LaunchConfig, Machine};
use crate::module::Module;

/// A number that kernels take and give.
pub trait Scalar: Copy + sealed::Sealed {
    /// Appends its bytes.
    fn push(self, to: &mut Vec<u8>);
    /// Its name in Rust.
    const NAME: &'static str;
    /// The number of these bytes, of which there are as many as it has.
    fn read(from: &[u8]) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! scalars {
    ($($scalar:ty),*) => {
        $(
            impl sealed::Sealed for $scalar {}
            impl Scalar for $scalar {
                const NAME: &'static str = stringify!($scalar);
                fn push(self, to: &mut Vec<u8>) {
                    to.extend(self.to_le_bytes());
                }
                fn read(from: &[u8]) -> Self {
                    let mut bytes = [0; size_of::<Self>()];
                    bytes.copy_from_slice(from);
                    Self::from_le_bytes(bytes)
                }
            }
        )*
    };
}
scalars!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, f16, bf16);

fn bytes_of<T: Scalar>(values: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(values));
    values.iter().for_each(|value| value.push(&mut bytes));
    bytes
}

#[derive(Clone, Debug)]
enum Argument {
    /// Bytes that the kernel gets as they are, and the type of the number that they are, if they are one.
    Value(Vec<u8>, Option<&'static str>),
    /// A buffer with these contents; whether it is a result.
    Filled(Vec<u8>, bool),
    /// A buffer of so many bytes, uninitialised; it is a result.
    Empty(usize),
}

/// A kernel and a launch of it, to be tested. See the [crate's documentation](crate) for an example.
///
/// Arguments are given in the order of the kernel's parameters.
#[derive(Clone, Debug)]
pub struct KernelTest<'m> {
    module: &'m Module,
    kernel: String,
    launch: LaunchConfig,
    config: Config,
    arguments: Vec<Argument>,
}

impl<'m> KernelTest<'m> {
    /// A test of an entry, on one block of the shape that it requires, or of one thread.
    ///
    /// The machine is an A100, or an H100 for a module that needs one.
    #[must_use]
    pub fn new(module: &'m Module, kernel: &str) -> Self {
        let info = module.kernel(kernel);
        let block = info.and_then(|info| info.reqntid).unwrap_or([1; 3]);
        let dynamic_shared = info.and_then(|info| info.dynamic_shared).unwrap_or(0);
        let config = if module.runs_on((8, 0)) { Config::default() } else { Config::hopper() };
        Self {
            module,
            kernel: kernel.to_owned(),
            launch: LaunchConfig { block, dynamic_shared, ..LaunchConfig::default() },
            config,
            arguments: Vec::new(),
        }
    }

    /// Blocks along x, y and z.
    #[must_use]
    pub fn grid(mut self, grid: [u32; 3]) -> Self {
        self.launch.grid = grid;
        self
    }

    /// Threads of a block along x, y and z.
    #[must_use]
    pub fn block(mut self, block: [u32; 3]) -> Self {
        self.launch.block = block;
        self
    }

    /// Blocks of a cluster along x, y and z.
    #[must_use]
    pub fn cluster(mut self, cluster: [u32; 3]) -> Self {
        self.launch.cluster = cluster;
        self
    }

    /// Bytes of dynamic shared memory, in place of what the PTX says ([`KernelInfo::dynamic_shared`](crate::KernelInfo::dynamic_shared)).
    /// What its variables take comes on top.
    #[must_use]
    pub fn dynamic_shared(mut self, bytes: u32) -> Self {
        self.launch.dynamic_shared = bytes;
        self
    }

    /// The machine: all of it but the mode of completion and the seed, which [`check`](Self::check) chooses.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Next argument: a buffer with these elements, which the kernel only reads. A write to it is a finding.
    #[must_use]
    pub fn input<T: Scalar>(mut self, values: &[T]) -> Self {
        self.arguments.push(Argument::Filled(bytes_of(values), false));
        self
    }

    /// Next argument: a buffer with these elements, which the kernel changes.
    #[must_use]
    pub fn in_place<T: Scalar>(mut self, values: &[T]) -> Self {
        self.arguments.push(Argument::Filled(bytes_of(values), true));
        self
    }

    /// Next argument: an uninitialised buffer for so many elements, which the kernel writes.
    #[must_use]
    pub fn output<T: Scalar>(mut self, elements: usize) -> Self {
        self.arguments.push(Argument::Empty(elements.saturating_mul(size_of::<T>())));
        self
    }

    /// Next argument: a number.
    #[must_use]
    pub fn value<T: Scalar>(mut self, value: T) -> Self {
        self.arguments.push(Argument::Value(bytes_of(&[value]), Some(T::NAME)));
        self
    }

    /// Next argument: a struct or a tensor map, as bytes.
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.arguments.push(Argument::Value(bytes.to_vec(), None));
        self
    }

    /// Runs the kernel once, with the mode and the seed of its [`config`](Self::config).
    ///
    /// # Errors
    ///
    /// [`TestError::Launch`] if a check reports something or the launch is refused.
    pub fn run(&self) -> Result<Outputs, TestError> {
        self.run_as(self.config.completion, self.config.seed)
    }

    /// Runs the kernel in every mode of completion, with several seeds, and compares the results byte by byte.
    ///
    /// # Errors
    ///
    /// [`TestError::Launch`] if a check reports something or the launch is refused, [`TestError::Differs`] if two modes
    /// have different results.
    pub fn check(&self) -> Result<Outputs, TestError> {
        const OTHERS: [(Completion, u64); 5] = [
            (Completion::Eager, 0),
            (Completion::Random, 1),
            (Completion::Random, 2),
            (Completion::Random, 3),
            (Completion::Random, 4),
        ];
        let expected = self.run_as(Completion::Latest, 0)?;
        for (completion, seed) in OTHERS {
            let outputs = self.run_as(completion, seed)?;
            let pairs = expected.buffers.iter().zip(&outputs.buffers);
            for (output, (a, b)) in pairs.enumerate() {
                if let Some(byte) = a.iter().zip(b).position(|(a, b)| a != b) {
                    return Err(TestError::Differs { completion, seed, output, byte });
                }
            }
        }
        Ok(expected)
    }

    /// Compares the arguments with the types of the parameters. Their number is the launch's matter.
    fn check_arguments(&self) -> Result<(), TestError> {
        let Some(info) = self.module.kernel(&self.kernel) else { return Ok(()) };
        for (index, (param, argument)) in info.params.iter().zip(&self.arguments).enumerate() {
            let ty = param.ty.as_str();
            let is_float = ty.starts_with(".f") || ty.starts_with(".bf");
            let is_integer = ty.starts_with(".u") || ty.starts_with(".s");
            let (fits, actual) = match argument {
                Argument::Value(bytes, None) => {
                    (bytes.len() == param.size, format!("a value of {} bytes", bytes.len()))
                }
                Argument::Value(bytes, Some(name)) => {
                    let float = name.contains('f');
                    // PTX passes 16-bit floats as integers, too.
                    let kind = !(is_float && !float || is_integer && float && bytes.len() > 2);
                    (bytes.len() == param.size && kind, format!("a value of type {name}"))
                }
                Argument::Filled(..) | Argument::Empty(_) => (
                    param.size == 8 && !is_float && !ty.ends_with("[]"),
                    "the address of a buffer".to_owned(),
                ),
            };
            if !fits {
                return Err(TestError::Argument {
                    kernel: self.kernel.clone(),
                    argument: info.argument(index),
                    expected: format!("a parameter `{ty}` of {} bytes", param.size),
                    actual,
                });
            }
        }
        Ok(())
    }

    fn run_as(&self, completion: Completion, seed: u64) -> Result<Outputs, TestError> {
        let failed = |error: LaunchError| TestError::Launch { completion, seed, error };
        self.check_arguments()?;
        let machine = Machine::new(Config { completion, seed, ..self.config.clone() });
        let (mut values, mut results) = (Vec::new(), Vec::new());
        for argument in &self.arguments {
            let (length, contents, is_result) = match argument {
                Argument::Value(bytes, _) => {
                    values.push(bytes.clone());
                    continue;
                }
                Argument::Filled(contents, false) => {
                    let address = machine.allocate_input(contents).map_err(|error| failed(error.into()))?;
                    values.push(address.to_le_bytes().to_vec());
                    continue;
                }
                Argument::Filled(contents, true) => (contents.len(), Some(contents), true),
                Argument::Empty(length) => (*length, None, true),
            };
            let address = machine.allocate(length as u64).map_err(|error| failed(error.into()))?;
            if let Some(contents) = contents {
                machine.write(address, contents).map_err(|error| failed(error.into()))?;
            }
            values.push(address.to_le_bytes().to_vec());
            if is_result {
                results.push((address, length));
            }
        }
        let arguments: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        machine.launch(self.module, &self.kernel, &self.launch, &arguments).map_err(failed)?;
        let mut buffers = Vec::new();
        for (address, length) in results {
            let mut bytes = vec![0; length];
            machine.read(address, &mut bytes).map_err(|error| failed(error.into()))?;
            buffers.push(bytes);
        }
        Ok(Outputs { buffers })
    }
}

shown_when_debugged!(TestError);

/// What a kernel wrote: its outputs and the buffers that it changes, in the order of the arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outputs {
    buffers: Vec<Vec<u8>>,
}

impl Outputs {
    /// The elements of the output with this number, counted from 0; bytes that make no whole element are left out.
    ///
    /// # Panics
    ///
    /// If there is no such output.
    #[must_use]
    pub fn read<T: Scalar>(&self, output: usize) -> Vec<T> {
        assert!(output < self.buffers.len(), "there is no output {output}, but {}", self.buffers.len());
        self.buffers[output].chunks_exact(size_of::<T>()).map(T::read).collect()
    }
}

/// Why a test failed.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TestError {
    /// An argument is not of its parameter's type.
    #[error("{argument} of kernel `{kernel}`: expected what fits {expected}, got {actual}")]
    Argument {
        /// The kernel.
        kernel: String,
        /// The argument, counted from 1, with the parameter's name if the text has it.
        argument: String,
        /// What the PTX declares.
        expected: String,
        /// What was given.
        actual: String,
    },
    /// A check reported something, or the launch was refused.
    #[error("with asynchronous operations that complete {completion:?}, seed {seed}:\n{error}")]
    Launch {
        /// The mode.
        completion: Completion,
        /// The seed.
        seed: u64,
        /// What is wrong.
        error: LaunchError,
    },
    /// The result depends on what a GPU leaves open.
    #[error(
        "byte {byte} of output {output} is not the same with asynchronous operations that complete {completion:?}, \
         seed {seed}, as with those that complete as late as they can"
    )]
    Differs {
        /// The mode.
        completion: Completion,
        /// The seed.
        seed: u64,
        /// The number of the output, from 0.
        output: usize,
        /// The first byte of it that differs.
        byte: usize,
    },
}
