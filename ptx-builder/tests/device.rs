//! Compiling and assembling for real. Where this machine has no device toolchain, no ptxas or no nvdisasm, the tests that
//! need them are listed as ignored.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Failed, Trial};
use warpsmith_builder::{
    Arch, Artefact, Builder, Error, Header, Nvdisasm, Ptxas, Violation, check, find_toolchain, machine_code,
};

fn main() {
    let mut arguments = Arguments::from_args();
    // One compilation at a time: those of a workspace would find each other's crates half written.
    arguments.test_threads = Some(1);
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
        compiled("slow::a_kernel_compiles_to_the_same_text_in_two_folders", same_text_in_two_folders),
        compiled("slow::an_array_with_a_variable_index_is_refused", local_memory_is_refused),
        compiled("slow::a_function_that_is_not_inlined_is_refused", calls_are_refused),
        compiled("slow::a_kernel_without_bounds_is_refused", missing_bounds_are_refused),
        compiled("slow::a_compile_error_is_shown", compile_errors_are_shown),
        compiled("a_second_checkout_is_compiled_from_its_own_sources", second_checkout_is_compiled),
        compiled(
            "slow::sources_in_the_place_of_others_are_compiled_whatever_their_age",
            older_sources_are_compiled,
        ),
        compiled("slow::a_trap_is_refused_unless_the_source_asks_for_it", traps_are_refused),
        compiled("slow::a_kernel_of_another_family_is_refused", other_families_are_refused),
        compiled("slow::a_sound_build_warns_of_nothing", sound_builds_warn_of_nothing),
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

/// A workspace with a kernel crate in the folder `kernels` that takes `sum` from another crate; `name` makes the crates' names.
fn workspace(name: &str, directives: &str, sum: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a temporary folder");
    write(&root.path().join("Cargo.toml"), &manifest(&["kernels", "sum"]));
    write_crates(root.path(), name, directives, sum);
    root
}

/// The same as crates of a workspace that tests have in common, so that `core` is built once for them; gives the folder with the
/// crates.
fn member(name: &str, directives: &str, sum: &str) -> PathBuf {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    let root = ROOT.get_or_init(|| {
        let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("members");
        // Of an earlier run, or not there.
        let _ = fs::remove_dir_all(&root);
        write(&root.join("Cargo.toml"), &manifest(&["*/kernels", "*/sum"]));
        root
    });
    let folder = root.join(name);
    write_crates(&folder, name, directives, sum);
    folder
}

/// The profile must not matter.
fn manifest(members: &[&str]) -> String {
    format!("[workspace]\nresolver = \"3\"\nmembers = {members:?}\n[profile.release]\nopt-level = 0\n")
}

fn write_crates(root: &Path, name: &str, directives: &str, sum: &str) {
    let package = |suffix: &str, rest: &str| {
        format!("[package]\nname = \"{name}{suffix}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n{rest}")
    };
    let dependency =
        format!("[features]\nfamily = []\n[dependencies]\n{name}_sum = {{ path = \"../sum\" }}\n");
    write(&root.join("kernels/Cargo.toml"), &package("", &dependency));
    write(&root.join("kernels/src/lib.rs"), &KERNELS.replace("DIRECTIVES", directives).replace("NAME", name));
    write(&root.join("sum/Cargo.toml"), &package("_sum", ""));
    write(&root.join("sum/src/lib.rs"), &format!("#![no_std]\n{sum}\n"));
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, text).expect("a file");
}

const SOUND: &str = "pub fn sum<const N: usize>(values: [f32; N], _: u32) -> f32 {
    let mut sum = 0.0;
    for value in values { sum += value; }
    sum
}";

/// Builds without ptxas, so that what is refused is refused by the text alone.
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
    let root = member(
        "local",
        DIRECTIVES,
        "pub fn sum<const N: usize>(mut values: [f32; N], n: u32) -> f32 {
            for step in 0..n { values[step as usize % N] += values[(step as usize * 7 + 1) % N]; }
            values[n as usize % N]
        }",
    );
    let violations = refused(&root)?;
    assert!(
        violations.iter().any(|violation| matches!(violation, Violation::LocalMemory { .. })),
        "{violations:?}"
    );
    Ok(())
}

fn calls_are_refused() -> Result<(), Failed> {
    let root = member(
        "call",
        DIRECTIVES,
        "#[inline(never)] pub fn sum(values: [f32; 4], _: u32) -> f32 { values[0] + values[3] }",
    );
    let violations = refused(&root)?;
    assert!(violations.iter().any(|violation| matches!(violation, Violation::Call { .. })), "{violations:?}");
    assert!(
        violations.iter().any(|violation| matches!(violation, Violation::Unresolved { .. })),
        "{violations:?}"
    );
    Ok(())
}

fn missing_bounds_are_refused() -> Result<(), Failed> {
    let violations = refused(&member("bounds", "", SOUND))?;
    assert!(
        matches!(violations.as_slice(), [Violation::NoBounds { entry, .. }] if entry == "kernel"),
        "{violations:?}"
    );
    Ok(())
}

fn compile_errors_are_shown() -> Result<(), Failed> {
    match build(&member("broken", DIRECTIVES, "pub fn sum(_: u64) {}")) {
        Err(error @ Error::Command { .. }) => {
            let text = error.to_string();
            assert!(text.contains("\nerror[E0061]: ") && text.contains("kernels/src/lib.rs:"), "{text}");
            let (_, printed) = text.split_once("failed:\n").ok_or("the command comes first")?;
            assert!(printed.starts_with("error[E0061]"), "{text}");
            assert!(!printed.contains("ptx70") && !printed.contains("Compiling"), "{text}");
            assert!(format!("{error:?}").contains(&text), "{error:?}");
            Ok(())
        }
        Err(error) => Err(error.into()),
        Ok(_) => Err("a call with a wrong number of arguments was compiled".into()),
    }
}

const OTHER: &str = "pub fn sum<const N: usize>(values: [f32; N], _: u32) -> f32 {
    let mut sum = 0.0;
    for value in values { sum += value * value; }
    sum
}";

/// Makes every source an hour older than it is.
fn make_older(folder: &Path) -> Result<(), Failed> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            make_older(&path)?;
        } else {
            let file = fs::File::options().append(true).open(&path)?;
            let modified = file.metadata()?.modified()? - std::time::Duration::from_secs(3600);
            file.set_modified(modified)?;
        }
    }
    Ok(())
}

/// Two checkouts of one crate that have a target folder in common, the second with sources older than the first's build.
fn second_checkout_is_compiled() -> Result<(), Failed> {
    let (one, other) = (workspace("checkout", DIRECTIVES, SOUND), workspace("checkout", DIRECTIVES, OTHER));
    make_older(other.path())?;
    let first = build(one.path())?.remove(0);
    let second = build(other.path())?.remove(0);
    assert_ne!(first.header.sources, second.header.sources);
    assert_ne!(
        first.text.split_once(".version").map(|(_, body)| body),
        second.text.split_once(".version").map(|(_, body)| body)
    );
    let multiplies = |text: &str| text.contains("fma.rn.f32") || text.contains("mul.rn.f32");
    assert!(!multiplies(&first.text) && multiplies(&second.text), "{}", second.text);
    Ok(())
}

fn older_sources_are_compiled() -> Result<(), Failed> {
    let root = member("replaced", DIRECTIVES, SOUND);
    let first = build(&root)?.remove(0);
    fs::write(root.join("sum/src/lib.rs"), format!("#![no_std]\n{OTHER}\n"))?;
    make_older(&root)?;
    let second = build(&root)?.remove(0);
    assert_ne!(
        first.text.split_once(".version").map(|(_, body)| body),
        second.text.split_once(".version").map(|(_, body)| body)
    );
    Ok(())
}

fn traps_are_refused() -> Result<(), Failed> {
    let divides = member(
        "divides",
        DIRECTIVES,
        "#[inline(always)] pub fn sum(values: [f32; 4], n: u32) -> f32 { values[0] + (100 / (n & 3)) as f32 }",
    );
    let violations = refused(&divides)?;
    assert!(
        matches!(violations.as_slice(), [Violation::Trap { function, .. }] if function == "kernel"),
        "{violations:?}"
    );
    let asks = "
        #[inline(always)]
        pub fn sum(values: [f32; 4], n: u32) -> f32 {
            if n == 7 { unsafe { core::arch::nvptx::trap() } }
            if n == 9 { unsafe { core::arch::asm!(\"trap;\") } }
            values[0]
        }";
    let asks = member("asks", DIRECTIVES, asks);
    let file = asks.join("sum/src/lib.rs");
    fs::write(
        &file,
        format!("#![feature(stdarch_nvptx, asm_experimental_arch)]\n{}", fs::read_to_string(&file)?),
    )?;
    let built = build(&asks)?.remove(0);
    assert_eq!(built.text.matches("trap;").count(), 2, "{}", built.text);
    Ok(())
}

fn other_families_are_refused() -> Result<(), Failed> {
    let directives =
        DIRECTIVES.replace("\"// warpsmith.shared", "\"// warpsmith.family famly\",\n\"// warpsmith.shared");
    let root = member("misnamed", &directives, SOUND);
    let error = build(&root).err().ok_or("it was compiled")?.to_string();
    assert!(error.contains("`family = famly`") && error.contains("the Cargo feature `family`"), "{error}");
    fs::write(
        root.join("kernels/src/lib.rs"),
        fs::read_to_string(root.join("kernels/src/lib.rs"))?.replace("famly", "family"),
    )?;
    build(&root)?;
    Ok(())
}

fn sound_builds_warn_of_nothing() -> Result<(), Failed> {
    let sound = build(&member("quiet", DIRECTIVES, SOUND))?.remove(0);
    assert_eq!(sound.warnings, "");
    let unused = member("unused", DIRECTIVES, &format!("fn unused() {{}}\n{SOUND}"));
    let warnings = build(&unused)?.remove(0).warnings;
    assert!(warnings.starts_with("warning: function `unused` is never used\n --> "), "{warnings}");
    assert!(warnings.contains("sum/src/lib.rs:2:4\n  |\n2 | fn unused() {}\n  |    ^^^^^^\n"), "{warnings}");
    Ok(())
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
