//! What a cache has done so far, as numbers and as a table.

use std::fmt;

/// What has happened in a cache since it was made.
///
/// Every use of a row counts as a request, so that a row that a step reads twice counts twice: a hit if the row had a slot when the step was
/// planned, else a miss. Hits and misses are the requests. Printed, it is a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStatistics {
    /// Steps: chunks of tokens.
    pub steps: u64,
    /// Rows that steps have read, each as often as a step reads it.
    pub requests: u64,
    /// Requests for rows that had a slot.
    pub hits: u64,
    /// Requests for rows that had none.
    pub misses: u64,
    /// Rows that steps have read, each once a step.
    pub unique: u64,
    /// Rows that lost their slot to another.
    pub evictions: u64,
    /// Bytes copied to slots.
    pub bytes_in: u64,
    /// Steps whose copies were not done when everything else they need was.
    pub stalls: u64,
    /// Rows, each once a step, that were read from host memory because all slots were in use.
    pub pin_failures: u64,
    /// Rows that have a slot now.
    pub residents: u64,
}

impl CacheStatistics {
    /// Hits over requests, from 0 to 1; 0 without requests.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.hits as f64 / self.requests as f64 }
    }
}

impl fmt::Display for CacheStatistics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("steps", self.steps),
            ("requests", self.requests),
            ("hits", self.hits),
            ("misses", self.misses),
            ("unique", self.unique),
            ("evictions", self.evictions),
            ("bytes in", self.bytes_in),
            ("stalls", self.stalls),
            ("pin failures", self.pin_failures),
            ("residents", self.residents),
        ];
        for (name, number) in rows {
            writeln!(formatter, "{name:<12} {number:>20}")?;
        }
        write!(formatter, "{:<12} {:>18.2} %", "hit rate", 100.0 * self.hit_rate())
    }
}
