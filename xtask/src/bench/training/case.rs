//! The parts of training that are measured: sizes and types, in suites.

use std::fmt;

use warpsmith::DType;
use warpsmith::ops::Activation;
use warpsmith_lab::benchmark::TrainingWork;

use crate::bench::Args;
use crate::bench::case::Precision;
use crate::bench::draw::lengths;
use crate::bench::suites::Suite;
use crate::goals::training::{NETWORK, OPTIMIZER, layer};

/// Layers of the suite `main`, and the type of each.
const LAYERS: [(Activation, [usize; 3], DType); 4] = [
    (Activation::Relu, [1024, 784, 2048], DType::Bf16),
    (Activation::Relu, [8192, 4096, 4096], DType::Bf16),
    (Activation::Relu, [8192, 4096, 4096], DType::F32),
    (Activation::GeluTanh, [8192, 4096, 16384], DType::Bf16),
];
/// Parameters of the large step of AdamW, which are one tensor.
const MANY: usize = 1 << 27;
/// Those of the small one, how many tensors they are, and what the sizes of these are drawn from.
const FEW: (usize, usize, u64) = (1 << 20, 200, 1);
/// Rows and widths of networks.
const NETWORKS: [(usize, [usize; 4]); 2] = [(1024, [784, 2048, 2048, 10]), (8192, [1024, 4096, 4096, 1000])];

/// A part of training in a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) suite: Suite,
    pub(super) work: TrainingWork,
    pub(super) dtype: DType,
}

impl Case {
    /// The operation in tables.
    pub(super) fn operation(&self) -> String {
        match &self.work {
            TrainingWork::Linear { activation, .. } => layer(activation.name()),
            TrainingWork::AdamW { .. } => OPTIMIZER.into(),
            _ => NETWORK.into(),
        }
    }

    /// The kind of work in requests.
    pub(super) fn work_name(&self) -> &'static str {
        match &self.work {
            TrainingWork::Linear { .. } => "linear",
            TrainingWork::AdamW { .. } => "adamw",
            _ => "mlp",
        }
    }

    pub(super) fn activation(&self) -> &'static str {
        match &self.work {
            TrainingWork::Linear { activation, .. } => activation.name(),
            TrainingWork::AdamW { .. } => Activation::None.name(),
            _ => Activation::Relu.name(),
        }
    }

    /// All sizes.
    pub(super) fn numbers(&self) -> Vec<usize> {
        match &self.work {
            TrainingWork::Linear { shape, .. } => shape.to_vec(),
            TrainingWork::AdamW { lengths } => lengths.clone(),
            TrainingWork::Mlp { batch, widths } => [&[*batch], &widths[..]].concat(),
            _ => Vec::new(),
        }
    }

    /// The sizes in words: M, K and N; all parameters, and in how many tensors; rows and widths.
    pub(super) fn shape(&self, times: &str) -> String {
        let numbers = self.numbers();
        if let TrainingWork::AdamW { lengths } = &self.work {
            let all: usize = lengths.iter().sum();
            return if lengths.len() == 1 { all.to_string() } else { format!("{all} in {}", lengths.len()) };
        }
        numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(times)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {} {}", self.operation(), self.dtype, self.shape("×"))
    }
}

/// The cases that the arguments leave.
pub(super) fn cases(args: &Args) -> Vec<Case> {
    let is_wanted = |suite| args.suite.is_empty() && suite == Suite::Main || args.suite.contains(&suite);
    let asked =
        |dtype: &DType| args.dtype.iter().any(|precision: &Precision| precision.name() == dtype.name());
    // Each case's own type, unless others were asked for.
    let types = |own: DType| match args.dtype[..] {
        [] => vec![own],
        _ => [DType::F16, DType::Bf16, DType::F32].into_iter().filter(asked).collect(),
    };
    let mut cases: Vec<Case> = Vec::new();
    let mut add = |suite, work: TrainingWork, types: Vec<DType>| {
        for dtype in types {
            let case = Case { suite, work: work.clone(), dtype };
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
    };
    let relu = |shape| TrainingWork::Linear { activation: Activation::Relu, shape };
    if !args.shape.is_empty() {
        args.shape.iter().for_each(|&shape| add(Suite::Main, relu(shape), types(DType::Bf16)));
    } else {
        if is_wanted(Suite::Main) {
            for (activation, shape, own) in LAYERS {
                add(Suite::Main, TrainingWork::Linear { activation, shape }, types(own));
            }
            let of_optimizer =
                || types(DType::F32).into_iter().filter(|dtype| *dtype == DType::F32).collect();
            let (few, count, seed) = FEW;
            for lengths in [vec![MANY], lengths(seed, count, few)] {
                add(Suite::Main, TrainingWork::AdamW { lengths }, of_optimizer());
            }
            for (batch, widths) in NETWORKS {
                add(Suite::Main, TrainingWork::Mlp { batch, widths: widths.to_vec() }, types(DType::Bf16));
            }
        }
        if is_wanted(Suite::Random) {
            args.draw
                .shapes()
                .into_iter()
                .for_each(|shape| add(Suite::Random, relu(shape), types(DType::Bf16)));
        }
    }
    if let Some(filter) = &args.filter {
        // The letter is in names, too.
        let times = filter.replace('x', "×");
        cases.retain(|case| {
            let told = case.to_string();
            told.contains(filter) || told.contains(&times)
        });
    }
    cases
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Suite, cases};
    use crate::bench::Args;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn told(words: &str) -> Vec<String> {
        let words = std::iter::once("bench").chain(words.split_whitespace());
        let command = Command::try_parse_from(words).expect("arguments of the bench");
        cases(&command.args).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_main_sizes_have_types_of_their_own() {
        assert_eq!(
            told("--operation training"),
            [
                "linear-relu-training bf16 1024×784×2048",
                "linear-relu-training bf16 8192×4096×4096",
                "linear-relu-training f32 8192×4096×4096",
                "linear-gelu-tanh-training bf16 8192×4096×16384",
                "adamw f32 134217728",
                "adamw f32 1048576 in 200",
                "mlp bf16 1024×784×2048×2048×10",
                "mlp bf16 8192×1024×4096×4096×1000",
            ]
        );
    }

    #[test]
    fn types_sizes_and_words_choose() {
        let f16 = told("--dtype f16");
        assert_eq!(f16.len(), 5, "{f16:?}");
        assert!(f16.iter().all(|case| case.contains(" f16 ")), "{f16:?}");
        assert_eq!(told("--dtype f32,bf16 --filter adamw").len(), 2);
        assert_eq!(told("--filter 1024x784x2048").len(), 2);
        assert_eq!(told("--shape 3x5x7 --dtype f32"), ["linear-relu-training f32 3×5×7"]);
        assert!(told("--suite batch").is_empty());
    }

    #[test]
    fn drawn_sizes_are_those_of_products() {
        let drawn = told("--suite random --seed 3 --count 7");
        assert!(drawn.len() == 7 && drawn.iter().all(|case| case.starts_with("linear-relu-training bf16 ")));
        assert_ne!(drawn, told("--suite random --seed 4 --count 7"));
        let command = Command::try_parse_from(["bench", "--suite", "random"]).expect("arguments");
        assert!(cases(&command.args).iter().all(|case| case.suite == Suite::Random));
    }
}
