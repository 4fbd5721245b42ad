//! Checkpoints of what is split over ranks, which any number of ranks can load.
//!
//! A checkpoint is a folder. Each step has a folder in it, with a safetensors file of each rank and a manifest that says what
//! is where. Files are written under another name, flushed to the disk and renamed; the manifest comes last, and then the
//! file `latest` that names the step. So a crash leaves the checkpoint before as it was.

mod manifest;
mod save;
mod saved;

pub use save::Checkpoint;
pub use saved::Saved;

use std::fs::File;
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use warpsmith::DType;

use crate::error::{Error, Result, argument, io};

/// Which part of a tensor a rank has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The axis that is split.
    pub axis: usize,
    /// The indices of the axis that the rank has.
    pub range: Range<usize>,
    /// How many indices the axis has on all ranks together.
    pub total: usize,
}

/// The file that names the last step.
const LATEST: &str = "latest";
/// The file of a step's folder that says what is where.
const MANIFEST: &str = "manifest.json";

fn step_folder(step: u64) -> String {
    format!("step-{step:010}")
}

fn shard_file(rank: usize, size: usize) -> String {
    format!("shard-{rank:05}-of-{size:05}.safetensors")
}

/// The error of a checkpoint that is not as it should be.
fn unfit(path: &Path, subject: &str, expected: impl Into<String>, actual: impl Into<String>) -> Error {
    Error::Checkpoint {
        path: path.to_owned(),
        subject: subject.into(),
        expected: expected.into(),
        actual: actual.into(),
    }
}

/// Writes a file so that a crash leaves all of it or nothing.
fn write_durably(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = || io("writing", path.display());
    let folder = path.parent().map_or_else(PathBuf::new, Path::to_owned);
    let mut file = tempfile::NamedTempFile::new_in(&folder).map_err(failed())?;
    file.write_all(bytes).map_err(failed())?;
    file.as_file().sync_all().map_err(failed())?;
    file.persist(path).map_err(|error| failed()(error.error))?;
    sync_folder(&folder)
}

/// Flushes a folder's names to the disk.
fn sync_folder(folder: &Path) -> Result<()> {
    if cfg!(windows) {
        // Folders cannot be opened there.
        return Ok(());
    }
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io("flushing", folder.display()))
}

/// The file format's name of a type.
fn dtype_in_file(dtype: DType) -> Result<Dtype> {
    Ok(match dtype {
        DType::F8E4M3 => Dtype::F8_E4M3,
        DType::F8E5M2 => Dtype::F8_E5M2,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::U8 => Dtype::U8,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
        DType::I64 => Dtype::I64,
        other => return Err(argument("Checkpoint", "type", "a type that safetensors has", other)),
    })
}

/// Elements before an axis, along it, and after it.
fn around(shape: &[usize], axis: usize) -> [usize; 3] {
    let product = |axes: &[usize]| axes.iter().fold(1usize, |product, &axis| product.saturating_mul(axis));
    [product(&shape[..axis]), shape[axis], product(&shape[axis + 1..])]
}
