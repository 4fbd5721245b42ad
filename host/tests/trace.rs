//! What a subscriber of `tracing` sees, and what NVTX is told.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use warpsmith::ops;
use warpsmith::ops::peer::{ExpertFormat, ExpertTable};
use warpsmith::trace::NVTX_VARIABLE;
use warpsmith::{Device, Tensor};

/// Where the stand-in for NVTX writes its calls.
const LOG_VARIABLE: &str = "WARPSMITH_TEST_NVTX_LOG";

/// Keeps the target and fields of every span and event, as one line each.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<String>>>);

impl Kept {
    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().expect("no test panics while it holds the lock")
    }

    fn keep(&self, metadata: &Metadata<'_>, record: impl FnOnce(&mut Line)) {
        let mut line = Line(metadata.target().to_owned());
        record(&mut line);
        self.lines().push(line.0);
    }

    /// The lines of a target, taken out.
    fn take(&self, target: &str) -> Vec<String> {
        let (taken, left) = self.lines().drain(..).partition(|line| line.starts_with(target));
        *self.lines() = left;
        taken
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!(" {}={value:?}", field.name()));
    }
}

impl Subscriber for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("warpsmith::")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.keep(span.metadata(), |line| span.record(line));
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        self.keep(event.metadata(), |line| event.record(line));
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A product and a softmax on this device, whose results are right.
fn run(device: &Device) -> warpsmith::Result<()> {
    let x = Tensor::from_slice(device, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
    let w = Tensor::from_slice(device, &[1.0f32, 0.0, 1.0, 0.0, 1.0, 0.0], [2, 3])?;
    let y = ops::linear(&x, &w).run()?;
    assert_eq!(y.to_vec()?, [4.0, 2.0, 10.0, 5.0]);
    let all = Tensor::from_slice(device, &[7.0f32; 4], [1, 4])?;
    assert_eq!(ops::softmax(&all).run()?.to_vec()?, [0.25; 4]);
    Ok(())
}

/// Also the program that the test of ranges starts.
#[test]
fn results_are_right_whether_or_not_anybody_watches() {
    run(&Device::emulator()).expect("operations run in the emulator");
    run(&Device::cpu()).expect("and on the CPU");
}

#[test]
fn operations_plans_modules_and_launches_are_told() {
    let kept = Kept::default();
    tracing::subscriber::with_default(kept.clone(), || {
        let device = Device::emulator();
        run(&device).expect("operations run in the emulator");
        let operations = kept.take("warpsmith::operation");
        assert_eq!(operations.len(), 2, "{operations:?}");
        assert!(operations[0].contains("name=\"linear\"") && operations[1].contains("name=\"softmax\""));
        let plans = kept.take("warpsmith::plan");
        assert_eq!(plans.len(), 1, "{plans:?}");
        for field in ["operation=\"linear\"", "m=2", "k=3", "n=2", "tile="] {
            assert!(plans[0].contains(field), "{field}: {plans:?}");
        }
        let modules = kept.take("warpsmith::module");
        let launches = kept.take("warpsmith::launch");
        assert_eq!((modules.len(), launches.len()), (2, 2), "{modules:?} {launches:?}");
        assert!(modules[0].contains("bytes=") && modules[0].contains("milliseconds="), "{modules:?}");
        assert!(launches[0].contains("grid=[") && launches[0].contains("block=["), "{launches:?}");
        // Nothing is chosen or loaded again.
        run(&device).expect("operations run in the emulator");
        assert_eq!(kept.take("warpsmith::operation").len(), 2);
        assert_eq!(kept.take("warpsmith::launch").len(), 2);
        assert_eq!(*kept.lines(), [] as [String; 0]);
    });
}

#[test]
fn packing_experts_tells_its_progress() {
    let kept = Kept::default();
    let (count, columns) = (37, 8);
    let device = Device::cpu();
    let u = Tensor::<f32>::zeros(&device, [count, columns]).expect("memory");
    tracing::subscriber::with_default(kept.clone(), || {
        ExpertTable::from_tensors(ExpertFormat::Bf16, &u, None, &u).expect("the tensors fit");
    });
    let progress = kept.take("warpsmith::progress");
    let last = progress.last().expect("some progress");
    for field in ["what=\"packing experts\"", "done=37", "all=37"] {
        assert!(last.contains(field), "{field}: {progress:?}");
    }
}

/// A library with NVTX's two functions that writes its calls into a file.
#[cfg(unix)]
fn stand_in(folder: &Path) -> PathBuf {
    const SOURCE: &str = r#"
        #include <stdio.h>
        #include <stdlib.h>
        static void note(const char *mark, const char *text) {
            FILE *log = fopen(getenv("WARPSMITH_TEST_NVTX_LOG"), "a");
            fprintf(log, "%s%s\n", mark, text);
            fclose(log);
        }
        int nvtxRangePushA(const char *name) { note("+", name); return 0; }
        int nvtxRangePop(void) { note("-", ""); return 0; }
    "#;
    let (source, library) = (folder.join("nvtx.c"), folder.join("libnvtx.so"));
    std::fs::write(&source, SOURCE).expect("the folder is writable");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(compiled.expect("a C compiler, as for linking").success());
    library
}

/// This file's other test, in a process of its own with these variables.
#[cfg(unix)]
fn watched(variables: &[(&str, &Path)]) {
    let program = std::env::current_exe().expect("a path");
    let name = "results_are_right_whether_or_not_anybody_watches";
    let output = Command::new(program)
        .args(["--exact", name, "--test-threads=1"])
        .env_remove(NVTX_VARIABLE)
        .envs(variables.iter().copied())
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[cfg(unix)]
#[test]
fn operations_are_ranges_of_nvtx_where_the_environment_asks_for_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let (library, log) = (stand_in(folder.path()), folder.path().join("log"));
    watched(&[(NVTX_VARIABLE, &library), (LOG_VARIABLE, &log)]);
    let once = "+linear\n-\n+softmax\n-\n";
    assert_eq!(std::fs::read_to_string(&log).expect("a log"), once.repeat(2));
    // Off unless asked for.
    std::fs::remove_file(&log).expect("it was there");
    watched(&[(LOG_VARIABLE, &log)]);
    assert!(!log.exists());
}

#[cfg(unix)]
#[test]
fn a_library_of_nvtx_that_is_missing_stops_nothing() {
    watched(&[(NVTX_VARIABLE, Path::new("/nowhere/libnvtx.so"))]);
}
