//! How kernels are kept: a folder for each family and architecture, and a text for each entry, those of a family compressed together.
//!
//! ```text
//! norm.sm_80/index.txt       what the folder was made from; of each entry its name, the bytes of its text and their SHA-256
//! norm.sm_80/entries.lzma    the texts of this folder and of the next, one after the other, as one LZMA stream
//! norm.sm_90/index.txt       the same for another architecture
//! ```
//!
//! The texts of a family have most lines in common, also those for different architectures, which a stream of its own for each could not
//! use. So a folder without a stream has its texts in that of an earlier architecture: a stream holds those of its own folder, then those
//! of the following ones of the family, up to the next with a stream. [`write()`] gives a family one stream, in its first folder.
//! `xz --decompress` reads it.
//!
//! A text is a PTX module with one entry, and depends on that entry only ([`Module::alone`](crate::module::Module::alone)). So the index
//! shows which kernels a change has changed. The stream depends on all texts, and on the version of the compressor, which `Cargo.lock`
//! pins.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::header::Header;
use crate::{Arch, Error};

mod stream;
#[cfg(test)]
mod tests;

/// The name of a folder's index.
pub const INDEX: &str = "index.txt";

/// The name of the file with the texts of a family.
pub const TEXTS: &str = "entries.lzma";

/// What the names of files end in that earlier versions wrote, one for each entry.
const EARLIER: &str = ".ptx.z";

/// An entry that can be loaded by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The entry's name.
    pub name: String,
    /// The text of a module with this entry alone.
    pub text: String,
}

/// What a folder holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// What the kernels were made from; its family and architecture name the folder.
    pub header: Header,
    /// The kernels.
    pub kernels: Vec<Kernel>,
}

/// What an index says of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The entry's name.
    pub name: String,
    /// The bytes of its text.
    pub bytes: usize,
    /// Their SHA-256, as 64 hexadecimal digits.
    pub sha256: String,
}

impl Listed {
    fn of(kernel: &Kernel) -> Self {
        let digest = Sha256::digest(&kernel.text);
        let sha256 = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { name: kernel.name.clone(), bytes: kernel.text.len(), sha256 }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let listed = Self {
            name: words.next()?.to_owned(),
            bytes: words.next()?.parse().ok()?,
            sha256: words.next()?.to_owned(),
        };
        words.next().is_none().then_some(listed)
    }
}

/// What a folder's index says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// What the kernels were made from.
    pub header: Header,
    /// The entries, in the order of their names, which is that of their texts.
    pub entries: Vec<Listed>,
}

impl Index {
    /// Reads an index; `None` if its header is incomplete, or a line after it is no entry.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with("//"));
        Some(Self { header: Header::parse(text)?, entries: lines.map(Listed::parse).collect::<Option<_>>()? })
    }

    /// The index as a file holds it.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{}\n", self.header);
        for Listed { name, bytes, sha256 } in &self.entries {
            let _ = writeln!(text, "{name} {bytes} {sha256}");
        }
        text
    }

    /// The bytes of all texts; `None` if they are more than there can be.
    fn bytes(&self) -> Option<usize> {
        self.entries.iter().try_fold(0usize, |sum, listed| sum.checked_add(listed.bytes))
    }

    /// The name of the folder.
    fn folder(&self) -> String {
        format!("{}.{}", self.header.family, self.header.arch)
    }
}

/// The indices of folders whose texts one stream holds, and that stream.
#[must_use]
pub fn pack<'a>(folders: impl IntoIterator<Item = &'a Content>) -> (Vec<Index>, Vec<u8>) {
    let mut texts = String::new();
    let mut indices = Vec::new();
    for Content { header, kernels } in folders {
        let mut kernels: Vec<&Kernel> = kernels.iter().collect();
        kernels.sort_unstable_by_key(|kernel| &kernel.name);
        texts.extend(kernels.iter().map(|kernel| kernel.text.as_str()));
        let entries = kernels.iter().map(|kernel| Listed::of(kernel)).collect();
        indices.push(Index { header: header.clone(), entries });
    }
    (indices, stream::compress(&texts, stream::LONGEST_WINDOW))
}

/// The kernels of each of the folders whose texts the stream holds, of the folders' indices in their order.
///
/// # Errors
///
/// What is wrong with the stream: it is damaged, or holds other texts than those of the indices.
pub fn unpack(indices: &[Index], compressed: &[u8]) -> Result<Vec<Vec<Kernel>>, String> {
    let sum = indices.iter().try_fold(0usize, |sum, index| sum.checked_add(index.bytes()?));
    let bytes = sum.ok_or("the indices name more bytes than there can be")?;
    let all = stream::decompress(compressed, bytes)?.ok_or_else(|| {
        let folders: Vec<String> = indices.iter().map(Index::folder).collect();
        format!(
            "it has more than the {bytes} bytes that are listed by the index of {}",
            folders.join(" and of ")
        )
    })?;
    let mut rest = all.as_str();
    let mut unpacked = Vec::with_capacity(indices.len());
    for index in indices {
        let mut kernels = Vec::with_capacity(index.entries.len());
        for listed in &index.entries {
            let Listed { name, bytes, .. } = listed;
            let (text, others) = rest.split_at_checked(*bytes).ok_or_else(|| {
                let folder = index.folder();
                format!("it ends before the {bytes} bytes of `{name}` end, which the index of {folder} names")
            })?;
            let kernel = Kernel { name: name.clone(), text: text.to_owned() };
            if Listed::of(&kernel) != *listed {
                let folder = index.folder();
                return Err(format!(
                    "its text of `{name}` has another SHA-256 than the index of {folder} names"
                ));
            }
            kernels.push(kernel);
            rest = others;
        }
        unpacked.push(kernels);
    }
    Ok(unpacked)
}

/// Reads PTX: the text in a file, or, if there is no file `FOLDER/ENTRY.ptx` but a store in the folder, that entry of it.
///
/// # Errors
///
/// [`Error::Io`] if neither can be read, a file is damaged, or the store has no such entry.
pub fn read(path: &Path) -> Result<String, Error> {
    let not_found = match std::fs::read(path) {
        Ok(bytes) => {
            return String::from_utf8(bytes).map_err(|_| Error::io("read", path)(invalid("it is no text")));
        }
        Err(error) => error,
    };
    let folder = path.parent().filter(|folder| folder.join(INDEX).is_file());
    let entry = path.file_stem().filter(|_| path.extension() == Some(OsStr::new("ptx")));
    let (Some(folder), Some(entry), ErrorKind::NotFound) = (folder, entry, not_found.kind()) else {
        return Err(Error::io("read", path)(not_found));
    };
    let mut kernels = kernels(folder)?.1.into_iter();
    let named = kernels.find(|kernel| OsStr::new(&kernel.name) == entry);
    named.map(|kernel| kernel.text).ok_or_else(|| {
        let reason = format!("there is no such file, and the {INDEX} beside it names no such entry");
        Error::io("read", path)(io::Error::new(ErrorKind::NotFound, reason))
    })
}

/// Reads the index of a folder.
///
/// # Errors
///
/// [`Error::Io`] if it cannot be read, or is none.
pub fn index(folder: &Path) -> Result<Index, Error> {
    let path = folder.join(INDEX);
    let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    let Some(index) = Index::parse(&text) else {
        let reason = match earlier(folder)?.first() {
            Some(file) => format!(
                "an earlier version of warpsmith-builder wrote this folder, with `{}`: build it again",
                file.file_name().unwrap_or_default().display()
            ),
            None => "it is no index of kernels".to_owned(),
        };
        return Err(Error::io("read", &path)(invalid(&reason)));
    };
    Ok(index)
}

/// Reads the index of a folder, and its kernels.
///
/// # Errors
///
/// [`Error::Io`] if a file cannot be read or is damaged.
pub fn kernels(folder: &Path) -> Result<(Index, Vec<Kernel>), Error> {
    index(folder)?;
    let (run, at) = run(folder)?;
    let mut indices = run.iter().map(|folder| index(folder)).collect::<Result<Vec<_>, _>>()?;
    let path = run[0].join(TEXTS);
    let bytes = std::fs::read(&path).map_err(|error| {
        let none =
            "there is no such file, nor one beside it in a folder of the family for an earlier architecture";
        let is_missing = error.kind() == ErrorKind::NotFound;
        Error::io("read", &path)(if is_missing { io::Error::new(ErrorKind::NotFound, none) } else { error })
    })?;
    let mut unpacked =
        unpack(&indices, &bytes).map_err(|reason| Error::io("read", &path)(invalid(&reason)))?;
    Ok((indices.swap_remove(at), unpacked.swap_remove(at)))
}

/// The folders whose texts are in one stream with those of `folder`, in the order of the texts, and which of them is `folder`.
fn run(folder: &Path) -> Result<(Vec<PathBuf>, usize), Error> {
    let alone = (vec![folder.to_owned()], 0);
    let Some((family, own)) = place(folder) else { return Ok(alone) };
    let store = match folder.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let (mut archs, mut run) = (Vec::new(), Vec::new());
    for (arch, path) in folders(store, family)? {
        if path.join(TEXTS).is_file() {
            if arch > own {
                break;
            }
            (archs, run) = Default::default();
        }
        archs.push(arch);
        run.push(path);
    }
    Ok(archs.iter().position(|arch| *arch == own).map_or(alone, |at| (run, at)))
}

/// The family and the architecture that a folder's name states.
fn place(folder: &Path) -> Option<(&str, Arch)> {
    let (family, arch) = folder.file_name()?.to_str()?.split_once('.')?;
    Some((family, arch.parse().ok()?))
}

/// The folders of a family that have an index, in the order of their architectures.
fn folders(store: &Path, family: &str) -> Result<BTreeMap<Arch, PathBuf>, Error> {
    let mut folders = BTreeMap::new();
    for entry in std::fs::read_dir(store).map_err(Error::io("read", store))? {
        let path = entry.map_err(Error::io("read", store))?.path();
        if let Some((_, arch)) = place(&path).filter(|(of, _)| *of == family)
            && path.join(INDEX).is_file()
        {
            folders.insert(arch, path);
        }
    }
    Ok(folders)
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}

/// The files of `folder` by their names: those of the store, and whatever else is there.
///
/// # Errors
///
/// [`Error::Io`] if the folder or a file cannot be read.
pub fn files(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io("read", folder))? {
        let path = entry.map_err(Error::io("read", folder))?.path();
        let name = path.file_name().unwrap_or(OsStr::new("")).to_string_lossy().into_owned();
        let bytes = std::fs::read(&path).map_err(Error::io("read", &path))?;
        files.insert(name, bytes);
    }
    Ok(files)
}

/// The files in a folder that are of earlier versions, in the order of their names.
fn earlier(folder: &Path) -> Result<BTreeSet<PathBuf>, Error> {
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io("read", folder))? {
        let path = entry.map_err(Error::io("read", folder))?.path();
        if path.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(EARLIER.as_bytes())) {
            files.insert(path);
        }
    }
    Ok(files)
}

/// Writes folders to `store`, and gives their paths. Folders of the same families for other architectures keep their texts; a family gets
/// one stream. A file that has the right content already is left alone, and files of earlier versions are removed.
///
/// # Errors
///
/// [`Error::Io`] if a file cannot be read or written, or a folder of the same family that is to keep its texts is damaged;
/// [`Error::Arch`] if a header names no architecture.
pub fn write(store: &Path, contents: &[Content]) -> Result<Vec<PathBuf>, Error> {
    std::fs::create_dir_all(store).map_err(Error::io("create", store))?;
    let families: BTreeSet<&str> = contents.iter().map(|content| content.header.family.as_str()).collect();
    for family in families {
        let of_family = contents.iter().filter(|content| content.header.family == family);
        bring_about(&wanted(store, family, of_family)?)?;
    }
    let folder = |content: &Content| store.join(format!("{}.{}", content.header.family, content.header.arch));
    Ok(contents.iter().map(folder).collect())
}

/// Compresses the texts of a family anew.
///
/// # Errors
///
/// [`Error::Io`] if a file cannot be read or written, or a folder is damaged.
pub fn repack(store: &Path, family: &str) -> Result<(), Error> {
    bring_about(&wanted(store, family, [])?)
}

/// The files of a family that [`repack`] would write or remove.
///
/// # Errors
///
/// [`Error::Io`] if a file cannot be read, or a folder is damaged.
pub fn packed_otherwise(store: &Path, family: &str) -> Result<Vec<PathBuf>, Error> {
    let mut files = wanted(store, family, [])?;
    files.retain(|path, bytes| std::fs::read(path).ok() != *bytes);
    Ok(files.into_keys().collect())
}

/// Files with their bytes, and files that should not be, without.
type Wanted = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// The files that the folders of a family should have, and those that they should not have. `contents` take the place of
/// what there is.
fn wanted<'a>(
    store: &Path,
    family: &str,
    contents: impl IntoIterator<Item = &'a Content>,
) -> Result<Wanted, Error> {
    let mut of_archs = BTreeMap::new();
    for content in contents {
        of_archs.insert(content.header.arch.parse::<Arch>()?, content.clone());
    }
    for (arch, folder) in folders(store, family)? {
        if let Entry::Vacant(vacant) = of_archs.entry(arch) {
            let (Index { header, .. }, kernels) = kernels(&folder)?;
            vacant.insert(Content { header, kernels });
        }
    }
    let (indices, stream) = pack(of_archs.values());
    let mut stream = Some(stream);
    let mut files = Wanted::new();
    for (arch, index) in of_archs.keys().zip(indices) {
        let folder = store.join(format!("{family}.{arch}"));
        files.insert(folder.join(TEXTS), stream.take());
        files.insert(folder.join(INDEX), Some(index.to_text().into_bytes()));
        if folder.is_dir() {
            files.extend(earlier(&folder)?.into_iter().map(|path| (path, None)));
        }
    }
    Ok(files)
}

/// Writes files, then removes those without bytes.
fn bring_about(files: &Wanted) -> Result<(), Error> {
    for (path, bytes) in files {
        let Some(bytes) = bytes else { continue };
        if std::fs::read(path).ok().as_ref() != Some(bytes) {
            let folder = path.parent().unwrap_or(path);
            std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
            std::fs::write(path, bytes).map_err(Error::io("write", path))?;
        }
    }
    for (path, _) in files.iter().filter(|(_, bytes)| bytes.is_none()) {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io("remove", path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}
