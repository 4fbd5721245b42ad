//! The first lines of a PTX file: what it was made from, and with what.
//!
//! Anyone who finds the file can tell which sources and which compiler gave it, and a check can tell whether it is stale.

use std::fmt;

/// What the header of a PTX file records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kernel family.
    pub family: String,
    /// The architecture, e.g. `sm_80`.
    pub arch: String,
    /// rustc's release and commit.
    pub rustc: String,
    /// LLVM's version.
    pub llvm: String,
    /// The builder's version.
    pub builder: String,
    /// Features and flags.
    pub recipe: String,
    /// The hash of the sources and the recipe.
    pub sources: String,
}

const FIELDS: [&str; 7] = ["family", "arch", "rustc", "llvm", "builder", "recipe", "sources"];
const PREFIX: &str = "// warpsmith.";

impl Header {
    /// Reads the header of a PTX file's text; `None` when it has none or lacks a field.
    pub fn parse(text: &str) -> Option<Self> {
        let mut values: [Option<String>; FIELDS.len()] = Default::default();
        for line in text.lines().take_while(|line| line.starts_with("//")) {
            let Some((name, value)) = line.strip_prefix(PREFIX).and_then(|rest| rest.split_once(": ")) else {
                continue;
            };
            if let Some(index) = FIELDS.iter().position(|field| *field == name) {
                values[index] = Some(value.trim_end().to_owned());
            }
        }
        let [family, arch, rustc, llvm, builder, recipe, sources] = values;
        Some(Self {
            family: family?,
            arch: arch?,
            rustc: rustc?,
            llvm: llvm?,
            builder: builder?,
            recipe: recipe?,
            sources: sources?,
        })
    }

    /// Whether the same compiler (rustc and LLVM) made both files, so that equal sources must give equal text.
    pub fn same_compiler(&self, other: &Self) -> bool {
        (&self.rustc, &self.llvm) == (&other.rustc, &other.llvm)
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "// Made by warpsmith-builder from Rust sources: change those, not this file.")?;
        let values =
            [&self.family, &self.arch, &self.rustc, &self.llvm, &self.builder, &self.recipe, &self.sources];
        for (field, value) in FIELDS.iter().zip(values) {
            writeln!(f, "{PREFIX}{field}: {value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            family: "linear".into(),
            arch: "sm_80".into(),
            rustc: "1.96.0 (ac68faa20 2026-05-25)".into(),
            llvm: "22.1.8".into(),
            builder: "0.1.0".into(),
            recipe: "--features linear -Cpanic=immediate-abort".into(),
            sources: "sha256:00ff".into(),
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let text = format!("{}\n.version 7.4\n.target sm_80\n", header());
        assert_eq!(Header::parse(&text), Some(header()));
        assert_eq!(Header::parse(&text.replace('\n', "\r\n")), Some(header()));
    }

    #[test]
    fn a_text_without_a_field_has_no_header() {
        let text = header().to_string();
        for line in text.lines().filter(|line| line.starts_with(PREFIX)) {
            assert_eq!(Header::parse(&text.replace(&format!("{line}\n"), "")), None, "without `{line}`");
        }
        assert_eq!(Header::parse(""), None);
        assert_eq!(Header::parse(&format!(".version 7.4\n{text}")), None, "a header must come first");
    }

    #[test]
    fn another_compiler_is_recognised_by_rustc_and_by_llvm() {
        assert!(header().same_compiler(&Header { sources: "sha256:1".into(), ..header() }));
        assert!(!header().same_compiler(&Header { rustc: "1.97.0".into(), ..header() }));
        assert!(!header().same_compiler(&Header { llvm: "22.1.9".into(), ..header() }));
    }
}
