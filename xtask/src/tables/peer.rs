//! PEER layers as Markdown: by the number of tokens, with their gradients, by the format of the experts' rows, and by the share of experts that is resident.
//!
//! These parts bring the words around their tables along, so that a page shows nothing of them while there is no file of measurements.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};

use super::markdown::{number, provenance};
use super::plots;
use crate::measurement::Measurement;

/// A part of the measurements, as it stands on a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Layers by the number of tokens.
    Layers,
    /// Layers with their gradients, and steps of an optimiser.
    Gradients,
    /// Layers by the format of the experts' rows.
    Formats,
    /// Experts in host memory by the share that is resident.
    Residency,
    /// A few layers beside their best baselines.
    Summary,
}

pub(super) const LAYER: &str = "peer";
pub(super) const ROUTING: &str = "peer routing";
pub(super) const EXPERTS: &str = "peer experts";
const TRAINING: &str = "peer training";
const OPTIMIZER: &str = "peer optimizer";
pub(super) const RESIDENCY: &str = "peer residency";
/// The format of rows that the others stand beside.
pub(super) const PLAIN: &str = "bf16";
/// The tokens of the summary.
const SUMMARY: [usize; 3] = [1, 256, 2048];
/// What a variant's name ends in where rows that are read again are not counted again.
const ONCE: &str = ", each row once";

impl Part {
    const ALL: [Self; 5] = [Self::Layers, Self::Gradients, Self::Formats, Self::Residency, Self::Summary];

    /// The part of this name, if it is one of PEER's.
    pub(super) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Layers => "layers",
            Self::Gradients => "gradients",
            Self::Formats => "formats",
            Self::Residency => "residency",
            Self::Summary => "summary",
        }
    }

    /// Whether the part shows this row.
    fn shows(self, row: &Measurement) -> bool {
        let plain = row.variant == PLAIN || row.variant.strip_suffix(ONCE) == Some(PLAIN);
        match self {
            Self::Layers => plain && [LAYER, ROUTING, EXPERTS].contains(&row.operation.as_str()),
            Self::Gradients => plain && [TRAINING, OPTIMIZER].contains(&row.operation.as_str()),
            Self::Formats => [LAYER, EXPERTS].contains(&row.operation.as_str()),
            Self::Residency => row.operation == RESIDENCY,
            Self::Summary => plain && row.operation == LAYER,
        }
    }

    /// What stands on a page: of file `name`, with these rows.
    pub(super) fn text(self, name: &str, rows: &[Measurement]) -> Result<String> {
        let shown: Vec<&Measurement> = rows.iter().filter(|row| self.shows(row)).collect();
        let Some(first) = shown.first() else {
            return Ok(format!("`docs/bench/{name}.csv` has no rows of `{}`.\n", self.name()));
        };
        let table = match self {
            Self::Layers => layers(&shown),
            Self::Gradients => gradients(&shown),
            Self::Formats => formats(&shown),
            Self::Residency => residency(&shown),
            Self::Summary => of_operation(&shown, LAYER, &SUMMARY),
        };
        let (before, after) = self.words(name);
        Ok(format!("{before}\n\n{}\n{}{after}", table?, provenance(&shown, first)?))
    }

    /// What is said before and after the table.
    fn words(self, name: &str) -> (&'static str, String) {
        let plot = |title: &str, plot: &str| format!("\n{title}:\n\n![{title}](plots/{name}-{plot}.svg)\n");
        match self {
            Self::Layers => (
                LAYERS_WORDS,
                plot(
                    "A layer's time by the number of tokens, the baselines', and the gather's limit with each use counted",
                    plots::LAYERS,
                ),
            ),
            Self::Gradients => (GRADIENTS_WORDS, String::new()),
            Self::Formats => (FORMATS_WORDS, String::new()),
            Self::Residency => {
                (RESIDENCY_WORDS, plot("Tokens a second by the share that is resident", plots::RESIDENCY))
            }
            Self::Summary => (SUMMARY_WORDS, String::new()),
        }
    }
}

const LAYERS_WORDS: &str = "\
## PEER layers

[`layers::Peer`](operations/peer.md) is measured from tokens to outputs, T tokens at a time. It has 1024 columns in and out, 1 048 576 experts of one hidden unit, and queries of 256
columns. A token uses 16 experts in each of 8 heads. All is bf16. Each head has sub-keys of its own, for ours and for the baselines. `PeerConfig::default()` is the same layer
with sub-keys that the heads share. The tokens rotate, so that every launch reads other experts.

Its two parts are measured by themselves, too. *Routing* is the projection to queries and `ops::product_key_topk`. *Experts* is `ops::expert_mlp`.

The baselines are PyTorch's (`xtask/peers/peer.py`). `torch-by-head` computes one head after the other. `torch-embedding-bag` computes all of them at once, with `embedding_bag` for
the weighted sums. The routing stands beside that of both.

The gather's limit is the time that a copy within the GPU's memory takes, in the same run, for the rows of the used experts. One column counts each use, as if nothing were found in a
cache. The other counts each row once, as if everything that is used again were. The shares in the layer's time stand behind the layer, those in the experts' time behind the experts.";

const GRADIENTS_WORDS: &str = "\
### Gradients

The same layer, forward and backward: the gradients of tokens, of the projection, of the sub-keys, and of the experts in use. `torch-sparse` is PyTorch's `embedding` with sparse
gradients. Its rows are in bf16, several where an expert is used again. Ours are in f32, one for each expert in use, added up in the order of the tokens.

A step is `AdamW` with bf16 weights and f32 masters, of the router's weights and of the experts that were used. It stands beside the time that a copy takes, in the same run, for the
bytes that it must read and write.";

const FORMATS_WORDS: &str = "\
### Formats of rows

These are the same layers, with tokens in bf16 and the experts' rows in other formats. Beside each time stands how many times longer bf16 rows take. The limit is that of the format's
own rows. With 1 and 16 tokens, 8- and 4-bit rows are slower than bf16 ones. With 16 384, int8 and e4m3 are hardly faster: bf16 experts are
[sorted](kernels/expert-mlp.md#many-tokens) there, and those are not.";

const RESIDENCY_WORDS: &str = "\
### Experts in host memory

The experts of the same layer are in pinned host memory, behind a cache on the GPU that holds a share of them. A step is the experts' part of the layer for T tokens with new ids. It is
timed from ids on the GPU to outputs, by the host's clock. The experts are used all alike (`uniform`), or by Zipf's law with the exponent that is named, as words in texts are. The
link's limit is the time that a copy from pinned memory takes, in the same run, for what a step carries over the link.";

const SUMMARY_WORDS: &str = "\
A PEER layer (`layers::Peer`) has 1 048 576 experts, 1024 columns in and out, and 8 heads that use 16 experts each. All is bf16. It stands beside the faster of two ways to compute it in
PyTorch, by the number of tokens T:";

/// A part of a layer as it was measured: a number of tokens, a format of rows.
pub(super) struct Found<'a> {
    pub(super) ours: &'a Measurement,
    /// The row of the fastest peer.
    pub(super) best: Option<&'a Measurement>,
    /// The share of the limit for which each row counts once.
    once: Option<f64>,
}

/// What `rows` say of an operation, if anything.
pub(super) fn find<'a>(
    rows: &[&'a Measurement],
    operation: &str,
    tokens: usize,
    format: &str,
) -> Option<Found<'a>> {
    let shape = format!("T={tokens}");
    let of = |row: &&&'a Measurement| row.operation == operation && row.shape == shape;
    let own = || rows.iter().filter(of).filter(|row| row.variant == format);
    let time = |row: &Measurement| row.peer_us.unwrap_or(f64::INFINITY);
    let peers = own().filter(|row| row.peer_us.is_some());
    let once = rows.iter().filter(of).find(|row| row.variant.strip_suffix(ONCE) == Some(format));
    Some(Found {
        ours: own().next()?,
        best: peers.min_by(|a, b| time(a).total_cmp(&time(b))).copied(),
        once: once.and_then(|row| row.share),
    })
}

/// The tokens of a row.
pub(super) fn tokens(row: &Measurement) -> Result<usize> {
    let count = row.shape.strip_prefix("T=").and_then(|count| count.parse().ok());
    count.with_context(|| format!("shape `{}` of {} is not `T=` and a number", row.shape, row.operation))
}

/// The values that rows have, in the order in which they come.
pub(super) fn distinct<T: PartialEq>(values: impl IntoIterator<Item = Result<T>>) -> Result<Vec<T>> {
    let mut all = Vec::new();
    for value in values {
        let value = value?;
        if !all.contains(&value) {
            all.push(value);
        }
    }
    Ok(all)
}

/// Thousands of tokens a second.
pub(super) fn rate(tokens: usize, microseconds: f64) -> f64 {
    tokens as f64 / microseconds * 1e3
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

/// A rate with some three digits.
fn short(rate: f64) -> String {
    if rate < 100.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

fn layers(rows: &[&Measurement]) -> Result<String> {
    let mut text = String::from(
        "| T | layer µs | 10³ tokens/s | best baseline | its µs | baseline / ours | of the gather's limit | each row once | routing µs | baseline / ours | experts µs | of the gather's limit | each row once |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for count in distinct(rows.iter().map(|row| tokens(row)))? {
        let of = |operation| find(rows, operation, count, PLAIN);
        let (layer, routing, experts) = (of(LAYER), of(ROUTING), of(EXPERTS));
        let time = |found: &Option<Found<'_>>| number(found.as_ref().map(|found| found.ours.median_us), 1);
        let best = |found: &Option<Found<'_>>| {
            let best = found.as_ref().and_then(|found| found.best);
            let name = best.map_or("–".to_owned(), |best| best.peer.clone());
            (name, number(best.and_then(|best| best.peer_us), 1), number(best.and_then(|best| best.ratio), 2))
        };
        let shares = |found: &Option<Found<'_>>| {
            let [uses, once] = [
                found.as_ref().and_then(|found| found.ours.share),
                found.as_ref().and_then(|found| found.once),
            ];
            format!("{} | {}", percent(uses), percent(once))
        };
        let ((peer, its, ratio), (_, _, routing_ratio)) = (best(&layer), best(&routing));
        writeln!(
            text,
            "| {count} | {} | {} | {peer} | {its} | {ratio} | {} | {} | {routing_ratio} | {} | {} |",
            time(&layer),
            layer.as_ref().map_or("–".to_owned(), |layer| short(rate(count, layer.ours.median_us))),
            shares(&layer),
            time(&routing),
            time(&experts),
            shares(&experts),
        )?;
    }
    Ok(text)
}

fn formats(rows: &[&Measurement]) -> Result<String> {
    let mut text = String::from(
        "| T | rows | layer µs | bf16 / it | experts µs | bf16 / it | of the gather's limit | each row once |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let named = rows.iter().filter(|row| !row.variant.ends_with(ONCE));
    let names = distinct(named.map(|row| Ok(row.variant.as_str())))?;
    for count in distinct(rows.iter().map(|row| tokens(row)))? {
        for format in &names {
            let (layer, experts) = (find(rows, LAYER, count, format), find(rows, EXPERTS, count, format));
            if layer.is_none() && experts.is_none() {
                continue;
            }
            let times = |found: &Option<Found<'_>>, operation| {
                let time = found.as_ref().map(|found| found.ours.median_us);
                let plain = find(rows, operation, count, PLAIN).map(|plain| plain.ours.median_us);
                let ratio = plain.zip(time).map(|(plain, time)| plain / time);
                format!("{} | {}", number(time, 1), number(ratio.filter(|_| *format != PLAIN), 2))
            };
            writeln!(
                text,
                "| {count} | {format} | {} | {} | {} | {} |",
                times(&layer, LAYER),
                times(&experts, EXPERTS),
                percent(experts.as_ref().and_then(|experts| experts.ours.share)),
                percent(experts.as_ref().and_then(|experts| experts.once)),
            )?;
        }
    }
    Ok(text)
}

fn gradients(rows: &[&Measurement]) -> Result<String> {
    let mut text = String::from(
        "| T | µs | best baseline | its µs | baseline / ours | a step's µs | of a copy |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for count in distinct(rows.iter().map(|row| tokens(row)))? {
        let [training, step] = [TRAINING, OPTIMIZER].map(|operation| find(rows, operation, count, PLAIN));
        let best = training.as_ref().and_then(|found| found.best);
        let time = |found: &Option<Found<'_>>| number(found.as_ref().map(|found| found.ours.median_us), 1);
        writeln!(
            text,
            "| {count} | {} | {} | {} | {} | {} | {} |",
            time(&training),
            best.map_or("–", |best| best.peer.as_str()),
            number(best.and_then(|best| best.peer_us), 1),
            number(best.and_then(|best| best.ratio), 2),
            time(&step),
            percent(step.as_ref().and_then(|step| step.ours.share)),
        )?;
    }
    Ok(text)
}

/// The share of the experts that is resident in per cent, and how often experts are used, of a row of experts in host memory.
pub(super) fn resident(row: &Measurement) -> Result<(f64, &str)> {
    let mut words = row.variant.splitn(3, ", ").skip(1);
    let share = words.next().and_then(|share| share.strip_suffix(" % resident")?.parse().ok());
    match (share, words.next()) {
        (Some(share), Some(popularity)) => Ok((share, popularity)),
        _ => bail!(
            "variant `{}` does not say what share of experts is resident and how they are used",
            row.variant
        ),
    }
}

fn residency(rows: &[&Measurement]) -> Result<String> {
    let mut text = String::from(
        "| experts are used | resident | T | µs a step | 10³ tokens/s | hits | MB over the link | of the link's limit |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let ((share, popularity), count) = (resident(row)?, tokens(row)?);
        let bytes = row.bytes.unwrap_or_default();
        let hits = row.hit_rate.map_or_else(|| "–".to_owned(), |rate| format!("{:.1} %", rate * 100.0));
        writeln!(
            text,
            "| {popularity} | {share} % | {count} | {:.1} | {} | {hits} | {:.1} | {} |",
            row.median_us,
            short(rate(count, row.median_us)),
            bytes * 1e-6,
            // Where nothing is missed, the link limits nothing.
            percent(row.share.filter(|_| bytes > 0.0)),
        )?;
    }
    Ok(text)
}

/// An operation beside its fastest baseline, for so many tokens each.
fn of_operation(rows: &[&Measurement], operation: &str, counts: &[usize]) -> Result<String> {
    let mut text =
        String::from("| T | µs | best baseline | its µs | baseline / ours |\n|---|---|---|---|---|\n");
    for &count in counts {
        let Some(Found { ours, best, .. }) = find(rows, operation, count, PLAIN) else { continue };
        writeln!(
            text,
            "| {count} | {:.1} | {} | {} | {} |",
            ours.median_us,
            best.map_or("–", |best| best.peer.as_str()),
            number(best.and_then(|best| best.peer_us), 1),
            number(best.and_then(|best| best.ratio), 2),
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{Part, resident};
    use crate::measurement::Measurement;

    const FILE: &str = "\
operation,dtype,shape,variant,median_us,peer,peer_us,ratio,gpu,driver,commit,command,suite,kernel,clock_mhz,tflops,share,bytes,ceiling_tflops,ceiling_tbps,overhead,hit_rate
peer,bf16,T=256,bf16,100,slow,400,4,G,1,c,run,peer,k,,1,0.25,9,,3,,
peer,bf16,T=256,bf16,100,fast,250,2.5,G,1,c,run,peer,k,,1,0.25,9,,3,,
peer,bf16,T=256,\"bf16, each row once\",100,,,,G,1,c,run,peer,k,,1,0.2,8,,3,,
peer routing,bf16,T=256,bf16,60,torch-routing,90,1.5,G,1,c,run,peer,k,,,,,,3,,
peer experts,bf16,T=256,bf16,40,,,,G,1,c,run,peer,k,,,0.625,9,,3,,
peer training,bf16,T=256,bf16,300,torch-sparse,1500,5,G,1,c,run,peer,k,,,,,,3,,
peer optimizer,bf16,T=256,bf16,50,,,,G,1,c,run,peer,k,,,0.75,9,,3,,
peer experts,bf16,T=256,\"bf16, each row once\",40,,,,G,1,c,run,peer,k,,,0.5,8,,3,,
peer,bf16,T=256,int8,80,,,,G,1,c,run,peer,k,,1,0.16,4,,3,,
peer experts,bf16,T=256,int8,25,,,,G,1,c,run,peer,k,,,0.5,4,,3,,
peer,bf16,T=16384,bf16,5000,,,,G,1,c,run,peer,k,,1,0.5,9,,3,,
peer residency,bf16,T=2048,\"pinned, 100 % resident, uniform\",1000,,,,G,1,c,later,peer,k,,,0,0,,3,,1
peer residency,bf16,T=2048,\"pinned, 50 % resident, Zipf 1\",2000,,,,G,1,c,later,peer,k,,,0.75,5e7,,3,,0.9125
";

    fn rows() -> Vec<Measurement> {
        let rows = csv::Reader::from_reader(FILE.as_bytes()).into_deserialize();
        rows.collect::<Result<_, _>>().expect("rows")
    }

    fn text(part: &str, rows: &[Measurement]) -> String {
        Part::of(part).expect("a part").text("peer-test", rows).expect("well-formed rows")
    }

    #[test]
    fn a_layer_stands_beside_its_fastest_peer_and_its_parts() {
        let text = text("layers", &rows());
        assert!(text.starts_with("## PEER layers\n"), "{text}");
        assert!(
            text.contains(
                "| 256 | 100.0 | 2560 | fast | 250.0 | 2.50 | 25 % | 20 % | 60.0 | 1.50 | 40.0 | 62 % | 50 % |\n"
            ),
            "{text}"
        );
        // What was not measured is a dash.
        assert!(
            text.contains("| 16384 | 5000.0 | 3277 | – | – | – | 50 % | – | – | – | – | – | – |\n"),
            "{text}"
        );
        assert!(text.contains("\nG, driver 1, commit c, `run`; ceiling 3.00 TB/s.\n"), "{text}");
        assert!(!text.contains("int8"), "{text}");
    }

    #[test]
    fn a_layer_with_its_gradients_stands_beside_the_fastest_peer() {
        let text = text("gradients", &rows());
        assert!(text.contains("| 256 | 300.0 | torch-sparse | 1500.0 | 5.00 | 50.0 | 75 % |\n"), "{text}");
        assert!(!text.contains("16384"), "{text}");
    }

    #[test]
    fn a_format_stands_beside_bf16_of_the_same_tokens() {
        let text = text("formats", &rows());
        assert!(text.contains("| 256 | bf16 | 100.0 | – | 40.0 | – | 62 % | 50 % |\n"), "{text}");
        assert!(text.contains("| 256 | int8 | 80.0 | 1.25 | 25.0 | 1.60 | 50 % | – |\n"), "{text}");
        assert!(!text.contains("| 16384 | int8"), "{text}");
    }

    #[test]
    fn residency_is_shown_by_share_and_popularity() {
        let text = text("residency", &rows());
        assert!(text.contains("| uniform | 100 % | 2048 | 1000.0 | 2048 | 100.0 % | 0.0 | – |\n"), "{text}");
        assert!(text.contains("| Zipf 1 | 50 % | 2048 | 2000.0 | 1024 | 91.2 % | 50.0 | 75 % |\n"), "{text}");
        assert!(text.contains("`later`"), "{text}");
        let unknown =
            Measurement { variant: "pinned, some resident, uniform".into(), ..Measurement::default() };
        assert!(resident(&unknown).is_err());
    }

    #[test]
    fn the_summary_shows_layers_alone() {
        let text = text("summary", &rows());
        assert!(text.contains("| 256 | 100.0 | fast | 250.0 | 2.50 |\n"), "{text}");
        assert!(!text.contains("16384") && !text.contains("plots/"), "{text}");
    }

    #[test]
    fn rows_of_two_runs_are_not_put_side_by_side() {
        let mut rows = rows();
        rows[4].command = "another".into();
        let of = |part| Part::of(part).expect("a part").text("peer-test", &rows);
        assert!(of("layers").is_err() && of("formats").is_err());
        // Each part by itself may come from a run of its own.
        assert!(of("summary").is_ok() && of("residency").is_ok());
    }

    #[test]
    fn a_shape_that_is_no_number_of_tokens_is_an_error() {
        let mut rows = rows();
        rows[0].shape = "1x2x3".into();
        assert!(Part::Layers.text("peer-test", &rows).is_err());
    }

    #[test]
    fn what_was_not_measured_at_all_is_said() {
        let rows: Vec<_> = rows().into_iter().filter(|row| row.operation != "peer residency").collect();
        assert_eq!(text("residency", &rows), "`docs/bench/peer-test.csv` has no rows of `residency`.\n");
        assert_eq!(Part::of("main"), None);
    }
}
