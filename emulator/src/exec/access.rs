//! Before memory is touched: addresses, spaces, and the checks of every access.

use super::cluster::OFFSET_BITS;
use super::code::{Core, Flow};
use super::control::lanes_where;
use super::lane::Lane;
use super::registers::{DOUBLE, Slot};
use crate::check::FindingKind;
use crate::check::global::PAGE;
use crate::check::lanes::LaneRace;
use crate::check::order;
use crate::check::shadow::{Access, Conflict, GRANULE, REGION, Who};
use crate::syntax::ast::Space;

/// Where shared memory appears among generic addresses.
pub(crate) const SHARED_WINDOW: u64 = 0xf100_0000_0000;
/// Where a thread's local memory appears.
pub(crate) const LOCAL_WINDOW: u64 = 0xf200_0000_0000;
/// Where a kernel's parameters appear.
pub(crate) const PARAM_WINDOW: u64 = 0xf300_0000_0000;
/// The size of each of these.
pub(crate) const WINDOW: u64 = 1 << 32;

/// The positions of the bits that are set.
#[inline(always)]
pub(crate) fn ones(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        Some(lane)
    })
}

/// The positions of the bits that are set.
#[inline(always)]
fn ones64(mask: u64) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let bit = rest.trailing_zeros() as usize;
        (rest != 0).then(|| {
            rest &= rest - 1;
            bit
        })
    })
}

impl Core<'_> {
    /// The addresses of the lanes: register plus offset.
    #[inline(always)]
    pub(crate) fn addresses(&mut self, slot: Slot, offset: i64) -> Result<[u64; 32], Flow> {
        let (mut addresses, written) = if slot & DOUBLE == 0 {
            let words = u32::read(self, slot);
            let mut addresses = [0; 32];
            for lane in 0..32 {
                addresses[lane] = u64::from(words[lane]);
            }
            (addresses, u32::written(self, slot))
        } else {
            (*u64::read(self, slot), u64::written(self, slot))
        };
        let missing = self.warp.mask & !written;
        if missing != 0 && self.launch.checks.uninitialised {
            return Err(self.uninitialised(missing, "an address"));
        }
        if offset != 0 {
            for address in &mut addresses {
                *address = address.wrapping_add_signed(offset);
            }
        }
        Ok(addresses)
    }

    #[cold]
    pub(crate) fn uninitialised(&mut self, lanes: u32, what: &str) -> Flow {
        let message = format!("{what} depends on a value that nothing wrote");
        let hint = "initialise it, or check that the write comes first on every path";
        self.fail(FindingKind::Uninitialised, lanes, message, Some(hint))
    }

    /// Calls `f` once for each space that the lanes' addresses are in, with addresses inside that space.
    #[inline(always)]
    pub(crate) fn by_space(
        &mut self,
        space: Space,
        lanes: u32,
        addresses: &[u64; 32],
        mut f: impl FnMut(&mut Self, Space, u32, &[u64; 32]) -> Result<(), Flow>,
    ) -> Result<(), Flow> {
        if space == Space::Cluster {
            return self.by_rank(lanes, addresses, &mut f);
        }
        if space != Space::Generic {
            return f(self, space, lanes, addresses);
        }
        let mut rest = lanes;
        for (space, window) in
            [(Space::Cluster, SHARED_WINDOW), (Space::Local, LOCAL_WINDOW), (Space::Param, PARAM_WINDOW)]
        {
            let here = lanes_where(rest, |lane| addresses[lane].wrapping_sub(window) < WINDOW);
            if here != 0 {
                rest &= !here;
                let addresses = addresses.map(|address| address.wrapping_sub(window));
                match space {
                    Space::Cluster => self.by_rank(here, &addresses, &mut f)?,
                    _ => f(self, space, here, &addresses)?,
                }
            }
        }
        if rest == 0 { Ok(()) } else { f(self, Space::Global, rest, addresses) }
    }

    /// Calls `f` once for each block of the cluster whose shared memory the lanes' addresses are in; the block takes the
    /// place of the own one meanwhile.
    #[inline(always)]
    fn by_rank(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        f: &mut impl FnMut(&mut Self, Space, u32, &[u64; 32]) -> Result<(), Flow>,
    ) -> Result<(), Flow> {
        let own = lanes_where(lanes, |lane| self.own_shared(addresses[lane]).is_some());
        let offsets = addresses.map(|address| address & ((1 << OFFSET_BITS) - 1));
        if own != 0 {
            f(self, Space::Shared, own, &offsets)?;
        }
        let mut rest = lanes & !own;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            let (rank, _) = self.place_of(addresses[lane], lane, "an access")?;
            let here = lanes_where(rest, |lane| addresses[lane] >> OFFSET_BITS == u64::from(rank) + 1);
            rest &= !here;
            let home = self.block.rank;
            self.select(rank);
            let result = f(self, Space::Shared, here, &offsets);
            self.select(home);
            result?;
        }
        Ok(())
    }

    /// The address in the cluster's shared memory that a generic address stands for.
    pub(crate) fn shared_address(&mut self, address: u64, lane: usize, what: &str) -> Result<u64, Flow> {
        let offset = address.wrapping_sub(SHARED_WINDOW);
        if offset < WINDOW {
            return Ok(offset);
        }
        let message = format!("{what} at the generic address {address:#x}, which is not in shared memory");
        Err(self.fail(FindingKind::OutOfBounds, 1 << lane, message, None))
    }

    #[inline(always)]
    pub(crate) fn check_alignment(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        what: &str,
    ) -> Result<(), Flow> {
        let mut low = 0;
        for lane in 0..32 {
            low |= if lanes >> lane & 1 == 1 { addresses[lane] } else { 0 };
        }
        if low & u64::from(bytes - 1) == 0 || !self.launch.checks.alignment {
            return Ok(());
        }
        let wrong = lanes_where(lanes, |lane| addresses[lane] & u64::from(bytes - 1) != 0);
        let address = addresses[wrong.trailing_zeros() as usize];
        let message = format!("{what} of {bytes} bytes at {address:#x}, which is not a multiple of {bytes}");
        Err(self.fail(FindingKind::Misaligned, wrong, message, None))
    }

    /// The lanes whose access lies inside shared memory; the others are a finding, or left out.
    #[inline(always)]
    pub(crate) fn check_shared(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        what: &str,
    ) -> Result<u32, Flow> {
        let size = self.block.shared.len() as u64;
        self.check_size(lanes, addresses, bytes, what, size, "shared memory")
    }

    pub(crate) fn check_local(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        what: &str,
    ) -> Result<u32, Flow> {
        let size = u64::from(self.launch.kernel.local);
        self.check_size(lanes, addresses, bytes, what, size, "the thread's local memory")
    }

    #[inline(always)]
    fn check_size(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        what: &str,
        size: u64,
        space: &str,
    ) -> Result<u32, Flow> {
        let wide = u64::from(bytes);
        let limit = size.wrapping_sub(wide);
        let mut outside = 0;
        for lane in 0..32 {
            outside |= u32::from(addresses[lane] > limit) << lane;
        }
        let outside = if size < wide { lanes } else { outside & lanes };
        if outside == 0 || !self.launch.checks.bounds {
            return Ok(lanes & !outside);
        }
        let address = addresses[outside.trailing_zeros() as usize];
        let message = format!("{what} of {bytes} bytes at {address:#x} of {space}, which has {size} bytes");
        Err(self.fail(FindingKind::OutOfBounds, outside, message, None))
    }

    /// Where a lane's local memory is in the warp's.
    #[inline(always)]
    pub(crate) fn local_offset(&self, lane: usize, address: u64) -> usize {
        lane * self.launch.kernel.local as usize + address as usize
    }

    /// The position of the allocation that holds an access of `bytes` bytes at `address`. `None` if there is none and
    /// bounds are not checked.
    #[inline(always)]
    pub(crate) fn allocation(
        &mut self,
        address: u64,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        what: &str,
    ) -> Result<Option<usize>, Flow> {
        let table = self.launch.table;
        let holds = |index: usize| {
            table.get(index).is_some_and(|a| {
                let offset = address.wrapping_sub(a.base);
                offset < a.bytes() && a.bytes() - offset >= u64::from(bytes)
            })
        };
        if holds(self.warp.allocation) {
            return Ok(Some(self.warp.allocation));
        }
        match table.find(address) {
            Some((index, _)) if holds(index) => {
                self.warp.allocation = index;
                Ok(Some(index))
            }
            _ if !self.launch.checks.bounds => Ok(None),
            _ => Err(self.outside(lanes, addresses, bytes, what)),
        }
    }

    /// An access outside every allocation.
    #[cold]
    fn outside(&mut self, lanes: u32, addresses: &[u64; 32], bytes: u32, what: &str) -> Flow {
        let table = self.launch.table;
        let wrong = lanes_where(lanes, |lane| {
            let last = addresses[lane].wrapping_add(u64::from(bytes) - 1);
            match (table.find(addresses[lane]), table.find(last)) {
                (Some((a, _)), Some((b, _))) => a != b,
                _ => true,
            }
        });
        let address = addresses[wrong.trailing_zeros() as usize];
        // Where the access only begins inside, its end is what matters.
        let shown = match table.find(address) {
            Some((_, a)) => a.base + a.bytes(),
            None => address,
        };
        let freed = table.is_freed(shown);
        let kind = if freed { FindingKind::UseAfterFree } else { FindingKind::OutOfBounds };
        let message = format!("{what} of {bytes} bytes at {address:#x}: {}", table.describe(shown));
        self.fail(kind, wrong, message, None)
    }

    #[cold]
    pub(crate) fn outside_parameters(&mut self, lanes: u32, address: u64) -> Flow {
        let message = format!(
            "a load at {address:#x} of the kernel's parameters, which have {} bytes",
            self.launch.kernel.parameter_bytes
        );
        self.fail(FindingKind::OutOfBounds, lanes, message, None)
    }

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
        let aligned = self.launch.checks.alignment;
        let Some(shadow) = &mut self.block.shadow else { return Ok(()) };
        let order = &self.order;
        let who = Who { actor: self.warp.actor, at: self.warp.pc };
        if bytes == GRANULE && aligned {
            // Whole granules: those of neighbouring lanes are mostly in one region, and noted together.
            let (mut region, mut granules, mut failed) = (0, 0u64, None);
            for lane in 0..32 {
                if lanes >> lane & 1 == 0 {
                    continue;
                }
                let granule = addresses[lane] as u32 / GRANULE;
                if granule / REGION != region && granules != 0 {
                    failed = failed.or(shadow.access_whole(order, region, granules, who, access).err());
                    granules = 0;
                }
                region = granule / REGION;
                granules |= 1 << (granule % REGION);
            }
            if granules != 0 {
                failed = failed.or(shadow.access_whole(order, region, granules, who, access).err());
            }
            return match failed {
                None => Ok(()),
                Some((granule, conflict)) => match self.raced(lanes, addresses, granule, access, conflict) {
                    Flow::Next => Ok(()),
                    flow => Err(flow),
                },
            };
        }
        // Neighbouring lanes mostly touch the same granule: their bytes are noted together.
        let (mut granule, mut touched) = (u32::MAX, 0u32);
        let mut failed = None;
        for lane in ones(lanes) {
            let offset = addresses[lane] as u32;
            let here = offset / GRANULE;
            let field = ((1u32 << bytes) - 1) << (offset % GRANULE);
            if here != granule {
                if touched != 0
                    && let Err(conflict) = shadow.access(order, granule, touched as u16, who, access)
                {
                    failed = Some((granule, conflict));
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
        let (size, at) = (self.block.shared.len(), self.warp.pc);
        match self.warp.lanes.access(size, lanes, addresses, bytes, write, at) {
            None => Ok(()),
            Some(race) => Err(self.raced_lane(race, if write { "write" } else { "read" })),
        }
    }

    #[cold]
    pub(crate) fn raced_lane(&mut self, race: LaneRace, what: &str) -> Flow {
        let place = self.launch.describe_shared(race.offset);
        let verb = if race.wrote { "write" } else { "read" };
        let message = format!(
            "{what} of shared memory at {place} by lane {} races with the {verb} by lane {} of the same warp",
            race.lane, race.other
        );
        let hint = "the lanes of a warp need not run in step: put `bar.warp.sync` between the two";
        self.fail(FindingKind::SharedRace, 1 << race.lane, message, Some(hint));
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
        let Some(log) = &mut self.log else { return Ok(()) };
        let order = &self.order;
        let who = Who { actor: self.warp.actor, at: self.warp.pc };
        let base = self.launch.table.at(allocation).base;
        let granule = u64::from(GRANULE);
        // Bases are aligned, so that a granule of the address is one of the offset.
        let mut failed = None;
        let mut rest = lanes;
        if bytes == GRANULE && access == Access::Read && self.launch.checks.alignment {
            // Whole granules, mostly of one page for neighbouring lanes.
            let (mut page, mut whole) = (0, 0u64);
            for lane in ones(lanes) {
                let offset = addresses[lane] - base;
                if offset / PAGE != page && whole != 0 {
                    let read = log.read_whole(order, (allocation, page), whole, who, false);
                    failed =
                        failed.or(read.err().map(|(at, conflict)| (at + page as u32 * REGION, conflict)));
                    whole = 0;
                }
                page = offset / PAGE;
                whole |= 1 << (offset % PAGE / granule);
            }
            if whole != 0 {
                let read = log.read_whole(order, (allocation, page), whole, who, false);
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
            if access == Access::Read {
                for at in ones64(partial) {
                    if parts[at] == u16::MAX {
                        (whole, partial) = (whole | 1 << at, partial & !(1 << at));
                    }
                }
                if whole != 0 {
                    failed = log.read_whole(order, (allocation, page), whole, who, false).err();
                }
                whole = 0;
            }
            for at in ones64(whole | partial) {
                let field = if whole >> at & 1 == 1 { u16::MAX } else { parts[at] };
                let noted = log.access(order, (allocation, page), at as u32, field, who, (access, false));
                failed = failed.or(noted.err().map(|conflict| (at as u32, conflict)));
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
            (FindingKind::GlobalRace, message, "put a barrier between the two, or use atomic operations")
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
                (FindingKind::SharedRace, message, "put a barrier between the two")
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
