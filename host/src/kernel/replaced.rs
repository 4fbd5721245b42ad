//! PTX from files in the place of built-in modules: for comparing what the kernels of another commit do, with the same program.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::file_name;
use crate::device::Device;
use crate::error::{Error, Result};

/// Texts that take the place of built-in modules, by the names of the modules' files.
#[derive(Default)]
pub(super) struct Replaced(Mutex<HashMap<String, Arc<str>>>);

impl Replaced {
    /// The text in the place of the module of that name, if there is one.
    pub(super) fn of(&self, name: &str) -> Option<Arc<str>> {
        self.0.lock().get(name).cloned()
    }
}

impl Device {
    /// Has this device load the files of `folder` in the place of the built-in modules of the same names, as `topk.sm_80.ptx`; gives those names.
    /// Kernels that it has loaded before are loaded again, and what another folder has replaced is built-in again. Files of other names are left alone.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a file cannot be read, [`Error::Argument`] if no file has the name of a module. What is wrong with a text is found where
    /// its kernels are asked for.
    #[doc(hidden)]
    pub fn replace_modules(&self, folder: &Path) -> Result<Vec<String>> {
        let mut replaced = HashMap::new();
        for name in warpsmith_kernels::MODULES.iter().map(file_name) {
            let path = folder.join(&name);
            match std::fs::read_to_string(&path) {
                Ok(text) => drop(replaced.insert(name, Arc::from(text))),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(source) => return Err(Error::Io { operation: "reading", path, source }),
            }
        }
        let mut names: Vec<_> = replaced.keys().cloned().collect();
        names.sort_unstable();
        if names.is_empty() {
            let example = warpsmith_kernels::MODULES.first().map(file_name).unwrap_or_default();
            return Err(Error::Argument {
                operation: "Device::replace_modules",
                argument: "folder",
                expected: format!("one with files that are named as modules are, such as `{example}`"),
                actual: format!("`{}`, which has none", folder.display()),
            });
        }
        *self.kernels().replaced.0.lock() = replaced;
        // Dropped without the lock: unloading waits for the device.
        let loaded = std::mem::take(&mut *self.kernels().functions.lock());
        drop(loaded);
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops;
    use crate::tensor::Tensor;

    #[test]
    fn a_file_takes_the_place_of_its_module_and_of_kernels_loaded_before() -> Result<()> {
        let device = Device::emulator();
        let x = Tensor::from_slice(&device, &[1.0f32, 3.0, 2.0], [1, 3])?;
        let best = || ops::topk(&x, 1).run().and_then(|(values, _)| values.to_vec());
        assert_eq!(best()?, [3.0]);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("topk.sm_80.ptx");
        std::fs::write(&file, "no PTX").expect("the folder can be written");
        assert_eq!(device.replace_modules(folder.path())?, ["topk.sm_80.ptx"]);
        assert!(matches!(best(), Err(Error::InvalidPtx { module, .. }) if module == "topk.sm_80.ptx"));
        // Another family, and another device, have their own.
        assert!(ops::linear(&x, &x).run().is_ok());

        let module = warpsmith_kernels::MODULES.iter().find(|module| module.family == "topk");
        std::fs::write(&file, module.expect("it ships").text).expect("the folder can be written");
        device.replace_modules(folder.path())?;
        assert_eq!(best()?, [3.0]);
        Ok(())
    }

    #[test]
    fn a_folder_without_modules_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("other.ptx"), "").expect("the folder can be written");
        let error = Device::emulator().replace_modules(folder.path()).expect_err("it has no module");
        assert!(error.to_string().contains("sm_"), "{error}");
    }
}
