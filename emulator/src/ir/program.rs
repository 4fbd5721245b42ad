//! The translated module: instructions with their operands resolved, ready to be bound to code that runs them.

use super::op::{Op, Special};
use super::types::Ty;
use crate::syntax::ast::{Class, Space};

/// A register before allocation: its class and a number within that class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Register {
    pub(crate) class: Class,
    pub(crate) number: u32,
}

/// An operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Register(Register),
    /// An index into [`Kernel::constants`], and the class of register that it stands for.
    Constant(Class, u32),
    /// A destination that nobody wants, or an optional operand that is not there.
    None(Class),
}

/// A value that is the same for all threads of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    Value(u64),
    /// The address of a module's variable in global memory, and an offset.
    Address {
        variable: u32,
        offset: i64,
    },
}

/// An instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    pub(crate) op: Op,
    /// Destinations first.
    pub(crate) operands: Vec<Operand>,
    /// How many of the operands are destinations.
    pub(crate) destinations: usize,
    /// Offsets of addresses, an integer operand, or the target of a branch.
    pub(crate) immediates: [i64; 3],
    pub(crate) guard: Option<(Register, bool)>,
    /// The targets of an indexed branch.
    pub(crate) targets: Vec<u32>,
    /// The line in the text.
    pub(crate) line: u32,
    /// The line that the compiler names: file and line.
    pub(crate) location: Option<(u32, u32)>,
}

/// A variable of the module in global or constant memory.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) space: Space,
    pub(crate) size: u64,
    pub(crate) initial: Vec<u8>,
    /// Addresses of other variables inside the initial bytes: offset, variable, addend.
    pub(crate) addresses: Vec<(usize, u32, i64)>,
}

/// Whom a call calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callee {
    /// A function of [`Kernel::functions`].
    Function(u32),
    /// The function whose address the call's operand holds.
    Register,
    /// What the driver brings with it.
    Builtin(Builtin),
}

/// Functions that the driver brings with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Builtin {
    /// `vprintf(format, arguments)`: both are generic addresses.
    Printf,
    /// `__assertfail(condition, file, line, function, bytes of a character)`.
    AssertFail,
    Malloc,
    Free,
}

impl Builtin {
    /// The function of this name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "vprintf" => Self::Printf,
            "__assertfail" => Self::AssertFail,
            "malloc" => Self::Malloc,
            "free" => Self::Free,
            _ => return None,
        })
    }
}

/// What a `call` passes on: offsets in the caller's frame, and sizes.
#[derive(Clone, Debug)]
pub(crate) struct CallSite {
    pub(crate) callee: Callee,
    pub(crate) arguments: Vec<(u32, u32)>,
    pub(crate) results: Vec<(u32, u32)>,
}

/// A function as a part of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) address: u64,
    /// Its first instruction.
    pub(crate) start: u32,
    /// Bytes of its frame, a multiple of 16.
    pub(crate) frame: u32,
    /// Offsets in the frame, and sizes.
    pub(crate) parameters: Vec<(u32, u32)>,
    pub(crate) results: Vec<(u32, u32)>,
    /// The slots of its registers in each file: first, and behind the last.
    pub(crate) registers: [(u32, u32); 3],
    /// It may be active several times at once, so that its registers must be kept.
    pub(crate) recursive: bool,
}

/// A kernel.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// Those of the functions that it calls, then its own.
    pub(crate) instructions: Vec<Instruction>,
    /// Where it begins.
    pub(crate) start: u32,
    pub(crate) functions: Vec<Function>,
    pub(crate) calls: Vec<CallSite>,
    /// Bytes of local memory for its own variables; the frames of functions come behind them.
    pub(crate) frame: u32,
    pub(crate) constants: Vec<Constant>,
    /// How many registers each class has: predicates, words (and halves), doubles.
    pub(crate) registers: [u32; 3],
    /// Variables in shared memory, for findings: name, offset, bytes.
    pub(crate) shared: Vec<(String, u32, u32)>,
    /// What the variables take on a GPU.
    pub(crate) static_shared: u32,
    /// Where dynamic shared memory begins here: the variables are apart, and what is between them is nobody's.
    pub(crate) shared_span: u32,
    pub(crate) red_zones: Vec<(u32, u32)>,
    pub(crate) uses_dynamic_shared: bool,
    /// Where the shared memory begins that is set aside for libraries.
    pub(crate) reserved_shared: u32,
    /// Bytes of local memory that a thread needs.
    pub(crate) local: u32,
    /// Offset and size of each parameter.
    pub(crate) parameters: Vec<(u32, u32)>,
    pub(crate) parameter_bytes: u32,
    /// What the registers are called.
    pub(crate) names: RegisterNames,
    /// Whether blocks may communicate with each other.
    pub(crate) communicates: bool,
    /// Whether warps may be ordered in ways that clocks do not know.
    pub(crate) orders_quietly: bool,
    /// Whether it uses mbarriers or the copy engine.
    pub(crate) engine: bool,
    /// Whether the copy engine writes shared memory.
    pub(crate) fills: bool,
    /// For each instruction, whether it is a load that may be in flight when its bytes are given back; empty if there is none.
    pub(crate) late: Vec<bool>,
    /// Whether it may be launched before the grids that it depends on have ended, as `griddepcontrol` says.
    pub(crate) dependent: bool,
}

impl Kernel {
    /// Whether threads have stacks: for calls, or for `alloca`.
    pub(crate) fn uses_stack(&self) -> bool {
        !self.calls.is_empty() || self.instructions.iter().any(|i| matches!(i.op, Op::Alloca { .. }))
    }

    /// Whether it asks where shared memory is set aside for libraries.
    pub(crate) fn uses_reserved_shared(&self) -> bool {
        self.instructions.iter().any(|i| matches!(i.op, Op::ReadSpecial(Special::ReservedShared(_), _)))
    }

    /// Whether it asks where the barrier of its grid is.
    pub(crate) fn uses_workspace(&self) -> bool {
        self.instructions.iter().any(|i| matches!(i.op, Op::ReadSpecial(Special::Environment(1 | 2), _)))
    }

    /// Whether it allocates from the heap.
    pub(crate) fn uses_heap(&self) -> bool {
        self.calls.iter().any(|call| call.callee == Callee::Builtin(Builtin::Malloc))
    }
}

/// The names that an entry's registers have in the text, for people.
#[derive(Clone, Debug, Default)]
pub(crate) struct RegisterNames {
    /// Of each file, by the numbers that registers had before they got slots.
    pub(crate) files: [Vec<String>; 3],
    /// Those numbers, of every operand of every instruction, and where each instruction's begin.
    numbers: Vec<u32>,
    starts: Vec<u32>,
    classes: Vec<Class>,
}

impl RegisterNames {
    /// The names alone.
    pub(crate) fn named(files: [Vec<String>; 3]) -> Self {
        Self { files, ..Self::default() }
    }

    pub(crate) fn new(files: [Vec<String>; 3], instructions: &[Instruction]) -> Self {
        let mut names = Self { files, ..Self::default() };
        for instruction in instructions {
            names.starts.push(names.numbers.len() as u32);
            for operand in &instruction.operands {
                let (number, class) = match *operand {
                    Operand::Register(register) => (register.number, register.class),
                    Operand::Constant(class, _) | Operand::None(class) => (u32::MAX, class),
                };
                names.numbers.push(number);
                names.classes.push(class);
            }
        }
        names
    }

    /// The name of the register that is an operand of an instruction.
    pub(crate) fn of(&self, instruction: usize, operand: usize) -> Option<&str> {
        let at = *self.starts.get(instruction)? as usize + operand;
        let file = &self.files[file_of(*self.classes.get(at)?)];
        let name = file.get(*self.numbers.get(at)? as usize)?;
        // What the translation adds has none.
        (!name.is_empty()).then_some(name.as_str())
    }
}

impl RegisterNames {
    /// Adds those of another body, whose instructions and registers come behind these.
    pub(crate) fn append(&mut self, other: Self) {
        let bases = [0, 1, 2].map(|file| self.files[file].len() as u32);
        self.starts.extend(other.starts.iter().map(|start| start + self.numbers.len() as u32));
        let numbers = other.numbers.iter().zip(&other.classes);
        self.numbers.extend(numbers.map(|(&number, &class)| match number {
            u32::MAX => number,
            number => number + bases[file_of(class)],
        }));
        self.classes.extend(other.classes);
        for (file, names) in self.files.iter_mut().zip(other.files) {
            file.extend(names);
        }
    }
}

/// The position of a class in [`Kernel::registers`]; halves live in words.
pub(crate) fn file_of(class: Class) -> usize {
    match class {
        Class::Predicate => 0,
        Class::Half | Class::Word => 1,
        Class::Double => 2,
    }
}

/// The unsigned type that fills a class.
pub(crate) fn whole_type(class: Class) -> Ty {
    match class {
        Class::Predicate => Ty::Pred,
        Class::Half => Ty::U16,
        Class::Word => Ty::U32,
        Class::Double => Ty::U64,
    }
}
