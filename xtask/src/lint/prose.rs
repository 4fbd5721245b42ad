//! The language of the documentation: how long sentences are, and words that nobody outside this repository uses.
//!
//! Pages of the book and READMEs are held to three rules: no sentence of more than 40 words, no private word, and at most 18
//! words a sentence on average. Comments of documentation are held to the first two. Code, tables and headings count for
//! nothing in the average.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// The most words of a sentence.
const LONGEST: usize = 40;
/// The most words of a sentence on average, over a page.
const AVERAGE: f64 = 18.0;
/// A page with fewer sentences has no average worth the name.
const FEWEST: usize = 5;

/// Phrases of our own, each with the field's. A phrase is found as whole words, in lower case.
const PRIVATE: [(&str, &str); 18] = [
    ("lies", "is, has the layout"),
    ("lie", "are, have the layout"),
    ("that is there", "existing"),
    ("that are there", "existing"),
    ("across k", "MN-major"),
    ("only tile", "single wave"),
    ("in turns", "ping-pong"),
    ("starts early", "programmatic dependent launch"),
    ("start early", "programmatic dependent launch"),
    ("best peer", "best baseline"),
    ("peers", "baselines"),
    ("yardstick", "reference"),
    ("largest elements of rows", "top-k"),
    ("experts of tokens", "expert MLP"),
    ("functions of elements", "element-wise operations"),
    ("bolt", "generated update"),
    ("bolts", "adds a generated update"),
    ("bolted", "with a generated update"),
];

/// Such phrases of pages and READMEs alone.
const PRIVATE_OF_PAGES: [(&str, &str); 1] = [("copy engine", "TMA")];

/// A place in a file, and what is wrong there.
#[derive(Debug, PartialEq)]
struct Complaint {
    line: usize,
    what: String,
}

/// What is wrong with the language of the repository's pages and comments.
pub(super) fn complaints(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in files(root)? {
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let complaints = match path.extension().and_then(|extension| extension.to_str()) {
            Some("md") => of_page(&text),
            _ => of_comments(&text),
        };
        let shown = path.strip_prefix(root).unwrap_or(&path).display();
        found.extend(complaints.iter().map(|Complaint { line, what }| format!("{shown}:{line}: {what}")));
    }
    Ok(found)
}

/// The pages and sources that are looked at.
pub(super) fn files(root: &Path) -> Result<Vec<PathBuf>> {
    /// Pages that are records rather than documentation.
    const LEFT_OUT: [&str; 2] = ["target", "corpus"];
    let (mut files, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if name.starts_with('.') || LEFT_OUT.contains(&name.as_ref()) || name == "CHANGELOG.md" {
                continue;
            }
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if entry.file_type()?.is_dir() => folders.push(path),
                Some("md" | "rs") => files.push(path),
                _ => {}
            }
        }
    }
    files.sort();
    Ok(files)
}

/// What is wrong with a page in Markdown.
fn of_page(text: &str) -> Vec<Complaint> {
    let blocks = blocks(text);
    let private = [&PRIVATE[..], &PRIVATE_OF_PAGES].concat();
    let mut complaints: Vec<_> = blocks.iter().flat_map(|block| of_block(block, 1, &private)).collect();
    let lengths: Vec<usize> = blocks
        .iter()
        .filter(|block| block.kind == Kind::Prose)
        .flat_map(|block| sentences(&block.text))
        .map(|sentence| words(&sentence).len())
        .collect();
    let average = lengths.iter().sum::<usize>() as f64 / lengths.len().max(1) as f64;
    if lengths.len() >= FEWEST && average > AVERAGE {
        let what = format!("{average:.1} words a sentence on average, more than {AVERAGE}");
        complaints.push(Complaint { line: 1, what });
    }
    complaints
}

/// What is wrong with the comments of documentation in a source in Rust.
fn of_comments(text: &str) -> Vec<Complaint> {
    let (mut complaints, mut comment, mut start) = (Vec::new(), String::new(), 0);
    for (index, line) in text.lines().chain([""]).enumerate() {
        let line = line.trim_start();
        let of_comment = ["///", "//!"].iter().find_map(|mark| line.strip_prefix(mark));
        // Four slashes are an ordinary comment.
        match of_comment.filter(|rest| !rest.starts_with('/')) {
            Some(rest) => {
                if comment.is_empty() {
                    start = index + 1;
                }
                comment.push_str(rest.strip_prefix(' ').unwrap_or(rest));
                comment.push('\n');
            }
            None if !comment.is_empty() => {
                complaints.extend(blocks(&comment).iter().flat_map(|block| of_block(block, start, &PRIVATE)));
                comment.clear();
            }
            None => {}
        }
    }
    complaints
}

/// What is wrong with a block, of a text that begins at line `start` and has no phrases of these.
fn of_block(block: &Block, start: usize, private: &[(&str, &str)]) -> Vec<Complaint> {
    let line = start + block.line;
    let mut complaints = Vec::new();
    for sentence in sentences(&block.text) {
        let words = words(&sentence);
        let beginning = || words.iter().take(6).copied().collect::<Vec<_>>().join(" ");
        if words.len() > LONGEST {
            let what = format!("{} words, more than {LONGEST}: \"{} …\"", words.len(), beginning());
            complaints.push(Complaint { line, what });
        }
        for (phrase, instead) in private {
            if has_phrase(&words, phrase) {
                let what = format!("\"{phrase}\", which others call \"{instead}\": \"{} …\"", beginning());
                complaints.push(Complaint { line, what });
            }
        }
    }
    complaints
}

/// Whether these words, one after the other, are in a sentence.
fn has_phrase(words: &[&str], phrase: &str) -> bool {
    let bare = |word: &str| {
        // PEER is the name of a layer, and a peer is not.
        let is_name = word.len() > 1 && word.chars().all(|character| !character.is_lowercase());
        let word = word.trim_matches(|character: char| !character.is_alphanumeric());
        if is_name && word.len() > 1 { word.to_owned() } else { word.to_lowercase() }
    };
    let words: Vec<String> = words.iter().map(|word| bare(word)).collect();
    let phrase: Vec<&str> = phrase.split(' ').collect();
    words.windows(phrase.len()).any(|window| window.iter().zip(&phrase).all(|(word, other)| word == other))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Paragraphs and items of lists.
    Prose,
    /// Headings and cells of tables.
    Other,
}

/// A run of text that no sentence goes beyond.
#[derive(Debug)]
struct Block {
    kind: Kind,
    /// Lines before it.
    line: usize,
    /// Its words; each piece of code is one.
    text: String,
}

/// A piece of code, as a word.
const CODE: &str = "code";

/// The blocks of a text in Markdown, code and HTML left out.
fn blocks(text: &str) -> Vec<Block> {
    let lines = |offset: usize| text[..offset].matches('\n').count();
    let mut blocks: Vec<Block> = Vec::new();
    let mut current = Block { kind: Kind::Prose, line: 0, text: String::new() };
    let mut in_code = false;
    let mut end = |current: &mut Block, kind: Kind, offset: usize| {
        let next = Block { kind, line: lines(offset), text: String::new() };
        let block = std::mem::replace(current, next);
        if !block.text.trim().is_empty() {
            blocks.push(block);
        }
    };
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_) | CodeBlockKind::Indented)) => {
                in_code = true;
            }
            Event::End(TagEnd::CodeBlock) => in_code = false,
            Event::Start(Tag::Paragraph | Tag::Item) => end(&mut current, Kind::Prose, range.start),
            Event::Start(Tag::Heading { .. } | Tag::TableCell) => end(&mut current, Kind::Other, range.start),
            Event::End(TagEnd::Paragraph | TagEnd::Item | TagEnd::Heading(_) | TagEnd::TableCell) => {
                end(&mut current, Kind::Prose, range.end.min(text.len()));
            }
            Event::Text(piece) if !in_code => current.text.push_str(&piece),
            Event::Code(_) => current.text.push_str(CODE),
            Event::SoftBreak | Event::HardBreak => current.text.push(' '),
            _ => {}
        }
    }
    end(&mut current, Kind::Other, text.len());
    blocks
}

/// The sentences of a block.
fn sentences(text: &str) -> Vec<String> {
    /// What ends in a full stop and ends no sentence.
    const SHORT: [&str; 6] = ["e.g.", "i.e.", "etc.", "vs.", "al.", "No."];
    let (mut sentences, mut sentence) = (Vec::new(), String::new());
    for word in text.split_whitespace() {
        sentence.push_str(word);
        sentence.push(' ');
        let bare = word.trim_end_matches(['"', '”', '\'', ')', ']', '*']);
        if bare.ends_with(['.', '!', '?']) && !SHORT.contains(&bare.trim_start_matches('(')) {
            sentences.push(std::mem::take(&mut sentence));
        }
    }
    if !sentence.is_empty() {
        sentences.push(sentence);
    }
    sentences
}

/// The words of a sentence: what has a letter or a digit.
fn words(sentence: &str) -> Vec<&str> {
    sentence.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).collect()
}

#[cfg(test)]
mod tests {
    use super::{complaints, of_comments, of_page, sentences};
    use crate::workspace_root;

    /// A sentence of this many words.
    fn sentence(words: usize) -> String {
        vec!["word"; words].join(" ") + ". "
    }

    #[test]
    fn sentences_end_at_full_stops_but_not_at_those_of_abbreviations_and_numbers() {
        let text = "One of 0.5 or so, e.g. this. Two (as it is.) Three? four";
        assert_eq!(
            sentences(text),
            ["One of 0.5 or so, e.g. this. ", "Two (as it is.) ", "Three? ", "four "]
        );
    }

    #[test]
    fn a_sentence_that_is_too_long_is_found_with_its_line() {
        assert_eq!(of_page(&sentence(40)), []);
        let found = of_page(&format!("# Title\n\nShort.\n\n{}", sentence(41)));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, &found[0].what[..8]), (5, "41 words"));
        // In a list and in a table, too.
        assert_eq!(of_page(&format!("- {}", sentence(41))).len(), 1);
        assert_eq!(of_page(&format!("| a |\n|---|\n| {} |\n", sentence(41))).len(), 1);
    }

    #[test]
    fn code_is_not_language() {
        assert_eq!(of_page(&format!("```text\n{} lies\n```\n", sentence(50))), []);
        assert_eq!(of_page(&format!("It calls `{} lies`.", sentence(50))), []);
        assert_eq!(of_page("<!-- lies -->\n"), []);
    }

    #[test]
    fn the_average_is_of_prose_alone() {
        let page = |words: usize| sentence(words).repeat(5);
        assert_eq!(of_page(&page(18)), []);
        let found = of_page(&page(19));
        assert_eq!(found.len(), 1);
        assert!(found[0].what.starts_with("19.0 words"), "{found:?}");
        // Headings and tables neither lengthen nor shorten sentences.
        assert_eq!(of_page(&format!("{}\n\n| a |\n|---|\n| b |\n| c |\n", page(19))).len(), 1);
        assert_eq!(of_page(&format!("{}\n\n# {}\n", page(18), sentence(30))), []);
    }

    #[test]
    fn private_words_are_found_as_whole_words() {
        let of = |text| of_page(text).len();
        assert_eq!(of("X lies across\nK. Two best peers."), 3);
        assert_eq!(of("Y is added to a tensor that is there."), 1);
        assert_eq!(of("PEER layers of a family of believers, with applies and allies."), 0);
        assert_eq!(of("Lies are told."), 1);
    }

    #[test]
    fn comments_of_documentation_are_looked_at_and_others_are_not() {
        let text = format!(
            "fn a() {{\n    /// One.\n    /// Where it lies.\n    b // lies\n}}\n//! {}",
            sentence(41)
        );
        let found = of_comments(&text);
        assert_eq!(found.iter().map(|complaint| complaint.line).collect::<Vec<_>>(), [2, 6]);
        assert_eq!(of_comments(&format!("//// {}\n// lies\n", sentence(41))), []);
        // Code in a comment is code.
        assert_eq!(of_comments("/// ```\n/// let lies = 1;\n/// ```\n"), []);
    }

    #[test]
    fn some_words_are_private_in_pages_alone() {
        assert_eq!(of_page("The copy engine stores it.").len(), 1);
        assert_eq!(of_comments("/// The copy engine stores it.\n"), []);
    }

    #[test]
    fn the_documentation_is_in_plain_words() {
        let found = complaints(&workspace_root()).expect("the repository");
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}
