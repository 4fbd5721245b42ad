//! What `xtask validate` tells of the cases that it has run: a table and a summary for people, JSON for programs.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use comfy_table::{Cell, Color, Table, presets};
use serde::{Serialize, Serializer};

use super::cases::Level;
use super::load::Load;

/// One line of the report.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) operation: &'static str,
    pub(super) types: String,
    pub(super) shape: String,
    pub(super) options: String,
    pub(super) implementation: String,
    #[serde(serialize_with = "number")]
    pub(super) max_absolute_error: f64,
    #[serde(serialize_with = "number")]
    pub(super) max_relative_error: f64,
    /// The error allowed at the element that comes closest to it.
    #[serde(serialize_with = "number")]
    pub(super) bound: f64,
    /// The largest error in units of its bound.
    #[serde(serialize_with = "number")]
    pub(super) ratio: f64,
    pub(super) compared: usize,
    pub(super) exact: bool,
    pub(super) seconds: f64,
    pub(super) passed: bool,
    pub(super) note: String,
}

/// JSON has no infinity and no NaN, and `null` would say that nothing was measured: those are written as text.
fn number<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() { serializer.serialize_f64(*value) } else { serializer.collect_str(value) }
}

#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    pub(super) device: String,
    pub(super) device_name: &'a str,
    pub(super) level: Level,
    pub(super) seed: u64,
    pub(super) cases: usize,
    pub(super) failures: usize,
    pub(super) seconds: f64,
    pub(super) rows: &'a [Row],
    /// What ran under load, with `--full`.
    pub(super) load: Option<&'a Load>,
}

impl Report<'_> {
    /// Prints every row, and what they come to.
    pub(super) fn print(&self) {
        println!("{}", table(self.rows));
        summarise(self);
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "operation",
        "type",
        "M×K×N",
        "options",
        "max error",
        "relative",
        "bound there",
        "error/bound",
        "verdict",
    ]);
    for row in rows {
        let error = |value: f64| if value == 0.0 { "0".into() } else { format!("{value:.2e}") };
        let verdict = match (row.passed, row.exact) {
            (true, true) => Cell::new("exact").fg(Color::Green),
            (true, false) => Cell::new("ok").fg(Color::Green),
            (false, _) => Cell::new(format!("FAILED: {}", row.note)).fg(Color::Red),
        };
        table.add_row(vec![
            Cell::new(row.operation),
            Cell::new(&row.types),
            Cell::new(&row.shape),
            Cell::new(&row.options),
            Cell::new(error(row.max_absolute_error)),
            Cell::new(error(row.max_relative_error)),
            Cell::new(error(row.bound)),
            Cell::new(format!("{:.3}", row.ratio)),
            verdict,
        ]);
    }
    table
}

fn summarise(report: &Report<'_>) {
    let largest = report.rows.iter().filter(|row| row.passed).map(|row| row.ratio).fold(0.0, f64::max);
    println!(
        "{} of {} cases passed on {} ({}) in {:.1} s; the largest error is {:.2} of its bound",
        report.cases - report.failures,
        report.cases,
        report.device,
        report.device_name,
        report.seconds,
        largest
    );
    let mut kernels: Vec<_> = report.rows.iter().map(|row| kernel_of(&row.implementation)).collect();
    kernels.sort_unstable();
    kernels.dedup();
    kernels.retain(|kernel| !kernel.is_empty());
    println!("What ran: {}", kernels.join(", "));
}

/// The kernel that an implementation's description names, without the size of its launch.
fn kernel_of(implementation: &str) -> &str {
    let places = [" on the GPU", " in the emulator"].into_iter();
    let end = places.filter_map(|place| Some(implementation.find(place)? + place.len())).min();
    let kernels = end.and_then(|end| implementation.get(..end)).unwrap_or(implementation);
    kernels.trim_start_matches("kernel ")
}

/// Where the report goes as JSON. Opened before the cases are run, so that a path that cannot be written costs no run.
pub(super) enum Json {
    Stdout,
    File(PathBuf, File),
}

impl Json {
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        if path.as_os_str() == "-" {
            return Ok(Self::Stdout);
        }
        // What is there stays until there is something to put in its place.
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("opening {} to write to it", path.display()))?;
        Ok(Self::File(path.to_owned(), file))
    }

    pub(super) fn write(self, report: &impl Serialize) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(report).context("writing the report as JSON")? + "\n";
        match self {
            Self::Stdout => {
                std::io::stdout().write_all(text.as_bytes()).context("writing to standard output")
            }
            Self::File(path, mut file) => {
                // Pipes and devices have no length to cut off, and need no cutting.
                let cut =
                    if file.metadata().is_ok_and(|file| file.is_file()) { file.set_len(0) } else { Ok(()) };
                cut.and_then(|()| file.write_all(text.as_bytes()))
                    .with_context(|| format!("writing {}", path.display()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use warpsmith::DType;
    use warpsmith_lab::cases::LinearCase;

    use super::{Json, Level, Report, Row, kernel_of};
    use crate::validate::{Label, failed_row};

    fn report(rows: &[Row]) -> Report<'_> {
        Report {
            device: "cpu".into(),
            device_name: "CPU",
            level: Level::Quick,
            seed: 1,
            cases: rows.len(),
            failures: rows.len(),
            seconds: 0.5,
            rows,
            load: None,
        }
    }

    #[test]
    fn what_ran_is_told_without_the_sizes_of_launches() {
        let three = "kernels a, b and c in the emulator, 1, 2 and 3 blocks, 1 operand copied first";
        assert_eq!(kernel_of(three), "kernels a, b and c in the emulator");
        assert_eq!(kernel_of("kernel a on the GPU, 9 blocks"), "a on the GPU");
        assert_eq!(kernel_of("nothing to run"), "nothing to run");
    }

    #[test]
    fn json_tells_infinite_errors_from_none() {
        let row = failed_row(Label::linear(&LinearCase::new(DType::F16, 1, 1, 1)), 0.0, String::new());
        let rows = [Row { ratio: f64::INFINITY, bound: 0.25, max_absolute_error: f64::NAN, ..row }];
        let json = serde_json::to_value(report(&rows)).expect("a report can be written");
        let row = &json["rows"][0];
        assert_eq!(row["ratio"], "inf");
        assert_eq!(row["max_absolute_error"], "NaN");
        assert_eq!(row["bound"], 0.25);
    }

    #[test]
    fn a_report_replaces_a_longer_file_and_a_bad_path_is_known_at_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("report.json");
        std::fs::write(&path, "x".repeat(10_000)).expect("the folder can be written");
        let json = Json::open(&path).expect("it can be opened");
        assert_eq!(std::fs::metadata(&path).expect("it is there").len(), 10_000);
        json.write(&report(&[])).expect("it can be written");
        let text = std::fs::read_to_string(&path).expect("it was written");
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok_and(|json| json["cases"] == 0));
        assert!(Json::open(Path::new("/nowhere/report.json")).is_err());
    }
}
