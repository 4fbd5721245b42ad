//! The PTX of this crate's kernels: a compressed module for each entry, in the folder `ptx`.

use alloc::format;
use alloc::string::String;

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
    /// The module's text as a zlib stream.
    pub compressed: &'static [u8],
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
    /// The text of the PTX module.
    ///
    /// # Panics
    ///
    /// If the stream that this crate was built with is damaged.
    #[must_use]
    pub fn text(&self) -> String {
        decompress(self.compressed).unwrap_or_else(|| panic!("the PTX of `{}` is damaged", self.name))
    }
}

impl core::fmt::Debug for PtxEntry {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "{} ({} bytes)", self.name, self.compressed.len())
    }
}

/// The text of a file in the folder `ptx`; `None` if the stream is damaged.
#[must_use]
pub fn decompress(stream: &[u8]) -> Option<String> {
    String::from_utf8(miniz_oxide::inflate::decompress_to_vec_zlib(stream).ok()?).ok()
}

#[cfg(test)]
mod tests {
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
    fn a_damaged_stream_has_no_text() {
        let whole = MODULES.iter().flat_map(|module| module.entries).next();
        let Some(whole) = whole else { return };
        assert!(decompress(&whole.compressed[..whole.compressed.len() / 2]).is_none());
        assert!(decompress(b"no stream").is_none());
    }
}
