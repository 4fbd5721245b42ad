//! What was decided for earlier calls, so that a call like one of them decides nothing again.
//!
//! A key holds everything that a decision depends on, the device aside, as numbers. So a decision that is kept is the one that would be made again.

use std::any::Any;
use std::sync::Arc;

use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::error::Result;
use crate::tensor::View;

/// Decisions that are kept at most. Behind that all are dropped: whoever needs so many does not make the same calls again.
const MOST: usize = 8192;

/// What a decision depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(SmallVec<[u64; 64]>);

impl Key {
    /// A key of decisions of this kind, whose name no other kind has.
    pub(crate) fn new(kind: &'static str) -> Self {
        // Of the names there are few, and each is in one place of the program: but equal texts may be in two.
        let mut key = Self(SmallVec::new());
        key.text(kind);
        key
    }

    /// Adds a text.
    fn text(&mut self, text: &str) {
        self.number(text.len());
        for chunk in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0.push(u64::from_le_bytes(word));
        }
    }

    /// Adds a number.
    pub(crate) fn number(&mut self, number: usize) -> &mut Self {
        self.0.push(number as u64);
        self
    }

    /// Adds a tensor's layout: type, shape, strides and where its first element is within 128 bytes. What else an address is decides nothing.
    pub(crate) fn view(&mut self, view: View<'_>) -> &mut Self {
        let View { element, address, shape, strides } = view;
        self.number(element as usize).number(shape.len()).number(address as usize % 128);
        self.0.extend(shape.iter().chain(strides).map(|&number| number as u64));
        self
    }

    /// Adds the layout of a tensor that may be absent.
    pub(crate) fn optional(&mut self, view: Option<View<'_>>) -> &mut Self {
        match view {
            Some(view) => self.number(1).view(view),
            None => self.number(0),
        }
    }
}

/// The decisions of a device.
#[derive(Default)]
pub(crate) struct Decisions(RwLock<Kept>);

#[derive(Default)]
struct Kept {
    decisions: FxHashMap<Key, Arc<dyn Any + Send + Sync>>,
    /// How often what they depend on has changed.
    changes: u64,
}

impl Decisions {
    /// What `decide` has given for this key, or gives now. Errors are not kept.
    pub(crate) fn get<V: Any + Send + Sync>(
        &self,
        key: Key,
        decide: impl FnOnce() -> Result<V>,
    ) -> Result<Arc<V>> {
        let (kept, changes) = {
            let all = self.0.read();
            (all.decisions.get(&key).cloned(), all.changes)
        };
        if let Some(kept) = kept.and_then(|kept| kept.downcast().ok()) {
            return Ok(kept);
        }
        // Without the lock: threads that make other calls do not wait.
        let decided = Arc::new(decide()?);
        let mut all = self.0.write();
        // What it depends on may have changed meanwhile.
        if all.changes == changes {
            if all.decisions.len() >= MOST {
                all.decisions.clear();
            }
            all.decisions.insert(key, decided.clone());
        }
        Ok(decided)
    }

    /// Drops all, since what they depend on has changed.
    pub(crate) fn clear(&self) {
        let mut all = self.0.write();
        all.decisions.clear();
        all.changes += 1;
    }

    /// How many are kept.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.read().decisions.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{Decisions, Key, MOST};
    use crate::device::Device;
    use crate::error::Error;
    use crate::tensor::{Tensor, View};

    #[test]
    fn each_key_is_decided_once_and_errors_are_not_kept() {
        let decisions = Decisions::default();
        let key = |number| {
            let mut key = Key::new("test");
            key.number(number);
            key
        };
        let refused = || Err(Error::ReadOnly { operation: "test", operand: "x" });
        assert!(decisions.get::<u32>(key(1), refused).is_err());
        assert_eq!(*decisions.get(key(1), || Ok(7u32)).unwrap(), 7);
        assert_eq!(*decisions.get::<u32>(key(1), refused).unwrap(), 7);
        assert_eq!(*decisions.get(key(2), || Ok(8u32)).unwrap(), 8);
        decisions.clear();
        assert!(decisions.get::<u32>(key(1), refused).is_err());
        // One that was made before a change is not kept.
        let before = || {
            decisions.clear();
            Ok(9u32)
        };
        assert_eq!(*decisions.get(key(1), before).unwrap(), 9);
        assert!(decisions.get::<u32>(key(1), refused).is_err());
        for number in 0..2 * MOST {
            decisions.get(key(number), || Ok(number)).unwrap();
        }
        assert!(decisions.count() <= MOST);
    }

    #[test]
    fn keys_tell_apart_what_is_not_alike() {
        let device = Device::emulator();
        let x = Tensor::<f32>::zeros(&device, [4, 6]).unwrap();
        let of = |tensor: &Tensor<f32>| {
            let mut key = Key::new("test");
            key.view(View::of(tensor));
            key
        };
        assert_eq!(of(&x), of(&Tensor::zeros(&device, [4, 6]).unwrap()));
        let others = [
            x.swap_axes(0, 1).unwrap(),
            x.slice(0, 0..3).unwrap(),
            x.slice(1, 1..6).unwrap(),
            x.slice(1, 0..5).unwrap(),
            x.reshape([4, 6, 1]).unwrap(),
        ];
        for (index, other) in others.iter().enumerate() {
            assert_ne!(of(&x), of(other), "{index}");
        }
        assert_ne!(of(&x), {
            let mut key = Key::new("test");
            key.optional(Some(View::of(&x)));
            key
        });
        assert_ne!(Key::new("test"), Key::new("tests"));
        assert_ne!(Key::new("12345678"), Key::new("12345678\0"));
    }
}
