//! A launch gives the same, results and findings, whatever the number of threads.

use proptest::prelude::*;
use warpsmith_emulator::{Config, Limits, Machine};

use crate::common::{finding, launch, module};

/// What a word and an operand become.
type Reduce = fn(u64, u64) -> u64;

/// Reductions, and what they make of a word in this order; those of 32 bits leave the upper half.
const REDUCTIONS: [(&str, Reduce); 12] = [
    ("add.u32", |old, new| u64::from((old as u32).wrapping_add(new as u32))),
    ("add.s32", |old, new| u64::from((old as u32).wrapping_add(new as u32))),
    ("add.u64", u64::wrapping_add),
    ("min.u32", |old, new| u64::from((old as u32).min(new as u32))),
    ("max.s32", |old, new| u64::from((old as i32).max(new as i32).cast_unsigned())),
    ("min.s64", |old, new| old.cast_signed().min(new.cast_signed()).cast_unsigned()),
    ("max.u64", u64::max),
    ("and.b32", |old, new| u64::from(old as u32 & new as u32)),
    ("or.b32", |old, new| u64::from(old as u32 | new as u32)),
    ("or.b64", |old, new| old | new),
    ("xor.b32", |old, new| u64::from(old as u32 ^ new as u32)),
    ("xor.b64", |old, new| old ^ new),
];

/// What a block does wrong.
#[derive(Clone, Copy, Debug)]
enum Mistake {
    None,
    /// It reads far outside.
    Outside,
    /// It writes what thread 0 of block 0 writes, too.
    Meets,
    /// It reads a word that others add to.
    Reads,
}

/// Every thread of a launch changes one of some words by one or more reductions, and writes a word of its own.
#[derive(Clone, Debug)]
struct Program {
    reductions: Vec<usize>,
    blocks: u32,
    threads: u32,
    words: u32,
    factor: u64,
    mistake: (Mistake, u32),
}

impl Program {
    fn text(&self) -> String {
        let wide = |reduction: &str| if reduction.ends_with("64") { "%x1" } else { "%r1" };
        let reductions: String = self
            .reductions
            .iter()
            .map(|&index| REDUCTIONS[index].0)
            .map(|name| format!("red.global.{name} [%w], {};\n", wide(name)))
            .collect();
        let mistake = match self.mistake.0 {
            Mistake::None => "",
            Mistake::Outside => "ld.global.u32 %r4, [%o + 1048576];",
            Mistake::Meets => "st.global.u64 [%o], %x1;",
            Mistake::Reads => "ld.global.u64 %x1, [%p];",
        };
        format!(
            ".visible .entry test(.param .u64 p, .param .u64 o, .param .u64 factor)\n{{\n.reg .b64 %p, %o, %q, %w, %x<3>;\n\
             .reg .b32 %r<6>;\n.reg .pred %c;\nld.param.u64 %p, [p];\nld.param.u64 %o, [o];\nld.param.u64 %x0, [factor];\n\
             mov.u32 %r0, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nmov.u32 %r3, %tid.x;\nmad.lo.u32 %r3, %r0, %r2, %r3;\n\
             mad.wide.u32 %q, %r3, 8, %o;\nrem.u32 %r4, %r3, {};\nmad.wide.u32 %w, %r4, 8, %p;\n\
             cvt.u64.u32 %x1, %r3;\nadd.s64 %x1, %x1, 1;\nmul.lo.u64 %x1, %x1, %x0;\ncvt.u32.u64 %r1, %x1;\n\
             {reductions}st.global.u64 [%q], %x1;\nsetp.ne.u32 %c, %r0, {};\n@%c exit;\n{mistake}\nret;\n}}\n",
            self.words, self.mistake.1
        )
    }

    /// What the launch leaves, with the warp-instructions; or its finding.
    fn run(&self, threads: usize) -> Result<(u64, Vec<u64>), String> {
        let machine = Machine::new(Config { threads: Some(threads), ..Config::default() });
        let (words, own) = (u64::from(self.words), u64::from(self.blocks * self.threads));
        let [p, o] = [words, own].map(|count| {
            let address = machine.allocate(8 * count).unwrap();
            machine.fill(address, 0, 8 * count).unwrap();
            address
        });
        let report =
            launch(&machine, &module(&self.text()), self.blocks, self.threads, 0, &[p, o, self.factor])
                .map_err(|error| error.to_string())?;
        let mut left = vec![0; 8 * (words + own) as usize];
        let (first, second) = left.split_at_mut(8 * words as usize);
        machine.read(p, first).unwrap();
        machine.read(o, second).unwrap();
        let left = left.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Ok((report.warp_instructions, left))
    }

    /// The same by one thread after the other.
    fn expected(&self) -> Vec<u64> {
        let mut words = vec![0u64; self.words as usize];
        let mut own = Vec::new();
        for thread in 0..u64::from(self.blocks * self.threads) {
            let value = (thread + 1).wrapping_mul(self.factor);
            let word = &mut words[(thread % u64::from(self.words)) as usize];
            for &index in &self.reductions {
                let (name, reduce) = REDUCTIONS[index];
                let keep = if name.ends_with("64") { 0 } else { !0 << 32 };
                *word = *word & keep | reduce(*word, value) & !keep;
            }
            own.push(value);
        }
        words.extend(own);
        words
    }
}

fn programs() -> impl Strategy<Value = Program> {
    let mistakes = prop_oneof![
        3 => Just(Mistake::None),
        1 => Just(Mistake::Outside),
        1 => Just(Mistake::Meets),
        1 => Just(Mistake::Reads),
    ];
    let reductions = prop_oneof![
        (0..REDUCTIONS.len(), 1..3usize).prop_map(|(index, count)| vec![index; count]),
        prop::collection::vec(0..REDUCTIONS.len(), 0..4),
    ];
    let sizes = (1..40u32, 1..100u32, prop_oneof![Just(1u32), 1..70u32], any::<u64>());
    (reductions, sizes, mistakes).prop_flat_map(|(reductions, (blocks, threads, words, factor), mistake)| {
        (0..blocks).prop_map(move |at| Program {
            reductions: reductions.clone(),
            blocks,
            threads,
            words,
            factor,
            mistake: (mistake, at),
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn any_number_of_threads_leaves_the_same_and_finds_the_same(program in programs()) {
        let one = program.run(1);
        for threads in [2, 3, 8] {
            prop_assert_eq!(&program.run(threads), &one, "{} threads: {}", threads, program.text());
        }
        let alike = program.reductions.windows(2).all(|pair| pair[0] == pair[1]);
        match (program.mistake, one) {
            ((Mistake::None, _), Ok((_, left))) if alike => prop_assert_eq!(left, program.expected()),
            ((Mistake::None, _), Ok(_)) => {}
            ((Mistake::None, _), Err(error)) => prop_assert!(false, "{}", error),
            ((Mistake::Outside, at), Err(error)) => {
                prop_assert!(error.contains("[out-of-bounds]"), "{}", error);
                let place = format!("block ({at}, 0, 0)");
                prop_assert!(error.contains(&place), "{}", error);
            }
            ((Mistake::Outside, _), Ok(_)) => prop_assert!(false, "nothing was found"),
            // One block with one warp may do either.
            ((Mistake::Meets, at), one) if at > 0 => {
                let error = one.err().unwrap_or_default();
                prop_assert!(error.contains("[global-race]"), "{}", error);
            }
            ((Mistake::Meets | Mistake::Reads, _), one) => {
                let race = one.as_ref().err().is_none_or(|error| error.contains("[global-race]"));
                prop_assert!(race, "{:?}", one);
            }
        }
    }
}

#[test]
fn a_launch_keeps_to_its_budget_on_any_number_of_threads() {
    // Every block runs for ever, each far below the limit of a block.
    let text = ".visible .entry test()\n{\nLOOP:\nbra LOOP;\n}\n";
    let limits = Limits { instructions_per_launch: 1 << 23, ..Limits::default() };
    for threads in [1, 2, 4] {
        let machine = Machine::new(Config { limits, threads: Some(threads), ..Config::default() });
        let found = finding(launch(&machine, &module(text), 64, 32, 0, &[]));
        assert_eq!(found.kind.name(), "budget", "{found}");
        let ran: u64 = found.message.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
        // What a block runs between two looks is 64 turns of 2¹⁴ instructions.
        let most = limits.instructions_per_launch + (threads as u64) * (1 << 20);
        assert!((limits.instructions_per_launch..=most).contains(&ran), "{threads} threads: {found}");
    }
}
