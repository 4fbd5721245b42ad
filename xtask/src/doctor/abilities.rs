//! What a machine can run, from what was found on it.

use super::{Finding, State};

/// Something that a machine can or cannot do.
struct Ability {
    what: &'static str,
    /// The findings that it needs, by their names.
    needs: &'static [&'static str],
    /// How it runs without them; `None` if it does not.
    otherwise: Option<&'static str>,
}

const ABILITIES: [Ability; 9] = [
    Ability { what: "cargo xtask test", needs: &["rustc", "linker", "committed PTX"], otherwise: None },
    Ability {
        what: "cargo xtask validate",
        needs: &["CUDA driver, GPU"],
        otherwise: Some("in the emulator"),
    },
    Ability { what: "cargo xtask bench, tune", needs: &["CUDA driver, GPU"], otherwise: None },
    Ability {
        what: "bench beside baselines",
        needs: &["CUDA driver, GPU", "cuBLAS", "Python with PyTorch"],
        otherwise: Some("without the baselines that are missing, if there is a GPU"),
    },
    Ability { what: "cargo xtask ptx", needs: &["device rustc, rust-src"], otherwise: None },
    Ability {
        what: "ptx: spills and registers",
        needs: &["device rustc, rust-src", "ptxas"],
        otherwise: None,
    },
    Ability { what: "cargo xtask machine-code", needs: &["ptxas", "nvdisasm"], otherwise: None },
    Ability {
        what: "several GPUs",
        needs: &["CUDA driver, GPU", "NCCL"],
        otherwise: Some("ranks on the CPU or in the emulator, over host memory"),
    },
    Ability {
        what: "named ranges in Nsight Systems",
        needs: &["CUDA driver, GPU", "Nsight Systems", "NVTX"],
        otherwise: None,
    },
];

/// What it can run and how, or why not: a row for each ability.
pub(super) fn of(findings: &[Finding]) -> Vec<[String; 3]> {
    ABILITIES.iter().map(|ability| row(ability, findings)).collect()
}

fn row(ability: &Ability, findings: &[Finding]) -> [String; 3] {
    let has = |name: &str| {
        let named = |finding: &&Finding| finding.what == name;
        findings.iter().filter(named).any(|finding| matches!(finding.state, State::Has(_)))
    };
    let missing: Vec<&str> = ability.needs.iter().copied().filter(|name| !has(name)).collect();
    let (verdict, note) = match (missing.is_empty(), ability.otherwise) {
        (true, _) => ("yes", String::new()),
        (false, Some(otherwise)) => ("partly", format!("{otherwise}; missing: {}", missing.join("; "))),
        (false, None) => ("no", format!("missing: {}", missing.join("; "))),
    };
    [verdict.to_owned(), ability.what.to_owned(), note]
}

#[cfg(test)]
mod tests {
    use super::{ABILITIES, of};
    use crate::doctor::{Finding, State, findings};

    fn finding(what: &'static str, has: bool) -> Finding {
        let state = match has {
            true => State::Has("1.0".into()),
            false => State::Lacks { why: "none".into(), remedy: "get one".into() },
        };
        Finding { what, purpose: "test", state }
    }

    fn verdict(rows: &[[String; 3]], what: &str) -> (String, String) {
        let row = rows.iter().find(|row| row[1] == what).expect(what);
        (row[0].clone(), row[2].clone())
    }

    #[test]
    fn what_is_missing_is_named_and_what_runs_without_it_is_told() {
        let rows = of(&[finding("ptxas", true), finding("nvdisasm", false)]);
        let (can, note) = verdict(&rows, "cargo xtask machine-code");
        assert_eq!((can.as_str(), note.as_str()), ("no", "missing: nvdisasm"));
        let (can, note) = verdict(&rows, "cargo xtask validate");
        assert_eq!((can.as_str(), note.as_str()), ("partly", "in the emulator; missing: CUDA driver, GPU"));
    }

    #[test]
    fn one_usable_gpu_of_two_is_enough() {
        let rows = of(&[finding("CUDA driver, GPU", false), finding("CUDA driver, GPU", true)]);
        assert_eq!(verdict(&rows, "cargo xtask bench, tune").0, "yes");
        assert_eq!(verdict(&rows, "several GPUs").0, "partly");
    }

    /// A need that no finding has the name of would never be met.
    #[test]
    fn each_need_is_something_that_is_looked_for() {
        let findings = findings();
        for need in ABILITIES.iter().flat_map(|ability| ability.needs) {
            assert!(findings.iter().any(|finding| finding.what == *need), "{need}");
        }
    }
}
