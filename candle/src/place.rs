//! Where a call runs: the device and the stream here that stand for those of a candle tensor.

use candle_core::{Device as CandleDevice, DeviceLocation};
use warpsmith::{Device, Stream};

use crate::error::{Error, Result};

/// The device and the stream of a call.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The stream that candle's work on the tensors is on.
    pub(crate) stream: Stream,
    pub(crate) candle: CandleDevice,
}

impl Place {
    /// Where the tensors of a candle device are worked on. `operand` is one of them.
    pub(crate) fn of(operation: &'static str, operand: &'static str, candle: &CandleDevice) -> Result<Self> {
        let stream = match candle {
            CandleDevice::Cpu => Device::cpu().default_stream(),
            #[cfg(feature = "cuda")]
            CandleDevice::Cuda(device) => cuda::stream(device)?,
            _ => return Err(Error::UnsupportedDevice { operation, operand, actual: name(candle) }),
        };
        Ok(Self { stream, candle: candle.clone() })
    }

    /// The device of the stream.
    pub(crate) fn device(&self) -> &Device {
        self.stream.device()
    }
}

/// A device's name in errors.
pub(crate) fn name(device: &CandleDevice) -> String {
    match device.location() {
        DeviceLocation::Cpu => "the CPU".into(),
        DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    }
}

/// The error for an operand that is not on `device`, which the operand `first` is on; nothing if it is.
pub(crate) fn expect_same(
    operation: &'static str,
    (operand, actual): (&'static str, &CandleDevice),
    (first, device): (&'static str, &CandleDevice),
) -> Result<()> {
    if device.same_device(actual) {
        return Ok(());
    }
    let (of_first, actual) = (name(device), name(actual));
    // Each device that candle opens of a GPU has a stream of its own.
    let (expected, actual) = if of_first == actual {
        let expected =
            format!("a clone of the one that `{first}` is on: each call of `Device::new_cuda` gives another");
        (expected, format!("a candle device of its own of {actual}"))
    } else {
        (format!("{of_first}, where `{first}` is"), actual)
    };
    Err(Error::DeviceMismatch { operation, operand, expected, actual })
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::cell::RefCell;
    use std::sync::{Arc, Mutex, PoisonError};

    use candle_core::CudaDevice;
    use candle_core::cuda::cudarc::driver::CudaStream;
    use warpsmith::{Device, Stream};

    use crate::error::Result;

    thread_local! {
        /// The streams of candle's that this thread has worked on, borrowed.
        ///
        /// Each thread has its own: the handle that `Device::new_cuda` takes stands for another stream on another
        /// thread.
        static BORROWED: RefCell<Vec<(Arc<CudaStream>, Stream)>> = const { RefCell::new(Vec::new()) };
    }

    /// The devices that have been used, kept: a thread that ends, and with it its streams, does not close one.
    static DEVICES: Mutex<Vec<(usize, Device)>> = Mutex::new(Vec::new());

    /// The GPU of this number.
    fn device(ordinal: usize) -> Result<Device> {
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, device)) = devices.iter().find(|(number, _)| *number == ordinal) {
            return Ok(device.clone());
        }
        let device = Device::cuda(ordinal)?;
        devices.push((ordinal, device.clone()));
        Ok(device)
    }

    /// The stream of a candle device.
    pub(super) fn stream(of: &CudaDevice) -> Result<Stream> {
        let theirs = of.cuda_stream();
        let known = BORROWED.with_borrow(|all| {
            let known = all.iter().find(|(stream, _)| Arc::ptr_eq(stream, &theirs));
            known.map(|(_, stream)| stream.clone())
        });
        if let Some(known) = known {
            return Ok(known);
        }
        let here = device(theirs.context().ordinal())?;
        // SAFETY: the handle is a stream's, which lives as long as `theirs`, its owner.
        let stream = unsafe { Stream::borrow(&here, theirs.cu_stream().cast(), theirs.clone())? };
        BORROWED.with_borrow_mut(|all| {
            // Nobody else has those of devices that are gone: two owners, this list and the borrowed stream.
            all.retain(|(stream, _)| Arc::strong_count(stream) > 2);
            all.push((theirs, stream.clone()));
        });
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::expect_same;

    #[test]
    fn operands_on_one_device_fit() {
        assert!(expect_same("add", ("b", &Device::Cpu), ("a", &Device::Cpu)).is_ok());
    }
}
