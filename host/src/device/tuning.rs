//! What a device was told of kept choices of kernels: whether operations take them, and which those are.
//!
//! [`tune`](crate::tune) reads and writes the files. Here keys and tiles are texts, so that a device knows no operation.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::Device;
use crate::error::{Error, Result};

/// The variable that says what devices do with kept results where the program does not: `read` or `off`.
pub const MODE_VARIABLE: &str = "WARPSMITH_TUNE";

/// What a device does with kept results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tuning {
    /// Nothing: the cost model chooses.
    #[default]
    Off,
    /// It takes what was kept for a problem, and what the cost model chooses for all others.
    Read,
}

impl std::str::FromStr for Tuning {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "" | "off" => Ok(Self::Off),
            "read" => Ok(Self::Read),
            other => Err(Error::Argument {
                operation: "tuning",
                argument: MODE_VARIABLE,
                expected: "`read` or `off`".into(),
                actual: format!("`{other}`"),
            }),
        }
    }
}

/// The names of tiles, by the keys of the problems that they were kept for.
pub(crate) type Tiles = HashMap<String, String>;

/// A device's part in tuning.
#[derive(Default)]
pub(crate) struct State(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// `None` until it is set, or read from the environment.
    mode: Option<Tuning>,
    /// What was kept, once it was asked for.
    kept: Option<Tiles>,
}

impl Device {
    /// Says whether operations on this device take kept results of [tuning](crate::tune). Unless this is called, the environment
    /// variable `WARPSMITH_TUNE` says so, and without it they do not. Results that are kept later are seen after another call.
    pub fn set_tuning(&self, tuning: Tuning) {
        self.set_kept(tuning, None);
    }

    /// The same, with what was kept. Without it, the first operation that wants it reads the file.
    pub(crate) fn set_kept(&self, tuning: Tuning, kept: Option<Tiles>) {
        *self.tuning().0.lock() = Inner { mode: Some(tuning), kept };
        self.decisions().clear();
    }
}

impl State {
    /// What operations do with kept results.
    pub(crate) fn mode(&self) -> Result<Tuning> {
        let mut inner = self.0.lock();
        if let Some(mode) = inner.mode {
            return Ok(mode);
        }
        let mode = match std::env::var(MODE_VARIABLE) {
            Ok(text) => text.parse()?,
            Err(_) => Tuning::Off,
        };
        inner.mode = Some(mode);
        Ok(mode)
    }

    /// The name of the tile that was kept under a key. `read` gives all that was kept, the first time.
    pub(crate) fn kept(&self, key: &str, read: impl FnOnce() -> Tiles) -> Option<String> {
        self.0.lock().kept.get_or_insert_with(read).get(key).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::{MODE_VARIABLE, Tuning};

    #[test]
    fn an_unknown_mode_is_an_error_that_names_the_variable() {
        assert_eq!("read".parse::<Tuning>().expect("a mode"), Tuning::Read);
        assert_eq!("off".parse::<Tuning>().expect("a mode"), Tuning::Off);
        let error = "raed".parse::<Tuning>().expect_err("no mode").to_string();
        assert!(error.contains(MODE_VARIABLE) && error.contains("`raed`"), "{error}");
    }
}
