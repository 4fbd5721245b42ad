//! The table of all mutants and what became of them, `emulator/reports/mutants.csv`.
//!
//! Before its rows the table says which entries it is of, with a hash of each one's text: a table of other text than what
//! ships is out of date. A row's line is the statement's line in the module.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Entry, Failure, Mutant, Verdict, mutate, shipped};

/// One mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The entry.
    pub kernel: String,
    /// The line in the module.
    pub line: u32,
    /// What is wrong.
    pub mutation: String,
    /// `finding`, `wrong result`, `equivalent` or `missed`.
    pub verdict: String,
    /// What the check said, which case failed, or why nothing did.
    #[serde(rename = "finding or reason")]
    pub reason: String,
}

impl Row {
    /// The row of a mutant.
    #[must_use]
    pub fn new(entry: &Entry, mutant: &Mutant, verdict: Verdict) -> Self {
        let (verdict, reason) = match verdict {
            Verdict::Finding(kind, message) => {
                ("finding", format!("{}: {}", kind.name(), without_addresses(&message)))
            }
            Verdict::WrongResult(case) => ("wrong result", case),
            Verdict::Equivalent(reason) => ("equivalent", reason),
            Verdict::Missed => ("missed", String::new()),
        };
        Self {
            kernel: entry.name.clone(),
            line: entry.statements[mutant.statement].line,
            mutation: mutant.description.clone(),
            verdict: verdict.to_owned(),
            reason,
        }
    }

    /// Whether a check or the result shows that something is wrong.
    #[must_use]
    pub fn is_found(&self) -> bool {
        matches!(self.verdict.as_str(), "finding" | "wrong result")
    }

    /// Whether something is known of the mutant.
    #[must_use]
    pub fn is_explained(&self) -> bool {
        match self.verdict.as_str() {
            "finding" | "wrong result" | "equivalent" => !self.reason.is_empty(),
            _ => false,
        }
    }
}

/// Hexadecimal numbers depend on where things are allocated, and say nothing.
fn without_addresses(message: &str) -> String {
    let mut text = String::new();
    let mut rest = message;
    while let Some(at) = rest.find("0x") {
        text.push_str(&rest[..at + 2]);
        text.push('…');
        rest = rest[at + 2..].trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    text + rest
}

/// The table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The hash of each entry that it is of.
    pub entries: HashMap<String, String>,
    /// The mutants, by modules, entries and lines.
    pub rows: Vec<Row>,
}

/// A hash of all that decides what an entry does, and what is known of it: not of the module's comments.
#[must_use]
pub fn hash(entry: &Entry) -> String {
    let text: String =
        entry.module().lines().filter(|line| !line.starts_with("//")).map(|l| format!("{l}\n")).collect();
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

const ENTRY: &str = "# entry ";

impl Table {
    /// Where the table is.
    #[must_use]
    pub fn path() -> PathBuf {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
        root.join("emulator").join("reports").join("mutants.csv")
    }

    /// The committed table.
    ///
    /// # Errors
    ///
    /// If there is none or it cannot be read.
    pub fn read() -> Result<Self, Failure> {
        let path = Self::path();
        let text = std::fs::read_to_string(&path)
            .map_err(|error| Failure(format!("reading {}: {error}", path.display())))?;
        Self::parse(&text)
    }

    /// A table from its text.
    ///
    /// # Errors
    ///
    /// If it is no such table.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let entries = text
            .lines()
            .filter_map(|line| line.strip_prefix(ENTRY)?.split_once(" sha256:"))
            .map(|(name, hash)| (name.to_owned(), hash.to_owned()))
            .collect();
        let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
        let rows = reader.deserialize().collect::<Result<_, _>>();
        let rows = rows.map_err(|error| Failure(format!("the table of mutants: {error}")))?;
        Ok(Self { entries, rows })
    }

    /// The table as text.
    ///
    /// # Errors
    ///
    /// If a row cannot be written.
    pub fn text(&self) -> Result<String, Failure> {
        let failure =
            |error: &dyn std::fmt::Display| Failure(format!("writing the table of mutants: {error}"));
        let count = |verdict: &str| self.rows.iter().filter(|row| row.verdict == verdict).count();
        let mut text = format!(
            "# Made by `cargo xtask mutants`: each shipped kernel with one thing wrong at a time, and what became of it.\n\
             # {} mutants: {} reported by a check, {} with a wrong result, {} equivalent to the kernel, {} missed\n",
            self.rows.len(),
            count("finding"),
            count("wrong result"),
            count("equivalent"),
            count("missed")
        );
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort();
        for (name, hash) in entries {
            text += &format!("{ENTRY}{name} sha256:{hash}\n");
        }
        let mut writer = csv::Writer::from_writer(Vec::new());
        for row in &self.rows {
            writer.serialize(row).map_err(|error| failure(&error))?;
        }
        let bytes = writer.into_inner().map_err(|error| failure(&error))?;
        Ok(text + &String::from_utf8(bytes).map_err(|error| failure(&error))?)
    }

    /// Whether the table is of this entry's text as it is.
    #[must_use]
    pub fn is_of(&self, entry: &Entry) -> bool {
        self.entries.get(&entry.name).is_some_and(|known| *known == hash(entry))
    }

    /// The rows of an entry.
    pub fn of<'t>(&'t self, entry: &'t Entry) -> impl Iterator<Item = &'t Row> {
        self.rows.iter().filter(|row| row.kernel == entry.name)
    }

    /// What is wrong with the table: entries and mutants that it lacks or knows otherwise, rows without an explanation.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        let entries: Vec<_> = shipped().map(|(_, _, entry)| entry).collect();
        for entry in &entries {
            if !self.is_of(entry) {
                complaints.push(format!("`{}` is not what the table is of", entry.name));
                continue;
            }
            let expected = mutate::mutants(entry);
            let expected =
                expected.iter().map(|m| (entry.statements[m.statement].line, m.description.as_str()));
            if !self.of(entry).map(|row| (row.line, row.mutation.as_str())).eq(expected) {
                complaints.push(format!("`{}` has other mutants than the table", entry.name));
            }
        }
        for name in self.entries.keys().filter(|name| !entries.iter().any(|entry| entry.name == **name)) {
            complaints.push(format!("`{name}`, which the table is of, does not ship"));
        }
        for row in self.rows.iter().filter(|row| !row.is_explained()) {
            complaints
                .push(format!("`{}`, line {}: {}: {}", row.kernel, row.line, row.mutation, row.verdict));
        }
        complaints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(verdict: &str, reason: &str) -> Row {
        Row {
            kernel: "k".into(),
            line: 7,
            mutation: "`bar.sync 0` left out, \"quoted\"".into(),
            verdict: verdict.into(),
            reason: reason.into(),
        }
    }

    #[test]
    fn a_table_is_what_was_written() {
        let table = Table {
            entries: HashMap::from([("k".to_owned(), "00ff".to_owned())]),
            rows: vec![row("finding", "shared-race: lane 3, word 4"), row("missed", "")],
        };
        assert_eq!(Table::parse(&table.text().unwrap()).unwrap(), table);
    }

    #[test]
    fn a_row_is_explained_by_a_known_verdict_with_its_reason() {
        assert!(row("finding", "shared-race").is_explained());
        assert!(!row("equivalent", "").is_explained());
        assert!(!row("missed", "").is_explained());
        assert!(!row("", "nothing").is_explained());
    }

    #[test]
    fn an_empty_table_is_of_nothing_that_ships() {
        let complaints = Table::default().complaints();
        assert_eq!(complaints.len(), shipped().count());
        assert!(!complaints.is_empty());
    }

    #[test]
    fn addresses_do_not_show() {
        assert_eq!(without_addresses("16 bytes at 0x7f00, in 0x10"), "16 bytes at 0x…, in 0x…");
    }
}
