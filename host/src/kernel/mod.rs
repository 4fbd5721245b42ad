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

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use warpsmith_dsl::launch::{Declaration, Kernel, KernelArgs};

pub use warpsmith_dsl::launch::RawArg;

pub use self::file::KernelFile;
pub use self::run::{Extent, LaunchArg, LaunchArgs};
pub(crate) use self::run::{Resolved, resolve};

use crate::device::backend::{FunctionHandle, FunctionResources, LaunchSize, ModuleHandle};
use crate::device::{Device, DeviceKind};
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

/// An entry of a module, with the types of its arguments.
pub struct TypedKernel<K: Kernel> {
    function: Function,
    kernel: PhantomData<fn() -> K>,
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
        let declaration = &K::DECLARATION;
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
        check::check_declaration(declaration, K::Args::LAYOUT, &loaded.entry, &loaded.resources)?;
        Ok(TypedKernel { function: Function { device: self.clone(), loaded }, kernel: PhantomData })
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

    /// The entry that the type `K` declares, to be launched with arguments of its types.
    ///
    /// # Errors
    ///
    /// [`Error::MissingKernel`] if the module has no such entry, [`Error::KernelMismatch`] if it has other parameters or
    /// another block than `K` declares.
    pub fn kernel<K: Kernel>(&self) -> Result<TypedKernel<K>> {
        let function = self.function(K::DECLARATION.name)?;
        let loaded = &function.loaded;
        check::check_declaration(&K::DECLARATION, K::Args::LAYOUT, &loaded.entry, &loaded.resources)?;
        Ok(TypedKernel { function, kernel: PhantomData })
    }
}

impl Function {
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

/// How a launch takes its place among others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// After those before it on the stream.
    Plain,
    /// With all its blocks at the same time.
    Cooperative,
    /// Before those before it have ended, for which its kernel waits itself.
    Early,
    /// The same, with no two blocks on a multiprocessor.
    EarlyApart,
    /// As early, and before the last has ended it reads what that one does not write.
    BesideLast,
    /// After those before it, with this much shared memory or more.
    Roomy(u32),
}

impl<K: Kernel> TypedKernel<K> {
    /// The kernel without its types.
    #[must_use]
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Launches `grid` blocks, each of the size and with the shared memory that the kernel declares, in clusters if it
    /// declares those.
    ///
    /// # Errors
    ///
    /// As for [`Function::launch`].
    ///
    /// # Safety
    ///
    /// The addresses in `args` are valid for what the kernel does with them until the work on `stream` is done, and no
    /// other work touches that memory meanwhile (see [`Stream::with_operands`]).
    pub unsafe fn launch(&self, stream: &Stream, grid: [u32; 3], args: K::Args) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_as(stream, grid, args, Manner::Plain) }
    }

    /// As [`launch`](Self::launch), of a kernel that [waits for earlier launches](warpsmith_dsl::grid::wait_for_earlier_launches) itself: it may
    /// begin before those before it on the stream have ended. Of any other kernel, and on older drivers, it is a plain launch.
    ///
    /// # Errors
    ///
    /// As for [`Function::launch`].
    ///
    /// # Safety
    ///
    /// As for [`launch`](Self::launch).
    pub unsafe fn launch_early(&self, stream: &Stream, grid: [u32; 3], args: K::Args) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_as(stream, grid, args, Manner::Early) }
    }

    /// As [`launch_early`](Self::launch_early), of a kernel that reads operands before it waits.
    ///
    /// # Errors
    ///
    /// As for [`Function::launch`].
    ///
    /// # Safety
    ///
    /// As for [`launch`](Self::launch). The launch before it on the stream is of a kernel that [waits before it lets this one
    /// begin](warpsmith_dsl::grid::wait_before_next_launch), or that does not let it begin at all, and writes nothing of what this one reads before it waits.
    pub(crate) unsafe fn launch_beside_last(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        args: K::Args,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_as(stream, grid, args, Manner::BesideLast) }
    }

    /// As [`launch_early`](Self::launch_early), with so much shared memory that no multiprocessor holds two blocks: for at most as many as
    /// there are multiprocessors.
    ///
    /// While earlier launches run, few multiprocessors are idle, and early blocks would gather on those.
    ///
    /// # Errors
    ///
    /// As for [`Function::launch`].
    ///
    /// # Safety
    ///
    /// As for [`launch`](Self::launch).
    pub(crate) unsafe fn launch_early_apart(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        args: K::Args,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_as(stream, grid, args, Manner::EarlyApart) }
    }

    /// As [`launch_early`](Self::launch_early), in clusters of `cluster` blocks, of a kernel that declares no clusters.
    ///
    /// # Errors
    ///
    /// As for [`Function::launch`].
    ///
    /// # Safety
    ///
    /// As for [`launch`](Self::launch); the kernel does what it is to do with so many blocks to a cluster.
    pub unsafe fn launch_early_clusters(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        cluster: [u32; 3],
        args: K::Args,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_in(stream, [grid, cluster], args, Manner::Early) }
    }

    /// As [`launch_early_clusters`](Self::launch_early_clusters), with so much shared memory that no multiprocessor holds two blocks: what else runs finds
    /// room beside each of them.
    ///
    /// # Errors
    ///
    /// As for [`Function::launch`].
    ///
    /// # Safety
    ///
    /// As for [`launch_early_clusters`](Self::launch_early_clusters).
    pub(crate) unsafe fn launch_early_clusters_apart(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        cluster: [u32; 3],
        args: K::Args,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_in(stream, [grid, cluster], args, Manner::EarlyApart) }
    }

    /// As [`launch`](Self::launch), with `bytes` of shared memory for each block if it declares less: how many a multiprocessor holds is said by that, and
    /// which other kernels' blocks it takes beside them.
    ///
    /// # Errors
    ///
    /// As for [`Function::launch`].
    ///
    /// # Safety
    ///
    /// As for [`launch`](Self::launch).
    pub(crate) unsafe fn launch_roomy(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        bytes: u32,
        args: K::Args,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_as(stream, grid, args, Manner::Roomy(bytes)) }
    }

    /// As [`launch`](Self::launch), of blocks that wait for each other: the launch is refused if the device does not hold all of them at
    /// the same time, and none begins before there is room for all.
    ///
    /// # Errors
    ///
    /// As for [`Function::launch`].
    ///
    /// # Safety
    ///
    /// As for [`launch`](Self::launch).
    pub unsafe fn launch_cooperative(&self, stream: &Stream, grid: [u32; 3], args: K::Args) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_as(stream, grid, args, Manner::Cooperative) }
    }

    /// Launches the kernel.
    ///
    /// # Safety
    ///
    /// As for [`launch`](Self::launch).
    unsafe fn launch_as(&self, stream: &Stream, grid: [u32; 3], args: K::Args, manner: Manner) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_in(stream, [grid, K::DECLARATION.cluster], args, manner) }
    }

    /// Launches the kernel in clusters of this size.
    ///
    /// # Safety
    ///
    /// As for [`launch_early_clusters`](Self::launch_early_clusters).
    unsafe fn launch_in(
        &self,
        stream: &Stream,
        [grid, cluster]: [[u32; 3]; 2],
        args: K::Args,
        manner: Manner,
    ) -> Result<()> {
        let Declaration { block, shared_bytes: declared, .. } = K::DECLARATION;
        let cooperative = manner == Manner::Cooperative;
        let early = matches!(manner, Manner::Early | Manner::EarlyApart | Manner::BesideLast);
        let beside_last = manner == Manner::BesideLast;
        let device = &self.function.device;
        // The emulator has no multiprocessors to fill, and finds accesses behind what a kernel declares.
        let dynamic_shared = match (manner, device.kind()) {
            // Beside it each block has what the driver reserves, so two have more than there is.
            (Manner::EarlyApart, DeviceKind::Cuda(_)) => {
                declared.max(device.properties().shared_per_multiprocessor / 2)
            }
            (Manner::Roomy(bytes), DeviceKind::Cuda(_)) => declared.max(bytes),
            _ => declared,
        };
        let size = LaunchSize { grid, block, cluster, dynamic_shared, cooperative, early, beside_last };
        // SAFETY: the arguments have the kernel's types; the caller answers for the addresses in them.
        let launched =
            args.with_raw(|arguments| unsafe { self.function.launch_size(stream, size, arguments) });
        launched.map_err(|error| naming_arguments(error, K::DECLARATION.params))
    }
}

/// A finding with the arguments that it tells of by the names that the source has for them: "argument 1, `y`".
fn naming_arguments(mut error: Error, names: &[&str]) -> Error {
    if let Error::Finding(finding) = &mut error {
        for (index, name) in names.iter().enumerate() {
            let number = format!("argument {} (", index + 1);
            finding.message =
                finding.message.replace(&number, &format!("argument {}, `{name}` (", index + 1));
        }
    }
    error
}

impl<K: Kernel> Clone for TypedKernel<K> {
    fn clone(&self) -> Self {
        Self { function: self.function.clone(), kernel: PhantomData }
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

impl<K: Kernel> fmt::Debug for TypedKernel<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "TypedKernel({:?})", self.function)
    }
}
