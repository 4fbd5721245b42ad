//! The table of all mutants and what became of them, `emulator/reports/mutants.csv`.
//!
//! Before its rows the table says which entries it is of, with a hash of each one's instructions: a table of others than what
//! ships is out of date. Of some entries it has every mutant, each found or explained; of the others a [sample](sample_of), in which some are
//! missed. It also names the twins, entries for which another stands. A row tells which of the entry's instructions it is about, counted
//! from 1.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

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

/// An entry of which the table has a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The hash of its instructions.
    pub hash: String,
    /// How many mutants it has in all.
    pub mutants: usize,
}

/// Mutants of an entry that are in its sample, at most.
pub const SAMPLE: usize = 12;

/// The numbers of the mutants that are an entry's sample, in the order of the text. They are drawn by the entry's name, their statements and what they do.
#[must_use]
pub fn sample_of(entry: &Entry, mutants: &[Mutant]) -> Vec<usize> {
    let draw = |at: usize| {
        let Mutant { statement, description, .. } = &mutants[at];
        Sha256::digest(format!("{} {statement} {description}", entry.name))
    };
    let mut drawn: Vec<_> = (0..mutants.len()).map(|at| (draw(at), at)).collect();
    drawn.sort_unstable();
    let mut sample: Vec<usize> = drawn.into_iter().take(SAMPLE).map(|(_, at)| at).collect();
    sample.sort_unstable();
    sample
}

/// The table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The hash of each entry that it has every mutant of.
    pub entries: BTreeMap<String, String>,
    /// The entries that it has a sample of.
    pub samples: BTreeMap<String, Sample>,
    /// The entries that another one stands for, and that one.
    pub twins: BTreeMap<String, String>,
    /// The mutants, by modules, entries and lines.
    pub rows: Vec<Row>,
}

const ENTRY: &str = "# entry ";
const TWIN: &str = "# twin ";
const OF_SAMPLE: &str = "# sample ";

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
        let samples = text
            .lines()
            .filter_map(|line| {
                let (name, rest) = line.strip_prefix(OF_SAMPLE)?.split_once(" sha256:")?;
                let (hash, mutants) = rest.split_once(" of ")?;
                let sample = Sample { hash: hash.to_owned(), mutants: mutants.parse().ok()? };
                Some((name.to_owned(), sample))
            })
            .collect();
        let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
        let rows = reader.deserialize().collect::<Result<_, _>>();
        let rows = rows.map_err(|error| Failure(format!("the table of mutants: {error}")))?;
        Ok(Self { entries, samples, twins, rows })
    }

    /// The table as text.
    ///
    /// # Errors
    ///
    /// If a row cannot be written.
    pub fn text(&self) -> Result<String, Failure> {
        let failure =
            |error: &dyn std::fmt::Display| Failure(format!("writing the table of mutants: {error}"));
        let mut text =
            "# Made by `cargo xtask mutants`: each shipped kernel with one thing wrong at a time, and what became of it.\n"
                .to_owned();
        for line in self.summary() {
            text += &format!("# {line}\n");
        }
        for (name, hash) in &self.entries {
            text += &format!("{ENTRY}{name} sha256:{hash}\n");
        }
        if !self.samples.is_empty() {
            text += "# Of these kernels a few of all mutants are run.\n";
        }
        for (name, Sample { hash, mutants }) in &self.samples {
            text += &format!("{OF_SAMPLE}{name} sha256:{hash} of {mutants}\n");
        }
        if !self.twins.is_empty() {
            text += "# Twins are the same but for a type and how floats are converted and computed with: one stands for both.\n";
        }
        for (twin, of) in &self.twins {
            text += &format!("{TWIN}{twin} of {of}\n");
        }
        let mut writer = csv::Writer::from_writer(Vec::new());
        for row in &self.rows {
            writer.serialize(row).map_err(|error| failure(&error))?;
        }
        let bytes = writer.into_inner().map_err(|error| failure(&error))?;
        Ok(text + &String::from_utf8(bytes).map_err(|error| failure(&error))?)
    }

    /// What became of the mutants, of kernels with every mutant and of those with a sample.
    #[must_use]
    pub fn summary(&self) -> [String; 2] {
        let line = |of_samples: bool| {
            let is_of = |row: &&Row| self.samples.contains_key(&row.kernel) == of_samples;
            let rows: Vec<_> = self.rows.iter().filter(is_of).collect();
            let count = |verdict: &str| rows.iter().filter(|row| row.verdict == verdict).count();
            let (what, kernels) = match of_samples {
                true => ("in the samples", self.samples.len()),
                false => ("all", self.entries.len()),
            };
            format!(
                "{} mutants, {what} of {kernels} kernels: {} reported by a check, {} with a wrong result, {} equivalent to the kernel, \
                 {} missed",
                rows.len(),
                count("finding"),
                count("wrong result"),
                count("equivalent"),
                count("missed")
            )
        };
        [line(false), line(true)]
    }

    /// Whether the table has every mutant of this entry, with its instructions as they are.
    #[must_use]
    pub fn is_of(&self, entry: &Entry) -> bool {
        self.entries.get(&entry.name).is_some_and(|known| *known == hash(entry))
    }

    /// Whether the table has a sample of this entry's mutants, with its instructions as they are.
    #[must_use]
    pub fn samples(&self, entry: &Entry) -> bool {
        self.samples.get(&entry.name).is_some_and(|known| known.hash == hash(entry))
    }

    /// What the table knows of each of the entry's `mutants`: nothing of those of an entry that has changed, nor of those that are not in a
    /// sample.
    #[must_use]
    pub fn known<'t>(&'t self, entry: &'t Entry, mutants: &[Mutant]) -> Vec<Option<&'t Row>> {
        let mut known = vec![None; mutants.len()];
        let run: Vec<usize> = if self.is_of(entry) {
            (0..mutants.len()).collect()
        } else if self.samples(entry) {
            sample_of(entry, mutants)
        } else {
            Vec::new()
        };
        let rows: Vec<&Row> = self.of(entry).collect();
        if rows.len() == run.len() {
            for (row, at) in rows.into_iter().zip(run) {
                known[at] = row.is_of(&mutants[at]).then_some(row);
            }
        }
        known
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
            let mutants = mutate::mutants(entry);
            let known = self.known(entry, &mutants).into_iter().flatten().count();
            if self.is_of(entry) {
                if known != mutants.len() {
                    complaints.push(format!("`{}` has other mutants than the table", entry.name));
                }
            } else if !self.samples(entry) {
                complaints.push(format!("`{}` is not what the table is of", entry.name));
            } else if known != mutants.len().min(SAMPLE) || self.samples[&entry.name].mutants != mutants.len()
            {
                complaints.push(format!("`{}` has another sample of its mutants than the table", entry.name));
            }
        }
        let ships = |name: &String, twin: bool| {
            shipped.iter().any(|shipped| shipped.entry.name == *name && shipped.twin.is_some() == twin)
        };
        for name in self.entries.keys().chain(self.samples.keys()).filter(|name| !ships(name, false)) {
            complaints.push(format!(
                "`{name}`, which the table is of, does not ship, or has a twin that stands for it"
            ));
        }
        for name in self.twins.keys().filter(|name| !ships(name, true)) {
            complaints.push(format!("`{name}`, which the table has as a twin, is none that ships"));
        }
        for name in self.entries.keys().filter(|name| self.samples.contains_key(*name)) {
            complaints.push(format!("of `{name}` the table has every mutant and a sample"));
        }
        let is_whole = |row: &&Row| !self.samples.contains_key(&row.kernel);
        for row in self.rows.iter().filter(is_whole).filter(|row| !row.is_explained()) {
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
            samples: BTreeMap::from([("new".to_owned(), Sample { hash: "0ff0".into(), mutants: 70 })]),
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
