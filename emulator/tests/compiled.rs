//! PTX as rustc 1.96 (LLVM 22) writes it, from `tests/data/compiled.rs`, against the same computations on the host.

use warpsmith_emulator::{LaunchConfig, Machine, Module};

const TEXT: &str = include_str!("data/compiled.sm_80.ptx");

fn module() -> Module {
    Module::parse("compiled.sm_80.ptx", TEXT).unwrap_or_else(|error| panic!("{error}"))
}

fn upload<T: Copy, const N: usize>(machine: &Machine, values: &[T], bytes: impl Fn(T) -> [u8; N]) -> u64 {
    let data: Vec<u8> = values.iter().flat_map(|&v| bytes(v)).collect();
    let address = machine.allocate(data.len() as u64).unwrap();
    machine.write(address, &data).unwrap();
    address
}

fn download<T, const N: usize>(
    machine: &Machine,
    address: u64,
    count: usize,
    value: impl Fn([u8; N]) -> T,
) -> Vec<T> {
    let mut data = vec![0; count * N];
    machine.read(address, &mut data).unwrap();
    data.chunks_exact(N).map(|chunk| value(chunk.try_into().unwrap())).collect()
}

fn launch(machine: &Machine, kernel: &str, threads: u32, arguments: &[&[u8]]) {
    let config = LaunchConfig {
        grid: [threads.div_ceil(128), 1, 1],
        block: [128, 1, 1],
        dynamic_shared: 0,
        ..LaunchConfig::default()
    };
    machine.launch(&module(), kernel, &config, arguments).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn axpy_gives_what_the_host_gives() {
    let machine = Machine::default();
    let n = 1000u32;
    let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.25 - 3.0).collect();
    let y: Vec<f32> = (0..n).map(|i| 100.0 - i as f32).collect();
    let (dx, dy) = (upload(&machine, &x, f32::to_le_bytes), upload(&machine, &y, f32::to_le_bytes));
    let a = 1.5f32;
    launch(&machine, "axpy", n, &[&n.to_le_bytes(), &a.to_le_bytes(), &dx.to_le_bytes(), &dy.to_le_bytes()]);
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| a * x + y).collect();
    assert_eq!(download(&machine, dy, n as usize, f32::from_le_bytes), expected);
}

#[test]
fn loops_with_a_different_count_in_each_lane_converge() {
    let machine = Machine::default();
    let n = 300u32;
    let y = machine.allocate(u64::from(n) * 4).unwrap();
    launch(&machine, "diverge", n, &[&y.to_le_bytes(), &n.to_le_bytes()]);
    let expected: Vec<u32> = (1..=u64::from(n))
        .map(|start| {
            let (mut n, mut steps) = (start, 0);
            while n > 1 {
                n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
                steps += 1;
            }
            steps
        })
        .collect();
    assert_eq!(download(&machine, y, n as usize, u32::from_le_bytes), expected);
}

#[test]
fn local_arrays_are_private_to_each_thread() {
    let machine = Machine::default();
    let n = 256u32;
    let table = [3u32, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3];
    for k in [1u32, 3, 6] {
        let y = machine.allocate(u64::from(n) * 4).unwrap();
        launch(&machine, "local_array", n, &[&y.to_le_bytes(), &k.to_le_bytes()]);
        let expected: Vec<u32> = (0..n as usize)
            .map(|i| {
                let mut a = [0u32; 16];
                for j in 0..16 {
                    a[(j * k as usize) & 15] += table[j] ^ i as u32;
                }
                (0..16).fold(0u32, |s, j| s.wrapping_mul(31).wrapping_add(a[(i + j * 3) & 15]))
            })
            .collect();
        assert_eq!(download(&machine, y, n as usize, u32::from_le_bytes), expected, "k = {k}");
    }
}

#[test]
fn atomic_counts_are_exact_over_blocks() {
    let machine = Machine::default();
    let x: Vec<u8> = (0..1000u32).map(|i| (i * i % 11) as u8).collect();
    let dx = upload(&machine, &x, |v| [v]);
    let bins = machine.allocate(244 * 4).unwrap();
    machine.fill(bins, 0, 244 * 4).unwrap();
    let n = x.len() as u32;
    launch(&machine, "histogram", n, &[&dx.to_le_bytes(), &bins.to_le_bytes(), &n.to_le_bytes()]);
    let mut expected = vec![0u32; 244];
    for &v in &x {
        let slot = [3, 9, 27, 81, 243, 5, 77, 1].get(usize::from(v)).copied().unwrap_or(usize::from(v) & 7);
        expected[slot] += 1;
    }
    assert_eq!(download(&machine, bins, 244, u32::from_le_bytes), expected);
}

#[test]
fn a_warp_reduces_through_shuffles() {
    let machine = Machine::default();
    let x: Vec<f32> = (0..777).map(|i| (i % 17) as f32).collect();
    let (dx, y) = (upload(&machine, &x, f32::to_le_bytes), machine.allocate(4).unwrap());
    let config =
        LaunchConfig { grid: [1; 3], block: [32, 1, 1], dynamic_shared: 0, ..LaunchConfig::default() };
    let arguments: [&[u8]; 3] = [&dx.to_le_bytes(), &y.to_le_bytes(), &777u32.to_le_bytes()];
    machine.launch(&module(), "sum", &config, &arguments).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(download(&machine, y, 1, f32::from_le_bytes), [x.iter().sum::<f32>()]);
}

#[test]
fn integer_code_gives_what_the_host_gives() {
    let machine = Machine::default();
    let (a, b, d, e, f) = (0x1234_5678_9abc_def1u64, 77u32, 1021u16, 37u8, -5i8);
    let mut p = Vec::new();
    p.extend(a.to_le_bytes());
    p.extend(b.to_le_bytes());
    p.extend(2.5f32.to_le_bytes());
    p.extend(d.to_le_bytes());
    p.extend([e, f as u8]);
    p.resize(24, 0);
    let x: Vec<i64> = (0..500i64)
        .map(|i| (i - 250).wrapping_mul(0x9e37_79b9_7f4a_7c15u64 as i64) >> (i % 61))
        .chain([0, 1, -1, i64::MAX, i64::MIN, i64::from(i32::MIN)])
        .collect();
    let (dx, dy) = (upload(&machine, &x, i64::to_le_bytes), machine.allocate(x.len() as u64 * 8).unwrap());
    let n = x.len() as u64;
    launch(&machine, "integers", n as u32, &[&p, &dx.to_le_bytes(), &dy.to_le_bytes(), &n.to_le_bytes()]);
    let expected: Vec<i64> = x
        .iter()
        .map(|&v| {
            let w = v as i32;
            let mut r = v.wrapping_mul(a as i64);
            r ^= v.rotate_left(b & 63);
            r = r.wrapping_add(i64::from(v.count_ones() + w.leading_zeros() + v.trailing_zeros()));
            r ^= (v / (i64::from(b) | 1)) ^ (v % (i64::from(d) | 1));
            r = r.wrapping_add(i64::from((w as u32).swap_bytes())).wrapping_add(i64::from(w.reverse_bits()));
            r ^= i128::from(v).wrapping_mul(i128::from(a)).wrapping_shr(64) as i64;
            r ^= i64::from(w.saturating_add(i32::from(f))) << (e & 31);
            r = r
                .wrapping_add(v.min(a as i64))
                .wrapping_sub(i64::from(w.abs_diff(17)))
                .max(-5_000_000_000_000);
            r ^= (v as u64).checked_add(a).unwrap_or(99) as i64;
            r ^= i64::from((v as u16).wrapping_mul(d).wrapping_sub(3));
            r ^ i64::from((v as u8).wrapping_add(e).leading_zeros())
        })
        .collect();
    assert_eq!(download(&machine, dy, x.len(), i64::from_le_bytes), expected);
}

#[test]
fn floating_point_code_gives_what_the_host_gives() {
    let machine = Machine::default();
    let mut x: Vec<f32> = (0..1000).map(|i| (i as f32 - 500.0) * 0.37).collect();
    x.extend([0.0, -0.0, 1e-40, 1e10, -1e10, 3e9, f32::MIN_POSITIVE, 0.5, 1.5, 2.5, 255.9, 1e20]);
    let n = x.len();
    let (dx, dy) = (upload(&machine, &x, f32::to_le_bytes), machine.allocate(n as u64 * 4).unwrap());
    let dd = machine.allocate(n as u64 * 8).unwrap();
    let arguments: [&[u8]; 4] =
        [&dx.to_le_bytes(), &dy.to_le_bytes(), &dd.to_le_bytes(), &(n as u32).to_le_bytes()];
    launch(&machine, "floats", n as u32, &arguments);
    let single = download(&machine, dy, n, f32::from_le_bytes);
    let double = download(&machine, dd, n, f64::from_le_bytes);
    for (i, &v) in x.iter().enumerate() {
        let mut r = v.mul_add(v, 1.5) / (v + 3.0);
        #[expect(clippy::manual_clamp, reason = "as the kernel writes it: not the same for NaN")]
        let bounded = v.min(2.0).max(-1.0);
        r += v.abs().sqrt() + bounded;
        r += v as i32 as f32 + (v as u64 as f32) + (v as i64 as f32) + (v as u8 as f32);
        r = r.copysign(v) + v.floor() + v.round_ties_even() + v.trunc();
        if r.is_nan() || v > 1e30 {
            r = -1.0;
        }
        assert_eq!(single[i].to_bits(), r.to_bits(), "{v}: {} against {r}", single[i]);
        let w = f64::from(v);
        let d = (w * w + 1.0) / (w - 0.25)
            + f64::from(w as i32)
            + half::f16::from_f32(r).to_f64()
            + f64::from(f32::from_bits(v.to_bits() ^ 0x8000));
        assert_eq!(double[i].to_bits(), d.to_bits(), "{v}: {} against {d}", double[i]);
    }
}
