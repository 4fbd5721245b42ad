//! What must not be in the PTX of a kernel, checked without any other tool.
//!
//! Each of these compiles and runs, slowly or not at all, with no compiler error to warn of it. An array that went to local
//! memory because an index was not constant, a function that was not inlined, a symbol that is nowhere defined, a panic that
//! became a trap, a kernel whose block size nobody stated.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::arch::Arch;
use crate::module::{ASKED_FOR, Function, Item, Line, Module, code, file_directive, identifiers};

/// What was found in one PTX file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The entries, in order.
    pub entries: Vec<Entry>,
    /// Reasons not to use the file.
    pub violations: Vec<Violation>,
}

/// An entry and what it states about its launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Threads a block: `.reqntid`, or else `.maxntid`; `None` when it states neither.
    pub threads: Option<[u32; 3]>,
    /// Dynamic shared memory a block, where the kernel says so (`// warpsmith.shared_bytes`).
    pub dynamic_shared: Option<u32>,
}

/// A reason not to use a PTX file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Local memory: an array that is spilled or indexed by a variable.
    LocalMemory {
        /// The function.
        function: String,
        /// The first line in the file that names the array.
        line: usize,
        /// That line.
        text: String,
    },
    /// A trap that the source did not ask for: a panic, a bounds check, a division by what may be zero.
    Trap {
        /// The function.
        function: String,
        /// Line in the file.
        line: usize,
        /// That line.
        text: String,
    },
    /// A call: something was not inlined.
    Call {
        /// The function.
        function: String,
        /// Line in the file.
        line: usize,
        /// That line.
        text: String,
    },
    /// A symbol that is defined nowhere.
    Unresolved {
        /// Line in the file.
        line: usize,
        /// That line.
        text: String,
    },
    /// An entry that does not state its block size, or states one that is none.
    NoBounds {
        /// The entry.
        entry: String,
        /// Line in the file.
        line: usize,
    },
    /// There is no entry at all.
    NoEntry,
    /// The text is not PTX.
    Malformed {
        /// What is wrong, and on which line.
        reason: String,
    },
    /// ptxas does not take the text.
    Rejected {
        /// The architecture that it was assembled for.
        arch: Arch,
        /// What ptxas says.
        message: String,
    },
    /// ptxas warns: it serialises an asynchronous instruction, ignores a bound, or the like.
    Warning {
        /// The architecture that the text was assembled for.
        arch: Arch,
        /// What ptxas says.
        message: String,
    },
    /// ptxas needs more registers than there are.
    Spill {
        /// The architecture that the text was assembled for.
        arch: Arch,
        /// The entry.
        entry: String,
        /// Bytes that it stores to local memory.
        stores: u32,
        /// Bytes that it loads from there.
        loads: u32,
    },
    /// ptxas gives the kernel a stack.
    Stack {
        /// The architecture that the text was assembled for.
        arch: Arch,
        /// The entry.
        entry: String,
        /// Bytes a thread.
        bytes: u32,
    },
}

/// Checks a PTX text.
pub fn check(ptx: &str) -> Report {
    let module = match Module::parse(&without_block_comments(ptx)) {
        Ok(module) => module,
        Err(reason) => {
            return Report { entries: Vec::new(), violations: vec![Violation::Malformed { reason }] };
        }
    };
    let mut violations = Vec::new();
    let globals = declared_in_module(&module);
    let own_traps = files_of_traps(&module);
    for item in &module.items {
        match item {
            Item::Line(line) => check_module_line(line, &mut violations),
            Item::Function(function) => {
                check_function(function, &mut violations);
                check_traps(function, &own_traps, &mut violations);
                check_symbols(function, &globals, &mut violations);
            }
        }
    }
    let entries: Vec<Entry> = module.entries().map(entry).collect();
    if entries.is_empty() {
        violations.push(Violation::NoEntry);
    }
    Report { entries, violations }
}

fn check_module_line(line: &Line, violations: &mut Vec<Violation>) {
    let words: Vec<&str> = code(&line.text).split_whitespace().collect();
    // Dynamic shared memory is declared `.extern` and given by the launch.
    if words.contains(&".extern") && !words.contains(&".shared") {
        violations.push(Violation::Unresolved { line: line.number, text: line.text.trim().to_owned() });
    }
}

fn check_function(function: &Function, violations: &mut Vec<Violation>) {
    let first = function.head.first().map_or(0, |line| line.number);
    let Some(body) = &function.body else {
        if function.external || function.entry {
            let text = function.head.first().map_or_else(String::new, |line| line.text.trim().to_owned());
            violations.push(Violation::Unresolved { line: first, text });
        }
        return;
    };
    if function.entry
        && !entry(function).threads.is_some_and(|threads| threads.iter().all(|&extent| extent > 0))
    {
        violations.push(Violation::NoBounds { entry: function.name.clone(), line: first });
    }
    let found = |line: &Line| (function.name.clone(), line.number, line.text.trim().to_owned());
    for line in local_arrays(body) {
        let (function, line, text) = found(line);
        violations.push(Violation::LocalMemory { function, line, text });
    }
    for line in body.iter().filter(|line| statements(code(&line.text)).any(is_call)) {
        let (function, line, text) = found(line);
        violations.push(Violation::Call { function, line, text });
    }
}

/// The first line of each array in local memory, as far as arrays can be told apart; else the first line that has to do with any.
///
/// LLVM puts all arrays of a function in one variable. What it indexes by a variable has an address of its own, a constant behind the
/// start of that.
fn local_arrays(body: &[Line]) -> Vec<&Line> {
    let mut arrays: BTreeMap<String, &Line> = BTreeMap::new();
    let mut first = None;
    for line in body {
        for statement in statements(code(&line.text)).filter(|statement| is_local(statement)) {
            first = first.or(Some(line));
            if let Some(name) = local_array(statement) {
                arrays.entry(name).or_insert(line);
            }
        }
    }
    match arrays.is_empty() {
        true => first.into_iter().collect(),
        false => {
            let mut lines: Vec<&Line> = arrays.into_values().collect();
            lines.sort_by_key(|line| line.number);
            lines.dedup_by_key(|line| line.number);
            lines
        }
    }
}

/// The array that a statement declares, or takes the address of.
fn local_array(statement: &str) -> Option<String> {
    let mut words = statement.split(|character: char| character.is_whitespace() || ",[]".contains(character));
    let opcode = words.next()?;
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    match (opcode.split('.').next()?, &words[..]) {
        ("add", [_, "%SP" | "%SPL", offset]) => Some((*offset).to_owned()),
        ("", words) if opcode == ".local" => {
            let name = words.iter().find(|word| identifiers(word).next() == Some(**word))?;
            (!name.starts_with("__local_depot")).then(|| (*name).to_owned())
        }
        _ => None,
    }
}

/// The numbers of the files whose traps are asked for: `core::arch::nvptx::trap` is in one.
fn files_of_traps(module: &Module) -> BTreeSet<&str> {
    let lines = module.items.iter().filter_map(|item| match item {
        Item::Line(line) => Some(line.text.as_str()),
        Item::Function(_) => None,
    });
    let files = lines.filter_map(file_directive);
    files.filter(|(_, path)| path.contains("core_arch/src/nvptx")).map(|(number, _)| number).collect()
}

/// Finds traps that are neither in inline assembly nor from one of the files `own`.
fn check_traps(function: &Function, own: &BTreeSet<&str>, violations: &mut Vec<Violation>) {
    let mut is_own = false;
    for line in function.body.iter().flatten() {
        if let Some(position) = line.text.trim_start().strip_prefix(".loc") {
            is_own = position.split_whitespace().next().is_some_and(|file| own.contains(file));
            continue;
        }
        let traps = statements(code(&line.text)).any(|statement| statement == "trap");
        if traps && !is_own && !line.text.ends_with(ASKED_FOR) {
            violations.push(Violation::Trap {
                function: function.name.clone(),
                line: line.number,
                text: line.text.trim().to_owned(),
            });
        }
    }
}

/// Every word that stands outside of functions, and the functions' names: more than the declared symbols, and all of them.
fn declared_in_module(module: &Module) -> BTreeSet<&str> {
    let mut declared = BTreeSet::new();
    for item in &module.items {
        match item {
            Item::Line(line) => declared.extend(identifiers(code(&line.text))),
            Item::Function(function) => {
                declared.insert(function.name.as_str());
            }
        }
    }
    declared
}

/// Finds operands that name neither a symbol of the module, nor a parameter, a variable or a label of the function.
fn check_symbols(function: &Function, globals: &BTreeSet<&str>, violations: &mut Vec<Violation>) {
    let body = function.body.as_deref().unwrap_or_default();
    let mut locals: BTreeSet<&str> =
        function.head.iter().flat_map(|line| identifiers(code(&line.text))).collect();
    for line in body {
        let code = code(&line.text);
        locals.extend(code.split([';', '{', '}', ' ', '\t']).filter_map(|word| word.strip_suffix(':')));
        for statement in statements(code).filter(|statement| statement.starts_with('.')) {
            locals.extend(identifiers(statement));
        }
    }
    for line in body {
        let instructions = statements(code(&line.text))
            .filter(|statement| !statement.starts_with('.') && !is_call(statement) && !is_local(statement));
        for statement in instructions {
            let operands = statement.split_once(char::is_whitespace).map_or("", |(_, operands)| operands);
            let mut words = operands
                .split(|character: char| !(character.is_ascii_alphanumeric() || "_$%.".contains(character)))
                .map(|word| word.split('.').next().unwrap_or_default());
            if words.any(|word| {
                word.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_' || first == '$')
                    && !matches!(word, "_" | "WARP_SZ")
                    && !globals.contains(word)
                    && !locals.contains(word)
            }) {
                violations
                    .push(Violation::Unresolved { line: line.number, text: line.text.trim().to_owned() });
            }
        }
    }
}

/// The statements of a line, without guard and label.
fn statements(code: &str) -> impl Iterator<Item = &str> {
    code.split([';', '{', '}']).map(|statement| {
        let mut statement = statement.trim();
        if let Some((label, rest)) = statement.split_once(':')
            && identifiers(label).eq([label])
        {
            statement = rest.trim_start();
        }
        if statement.starts_with('@') {
            statement = statement.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim_start());
        }
        statement
    })
}

fn is_call(statement: &str) -> bool {
    let opcode = statement.split_whitespace().next().unwrap_or_default();
    opcode == "call" || opcode.starts_with("call.")
}

fn is_local(statement: &str) -> bool {
    let opcode = statement.split_whitespace().next().unwrap_or_default();
    opcode.split('.').skip(1).any(|part| part == "local")
        || identifiers(statement)
            .any(|word| matches!(word, "%SP" | "%SPL") || word.starts_with("__local_depot"))
}

fn entry(function: &Function) -> Entry {
    let directive = |name: &str| {
        function.head.iter().find_map(|line| {
            let (_, extents) = code(&line.text).split_once(name)?;
            let mut extents = extents.split(',').map(|extent| extent.trim().parse().ok());
            let x = extents.next()??;
            Some([x, extents.next().unwrap_or(Some(1))?, extents.next().unwrap_or(Some(1))?])
        })
    };
    let dynamic_shared = function
        .head
        .iter()
        .find_map(|line| line.text.trim().strip_prefix("// warpsmith.shared_bytes")?.trim().parse().ok());
    Entry {
        name: function.name.clone(),
        threads: directive(".reqntid").or_else(|| directive(".maxntid")),
        dynamic_shared,
    }
}

/// Blanks `/* … */`, keeping line numbers. What looks like one within a `// …` comment is none.
fn without_block_comments(ptx: &str) -> String {
    let mut text = String::with_capacity(ptx.len());
    let mut rest = ptx;
    while let Some(start) = rest.find("/*") {
        let (before, comment) = rest.split_at(start);
        let line = before.rfind('\n').map_or(0, |end| end + 1);
        if before[line..].contains("//") {
            let end = rest[start..].find('\n').map_or(rest.len(), |end| start + end);
            text.push_str(&rest[..end]);
            rest = &rest[end..];
            continue;
        }
        text.push_str(before);
        let end = comment.find("*/").map_or(comment.len(), |end| end + 2);
        text.extend(comment[..end].chars().filter(|character| *character == '\n'));
        rest = &comment[end..];
    }
    text.push_str(rest);
    text
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LocalMemory { function, line, text } => {
                write!(
                    f,
                    "line {line}: `{function}` uses local memory (an array indexed by a variable?): `{text}`"
                )
            }
            Self::Trap { function, line, text } => {
                write!(
                    f,
                    "line {line}: `{function}` has a trap that its source did not ask for (a panic, a bounds check, a division \
                     by what may be zero?): `{text}`"
                )
            }
            Self::Call { function, line, text } => {
                write!(f, "line {line}: `{function}` calls a function that was not inlined: `{text}`")
            }
            Self::Unresolved { line, text } => {
                write!(f, "line {line}: a symbol that is defined nowhere: `{text}`")
            }
            Self::NoBounds { entry, line } => {
                write!(f, "line {line}: entry `{entry}` states no block size (`.reqntid` or `.maxntid`)")
            }
            Self::NoEntry => f.write_str("there is no entry: is the family's kernel instantiated?"),
            Self::Malformed { reason } => write!(f, "not PTX: {reason}"),
            Self::Rejected { arch, message } => write!(f, "ptxas does not take it for {arch}: {message}"),
            Self::Warning { arch, message } => write!(f, "ptxas for {arch} warns: {message}"),
            Self::Spill { arch, entry, stores, loads } => {
                write!(
                    f,
                    "on {arch}, entry `{entry}` spills registers: {stores} bytes of stores, {loads} bytes of loads"
                )
            }
            Self::Stack { arch, entry, bytes } => {
                write!(f, "on {arch}, entry `{entry}` has a stack frame of {bytes} bytes")
            }
        }
    }
}

/// Violations, a line each.
pub(crate) fn list(violations: &[Violation]) -> String {
    violations.iter().map(|violation| format!("\n  {violation}")).collect()
}
