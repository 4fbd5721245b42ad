//! The PTX of this crate's kernels: a text for each entry, the texts of a module compressed together, in the folder `ptx`.

extern crate std;

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use std::io::Read;
use std::sync::OnceLock;

use lzma_rust2::LzmaReader;

mod index;

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
    /// Where the text is among those of the module.
    start: usize,
    end: usize,
    texts: &'static Texts,
}

/// The texts of a module's entries, one after the other.
struct Texts {
    compressed: &'static [u8],
    /// Kept for good: most programs that load one entry load others of the module. `None` inside if the stream is damaged.
    text: OnceLock<Option<String>>,
}

impl Texts {
    #[allow(dead_code, reason = "without a family there are no texts")]
    const fn new(compressed: &'static [u8]) -> Self {
        Self { compressed, text: OnceLock::new() }
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
    /// The text of the PTX module. The first call for an entry of a module decompresses all entries of that module, and keeps them.
    ///
    /// # Panics
    ///
    /// If the stream that this crate was built with is damaged.
    #[must_use]
    pub fn text(&self) -> String {
        let all = self.texts.text.get_or_init(|| decompress(self.texts.compressed));
        let own = all.as_deref().and_then(|all| all.get(self.start..self.end));
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

/// The text of an LZMA stream; `None` if the stream is damaged.
fn decompress(stream: &[u8]) -> Option<String> {
    let mut reader = LzmaReader::new_mem_limit(stream, MOST_MEMORY, None).ok()?;
    // The end has to be the encoder's: that is what tells damage in the middle.
    reader.set_relaxed_end_condition(false);
    let mut text = String::new();
    reader.read_to_string(&mut text).ok()?;
    Some(text)
}

/// The names and texts of the entries in a folder of `ptx`, of its index and its compressed texts; `None` if these are damaged or of
/// different folders.
#[must_use]
pub fn unpack(index: &str, compressed: &[u8]) -> Option<Vec<(String, String)>> {
    let all = decompress(compressed)?;
    let mut rest = all.as_str();
    let mut entries = Vec::new();
    for entry in index::entries(index) {
        let (name, bytes, _) = entry?;
        let (text, others) = rest.split_at_checked(bytes)?;
        entries.push((name.to_owned(), text.to_owned()));
        rest = others;
    }
    rest.is_empty().then_some(entries)
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
            let mut end = 0;
            for entry in module.entries {
                assert_eq!(entry.start, end, "{}", entry.name);
                end = entry.end;
                let digest = Sha256::digest(entry.text());
                let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
                assert_eq!(digits, entry.sha256, "{}/{}", module.name(), entry.name);
            }
            let texts = module.entries.first().and_then(|entry| entry.texts.text.get()?.as_ref());
            assert_eq!(texts.map(String::len), Some(end), "{module:?}");
        }
    }

    #[test]
    fn an_index_and_its_texts_give_the_entries_and_others_none() {
        let Some(module) = MODULES.first() else { return };
        let whole = module.entries[0].texts.compressed;
        let line =
            |entry: &PtxEntry| format!("{} {} {}\n", entry.name, entry.end - entry.start, entry.sha256);
        let index: String = module.entries.iter().map(line).collect();
        let index = format!("// warpsmith.family: a\n\n{index}");
        let expected = module.entries.iter().map(|entry| (entry.name.to_owned(), entry.text()));
        assert_eq!(unpack(&index, whole), Some(expected.collect()));

        assert_eq!(unpack(&format!("{index}more 1 00\n"), whole), None);
        assert_eq!(unpack(&format!("{index}no entry\n"), whole), None);
        assert_eq!(unpack("", whole), None);
        assert_eq!(unpack(&index, b"no stream"), None);
        assert_eq!(unpack(&index, b""), None);
        // A header that asks for a dictionary of 2 GiB.
        assert_eq!(unpack(&index, &[&whole[..1], &[0, 0, 0, 128], &whole[5..]].concat()), None);
        for damaged in [13, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
            assert_eq!(unpack(&index, &whole[..damaged]), None, "{damaged} bytes");
            let mut bytes = whole.to_vec();
            bytes[damaged] ^= 0x10;
            assert_eq!(unpack(&index, &bytes), None, "byte {damaged}");
        }
    }
}
