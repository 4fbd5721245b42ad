//! Kernels of the kinds that people write, compiled by NVIDIA's compiler and by Triton, against the same
//! computation in Rust.
//!
//! `cargo xtask corpus` compiles them into `target/corpus` and runs this test, which is ignored otherwise: the
//! compilers
//! come from PyPI. Every kernel of every file must have a case, and every case must be right for each architecture.

mod cases_blocks;
mod cases_clusters;
mod cases_floats;
mod cases_functions;
mod cases_groups;
mod cases_inline;
mod cases_integers;
mod cases_language;
mod cases_libraries;
mod cases_library;
mod cases_triton;
mod cases_triton_more;
mod cases_warps;
mod harness;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use harness::Case;
use warpsmith_emulator::Module;

/// Where the compiled files are, and the list of them.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/corpus")
}

/// A row of the table: a source for an architecture.
#[derive(Default)]
struct Row {
    kernels: usize,
    accepted: bool,
    right: usize,
}

#[test]
#[ignore = "needs the files that `cargo xtask corpus` compiles"]
fn every_kernel_is_accepted_and_right() {
    let list = std::fs::read_to_string(folder().join("compiled.txt"))
        .expect("nothing is compiled: `cargo xtask corpus` does that, and says what it needs");
    let cases: Vec<Case> = [
        cases_integers::cases(),
        cases_warps::cases(),
        cases_functions::cases(),
        cases_floats::cases(),
        cases_libraries::cases(),
        cases_triton::cases(),
        cases_blocks::cases(),
        cases_clusters::cases(),
        cases_groups::cases(),
        cases_inline::cases(),
        cases_language::cases(),
        cases_library::cases(),
        cases_triton_more::cases(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    let mut wrong = Vec::new();
    for file in list.lines().filter(|line| line.ends_with(".ptx")) {
        let text = std::fs::read_to_string(folder().join(file)).unwrap();
        let row = rows.entry(file.trim_end_matches(".ptx").to_owned()).or_default();
        let module = match Module::parse(file, &text) {
            Ok(module) => module,
            Err(error) => {
                wrong.push(error.to_string());
                continue;
            }
        };
        row.accepted = true;
        let source = file.split('.').next().unwrap();
        for kernel in module.kernels() {
            row.kernels += 1;
            let mut cases = cases.iter().filter(|c| c.file == source && c.kernel == kernel.name).peekable();
            if cases.peek().is_none() {
                wrong.push(format!("{file}: `{}` has no case", kernel.name));
                continue;
            }
            let failures: Vec<String> = cases.filter_map(|case| case.run(&module).err()).collect();
            row.right += usize::from(failures.is_empty());
            wrong.extend(failures.into_iter().map(|failure| format!("{file}: `{}`: {failure}", kernel.name)));
        }
    }
    let table = table(&list, &rows);
    print!("{table}");
    if let Some(path) = std::env::var_os("WARPSMITH_CORPUS_REPORT") {
        std::fs::write(path, table).unwrap();
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    for case in &cases {
        let is_there = rows.keys().any(|name| name.split('.').next() == Some(case.file));
        assert!(is_there, "`{}` of {} was not compiled", case.kernel, case.file);
    }
}

fn table(list: &str, rows: &BTreeMap<String, Row>) -> String {
    let versions: Vec<&str> = list.lines().filter(|line| !line.ends_with(".ptx")).collect();
    let mut table = format!(
        "Kernels of emulator/tests/corpus in the emulator, written by `cargo xtask corpus`.\nCompiled by {}.\n\n\
         {:<28} {:>7} {:>8} {:>6}\n",
        versions.join(", "),
        "source",
        "kernels",
        "accepted",
        "right"
    );
    for (name, row) in rows {
        let accepted = if row.accepted { row.kernels } else { 0 };
        let _ = writeln!(table, "{name:<28} {:>7} {accepted:>8} {:>6}", row.kernels, row.right);
    }
    let sum = |f: fn(&Row) -> usize| rows.values().map(f).sum::<usize>();
    let (kernels, right) = (sum(|r| r.kernels), sum(|r| r.right));
    let _ = writeln!(table, "{:<28} {kernels:>7} {kernels:>8} {right:>6}", "all");
    table
}
