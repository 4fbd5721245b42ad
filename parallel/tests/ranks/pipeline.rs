//! Pipelines: the gradients of a model whose layers are on several ranks are those of one rank, bit for bit.

use std::collections::HashMap;

use warpsmith::layers::{Linear, LinearSaved};
use warpsmith::ops::linear::LinearGradientOutputs;
use warpsmith::ops::{self, Activation};
use warpsmith::{Device, Tensor};
use warpsmith_parallel::launch;
use warpsmith_parallel::pipeline::{Links, Place, Schedule, Stage, run};
use warpsmith_parallel::{Error, Result};

use crate::support::{LIMIT, Random};

const WIDTH: usize = 5;
const ROWS: usize = 3;

/// Layer number `index` of all.
fn layer(device: &Device, index: usize) -> Result<Linear<f32>> {
    let weight = Random(index as u64).numbers(WIDTH * WIDTH);
    Ok(Linear::new(Tensor::from_slice(device, &weight, [WIDTH, WIDTH])?, None, Activation::Relu)?)
}

fn example(device: &Device, microbatch: usize, of: u64) -> Result<Tensor<f32>> {
    let numbers = Random(100 * of + microbatch as u64).numbers(ROWS * WIDTH);
    Ok(Tensor::from_slice(device, &numbers, [ROWS, WIDTH])?)
}

/// Some layers of the model, one for each chunk.
struct Layers {
    device: Device,
    layers: Vec<Linear<f32>>,
    gradients: Vec<Tensor<f32>>,
    saved: HashMap<Place, LinearSaved<f32>>,
    slopes: HashMap<Place, Tensor<f32>>,
    most_kept: usize,
}

impl Layers {
    fn new(device: &Device, indices: impl Iterator<Item = usize>) -> Result<Self> {
        let layers: Vec<_> = indices.map(|index| layer(device, index)).collect::<Result<_>>()?;
        let gradients = layers.iter().map(|_| Tensor::zeros(device, [WIDTH, WIDTH]));
        let gradients = gradients.collect::<warpsmith::Result<_>>()?;
        let (saved, slopes) = (HashMap::new(), HashMap::new());
        Ok(Self { device: device.clone(), layers, gradients, saved, slopes, most_kept: 0 })
    }
}

impl Stage<f32> for Layers {
    fn input_shape(&self, _: Place) -> Vec<usize> {
        vec![ROWS, WIDTH]
    }

    fn output_shape(&self, _: Place) -> Vec<usize> {
        vec![ROWS, WIDTH]
    }

    fn forward(&mut self, place: Place, x: Option<Tensor<f32>>) -> Result<Tensor<f32>> {
        let x = x.map_or_else(|| example(&self.device, place.microbatch, 1), Ok)?;
        let (y, saved) = self.layers[place.chunk].forward_train(&x)?;
        assert!(self.saved.insert(place, saved).is_none());
        self.most_kept = self.most_kept.max(self.saved.len());
        Ok(y)
    }

    fn backward_input(&mut self, place: Place, dy: Option<Tensor<f32>>) -> Result<Tensor<f32>> {
        let dy = dy.map_or_else(|| example(&self.device, place.microbatch, 2), Ok)?;
        let (layer, saved) = (&self.layers[place.chunk], &self.saved[&place]);
        let dz = layer.backward_operation(saved, &dy).dz()?;
        let dx = ops::linear_backward(saved.x(), layer.weight(), &dz).dx()?;
        self.slopes.insert(place, dz);
        Ok(dx)
    }

    fn backward_weight(&mut self, place: Place) -> Result<()> {
        let saved = self.saved.remove(&place).expect("its forward pass is done");
        let dz = self.slopes.remove(&place).expect("its other gradient is known");
        let operation = ops::linear_backward(saved.x(), self.layers[place.chunk].weight(), &dz);
        let dw = Some(&mut self.gradients[place.chunk]);
        Ok(operation.run_into(LinearGradientOutputs { dw, adds: true, ..Default::default() })?)
    }
}

/// The gradients of all layers on one rank, microbatch by microbatch.
fn one_rank(device: &Device, layers: usize, microbatches: usize) -> Result<Vec<Vec<f32>>> {
    let mut all = Layers::new(device, 0..layers)?;
    for microbatch in 0..microbatches {
        let place = |chunk| Place { microbatch, chunk };
        let mut x = None;
        for chunk in 0..layers {
            x = Some(all.forward(place(chunk), x)?);
        }
        let mut dy = None;
        for chunk in (0..layers).rev() {
            dy = Some(all.backward_input(place(chunk), dy)?);
            all.backward_weight(place(chunk))?;
        }
    }
    Ok(all.gradients.iter().map(|gradient| gradient.to_vec().expect("it is read")).collect())
}

fn expect_gradients(
    schedule: Schedule,
    stages: usize,
    microbatches: usize,
    device: fn() -> Device,
) -> Result<()> {
    let results = launch::threads_within(LIMIT, stages, |communicator| {
        let (rank, device) = (communicator.rank(), device());
        let chunks = (0..schedule.chunks()).map(|chunk| chunk * stages + rank);
        let mut layers = Layers::new(&device, chunks)?;
        run(schedule, microbatches, &Links::over_host(&communicator, &device)?, &mut layers)?;
        assert!(layers.saved.is_empty() && layers.slopes.is_empty());
        let gradients = layers.gradients.iter().map(|gradient| gradient.to_vec().expect("it is read"));
        Ok((gradients.collect::<Vec<_>>(), layers.most_kept))
    })?;
    let expected = one_rank(&device(), stages * schedule.chunks(), microbatches)?;
    for (stage, (gradients, kept)) in results.into_iter().enumerate() {
        for (chunk, gradient) in gradients.into_iter().enumerate() {
            assert_eq!(gradient, expected[chunk * stages + stage], "{schedule:?} {stages} {microbatches}");
        }
        let most = match schedule {
            Schedule::OneForwardOneBackward => stages - stage,
            Schedule::ZeroBubble => stages,
            Schedule::EagerOneForwardOneBackward => 2 * (stages - 1 - stage) + 1,
            Schedule::EagerZeroBubble => 2 * stages - 1,
            _ => 2 * (stages - 1 - stage) + (schedule.chunks() - 1) * stages + 1,
        };
        assert_eq!(kept.min(most), kept, "{schedule:?} {stages} {microbatches}");
    }
    Ok(())
}

#[test]
fn every_schedule_gives_the_gradients_of_one_rank() -> Result<()> {
    for (stages, microbatches) in [(1, 3), (2, 1), (2, 8), (3, 6), (4, 4), (5, 7), (8, 8)] {
        for schedule in [
            Schedule::OneForwardOneBackward,
            Schedule::ZeroBubble,
            Schedule::EagerOneForwardOneBackward,
            Schedule::EagerZeroBubble,
        ] {
            expect_gradients(schedule, stages, microbatches, Device::cpu)?;
        }
    }
    for (stages, microbatches, chunks) in [(2, 2, 2), (2, 8, 3), (3, 6, 2), (4, 8, 2)] {
        expect_gradients(Schedule::Interleaved { chunks }, stages, microbatches, Device::cpu)?;
    }
    expect_gradients(Schedule::ZeroBubble, 2, 2, Device::emulator)?;
    expect_gradients(Schedule::EagerZeroBubble, 2, 4, Device::emulator)
}

#[test]
fn a_stage_that_fails_ends_the_others() -> Result<()> {
    struct Failing(Layers, usize);
    impl Stage<f32> for Failing {
        fn input_shape(&self, place: Place) -> Vec<usize> {
            self.0.input_shape(place)
        }
        fn output_shape(&self, _: Place) -> Vec<usize> {
            // Not what it gives.
            vec![ROWS + usize::from(self.1 == 1), WIDTH]
        }
        fn forward(&mut self, place: Place, x: Option<Tensor<f32>>) -> Result<Tensor<f32>> {
            self.0.forward(place, x)
        }
        fn backward_input(&mut self, place: Place, dy: Option<Tensor<f32>>) -> Result<Tensor<f32>> {
            self.0.backward_input(place, dy)
        }
        fn backward_weight(&mut self, place: Place) -> Result<()> {
            self.0.backward_weight(place)
        }
    }
    let results = launch::all_threads(LIMIT, 3, |communicator| {
        let device = Device::cpu();
        let mut stage = Failing(Layers::new(&device, 0..1)?, communicator.rank());
        run(Schedule::ZeroBubble, 4, &Links::over_host(&communicator, &device)?, &mut stage)
    })?;
    for (rank, result) in results.into_iter().enumerate() {
        match result.expect_err("one fails") {
            Error::Argument { expected, .. } => assert_eq!((rank, expected.as_str()), (1, "shape [4, 5]")),
            Error::Failure(failure) => assert!(failure.to_string().contains("rank 1 is gone"), "{failure}"),
            error => panic!("{error}"),
        }
    }
    Ok(())
}
