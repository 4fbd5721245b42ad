//! Rows in host memory with a cache of them on a device: [`RowCache`] and the memory that it is about.
//!
//! A step is staged, read and released. Staging copies what the step reads and the cache does not hold, on a stream of its own, while work on
//! other streams goes on; reading waits for that. A slot gets another row in this order. Its former row has no slot any more,
//! the last work that may read it is waited for, the row is copied, and the step that asked for it waits for the copy.
//!
//! Kernels find rows by a map from rows to slots. There are two of them on the device, for the step that is being read and the one that is being
//! staged, so that no kernel sees its map change.
//!
//! What a step reads is planned by a bit for each row. Ids that are on the device are noted there, and only the bits come to the host.

mod faults;
mod fill;
mod notes;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::cache::{CacheStatistics, NONE, Noted, Pins, RowCache, stray_id};
use super::options::CacheOptions;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::memory::MappedMemory;
use crate::ops::peer::{ExpertLayout, ExpertTable};
use crate::stream::{Event, Stream};
use crate::tensor::Tensor;
use faults::Faults;
pub(crate) use faults::Point;
use fill::Lists;
use notes::Notes;
pub(crate) use notes::{Next, Noting, Part};

/// Steps that can be under way at a time: one that is read, one that is staged.
pub const STEPS_IN_FLIGHT: usize = 2;

/// Rows that are prefetched in one step: their lists take little memory.
const PREFETCHED: usize = 1 << 16;

/// What rows are aligned to, and a multiple of what their size is.
pub const ROW_ALIGNMENT: usize = 16;

/// Rows in host memory, some of them in a cache on a device.
///
/// ```
/// use warpsmith::peer::{CacheOptions, CachedRows};
/// use warpsmith::Device;
///
/// # fn main() -> warpsmith::Result<()> {
/// let device = Device::emulator();
/// let mut rows = CachedRows::new(&device, 100, 16, &CacheOptions::default().slots(2))?;
/// rows.write(7, &[1; 16])?;
/// let step = rows.stage(&[7, 3, 50])?; // two get a slot, the third is read from the host
/// let stream = device.default_stream();
/// rows.begin_reading(&step, &stream)?;
/// // … launches on `stream` that read the rows at `rows.addresses(&step)` …
/// rows.release(step, &stream)?;
/// assert_eq!(rows.statistics().pin_failures, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CachedRows {
    device: Device,
    cache: RowCache,
    row_bytes: usize,
    /// All rows.
    host: ManuallyDrop<MappedMemory>,
    /// The rows in slots.
    slots: Tensor<u8>,
    maps: [Map; STEPS_IN_FLIGHT],
    /// The map that the next step gets.
    next: usize,
    /// What ids on the device are noted with; `None` on the CPU.
    notes: Option<Notes>,
    /// The stream of the copies.
    copies: Stream,
    /// The last work that read slots for steps that have been released, which later copies wait for.
    readers: Vec<Event>,
    /// Steps of which it is not known yet whether they had to wait for their copies.
    waits: VecDeque<Wait>,
    poison: bool,
    /// How often everything was forgotten.
    resets: u64,
    /// Whether the device's work could not be waited for when everything was forgotten.
    is_behind: bool,
    /// Whether slots have rows that are forgotten, where such are to be poisoned.
    is_stale: bool,
    faults: Faults,
}

/// The end of the work that came before a step's reads on their stream, and that of the step's copies.
#[derive(Debug)]
struct Wait {
    before: Event,
    ready: Arc<Event>,
}

/// A map from rows to slots on the device.
#[derive(Debug)]
struct Map {
    slot_of: Tensor<u32>,
    /// What its last step changed, which it has and the other map has not.
    lists: Lists,
    /// The end of the work that reads the lists.
    read: Option<Arc<Event>>,
    /// Whether it has not been used since everything was forgotten, and may be anything.
    is_new: bool,
    /// Whether there is a step that uses it.
    in_use: bool,
}

/// A step whose rows are on their way, or there; see [`CachedRows::stage`].
#[derive(Debug)]
#[must_use = "a step that is not released keeps its rows in the cache"]
pub struct Step {
    map: usize,
    pins: Pins,
    ready: Arc<Event>,
    resets: u64,
}

/// Where kernels find rows: addresses on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowAddresses {
    /// Slot 0, which the others follow.
    pub slots: u64,
    /// Row 0 in host memory, which the others follow.
    pub host: u64,
    /// The slot of each row, [`NONE`] for those that are to be read from host memory; one 32-bit number for each row.
    pub slot_of: u64,
    /// Bytes of a row and of a slot.
    pub row_bytes: usize,
}

impl CachedRows {
    /// `rows` rows of `row_bytes` bytes each, all zero, and a cache of them on `device` as `options` say.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if `row_bytes` is 0 or no multiple of [`ROW_ALIGNMENT`], or an option or a variable of the
    /// environment is not what it can be. [`Error::SizeLimit`] if there are too many rows. [`Error::OutOfMemory`] if host or
    /// device have too little memory. [`Error::UnsupportedDevice`] if managed memory is asked for and the GPU has none.
    pub fn new(device: &Device, rows: usize, row_bytes: usize, options: &CacheOptions) -> Result<Self> {
        const OPERATION: &str = "CachedRows::new";
        if row_bytes == 0 || !row_bytes.is_multiple_of(ROW_ALIGNMENT) || u32::try_from(row_bytes).is_err() {
            return Err(Error::Argument {
                operation: OPERATION,
                argument: "row_bytes",
                expected: format!("a multiple of {ROW_ALIGNMENT} of 32 bits, at least {ROW_ALIGNMENT}"),
                actual: row_bytes.to_string(),
            });
        }
        let bytes = rows.checked_mul(row_bytes).filter(|&bytes| isize::try_from(bytes).is_ok());
        let bytes = bytes.ok_or_else(|| Error::SizeLimit {
            operation: OPERATION,
            operand: "rows",
            quantity: "number of bytes",
            limit: format!("at most {}", isize::MAX),
            actual: format!("{rows} rows of {row_bytes}"),
        })?;
        // Before memory is asked for that so many rows would take.
        RowCache::expect_rows(rows)?;
        let settings = options.settings()?;
        let host = MappedMemory::zeroed(device, bytes, settings.managed)?;
        let copies = device.new_stream()?;
        let map = || {
            Ok::<_, Error>(Map {
                slot_of: Tensor::uninit_on(&copies, [rows])?,
                lists: Lists::default(),
                read: None,
                is_new: true,
                in_use: false,
            })
        };
        let maps = [map()?, map()?];
        let notes = notes::notes_of(device, rows)?;
        // What is free now: where the host's memory is the device's, the rows have had theirs.
        let slots = settings.slots(rows, row_bytes, device.memory_stats()?.free)?;
        let cache = RowCache::new(rows, slots, row_bytes as u64)?;
        let slots = Tensor::uninit_on(&copies, [slots, row_bytes])?;
        let rows = Self {
            device: device.clone(),
            cache,
            row_bytes,
            host: ManuallyDrop::new(host),
            slots,
            maps,
            next: 0,
            notes,
            copies,
            readers: Vec::new(),
            waits: VecDeque::new(),
            poison: settings.poison,
            resets: 0,
            is_behind: false,
            is_stale: false,
            faults: Faults::default(),
        };
        rows.poison_all()?;
        Ok(rows)
    }

    /// Overwrites all slots with bits that are no numbers, if that was asked for.
    fn poison_all(&self) -> Result<()> {
        if self.poison && self.cache.slots() > 0 { self.poison_slots(0, self.cache.slots()) } else { Ok(()) }
    }

    /// Gives the cache another number of slots, at least 1, all of them empty, and statistics of its own. Waits for the work that reads the rows.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there are to be no slots or a step is under way, [`Error::OutOfMemory`] if the device does not hold the new slots beside the
    /// old ones; the cache is then as it was. [`Error::Driver`] if earlier work failed.
    pub fn resize(&mut self, slots: usize) -> Result<()> {
        const OPERATION: &str = "CachedRows::resize";
        let argument = |argument, expected: &str, actual: usize| {
            let (expected, actual) = (expected.into(), actual.to_string());
            Err(Error::Argument { operation: OPERATION, argument, expected, actual })
        };
        let in_use = self.maps.iter().filter(|map| map.in_use).count();
        if in_use != 0 {
            return argument("number of steps under way", "0", in_use);
        }
        if slots == 0 {
            return argument("slots", "at least 1", 0);
        }
        let cache = RowCache::new(self.cache.rows(), slots, self.row_bytes as u64)?;
        let memory = Tensor::uninit_on(&self.copies, [cache.slots(), self.row_bytes])?;
        self.catch_up()?;
        self.wait()?;
        self.forget();
        (self.cache, self.slots) = (cache, memory);
        self.notes.as_mut().map_or(Ok(()), Notes::restart)?;
        self.poison_all()
    }

    /// Copies rows to slots ahead of the steps that read them. It counts as steps, whose requests these are.
    ///
    /// # Errors
    ///
    /// As [`stage`](Self::stage).
    pub fn prefetch(&mut self, ids: &[u32]) -> Result<()> {
        for part in ids.chunks(PREFETCHED) {
            let step = self.stage(part)?;
            let copies = self.copies.clone();
            self.release(step, &copies)?;
        }
        Ok(())
    }

    /// Writes the rows from `first` on, of which no copy is in a slot from then on. Waits for the work that may read them.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if `values` are not whole rows, or more than there are from `first` on, or a step is under way; [`Error::Driver`] if
    /// earlier work failed.
    pub fn write(&mut self, first: usize, values: &[u8]) -> Result<()> {
        const OPERATION: &str = "CachedRows::write";
        let argument = |argument, expected, actual: usize| Error::Argument {
            operation: OPERATION,
            argument,
            expected,
            actual: actual.to_string(),
        };
        if !values.len().is_multiple_of(self.row_bytes) {
            let expected = format!("a multiple of {} bytes, those of a row", self.row_bytes);
            return Err(argument("length of the values", expected, values.len()));
        }
        let (rows, count) = (self.cache.rows(), values.len() / self.row_bytes);
        if first > rows || count > rows - first {
            let expected = format!("at most {rows}, the number of rows");
            return Err(argument("end of the rows", expected, first.saturating_add(count)));
        }
        let in_use = self.maps.iter().filter(|map| map.in_use).count();
        if in_use != 0 {
            return Err(argument("number of steps under way", "0".into(), in_use));
        }
        self.catch_up()?;
        if self.cache.statistics().steps != 0 {
            self.wait()?;
        }
        // Fewer than 2³² rows.
        if (first..first + count).any(|row| self.cache.slot(row as u32).is_some()) {
            self.forget();
        }
        self.host.write(first * self.row_bytes, values)
    }

    /// Reads `row` from host memory.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is no such row.
    pub fn read(&self, row: usize) -> Result<Vec<u8>> {
        if row >= self.cache.rows() {
            return Err(Error::Argument {
                operation: "CachedRows::read",
                argument: "row",
                expected: format!("less than {}, the number of rows", self.cache.rows()),
                actual: row.to_string(),
            });
        }
        self.host.read(row * self.row_bytes, self.row_bytes)
    }

    /// Starts a step that reads the rows `ids`, in any order and any number of times: copies are under way when this returns, of as many of those that
    /// have no slot as slots can be had for.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is no row of one of the ids, or [`STEPS_IN_FLIGHT`] steps have not been released.
    /// [`Error::OutOfMemory`] if there is no memory for the list of what is to be copied. [`Error::Driver`] if the driver
    /// refuses or earlier work failed. The cache holds then
    /// what it held before, or less.
    pub fn stage(&mut self, ids: &[u32]) -> Result<Step> {
        let (rows, hits) = self.cache.note(ids)?;
        let staged = self.stage_set(Noted { rows: &rows, requests: ids.len() as u64, hits }, None, None);
        self.end_notes(rows, staged).map(|(step, _)| step)
    }

    /// Makes later work on `stream` wait for the step's copies. Such work may read the step's rows at their [addresses](Self::addresses), until the step
    /// is released.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] if the stream is another device's, [`Error::Argument`] if the step is from before a [`reset`](Self::reset) or another
    /// cache's, or the stream is being captured, [`Error::Driver`] if the driver refuses or earlier work failed.
    pub fn begin_reading(&mut self, step: &Step, stream: &Stream) -> Result<()> {
        const OPERATION: &str = "CachedRows::begin_reading";
        self.expect_current(OPERATION, step)?;
        self.device.expect_same(OPERATION, "stream", stream.device())?;
        stream.expect_no_capture(OPERATION)?;
        let enqueued = stream.record().and_then(|before| {
            stream.wait(&step.ready)?;
            Ok(Wait { before, ready: step.ready.clone() })
        });
        match enqueued {
            Ok(wait) => {
                self.waits.push_back(wait);
                Ok(())
            }
            Err(error) => {
                self.reset();
                Err(error)
            }
        }
    }

    /// Ends a step whose reads have been enqueued on `stream`: what is copied from now on waits for them.
    ///
    /// A step that nothing has read is released like any other.
    ///
    /// # Errors
    ///
    /// As for [`begin_reading`](Self::begin_reading). After an error of the driver everything is forgotten, as by [`reset`](Self::reset). A step that
    /// was given with another device's stream, or one that is being captured, stays under way until [`reset`](Self::reset).
    pub fn release(&mut self, step: Step, stream: &Stream) -> Result<()> {
        self.device.expect_same("CachedRows::release", "stream", stream.device())?;
        let read = self.end_reading(stream)?;
        self.release_after(step, read)
    }

    /// The end of the work on `stream` so far, for [`release_after`](Self::release_after). It is asked for when a step's reads have been enqueued, so that
    /// a later release does not wait for what comes after them.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceMismatch`] if the stream is another device's, [`Error::Argument`] if it is being captured; as for [`Stream::record`], and
    /// everything is forgotten then, as by [`reset`](Self::reset).
    pub fn end_reading(&mut self, stream: &Stream) -> Result<Event> {
        const OPERATION: &str = "CachedRows::end_reading";
        self.device.expect_same(OPERATION, "stream", stream.device())?;
        stream.expect_no_capture(OPERATION)?;
        stream.record().inspect_err(|_| self.reset())
    }

    /// Ends a step whose reads come before `read`.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the step is from before a [`reset`](Self::reset), or another cache's; [`Error::DeviceMismatch`] if the event is
    /// another device's, and the step stays under way then.
    pub fn release_after(&mut self, step: Step, read: Event) -> Result<()> {
        self.expect_current("CachedRows::release", &step)?;
        self.device.expect_same("CachedRows::release", "read", read.device())?;
        self.readers.push(read);
        self.maps[step.map].in_use = false;
        self.cache.release(step.pins);
        Ok(())
    }

    fn expect_current(&self, operation: &'static str, step: &Step) -> Result<()> {
        if step.resets == self.resets && self.cache.owns(&step.pins) {
            return Ok(());
        }
        Err(Error::Argument {
            operation,
            argument: "step",
            expected: "one of this cache's, since it was last reset".into(),
            actual: "another".into(),
        })
    }

    /// Where kernels find the rows of a step.
    #[must_use]
    pub fn addresses(&self, step: &Step) -> RowAddresses {
        RowAddresses {
            slots: self.slots.arg().address(),
            host: self.host.address(),
            slot_of: self.maps[step.map % STEPS_IN_FLIGHT].slot_of.arg().address(),
            row_bytes: self.row_bytes,
        }
    }

    /// The experts of a step as a table, which is used only for work that the step orders; without a step, for questions that read nothing.
    pub(crate) fn table(&self, layout: ExpertLayout, step: Option<&Step>) -> Result<ExpertTable> {
        let slot_of = &self.maps[step.map_or(self.next, |step| step.map % STEPS_IN_FLIGHT)].slot_of;
        let (count, slots) = (self.cache.rows(), self.cache.slots());
        if let Some(host) = self.host.tensor().filter(|_| self.device.kind() == DeviceKind::Cpu) {
            return ExpertTable::cached(
                layout,
                &self.slots,
                slot_of,
                &host.reshape([count, self.row_bytes])?,
            );
        }
        let addresses = [self.slots.arg().address(), self.host.address(), slot_of.arg().address()];
        // SAFETY: all three are aligned and have the sizes of the layout's rows. The step keeps its rows in their slots until it is released, after which
        // its table is gone; what is copied afterwards waits for the work that read it. Without a step nothing is read.
        unsafe { ExpertTable::foreign(&self.device, layout, count, slots, addresses) }
    }

    /// Has failures come at these places, one after the other, each when its place has been passed so many times. Gives how many were still to come of
    /// those that were asked for before.
    #[cfg(test)]
    pub(crate) fn fail(&self, faults: impl IntoIterator<Item = (Point, usize)>) -> usize {
        let next = faults.into_iter().collect();
        std::mem::replace(&mut *self.faults.next.lock(), next).len()
    }

    /// How many failures are still to come.
    #[cfg(test)]
    pub(crate) fn failures_left(&self) -> usize {
        self.faults.next.lock().len()
    }

    /// Forgets what is in the slots, and all steps: for when work has failed, and nobody knows what was copied. The rows in host memory are as they were.
    ///
    /// Waits for the device's work as far as that can be waited for. Called by those methods that find an error of the driver.
    pub fn reset(&mut self) {
        // What failed has been, or will be, reported to those who asked for it.
        if self.synchronize().is_err() {
            // What reads slots, rows or lists may still be under way: nothing is written before the device could be waited for.
            self.is_behind = true;
        }
        self.is_stale = self.poison;
        self.forget();
    }

    fn forget(&mut self) {
        self.cache.clear();
        self.readers.clear();
        self.waits.clear();
        self.next = 0;
        self.resets += 1;
        for map in &mut self.maps {
            map.lists.clear();
            (map.read, map.is_new, map.in_use) = (None, true, false);
        }
        if let Some(notes) = &mut self.notes {
            notes.forget();
        }
    }

    /// Waits for the device's work if that failed when everything was forgotten.
    fn catch_up(&mut self) -> Result<()> {
        if self.is_behind {
            self.synchronize()?;
            self.is_behind = false;
        }
        Ok(())
    }

    /// Catches up, and overwrites what is in the slots from before everything was forgotten, if that was asked for.
    fn renew(&mut self) -> Result<()> {
        self.catch_up()?;
        if self.is_stale {
            self.poison_all()?;
            self.is_stale = false;
        }
        Ok(())
    }

    /// Waits for all work of the device.
    fn synchronize(&self) -> Result<()> {
        self.faults.at(Point::Synchronize)?;
        self.device.synchronize()
    }

    /// Waits for the work that may read slots or rows, or write slots.
    fn wait(&self) -> Result<()> {
        self.faults.at(Point::Finish)?;
        self.readers.iter().try_for_each(Event::synchronize)?;
        self.copies.synchronize()
    }

    /// Counts the stalls of steps whose events are over.
    fn count_stalls(&mut self) {
        let is_done = |event: &Event| event.is_done().unwrap_or(true);
        while let Some(wait) = self.waits.pop_front_if(|wait| is_done(&wait.before) && is_done(&wait.ready)) {
            // An event that came earlier is no interval.
            if wait.ready.elapsed_since(&wait.before).is_ok_and(|interval| !interval.is_zero()) {
                self.cache.count_stall();
            }
        }
    }

    /// What has happened so far; stalls are counted when it is known that there was one.
    #[must_use]
    pub fn statistics(&mut self) -> CacheStatistics {
        self.count_stalls();
        self.cache.statistics()
    }

    /// Which row is in which slot. Its heat is that of steps whose ids the host had; [`heat`](Self::heat) is that of all.
    #[must_use]
    pub fn cache(&self) -> &RowCache {
        &self.cache
    }

    /// The device that the cache is on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes of a row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }
}

impl Drop for CachedRows {
    fn drop(&mut self) {
        // Slots and maps are freed in the order of the copies' stream, host memory at once: both after the last work that reads them, which of a step
        // that nobody has released may be any. Where waiting fails the driver's context is broken, and whether a kernel still reads host memory is
        // unknown.
        let is_read = self.maps.iter().any(|map| map.in_use);
        let waited = if is_read { self.synchronize() } else { self.catch_up().and_then(|()| self.wait()) };
        if waited.is_err() {
            self.maps.iter_mut().for_each(|map| map.lists.leak());
            return;
        }
        // SAFETY: nothing uses it after this.
        unsafe { ManuallyDrop::drop(&mut self.host) };
    }
}
