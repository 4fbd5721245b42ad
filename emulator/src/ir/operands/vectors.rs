//! Registers that are vectors: as a whole, and their elements.

use super::Lowering;
use crate::error::ParseError;
use crate::ir::form::Form;
use crate::ir::names::Meaning;
use crate::ir::op::{Mode, Op, Unary};
use crate::ir::program::{Operand, Register, whole_type};
use crate::syntax::ast::{self, OperandKind, Span};

impl<'a> Lowering<'_, 'a> {
    /// Translates an instruction whose operands may name whole vectors: those become their elements.
    pub(super) fn with_vectors(
        &mut self,
        text: &ast::Instruction<'a>,
        form: &Form,
    ) -> Result<(), ParseError> {
        let mut text = text.clone();
        for operand in &mut text.operands {
            let OperandKind::Name(name) = operand.kind else { continue };
            if let Some(Meaning::Vector(_, _, count)) = self.names.find(text.scope, name) {
                let elements = ["x", "y", "z", "w"].into_iter().take(usize::from(count));
                let span = operand.span;
                let component = |e| ast::Operand { span, kind: OperandKind::Component(name, e) };
                operand.kind = OperandKind::Vector(elements.map(component).collect());
            }
        }
        self.scalar_instruction(&text, form)
    }

    /// `mov.v2` and `mov.v4`: all elements are read before one is written.
    pub(crate) fn move_vector(&mut self, text: &ast::Instruction<'a>) -> Result<(), ParseError> {
        let [to, from] = &text.operands[..] else {
            return self.error(text.span, format!("`mov` has 2 operands, found {}", text.operands.len()));
        };
        let count = if text.modifiers.contains(&"v2") { 2 } else { 4 };
        let (to, from) = (self.elements(text, to, count)?, self.elements(text, from, count)?);
        let guard = self.guard(text)?;
        let place = (text.span.line, text.location);
        let first = self.done.len();
        let mut moves = Vec::new();
        for (to, from) in to.into_iter().zip(from) {
            if to.class != from.class {
                let (to, from) = (to.class.describe(), from.class.describe());
                return self.error(text.span, format!("a {from} does not fit a {to}"));
            }
            let between = self.names.temporary(to.class);
            let op = Op::Unary(Unary::Mov, whole_type(to.class), Mode::default());
            self.bare(op, vec![Operand::Register(between), Operand::Register(from)], 1, [0; 3], place);
            moves.push((op, to, between));
        }
        for (op, to, between) in moves {
            self.bare(op, vec![Operand::Register(to), Operand::Register(between)], 1, [0; 3], place);
        }
        self.done[first..].iter_mut().for_each(|instruction| instruction.guard = guard);
        Ok(())
    }

    /// The registers of a vector, or of operands in braces.
    fn elements(
        &mut self,
        text: &ast::Instruction<'a>,
        operand: &ast::Operand<'a>,
        count: usize,
    ) -> Result<Vec<Register>, ParseError> {
        let mut registers = Vec::new();
        match &operand.kind {
            &OperandKind::Name(name) => {
                for element in ["x", "y", "z", "w"].into_iter().take(count) {
                    registers.push(self.element(text.scope, name, element, operand.span)?);
                }
            }
            OperandKind::Vector(elements) if elements.len() == count => {
                for element in elements {
                    registers.push(match element.kind {
                        OperandKind::Name(name) => self.register(text.scope, name, element.span)?,
                        OperandKind::Component(name, part) => {
                            self.element(text.scope, name, part, element.span)?
                        }
                        _ => return self.error(element.span, "expected a register"),
                    });
                }
            }
            _ => return self.error(operand.span, format!("expected a vector of {count}")),
        }
        Ok(registers)
    }

    /// An element of a vector of registers.
    pub(super) fn element(
        &mut self,
        scope: u32,
        name: &'a str,
        element: &str,
        span: Span,
    ) -> Result<Register, ParseError> {
        match self.names.find(scope, name) {
            Some(vector @ Meaning::Vector(..)) => match self.names.element(vector, element) {
                Some(register) => Ok(register),
                None => self.error(span, format!("`{name}` has no element `.{element}`")),
            },
            Some(_) => self.error(span, format!("`{name}` is not a vector")),
            None => self.error(span, format!("`{name}` is not declared here")),
        }
    }
}
