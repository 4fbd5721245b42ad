//! Forms, one at a time, against what a GPU gave: bit for bit, but for the functions that a GPU approximates (`approximate`).
//!
//! `data/recorded/forms.bin` holds the cases; `forms.txt` beside it says on which GPU they were recorded, and lists them.

use std::sync::LazyLock;

use warpsmith_emulator::{Config, LaunchConfig, Machine, Module, Numerics, forms};

use crate::recording::{BLOCK, Case, Recording};

pub(crate) static RECORDING: LazyLock<Recording> = LazyLock::new(|| {
    let packed = include_bytes!("../data/recorded/forms.bin");
    let bytes = miniz_oxide::inflate::decompress_to_vec(packed).expect("the recording can be unpacked");
    Recording::from_bytes(&bytes).expect("the recording can be read")
});

/// The forms that are recorded, and those in the instructions around them.
pub(crate) fn forms() -> Vec<String> {
    let forms = RECORDING.cases.iter().flat_map(|case| {
        let used = forms::used_in("case.ptx", &text(case)).unwrap_or_else(|error| panic!("{error}"));
        assert!(used.contains_key(&case.form), "{} is not in its own case", case.form);
        used.into_keys()
    });
    forms.collect()
}

fn text(case: &Case) -> String {
    format!(".version 8.6\n.target sm_90\n.address_size 64\n{}", case.entry("case"))
}

/// What the emulator gives for a case, in the recording's order; what it found, where that is an error.
pub(crate) fn replay(case: &Case) -> Result<Vec<u64>, String> {
    let module = Module::parse("case.ptx", &text(case)).map_err(|error| error.to_string())?;
    let config = Config {
        compute_capability: (9, 0),
        numerics: Numerics::Exact,
        threads: Some(1),
        ..Config::default()
    };
    let machine = Machine::new(config);
    let inputs = RECORDING.inputs(case);
    let (threads, results) = (inputs.len(), case.results.len());
    let bytes: Vec<u8> = inputs.as_flattened().iter().flat_map(|value| value.to_le_bytes()).collect();
    let (input, output) = (
        machine.allocate(bytes.len() as u64).unwrap(),
        machine.allocate(8 * (threads * results) as u64).unwrap(),
    );
    machine.write(input, &bytes).unwrap();
    let config = LaunchConfig {
        grid: [threads as u32 / BLOCK, 1, 1],
        block: [BLOCK, 1, 1],
        ..LaunchConfig::default()
    };
    let arguments: [&[u8]; 2] = [&input.to_le_bytes(), &output.to_le_bytes()];
    machine.launch(&module, "case", &config, &arguments).map_err(|error| error.to_string())?;
    let mut out = vec![0; 8 * threads * results];
    machine.read(output, &mut out).unwrap();
    let values: Vec<u64> = out.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect();
    Ok((0..results)
        .flat_map(|i| values.iter().skip(i).step_by(results).copied().collect::<Vec<_>>())
        .collect())
}

#[test]
fn every_recorded_form_gives_what_the_gpu_gave() {
    assert!(RECORDING.cases.len() > 1000);
    let mut wrong = Vec::new();
    for case in RECORDING.cases.iter().filter(|case| !is_approximate(case)) {
        match replay(case) {
            Ok(outputs) => wrong.extend(first_difference(case, &outputs)),
            Err(error) => wrong.push(format!("{}: {error}", case.form)),
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} forms differ:\n{}",
        wrong.len(),
        RECORDING.cases.len(),
        wrong.join("\n")
    );
}

fn first_difference(case: &Case, outputs: &[u64]) -> Option<String> {
    assert_eq!(outputs.len(), case.outputs.len(), "{}", case.form);
    let differs = |at: &usize| outputs[*at] != case.outputs[*at];
    let at = (0..outputs.len()).find(differs)?;
    let count = (0..outputs.len()).filter(differs).count();
    let inputs = RECORDING.inputs(case);
    Some(format!(
        "{}: {count} of {}, first for {:x?}: `{}` is {:#x}, on the GPU {:#x}",
        case.form,
        outputs.len(),
        inputs[at % inputs.len()],
        case.results[at / inputs.len()],
        outputs[at],
        case.outputs[at]
    ))
}

pub(crate) fn is_approximate(case: &Case) -> bool {
    case.form.split('.').any(|part| part == "approx" || part == "full")
}
