//! Cuts PTX text into tokens.

use super::Source;
use super::ast::Span;
use crate::error::ParseError;

/// A token and where it starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind<'a>,
    pub(super) span: Span,
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind<'a> {
    /// A name, `%` and `$` included.
    Name(&'a str),
    /// A dot and the name after it, without the dot: a directive, a modifier or a component.
    Dotted(&'a str),
    /// An integer literal.
    Integer(u64),
    /// A floating-point literal, by its bits and its type.
    Single(u32),
    /// As above, in double precision.
    Double(u64),
    /// A string, without its quotes.
    Text(&'a str),
    /// A character that stands for itself.
    Symbol(u8),
    /// The end of the text.
    End,
}

impl Kind<'_> {
    /// How the token is shown in a message.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Name(name) => format!("`{name}`"),
            Self::Dotted(name) => format!("`.{name}`"),
            Self::Integer(value) => format!("`{value}`"),
            Self::Single(bits) => format!("`0f{bits:08X}`"),
            Self::Double(bits) => format!("`0d{bits:016X}`"),
            Self::Text(_) => "a string".to_owned(),
            Self::Symbol(symbol) => format!("`{}`", symbol as char),
            Self::End => "the end of the text".to_owned(),
        }
    }
}

/// Longer texts are refused: a token takes more memory than its text.
const MAX_TEXT: usize = 32 << 20;

/// All tokens of a text, with [`Kind::End`] last.
pub(super) fn tokens<'a>(source: &Source<'a>) -> Result<Vec<Token<'a>>, ParseError> {
    if source.text.len() > MAX_TEXT {
        let message = format!("the text has {} bytes, more than 32 MiB", source.text.len());
        return Err(source.error(Span { line: 1, offset: 0 }, message));
    }
    let mut lexer = Lexer { source, at: 0, line: 1 };
    let mut tokens = Vec::with_capacity(source.text.len() / 5);
    loop {
        let token = lexer.next()?;
        tokens.push(token);
        if token.kind == Kind::End {
            return Ok(tokens);
        }
    }
}

struct Lexer<'s, 'a> {
    source: &'s Source<'a>,
    at: usize,
    line: u32,
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$'
}

impl<'a> Lexer<'_, 'a> {
    fn peek(&self, ahead: usize) -> u8 {
        self.source.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn is_behind_name(&self) -> bool {
        self.at.checked_sub(1).is_some_and(|before| is_name(self.source.text.as_bytes()[before]))
    }

    fn span(&self) -> Span {
        Span { line: self.line, offset: self.at as u32 }
    }

    fn slice(&self, start: usize) -> &'a str {
        self.source.text.get(start..self.at).unwrap_or_default()
    }

    fn take_while(&mut self, accept: impl Fn(u8) -> bool) {
        while self.at < self.source.text.len() && accept(self.peek(0)) {
            self.at += 1;
        }
    }

    fn skip_blank(&mut self) -> Result<(), ParseError> {
        loop {
            match (self.peek(0), self.peek(1)) {
                (b'\n', _) => {
                    self.line += 1;
                    self.at += 1;
                }
                (b' ' | b'\t' | b'\r', _) => self.at += 1,
                (b'/', b'/') => self.take_while(|b| b != b'\n'),
                (b'/', b'*') => {
                    let start = self.span();
                    let Some(length) =
                        self.source.text.as_bytes()[self.at + 2..].windows(2).position(|w| w == b"*/")
                    else {
                        return Err(self.source.error(start, "this comment has no end: expected `*/`"));
                    };
                    let end = self.at + 2 + length + 2;
                    self.line +=
                        self.source.text.as_bytes()[self.at..end].iter().filter(|&&b| b == b'\n').count()
                            as u32;
                    self.at = end;
                }
                _ => return Ok(()),
            }
        }
    }

    fn next(&mut self) -> Result<Token<'a>, ParseError> {
        self.skip_blank()?;
        let span = self.span();
        let start = self.at;
        let kind = match self.peek(0) {
            _ if self.at >= self.source.text.len() => Kind::End,
            b'0'..=b'9' => self.number()?,
            // Behind a name it is a modifier, such as `.2d`.
            b'.' if self.peek(1).is_ascii_digit() && !self.is_behind_name() => self.number()?,
            b'.' => {
                self.at += 1;
                self.take_while(is_name);
                // State spaces and cache hints have a part after `::`.
                while self.peek(0) == b':' && self.peek(1) == b':' && is_name(self.peek(2)) {
                    self.at += 2;
                    self.take_while(is_name);
                }
                if self.at == start + 1 {
                    return Err(self.source.error(span, "expected a name after `.`"));
                }
                Kind::Dotted(self.slice(start + 1))
            }
            b'"' => {
                self.at += 1;
                self.take_while(|b| b != b'"' && b != b'\n');
                if self.peek(0) != b'"' {
                    return Err(self.source.error(span, "this string has no end: expected `\"`"));
                }
                let text = self.slice(start + 1);
                self.at += 1;
                Kind::Text(text)
            }
            b'%' if is_name(self.peek(1)) => {
                self.at += 1;
                self.take_while(is_name);
                Kind::Name(self.slice(start))
            }
            byte if is_name(byte) => {
                self.take_while(is_name);
                Kind::Name(self.slice(start))
            }
            symbol @ (b',' | b';' | b':' | b'(' | b')' | b'[' | b']' | b'{' | b'}' | b'<' | b'>' | b'='
            | b'+' | b'-' | b'|' | b'!' | b'@' | b'*' | b'/' | b'%' | b'&' | b'^' | b'~' | b'?') => {
                self.at += 1;
                Kind::Symbol(symbol)
            }
            _ => {
                let found = self.source.text[start..].chars().next().unwrap_or(' ');
                return Err(self.source.error(span, format!("PTX has no character {found:?}")));
            }
        };
        Ok(Token { kind, span })
    }

    fn number(&mut self) -> Result<Kind<'a>, ParseError> {
        let span = self.span();
        let start = self.at;
        let error = |what: &str| Err(self.source.error(span, what));
        if let (b'0', b'f' | b'F' | b'd' | b'D') = (self.peek(0), self.peek(1)) {
            let double = matches!(self.peek(1), b'd' | b'D');
            self.at += 2;
            self.take_while(|b| b.is_ascii_hexdigit());
            let digits = self.slice(start + 2);
            let expected = if double { 16 } else { 8 };
            let Ok(bits) = u64::from_str_radix(digits, 16) else {
                return Err(self.source.error(span, "expected hexadecimal digits"));
            };
            if digits.len() != expected || is_name(self.peek(0)) {
                return Err(self.source.error(span, format!("expected {expected} hexadecimal digits")));
            }
            return Ok(if double { Kind::Double(bits) } else { Kind::Single(bits as u32) });
        }
        let (radix, prefix) = match (self.peek(0), self.peek(1)) {
            (b'0', b'x' | b'X') => (16, 2),
            (b'0', b'b' | b'B') => (2, 2),
            (b'0', b'0'..=b'7') => (8, 1),
            _ => (10, 0),
        };
        self.at += prefix;
        let digits = self.at;
        self.take_while(|b| b.is_ascii_hexdigit() && (radix == 16 || b.is_ascii_digit()));
        let (dot, exponent) = (self.peek(0) == b'.', matches!(self.peek(0), b'e' | b'E'));
        if radix != 16 && prefix != 2 && (dot || exponent) {
            if dot {
                self.at += 1;
                self.take_while(|b| b.is_ascii_digit());
            }
            if matches!(self.peek(0), b'e' | b'E') {
                self.at += 1;
                if matches!(self.peek(0), b'+' | b'-') {
                    self.at += 1;
                }
                self.take_while(|b| b.is_ascii_digit());
            }
            return match self.slice(start).parse::<f64>() {
                Ok(value) => Ok(Kind::Double(value.to_bits())),
                Err(_) => error("this is not a number"),
            };
        }
        let value = u64::from_str_radix(self.slice(digits), radix);
        if self.peek(0) == b'U' {
            self.at += 1;
        }
        match value {
            Ok(value) if !is_name(self.peek(0)) => Ok(Kind::Integer(value)),
            _ => Err(self.source.error(span, "expected an integer of at most 64 bits")),
        }
    }
}
