//! Broken kernels must be found: each mutant is the PTX that ships with one thing wrong, and the emulator has to report it or give
//! a wrong result that validation sees.
//!
//! The mutants are made from the text of one entry, so they follow the kernel when it is compiled anew; a kind of mutant that no
//! longer finds its place fails.

use std::sync::Arc;

use half::f16;
use libtest_mimic::{Failed, Trial};
use ndarray::{Array1, Array2};
use warpsmith::cpu::{self, LinearOptions};
use warpsmith::ops::Activation;
use warpsmith::{Device, Error, Tensor};
use warpsmith_dsl::epilogue;
use warpsmith_dsl::float::F16;
use warpsmith_dsl::gemm::TileShape;
use warpsmith_dsl::launch::Kernel;
use warpsmith_dsl::tile::Aligned;
use warpsmith_kernels::linear::{LinearParams, Tile64x64, linear};

type Mutated = linear<F16, F16, Tile64x64, Aligned>;

/// M, K, N: more slots of K than the ring has, tails on every side, and every number of columns left over after fours.
const SIZES: [(u32, u32, u32); 5] = [(70, 648, 65), (65, 328, 66), (64, 72, 67), (5, 40, 68), (3, 8, 64)];

pub(crate) fn trials() -> Vec<Trial> {
    let entry: Arc<Entry> = Arc::new(Entry::of(Mutated::DECLARATION.name));
    let mut trials = vec![{
        let entry = entry.clone();
        Trial::test("emulator::mutants::the_kernel_itself_is_sound", move || match defect(&entry.text())? {
            None => Ok(()),
            Some(defect) => Err(defect.into()),
        })
    }];
    for kind in KINDS {
        let entry = entry.clone();
        trials.push(Trial::test(format!("emulator::mutants::{}", kind.name), move || kind.check(&entry)));
    }
    trials
}

/// One way to break a kernel.
struct Kind {
    name: &'static str,
    /// Where to look: the whole entry, or only what follows the main loop.
    part: Part,
    /// The line to put in a line's place; `None` where there is nothing to break.
    mutate: fn(&str) -> Option<String>,
    /// The fewest mutants there must be.
    at_least: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Entry,
    Epilogue,
}

const KINDS: [Kind; 7] = [
    Kind {
        name: "a_barrier_left_out_is_found",
        part: Part::Entry,
        mutate: |line| line.contains("bar.sync").then(String::new),
        at_least: 3,
    },
    Kind {
        name: "a_wait_for_copies_left_out_is_found",
        part: Part::Entry,
        mutate: |line| line.contains("cp.async.wait_group").then(String::new),
        at_least: 2,
    },
    Kind {
        name: "waiting_for_one_group_too_few_is_found",
        part: Part::Entry,
        mutate: |line| {
            let (before, count) = line.trim_end_matches(';').rsplit_once(' ')?;
            let count: u32 = line.contains("cp.async.wait_group").then(|| count.parse().ok())??;
            Some(format!("{before} {};", count + 1))
        },
        at_least: 2,
    },
    Kind {
        name: "a_group_that_is_not_committed_is_found",
        part: Part::Entry,
        mutate: |line| line.contains("cp.async.commit_group").then(String::new),
        at_least: 3,
    },
    Kind {
        name: "a_k_step_at_the_wrong_place_of_the_swizzle_is_found",
        part: Part::Entry,
        mutate: |line| {
            let (before, step) = line.trim_end_matches(';').rsplit_once(", ")?;
            let is_step = line.contains("xor.b32") && matches!(step, "32" | "64" | "96");
            is_step.then(|| format!("{before}, {};", step.parse::<u32>().map_or(0, |step| step ^ 16)))
        },
        at_least: 3,
    },
    Kind {
        name: "a_swizzle_left_out_is_found",
        part: Part::Entry,
        mutate: |line| {
            let operands: Vec<_> =
                line.trim().strip_prefix("xor.b32")?.trim().trim_end_matches(';').split(", ").collect();
            let swizzles = operands.iter().all(|operand| operand.starts_with('%')) && operands.len() == 3;
            swizzles.then(|| format!("\tmov.b32 {}, {};", operands[0], operands[1]))
        },
        at_least: 2,
    },
    Kind {
        name: "a_tail_that_is_one_too_long_is_found",
        part: Part::Epilogue,
        mutate: |line| line.contains("setp.ge.u32").then(|| line.replace("setp.ge.u32", "setp.gt.u32")),
        at_least: 3,
    },
];

impl Kind {
    fn check(&self, entry: &Entry) -> Result<(), Failed> {
        let start = match self.part {
            Part::Entry => 0,
            Part::Epilogue => entry.lines.iter().rposition(|line| line.contains("bar.sync")).unwrap_or(0),
        };
        let mutants: Vec<_> = (start..entry.lines.len())
            .filter_map(|line| (self.mutate)(&entry.lines[line]).map(|mutated| (line, mutated)))
            .collect();
        if mutants.len() < self.at_least {
            return Err(format!("only {} places for it, expected {}", mutants.len(), self.at_least).into());
        }
        let mut survivors = Vec::new();
        for (line, mutated) in &mutants {
            if defect(&entry.with(*line, mutated))?.is_none() {
                survivors.push(format!(
                    "line {line} of the entry: `{}` as `{mutated}`",
                    entry.lines[*line].trim()
                ));
            }
        }
        if survivors.is_empty() {
            Ok(())
        } else {
            Err(format!("not found:\n{}", survivors.join("\n")).into())
        }
    }
}

/// One entry of the shipped PTX, with the declarations that it needs.
struct Entry {
    header: String,
    lines: Vec<String>,
}

impl Entry {
    fn of(name: &str) -> Self {
        let module = warpsmith_kernels::MODULES
            .iter()
            .find(|module| module.family == "linear" && module.arch == (8, 0))
            .expect("the linear family ships for sm_80");
        let header = module.text.split(".visible .entry").next().unwrap_or_default();
        let start = module.text.find(&format!(".visible .entry {name}(")).expect("the entry ships");
        let body = &module.text[start..];
        let end = body.find("\n}").expect("the entry ends") + 2;
        Self { header: header.into(), lines: body[..end].lines().map(String::from).collect() }
    }

    fn text(&self) -> String {
        format!("{}{}\n", self.header, self.lines.join("\n"))
    }

    fn with(&self, line: usize, replacement: &str) -> String {
        let mut lines: Vec<&str> = self.lines.iter().map(String::as_str).collect();
        lines[line] = replacement;
        format!("{}{}\n", self.header, lines.join("\n"))
    }
}

/// What is wrong with a kernel, as the emulator or the result shows; `None` if nothing is.
fn defect(text: &str) -> Result<Option<String>, Failed> {
    for size in SIZES {
        match run(text, size) {
            Ok(true) => {}
            Ok(false) => return Ok(Some(format!("a wrong result for {size:?}"))),
            Err(Error::Finding(finding)) => return Ok(Some(finding.to_string())),
            Err(other) => return Err(format!("the mutant did not run: {other}").into()),
        }
    }
    Ok(None)
}

/// Runs the kernel on integers; whether the result is right.
fn run(text: &str, (m, k, n): (u32, u32, u32)) -> Result<bool, Error> {
    let device = Device::emulator();
    let integers = |rows: u32, step: usize| {
        Array2::from_shape_fn((rows as usize, k as usize), |(i, j)| {
            f16::from_f32(((i * step + j * 3 + i * j) % 5) as f32 - 2.0)
        })
    };
    let (x, w) = (integers(m, 7), integers(n, 11));
    let bias = Array1::from_shape_fn(n as usize, |j| f16::from_f32((j % 9) as f32 - 4.0));
    let mut expected = Array2::from_elem((m as usize, n as usize), f16::NAN);
    let options = LinearOptions { scale: 1.0, activation: Activation::Relu };
    cpu::linear::<f16, f32, f16>(x.view(), w.view(), Some(bias.view()), options, expected.view_mut());

    let (x, w) = (Tensor::from_array(&device, &x)?, Tensor::from_array(&device, &w)?);
    let bias = Tensor::from_array(&device, &bias)?;
    let mut y = Tensor::from_array(&device, &Array2::from_elem((m as usize, n as usize), f16::NAN))?;
    let params = LinearParams {
        stride_x: k.into(),
        stride_w: k.into(),
        stride_y: n.into(),
        m,
        n,
        k,
        scale: 1.0,
        activation: epilogue::Activation::RELU,
        reserved: 0,
    };
    let blocks = m.div_ceil(Tile64x64::BLOCK_M) * n.div_ceil(Tile64x64::BLOCK_N);
    let kernel = device.load_ptx("mutant.ptx", text)?.kernel::<Mutated>()?;
    let args = (x.arg(), w.arg(), bias.arg(), y.arg_mut(), params);
    // SAFETY: the emulator checks every access, which is what is tested; the tensors outlive the launch.
    unsafe { kernel.launch(&device.default_stream(), [blocks, 1, 1], args)? };
    Ok(y.to_vec()? == expected.as_slice().unwrap_or_default())
}
