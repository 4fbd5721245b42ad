//! New keys and values become a cache's.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use warpsmith_dsl::attention::cache::{Append, AppendParams, Appended, Kept, Narrowed};
use warpsmith_dsl::float::{Bf16, F16, e4m3_from_f32, e5m2_from_f32};
use warpsmith_dsl::launch::{Global, GlobalMut, Kernel};
use warpsmith_kernels::kv_cache::kv_cache_append;

use super::lengths::{First, Lengths, Step};
use super::{KvCache, Stored};
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::ops::attention::AttentionInput;
use crate::ops::{CHUNK_BYTES, Implementation, repack};
use crate::stream::{Operand, Stream};
use crate::tensor::{DType, Element, Tensor};

/// How a kernel is launched on so many blocks.
type Launch = unsafe fn(&Device, &Stream, u32, AppendParams) -> Result<()>;

/// Launches a kernel.
///
/// # Safety
///
/// The arguments are valid for what the kernel does with them.
unsafe fn launch<K: Kernel<Args = (AppendParams,)>>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    p: AppendParams,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { device.kernel::<K>()?.launch(stream, [blocks, 1, 1], (p,)) }
}

/// The kernels for elements of this type that stay, or become numbers of 8 bits, in whole chunks or one by one.
fn kernel(dtype: DType, is_narrowed: bool, chunks: bool) -> (&'static str, Launch) {
    fn of<A: Append>(chunks: bool) -> (&'static str, Launch)
    where
        kv_cache_append<A, true>: Kernel<Args = (AppendParams,)>,
        kv_cache_append<A, false>: Kernel<Args = (AppendParams,)>,
    {
        if chunks { one::<kv_cache_append<A, true>>() } else { one::<kv_cache_append<A, false>>() }
    }
    fn one<K: Kernel<Args = (AppendParams,)>>() -> (&'static str, Launch) {
        (K::DECLARATION.name, launch::<K>)
    }
    match (dtype, is_narrowed) {
        (DType::F16, true) => of::<Narrowed<F16>>(chunks),
        (DType::Bf16, true) => of::<Narrowed<Bf16>>(chunks),
        (DType::F32, false) => of::<Kept<4>>(chunks),
        _ => of::<Kept<2>>(chunks),
    }
}

impl<T: AttentionInput> KvCache<T> {
    /// Appends a step's rows of `k` and `v`, which fit the cache.
    pub(in super::super) fn append_step(
        &mut self,
        [k, v]: [&Tensor<T>; 2],
        step: &Step,
        stream: &Stream,
    ) -> Result<()> {
        if step.in_order == 0 || self.batch() == 0 {
            return Ok(());
        }
        if let (Stored::Same(stored), Some((rows, before))) = (&self.stored, &step.on_host) {
            return copy([k, v], stored, rows, before, stream);
        }
        if self.device().kind() == DeviceKind::Cpu {
            return self.append_on_cpu([k, v], step, stream);
        }
        // Elements of a head follow each other.
        let in_place = |x: &Tensor<T>| x.shape()[3] <= 1 || x.strides()[3] == 1;
        let rows_of = |x: &Tensor<T>| if in_place(x) { Ok(x.clone()) } else { repack(x).on(stream).run() };
        let (k, v) = (rows_of(k)?, rows_of(v)?);
        let chunks = [&k, &v].into_iter().all(|x| has_chunks(x));
        let is_narrowed = !matches!(self.stored, Stored::Same(_));
        let (_, kernel) = kernel(T::DTYPE, is_narrowed, chunks);
        let [rows, _] = &step.lengths;
        let vector = |tensor: Option<&Tensor<u32>>| tensor.map_or(Global::new(0), Tensor::arg);
        let (first, length) = match &step.first {
            First::All(length) => (None, *length),
            First::Each(first) => (Some(first), 0),
        };
        let next = match &mut self.lengths {
            Lengths::Device { next, .. } => next.arg_mut(),
            Lengths::Host { .. } => GlobalMut::new(0),
        };
        let [k_to, v_to] = self.stored.addresses();
        let key_heads = k.shape()[2];
        let p = AppendParams {
            k: appended(&k, k_to, self.scales[0].as_ref()),
            v: appended(&v, v_to, self.scales[1].as_ref()),
            lengths: vector(first),
            rows: vector(rows.as_ref()),
            next,
            length: length as u32,
            tokens: step.in_order as u32,
            heads: key_heads as u32,
            capacity: self.capacity() as u32,
            is_e5m2: u32::from(matches!(self.stored, Stored::E5m2(_))),
            reserved: 0,
        };
        let blocks = self.batch() as u64 * step.in_order as u64;
        let Some(blocks) = u32::try_from(blocks).ok().filter(|&blocks| blocks < 1 << 31) else {
            return Err(Error::SizeLimit {
                operation: super::OPERATION,
                operand: "k",
                quantity: "number of rows of all sequences",
                limit: "less than 2^31".into(),
                actual: blocks.to_string(),
            });
        };
        let mut used: Vec<&dyn Operand> = vec![&k, &v];
        used.extend(self.stored.operands());
        used.extend(self.scales.iter().flatten().map(|scales| scales as &dyn Operand));
        used.extend(first.map(|first| first as &dyn Operand));
        used.extend(rows.as_ref().map(|rows| rows as &dyn Operand));
        if let Lengths::Device { next, .. } = &self.lengths {
            used.push(next);
        }
        stream.with_operands(&used, || {
            // SAFETY: shapes and devices have been checked; lengths are bounded by the kernel, and what is written is the cache's own. Tensors are freed in the order of their
            // home streams, which `with_operands` makes wait for this work.
            unsafe { kernel(stream.device(), stream, blocks, p) }
        })
    }

    /// What appends `k` and `v`, which fit the cache; on a GPU that copies them only, nothing.
    #[doc(hidden)]
    #[must_use]
    pub fn append_implementation(&self, k: &Tensor<T>, v: &Tensor<T>) -> Implementation {
        let device = self.device();
        let is_narrowed = !matches!(self.stored, Stored::Same(_));
        match device.kind() {
            DeviceKind::Cpu => Implementation::Cpu,
            _ if !is_narrowed && self.device_lengths().is_none() => Implementation::Empty,
            _ => {
                let chunks = [k, v].into_iter().all(has_chunks);
                let blocks = self.batch().saturating_mul(k.shape().get(1).copied().unwrap_or(0));
                let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
                Implementation::kernel(device, kernel(T::DTYPE, is_narrowed, chunks).0, blocks)
            }
        }
    }

    fn append_on_cpu(&mut self, new: [&Tensor<T>; 2], step: &Step, stream: &Stream) -> Result<()> {
        let (batch, capacity) = (self.batch(), self.capacity());
        let before: Vec<usize> = match &step.first {
            First::All(length) => vec![*length; batch],
            First::Each(first) => {
                first.to_vec()?.into_iter().map(|length| capacity.min(length as usize)).collect()
            }
        };
        let rows: Vec<usize> = match (&step.on_host, &step.lengths[0]) {
            (Some((rows, _)), _) => rows.clone(),
            (None, Some(rows)) => {
                rows.to_vec()?.into_iter().map(|rows| step.in_order.min(rows as usize)).collect()
            }
            (None, None) => vec![step.in_order; batch],
        };
        // What is beyond the capacity is left out.
        let kept: Vec<usize> =
            before.iter().zip(&rows).map(|(&length, &rows)| rows.min(capacity - length)).collect();
        match &self.stored {
            Stored::Same(stored) => copy(new, stored, &kept, &before, stream)?,
            Stored::E4m3(stored) => {
                let of = |number| F8E4M3::from_bits(e4m3_from_f32(number) as u8);
                let [k, v] = [narrowed(new[0], &self.scales[0], of)?, narrowed(new[1], &self.scales[1], of)?];
                copy([&k, &v], stored, &kept, &before, stream)?;
            }
            Stored::E5m2(stored) => {
                let of = |number| F8E5M2::from_bits(e5m2_from_f32(number) as u8);
                let [k, v] = [narrowed(new[0], &self.scales[0], of)?, narrowed(new[1], &self.scales[1], of)?];
                copy([&k, &v], stored, &kept, &before, stream)?;
            }
        }
        if let Lengths::Device { next, .. } = &mut self.lengths {
            let after: Vec<u32> =
                before.iter().zip(&kept).map(|(length, rows)| (length + rows) as u32).collect();
            next.write_slice(&after)?;
        }
        Ok(())
    }
}

/// Whether kernels may read whole chunks: heads begin at multiples of 16 bytes and have whole chunks.
fn has_chunks<T: Element>(x: &Tensor<T>) -> bool {
    let strides = x.shape().iter().zip(x.strides()).take(3).filter(|&(&length, _)| length > 1);
    let columns = x.shape().last().copied().unwrap_or(0);
    let all = strides.fold(columns, |all, (_, &stride)| all | stride) * size_of::<T>();
    (x.arg().address() | all as u64).is_multiple_of(CHUNK_BYTES as u64)
}

fn appended<T: Element>(x: &Tensor<T>, to: u64, scales: Option<&Tensor<f32>>) -> Appended {
    let stride = |axis: usize| x.strides().get(axis).copied().unwrap_or(0) as u64;
    Appended {
        from: Global::new(x.arg().address()),
        to: GlobalMut::new(to),
        scale: scales.map_or(Global::new(0), Tensor::arg),
        from_sequence: stride(0),
        from_token: stride(1),
        from_head: stride(2),
        columns: x.shape().last().copied().unwrap_or(0) as u32,
        scale_head: u32::from(scales.is_some_and(|scales| scales.len() > 1)),
    }
}

/// Copies rows behind those that sequences have; those that are alike together.
fn copy<E: Element>(
    new: [&Tensor<E>; 2],
    stored: &[Tensor<E>; 2],
    rows: &[usize],
    before: &[usize],
    stream: &Stream,
) -> Result<()> {
    let mut first = 0;
    while first < rows.len() {
        let (length, count) = (before[first], rows[first]);
        let is_alike = |&b: &usize| before[b] == length && rows[b] == count;
        let end = (first..rows.len()).take_while(is_alike).last().unwrap_or(first) + 1;
        for (cached, new) in stored.iter().zip(new) {
            let mut to = cached.slice(0, first..end)?.slice(1, length..length + count)?;
            if !to.is_empty() {
                to.copy_from_on(&new.slice(0, first..end)?.slice(1, 0..count)?, stream)?;
            }
        }
        first = end;
    }
    Ok(())
}

/// Numbers of 8 bits that stand for those of `x`.
fn narrowed<T: AttentionInput, K: Element>(
    x: &Tensor<T>,
    scales: &Option<Tensor<f32>>,
    narrow: impl Fn(f32) -> K,
) -> Result<Tensor<K>> {
    let scales = scales.as_ref().map(Tensor::to_vec).transpose()?;
    let (heads, columns) = (x.shape()[2], x.shape()[3]);
    let scale = |index: usize| match &scales {
        Some(scales) if scales.len() > 1 => scales[index / columns.max(1) % heads.max(1)],
        Some(scales) => scales.first().copied().unwrap_or(1.0),
        None => 1.0,
    };
    let elements: Vec<K> = x
        .to_vec()?
        .into_iter()
        .enumerate()
        .map(|(index, number)| narrow(number.to_f32() / scale(index)))
        .collect();
    Tensor::from_slice(x.device(), &elements, x.shape())
}

/// The types whose elements have 16 bits, of which numbers of 8 are made on a GPU.
pub(super) fn has_narrowing<T: Element>(device: &Device) -> bool {
    device.kind() == DeviceKind::Cpu || T::DTYPE == f16::DTYPE || T::DTYPE == bf16::DTYPE
}
