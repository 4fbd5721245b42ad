//! What a device is made of, and the limits of a launch on it.

/// A device's sizes and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Properties {
    /// The compute capability; `(0, 0)` for the CPU, which runs no kernels.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors; cores for the CPU.
    pub multiprocessors: u32,
    /// Threads a warp.
    pub warp_size: u32,
    /// Threads a block, at most.
    pub max_threads_per_block: u32,
    /// Threads a multiprocessor, at most.
    pub max_threads_per_multiprocessor: u32,
    /// Threads a block along x, y, z, at most.
    pub max_block: [u32; 3],
    /// Blocks a grid along x, y, z, at most.
    pub max_grid: [u32; 3],
    /// Blocks a cluster, at most; 1 where there are no clusters. More than 8 may leave multiprocessors idle.
    pub max_cluster: u32,
    /// Bytes of shared memory a block, at most: static and dynamic, opted in to all that the hardware allows.
    pub max_shared_per_block: u32,
    /// Bytes of shared memory a multiprocessor.
    pub shared_per_multiprocessor: u32,
    /// Bytes of shared memory that the system takes of every block.
    pub reserved_shared_per_block: u32,
    /// 32-bit registers a multiprocessor.
    pub registers_per_multiprocessor: u32,
    /// Bytes of the kernel parameters, at most.
    pub max_parameter_bytes: u32,
    /// Bytes of memory.
    pub total_memory: u64,
    /// Bytes of level-2 cache.
    pub l2_bytes: u64,
    /// The highest clock of the multiprocessors in kHz; 0 where it is not known.
    pub clock_khz: u32,
    /// The highest clock of the memory in kHz; 0 where it is not known.
    pub memory_clock_khz: u32,
    /// The width of the memory bus in bits; 0 where it is not known.
    pub memory_bus_bits: u32,
    /// The CUDA version of the driver, where there is one.
    pub driver_version: Option<(u32, u32)>,
    /// Domain, bus and device of a GPU on the host's PCI, by which two processes know that they have the same one.
    pub pci_address: Option<[u32; 3]>,
}

impl Properties {
    /// Bytes that the memory moves in a microsecond at most, twice its width in each clock; 0 where that is not known.
    pub(crate) fn memory_bandwidth(&self) -> u64 {
        u64::from(self.memory_clock_khz) * u64::from(self.memory_bus_bits) * 2 / 8 / 1000
    }
}

/// Blocks a cluster on GPUs of a compute capability (CUDA programming guide, "thread block clusters"): 8 wherever there are
/// clusters, and 16 on the data-centre GPUs, which is asked for at the launch.
pub(super) fn max_cluster(compute_capability: (u32, u32)) -> u32 {
    match compute_capability {
        (9, 0) | (10, _) => 16,
        (9.., _) => 8,
        _ => 1,
    }
}

/// How much of a device's memory is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes that tensors hold.
    pub used: u64,
    /// Bytes that the pool holds, used or not.
    pub reserved: u64,
    /// Bytes that the device has free outside the pool.
    pub free: u64,
    /// Bytes that the device has.
    pub total: u64,
}
