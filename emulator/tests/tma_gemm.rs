//! A whole Hopper kernel by hand: a producer and consumers around a ring of mbarriers, tensor loads shared by a cluster, products of
//! warpgroups, and a tensor store. Its results are exact whenever the asynchronous parts land.

use warpsmith_emulator::{
    Completion, Config, Finding, FindingKind, Interleave, L2Promotion, LaunchConfig, LaunchError, Limits,
    Machine, Module, Numerics, OobFill, Swizzle, TensorMap, TensorMapArguments, TensorType,
};

const TEXT: &str = include_str!("data/tma_gemm.ptx");

fn machine(completion: Completion, seed: u64, numerics: Numerics) -> Machine {
    let limits = Limits { shared_per_block: 227 * 1024, ..Limits::default() };
    Machine::new(Config {
        compute_capability: (9, 0),
        completion,
        seed,
        numerics,
        limits,
        ..Config::default()
    })
}

/// The map of a matrix of `rows` rows that are `pitch` elements apart, in boxes of `box_rows` x 64 elements.
fn map(
    data_type: TensorType,
    address: u64,
    rows: u64,
    columns: u64,
    pitch: u64,
    box_rows: u32,
    swizzle: Swizzle,
) -> TensorMap {
    TensorMap::encode(&TensorMapArguments {
        data_type,
        address,
        dims: &[columns, rows],
        strides: &[pitch * u64::from(data_type.bytes())],
        box_dims: &[64, box_rows],
        element_strides: &[1, 1],
        interleave: Interleave::None,
        swizzle,
        l2_promotion: L2Promotion::B256,
        oob_fill: OobFill::Zeros,
    })
    .unwrap()
}

/// A small integer for an element.
fn element(i: usize, j: usize, salt: usize) -> i32 {
    ((i * 31 + j * 17 + salt) * 40_503 / 128 % 16) as i32 - 8
}

/// Runs the kernel on matrices of integers; gives all of c, row by row.
fn multiply(machine: &Machine, text: &str, [m, n, k]: [usize; 3]) -> Result<Vec<f32>, LaunchError> {
    let module = Module::parse("tma_gemm.ptx", text).unwrap_or_else(|error| panic!("{error}"));
    // Rows are whole multiples of 16 bytes, and what lies between them must not matter.
    let (pitch_ab, pitch_c) = (k.next_multiple_of(8), n.next_multiple_of(4));
    let matrix = |rows: usize, salt: usize| {
        let value = |i: usize| match (i / pitch_ab, i % pitch_ab) {
            (row, column) if column < k => half::bf16::from_f32(element(row, column, salt) as f32),
            _ => half::bf16::NAN,
        };
        let bytes: Vec<u8> = (0..rows * pitch_ab).flat_map(|i| value(i).to_le_bytes()).collect();
        let address = machine.allocate(bytes.len() as u64).unwrap();
        machine.write(address, &bytes).unwrap();
        address
    };
    let (a, b) = (matrix(m, 1), matrix(n, 2));
    let c = machine.allocate((m * pitch_c * 4) as u64).unwrap();
    machine.fill(c, 0xff, (m * pitch_c * 4) as u64).unwrap();
    let (m64, n64, k64) = (m as u64, n as u64, k as u64);
    let maps = [
        map(TensorType::Bf16, a, m64, k64, pitch_ab as u64, 64, Swizzle::B128),
        map(TensorType::Bf16, b, n64, k64, pitch_ab as u64, 32, Swizzle::B128),
        map(TensorType::F32, c, m64, n64, pitch_c as u64, 64, Swizzle::None),
    ];
    let tiles = k.div_ceil(64) as u32;
    let grid = [m.div_ceil(128) as u32 * 2, n.div_ceil(64) as u32, 1];
    let launch = LaunchConfig {
        grid,
        block: [160, 1, 1],
        dynamic_shared: 3 * 16_384 + 16_384,
        cluster: [2, 1, 1],
        ..LaunchConfig::default()
    };
    let arguments = [&maps[0].as_bytes()[..], maps[1].as_bytes(), maps[2].as_bytes(), &tiles.to_le_bytes()];
    machine.launch(&module, "tma_gemm", &launch, &arguments)?;
    let mut bytes = vec![0; m * pitch_c * 4];
    machine.read(c, &mut bytes).unwrap();
    let words = bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word));
    let (inside, outside): (Vec<_>, Vec<_>) = words.enumerate().partition(|(i, _)| i % pitch_c < n);
    // The copy engine writes the rest of the 16 bytes in which a row ends.
    let beside = |&&(i, _): &&(usize, f32)| i % pitch_c >= n.next_multiple_of(4);
    assert!(
        outside.iter().filter(beside).all(|(_, word)| word.to_bits() == u32::MAX),
        "nothing is written between rows"
    );
    Ok(inside.into_iter().map(|(_, word)| word).collect())
}

fn check(machine: &Machine, size: [usize; 3]) {
    let [m, n, k] = size;
    let c = multiply(machine, TEXT, size).unwrap_or_else(|error| panic!("{error}"));
    for (i, &value) in c.iter().enumerate() {
        let (row, column) = (i / n, i % n);
        let sum: i32 = (0..k).map(|k| element(row, k, 1) * element(column, k, 2)).sum();
        assert_eq!(value, sum as f32, "row {row}, column {column} of {m} x {n} x {k}");
    }
}

#[test]
fn products_are_exact_whenever_copies_land() {
    for (completion, seeds) in
        [(Completion::Eager, 0..1), (Completion::Latest, 0..1), (Completion::Random, 1..4)]
    {
        for seed in seeds {
            let machine = machine(completion, seed, Numerics::Fast);
            check(&machine, [256, 128, 448]);
        }
    }
}

#[test]
fn products_are_exact_in_both_numerics_and_with_ragged_edges() {
    for numerics in [Numerics::Fast, Numerics::Exact] {
        let machine = machine(Completion::Latest, 0, numerics);
        for size in [[128, 64, 64], [129, 65, 72], [64, 64, 8], [1, 1, 1], [200, 72, 100], [320, 8, 640]] {
            check(&machine, size);
        }
    }
}

/// What is found where a line of the kernel is missing or another.
fn broken(from: &str, to: &str, completion: Completion, seed: u64) -> Finding {
    assert!(TEXT.contains(from), "{from}");
    let text = TEXT.replace(from, to);
    match multiply(&machine(completion, seed, Numerics::Fast), &text, [128, 64, 448]) {
        Err(LaunchError::Finding(finding)) => *finding,
        other => panic!("{completion:?} {seed}, without `{from}`: {:?}", other.map(|c| c.len())),
    }
}

#[test]
fn each_part_of_the_synchronisation_is_needed_in_every_mode() {
    let full = "$L_wait_full:\n    mbarrier.try_wait.parity.shared.b64 %p3, [%r15], %r12;\n    @!%p3 bra $L_wait_full;\n";
    let empty = "$L_wait_empty:\n    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r15+24], %r16;\n    @!%p3 bra $L_wait_empty;\n";
    use FindingKind as Kind;
    let lines: [(&str, &str, &[Kind]); 9] = [
        (full, "", &[Kind::AsynchronousCopy]),
        (empty, "", &[Kind::AsynchronousCopy, Kind::BarrierMisuse]),
        (
            "    wgmma.wait_group.sync.aligned 0;\n",
            "",
            &[Kind::AsynchronousCopy, Kind::Uninitialised, Kind::SharedRace],
        ),
        ("    fence.proxy.async.shared::cta;\n", "", &[Kind::ProxyFence]),
        ("    fence.mbarrier_init.release.cluster;\n", "", &[Kind::ProxyFence]),
        ("    bar.sync 1, 128;\n", "", &[Kind::SharedRace, Kind::Uninitialised, Kind::ProxyFence]),
        ("    cp.async.bulk.wait_group 0;\n", "", &[Kind::AsynchronousCopy]),
        (
            "expect_tx.shared.b64 _, [%r15], 16384",
            "expect_tx.shared.b64 _, [%r15], 12288",
            &[Kind::BarrierDeadlock, Kind::AsynchronousCopy, Kind::BarrierMisuse],
        ),
        (
            "$L_ready:\n    barrier.cluster.arrive;\n    barrier.cluster.wait;\n",
            "$L_ready:\n    bar.sync 0;\n",
            &[Kind::SharedRace, Kind::BarrierMisuse, Kind::ProxyFence],
        ),
    ];
    for (from, to, kinds) in lines {
        for (completion, seed) in [
            (Completion::Eager, 0),
            (Completion::Latest, 0),
            (Completion::Random, 1),
            (Completion::Random, 2),
        ] {
            let found = broken(from, to, completion, seed);
            assert!(kinds.contains(&found.kind), "{completion:?} {seed}, without `{from}`: {found}");
        }
    }
}
