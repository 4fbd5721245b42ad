//! How fast the emulator runs, with all checks on: `cargo bench -p warpsmith-emulator`.
//!
//! Prints million warp-instructions a second of the processor's time, for a product on tensor cores and for kernels in CUDA C++ as people
//! write them. The best of several runs is shown, with checks and without. `cargo bench -p warpsmith-emulator -- NAME` runs one kernel many times, for a
//! profiler to look at.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use warpsmith_emulator::{
    Checks, Config, Interleave, L2Promotion, LaunchConfig, Limits, Machine, Module, Numerics, OobFill,
    Swizzle, TensorMap, TensorMapArguments, TensorType,
};

/// A kernel and a launch of it.
struct Case {
    name: &'static str,
    text: &'static str,
    kernel: &'static str,
    grid: [u32; 3],
    block: [u32; 3],
    /// Blocks of a cluster along x, and bytes of dynamic shared memory.
    cluster: u32,
    shared: u32,
    /// The bytes of each buffer, which the kernel takes first, and the numbers behind them.
    buffers: &'static [u64],
    numbers: &'static [u32],
    /// What the kernel takes in place of a buffer's address, if it is a tensor map: type, rows, columns, rows of a box of 64 columns.
    maps: &'static [(TensorType, u64, u64, u32)],
}

const NONE: Case = Case {
    name: "",
    text: "",
    kernel: "",
    grid: [1; 3],
    block: [1; 3],
    cluster: 1,
    shared: 0,
    buffers: &[],
    numbers: &[],
    maps: &[],
};

const FOREIGN: &str = include_str!("foreign.ptx");
const CASES: [Case; 6] = [
    Case {
        name: "tensor-core product",
        text: include_str!("../tests/data/gemm.ptx"),
        kernel: "gemm",
        grid: [4, 4, 1],
        block: [128, 1, 1],
        buffers: &[256 * 1024 * 2, 256 * 1024 * 2, 256 * 256 * 4],
        numbers: &[256, 1024],
        ..NONE
    },
    Case {
        name: "product of warpgroups",
        text: include_str!("../tests/data/tma_gemm.ptx"),
        kernel: "tma_gemm",
        grid: [4, 4, 1],
        block: [160, 1, 1],
        cluster: 2,
        shared: 65_536,
        buffers: &[256 * 1024 * 2, 256 * 1024 * 2, 256 * 256 * 4],
        numbers: &[16],
        maps: &[
            (TensorType::Bf16, 256, 1024, 64),
            (TensorType::Bf16, 256, 1024, 32),
            (TensorType::F32, 256, 256, 64),
        ],
    },
    Case {
        name: "product in f32 by shared memory",
        text: FOREIGN,
        kernel: "multiply",
        grid: [4, 4, 1],
        block: [32, 32, 1],
        buffers: &[128 * 128 * 4, 128 * 128 * 4, 128 * 128 * 4],
        numbers: &[128],
        ..NONE
    },
    Case {
        name: "element-wise",
        text: FOREIGN,
        kernel: "saxpy",
        grid: [32, 1, 1],
        block: [256, 1, 1],
        buffers: &[1 << 20, 1 << 20, 1 << 20],
        numbers: &[1 << 18],
        ..NONE
    },
    Case {
        name: "sums",
        text: FOREIGN,
        kernel: "sums",
        grid: [32, 1, 1],
        block: [256, 1, 1],
        buffers: &[1 << 20, 128],
        numbers: &[1 << 18],
        ..NONE
    },
    Case {
        name: "histogram",
        text: FOREIGN,
        kernel: "histogram",
        grid: [16, 1, 1],
        block: [256, 1, 1],
        buffers: &[1 << 19, 1024],
        numbers: &[1 << 17],
        ..NONE
    },
];

fn main() {
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    if let Some(case) =
        wanted.as_ref().and_then(|name| CASES.iter().find(|case| case.name.contains(name.as_str())))
    {
        let start = Instant::now();
        let mut best = 0.0f64;
        while start.elapsed() < Duration::from_secs(8) {
            best = best.max(run(case, Checks::all(), Numerics::Fast));
        }
        return println!("{}: {:.1}", case.name, best / 1e6);
    }
    println!("{:<32} {:>10} {:>10} {:>10}", "", "all checks", "no checks", "exact sums");
    for case in &CASES {
        let best = |checks, numerics| (0..3).map(|_| run(case, checks, numerics)).fold(0.0, f64::max) / 1e6;
        let (all, none) = (best(Checks::all(), Numerics::Fast), best(Checks::none(), Numerics::Fast));
        println!("{:<32} {all:>10.1} {none:>10.1} {:>10.1}", case.name, best(Checks::all(), Numerics::Exact));
    }
}

/// Warp-instructions a second on one thread.
fn run(case: &Case, checks: Checks, numerics: Numerics) -> f64 {
    let module = Module::parse(case.kernel, case.text).unwrap_or_else(|error| panic!("{error}"));
    let limits = Limits { shared_per_block: 227 * 1024, ..Limits::default() };
    let compute_capability = if case.maps.is_empty() { Config::default().compute_capability } else { (9, 0) };
    let config = Config { checks, numerics, threads: None, compute_capability, limits, ..Config::default() };
    let machine = Machine::new(config);
    let mut arguments: Vec<Vec<u8>> = Vec::new();
    for (index, &bytes) in case.buffers.iter().enumerate() {
        let address = machine.allocate(bytes).unwrap_or_else(|error| panic!("{error}"));
        machine.fill(address, 0x3c, bytes).unwrap_or_else(|error| panic!("{error}"));
        arguments.push(match case.maps.get(index) {
            Some(&map) => tensor_map(address, map).as_bytes().to_vec(),
            None => address.to_le_bytes().to_vec(),
        });
    }
    arguments.extend(case.numbers.iter().map(|number| number.to_le_bytes().to_vec()));
    let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
    let config = LaunchConfig {
        grid: case.grid,
        block: case.block,
        cluster: [case.cluster, 1, 1],
        dynamic_shared: case.shared,
        ..LaunchConfig::default()
    };
    // One thread for all runs, so that its time goes on.
    let pool = POOL.get_or_init(|| {
        rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap_or_else(|error| panic!("{error}"))
    });
    pool.install(|| {
        // The system counts in steps.
        let (start, mut instructions) = (processor_time(), 0);
        loop {
            let report = machine.launch(&module, case.kernel, &config, &arguments);
            instructions += report.unwrap_or_else(|error| panic!("{error}")).warp_instructions;
            let time = processor_time() - start;
            if time > Duration::from_millis(300) {
                return instructions as f64 / time.as_secs_f64();
            }
        }
    })
}

/// The map of a matrix in boxes of 64 columns, with rows of 128 bytes swizzled.
fn tensor_map(address: u64, (data_type, rows, columns, box_rows): (TensorType, u64, u64, u32)) -> TensorMap {
    let bytes = u64::from(data_type.bytes());
    let map = TensorMap::encode(&TensorMapArguments {
        data_type,
        address,
        dims: &[columns, rows],
        strides: &[columns * bytes],
        box_dims: &[64, box_rows],
        element_strides: &[1, 1],
        interleave: Interleave::None,
        swizzle: if bytes == 2 { Swizzle::B128 } else { Swizzle::None },
        l2_promotion: L2Promotion::B256,
        oob_fill: OobFill::Zeros,
    });
    map.unwrap_or_else(|error| panic!("{error}"))
}

/// What the threads of this process have had of the processor, as Linux counts it, so that a machine that does other work at the same time
/// tells nearly the same; elsewhere the time that has passed.
fn processor_time() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let times = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    match times.sum::<u64>() {
        0 => START.get_or_init(Instant::now).elapsed(),
        nanoseconds => Duration::from_nanos(nanoseconds),
    }
}

static START: OnceLock<Instant> = OnceLock::new();
static POOL: OnceLock<rayon::ThreadPool> = OnceLock::new();
