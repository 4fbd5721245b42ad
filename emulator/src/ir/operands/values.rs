//! Values: registers that an instruction writes, and registers, constants and special registers that it reads.

use super::{Draft, Lowering};
use crate::error::ParseError;
use crate::ir::forms::special;
use crate::ir::lower::spelled;
use crate::ir::names::Meaning;
use crate::ir::op::{Mode, Op, Unary};
use crate::ir::program::{Constant, Operand, Register, file_of};
use crate::ir::types::Ty;
use crate::numeric::convert::Conversion;
use crate::numeric::float::Round;
use crate::syntax::ast::{self, Class, OperandKind, Span};

impl<'a> Lowering<'_, 'a> {
    pub(super) fn destination(
        &mut self,
        draft: &mut Draft<'_, 'a>,
        ty: Ty,
        operand: &ast::Operand<'a>,
        wider: bool,
        pair: bool,
    ) -> Result<(), ParseError> {
        let (first, second) = match &operand.kind {
            OperandKind::Pair(both) if pair => (&both.0, Some(&both.1)),
            _ => (operand, None),
        };
        let result = match first.kind {
            OperandKind::Sink => Operand::None(ty.class()),
            OperandKind::Name(name) => {
                let register = self.register(draft.text.scope, name, first.span)?;
                if wider && register.class == Class::Double && file_of(ty.class()) == 1 {
                    // The result is narrower than the register: widen it by its sign.
                    let narrow = self.names.temporary(Class::Word);
                    let from = if ty.is_signed() { Ty::S32 } else { Ty::U32 };
                    let to = if ty.is_signed() { Ty::S64 } else { Ty::U64 };
                    let op = Op::Convert(plain_conversion(to, from));
                    let mut widen = self.helper(draft, op, register, Operand::Register(narrow));
                    widen.guard = draft.guard;
                    self.after.push(widen);
                    Operand::Register(narrow)
                } else {
                    self.check_class(draft, ty, register, name, first.span, wider)?;
                    Operand::Register(register)
                }
            }
            OperandKind::Component(name, element) => {
                let register = self.element(draft.text.scope, name, element, first.span)?;
                self.check_class(draft, ty, register, name, first.span, wider)?;
                Operand::Register(register)
            }
            _ => return self.error(first.span, format!("expected a {}", ty.class().describe())),
        };
        draft.destinations.push(result);
        if pair {
            let predicate = match second.map(|operand| (&operand.kind, operand.span)) {
                None | Some((OperandKind::Sink, _)) => Operand::None(Class::Predicate),
                Some((&OperandKind::Name(name), span)) => {
                    let register = self.register(draft.text.scope, name, span)?;
                    self.check_class(draft, Ty::Pred, register, name, span, false)?;
                    Operand::Register(register)
                }
                Some((_, span)) => return self.error(span, "expected a predicate register"),
            };
            draft.destinations.push(predicate);
        }
        Ok(())
    }

    fn check_class(
        &self,
        draft: &Draft<'_, 'a>,
        ty: Ty,
        register: Register,
        name: &str,
        span: Span,
        wider: bool,
    ) -> Result<(), ParseError> {
        let wanted = ty.class();
        let wide_enough = wider && wanted == Class::Half && register.class == Class::Word;
        if register.class == wanted || wide_enough {
            return Ok(());
        }
        let message = format!(
            "`{}` takes a {} here, `{name}` is a {}",
            spelled(draft.text),
            wanted.describe(),
            register.class.describe()
        );
        self.error(span, message)
    }

    pub(super) fn source_operand(
        &mut self,
        draft: &Draft<'_, 'a>,
        ty: Ty,
        operand: &ast::Operand<'a>,
        wider: bool,
    ) -> Result<Operand, ParseError> {
        let class = ty.class();
        let scope = draft.text.scope;
        match &operand.kind {
            OperandKind::Not(name) => {
                let register = self.register(scope, name.text, name.span)?;
                self.check_class(draft, Ty::Pred, register, name.text, name.span, false)?;
                if ty != Ty::Pred {
                    return self.error(operand.span, format!("expected a {}", class.describe()));
                }
                let negated = self.names.temporary(Class::Predicate);
                let op = Op::Unary(Unary::Not, Ty::Pred, Mode::default());
                let helper = self.helper(draft, op, negated, Operand::Register(register));
                self.done.push(helper);
                Ok(Operand::Register(negated))
            }
            &OperandKind::Name(name) => match self.names.find(scope, name) {
                Some(Meaning::Register(register)) => {
                    if wider && register.class == Class::Double && file_of(class) == 1 {
                        let narrow = self.names.temporary(Class::Word);
                        let op = Op::Convert(plain_conversion(Ty::U32, Ty::U64));
                        let helper = self.helper(draft, op, narrow, Operand::Register(register));
                        self.done.push(helper);
                        return Ok(Operand::Register(narrow));
                    }
                    self.check_class(draft, ty, register, name, operand.span, wider)?;
                    Ok(Operand::Register(register))
                }
                Some(meaning) => self.address(draft, ty, meaning, 0, operand.span),
                None => self.special(draft, ty, name, None, operand.span),
            },
            &OperandKind::Offset(name, offset) => match self.names.find(scope, name) {
                Some(Meaning::Register(_)) => self.error(operand.span, "a register takes no offset here"),
                Some(meaning) => self.address(draft, ty, meaning, offset, operand.span),
                None => self.error(operand.span, format!("`{name}` is not declared here")),
            },
            &OperandKind::Component(name, component) => {
                if let Some(Meaning::Vector(..)) = self.names.find(scope, name) {
                    let register = self.element(scope, name, component, operand.span)?;
                    self.check_class(draft, ty, register, name, operand.span, wider)?;
                    return Ok(Operand::Register(register));
                }
                self.special(draft, ty, name, Some(component), operand.span)
            }
            &OperandKind::Integer(value) => {
                let value = match (ty, class) {
                    (Ty::F32 | Ty::F64 | Ty::F16 | Ty::Bf16, _) => {
                        return self
                            .error(operand.span, "expected a floating-point constant, such as 0f3F800000");
                    }
                    (_, Class::Predicate) => u64::from(value != 0),
                    (_, Class::Half) => value & 0xffff,
                    (_, Class::Word) => value & 0xffff_ffff,
                    (_, Class::Double) => value,
                };
                Ok(self.constant(class, Constant::Value(value)))
            }
            &OperandKind::Single(bits) => match ty {
                Ty::F32 | Ty::B32 => Ok(self.constant(class, Constant::Value(u64::from(bits)))),
                Ty::F64 => {
                    let value = f64::from(f32::from_bits(bits)).to_bits();
                    Ok(self.constant(class, Constant::Value(value)))
                }
                _ => self.error(operand.span, "a single-precision constant does not fit here"),
            },
            &OperandKind::Double(bits) => match ty {
                Ty::F64 | Ty::B64 => Ok(self.constant(class, Constant::Value(bits))),
                Ty::F32 => {
                    let value = (f64::from_bits(bits) as f32).to_bits();
                    Ok(self.constant(class, Constant::Value(u64::from(value))))
                }
                _ => self.error(operand.span, "a double-precision constant does not fit here"),
            },
            _ => self.error(operand.span, format!("expected a {} or a constant", class.describe())),
        }
    }

    fn special(
        &mut self,
        draft: &Draft<'_, 'a>,
        ty: Ty,
        name: &str,
        component: Option<&str>,
        span: Span,
    ) -> Result<Operand, ParseError> {
        let Some((register, own)) = special(name, component) else {
            let dot = component.map(|c| format!(".{c}")).unwrap_or_default();
            return self.error(span, format!("`{name}{dot}` is not declared here, and no special register"));
        };
        if own.class() != ty.class() {
            let (has, wants) = (own.class().describe(), ty.class().describe());
            return self
                .error(span, format!("`{name}` is a {has}, `{}` takes a {wants}", spelled(draft.text)));
        }
        let value = self.names.temporary(own.class());
        let mut read = self.helper(draft, Op::ReadSpecial(register, own), value, Operand::None(own.class()));
        read.operands.truncate(1);
        self.done.push(read);
        Ok(Operand::Register(value))
    }
}

/// Cuts or extends an integer.
pub(super) fn plain_conversion(to: Ty, from: Ty) -> Conversion {
    Conversion {
        to,
        from,
        round: Round::Nearest,
        integral: false,
        ftz: false,
        sat: false,
        relu: false,
        satfinite: false,
    }
}
