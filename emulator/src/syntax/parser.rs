//! The grammar of instructions and bodies. Declarations are in `directives`.

use super::Source;
use super::ast::{Body, Entry, Instruction, Label, Module, Name, Operand, OperandKind, Span, Targets};
use super::lexer::{Kind, Token, tokens};
use crate::error::ParseError;

/// Braces deeper than this are refused; real code has two or three.
const MAX_DEPTH: usize = 256;

pub(super) struct Parser<'s, 'a> {
    pub(super) source: &'s Source<'a>,
    tokens: Vec<Token<'a>>,
    at: usize,
    location: Option<(u32, u32)>,
}

impl<'s, 'a> Parser<'s, 'a> {
    pub(super) fn new(source: &'s Source<'a>) -> Result<Self, ParseError> {
        Ok(Self { source, tokens: tokens(source)?, at: 0, location: None })
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

    fn kind_ahead(&self, ahead: usize) -> Kind<'a> {
        self.tokens.get(self.at + ahead).map_or(Kind::End, |token| token.kind)
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

    pub(super) fn integer(&mut self, what: &str) -> Result<u64, ParseError> {
        let Kind::Integer(value) = self.kind() else { return Err(self.expected(what)) };
        self.advance();
        Ok(value)
    }

    /// A signed offset, after its sign if it has one.
    pub(super) fn signed(&mut self) -> Result<i64, ParseError> {
        let negative = self.accept(b'-');
        let span = self.span();
        let value = self.integer("an integer")?;
        let value = if negative { 0i64.checked_sub_unsigned(value) } else { i64::try_from(value).ok() };
        value.ok_or_else(|| self.source.error(span, "this offset does not fit in 64 bits"))
    }

    /// The body of an entry, from its `{` on.
    pub(super) fn body(&mut self, entry: &mut Entry<'a>, module: &mut Module<'a>) -> Result<(), ParseError> {
        let open = self.span();
        self.expect(b'{')?;
        let body = &mut entry.body;
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
        if self.accept_dotted("branchtargets") {
            let mut labels = vec![self.name("a label")?];
            while self.accept(b',') {
                labels.push(self.name("a label")?);
            }
            self.expect(b';')?;
            body.targets.push(Targets { scope, name, labels });
        } else {
            body.labels.push(Label { scope, name, instruction: body.instructions.len() });
        }
        Ok(())
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
        if self.kind() != Kind::Symbol(b';') {
            if opcode.text == "call" {
                return Err(self.source.error(
                    opcode.span,
                    "the emulator does not run `call`: every function must be inlined into its kernel",
                ));
            }
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
            location,
        })
    }

    fn operand(&mut self) -> Result<Operand<'a>, ParseError> {
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
                    Kind::Name(_) => {
                        let base = self.name("a register or a variable")?;
                        let offset = match self.kind() {
                            Kind::Symbol(b'+') => {
                                self.advance();
                                self.signed()?
                            }
                            Kind::Symbol(b'-') => self.signed()?,
                            _ => 0,
                        };
                        (Some(base), offset)
                    }
                    Kind::Integer(_) => (None, self.integer("an address")?.cast_signed()),
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
            Kind::Symbol(b'!') => {
                self.advance();
                OperandKind::Not(self.name("a predicate register")?)
            }
            Kind::Symbol(b'-') => {
                self.advance();
                let kind = match self.kind() {
                    Kind::Integer(value) => OperandKind::Integer(value.wrapping_neg()),
                    Kind::Single(bits) => OperandKind::Single(bits ^ 1 << 31),
                    Kind::Double(bits) => OperandKind::Double(bits ^ 1 << 63),
                    _ => return Err(self.expected("a number")),
                };
                self.advance();
                kind
            }
            Kind::Integer(value) => {
                self.advance();
                OperandKind::Integer(value)
            }
            Kind::Single(bits) => {
                self.advance();
                OperandKind::Single(bits)
            }
            Kind::Double(bits) => {
                self.advance();
                OperandKind::Double(bits)
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
                    Kind::Symbol(b'+') => {
                        self.advance();
                        OperandKind::Offset(text, self.signed()?)
                    }
                    Kind::Symbol(b'-') => OperandKind::Offset(text, self.signed()?),
                    _ => OperandKind::Name(text),
                }
            }
            _ => return Err(self.expected("an operand")),
        };
        Ok(Operand { span, kind })
    }
}
