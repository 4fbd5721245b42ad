//! Resolves the names of one body: registers, labels, parameters, variables and functions.

use std::collections::HashMap;

use super::functions::Graph;
use super::layout::Layout;
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
    /// An address in the frame of the body: of a local variable, or of a parameter of a call or of the function.
    Frame {
        /// The space that it is declared in.
        space: Space,
        offset: u32,
        size: u32,
    },
    /// A function, by its position in the module.
    Function(u32),
    /// A vector of registers: the declaration, the number of the first, and how many.
    Vector(usize, u64, u8),
}

/// A body and what its text says around it.
#[derive(Clone, Copy)]
pub(super) struct Surroundings<'e, 'a> {
    pub(super) module: &'e ast::Module<'a>,
    pub(super) graph: &'e Graph<'e, 'a>,
    pub(super) globals: &'e [Variable],
    pub(super) layout: &'e Layout<'a>,
    pub(super) body: &'e ast::Body<'a>,
    /// The body's number in the layout.
    pub(super) number: usize,
    /// The function whose body it is; absent of an entry.
    pub(super) function: Option<&'e ast::Function<'a>>,
}

/// The names of a body, and what is laid out for it.
pub(crate) struct Names<'e, 'a> {
    source: &'e Source<'a>,
    graph: &'e Graph<'e, 'a>,
    parents: &'e [u32],
    declared: HashMap<(u32, &'a str), usize>,
    declarations: Vec<ast::Registers<'a>>,
    /// The numbers that registers got when they were first met.
    numbers: HashMap<(usize, u64), Register>,
    pub(crate) counts: [u32; 3],
    places: HashMap<(u32, &'a str), Meaning>,
    labels: HashMap<(u32, &'a str), usize>,
    /// The `.branchtargets` lists, by their position among the body's; lists of functions and prototypes likewise.
    lists: HashMap<(u32, &'a str), usize>,
    callees: HashMap<(u32, &'a str), usize>,
    prototypes: HashMap<(u32, &'a str), usize>,
    /// Bytes of the frame.
    pub(crate) frame: u32,
    /// The body is that of a function: its frame may be anywhere in local memory.
    pub(crate) in_function: bool,
    /// Offsets and sizes of the function's parameters and results in its frame.
    pub(crate) parameters: Vec<(u32, u32)>,
    pub(crate) results: Vec<(u32, u32)>,
    pub(crate) has_vectors: bool,
}

/// A thread's local memory is bounded so that offsets always fit.
const MAX_LOCAL: u64 = 1 << 20;

impl<'e, 'a> Names<'e, 'a> {
    /// `parameters` are those of an entry: name and offset.
    pub(super) fn new(
        source: &'e Source<'a>,
        around: Surroundings<'e, 'a>,
        parameters: &[(Name<'a>, u32)],
    ) -> Result<Self, ParseError> {
        let body = around.body;
        let mut names = Self {
            source,
            graph: around.graph,
            parents: &body.parents,
            declared: HashMap::new(),
            declarations: body.registers.clone(),
            numbers: HashMap::new(),
            counts: [0; 3],
            places: HashMap::new(),
            labels: HashMap::new(),
            lists: HashMap::new(),
            callees: HashMap::new(),
            prototypes: HashMap::new(),
            frame: 0,
            in_function: around.function.is_some(),
            parameters: Vec::new(),
            results: Vec::new(),
            has_vectors: body.registers.iter().any(|r| r.vector.is_some()),
        };
        if let Some(function) = around.function {
            names.lay_out_formals(function)?;
        }
        for index in 0..names.declarations.len() {
            let registers = names.declarations[index];
            if names.declared.insert((registers.scope, registers.name.text), index).is_some() {
                return Err(names.twice(registers.name));
            }
        }
        for label in &body.labels {
            if names.labels.insert((label.scope, label.name.text), label.instruction).is_some() {
                return Err(names.twice(label.name));
            }
        }
        for (name, offset) in parameters {
            let meaning = Meaning::Offset(Space::Param, u64::from(*offset));
            if names.places.insert((1, name.text), meaning).is_some() {
                return Err(names.twice(*name));
            }
        }
        let globals = around.globals.iter().zip(super::lower::placed(around.module));
        for (index, (global, (owner, variable))) in globals.enumerate() {
            // One inside a body is seen there only.
            if owner.is_none_or(|owner| std::ptr::eq(owner, body)) {
                let place = (variable.scope, variable.name.text);
                names.places.insert(place, Meaning::Global(global.space, index as u32));
            }
        }
        for (place, offset) in around.layout.seen_by(around.number) {
            names.places.insert(place, Meaning::Offset(Space::Shared, offset));
        }
        let lists = |lists: &'e [ast::Targets<'a>]| {
            lists.iter().enumerate().map(|(index, list)| ((list.scope, list.name.text), index)).collect()
        };
        names.lists = lists(&body.targets);
        names.callees = lists(&body.callees);
        let prototypes = body.prototypes.iter().enumerate();
        names.prototypes = prototypes.map(|(index, p)| ((p.scope, p.name.text), index)).collect();
        for variable in &body.variables {
            if matches!(variable.space, Space::Local | Space::Param) {
                let size = variable.size.unwrap_or(0);
                let meaning = names.in_frame(variable.space, variable.name, size, variable.align)?;
                names.places.insert((variable.scope, variable.name.text), meaning);
            }
        }
        Ok(names)
    }

    /// Gives a function's parameters and results their places in its frame, and declares those that are registers.
    fn lay_out_formals(&mut self, function: &'e ast::Function<'a>) -> Result<(), ParseError> {
        let results = function.results.len();
        for (i, formal) in function.results.iter().chain(&function.parameters).enumerate() {
            let meaning = self.in_frame(Space::Param, formal.name, formal.size, formal.align)?;
            if let Meaning::Frame { offset, size, .. } = meaning {
                let list = if i < results { &mut self.results } else { &mut self.parameters };
                list.push((offset, size));
            }
            match formal.register {
                Some((_, class)) => {
                    let (scope, name) = (1, formal.name);
                    self.declarations.push(ast::Registers { scope, name, count: None, vector: None, class });
                }
                // A sink has no name to be found by.
                None if formal.name.text == "_" => {}
                None => {
                    if self.places.insert((1, formal.name.text), meaning).is_some() {
                        return Err(self.twice(formal.name));
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes a part of the frame.
    fn in_frame(
        &mut self,
        space: Space,
        name: Name<'a>,
        size: u64,
        align: u64,
    ) -> Result<Meaning, ParseError> {
        let offset = u64::from(self.frame).next_multiple_of(align);
        let end = offset.saturating_add(size);
        if end > MAX_LOCAL {
            let text = name.text;
            let message = format!("with `{text}` the variables of this body are too large for any GPU");
            return Err(self.source.error(name.span, message));
        }
        self.frame = end as u32;
        Ok(Meaning::Frame { space, offset: offset as u32, size: size as u32 })
    }

    /// A part of the frame that no name stands for.
    pub(super) fn unnamed(&mut self, size: u32, span: Span) -> Result<u32, ParseError> {
        let name = Name { text: "an argument", span };
        match self.in_frame(
            Space::Param,
            name,
            u64::from(size),
            u64::from(size).max(1).next_power_of_two(),
        )? {
            Meaning::Frame { offset, .. } => Ok(offset),
            _ => Ok(0),
        }
    }

    /// What the registers of each file are called, by number.
    pub(crate) fn register_names(&self) -> [Vec<String>; 3] {
        let mut names = self.counts.map(|count| vec![String::new(); count as usize]);
        for (&(declaration, number), register) in &self.numbers {
            let ast::Registers { name, count, vector, .. } = &self.declarations[declaration];
            let (number, element) = match vector {
                Some(_) => (number / 4, format!(".{}", ["x", "y", "z", "w"][number as usize % 4])),
                None => (number, String::new()),
            };
            let number = count.map_or(String::new(), |_| number.to_string());
            if let Some(to) = names[file_of(register.class)].get_mut(register.number as usize) {
                *to = format!("{}{number}{element}", name.text);
            }
        }
        names
    }

    fn twice(&self, name: Name<'_>) -> ParseError {
        self.source.error(name.span, format!("`{}` is declared twice", name.text))
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
                return Some(self.declared_as(index, 0));
            }
            // `%r12` is one of `%r<n>`; the prefix may itself end in digits.
            for split in name.len() - digits..name.len() {
                let (prefix, number) = name.split_at(split);
                let canonical = number == "0" || !number.starts_with('0');
                if let (true, Ok(number)) = (canonical, number.parse::<u64>())
                    && let Some(&index) = self.declared.get(&(here, prefix))
                    && self.declarations[index].count.is_some_and(|count| number < count)
                {
                    return Some(self.declared_as(index, number));
                }
            }
            if let Some(&meaning) = self.places.get(&(here, name)) {
                return Some(meaning);
            }
            scope = self.up(here);
        }
        self.graph.number(name).map(|number| Meaning::Function(number as u32))
    }

    fn declared_as(&mut self, declaration: usize, number: u64) -> Meaning {
        match self.declarations[declaration].vector {
            Some(count) => Meaning::Vector(declaration, number, count),
            None => Meaning::Register(self.register(declaration, number)),
        }
    }

    /// The register that is an element of a vector; `None` if it has no such element.
    pub(super) fn element(&mut self, vector: Meaning, element: &str) -> Option<Register> {
        let Meaning::Vector(declaration, number, count) = vector else { return None };
        let names = [["x", "r"], ["y", "g"], ["z", "b"], ["w", "a"]];
        let index = names.iter().position(|names| names.contains(&element))?;
        (index < usize::from(count))
            .then(|| self.register(declaration, number.wrapping_mul(4).wrapping_add(index as u64)))
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
        self.outwards(&self.lists, scope, name)
    }

    /// The `.calltargets` list of a name, likewise.
    pub(crate) fn callees(&self, scope: u32, name: &str) -> Option<usize> {
        self.outwards(&self.callees, scope, name)
    }

    /// The `.callprototype` of a name, likewise.
    pub(crate) fn prototype(&self, scope: u32, name: &str) -> Option<usize> {
        self.outwards(&self.prototypes, scope, name)
    }

    fn outwards(&self, map: &HashMap<(u32, &'a str), usize>, scope: u32, name: &str) -> Option<usize> {
        let mut scope = Some(scope);
        while let Some(here) = scope {
            if let Some(&found) = map.get(&(here, name)) {
                return Some(found);
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
