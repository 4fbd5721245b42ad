//! What can go wrong, with what a user can do about it.
//!
//! `Debug` of an error is its `Display`: a `main` or a test that returns one prints the whole diagnostic.

use std::fmt;
use std::path::PathBuf;

use crate::check::Violation;
use crate::toolchain::Refused;

/// An error of the builder.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An architecture's name was not understood.
    #[error(
        "unknown architecture `{text}`: expected `sm_` and a compute capability, such as `sm_80` or `sm_90a`"
    )]
    Arch {
        /// The name as given.
        text: String,
    },

    /// No installed compiler can build for the GPU.
    #[error("{}", crate::toolchain::no_toolchain_message(.refused))]
    NoToolchain {
        /// Every compiler that was looked at, and why it will not do.
        refused: Vec<Refused>,
    },

    /// The compiler that the caller or the environment asked for will not do.
    #[error("the device toolchain given by {origin}, `{path}`, cannot be used: {reason}", path = .path.display())]
    Toolchain {
        /// Which setting named it.
        origin: &'static str,
        /// The path as given.
        path: PathBuf,
        /// Why it cannot be used.
        reason: String,
    },

    /// A program could not be started or did not do what was asked.
    #[error("`{command}` failed{}{output}", if .output.is_empty() { "" } else { ":\n" })]
    Command {
        /// The command line.
        command: String,
        /// What it wrote, or why it could not be started.
        output: String,
    },

    /// A program wrote something that was not understood.
    #[error("`{command}` answered something unexpected: {reason}")]
    Answer {
        /// The command line.
        command: String,
        /// What was expected and what came.
        reason: String,
    },

    /// The kernel crate does not have the family.
    #[error("package `{package}` has no kernel family `{family}`: its Cargo features are {features:?}")]
    Family {
        /// The kernel crate.
        package: String,
        /// The family as given.
        family: String,
        /// The features that it has.
        features: Vec<String>,
    },

    /// There is no package to build where the caller said.
    #[error("`{path}` holds no package: {reason}", path = .path.display())]
    Manifest {
        /// The manifest or its folder.
        path: PathBuf,
        /// What is missing or wrong.
        reason: String,
    },

    /// The compiler's output could not be turned into a PTX file.
    #[error("{family} for {arch}: {reason}")]
    Ptx {
        /// The kernel family.
        family: String,
        /// The architecture.
        arch: String,
        /// What is wrong with the text, and where.
        reason: String,
    },

    /// The PTX compiled, but must not be used.
    #[error("the PTX of {family} for {arch} ({path}) must not be used:{list}",
        path = .rejected.display(), list = crate::check::list(.violations))]
    Refused {
        /// The kernel family.
        family: String,
        /// The architecture.
        arch: String,
        /// The file that was not taken.
        rejected: PathBuf,
        /// What was found.
        violations: Vec<Violation>,
    },

    /// A build script's call was made elsewhere, or with something that it cannot build from.
    #[error("cannot build the kernels of a package from its build script: {reason}")]
    BuildScript {
        /// What is missing or wrong.
        reason: String,
    },

    /// A file could not be read or written.
    #[error("cannot {action} `{path}`: {source}", path = .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

/// What `main` prints stands behind `Error: `, where the lines of a diagnostic would not line up.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.to_string();
        if text.trim_end().contains('\n') { write!(f, "\n{text}") } else { f.write_str(&text) }
    }
}

impl Error {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_main_prints_of_an_error_is_its_diagnostic() {
        let violations = vec![Violation::NoEntry, Violation::Malformed { reason: "line 3".into() }];
        let refused = Error::Refused {
            family: "topk".into(),
            arch: "sm_80".into(),
            rejected: "target/topk.sm_80.ptx".into(),
            violations,
        };
        assert_eq!(format!("Error: {refused:?}"), format!("Error: \n{refused}"));
        let command =
            Error::Command { command: "cargo".into(), output: "error[E0061]: …\n --> src/lib.rs".into() };
        assert!(format!("{command:?}").contains("\nerror[E0061]: …\n --> src/lib.rs"));
        let arch = Error::Arch { text: "hopper".into() };
        assert_eq!(format!("{arch:?}"), arch.to_string());
    }
}
