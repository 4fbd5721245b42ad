//! Writes of several lanes to the same bytes: whether they write the same.

use super::access::ones;
use super::code::{Core, Flow};
use crate::check::FindingKind;
use crate::syntax::ast::Space;

impl Core<'_> {
    /// Lanes write at one instruction: those that write the same bytes must write the same there.
    #[inline(always)]
    pub(crate) fn check_values(
        &mut self,
        space: Space,
        lanes: u32,
        addresses: &[u64; 32],
        bytes: u32,
        same: impl Fn(usize, usize) -> bool,
    ) -> Result<(), Flow> {
        // Mostly the addresses ascend.
        let mut apart = true;
        for lane in 1..32 {
            apart &=
                addresses[lane].wrapping_sub(addresses[lane - 1]).wrapping_sub(u64::from(bytes)) >> 63 == 0;
        }
        if apart || !self.launch.checks.races || lanes.is_power_of_two() || lanes == 0 {
            return Ok(());
        }
        match meeting(lanes, addresses, bytes, same) {
            None => Ok(()),
            Some(pair) => Err(self.differ(space, addresses, pair)),
        }
    }

    #[cold]
    fn differ(&mut self, space: Space, addresses: &[u64; 32], (first, second): (usize, usize)) -> Flow {
        let address = addresses[second];
        let (kind, place) = match space {
            Space::Shared => (FindingKind::SharedRace, self.launch.describe_shared(address as u32)),
            _ => (FindingKind::GlobalRace, self.launch.table.describe(address)),
        };
        let message = format!(
            "lanes {first} and {second} write different values to {place} by one instruction, and which of them stays is left open"
        );
        let hint = "let one lane write, or combine the values first";
        self.fail(kind, 1 << first | 1 << second, message, Some(hint))
    }

    /// Adds to a race what to do if both sides write the same value. Where such races are none, a store that leaves all bytes as
    /// they are goes on.
    #[cold]
    pub(crate) fn same_value(
        &mut self,
        flow: Flow,
        stored: u32,
        same: impl Fn(&Self, usize) -> bool,
    ) -> Result<(), Flow> {
        let lanes = self.fault.as_ref().map_or(0, |fault| fault.lanes & self.warp.mask);
        if lanes != 0
            && ones(lanes).all(|lane| same(self, lane))
            && let Some(fault) = &self.fault
            && fault.related.iter().any(|(what, _)| what.starts_with("the write"))
        {
            let is_of_warps = matches!(fault.kind, FindingKind::SharedRace | FindingKind::GlobalRace)
                && !fault.related.iter().any(|(what, _)| what.contains("copy engine"));
            if is_of_warps && !self.launch.checks.equal_writes && ones(stored).all(|lane| same(self, lane)) {
                self.fault = None;
                return Ok(());
            }
            let Some(fault) = &mut self.fault else { return Err(flow) };
            let hint = "the value stands there already: if all writers mean the same value, a strong store says so (`st.relaxed`, \
                        `st.volatile`); otherwise ";
            fault.hint = Some(format!("{hint}{}", fault.hint.take().unwrap_or_default()));
        }
        Err(flow)
    }
}

/// Two lanes that touch the same bytes and differ there.
fn meeting(
    lanes: u32,
    addresses: &[u64; 32],
    bytes: u32,
    same: impl Fn(usize, usize) -> bool,
) -> Option<(usize, usize)> {
    // Lanes by the place of their address in a small table: only those in one place can meet.
    let mut table = [0u32; 64];
    for lane in ones(lanes) {
        let place = &mut table[(addresses[lane] / u64::from(bytes) % 64) as usize];
        for other in ones(*place) {
            if addresses[other] == addresses[lane] && !same(other, lane) {
                return Some((other, lane));
            }
        }
        *place |= 1 << lane;
    }
    None
}
