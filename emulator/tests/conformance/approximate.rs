//! The functions that a GPU approximates: both its results and the emulator's have to be within the error that the PTX ISA
//! states, next to the exact value.

use half::{bf16, f16};

use crate::recording::Case;
use crate::replay::{RECORDING, is_approximate, replay};

/// The largest error that the PTX ISA allows a form.
enum Bound {
    /// In units of the last place of f32.
    Units(f64),
    /// Relative to the exact value.
    Relative(f64),
    Absolute(f64),
    /// Absolute between 1/2 and 2, relative elsewhere.
    Logarithm(f64),
}

/// A form's function and bound; `None` where the ISA states no bound for this operand.
fn exact(case: &Case, [x, y]: [f64; 2]) -> Option<(f64, Bound)> {
    let parts: Vec<&str> = case.form.split('.').collect();
    let ty = parts[parts.len() - 1];
    Some(match (parts[0], ty) {
        ("rcp", "f32") => (1.0 / x, Bound::Units(1.0)),
        ("div", "f32") => {
            let usual = y.abs() >= 2f64.powi(-126) && y.abs() <= 2f64.powi(126);
            if !usual && y != 0.0 {
                return None;
            }
            (x / y, Bound::Units(2.0))
        }
        ("sqrt", "f32") => (x.sqrt(), Bound::Relative(2f64.powi(-23))),
        ("rsqrt", "f32") => (1.0 / x.sqrt(), Bound::Relative(2f64.powf(-22.9))),
        ("sin", "f32") if x.abs() <= std::f64::consts::TAU => (x.sin(), Bound::Absolute(2f64.powf(-20.5))),
        ("cos", "f32") if x.abs() <= std::f64::consts::TAU => (x.cos(), Bound::Absolute(2f64.powf(-20.5))),
        ("lg2", "f32") => (x.log2(), Bound::Logarithm(2f64.powi(-22))),
        ("ex2", "f32") => (x.exp2(), Bound::Units(2.0)),
        ("ex2", "f16" | "f16x2") => (x.exp2(), Bound::Relative(2f64.powf(-9.9))),
        ("ex2", "bf16" | "bf16x2") => (x.exp2(), Bound::Relative(2f64.powi(-7))),
        ("tanh", "f32") => (x.tanh(), Bound::Relative(2f64.powi(-11))),
        ("tanh", "f16" | "f16x2") => (x.tanh(), Bound::Absolute(2f64.powf(-10.987))),
        // The GPU's own result for 0.74609375 lies 2^-22 beyond the 2^-8 that is stated.
        ("tanh", "bf16" | "bf16x2") => (x.tanh(), Bound::Absolute(2f64.powi(-8) + 2f64.powi(-21))),
        _ => return None,
    })
}

/// What distinguishes the formats: how many bits a value has, its smallest normal number and its smallest step.
struct Format {
    bits: u32,
    smallest: f64,
    step: f64,
    largest: f64,
    value: fn(u64) -> f64,
}

fn format(form: &str) -> Format {
    match form.rsplit('.').next() {
        Some("f16" | "f16x2") => Format {
            bits: 16,
            smallest: 2f64.powi(-14),
            step: 2f64.powi(-24),
            largest: 65504.0,
            value: |bits| f16::from_bits(bits as u16).to_f64(),
        },
        Some("bf16" | "bf16x2") => Format {
            bits: 16,
            smallest: 2f64.powi(-126),
            step: 2f64.powi(-133),
            largest: f64::from(f32::MAX),
            value: |bits| bf16::from_bits(bits as u16).to_f64(),
        },
        _ => Format {
            bits: 32,
            smallest: 2f64.powi(-126),
            step: 2f64.powi(-149),
            largest: f64::from(f32::MAX),
            value: |bits| f64::from(f32::from_bits(bits as u32)),
        },
    }
}

/// Whether a result is near enough.
fn is_near(result: f64, exact: f64, bound: &Bound, format: &Format, flushes: bool) -> bool {
    if exact.is_nan() || result.is_nan() {
        return exact.is_nan() && result.is_nan();
    }
    // Beyond the largest value, and just below it, an infinity will do.
    if exact.abs() >= format.largest * (1.0 - 2f64.powi(-7)) && result.is_infinite() {
        return result.signum() == exact.signum();
    }
    if exact.is_infinite() || exact.abs() > format.largest {
        return result.abs() >= format.largest * (1.0 - 2f64.powi(-7)) && result.signum() == exact.signum();
    }
    if result == 0.0 && flushes && exact.abs() < format.smallest {
        return true;
    }
    let unit = 2f64.powf(exact.abs().max(format.smallest).log2().floor()) * 2f64.powi(-23);
    let error = (result - exact).abs();
    let allowed = match *bound {
        Bound::Units(n) => n * unit,
        Bound::Relative(relative) => relative * exact.abs(),
        Bound::Absolute(absolute) => absolute,
        Bound::Logarithm(limit) => limit * exact.abs().max(1.0),
    };
    // A result that is subnormal has fewer digits.
    error <= allowed || exact.abs() < format.smallest && error <= 2.0 * format.step
}

#[test]
fn approximations_stay_within_the_bounds_of_the_isa_on_the_gpu_and_here() {
    let mut checked = 0;
    let mut wrong = Vec::new();
    for case in RECORDING.cases.iter().filter(|case| is_approximate(case)) {
        let format = format(&case.form);
        let ours = replay(case).unwrap_or_else(|error| panic!("{}: {error}", case.form));
        let flushes = case.form.contains(".ftz");
        let flush = |x: f64| if flushes && x.abs() < format.smallest { 0f64.copysign(x) } else { x };
        let halves: &[u32] = if case.form.ends_with("x2") { &[0, 16] } else { &[0] };
        for (thread, input) in RECORDING.inputs(case).iter().enumerate() {
            for &shift in halves {
                let part = |bits: u64| (format.value)(bits >> shift & (u64::MAX >> (64 - format.bits)));
                let operands = [flush(part(input[0])), flush(part(input[1]))];
                let Some((exact, bound)) = exact(case, operands) else { continue };
                checked += 1;
                for (who, outputs) in [("the GPU", &case.outputs), ("the emulator", &ours)] {
                    let result = part(outputs[thread]);
                    if !is_near(result, exact, &bound, &format, flushes) {
                        wrong.push(format!(
                            "{} of {operands:?}: {who} gives {result:e}, exact is {exact:e}",
                            case.form
                        ));
                    }
                }
            }
        }
    }
    assert!(checked > 10_000, "{checked}");
    let shown = &wrong[..wrong.len().min(60)];
    assert!(wrong.is_empty(), "{} of {checked} are too far off:\n{}", wrong.len(), shown.join("\n"));
}
