//! Tables of the documentation: a row is one line that begins with `|`.
//!
//! Markdown takes any line directly behind a table as one more row of it, with its text in the first cell. So a cell that is
//! wrapped over lines, or a paragraph without an empty line before it, breaks the page without a message.

use std::path::Path;

use anyhow::{Context as _, Result};
use pulldown_cmark::{Event, Options, Parser, Tag};

/// What is wrong with such a line, and what to do.
const WHAT: &str = "a row without a leading `|`; join it to the row before, or leave a line empty";

/// Lines of the repository's pages that are rows of a table and do not look like one.
pub(super) fn complaints(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in super::prose::files(root)? {
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let shown = path.strip_prefix(root).unwrap_or(&path).display();
        found.extend(of_page(&text).iter().map(|line| format!("{shown}:{line}: {WHAT}")));
    }
    Ok(found)
}

/// The numbers of the lines of a page in Markdown that are rows without a leading `|`.
fn of_page(text: &str) -> Vec<usize> {
    Parser::new_ext(text, Options::ENABLE_TABLES)
        .into_offset_iter()
        .filter(|(event, _)| matches!(event, Event::Start(Tag::TableHead | Tag::TableRow)))
        .map(|(_, range)| range.start)
        .filter(|&start| !text[start..].trim_start().starts_with('|'))
        .map(|start| text[..start].matches('\n').count() + 1)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{complaints, of_page};
    use crate::workspace_root;

    const NONE: [usize; 0] = [];

    #[test]
    fn a_row_that_is_wrapped_over_lines_is_found_with_its_line() {
        assert_eq!(of_page("| a | b |\n|---|---|\n| c | d |\n\nText.\n"), NONE);
        assert_eq!(of_page("| a | b |\n|---|---|\n| c | d\ne and f. |\n| g | h |\n"), [4]);
        assert_eq!(of_page("Text.\n\n| a |\n|---|\n| b |\nA paragraph.\n"), [6]);
        assert_eq!(of_page("a | b\n---|---\nc | d\n"), [1, 3]);
    }

    #[test]
    fn what_ends_a_table_is_no_row() {
        let behind = |text: &str| of_page(&format!("| a |\n|---|\n| b |\n{text}\n"));
        assert_eq!(behind("<!-- end of table -->"), NONE);
        assert_eq!(behind("# A heading"), NONE);
        assert_eq!(behind("```text\n| c |\nd\n```"), NONE);
        // Within code there are no tables.
        assert_eq!(of_page("```text\n| a |\n|---|\n| b |\nc\n```\n"), NONE);
    }

    #[test]
    fn tables_of_lists_are_tables() {
        assert_eq!(of_page("- Text.\n\n  | a |\n  |---|\n  | b |\n"), NONE);
        assert_eq!(of_page("- Text.\n\n  | a |\n  |---|\n  | b |\n  c\n"), [6]);
    }

    #[test]
    fn the_rows_of_the_documentation_are_lines() {
        let found = complaints(&workspace_root()).expect("the repository");
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}
