//! What a call costs its caller beside the driver, on a machine without a GPU: allocations of the host's memory, and calls of a driver that does nothing.
//!
//! The test builds that driver and runs itself again with it in the place of NVIDIA's.
#![cfg(target_os = "linux")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use float8::F8E4M3;
use half::bf16;
use libloading::{Library, Symbol};
use warpsmith::ops::peer::{ExpertFormat, ExpertTable};
use warpsmith::ops::{self, Activation};
use warpsmith::{Device, Error, Result, Stream, StreamPriority, Tensor};

/// Counts the allocations of the process.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: all is the system's allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Set where the test runs itself again.
const AGAIN: &str = "WARPSMITH_TEST_STAND_IN_DRIVER";

#[test]
fn calls_allocate_little_and_ask_the_driver_for_nothing_but_their_work() {
    if std::env::var_os(AGAIN).is_some() {
        return count();
    }
    let folder = folder("stand-in-driver");
    build(&folder.join(NAME));
    run_again("calls_allocate_little_and_ask_the_driver_for_nothing_but_their_work", &folder, "13000");
}

#[test]
fn functions_that_the_driver_lacks_are_named() {
    const FUNCTION: &[u8] = b"\0cuMemPoolCreate\0";
    if std::env::var_os(AGAIN).is_some() {
        let error = Device::cuda(0).expect_err("it has no pools");
        assert!(matches!(error, Error::DriverLacksFunction { .. }), "{error}");
        let expected = "the driver has no `cuMemPoolCreate`, expected a driver for CUDA 11.2 or later, this one is for CUDA 11.0";
        return assert!(error.to_string().contains(expected), "{error}");
    }
    let folder = folder("driver-without-pools");
    let library = folder.join(NAME);
    build(&library);
    // The function has another name then.
    let mut bytes = std::fs::read(&library).unwrap();
    let places: Vec<_> = (0..bytes.len()).filter(|&place| bytes[place..].starts_with(FUNCTION)).collect();
    assert!(!places.is_empty(), "the library has the function's name");
    places.into_iter().for_each(|place| bytes[place + 1] = b'x');
    std::fs::write(&library, bytes).unwrap();
    run_again("functions_that_the_driver_lacks_are_named", &folder, "11000");
}

#[test]
fn ptx_that_the_driver_does_not_know_says_which_driver_does() {
    if std::env::var_os(AGAIN).is_some() {
        let device = Device::cuda(0).unwrap();
        let x = ones(&device, &[512, 512], bf16::ONE);
        let error = ops::linear(&x, &x).run().expect_err("Hopper's kernels are newer than the driver");
        assert!(matches!(error, Error::DriverTooOld { .. }), "{error}");
        let said = error.to_string();
        return assert!(said.contains("or later, this driver is for CUDA 11.4: update"), "{said}");
    }
    let folder = folder("old-driver");
    build(&folder.join(NAME));
    run_again("ptx_that_the_driver_does_not_know_says_which_driver_does", &folder, "11040");
}

/// The name by which the driver is looked for.
const NAME: &str = "libcuda.so.1";

/// A folder of this name for a driver.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Builds the driver that does nothing.
fn build(library: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/calls/driver.rs");
    let built = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--edition", "2024", "-O", "--crate-type", "cdylib", "-o"])
        .args([library, &source])
        .status();
    assert!(built.unwrap().success(), "the driver is built");
}

/// Runs a test of this program again with the driver in a folder, which says that it is for this version of CUDA.
fn run_again(test: &str, folder: &Path, version: &str) {
    let again = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(AGAIN, "1")
        .env("LD_LIBRARY_PATH", folder)
        .env("WARPSMITH_STAND_IN_VERSION", version)
        .status();
    assert!(again.unwrap().success(), "see above");
}

/// The stand-in's counts, and what they should not have been.
struct Driver(Library, RefCell<Vec<String>>);

impl Driver {
    /// How often each of these was called, and then how often any function was.
    fn counts<const N: usize>(&self, names: [&str; N]) -> ([i64; N], u64) {
        // SAFETY: the library is that of `driver.rs`, whose functions have these types.
        unsafe {
            let of: Symbol<'_, unsafe extern "C" fn(*const c_char) -> i64> = self.0.get(b"calls_of").unwrap();
            let all: Symbol<'_, unsafe extern "C" fn() -> u64> = self.0.get(b"calls_of_all").unwrap();
            let one = |name| {
                let name = CString::new(name).unwrap();
                of(name.as_ptr())
            };
            (names.map(one), all())
        }
    }
}

/// What the calls of an operation may cost at most.
struct Most {
    allocations: u64,
    launches: i64,
    /// Of the copy engine.
    maps: i64,
    /// Of memory on the GPU.
    blocks: i64,
}

const WORK: [&str; 4] =
    ["cuLaunchKernel", "cuLaunchKernelEx", "cuTensorMapEncodeTiled", "cuMemAllocFromPoolAsync"];

fn expect(driver: &Driver, name: &str, most: Most, mut call: impl FnMut() -> Result<()>) {
    const CALLS: i64 = 100;
    // Loads what is loaded once.
    (0..3).try_for_each(|_| call()).unwrap();
    let (before, all_before) = driver.counts(WORK);
    let allocations = ALLOCATIONS.load(Ordering::Relaxed);
    (0..CALLS).try_for_each(|_| call()).unwrap();
    let allocations = (ALLOCATIONS.load(Ordering::Relaxed) - allocations) / CALLS as u64;
    let (after, all_after) = driver.counts(WORK);
    let [plain, extended, maps, blocks] = std::array::from_fn(|index| (after[index] - before[index]) / CALLS);
    let launches = plain + extended;
    let others = (all_after - all_before) as i64 / CALLS - launches - maps - blocks;
    println!(
        "{name}: {allocations} allocations, {launches} launches, {maps} maps, {blocks} blocks, {others} other calls"
    );
    let expected = |what: &str, holds: bool| {
        if !holds {
            driver.1.borrow_mut().push(format!("{name}: {what}"));
        }
    };
    expected(
        &format!("{allocations} allocations, expected {}", most.allocations),
        allocations <= most.allocations,
    );
    let (found, wanted) = ([launches, maps, blocks], [most.launches, most.maps, most.blocks]);
    expected(&format!("launches, maps and blocks are {found:?}, expected {wanted:?}"), found == wanted);
    // The thread's context is asked for, and set and restored where it is another, for each of the above; and so it is where a result is freed, and
    // where the stream is asked whether what lies between launches is captured.
    let most = 3 * (launches + maps + blocks) + 8 * blocks;
    expected(&format!("{others} other calls, expected at most {most}"), others <= most);
}

fn ones<T: warpsmith::Element>(device: &Device, shape: &[usize], one: T) -> Tensor<T> {
    Tensor::from_slice(device, &vec![one; shape.iter().product()], shape).unwrap()
}

fn count() {
    // SAFETY: the stand-in's initialisers do nothing.
    let driver = Driver(unsafe { Library::new("libcuda.so.1") }.unwrap(), RefCell::default());
    let device = Device::cuda(0).unwrap();
    let one = bf16::ONE;
    for shape in [[16, 512, 512], [1024, 1024, 1024]] {
        let [m, k, n] = shape;
        let (x, w, bias) =
            (ones(&device, &[m, k], one), ones(&device, &[n, k], one), ones(&device, &[n], one));
        let mut y = ones(&device, &[m, n], one);
        let op = || ops::linear(&x, &w).bias(&bias).activation(Activation::Relu);
        // Maps are encoded once for operands at one place. The driver that does nothing gives each result a place of its own.
        let of_result = i64::from(m == 1024);
        let most = |maps, blocks| Most { allocations: 10, launches: 1, maps, blocks };
        expect(&driver, &format!("linear into {shape:?}"), most(0, 0), || op().run_into(&mut y));
        expect(&driver, &format!("linear {shape:?}"), most(of_result, 1), || op().run().map(drop));
    }
    let (a, b) = (ones(&device, &[8, 64, 64], one), ones(&device, &[8, 64, 64], one));
    let mut y = ones(&device, &[8, 64, 64], one);
    let most = Most { allocations: 14, launches: 1, maps: 0, blocks: 0 };
    expect(&driver, "matmul into", most, || ops::matmul(&a, &b).run_into(&mut y));
    let x = ones(&device, &[256, 1024], one);
    let (mut values, mut ids) = ops::topk(&x, 16).run().unwrap();
    let most = Most { allocations: 8, launches: 1, maps: 0, blocks: 0 };
    expect(&driver, "topk into", most, || ops::topk(&x, 16).run_into(&mut values, &mut ids));
    other_operations(&driver, &device);
    drops_of_a_threads_default_stream(&driver, &device);
    drops_beside_captures(&driver, &device);
    drops_while_work_is_recorded(&device);
    events_are_recorded_again(&driver, &device);
    only_high_priorities_are_asked_for(&driver, &device);
    let complaints = driver.1.into_inner();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

fn other_operations(driver: &Driver, device: &Device) {
    let one = bf16::ONE;
    let into = |launches, allocations| Most { allocations, launches, maps: 0, blocks: 0 };

    let (x, w) = (ones(device, &[256, 512], 1.0f32), ones(device, &[512, 512], 1.0f32));
    let mut y = ones(device, &[256, 512], 1.0f32);
    expect(driver, "linear f32 into", into(1, 10), || ops::linear(&x, &w).run_into(&mut y));

    let f8 = F8E4M3::from_f32(1.0);
    let (x, w) = (ones(device, &[256, 512], f8), ones(device, &[512, 512], f8));
    let mut y = ones(device, &[256, 512], one);
    expect(driver, "linear scaled into", into(1, 10), || ops::linear_scaled(&x, &w).run_into(&mut y));

    let (x, w) = (ones(device, &[2048, 768], one), ones(device, &[768, 768], one));
    let (v, u) = (ones(device, &[768, 16], one), ones(device, &[16, 768], one));
    let (codes, mut y) = (ones(device, &[2048, 16], one), ones(device, &[2048, 768], one));
    let both = || ops::linear_with_update(&x, &w, &v, &codes, &u, 1.0);
    // What they keep between launches is of the stream's pool. The driver that does nothing gives each a place of its own, and so a map.
    let most = Most { allocations: 32, launches: 3, maps: 2, blocks: 2 };
    expect(driver, "linear with update into", most, || both().run_into(&mut y));
    let alone = || ops::generated_update(&x, &v, &codes, &u, 1.0);
    let most = Most { allocations: 20, launches: 2, maps: 1, blocks: 1 };
    expect(driver, "generated update into", most, || alone().run_into(&mut y));

    let [tokens, width, heads, n, query] = [64, 256, 2, 64, 128];
    let (x, w) = (ones(device, &[tokens, width], one), ones(device, &[heads * query, width], one));
    let keys = ones(device, &[n, query / 2], one);
    let find = || ops::product_key_topk(&x, &w, &keys, &keys, heads, 8);
    let mut routing = find().run().unwrap();
    let most = Most { allocations: 16, launches: 2, maps: 0, blocks: 1 };
    expect(driver, "product key topk into", most, || find().run_into(&mut routing));
    let vectors = ones(device, &[n * n, width], 1.0f32);
    let table = ExpertTable::from_tensors(ExpertFormat::Bf16, &vectors, None, &vectors).unwrap();
    let mut y = ones(device, &[tokens, width], one);
    expect(driver, "expert mlp into", into(1, 20), || ops::expert_mlp(&x, &routing, &table).run_into(&mut y));

    let across = x.swap_axes(0, 1).unwrap();
    let mut copy = ops::repack(&across).run().unwrap();
    expect(driver, "repack into", into(1, 8), || ops::repack(&across).run_into(&mut copy));
}

/// Whether somebody captures a stream that the legacy default stream waits for.
fn capture(driver: &Driver, is: bool) {
    // SAFETY: the library is that of `driver.rs`, whose function has this type.
    unsafe {
        let capture: Symbol<'_, unsafe extern "C" fn(bool)> = driver.0.get(b"capture").unwrap();
        capture(is);
    }
}

/// Counts the drops of an owner.
struct Owner(Arc<AtomicU64>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Work of the legacy stream would end somebody's capture, and so would waiting for the GPU: what is homed on the default streams waits until that is over.
fn drops_beside_captures(driver: &Driver, device: &Device) {
    const DROPS: [&str; 4] = ["cuCtxSynchronize", "cuEventRecord", "cuMemFreeAsync", "cuMemFree_v2"];
    for (handle, elsewhere) in [(0, false), (0, true), (1, false), (2, true)] {
        // SAFETY: the default streams are always there.
        let stream = unsafe { Stream::borrow(device, std::ptr::without_provenance_mut(handle), ()) }.unwrap();
        let own = Tensor::<f32>::zeros_on(&stream, [2, 2]).unwrap();
        let drops = Arc::new(AtomicU64::new(0));
        let owner = Owner(drops.clone());
        // SAFETY: a driver that does nothing reads nothing.
        let foreign =
            unsafe { Tensor::<f32>::from_foreign(&stream, own.device_address(), [2], [1], owner) }.unwrap();
        capture(driver, true);
        let (before, _) = driver.counts(DROPS);
        if elsewhere {
            std::thread::spawn(move || drop((foreign, own))).join().unwrap();
        } else {
            drop((foreign, own));
        }
        let (after, _) = driver.counts(DROPS);
        let during: [i64; 4] = std::array::from_fn(|index| after[index] - before[index]);
        assert_eq!(during, [0; 4], "stream {handle}: {DROPS:?}");
        assert_eq!(drops.load(Ordering::Relaxed), 0, "stream {handle}");
        capture(driver, false);
        stream.synchronize().unwrap();
        let (after, _) = driver.counts(DROPS);
        assert_eq!((after[0] - before[0], after[3] - before[3]), (0, 1), "stream {handle}: {DROPS:?}");
        assert_eq!(drops.load(Ordering::Relaxed), 1, "stream {handle}");
    }
}

/// Events that nobody uses any more are recorded again, in the place of new ones.
fn events_are_recorded_again(driver: &Driver, device: &Device) {
    const EVENTS: [&str; 3] = ["cuEventCreate", "cuEventRecord", "cuEventDestroy_v2"];
    let stream = device.new_stream().unwrap();
    let record = || stream.record().unwrap();
    drop([record(), record()]);
    let (before, _) = driver.counts(EVENTS);
    for _ in 0..10 {
        drop([record(), record()]);
    }
    let (after, _) = driver.counts(EVENTS);
    assert_eq!(std::array::from_fn(|index| after[index] - before[index]), [0, 20, 0], "{EVENTS:?}");
}

fn only_high_priorities_are_asked_for(driver: &Driver, device: &Device) {
    const CALLS: [&str; 2] = ["cuCtxGetStreamPriorityRange", "cuStreamCreateWithPriority"];
    for (priority, expected) in [(StreamPriority::Normal, [0, 1]), (StreamPriority::High, [1, 1])] {
        let (before, _) = driver.counts(CALLS);
        device.new_stream_with_priority(priority).unwrap();
        let (after, _) = driver.counts(CALLS);
        assert_eq!(std::array::from_fn(|index| after[index] - before[index]), expected, "{priority:?}");
    }
}

/// What an owner does may end a recording: it is dropped when that is over, also if it is of another stream, whose work is done.
fn drops_while_work_is_recorded(device: &Device) {
    let (recorded, elsewhere) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let memory = ones(device, &[2], 1.0f32);
    let drops = Arc::new(AtomicU64::new(0));
    let foreign = || {
        let owner = Owner(drops.clone());
        // SAFETY: a driver that does nothing reads nothing.
        unsafe { Tensor::<f32>::from_foreign(&elsewhere, memory.device_address(), [2], [1], owner) }.unwrap()
    };
    // Without a recording it is dropped at once.
    drop(foreign());
    assert_eq!(drops.swap(0, Ordering::Relaxed), 1);
    let mut dropped = None;
    // SAFETY: only this thread uses the stream.
    let graph = unsafe {
        recorded.capture(|| {
            drops.store(0, Ordering::Relaxed);
            drop(foreign());
            dropped = Some(drops.load(Ordering::Relaxed));
            Ok(())
        })
    };
    graph.unwrap();
    assert_eq!(dropped, Some(0), "the last call is recorded");
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}

/// A thread's default stream is another stream in every thread. What is of it is let go by another thread all the same, and that one does not wait.
fn drops_of_a_threads_default_stream(driver: &Driver, device: &Device) {
    const DROPS: [&str; 2] = ["cuCtxSynchronize", "cuMemFreeAsync"];
    // SAFETY: the default streams are always there.
    let stream = unsafe { Stream::borrow(device, std::ptr::without_provenance_mut(2), ()) }.unwrap();
    let own = Tensor::<f32>::zeros_on(&stream, [2, 2]).unwrap();
    let address = own.device_address();
    // SAFETY: a driver that does nothing reads nothing.
    let foreign = unsafe { Tensor::<f32>::from_foreign(&stream, address, [2], [1], ()) }.unwrap();
    let (before, _) = driver.counts(DROPS);
    std::thread::spawn(move || drop((own, foreign))).join().unwrap();
    let (after, _) = driver.counts(DROPS);
    assert_eq!([after[0] - before[0], after[1] - before[1]], [0, 1], "{DROPS:?}");
}
