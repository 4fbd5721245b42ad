//! Moving values about: packing, special registers, addresses of other spaces.

use super::access::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW};
use super::code::{Core, Flow, Handler, Level};
use super::lane::{Lane, lanes, warp};
use crate::ir::op::{LaneMask, Op, Reserved, Special};
use crate::ir::types::Ty;
use crate::syntax::ast::Space;

/// The handler of `mov` from parts to a whole.
pub(crate) fn pack(count: u8, ty: Ty, level: Level) -> Handler {
    match (count, ty.bytes()) {
        (2, 8) => lanes!(level, |a: u32, b: u32| -> u64 { u64::from(b) << 32 | u64::from(a) }),
        (2, 4) => lanes!(level, |a: u16, b: u16| -> u32 { u32::from(b) << 16 | u32::from(a) }),
        _ => warp!(level, |core, inst| {
            let Op::Pack(count, ty) = inst.op else { return Flow::Next };
            let bits = ty.bytes() * 8 / u32::from(count);
            let mut out = [0u64; 32];
            let mut written = u32::MAX;
            for part in 0..u32::from(count) {
                let slot = inst.slots[1 + part as usize];
                let values = u32::read(core, slot);
                written &= u32::written(core, slot);
                for lane in 0..32 {
                    out[lane] |= (u64::from(values[lane]) & ((1 << bits) - 1)) << (part * bits);
                }
            }
            match ty.bytes() {
                8 => u64::write(core, inst.slots[0], &out, written),
                _ => u32::write(core, inst.slots[0], &out.map(|v| v as u32), written),
            }
            Flow::Next
        }),
    }
}

/// The handler of `mov` from a whole to parts.
pub(crate) fn unpack(_: u8, _: Ty, level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::Unpack(count, ty) = inst.op else { return Flow::Next };
        let from = inst.slots[usize::from(count)];
        let bits = ty.bytes() * 8 / u32::from(count);
        let (values, written) = match ty.bytes() {
            8 => (*u64::read(core, from), u64::written(core, from)),
            _ => (u32::read(core, from).map(u64::from), u32::written(core, from)),
        };
        for part in 0..u32::from(count) {
            let mut out = [0u32; 32];
            for lane in 0..32 {
                out[lane] = (values[lane] >> (part * bits) & ((1 << bits) - 1)) as u32;
            }
            u32::write(core, inst.slots[part as usize], &out, written);
        }
        Flow::Next
    })
}

/// The handler that reads a special register.
pub(crate) fn special(level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::ReadSpecial(register, ty) = inst.op else { return Flow::Next };
        let values = read_special(core, register);
        match ty.bytes() {
            0 => {
                let (value, mask) = (if values[0] == 0 { 0 } else { u32::MAX }, core.warp.mask);
                core.warp.registers.set_predicate(inst.slots[0], value, mask, u32::MAX);
            }
            8 => u64::write(core, inst.slots[0], &values, u32::MAX),
            _ => u32::write(core, inst.slots[0], &values.map(|v| v as u32), u32::MAX),
        }
        Flow::Next
    })
}

fn read_special(core: &Core<'_>, register: Special) -> [u64; 32] {
    let launch = core.launch;
    let warp = u64::from(core.warp.number);
    let block = launch.config.block;
    let uniform = |value: u64| [value; 32];
    let lanes = |f: &dyn Fn(u32) -> u64| std::array::from_fn(|lane| f(lane as u32));
    match register {
        Special::ThreadIndex(axis) => lanes(&|lane| {
            let thread = core.warp.number * 32 + lane;
            u64::from(match axis {
                0 => thread % block[0],
                1 => thread / block[0] % block[1],
                _ => thread / block[0] / block[1],
            })
        }),
        Special::BlockSize(axis) => uniform(u64::from(block[usize::from(axis)])),
        Special::BlockIndex(axis) => uniform(u64::from(core.block.index[usize::from(axis)])),
        Special::GridSize(axis) => uniform(u64::from(launch.config.grid[usize::from(axis)])),
        Special::LaneId => lanes(&u64::from),
        Special::WarpId => uniform(warp),
        Special::WarpCount => uniform(u64::from(launch.warps)),
        Special::ClusterIndex(axis) => {
            uniform(u64::from(core.block.index[usize::from(axis)] / launch.cluster(axis)))
        }
        Special::ClusterCount(axis) => {
            uniform(u64::from(launch.config.grid[usize::from(axis)] / launch.cluster(axis)))
        }
        Special::ClusterBlockIndex(axis) => {
            uniform(u64::from(core.block.index[usize::from(axis)] % launch.cluster(axis)))
        }
        Special::ClusterSize(axis) => uniform(u64::from(launch.cluster(axis))),
        Special::ClusterBlockRank => uniform(u64::from(core.block.rank)),
        Special::ClusterBlockCount => uniform(u64::from(launch.ranks())),
        // One multiprocessor for each block, as far as they go.
        Special::MultiprocessorId => uniform(core.block.number % 108),
        Special::MultiprocessorCount => uniform(108),
        Special::GridId => uniform(1),
        Special::LaneMask(mask) => lanes(&|lane| {
            let own = 1u32 << lane;
            u64::from(match mask {
                LaneMask::Equal => own,
                LaneMask::Less => own - 1,
                LaneMask::LessEqual => own | (own - 1),
                LaneMask::Greater => !(own | (own - 1)),
                LaneMask::GreaterEqual => !(own - 1),
            })
        }),
        // Time is the number of instructions that the block has run: the same in every run.
        Special::Clock | Special::GlobalTimer => uniform(core.block.instructions),
        Special::ClockHigh | Special::GlobalTimerHigh => uniform(core.block.instructions >> 32),
        Special::DynamicShared => uniform(u64::from(launch.config.dynamic_shared)),
        Special::TotalShared => {
            uniform(u64::from(launch.kernel.static_shared + launch.config.dynamic_shared))
        }
        Special::AggregateShared => {
            let own = launch.kernel.static_shared + launch.config.dynamic_shared;
            uniform(u64::from(own + Reserved::BYTES))
        }
        Special::ReservedShared(what) => {
            let begin = launch.kernel.reserved_shared;
            uniform(u64::from(match what {
                Reserved::Begin => begin,
                Reserved::End => begin + Reserved::BYTES,
                Reserved::Size => Reserved::BYTES,
                Reserved::Part(part) => begin + u32::from(part) * Reserved::BYTES / 2,
            }))
        }
        // The driver tells cooperative groups by these two where a grid's barrier is; in the others it tells nothing.
        Special::Environment(1) => uniform(launch.workspace >> 32),
        Special::Environment(2) => uniform(launch.workspace & 0xffff_ffff),
        Special::Environment(_) => uniform(0),
        Special::WarpSize => uniform(32),
        Special::IsExplicitCluster => uniform(u64::from(launch.ranks() > 1)),
    }
}

/// Where the addresses of a space begin among the generic ones.
fn window(space: Space) -> u64 {
    match space {
        Space::Shared | Space::Cluster => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Param => PARAM_WINDOW,
        Space::Global | Space::Const | Space::Generic => 0,
    }
}

/// The handler of `cvta`.
pub(crate) fn cvta(space: Space, to_space: bool, level: Level) -> Handler {
    match (space, to_space) {
        (Space::Shared | Space::Cluster, false) => {
            lanes!(level, |a: u64| -> u64 { a.wrapping_add(SHARED_WINDOW) })
        }
        (Space::Local, false) => lanes!(level, |a: u64| -> u64 { a.wrapping_add(LOCAL_WINDOW) }),
        (Space::Param, false) => lanes!(level, |a: u64| -> u64 { a.wrapping_add(PARAM_WINDOW) }),
        (Space::Shared | Space::Cluster, true) => {
            lanes!(level, |a: u64| -> u64 { a.wrapping_sub(SHARED_WINDOW) })
        }
        (Space::Local, true) => lanes!(level, |a: u64| -> u64 { a.wrapping_sub(LOCAL_WINDOW) }),
        (Space::Param, true) => lanes!(level, |a: u64| -> u64 { a.wrapping_sub(PARAM_WINDOW) }),
        (Space::Global | Space::Const | Space::Generic, _) => lanes!(level, |a: u64| -> u64 { a }),
    }
}

/// The handler of `isspacep`.
pub(crate) fn is_space(_: Space, level: Level) -> Handler {
    warp!(level, |core, inst| {
        let Op::IsSpace(space) = inst.op else { return Flow::Next };
        let values = *u64::read(core, inst.slots[1]);
        let mut result = 0;
        for lane in 0..32 {
            let address = values[lane];
            let inside = match space {
                Space::Cluster | Space::Local | Space::Param => address.wrapping_sub(window(space)) < WINDOW,
                Space::Shared => core.own_shared(address.wrapping_sub(window(space))).is_some(),
                Space::Const => core.launch.is_constant(address),
                Space::Global | Space::Generic => {
                    address < SHARED_WINDOW && !core.launch.is_constant(address)
                }
            };
            result |= u32::from(inside) << lane;
        }
        let (mask, written) = (core.warp.mask, u64::written(core, inst.slots[1]));
        core.warp.registers.set_predicate(inst.slots[0], result, mask, written);
        Flow::Next
    })
}
