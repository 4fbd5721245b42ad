//! Compiling and assembling for real. Where this machine has no device toolchain, no ptxas or no nvdisasm, the tests that
//! need them are listed as ignored.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Failed, Trial};
use warpsmith_builder::{
    Arch, Artefact, Builder, Error, Header, Nvdisasm, Ptxas, Violation, check, find_toolchain, machine_code,
};

fn main() {
    let arguments = Arguments::from_args();
    let compiler = find_toolchain().is_ok();
    let ptxas = Ptxas::find();
    let assembler = ptxas.is_some();
    let both = assembler && Nvdisasm::find(ptxas.as_ref()).is_some();
    let compiled = |name: &str, test: fn() -> Result<(), Failed>| {
        Trial::test(name, test).with_kind("device rustc").with_ignored_flag(!compiler)
    };
    let assembled = |name: &str, test: fn() -> Result<(), Failed>| {
        Trial::test(name, test).with_kind("ptxas").with_ignored_flag(!assembler)
    };
    let disassembled = |name: &str, test: fn() -> Result<(), Failed>| {
        Trial::test(name, test).with_kind("ptxas, nvdisasm").with_ignored_flag(!both)
    };
    let trials = vec![
        compiled("a_kernel_compiles_to_the_same_text_in_two_folders", same_text_in_two_folders),
        compiled("an_array_with_a_variable_index_is_refused", local_memory_is_refused),
        compiled("a_function_that_is_not_inlined_is_refused", calls_are_refused),
        compiled("a_kernel_without_bounds_is_refused", missing_bounds_are_refused),
        compiled("a_compile_error_is_shown", compile_errors_are_shown),
        assembled("a_kernel_that_spills_is_refused", spills_are_refused),
        assembled("a_text_that_is_no_ptx_is_refused", rejected_texts_are_refused),
        assembled("a_kernel_that_does_not_spill_is_measured", sound_kernels_are_measured),
        assembled("a_text_that_is_no_ptx_has_no_machine_code", rejected_texts_have_no_machine_code),
        disassembled("a_load_that_an_arrival_overtakes_is_found_in_the_machine_code", overtaking_is_found),
        disassembled("a_file_that_is_no_cubin_is_not_disassembled", other_files_are_not_disassembled),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

const KERNELS: &str = r#"
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch, stdarch_nvptx))]
#![cfg(target_arch = "nvptx64")]

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    unsafe { core::arch::nvptx::trap() }
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn kernel(x: *const f32, y: *mut f32, n: u32) {
    unsafe {
        DIRECTIVES
        let lane: u32;
        core::arch::asm!("mov.u32 {}, %tid.x;", out(reg32) lane, options(pure, nomem, nostack));
        if lane < n {
            let mut values: [f32; 4] = core::mem::zeroed();
            for index in 0..4 {
                values[index] = *x.add(lane as usize * 4 + index);
            }
            *y.add(lane as usize) = NAME_sum::sum(values, n);
        }
    }
}
"#;

const DIRECTIVES: &str = r#"core::arch::asm!(
            "// warpsmith.directive .reqntid 128, 1, 1",
            "// warpsmith.directive .minnctapersm 1",
            "// warpsmith.shared_bytes 1024",
            options(nomem, nostack),
        );"#;

/// A workspace with a kernel crate in the folder `kernels` that takes `sum` from another crate.
///
/// `name` makes the crates' names: Cargo tells the crates of different workspaces in one target folder apart by name only.
fn workspace(name: &str, directives: &str, sum: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a temporary folder");
    let package = |suffix: &str, rest: &str| {
        format!("[package]\nname = \"{name}{suffix}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n{rest}")
    };
    // The profile must not matter.
    let workspace =
        "[workspace]\nresolver = \"3\"\nmembers = [\"kernels\", \"sum\"]\n[profile.release]\nopt-level = 0\n";
    for (file, text) in [
        ("Cargo.toml", workspace.to_owned()),
        (
            "kernels/Cargo.toml",
            package(
                "",
                &format!("[features]\nfamily = []\n[dependencies]\n{name}_sum = {{ path = \"../sum\" }}\n"),
            ),
        ),
        ("kernels/src/lib.rs", KERNELS.replace("DIRECTIVES", directives).replace("NAME", name)),
        ("sum/Cargo.toml", package("_sum", "")),
        ("sum/src/lib.rs", format!("#![no_std]\n{sum}\n")),
    ] {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    root
}

const SOUND: &str = "pub fn sum<const N: usize>(values: [f32; N], _: u32) -> f32 {
    let mut sum = 0.0;
    for value in values { sum += value; }
    sum
}";

/// Builds without ptxas, so that what is refused is refused by the text alone. `core` is built once for all tests.
fn build(root: &Path) -> Result<Vec<Artefact>, Error> {
    build_in(root, &PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("device"))
}

fn build_in(root: &Path, target_dir: &Path) -> Result<Vec<Artefact>, Error> {
    Builder::new(root.join("kernels")).target_dir(target_dir).archs([Arch::SM_80]).ptxas(None).build()
}

/// The violations for which a build is refused.
fn refused(root: &Path) -> Result<Vec<Violation>, Failed> {
    match build(root) {
        Err(Error::Refused { violations, rejected, .. }) => {
            assert!(rejected.is_file(), "the text that was refused is kept");
            assert!(!root.join("kernels/ptx/family.sm_80.ptx").exists(), "nothing is written for use");
            Ok(violations)
        }
        Err(error) => Err(error.into()),
        Ok(_) => Err("it was not refused".into()),
    }
}

fn same_text_in_two_folders() -> Result<(), Failed> {
    let (one, other) = (workspace("same", DIRECTIVES, SOUND), workspace("same", DIRECTIVES, SOUND));
    let built = build(one.path())?;
    let [artefact] = built.as_slice() else { return Err("one family, one file".into()) };
    // Everything anew, `core` too.
    assert_eq!(build_in(other.path(), &other.path().join("target"))?[0].text, artefact.text);

    assert_eq!(fs::read_to_string(one.path().join("kernels/ptx/family.sm_80.ptx"))?, artefact.text);
    assert_eq!(Header::parse(&artefact.text).as_ref(), Some(&artefact.header));
    assert_eq!(artefact.report.entries[0].threads, Some([128, 1, 1]));
    assert_eq!(artefact.report.entries[0].dynamic_shared, Some(1024));
    assert!(artefact.assemblies.is_empty(), "without ptxas nothing is said about registers");
    for part in
        [".file", "\"kernels/src/lib.rs\"", "\"sum/src/lib.rs\"", ".reqntid 128, 1, 1\n.minnctapersm 1\n"]
    {
        assert!(artefact.text.contains(part), "`{part}` is not in:\n{}", artefact.text);
    }
    let home = std::env::home_dir().map(|home| home.display().to_string()).unwrap_or_default();
    for private in [one.path().display().to_string(), home] {
        assert!(!artefact.text.contains(&private), "`{private}` is in:\n{}", artefact.text);
    }
    Ok(())
}

fn local_memory_is_refused() -> Result<(), Failed> {
    let root = workspace(
        "local",
        DIRECTIVES,
        "pub fn sum<const N: usize>(mut values: [f32; N], n: u32) -> f32 {
            for step in 0..n { values[step as usize % N] += values[(step as usize * 7 + 1) % N]; }
            values[n as usize % N]
        }",
    );
    let violations = refused(root.path())?;
    assert!(
        violations.iter().any(|violation| matches!(violation, Violation::LocalMemory { .. })),
        "{violations:?}"
    );
    Ok(())
}

fn calls_are_refused() -> Result<(), Failed> {
    let root = workspace(
        "call",
        DIRECTIVES,
        "#[inline(never)] pub fn sum(values: [f32; 4], _: u32) -> f32 { values[0] + values[3] }",
    );
    let violations = refused(root.path())?;
    assert!(violations.iter().any(|violation| matches!(violation, Violation::Call { .. })), "{violations:?}");
    assert!(
        violations.iter().any(|violation| matches!(violation, Violation::Unresolved { .. })),
        "{violations:?}"
    );
    Ok(())
}

fn missing_bounds_are_refused() -> Result<(), Failed> {
    let violations = refused(workspace("bounds", "", SOUND).path())?;
    assert!(
        matches!(violations.as_slice(), [Violation::NoBounds { entry, .. }] if entry == "kernel"),
        "{violations:?}"
    );
    Ok(())
}

fn compile_errors_are_shown() -> Result<(), Failed> {
    match build(workspace("broken", DIRECTIVES, "pub fn sum(_: u64) {}").path()) {
        Err(error @ Error::Command { .. }) => {
            let text = error.to_string();
            assert!(text.contains("error[E0061]") && text.contains("kernels/src/lib.rs"), "{text}");
            Ok(())
        }
        Err(error) => Err(error.into()),
        Ok(_) => Err("a call with a wrong number of arguments was compiled".into()),
    }
}

/// A kernel that holds `count` values at once, bounded to few registers.
fn demanding(count: usize, registers: u32) -> String {
    let mut text = format!(
        ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n.reqntid 128, 1, 1\n\
         .maxnreg {registers}\n{{\n.reg .b64 %rd<3>;\n.reg .f32 %f<{}>;\nld.param.u64 %rd1, [p];\n\
         cvta.to.global.u64 %rd2, %rd1;\n",
        count + 1
    );
    for index in 0..count {
        let _ = writeln!(text, "ld.volatile.global.f32 %f{index}, [%rd2+{}];", index * 4);
    }
    for index in (0..count).rev() {
        let _ = writeln!(text, "st.volatile.global.f32 [%rd2+{}], %f{index};", index * 4);
    }
    text + "ret;\n}\n"
}

fn ptxas() -> Result<Ptxas, Failed> {
    Ptxas::find().ok_or_else(|| "ptxas has gone".into())
}

fn spills_are_refused() -> Result<(), Failed> {
    let text = demanding(100, 32);
    assert_eq!(check(&text).violations, [], "spills are not in the text");
    let assembly = ptxas()?.assemble(&text, Arch::SM_80)?;
    let spilled = |violation: &Violation| matches!(violation, Violation::Spill { entry, stores, .. } if entry == "k" && *stores > 0);
    assert!(assembly.violations.iter().any(spilled), "{assembly:?}");
    assert!(
        assembly.violations.iter().any(|violation| matches!(violation, Violation::Stack { .. })),
        "{assembly:?}"
    );
    Ok(())
}

fn sound_kernels_are_measured() -> Result<(), Failed> {
    let assembly = ptxas()?.assemble(&demanding(100, 255), Arch::SM_80)?;
    assert_eq!(assembly.violations, []);
    assert_eq!(assembly.kernels.len(), 1);
    assert_eq!(assembly.kernels[0].name, "k");
    assert!((100..=255).contains(&assembly.kernels[0].registers), "{assembly:?}");
    Ok(())
}

fn rejected_texts_are_refused() -> Result<(), Failed> {
    let text = demanding(1, 32).replace("ret;", "retreat;");
    let assembly = ptxas()?.assemble(&text, Arch::SM_80)?;
    let rejected = |violation: &Violation| matches!(violation, Violation::Rejected { message, .. } if message.contains("retreat"));
    assert!(assembly.violations.iter().any(rejected), "{assembly:?}");
    Ok(())
}

fn rejected_texts_have_no_machine_code() -> Result<(), Failed> {
    let ptxas = Ptxas::find().ok_or("ptxas")?;
    match ptxas.machine_code("no PTX", Arch::SM_90A) {
        Err(Error::Command { output, .. }) if output.contains("module.ptx") => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

/// Another ptxas may order the kernels' instructions otherwise. What PTX itself orders must be clean with each.
fn overtaking_is_found() -> Result<(), Failed> {
    let ptxas = Ptxas::find().ok_or("ptxas")?;
    let nvdisasm = Nvdisasm::find(Some(&ptxas)).ok_or("nvdisasm")?;
    let cubin = ptxas.machine_code(include_str!("data/arrivals.ptx"), Arch::SM_90A)?;
    let reports = machine_code::check(&nvdisasm.disassemble(&cubin)?)?;
    let found = |entry: &str| -> Result<bool, Failed> {
        let report = reports.iter().find(|report| report.entry == entry).ok_or(entry)?;
        assert!(!report.releases.is_empty(), "{entry}");
        Ok(!report.findings.is_empty())
    };
    for entry in ["fenced", "dependent"] {
        assert!(!found(entry)?, "{entry} is clean");
    }
    if ptxas.version == "13.0.88" {
        for entry in ["overtaken", "one_path", "carried", "refilled", "generic"] {
            assert!(found(entry)?, "{entry} is found");
        }
    }
    Ok(())
}

fn other_files_are_not_disassembled() -> Result<(), Failed> {
    let nvdisasm = Nvdisasm::find(Ptxas::find().as_ref()).ok_or("nvdisasm")?;
    match nvdisasm.disassemble(b"no cubin") {
        Err(Error::Command { output, .. }) if !output.is_empty() => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}
