//! The PTX of this crate's kernels: a text for each entry, the texts of a family compressed together, in the folder `ptx`.

// First, so that this file is no source of the PTX.
#![cfg(not(target_arch = "nvptx64"))]

extern crate std;

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use std::io::Read;
use std::sync::OnceLock;

use lzma_rust2::LzmaReader;

mod index;

pub use index::{Folder, INDEX, Run, TEXTS, runs};

/// The kernels of a family, compiled for an architecture.
#[derive(Clone, Copy, Debug)]
pub struct PtxModule {
    /// The kernel family, e.g. `linear`.
    pub family: &'static str,
    /// The architecture that it was compiled for, e.g. `(8, 0)` for sm_80.
    pub arch: (u32, u32),
    /// Whether it runs on that architecture only (`sm_90a`), rather than on that and all later ones.
    pub arch_specific: bool,
    /// The entries, in the order of their names.
    pub entries: &'static [PtxEntry],
}

/// An entry, as a PTX module that holds nothing else.
#[derive(Clone, Copy)]
pub struct PtxEntry {
    /// The entry's name.
    pub name: &'static str,
    /// The SHA-256 of the text, as 64 hexadecimal digits.
    pub sha256: &'static str,
    /// Where the text is among those of its stream.
    start: usize,
    end: usize,
    texts: &'static Texts,
}

/// The texts of a family's entries, those for one architecture after those for another.
struct Texts {
    compressed: &'static [u8],
    /// The bytes of the texts.
    bytes: usize,
    /// Kept for good: most programs that load one entry load others of the module. `Err` inside if the stream is damaged.
    text: OnceLock<Result<String, String>>,
}

impl Texts {
    #[allow(dead_code, reason = "without a family there are no texts")]
    const fn new(compressed: &'static [u8], bytes: usize) -> Self {
        Self { compressed, bytes, text: OnceLock::new() }
    }
}

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

impl PtxModule {
    /// The name of the module's folder, e.g. `linear.sm_80`.
    #[must_use]
    pub fn name(&self) -> String {
        let (major, minor) = self.arch;
        let specific = if self.arch_specific { "a" } else { "" };
        format!("{}.sm_{major}{minor}{specific}", self.family)
    }

    /// The entry `name`.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&'static PtxEntry> {
        let at = self.entries.binary_search_by_key(&name, |entry| entry.name).ok()?;
        Some(&self.entries[at])
    }
}

impl PtxEntry {
    /// The text of the PTX module. The first call for an entry of a family decompresses all entries of that family, and keeps them.
    ///
    /// # Panics
    ///
    /// If the stream that this crate was built with is damaged.
    #[must_use]
    pub fn text(&self) -> String {
        let all = self.texts.text.get_or_init(|| decompress(self.texts.compressed, self.texts.bytes));
        let all = all.as_deref().unwrap_or_else(|reason| panic!("the PTX of `{}`: {reason}", self.name));
        let own = all.get(self.start..self.end);
        own.unwrap_or_else(|| panic!("the PTX of `{}` is damaged", self.name)).to_owned()
    }
}

impl core::fmt::Debug for PtxEntry {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "{} ({} bytes)", self.name, self.end - self.start)
    }
}

/// The memory that decompressing may take beside the text, in KiB: a damaged stream may ask for any.
const MOST_MEMORY: u32 = 64 << 10;

/// The text of an LZMA stream of `bytes` bytes of text.
///
/// # Errors
///
/// What is wrong with the stream.
fn decompress(stream: &[u8], bytes: usize) -> Result<String, String> {
    let damaged = |error| format!("it is no LZMA stream of text: {error}");
    let mut reader = LzmaReader::new_mem_limit(stream, MOST_MEMORY, None).map_err(damaged)?;
    // The end has to be the encoder's: that is what tells damage in the middle.
    reader.set_relaxed_end_condition(false);
    let mut text = Vec::new();
    text.try_reserve_exact(bytes).map_err(|_| format!("there is no memory for its {bytes} bytes of text"))?;
    // One more, which tells a longer text.
    reader.take((bytes as u64).saturating_add(1)).read_to_end(&mut text).map_err(damaged)?;
    if text.len() != bytes {
        let relation = if text.len() < bytes { "less" } else { "more" };
        return Err(format!("it has {relation} than the {bytes} bytes of text that are listed"));
    }
    String::from_utf8(text).map_err(|_| "it is an LZMA stream, but of no text".to_string())
}

/// A name and a text for each entry of a folder.
type Unpacked = Vec<(String, String)>;

/// The entries of the folders of a [`Run`], of the texts of their indices and the compressed texts.
///
/// # Errors
///
/// What is wrong with them: they are damaged, or of different folders.
pub fn unpack(indices: &[&str], compressed: &[u8]) -> Result<Vec<Unpacked>, String> {
    let mut listed = Vec::new();
    let mut bytes = 0usize;
    for index in indices {
        let entries: Option<Vec<_>> = index::entries(index).collect();
        let entries = entries.ok_or("an index has a line that is no entry")?;
        for (_, more, _) in &entries {
            bytes = bytes.checked_add(*more).ok_or("more bytes are listed than there can be")?;
        }
        listed.push(entries);
    }
    let all = decompress(compressed, bytes)?;
    let mut rest = all.as_str();
    let mut folder = |entries: Vec<(&str, usize, &str)>| -> Result<Unpacked, String> {
        let mut unpacked = Vec::with_capacity(entries.len());
        for (name, bytes, _) in entries {
            let (text, others) = rest
                .split_at_checked(bytes)
                .ok_or_else(|| format!("the text of `{name}` does not end after {bytes} bytes"))?;
            unpacked.push((name.to_owned(), text.to_owned()));
            rest = others;
        }
        Ok(unpacked)
    };
    listed.into_iter().map(&mut folder).collect()
}

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn every_entry_is_found_by_its_name_and_holds_itself() {
        for module in MODULES {
            assert!(FAMILIES.contains(&module.family) && !module.entries.is_empty(), "{module:?}");
            for entry in module.entries {
                assert_eq!(module.entry(entry.name).map(|found| found.name), Some(entry.name));
                let text = entry.text();
                assert_eq!(text.matches(".entry").count(), 1, "{}", entry.name);
                assert!(text.contains(&format!(".visible .entry {}(", entry.name)), "{}", entry.name);
            }
            assert!(module.entry("").is_none());
        }
    }

    #[test]
    fn every_text_has_the_hash_of_the_index() {
        for module in MODULES {
            let mut end = module.entries.first().map_or(0, |entry| entry.start);
            for entry in module.entries {
                assert_eq!(entry.start, end, "{}", entry.name);
                end = entry.end;
                let digest = Sha256::digest(entry.text());
                let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
                assert_eq!(digits, entry.sha256, "{}/{}", module.name(), entry.name);
            }
        }
    }

    #[test]
    fn the_modules_of_a_family_share_one_stream_which_holds_nothing_else() {
        for family in FAMILIES {
            let modules = || MODULES.iter().filter(|module| module.family == *family);
            let Some(first) = modules().next() else { continue };
            let texts = first.entries[0].texts;
            let mut end = 0;
            for module in modules() {
                for entry in module.entries {
                    assert!(core::ptr::eq(entry.texts, texts), "{module:?}");
                    assert_eq!(entry.start, end, "{}", entry.name);
                    end = entry.end;
                }
            }
            assert_eq!(texts.bytes, end, "{family}");
            let archs = modules().map(|module| (module.arch, module.arch_specific));
            assert!(archs.is_sorted(), "{family}");
        }
    }

    /// The index of a module, with a header.
    fn index(module: &PtxModule) -> String {
        let line =
            |entry: &PtxEntry| format!("{} {} {}\n", entry.name, entry.end - entry.start, entry.sha256);
        let lines: String = module.entries.iter().map(line).collect();
        format!("// warpsmith.family: {}\n\n{lines}", module.family)
    }

    #[test]
    fn the_indices_and_the_texts_of_a_family_give_the_entries_and_others_none() {
        let modules = |family| MODULES.iter().filter(move |module| module.family == family);
        let Some(first) = MODULES.iter().max_by_key(|module| modules(module.family).count()) else { return };
        let whole = first.entries[0].texts.compressed;
        let indices: Vec<String> = modules(first.family).map(index).collect();
        let indices: Vec<&str> = indices.iter().map(String::as_str).collect();
        let entries = |module: &PtxModule| -> Unpacked {
            module.entries.iter().map(|entry| (entry.name.to_owned(), entry.text())).collect()
        };
        assert!(unpack(&indices, whole) == Ok(modules(first.family).map(entries).collect()), "{first:?}");

        let with = |line: &str| format!("{}{line}", indices[0]);
        let others = |first: &str, stream: &[u8]| {
            unpack(&[&[first], &indices[1..]].concat(), stream).expect_err("it is damaged")
        };
        let huge = format!("more {} 00\n", usize::MAX);
        for (first, reason) in [
            (with("more 1 00\n"), "less than the"),
            (with("no entry\n"), "no entry"),
            (String::new(), "more than the"),
            (with(&huge), "more bytes are listed"),
            (huge, if indices.len() == 1 { "no memory" } else { "more bytes are listed" }),
        ] {
            let error = others(&first, whole);
            assert!(error.contains(reason), "{error}");
        }
        // The text of nothing but one of the folders.
        assert!(
            unpack(&indices[..indices.len() - 1], whole).is_err_and(|error| error.contains("more than the"))
        );
        // A header that asks for a dictionary of 2 GiB.
        let greedy = [&whole[..1], &[0, 0, 0, 128], &whole[5..]].concat();
        // One that states more text than there is, and one that states less.
        let stating = |bytes: u64| [&whole[..5], &bytes.to_le_bytes(), &whole[13..]].concat();
        for stream in [greedy, stating(1 << 60), stating(100), b"no stream".to_vec(), Vec::new()] {
            let error = others(indices[0], &stream);
            assert!(error.contains("no LZMA stream") || error.contains("than the"), "{error}");
        }
        for damaged in [13, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
            others(indices[0], &whole[..damaged]);
            let mut bytes = whole.to_vec();
            bytes[damaged] ^= 0x10;
            others(indices[0], &bytes);
        }
    }

    #[test]
    fn folders_without_texts_of_their_own_follow_the_one_before() {
        let store = tempfile::tempdir().expect("a temporary folder");
        let add = |folder: &str, files: &[&str]| {
            let folder = store.path().join(folder);
            std::fs::create_dir(&folder).expect("the folder can be written");
            for file in files {
                std::fs::write(folder.join(file), "").expect("the folder can be written");
            }
        };
        for (folder, files) in [
            ("norm.sm_100", &[INDEX][..]),
            ("norm.sm_90a", &[INDEX]),
            ("norm.sm_90", &[INDEX, TEXTS]),
            ("norm.sm_80", &[INDEX]),
            ("norm.sm_75", &[TEXTS]),
            ("norm_cluster.sm_90", &[INDEX]),
            ("topk.sm_80", &["topk_f32_32.ptx"]),
            ("topk.sm_x", &[INDEX]),
            ("other", &[INDEX]),
        ] {
            add(folder, files);
        }
        let found = runs(store.path()).expect("it is a folder");
        let names: Vec<Vec<&str>> =
            found.iter().map(|run| run.folders.iter().map(|folder| &folder.name[..]).collect()).collect();
        let expected: [&[&str]; 3] = [
            &["norm.sm_75", "norm.sm_80"],
            &["norm.sm_90", "norm.sm_90a", "norm.sm_100"],
            &["norm_cluster.sm_90"],
        ];
        assert_eq!(names, expected);
        assert_eq!(found[1].texts(), store.path().join("norm.sm_90").join(TEXTS));
        let archs: Vec<_> =
            found[1].folders.iter().map(|folder| (folder.arch, folder.arch_specific)).collect();
        assert_eq!(archs, [(90, false), (90, true), (100, false)]);
        assert!(runs(&store.path().join("none")).is_err());
    }
}
