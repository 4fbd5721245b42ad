//! The attentions that are measured: sizes and options, in suites.

use std::fmt;

use anyhow::{Result, bail};
use warpsmith::DType;
use warpsmith::ops::attention::{Alignment, Window};
use warpsmith_lab::cases::{AttentionCase, Sequences, Slopes};

use crate::bench::Args;
use crate::bench::case::Precision;
use crate::bench::draw::AttentionSizes;
use crate::bench::suites::Suite;
use crate::spread;

/// What is done beside the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extra {
    None,
    Causal,
    /// A bias of each sequence, for all heads.
    Bias,
    /// A mask of each sequence, for all heads.
    Mask,
    Alibi,
    SoftCap,
    /// The last keys before a row, and that beside it.
    Window,
    /// Sequences of different lengths in tensors of the longest.
    Padded,
    /// Sequences of different lengths one after the other, causal.
    Packed,
    /// One row of each sequence.
    Decode,
}

/// The options of the suite `options`.
const OPTIONS: [Extra; 7] =
    [Extra::Bias, Extra::Mask, Extra::Alibi, Extra::SoftCap, Extra::Window, Extra::Padded, Extra::Packed];
/// What bounds scores.
const SOFT_CAP: f32 = 30.0;
/// Keys that a row attends to.
const WINDOW: u32 = 512;
/// Lengths of padded sequences of 2048 rows.
const PADDED: [usize; 4] = [2048, 1811, 1024, 417];
/// Lengths of packed sequences; together those of four of 2048 rows.
const PACKED: [usize; 8] = [2048, 1536, 1311, 1024, 1000, 700, 473, 100];

/// Sizes of the suite `main`, whether causal, and how many times the best baseline's speed is asked for.
const MAIN: [([usize; 5], bool, f64); 11] = [
    ([4, 16, 16, 4096, 128], false, 1.05),
    ([4, 16, 16, 4096, 128], true, 1.15),
    ([4, 32, 32, 4096, 64], false, 1.05),
    ([4, 32, 32, 4096, 64], true, 1.15),
    ([1, 16, 16, 16384, 128], true, 1.1),
    ([4, 8, 8, 4096, 256], false, 1.05),
    ([4, 8, 8, 4096, 256], true, 1.05),
    ([32, 16, 16, 512, 64], true, 1.1),
    ([4, 32, 8, 4096, 128], true, 1.15),
    ([4, 16, 16, 4096, 192], true, 1.05),
    ([4, 16, 16, 4096, 96], true, 1.05),
];
/// How many of them are measured in f16, too.
const MAIN_F16: usize = 4;
/// The same in f32.
const MAIN_F32: usize = 2;
/// Sequences, heads, heads of keys and keys of the suite `decode`.
const DECODE: [[usize; 4]; 6] = [
    [1, 32, 8, 1024],
    [1, 32, 8, 16384],
    [16, 32, 8, 4096],
    [64, 32, 8, 4096],
    [128, 32, 32, 1024],
    [32, 64, 8, 32768],
];
const DECODE_WIDTH: usize = 128;

/// One attention to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Case {
    pub(super) suite: Suite,
    pub(super) dtype: DType,
    pub(super) sizes: AttentionSizes,
    pub(super) extra: Extra,
    /// How many times the best baseline's speed is asked for, if anything is.
    pub(super) goal: Option<f64>,
}

impl Extra {
    /// Its name in the results and for the framework.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Causal => "causal",
            Self::Bias => "bias",
            Self::Mask => "mask",
            Self::Alibi => "alibi",
            Self::SoftCap => "soft cap",
            Self::Window => "window",
            Self::Padded => "padded",
            Self::Packed => "packed causal",
            Self::Decode => "decode",
        }
    }

    /// How many times the best baseline's speed is asked for.
    const fn goal(self) -> Option<f64> {
        match self {
            Self::Bias | Self::Mask => Some(1.6),
            Self::SoftCap => Some(2.0),
            Self::Window | Self::Decode => Some(1.0),
            _ => None,
        }
    }

    pub(super) const fn is_causal(self) -> bool {
        matches!(self, Self::Causal | Self::Packed | Self::Window)
    }

    /// Keys that a row attends to, where that is limited.
    pub(super) fn window(self) -> Option<u32> {
        (self == Self::Window).then_some(WINDOW)
    }

    pub(super) fn soft_cap(self) -> Option<f32> {
        (self == Self::SoftCap).then_some(SOFT_CAP)
    }

    /// The lengths of sequences, where they differ.
    pub(super) const fn lengths(self) -> &'static [usize] {
        match self {
            Self::Padded => &PADDED,
            Self::Packed => &PACKED,
            _ => &[],
        }
    }
}

impl Case {
    /// The operation's name in the results.
    pub(super) fn operation(&self) -> String {
        let backward = if self.is_backward() { "backward " } else { "" };
        format!("attention {backward}{}", self.extra.name()).trim_end().to_owned()
    }

    /// Whether the gradients are measured, without the forward pass.
    pub(super) fn is_backward(&self) -> bool {
        self.suite == Suite::Backward
    }

    /// Sequences, heads, rows and columns, with `by` between them. Where they differ, heads and lengths of keys stand behind those of queries.
    pub(super) fn shape(&self, by: &str) -> String {
        let AttentionSizes { batch, heads, key_heads, rows, keys, width, .. } = self.sizes;
        let two = |of_queries: usize, of_keys: usize| {
            if of_queries == of_keys { of_queries.to_string() } else { format!("{of_queries}/{of_keys}") }
        };
        [batch.to_string(), two(heads, key_heads), two(rows, keys), width.to_string()].join(by)
    }

    /// The same for the lab.
    pub(super) fn to_lab(self) -> AttentionCase {
        let AttentionSizes { batch, heads, key_heads, rows, keys, width, .. } = self.sizes;
        let lengths = || self.extra.lengths().iter().map(|&length| [length; 2]).collect();
        let sequences = match self.extra {
            Extra::Padded => Sequences::Padded { rows, keys, lengths: lengths() },
            Extra::Packed => Sequences::Packed(lengths()),
            _ => Sequences::Equal { batch, rows, keys },
        };
        let left = self.extra.window().map(|keys| keys - 1);
        let window = Window::new(left, Some(0), Alignment::BottomRight);
        let for_all_heads = [false, true, false, false];
        let group = heads / key_heads.max(1);
        AttentionCase {
            sequences,
            window: if self.extra.is_causal() { window } else { Window::default() },
            soft_cap: self.extra.soft_cap(),
            mask: (self.extra == Extra::Mask).then_some(for_all_heads),
            bias: (self.extra == Extra::Bias).then_some(for_all_heads),
            slopes: (self.extra == Extra::Alibi).then_some(Slopes::OfHeads),
            ..AttentionCase::new(self.dtype, [batch, rows, keys], [key_heads, group], width)
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {} {}", self.operation(), self.dtype, self.shape("×"))
    }
}

/// The name of a suite's rows.
pub(super) fn suite_name(suite: Suite) -> &'static str {
    match suite {
        Suite::Options => "attention-options",
        Suite::Decode => "attention-decode",
        Suite::Backward => "attention-backward",
        Suite::Random => spread::ATTENTION,
        _ => "attention",
    }
}

/// A suite's cases of a type.
fn of_suite(suite: Suite, dtype: DType, args: &Args) -> Vec<Case> {
    let case = |sizes, extra: Extra, goal| Case { suite, dtype, sizes, extra, goal };
    match suite {
        Suite::Options => {
            let sizes = AttentionSizes::equal([4, 16, 16, 2048, 128]);
            OPTIONS.map(|extra| case(sizes, extra, extra.goal())).to_vec()
        }
        Suite::Decode => {
            let sizes = |[batch, heads, key_heads, keys]: [usize; 4]| AttentionSizes {
                rows: 1,
                ..AttentionSizes::equal([batch, heads, key_heads, keys, DECODE_WIDTH])
            };
            DECODE.map(|shape| case(sizes(shape), Extra::Decode, Extra::Decode.goal())).to_vec()
        }
        Suite::Random => {
            let extra = |sizes: &AttentionSizes| if sizes.causal { Extra::Causal } else { Extra::None };
            args.draw.attentions().into_iter().map(|sizes| case(sizes, extra(&sizes), None)).collect()
        }
        _ => {
            let of = |(shape, causal, goal)| {
                case(
                    AttentionSizes::equal(shape),
                    if causal { Extra::Causal } else { Extra::None },
                    (suite != Suite::Backward).then_some(goal),
                )
            };
            let mut cases = MAIN.map(of).to_vec();
            // Of wider heads of f32 there is no kernel.
            let most = if suite == Suite::Backward && dtype == DType::F32 { 64 } else { usize::MAX };
            cases.retain(|case| case.sizes.width <= most);
            cases
        }
    }
}

/// The cases that the arguments leave.
pub(super) fn cases(args: &Args) -> Result<Vec<Case>> {
    if !args.shape.is_empty() {
        bail!("attention has sizes of its own, which --filter chooses from: --shape is of M×K×N");
    }
    let all = [Suite::Main, Suite::Options, Suite::Decode, Suite::Backward];
    let suites = if args.suite.is_empty() { &all[..] } else { &args.suite };
    let mut cases = Vec::new();
    for &suite in suites {
        if !all.contains(&suite) && suite != Suite::Random {
            bail!(
                "attention has the suites main, options, decode, backward and random, not {}",
                suite.name()
            );
        }
        let is_asked = |precision: Precision| args.dtype.contains(&precision);
        if args.dtype.is_empty() || is_asked(Precision::Bf16) {
            cases.extend(of_suite(suite, DType::Bf16, args));
        }
        let rest = [(Precision::F16, DType::F16, MAIN_F16), (Precision::F32, DType::F32, MAIN_F32)];
        for (precision, dtype, count) in rest {
            if is_asked(precision) {
                cases.extend(of_suite(suite, dtype, args));
            } else if args.dtype.is_empty() && suite == Suite::Main {
                cases.extend(of_suite(suite, dtype, args).into_iter().take(count));
            }
        }
    }
    if let Some(filter) = &args.filter {
        let filter = filter.replace('x', "×");
        // Names of operations have the letter, too.
        cases.retain(|case: &Case| case.to_string().replace('x', "×").contains(&filter));
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use warpsmith_lab::cases::Sequences;

    use super::{Case, Extra, PACKED, PADDED, cases};
    use crate::bench::Args;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    fn asked(line: &str) -> anyhow::Result<Vec<Case>> {
        cases(&Program::parse_from(std::iter::once("bench").chain(line.split_whitespace())).args)
    }

    fn told(line: &str) -> Vec<String> {
        asked(line).expect("well-formed").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_suite_has_its_cases_each_once() {
        let all = told("");
        assert_eq!(all.len(), 11 + 4 + 2 + 7 + 6 + 11);
        for (index, case) in all.iter().enumerate() {
            assert!(!all[..index].contains(case), "{case}");
        }
        for case in [
            "attention bf16 4×16×4096×128",
            "attention causal f16 4×32×4096×64",
            "attention causal bf16 4×32/8×4096×128",
            "attention soft cap bf16 4×16×2048×128",
            "attention decode bf16 32×64/8×1/32768×128",
            "attention backward causal bf16 4×32/8×4096×128",
        ] {
            assert!(all.contains(&case.to_owned()), "{case}");
        }
        assert_eq!(told("--suite random --count 7").len(), 7);
    }

    #[test]
    fn what_was_asked_for_is_what_is_measured() {
        assert_eq!(told("--suite decode --dtype f16").len(), 6);
        assert_eq!(
            told("--filter 16x4096x96"),
            ["attention causal bf16 4×16×4096×96", "attention backward causal bf16 4×16×4096×96"]
        );
        // Kernels of gradients take no more than 64 columns of f32.
        assert_eq!(told("--dtype f32").len(), 11 + 7 + 6 + 3);
        assert!(told("--dtype tf32").is_empty());
        assert!(asked("--suite mlp").is_err() && asked("--shape 1x2x3").is_err());
    }

    #[test]
    fn lengths_fit_the_sizes_that_their_rows_name() {
        let case = |extra: Extra| {
            let all = asked("--suite options").expect("well-formed");
            *all.iter().find(|case| case.extra == extra).expect("an option")
        };
        let sizes = case(Extra::Padded).sizes;
        assert!(PADDED.len() == sizes.batch && PADDED.iter().all(|&length| length <= sizes.rows));
        assert_eq!(PACKED.iter().sum::<usize>(), sizes.batch * sizes.rows);
        assert!(matches!(case(Extra::Packed).to_lab().sequences, Sequences::Packed(all) if all.len() == 8));
        let window = case(Extra::Window).to_lab().window;
        assert_eq!((window.left(), window.right()), (Some(511), Some(0)));
    }
}
