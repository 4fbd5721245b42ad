//! A value that nothing wrote, where what is missing may be an order: another warp writes it, only later.
//!
//! The warp that met it stays where it is, and all others go on for a while. A race that they find is reported instead: a barrier or a
//! wait that was left out is then called that, not a forgotten initialisation.

use super::block::Turn;
use super::code::{Core, Fault};
use crate::check::FindingKind;

/// Rounds, and warp-instructions of the cluster, that the others get.
const MOST_ROUNDS: u32 = 64;
const MOST_INSTRUCTIONS: u64 = 1 << 20;

/// A fault that is reported unless a race turns up.
pub(crate) struct Held {
    fault: Box<Fault>,
    rank: u32,
    warp: u32,
    rounds: u32,
    /// What the cluster's blocks may have run.
    limit: u64,
}

impl Core<'_> {
    /// The running warp has failed. Whether the others go on, as it has met what nothing wrote.
    #[cold]
    pub(super) fn hold(&mut self) -> bool {
        let Some(mut fault) = self.fault.take_if(|fault| fault.kind == FindingKind::Uninitialised) else {
            return false;
        };
        fault.at.get_or_insert(self.warp.pc);
        self.warp.halted = true;
        // Of several that met such values the first is reported, if the others find no race.
        if self.held.is_some() {
            return true;
        }
        let (rank, warp) = (self.block.rank, self.warp.number);
        let limit = self.cluster_instructions() + MOST_INSTRUCTIONS;
        self.held = Some(Held { fault, rank, warp, rounds: 0, limit });
        true
    }

    /// A turn of the cluster is over, and a fault is held: whether it is to be reported now, or another one instead.
    #[cold]
    pub(super) fn settle_held(&mut self, turn: Turn) -> Turn {
        let race = |kind| {
            matches!(kind, FindingKind::SharedRace | FindingKind::GlobalRace | FindingKind::AsynchronousCopy)
        };
        if turn == Turn::Failed && self.fault.as_ref().is_some_and(|fault| race(fault.kind)) {
            return turn;
        }
        let ran = self.cluster_instructions();
        let Some(mut held) = self.held.take() else { return turn };
        if turn == Turn::Paused && held.rounds < MOST_ROUNDS && ran < held.limit {
            held.rounds += 1;
            self.held = Some(held);
            return turn;
        }
        self.select(held.rank);
        self.warp.number = held.warp;
        self.fault = Some(held.fault);
        Turn::Failed
    }
}
