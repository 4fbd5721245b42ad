//! The NVIDIA driver, opened when it is first needed.
//!
//! Nothing of it is needed to build or to start a program: its library is opened, and its [functions](sys) are found, at run time. What it
//! lacks or refuses becomes an [`Error`].

pub(crate) mod sys;

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::OnceLock;

use libloading::Library;

use crate::error::{Error, Result};
use sys::Outcome;

/// The names that the driver's library goes by, the likeliest first.
#[cfg(not(windows))]
const LIBRARIES: &[&str] = &["libcuda.so.1", "libcuda.so", WSL_LIBRARY];
/// Where the Windows Subsystem for Linux puts it, a folder that not every system searches.
#[cfg(not(windows))]
const WSL_LIBRARY: &str = "/usr/lib/wsl/lib/libcuda.so.1";
#[cfg(windows)]
const LIBRARIES: &[&str] = &["nvcuda.dll"];

/// The driver's codes that this crate tells apart.
pub(crate) mod code {
    pub(crate) const OUT_OF_MEMORY: i32 = 2;
    pub(crate) const NO_DEVICE: i32 = 100;
    pub(crate) const INVALID_IMAGE: i32 = 200;
    pub(crate) const NO_BINARY_FOR_GPU: i32 = 209;
    pub(crate) const INVALID_PTX: i32 = 218;
    pub(crate) const UNSUPPORTED_PTX_VERSION: i32 = 222;
    pub(crate) const INVALID_SOURCE: i32 = 300;
    pub(crate) const NOT_FOUND: i32 = 500;
    pub(crate) const NOT_READY: i32 = 600;
    pub(crate) const STREAM_CAPTURE_UNSUPPORTED: i32 = 900;
}

/// Why a call of the driver did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The driver returned this code, which need not be one that this crate knows.
    Code(i32),
    /// The driver lacks the function, which came with a later version of CUDA.
    Missing { function: &'static str, since: (u32, u32) },
    /// There is no driver, for this reason.
    NoDriver(&'static str),
}

impl Failure {
    fn from_code(code: c_int) -> Outcome {
        match code {
            0 => Ok(()),
            code => Err(Self::Code(code)),
        }
    }

    /// This as an error of `operation`.
    pub(crate) fn error(self, operation: &'static str) -> Error {
        match self {
            Self::Code(code) => error(operation, code),
            Self::Missing { function, since: (major, minor) } => Error::DriverLacksFunction {
                operation,
                function,
                required: format!("{major}.{minor}"),
                driver: version()
                    .map_or_else(|| "unknown".into(), |(major, minor)| format!("{major}.{minor}")),
            },
            Self::NoDriver(reason) => no_driver(reason),
        }
    }
}

/// The driver library, or why it cannot be opened. It stays open until the program ends.
pub(crate) fn library() -> std::result::Result<&'static Library, &'static str> {
    static DRIVER: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
    DRIVER.get_or_init(|| open(LIBRARIES)).as_ref().map_err(String::as_str)
}

/// The first of the libraries that can be opened, or what came of each.
fn open(names: &[&str]) -> std::result::Result<Library, String> {
    let mut reasons = Vec::new();
    for name in names {
        // SAFETY: the driver's initialisers have no requirements; it is the library that NVIDIA installs under that name.
        match unsafe { Library::new(*name) } {
            Ok(library) => return Ok(library),
            Err(error) => reasons.push(with_sources(&error)),
        }
    }
    Err(reasons.join("; "))
}

/// The error where there is no driver.
pub(crate) fn no_driver(reason: &str) -> Error {
    Error::NoDriver { expected: format!("{} of an NVIDIA driver", LIBRARIES[0]), reason: reason.to_owned() }
}

/// An error's text with that of the errors behind it, where the system's own words are.
fn with_sources(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", with_sources(source)),
        None => error.to_string(),
    }
}

/// The driver's function `name`, which ends in a zero byte; `None` without a driver and in one that lacks it.
///
/// # Safety
///
/// The function has the type `F`, a function pointer.
unsafe fn find<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: the caller answers for the type.
    unsafe { library().ok()?.get::<F>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

/// The version of CUDA that the driver is for, if it can say.
pub(crate) fn version() -> Option<(u32, u32)> {
    let mut version = 0;
    // SAFETY: the number is written to a local variable.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.ok()?;
    let version = u32::try_from(version).ok()?;
    Some((version / 1000, version % 1000 / 10))
}

/// The driver's text for an error code, from the function of that name.
fn error_text(name: &str, code: c_int) -> &'static CStr {
    type Driver = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
    let mut text = ptr::null();
    // SAFETY: both functions that are asked for have this type.
    if let Some(driver) = unsafe { find::<Driver>(name) }
        // SAFETY: the pointer is written to a local variable; any code may be asked for.
        && unsafe { driver(code, &raw mut text) } == 0
        && !text.is_null()
    {
        // SAFETY: the driver gave a string that lives as long as it does, and it is never closed.
        return unsafe { CStr::from_ptr(text) };
    }
    match library() {
        Ok(_) => c"an error that this driver has no text for",
        Err(_) => c"there is no NVIDIA driver",
    }
}

/// An outcome of `operation`, with the error that a user sees.
pub(crate) fn check(operation: &'static str, outcome: Outcome) -> Result<()> {
    outcome.map_err(|failure| failure.error(operation))
}

/// The error for a code of the driver.
pub(crate) fn error(operation: &'static str, code: i32) -> Error {
    let text = |name| error_text(name, code).to_string_lossy().into_owned();
    Error::Driver { operation, code, name: text("cuGetErrorName\0"), message: text("cuGetErrorString\0") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_reported_as_they_are_whether_or_not_they_are_known() {
        assert_eq!(Failure::from_code(0), Ok(()));
        for code in [code::OUT_OF_MEMORY, code::UNSUPPORTED_PTX_VERSION, 4711, -7] {
            assert_eq!(Failure::from_code(code), Err(Failure::Code(code)));
            let Error::Driver { operation, code: reported, name, message } =
                Failure::Code(code).error("test")
            else {
                panic!("another variant")
            };
            assert_eq!((operation, reported), ("test", code));
            assert!(!name.is_empty() && !message.is_empty());
        }
    }

    #[test]
    fn a_missing_function_is_named_with_the_version_that_brought_it() {
        let failure = Failure::Missing { function: "cuLaunchKernelEx", since: (11, 8) };
        let text = failure.error("launching a kernel").to_string();
        assert!(text.starts_with("launching a kernel: the driver has no `cuLaunchKernelEx`"), "{text}");
        assert!(text.contains("CUDA 11.8"), "{text}");
    }

    #[test]
    fn every_library_that_could_not_be_opened_is_named() {
        let reason = open(&["libnot-there.so.1", "libneither.so"]).unwrap_err();
        assert!(reason.contains("libnot-there.so.1") && reason.contains("libneither.so"), "{reason}");
        let Error::NoDriver { expected, reason } = no_driver(&reason) else { panic!("another variant") };
        assert!(expected.contains(LIBRARIES[0]) && reason.contains("libneither.so"));
    }

    #[test]
    fn a_call_without_a_driver_says_so() {
        let mut count = 0;
        // SAFETY: the number is written to a local variable.
        match unsafe { sys::cuDeviceGetCount(&raw mut count) } {
            Err(Failure::NoDriver(reason)) => assert!(library().is_err() && !reason.is_empty()),
            _ => assert!(library().is_ok()),
        }
    }
}
