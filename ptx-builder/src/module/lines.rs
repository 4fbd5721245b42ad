//! What a line of PTX says, without what is around it.

use std::path::{Path, PathBuf};

/// Whether a line of a function's body carries nothing: a comment (the kernel's marks are lifted before), a label of debug ranges.
pub(super) fn is_debris(text: &str) -> bool {
    let label = |prefix: &str| {
        let number = text.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(':'));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    text.starts_with("//") || label("$L__tmp") || label("$L__func_begin") || label("$L__func_end")
}

/// The number of a `.file` line and its path, in quotes.
pub(crate) fn file_directive(line: &str) -> Option<(&str, &str)> {
    line.trim_start().strip_prefix(".file")?.trim_start().split_once(char::is_whitespace)
}

/// The symbols that a line outside functions declares; `None` if it is no declaration.
pub(super) fn declared(line: &str) -> Option<impl Iterator<Item = &str>> {
    const SPACES: [&str; 3] = [".shared", ".global", ".const"];
    let declaration = code(line).split('=').next().unwrap_or_default();
    let mut words = declaration.split_whitespace();
    words.any(|word| SPACES.contains(&word)).then(|| {
        let names = declaration.split_whitespace().filter(|word| !word.starts_with('.'));
        names.flat_map(identifiers)
    })
}

/// Whether a line is a label and nothing else.
pub(super) fn is_label(text: &str) -> bool {
    let name = text.strip_suffix(':');
    name.is_some_and(|name| identifiers(name).next() == Some(name))
}

/// What a `.loc` line says. The column is left out: it tells the instructions of a line apart for no reader.
#[derive(PartialEq, Eq)]
pub(super) struct Position {
    pub(super) file: String,
    pub(super) line: String,
    /// Where the function is inlined, if the line says so.
    pub(super) inlined: String,
}

pub(super) fn position(line: &str) -> Option<Position> {
    let mut words = line.trim_start().strip_prefix(".loc")?.split_whitespace();
    let mut next = || words.next().unwrap_or_default().trim_end_matches(',').to_owned();
    let (file, line, _column) = (next(), next(), next());
    Some(Position { file, line, inlined: words.collect::<Vec<_>>().join(" ") })
}

/// A `.file` line with its path relative to the first of `folders` that holds it.
pub(super) fn relative(file: &str, folders: &[(PathBuf, String)]) -> String {
    let Some((number, path)) = file.split_once('"') else { return file.to_owned() };
    let path = Path::new(path.trim_end_matches('"'));
    let inside = folders.iter().find_map(|(folder, prefix)| {
        let parts: Vec<_> =
            path.strip_prefix(folder).ok()?.iter().map(|part| part.to_string_lossy()).collect();
        Some(format!("{number}\"{prefix}{}\"", parts.join("/")))
    });
    inside.unwrap_or_else(|| file.to_owned())
}

/// The part of a line before its comment.
pub(crate) fn code(line: &str) -> &str {
    line.find("//").map_or(line, |comment| &line[..comment])
}

/// The identifiers of a line, registers and directives' names among them.
pub(crate) fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !(character.is_ascii_alphanumeric() || "_$%".contains(character)))
        .filter(|word| word.starts_with(|first: char| first.is_ascii_alphabetic() || "_$%".contains(first)))
}
