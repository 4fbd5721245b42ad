use super::{ExpertFormat, ExpertLayout, ExpertVectors};
use crate::error::Error;

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 31 + seed * 17) % 15) as f32 - 7.0).collect()
}

#[test]
fn a_row_stands_for_the_numbers_that_were_packed() {
    for format in ExpertFormat::ALL {
        for (d, hidden, o) in
            [(1, 1, 1), (16, 1, 16), (17, 3, 5), (64, 2, 100), (0, 1, 3), (5, 2, 0), (0, 2, 0)]
        {
            for gated in [false, true] {
                let layout = ExpertLayout::new(format, d, hidden, o, gated).expect("sizes are fine");
                let (u, w) = (numbers(hidden * d, 1), numbers(if gated { hidden * d } else { 0 }, 2));
                let v = numbers(hidden * o, 3);
                let mut row = vec![0xa5; layout.row_bytes()];
                layout.pack(ExpertVectors { u: &u, w: &w, v: &v }, &mut row).expect("lengths are right");
                let unpacked = layout.unpack(&row).expect("it is a row");
                for (got, given) in unpacked.iter().zip([&u, &w, &v]) {
                    assert_eq!(got.len(), given.len());
                    for (got, given) in got.iter().zip(given) {
                        // Of at most 14 from the smallest number to the largest, half a scale.
                        let allowed = match format {
                            ExpertFormat::Int8 => 0.5 * 14.0 / 255.0 * 1.01,
                            ExpertFormat::Int4 => 0.5 * 14.0 / 15.0 * 1.01,
                            _ => 0.0,
                        };
                        assert!((got - given).abs() <= allowed, "{format}: {given} became {got}");
                    }
                }
                assert!(layout.row_bytes().is_multiple_of(32) && layout.unit_bytes().is_multiple_of(16));
            }
        }
    }
}

#[test]
fn quantised_rows_have_half_and_a_quarter_of_the_bytes() {
    let bytes = |format| ExpertLayout::new(format, 1024, 1, 1024, false).expect("sizes are fine").row_bytes();
    assert_eq!(bytes(ExpertFormat::Bf16), 4096);
    assert_eq!(bytes(ExpertFormat::Int8), 2048 + 32);
    assert_eq!(bytes(ExpertFormat::Int4), 1024 + 32);
    assert_eq!(bytes(ExpertFormat::F8E4M3), 2048 + 32);
}

#[test]
fn vectors_and_rows_of_other_lengths_are_refused() {
    let layout = ExpertLayout::new(ExpertFormat::Bf16, 4, 2, 3, true).expect("sizes are fine");
    let mut row = vec![0; layout.row_bytes()];
    let mut pack = |u: usize, w: usize, v: usize| {
        let (u, w, v) = (vec![0.0; u], vec![0.0; w], vec![0.0; v]);
        layout.pack(ExpertVectors { u: &u, w: &w, v: &v }, &mut row)
    };
    pack(8, 8, 6).expect("these fit");
    for (lengths, operand) in [([4, 8, 6], "u"), ([8, 0, 6], "w"), ([8, 8, 3], "v")] {
        let [u, w, v] = lengths;
        assert!(matches!(pack(u, w, v), Err(Error::Shape { operand: at, .. }) if at == operand));
    }
    assert!(layout.unpack(&row[1..]).is_err());
    for hidden in [0, 65537] {
        let refused = ExpertLayout::new(ExpertFormat::Int4, 4, hidden, 3, false);
        assert!(matches!(refused, Err(Error::SizeLimit { .. })));
    }
    assert!(ExpertLayout::new(ExpertFormat::F32, 1 << 29, 1, 3, false).is_err());
}
