//! The entries in a module's index, for the program and for `build.rs`.

/// The entries of an index, in the order of their texts: name, bytes of text, SHA-256 of the text. `None` is a line that is no entry.
pub(crate) fn entries(index: &str) -> impl Iterator<Item = Option<(&str, usize, &str)>> {
    let lines = index.lines().filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.map(|line| {
        let mut words = line.split_whitespace();
        let entry = (words.next()?, words.next()?.parse().ok()?, words.next()?);
        words.next().is_none().then_some(entry)
    })
}
