//! Where the programs of NVIDIA's CUDA toolkit are found, and which version they are.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The version of the program at `path`, such as `13.0.88`, when it runs.
pub(crate) fn version(path: &Path) -> Option<String> {
    let output =
        Command::new(path).arg("--version").output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // The copyright line and the build line have words in `V` too; the version's is followed by a digit.
    let numbered = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
    let mut versions = text.split_whitespace().filter_map(|word| word.strip_prefix('V'));
    let version = versions.find(|word| numbered(word))?;
    Some(version.trim_end_matches(',').to_owned())
}

/// The files that may be a program of the CUDA toolkit, the best first: what `name_variable` names, then those on `PATH`, in a
/// toolkit, in a PyPI wheel. `package` is the wheel's folder before CUDA 13.
pub(crate) fn candidates(program: &str, name_variable: &str, package: &str) -> Vec<PathBuf> {
    let in_bin = |root: PathBuf| root.join("bin").join(program);
    let mut found = Vec::new();
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    found.extend(variable(name_variable));
    found.extend(which::which(program));
    let toolkits =
        ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDA_TOOLKIT_ROOT_DIR"].into_iter().filter_map(variable);
    found.extend(toolkits.chain([PathBuf::from("/usr/local/cuda"), PathBuf::from("/opt/cuda")]).map(in_bin));
    found.extend(newest_first(children("/usr/local"), "cuda-").map(in_bin));
    // Wheels: the environment in use, the user's, then the system's.
    let mut pythons: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).collect();
    pythons.extend(std::env::home_dir().map(|home| home.join(".local")));
    pythons.extend(
        which::which("python3")
            .ok()
            .and_then(|python| Some(python.canonicalize().ok()?.parent()?.parent()?.to_owned())),
    );
    pythons.extend([PathBuf::from("/usr/local"), PathBuf::from("/usr")]);
    for python in pythons.iter().flat_map(|root| newest_first(children(root.join("lib")), "python3")) {
        for packages in ["site-packages", "dist-packages"] {
            let nvidia = python.join(packages).join("nvidia");
            // CUDA 13 and later share one folder; earlier wheels have one each.
            let shared = newest_first(children(&nvidia), "cu").map(in_bin);
            found.extend(shared.chain([in_bin(nvidia.join(package))]));
        }
    }
    found.retain(|path| path.is_file());
    found
}

fn children(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// The folders whose names start with `prefix`, by descending version number.
fn newest_first(folders: Vec<PathBuf>, prefix: &str) -> impl Iterator<Item = PathBuf> {
    let version = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?.strip_prefix(prefix)?;
        let numbers = name.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>();
        Some(numbers)
    };
    let mut found: Vec<_> = folders.into_iter().filter_map(|path| Some((version(&path)?, path))).collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path)
}
