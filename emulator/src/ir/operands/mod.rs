//! Resolves and checks the operands of one instruction against its form.
//!
//! The form's specification of each operand says what to expect. `values` resolves registers and constants, `memory` addresses
//! and tensor maps, `calls` what functions take and give, `vectors` registers of vectors; `video` and `wmma` see to those.

mod calls;
mod memory;
mod values;
mod vectors;
mod video;
mod wmma;

use std::collections::HashMap;

use super::form::Form;
use super::lower::{operation, spelled};
use super::names::{Meaning, Names, Surroundings};
use super::op::{Op, Unary, Wgmma};
use super::program::{CallSite, Constant, Instruction, Operand, Register, whole_type};
use super::types::Ty;
use crate::error::ParseError;
use crate::syntax::Source;
use crate::syntax::ast::{self, Body, Class, OperandKind, Span};

/// The state of translating one entry.
pub(super) struct Lowering<'e, 'a> {
    source: &'e Source<'a>,
    pub(super) names: Names<'e, 'a>,
    around: Surroundings<'e, 'a>,
    body: &'e Body<'a>,
    constants: Vec<Constant>,
    calls: Vec<CallSite>,
    known: HashMap<Constant, u32>,
    pub(super) done: Vec<Instruction>,
    /// Instructions that must follow the one at hand, to widen its results.
    after: Vec<Instruction>,
    /// The address and the register of a half that waits for the other one.
    half: Option<(Operand, Operand)>,
    /// The targets of all indexed branches so far.
    branch_targets: usize,
}

/// Lists of targets are copied into each branch that uses them, so their sum is bounded.
const MAX_TARGETS: usize = 1 << 20;

/// The elements of a vector that an instruction names.
fn vector_of(text: &ast::Instruction<'_>) -> Option<usize> {
    text.modifiers.iter().find_map(|m| match *m {
        "v2" => Some(2),
        "v4" => Some(4),
        "v8" => Some(8),
        _ => None,
    })
}

/// The instruction at hand, while its operands are gathered.
struct Draft<'i, 'a> {
    text: &'i ast::Instruction<'a>,
    destinations: Vec<Operand>,
    sources: Vec<Operand>,
    immediates: Vec<i64>,
    targets: Vec<u32>,
    /// A `.param` address is one of the frame.
    in_frame: bool,
    guard: Option<(Register, bool)>,
}

impl<'i, 'a> Draft<'i, 'a> {
    fn new(text: &'i ast::Instruction<'a>) -> Self {
        Self {
            text,
            destinations: Vec::new(),
            sources: Vec::new(),
            immediates: Vec::new(),
            targets: Vec::new(),
            in_frame: false,
            guard: None,
        }
    }
}

impl<'e, 'a> Lowering<'e, 'a> {
    pub(super) fn new(source: &'e Source<'a>, names: Names<'e, 'a>, around: Surroundings<'e, 'a>) -> Self {
        Self {
            source,
            names,
            around,
            body: around.body,
            constants: Vec::new(),
            calls: Vec::new(),
            known: HashMap::new(),
            done: Vec::new(),
            after: Vec::new(),
            half: None,
            branch_targets: 0,
        }
    }

    fn error<T>(&self, span: Span, message: impl Into<String>) -> Result<T, ParseError> {
        Err(self.source.error(span, message))
    }

    /// The guard of an instruction.
    fn guard(&mut self, text: &ast::Instruction<'a>) -> Result<Option<(Register, bool)>, ParseError> {
        let Some((name, negated)) = text.guard else { return Ok(None) };
        let register = self.register(text.scope, name.text, name.span)?;
        if register.class != Class::Predicate {
            return self.error(name.span, format!("`{}` is no predicate register", name.text));
        }
        Ok(Some((register, negated)))
    }

    /// Translates one instruction whose form is known.
    pub(super) fn instruction(&mut self, text: &ast::Instruction<'a>, form: &Form) -> Result<(), ParseError> {
        if self.names.has_vectors {
            return self.with_vectors(text, form);
        }
        self.scalar_instruction(text, form)
    }

    /// As above, where no operand names a whole vector of registers.
    fn scalar_instruction(&mut self, text: &ast::Instruction<'a>, form: &Form) -> Result<(), ParseError> {
        let mut op = operation(form, text);
        let changed;
        let text = match op {
            Op::Video(_) | Op::VideoSimd(_) => {
                (changed, op) = self.video(text, op)?;
                &changed
            }
            Op::WmmaAddress(part) => return self.wmma_access(text, form, part),
            _ => text,
        };
        let mut draft = Draft { guard: self.guard(text)?, ..Draft::new(text) };
        if form.operands == "any" {
            op = self.mov(&mut draft, op)?;
        } else {
            let specifications: Vec<_> = form.operands.split_whitespace().collect();
            let mut missing = specifications.len() - text.operands.len();
            let mut given = text.operands.iter();
            for specification in specifications {
                let optional = specification.ends_with('?');
                if optional && missing > 0 {
                    missing -= 1;
                    if !specification.starts_with('#') {
                        draft.sources.push(Operand::None(Class::Word));
                    }
                } else if let Some(operand) = given.next() {
                    self.operand(&mut draft, op, specification.trim_end_matches('?'), operand)?;
                }
            }
        }
        if let Op::Load { ty, count, .. } | Op::Store { ty, count, .. } = op
            && ty.bytes() * u32::from(count) > 16
        {
            let message = format!("`{}` accesses more than 16 bytes, which needs a later GPU", spelled(text));
            return self.error(text.span, message);
        }
        if let Op::CopyAsync { with_source_size, .. } = op {
            let bytes = draft.immediates.pop().unwrap_or(0);
            let allowed: &[i64] = if text.modifiers.contains(&"cg") { &[16] } else { &[4, 8, 16] };
            if !allowed.contains(&bytes) {
                let span = text.operands.get(2).map_or(text.span, |o| o.span);
                return self.error(span, format!("a copy of {bytes} bytes: expected one of {allowed:?}"));
            }
            op = Op::CopyAsync { bytes: bytes as u8, with_source_size };
        }
        op = self.in_frame(&draft, op)?;
        if let Op::Atomic { ty, result, .. } = op
            && let Some(count) = vector_of(text)
        {
            self.vector_atomic(op, draft, (ty.bytes(), result), count);
            return Ok(());
        }
        if let Op::Wgmma(shape) = op {
            op = Op::Wgmma(self.wgmma(&mut draft, shape)?);
        }
        self.push(op, draft);
        self.done.append(&mut self.after);
        Ok(())
    }

    /// The integer operands of a warpgroup's product: signs of A and B, then whether they are transposed. A has no
    /// such choice if it comes from registers.
    fn wgmma(&self, draft: &mut Draft<'_, 'a>, mut shape: Wgmma) -> Result<Wgmma, ParseError> {
        let operands = &draft.text.operands;
        shape.registers = operands.get(1).is_some_and(|a| matches!(a.kind, OperandKind::Vector(_)));
        let choices: Vec<_> = std::mem::take(&mut draft.immediates).into_iter().zip(&operands[4..]).collect();
        let halves = shape.a.bytes() == 2;
        let expected = if halves && !shape.registers { 4 } else { 2 + usize::from(halves) };
        if shape.accumulator != Ty::S32 && choices.len() != expected {
            let message = format!(
                "`{}` has {} integer operands here, expected {expected}",
                spelled(draft.text),
                choices.len()
            );
            return self.error(draft.text.span, message);
        }
        for (i, &(value, operand)) in choices.iter().enumerate() {
            let (allowed, other) = if i < 2 { ([1, -1], "1 or -1") } else { ([0, 1], "0 or 1") };
            if !allowed.contains(&value) {
                return self.error(operand.span, format!("expected {other}, found {value}"));
            }
            match i {
                0 | 1 => shape.negate[i] = value == -1,
                // Of one transposition only, it is that of B.
                _ => shape.transpose[i - 2 + usize::from(shape.registers)] = value == 1,
            }
        }
        Ok(shape)
    }

    /// An atomic operation on a vector: each element is one of its own.
    fn vector_atomic(&mut self, op: Op, draft: Draft<'_, 'a>, (bytes, result): (u32, bool), count: usize) {
        let place = (draft.text.span.line, draft.text.location);
        let first = self.done.len();
        let offset = draft.immediates.first().copied().unwrap_or(0);
        for i in 0..count {
            let to = draft.destinations.get(i).copied();
            let operands = to.into_iter().chain([draft.sources[0], draft.sources[1 + i]]).collect();
            let immediates = [offset.wrapping_add(i as i64 * i64::from(bytes)), 0, 0];
            self.bare(op, operands, usize::from(result), immediates, place);
        }
        self.done[first..].iter_mut().for_each(|instruction| instruction.guard = draft.guard);
    }

    fn push(&mut self, op: Op, draft: Draft<'_, 'a>) {
        let destinations = draft.destinations.len();
        let mut operands = draft.destinations;
        operands.extend(draft.sources);
        let immediate = |i: usize| draft.immediates.get(i).copied().unwrap_or(0);
        self.done.push(Instruction {
            op,
            operands,
            destinations,
            immediates: [immediate(0), immediate(1), immediate(2)],
            guard: draft.guard,
            targets: draft.targets,
            line: draft.text.span.line,
            location: draft.text.location,
        });
    }

    /// An instruction of our own making, beside the one at hand.
    fn helper(&self, draft: &Draft<'_, 'a>, op: Op, to: Register, from: Operand) -> Instruction {
        Instruction {
            op,
            operands: vec![Operand::Register(to), from],
            destinations: 1,
            immediates: [0; 3],
            guard: None,
            targets: Vec::new(),
            line: draft.text.span.line,
            location: draft.text.location,
        }
    }

    fn register(&mut self, scope: u32, name: &'a str, span: Span) -> Result<Register, ParseError> {
        match self.names.find(scope, name) {
            Some(Meaning::Register(register)) => Ok(register),
            Some(_) => self.error(span, format!("`{name}` is a variable, expected a register")),
            None => self.error(span, format!("`{name}` is not declared here")),
        }
    }

    fn constant(&mut self, class: Class, constant: Constant) -> Operand {
        let next = self.constants.len() as u32;
        let index = *self.known.entry(constant).or_insert(next);
        if index == next {
            self.constants.push(constant);
        }
        Operand::Constant(class, index)
    }

    fn operand(
        &mut self,
        draft: &mut Draft<'_, 'a>,
        op: Op,
        specification: &str,
        operand: &ast::Operand<'a>,
    ) -> Result<(), ParseError> {
        match specification {
            "[]" => return self.memory(draft, operand),
            "[map]" => return self.tensor(draft, operand),
            "#" => {
                let OperandKind::Integer(value) = operand.kind else {
                    return self.error(operand.span, "expected an integer constant");
                };
                draft.immediates.push(value.cast_signed());
                return Ok(());
            }
            "label" => {
                let OperandKind::Name(name) = operand.kind else {
                    return self.error(operand.span, "expected a label");
                };
                let target = self.names.label(draft.text.scope, name, operand.span)?;
                draft.immediates.push(target as i64);
                return Ok(());
            }
            "targets" => return self.targets(draft, operand),
            _ => {}
        }
        let (destination, specification) = match specification.strip_prefix(['=', '+']) {
            Some(rest) => (true, rest),
            None => (false, specification),
        };
        // Either a vector or a single value of another type.
        let specification = match (specification.split_once('/'), &operand.kind) {
            (Some((vector, _)), OperandKind::Vector(_)) => vector,
            (Some((_, single)), _) => single,
            (None, _) => specification,
        };
        let (wider, specification) = match specification.strip_prefix('~') {
            Some(rest) => (true, rest),
            None => (false, specification),
        };
        let (value, pair) = match specification.split_once('|') {
            Some((_, "")) if matches!(operand.kind, OperandKind::Pair(_)) => {
                let message = format!("`{}` has no second result", spelled(draft.text));
                return self.error(operand.span, message);
            }
            Some((value, _)) => (value, true),
            None => (specification, false),
        };
        let (value, count) = match value.split_once('*') {
            Some((value, "v")) => (value, vector_of(draft.text)),
            Some((value, "d")) => match op {
                Op::Wgmma(shape) => (value, Some(shape.accumulators())),
                _ => (value, None),
            },
            Some((value, count)) => (value, count.parse::<usize>().ok()),
            None => (value, None),
        };
        let mut types = draft.text.modifiers.iter().filter_map(|m| Ty::parse(m));
        let ty = match value {
            "t" => types.next(),
            "u" => types.nth(1),
            "w" => types.next().map(|ty| match (ty.bytes(), ty.is_signed()) {
                (2, true) => Ty::S32,
                (2, false) => Ty::U32,
                (_, true) => Ty::S64,
                (_, false) => Ty::U64,
            }),
            other => Ty::parse(other),
        };
        let ty = ty.unwrap_or(Ty::B32);
        let mut parts = Vec::new();
        match (&operand.kind, count) {
            (OperandKind::Vector(elements), Some(count)) if elements.len() == count => parts.extend(elements),
            // A single operand may stand in braces.
            (OperandKind::Vector(elements), None) if elements.len() == 1 => parts.extend(elements),
            (OperandKind::Vector(elements), count) => {
                let expected = count.map_or("a single operand".to_owned(), |n| format!("a vector of {n}"));
                return self.error(
                    operand.span,
                    format!("expected {expected}, found a vector of {}", elements.len()),
                );
            }
            // A vector of one may be written without braces.
            (_, None | Some(1)) => parts.push(operand),
            (_, Some(count)) => return self.error(operand.span, format!("expected a vector of {count}")),
        }
        for part in parts {
            if destination {
                self.destination(draft, ty, part, wider, pair)?;
            } else {
                let source = self.source_operand(draft, ty, part, wider)?;
                draft.sources.push(source);
            }
        }
        Ok(())
    }

    fn targets(&mut self, draft: &mut Draft<'_, 'a>, operand: &ast::Operand<'a>) -> Result<(), ParseError> {
        let OperandKind::Name(name) = operand.kind else {
            return self.error(operand.span, "expected the name of a `.branchtargets` list");
        };
        let scope = draft.text.scope;
        let Some(list) = self.names.list(scope, name).and_then(|index| self.body.targets.get(index)) else {
            return self.error(operand.span, format!("there is no `.branchtargets` list `{name}` here"));
        };
        self.branch_targets += list.labels.len();
        if self.branch_targets > MAX_TARGETS {
            let message = format!("indexed branches of this entry have more than {MAX_TARGETS} targets");
            return self.error(operand.span, message);
        }
        for label in &list.labels {
            draft.targets.push(self.names.label(list.scope, label.text, label.span)? as u32);
        }
        Ok(())
    }

    /// `mov` in all its shapes: plain, pack, unpack.
    fn mov(&mut self, draft: &mut Draft<'_, 'a>, op: Op) -> Result<Op, ParseError> {
        let Op::Unary(_, ty, mode) = op else { return Ok(op) };
        let (to, from) = (&draft.text.operands[0], &draft.text.operands[1]);
        match (&to.kind, &from.kind) {
            (OperandKind::Vector(parts), _) => {
                let part = self.part(ty, parts.len(), to.span)?;
                for element in parts {
                    self.destination(draft, part, element, true, false)?;
                }
                let whole = self.source_operand(draft, ty, from, false)?;
                draft.sources.push(whole);
                Ok(Op::Unpack(parts.len() as u8, ty))
            }
            (_, OperandKind::Vector(parts)) => {
                self.destination(draft, ty, to, false, false)?;
                let part = self.part(ty, parts.len(), from.span)?;
                for element in parts {
                    let source = self.source_operand(draft, part, element, true)?;
                    draft.sources.push(source);
                }
                Ok(Op::Pack(parts.len() as u8, ty))
            }
            _ => {
                self.destination(draft, ty, to, false, false)?;
                let source = self.source_operand(draft, ty, from, false)?;
                draft.sources.push(source);
                let whole = draft.destinations.first().map_or(Class::Word, |d| match *d {
                    Operand::Register(Register { class, .. })
                    | Operand::Constant(class, _)
                    | Operand::None(class) => class,
                });
                Ok(Op::Unary(Unary::Mov, whole_type(whole), mode))
            }
        }
    }

    /// The type of one of `count` parts of a value.
    fn part(&self, ty: Ty, count: usize, span: Span) -> Result<Ty, ParseError> {
        match (ty.bytes(), count) {
            (8, 2) => Ok(Ty::B32),
            (8, 4) | (4, 2) => Ok(Ty::B16),
            (8, 8) | (4, 4) | (2, 2) => Ok(Ty::B8),
            (bytes, _) => {
                self.error(span, format!("a value of {bytes} bytes cannot be cut into {count} parts"))
            }
        }
    }
}
