//! Whether every form of instruction in the PTX that ships has a test.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use lzma_rust2::LzmaReader;
use warpsmith_emulator::forms;

use crate::common::FORMS_FILE;
use crate::replay;

/// Kernels that tests beside these compare with the same computation in Rust (`gemm.rs`, `tma_gemm.rs`, `compiled.rs`).
const WHOLE: [(&str, &str); 3] = [
    ("gemm.ptx", include_str!("../data/gemm.ptx")),
    ("tma_gemm.ptx", include_str!("../data/tma_gemm.ptx")),
    ("compiled.sm_80.ptx", include_str!("../data/compiled.sm_80.ptx")),
];

/// The forms that a recording holds, and those that this program's other tests run: it is started once more to note them.
fn tested() -> BTreeSet<String> {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("forms-{}.txt", std::process::id()));
    let program = std::env::current_exe().unwrap();
    let output =
        Command::new(program).args(["--skip", "coverage::"]).env(FORMS_FILE, &file).output().unwrap();
    let run = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(
        output.status.success(),
        "the other tests must pass: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    let run = run.lines().map(str::to_owned);
    let whole = WHOLE.iter().flat_map(|(file, text)| forms::used_in(file, text).unwrap().into_keys());
    run.chain(whole).chain(replay::forms()).collect()
}

/// The PTX that ships, by the names that a path `FOLDER/ENTRY.ptx` would give the entries.
fn shipped() -> BTreeMap<String, String> {
    let store = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels-gpu/ptx");
    let folders = std::fs::read_dir(&store).unwrap_or_else(|error| panic!("{}: {error}", store.display()));
    let mut folders: Vec<(String, u32, PathBuf)> = folders
        .map(|folder| {
            let path = folder.unwrap().path();
            let (family, arch) = path.file_name().unwrap().to_str().unwrap().split_once(".sm_").unwrap();
            (family.to_owned(), arch.trim_end_matches('a').parse().unwrap(), path)
        })
        .collect();
    folders.sort_unstable();
    let mut entries = BTreeMap::new();
    // A folder without texts has them after those of the folder before it.
    let (mut texts, mut at) = (String::new(), 0);
    for (_, _, folder) in folders {
        if let Ok(compressed) = std::fs::read(folder.join("entries.lzma")) {
            assert_eq!(at, texts.len(), "the bytes in the indices before {}", folder.display());
            (texts, at) = (String::new(), 0);
            let mut reader = LzmaReader::new_mem_limit(&compressed[..], u32::MAX, None).unwrap();
            reader.read_to_string(&mut texts).unwrap();
        }
        let index = std::fs::read_to_string(folder.join("index.txt")).unwrap();
        for line in index.lines().filter(|line| !line.is_empty() && !line.starts_with("//")) {
            let mut words = line.split(' ');
            let (name, bytes) = (words.next().unwrap(), words.next().unwrap().parse::<usize>().unwrap());
            let text = texts[at..at + bytes].to_owned();
            entries.insert(folder.join(format!("{name}.ptx")).display().to_string(), text);
            at += bytes;
        }
    }
    assert_eq!(at, texts.len(), "the bytes in the last indices");
    entries
}

/// A form without the numbers that the emulator computes with: the columns of a `wgmma`, of which recordings hold several, and the
/// axes of a tensor, of which tests run all.
fn kind(form: &str) -> String {
    let parts = form.split('.').map(|part| match part.split_once('k') {
        Some((shape, k)) if shape.starts_with("m64n") => format!("m64nNk{k}"),
        _ if matches!(part, "1d" | "2d" | "3d" | "4d" | "5d") => "Nd".to_owned(),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join(".")
}

/// The forms of a text that are not among those tested, with their places.
fn untested(file: &str, text: &str, tested: &BTreeSet<String>) -> Vec<String> {
    let used = forms::used_in(file, text).unwrap_or_else(|error| panic!("{error}"));
    let tested: BTreeSet<String> = tested.iter().map(|form| kind(form)).collect();
    let missing = used.into_iter().filter(|(form, _)| !tested.contains(&kind(form)));
    missing.map(|(form, line)| format!("`{form}` ({file}:{line})")).collect()
}

#[test]
fn every_form_that_ships_has_a_conformance_test_or_a_recording() {
    let tested = tested();
    let shipped = shipped();
    assert!(!shipped.is_empty());
    let missing: Vec<String> =
        shipped.iter().flat_map(|(file, text)| untested(file, text, &tested)).collect();
    assert!(missing.is_empty(), "forms without a test:\n{}", missing.join("\n"));
}

#[test]
fn a_form_without_a_test_is_named_with_its_place() {
    let tested = BTreeSet::from(["add.u32".to_owned()]);
    let text = ".version 8.0\n.target sm_80\n.entry t() {\n.reg .b32 %r;\nadd.u32 %r, 1, 2;\nadd.sat.s32 %r, 1, 2;\n}";
    assert_eq!(untested("a.ptx", text, &tested), ["`add.sat.s32` (a.ptx:6)"]);
}
