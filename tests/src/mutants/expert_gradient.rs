//! How the kernels of the family `expert_gradient` are run: on the rows and numbers of [`experts`](super::experts), with
//! more vectors than are looked up at a time, more columns than a pass has, and an expert that is none.

use ndarray::{Array2, s};
use warpsmith::cpu::{self, TokenExperts};
use warpsmith::ops::Activation;
use warpsmith::ops::peer::ExpertLayout;
use warpsmith_dsl::experts::{ExpertGradientParams, TYPE_BF16, TYPE_F16, TYPE_F32};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_emulator::{Config, LaunchConfig, LaunchError, Machine, Module, Report};

use super::experts::{COUNT, Case, UNTOUCHED, format_named, number};
use super::{Problem, launch};

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let format = format_named(name.strip_prefix("expert_gradient_")?)?;
    let chunk = 128 / format.bits();
    let case = Case { o: 3, experts: 3, ..Case::new(format) };
    let cases = [
        case,
        Case { element: TYPE_BF16, margin: 1, gated: true, hidden: 2, cached: true, experts: 5, ..case },
        Case { element: TYPE_F16, d: 12 * chunk, o: 2 * chunk, experts: 29, bad: true, ..case },
        // A lane has several chunks, and the last of a few that are loaded together.
        Case {
            d: 40 * chunk - 3,
            o: 33 * chunk,
            element: TYPE_F16,
            margin: 2,
            experts: 6,
            gated: true,
            ..case
        },
        Case { d: 65 * chunk, o: 97 * chunk + 1, element: TYPE_BF16, experts: 5, cached: true, ..case },
        // More than a pass of columns.
        Case { tokens: 1, d: 129 * chunk + 2, o: 2, experts: 3, ..case },
        // More vectors than are looked up at a time, and one more than are loaded together.
        Case { tokens: 1, d: 2, o: 2, hidden: 5, experts: 55, gated: true, bad: true, cached: true, ..case },
        Case { tokens: 1, d: 130 * chunk, o: 2, hidden: 3, experts: 87, ..case },
        Case { activation: Activation::Relu, d: 9 * chunk + 1, o: 5 * chunk, experts: 9, ..case },
        Case { activation: Activation::GeluErf, d: 3, experts: 20, o: 2, ..case },
        Case { activation: Activation::GeluTanh, d: 3, experts: 20, o: 2, gated: true, ..case },
        Case { activation: Activation::Silu, d: 3, experts: 20, o: 2, element: TYPE_F16, ..case },
    ];
    Some(cases.into_iter().map(|case| Box::new(Gradients(case)) as Box<dyn Problem>).collect())
}

#[derive(Clone, Copy, Debug)]
struct Gradients(Case);

/// What is to come out.
struct Expected {
    dx: Array2<f64>,
    /// The gates' gradients, and the factors of u, w and v.
    numbers: [Vec<f64>; 4],
}

impl Gradients {
    fn dy(&self) -> Array2<f32> {
        let Case { tokens, o, .. } = self.0;
        let every = (o / 16).max(1);
        Array2::from_shape_fn((tokens, o), |(token, i)| {
            let counts = (i + token).is_multiple_of(every) || i + 3 > o;
            if counts { number(token * o + i, 6) } else { 0.0 }
        })
    }

    fn expected(&self, layout: &ExpertLayout, rows: &[u8], ids: &[u32], gates: &[f32]) -> Option<Expected> {
        let case = self.0;
        let good: Vec<u32> = ids.iter().map(|&id| id.min(COUNT as u32 - 1)).collect();
        let experts = TokenExperts { ids: &good, gates, activation: case.activation };
        let mut dx = Array2::zeros((case.tokens, case.d));
        let row = |id: u32| rows.chunks_exact(layout.row_bytes()).nth(id as usize);
        let (x, dy) = (case.x(), self.dy());
        let factors = cpu::expert_mlp_backward::<f64, f32, f64>(
            x.view(),
            experts,
            layout,
            row,
            dy.view(),
            dx.view_mut(),
        );
        let factors = factors.ok()?;
        let mut numbers = [factors.dgates, factors.u, factors.w, factors.v];
        if case.bad {
            // The last expert of the last token is none.
            dx.slice_mut(s![case.tokens - 1, ..]).fill(f64::NAN);
            for (numbers, units) in numbers.iter_mut().zip([1, case.hidden, case.hidden, case.hidden]) {
                let first = numbers.len().saturating_sub(units);
                numbers[first..].fill(f64::NAN);
            }
        }
        Some(Expected { dx, numbers })
    }
}

impl Problem for Gradients {
    fn name(&self) -> &str {
        "gradients of experts with integers"
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let failed = || Ok((Report::default(), false));
        let case = self.0;
        let Ok(layout) = ExpertLayout::new(case.format, case.d, case.hidden, case.o, case.gated) else {
            return failed();
        };
        let Some(rows) = case.rows(&layout) else { return failed() };
        let (ids, gates) = case.routing();
        let Some(Expected { dx: expected, numbers }) = self.expected(&layout, &rows, &ids, &gates) else {
            return failed();
        };

        let machine = Machine::new(config);
        let place = |bytes: &[u8]| -> Result<u64, LaunchError> {
            let at = machine.allocate(bytes.len() as u64)?;
            machine.write(at, bytes)?;
            Ok(at)
        };
        let placed = |rows: &Array2<f32>| {
            let mut bytes = Vec::new();
            for row in rows.rows() {
                (0..case.margin).for_each(|_| case.put(f32::NAN, &mut bytes));
                row.iter().for_each(|&value| case.put(value, &mut bytes));
            }
            bytes
        };
        let stride = case.d + case.margin;
        let mut dx = Vec::new();
        (0..case.tokens * stride).for_each(|_| case.put(UNTOUCHED, &mut dx));
        let margin = (case.margin * if case.element == TYPE_F32 { 4 } else { 2 }) as u64;
        let (x_at, dy_at, dx_at) = (place(&placed(&case.x()))?, place(&placed(&self.dy()))?, place(&dx)?);
        let bytes = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
        let ids_at = place(&bytes(&ids))?;
        let gates_at = place(&gates.iter().flat_map(|gate| gate.to_le_bytes()).collect::<Vec<_>>())?;
        let table = case.place_rows(&machine, &layout, &rows)?;
        let mut numbers_at = [0; 4];
        for (at, numbers) in numbers_at.iter_mut().zip(&numbers) {
            if !numbers.is_empty() {
                *at = place(&UNTOUCHED.to_le_bytes().repeat(numbers.len()))?;
            }
        }
        let [dgates, of_u, of_w, of_v] = numbers_at.map(GlobalMut::<f32>::new);
        let gradients = ExpertGradientParams {
            x: Global::new(x_at + margin),
            dy: Global::new(dy_at + margin),
            dx: GlobalMut::new(dx_at + margin),
            stride_dx: stride as u64,
            ids: Global::new(ids_at),
            gates: Global::new(gates_at),
            dgates,
            of_u,
            of_w,
            of_v,
        };
        let Some(kernel) = module.kernels().next() else { return failed() };
        let config = LaunchConfig {
            grid: [case.tokens as u32, 1, 1],
            cluster: [1; 3],
            block: kernel.reqntid.unwrap_or([1; 3]),
            dynamic_shared: shared_bytes,
            beside_last: false,
        };
        let report =
            launch(&machine, module, &kernel.name, &config, (table, case.params(&layout), gradients))?;
        machine.read(dx_at, &mut dx)?;
        let mut right = (0..case.tokens * stride).all(|at| {
            let (token, column) = (at / stride, at % stride);
            let got = case.get(&dx, at);
            match column.checked_sub(case.margin) {
                None => got == UNTOUCHED,
                Some(column) => case.is_right(got, expected[[token, column]]),
            }
        });
        // In f32, whatever x and dy are.
        let wide = Case { element: TYPE_F32, ..case };
        for (at, numbers) in numbers_at.into_iter().zip(&numbers) {
            let mut got = vec![0; numbers.len() * size_of::<f32>()];
            if !got.is_empty() {
                machine.read(at, &mut got)?;
            }
            right &= numbers
                .iter()
                .enumerate()
                .all(|(index, &expected)| wide.is_right(wide.get(&got, index), expected));
        }
        Ok((report, right))
    }
}
