//! Drawn weights, of which some are moved by rows: the same bits on every device, and after the state was saved and loaded.

use half::{bf16, f16};
use proptest::prelude::*;

use super::super::numbers;
use super::{OPTIONS, devices, experts, of_experts, sparse, tensor, wide};
use crate::error::Result;
use crate::ops::SparseRows;
use crate::ops::peer::{ExpertFormat, ExpertGradients, ExpertTable};
use crate::optim::{AdamW, Gradient, LossScaleOptions, ParameterOptions, Rounding, SecondMoment};
use crate::{Device, Tensor};

/// Weights, and what of them gradients have.
#[derive(Clone, Copy, Debug)]
enum What {
    Whole,
    Rows,
    Experts { hidden: usize, gated: bool },
}

#[derive(Clone, Debug)]
struct Drawn {
    what: What,
    rows: usize,
    columns: usize,
    rounding: Rounding,
    second_moment: SecondMoment,
    /// Which rows have a gradient: each so many-th.
    every: usize,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let what = prop_oneof![
        Just(What::Whole),
        Just(What::Rows),
        (1usize..4, any::<bool>()).prop_map(|(hidden, gated)| What::Experts { hidden, gated }),
    ];
    let columns = prop_oneof![0usize..9, 9usize..70, 250usize..270];
    let rounding = prop::sample::select(vec![Rounding::Master, Rounding::Stochastic]);
    let moment = prop::sample::select(vec![SecondMoment::PerElement, SecondMoment::PerRow]);
    (what, 0usize..20, columns, rounding, moment, 1usize..5).prop_map(
        |(what, rows, columns, rounding, second_moment, every)| Drawn {
            what,
            rows,
            columns,
            rounding,
            second_moment,
            every,
        },
    )
}

#[allow(clippy::large_enum_variant)] // there are few
enum Weights {
    Tensor(Tensor<bf16>),
    Experts(ExpertTable),
}

enum Given {
    Tensor(Tensor<f16>),
    Rows(SparseRows<bf16>),
    Experts(ExpertGradients<f32>),
}

struct Run {
    device: Device,
    drawn: Vec<Drawn>,
    weights: Vec<Weights>,
    optimizer: AdamW,
}

impl Run {
    fn new(device: &Device, drawn: &[Drawn], max_norm: Option<f32>) -> Result<Self> {
        let mut optimizer = AdamW::new(device, OPTIONS)?;
        let mut weights = Vec::new();
        for (number, one) in drawn.iter().enumerate() {
            let options = ParameterOptions {
                rounding: one.rounding,
                second_moment: one.second_moment,
                ..ParameterOptions::default()
            };
            let (name, shape) = (format!("w{number}"), [one.rows, one.columns]);
            weights.push(match one.what {
                What::Experts { hidden, gated } => {
                    let table = experts(device, ExpertFormat::Bf16, [one.rows, one.columns, hidden], gated);
                    optimizer.add_with(name, &table, options)?;
                    Weights::Experts(table)
                }
                _ => {
                    let tensor =
                        tensor::<bf16>(device, &numbers(number as u64, one.rows * one.columns), &shape);
                    optimizer.add_with(name, &tensor, options)?;
                    Weights::Tensor(tensor)
                }
            });
        }
        optimizer.set_max_norm(max_norm)?;
        Ok(Self { device: device.clone(), drawn: drawn.to_vec(), weights, optimizer })
    }

    fn step(&mut self, step: u64) -> Result<()> {
        let mut all = Vec::new();
        for (one, weights) in self.drawn.iter().zip(&self.weights) {
            let first = step as usize % one.every;
            let ids: Vec<u32> = (first..one.rows).step_by(one.every).map(|row| row as u32).collect();
            all.push(match (one.what, weights) {
                (_, Weights::Experts(table)) => Given::Experts(of_experts(&self.device, table, &ids, step)),
                (What::Rows, _) => Given::Rows(sparse(&self.device, &ids, one.columns, step)),
                _ => {
                    let values = numbers(step, one.rows * one.columns);
                    Given::Tensor(tensor(&self.device, &values, &[one.rows, one.columns]))
                }
            });
        }
        let gradients = all.iter().enumerate().map(|(number, given)| {
            let gradient = match given {
                Given::Tensor(tensor) => Gradient::from(tensor),
                Given::Rows(rows) => rows.into(),
                Given::Experts(experts) => experts.into(),
            };
            // In one of the steps, one of the weights has none.
            (step != 2 || number != all.len() / 2).then_some(gradient)
        });
        self.optimizer.step_on(&self.device.default_stream(), &gradients.collect::<Vec<_>>())
    }

    /// The bits of all that a step may change.
    fn bits(&self) -> Vec<Vec<u32>> {
        let bits = |of: Vec<f32>| of.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let mut all = Vec::new();
        for weights in &self.weights {
            match weights {
                Weights::Tensor(tensor) => all.push(bits(wide(tensor))),
                Weights::Experts(table) => {
                    let bytes = table.read_rows(0..table.count()).expect("they are read");
                    all.push(bytes.into_iter().map(u32::from).collect());
                }
            }
        }
        for parameter in &self.optimizer.parameters {
            all.extend(parameter.moments.iter().chain(&parameter.master).map(|of| bits(wide(of))));
        }
        all.push(self.optimizer.history_words().expect("they are read"));
        all.push(bits(wide(&self.optimizer.gradient_norm().expect("it is there"))));
        all
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_device_gives_the_same_bits(
        drawn in prop::collection::vec(drawn(), 1..5),
        max_norm in prop::sample::select(vec![None, Some(0.5), Some(1e9)]),
        scale in prop::sample::select(vec![None, Some(LossScaleOptions::constant(16.0))]),
    ) {
        let mut runs = devices().map(|device| Run::new(&device, &drawn, max_norm).unwrap());
        for run in &mut runs {
            run.optimizer.set_loss_scale(scale).unwrap();
        }
        for step in 1..5 {
            for run in &mut runs {
                run.step(step).unwrap();
            }
            let [cpu, emulator] = runs.each_ref().map(Run::bits);
            prop_assert_eq!(cpu, emulator, "step {}", step);
        }
    }
}

#[test]
fn saved_moments_of_rows_and_experts_go_on_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("optimizer.safetensors");
    let one = Drawn {
        what: What::Experts { hidden: 2, gated: true },
        rows: 9,
        columns: 12,
        rounding: Rounding::Stochastic,
        second_moment: SecondMoment::PerRow,
        every: 2,
    };
    let drawn = [Drawn { what: What::Rows, ..one.clone() }, one];
    for device in devices() {
        let mut run = Run::new(&device, &drawn, None).unwrap();
        run.step(1).unwrap();
        run.optimizer.save(&path).unwrap();
        let mut other = Run::new(&device, &drawn, None).unwrap();
        other.step(1).unwrap();
        other.step(5).unwrap();
        // The weights are the model's.
        for (to, from) in other.weights.iter_mut().zip(&run.weights) {
            match (to, from) {
                (Weights::Tensor(to), Weights::Tensor(from)) => to.copy_from(from).unwrap(),
                (Weights::Experts(to), Weights::Experts(from)) => {
                    to.write_rows(0, &from.read_rows(0..9).unwrap()).unwrap();
                }
                _ => unreachable!("the same weights"),
            }
        }
        other.optimizer.load(&path).unwrap();
        for step in 2..4 {
            run.step(step).unwrap();
            other.step(step).unwrap();
            assert_eq!(run.bits(), other.bits(), "{device}, step {step}");
        }
        // Moments by element are others.
        let by_element =
            drawn.each_ref().map(|one| Drawn { second_moment: SecondMoment::PerElement, ..one.clone() });
        let error = Run::new(&device, &by_element, None).unwrap().optimizer.load(&path).unwrap_err();
        assert!(error.to_string().contains("second_moment.w0"), "{error}");
    }
}
