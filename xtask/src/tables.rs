//! `xtask tables`: the documentation's tables of measurements, made from `docs/bench/*.csv`.
//!
//! A table stands between `<!-- table NAME -->` and `<!-- end of table -->`, where NAME is that of the CSV file. Only what the
//! library chooses by itself is shown; forced variants stay in the data.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use crate::measurement::Measurement;
use crate::workspace_root;

/// Make the documentation's tables of measurements from docs/bench.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only say which files are stale, and fail if there are any.
    #[arg(long)]
    check: bool,
}

/// The pages that show measurements.
const PAGES: [&str; 2] = ["README.md", "docs/src/performance.md"];
const OPEN: &str = "<!-- table ";
const OPEN_END: &str = " -->\n";
const CLOSE: &str = "<!-- end of table -->";

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let stale = stale_pages()?;
    for (path, text) in &stale {
        if args.check {
            println!("stale: {}", path.display());
        } else {
            std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
            println!("written: {}", path.display());
        }
    }
    Ok(if args.check && !stale.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The pages whose tables are not what the data say.
pub(crate) fn stale() -> Result<Vec<PathBuf>> {
    Ok(stale_pages()?.into_iter().map(|(path, _)| path).collect())
}

/// Those pages, and what should stand in them.
fn stale_pages() -> Result<Vec<(PathBuf, String)>> {
    let mut stale = Vec::new();
    for page in PAGES {
        let path = workspace_root().join(page);
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let made = fill(&text, |name| table(&read(name)?)).with_context(|| format!("in {page}"))?;
        if made != text {
            stale.push((path, made));
        }
    }
    Ok(stale)
}

fn read(name: &str) -> Result<Vec<Measurement>> {
    let path = workspace_root().join("docs/bench").join(name).with_extension("csv");
    let rows = csv::Reader::from_path(&path).and_then(|mut reader| reader.deserialize().collect());
    rows.with_context(|| format!("reading {}", path.display()))
}

/// Puts what `make` says between the marks of every table in `text`.
fn fill(text: &str, make: impl Fn(&str) -> Result<String>) -> Result<String> {
    let (mut filled, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(OPEN) {
        let Some((name, after)) = after.split_once(OPEN_END) else {
            bail!("`{OPEN}` without a name and `-->` on its line");
        };
        let Some((_, after)) = after.split_once(CLOSE) else {
            bail!("table {name} has no `{CLOSE}`");
        };
        write!(filled, "{before}{OPEN}{name}{OPEN_END}\n{}\n{CLOSE}", make(name)?)?;
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// The rows as a Markdown table, with the run that they come from below it.
fn table(rows: &[Measurement]) -> Result<String> {
    let chosen: Vec<_> = rows.iter().filter(|row| row.variant == "chosen").collect();
    let Some(first) = chosen.first() else {
        bail!("no row whose variant is `chosen`");
    };
    let same_run = |row: &&Measurement| {
        (&row.gpu, &row.driver, &row.commit, &row.command)
            == (&first.gpu, &first.driver, &first.commit, &first.command)
    };
    if !chosen.iter().all(same_run) {
        bail!("rows of different runs: their times are not to be compared");
    }
    let mut text = String::from(
        "| type | M × K × N | µs | TFLOP/s | peer µs | peer / ours |\n|---|---|---|---|---|---|\n",
    );
    for row in &chosen {
        let sides = row.shape.split('x').map(str::parse::<f64>).collect::<Result<Vec<_>, _>>();
        let sides = sides.with_context(|| format!("shape `{}`", row.shape))?;
        let tflops = 2.0 * sides.iter().product::<f64>() / row.median_us * 1e-6;
        let absent = || "–".to_owned();
        writeln!(
            text,
            "| {} | {} | {:.1} | {tflops:.0} | {} | {} |",
            row.dtype,
            row.shape.replace('x', " × "),
            row.median_us,
            row.peer_us.map_or_else(absent, |time| format!("{time:.1}")),
            row.ratio.map_or_else(absent, |ratio| format!("{ratio:.2}")),
        )?;
    }
    writeln!(
        text,
        "\n{}, driver {}, commit {}, `{}`.",
        first.gpu, first.driver, first.commit, first.command
    )?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{fill, read, stale, table};
    use crate::workspace_root;

    #[test]
    fn a_table_is_replaced_and_the_rest_is_kept() {
        let text = "a\n<!-- table t -->\nold\n<!-- end of table -->\nb";
        let filled = fill(text, |name| Ok(format!("new {name}\n"))).expect("well-formed");
        assert_eq!(filled, "a\n<!-- table t -->\n\nnew t\n\n<!-- end of table -->\nb");
        assert_eq!(fill(&filled, |name| Ok(format!("new {name}\n"))).expect("well-formed"), filled);
    }

    #[test]
    fn a_table_without_an_end_is_an_error() {
        assert!(fill("<!-- table t -->\n", |_| Ok(String::new())).is_err());
    }

    #[test]
    fn rows_of_two_runs_are_not_put_side_by_side() {
        let mut rows = read("linear-h100").expect("committed data");
        assert!(table(&rows).is_ok());
        rows[0].commit.push('0');
        assert!(table(&rows).is_err());
    }

    #[test]
    fn the_documentation_shows_what_was_measured() {
        assert_eq!(stale().expect("pages and data are there"), [] as [std::path::PathBuf; 0]);
    }

    /// mdBook leaves a missing include in the page and says nothing.
    #[test]
    fn the_book_includes_what_is_there() {
        let pages = workspace_root().join("docs/src");
        for page in std::fs::read_dir(&pages).expect("the book").map(|entry| entry.expect("a page").path()) {
            let Ok(text) = std::fs::read_to_string(&page) else { continue };
            for include in text.split("{{#include ").skip(1) {
                let (path, _) = include.split_once("}}").expect("a closed include");
                let (file, anchor) =
                    path.split_once(':').map_or((path, None), |(file, anchor)| (file, Some(anchor)));
                let included = std::fs::read_to_string(pages.join(file)).expect(path);
                assert!(!included.trim().is_empty(), "{path} is empty, in {}", page.display());
                if let Some(anchor) = anchor {
                    assert!(included.contains(&format!("ANCHOR: {anchor} ")), "{path} has no such anchor");
                }
            }
        }
    }
}
