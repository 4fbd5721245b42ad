//! The checks that run beside the program, and what they report.

mod finding;
pub(crate) mod global;
pub(crate) mod global_lanes;
pub(crate) mod granules;
pub(crate) mod lanes;
pub(crate) mod ledger;
pub(crate) mod order;
mod page;
pub(crate) mod shadow;

pub(crate) use finding::Lanes;
pub use finding::{Finding, FindingKind, Related, SourceLine};
