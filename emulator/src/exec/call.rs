//! Calls of functions: by lane, with frames in local memory.
//!
//! A lane's frames are a stack behind the entry's own variables. Arguments are copied into the frame of the function,
//! results back into that of its caller. A function's registers are the warp's own, so that those of one that
//! may call
//! itself are kept in the frame meanwhile.

use super::access::ones;
use super::code::{Core, Flow, Handler, Inst, Level};
use super::control::lanes_where;
use super::lane::{Lane, warp};
use super::registers::{DOUBLE, Saved};
use super::warp::State;
use crate::check::FindingKind;
use crate::ir::op::Op;
use crate::ir::program::{CallSite, Callee, Function};
use crate::ir::types::Ty;

/// The stacks of a warp's lanes.
#[derive(Debug)]
pub(crate) struct Calls {
    /// Where each lane's frame begins in its local memory, and where its stack ends.
    base: [u32; 32],
    top: [u32; 32],
    frames: [Vec<Frame>; 32],
}

/// What a lane comes back to.
#[derive(Debug)]
struct Frame {
    /// The instruction behind the call, and the call.
    back: u32,
    site: u32,
    /// The function that runs.
    function: u32,
    /// The caller's.
    base: u32,
    top: u32,
    /// The registers of an outer activation of the function.
    saved: Option<Box<Saved>>,
}

impl Calls {
    /// `frame` is what the entry's own variables take.
    pub(crate) fn new(frame: u32) -> Self {
        Self { base: [0; 32], top: [frame; 32], frames: std::array::from_fn(|_| Vec::new()) }
    }
}

/// The handler of `call`.
pub(crate) fn call(level: Level) -> Handler {
    warp!(level, |core, inst| { enter(core, inst).unwrap_or_else(|flow| flow) })
}

fn enter(core: &mut Core<'_>, inst: &Inst) -> Result<Flow, Flow> {
    let kernel = core.launch.kernel;
    let number = inst.immediates[0] as u32;
    let Some(site) = kernel.calls.get(number as usize) else { return Ok(Flow::Next) };
    let mask = core.warp.mask;
    let functions = match site.callee {
        Callee::Builtin(builtin) => {
            core.run_builtin(builtin, site)?;
            return Ok(Flow::Next);
        }
        Callee::Function(function) => [function; 32],
        Callee::Register => called(core, inst, site)?,
    };
    let mut targets = [0; 32];
    for lane in ones(mask) {
        let function = &kernel.functions[functions[lane] as usize];
        core.push(lane, number, functions[lane], function)?;
        targets[lane] = function.start;
    }
    // What the function's registers held before is nobody's.
    for (position, function) in kernel.functions.iter().enumerate() {
        let lanes = lanes_where(mask, |lane| functions[lane] as usize == position);
        if lanes != 0 {
            core.warp.registers.forget(&function.registers, lanes);
        }
    }
    Ok(core.scatter(mask, &targets))
}

/// The functions that the lanes' addresses are those of.
fn called(core: &mut Core<'_>, inst: &Inst, site: &CallSite) -> Result<[u32; 32], Flow> {
    let mask = core.warp.mask;
    let missing = mask & !u64::written(core, inst.slots[0]);
    if missing != 0 && core.launch.checks.uninitialised {
        return Err(core.uninitialised(missing, "the address of a function"));
    }
    let addresses = *u64::read(core, inst.slots[0]);
    let functions = &core.launch.kernel.functions;
    let mut found = [0; 32];
    for lane in ones(mask) {
        let address = addresses[lane];
        let Some(position) = functions.iter().position(|f| f.address == address) else {
            let message = format!("a call of {address:#x}, which is not the address of a function");
            return Err(core.fail(FindingKind::BadCall, 1 << lane, message, None));
        };
        let function = &functions[position];
        let sizes = |places: &[(u32, u32)]| places.iter().map(|&(_, size)| size).collect::<Vec<_>>();
        let (passed, taken) = (sizes(&site.arguments), sizes(&function.parameters));
        let (wanted, given) = (sizes(&site.results), sizes(&function.results));
        if passed != taken || (wanted != given && !wanted.is_empty()) {
            let message = format!(
                "a call of `{}`, which takes {taken:?} bytes and gives {given:?}, with {passed:?} for {wanted:?}",
                function.name
            );
            return Err(core.fail(FindingKind::BadCall, 1 << lane, message, None));
        }
        found[lane] = position as u32;
    }
    Ok(found)
}

/// The handler of `ret` in a function.
pub(crate) fn leave(level: Level) -> Handler {
    warp!(level, |core, _inst| {
        let mask = core.warp.mask;
        let mut targets = [0; 32];
        for lane in ones(mask) {
            targets[lane] = core.pop(lane);
        }
        core.scatter(mask, &targets)
    })
}

impl Core<'_> {
    /// Where a place of the lane's frame is in the warp's local memory.
    pub(super) fn frame_place(&self, lane: usize, offset: u32) -> usize {
        let base = self.warp.calls.as_ref().map_or(0, |calls| calls.base[lane]);
        self.local_offset(lane, u64::from(base + offset))
    }

    /// Lets lanes go on at different instructions, and those for which the instruction is off behind it.
    pub(super) fn scatter(&mut self, mask: u32, targets: &[u32; 32]) -> Flow {
        let warp = &mut self.warp;
        let (staying, next) = (warp.active & !mask, warp.pc + 1);
        if staying != 0 {
            warp.part(staying, next, State::Ready);
        }
        let mut rest = mask;
        loop {
            let target = targets[rest.trailing_zeros() as usize & 31];
            let same = lanes_where(rest, |lane| targets[lane] == target);
            if same == rest {
                warp.pc = target;
                return Flow::Jumped;
            }
            warp.part(same, target, State::Ready);
            rest &= !same;
        }
    }

    /// Gives a lane the frame of a function, with the arguments in it.
    fn push(&mut self, lane: usize, site: u32, number: u32, function: &Function) -> Result<(), Flow> {
        let kernel = self.launch.kernel;
        let saved = function.recursive.then(|| Box::new(self.warp.registers.save(lane, &function.registers)));
        let Some(calls) = &mut self.warp.calls else { return Ok(()) };
        let (base, top) = (calls.base[lane], calls.top[lane]);
        let start = top.next_multiple_of(16);
        let end = start + function.frame.max(16);
        if end > kernel.local {
            let depth = calls.frames[lane].len();
            let message = format!(
                "a call of `{}` when {depth} calls are open: its frame of {} bytes does not fit the thread's stack of {} bytes",
                function.name,
                function.frame,
                kernel.local - kernel.frame
            );
            let hint =
                "a recursion that does not end, or one that is deeper than the emulator's stack allows";
            return Err(self.fail(FindingKind::StackOverflow, 1 << lane, message, Some(hint)));
        }
        let back = self.warp.pc + 1;
        calls.frames[lane].push(Frame { back, site, function: number, base, top, saved });
        (calls.base[lane], calls.top[lane]) = (start, end);
        let place = |offset: u32| lane * kernel.local as usize + offset as usize;
        let local = &mut self.warp.local;
        for at in (start..end).step_by(16) {
            local.set_written(place(at), 16.min(end - at), false);
        }
        let site = &kernel.calls[site as usize];
        for (&(from, size), &(to, _)) in site.arguments.iter().zip(&function.parameters) {
            local.copy_within(place(base + from), place(start + to), size as usize);
        }
        Ok(())
    }

    /// Takes a lane's frame away, after the results are in that of its caller; gives the instruction to go on with.
    fn pop(&mut self, lane: usize) -> u32 {
        let kernel = self.launch.kernel;
        // An entry has no `ret` of this kind, so that there always is a frame.
        let Some(calls) = &mut self.warp.calls else { return kernel.start };
        let Some(frame) = calls.frames[lane].pop() else { return kernel.start };
        let start = calls.base[lane];
        (calls.base[lane], calls.top[lane]) = (frame.base, frame.top);
        let function = &kernel.functions[frame.function as usize];
        let place = |offset: u32| lane * kernel.local as usize + offset as usize;
        for (&(to, size), &(from, _)) in
            kernel.calls[frame.site as usize].results.iter().zip(&function.results)
        {
            self.warp.local.copy_within(place(start + from), place(frame.base + to), size as usize);
        }
        if let Some(saved) = frame.saved {
            self.warp.registers.restore(lane, &function.registers, &saved);
        }
        frame.back
    }
}

/// The handler that gives the address of a place of the frame.
pub(crate) fn frame_address(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let offset = inst.immediates[0];
        let base = core.warp.calls.as_ref().map_or([0; 32], |calls| calls.base);
        let addresses = base.map(|base| u64::from(base).wrapping_add_signed(offset));
        u64::write(core, inst.slots[0], &addresses, u32::MAX);
        Flow::Next
    })
}

/// Writes 32 or 64 bits, as the type says.
fn write(core: &mut Core<'_>, slot: u32, values: [u32; 32], ty: Ty) {
    match ty.bytes() {
        8 => u64::write(core, slot, &values.map(u64::from), u32::MAX),
        _ => u32::write(core, slot, &values, u32::MAX),
    }
}

/// A source of 32 or 64 bits, and the lanes that something wrote it in.
fn read(core: &Core<'_>, slot: u32) -> ([u64; 32], u32) {
    if slot & DOUBLE == 0 {
        (u32::read(core, slot).map(u64::from), u32::written(core, slot))
    } else {
        (*u64::read(core, slot), u64::written(core, slot))
    }
}

/// The handler of `alloca`.
pub(crate) fn alloca(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::Alloca { ty } = inst.op else { return Flow::Next };
        let (sizes, written) = read(core, inst.slots[1]);
        let mask = core.warp.mask;
        if mask & !written != 0 && core.launch.checks.uninitialised {
            return core.uninitialised(mask & !written, "the size of an `alloca`");
        }
        let align = u64::try_from(inst.immediates[0]).unwrap_or(0).clamp(8, 4096).next_power_of_two();
        let limit = u64::from(core.launch.kernel.local);
        let Some(calls) = &mut core.warp.calls else { return Flow::Next };
        let mut places = [0; 32];
        let mut full = 0u32;
        for lane in ones(mask) {
            let start = u64::from(calls.top[lane]).next_multiple_of(align);
            let end = start.saturating_add(sizes[lane]);
            if end > limit {
                full |= 1 << lane;
                continue;
            }
            (places[lane], calls.top[lane]) = (start as u32, end as u32);
        }
        if full != 0 {
            let size = sizes[full.trailing_zeros() as usize];
            let message = format!("an `alloca` of {size} bytes does not fit the thread's stack");
            return core.fail(FindingKind::StackOverflow, full, message, None);
        }
        write(core, inst.slots[0], places, ty);
        Flow::Next
    })
}

/// The handler of `stacksave`.
pub(crate) fn stack_save(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::StackSave(ty) = inst.op else { return Flow::Next };
        let top = core.warp.calls.as_ref().map_or([0; 32], |calls| calls.top);
        write(core, inst.slots[0], top, ty);
        Flow::Next
    })
}

/// The handler of `stackrestore`.
pub(crate) fn stack_restore(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let (tops, written) = read(core, inst.slots[0]);
        let mask = core.warp.mask;
        if mask & !written != 0 && core.launch.checks.uninitialised {
            return core.uninitialised(mask & !written, "the end of the stack");
        }
        let Some(calls) = &mut core.warp.calls else { return Flow::Next };
        let wrong = lanes_where(mask, |lane| {
            tops[lane] < u64::from(calls.base[lane]) || tops[lane] > u64::from(calls.top[lane])
        });
        if wrong != 0 {
            let message = format!(
                "a `stackrestore` to {:#x}, which no `stacksave` of this function gave",
                tops[wrong.trailing_zeros() as usize]
            );
            return core.fail(FindingKind::BadCall, wrong, message, None);
        }
        for lane in ones(mask) {
            calls.top[lane] = tops[lane] as u32;
        }
        Flow::Next
    })
}
