//! What the book shows of the emulator is what the emulator says.

use warpsmith_emulator::{KernelTest, LaunchError, Module, TestError};

const CHAPTER: &str = include_str!("../../docs/src/emulator.md");

fn scale(file: &str, text: &str) -> Result<Vec<f32>, TestError> {
    let module = Module::parse(file, text).unwrap();
    let x: Vec<f32> = (0u8..128).map(f32::from).collect();
    let outputs = KernelTest::new(&module, "scale").output::<f32>(128).input(&x).value(2.0f32).check()?;
    Ok(outputs.read(0))
}

#[test]
fn the_bug_is_reported_as_the_chapter_says() {
    match scale("emulator/examples/scale.ptx", include_str!("../examples/scale.ptx")) {
        Err(TestError::Launch { error: LaunchError::Finding(finding), .. }) => {
            let shown = finding.to_string();
            assert!(CHAPTER.contains(shown.trim_end()), "the chapter does not show this:\n{shown}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_fixed_kernel_has_no_finding_and_the_right_result() {
    let y = scale("emulator/examples/scale_fixed.ptx", include_str!("../examples/scale_fixed.ptx")).unwrap();
    assert!(y.iter().enumerate().all(|(i, &y)| y == 2.0 * i as f32));
}

#[test]
fn the_files_differ_in_the_lines_that_the_chapter_names() {
    let lines = |text: &'static str| text.lines().collect::<Vec<_>>();
    let (broken, fixed) =
        (lines(include_str!("../examples/scale.ptx")), lines(include_str!("../examples/scale_fixed.ptx")));
    let added: Vec<_> = fixed.iter().filter(|line| !broken.contains(line)).collect();
    assert_eq!(added, [&"\tfence.proxy.async.shared::cta;"]);
    assert_eq!(broken.len() + 1, fixed.len());
}
