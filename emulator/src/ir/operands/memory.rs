//! Memory: addresses in brackets, the addresses of variables, and tensor maps with their coordinates.

use super::{Draft, Lowering};
use crate::error::ParseError;
use crate::ir::lower::spelled;
use crate::ir::names::Meaning;
use crate::ir::op::Op;
use crate::ir::program::{Constant, Operand};
use crate::ir::types::Ty;
use crate::syntax::ast::{self, Class, OperandKind, Space, Span};

impl<'a> Lowering<'_, 'a> {
    /// The address of a variable, as a value.
    pub(super) fn address(
        &mut self,
        draft: &Draft<'_, 'a>,
        ty: Ty,
        meaning: Meaning,
        offset: i64,
        span: Span,
    ) -> Result<Operand, ParseError> {
        let constant = match meaning {
            Meaning::Offset(_, base) => Constant::Value(base.wrapping_add_signed(offset)),
            Meaning::Global(_, variable) => Constant::Address { variable, offset },
            Meaning::Function(number) if offset == 0 => return self.function_address(ty, number, span),
            Meaning::Frame { offset: base, .. } => {
                let place = (draft.text.span.line, draft.text.location);
                let address = self.frame_address(i64::from(base).wrapping_add(offset), place);
                if ty.class() != Class::Double {
                    return self.narrow(draft, ty, address, span);
                }
                return Ok(address);
            }
            Meaning::Register(_) | Meaning::Function(_) | Meaning::Vector(..) => {
                return self.error(span, "expected a variable");
            }
        };
        match (ty.class(), constant) {
            (Class::Double, _) => Ok(self.constant(Class::Double, constant)),
            (Class::Word, Constant::Value(_)) => Ok(self.constant(Class::Word, constant)),
            _ => self.error(span, format!("`{}` cannot hold the address of a variable", spelled(draft.text))),
        }
    }

    /// The address of a place in the frame, in 32 bits.
    fn narrow(
        &mut self,
        draft: &Draft<'_, 'a>,
        ty: Ty,
        address: Operand,
        span: Span,
    ) -> Result<Operand, ParseError> {
        match (ty.class(), address) {
            (Class::Word, Operand::Constant(_, index)) => Ok(Operand::Constant(Class::Word, index)),
            (Class::Word, address) => {
                let narrow = self.names.temporary(Class::Word);
                let op = Op::Convert(super::values::plain_conversion(Ty::U32, Ty::U64));
                let helper = self.helper(draft, op, narrow, address);
                self.done.push(helper);
                Ok(Operand::Register(narrow))
            }
            _ => self.error(span, format!("`{}` cannot hold the address of a variable", spelled(draft.text))),
        }
    }

    /// The operation, where `.param` means the frame: what calls pass on, and all of a function's parameters.
    pub(super) fn in_frame(&self, draft: &Draft<'_, 'a>, op: Op) -> Result<Op, ParseError> {
        let here = draft.in_frame || self.names.in_function;
        Ok(match op {
            Op::Load { space: Space::Param, ty, count, strength, .. } if here => {
                Op::Load { space: Space::Local, ty, count, strength, constant: false }
            }
            Op::Store { space: Space::Param, ty, count, strength } if here => {
                Op::Store { space: Space::Local, ty, count, strength }
            }
            Op::Store { space: Space::Param, .. } => {
                return self.error(draft.text.span, "the parameters of a kernel cannot be written");
            }
            Op::Cvta { space: Space::Param, to_space } if self.names.in_function => {
                Op::Cvta { space: Space::Local, to_space }
            }
            op => op,
        })
    }

    pub(super) fn memory(
        &mut self,
        draft: &mut Draft<'_, 'a>,
        operand: &ast::Operand<'a>,
    ) -> Result<(), ParseError> {
        let OperandKind::Memory(base, offset) = operand.kind else {
            return self.error(operand.span, "expected an address in `[` and `]`");
        };
        let Some(name) = base else {
            let address = self.constant(Class::Double, Constant::Value(offset.cast_unsigned()));
            draft.sources.push(address);
            draft.immediates.push(0);
            return Ok(());
        };
        match self.names.find(draft.text.scope, name.text) {
            Some(Meaning::Register(register)) => {
                if !matches!(register.class, Class::Word | Class::Double) {
                    let message = format!("`{}` is a {}: no address", name.text, register.class.describe());
                    return self.error(name.span, message);
                }
                draft.sources.push(Operand::Register(register));
                draft.immediates.push(offset);
                Ok(())
            }
            Some(meaning) => {
                self.check_space(draft, meaning, name)?;
                draft.in_frame |= matches!(meaning, Meaning::Frame { .. });
                let address = self.address(draft, Ty::B64, meaning, offset, name.span)?;
                draft.sources.push(address);
                draft.immediates.push(0);
                Ok(())
            }
            None => self.error(name.span, format!("`{}` is not declared here", name.text)),
        }
    }

    /// A tensor map's generic address, and as many coordinates as the instruction says that the tensor has axes.
    pub(super) fn tensor(
        &mut self,
        draft: &mut Draft<'_, 'a>,
        operand: &ast::Operand<'a>,
    ) -> Result<(), ParseError> {
        let OperandKind::Tensor(map, coordinates) = &operand.kind else {
            return self.error(operand.span, "expected a tensor map and coordinates: `[map, {x, y}]`");
        };
        let axes = draft.text.modifiers.iter().find_map(|m| m.strip_suffix('d')?.parse::<usize>().ok());
        if axes.is_some_and(|axes| axes != coordinates.len()) {
            let message = format!("`{}` has {} coordinates here", spelled(draft.text), coordinates.len());
            return self.error(operand.span, message);
        }
        self.memory(draft, map)?;
        for coordinate in coordinates {
            let source = self.source_operand(draft, Ty::B32, coordinate, false)?;
            draft.sources.push(source);
        }
        Ok(())
    }

    /// A variable may be accessed only in its own space.
    fn check_space(
        &self,
        draft: &Draft<'_, 'a>,
        meaning: Meaning,
        name: ast::Name<'a>,
    ) -> Result<(), ParseError> {
        let (space, word) = match meaning {
            Meaning::Offset(Space::Shared, _) => (Space::Shared, "shared"),
            Meaning::Frame { space: Space::Local, .. } => (Space::Local, "local"),
            Meaning::Frame { .. } => (Space::Param, "param"),
            Meaning::Offset(..) => (Space::Param, "param"),
            Meaning::Global(Space::Const, _) => (Space::Const, "const"),
            _ => (Space::Global, "global"),
        };
        let named = |m: &&str| m.split("::").next() == Some(word);
        // Global and constant addresses are generic ones; the others need their space named.
        let generic = matches!(space, Space::Global | Space::Const)
            && !draft.text.modifiers.iter().any(|m| {
                ["global", "shared", "local", "const", "param"].contains(&m.split("::").next().unwrap_or(m))
            });
        if generic || draft.text.modifiers.iter().any(named) {
            return Ok(());
        }
        self.error(name.span, format!("`{}` is in .{word}, `{}` is not", name.text, spelled(draft.text)))
    }
}
