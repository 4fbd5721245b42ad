//! Resolves the names of one entry: registers, labels, parameters and variables.

use std::collections::HashMap;

use super::program::{Register, Variable, file_of};
use crate::error::ParseError;
use crate::syntax::Source;
use crate::syntax::ast::{self, Class, Name, Space, Span};

/// What a name in an operand means.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Meaning {
    Register(Register),
    /// An address in the space: of a parameter, or of a shared or local variable.
    Offset(Space, u64),
    /// A variable of the module in global or constant memory.
    Global(Space, u32),
}

/// The names of an entry, and what is laid out for it.
pub(crate) struct Names<'e, 'a> {
    source: &'e Source<'a>,
    parents: &'e [u32],
    declared: HashMap<(u32, &'a str), usize>,
    declarations: &'e [ast::Registers<'a>],
    /// The numbers that registers got when they were first met.
    numbers: HashMap<(usize, u64), Register>,
    pub(crate) counts: [u32; 3],
    places: HashMap<(u32, &'a str), Meaning>,
    labels: HashMap<(u32, &'a str), usize>,
    /// The `.branchtargets` lists, by their position among the body's.
    lists: HashMap<(u32, &'a str), usize>,
    pub(crate) used_dynamic: bool,
    dynamic: Vec<&'a str>,
    pub(crate) shared: Vec<(String, u32, u32)>,
    pub(crate) static_shared: u32,
    /// Where dynamic shared memory begins, and what lies between variables.
    pub(crate) shared_span: u32,
    pub(crate) red_zones: Vec<(u32, u32)>,
    pub(crate) local: u32,
}

/// Static shared memory is bounded so that offsets always fit; a launch has a limit of its own.
const MAX_SHARED: u64 = 1 << 24;
/// Bytes between two variables of shared memory.
const LEAST_RED_ZONE: u64 = 64;
const MOST_RED_ZONE: u64 = 4096;
const MAX_LOCAL: u64 = 1 << 20;

impl<'e, 'a> Names<'e, 'a> {
    pub(crate) fn new(
        source: &'e Source<'a>,
        module: &'e ast::Module<'a>,
        globals: &[Variable],
        entry: &'e ast::Entry<'a>,
        parameters: &[(u32, u32)],
    ) -> Result<Self, ParseError> {
        let body = &entry.body;
        let mut names = Self {
            source,
            parents: &body.parents,
            declared: HashMap::new(),
            declarations: &body.registers,
            numbers: HashMap::new(),
            counts: [0; 3],
            places: HashMap::new(),
            labels: HashMap::new(),
            lists: HashMap::new(),
            used_dynamic: false,
            dynamic: Vec::new(),
            shared: Vec::new(),
            static_shared: 0,
            shared_span: 0,
            red_zones: Vec::new(),
            local: 0,
        };
        for (index, registers) in body.registers.iter().enumerate() {
            if names.declared.insert((registers.scope, registers.name.text), index).is_some() {
                return Err(names.twice(registers.name));
            }
        }
        for label in &body.labels {
            if names.labels.insert((label.scope, label.name.text), label.instruction).is_some() {
                return Err(names.twice(label.name));
            }
        }
        for (parameter, &(offset, _)) in entry.parameters.iter().zip(parameters) {
            let meaning = Meaning::Offset(Space::Param, u64::from(offset));
            if names.places.insert((1, parameter.name.text), meaning).is_some() {
                return Err(names.twice(parameter.name));
            }
        }
        // Those in global and constant memory, in the order of the text.
        let written = module.variables.iter().filter(|v| matches!(v.space, Space::Global | Space::Const));
        for (index, (global, written)) in globals.iter().zip(written).enumerate() {
            names.places.insert((0, written.name.text), Meaning::Global(global.space, index as u32));
        }
        for (index, list) in body.targets.iter().enumerate() {
            names.lists.entry((list.scope, list.name.text)).or_insert(index);
        }
        names.lay_out(module, entry)?;
        Ok(names)
    }

    /// What the registers of each file are called, by number.
    pub(crate) fn register_names(&self) -> [Vec<String>; 3] {
        let mut names = self.counts.map(|count| vec![String::new(); count as usize]);
        for (&(declaration, number), register) in &self.numbers {
            let ast::Registers { name, count, .. } = &self.declarations[declaration];
            let number = count.map_or(String::new(), |_| number.to_string());
            if let Some(to) = names[file_of(register.class)].get_mut(register.number as usize) {
                *to = format!("{}{number}", name.text);
            }
        }
        names
    }

    fn twice(&self, name: Name<'_>) -> ParseError {
        self.source.error(name.span, format!("`{}` is declared twice", name.text))
    }

    /// Gives every shared variable that the entry uses, and every local one, its offset.
    fn lay_out(&mut self, module: &'e ast::Module<'a>, entry: &'e ast::Entry<'a>) -> Result<(), ParseError> {
        let mut used = std::collections::HashSet::new();
        for instruction in &entry.body.instructions {
            for operand in &instruction.operands {
                collect(operand, &mut used);
            }
        }
        let (mut shared_end, mut local_end, mut dynamic_align) = (0u64, 0u64, 16u64);
        // Where variables are put: apart from each other, so that an index past the end of one is not one of the next.
        let mut span = 0u64;
        let mut dynamic = Vec::new();
        for variable in module.variables.iter().chain(&entry.body.variables) {
            let name = variable.name.text;
            match variable.space {
                Space::Shared if used.contains(name) => match variable.size {
                    Some(size) => {
                        shared_end = shared_end.next_multiple_of(variable.align) + size;
                        let offset = self.leave_red_zone(span, variable.align);
                        span = offset + size;
                        self.places.insert((variable.scope, name), Meaning::Offset(Space::Shared, offset));
                        self.shared.push((name.to_owned(), offset as u32, size as u32));
                    }
                    None => {
                        dynamic_align = dynamic_align.max(variable.align);
                        dynamic.push(variable);
                    }
                },
                Space::Local => {
                    let offset = local_end.next_multiple_of(variable.align);
                    local_end = offset + variable.size.unwrap_or(0);
                    self.places.insert((variable.scope, name), Meaning::Offset(Space::Local, offset));
                }
                Space::Global | Space::Const if variable.scope != 0 => {
                    let message = "global variables inside an entry are not supported";
                    return Err(self.source.error(variable.name.span, message));
                }
                _ => {}
            }
            if shared_end > MAX_SHARED || local_end > MAX_LOCAL {
                let message = format!("with `{name}` the variables of this entry are too large for any GPU");
                return Err(self.source.error(variable.name.span, message));
            }
        }
        if !dynamic.is_empty() {
            shared_end = shared_end.next_multiple_of(dynamic_align);
            span = self.leave_red_zone(span, dynamic_align);
            for variable in dynamic {
                let meaning = Meaning::Offset(Space::Shared, span);
                self.places.insert((variable.scope, variable.name.text), meaning);
                self.dynamic.push(variable.name.text);
            }
            self.used_dynamic = true;
        }
        self.static_shared = shared_end as u32;
        self.shared_span = span as u32;
        self.local = local_end as u32;
        Ok(())
    }

    /// The offset of a variable behind what there is, with a gap in between that grows with the variable before.
    fn leave_red_zone(&mut self, end: u64, align: u64) -> u64 {
        let Some((_, _, before)) = self.shared.last() else { return end.next_multiple_of(align) };
        let offset = (end + u64::from(*before).clamp(LEAST_RED_ZONE, MOST_RED_ZONE)).next_multiple_of(align);
        self.red_zones.push((end as u32, offset as u32));
        offset
    }

    fn up(&self, scope: u32) -> Option<u32> {
        (scope != 0).then(|| self.parents.get(scope as usize).copied().unwrap_or(0))
    }

    /// What a name means in a scope.
    pub(crate) fn find(&mut self, scope: u32, name: &'a str) -> Option<Meaning> {
        // A number has at most 20 digits.
        let digits = name.bytes().rev().take(20).take_while(u8::is_ascii_digit).count();
        let mut scope = Some(scope);
        while let Some(here) = scope {
            if let Some(&index) = self.declared.get(&(here, name))
                && self.declarations[index].count.is_none()
            {
                return Some(Meaning::Register(self.register(index, 0)));
            }
            // `%r12` is one of `%r<n>`; the prefix may itself end in digits.
            for split in name.len() - digits..name.len() {
                let (prefix, number) = name.split_at(split);
                let canonical = number == "0" || !number.starts_with('0');
                if let (true, Ok(number)) = (canonical, number.parse::<u64>())
                    && let Some(&index) = self.declared.get(&(here, prefix))
                    && self.declarations[index].count.is_some_and(|count| number < count)
                {
                    return Some(Meaning::Register(self.register(index, number)));
                }
            }
            if let Some(&meaning) = self.places.get(&(here, name)) {
                return Some(meaning);
            }
            scope = self.up(here);
        }
        None
    }

    fn register(&mut self, declaration: usize, number: u64) -> Register {
        let class = self.declarations[declaration].class;
        let counts = &mut self.counts;
        *self.numbers.entry((declaration, number)).or_insert_with(|| next(counts, class))
    }

    /// A register that no name stands for.
    pub(crate) fn temporary(&mut self, class: Class) -> Register {
        next(&mut self.counts, class)
    }

    /// The instruction that a label stands before.
    pub(crate) fn label(&self, scope: u32, name: &str, span: Span) -> Result<usize, ParseError> {
        let mut scope = Some(scope);
        while let Some(here) = scope {
            if let Some(&instruction) = self.labels.get(&(here, name)) {
                return Ok(instruction);
            }
            scope = self.up(here);
        }
        Err(self.source.error(span, format!("there is no label `{name}` here")))
    }

    /// The `.branchtargets` list of a name: its position among the body's.
    pub(crate) fn list(&self, scope: u32, name: &str) -> Option<usize> {
        let mut scope = Some(scope);
        while let Some(here) = scope {
            if let Some(&list) = self.lists.get(&(here, name)) {
                return Some(list);
            }
            scope = self.up(here);
        }
        None
    }
}

fn next(counts: &mut [u32; 3], class: Class) -> Register {
    let count = &mut counts[super::program::file_of(class)];
    *count += 1;
    Register { class, number: *count - 1 }
}

fn collect<'a>(operand: &ast::Operand<'a>, used: &mut std::collections::HashSet<&'a str>) {
    match &operand.kind {
        ast::OperandKind::Name(name) | ast::OperandKind::Offset(name, _) => {
            used.insert(name);
        }
        ast::OperandKind::Memory(Some(name), _) => {
            used.insert(name.text);
        }
        ast::OperandKind::Tensor(address, coordinates) => {
            collect(address, used);
            coordinates.iter().for_each(|c| collect(c, used));
        }
        ast::OperandKind::Vector(elements) => elements.iter().for_each(|e| collect(e, used)),
        _ => {}
    }
}
