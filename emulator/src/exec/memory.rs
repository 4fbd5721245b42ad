//! Loads and stores.

use super::code::{Core, Flow, Handler, Inst, Level};
use super::control::lanes_where;
use super::lane::{Execute, Lane, handler};
use super::registers::{DOUBLE, Slot};
use crate::check::FindingKind;
use crate::check::shadow::{Access, Conflict, GRANULE};
use crate::ir::op::Op;
use crate::ir::types::Ty;
use crate::memory::storage::Unit;
use crate::syntax::ast::Space;

/// Where shared memory appears among generic addresses.
pub(crate) const SHARED_WINDOW: u64 = 0xf100_0000_0000;
/// Where a thread's local memory appears.
pub(crate) const LOCAL_WINDOW: u64 = 0xf200_0000_0000;
/// Where a kernel's parameters appear.
pub(crate) const PARAM_WINDOW: u64 = 0xf300_0000_0000;
/// The size of each of these.
pub(crate) const WINDOW: u64 = 1 << 32;

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
        let Op::Load { space, ty, .. } = inst.op else { return Flow::Next };
        let addresses = match core.addresses(inst.slots[N], inst.immediates[0]) {
            Ok(addresses) => addresses,
            Err(flow) => return flow,
        };
        let mut values = [[Bits::<E>::default(); 32]; N];
        let mut written = [u32::MAX; N];
        let bytes = E::BYTES * N as u32;
        let mask = core.warp.mask;
        let result = core.by_space(space, mask, &addresses, |core, space, lanes, addresses| {
            core.check_alignment(lanes, addresses, bytes, "load")?;
            match space {
                Space::Shared => {
                    let lanes = core.check_shared(lanes, addresses, bytes, "load")?;
                    core.race(lanes, addresses, bytes, Access::Read)?;
                    for lane in ones(lanes) {
                        let offset = addresses[lane] as usize;
                        let bits = core.block.shared.written(offset, bytes);
                        for n in 0..N {
                            let at = offset + n * E::BYTES as usize;
                            values[n][lane] = load_element::<E>(&core.block.shared, at).widen(ty.is_signed());
                            note(&mut written[n], lane, part::<E>(bits, n));
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
                            note(&mut written[n], lane, part::<E>(bits, n));
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
                    let table = core.launch.table;
                    let mut rest = lanes;
                    while rest != 0 {
                        let first = addresses[rest.trailing_zeros() as usize];
                        let allocation = core.allocation(first, rest, addresses, bytes, "load")?;
                        let Some(allocation) = allocation else { break };
                        let allocation = table.at(allocation);
                        let (base, storage) = (allocation.base, &*allocation.storage);
                        let limit = storage.bytes() - u64::from(bytes);
                        for lane in ones(rest) {
                            let offset = addresses[lane].wrapping_sub(base);
                            if offset > limit {
                                continue;
                            }
                            rest &= !(1 << lane);
                            for n in 0..N {
                                let at = offset + n as u64 * u64::from(E::BYTES);
                                values[n][lane] = load_global::<E>(storage, at).widen(ty.is_signed());
                                note(&mut written[n], lane, is_written(storage, at, E::BYTES));
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
        Flow::Next
    }
}

impl<E: Element, const N: usize> Execute for Store<E, N> {
    #[inline(always)]
    fn execute(core: &mut Core<'_>, inst: &Inst) -> Flow {
        let Op::Store { space, .. } = inst.op else { return Flow::Next };
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
        let result = core.by_space(space, mask, &addresses, |core, space, lanes, addresses| {
            core.check_alignment(lanes, addresses, bytes, "store")?;
            match space {
                Space::Shared => {
                    let lanes = core.check_shared(lanes, addresses, bytes, "store")?;
                    core.race(lanes, addresses, bytes, Access::Write)?;
                    for lane in ones(lanes) {
                        for n in 0..N {
                            let at = addresses[lane] as usize + n * E::BYTES as usize;
                            store_element::<E>(&mut core.block.shared, at, E::narrow(values[n][lane]));
                            core.block.shared.set_written(at, E::BYTES, written[n] >> lane & 1 == 1);
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
                        }
                    }
                }
                Space::Param | Space::Const => {
                    let message = "a store to the parameters of the kernel".to_owned();
                    return Err(core.fail(FindingKind::ReadOnly, lanes, message, None));
                }
                Space::Global | Space::Generic => {
                    let missing = lanes & !written.iter().fold(u32::MAX, |all, w| all & w);
                    if missing != 0 && core.launch.checks.uninitialised {
                        return Err(core.uninitialised(missing, "a value stored to global memory"));
                    }
                    let table = core.launch.table;
                    let mut rest = lanes;
                    while rest != 0 {
                        let first = addresses[rest.trailing_zeros() as usize];
                        let allocation = core.allocation(first, rest, addresses, bytes, "store")?;
                        let Some(allocation) = allocation else { break };
                        let allocation = table.at(allocation);
                        if allocation.read_only {
                            let message = format!("a store to {}", table.describe(first));
                            return Err(core.fail(FindingKind::ReadOnly, rest, message, None));
                        }
                        let (base, storage) = (allocation.base, &*allocation.storage);
                        let limit = storage.bytes() - u64::from(bytes);
                        for lane in ones(rest) {
                            let offset = addresses[lane].wrapping_sub(base);
                            if offset > limit {
                                continue;
                            }
                            rest &= !(1 << lane);
                            for n in 0..N {
                                let at = offset + n as u64 * u64::from(E::BYTES);
                                let written = written[n] >> lane & 1 == 1;
                                store_global::<E>(storage, at, E::narrow(values[n][lane]), written);
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

#[inline(always)]
fn note(mask: &mut u32, lane: usize, written: bool) {
    *mask &= !(u32::from(!written) << lane);
}

/// Whether the bits of element `n` are all set.
#[inline(always)]
fn part<E: Element>(bits: u32, n: usize) -> bool {
    let mask = (1u32 << E::BYTES) - 1;
    bits >> (n as u32 * E::BYTES) & mask == mask
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

#[inline(always)]
fn is_written(storage: &crate::memory::storage::Storage, at: u64, bytes: u32) -> bool {
    if at.is_multiple_of(u64::from(bytes)) {
        storage.is_written(at, bytes)
    } else {
        (0..u64::from(bytes)).all(|i| storage.is_written(at + i, 1))
    }
}

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
        if space != Space::Generic {
            return f(self, space, lanes, addresses);
        }
        let mut rest = lanes;
        for (space, window) in
            [(Space::Shared, SHARED_WINDOW), (Space::Local, LOCAL_WINDOW), (Space::Param, PARAM_WINDOW)]
        {
            let here = lanes_where(rest, |lane| addresses[lane].wrapping_sub(window) < WINDOW);
            if here != 0 {
                rest &= !here;
                f(self, space, here, &addresses.map(|address| address.wrapping_sub(window)))?;
            }
        }
        if rest == 0 { Ok(()) } else { f(self, Space::Global, rest, addresses) }
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
        let message =
            format!("a {what} of {bytes} bytes at {address:#x}, which is not a multiple of {bytes}");
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

    fn check_local(
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
        let message = format!("a {what} of {bytes} bytes at {address:#x} of {space}, which has {size} bytes");
        Err(self.fail(FindingKind::OutOfBounds, outside, message, None))
    }

    /// Where a lane's local memory is in the warp's.
    #[inline(always)]
    fn local_offset(&self, lane: usize, address: u64) -> usize {
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
        let message = format!("a {what} of {bytes} bytes at {address:#x}: {}", table.describe(shown));
        self.fail(kind, wrong, message, None)
    }

    #[cold]
    fn outside_parameters(&mut self, lanes: u32, address: u64) -> Flow {
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
        let Some(shadow) = &mut self.block.shadow else { return Ok(()) };
        let (warp, at) = (self.warp.number, self.warp.pc);
        if bytes == GRANULE {
            let mut failed = None;
            for lane in 0..32 {
                if lanes >> lane & 1 == 0 {
                    continue;
                }
                // An access that the alignment check let pass reaches into the next granule.
                let (first, last) =
                    (addresses[lane] as u32 / GRANULE, (addresses[lane] as u32 + 15) / GRANULE);
                let mut result = shadow.access_whole(first, warp, access, at);
                if last != first {
                    result = result.and_then(|()| shadow.access_whole(last, warp, access, at));
                }
                if let Err(conflict) = result {
                    failed = Some((first, conflict));
                    break;
                }
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
                    && let Err(conflict) = shadow.access(granule, touched as u16, warp, access, at)
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
                && let Err(conflict) = shadow.access(here + 1, rest as u16, warp, access, at)
            {
                failed = Some((here + 1, conflict));
                break;
            }
        }
        if failed.is_none()
            && touched != 0
            && let Err(conflict) = shadow.access(granule, touched as u16, warp, access, at)
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

    #[cold]
    fn raced(
        &mut self,
        lanes: u32,
        addresses: &[u64; 32],
        granule: u32,
        access: Access,
        conflict: Conflict,
    ) -> Flow {
        let checks = self.launch.checks;
        let asynchronous = conflict.access == Access::Asynchronous;
        if asynchronous && !checks.asynchronous || !asynchronous && !checks.races {
            return Flow::Next;
        }
        let lanes = lanes_where(lanes, |lane| {
            let offset = addresses[lane] as u32;
            offset / GRANULE == granule || offset.div_ceil(GRANULE) == granule
        });
        let name = |access| match access {
            Access::Read => "read",
            Access::Write => "write",
            Access::Atomic => "atomic operation",
            Access::Asynchronous => "asynchronous copy",
        };
        let place = self.launch.describe_shared(granule * GRANULE);
        let (kind, message, hint) = if asynchronous {
            let message = format!(
                "a {} of shared memory at {place}, where an asynchronous copy of warp {} has not been waited for",
                name(access),
                conflict.warp
            );
            let hint = "wait for the copy (`cp.async.wait_group`, `cp.async.wait_all`), then pass a barrier";
            (FindingKind::AsynchronousCopy, message, hint)
        } else {
            let message = format!(
                "a {} of shared memory at {place} races with a {} by warp {}",
                name(access),
                name(conflict.access),
                conflict.warp
            );
            (FindingKind::SharedRace, message, "put a barrier between the two")
        };
        self.fail(kind, lanes, message, Some(hint));
        if let Some(fault) = &mut self.fault {
            fault
                .related
                .push((format!("the {} by warp {}", name(conflict.access), conflict.warp), conflict.at));
        }
        Flow::Fault
    }
}
