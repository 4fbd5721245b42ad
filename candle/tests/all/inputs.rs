//! Operands with all kinds of layouts, and their gradients.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};
use proptest::prelude::*;

use crate::near::{Near, Sums};

/// The devices that tests run on: the CPU, and the first GPU with the feature `cuda`.
pub(crate) fn devices() -> Vec<Device> {
    #[cfg(feature = "cuda")]
    {
        thread_local! {
            // The stream of a device is that of the thread that made it.
            static GPU: Device = Device::new_cuda(0).expect("these tests were built for a GPU");
        }
        GPU.with(|gpu| vec![Device::Cpu, gpu.clone()])
    }
    #[cfg(not(feature = "cuda"))]
    vec![Device::Cpu]
}

/// The layout of a view in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Plain,
    /// The last two axes the other way round; of a vector, every second element.
    Transposed,
    /// Columns of a wider tensor, not from its first.
    Narrowed,
}

impl View {
    /// The view of this kind of the shape, and the shape of its memory.
    fn base_shape(self, shape: &[usize]) -> Vec<usize> {
        let mut base = shape.to_vec();
        let rank = base.len();
        match self {
            View::Transposed if rank > 1 => base.swap(rank - 2, rank - 1),
            View::Transposed => base.push(2),
            View::Narrowed if rank > 0 => base[rank - 1] += 3,
            _ => {}
        }
        base
    }

    /// The view of its memory, of a tensor with so many axes.
    fn of(self, base: &Tensor, rank: usize) -> Result<Tensor> {
        match self {
            View::Transposed if rank < 2 => base.narrow(rank, 1, 1)?.squeeze(rank),
            View::Transposed => base.transpose(rank - 2, rank - 1),
            View::Narrowed if rank > 0 => base.narrow(rank - 1, 1, base.dim(rank - 1)? - 3),
            _ => Ok(base.clone()),
        }
    }
}

pub(crate) fn views() -> impl Strategy<Value = View> {
    prop_oneof![Just(View::Plain), Just(View::Transposed), Just(View::Narrowed)]
}

pub(crate) fn types() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::F32), Just(DType::F16), Just(DType::BF16)]
}

/// Zero, one, primes, and sizes about those of kernels' tiles.
pub(crate) fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0usize), Just(1), Just(2), Just(3), Just(7), Just(13), Just(16), Just(31), Just(65)]
}

pub(crate) fn sizes_from_1() -> impl Strategy<Value = usize> {
    sizes().prop_map(|size| size.max(1))
}

/// On a GPU candle itself refuses tensors of no elements, of which it launches kernels in tests.
pub(crate) fn is_for(device: &Device, sizes: &[usize]) -> bool {
    device.is_cpu() || !sizes.contains(&0)
}

/// Numbers that are the same for the same seed.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    pub(crate) seed: u64,
    pub(crate) device: Device,
    pub(crate) dtype: DType,
}

impl Numbers {
    pub(crate) fn new(seed: u64, device: &Device, dtype: DType) -> Self {
        Self { seed, device: device.clone(), dtype }
    }

    pub(crate) fn sums(&self) -> Sums {
        Sums { dtype: self.dtype, is_gpu: self.device.is_cuda() }
    }

    /// Splitmix64.
    pub(crate) fn next(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From −1 to 1.
    pub(crate) fn tensor(&mut self, shape: &[usize]) -> Result<Tensor> {
        let numbers: Vec<f32> = (0..shape.iter().product())
            .map(|_| (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
            .collect();
        Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(self.dtype)?.to_device(&self.device)
    }

    /// Whole numbers from −3 to 3.
    pub(crate) fn integers(&mut self, shape: &[usize]) -> Result<Tensor> {
        let numbers: Vec<f32> = (0..shape.iter().product()).map(|_| (self.next() % 7) as f32 - 3.0).collect();
        Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(self.dtype)?.to_device(&self.device)
    }

    /// Ids below a number.
    pub(crate) fn ids(&mut self, shape: &[usize], below: usize) -> Result<Tensor> {
        let ids: Vec<u32> =
            (0..shape.iter().product()).map(|_| (self.next() % below.max(1) as u64) as u32).collect();
        Tensor::from_vec(ids, shape, &self.device)
    }

    /// A variable, and a view of it.
    pub(crate) fn operand(&mut self, shape: &[usize], view: View) -> Result<Operand> {
        let base = Var::from_tensor(&self.tensor(&view.base_shape(shape))?)?;
        Ok(Operand { tensor: view.of(&base, shape.len())?, base, view })
    }
}

/// A view of a variable.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    base: Var,
    view: View,
    pub(crate) tensor: Tensor,
}

impl Operand {
    pub(crate) fn near(&self) -> Result<Near> {
        Near::input(&self.tensor)
    }

    /// A variable in f64 with the same numbers.
    pub(crate) fn wide(&self) -> Result<Var> {
        Var::from_tensor(&self.near()?.exact)
    }

    /// The gradient of the view: that of the variable, seen as the view sees it.
    pub(crate) fn gradient(&self, all: &GradStore) -> Result<Tensor> {
        self.view.of(all.get(&self.base).expect("a gradient of every variable"), self.tensor.rank())
    }
}

/// The gradients that follow from the gradient `dy` of `y`.
pub(crate) fn backward(y: &Tensor, dy: &Tensor) -> Result<GradStore> {
    (y * dy)?.sum_all()?.backward()
}

/// Fails unless the gradient of each operand is near enough, and candle's own operations have the same in f64.
pub(crate) fn judge_gradients(
    of: &GradStore,
    wide: &GradStore,
    operands: &[(&str, &Operand, &Var, Near)],
) -> Result<()> {
    for (name, operand, variable, near) in operands {
        if let Some(candle) = wide.get(variable) {
            near.is_of_candle(name, candle)?;
        }
        near.judge(name, &operand.gradient(of)?)?;
    }
    Ok(())
}
