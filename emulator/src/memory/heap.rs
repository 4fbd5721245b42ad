//! The heap that kernels allocate from with `malloc`: a part of global memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::global::Table;

/// Bytes of the heap, as a GPU's driver sets it aside.
pub(crate) const BYTES: u64 = 8 << 20;
/// What addresses are a multiple of; blocks are at least so far apart.
const ALIGNMENT: u64 = 16;

/// The heap of a machine.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Where it begins; 0 before the first kernel that needs it.
    base: u64,
    /// Bytes given out so far.
    used: u64,
    /// By address: bytes, and whether they are in use.
    blocks: BTreeMap<u64, (u64, bool)>,
}

/// What became of a `free`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    Done,
    Twice,
    Unknown,
}

impl Heap {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it begins; `make` gives it memory where it has none.
    pub(crate) fn place<E>(&self, make: impl FnOnce() -> Result<u64, E>) -> Result<(), E> {
        let mut state = self.state();
        if state.base == 0 {
            state.base = make()?;
        }
        Ok(())
    }

    /// Takes `bytes` bytes that nothing has written; `None` if there is no room. Freed blocks are used again
    /// when nothing else is left: whether it is such a one comes with the address.
    pub(crate) fn allocate(&self, bytes: u64, table: &Table) -> Option<(u64, bool)> {
        let mut state = self.state();
        let size = bytes.max(1).checked_next_multiple_of(ALIGNMENT)?;
        if state.base != 0 && BYTES - state.used >= size {
            let address = state.base + state.used;
            state.used += size;
            state.blocks.insert(address, (size, true));
            return Some((address, false));
        }
        let (&address, block) = state.blocks.iter_mut().find(|(_, block)| block.0 >= size && !block.1)?;
        block.1 = true;
        let (_, allocation) = table.find(address)?;
        for at in 0..block.0 / 8 {
            allocation.storage.set_written(address - allocation.base + at * 8, 8, false);
        }
        Some((address, true))
    }

    /// Gives a block back; address 0 is nothing to give.
    pub(crate) fn free(&self, address: u64) -> Freed {
        match self.state().blocks.get_mut(&address) {
            _ if address == 0 => Freed::Done,
            None => Freed::Unknown,
            Some((_, false)) => Freed::Twice,
            Some((_, used)) => {
                *used = false;
                Freed::Done
            }
        }
    }
}
