//! The folders of a store of PTX and what their indices list, for the program and for `build.rs`.

extern crate std;

use std::borrow::ToOwned;
use std::io;
use std::path::{Path, PathBuf};
use std::string::String;
use std::vec::Vec;

/// The name of a folder's index.
pub const INDEX: &str = "index.txt";

/// The name of the file with texts.
pub const TEXTS: &str = "entries.lzma";

/// Folders of a family whose texts one stream holds, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The kernel family.
    pub family: String,
    /// The folders, in the order of their architectures. The stream is in the first, if it is there.
    pub folders: Vec<Folder>,
}

/// A folder of a family and architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    /// Its name, e.g. `linear.sm_80`.
    pub name: String,
    /// The number after `sm_`.
    pub arch: u32,
    /// Whether an `a` follows that.
    pub arch_specific: bool,
    /// Where it is.
    pub path: PathBuf,
}

impl Run {
    /// The path of the stream.
    #[must_use]
    pub fn texts(&self) -> PathBuf {
        self.folders.first().map(|first| first.path.join(TEXTS)).unwrap_or_default()
    }
}

/// The folders of a store that hold an index or texts, in the order of families. A folder without texts of its own has them in the stream
/// of the family's folder before it.
///
/// # Errors
///
/// If a folder cannot be read.
pub fn runs(store: &Path) -> io::Result<Vec<Run>> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(store)? {
        let path = entry?.path();
        if !path.join(INDEX).exists() && !path.join(TEXTS).exists() {
            continue;
        }
        let Some(name) = path.file_name().and_then(|name| name.to_str()).map(str::to_owned) else { continue };
        let Some((family, arch)) = name.split_once(".sm_") else { continue };
        let digits = arch.strip_suffix('a').unwrap_or(arch);
        if let Ok(number) = digits.parse() {
            let (family, arch_specific) = (family.to_owned(), digits != arch);
            folders.push((family, Folder { name, arch: number, arch_specific, path }));
        }
    }
    folders.sort_unstable_by(|(family, one), (other_family, other)| {
        let key = |folder: &Folder| (folder.arch, folder.arch_specific);
        family.cmp(other_family).then_with(|| key(one).cmp(&key(other)))
    });
    let mut runs: Vec<Run> = Vec::new();
    for (family, folder) in folders {
        let has_texts = folder.path.join(TEXTS).exists();
        match runs.last_mut() {
            Some(run) if run.family == family && !has_texts => run.folders.push(folder),
            _ => runs.push(Run { family, folders: Vec::from([folder]) }),
        }
    }
    Ok(runs)
}

/// The entries of an index, in the order of their texts: name, bytes of text, SHA-256 of the text. `None` is a line that is no entry.
pub(crate) fn entries(index: &str) -> impl Iterator<Item = Option<(&str, usize, &str)>> {
    let lines = index.lines().filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.map(|line| {
        let mut words = line.split_whitespace();
        let entry = (words.next()?, words.next()?.parse().ok()?, words.next()?);
        words.next().is_none().then_some(entry)
    })
}
