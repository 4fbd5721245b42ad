//! `xtask record`: what a GPU gives for every form, as data that the emulator's tests replay on every machine.

mod cases;
#[allow(dead_code, reason = "the emulator's tests read what is written here")]
#[path = "../../../emulator/tests/common/recording.rs"]
mod recording;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use warpsmith::{Device, DeviceKind};
use warpsmith_builder::store;

use crate::launch::{self, Program};
use crate::provenance::Provenance;
use recording::{BLOCK, Case, Recording};

/// Record what a GPU gives for every form of instruction.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The GPU.
    #[arg(long, default_value = "cuda:0")]
    device: String,
    /// The folder to write to.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Forms of each row of the table, spread over its choices.
    #[arg(long, default_value_t = 48)]
    each: usize,
    /// The commit to note; by default the one that `git` reports here.
    #[arg(long)]
    commit: Option<String>,
    /// PTX files whose every form is recorded.
    #[arg(long, value_name = "FILE", num_args = 0..)]
    forms_of: Vec<PathBuf>,
    /// Write the texts that are run to this folder too.
    #[arg(long, value_name = "DIR")]
    emit: Option<PathBuf>,
}

/// Entries of a module: what the driver compiles at a time.
const TOGETHER: usize = 48;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let device = launch::open(&args.device)?;
    let texts: Vec<String> = args
        .forms_of
        .iter()
        .map(|path| Ok(store::read(path)?))
        .chain(
            warpsmith_kernels::MODULES.iter().flat_map(|module| module.entries).map(|entry| Ok(entry.text())),
        )
        .collect::<Result<_>>()?;
    let cases = cases::all(args.each, &texts)?;
    let mut recording = Recording { inputs: cases::all_inputs(&cases), cases };
    let count = recording.cases.len();
    let mut recorded = Vec::new();
    let mut refused = 0;
    for (i, chunk) in std::mem::take(&mut recording.cases).chunks(TOGETHER).enumerate() {
        if let Some(folder) = &args.emit {
            std::fs::create_dir_all(folder)?;
            std::fs::write(folder.join(format!("cases{i:03}.ptx")), module(chunk))?;
        }
        record(&device, &recording, chunk, &mut recorded, &mut refused)?;
    }
    recording.cases = recorded;
    write(&args.out, &recording, &Provenance::collect(&device, args.commit.clone()), &device)?;
    println!("{count} cases, {} recorded, {refused} refused", recording.cases.len());
    Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn module(cases: &[Case]) -> String {
    let entries = cases.iter().enumerate().map(|(i, case)| case.entry(&format!("case{i}")));
    std::iter::once(launch::HEADER.to_owned()).chain(entries).collect()
}

/// Records some cases; of a text that is refused, its halves, down to the one that is to blame.
fn record(
    device: &Device,
    recording: &Recording,
    cases: &[Case],
    recorded: &mut Vec<Case>,
    refused: &mut usize,
) -> Result<()> {
    let module = match device.load_ptx("cases.ptx", &module(cases)) {
        Ok(module) => module,
        Err(error) if cases.len() == 1 => {
            println!("refused: {}: {error}", cases[0].form);
            *refused += 1;
            return Ok(());
        }
        Err(_) => {
            let (left, right) = cases.split_at(cases.len() / 2);
            record(device, recording, left, recorded, refused)?;
            return record(device, recording, right, recorded, refused);
        }
    };
    for (i, case) in cases.iter().enumerate() {
        let inputs = recording.inputs(case);
        let threads = inputs.len();
        let program = Program {
            entry: &format!("case{i}"),
            grid: threads as u32 / BLOCK,
            block: BLOCK,
            inputs: inputs.as_flattened(),
            outputs: threads * case.results.len(),
        };
        let outputs = match launch::run(device, &module, &program) {
            Ok(outputs) => outputs,
            Err(error) if matches!(device.kind(), DeviceKind::Emulator) => {
                println!("refused: {}: {error}", case.form);
                *refused += 1;
                continue;
            }
            Err(error) => return Err(error.context(case.form.clone())),
        };
        let results = case.results.len();
        let column = |i: usize| outputs.iter().skip(i).step_by(results).copied();
        recorded.push(Case { outputs: (0..results).flat_map(column).collect(), ..case.clone() });
    }
    Ok(())
}

fn write(folder: &Path, recording: &Recording, provenance: &Provenance, device: &Device) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let bytes = recording.to_bytes();
    let packed = miniz_oxide::deflate::compress_to_vec(&bytes, 9);
    std::fs::write(folder.join("forms.bin"), &packed)?;
    let forms: Vec<&str> = recording.cases.iter().map(|case| case.form.as_str()).collect();
    let text = format!(
        "{provenance}\ncompute capability {:?}\n{} forms, {} bytes, {} unpacked\n\n{}\n",
        device.properties().compute_capability,
        forms.len(),
        packed.len(),
        bytes.len(),
        forms.join("\n")
    );
    std::fs::write(folder.join("forms.txt"), text)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_survives_its_file() {
        let mut cases = cases::all(4, &[]).unwrap();
        let inputs = cases::all_inputs(&cases);
        let mut recording = Recording { inputs, cases: Vec::new() };
        for case in &mut cases {
            let threads = recording.inputs(case).len() as u64;
            let registers = case.results.clone();
            case.outputs = registers
                .iter()
                .flat_map(|register| {
                    let mask = u64::MAX >> (64 - Case::bits(register).max(1));
                    (0..threads).map(move |t| t.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7) & mask)
                })
                .collect();
        }
        recording.cases = cases;
        assert!(recording.cases.len() > 100);
        assert_eq!(Recording::from_bytes(&recording.to_bytes()), Some(recording));
    }
}
