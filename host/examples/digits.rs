//! Classifies real handwritten digits with a network that another library trained, and compares with that library's answers.
//!
//! `cargo run --release --example digits [-- --device auto|cuda:N|emulator|cpu]`
//!
//! 360 images of 8 × 8 pixels go through three linear layers, 64 → 256 → 128 → 10, with ReLU between and softmax at the end. In f32
//! every class must be the one that scikit-learn's network gives, and every probability within 1e-5 of its; the same network
//! rounded to f16 and bf16 is reported beside it. The data are part of the program (`host/data/digits-mlp` says whose they are).

use std::process::ExitCode;
use std::time::{Duration, Instant};

use half::{bf16, f16};
use ndarray::{Array1, Array2, ArrayView1, Ix1, Ix2};
use warpsmith::layers::Linear;
use warpsmith::ops::Activation;
use warpsmith::ops::linear::LinearInput;
use warpsmith::weights::FloatElement;
use warpsmith::{Device, Tensor, Weights};

static NETWORK: &[u8] = include_bytes!("../data/digits-mlp/mlp.safetensors");
static DIGITS: &[u8] = include_bytes!("../data/digits-mlp/digits.safetensors");

/// How many images scikit-learn's network classifies correctly.
const EXPECTED_CORRECT: usize = 356;
/// How far a probability computed in f32 may be from scikit-learn's.
const MOST_DIFFERENCE: f64 = 1e-5;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The images, their labels, and what scikit-learn says of them.
struct Digits {
    images: Array2<f32>,
    labels: Array1<i64>,
    probabilities: Array2<f64>,
}

impl Digits {
    fn load() -> Result<Self> {
        let file = Weights::from_bytes(DIGITS)?;
        Ok(Self {
            images: file.array("x_test")?.into_dimensionality::<Ix2>()?,
            labels: file.array("y_test")?.into_dimensionality::<Ix1>()?,
            probabilities: file.array("proba_test")?.into_dimensionality::<Ix2>()?,
        })
    }
}

/// What the network says in one number type.
struct Report {
    implementations: Vec<String>,
    correct: usize,
    agreeing: usize,
    largest_difference: f64,
    time: Duration,
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let device: Device = device_argument()?.parse()?;
    let digits = Digits::load()?;
    let images = digits.images.nrows();
    println!("{images} handwritten digits on {device} ({})", device.name());

    let single = classify::<f32>(&device, &digits)?;
    print_report("f32", &single, images);
    print_report("f16", &classify::<f16>(&device, &digits)?, images);
    print_report("bf16", &classify::<bf16>(&device, &digits)?, images);
    for (layer, implementation) in single.implementations.iter().enumerate() {
        println!("layer {layer} in f32: {implementation}");
    }

    let holds = single.agreeing == images
        && single.correct == EXPECTED_CORRECT
        && single.largest_difference <= MOST_DIFFERENCE;
    if holds {
        println!("f32 agrees with scikit-learn on every image, to within {MOST_DIFFERENCE:e}");
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!(
        "f32 does not agree with scikit-learn: expected {EXPECTED_CORRECT} right, the same class for all {images} and \
         probabilities within {MOST_DIFFERENCE:e}"
    );
    Ok(ExitCode::FAILURE)
}

fn device_argument() -> Result<String> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next(), arguments.next()) {
        (None, ..) => Ok("auto".into()),
        (Some("--device"), Some(device), None) => Ok(device),
        _ => Err("usage: digits [--device auto|cuda:N|emulator|cpu]".into()),
    }
}

/// Runs the network with weights and activations of type `T`; the last layer's sums stay in f32.
fn classify<T: LinearInput + FloatElement>(device: &Device, digits: &Digits) -> Result<Report> {
    let file = Weights::from_bytes(NETWORK)?;
    let layer = |index: usize, activation| {
        Linear::<T>::from_safetensors_converted(&file, &format!("layers.{index}"), device, activation)
    };
    let layers = [layer(0, Activation::Relu)?, layer(1, Activation::Relu)?, layer(2, Activation::None)?];
    let images = Tensor::from_array(device, &digits.images.mapv(|pixel| T::round(pixel.into())))?;
    let forward = || -> warpsmith::Result<Vec<f32>> {
        let hidden = layers[1].forward(&layers[0].forward(&images)?)?;
        layers[2].forward_as::<f32>(&hidden)?.to_vec()
    };

    forward()?; // Loads the kernels.
    let start = Instant::now();
    let logits = forward()?;
    let time = start.elapsed();

    let logits = Array2::from_shape_vec(digits.probabilities.dim(), logits)?;
    let hidden = layers[0].forward(&images)?;
    let implementations = vec![
        layers[0].implementation(&images)?.to_string(),
        layers[1].implementation(&hidden)?.to_string(),
        layers[2].implementation_as::<f32>(&layers[1].forward(&hidden)?)?.to_string(),
    ];
    Ok(Report { implementations, time, ..compare(&logits, digits) })
}

fn compare(logits: &Array2<f32>, digits: &Digits) -> Report {
    let mut report = Report {
        implementations: Vec::new(),
        correct: 0,
        agreeing: 0,
        largest_difference: 0.0,
        time: Duration::ZERO,
    };
    let references = digits.probabilities.rows().into_iter().zip(&digits.labels);
    for (logits, (reference, &label)) in logits.rows().into_iter().zip(references) {
        let probabilities = softmax(logits);
        let class = largest(probabilities.view());
        report.correct += usize::from(i64::try_from(class) == Ok(label));
        report.agreeing += usize::from(class == largest(reference));
        for (ours, theirs) in probabilities.iter().zip(reference) {
            // A NaN must not look like agreement, as it would to `f64::max`.
            let difference = (ours - theirs).abs();
            if difference.is_nan() || difference > report.largest_difference {
                report.largest_difference = difference;
            }
        }
    }
    report
}

/// The class probabilities, in f64.
fn softmax(logits: ArrayView1<'_, f32>) -> Array1<f64> {
    let largest = logits.fold(f64::NEG_INFINITY, |largest, &logit| largest.max(logit.into()));
    let powers = logits.mapv(|logit| (f64::from(logit) - largest).exp());
    let sum = powers.sum();
    powers / sum
}

fn largest(probabilities: ArrayView1<'_, f64>) -> usize {
    let mut largest = 0;
    for (class, &probability) in probabilities.iter().enumerate() {
        if probability > probabilities[largest] {
            largest = class;
        }
    }
    largest
}

fn print_report(name: &str, report: &Report, images: usize) {
    println!(
        "{name:>4}: {}/{images} right ({:.2} %), {} as scikit-learn, probabilities within {:.1e}, {:.3} ms",
        report.correct,
        100.0 * report.correct as f64 / images as f64,
        report.agreeing,
        report.largest_difference,
        report.time.as_secs_f64() * 1e3
    );
}
