//! A parsed module and what it says of its kernels.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::check::SourceLine;
use crate::error::{LaunchError, ParseError, argument};
use crate::exec::code::{Inst, Level, bind};
use crate::ir::program::{Kernel, Variable};
use crate::ir::{translate, turing};
use crate::syntax::{self, Source};

/// A PTX module, parsed and translated. Cheap to clone.
#[derive(Clone)]
pub struct Module {
    inner: Arc<Inner>,
}

struct Inner {
    /// Tells modules apart, for the variables that a machine holds for each.
    id: u64,
    text: Text,
    /// `sm_80`, and its number and whether it needs that very architecture.
    target: String,
    version: u32,
    variables: Vec<Variable>,
    /// The host's instructions that the code was bound for.
    level: Level,
    kernels: Vec<(KernelInfo, Kernel, Vec<Inst>)>,
}

/// The text of a module, for findings.
pub(crate) struct Text {
    pub(crate) file: String,
    lines: Vec<String>,
    files: HashMap<u32, String>,
}

impl Text {
    /// A line, from 1; empty if there is none.
    pub(crate) fn line(&self, line: u32) -> String {
        line.checked_sub(1).and_then(|i| self.lines.get(i as usize)).cloned().unwrap_or_default()
    }

    /// The source line of a `.loc`.
    pub(crate) fn source(&self, (file, line): (u32, u32)) -> Option<SourceLine> {
        self.files.get(&file).map(|file| SourceLine { file: file.clone(), line })
    }
}

/// What an entry declares.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelInfo {
    /// The entry's name.
    pub name: String,
    /// Its parameters, in order.
    pub params: Vec<ParamInfo>,
    /// The block shape that a launch must have (`.reqntid`).
    pub reqntid: Option<[u32; 3]>,
    /// The cluster shape that a launch must have (`.reqnctapercluster`), and has if it names none.
    pub cluster: Option<[u32; 3]>,
    /// The largest block shape that a launch may have (`.maxntid`).
    pub maxntid: Option<[u32; 3]>,
    /// Blocks that a multiprocessor is to hold (`.minnctapersm`).
    pub min_ctas: Option<u32>,
    /// Bytes of shared memory that the module's variables take in every block.
    pub static_shared: u32,
    /// Whether the entry refers to a shared array of no fixed size.
    pub uses_dynamic_shared: bool,
    /// Bytes of dynamic shared memory that a launch needs, if a comment `// warpsmith.shared_bytes N` says so behind the entry's
    /// parameters: PTX itself has no place for it.
    pub dynamic_shared: Option<u32>,
}

/// A parameter of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParamInfo {
    /// Its name in the source, if the text has it: a compiler may only number them.
    pub name: Option<String>,
    /// Its type in the text, such as `.u64` or `.b8[]`.
    pub ty: String,
    /// Its size in bytes.
    pub size: usize,
    /// Its alignment in bytes.
    pub align: usize,
}

impl KernelInfo {
    /// How findings and errors name an argument: "argument 1, `y`". `index` counts from 0, people from 1.
    pub(crate) fn argument(&self, index: usize) -> String {
        argument(index, self.params.get(index).and_then(|param| param.name.as_deref()))
    }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kernels: Vec<_> = self.kernels().map(|k| &k.name).collect();
        f.debug_struct("Module")
            .field("file", &self.file())
            .field("target", &self.target())
            .field("kernels", &kernels)
            .finish()
    }
}

/// What comments between the parameters and the bodies of entries say, by the entries' names.
fn dynamic_shared(text: &str) -> HashMap<&str, u32> {
    let mut found = HashMap::new();
    let mut entry = None;
    for line in text.lines() {
        if let Some(name) = line.trim_start().strip_prefix(".visible .entry ") {
            entry = name.split(['(', ' ']).next();
        } else if line.starts_with('{') {
            entry = None;
        } else if let (Some(entry), Some(note)) = (entry, line.strip_prefix("// warpsmith.shared_bytes "))
            && let Ok(bytes) = note.trim().parse()
        {
            found.insert(entry, bytes);
        }
    }
    found
}

impl Module {
    /// Parses PTX text and translates all its entries. `file` names the text in errors and findings.
    ///
    /// # Errors
    ///
    /// Anything that is not PTX, and any opcode, modifier or operand that the emulator does not know: with the line and
    /// the column, and what was expected there.
    pub fn parse(file: &str, text: &str) -> Result<Self, ParseError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let source = Source { file, text };
        let tree = syntax::parse(&source)?;
        let Some(target) = tree.target.first() else {
            return Err(source.error(syntax::ast::Span::default(), "expected a `.target`"));
        };
        let version = target
            .text
            .strip_prefix("sm_")
            .map(|t| t.trim_end_matches(['a', 'f']))
            .and_then(|digits| digits.parse().ok());
        let Some(version) = version else {
            return Err(source
                .error(target.span, format!("expected a target such as sm_80, found `{}`", target.text)));
        };
        if version < turing::UNCHECKED {
            let instructions = tree.bodies().flat_map(|body| &body.instructions);
            if let Some(instruction) = instructions.into_iter().find(|instruction| turing::lacks(instruction))
            {
                let name: Vec<&str> =
                    [instruction.opcode].into_iter().chain(instruction.modifiers.iter().copied()).collect();
                let message =
                    format!("expected an instruction of {}, found `{}`", target.text, name.join("."));
                return Err(source.error(instruction.span, message));
            }
        }
        let translated = translate(&source, &tree)?;
        let (level, dynamic_shared) = (Level::detect(), dynamic_shared(text));
        let kernels = translated
            .entries
            .into_iter()
            .map(|entry| {
                let info = KernelInfo {
                    dynamic_shared: dynamic_shared.get(entry.name.as_str()).copied(),
                    name: entry.name,
                    params: entry.parameters,
                    reqntid: entry.reqntid,
                    cluster: entry.cluster,
                    maxntid: entry.maxntid,
                    min_ctas: entry.min_ctas,
                    static_shared: entry.kernel.static_shared,
                    uses_dynamic_shared: entry.kernel.uses_dynamic_shared,
                };
                let code = bind(&entry.kernel, level);
                (info, entry.kernel, code)
            })
            .collect();
        let files = tree
            .files
            .iter()
            .filter_map(|&(n, path)| Some((u32::try_from(n).ok()?, path.to_owned())))
            .collect();
        let text = Text { file: file.to_owned(), lines: text.lines().map(str::to_owned).collect(), files };
        let inner = Inner {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            text,
            target: target.text.to_owned(),
            version,
            variables: translated.variables,
            level,
            kernels,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What `name` declares, if the module has such an entry.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<&KernelInfo> {
        self.kernels().find(|kernel| kernel.name == name)
    }

    /// All entries, in the order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = &KernelInfo> {
        self.inner.kernels.iter().map(|(info, ..)| info)
    }

    /// The name that the module was parsed under.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.inner.text.file
    }

    /// The GPU architecture that the module is for, as its `.target` says.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.inner.target
    }

    /// Whether a GPU of this compute capability can run the module.
    pub(crate) fn runs_on(&self, (major, minor): (u32, u32)) -> bool {
        let machine = major * 10 + minor;
        match self.inner.target.chars().last() {
            // For that architecture only, or for its family.
            Some('a') => self.inner.version == machine,
            Some('f') => self.inner.version / 10 == major && self.inner.version <= machine,
            _ => self.inner.version <= machine,
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.inner.id
    }

    pub(crate) fn level(&self) -> Level {
        self.inner.level
    }

    pub(crate) fn text(&self) -> &Text {
        &self.inner.text
    }

    pub(crate) fn variables(&self) -> &[Variable] {
        &self.inner.variables
    }

    pub(crate) fn find(&self, name: &str) -> Result<(&KernelInfo, &Kernel, &[Inst]), LaunchError> {
        match self.inner.kernels.iter().find(|(info, ..)| info.name == name) {
            Some((info, kernel, code)) => Ok((info, kernel, code)),
            None => {
                let names: Vec<_> = self.kernels().map(|k| format!("`{}`", k.name)).collect();
                let available = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                Err(LaunchError::UnknownKernel {
                    name: name.to_owned(),
                    file: self.file().to_owned(),
                    available,
                })
            }
        }
    }
}
