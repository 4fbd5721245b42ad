//! Draws a program from a seed.

use super::program::{Count, Instruction, Operand, Program, Register, Statement, TOTALS};
use super::scalar::{self, Table};
use crate::random::Random;
use crate::values;

/// What programs may contain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    /// Statements at the outermost level.
    pub(super) statements: usize,
    /// Matrix products.
    pub(super) products: bool,
}

/// The types that inputs are drawn from.
const TYPES: [&str; 6] = ["f32", "f64", "f16x2", "bf16x2", "b32", "b64"];

/// Draws the program of a seed.
pub(super) fn program(seed: u64, table: &Table, style: Style) -> Program {
    let mut generator = Generator { random: Random::new(seed), table, style, looping: false };
    let count = style.statements / 2 + generator.random.below(style.statements.max(1));
    Program { statements: generator.statements(count, 0, true) }
}

/// The inputs of a seed's program: words that look like floats of each kind, or like integers.
pub(super) fn inputs(seed: u64, words: usize) -> Vec<u64> {
    let mut random = Random::new(!seed);
    let mut types = [""; super::program::INPUTS];
    types.iter_mut().for_each(|ty| *ty = *random.pick(&TYPES));
    (0..words)
        .map(|i| {
            let ty = types[i % types.len()];
            let mut half = || values::random(ty, &mut random) & 0xffff_ffff;
            if ty.ends_with("64") { values::random(ty, &mut random) } else { half() | half() << 32 }
        })
        .collect()
}

struct Generator<'t> {
    random: Random,
    table: &'t Table,
    style: Style,
    /// Whether what is made stands in a loop.
    looping: bool,
}

/// Whether an instruction writes a predicate of the program.
fn writes_predicate(instruction: &Instruction) -> bool {
    instruction.operands.iter().any(|operand| match operand {
        Operand::Destination(register) => register.0 == 'p',
        Operand::Pair(first, second) => first.0 == 'p' || second.0 == 'p',
        _ => false,
    })
}

impl Generator<'_> {
    /// Statements; `together` where all threads of the block execute them.
    fn statements(&mut self, count: usize, depth: usize, together: bool) -> Vec<Statement> {
        (0..count).map(|_| self.statement(depth, together)).collect()
    }

    fn statement(&mut self, depth: usize, together: bool) -> Statement {
        let kind = self.random.below(100);
        let inner = 1 + self.random.below(4);
        match kind {
            0..8 if depth < 3 => {
                let condition = scalar::register(1, &mut self.random);
                let negated = self.random.chance(50);
                let then = self.statements(inner, depth + 1, false);
                let count = self.random.below(3);
                let otherwise = self.statements(count, depth + 1, false);
                Statement::If { condition, negated, then, otherwise }
            }
            8..12 if depth < 3 => {
                let count = match self.random.chance(50) {
                    true => Count::Fixed(1 + self.random.below(3)),
                    false => Count::Varying(scalar::register(32, &mut self.random)),
                };
                let together = together && matches!(count, Count::Fixed(_));
                let outside = std::mem::replace(&mut self.looping, true);
                let body = self.statements(inner, depth + 1, together);
                self.looping = outside;
                Statement::Loop { count, body }
            }
            12..22 if together && !self.looping => Statement::Group(self.table.collective(&mut self.random)),
            22..27 if together => Statement::Group(self.exchange()),
            27..30 if together => Statement::Group(self.matrix_load()),
            30..36 if together && self.style.products => {
                Statement::Group(self.table.product(&mut self.random))
            }
            36..42 => Statement::Group(self.guarded(Self::memory)),
            42..46 => Statement::Group(self.guarded(Self::atomic)),
            46..50 => Statement::Group(scalar::chain(&mut self.random)),
            50..54 => Statement::Group(self.pack()),
            54..57 => Statement::Group(self.copy()),
            _ => loop {
                let made = self.guarded(|s| s.table.values(&mut s.random));
                // The compiler in driver 580 loses predicates that go from one turn of a loop to the next.
                if !self.looping || !made.iter().any(writes_predicate) {
                    break Statement::Group(made);
                }
            },
        }
    }

    /// Now and then, a predicate decides whether the last instruction takes part.
    ///
    /// Not of `set`: on 16-bit operands, NVIDIA's compilers (driver 580, and the assembler of CUDA 13.5) then keep only 16 bits of
    /// its 32-bit result.
    fn guarded(&mut self, make: impl FnOnce(&mut Self) -> Vec<Instruction>) -> Vec<Instruction> {
        let mut made = make(self);
        // Of `vsub4` and its kind, they ignore the guard where the operands are one register.
        let ignores = |form: &str| form.split('.').next().is_some_and(scalar::registers_only);
        let excluded = |i: &Instruction| {
            i.form.starts_with("set.") || i.form.starts_with("setp.nan.f64") || ignores(&i.form)
        };
        if self.random.chance(20)
            && !made.iter().any(excluded)
            && let Some(last) = made.last_mut()
        {
            last.guard = Some((scalar::register(1, &mut self.random), self.random.chance(50)));
        }
        made
    }

    fn register(&mut self, bits: u32) -> Register {
        scalar::register(bits, &mut self.random)
    }

    /// A value goes to the thread some places further on, through shared memory.
    fn exchange(&mut self) -> Vec<Instruction> {
        let (from, to) = (self.register(32), self.register(32));
        let distance = 16 * (1 + self.random.below(63)) + 4 * self.random.below(4);
        let at = 4 * self.random.below(4);
        vec![
            Instruction::new("st.shared.b32", vec![text(format!("[%own+{at}]")), Operand::Source(from)]),
            Instruction::fixed("bar.sync", "0"),
            Instruction::fixed("sub.u32", "%t3, %own, %base"),
            Instruction::fixed("add.u32", &format!("%t3, %t3, {distance}")),
            Instruction::fixed("and.b32", "%t3, %t3, 1020"),
            Instruction::fixed("add.u32", "%t3, %t3, %base"),
            Instruction::new("ld.shared.b32", vec![Operand::Destination(to), text("[%t3]")]),
            Instruction::fixed("bar.sync", "0"),
        ]
    }

    /// The warp's slots of shared memory are 32 rows of 8 halves.
    fn matrix_load(&mut self) -> Vec<Instruction> {
        let count = *self.random.pick(&[1usize, 2, 4]);
        let trans = *self.random.pick(&["", ".trans"]);
        let first = self.random.below(super::program::WORDS);
        let registers = (0..count).map(|i| Register('r', (first + i) % super::program::WORDS));
        vec![
            Instruction::fixed("bar.warp.sync", "-1"),
            Instruction::new(
                &format!("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"),
                vec![Operand::Vector(registers.map(Operand::Destination).collect()), text("[%own]")],
            ),
            Instruction::fixed("bar.warp.sync", "-1"),
        ]
    }

    /// A load from the inputs, or a load or store in memory of the thread's own.
    fn memory(&mut self) -> Vec<Instruction> {
        let (ty, bits) = *self.random.pick(&[
            ("b8", 8),
            ("u8", 8),
            ("s8", 8),
            ("b16", 16),
            ("u16", 16),
            ("s16", 16),
            ("b32", 32),
            ("u32", 32),
            ("s32", 32),
            ("f32", 32),
            ("b64", 64),
            ("u64", 64),
            ("s64", 64),
            ("f64", 64),
        ]);
        let count = match self.random.below(4) {
            0 => 2,
            1 if bits < 64 => 4,
            _ => 1,
        };
        let vector = if count > 1 { format!(".v{count}") } else { String::new() };
        let bytes = bits as usize / 8 * count;
        // Integers may be loaded to registers that are wider.
        let mut wide = bits.max(16);
        while wide < 64 && !ty.starts_with('f') && self.random.chance(30) {
            wide *= 2;
        }
        let (space, base, size) = *self.random.pick(&[
            (".global", "%in", 128),
            (".global.nc", "%in", 128),
            ("", "%in", 128),
            (".global", "%scratch", 64),
            ("", "%scratch", 64),
            (".shared", "%own", 16),
            (".local", "%loc", 64),
        ]);
        let store = base != "%in" && self.random.chance(50);
        let mut made = Vec::new();
        let address = if base == "%own" || self.random.chance(50) {
            format!("[{base}+{}]", bytes * self.random.below(size / bytes))
        } else {
            let index = self.register(32);
            made.push(Instruction::new(
                "and.b32",
                vec![text("%t0"), Operand::Source(index), text((size - bytes).to_string())],
            ));
            made.push(Instruction::fixed("cvt.u64.u32", "%u0, %t0"));
            made.push(Instruction::fixed("add.s64", &format!("%u0, %u0, {base}")));
            "[%u0]".to_owned()
        };
        let first = self.register(wide);
        let size = if first.0 == 'r' { super::program::WORDS } else { 8 };
        let mut parts = Vec::new();
        for i in 0..count {
            let register = Register(first.0, (first.1 + i) % size);
            if !store {
                parts.push(Operand::Destination(register));
            } else if bits >= wide {
                parts.push(Operand::Source(register));
            } else {
                // Compilers (see `scalar`) convert what is stored in fewer bits than its register has, where an operation on
                // floats wrote that; this makes it an integer.
                let class = if wide == 16 {
                    'j'
                } else if wide == 32 {
                    't'
                } else {
                    'u'
                };
                let copy = text(format!("%{class}{}", 4 + i));
                let mask = text(if bits == 8 {
                    "255"
                } else if bits == 16 {
                    "65535"
                } else {
                    "4294967295"
                });
                made.push(Instruction::new(
                    &format!("and.b{wide}"),
                    vec![copy.clone(), Operand::Source(register), mask],
                ));
                parts.push(copy);
            }
        }
        // Compilers (as above) take a byte that was loaded with its sign for one with a sign where the register is converted
        // without; this makes it an integer of the register's width.
        let signed = !store && bits < wide && ty.starts_with('s');
        let loaded = if signed { parts.clone() } else { Vec::new() };
        let value = if count == 1 { parts.remove(0) } else { Operand::Vector(parts) };
        made.push(match store {
            true => Instruction::new(&format!("st{space}{vector}.{ty}"), vec![text(address), value]),
            false => Instruction::new(&format!("ld{space}{vector}.{ty}"), vec![value, text(address)]),
        });
        if signed {
            let (convert, other) = match wide {
                16 => (Some("cvt.u16.u32"), "%j1"),
                32 => (None, "%thread"),
                _ => (Some("cvt.u64.u32"), "%u1"),
            };
            made.extend(convert.map(|form| Instruction::fixed(form, &format!("{other}, %thread"))));
            made.extend(loaded.iter().map(|register| {
                Instruction::new(
                    &format!("xor.b{wide}"),
                    vec![register.clone(), register.clone(), text(other)],
                )
            }));
        }
        made
    }

    /// An atomic operation: with its result on memory of the thread's own, or without on what all threads share, where the
    /// order does not matter.
    fn atomic(&mut self) -> Vec<Instruction> {
        if self.random.chance(40) {
            // Each total knows one operation only.
            let totals: [(&str, u32); TOTALS] = [
                ("add.u32", 32),
                ("add.u64", 64),
                ("min.s32", 32),
                ("max.s32", 32),
                ("max.u32", 32),
                ("or.b32", 32),
                ("xor.b32", 32),
                ("xor.b64", 64),
                ("max.s64", 64),
                ("max.u64", 64),
                ("min.s64", 64),
                ("or.b64", 64),
            ];
            let which = self.random.below(TOTALS);
            let (operation, bits) = totals[which];
            let value = Operand::Source(self.register(bits));
            let space = *self.random.pick(&[".global", "", ".relaxed.gpu.global"]);
            return vec![Instruction::new(
                &format!("red{space}.{operation}"),
                vec![text(format!("[%total+{}]", 8 * which)), value],
            )];
        }
        let (operation, bits) = *self.random.pick(&[
            ("add.u32", 32),
            ("add.u64", 64),
            ("add.s32", 32),
            ("min.s32", 32),
            ("max.u32", 32),
            ("min.u64", 64),
            ("max.s64", 64),
            ("and.b32", 32),
            ("or.b32", 32),
            ("xor.b64", 64),
            ("inc.u32", 32),
            ("dec.u32", 32),
            ("exch.b32", 32),
            ("exch.b64", 64),
            ("cas.b32", 32),
            ("cas.b64", 64),
            ("add.f32", 32),
            ("add.noftz.f16x2", 32),
            ("add.noftz.bf16x2", 32),
            ("add.noftz.f16", 16),
        ]);
        let (space, base, size) =
            *self.random.pick(&[(".global", "%scratch", 64), ("", "%scratch", 64), (".shared", "%own", 16)]);
        if base == "%own" && operation.ends_with("16x2") {
            // The compiler in driver 580 drops the operand's upper half.
            return self.atomic();
        }
        let address = format!("[{base}+{}]", 8 * self.random.below(size / 8));
        let mut operands = vec![Operand::Destination(self.register(bits)), text(address)];
        let sources = if operation.starts_with("cas") { 2 } else { 1 };
        for _ in 0..sources {
            operands.push(Operand::Source(self.register(bits)));
        }
        vec![Instruction::new(&format!("atom{space}.{operation}"), operands)]
    }

    /// A whole from its parts, or parts from a whole.
    fn pack(&mut self) -> Vec<Instruction> {
        let (whole, part, count) = *self.random.pick(&[(64, 32, 2), (64, 16, 4), (32, 16, 2)]);
        let pack = self.random.chance(50);
        let first = self.register(part);
        let size = if part == 32 { super::program::WORDS } else { super::program::HALVES };
        let parts = (0..count).map(|i| Register(first.0, (first.1 + i) % size));
        let whole_register = self.register(whole);
        let form = format!("mov.b{whole}");
        vec![match pack {
            true => Instruction::new(
                &form,
                vec![
                    Operand::Destination(whole_register),
                    Operand::Vector(parts.map(Operand::Source).collect()),
                ],
            ),
            false => Instruction::new(
                &form,
                vec![
                    Operand::Vector(parts.map(Operand::Destination).collect()),
                    Operand::Source(whole_register),
                ],
            ),
        }]
    }

    /// An asynchronous copy from the inputs to the thread's slot of shared memory, and its wait.
    fn copy(&mut self) -> Vec<Instruction> {
        let (form, bytes) = *self.random.pick(&[("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)]);
        let to = bytes * self.random.below(16 / bytes);
        let from = bytes * self.random.below(128 / bytes);
        let partial = if self.random.chance(30) {
            format!(", {}", self.random.below(bytes + 1))
        } else {
            String::new()
        };
        vec![
            Instruction::fixed(
                &format!("cp.async.{form}.shared.global"),
                &format!("[%own+{to}], [%in+{from}], {bytes}{partial}"),
            ),
            Instruction::fixed("cp.async.commit_group", ""),
            Instruction::fixed("cp.async.wait_group", "0"),
        ]
    }
}

fn text(text: impl Into<String>) -> Operand {
    Operand::Text(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpsmith::emulator::Module;

    #[test]
    fn a_seed_always_gives_the_same_program_and_another_one_another() {
        let table = Table::new();
        let style = Style { statements: 20, products: true };
        assert_eq!(program(7, &table, style), program(7, &table, style));
        assert_ne!(program(7, &table, style), program(8, &table, style));
        assert_eq!(inputs(7, 64), inputs(7, 64));
    }

    #[test]
    fn every_program_is_ptx_that_the_emulator_takes() {
        let table = Table::new();
        for seed in 0..300 {
            let text = program(seed, &table, Style { statements: 20, products: seed % 2 == 0 }).entry("p");
            let text = format!("{}{text}", crate::launch::HEADER);
            Module::parse("p.ptx", &text).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
        }
    }
}
