//! What a [`Machine`](crate::Machine) is told: which checks run, how tensor cores add, when asynchronous copies land,
//! and how large a launch may grow.

use std::time::Duration;

use crate::exec::trace::Tracer;

/// How a [`Machine`](crate::Machine) runs kernels.
///
/// ```
/// use warpsmith_emulator::{Completion, Config};
/// let config = Config { completion: Completion::Random, seed: 7, ..Config::default() };
/// # let _ = config;
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// The compute capability of the GPU that the machine stands for; modules for a later one are refused.
    pub compute_capability: (u32, u32),
    /// The checks that run beside the program.
    pub checks: Checks,
    /// How matrix instructions add their products.
    pub numerics: Numerics,
    /// When an asynchronous copy moves its bytes.
    pub completion: Completion,
    /// How many threads run blocks; `None` takes rayon's current pool. The result is the same for any number; where blocks race in
    /// global memory, the finding is.
    pub threads: Option<usize>,
    /// The seed of everything that a GPU leaves open: the same seed gives the same run.
    pub seed: u64,
    /// Where the steps of chosen lanes go, for a look at what a kernel does; nowhere if there is none.
    pub trace: Option<Tracer>,
    /// The sizes that a launch and the memory may reach.
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            compute_capability: (8, 0),
            checks: Checks::all(),
            numerics: Numerics::default(),
            completion: Completion::default(),
            threads: None,
            seed: 0,
            trace: None,
            limits: Limits::default(),
        }
    }
}

impl Config {
    /// A machine that stands for an H100: compute capability 9.0 and its limits.
    #[must_use]
    pub fn hopper() -> Self {
        Self { compute_capability: (9, 0), limits: Limits::hopper(), ..Self::default() }
    }
}

/// The checks of a run. All are on by default; a run without them differs only in what it reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Accesses outside an allocation, outside a block's shared or a thread's local memory, and accesses to freed memory. Where this is off such a load gives
    /// 0 and such a store is dropped.
    pub bounds: bool,
    /// Addresses that are not a multiple of the access size.
    pub alignment: bool,
    /// Values that nothing wrote, where they decide a branch, an address or a store to global memory.
    pub uninitialised: bool,
    /// Accesses to shared or global memory that nothing orders.
    pub races: bool,
    /// Races in which a warp writes what another warp of the cluster has written there. PTX gives them a meaning. Triton's code has
    /// them, as it keeps a value in several warps where it has fewer elements than threads.
    pub equal_writes: bool,
    /// Touching what asynchronous copies and products work on before they were waited for, and missing proxy fences.
    pub asynchronous: bool,
    /// Accesses to global memory by threads that have not executed `griddepcontrol.wait`, in kernels that have a `griddepcontrol`.
    pub dependencies: bool,
}

impl Checks {
    /// Every check.
    #[must_use]
    pub const fn all() -> Self {
        Self {
            bounds: true,
            alignment: true,
            uninitialised: true,
            races: true,
            equal_writes: true,
            asynchronous: true,
            dependencies: true,
        }
    }

    /// No check: only what cannot go on is reported, such as a deadlock.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            bounds: false,
            alignment: false,
            uninitialised: false,
            races: false,
            equal_writes: false,
            asynchronous: false,
            dependencies: false,
        }
    }
}

impl Default for Checks {
    fn default() -> Self {
        Self::all()
    }
}

/// How a matrix instruction adds its products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Numerics {
    /// The tensor core's own sum: products and accumulator are aligned to the largest exponent, cut to a few bits
    /// below f32's, added, and rounded towards zero. Several times slower than [`Numerics::Fast`].
    Exact,
    /// Fused multiply-adds in f32, in ascending order of k. Differs from the tensor core by rounding only; the same
    /// wherever every partial sum is exact.
    #[default]
    Fast,
}

/// When an asynchronous copy (`cp.async`) moves its bytes. Before its wait, the destination is not to be touched
/// whatever the mode; the modes differ in what a kernel that gets this wrong sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Completion {
    /// At the instruction that starts it.
    Eager,
    /// At the wait that requires it. Loads from shared memory are late in this mode, too: one that nothing waits for before its bytes are
    /// given back reads what the next copy brings, if no proxy fence is on the way to that.
    #[default]
    Latest,
    /// At any time between, in any order, drawn from [`Config::seed`]; warps take turns at random times, too, and waits that may
    /// give up do so.
    Random,
}

/// The sizes that a launch and the memory may reach. The defaults are those of an A100, but for local memory and the last five.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Threads in a block.
    pub threads_per_block: u32,
    /// Threads in a block along x, y and z.
    pub block: [u32; 3],
    /// Blocks in a grid along x, y and z.
    pub grid: [u32; 3],
    /// Blocks in a cluster; before compute capability 9.0 it has no say, for there are none.
    pub blocks_per_cluster: u32,
    /// Bytes of shared memory in a block, static and dynamic together.
    pub shared_per_block: u32,
    /// Bytes of local memory of all threads of a block.
    pub local_per_block: u64,
    /// Bytes of all parameters of a kernel.
    pub parameters: u32,
    /// Bytes of all live allocations.
    pub global_memory: u64,
    /// Warp-instructions that one block may run before the launch is given up as endless.
    pub instructions_per_block: u64,
    /// Warp-instructions that all blocks of a launch may run together. Each block counts as 64 at least: a grid that is too large even so
    /// is given up after its first blocks.
    pub instructions_per_launch: u64,
    /// How long a launch may run by the clock on the wall.
    pub time_per_launch: Duration,
    /// Blocks that run at the same time where blocks communicate with each other.
    pub resident_blocks: u32,
}

impl Limits {
    /// The limits of an H100.
    #[must_use]
    pub fn hopper() -> Self {
        Self { shared_per_block: 227 * 1024, resident_blocks: 264, ..Self::default() }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            threads_per_block: 1024,
            block: [1024, 1024, 64],
            grid: [0x7fff_ffff, 65_535, 65_535],
            blocks_per_cluster: 8,
            shared_per_block: 163 * 1024,
            local_per_block: 512 << 20,
            parameters: 4096,
            global_memory: 16 << 30,
            instructions_per_block: 1 << 28,
            instructions_per_launch: 1 << 34,
            time_per_launch: Duration::from_secs(3600),
            resident_blocks: 216,
        }
    }
}
