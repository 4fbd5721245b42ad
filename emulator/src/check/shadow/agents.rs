//! What agents do to shared memory: the copy engine's writes, and reads that last until they are waited for.

use super::cell::Actor;
use super::{Access, Conflict, GRANULE, Lock, Overtaken, REGION, Shadow, Who, granules};
use crate::check::order::{self, Memory, Order};

impl Shadow {
    /// The start of the copy engine's write to ranges, which nobody may touch until it [arrives](Self::arrive). A conflict comes with the
    /// granule.
    pub(crate) fn start_copy(
        &mut self,
        order: &Order,
        ranges: &[(u32, u32)],
        who: Who,
        channel: order::Actor,
        proxy: bool,
    ) -> Result<(), (u32, Conflict)> {
        let fenced = proxy.then(|| order.fenced(who.actor, Memory::Shared));
        let actor = Actor { fenced, ..self.actor(order, who) };
        for (granule, bytes) in ranges.iter().flat_map(|&(offset, bytes)| granules(offset, bytes)) {
            self.check_others(granule, bytes, &actor, Access::Asynchronous)
                .and_then(|()| self.touch(granule, bytes, &actor, Access::Asynchronous))
                .map_err(|conflict| (granule, conflict))?;
            self.each_cell(granule, bytes, |cell| {
                (cell.writer, cell.foreign, cell.proxy) = (channel, true, proxy);
            });
        }
        Ok(())
    }

    /// Whether the copy engine's write to a range may overtake a read: one that is ordered before it, but with no proxy fence in
    /// between, or not even ordered. It comes with the granule.
    pub(crate) fn overtakes(
        &mut self,
        order: &Order,
        (offset, bytes): (u32, u32),
        who: Who,
    ) -> Option<(u32, Overtaken)> {
        let (first, end) = (offset / GRANULE, (offset + bytes).div_ceil(GRANULE));
        let (own, settled) = (self.first..self.first + self.warps as u32, self.settled);
        let here = own.contains(&who.actor);
        let is_settled =
            |actor: order::Actor, stamp| here && own.contains(&u32::from(actor)) && stamp < settled;
        let mut found = None;
        for region in first / REGION..end.div_ceil(REGION) {
            let (from, to) = (first.max(region * REGION), end.min((region + 1) * REGION));
            let granules = (u64::MAX >> (REGION - (to - from))) << (from % REGION);
            let overtaken = self.unfenced.take(order, region, granules, who, is_settled);
            found = found.or(overtaken.map(|(granule, read)| (region * REGION + granule, read)));
        }
        found
    }

    /// The copy engine has written some bytes.
    pub(crate) fn arrive(&mut self, granule: u32, bytes: u16, stamp: u32) {
        self.part(granule, bytes);
        self.each_cell(granule, bytes, |cell| (cell.pending, cell.write_stamp) = (false, stamp));
        self.open(granule);
    }

    /// Whether an agent that works for a warp may read ranges. A conflict comes with the granule.
    pub(crate) fn check_agent(
        &self,
        order: &Order,
        ranges: &[(u32, u32)],
        who: Who,
    ) -> Result<(), (u32, Conflict)> {
        let actor = Actor { fenced: Some(order.fenced(who.actor, Memory::Shared)), ..self.actor(order, who) };
        for (granule, bytes) in ranges.iter().flat_map(|&(offset, bytes)| granules(offset, bytes)) {
            let checked = self.check_cells(
                granule,
                |cell| cell.check_read(bytes, &actor),
                |cell| cell.check_read(1, &actor),
                bytes,
            );
            checked.map_err(|conflict| (granule, conflict))?;
        }
        Ok(())
    }

    /// Locks bytes that an agent reads; see [`check_agent`](Self::check_agent).
    pub(crate) fn lock(&mut self, ranges: &[(u32, u32)], who: Who, what: &'static str) -> Lock {
        self.locks.add(ranges, who, what)
    }

    /// Takes a lock away: the agent's reads become reads of the warp it worked for.
    pub(crate) fn unlock(&mut self, order: &Order, lock: Lock) {
        let Some((ranges, who)) = self.locks.remove(lock) else { return };
        for (offset, bytes) in ranges {
            for (granule, bytes) in granules(offset, bytes) {
                // It was allowed to read when it began, and nobody could write since.
                let _ = self.access_by(order, granule, bytes, who, Access::Read);
            }
        }
    }

    /// What holds the bytes locked, if anything does.
    pub(crate) fn locked_by(&self, granule: u32, bytes: u16) -> Option<(Who, &'static str)> {
        self.locks.find(granule, bytes)
    }
}
