use warpsmith_emulator::Limits;

use super::*;
use crate::{Device, EmulatorOptions};

fn entry() -> PtxEntry {
    let text = ".version 8.0\n.target sm_80\n.visible .entry k(.param .u64 a, .param .align 8 .b8 b[12])\n\
                .reqntid 128, 1, 1 { ret; }\n.entry free(.param .u32 a) .maxntid 64 { ret; }";
    super::super::PtxSummary::parse(text).unwrap().entry("k").unwrap().clone()
}

fn free_entry() -> PtxEntry {
    PtxEntry {
        name: "free".into(),
        params: Vec::new(),
        required_block: None,
        max_threads: Some(64),
        ..entry()
    }
}

const RESOURCES: FunctionResources =
    FunctionResources { static_shared: 1000, max_threads: 1024, registers: None };

fn properties() -> Properties {
    Device::emulator_with(EmulatorOptions::default()).properties().clone()
}

fn launch(
    entry: &PtxEntry,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: u32,
    sizes: &[usize],
) -> Result<()> {
    let size = LaunchSize {
        grid,
        block,
        cluster: [1; 3],
        dynamic_shared,
        cooperative: false,
        early: false,
        beside_last: false,
    };
    check_launch(entry, &RESOURCES, &properties(), size, sizes.iter().copied())
}

/// What was refused, what would have been taken, and what came.
fn refusal(result: Result<()>) -> (&'static str, String, String) {
    match result {
        Err(Error::LaunchLimit { quantity, expected, actual, .. }) => (quantity, expected, actual),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn a_launch_at_every_limit_is_taken() {
    let limits = Limits::default();
    launch(&entry(), limits.grid, [128, 1, 1], limits.shared_per_block - 1000, &[8, 12]).unwrap();
    launch(&free_entry(), [1; 3], [1, 1, 64], 0, &[]).unwrap();
}

#[test]
fn one_beyond_each_limit_is_refused_and_named() {
    let limits = Limits::default();
    let arguments = &[8, 12][..];
    for axis in 0..3 {
        let mut grid = limits.grid;
        grid[axis] += 1;
        assert_eq!(refusal(launch(&entry(), grid, [128, 1, 1], 0, arguments)).0, "the grid");
        grid[axis] = 0;
        assert_eq!(refusal(launch(&entry(), grid, [128, 1, 1], 0, arguments)).0, "the grid");
    }
    let (quantity, expected, actual) = refusal(launch(&entry(), [1; 3], [129, 1, 1], 0, arguments));
    assert_eq!(quantity, "the block");
    assert!(expected.contains("[128, 1, 1]") && actual.contains("[129, 1, 1]"));
    let (quantity, expected, actual) = refusal(launch(&free_entry(), [1; 3], [65, 1, 1], 0, &[]));
    assert_eq!((quantity, actual.as_str()), ("the number of threads a block", "65"));
    assert!(expected.contains("64") && expected.contains("declares"));
    let shared = limits.shared_per_block - 999;
    let (quantity, _, actual) = refusal(launch(&entry(), [1; 3], [128, 1, 1], shared, arguments));
    assert_eq!(quantity, "the shared memory a block");
    assert!(actual.contains(&(limits.shared_per_block + 1).to_string()), "{actual}");
    // A sum that does not fit in 32 bits.
    assert_eq!(
        refusal(launch(&entry(), [1; 3], [128, 1, 1], u32::MAX, arguments)).0,
        "the shared memory a block"
    );
    // A product that does not fit in 32 bits.
    let huge = PtxEntry { max_threads: None, ..free_entry() };
    assert_eq!(refusal(launch(&huge, [1; 3], [1024, 1024, 64], 0, &[])).0, "the number of threads a block");
}

#[test]
fn clusters_divide_the_grid_and_fit_the_kernel_and_the_device() {
    let hopper = Device::emulator_with(EmulatorOptions { compute_capability: (9, 0), ..Default::default() });
    let launch = |entry: &PtxEntry, properties: &Properties, grid, cluster| {
        let size = LaunchSize {
            grid,
            block: [1, 1, 1],
            cluster,
            dynamic_shared: 0,
            cooperative: false,
            early: false,
            beside_last: false,
        };
        check_launch(entry, &RESOURCES, properties, size, [].into_iter())
    };
    let plain = free_entry();
    launch(&plain, hopper.properties(), [4, 6, 1], [2, 3, 1]).unwrap();
    launch(&plain, hopper.properties(), [16, 1, 1], [16, 1, 1]).unwrap();
    let refused = |entry: &PtxEntry, properties: &Properties, grid, cluster| {
        let (quantity, expected, actual) = refusal(launch(entry, properties, grid, cluster));
        assert_eq!((quantity, actual), ("the cluster", format!("{cluster:?}")));
        expected
    };
    assert!(
        refused(&plain, hopper.properties(), [4, 5, 1], [2, 3, 1]).contains("divisor of the grid [4, 5, 1]")
    );
    assert!(refused(&plain, hopper.properties(), [4, 1, 1], [0, 1, 1]).contains("divisor"));
    assert!(
        refused(&plain, hopper.properties(), [17, 1, 1], [17, 1, 1]).contains("16 blocks, which the device")
    );
    assert!(refused(&plain, &properties(), [2, 1, 1], [2, 1, 1]).contains("1 blocks, which the device"));
    // A product that does not fit in 64 bits.
    let huge = [1 << 22, 1 << 15, 1 << 15];
    assert!(refused(&plain, hopper.properties(), huge, huge).contains("the device"));
    let bounded = PtxEntry { max_cluster: Some(4), ..free_entry() };
    assert!(
        refused(&bounded, hopper.properties(), [8, 1, 1], [8, 1, 1]).contains("4 blocks, which the kernel")
    );
    let declared = PtxEntry { required_cluster: Some([2, 1, 1]), ..free_entry() };
    launch(&declared, hopper.properties(), [4, 1, 1], [2, 1, 1]).unwrap();
    assert!(refused(&declared, hopper.properties(), [4, 1, 1], [1; 3]).contains("[2, 1, 1], as the kernel"));
}

/// An A100 has 108 multiprocessors of 164 KiB, 1 KiB of which each block costs, and 2048 threads.
#[test]
fn the_blocks_of_a_cooperative_launch_fit_the_device_together() {
    let launch = |blocks, threads, dynamic_shared| {
        let size = LaunchSize {
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            cluster: [1; 3],
            dynamic_shared,
            cooperative: true,
            early: false,
            beside_last: false,
        };
        check_launch(&free_entry(), &RESOURCES, &properties(), size, [].into_iter())
    };
    launch(2 * 108, 64, 80_000).unwrap();
    assert!(refusal(launch(2 * 108 + 1, 64, 80_000)).1.contains("216 blocks"));
    launch(32 * 108, 64, 0).unwrap();
    assert_eq!(refusal(launch(32 * 108 + 1, 64, 0)).0, "the grid of a cooperative launch");
}

#[test]
fn registers_limit_the_block_too() {
    let resources = FunctionResources { max_threads: 32, ..RESOURCES };
    let size = LaunchSize {
        grid: [1; 3],
        block: [33, 1, 1],
        cluster: [1; 3],
        dynamic_shared: 0,
        cooperative: false,
        early: false,
        beside_last: false,
    };
    let result = check_launch(&free_entry(), &resources, &properties(), size, [].into_iter());
    assert!(refusal(result).1.contains("registers"));
}

#[test]
fn arguments_must_have_the_number_and_the_sizes_that_the_ptx_declares() {
    let refused = |sizes: &[usize]| refusal(launch(&entry(), [1; 3], [128, 1, 1], 0, sizes)).0;
    assert_eq!(refused(&[]), "the number of arguments");
    assert_eq!(refused(&[8]), "the number of arguments");
    assert_eq!(refused(&[8, 12, 4]), "the number of arguments");
    assert_eq!(refused(&[8, 16]), "the size of an argument");
    assert_eq!(refused(&[4, 12]), "the size of an argument");
    let many = PtxEntry { params: vec![ParamLayout { size: 8, align: 8 }; 513], ..free_entry() };
    assert_eq!(refusal(launch(&many, [1; 3], [1; 3], 0, &[8; 513])).0, "the size of all arguments");
}

#[test]
fn parameters_are_laid_out_with_their_alignment() {
    let layout = [(1, 1), (8, 8), (4, 4), (12, 8)].map(|(size, align)| ParamLayout { size, align });
    assert_eq!(parameter_bytes(&layout), 36);
    assert_eq!(parameter_bytes(&[ParamLayout { size: usize::MAX, align: 0 }; 2]), usize::MAX);
    assert_eq!(parameter_bytes(&[ParamLayout { size: usize::MAX, align: 8 }; 2]), usize::MAX);
}

#[test]
fn a_declaration_must_agree_with_the_entry() {
    let declaration = Declaration {
        name: "k",
        family: "test",
        block: [128, 1, 1],
        cluster: [1, 1, 1],
        min_blocks_per_sm: 1,
        shared_bytes: 0,
        params: &["a", "b"],
        source: None,
    };
    let layout = [(8, 8), (12, 4)].map(|(size, align)| ParamLayout { size, align });
    check_declaration(&declaration, &layout, &entry(), &RESOURCES).unwrap();
    let quantity = |result: Result<()>| match result {
        Err(Error::KernelMismatch { quantity, .. }) => quantity,
        other => panic!("expected a mismatch, got {other:?}"),
    };
    let check = |declaration: &Declaration, layout: &[ParamLayout]| {
        quantity(check_declaration(declaration, layout, &entry(), &RESOURCES))
    };
    assert_eq!(check(&declaration, &layout[..1]), "the number of parameters");
    let wide = [layout[0], ParamLayout { size: 16, align: 8 }];
    assert_eq!(check(&declaration, &wide), "a parameter");
    let aligned = [layout[0], ParamLayout { size: 12, align: 16 }];
    assert_eq!(check(&declaration, &aligned), "a parameter");
    let large = Declaration { block: [256, 1, 1], ..declaration };
    assert_eq!(check(&large, &layout), "the block");
    let clustered = PtxEntry { required_cluster: Some([2, 1, 1]), ..entry() };
    let result = check_declaration(&declaration, &layout, &clustered, &RESOURCES);
    assert_eq!(quantity(result), "the cluster");
    let noted = PtxEntry { shared_bytes: Some(16), ..entry() };
    let result = check_declaration(&declaration, &layout, &noted, &RESOURCES);
    assert_eq!(quantity(result), "the dynamic shared memory");
    let bounded = PtxEntry { required_block: None, max_threads: Some(64), ..entry() };
    let result = check_declaration(&declaration, &layout, &bounded, &RESOURCES);
    assert_eq!(quantity(result), "the largest block");
}

#[test]
fn a_safe_kernel_is_of_the_function_that_its_type_is_of() {
    let declaration = |source| Declaration {
        name: "k",
        family: "",
        block: [128, 1, 1],
        cluster: [1, 1, 1],
        min_blocks_per_sm: 1,
        shared_bytes: 0,
        params: &["a", "b"],
        source,
    };
    let noted = |source| PtxEntry { source, ..entry() };
    check_source(&declaration(Some(7)), &noted(Some(7))).unwrap();
    // An unsafe function's launches are `unsafe`.
    check_source(&declaration(None), &noted(Some(7))).unwrap();
    check_source(&declaration(None), &noted(None)).unwrap();
    for (source, actual) in [(None, "absent"), (Some(8), "0x0000000000000008")] {
        let error = check_source(&declaration(Some(7)), &noted(source)).unwrap_err().to_string();
        assert!(
            error.contains("`k`") && error.contains("0x0000000000000007") && error.contains(actual),
            "{error}"
        );
    }
}
