//! `xtask tables`: the documentation's tables and plots of measurements, made from `docs/bench/*.csv`.
//!
//! A table stands between `<!-- table NAME PART -->` and `<!-- end of table -->`. NAME is that of the CSV file. PART is, by the kind of file:
//!
//! - of times: a suite of the bench, `SUITE short` for one without its clocks, `control`, `goals`, `floor`, `drawn` or `fast-accumulation`;
//! - of the tuner: `choice`;
//! - of PEER: `layers`, `formats`, `residency` or `summary`;
//! - of attention: `attention`, `attention-options` or `attention-decode`;
//! - of training: `training` or `drawn`;
//! - of errors: `accuracy`.
//!
//! The name `all` stands for all files: its parts are `headline`, `headline short` and `random`.
//!
//! Only what the library chooses by itself is shown; forced variants stay in the data. While a file of PEER, of attention, of training or of errors is not there,
//! nothing stands between its marks. Each file of times has its plots in `docs/src/plots`. Pictures there that
//! programs drew get the colours of light and of dark pages.

mod accuracy;
mod attention;
mod choice;
mod drawn;
mod goals;
mod headline;
mod lines;
mod markdown;
mod peer;
mod plots;
pub(crate) mod results;
mod rows;
mod topk;
mod training;
mod update;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;

use crate::workspace_root;

/// Make the documentation's tables and plots of measurements from docs/bench.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only say which files are stale, and fail if there are any.
    #[arg(long)]
    check: bool,
}

/// The pages that show measurements.
const PAGES: [&str; 9] = [
    "README.md",
    "docs/src/performance.md",
    "docs/src/performance-linear.md",
    "docs/src/performance-attention.md",
    "docs/src/performance-updates.md",
    "docs/src/performance-rows.md",
    "docs/src/performance-training.md",
    "docs/src/performance-topk.md",
    "docs/src/performance-peer.md",
];
const DATA: &str = "docs/bench";
const PLOTS: &str = "docs/src/plots";
const OPEN: &str = "<!-- table ";
const OPEN_END: &str = " -->\n";
const CLOSE: &str = "<!-- end of table -->";

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let stale = stale_files()?;
    for (path, text) in &stale {
        if args.check {
            println!("stale: {}", path.display());
        } else {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
            }
            std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
            println!("written: {}", path.display());
        }
    }
    Ok(if args.check && !stale.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The pages and plots that are not what the data say, or do not follow the reader's colour scheme.
pub(crate) fn stale() -> Result<Vec<PathBuf>> {
    Ok(stale_files()?.into_iter().map(|(path, _)| path).collect())
}

/// Those files, and what should stand in them.
fn stale_files() -> Result<Vec<(PathBuf, String)>> {
    let mut stale = Vec::new();
    let names = files()?;
    for page in PAGES {
        let path = workspace_root().join(page);
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let make = |mark: &str| match mark.split_once(' ') {
            Some((headline::NAME, part)) => headline::text(part, &names, read),
            Some((name, part)) if is_optional(name, part) && !data(name).exists() => Ok(String::new()),
            Some((name, accuracy::PART)) => accuracy::text(name, &read(name)?),
            Some((name, choice::PART)) => choice::text(name, &read(name)?),
            Some((name, part)) => markdown::table(name, &read(name)?, part),
            None => bail!("table `{mark}` names no part of its file"),
        };
        let made = fill(&text, |mark| Ok(unbroken(&make(mark)?))).with_context(|| format!("in {page}"))?;
        if made != text {
            stale.push((path, made));
        }
    }
    for name in names {
        let rows = read(&name)?;
        for (plot, made) in plots::of(&rows).with_context(|| format!("plotting {name}"))? {
            let path = workspace_root().join(PLOTS).join(format!("{name}-{plot}.svg"));
            // One that is not there is as stale as another one.
            if std::fs::read_to_string(&path).ok().as_ref() != Some(&made) {
                stale.push((path, made));
            }
        }
    }
    stale.extend(without_theme(&stale)?);
    Ok(stale)
}

/// The pictures that programs have drawn and that do not follow the reader's colour scheme, and what should stand in them. None of `others`.
fn without_theme(others: &[(PathBuf, String)]) -> Result<Vec<(PathBuf, String)>> {
    let folder = workspace_root().join(PLOTS);
    let mut found = Vec::new();
    if !folder.exists() {
        return Ok(found);
    }
    let entries = std::fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let is_picture = path.extension().is_some_and(|extension| extension == "svg");
        if !is_picture || others.iter().any(|(other, _)| *other == path) {
            continue;
        }
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let themed = plots::themed(&text);
        if themed != text {
            found.push((path, themed));
        }
    }
    found.sort();
    Ok(found)
}

/// The same with sizes in tables that no line is broken within.
fn unbroken(text: &str) -> String {
    let line = |line: &str| match line.starts_with('|') {
        true => line.replace(" × ", "\u{a0}×\u{a0}"),
        false => line.to_owned(),
    };
    let lines: Vec<String> = text.split('\n').map(line).collect();
    lines.join("\n")
}

/// Whether nothing stands between the marks of a part whose file is not there.
fn is_optional(name: &str, part: &str) -> bool {
    part == accuracy::PART
        || peer::Part::of(part).is_some()
        || [attention::NAME, training::NAME].iter().any(|of| name.contains(of))
}

/// The names of the files of times.
fn files() -> Result<Vec<String>> {
    let folder = workspace_root().join(DATA);
    let entries = std::fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let stem = |path: &Path| Some(path.file_stem()?.to_str()?.to_owned());
        if path.extension().is_some_and(|extension| extension == "csv") {
            let is_of_times =
                |name: &String| !name.contains(accuracy::NAME) && !name.starts_with(choice::NAME);
            names.extend(stem(&path).filter(is_of_times));
        }
    }
    names.sort();
    Ok(names)
}

/// The file of this name.
fn data(name: &str) -> PathBuf {
    workspace_root().join(DATA).join(name).with_extension("csv")
}

fn read<R: DeserializeOwned>(name: &str) -> Result<Vec<R>> {
    let path = data(name);
    let rows = csv::Reader::from_path(&path).and_then(|mut reader| reader.deserialize().collect());
    rows.with_context(|| format!("reading {}", path.display()))
}

/// Puts what `make` says between the marks of every table in `text`; where it says nothing, they follow one another.
fn fill(text: &str, make: impl Fn(&str) -> Result<String>) -> Result<String> {
    let (mut filled, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(OPEN) {
        let Some((name, after)) = after.split_once(OPEN_END) else {
            bail!("`{OPEN}` without a name and `-->` on its line");
        };
        let Some((_, after)) = after.split_once(CLOSE) else {
            bail!("table {name} has no `{CLOSE}`");
        };
        let made = make(name)?;
        let made = if made.is_empty() { made } else { format!("\n{made}\n") };
        write!(filled, "{before}{OPEN}{name}{OPEN_END}{made}{CLOSE}")?;
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::markdown::table;
    use super::{fill, read, stale, unbroken};
    use crate::measurement::Measurement;
    use crate::workspace_root;

    #[test]
    fn a_table_is_replaced_and_the_rest_is_kept() {
        let text = "a\n<!-- table t -->\nold\n<!-- end of table -->\nb";
        let filled = fill(text, |name| Ok(format!("new {name}\n"))).expect("well-formed");
        assert_eq!(filled, "a\n<!-- table t -->\n\nnew t\n\n<!-- end of table -->\nb");
        assert_eq!(fill(&filled, |name| Ok(format!("new {name}\n"))).expect("well-formed"), filled);
    }

    #[test]
    fn nothing_stands_between_the_marks_of_an_empty_table() {
        let text = "a\n<!-- table t -->\n\nold\n\n<!-- end of table -->\nb";
        let emptied = fill(text, |_| Ok(String::new())).expect("well-formed");
        assert_eq!(emptied, "a\n<!-- table t -->\n<!-- end of table -->\nb");
        assert_eq!(fill(&emptied, |_| Ok("old\n".into())).expect("well-formed"), text);
    }

    #[test]
    fn no_line_is_broken_within_a_size() {
        let text = unbroken("2 × 3\n| 2 × 3 |\n");
        assert_eq!(text, "2 × 3\n| 2\u{a0}×\u{a0}3 |\n");
    }

    #[test]
    fn a_table_without_an_end_is_an_error() {
        assert!(fill("<!-- table t -->\n", |_| Ok(String::new())).is_err());
    }

    #[test]
    fn rows_of_two_runs_are_not_put_side_by_side() {
        let mut rows: Vec<Measurement> = read("linear-h100").expect("committed data");
        assert!(table("linear-h100", &rows, "main").is_ok());
        rows[0].commit.push('0');
        assert!(table("linear-h100", &rows, "main").is_err());
    }

    #[test]
    fn the_documentation_shows_what_was_measured() {
        assert_eq!(stale().expect("pages and data are there"), [] as [std::path::PathBuf; 0]);
    }

    /// mdBook leaves a missing include in the page and says nothing.
    #[test]
    fn the_book_includes_what_is_there() {
        let (mut folders, mut pages) = (vec![workspace_root().join("docs/src")], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("the book").map(|entry| entry.expect("a page")) {
                let is_folder = entry.file_type().expect("of a file").is_dir();
                if is_folder { &mut folders } else { &mut pages }.push(entry.path());
            }
        }
        let mut seen = 0;
        for page in pages {
            let Ok(text) = std::fs::read_to_string(&page) else { continue };
            for include in text.split("{{#include ").skip(1) {
                let (path, _) = include.split_once("}}").expect("a closed include");
                let (file, anchor) =
                    path.split_once(':').map_or((path, None), |(file, anchor)| (file, Some(anchor)));
                let included = std::fs::read_to_string(page.with_file_name(file)).expect(path);
                assert!(!included.trim().is_empty(), "{path} is empty, in {}", page.display());
                seen += 1;
                if let Some(anchor) = anchor {
                    assert!(included.contains(&format!("ANCHOR: {anchor} ")), "{path} has no such anchor");
                }
            }
        }
        assert!(seen > 0, "no page includes anything");
    }
}
