//! PyTorch as a peer: a Python process beside this one, which measures by the same rules what it is asked to.
//!
//! It has a context of its own on the GPU, so what it does cannot be enqueued on our stream. It makes a case ready, and takes a sample whenever it is
//! asked for one, while this process waits: so its samples alternate with ours, on a GPU in the same state.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use serde_json::Map;
use tempfile::TempDir;
use warpsmith::Stream;
use warpsmith_lab::benchmark::{self, Options, Sampler, Timing};

use super::case::Case;
use super::{cublaslt, microseconds};

/// The variant that is the plain product.
pub(super) const PRODUCT: &str = "torch-matmul";

/// A program's name and text.
pub(super) type Script = (&'static str, &'static str);
/// What measures linear operations, and what measures the other operations with parts of the former.
pub(super) const LINEAR: Script = ("linear.py", include_str!("../../peers/linear.py"));
pub(super) const ATTENTION: Script = ("attention.py", include_str!("../../peers/attention.py"));
pub(super) const UPDATE: Script = ("update.py", include_str!("../../peers/update.py"));
pub(super) const PEER: Script = ("peer.py", include_str!("../../peers/peer.py"));
pub(super) const TOPK: Script = ("topk.py", include_str!("../../peers/topk.py"));
pub(super) const ROWS: Script = ("rows.py", include_str!("../../peers/rows.py"));
pub(super) const TRAINING: Script = ("training.py", include_str!("../../peers/training.py"));
/// What measures the time that calls take their caller.
pub(super) const CALLS: Script = ("calls.py", include_str!("../../peers/calls.py"));
/// The longest that one answer may take; compiling a graph is the longest step.
const PATIENCE: Duration = Duration::from_secs(240);
/// What preparing a case may add to its warm-up at most.
const MOST_WARM_UP: Duration = Duration::from_secs(1);

/// The Python process.
pub(super) struct Torch {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<String>,
    /// Holds the script, and what the process says on its standard error.
    folder: TempDir,
    /// PyTorch's version, and that of its cuBLAS.
    pub(super) version: String,
}

#[derive(Serialize)]
struct Request<'a> {
    layout: &'a str,
    batch: usize,
    precision: &'a str,
    m: usize,
    k: usize,
    n: usize,
    bias: bool,
    activation: &'a str,
    extra: &'a str,
    /// The mode to compile in, if the compiled variant is wanted.
    compile: Option<&'a str>,
}

/// What the process is asked for.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Line<'a, R> {
    /// To make a request ready, instead of what it has.
    Prepare(Timed<'a, R>),
    /// One sample of a variant that is ready.
    Sample(&'a str),
}

/// A request, and how long a batch of its launches is to take.
#[derive(Serialize)]
struct Timed<'a, R> {
    #[serde(flatten)]
    request: &'a R,
    batch_us: f64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Start { torch: String, cublas: usize },
    Ready { variants: Vec<String>, absent: BTreeMap<String, String> },
    Sampled { us: f64 },
}

/// A variant's time in microseconds.
pub(super) struct Measured {
    pub(super) variant: String,
    pub(super) median_us: f64,
}

/// The variants of one case, ready to be sampled.
pub(super) struct Prepared<'a> {
    torch: RefCell<&'a mut Torch>,
    variants: Vec<String>,
    /// Why there are no more samples.
    failure: RefCell<Option<anyhow::Error>>,
}

/// One of the variants.
pub(super) struct Variant<'a, 't> {
    prepared: &'a Prepared<'t>,
    name: &'a str,
}

impl<'t> Prepared<'t> {
    /// What is to be measured.
    pub(super) fn samplers(&self) -> Vec<Variant<'_, 't>> {
        self.variants.iter().map(|name| Variant { prepared: self, name }).collect()
    }

    /// The times of the variants, in the samplers' order, and the process's memory back on the way; the error for a process that failed meanwhile.
    pub(super) fn finish(self, timings: &[Option<Timing>]) -> Result<Vec<Measured>> {
        if let Some(failure) = self.failure.into_inner() {
            return Err(failure);
        }
        let torch = self.torch.into_inner();
        torch.say(&Map::new())?;
        torch.ready()?;
        let named = self.variants.into_iter().zip(timings);
        Ok(named
            .filter_map(|(variant, timing)| {
                Some(Measured { variant, median_us: microseconds(timing.as_ref()?) })
            })
            .collect())
    }
}

impl Sampler for Variant<'_, '_> {
    fn sample(&mut self) -> Option<Duration> {
        if self.prepared.failure.borrow().is_some() {
            return None;
        }
        let sampled = self.prepared.torch.borrow_mut().sample(self.name);
        sampled.map_err(|error| *self.prepared.failure.borrow_mut() = Some(error)).ok()
    }
}

impl Torch {
    /// Starts `python` with `script`; an error says why there is no PyTorch to compare with.
    pub(super) fn open(python: &str, script: Script) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        for (name, text) in [LINEAR, ATTENTION, UPDATE, PEER, TOPK, CALLS, script] {
            std::fs::write(folder.path().join(name), text)?;
        }
        let script = folder.path().join(script.0);
        let errors = File::create(folder.path().join("stderr"))?;
        let mut child = Command::new(python)
            .arg("-u")
            .arg(&script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .with_context(|| format!("starting {python}"))?;
        let requests = child.stdin.take().context("no way to write to the process")?;
        let output = child.stdout.take().context("no way to read from the process")?;
        let (sender, answers) = channel();
        // Ends with the process's output.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(std::io::Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut torch = Self { child, requests, answers, folder, version: String::new() };
        match torch.answer()? {
            Answer::Start { torch: version, cublas } => {
                torch.version = format!("{version} with cuBLAS {}", cublaslt::version(cublas));
            }
            _ => bail!("PyTorch's process did not introduce itself"),
        }
        Ok(torch)
    }

    /// Makes ready what PyTorch has for `case`; `compile` is the mode to compile one variant in.
    pub(super) fn prepare(
        &mut self,
        case: &Case,
        compile: Option<&str>,
        options: &Options,
    ) -> Result<Prepared<'_>> {
        let [m, k, n] = case.shape;
        let request = Request {
            layout: case.operation.layout.name(),
            batch: case.operation.batch,
            precision: case.precision.name(),
            m,
            k,
            n,
            bias: case.operation.bias,
            activation: case.operation.activation.name(),
            extra: case.operation.extra.name(),
            compile,
        };
        self.make_ready(&request, options)
    }

    /// Makes ready what PyTorch has for `request`, which is an object.
    pub(super) fn make_ready(&mut self, request: &impl Serialize, options: &Options) -> Result<Prepared<'_>> {
        let batch_us = options.batch.as_secs_f64() * 1e6;
        self.say(&Line::Prepare(Timed { request, batch_us }))?;
        let variants = self.ready()?;
        Ok(Prepared { torch: RefCell::new(self), variants, failure: RefCell::new(None) })
    }

    /// The times that answer `request`, which is an object, with nothing of ours between their samples.
    pub(super) fn ask(
        &mut self,
        stream: &Stream,
        request: &impl Serialize,
        options: &Options,
    ) -> Result<Vec<Measured>> {
        let start = Instant::now();
        let prepared = self.make_ready(request, options)?;
        // The GPU has idled meanwhile, and its clock may be higher for as long than one that was busy has.
        let idle = start.elapsed().min(MOST_WARM_UP);
        let mut options = *options;
        options.warm_up = options.warm_up.max(idle);
        let mut samplers = prepared.samplers();
        let mut samplers: Vec<_> = samplers.iter_mut().map(|sampler| sampler as &mut dyn Sampler).collect();
        let (_, timings) = benchmark::interleaved_with(stream, &mut [], &mut samplers, &options)?;
        drop(samplers);
        prepared.finish(&timings)
    }

    /// Microseconds of one launch.
    fn sample(&mut self, variant: &str) -> Result<Duration> {
        self.say(&Line::<()>::Sample(variant))?;
        match self.answer()? {
            Answer::Sampled { us } => {
                Duration::try_from_secs_f64(us * 1e-6).with_context(|| format!("a time of {variant}"))
            }
            _ => bail!("PyTorch's process gave no sample of {variant}"),
        }
    }

    /// The variants that the process has made ready.
    fn ready(&self) -> Result<Vec<String>> {
        let Answer::Ready { variants, absent } = self.answer()? else {
            bail!("PyTorch's process made nothing ready")
        };
        for (variant, why) in absent {
            eprintln!("  {variant} is absent: {why}");
        }
        Ok(variants)
    }

    fn say(&mut self, line: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(line)?;
        writeln!(self.requests, "{line}").map_err(|error| self.failure(error))?;
        Ok(self.requests.flush()?)
    }

    fn answer(&self) -> Result<Answer> {
        let line = self.answers.recv_timeout(PATIENCE).map_err(|error| self.failure(error))?;
        serde_json::from_str(&line).with_context(|| format!("PyTorch's process said `{line}`"))
    }

    /// The error for a process that does not answer, with the last that it said.
    fn failure(&self, error: impl std::error::Error) -> anyhow::Error {
        let said = std::fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default();
        let last: Vec<_> = said.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
        anyhow!("PyTorch's process does not answer ({error}): {}", last.join(" / "))
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        // It holds memory of the GPU; whether it could be ended does not matter any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde::Serialize;
    use serde_json::Map;
    use warpsmith::Device;
    use warpsmith_lab::benchmark::Options;

    use super::{Answer, LINEAR, Line, Script, Timed, Torch};

    #[test]
    fn a_request_says_what_to_measure() {
        #[derive(Serialize)]
        struct Request {
            m: usize,
        }
        let said = |line: &Line<'_, Request>| serde_json::to_string(line).expect("an object");
        let timed = Timed { request: &Request { m: 7 }, batch_us: 250.0 };
        assert_eq!(said(&Line::Prepare(timed)), r#"{"prepare":{"m":7,"batch_us":250.0}}"#);
        assert_eq!(said(&Line::Sample("torch-eager")), r#"{"sample":"torch-eager"}"#);
    }

    #[test]
    fn every_kind_of_answer_is_told_apart() {
        let parse = |text| serde_json::from_str::<Answer>(text).expect("an answer");
        assert!(matches!(parse(r#"{"torch": "2.11", "cublas": 130100}"#), Answer::Start { .. }));
        assert!(matches!(parse(r#"{"variants": ["v"], "absent": {"w": "no"}}"#), Answer::Ready { .. }));
        assert!(matches!(parse(r#"{"us": 1.5}"#), Answer::Sampled { .. }));
    }

    #[test]
    fn a_program_that_is_no_python_is_reported_as_absent() {
        assert!(Torch::open("/nonexistent/python", LINEAR).is_err());
        assert!(Torch::open("false", LINEAR).is_err());
    }

    /// Stands for the Python program: variants `a` and `b`, of which `b` ends the process when it is asked for a sample of the second request.
    const STAND_IN: Script = (
        "stand-in.sh",
        r#"
        echo '{"torch": "0", "cublas": 130100}'
        requests=0
        while read -r line; do
            case "$line" in
                *prepare*) requests=$((requests + 1)); echo '{"variants": ["a", "b"], "absent": {"c": "no"}}' ;;
                *sample*a*) echo '{"us": 1.5}' ;;
                *sample*b*) test $requests -lt 2 || exit 1; echo '{"us": 2.5}' ;;
                *) echo '{"variants": [], "absent": {}}' ;;
            esac
        done
        "#,
    );

    #[test]
    fn samples_are_asked_for_one_by_one_and_a_process_that_ends_is_an_error() {
        let stream = Device::cpu().default_stream();
        let mut options = Options::default();
        options.warm_up = Duration::ZERO;
        options.samples = 2;
        let mut torch = Torch::open("sh", STAND_IN).expect("a shell");
        let measured = torch.ask(&stream, &Map::new(), &options).expect("two samples of each");
        let measured: Vec<_> = measured.iter().map(|it| (it.variant.as_str(), it.median_us)).collect();
        assert_eq!(measured, [("a", 1.5), ("b", 2.5)]);
        let error = torch.ask(&stream, &Map::new(), &options).err().expect("the process has ended");
        assert!(error.to_string().contains("does not answer"), "{error:#}");
    }
}
