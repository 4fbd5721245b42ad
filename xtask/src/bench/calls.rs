//! `xtask bench --operation calls`: what an operation costs its caller until its work is enqueued, beside the framework.
//!
//! The GPU idles before each sample and has little to do for each call, so that no call waits for room in the driver's queue.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use float8::F8E4M3;
use half::bf16;
use serde::Serialize;
use warpsmith::ops::peer::{ExpertFormat, ExpertTable, Routing};
use warpsmith::ops::{self, Activation};
use warpsmith::{DType, Device, DeviceKind, Element, Stream, Tensor};

use super::report::Verdict;
use super::rows::rounded;
use super::session::Session;
use super::{Args, judged, torch};
use crate::measurement::Measurement;

/// Calls of a sample.
const CALLS: u32 = 64;
/// The most microseconds that a call may take its caller: into an existing output, and into a new one.
const MOST: [f64; 2] = [3.0, 4.0];

/// One call, as often as it is made.
type Call<'a> = Box<dyn FnMut() -> warpsmith::Result<()> + 'a>;

#[derive(Serialize)]
struct Request<'a> {
    call: &'a str,
    precision: &'a str,
    shape: &'a [usize],
}

/// What is called.
struct Case {
    name: &'static str,
    dtype: DType,
    shape: Vec<usize>,
}

/// One case, measured: microseconds into an existing output and into a new one, and names and microseconds of baselines.
struct Row {
    case: Case,
    microseconds: [Option<f64>; 2],
    peers: Vec<(String, f64)>,
}

const VARIANTS: [&str; 2] = ["run_into", "run"];

impl Case {
    fn label(&self) -> String {
        let shape: Vec<_> = self.shape.iter().map(usize::to_string).collect();
        format!("{} {} {}", self.name, self.dtype, shape.join("x")).trim_end().to_owned()
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let mut session = Session::of_caller(args, Some(torch::CALLS))?;
    let device = session.device.clone();
    let stream = device.default_stream();
    let samples = session.options.samples.max(5);
    let wanted = |case: &Case| args.filter.as_ref().is_none_or(|filter| case.label().contains(filter));
    let mut measured = Vec::new();
    let mut each = |case: Case, calls: [Option<Call<'_>>; 2]| {
        if !wanted(&case) {
            return;
        }
        let time = |call: Option<Call<'_>>| call.map(|call| host_time(&stream, samples, call)).transpose();
        let [into, new] = calls;
        let times = time(into).and_then(|into| Ok([into, time(new)?]));
        measured.push((case, times));
    };
    products(&device, &mut each)?;
    updates(&device, &mut each)?;
    retrieval(&device, &mut each)?;
    others(&device, &mut each)?;
    launches(&device, &mut each)?;
    if measured.is_empty() {
        bail!("nothing to measure: no call has that in its name, type and sizes");
    }
    let mut rows = Vec::new();
    for (case, times) in measured {
        let Some(times) = session.counted(times) else { continue };
        let microseconds = times.map(|time| time.map(|time| time.as_secs_f64() * 1e6));
        let peers = session.framework(&Request {
            call: case.name,
            precision: precision(case.dtype),
            shape: &case.shape,
        });
        rows.push(Row { case, microseconds, peers });
    }
    let measurements: Vec<_> = rows.iter().flat_map(|row| row.measurements(&session)).collect();
    session.finish(&[table(&rows)], measurements, verdicts(&rows))
}

/// A type's name as the baselines know it.
fn precision(dtype: DType) -> &'static str {
    match dtype {
        DType::F8E4M3 => "f8e4m3",
        dtype => dtype.name(),
    }
}

/// The median time of a call until it returns.
fn host_time(stream: &Stream, samples: usize, mut call: Call<'_>) -> Result<Duration> {
    // Loads the kernels, and fills the pool of memory.
    (0..CALLS).try_for_each(|_| call())?;
    let mut times = Vec::new();
    for _ in 0..samples {
        stream.synchronize()?;
        let start = Instant::now();
        (0..CALLS).try_for_each(|_| call())?;
        times.push(start.elapsed() / CALLS);
    }
    stream.synchronize()?;
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// A tensor of ones.
fn ones<T: Element>(device: &Device, shape: &[usize], one: T) -> warpsmith::Result<Tensor<T>> {
    Tensor::from_slice(device, &vec![one; shape.iter().product()], shape)
}

/// Takes the calls of a case: into an existing output, and into a new one.
type Each<'a> = dyn FnMut(Case, [Option<Call<'_>>; 2]) + 'a;

fn products(device: &Device, each: &mut Each<'_>) -> Result<()> {
    for [m, k, n] in [[16, 512, 512], [256, 512, 512], [1024, 1024, 1024], [100, 100, 100]] {
        let case = |name, dtype| Case { name, dtype, shape: vec![m, k, n] };
        let one = bf16::ONE;
        let (x, w) = (ones(device, &[m, k], one)?, ones(device, &[n, k], one)?);
        let (bias, mut y) = (ones(device, &[n], one)?, ones(device, &[m, n], one)?);
        let linear = || ops::linear(&x, &w);
        each(
            case("linear", DType::Bf16),
            [Some(Box::new(|| linear().run_into(&mut y))), Some(Box::new(|| linear().run().map(drop)))],
        );
        let fused = || ops::linear(&x, &w).bias(&bias).activation(Activation::Relu);
        each(
            case("linear bias relu", DType::Bf16),
            [Some(Box::new(|| fused().run_into(&mut y))), Some(Box::new(|| fused().run().map(drop)))],
        );
        let residual = ones(device, &[m, n], one)?;
        let residual = || fused().residual(&residual, 1.0);
        each(
            case("linear bias relu residual", DType::Bf16),
            [Some(Box::new(|| residual().run_into(&mut y))), Some(Box::new(|| residual().run().map(drop)))],
        );
        let (x, w) = (ones(device, &[m, k], 1.0f32)?, ones(device, &[n, k], 1.0f32)?);
        let mut y = ones(device, &[m, n], 1.0f32)?;
        let linear = || ops::linear(&x, &w);
        each(
            case("linear", DType::F32),
            [Some(Box::new(|| linear().run_into(&mut y))), Some(Box::new(|| linear().run().map(drop)))],
        );
        let one = F8E4M3::from_f32(1.0);
        let (x, w) = (ones(device, &[m, k], one)?, ones(device, &[n, k], one)?);
        let mut y = ones(device, &[m, n], bf16::ONE)?;
        let scaled = || ops::linear_scaled(&x, &w);
        each(
            case("linear scaled", DType::F8E4M3),
            [Some(Box::new(|| scaled().run_into(&mut y))), Some(Box::new(|| scaled().run().map(drop)))],
        );
    }
    let [batch, m, k, n] = [16, 64, 64, 64];
    let one = bf16::ONE;
    let (a, b) = (ones(device, &[batch, m, k], one)?, ones(device, &[batch, k, n], one)?);
    let mut y = ones(device, &[batch, m, n], one)?;
    let matmul = || ops::matmul(&a, &b);
    each(
        Case { name: "matmul", dtype: DType::Bf16, shape: vec![batch, m, k, n] },
        [Some(Box::new(|| matmul().run_into(&mut y))), Some(Box::new(|| matmul().run().map(drop)))],
    );
    Ok(())
}

fn updates(device: &Device, each: &mut Each<'_>) -> Result<()> {
    let one = bf16::ONE;
    for [m, k, n, r] in [[128, 768, 768, 8], [2048, 768, 768, 16]] {
        let case = |name| Case { name, dtype: DType::Bf16, shape: vec![m, k, n, r] };
        let (x, w) = (ones(device, &[m, k], one)?, ones(device, &[n, k], one)?);
        let (v, u, codes) =
            (ones(device, &[k, r], one)?, ones(device, &[r, n], one)?, ones(device, &[m, r], one)?);
        let mut y = ones(device, &[m, n], one)?;
        let both = || ops::linear_with_update(&x, &w, &v, &codes, &u, 1.0);
        each(
            case("linear with update"),
            [Some(Box::new(|| both().run_into(&mut y))), Some(Box::new(|| both().run().map(drop)))],
        );
        let alone = || ops::generated_update(&x, &v, &codes, &u, 1.0);
        each(
            case("generated update"),
            [Some(Box::new(|| alone().run_into(&mut y))), Some(Box::new(|| alone().run().map(drop)))],
        );
    }
    Ok(())
}

fn retrieval(device: &Device, each: &mut Each<'_>) -> Result<()> {
    let one = bf16::ONE;
    let [tokens, width, heads, n, k] = [64, 256, 2, 64, 8];
    let query = 128;
    let x = ones(device, &[tokens, width], one)?;
    let w = ones(device, &[heads * query, width], one)?;
    let keys = ones(device, &[n, query / 2], one)?;
    let find = || ops::product_key_topk(&x, &w, &keys, &keys, heads, k);
    let mut routing = find().run()?;
    let case = |name| Case { name, dtype: DType::Bf16, shape: vec![tokens, width, heads, n, k] };
    each(
        case("product key topk"),
        [Some(Box::new(|| find().run_into(&mut routing))), Some(Box::new(|| find().run().map(drop)))],
    );
    let vectors = ones(device, &[n * n, width], 1.0f32)?;
    let table = ExpertTable::from_tensors(ExpertFormat::Bf16, &vectors, None, &vectors)?;
    let routing: Routing = find().run()?;
    let mut y = ones(device, &[tokens, width], one)?;
    let experts = || ops::expert_mlp(&x, &routing, &table);
    each(
        case("expert mlp"),
        [Some(Box::new(|| experts().run_into(&mut y))), Some(Box::new(|| experts().run().map(drop)))],
    );
    Ok(())
}

fn others(device: &Device, each: &mut Each<'_>) -> Result<()> {
    let [rows, columns, k] = [256, 1024, 16];
    let x = ones(device, &[rows, columns], bf16::ONE)?;
    let topk = || ops::topk(&x, k);
    let (mut values, mut ids) = topk().run()?;
    each(
        Case { name: "topk", dtype: DType::Bf16, shape: vec![rows, columns, k] },
        [
            Some(Box::new(|| topk().run_into(&mut values, &mut ids))),
            Some(Box::new(|| topk().run().map(drop))),
        ],
    );
    let across = x.swap_axes(0, 1)?;
    let repack = || ops::repack(&across);
    let mut copy = repack().run()?;
    each(
        Case { name: "repack", dtype: DType::Bf16, shape: vec![rows, columns] },
        [Some(Box::new(|| repack().run_into(&mut copy))), Some(Box::new(|| repack().run().map(drop)))],
    );
    Ok(())
}

/// The PTX of a kernel that does nothing.
const EMPTY: &str =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty()\n{\n\tret;\n}\n\0";

/// An empty kernel, and the same by nothing but the driver's call: what remains is the driver's. Behind that, a product with the GPU's context being
/// the thread's own already, as it is in programs with another library.
fn launches(device: &Device, each: &mut Each<'_>) -> Result<()> {
    let stream = device.default_stream();
    let function = device.load_ptx("empty.ptx", EMPTY.trim_end_matches('\0'))?.function("empty")?;
    // SAFETY: the kernel has no arguments and touches no memory.
    let launch = || unsafe { function.launch(&stream, [1; 3], [32, 1, 1], 0, &[]) };
    let case = |name, shape| Case { name, dtype: DType::Bf16, shape };
    each(case("empty kernel", Vec::new()), [Some(Box::new(launch)), None]);

    let DeviceKind::Cuda(ordinal) = device.kind() else { bail!("{device} is no GPU") };
    let context = cudarc::driver::CudaContext::new(ordinal)?;
    context.bind_to_thread()?;
    let handle = stream.cuda_handle().context("a GPU's stream has a handle")?;
    // SAFETY: the text ends in a zero byte, and outlives the call.
    let module = unsafe { cudarc::driver::result::module::load_data(EMPTY.as_ptr().cast()) }?;
    // SAFETY: the module is loaded, and has the function.
    let function = unsafe { cudarc::driver::result::module::get_function(module, c"empty".to_owned()) }?;
    let launch = || {
        // SAFETY: function and stream are alive; the kernel has no arguments.
        let launched = unsafe {
            cudarc::driver::result::launch_kernel(function, (1, 1, 1), (32, 1, 1), 0, handle.cast(), &mut [])
        };
        launched.map_err(|error| warpsmith::Error::Driver {
            operation: "launching an empty kernel",
            code: error.0 as i32,
            name: format!("{:?}", error.0),
            message: String::new(),
        })
    };
    each(case("empty kernel by the driver", Vec::new()), [Some(Box::new(launch)), None]);
    let [m, k, n] = [256, 512, 512];
    let (x, w) = (ones(device, &[m, k], bf16::ONE)?, ones(device, &[n, k], bf16::ONE)?);
    let mut y = ones(device, &[m, n], bf16::ONE)?;
    each(
        case("linear, context current", vec![m, k, n]),
        [
            Some(Box::new(|| ops::linear(&x, &w).run_into(&mut y))),
            Some(Box::new(|| ops::linear(&x, &w).run().map(drop))),
        ],
    );
    Ok(())
}

impl Row {
    fn measurements(&self, session: &Session) -> Vec<Measurement> {
        let shape: Vec<_> = self.case.shape.iter().map(usize::to_string).collect();
        let mut all = Vec::new();
        for (variant, microseconds) in VARIANTS.into_iter().zip(self.microseconds) {
            let Some(microseconds) = microseconds else { continue };
            let row = Measurement {
                operation: self.case.name.into(),
                dtype: self.case.dtype.to_string(),
                shape: shape.join("x"),
                variant: variant.into(),
                ..session.measurement("calls")
            };
            let peers: Vec<_> =
                self.peers.iter().filter(|(name, _)| is_like(name, variant)).cloned().collect();
            all.extend(row.timed(microseconds).beside_each(microseconds, &peers));
        }
        all
    }
}

/// Whether a peer of this name does what the variant does: `…-out` writes into an existing output.
fn is_like(peer: &str, variant: &str) -> bool {
    peer.ends_with("-out") == (variant == VARIANTS[0])
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    let header = ["call", "run_into, µs", "run, µs", "framework, µs"];
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header);
    let time = |time: Option<f64>| time.map_or_else(|| "–".into(), |time| format!("{time:.2}"));
    for row in rows {
        let peers: Vec<_> = row.peers.iter().map(|(name, time)| format!("{name} {time:.2}")).collect();
        let [into, new] = row.microseconds;
        table.add_row([row.case.label(), time(into), time(new), peers.join(", ")]);
    }
    table
}

/// Whether the goals are met.
fn verdicts(rows: &[Row]) -> Vec<Verdict> {
    let of = |index: usize| {
        let times = rows.iter().filter_map(move |row| Some((row.case.label(), row.microseconds[index]?)));
        let goal = format!("`{}` takes its caller at most {} µs", VARIANTS[index], MOST[index]);
        judged(goal, times.map(|(label, time)| (label, rounded(time, 1e2), time <= MOST[index])))
    };
    vec![of(0), of(1)]
}

#[cfg(test)]
mod tests {
    use warpsmith::DType;

    use super::{Case, Row, is_like, verdicts};

    #[test]
    fn each_variant_has_its_goal_and_its_peers() {
        let row = |times: [f64; 2]| Row {
            case: Case { name: "linear", dtype: DType::F32, shape: vec![1, 2, 3] },
            microseconds: times.map(Some),
            peers: Vec::new(),
        };
        let met = |rows: &[Row]| verdicts(rows).iter().map(|verdict| verdict.met).collect::<Vec<_>>();
        assert_eq!(met(&[]), [None, None]);
        assert_eq!(met(&[row([2.0, 3.9]), row([3.1, 3.1])]), [Some(false), Some(true)]);
        assert_eq!(met(&[row([2.9, 4.1])]), [Some(true), Some(false)]);
        assert!(is_like("torch-out", "run_into") && is_like("torch", "run"));
        assert!(!is_like("torch", "run_into") && !is_like("torch-out", "run"));
    }
}
