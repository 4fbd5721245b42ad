//! A step's copies: rows to their slots, and what has changed in a map.

use std::sync::Arc;

use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_kernels::expert_cache::{FillParams, WARPS, fill_slots};

use super::faults::{Faults, Point};
use super::{CachedRows, Map, NONE, Pins, Stale};
use crate::device::backend::Rows;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::memory::MappedMemory;
use crate::peer::cache::{Load, Plan};
use crate::stream::{Event, Stream};
use crate::tensor::Tensor;

/// Blocks of a launch, at most: with a row of 4 KiB under way in each of their warps, enough to have the link to the host busy, and few enough to
/// leave the device to others.
const MOST_BLOCKS: u32 = 16;

/// What a launch is to copy, in host memory that it reads.
#[derive(Debug, Default)]
pub(super) struct Lists {
    memory: Option<MappedMemory>,
}

impl Lists {
    /// Writes the pairs, one list after the other, and gives their addresses. Nothing reads what was written before.
    fn write(&mut self, device: &Device, loads: &[[u32; 2]], changes: &[[u32; 2]]) -> Result<[u64; 2]> {
        let (loads, changes): (&[u8], &[u8]) = (bytemuck::cast_slice(loads), bytemuck::cast_slice(changes));
        let bytes = loads.len() + changes.len();
        if self.memory.as_ref().is_none_or(|memory| memory.bytes() < bytes) {
            // Longer lists are rare, and allocating pinned memory waits for the device: there is room for twice as much.
            self.memory = None;
            self.memory = Some(MappedMemory::zeroed(device, bytes.next_power_of_two().max(1 << 16), false)?);
        }
        let Some(memory) = &mut self.memory else { return Ok([0; 2]) };
        memory.write(0, loads)?;
        memory.write(loads.len(), changes)?;
        Ok([memory.address(), memory.address() + loads.len() as u64])
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
    /// Plans a step of `ids` and enqueues its copies, and what brings map `index` up to date. Afterwards the plan is committed, or undone and an error.
    pub(super) fn fill(&mut self, index: usize, ids: &[u32]) -> Result<(Pins, Arc<Event>)> {
        // The step before the last has used this map's lists, and its copies are long done: the last step's reads wait for them.
        if let Some(ready) = self.maps[index].ready.take()
            && let Err(error) = ready.synchronize()
        {
            self.reset();
            return Err(error);
        }
        self.faults.at(Point::Plan)?;
        let plan = self.cache.plan(ids)?;
        for map in &mut self.maps {
            for load in plan.loads() {
                map.stale.insert(load.row);
                load.evicted.into_iter().for_each(|row| map.stale.insert(row));
            }
        }
        let work = Work {
            device: &self.device,
            copies: &self.copies,
            host: &self.host,
            slots: &self.slots,
            row_bytes: self.row_bytes,
            poison: self.poison,
            faults: &self.faults,
        };
        let map = &mut self.maps[index];
        let changes = match changes(&map.stale, &plan) {
            Ok(changes) => changes,
            Err(error) => {
                plan.cancel();
                return Err(error);
            }
        };
        let loads: Vec<[u32; 2]> = plan.loads().iter().map(|load| [load.row, load.slot]).collect();
        let addresses = match work.prepare(map, &loads, &changes) {
            Ok(addresses) => addresses,
            // Nothing has been enqueued.
            Err(error) => {
                plan.cancel();
                return Err(error);
            }
        };
        match work.enqueue(map, &self.readers, plan.loads(), &changes, addresses) {
            Ok(ready) => {
                let ready = Arc::new(ready);
                map.stale.clear();
                map.ready = Some(ready.clone());
                let pins = plan.commit();
                self.readers.clear();
                Ok((pins, ready))
            }
            Err(error) => {
                // A part may have been enqueued, of what may fail later: what slots and maps hold is unknown.
                plan.cancel();
                self.reset();
                Err(error)
            }
        }
    }

    /// Overwrites a slot with bits that are no number.
    pub(super) fn poison_slot(&self, slot: u32) -> Result<()> {
        poison(&self.device, &self.copies, &self.slots, self.row_bytes, slot)
    }
}

fn poison(device: &Device, copies: &Stream, slots: &Tensor<u8>, row_bytes: usize, slot: u32) -> Result<()> {
    let rows = run(slot as usize * row_bytes, row_bytes);
    device.backend().fill(slots.storage().memory(), rows, 0xff, copies.handle())
}

/// The entries of a map that are to be set: those that are stale, or of a map that is anything those of all rows with a slot, once the others are set to
/// none.
fn changes(stale: &Stale, plan: &Plan<'_>) -> Result<Vec<[u32; 2]>> {
    let mut changes = Vec::new();
    let slot_of = plan.slot_of();
    let reserve = |changes: &mut Vec<[u32; 2]>, length: usize| {
        changes
            .try_reserve_exact(length)
            .map_err(|_| crate::device::cpu::out_of_memory("CachedRows::stage", length.saturating_mul(8)))
    };
    if stale.all {
        let resident = || (0u32..).zip(slot_of).filter(|(_, slot)| **slot != NONE);
        reserve(&mut changes, resident().count())?;
        changes.extend(resident().map(|(row, &slot)| [row, slot]));
    } else {
        reserve(&mut changes, stale.rows.len())?;
        changes.extend(stale.rows.iter().map(|&row| [row, slot_of[row as usize]]));
    }
    Ok(changes)
}

/// What copies are made of.
struct Work<'a> {
    device: &'a Device,
    copies: &'a Stream,
    host: &'a MappedMemory,
    slots: &'a Tensor<u8>,
    row_bytes: usize,
    poison: bool,
    faults: &'a Faults,
}

impl Work<'_> {
    /// Writes the lists where the kernel reads them.
    fn prepare(&self, map: &mut Map, loads: &[[u32; 2]], changes: &[[u32; 2]]) -> Result<[u64; 2]> {
        self.faults.at(Point::Allocation)?;
        if self.device.kind() == DeviceKind::Cpu {
            return Ok([0; 2]);
        }
        map.lists.write(self.device, loads, changes)
    }

    /// Enqueues the copies, after the last reads of the slots. Gives the end of the copies.
    fn enqueue(
        &self,
        map: &mut Map,
        readers: &[Event],
        loads: &[Load],
        changes: &[[u32; 2]],
        addresses: [u64; 2],
    ) -> Result<Event> {
        let backend = self.device.backend();
        readers.iter().try_for_each(|read| self.copies.wait(read))?;
        if map.stale.all && !map.slot_of.is_empty() {
            let all = run(0, map.slot_of.len() * size_of::<u32>());
            backend.fill(map.slot_of.storage().memory(), all, 0xff, self.copies.handle())?;
        }
        if self.poison {
            loads.iter().filter(|load| load.evicted.is_some()).try_for_each(|load| {
                poison(self.device, self.copies, self.slots, self.row_bytes, load.slot)
            })?;
        }
        match self.host.tensor().filter(|_| self.device.kind() == DeviceKind::Cpu) {
            Some(host) => {
                let host = host.host_view("CachedRows::stage")?;
                let host = host.array();
                self.copy_on_cpu(host.as_slice().unwrap_or_default(), map, loads, changes)?;
            }
            None => self.launch(map, loads, changes, addresses)?,
        }
        self.faults.at(Point::Record)?;
        self.copies.record()
    }

    fn launch(&self, map: &mut Map, loads: &[Load], changes: &[[u32; 2]], addresses: [u64; 2]) -> Result<()> {
        self.faults.at(Point::Copy)?;
        let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let (loads, changes) = (number(loads.len()), number(changes.len()));
        let blocks = loads.div_ceil(WARPS).max(changes.div_ceil(4 * WARPS * 32)).min(MOST_BLOCKS);
        if blocks == 0 {
            return Ok(());
        }
        let params = FillParams { row_bytes: number(self.row_bytes), loads, changes, reserved: 0 };
        let arguments = (
            Global::new(self.host.address()),
            GlobalMut::new(self.slots.arg().address()),
            map.slot_of.arg_mut(),
            Global::new(addresses[0]),
            Global::new(addresses[1]),
            params,
        );
        let kernel = self.device.kernel::<fill_slots>()?;
        // SAFETY: a plan names rows and slots that there are, and each slot once; a stale row is listed once. Nothing reads the slots (their readers
        // have been waited for, or they had none) or the map (its step is over). The host writes neither rows nor lists before the
        // end of this work has been waited for, and nothing is freed before.
        unsafe { kernel.launch(self.copies, [blocks, 1, 1], arguments) }
    }

    fn copy_on_cpu(&self, host: &[u8], map: &mut Map, loads: &[Load], changes: &[[u32; 2]]) -> Result<()> {
        let (backend, stream) = (self.device.backend(), self.copies.handle());
        let row_bytes = self.row_bytes;
        for (position, load) in loads.iter().enumerate() {
            if position == loads.len() / 2 {
                self.faults.at(Point::Copy)?;
            }
            let from = load.row as usize * row_bytes;
            let row = host.get(from..from + row_bytes).ok_or_else(|| Error::SizeLimit {
                operation: "CachedRows::stage",
                operand: "rows",
                quantity: "a row",
                limit: format!("less than {}", host.len() / row_bytes),
                actual: load.row.to_string(),
            })?;
            let slot = run(load.slot as usize * row_bytes, row_bytes);
            self.slots.storage().check_rows("CachedRows::stage", slot)?;
            // SAFETY: the slot lies within the slots, the row within the host's memory; the CPU is done on return.
            unsafe { backend.write(self.slots.storage().memory(), slot, row.as_ptr(), stream)? };
        }
        for &[row, slot] in changes {
            let entry = run(row as usize * size_of::<u32>(), size_of::<u32>());
            map.slot_of.storage().check_rows("CachedRows::stage", entry)?;
            let bytes = slot.to_ne_bytes();
            // SAFETY: the entry lies within the map; the CPU is done on return.
            unsafe { backend.write(map.slot_of.storage().memory(), entry, bytes.as_ptr(), stream)? };
        }
        Ok(())
    }
}
