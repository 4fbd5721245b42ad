//! The machine: global memory, and launches on it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::check::Finding;
use crate::config::Config;
use crate::error::{LaunchError, MemoryError};
use crate::exec::launch::Launch;
use crate::exec::registers::Constants;
use crate::memory::global::GlobalMemory;
use crate::memory::heap::{self, Heap};
use crate::module::{KernelInfo, Module};
use crate::syntax::ast::Space;

/// A GPU that runs on the CPU: memory that outlives launches, and the settings of a run.
///
/// All methods take `&self`, and a machine may be shared between threads; launches that touch the same memory at the
/// same time race as they would on a GPU.
pub struct Machine {
    config: Config,
    memory: GlobalMemory,
    /// The addresses of each module's variables, once one of its kernels was launched.
    variables: Mutex<HashMap<u64, Arc<[u64]>>>,
    /// The threads, if the machine has its own.
    pool: Mutex<Option<Arc<rayon::ThreadPool>>>,
    /// Launches so far.
    launches: AtomicU64,
    /// What kernels allocate from.
    heap: Heap,
    /// What kernels have printed and nobody has taken.
    printed: Mutex<String>,
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
    /// Blocks of a cluster along x, y and z. A kernel that declares a shape gets it if this is all ones.
    pub cluster: [u32; 3],
    /// Whether the last launch lets this one begin only when all before it have ended. Threads that have not executed `griddepcontrol.wait` may then
    /// read what that launch does not write.
    pub beside_last: bool,
}

impl Default for LaunchConfig {
    /// One block of one thread.
    fn default() -> Self {
        Self { grid: [1; 3], block: [1; 3], dynamic_shared: 0, cluster: [1; 3], beside_last: false }
    }
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
        Self {
            config,
            memory,
            variables: Mutex::default(),
            pool: Mutex::default(),
            launches: AtomicU64::new(0),
            heap: Heap::default(),
            printed: Mutex::default(),
        }
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

    /// Allocates memory with these contents that kernels may only read.
    pub(crate) fn allocate_input(&self, contents: &[u8]) -> Result<u64, MemoryError> {
        let allocation = self.memory.allocate(contents.len() as u64, None, true)?;
        allocation.storage.write(0, contents);
        Ok(allocation.base)
    }

    /// As [`allocate`](Self::allocate), of memory that the host may write, and kernels may only read.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn allocate_read_only(&self, bytes: u64) -> Result<u64, MemoryError> {
        Ok(self.memory.allocate(bytes, None, true)?.base)
    }

    /// Frees what [`allocate`](Self::allocate) gave. Its addresses are not used again.
    ///
    /// # Errors
    ///
    /// [`MemoryError::BadFree`] if no allocation starts there.
    pub fn free(&self, address: u64) -> Result<(), MemoryError> {
        self.memory.free(address)
    }

    /// Takes an allocation to be one that the last launch has written.
    ///
    /// # Errors
    ///
    /// [`MemoryError::BadRange`] if `address` is in none.
    pub fn assume_written(&self, address: u64) -> Result<(), MemoryError> {
        self.memory.range("assume_written", address, 1)?;
        if let Some((_, allocation)) = self.memory.snapshot().find(address) {
            allocation.note_write(self.launches.load(Relaxed));
        }
        Ok(())
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
        let (info, code, instructions) = module.find(kernel)?;
        let cluster = match info.cluster {
            Some(cluster) if config.cluster == [1; 3] => cluster,
            _ => config.cluster,
        };
        let config = &LaunchConfig { cluster, ..*config };
        self.check_launch(module, info, config, arguments)?;
        let local = u64::from(code.local) * config.block.iter().map(|&n| u64::from(n)).product::<u64>();
        if local > self.config.limits.local_per_block {
            return Err(LaunchError::Limit {
                kernel: kernel.to_owned(),
                what: "local memory of a block",
                actual: local,
                limit: self.config.limits.local_per_block,
            });
        }
        let addresses = self.place_variables(module)?;
        let mut parameters = vec![0; code.parameter_bytes as usize];
        for (&(offset, size), argument) in code.parameters.iter().zip(arguments) {
            parameters[offset as usize..(offset + size) as usize].copy_from_slice(argument);
        }
        let constants = Constants::new(&code.constants, &addresses);
        if code.uses_heap() {
            let name = Some(Arc::from("the heap"));
            self.heap.place(|| self.memory.allocate(heap::BYTES, name, false).map(|a| a.base))?;
        }
        let workspace = if code.uses_workspace() { Some(self.make_workspace()?) } else { None };
        let table = self.memory.snapshot();
        let threads = config.block.iter().product::<u32>();
        let constant_ranges = module
            .variables()
            .iter()
            .zip(&*addresses)
            .filter(|(variable, _)| variable.space == Space::Const)
            .map(|(variable, &address)| (address, variable.size))
            .collect();
        let launch = Launch {
            name: kernel,
            text: module.text(),
            kernel: code,
            code: instructions,
            config: *config,
            number: self.launches.fetch_add(1, Relaxed) + 1,
            checks: self.config.checks,
            numerics: self.config.numerics,
            level: module.level(),
            completion: self.config.completion,
            seed: self.config.seed,
            trace: self.config.trace.as_ref().filter(|trace| trace.wants(kernel)),
            hopper: self.config.compute_capability.0 >= 9,
            parameters,
            table: &table,
            threads,
            warps: threads.div_ceil(32),
            shared_bytes: code.shared_span + config.dynamic_shared,
            workspace: workspace.unwrap_or(0),
            instruction_limit: self.config.limits.instructions_per_block,
            launch_limit: self.config.limits.instructions_per_launch,
            time_limit: self.config.limits.time_per_launch,
            started: Instant::now(),
            done: AtomicU64::new(0),
            resident_blocks: self.config.limits.resident_blocks.max(1),
            // A multiprocessor has 65 536, given out to whole warps in eights a thread.
            registers_per_thread: (65_536
                / threads.next_multiple_of(32).saturating_mul(info.min_ctas.unwrap_or(1).max(1))
                / 8
                * 8)
            .clamp(24, 256),
            heap: &self.heap,
            printed: Mutex::default(),
            logs: Mutex::default(),
            constant_ranges,
        };
        let result = match self.pool()? {
            Some(pool) => pool.install(|| launch.run(&constants)),
            None => launch.run(&constants),
        };
        if let Some(workspace) = workspace {
            self.memory.free(workspace)?;
        }
        let printed = launch.printed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut all = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        printed.into_values().for_each(|text| all.push_str(&text));
        drop(all);
        match result {
            Ok(warp_instructions) => {
                let blocks = config.grid.iter().map(|&n| u64::from(n)).product();
                Ok(Report { warp_instructions, blocks })
            }
            Err(mut finding) => {
                self.name_arguments(info, arguments, &mut finding);
                Err(LaunchError::Finding(finding))
            }
        }
    }

    /// Takes what kernels have printed with `printf` since the last call, those that failed included. The text
    /// of a launch is in the order
    /// of its clusters; a cluster's is left out beyond 1 MiB.
    #[must_use]
    pub fn take_printed(&self) -> String {
        std::mem::take(&mut *self.printed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Names allocations in a finding after the arguments that are their addresses.
    fn name_arguments(&self, info: &KernelInfo, arguments: &[&[u8]], finding: &mut Finding) {
        let table = self.memory.snapshot();
        // The first argument of several names it, and one that is its start before one that lies within.
        for starts in [true, false] {
            for (index, argument) in arguments.iter().enumerate() {
                let address = <[u8; 8]>::try_from(*argument).map(u64::from_le_bytes);
                let Some((_, allocation)) = address.ok().and_then(|address| table.find(address)) else {
                    continue;
                };
                if allocation.name.is_some() || (address.ok() == Some(allocation.base)) != starts {
                    continue;
                }
                let number = format!("allocation #{} (", allocation.number);
                let argument = info.argument(index);
                let name = if starts { argument } else { format!("the allocation of {argument}") };
                finding.message = finding.message.replace(&number, &format!("{name} ("));
            }
        }
    }

    /// Memory for the barrier of a grid, as the driver makes it for a cooperative launch: the number of its bytes, and the word
    /// that blocks arrive at.
    fn make_workspace(&self) -> Result<u64, MemoryError> {
        const BYTES: u32 = 16;
        let address = self.memory.allocate(u64::from(BYTES), None, false)?.base;
        let (storage, offset) = self.memory.range("write", address, u64::from(BYTES))?;
        storage.fill(offset, 0, u64::from(BYTES));
        storage.write(offset, &BYTES.to_le_bytes());
        Ok(address)
    }

    fn pool(&self) -> Result<Option<Arc<rayon::ThreadPool>>, LaunchError> {
        let Some(threads) = self.config.threads else { return Ok(None) };
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = &*pool {
            return Ok(Some(Arc::clone(pool)));
        }
        let built = rayon::ThreadPoolBuilder::new().num_threads(threads.max(1)).build();
        let built = Arc::new(built.map_err(|error| LaunchError::Threads(error.to_string()))?);
        *pool = Some(Arc::clone(&built));
        Ok(Some(built))
    }

    /// What can be said against a launch before anything runs.
    fn check_launch(
        &self,
        module: &Module,
        info: &KernelInfo,
        config: &LaunchConfig,
        arguments: &[&[u8]],
    ) -> Result<(), LaunchError> {
        let kernel = || info.name.clone();
        let limits = &self.config.limits;
        if !module.runs_on(self.config.compute_capability) {
            return Err(LaunchError::Architecture {
                file: module.file().to_owned(),
                target: module.target().to_owned(),
                machine: self.config.compute_capability,
            });
        }
        if arguments.len() != info.params.len() {
            let (expected, actual) = (info.params.len(), arguments.len());
            return Err(LaunchError::ArgumentCount { kernel: kernel(), expected, actual });
        }
        for (index, (param, argument)) in info.params.iter().zip(arguments).enumerate() {
            if param.size != argument.len() {
                let (expected, actual) = (param.size, argument.len());
                let name = param.name.clone();
                return Err(LaunchError::ArgumentSize { kernel: kernel(), index, name, expected, actual });
            }
        }
        let within = |what, actual: u64, limit: u64| {
            if (1..=limit).contains(&actual) {
                return Ok(());
            }
            Err(LaunchError::Limit { kernel: kernel(), what, actual, limit })
        };
        let parameters: usize = info.params.iter().map(|p| p.size).sum();
        within("the size of all parameters", parameters.max(1) as u64, u64::from(limits.parameters))?;
        let axes = [
            ("the grid along x", "the block along x"),
            ("the grid along y", "the block along y"),
            ("the grid along z", "the block along z"),
        ];
        for (axis, (grid, block)) in axes.into_iter().enumerate() {
            within(grid, u64::from(config.grid[axis]), u64::from(limits.grid[axis]))?;
            within(block, u64::from(config.block[axis]), u64::from(limits.block[axis]))?;
        }
        // Each size is at most 2^31, so their product of three fits only in 128 bits.
        let threads = config.block.iter().map(|&n| u128::from(n)).product::<u128>();
        let threads = u64::try_from(threads).unwrap_or(u64::MAX);
        within("the number of threads in a block", threads, u64::from(limits.threads_per_block.min(1024)))?;
        let blocks = config.grid.iter().map(|&n| u128::from(n)).product::<u128>();
        within("the number of blocks", u64::try_from(blocks).unwrap_or(u64::MAX), 1 << 62)?;
        let shared = u64::from(info.static_shared) + u64::from(config.dynamic_shared);
        within("shared memory", shared.max(1), u64::from(limits.shared_per_block))?;
        let cluster = config.cluster;
        let blocks = cluster.iter().map(|&n| u128::from(n)).product::<u128>();
        let most = if self.config.compute_capability.0 >= 9 { limits.blocks_per_cluster } else { 1 };
        within(
            "the number of blocks in a cluster",
            u64::try_from(blocks).unwrap_or(u64::MAX),
            u64::from(most),
        )?;
        let whole = (0..3).all(|axis| config.grid[axis].is_multiple_of(cluster[axis]));
        if !whole || info.cluster.is_some_and(|required| required != cluster) {
            let expected = match info.cluster {
                Some(required) => {
                    format!("exactly {required:?} blocks, in whole clusters of the grid {:?}", config.grid)
                }
                None => format!("a shape that divides the grid {:?}", config.grid),
            };
            return Err(LaunchError::ClusterShape { kernel: kernel(), expected, actual: cluster });
        }
        if let Some(required) = info.reqntid
            && required != config.block
        {
            let expected = format!("exactly {required:?} threads");
            return Err(LaunchError::BlockShape { kernel: kernel(), expected, actual: config.block });
        }
        if let Some(most) = info.maxntid
            && u128::from(threads) > most.iter().map(|&n| u128::from(n)).product::<u128>()
        {
            let expected = format!("at most {most:?} threads");
            return Err(LaunchError::BlockShape { kernel: kernel(), expected, actual: config.block });
        }
        Ok(())
    }

    /// The addresses of the module's variables, which are placed at its first launch.
    fn place_variables(&self, module: &Module) -> Result<Arc<[u64]>, MemoryError> {
        let mut placed = self.variables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(addresses) = placed.get(&module.id()) {
            return Ok(Arc::clone(addresses));
        }
        let mut allocations = Vec::new();
        for variable in module.variables() {
            let read_only = variable.space == Space::Const;
            let name = Arc::from(variable.name.as_str());
            allocations.push(self.memory.allocate(variable.size, Some(name), read_only)?);
        }
        let addresses: Arc<[u64]> = allocations.iter().map(|a| a.base).collect();
        for (variable, allocation) in module.variables().iter().zip(&allocations) {
            // Variables begin as zeros, whether or not the module says so.
            allocation.storage.fill(0, 0, variable.size);
            allocation.storage.write(0, &variable.initial);
            for &(offset, target, addend) in &variable.addresses {
                let address = addresses[target as usize].wrapping_add_signed(addend);
                allocation.storage.write(offset as u64, &address.to_le_bytes());
            }
        }
        placed.insert(module.id(), Arc::clone(&addresses));
        Ok(addresses)
    }
}
