//! The grammar of instructions and bodies. Declarations are in `directives`.

use std::collections::HashMap;

use super::Source;
use super::ast::{Body, Instruction, Label, Module, Name, Operand, OperandKind, Span, Targets};
use super::constant::Value;
use super::lexer::{Kind, Token, tokens};
use crate::error::ParseError;

/// Braces deeper than this are refused; real code has two or three.
const MAX_DEPTH: usize = 256;

pub(super) struct Parser<'s, 'a> {
    pub(super) source: &'s Source<'a>,
    tokens: Vec<Token<'a>>,
    at: usize,
    location: Option<(u32, u32)>,
    /// The positions of functions among the module's, by name.
    pub(super) functions: HashMap<&'a str, usize>,
}

impl<'s, 'a> Parser<'s, 'a> {
    pub(super) fn new(source: &'s Source<'a>) -> Result<Self, ParseError> {
        Ok(Self { source, tokens: tokens(source)?, at: 0, location: None, functions: HashMap::new() })
    }

    pub(super) fn module(mut self) -> Result<Module<'a>, ParseError> {
        let mut module = Module::default();
        self.header(&mut module)?;
        while self.kind() != Kind::End {
            self.module_item(&mut module)?;
        }
        Ok(module)
    }

    pub(super) fn kind(&self) -> Kind<'a> {
        self.tokens[self.at].kind
    }

    pub(super) fn span(&self) -> Span {
        self.tokens[self.at].span
    }

    pub(super) fn kind_ahead(&self, ahead: usize) -> Kind<'a> {
        self.tokens.get(self.at + ahead).map_or(Kind::End, |token| token.kind)
    }

    /// Whether the next token follows this one, a symbol, without a blank.
    pub(super) fn adjacent(&self) -> bool {
        self.tokens.get(self.at + 1).is_some_and(|next| next.span.offset == self.span().offset + 1)
    }

    /// The text of the token here and what is between it and the next.
    pub(super) fn token_text(&self) -> &'a str {
        let end = self.tokens.get(self.at + 1).map_or(self.source.text.len(), |t| t.span.offset as usize);
        self.source.text.get(self.span().offset as usize..end).unwrap_or_default().trim()
    }

    pub(super) fn advance(&mut self) {
        // The last token is the end, and stays.
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    /// An error that the token here is not what was expected.
    pub(super) fn expected(&self, what: &str) -> ParseError {
        self.source.error(self.span(), format!("expected {what}, found {}", self.kind().describe()))
    }

    pub(super) fn accept(&mut self, symbol: u8) -> bool {
        let found = self.kind() == Kind::Symbol(symbol);
        if found {
            self.advance();
        }
        found
    }

    pub(super) fn expect(&mut self, symbol: u8) -> Result<(), ParseError> {
        if self.accept(symbol) { Ok(()) } else { Err(self.expected(&format!("`{}`", symbol as char))) }
    }

    pub(super) fn name(&mut self, what: &str) -> Result<Name<'a>, ParseError> {
        let span = self.span();
        let Kind::Name(text) = self.kind() else { return Err(self.expected(what)) };
        self.advance();
        Ok(Name { text, span })
    }

    pub(super) fn dotted(&mut self, what: &str) -> Result<&'a str, ParseError> {
        let Kind::Dotted(text) = self.kind() else { return Err(self.expected(what)) };
        self.advance();
        Ok(text)
    }

    pub(super) fn accept_dotted(&mut self, text: &str) -> bool {
        let found = matches!(self.kind(), Kind::Dotted(found) if found == text);
        if found {
            self.advance();
        }
        found
    }

    /// An integer as it stands, without operators.
    pub(super) fn literal(&mut self, what: &str) -> Result<u64, ParseError> {
        let Kind::Integer(value) = self.kind() else { return Err(self.expected(what)) };
        self.advance();
        Ok(value)
    }

    /// A constant expression that gives an integer.
    pub(super) fn integer(&mut self, what: &str) -> Result<u64, ParseError> {
        if !self.at_constant() {
            return Err(self.expected(what));
        }
        let span = self.span();
        self.constant()?.integer().ok_or_else(|| self.source.error(span, format!("expected {what}")))
    }

    /// The body of an entry or a function, from its `{` on.
    pub(super) fn body(&mut self, body: &mut Body<'a>, module: &mut Module<'a>) -> Result<(), ParseError> {
        let open = self.span();
        self.expect(b'{')?;
        body.parents = vec![0, 0];
        let mut open_scopes = vec![1u32];
        self.location = None;
        while let Some(&scope) = open_scopes.last() {
            match self.kind() {
                Kind::End => return Err(self.source.error(open, "this body has no end: expected `}`")),
                Kind::Symbol(b'{') => {
                    if open_scopes.len() >= MAX_DEPTH {
                        return Err(self.source.error(self.span(), "braces are nested too deeply"));
                    }
                    self.advance();
                    open_scopes.push(body.parents.len() as u32);
                    body.parents.push(scope);
                }
                Kind::Symbol(b'}') => {
                    self.advance();
                    open_scopes.pop();
                }
                Kind::Symbol(b';') => self.advance(),
                Kind::Name(_) if self.kind_ahead(1) == Kind::Symbol(b':') => self.label(body, scope)?,
                Kind::Name(_) | Kind::Symbol(b'@') => {
                    let instruction = self.instruction(scope)?;
                    body.instructions.push(instruction);
                }
                Kind::Dotted("loc") => self.location = self.loc()?,
                Kind::Dotted(_) => self.body_directive(body, scope, module)?,
                _ => return Err(self.expected("an instruction, a label or a declaration")),
            }
        }
        Ok(())
    }

    fn label(&mut self, body: &mut Body<'a>, scope: u32) -> Result<(), ParseError> {
        let name = self.name("a label")?;
        self.expect(b':')?;
        match self.kind() {
            Kind::Dotted("branchtargets") => {
                let labels = self.names("a label")?;
                body.targets.push(Targets { scope, name, labels });
            }
            Kind::Dotted("calltargets") => {
                let labels = self.names("a function")?;
                body.callees.push(Targets { scope, name, labels });
            }
            Kind::Dotted("callprototype") => {
                let prototype = self.prototype(scope, name)?;
                body.prototypes.push(prototype);
            }
            _ => body.labels.push(Label { scope, name, instruction: body.instructions.len() }),
        }
        Ok(())
    }

    /// The list behind `.branchtargets` or `.calltargets`.
    fn names(&mut self, what: &str) -> Result<Vec<Name<'a>>, ParseError> {
        self.advance();
        let mut names = vec![self.name(what)?];
        while self.accept(b',') {
            names.push(self.name(what)?);
        }
        self.expect(b';')?;
        Ok(names)
    }

    fn instruction(&mut self, scope: u32) -> Result<Instruction<'a>, ParseError> {
        let mut guard = None;
        if self.accept(b'@') {
            let negated = self.accept(b'!');
            guard = Some((self.name("a predicate register")?, negated));
        }
        let opcode = self.name("an opcode")?;
        let mut modifiers = Vec::new();
        while let Kind::Dotted(modifier) = self.kind() {
            modifiers.push(modifier);
            self.advance();
        }
        let mut operands = Vec::new();
        let mut call = None;
        if opcode.text == "call" {
            call = Some(Box::new(self.call()?));
        } else if self.kind() != Kind::Symbol(b';') {
            operands.push(self.operand()?);
            while self.accept(b',') {
                operands.push(self.operand()?);
            }
        }
        if !self.accept(b';') {
            return Err(self.expected("`,` or `;` after an operand"));
        }
        let location = self.location;
        Ok(Instruction {
            scope,
            span: opcode.span,
            guard,
            opcode: opcode.text,
            modifiers,
            operands,
            call,
            location,
        })
    }

    pub(super) fn operand(&mut self) -> Result<Operand<'a>, ParseError> {
        let span = self.span();
        let first = self.single_operand(true)?;
        if self.accept(b'|') {
            let second = self.single_operand(false)?;
            return Ok(Operand { span, kind: OperandKind::Pair(Box::new((first, second))) });
        }
        Ok(first)
    }

    /// Operands in braces.
    fn vector(&mut self) -> Result<Vec<Operand<'a>>, ParseError> {
        self.expect(b'{')?;
        let mut elements = vec![self.single_operand(false)?];
        while self.accept(b',') {
            elements.push(self.single_operand(false)?);
        }
        self.expect(b'}')?;
        Ok(elements)
    }

    fn single_operand(&mut self, vectors: bool) -> Result<Operand<'a>, ParseError> {
        let span = self.span();
        let kind = match self.kind() {
            Kind::Symbol(b'{') if vectors => OperandKind::Vector(self.vector()?),
            Kind::Symbol(b'[') if vectors => {
                self.advance();
                let (base, offset) = match self.kind() {
                    Kind::Name(name) if name != "WARP_SZ" => {
                        let base = self.name("a register or a variable")?;
                        (Some(base), self.offset()?)
                    }
                    _ if self.at_constant() => (None, self.integer("an address")?.cast_signed()),
                    _ => return Err(self.expected("a register, a variable or an address")),
                };
                let address = OperandKind::Memory(base, offset);
                if self.accept(b',') {
                    let coordinates = self.vector()?;
                    self.expect(b']')?;
                    OperandKind::Tensor(Box::new(Operand { span, kind: address }), coordinates)
                } else {
                    self.expect(b']')?;
                    address
                }
            }
            _ if self.at_constant() => match self.constant()? {
                Value::Signed(value) => OperandKind::Integer(value.cast_unsigned()),
                Value::Unsigned(value) => OperandKind::Integer(value),
                Value::Single(bits) => OperandKind::Single(bits),
                Value::Double(value) => OperandKind::Double(value.to_bits()),
            },
            Kind::Symbol(b'!') => {
                self.advance();
                OperandKind::Not(self.name("a predicate register")?)
            }
            Kind::Name("_") => {
                self.advance();
                OperandKind::Sink
            }
            Kind::Name(text) => {
                self.advance();
                match self.kind() {
                    Kind::Dotted(component) => {
                        self.advance();
                        OperandKind::Component(text, component)
                    }
                    Kind::Symbol(b'+' | b'-') => OperandKind::Offset(text, self.offset()?),
                    _ => OperandKind::Name(text),
                }
            }
            _ => return Err(self.expected("an operand")),
        };
        Ok(Operand { span, kind })
    }
}
