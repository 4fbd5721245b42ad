//! Numbers and how far off a correct result may be: error bounds that follow a computation step by step.
//!
//! u is 2⁻²⁴, half a unit in the last place of an f32 near 1. Each step adds the roundings that it makes to what its
//! operands are off by. All is computed with candle's
//! operations in f64, whose own roundings are covered by the slack of [`Near::judge`].

use candle_core::{D, DType, Device, Result, Tensor};

/// Half a unit in the last place of an f32 near 1.
pub(crate) const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Tensors in f64 on the CPU: what a number is, and how far off it may be.
#[derive(Clone, Debug)]
pub(crate) struct Near {
    pub(crate) exact: Tensor,
    pub(crate) error: Tensor,
}

/// How sums of products are added up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sums {
    pub(crate) dtype: DType,
    pub(crate) is_gpu: bool,
}

impl Sums {
    /// What a sum of k products is off by, relative to the sum of their magnitudes.
    ///
    /// The CPU adds blocks of 128 products, then the blocks. Tensor cores add 8 products of 16 bits and the sum at a
    /// time, truncated: less than (K + 8) · 2u. Of f32 they multiply
    /// three of four products of parts, which drops less than 2⁻¹⁹, and add those of a step of 8 with at most 42u,
    /// and a rounding for each step.
    pub(crate) fn relative(self, k: usize) -> f64 {
        match (self.is_gpu, self.dtype) {
            (false, _) => (k.min(128) + k.div_ceil(128) + 1) as f64 * U,
            (true, DType::F32) => 2f64.powi(-19) + (42 + k.div_ceil(8) + 1) as f64 * U,
            (true, _) => (k + 8) as f64 * 2.0 * U,
        }
    }
}

/// Rounding to a type: relative, and absolute for subnormal numbers.
fn rounding(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F16 => (2f64.powi(-11), 2f64.powi(-25)),
        DType::BF16 => (2f64.powi(-8), 2f64.powi(-134)),
        _ => (U, 2f64.powi(-150)),
    }
}

impl Near {
    /// An input, which is what it is.
    pub(crate) fn input(tensor: &Tensor) -> Result<Self> {
        let exact = tensor.detach().to_device(&Device::Cpu)?.to_dtype(DType::F64)?.contiguous()?;
        Ok(Self { error: exact.zeros_like()?, exact })
    }

    fn new(exact: Tensor, error: Tensor) -> Self {
        Self { exact, error }
    }

    /// The largest magnitude that the number may have.
    fn most(&self) -> Result<Tensor> {
        self.exact.abs()? + &self.error
    }

    /// The same after so many roundings to f32.
    fn after(self, roundings: f64) -> Result<Self> {
        let error = (&self.error + self.most()?.affine(roundings * U * 1.001, 1e-37)?)?;
        Ok(Self::new(self.exact, error))
    }

    /// The same rounded to a type.
    pub(crate) fn rounded(self, dtype: DType) -> Result<Self> {
        let (relative, absolute) = rounding(dtype);
        let error = (&self.error + self.most()?.affine(relative, absolute)?)?;
        Ok(Self::new(self.exact, error))
    }

    pub(crate) fn view(&self, view: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self::new(view(&self.exact)?.contiguous()?, view(&self.error)?.contiguous()?))
    }

    pub(crate) fn t(&self) -> Result<Self> {
        self.view(|x| x.transpose(D::Minus2, D::Minus1))
    }

    /// The product of matrices, with equal leading axes.
    pub(crate) fn matmul(&self, other: &Self, sums: Sums) -> Result<Self> {
        let k = self.exact.dim(D::Minus1)?;
        if k == 0 || self.exact.elem_count() == 0 || other.exact.elem_count() == 0 {
            let mut shape = self.exact.dims().to_vec();
            *shape.last_mut().unwrap() = other.exact.dim(D::Minus1)?;
            let zeros = Tensor::zeros(shape, DType::F64, &Device::Cpu)?;
            return Ok(Self::new(zeros.clone(), zeros));
        }
        let exact = self.exact.matmul(&other.exact)?;
        let most = self.most()?.matmul(&other.most()?)?;
        let of_terms = (&most - self.exact.abs()?.matmul(&other.exact.abs()?)?)?;
        let error = (of_terms + most.affine(sums.relative(k), k as f64 * 1.2e-38)?)?;
        Ok(Self::new(exact, error))
    }

    pub(crate) fn add(&self, other: &Self) -> Result<Self> {
        let exact = self.exact.broadcast_add(&other.exact)?;
        Self::new(exact, self.error.broadcast_add(&other.error)?).after(1.0)
    }

    pub(crate) fn sub(&self, other: &Self) -> Result<Self> {
        self.add(&Self::new(other.exact.neg()?, other.error.clone()))
    }

    pub(crate) fn mul(&self, other: &Self) -> Result<Self> {
        let exact = self.exact.broadcast_mul(&other.exact)?;
        let most = self.most()?.broadcast_mul(&other.most()?)?;
        Self::new(exact.clone(), (most - exact.abs()?)?).after(1.0)
    }

    /// Times a number that is exact, or is rounded itself.
    pub(crate) fn times(&self, factor: f64) -> Result<Self> {
        let (exact, error) = (self.exact.affine(factor, 0.0)?, self.error.affine(factor.abs(), 0.0)?);
        Self::new(exact, error).after(2.0)
    }

    /// The sum over an axis, which stays: of n numbers each passes through at most n roundings, in whatever order.
    pub(crate) fn sum(&self, axis: usize) -> Result<Self> {
        let count = self.exact.dim(axis)? as f64;
        let error = (self.error.sum_keepdim(axis)?
            + self.most()?.sum_keepdim(axis)?.affine(count * U * 1.001, 0.0)?)?;
        Ok(Self::new(self.exact.sum_keepdim(axis)?, error))
    }

    pub(crate) fn sum_last(&self) -> Result<Self> {
        self.sum(self.exact.rank() - 1)
    }

    /// The mean over the last axis.
    pub(crate) fn mean_last(&self) -> Result<Self> {
        let count = self.exact.dim(D::Minus1)? as f64;
        self.sum_last()?.times(1.0 / count)
    }

    /// A function with the values `exact`, whose slope is at most `slope` in magnitude over all that the argument
    /// may be, evaluated to `ulps` · u of its value.
    pub(crate) fn map(&self, exact: Tensor, slope: &Tensor, ulps: f64) -> Result<Self> {
        let error = self.error.mul(slope)?;
        Self::new(exact, error).after(ulps)
    }

    /// 1 / √(x + ε), for an argument that is a sum of squares.
    pub(crate) fn inverse_root(&self, epsilon: f64) -> Result<Self> {
        let least = ((&self.exact - &self.error)?.relu()? + epsilon)?;
        let slope = least.powf(-1.5)?.affine(0.5, 0.0)?;
        self.map((&self.exact + epsilon)?.powf(-0.5)?, &slope, 4.0)
    }

    /// The exponential. The argument is multiplied by log₂ e in f32 at first: two roundings, which the exponential
    /// multiplies by the argument.
    pub(crate) fn exp(&self) -> Result<Self> {
        let argument = (&self.error + self.exact.abs()?.affine(2.0 * U, 0.0)?)?;
        let exact = self.exact.exp()?;
        // e^(x + δ) − e^x, as a slope times δ.
        let error = (&exact * argument.exp()?.affine(1.0, -1.0)?)?;
        Self::new(exact, error).after(8.0)
    }

    /// The softmax of the last axis. The largest number is subtracted first, which is exact within its own error.
    pub(crate) fn softmax(&self) -> Result<Self> {
        let most = self.exact.max_keepdim(D::Minus1)?;
        let most = Self::new(most.clone(), most.zeros_like()?);
        let exponentials = self.sub(&most)?.exp()?;
        let sum = exponentials.sum_last()?;
        // 1 / sum, of a sum of at least 1 − its error.
        let least = (&sum.exact - &sum.error)?;
        let inverse = sum.map(sum.exact.recip()?, &least.sqr()?.recip()?, 2.0)?;
        exponentials.mul(&inverse)
    }

    /// Fails if a result is further off than this and its last rounding.
    pub(crate) fn judge(&self, name: &str, got: &Tensor) -> Result<()> {
        let dtype = got.dtype();
        assert_eq!(got.dims(), self.exact.dims(), "{name}: the shape");
        let numbers = got.detach().to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
        let bound = self.clone().rounded(dtype)?;
        let flat = |x: &Tensor| x.flatten_all()?.to_vec1::<f64>();
        let all = flat(&numbers)?.into_iter().zip(flat(&self.exact)?).zip(flat(&bound.error)?);
        for (index, ((got, exact), error)) in all.enumerate() {
            let off = if got == exact { 0.0 } else { (got - exact).abs() };
            assert!(
                off <= error * (1.0 + 1e-9),
                "{name}[{index}]: {got} for {exact}: off by {off:e}, allowed {error:e}"
            );
        }
        Ok(())
    }

    /// Fails if the number is not what candle's own operations give in f64.
    pub(crate) fn is_of_candle(&self, name: &str, candle: &Tensor) -> Result<()> {
        let flat = |x: &Tensor| x.flatten_all()?.to_vec1::<f64>();
        let scale = flat(&self.exact)?.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
        for (here, there) in flat(&self.exact)?.into_iter().zip(flat(candle)?) {
            assert!((here - there).abs() <= 1e-10 * scale, "{name}: {here} here, {there} of candle's");
        }
        assert_eq!(self.exact.elem_count(), candle.elem_count(), "{name}: the shape");
        Ok(())
    }
}
