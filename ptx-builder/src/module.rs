//! From rustc's PTX to the text that ships: launch bounds lifted, debris dropped.
//!
//! rustc has no attribute for a kernel's launch bounds, and PTX wants them between a kernel's parameters and its body. A kernel
//! states them as comments, which survive inline assembly: each line
//!
//! ```text
//! // warpsmith.directive .reqntid 256, 1, 1
//! ```
//!
//! in an entry's body becomes the directive in the right place. A line `// warpsmith.shared_bytes 65536` (dynamic shared memory
//! of a launch) becomes a comment there, for whoever works out occupancy. So does a line `// warpsmith.source 0x…`, a fingerprint of
//! the function that the entry was made of. A line `// warpsmith.param_align 0, 64` raises the
//! alignment of the entry's first parameter, where rustc would state its type's own. A line `// warpsmith.family topk` says which
//! family the kernel is declared to be of, which the builder compares with the feature that it compiles.
//!
//! Dropped are: functions that nothing refers to (the panic handler, which Rust demands and an immediate abort never reaches),
//! labels of debug ranges, comments, the entry's name in its parameters' names, columns of white space. `.loc` and `.file` lines stay where they say something new: diagnostics and profilers show
//! Rust lines by them.

mod lines;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub(crate) use self::lines::{code, file_directive, identifiers};
use self::lines::{declared, is_debris, is_label, position, relative};
use crate::store::Kernel;

/// A PTX module, split into functions and what stands between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// The parts, in order.
    pub items: Vec<Item>,
}

/// A part of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A line outside every function.
    Line(Line),
    /// An entry or a function.
    Function(Function),
}

/// A line and its number in the text it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Counted from 1.
    pub number: usize,
    /// The text, without trailing white space.
    pub text: String,
}

/// An entry or a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Whether a launch can start it (`.entry`).
    pub entry: bool,
    /// Whether it is only declared to exist elsewhere (`.extern`).
    pub external: bool,
    /// Its name.
    pub name: String,
    /// Linkage, name, parameters and directives.
    pub head: Vec<Line>,
    /// The lines between the braces; `None` for a declaration.
    pub body: Option<Vec<Line>>,
}

/// Directives that a kernel may state, as the PTX ISA's "Performance-Tuning Directives" and "Cluster Dimension Directives" list
/// them.
const DIRECTIVES: &[&str] = &[
    ".reqntid",
    ".maxntid",
    ".minnctapersm",
    ".maxnreg",
    ".explicitcluster",
    ".reqnctapercluster",
    ".maxclusterrank",
];
const DIRECTIVE_MARK: &str = "// warpsmith.directive";
const SHARED_MARK: &str = "// warpsmith.shared_bytes";
const SOURCE_MARK: &str = "// warpsmith.source";
const ALIGN_MARK: &str = "// warpsmith.param_align";
const FAMILY_MARK: &str = "// warpsmith.family";
/// Stands behind a trap of inline assembly.
pub(crate) const ASKED_FOR: &str = "// asked for";

/// Turns rustc's PTX into the text that ships. Source files in one of `folders` (the first that fits) are named relative to it,
/// after its prefix, so that every checkout gives the same text.
///
/// # Errors
///
/// What is wrong and on which line: a directive that is unknown, contradicts another one or stands outside an entry. A function
/// without an end. A source file that is neither in `folders` nor the toolchain's nor a registry's, whose text is therefore of
/// other sources.
pub fn finish(ptx: &str, folders: &[(PathBuf, String)]) -> Result<String, String> {
    let mut module = Module::parse(ptx)?;
    module.drop_debris();
    module.drop_unused_functions();
    module.mark_traps();
    module.lift()?;
    module.drop_debris_in_bodies();
    module.drop_positions();
    module.shorten();
    module.gather_files(folders);
    module.check_files()?;
    Ok(module.to_text())
}

impl Module {
    /// Splits a PTX text.
    ///
    /// # Errors
    ///
    /// A function that does not end, or has no name; with its line.
    pub fn parse(ptx: &str) -> Result<Self, String> {
        let mut items = Vec::new();
        let mut lines = ptx
            .lines()
            .enumerate()
            .map(|(index, text)| Line { number: index + 1, text: text.trim_end().into() });
        while let Some(line) = lines.next() {
            let code = code(&line.text);
            if !code.split_whitespace().any(|word| word == ".entry" || word == ".func") {
                items.push(Item::Line(line));
                continue;
            }
            items.push(Item::Function(Function::parse(line, &mut lines)?));
        }
        Ok(Self { items })
    }

    /// The entries.
    pub fn entries(&self) -> impl Iterator<Item = &Function> {
        self.functions().filter(|function| function.entry)
    }

    /// The entries and functions.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.items.iter().filter_map(|item| match item {
            Item::Function(function) => Some(function),
            Item::Line(_) => None,
        })
    }

    fn functions_mut(&mut self) -> impl Iterator<Item = &mut Function> {
        self.items.iter_mut().filter_map(|item| match item {
            Item::Function(function) => Some(function),
            Item::Line(_) => None,
        })
    }

    fn drop_debris(&mut self) {
        let mut in_section = false;
        self.items.retain(|item| {
            let Item::Line(line) = item else { return true };
            let text = line.text.trim();
            if in_section {
                in_section = !text.ends_with('}');
                return false;
            }
            if text.starts_with(".section") && text.contains(".debug_") {
                in_section = !text.ends_with('}');
                return false;
            }
            // LLVM's banner and its `// .globl` notes; the header of the finished file says more.
            !text.starts_with("//")
        });
    }

    /// Marks the traps in inline assembly. The comments around that are dropped, and other traps are the compiler's.
    fn mark_traps(&mut self) {
        for function in self.functions_mut() {
            let mut inside = false;
            for line in function.body.iter_mut().flatten() {
                match line.text.trim() {
                    "// begin inline asm" => inside = true,
                    "// end inline asm" => inside = false,
                    text if inside && identifiers(code(text)).any(|word| word == "trap") => {
                        line.text = format!("{} {ASKED_FOR}", code(&line.text).trim_end());
                    }
                    _ => {}
                }
            }
        }
    }

    /// The entries that name their family (`// warpsmith.family`), each with that name.
    pub fn families(&self) -> Vec<(&str, &str)> {
        self.entries().filter_map(|entry| Some((entry.name.as_str(), entry.family()?))).collect()
    }

    /// Drops the lines of bodies that carry nothing.
    fn drop_debris_in_bodies(&mut self) {
        for function in self.functions_mut() {
            let Some(body) = &mut function.body else { continue };
            body.retain(|line| !is_debris(line.text.trim()));
        }
    }

    fn drop_unused_functions(&mut self) {
        loop {
            let mut used = BTreeSet::new();
            for item in &self.items {
                match item {
                    Item::Line(line) => used.extend(identifiers(&line.text).map(str::to_owned)),
                    Item::Function(function) => {
                        let words =
                            function.body.iter().flatten().flat_map(|line| identifiers(code(&line.text)));
                        used.extend(words.filter(|word| *word != function.name).map(str::to_owned));
                    }
                }
            }
            let before = self.items.len();
            self.items.retain(|item| match item {
                Item::Function(function) => {
                    function.entry || function.external || used.contains(&function.name)
                }
                Item::Line(_) => true,
            });
            if self.items.len() == before {
                return;
            }
        }
    }

    fn lift(&mut self) -> Result<(), String> {
        for function in self.functions_mut() {
            let Some(body) = &mut function.body else { continue };
            let mut lifted: BTreeMap<String, Line> = BTreeMap::new();
            let mut order = Vec::new();
            let mut kept = Vec::with_capacity(body.len());
            for line in body.drain(..) {
                let text = line.text.trim();
                let (name, text) = if let Some(directive) = text.strip_prefix(DIRECTIVE_MARK) {
                    let directive = directive.trim().trim_end_matches(';').trim_end();
                    let name = directive.split_whitespace().next().unwrap_or_default();
                    if !DIRECTIVES.contains(&name) {
                        return Err(format!("line {}: `{directive}` is none of {DIRECTIVES:?}", line.number));
                    }
                    (name.to_owned(), directive.to_owned())
                } else if let Some(mark) =
                    [SHARED_MARK, SOURCE_MARK].into_iter().find(|mark| text.starts_with(mark))
                {
                    (mark.to_owned(), text.to_owned())
                } else if text.starts_with(ALIGN_MARK) {
                    (text.split(',').next().unwrap_or_default().to_owned(), text.to_owned())
                } else {
                    kept.push(line);
                    continue;
                };
                if !function.entry {
                    return Err(format!(
                        "line {}: `{text}` in `{}`, which is no entry",
                        line.number, function.name
                    ));
                }
                // Inlining may repeat a block of inline assembly; only a contradiction is wrong.
                match lifted.get(&name) {
                    Some(other) if other.text != text => {
                        return Err(format!(
                            "line {}: entry `{}` states `{text}` and, on line {}, `{}`",
                            line.number, function.name, other.number, other.text
                        ));
                    }
                    Some(_) => {}
                    None => {
                        order.push(name.clone());
                        lifted.insert(name, Line { number: line.number, text });
                    }
                }
            }
            *body = kept;
            for line in order.iter().filter_map(|name| lifted.remove(name)) {
                match line.text.strip_prefix(ALIGN_MARK) {
                    Some(what) => raise_alignment(&mut function.head, &function.name, what)
                        .ok_or_else(|| format!("line {}: `{}` fits no parameter", line.number, line.text))?,
                    None => function.head.push(line),
                }
            }
        }
        Ok(())
    }

    /// Keeps the positions that say something, each right before its first instruction.
    ///
    /// A `.loc` is in force up to the next one in the text, whatever labels stand between. So one that another replaces before
    /// the next instruction says nothing, nor does one that repeats the line in force, or one of line 0: that of no line.
    fn drop_positions(&mut self) {
        for function in self.functions_mut() {
            let Some(body) = &mut function.body else { continue };
            let mut kept: Vec<Line> = Vec::with_capacity(body.len());
            let (mut in_force, mut pending) = (None, None);
            for line in body.drain(..) {
                if let Some(position) = position(&line.text) {
                    pending = (position.line != "0").then_some((position, line));
                    continue;
                }
                if !is_label(line.text.trim())
                    && let Some((position, line)) = pending.take()
                    && in_force.as_ref() != Some(&position)
                {
                    in_force = Some(position);
                    kept.push(line);
                }
                kept.push(line);
            }
            *body = kept;
        }
    }

    /// Spells an entry's parameters without its name, which they need not have, and separates words by one space.
    fn shorten(&mut self) {
        for function in self.functions_mut().filter(|function| function.entry) {
            let long = format!("{}_param_", function.name);
            for line in function.head.iter_mut().chain(function.body.iter_mut().flatten()) {
                let (indent, text) = line.text.split_at(line.text.len() - line.text.trim_start().len());
                let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                for name in identifiers(code(&text.clone())).filter_map(|word| word.strip_prefix(&long)) {
                    text = text.replace(&format!("{long}{name}"), &format!("param_{name}"));
                }
                line.text = format!("{indent}{text}");
            }
        }
    }

    /// Moves the `.file` lines that a `.loc` refers to up to the module's head, without the paths of this machine.
    fn gather_files(&mut self, folders: &[(PathBuf, String)]) {
        let used: BTreeSet<String> = self
            .functions()
            .flat_map(|function| function.body.iter().flatten())
            .filter_map(|line| {
                line.text.trim_start().strip_prefix(".loc")?.split_whitespace().next().map(str::to_owned)
            })
            .collect();
        let mut files = Vec::new();
        self.items.retain(|item| {
            let Item::Line(line) = item else { return true };
            let Some(file) = line.text.trim_start().strip_prefix(".file") else { return true };
            if file.split_whitespace().next().is_some_and(|number| used.contains(number)) {
                files.push(Item::Line(Line {
                    number: line.number,
                    text: relative(line.text.trim(), folders),
                }));
            }
            false
        });
        let head = self.items.iter().position(|item| match item {
            Item::Line(line) => line.text.trim_start().starts_with(".address_size"),
            Item::Function(_) => true,
        });
        let at = match head {
            Some(at) if matches!(self.items[at], Item::Line(_)) => at + 1,
            Some(at) => at,
            None => self.items.len(),
        };
        self.items.splice(at..at, files);
    }

    /// Finds source files that are not named relative to a folder of the sources: text of another checkout, say.
    fn check_files(&self) -> Result<(), String> {
        for item in &self.items {
            let Item::Line(line) = item else { continue };
            let Some((_, path)) = file_directive(&line.text) else { continue };
            if Path::new(path.trim_matches('"')).is_absolute() {
                return Err(format!(
                    "line {}: it is made from {path}, which is neither in the workspace and its path dependencies, nor the \
                     toolchain's, nor a registry's",
                    line.number
                ));
            }
        }
        Ok(())
    }

    /// Each entry by itself, in order.
    pub fn kernels(&self) -> Vec<Kernel> {
        let kernel =
            |entry: &Function| Kernel { name: entry.name.clone(), text: self.alone(entry).to_text() };
        self.entries().map(kernel).collect()
    }

    /// A module with `entry` alone, and what it refers to.
    ///
    /// Nothing of the other entries shows in it: labels lose the number of their function, and files are numbered in the order in
    /// which they are first named.
    pub fn alone(&self, entry: &Function) -> Self {
        let is_entry = |item: &Item| matches!(item, Item::Function(function) if function.name == entry.name);
        let mut used: BTreeSet<&str> = entry.words().collect();
        let mut kept: Vec<bool> = self.items.iter().map(is_entry).collect();
        loop {
            let before = used.len();
            for (item, kept) in self.items.iter().zip(&mut kept).filter(|(_, kept)| !**kept) {
                match item {
                    Item::Line(line) => {
                        *kept = declared(&line.text)
                            .is_none_or(|mut names| names.any(|name| used.contains(name)));
                        if *kept {
                            used.extend(identifiers(code(&line.text)));
                        }
                    }
                    Item::Function(function) if !function.entry => {
                        *kept = used.contains(function.name.as_str());
                        if *kept {
                            used.extend(function.words());
                        }
                    }
                    Item::Function(_) => {}
                }
            }
            if used.len() == before {
                break;
            }
        }
        let items = self.items.iter().zip(kept).filter(|(_, kept)| *kept).map(|(item, _)| item.clone());
        let mut alone = Self { items: items.collect() };
        while alone.items.pop_if(|item| matches!(item, Item::Line(line) if line.text.is_empty())).is_some() {}
        alone.renumber_labels();
        alone.renumber_files();
        alone
    }

    /// LLVM's labels have the number of their function in the module: `$L__BB6_39`.
    fn renumber_labels(&mut self) {
        const LABEL: &str = "$L__BB";
        for (number, function) in self.functions_mut().enumerate() {
            for line in function.body.iter_mut().flatten().filter(|line| line.text.contains(LABEL)) {
                let mut parts = line.text.split(LABEL);
                let mut text = parts.next().unwrap_or_default().to_owned();
                for part in parts {
                    let rest = part.trim_start_matches(|character: char| character.is_ascii_digit());
                    text += &format!("{LABEL}{number}{rest}");
                }
                line.text = text;
            }
        }
    }

    /// Numbers the files from 1 in the order in which `.loc` lines name them, and drops those that none names.
    fn renumber_files(&mut self) {
        let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
        for line in self.functions_mut().flat_map(|function| function.body.iter_mut().flatten()) {
            let text = line.text.trim_start();
            let Some((file, rest)) = text.strip_prefix(".loc ").and_then(|rest| rest.split_once(' ')) else {
                continue;
            };
            let next = numbers.len() + 1;
            let number = numbers.entry(file.to_owned()).or_insert(next);
            let indent = &line.text[..line.text.len() - text.len()];
            line.text = format!("{indent}.loc {number} {rest}");
        }
        let mut files = BTreeMap::new();
        let mut at = None;
        for (index, item) in self.items.iter().enumerate() {
            let Item::Line(line) = item else { continue };
            let Some((number, path)) = file_directive(&line.text) else { continue };
            at = at.or(Some(index));
            if let Some(&number) = numbers.get(number) {
                files.insert(number, Line { number: line.number, text: format!(".file\t{number} {path}") });
            }
        }
        self.items.retain(|item| !matches!(item, Item::Line(line) if file_directive(&line.text).is_some()));
        let at = at.unwrap_or(0);
        self.items.splice(at..at, files.into_values().map(Item::Line));
    }

    /// The text, with one empty line between parts.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let mut push = |line: &str| {
            if !(line.is_empty() && (text.is_empty() || text.ends_with("\n\n"))) {
                text.push_str(line);
                text.push('\n');
            }
        };
        for item in &self.items {
            match item {
                Item::Line(line) => push(&line.text),
                Item::Function(function) => {
                    push("");
                    for line in &function.head {
                        push(&line.text);
                    }
                    if let Some(body) = &function.body {
                        push("{");
                        body.iter().filter(|line| !line.text.is_empty()).for_each(|line| push(&line.text));
                        push("}");
                    }
                }
            }
        }
        text
    }
}

impl Function {
    /// The family that the body names.
    fn family(&self) -> Option<&str> {
        let mut lines = self.body.iter().flatten();
        lines.find_map(|line| line.text.trim().strip_prefix(FAMILY_MARK).map(str::trim))
    }

    /// The words of the body.
    fn words(&self) -> impl Iterator<Item = &str> {
        self.body.iter().flatten().flat_map(|line| identifiers(code(&line.text)))
    }

    fn parse(first: Line, rest: &mut impl Iterator<Item = Line>) -> Result<Self, String> {
        let start = first.number;
        let external = code(&first.text).split_whitespace().any(|word| word == ".extern");
        let entry = code(&first.text).split_whitespace().any(|word| word == ".entry");
        let mut head: Vec<Line> = Vec::new();
        let mut next = Some(first);
        let mut opened = None;
        while let Some(line) = next {
            let text = code(&line.text);
            if let Some(brace) = text.find('{') {
                let (before, after) =
                    (line.text[..brace].trim_end().to_owned(), line.text[brace + 1..].trim_end().to_owned());
                if !before.trim().is_empty() {
                    head.push(Line { number: line.number, text: before });
                }
                opened = Some(Line { number: line.number, text: after });
                break;
            }
            let ends = text.trim_end().ends_with(';');
            head.push(line);
            if ends {
                break;
            }
            next = rest.next();
        }
        let name = name(&head).ok_or_else(|| format!("line {start}: a function without a name"))?;
        let ended = head.last().is_some_and(|line| code(&line.text).trim_end().ends_with(';'));
        let Some(opened) = opened else {
            return if ended {
                Ok(Self { entry, external, name, head, body: None })
            } else {
                Err(format!("line {start}: `{name}` has neither a body nor an end"))
            };
        };
        let mut body = Vec::new();
        let mut depth = 1usize;
        let mut next = Some(opened);
        while let Some(line) = next {
            for (at, character) in code(&line.text).char_indices() {
                match character {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    _ => {}
                }
                if depth == 0 {
                    let before = line.text[..at].trim_end();
                    if !before.trim().is_empty() {
                        body.push(Line { number: line.number, text: before.to_owned() });
                    }
                    return Ok(Self { entry, external, name, head, body: Some(body) });
                }
            }
            if !line.text.trim().is_empty() {
                body.push(line);
            }
            next = rest.next();
        }
        Err(format!("line {start}: the body of `{name}` does not end"))
    }
}

/// Raises the alignment of a parameter among the lines of an entry's head; `what` is its index and the alignment. `None` if
/// there is no such parameter, or the alignment is none.
fn raise_alignment(head: &mut [Line], entry: &str, what: &str) -> Option<()> {
    let (index, align) = what.split_once(',')?;
    let (index, align): (usize, u32) = (index.trim().parse().ok()?, align.trim().parse().ok()?);
    let parameter = format!("{entry}_param_{index}");
    let line = head.iter_mut().find(|line| identifiers(code(&line.text)).any(|word| word == parameter))?;
    let (before, after) = line.text.split_once(".align ")?;
    let digits = after.find(|character: char| !character.is_ascii_digit())?;
    let stated: u32 = after[..digits].parse().ok()?;
    if !align.is_power_of_two() {
        return None;
    }
    line.text = format!("{before}.align {}{}", stated.max(align), &after[digits..]);
    Some(())
}

/// The name after `.entry`, or after `.func` and its result.
fn name(head: &[Line]) -> Option<String> {
    let text: String = head.iter().map(|line| code(&line.text)).collect::<Vec<_>>().join(" ");
    let mut rest = match text.split_once(".entry") {
        Some((_, rest)) => rest.trim_start(),
        None => text.split_once(".func")?.1.trim_start(),
    };
    if rest.starts_with('(') {
        rest = rest.split_once(')')?.1.trim_start();
    }
    identifiers(rest).next().filter(|name| rest.starts_with(name)).map(str::to_owned)
}
