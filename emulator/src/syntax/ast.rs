//! The syntax tree. Names are still text; registers and labels know the scope they stand in.

/// A place in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Span {
    /// The line, from 1.
    pub(crate) line: u32,
    /// The byte, from 0.
    pub(crate) offset: u32,
}

/// A name with its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Name<'a> {
    pub(crate) text: &'a str,
    pub(crate) span: Span,
}

/// A module.
#[derive(Debug, Default)]
pub(crate) struct Module<'a> {
    /// What `.version` says: the number before the dot and that behind it.
    pub(crate) version: (u32, u32),
    /// `sm_80` and what follows, as written.
    pub(crate) target: Vec<Name<'a>>,
    pub(crate) variables: Vec<Variable<'a>>,
    pub(crate) entries: Vec<Entry<'a>>,
    /// Functions other than entries, in the order of their first mention.
    pub(crate) functions: Vec<Function<'a>>,
    /// What `.file` says: number and path.
    pub(crate) files: Vec<(u64, &'a str)>,
}

impl<'a> Module<'a> {
    /// The bodies of functions, then those of entries.
    pub(crate) fn bodies(&self) -> impl Iterator<Item = &Body<'a>> {
        let functions = self.functions.iter().filter_map(|function| function.body.as_ref());
        functions.chain(self.entries.iter().map(|entry| &entry.body))
    }
}

/// The memories that variables stand in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Space {
    Global,
    Const,
    Shared,
    /// The shared memory of all blocks of the cluster.
    Cluster,
    Local,
    Param,
    /// No space was named: the address says which it is.
    Generic,
}

/// A variable.
#[derive(Clone, Debug)]
pub(crate) struct Variable<'a> {
    pub(crate) name: Name<'a>,
    pub(crate) space: Space,
    pub(crate) align: u64,
    /// The size in bytes; `None` for an array of no stated size.
    pub(crate) size: Option<u64>,
    /// The initial bytes, as far as they are given.
    pub(crate) initial: Vec<u8>,
    /// Addresses that go into the initial bytes: offset, variable, addend.
    pub(crate) addresses: Vec<(usize, Name<'a>, i64)>,
    /// The scope that it is declared in; the module's is 0.
    pub(crate) scope: u32,
}

/// A parameter of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameter<'a> {
    pub(crate) name: Name<'a>,
    /// The type of its elements, and whether it is an array.
    pub(crate) ty: &'a str,
    pub(crate) array: bool,
    pub(crate) size: u64,
    pub(crate) align: u64,
}

/// An entry: a kernel.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) name: Name<'a>,
    pub(crate) parameters: Vec<Parameter<'a>>,
    pub(crate) reqntid: Option<[u32; 3]>,
    /// Blocks of a cluster.
    pub(crate) cluster: Option<[u32; 3]>,
    pub(crate) maxntid: Option<[u32; 3]>,
    pub(crate) min_ctas: Option<u32>,
    pub(crate) body: Body<'a>,
}

/// A function that a `call` may name.
#[derive(Debug)]
pub(crate) struct Function<'a> {
    pub(crate) name: Name<'a>,
    pub(crate) results: Vec<Formal<'a>>,
    pub(crate) parameters: Vec<Formal<'a>>,
    /// Absent of one that is only declared.
    pub(crate) body: Option<Body<'a>>,
}

/// A parameter or a result of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Formal<'a> {
    pub(crate) name: Name<'a>,
    pub(crate) size: u64,
    pub(crate) align: u64,
    /// It is a register of this type, not memory.
    pub(crate) register: Option<(&'a str, Class)>,
}

/// What a call through a register says of the functions that it may reach: `.callprototype`.
#[derive(Clone, Debug)]
pub(crate) struct Prototype<'a> {
    pub(crate) scope: u32,
    pub(crate) name: Name<'a>,
    pub(crate) results: Vec<Formal<'a>>,
    pub(crate) parameters: Vec<Formal<'a>>,
}

/// What a `call` names.
#[derive(Clone, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) results: Vec<Operand<'a>>,
    pub(crate) target: Name<'a>,
    pub(crate) arguments: Vec<Operand<'a>>,
    /// The list of functions or the prototype, where the target is a register.
    pub(crate) prototype: Option<Name<'a>>,
}

/// A body, its nesting flattened: every statement has the number of the scope it stands in.
#[derive(Debug, Default)]
pub(crate) struct Body<'a> {
    /// The parent of each scope; scope 0 is the module, 1 the body's outermost.
    pub(crate) parents: Vec<u32>,
    pub(crate) registers: Vec<Registers<'a>>,
    pub(crate) variables: Vec<Variable<'a>>,
    pub(crate) labels: Vec<Label<'a>>,
    /// `.branchtargets` lists, by the label before them.
    pub(crate) targets: Vec<Targets<'a>>,
    /// `.calltargets` lists, likewise.
    pub(crate) callees: Vec<Targets<'a>>,
    pub(crate) prototypes: Vec<Prototype<'a>>,
    pub(crate) instructions: Vec<Instruction<'a>>,
}

/// A declaration of registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registers<'a> {
    pub(crate) scope: u32,
    pub(crate) name: Name<'a>,
    /// `<n>`: the names are `name0` to `name(n-1)`.
    pub(crate) count: Option<u64>,
    /// Elements of each, where they are vectors.
    pub(crate) vector: Option<u8>,
    pub(crate) class: Class,
}

/// The sizes of registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    Predicate,
    /// 8 or 16 bits.
    Half,
    Word,
    Double,
}

impl Class {
    /// The class in words, for messages.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Predicate => "predicate register",
            Self::Half => "16-bit register",
            Self::Word => "32-bit register",
            Self::Double => "64-bit register",
        }
    }
}

/// A label and the instruction that follows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label<'a> {
    pub(crate) scope: u32,
    pub(crate) name: Name<'a>,
    pub(crate) instruction: usize,
}

/// The labels that an indexed branch can go to, or the functions that a call can.
#[derive(Clone, Debug)]
pub(crate) struct Targets<'a> {
    pub(crate) scope: u32,
    pub(crate) name: Name<'a>,
    pub(crate) labels: Vec<Name<'a>>,
}

/// An instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction<'a> {
    pub(crate) scope: u32,
    pub(crate) span: Span,
    /// `@p` or `@!p`, and whether it is the latter.
    pub(crate) guard: Option<(Name<'a>, bool)>,
    pub(crate) opcode: &'a str,
    pub(crate) modifiers: Vec<&'a str>,
    pub(crate) operands: Vec<Operand<'a>>,
    /// The operands of a `call`.
    pub(crate) call: Option<Box<Call<'a>>>,
    /// The last `.loc` before it: file and line.
    pub(crate) location: Option<(u32, u32)>,
}

/// An operand and where it starts.
#[derive(Clone, Debug)]
pub(crate) struct Operand<'a> {
    pub(crate) span: Span,
    pub(crate) kind: OperandKind<'a>,
}

/// What an operand is.
#[derive(Clone, Debug)]
pub(crate) enum OperandKind<'a> {
    /// A register, a label or the address of a variable.
    Name(&'a str),
    /// A special register with a component, or an element of a vector: `%tid.x`.
    Component(&'a str, &'a str),
    /// An integer, in two's complement if it was negative.
    Integer(u64),
    Single(u32),
    Double(u64),
    /// `!p`.
    Not(Name<'a>),
    /// `_`.
    Sink,
    /// `{a, b, …}`.
    Vector(Vec<Operand<'a>>),
    /// `a|b`.
    Pair(Box<(Operand<'a>, Operand<'a>)>),
    /// `name+offset` without brackets.
    Offset(&'a str, i64),
    /// `[base+offset]`; no base for an absolute address.
    Memory(Option<Name<'a>>, i64),
    /// `[map, {a, b, …}]`: an address of the former kind, and coordinates.
    Tensor(Box<Operand<'a>>, Vec<Operand<'a>>),
}
