//! Short spellings of machine code for tests.

use super::listing::{Instruction, Section};

/// A section from lines of an instruction each, labels among them.
///
/// Control bits stand behind `|`, as in `LDS R0, [R1] | w1 r2 wait 0,3`.
pub(super) fn section(lines: &str) -> Section {
    let mut listing = String::from(".text.k:\n");
    let mut address = 0;
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.ends_with(':') {
            listing += &format!("{line}\n");
            continue;
        }
        let (code, control) = line.split_once('|').unwrap_or((line, ""));
        let (mut write, mut read, mut wait) = (7, 7, 0);
        let mut words = control.split_whitespace();
        while let Some(word) = words.next() {
            let number = |text: &str| text.parse::<u64>().expect("a scoreboard");
            if word == "wait" {
                let list = words.next().expect("scoreboards to wait for");
                wait = list.split(',').map(|text| 1 << number(text)).sum();
            } else if let Some(text) = word.strip_prefix('w') {
                write = number(text);
            } else if let Some(text) = word.strip_prefix('r') {
                read = number(text);
            } else {
                panic!("`{word}` in `{line}`: expected w, r or wait");
            }
        }
        let bits: u64 = (write << 5 | read << 8 | wait << 11) << 41;
        listing +=
            &format!("/*{address:04x}*/ {} ; /* 0x0000000000000000 */\n/* {bits:#018x} */\n", code.trim());
        address += 16;
    }
    let mut sections = super::listing::parse(&listing).expect("a listing");
    assert_eq!(sections.len(), 1);
    let section = sections.remove(0);
    assert!(section.instructions.iter().all(|instruction: &Instruction| !instruction.text.is_empty()));
    section
}
