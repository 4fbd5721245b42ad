//! Kept results: a JSON file for each kind of GPU in the user's cache folder, with where its results come from.
//!
//! The file is replaced as a whole, so a reader never sees half of one and needs no lock. Writers take turns: a file beside it is
//! locked from reading what others have kept until theirs and our own is in place, so that nothing is lost.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use etcetera::BaseStrategy;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::FOLDER_VARIABLE;
use crate::device::Device;
use crate::error::{Error, Result};

/// The version of the file's format.
const FORMAT: u32 = 1;
/// A longer file is none of ours.
const MOST_BYTES: u64 = 16 << 20;

/// Where results come from. They count only for the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Origin {
    /// The GPU's name.
    pub gpu: String,
    /// Its multiprocessors, of which a part of a GPU has fewer.
    pub multiprocessors: u32,
    /// The CUDA version of the driver.
    pub driver: Option<(u32, u32)>,
    /// The version of this crate.
    pub version: String,
    /// A hash of the kernels' PTX.
    pub kernels: String,
}

impl Origin {
    /// That of results measured on `device` now.
    #[must_use]
    pub fn of(device: &Device) -> Self {
        let properties = device.properties();
        Self {
            gpu: device.name().to_owned(),
            multiprocessors: properties.multiprocessors,
            driver: properties.driver_version,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernels: hash(
                warpsmith_kernels::MODULES
                    .iter()
                    .flat_map(|module| module.entries)
                    .map(|entry| entry.sha256.as_bytes()),
            ),
        }
    }
}

/// The 64-bit FNV-1a hash of bytes (Fowler, Noll, Vo).
fn hash<'a>(parts: impl Iterator<Item = &'a [u8]>) -> String {
    let bytes = parts.flatten();
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// One kept result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Kept {
    /// The name of the fastest tile.
    pub tile: String,
    /// What it took.
    pub microseconds: f64,
    /// When that was measured, in seconds since 1970.
    pub measured: u64,
}

/// The file's content.
#[derive(Serialize, Deserialize)]
struct Content {
    format: u32,
    origin: Origin,
    results: BTreeMap<String, Kept>,
}

/// What opening a store found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// No file.
    Nothing,
    /// Results that count here.
    Results,
    /// Results of another origin, which do not.
    Stale(Box<Origin>),
    /// Something else than this crate writes, and why it is held for that.
    Foreign(String),
}

/// The kept results of one kind of GPU.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    origin: Origin,
    found: Found,
    results: BTreeMap<String, Kept>,
}

impl Store {
    /// The results that were kept for `device`, in the folder that the environment names or in the user's cache folder. Results that
    /// do not count are not there.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if there is no such folder to be had.
    pub fn open(device: &Device) -> Result<Self> {
        let named = std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty());
        let folder = match named {
            Some(folder) => PathBuf::from(folder),
            None => cache_folder()?,
        };
        Ok(Self::open_in(&folder, Origin::of(device)))
    }

    /// The same, in a folder of the caller's choice.
    #[must_use]
    pub fn open_in(folder: &Path, origin: Origin) -> Self {
        let path = folder.join(file_name(&origin.gpu));
        let (found, results) = read(&path, &origin);
        Self { path, origin, found, results }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was found when the store was opened.
    #[must_use]
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// What is kept, by key.
    #[must_use]
    pub fn results(&self) -> &BTreeMap<String, Kept> {
        &self.results
    }

    /// Keeps a problem's fastest tile and what it took, instead of what was kept under the same key. Nothing is written before
    /// [`save`](Self::save).
    pub fn keep(&mut self, key: &str, tile: impl Display, time: Duration) {
        let measured = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let kept = Kept {
            tile: tile.to_string(),
            // So few digits that they are read back as they were written.
            microseconds: time.as_nanos() as f64 / 1e3,
            measured: measured.as_secs(),
        };
        self.results.insert(key.to_owned(), kept);
    }

    /// Writes the file, with what others have kept in it meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the folder or the file cannot be written.
    pub fn save(&mut self) -> Result<()> {
        let failed = |source| Error::Io { operation: "writing", path: self.path.clone(), source };
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(failed)?;
        // Released when it is dropped, or the process ends in any way.
        let _lock = lock(&self.path.with_extension("lock"))?;
        let (_, others) = read(&self.path, &self.origin);
        for (key, kept) in others {
            self.results.entry(key).or_insert(kept);
        }
        let content = Content { format: FORMAT, origin: self.origin.clone(), results: self.results.clone() };
        let text = serde_json::to_string_pretty(&content).map_err(|error| failed(error.into()))?;
        let mut file = NamedTempFile::new_in(folder).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.persist(&self.path).map_err(|error| failed(error.error))?;
        Ok(())
    }
}

/// Waits until no other writer holds the lock file, and holds it until the result is dropped. It stays where it is: a writer that
/// removed it would let one that waits for it and one that makes it anew write at once.
fn lock(path: &Path) -> Result<File> {
    let failed = |source| Error::Io { operation: "locking", path: path.to_owned(), source };
    let file = File::options().create(true).append(true).open(path).map_err(failed)?;
    match file.lock() {
        // Where there are no locks, as on some network file systems, the file is still replaced as a whole.
        Err(error) if error.kind() != std::io::ErrorKind::Unsupported => Err(failed(error)),
        _ => Ok(file),
    }
}

/// The folder of this crate in the user's cache folder.
fn cache_folder() -> Result<PathBuf> {
    let strategy = etcetera::choose_base_strategy().map_err(|error| Error::Io {
        operation: "finding",
        path: PathBuf::from("the user's cache folder"),
        source: std::io::Error::other(error),
    })?;
    Ok(strategy.cache_dir().join("warpsmith"))
}

/// The file for a GPU: its name in letters that every file system takes.
fn file_name(gpu: &str) -> String {
    let words: Vec<&str> =
        gpu.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    format!("tuning-{}.json", words.join("-").to_ascii_lowercase())
}

/// The results in a file that count for `origin`, and what else was found.
fn read(path: &Path, origin: &Origin) -> (Found, BTreeMap<String, Kept>) {
    let nothing = |found| (found, BTreeMap::new());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return nothing(Found::Nothing),
        Err(error) => return nothing(Found::Foreign(error.to_string())),
    };
    let mut bytes = Vec::new();
    if let Err(error) = file.take(MOST_BYTES + 1).read_to_end(&mut bytes) {
        return nothing(Found::Foreign(error.to_string()));
    }
    if bytes.len() as u64 > MOST_BYTES {
        return nothing(Found::Foreign(format!("more than {MOST_BYTES} bytes")));
    }
    match serde_json::from_slice::<Content>(&bytes) {
        Err(error) => nothing(Found::Foreign(error.to_string())),
        Ok(content) if content.format != FORMAT => {
            nothing(Found::Foreign(format!("format {}, expected {FORMAT}", content.format)))
        }
        Ok(content) if content.origin != *origin => nothing(Found::Stale(Box::new(content.origin))),
        Ok(content) => (Found::Results, content.results),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_nanos(1234);

    fn origin() -> Origin {
        Origin::of(&Device::emulator())
    }

    #[test]
    fn what_is_kept_is_found_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("not yet there");
        let mut store = Store::open_in(&inner, origin());
        assert_eq!(store.found(), &Found::Nothing);
        store.keep("a", "64x64", TIME);
        store.save().expect("written");
        let again = Store::open_in(&inner, origin());
        assert_eq!(again.found(), &Found::Results);
        assert_eq!(again.results(), store.results());
        assert_eq!(again.results()["a"].tile, "64x64");
        let mut files: Vec<_> = std::fs::read_dir(&inner)
            .expect("the folder")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        files.sort_unstable();
        let lock = again.path().with_extension("lock");
        assert_eq!(files, [again.path(), &lock], "nothing temporary is left");
    }

    #[test]
    fn results_of_another_origin_do_not_count_and_are_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut store = Store::open_in(folder.path(), origin());
        store.keep("old", "64x64", TIME);
        store.save().expect("written");
        let others = [
            Origin { driver: Some((1, 2)), ..origin() },
            Origin { version: "0.0.0".into(), ..origin() },
            Origin { kernels: "0".into(), ..origin() },
            Origin { multiprocessors: 7, ..origin() },
        ];
        for other in others {
            let mut store = Store::open_in(folder.path(), other.clone());
            assert!(matches!(store.found(), Found::Stale(_)), "{other:?}");
            assert!(store.results().is_empty());
            store.keep("new", "16x64", TIME);
            store.save().expect("written");
            let keys: Vec<_> = Store::open_in(folder.path(), other).results.into_keys().collect();
            assert_eq!(keys, ["new"]);
            // Back to the first origin for the next.
            let mut store = Store::open_in(folder.path(), origin());
            store.keep("old", "64x64", TIME);
            store.save().expect("written");
        }
        let another_gpu = Origin { gpu: "another".into(), ..origin() };
        assert_eq!(Store::open_in(folder.path(), another_gpu).found(), &Found::Nothing);
    }

    #[test]
    fn damaged_and_foreign_files_are_no_results_and_can_be_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = Store::open_in(folder.path(), origin()).path().to_owned();
        let mut good = Store::open_in(folder.path(), origin());
        good.keep("a", "64x64", TIME);
        good.save().expect("written");
        let whole = std::fs::read(&path).expect("the file");
        let mut damaged: Vec<Vec<u8>> = vec![
            Vec::new(),
            b"{}".to_vec(),
            b"[1, 2".to_vec(),
            vec![0xff; 100],
            vec![b' '; (MOST_BYTES + 2) as usize],
        ];
        damaged.extend((1..whole.len()).step_by(37).map(|length| whole[..length].to_vec()));
        damaged.push(String::from_utf8_lossy(&whole).replace("\"format\": 1", "\"format\": 2").into_bytes());
        for bytes in damaged {
            std::fs::write(&path, &bytes).expect("written");
            let mut store = Store::open_in(folder.path(), origin());
            assert!(matches!(store.found(), Found::Foreign(_)), "{} bytes", bytes.len());
            store.keep("b", "16x64", TIME);
            store.save().expect("replaced");
            assert_eq!(Store::open_in(folder.path(), origin()).results().len(), 1);
        }
        // A folder in the file's place is an error of writing, not of reading.
        std::fs::remove_file(&path).expect("removed");
        std::fs::create_dir(&path).expect("made");
        let mut store = Store::open_in(folder.path(), origin());
        assert!(matches!(store.found(), Found::Foreign(_)));
        assert!(matches!(store.save(), Err(Error::Io { .. })));
    }

    #[test]
    fn tiles_that_this_version_does_not_know_are_kept_for_those_that_do() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut store = Store::open_in(folder.path(), origin());
        let kept = Kept { tile: "of tomorrow".into(), microseconds: 1.0, measured: 0 };
        store.results.insert("a".into(), kept.clone());
        store.save().expect("written");
        let mut store = Store::open_in(folder.path(), origin());
        store.keep("b", "64x64", TIME);
        store.save().expect("written");
        assert_eq!(Store::open_in(folder.path(), origin()).results().get("a"), Some(&kept));
    }

    #[test]
    fn two_writers_lose_nothing_of_each_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut first = Store::open_in(folder.path(), origin());
        let mut second = Store::open_in(folder.path(), origin());
        first.keep("a", "64x64", TIME);
        second.keep("b", "16x64", TIME);
        first.save().expect("written");
        second.save().expect("written");
        assert_eq!(Store::open_in(folder.path(), origin()).results().len(), 2);
    }

    #[test]
    fn many_writers_at_once_lose_nothing_of_each_other() {
        const WRITERS: usize = 16;
        let folder = tempfile::tempdir().expect("a folder");
        let start = std::sync::Barrier::new(WRITERS);
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (folder, start) = (folder.path(), &start);
                scope.spawn(move || {
                    let mut store = Store::open_in(folder, origin());
                    start.wait();
                    for result in 0..4 {
                        store.keep(&format!("{writer} {result}"), "64x64", TIME);
                        store.save().expect("written");
                    }
                });
            }
        });
        assert_eq!(Store::open_in(folder.path(), origin()).results().len(), 4 * WRITERS);
    }

    #[test]
    fn a_writer_waits_for_the_one_before_it_and_a_reader_for_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut store = Store::open_in(folder.path(), origin());
        store.keep("a", "64x64", TIME);
        let held = lock(&store.path().with_extension("lock")).expect("nobody else has it");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| store.save());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!writer.is_finished());
            let meanwhile = Store::open_in(folder.path(), origin());
            assert_eq!(meanwhile.found(), &Found::Nothing);
            drop(held);
            writer.join().expect("no panic").expect("written");
        });
        assert_eq!(Store::open_in(folder.path(), origin()).results().len(), 1);
    }

    #[test]
    fn file_names_are_plain() {
        assert_eq!(file_name("NVIDIA H100 80GB HBM3"), "tuning-nvidia-h100-80gb-hbm3.json");
        assert_eq!(file_name("../../x"), "tuning-x.json");
    }
}
