//! NCCL's library, opened when it is first needed.
//!
//! Types are `cudarc`'s. Its own loader is not called: it looks for names that the wheel has not, and panics where it finds none.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::nccl::sys::{ncclComm_t, ncclConfig_t, ncclUniqueId};

use crate::error::{Error, Failure, Result};

/// The variable that names the library's file.
const VARIABLE: &str = "WARPSMITH_NCCL";
/// The names by which the system's loader may find it.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// Where the wheel has it, from Python's folder of packages.
const IN_PACKAGES: &str = "nvidia/nccl/lib/libnccl.so.2";
/// How to get it.
const HINT: &str =
    "`pip install nvidia-nccl-cu13` in the active Python environment, or name the file in WARPSMITH_NCCL";
/// The oldest version whose communicators need not block: 2.14.
const OLDEST: c_int = 21_400;

/// NCCL's codes that are told apart.
pub(super) const SUCCESS: c_int = 0;
pub(super) const IN_PROGRESS: c_int = 7;
/// The names of the codes.
const CODES: [&str; 9] = [
    "ncclSuccess",
    "ncclUnhandledCudaError",
    "ncclSystemError",
    "ncclInternalError",
    "ncclInvalidArgument",
    "ncclInvalidUsage",
    "ncclRemoteError",
    "ncclInProgress",
    "ncclTimeout",
];

macro_rules! functions {
    ($($field:ident = $symbol:literal ($($type:ty),*) -> $result:ty;)*) => {
        /// NCCL's functions. Codes are numbers: a newer version's need not be one that this crate knows.
        pub(super) struct Library {
            $(pub(super) $field: unsafe extern "C" fn($($type),*) -> $result,)*
            version: c_int,
            /// What has the functions.
            _library: libloading::Library,
        }

        impl Library {
            /// The functions of an opened library, or the name of the one that it lacks.
            fn functions(library: libloading::Library) -> std::result::Result<Self, &'static str> {
                $(
                    // SAFETY: NCCL's function of this name has this type in all versions since 2.14.
                    let $field = unsafe { library.get::<unsafe extern "C" fn($($type),*) -> $result>($symbol) };
                    let $field = *$field.map_err(|_| std::str::from_utf8($symbol).unwrap_or_default())?;
                )*
                Ok(Self { $($field,)* version: 0, _library: library })
            }
        }
    };
}
functions! {
    get_version = b"ncclGetVersion" (*mut c_int) -> c_int;
    get_unique_id = b"ncclGetUniqueId" (*mut ncclUniqueId) -> c_int;
    init_rank = b"ncclCommInitRankConfig" (*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> c_int;
    finalize = b"ncclCommFinalize" (ncclComm_t) -> c_int;
    destroy = b"ncclCommDestroy" (ncclComm_t) -> c_int;
    abort = b"ncclCommAbort" (ncclComm_t) -> c_int;
    async_error = b"ncclCommGetAsyncError" (ncclComm_t, *mut c_int) -> c_int;
    error_string = b"ncclGetErrorString" (c_int) -> *const c_char;
    last_error = b"ncclGetLastError" (ncclComm_t) -> *const c_char;
    group_start = b"ncclGroupStart" () -> c_int;
    group_end = b"ncclGroupEnd" () -> c_int;
    all_reduce = b"ncclAllReduce" (*const c_void, *mut c_void, usize, c_int, c_int, ncclComm_t, *mut c_void) -> c_int;
    reduce_scatter = b"ncclReduceScatter" (*const c_void, *mut c_void, usize, c_int, c_int, ncclComm_t, *mut c_void) -> c_int;
    all_gather = b"ncclAllGather" (*const c_void, *mut c_void, usize, c_int, ncclComm_t, *mut c_void) -> c_int;
    broadcast = b"ncclBroadcast" (*const c_void, *mut c_void, usize, c_int, c_int, ncclComm_t, *mut c_void) -> c_int;
    send = b"ncclSend" (*const c_void, usize, c_int, c_int, ncclComm_t, *mut c_void) -> c_int;
    recv = b"ncclRecv" (*mut c_void, usize, c_int, c_int, ncclComm_t, *mut c_void) -> c_int;
}

impl Library {
    /// The library, opened by the first call.
    pub(super) fn get() -> Result<&'static Self> {
        static LIBRARY: OnceLock<std::result::Result<Library, (String, String)>> = OnceLock::new();
        LIBRARY.get_or_init(|| Self::open(&candidates(&|name| std::env::var(name).ok()))).as_ref().map_err(
            |(reason, tried)| Error::Library {
                library: "NCCL",
                reason: reason.clone(),
                tried: tried.clone(),
                hint: HINT,
            },
        )
    }

    /// The first of the files that can be opened; else why none could, and what was tried.
    fn open(candidates: &[PathBuf]) -> std::result::Result<Self, (String, String)> {
        let tried =
            || candidates.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        let mut reason = String::from("it was not found");
        for path in candidates {
            // SAFETY: opening NCCL runs its initialisers, which need nothing.
            match unsafe { libloading::Library::new(path) } {
                Ok(library) => {
                    let mut library = Self::functions(library)
                        .map_err(|name| (format!("{} has no `{name}`", path.display()), tried()))?;
                    // SAFETY: the version is written to a field.
                    unsafe { (library.get_version)(&raw mut library.version) };
                    if library.version < OLDEST {
                        let old = format!("{} is version {}", path.display(), library.version_text());
                        return Err((format!("{old}, expected 2.14 or later"), tried()));
                    }
                    return Ok(library);
                }
                // What is there but cannot be opened says more than what is not there.
                Err(error) if path.is_file() => reason = said(&error),
                Err(_) => {}
            }
        }
        Err((reason, tried()))
    }

    pub(super) fn version(&self) -> c_int {
        self.version
    }

    pub(super) fn version_text(&self) -> String {
        format!("{}.{}.{}", self.version / 10_000, self.version / 100 % 100, self.version % 100)
    }

    /// What a code means, with what NCCL last said about it.
    pub(super) fn failure(&self, operation: &str, code: c_int, comm: ncclComm_t) -> Failure {
        // SAFETY: NCCL returns a string of its own for any code, and for a communicator or null.
        let texts = unsafe { [(self.error_string)(code), (self.last_error)(comm)] };
        let texts = texts.into_iter().filter(|text| !text.is_null()).map(|text| {
            // SAFETY: it is a string that ends with zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
        });
        let message: Vec<_> = texts.filter(|text| !text.is_empty()).collect();
        let name = usize::try_from(code).ok().and_then(|code| CODES.get(code)).copied();
        Failure::Nccl {
            operation: operation.into(),
            code: code.unsigned_abs(),
            name: name.unwrap_or("an unknown code").into(),
            message: message.join("; "),
        }
    }
}

/// What the system's loader said.
fn said(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error).map(ToString::to_string);
    source.unwrap_or_else(|| error.to_string())
}

/// Where the library is looked for, the likeliest first.
fn candidates(variable: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    if let Some(path) = variable(VARIABLE) {
        // Whoever names a file wants no other.
        return vec![path.into()];
    }
    let mut all: Vec<PathBuf> = NAMES.iter().map(PathBuf::from).collect();
    let paths = variable("PYTHONPATH").unwrap_or_default();
    all.extend(std::env::split_paths(&paths).map(|folder| folder.join(IN_PACKAGES)));
    let home = variable("HOME").map(|home| PathBuf::from(home).join(".local"));
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).map(PathBuf::from);
    let roots = environments.chain(home).chain(["/usr/local".into(), "/usr".into()]);
    all.extend(roots.flat_map(|root| packages(&root.join("lib"))).map(|folder| folder.join(IN_PACKAGES)));
    all.retain(|path| path.parent() == Some(Path::new("")) || path.is_file());
    all
}

/// The folders of packages of each Python in a folder of libraries.
fn packages(library: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(library) else { return Vec::new() };
    let is_python =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"));
    let mut pythons: Vec<_> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_python).collect();
    pythons.sort();
    pythons
        .into_iter()
        .flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{HINT, IN_PACKAGES, Library, candidates};

    #[test]
    fn a_named_file_is_the_only_candidate() {
        let found = candidates(&|name| (name == "WARPSMITH_NCCL").then(|| "/a/b.so".into()));
        assert_eq!(found, [std::path::PathBuf::from("/a/b.so")]);
    }

    #[test]
    fn the_wheel_of_an_active_environment_is_found() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let file = root.path().join("lib/python3.11/site-packages").join(IN_PACKAGES);
        std::fs::create_dir_all(file.parent().expect("it has a folder"))?;
        std::fs::write(&file, b"no library")?;
        let environment = root.path().display().to_string();
        let found = candidates(&|name| (name == "VIRTUAL_ENV").then(|| environment.clone()));
        assert!(found.contains(&file), "{found:?}");
        // It is no library, and the error says so.
        let Err((reason, tried)) = Library::open(&[file]) else { panic!("it is opened") };
        assert!(reason.contains("libnccl.so.2"), "{reason}");
        assert!(tried.contains(IN_PACKAGES), "{tried}");
        Ok(())
    }

    #[test]
    fn a_missing_library_says_how_to_get_it() {
        let Err((reason, tried)) = Library::open(&["/nowhere/libnccl.so.2".into()]) else {
            panic!("it is opened")
        };
        assert_eq!((reason.as_str(), tried.as_str()), ("it was not found", "/nowhere/libnccl.so.2"));
        assert!(HINT.contains("nvidia-nccl-cu13"));
    }

    #[test]
    fn another_library_lacks_the_functions() {
        let Err((reason, _)) = Library::open(&["libc.so.6".into()]) else { panic!("it is no NCCL") };
        assert!(reason.contains("has no `ncclGetVersion`"), "{reason}");
    }
}
