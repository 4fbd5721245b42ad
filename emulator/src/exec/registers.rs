//! The register files of a warp.
//!
//! A register holds a value for each of 32 lanes, and a mask that says in which of them something wrote it. Words hold
//! everything up to 32 bits, doubles 64; predicates are masks themselves.

use std::collections::HashMap;

use super::definedness::Bits;
use crate::ir::program::{Constant, Operand, file_of};
use crate::syntax::ast::Class;

/// Names a register or a constant.
pub(crate) type Slot = u32;

/// The slot is a constant of the launch.
pub(crate) const CONSTANT: Slot = 1 << 31;
/// The slot is in the file of doubles.
pub(crate) const DOUBLE: Slot = 1 << 30;
const INDEX: Slot = DOUBLE - 1;

/// The slot of an operand. Operands that are not there get the slot behind the last register, which nobody reads.
pub(crate) fn slot_of(operand: Operand, registers: &[u32; 3]) -> Slot {
    let double = |class| if class == Class::Double { DOUBLE } else { 0 };
    match operand {
        Operand::Register(register) => register.number | double(register.class),
        Operand::Constant(class, index) => index | CONSTANT | double(class),
        Operand::None(class) => registers[file_of(class)] | double(class),
    }
}

/// A value for each lane, whose vectors are each within one line of the cache: what crosses lines is slow to read back after it was written.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Lanes<T>([T; 32]);

/// A register file and its initialisation masks.
#[derive(Clone)]
pub(crate) struct File<T> {
    values: Vec<T>,
    written: Vec<u32>,
}

impl<T: Clone> File<T> {
    fn new(zero: T, count: u32) -> Self {
        Self { values: vec![zero; count as usize + 1], written: vec![0; count as usize + 1] }
    }
}

/// The registers of one warp.
#[derive(Clone)]
pub(crate) struct Registers {
    words: File<Lanes<u32>>,
    doubles: File<Lanes<u64>>,
    predicates: File<u32>,
    /// Which bits were written, for registers that are not written as a whole in some lane.
    pub(super) partial: HashMap<Slot, Bits>,
    /// What stood in registers that the instruction at hand has overwritten with something that is not written as a whole: values and
    /// written bits.
    overwritten: Vec<(Slot, Bits, Bits)>,
}

/// What a lane had in some registers, and whether something wrote it.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    predicates: Vec<(bool, bool)>,
    words: Vec<(u32, bool)>,
    doubles: Vec<(u64, bool)>,
    /// Which bits were written, where not all were.
    partial: Vec<(Slot, u64)>,
}

/// Whether a word or a double is in one of the ranges.
fn in_ranges(slot: Slot, ranges: &[(u32, u32); 3]) -> bool {
    let (first, end) = ranges[if slot & DOUBLE == 0 { 1 } else { 2 }];
    (first..end).contains(&(slot & INDEX))
}

/// The constants of a launch, spread over all lanes.
pub(crate) struct Constants {
    words: Vec<Lanes<u32>>,
    doubles: Vec<Lanes<u64>>,
    predicates: Vec<u32>,
}

impl Constants {
    /// `addresses` has the address of each variable of the module.
    pub(crate) fn new(constants: &[Constant], addresses: &[u64]) -> Self {
        let values: Vec<u64> = constants
            .iter()
            .map(|constant| match *constant {
                Constant::Value(value) => value,
                Constant::Address { variable, offset } => {
                    addresses[variable as usize].wrapping_add_signed(offset)
                }
            })
            .collect();
        Self {
            words: values.iter().map(|&v| Lanes([v as u32; 32])).collect(),
            doubles: values.iter().map(|&v| Lanes([v; 32])).collect(),
            predicates: values.iter().map(|&v| if v == 0 { 0 } else { u32::MAX }).collect(),
        }
    }
}

impl Registers {
    pub(crate) fn new(counts: &[u32; 3]) -> Self {
        Self {
            predicates: File::new(0, counts[0]),
            words: File::new(Lanes([0; 32]), counts[1]),
            doubles: File::new(Lanes([0; 32]), counts[2]),
            partial: HashMap::new(),
            overwritten: Vec::new(),
        }
    }

    /// Whether the instruction at hand has written something that is not written as a whole.
    #[inline(always)]
    pub(crate) fn has_overwritten(&self) -> bool {
        !self.overwritten.is_empty()
    }

    pub(super) fn take_overwritten(&mut self) -> Vec<(Slot, Bits, Bits)> {
        std::mem::take(&mut self.overwritten)
    }

    #[cold]
    fn overwrite(&mut self, slot: Slot, mask: u32) {
        let bits = self.bits_of(slot);
        let index = (slot & INDEX) as usize;
        let values = match slot & DOUBLE {
            0 => self.words.values[index].0.map(u64::from),
            _ => self.doubles.values[index].0,
        };
        if let Some(partial) = self.partial.get_mut(&slot) {
            let none = if slot & DOUBLE == 0 { !0 << 32 } else { 0 };
            (0..32).filter(|lane| mask >> lane & 1 == 1).for_each(|lane| partial[lane] = none);
        }
        self.overwritten.push((slot, values, bits));
    }

    /// The values of a register or a constant.
    pub(super) fn values_of(&self, constants: &Constants, slot: Slot) -> Bits {
        match slot & DOUBLE {
            0 => self.word(constants, slot).map(u64::from),
            _ => *self.double(constants, slot),
        }
    }

    /// Sets which bits of a register are written.
    pub(super) fn set_bits(&mut self, slot: Slot, mask: u32, bits: &Bits) {
        let whole = (0..32).filter(|&lane| bits[lane] == u64::MAX).fold(0, |all, lane| all | 1u32 << lane);
        let written = match slot & DOUBLE {
            0 => &mut self.words.written[(slot & INDEX) as usize],
            _ => &mut self.doubles.written[(slot & INDEX) as usize],
        };
        *written = *written & !mask | whole & mask;
        let none = if slot & DOUBLE == 0 { !0 << 32 } else { 0 };
        if (0..32).any(|lane| mask >> lane & 1 == 1 && bits[lane] != none) {
            let partial = self.partial.entry(slot).or_insert([none; 32]);
            (0..32).filter(|lane| mask >> lane & 1 == 1).for_each(|lane| partial[lane] = bits[lane]);
        }
    }

    /// What a lane has in a range of each file.
    pub(crate) fn save(&self, lane: usize, ranges: &[(u32, u32); 3]) -> Saved {
        fn part<T: Copy, V>(
            file: &File<T>,
            range: (u32, u32),
            lane: usize,
            value: impl Fn(T) -> V,
        ) -> Vec<(V, bool)> {
            let range = range.0 as usize..range.1 as usize;
            let both = file.values[range.clone()].iter().zip(&file.written[range]);
            both.map(|(&values, &written)| (value(values), written >> lane & 1 == 1)).collect()
        }
        let partial = self.partial.iter().filter(|(slot, _)| in_ranges(**slot, ranges));
        Saved {
            partial: partial.map(|(&slot, bits)| (slot, bits[lane])).collect(),
            predicates: part(&self.predicates, ranges[0], lane, |values| values >> lane & 1 == 1),
            words: part(&self.words, ranges[1], lane, |values| values.0[lane]),
            doubles: part(&self.doubles, ranges[2], lane, |values| values.0[lane]),
        }
    }

    /// Gives a lane back what it had.
    pub(crate) fn restore(&mut self, lane: usize, ranges: &[(u32, u32); 3], saved: &Saved) {
        self.forget_bits(ranges, 1 << lane);
        for &(slot, bits) in &saved.partial {
            if let Some(partial) = self.partial.get_mut(&slot) {
                partial[lane] = bits;
            }
        }
        let set = |mask: &mut u32, on: bool| *mask = *mask & !(1 << lane) | u32::from(on) << lane;
        for (index, &(value, written)) in (ranges[0].0 as usize..).zip(&saved.predicates) {
            set(&mut self.predicates.values[index], value);
            set(&mut self.predicates.written[index], written);
        }
        for (index, &(value, written)) in (ranges[1].0 as usize..).zip(&saved.words) {
            self.words.values[index].0[lane] = value;
            set(&mut self.words.written[index], written);
        }
        for (index, &(value, written)) in (ranges[2].0 as usize..).zip(&saved.doubles) {
            self.doubles.values[index].0[lane] = value;
            set(&mut self.doubles.written[index], written);
        }
    }

    /// Forgets which bits of registers in a range of each file are written, where not all are.
    fn forget_bits(&mut self, ranges: &[(u32, u32); 3], lanes: u32) {
        for (&slot, bits) in self.partial.iter_mut().filter(|(slot, _)| in_ranges(**slot, ranges)) {
            let none = if slot & DOUBLE == 0 { !0 << 32 } else { 0 };
            (0..32).filter(|lane| lanes >> lane & 1 == 1).for_each(|lane| bits[lane] = none);
        }
    }

    /// Takes what lanes have in a range of each file for values that nothing wrote.
    pub(crate) fn forget(&mut self, ranges: &[(u32, u32); 3], lanes: u32) {
        self.forget_bits(ranges, lanes);
        let files = [&mut self.predicates.written, &mut self.words.written, &mut self.doubles.written];
        for (written, &(first, end)) in files.into_iter().zip(ranges) {
            written[first as usize..end as usize].iter_mut().for_each(|written| *written &= !lanes);
        }
    }

    #[inline(always)]
    pub(crate) fn word<'a>(&'a self, constants: &'a Constants, slot: Slot) -> &'a [u32; 32] {
        let from = if slot & CONSTANT == 0 { &self.words.values } else { &constants.words };
        &from[(slot & INDEX) as usize].0
    }

    #[inline(always)]
    pub(crate) fn double<'a>(&'a self, constants: &'a Constants, slot: Slot) -> &'a [u64; 32] {
        let from = if slot & CONSTANT == 0 { &self.doubles.values } else { &constants.doubles };
        &from[(slot & INDEX) as usize].0
    }

    #[inline(always)]
    pub(crate) fn predicate(&self, constants: &Constants, slot: Slot) -> u32 {
        let from = if slot & CONSTANT == 0 { &self.predicates.values } else { &constants.predicates };
        from[(slot & INDEX) as usize]
    }

    #[inline(always)]
    pub(crate) fn word_written(&self, slot: Slot) -> u32 {
        if slot & CONSTANT == 0 { self.words.written[(slot & INDEX) as usize] } else { u32::MAX }
    }

    #[inline(always)]
    pub(crate) fn double_written(&self, slot: Slot) -> u32 {
        if slot & CONSTANT == 0 { self.doubles.written[(slot & INDEX) as usize] } else { u32::MAX }
    }

    #[inline(always)]
    pub(crate) fn predicate_written(&self, slot: Slot) -> u32 {
        if slot & CONSTANT == 0 { self.predicates.written[(slot & INDEX) as usize] } else { u32::MAX }
    }

    #[inline(always)]
    pub(crate) fn set_word(&mut self, slot: Slot, values: &[u32; 32], mask: u32, written: u32) {
        if written & mask != mask {
            self.overwrite(slot, mask);
        }
        let index = (slot & INDEX) as usize;
        self.words.written[index] = self.words.written[index] & !mask | written & mask;
        blend(&mut self.words.values[index].0, values, mask);
    }

    #[inline(always)]
    pub(crate) fn set_double(&mut self, slot: Slot, values: &[u64; 32], mask: u32, written: u32) {
        if written & mask != mask {
            self.overwrite(slot, mask);
        }
        let index = (slot & INDEX) as usize;
        self.doubles.written[index] = self.doubles.written[index] & !mask | written & mask;
        blend(&mut self.doubles.values[index].0, values, mask);
    }

    #[inline(always)]
    pub(crate) fn set_predicate(&mut self, slot: Slot, value: u32, mask: u32, written: u32) {
        let index = (slot & INDEX) as usize;
        self.predicates.written[index] = self.predicates.written[index] & !mask | written & mask;
        self.predicates.values[index] = self.predicates.values[index] & !mask | value & mask;
    }
}

/// Takes the lanes in `mask` from `from`.
#[inline(always)]
fn blend<T: Copy>(to: &mut [T; 32], from: &[T; 32], mask: u32) {
    if mask == u32::MAX {
        *to = *from;
    } else {
        for lane in 0..32 {
            to[lane] = if mask >> lane & 1 == 1 { from[lane] } else { to[lane] };
        }
    }
}
