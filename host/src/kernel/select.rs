//! Which of several PTX modules a device gets, and which drivers know a PTX version.

use warpsmith_kernels::PtxModule;

use super::PtxSummary;

/// The module of `family` that makes most of a device of compute capability `capability`: of those that run there the
/// one for the latest architecture, and of two for the same one that which runs on no other.
pub(crate) fn best_module<'a>(
    modules: &'a [PtxModule],
    family: &str,
    capability: (u32, u32),
) -> Option<&'a PtxModule> {
    modules
        .iter()
        .filter(|module| module.family == family)
        .filter(|module| runs(module, capability))
        .max_by_key(|module| (module.arch, module.arch_specific))
}

fn runs(module: &PtxModule, capability: (u32, u32)) -> bool {
    if module.arch_specific { module.arch == capability } else { module.arch <= capability }
}

/// The lowest compute capability that a module of `family` runs on.
pub(crate) fn lowest_capability(modules: &[PtxModule], family: &str) -> Option<(u32, u32)> {
    modules.iter().filter(|module| module.family == family).map(|module| module.arch).min()
}

/// Whether `family` is one of this project's, and not among `modules`: its Cargo feature is off.
pub(crate) fn is_left_out(modules: &[PtxModule], family: &str) -> bool {
    warpsmith_kernels::FAMILIES.contains(&family) && modules.iter().all(|module| module.family != family)
}

/// Whether this program has the kernels of `family`.
pub(crate) fn is_built(family: &str) -> bool {
    debug_assert!(warpsmith_kernels::FAMILIES.contains(&family), "`{family}` is no family");
    warpsmith_kernels::MODULES.iter().any(|module| module.family == family)
}

/// Whether some of this project's kernels run on a device of compute capability `capability` with a driver of CUDA version
/// `driver`.
pub(crate) fn runs_built_in(capability: (u32, u32), driver: Option<(u32, u32)>) -> bool {
    warpsmith_kernels::MODULES.iter().filter(|module| runs(module, capability)).any(|module| {
        let summary = module.entries.first().and_then(|entry| PtxSummary::parse(&entry.text()).ok());
        let required = summary.and_then(|summary| required_cuda(summary.version));
        match (required, driver) {
            (Some(required), Some(driver)) => required <= driver,
            _ => true,
        }
    })
}

/// Major and minor.
type Version = (u32, u32);

/// PTX ISA versions, each with the first CUDA version whose driver knows it (PTX ISA manual, release notes).
const PTX_VERSIONS: &[(Version, Version)] = &[
    ((6, 0), (9, 0)),
    ((6, 1), (9, 1)),
    ((6, 2), (9, 2)),
    ((6, 3), (10, 0)),
    ((6, 4), (10, 1)),
    ((6, 5), (10, 2)),
    ((7, 0), (11, 0)),
    ((7, 1), (11, 1)),
    ((7, 2), (11, 2)),
    ((7, 3), (11, 3)),
    ((7, 4), (11, 4)),
    ((7, 5), (11, 5)),
    ((7, 6), (11, 6)),
    ((7, 7), (11, 7)),
    ((7, 8), (11, 8)),
    ((8, 0), (12, 0)),
    ((8, 1), (12, 1)),
    ((8, 2), (12, 2)),
    ((8, 3), (12, 3)),
    ((8, 4), (12, 4)),
    ((8, 5), (12, 5)),
    ((8, 6), (12, 7)),
    ((8, 7), (12, 8)),
    ((8, 8), (12, 9)),
    ((9, 0), (13, 0)),
    ((9, 1), (13, 1)),
];

/// The first CUDA version whose driver knows PTX of version `ptx`; `None` where this table does not know.
pub(crate) fn required_cuda(ptx: (u32, u32)) -> Option<(u32, u32)> {
    PTX_VERSIONS.iter().find(|(version, _)| *version >= ptx).map(|(_, cuda)| *cuda)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn module(family: &'static str, arch: (u32, u32), arch_specific: bool) -> PtxModule {
        PtxModule { family, arch, arch_specific, entries: &[] }
    }

    const MODULES: &[PtxModule] = &[
        module("linear", (8, 0), false),
        module("linear", (9, 0), true),
        module("linear", (9, 0), false),
        module("linear", (8, 9), false),
        module("other", (12, 0), false),
    ];

    fn best(capability: (u32, u32)) -> Option<((u32, u32), bool)> {
        best_module(MODULES, "linear", capability).map(|module| (module.arch, module.arch_specific))
    }

    #[test]
    fn the_latest_architecture_that_runs_is_chosen() {
        assert_eq!(best((7, 5)), None);
        assert_eq!(best((8, 0)), Some(((8, 0), false)));
        assert_eq!(best((8, 6)), Some(((8, 0), false)));
        assert_eq!(best((8, 9)), Some(((8, 9), false)));
    }

    #[test]
    fn specific_code_is_chosen_on_its_own_architecture_only() {
        assert_eq!(best((9, 0)), Some(((9, 0), true)));
        assert_eq!(best((10, 0)), Some(((9, 0), false)));
        assert_eq!(best((12, 1)), Some(((9, 0), false)));
    }

    #[test]
    fn the_lowest_capability_is_the_families_own() {
        assert_eq!(lowest_capability(MODULES, "linear"), Some((8, 0)));
        assert_eq!(lowest_capability(MODULES, "other"), Some((12, 0)));
        assert_eq!(lowest_capability(MODULES, "no_family"), None);
    }

    #[test]
    fn kernels_run_where_both_the_device_and_the_driver_take_them() {
        assert!(runs_built_in((8, 0), Some((13, 1))) && runs_built_in((12, 0), None));
        assert!(runs_built_in((7, 5), Some((11, 0))) && !runs_built_in((7, 5), Some((10, 2))));
        assert!(!runs_built_in((7, 0), Some((13, 1))));
        assert!(!runs_built_in((9, 0), Some((9, 0))));
    }

    #[test]
    fn a_family_is_left_out_if_it_is_one_and_has_no_module() {
        assert!(is_left_out(MODULES, "topk") && is_left_out(&[], "linear"));
        assert!(!is_left_out(MODULES, "linear") && !is_left_out(MODULES, "no_family"));
    }

    /// An operation's error, where the program is built without its family.
    #[cfg(not(feature = "topk"))]
    #[test]
    fn an_operation_whose_family_is_left_out_names_the_feature() {
        let device = crate::Device::emulator();
        let x = crate::Tensor::from_slice(&device, &[1.0f32, 3.0], [1, 2]).expect("a tensor");
        let error = crate::ops::topk(&x, 1).run().expect_err("there is no such kernel");
        assert!(matches!(&error, crate::Error::MissingFamily { family: "topk", feature: "topk" }), "{error}");
        assert!(error.to_string().contains("the Cargo feature `topk` of `warpsmith`"), "{error}");
    }

    #[test]
    fn a_family_without_modules_has_no_best_one() {
        assert!(best_module(MODULES, "no_family", (9, 0)).is_none());
    }

    #[test]
    fn driver_versions_follow_the_table_and_rise() {
        assert_eq!(required_cuda((8, 0)), Some((12, 0)));
        assert_eq!(required_cuda((8, 6)), Some((12, 7)));
        assert_eq!(required_cuda((99, 0)), None);
        assert!(
            PTX_VERSIONS
                .is_sorted_by(|(ptx, cuda), (next_ptx, next_cuda)| ptx < next_ptx && cuda < next_cuda)
        );
    }
}
