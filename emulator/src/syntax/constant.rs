//! Constant expressions: numbers, `WARP_SZ`, parentheses, casts, and the operators of C.
//!
//! Integers have 64 bits and are signed, unless they end in `U` or do not fit; one unsigned operand makes an
//! operation
//! unsigned. Numbers written by their bits (`0f3F800000`) of single precision take a sign, but no other operator.

use super::ast::Span;
use super::lexer::Kind;
use super::parser::Parser;
use crate::error::ParseError;

/// Parentheses, signs and choices within each other, at most.
const MAX_DEPTH: u32 = 64;

/// What a constant expression gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Signed(i64),
    Unsigned(u64),
    Single(u32),
    Double(f64),
}

/// An operator between two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Multiply,
    Divide,
    Remainder,
    Add,
    Subtract,
    ShiftLeft,
    ShiftRight,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
    And,
    Xor,
    Or,
    Both,
    Either,
}

impl Value {
    /// The bits of an integer.
    pub(super) fn integer(self) -> Option<u64> {
        match self {
            Self::Signed(value) => Some(value.cast_unsigned()),
            Self::Unsigned(value) => Some(value),
            Self::Single(_) | Self::Double(_) => None,
        }
    }

    fn is_true(self) -> bool {
        match self {
            Self::Signed(value) => value != 0,
            Self::Unsigned(value) => value != 0,
            Self::Single(bits) => f32::from_bits(bits) != 0.0,
            Self::Double(value) => value != 0.0,
        }
    }

    fn as_double(self) -> Option<f64> {
        match self {
            Self::Signed(value) => Some(value as f64),
            Self::Unsigned(value) => Some(value as f64),
            Self::Double(value) => Some(value),
            Self::Single(_) => None,
        }
    }
}

impl<'a> Parser<'_, 'a> {
    /// Whether a constant expression begins here.
    pub(super) fn at_constant(&self) -> bool {
        let operand = |kind: Kind<'_>| match kind {
            Kind::Name(name) => name == "WARP_SZ",
            Kind::Integer(_) | Kind::Single(_) | Kind::Double(_) => true,
            Kind::Symbol(symbol) => matches!(symbol, b'(' | b'-' | b'~' | b'+' | b'!'),
            _ => false,
        };
        match self.kind() {
            Kind::Symbol(b'!') => operand(self.kind_ahead(1)),
            kind => operand(kind),
        }
    }

    /// A whole constant expression.
    pub(super) fn constant(&mut self) -> Result<Value, ParseError> {
        self.choice(0)
    }

    /// A constant expression that continues a sum: what stands behind a name with an offset.
    pub(super) fn offset(&mut self) -> Result<i64, ParseError> {
        let span = self.span();
        let zero = Value::Signed(0);
        match self.behind(zero, Operator::Add.rank(), 0)?.integer() {
            Some(value) => Ok(value.cast_signed()),
            None => Err(self.source.error(span, "an offset must be an integer")),
        }
    }

    /// `condition ? a : b`, or what stands there without a choice.
    fn choice(&mut self, depth: u32) -> Result<Value, ParseError> {
        let condition = self.unary(depth)?;
        let condition = self.behind(condition, 0, depth)?;
        if !self.accept(b'?') {
            return Ok(condition);
        }
        let first = self.choice(depth + 1)?;
        self.expect(b':')?;
        let second = self.choice(depth + 1)?;
        Ok(if condition.is_true() { first } else { second })
    }

    /// What operators of at least this rank make of a value that was read already.
    fn behind(&mut self, mut left: Value, least: u8, depth: u32) -> Result<Value, ParseError> {
        loop {
            let span = self.span();
            let Some((operator, tokens)) = self.operator() else { return Ok(left) };
            if operator.rank() < least {
                return Ok(left);
            }
            (0..tokens).for_each(|_| self.advance());
            let mut right = self.unary(depth)?;
            while let Some((next, _)) = self.operator()
                && next.rank() > operator.rank()
            {
                right = self.behind(right, next.rank(), depth)?;
            }
            left = operator.apply(left, right).map_err(|message| self.source.error(span, message))?;
        }
    }

    fn unary(&mut self, depth: u32) -> Result<Value, ParseError> {
        let span = self.span();
        if depth > MAX_DEPTH {
            return Err(self.source.error(span, "this expression is nested too deeply"));
        }
        let Kind::Symbol(symbol @ (b'-' | b'+' | b'~' | b'!' | b'(')) = self.kind() else {
            return self.number(span);
        };
        self.advance();
        if symbol == b'(' {
            return self.parenthesised(depth + 1);
        }
        let value = self.unary(depth + 1)?;
        match (symbol, value) {
            (b'+', value) => Ok(value),
            (b'-', Value::Signed(value)) => Ok(Value::Signed(value.wrapping_neg())),
            (b'-', Value::Unsigned(value)) => Ok(Value::Unsigned(value.wrapping_neg())),
            (b'-', Value::Single(bits)) => Ok(Value::Single(bits ^ 1 << 31)),
            (b'-', Value::Double(value)) => Ok(Value::Double(-value)),
            (b'~', Value::Signed(value)) => Ok(Value::Signed(!value)),
            (b'~', Value::Unsigned(value)) => Ok(Value::Unsigned(!value)),
            (b'!', value) => Ok(Value::Signed(i64::from(!value.is_true()))),
            _ => Err(self.source.error(span, "`~` takes an integer")),
        }
    }

    /// What follows `(`: a cast and its operand, or an expression and `)`.
    fn parenthesised(&mut self, depth: u32) -> Result<Value, ParseError> {
        let span = self.span();
        let Kind::Dotted(cast @ ("s64" | "u64")) = self.kind() else {
            let value = self.choice(depth)?;
            self.expect(b')')?;
            return Ok(value);
        };
        self.advance();
        self.expect(b')')?;
        let value = self.unary(depth)?;
        match (cast, value) {
            ("s64", Value::Double(value)) => Ok(Value::Signed(value as i64)),
            (_, Value::Double(value)) => Ok(Value::Unsigned(value as u64)),
            (_, Value::Single(_)) => Err(self.source.error(span, "a cast takes an integer or a double")),
            ("s64", value) => Ok(Value::Signed(value.integer().unwrap_or(0).cast_signed())),
            (_, value) => Ok(Value::Unsigned(value.integer().unwrap_or(0))),
        }
    }

    fn number(&mut self, span: Span) -> Result<Value, ParseError> {
        let value = match self.kind() {
            Kind::Integer(value) => match i64::try_from(value) {
                Ok(value) if !self.is_marked_unsigned(span) => Value::Signed(value),
                _ => Value::Unsigned(value),
            },
            Kind::Single(bits) => Value::Single(bits),
            Kind::Double(bits) => Value::Double(f64::from_bits(bits)),
            Kind::Name("WARP_SZ") => Value::Signed(32),
            _ => return Err(self.expected("a number")),
        };
        self.advance();
        Ok(value)
    }

    /// Whether the integer at this place ends in `U`.
    fn is_marked_unsigned(&self, span: Span) -> bool {
        let text = self.source.text.get(span.offset as usize..).unwrap_or_default();
        text.trim_start_matches(|c: char| c.is_ascii_hexdigit() || matches!(c, 'x' | 'X')).starts_with('U')
    }

    /// The operator here, and its tokens.
    fn operator(&self) -> Option<(Operator, usize)> {
        use Operator::{
            Add, And, Both, Divide, Either, Equal, Greater, GreaterEqual, Less, LessEqual, Multiply,
            NotEqual, Or, Remainder, ShiftLeft, ShiftRight, Subtract, Xor,
        };
        let Kind::Symbol(first) = self.kind() else { return None };
        let second = match self.kind_ahead(1) {
            Kind::Symbol(symbol) if self.adjacent() => symbol,
            _ => 0,
        };
        Some(match (first, second) {
            (b'<', b'<') => (ShiftLeft, 2),
            (b'>', b'>') => (ShiftRight, 2),
            (b'<', b'=') => (LessEqual, 2),
            (b'>', b'=') => (GreaterEqual, 2),
            (b'=', b'=') => (Equal, 2),
            (b'!', b'=') => (NotEqual, 2),
            (b'&', b'&') => (Both, 2),
            (b'|', b'|') => (Either, 2),
            (b'*', _) => (Multiply, 1),
            (b'/', _) => (Divide, 1),
            (b'%', _) => (Remainder, 1),
            (b'+', _) => (Add, 1),
            (b'-', _) => (Subtract, 1),
            (b'<', _) => (Less, 1),
            (b'>', _) => (Greater, 1),
            (b'&', _) => (And, 1),
            (b'^', _) => (Xor, 1),
            (b'|', _) => (Or, 1),
            _ => return None,
        })
    }
}

impl Operator {
    /// How strongly it binds, as in C.
    fn rank(self) -> u8 {
        match self {
            Self::Multiply | Self::Divide | Self::Remainder => 10,
            Self::Add | Self::Subtract => 9,
            Self::ShiftLeft | Self::ShiftRight => 8,
            Self::Less | Self::LessEqual | Self::Greater | Self::GreaterEqual => 7,
            Self::Equal | Self::NotEqual => 6,
            Self::And => 5,
            Self::Xor => 4,
            Self::Or => 3,
            Self::Both => 2,
            Self::Either => 1,
        }
    }

    fn apply(self, left: Value, right: Value) -> Result<Value, &'static str> {
        let truth = |holds: bool| Ok(Value::Signed(i64::from(holds)));
        match self {
            Self::Both => return truth(left.is_true() && right.is_true()),
            Self::Either => return truth(left.is_true() || right.is_true()),
            _ => {}
        }
        match (left, right) {
            (Value::Single(_), _) | (_, Value::Single(_)) => {
                Err("a number written by the bits of single precision takes no operator but a sign")
            }
            (Value::Double(_), _) | (_, Value::Double(_)) => {
                self.on_doubles(left.as_double().unwrap_or(0.0), right.as_double().unwrap_or(0.0))
            }
            (Value::Signed(left), Value::Signed(right)) => self.on_signed(left, right),
            // The type of a shift is that of what is shifted.
            (Value::Signed(left), right) if matches!(self, Self::ShiftLeft | Self::ShiftRight) => {
                self.on_signed(left, right.integer().unwrap_or(0).min(64).cast_signed())
            }
            (left, right) => self.on_unsigned(left.integer().unwrap_or(0), right.integer().unwrap_or(0)),
        }
    }

    fn on_doubles(self, a: f64, b: f64) -> Result<Value, &'static str> {
        match self {
            Self::Multiply => Ok(Value::Double(a * b)),
            Self::Divide => Ok(Value::Double(a / b)),
            Self::Add => Ok(Value::Double(a + b)),
            Self::Subtract => Ok(Value::Double(a - b)),
            _ => match a.partial_cmp(&b) {
                _ if self.rank() < 6 || self.rank() > 7 => Err("this operator takes integers"),
                Some(order) => Ok(Value::Signed(i64::from(self.holds(order)))),
                None => Ok(Value::Signed(i64::from(self == Self::NotEqual))),
            },
        }
    }

    fn on_signed(self, a: i64, b: i64) -> Result<Value, &'static str> {
        Ok(Value::Signed(match self {
            Self::Multiply => a.wrapping_mul(b),
            Self::Divide if b == 0 => return Err("a division by zero"),
            Self::Remainder if b == 0 => return Err("a division by zero"),
            Self::Divide => a.wrapping_div(b),
            Self::Remainder => a.wrapping_rem(b),
            Self::Add => a.wrapping_add(b),
            Self::Subtract => a.wrapping_sub(b),
            Self::ShiftLeft => u32::try_from(b).ok().and_then(|b| a.checked_shl(b)).unwrap_or(0),
            Self::ShiftRight => a >> b.clamp(0, 63),
            Self::And => a & b,
            Self::Xor => a ^ b,
            Self::Or => a | b,
            _ => i64::from(self.holds(a.cmp(&b))),
        }))
    }

    fn on_unsigned(self, a: u64, b: u64) -> Result<Value, &'static str> {
        let shift = u32::try_from(b).unwrap_or(u32::MAX);
        Ok(Value::Unsigned(match self {
            Self::Multiply => a.wrapping_mul(b),
            Self::Divide => a.checked_div(b).ok_or("a division by zero")?,
            Self::Remainder => a.checked_rem(b).ok_or("a division by zero")?,
            Self::Add => a.wrapping_add(b),
            Self::Subtract => a.wrapping_sub(b),
            Self::ShiftLeft => a.checked_shl(shift).unwrap_or(0),
            Self::ShiftRight => a.checked_shr(shift).unwrap_or(0),
            Self::And => a & b,
            Self::Xor => a ^ b,
            Self::Or => a | b,
            _ => return Ok(Value::Signed(i64::from(self.holds(a.cmp(&b))))),
        }))
    }

    /// Whether a comparison holds for operands of this order.
    fn holds(self, order: std::cmp::Ordering) -> bool {
        match self {
            Self::Less => order.is_lt(),
            Self::LessEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterEqual => order.is_ge(),
            Self::Equal => order.is_eq(),
            _ => order.is_ne(),
        }
    }
}
