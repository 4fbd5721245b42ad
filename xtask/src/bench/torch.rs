//! PyTorch as a peer: a Python process beside this one, which measures by the same rules what it is asked to, case by case.
//!
//! It has a context of its own on the GPU, so its samples cannot alternate with ours; the two processes take turns instead.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use warpsmith::benchmark::Options;

use super::case::Case;
use super::cublaslt;

/// The variant that is the plain product.
pub(super) const PRODUCT: &str = "torch-matmul";

/// A program's name and text.
pub(super) type Script = (&'static str, &'static str);
/// What measures linear operations, and what measures the other operations with parts of the former.
pub(super) const LINEAR: Script = ("linear.py", include_str!("../../peers/linear.py"));
pub(super) const UPDATE: Script = ("update.py", include_str!("../../peers/update.py"));
pub(super) const PEER: Script = ("peer.py", include_str!("../../peers/peer.py"));
pub(super) const TOPK: Script = ("topk.py", include_str!("../../peers/topk.py"));
/// The longest that one answer may take; compiling a graph is the longest step.
const PATIENCE: Duration = Duration::from_secs(240);

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

/// A request, and how long to measure.
#[derive(Serialize)]
struct Timed<'a, R> {
    #[serde(flatten)]
    request: &'a R,
    samples: usize,
    warm_up_s: f64,
    batch_us: f64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Start { torch: String, cublas: usize },
    Measured { variant: String, median_us: f64 },
    Absent { variant: String, absent: String },
    Done { done: bool },
}

/// A variant's time in microseconds.
pub(super) struct Measured {
    pub(super) variant: String,
    pub(super) median_us: f64,
}

impl<'a, R> Timed<'a, R> {
    fn new(request: &'a R, options: &Options) -> Self {
        Self {
            request,
            samples: options.samples,
            warm_up_s: options.warm_up.as_secs_f64(),
            batch_us: options.batch.as_secs_f64() * 1e6,
        }
    }
}

impl Torch {
    /// Starts `python` with `script`; an error says why there is no PyTorch to compare with.
    pub(super) fn open(python: &str, script: Script) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        for (name, text) in [LINEAR, UPDATE, PEER, TOPK] {
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

    /// The times of what PyTorch has for `case`; `compile` is the mode to compile one variant in.
    pub(super) fn measure(
        &mut self,
        case: &Case,
        compile: Option<&str>,
        options: &Options,
    ) -> Result<Vec<Measured>> {
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
        self.ask(&request, options)
    }

    /// The times that answer `request`, which is an object.
    pub(super) fn ask(&mut self, request: &impl Serialize, options: &Options) -> Result<Vec<Measured>> {
        let request = serde_json::to_string(&Timed::new(request, options))?;
        writeln!(self.requests, "{request}").map_err(|error| self.failure(error))?;
        self.requests.flush()?;
        let mut measured = Vec::new();
        loop {
            match self.answer()? {
                Answer::Measured { variant, median_us } => measured.push(Measured { variant, median_us }),
                Answer::Absent { variant, absent } => eprintln!("  {variant} is absent: {absent}"),
                Answer::Done { done: true } => return Ok(measured),
                Answer::Start { .. } | Answer::Done { .. } => bail!("an answer out of order"),
            }
        }
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
    use warpsmith::benchmark::Options;

    use super::{Answer, LINEAR, Timed, Torch};

    #[test]
    fn a_request_says_what_to_measure_and_for_how_long() {
        #[derive(Serialize)]
        struct Request {
            m: usize,
        }
        let mut options = Options::default();
        (options.samples, options.batch) = (3, Duration::from_micros(250));
        options.warm_up = Duration::from_millis(500);
        let text = serde_json::to_string(&Timed::new(&Request { m: 7 }, &options)).expect("an object");
        assert_eq!(text, r#"{"m":7,"samples":3,"warm_up_s":0.5,"batch_us":250.0}"#);
    }

    #[test]
    fn every_kind_of_answer_is_told_apart() {
        let parse = |text| serde_json::from_str::<Answer>(text).expect("an answer");
        assert!(matches!(parse(r#"{"torch": "2.11", "cublas": 130100}"#), Answer::Start { .. }));
        assert!(matches!(parse(r#"{"variant": "v", "median_us": 1.5}"#), Answer::Measured { .. }));
        assert!(matches!(parse(r#"{"variant": "v", "absent": "no"}"#), Answer::Absent { .. }));
        assert!(matches!(parse(r#"{"done": true}"#), Answer::Done { done: true }));
    }

    #[test]
    fn a_program_that_is_no_python_is_reported_as_absent() {
        assert!(Torch::open("/nonexistent/python", LINEAR).is_err());
        assert!(Torch::open("false", LINEAR).is_err());
    }
}
