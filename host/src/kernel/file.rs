//! Files of kernels that a program brings itself, compiled by its build script.

use super::Module;
use super::ptx::{Reach, Target};
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
    #[must_use]
    pub const fn new(name: &'static str, modules: &'static [(&'static str, &'static str)]) -> Self {
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
    pub fn load_kernels(&self, file: &KernelFile) -> Result<Module> {
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
        self.load_ptx(&format!("{}.{arch}", file.name), text)
    }
}

/// The kernels of a file that this package's build script has compiled with `warpsmith_builder::KernelFiles`, by the file's
/// name without `.rs`: a [`KernelFile`](crate::KernelFile).
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
        $crate::KernelFile::new($name, include!(concat!(env!("OUT_DIR"), "/", $name, ".modules.rs")))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: KernelFile =
        KernelFile::new("own", &[("sm_90a", "a"), ("sm_80", "b"), ("sm_90", "c"), ("nothing", "d")]);

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
