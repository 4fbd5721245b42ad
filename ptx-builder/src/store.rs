//! How kernels are kept: a folder for each family and architecture, in it a text for each entry, compressed together.
//!
//! ```text
//! topk.sm_80/index.txt       what the folder was made from; of each entry its name, the bytes of its text and their SHA-256
//! topk.sm_80/entries.lzma    the texts, one after the other, as one LZMA stream (`xz --decompress` reads it)
//! ```
//!
//! The texts of a family have most lines in common, which a stream of its own for each could not use.
//!
//! A text is a PTX module with one entry, and depends on that entry only ([`Module::alone`](crate::module::Module::alone)). So the index
//! shows which kernels a change has changed. The stream depends on all texts, and on the version of the compressor, which `Cargo.lock`
//! pins.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::Path;

use lzma_rust2::{EncodeMode, LzmaOptions, LzmaReader, LzmaWriter, MfType};
use sha2::{Digest as _, Sha256};

use crate::Error;
use crate::header::Header;

/// The name of a folder's index.
pub const INDEX: &str = "index.txt";

/// The name of the file with a folder's texts.
pub const TEXTS: &str = "entries.lzma";

/// The memory that decompressing may take beside the text, in KiB: a damaged stream may ask for any.
const MOST_MEMORY: u32 = 64 << 10;

/// The longest window in which the compressor looks for what it has seen: more than the texts of any family that ships.
const LONGEST_WINDOW: usize = 32 << 20;
const SHORTEST_WINDOW: usize = 64 << 10;

/// An entry that can be loaded by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The entry's name.
    pub name: String,
    /// The text of a module with this entry alone.
    pub text: String,
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

    /// The kernels of this index in the compressed texts.
    ///
    /// # Errors
    ///
    /// What is wrong with the texts: they are damaged, or others than those of the index.
    pub fn unpack(&self, compressed: &[u8]) -> Result<Vec<Kernel>, String> {
        let all = decompress(compressed).ok_or("it is no LZMA stream of text")?;
        let mut rest = all.as_str();
        let mut kernels = Vec::with_capacity(self.entries.len());
        for listed in &self.entries {
            let Listed { name, bytes, .. } = listed;
            let (text, others) = rest.split_at_checked(*bytes).ok_or_else(|| {
                format!("it ends before the {bytes} bytes of `{name}`, which the index names, end")
            })?;
            let kernel = Kernel { name: name.clone(), text: text.to_owned() };
            if Listed::of(&kernel) != *listed {
                return Err(format!("its text of `{name}` has another SHA-256 than the index names"));
            }
            kernels.push(kernel);
            rest = others;
        }
        if !rest.is_empty() {
            return Err(format!("it has {} bytes more than the index names", rest.len()));
        }
        Ok(kernels)
    }
}

/// The index and the compressed texts of kernels.
#[must_use]
pub fn pack(header: &Header, kernels: &[Kernel]) -> (Index, Vec<u8>) {
    let mut kernels: Vec<&Kernel> = kernels.iter().collect();
    kernels.sort_unstable_by_key(|kernel| &kernel.name);
    let entries = kernels.iter().map(|kernel| Listed::of(kernel)).collect();
    let texts: String = kernels.iter().map(|kernel| kernel.text.as_str()).collect();
    (Index { header: header.clone(), entries }, compress(&texts, LONGEST_WINDOW))
}

/// Compresses a text to an LZMA stream, as small as it gets: files are read more often than written.
fn compress(text: &str, longest_window: usize) -> Vec<u8> {
    // `xz` takes no other window than a power of two. Text has no alignment, so that positions say nothing (`pb`).
    let window = text.len().next_power_of_two().clamp(SHORTEST_WINDOW, longest_window);
    let options = LzmaOptions {
        dict_size: u32::try_from(window).expect("less than 4 GiB"),
        lc: LzmaOptions::LC_DEFAULT,
        lp: LzmaOptions::LP_DEFAULT,
        pb: 0,
        mode: EncodeMode::Normal,
        nice_len: LzmaOptions::NICE_LEN_MAX,
        mf: MfType::Bt4,
        depth_limit: 512,
        preset_dict: None,
    };
    let written = || -> io::Result<Vec<u8>> {
        let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(text.len() as u64))?;
        writer.write_all(text.as_bytes())?;
        writer.finish()
    };
    written().expect("the options are valid, and a vector takes every byte")
}

/// The text of an LZMA stream; `None` if the stream is damaged.
fn decompress(bytes: &[u8]) -> Option<String> {
    let mut reader = LzmaReader::new_mem_limit(bytes, MOST_MEMORY, None).ok()?;
    // The end has to be the encoder's: that is what tells damage in the middle.
    reader.set_relaxed_end_condition(false);
    let mut text = String::new();
    reader.read_to_string(&mut text).ok()?;
    Some(text)
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
    Index::parse(&text).ok_or_else(|| Error::io("read", &path)(invalid("it is no index of kernels")))
}

/// Reads the index of a folder, and its kernels.
///
/// # Errors
///
/// [`Error::Io`] if a file cannot be read or is damaged.
pub fn kernels(folder: &Path) -> Result<(Index, Vec<Kernel>), Error> {
    let index = index(folder)?;
    let path = folder.join(TEXTS);
    let bytes = std::fs::read(&path).map_err(Error::io("read", &path))?;
    let kernels = index.unpack(&bytes).map_err(|reason| Error::io("read", &path)(invalid(&reason)))?;
    Ok((index, kernels))
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

/// Writes kernels and their index to `folder`. A file that has the right content already is left alone.
///
/// # Errors
///
/// [`Error::Io`] if a file cannot be read or written.
pub fn write(folder: &Path, header: &Header, kernels: &[Kernel]) -> Result<(), Error> {
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let (index, texts) = pack(header, kernels);
    for (name, bytes) in [(TEXTS, texts), (INDEX, index.to_text().into_bytes())] {
        let path = folder.join(name);
        if std::fs::read(&path).ok().as_ref() != Some(&bytes) {
            std::fs::write(&path, bytes).map_err(Error::io("write", &path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

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
    fn what_is_written_is_read_back_in_the_order_of_names() {
        let folder = tempfile::tempdir().unwrap();
        let topk = folder.path().join("topk.sm_80");
        write(&topk, &header(), &[kernel("b", "two"), kernel("a", "one\n")]).unwrap();
        let (index, kernels) = super::kernels(&topk).unwrap();
        assert_eq!(kernels, [kernel("a", "one\n"), kernel("b", "two")]);
        let sha256 = "2c8b08da5ce60398e1f19af0e5dccc744df274b826abe585eaba68c525434806";
        assert_eq!(index.header, header());
        assert_eq!(index.entries[0], Listed { name: "a".into(), bytes: 4, sha256: sha256.into() });

        write(&topk, &header(), &[kernel("b", "three")]).unwrap();
        assert_eq!(super::kernels(&topk).unwrap().1, [kernel("b", "three")]);
        let names: Vec<String> = files(&topk).unwrap().into_keys().collect();
        assert_eq!(names, [TEXTS, INDEX]);
        // A header alone leaves the texts as they are.
        let texts = fs::metadata(topk.join(TEXTS)).unwrap().modified().unwrap();
        write(&topk, &Header { sources: "sha256:01".into(), ..header() }, &[kernel("b", "three")]).unwrap();
        assert_eq!(fs::metadata(topk.join(TEXTS)).unwrap().modified().unwrap(), texts);
        assert_eq!(super::index(&topk).unwrap().header.sources, "sha256:01");
    }

    #[test]
    fn an_entry_is_read_by_a_path_unless_a_file_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        write(folder.path(), &header(), &[kernel("a", "one"), kernel("b", "two")]).unwrap();
        assert_eq!(read(&path("b.ptx")).unwrap(), "two");
        for name in ["c.ptx", "b", "b.txt", "none/b.ptx"] {
            let error = read(&path(name)).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        fs::write(path("b.ptx"), "three").unwrap();
        assert_eq!(read(&path("b.ptx")).unwrap(), "three");
        fs::write(path("b.ptx"), [0xff]).unwrap();
        assert!(read(&path("b.ptx")).unwrap_err().to_string().contains("no text"));
    }

    #[test]
    fn damage_is_an_error_that_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let texts = folder.path().join(TEXTS);
        let text = "a text that is long enough to be damaged in the middle";
        write(folder.path(), &header(), &[kernel("a", text), kernel("b", "two")]).unwrap();
        let whole = fs::read(&texts).unwrap();
        let mut cases: Vec<Vec<u8>> = vec![whole[..whole.len() / 2].to_vec(), b"no stream".to_vec(), vec![]];
        for byte in 0..whole.len() {
            // Of the header, the window may be another: the text is the same. The first byte of the range coder says nothing.
            if !(1..5).contains(&byte) && byte != 13 {
                let mut damaged = whole.clone();
                damaged[byte] ^= 0x04;
                cases.push(damaged);
            }
        }
        for case in cases {
            fs::write(&texts, &case).unwrap();
            let error = read(&folder.path().join("a.ptx")).unwrap_err().to_string();
            assert!(error.contains(TEXTS), "{error}");
        }

        for (index, reason) in [
            (pack(&header(), &[kernel("a", text)]).0, "3 bytes more"),
            (pack(&header(), &[kernel("a", text), kernel("b", "four")]).0, "4 bytes of `b`"),
            (pack(&header(), &[kernel("a", text), kernel("b", "Two")]).0, "`b` has another SHA-256"),
        ] {
            let error = index.unpack(&whole).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        for index in ["", "a 1 00\n", &format!("{}\na\n", header()), &format!("{}\na 1 00 x\n", header())] {
            fs::write(folder.path().join(INDEX), index).unwrap();
            let error = read(&folder.path().join("a.ptx")).unwrap_err().to_string();
            assert!(error.contains(INDEX), "{error}");
        }
    }

    #[test]
    fn equal_texts_give_equal_bytes() {
        // Shorter than the window, longer, and none at all.
        let long: String = (0..20_000).map(|line| format!("mov.b32 %r{line}, {};\n", line % 7)).collect();
        assert!(long.len() > 4 * SHORTEST_WINDOW);
        for text in [".version 7.0\n".repeat(1000), String::new(), long] {
            let stream = compress(&text, SHORTEST_WINDOW);
            assert_eq!(stream, compress(&text, SHORTEST_WINDOW));
            assert!(decompress(&stream).as_ref() == Some(&text), "{} bytes", text.len());
        }
    }

    #[test]
    fn an_index_is_read_as_it_is_written() {
        let (index, _) = pack(&header(), &[kernel("b", "two"), kernel("a", "")]);
        assert_eq!(Index::parse(&index.to_text()), Some(index));
    }
}
