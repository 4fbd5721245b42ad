//! Measurements as Markdown tables.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};

use super::peer::Part;
use super::results::{CONTROL, Entry, chosen};
use super::{attention, drawn, goals, rows, topk, training, update};
use crate::measurement::Measurement;

/// What stands behind a suite whose table is to have no columns of the clock and the power.
const SHORT: &str = " short";

/// The part of a file that shows the baselines with fast accumulation, of all suites.
const FAST_ACCUMULATION: &str = "fast-accumulation";

/// What a table shows of a file: a set of sizes, the controls, or a part of PEER's.
pub(super) fn table(name: &str, rows: &[Measurement], part: &str) -> Result<String> {
    if let Some(part) = Part::of(part) {
        return part.text(name, rows);
    }
    if part == goals::PART {
        return goals::text(name, rows);
    }
    if part == goals::FLOOR_PART {
        return goals::floor_text(name, rows);
    }
    if part == drawn::PART {
        return drawn::text(name, rows);
    }
    if part == FAST_ACCUMULATION {
        return fast_accumulation(rows);
    }
    let (part, is_short) = part.strip_suffix(SHORT).map_or((part, false), |part| (part, true));
    let shown: Vec<&Measurement> = rows
        .iter()
        .filter(|row| match part {
            "control" => row.operation == CONTROL,
            suite => row.operation != CONTROL && row.variant == "chosen" && row.suite == suite,
        })
        .collect();
    let Some(first) = shown.first() else {
        return Ok(format!("`docs/bench/{name}.csv` has no rows of `{part}`.\n"));
    };
    let text = match part {
        "control" => controls(&shown),
        update::SUITE => update::table(&shown)?,
        rows::SUITE => rows::table(&chosen(&shown))?,
        topk::SUITE => topk::table(&chosen(&shown))?,
        training::SUITE => training::table(&chosen(&shown))?,
        suite if attention::SUITES.contains(&suite) => attention::table(name, &chosen(&shown))?,
        _ => results(&chosen(&shown), is_short)?,
    };
    Ok(format!("{text}\n{}", provenance(&shown, first)?))
}

/// Where rows come from, as a line: all from the run of the first of them.
pub(super) fn provenance(rows: &[&Measurement], first: &Measurement) -> Result<String> {
    let [gpu, driver, commit, command] = run(first);
    if !rows.iter().all(|row| run(row) == run(first)) {
        bail!("rows of different runs: their times are not to be compared");
    }
    let mut text = format!("{gpu}, driver {driver}, commit {commit}, `{command}`");
    if let Some(tbps) = first.ceiling_tbps {
        write!(text, "; ceiling {tbps:.2} TB/s")?;
    }
    if !first.libraries.is_empty() {
        write!(text, "; {}", first.libraries)?;
    }
    text.push_str(".\n");
    Ok(text)
}

/// What tells a run from others.
fn run(row: &Measurement) -> [&str; 4] {
    [&row.gpu, &row.driver, &row.commit, &row.command]
}

/// A number with so many digits behind the point, or a dash.
pub(super) fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
}

/// The operation of a plain product.
const PRODUCT: &str = "linear";

/// The time of our plain product of the same type and size as `ours`, which is of another operation.
fn own_product(entries: &[Entry<'_>], ours: &Measurement) -> Option<f64> {
    let same = |other: &Measurement| (&other.dtype, &other.shape) == (&ours.dtype, &ours.shape);
    let product = entries.iter().map(|entry| entry.ours).find(|it| it.operation == PRODUCT && same(it));
    product.filter(|_| ours.operation != PRODUCT).map(|product| product.median_us)
}

/// A row for each operation, type and size.
fn results(entries: &[Entry<'_>], is_short: bool) -> Result<String> {
    let several = entries.iter().any(|entry| entry.ours.operation != entries[0].ours.operation);
    let (title, rule) = if several { ("| operation ", "|---") } else { ("", "") };
    let has_own = entries.iter().any(|entry| own_product(entries, entry.ours).is_some());
    let (own_title, own_rule) = if has_own { (" our product / ours |", "---|") } else { ("", "") };
    // Only of rows that say at what clock they were timed.
    let clocked = !is_short && entries.iter().any(|entry| entry.ours.sm_clock_mhz.is_some());
    let (clock_titles, clock_rules) = if clocked { (" MHz | W |", "---|---|") } else { ("", "") };
    let mut text = format!(
        "{title}| type | M × K × N | µs | TFLOP/s | best baseline | its µs | baseline / ours | product µs | product / ours |{own_title}{clock_titles}\n\
         {rule}|---|---|---|---|---|---|---|---|---|{own_rule}{clock_rules}\n"
    );
    for entry in entries {
        let Entry { ours, best, product } = entry;
        if several {
            write!(text, "| {} ", ours.operation)?;
        }
        write!(
            text,
            "| {} | {} | {:.1} | {:.0} | {} | {} | {} | {} | {} |",
            ours.dtype,
            ours.shape.replace('x', " × "),
            ours.median_us,
            flops(&ours.operation, &ours.shape)? / ours.median_us * 1e-6,
            best.map_or("–", |best| best.peer.as_str()),
            number(best.and_then(|best| best.peer_us), 1),
            number(best.and_then(|best| best.ratio), 2),
            number(product.and_then(|product| product.peer_us), 1),
            number(product.and_then(|product| product.ratio), 2),
        )?;
        if has_own {
            write!(text, " {} |", number(own_product(entries, ours).map(|own| own / ours.median_us), 2))?;
        }
        if clocked {
            write!(text, " {} | {} |", number(ours.sm_clock_mhz, 0), number(ours.power_w, 0))?;
        }
        text.push('\n');
    }
    Ok(text)
}

fn controls(rows: &[&Measurement]) -> String {
    let mut text = String::from(
        "| type | M × K × N | cuBLAS, by this bench, µs | the same by PyTorch, µs | ratio |\n|---|---|---|---|---|\n",
    );
    for row in rows {
        let (peer, ratio) = (row.peer_us.unwrap_or(f64::NAN), row.ratio.unwrap_or(f64::NAN));
        let shape = row.shape.replace('x', " × ");
        text.push_str(&format!(
            "| {} | {shape} | {:.1} | {peer:.1} | {ratio:.2} |\n",
            row.dtype, row.median_us
        ));
    }
    text
}

/// Baselines of 8-bit types whose sums keep fewer bits than ours, with words; nothing if there are none.
fn fast_accumulation(rows: &[Measurement]) -> Result<String> {
    let shown: Vec<&Measurement> = rows
        .iter()
        .filter(|row| row.variant == "chosen" && Measurement::is_fast_accumulation(&row.dtype, &row.peer))
        .collect();
    let Some(first) = shown.first() else { return Ok(String::new()) };
    let mut text = String::from(
        "### FP8 with fast accumulation\n\n\
         PyTorch's `_scaled_mm` with `use_fast_accum=True` leaves the sums to the tensor cores, which keep few bits of them. That is less work and less exact,\n\
         so it is listed here alone and counts as nobody's best baseline.\n\n\
         | operation | type | M × K × N | µs | with fast accumulation | its µs | its / ours |\n|---|---|---|---|---|---|---|\n",
    );
    for row in &shown {
        writeln!(
            text,
            "| {} | {} | {} | {:.1} | {} | {} | {} |",
            row.operation,
            row.dtype,
            row.shape.replace('x', " × "),
            row.median_us,
            row.peer,
            number(row.peer_us, 1),
            number(row.ratio, 2),
        )?;
    }
    Ok(format!("{text}\n{}", provenance(&shown, first)?))
}

/// Floating-point operations of a product of this shape, `MxKxN`. A batch has the number of its matrices before them; the rank of an
/// update, which stands behind them, is not counted.
pub(super) fn flops(operation: &str, shape: &str) -> Result<f64> {
    let sides = shape.split('x').map(str::parse::<f64>).collect::<Result<Vec<_>, _>>();
    let counted = if operation.starts_with("matmul ") { 4 } else { 3 };
    Ok(2.0 * sides.with_context(|| format!("shape `{shape}`"))?.iter().take(counted).product::<f64>())
}

#[cfg(test)]
mod tests {
    use super::{flops, table};
    use crate::measurement::Measurement;

    #[test]
    fn every_matrix_of_a_batch_counts_and_no_rank_of_an_update() {
        let of = |operation, shape| flops(operation, shape).expect("a shape");
        assert_eq!(of("matmul nn", "2x3x5"), 60.0);
        assert_eq!(of("matmul nt", "7x2x3x5"), 420.0);
        assert_eq!(of("linear bias relu update", "2x3x5x7"), 60.0);
        assert!(flops("linear", "2xthree").is_err());
    }

    fn row(suite: &str, operation: &str, shape: &str, ours: f64) -> Measurement {
        Measurement {
            suite: suite.into(),
            ..Measurement::against(operation, "bf16", shape, [ours, 3.0], "cublaslt-product")
        }
    }

    #[test]
    fn a_suite_has_a_row_for_each_operation_and_one_that_was_not_measured_is_said_to_be_missing() {
        let rows = ["matmul nt", "matmul nn"].map(|operation| row("batch", operation, "4x500x500x500", 2.0));
        assert!(table("name", &rows, "odd").expect("no rows").contains("no rows of `odd`"));
        let made = table("name", &rows, "batch").expect("rows");
        // 10⁹ operations in 2 µs.
        let line = "| matmul nt | bf16 | 4 × 500 × 500 × 500 | 2.0 | 500 | cublaslt-product | 3.0 | 1.50 |";
        assert!(made.contains(line), "{made}");
        assert!(!made.contains("our product"), "{made}");
    }

    #[test]
    fn epilogues_stand_beside_our_own_product_of_their_size() {
        let rows = [
            row("epilogue", "linear", "500x500x500", 2.0),
            row("epilogue", "linear bias silu", "500x500x500", 2.5),
            row("epilogue", "linear bias silu", "500x500x600", 2.5),
        ];
        let made = table("name", &rows, "epilogue").expect("rows");
        let last: Vec<_> = made.lines().filter(|line| line.starts_with("| linear")).collect();
        assert!(made.contains("| our product / ours |"), "{made}");
        assert_eq!(last.len(), 3, "{made}");
        for (line, end) in last.into_iter().zip(["| – |", "| 0.80 |", "| – |"]) {
            assert!(line.ends_with(end), "{line}");
        }
    }

    #[test]
    fn a_short_table_has_no_clocks() {
        let timed = Measurement { sm_clock_mhz: Some(1980.0), ..row("main", "linear", "1x2x3", 2.0) };
        let of = |part| table("name", std::slice::from_ref(&timed), part).expect("rows");
        assert!(of("main").contains("MHz") && !of("main short").contains("MHz"));
        assert_eq!(of("main").lines().count(), of("main short").lines().count());
    }

    #[test]
    fn fast_accumulation_is_shown_apart_and_is_no_best_peer() {
        let row = |peer: &str, peer_us: f64| Measurement {
            suite: "types".into(),
            ..Measurement::against("linear", "f8e4m3", "100x100x100", [2.0, peer_us], peer)
        };
        let name = "torch-scaled-mm-fast-accumulation";
        let rows = [row("cublaslt-fused", 4.0), row("torch-scaled-mm", 3.0), row(name, 1.0)];
        let apart = table("name", &rows, super::FAST_ACCUMULATION).expect("rows");
        let line = format!("| linear | f8e4m3 | 100 × 100 × 100 | 2.0 | {name} | 1.0 | 0.50 |");
        assert!(apart.contains(&line) && !apart.contains("3.0"), "{apart}");
        let shown = table("name", &rows, "types").expect("rows");
        assert!(shown.contains("| torch-scaled-mm | 3.0 | 1.50 |") && !shown.contains(name), "{shown}");
        assert_eq!(table("name", &rows[..2], super::FAST_ACCUMULATION).expect("none"), "");
    }
}
