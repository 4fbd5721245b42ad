//! Atomic operations on memory, one lane after the other.

use super::access::ones;
use super::code::{Core, Flow, Handler, Inst, Level};
use super::lane::{Lane, warp};
use super::registers::Slot;
use super::strong::shared_place;
use crate::check::FindingKind;
use crate::check::shadow::Access;
use crate::ir::op::{Atomic, Op};
use crate::ir::types::Ty;
use crate::numeric::float::{canonical, flush, maximum, minimum, propagate64};
use crate::numeric::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::syntax::ast::Space;

/// The handler of `atom` and `red`.
pub(crate) fn atomic(level: Level) -> Handler {
    warp!(level, |core, inst| {
        match run(core, inst) {
            Ok(()) => Flow::Next,
            Err(flow) => flow,
        }
    })
}

fn read(core: &Core<'_>, slot: Slot, ty: Ty) -> ([u64; 32], u32) {
    match ty.bytes() {
        8 => (*u64::read(core, slot), u64::written(core, slot)),
        _ => (u32::read(core, slot).map(u64::from), u32::written(core, slot)),
    }
}

fn run(core: &mut Core<'_>, inst: &Inst) -> Result<(), Flow> {
    let Op::Atomic { op, space, ty, result, strength } = inst.op else { return Ok(()) };
    let first = usize::from(result);
    let addresses = core.addresses(inst.slots[first], inst.immediates[0])?;
    let (values, mut known) = read(core, inst.slots[first + 1], ty);
    let new = if op == Atomic::CompareExchange {
        let (new, written) = read(core, inst.slots[first + 2], ty);
        known &= written;
        new
    } else {
        values
    };
    let mask = core.warp.mask;
    if mask & !known != 0 && core.launch.checks.uninitialised {
        return Err(core.uninitialised(mask & !known, "the operand of an atomic operation"));
    }
    let bytes = ty.bytes();
    let (mut old, mut written) = ([0u64; 32], u32::MAX);
    core.by_space(space, mask, &addresses, |core, space, lanes, addresses| {
        core.check_alignment(lanes, addresses, bytes, "atomic operation")?;
        match space {
            Space::Shared => {
                let lanes = core.check_shared(lanes, addresses, bytes, "atomic operation")?;
                core.race(lanes, addresses, bytes, Access::Atomic)?;
                let rank = core.block.rank;
                core.synchronise(strength, (true, true), lanes, |lane| shared_place(rank, addresses[lane]));
                let memory = &mut core.block.shared;
                for lane in ones(lanes) {
                    let at = addresses[lane] as usize;
                    let before = match bytes {
                        8 => u64::from_le_bytes(memory.load(at)),
                        4 => u64::from(u32::from_le_bytes(memory.load(at))),
                        _ => u64::from(u16::from_le_bytes(memory.load(at))),
                    };
                    if memory.written(at, bytes) != (1 << bytes) - 1 {
                        written &= !(1 << lane);
                    }
                    old[lane] = before;
                    let after = apply(op, ty, before, values[lane], new[lane]);
                    match bytes {
                        8 => memory.store(at, after.to_le_bytes()),
                        4 => memory.store(at, (after as u32).to_le_bytes()),
                        _ => memory.store(at, (after as u16).to_le_bytes()),
                    }
                    // What is added to nothing is nothing.
                    if op == Atomic::Exchange {
                        memory.set_written(at, bytes, true);
                    }
                }
                Ok(())
            }
            Space::Global | Space::Generic => {
                core.check_grids(lanes, addresses, bytes, "atomic operation")?;
                for lane in ones(lanes) {
                    let address = addresses[lane];
                    let Some(index) =
                        core.allocation(address, lanes, addresses, bytes, "atomic operation")?
                    else {
                        continue;
                    };
                    let table = core.launch.table;
                    let allocation = table.at(index);
                    if allocation.read_only {
                        let message = format!("an atomic operation on {}", table.describe(address));
                        return Err(core.fail(
                            FindingKind::ReadOnly,
                            1 << lane,
                            message,
                            allocation.hint_of_write(),
                        ));
                    }
                    allocation.note_write(core.launch.number);
                    core.race_global(index, 1 << lane, addresses, bytes, Access::Atomic)?;
                    core.synchronise(strength, (true, true), 1 << lane, |lane| addresses[lane]);
                    let (storage, at) = (&allocation.storage, address - allocation.base);
                    if !storage.is_written(at & !(u64::from(bytes) - 1), bytes) {
                        written &= !(1 << lane);
                    }
                    // Blocks on other threads may do the same at the same time, if it comes to the same in any order.
                    let at = at & !(u64::from(bytes) - 1);
                    let after = |before| apply_in_global(op, ty, before, values[lane], new[lane]);
                    old[lane] = match bytes {
                        8 => storage.update::<u64>(at, after),
                        4 => u64::from(storage.update::<u32>(at, |before| after(before.into()) as u32)),
                        _ => u64::from(storage.update::<u16>(at, |before| after(before.into()) as u16)),
                    };
                    if op == Atomic::Exchange {
                        storage.set_written(at, bytes, true);
                    }
                }
                Ok(())
            }
            _ => {
                let message = "an atomic operation on memory that is neither global nor shared".to_owned();
                Err(core.fail(FindingKind::ReadOnly, lanes, message, None))
            }
        }
    })?;
    if result {
        match bytes {
            8 => u64::write(core, inst.slots[0], &old, written),
            _ => u32::write(core, inst.slots[0], &old.map(|v| v as u32), written),
        }
    }
    Ok(())
}

/// What stands in global memory after the operation. Where it is done by the memory itself, a sum in f32 takes subnormal
/// numbers for zeros, and a NaN in f64 stays as it is, that of the operand before that in memory.
fn apply_in_global(op: Atomic, ty: Ty, old: u64, value: u64, new: u64) -> u64 {
    match (op, ty) {
        (Atomic::Add, Ty::F32) => {
            let flushed = |bits: u64| flush(f32::from_bits(bits as u32));
            u64::from(flush(canonical(flushed(old) + flushed(value))).to_bits())
        }
        (Atomic::Add, Ty::F64) if f64::from_bits(value).is_nan() => value,
        (Atomic::Add, Ty::F64) if f64::from_bits(old).is_nan() => old,
        _ => apply(op, ty, old, value, new),
    }
}

/// What stands in memory after the operation.
pub(super) fn apply(op: Atomic, ty: Ty, old: u64, value: u64, new: u64) -> u64 {
    let wide = ty.bytes() == 8;
    let signed = |x: u64| if wide { x.cast_signed() } else { i64::from(x as i32) };
    let (old32, value32) = (old as u32, value as u32);
    match op {
        Atomic::Exchange => value,
        Atomic::CompareExchange => {
            let equal = match ty.bytes() {
                8 => old == value,
                2 => old32 & 0xffff == value32 & 0xffff,
                _ => old32 == value32,
            };
            if equal { new } else { old }
        }
        Atomic::Add => match ty {
            Ty::F32 => u64::from(canonical(f32::from_bits(old32) + f32::from_bits(value32)).to_bits()),
            Ty::F64 => {
                let (a, b) = (f64::from_bits(old), f64::from_bits(value));
                propagate64(a + b, [a, b]).to_bits()
            }
            Ty::F16 | Ty::Bf16 => u64::from(add16(ty == Ty::F16, old as u16, value as u16)),
            Ty::F16x2 | Ty::Bf16x2 => {
                let half = |shift: u32| {
                    u64::from(add16(ty == Ty::F16x2, (old >> shift) as u16, (value >> shift) as u16)) << shift
                };
                half(0) | half(16)
            }
            _ => old.wrapping_add(value),
        },
        Atomic::Min if ty.bytes() == 2 => {
            u64::from(through_f32(ty == Ty::F16, minimum, old as u16, value as u16))
        }
        Atomic::Max if ty.bytes() == 2 => {
            u64::from(through_f32(ty == Ty::F16, maximum, old as u16, value as u16))
        }
        Atomic::Min | Atomic::Max if matches!(ty, Ty::F16x2 | Ty::Bf16x2) => {
            let pick = if op == Atomic::Min { minimum } else { maximum };
            let half = |shift: u32| {
                let (old, value) = ((old >> shift) as u16, (value >> shift) as u16);
                u64::from(through_f32(ty == Ty::F16x2, pick, old, value)) << shift
            };
            half(0) | half(16)
        }
        Atomic::Min if ty.is_signed() => {
            if signed(value) < signed(old) {
                value
            } else {
                old
            }
        }
        Atomic::Max if ty.is_signed() => {
            if signed(value) > signed(old) {
                value
            } else {
                old
            }
        }
        Atomic::Min => old.min(value),
        Atomic::Max => old.max(value),
        Atomic::And => old & value,
        Atomic::Or => old | value,
        Atomic::Xor => old ^ value,
        Atomic::Inc => {
            if old32 >= value32 {
                0
            } else {
                u64::from(old32 + 1)
            }
        }
        Atomic::Dec => {
            if old32 == 0 || old32 > value32 {
                u64::from(value32)
            } else {
                u64::from(old32 - 1)
            }
        }
    }
}

fn add16(f16: bool, a: u16, b: u16) -> u16 {
    through_f32(f16, |a, b| a + b, a, b)
}

/// An operation on f16 or bf16 by way of f32.
fn through_f32(f16: bool, operation: fn(f32, f32) -> f32, a: u16, b: u16) -> u16 {
    if f16 {
        f32_to_f16(operation(f16_to_f32(a), f16_to_f32(b)))
    } else {
        f32_to_bf16(operation(bf16_to_f32(a), bf16_to_f32(b)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn increments_wrap_at_their_bound() {
        assert_eq!(apply(Atomic::Inc, Ty::U32, 3, 3, 0), 0);
        assert_eq!(apply(Atomic::Inc, Ty::U32, 2, 3, 0), 3);
        assert_eq!(apply(Atomic::Dec, Ty::U32, 0, 3, 0), 3);
        assert_eq!(apply(Atomic::Dec, Ty::U32, 7, 3, 0), 3);
        assert_eq!(apply(Atomic::Min, Ty::S32, 0xffff_ffff, 1, 0), 0xffff_ffff);
        assert_eq!(apply(Atomic::CompareExchange, Ty::B32, 5, 5, 9), 9);
        assert_eq!(apply(Atomic::CompareExchange, Ty::B32, 5, 6, 9), 5);
    }
}
