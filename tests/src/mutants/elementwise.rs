//! How the kernels of the family `elementwise` are run: every function, on rows that end where any chunk begins, and single ones that end anywhere.
//! Operands and results have every type. There are more threads than elements, along columns and rows.

use warpsmith::cpu::Elementwise;
use warpsmith::ops::Activation;
use warpsmith_dsl::elementwise::{ElementwiseParams, Operation};
use warpsmith_dsl::launch::Global;
use warpsmith_dsl::rows::AnyRows;
use warpsmith_emulator::{Config, LaunchError, Module, Report};
use warpsmith_lab::bound::elementwise as bound;

use super::Problem;
use super::rows::{Float, Operands, number};

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let rest = name.strip_prefix("elementwise_")?;
    let (is_any, rest) = rest.strip_prefix("any_").map_or((false, rest), |rest| (true, rest));
    let (of, arity) = rest.rsplit_once('_')?;
    let of = Float::named(of)?;
    let operands = 1 + ["unary", "binary", "ternary"].into_iter().position(|name| name == arity)?;
    let chunk = 16 / of.bytes();
    // What columns are a multiple of: a row may end before each element of a chunk, or of each chunk.
    let unit = if is_any { 1 } else { chunk };
    let functions: Vec<Elementwise> = match operands {
        1 => Activation::ALL.map(Elementwise::Activation).to_vec(),
        2 => [Elementwise::Add, Elementwise::Multiply]
            .into_iter()
            .chain(Activation::ALL.map(Elementwise::Gated))
            .chain(Activation::ALL.map(Elementwise::ActivationGradient))
            .collect(),
        _ => Activation::ALL.map(Elementwise::GatedGradient).to_vec(),
    };
    // What is anywhere is of a warp's lanes.
    let least = if is_any { 32 } else { 1 };
    let mut cases = Vec::new();
    let mut function = functions.iter().copied().cycle();
    let mut case = |columns: usize, types: [Float; 4]| Case {
        of,
        function: function.next().unwrap_or(Elementwise::Add),
        types,
        rows: 2,
        columns,
        gap: unit,
        threads: least,
        is_row: false,
    };
    // The types of the second and the third operand, and of results.
    let types = |number: usize| {
        [number, number / 3, number + number / 9, number + 1 + number / 3].map(|at| TYPES[at % 3])
    };
    let kinds = [3, 3, 9][operands - 1];
    // An element that is anywhere is a lane's distance from the next of its chunk.
    let apart = if is_any { 32 } else { unit };
    for end in 1..=chunk * least as usize / apart + 1 {
        for kind in 0..kinds {
            let types = types(kind + end / 4);
            cases.push(case(end * apart, types));
            cases.push(Case { rows: 1, gap: 0, ..case(end * apart - apart / 2, types) });
        }
    }
    for end in 1..=chunk + 1 {
        let kinds = if is_any { 1 } else { kinds };
        for kind in 0..kinds {
            cases.push(Case { rows: 1, gap: 0, ..case(end, types(kind)) });
        }
    }
    // More elements than threads of a block, along rows and columns.
    for (index, _) in functions.iter().enumerate() {
        let wide = case((64 * chunk + 5 * chunk).next_multiple_of(unit), types(index));
        cases.push(Case { rows: 9, threads: 64, gap: 0, ..wide });
        let more = case((2 * least as usize + 1) * chunk, types(index + 1));
        cases.push(Case { rows: 3, ..more });
    }
    if operands == 2 {
        cases.push(Case { is_row: true, rows: 5, ..case(chunk, types(0)) });
    }
    cases.push(Case { rows: 300, ..case(unit, types(1)) });
    Some(cases.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

const TYPES: [Float; 3] = [Float::F16, Float::Bf16, Float::F32];

#[derive(Clone, Copy, Debug)]
struct Case {
    of: Float,
    function: Elementwise,
    /// The types of b, c, y and z.
    types: [Float; 4],
    rows: usize,
    columns: usize,
    /// Elements between rows.
    gap: usize,
    threads: u32,
    /// Whether b is one row for all.
    is_row: bool,
}

impl Problem for Case {
    fn name(&self) -> &str {
        match self.function {
            Elementwise::Activation(_) => "an activation",
            Elementwise::Add => "a sum",
            Elementwise::Multiply => "a product",
            Elementwise::Gated(_) => "a gate",
            Elementwise::ActivationGradient(_) => "the gradient of an activation",
            Elementwise::GatedGradient(_) => "the gradients of a gate",
        }
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let &Self { of, types: [of_b, of_c, of_y, of_z], rows, columns, gap, threads, .. } = self;
        let (teams, of_team) = (256 / threads as usize, threads as usize * (16 / of.bytes()));
        let grid = [columns.div_ceil(of_team) as u32, rows.div_ceil(teams) as u32, 1];
        let mut operands = Operands::new(config);
        let shape = [rows, columns, gap];
        let element = |operand: u64, row: usize, column: usize| {
            let row = if operand == 1 && self.is_row { 0 } else { row };
            3.0 * number(operand, row * columns + column)
        };
        let a = operands.rows(of, shape, |row, column| element(0, row, column))?;
        let (operation, activation) = match self.function {
            Elementwise::Activation(activation) => (Operation::ACTIVATION, activation),
            Elementwise::Add => (Operation::ADD, Activation::None),
            Elementwise::Multiply => (Operation::MULTIPLY, Activation::None),
            Elementwise::Gated(activation) => (Operation::GATED, activation),
            Elementwise::ActivationGradient(activation) => (Operation::ACTIVATION_GRADIENT, activation),
            Elementwise::GatedGradient(activation) => (Operation::GATED_GRADIENT, activation),
        };
        let has_two = matches!(self.function, Elementwise::GatedGradient(_));
        let [mut b, mut c, mut z] = [AnyRows::NONE; 3];
        if !matches!(self.function, Elementwise::Activation(_)) {
            let shape = if self.is_row { [1, columns, 0] } else { shape };
            b = operands.rows(of_b, shape, |row, column| element(1, row, column))?;
            b.stride = if self.is_row { 0 } else { b.stride };
        }
        if has_two {
            c = operands.rows(of_c, shape, |row, column| element(2, row, column))?;
        }
        let expected = |row: usize, column: usize| {
            let elements =
                [(of, 0), (of_b, 1), (of_c, 2)].map(|(of, operand)| of.round(element(operand, row, column)));
            bound::elementwise(self.function, elements, [of_y.dtype(), of_z.dtype()])
        };
        let y = operands.results(of_y, shape, |row, column| expected(row, column)[0])?;
        if has_two {
            z = operands.results(of_z, shape, |row, column| expected(row, column)[1])?;
        }
        let params = ElementwiseParams::<u8> {
            a: Global::new(a.base),
            a_stride: a.stride,
            b,
            c,
            y,
            z,
            rows: rows as u32,
            columns: columns as u32,
            threads,
            operation,
            activation: on_device(activation),
            reserved: 0,
        };
        operands.launch_grid(module, shared_bytes, grid, 1, (params,))
    }
}

pub(super) fn on_device(activation: Activation) -> warpsmith_dsl::epilogue::Activation {
    use warpsmith_dsl::epilogue::Activation as OnDevice;
    match activation {
        Activation::Relu => OnDevice::RELU,
        Activation::GeluErf => OnDevice::GELU_ERF,
        Activation::GeluTanh => OnDevice::GELU_TANH,
        Activation::Silu => OnDevice::SILU,
        _ => OnDevice::NONE,
    }
}
