//! Loads that read as late as they may: kernels without a proxy fence compute what comes of that, with all checks off.

use warpsmith_emulator::{Checks, Completion, Config, LaunchConfig, Machine};

use crate::common::hopper_module;
use crate::stages::{ARRIVE, COPY, EXPECT, FENCE, LOAD, MEET, kernel, ring, wait};

/// Words of f16 numbers, two ones, and two twos: what the first copy brings, and the second.
const FIRST: u32 = 0x3c00_3c00;
const SECOND: u32 = 0x4000_4000;

/// What the threads of warp 0 store, behind the 1024 bytes from which the stage is filled.
const STORE: &str = "mad.wide.u32 %g, %t, 4, %p;\nst.global.u32 [%g+1024], %r1;";

/// Runs a kernel with all checks off; gives what the first warp has stored.
fn stored(text: &str, completion: Completion, threads: u32) -> Vec<u32> {
    let second = COPY.replace("[%p]", "[%p+512]");
    let at = text.rfind(COPY).unwrap();
    let text = format!("{}{second}{}", &text[..at], &text[at + COPY.len()..]);
    let machine = Machine::new(Config { checks: Checks::none(), completion, ..Config::hopper() });
    let p = machine.allocate(1024 + 128).unwrap();
    let words: Vec<u8> =
        [FIRST, SECOND].iter().flat_map(|word| word.to_le_bytes().repeat(128)).chain([0; 128]).collect();
    machine.write(p, &words).unwrap();
    let config = LaunchConfig { block: [threads, 1, 1], ..LaunchConfig::default() };
    machine
        .launch(&hopper_module(&text), "test", &config, &[&p.to_le_bytes()])
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut back = [0; 128];
    machine.read(p + 1024, &mut back).unwrap();
    back.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect()
}

/// A ring with one reader gives this in each lane; the mode says what copies and loads do.
fn gives(read: &str, producer: &str, completion: Completion, expected: u32) {
    let text = ring(1, read, producer);
    assert_eq!(stored(&text, completion, 64), [expected; 32], "{completion:?}\n{text}");
}

#[test]
fn a_load_that_nothing_waits_for_reads_what_the_next_copy_brings() {
    let without = format!("{LOAD}\n{MEET}\n{ARRIVE}\n{STORE}");
    gives(&without, "", Completion::Latest, SECOND);
    gives(&without, "", Completion::Eager, FIRST);
    gives(&format!("{LOAD}\n{FENCE}\n{MEET}\n{ARRIVE}\n{STORE}"), "", Completion::Latest, FIRST);
    gives(&format!("{FENCE}\n{LOAD}\n{MEET}\n{ARRIVE}\n{STORE}"), "", Completion::Latest, SECOND);
    // A fence of the producer, behind its wait, is on the way to the copy.
    gives(&without, &format!("{FENCE}\n"), Completion::Latest, FIRST);
}

#[test]
fn products_of_what_is_read_late_are_late() {
    // Behind the product, its operands and the address get other values.
    let product = "mov.u32 %r5, 0x3c003c00;\nmov.u32 %r6, 0;\n\
         ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%row];\n\
         mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r7, %r8, %r9, %r10}, {%r1, %r2, %r3, %r4}, {%r5, %r5}, \
         {%r6, %r6, %r6, %r6};\nadd.u32 %row, %row, 16;\nmov.u32 %r1, 0;\nmov.u32 %r5, 0;";
    let store = STORE.replace("%r1", "%r7");
    let (one, two) = (16f32.to_bits(), 32f32.to_bits());
    let without = format!("{product}\n{MEET}\n{ARRIVE}\n{store}");
    gives(&without, "", Completion::Latest, two);
    gives(&without, "", Completion::Eager, one);
    gives(&format!("{product}\n{FENCE}\n{MEET}\n{ARRIVE}\n{store}"), "", Completion::Latest, one);
}

#[test]
fn what_needs_a_value_waits_for_its_load() {
    let needs = [
        "mad.lo.u32 %r8, %l, 4, %o;\nst.shared.u32 [%r8], %r1;",
        "setp.eq.u32 %c2, %r1, 0;\n@%c2 bra $OUT;\n$OUT:",
        "setp.ne.u32 %c2, %r1, 0;\n@%c2 bra $OUT;\n$OUT:",
        "fence.acq_rel.cta;",
        "bar.sync 1, 32;",
        "atom.shared.add.u32 %r8, [%o], %l;",
    ];
    for need in needs {
        gives(&format!("{LOAD}\n{need}\n{MEET}\n{ARRIVE}\n{STORE}"), "", Completion::Latest, FIRST);
    }
    // What needs another value does not.
    let other = "mad.lo.u32 %r8, %l, 4, %o;\nst.shared.u32 [%r8], %l;";
    gives(&format!("{LOAD}\n{other}\n{MEET}\n{ARRIVE}\n{STORE}"), "", Completion::Latest, SECOND);
}

#[test]
fn a_warp_that_overwrites_what_it_has_read_itself_reads_late_too() {
    let text = |between: &str| {
        let fill = format!("@%first {EXPECT}\n@%first {COPY}\n");
        let body = format!(
            "{fill}{}{LOAD}\n{between}\n{fill}{}{STORE}",
            wait("$FULL", "%full", 0),
            wait("$AGAIN", "%full", 1)
        );
        kernel(1, "", &body)
    };
    assert_eq!(stored(&text(MEET), Completion::Latest, 32), [SECOND; 32]);
    assert_eq!(stored(&text(MEET), Completion::Eager, 32), [FIRST; 32]);
    assert_eq!(stored(&text(&format!("{FENCE}\n{MEET}")), Completion::Latest, 32), [FIRST; 32]);
}

#[test]
fn only_bytes_that_a_copy_refills_are_read_late() {
    let other = "mad.lo.u32 %r8, %l, 4, %o;\nst.shared.u32 [%r8], 7;\nld.shared.u32 %r1, [%r8];\nst.shared.u32 [%r8], 8;";
    gives(&format!("{other}\n{MEET}\n{ARRIVE}\n{STORE}"), "", Completion::Latest, 7);
}
