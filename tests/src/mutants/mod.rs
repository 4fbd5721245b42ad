//! Mutants: the PTX that ships with one thing wrong, which the emulator has to find.
//!
//! A checker is as good as what it finds. So every entry of every shipped module is broken in the ways that
//! [`mutate`] knows, one at a time, and run on sizes that reach its paths. A mutant is *found* if a check reports it or
//! its result is wrong. Of one that is not found it may be known that it does the same as the kernel, and why; else it is *missed*.
//! `cargo xtask mutants` writes the table of all to `emulator/reports/mutants.csv`.
//!
//! | module | |
//! |---|---|
//! | `ptx` | an entry's text, cut into statements |
//! | `flow`, `bounds` | which branches and predicates decide whether memory is accessed |
//! | [`mutate`] | what can be wrong with each statement |
//! | `adamw`, `adamw_rows`, `attention`, `linear`, `linear_gradient`, `modulated`, `generated`, `repack`, `product_key`, `topk`, `norm`, `softmax`, `update_gradient`, `elementwise`, `rotary`, `kv_cache`, `embedding`, `rows`, `expert_cache`, `widen`, `sorted_experts`, `experts`, `expert_gradient`, `product_key_gradient` | how the kernels of a family are run, and what they have to give |
//! | [`identity`] | which entries are the same as before, or as each other but for a type |
//! | `congruence`, `fences`, [`equivalents`] | why some mutants are no mutants: proofs, and reasons for what is not proven |
//! | [`report`] | the table |

mod adamw;
mod adamw_rows;
mod attention;
mod bounds;
mod congruence;
mod elementwise;
mod embedding;
pub mod equivalents;
mod expert_cache;
mod expert_gradient;
mod experts;
mod fences;
mod flow;
mod generated;
pub mod identity;
mod kv_cache;
mod linear;
mod linear_gradient;
mod modulated;
pub mod mutate;
mod norm;
mod product_key;
mod product_key_gradient;
mod ptx;
mod repack;
pub mod report;
mod rotary;
mod rows;
mod softmax;
mod sorted_experts;
mod topk;
mod update_gradient;
mod widen;

use warpsmith_dsl::launch::KernelArgs;
use warpsmith_emulator::{
    Completion, Config, FindingKind, LaunchConfig, LaunchError, Limits, Machine, Module, Report,
};

use congruence::Congruence;
use flow::Flow;
use identity::{Likeness, twins};
pub use mutate::{Kind, Mutant};
pub use ptx::Entry;

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A check reported it.
    Finding(FindingKind, String),
    /// The result was wrong; for which case.
    WrongResult(String),
    /// It does what the kernel does; why.
    Equivalent(String),
    /// Nothing was found and nothing is known.
    Missed,
}

/// An entry of a shipped module, ready to be mutated.
pub struct Subject {
    /// The name of the module's folder.
    pub module: String,
    /// The entry.
    pub entry: Entry,
    /// Its mutants, in the order of the text.
    pub mutants: Vec<Mutant>,
    congruence: Congruence,
    flow: Flow,
    /// Whether it has asynchronous copies of single threads (`cp.async`).
    copies: bool,
    capability: (u32, u32),
    problems: Vec<Box<dyn Problem>>,
    /// The most warp-instructions that a block may run: a few times what the sound kernel needs.
    budget: u64,
    /// In how many of [`MODES`], the first ones, the kernel itself has been found sound.
    sound_in: usize,
}

/// Why a shipped kernel cannot be mutated, or a mutant not be run.
#[derive(Debug)]
pub struct Failure(pub String);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// Launches a kernel of `module` with these arguments.
fn launch(
    machine: &Machine,
    module: &Module,
    kernel: &str,
    config: &LaunchConfig,
    arguments: impl KernelArgs,
) -> Result<Report, LaunchError> {
    arguments.with_raw(|raw| {
        // SAFETY: `with_raw` hands over bytes that are valid for the length given, for this call.
        let bytes: Vec<&[u8]> =
            raw.iter().map(|arg| unsafe { std::slice::from_raw_parts(arg.data, arg.size) }).collect();
        machine.launch(module, kernel, config, &bytes)
    })
}

/// A problem that an entry is run on, whose result is known.
trait Problem: Send + Sync {
    /// For people.
    fn name(&self) -> &str;

    /// Whether its operands have infinities, and the kernel votes about nothing else.
    fn has_infinities(&self) -> bool {
        false
    }

    /// Runs the only entry of `module`; what it did, and whether the result is right.
    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError>;
}

/// The problems that an entry is run on, those that cost least first; none if nothing is known of such a kernel.
fn problems(entry: &str) -> Option<Vec<Box<dyn Problem>>> {
    // Before those of products, whose names begin as theirs do.
    linear_gradient::problems(entry)
        .or_else(|| update_gradient::problems(entry))
        .or_else(|| linear::problems(entry))
        .or_else(|| modulated::problems(entry))
        .or_else(|| generated::problems(entry))
        .or_else(|| repack::problems(entry))
        .or_else(|| product_key::problems(entry))
        .or_else(|| topk::problems(entry))
        .or_else(|| norm::problems(entry))
        .or_else(|| softmax::problems(entry))
        .or_else(|| elementwise::problems(entry))
        .or_else(|| rotary::problems(entry))
        .or_else(|| kv_cache::problems(entry))
        .or_else(|| embedding::problems(entry))
        .or_else(|| adamw::problems(entry))
        .or_else(|| adamw_rows::problems(entry))
        .or_else(|| expert_cache::problems(entry))
        .or_else(|| widen::problems(entry))
        .or_else(|| sorted_experts::problems(entry))
        .or_else(|| experts::problems(entry))
        .or_else(|| expert_gradient::problems(entry))
        .or_else(|| product_key_gradient::problems(entry))
        .or_else(|| attention::problems(entry))
}

/// An entry that ships.
#[derive(Clone, Debug)]
pub struct Shipped {
    /// The name of the module's folder.
    pub module: String,
    /// The module's architecture.
    pub capability: (u32, u32),
    /// The entry.
    pub entry: Entry,
    /// The entry before it that stands for both in the table of mutants, since they are the same but for a type.
    pub twin: Option<String>,
}

/// Every entry of every shipped module, but those of families that have a module for later architectures too, which the table
/// knows: most of these entries have the same names.
#[must_use]
pub fn shipped() -> Vec<Shipped> {
    use rayon::prelude::*;
    let is_namesake = |module: &warpsmith_kernels::PtxModule| {
        let mut others = warpsmith_kernels::MODULES.iter().filter(|other| other.family == module.family);
        others.any(|other| other.arch > module.arch)
    };
    let modules = warpsmith_kernels::MODULES.iter().filter(|module| !is_namesake(module));
    let entries = modules.flat_map(|module| {
        let entries = module.entries.iter().flat_map(|shipped| ptx::entries(&shipped.text()));
        entries.map(|entry| Shipped { module: module.name(), capability: module.arch, entry, twin: None })
    });
    let mut all: Vec<Shipped> = entries.collect();
    let likeness: Vec<Likeness> = all.par_iter().map(|shipped| Likeness::of(&shipped.entry)).collect();
    for at in 0..all.len() {
        let twin = (0..at).find(|&before| {
            all[before].twin.is_none()
                && all[before].module == all[at].module
                && twins(&likeness[before], &likeness[at])
        });
        all[at].twin = twin.map(|before| all[before].entry.name.clone());
    }
    all
}

impl Subject {
    /// Prepares an entry, and makes sure that the kernel itself is sound in all its cases, with copies that land as late as they may.
    ///
    /// # Errors
    ///
    /// If nothing is known of how such a kernel is run, or it fails.
    pub fn new(shipped: Shipped) -> Result<Self, Failure> {
        let mut subject = Self::unchecked(shipped)?;
        subject.check_in(&MODES[..1])?;
        Ok(subject)
    }

    /// Prepares an entry, of which nothing is to be run before [`check`](Self::check).
    ///
    /// # Errors
    ///
    /// If nothing is known of how such a kernel is run.
    pub fn unchecked(shipped: Shipped) -> Result<Self, Failure> {
        let Shipped { module, capability, entry, .. } = shipped;
        let Some(problems) = problems(&entry.name) else {
            return Err(Failure(format!("nothing is known of how `{}` is run", entry.name)));
        };
        let mutants = mutate::mutants(&entry);
        let (congruence, flow) = (Congruence::of(&entry), Flow::of(&entry));
        let copies = entry
            .statements
            .iter()
            .any(|statement| statement.is("cp.async.ca") || statement.is("cp.async.cg"));
        Ok(Self {
            module,
            entry,
            mutants,
            congruence,
            flow,
            copies,
            capability,
            problems,
            budget: 1 << 30,
            sound_in: 0,
        })
    }

    /// Makes sure that the kernel itself is sound in all its cases and every mode, and learns how long its blocks take.
    ///
    /// # Errors
    ///
    /// If it fails.
    pub fn check(&mut self) -> Result<(), Failure> {
        self.check_in(MODES)
    }

    fn check_in(&mut self, modes: &[Mode]) -> Result<(), Failure> {
        use rayon::prelude::*;
        let most: Vec<u64> =
            modes.par_iter().map(|mode| self.expect_sound(mode)).collect::<Result<_, _>>()?;
        self.budget = 4 * most[0] + 100_000;
        self.sound_in = modes.len();
        Ok(())
    }

    /// The most warp-instructions that a case of the kernel itself takes in a mode, or the error if it fails.
    fn expect_sound(&self, mode: &Mode) -> Result<u64, Failure> {
        match self.defect(&self.entry.module(), std::slice::from_ref(mode))? {
            (None, most) => Ok(most),
            (Some(defect), _) => Err(Failure(format!("`{}` itself fails: {defect:?}", self.entry.name))),
        }
    }

    /// The line of a mutant's statement in the module.
    #[must_use]
    pub fn line(&self, mutant: &Mutant) -> u32 {
        self.entry.statements[mutant.statement].line
    }

    /// Whether a mutant is of an instruction of opcode `name`, with or without modifiers.
    #[must_use]
    pub fn is_of(&self, mutant: &Mutant, name: &str) -> bool {
        self.entry.statements[mutant.statement].is(name)
    }

    /// Whether the kernel adds sums up again that are not finite, and votes about nothing else.
    #[must_use]
    pub fn adds_again(&self) -> bool {
        self.problems.iter().any(|problem| problem.has_infinities())
    }

    /// Runs the kernel with votes that no lane has a sum to be added up again, all of them at once.
    ///
    /// # Errors
    ///
    /// As for [`verdict`](Self::verdict).
    pub fn verdict_without_second_sums(&self) -> Result<Verdict, Failure> {
        let mut text = String::new();
        for line in self.entry.module().lines() {
            // What counts as a vote's answer is in its first operand.
            let vote = line.split_once("vote.sync.ballot.b32 ").and_then(|(_, rest)| rest.split_once(','));
            match vote {
                Some((answer, _)) => text.push_str(&format!("mov.b32 {answer}, 0;")),
                None => text.push_str(line),
            }
            text.push('\n');
        }
        let (defect, _) = self.defect(&text, &MODES[..1])?;
        Ok(defect.unwrap_or(Verdict::Missed))
    }

    /// Runs a mutant, unless it is proven to do what the kernel does.
    ///
    /// # Errors
    ///
    /// If it is no PTX, or a launch was refused.
    pub fn verdict(&self, mutant: &Mutant) -> Result<Verdict, Failure> {
        match self.proof(mutant) {
            Some(reason) => Ok(Verdict::Equivalent(reason)),
            None => self.verdict_by_running(mutant),
        }
    }

    /// Runs a mutant, whether or not something is proven of it.
    ///
    /// # Errors
    ///
    /// As for [`verdict`](Self::verdict), and if a check or the result refutes the proof.
    pub fn verdict_by_running(&self, mutant: &Mutant) -> Result<Verdict, Failure> {
        let text = self.entry.with(mutant.statement, &mutant.replacement);
        // What is known to change nothing is run in case that this is not so, but not in every mode.
        let known = self.explanation(mutant).is_some();
        let mut defect = None;
        for (at, mode) in MODES.iter().enumerate().take(if known { 1 } else { MODES.len() }) {
            (defect, _) = self.defect(&text, std::slice::from_ref(mode))?;
            if defect.is_some() {
                // Of a kernel that fails itself a mutant's failure says nothing.
                if at >= self.sound_in {
                    self.expect_sound(mode)?;
                }
                break;
            }
        }
        match (defect, self.proof(mutant)) {
            (Some(defect), Some(proof)) => Err(Failure(format!(
                "`{}`, line {}: {} was proven to change nothing ({proof}), but there is {defect:?}",
                self.entry.name,
                self.line(mutant),
                mutant.description
            ))),
            (Some(defect), None) => Ok(defect),
            (None, Some(proof)) => Ok(Verdict::Equivalent(proof)),
            (None, None) => {
                let reason = equivalents::reason(&self.entry, mutant);
                Ok(reason.map_or(Verdict::Missed, Verdict::Equivalent))
            }
        }
    }

    /// Why a mutant does what the kernel does, if there is a proof or a reason. A mutant with a reason may yet be found.
    #[must_use]
    pub fn explanation(&self, mutant: &Mutant) -> Option<String> {
        self.proof(mutant).or_else(|| equivalents::reason(&self.entry, mutant))
    }

    /// Why a mutant does what the kernel does, if that can be proven.
    fn proof(&self, mutant: &Mutant) -> Option<String> {
        match mutant.kind {
            Kind::Bound | Kind::OffByOne => self.congruence.never_equal(&mutant.differs_if),
            Kind::Wait | Kind::WaitFewer | Kind::Commit
                if self.entry.statements[mutant.statement].is("cp.async")
                    && !self.entry.statements[mutant.statement].is("cp.async.bulk")
                    && !self.copies =>
            {
                Some("the entry has no asynchronous copies: there is nothing to wait for".to_owned())
            }
            Kind::Fence if self.entry.statements[mutant.statement].is("wgmma.fence") => {
                fences::is_repeated(&self.entry, &self.flow, mutant.statement)
            }
            Kind::Barrier if self.entry.statements[mutant.statement].is("bar.warp") => {
                let accesses = self
                    .flow
                    .after(mutant.statement)
                    .into_iter()
                    .any(|at| self.entry.statements[at].accesses_memory());
                let reason = "no memory is accessed after it, and what its lanes do until they exit needs no other lane";
                (!accesses).then(|| reason.to_owned())
            }
            _ => None,
        }
    }

    /// The first thing that is wrong with a text, and the most warp-instructions that a case took.
    fn defect(&self, text: &str, modes: &[Mode]) -> Result<(Option<Verdict>, u64), Failure> {
        let module = Module::parse(&self.module, text)
            .map_err(|error| Failure(format!("a mutant of `{}` is no PTX: {error}", self.entry.name)))?;
        let mut most = 0;
        // What a block may have on the GPUs of that generation; later ones run what takes more.
        let of_ampere = 163 << 10;
        let takes_more = self.capability.0 >= 9 || self.entry.shared_bytes() > of_ampere;
        let shared_per_block = if takes_more { 227 << 10 } else { of_ampere };
        for &(completion, seed) in modes {
            for problem in &self.problems {
                let config = Config {
                    compute_capability: self.capability,
                    completion,
                    seed,
                    limits: Limits {
                        instructions_per_block: self.budget,
                        shared_per_block,
                        ..Limits::default()
                    },
                    ..Config::default()
                };
                match problem.run(&module, self.entry.shared_bytes(), config) {
                    Ok((report, true)) => most = most.max(report.warp_instructions),
                    Ok((_, false)) => {
                        return Ok((Some(Verdict::WrongResult(problem.name().to_owned())), most));
                    }
                    Err(LaunchError::Finding(finding)) => {
                        return Ok((Some(Verdict::Finding(finding.kind, finding.message)), most));
                    }
                    Err(error) => {
                        return Err(Failure(format!("`{}` did not run: {error}", self.entry.name)));
                    }
                }
            }
        }
        Ok((None, most))
    }
}

/// When copies land, and the seed.
type Mode = (Completion, u64);

/// What a mutant is run with until one shows it.
const MODES: &[Mode] =
    &[(Completion::Latest, 0), (Completion::Eager, 0), (Completion::Random, 1), (Completion::Random, 2)];
