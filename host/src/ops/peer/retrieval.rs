//! The launches of the kernels that retrieve experts: which kernel, and how many blocks.

use half::{bf16, f16};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel};
use warpsmith_dsl::product_key::{CHUNK, ProductKeyParams, ProductKeyShape, QueryNormParams};
use warpsmith_kernels::product_key_topk::{Few, Many, product_key_topk};
use warpsmith_kernels::product_key_topk_cluster::{Halves, Quarters, product_key_topk_cluster};

use crate::device::Device;
use crate::error::Result;
use crate::ops::linear::LinearInput;
use crate::stream::Stream;

/// The arguments of a kernel for sub-keys of type `D`.
pub(super) type Args<D> =
    (Global<f32>, Global<D>, Global<D>, QueryNormParams, GlobalMut<u32>, GlobalMut<f32>, ProductKeyParams);

/// An element type of tokens, projection and sub-keys: [`f16`](half::f16), [`bf16`](half::bf16) or `f32`.
pub trait RoutingInput: LinearInput {
    /// The kernels for it.
    #[doc(hidden)]
    const KERNELS: Kernels<Self::Device>;
}

impl RoutingInput for f16 {
    const KERNELS: Kernels<F16> = Kernels {
        few: Retrieval::of::<product_key_topk<Few<F16>>, Few<F16>>(),
        many: Retrieval::of::<product_key_topk<Many<F16>>, Many<F16>>(),
        halves: Retrieval::of::<product_key_topk_cluster<Halves<F16>>, Halves<F16>>(),
        quarters: Retrieval::of::<product_key_topk_cluster<Quarters<F16>>, Quarters<F16>>(),
    };
}
impl RoutingInput for bf16 {
    const KERNELS: Kernels<Bf16> = Kernels {
        few: Retrieval::of::<product_key_topk<Few<Bf16>>, Few<Bf16>>(),
        many: Retrieval::of::<product_key_topk<Many<Bf16>>, Many<Bf16>>(),
        halves: Retrieval::of::<product_key_topk_cluster<Halves<Bf16>>, Halves<Bf16>>(),
        quarters: Retrieval::of::<product_key_topk_cluster<Quarters<Bf16>>, Quarters<Bf16>>(),
    };
}
impl RoutingInput for f32 {
    const KERNELS: Kernels<f32> = Kernels {
        few: Retrieval::of::<product_key_topk<Few<f32>>, Few<f32>>(),
        many: Retrieval::of::<product_key_topk<Many<f32>>, Many<f32>>(),
        halves: Retrieval::of::<product_key_topk_cluster<Halves<f32>>, Halves<f32>>(),
        quarters: Retrieval::of::<product_key_topk_cluster<Quarters<f32>>, Quarters<f32>>(),
    };
}

/// The kernels for a type.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Kernels<D> {
    few: Retrieval<D>,
    many: Retrieval<D>,
    halves: Retrieval<D>,
    quarters: Retrieval<D>,
}

/// A kernel and its launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retrieval<D> {
    /// What the kernel declares.
    pub(super) kernel: Declaration,
    launch: Launch<D>,
    /// Rows of a block or cluster, and experts that are found at most.
    rows: u32,
    most: u32,
    /// Blocks that a multiprocessor holds.
    blocks: u32,
}

type Launch<D> = unsafe fn(&Device, &Stream, [u32; 3], Args<D>) -> Result<()>;

impl<D> Retrieval<D> {
    const fn of<K: Kernel<Args = Args<D>>, S: ProductKeyShape>() -> Self {
        let (rows, most, blocks) = (S::ROWS, S::MOST, S::MIN_BLOCKS);
        Self { kernel: K::DECLARATION, launch: launch::<D, K>, rows, most, blocks }
    }

    /// Blocks along x for so many rows that share sub-keys.
    pub(super) fn grid_x(&self, rows: usize) -> u32 {
        // Fewer than 2³¹ rows.
        (rows as u32).div_ceil(self.rows) * self.kernel.cluster[0]
    }

    /// Launches the kernel on so many blocks.
    ///
    /// # Safety
    ///
    /// The arguments are valid for what the kernel does with them until the stream's work is done.
    pub(super) unsafe fn launch(&self, stream: &Stream, grid: [u32; 3], args: Args<D>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { (self.launch)(stream.device(), stream, grid, args) }
    }

    /// How long it takes on so many multiprocessors, in units of a block's time for a chunk of sub-keys.
    fn cost(&self, rows: usize, heads: usize, n: usize, multiprocessors: u32) -> f64 {
        let blocks = self.grid_x(rows) as f64 * heads as f64;
        let waves = (blocks / (multiprocessors * self.blocks) as f64).ceil();
        // Each block has a half of the queries, and all blocks of the cluster for that half share the sub-keys.
        let chunks = n.div_ceil(CHUNK as usize).div_ceil(self.kernel.cluster[0] as usize / 2);
        waves * (chunks as f64 + BLOCK)
    }
}

/// What a block takes besides its chunks: the queries, and what it has to do with the best.
const BLOCK: f64 = 1.0;

/// Launches the kernel `K`.
///
/// # Safety
///
/// As for [`ProductKeyShape::retrieve`], until the stream's work is done.
unsafe fn launch<D, K: Kernel<Args = Args<D>>>(
    device: &Device,
    stream: &Stream,
    grid: [u32; 3],
    args: Args<D>,
) -> Result<()> {
    let kernel = device.kernel::<K>()?;
    // SAFETY: the caller's promise is the kernel's; that for clusters waits for earlier launches itself.
    unsafe { kernel.launch_early(stream, grid, args) }
}

/// The kernel that finds `k` experts of n² for so many rows that share sub-keys, of each of `heads` groups of them: by clusters where there
/// are any, and by as many blocks as keep the multiprocessors busy.
pub(super) fn choose<D>(
    kernels: &Kernels<D>,
    [rows, heads, n, k]: [usize; 4],
    compute_capability: (u32, u32),
    multiprocessors: u32,
) -> &Retrieval<D> {
    if k > kernels.few.most as usize {
        return &kernels.many;
    }
    if compute_capability < (9, 0) {
        return &kernels.few;
    }
    let cost = |of: &Retrieval<D>| of.cost(rows, heads, n, multiprocessors);
    if cost(&kernels.quarters) < cost(&kernels.halves) { &kernels.quarters } else { &kernels.halves }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::{RoutingInput, choose};

    /// The name of the kernel for `tokens` tokens and eight heads that share n sub-keys.
    fn name(tokens: usize, n: usize, k: usize, capability: (u32, u32)) -> &'static str {
        choose(&bf16::KERNELS, [tokens * 8, 1, n, k], capability, 132).kernel.name
    }

    #[test]
    fn few_rows_are_cut_into_more_blocks_than_many() {
        for tokens in [1, 16, 256, 512] {
            assert_eq!(name(tokens, 1024, 16, (9, 0)), "product_key_topk_cluster_bf16_8", "{tokens}");
        }
        for tokens in [1024, 2048, 16384] {
            assert_eq!(name(tokens, 1024, 16, (9, 0)), "product_key_topk_cluster_bf16_2", "{tokens}");
        }
        // Nothing can be cut.
        assert_eq!(name(1, 256, 16, (9, 0)), "product_key_topk_cluster_bf16_2");
    }

    #[test]
    fn many_experts_and_devices_without_clusters_have_kernels_of_their_own() {
        assert_eq!(name(1, 1024, 32, (8, 9)), "product_key_topk_bf16_32");
        assert_eq!(name(1, 1024, 33, (8, 9)), "product_key_topk_bf16_64");
        assert_eq!(name(1, 1024, 33, (9, 0)), "product_key_topk_bf16_64");
        assert_eq!(name(1, 1024, 32, (12, 0)), "product_key_topk_cluster_bf16_8");
    }

    #[test]
    fn blocks_cover_all_rows_in_whole_clusters() {
        let quarters = &bf16::KERNELS.quarters;
        assert_eq!([1, 64, 65].map(|rows| quarters.grid_x(rows)), [8, 8, 16]);
        assert_eq!([1, 32, 33].map(|rows| bf16::KERNELS.few.grid_x(rows)), [1, 1, 2]);
    }
}
