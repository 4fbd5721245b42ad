//! Reading a checkpoint, by any number of ranks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use warpsmith::optim::AdamW;
use warpsmith::{Device, Element, Tensor};

use super::manifest::{Entry, FORMAT, Manifest};
use super::save::split_state;
use super::{LATEST, MANIFEST, Part, around, dtype_in_file, step_folder, unfit};
use crate::digest::digest;
use crate::error::{Result, argument, io};

/// A checkpoint that has been saved. What is asked for is read from the files that have it.
#[derive(Debug)]
pub struct Saved {
    folder: PathBuf,
    manifest: Manifest,
}

/// A tensor's elements, or those of a part.
struct Loaded {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Saved {
    /// The last checkpoint that was saved into a folder as a whole.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if there is none, [`Error::Checkpoint`](crate::Error::Checkpoint) if it is damaged.
    pub fn latest(folder: impl AsRef<Path>) -> Result<Self> {
        let path = folder.as_ref().join(LATEST);
        let name = std::fs::read_to_string(&path).map_err(io("reading", path.display()))?;
        let step = name.trim().strip_prefix("step-").and_then(|step| step.parse().ok());
        let step =
            step.ok_or_else(|| unfit(&path, "file", "the name of a step", format!("it has `{name}`")))?;
        Self::of_step(folder, step)
    }

    /// The checkpoint of a step.
    ///
    /// # Errors
    ///
    /// As [`latest`](Self::latest).
    pub fn of_step(folder: impl AsRef<Path>, step: u64) -> Result<Self> {
        let folder = folder.as_ref().join(step_folder(step));
        let path = folder.join(MANIFEST);
        let bytes = std::fs::read(&path).map_err(io("reading", path.display()))?;
        let manifest: Manifest = serde_json::from_slice(&bytes)
            .map_err(|error| unfit(&path, "file", "a manifest", error.to_string()))?;
        if manifest.format != FORMAT {
            let actual = format!("it is {}", manifest.format);
            return Err(unfit(&path, "format", FORMAT.to_string(), actual));
        }
        for (name, entry) in &manifest.tensors {
            entry.check().map_err(|[expected, actual]| unfit(&path, name, expected, actual))?;
        }
        Ok(Self { folder, manifest })
    }

    /// The step that was saved.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// How many ranks saved it.
    #[must_use]
    pub fn size(&self) -> usize {
        self.manifest.shards.len()
    }

    /// The names of the tensors, and their whole shapes.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.manifest.tensors.iter().map(|(name, entry)| (name.as_str(), entry.shape.as_slice()))
    }

    /// A tensor as a whole, however it was split.
    ///
    /// # Errors
    ///
    /// [`Error::Checkpoint`](crate::Error::Checkpoint) if there is no such tensor, it is of another type, or a file is damaged;
    /// [`Error::Io`](crate::Error::Io) if a file cannot be read.
    pub fn tensor<T: Element>(&self, name: &str, device: &Device) -> Result<Tensor<T>> {
        self.on_device(name, None, device)
    }

    /// The indices `range` of an axis of a tensor, however it was split.
    ///
    /// # Errors
    ///
    /// As [`tensor`](Self::tensor), and [`Error::Argument`](crate::Error::Argument) if the tensor has no such indices.
    pub fn part<T: Element>(
        &self,
        name: &str,
        axis: usize,
        range: Range<usize>,
        device: &Device,
    ) -> Result<Tensor<T>> {
        self.on_device(name, Some((axis, range)), device)
    }

    fn on_device<T: Element>(
        &self,
        name: &str,
        part: Option<(usize, Range<usize>)>,
        device: &Device,
    ) -> Result<Tensor<T>> {
        let loaded = self.load(name, part, &mut BTreeMap::new())?;
        let expected = dtype_in_file(T::DTYPE)?;
        if loaded.dtype != expected {
            let actual = format!("it is of {:?}", loaded.dtype);
            return Err(unfit(&self.folder, name, format!("type {expected:?}"), actual));
        }
        let elements: Vec<T> = bytemuck::pod_collect_to_vec(&loaded.bytes);
        Ok(Tensor::from_slice(device, &elements, &loaded.shape)?)
    }

    /// Gives an optimiser its state; `part_of` says which part of its weights, by name, this rank has.
    ///
    /// # Errors
    ///
    /// As [`part`](Self::part) and [`AdamW::load`]. Nothing has changed then.
    pub fn load_optimizer(
        &self,
        prefix: &str,
        optimizer: &mut AdamW,
        part_of: impl Fn(&str) -> Option<Part>,
    ) -> Result<()> {
        let mut files = BTreeMap::new();
        let mut all = BTreeMap::new();
        for name in self.manifest.tensors.keys() {
            let Some(own) = name.strip_prefix(prefix).and_then(|own| own.strip_prefix('.')) else { continue };
            let part = split_state(own).and_then(&part_of).map(|part| (part.axis, part.range));
            all.insert(own.to_owned(), self.load(name, part, &mut files)?);
        }
        let views = all.iter().map(|(name, loaded)| {
            let view = TensorView::new(loaded.dtype, loaded.shape.clone(), &loaded.bytes);
            Ok((name, view.map_err(|error| unfit(&self.folder, name, "a whole tensor", error.to_string()))?))
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        let file = tempfile::NamedTempFile::new().map_err(io("writing", "a temporary file"))?;
        safetensors::serialize_to_file(views, None, file.path())
            .map_err(|error| unfit(file.path(), "file", "to be written", error.to_string()))?;
        Ok(optimizer.load(file.path())?)
    }

    fn load(
        &self,
        name: &str,
        part: Option<(usize, Range<usize>)>,
        files: &mut BTreeMap<usize, Vec<u8>>,
    ) -> Result<Loaded> {
        let entry = self
            .manifest
            .tensors
            .get(name)
            .ok_or_else(|| unfit(&self.folder, name, "a tensor of that name", "there is none"))?;
        if let Some((axis, range)) = &part {
            let there = entry.shape.get(*axis).copied().unwrap_or(0);
            if range.start > range.end || range.end > there {
                let actual = format!("`{name}` has {there} of {range:?}");
                return Err(argument("Saved::part", "range", format!("indices of axis {axis}"), actual));
            }
        }
        // A split tensor is put together along its axis first, from the files that have what is wanted of it.
        let wanted = match (&part, entry.axis) {
            (Some((axis, range)), Some(split)) if *axis == split => range.clone(),
            (_, Some(split)) => 0..entry.shape[split],
            (_, None) => 0..0,
        };
        let (dtype, shape, bytes) = self.assemble(name, entry, wanted, files)?;
        Ok(match part {
            Some((axis, range)) if entry.axis != Some(axis) => {
                let element = dtype_bytes(dtype, &shape, bytes.len());
                let bytes = sliced(&bytes, &shape, axis, range.clone(), element);
                let mut shape = shape;
                shape[axis] = range.len();
                Loaded { dtype, shape, bytes }
            }
            _ => Loaded { dtype, shape, bytes },
        })
    }

    /// The indices of the split axis, or the whole tensor where none is split.
    fn assemble(
        &self,
        name: &str,
        entry: &Entry,
        wanted: Range<usize>,
        files: &mut BTreeMap<usize, Vec<u8>>,
    ) -> Result<(Dtype, Vec<usize>, Vec<u8>)> {
        let mut shape = entry.shape.clone();
        let mut pieces = Vec::new();
        let mut dtype = None;
        for held in &entry.parts {
            let common = held.start.max(wanted.start)..held.end.min(wanted.end);
            // Of a tensor without elements any part will do.
            if entry.axis.is_some() && common.is_empty() && dtype.is_some() {
                continue;
            }
            let bytes = self.file(held.shard, files)?;
            let view = self.view(bytes, name)?;
            let mut expected = entry.shape.clone();
            if let Some(axis) = entry.axis {
                expected[axis] = held.end - held.start;
            }
            if view.shape() != expected {
                let actual = format!("it has {:?}", view.shape());
                return Err(unfit(&self.folder, name, format!("a part of shape {expected:?}"), actual));
            }
            dtype = Some(view.dtype());
            let piece = match entry.axis {
                None => view.data().to_vec(),
                Some(_) if common.is_empty() => continue,
                Some(axis) => {
                    let element = dtype_bytes(view.dtype(), view.shape(), view.data().len());
                    let own = common.start - held.start..common.end - held.start;
                    sliced(view.data(), view.shape(), axis, own, element)
                }
            };
            pieces.push((common.len(), piece));
        }
        let dtype = match dtype {
            Some(dtype) => dtype,
            None => serde_json::from_value(serde_json::Value::String(entry.dtype.clone())).map_err(|_| {
                unfit(&self.folder, name, "a type of safetensors", format!("it is {}", entry.dtype))
            })?,
        };
        let Some(axis) = entry.axis else {
            return Ok((dtype, shape, pieces.pop().map(|piece| piece.1).unwrap_or_default()));
        };
        shape[axis] = wanted.len();
        let outer = around(&shape, axis)[0];
        let mut bytes = Vec::new();
        for row in 0..outer {
            for (_, piece) in &pieces {
                let width = piece.len() / outer;
                bytes.extend_from_slice(&piece[row * width..(row + 1) * width]);
            }
        }
        Ok((dtype, shape, bytes))
    }

    /// The bytes of a rank's file, which is read once.
    fn file<'a>(&self, shard: usize, files: &'a mut BTreeMap<usize, Vec<u8>>) -> Result<&'a [u8]> {
        match files.entry(shard) {
            std::collections::btree_map::Entry::Occupied(there) => Ok(there.into_mut()),
            std::collections::btree_map::Entry::Vacant(place) => Ok(place.insert(self.read(shard)?)),
        }
    }

    fn read(&self, shard: usize) -> Result<Vec<u8>> {
        let expected = self.manifest.shards.get(shard).ok_or_else(|| {
            let expected = format!("a number below {}", self.size());
            unfit(&self.folder, "file of a tensor", expected, format!("it is {shard}"))
        })?;
        // A name, not a way out of the folder.
        let name = Path::new(&expected.file).file_name().unwrap_or_default();
        let path = self.folder.join(name);
        let bytes = std::fs::read(&path).map_err(io("reading", path.display()))?;
        if bytes.len() as u64 != expected.bytes {
            let actual = format!("it has {}", bytes.len());
            return Err(unfit(&path, "file", format!("{} bytes", expected.bytes), actual));
        }
        if digest(&bytes) != expected.digest {
            return Err(unfit(&path, "file", "the bytes that were written", "it has others"));
        }
        Ok(bytes)
    }

    fn view<'a>(&self, bytes: &'a [u8], name: &str) -> Result<TensorView<'a>> {
        let damaged = |error: safetensors::SafeTensorError| {
            unfit(&self.folder, name, "in a whole safetensors file", error.to_string())
        };
        SafeTensors::deserialize(bytes).map_err(damaged)?.tensor(name).map_err(damaged)
    }
}

/// Bytes of an element.
fn dtype_bytes(dtype: Dtype, shape: &[usize], bytes: usize) -> usize {
    let count = shape.iter().fold(1usize, |count, &axis| count.saturating_mul(axis));
    bytes.checked_div(count).unwrap_or(dtype.bitsize() / 8)
}

/// Some indices of an axis.
fn sliced(bytes: &[u8], shape: &[usize], axis: usize, range: Range<usize>, element: usize) -> Vec<u8> {
    let [outer, length, inner] = around(shape, axis);
    let row = inner * element;
    let mut all = Vec::with_capacity(outer * range.len() * row);
    for at in 0..outer {
        let start = (at * length + range.start) * row;
        all.extend_from_slice(&bytes[start..start + range.len() * row]);
    }
    all
}
