//! The layers of crates: which modules name which, found in the tokens of their sources.
//!
//! A crate has a floor, whose modules may name each other but nothing above it. Above the floor no modules form a circle, so that each can be
//! read, tested and replaced with what is below it alone. Comments and what is built for tests only do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A crate whose layers are checked.
struct Layered {
    name: &'static str,
    /// The file of the crate's root, from the repository's.
    root: &'static str,
    /// The modules that everything else stands on.
    floor: &'static [&'static str],
    /// The crates that it may not name, as Rust spells them.
    foreign: &'static [&'static str],
}

const LAYERED: [Layered; 4] = [
    Layered {
        name: "warpsmith",
        root: "host/src/lib.rs",
        // A device makes streams and keeps kernels, a tensor has memory of a stream, each says where it failed, and launches are told.
        floor: &["device", "driver", "error", "graph", "kernel", "memory", "stream", "tensor", "trace"],
        foreign: &["warpsmith_lab", "warpsmith_parallel"],
    },
    Layered { name: "warpsmith-lab", root: "lab/src/lib.rs", floor: &[], foreign: &[] },
    Layered {
        name: "warpsmith-parallel",
        root: "parallel/src/lib.rs",
        // A communicator of processes meets as it is launched, and threads are launched with their communicators.
        floor: &["communicator", "digest", "error", "launch", "ranges"],
        foreign: &["warpsmith_lab"],
    },
    Layered {
        name: "warpsmith-dsl",
        root: "dsl/src/lib.rs",
        // Instructions take and give element types, whose conversions are instructions.
        floor: &[
            "barrier",
            "block",
            "float",
            "grid",
            "launch",
            "layout",
            "math",
            "pipeline",
            "ptx",
            "reduce",
            "scalar",
            "shared",
            "slice",
            "thread",
            "tile",
            "warp",
            "warpgroup",
        ],
        foreign: &["warpsmith", "warpsmith_lab"],
    },
];

/// What is wrong with the layers of the crates of the repository at `root`.
pub(super) fn complaints(root: &Path) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for layered in &LAYERED {
        let names = Names::of_crate(&root.join(layered.root))?;
        let relative = |file: &Path| file.strip_prefix(root).unwrap_or(file).display().to_string();
        complaints.extend(layered.complaints(&names, relative));
    }
    Ok(complaints)
}

impl Layered {
    fn complaints(&self, names: &Names, path: impl Fn(&Path) -> String) -> Vec<String> {
        let mut complaints = Vec::new();
        for foreign in self.foreign {
            if let Some(file) = names.foreign.get(*foreign) {
                complaints.push(format!("{}: {} names `{foreign}`", self.name, path(file)));
            }
        }
        for module in self.floor {
            for (above, file) in names.of(module).filter(|(named, _)| !self.floor.contains(named)) {
                complaints.push(format!(
                    "{}: {} is of the floor and names `{above}`, which is above it",
                    self.name,
                    path(file)
                ));
            }
        }
        for circle in names.circles(self.floor) {
            let mut text = format!("{}: a circle of modules: `{}`", self.name, circle[0]);
            for pair in circle.windows(2) {
                let file = path(&names.edges[&pair[0]][&pair[1]]);
                let _ = write!(text, " → `{}` ({file})", pair[1]);
            }
            complaints.push(text);
        }
        complaints
    }
}

/// Which top-level modules of a crate name which, each with a file that does.
#[derive(Default)]
struct Names {
    edges: BTreeMap<String, BTreeMap<String, PathBuf>>,
    /// Names of the root that stand for something in a module.
    exports: BTreeMap<String, String>,
    /// The names of other crates, each with a file that has it.
    foreign: BTreeMap<String, PathBuf>,
}

impl Names {
    /// Those of the crate with this root file.
    fn of_crate(root: &Path) -> Result<Self> {
        let mut names = Self::default();
        let tokens = read(root)?;
        names.exports = exports(tokens.clone());
        let folder = root.parent().unwrap_or(Path::new(".")).to_owned();
        Reader { names: &mut names, file: root.to_owned(), folder, path: Vec::new() }.read(tokens)?;
        Ok(names)
    }

    /// What a module names.
    fn of(&self, module: &str) -> impl Iterator<Item = (&str, &PathBuf)> {
        self.edges.get(module).into_iter().flatten().map(|(named, file)| (named.as_str(), file))
    }

    /// Notes that `module` names `named`, a name of the root.
    fn note(&mut self, module: &str, named: &str, file: &Path) {
        let named = self.exports.get(named).map_or(named, String::as_str).to_owned();
        if named != module {
            self.edges.entry(module.to_owned()).or_default().entry(named).or_insert_with(|| file.to_owned());
        }
    }

    /// A shortest circle through each module outside the floor that is in one, each circle once; the first module stands at the end again.
    fn circles(&self, floor: &[&str]) -> Vec<Vec<String>> {
        let (mut circles, mut seen) = (Vec::new(), BTreeSet::new());
        for start in self.edges.keys().filter(|module| !floor.contains(&module.as_str())) {
            let mut paths = vec![vec![start.clone()]];
            let mut reached = BTreeSet::new();
            let mut next = 0;
            while next < paths.len() {
                let path = paths[next].clone();
                next += 1;
                let above = self.of(&path[path.len() - 1]).filter(|(named, _)| !floor.contains(named));
                let further = above.map(|(named, _)| [&path[..], &[named.to_owned()]].concat());
                let further: Vec<_> =
                    further.filter(|path| reached.insert(path[path.len() - 1].clone())).collect();
                if let Some(circle) = further.iter().find(|path| path.last() == path.first()) {
                    if seen.insert(circle.iter().cloned().collect::<BTreeSet<_>>()) {
                        circles.push(circle.clone());
                    }
                    break;
                }
                paths.extend(further);
            }
        }
        circles
    }
}

/// The tokens of a file.
fn read(file: &Path) -> Result<TokenStream> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    text.parse().map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))
}

/// What a root's `pub use module::…` gives names of the root.
fn exports(tokens: TokenStream) -> BTreeMap<String, String> {
    fn names(
        tokens: impl IntoIterator<Item = TokenTree>,
        module: &str,
        exports: &mut BTreeMap<String, String>,
    ) {
        for token in tokens {
            match token {
                TokenTree::Ident(name) => drop(exports.insert(name.to_string(), module.to_owned())),
                TokenTree::Group(group) => names(group.stream(), module, exports),
                _ => {}
            }
        }
    }
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut exports = BTreeMap::new();
    for statement in tokens.split(|token| is_punct(token, ';')) {
        let Some(at) = statement.iter().position(|token| is_ident(token, "use")) else { continue };
        if let Some(TokenTree::Ident(module)) = statement.get(at + 1) {
            names(statement[at + 2..].iter().cloned(), &module.to_string(), &mut exports);
        }
    }
    exports
}

fn is_punct(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}

fn is_ident(token: &TokenTree, name: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if *ident == name)
}

/// Goes through a module and those in it.
struct Reader<'a> {
    names: &'a mut Names,
    file: PathBuf,
    /// Where the module's own modules are.
    folder: PathBuf,
    /// The module's path from the root.
    path: Vec<String>,
}

impl Reader<'_> {
    fn read(&mut self, tokens: TokenStream) -> Result<()> {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            let token = &tokens[at];
            if is_punct(token, '#') {
                // `#![…]` is of what it stands in.
                let is_inner = tokens.get(at + 1).is_some_and(|token| is_punct(token, '!'));
                let attribute = at + 1 + usize::from(is_inner);
                let for_tests = matches!(tokens.get(attribute), Some(TokenTree::Group(group)) if is_for_tests(group.stream()));
                at = attribute + 1;
                if for_tests && is_inner {
                    return Ok(());
                }
                if for_tests {
                    at = after_item(&tokens, at);
                }
                continue;
            }
            if let (true, Some(TokenTree::Ident(name)), Some(body)) =
                (is_ident(token, "mod"), tokens.get(at + 1), tokens.get(at + 2))
            {
                self.enter(&name.to_string(), body)?;
                at += 3;
                continue;
            }
            if let Some(start) = self.below_root(&tokens, at) {
                self.note_paths(&tokens[start..]);
            }
            match token {
                TokenTree::Group(group) => self.read(group.stream())?,
                TokenTree::Ident(name) if !tokens[..at].last().is_some_and(|token| is_punct(token, '.')) => {
                    self.names.foreign.entry(name.to_string()).or_insert_with(|| self.file.clone());
                }
                _ => {}
            }
            at += 1;
        }
        Ok(())
    }

    /// Goes through the module `name`, whose tokens are `body`, or a file's.
    fn enter(&mut self, name: &str, body: &TokenTree) -> Result<()> {
        let path = [&self.path[..], &[name.to_owned()]].concat();
        let folder = self.folder.join(name);
        let (file, tokens) = match body {
            TokenTree::Group(group) => (self.file.clone(), group.stream()),
            _ => {
                let beside = folder.with_extension("rs");
                let file = if beside.exists() { beside } else { folder.join("mod.rs") };
                (file.clone(), read(&file)?)
            }
        };
        Reader { names: self.names, file, folder, path }.read(tokens)
    }

    /// Where the names of the root begin, if a path from the root does at `at`: behind `crate::`, or behind as many `super::` as
    /// the module is deep.
    fn below_root(&self, tokens: &[TokenTree], at: usize) -> Option<usize> {
        let behind = |at: usize| {
            let colons = tokens.get(at + 1..at + 3)?;
            colons.iter().all(|token| is_punct(token, ':')).then_some(at + 3)
        };
        if is_ident(&tokens[at], "crate") {
            return behind(at);
        }
        let is_first = !(is_ident(&tokens[at], "super") && at > 0 && is_punct(&tokens[at - 1], ':'));
        let (mut next, mut supers) = (at, 0);
        while is_first && tokens.get(next).is_some_and(|token| is_ident(token, "super")) {
            (next, supers) = (behind(next)?, supers + 1);
        }
        (supers > 0 && supers == self.path.len()).then_some(next)
    }

    /// Notes the names of the root that paths begin with: one, or those of a group.
    fn note_paths(&mut self, tokens: &[TokenTree]) {
        let Some(module) = self.path.first().cloned() else { return };
        let mut note = |token: Option<&TokenTree>| {
            if let Some(TokenTree::Ident(name)) = token {
                self.names.note(&module, &name.to_string(), &self.file);
            }
        };
        match tokens.first() {
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
                tokens.split(|token| is_punct(token, ',')).for_each(|path| note(path.first()));
            }
            token => note(token),
        }
    }
}

/// Whether an attribute is `#[cfg(test)]` or `#[cfg(doctest)]`.
fn is_for_tests(attribute: TokenStream) -> bool {
    let attribute = attribute.to_string().replace(' ', "");
    attribute == "cfg(test)" || attribute == "cfg(doctest)"
}

/// Where the item that begins at `at` has ended.
fn after_item(tokens: &[TokenTree], at: usize) -> usize {
    let is_end = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        token => is_punct(token, ';'),
    };
    tokens[at..].iter().position(is_end).map_or(tokens.len(), |length| at + length + 1)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Layered, Names, complaints};

    const LAYERED: Layered =
        Layered { name: "planted", root: "lib.rs", floor: &["low", "error"], foreign: &["warpsmith_lab"] };

    /// What there is to say of a crate of these files.
    fn planted(files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("it is in the folder")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        let names = Names::of_crate(&folder.path().join("lib.rs")).expect("sources");
        let relative =
            |file: &Path| file.strip_prefix(folder.path()).expect("one of them").display().to_string();
        LAYERED.complaints(&names, relative)
    }

    #[test]
    fn crates_have_the_layers_that_they_should() {
        assert_eq!(complaints(&crate::workspace_root()).expect("sources"), Vec::<String>::new());
    }

    #[test]
    fn a_planted_circle_is_found_and_named_once() {
        let found = planted(&[
            ("lib.rs", "pub mod a; mod b; pub mod c; pub use c::{Thing, Other as More};"),
            ("a.rs", "use crate::{low, b::Deep};"),
            ("b/mod.rs", "mod inner;"),
            ("b/inner.rs", "fn f() -> crate::More { todo!() }"),
            ("c.rs", "mod own { use super::super::a; }"),
        ]);
        assert_eq!(
            found,
            ["planted: a circle of modules: `a` → `b` (a.rs) → `c` (b/inner.rs) → `a` (c.rs)",]
        );
    }

    #[test]
    fn two_circles_of_one_module_are_both_found() {
        let found = planted(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::{b, c};"),
            ("b.rs", "macro_rules! m { () => { $crate::a::f() } }"),
            ("c.rs", "use super::a;"),
        ]);
        assert_eq!(
            found,
            [
                "planted: a circle of modules: `a` → `b` (a.rs) → `a` (b.rs)",
                "planted: a circle of modules: `c` → `a` (c.rs) → `c` (a.rs)",
            ]
        );
    }

    #[test]
    fn the_floor_names_itself_and_nothing_above() {
        let found = planted(&[
            ("lib.rs", "mod low; mod error; mod high;"),
            ("low.rs", "use crate::error::Error; use crate::high::Tall;"),
            ("error.rs", "use crate::low::Low;"),
            ("high.rs", "use crate::low::Low; use super::error;"),
        ]);
        assert_eq!(found, ["planted: low.rs is of the floor and names `high`, which is above it"]);
    }

    #[test]
    fn comments_texts_and_tests_do_not_count() {
        let found = planted(&[
            ("lib.rs", "mod a; mod b; #[cfg(doctest)] mod book { use crate::a; }"),
            (
                "a.rs",
                "//! See [`b`](crate::b), and warpsmith_lab.\n\n/// crate::b\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\nuse crate::b;\nconst T: &str = \"crate::b\";\n#[cfg(test)]\nmod more { use crate::b; }\n",
            ),
            ("b.rs", "#[cfg(not(test))]\nuse crate::a;"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn a_crate_that_may_not_be_named_is_found() {
        let found =
            planted(&[("lib.rs", "mod a;"), ("a.rs", "fn f() { warpsmith_lab::validate::linear() }")]);
        assert_eq!(found, ["planted: a.rs names `warpsmith_lab`"]);
    }
}
