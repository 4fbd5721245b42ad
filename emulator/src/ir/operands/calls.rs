//! Calls, and what functions do when they are entered and left.
//!
//! Arguments and results pass through the frames of caller and function. What the text passes in registers goes
//! through
//! places of the frame that have no name.

use super::{Draft, Lowering};
use crate::error::ParseError;
use crate::ir::form::Form;
use crate::ir::link::Unit;
use crate::ir::names::Meaning;
use crate::ir::op::{Op, Strength};
use crate::ir::program::{
    Builtin, CallSite, Callee, Constant, Instruction, Operand, Register, RegisterNames,
};
use crate::ir::types::Ty;
use crate::syntax::ast::{self, Call, Class, Formal, Function, OperandKind, Space, Span};

/// Results and parameters of a function: their sizes, and the registers' types.
#[derive(Clone, Copy)]
struct Signature<'s, 'a> {
    results: &'s [Formal<'a>],
    parameters: &'s [Formal<'a>],
}

impl<'e, 'a> Lowering<'e, 'a> {
    /// At the start of a function: loads the parameters that are registers.
    pub(crate) fn enter(&mut self, line: u32) -> Result<(), ParseError> {
        let Some(function) = self.around.function else { return Ok(()) };
        let places = self.names.parameters.clone();
        for (formal, &(offset, _)) in function.parameters.iter().zip(&places) {
            let Some((ty, _)) = formal.register else { continue };
            let register = self.register(1, formal.name.text, formal.name.span)?;
            let ty = Ty::parse(ty).unwrap_or(Ty::B32);
            self.frame_access(ty, Operand::Register(register), offset, false, (line, None));
        }
        Ok(())
    }

    /// A `ret` of a function: stores the results that are registers.
    pub(crate) fn leave(&mut self, text: &ast::Instruction<'a>, form: &Form) -> Result<(), ParseError> {
        let function = self.around.function;
        let stored = self.done.len();
        if let Some(function) = function {
            self.store_results(function, (text.span.line, text.location))?;
        }
        self.instruction(text, form)?;
        let Some(leave) = self.done.last_mut() else { return Ok(()) };
        leave.op = Op::Return;
        let guard = leave.guard;
        self.done[stored..].iter_mut().for_each(|store| store.guard = guard);
        Ok(())
    }

    fn store_results(&mut self, function: &Function<'a>, place: Place) -> Result<(), ParseError> {
        let places = self.names.results.clone();
        for (formal, &(offset, _)) in function.results.iter().zip(&places) {
            let Some((ty, _)) = formal.register else { continue };
            let register = self.register(1, formal.name.text, formal.name.span)?;
            let ty = Ty::parse(ty).unwrap_or(Ty::B32);
            self.frame_access(ty, Operand::Register(register), offset, true, place);
        }
        Ok(())
    }

    /// The end of a body, which returns or exits.
    pub(crate) fn run_off(&mut self, line: u32) {
        let place = (line, None);
        if let Some(function) = self.around.function {
            // Names of results are declared: this cannot fail.
            let _ = self.store_results(function, place);
        }
        let op = if self.names.in_function { Op::Return } else { Op::Exit };
        self.bare(op, Vec::new(), 0, [0; 3], place);
    }

    /// The translated body; the names of its registers are not numbered yet.
    pub(crate) fn finish(self) -> Unit {
        let files = self.names.register_names();
        Unit {
            instructions: self.done,
            constants: self.constants,
            registers: self.names.counts,
            names: RegisterNames::named(files),
            late: Vec::new(),
            calls: self.calls,
            frame: self.names.frame,
            parameters: self.names.parameters,
            results: self.names.results,
        }
    }

    /// Translates a `call`.
    pub(crate) fn call(&mut self, text: &ast::Instruction<'a>, call: &Call<'a>) -> Result<(), ParseError> {
        if let Some(modifier) = text.modifiers.iter().find(|m| **m != "uni") {
            return self.error(text.span, format!("`call` has no modifier `.{modifier}`"));
        }
        let place = (text.span.line, text.location);
        let guard = self.guard(text)?;
        let first = self.done.len();
        let (callee, target, signature) = self.callee(text, call)?;
        let arguments = self.arguments(text, call, signature, place)?;
        let (results, loads) = self.results(text, call, signature)?;
        let operands = target.map_or(Vec::new(), |register| vec![Operand::Register(register)]);
        let site = self.calls.len() as i64;
        self.calls.push(CallSite { callee, arguments, results });
        self.bare(Op::Call, operands, 0, [site, 0, 0], place);
        for (ty, register, offset) in loads {
            self.frame_access(ty, Operand::Register(register), offset, false, place);
        }
        self.done[first..].iter_mut().for_each(|instruction| instruction.guard = guard);
        Ok(())
    }

    /// Whom a call calls, the register that says so, and what it takes and gives.
    fn callee(
        &mut self,
        text: &ast::Instruction<'a>,
        call: &Call<'a>,
    ) -> Result<(Callee, Option<Register>, Option<Signature<'e, 'a>>), ParseError> {
        let around = self.around;
        let of = |f: &'e Function<'a>| Signature { results: &f.results, parameters: &f.parameters };
        let found = self.names.find(text.scope, call.target.text);
        if let (Some(Meaning::Function(number)), None) = (found, call.prototype) {
            let function = around.graph.function(number as usize);
            let callee = match (&function.body, Builtin::parse(function.name.text)) {
                (Some(_), _) => Callee::Function(number),
                (None, Some(builtin)) => Callee::Builtin(builtin),
                (None, None) => {
                    let message = format!(
                        "`{}` is declared and has no body: the emulator runs one module alone",
                        call.target.text
                    );
                    return self.error(call.target.span, message);
                }
            };
            return Ok((callee, None, Some(of(function))));
        }
        let register = match found {
            Some(Meaning::Function(_)) => {
                return self.error(call.target.span, "a call of a named function takes no prototype");
            }
            _ => self.register(text.scope, call.target.text, call.target.span)?,
        };
        if register.class != Class::Double {
            return self.error(call.target.span, "the address of a function takes a 64-bit register");
        }
        let Some(name) = call.prototype else {
            let message = "a call through a register needs a `.callprototype` or a `.calltargets` list";
            return self.error(call.target.span, message);
        };
        if let Some(index) = self.names.prototype(text.scope, name.text) {
            let prototype = &around.body.prototypes[index];
            let (results, parameters) = (&prototype.results[..], &prototype.parameters[..]);
            return Ok((Callee::Register, Some(register), Some(Signature { results, parameters })));
        }
        let list = self.names.callees(text.scope, name.text).map(|index| &around.body.callees[index]);
        let Some(list) = list else {
            return self.error(name.span, format!("there is no prototype or list `{}` here", name.text));
        };
        let mut signature = None;
        for target in &list.labels {
            let Some(number) = around.graph.number(target.text) else {
                return self.error(target.span, format!("there is no function `{}`", target.text));
            };
            signature = signature.or(Some(of(around.graph.function(number))));
        }
        Ok((Callee::Register, Some(register), signature))
    }

    /// Where the arguments are in the caller's frame; those in registers are stored there.
    fn arguments(
        &mut self,
        text: &ast::Instruction<'a>,
        call: &Call<'a>,
        signature: Option<Signature<'e, 'a>>,
        place: Place,
    ) -> Result<Vec<(u32, u32)>, ParseError> {
        let formals =
            self.counted(text, "arguments", call.arguments.len(), signature.map(|s| s.parameters))?;
        let mut places = Vec::new();
        for (argument, formal) in call.arguments.iter().zip(formals) {
            if let Some(passed) = self.passed(text, argument, formal)? {
                places.push(passed);
                continue;
            }
            let ty = formal_type(formal);
            let draft = Draft::new(text);
            let value = self.source_operand(&draft, ty, argument, true)?;
            let offset = self.names.unnamed(ty.bytes(), argument.span)?;
            self.frame_access(ty, value, offset, true, place);
            places.push((offset, ty.bytes()));
        }
        Ok(places)
    }

    /// Where the results go in the caller's frame, and which registers are loaded from there afterwards.
    #[allow(clippy::type_complexity, reason = "two lists that belong together")]
    fn results(
        &mut self,
        text: &ast::Instruction<'a>,
        call: &Call<'a>,
        signature: Option<Signature<'e, 'a>>,
    ) -> Result<(Vec<(u32, u32)>, Vec<(Ty, Register, u32)>), ParseError> {
        let (mut places, mut loads) = (Vec::new(), Vec::new());
        if call.results.is_empty() {
            return Ok((places, loads));
        }
        let formals = self.counted(text, "results", call.results.len(), signature.map(|s| s.results))?;
        for (result, formal) in call.results.iter().zip(formals) {
            if let Some(passed) = self.passed(text, result, formal)? {
                places.push(passed);
                continue;
            }
            let ty = formal_type(formal);
            let offset = self.names.unnamed(ty.bytes(), result.span)?;
            places.push((offset, ty.bytes()));
            match result.kind {
                OperandKind::Sink => {}
                OperandKind::Name(name) => {
                    loads.push((ty, self.register(text.scope, name, result.span)?, offset));
                }
                _ => return self.error(result.span, "expected a `.param` variable or a register"),
            }
        }
        Ok((places, loads))
    }

    /// The formals that so many operands belong to.
    fn counted(
        &self,
        text: &ast::Instruction<'a>,
        what: &str,
        count: usize,
        formals: Option<&'e [Formal<'a>]>,
    ) -> Result<&'e [Formal<'a>], ParseError> {
        let formals = formals.unwrap_or_default();
        if formals.len() != count {
            let message = format!("this call has {count} {what}, the function has {}", formals.len());
            return self.error(text.span, message);
        }
        Ok(formals)
    }

    /// Where an operand that is a `.param` variable is; `None` if it is none.
    fn passed(
        &mut self,
        text: &ast::Instruction<'a>,
        operand: &ast::Operand<'a>,
        formal: &Formal<'a>,
    ) -> Result<Option<(u32, u32)>, ParseError> {
        let OperandKind::Name(name) = operand.kind else { return Ok(None) };
        let Some(Meaning::Frame { space: Space::Param, offset, size }) = self.names.find(text.scope, name)
        else {
            return Ok(None);
        };
        if u64::from(size) != formal.size {
            let message = format!("`{name}` has {size} bytes, the function takes {} there", formal.size);
            return self.error(operand.span, message);
        }
        Ok(Some((offset, size)))
    }

    /// Loads or stores a value at a place of the frame.
    fn frame_access(&mut self, ty: Ty, value: Operand, offset: u32, store: bool, place: Place) {
        let address = self.frame_address(i64::from(offset), place);
        let (space, count, strength) = (Space::Local, 1, Strength::Weak);
        if store {
            let op = Op::Store { space, ty, count, strength };
            self.bare(op, vec![address, value], 0, [0; 3], place);
        } else {
            let op = Op::Load { space, ty, count, strength, constant: false };
            self.bare(op, vec![value, address], 1, [0; 3], place);
        }
    }

    /// The address in local memory of a place of the frame.
    pub(super) fn frame_address(&mut self, offset: i64, place: Place) -> Operand {
        if !self.names.in_function {
            return self.constant(Class::Double, Constant::Value(offset.cast_unsigned()));
        }
        let address = Operand::Register(self.names.temporary(Class::Double));
        self.bare(Op::FrameAddress, vec![address], 1, [offset, 0, 0], place);
        address
    }

    /// An instruction that the text does not have.
    pub(super) fn bare(
        &mut self,
        op: Op,
        operands: Vec<Operand>,
        destinations: usize,
        immediates: [i64; 3],
        (line, location): Place,
    ) {
        let (guard, targets) = (None, Vec::new());
        self.done.push(Instruction {
            op,
            operands,
            destinations,
            immediates,
            guard,
            targets,
            line,
            location,
        });
    }

    /// The address of a function, where one is named as a value.
    pub(super) fn function_address(
        &mut self,
        ty: Ty,
        number: u32,
        span: Span,
    ) -> Result<Operand, ParseError> {
        if ty.class() != Class::Double {
            return self.error(span, "the address of a function takes a 64-bit register");
        }
        let address = crate::ir::functions::address(number as usize);
        Ok(self.constant(Class::Double, Constant::Value(address)))
    }
}

/// The line in the text, and what the compiler says.
pub(super) type Place = (u32, Option<(u32, u32)>);

/// The type as which a value is passed.
fn formal_type(formal: &Formal<'_>) -> Ty {
    match (formal.register, formal.size) {
        (Some((ty, _)), _) => Ty::parse(ty).unwrap_or(Ty::B32),
        (None, 1) => Ty::B8,
        (None, 2) => Ty::B16,
        (None, 8) => Ty::B64,
        _ => Ty::B32,
    }
}
