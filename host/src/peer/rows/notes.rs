//! Noting on the device which rows a step reads, from existing ids: what comes to the host is a bit for each row of the table.
//!
//! Notes have a stream of their own, and those of the next step are begun between a step's plan, which they depend on, and its copies, which they do not.
//! Copies keep the link to the host busy, and what comes to it later waits.

use warpsmith_dsl::launch::Global;
use warpsmith_kernels::expert_cache::{
    HEADER, HITS, NoteParams, STRAY, SettleParams, THREADS, note_rows, settle_notes,
};

use super::faults::{Faults, Point};
use super::{CachedRows, NONE, Noted, STEPS_IN_FLIGHT, Step, stray_id};
use crate::device::backend::Rows;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::memory::{PinnedBuffer, Transfer};
use crate::peer::cache::RowCache;
use crate::stream::{Event, Stream};
use crate::tensor::Tensor;

/// Blocks of a launch, at most: enough to fill any GPU.
const MOST_BLOCKS: u32 = 1024;
/// Ids of a step on the device, at most.
const MOST_IDS: usize = i32::MAX as usize;

/// What the notes of a device's steps are taken with.
#[derive(Debug)]
pub(super) struct Notes {
    stream: Stream,
    /// What is noted of a step and of the next one: the header and a bit for each row.
    words: [Words; STEPS_IN_FLIGHT],
    /// The rows that have a slot, as the host plans it.
    resident: Tensor<u32>,
    /// The number of the changes that led to them; `None` if the device's memory is anything.
    changes: Option<u64>,
    /// For each row, the steps with notes that have used it.
    heat: Tensor<u32>,
    /// How many notes have been begun.
    number: u64,
    /// What words have been copied to, and what resident rows were last copied from.
    found: Vec<PinnedBuffer<u32>>,
    upload: Option<PinnedBuffer<u32>>,
    /// The copy of resident rows that nobody has waited for yet.
    uploading: Option<Transfer<u32>>,
}

/// Words on the device.
#[derive(Debug)]
struct Words {
    words: Tensor<u32>,
    /// Whether they are all 0, once the stream's work is done.
    is_clear: bool,
}

/// Notes of a step that are being taken.
#[derive(Debug)]
#[must_use = "notes are taken to be staged"]
pub(crate) struct Noting {
    source: Source,
    /// The step's ids, and those behind them that are looked at with them.
    ids: Tensor<u32>,
    /// Where they begin, for errors.
    position: usize,
    requests: u64,
    resets: u64,
}

#[derive(Debug)]
enum Source {
    Host { rows: Vec<u64>, hits: u64 },
    Device { found: Transfer<u32>, number: u64 },
}

/// Ids of which some are a step's: those from `first` to before `end`. So many more behind them are looked at, whether they are rows, that all up to
/// `checked` are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) first: usize,
    pub(crate) end: usize,
    pub(crate) checked: usize,
}

/// What is to be noted for the step behind one; see [`CachedRows::note`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next<'a> {
    pub(crate) ids: &'a Tensor<u32>,
    pub(crate) part: Part,
    pub(crate) after: &'a Event,
}

impl Notes {
    /// Notes on a table of so many rows.
    pub(super) fn new(device: &Device, rows: usize) -> Result<Self> {
        let stream = device.new_stream()?;
        let words = 2 * rows.div_ceil(64);
        let noted = || {
            let words = Tensor::uninit_on(&stream, [HEADER as usize + words])?;
            Ok::<_, Error>(Words { words, is_clear: false })
        };
        Ok(Self {
            words: [noted()?, noted()?],
            resident: Tensor::uninit_on(&stream, [words])?,
            changes: None,
            heat: Tensor::zeros_on(&stream, [rows])?,
            number: 0,
            found: Vec::new(),
            upload: None,
            uploading: None,
            stream,
        })
    }

    /// For when it is unknown what the device has done: what it holds is anything, but for the heat.
    pub(super) fn forget(&mut self) {
        self.words.iter_mut().for_each(|words| words.is_clear = false);
        self.changes = None;
        self.number += 1;
    }

    /// Forgets the heat as well.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.forget();
        self.heat = Tensor::zeros_on(&self.stream, [self.heat.len()])?;
        Ok(())
    }

    pub(super) fn heat(&self) -> Result<Vec<u32>> {
        self.heat.to_vec()
    }

    /// Has the memory by which notes and resident rows go to and fro.
    fn reserve(&mut self) -> Result<()> {
        let device = self.stream.device();
        if self.found.is_empty() {
            self.found.push(PinnedBuffer::zeros(device, self.words[0].words.len())?);
        }
        if self.upload.is_none() && self.uploading.is_none() && !self.resident.is_empty() {
            self.upload = Some(PinnedBuffer::zeros(device, self.resident.len())?);
        }
        Ok(())
    }

    /// Those of the notes of this number.
    fn words(&mut self, number: u64) -> &mut Words {
        &mut self.words[(number % STEPS_IN_FLIGHT as u64) as usize]
    }

    /// Makes what is on the device fit for new notes.
    fn prepare(&mut self, cache: &RowCache) -> Result<()> {
        self.number += 1;
        let stream = self.stream.clone();
        let Words { words, is_clear } = self.words(self.number);
        if !std::mem::replace(is_clear, false) {
            let bytes = words.len() * size_of::<u32>();
            let all = Rows { offset: 0, pitch: bytes, width: bytes, height: 1 };
            stream.device().backend().fill(words.storage().memory(), all, 0, stream.handle())?;
        }
        self.update(cache)
    }

    /// Copies to the device which rows have a slot, if that has changed.
    ///
    /// The last step of a pass does it without notes behind it: so those of the next pass need not wait for it.
    pub(super) fn update(&mut self, cache: &RowCache) -> Result<()> {
        if self.changes == Some(cache.changes()) || self.resident.is_empty() {
            return Ok(());
        }
        if let Some(uploading) = self.uploading.take() {
            // Long done: the notes that have come back since were behind it.
            self.upload = Some(uploading.wait()?);
        }
        let mut upload = match self.upload.take() {
            Some(upload) => upload,
            None => PinnedBuffer::zeros(self.stream.device(), self.resident.len())?,
        };
        upload.copy_from_slice(bytemuck::cast_slice(cache.resident()));
        self.changes = None;
        self.uploading = Some(self.resident.copy_from_pinned(upload, &self.stream)?);
        self.changes = Some(cache.changes());
        Ok(())
    }

    /// Enqueues the noting of `ids`, of which the first `noted` are the step's, and the copy of the notes.
    fn enqueue(
        &mut self,
        cache: &RowCache,
        ids: &Tensor<u32>,
        noted: usize,
        after: &Event,
        faults: &Faults,
    ) -> Result<Source> {
        self.prepare(cache)?;
        self.stream.wait(after)?;
        let stream = self.stream.clone();
        let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let (length, noted, rows) = (number(ids.len()), number(noted), number(cache.rows()));
        if length != 0 {
            let params = NoteParams { ids: length, noted, rows, reserved: 0 };
            let resident = Global::new(self.resident.arg().address());
            let words = self.words(self.number).words.arg_mut();
            let arguments = (Global::new(ids.arg().address()), resident, words, params);
            let kernel = stream.device().kernel::<note_rows>()?;
            let blocks = length.div_ceil(THREADS).min(MOST_BLOCKS);
            // SAFETY: the ids are without gaps and written by the work that is waited for; they live until this work has been waited for. Notes and
            // resident rows have a bit for each row, and this stream alone uses them.
            unsafe { kernel.launch(&stream, [blocks, 1, 1], arguments) }?;
        }
        faults.at(Point::Return)?;
        let found = self.found.pop();
        let words = &self.words(self.number).words;
        let found = match found {
            Some(found) => found,
            None => PinnedBuffer::zeros(stream.device(), words.len())?,
        };
        let found = words.copy_to_pinned(found, &stream)?;
        Ok(Source::Device { found, number: self.number })
    }

    /// Enqueues what makes the notes of this number those of a step that took place: they are counted, and clear afterwards.
    pub(super) fn settle(&mut self, number: u64) -> Result<()> {
        let (stream, heat) = (self.stream.clone(), self.heat.arg_mut());
        let Words { words, is_clear } = self.words(number);
        let count = u32::try_from(words.len()).unwrap_or(u32::MAX) - HEADER;
        let params = SettleParams { words: count, reserved: 0 };
        let kernel = stream.device().kernel::<settle_notes>()?;
        let blocks = count.div_ceil(THREADS).clamp(1, MOST_BLOCKS);
        // SAFETY: there are so many words, whose bits are of rows, each of which has a heat; this stream alone uses both.
        unsafe { kernel.launch(&stream, [blocks, 1, 1], (words.arg_mut(), heat, params)) }?;
        *is_clear = true;
        Ok(())
    }
}

impl CachedRows {
    /// Starts a step that reads the rows `ids`, a tensor of any shape on the cache's device, as the work on `stream` so far leaves it. As
    /// [`stage`](Self::stage), but no id comes to the host: the device notes which rows they are.
    ///
    /// The host waits for the work that the ids come from; of copies of rows it waits for none but those of the step before the last, and for the
    /// reads that these came after.
    ///
    /// # Errors
    ///
    /// As [`stage`](Self::stage); [`Error::DeviceMismatch`] if ids or stream are another device's, [`Error::SizeLimit`] if there are 2³¹ ids or more,
    /// [`Error::Argument`] if the stream is being captured.
    pub fn stage_ids(&mut self, ids: &Tensor<u32>, stream: &Stream) -> Result<Step> {
        const OPERATION: &str = "CachedRows::stage_ids";
        self.device.expect_same(OPERATION, "ids", ids.device())?;
        self.device.expect_same(OPERATION, "stream", stream.device())?;
        stream.expect_no_capture(OPERATION)?;
        let ids = ids.contiguous_on(stream)?.reshape([ids.len()])?;
        let after = stream.with_operands(&[&ids], || stream.record())?;
        let noting = self.note(&ids, Part { first: 0, end: ids.len(), checked: ids.len() }, &after)?;
        self.stage_noted(noting)
    }

    /// Starts to note a part of `ids` `[length]`, a tensor without gaps that is as it should be after `after`. What has a slot is what has one now: the
    /// notes are for the step that is staged next.
    pub(crate) fn note(&mut self, ids: &Tensor<u32>, part: Part, after: &Event) -> Result<Noting> {
        const OPERATION: &str = "CachedRows::stage_ids";
        let Part { first, end, checked } = part;
        self.renew()?;
        let (requests, noted) = ((end - first) as u64, end - first);
        let ids = ids.slice(0, first..checked.max(end))?;
        if ids.len() > MOST_IDS {
            return Err(Error::SizeLimit {
                operation: OPERATION,
                operand: "ids",
                quantity: "number of ids",
                limit: format!("at most {MOST_IDS}"),
                actual: ids.len().to_string(),
            });
        }
        if let Some(notes) = &mut self.notes {
            // Before anything is under way: where there is no memory, all stays as it is.
            notes.reserve()?;
        }
        self.faults.at(Point::Note)?;
        let source = match &mut self.notes {
            None => {
                let view = ids.host_view(OPERATION)?;
                let array = view.array();
                let values = array.as_slice().unwrap_or_default();
                let rows = self.cache.rows();
                if let Some(index) = values.iter().position(|&id| id as usize >= rows) {
                    return Err(stray_id(OPERATION, rows, values[index], first + index));
                }
                let (rows, hits) = self.cache.note(&values[..noted])?;
                Ok(Source::Host { rows, hits })
            }
            Some(notes) => notes.enqueue(&self.cache, &ids, noted, after, &self.faults),
        };
        match source {
            Ok(source) => Ok(Noting { source, ids, position: first, requests, resets: self.resets }),
            Err(error) => {
                // Work may be under way that reads the ids.
                self.reset();
                Err(error)
            }
        }
    }

    /// Starts the step whose notes were taken last.
    pub(crate) fn stage_noted(&mut self, noting: Noting) -> Result<Step> {
        self.stage_noted_before(noting, None).map(|(step, _)| step)
    }

    /// As [`stage_noted`](Self::stage_noted). Begins to note what the step behind it reads, as soon as this one is planned: with what has a slot then.
    pub(crate) fn stage_noted_before(
        &mut self,
        noting: Noting,
        next: Option<Next<'_>>,
    ) -> Result<(Step, Option<Noting>)> {
        let Noting { source, ids, position, requests, resets } = noting;
        let last = self.notes.as_ref().map_or(0, |notes| notes.number);
        let is_last = match &source {
            Source::Host { .. } => true,
            Source::Device { number, .. } => *number == last,
        };
        if resets != self.resets || !is_last {
            return Err(Error::Argument {
                operation: "CachedRows::stage_ids",
                argument: "notes",
                expected: format!("notes {last} of reset {}, the last ones", self.resets),
                actual: match &source {
                    Source::Host { .. } => format!("of reset {resets}"),
                    Source::Device { number, .. } => format!("notes {number} of reset {resets}"),
                },
            });
        }
        let (found, number) = match source {
            Source::Host { rows, hits } => {
                let staged = self.stage_set(Noted { rows: &rows, requests, hits }, None, next);
                return self.end_notes(rows, staged);
            }
            Source::Device { found, number } => (found, number),
        };
        let waited = self.faults.at(Point::Wait).and_then(|()| found.wait());
        let found = match waited {
            Ok(waited) => waited,
            Err(error) => {
                self.reset();
                return Err(error);
            }
        };
        let (header, rows) = found.split_at(HEADER as usize);
        let staged = match header[STRAY as usize] {
            0 => {
                let hits = u64::from(header[HITS as usize]);
                self.stage_set(Noted { rows: bytemuck::cast_slice(rows), requests, hits }, Some(number), next)
            }
            stray => {
                let index = (NONE - stray) as usize;
                let id = ids.slice(0, index..index + 1).and_then(|id| id.to_vec());
                id.and_then(|id| {
                    let id = id.first().copied().unwrap_or(NONE);
                    Err(stray_id("CachedRows::stage_ids", self.cache.rows(), id, position + index))
                })
            }
        };
        if let Some(notes) = &mut self.notes {
            notes.found.push(found);
        }
        staged
    }

    /// Counts the rows of a step that was staged from notes of the host's.
    pub(super) fn end_notes<R>(&mut self, rows: Vec<u64>, staged: Result<R>) -> Result<R> {
        if staged.is_ok() {
            self.cache.heat_up(&rows);
        }
        self.cache.forget_notes(rows);
        staged
    }

    /// For each row, how many steps have used it; no more than 2³² - 1 are counted. Fetched from the device, when its work is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if earlier work failed, [`Error::OutOfMemory`] if the host has too little memory.
    pub fn heat(&self) -> Result<Vec<u32>> {
        let mut heat = match &self.notes {
            Some(notes) => notes.heat()?,
            None => return Ok(self.cache.heat().to_vec()),
        };
        for (heat, &more) in heat.iter_mut().zip(self.cache.heat()) {
            *heat = heat.saturating_add(more);
        }
        Ok(heat)
    }
}

/// What a device takes notes with: nothing on the CPU, whose ids the host has.
pub(super) fn notes_of(device: &Device, rows: usize) -> Result<Option<Notes>> {
    if device.kind() == DeviceKind::Cpu { Ok(None) } else { Notes::new(device, rows).map(Some) }
}
