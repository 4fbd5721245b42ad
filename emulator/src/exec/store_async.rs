//! `st.async`: elements that a lane stores to shared memory of its cluster, where an mbarrier counts their bytes.
//!
//! Such a store comes at any time after it was started, as a copy does. It is an ordinary write otherwise: no proxy fence has to stand between it and what
//! threads have done to the bytes, and whoever has waited at the mbarrier knows what the storing thread had done.

use super::access::ones;
use super::agent::{Piece, Place, Transfer};
use super::bulk::{Route, Targets};
use super::code::{Core, Flow, Handler, Inst, Level};
use super::lane::{Lane, warp};
use crate::ir::op::{Destination, Op};

const NAME: &str = "an asynchronous store";

/// The handler of `st.async`.
pub(crate) fn store(level: Level) -> Handler {
    warp!(level, |core, inst| { begin(core, inst).err().unwrap_or(Flow::Next) })
}

fn begin(core: &mut Core<'_>, inst: &Inst) -> Result<(), Flow> {
    let Op::StoreAsync { ty, count } = inst.op else { return Ok(()) };
    let (mask, count, size) = (core.warp.mask, usize::from(count), ty.bytes());
    let bytes = size * count as u32;
    let to = core.addresses(inst.slots[0], inst.immediates[0])?;
    core.check_alignment(mask, &to, bytes, NAME)?;
    let barriers = core.barrier_addresses(inst.slots[1 + count], inst.immediates[1])?;
    for lane in ones(mask) {
        let (mut data, mut written) = ([0; 16], 0);
        for n in 0..count {
            let (slot, at, size) = (inst.slots[1 + n], n * size as usize, size as usize);
            let (bits, is_written) = if size == 8 {
                (u64::read(core, slot)[lane], u64::written(core, slot))
            } else {
                (u64::from(u32::read(core, slot)[lane]), u32::written(core, slot))
            };
            data[at..at + size].copy_from_slice(&bits.to_le_bytes()[..size]);
            if is_written >> lane & 1 == 1 {
                written |= (0xffff >> (16 - size)) << at;
            }
        }
        let route = Route { destination: Destination::Any, to: to[lane], barrier: barriers[lane], ranks: 0 };
        let Targets { places, signals } = core.targets(lane, route, bytes.into(), NAME)?;
        let pieces = places.into_iter().map(|(rank, offset)| {
            let to = Place::Shared { rank, offset };
            Piece::Write { to, bytes, data, written }
        });
        let pieces: Vec<_> = pieces.collect();
        let clock = Some(core.order.release(core.warp.actor));
        core.start(lane, Transfer { what: NAME, pieces, signals, bytes, clock })?;
    }
    Ok(())
}
