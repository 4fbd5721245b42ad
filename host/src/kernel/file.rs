//! Files of kernels that a program brings itself, compiled by its build script.

use std::fmt;
use std::ops::Deref;

use warpsmith_dsl::launch::Kernel;

use super::ptx::{Reach, Target};
use super::{Module, TypedKernel, check};
use crate::device::Device;
use crate::error::{Error, Result};

/// The PTX of a file of kernels, for one or more architectures; [`include_kernels!`](crate::include_kernels) makes it.
#[derive(Clone, Copy, Debug)]
pub struct KernelFile {
    name: &'static str,
    modules: &'static [(&'static str, &'static str)],
}

impl KernelFile {
    /// A file of this name, and for each architecture (`sm_80`) its PTX.
    ///
    /// ```compile_fail,E0133
    /// const FILE: warpsmith::KernelFile = warpsmith::KernelFile::new("own", &[]);
    /// ```
    ///
    /// # Safety
    ///
    /// The PTX is what `warpsmith-builder` has made. So an entry with a comment `// warpsmith.source 0x…` was compiled of the function of that fingerprint.
    #[must_use]
    pub const unsafe fn new(name: &'static str, modules: &'static [(&'static str, &'static str)]) -> Self {
        Self { name, modules }
    }

    /// The file's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The architectures that there is PTX for.
    pub fn archs(&self) -> impl Iterator<Item = &'static str> {
        self.modules.iter().map(|(arch, _)| *arch)
    }

    /// The text for the latest architecture that runs on a device of this compute capability; of two for the same one that
    /// which runs on no other.
    fn best(&self, capability: (u32, u32)) -> Option<(&'static str, &'static str)> {
        let targets = self.modules.iter().filter_map(|module| Some((Target::parse(module.0)?, *module)));
        let run = targets.filter(|(target, _)| target.runs_on(capability));
        run.max_by_key(|(target, _)| (target.arch, target.reach != Reach::Later)).map(|(_, module)| module)
    }
}

impl Device {
    /// Loads a file of the program's own kernels, from the PTX for the latest architecture that this device runs.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedDevice`] if there is none for it; otherwise as for [`load_ptx`](Self::load_ptx).
    pub fn load_kernels(&self, file: &KernelFile) -> Result<KernelModule> {
        let capability = self.properties().compute_capability;
        let Some((arch, text)) = file.best(capability) else {
            let archs: Vec<&str> = file.archs().collect();
            return Err(Error::UnsupportedDevice {
                operation: "loading a file of kernels",
                device: self.to_string(),
                expected: format!("a device that runs `{}` for {}", file.name, archs.join(" or ")),
                actual: match capability {
                    (0, 0) => "the operations' CPU implementations only".into(),
                    (major, minor) => format!("compute capability {major}.{minor}"),
                },
            });
        };
        Ok(KernelModule(self.load_ptx(&format!("{}.{arch}", file.name), text)?))
    }
}

/// A module of the program's own kernels, compiled by its build: a [`Module`] whose entries are known to be of their source.
#[derive(Clone)]
pub struct KernelModule(Module);

impl KernelModule {
    /// The entry that the type `K` declares, to be launched with arguments of its types.
    ///
    /// # Errors
    ///
    /// [`Error::MissingKernel`] if the module has no such entry. [`Error::KernelMismatch`] if it has other parameters or another block than `K` declares, or
    /// if `K` is of a safe function and the entry of another one.
    pub fn kernel<K: Kernel>(&self) -> Result<TypedKernel<K>> {
        let function = self.0.declared::<K>()?;
        check::check_source(&K::DECLARATION, &function.loaded.entry)?;
        Ok(TypedKernel::new(function))
    }
}

impl Deref for KernelModule {
    type Target = Module;

    fn deref(&self) -> &Module {
        &self.0
    }
}

impl fmt::Debug for KernelModule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

/// The kernels of a file that this package's build script has compiled with `warpsmith_builder::KernelFiles`, by the file's
/// name without `.rs`: a [`KernelFile`](crate::KernelFile). Nothing else writes into the folder of the build script's output.
///
/// ```ignore
/// mod kernels;
///
/// let module = device.load_kernels(&warpsmith::include_kernels!("kernels"))?;
/// let saxpy = module.kernel::<kernels::saxpy>()?;
/// ```
#[macro_export]
macro_rules! include_kernels {
    ($name:literal) => {
        // SAFETY: `warpsmith_builder::KernelFiles` has written the file, of this package's sources.
        unsafe {
            $crate::KernelFile::new($name, include!(concat!(env!("OUT_DIR"), "/", $name, ".modules.rs")))
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    // SAFETY: there is no entry in it.
    const FILE: KernelFile = unsafe {
        KernelFile::new("own", &[("sm_90a", "a"), ("sm_80", "b"), ("sm_90", "c"), ("nothing", "d")])
    };

    #[test]
    fn the_latest_architecture_that_runs_is_taken() {
        let text = |capability| FILE.best(capability).map(|(_, text)| text);
        assert_eq!(text((7, 5)), None);
        assert_eq!(text((8, 0)), Some("b"));
        assert_eq!(text((8, 9)), Some("b"));
        assert_eq!(text((9, 0)), Some("a"));
        assert_eq!(text((10, 0)), Some("c"));
    }

    #[test]
    fn a_device_that_runs_none_is_told_which_there_are() {
        for device in [Device::cpu(), "emulator:7.5".parse().unwrap()] {
            let error = device.load_kernels(&FILE).unwrap_err().to_string();
            assert!(error.contains("`own` for sm_90a or sm_80"), "{error}");
        }
    }
}
