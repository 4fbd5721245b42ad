//! The register files of a warp.
//!
//! A register holds a value for each of 32 lanes, and a mask that says in which of them something wrote it. Words hold
//! everything up to 32 bits, doubles 64; predicates are masks themselves.

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
    words: File<[u32; 32]>,
    doubles: File<[u64; 32]>,
    predicates: File<u32>,
}

/// The constants of a launch, spread over all lanes.
pub(crate) struct Constants {
    words: Vec<[u32; 32]>,
    doubles: Vec<[u64; 32]>,
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
            words: values.iter().map(|&v| [v as u32; 32]).collect(),
            doubles: values.iter().map(|&v| [v; 32]).collect(),
            predicates: values.iter().map(|&v| if v == 0 { 0 } else { u32::MAX }).collect(),
        }
    }
}

impl Registers {
    pub(crate) fn new(counts: &[u32; 3]) -> Self {
        Self {
            predicates: File::new(0, counts[0]),
            words: File::new([0; 32], counts[1]),
            doubles: File::new([0; 32], counts[2]),
        }
    }

    #[inline(always)]
    pub(crate) fn word<'a>(&'a self, constants: &'a Constants, slot: Slot) -> &'a [u32; 32] {
        let from = if slot & CONSTANT == 0 { &self.words.values } else { &constants.words };
        &from[(slot & INDEX) as usize]
    }

    #[inline(always)]
    pub(crate) fn double<'a>(&'a self, constants: &'a Constants, slot: Slot) -> &'a [u64; 32] {
        let from = if slot & CONSTANT == 0 { &self.doubles.values } else { &constants.doubles };
        &from[(slot & INDEX) as usize]
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
        let index = (slot & INDEX) as usize;
        self.words.written[index] = self.words.written[index] & !mask | written & mask;
        blend(&mut self.words.values[index], values, mask);
    }

    #[inline(always)]
    pub(crate) fn set_double(&mut self, slot: Slot, values: &[u64; 32], mask: u32, written: u32) {
        let index = (slot & INDEX) as usize;
        self.doubles.written[index] = self.doubles.written[index] & !mask | written & mask;
        blend(&mut self.doubles.values[index], values, mask);
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
