//! `xtask emulate`: runs any PTX in the emulator, with arguments from the command line.

mod arguments;
mod npy;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use warpsmith_builder::store;
use warpsmith_emulator::{
    Completion, Config, LaunchConfig, LaunchError, Limits, Machine, Module, Numerics, TraceFilter, Tracer,
};

use arguments::{Argument, Bound};

/// Run a kernel of a PTX file in the emulator, and show what it did and what the checks say of it.
///
/// Arguments are given in order, each in one of these forms:
///
///   `u32:5`, `f32:1.5`, `u64:0x10`, …       a number.
///   `in:TYPE:SHAPE:CONTENTS`                a buffer with contents: zeros, ones, iota, random or file=PATH (.npy, or raw bytes).
///   `inout:TYPE:SHAPE:CONTENTS[:to=PATH]`   the same, shown afterwards or written to a file.
///   `out:TYPE:SHAPE[:to=PATH]`              an uninitialised buffer, shown or written afterwards.
///   `null`                                  a null pointer.
///   `[u64:784,u32:5,f32:1]`                 a struct of numbers, laid out as in C.
///
/// A shape is such as 4096 or 64x128, and the types are u8 to u64, s8 to s64, f16, bf16, f32 and f64.
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// The PTX, a file or `FOLDER/ENTRY.ptx` of a folder of `kernels-gpu/ptx`.
    file: PathBuf,
    /// The entry; may be left out if the file has one only.
    #[arg(long)]
    kernel: Option<String>,
    /// Blocks along x, y and z.
    #[arg(long, value_name = "X[,Y[,Z]]", default_value = "1", value_parser = size)]
    grid: [u32; 3],
    /// Threads of a block along x, y and z; what the entry requires if not given.
    #[arg(long, value_name = "X[,Y[,Z]]", value_parser = size)]
    block: Option<[u32; 3]>,
    /// Blocks of a cluster along x, y and z.
    #[arg(long, value_name = "X[,Y[,Z]]", default_value = "1", value_parser = size)]
    cluster: [u32; 3],
    /// Bytes of dynamic shared memory.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    shared: u32,
    /// The kernel's arguments, in order.
    #[arg(long, value_name = "ARGUMENT", num_args = 0..)]
    args: Vec<Argument>,
    /// When asynchronous copies land.
    #[arg(long, value_enum, default_value = "latest")]
    completion: When,
    /// How tensor cores add.
    #[arg(long, value_enum, default_value = "fast")]
    numerics: How,
    /// Decides random contents, and whatever a GPU leaves open.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The compute capability to stand for; 9.0 if the file needs it, else 8.0.
    #[arg(long, value_name = "MAJOR.MINOR", value_parser = capability)]
    capability: Option<(u32, u32)>,
    /// Print what chosen lanes execute: `block=X[.Y[.Z]],warp=W,lane=FIRST[-LAST]`, each of which may be left out.
    #[arg(long, value_name = "FILTER", num_args = 0..=1, default_missing_value = "")]
    trace: Option<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum When {
    Eager,
    Latest,
    Random,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum How {
    Exact,
    Fast,
}

/// One to three numbers; those left out are 1.
fn size(text: &str) -> Result<[u32; 3]> {
    let mut size = [1; 3];
    let parts: Vec<_> = text.split(',').collect();
    if parts.len() > 3 {
        bail!("`{text}` has {} numbers, expected one to three", parts.len());
    }
    for (to, from) in size.iter_mut().zip(parts) {
        *to = from.trim().parse().with_context(|| format!("`{from}` in `{text}`"))?;
    }
    Ok(size)
}

fn capability(text: &str) -> Result<(u32, u32)> {
    let parsed =
        text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parsed.ok_or_else(|| anyhow!("`{text}`: expected a number such as 9.0"))
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let name = args.file.display().to_string();
    let text = store::read(&args.file)?;
    let module = Module::parse(&name, &text)?;
    let names = || module.kernels().map(|kernel| kernel.name.as_str()).collect::<Vec<_>>().join(", ");
    let kernel = match &args.kernel {
        Some(kernel) => {
            module.kernel(kernel).ok_or_else(|| anyhow!("{name} has no `{kernel}`; it has {}", names()))?
        }
        None => {
            let mut kernels = module.kernels();
            match (kernels.next(), kernels.next()) {
                (Some(only), None) => only,
                (None, _) => bail!("{name} has no kernel"),
                _ => bail!("{name} has several kernels, name one with --kernel: {}", names()),
            }
        }
    };
    let machine = Machine::new(config(args, &module, &kernel.name)?);
    let mut bound = Vec::new();
    for (index, argument) in args.args.iter().enumerate() {
        let argument = argument.bind(&machine, args.seed.wrapping_add(index as u64));
        bound.push(argument.with_context(|| format!("argument {}, `{}`", index + 1, args.args[index]))?);
    }
    let launch = LaunchConfig {
        grid: args.grid,
        block: args.block.or(kernel.reqntid).unwrap_or([1; 3]),
        dynamic_shared: args.shared,
        cluster: args.cluster,
        beside_last: false,
    };
    let bytes: Vec<&[u8]> = bound.iter().map(Bound::bytes).collect();
    let start = Instant::now();
    let result = machine.launch(&module, &kernel.name, &launch, &bytes);
    print!("{}", machine.take_printed());
    let report = match result {
        Ok(report) => report,
        Err(LaunchError::Finding(finding)) => {
            print!("{finding}");
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => return Err(error.into()),
    };
    println!(
        "`{}`: no finding; {} blocks, {} warp-instructions, {:.3} s",
        kernel.name,
        report.blocks,
        report.warp_instructions,
        start.elapsed().as_secs_f64()
    );
    for (index, argument) in bound.iter().enumerate() {
        if let Some(shown) = argument.result(&machine)? {
            println!("argument {}: {shown}", index + 1);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn config(args: &Args, module: &Module, kernel: &str) -> Result<Config> {
    let digits = module.target().trim_start_matches("sm_");
    let hopper = digits.trim_end_matches(['a', 'f']).parse::<u32>().is_ok_and(|version| version >= 90);
    let capability = args.capability.unwrap_or(if hopper { (9, 0) } else { (8, 0) });
    let trace = match &args.trace {
        None => None,
        Some(filter) => {
            let filter: TraceFilter =
                format!("{kernel}:{filter}").parse().map_err(|error| anyhow!("{error}"))?;
            Some(Tracer::new(filter, |step| println!("{step}")))
        }
    };
    Ok(Config {
        compute_capability: capability,
        completion: match args.completion {
            When::Eager => Completion::Eager,
            When::Latest => Completion::Latest,
            When::Random => Completion::Random,
        },
        numerics: match args.numerics {
            How::Exact => Numerics::Exact,
            How::Fast => Numerics::Fast,
        },
        seed: args.seed,
        trace,
        limits: if capability.0 >= 9 { Limits::hopper() } else { Limits::default() },
        ..Config::default()
    })
}
