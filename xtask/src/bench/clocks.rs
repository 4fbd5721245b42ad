//! The GPU's clock and power while it is measured, as `nvidia-smi` tells them from a process of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Between two samples.
const INTERVAL: Duration = Duration::from_millis(100);
const FIELDS: &str = "clocks.sm,power.draw.instant,clocks_event_reasons.sw_power_cap";

/// What the GPU was at, at one time or on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct State {
    /// The multiprocessors' clock in MHz.
    pub(super) clock: f64,
    /// Power in watts.
    pub(super) power: f64,
    /// 1 if the clock was held down to keep to the power limit, 0 if not.
    pub(super) capped: f64,
}

/// A process that samples one GPU until it is dropped.
pub(super) struct Monitor {
    child: Child,
    samples: Arc<Mutex<Vec<(Instant, State)>>>,
}

impl Monitor {
    /// Begins to sample the GPU of this number.
    pub(super) fn open(gpu: usize) -> Result<Self> {
        let mut child = Command::new("nvidia-smi")
            .arg(format!("--id={gpu}"))
            .arg(format!("--query-gpu={FIELDS}"))
            .arg("--format=csv,noheader,nounits")
            .arg(format!("--loop-ms={}", INTERVAL.as_millis()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting nvidia-smi")?;
        let output = child.stdout.take().context("no way to read from nvidia-smi")?;
        let samples = Arc::new(Mutex::new(Vec::new()));
        let kept = samples.clone();
        // Ends with the process's output.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(std::io::Result::ok) {
                if let Some(state) = parse(&line) {
                    kept.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), state));
                }
            }
        });
        Ok(Self { child, samples })
    }

    /// The mean of the samples since `start`; `None` if there are none, as of a driver that does not tell.
    pub(super) fn since(&self, start: Instant) -> Option<State> {
        mean(&self.samples.lock().unwrap_or_else(PoisonError::into_inner), start, start.elapsed())
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // Whether it could be ended does not matter any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A line of the fields' values.
fn parse(line: &str) -> Option<State> {
    let mut fields = line.split(',').map(str::trim);
    let clock = fields.next()?.parse().ok()?;
    let power = fields.next()?.parse().ok()?;
    let capped = match fields.next()? {
        "Active" => 1.0,
        "Not Active" => 0.0,
        _ => return None,
    };
    Some(State { clock, power, capped })
}

/// The mean of the samples since `start`, which is `elapsed` ago. More of them than can have been taken were held up on their way, so
/// that nobody knows when they were: `None`.
fn mean(samples: &[(Instant, State)], start: Instant, elapsed: Duration) -> Option<State> {
    let states: Vec<State> =
        samples.iter().rev().take_while(|(at, _)| *at >= start).map(|&(_, state)| state).collect();
    let most = 2.0 + 1.5 * elapsed.as_secs_f64() / INTERVAL.as_secs_f64();
    let mean = |value: fn(&State) -> f64| states.iter().map(value).sum::<f64>() / states.len() as f64;
    let of_all = || State {
        clock: mean(|state| state.clock),
        power: mean(|state| state.power),
        capped: mean(|state| state.capped),
    };
    (!states.is_empty() && states.len() as f64 <= most).then(of_all)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{State, mean, parse};

    #[test]
    fn a_line_is_read_or_is_none() {
        let state = State { clock: 1755.0, power: 698.52, capped: 1.0 };
        assert_eq!(parse("1755, 698.52, Active"), Some(state));
        assert_eq!(parse("345, 70.1, Not Active").map(|state| state.capped), Some(0.0));
        for line in [
            "",
            "345",
            "[N/A], 70.1, Active",
            "345, 70.1, [N/A]",
            "Field \"x\" is not a valid field to query.",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn only_samples_since_then_count() {
        let start = Instant::now();
        let sample = |seconds: u64, clock, capped| {
            (start + Duration::from_secs(seconds), State { clock, power: 100.0, capped })
        };
        let samples = [sample(0, 300.0, 0.0), sample(2, 1000.0, 1.0), sample(3, 2000.0, 0.0)];
        let since =
            |seconds| mean(&samples, start + Duration::from_secs(seconds), Duration::from_secs(4 - seconds));
        assert_eq!(since(1), Some(State { clock: 1500.0, power: 100.0, capped: 0.5 }));
        assert_eq!((since(3).map(|state| state.clock), since(4)), (Some(2000.0), None));
        // Three at once are two that came late.
        let late = [sample(0, 300.0, 0.0); 3];
        assert_eq!(mean(&late, start, Duration::from_millis(10)), None);
        assert!(mean(&late, start, Duration::from_millis(200)).is_some());
    }
}
