//! A check on machine code: no arrival at an mbarrier, and no start of a copy, overtakes a load from shared memory.
//!
//! A pipeline's consumer reads a stage, then arrives at an mbarrier; the producer waits for that arrival and has the copy engine
//! fill the stage again. A load that has been issued but not waited for may read what the copy writes. PTX cannot show this: the
//! order of a load and an arrival is ptxas's choice, unless a proxy fence stands between them. So the check reads what ptxas made.
//!
//! [`check`] takes the output of `nvdisasm -c -hex` ([`Nvdisasm::disassemble`](crate::Nvdisasm::disassemble)). It follows every
//! path through each entry with the loads that are in flight ([`hazards`]) and names every [`Release`] that is issued with one.

pub mod flow;
pub mod hazards;
pub mod listing;

#[cfg(test)]
mod testing;

use std::fmt;

use listing::Instruction;

/// Output of nvdisasm that cannot be checked.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListingError {
    /// A line is not of the expected shape.
    #[error("line {number} of nvdisasm's output: expected {expected}, found `{text}`")]
    Line {
        /// Counted from 1.
        number: usize,
        /// The line.
        text: String,
        /// What should stand there.
        expected: &'static str,
    },
    /// Instructions are missing.
    #[error("`{section}`: expected an instruction at {expected:#x}, found one at {found:#x}")]
    Gap {
        /// The entry.
        section: String,
        /// The address after the instruction before.
        expected: u32,
        /// The address that came.
        found: u32,
    },
    /// There is no code.
    #[error("expected machine code{}, found none", .section.as_ref().map_or(String::new(), |name| format!(" in `{name}`")))]
    Empty {
        /// The entry; `None` when there is no entry.
        section: Option<String>,
    },
    /// A jump to a label that its section does not have.
    #[error("{place}: expected the label `{label}` before an instruction of its section, found none")]
    Label {
        /// The jump.
        place: Place,
        /// The label.
        label: String,
    },
    /// A jump whose targets are not known.
    #[error("{place}: expected a jump of a known kind with its targets")]
    Jump {
        /// The jump.
        place: Place,
    },
    /// Code that does not end.
    #[error("{place}: expected an instruction after it, found the end of the code")]
    End {
        /// The last instruction.
        place: Place,
    },
}

impl fmt::Debug for ListingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An instruction that lets shared memory be written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Release {
    /// An arrival at an mbarrier of the own block.
    Arrival,
    /// An arrival at an mbarrier of any block of the cluster.
    ClusterArrival,
    /// An arrival that also says how many bytes will come (`mbarrier.arrive.expect_tx`): a producer's.
    ExpectingArrival,
    /// An arrival that is made when earlier `cp.async` copies have ended.
    CopyArrival,
    /// The start of a bulk copy into shared memory.
    BulkCopy,
    /// The start of a tensor copy into shared memory.
    TensorCopy,
}

impl Release {
    /// What an instruction releases; `None` for other instructions.
    ///
    /// ptxas 13.0.88 makes `SYNCS.ARRIVE.TRANS64.A1T0` of `mbarrier.arrive`, `ART0` with a count in a register, no suffix of
    /// `arrive.expect_tx`, `.RED` of arrivals in `shared::cluster`. `A0TR` and `A0TX` are `expect_tx` and `complete_tx` alone, no arrivals.
    pub fn of(instruction: &Instruction) -> Option<Self> {
        let arrives = instruction.has("ARRIVE");
        let first = instruction.opcode().split('.').nth(1);
        match instruction.base() {
            "SYNCS" if arrives && (instruction.has("A0TR") || instruction.has("A0TX")) => None,
            "SYNCS" if arrives && instruction.has("RED") => Some(Self::ClusterArrival),
            "SYNCS" if arrives && (instruction.has("A1T0") || instruction.has("ART0")) => Some(Self::Arrival),
            "SYNCS" if arrives => Some(Self::ExpectingArrival),
            "ARRIVES" => Some(Self::CopyArrival),
            "UBLKCP" if first == Some("S") => Some(Self::BulkCopy),
            "UTMALDG" => Some(Self::TensorCopy),
            _ => None,
        }
    }
}

impl Release {
    /// Whether it starts a copy; otherwise it is an arrival.
    pub const fn is_copy(self) -> bool {
        matches!(self, Self::BulkCopy | Self::TensorCopy)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Arrival => "arrival",
            Self::ClusterArrival => "arrival in the cluster",
            Self::ExpectingArrival => "arrival that expects bytes",
            Self::CopyArrival => "arrival after cp.async",
            Self::BulkCopy => "start of a bulk copy",
            Self::TensorCopy => "start of a tensor copy",
        })
    }
}

/// An instruction and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The entry.
    pub entry: String,
    /// Byte offset in the entry's section.
    pub address: u32,
    /// The instruction.
    pub text: String,
}

impl Place {
    fn of(entry: &str, instruction: &Instruction) -> Self {
        Self { entry: entry.into(), address: instruction.address, text: instruction.text.clone() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:#06x}, `{}`", self.entry, self.address, self.text)
    }
}

/// A release that may be issued while loads from shared memory are in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is released.
    pub release: Release,
    /// The releasing instruction.
    pub at: Place,
    /// The loads of the warp itself that may be in flight.
    pub loads: Vec<Place>,
    /// The loads that other warps may have in flight since they came to a barrier.
    pub loads_of_other_warps: Vec<Place>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}) is issued with loads from shared memory in flight:", self.at, self.release)?;
        let loads = self.loads.iter().map(|load| (load, ""));
        let others = self.loads_of_other_warps.iter().map(|load| (load, ", of other warps"));
        for (load, whose) in loads.chain(others) {
            write!(f, "\n    {:#06x} `{}`{whose}", load.address, load.text)?;
        }
        Ok(())
    }
}

/// What the check says of one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SectionReport {
    /// The entry.
    pub entry: String,
    /// Loads that read shared memory, or may.
    pub loads: usize,
    /// Every instruction that lets shared memory be written again.
    pub releases: Vec<Release>,
    /// The releases that overtake loads.
    pub findings: Vec<Finding>,
}

/// Checks every entry of a listing, the output of `nvdisasm -c -hex`.
///
/// # Errors
///
/// [`ListingError`]: text of another shape, jumps that cannot be followed. A listing that is only half understood is never clean.
pub fn check(listing: &str) -> Result<Vec<SectionReport>, ListingError> {
    listing::parse(listing)?.iter().map(hazards::check).collect()
}
