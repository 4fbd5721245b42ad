//! A step's copies: rows to their slots, and what has changed in a map.

use std::sync::Arc;

use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_kernels::expert_cache::{FillParams, LANES, WARPS, fill_slots};

use super::faults::Point;
use super::{CachedRows, NONE, Next, Noted, Noting, STEPS_IN_FLIGHT, Step};
use crate::device::backend::Rows;
use crate::device::cpu::out_of_memory;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::memory::MappedMemory;
use crate::peer::cache::Load;
use crate::stream::Event;

/// Blocks of a launch that copies rows, at most: with a row of 4 KiB under way in each of their warps, enough to have the link to the host busy, and
/// few enough to leave the device to others.
const MOST_BLOCKS: u32 = 16;
/// Blocks of a launch that only reads a list, at most.
const MOST_MAP_BLOCKS: u32 = 64;

/// The loads of a step, in memory that a kernel reads.
#[derive(Debug, Default)]
pub(super) struct Lists {
    pub(super) memory: Option<MappedMemory>,
    /// The loads, on devices other than a GPU.
    own: Vec<Load>,
    /// How many loads there are.
    count: usize,
}

impl Lists {
    /// Makes room for `most` loads. Nothing reads what was written before.
    fn reserve(&mut self, device: &Device, most: usize) -> Result<()> {
        let bytes = most.saturating_mul(size_of::<Load>());
        self.count = 0;
        if device.kind() != DeviceKind::Cpu
            && self.memory.as_ref().is_none_or(|memory| memory.bytes() < bytes)
        {
            // Longer lists are rare, and allocating pinned memory waits for the device: there is room for twice as much.
            self.memory = None;
            self.memory = Some(MappedMemory::zeroed(device, bytes.next_power_of_two().max(1 << 16), false)?);
        }
        if !matches!(device.kind(), DeviceKind::Cuda(_)) {
            let more = most.saturating_sub(self.own.len());
            self.own.try_reserve(more).map_err(|_| out_of_memory("CachedRows::stage", bytes))?;
            self.own.resize(most, Load { row: NONE, slot: NONE, evicted: NONE });
        }
        Ok(())
    }

    /// The loads that there is room for.
    fn room(&mut self, most: usize) -> &mut [Load] {
        let mapped = self.memory.as_mut().and_then(MappedMemory::as_mut_slice);
        match mapped {
            Some(bytes) => bytemuck::cast_slice_mut(&mut bytes[..most * size_of::<Load>()]),
            None => &mut self.own[..most],
        }
    }

    /// Hands the first `count` loads over to kernels.
    fn finish(&mut self, count: usize) -> Result<()> {
        self.count = count;
        match &mut self.memory {
            Some(memory) if memory.tensor().is_some() => {
                memory.write(0, bytemuck::cast_slice(&self.own[..count]))
            }
            _ => Ok(()),
        }
    }

    fn loads(&self) -> &[Load] {
        let mapped = self.memory.as_ref().and_then(MappedMemory::as_slice);
        match mapped {
            Some(bytes) => bytemuck::cast_slice(&bytes[..self.count * size_of::<Load>()]),
            None => &self.own[..self.count],
        }
    }

    fn address(&self) -> u64 {
        self.memory.as_ref().map_or(0, MappedMemory::address)
    }

    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    pub(super) fn leak(&mut self) {
        std::mem::forget(self.memory.take());
    }
}

/// One run of bytes.
fn run(offset: usize, width: usize) -> Rows {
    Rows { offset, pitch: width, width, height: 1 }
}

impl CachedRows {
    /// Starts a step that reads the rows of a set, and notes for the next one. A step with notes on the device, of that number, is counted there.
    pub(super) fn stage_set(
        &mut self,
        noted: Noted<'_>,
        number: Option<u64>,
        next: Option<Next<'_>>,
    ) -> Result<(Step, Option<Noting>)> {
        let map = self.next;
        if self.maps[map].in_use {
            return Err(Error::Argument {
                operation: "CachedRows::stage",
                argument: "number of steps under way",
                expected: format!("less than {STEPS_IN_FLIGHT}"),
                actual: STEPS_IN_FLIGHT.to_string(),
            });
        }
        self.renew()?;
        self.count_stalls();
        // What read the map's list is long done: the last step's copies come after it.
        if let Some(read) = self.maps[map].read.take()
            && let Err(error) = read.synchronize()
        {
            self.reset();
            return Err(error);
        }
        self.faults.at(Point::Plan)?;
        let mut draft = self.cache.draft(noted)?;
        let most = self.cache.most_loads(&draft);
        let lists = &mut self.maps[map].lists;
        self.faults.at(Point::Allocation)?;
        lists.reserve(&self.device, most)?;
        let count = self.cache.place(noted.rows, &mut draft, lists.room(most));
        let resets = self.resets;
        let next = next.map(|Next { ids, part, after }| self.note(ids, part, after)).transpose();
        match next.and_then(|next| Ok((self.enqueue(map, count, number)?, next))) {
            Ok((ready, next)) => {
                let ready = Arc::new(ready);
                self.readers.clear();
                let entry = &mut self.maps[map];
                (entry.read, entry.is_new, entry.in_use) = (Some(ready.clone()), false, true);
                self.next = (map + 1) % STEPS_IN_FLIGHT;
                Ok((Step { map, pins: self.cache.commit(draft), ready, resets: self.resets }, next))
            }
            Err(error) => {
                // A part may have been enqueued, of what may fail later: what slots and maps hold is unknown.
                if self.resets == resets {
                    self.reset();
                }
                Err(error)
            }
        }
    }

    /// Enqueues the copies of the map's first `count` loads, after the last reads of the slots, and what brings the map up to date. Gives the end of the
    /// copies.
    fn enqueue(&mut self, map: usize, count: usize, number: Option<u64>) -> Result<Event> {
        self.maps[map].lists.finish(count)?;
        if let Some(notes) = self.notes.as_mut().filter(|_| number.is_some()) {
            notes.update(&self.cache)?;
        }
        self.readers.iter().try_for_each(|read| self.copies.wait(read))?;
        let entry = &self.maps[map];
        if entry.is_new && !entry.slot_of.is_empty() {
            let all = run(0, entry.slot_of.len() * size_of::<u32>());
            let memory = entry.slot_of.storage().memory();
            self.device.backend().fill(memory, all, 0xff, self.copies.handle())?;
        }
        if self.poison {
            let loads = entry.lists.loads().iter();
            loads
                .filter(|load| load.evicted != NONE)
                .try_for_each(|load| self.poison_slots(load.slot as usize, 1))?;
        }
        // The map was last used by the step before the last one: what that one changed comes first.
        let last = (map + 1) % STEPS_IN_FLIGHT;
        if self.maps[last].lists.count != 0 {
            self.apply(map, last, false)?;
            self.maps[last].read = Some(Arc::new(self.copies.record()?));
        }
        if count != 0 {
            self.apply(map, map, true)?;
        }
        self.faults.at(Point::Record)?;
        let ready = self.copies.record()?;
        if let Some((notes, number)) = self.notes.as_mut().zip(number) {
            notes.settle(number)?;
        }
        Ok(ready)
    }

    /// Enters the loads of a list into a map, and copies their rows if that is asked for.
    fn apply(&mut self, map: usize, list: usize, with_rows: bool) -> Result<()> {
        if self.device.kind() == DeviceKind::Cpu {
            return self.apply_on_cpu(map, list, with_rows);
        }
        if with_rows {
            self.faults.at(Point::Copy)?;
        }
        let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let loads = number(self.maps[list].lists.count);
        let (row_bytes, blocks) = match with_rows {
            true => (number(self.row_bytes), loads.div_ceil(WARPS).min(MOST_BLOCKS)),
            false => (0, loads.div_ceil(WARPS * LANES).min(MOST_MAP_BLOCKS)),
        };
        // As many as there are for each warp: at a time what the list's entries take to come is waited for once.
        let batch = loads.div_ceil(blocks * WARPS).clamp(1, LANES);
        let params = FillParams { row_bytes, loads, batch, reserved: 0 };
        let arguments = (
            Global::new(self.host.address()),
            GlobalMut::new(self.slots.arg().address()),
            GlobalMut::new(self.maps[map].slot_of.arg().address()),
            Global::new(self.maps[list].lists.address()),
            params,
        );
        let kernel = self.device.kernel::<fill_slots>()?;
        // SAFETY: a list names rows and slots that there are, each slot once, and each row once as one that gets or loses a slot. Nothing reads the slots
        // (their readers have been waited for, or they had none) or the map (its step is over). The host writes neither rows nor lists before the
        // end of this work has been waited for, and nothing is freed before.
        unsafe { kernel.launch(&self.copies, [blocks, 1, 1], arguments) }
    }

    fn apply_on_cpu(&mut self, map: usize, list: usize, with_rows: bool) -> Result<()> {
        let (backend, stream) = (self.device.backend(), self.copies.handle());
        let (loads, slot_of) = (self.maps[list].lists.loads(), &self.maps[map].slot_of);
        let host = match self.host.tensor().filter(|_| with_rows) {
            Some(host) => Some(host.host_view("CachedRows::stage")?),
            None => None,
        };
        let host = host.as_ref().map(|host| host.array());
        let host = host.as_ref().and_then(|host| host.as_slice()).unwrap_or_default();
        let enter = |row: u32, slot: u32| {
            let entry = run(row as usize * size_of::<u32>(), size_of::<u32>());
            slot_of.storage().check_rows("CachedRows::stage", entry)?;
            let bytes = slot.to_ne_bytes();
            // SAFETY: the entry lies within the map; the CPU is done on return.
            unsafe { backend.write(slot_of.storage().memory(), entry, bytes.as_ptr(), stream) }
        };
        for (position, load) in loads.iter().enumerate() {
            if with_rows {
                if position == loads.len() / 2 {
                    self.faults.at(Point::Copy)?;
                }
                let from = load.row as usize * self.row_bytes;
                let row = host.get(from..from + self.row_bytes).ok_or_else(|| Error::SizeLimit {
                    operation: "CachedRows::stage",
                    operand: "rows",
                    quantity: "a row",
                    limit: format!("less than {}", host.len() / self.row_bytes),
                    actual: load.row.to_string(),
                })?;
                let slot = run(load.slot as usize * self.row_bytes, self.row_bytes);
                self.slots.storage().check_rows("CachedRows::stage", slot)?;
                // SAFETY: the slot lies within the slots, the row within the host's memory; the CPU is done on return.
                unsafe { backend.write(self.slots.storage().memory(), slot, row.as_ptr(), stream)? };
            }
            enter(load.row, load.slot)?;
            if load.evicted != NONE {
                enter(load.evicted, NONE)?;
            }
        }
        Ok(())
    }

    /// Overwrites slots with bits that are no numbers.
    pub(super) fn poison_slots(&self, first: usize, count: usize) -> Result<()> {
        let rows = run(first * self.row_bytes, count * self.row_bytes);
        self.device.backend().fill(self.slots.storage().memory(), rows, 0xff, self.copies.handle())
    }
}
