//! What training needs in all examples: random numbers, a learning rate, a progress bar, a curve of losses, comparison of gradients.

use std::path::Path;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use plotters::prelude::*;
use warpsmith::Tensor;
use warpsmith::optim::schedule;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// How far a gradient may be from what it is compared with, relative to the largest of its tensor.
pub(crate) const MOST_DIFFERENCE: f64 = 1e-3;

/// Numbers that follow from a seed alone (SplitMix64), the same for good.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    /// From 0 to less than 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// What a program ends with: whether all held, or an error.
pub(crate) fn exit(holds: Result<bool>) -> ExitCode {
    match holds {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A bar of so many steps.
pub(crate) fn progress(steps: usize, name: &str) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{msg:>4} {bar:40} {pos}/{len} steps, {eta} left")?;
    Ok(ProgressBar::new(steps as u64).with_style(style).with_message(name.to_owned()))
}

/// The learning rate of a step of so many: it rises for `warmup` steps to `highest`, and falls as a cosine.
pub(crate) fn rate(highest: f64, warmup: u64, step: u64, steps: usize) -> f64 {
    let cosine = schedule::cosine(step, warmup, steps as u64, 0.02);
    highest * schedule::linear_warmup(step, warmup) * cosine
}

/// Colours of curves, which the colour-blind can tell apart, on light pages and on dark ones.
const COLOURS: [RGBColor; 3] = [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115)];

/// The losses of steps, each a tensor of one number.
pub(crate) fn numbers(losses: &[Tensor<f32>]) -> Result<Vec<f32>> {
    losses.iter().map(|loss| Ok(loss.to_vec()?[0])).collect()
}

/// The largest difference so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Worst(pub(crate) f64);

impl Worst {
    /// Two numbers, and the size of what they are part of.
    pub(crate) fn compare(&mut self, found: f64, expected: f64, scale: f64) {
        // Not `f64::max`, to which NaN would look like agreement.
        let apart = if found == expected { 0.0 } else { (found - expected).abs() / scale };
        if apart.is_nan() || apart > self.0 {
            self.0 = apart;
        }
    }

    /// Whether it is at most [`MOST_DIFFERENCE`]; says so if it is not.
    pub(crate) fn holds(self) -> bool {
        let holds = self.0 <= MOST_DIFFERENCE;
        if !holds {
            eprintln!("expected at most {MOST_DIFFERENCE:e}");
        }
        holds
    }
}

/// The largest of numbers' sizes.
pub(crate) fn scale(numbers: &[f32]) -> f64 {
    numbers.iter().fold(0f64, |most, &number| most.max(number.abs().into()))
}

/// Draws each step's loss, on a logarithmic scale.
pub(crate) fn draw(path: &Path, curves: &[(&str, Vec<f32>)]) -> Result<()> {
    let steps = curves.iter().map(|(_, losses)| losses.len()).max().unwrap_or(1);
    let all = || curves.iter().flat_map(|(_, losses)| losses).copied().filter(|loss| *loss > 0.0);
    let (least, most) = (all().fold(f32::INFINITY, f32::min), all().fold(0.0, f32::max));
    if least >= most {
        eprintln!("no curve is drawn: it takes losses of two steps that differ");
        return Ok(());
    }
    let area = SVGBackend::new(path, (720, 400)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(0..steps, (least..most).log_scale())?;
    chart.configure_mesh().x_desc("step").y_desc("loss").draw()?;
    for ((name, losses), color) in curves.iter().zip(COLOURS) {
        let line = LineSeries::new(losses.iter().copied().enumerate(), color);
        chart
            .draw_series(line)?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color));
    }
    chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()?;
    area.present()?;
    Ok(())
}
