//! `xtask outside`: the README's program as a crate outside of the workspace, as who adds `warpsmith` to a program has it.
//!
//! It is built with no variable of the environment but those that say where programs and Rust are, and no configuration. Then it is run, and its
//! size and that of the PTX are held against what is promised. A second program has the kernels of one family only.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::{conclude, step, workspace_root};

/// Build and run the README's program outside of the workspace, and check its size; needs no GPU and no CUDA.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

/// Bytes of a stripped program with one linear layer, at most.
const MOST_OF_PROGRAM: u64 = 5_900_000;
/// Bytes of the committed PTX, at most.
const MOST_OF_PTX: u64 = 4_200_000;
/// All that the compiler is told of the machine.
const VARIABLES: [&str; 4] = ["PATH", "HOME", "CARGO_HOME", "RUSTUP_HOME"];
/// What the program prints for each row.
const ROWS: [[f32; 3]; 2] = [[2.5, 4.0, 2.0], [0.0, 0.0, 8.0]];

/// A program with the kernels of one family, on an emulated H100, which has faster ones for that where they are built.
const ONE_FAMILY: &str = r#"
use warpsmith::{Device, Tensor, ops};

fn main() -> warpsmith::Result<()> {
    let device: Device = "emulator:9.0".parse()?;
    let x = Tensor::from_slice(&device, &[1.0f32; 64 * 64], [64, 64])?;
    let product = ops::linear(&x, &x);
    println!("{} by {}", product.run()?.to_vec()?[0], product.implementation()?);
    println!("{}", ops::topk(&x, 1).run().expect_err("it has no such kernel"));
    Ok(())
}
"#;
/// What it prints.
const OF_ONE_FAMILY: [&str; 2] = ["64 by kernel linear_f32_f32_", "the Cargo feature `topk` of `warpsmith`"];
/// Its features of `warpsmith`.
const FEATURES: &str =
    "default-features = false, features = [\"dynamic-loading\", \"cuda-13000\", \"linear\"]";

const BUILD: &str = "A program outside of the workspace is built";
const RUN: &str = "It runs";
const SIZES: &str = "Sizes";
const BUILD_ONE_FAMILY: &str = "One with the kernels of one family is built";
const RUN_ONE_FAMILY: &str = "It takes those, and says which feature has others";

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    let root = workspace_root();
    let readme = std::fs::read_to_string(root.join("README.md")).context("cannot read README.md")?;
    let of_readme = program(&readme).context("README.md has no program in Rust")?;
    let mut failed = Vec::new();

    if let Some(program) = built(&root, BUILD, "outside", "", of_readme, "release")? {
        let said = said(RUN, &program)?;
        if numbers(&said) != ROWS.concat() {
            println!("expected {ROWS:?}");
            failed.push(RUN);
        }
        println!("\n── {SIZES}");
        let program = std::fs::metadata(&program)?.len();
        let ptx = bytes_in(&root.join("kernels-gpu/ptx"))?;
        println!(
            "{program} bytes of program, at most {MOST_OF_PROGRAM}; {ptx} bytes of PTX, at most {MOST_OF_PTX}"
        );
        if program > MOST_OF_PROGRAM || ptx > MOST_OF_PTX {
            failed.push(SIZES);
        }
    } else {
        failed.push(BUILD);
    }

    // Its size and speed are nobody's concern.
    if let Some(program) = built(&root, BUILD_ONE_FAMILY, "outside-family", FEATURES, ONE_FAMILY, "dev")? {
        let said = said(RUN_ONE_FAMILY, &program)?;
        let is_said = |(line, part): (&str, &str)| line.contains(part);
        if said.lines().count() != OF_ONE_FAMILY.len() || !said.lines().zip(OF_ONE_FAMILY).all(is_said) {
            println!("expected {OF_ONE_FAMILY:?}");
            failed.push(RUN_ONE_FAMILY);
        }
    } else {
        failed.push(BUILD_ONE_FAMILY);
    }
    Ok(conclude(&failed))
}

/// Builds a crate with `program` that depends on `warpsmith` with these features, in a folder outside of the workspace; `None` if that fails.
fn built(
    root: &Path,
    headline: &str,
    name: &str,
    features: &str,
    program: &str,
    profile: &str,
) -> Result<Option<PathBuf>> {
    let folder = tempfile::tempdir().context("cannot make a folder for the program")?;
    write(folder.path(), root, [name, features, program])?;
    let target = root.join("target/outside");
    let mut build = bare("cargo");
    build.current_dir(folder.path()).args(["build", "--profile", profile, "--target-dir"]).arg(&target);
    // Cargo's folder for the profile `dev`.
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(step(headline, &mut build)?.then(|| target.join(folder).join(name)))
}

/// What a program prints, which is shown; nothing if it fails.
fn said(headline: &str, program: &Path) -> Result<String> {
    println!("\n── {headline}");
    let output = bare(program).output().with_context(|| format!("cannot start {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{said}{}", String::from_utf8_lossy(&output.stderr));
    Ok(if output.status.success() { said } else { String::new() })
}

/// A command that inherits nothing but [`VARIABLES`].
fn bare(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear();
    command.envs(VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command
}

/// Writes a crate of this name: the program, and a manifest that names `warpsmith` with these features and nothing else.
fn write(folder: &Path, root: &Path, [name, features, program]: [&str; 3]) -> Result<()> {
    let features = if features.is_empty() { String::new() } else { format!(", {features}") };
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
         [dependencies]\nwarpsmith = {{ path = {:?}{features} }}\n\n[profile.release]\nstrip = true\n\n[workspace]\n",
        root.join("host")
    );
    std::fs::create_dir(folder.join("src"))?;
    std::fs::write(folder.join("src/main.rs"), program)?;
    std::fs::write(folder.join("Cargo.toml"), manifest)?;
    // The compiler and the versions of other crates are this workspace's, so that what is found is this workspace's doing.
    for file in ["Cargo.lock", "rust-toolchain.toml"] {
        std::fs::copy(root.join(file), folder.join(file)).with_context(|| format!("cannot copy {file}"))?;
    }
    Ok(())
}

/// The first program in Rust of a Markdown text.
fn program(markdown: &str) -> Option<&str> {
    let (_, rest) = markdown.split_once("```rust\n")?;
    Some(rest.split_once("```")?.0)
}

/// The numbers in a printed matrix.
fn numbers(text: &str) -> Vec<f32> {
    let matrix = text.rsplit_once(']').map_or("", |(matrix, _)| matrix);
    matrix.split(['[', ']', ',', ' ', '\n']).filter_map(|word| word.parse().ok()).collect()
}

fn bytes_in(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { bytes_in(&entry.path())? } else { metadata.len() };
    }
    ensure!(bytes > 0, "{} is empty", folder.display());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::{numbers, program};

    #[test]
    fn the_program_and_what_it_prints_are_found() {
        assert_eq!(program("a\n```sh\nb\n```\n```rust\nfn main() {}\n```\n"), Some("fn main() {}\n"));
        assert_eq!(program("```sh\nb\n```\n"), None);
        assert_eq!(numbers("[[2.5, 4.0],\n [0, 8]] on 3 cores"), [2.5, 4.0, 0.0, 8.0]);
        assert_eq!(numbers("nothing"), [0.0; 0]);
    }
}
