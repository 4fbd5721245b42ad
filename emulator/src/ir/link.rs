//! Joins the translated bodies of an entry and of the functions that it reaches to one kernel.
//!
//! Functions come before those that call them: the scheduler runs the lanes at the lowest instruction first, so
//! that lanes
//! which part for a call meet again behind it. Each body has registers of its own.

use super::functions::{self, Graph};
use super::layout::Layout;
use super::op::Op;
use super::program::{
    Builtin, CallSite, Callee, Constant, Function, Instruction, Kernel, Operand, Register, RegisterNames,
    file_of,
};

/// Bytes of a thread's local memory for the frames of functions that call themselves, and for `alloca`.
const STACK: u32 = 16 << 10;
/// All frames together take at most so much: longer chains of calls end in a finding.
const MAX_STACK: u64 = 1 << 20;

/// A translated body.
pub(super) struct Unit {
    pub(super) instructions: Vec<Instruction>,
    pub(super) constants: Vec<Constant>,
    pub(super) registers: [u32; 3],
    pub(super) names: RegisterNames,
    pub(super) late: Vec<bool>,
    /// A function among these is named by its position in the module.
    pub(super) calls: Vec<CallSite>,
    pub(super) frame: u32,
    pub(super) parameters: Vec<(u32, u32)>,
    pub(super) results: Vec<(u32, u32)>,
}

/// A kernel in the making.
pub(super) struct Linker<'g, 'm, 'a> {
    graph: &'g Graph<'m, 'a>,
    /// The functions, in the order in which they are added; the entry follows.
    reached: &'g [usize],
    instructions: Vec<Instruction>,
    constants: Vec<Constant>,
    registers: [u32; 3],
    names: RegisterNames,
    late: Vec<bool>,
    calls: Vec<CallSite>,
    functions: Vec<Function>,
    /// Bytes of the entry's frame, and the entry's first instruction.
    frame: u32,
    start: u32,
}

impl<'g, 'm, 'a> Linker<'g, 'm, 'a> {
    pub(super) fn new(graph: &'g Graph<'m, 'a>, reached: &'g [usize]) -> Self {
        Self {
            graph,
            reached,
            instructions: Vec::new(),
            constants: Vec::new(),
            registers: [0; 3],
            names: RegisterNames::default(),
            late: Vec::new(),
            calls: Vec::new(),
            functions: Vec::new(),
            frame: 0,
            start: 0,
        }
    }

    /// Adds the next body.
    pub(super) fn add(&mut self, unit: Unit) {
        let start = self.instructions.len() as u32;
        let (constants, calls, registers) =
            (self.constants.len() as u32, self.calls.len() as i64, self.registers);
        let moved = |register: &mut Register| register.number += registers[file_of(register.class)];
        for mut instruction in unit.instructions {
            for operand in &mut instruction.operands {
                match operand {
                    Operand::Register(register) => moved(register),
                    Operand::Constant(_, index) => *index += constants,
                    Operand::None(_) => {}
                }
            }
            if let Some((register, _)) = &mut instruction.guard {
                moved(register);
            }
            match instruction.op {
                Op::Branch => instruction.immediates[0] += i64::from(start),
                Op::BranchIndexed => instruction.targets.iter_mut().for_each(|target| *target += start),
                Op::Call => instruction.immediates[0] += calls,
                _ => {}
            }
            self.instructions.push(instruction);
        }
        self.constants.extend(unit.constants);
        self.names.append(unit.names);
        let calls: Vec<CallSite> = unit.calls.into_iter().map(|call| self.linked(call)).collect();
        self.calls.extend(calls);
        if !unit.late.is_empty() {
            self.late.resize(start as usize, false);
            self.late.extend(unit.late);
        }
        for file in 0..3 {
            self.registers[file] += unit.registers[file];
        }
        let frame = unit.frame.next_multiple_of(16);
        let Some(&number) = self.reached.get(self.functions.len()) else {
            (self.frame, self.start) = (frame, start);
            return;
        };
        self.functions.push(Function {
            name: self.graph.function(number).name.text.to_owned(),
            address: functions::address(number),
            start,
            frame,
            parameters: unit.parameters,
            results: unit.results,
            registers: std::array::from_fn(|file| (registers[file], self.registers[file])),
            recursive: self.graph.is_recursive(number),
        });
    }

    /// Names a function by its position in the kernel.
    fn linked(&self, call: CallSite) -> CallSite {
        let Callee::Function(number) = call.callee else { return call };
        let position = self.reached.iter().position(|&reached| reached == number as usize);
        // Whatever is called is reached.
        CallSite { callee: Callee::Function(position.unwrap_or(0) as u32), ..call }
    }

    /// Bytes that the frames of functions need behind the entry's.
    fn stack(&self) -> u32 {
        let open = |i: &Instruction| matches!(i.op, Op::Alloca { .. });
        let (recursive, grows) =
            (self.functions.iter().any(|f| f.recursive), self.instructions.iter().any(open));
        // Without recursion no function is active twice.
        let frames: u64 = self.functions.iter().map(|f| u64::from(f.frame.max(16))).sum();
        let more = if recursive || grows { u64::from(STACK) } else { 0 };
        (frames + more).min(MAX_STACK) as u32
    }

    pub(super) fn finish(mut self, layout: Layout<'_>) -> Kernel {
        if !self.late.is_empty() {
            self.late.resize(self.instructions.len(), false);
        }
        let done = &self.instructions;
        // Blocks that allocate must do so in the same order in every run.
        let allocates = self.calls.iter().any(|call| call.callee == Callee::Builtin(Builtin::Malloc));
        let mut reductions = done.iter().filter_map(|i| i.op.reduction());
        let first = reductions.next();
        let mixed = reductions.any(|other| Some(other) != first);
        let communicates = allocates || mixed || done.iter().any(|i| i.op.communicates());
        let orders_quietly = done.iter().any(|i| i.op.orders_quietly());
        let engine = done.iter().any(|i| i.op.uses_engine());
        let fills = done.iter().any(|i| i.op.fills_shared());
        let dependent = done.iter().any(|i| matches!(i.op, Op::Grids { .. }));
        Kernel {
            local: self.frame + self.stack(),
            start: self.start,
            functions: self.functions,
            calls: self.calls,
            frame: self.frame,
            instructions: self.instructions,
            constants: self.constants,
            registers: self.registers,
            shared: layout.variables,
            static_shared: layout.bytes,
            shared_span: layout.span,
            red_zones: layout.red_zones,
            uses_dynamic_shared: layout.uses_dynamic,
            reserved_shared: layout.reserved,
            parameters: Vec::new(),
            parameter_bytes: 0,
            names: self.names,
            communicates,
            orders_quietly,
            engine,
            fills,
            late: self.late,
            dependent,
        }
    }
}
