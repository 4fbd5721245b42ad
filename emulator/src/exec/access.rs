//! Before memory is touched: addresses, spaces, and the checks of every access.

use super::cluster::OFFSET_BITS;
use super::code::{Core, Flow};
use super::control::lanes_where;
use super::lane::Lane;
use super::registers::{DOUBLE, Slot};
use crate::check::FindingKind;
use crate::syntax::ast::Space;

/// Where shared memory appears among generic addresses.
pub(crate) const SHARED_WINDOW: u64 = 0xf100_0000_0000;
/// Where a thread's local memory appears.
pub(crate) const LOCAL_WINDOW: u64 = 0xf200_0000_0000;
/// Where a kernel's parameters appear.
pub(crate) const PARAM_WINDOW: u64 = 0xf300_0000_0000;
/// The size of each of these.
pub(crate) const WINDOW: u64 = 1 << 32;

/// What all lanes touch together: from the first byte on, each lane so many bytes behind the one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) first: u32,
    pub(crate) step: u32,
    pub(crate) total: u32,
}

/// What all lanes touch together in an allocation: each so many bytes behind the one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GlobalRun {
    pub(crate) allocation: usize,
    pub(crate) offset: u64,
    pub(crate) step: u32,
    pub(crate) total: u32,
}

pub(super) const HINT_RED_ZONE: &str = "on a GPU the next variable may lie there";

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

/// How far each lane's address is behind the one before, where all have one address, or neighbours in order.
#[inline(always)]
fn step_of(addresses: &[u64; 32], bytes: u32) -> Option<u32> {
    let (mut apart, mut stray) = (0, 0);
    for lane in 0..32 {
        let distance = addresses[lane].wrapping_sub(addresses[0]);
        apart |= distance;
        stray |= distance ^ (lane as u64 * u64::from(bytes));
    }
    match (apart, stray) {
        (0, _) => Some(0),
        (_, 0) => Some(bytes),
        _ => None,
    }
}

impl Core<'_> {
    /// The addresses of the lanes: register plus offset.
    #[inline(always)]
    pub(crate) fn addresses(&mut self, slot: Slot, offset: i64) -> Result<[u64; 32], Flow> {
        let (addresses, written) = if slot & DOUBLE == 0 {
            let words = u32::read(self, slot);
            let mut addresses = [0; 32];
            for lane in 0..32 {
                addresses[lane] = u64::from(words[lane]).wrapping_add_signed(offset);
            }
            (addresses, u32::written(self, slot))
        } else {
            let doubles = u64::read(self, slot);
            let mut addresses = [0; 32];
            for lane in 0..32 {
                addresses[lane] = doubles[lane].wrapping_add_signed(offset);
            }
            (addresses, u64::written(self, slot))
        };
        let missing = self.warp.mask & !written;
        if missing != 0 && self.launch.checks.uninitialised {
            return Err(self.uninitialised(missing, "an address"));
        }
        Ok(addresses)
    }

    #[cold]
    pub(crate) fn uninitialised(&mut self, lanes: u32, what: &str) -> Flow {
        let message = format!("{what} depends on a value that nothing wrote");
        let hint = "initialise it, or check that the write comes first on every path";
        self.fail(FindingKind::Uninitialised, lanes, message, Some(hint));
        if let (Some(origin), Some(fault)) = (self.warp.unwritten, &mut self.fault) {
            fault.related.push((origin.0.to_owned(), origin.1));
        }
        Flow::Fault
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
        // Mostly those of lanes that are off are aligned, too.
        let low = addresses.iter().fold(0, |low, address| low | address);
        if low & u64::from(bytes - 1) == 0 || !self.launch.checks.alignment {
            return Ok(());
        }
        let wrong = lanes_where(lanes, |lane| addresses[lane] & u64::from(bytes - 1) != 0);
        if wrong == 0 {
            return Ok(());
        }
        let address = addresses[wrong.trailing_zeros() as usize];
        let message = format!("{what} of {bytes} bytes at {address:#x}, which is not a multiple of {bytes}");
        Err(self.fail(FindingKind::Misaligned, wrong, message, None))
    }

    /// The lanes whose access is inside shared memory; the others are a finding, or left out.
    #[inline(always)]
    pub(crate) fn check_shared(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        what: &str,
    ) -> Result<u32, Flow> {
        let size = self.block.shared.len() as u64;
        if !self.launch.kernel.red_zones.is_empty() && self.launch.checks.bounds {
            self.check_red_zones(lanes, addresses, bytes, what)?;
        }
        self.check_size(lanes, addresses, bytes, what, size, "shared memory")
    }

    /// A load of shared memory by all lanes, of one address or of neighbours in order, that is inside, aligned, and of nothing but what was
    /// written.
    #[inline(always)]
    pub(crate) fn shared_run(&self, lanes: u32, addresses: &[u64; 32], bytes: u32) -> Option<Run> {
        if lanes != u32::MAX || !addresses[0].is_multiple_of(u64::from(bytes)) {
            return None;
        }
        let step = step_of(addresses, bytes)?;
        let total = if step == 0 { bytes } else { 32 * bytes };
        let first = u32::try_from(addresses[0]).ok()?;
        let inside = u64::from(first) + u64::from(total) <= self.block.shared.len() as u64
            && self.launch.in_red_zone(first, total.into()).is_none();
        (inside && self.block.shared.all_written(first as usize, total)).then_some(Run { first, step, total })
    }

    /// A plain access to global memory by all lanes, to one address or to neighbours in order. It is aligned and inside one
    /// allocation: only races and what was written are left to be checked.
    #[inline(always)]
    pub(crate) fn global_run(
        &mut self,
        space: Space,
        addresses: &[u64; 32],
        bytes: u32,
    ) -> Option<GlobalRun> {
        let first = addresses[0];
        let plain = self.warp.mask == u32::MAX && self.warp.early == 0 && self.engine.stores == 0;
        if !plain
            || !matches!(space, Space::Global | Space::Generic)
            || !first.is_multiple_of(u64::from(bytes))
        {
            return None;
        }
        let step = step_of(addresses, bytes)?;
        let total = if step == 0 { bytes } else { 32 * bytes };
        let table = self.launch.table;
        let mut allocation = self.warp.allocation;
        let offset = |index: usize| {
            let allocation = table.get(index)?;
            let offset = first.wrapping_sub(allocation.base);
            let size = allocation.bytes();
            (offset < size && size - offset >= u64::from(total)).then_some(offset)
        };
        // No allocation is in the windows of other spaces.
        let offset = offset(allocation).or_else(|| {
            (allocation, _) = table.find(first)?;
            offset(allocation)
        })?;
        self.warp.allocation = allocation;
        Some(GlobalRun { allocation, offset, step, total })
    }

    /// Between the variables of shared memory there is nothing.
    fn check_red_zones(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        what: &str,
    ) -> Result<(), Flow> {
        let (mut first, mut last) = (u64::MAX, 0);
        for lane in 0..32 {
            let on = lanes >> lane & 1 == 1;
            first = first.min(if on { addresses[lane] } else { u64::MAX });
            last = last.max(if on { addresses[lane] } else { 0 });
        }
        let last = last.saturating_add(u64::from(bytes));
        let mut stray = 0;
        let zones = self.launch.kernel.red_zones.iter();
        for &(start, end) in zones.filter(|zone| first < u64::from(zone.1) && u64::from(zone.0) < last) {
            for lane in 0..32 {
                let inside =
                    addresses[lane] < u64::from(end) && addresses[lane] + u64::from(bytes) > u64::from(start);
                stray |= u32::from(inside) << lane;
            }
        }
        let stray = stray & lanes;
        if stray == 0 {
            return Ok(());
        }
        let first = addresses[stray.trailing_zeros() as usize] as u32;
        let place = self.launch.in_red_zone(first, u64::from(bytes)).unwrap_or(first);
        let message =
            format!("{what} of {bytes} bytes of shared memory: {}", self.launch.describe_red_zone(place));
        Err(self.fail(FindingKind::OutOfBounds, stray, message, Some(HINT_RED_ZONE)))
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
        // Mostly all are inside: the limit is no lower than any, and both are below 2⁶³.
        let signs = addresses.iter().fold(limit, |all, address| all | address | limit.wrapping_sub(*address));
        if signs >> 63 == 0 {
            return Ok(lanes);
        }
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

    /// Lanes may touch global memory only once they have waited for the grids before this one.
    #[inline(always)]
    pub(crate) fn check_grids(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        what: &str,
    ) -> Result<(), Flow> {
        let early = lanes & self.warp.early;
        if early == 0 { Ok(()) } else { self.before_grids(early, addresses, bytes, what) }
    }

    /// The same of a load: beside the last grid, lanes may also read what that one does not write.
    #[inline(always)]
    pub(crate) fn check_grids_of_load(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        what: &str,
    ) -> Result<(), Flow> {
        let early = lanes & self.warp.early;
        if early == 0 { Ok(()) } else { self.load_before_grids(early, addresses, bytes, what) }
    }

    #[cold]
    fn load_before_grids(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        what: &str,
    ) -> Result<(), Flow> {
        let (table, before) = (self.launch.table, self.launch.number - 1);
        let is_written =
            |address: u64| table.find(address).is_none_or(|(_, allocation)| allocation.is_written_by(before));
        let early = if self.launch.config.beside_last {
            lanes_where(lanes, |lane| is_written(addresses[lane]))
        } else {
            lanes
        };
        if early == 0 { Ok(()) } else { self.before_grids(early, addresses, bytes, what) }
    }

    #[cold]
    fn before_grids(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        what: &str,
    ) -> Result<(), Flow> {
        // No grid writes constants.
        let early = lanes_where(lanes, |lane| !self.launch.is_constant(addresses[lane]));
        if early == 0 {
            return Ok(());
        }
        let address = addresses[early.trailing_zeros() as usize];
        let message = format!(
            "{what} of {bytes} bytes at {address:#x}, an access to global memory before `griddepcontrol.wait`: {}",
            self.launch.table.describe(address)
        );
        let hint = "the grids before this one may still run, and their writes need not be visible: each thread that touches global \
                    memory executes `griddepcontrol.wait` first";
        Err(self.fail(FindingKind::GridDependency, early, message, Some(hint)))
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
}
