//! The text of one entry of a PTX module, cut into statements that can be replaced.
//!
//! This is no parser: the emulator's decides what is PTX. It only finds where statements begin and end, which is all that
//! is needed to change one and leave every other byte as it ships.

use std::collections::HashMap;
use std::ops::Range;

/// One entry of a module, with what of the module it needs.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Everything of the module that is no entry.
    header: String,
    /// Its text, from `.visible .entry` to the closing brace.
    text: String,
    /// The module's `.file` directives.
    files: HashMap<u32, String>,
    /// The instructions, in order.
    pub(crate) statements: Vec<Statement>,
    /// The labels by their scope and name, each with the index of the statement that follows it.
    labels: HashMap<(usize, String), usize>,
    /// The labels that an indexed branch chooses from, by the scope and the name of the list.
    tables: HashMap<(usize, String), Vec<String>>,
    /// The scope around each scope; the body is its own.
    scopes: Vec<usize>,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Statement {
    /// Where it stands in the entry's text, from its guard to its semicolon.
    pub(crate) range: Range<usize>,
    /// Its line in the module, from 1.
    pub(crate) line: u32,
    /// The predicate that it depends on, and whether negated.
    pub(crate) guard: Option<(String, bool)>,
    /// The opcode with its modifiers.
    pub(crate) opcode: String,
    /// The operands; one in braces or brackets is one operand.
    pub(crate) operands: Vec<String>,
    /// The file's number and the line of the `.loc` before it.
    pub(crate) location: Option<(u32, u32)>,
    /// The block of statements that it is in: labels and registers may belong to one.
    scope: usize,
}

impl Statement {
    /// Whether the opcode is `name`, or `name` with modifiers.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.opcode.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// Whether one of the opcode's modifiers is `name`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.opcode.split('.').skip(1).any(|modifier| modifier == name)
    }

    /// Whether it reads or writes memory that has bounds, other threads see, or both.
    pub(crate) fn accesses_memory(&self) -> bool {
        const ACCESSES: [&str; 9] =
            ["ld", "ldu", "st", "red", "atom", "cp", "ldmatrix", "stmatrix", "multimem"];
        let waits = self.has("wait_group") || self.has("commit_group") || self.has("wait_all");
        ACCESSES.iter().any(|name| self.is(name)) && !self.has("param") && !waits
    }

    /// Whether nothing after it is executed where it is: its path ends or goes elsewhere.
    pub(crate) fn ends_path(&self) -> bool {
        self.guard.is_none() && ["bra", "brx", "ret", "exit", "trap"].iter().any(|name| self.is(name))
    }
}

/// The entries of a module.
#[must_use]
pub(crate) fn entries(module: &str) -> Vec<Entry> {
    const START: &str = ".visible .entry ";
    let mut header = String::new();
    let mut found = Vec::new();
    let mut rest = 0;
    while let Some(start) = module[rest..].find(START).map(|at| rest + at) {
        header.push_str(&module[rest..start]);
        let name = module[start + START.len()..].split(|c: char| c == '(' || c.is_whitespace()).next();
        // An entry is closed by the first brace that begins a line: those inside are indented.
        let end = module[start..].find("\n}").map_or(module.len(), |at| start + at + 2);
        found.push((name.unwrap_or_default(), start, end));
        rest = end;
    }
    header.push_str(&module[rest..]);
    let files = header.lines().filter_map(file_directive).collect::<HashMap<_, _>>();
    found
        .into_iter()
        .map(|(name, start, end)| {
            let text = module[start..end].to_owned();
            let lines_before = module[..start].matches('\n').count() as u32;
            let mut scanner = Scanner::new(&text, lines_before);
            scanner.scan();
            let Scanner { statements, labels, tables, scopes, .. } = scanner;
            Entry {
                name: name.to_owned(),
                header: header.clone(),
                text,
                files: files.clone(),
                statements,
                labels,
                tables,
                scopes,
            }
        })
        .collect()
}

/// The number and the path of a `.file` directive.
fn file_directive(line: &str) -> Option<(u32, String)> {
    let (number, path) = line.strip_prefix(".file")?.trim().split_once(char::is_whitespace)?;
    Some((number.parse().ok()?, path.trim().trim_matches('"').to_owned()))
}

impl Entry {
    /// Whether it has an instruction of opcode `name`, with or without modifiers.
    #[must_use]
    pub fn has_instruction(&self, name: &str) -> bool {
        self.statements.iter().any(|statement| statement.is(name))
    }

    /// A module with this entry alone.
    #[must_use]
    pub fn module(&self) -> String {
        format!("{}\n{}\n", self.header, self.text)
    }

    /// The entry's own text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The bytes of dynamic shared memory that the builder noted.
    #[must_use]
    pub fn shared_bytes(&self) -> u32 {
        let note = self.text.lines().find_map(|line| line.strip_prefix("// warpsmith.shared_bytes "));
        note.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0)
    }

    /// A module with this entry alone, in which `statement` is replaced.
    pub(crate) fn with(&self, statement: usize, replacement: &str) -> String {
        let Range { start, end } = self.statements[statement].range;
        format!("{}\n{}{replacement}{}\n", self.header, &self.text[..start], &self.text[end..])
    }

    /// The text of a statement, white space folded.
    pub(crate) fn statement_text(&self, statement: usize) -> String {
        let text = &self.text[self.statements[statement].range.clone()];
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The Rust source line that a statement comes from: file and line.
    pub(crate) fn source(&self, statement: usize) -> Option<(&str, u32)> {
        let (file, line) = self.statements[statement].location?;
        Some((self.files.get(&file)?.as_str(), line))
    }

    /// The statements that a branch may go to if it is taken.
    pub(crate) fn targets(&self, branch: usize) -> Vec<usize> {
        let statement = &self.statements[branch];
        let Some(name) = statement.operands.last() else { return Vec::new() };
        let names = match statement.is("brx") {
            true => self.visible(branch, |scope| self.tables.get(&(scope, name.clone()))).cloned(),
            false => Some(vec![name.clone()]),
        };
        let target = |name: String| self.visible(branch, |scope| self.labels.get(&(scope, name.clone())));
        names.unwrap_or_default().into_iter().filter_map(target).copied().collect()
    }

    /// What the innermost scope around a statement has that has it.
    fn visible<T>(&self, from: usize, find: impl Fn(usize) -> Option<T>) -> Option<T> {
        let mut scope = self.statements[from].scope;
        loop {
            if let Some(found) = find(scope) {
                return Some(found);
            }
            if scope == self.scopes[scope] {
                return None;
            }
            scope = self.scopes[scope];
        }
    }
}

/// Finds the statements of an entry's body.
struct Scanner<'t> {
    text: &'t str,
    at: usize,
    /// The line in the module of `counted`, a place in the text.
    line: u32,
    counted: usize,
    statements: Vec<Statement>,
    labels: HashMap<(usize, String), usize>,
    tables: HashMap<(usize, String), Vec<String>>,
    scopes: Vec<usize>,
}

impl<'t> Scanner<'t> {
    fn new(text: &'t str, lines_before: u32) -> Self {
        let body = text.find("\n{").map_or(text.len(), |at| at + 2);
        Self {
            text,
            at: body,
            line: lines_before + 1,
            counted: 0,
            statements: Vec::new(),
            labels: HashMap::new(),
            tables: HashMap::new(),
            scopes: vec![0],
        }
    }

    fn scan(&mut self) {
        let mut location = None;
        let mut scope = 0;
        let mut last_label = String::new();
        while let Some(next) = self.text[self.at..].chars().next() {
            let rest = &self.text[self.at..];
            self.at += if next == '{' {
                self.scopes.push(scope);
                scope = self.scopes.len() - 1;
                1
            } else if next == '}' {
                scope = self.scopes[scope];
                1
            } else if next.is_whitespace() || next == ';' {
                next.len_utf8()
            } else if rest.starts_with("//") {
                rest.find('\n').unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                rest.find("*/").map_or(rest.len(), |end| end + 2)
            } else if let Some(loc) = rest.strip_prefix(".loc") {
                let line = loc.lines().next().unwrap_or_default();
                let mut numbers = line.split_whitespace().map_while(|word| word.parse().ok());
                location = numbers.next().zip(numbers.next());
                ".loc".len() + line.len()
            } else if let Some(list) = rest.strip_prefix(".branchtargets") {
                let list = &list[..list.find(';').unwrap_or(list.len())];
                let targets = list.split(',').map(|name| name.trim().to_owned()).collect();
                self.tables.insert((scope, last_label.clone()), targets);
                ".branchtargets".len() + list.len()
            } else if rest.starts_with('.') {
                rest.find(';').unwrap_or(rest.len())
            } else if let Some(label) = label(rest) {
                self.labels.insert((scope, label.to_owned()), self.statements.len());
                last_label = label.to_owned();
                rest.find(':').unwrap_or(0) + 1
            } else {
                let length = rest.find(';').map_or(rest.len(), |end| end + 1);
                let range = self.at..self.at + length;
                let line = self.line_of(range.start);
                self.statements.push(Statement {
                    line,
                    location,
                    scope,
                    ..statement(&rest[..length], range)
                });
                length
            };
        }
    }

    /// The line in the module of a place that is not before the last one asked for.
    fn line_of(&mut self, at: usize) -> u32 {
        self.line += self.text[self.counted..at].matches('\n').count() as u32;
        self.counted = at;
        self.line
    }
}

/// The label that a text begins with.
fn label(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '$' | '%')))?;
    (end > 0 && text[end..].trim_start().starts_with(':') && !text[end..].starts_with("::"))
        .then(|| &text[..end])
}

/// A statement as far as its own text tells.
fn statement(text: &str, range: Range<usize>) -> Statement {
    let mut rest = text.trim_end_matches(';').trim();
    let mut guard = None;
    if let Some(guarded) = rest.strip_prefix('@') {
        let (predicate, instruction) = guarded.split_once(char::is_whitespace).unwrap_or((guarded, ""));
        let negated = predicate.starts_with('!');
        guard = Some((predicate.trim_start_matches('!').to_owned(), negated));
        rest = instruction.trim();
    }
    let (opcode, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    Statement {
        range,
        line: 0,
        guard,
        opcode: opcode.to_owned(),
        operands: operands_of(operands),
        location: None,
        scope: 0,
    }
}

/// The operands of an instruction, cut at the commas outside brackets.
fn operands_of(text: &str) -> Vec<String> {
    let mut operands = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth -= 1,
            ',' if depth == 0 => {
                operands.push(text[start..at].trim().to_owned());
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = text[start..].trim();
    if !last.is_empty() {
        operands.push(last.to_owned());
    }
    operands
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = "\
.version 8.0
.target sm_90a
.address_size 64
.file\t7 \"src/a.rs\"

.visible .entry first(
\t.param .u64 first_param_0
)
// warpsmith.shared_bytes 512
{
\t.reg .pred \t%p<3>;
\t.loc\t7 12 5
\tsetp.gt.u32 \t%p1, %r1, 3; // a comment; with a semicolon
\t@!%p1 bra \t$L__BB0_2;
\t{ .reg .b32 tmp; mov.b64 {tmp, %r2}, %rd1; }
$L__BB0_2:
\tmbarrier.arrive.shared::cta.b64 _, [%r3];
\tret;
}
.extern .shared .align 16 .b8 buffer[];
.visible .entry second()
{
\tret;
}
";

    #[test]
    fn statements_keep_their_text_line_guard_and_location() {
        let entries = entries(MODULE);
        assert_eq!(entries.iter().map(|e| e.name.as_str()).collect::<Vec<_>>(), ["first", "second"]);
        let first = &entries[0];
        let opcodes: Vec<_> = first.statements.iter().map(|s| s.opcode.as_str()).collect();
        assert_eq!(opcodes, ["setp.gt.u32", "bra", "mov.b64", "mbarrier.arrive.shared::cta.b64", "ret"]);
        assert_eq!(first.statements[0].line, 13);
        assert_eq!(first.source(0), Some(("src/a.rs", 12)));
        assert_eq!(first.statements[1].guard, Some(("%p1".to_owned(), true)));
        assert_eq!(first.statements[2].operands, ["{tmp, %r2}", "%rd1"]);
        assert_eq!(first.targets(1), [3]);
        assert_eq!(first.shared_bytes(), 512);
        assert_eq!(first.statement_text(0), "setp.gt.u32 %p1, %r1, 3;");
        assert_eq!(entries[1].statements[0].line, 23);
    }

    #[test]
    fn labels_belong_to_their_block_and_lists_of_them_are_followed() {
        let text = "\
.visible .entry e()
{
A:
\t{ A: bra A; }
\t{ bra A; }
\tL: .branchtargets A,
\t\tB;
\tbrx.idx %r1, L;
B:
\tret;
}
";
        let entry = &entries(text)[0];
        let targets: Vec<_> = (0..entry.statements.len()).map(|at| entry.targets(at)).collect();
        assert_eq!(targets, [vec![0], vec![0], vec![0, 3], vec![]]);
    }

    #[test]
    fn a_replaced_statement_changes_nothing_else() {
        let entry = &entries(MODULE)[0];
        assert_eq!(
            entry.with(3, "").len() + "mbarrier.arrive.shared::cta.b64 _, [%r3];".len(),
            entry.module().len()
        );
        assert_eq!(entry.with(4, "ret;"), entry.module());
        assert!(!entry.module().contains("second"));
        assert!(entry.module().contains("buffer[]"));
    }
}
