//! Where the variables of an entry and of the functions that it reaches are in shared memory.

use std::collections::{HashMap, HashSet};

use super::functions::used;
use super::op::Reserved;
use crate::error::ParseError;
use crate::syntax::Source;
use crate::syntax::ast::{self, Body, Space};

/// Static shared memory is bounded so that offsets always fit; a launch has a limit of its own.
const MAX_SHARED: u64 = 1 << 24;

/// Bytes between two variables of shared memory.
const LEAST_RED_ZONE: u64 = 64;
const MOST_RED_ZONE: u64 = 4096;

/// The shared memory of a block.
pub(super) struct Layout<'a> {
    /// The offsets of variables: of the module, then of each body.
    places: Vec<HashMap<(u32, &'a str), u64>>,
    /// Names, offsets and sizes, for findings.
    pub(super) variables: Vec<(String, u32, u32)>,
    /// Bytes that the variables of a fixed size take on a GPU.
    pub(super) bytes: u32,
    /// Where dynamic shared memory begins, and what is between variables.
    pub(super) span: u32,
    pub(super) red_zones: Vec<(u32, u32)>,
    pub(super) uses_dynamic: bool,
    /// Where the memory begins that is set aside for libraries, if an instruction asks for it.
    pub(super) reserved: u32,
}

impl<'a> Layout<'a> {
    /// Gives every shared variable that the bodies use its offset: those of the module come first, in the order
    /// of the text.
    pub(super) fn new(
        source: &Source<'_>,
        module: &ast::Module<'a>,
        bodies: &[&Body<'a>],
    ) -> Result<Self, ParseError> {
        let mut names = HashSet::new();
        bodies.iter().for_each(|body| used(body, &mut names));
        let mut layout = Self {
            places: vec![HashMap::new(); bodies.len() + 1],
            variables: Vec::new(),
            bytes: 0,
            span: 0,
            red_zones: Vec::new(),
            uses_dynamic: false,
            reserved: 0,
        };
        let own = bodies.iter().enumerate().flat_map(|(i, b)| b.variables.iter().map(move |v| (i + 1, v)));
        let (mut end, mut dynamic_align, mut dynamic) = (0u64, 16u64, Vec::new());
        // Where variables are put: apart from each other, so that an index past the end of one is not one of the next.
        let mut span = 0u64;
        for (owner, variable) in module.variables.iter().map(|v| (0, v)).chain(own) {
            let name = variable.name.text;
            if variable.space != Space::Shared || !names.contains(name) {
                continue;
            }
            let Some(size) = variable.size else {
                dynamic_align = dynamic_align.max(variable.align);
                dynamic.push((owner, variable.scope, name));
                continue;
            };
            end = end.next_multiple_of(variable.align) + size;
            let offset = layout.leave_red_zone(span, variable.align);
            span = offset + size;
            if end > MAX_SHARED {
                let message = format!("with `{name}` the variables of this entry are too large for any GPU");
                return Err(source.error(variable.name.span, message));
            }
            layout.places[owner].insert((variable.scope, name), offset);
            layout.variables.push((name.to_owned(), offset as u32, size as u32));
        }
        // It does not count among the program's own bytes.
        if let Some(name) = names.iter().filter(|name| name.starts_with(Reserved::NAMES)).min() {
            let offset = layout.leave_red_zone(span, 16);
            span = offset + u64::from(Reserved::BYTES);
            layout.variables.push(((*name).to_owned(), offset as u32, Reserved::BYTES));
            layout.reserved = offset as u32;
        }
        if !dynamic.is_empty() {
            end = end.next_multiple_of(dynamic_align);
            span = layout.leave_red_zone(span, dynamic_align);
            for (owner, scope, name) in dynamic {
                layout.places[owner].insert((scope, name), span);
            }
            layout.uses_dynamic = true;
        }
        (layout.bytes, layout.span) = (end as u32, span as u32);
        Ok(layout)
    }

    /// The offset of a variable behind what there is, with a gap in between that grows with the variable before.
    fn leave_red_zone(&mut self, end: u64, align: u64) -> u64 {
        let Some((_, _, before)) = self.variables.last() else { return end.next_multiple_of(align) };
        let offset = (end + u64::from(*before).clamp(LEAST_RED_ZONE, MOST_RED_ZONE)).next_multiple_of(align);
        self.red_zones.push((end as u32, offset as u32));
        offset
    }

    /// The offsets of the variables that a body sees: by scope and name.
    pub(super) fn seen_by(&self, body: usize) -> impl Iterator<Item = ((u32, &'a str), u64)> {
        self.places[0].iter().chain(&self.places[body + 1]).map(|(&name, &offset)| (name, offset))
    }
}
