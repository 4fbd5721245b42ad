//! How exact products of f32 operands are, as Markdown. The words come along with the table, so that a page shows nothing of
//! them while there is no file.

use std::fmt::Write as _;

use anyhow::{Result, bail};

use crate::measurement::Accuracy;

/// The part of a file that the page shows.
pub(super) const PART: &str = "accuracy";
/// What is in the names of files of errors, which hold no times.
pub(super) const NAME: &str = "-error-";

const WORDS: &str = "\
### How exact f32 is

The table has ours and cuBLASLt's, both as they are timed, on the same operands. They stand beside sums in f64 of exact
products. Up to 64 rows of Y are compared, spread over all of it, where ReLU leaves something. Errors are shares of the root
mean square of the right results.
";

/// A row for each type, size and side.
pub(super) fn text(name: &str, rows: &[Accuracy]) -> Result<String> {
    let Some(first) = rows.first() else {
        return Ok(format!("`docs/bench/{name}.csv` has no rows.\n"));
    };
    let run = |row: &Accuracy| [&row.gpu, &row.driver, &row.commit, &row.command].map(String::clone);
    if rows.iter().any(|row| run(row) != run(first)) {
        bail!("rows of different runs");
    }
    let mut text = format!(
        "{WORDS}\n| type | M × K × N | whose | largest error | root mean square |\n|---|---|---|---|---|\n"
    );
    for row in rows {
        writeln!(
            text,
            "| {} | {} | {} | {:.1e} | {:.1e} |",
            row.dtype,
            row.shape.replace('x', " × "),
            row.variant,
            row.max_error,
            row.rms_error,
        )?;
    }
    let [gpu, driver, commit, command] = run(first);
    writeln!(text, "\n{gpu}, driver {driver}, commit {commit}, `{command}`.")?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::text;
    use crate::measurement::Accuracy;

    #[test]
    fn errors_of_one_run_stand_below_one_another() {
        let row = |variant: &str, max_error| Accuracy {
            dtype: "f32".into(),
            shape: "1x2x3".into(),
            variant: variant.into(),
            max_error,
            rms_error: 2e-7,
            ..Accuracy::default()
        };
        let mut rows = [row("warpsmith", 1.25e-6), row("cublaslt-fused", 3e-6)];
        let made = text("name", &rows).expect("one run");
        assert!(made.contains("| f32 | 1 × 2 × 3 | cublaslt-fused | 3.0e-6 | 2.0e-7 |"), "{made}");
        rows[1].commit.push('0');
        assert!(text("name", &rows).is_err());
        assert!(text("name", &[]).expect("no rows").contains("no rows"));
    }
}
