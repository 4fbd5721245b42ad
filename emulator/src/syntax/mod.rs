//! From text to a syntax tree: the part that knows PTX's grammar and nothing of its instructions.
//!
//! `lexer` cuts the text into tokens with positions, `parser`, `directives`, `functions` and `constant` build
//! the tree of `ast`. Names are resolved and
//! instructions understood later, in `ir`.

pub(crate) mod ast;
mod constant;
mod directives;
mod functions;
mod lexer;
mod parser;

use crate::error::ParseError;
use ast::Span;

/// Parses a module.
pub(crate) fn parse<'a>(source: &Source<'a>) -> Result<ast::Module<'a>, ParseError> {
    parser::Parser::new(source)?.module()
}

/// A text and the name it goes by in messages.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) file: &'a str,
    pub(crate) text: &'a str,
}

impl Source<'_> {
    /// An error at a place in the text.
    pub(crate) fn error(&self, span: Span, message: impl Into<String>) -> ParseError {
        let start = (span.offset as usize).min(self.text.len());
        let before = self.text.as_bytes().get(..start).unwrap_or_default();
        let line_start = before.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
        let line = before.iter().filter(|&&b| b == b'\n').count() as u32 + 1;
        let column = String::from_utf8_lossy(&before[line_start..]).chars().count() as u32 + 1;
        ParseError { file: self.file.to_owned(), line, column, message: message.into() }
    }
}
