//! Which cases take the time: what to look at when the suite becomes slow.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};

/// The cases that have run, and how long each took.
static TIMES: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

/// Cases that are printed: those that took longest.
const PRINTED: usize = 24;
/// A shorter case is not worth a line.
const LEAST: Duration = Duration::from_secs(2);

/// A case whose time is taken.
pub(crate) fn trial(
    name: impl Into<String>,
    case: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let name = name.into();
    let of = name.clone();
    Trial::test(name, move || {
        let start = Instant::now();
        let result = case();
        TIMES.lock().unwrap_or_else(PoisonError::into_inner).push((start.elapsed(), of));
        result
    })
}

/// Prints the cases that took longest.
pub(crate) fn print_slowest() {
    let mut times = TIMES.lock().unwrap_or_else(PoisonError::into_inner);
    times.sort_unstable_by(|one, other| other.cmp(one));
    let all: Duration = times.iter().map(|(time, _)| *time).sum();
    let slow: Vec<_> = times.iter().take(PRINTED).filter(|(time, _)| *time >= LEAST).collect();
    if slow.is_empty() {
        return;
    }
    println!("The slowest of {} cases, which took {:.0} s one by one:", times.len(), all.as_secs_f64());
    for (time, name) in slow {
        println!("  {:>6.1} s {name}", time.as_secs_f64());
    }
}
