//! The grammar of functions: their declarations and definitions, prototypes, and calls.

use super::ast::{Body, Call, Class, Formal, Function, Module, Name, Operand, Prototype};
use super::directives::type_size;
use super::lexer::Kind;
use super::parser::Parser;
use crate::error::ParseError;

/// Parameters and results of a function, at most; so many bytes are passed on, at most.
const MAX_FORMALS: usize = 1 << 12;
const MAX_BYTES: u64 = 1 << 16;

impl<'a> Parser<'_, 'a> {
    /// A function that is no entry, from behind `.func` on: a declaration, or a definition with a body.
    pub(super) fn function(&mut self, module: &mut Module<'a>) -> Result<(), ParseError> {
        self.function_attributes()?;
        let results = self.formals()?;
        let name = self.name("a function name")?;
        let parameters = self.formals()?;
        self.function_attributes()?;
        let mut function = Function { name, results, parameters, body: None };
        if !self.accept(b';') {
            let mut body = Body::default();
            self.body(&mut body, module)?;
            function.body = Some(body);
        }
        let next = module.functions.len();
        let number = *self.functions.entry(name.text).or_insert(next);
        let Some(known) = module.functions.get_mut(number) else {
            module.functions.push(function);
            return Ok(());
        };
        if known.body.is_some() && function.body.is_some() {
            return Err(self.source.error(name.span, format!("`{}` is defined twice", name.text)));
        }
        let shape = |formals: &[Formal<'_>]| formals.iter().map(|f| f.size).collect::<Vec<_>>();
        if shape(&known.parameters) != shape(&function.parameters)
            || shape(&known.results) != shape(&function.results)
        {
            let message = format!("`{}` was declared with other parameters or results before", name.text);
            return Err(self.source.error(name.span, message));
        }
        if function.body.is_some() {
            *known = function;
        }
        Ok(())
    }

    /// What says how a function is to be compiled, and changes nothing of what it does.
    fn function_attributes(&mut self) -> Result<(), ParseError> {
        while let Kind::Dotted(directive) = self.kind() {
            let span = self.span();
            self.advance();
            match directive {
                "noreturn" => {}
                "attribute" => {
                    self.expect(b'(')?;
                    while !self.accept(b')') {
                        if self.kind() == Kind::End {
                            return Err(self.expected("`)`"));
                        }
                        self.advance();
                    }
                }
                "pragma" => self.at_pragma_text()?,
                "maxntid" | "minnctapersm" | "maxnctapersm" | "reqntid" => drop(self.dimensions()?),
                "maxnreg" => drop(self.integer("a number of registers")?),
                "abi_preserve" | "abi_preserve_control" => drop(self.integer("a number of registers")?),
                _ => {
                    let message = format!("the emulator does not know the directive `.{directive}`");
                    return Err(self.source.error(span, message));
                }
            }
        }
        Ok(())
    }

    /// Parameters or results in parentheses; none where there are no parentheses.
    fn formals(&mut self) -> Result<Vec<Formal<'a>>, ParseError> {
        let mut formals = Vec::new();
        if !self.accept(b'(') || self.accept(b')') {
            return Ok(formals);
        }
        let span = self.span();
        loop {
            formals.push(self.formal()?);
            if !self.accept(b',') {
                break;
            }
        }
        self.expect(b')')?;
        let bytes = formals.iter().fold(0u64, |sum, formal| sum.saturating_add(formal.size));
        if formals.len() > MAX_FORMALS || bytes > MAX_BYTES {
            let message = format!("{} parameters of {bytes} bytes are too many", formals.len());
            return Err(self.source.error(span, message));
        }
        Ok(formals)
    }

    /// `.param .align 8 .b8 name[24]` or `.reg .b32 name`.
    fn formal(&mut self) -> Result<Formal<'a>, ParseError> {
        if self.accept_dotted("reg") {
            let (ty, class) = self.register_type()?;
            let name = self.name("a register name")?;
            let size = match class {
                Class::Predicate => {
                    return Err(self.source.error(name.span, "a predicate cannot be passed to a function"));
                }
                Class::Half => 2,
                Class::Word => 4,
                Class::Double => 8,
            };
            return Ok(Formal { name, size, align: size, register: Some((ty, class)) });
        }
        if !self.accept_dotted("param") {
            return Err(self.expected("`.param` or `.reg`"));
        }
        let (mut element, mut align, mut pointer) = (None, None, false);
        while let Kind::Dotted(word) = self.kind() {
            let span = self.span();
            self.advance();
            match word {
                // The alignment after `.ptr` is that of what the pointer points to.
                "align" if pointer => drop(self.alignment()?),
                "align" => align = Some(self.alignment()?),
                "ptr" => pointer = true,
                "global" | "shared" | "const" | "local" if pointer => {}
                _ => match type_size(word) {
                    Some(size) => element = Some(size),
                    None => return Err(self.source.error(span, format!("`.{word}` is not a type"))),
                },
            }
        }
        let Some(element) = element else { return Err(self.expected("a type")) };
        let name = self.name("a parameter name")?;
        let mut size = element;
        while self.accept(b'[') {
            if self.kind() == Kind::Symbol(b']') {
                let message = "a function with any number of parameters is not supported";
                return Err(self.source.error(name.span, message));
            }
            size = size.saturating_mul(self.integer("a number of elements")?);
            self.expect(b']')?;
        }
        Ok(Formal { name, size, align: align.unwrap_or(element), register: None })
    }

    /// What stands behind `name:`, from `.callprototype` on.
    pub(super) fn prototype(&mut self, scope: u32, name: Name<'a>) -> Result<Prototype<'a>, ParseError> {
        self.advance();
        let results = self.formals()?;
        self.name("`_`")?;
        let parameters = self.formals()?;
        self.function_attributes()?;
        self.expect(b';')?;
        Ok(Prototype { scope, name, results, parameters })
    }

    /// The operands of a `call`: `(result), target, (argument, …), prototype`, of which only the target must be
    /// there.
    pub(super) fn call(&mut self) -> Result<Call<'a>, ParseError> {
        let mut results = Vec::new();
        if self.kind() == Kind::Symbol(b'(') {
            results = self.passed()?;
            self.expect(b',')?;
        }
        let target = self.name("a function or a register")?;
        let mut call = Call { results, target, arguments: Vec::new(), prototype: None };
        if self.accept(b',') {
            if self.kind() == Kind::Symbol(b'(') {
                call.arguments = self.passed()?;
                if !self.accept(b',') {
                    return Ok(call);
                }
            }
            call.prototype = Some(self.name("a prototype or a list of functions")?);
        }
        Ok(call)
    }

    /// Operands in parentheses.
    fn passed(&mut self) -> Result<Vec<Operand<'a>>, ParseError> {
        self.expect(b'(')?;
        let mut operands = Vec::new();
        if self.accept(b')') {
            return Ok(operands);
        }
        loop {
            operands.push(self.operand()?);
            if !self.accept(b',') {
                self.expect(b')')?;
                return Ok(operands);
            }
        }
    }
}
