//! Lists the PTX of the families whose features are on, for `src/modules.rs`.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "src/modules/index.rs"]
#[allow(unreachable_pub, reason = "the library exports what a build script cannot")]
mod index;

fn main() {
    // A build for the GPU makes the PTX, and holds none.
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("nvptx64") {
        println!("cargo::rerun-if-changed=build.rs");
        return;
    }
    let ptx = Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("set by Cargo")).join("ptx");
    println!("cargo::rerun-if-changed={}", ptx.display());
    let mut families = Vec::new();
    let (mut modules, mut texts) = (String::new(), String::new());
    for run in index::runs(&ptx).unwrap_or_else(|error| panic!("{}: {error}", ptx.display())) {
        if env::var_os(format!("CARGO_FEATURE_{}", run.family.to_uppercase())).is_some() {
            let (file, texts_name) = (run.texts(), run.folders[0].name.replace('.', "_").to_uppercase());
            let mut bytes = 0;
            for folder in &run.folders {
                let _ = writeln!(modules, "{}", module(&run.family, folder, &texts_name, &mut bytes));
            }
            check_length(&file, bytes);
            let _ = writeln!(
                texts,
                "static {texts_name}: Texts = Texts::new(include_bytes!({file:?}), {bytes});"
            );
        }
        families.push(run.family);
    }
    families.dedup();
    let text = format!(
        "/// Every kernel family; the PTX of one is here if the feature of its name is on.\n\
         pub static FAMILIES: &[&str] = &{families:?};\n\n\
         /// The PTX of this crate's kernels, for the families whose features are on.\n\
         pub static MODULES: &[PtxModule] = &[\n{modules}];\n\n{texts}"
    );
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by Cargo")).join("modules.rs");
    fs::write(&out, text).unwrap_or_else(|error| panic!("{}: {error}", out.display()));
}

/// The value of a `PtxModule`; `texts` is the static variable with its texts, which follow the first `end` bytes there. Leaves in `end`
/// where they end.
fn module(family: &str, folder: &index::Folder, texts: &str, end: &mut usize) -> String {
    let mut text = format!(
        "    PtxModule {{ family: {family:?}, arch: ({}, {}), arch_specific: {}, entries: &[\n",
        folder.arch / 10,
        folder.arch % 10,
        folder.arch_specific
    );
    let path = folder.path.join(index::INDEX);
    let index = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for entry in index::entries(&index) {
        let (name, bytes, sha256) =
            entry.unwrap_or_else(|| panic!("`{}` has a line that is no entry", path.display()));
        let start = *end;
        *end = start.checked_add(bytes).unwrap_or_else(|| panic!("`{}` has huge entries", path.display()));
        let _ = writeln!(
            text,
            "        PtxEntry {{ name: {name:?}, sha256: {sha256:?}, start: {start}, end: {end}, texts: &{texts} }},"
        );
    }
    text + "    ] },"
}

/// Compares the length that a stream's header states with that of the texts in the indices.
fn check_length(file: &Path, bytes: usize) {
    let stream = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let stated = stream.get(5..13).and_then(|field| field.try_into().ok()).map(u64::from_le_bytes);
    assert!(
        stated == Some(bytes as u64),
        "`{}` states {} bytes of text, and the indices of its folders list {bytes}: `cargo xtask ptx` writes both",
        file.display(),
        stated.map_or("no".to_owned(), |stated| stated.to_string())
    );
}
