//! Kernels with the types of their arguments, and the manners in which they are launched.

use std::fmt;
use std::marker::PhantomData;

use warpsmith_dsl::launch::{Declaration, Kernel, KernelArgs as _, RawArg};

use super::Function;
use crate::device::DeviceKind;
use crate::device::backend::LaunchSize;
use crate::error::{Error, Result};
use crate::stream::Stream;

/// An entry of a module, with the types of its arguments: the function that `K` was made of, as [`KernelModule::kernel`](super::KernelModule::kernel) has
/// checked or the caller of [`Module::kernel_unchecked`](super::Module::kernel_unchecked) has promised.
pub struct TypedKernel<K: Kernel> {
    function: Function,
    kernel: PhantomData<fn() -> K>,
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
    /// The entry as what `K` names.
    pub(super) fn new(function: Function) -> Self {
        Self { function, kernel: PhantomData }
    }

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

    /// As [`launch`](Self::launch), of a kernel that waits for earlier launches itself, as with `dependent_launch` in
    /// [`#[kernel]`](warpsmith_dsl::kernel) or by [a call](warpsmith_dsl::grid::wait_for_earlier_launches): it may begin before those before it on
    /// the stream have ended. Memory that one of these writes it must not read as memory that nothing writes. Of any other kernel, and on older drivers, it is a plain launch.
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

    /// As [`launch`](Self::launch), in clusters of `cluster` blocks, of a kernel that declares no clusters.
    ///
    /// # Errors
    ///
    /// As for [`Function::launch`].
    ///
    /// # Safety
    ///
    /// As for [`launch`](Self::launch); the kernel does what it is to do with so many blocks to a cluster.
    pub unsafe fn launch_clusters(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        cluster: [u32; 3],
        args: K::Args,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_in(stream, [grid, cluster], args, Manner::Plain) }
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
        // SAFETY: the arguments have the kernel's types; the caller answers for the addresses in them.
        args.with_raw(|arguments| unsafe {
            launch_raw(&self.function, stream, &K::DECLARATION, [grid, cluster], manner, arguments)
        })
    }
}

/// Launches a kernel with the addresses of its arguments. Without the kernel's type, so that programs have this once.
///
/// # Safety
///
/// As for [`TypedKernel::launch_early_clusters`], and the arguments have the types of the kernel that is declared, which the function is.
unsafe fn launch_raw(
    function: &Function,
    stream: &Stream,
    declaration: &Declaration,
    [grid, cluster]: [[u32; 3]; 2],
    manner: Manner,
    arguments: &[RawArg],
) -> Result<()> {
    let &Declaration { block, shared_bytes: declared, .. } = declaration;
    let cooperative = manner == Manner::Cooperative;
    let early = matches!(manner, Manner::Early | Manner::EarlyApart | Manner::BesideLast);
    let beside_last = manner == Manner::BesideLast;
    let device = function.device();
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
    // SAFETY: the caller's promise.
    let launched = unsafe { function.launch_size(stream, size, arguments) };
    launched.map_err(|error| naming_arguments(error, declaration.params))
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

impl<K: Kernel> fmt::Debug for TypedKernel<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "TypedKernel({:?})", self.function)
    }
}
