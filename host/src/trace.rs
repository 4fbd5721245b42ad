//! Watching a program: spans and events of [`tracing`], and named ranges for NVIDIA's profilers.
//!
//! A program that installs a subscriber of `tracing` sees what the library does:
//!
//! | target | level | what |
//! |---|---|---|
//! | `warpsmith::operation` | debug | a span around the call of an operation, a collective or what [`operation`] marks, with its name |
//! | `warpsmith::plan` | debug | an event for each new choice of kernels; a choice that is cached makes none |
//! | `warpsmith::module` | debug | an event for each module of PTX that is loaded, with its bytes and the milliseconds it took |
//! | `warpsmith::launch` | trace | an event for each launch: entry, grid, block, cluster, shared memory |
//! | `warpsmith::progress` | info | events of long work: what is done and how much there is |
//!
//! Without a subscriber each of them costs a comparison with a static variable.
//!
//! With `WARPSMITH_NVTX=1` in the environment, each of these spans is a range of NVTX with its name. Nsight Systems shows ranges
//! above the kernels. The library of NVTX is opened when the first operation runs. Where it is missing, nothing is marked. A
//! warning of target `warpsmith::nvtx` says so.

use std::ffi::{CStr, CString, c_char, c_int};
use std::marker::PhantomData;
use std::sync::OnceLock;

use libloading::Library;
use tracing::Level;
use tracing::span::EnteredSpan;

use crate::device::backend::LaunchSize;

/// The environment variable that turns ranges of NVTX on: `1`, or the path of the library of NVTX. Empty and `0` mean off.
pub const NVTX_VARIABLE: &str = "WARPSMITH_NVTX";

/// The names of the library of NVTX: that of CUDA 13, then that of CUDA 12.
#[cfg(not(windows))]
const LIBRARIES: &[&str] = &["libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1"];
#[cfg(windows)]
const LIBRARIES: &[&str] = &["nvtx3interop.dll", "nvToolsExt64_1.dll"];

/// The functions of NVTX.
#[derive(Debug)]
struct Nvtx {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
    /// The library that they are of.
    _library: Library,
}

impl Nvtx {
    /// Those of the first of these libraries that can be opened.
    fn open(names: &[&str]) -> Result<Self, String> {
        let mut refused = Vec::new();
        for name in names {
            // SAFETY: the initialisers of NVTX ask nothing of those who open it.
            match unsafe { Library::new(*name) } {
                Ok(library) => return Self::of(library).map_err(|error| format!("{name}: {error}")),
                Err(error) => refused.push(error.to_string()),
            }
        }
        Err(refused.join("; "))
    }

    fn of(library: Library) -> Result<Self, libloading::Error> {
        // SAFETY: NVTX declares the two with these types.
        unsafe {
            let push = *library.get::<unsafe extern "C" fn(*const c_char) -> c_int>(b"nvtxRangePushA\0")?;
            let pop = *library.get::<unsafe extern "C" fn() -> c_int>(b"nvtxRangePop\0")?;
            Ok(Self { push, pop, _library: library })
        }
    }

    /// As the environment asks.
    fn from_environment() -> Option<Self> {
        let asked = std::env::var(NVTX_VARIABLE).unwrap_or_default();
        let opened = match asked.as_str() {
            "" | "0" => return None,
            "1" => Self::open(LIBRARIES),
            path => Self::open(&[path]),
        };
        opened
            .inspect_err(|why| tracing::warn!(target: "warpsmith::nvtx", why, "no ranges: NVTX is missing"))
            .ok()
    }
}

/// The functions of NVTX if ranges are on.
fn nvtx() -> Option<&'static Nvtx> {
    static NVTX: OnceLock<Option<Nvtx>> = OnceLock::new();
    NVTX.get_or_init(Nvtx::from_environment).as_ref()
}

/// Whether the library of NVTX can be opened: the one that [`NVTX_VARIABLE`] names, else by its usual names.
///
/// # Errors
///
/// The loader's reasons, if it cannot be opened.
pub fn find_nvtx() -> Result<(), String> {
    let asked = std::env::var(NVTX_VARIABLE).unwrap_or_default();
    match asked.as_str() {
        "" | "0" | "1" => Nvtx::open(LIBRARIES),
        path => Nvtx::open(&[path]),
    }
    .map(drop)
}

/// An operation under way: a span of `tracing` and a range of NVTX, until it is dropped. Ranges of a thread end in the reverse order of their begin, else NVTX
/// shows other ones.
#[derive(Debug)]
#[must_use = "the range ends when this is dropped"]
pub struct Range {
    _span: EnteredSpan,
    nvtx: Option<&'static Nvtx>,
    /// Ranges are of a thread.
    _thread: PhantomData<*const ()>,
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(nvtx) = self.nvtx {
            // SAFETY: it takes no arguments. The range was begun on this thread; NVTX ends the thread's last one.
            unsafe { (nvtx.pop)() };
        }
    }
}

/// Marks a call of the operation of this name until the result is dropped, as this crate's operations do: for operations that are made of them, and for
/// parts of a program, such as a step of training.
///
/// ```
/// let _step = warpsmith::trace::operation("step");
/// ```
#[inline]
pub fn operation(name: &'static str) -> Range {
    let span = tracing::debug_span!(target: "warpsmith::operation", "operation", name).entered();
    let nvtx = nvtx();
    if let Some(nvtx) = nvtx {
        push(nvtx, name);
    }
    Range { _span: span, nvtx, _thread: PhantomData }
}

#[cold]
fn push(nvtx: &Nvtx, name: &str) {
    // Names of operations hold no zero byte; one that did would be shown as another.
    let name = CString::new(name).unwrap_or_else(|_| c"operation".to_owned());
    let name: &CStr = &name;
    // SAFETY: the text ends in a zero byte, and NVTX copies it.
    unsafe { (nvtx.push)(name.as_ptr()) };
}

/// Notes a launch.
#[inline]
pub(crate) fn launch(entry: &str, size: &LaunchSize) {
    if tracing::enabled!(target: "warpsmith::launch", Level::TRACE) {
        let LaunchSize { grid, block, cluster, dynamic_shared, cooperative, early, beside_last: _ } = size;
        tracing::trace!(
            target: "warpsmith::launch", entry, ?grid, ?block, ?cluster, dynamic_shared, cooperative, dependent = early, "launch"
        );
    }
}

/// Notes that `done` of `all` parts of long work are done. Work of no parts has no progress.
pub fn progress(what: &str, done: usize, all: usize) {
    tracing::info!(target: "warpsmith::progress", what, done, all, "progress");
}
