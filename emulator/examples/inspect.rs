//! Lists the kernels of PTX files: `cargo run --example inspect -- FILE…`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut failed = false;
    for path in std::env::args().skip(1) {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => {
                eprintln!("{path}: {error}");
                failed = true;
                continue;
            }
        };
        match warpsmith_emulator::Module::parse(&path, &text) {
            Err(error) => {
                eprintln!("{error}");
                failed = true;
            }
            Ok(module) => {
                for kernel in module.kernels() {
                    println!(
                        "{}: {} parameters, block {:?}, {} bytes of shared memory{}",
                        kernel.name,
                        kernel.params.len(),
                        kernel.reqntid.or(kernel.maxntid),
                        kernel.static_shared,
                        if kernel.uses_dynamic_shared { " and a dynamic part" } else { "" },
                    );
                }
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
