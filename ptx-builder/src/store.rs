//! How kernels are kept: a folder for each family and architecture, in it a compressed module for each entry.
//!
//! ```text
//! topk.sm_80/index.txt            what the folder was made from, and its entries
//! topk.sm_80/topk_f32_32.ptx.z    a PTX module with this entry alone, as a zlib stream
//! ```
//!
//! A module depends on its own entry only ([`Module::alone`](crate::module::Module::alone)), and on the version of the compressor,
//! which `Cargo.lock` pins. So a change of one kernel changes that kernel's files, and the hash in the indices.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Error;
use crate::header::Header;

/// The name of a folder's index.
pub const INDEX: &str = "index.txt";

/// What the names of compressed modules end in.
pub const SUFFIX: &str = ".ptx.z";

/// Rounds in which the compressor improves its choice: later ones gain next to nothing.
const ROUNDS: NonZeroU64 = NonZeroU64::new(5).unwrap();

/// An entry that can be loaded by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The entry's name.
    pub name: String,
    /// The text of a module with this entry alone.
    pub text: String,
}

/// What a folder's index says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// What the kernels were made from.
    pub header: Header,
    /// The entries' names, in order.
    pub entries: Vec<String>,
}

impl Index {
    /// The index of `kernels`.
    pub fn of(header: Header, kernels: &[Kernel]) -> Self {
        let mut entries: Vec<String> = kernels.iter().map(|kernel| kernel.name.clone()).collect();
        entries.sort_unstable();
        Self { header, entries }
    }

    /// Reads an index; `None` if its header is incomplete.
    pub fn parse(text: &str) -> Option<Self> {
        let names = text.lines().filter(|line| !line.is_empty() && !line.starts_with("//"));
        Some(Self { header: Header::parse(text)?, entries: names.map(str::to_owned).collect() })
    }

    /// The index as a file holds it.
    pub fn to_text(&self) -> String {
        let mut text = format!("{}\n", self.header);
        for name in &self.entries {
            let _ = writeln!(text, "{name}");
        }
        text
    }
}

/// Compresses a text to a zlib stream, by a slow compressor: files are read more often than written.
pub fn compress(text: &str) -> Vec<u8> {
    let options = zopfli::Options { iteration_count: ROUNDS, ..zopfli::Options::default() };
    let mut stream = Vec::new();
    zopfli::compress(options, zopfli::Format::Zlib, text.as_bytes(), &mut stream)
        .expect("neither text nor vector fails");
    stream
}

/// The files of kernels, compressed on all cores: their names and contents, in order.
fn compress_all(kernels: &[Kernel]) -> Vec<(String, Vec<u8>)> {
    let next = AtomicUsize::new(0);
    let compress_some = || -> Vec<(usize, Vec<u8>)> {
        let taken = std::iter::from_fn(|| {
            let index = next.fetch_add(1, Ordering::Relaxed);
            kernels.get(index).map(|kernel| (index, kernel))
        });
        taken.map(|(index, kernel)| (index, compress(&kernel.text))).collect()
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(kernels.len());
    let mut done: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(compress_some)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it does not panic")).collect()
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(index, bytes)| (format!("{}{SUFFIX}", kernels[index].name), bytes)).collect()
}

/// The text of a zlib stream; `None` if the stream is damaged.
pub fn decompress(bytes: &[u8]) -> Option<String> {
    String::from_utf8(miniz_oxide::inflate::decompress_to_vec_zlib(bytes).ok()?).ok()
}

/// Reads the PTX in a file, compressed if its name ends in [`SUFFIX`].
///
/// # Errors
///
/// [`Error::Io`] if the file cannot be read, is damaged or is no text.
pub fn read(path: &Path) -> Result<String, Error> {
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    let is_compressed = path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(SUFFIX));
    let text = if is_compressed { decompress(&bytes) } else { String::from_utf8(bytes).ok() };
    text.ok_or_else(|| Error::io("read", path)(damaged(is_compressed)))
}

fn damaged(is_compressed: bool) -> io::Error {
    let reason = if is_compressed { "it is no zlib stream of text" } else { "it is no text" };
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

/// Writes kernels and their index to `folder`, and removes the kernels there that are not among them. A file that has the right
/// content already is left alone.
///
/// # Errors
///
/// [`Error::Io`] if a file cannot be read, written or removed.
pub fn write(folder: &Path, header: &Header, kernels: &[Kernel]) -> Result<(), Error> {
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let mut old = files(folder)?;
    let index = Index::of(header.clone(), kernels).to_text().into_bytes();
    let compressed = compress_all(kernels);
    for (name, bytes) in compressed.into_iter().chain([(INDEX.to_owned(), index)]) {
        if old.remove(&name).as_ref() != Some(&bytes) {
            let path = folder.join(name);
            std::fs::write(&path, bytes).map_err(Error::io("write", &path))?;
        }
    }
    for name in old.keys().filter(|name| name.ends_with(SUFFIX)) {
        let path = folder.join(name);
        std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            family: "topk".into(),
            arch: "sm_80".into(),
            rustc: "1.96.0".into(),
            llvm: "22.1.8".into(),
            builder: "0.1.0".into(),
            recipe: "--features topk".into(),
            sources: "sha256:00".into(),
        }
    }

    fn kernel(name: &str, text: &str) -> Kernel {
        Kernel { name: name.into(), text: text.into() }
    }

    #[test]
    fn what_is_written_is_read_back_and_what_is_gone_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let topk = folder.path().join("topk.sm_80");
        write(&topk, &header(), &[kernel("b", "two"), kernel("a", "one")]).unwrap();
        assert_eq!(read(&topk.join("a.ptx.z")).unwrap(), "one");
        let index = Index::parse(&read(&topk.join(INDEX)).unwrap()).unwrap();
        assert_eq!(index, Index { header: header(), entries: vec!["a".into(), "b".into()] });

        write(&topk, &header(), &[kernel("b", "three")]).unwrap();
        let names: Vec<String> = files(&topk).unwrap().into_keys().collect();
        assert_eq!(names, ["b.ptx.z", INDEX]);
        assert_eq!(read(&topk.join("b.ptx.z")).unwrap(), "three");
    }

    #[test]
    fn a_damaged_file_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.ptx.z");
        let whole = compress("a text that is long enough to be damaged in the middle");
        for bytes in [&whole[..whole.len() / 2], b"no stream", b""] {
            std::fs::write(&path, bytes).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("a.ptx.z") && error.contains("zlib"), "{error}");
        }
    }

    #[test]
    fn equal_texts_give_equal_bytes() {
        let text = ".version 7.0\n".repeat(1000);
        assert_eq!(compress(&text), compress(&text));
        assert_eq!(decompress(&compress(&text)).as_deref(), Some(text.as_str()));
    }
}
