//! The sizes that are measured, in suites.

use clap::ValueEnum;
use warpsmith::ops::Activation;

use super::case::{Case, Extra, Layout, Operation, Precision};
use super::draw::Draw;

/// A set of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub(super) enum Suite {
    /// From a size at which launching dominates to one at which the products do, in every type.
    Main,
    /// The epilogues, on three of the main sizes.
    Epilogue,
    /// Products of operands in other layouts than a linear layer's, on the same sizes and on three small ones.
    Layout,
    /// Other types on two of these sizes: outputs of f32, 8-bit operands of two types, and such with scales of rows and columns.
    Types,
    /// Batches of products, as many as have 2²⁴ results together.
    Batch,
    /// Squares from 512 to 16384.
    Square,
    /// The layers of small multi-layer perceptrons, by batch and width.
    Mlp,
    /// One to 128 rows of x.
    Skinny,
    /// Sizes that no tile divides.
    Odd,
    /// Of attention: what is done to scores, and sequences of different lengths.
    Options,
    /// Of attention: one row of each sequence.
    Decode,
    /// Of attention: the gradients, at the sizes of the main suite.
    Backward,
    /// Linear layers of sizes drawn at random: see `--seed` and `--count`.
    Random,
    /// Products of drawn sizes, of operands in other layouts.
    RandomLayout,
    /// Batches of products, of drawn sizes and as many matrices.
    RandomBatch,
}

/// M, K, N.
const MAIN: [[usize; 3]; 6] = [
    [256, 256, 512],
    [1024, 784, 2048],
    [2048, 2048, 2048],
    [4096, 4096, 4096],
    [8192, 4096, 4096],
    [8192, 8192, 8192],
];
const MAIN_TYPES: [Precision; 5] =
    [Precision::Bf16, Precision::F16, Precision::Tf32, Precision::F32, Precision::F8];
const LARGE: [[usize; 3]; 3] = [[1024, 784, 2048], [4096, 4096, 4096], [8192, 4096, 4096]];
const SMALL: [[usize; 3]; 3] = [[256, 256, 512], [1024, 1024, 1024], [1024, 4096, 1024]];
const TWO: [[usize; 3]; 2] = [[1024, 784, 2048], [4096, 4096, 4096]];
const BATCHES: [[usize; 3]; 2] = [[512, 512, 512], [1024, 1024, 1024]];
/// Results of a batch.
const BATCH_RESULTS: usize = 1 << 24;
const SQUARES: [usize; 11] = [512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384];
/// Batch, inputs and width of the layers.
const MLP: [[usize; 3]; 15] = [
    [256, 784, 256],
    [256, 256, 256],
    [1024, 784, 256],
    [1024, 256, 256],
    [4096, 256, 256],
    [256, 784, 1024],
    [256, 1024, 1024],
    [1024, 784, 1024],
    [4096, 1024, 1024],
    [16384, 1024, 1024],
    [256, 2048, 2048],
    [1024, 2048, 2048],
    [4096, 2048, 2048],
    [16384, 2048, 2048],
    [1024, 4096, 1024],
];
const ROWS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const SKINNY: [usize; 2] = [4096, 8192];
const ODD: [[usize; 3]; 30] = [
    // Primes.
    [127, 127, 127],
    [251, 509, 1021],
    [509, 1021, 2039],
    [1021, 1021, 1021],
    [2039, 2039, 2039],
    [4093, 4093, 4093],
    [8191, 1021, 509],
    // Odd K, with sides that tiles divide.
    [1024, 783, 2048],
    [2048, 1025, 2048],
    [4096, 4095, 4096],
    // Multiples of 8, not of 64.
    [1000, 1000, 1000],
    [264, 520, 776],
    [1416, 2008, 3000],
    [3000, 3000, 3000],
    [5000, 4104, 1032],
    [4104, 4104, 4104],
    [6152, 2056, 8200],
    // One past a tile, and one short of it.
    [129, 1024, 257],
    [1025, 1024, 1025],
    [2047, 2048, 2049],
    [4097, 4096, 4097],
    // Tall.
    [65536, 64, 64],
    [65536, 256, 128],
    [32768, 1024, 200],
    [100_000, 100, 100],
    // Wide.
    [64, 256, 65536],
    [200, 1024, 32768],
    [100, 4096, 11008],
    // Long sums for few results.
    [128, 16384, 256],
    [300, 20_000, 300],
];

impl Suite {
    fn shapes(self) -> Vec<[usize; 3]> {
        match self {
            Self::Main => MAIN.to_vec(),
            Self::Epilogue => LARGE.to_vec(),
            Self::Layout => [SMALL, LARGE].concat(),
            Self::Types => TWO.to_vec(),
            Self::Batch => BATCHES.to_vec(),
            Self::Square => SQUARES.map(|side| [side; 3]).to_vec(),
            Self::Mlp => MLP.to_vec(),
            Self::Skinny => SKINNY.iter().flat_map(|&side| ROWS.map(|rows| [rows, side, side])).collect(),
            Self::Odd => ODD.to_vec(),
            // Drawn, with what else is, or of another operation.
            Self::Random
            | Self::RandomLayout
            | Self::RandomBatch
            | Self::Options
            | Self::Decode
            | Self::Backward => Vec::new(),
        }
    }

    /// Whether its sizes are drawn at random, rather than chosen.
    pub(super) const fn is_random(self) -> bool {
        matches!(self, Self::Random | Self::RandomLayout | Self::RandomBatch)
    }

    /// Whether only attention has it.
    const fn is_of_attention(self) -> bool {
        matches!(self, Self::Options | Self::Decode | Self::Backward)
    }

    /// Its cases of some sizes in a type.
    fn cases(self, precision: Precision, shapes: &[[usize; 3]]) -> Vec<Case> {
        let case = |shape, operation| Case { suite: self, operation, precision, shape };
        let of_shape = |&shape: &[usize; 3]| {
            self.operations(precision, shape).into_iter().map(move |operation| case(shape, operation))
        };
        shapes.iter().flat_map(of_shape).collect()
    }

    /// The cases of a suite whose sizes are drawn.
    fn drawn(self, precision: Precision, draw: Draw) -> Vec<Case> {
        let case = |shape, operation| Case { suite: self, operation, precision, shape };
        match self {
            Self::RandomLayout => draw
                .layouts()
                .into_iter()
                .map(|(shape, layout)| case(shape, Operation::product(layout)))
                .collect(),
            Self::RandomBatch => draw
                .batches()
                .into_iter()
                .map(|(shape, layout, batch)| case(shape, Operation { batch, ..Operation::product(layout) }))
                .collect(),
            _ => draw.shapes().into_iter().map(|shape| case(shape, Operation::BIAS_RELU)).collect(),
        }
    }

    fn operations(self, precision: Precision, [m, _, n]: [usize; 3]) -> Vec<Operation> {
        let with = |activation| Operation { activation, ..Operation::BIAS_RELU };
        let and = |operation, extra| Operation { extra, ..operation };
        match self {
            // ReLU with a bias is measured on these sizes already.
            Self::Epilogue => vec![
                Operation::PRODUCT,
                with(Activation::None),
                with(Activation::GeluTanh),
                with(Activation::GeluErf),
                with(Activation::Silu),
                and(with(Activation::None), Extra::Residual),
                and(Operation::PRODUCT, Extra::Scales),
                and(Operation::BIAS_RELU, Extra::Mask),
                and(with(Activation::GeluTanh), Extra::Preactivation),
            ],
            Self::Layout => [Layout::Nn, Layout::Tn, Layout::Tt].map(Operation::product).to_vec(),
            Self::Types if precision == Precision::F8 => vec![and(Operation::PRODUCT, Extra::Scales)],
            Self::Types => vec![Operation::PRODUCT],
            Self::Batch => {
                let batch = (BATCH_RESULTS / m.saturating_mul(n)).max(2);
                let product = |layout| Operation { batch, ..Operation::product(layout) };
                [Layout::Nt, Layout::Nn].map(product).to_vec()
            }
            Self::Options | Self::Decode | Self::Backward => Vec::new(),
            _ => vec![Operation::BIAS_RELU],
        }
    }

    fn precisions(self) -> &'static [Precision] {
        match self {
            Self::Main => &MAIN_TYPES,
            Self::Types => &[Precision::Bf16ToF32, Precision::F8Mixed, Precision::F8],
            Self::Random => &[Precision::Bf16, Precision::F32, Precision::Tf32, Precision::F8],
            Self::RandomLayout | Self::RandomBatch => &[Precision::Bf16],
            _ => &[Precision::Bf16, Precision::F16],
        }
    }

    /// Its name in tables.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The cases of `suites`, each once, in the order of the suites. Without a choice each suite has its own types and sizes, and those whose sizes are drawn are
/// left out.
pub(super) fn cases(
    suites: &[Suite],
    precisions: &[Precision],
    shapes: &[[usize; 3]],
    draw: Draw,
) -> Vec<Case> {
    let is_default = |suite: &Suite| !suite.is_random() && !suite.is_of_attention();
    let all: Vec<Suite> = Suite::value_variants().iter().copied().filter(is_default).collect();
    // Sizes that were asked for are measured as the main ones are, whether or not a suite has them.
    let suites = match (suites, shapes) {
        ([], []) => &all[..],
        ([], _) => &[Suite::Main],
        (chosen, _) => chosen,
    };
    let mut cases: Vec<Case> = Vec::new();
    for &suite in suites {
        let precisions = if precisions.is_empty() { suite.precisions() } else { precisions };
        for &precision in precisions {
            let of_suite = match shapes {
                [] if suite.is_random() => suite.drawn(precision, draw),
                [] => suite.cases(precision, &suite.shapes()),
                shapes => suite.cases(precision, shapes),
            };
            for case in of_suite {
                let same = |other: &Case| Case { suite, ..*other } == case;
                if !cases.iter().any(same) {
                    cases.push(case);
                }
            }
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::{BATCH_RESULTS, Draw, MAIN_TYPES, ODD, Operation, Precision, Suite};

    fn cases(suites: &[Suite], precisions: &[Precision], shapes: &[[usize; 3]]) -> Vec<super::Case> {
        super::cases(suites, precisions, shapes, Draw { seed: 1, count: 10 })
    }

    #[test]
    fn no_case_is_measured_twice() {
        let all = cases(&[], &[], &[]);
        for (index, case) in all.iter().enumerate() {
            let same = |other: &&super::Case| super::Case { suite: case.suite, ..**other } == *case;
            assert_eq!(all.iter().filter(same).count(), 1, "{index}: {case}");
        }
        for suite in Suite::value_variants() {
            let is_default = !suite.is_random() && !suite.is_of_attention();
            assert_eq!(all.iter().any(|case| case.suite == *suite), is_default, "{suite:?}");
        }
    }

    #[test]
    fn the_main_sizes_are_measured_in_every_type() {
        let all = cases(&[], &[], &[]);
        for precision in MAIN_TYPES {
            let main = |case: &&super::Case| case.suite == Suite::Main && case.precision == precision;
            assert_eq!(all.iter().filter(main).count(), 6);
        }
    }

    #[test]
    fn other_types_and_batches_are_measured_as_products() {
        let told = |suite| cases(&[suite], &[], &[]).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            told(Suite::Types),
            [
                "linear bf16-to-f32 1024×784×2048",
                "linear bf16-to-f32 4096×4096×4096",
                "linear f8e4m3-by-e5m2 1024×784×2048",
                "linear f8e4m3-by-e5m2 4096×4096×4096",
                "linear scales f8e4m3 1024×784×2048",
                "linear scales f8e4m3 4096×4096×4096",
            ]
        );
        assert_eq!(
            told(Suite::Batch),
            [
                "matmul nt bf16 64×512×512×512",
                "matmul nn bf16 64×512×512×512",
                "matmul nt bf16 16×1024×1024×1024",
                "matmul nn bf16 16×1024×1024×1024",
                "matmul nt f16 64×512×512×512",
                "matmul nn f16 64×512×512×512",
                "matmul nt f16 16×1024×1024×1024",
                "matmul nn f16 16×1024×1024×1024",
            ]
        );
        let asked = cases(&[Suite::Batch], &[], &[[7, 8, 9], [1 << 14, 8, 1 << 14]]);
        let batches: Vec<_> = asked.iter().map(|case| case.operation.batch).collect();
        assert_eq!(batches, [BATCH_RESULTS / 63, BATCH_RESULTS / 63, 2, 2].repeat(2));
    }

    #[test]
    fn odd_sizes_are_distinct() {
        for (index, shape) in ODD.iter().enumerate() {
            assert!(!ODD[..index].contains(shape), "{shape:?}");
        }
    }

    #[test]
    fn drawn_sizes_are_the_same_in_every_type_and_others_with_another_seed() {
        let drawn = |seed, precision| {
            let cases = super::cases(&[Suite::Random], &[precision], &[], Draw { seed, count: 10 });
            cases.iter().map(|case| case.shape).collect::<Vec<_>>()
        };
        assert_eq!(drawn(1, Precision::Bf16), drawn(1, Precision::F32));
        assert!(drawn(1, Precision::Bf16).iter().all(|shape| !drawn(2, Precision::Bf16).contains(shape)));
        for suite in [Suite::RandomLayout, Suite::RandomBatch] {
            let all = cases(&[suite], &[], &[]);
            assert_eq!(all.len(), 10, "{suite:?}");
            assert!(all.iter().all(|case| case.tunable().is_some()));
        }
    }

    #[test]
    fn what_was_asked_for_is_what_is_measured() {
        let chosen = cases(&[], &[Precision::F16], &[[7, 8, 9]]);
        assert_eq!(chosen.len(), 1);
        assert_eq!((chosen[0].shape, chosen[0].operation), ([7, 8, 9], Operation::BIAS_RELU));
    }
}
