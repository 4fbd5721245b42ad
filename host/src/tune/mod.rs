//! Tuning: measuring which kernel is fastest on the GPU at hand, keeping that, and using what was kept. All of it is opt-in.
//!
//! By itself an operation takes the kernel that a cost model chooses: [`ops::linear`](crate::ops::linear()), layers and
//! [`ops::matmul`](crate::ops::matmul()) that of [`linear::select`](crate::ops::linear::select::select),
//! [`ops::linear_scaled`](crate::ops::linear_scaled()) that of [`scaled::select`](crate::ops::scaled::select::select). [`linear`], [`matmul`] and
//! [`linear_scaled`] measure every candidate for one problem, and [`Store`] keeps the winners in a file of the user's cache folder, one for
//! each kind of GPU. A device uses what was kept only if it is asked to, by [`Device::set_tuning`] or by the environment variable
//! `WARPSMITH_TUNE=read`.
//!
//! A kept choice says which kernel is fast, never which is right: one that does not compute the problem on the device is ignored, so
//! that a damaged or foreign file can cost time but change no result beyond the operation's error bound. Results carry where they come from,
//! and those of another GPU, driver, version of this crate or of its kernels do not count.

mod choice;
mod measure;
#[cfg(test)]
pub(crate) mod report;
mod store;

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

pub(crate) use choice::{Choice, ProductChoice, ScaledChoice};
pub use measure::{Tuned, linear, linear_scaled, matmul};
pub(crate) use measure::{notice_product, notice_scaled};
pub use store::{Found, Kept, Origin, Store};

use crate::device::Device;
use crate::error::{Error, Result};

/// The variable that says what devices do with kept results where the program does not: `read` or `off`.
pub const MODE_VARIABLE: &str = "WARPSMITH_TUNE";
/// The variable that names another folder than the user's cache folder.
pub const FOLDER_VARIABLE: &str = "WARPSMITH_CACHE_DIR";

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

/// A device's part in tuning.
#[derive(Default)]
pub(crate) struct State(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// `None` until it is set, or read from the environment.
    mode: Option<Tuning>,
    /// The names of the tiles that were kept, once one was asked for.
    kept: Option<HashMap<String, String>>,
}

impl Device {
    /// Says whether operations on this device take kept results of [tuning](crate::tune). Unless this is called, the environment
    /// variable `WARPSMITH_TUNE` says so, and without it they do not. Results that are kept later are seen after another call.
    pub fn set_tuning(&self, tuning: Tuning) {
        *self.tuning().0.lock() = Inner { mode: Some(tuning), kept: None };
        self.decisions().clear();
    }
}

impl State {
    fn mode(&self) -> Result<Tuning> {
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

    /// The tile that was kept for a problem on `device`, whose state this is; `None` too if it is none of this version's.
    fn kept<C: Choice>(&self, device: &Device, choice: &C) -> Option<C::Tile> {
        let mut inner = self.0.lock();
        // A file that is absent or does not count holds no results: there is nothing to fail for.
        let kept = inner.kept.get_or_insert_with(|| {
            Store::open(device).map_or_else(|_| HashMap::new(), |store| tiles(store.results()))
        });
        kept.get(&choice.key())?.parse().ok()
    }
}

/// The tiles of kept results.
fn tiles(results: &BTreeMap<String, Kept>) -> HashMap<String, String> {
    results.iter().map(|(key, kept)| (key.clone(), kept.tile.clone())).collect()
}

/// The tile for a problem: the one that was kept, if the device is to use it, else the model's. `None` if no tile fits the device.
pub(crate) fn choose<C: Choice>(device: &Device, choice: &C) -> Result<Option<C::Tile>> {
    let kept = match device.tuning().mode()? {
        Tuning::Off => None,
        Tuning::Read => device.tuning().kept(device, choice),
    };
    let kept = kept.filter(|tile| choice.candidates().contains(tile));
    Ok(kept.or_else(|| choice.model()))
}

#[cfg(test)]
mod tests;
