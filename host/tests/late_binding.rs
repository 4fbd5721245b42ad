//! A program that uses this crate starts without the driver, and looks for it only when a GPU is asked for.
//!
//! One with the feature `cust` is linked to the driver, since that crate is.
#![cfg(not(feature = "cust"))]

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
    for (name, kind, shown) in [
        ("cpu", DeviceKind::Cpu, "cpu"),
        ("emulator", DeviceKind::Emulator, "emulator:8.0"),
        ("emulator:9.0", DeviceKind::Emulator, "emulator:9.0"),
    ] {
        let device: Device = name.parse().unwrap();
        assert_eq!((device.kind(), device.to_string().as_str()), (kind, shown));
        assert_eq!(shown.parse::<Device>().unwrap().properties(), device.properties());
    }
    for name in ["", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:x", "cuda:99999999999999999999"] {
        let error = name.parse::<Device>().unwrap_err();
        assert!(matches!(error, Error::NoSuchDevice { .. }), "{name}: {error}");
    }
    assert_eq!(Device::cpu(), Device::cpu());
    assert_ne!(Device::emulator(), Device::emulator());
}

/// A name of the driver's that a library exports would take the place of the real one for all other code of the program.
#[cfg(target_os = "linux")]
#[test]
fn a_library_exports_its_own_functions_and_none_of_the_drivers() {
    use object::{Object, ObjectSymbol};

    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    // With the features that the workspace's tests have, or the crate would be built once more.
    cargo.args(["build", "--quiet", "--workspace", "--example", "c_library", "--message-format", "json"]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    // Where this test's own artefacts are, so that what is there already is not built again.
    let test = std::env::current_exe().unwrap();
    cargo.arg("--target-dir").arg(test.ancestors().nth(3).unwrap());
    let built = cargo.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let library = String::from_utf8(built.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|message| message["target"]["name"] == "c_library")
        .find_map(|message| Some(message["filenames"].as_array()?[0].as_str()?.to_owned()))
        .expect("cargo names the library that it has built");
    let bytes = std::fs::read(&library).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let names: Vec<&str> = file.dynamic_symbols().map(|symbol| symbol.name().unwrap()).collect();
    assert!(names.contains(&"example_linear"), "{library} exports {names:?}");
    let of_the_driver: Vec<_> = names
        .iter()
        .filter(|name| {
            name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
        })
        .collect();
    assert!(of_the_driver.is_empty(), "{library} has {of_the_driver:?}");
}
