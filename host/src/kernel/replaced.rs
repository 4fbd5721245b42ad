//! PTX from files in the place of built-in modules: for comparing what the kernels of another commit do, with the same program.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::device::Device;
use crate::error::{Error, Result};

/// The texts of a module's entries, by their names.
type Texts = HashMap<String, Arc<str>>;

/// Texts that take the place of built-in modules, by the names of the modules' folders.
#[derive(Default)]
pub(super) struct Replaced(Mutex<HashMap<String, Texts>>);

impl Replaced {
    /// The text in the place of an entry's, if its module is replaced; `Some(None)` if what replaces it has no such entry.
    pub(super) fn of(&self, module: &str, entry: &str) -> Option<Option<Arc<str>>> {
        self.0.lock().get(module).map(|texts| texts.get(entry).cloned())
    }
}

impl Device {
    /// Has this device load the entries in the folders of `store` in the place of the built-in modules of the same names, as `topk.sm_80`;
    /// gives those names. A folder is as `cargo xtask ptx` writes it. A file `NAME.ptx` in it is the text of an entry, and goes first.
    /// Kernels that the device has loaded before are loaded again, and what another store has replaced is built-in again. Folders of other
    /// names are left alone.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a file cannot be read, [`Error::Argument`] if no folder has the name of a module. What is wrong with a text is found
    /// where its kernel is asked for.
    #[doc(hidden)]
    pub fn replace_modules(&self, store: &Path) -> Result<Vec<String>> {
        let mut replaced = HashMap::new();
        for name in warpsmith_kernels::MODULES.iter().map(warpsmith_kernels::PtxModule::name) {
            if let Some(texts) = texts(&store.join(&name))? {
                replaced.insert(name, texts);
            }
        }
        let mut names: Vec<_> = replaced.keys().cloned().collect();
        names.sort_unstable();
        if names.is_empty() {
            let example = warpsmith_kernels::MODULES.first().map(|module| module.name()).unwrap_or_default();
            return Err(Error::Argument {
                operation: "Device::replace_modules",
                argument: "store",
                expected: format!("a folder with folders that are named as modules are, such as `{example}`"),
                actual: format!("`{}`, which has none", store.display()),
            });
        }
        *self.kernels().replaced.0.lock() = replaced;
        // Dropped without the lock: unloading waits for the device.
        let loaded = std::mem::take(&mut *self.kernels().functions.lock());
        drop(loaded);
        Ok(names)
    }
}

/// The entries in a folder, if there is one.
fn texts(folder: &Path) -> Result<Option<Texts>> {
    let failed = |path: &Path, source| Error::Io { operation: "reading", path: path.to_owned(), source };
    let damaged = |path: &Path, reason: &str| failed(path, io::Error::new(ErrorKind::InvalidData, reason));
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(folder, error)),
    };
    let mut texts = Texts::new();
    let index = folder.join("index.txt");
    if index.exists() {
        let packed = folder.join("entries.lzma");
        let listed = std::fs::read_to_string(&index).map_err(|error| failed(&index, error))?;
        let compressed = std::fs::read(&packed).map_err(|error| failed(&packed, error))?;
        let kernels = warpsmith_kernels::unpack(&listed, &compressed)
            .ok_or_else(|| damaged(&packed, "it does not hold the texts that `index.txt` lists"))?;
        texts.extend(kernels.into_iter().map(|(name, text)| (name, text.into())));
    }
    for entry in entries {
        let path = entry.map_err(|error| failed(folder, error))?.path();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if let Some(entry) = name.strip_suffix(".ptx") {
            let bytes = std::fs::read(&path).map_err(|error| failed(&path, error))?;
            let text = String::from_utf8(bytes).map_err(|_| damaged(&path, "it holds no text"))?;
            texts.insert(entry.to_owned(), text.into());
        }
    }
    Ok(Some(texts))
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
        let store = tempfile::tempdir().expect("a temporary folder");
        let folder = store.path().join("topk.sm_80");
        std::fs::create_dir(&folder).expect("the folder can be written");
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels-gpu/ptx/topk.sm_80");
        let file = |name: &str| std::fs::read(shipped.join(name)).expect("it ships");
        let (index, packed) = (file("index.txt"), file("entries.lzma"));
        std::fs::write(folder.join("index.txt"), &index).expect("the folder can be written");
        std::fs::write(folder.join("entries.lzma"), &packed).expect("the folder can be written");
        std::fs::write(folder.join("topk_f32_32.ptx"), "no PTX").expect("the folder can be written");
        assert_eq!(device.replace_modules(store.path())?, ["topk.sm_80"]);
        assert!(
            matches!(best(), Err(Error::InvalidPtx { module, .. }) if module == "topk.sm_80/topk_f32_32.ptx")
        );
        // Another family, and another device, have their own.
        assert!(ops::linear(&x, &x).run().is_ok());

        std::fs::remove_file(folder.join("topk_f32_32.ptx")).expect("it is there");
        device.replace_modules(store.path())?;
        assert_eq!(best()?, [3.0]);

        // An index and texts that are not of each other.
        let packed_of = |bytes: &[u8]| std::fs::write(folder.join("entries.lzma"), bytes);
        for damaged in [&packed[..packed.len() / 2], b"no stream"] {
            packed_of(damaged).expect("the folder can be written");
            assert!(matches!(device.replace_modules(store.path()), Err(Error::Io { .. })));
        }
        assert_eq!(best()?, [3.0]);

        for name in ["index.txt", "entries.lzma"] {
            std::fs::remove_file(folder.join(name)).expect("it is there");
        }
        device.replace_modules(store.path())?;
        assert!(matches!(best(), Err(Error::MissingKernel { kernel, .. }) if kernel == "topk_f32_32"));
        Ok(())
    }

    #[test]
    fn a_folder_without_modules_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("other.sm_80")).expect("the folder can be written");
        let error = Device::emulator().replace_modules(folder.path()).expect_err("it has no module");
        assert!(error.to_string().contains("sm_"), "{error}");
    }
}
