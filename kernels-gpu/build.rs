//! Lists the PTX of the families whose features are on, for `src/modules.rs`.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "src/modules/index.rs"]
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
    for folder in sorted(&ptx).into_iter().filter(|path| path.is_dir()) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some((family, arch)) = name.split_once(".sm_") else { continue };
        families.push(family.to_owned());
        if env::var_os(format!("CARGO_FEATURE_{}", family.to_uppercase())).is_some() {
            let texts_name = name.replace('.', "_").to_uppercase();
            let _ = writeln!(modules, "{}", module(family, arch, &folder, &texts_name));
            let file = folder.join("entries.lzma");
            let _ = writeln!(texts, "static {texts_name}: Texts = Texts::new(include_bytes!({file:?}));");
        }
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

/// The value of a `PtxModule`; `arch` is what follows `sm_` in the folder's name, `texts` the static variable with its texts.
fn module(family: &str, arch: &str, folder: &Path, texts: &str) -> String {
    let digits = arch.trim_end_matches('a');
    let number: u32 =
        digits.parse().unwrap_or_else(|_| panic!("`{}` names no architecture", folder.display()));
    let mut text = format!(
        "    PtxModule {{ family: {family:?}, arch: ({}, {}), arch_specific: {}, entries: &[\n",
        number / 10,
        number % 10,
        digits != arch
    );
    let path = folder.join("index.txt");
    let index = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut start = 0;
    for entry in index::entries(&index) {
        let (name, bytes, sha256) =
            entry.unwrap_or_else(|| panic!("`{}` has a line that is no entry", path.display()));
        let end = start + bytes;
        let _ = writeln!(
            text,
            "        PtxEntry {{ name: {name:?}, sha256: {sha256:?}, start: {start}, end: {end}, texts: &{texts} }},"
        );
        start = end;
    }
    text + "    ] },"
}

fn sorted(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a folder's entry").path()).collect();
    paths.sort_unstable();
    paths
}
