//! Instructions on values, drawn from the emulator's table: every form of it that has one right result.

use warpsmith::emulator::forms::{self, Form};

use super::program::{DOUBLES, HALVES, Instruction, Operand, PREDICATES, Register, WORDS};
use crate::random::Random;
use crate::spell::{self, Spelling, Value};

/// The table's rows by their opcodes, so that one with many forms does not crowd out the others.
pub(super) struct Table {
    opcodes: Vec<Vec<Form>>,
    collectives: Vec<Form>,
    products: Vec<Form>,
}

impl Table {
    pub(super) fn new() -> Self {
        let mut table = Self { opcodes: Vec::new(), collectives: Vec::new(), products: Vec::new() };
        for row in forms::all() {
            let plain = spell::nth(&row, 0)
                .operands
                .iter()
                .all(|operand| matches!(operand, spell::Operand::Value(_) | spell::Operand::Immediate));
            match row.opcode {
                // Those without are of older PTX.
                "shfl" | "vote" if !row.modifiers.contains("sync") => {}
                "shfl" | "vote" | "match" | "redux" => table.collectives.push(row),
                "mma" if row.modifiers.contains("f64") || row.modifiers.contains("m8n8") => {}
                "mma" => table.products.push(row),
                opcode if plain && spell::is_pure(opcode) => {
                    match table.opcodes.iter_mut().find(|rows| rows[0].opcode == opcode) {
                        Some(rows) => rows.push(row),
                        None => table.opcodes.push(vec![row]),
                    }
                }
                _ => {}
            }
        }
        table
    }

    /// Instructions on values, of a form chosen at random.
    pub(super) fn values(&self, random: &mut Random) -> Vec<Instruction> {
        loop {
            // Conversions have by far the most to get wrong.
            let convert = self.opcodes.iter().find(|rows| rows[0].opcode == "cvt" && random.chance(12));
            let rows = convert.unwrap_or_else(|| random.pick(&self.opcodes));
            let row = random.pick(rows);
            let spelling = spell::nth(row, random.below(spell::count(row)));
            if is_determined(&spelling) {
                return instructions(&spelling, random);
            }
        }
    }

    /// An instruction across the lanes of a warp, all of which execute it.
    pub(super) fn collective(&self, random: &mut Random) -> Vec<Instruction> {
        loop {
            let row = random.pick(&self.collectives);
            let spelling = spell::nth(row, random.below(spell::count(row)));
            if spelling.has("f32") {
                continue;
            }
            let mut made = instructions(&spelling, random);
            let Some(last) = made.last_mut() else { continue };
            if let Some(mask) = last.operands.last_mut() {
                *mask = Operand::Text("-1".into());
            }
            // Compilers (as above) take what is computed from a value that all lanes have for such a value too, even where
            // the other operands are the lane's own: `bfe` at a position of its own. This makes it the lane's own.
            if let ("redux" | "vote" | "match", Some(Operand::Destination(to) | Operand::Pair(to, _))) =
                (spelling.opcode, last.operands.first())
                && to.0 == 'r'
            {
                let to = *to;
                made.push(Instruction::fixed("xor.b32", &format!("{to}, {to}, %thread")));
            }
            return made;
        }
    }

    /// A matrix product.
    pub(super) fn product(&self, random: &mut Random) -> Vec<Instruction> {
        let row = random.pick(&self.products);
        let spelling = spell::nth(row, random.below(spell::count(row)));
        let mut made = vec![Instruction::fixed("bar.warp.sync", "-1")];
        let mut product = instructions(&spelling, random);
        let Some(last) = product.last_mut() else { return made };
        if spelling.has("e4m3") || spelling.has("e5m2") {
            // The accumulator is the result: compilers (as above) write the results one after the other, and read an
            // accumulator that is one of them after it was written.
            last.operands[3] = last.operands[0].clone();
            // And they convert the upper half of a constant operand to something else; this makes none of them known.
            let mut number = 0;
            for operand in &mut last.operands[1..3] {
                let Operand::Vector(parts) = operand else { continue };
                for part in parts {
                    let mixed = Operand::Text(format!("%t{number}"));
                    let thread = Operand::Text("%thread".into());
                    made.push(Instruction::new("xor.b32", vec![mixed.clone(), part.clone(), thread]));
                    *part = mixed;
                    number += 1;
                }
            }
        }
        if spelling.has("tf32") {
            // The operands have 19 bits, as after `cvt.rna.tf32`.
            let mut number = 0;
            for operand in &mut last.operands[1..3] {
                let Operand::Vector(parts) = operand else { continue };
                for part in parts {
                    let cut = Operand::Text(format!("%t{number}"));
                    let mask = Operand::Text("0xffffe000".into());
                    made.push(Instruction::new("and.b32", vec![cut.clone(), part.clone(), mask]));
                    *part = cut;
                    number += 1;
                }
            }
        }
        made.extend(product);
        made
    }
}

/// Whether PTX says what the result is, to the bit, and NVIDIA's compilers keep to it.
fn is_determined(spelling: &Spelling) -> bool {
    let float =
        spelling.modifiers.iter().any(|m| matches!(*m, "f32" | "f64" | "f16" | "f16x2" | "bf16" | "bf16x2"));
    let rounded = ["rn", "rz", "rm", "rp"].iter().any(|m| spelling.has(m));
    // Without a rounding mode, the assembler may fuse a product and a sum.
    let fusible = float && !rounded && matches!(spelling.opcode, "add" | "sub" | "mul");
    // The carry belongs to chains, which are made elsewhere.
    let carries = spelling.has("cc") || matches!(spelling.opcode, "addc" | "subc" | "madc");
    // The NaN that `neg` and `abs` give is not specified, and depends on what they are merged with.
    // Of -32768, compilers take the sign without cutting to 16 bits.
    let signs = matches!(spelling.opcode, "neg" | "abs") && (float || spelling.has("s16"));
    // Compilers (driver 580, and the assembler of CUDA 13.5) take a register that `set` writes as f32 for one that has to be
    // converted where an integer is read from it, and leave out the saturation of what was saturated as another type.
    // Beside code that calls, a 1 of 16 bits is the integer.
    let writes = |ty| spelling.modifiers[..spelling.modifiers.len() - 1].contains(&ty);
    let set = spelling.opcode == "set" && ["f32", "f16", "bf16"].into_iter().any(writes);
    let saturated = spelling.opcode == "cvt" && spelling.has("sat");
    // They also leave out the saturation of a sum whose operand is part of a chain with carries.
    let saturated =
        saturated || matches!(spelling.opcode, "add" | "sub") && spelling.has("s32") && spelling.has("sat");
    // They ignore the guard of `testp`, and that of what it is merged with.
    let saturated = saturated || spelling.opcode == "testp";
    // They hold what `cnot` gives as all ones until an integer operation asks, and confuse the parts of pairs of 8-bit floats,
    // and TF32 with what else is in 32 bits.
    let narrow = ["tf32", "e4m3x2", "e5m2x2"].iter().any(|m| spelling.has(m)) && spelling.opcode == "cvt";
    let saturated = saturated || spelling.opcode == "cnot" || narrow;
    spelling.is_exact() && !fusible && !carries && !signs && !set && !saturated
}

/// A random register that holds values of a type.
pub(super) fn register(bits: u32, random: &mut Random) -> Register {
    match bits {
        1 => Register('p', random.below(PREDICATES)),
        8 | 16 => Register('h', random.below(HALVES)),
        32 => Register('r', random.below(WORDS)),
        _ => Register('d', random.below(DOUBLES)),
    }
}

/// A register for a value; one that is wider, now and then, where that is allowed.
fn register_for(value: &Value, random: &mut Random) -> Register {
    let mut bits = spell::bits(value.ty).max(if value.ty == "pred" { 1 } else { 16 });
    if value.wider && !value.ty.contains('f') {
        while bits < 64 && random.chance(30) {
            bits *= 2;
        }
    }
    register(bits, random)
}

/// The instructions of a form: with what keeps its operands where its result is defined.
pub(super) fn instructions(spelling: &Spelling, random: &mut Random) -> Vec<Instruction> {
    let mut operands: Vec<Operand> = Vec::new();
    // What has constants only is computed by the compiler, which has a NaN of its own.
    let values =
        |operand: &&spell::Operand| matches!(operand, spell::Operand::Value(value) if !value.destination);
    let alone = spelling.operands.iter().filter(values).count() == 1;
    for operand in &spelling.operands {
        operands.push(match operand {
            spell::Operand::Value(value) => {
                let count = usize::from(value.count.unwrap_or(1));
                // The elements of a destination are different registers.
                let first = register_for(value, random);
                let registers: Vec<Register> = match value.destination {
                    true => (0..count).map(|i| Register(first.0, (first.1 + i) % size(first.0))).collect(),
                    false => std::iter::once(first)
                        .chain((1..count).map(|_| register_for(value, random)))
                        .collect(),
                };
                let wrap = |register| match value.destination {
                    true => Operand::Destination(register),
                    false => Operand::Source(register),
                };
                // `lop3` that tests writes its predicate.
                let pair = value.pair && (spelling.opcode == "lop3" || random.chance(40));
                match (value.count, pair) {
                    (Some(_), _) => Operand::Vector(registers.into_iter().map(wrap).collect()),
                    (None, true) => {
                        let mut second = register(1, random);
                        if second == first {
                            second.1 = (second.1 + 1) % PREDICATES;
                        }
                        Operand::Pair(first, second)
                    }
                    (None, false) if !value.destination && !alone && !registers_only(spelling.opcode) => {
                        source(value.ty, first, random)
                    }
                    (None, false) => wrap(first),
                }
            }
            spell::Operand::Immediate => Operand::Text(random.below(256).to_string()),
            spell::Operand::Address | spell::Operand::Label => Operand::Text("0".into()),
        });
    }
    // Compilers take the minimum of a value and itself for that value, NaN or not, get `lop3` wrong where operands are the
    // same and another operation follows, and compare a constant in `slct` as a float.
    if matches!(spelling.opcode, "min" | "max" | "lop3" | "slct") {
        let mut taken: Vec<Register> = Vec::new();
        for (operand, kind) in operands.iter_mut().zip(&spelling.operands) {
            let spell::Operand::Value(value) = kind else { continue };
            if value.destination {
                continue;
            }
            let mut chosen = register_for(value, random);
            while taken.contains(&chosen) {
                chosen.1 = (chosen.1 + 1) % size(chosen.0);
            }
            taken.push(chosen);
            *operand = Operand::Source(chosen);
        }
    }
    select_parts(spelling, &mut operands, random);
    let mut made = Vec::new();
    let form = spelling.text();
    let ty = spelling.modifiers.last().copied().unwrap_or("b32");
    match spelling.opcode {
        "div" | "rem" if !ty.starts_with('f') => {
            // By zero, the result is anything.
            let width = spell::bits(ty);
            let safe = match width {
                16 => "%j1",
                32 => "%t1",
                _ => "%u1",
            };
            made.push(Instruction::new(
                &format!("or.b{width}"),
                vec![Operand::Text(safe.into()), operands[2].clone(), Operand::Text("1".into())],
            ));
            operands[2] = Operand::Text(safe.into());
        }
        "abs" if matches!(ty, "s32" | "s64") => {
            // The smallest integer has no absolute value; compilers (as above) take the result for positive.
            let (width, safe) = if ty == "s32" { (32, "%t1") } else { (64, "%u1") };
            made.push(Instruction::new(
                &format!("or.b{width}"),
                vec![Operand::Text(safe.into()), operands[1].clone(), Operand::Text("1".into())],
            ));
            operands[1] = Operand::Text(safe.into());
        }
        "shl" | "shr" | "shf" => {
            // Where the amount is a register that an operation on f32 wrote, compilers (as above) convert it to an integer;
            // this makes it one.
            let amount = operands.len() - 1;
            made.push(Instruction::new(
                "and.b32",
                vec![Operand::Text("%t1".into()), operands[amount].clone(), Operand::Text("127".into())],
            ));
            operands[amount] = Operand::Text("%t1".into());
        }
        "bfe" | "bfi" => {
            // Beyond the register's width compilers fold constants in other ways than the instruction works.
            let count = operands.len();
            let within = if spell::bits(ty) == 64 { "63" } else { "31" };
            for (i, safe) in [(count - 2, "%t1"), (count - 1, "%t2")] {
                made.push(Instruction::new(
                    "and.b32",
                    vec![Operand::Text(safe.into()), operands[i].clone(), Operand::Text(within.into())],
                ));
                operands[i] = Operand::Text(safe.into());
            }
        }
        _ => {}
    }
    let result = operands.first().cloned();
    made.push(Instruction::new(&form, operands));
    // Of several NaN, an operation on f64 gives the one that the assembler's order of operands makes it give.
    let computes = matches!(
        spelling.opcode,
        "add" | "sub" | "mul" | "fma" | "mad" | "div" | "min" | "max" | "neg" | "abs" | "copysign"
    );
    if let (true, "f64", Some(Operand::Destination(result))) = (computes, ty, result) {
        made.push(Instruction::fixed("setp.nan.f64", &format!("%q3, {result}, {result}")));
        made.push(Instruction::fixed("selp.b64", &format!("{result}, 0x7ff8000000000000, {result}, %q3")));
    }
    made
}

/// How many registers a class has.
fn size(class: char) -> usize {
    match class {
        'p' => PREDICATES,
        'h' => HALVES,
        'r' => WORDS,
        _ => DOUBLES,
    }
}

/// Lets a video instruction read parts of its first two operands, now and then.
fn select_parts(spelling: &Spelling, operands: &mut [Operand], random: &mut Random) {
    if !spell::is_video(spelling.opcode) {
        return;
    }
    let parts = match spelling.opcode.as_bytes().last() {
        Some(b'2') => Some(('h', 2)),
        Some(b'4') => Some(('b', 4)),
        _ => None,
    };
    for operand in operands.iter_mut().skip(1).take(2) {
        if !matches!(operand, Operand::Source(_)) || random.chance(50) {
            continue;
        }
        let part = match parts {
            Some((letter, lanes)) => {
                // `.b1024` is a type.
                let digits: String = (0..lanes).map(|_| random.below(2 * lanes).to_string()).collect();
                if digits == "1024" { continue } else { format!("{letter}{digits}") }
            }
            None => (*random.pick(&["b0", "b1", "b2", "b3", "h0", "h1"])).to_owned(),
        };
        *operand = Operand::Text(format!("{operand}.{part}"));
    }
}

/// Whether an opcode takes no constants: video instructions on two halves or four bytes.
pub(super) fn registers_only(opcode: &str) -> bool {
    spell::is_video(opcode) && opcode.ends_with(['2', '4'])
}

/// A register, or now and then a constant.
fn source(ty: &str, register: Register, random: &mut Random) -> Operand {
    if random.chance(85) {
        return Operand::Source(register);
    }
    let value = crate::values::random(ty, random);
    match ty {
        "f32" => Operand::Text(format!("0f{:08X}", value as u32)),
        "f64" => Operand::Text(format!("0d{value:016X}")),
        "u32" | "s32" | "b32" => Operand::Text((value as u32 & 0x7fff_ffff).to_string()),
        "u16" | "s16" | "b16" => Operand::Text((value & 0x7fff).to_string()),
        "u64" | "s64" | "b64" => Operand::Text((value >> 1).to_string()),
        _ => Operand::Source(register),
    }
}

/// Two to four additions, subtractions or products that hand on their carry.
pub(super) fn chain(random: &mut Random) -> Vec<Instruction> {
    let (width, class) = *random.pick(&[(32, 'r'), (64, 'd')]);
    let ty = format!("{}{width}", random.pick(&['u', 's']));
    let kind = random.below(3);
    let links = 2 + random.below(3);
    (0..links)
        .map(|link| {
            let cc = if link + 1 < links { ".cc" } else { "" };
            let form = match (kind, link) {
                (0, 0) => format!("add{cc}.{ty}"),
                (0, _) => format!("addc{cc}.{ty}"),
                (1, 0) => format!("sub{cc}.{ty}"),
                (1, _) => format!("subc{cc}.{ty}"),
                (_, 0) => format!("mad.lo{cc}.{ty}"),
                _ => format!("madc.{}{cc}.{ty}", random.pick(&["lo", "hi"])),
            };
            let mut operands = vec![Operand::Destination(Register(class, random.below(size(class))))];
            for _ in 0..if kind == 2 { 3 } else { 2 } {
                operands.push(Operand::Source(Register(class, random.below(size(class)))));
            }
            Instruction::new(&form, operands)
        })
        .collect()
}
