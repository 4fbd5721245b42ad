//! Sizes that no machine holds are errors of validating and of measuring, before anything is drawn. Needs no GPU.

use warpsmith::{DType, Device, Error};
use warpsmith_lab::benchmark::{self, Options};
use warpsmith_lab::cases::{LinearCase, Placement};
use warpsmith_lab::validate;

#[test]
fn sizes_that_overflow_are_errors_everywhere() {
    let cpu = Device::cpu();
    let options = Options::default();
    let mut cases = vec![
        LinearCase::new(DType::F32, usize::MAX, 2, 2),
        LinearCase::new(DType::F16, 2, usize::MAX, 2),
        LinearCase::new(DType::Bf16, 2, 2, usize::MAX),
        LinearCase::new(DType::F32, usize::MAX, 0, 0),
        LinearCase::new(DType::F32, 1 << 62, 0, 1),
    ];
    let places: [fn(&mut LinearCase) -> &mut Placement; 3] =
        [|case| &mut case.x, |case| &mut case.w, |case| &mut case.y];
    for place in places {
        let mut case = LinearCase::new(DType::F32, 2, 2, 2);
        place(&mut case).before = usize::MAX;
        cases.push(case.clone());
        place(&mut case).before = 1;
        place(&mut case).after = usize::MAX - 1;
        cases.push(case);
    }
    for case in &cases {
        let validated = validate::linear(&cpu, case).map(|_| ());
        assert!(matches!(validated, Err(Error::SizeLimit { .. })), "{case:?}: {validated:?}");
        let measured = benchmark::linear(&cpu, case, &options).map(|_| ());
        assert!(matches!(measured, Err(Error::SizeLimit { .. })), "{case:?}: {measured:?}");
    }
}

#[test]
fn sizes_beyond_the_memory_are_errors_everywhere() {
    let cpu = Device::cpu();
    // More than any machine addresses, but no overflow.
    for case in [LinearCase::new(DType::F32, 1 << 34, 1 << 14, 2), LinearCase::new(DType::F32, 1 << 46, 0, 4)]
    {
        let validated = validate::linear(&cpu, &case).map(|_| ());
        assert!(matches!(validated, Err(Error::OutOfMemory { .. })), "{case:?}: {validated:?}");
        let measured = benchmark::linear(&cpu, &case, &Options::default()).map(|_| ());
        assert!(matches!(measured, Err(Error::OutOfMemory { .. })), "{case:?}: {measured:?}");
    }
}
