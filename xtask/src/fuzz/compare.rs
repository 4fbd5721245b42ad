//! Runs programs on two machines and holds what they leave against each other.

use anyhow::Result;
use warpsmith::emulator::{Checks, Completion};
use warpsmith::{Device, EmulatorOptions};

use super::program::{BLOCK, GRID, INPUTS, OUTPUTS, Program, TOTALS, output_name};
use crate::launch;

/// The machines that have to agree: the first one is the judge.
pub(super) struct Machines {
    pub(super) judge: Device,
    pub(super) others: Vec<(String, Device)>,
}

impl Machines {
    /// A GPU and the emulator; or, for the emulator itself, several of it with different settings.
    pub(super) fn open(device: &str) -> Result<Self> {
        let emulator = |options| launch::emulator(options);
        let plain = EmulatorOptions { threads: Some(1), ..EmulatorOptions::default() };
        let judge = launch::open(device)?;
        let mut others = vec![("emulator".to_owned(), emulator(plain.clone()))];
        if device == "emulator" {
            others = vec![
                (
                    "without checks".into(),
                    emulator(EmulatorOptions { checks: Checks::none(), ..plain.clone() }),
                ),
                (
                    "copies at once".into(),
                    emulator(EmulatorOptions { completion: Completion::Eager, ..plain.clone() }),
                ),
                (
                    "copies at random".into(),
                    emulator(EmulatorOptions { completion: Completion::Random, seed: 7, ..plain }),
                ),
            ];
        }
        Ok(Self { judge, others })
    }
}

/// How a program failed.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// One machine does not take or does not finish it.
    Refused { machine: String, reason: String },
    /// They differ: in so many values, first in this one.
    Differs { machine: String, values: usize, index: usize, judge: u64, other: u64 },
}

impl std::fmt::Display for Failure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused { machine, reason } => write!(formatter, "{machine} refuses it: {reason}"),
            Self::Differs { machine, values, index, judge, other } => write!(
                formatter,
                "{values} values differ; {} is {judge:#018x}, and {other:#018x} with {machine}",
                output_name(*index)
            ),
        }
    }
}

/// A program, what it reads, and the seed of both.
#[derive(Clone)]
pub(super) struct Sample {
    pub(super) seed: u64,
    pub(super) program: Program,
}

impl Sample {
    pub(super) fn inputs(&self) -> Vec<u64> {
        super::generate::inputs(self.seed, (BLOCK * GRID) as usize * INPUTS)
    }
}

/// One module with an entry for each sample.
pub(super) fn module(samples: &[Sample]) -> String {
    let entries = samples.iter().enumerate().map(|(i, sample)| sample.program.entry(&format!("p{i}")));
    std::iter::once(launch::HEADER.to_owned()).chain(entries).collect()
}

/// What each sample of a batch leaves on a machine, or why it does not.
pub(super) fn results(device: &Device, samples: &[Sample]) -> Vec<Result<Vec<u64>, String>> {
    let loaded = match device.load_ptx("programs.ptx", &module(samples)) {
        Ok(loaded) => loaded,
        // One text that is refused must not hide the others.
        Err(error) if samples.len() == 1 => return vec![Err(error.to_string())],
        Err(_) => {
            let (left, right) = samples.split_at(samples.len() / 2);
            return results(device, left).into_iter().chain(results(device, right)).collect();
        }
    };
    let run = |(i, sample): (usize, &Sample)| {
        let program = launch::Program {
            entry: &format!("p{i}"),
            grid: GRID,
            block: BLOCK,
            inputs: &sample.inputs(),
            outputs: (BLOCK * GRID) as usize * OUTPUTS + TOTALS,
        };
        launch::run(device, &loaded, &program).map_err(|error| format!("{error:#}"))
    };
    samples.iter().enumerate().map(run).collect()
}

/// The samples of a batch on which the machines do not agree.
pub(super) fn failures(machines: &Machines, samples: &[Sample]) -> Vec<(Sample, Failure)> {
    let expected = results(&machines.judge, samples);
    let mut failures = Vec::new();
    let mut failed = vec![false; samples.len()];
    for (name, device) in &machines.others {
        let found = results(device, samples);
        for (i, (expected, found)) in expected.iter().zip(&found).enumerate() {
            if !failed[i]
                && let Some(failure) = compare(expected, found, &machines.judge, name)
            {
                failed[i] = true;
                failures.push((samples[i].clone(), failure));
            }
        }
    }
    failures
}

fn compare(
    expected: &Result<Vec<u64>, String>,
    found: &Result<Vec<u64>, String>,
    judge: &Device,
    name: &str,
) -> Option<Failure> {
    let refused =
        |machine: String, reason: &String| Some(Failure::Refused { machine, reason: reason.clone() });
    match (expected, found) {
        (Err(reason), _) => refused(judge.to_string(), reason),
        (_, Err(reason)) => refused(name.to_owned(), reason),
        (Ok(expected), Ok(found)) => {
            let differs = |i: &usize| expected[*i] != found[*i];
            let index = (0..expected.len()).find(differs)?;
            let values = (0..expected.len()).filter(differs).count();
            let (judge, other) = (expected[index], found[index]);
            Some(Failure::Differs { machine: name.to_owned(), values, index, judge, other })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::generate::{Style, program};
    use super::super::scalar::Table;
    use super::*;

    #[test]
    fn the_emulator_agrees_with_itself_whatever_its_settings() {
        let machines = Machines::open("emulator").unwrap();
        let table = Table::new();
        let sample = |seed| {
            let style = Style { statements: 24, products: seed % 2 == 0 };
            Sample { seed, program: program(seed, &table, style) }
        };
        let samples: Vec<Sample> = (0..60).map(sample).collect();
        let failed = failures(&machines, &samples);
        assert!(failed.is_empty(), "{}", report(&failed));
    }

    fn report(failed: &[(Sample, Failure)]) -> String {
        failed
            .iter()
            .map(|(s, failure)| format!("seed {}: {failure}\n{}", s.seed, s.program.listing()))
            .collect()
    }

    #[test]
    fn a_difference_is_found_and_named() {
        let judge = launch::emulator(EmulatorOptions::default());
        let expected = Ok(vec![1, 2, 3]);
        assert!(compare(&expected, &Ok(vec![1, 2, 3]), &judge, "x").is_none());
        let failure = compare(&expected, &Ok(vec![1, 0, 0]), &judge, "x").unwrap();
        assert!(
            failure.to_string().starts_with("2 values differ; scratch 1 of thread 0 in block 0 is"),
            "{failure}"
        );
        assert!(matches!(compare(&expected, &Err("no".into()), &judge, "x"), Some(Failure::Refused { .. })));
    }
}
