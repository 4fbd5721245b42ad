//! Which functions an entry reaches, and which of them may be active more than once at a time.

use std::collections::{HashMap, HashSet};

use crate::syntax::ast::{self, Body, OperandKind};

/// Where the addresses of functions begin; each takes [`ADDRESS_STEP`].
pub(crate) const FUNCTION_WINDOW: u64 = 0xf400_0000_0000;
/// The distance between the addresses of two functions.
pub(crate) const ADDRESS_STEP: u64 = 16;

/// The address of a module's function, by its position.
pub(crate) fn address(function: usize) -> u64 {
    FUNCTION_WINDOW + function as u64 * ADDRESS_STEP
}

/// Who calls whom.
pub(super) struct Graph<'m, 'a> {
    module: &'m ast::Module<'a>,
    numbers: HashMap<&'a str, usize>,
    /// The functions that calls through registers may reach: those whose address stands somewhere.
    taken: Vec<usize>,
    /// What each function calls.
    callees: Vec<Vec<usize>>,
}

impl<'m, 'a> Graph<'m, 'a> {
    pub(super) fn new(module: &'m ast::Module<'a>) -> Self {
        let numbers: HashMap<&str, usize> =
            module.functions.iter().enumerate().map(|(number, f)| (f.name.text, number)).collect();
        let mut named = HashSet::new();
        let functions = module.functions.iter().filter_map(|f| f.body.as_ref());
        for body in functions.chain(module.entries.iter().map(|entry| &entry.body)) {
            used(body, &mut named);
        }
        let addresses = module.variables.iter().flat_map(|v| &v.addresses);
        named.extend(addresses.map(|(_, name, _)| name.text));
        let taken = (0..module.functions.len())
            .filter(|&f| named.contains(module.functions[f].name.text) && module.functions[f].body.is_some())
            .collect();
        let mut graph = Self { module, numbers, taken, callees: Vec::new() };
        graph.callees = module
            .functions
            .iter()
            .map(|function| function.body.as_ref().map_or_else(Vec::new, |body| graph.called(body)))
            .collect();
        graph
    }

    /// The position of a function among the module's.
    pub(super) fn number(&self, name: &str) -> Option<usize> {
        self.numbers.get(name).copied()
    }

    pub(super) fn function(&self, number: usize) -> &'m ast::Function<'a> {
        &self.module.functions[number]
    }

    /// The functions with bodies that a body calls.
    fn called(&self, body: &Body<'_>) -> Vec<usize> {
        let mut called = Vec::new();
        for call in body.instructions.iter().filter_map(|i| i.call.as_ref()) {
            match self.number(call.target.text) {
                Some(function) if call.prototype.is_none() => called.push(function),
                _ => called.extend(&self.taken),
            }
        }
        called.sort_unstable();
        called.dedup();
        called.retain(|&function| self.module.functions[function].body.is_some());
        called
    }

    /// The functions that a body reaches, each behind those that it calls as far as there is such an order.
    pub(super) fn reached(&self, body: &Body<'_>) -> Vec<usize> {
        let mut order = Vec::new();
        let mut seen = vec![false; self.callees.len()];
        // A stack of our own: chains of calls may be long.
        let mut open: Vec<(usize, usize)> = Vec::new();
        for first in self.called(body) {
            if std::mem::replace(&mut seen[first], true) {
                continue;
            }
            open.push((first, 0));
            while let Some((function, next)) = open.last_mut() {
                match self.callees[*function].get(*next) {
                    Some(&callee) => {
                        *next += 1;
                        if !std::mem::replace(&mut seen[callee], true) {
                            open.push((callee, 0));
                        }
                    }
                    None => {
                        order.push(*function);
                        open.pop();
                    }
                }
            }
        }
        order
    }

    /// Whether a function may call itself, perhaps through others.
    pub(super) fn is_recursive(&self, function: usize) -> bool {
        let mut seen = vec![false; self.callees.len()];
        let mut open = self.callees[function].clone();
        while let Some(callee) = open.pop() {
            if callee == function {
                return true;
            }
            if !std::mem::replace(&mut seen[callee], true) {
                open.extend(&self.callees[callee]);
            }
        }
        false
    }
}

/// The names that a body's operands use, but for the targets of calls.
pub(super) fn used<'a>(body: &Body<'a>, names: &mut HashSet<&'a str>) {
    for instruction in &body.instructions {
        instruction.operands.iter().for_each(|operand| collect(operand, names));
        if let Some(call) = &instruction.call {
            call.arguments.iter().for_each(|operand| collect(operand, names));
        }
    }
}

fn collect<'a>(operand: &ast::Operand<'a>, names: &mut HashSet<&'a str>) {
    match &operand.kind {
        OperandKind::Name(name) | OperandKind::Offset(name, _) => {
            names.insert(name);
        }
        OperandKind::Memory(Some(name), _) => {
            names.insert(name.text);
        }
        OperandKind::Tensor(address, coordinates) => {
            collect(address, names);
            coordinates.iter().for_each(|c| collect(c, names));
        }
        OperandKind::Vector(elements) => elements.iter().for_each(|e| collect(e, names)),
        _ => {}
    }
}
