//! Softmax and its gradient are within their bounds of f64, whatever is drawn: sizes, types, layouts, masks, scales, in place or not.

use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::{DType, Device, Tensor, ops};
use warpsmith_lab::cases::{MaskRows, Placement, SoftmaxCase};
use warpsmith_lab::validate;

use crate::rows::{matrix, numbers, placement, random, sizes};
use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    shares_and_gradients_drawn_are_those_of_f64,
    wide_rows_have_all_their_shares,
    a_softmax_of_a_row_is_the_same_among_others,
    a_captured_softmax_runs_again_on_what_is_there_then,
];

/// The types of rows.
const TYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

fn any_softmax() -> impl Strategy<Value = SoftmaxCase> {
    let dtype = || prop::sample::select(&TYPES[..]);
    let range = prop::sample::select(&[0.0f32, 1.0, 30.0, 1000.0][..]);
    let scale = prop::sample::select(&[1.0f32, 0.125, 1.7, 60.0][..]);
    let mask = prop::sample::select(&[MaskRows::None, MaskRows::One, MaskRows::All][..]);
    let placements = [placement(), placement(), placement()];
    let switches = (mask, any::<bool>(), any::<bool>());
    (sizes(), [dtype(), dtype()], placements, range, scale, switches, any::<u64>()).prop_map(
        |([rows, columns], [dtype, output], placements, range, scale, switches, seed)| {
            let (mask, in_place, infinities) = switches;
            // Half of them have one type.
            let output = if seed % 2 == 0 { dtype } else { output };
            let plain = SoftmaxCase::new(dtype, rows, columns);
            SoftmaxCase { output, range, scale, mask, infinities, in_place, placements, seed, ..plain }
        },
    )
}

fn check(device: &Device, case: &SoftmaxCase) -> Result<(), TestCaseError> {
    let what = format!("{}→{} {} {}", case.dtype, case.output, case.shape(), case.options());
    drawn::passed(validate::softmax(device, case), &what, case.rows * case.columns).map(drop)
}

fn shares_and_gradients_drawn_are_those_of_f64(device: &Device) -> Result<(), Failed> {
    Ok(drawn::runner(device, [160, 800])?.run(&any_softmax(), |case| check(device, &case))?)
}

/// Rows of several rounds, of clusters, and of both.
fn wide_rows_have_all_their_shares(device: &Device) -> Result<(), Failed> {
    let case = |dtype, columns, gap| SoftmaxCase {
        range: 20.0,
        in_place: true,
        placements: [(gap, gap), (0, 0), (gap, 0)].map(|(before, after)| Placement { before, after }),
        ..SoftmaxCase::new(dtype, 2, columns)
    };
    let mut cases = Vec::new();
    for (columns, gap) in [(16_400, 0), (16_400, 1), (140_000, 0)] {
        cases.extend([case(DType::Bf16, columns, gap), case(DType::F16, columns, gap)]);
        cases.push(SoftmaxCase { output: DType::Bf16, ..case(DType::F32, columns, gap) });
    }
    cases.push(SoftmaxCase { mask: MaskRows::One, ..case(DType::F32, 65_537, 0) });
    cases.push(SoftmaxCase { mask: MaskRows::All, ..case(DType::F32, 129_920, 0) });
    for case in cases {
        check(device, &case).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Bit by bit.
fn a_softmax_of_a_row_is_the_same_among_others(device: &Device) -> Result<(), Failed> {
    for columns in [5, 8, 100, 1024, 9000] {
        let rows = 3000 / columns + 5;
        let x = matrix::<f32>(device, [rows, columns], (0, 0), |at| random(4, at) * 9.0)?;
        let all = numbers(&ops::softmax(&x).run()?)?;
        for row in [0, rows / 2, rows - 1] {
            let alone = numbers(&ops::softmax(&x.slice(0, row..row + 1)?.deep_clone()?).run()?)?;
            let among = &all[row * columns..][..columns];
            let same = alone.iter().zip(among).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{columns} columns, row {row}");
        }
        assert_eq!(all, numbers(&ops::softmax(&x).run()?)?, "the same bits each time");
    }
    Ok(())
}

fn a_captured_softmax_runs_again_on_what_is_there_then(device: &Device) -> Result<(), Failed> {
    let stream = device.new_stream()?;
    let mut x = Tensor::<f32>::zeros_on(&stream, [7, 300])?;
    let mut y = Tensor::<f32>::zeros_on(&stream, [7, 300])?;
    // Views of the same memory.
    let (read, mut to) = (x.clone(), y.clone());
    // SAFETY: the work borrows the tensors that it uses.
    let mut graph = unsafe { stream.capture(|| ops::softmax(&read).on(&stream).run_into(&mut to))? };
    for seed in 1..4 {
        let next = matrix::<f32>(device, [7, 300], (0, 0), |at| random(seed, at))?;
        x.write_slice(&next.to_vec()?)?;
        graph.launch()?;
        assert_eq!(y.to_vec()?, ops::softmax(&next).run()?.to_vec()?);
        y.write_slice(&vec![f32::NAN; y.len()])?;
    }
    Ok(())
}
