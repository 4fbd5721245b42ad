//! The accesses that races are looked for among, and what is said of those that are found.

use super::access::{GlobalRun, Run, ones};
use super::code::{Core, Flow};
use super::control::lanes_where;
use super::launch::HINT_CONSTANT;
use crate::check::FindingKind;
use crate::check::global::{Log, PAGE, bits, pieces};
use crate::check::granules::Rows;
use crate::check::lanes::{LaneAccess, LaneRace};
use crate::check::order;
use crate::check::shadow::{Access, Conflict, GRANULE, REGION, Who};

/// Instructions from a load to the store of what it has read, where both are one statement.
const NEAR: u32 = 8;

const HINT_CHANGE: &str = "if both add to what stands there or change it, use atomic operations; or else put a barrier between the two";

impl Core<'_> {
    /// Notes accesses to shared memory, and reports those that race. The lanes' accesses are inside.
    #[inline(always)]
    pub(crate) fn race(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        access: Access,
    ) -> Result<(), Flow> {
        // With the alignment check off, an access may begin anywhere.
        if bytes == GRANULE && self.launch.checks.alignment {
            let rows = Rows::new(lanes, |lane| addresses[lane] as u32);
            return self.race_rows(lanes, addresses, &rows, access);
        }
        if self.warp.late.is_some() && access == Access::Read {
            self.read_late(lanes, addresses, bytes);
        }
        let Some(shadow) = &mut self.block.shadow else { return Ok(()) };
        let order = &self.order;
        let who = Who { actor: self.warp.actor, at: self.warp.pc };
        // Neighbouring lanes mostly touch the same granule: their bytes are noted together, and granules that are whole with others of
        // their region.
        let (mut granule, mut touched) = (u32::MAX, 0u32);
        let (mut region, mut whole) = (0, 0u64);
        let mut failed = None;
        for lane in ones(lanes) {
            let offset = addresses[lane] as u32;
            let here = offset / GRANULE;
            let field = ((1u32 << bytes) - 1) << (offset % GRANULE);
            if here != granule {
                if touched == 0xffff {
                    if granule / REGION != region && whole != 0 {
                        failed = shadow.access_whole(order, region, whole, who, access).err();
                        whole = 0;
                    }
                    region = granule / REGION;
                    whole |= 1 << (granule % REGION);
                } else if touched != 0
                    && let Err(conflict) = shadow.access(order, granule, touched as u16, who, access)
                {
                    failed = Some((granule, conflict));
                }
                if failed.is_some() {
                    break;
                }
                (granule, touched) = (here, 0);
            }
            touched |= field & 0xffff;
            // An access that the alignment check let pass may reach into the next granule.
            let rest = field >> 16;
            if rest != 0
                && let Err(conflict) = shadow.access(order, here + 1, rest as u16, who, access)
            {
                failed = Some((here + 1, conflict));
                break;
            }
        }
        if failed.is_none() && whole != 0 {
            failed = shadow.access_whole(order, region, whole, who, access).err();
        }
        if failed.is_none()
            && touched != 0
            && let Err(conflict) = shadow.access(order, granule, touched as u16, who, access)
        {
            failed = Some((granule, conflict));
        }
        match failed {
            None => Ok(()),
            Some((granule, conflict)) => match self.raced(lanes, addresses, granule, access, conflict) {
                Flow::Next => Ok(()),
                flow => Err(flow),
            },
        }
    }

    /// The same for whole granules.
    #[inline(always)]
    pub(crate) fn race_rows(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        rows: &Rows,
        access: Access,
    ) -> Result<(), Flow> {
        if self.warp.late.is_some() && access == Access::Read {
            self.read_late(lanes, addresses, GRANULE);
        }
        let Some(shadow) = &mut self.block.shadow else { return Ok(()) };
        let who = Who { actor: self.warp.actor, at: self.warp.pc };
        let mut failed = None;
        for (region, granules) in rows.parts() {
            failed = failed.or(shadow.access_whole(&self.order, region, granules, who, access).err());
        }
        let Some((granule, conflict)) = failed else { return Ok(()) };
        match self.raced(lanes, addresses, granule, access, conflict) {
            Flow::Next => Ok(()),
            flow => Err(flow),
        }
    }

    /// The same for a load of all lanes together, and of each for itself.
    #[inline(always)]
    pub(crate) fn race_run(&mut self, run: Run, addresses: &[u64; 32], bytes: u32) -> Result<(), Flow> {
        if self.warp.late.is_some() || run.step != 0 && !run.first.is_multiple_of(GRANULE) {
            self.race(u32::MAX, addresses, bytes, Access::Read)?;
        } else if let Some(shadow) = &mut self.block.shadow {
            let (order, who) = (&self.order, Who { actor: self.warp.actor, at: self.warp.pc });
            let (mut granule, end) = (run.first / GRANULE, (run.first + run.total).div_ceil(GRANULE));
            let mut failed = None;
            if run.step == 0 {
                let field = ((1u32 << bytes) - 1) << (run.first % GRANULE);
                failed = shadow
                    .access(order, granule, field as u16, who, Access::Read)
                    .err()
                    .map(|c| (granule, c));
                granule = end;
            }
            while granule < end && failed.is_none() {
                let (from, to) = (granule % REGION, (end - granule).min(REGION - granule % REGION));
                let granules = (u64::MAX >> (REGION - to)) << from;
                failed = shadow.access_whole(order, granule / REGION, granules, who, Access::Read).err();
                granule += to;
            }
            if let Some((granule, conflict)) = failed {
                match self.raced(u32::MAX, addresses, granule, Access::Read, conflict) {
                    Flow::Next => {}
                    flow => return Err(flow),
                }
            }
        }
        if self.is_home() { self.race_lanes(u32::MAX, addresses, bytes, false) } else { Ok(()) }
    }

    /// Notes what lanes do to the own block's shared memory, each for itself, and reports what races with another lane.
    #[inline(always)]
    pub(crate) fn race_lanes(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        write: bool,
    ) -> Result<(), Flow> {
        if !self.launch.checks.races {
            return Ok(());
        }
        let at = self.warp.pc;
        match self.warp.lanes.access(lanes, addresses, bytes, write, at) {
            None => Ok(()),
            Some(race) => Err(self.raced_lane(race, if write { "write" } else { "read" })),
        }
    }

    /// The same for whole granules.
    #[inline(always)]
    pub(crate) fn race_lanes_rows(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        rows: &Rows,
        write: bool,
    ) -> Result<(), Flow> {
        if !self.launch.checks.races {
            return Ok(());
        }
        match self.warp.lanes.access_rows(lanes, addresses, rows, write, self.warp.pc) {
            None => Ok(()),
            Some(race) => Err(self.raced_lane(race, if write { "write" } else { "read" })),
        }
    }

    /// Some lanes have passed on what they have done. What the warp's other lanes have done since the last point that ordered them is not
    /// part of it, so it counts as done later.
    pub(crate) fn pass_on_lanes(&mut self, lanes: u32) {
        let Some(shadow) = &mut self.block.shadow else { return };
        let (order, actor) = (&self.order, self.warp.actor);
        self.warp.lanes.pass_on(lanes, |LaneAccess { offset, wrote, at }| {
            let access = if wrote { Access::Write } else { Access::Read };
            // A conflict is none that is new: the access itself was when to tell of it.
            let (granule, bytes) = (offset / GRANULE, 0b11 << (offset % GRANULE));
            let _ = shadow.access_by(order, granule, bytes, Who { actor, at }, access);
        });
    }

    /// Some lanes have executed a proxy fence for shared memory. It covers what they have done and what they were told of: what other
    /// lanes have done since the last point that ordered them counts as done later.
    pub(crate) fn fence_lanes(&mut self, lanes: u32) {
        let (order, actor, live) = (&self.order, self.warp.actor, self.warp.live);
        let Some(shadow) = &mut self.block.shadow else { return };
        self.warp.lanes.fence(lanes, live, |LaneAccess { offset, wrote, at }| {
            let (granule, who) = (offset / GRANULE, Who { actor, at });
            if wrote {
                // As above, a conflict would be an old one.
                let _ = shadow.access_by(order, granule, 0b11 << (offset % GRANULE), who, Access::Write);
            } else {
                shadow.read_again(order, granule, who);
            }
        });
    }

    /// Whether the running instruction stores what the load at a place just before it has read, most likely: `x += y`.
    fn changes(&self, load: u32) -> bool {
        (1..=NEAR).contains(&self.warp.pc.wrapping_sub(load))
    }

    #[cold]
    pub(crate) fn raced_lane(&mut self, race: LaneRace, what: &str) -> Flow {
        let place = self.launch.describe_shared(race.offset);
        let verb = if race.wrote { "write" } else { "read" };
        let message = format!(
            "{what} of shared memory at {place} by lane {} races with the {verb} by lane {} of the same warp",
            race.lane, race.other
        );
        // Where one barrier is missing, other warps may lack it too.
        let hint = match self.launch.warps {
            _ if what == Access::Write.name() && !race.wrote && self.changes(race.at) => HINT_CHANGE,
            1 => "the lanes of a warp need not run in step: put `bar.warp.sync` between the two",
            _ => {
                "put a barrier of the block between the two (`bar.sync`, `sync_threads`), or `bar.warp.sync` if no other warp shares \
                 these bytes: the lanes of a warp need not run in step"
            }
        };
        self.fail(FindingKind::SharedRace, 1 << race.lane, message, Some(hint));
        if let Some(fault) = &mut self.fault {
            fault.related.push((format!("the {verb} by lane {}", race.other), race.at));
        }
        Flow::Fault
    }

    #[cold]
    fn raced_lane_in_global(&mut self, (race, address): (LaneRace, u64), what: &str) -> Flow {
        let place = self.launch.table.describe(address);
        let verb = if race.wrote { "write" } else { "read" };
        let message = format!(
            "{what} of {place} by lane {} races with the {verb} by lane {} of the same warp",
            race.lane, race.other
        );
        let hint =
            "put `bar.warp.sync` (`__syncwarp`) between the two: the lanes of a warp need not run in step";
        self.fail(FindingKind::GlobalRace, 1 << race.lane, message, Some(hint));
        if let Some(fault) = &mut self.fault {
            fault.related.push((format!("the {verb} by lane {}", race.other), race.at));
        }
        Flow::Fault
    }

    /// Notes accesses to global memory, and reports those that race. The lanes' accesses are inside the allocation.
    #[inline(always)]
    pub(crate) fn race_global(
        &mut self,
        allocation: usize,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        access: Access,
    ) -> Result<(), Flow> {
        if self.engine.stores != 0 {
            let base = self.launch.table.at(allocation).base;
            for lane in ones(lanes) {
                let offset = addresses[lane].wrapping_sub(base);
                self.check_in_flight(lane, allocation, offset, bytes, access)?;
            }
        }
        let Some(log) = &mut self.log else { return Ok(()) };
        if matches!(access, Access::Read | Access::Write)
            && let Some(race) =
                self.warp.global_lanes.access(lanes, addresses, bytes, access == Access::Write, self.warp.pc)
        {
            return Err(self.raced_lane_in_global(race, access.name()));
        }
        let order = &self.order;
        let who = Who { actor: self.warp.actor, at: self.warp.pc };
        let base = self.launch.table.at(allocation).base;
        let granule = u64::from(GRANULE);
        // Bases are aligned, so that a granule of the address is one of the offset.
        let mut failed = None;
        let mut rest = lanes;
        let reads = matches!(access, Access::Read | Access::Constant);
        let read_whole = |log: &mut Log, page, whole| match access {
            Access::Constant => log.constant_whole((allocation, page), whole, who),
            _ => log.read_whole(order, (allocation, page), whole, who, false),
        };
        if bytes == GRANULE && reads && self.launch.checks.alignment {
            // Whole granules, mostly of one page for neighbouring lanes.
            let (mut page, mut whole) = (0, 0u64);
            for lane in ones(lanes) {
                let offset = addresses[lane] - base;
                if offset / PAGE != page && whole != 0 {
                    let read = read_whole(log, page, whole);
                    failed =
                        failed.or(read.err().map(|(at, conflict)| (at + page as u32 * REGION, conflict)));
                    whole = 0;
                }
                page = offset / PAGE;
                whole |= 1 << (offset % PAGE / granule);
            }
            if whole != 0 {
                let read = read_whole(log, page, whole);
                failed = failed.or(read.err().map(|(at, conflict)| (at + page as u32 * REGION, conflict)));
            }
            rest = 0;
        }
        while rest != 0 && failed.is_none() {
            let page = (addresses[rest.trailing_zeros() as usize & 31] - base) / PAGE;
            let (mut whole, mut parts) = (0u64, [0u16; REGION as usize]);
            let mut partial = 0u64;
            for lane in ones(rest) {
                let offset = addresses[lane] - base;
                if offset / PAGE != page {
                    continue;
                }
                rest &= !(1 << lane);
                let (first, last) = (offset % PAGE, (offset % PAGE + u64::from(bytes) - 1).min(PAGE - 1));
                if bytes == GRANULE && first % granule == 0 {
                    whole |= 1 << (first / granule);
                    continue;
                }
                for at in first / granule..=last / granule {
                    let (from, to) =
                        (first.max(at * granule) % granule, last.min(at * granule + 15) % granule);
                    parts[at as usize] |= (((1u32 << (to + 1)) - 1) & !((1u32 << from) - 1)) as u16;
                    partial |= 1 << at;
                }
            }
            if reads {
                for at in bits(partial).map(|at| at as usize) {
                    if parts[at] == u16::MAX {
                        (whole, partial) = (whole | 1 << at, partial & !(1 << at));
                    }
                }
                if whole != 0 {
                    failed = read_whole(log, page, whole).err();
                }
                whole = 0;
            }
            let place = (allocation, page);
            let mut note = |granules, field| {
                let noted = log.access(order, place, granules, field, who, (access, false));
                failed = failed.or(noted.err());
            };
            if whole != 0 {
                note(whole, u16::MAX);
            }
            // Neighbours of which the same bytes are touched, together.
            let mut left = partial & !whole;
            while left != 0 {
                let field = parts[left.trailing_zeros() as usize % 64];
                let alike = bits(left).take_while(|&at| parts[at as usize] == field);
                let granules = alike.fold(0, |all, at| all | 1u64 << at);
                left &= !granules;
                note(granules, field);
            }
            if let Some((at, _)) = &mut failed {
                *at += page as u32 * REGION;
            }
        }
        match failed {
            None => Ok(()),
            Some((at, conflict)) => {
                Err(self.raced_global(allocation, lanes, u64::from(at) * granule, access.name(), conflict))
            }
        }
    }

    /// The same for a plain access of all lanes to a range.
    #[inline(always)]
    pub(crate) fn race_global_run(
        &mut self,
        run: &GlobalRun,
        addresses: &[u64; 32],
        bytes: u32,
        access: Access,
    ) -> Result<(), Flow> {
        let Some(log) = &mut self.log else { return Ok(()) };
        if access != Access::Constant
            && let Some(race) = self.warp.global_lanes.access(
                u32::MAX,
                addresses,
                bytes,
                access == Access::Write,
                self.warp.pc,
            )
        {
            return Err(self.raced_lane_in_global(race, access.name()));
        }
        let (order, who) = (&self.order, Who { actor: self.warp.actor, at: self.warp.pc });
        let mut failed = None;
        pieces(run.offset, run.total, |page, granules, field| {
            let place = (run.allocation, page);
            let noted = match access {
                Access::Read if field == u16::MAX => log.read_whole(order, place, granules, who, false),
                Access::Constant if field == u16::MAX => log.constant_whole(place, granules, who),
                _ => log.access(order, place, granules, field, who, (access, false)),
            };
            let noted =
                noted.err().map(|(at, conflict)| (page * u64::from(REGION) + u64::from(at), conflict));
            failed = failed.or(noted);
        });
        match failed {
            None => Ok(()),
            Some((at, conflict)) => {
                let offset = at * u64::from(GRANULE);
                Err(self.raced_global(run.allocation, u32::MAX, offset, access.name(), conflict))
            }
        }
    }

    /// Reports accesses to global memory that are not ordered.
    #[cold]
    pub(super) fn raced_global(
        &mut self,
        allocation: usize,
        lanes: u32,
        offset: u64,
        what: &str,
        conflict: Conflict,
    ) -> Flow {
        let table = self.launch.table;
        let place = table.get(allocation).map_or(String::new(), |a| table.describe(a.base + offset));
        let (party, access) = (self.actor_name(conflict.actor), conflict.access.name());
        let (kind, message, hint) = if conflict.unfenced {
            let message = format!(
                "{what} of {place}, where a write by {party} is not visible to the engine that runs it"
            );
            (
                FindingKind::ProxyFence,
                message,
                "the writing thread needs `fence.proxy.async` behind the write",
            )
        } else {
            let message = format!("{what} near {place} races with the {access} by {party}");
            let constant = what == Access::Constant.name() || conflict.access == Access::Constant;
            let hint = if constant {
                HINT_CONSTANT
            } else {
                "put a barrier of the block between the two (`bar.sync`, `sync_threads`), or use atomic operations"
            };
            (FindingKind::GlobalRace, message, hint)
        };
        self.fail(kind, lanes, message, Some(hint));
        if let Some(fault) = &mut self.fault {
            fault.related.push((format!("the {access} by {party}"), conflict.at));
        }
        Flow::Fault
    }

    #[cold]
    fn raced(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        granule: u32,
        access: Access,
        conflict: Conflict,
    ) -> Flow {
        let lanes = lanes_where(lanes, |lane| {
            let offset = addresses[lane] as u32;
            offset / GRANULE == granule || offset.div_ceil(GRANULE) == granule
        });
        self.raced_by(lanes, granule, access.name(), conflict)
    }

    /// Reports an access to shared memory that another one is not ordered with; [`Flow::Next`] if nobody wants to know.
    #[cold]
    pub(super) fn raced_by(&mut self, lanes: u32, granule: u32, what: &str, conflict: Conflict) -> Flow {
        let checks = self.launch.checks;
        // A copy that has ended is still to be waited for.
        let arrived = self.is_engine(conflict.actor);
        let asynchronous = arrived || matches!(conflict.access, Access::Asynchronous | Access::Locked);
        if asynchronous && !checks.asynchronous || !asynchronous && !checks.races {
            return Flow::Next;
        }
        let place = self.launch.describe_shared(granule * GRANULE);
        let party = self.actor_name(conflict.actor);
        let (kind, message, hint) = match conflict.access {
            Access::Asynchronous => {
                let message = format!(
                    "{what} of shared memory at {place}, where an asynchronous copy of {party} has not been waited for"
                );
                let hint = "wait for the copy (at its mbarrier, or `cp.async.wait_group` and a barrier)";
                (FindingKind::AsynchronousCopy, message, hint)
            }
            Access::Locked => {
                let lock = self.block.shadow.as_ref().and_then(|shadow| shadow.locked_by(granule, u16::MAX));
                let reader = lock.map_or("an asynchronous operation", |(_, reader)| reader);
                let message =
                    format!("{what} of shared memory at {place}, which {reader} of {party} still uses");
                let hint = "wait for what reads it (`wgmma.wait_group`, `cp.async.bulk.wait_group.read`) before it is written";
                (FindingKind::AsynchronousCopy, message, hint)
            }
            _ if arrived => {
                let message = format!(
                    "{what} of shared memory at {place}, where an asynchronous copy has not been waited for"
                );
                (FindingKind::AsynchronousCopy, message, "wait for the copy at its mbarrier")
            }
            access => {
                let message =
                    format!("{what} of shared memory at {place} races with the {} by {party}", access.name());
                let hint = match self.launch.ranks() {
                    _ if what == Access::Write.name()
                        && access == Access::Read
                        && self.changes(conflict.at) =>
                    {
                        HINT_CHANGE
                    }
                    1 => "put a barrier of the block between the two (`bar.sync`, `sync_threads`)",
                    _ => {
                        "put a barrier of the block between the two (`bar.sync`, `sync_threads`), or of the cluster if they are of \
                         different blocks"
                    }
                };
                (FindingKind::SharedRace, message, hint)
            }
        };
        self.fail(kind, lanes, message, Some(hint));
        if let Some(fault) = &mut self.fault {
            fault.related.push((format!("the {} by {party}", conflict.access.name()), conflict.at));
        }
        Flow::Fault
    }

    /// Whether an actor is a channel of the copy engine, not a warp.
    fn is_engine(&self, actor: order::Actor) -> bool {
        u32::from(actor) >= self.launch.warps * self.launch.ranks()
    }

    /// A warp or a channel in words.
    pub(super) fn actor_name(&self, actor: order::Actor) -> String {
        if self.is_engine(actor) {
            return "the copy engine".to_owned();
        }
        let (warps, actor) = (self.launch.warps, u32::from(actor));
        match self.launch.ranks() {
            1 => format!("warp {actor}"),
            _ => format!("warp {} of the cluster's block {}", actor % warps, actor / warps),
        }
    }
}
