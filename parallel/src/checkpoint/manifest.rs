//! What a step's folder holds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The number of this format.
pub(super) const FORMAT: u32 = 1;

/// What is where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: u32,
    pub(super) step: u64,
    pub(super) shards: Vec<Shard>,
    pub(super) tensors: BTreeMap<String, Entry>,
}

/// A rank's file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Shard {
    pub(super) file: String,
    pub(super) bytes: u64,
    pub(super) digest: u64,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The type as safetensors names it, and the whole shape.
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    /// The axis that is split; `None` if one file has it whole.
    pub(super) axis: Option<usize>,
    /// Files and the indices of the axis that they have.
    pub(super) parts: Vec<Held>,
}

/// What a file has of a tensor: indices from `start` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) shard: usize,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// What a rank tells the others of its file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Contribution {
    pub(super) step: u64,
    pub(super) shard: Option<Shard>,
    pub(super) tensors: BTreeMap<String, Entry>,
    /// What went wrong, if the file is not there.
    pub(super) error: Option<String>,
}

impl Manifest {
    /// The manifest of all ranks' files; else the tensor that does not fit, what was expected and what came.
    pub(super) fn of(step: u64, ranks: Vec<Contribution>) -> Result<Self, [String; 3]> {
        let mut tensors: BTreeMap<String, Entry> = BTreeMap::new();
        let mut shards = Vec::with_capacity(ranks.len());
        for (rank, contribution) in ranks.into_iter().enumerate() {
            if let Some(error) = contribution.error {
                return Err([format!("the file of rank {rank}"), "to be written".into(), error]);
            }
            if contribution.step != step {
                let actual = format!("rank {rank} saves step {}", contribution.step);
                return Err(["step".into(), format!("{step} on all ranks"), actual]);
            }
            shards.extend(contribution.shard);
            for (name, entry) in contribution.tensors {
                let Some(known) = tensors.get_mut(&name) else {
                    tensors.insert(name, entry);
                    continue;
                };
                let of =
                    |entry: &Entry| format!("{} {:?} split along {:?}", entry.dtype, entry.shape, entry.axis);
                if (&known.dtype, &known.shape, known.axis) != (&entry.dtype, &entry.shape, entry.axis) {
                    return Err([name, of(known), format!("it is {} on rank {rank}", of(&entry))]);
                }
                known.parts.extend(entry.parts);
            }
        }
        for (name, entry) in &mut tensors {
            entry.arrange();
            entry.check().map_err(|[expected, actual]| [name.clone(), expected, actual])?;
        }
        Ok(Self { format: FORMAT, step, shards, tensors })
    }
}

impl Entry {
    /// Puts the parts that are not empty in order.
    fn arrange(&mut self) {
        if self.axis.is_some() {
            self.parts.retain(|part| part.start < part.end);
            self.parts.sort_by_key(|part| part.start);
        }
    }

    /// The parts follow each other and cover the axis; else what was expected and what came.
    pub(super) fn check(&self) -> Result<(), [String; 2]> {
        let Some(axis) = self.axis else {
            let is_whole = self.parts.len() == 1;
            return if is_whole { Ok(()) } else { Err(["one file".into(), format!("{}", self.parts.len())]) };
        };
        let Some(&length) = self.shape.get(axis) else {
            return Err([format!("an axis {axis}"), format!("it has shape {:?}", self.shape)]);
        };
        let mut end = 0;
        for part in &self.parts {
            if part.start != end {
                let actual = format!("one begins at {} where the one before ends at {end}", part.start);
                return Err(["parts that follow each other".into(), actual]);
            }
            if part.end < part.start {
                return Err(["parts that end after they begin".into(), format!("{part:?}")]);
            }
            end = part.end;
        }
        if end != length {
            return Err([format!("parts up to {length}"), format!("they end at {end}")]);
        }
        Ok(())
    }
}
