//! Loads and stores.

use super::access::{GlobalRun, ones};
use super::code::{Core, Flow, Handler, Inst, Level};
use super::control::lanes_where;
use super::definedness::{spread, touched_bytes};
use super::lane::{Execute, Lane, handler};
use super::registers::{DOUBLE, Slot};
use super::strong::shared_place;
use crate::check::FindingKind;
use crate::check::shadow::Access;
use crate::ir::op::{Op, Strength};
use crate::ir::types::Ty;
use crate::memory::storage::{Storage, Unit};
use crate::syntax::ast::Space;

/// An integer that memory is accessed in, and how it stands in a register.
pub(crate) trait Element: Unit {
    const BYTES: u32;
    /// The register's type.
    type Register: Lane;
    fn widen(self, signed: bool) -> <Self::Register as Lane>::Bits;
    fn narrow(bits: <Self::Register as Lane>::Bits) -> Self;
    fn from_bytes(bytes: [u8; 8]) -> Self;
    fn to_bytes(self) -> [u8; 8];
}

macro_rules! element {
    ($($ty:ty, $signed:ty, $register:ty, $bits:ty;)*) => {$(
        impl Element for $ty {
            const BYTES: u32 = size_of::<$ty>() as u32;
            type Register = $register;
            #[inline(always)]
            fn widen(self, signed: bool) -> $bits {
                if signed { self.cast_signed() as $signed as $bits } else { self as $bits }
            }
            #[inline(always)]
            fn narrow(bits: $bits) -> Self { bits as $ty }
            #[inline(always)]
            fn from_bytes(bytes: [u8; 8]) -> Self { u64::from_le_bytes(bytes) as $ty }
            #[inline(always)]
            fn to_bytes(self) -> [u8; 8] { (self as u64).to_le_bytes() }
        }
    )*};
}
element! { u8, i32, u32, u32; u16, i32, u32, u32; u32, i32, u32, u32; u64, i64, u64, u64; }

/// The handler of `ld`.
pub(crate) fn load(_: Space, ty: Ty, count: u8, level: Level) -> Handler {
    match (ty.bytes(), count) {
        (1, 1) => handler::<Load<u8, 1>>(level),
        (1, 2) => handler::<Load<u8, 2>>(level),
        (1, _) => handler::<Load<u8, 4>>(level),
        (2, 1) => handler::<Load<u16, 1>>(level),
        (2, 2) => handler::<Load<u16, 2>>(level),
        (2, _) => handler::<Load<u16, 4>>(level),
        (4, 1) => handler::<Load<u32, 1>>(level),
        (4, 2) => handler::<Load<u32, 2>>(level),
        (4, _) => handler::<Load<u32, 4>>(level),
        (_, 1) => handler::<Load<u64, 1>>(level),
        // No access is wider than 16 bytes.
        (_, _) => handler::<Load<u64, 2>>(level),
    }
}

/// The handler of `st`.
pub(crate) fn store(_: Space, ty: Ty, count: u8, level: Level) -> Handler {
    match (ty.bytes(), count) {
        (1, 1) => handler::<Store<u8, 1>>(level),
        (1, 2) => handler::<Store<u8, 2>>(level),
        (1, _) => handler::<Store<u8, 4>>(level),
        (2, 1) => handler::<Store<u16, 1>>(level),
        (2, 2) => handler::<Store<u16, 2>>(level),
        (2, _) => handler::<Store<u16, 4>>(level),
        (4, 1) => handler::<Store<u32, 1>>(level),
        (4, 2) => handler::<Store<u32, 2>>(level),
        (4, _) => handler::<Store<u32, 4>>(level),
        (_, 1) => handler::<Store<u64, 1>>(level),
        (_, _) => handler::<Store<u64, 2>>(level),
    }
}

struct Load<E, const N: usize>(std::marker::PhantomData<E>);
struct Store<E, const N: usize>(std::marker::PhantomData<E>);

type Bits<E> = <<E as Element>::Register as Lane>::Bits;

impl<E: Element, const N: usize> Execute for Load<E, N> {
    #[inline(always)]
    fn execute(core: &mut Core<'_>, inst: &Inst) -> Flow {
        let Op::Load { space, ty, strength, constant, .. } = inst.op else { return Flow::Next };
        let addresses = match core.addresses(inst.slots[N], inst.immediates[0]) {
            Ok(addresses) => addresses,
            Err(flow) => return flow,
        };
        let bytes = E::BYTES * N as u32;
        let mask = core.warp.mask;
        if strength == Strength::Weak
            && let Some(run) = core.global_run(space, &addresses, bytes)
            && let storage = &*core.launch.table.at(run.allocation).storage
            && storage.all_written(run.offset, run.total)
        {
            let access = if constant { Access::Constant } else { Access::Read };
            // The bytes come from all over memory: meanwhile, there are the checks.
            storage.prefetch(run.offset);
            storage.prefetch(run.offset + u64::from(run.total) / 2);
            if let Err(flow) = core.race_global_run(&run, &addresses, bytes, access) {
                return flow;
            }
            let units = units_of::<E, N>(storage, &run);
            for n in 0..N {
                let mut values = [units[0][n].widen(ty.is_signed()); 32];
                if run.step != 0 {
                    for lane in 1..32 {
                        values[lane] = units[lane][n].widen(ty.is_signed());
                    }
                }
                E::Register::write(core, inst.slots[n], &values, u32::MAX);
            }
            return Flow::Next;
        }
        let mut values = [[Bits::<E>::default(); 32]; N];
        let mut written = [u32::MAX; N];
        // Which bytes were written, where not all were.
        let mut parts: Vec<(usize, usize, u32)> = Vec::new();
        let result = core.by_space(space, mask, &addresses, |core, space, lanes, addresses| {
            core.check_alignment(lanes, addresses, bytes, "load")?;
            match space {
                Space::Shared | Space::Cluster => {
                    if N == 1
                        && strength == Strength::Weak
                        && let Some(run) = core.shared_run(lanes, addresses, bytes)
                    {
                        core.race_run(run, addresses, bytes)?;
                        for lane in 0..32 {
                            let at = run.first as usize + lane * run.step as usize;
                            values[0][lane] = load_element::<E>(&core.block.shared, at).widen(ty.is_signed());
                        }
                        return Ok(());
                    }
                    let lanes = core.check_shared(lanes, addresses, bytes, "load")?;
                    let access = if strength == Strength::Weak { Access::Read } else { Access::Poll };
                    core.race(lanes, addresses, bytes, access)?;
                    if strength == Strength::Weak && core.is_home() {
                        core.race_lanes(lanes, addresses, bytes, false)?;
                    }
                    let rank = core.block.rank;
                    core.synchronise(strength, (true, false), lanes, |lane| {
                        shared_place(rank, addresses[lane])
                    });
                    for lane in ones(lanes) {
                        let offset = addresses[lane] as usize;
                        let bits = core.block.shared.written(offset, bytes);
                        for n in 0..N {
                            let at = offset + n * E::BYTES as usize;
                            values[n][lane] = load_element::<E>(&core.block.shared, at).widen(ty.is_signed());
                            let part = part::<E>(bits, n);
                            if part != every::<E>() {
                                written[n] &= !(1 << lane);
                                parts.push((n, lane, part));
                            }
                        }
                    }
                }
                Space::Local => {
                    let lanes = core.check_local(lanes, addresses, bytes, "load")?;
                    for lane in ones(lanes) {
                        let offset = core.local_offset(lane, addresses[lane]);
                        let bits = core.warp.local.written(offset, bytes);
                        for n in 0..N {
                            let at = offset + n * E::BYTES as usize;
                            values[n][lane] = load_element::<E>(&core.warp.local, at).widen(ty.is_signed());
                            let part = part::<E>(bits, n);
                            if part != every::<E>() {
                                written[n] &= !(1 << lane);
                                parts.push((n, lane, part));
                            }
                        }
                    }
                }
                Space::Param => {
                    for lane in ones(lanes) {
                        for n in 0..N {
                            let at = addresses[lane].wrapping_add(n as u64 * u64::from(E::BYTES));
                            let Some(raw) = core.launch.parameter(at, E::BYTES as usize) else {
                                return Err(core.outside_parameters(1 << lane, at));
                            };
                            values[n][lane] = E::from_bytes(raw).widen(ty.is_signed());
                        }
                    }
                }
                Space::Global | Space::Const | Space::Generic => {
                    if space != Space::Const {
                        core.check_grids_of_load(lanes, addresses, bytes, "load")?;
                    }
                    let table = core.launch.table;
                    let mut rest = lanes;
                    while rest != 0 {
                        let first = addresses[rest.trailing_zeros() as usize];
                        let allocation = core.allocation(first, rest, addresses, bytes, "load")?;
                        let Some(index) = allocation else {
                            // Bounds are not checked: only this lane is without memory.
                            rest &= rest - 1;
                            continue;
                        };
                        let allocation = table.at(index);
                        let (base, storage) = (allocation.base, &*allocation.storage);
                        let limit = storage.bytes() - u64::from(bytes);
                        let here = within(rest, addresses, base, limit);
                        rest &= !here;
                        let access = match strength {
                            Strength::Weak if constant => Access::Constant,
                            Strength::Weak => Access::Read,
                            _ => Access::Poll,
                        };
                        core.race_global(index, here, addresses, bytes, access)?;
                        core.synchronise(strength, (true, false), here, |lane| addresses[lane]);
                        for lane in ones(here) {
                            let offset = addresses[lane].wrapping_sub(base);
                            for n in 0..N {
                                let at = offset + n as u64 * u64::from(E::BYTES);
                                values[n][lane] = load_global::<E>(storage, at).widen(ty.is_signed());
                                if !is_written(storage, at, E::BYTES) {
                                    written[n] &= !(1 << lane);
                                    parts.push((n, lane, written_bytes(storage, at, E::BYTES)));
                                }
                            }
                        }
                    }
                }
            }
            Ok(())
        });
        if let Err(flow) = result {
            return flow;
        }
        for n in 0..N {
            E::Register::write(core, inst.slots[n], &values[n], written[n]);
        }
        if !parts.is_empty() {
            core.loaded_in_parts(inst, ty, &parts);
        }
        // A warp that asks again and again for what another one writes must not keep that one, or a copy, from getting on.
        if strength != Strength::Weak && matches!(space, Space::Global | Space::Generic) {
            return Flow::Yield;
        }
        Flow::Next
    }
}

impl<E: Element, const N: usize> Execute for Store<E, N> {
    #[inline(always)]
    fn execute(core: &mut Core<'_>, inst: &Inst) -> Flow {
        let Op::Store { space, strength, .. } = inst.op else { return Flow::Next };
        let addresses = match core.addresses(inst.slots[0], inst.immediates[0]) {
            Ok(addresses) => addresses,
            Err(flow) => return flow,
        };
        let mut values = [[Bits::<E>::default(); 32]; N];
        let mut written = [0; N];
        for n in 0..N {
            values[n] = *E::Register::read(core, inst.slots[1 + n]);
            written[n] = E::Register::written(core, inst.slots[1 + n]);
        }
        let bytes = E::BYTES * N as u32;
        let mask = core.warp.mask;
        let raw = |n: usize, lane: usize| E::narrow(values[n][lane]).to_bytes();
        let alike = |a: usize, b: usize| (0..N).all(|n| raw(n, a) == raw(n, b));
        if strength == Strength::Weak
            && written == [u32::MAX; N]
            && let Some(run) = core.global_run(space, &addresses, bytes)
            && run.step != 0
            && run.offset.is_multiple_of(8)
            && !core.launch.table.at(run.allocation).read_only
        {
            let allocation = core.launch.table.at(run.allocation);
            let storage = &*allocation.storage;
            allocation.note_write(core.launch.number);
            let same = |_: &Core<'_>, lane: usize| {
                (0..N).all(|n| {
                    let at = run.offset + (lane * N + n) as u64 * u64::from(E::BYTES);
                    storage.load::<E>(at).to_bytes() == raw(n, lane)
                })
            };
            let raced = core.race_global_run(&run, &addresses, bytes, Access::Write);
            if let Err(flow) = raced.or_else(|flow| core.same_value(flow, u32::MAX, same)) {
                return flow;
            }
            let mut data = [[0u8; 16]; 32];
            let to = data.as_flattened_mut();
            for lane in 0..32 {
                for n in 0..N {
                    let at = (lane * N + n) * E::BYTES as usize;
                    to[at..at + E::BYTES as usize].copy_from_slice(&raw(n, lane)[..E::BYTES as usize]);
                }
            }
            storage.store_words(run.offset, to.as_chunks::<8>().0.iter().take(run.total as usize / 8));
            return Flow::Next;
        }
        let result = core.by_space(space, mask, &addresses, |core, space, lanes, addresses| {
            core.check_alignment(lanes, addresses, bytes, "store")?;
            match space {
                Space::Shared | Space::Cluster => {
                    let lanes = core.check_shared(lanes, addresses, bytes, "store")?;
                    let access = if strength == Strength::Weak { Access::Write } else { Access::Atomic };
                    let same = |core: &Core<'_>, lane: usize| {
                        (0..N).all(|n| {
                            let at = addresses[lane] as usize + n * E::BYTES as usize;
                            load_element::<E>(&core.block.shared, at).to_bytes() == raw(n, lane)
                        })
                    };
                    let raced = core.race(lanes, addresses, bytes, access);
                    raced.or_else(|flow| core.same_value(flow, lanes, same))?;
                    if strength == Strength::Weak {
                        core.check_values(Space::Shared, lanes, addresses, bytes, alike)?;
                    }
                    if strength == Strength::Weak && core.is_home() {
                        core.race_lanes(lanes, addresses, bytes, true)?;
                    }
                    let rank = core.block.rank;
                    core.synchronise(strength, (false, true), lanes, |lane| {
                        shared_place(rank, addresses[lane])
                    });
                    for lane in ones(lanes) {
                        for n in 0..N {
                            let at = addresses[lane] as usize + n * E::BYTES as usize;
                            store_element::<E>(&mut core.block.shared, at, E::narrow(values[n][lane]));
                            core.block.shared.set_written(at, E::BYTES, written[n] >> lane & 1 == 1);
                            if written[n] >> lane & 1 == 0 {
                                let bytes = core.stored_bytes(inst.slots[1 + n], lane);
                                core.block.shared.set_bytes(at, E::BYTES, bytes);
                            }
                        }
                    }
                }
                Space::Local => {
                    let lanes = core.check_local(lanes, addresses, bytes, "store")?;
                    for lane in ones(lanes) {
                        for n in 0..N {
                            let at = core.local_offset(lane, addresses[lane]) + n * E::BYTES as usize;
                            store_element::<E>(&mut core.warp.local, at, E::narrow(values[n][lane]));
                            core.warp.local.set_written(at, E::BYTES, written[n] >> lane & 1 == 1);
                            if written[n] >> lane & 1 == 0 {
                                let bytes = core.stored_bytes(inst.slots[1 + n], lane);
                                core.warp.local.set_bytes(at, E::BYTES, bytes);
                            }
                        }
                    }
                }
                Space::Param | Space::Const => {
                    let message = "a store to the parameters of the kernel".to_owned();
                    return Err(core.fail(FindingKind::ReadOnly, lanes, message, None));
                }
                Space::Global | Space::Generic => {
                    core.check_grids(lanes, addresses, bytes, "store")?;
                    let missing = lanes & !written.iter().fold(u32::MAX, |all, w| all & w);
                    if missing != 0 && core.launch.checks.uninitialised {
                        core.check_stored(missing, &inst.slots[1..=N], E::BYTES)?;
                    }
                    let table = core.launch.table;
                    let mut rest = lanes;
                    while rest != 0 {
                        let first = addresses[rest.trailing_zeros() as usize];
                        let allocation = core.allocation(first, rest, addresses, bytes, "store")?;
                        let Some(index) = allocation else {
                            // Bounds are not checked: only this lane is without memory.
                            rest &= rest - 1;
                            continue;
                        };
                        let allocation = table.at(index);
                        if allocation.read_only {
                            let message = format!("a store to {}", table.describe(first));
                            return Err(core.fail(
                                FindingKind::ReadOnly,
                                rest,
                                message,
                                allocation.hint_of_write(),
                            ));
                        }
                        let (base, storage) = (allocation.base, &*allocation.storage);
                        let limit = storage.bytes() - u64::from(bytes);
                        let here = within(rest, addresses, base, limit);
                        rest &= !here;
                        allocation.note_write(core.launch.number);
                        let access = if strength == Strength::Weak { Access::Write } else { Access::Atomic };
                        let same = |_: &Core<'_>, lane: usize| {
                            (0..N).all(|n| {
                                let at = addresses[lane].wrapping_sub(base) + n as u64 * u64::from(E::BYTES);
                                load_global::<E>(storage, at).to_bytes() == raw(n, lane)
                            })
                        };
                        let raced = core.race_global(index, here, addresses, bytes, access);
                        raced.or_else(|flow| core.same_value(flow, here, same))?;
                        if strength == Strength::Weak {
                            core.check_values(Space::Global, here, addresses, bytes, alike)?;
                        }
                        core.synchronise(strength, (false, true), here, |lane| addresses[lane]);
                        for lane in ones(here) {
                            let offset = addresses[lane].wrapping_sub(base);
                            for n in 0..N {
                                let at = offset + n as u64 * u64::from(E::BYTES);
                                let whole = written[n] >> lane & 1 == 1;
                                store_global::<E>(storage, at, E::narrow(values[n][lane]), whole);
                                if !whole {
                                    let bytes = core.stored_bytes(inst.slots[1 + n], lane);
                                    for byte in 0..E::BYTES {
                                        storage.set_written(at + u64::from(byte), 1, bytes >> byte & 1 == 1);
                                    }
                                }
                            }
                        }
                    }
                }
            }
            Ok(())
        });
        result.err().unwrap_or(Flow::Next)
    }
}

/// What a load of a range gives each lane; of one address, the first lane.
#[inline(always)]
fn units_of<E: Element, const N: usize>(storage: &Storage, run: &GlobalRun) -> [[E; N]; 32] {
    let mut lanes = [[E::from_bytes([0; 8]); N]; 32];
    let units = lanes.as_flattened_mut();
    let (count, size) = (run.total / E::BYTES, E::BYTES as usize);
    if run.step == 0 || !run.offset.is_multiple_of(8) {
        for (unit, at) in units.iter_mut().take(count as usize).zip((run.offset..).step_by(size)) {
            *unit = storage.load::<E>(at);
        }
        return lanes;
    }
    for (units, word) in units.chunks_exact_mut(8 / size).zip(storage.words_from(run.offset)) {
        for (index, unit) in units.iter_mut().enumerate() {
            *unit = E::from_bytes((word >> (8 * size * index)).to_le_bytes());
        }
    }
    lanes
}

/// The lanes whose offset from `base` is at most `limit`.
#[inline(always)]
fn within(lanes: u32, addresses: &[u64; 32], base: u64, limit: u64) -> u32 {
    let mut here = 0;
    for lane in 0..32 {
        here |= u32::from(addresses[lane].wrapping_sub(base) <= limit) << lane;
    }
    here & lanes
}

/// A bit for each byte of an element.
#[inline(always)]
fn every<E: Element>() -> u32 {
    (1u32 << E::BYTES) - 1
}

/// The bits of element `n`.
#[inline(always)]
fn part<E: Element>(bits: u32, n: usize) -> u32 {
    bits >> (n as u32 * E::BYTES) & every::<E>()
}

impl Core<'_> {
    /// Elements were loaded of which not all bytes are written: element, lane, and the bytes that are.
    #[cold]
    fn loaded_in_parts(&mut self, inst: &Inst, ty: Ty, parts: &[(usize, usize, u32)]) {
        let width = 8 * ty.bytes();
        for n in 0..parts.iter().map(|(n, ..)| n + 1).max().unwrap_or(0) {
            let slot = inst.slots[n];
            let mut bits = self.warp.registers.bits_of(slot);
            for &(_, lane, bytes) in parts.iter().filter(|part| part.0 == n) {
                let sign = bytes != 0 && (!ty.is_signed() || bytes >> (ty.bytes() - 1) & 1 == 1);
                let above = if sign { u64::MAX.checked_shl(width).unwrap_or(0) } else { 0 };
                let outside = if slot & DOUBLE == 0 { !0 << 32 } else { 0 };
                bits[lane] = spread(bytes) | above | outside;
            }
            let lanes = parts.iter().filter(|part| part.0 == n).fold(0, |all, &(_, lane, _)| all | 1 << lane);
            self.warp.registers.set_bits(slot, lanes, &bits);
        }
    }

    /// The bytes of a register of which something is written, for a lane in which not all is.
    #[cold]
    fn stored_bytes(&self, slot: Slot, lane: usize) -> u32 {
        touched_bytes(self.warp.registers.bits_of(slot)[lane])
    }

    /// Elements of which nothing is written must not go to global memory, unless others beside them are: those may be padding.
    #[cold]
    fn check_stored(&mut self, lanes: u32, slots: &[Slot], bytes: u32) -> Result<(), Flow> {
        let nothing = lanes_where(lanes, |lane| {
            slots.iter().all(|&slot| self.stored_bytes(slot, lane) & ((1 << bytes) - 1) == 0)
        });
        if nothing == 0 {
            Ok(())
        } else {
            Err(self.uninitialised(nothing, "a value stored to global memory"))
        }
    }
}

#[inline(always)]
fn load_element<E: Element>(from: &crate::memory::local::Bytes, at: usize) -> E {
    let mut raw = [0; 8];
    match E::BYTES {
        1 => raw[..1].copy_from_slice(&from.load::<1>(at)),
        2 => raw[..2].copy_from_slice(&from.load::<2>(at)),
        4 => raw[..4].copy_from_slice(&from.load::<4>(at)),
        _ => raw = from.load::<8>(at),
    }
    E::from_bytes(raw)
}

#[inline(always)]
fn store_element<E: Element>(to: &mut crate::memory::local::Bytes, at: usize, value: E) {
    let raw = value.to_bytes();
    match E::BYTES {
        1 => to.store(at, [raw[0]]),
        2 => to.store(at, [raw[0], raw[1]]),
        4 => to.store(at, [raw[0], raw[1], raw[2], raw[3]]),
        _ => to.store(at, raw),
    }
}

/// An element at any alignment: with the alignment check off, it may cross words.
#[inline(always)]
fn load_global<E: Element>(storage: &crate::memory::storage::Storage, at: u64) -> E {
    if at.is_multiple_of(u64::from(E::BYTES)) {
        return storage.load::<E>(at);
    }
    let mut raw = [0; 8];
    storage.read(at, &mut raw[..E::BYTES as usize]);
    E::from_bytes(raw)
}

#[inline(always)]
fn store_global<E: Element>(storage: &crate::memory::storage::Storage, at: u64, value: E, written: bool) {
    if at.is_multiple_of(u64::from(E::BYTES)) {
        storage.store::<E>(at, value);
        storage.set_written(at, E::BYTES, written);
    } else {
        storage.write(at, &value.to_bytes()[..E::BYTES as usize]);
    }
}

/// A bit for each byte that is written.
#[cold]
fn written_bytes(storage: &crate::memory::storage::Storage, at: u64, bytes: u32) -> u32 {
    (0..bytes).fold(0, |all, byte| all | u32::from(storage.is_written(at + u64::from(byte), 1)) << byte)
}

#[inline(always)]
fn is_written(storage: &crate::memory::storage::Storage, at: u64, bytes: u32) -> bool {
    if at.is_multiple_of(u64::from(bytes)) {
        storage.is_written(at, bytes)
    } else {
        (0..u64::from(bytes)).all(|i| storage.is_written(at + i, 1))
    }
}
