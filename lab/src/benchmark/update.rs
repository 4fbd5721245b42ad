//! Measuring generated low-rank updates: alone, and with a linear layer beside that layer by itself.

use std::rc::Rc;

use half::{bf16, f16};
use warpsmith::device::Device;
use warpsmith::error::{Error, Result};
use warpsmith::layers::{GeneratedUpdate, Linear, UpdatedLinear};
use warpsmith::ops::update::{LinearUpdateOp, UpdateInput, UpdateOp, Way};
use warpsmith::ops::{self, Implementation};
use warpsmith::stream::Stream;
use warpsmith::tensor::{DType, Tensor};
use warpsmith::weights::FloatElement;

use super::{Options, Subject, Timing, interleaved, sets_beyond_cache};
use crate::cases::UpdateCase;

/// The operation's name in errors.
const OPERATION: &str = "benchmark::generated_update";

/// What a measurement of generated low-rank updates found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UpdateMeasurement {
    /// What ran.
    pub implementation: Implementation,
    /// The time of the operation.
    pub timing: Timing,
    /// The time of the linear operation without the updates; none of an update alone.
    pub base: Option<Timing>,
    /// The time of the linear operation and then the updates, added to its result; none of an update alone.
    pub unfused: Option<Timing>,
    /// Floating-point operations of the operation.
    pub flops: f64,
    /// Bytes that it must read and write.
    pub bytes: f64,
}

impl UpdateMeasurement {
    /// What the updates cost beside the linear operation, as a fraction of it.
    #[must_use]
    pub fn overhead(&self) -> Option<f64> {
        Some(self.timing.median.as_secs_f64() / self.base?.median.as_secs_f64() - 1.0)
    }

    /// The time of the unfused sequence in units of the operation's: above 1, fusing pays.
    #[must_use]
    pub fn speedup(&self) -> Option<f64> {
        Some(self.unfused?.median.as_secs_f64() / self.timing.median.as_secs_f64())
    }

    /// 10¹² bytes a second.
    #[must_use]
    pub fn terabytes_per_second(&self) -> f64 {
        self.timing.tera_per_second(self.bytes)
    }
}

/// Generated low-rank updates ready to be measured, on the same sets of operands, through which the launches rotate.
pub struct UpdateSubjects {
    /// The operation: the update alone, or together with the linear layer.
    pub operation: Box<dyn Subject>,
    /// The linear layer by itself; none of an update alone.
    pub base: Option<Box<dyn Subject>>,
    /// The linear layer, then the updates added to its result; none of an update alone.
    pub unfused: Option<Box<dyn Subject>>,
    /// What the operation runs.
    pub implementation: Implementation,
    /// Floating-point operations of the operation.
    pub flops: f64,
    /// Bytes that it must read and write.
    pub bytes: f64,
}

/// Measures one operation on `device`, and what it is compared with, interleaved. Of the case, sizes, type, ranks, bias and activation
/// count; each token has codes of its own.
///
/// # Errors
///
/// [`Error::Type`] if the case's type is not f16, bf16 or f32, [`Error::SizeLimit`] or [`Error::OutOfMemory`] if the host cannot
/// hold its operands; otherwise whatever the operations return.
pub fn generated_update(device: &Device, case: &UpdateCase, options: &Options) -> Result<UpdateMeasurement> {
    let stream = device.default_stream();
    let UpdateSubjects { mut operation, mut base, mut unfused, implementation, flops, bytes } =
        update_subjects(&stream, case)?;
    let mut subjects: Vec<&mut dyn Subject> = vec![&mut *operation];
    subjects.extend(base.as_mut().map(|base| &mut **base as &mut dyn Subject));
    subjects.extend(unfused.as_mut().map(|unfused| &mut **unfused as &mut dyn Subject));
    let timings = interleaved(&stream, &mut subjects, options)?;
    let (base, unfused) = (timings.get(1).copied(), timings.get(2).copied());
    Ok(UpdateMeasurement { implementation, timing: timings[0], base, unfused, flops, bytes })
}

/// Measures every way in which `device` can compute the operation of a case, interleaved; the first is that which it takes.
///
/// # Errors
///
/// As [`generated_update`].
#[doc(hidden)]
pub fn ways_of_update(
    device: &Device,
    case: &UpdateCase,
    options: &Options,
) -> Result<Vec<(Option<Way>, Timing)>> {
    case.check_sizes(OPERATION)?;
    match case.dtype {
        DType::F16 => ways::<f16>(device, case, options),
        DType::Bf16 => ways::<bf16>(device, case, options),
        _ => ways::<f32>(device, case, options),
    }
}

fn ways<T: UpdateInput + FloatElement>(
    device: &Device,
    case: &UpdateCase,
    options: &Options,
) -> Result<Vec<(Option<Way>, Timing)>> {
    let stream = device.default_stream();
    let sets = Rc::new(sets::<T>(&stream, case)?);
    let mut launches = Vec::new();
    for way in std::iter::once(None).chain(Way::all().into_iter().map(Some)) {
        let mut one = Launches { sets: sets.clone(), stream: stream.clone(), kind: Kind::Operation, way };
        match one.enqueue(0) {
            Ok(()) => launches.push(one),
            // There is no such way for this case.
            Err(Error::Argument { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let mut subjects: Vec<&mut dyn Subject> =
        launches.iter_mut().map(|one| one as &mut dyn Subject).collect();
    let timings = interleaved(&stream, &mut subjects, options)?;
    Ok(launches.iter().map(|one| one.way).zip(timings).collect())
}

/// Places the operands of `case` on the stream's device.
///
/// # Errors
///
/// As [`generated_update`].
pub fn update_subjects(stream: &Stream, case: &UpdateCase) -> Result<UpdateSubjects> {
    case.check_sizes(OPERATION)?;
    match case.dtype {
        DType::F16 => subjects::<f16>(stream, case),
        DType::Bf16 => subjects::<bf16>(stream, case),
        DType::F32 => subjects::<f32>(stream, case),
        actual => Err(Error::Type {
            operation: OPERATION,
            operand: "x",
            expected: "f16, bf16 or f32".into(),
            actual,
        }),
    }
}

/// Operands of one launch. Updates and layers share their memory with what is launched.
struct Set<T: UpdateInput> {
    x: Tensor<T>,
    layer: Option<UpdatedLinear<T>>,
    updates: Vec<GeneratedUpdate<T>>,
    codes: Vec<Tensor<T>>,
    y: Tensor<T>,
}

impl<T: UpdateInput> Set<T> {
    fn alone(&self) -> Option<UpdateOp<'_, T>> {
        let mut parts = self.updates.iter().zip(&self.codes);
        let (first, codes) = parts.next()?;
        let op = ops::generated_update(&self.x, first.v(), codes, first.u(), first.scaling());
        Some(parts.fold(op, |op, (update, codes)| op.and(update.v(), codes, update.u(), update.scaling())))
    }

    fn bolted_on(&self) -> Result<Option<LinearUpdateOp<'_, T>>> {
        let codes: Vec<_> = self.codes.iter().collect();
        self.layer.as_ref().map_or(Ok(None), |layer| layer.operation(&self.x, &codes))
    }

    fn base(&self) -> Option<ops::linear::LinearOp<'_, T, T>> {
        let base = self.layer.as_ref()?.base();
        Some(ops::linear(&self.x, base.weight()).bias(base.bias()).activation(base.activation()))
    }
}

/// Which of the operations on a set is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Operation,
    Base,
    Unfused,
}

struct Launches<T: UpdateInput> {
    sets: Rc<Vec<Set<T>>>,
    stream: Stream,
    kind: Kind,
    way: Option<Way>,
}

impl<T: UpdateInput> Subject for Launches<T> {
    fn enqueue(&mut self, index: usize) -> Result<()> {
        let set = &self.sets[index % self.sets.len()];
        let (stream, mut y) = (&self.stream, set.y.clone());
        if self.kind == Kind::Operation
            && let Some(op) = set.bolted_on()?
        {
            return op.way(self.way).on(stream).run_into(&mut y);
        }
        if self.kind != Kind::Operation
            && let Some(base) = set.base()
        {
            base.on(stream).run_into(&mut y)?;
        }
        match (self.kind, set.alone()) {
            (Kind::Operation, Some(op)) => op.way(self.way).on(stream).run_into(&mut y),
            (Kind::Unfused, Some(op)) => op.on(stream).add_to(&mut y),
            _ => Ok(()),
        }
    }
}

/// Bytes that an operation must read and write.
fn bytes<T: UpdateInput>(case: &UpdateCase) -> f64 {
    let (m, k, n, rank) = (case.m, case.k, case.n, case.rank());
    let base_elements = if case.linear { n * k + usize::from(case.bias) * n } else { 0 };
    let elements = m * k + m * n + base_elements + rank * (m + k + n);
    (elements * size_of::<T>()) as f64
}

/// Operands for launches that find none of theirs in the cache.
fn sets<T: UpdateInput + FloatElement>(stream: &Stream, case: &UpdateCase) -> Result<Vec<Set<T>>> {
    let (m, k, n) = (case.m, case.k, case.n);
    let device = stream.device();
    let count = sets_beyond_cache(device, bytes::<T>(case) as u64);
    // One draw for all sets: values decide nothing about time, except that zeros would be faster.
    let draw = |stream: u64, shape: (usize, usize), length: usize| -> Result<Tensor<T>> {
        let drawn = case.data.draw(case.seed, stream, shape, length, f64::from)?;
        let unit = 1.0 / (length.max(1) as f64).sqrt();
        Tensor::from_array(device, &drawn.mapv(|value| T::round(value * unit)))
    };
    let (x, w, bias) = (draw(0, (m, k), 1)?, draw(1, (n, k), k)?, draw(2, (1, n), 1)?.reshape([n])?);
    let mut factors = Vec::with_capacity(case.ranks.len());
    for (index, &rank) in case.ranks.iter().enumerate() {
        let stream = 3 + 3 * index as u64;
        let (v, u) = (draw(stream, (k, rank), k)?, draw(stream + 1, (rank, n), rank)?);
        factors.push((v, u, draw(stream + 2, (m, rank), 1)?));
    }
    let set = || -> Result<Set<T>> {
        let mut updates = Vec::with_capacity(factors.len());
        for (v, u, _) in &factors {
            updates.push(GeneratedUpdate::new(v.deep_clone()?, u.deep_clone()?, 1.0)?);
        }
        let layer = if case.linear {
            let bias = case.bias.then(|| bias.deep_clone()).transpose()?;
            Some(Linear::new(w.deep_clone()?, bias, case.activation)?.attach(updates.iter().cloned())?)
        } else {
            None
        };
        let codes = factors.iter().map(|(_, _, codes)| codes.deep_clone()).collect::<Result<_>>()?;
        Ok(Set { x: x.deep_clone()?, layer, updates, codes, y: Tensor::zeros_on(stream, [m, n])? })
    };
    (0..count).map(|_| set()).collect()
}

fn subjects<T: UpdateInput + FloatElement>(stream: &Stream, case: &UpdateCase) -> Result<UpdateSubjects> {
    let (m, k, n, rank) = (case.m, case.k, case.n, case.rank());
    let bytes = bytes::<T>(case);
    let products = if case.linear { n * k } else { 0 } + rank * (k + n);
    let flops = 2.0 * m as f64 * products as f64;
    let sets = sets::<T>(stream, case)?;
    let implementation = match (sets[0].bolted_on()?, sets[0].alone()) {
        (Some(op), _) => op.implementation()?,
        (None, Some(op)) => op.implementation()?,
        (None, None) => Implementation::Empty,
    };
    let sets = Rc::new(sets);
    let of = |kind| {
        Box::new(Launches { sets: sets.clone(), stream: stream.clone(), kind, way: None }) as Box<dyn Subject>
    };
    Ok(UpdateSubjects {
        operation: of(Kind::Operation),
        base: case.linear.then(|| of(Kind::Base)),
        unfused: case.linear.then(|| of(Kind::Unfused)),
        implementation,
        flops,
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use warpsmith::ops::Implementation;
    use warpsmith::{DType, Device};

    use super::generated_update;
    use crate::benchmark::Options;
    use crate::cases::UpdateCase;

    #[test]
    fn a_measurement_has_what_the_operation_is_compared_with() {
        let options = Options { warm_up: Duration::ZERO, samples: 1, batch: Duration::from_micros(100) };
        let case = UpdateCase { ranks: vec![2, 3], ..UpdateCase::new(DType::F32, 16, 24, 8, 1) };
        let measured = generated_update(&Device::cpu(), &case, &options).expect("it fits");
        assert_eq!(measured.implementation, Implementation::Cpu);
        let (overhead, speedup) = (measured.overhead(), measured.speedup());
        assert!(
            overhead.is_some_and(|overhead| overhead > -1.0) && speedup.is_some_and(|speedup| speedup > 0.0)
        );
        assert_eq!(measured.flops, 2.0 * 16.0 * (24.0 * 8.0 + 5.0 * 32.0));
        assert_eq!(measured.bytes, 4.0 * f64::from(16 * 24 + 16 * 8 + 24 * 8 + 8 + 5 * (16 + 24 + 8)));
        let alone = generated_update(&Device::cpu(), &case.alone(false), &options).expect("it fits");
        assert!(alone.overhead().is_none() && alone.speedup().is_none());
        assert_eq!(alone.flops, 2.0 * 16.0 * 5.0 * 32.0);
    }
}
