//! `cp.async.bulk` and `cp.reduce.async.bulk`: ranges of bytes that the copy engine moves, each lane its own; and what copies of
//! tensors have in common with them.

use super::access::HINT_RED_ZONE;
use super::access::ones;
use super::agent::{Piece, Place, Signal, Transfer};
use super::code::{Core, Flow, Handler, Inst, Level};
use super::lane::{Lane, warp};
use super::registers::Slot;
use crate::check::FindingKind;
use crate::ir::op::{Atomic, BulkCopy, Destination, Op};
use crate::ir::types::Ty;

/// What addresses and sizes of ranges are multiples of.
const RANGE_ALIGNMENT: u32 = 16;

/// The handler of copies and reductions of ranges.
pub(crate) fn copy(level: Level) -> Handler {
    warp!(level, |core, inst| { begin(core, inst).err().unwrap_or(Flow::Next) })
}

/// The handler of `cp.async.bulk.commit_group`.
pub(crate) fn commit(level: Level) -> Handler {
    warp!(level, |core, _inst| {
        core.commit_bulk_group(core.warp.mask);
        Flow::Next
    })
}

/// The handler of `cp.async.bulk.wait_group`.
pub(crate) fn wait(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::BulkWait { read } = inst.op else { return Flow::Next };
        let allowed = inst.immediates[0].clamp(0, i64::from(u32::MAX)) as u32;
        let mask = core.warp.mask;
        core.wait_bulk_group(mask, allowed, read).err().unwrap_or(Flow::Next)
    })
}

/// The handler of `createpolicy`: any value will do.
pub(crate) fn create_policy(level: Level) -> Handler {
    warp!(level, |core, inst| {
        u64::write(core, inst.slots[0], &[0x12f0_0000_0000_0000; 32], u32::MAX);
        Flow::Next
    })
}

fn begin(core: &mut Core<'_>, inst: &Inst) -> Result<(), Flow> {
    let Op::BulkCopy(what) = inst.op else { return Ok(()) };
    let mask = core.warp.mask;
    let [first, second, third, fourth, fifth, ..] = inst.slots;
    let name = match what {
        BulkCopy::Store(Some(_)) | BulkCopy::ToPeer(Some(_)) => "a bulk reduction",
        BulkCopy::Prefetch => "a bulk prefetch",
        _ => "a bulk copy",
    };
    let to = core.addresses(first, inst.immediates[0])?;
    core.check_alignment(mask, &to, RANGE_ALIGNMENT, name)?;
    if what == BulkCopy::Prefetch {
        let sizes = core.sizes(second, name)?;
        for lane in ones(mask) {
            core.global_place(lane, to[lane], sizes[lane], Use::Prefetch, name)?;
        }
        return Ok(());
    }
    let from = core.addresses(second, inst.immediates[1])?;
    core.check_alignment(mask, &from, RANGE_ALIGNMENT, name)?;
    let sizes = core.sizes(third, name)?;
    let barriers = match what {
        BulkCopy::Store(_) => [0; 32],
        _ => core.barrier_addresses(fourth, inst.immediates[2])?,
    };
    let ranks = match what {
        BulkCopy::Load(Destination::Several) => core.masks(fifth)?,
        _ => [0; 32],
    };
    for lane in ones(mask) {
        let bytes = sizes[lane];
        let mut pieces = Vec::new();
        let route =
            |destination| Route { destination, to: to[lane], barrier: barriers[lane], ranks: ranks[lane] };
        let signals = match what {
            BulkCopy::Load(destination) => {
                let source = core.global_place(lane, from[lane], bytes, Use::Read, name)?;
                let Targets { places, signals } =
                    core.targets(lane, route(destination), bytes.into(), name)?;
                for (rank, offset) in places {
                    let to = Place::Shared { rank, offset };
                    pieces.push(match source {
                        Some(from) => Piece::Load { from, to, bytes },
                        None => Piece::Fill { to, bytes, pattern: 0 },
                    });
                }
                signals
            }
            BulkCopy::ToPeer(reduction) => {
                let Targets { places, signals } =
                    core.targets(lane, route(Destination::Any), bytes.into(), name)?;
                let source = core.own_range(lane, from[lane], bytes.into(), name)?;
                if let (Some(&(rank, offset)), Some(from)) = (places.first(), source) {
                    pieces.push(piece(reduction, from, Place::Shared { rank, offset }, bytes));
                }
                signals
            }
            BulkCopy::Store(reduction) => {
                let source = core.own_range(lane, from[lane], bytes.into(), name)?;
                let target = core.global_place(lane, to[lane], bytes, Use::Write, name)?;
                if let (Some(from), Some(to)) = (source, target) {
                    pieces.push(piece(reduction, from, to, bytes));
                }
                vec![Signal::Group]
            }
            BulkCopy::Prefetch => continue,
        };
        pieces.retain(|piece| piece.bytes() != 0);
        core.start(lane, Transfer { what: name, pieces, signals, bytes, clock: None })?;
    }
    Ok(())
}

/// What a range of global memory is named for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Read,
    Write,
    /// Nobody sees what is there.
    Prefetch,
}

/// Where a lane's transfer to shared memory goes, and who hears of its end, as its operands say.
#[derive(Clone, Copy)]
pub(super) struct Route {
    pub(super) destination: Destination,
    pub(super) to: u64,
    pub(super) barrier: u64,
    /// The blocks that get a copy, if several may.
    pub(super) ranks: u32,
}

/// The same, by the blocks of the cluster: ranks and offsets.
pub(super) struct Targets {
    pub(super) places: Vec<(u32, u32)>,
    pub(super) signals: Vec<Signal>,
}

fn piece(reduction: Option<(Atomic, Ty)>, from: Place, to: Place, bytes: u32) -> Piece {
    match reduction {
        Some((op, ty)) => Piece::Reduce { op, ty, flush: false, from, to, bytes },
        None => Piece::Load { from, to, bytes },
    }
}

impl Core<'_> {
    /// The sizes of the lanes' ranges.
    fn sizes(&mut self, slot: Slot, what: &str) -> Result<[u32; 32], Flow> {
        let (sizes, mask) = (*u32::read(self, slot), self.warp.mask);
        let missing = mask & !u32::written(self, slot);
        if missing != 0 && self.launch.checks.uninitialised {
            return Err(self.uninitialised(missing, &format!("the size of {what}")));
        }
        let wrong = ones(mask).find(|&lane| !sizes[lane].is_multiple_of(RANGE_ALIGNMENT));
        if let Some(lane) = wrong.filter(|_| self.launch.checks.alignment) {
            let message =
                format!("{what} of {} bytes, which is not a multiple of {RANGE_ALIGNMENT}", sizes[lane]);
            return Err(self.fail(FindingKind::Misaligned, 1 << lane, message, None));
        }
        Ok(sizes)
    }

    /// The addresses of the mbarriers that the lanes' transfers tell of their end.
    pub(super) fn barrier_addresses(&mut self, slot: Slot, offset: i64) -> Result<[u64; 32], Flow> {
        let addresses = self.addresses(slot, offset)?;
        self.check_alignment(self.warp.mask, &addresses, 8, "the mbarrier of a copy")?;
        Ok(addresses)
    }

    /// The masks that say which blocks of the cluster get a copy.
    pub(super) fn masks(&mut self, slot: Slot) -> Result<[u32; 32], Flow> {
        let missing = self.warp.mask & !u32::written(self, slot);
        if missing != 0 && self.launch.checks.uninitialised {
            return Err(self.uninitialised(missing, "the mask of the blocks that a copy goes to"));
        }
        Ok(u32::read(self, slot).map(|mask| mask & 0xffff))
    }

    /// The rank and offset of each place that a lane's transfer writes `bytes` bytes to, those left out that are not in
    /// shared memory where that is not checked; and the barriers that hear of it.
    pub(super) fn targets(
        &mut self,
        lane: usize,
        route: Route,
        bytes: u64,
        what: &str,
    ) -> Result<Targets, Flow> {
        let Route { destination, to, barrier, ranks } = route;
        let (rank, offset) = self.place_of(to, lane, what)?;
        let (barrier_rank, barrier) = self.place_of(barrier, lane, "an mbarrier")?;
        let count = self.launch.ranks();
        let ranks: Vec<u32> = match destination {
            Destination::Several => ones(ranks).map(|rank| rank as u32).collect(),
            Destination::Own | Destination::Any => vec![rank],
        };
        if let Some(&beyond) = ranks.iter().find(|&&rank| rank >= count) {
            let message = format!("{what} to block {beyond} of a cluster of {count}");
            let hint = "each bit of the mask is for the block of that rank in the cluster";
            return Err(self.fail(FindingKind::OutOfBounds, 1 << lane, message, Some(hint)));
        }
        if destination == Destination::Own && rank != self.block.rank {
            let message =
                format!("{what} to `.shared::cta`, but the address is in block {rank} of the cluster");
            let hint = "`.shared::cluster` takes the address of another block's shared memory";
            return Err(self.fail(FindingKind::OutOfBounds, 1 << lane, message, Some(hint)));
        }
        if destination != Destination::Several && rank != barrier_rank {
            let message = format!(
                "{what} to block {rank} of the cluster tells an mbarrier of block {barrier_rank}: expected one of the \
                 block that it writes to"
            );
            return Err(self.fail(FindingKind::BarrierMisuse, 1 << lane, message, None));
        }
        let inside = self.fits(lane, offset, bytes, what)?;
        let places = if inside { ranks.iter().map(|&rank| (rank, offset)).collect() } else { Vec::new() };
        let signals = ranks.into_iter().map(|rank| Signal::Barrier { rank, offset: barrier }).collect();
        Ok(Targets { places, signals })
    }

    /// Whether bytes are inside a block's shared memory; a finding if they do not.
    fn fits(&mut self, lane: usize, offset: u32, bytes: u64, what: &str) -> Result<bool, Flow> {
        let size = u64::from(self.launch.shared_bytes);
        let inside = u64::from(offset) + bytes <= size;
        if !self.launch.checks.bounds {
            return Ok(inside);
        }
        if let Some(stray) = self.launch.in_red_zone(offset, bytes) {
            let message =
                format!("{what} of {bytes} bytes of shared memory: {}", self.launch.describe_red_zone(stray));
            return Err(self.fail(FindingKind::OutOfBounds, 1 << lane, message, Some(HINT_RED_ZONE)));
        }
        if inside {
            return Ok(true);
        }
        let message =
            format!("{what} of {bytes} bytes at {offset:#x} of shared memory, which has {size} bytes");
        Err(self.fail(FindingKind::OutOfBounds, 1 << lane, message, None))
    }

    /// A range of the own block's shared memory; `None` if it is outside and nobody wants to know.
    pub(super) fn own_range(
        &mut self,
        lane: usize,
        address: u64,
        bytes: u64,
        what: &str,
    ) -> Result<Option<Place>, Flow> {
        let (rank, offset) = self.place_of(address, lane, what)?;
        if rank != self.block.rank {
            let message =
                format!("{what} from `.shared::cta`, but the address is in block {rank} of the cluster");
            return Err(self.fail(FindingKind::OutOfBounds, 1 << lane, message, None));
        }
        let inside = self.fits(lane, offset, bytes, what)?;
        Ok(inside.then_some(Place::Shared { rank, offset }))
    }

    /// A range of global memory; `None` if it is outside every allocation and nobody wants to know.
    pub(super) fn global_place(
        &mut self,
        lane: usize,
        address: u64,
        bytes: u32,
        purpose: Use,
        what: &str,
    ) -> Result<Option<Place>, Flow> {
        if bytes == 0 {
            return Ok(None);
        }
        match purpose {
            Use::Prefetch => {}
            Use::Read => self.check_grids_of_load(1 << lane, &[address; 32], bytes, what)?,
            Use::Write => self.check_grids(1 << lane, &[address; 32], bytes, what)?,
        }
        let Some(index) = self.allocation(address, 1 << lane, &[address; 32], bytes, what)? else {
            return Ok(None);
        };
        let table = self.launch.table;
        let allocation = table.at(index);
        if purpose == Use::Write && allocation.read_only {
            let message = format!("{what} to {}", table.describe(address));
            return Err(self.fail(FindingKind::ReadOnly, 1 << lane, message, allocation.hint_of_write()));
        }
        if purpose == Use::Write {
            allocation.note_write(self.launch.number);
        }
        Ok(Some(Place::Global { allocation: index, offset: address - allocation.base }))
    }
}
