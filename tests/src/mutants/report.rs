//! The table of all mutants and what became of them, `emulator/reports/mutants.csv`.
//!
//! Before its rows the table says which entries it is of, with a hash of each one's instructions: a table of others than what
//! ships is out of date. It also names the twins, entries for which another stands. A row tells which of the entry's instructions it
//! is about, counted from 1.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::identity::hash;
use super::{Entry, Failure, Mutant, Shipped, Verdict, mutate, shipped};

/// One mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The entry.
    pub kernel: String,
    /// The number of the instruction in the entry, from 1.
    pub instruction: usize,
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
            instruction: mutant.statement + 1,
            mutation: mutant.description.clone(),
            verdict: verdict.to_owned(),
            reason,
        }
    }

    /// Whether the row is about this mutant of its entry.
    #[must_use]
    pub fn is_of(&self, mutant: &Mutant) -> bool {
        (self.instruction, self.mutation.as_str()) == (mutant.statement + 1, mutant.description.as_str())
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
    pub entries: BTreeMap<String, String>,
    /// The entries that another one stands for, and that one.
    pub twins: BTreeMap<String, String>,
    /// Entries that ship and are not in the table yet: their mutants have not all been run, or some have no explanation.
    pub pending: BTreeSet<String>,
    /// The mutants, by modules, entries and lines.
    pub rows: Vec<Row>,
}

const ENTRY: &str = "# entry ";
const TWIN: &str = "# twin ";
const PENDING: &str = "# pending ";

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
        let twins = text
            .lines()
            .filter_map(|line| line.strip_prefix(TWIN)?.split_once(" of "))
            .map(|(twin, of)| (twin.to_owned(), of.to_owned()))
            .collect();
        let pending = text.lines().filter_map(|line| line.strip_prefix(PENDING)).map(str::to_owned).collect();
        let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
        let rows = reader.deserialize().collect::<Result<_, _>>();
        let rows = rows.map_err(|error| Failure(format!("the table of mutants: {error}")))?;
        Ok(Self { entries, twins, pending, rows })
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
        for (name, hash) in &self.entries {
            text += &format!("{ENTRY}{name} sha256:{hash}\n");
        }
        if !self.twins.is_empty() {
            text += "# Twins are the same but for a type and how floats are converted and computed with: one stands for both.\n";
        }
        for (twin, of) in &self.twins {
            text += &format!("{TWIN}{twin} of {of}\n");
        }
        if !self.pending.is_empty() {
            text += "# Pending entries are not in the table yet: not all of their mutants have been run and explained.\n";
        }
        for name in &self.pending {
            text += &format!("{PENDING}{name}\n");
        }
        let mut writer = csv::Writer::from_writer(Vec::new());
        for row in &self.rows {
            writer.serialize(row).map_err(|error| failure(&error))?;
        }
        let bytes = writer.into_inner().map_err(|error| failure(&error))?;
        Ok(text + &String::from_utf8(bytes).map_err(|error| failure(&error))?)
    }

    /// Whether the table is of this entry's instructions as they are.
    #[must_use]
    pub fn is_of(&self, entry: &Entry) -> bool {
        self.entries.get(&entry.name).is_some_and(|known| *known == hash(entry))
    }

    /// What the table knows of each of the entry's `mutants`: nothing of those of an entry that has changed.
    #[must_use]
    pub fn known<'t>(&'t self, entry: &'t Entry, mutants: &[Mutant]) -> Vec<Option<&'t Row>> {
        let rows: Vec<&Row> = if self.is_of(entry) { self.of(entry).collect() } else { Vec::new() };
        if rows.len() != mutants.len() {
            return vec![None; mutants.len()];
        }
        rows.into_iter().zip(mutants).map(|(row, mutant)| row.is_of(mutant).then_some(row)).collect()
    }

    /// The rows of an entry.
    pub fn of<'t>(&'t self, entry: &'t Entry) -> impl Iterator<Item = &'t Row> {
        self.rows.iter().filter(|row| row.kernel == entry.name)
    }

    /// What is wrong with the table: entries and mutants that it lacks or knows otherwise, rows without an explanation.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        let shipped = shipped();
        for Shipped { entry, twin, .. } in &shipped {
            if let Some(twin) = twin {
                if self.twins.get(&entry.name) != Some(twin) {
                    complaints.push(format!("`{}` is not in the table, as a twin of `{twin}`", entry.name));
                }
                continue;
            }
            if self.pending.contains(&entry.name) {
                continue;
            }
            if !self.is_of(entry) {
                complaints.push(format!("`{}` is not what the table is of", entry.name));
            } else if self.known(entry, &mutate::mutants(entry)).contains(&None) {
                complaints.push(format!("`{}` has other mutants than the table", entry.name));
            }
        }
        let ships = |name: &String, twin: bool| {
            shipped.iter().any(|shipped| shipped.entry.name == *name && shipped.twin.is_some() == twin)
        };
        for name in self.entries.keys().filter(|name| !ships(name, false)) {
            complaints.push(format!(
                "`{name}`, which the table is of, does not ship, or has a twin that stands for it"
            ));
        }
        for name in self.twins.keys().filter(|name| !ships(name, true)) {
            complaints.push(format!("`{name}`, which the table has as a twin, is none that ships"));
        }
        for name in self.pending.iter().filter(|name| !ships(name, false) || self.entries.contains_key(*name))
        {
            complaints.push(format!("`{name}`, which is pending, does not ship, or is in the table"));
        }
        for row in self.rows.iter().filter(|row| !row.is_explained()) {
            let Row { kernel, instruction, mutation, verdict, .. } = row;
            complaints.push(format!("`{kernel}`, instruction {instruction}: {mutation}: {verdict}"));
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
            instruction: 7,
            mutation: "`bar.sync 0` left out, \"quoted\"".into(),
            verdict: verdict.into(),
            reason: reason.into(),
        }
    }

    #[test]
    fn a_table_is_what_was_written() {
        let table = Table {
            entries: BTreeMap::from([("k".to_owned(), "00ff".to_owned())]),
            twins: BTreeMap::from([("k_bf16".to_owned(), "k".to_owned())]),
            pending: BTreeSet::from(["new".to_owned()]),
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
        assert_eq!(complaints.len(), shipped().len());
        assert!(!complaints.is_empty());
    }

    #[test]
    fn addresses_do_not_show() {
        assert_eq!(without_addresses("16 bytes at 0x7f00, in 0x10"), "16 bytes at 0x…, in 0x…");
    }
}
