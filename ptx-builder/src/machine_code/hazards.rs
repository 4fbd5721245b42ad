//! Which loads from shared memory may be in flight where: a forward dataflow over the flow graph, to its fixed point.
//!
//! # What ends a load
//!
//! - A wait for the scoreboard that the load releases when its results have been written. A wait is a bit in the wait mask of any
//!   instruction, or `DEPBAR.LE SBn, 0x0`. A mask holds before the instruction is issued, whatever its predicate.
//! - `DEPBAR.LE SBn, k` with k > 0 ends nothing here: it leaves k operations open, and which those are is not followed. The
//!   scoreboards in its braces, `{3,2}`, are waited for down to zero.
//! - A load without a scoreboard is ended with the next load of its family (`LDS` or `LDSM`) that has one. Loads of a family
//!   return in order, and ptxas relies on it: the users of such a load's result wait for the later load's scoreboard only.
//! - `MEMBAR` that has been waited for itself. ptxas makes `fence.proxy.async` of `MEMBAR.ALL.CTA`, which releases a scoreboard,
//!   and `FENCE.VIEW.ASYNC`, which waits for that one and for none of the loads before. So the barrier must complete them.
//!   A `MEMBAR` with a predicate or without a scoreboard ends nothing here.
//!
//! Everything else ends nothing: `WARPSYNC`, `BAR`, `FENCE.VIEW.ASYNC` alone, and the read barriers of the loads, which say that an
//! address has been read.
//!
//! # Other warps
//!
//! A warp's wait says nothing of another warp's loads. So a load in flight at a barrier of the block or the cluster is in flight
//! in *another* warp behind that barrier, and stays so until the next barrier of that name. A thread that waits for its own loads
//! behind `BAR.SYNC`, then starts a copy, is found.
//!
//! # What is assumed, and what is not seen
//!
//! The scoreboards of a warp are taken for those of all its lanes: what one lane has waited for, the others' loads have ended too.
//! Lanes that meet at different copies of one `bar.warp.sync` are not joined. Addresses are not compared: each load counts as one of
//! the stage. `wgmma` and TMA stores read shared memory too, and have waits of their own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::flow::Flow;
use super::listing::{Instruction, SCOREBOARDS, Section};
use super::{Finding, ListingError, Place, Release, SectionReport};

/// A load in flight and the scoreboards of which a wait for any ends it, one bit each. A load that is in flight with different
/// scoreboards on two paths is there twice.
type InFlight = BTreeSet<(usize, u8)>;

/// The name of a barrier among warps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Barrier {
    /// One of the block's, by its number.
    Block(String),
    /// One of the block's whose number is in a register.
    AnyOfBlock,
    /// The cluster's.
    Cluster,
}

/// What may be in flight before an instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    own: InFlight,
    others: BTreeMap<Barrier, BTreeSet<usize>>,
}

impl State {
    /// Adds what may be in flight on another path; whether that is more.
    fn join(&mut self, other: &Self) -> bool {
        let before = self.size();
        self.own.extend(&other.own);
        for (barrier, loads) in &other.others {
            self.others.entry(barrier.clone()).or_default().extend(loads);
        }
        self.size() != before
    }

    fn size(&self) -> usize {
        self.own.len() + self.others.values().map(BTreeSet::len).sum::<usize>()
    }
}

/// What an instruction is to this check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Reads shared memory, or may; loads of one family return in order.
    Load(Option<Family>),
    Fence,
    Release(Release),
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Plain,
    Matrix,
}

fn role(instruction: &Instruction) -> Role {
    if instruction.is_never_executed() {
        return Role::Other;
    }
    let destination = instruction.operands().next();
    match instruction.base() {
        "LDS" if destination != Some("RZ") => Role::Load(Some(Family::Plain)),
        "LDSM" => Role::Load(Some(Family::Matrix)),
        // A generic address may be one of shared memory, of this block or of another one of the cluster.
        "LD" => Role::Load(None),
        "MEMBAR" => Role::Fence,
        _ => Release::of(instruction).map_or(Role::Other, Role::Release),
    }
}

/// Whether an instruction brings warps together, and at which barrier.
fn barrier(instruction: &Instruction) -> Option<Barrier> {
    match instruction.base() {
        "UCGABAR_ARV" | "UCGABAR_WAIT" => Some(Barrier::Cluster),
        "BAR" => Some(match instruction.operands().next() {
            Some(number) if number.starts_with("0x") => Barrier::Block(number.into()),
            _ => Barrier::AnyOfBlock,
        }),
        _ => None,
    }
}

/// The scoreboards that are zero once the instruction has been issued, because it waited for them.
fn waited(instruction: &Instruction) -> u8 {
    let mut mask = instruction.control.wait;
    if instruction.base() != "DEPBAR" || instruction.is_never_executed() {
        return mask;
    }
    // A counted wait with a predicate may be skipped.
    if instruction.predicate().is_some_and(|predicate| predicate != "@PT") {
        return mask;
    }
    let (counted, listed) = instruction.text.split_once('{').unwrap_or((&instruction.text, ""));
    let number = |text: &str| text.trim().parse::<u8>().ok().filter(|number| *number < SCOREBOARDS);
    if let Some((_, operands)) = counted.split_once(" SB")
        && let Some((scoreboard, count)) = operands.split_once(',')
        && count.trim().trim_end_matches(',') == "0x0"
        && let Some(scoreboard) = number(scoreboard)
    {
        mask |= 1 << scoreboard;
    }
    listed.trim_end_matches('}').split(',').filter_map(number).for_each(|scoreboard| mask |= 1 << scoreboard);
    mask
}

/// Checks one section.
///
/// # Errors
///
/// As [`Flow::of`].
pub(super) fn check(section: &Section) -> Result<SectionReport, ListingError> {
    let flow = Flow::of(section)?;
    let code = &section.instructions;
    let states = Analysis::run(code, &flow);
    let mut report = SectionReport { entry: section.name.clone(), ..SectionReport::default() };
    for (instruction, state) in code.iter().zip(&states) {
        let role = role(instruction);
        report.loads += usize::from(matches!(role, Role::Load(_)));
        let Role::Release(release) = role else { continue };
        report.releases.push(release);
        let Some(state) = state else { continue };
        let ended = waited(instruction);
        let own = state.own.iter().filter(|(_, ends)| ends & ended == 0).map(|(load, _)| *load);
        let own: BTreeSet<usize> = own.collect();
        let others: BTreeSet<usize> =
            state.others.values().flatten().copied().filter(|load| !own.contains(load)).collect();
        if own.is_empty() && others.is_empty() {
            continue;
        }
        let places = |loads: &BTreeSet<usize>| -> Vec<Place> {
            loads.iter().map(|load| Place::of(&section.name, &code[*load])).collect()
        };
        report.findings.push(Finding {
            release,
            at: Place::of(&section.name, instruction),
            loads: places(&own),
            loads_of_other_warps: places(&others),
        });
    }
    Ok(report)
}

/// The dataflow in progress.
struct Analysis<'a> {
    code: &'a [Instruction],
    /// Before each instruction; `None` where no path has led yet.
    before: Vec<Option<State>>,
    /// The loads that a warp may have in flight when it comes to a barrier.
    at_barriers: BTreeMap<Barrier, BTreeSet<usize>>,
}

impl<'a> Analysis<'a> {
    fn run(code: &'a [Instruction], flow: &Flow) -> Vec<Option<State>> {
        let mut this = Self { code, before: vec![None; code.len()], at_barriers: BTreeMap::new() };
        let mut open = VecDeque::from([0]);
        this.before[0] = Some(State::default());
        while let Some(index) = open.pop_front() {
            let Some(mut state) = this.before[index].clone() else { continue };
            if this.pass(index, &mut state) {
                // What one warp brings to a barrier is behind every other one of its name.
                let barriers = (0..code.len()).filter(|other| barrier(&code[*other]).is_some());
                open.extend(barriers.filter(|other| this.before[*other].is_some()));
            }
            for next in &flow.successors[index] {
                let grown = match &mut this.before[*next] {
                    Some(before) => before.join(&state),
                    none => {
                        *none = Some(state.clone());
                        true
                    }
                };
                if grown {
                    open.push_back(*next);
                }
            }
        }
        this.before
    }

    /// Leads a state through an instruction; whether more is in flight at a barrier than was known.
    fn pass(&mut self, index: usize, state: &mut State) -> bool {
        let instruction = &self.code[index];
        let ended = waited(instruction);
        state.own.retain(|(_, ends)| ends & ended == 0);
        let release = instruction.control.write.map_or(0, |scoreboard| 1 << scoreboard);
        match role(instruction) {
            Role::Load(family) => {
                if family.is_some() && release != 0 && instruction.predicate().is_none() {
                    self.extend(state, release, |load| {
                        load.control.write.is_none() && role(load) == Role::Load(family)
                    });
                }
                state.own.insert((index, release));
            }
            Role::Fence if instruction.predicate().is_none() => {
                let read = instruction.control.read.map_or(0, |scoreboard| 1 << scoreboard);
                // Both are released when the barrier has completed; ptxas uses either.
                self.extend(state, release | read, |_| true);
            }
            _ => {}
        }
        let Some(barrier) = barrier(instruction) else { return false };
        let known = self.at_barriers.entry(barrier.clone()).or_default();
        let before = known.len();
        known.extend(state.own.iter().map(|(load, _)| *load));
        let grown = known.len() != before;
        state.others.insert(barrier.clone(), self.joined(&barrier));
        grown
    }

    /// What may be in flight in the warps that come to this barrier.
    fn joined(&self, barrier: &Barrier) -> BTreeSet<usize> {
        let same = |other: &Barrier| match (other, barrier) {
            (Barrier::AnyOfBlock, Barrier::Block(_)) | (Barrier::Block(_), Barrier::AnyOfBlock) => true,
            _ => other == barrier,
        };
        self.at_barriers
            .iter()
            .filter(|(other, _)| same(other))
            .flat_map(|(_, loads)| loads)
            .copied()
            .collect()
    }

    /// Lets a wait for `scoreboards` also end those loads in flight that `which` picks.
    fn extend(&self, state: &mut State, scoreboards: u8, which: impl Fn(&Instruction) -> bool) {
        state.own = std::mem::take(&mut state.own)
            .into_iter()
            .map(|(load, ends)| (load, if which(&self.code[load]) { ends | scoreboards } else { ends }))
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::section;
    use super::*;

    /// Addresses of the releases that are found, each with its own warp's loads and other warps'.
    fn found(lines: &str) -> Vec<(u32, Vec<u32>, Vec<u32>)> {
        let report = check(&section(lines)).unwrap();
        let addresses = |places: &[Place]| places.iter().map(|place| place.address).collect();
        let findings = report.findings.iter();
        findings
            .map(|it| (it.at.address, addresses(&it.loads), addresses(&it.loads_of_other_warps)))
            .collect()
    }

    const ARRIVAL: &str = "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR5], RZ";

    #[test]
    fn a_load_is_in_flight_until_its_scoreboard_is_waited_for() {
        let with = |middle: &str, wait: &str| {
            found(&format!("LDS R0, [R1] | w1\n{middle}\n{ARRIVAL} | {wait}\nNOP | wait 1\nEXIT"))
        };
        assert_eq!(with("NOP", ""), [(0x20, vec![0], vec![])]);
        assert_eq!(with("NOP", "wait 1"), []);
        assert_eq!(with("FADD R0, R0, R0 | wait 1", ""), []);
        assert_eq!(with("@P0 FADD R0, R0, R0 | wait 1", ""), [], "a mask holds whatever the predicate is");
        assert_eq!(with("FADD R2, R2, R2 | wait 0,2,3,4,5", ""), [(0x20, vec![0], vec![])]);
    }

    #[test]
    fn that_an_address_has_been_read_does_not_end_a_load() {
        let lines = format!("LDS R0, [R1] | w1 r2\nMOV R1, R2 | wait 2\n{ARRIVAL}\nNOP | wait 1\nEXIT");
        assert_eq!(found(&lines), [(0x20, vec![0], vec![])]);
    }

    #[test]
    fn loads_that_share_a_scoreboard_are_in_flight_together_and_end_together() {
        let loads = "LDSM.16.M88.4 R0, [R9] | w1\nLDSM.16.M88.4 R4, [R9] | w1";
        assert_eq!(found(&format!("{loads}\n{ARRIVAL}\nEXIT")), [(0x20, vec![0, 0x10], vec![])]);
        assert_eq!(found(&format!("{loads}\n{ARRIVAL} | wait 1\nEXIT")), []);
        let reused = format!("LDS R0, [R9] | w1\nNOP | wait 1\nLDS R4, [R9] | w1\n{ARRIVAL}\nEXIT");
        assert_eq!(found(&reused), [(0x30, vec![0x20], vec![])]);
    }

    #[test]
    fn a_load_without_a_scoreboard_ends_with_the_next_one_of_its_family() {
        let with = |second: &str| found(&format!("LDS R0, [R9]\n{second}\nNOP | wait 1,2\n{ARRIVAL}\nEXIT"));
        assert_eq!(with("LDS R1, [R9+4] | w1"), []);
        let first = [(0x30, vec![0], vec![])];
        assert_eq!(with("LDSM.16.M88.4 R4, [R9] | w1"), first, "another family may overtake it");
        assert_eq!(with("@P0 LDS R1, [R9+4] | w1"), first, "it may not be executed");
        assert_eq!(with("LDS R1, [R9+4] | r1"), [(0x30, vec![0, 0x10], vec![])], "no results are reported");
        let before = format!("LDS R1, [R9+4] | w1\nLDS R0, [R9]\nNOP | wait 1\n{ARRIVAL}\nEXIT");
        assert_eq!(
            found(&before),
            [(0x30, vec![0x10], vec![])],
            "an earlier load says nothing of a later one"
        );
    }

    #[test]
    fn a_counted_wait_ends_loads_only_when_it_counts_down_to_zero() {
        let with = |wait: &str| found(&format!("LDS R0, [R1] | w1\n{wait}\n{ARRIVAL}\nEXIT"));
        let load = [(0x20, vec![0], vec![])];
        assert_eq!(with("DEPBAR.LE SB1, 0x0"), []);
        assert_eq!(with("DEPBAR.LE SB0, 0x1, {2,1}"), []);
        assert_eq!(with("DEPBAR.LE SB1, 0x1"), load);
        assert_eq!(with("DEPBAR.LE SB0, 0x0"), load);
        assert_eq!(with("@P0 DEPBAR.LE SB1, 0x0"), load);
        assert_eq!(with("WARPGROUP.DEPBAR.LE gsb0, 0x0"), load);
    }

    #[test]
    fn a_memory_barrier_ends_the_loads_before_it_once_it_is_waited_for() {
        let with = |fence: &str, rest: &str| {
            found(&format!("LDS R0, [R1] | w1\nLD.E R2, [R4] | w3\n{fence}\n{rest}\n{ARRIVAL}\nEXIT"))
        };
        let loads = [(0x40, vec![0, 0x10], vec![])];
        assert_eq!(with("MEMBAR.ALL.CTA | r2", "FENCE.VIEW.ASYNC.S | w2 wait 2"), []);
        assert_eq!(with("MEMBAR.ALL.CTA | r2", "FENCE.VIEW.ASYNC.S | w2"), loads);
        assert_eq!(with("@P0 MEMBAR.ALL.CTA | r2", "FENCE.VIEW.ASYNC.S | w2 wait 2"), loads);
        assert_eq!(with("MEMBAR.ALL.GPU", "NOP"), loads);
        assert_eq!(with("FENCE.VIEW.ASYNC.S | w2", "NOP | wait 2"), loads);
        let after = format!("MEMBAR.ALL.CTA | r2\nLDS R0, [R1] | w1\nNOP | wait 2\n{ARRIVAL}\nEXIT");
        assert_eq!(found(&after), [(0x30, vec![0x10], vec![])]);
    }

    #[test]
    fn every_path_must_wait() {
        let with = |on_the_branch: &str, behind: &str| {
            found(&format!(
                "LDS R0, [R1] | w1
                @P0 BRA `(.L_0)
                {on_the_branch}
                .L_0:
                {behind}
                {ARRIVAL}
                EXIT"
            ))
        };
        assert_eq!(with("FADD R0, R0, R0 | wait 1", "NOP"), [(0x40, vec![0], vec![])]);
        assert_eq!(with("NOP", "FADD R0, R0, R0 | wait 1"), []);
    }

    #[test]
    fn different_scoreboards_on_two_paths_must_both_be_waited_for() {
        let with = |wait: &str| {
            found(&format!(
                "LDS R0, [R1]
                @P0 BRA `(.L_0)
                LDS R2, [R1] | w1
                BRA `(.L_1)
                .L_0:
                LDS R3, [R1] | w2
                .L_1:
                NOP | wait {wait}
                {ARRIVAL}
                EXIT"
            ))
        };
        assert_eq!(with("1,2"), []);
        assert_eq!(with("1"), [(0x60, vec![0, 0x40], vec![])]);
    }

    #[test]
    fn a_load_of_the_round_before_is_found() {
        let with = |wait: &str| {
            found(&format!(
                ".L_0:
                {ARRIVAL}
                LDS R0, [R1] | w1
                NOP {wait}
                @P0 BRA `(.L_0)
                EXIT"
            ))
        };
        assert_eq!(with(""), [(0, vec![0x10], vec![])]);
        assert_eq!(with("| wait 1"), []);
    }

    #[test]
    fn loads_of_a_called_function_are_followed_to_its_caller() {
        let lines =
            format!("CALL.REL.NOINC `($f)\n{ARRIVAL}\nEXIT\n$f:\nLDS R0, [R1] | w1\nRET.REL.NODEC R4 `(k)");
        assert_eq!(found(&lines), [(0x10, vec![0x30], vec![])]);
    }

    #[test]
    fn a_wait_behind_a_barrier_says_nothing_of_other_warps() {
        let with = |before: &str, barrier: &str| {
            found(&format!(
                "LDS R0, [R1] | w1
                {before}
                {barrier}
                FADD R0, R0, R0 | wait 1
                UTMALDG.2D [UR8], [UR6]
                EXIT"
            ))
        };
        let theirs = [(0x40, vec![], vec![0])];
        assert_eq!(with("NOP", "BAR.SYNC.DEFER_BLOCKING 0x0"), theirs);
        assert_eq!(with("NOP", "UCGABAR_WAIT"), theirs);
        assert_eq!(with("NOP | wait 1", "BAR.SYNC.DEFER_BLOCKING 0x0"), []);
        assert_eq!(with("NOP", "WARPSYNC.ALL"), [], "a warp's scoreboards are those of all its lanes");
    }

    #[test]
    fn a_barrier_joins_the_warps_that_come_to_it_elsewhere() {
        let with = |arrives: &str, waits: &str| {
            found(&format!(
                "@P0 BRA `(.L_0)
                LDS R0, [R1] | w1
                {arrives}
                EXIT | wait 1
                .L_0:
                {waits}
                UBLKCP.S.G [UR8], [UR6], UR5
                EXIT"
            ))
        };
        let theirs = [(0x50, vec![], vec![0x10])];
        assert_eq!(with("BAR.ARV 0x1, 0x100", "BAR.SYNC.DEFER_BLOCKING 0x1, 0x100"), theirs);
        assert_eq!(with("BAR.ARV R7, 0x100", "BAR.SYNC.DEFER_BLOCKING 0x1, 0x100"), theirs);
        assert_eq!(with("UCGABAR_ARV", "UCGABAR_WAIT"), theirs);
        assert_eq!(with("BAR.ARV 0x2, 0x100", "BAR.SYNC.DEFER_BLOCKING 0x1, 0x100"), []);
    }

    #[test]
    fn each_kind_of_release_is_told_from_what_releases_nothing() {
        let releases = |line: &str| {
            let report = check(&section(&format!("LDS R0, [R1] | w1\n{line}\nEXIT"))).unwrap();
            report.findings.first().map(|finding| finding.release)
        };
        for (line, release) in [
            ("SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4], RZ", Some(Release::Arrival)),
            ("@!P0 SYNCS.ARRIVE.TRANS64.ART0 RZ, [UR4], R3", Some(Release::Arrival)),
            ("SYNCS.ARRIVE.TRANS64.OPTOUT.A1T0 RZ, [UR4], RZ", Some(Release::Arrival)),
            ("SYNCS.ARRIVE.TRANS64.RED.A1T0 RZ, [UR4], RZ", Some(Release::ClusterArrival)),
            ("SYNCS.ARRIVE.TRANS64 RZ, [UR4], R4", Some(Release::ExpectingArrival)),
            ("ARRIVES.LDGSTSBAR.64.ARVCNT [UR4]", Some(Release::CopyArrival)),
            ("UBLKCP.S.G [UR8], [UR6], UR5", Some(Release::BulkCopy)),
            ("UTMALDG.3D.MULTICAST [UR8], [UR18], UR13", Some(Release::TensorCopy)),
            ("SYNCS.ARRIVE.TRANS64.RED.A0TR RZ, [UR4], R7", None),
            ("SYNCS.EXCH.64 URZ, [UR8], UR4", None),
            ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R12+URZ], R13", None),
            ("UBLKCP.G.S [UR8], [UR6], UR5", None),
            ("UTMASTG.3D [UR20], [UR24]", None),
        ] {
            assert_eq!(releases(line), release, "{line}");
        }
    }

    #[test]
    fn instructions_that_read_nothing_from_shared_memory_are_no_loads() {
        let loads = |line: &str| check(&section(&format!("{line}\nEXIT"))).unwrap().loads;
        for line in ["LDS R0, [R1]", "LDSM.16.MT88.4 R0, [R1]", "LD.E R0, [R2.64]", "@P0 LDS.64 R0, [R1]"] {
            assert_eq!(loads(line), 1, "{line}");
        }
        for line in ["@!PT LDS RZ, [RZ]", "LDG.E R0, [R2.64]", "LDC R0, c[0x0][0x28]", "STS [R0], R1"] {
            assert_eq!(loads(line), 0, "{line}");
        }
    }
}
