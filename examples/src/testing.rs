//! What the examples' tests share.

use warpsmith::tensor::Element;
use warpsmith::{Device, KernelFile, KernelModule, Result, Stream, Tensor};

/// Half a unit in the last place of 1, in f32: the error of a rounding, relatively.
pub(crate) const U: f64 = 1.0 / (1u64 << 24) as f64;

/// An emulated device with the kernels of a file.
pub(crate) struct Bench {
    pub(crate) device: Device,
    pub(crate) module: KernelModule,
}

impl Bench {
    /// Of compute capability 8.0.
    pub(crate) fn new(file: &KernelFile) -> Result<Self> {
        Self::on(Device::emulator(), file)
    }

    pub(crate) fn on(device: Device, file: &KernelFile) -> Result<Self> {
        let module = device.load_kernels(file)?;
        Ok(Self { device, module })
    }

    pub(crate) fn stream(&self) -> Stream {
        self.device.default_stream()
    }

    pub(crate) fn tensor<T: Element>(&self, elements: &[T], shape: impl AsRef<[usize]>) -> Result<Tensor<T>> {
        Tensor::from_slice(&self.device, elements, shape)
    }

    pub(crate) fn zeros<T: Element>(&self, shape: impl AsRef<[usize]>) -> Result<Tensor<T>> {
        Tensor::zeros(&self.device, shape)
    }
}

/// So many numbers between −1 and 1, the same every time for one seed.
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Checks one element against its f64 reference.
#[track_caller]
pub(crate) fn assert_within(actual: f32, expected: f64, bound: f64, place: impl std::fmt::Debug) {
    let error = (f64::from(actual) - expected).abs();
    assert!(
        error <= bound,
        "at {place:?}: {actual} instead of {expected}, off by {error:e}, bound {bound:e}"
    );
}

/// The blocks of the last launch that this thread is told of.
#[derive(Clone, Default)]
struct LastGrid(std::sync::Arc<std::sync::atomic::AtomicU32>);

impl tracing::field::Visit for LastGrid {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "grid" {
            let text = format!("{value:?}");
            let axes = text.trim_matches(['[', ']']).split(", ").map(|axis| axis.parse::<u32>());
            let blocks = axes.map(|axis| axis.expect("a grid is of numbers")).product();
            self.0.store(blocks, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

impl tracing::Subscriber for LastGrid {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "warpsmith::launch"
    }

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// What `work` returns, and the blocks of its last launch.
pub(crate) fn with_last_grid<R>(work: impl FnOnce() -> R) -> (R, u32) {
    let grid = LastGrid::default();
    let result = tracing::subscriber::with_default(grid.clone(), work);
    (result, grid.0.load(std::sync::atomic::Ordering::Relaxed))
}
