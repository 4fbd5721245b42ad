//! Tables of experts: rows in a device's memory, made of the vectors of all experts a part at a time.

use std::ops::Range;

use rayon::prelude::*;
use warpsmith_dsl::experts::ExpertRows;
use warpsmith_dsl::launch::Global;

use crate::cpu::Operand as Number;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::experts::{ExpertFormat, ExpertLayout, ExpertVectors, Part};
use crate::memory::zeros;
use crate::stream::Operand;
use crate::tensor::host::HostView;
use crate::tensor::{Element, Tensor};
use crate::trace;
use crate::weights::Weights;

/// The operation's name in errors.
const OPERATION: &str = "ExpertTable";
/// Numbers that are on the host at a time while a table is made.
pub(crate) const NUMBERS_AT_A_TIME: usize = 1 << 22;

/// The experts of a layer: a row for each, on one device.
///
/// Clones share the rows.
#[derive(Clone, Debug)]
pub struct ExpertTable {
    layout: ExpertLayout,
    count: usize,
    rows: Rows,
}

/// Where the rows are.
#[derive(Clone, Debug)]
enum Rows {
    /// On the device, in their order: `[N, row bytes]`.
    Resident(Tensor<u8>),
    /// Those of some experts in slots, of which the last one is zeros and stands for all other experts.
    Part { slots: Tensor<u8>, slot_of: Tensor<u32> },
    /// Some of them in slots on the device, all of them in `host`.
    Cached { slots: Tensor<u8>, slot_of: Tensor<u32>, host: Tensor<u8> },
    /// In memory that the caller keeps: the addresses of slots, of all rows and of the slots' numbers, and how many slots there are.
    Foreign { device: Device, addresses: [u64; 3], slots: usize },
}

impl ExpertTable {
    /// A table of `count` experts whose numbers are all zeros.
    ///
    /// # Errors
    ///
    /// [`Error::SizeLimit`] if there are 2³² experts or more, [`Error::OutOfMemory`] if the device has too little memory.
    pub fn zeros(device: &Device, layout: ExpertLayout, count: usize) -> Result<Self> {
        expect_count(count)?;
        let rows = Tensor::zeros(device, [count, layout.row_bytes()])?;
        Ok(Self { layout, count, rows: Rows::Resident(rows) })
    }

    /// A table of experts with the vectors u `[N, hidden, D]`, w likewise if the units are gated, and v `[N, hidden, O]`, or `[N, D]` and
    /// `[N, O]` for one hidden unit, on their device. Besides the table, no more than a part of it is held on the host at a time.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] and [`Error::DeviceMismatch`] if the tensors do not fit together, those of [`ExpertLayout::new`] and
    /// [`ExpertLayout::pack`], and what copying may return.
    pub fn from_tensors<T: Element + Number>(
        format: ExpertFormat,
        u: &Tensor<T>,
        w: Option<&Tensor<T>>,
        v: &Tensor<T>,
    ) -> Result<Self> {
        for (operand, tensor) in [("w", w), ("v", Some(v))] {
            if let Some(tensor) = tensor {
                u.device().expect_same(OPERATION, operand, tensor.device())?;
            }
        }
        let (layout, count) = sizes(format, u.shape(), w.map(Tensor::shape), v.shape())?;
        Self::from_parts(OPERATION, u.device(), layout, count, |range| {
            let part = |tensor: &Tensor<T>| -> Result<Vec<f32>> {
                let elements = tensor.slice(0, range.clone())?.to_vec()?;
                let mut numbers = zeros(OPERATION, elements.len())?;
                T::widen(&elements, &mut numbers);
                Ok(numbers)
            };
            Ok([part(u)?, w.map(part).transpose()?.unwrap_or_default(), part(v)?])
        })
    }

    /// As [`from_tensors`](Self::from_tensors), of the tensors `u`, `w` and `v` of a file of weights, which have any floating-point type.
    ///
    /// # Errors
    ///
    /// [`Error::Weights`] if there is no such tensor or it has no floating-point type; otherwise as [`from_tensors`](Self::from_tensors).
    pub fn load(
        weights: &Weights,
        [u, v]: [&str; 2],
        w: Option<&str>,
        format: ExpertFormat,
        device: &Device,
    ) -> Result<Self> {
        let w_shape = w.map(|w| weights.expect_shape(w)).transpose()?;
        let (layout, count) = sizes(format, weights.expect_shape(u)?, w_shape, weights.expect_shape(v)?)?;
        Self::from_parts(OPERATION, device, layout, count, |range| {
            let part = |name: &str| weights.rows_converted::<f32>(name, range.clone());
            Ok([part(u)?, w.map(part).transpose()?.unwrap_or_default(), part(v)?])
        })
    }

    /// A table whose experts `range` have the vectors that `part(range)` gives: u, w and v.
    pub(crate) fn from_parts(
        operation: &'static str,
        device: &Device,
        layout: ExpertLayout,
        count: usize,
        mut part: impl FnMut(Range<usize>) -> Result<[Vec<f32>; 3]>,
    ) -> Result<Self> {
        expect_count(count)?;
        let rows = Tensor::uninit(device, [count, layout.row_bytes()])?;
        let mut table = Self { layout, count, rows: Rows::Resident(rows) };
        let numbers = layout.hidden() * (2 * layout.d() + layout.o());
        let at_a_time = (NUMBERS_AT_A_TIME / numbers.max(1)).max(1);
        for first in (0..count).step_by(at_a_time) {
            let range = first..count.min(first + at_a_time);
            let [u, w, v] = part(range.clone())?;
            let mut bytes = zeros(operation, range.len() * layout.row_bytes())?;
            layout.pack_rows_for(operation, ExpertVectors { u: &u, w: &w, v: &v }, &mut bytes)?;
            table.write_rows(first, &bytes)?;
            trace::progress("packing experts", range.end, count);
        }
        Ok(table)
    }

    /// A table whose rows the tensor `rows` `[N, row bytes]` holds, as they are. Codes of e4m3 that are NaN are none for GPUs.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the tensor has other axes, [`Error::Stride`] if it has gaps, [`Error::SizeLimit`] as [`zeros`](Self::zeros).
    pub fn from_rows(layout: ExpertLayout, rows: &Tensor<u8>) -> Result<Self> {
        let count = expect_rows("rows", &layout, rows)?;
        expect_count(count)?;
        Ok(Self { layout, count, rows: Rows::Resident(rows.clone()) })
    }

    /// A table of which some rows are in slots: expert `i` has its row in slot `slot_of[i]` of `slots` `[S, row bytes]`, or in row `i` of `host`
    /// `[N, row bytes]` if there is no such slot. Results do not depend on which rows have slots.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::Stride`] and [`Error::DeviceMismatch`] if the tensors do not fit together, [`Error::Argument`] if there is no
    /// slot, [`Error::SizeLimit`] as [`zeros`](Self::zeros).
    pub fn cached(
        layout: ExpertLayout,
        slots: &Tensor<u8>,
        slot_of: &Tensor<u32>,
        host: &Tensor<u8>,
    ) -> Result<Self> {
        let count = expect_rows("host", &layout, host)?;
        expect_count(count)?;
        let slots_count = expect_rows("slots", &layout, slots)?;
        expect_slots(slots_count)?;
        if slot_of.shape() != [count] || !slot_of.is_contiguous() {
            let (expected, actual) = (format!("[{count}], without gaps"), slot_of.shape().to_vec());
            return Err(Error::Shape { operation: OPERATION, operand: "slot_of", expected, actual });
        }
        slots.device().expect_same(OPERATION, "slot_of", slot_of.device())?;
        slots.device().expect_same(OPERATION, "host", host.device())?;
        let (slots, slot_of, host) = (slots.clone(), slot_of.clone(), host.clone());
        Ok(Self { layout, count, rows: Rows::Cached { slots, slot_of, host } })
    }

    /// A table of which this device has a part: expert `i` has row `slot_of[i]` of `rows`. The last row there is zeros, and stands for the experts that other
    /// devices have: those add nothing to an output, as long as a token's numbers and gates are finite. So the outputs of all parts add up to those of the table.
    ///
    /// The memory is that of `rows`, whose last row has to stay zeros as long as the part is used.
    ///
    /// ```
    /// use warpsmith::ops::peer::{ExpertFormat, ExpertTable, Routing};
    /// use warpsmith::ops::{self, Activation};
    /// use warpsmith::{Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let u = Tensor::from_slice(&device, &[1.0f32, 1.0, 0.0], [3, 1])?;
    /// let v = Tensor::from_slice(&device, &[10.0f32, 100.0, 0.0], [3, 1])?;
    /// // Of four experts, number 3 and number 1 are here.
    /// let rows = ExpertTable::from_tensors(ExpertFormat::F32, &u, None, &v)?;
    /// let part = ExpertTable::part(&rows, &[2, 1, 2, 0])?;
    /// let ids = Tensor::from_slice(&device, &[0u32, 1, 3], [1, 1, 3])?;
    /// let gates = Tensor::from_slice(&device, &[1.0f32; 3], [1, 1, 3])?;
    /// let x = Tensor::from_slice(&device, &[2.0f32], [1, 1])?;
    /// let y = ops::expert_mlp(&x, &Routing { ids, gates }, &part).activation(Activation::Relu).run()?;
    /// assert_eq!(y.to_vec()?, [220.0]);
    /// # Ok::<(), warpsmith::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if `rows` does not hold its rows in their order, its last row is not zeros, or there is no such row as a number names;
    /// [`Error::SizeLimit`] as [`zeros`](Self::zeros), and whatever copying may return.
    pub fn part(rows: &Self, slot_of: &[u32]) -> Result<Self> {
        let wrong = |argument, expected: String, actual: String| {
            Err(Error::Argument { operation: OPERATION, argument, expected, actual })
        };
        expect_count(slot_of.len())?;
        let Rows::Resident(slots) = &rows.rows else {
            return wrong("rows", "a table whose rows are all on the device".into(), "another table".into());
        };
        expect_slots(rows.count)?;
        if slots.slice(0, rows.count - 1..rows.count)?.to_vec()?.iter().any(|&byte| byte != 0) {
            return wrong("rows", "zeros as the last row".into(), "other numbers".into());
        }
        if let Some(slot) = slot_of.iter().find(|slot| **slot as usize >= rows.count) {
            return wrong("slot_of", format!("numbers below {}", rows.count), slot.to_string());
        }
        let (slots, slot_of) = (slots.clone(), Tensor::from_slice(slots.device(), slot_of, [slot_of.len()])?);
        let count = slot_of.len();
        Ok(Self { layout: rows.layout, count, rows: Rows::Part { slots, slot_of } })
    }

    /// As [`cached`](Self::cached), of memory that kernels on `device` reach at these addresses, and that the caller keeps: that of `slots` slots, that
    /// of all rows, and that of the slots' numbers.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedDevice`] on the CPU, which runs no kernels; otherwise as [`cached`](Self::cached).
    ///
    /// # Safety
    ///
    /// Slots and rows begin at multiples of 16 bytes. Whenever an operation uses the table or a clone of it, and until its work
    /// is done, the memory is valid for reads; no address is null. The slots that are named for the experts in use hold their rows. Nothing writes
    /// these meanwhile, nor the slots' numbers.
    pub unsafe fn foreign(
        device: &Device,
        layout: ExpertLayout,
        count: usize,
        slots: usize,
        [slots_at, rows_at, slot_of_at]: [u64; 3],
    ) -> Result<Self> {
        if device.kind() == DeviceKind::Cpu {
            return Err(Error::UnsupportedDevice {
                operation: OPERATION,
                device: device.to_string(),
                expected: "a device that runs kernels, for rows at addresses".into(),
                actual: "the operations' CPU implementations only".into(),
            });
        }
        expect_count(count)?;
        expect_slots(slots)?;
        let rows =
            Rows::Foreign { device: device.clone(), addresses: [slots_at, rows_at, slot_of_at], slots };
        Ok(Self { layout, count, rows })
    }

    /// Sizes and layout of the experts.
    #[must_use]
    pub fn layout(&self) -> &ExpertLayout {
        &self.layout
    }

    /// The number of experts.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The device that the rows are on.
    #[must_use]
    pub fn device(&self) -> &Device {
        match &self.rows {
            Rows::Resident(rows) | Rows::Part { slots: rows, .. } => rows.device(),
            Rows::Cached { host, .. } => host.device(),
            Rows::Foreign { device, .. } => device,
        }
    }

    /// The rows in their order, `[N, row bytes]`.
    fn tensor(&self, operation: &'static str) -> Result<&Tensor<u8>> {
        match &self.rows {
            Rows::Resident(rows) => Ok(rows),
            Rows::Cached { host, .. } => Ok(host),
            Rows::Part { slots, .. } => Err(rows_elsewhere(
                operation,
                format!("one that holds {} of {} rows", slots.shape()[0] - 1, self.count),
            )),
            Rows::Foreign { .. } => {
                Err(rows_elsewhere(operation, "one whose rows are in memory of the caller's".into()))
            }
        }
    }

    /// One of the vectors of all experts, as a view `[N, hidden, D]` or `[N, hidden, O]` of the rows, whose numbers have the type `T`.
    pub(crate) fn vectors<T: Element>(&self, operation: &'static str, part: Part) -> Result<Tensor<T>> {
        debug_assert_eq!(ExpertFormat::of(T::DTYPE), Some(self.layout.format()));
        let Rows::Resident(rows) = &self.rows else {
            return Err(rows_elsewhere(
                operation,
                "one whose rows are in slots, or in memory of the caller's".into(),
            ));
        };
        let (at, length) = self.layout.place(part);
        let size = size_of::<T>();
        let strides = [self.layout.row_bytes() / size, self.layout.unit_bytes() / size, 1];
        let shape = [self.count, self.layout.hidden(), length];
        rows.reinterpreted(at / size, &shape, &strides).ok_or_else(|| Error::Argument {
            operation,
            argument: "the table",
            expected: format!("rows that begin at a multiple of {size} bytes of their memory"),
            actual: "others".into(),
        })
    }

    /// Overwrites the rows from `first` on with `rows`, a whole number of them; not those that are in slots. Codes of e4m3 that are NaN are none
    /// for GPUs.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if these are not whole rows or more than there are, [`Error::Argument`] if they are [in memory of the caller's](Self::foreign),
    /// [`Error::Driver`] if the copy failed.
    pub fn write_rows(&mut self, first: usize, rows: &[u8]) -> Result<()> {
        let (count, bytes) = (self.count, self.layout.row_bytes());
        let end = first.saturating_add(rows.len() / bytes);
        if !rows.len().is_multiple_of(bytes) || end > count {
            return Err(Error::Shape {
                operation: "ExpertTable::write_rows",
                operand: "rows",
                expected: format!("rows of {bytes} bytes, {} of them at most", count.saturating_sub(first)),
                actual: vec![rows.len()],
            });
        }
        self.tensor("ExpertTable::write_rows")?.slice(0, first..end)?.write_slice(rows)
    }

    /// The rows `range`, one after the other.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there are not so many or they are [in memory of the caller's](Self::foreign), [`Error::Driver`] if the copy failed.
    pub fn read_rows(&self, range: Range<usize>) -> Result<Vec<u8>> {
        self.tensor("ExpertTable::read_rows")?.slice(0, range)?.to_vec()
    }

    /// What kernels are told of the rows.
    pub(super) fn arg(&self) -> ExpertRows {
        let ([resident, host, slot_of], slots) = match &self.rows {
            Rows::Resident(rows) => ([rows.arg().address(), 0, 0], self.count),
            Rows::Part { slots, slot_of } => {
                ([slots.arg().address(), 0, slot_of.arg().address()], slots.shape()[0])
            }
            Rows::Cached { slots, slot_of, host } => {
                let addresses = [slots.arg().address(), host.arg().address(), slot_of.arg().address()];
                (addresses, slots.shape()[0])
            }
            Rows::Foreign { addresses, slots, .. } => (*addresses, *slots),
        };
        ExpertRows {
            resident: Global::new(resident),
            host: Global::new(host),
            slot_of: Global::new(slot_of),
            row_bytes: self.layout.row_bytes() as u64,
            count: self.count as u32,
            slots: slots as u32,
        }
    }

    /// The tensors that work on the table reads.
    pub(in crate::ops::peer) fn operands(&self) -> Vec<&dyn Operand> {
        match &self.rows {
            Rows::Resident(rows) => vec![rows],
            Rows::Part { slots, slot_of } => vec![slots, slot_of],
            Rows::Cached { slots, slot_of, host } => vec![slots, slot_of, host],
            Rows::Foreign { .. } => Vec::new(),
        }
    }

    /// Whether `tensor` shares memory with the table.
    pub(in crate::ops::peer) fn shares_memory<T: Element>(&self, tensor: &Tensor<T>) -> bool {
        match &self.rows {
            Rows::Resident(rows) => tensor.shares_memory(rows),
            Rows::Part { slots, slot_of } => tensor.shares_memory(slots) || tensor.shares_memory(slot_of),
            Rows::Cached { slots, slot_of, host } => {
                tensor.shares_memory(slots) || tensor.shares_memory(slot_of) || tensor.shares_memory(host)
            }
            Rows::Foreign { .. } => false,
        }
    }

    /// The rows of a table on the CPU, as they are now.
    pub(super) fn host_rows(&self, operation: &'static str) -> Result<HostRows<'_>> {
        let view = |tensor| Tensor::host_view(tensor, operation);
        let (slots, rows) = match &self.rows {
            Rows::Part { slots, slot_of } => {
                (Some((slots.host_view(operation)?, slot_of.host_view(operation)?)), None)
            }
            Rows::Cached { slots, slot_of, host } => {
                (Some((slots.host_view(operation)?, slot_of.host_view(operation)?)), Some(view(host)?))
            }
            Rows::Resident(_) | Rows::Foreign { .. } => (None, Some(view(self.tensor(operation)?)?)),
        };
        Ok(HostRows { rows, slots })
    }
}

/// A table's rows on the CPU.
pub(super) struct HostRows<'a> {
    rows: Option<HostView<'a, u8>>,
    slots: Option<(HostView<'a, u8>, HostView<'a, u32>)>,
}

impl HostRows<'_> {
    /// The row of an expert; none if there is no such expert.
    pub(super) fn row(&self, id: u32) -> Option<&[u8]> {
        let row_of = |rows: &HostView<'_, u8>, index: u32| -> Option<Range<usize>> {
            let bytes = rows.columns();
            let start = (index as usize).checked_mul(bytes)?;
            (start.checked_add(bytes)? <= rows.slice().len()).then(|| start..start + bytes)
        };
        if let Some((slots, slot_of)) = &self.slots
            && let Some(range) = row_of(slots, *slot_of.slice().get(id as usize)?)
        {
            return Some(&slots.slice()[range]);
        }
        let rows = self.rows.as_ref()?;
        row_of(rows, id).map(|range| &rows.slice()[range])
    }
}

impl ExpertLayout {
    /// [`pack`](Self::pack) of several experts, whose vectors and rows are one after the other.
    ///
    /// # Errors
    ///
    /// As [`pack`](Self::pack).
    pub fn pack_rows(&self, experts: ExpertVectors<'_>, rows: &mut [u8]) -> Result<()> {
        self.pack_rows_for("ExpertLayout::pack_rows", experts, rows)
    }

    /// [`pack_rows`](Self::pack_rows) for `operation`, whose name errors have.
    pub(crate) fn pack_rows_for(
        &self,
        operation: &'static str,
        experts: ExpertVectors<'_>,
        rows: &mut [u8],
    ) -> Result<()> {
        let count = rows.len() / self.row_bytes();
        let lengths = self.lengths().map(|length| length * count);
        let given = [experts.u.len(), experts.w.len(), experts.v.len()];
        if !rows.len().is_multiple_of(self.row_bytes()) {
            return Err(Error::Shape {
                operation,
                operand: "rows",
                expected: format!("whole rows of {} bytes", self.row_bytes()),
                actual: vec![rows.len()],
            });
        }
        if let Some(index) = (0..3).find(|&index| given[index] != lengths[index]) {
            let each = self.lengths()[index];
            return Err(Error::Shape {
                operation,
                operand: ["u", "w", "v"][index],
                expected: format!("{} numbers, {each} for each of {count} experts", lengths[index]),
                actual: vec![given[index]],
            });
        }
        let [of_u, of_w, of_v] = self.lengths();
        rows.par_chunks_exact_mut(self.row_bytes()).enumerate().try_for_each(|(i, row)| {
            let expert = ExpertVectors {
                u: &experts.u[i * of_u..][..of_u],
                w: &experts.w[i * of_w..][..of_w],
                v: &experts.v[i * of_v..][..of_v],
            };
            self.pack(expert, row)
        })
    }
}

/// The layout and the number of experts of these shapes.
fn sizes(
    format: ExpertFormat,
    u: &[usize],
    w: Option<&[usize]>,
    v: &[usize],
) -> Result<(ExpertLayout, usize)> {
    let wrong = |operand, expected: String, actual: &[usize]| {
        Err(Error::Shape { operation: OPERATION, operand, expected, actual: actual.to_vec() })
    };
    let (count, hidden, d) = match *u {
        [count, d] => (count, 1, d),
        [count, hidden, d] => (count, hidden, d),
        _ => return wrong("u", "[N, hidden, D] or [N, D]".into(), u),
    };
    if let Some(w) = w
        && w != u
    {
        return wrong("w", format!("{u:?}, as u has"), w);
    }
    let o = match *v {
        [of_v, o] if of_v == count && hidden == 1 => o,
        [of_v, of_hidden, o] if of_v == count && of_hidden == hidden => o,
        _ => return wrong("v", format!("[{count}, {hidden}, O], as u has {u:?}"), v),
    };
    Ok((ExpertLayout::new(format, d, hidden, o, w.is_some())?, count))
}

/// The error for a tensor that is not whole rows without gaps; else how many they are.
fn expect_rows(operand: &'static str, layout: &ExpertLayout, rows: &Tensor<u8>) -> Result<usize> {
    let &[count, bytes] = rows.shape() else {
        let (expected, actual) = ("two axes".into(), rows.shape().to_vec());
        return Err(Error::Shape { operation: OPERATION, operand, expected, actual });
    };
    if bytes != layout.row_bytes() {
        let expected = format!("[.., {}], the bytes of a row", layout.row_bytes());
        return Err(Error::Shape { operation: OPERATION, operand, expected, actual: rows.shape().to_vec() });
    }
    // Kernels read chunks of 16 bytes.
    if !rows.is_contiguous() || !rows.arg().address().is_multiple_of(16) {
        let (expected, actual) =
            ("rows without gaps, from a multiple of 16 bytes on".into(), rows.strides().to_vec());
        return Err(Error::Stride { operation: OPERATION, operand, expected, actual });
    }
    Ok(count)
}

fn expect_slots(slots: usize) -> Result<()> {
    if slots == 0 {
        return Err(Error::Argument {
            operation: OPERATION,
            argument: "number of slots",
            expected: "at least 1".into(),
            actual: "0".into(),
        });
    }
    expect_count(slots)
}

fn expect_count(count: usize) -> Result<()> {
    if u32::try_from(count).is_ok() {
        return Ok(());
    }
    let (limit, actual) = (format!("at most {}", u32::MAX), count.to_string());
    Err(Error::SizeLimit {
        operation: OPERATION,
        operand: "experts",
        quantity: "number of rows",
        limit,
        actual,
    })
}

/// The error for a table that does not hold all of its rows.
fn rows_elsewhere(operation: &'static str, actual: String) -> Error {
    Error::Argument {
        operation,
        argument: "the table",
        expected: "one that holds all its rows".into(),
        actual,
    }
}
