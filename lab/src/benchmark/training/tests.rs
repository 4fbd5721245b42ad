use half::bf16;
use warpsmith::Device;
use warpsmith::error::{Error, Result};
use warpsmith::ops::Activation;
use warpsmith::tensor::DType;

use super::mlp::Mlp;
use super::{Linear, TrainingSubject, TrainingWork, training_subject};
use crate::benchmark::Subject;

#[test]
fn every_work_runs_and_says_what_it_does() -> Result<()> {
    let stream = Device::emulator().default_stream();
    let linear = |activation| TrainingWork::Linear { activation, shape: [5, 8, 16] };
    let of_linear = 6.0 * 5.0 * 8.0 * 16.0;
    // Both passes read x and w, and x of dW; dX is written. A bit for each of 80 elements of the mask.
    let bytes = |kept: f64| {
        2.0 * (40.0 + 128.0 + 16.0 + 80.0 + 80.0 + 40.0 + 128.0 + 40.0) + 2.0 * kept + 4.0 * 144.0
    };
    for (work, dtype, flops, bytes) in [
        (linear(Activation::Relu), DType::Bf16, of_linear, bytes(10.0)),
        (linear(Activation::GeluTanh), DType::Bf16, of_linear, bytes(160.0)),
        (linear(Activation::None), DType::Bf16, of_linear, bytes(0.0)),
        (TrainingWork::AdamW { lengths: vec![3, 1, 70] }, DType::F32, 0.0, 28.0 * 74.0),
    ] {
        let TrainingSubject { mut operation, flops: counted, bytes: moved, .. } =
            training_subject(&stream, &work, dtype)?;
        assert_eq!((counted, moved), (flops, bytes), "{work:?}");
        operation.enqueue(1)?;
    }
    for dtype in [DType::F16, DType::F32] {
        training_subject(&stream, &linear(Activation::Relu), dtype)?.operation.enqueue(1)?;
    }
    Ok(())
}

/// The same data are in every set, so gradients must agree with those of the CPU, whichever set a launch works on.
#[test]
fn a_layers_gradients_are_those_of_its_operation() -> Result<()> {
    let gradients = |device: Device| -> Result<Vec<f32>> {
        let stream = device.default_stream();
        let mut measured: Linear<f32> = super::linear_sets(&stream, Activation::Relu, [3, 5, 7])?;
        measured.enqueue(1)?;
        let set = &measured.sets[1];
        let mut all = set.dx.to_vec()?;
        all.extend(set.gradients.dw.to_vec()?);
        all.extend(set.gradients.db.to_vec()?);
        Ok(all)
    };
    let (emulated, on_cpu) = (gradients(Device::emulator())?, gradients(Device::cpu())?);
    assert_eq!(emulated.len(), 15 + 35 + 7);
    // Each device is within 2 K · u · Σ|terms| of the exact sums, which have at most 7 terms of magnitude up to 1; ε is 2 u.
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 2.0 * 7.0 * 7.0 * f32::EPSILON;
    assert!(emulated.iter().zip(&on_cpu).all(near), "{emulated:?} {on_cpu:?}");
    assert!(emulated.iter().any(|&gradient| gradient != 0.0));
    Ok(())
}

#[test]
fn a_step_of_a_network_moves_every_weight_of_its_optimiser() -> Result<()> {
    let stream = Device::emulator().default_stream();
    let mut network = Mlp::<bf16>::new(&stream, 6, &[8, 16, 16, 3])?;
    let masters = |network: &Mlp<bf16>| -> Result<Vec<Vec<f32>>> {
        let names: Vec<String> = network.optimizer.names().map(str::to_owned).collect();
        assert_eq!(names.len(), 6);
        names.iter().filter_map(|name| network.optimizer.master(name)).map(|master| master.to_vec()).collect()
    };
    let before = masters(&network)?;
    network.enqueue(0)?;
    network.enqueue(1)?;
    let after = masters(&network)?;
    assert_eq!(before.len(), 6);
    assert!(before.iter().zip(&after).all(|(before, after)| before != after));
    assert_eq!(network.optimizer.steps()?, [2; 6]);
    let loss = network.loss.to_vec()?[0];
    assert!(loss.is_finite() && loss > 0.1 && loss < 10.0, "{loss}");
    Ok(())
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let stream = Device::cpu().default_stream();
    let refused = |work, dtype| training_subject(&stream, &work, dtype).err();
    let adamw = TrainingWork::AdamW { lengths: vec![1] };
    assert!(matches!(refused(adamw, DType::Bf16), Some(Error::Type { .. })));
    let linear = TrainingWork::Linear { activation: Activation::None, shape: [1, 1, 1] };
    assert!(matches!(refused(linear, DType::U32), Some(Error::Type { .. })));
    for (batch, widths) in [(1, vec![2]), (0, vec![2, 2]), (1, vec![2, 0])] {
        let work = TrainingWork::Mlp { batch, widths };
        assert!(matches!(refused(work, DType::F32), Some(Error::Argument { .. })));
    }
}
