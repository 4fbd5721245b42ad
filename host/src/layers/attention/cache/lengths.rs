//! How long a cache's sequences are, and what a step makes of it.

use super::super::forward::Rows;
use super::KvCache;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::attention::AttentionInput;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// Steps whose lengths are uploaded at once: an upload waits for the stream.
const STEPS_AHEAD: usize = 64;

/// Who knows the lengths.
#[derive(Debug)]
pub(super) enum Lengths {
    Host {
        lengths: Vec<usize>,
        ahead: Option<Ahead>,
    },
    /// Those now, those of a step that is under way, and those of an empty cache.
    Device {
        now: Tensor<u32>,
        next: Tensor<u32>,
        none: Tensor<u32>,
    },
}

/// Lengths on the device, of steps that append as many rows each.
#[derive(Clone, Debug)]
pub(super) struct Ahead {
    /// Rows that a step appends to each sequence.
    rows: Vec<usize>,
    /// The lengths before the first step.
    first: Vec<usize>,
    /// `[B]`: the rows of a step.
    of_rows: Tensor<u32>,
    /// `[steps + 1, B]`: the lengths before each step, and after the last.
    of_keys: Tensor<u32>,
}

impl Ahead {
    /// Which step has these lengths before it, if one has.
    fn step(&self, rows: &[usize], lengths: &[usize]) -> Option<usize> {
        if self.rows != rows {
            return None;
        }
        let moved = (0..rows.len()).find(|&b| rows[b] > 0);
        let step = match moved {
            Some(b) => lengths[b].checked_sub(self.first[b])? / rows[b],
            None => 0,
        };
        let is_of_all = (0..rows.len()).all(|b| self.first[b] + step * rows[b] == lengths[b]);
        (step + 1 < self.of_keys.shape()[0] && is_of_all).then_some(step)
    }

    /// The lengths before the first step, after it, and so on; where tokens are decoded one by one, of many steps.
    fn upload(device: &Device, lengths: &[usize], rows: &[usize], stream: &Stream) -> Result<Self> {
        let steps = if rows.iter().all(|&rows| rows <= 1) { STEPS_AHEAD } else { 1 };
        let before =
            |step: usize| lengths.iter().zip(rows).map(move |(length, rows)| (length + step * rows) as u32);
        let of_keys: Vec<u32> = (0..=steps).flat_map(before).collect();
        let of_rows: Vec<u32> = rows.iter().map(|&rows| rows as u32).collect();
        let batch = rows.len();
        stream.as_default(|| {
            Ok(Self {
                rows: rows.to_vec(),
                first: lengths.to_vec(),
                of_rows: Tensor::from_slice(device, &of_rows, [batch])?,
                of_keys: Tensor::from_slice(device, &of_keys, [steps + 1, batch])?,
            })
        })
    }

    fn of_keys(&self, step: usize) -> Result<Tensor<u32>> {
        self.of_keys.slice(0, step..step + 1)?.reshape([self.rows.len()])
    }
}

/// A step: what is appended to each sequence, and what attention reads then.
#[derive(Debug)]
pub(in super::super) struct Step {
    /// Rows of the tensors, of which so many count.
    pub(super) in_order: usize,
    /// Rows that count of each sequence, and its length before; nothing if the device knows.
    pub(super) on_host: Option<(Vec<usize>, Vec<usize>)>,
    /// Where new tokens begin.
    pub(in super::super) first: First,
    /// Keys that attention may have to read.
    pub(in super::super) keys: usize,
    /// The step's rows and the keys of each sequence, where they differ, or the device knows.
    pub(in super::super) lengths: [Option<Tensor<u32>>; 2],
}

/// Where new tokens of a step begin.
#[derive(Clone, Debug)]
pub(in super::super) enum First {
    /// In all sequences alike.
    All(usize),
    /// `[B]`: in each.
    Each(Tensor<u32>),
}

impl<T: AttentionInput> KvCache<T> {
    /// What a step of so many rows of each sequence, of `in_order`, will be; nothing changes by it.
    pub(in super::super) fn begin(
        &mut self,
        operation: &'static str,
        in_order: usize,
        rows: Rows<'_>,
        stream: &Stream,
    ) -> Result<Step> {
        let device = self.device().clone();
        match &self.lengths {
            Lengths::Device { now, next, .. } => {
                let of_rows = match rows {
                    Rows::All => None,
                    Rows::OnDevice(rows) => Some(rows.clone()),
                    Rows::OnHost(rows) => {
                        return Err(Error::Argument {
                            operation,
                            argument: "rows",
                            expected:
                                "none with a cache whose lengths are on the device; `lengths` has them there"
                                    .into(),
                            actual: format!("{} of them", rows.len()),
                        });
                    }
                };
                Ok(Step {
                    in_order,
                    on_host: None,
                    first: First::Each(now.clone()),
                    keys: self.capacity(),
                    lengths: [of_rows, Some(next.clone())],
                })
            }
            Lengths::Host { lengths, .. } => {
                let rows = match rows {
                    Rows::All => None,
                    Rows::OnHost(rows) => Some(rows),
                    Rows::OnDevice(rows) => {
                        return Err(Error::Argument {
                            operation,
                            argument: "lengths",
                            expected: "none with a cache whose lengths the host has; `rows` has them there"
                                .into(),
                            actual: format!("a tensor of shape {:?}", rows.shape()),
                        });
                    }
                };
                let before = lengths.clone();
                let rows = self.checked_rows(operation, in_order, rows, &before)?;
                stream.expect_no_capture(operation)?;
                self.step_of_host(&device, in_order, rows, before, stream)
            }
        }
    }

    fn step_of_host(
        &mut self,
        device: &Device,
        in_order: usize,
        rows: Vec<usize>,
        before: Vec<usize>,
        stream: &Stream,
    ) -> Result<Step> {
        let capacity = self.capacity();
        let after: Vec<usize> = before.iter().zip(&rows).map(|(length, rows)| length + rows).collect();
        let longest = after.iter().copied().max().unwrap_or(0);
        let has_equal_keys = after.iter().all(|&length| length == longest);
        let has_all_rows = rows.iter().all(|&rows| rows == in_order);
        // Few lengths of the axis, so that what a sequence's sums are made of seldom depends on the others.
        let room = longest.checked_next_power_of_two().unwrap_or(longest).min(capacity);
        let keys = if has_equal_keys { longest } else { room };
        if has_equal_keys && has_all_rows {
            let first = First::All(before.first().copied().unwrap_or(0));
            return Ok(Step { in_order, on_host: Some((rows, before)), first, keys, lengths: [None, None] });
        }
        let Lengths::Host { ahead, .. } = &mut self.lengths else {
            return Ok(Step { in_order, on_host: None, first: First::All(0), keys, lengths: [None, None] });
        };
        let known = ahead.take().and_then(|ahead| Some((ahead.step(&rows, &before)?, ahead)));
        let (step, found) = match known {
            Some(known) => known,
            None => (0, Ahead::upload(device, &before, &rows, stream)?),
        };
        let (first, of_keys, of_rows) =
            (found.of_keys(step)?, found.of_keys(step + 1)?, found.of_rows.clone());
        *ahead = Some(found);
        let lengths = [(!has_all_rows).then_some(of_rows), Some(of_keys)];
        Ok(Step { in_order, on_host: Some((rows, before)), first: First::Each(first), keys, lengths })
    }

    /// Makes the step's lengths the cache's: nothing of it failed.
    pub(in super::super) fn commit(&mut self, step: &Step, stream: &Stream) -> Result<()> {
        match (&mut self.lengths, &step.on_host) {
            (Lengths::Host { lengths, .. }, Some((rows, before))) => {
                *lengths = before.iter().zip(rows).map(|(length, rows)| length + rows).collect();
                Ok(())
            }
            (Lengths::Device { now, next, .. }, _) if step.in_order > 0 => now.copy_from_on(next, stream),
            _ => Ok(()),
        }
    }

    /// How many of `in_order` rows each sequence gets, if the cache has room for them.
    fn checked_rows(
        &self,
        operation: &'static str,
        in_order: usize,
        rows: Option<&[usize]>,
        lengths: &[usize],
    ) -> Result<Vec<usize>> {
        let (batch, capacity) = (self.batch(), self.capacity());
        let rows = rows.map_or_else(|| vec![in_order; batch], <[usize]>::to_vec);
        if rows.len() != batch {
            let (expected, actual) = (format!("[{batch}], one for each sequence"), vec![rows.len()]);
            return Err(Error::Shape { operation, operand: "rows", expected, actual });
        }
        for (b, (&length, &rows)) in lengths.iter().zip(&rows).enumerate() {
            if rows > in_order {
                let (expected, actual) = (format!("at most {in_order}"), format!("{rows} of sequence {b}"));
                return Err(Error::Argument { operation, argument: "rows", expected, actual });
            }
            if rows > capacity - length {
                return Err(Error::SizeLimit {
                    operation,
                    operand: "cache",
                    quantity: "number of keys",
                    limit: format!("at most {capacity}, the capacity"),
                    actual: format!("{length} and {rows} more of sequence {b}"),
                });
            }
        }
        Ok(rows)
    }
}
