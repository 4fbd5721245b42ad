//! mbarriers: barriers in shared memory that count arrivals and bytes.
//!
//! A phase ends when nothing is pending: no arrivals, and no bytes of the copies that the barrier was told to expect. The barrier
//! stands in eight bytes of shared memory, which hold an image of it; its state is kept beside them. While it is live, ordinary
//! writes to its bytes are errors.

use super::access::ones;
use super::code::{Core, Flow, Handler, Inst, Level};
use super::lane::{Lane, warp};
use super::warp::State;
use crate::check::FindingKind;
use crate::check::order::{Actor, Clock, Order};
use crate::check::shadow::{Access, Lock, Who};
use crate::config::Completion;
use crate::ir::op::{Mbarrier as What, Op};
use crate::syntax::ast::Space;

/// The largest count of arrivals, and of bytes, that a phase may have.
const MOST: u32 = (1 << 20) - 1;

/// A live mbarrier.
#[derive(Debug)]
pub(crate) struct Mbarrier {
    /// Arrivals that a phase needs, and that this one still needs.
    expected: u32,
    pending: u32,
    /// Bytes that are expected and have not come; negative if they came before they were announced.
    bytes: i64,
    phase: u32,
    /// Who initialised it, when and where, and whether a fence has made that visible to other proxies.
    init: (Actor, u32, u32),
    pub(super) fenced: bool,
    /// What the copies are that it is told of.
    pub(super) channel: Actor,
    /// What is passed on to those that wait for this phase, and what was in the last one.
    arrived: Clock,
    complete: Clock,
    /// Warps that the last phase has woken and that have not looked yet.
    woken: Vec<u32>,
    lock: Option<Lock>,
}

impl Mbarrier {
    /// Its state in words.
    pub(super) fn describe(&self) -> String {
        let (phase, pending, expected) = (self.phase, self.pending, self.expected);
        let bytes = match self.bytes {
            0.. => format!("and {} bytes", self.bytes),
            _ => format!("and has got {} bytes more than it was told to expect", -self.bytes),
        };
        format!("phase {phase} (parity {}) lacks {pending} of {expected} arrivals {bytes}", phase & 1)
    }

    /// Whether an actor knows of its initialisation.
    pub(super) fn is_known(&self, order: &Order, actor: u32) -> bool {
        order.knows(actor, self.init.0, self.init.1)
    }

    /// What an arrival gives: the phase, and the arrivals that it needed before.
    fn state(&self) -> u64 {
        u64::from(self.pending) << 32 | u64::from(self.phase)
    }
}

/// The mbarriers of a block, by their offset.
#[derive(Debug, Default)]
pub(crate) struct Mbarriers {
    live: Vec<(u32, Mbarrier)>,
}

impl Mbarriers {
    pub(super) fn get(&self, offset: u32) -> Option<&Mbarrier> {
        self.live.iter().find(|(at, _)| *at == offset).map(|(_, barrier)| barrier)
    }

    fn get_mut(&mut self, offset: u32) -> Option<&mut Mbarrier> {
        self.live.iter_mut().find(|(at, _)| *at == offset).map(|(_, barrier)| barrier)
    }

    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Mbarrier> {
        self.live.iter_mut().map(|(_, barrier)| barrier)
    }
}

/// The handler of an operation on mbarriers.
pub(crate) fn handler_of(what: What, level: Level) -> Handler {
    match what {
        What::Wait { .. } => warp!(level, |core, inst| { wait(core, inst).unwrap_or_else(|flow| flow) }),
        What::PendingCount => warp!(level, |core, inst| {
            let (states, known) = (*u64::read(core, inst.slots[1]), u64::written(core, inst.slots[1]));
            u32::write(core, inst.slots[0], &states.map(|state| (state >> 32) as u32), known);
            Flow::Next
        }),
        _ => warp!(level, |core, inst| { change(core, inst).err().unwrap_or(Flow::Next) }),
    }
}

/// Where the lanes' mbarriers are: ranks of blocks, and offsets in their shared memory, in which eight bytes are. `own`: they must
/// be in the own block.
fn places(
    core: &mut Core<'_>,
    inst: &Inst,
    operand: usize,
    space: Space,
    own: bool,
) -> Result<[(u32, u32); 32], Flow> {
    let mut addresses = core.addresses(inst.slots[operand], inst.immediates[0])?;
    let mask = core.warp.mask;
    if space == Space::Generic {
        for lane in ones(mask) {
            addresses[lane] = core.shared_address(addresses[lane], lane, "an mbarrier")?;
        }
    }
    core.check_alignment(mask, &addresses, 8, "mbarrier")?;
    let mut places = [(0, 0); 32];
    for lane in ones(mask) {
        let address = addresses[lane];
        let (rank, offset) = match space {
            Space::Shared => (core.block.rank, u32::try_from(address).unwrap_or(u32::MAX)),
            _ => core.place_of(address, lane, "an mbarrier")?,
        };
        if own && rank != core.block.rank {
            let message =
                format!("this works on an mbarrier of the own block, not of block {rank} of the cluster");
            return Err(core.fail(FindingKind::BarrierMisuse, 1 << lane, message, None));
        }
        let size = core.launch.shared_bytes;
        if u64::from(offset) + 8 > u64::from(size) {
            let message = format!("mbarrier at {offset:#x} of shared memory, which has {size} bytes");
            return Err(core.fail(FindingKind::OutOfBounds, 1 << lane, message, None));
        }
        places[lane] = (rank, offset);
    }
    Ok(places)
}

/// An operand that counts something.
fn counts(core: &mut Core<'_>, inst: &Inst, operand: usize, what: &str) -> Result<[u32; 32], Flow> {
    let (values, mask) = (*u32::read(core, inst.slots[operand]), core.warp.mask);
    let missing = mask & !u32::written(core, inst.slots[operand]);
    if missing != 0 && core.launch.checks.uninitialised {
        return Err(core.uninitialised(missing, what));
    }
    for lane in ones(mask) {
        if values[lane] > MOST {
            let message = format!("{what} is {}, more than {MOST}", values[lane]);
            return Err(core.fail(FindingKind::BarrierMisuse, 1 << lane, message, None));
        }
    }
    Ok(values)
}

fn change(core: &mut Core<'_>, inst: &Inst) -> Result<(), Flow> {
    let Op::Mbarrier { what, space, relaxed } = inst.op else { return Ok(()) };
    let arrive = matches!(what, What::Arrive { .. });
    let first = usize::from(arrive);
    let own = matches!(what, What::Init | What::Invalidate);
    let places = places(core, inst, first, space, own)?;
    let mask = core.warp.mask;
    let values = match what {
        What::Init => counts(core, inst, 1, "the count of an mbarrier")?,
        What::ExpectBytes | What::CompleteBytes => counts(core, inst, 1, "the number of bytes")?,
        What::Arrive { expect: true, .. } => counts(core, inst, 2, "the number of bytes")?,
        What::Arrive { counted, no_complete, .. } if counted || no_complete => {
            counts(core, inst, 2, "the number of arrivals")?
        }
        _ => [1; 32],
    };
    let clock = match (arrive, relaxed) {
        (false, _) => Clock::default(),
        (true, false) => {
            let clock = core.order.release(core.warp.actor);
            core.order.arrived(core.warp.actor, core.warp.pc);
            clock
        }
        (true, true) => core.warp.fences.released(),
    };
    if arrive && !relaxed {
        core.pass_on_lanes(mask);
    }
    let mut states = [0; 32];
    for lane in ones(mask) {
        let (rank, offset) = places[lane];
        let value = values[lane];
        match what {
            What::Init => init(core, lane, offset, value)?,
            What::Invalidate => invalidate(core, lane, offset)?,
            What::ExpectBytes => {
                find(core, lane, rank, offset)?.bytes += i64::from(value);
                settle(core, lane, rank, offset)?;
            }
            What::CompleteBytes => {
                find(core, lane, rank, offset)?.bytes -= i64::from(value);
                settle(core, lane, rank, offset)?;
            }
            What::Arrive { drop, expect, no_complete, .. } => {
                let barrier = find(core, lane, rank, offset)?;
                states[lane] = barrier.state();
                let count = if expect { 1 } else { value };
                if expect {
                    barrier.bytes += i64::from(value);
                }
                if drop {
                    barrier.expected = barrier.expected.saturating_sub(count);
                }
                barrier.arrived.join(&clock);
                arrive_on(core, lane, rank, offset, count, no_complete)?;
            }
            What::Wait { .. } | What::PendingCount => {}
        }
    }
    if arrive {
        u64::write(core, inst.slots[0], &states, u32::MAX);
    }
    Ok(())
}

/// The mbarrier at a place. Its initialisation must be known to the warp.
fn find<'c>(core: &'c mut Core<'_>, lane: usize, rank: u32, offset: u32) -> Result<&'c mut Mbarrier, Flow> {
    let known = core.peer(rank).and_then(|block| block.mbarriers.get(offset)).map(|barrier| barrier.init);
    let Some((actor, stamp, at)) = known else {
        let place = core.launch.describe_shared(offset);
        let message = format!("there is no mbarrier at {place}");
        let hint = "`mbarrier.init` comes first, and a barrier of the threads between it and any use";
        return Err(core.fail(FindingKind::BarrierMisuse, 1 << lane, message, Some(hint)));
    };
    let known = core.order.knows(core.warp.actor, actor, stamp) || core.warp.fences.inits.knows(actor, stamp);
    if core.launch.checks.races && !known {
        let place = core.launch.describe_shared(offset);
        let message = format!("the use of the mbarrier at {place} races with its initialisation");
        let hint = "put a barrier of the threads between the two (of the cluster, if other blocks use it)";
        core.fail(FindingKind::SharedRace, 1 << lane, message, Some(hint));
        if let Some(fault) = &mut core.fault {
            fault.related.push(("the initialisation".to_owned(), at));
        }
        return Err(Flow::Fault);
    }
    match core.peer(rank).and_then(|block| block.mbarriers.get_mut(offset)) {
        Some(barrier) => Ok(barrier),
        None => Err(Flow::Fault),
    }
}

fn init(core: &mut Core<'_>, lane: usize, offset: u32, count: u32) -> Result<(), Flow> {
    let place = core.launch.describe_shared(offset);
    let misuse =
        |core: &mut Core<'_>, message| core.fail(FindingKind::BarrierMisuse, 1 << lane, message, None);
    if count == 0 {
        return Err(misuse(
            core,
            format!("the mbarrier at {place} is to expect 0 arrivals: expected 1 to {MOST}"),
        ));
    }
    if core.block.mbarriers.get(offset).is_some() {
        return Err(misuse(core, format!("the mbarrier at {place} is initialised again while it is live")));
    }
    let mut addresses = [0; 32];
    addresses[lane] = u64::from(offset);
    core.race(1 << lane, &addresses, 8, Access::Write)?;
    let who = Who { actor: core.warp.actor, at: core.warp.pc };
    let lock = core.block.shadow.as_mut().map(|shadow| shadow.lock(&[(offset, 8)], who, "a live mbarrier"));
    let barrier = Mbarrier {
        expected: count,
        pending: count,
        bytes: 0,
        phase: 0,
        init: (who.actor as Actor, core.order.now(), who.at),
        fenced: false,
        channel: core.order.channel(),
        arrived: Clock::default(),
        complete: Clock::default(),
        woken: Vec::new(),
        lock,
    };
    core.block.mbarriers.live.push((offset, barrier));
    show(core, core.block.rank, offset);
    Ok(())
}

fn invalidate(core: &mut Core<'_>, lane: usize, offset: u32) -> Result<(), Flow> {
    find(core, lane, core.block.rank, offset)?;
    let live = &mut core.block.mbarriers.live;
    if let Some(index) = live.iter().position(|(at, _)| *at == offset) {
        let (_, barrier) = live.swap_remove(index);
        if let (Some(shadow), Some(lock)) = (&mut core.block.shadow, barrier.lock) {
            shadow.unlock(&core.order, lock);
        }
        // A copy that is still to come keeps its channel.
        if barrier.bytes == 0 && core.engine.is_idle() {
            core.order.give_back(barrier.channel);
        }
        core.block.shared.set_written(offset as usize, 8, false);
    }
    Ok(())
}

/// Counts arrivals, of which there must not be more than are expected.
fn arrive_on(
    core: &mut Core<'_>,
    lane: usize,
    rank: u32,
    offset: u32,
    count: u32,
    no_complete: bool,
) -> Result<(), Flow> {
    let place = core.launch.describe_shared(offset);
    let barrier = find(core, lane, rank, offset)?;
    if count == 0 || count > barrier.pending {
        let (expected, phase, pending) = (barrier.expected, barrier.phase, barrier.pending);
        let message = format!(
            "{count} arrivals at the mbarrier at {place}, whose phase {phase} lacks {pending} of {expected}"
        );
        return Err(core.fail(FindingKind::BarrierMisuse, 1 << lane, message, None));
    }
    barrier.pending -= count;
    if no_complete && barrier.pending == 0 {
        let message = format!("an arrival `.noComplete` completes the phase of the mbarrier at {place}");
        return Err(core.fail(FindingKind::BarrierMisuse, 1 << lane, message, None));
    }
    settle(core, lane, rank, offset)
}

/// Ends the phase if nothing is pending.
fn settle(core: &mut Core<'_>, lane: usize, rank: u32, offset: u32) -> Result<(), Flow> {
    match core.end_phase(rank, offset) {
        None => Ok(()),
        Some(message) => Err(core.fail(FindingKind::BarrierMisuse, 1 << lane, message, None)),
    }
}

/// Writes the barrier's image to its bytes.
fn show(core: &mut Core<'_>, rank: u32, offset: u32) {
    let Some(block) = core.peer(rank) else { return };
    let Some(image) = block.mbarriers.get(offset).map(Mbarrier::state) else { return };
    block.shared.store(offset as usize, image.to_le_bytes());
    block.shared.set_written(offset as usize, 8, true);
}

impl Core<'_> {
    /// Bytes of a copy have come, with what is known of them.
    pub(super) fn bytes_came(&mut self, rank: u32, offset: u32, bytes: u32, clock: &Clock) -> Option<String> {
        let barrier = self.peer(rank)?.mbarriers.get_mut(offset)?;
        barrier.bytes -= i64::from(bytes);
        barrier.arrived.join(clock);
        self.end_phase(rank, offset)
    }

    /// Ends the phase of an mbarrier if nothing is pending. Gives what is wrong with it, if anything is.
    fn end_phase(&mut self, rank: u32, offset: u32) -> Option<String> {
        let place = self.launch.describe_shared(offset);
        let barrier = self.peer(rank)?.mbarriers.get_mut(offset)?;
        if barrier.bytes.unsigned_abs() > u64::from(MOST) {
            return Some(format!(
                "the mbarrier at {place} expects {} bytes, more than {MOST}: {}",
                barrier.bytes,
                barrier.describe()
            ));
        }
        if barrier.pending == 0 && barrier.bytes == 0 {
            if let Some(&late) = barrier.woken.first() {
                return Some(format!(
                    "phase {} of the mbarrier at {place} ends before warp {late} of the cluster has gone on that waited \
                     for the one before: a wait by parity takes the next phase for it",
                    barrier.phase
                ));
            }
            barrier.phase += 1;
            barrier.pending = barrier.expected;
            let arrived = std::mem::take(&mut barrier.arrived);
            barrier.complete.join(&arrived);
            let awaited = |state: State| matches!(state, State::Mbarrier { rank: r, offset: o, .. } if (r, o) == (rank, offset));
            let mut woken = Vec::new();
            let blocks = self.cluster.others.iter_mut().flatten().chain([&mut self.block]);
            for warp in blocks.flat_map(|block| &mut block.parked).chain([&mut self.warp]) {
                if warp.others.iter().any(|group| awaited(group.state)) {
                    woken.push(warp.actor);
                    warp.wake(awaited);
                }
            }
            self.cluster.progress = true;
            if let Some(barrier) = self.peer(rank).and_then(|block| block.mbarriers.get_mut(offset)) {
                barrier.woken = woken;
            }
        }
        show(self, rank, offset);
        None
    }
}

fn wait(core: &mut Core<'_>, inst: &Inst) -> Result<Flow, Flow> {
    let Op::Mbarrier { what: What::Wait { parity, suspend }, space, relaxed } = inst.op else {
        return Ok(Flow::Next);
    };
    let wanted = places(core, inst, 1, space, true)?;
    let mask = core.warp.mask;
    let phases: [u64; 32] = if parity {
        u32::read(core, inst.slots[2]).map(u64::from)
    } else {
        u64::read(core, inst.slots[2]).map(|state| state & u64::from(u32::MAX))
    };
    let known = if parity { u32::written(core, inst.slots[2]) } else { u64::written(core, inst.slots[2]) };
    if mask & !known != 0 && core.launch.checks.uninitialised {
        return Err(core.uninitialised(mask & !known, "the phase that an mbarrier is waited for"));
    }
    let actor = core.warp.actor;
    let rank = core.block.rank;
    let mut done = 0;
    let mut places = [(0, 0); 32];
    for lane in ones(mask) {
        let (_, offset) = wanted[lane];
        if parity && phases[lane] > 1 {
            let message = format!("the parity of a phase is {}: expected 0 or 1", phases[lane]);
            return Err(core.fail(FindingKind::BarrierMisuse, 1 << lane, message, None));
        }
        let barrier = find(core, lane, rank, offset)?;
        barrier.woken.retain(|&woken| woken != actor);
        let phase = u64::from(barrier.phase);
        let complete = if parity { phase & 1 != phases[lane] } else { phase != phases[lane] };
        done |= u32::from(complete) << lane;
        places[lane] = (offset, (phase & 1) as u32);
    }
    let first = places[mask.trailing_zeros() as usize & 31];
    let together = ones(mask).all(|lane| places[lane] == first);
    if done == 0 && suspend && together && !core.gives_up() {
        core.warp.waiting = State::Mbarrier { rank, offset: first.0, parity: first.1 };
        return Ok(Flow::Wait);
    }
    for lane in ones(done) {
        if lane == 0 || done & ((1 << lane) - 1) == 0 || places[lane] != places[lane - 1] {
            let complete = core.block.mbarriers.get(places[lane].0).map(|barrier| &barrier.complete);
            match complete {
                Some(complete) if relaxed => core.warp.fences.find(complete),
                Some(complete) => core.order.acquire(actor, complete),
                None => {}
            }
        }
    }
    core.warp.polled = (done != mask).then_some((rank, first.0));
    if done != 0 {
        core.warp.settle_lanes();
    }
    core.warp.registers.set_predicate(inst.slots[0], done, mask, u32::MAX);
    Ok(if done == mask { Flow::Next } else { Flow::Yield })
}

impl Core<'_> {
    /// Whether a wait that may suspend the thread for a limited time gives up, which programs must expect.
    fn gives_up(&mut self) -> bool {
        self.launch.completion == Completion::Random && self.engine.draw(self.launch.seed) & 3 == 0
    }
}

/// The handler of `cp.async.mbarrier.arrive`.
pub(crate) fn copy_arrive(level: Level) -> Handler {
    warp!(level, |core, inst| { copies_done(core, inst).err().unwrap_or(Flow::Next) })
}

fn copies_done(core: &mut Core<'_>, inst: &Inst) -> Result<(), Flow> {
    let Op::CopyArrive { space, expected } = inst.op else { return Ok(()) };
    let places = places(core, inst, 0, space, true)?;
    // The copies of these lanes complete here, which is when they may.
    super::copy::complete_all(core)?;
    let clock = core.order.release(core.warp.actor);
    for lane in ones(core.warp.mask) {
        let (rank, offset) = places[lane];
        let barrier = find(core, lane, rank, offset)?;
        barrier.arrived.join(&clock);
        // Otherwise it adds the arrival that it makes to what the phase expects.
        if expected {
            arrive_on(core, lane, rank, offset, 1, false)?;
        }
    }
    Ok(())
}
