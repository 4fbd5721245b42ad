//! Writing a checkpoint.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype, View};
use warpsmith::optim::AdamW;
use warpsmith::{Element, Tensor};

use super::manifest::{Contribution, Entry, Held, Manifest, Shard};
use super::{LATEST, MANIFEST, Part, dtype_in_file, shard_file, step_folder, unfit, write_durably};
use crate::communicator::Communicator;
use crate::digest::digest;
#[cfg(doc)]
use crate::error::Error;
use crate::error::{Result, argument, io};

const OPERATION: &str = "Checkpoint";

/// A rank's tensor, or its part of one.
#[derive(Debug)]
struct Kept {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
    part: Option<Part>,
}

impl View for &Kept {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// What a rank saves. Tensors are copied to the host when they are added.
///
/// ```
/// use warpsmith::{Device, Tensor};
/// use warpsmith_parallel::checkpoint::{Checkpoint, Part, Saved};
/// use warpsmith_parallel::launch;
///
/// let folder = tempfile::tempdir().expect("there is room");
/// launch::threads(2, |communicator| {
///     let rank = communicator.rank();
///     let half = Tensor::from_slice(&Device::cpu(), &[rank as f32; 3], [3])?;
///     let mut checkpoint = Checkpoint::default();
///     checkpoint.add_part("weight", &half, Part { axis: 0, range: 3 * rank..3 * rank + 3, total: 6 })?;
///     checkpoint.save(&communicator, folder.path(), 10)
/// })?;
/// let saved = Saved::latest(folder.path())?;
/// let weight = saved.tensor::<f32>("weight", &Device::cpu())?;
/// assert_eq!((saved.step(), weight.to_vec()?), (10, vec![0.0, 0.0, 0.0, 1.0, 1.0, 1.0]));
/// # Ok::<(), warpsmith_parallel::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Checkpoint {
    tensors: BTreeMap<String, Kept>,
}

impl Checkpoint {
    /// Adds a tensor that all ranks have; rank 0's is saved.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is a tensor of that name.
    pub fn add<T: Element>(&mut self, name: impl Into<String>, tensor: &Tensor<T>) -> Result<()> {
        let (shape, elements) = (tensor.shape().to_vec(), tensor.to_vec()?);
        self.insert(name.into(), dtype_in_file(T::DTYPE)?, shape, bytemuck::cast_slice(&elements), None)
    }

    /// Adds this rank's part of a tensor.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is a tensor of that name, or the tensor has not the part's shape.
    pub fn add_part<T: Element>(
        &mut self,
        name: impl Into<String>,
        tensor: &Tensor<T>,
        part: Part,
    ) -> Result<()> {
        let (shape, elements) = (tensor.shape().to_vec(), tensor.to_vec()?);
        self.insert(name.into(), dtype_in_file(T::DTYPE)?, shape, bytemuck::cast_slice(&elements), Some(part))
    }

    /// Adds the state of an optimiser; `part_of` says which part of its weights, by name, this rank has. Where it says none,
    /// all ranks have them whole.
    ///
    /// # Errors
    ///
    /// As [`add_part`](Self::add_part) and [`AdamW::save`].
    pub fn add_optimizer(
        &mut self,
        prefix: &str,
        optimizer: &AdamW,
        part_of: impl Fn(&str) -> Option<Part>,
    ) -> Result<()> {
        let file = tempfile::NamedTempFile::new().map_err(io("writing", "a temporary file"))?;
        optimizer.save(file.path())?;
        let bytes = std::fs::read(file.path()).map_err(io("reading", file.path().display()))?;
        let tensors = safetensors::SafeTensors::deserialize(&bytes)
            .map_err(|error| unfit(file.path(), "file", "a whole safetensors file", error.to_string()))?;
        for (name, view) in tensors.iter() {
            let part = split_state(name).and_then(&part_of);
            self.insert(format!("{prefix}.{name}"), view.dtype(), view.shape().to_vec(), view.data(), part)?;
        }
        Ok(())
    }

    fn insert(
        &mut self,
        name: String,
        dtype: Dtype,
        shape: Vec<usize>,
        bytes: &[u8],
        part: Option<Part>,
    ) -> Result<()> {
        if self.tensors.contains_key(&name) {
            return Err(argument(OPERATION, "name", "a name that no other tensor has", name));
        }
        if let Some(Part { axis, range, total }) = &part {
            let fits =
                shape.get(*axis) == Some(&range.len()) && range.start <= range.end && range.end <= *total;
            if !fits {
                let expected = format!("{} of {total} indices along axis {axis}", range.len());
                return Err(argument(OPERATION, "tensor", expected, format!("`{name}` of shape {shape:?}")));
            }
        }
        self.tensors.insert(name, Kept { dtype, shape, bytes: bytes.to_vec(), part });
        Ok(())
    }

    /// Writes the checkpoint of a step into a folder that all ranks see, and which is made if it is not there. All ranks call
    /// this. It is there when this returns, on all ranks or on none.
    ///
    /// # Errors
    ///
    /// [`Error::Checkpoint`] on all ranks if a rank could not write, parts do not cover a tensor, ranks disagree about one, or
    /// the step has been saved; [`Error::Failure`] if the ranks cannot work together any more. The checkpoint before is as it
    /// was then.
    pub fn save(&self, communicator: &Communicator, folder: impl AsRef<Path>, step: u64) -> Result<()> {
        let folder = folder.as_ref();
        let contribution = match self.write_shard(communicator, folder, step) {
            Ok(contribution) => contribution,
            Err(error) => {
                let (tensors, error) = (BTreeMap::new(), Some(error.to_string()));
                Contribution { step, shard: None, tensors, error }
            }
        };
        let all = communicator.gather_bytes(serde_json::to_vec(&contribution).unwrap_or_default())?;
        // Rank 0 writes the manifest, and says what came of it.
        let outcome = match communicator.rank() {
            0 => finish(folder, step, &all).err().map(|error| error.to_string()).unwrap_or_default(),
            _ => String::new(),
        };
        let outcomes = communicator.gather_bytes(outcome.into_bytes())?;
        match outcomes.first().filter(|outcome| !outcome.is_empty()) {
            None => Ok(()),
            Some(outcome) => {
                let actual = String::from_utf8_lossy(outcome).into_owned();
                Err(unfit(folder, &format!("step {step}"), "to be saved", actual))
            }
        }
    }

    fn write_shard(&self, communicator: &Communicator, folder: &Path, step: u64) -> Result<Contribution> {
        let (rank, size) = (communicator.rank(), communicator.size());
        let of_step = folder.join(step_folder(step));
        std::fs::create_dir_all(&of_step).map_err(io("making", of_step.display()))?;
        if of_step.join(MANIFEST).exists() {
            return Err(unfit(
                folder,
                &format!("step {step}"),
                "a step that has not been saved",
                "it has been",
            ));
        }
        let held: BTreeMap<_, _> =
            self.tensors.iter().filter(|(_, tensor)| tensor.part.is_some() || rank == 0).collect();
        let bytes = safetensors::serialize(held.clone(), None)
            .map_err(|error| unfit(folder, "tensors", "to be written", error.to_string()))?;
        let file = shard_file(rank, size);
        write_durably(&of_step.join(&file), &bytes)?;
        let tensors = held.into_iter().map(|(name, tensor)| (name.clone(), tensor.entry(rank)));
        let shard = Some(Shard { file, bytes: bytes.len() as u64, digest: digest(&bytes) });
        Ok(Contribution { step, shard, tensors: tensors.collect(), error: None })
    }
}

/// The weights that an optimiser's numbers are of, if there is one for each weight.
pub(super) fn split_state(name: &str) -> Option<&str> {
    ["first_moment.", "second_moment.", "master."].iter().find_map(|kind| name.strip_prefix(kind))
}

impl Kept {
    fn entry(&self, shard: usize) -> Entry {
        let mut shape = self.shape.clone();
        let (axis, held) = match &self.part {
            Some(Part { axis, range, total }) => {
                shape[*axis] = *total;
                (Some(*axis), Held { shard, start: range.start, end: range.end })
            }
            None => (None, Held { shard, start: 0, end: 0 }),
        };
        Entry { dtype: format!("{:?}", self.dtype), shape, axis, parts: vec![held] }
    }
}

/// Writes the manifest, then the name of the last step.
fn finish(folder: &Path, step: u64, all: &[Vec<u8>]) -> Result<()> {
    let damaged = |error: serde_json::Error| unfit(folder, "ranks", "what they wrote", error.to_string());
    let contributions = all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(damaged));
    let manifest = Manifest::of(step, contributions.collect::<Result<_>>()?)
        .map_err(|[subject, expected, actual]| unfit(folder, &subject, expected, actual))?;
    let bytes = serde_json::to_vec_pretty(&manifest)
        .map_err(|error| unfit(folder, MANIFEST, "to be written", error.to_string()))?;
    let name = step_folder(step);
    super::sync_folder(folder)?;
    write_durably(&folder.join(&name).join(MANIFEST), &bytes)?;
    write_durably(&folder.join(LATEST), name.as_bytes())
}
