//! When nothing can go on: who waits where, and for what.

use super::code::{Core, Fault};
use super::warp::{Group, State, Warp};
use crate::check::FindingKind;

/// A group of lanes that waits.
struct Place {
    rank: u32,
    warp: u32,
    group: Group,
    text: String,
}

impl Core<'_> {
    /// All groups of the warp wait for lanes that will not come.
    pub(super) fn stuck(&mut self) {
        let Some(first) = self.warp.others.first().cloned() else { return };
        let State::Converging(wanted) = first.state else { return };
        let related = self
            .warp
            .others
            .iter()
            .skip(1)
            .map(|g| (format!("lanes {:#010x} wait here", g.lanes), g.pc))
            .collect();
        let message = format!(
            "lanes {:#010x} wait for lanes {:#010x}, which do not come here",
            first.lanes,
            wanted & !first.lanes
        );
        let hint = "every lane that the mask names must execute the same instruction; instructions with `.aligned` \
                    need the whole warp";
        self.fault = Some(Box::new(Fault {
            kind: FindingKind::Divergence,
            message,
            lanes: first.lanes,
            related,
            hint: Some(hint.to_owned()),
            at: Some(first.pc),
        }));
    }

    /// No warp of the cluster can go on.
    pub(super) fn deadlock(&mut self) {
        let mut places = Vec::new();
        let mut gone = Vec::new();
        let alone = self.launch.ranks() == 1;
        let name = |rank: u32, warp: u32| {
            if alone { format!("warp {warp}") } else { format!("warp {warp} of the cluster's block {rank}") }
        };
        for rank in 0..self.launch.ranks() {
            self.select(rank);
            for warp in &self.block.parked {
                if warp.live == 0 {
                    gone.push(name(rank, warp.number));
                }
                for group in &warp.others {
                    let text = self.waits(warp, group);
                    places.push(Place { rank, warp: warp.number, group: group.clone(), text });
                }
                if warp.active != 0 {
                    let group = Group::at(warp.pc, warp.active);
                    let text = self.polls(warp);
                    places.push(Place { rank, warp: warp.number, group, text });
                }
            }
        }
        let Some(first) = places.first() else { return };
        let gone = if gone.is_empty() { String::new() } else { format!("; exited: {}", gone.join(", ")) };
        let message = format!("nothing can go on: {} {}{gone}", name(first.rank, first.warp), first.text);
        let (rank, warp, lanes, pc) = (first.rank, first.warp, first.group.lanes, first.group.pc);
        let related = places
            .iter()
            .skip(1)
            .map(|p| (format!("{} {}", name(p.rank, p.warp), p.text), p.group.pc))
            .collect();
        self.select(rank);
        self.warp.number = warp;
        let hint = "every warp must reach the same barriers the same number of times, and every wait needs its arrivals \
                    and bytes";
        self.fault = Some(Box::new(Fault {
            kind: FindingKind::BarrierDeadlock,
            message,
            lanes,
            related,
            hint: Some(hint.to_owned()),
            at: Some(pc),
        }));
    }

    /// What a warp polls, in words.
    fn polls(&self, warp: &Warp) -> String {
        let Some((rank, offset)) = warp.polled else { return "polls what nobody will change".to_owned() };
        let (place, state) = self.mbarrier_state(rank, offset);
        format!("polls the mbarrier at {place}: {state}")
    }

    /// Where an mbarrier is, and what it lacks.
    fn mbarrier_state(&self, rank: u32, offset: u32) -> (String, String) {
        let state = match self.look(rank).and_then(|block| block.mbarriers.get(offset)) {
            Some(barrier) => barrier.describe(),
            None => "which is not initialised any more".to_owned(),
        };
        (self.launch.describe_shared(offset), state)
    }

    /// What a group of the block's warps waits for, in words.
    fn waits(&self, warp: &Warp, group: &Group) -> String {
        match group.state {
            State::Ready => self.polls(warp),
            State::Converging(wanted) => {
                format!("waits for lanes {:#010x}, which do not come", wanted & warp.live & !group.lanes)
            }
            State::Barrier(id) => {
                let barrier = &self.block.barriers[usize::from(id)];
                let expected = barrier.count.map_or("all".to_owned(), |count| count.to_string());
                format!(
                    "waits at barrier {id}, which has {} of {expected} threads",
                    barrier.arrived(self.warps())
                )
            }
            State::Mbarrier { rank, offset, parity } => {
                let (place, state) = self.mbarrier_state(rank, offset);
                format!("waits at the mbarrier at {place} for the end of a phase of parity {parity}: {state}")
            }
            State::Warpgroup => super::wgmma::Products::WAITS.to_owned(),
            State::Cluster => "waits at the barrier of the cluster".to_owned(),
            State::Registers => {
                format!("waits for registers; the block has {} to spare", self.block.spare_registers)
            }
        }
    }
}
