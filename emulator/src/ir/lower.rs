//! Translates entries: finds the form of every instruction and resolves its operands.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use super::accept;
use super::form::{Chosen, Form};
use super::forms::FORMS;
use super::functions::{self, Graph};
use super::layout::Layout;
use super::link::{Linker, Unit};
use super::names::{Names, Surroundings};
use super::op::Op;
use super::operands::Lowering;
use super::program::{Kernel, RegisterNames, Variable};
use crate::error::ParseError;
use crate::module::ParamInfo;
use crate::syntax::Source;
use crate::syntax::ast::{self, Name, Space, Span};

/// Registers of a class that a kernel may need at a time; a GPU has 255, and puts what is more in local memory.
const MAX_REGISTERS: u32 = 1 << 14;

/// The same of an entry and all functions that it reaches, each of which has its own.
const MAX_ALL_REGISTERS: u32 = 1 << 16;

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
    let graph = Graph::new(module);
    let variables = variables(source, module, &graph)?;
    let mut entries: Vec<Entry> = Vec::new();
    let mut names = HashSet::new();
    for entry in &module.entries {
        if !names.insert(entry.name.text) {
            return Err(source.error(entry.name.span, format!("`{}` is defined twice", entry.name.text)));
        }
        entries.push(translate_entry(source, module, (&graph, &variables), entry)?);
    }
    check_functions(source, module, (&graph, &variables))?;
    Ok(Translated { variables, entries })
}

/// Translates the functions that no entry reaches: they must be right, too.
fn check_functions(
    source: &Source<'_>,
    module: &ast::Module<'_>,
    (graph, globals): (&Graph<'_, '_>, &[Variable]),
) -> Result<(), ParseError> {
    let mut reached = vec![false; module.functions.len()];
    for entry in &module.entries {
        graph.reached(&entry.body).into_iter().for_each(|function| reached[function] = true);
    }
    for (function, _) in module.functions.iter().zip(&reached).filter(|(_, reached)| !**reached) {
        let (Some(body), name) = (&function.body, function.name) else { continue };
        let layout = Layout::new(source, module, &[body])?;
        let function = Some(function);
        let around = Surroundings { module, graph, globals, layout: &layout, body, number: 0, function };
        translate_body(source, around, &[], name)?;
    }
    Ok(())
}

/// The variables in global and constant memory: those of the module, then those inside bodies, with the body.
pub(super) fn placed<'m, 'a>(
    module: &'m ast::Module<'a>,
) -> impl Iterator<Item = (Option<&'m ast::Body<'a>>, &'m ast::Variable<'a>)> {
    let functions = module.functions.iter().filter_map(|f| f.body.as_ref());
    let bodies = functions.chain(module.entries.iter().map(|entry| &entry.body));
    let own = bodies.flat_map(|body| body.variables.iter().map(move |v| (Some(body), v)));
    let all = module.variables.iter().map(|v| (None, v)).chain(own);
    all.filter(|(_, v)| matches!(v.space, Space::Global | Space::Const))
}

fn variables(
    source: &Source<'_>,
    module: &ast::Module<'_>,
    graph: &Graph<'_, '_>,
) -> Result<Vec<Variable>, ParseError> {
    let owner = |body: Option<&ast::Body<'_>>| body.map_or(0, |body| std::ptr::from_ref(body).addr());
    let mut numbers = HashMap::new();
    for (number, (body, variable)) in placed(module).enumerate() {
        let name = (owner(body), variable.scope, variable.name.text);
        if numbers.insert(name, number as u32).is_some() {
            let message = format!("`{}` is declared twice", variable.name.text);
            return Err(source.error(variable.name.span, message));
        }
    }
    let mut variables: Vec<Variable> = Vec::new();
    for (body, variable) in placed(module) {
        let (mut addresses, mut initial) = (Vec::new(), variable.initial.clone());
        for &(offset, name, addend) in &variable.addresses {
            let own = numbers.get(&(owner(body), variable.scope, name.text));
            if let Some(&number) = own.or_else(|| numbers.get(&(0, 0, name.text))) {
                addresses.push((offset, number, addend));
            } else if let Some(function) = graph.number(name.text) {
                let address = functions::address(function).wrapping_add_signed(addend);
                initial[offset..offset + 8].copy_from_slice(&address.to_le_bytes());
            } else {
                return Err(source.error(name.span, format!("there is no global variable `{}`", name.text)));
            }
        }
        variables.push(Variable {
            name: variable.name.text.to_owned(),
            space: variable.space,
            size: variable.size.unwrap_or(0),
            initial,
            addresses,
        });
    }
    Ok(variables)
}

fn translate_entry(
    source: &Source<'_>,
    module: &ast::Module<'_>,
    (graph, globals): (&Graph<'_, '_>, &[Variable]),
    entry: &ast::Entry<'_>,
) -> Result<Entry, ParseError> {
    let mut parameters = Vec::new();
    let mut named = Vec::new();
    let mut end = 0u64;
    for parameter in &entry.parameters {
        let offset = end.next_multiple_of(parameter.align);
        end = offset + parameter.size;
        if end > 1 << 16 {
            return Err(source.error(parameter.name.span, "the parameters take more than 64 KiB"));
        }
        parameters.push((offset as u32, parameter.size as u32));
        named.push((parameter.name, offset as u32));
    }
    let reached = graph.reached(&entry.body);
    let functions = reached.iter().filter_map(|&function| graph.function(function).body.as_ref());
    let bodies: Vec<&ast::Body<'_>> = functions.chain([&entry.body]).collect();
    let layout = Layout::new(source, module, &bodies)?;
    let mut linker = Linker::new(graph, &reached);
    for (number, &body) in bodies.iter().enumerate() {
        let function = reached.get(number).map(|&function| graph.function(function));
        let around = Surroundings { module, graph, globals, layout: &layout, body, number, function };
        let name = function.map_or(entry.name, |f| f.name);
        linker.add(translate_body(source, around, if function.is_none() { &named } else { &[] }, name)?);
    }
    let mut kernel = linker.finish(layout);
    (kernel.parameters, kernel.parameter_bytes) = (parameters, end as u32);
    check_registers(source, &kernel.registers, MAX_ALL_REGISTERS, entry.name)?;
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

/// Translates the body of an entry or a function of this name.
fn translate_body<'a>(
    source: &Source<'a>,
    around: Surroundings<'_, 'a>,
    parameters: &[(Name<'a>, u32)],
    name: Name<'a>,
) -> Result<Unit, ParseError> {
    let (body, line) = (around.body, name.span.line);
    let names = Names::new(source, around, parameters)?;
    let mut lowering = Lowering::new(source, names, around);
    lowering.enter(line)?;
    // Where each instruction of the text begins among the translated ones.
    let mut starts = Vec::with_capacity(body.instructions.len() + 1);
    for instruction in &body.instructions {
        starts.push(lowering.done.len() as u32);
        if let Some(call) = &instruction.call {
            lowering.call(instruction, call)?;
            continue;
        }
        if instruction.opcode == "mov" && instruction.modifiers.iter().any(|m| matches!(*m, "v2" | "v4")) {
            lowering.move_vector(instruction)?;
            continue;
        }
        accept::check_sync(source, around.module, instruction)?;
        let instruction = accept::without_hint(source, &mut lowering.names, instruction)?;
        let instruction = instruction.as_ref();
        let form = find_form(source, instruction)?;
        if instruction.opcode == "ret" && lowering.names.in_function {
            lowering.leave(instruction, form)?;
        } else {
            lowering.instruction(instruction, form)?;
        }
    }
    // Running off the end of a body is returning.
    starts.push(lowering.done.len() as u32);
    let last = body.instructions.last().map_or(line, |i| i.span.line);
    lowering.run_off(last);
    let mut unit = lowering.finish();
    for instruction in &mut unit.instructions {
        match instruction.op {
            Op::Branch => instruction.immediates[0] = i64::from(starts[instruction.immediates[0] as usize]),
            Op::BranchIndexed => {
                instruction.targets.iter_mut().for_each(|target| *target = starts[*target as usize]);
            }
            _ => {}
        }
    }
    unit.late = super::late::late_loads(&unit.instructions);
    unit.names = RegisterNames::new(std::mem::take(&mut unit.names.files), &unit.instructions);
    super::allocate::allocate(&mut unit.instructions, &mut unit.registers);
    check_registers(source, &unit.registers, MAX_REGISTERS, name)?;
    Ok(unit)
}

/// Refuses a body, or an entry with its functions, that needs more registers of a size than a limit.
fn check_registers(
    source: &Source<'_>,
    registers: &[u32; 3],
    limit: u32,
    name: Name<'_>,
) -> Result<(), ParseError> {
    let Some(&slots) = registers.iter().find(|&&slots| slots > limit) else { return Ok(()) };
    let message = format!(
        "`{}` keeps {slots} registers of one size alive at the same time; {limit} are possible",
        name.text
    );
    Err(source.error(name.span, message))
}

/// The row of the table that an instruction fits.
fn find_form(source: &Source<'_>, instruction: &ast::Instruction<'_>) -> Result<&'static Form, ParseError> {
    let Some(rows) = ROWS.get(instruction.opcode) else {
        let message = with_reason(
            format!("the emulator does not know the instruction `{}`", instruction.opcode),
            instruction,
        );
        return Err(source.error(instruction.span, message));
    };
    let count = instruction.operands.len();
    let in_order =
        |row: &&&'static Form| row.matches(&instruction.modifiers).is_ok() && operand_count_fits(row, count);
    let in_any_order = |row: &&&'static Form| {
        operand_count_fits(row, count) && row.arrange(&instruction.modifiers).is_some()
    };
    if let Some(row) = rows.iter().find(in_order).or_else(|| rows.iter().find(in_any_order)) {
        return Ok(row);
    }
    Err(unknown_form(source, instruction, rows))
}

/// What to say of an instruction that fits no row of its opcode: how far the row that fits furthest does.
fn unknown_form(
    source: &Source<'_>,
    instruction: &ast::Instruction<'_>,
    rows: &[&'static Form],
) -> ParseError {
    let mut furthest = 0;
    let mut wanted: Vec<&'static str> = Vec::new();
    let mut fitting = None;
    for row in rows {
        match row.matches(&instruction.modifiers) {
            Ok(()) => fitting = fitting.or(Some(*row)),
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
        return source.error(instruction.span, message);
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
    source.error(span, with_reason(message, instruction))
}

fn with_reason(message: String, instruction: &ast::Instruction<'_>) -> String {
    accept::reason(instruction).map_or(message.clone(), |reason| format!("{message}; {reason}"))
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
    let operands = instruction.operands.len();
    if form.matches(&instruction.modifiers).is_ok() {
        return (form.build)(&Chosen { modifiers: &instruction.modifiers, operands });
    }
    let arranged = form.arrange(&instruction.modifiers).unwrap_or_default();
    (form.build)(&Chosen { modifiers: &arranged, operands })
}

/// The name that people gave a parameter: without the entry's before it, and none where the compiler only numbers them.
fn own_name(entry: &str, parameter: &str) -> Option<String> {
    let name = parameter.strip_prefix(entry).and_then(|rest| rest.strip_prefix('_')).unwrap_or(parameter);
    let is_number =
        name.strip_prefix("param_").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
    (!is_number).then(|| name.to_owned())
}
