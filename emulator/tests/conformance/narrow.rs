//! Conversions to and from narrow floats, and arithmetic on pairs of them with all modifiers, against what an H100 gave.

use warpsmith_emulator::{Config, Machine};

use crate::common::launch;
use crate::wgmma::operands::random;

const VALUES: u32 = 1 << 16;

#[test]
fn results_are_those_of_the_gpu() {
    let random: Vec<u32> = (0..u64::from(VALUES)).map(|i| random(4242, i) as u32).collect();
    let bytes = |values: &mut dyn Iterator<Item = u32>| values.flat_map(u32::to_le_bytes).collect::<Vec<_>>();
    let upper = bytes(&mut (0..VALUES).map(|i| i << 16 | random[i as usize] & 0xffff));
    let lower = bytes(&mut (0..VALUES).map(|i| i | random[i as usize] & 0xffff_0000));
    let second = bytes(&mut random.iter().cycle().skip(VALUES as usize - 1).take(VALUES as usize).copied());
    let lines = include_str!("../data/narrow/digests.txt").lines().filter(|line| !line.starts_with('#'));
    let mut count = 0;
    for line in lines {
        let [operand, body, digests] = line.split(" | ").collect::<Vec<_>>().try_into().expect("three parts");
        let text = include_str!("../data/narrow/kernel.ptx").replace("BODY", body);
        let module = crate::common::parse("narrow.ptx", &text).unwrap_or_else(|error| panic!("{error}"));
        let machine = Machine::new(Config { compute_capability: (9, 0), ..Config::default() });
        let put = |bytes: &[u8]| {
            let at = machine.allocate(bytes.len() as u64).unwrap();
            machine.write(at, bytes).unwrap();
            at
        };
        let first = if operand == "upper" { &upper } else { &lower };
        let out = machine.allocate(u64::from(VALUES) * 4).unwrap();
        let arguments = [put(first), put(&second), out];
        launch(&machine, &module, VALUES / 128, 128, 0, &arguments).unwrap_or_else(|error| panic!("{error}"));
        let mut results = vec![0; VALUES as usize * 4];
        machine.read(out, &mut results).unwrap();
        let expected = digests.split(' ').map(|digest| u64::from_str_radix(digest, 16).expect("a digest"));
        assert_eq!(digests.split(' ').count(), 16);
        for (i, (part, expected)) in results.chunks(4 * 4096).zip(expected).enumerate() {
            let digest = part
                .iter()
                .fold(0xcbf2_9ce4_8422_2325, |h: u64, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
            assert_eq!(digest, expected, "`{body}`, operands {} to {}", i * 4096, i * 4096 + 4095);
        }
        count += 1;
    }
    assert_eq!(count, 38, "every recorded case was replayed");
}
