//! The hash of a kernel crate's sources: what it depends on, and what it does not.

use std::fs;
use std::path::{Path, PathBuf};

use warpsmith_builder::{Arch, Builder, Error, Target};

const ROOT: &str = "[workspace]\nresolver = \"3\"\nmembers = [\"kernels\", \"dsl\", \"macros\", \"other\"]\n";

fn manifest(name: &str, rest: &str) -> String {
    format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n{rest}")
}

/// A workspace with a kernel crate, its path dependencies (one of them outside the workspace) and a crate that it does not use.
fn workspace() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let kernels = "[features]\ndefault = [\"linear\"]\nlinear = []\nnorm = []\n[dependencies]\ndsl = { path = \"../dsl\" }\n\
                   [dev-dependencies]\nother = { path = \"../other\" }\n";
    for (file, text) in [
        ("repository/Cargo.toml", ROOT.to_owned()),
        ("repository/kernels/Cargo.toml", manifest("kernels", kernels)),
        ("repository/dsl/Cargo.toml", manifest("dsl", "[dependencies]\nmacros = { path = \"../macros\" }\n")),
        (
            "repository/macros/Cargo.toml",
            manifest(
                "macros",
                "[lib]\nproc-macro = true\n[dependencies]\noutside = { path = \"../../outside\" }\n",
            ),
        ),
        ("repository/other/Cargo.toml", manifest("other", "")),
        ("outside/Cargo.toml", manifest("outside", "[workspace]\n")),
    ] {
        write(&root.path().join(file), &text);
    }
    for package in
        ["repository/kernels", "repository/dsl", "repository/macros", "repository/other", "outside"]
    {
        write(&root.path().join(package).join("src/lib.rs"), &format!("//! {package}\n"));
    }
    write(&root.path().join("repository/kernels/src/family/linear.rs"), "// a kernel\n");
    root
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn kernels(root: &tempfile::TempDir) -> PathBuf {
    root.path().join("repository/kernels")
}

fn target() -> Target {
    Target { family: "linear".into(), arch: Arch::SM_80 }
}

fn hash(root: &tempfile::TempDir) -> String {
    Builder::new(kernels(root)).source_hash(&target()).unwrap()
}

#[test]
fn equal_sources_in_two_folders_have_one_hash() {
    let (one, other) = (workspace(), workspace());
    let hash_of_one = hash(&one);
    assert_eq!(hash_of_one, hash(&other));
    assert_eq!(hash_of_one.len(), "sha256:".len() + 64);
    assert_eq!(hash_of_one, hash(&one), "asking again");
}

#[test]
fn line_ends_do_not_count() {
    let root = workspace();
    let before = hash(&root);
    let file = kernels(&root).join("src/lib.rs");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace('\n', "\r\n")).unwrap();
    assert_eq!(hash(&root), before);
}

#[test]
fn a_change_in_the_crate_or_in_any_path_dependency_changes_the_hash() {
    for file in [
        "repository/kernels/src/lib.rs",
        "repository/kernels/src/family/linear.rs",
        "repository/kernels/Cargo.toml",
        "repository/dsl/src/lib.rs",
        "repository/macros/src/lib.rs",
        "repository/macros/Cargo.toml",
        "outside/src/lib.rs",
    ] {
        let root = workspace();
        let before = hash(&root);
        let path = root.path().join(file);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}\n# more\n")).unwrap();
        assert_ne!(hash(&root), before, "{file}");
    }
}

#[test]
fn new_moved_and_removed_files_change_the_hash() {
    let root = workspace();
    let before = hash(&root);
    let source = kernels(&root).join("src");
    fs::write(source.join("new.rs"), "").unwrap();
    let with_new = hash(&root);
    assert_ne!(with_new, before);
    fs::rename(source.join("new.rs"), source.join("moved.rs")).unwrap();
    assert_ne!(hash(&root), with_new);
    fs::remove_file(source.join("moved.rs")).unwrap();
    assert_eq!(hash(&root), before);
    fs::write(kernels(&root).join("build.rs"), "fn main() {}").unwrap();
    assert_ne!(hash(&root), before);
}

#[test]
fn what_the_ptx_does_not_depend_on_does_not_count() {
    let root = workspace();
    let before = hash(&root);
    for file in [
        "repository/other/src/lib.rs",
        "repository/kernels/ptx/linear.sm_80.ptx",
        "repository/kernels/tests/host.rs",
        "repository/kernels/README.md",
        "repository/kernels/src/.linear.rs.swp",
        "repository/Cargo.lock",
    ] {
        write(&root.path().join(file), "changed");
        if file.ends_with("Cargo.lock") {
            write(&root.path().join(file), "version = 4\n");
        }
        assert_eq!(hash(&root), before, "{file}");
    }
}

#[test]
fn modules_of_the_kernel_crate_that_say_so_are_for_the_host_only() {
    let attribute = "#![cfg(not(target_arch = \"nvptx64\"))]";
    let host_only = format!("//! For the host.\n\n// Why.\n{attribute}\n");
    let root = workspace();
    let before = hash(&root);
    let file = kernels(&root).join("src/host/list.rs");
    for text in
        [format!("{host_only}fn one() {{}}\n"), format!("{host_only}fn two() {{}}\n").replace('\n', "\r\n")]
    {
        write(&file, &text);
        assert_eq!(hash(&root), before, "{text}");
    }
    // The attribute is of the whole module only where it comes first.
    for text in [
        format!("fn one() {{}}\n{attribute}\n"),
        format!("/*\n{attribute}\n*/\n"),
        format!("{}\nfn one() {{}}\n", attribute.replace('!', "")),
        format!("{attribute} fn one() {{}}\n"),
    ] {
        write(&file, &text);
        assert_ne!(hash(&root), before, "{text}");
    }
    fs::remove_file(&file).unwrap();
    // A dependency may be compiled for the host, a macro is, and a build script's output may depend on what it is.
    for file in ["repository/macros/src/list.rs", "repository/dsl/src/list.rs", "repository/kernels/build.rs"]
    {
        let root = workspace();
        let before = hash(&root);
        write(&root.path().join(file), &host_only);
        assert_ne!(hash(&root), before, "{file}");
    }
}

#[test]
fn family_and_architecture_are_part_of_the_hash() {
    let root = workspace();
    let builder = Builder::new(kernels(&root));
    let hash = |family: &str, arch| builder.source_hash(&Target { family: family.into(), arch }).unwrap();
    let hashes = [hash("linear", Arch::SM_80), hash("linear", Arch::SM_90A), hash("norm", Arch::SM_80)];
    assert!(hashes[0] != hashes[1] && hashes[0] != hashes[2] && hashes[1] != hashes[2]);
}

#[test]
fn the_manifest_lists_what_is_built_and_the_caller_may_choose() {
    let names = |builder: &Builder| -> Vec<String> {
        builder.targets().unwrap().iter().map(Target::file_name).collect()
    };
    let root = workspace();
    let builder = Builder::new(kernels(&root));
    assert_eq!(
        names(&builder),
        ["linear.sm_80.ptx", "norm.sm_80.ptx"],
        "without a list: every feature but `default`"
    );

    let path = kernels(&root).join("Cargo.toml");
    let text = fs::read_to_string(&path).unwrap();
    let list = "[package.metadata.warpsmith.ptx]\nlinear = [\"sm_80\", \"sm_90a\"]\n";
    fs::write(&path, format!("{text}{list}")).unwrap();
    assert_eq!(names(&builder), ["linear.sm_80.ptx", "linear.sm_90a.ptx"]);
    assert_eq!(names(&builder.clone().archs([Arch::SM_90A])), ["linear.sm_90a.ptx"]);
    assert_eq!(names(&builder.clone().families(["norm"])), ["norm.sm_80.ptx"]);

    let error = builder.clone().families(["liner"]).targets().unwrap_err();
    assert!(
        matches!(&error, Error::Family { family, features, .. } if family == "liner" && features.len() == 2)
    );

    fs::write(&path, format!("{text}{}", list.replace("sm_90a", "hopper"))).unwrap();
    let error = builder.targets().unwrap_err().to_string();
    assert!(error.contains("`hopper`"), "{error}");
}

#[test]
fn a_folder_without_a_package_is_an_error_that_names_it() {
    let root = workspace();
    for folder in ["repository", "nowhere"] {
        let folder = root.path().join(folder);
        let error = Builder::new(&folder).targets().unwrap_err().to_string();
        assert!(error.contains(&*folder.to_string_lossy()), "{error}");
    }
}
