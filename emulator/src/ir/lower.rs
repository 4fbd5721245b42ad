//! Translates entries: finds the form of every instruction and resolves its operands.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use super::form::{Chosen, Form};
use super::forms::FORMS;
use super::names::Names;
use super::op::Op;
use super::operands::Lowering;
use super::program::{Instruction, Kernel, RegisterNames, Variable};
use crate::error::ParseError;
use crate::module::ParamInfo;
use crate::syntax::Source;
use crate::syntax::ast::{self, Space, Span};

/// Registers of a class that a kernel may need at a time; a GPU has 255, and puts what is more in local memory.
const MAX_REGISTERS: u32 = 1 << 14;

/// A module's entries and variables.
pub(crate) struct Translated {
    pub(crate) variables: Vec<Variable>,
    pub(crate) entries: Vec<Entry>,
}

/// An entry: what it declares, and its code.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) parameters: Vec<ParamInfo>,
    pub(crate) reqntid: Option<[u32; 3]>,
    pub(crate) cluster: Option<[u32; 3]>,
    pub(crate) maxntid: Option<[u32; 3]>,
    pub(crate) min_ctas: Option<u32>,
    pub(crate) kernel: Kernel,
}

/// The rows of each opcode.
static ROWS: LazyLock<HashMap<&'static str, Vec<&'static Form>>> = LazyLock::new(|| {
    let mut rows: HashMap<_, Vec<_>> = HashMap::new();
    for form in FORMS.into_iter().flatten() {
        rows.entry(form.opcode).or_default().push(form);
    }
    rows
});

/// Translates a module.
pub(crate) fn translate(source: &Source<'_>, module: &ast::Module<'_>) -> Result<Translated, ParseError> {
    let variables = variables(source, module)?;
    let mut entries: Vec<Entry> = Vec::new();
    let mut names = HashSet::new();
    for entry in &module.entries {
        if !names.insert(entry.name.text) {
            return Err(source.error(entry.name.span, format!("`{}` is defined twice", entry.name.text)));
        }
        entries.push(translate_entry(source, module, &variables, entry)?);
    }
    Ok(Translated { variables, entries })
}

fn variables(source: &Source<'_>, module: &ast::Module<'_>) -> Result<Vec<Variable>, ParseError> {
    let placed: Vec<_> =
        module.variables.iter().filter(|v| matches!(v.space, Space::Global | Space::Const)).collect();
    let mut numbers = HashMap::new();
    for (number, variable) in placed.iter().enumerate() {
        if numbers.insert(variable.name.text, number as u32).is_some() {
            let message = format!("`{}` is declared twice", variable.name.text);
            return Err(source.error(variable.name.span, message));
        }
    }
    let mut variables: Vec<Variable> = Vec::new();
    for variable in &placed {
        let mut addresses = Vec::new();
        for &(offset, name, addend) in &variable.addresses {
            let Some(&number) = numbers.get(name.text) else {
                return Err(source.error(name.span, format!("there is no global variable `{}`", name.text)));
            };
            addresses.push((offset, number, addend));
        }
        variables.push(Variable {
            name: variable.name.text.to_owned(),
            space: variable.space,
            size: variable.size.unwrap_or(0),
            initial: variable.initial.clone(),
            addresses,
        });
    }
    Ok(variables)
}

fn translate_entry(
    source: &Source<'_>,
    module: &ast::Module<'_>,
    variables: &[Variable],
    entry: &ast::Entry<'_>,
) -> Result<Entry, ParseError> {
    let mut parameters = Vec::new();
    let mut end = 0u64;
    for parameter in &entry.parameters {
        let offset = end.next_multiple_of(parameter.align);
        end = offset + parameter.size;
        if end > 1 << 16 {
            return Err(source.error(parameter.name.span, "the parameters take more than 64 KiB"));
        }
        parameters.push((offset as u32, parameter.size as u32));
    }
    let names = Names::new(source, module, variables, entry, &parameters)?;
    let mut lowering = Lowering::new(source, names, &entry.body);
    // Where each instruction of the text begins among the translated ones.
    let mut starts = Vec::with_capacity(entry.body.instructions.len() + 1);
    for instruction in &entry.body.instructions {
        starts.push(lowering.done.len() as u32);
        let form = find_form(source, instruction)?;
        lowering.instruction(instruction, form)?;
    }
    // Running off the end of a body is returning.
    starts.push(lowering.done.len() as u32);
    let last = entry.body.instructions.last().map_or(entry.name.span.line, |i| i.span.line);
    lowering.done.push(Instruction {
        op: Op::Exit,
        operands: Vec::new(),
        destinations: 0,
        immediates: [0; 3],
        guard: None,
        targets: Vec::new(),
        line: last,
        location: None,
    });
    let Lowering { mut done, names, constants, .. } = lowering;
    for instruction in &mut done {
        match instruction.op {
            Op::Branch => instruction.immediates[0] = i64::from(starts[instruction.immediates[0] as usize]),
            Op::BranchIndexed => {
                instruction.targets.iter_mut().for_each(|target| *target = starts[*target as usize]);
            }
            _ => {}
        }
    }
    let communicates = done.iter().any(|i| i.op.communicates());
    let engine = done.iter().any(|i| i.op.uses_engine());
    let fills = done.iter().any(|i| i.op.fills_shared());
    let dependent = done.iter().any(|i| matches!(i.op, Op::Grids { .. }));
    let late = super::late::late_loads(&done);
    let mut kernel = Kernel {
        names: RegisterNames::new(names.register_names(), &done),
        instructions: done,
        constants,
        registers: names.counts,
        shared: names.shared,
        static_shared: names.static_shared,
        shared_span: names.shared_span,
        red_zones: names.red_zones,
        uses_dynamic_shared: names.used_dynamic,
        local: names.local,
        parameters,
        parameter_bytes: end as u32,
        communicates,
        engine,
        fills,
        late,
        dependent,
    };
    super::allocate::allocate(&mut kernel);
    if let Some(&slots) = kernel.registers.iter().find(|&&slots| slots > MAX_REGISTERS) {
        let message = format!(
            "`{}` keeps {slots} registers of one size alive at the same time; {MAX_REGISTERS} are possible",
            entry.name.text
        );
        return Err(source.error(entry.name.span, message));
    }
    Ok(Entry {
        name: entry.name.text.to_owned(),
        parameters: entry
            .parameters
            .iter()
            .map(|p| ParamInfo {
                name: own_name(entry.name.text, p.name.text),
                ty: format!(".{}{}", p.ty, if p.array { "[]" } else { "" }),
                size: p.size as usize,
                align: p.align as usize,
            })
            .collect(),
        reqntid: entry.reqntid,
        cluster: entry.cluster,
        maxntid: entry.maxntid,
        min_ctas: entry.min_ctas,
        kernel,
    })
}

/// The row of the table that an instruction fits.
fn find_form(source: &Source<'_>, instruction: &ast::Instruction<'_>) -> Result<&'static Form, ParseError> {
    let Some(rows) = ROWS.get(instruction.opcode) else {
        let message = format!("the emulator does not know the instruction `{}`", instruction.opcode);
        return Err(source.error(instruction.span, message));
    };
    let mut furthest = 0;
    let mut wanted: Vec<&'static str> = Vec::new();
    let mut fitting = None;
    for row in rows {
        match row.matches(&instruction.modifiers) {
            Ok(()) => {
                fitting = fitting.or(Some(*row));
                if operand_count_fits(row, instruction.operands.len()) {
                    return Ok(row);
                }
            }
            Err((at, slot)) => {
                if at > furthest {
                    furthest = at;
                    wanted.clear();
                }
                if at == furthest {
                    wanted.extend(slot);
                }
            }
        }
    }
    if let Some(row) = fitting {
        let message = format!(
            "`{}` has {} operands; expected the form `{}`",
            spelled(instruction),
            instruction.operands.len(),
            row.operands
        );
        return Err(source.error(instruction.span, message));
    }
    wanted.dedup();
    let wanted = match wanted.as_slice() {
        [] => "nothing more".to_owned(),
        slots => {
            slots.iter().map(|s| format!("`.{}`", s.replace('|', "`, `."))).collect::<Vec<_>>().join(" or ")
        }
    };
    let found = match instruction.modifiers.get(furthest) {
        Some(modifier) => format!("`.{modifier}`"),
        None => "the end of the modifiers".to_owned(),
    };
    // The modifier's own place: the dots of the opcode are counted.
    let offset = instruction.modifiers.iter().take(furthest).map(|m| m.len() + 1).sum::<usize>();
    let span = Span {
        line: instruction.span.line,
        offset: instruction.span.offset + (instruction.opcode.len() + offset) as u32,
    };
    let message =
        format!("the emulator does not know `{}`: expected {wanted}, found {found}", spelled(instruction));
    Err(source.error(span, message))
}

fn operand_count_fits(row: &Form, count: usize) -> bool {
    if row.operands == "any" {
        return count == 2;
    }
    let all = row.operands.split_whitespace().count();
    let optional = row.operands.split_whitespace().filter(|o| o.ends_with('?')).count();
    (all - optional..=all).contains(&count)
}

/// The opcode with its modifiers.
pub(crate) fn spelled(instruction: &ast::Instruction<'_>) -> String {
    let mut text = instruction.opcode.to_owned();
    for modifier in &instruction.modifiers {
        text.push('.');
        text.push_str(modifier);
    }
    text
}

/// The operation of an instruction, by its row.
pub(super) fn operation(form: &Form, instruction: &ast::Instruction<'_>) -> Op {
    (form.build)(&Chosen { modifiers: &instruction.modifiers, operands: instruction.operands.len() })
}

/// The name that people gave a parameter: without the entry's before it, and none where the compiler only numbers them.
fn own_name(entry: &str, parameter: &str) -> Option<String> {
    let name = parameter.strip_prefix(entry).and_then(|rest| rest.strip_prefix('_')).unwrap_or(parameter);
    let is_number =
        name.strip_prefix("param_").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
    (!is_number).then(|| name.to_owned())
}
