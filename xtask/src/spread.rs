//! How speeds at drawn sizes are spread beside the best baseline, and what is asked of that.

use std::fmt;

use crate::measurement::Measurement;
use crate::tables::results::chosen;

/// What is asked of the ratios of a kind of sizes: of their geometric mean, their 5th percentile and the lowest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Goal {
    mean: f64,
    fifth: f64,
    lowest: f64,
}

/// Operations whose sizes are drawn, of one type and kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spread {
    /// The suite, the type, and which sizes.
    pub(crate) name: String,
    /// A baseline's time over ours, in rising order; there is one at least.
    ratios: Vec<f64>,
    goal: Option<Goal>,
}

/// The suite of drawn sizes of updates.
pub(crate) const UPDATES: &str = "random-update";
/// That of attentions.
pub(crate) const ATTENTION: &str = "random-attention";
/// That of operations on rows.
pub(crate) const ROWS: &str = "random-rows";
/// That of layers with their gradients.
pub(crate) const TRAINING: &str = "random-training";
/// The suite of batches of products.
const BATCHES: &str = "random-batch";

/// The ratio below which a size counts as lost.
pub(crate) const LOST: f64 = 0.95;

impl Spread {
    /// How many sizes there are.
    pub(crate) fn count(&self) -> usize {
        self.ratios.len()
    }

    /// How many of them count as lost.
    pub(crate) fn lost(&self) -> usize {
        self.ratios.iter().filter(|&&ratio| ratio < LOST).count()
    }

    /// The geometric mean, the 5th percentile and the lowest.
    pub(crate) fn statistics(&self) -> [f64; 3] {
        [self.mean(), self.quantile(0.05), self.ratios[0]]
    }

    /// What is asked of these, where anything is.
    pub(crate) fn goals(&self) -> Option<[f64; 3]> {
        self.goal.map(|Goal { mean, fifth, lowest }| [mean, fifth, lowest])
    }

    fn mean(&self) -> f64 {
        (self.ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / self.ratios.len() as f64).exp()
    }

    /// The ratio that a share of all are at most, by the nearest rank.
    fn quantile(&self, share: f64) -> f64 {
        let rank = (share * self.ratios.len() as f64).ceil() as usize;
        self.ratios[rank.clamp(1, self.ratios.len()) - 1]
    }

    /// Whether the goal is met, if there is one.
    pub(crate) fn is_met(&self) -> Option<bool> {
        let goals = self.goals()?;
        Some(self.statistics().iter().zip(goals).all(|(&measured, goal)| measured >= goal))
    }

    /// What is asked.
    pub(crate) fn asked(&self) -> String {
        let name = &self.name;
        self.goal.map_or_else(
            || name.clone(),
            |Goal { mean, fifth, lowest }| {
                let lowest = if lowest > 0.0 { format!(", lowest at least {lowest}") } else { String::new() };
                format!("{name}: geometric mean at least {mean}, 5th percentile at least {fifth}{lowest}")
            },
        )
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [mean, fifth, lowest] = self.statistics();
        let (lost, count) = (self.lost(), self.count());
        write!(formatter, "{mean:.3}, {fifth:.3}, lowest {lowest:.3}; {lost} of {count} below {LOST}")
    }
}

/// What is asked of a type; of bf16 of its kinds of sizes apart.
fn goal(Measurement { suite, operation, dtype, .. }: &Measurement, in_chunks: bool) -> Option<Goal> {
    let goal = |mean, fifth, lowest| Some(Goal { mean, fifth, lowest });
    match (suite.as_str(), dtype.as_str()) {
        (ROWS, _) if operation.ends_with("training") => goal(1.2, 0.95, 0.0),
        (ROWS, _) => goal(1.05, 0.95, 0.0),
        (TRAINING, "bf16" | "f16") => goal(1.15, 0.95, 0.0),
        (UPDATES, _) if operation == "linear with update" => goal(1.2, 1.2, 1.2),
        (UPDATES, _) => goal(1.0, 1.0, 1.0),
        ("random", "bf16" | "f16") if in_chunks => goal(1.08, 0.95, 0.85),
        ("random", "bf16" | "f16") => goal(1.4, 0.95, 0.85),
        ("random", "f32") => goal(1.3, 0.95, 0.0),
        ("random", "tf32") => goal(1.0, 0.95, 0.0),
        ("random", "f8e4m3") => goal(1.05, 0.95, 0.0),
        _ => None,
    }
}

/// The kind of sizes of a row, and whether K and N are multiples of 8; nothing of a shape that is not one of its operation.
fn kind(row: &Measurement) -> Option<(String, bool)> {
    if row.suite == ATTENTION {
        let [_, _, lengths, columns] = row.shape.split('x').collect::<Vec<_>>()[..] else { return None };
        // Rows and keys stand apart where they differ.
        let lengths = if lengths.contains('/') { "other lengths" } else { "as many keys as rows" };
        let columns =
            if ["64", "96", "128", "256"].contains(&columns) { "64, 96, 128 or 256" } else { "other" };
        return Some((format!(", {lengths}, {columns} columns"), true));
    }
    if row.suite == ROWS || row.suite == TRAINING {
        return Some((String::new(), true));
    }
    let sides: Vec<usize> = row.shape.split('x').filter_map(|side| side.parse().ok()).collect();
    // Matrices of a batch stand before the sides of one, the rank of an update behind.
    let (k, n) = match sides[..] {
        [_, k, n] => (k, n),
        [_, _, k, n] if row.suite == BATCHES => (k, n),
        [_, k, n, _] => (k, n),
        _ => return None,
    };
    let in_chunks = k % 8 == 0 && n % 8 == 0;
    let kind = match row.dtype.as_str() {
        "bf16" | "f16" if in_chunks => ", K and N multiples of 8",
        "bf16" | "f16" => ", other K and N",
        _ => "",
    };
    Some((kind.into(), in_chunks))
}

/// The spreads of all rows of suites whose sizes are drawn.
pub(crate) fn spreads(rows: &[Measurement]) -> Vec<Spread> {
    // Of updates only the framework's own sequence is a baseline, not a part of it.
    let is_baseline = |row: &Measurement| row.suite != UPDATES || row.peer.starts_with("torch-eager");
    let is_drawn = |row: &&Measurement| row.suite.starts_with("random") && is_baseline(row);
    let drawn: Vec<&Measurement> = rows.iter().filter(is_drawn).collect();
    let mut spreads: Vec<Spread> = Vec::new();
    for entry in chosen(&drawn) {
        let (row, Some(ratio)) = (entry.ours, entry.best.and_then(|best| best.ratio)) else { continue };
        let Some((kind, in_chunks)) = kind(row) else { continue };
        let operation = if [UPDATES, ROWS, TRAINING].contains(&row.suite.as_str()) {
            format!("{} ", row.operation)
        } else {
            String::new()
        };
        let name = format!("{} {operation}{}{kind}", row.suite, row.dtype);
        match spreads.iter_mut().find(|spread| spread.name == name) {
            Some(spread) => spread.ratios.push(ratio),
            None => {
                let goal = goal(row, in_chunks);
                spreads.push(Spread { name, ratios: vec![ratio], goal });
            }
        }
    }
    spreads.iter_mut().for_each(|spread| spread.ratios.sort_by(f64::total_cmp));
    spreads
}

#[cfg(test)]
mod tests {
    use super::spreads;
    use crate::measurement::Measurement;

    fn row(dtype: &str, shape: &str, ratio: f64) -> Measurement {
        let row =
            Measurement::against("linear bias relu", dtype, shape, [10.0, 10.0 * ratio], "cublaslt-fused");
        Measurement { suite: "random".into(), ..row }
    }

    #[test]
    fn each_kind_of_sizes_is_judged_by_mean_percentile_and_lowest() {
        let mut rows: Vec<_> = (0..40).map(|index| row("bf16", &format!("{index}x8x16"), 1.2)).collect();
        rows.push(row("bf16", "1x9x16", 0.5));
        rows.push(row("f32", "1x9x16", 2.0));
        let all = spreads(&rows);
        let told: Vec<_> = all.iter().map(|spread| (spread.name.as_str(), spread.is_met())).collect();
        assert_eq!(
            told,
            [
                ("random bf16, K and N multiples of 8", Some(true)),
                ("random bf16, other K and N", Some(false)),
                ("random f32", Some(true)),
            ]
        );
        assert_eq!(all[1].to_string(), "0.500, 0.500, lowest 0.500; 1 of 1 below 0.95");
        // The first number of a batch is that of its matrices.
        let batch = Measurement { suite: super::BATCHES.into(), ..row("bf16", "7x9x8x16", 1.0) };
        assert_eq!(spreads(&[batch])[0].name, "random-batch bf16, K and N multiples of 8");
        // One of forty is not the 5th percentile, but it is the lowest.
        rows[3] = row("bf16", "3x8x16", 0.84);
        assert_eq!(spreads(&rows)[0].is_met(), Some(false));
        rows[3] = row("bf16", "3x8x16", 0.86);
        assert_eq!(spreads(&rows)[0].is_met(), Some(true));
    }

    #[test]
    fn updates_are_judged_beside_the_frameworks_sequence_and_each_operation_apart() {
        let row = |operation: &str, peer: &str, ratio: f64| Measurement {
            suite: super::UPDATES.into(),
            ..Measurement::against(operation, "bf16", "3x8x16x5", [10.0, 10.0 * ratio], peer)
        };
        let rows = [
            row("linear with update", "torch-base", 0.5),
            row("linear with update", "torch-eager", 1.3),
            row("linear with update", "warpsmith-base", 0.9),
            row("generated update", "torch-eager", 0.9),
        ];
        let all = spreads(&rows);
        let told: Vec<_> = all.iter().map(|spread| (spread.name.as_str(), spread.is_met())).collect();
        assert_eq!(
            told,
            [
                ("random-update linear with update bf16, K and N multiples of 8", Some(true)),
                ("random-update generated update bf16, K and N multiples of 8", Some(false)),
            ]
        );
    }

    #[test]
    fn layers_and_their_gradients_are_judged_together_whatever_their_sides() {
        let row = |shape: &str, ratio: f64| Measurement {
            suite: super::TRAINING.into(),
            ..Measurement::against("linear-relu-training", "bf16", shape, [10.0, 10.0 * ratio], "torch")
        };
        let all = spreads(&[row("3x8x16", 1.4), row("3x7x16", 1.0)]);
        let told: Vec<_> = all.iter().map(|spread| (spread.name.as_str(), spread.count())).collect();
        assert_eq!(told, [("random-training linear-relu-training bf16", 2)]);
        assert_eq!((all[0].goals(), all[0].is_met()), (Some([1.15, 0.95, 0.0]), Some(true)));
        assert_eq!(spreads(&[row("3x8x16", 1.1)])[0].is_met(), Some(false));
    }

    #[test]
    fn attentions_are_told_apart_by_their_lengths_and_columns() {
        let row = |shape: &str, peer: &str, ratio: f64| Measurement {
            suite: super::ATTENTION.into(),
            ..Measurement::against("attention causal", "bf16", shape, [10.0, 10.0 * ratio], peer)
        };
        let rows = [
            row("4x16x100x128", "torch-cudnn", 1.2),
            row("4x16x100x128", "torch-flash", 1.1),
            row("4x16/2x100x96", "torch-flash", 0.9),
            row("4x16x100/300x128", "torch-flash", 2.0),
            row("4x16x100x40", "torch-flash", 3.0),
        ];
        let all = spreads(&rows);
        let told: Vec<_> = all.iter().map(|spread| (spread.name.as_str(), spread.count())).collect();
        assert_eq!(
            told,
            [
                ("random-attention bf16, as many keys as rows, 64, 96, 128 or 256 columns", 2),
                ("random-attention bf16, other lengths, 64, 96, 128 or 256 columns", 1),
                ("random-attention bf16, as many keys as rows, other columns", 1),
            ]
        );
        assert_eq!(all[0].statistics()[2], 0.9);
        assert!(all.iter().all(|spread| spread.is_met().is_none()));
    }

    #[test]
    fn only_the_best_baseline_and_drawn_sizes_count() {
        let mut rows = vec![row("f32", "1x8x16", 2.0), row("f32", "1x8x16", 0.5)];
        assert_eq!(spreads(&rows)[0].to_string(), "0.500, 0.500, lowest 0.500; 1 of 1 below 0.95");
        rows.iter_mut().for_each(|row| row.suite = "main".into());
        assert!(spreads(&rows).is_empty());
    }
}
