//! Global memory: the table of allocations.
//!
//! Every allocation has an address range of its own, far from the next one, and an address is never given out twice.
//! So a stray access meets a red zone, and an access through a stale pointer meets the record of what was freed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use super::storage::Storage;
use crate::error::MemoryError;

/// The first address; everything below is never valid.
const FIRST_ADDRESS: u64 = 0x7000_0000_0000;
/// Addresses between two allocations that belong to neither.
const RED_ZONE: u64 = 1 << 20;
const ALIGNMENT: u64 = 256;
/// The end of the addresses that global memory may use; windows of other spaces are above.
pub(crate) const LAST_ADDRESS: u64 = 0xf000_0000_0000;
/// How many freed ranges are remembered by name. Addresses are not reused after that either.
const QUARANTINE: usize = 1 << 16;

/// A number that no launch has.
const NO_LAUNCH: u64 = u64::MAX;

/// One live allocation.
#[derive(Clone)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) storage: Arc<Storage>,
    /// Counts allocations from 0, to name them in findings.
    pub(crate) number: u64,
    /// A module's variable of this name, not an allocation of the host.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) read_only: bool,
    /// The number of the last launch that wrote to it.
    written: Arc<AtomicU64>,
}

impl Allocation {
    /// Notes a write by the launch of this number.
    #[inline(always)]
    pub(crate) fn note_write(&self, launch: u64) {
        if self.written.load(Relaxed) != launch {
            self.written.store(launch, Relaxed);
        }
    }

    /// Whether the launch of this number was the last that wrote to it.
    pub(crate) fn is_written_by(&self, launch: u64) -> bool {
        self.written.load(Relaxed) == launch
    }

    /// What helps against a write, if it may only be read.
    pub(crate) fn hint_of_write(&self) -> Option<&'static str> {
        let is_input = self.read_only && self.name.is_none();
        is_input.then_some(
            "the buffer was given as an input: give it as `in_place` if the kernel is to change it",
        )
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.storage.bytes()
    }
}

/// All allocations at one moment. Launches hold on to the table they started with.
#[derive(Clone, Default)]
pub(crate) struct Table {
    /// Ascending by base.
    live: Vec<Allocation>,
    freed: VecDeque<(u64, u64, u64)>,
}

impl Table {
    /// The allocation that holds `address`, with its position in the table.
    pub(crate) fn find(&self, address: u64) -> Option<(usize, &Allocation)> {
        let index = self.live.partition_point(|a| a.base <= address).checked_sub(1)?;
        let allocation = &self.live[index];
        (address - allocation.base < allocation.bytes()).then_some((index, allocation))
    }

    /// The allocation at a position, if there is one.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> Option<&Allocation> {
        self.live.get(index)
    }

    /// The allocation at a position that [`Table::find`] gave.
    pub(crate) fn at(&self, index: usize) -> &Allocation {
        &self.live[index]
    }

    /// Whether `address` is in memory that was freed.
    pub(crate) fn is_freed(&self, address: u64) -> bool {
        self.freed.iter().any(|&(base, bytes, _)| address.wrapping_sub(base) < bytes.max(1))
    }

    /// What is at `address`, in words.
    pub(crate) fn describe(&self, address: u64) -> String {
        if address < 4096 {
            return "near the null pointer".to_owned();
        }
        if let Some((_, allocation)) = self.find(address) {
            return format!("byte {} of {}", address - allocation.base, name(allocation));
        }
        if let Some(&(base, bytes, number)) =
            self.freed.iter().rev().find(|&&(base, bytes, _)| address.wrapping_sub(base) < bytes.max(1))
        {
            return format!(
                "byte {} of allocation #{number} ({bytes} bytes), which was freed",
                address - base
            );
        }
        let after = self.live.partition_point(|a| a.base <= address);
        let before = after.checked_sub(1).map(|i| &self.live[i]);
        let past = before.map(|a| (address - a.base - a.bytes(), a));
        let short = self.live.get(after).map(|a| (a.base - address, a));
        match (past, short) {
            (Some((distance, a)), short) if short.is_none_or(|(other, _)| distance <= other) => {
                format!("{distance} bytes past the end of {}", name(a))
            }
            (_, Some((distance, a))) => format!("{distance} bytes before {}", name(a)),
            _ => "no allocation is near".to_owned(),
        }
    }
}

fn name(allocation: &Allocation) -> String {
    match &allocation.name {
        Some(name) => format!("variable `{name}` ({} bytes)", allocation.bytes()),
        None => {
            format!(
                "allocation #{} ({} bytes at {:#x})",
                allocation.number,
                allocation.bytes(),
                allocation.base
            )
        }
    }
}

/// A machine's global memory.
pub(crate) struct GlobalMemory {
    state: RwLock<State>,
    capacity: u64,
}

struct State {
    table: Arc<Table>,
    next: u64,
    count: u64,
    used: u64,
}

impl GlobalMemory {
    pub(crate) fn new(capacity: u64) -> Self {
        let state = State { table: Arc::default(), next: FIRST_ADDRESS, count: 0, used: 0 };
        Self { state: RwLock::new(state), capacity }
    }

    /// The allocations as they are now.
    pub(crate) fn snapshot(&self) -> Arc<Table> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner).table)
    }

    pub(crate) fn allocate(
        &self,
        bytes: u64,
        name: Option<Arc<str>>,
        read_only: bool,
    ) -> Result<Allocation, MemoryError> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let out_of_memory = MemoryError::OutOfMemory {
            requested: bytes,
            available: self.capacity - state.used,
            capacity: self.capacity,
        };
        if bytes > self.capacity - state.used {
            return Err(out_of_memory);
        }
        // The red zone grows with the allocation, so that a wrong stride does not step over it.
        let span = bytes.max(1).next_multiple_of(ALIGNMENT) + RED_ZONE.max(bytes.next_multiple_of(ALIGNMENT));
        let base = state.next;
        let Some(next) = base.checked_add(span).filter(|&next| next < LAST_ADDRESS) else {
            return Err(out_of_memory);
        };
        let Some(storage) = Storage::new(bytes) else {
            return Err(out_of_memory);
        };
        let allocation = Allocation {
            base,
            storage: Arc::new(storage),
            number: state.count,
            name,
            read_only,
            written: Arc::new(AtomicU64::new(NO_LAUNCH)),
        };
        Arc::make_mut(&mut state.table).live.push(allocation.clone());
        state.next = next;
        state.count += 1;
        state.used += bytes;
        Ok(allocation)
    }

    pub(crate) fn free(&self, address: u64) -> Result<(), MemoryError> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let index = state.table.live.binary_search_by_key(&address, |a| a.base);
        let Some(index) = index.ok().filter(|&i| state.table.live[i].name.is_none()) else {
            return Err(MemoryError::BadFree { address, what: state.table.describe(address) });
        };
        let table = Arc::make_mut(&mut state.table);
        let allocation = table.live.remove(index);
        table.freed.push_back((allocation.base, allocation.bytes(), allocation.number));
        if table.freed.len() > QUARANTINE {
            table.freed.pop_front();
        }
        state.used -= allocation.bytes();
        Ok(())
    }

    /// The storage and the offset of a range that is inside one live allocation.
    pub(crate) fn range(
        &self,
        operation: &'static str,
        address: u64,
        bytes: u64,
    ) -> Result<(Arc<Storage>, u64), MemoryError> {
        let table = self.snapshot();
        // A range of no bytes may stand at the end of an allocation, or be the whole of an empty one.
        let last = if bytes == 0 { 0 } else { bytes - 1 };
        let found = match table.find(address) {
            Some((_, a)) if address - a.base + last < a.bytes() => Some(a),
            None if bytes == 0 => {
                table.live.iter().rev().find(|a| a.base <= address && address - a.base <= a.bytes())
            }
            _ => None,
        };
        match found {
            Some(a) => Ok((Arc::clone(&a.storage), address - a.base)),
            None => {
                let at = address.saturating_add(match table.find(address) {
                    Some((_, a)) => a.bytes() - (address - a.base),
                    None => 0,
                });
                let what = format!("{at:#x} is {}", table.describe(at));
                Err(MemoryError::BadRange { operation, address, bytes, what })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_aligned_apart_and_never_reused() {
        let memory = GlobalMemory::new(1 << 20);
        let first = memory.allocate(100, None, false).unwrap().base;
        memory.free(first).unwrap();
        let second = memory.allocate(100, None, false).unwrap().base;
        assert_eq!((first % 256, second % 256), (0, 0));
        assert!(second >= first + 100 + RED_ZONE);
        assert!(memory.snapshot().is_freed(first + 99) && !memory.snapshot().is_freed(first + 100));
        assert!(matches!(memory.free(first), Err(MemoryError::BadFree { .. })));
        assert!(matches!(memory.allocate(1 << 20, None, false), Err(MemoryError::OutOfMemory { .. })));
    }

    #[test]
    fn ranges_must_lie_inside_one_allocation() {
        let memory = GlobalMemory::new(1 << 20);
        let base = memory.allocate(100, None, false).unwrap().base;
        assert!(memory.range("read", base, 100).is_ok());
        assert!(memory.range("read", base + 100, 0).is_ok());
        let error = memory.range("read", base + 90, 11).err().unwrap().to_string();
        assert!(error.contains("0 bytes past the end of allocation #0"), "{error}");
        assert!(memory.range("read", 0, 1).is_err() && memory.range("read", u64::MAX, 8).is_err());
        let empty = memory.allocate(0, None, false).unwrap().base;
        assert!(memory.range("read", empty, 0).is_ok() && memory.range("read", empty, 1).is_err());
    }
}
