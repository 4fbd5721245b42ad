//! The text: bytes of the repository's own documents and sources, of which some files are held out.

use std::path::{Path, PathBuf};

use warpsmith::{Device, Tensor};

use crate::training::{Random, Result};

/// One of so many files, in the order of their paths, is held out.
const HELD_OUT: usize = 16;
/// What ends a file.
const END: u8 = 0;

/// Bytes to train with, and others.
pub(crate) struct Text {
    pub(crate) train: Vec<u8>,
    pub(crate) held_out: Vec<u8>,
    pub(crate) files: [usize; 2],
}

impl Text {
    /// The Markdown and Rust files under `folder`, without what builds have made.
    pub(crate) fn load(folder: &Path) -> Result<Self> {
        let mut paths = Vec::new();
        collect(folder, &mut paths)?;
        paths.sort();
        let mut text = Self { train: Vec::new(), held_out: Vec::new(), files: [0; 2] };
        for (index, path) in paths.iter().enumerate() {
            let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
            let is_held_out = index % HELD_OUT == HELD_OUT - 1;
            let to = if is_held_out { &mut text.held_out } else { &mut text.train };
            to.extend(bytes);
            to.push(END);
            text.files[usize::from(is_held_out)] += 1;
        }
        Ok(text)
    }

    /// The error for a text that has no window of so many bytes and the one after them.
    pub(crate) fn expect(&self, folder: &Path, window: usize) -> Result<()> {
        let [train, held_out] = [&self.train, &self.held_out].map(Vec::len);
        if train > window && held_out > window {
            return Ok(());
        }
        let folder = folder.display();
        Err(format!(
            "the text under {folder}: expected more than {window} bytes of Markdown and Rust to train with, \
             and as many held out, found {train} and {held_out}"
        )
        .into())
    }

    /// The entropy of the held-out bytes one by one, in nats: the least loss of a model that does not look at what was before.
    pub(crate) fn unigram_entropy(&self) -> f64 {
        let mut counts = [0u64; 256];
        for &byte in &self.held_out {
            counts[usize::from(byte)] += 1;
        }
        let all = self.held_out.len() as f64;
        let parts = counts.iter().filter(|count| **count > 0).map(|&count| count as f64 / all);
        -parts.map(|part| part * part.ln()).sum::<f64>()
    }
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let is_built = name == "target" || name.to_string_lossy().starts_with('.');
        if entry.file_type()?.is_dir() {
            if !is_built {
                collect(&path, paths)?;
            }
        } else if path.extension().is_some_and(|ending| ending == "md" || ending == "rs") {
            paths.push(path);
        }
    }
    Ok(())
}

/// Windows of a text: their bytes, and the byte after each of them.
pub(crate) struct Windows {
    pub(crate) ids: Vec<u32>,
    pub(crate) labels: Vec<u32>,
    pub(crate) shape: [usize; 2],
}

impl Windows {
    fn at(text: &[u8], starts: &[usize], length: usize) -> Self {
        let bytes = |start: usize| text[start..start + length].iter().copied().map(u32::from);
        Self {
            ids: starts.iter().flat_map(|&start| bytes(start)).collect(),
            labels: starts.iter().flat_map(|&start| bytes(start + 1)).collect(),
            shape: [starts.len(), length],
        }
    }

    /// Those of a step, which follow from the seed and the step alone.
    pub(crate) fn of_step(text: &[u8], seed: u64, step: u64, [count, length]: [usize; 2]) -> Self {
        let mut random = Random(Random(!seed).next() ^ step);
        let places = (text.len() - length) as u64;
        let starts: Vec<usize> = (0..count).map(|_| (random.next() % places) as usize).collect();
        Self::at(text, &starts, length)
    }

    /// So many at equal distances.
    pub(crate) fn spread(text: &[u8], [count, length]: [usize; 2]) -> Self {
        let places = text.len() - length;
        let starts: Vec<usize> = (0..count).map(|index| index * places / count).collect();
        Self::at(text, &starts, length)
    }

    /// Bytes and labels on a device.
    pub(crate) fn on(&self, device: &Device) -> warpsmith::Result<[Tensor<u32>; 2]> {
        Ok([
            Tensor::from_slice(device, &self.ids, self.shape)?,
            Tensor::from_slice(device, &self.labels, self.shape)?,
        ])
    }
}
