//! `cp.async`: copies from global to shared memory that complete when they are waited for.
//!
//! Each lane has groups of its own: a copy belongs to the group that its lane commits next, and a wait names how many
//! of the last groups may still be under way. Until the wait the destination is pending and nobody may touch it;
//! [`Completion`] says when the bytes move.

use std::collections::VecDeque;

use super::access::ones;
use super::code::{Core, Flow, Handler, Inst, Level};
use super::lane::{Lane, warp};
use crate::check::FindingKind;
use crate::check::granules::Rows;
use crate::check::shadow::{Access, GRANULE, Shadow};
use crate::config::Completion;
use crate::ir::op::Op;

/// The copies that a warp has started and not yet waited for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    /// The group that each lane's next copy belongs to.
    groups: [u32; 32],
    pending: VecDeque<Pending>,
    started: u64,
}

/// The copies of one instruction.
#[derive(Clone, Debug)]
struct Pending {
    lanes: u32,
    groups: [u32; 32],
    from: [u64; 32],
    to: [u32; 32],
    /// Bytes that are read; the others become zeros.
    lengths: [u8; 32],
    bytes: u8,
    /// The allocation that all lanes copy 16 bytes from, if there is such a one.
    source: Option<usize>,
    /// The bytes have moved already.
    moved: bool,
    /// The instruction that started it.
    at: u32,
    /// What [`LaneLog::points`](crate::check::lanes::LaneLog::points) was then.
    points: u64,
}

/// The handler that starts copies.
pub(crate) fn start(level: Level) -> Handler {
    warp!(level, |core, inst| { begin(core, inst).err().unwrap_or(Flow::Next) })
}

#[inline(always)]
fn begin(core: &mut Core<'_>, inst: &Inst) -> Result<(), Flow> {
    let Op::CopyAsync { bytes, with_source_size } = inst.op else { return Ok(()) };
    let wide = u32::from(bytes);
    let to = core.addresses(inst.slots[0], inst.immediates[0])?;
    let from = core.addresses(inst.slots[1], inst.immediates[1])?;
    let mask = core.warp.mask;
    core.check_alignment(mask, &to, wide, "asynchronous copy")?;
    core.check_alignment(mask, &from, wide, "asynchronous copy")?;
    let mut lengths = [bytes; 32];
    if with_source_size {
        let slot = inst.slots[2];
        let missing = mask & !u32::written(core, slot);
        if missing != 0 && core.launch.checks.uninitialised {
            return Err(core.uninitialised(missing, "the length of an asynchronous copy"));
        }
        let sizes = u32::read(core, slot);
        for lane in 0..32 {
            lengths[lane] = sizes[lane].min(wide) as u8;
        }
    }
    let lanes = core.check_shared(mask, &to, wide, "asynchronous copy")?;
    if wide == GRANULE && core.launch.checks.alignment {
        let rows = Rows::new(lanes, |lane| to[lane] as u32);
        core.race_rows(lanes, &to, &rows, Access::Asynchronous)?;
        core.race_lanes_rows(lanes, &to, &rows, true)?;
    } else {
        core.race(lanes, &to, wide, Access::Asynchronous)?;
        core.race_lanes(lanes, &to, wide, true)?;
    }
    // The source is checked here, where the instruction is at hand; a copy of no bytes has none.
    let mut reading = 0;
    for lane in 0..32 {
        reading |= u32::from(lengths[lane] != 0) << lane;
    }
    let mut rest = lanes & reading;
    core.check_grids_of_load(rest, &from, wide, "asynchronous copy")?;
    let mut source = None;
    let table = core.launch.table;
    while rest != 0 {
        let first = rest.trailing_zeros() as usize;
        let length = u32::from(lengths[first]);
        let Some(index) = core.allocation(from[first], 1 << first, &from, length, "asynchronous copy")?
        else {
            lengths[first] = 0;
            (source, rest) = (None, rest & (rest - 1));
            continue;
        };
        let allocation = table.at(index);
        let (base, size) = (allocation.base, allocation.bytes());
        source = (source.is_none() && rest == lanes && lengths == [16; 32]).then_some(index);
        let mut here = 0;
        for lane in 0..32 {
            let offset = from[lane].wrapping_sub(base);
            // The bytes are wanted at the wait, and come from all over memory.
            allocation.storage.prefetch(offset);
            let fits = offset < size && size - offset >= u64::from(lengths[lane]);
            here |= u32::from(fits) << lane;
        }
        here &= rest;
        rest &= !here;
        if lengths == [16; 32] {
            core.race_global(index, here, &from, 16, Access::Read)?;
        } else {
            for lane in ones(here) {
                core.race_global(index, 1 << lane, &from, u32::from(lengths[lane]), Access::Read)?;
            }
        }
    }
    let moved = match core.launch.completion {
        Completion::Eager => true,
        Completion::Latest => false,
        Completion::Random => {
            let seed = core.launch.seed ^ core.block.number << 20 ^ u64::from(core.warp.number);
            mix(seed.wrapping_add(core.warp.copies.started << 32)) & 1 == 0
        }
    };
    let mut offsets = [0; 32];
    for lane in 0..32 {
        offsets[lane] = to[lane] as u32;
    }
    let pending = Pending {
        lanes,
        groups: core.warp.copies.groups,
        from,
        to: offsets,
        lengths,
        bytes,
        source,
        moved,
        at: core.warp.pc,
        points: core.warp.lanes.points(),
    };
    if moved {
        transfer(core, &pending, lanes);
    }
    core.warp.copies.started += 1;
    core.warp.copies.pending.push_back(pending);
    Ok(())
}

/// Spreads the bits of a number (the finaliser of SplitMix64).
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Moves the bytes of some lanes' copies.
#[inline(always)]
fn transfer(core: &mut Core<'_>, copy: &Pending, lanes: u32) {
    let table = core.launch.table;
    let mut cached = core.warp.allocation;
    let bytes = u32::from(copy.bytes);
    let mut lanes = lanes;
    if let Some(allocation) = copy.source.and_then(|index| table.get(index)) {
        let (base, storage) = (allocation.base, &*allocation.storage);
        for lane in ones(lanes) {
            if let Some([low, high]) = storage.written_block(copy.from[lane] - base) {
                let data = u128::from(high) << 64 | u128::from(low);
                core.block.shared.store_block(copy.to[lane] as usize, data.to_le_bytes());
                lanes &= !(1 << lane);
            }
        }
    }
    for lane in ones(lanes) {
        let (from, to) = (copy.from[lane], copy.to[lane] as usize);
        let length = u32::from(copy.lengths[lane]);
        let mut data = [0u8; 16];
        let mut written = (1u32 << bytes) - 1;
        if length != 0 {
            let holds = |index| table.get(index).is_some_and(|a| from.wrapping_sub(a.base) < a.bytes());
            if !holds(cached) {
                match table.find(from) {
                    Some((index, _)) => cached = index,
                    None => continue,
                }
            }
            let allocation = table.at(cached);
            let (storage, offset) = (&*allocation.storage, from - allocation.base);
            if length == 16 && offset.is_multiple_of(16) {
                data[..8].copy_from_slice(&storage.load::<u64>(offset).to_le_bytes());
                data[8..].copy_from_slice(&storage.load::<u64>(offset + 8).to_le_bytes());
                if storage.is_written(offset, 8) && storage.is_written(offset + 8, 8) {
                    core.block.shared.store_block(to, data);
                    continue;
                }
                written = written_bits(storage, offset, length);
            } else {
                storage.read(offset, &mut data[..length as usize]);
                // Beyond the source's length the destination gets zeros.
                let source = (1u32 << length) - 1;
                written = written & !source | written_bits(storage, offset, length);
            }
        }
        let memory = &mut core.block.shared;
        match bytes {
            16 => memory.store(to, data),
            8 => memory
                .store::<8>(to, [data[0], data[1], data[2], data[3], data[4], data[5], data[6], data[7]]),
            _ => memory.store(to, [data[0], data[1], data[2], data[3]]),
        }
        if written == (1 << bytes) - 1 {
            memory.set_written(to, bytes, true);
        } else {
            for i in 0..bytes {
                memory.set_written(to + i as usize, 1, written >> i & 1 == 1);
            }
        }
    }
}

fn written_bits(storage: &crate::memory::storage::Storage, offset: u64, length: u32) -> u32 {
    (0..length).fold(0, |bits, i| bits | u32::from(storage.is_written(offset + u64::from(i), 1)) << i)
}

/// The handler of `cp.async.commit_group`.
pub(crate) fn commit(level: Level) -> Handler {
    warp!(level, |core, _inst| {
        let mask = core.warp.mask;
        for (lane, group) in core.warp.copies.groups.iter_mut().enumerate() {
            *group += mask >> lane & 1;
        }
        Flow::Next
    })
}

/// The handler of `cp.async.wait_group` and `cp.async.wait_all`.
pub(crate) fn wait(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::CopyWait { all } = inst.op else { return Flow::Next };
        let allowed = inst.immediates[0].clamp(0, i64::from(u32::MAX)) as u32;
        let mask = core.warp.mask;
        let groups = core.warp.copies.groups;
        let completed = complete(core, |copy| {
            let mut done = 0;
            for lane in 0..32 {
                // A copy is done if at most `allowed` groups were committed after its own.
                let complete = all || copy.groups[lane].saturating_add(allowed) < groups[lane];
                done |= u32::from(complete) << lane;
            }
            done & mask
        });
        completed.err().unwrap_or(Flow::Next)
    })
}

impl Core<'_> {
    /// Lanes exit: they must have waited for their copies.
    pub(super) fn check_copies_at_exit(&mut self) -> Result<(), Flow> {
        if !self.launch.checks.asynchronous {
            return Ok(());
        }
        let mask = self.warp.mask;
        let Some(left) = self.warp.copies.pending.iter().find(|copy| copy.lanes & mask != 0) else {
            return Ok(());
        };
        let (lanes, at, to) =
            (left.lanes & mask, left.at, left.to[(left.lanes & mask).trailing_zeros() as usize]);
        let place = self.launch.describe_shared(to);
        let message = format!(
            "an exit with an asynchronous copy to {place} of shared memory that nothing has waited for"
        );
        let hint =
            "wait for every copy before the end (`cp.async.wait_all`), or do not start what nobody reads";
        self.fail(FindingKind::AsynchronousCopy, lanes, message, Some(hint));
        if let Some(fault) = &mut self.fault {
            fault.related.push(("the copy".to_owned(), at));
        }
        Err(Flow::Fault)
    }
}

/// Completes all copies of the lanes at hand.
pub(super) fn complete_all(core: &mut Core<'_>) -> Result<(), Flow> {
    let mask = core.warp.mask;
    complete(core, |_| mask)
}

/// Completes the copies of the lanes that `which` names. Each is a write by its lane from its start to here: the wait tells the other lanes
/// nothing.
#[inline(always)]
fn complete(core: &mut Core<'_>, which: impl Fn(&Pending) -> u32) -> Result<(), Flow> {
    // Taken out, so that the warp can be worked on; in order, so that later copies win.
    let mut pending = std::mem::take(&mut core.warp.copies.pending);
    let now = core.order.now();
    let mut written = Ok(());
    for copy in &mut pending {
        let done = which(copy) & copy.lanes;
        if done != 0 {
            if !copy.moved {
                transfer(core, copy, done);
            }
            let whole = u32::from(copy.bytes) == GRANULE && core.launch.checks.alignment;
            let rows = whole.then(|| Rows::new(done, |lane| copy.to[lane]));
            if let Some(shadow) = &mut core.block.shadow {
                match &rows {
                    Some(rows) => {
                        rows.parts().for_each(|(region, all)| shadow.complete_whole(region, all, now))
                    }
                    None => complete_parts(shadow, copy, done, now),
                }
                // The start has been noted as a write, too.
                if written.is_ok() && copy.points != core.warp.lanes.points() {
                    let to = copy.to.map(u64::from);
                    written = match &rows {
                        Some(rows) => core.race_lanes_rows(done, &to, rows, true),
                        None => core.race_lanes(done, &to, copy.bytes.into(), true),
                    };
                }
            }
            copy.lanes &= !done;
        }
    }
    while pending.front().is_some_and(|copy| copy.lanes == 0) {
        pending.pop_front();
    }
    core.warp.copies.pending = pending;
    written
}

/// The copies of some lanes, of less than a granule each, have been waited for.
#[inline(always)]
fn complete_parts(shadow: &mut Shadow, copy: &Pending, done: u32, now: u32) {
    let field = (1u32 << copy.bytes) - 1;
    // Neighbouring lanes together, where they fill a granule in parts.
    let (mut here, mut all) = (copy.to[done.trailing_zeros() as usize] / GRANULE, 0);
    for lane in ones(done) {
        let (granule, bytes) = (copy.to[lane] / GRANULE, field << (copy.to[lane] % GRANULE));
        if granule != here {
            shadow.complete(here, all, now);
            (here, all) = (granule, 0);
        }
        all |= bytes as u16;
    }
    shadow.complete(here, all, now);
}
