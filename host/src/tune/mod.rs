//! Kept choices: which kernel was the fastest for a problem on the GPU at hand. Using them is opt-in.
//!
//! By itself an operation takes the kernel that a cost model chooses: [`ops::linear`](crate::ops::linear()), layers,
//! [`ops::matmul`](crate::ops::matmul()) and [`ops::linear_scaled`](crate::ops::linear_scaled()) that of [`gemm::select`](crate::ops::gemm::select). The
//! crate `warpsmith-lab` measures every candidate for a problem, and [`Store`] keeps the winners in a file of the user's cache folder, one for
//! each kind of GPU. A device uses what was kept only if it is asked to: by [`Device::set_tuning`], by [`Device::set_tuned`] or by the
//! environment variable `WARPSMITH_TUNE=read`.
//!
//! A kept choice says which kernel is fast, never which is right. One that does not compute the problem on the device is
//! ignored, so that a damaged or foreign file can cost time but change no result beyond the operation's error bound. Results
//! carry where they come from,
//! and those of another GPU, driver, version of this crate or of its kernels do not count.
//!
//! Nothing here knows an operation: what is chosen from stands behind a trait, and is kept by name.

#[cfg(test)]
pub(crate) mod report;
mod store;

use std::fmt::{Debug, Display};
use std::str::FromStr;

pub use store::{Found, Kept, Origin, Store};

use crate::device::Device;
use crate::device::tuning::Tiles;
pub use crate::device::tuning::{MODE_VARIABLE, Tuning};
use crate::error::Result;

/// The variable that names another folder than the user's cache folder.
pub const FOLDER_VARIABLE: &str = "WARPSMITH_CACHE_DIR";

/// What the choice of a kernel depends on: a problem, and the limits of a device.
#[doc(hidden)]
pub trait Choice {
    /// What there is to choose from.
    type Tile: Copy + Debug + Display + FromStr + PartialEq;

    /// What a tile is kept under: all that the problem is as Rust prints it, so that what a later version adds changes every key.
    fn key(&self) -> String;

    /// The tiles that compute the problem on the device.
    fn candidates(&self) -> Vec<Self::Tile>;

    /// The one that the cost model chooses; `None` if there are none.
    fn model(&self) -> Option<Self::Tile>;
}

impl Device {
    /// Has operations on this device take the results in `store`, whatever the environment says. Results that are kept in the store later are
    /// seen after another call.
    pub fn set_tuned(&self, store: &Store) {
        self.set_kept(Tuning::Read, Some(tiles(store)));
    }
}

/// The tiles of kept results.
fn tiles(store: &Store) -> Tiles {
    store.results().iter().map(|(key, kept)| (key.clone(), kept.tile.clone())).collect()
}

/// The tile that was kept for a problem on `device`; `None` too if it is none of this version's.
fn kept<C: Choice>(device: &Device, choice: &C) -> Option<C::Tile> {
    // A file that is absent or does not count holds no results: there is nothing to fail for.
    let read = || Store::open(device).map_or_else(|_| Tiles::new(), |store| tiles(&store));
    device.tuning().kept(&choice.key(), read)?.parse().ok()
}

/// The tile for a problem: the one that was kept, if the device is to use it, else the model's. `None` if no tile fits the device.
pub(crate) fn choose<C: Choice>(device: &Device, choice: &C) -> Result<Option<C::Tile>> {
    let kept = match device.tuning().mode()? {
        Tuning::Off => None,
        Tuning::Read => kept(device, choice),
    };
    let kept = kept.filter(|tile| choice.candidates().contains(tile));
    Ok(kept.or_else(|| choice.model()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Choice, Origin, Store, Tuning, choose};
    use crate::device::Device;

    /// A choice between 1 and 2, of which the model takes 1.
    struct OneOrTwo;

    impl Choice for OneOrTwo {
        type Tile = u32;

        fn key(&self) -> String {
            "one or two".into()
        }

        fn candidates(&self) -> Vec<u32> {
            vec![1, 2]
        }

        fn model(&self) -> Option<u32> {
            Some(1)
        }
    }

    #[test]
    fn a_device_follows_the_store_that_it_was_given_where_a_candidate_was_kept() {
        let (device, folder) = (Device::emulator(), tempfile::tempdir().expect("a folder"));
        let chosen = || choose(&device, &OneOrTwo).expect("the mode is set");
        for (tile, expected) in [("2", 2), ("1", 1), ("3", 1), ("of tomorrow", 1), ("", 1)] {
            let mut store = Store::open_in(folder.path(), Origin::of(&device));
            store.keep(&OneOrTwo.key(), tile, Duration::from_micros(1));
            device.set_tuned(&store);
            assert_eq!(chosen(), Some(expected), "`{tile}`");
            device.set_tuning(Tuning::Off);
            assert_eq!(chosen(), Some(1), "`{tile}`");
        }
    }
}
