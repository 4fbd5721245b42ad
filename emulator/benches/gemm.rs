//! How fast the emulator runs a matrix product, with all checks on: `cargo bench -p warpsmith-emulator`.
//!
//! Prints warp-instructions a second, for one thread and for all, with and without checks. A machine that does other
//! work at the same time gives lower numbers; the best of several runs is shown.

use std::time::Instant;

use warpsmith_emulator::{Checks, Config, LaunchConfig, Machine, Module, Numerics};

fn main() {
    let text = include_str!("../tests/data/gemm.ptx");
    let module = match Module::parse("gemm.ptx", text) {
        Ok(module) => module,
        Err(error) => return eprintln!("{error}"),
    };
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{:<10} {:<8} {:<8} {:>24}", "checks", "numerics", "threads", "warp-instructions/s");
    // `cargo bench -- quick` measures the case that matters most, for a profiler to look at.
    if std::env::args().any(|argument| argument == "quick") {
        let best = (0..60).map(|_| run(&module, Checks::all(), Numerics::Fast, 1)).fold(0.0, f64::max);
        return println!("{:<10} {:<8} {:<8} {:>22.1} M", "all", "Fast", 1, best / 1e6);
    }
    for (name, checks) in [("all", Checks::all()), ("none", Checks::none())] {
        for numerics in [Numerics::Fast, Numerics::Exact] {
            for threads in [1, all] {
                let best = (0..5).map(|_| run(&module, checks, numerics, threads)).fold(0.0, f64::max);
                println!("{name:<10} {:<8} {threads:<8} {:>22.1} M", format!("{numerics:?}"), best / 1e6);
            }
        }
    }
}

/// Warp-instructions a second of one launch.
fn run(module: &Module, checks: Checks, numerics: Numerics, threads: usize) -> f64 {
    let (m, n, k) = (256u32, 256u32, if numerics == Numerics::Fast { 1024u32 } else { 256 });
    let machine = Machine::new(Config { checks, numerics, threads: Some(threads), ..Config::default() });
    let allocate = |bytes: u32| machine.allocate(u64::from(bytes)).expect("memory");
    let (a, b, c) = (allocate(m * k * 2), allocate(n * k * 2), allocate(m * n * 4));
    for (address, bytes) in [(a, m * k * 2), (b, n * k * 2)] {
        machine.fill(address, 0x3c, u64::from(bytes)).expect("the allocation is there");
    }
    let config = LaunchConfig {
        grid: [n / 64, m / 64, 1],
        block: [128, 1, 1],
        dynamic_shared: 0,
        ..LaunchConfig::default()
    };
    let arguments: [&[u8]; 5] =
        [&a.to_le_bytes(), &b.to_le_bytes(), &c.to_le_bytes(), &n.to_le_bytes(), &k.to_le_bytes()];
    let start = Instant::now();
    let report = machine.launch(module, "gemm", &config, &arguments).expect("the kernel is correct");
    report.warp_instructions as f64 / start.elapsed().as_secs_f64()
}
