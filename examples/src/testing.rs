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
