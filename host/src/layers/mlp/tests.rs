use crate::layers::differences::{along, bits, direction, expect_near, moved, numbers, tensor};
use crate::layers::{Linear, Mlp, Parameters};
use crate::ops::Activation;
use crate::{Device, Error, Result, Tensor};

const INPUT: usize = 6;
const HIDDEN: usize = 10;
const OUTPUT: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Plain(Activation),
    Fused(Activation),
    Separate(Activation),
}

const KINDS: [Kind; 4] = [
    Kind::Plain(Activation::Relu),
    Kind::Plain(Activation::Silu),
    Kind::Fused(Activation::Silu),
    Kind::Separate(Activation::GeluErf),
];

impl Kind {
    /// The rows and columns of each weight.
    fn shapes(self) -> Vec<[usize; 2]> {
        match self {
            Self::Plain(_) => vec![[HIDDEN, INPUT], [OUTPUT, HIDDEN]],
            Self::Fused(_) => vec![[2 * HIDDEN, INPUT], [OUTPUT, HIDDEN]],
            Self::Separate(_) => vec![[HIDDEN, INPUT], [HIDDEN, INPUT], [OUTPUT, HIDDEN]],
        }
    }

    /// Of each layer the weight, then the bias.
    fn weights(self) -> Vec<Vec<f32>> {
        let of_layer = |(seed, [rows, columns]): (usize, [usize; 2])| {
            [numbers(rows * columns, 2 * seed), numbers(rows, 2 * seed + 1)]
        };
        self.shapes().into_iter().enumerate().flat_map(of_layer).collect()
    }

    fn layer(self, device: &Device, weights: &[Vec<f32>]) -> Mlp<f32> {
        let shapes = self.shapes();
        let linear = |index: usize, activation| {
            let bias =
                Tensor::from_slice(device, &weights[2 * index + 1], [shapes[index][0]]).expect("it fits");
            let weight = Tensor::from_slice(device, &weights[2 * index], shapes[index]).expect("it fits");
            Linear::new(weight, Some(bias), activation).expect("it fits")
        };
        let none = Activation::None;
        match self {
            Self::Plain(activation) => Mlp::new(linear(0, activation), linear(1, none)),
            Self::Fused(activation) => Mlp::gated_fused(linear(0, none), linear(1, none), activation),
            Self::Separate(activation) => {
                Mlp::gated(linear(0, none), linear(1, none), linear(2, none), activation)
            }
        }
        .expect("it fits")
    }
}

fn product(y: &Tensor<f32>, dy: &Tensor<f32>) -> f64 {
    bits(y).into_iter().zip(bits(dy)).map(|(y, dy)| f64::from(y) * f64::from(dy)).sum()
}

#[test]
fn gradients_are_those_of_differences() -> Result<()> {
    for device in [Device::cpu(), Device::emulator()] {
        for kind in KINDS {
            let (x, dy) = (tensor(&device, &[2, 4, INPUT], 20), tensor(&device, &[2, 4, OUTPUT], 21));
            let weights = kind.weights();
            let layer = kind.layer(&device, &weights);
            let (y, saved) = layer.forward_train(&x)?;
            expect_near(&bits(&y), &bits(&layer.forward(&x)?));
            let gradients = layer.backward(&saved, &dy)?;
            let size = bits(&y).into_iter().zip(bits(&dy)).map(|(y, dy)| f64::from((y * dy).abs())).sum();

            let dx = bits(&gradients.dx);
            // Where ReLU has a corner, differences are none of its gradient.
            let is_smooth = kind != Kind::Plain(Activation::Relu);
            if is_smooth {
                along(&direction(&dx), &dx, size, |step| {
                    let mut numbers = bits(&x);
                    moved(&mut numbers, &direction(&dx), step);
                    let x = Tensor::from_slice(&device, &numbers, x.shape()).expect("it fits");
                    product(&layer.forward(&x).expect("it fits"), &dy)
                });
            }
            let of_weights = layer.gradients(&gradients);
            assert_eq!(of_weights.len(), weights.len());
            for (which, gradient) in of_weights.into_iter().enumerate() {
                if !is_smooth && which < 2 {
                    continue;
                }
                let gradient = gradient.whole().to_f32()?;
                along(&direction(&gradient), &gradient, size, |step| {
                    let mut weights = weights.clone();
                    moved(&mut weights[which], &direction(&gradient), step);
                    product(&kind.layer(&device, &weights).forward(&x).expect("it fits"), &dy)
                });
            }
        }
    }
    Ok(())
}

#[test]
fn gradients_of_two_passes_are_added_and_what_is_kept_is_counted() -> Result<()> {
    let rows = 8;
    for device in [Device::cpu(), Device::emulator()] {
        for kind in KINDS {
            let (x, dy) = (tensor(&device, &[rows, INPUT], 3), tensor(&device, &[rows, OUTPUT], 4));
            let layer = kind.layer(&device, &kind.weights());
            let (_, saved) = layer.forward_train(&x)?;
            let slopes = match kind {
                Kind::Plain(Activation::Relu) => rows,
                Kind::Plain(_) => rows * HIDDEN,
                _ => 2 * rows * HIDDEN,
            };
            assert_eq!(saved.bytes(), 4 * (rows * INPUT + slopes + rows * HIDDEN), "{kind:?}");
            let once = layer.backward(&saved, &dy)?;
            let mut twice = layer.backward(&saved, &dy)?;
            layer.accumulate(&saved, &dy, &mut twice)?;
            assert_eq!(bits(&once.dx), bits(&twice.dx));
            for (once, twice) in layer.gradients(&once).into_iter().zip(layer.gradients(&twice)) {
                // The sum of two equal numbers is rounded as each is.
                let doubled: Vec<f32> =
                    once.whole().to_f32()?.into_iter().map(|number| 2.0 * number).collect();
                expect_near(&twice.whole().to_f32()?, &doubled);
            }
        }
    }
    Ok(())
}

#[test]
fn a_pass_over_no_rows_has_gradients_of_zeros() -> Result<()> {
    for device in [Device::cpu(), Device::emulator()] {
        for kind in KINDS {
            let layer = kind.layer(&device, &kind.weights());
            let (y, saved) = layer.forward_train(&Tensor::zeros(&device, [0, INPUT])?)?;
            assert_eq!(y.shape(), [0, OUTPUT]);
            let gradients = layer.backward(&saved, &y)?;
            for gradient in layer.gradients(&gradients) {
                assert!(gradient.whole().to_f32()?.into_iter().all(|number| number == 0.0), "{kind:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let device = Device::cpu();
    let linear = |rows, columns, activation| {
        Linear::new(tensor(&device, &[rows, columns], 0), None, activation).expect("it fits")
    };
    let plain = |rows, columns| linear(rows, columns, Activation::None);
    let operand = |refused: Result<Mlp<f32>>| match refused {
        Err(Error::Shape { operand, .. }) => operand,
        other => panic!("{other:?}"),
    };
    assert_eq!(operand(Mlp::new(plain(8, 4), plain(4, 7))), "down");
    assert_eq!(operand(Mlp::gated_fused(plain(7, 4), plain(4, 3), Activation::Silu)), "gate_up");
    assert_eq!(operand(Mlp::gated_fused(plain(8, 4), plain(4, 8), Activation::Silu)), "down");
    assert_eq!(operand(Mlp::gated(plain(8, 4), plain(8, 5), plain(4, 8), Activation::Silu)), "up");
    let relu = |rows, columns| linear(rows, columns, Activation::Relu);
    for (refused, name) in [
        (Mlp::new(plain(8, 4), relu(4, 8)), "down"),
        (Mlp::gated_fused(relu(8, 4), plain(4, 4), Activation::Silu), "gate_up"),
        (Mlp::gated(plain(8, 4), relu(8, 4), plain(4, 8), Activation::Silu), "up"),
    ] {
        assert!(matches!(refused, Err(Error::Argument { argument, .. }) if argument == name), "{name}");
    }

    // Gradients of another layer: nothing is added to them.
    let (one, other) = (Kind::Fused(Activation::Silu), Kind::Plain(Activation::Silu));
    let [one, other] = [one, other].map(|kind| kind.layer(&device, &kind.weights()));
    let (x, dy) = (tensor(&device, &[3, INPUT], 1), tensor(&device, &[3, OUTPUT], 2));
    let (_, saved) = one.forward_train(&x).expect("it fits");
    let (_, of_other) = other.forward_train(&x).expect("it fits");
    let mut gradients = other.backward(&of_other, &dy).expect("it fits");
    let before = bits(&gradients.down.dw);
    let refused = one.accumulate(&saved, &dy, &mut gradients);
    assert!(matches!(refused, Err(Error::Argument { argument: "gradients", .. })), "{refused:?}");
    assert_eq!(bits(&gradients.down.dw), before);
    // What another layer has kept is refused before anything is added.
    let mut own = one.backward(&saved, &dy).expect("it fits");
    let before = bits(&own.down.dw);
    let refused = one.accumulate(&of_other, &dy, &mut own);
    assert!(matches!(refused, Err(Error::Argument { argument: "saved", .. })), "{refused:?}");
    assert_eq!(bits(&own.down.dw), before);
    let refused = one.backward(&of_other, &dy);
    assert!(matches!(refused, Err(Error::Argument { argument: "saved", .. })), "{refused:?}");
}
