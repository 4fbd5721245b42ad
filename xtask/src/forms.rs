//! `xtask forms`: holds the emulator's table of opcode forms against NVIDIA's assembler.
//!
//! What the emulator takes and `ptxas` refuses is a row that promises too much: PTX that runs here and not on a GPU.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};
use warpsmith::emulator::Module;
use warpsmith::emulator::forms;

use crate::spell::{self, Operand, Spelling};

/// List the forms that the emulator takes and NVIDIA's assembler refuses.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The assembler.
    #[arg(long, default_value = "ptxas")]
    ptxas: PathBuf,
    /// The architecture to assemble for.
    #[arg(long, default_value = "sm_90a")]
    target: String,
    /// The PTX version of the texts.
    #[arg(long, default_value = "8.6")]
    version: String,
    /// Forms of each row to try, spread over its choices.
    #[arg(long, default_value_t = 400)]
    each: usize,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut refused = 0;
    let mut tried = 0;
    let rows: Vec<_> = forms::all().collect();
    for rows in rows.chunks(24) {
        let mut lines = Vec::new();
        for spelling in rows.iter().flat_map(|row| spell::cover(row, args.each)) {
            if let Some(line) = instruction(&spelling)
                && Module::parse("form.ptx", &module(args, &[(String::new(), line.clone())])).is_ok()
            {
                lines.push((spelling.text(), line));
            }
        }
        tried += lines.len();
        for (form, reason) in refusals(&args.ptxas, args, &lines)? {
            refused += 1;
            println!("{form}: {reason}");
        }
    }
    println!("{tried} forms tried for {}, {refused} refused", args.target);
    Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// An instruction of this form; `None` for those that need labels.
fn instruction(spelling: &Spelling) -> Option<String> {
    let mut operands = Vec::new();
    for operand in &spelling.operands {
        operands.push(match operand {
            Operand::Label => return None,
            Operand::Address => "[%rd0]".to_owned(),
            Operand::Immediate if spelling.opcode == "cp" && !spelling.has("wait_group") => "16".to_owned(),
            Operand::Immediate => "1".to_owned(),
            Operand::Value(value) => {
                let name = match spell::bits(value.ty) {
                    1 => "%p",
                    8 | 16 => "%h",
                    32 => "%r",
                    _ => "%rd",
                };
                match value.count {
                    None => format!("{name}0"),
                    Some(n) => {
                        format!("{{{}}}", (0..n).map(|i| format!("{name}{i}")).collect::<Vec<_>>().join(", "))
                    }
                }
            }
        });
    }
    Some(format!("{} {};", spelling.text(), operands.join(", ")))
}

fn module(args: &Args, lines: &[(String, String)]) -> String {
    let mut text = format!(
        ".version {}\n.target {}\n.address_size 64\n.visible .entry forms()\n{{\n.reg .pred %p<8>; .reg .b16 %h<8>; \
         .reg .b32 %r<136>; .reg .b64 %rd<8>;\n",
        args.version, args.target
    );
    for (_, line) in lines {
        text += line;
        text.push('\n');
    }
    text + "ret;\n}\n"
}

/// The forms that the assembler refuses, and why.
fn refusals(ptxas: &Path, args: &Args, lines: &[(String, String)]) -> Result<Vec<(String, String)>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("forms.ptx");
    let text = module(args, lines);
    let first = text.lines().position(|line| lines.first().is_some_and(|(_, l)| l == line)).unwrap_or(0) + 1;
    std::fs::write(&file, text)?;
    let output = Command::new(ptxas)
        .args(["-arch", &args.target, "-o"])
        .arg(folder.path().join("forms.cubin"))
        .arg(&file)
        .output()
        .with_context(|| format!("cannot start `{}`", ptxas.display()))?;
    let complaints = String::from_utf8_lossy(&output.stderr);
    let mut found: Vec<(String, String)> = Vec::new();
    for complaint in complaints.lines() {
        let place = complaint.split_once(", line ").and_then(|(_, rest)| rest.split_once(';'));
        let Some((line, reason)) = place else { continue };
        let Some((_, reason)) = reason.split_once("error") else { continue };
        let index = line.parse::<usize>().ok().and_then(|line| line.checked_sub(first));
        let form = index.and_then(|index| lines.get(index)).map(|(form, _)| form.clone());
        let form = form.unwrap_or_else(|| format!("line {line}"));
        if found.last().is_none_or(|(last, _)| *last != form) {
            found.push((form, reason.trim_start_matches([' ', ':']).to_owned()));
        }
    }
    if !output.status.success() && found.is_empty() {
        bail!("{} failed: {complaints}", ptxas.display());
    }
    Ok(found)
}
