//! The NVIDIA driver, opened when it is first needed.
//!
//! `cust` calls driver functions that it expects to find when the program is linked. [`forward`] defines them; this
//! module opens the library behind them and turns the driver's error codes into [`Error`]s.

mod codes;
mod forward;

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::OnceLock;

use cust::error::CudaError;
use cust_raw::CUresult;
use libloading::Library;

use crate::error::{Error, Result};

#[cfg(not(windows))]
const LIBRARY: &str = "libcuda.so.1";
#[cfg(windows)]
const LIBRARY: &str = "nvcuda.dll";

thread_local! {
    /// The last error code that the driver returned to this thread. `cust` and `cust_raw` each turn codes that they have
    /// no name for into "unknown"; this is what was behind it.
    static LAST_FAILURE: Cell<c_int> = const { Cell::new(CUresult::CUDA_ERROR_UNKNOWN as c_int) };
}

/// The driver library, or why it cannot be opened. It stays open until the program ends.
pub(crate) fn library() -> std::result::Result<&'static Library, &'static str> {
    static DRIVER: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
    DRIVER
        // SAFETY: the driver's initialisers have no requirements; it is the library that NVIDIA installs under that name.
        .get_or_init(|| unsafe { Library::new(LIBRARY) }.map_err(|error| with_sources(&error)))
        .as_ref()
        .map_err(String::as_str)
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
unsafe fn function<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: the caller answers for the type.
    unsafe { library().ok()?.get::<F>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

/// Calls a function of the driver that `cust_raw` does not declare; `name` ends in a zero byte.
///
/// # Safety
///
/// The function has the type `F`, a function pointer.
pub(crate) unsafe fn call<F: Copy>(
    operation: &'static str,
    name: &str,
    call: impl FnOnce(F) -> c_int,
) -> Result<()> {
    // SAFETY: the caller answers for the type.
    check(operation, unsafe { function::<F>(name) }.map_or_else(unavailable, |found| known(call(found))))
}

/// The result of a forwarded call that reached no function.
fn unavailable() -> CUresult {
    match library() {
        Ok(_) => CUresult::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND,
        Err(_) => CUresult::CUDA_ERROR_NOT_INITIALIZED,
    }
}

/// A code of the driver as a value of `cust_raw`'s enum. One that the enum lacks becomes "unknown".
fn known(code: c_int) -> CUresult {
    if code == 0 {
        return CUresult::CUDA_SUCCESS;
    }
    LAST_FAILURE.set(code);
    let known = codes::KNOWN.iter().copied().find(|&known| known as c_int == code);
    known.unwrap_or(CUresult::CUDA_ERROR_UNKNOWN)
}

/// The driver's text for an error code, from the function of that name.
fn error_text(name: &str, code: c_int) -> &'static CStr {
    type Driver = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
    let mut text = ptr::null();
    // SAFETY: both functions that are asked for have this type.
    if let Some(driver) = unsafe { function::<Driver>(name) }
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

/// The code behind the result of the thread's last call of the driver.
pub(crate) fn code(result: CUresult) -> i32 {
    match result {
        CUresult::CUDA_ERROR_UNKNOWN => LAST_FAILURE.get(),
        other => other as i32,
    }
}

/// The error for a result of the driver, if it is one.
pub(crate) fn check(operation: &'static str, result: CUresult) -> Result<()> {
    match code(result) {
        0 => Ok(()),
        code => Err(error(operation, code)),
    }
}

/// The error for a code of the driver.
pub(crate) fn error(operation: &'static str, code: i32) -> Error {
    let text = |name| error_text(name, code).to_string_lossy().into_owned();
    Error::Driver { operation, code, name: text("cuGetErrorName\0"), message: text("cuGetErrorString\0") }
}

/// The code behind an error of `cust`'s, which came from the thread's last call of the driver.
pub(crate) fn cust_code(error: CudaError) -> i32 {
    match error {
        CudaError::UnknownError => code(CUresult::CUDA_ERROR_UNKNOWN),
        other => other as i32,
    }
}

/// Turns an error of `cust`'s into one of ours.
pub(crate) fn cust_error(operation: &'static str) -> impl Fn(CudaError) -> Error {
    move |failure| error(operation, cust_code(failure))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_enum_stays_itself_and_others_are_remembered() {
        for &result in codes::KNOWN {
            assert_eq!(known(result as c_int), result);
        }
        assert_eq!(known(-7), CUresult::CUDA_ERROR_UNKNOWN);
        assert_eq!(code(CUresult::CUDA_ERROR_UNKNOWN), -7);
    }

    #[test]
    fn codes_that_cust_has_no_name_for_are_reported_as_they_are() {
        const UNSUPPORTED_PTX_VERSION: c_int = 222;
        assert_eq!(code(known(UNSUPPORTED_PTX_VERSION)), UNSUPPORTED_PTX_VERSION);
        assert_eq!(cust_code(CudaError::UnknownError), UNSUPPORTED_PTX_VERSION);
    }

    #[test]
    fn errors_have_a_text_with_and_without_a_driver() {
        let Error::Driver { code, name, message, .. } = error("test", 2) else { panic!("another variant") };
        assert_eq!(code, 2);
        assert!(!name.is_empty() && !message.is_empty());
        assert!(!CudaError::OutOfMemory.to_string().is_empty());
    }
}
