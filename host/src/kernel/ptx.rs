//! What a PTX text declares: its version, its target, and its entries with their parameters and launch bounds.
//!
//! Only declarations are read, so a text with instructions that nothing here knows is taken; whether the text is valid
//! is for the driver's compiler or the emulator to say.

use std::fmt;

use warpsmith_dsl::launch::ParamLayout;

/// The architecture of a `.target` directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The compute capability.
    pub(crate) arch: (u32, u32),
    /// Which other devices the code runs on.
    pub(crate) reach: Reach,
}

/// On which devices other than its own architecture's code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// All later ones (`sm_90`).
    Later,
    /// Later ones of the same major version (`sm_100f`).
    Family,
    /// None (`sm_90a`).
    Exact,
}

impl Target {
    /// Whether code for this target runs on a device of compute capability `capability`.
    pub(crate) fn runs_on(self, capability: (u32, u32)) -> bool {
        match self.reach {
            Reach::Later => self.arch <= capability,
            Reach::Family => self.arch.0 == capability.0 && self.arch.1 <= capability.1,
            Reach::Exact => self.arch == capability,
        }
    }

    /// The target that an architecture's name stands for.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let number = name.strip_prefix("sm_")?;
        let digits = number.trim_end_matches(|c: char| c.is_ascii_lowercase());
        let suffix = &number[digits.len()..];
        let value: u32 = digits.parse().ok()?;
        let reach = match suffix {
            "" => Reach::Later,
            "f" => Reach::Family,
            "a" => Reach::Exact,
            _ => return None,
        };
        Some(Self { arch: (value / 10, value % 10), reach })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Target { arch: (major, minor), reach } = self;
        let suffix = match reach {
            Reach::Later => "",
            Reach::Family => "f",
            Reach::Exact => "a",
        };
        write!(formatter, "sm_{major}{minor}{suffix}")
    }
}

/// An entry point as the text declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PtxEntry {
    pub(crate) name: String,
    pub(crate) params: Vec<ParamLayout>,
    /// The block that every launch must have.
    pub(crate) required_block: Option<[u32; 3]>,
    /// The cluster that every launch must have.
    pub(crate) required_cluster: Option<[u32; 3]>,
    /// The blocks that a cluster may have at most.
    pub(crate) max_cluster: Option<u32>,
    /// The threads that a block may have at most.
    pub(crate) max_threads: Option<u32>,
    /// The dynamic shared memory of a launch in bytes, where the kernel's compiler noted it.
    pub(crate) shared_bytes: Option<u32>,
    /// The fingerprint of the safe function that it was made of, where the kernel's compiler noted it.
    pub(crate) source: Option<u64>,
    /// Whether it waits for the launches before it, and so may begin before they have ended.
    pub(crate) waits_for_launches: bool,
}

/// What a text declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PtxSummary {
    pub(crate) version: (u32, u32),
    pub(crate) target: Target,
    pub(crate) entries: Vec<PtxEntry>,
}

impl PtxSummary {
    /// Reads the declarations of `text`; the error says what is wrong, and in which line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        Scanner { text, at: 0, token_start: 0 }.module()
    }

    pub(crate) fn entry(&self, name: &str) -> Option<&PtxEntry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The entries' names, for a message.
    pub(crate) fn entry_names(&self) -> String {
        names(self.entries.iter().map(|entry| entry.name.as_str()))
    }
}

/// The names of entries, for a message.
pub(crate) fn names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 8;
    let count = names.len();
    let first: Vec<String> = names.take(SHOWN).map(|name| format!("`{name}`")).collect();
    match count {
        0 => "no kernels".into(),
        count if count > SHOWN => format!("{} and {} more", first.join(", "), count - SHOWN),
        _ => first.join(", "),
    }
}

/// The instruction by which a kernel waits for the launches before it.
const GRID_WAIT: &str = "griddepcontrol.wait;";

/// Bytes of a value of a fundamental type.
fn type_size(name: &str) -> Option<usize> {
    Some(match name {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        ".b128" => 16,
        _ => return None,
    })
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    token_start: usize,
}

impl<'a> Scanner<'a> {
    fn module(mut self) -> Result<PtxSummary, String> {
        let mut version = None;
        let mut target = None;
        let mut entries = Vec::new();
        let mut statement = None;
        while let Some(token) = self.next()? {
            let start = *statement.get_or_insert(self.token_start);
            match token {
                ".version" => {
                    let number = self.expect_any("a PTX version")?;
                    version =
                        Some(parse_version(number).ok_or_else(|| self.unexpected("a version such as 8.0"))?);
                    statement = None;
                }
                ".target" => {
                    let name = self.expect_any("an architecture")?;
                    target = Some(
                        Target::parse(name)
                            .ok_or_else(|| self.unexpected("an architecture such as sm_80"))?,
                    );
                    statement = None;
                }
                ".address_size" => {
                    self.expect_any("an address size")?;
                    statement = None;
                }
                ".section" => statement = None,
                ".entry" => {
                    entries.push(self.entry(start)?);
                    statement = None;
                }
                "{" => {
                    self.skip_block()?;
                    statement = None;
                }
                ";" => statement = None,
                // `.file` and `.loc` have no terminator; they precede what they do not belong to.
                ".file" => {
                    self.expect_any("a file number")?;
                    self.expect_any("a file name")?;
                    statement = None;
                }
                _ => {}
            }
        }
        Ok(PtxSummary {
            version: version.ok_or("there is no `.version` directive")?,
            target: target.ok_or("there is no `.target` directive")?,
            entries,
        })
    }

    fn entry(&mut self, start: usize) -> Result<PtxEntry, String> {
        let name = self.expect_any("an entry's name")?.to_owned();
        let mut params = Vec::new();
        let mut required_block = None;
        let mut max_threads = None;
        let (mut required_cluster, mut max_cluster) = (None, None);
        let mut token = self.expect_any("`{`")?;
        if token == "(" {
            params = self.params()?;
            token = self.expect_any("`{`")?;
        }
        let body = loop {
            match token {
                "{" => {
                    let body = self.token_start;
                    self.skip_block()?;
                    break body;
                }
                ";" => break self.token_start,
                ".reqntid" => required_block = Some(self.dimensions()?),
                ".maxntid" => {
                    let dimensions = self.dimensions()?;
                    let threads = dimensions.iter().try_fold(1u32, |product, &n| product.checked_mul(n));
                    max_threads = Some(threads.ok_or_else(|| self.unexpected("at most 2^32 threads"))?);
                }
                ".reqnctapercluster" => {
                    let cluster = self.dimensions()?;
                    let blocks = cluster.iter().try_fold(1u32, |product, &n| product.checked_mul(n));
                    blocks
                        .filter(|&blocks| blocks > 0)
                        .ok_or_else(|| self.unexpected("a cluster of 1 to 2^32 blocks"))?;
                    required_cluster = Some(cluster);
                }
                ".maxclusterrank" => {
                    let blocks = self.number("a cluster's size")?;
                    max_cluster =
                        Some(u32::try_from(blocks).map_err(|_| self.unexpected("a cluster's size"))?);
                }
                _ => {}
            }
            token = self.expect_any("`{`")?;
        };
        let head = &self.text[start..body];
        let shared_bytes = note(head, "shared_bytes").and_then(|bytes| bytes.parse().ok());
        let source =
            note(head, "source").and_then(|source| u64::from_str_radix(source.strip_prefix("0x")?, 16).ok());
        Ok(PtxEntry {
            name,
            params,
            required_block,
            required_cluster,
            max_cluster,
            max_threads,
            shared_bytes,
            source,
            waits_for_launches: self.text[body..self.at].contains(GRID_WAIT),
        })
    }

    fn params(&mut self) -> Result<Vec<ParamLayout>, String> {
        let mut params = Vec::new();
        let mut token = self.expect_any("`.param` or `)`")?;
        while token != ")" {
            if token != ".param" {
                return Err(self.unexpected("`.param`"));
            }
            let (mut size, mut align, mut count) = (None, None, 1);
            token = self.expect_any("a parameter's type")?;
            while token != "," && token != ")" {
                match token {
                    // Before the type it aligns the parameter, after `.ptr` what the parameter points to.
                    ".align" => {
                        let bytes = self.number("an alignment")?;
                        if size.is_none() {
                            align = Some(bytes);
                        }
                    }
                    "[" => count = self.number("a parameter's length")?,
                    _ => size = size.or_else(|| type_size(token)),
                }
                token = self.expect_any("`,` or `)`")?;
            }
            let element = size.ok_or_else(|| self.unexpected("a parameter with a type"))?;
            let size = element.checked_mul(count).ok_or_else(|| self.unexpected("a shorter parameter"))?;
            params.push(ParamLayout { size, align: align.unwrap_or(element) });
            if token == "," {
                token = self.expect_any("`.param`")?;
            }
        }
        Ok(params)
    }

    /// One to three numbers, separated by commas; what is missing is 1.
    fn dimensions(&mut self) -> Result<[u32; 3], String> {
        let mut dimensions = [1; 3];
        for (axis, dimension) in dimensions.iter_mut().enumerate() {
            let value = self.number("a block's size")?;
            *dimension = u32::try_from(value).map_err(|_| self.unexpected("a block's size"))?;
            let before = (self.at, self.token_start);
            if axis < 2 && self.next()? != Some(",") {
                (self.at, self.token_start) = before;
                break;
            }
        }
        Ok(dimensions)
    }

    fn number(&mut self, what: &str) -> Result<usize, String> {
        let token = self.expect_any(what)?;
        let parsed = match token.strip_prefix("0x") {
            Some(digits) => usize::from_str_radix(digits, 16),
            None => token.parse(),
        };
        parsed.map_err(|_| self.unexpected(what))
    }

    fn skip_block(&mut self) -> Result<(), String> {
        let opened = self.token_start;
        let mut depth = 1;
        while depth > 0 {
            match self.next()? {
                Some("{") => depth += 1,
                Some("}") => depth -= 1,
                Some(_) => {}
                None => return Err(format!("line {}: `{{` is never closed", self.line_of(opened))),
            }
        }
        Ok(())
    }

    fn expect_any(&mut self, what: &str) -> Result<&'a str, String> {
        self.next()?.ok_or_else(|| {
            format!("line {}: the text ends where {what} was expected", self.line_of(self.text.len()))
        })
    }

    /// The next token: a word (directives, names, numbers), a string, or one other character.
    fn next(&mut self) -> Result<Option<&'a str>, String> {
        let bytes = self.text.as_bytes();
        loop {
            match bytes.get(self.at..).unwrap_or_default() {
                [] => return Ok(None),
                [space, ..] if space.is_ascii_whitespace() => self.at += 1,
                [b'/', b'/', ..] => self.skip_past("\n").unwrap_or_else(|| self.at = bytes.len()),
                [b'/', b'*', ..] => {
                    let opened = self.at;
                    self.skip_past("*/")
                        .ok_or_else(|| format!("line {}: a comment is never closed", self.line_of(opened)))?;
                }
                _ => break,
            }
        }
        self.token_start = self.at;
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"._$%".contains(&byte);
        match bytes[self.at] {
            b'"' => {
                self.at += 1;
                self.skip_past("\"").ok_or_else(|| {
                    format!("line {}: a string is never closed", self.line_of(self.token_start))
                })?;
            }
            byte if is_word(byte) => {
                self.at += bytes[self.at..].iter().take_while(|&&byte| is_word(byte)).count();
            }
            _ => {
                // One character, which need not be ASCII.
                self.at += self.text[self.at..].chars().next().map_or(1, char::len_utf8);
            }
        }
        Ok(Some(&self.text[self.token_start..self.at]))
    }

    fn skip_past(&mut self, end: &str) -> Option<()> {
        self.at += self.text[self.at..].find(end)? + end.len();
        Some(())
    }

    fn unexpected(&self, expected: &str) -> String {
        format!(
            "line {}: `{}` where {expected} was expected",
            self.line_of(self.token_start),
            &self.text[self.token_start..self.at]
        )
    }

    fn line_of(&self, at: usize) -> usize {
        self.text[..at].matches('\n').count() + 1
    }
}

/// What the comment of this name says, which `warpsmith-builder` has left between an entry's parameters and its body.
fn note<'t>(head: &'t str, name: &str) -> Option<&'t str> {
    let mut lines = head.lines().filter_map(|line| line.trim().strip_prefix("// warpsmith."));
    lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(' ')?.trim()))
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = r#"
// A comment with .entry in it
.version 8.0
.target sm_90a, debug
.address_size 64
.file 1 "a.rs"
.extern .shared .align 1024 .b8 dynamic_shared[];
.visible .entry first(
    .param .u64 .ptr .global .align 1 first_param_0,
    .param .align 8 .b8 first_param_1[48], /* ) */
    .param .f32 first_param_2,
    .param .align 64 .b8 first_param_3[128]
)
.explicitcluster
.reqnctapercluster 2, 1, 1
.reqntid 256, 1, 1
.minnctapersm 1
{
    { .reg .b32 %r1; }
    ret;
}
.global .align 4 .b8 table[4] = {1, 2, 3, 4};
.entry second .maxntid 16, 8 .maxclusterrank 8
// warpsmith.shared_bytes 4096
// warpsmith.source 0x0123456789abcdef
{ ret; }
"#;

    #[test]
    fn a_summary_holds_what_the_text_declares() {
        let summary = PtxSummary::parse(TEXT).unwrap();
        assert_eq!(summary.version, (8, 0));
        assert_eq!(summary.target, Target { arch: (9, 0), reach: Reach::Exact });
        let [first, second] = &summary.entries[..] else { panic!("{summary:?}") };
        assert_eq!(first.name, "first");
        assert_eq!(
            first.params,
            [
                ParamLayout { size: 8, align: 8 },
                ParamLayout { size: 48, align: 8 },
                ParamLayout { size: 4, align: 4 },
                ParamLayout { size: 128, align: 64 }
            ]
        );
        assert_eq!(first.required_block, Some([256, 1, 1]));
        assert_eq!((first.required_cluster, first.max_cluster), (Some([2, 1, 1]), None));
        assert_eq!((second.required_cluster, second.max_cluster), (None, Some(8)));
        assert_eq!((second.name.as_str(), second.max_threads), ("second", Some(128)));
        assert!(second.params.is_empty());
        assert_eq!((first.shared_bytes, second.shared_bytes), (None, Some(4096)));
        assert_eq!((first.source, second.source), (None, Some(0x0123_4567_89ab_cdef)));
    }

    #[test]
    fn damaged_texts_are_errors_with_a_line() {
        for (text, part) in [
            ("", "no `.version`"),
            (".version 8.0\n", "no `.target`"),
            (".version 8\n.target sm_80", "line 1: `8`"),
            (".version 8.0\n.target gfx9", "line 2: `gfx9`"),
            (".version 8.0\n.target sm_80\n.entry a {", "line 3: `{` is never closed"),
            (".version 8.0\n.target sm_80\n.entry a(.param x)", "with a type"),
            (".version 8.0\n.target sm_90\n.entry a .reqnctapercluster 0 {}", "line 3: `0`"),
            (".version 8.0\n.target sm_90\n.entry a .maxntid 65536, 65536 {}", "line 3: `65536`"),
            (".version 8.0 /*", "never closed"),
            (".version 8.0\n.target sm_80\n.entry", "the text ends"),
            ("ü", "no `.version`"),
        ] {
            let error = PtxSummary::parse(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn every_entry_that_ships_is_a_module_of_its_own() {
        assert!(!warpsmith_kernels::MODULES.is_empty());
        for module in warpsmith_kernels::MODULES {
            let reach = if module.arch_specific { Reach::Exact } else { Reach::Later };
            for shipped in module.entries {
                let summary = PtxSummary::parse(&shipped.text()).unwrap();
                assert_eq!(summary.target, Target { arch: module.arch, reach });
                let [entry] = &summary.entries[..] else { panic!("{}: {summary:?}", shipped.name) };
                assert_eq!(entry.name, shipped.name);
                assert!(entry.required_block.is_some() && entry.shared_bytes.is_some(), "{}", entry.name);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_text_makes_the_scanner_panic(text in ".*") {
            let _ = PtxSummary::parse(&text);
        }

        #[test]
        fn no_damage_to_a_text_makes_the_scanner_panic(
            damage in prop::collection::vec((0..TEXT.len(), "[.a-z0-9(){};,\"/*\\[\\]ü ]{0,3}"), 1..4),
        ) {
            let mut text = TEXT.to_owned();
            for (at, insert) in damage {
                let at = (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
                let end = (at + 2).min(text.len());
                let end = (end..=text.len()).find(|&end| text.is_char_boundary(end)).unwrap_or(at);
                text.replace_range(at..end, &insert);
            }
            let _ = PtxSummary::parse(&text);
        }
    }

    #[test]
    fn only_plain_targets_run_on_later_devices() {
        let plain = Target::parse("sm_80").unwrap();
        assert!(plain.runs_on((8, 0)) && plain.runs_on((9, 0)) && plain.runs_on((12, 0)));
        assert!(!plain.runs_on((7, 5)));
        let specific = Target::parse("sm_90a").unwrap();
        assert!(specific.runs_on((9, 0)) && !specific.runs_on((10, 0)) && !specific.runs_on((8, 9)));
        let family = Target::parse("sm_100f").unwrap();
        assert_eq!(family.to_string(), "sm_100f");
        assert!(family.runs_on((10, 0)) && family.runs_on((10, 3)));
        assert!(!family.runs_on((12, 0)) && !family.runs_on((9, 0)));
        assert_eq!(Target::parse("sm_120").unwrap().arch, (12, 0));
        assert_eq!(Target::parse("sm_").map(|_| ()), None);
    }
}
