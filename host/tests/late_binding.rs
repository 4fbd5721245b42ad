//! A program that uses this crate starts without the driver, and looks for it only when a GPU is asked for.

use warpsmith::{Device, DeviceKind, Error};

/// Whether the driver's library is loaded into this process.
#[cfg(target_os = "linux")]
fn driver_is_loaded() -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains("libcuda")
}

// No other test of this file asks for a GPU, so nothing in this process has before.
#[test]
fn the_driver_is_loaded_when_a_gpu_is_asked_for_and_not_before() {
    #[cfg(target_os = "linux")]
    assert!(!driver_is_loaded(), "the program is linked to the driver");
    let device = Device::cuda(0);
    match &device {
        Ok(device) => {
            #[cfg(target_os = "linux")]
            assert!(driver_is_loaded());
            assert_eq!(device.kind(), DeviceKind::Cuda(0));
            assert_eq!(&Device::auto(), device);
        }
        Err(Error::NoDriver { reason, .. }) => {
            assert!(!reason.is_empty());
            assert_eq!(Device::auto().kind(), DeviceKind::Cpu);
            assert!(matches!(Device::cuda_count(), Err(Error::NoDriver { .. })));
            assert!(matches!("cuda:3".parse::<Device>(), Err(Error::NoDriver { .. })));
        }
        Err(other) => assert!(matches!(other, Error::NoSuchDevice { .. }), "{other}"),
    }
}

#[test]
fn devices_are_opened_by_name() {
    for (name, kind) in [("cpu", DeviceKind::Cpu), ("emulator", DeviceKind::Emulator)] {
        let device: Device = name.parse().unwrap();
        assert_eq!((device.kind(), device.to_string().as_str()), (kind, name));
    }
    for name in ["", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:x", "cuda:99999999999999999999"] {
        let error = name.parse::<Device>().unwrap_err();
        assert!(matches!(error, Error::NoSuchDevice { .. }), "{name}: {error}");
    }
    assert_eq!(Device::cpu(), Device::cpu());
    assert_ne!(Device::emulator(), Device::emulator());
}
