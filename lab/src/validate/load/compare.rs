//! Comparing results with those of a run alone, on the device, so that the host waits for no result.
//!
//! A result is compared by a kernel behind it on the stream, which notes what differs in a record and gives the memory the contents that it had before
//! the run. So what a run does not write shows, too, and a result that the operation adds to starts from the same each time. Devices without
//! kernels have no queue that the host could disturb: there it compares.

use std::sync::Arc;

use parking_lot::Mutex;
use warpsmith::device::{Device, DeviceKind};
use warpsmith::error::{Error, Result};
use warpsmith::kernel::{Function, RawArg};
use warpsmith::stream::{Operand, Stream};
use warpsmith::tensor::{DType, Tensor};

use super::work::Output;

/// Threads of a block of the kernel.
const THREADS: u32 = 256;
/// The most blocks of a launch: several for each multiprocessor, each of which goes through the elements.
const MOST_BLOCKS: u64 = 1024;
/// 32-bit words of a record: the first difference, the number of those, and one that is not used.
const WORDS: usize = 4;

/// What a comparison has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Units that differ.
    pub(super) different: u32,
    /// The first unit that differs, and the bits found there.
    pub(super) first: (u32, u32),
}

impl Record {
    const NOTHING: [u32; WORDS] = [u32::MAX, u32::MAX, 0, 0];

    fn of(words: &[u32]) -> Self {
        match *words {
            [bits, index, different, ..] => Self { different, first: (index, bits) },
            _ => Self { different: 0, first: (0, 0) },
        }
    }
}

/// What an output holds before a run, and after one alone.
pub(super) struct Reference {
    pub(super) name: &'static str,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) initial: Vec<u8>,
    pub(super) expected: Vec<u8>,
    /// Both on the device, if that has kernels.
    on_device: Option<[Tensor<u8>; 2]>,
}

impl Reference {
    pub(super) fn new(device: &Device, output: &Output, initial: Vec<u8>, expected: Vec<u8>) -> Result<Self> {
        let upload = |bytes: &[u8]| Tensor::from_slice(device, bytes, [bytes.len()]);
        let on_device = match device.kind() {
            DeviceKind::Cpu => None,
            _ => Some([upload(&initial)?, upload(&expected)?]),
        };
        let (name, dtype, shape) = (output.name(), output.dtype(), output.shape().to_vec());
        let units = expected.len() / unit(dtype);
        if u32::try_from(units).is_err() {
            return Err(Error::SizeLimit {
                operation: "validate::load",
                operand: name,
                quantity: "length",
                limit: format!("at most {} elements", u32::MAX),
                actual: units.to_string(),
            });
        }
        Ok(Self { name, dtype, shape, initial, expected, on_device })
    }

    /// What differs from the bytes expected.
    pub(super) fn compare(&self, got: &[u8]) -> Record {
        let unit = unit(self.dtype);
        let mut record = Record { different: 0, first: (u32::MAX, u32::MAX) };
        for (index, (got, expected)) in got.chunks(unit).zip(self.expected.chunks(unit)).enumerate() {
            if got != expected {
                if record.different == 0 {
                    record.first = (index as u32, bits(got));
                }
                record.different += 1;
            }
        }
        record
    }

    /// The coordinates of a unit's element, its value as it was expected, and as it was found.
    pub(super) fn locate(&self, (index, found): (u32, u32)) -> (Vec<usize>, String, String) {
        let unit = unit(self.dtype);
        let mut element = index as usize * unit / self.dtype.size();
        let mut coordinates = vec![0; self.shape.len()];
        for (coordinate, &length) in coordinates.iter_mut().zip(&self.shape).rev() {
            *coordinate = element % length.max(1);
            element /= length.max(1);
        }
        let start = index as usize * unit;
        let expected = self.expected.get(start..start + unit).map_or(0, bits);
        (coordinates, value(self.dtype, expected), value(self.dtype, found))
    }
}

/// Bytes that are compared at a time.
fn unit(dtype: DType) -> usize {
    dtype.size().min(size_of::<u32>())
}

fn bits(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u32::from(byte))
}

/// A value with its bits; a half of a longer one as its bits alone.
fn value(dtype: DType, bits: u32) -> String {
    let number = match dtype {
        DType::F16 => half::f16::from_bits(bits as u16).to_string(),
        DType::Bf16 => half::bf16::from_bits(bits as u16).to_string(),
        DType::F32 => f32::from_bits(bits).to_string(),
        DType::U32 | DType::U8 => bits.to_string(),
        DType::I32 => bits.cast_signed().to_string(),
        _ => return format!("{bits:#x}"),
    };
    format!("{number} ({bits:#0width$x})", width = 2 + 2 * unit(dtype))
}

/// Compares on a device.
pub(super) struct Comparer {
    /// The kernels for units of 1, 2 and 4 bytes; none on devices without kernels.
    kernels: Option<[Function; 3]>,
}

impl Comparer {
    pub(super) fn new(device: &Device) -> Result<Self> {
        if device.kind() == DeviceKind::Cpu {
            return Ok(Self { kernels: None });
        }
        let kernel = |width: &str, bytes: usize| -> Result<Function> {
            let text =
                include_str!("compare.ptx").replace("WIDTH", width).replace("BYTES", &bytes.to_string());
            device.load_ptx(&format!("compare.{width}.ptx"), &text)?.function("compare_and_restore")
        };
        Ok(Self { kernels: Some([kernel("u8", 1)?, kernel("u16", 2)?, kernel("u32", 4)?]) })
    }

    /// Enqueues the comparison of `outputs` with `references`, noted in the records from `first` on, and their contents from before the run.
    pub(super) fn check(
        &self,
        stream: &Stream,
        outputs: &mut [Output],
        references: &[Arc<Reference>],
        ledger: &Ledger,
        first: usize,
    ) -> Result<()> {
        for (index, (output, reference)) in outputs.iter_mut().zip(references).enumerate() {
            match (&self.kernels, &reference.on_device, &ledger.place) {
                (Some(kernels), Some(on_device), Place::Device { records, .. }) => {
                    let record =
                        records.arg().address() + ((first + index) * WORDS * size_of::<u32>()) as u64;
                    enqueue(stream, kernels, output, reference, on_device, (records, record))?;
                }
                (_, _, Place::Host { records, .. }) => {
                    let found = reference.compare(&output.read()?);
                    output.write(&reference.initial)?;
                    if let Some(record) = records.lock().get_mut(first + index) {
                        *record = found;
                    }
                }
                _ => {
                    return Err(Error::Argument {
                        operation: "validate::load",
                        argument: "device",
                        expected: "that of kernels, references and records".into(),
                        actual: stream.device().to_string(),
                    });
                }
            }
        }
        Ok(())
    }
}

fn enqueue(
    stream: &Stream,
    kernels: &[Function; 3],
    output: &Output,
    reference: &Reference,
    [initial, expected]: &[Tensor<u8>; 2],
    (records, record): (&Tensor<u32>, u64),
) -> Result<()> {
    let unit = unit(reference.dtype);
    let kernel = &kernels[unit.trailing_zeros() as usize];
    let count = (reference.expected.len() / unit) as u64;
    if count == 0 {
        return Ok(());
    }
    let blocks = count.div_ceil(THREADS.into()).min(MOST_BLOCKS) as u32;
    let values = [output.address(), expected.arg().address(), initial.arg().address(), count, record];
    let arguments = values
        .each_ref()
        .map(|value| RawArg { data: std::ptr::from_ref(value).cast(), size: size_of_val(value) });
    // The references are everybody's, and read only: they were written before any run, and are freed after all of them. Ordered with their home stream,
    // they would order the runs of all threads.
    stream.with_operands(&[output.operand(), records as &dyn Operand], || {
        // SAFETY: the entry takes three addresses of memory of `count` units of its width, that number, and the address of a record of 16 bytes within
        // `records`. Output and reference have the same length. Output and records are ordered with their other uses; the references live, and nobody
        // writes to them, until all streams have been waited for.
        unsafe { kernel.launch(stream, [blocks, 1, 1], [THREADS, 1, 1], 0, &arguments) }
    })
}

/// The records of one stream's comparisons, and rows of them that are kept until they are read.
pub(super) struct Ledger {
    capacity: usize,
    place: Place,
}

#[allow(clippy::large_enum_variant, reason = "there is one for each work")]
enum Place {
    Device { records: Tensor<u32>, blank: Tensor<u32>, kept: Tensor<u32> },
    Host { records: Mutex<Vec<Record>>, kept: Mutex<Vec<Vec<Record>>> },
}

impl Ledger {
    /// For `capacity` comparisons at a time, and `rows` times that many until they are read, on the device's default stream.
    pub(super) fn new(device: &Device, capacity: usize, rows: usize) -> Result<Self> {
        let place = if device.kind() == DeviceKind::Cpu {
            let nothing = Record::of(&Record::NOTHING);
            let (records, kept) = (vec![nothing; capacity], vec![vec![nothing; capacity]; rows]);
            Place::Host { records: Mutex::new(records), kept: Mutex::new(kept) }
        } else {
            let nothing = Record::NOTHING.repeat(capacity);
            let blank = Tensor::from_slice(device, &nothing, [1, capacity * WORDS])?;
            let kept = Tensor::zeros(device, [rows, capacity * WORDS])?;
            Place::Device { records: blank.deep_clone()?, blank, kept }
        };
        Ok(Self { capacity, place })
    }

    /// How many comparisons there is room for at a time.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Enqueues the records' way to a row, and that they are blank after it.
    pub(super) fn keep(&self, row: usize) -> Result<()> {
        match &self.place {
            Place::Device { records, blank, kept } => {
                kept.slice(0, row..row + 1)?.copy_from(records)?;
                records.clone().copy_from(blank)
            }
            Place::Host { records, kept } => {
                let blank = vec![Record::of(&Record::NOTHING); self.capacity];
                let records = std::mem::replace(&mut *records.lock(), blank);
                if let Some(kept) = kept.lock().get_mut(row) {
                    *kept = records;
                }
                Ok(())
            }
        }
    }

    /// The first `rows` rows, once all work before is done.
    pub(super) fn read(&self, rows: usize) -> Result<Vec<Vec<Record>>> {
        match &self.place {
            Place::Device { kept, .. } => {
                let words = kept.slice(0, 0..rows)?.to_vec()?;
                let row = |row: &[u32]| row.chunks(WORDS).map(Record::of).collect();
                Ok(words.chunks((self.capacity * WORDS).max(1)).map(row).collect())
            }
            Place::Host { kept, .. } => Ok(kept.lock().iter().take(rows).cloned().collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(device: &Device) -> Result<()> {
        let stream = device.new_stream()?;
        let expected: Vec<u16> = (0..1000).collect();
        let mut got = expected.clone();
        (got[7], got[900]) = (70, 9);
        let (comparer, ledger) = (Comparer::new(device)?, Ledger::new(device, 3, 2)?);
        let initial = vec![half::f16::ONE; 1000];
        let tensor = |bits: &[u16]| {
            let values: Vec<_> = bits.iter().map(|&bits| half::f16::from_bits(bits)).collect();
            Tensor::from_slice(device, &values, [10, 100])
        };
        let bytes = |values: &[u16]| bytemuck::cast_slice::<u16, u8>(values).to_vec();
        let memory = tensor(&got)?;
        let mut outputs = [Output::new("y", &memory)?];
        let ones = bytes(&initial.iter().map(|one| one.to_bits()).collect::<Vec<_>>());
        let reference = Arc::new(Reference::new(device, &outputs[0], ones, bytes(&expected))?);
        comparer.check(&stream, &mut outputs, std::slice::from_ref(&reference), &ledger, 1)?;
        ledger.keep(0)?;
        assert_eq!(memory.to_vec()?, initial, "the contents from before");
        // What the run left out differs in all but one element.
        comparer.check(&stream, &mut outputs, std::slice::from_ref(&reference), &ledger, 2)?;
        ledger.keep(1)?;
        let rows = ledger.read(2)?;
        let nothing = Record::of(&Record::NOTHING);
        assert_eq!(rows[0], [nothing, Record { different: 2, first: (7, 70) }, nothing]);
        assert_eq!(rows[1], [nothing, nothing, Record { different: 1000, first: (0, 0x3c00) }]);
        let (at, expected, found) = reference.locate((900, 9));
        assert_eq!(at, [9, 0]);
        assert!(expected.ends_with("(0x0384)") && found.ends_with("(0x0009)"), "{expected} {found}");
        Ok(())
    }

    #[test]
    fn what_differs_is_counted_located_and_put_back() -> Result<()> {
        check(&Device::cpu())?;
        check(&Device::emulator())
    }

    #[test]
    fn every_width_is_compared_whole() -> Result<()> {
        let device = Device::emulator();
        let (stream, comparer) = (device.default_stream(), Comparer::new(&device)?);
        let ledger = Ledger::new(&device, 3, 1)?;
        fn last<T: warpsmith::Element>(
            device: &Device,
            one: T,
        ) -> Result<([Output; 1], [Arc<Reference>; 1])> {
            let zeros = Tensor::<T>::zeros(device, [333])?;
            let expected = zeros.deep_clone()?;
            expected.slice(0, 332..333)?.write_slice(&[one])?;
            let output = Output::new("y", &zeros)?;
            let read = |tensor: &Tensor<T>| Output::new("", tensor).and_then(|output| output.read());
            let reference = Reference::new(device, &output, read(&zeros)?, read(&expected)?)?;
            Ok(([output], [Arc::new(reference)]))
        }
        let (mut bytes, of_bytes) = last(&device, 1u8)?;
        let (mut words, of_words) = last(&device, f32::from_bits(1 << 31))?;
        let (mut doubles, of_doubles) = last(&device, 1i64 << 32)?;
        comparer.check(&stream, &mut bytes, &of_bytes, &ledger, 0)?;
        comparer.check(&stream, &mut words, &of_words, &ledger, 1)?;
        comparer.check(&stream, &mut doubles, &of_doubles, &ledger, 2)?;
        ledger.keep(0)?;
        let last = |index| Record { different: 1, first: (index, 0) };
        assert_eq!(ledger.read(1)?, [[last(332), last(332), last(665)]]);
        assert_eq!(of_doubles[0].locate((665, 0)).0, [332]);
        Ok(())
    }
}
