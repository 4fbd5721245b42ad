//! Kernels: modules of PTX, loaded when they are first used, and launches that are checked before the driver sees them.
//!
//! The kernels of this project are reached by their types ([`Device::kernel`]). Each entry is a module of its own, unpacked and
//! compiled when the entry is first asked for, from the best architecture's PTX for the device. Kernels of a program's own are loaded
//! with [`Device::load_kernels`] or, from any PTX, with [`Device::load_ptx`].

mod check;
mod file;
mod ptx;
mod replaced;
mod run;
mod select;
mod typed;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use warpsmith_dsl::launch::{Declaration, Kernel, KernelArgs, ParamLayout};

pub use warpsmith_dsl::launch::RawArg;

pub use self::file::{KernelFile, KernelModule};
pub use self::run::{Extent, LaunchArg, LaunchArgs};
pub(crate) use self::run::{Resolved, resolve};
pub use self::typed::TypedKernel;

use crate::device::Device;
use crate::device::backend::{FunctionHandle, FunctionResources, LaunchSize, ModuleHandle};
use crate::error::{Error, Result};
use crate::stream::Stream;
use crate::trace;
pub(crate) use ptx::PtxSummary;
use ptx::{PtxEntry, Reach, Target};
use replaced::Replaced;
pub(crate) use select::{is_built, required_cuda, runs_built_in};

/// A module of PTX, loaded on a device.
#[derive(Clone)]
pub struct Module {
    device: Device,
    loaded: Arc<LoadedModule>,
}

struct LoadedModule {
    name: String,
    summary: PtxSummary,
    handle: ModuleHandle,
}

/// An entry of a module, with everything that a launch is checked against.
#[derive(Clone)]
pub struct Function {
    device: Device,
    loaded: Arc<LoadedFunction>,
}

struct LoadedFunction {
    module: Arc<LoadedModule>,
    entry: PtxEntry,
    handle: FunctionHandle,
    resources: FunctionResources,
}

/// The kernels of this project that a device has loaded, by their families and entries' names.
#[derive(Default)]
pub(crate) struct Cache {
    functions: Mutex<FxHashMap<(&'static str, &'static str), Arc<LoadedFunction>>>,
    /// Texts that take the place of built-in modules.
    replaced: Replaced,
}

impl Device {
    /// One of this project's kernels. Its PTX is compiled when it is first asked for on this device.
    ///
    /// # Errors
    ///
    /// [`Error::MissingKernel`] if the PTX has no such instance, [`Error::MissingFamily`] if this program was built without the
    /// kernel's family, [`Error::UnsupportedDevice`] if there is no PTX for this device, [`Error::KernelMismatch`] if PTX and type
    /// disagree; otherwise as for [`Device::load_ptx`].
    pub fn kernel<K: Kernel>(&self) -> Result<TypedKernel<K>> {
        self.declared_built_in(&K::DECLARATION, K::Args::LAYOUT).map(TypedKernel::new)
    }

    /// The entry of one of this project's kernels. Without the kernel's type, so that programs have this once.
    fn declared_built_in(
        &self,
        declaration: &'static Declaration,
        layout: &[ParamLayout],
    ) -> Result<Function> {
        let key = (declaration.family, declaration.name);
        let cached = self.kernels().functions.lock().get(&key).cloned();
        let loaded = match cached {
            Some(loaded) => loaded,
            None => {
                // Compiled without the lock, so that threads that want other kernels do not wait. Of two that compile the
                // same one, the first to finish has its kept; the other one's is dropped without the lock, too: unloading it
                // waits for the device, and for threads that capture work, which may want kernels.
                let loaded = self.load_built_in(declaration.family, declaration.name)?;
                self.kernels().functions.lock().entry(key).or_insert_with(|| loaded.clone()).clone()
            }
        };
        // Also for a kernel from the cache: another type may have asked for it.
        check::check_declaration(declaration, layout, &loaded.entry, &loaded.resources)?;
        check::check_source(declaration, &loaded.entry)?;
        Ok(Function { device: self.clone(), loaded })
    }

    fn load_built_in(&self, family: &'static str, entry: &str) -> Result<Arc<LoadedFunction>> {
        let capability = self.properties().compute_capability;
        let module = select::best_module(warpsmith_kernels::MODULES, family, capability)
            .ok_or_else(|| self.missing_family(family))?;
        let folder = module.name();
        let replaced = self.kernels().replaced.of(&folder, entry);
        let text = match &replaced {
            Some(texts) => texts.as_deref().map(Cow::Borrowed),
            None => module.entry(entry).map(|entry| Cow::Owned(entry.text())),
        };
        let Some(text) = text else {
            return Err(Error::MissingKernel {
                kernel: entry.to_owned(),
                module: folder,
                available: ptx::names(module.entries.iter().map(|entry| entry.name)),
            });
        };
        Ok(self.load_ptx(&format!("{folder}/{entry}.ptx"), &text)?.function(entry)?.loaded)
    }

    /// Why this program has no PTX of `family` for this device.
    fn missing_family(&self, family: &'static str) -> Error {
        let capability = self.properties().compute_capability;
        let lowest = select::lowest_capability(warpsmith_kernels::MODULES, family);
        if select::is_left_out(warpsmith_kernels::MODULES, family) {
            return Error::MissingFamily { family, feature: family };
        }
        Error::UnsupportedDevice {
            operation: "loading a kernel",
            device: self.to_string(),
            expected: lowest.map_or_else(
                || format!("kernels of a family `{family}`, of which there are none"),
                |(major, minor)| {
                    format!("compute capability {major}.{minor} or later for kernels `{family}`")
                },
            ),
            actual: format!("{}.{}", capability.0, capability.1),
        }
    }

    /// Loads a module of PTX; `name` stands for it in errors.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidPtx`] if the text is not valid PTX, [`Error::DriverTooOld`] if the driver does not know its
    /// version, [`Error::UnsupportedDevice`] if it is for another architecture or the device runs no kernels.
    pub fn load_ptx(&self, name: &str, text: &str) -> Result<Module> {
        let summary = self.read_declarations(name, text)?;
        let capability = self.properties().compute_capability;
        if !summary.target.runs_on(capability) {
            let Target { arch: (major, minor), reach } = summary.target;
            return Err(Error::UnsupportedDevice {
                operation: "loading a module",
                device: self.to_string(),
                expected: format!(
                    "compute capability {major}.{minor} {} for `{name}`",
                    match reach {
                        Reach::Exact => "exactly",
                        Reach::Family => "or later of the same major version",
                        Reach::Later => "or later",
                    },
                ),
                actual: format!("{}.{}", capability.0, capability.1),
            });
        }
        let start = Instant::now();
        let handle = self.backend().load_module(name, text, &summary)?;
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        tracing::debug!(target: "warpsmith::module", name, bytes = text.len(), milliseconds, "module loaded");
        let loaded = Arc::new(LoadedModule { name: name.to_owned(), summary, handle });
        Ok(Module { device: self.clone(), loaded })
    }

    fn read_declarations(&self, name: &str, text: &str) -> Result<PtxSummary> {
        if self.properties().compute_capability == (0, 0) {
            return Err(Error::UnsupportedDevice {
                operation: "loading a module",
                device: self.to_string(),
                expected: "a device that runs kernels".into(),
                actual: "the operations' CPU implementations only".into(),
            });
        }
        PtxSummary::parse(text).map_err(|log| Error::InvalidPtx {
            module: name.to_owned(),
            device: self.to_string(),
            log,
        })
    }
}

fn missing_kernel(entry: &str, module: &str, summary: &PtxSummary) -> Error {
    Error::MissingKernel {
        kernel: entry.to_owned(),
        module: module.to_owned(),
        available: summary.entry_names(),
    }
}

impl Module {
    /// The name that the module was loaded under.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.loaded.name
    }

    /// The names of the module's entries.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.loaded.summary.entries.iter().map(|entry| entry.name.as_str())
    }

    /// The entry `name`, to be launched with arguments whose sizes are checked but whose types are not.
    ///
    /// # Errors
    ///
    /// [`Error::MissingKernel`] if the module has no such entry.
    pub fn function(&self, name: &str) -> Result<Function> {
        let module = &self.loaded;
        let entry = module
            .summary
            .entry(name)
            .ok_or_else(|| missing_kernel(name, &module.name, &module.summary))?
            .clone();
        let (handle, resources) = self.device.backend().function(&module.handle, name)?;
        let loaded = LoadedFunction { module: module.clone(), entry, handle, resources };
        Ok(Function { device: self.device.clone(), loaded: Arc::new(loaded) })
    }

    /// The entry that the type `K` declares, to be launched with arguments of its types: of any PTX, of which nobody knows what it
    /// was made of. For PTX of this program's own build there is [`KernelModule::kernel`].
    ///
    /// ```
    /// use warpsmith_dsl::prelude::*;
    ///
    /// #[kernel(block = [32, 1, 1])]
    /// fn fill(mut y: GlobalSliceMut<f32>) {
    ///     if let Some(mut y) = y.get_mut(thread::index_1d()) {
    ///         y.write(1.0);
    ///     }
    /// }
    ///
    /// # fn example(module: &warpsmith::Module, y: &mut warpsmith::Tensor<f32>) -> warpsmith::Result<()> {
    /// // SAFETY: the module's text was compiled of the function above.
    /// let kernel = unsafe { module.kernel_unchecked::<fill>()? };
    /// kernel.run_over(&y.home_stream(), y.len(), (y,))
    /// # }
    /// ```
    ///
    /// Without the promise there is no such kernel:
    ///
    /// ```compile_fail,E0133
    /// # use warpsmith_dsl::prelude::*;
    /// # #[kernel(block = [32, 1, 1])]
    /// # fn fill(mut y: GlobalSliceMut<f32>) {}
    /// # fn example(module: &warpsmith::Module) -> warpsmith::Result<()> {
    /// let kernel = module.kernel_unchecked::<fill>()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// ```compile_fail,E0599
    /// # use warpsmith_dsl::prelude::*;
    /// # #[kernel(block = [32, 1, 1])]
    /// # fn fill(mut y: GlobalSliceMut<f32>) {}
    /// # fn example(module: &warpsmith::Module) -> warpsmith::Result<()> {
    /// let kernel = module.kernel::<fill>()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::MissingKernel`] if the module has no such entry, [`Error::KernelMismatch`] if it has other parameters or
    /// another block than `K` declares.
    ///
    /// # Safety
    ///
    /// The entry does what the function does that `K` was made of: it was compiled of it, or asks no more of its launches.
    pub unsafe fn kernel_unchecked<K: Kernel>(&self) -> Result<TypedKernel<K>> {
        self.declared::<K>().map(TypedKernel::new)
    }

    /// The entry that `K` declares, with the parameters and the resources that it declares.
    fn declared<K: Kernel>(&self) -> Result<Function> {
        let function = self.function(K::DECLARATION.name)?;
        let loaded = &function.loaded;
        check::check_declaration(&K::DECLARATION, K::Args::LAYOUT, &loaded.entry, &loaded.resources)?;
        Ok(function)
    }
}

impl Function {
    /// The device that its module is loaded on.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The entry's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.loaded.entry.name
    }

    /// Statically allocated shared memory, bytes a block.
    #[must_use]
    pub fn static_shared(&self) -> u32 {
        self.loaded.resources.static_shared
    }

    /// Registers a thread; `None` on the emulator.
    #[must_use]
    pub fn registers(&self) -> Option<u32> {
        self.loaded.resources.registers
    }

    /// Launches `grid` blocks of `block` threads, each block with `dynamic_shared` bytes of shared memory besides what
    /// the kernel declares, in clusters if the kernel declares their size.
    ///
    /// # Errors
    ///
    /// [`Error::LaunchLimit`] if the launch does not fit the kernel or the device, [`Error::DeviceMismatch`] if the stream
    /// is another device's, [`Error::Finding`] if the emulator finds a defect, [`Error::Driver`] if the driver refuses.
    ///
    /// # Safety
    ///
    /// Every argument's bytes are readable and are a value that the kernel takes in that place. Whatever addresses they
    /// hold are valid for what the kernel does with them until the work on `stream` is done, and no other work touches
    /// that memory meanwhile (see [`Stream::with_operands`]).
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared: u32,
        arguments: &[RawArg],
    ) -> Result<()> {
        let cluster = self.loaded.entry.required_cluster.unwrap_or([1; 3]);
        // SAFETY: the caller answers for the arguments.
        unsafe { self.launch_clusters(stream, grid, block, cluster, dynamic_shared, arguments) }
    }

    /// As [`Function::launch`], with `cluster` blocks in each cluster, which divides `grid`.
    ///
    /// # Errors
    ///
    /// As for [`Function::launch`].
    ///
    /// # Safety
    ///
    /// As for [`Function::launch`].
    pub unsafe fn launch_clusters(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        block: [u32; 3],
        cluster: [u32; 3],
        dynamic_shared: u32,
        arguments: &[RawArg],
    ) -> Result<()> {
        let size = LaunchSize {
            grid,
            block,
            cluster,
            dynamic_shared,
            cooperative: false,
            early: false,
            beside_last: false,
        };
        // SAFETY: the caller's promise.
        unsafe { self.launch_size(stream, size, arguments) }
    }

    /// Launches a grid of this size.
    ///
    /// # Safety
    ///
    /// As for [`Function::launch`].
    unsafe fn launch_size(&self, stream: &Stream, size: LaunchSize, arguments: &[RawArg]) -> Result<()> {
        let LoadedFunction { module, entry, handle, resources } = &*self.loaded;
        self.device.expect_same("launching a kernel", "stream", stream.device())?;
        let sizes = arguments.iter().map(|argument| argument.size);
        let early = size.early && entry.waits_for_launches;
        let size = LaunchSize { early, ..size };
        check::check_launch(entry, resources, self.device.properties(), size, sizes)?;
        trace::launch(&entry.name, &size);
        // SAFETY: the function was found in this module; the caller answers for the arguments, whose number and sizes
        // were just checked.
        unsafe {
            self.device.backend().launch(
                &module.handle,
                *handle,
                &entry.name,
                size,
                arguments,
                stream.handle(),
            )
        }
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Module({} on {})", self.loaded.name, self.device)
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Function({} of {} on {})", self.name(), self.loaded.module.name, self.device)
    }
}
