//! Broken kernels must be found: each mutant is the PTX that ships with one thing wrong, and the emulator has to report it or give
//! a wrong result that validation sees.
//!
//! The mutants are made from the text of five entries, one for each tile and one for unaligned access, with every type among them.
//! So they follow the kernels when those are compiled anew; a kind of mutant that no longer finds its place fails.

use std::sync::Arc;

use half::{bf16, f16};
use libtest_mimic::{Failed, Trial};
use ndarray::{Array1, Array2};
use warpsmith::weights::FloatElement;
use warpsmith::{Device, Element, Error, Tensor};
use warpsmith_dsl::epilogue;
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::gemm::TileShape;
use warpsmith_dsl::launch::{Global, GlobalMut, Kernel};
use warpsmith_dsl::tile::{Aligned, Unaligned};
use warpsmith_kernels::linear::{LinearParams, Tile16x64, Tile64x64, Tile128x64, Tile128x128, linear};

/// M, K, N.
type Size = (u32, u32, u32);

/// Sums longer than the ring of slots, some of which end where the ring does; tails that end in every part of a tile,
/// and leave every number of columns after fours.
const SIZES: [Size; 7] =
    [(70, 648, 65), (65, 360, 66), (64, 72, 67), (5, 40, 68), (3, 8, 64), (45, 24, 68), (101, 16, 65)];

/// A kernel that is mutated.
struct Subject {
    name: &'static str,
    /// Whether x and w come by asynchronous copies; without them, waiting for copies is waiting for nothing.
    copies: bool,
    /// Steps along K in a slot of the ring, beside the first: each has a constant in the swizzle, for x and for w or for both.
    steps: usize,
    /// Runs its text on a size; whether the result is right.
    run: fn(&str, Size) -> Result<bool, Error>,
}

impl Subject {
    fn aligned<T: FloatElement, O: FloatElement, S: TileShape, K: LinearKernel<T, O>>(steps: usize) -> Self {
        Self { name: K::DECLARATION.name, copies: true, steps, run: run::<T, O, S, K, 0> }
    }

    /// With an odd K, which is what such a kernel is for.
    fn unaligned<T: FloatElement, O: FloatElement, S: TileShape, K: LinearKernel<T, O>>(
        steps: usize,
    ) -> Self {
        Self { name: K::DECLARATION.name, copies: false, steps, run: run::<T, O, S, K, 1> }
    }

    fn all() -> [Self; 5] {
        [
            Self::aligned::<f16, f16, Tile128x128, linear<F16, F16, Tile128x128, Aligned>>(2),
            Self::aligned::<bf16, f32, Tile128x64, linear<Bf16, f32, Tile128x64, Aligned>>(2),
            Self::aligned::<f16, f16, Tile64x64, linear<F16, F16, Tile64x64, Aligned>>(6),
            Self::aligned::<f32, f32, Tile16x64, linear<f32, f32, Tile16x64, Aligned>>(6),
            Self::unaligned::<bf16, bf16, Tile64x64, linear<Bf16, Bf16, Tile64x64, Unaligned>>(6),
        ]
    }

    /// What is wrong with its text, as the emulator or the result shows; `None` if nothing is.
    fn defect(&self, text: &str) -> Result<Option<String>, Failed> {
        for size in SIZES {
            match (self.run)(text, size) {
                Ok(true) => {}
                Ok(false) => return Ok(Some(format!("a wrong result for {size:?}"))),
                Err(Error::Finding(finding)) => return Ok(Some(finding.to_string())),
                Err(other) => return Err(format!("the mutant did not run: {other}").into()),
            }
        }
        Ok(None)
    }
}

/// The types of a linear kernel's arguments.
type Args<T, O> = (
    Global<<T as Element>::Device>,
    Global<<T as Element>::Device>,
    Global<<T as Element>::Device>,
    GlobalMut<<O as Element>::Device>,
    LinearParams,
);

/// A linear kernel of inputs `T` and output `O`.
trait LinearKernel<T: Element, O: Element>: Kernel<Args = Args<T, O>> {}

impl<T: Element, O: Element, K: Kernel<Args = Args<T, O>>> LinearKernel<T, O> for K {}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for subject in Subject::all() {
        let entry = Arc::new(Entry::of(subject.name));
        let subject = Arc::new(subject);
        let name = subject.name;
        {
            let (subject, entry) = (subject.clone(), entry.clone());
            let sound = move || match subject.defect(&entry.text())? {
                None => Ok(()),
                Some(defect) => Err(defect.into()),
            };
            trials.push(Trial::test(format!("emulator::mutants::{name}::the_kernel_itself_is_sound"), sound));
        }
        for kind in KINDS.into_iter().filter(|kind| subject.copies || !kind.of_copies) {
            let (subject, entry) = (subject.clone(), entry.clone());
            let check = move || kind.check(&subject, &entry);
            trials.push(Trial::test(format!("emulator::mutants::{name}::{}", kind.name), check));
        }
    }
    trials
}

/// One way to break a kernel.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    /// Where to look: the whole entry, or only what follows the main loop.
    part: Part,
    /// The line to put in a line's place; `None` where there is nothing to break.
    mutate: fn(&str) -> Option<String>,
    /// Whether it breaks the waiting for asynchronous copies.
    of_copies: bool,
    /// The fewest mutants there must be.
    at_least: fn(&Subject) -> usize,
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
        of_copies: false,
        at_least: |_| 3,
    },
    Kind {
        name: "a_wait_for_copies_left_out_is_found",
        part: Part::Entry,
        mutate: |line| line.contains("cp.async.wait_group").then(String::new),
        of_copies: true,
        at_least: |_| 2,
    },
    Kind {
        name: "waiting_for_one_group_too_few_is_found",
        part: Part::Entry,
        mutate: |line| {
            let (before, count) = line.trim_end_matches(';').rsplit_once(' ')?;
            let count: u32 = line.contains("cp.async.wait_group").then(|| count.parse().ok())??;
            Some(format!("{before} {};", count + 1))
        },
        of_copies: true,
        at_least: |_| 2,
    },
    Kind {
        name: "a_group_that_is_not_committed_is_found",
        part: Part::Entry,
        mutate: |line| line.contains("cp.async.commit_group").then(String::new),
        of_copies: true,
        at_least: |_| 3,
    },
    Kind {
        name: "a_k_step_at_the_wrong_place_of_the_swizzle_is_found",
        part: Part::Entry,
        mutate: |line| {
            let (before, step) = line.trim_end_matches(';').rsplit_once(", ")?;
            let is_step = line.contains("xor.b32") && matches!(step, "32" | "64" | "96");
            is_step.then(|| format!("{before}, {};", step.parse::<u32>().map_or(0, |step| step ^ 16)))
        },
        of_copies: false,
        at_least: |subject| subject.steps,
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
        of_copies: false,
        at_least: |_| 2,
    },
    Kind {
        name: "a_tail_that_is_one_too_long_is_found",
        part: Part::Epilogue,
        mutate: |line| line.contains("setp.ge.u32").then(|| line.replace("setp.ge.u32", "setp.gt.u32")),
        of_copies: false,
        at_least: |_| 3,
    },
];

impl Kind {
    fn check(&self, subject: &Subject, entry: &Entry) -> Result<(), Failed> {
        let start = match self.part {
            Part::Entry => 0,
            Part::Epilogue => entry.lines.iter().rposition(|line| line.contains("bar.sync")).unwrap_or(0),
        };
        let mutants: Vec<_> = (start..entry.lines.len())
            .filter_map(|line| (self.mutate)(&entry.lines[line]).map(|mutated| (line, mutated)))
            .collect();
        let at_least = (self.at_least)(subject);
        if mutants.len() < at_least {
            return Err(format!("only {} places for it, expected {at_least}", mutants.len()).into());
        }
        let mut survivors = Vec::new();
        for (line, mutated) in &mutants {
            if subject.defect(&entry.with(*line, mutated))?.is_none() {
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

/// Runs the kernel `K` of tile `S` on integers, with K smaller by `LESS`; whether the result is right.
fn run<T, O, S, K, const LESS: u32>(text: &str, (m, k, n): Size) -> Result<bool, Error>
where
    T: FloatElement,
    O: FloatElement,
    S: TileShape,
    K: LinearKernel<T, O>,
{
    let k = k - LESS;
    let device = Device::emulator();
    let integers = |rows: u32, step: usize| {
        Array2::from_shape_fn((rows as usize, k as usize), |(i, j)| {
            ((i * step + j * 3 + i * j) % 5) as f64 - 2.0
        })
    };
    let (x, w) = (integers(m, 7), integers(n, 11));
    let bias = Array1::from_shape_fn(n as usize, |j| (j % 9) as f64 - 4.0);
    let expected = (x.dot(&w.t()) + &bias).mapv(|sum| O::round(sum.max(0.0)));

    let (x, w) =
        (Tensor::from_array(&device, &x.mapv(T::round))?, Tensor::from_array(&device, &w.mapv(T::round))?);
    let bias = Tensor::from_array(&device, &bias.mapv(T::round))?;
    let filler = Array2::from_elem((m as usize, n as usize), O::round(f64::NAN));
    let mut y = Tensor::from_array(&device, &filler)?;
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
    let blocks = m.div_ceil(S::BLOCK_M) * n.div_ceil(S::BLOCK_N);
    let kernel = device.load_ptx("mutant.ptx", text)?.kernel::<K>()?;
    let args = (x.arg(), w.arg(), bias.arg(), y.arg_mut(), params);
    // SAFETY: the emulator checks every access, which is what is tested; the tensors outlive the launch.
    unsafe { kernel.launch(&device.default_stream(), [blocks, 1, 1], args)? };
    Ok(y.to_vec()?.iter().eq(expected.iter()))
}
