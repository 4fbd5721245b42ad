//! PTX from files in the place of built-in modules: for comparing what the kernels of another commit do, with the same program.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use warpsmith_kernels::{INDEX, Run};

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
    /// gives those names. A store is as `cargo xtask ptx` writes it, where a folder may have its texts in that of an earlier architecture.
    /// A file `NAME.ptx` in a folder is the text of an entry, and goes first. Kernels that the device has loaded before are loaded again, and
    /// what another store has replaced is built-in again. Folders of other names are left alone.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a file cannot be read, [`Error::Argument`] if no folder has the name of a module. What is wrong with a text is found
    /// where its kernel is asked for.
    #[doc(hidden)]
    pub fn replace_modules(&self, store: &Path) -> Result<Vec<String>> {
        let modules: HashSet<String> =
            warpsmith_kernels::MODULES.iter().map(warpsmith_kernels::PtxModule::name).collect();
        let mut replaced: HashMap<String, Texts> = HashMap::new();
        for run in warpsmith_kernels::runs(store).map_err(|error| failed(store, error))? {
            // The texts of other architectures may be in the same stream.
            if run.folders.iter().any(|folder| modules.contains(&folder.name)) {
                let packed = packed(&run)?;
                replaced.extend(packed.into_iter().filter(|(name, _)| modules.contains(name)));
            }
        }
        for name in modules {
            if let Some(texts) = plain(&store.join(&name))? {
                replaced.entry(name).or_default().extend(texts);
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

fn failed(path: &Path, source: io::Error) -> Error {
    Error::Io { operation: "reading", path: path.to_owned(), source }
}

fn damaged(path: &Path, reason: &str) -> Error {
    failed(path, io::Error::new(ErrorKind::InvalidData, reason))
}

/// The entries of the folders whose texts one stream holds, by the folders' names.
fn packed(run: &Run) -> Result<Vec<(String, Texts)>> {
    let read = |path: &Path| std::fs::read_to_string(path).map_err(|error| failed(path, error));
    let indices: Vec<String> =
        run.folders.iter().map(|folder| read(&folder.path.join(INDEX))).collect::<Result<_>>()?;
    let indices: Vec<&str> = indices.iter().map(String::as_str).collect();
    let texts = run.texts();
    let folders = match std::fs::read(&texts) {
        Ok(compressed) => warpsmith_kernels::unpack(&indices, &compressed).map_err(|reason| {
            let names: Vec<&str> = run.folders.iter().map(|folder| folder.name.as_str()).collect();
            let names = names.join(", of ");
            damaged(&texts, &format!("it does not hold the texts that `{INDEX}` of {names} lists: {reason}"))
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let reason = "there is no such file, nor one beside it in a folder of the family for an earlier architecture";
            Err(failed(&texts, io::Error::new(ErrorKind::NotFound, reason)))
        }
        Err(error) => Err(failed(&texts, error)),
    };
    let folders = folders.map_err(|error| {
        match run.folders.iter().find(|folder| has_earlier_format(&folder.path)) {
            Some(folder) => damaged(
                &folder.path,
                "an earlier version of warpsmith wrote this folder, with a file `NAME.ptx.z` for each entry: build it again",
            ),
            None => error,
        }
    })?;
    let names = run.folders.iter().map(|folder| folder.name.clone());
    let texts = |entries: Vec<(String, String)>| {
        entries.into_iter().map(|(name, text)| (name, text.into())).collect()
    };
    Ok(names.zip(folders.into_iter().map(texts)).collect())
}

/// Whether a folder is of a version that compressed each entry by itself.
fn has_earlier_format(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| entry.file_name().as_encoded_bytes().ends_with(b".ptx.z"))
}

/// The entries that are files in a folder, if there is one.
fn plain(folder: &Path) -> Result<Option<Texts>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(folder, error)),
    };
    let mut texts = Texts::new();
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

    /// Copies files of the store that ships.
    fn copy(store: &Path, folder: &str, files: &[&str]) {
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels-gpu/ptx").join(folder);
        std::fs::create_dir_all(store.join(folder)).expect("the folder can be written");
        for file in files {
            std::fs::copy(shipped.join(file), store.join(folder).join(file)).expect("it ships");
        }
    }

    /// The texts in the place of a module are those that are built in.
    fn assert_built_in(device: &Device, name: &str) {
        let module = warpsmith_kernels::MODULES.iter().find(|module| module.name() == name);
        for entry in module.expect("it is built in").entries {
            let text = device.kernels().replaced.of(name, entry.name);
            assert!(text.flatten().is_some_and(|text| *text == *entry.text()), "{name}/{}", entry.name);
        }
    }

    #[test]
    fn folders_that_share_their_texts_are_read_together_and_alone() -> Result<()> {
        let device = Device::emulator();
        let store = tempfile::tempdir().expect("a temporary folder");
        let [first, later] = ["rotary.sm_80", "rotary.sm_90"];
        let texts = warpsmith_kernels::TEXTS;
        copy(store.path(), first, &[INDEX, texts]);
        copy(store.path(), later, &[INDEX]);
        assert_eq!(device.replace_modules(store.path())?, [first, later]);
        assert_built_in(&device, first);
        assert_built_in(&device, later);
        assert_eq!(device.kernels().replaced.of("topk.sm_80", "topk_f32_32"), None);

        let error = || device.replace_modules(store.path()).expect_err("a file is missing").to_string();
        // The texts of a folder that is not there.
        std::fs::rename(store.path().join(later), store.path().join("later")).expect("it is there");
        let reason = error();
        assert!(reason.contains("rotary.sm_80/entries.lzma") && reason.contains("more than the"), "{reason}");
        std::fs::rename(store.path().join("later"), store.path().join(later)).expect("it is there");
        // A folder whose texts are in one that is not there.
        std::fs::remove_dir_all(store.path().join(first)).expect("it is there");
        let reason = error();
        assert!(
            reason.contains("rotary.sm_90/entries.lzma") && reason.contains("earlier architecture"),
            "{reason}"
        );
        std::fs::write(store.path().join(later).join("rotary_f32.ptx.z"), "")
            .expect("the folder can be written");
        assert!(error().contains("an earlier version of warpsmith"), "{}", error());
        copy(store.path(), first, &[texts]);
        assert!(error().contains("rotary.sm_80/index.txt"), "{}", error());

        copy(store.path(), first, &[INDEX, texts]);
        std::fs::write(store.path().join(later).join(INDEX), "rotary_f32\n")
            .expect("the folder can be written");
        let reason = error();
        assert!(
            reason.contains("rotary.sm_90`: an earlier version")
                || reason.contains("rotary.sm_90: an earlier"),
            "{reason}"
        );

        // A folder alone, with its texts, as a build for one architecture writes it.
        let module = warpsmith_kernels::MODULES.iter().find(|module| module.name() == later);
        let entries = module.expect("it is built in").entries;
        let text: String = entries.iter().map(warpsmith_kernels::PtxEntry::text).collect();
        std::fs::remove_dir_all(store.path().join(first)).expect("it is there");
        let options = lzma_rust2::LzmaOptions::with_preset(6);
        let mut writer =
            lzma_rust2::LzmaWriter::new_use_header(Vec::new(), &options, Some(text.len() as u64))
                .expect("valid");
        io::Write::write_all(&mut writer, text.as_bytes()).expect("a vector takes every byte");
        let stream = writer.finish().expect("a vector takes every byte");
        std::fs::write(store.path().join(later).join(texts), stream).expect("the folder can be written");
        copy(store.path(), later, &[INDEX]);
        assert_eq!(device.replace_modules(store.path())?, [later]);
        assert_built_in(&device, later);
        assert_eq!(device.kernels().replaced.of(first, entries[0].name), None);
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
