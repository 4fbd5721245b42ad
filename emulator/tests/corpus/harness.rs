//! A case: a launch of a kernel, and what it must leave.

use warpsmith_emulator::{Config, LaunchConfig, Machine, Module};

/// Words of the input, whatever n is.
pub(crate) const INPUT: usize = 8192;

/// What a kernel must leave.
pub(crate) enum Expected {
    Words(Vec<u32>),
    /// Values, and by how much each may be missed.
    Floats(Vec<(f64, f64)>),
    Doubles(Vec<(f64, f64)>),
    /// Halves, likewise.
    Halves(Vec<(f64, f64)>),
}

/// A launch and what it must leave.
pub(crate) struct Case {
    pub(crate) file: &'static str,
    pub(crate) kernel: &'static str,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    n: u32,
    expected: Expected,
    printed: String,
    /// The arguments are the buffers and n, then what Triton adds.
    triton: bool,
    /// Two warps write the same values to the same bytes.
    repeats: bool,
    /// The output's first contents.
    before: Vec<u8>,
}

/// The words of the input: the same in every run.
pub(crate) fn input() -> Vec<u32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 ^ (state >> 17) as u32
    };
    (0..INPUT).map(next).collect()
}

impl Case {
    /// A launch of `n` threads in blocks of 128, whose output begins as zeros.
    pub(crate) fn new(file: &'static str, kernel: &'static str, n: u32, expected: Expected) -> Self {
        let bytes = match &expected {
            Expected::Words(words) => words.len() * 4,
            Expected::Floats(values) => values.len() * 4,
            Expected::Doubles(values) => values.len() * 8,
            Expected::Halves(values) => values.len() * 2,
        };
        Self {
            file,
            kernel,
            grid: [n.div_ceil(128), 1, 1],
            block: [128, 1, 1],
            shared: 0,
            n,
            expected,
            printed: String::new(),
            triton: false,
            repeats: false,
            before: vec![0; bytes],
        }
    }

    pub(crate) fn shape(self, grid: [u32; 2], block: [u32; 2]) -> Self {
        Self { grid: [grid[0], grid[1], 1], block: [block[0], block[1], 1], ..self }
    }

    pub(crate) fn shared(self, shared: u32) -> Self {
        Self { shared, ..self }
    }

    pub(crate) fn prints(self, printed: String) -> Self {
        Self { printed, ..self }
    }

    pub(crate) fn triton(self) -> Self {
        Self { triton: true, ..self }
    }

    pub(crate) fn repeats(self) -> Self {
        Self { repeats: true, ..self }
    }

    /// Words that the output has before the launch.
    pub(crate) fn begins_with(mut self, words: &[u32]) -> Self {
        for (to, word) in self.before.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        self
    }

    /// Launches the kernel of a module; what is wrong, in words.
    pub(crate) fn run(&self, module: &Module) -> Result<(), String> {
        let mut config = match module.target() {
            "sm_75" => Config { compute_capability: (7, 5), ..Config::default() },
            "sm_80" => Config::default(),
            _ => Config::hopper(),
        };
        config.checks.equal_writes &= !self.repeats;
        let machine = Machine::new(config);
        let put = |bytes: &[u8]| {
            let at = machine.allocate(bytes.len() as u64).map_err(|e| e.to_string())?;
            machine.write(at, bytes).map_err(|e| e.to_string())?;
            Ok::<u64, String>(at)
        };
        let words: Vec<u8> = input().iter().flat_map(|word| word.to_le_bytes()).collect();
        let (x, y) = (put(&words)?.to_le_bytes(), put(&self.before)?);
        let (to, n, nothing) = (y.to_le_bytes(), self.n.to_le_bytes(), [0; 8]);
        let mut arguments: Vec<&[u8]> = vec![&x, &to, &n];
        if self.triton {
            // Triton passes scratch memory, which these kernels do not use.
            let parameters = module.kernel(self.kernel).map_or(0, |kernel| kernel.params.len());
            arguments.resize(parameters, &nothing);
        }
        let (grid, block, dynamic_shared) = (self.grid, self.block, self.shared);
        let launch = LaunchConfig { grid, block, dynamic_shared, ..LaunchConfig::default() };
        machine.launch(module, self.kernel, &launch, &arguments).map_err(|error| error.to_string())?;
        let mut bytes = vec![0; self.before.len()];
        machine.read(y, &mut bytes).map_err(|e| e.to_string())?;
        self.compare(&bytes)?;
        let printed = machine.take_printed();
        if printed == self.printed {
            Ok(())
        } else {
            Err(format!("printed {printed:?}, expected {:?}", self.printed))
        }
    }

    fn compare(&self, bytes: &[u8]) -> Result<(), String> {
        let near = |got: Vec<f64>, expected: &[(f64, f64)]| {
            let wrong = got.iter().zip(expected).position(|(got, (value, bound))| {
                !((got - value).abs() <= *bound || got == value || got.is_nan() && value.is_nan())
            });
            match wrong {
                None => Ok(()),
                Some(i) => Err(format!(
                    "element {i} is {:e}, expected {:e} within {:e}",
                    got[i], expected[i].0, expected[i].1
                )),
            }
        };
        match &self.expected {
            Expected::Words(expected) => {
                let got: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|c| u32::from_le_bytes(*c)).collect();
                match got.iter().zip(expected).position(|(got, expected)| got != expected) {
                    None => Ok(()),
                    Some(i) => Err(format!("element {i} is {:#x}, expected {:#x}", got[i], expected[i])),
                }
            }
            Expected::Floats(expected) => {
                let got = bytes.as_chunks::<4>().0.iter().map(|c| f64::from(f32::from_le_bytes(*c)));
                near(got.collect(), expected)
            }
            Expected::Doubles(expected) => {
                near(bytes.as_chunks::<8>().0.iter().map(|c| f64::from_le_bytes(*c)).collect(), expected)
            }
            Expected::Halves(expected) => {
                let half = |c: &[u8; 2]| half::f16::from_bits(u16::from_le_bytes(*c)).to_f64();
                near(bytes.as_chunks::<2>().0.iter().map(half).collect(), expected)
            }
        }
    }
}

/// Threads of most cases: not a multiple of a warp.
pub(crate) const N: usize = 1003;

/// A case in which thread i leaves the word that `f` gives of the input and i.
pub(crate) fn each(file: &'static str, kernel: &'static str, f: impl Fn(&[u32], usize) -> u32) -> Case {
    each_of(file, kernel, N, f)
}

/// As above, for so many threads.
pub(crate) fn each_of(
    file: &'static str,
    kernel: &'static str,
    n: usize,
    f: impl Fn(&[u32], usize) -> u32,
) -> Case {
    let x = input();
    Case::new(file, kernel, n as u32, Expected::Words((0..n).map(|i| f(&x[..n], i)).collect()))
}

/// A case that leaves these words.
pub(crate) fn words(file: &'static str, kernel: &'static str, n: usize, expected: Vec<u32>) -> Case {
    Case::new(file, kernel, n as u32, Expected::Words(expected))
}
