//! Kernels: loading, typed and untyped launches, and everything that is refused before or instead of a launch.

use libtest_mimic::Failed;
use warpsmith::{Device, Error, Module, Tensor, TypedKernel};
use warpsmith_dsl::launch::Kernel;

use crate::ptx::{
    Absent, Scale, ScaleParams, ScaleWithLargeBlock, ScaleWithWideParams, ScaleWithoutParams, ShippedLinear,
    ShippedLinearWithoutArguments, TEXT, late_value,
};
use crate::{Case, On, cases, raw};

#[rustfmt::skip]
pub(crate) const CASES: &[(&str, On, Case)] = &cases![On::Kernels =>
    a_typed_launch_computes,
    an_untyped_launch_computes,
    all_of_the_shared_memory_can_be_used,
    a_kernel_on_another_stream_is_ordered_with_the_home_stream,
    launches_beyond_a_limit_are_refused_with_both_numbers,
    wrong_arguments_are_refused,
    types_that_disagree_with_the_ptx_are_refused,
    missing_kernels_are_named,
    damaged_ptx_is_an_error_with_a_reason,
    ptx_for_other_devices_is_an_error,
    a_stream_of_another_device_is_refused,
    kernels_outlive_their_module_handle,
    every_shipped_kernel_loads,
    a_loaded_kernel_is_still_refused_to_a_type_that_disagrees,
];

#[rustfmt::skip]
pub(crate) const EMULATOR_CASES: &[(&str, On, Case)] = &cases![On::Emulator =>
    an_access_out_of_bounds_is_a_finding,
];

#[rustfmt::skip]
pub(crate) const CUDA_CASES: &[(&str, On, Case)] = &cases![On::Cuda =>
    ptx_that_is_too_new_for_the_driver_is_an_error,
    a_gpu_that_does_not_exist_is_an_error,
    opening_a_gpu_twice_gives_one_device,
    what_the_compiler_says_is_reported,
    properties_are_those_of_a_gpu,
];

fn module(device: &Device) -> Result<Module, Failed> {
    Ok(device.load_ptx("hand-written.ptx", TEXT)?)
}

/// The entry that `K` names, of the text of [`TEXT`].
fn kernel<K: Kernel>(module: &Module) -> warpsmith::Result<TypedKernel<K>> {
    // SAFETY: the types name entries of the text, or are wrong on purpose and refused.
    unsafe { module.kernel_unchecked() }
}

fn a_typed_launch_computes(device: &Device) -> Result<(), Failed> {
    let kernel = kernel::<Scale>(&module(device)?)?;
    let count = 1000;
    let values: Vec<f32> = (0..count).map(|i| i as f32).collect();
    let x = Tensor::from_slice(device, &values, [values.len()])?;
    let mut y = Tensor::<f32>::from_slice(device, &[-1.0; 1010], [1010])?;
    let arguments = (x.arg(), y.arg_mut(), ScaleParams { factor: 0.5, count });
    // SAFETY: both tensors have `count` elements or more and live until the result is read.
    unsafe { kernel.launch(&device.default_stream(), [count.div_ceil(128), 1, 1], arguments)? };
    let expected: Vec<f32> = values.iter().map(|x| x * 0.5).chain([-1.0; 10]).collect();
    assert_eq!(y.to_vec()?, expected);

    // The same on views: arguments are the addresses of their first elements.
    let mut tail = y.slice(0, 1000..1010)?;
    let arguments = (x.slice(0, 10..20)?.arg(), tail.arg_mut(), ScaleParams { factor: 2.0, count: 10 });
    // SAFETY: both views have 10 elements.
    unsafe { kernel.launch(&device.default_stream(), [1, 1, 1], arguments)? };
    assert_eq!(tail.to_vec()?, (10..20).map(|i| i as f32 * 2.0).collect::<Vec<_>>());
    Ok(())
}

fn an_untyped_launch_computes(device: &Device) -> Result<(), Failed> {
    let module = module(device)?;
    assert_eq!(module.entries().collect::<Vec<_>>(), ["scale", "through_shared", "late_store"]);
    let function = module.function("scale")?;
    let x = Tensor::from_slice(device, &[1.0f32, 2.0, 3.0], [3])?;
    let mut y = Tensor::<f32>::zeros(device, [3])?;
    let (x_arg, y_arg, params) =
        (x.arg().address(), y.arg_mut().address(), ScaleParams { factor: 3.0, count: 3 });
    // SAFETY: the arguments are those of `scale`, and both tensors have 3 elements.
    unsafe {
        function.launch(&device.default_stream(), [1, 1, 1], [128, 1, 1], 0, &raw![x_arg, y_arg, params])?;
    }
    assert_eq!(y.to_vec()?, [3.0, 6.0, 9.0]);
    Ok(())
}

fn all_of_the_shared_memory_can_be_used(device: &Device) -> Result<(), Failed> {
    let function = module(device)?.function("through_shared")?;
    let mut y = Tensor::<u32>::zeros(device, [1])?;
    let most = device.properties().max_shared_per_block - function.static_shared();
    assert!(most > 48 << 10, "beyond what needs no opt-in");
    let (address, offset, value) = (y.arg_mut().address(), most - 4, 77u32);
    // SAFETY: the arguments are those of the entry, and the offset lies within the shared memory asked for.
    unsafe {
        function.launch(&device.default_stream(), [1; 3], [1; 3], most, &raw![address, offset, value])?;
    }
    assert_eq!(y.to_vec()?, [77]);
    // SAFETY: refused before anything runs.
    let refused = unsafe {
        function.launch(&device.default_stream(), [1; 3], [1; 3], most + 1, &raw![address, offset, value])
    };
    match refused {
        Err(Error::LaunchLimit { quantity: "the shared memory a block", actual, expected, .. }) => {
            assert!(actual.contains(&(most + 1).to_string()), "{actual}");
            assert!(expected.contains(&device.properties().max_shared_per_block.to_string()), "{expected}");
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}

fn a_kernel_on_another_stream_is_ordered_with_the_home_stream(device: &Device) -> Result<(), Failed> {
    let function = module(device)?.function("late_store")?;
    // Some milliseconds on a GPU; the emulator needs no race to lose.
    let loops: u32 = if device.kind() == warpsmith::DeviceKind::Emulator { 100 } else { 3_000_000 };
    let stream = device.new_stream()?;
    for round in 0..4u32 {
        let mut y = Tensor::<u32>::zeros(device, [1])?;
        let address = y.arg_mut().address();
        stream.with_operands(&[&y], || {
            // SAFETY: the arguments are those of the entry; `y` has the element that it writes.
            unsafe { function.launch(&stream, [1; 3], [1; 3], 0, &raw![address, loops, round]) }
        })?;
        // Read on the home stream, while the kernel still runs on the other one.
        assert_eq!(y.to_vec()?, [late_value(loops, round)]);
        // Freed on the home stream after the kernel's use of it on the other one.
        let mut again = Tensor::<u32>::uninit(device, [1])?;
        let address = again.arg_mut().address();
        stream.with_operands(&[&again], || {
            // SAFETY: as above.
            unsafe { function.launch(&stream, [1; 3], [1; 3], 0, &raw![address, loops, round]) }
        })?;
        drop(again);
        let other = Tensor::from_slice(device, &[123u32], [1])?;
        stream.synchronize()?;
        assert_eq!(other.to_vec()?, [123], "memory in use is not handed out again");
    }
    Ok(())
}

fn refused(result: warpsmith::Result<()>, expected_quantity: &str) {
    match result {
        Err(Error::LaunchLimit { quantity, .. }) => assert_eq!(quantity, expected_quantity),
        other => panic!("{expected_quantity}: expected a refusal, got {other:?}"),
    }
}

fn launches_beyond_a_limit_are_refused_with_both_numbers(device: &Device) -> Result<(), Failed> {
    let module = module(device)?;
    let (scale, late) = (module.function("scale")?, module.function("late_store")?);
    let stream = device.default_stream();
    let (x, p) = (0u64, 0u64);
    let arguments = raw![x, x, p];
    // SAFETY: all launches are refused before anything runs.
    unsafe {
        refused(scale.launch(&stream, [1; 3], [64, 1, 1], 0, &arguments), "the block");
        refused(scale.launch(&stream, [1; 3], [128, 2, 1], 0, &arguments), "the block");
        refused(scale.launch(&stream, [0, 1, 1], [128, 1, 1], 0, &arguments), "the grid");
        refused(scale.launch(&stream, [1, 1 << 16, 1], [128, 1, 1], 0, &arguments), "the grid");
        refused(
            scale.launch(&stream, [1; 3], [128, 1, 1], u32::MAX, &arguments),
            "the shared memory a block",
        );
        let (loops, value) = (1u32, 1u32);
        let arguments = raw![x, loops, value];
        refused(late.launch(&stream, [1; 3], [33, 1, 1], 0, &arguments), "the number of threads a block");
        refused(late.launch(&stream, [1; 3], [0, 1, 1], 0, &arguments), "the block");
        refused(late.launch(&stream, [1; 3], [1, 1, 65], 0, &arguments), "the block");
        let shared = module.function("through_shared")?;
        refused(shared.launch(&stream, [1; 3], [1024, 2, 1], 0, &arguments), "the number of threads a block");
    }
    // The device is as usable as before.
    device.synchronize()?;
    a_typed_launch_computes(device)
}

fn wrong_arguments_are_refused(device: &Device) -> Result<(), Failed> {
    let scale = module(device)?.function("scale")?;
    let stream = device.default_stream();
    let (address, wide) = (0u64, [0u64; 2]);
    // SAFETY: all launches are refused before anything runs.
    unsafe {
        let launch = |arguments: &[warpsmith::kernel::RawArg]| {
            scale.launch(&stream, [1; 3], [128, 1, 1], 0, arguments)
        };
        refused(launch(&raw![address, address]), "the number of arguments");
        refused(launch(&raw![address, address, address, address]), "the number of arguments");
        refused(launch(&raw![address, address, wide]), "the size of an argument");
    }
    Ok(())
}

fn types_that_disagree_with_the_ptx_are_refused(device: &Device) -> Result<(), Failed> {
    let module = module(device)?;
    let mismatch = |result: warpsmith::Result<()>, expected_quantity: &str| match result {
        Err(Error::KernelMismatch { kernel, quantity, .. }) => {
            assert_eq!((kernel.as_str(), quantity), ("scale", expected_quantity));
        }
        other => panic!("expected a mismatch, got {other:?}"),
    };
    mismatch(kernel::<ScaleWithoutParams>(&module).map(drop), "the number of parameters");
    mismatch(kernel::<ScaleWithWideParams>(&module).map(drop), "a parameter");
    mismatch(kernel::<ScaleWithLargeBlock>(&module).map(drop), "the block");
    Ok(())
}

fn missing_kernels_are_named(device: &Device) -> Result<(), Failed> {
    let result = kernel::<Absent>(&module(device)?);
    match result {
        Err(Error::MissingKernel { kernel, available, module }) => {
            assert_eq!((kernel.as_str(), module.as_str()), ("absent", "hand-written.ptx"));
            assert!(available.contains("`scale`"), "{available}");
        }
        other => return Err(format!("{other:?}").into()),
    }
    // No PTX of this project is of that family.
    let built_in = device.kernel::<Absent>();
    assert!(matches!(built_in, Err(Error::UnsupportedDevice { .. })), "{built_in:?}");
    Ok(())
}

fn damaged_ptx_is_an_error_with_a_reason(device: &Device) -> Result<(), Failed> {
    let damaged = [
        String::new(),
        "not PTX at all".to_owned(),
        TEXT.replace("mul.rn.f32 %f3", "mull.rn.f32 %f3"),
        TEXT.replace("%f2, %f1;", "%f2, %undeclared;"),
        TEXT[..TEXT.len() / 2].to_owned(),
        TEXT.replace("ret;", "ret; \0"),
    ];
    for text in damaged {
        match device.load_ptx("damaged.ptx", &text).and_then(|module| module.function("scale")) {
            Err(Error::InvalidPtx { module, log, .. }) => {
                assert_eq!(module, "damaged.ptx");
                assert!(!log.is_empty());
            }
            other => return Err(format!("{other:?} for\n{text}").into()),
        }
    }
    a_typed_launch_computes(device)
}

fn ptx_for_other_devices_is_an_error(device: &Device) -> Result<(), Failed> {
    for target in ["sm_999", "sm_70a"] {
        let result = device.load_ptx("other.ptx", &TEXT.replace("sm_80", target));
        assert!(matches!(result, Err(Error::UnsupportedDevice { .. })), "{target}: {result:?}");
    }
    Ok(())
}

fn a_stream_of_another_device_is_refused(device: &Device) -> Result<(), Failed> {
    let scale = module(device)?.function("scale")?;
    let (address, params) = (0u64, ScaleParams { factor: 1.0, count: 0 });
    let stream = Device::emulator().default_stream();
    // SAFETY: refused before anything runs.
    let result = unsafe { scale.launch(&stream, [1; 3], [128, 1, 1], 0, &raw![address, address, params]) };
    assert!(matches!(result, Err(Error::DeviceMismatch { operand: "stream", .. })), "{result:?}");
    Ok(())
}

fn kernels_outlive_their_module_handle(device: &Device) -> Result<(), Failed> {
    let late = module(device)?.function("late_store")?;
    let mut y = Tensor::<u32>::zeros(device, [1])?;
    let (address, loops, value) = (y.arg_mut().address(), 1000u32, 4u32);
    // SAFETY: the arguments are those of the entry; `y` lives on.
    unsafe { late.launch(&device.default_stream(), [1; 3], [1; 3], 0, &raw![address, loops, value])? };
    // The module is unloaded here, after its kernel has run.
    drop(late);
    assert_eq!(y.to_vec()?, [late_value(loops, value)]);
    Ok(())
}

fn every_shipped_kernel_loads(device: &Device) -> Result<(), Failed> {
    let capability = device.properties().compute_capability;
    for shipped in warpsmith_kernels::MODULES {
        let runs =
            if shipped.arch_specific { shipped.arch == capability } else { shipped.arch <= capability };
        if !runs {
            continue;
        }
        for entry in shipped.entries {
            device.load_ptx(entry.name, &entry.text())?.function(entry.name)?;
        }
    }
    Ok(())
}

fn a_loaded_kernel_is_still_refused_to_a_type_that_disagrees(device: &Device) -> Result<(), Failed> {
    device.kernel::<ShippedLinear>()?;
    let wrong = device.kernel::<ShippedLinearWithoutArguments>();
    assert!(matches!(wrong, Err(Error::KernelMismatch { .. })), "{wrong:?}");
    device.kernel::<ShippedLinear>()?;
    Ok(())
}

fn an_access_out_of_bounds_is_a_finding(device: &Device) -> Result<(), Failed> {
    let kernel = kernel::<Scale>(&module(device)?)?;
    let x = Tensor::<f32>::zeros(device, [100])?;
    let mut y = Tensor::<f32>::zeros(device, [100])?;
    let arguments = (x.arg(), y.arg_mut(), ScaleParams { factor: 1.0, count: 101 });
    // SAFETY: the access beyond the end is within the emulator, which reports it.
    match unsafe { kernel.launch(&device.default_stream(), [1; 3], arguments) } {
        Err(Error::Finding(finding)) => {
            assert_eq!(finding.kind, warpsmith::emulator::FindingKind::OutOfBounds);
            assert_eq!((finding.kernel.as_str(), finding.file.as_str()), ("scale", "hand-written.ptx"));
            assert!(finding.text.contains("ld.global.f32"), "{finding}");
            // By the name that the kernel's type has for it, though the text numbers its parameters.
            assert!(finding.message.contains("argument 1, `x` ("), "{finding}");
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}

fn ptx_that_is_too_new_for_the_driver_is_an_error(device: &Device) -> Result<(), Failed> {
    let result = device.load_ptx("new.ptx", &TEXT.replace(".version 7.0", ".version 99.0"));
    assert!(matches!(result, Err(Error::DriverTooOld { .. })), "{result:?}");
    Ok(())
}

fn a_gpu_that_does_not_exist_is_an_error(_: &Device) -> Result<(), Failed> {
    let count = Device::cuda_count()?;
    assert!(count >= 1);
    for ordinal in [count, 1 << 20, usize::MAX] {
        let result = Device::cuda(ordinal);
        assert!(matches!(result, Err(Error::NoSuchDevice { .. })), "{result:?}");
    }
    Ok(())
}

fn opening_a_gpu_twice_gives_one_device(device: &Device) -> Result<(), Failed> {
    let again: Device = device.to_string().parse()?;
    assert_eq!(device, &again);
    Ok(())
}

fn what_the_compiler_says_is_reported(device: &Device) -> Result<(), Failed> {
    let text = TEXT.replace("mul.rn.f32 %f3", "mull.rn.f32 %f3");
    match device.load_ptx("damaged.ptx", &text) {
        Err(Error::InvalidPtx { log, .. }) => {
            assert!(log.contains("mull"), "{log}");
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}

fn properties_are_those_of_a_gpu(device: &Device) -> Result<(), Failed> {
    let properties = device.properties();
    println!("{}: {properties:?}", device.name());
    assert!(properties.compute_capability >= (7, 5));
    assert_eq!(properties.warp_size, 32);
    assert!(properties.max_shared_per_block > 48 << 10);
    assert!(properties.max_shared_per_block < properties.shared_per_multiprocessor);
    assert!(properties.multiprocessors > 0 && properties.total_memory > 1 << 30 && properties.l2_bytes > 0);
    assert!(properties.driver_version.is_some_and(|version| version >= (11, 3)));
    Ok(())
}
