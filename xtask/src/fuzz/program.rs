//! A generated program: its statements, and the PTX that they become.
//!
//! A program works on a few registers of each class, which start as its inputs and are stored at its end with everything
//! else that it may have changed: its shared, local and global memory. What it does is independent of the order in which
//! warps run, so that two machines have to agree on every bit.

use std::fmt::Write as _;

/// Threads of a block, and blocks.
pub(super) const BLOCK: u32 = 64;
pub(super) const GRID: u32 = 2;
/// Registers of each class.
pub(super) const PREDICATES: usize = 6;
pub(super) const HALVES: usize = 8;
pub(super) const WORDS: usize = 10;
pub(super) const DOUBLES: usize = 8;
/// 64-bit words that a thread reads.
pub(super) const INPUTS: usize = 16;
/// 64-bit words that a thread may write in global memory, as memory of its own.
pub(super) const SCRATCH: usize = 8;
/// 64-bit words of local memory.
pub(super) const LOCAL: usize = 8;
/// 64-bit words that each thread leaves: its scratch, shared and local memory, registers; and one, so that every
/// thread's begin at a multiple of 16 bytes.
pub(super) const OUTPUTS: usize = SCRATCH + 2 + LOCAL + WORDS + DOUBLES + HALVES + 1 + 1;
/// 64-bit words that all threads add to, after the threads' own.
pub(super) const TOTALS: usize = 12;

/// A register: class (`p`, `h`, `r`, `d`) and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Register(pub(super) char, pub(super) usize);

impl std::fmt::Display for Register {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "%{}{}", self.0, self.1)
    }
}

/// An operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Destination(Register),
    Source(Register),
    Vector(Vec<Operand>),
    /// A result and a predicate.
    Pair(Register, Register),
    /// A constant, an address, or a register that is not the program's to choose.
    Text(String),
}

impl std::fmt::Display for Operand {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Destination(register) | Self::Source(register) => register.fmt(formatter),
            Self::Vector(parts) => {
                let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
                write!(formatter, "{{{}}}", parts.join(", "))
            }
            Self::Pair(result, predicate) => write!(formatter, "{result}|{predicate}"),
            Self::Text(text) => formatter.write_str(text),
        }
    }
}

/// An instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) guard: Option<(Register, bool)>,
    /// The opcode with its modifiers.
    pub(super) form: String,
    pub(super) operands: Vec<Operand>,
}

impl Instruction {
    pub(super) fn new(form: &str, operands: Vec<Operand>) -> Self {
        Self { guard: None, form: form.to_owned(), operands }
    }

    /// An instruction of which nothing is to be chosen.
    pub(super) fn fixed(form: &str, operands: &str) -> Self {
        Self::new(form, vec![Operand::Text(operands.to_owned())])
    }
}

/// How often a loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    /// As often in each thread.
    Fixed(usize),
    /// As the low two bits of a register say.
    Varying(Register),
}

/// A statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Statement {
    /// Instructions that belong together.
    Group(Vec<Instruction>),
    If {
        condition: Register,
        negated: bool,
        then: Vec<Statement>,
        otherwise: Vec<Statement>,
    },
    Loop {
        count: Count,
        body: Vec<Statement>,
    },
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) statements: Vec<Statement>,
}

/// The values that a program starts and ends with, in the order of its outputs.
pub(super) fn output_name(index: usize) -> String {
    let threads = (BLOCK * GRID) as usize * OUTPUTS;
    if index >= threads {
        return format!("total {}", index - threads);
    }
    let thread = index / OUTPUTS;
    let mut word = index % OUTPUTS;
    let memory = [("scratch ", SCRATCH), ("shared ", 2), ("local ", LOCAL)];
    let registers = [("%r", WORDS), ("%d", DOUBLES), ("%h", HALVES), ("predicates ", 1)];
    let mut name = String::new();
    for (prefix, count) in memory.into_iter().chain(registers) {
        if word < count {
            name = format!("{prefix}{word}");
            break;
        }
        word -= count;
    }
    format!("{name} of thread {} in block {}", thread % BLOCK as usize, thread / BLOCK as usize)
}

impl Program {
    /// How many instructions are its own.
    pub(super) fn len(&self) -> usize {
        fn count(statements: &[Statement]) -> usize {
            let size = |statement: &Statement| match statement {
                Statement::Group(instructions) => instructions.len(),
                Statement::If { then, otherwise, .. } => 1 + count(then) + count(otherwise),
                Statement::Loop { body, .. } => 1 + count(body),
            };
            statements.iter().map(size).sum()
        }
        count(&self.statements)
    }

    /// The entry that runs it, as `name`, with two parameters: the addresses of its inputs and its outputs.
    pub(super) fn entry(&self, name: &str) -> String {
        let mut emitter = Emitter { text: String::new(), labels: 0, prefix: name };
        emitter.prologue();
        emitter.text += "// The program.\n";
        emitter.statements(&self.statements, 0);
        emitter.text += "// Its results.\n";
        emitter.epilogue();
        emitter.text
    }

    /// The instructions alone, for a reader.
    pub(super) fn listing(&self) -> String {
        let mut emitter = Emitter { text: String::new(), labels: 0, prefix: "" };
        emitter.statements(&self.statements, 0);
        emitter.text
    }
}

struct Emitter<'n> {
    text: String,
    labels: usize,
    prefix: &'n str,
}

impl Emitter<'_> {
    fn line(&mut self, line: impl AsRef<str>) {
        self.text += line.as_ref();
        self.text.push('\n');
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("$L_{}_{}", self.prefix, self.labels)
    }

    fn prologue(&mut self) {
        let name = self.prefix;
        let total = (BLOCK * GRID) as usize * OUTPUTS * 8;
        let _ = writeln!(
            self.text,
            ".visible .entry {name}(.param .u64 {name}_in, .param .u64 {name}_out)\n{{\n\
             .shared .align 16 .b8 shared[{}];\n.local .align 16 .b8 local[{}];\n\
             .reg .pred %p<{PREDICATES}>;\n.reg .b16 %h<{HALVES}>;\n.reg .b32 %r<{WORDS}>;\n.reg .b64 %d<{DOUBLES}>;\n\
             .reg .pred %q<4>;\n.reg .b16 %j<8>;\n.reg .b32 %t<8>, %c<4>, %n<4>;\n.reg .b64 %u<8>;\n\
             .reg .b32 %thread, %own, %base;\n.reg .b64 %in, %out, %scratch, %total, %loc;\n\
             ld.param.u64 %in, [{name}_in];\nld.param.u64 %out, [{name}_out];\nadd.s64 %total, %out, {total};\n\
             mov.u32 %thread, %tid.x;\nmov.u32 %t0, %ctaid.x;\nmad.lo.u32 %t0, %t0, {BLOCK}, %thread;\n\
             mad.wide.u32 %in, %t0, {}, %in;\nmad.wide.u32 %out, %t0, {}, %out;\nmov.b64 %scratch, %out;\n\
             mov.u32 %base, shared;\nshl.b32 %own, %thread, 4;\nadd.u32 %own, %own, %base;\nmov.u64 %loc, local;",
            16 * BLOCK,
            8 * LOCAL,
            8 * INPUTS,
            8 * OUTPUTS,
        );
        for i in 0..DOUBLES {
            self.line(format!("ld.global.b64 %d{i}, [%in+{}];", 8 * i));
        }
        for i in 0..WORDS {
            self.line(format!("ld.global.b32 %r{i}, [%in+{}];", 64 + 4 * i));
        }
        for i in 0..HALVES {
            self.line(format!("ld.global.b16 %h{i}, [%in+{}];", 104 + 2 * i));
        }
        for i in 0..PREDICATES {
            self.line(format!("ld.global.u8 %j0, [%in+{}];\nsetp.gt.u16 %p{i}, %j0, 127;", 120 + i));
        }
        for i in (0..LOCAL).step_by(2) {
            self.line(format!("st.local.v2.b64 [%loc+{}], {{%d{i}, %d{}}};", 8 * i, i + 1));
        }
        for i in (0..SCRATCH).step_by(2) {
            self.line(format!("st.global.v2.b64 [%scratch+{}], {{%d{i}, %d{}}};", 8 * i, i + 1));
        }
        self.line("st.shared.v2.b64 [%own], {%d0, %d1};\nbar.sync 0;");
    }

    fn epilogue(&mut self) {
        let mut at = 8 * SCRATCH;
        let mut store = |text: &mut String, register: &str| {
            let _ = writeln!(text, "st.global.b64 [%out+{at}], {register};");
            at += 8;
        };
        self.line("ld.shared.v2.b64 {%u0, %u1}, [%own];");
        store(&mut self.text, "%u0");
        store(&mut self.text, "%u1");
        for i in 0..LOCAL {
            self.line(format!("ld.local.b64 %u0, [%loc+{}];", 8 * i));
            store(&mut self.text, "%u0");
        }
        for i in 0..WORDS {
            self.line(format!("cvt.u64.u32 %u0, %r{i};"));
            store(&mut self.text, "%u0");
        }
        for i in 0..DOUBLES {
            store(&mut self.text, &format!("%d{i}"));
        }
        for i in 0..HALVES {
            self.line(format!("cvt.u64.u16 %u0, %h{i};"));
            store(&mut self.text, "%u0");
        }
        self.line("mov.b64 %u0, 0;");
        for i in 0..PREDICATES {
            self.line(format!("selp.b64 %u1, {}, 0, %p{i};\nor.b64 %u0, %u0, %u1;", 1 << i));
        }
        store(&mut self.text, "%u0");
        self.line("ret;\n}");
    }

    fn statements(&mut self, statements: &[Statement], depth: usize) {
        for statement in statements {
            match statement {
                Statement::Group(instructions) => instructions.iter().for_each(|i| self.instruction(i)),
                Statement::If { condition, negated, then, otherwise } => {
                    let (other, end) = (self.label(), self.label());
                    let not = if *negated { "" } else { "!" };
                    self.line(format!("@{not}{condition} bra {other};"));
                    self.statements(then, depth);
                    if otherwise.is_empty() {
                        self.line(format!("{other}:"));
                    } else {
                        self.line(format!("bra {end};\n{other}:"));
                        self.statements(otherwise, depth);
                        self.line(format!("{end}:"));
                    }
                }
                Statement::Loop { count, body } => {
                    let (head, end) = (self.label(), self.label());
                    match count {
                        Count::Fixed(n) => self.line(format!("mov.u32 %n{depth}, {n};")),
                        Count::Varying(register) => self.line(format!("and.b32 %n{depth}, {register}, 3;")),
                    }
                    self.line(format!(
                        "mov.u32 %c{depth}, 0;\n{head}:\nsetp.ge.u32 %q{depth}, %c{depth}, %n{depth};\n@%q{depth} bra {end};"
                    ));
                    self.statements(body, depth + 1);
                    self.line(format!("add.u32 %c{depth}, %c{depth}, 1;\nbra {head};\n{end}:"));
                }
            }
        }
    }

    fn instruction(&mut self, instruction: &Instruction) {
        if let Some((register, negated)) = instruction.guard {
            let _ = write!(self.text, "@{}{register} ", if negated { "!" } else { "" });
        }
        let operands: Vec<String> = instruction.operands.iter().map(ToString::to_string).collect();
        self.line(format!("{} {};", instruction.form, operands.join(", ")));
    }
}
