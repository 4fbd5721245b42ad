//! The launches of the kernels that retrieve experts: which kernel, and how many blocks.

use half::{bf16, f16};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel};
use warpsmith_dsl::product_key::{
    ProductKeyGradientParams, ProductKeyParams, ProductKeyShape, QueryNormParams,
};
use warpsmith_kernels::product_key_gradient::product_key_gradient;
use warpsmith_kernels::product_key_topk::{Few, Many, product_key_topk};
use warpsmith_kernels::product_key_topk_cluster::{
    InRounds, OfFewRows, OfManyRows, product_key_topk_cluster,
};

use crate::error::Result;
use crate::kernel::is_built;
use crate::ops::linear::LinearInput;
use crate::ops::rows::RowElement;
use crate::stream::Stream;

/// The arguments of a kernel for sub-keys of type `D`.
pub(super) type Args<D> =
    (Global<f32>, Global<D>, Global<D>, QueryNormParams, GlobalMut<u32>, GlobalMut<f32>, ProductKeyParams);

/// The arguments of a kernel for gradients.
type GradientArgs<D> =
    (Global<f32>, Global<D>, Global<D>, QueryNormParams, ProductKeyGradientParams, ProductKeyParams);

/// An element type of tokens, projection and sub-keys: [`f16`](half::f16), [`bf16`](half::bf16) or `f32`.
pub trait RoutingInput: LinearInput + RowElement {
    /// The kernels for it.
    #[doc(hidden)]
    const KERNELS: Kernels<Self::Device>;

    /// The kernel for gradients.
    #[doc(hidden)]
    type Gradient: Kernel<Args = GradientArgs<Self::Device>>;
}

impl RoutingInput for f16 {
    type Gradient = product_key_gradient<F16>;
    const KERNELS: Kernels<F16> = Kernels {
        few: Retrieval::of::<product_key_topk<Few<F16>>, Few<F16>>(),
        many: Retrieval::of::<product_key_topk<Many<F16>>, Many<F16>>(),
        clusters: &[
            Retrieval::of_cluster::<product_key_topk_cluster<OfFewRows<F16>>, OfFewRows<F16>>(FEW_ROWS),
            Retrieval::of_cluster::<product_key_topk_cluster<OfManyRows<F16>>, OfManyRows<F16>>(MANY_ROWS),
        ],
        rounds: Some(Retrieval::of_cluster::<product_key_topk_cluster<InRounds<F16>>, InRounds<F16>>(
            MANY_ROWS,
        )),
    };
}
impl RoutingInput for bf16 {
    type Gradient = product_key_gradient<Bf16>;
    const KERNELS: Kernels<Bf16> = Kernels {
        few: Retrieval::of::<product_key_topk<Few<Bf16>>, Few<Bf16>>(),
        many: Retrieval::of::<product_key_topk<Many<Bf16>>, Many<Bf16>>(),
        clusters: &[
            Retrieval::of_cluster::<product_key_topk_cluster<OfFewRows<Bf16>>, OfFewRows<Bf16>>(FEW_ROWS),
            Retrieval::of_cluster::<product_key_topk_cluster<OfManyRows<Bf16>>, OfManyRows<Bf16>>(MANY_ROWS),
        ],
        rounds: Some(Retrieval::of_cluster::<product_key_topk_cluster<InRounds<Bf16>>, InRounds<Bf16>>(
            MANY_ROWS,
        )),
    };
}
impl RoutingInput for f32 {
    type Gradient = product_key_gradient<f32>;
    const KERNELS: Kernels<f32> = Kernels {
        few: Retrieval::of::<product_key_topk<Few<f32>>, Few<f32>>(),
        many: Retrieval::of::<product_key_topk<Many<f32>>, Many<f32>>(),
        clusters: &[Retrieval::of_cluster::<product_key_topk_cluster<OfFewRows<f32>>, OfFewRows<f32>>(
            FEW_ROWS,
        )],
        rounds: None,
    };
}

/// What blocks of 32 and of 64 rows take with bfloat16 sub-keys of 128 columns: see [`Retrieval::times`]. From layers of 16 to 2048 tokens.
const FEW_ROWS: [f64; 2] = [8.3, 4.7];
const MANY_ROWS: [f64; 2] = [17.0, 8.0];

/// The kernels for a type.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Kernels<D: 'static> {
    few: Retrieval<D>,
    many: Retrieval<D>,
    clusters: &'static [Retrieval<D>],
    /// That of `clusters` of which multiprocessors hold two blocks, for grids with fewer clusters than there are rows for.
    rounds: Option<Retrieval<D>>,
}

/// The blocks that find the experts of a retrieval's rows: of each token the queries of its heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RetrievalBlocks {
    /// One for 32 rows.
    One,
    /// So many blocks, 2, 4 or 8, for so many rows, 32 or with 16-bit sub-keys 64: for up to 32 experts, on GPUs of compute capability 9.0 and later
    /// that have shared memory enough.
    Cluster {
        /// Rows of a cluster.
        rows: u32,
        /// Blocks of a cluster.
        blocks: u32,
    },
}

impl core::fmt::Display for RetrievalBlocks {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::One => f.pad("one block for 32 rows"),
            Self::Cluster { rows, blocks } => f.pad(&format!("{blocks} blocks for {rows} rows")),
        }
    }
}

/// A kernel, and how it is launched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retrieval<D> {
    /// What the kernel declares.
    pub(super) kernel: Declaration,
    launch: LaunchFn<D>,
    /// Rows of a block or cluster, and experts that are found at most.
    rows: u32,
    most: u32,
    /// Sub-keys that a block multiplies at a time, and blocks that a multiprocessor holds.
    chunk: u32,
    resident: u32,
    /// Microseconds on an H100 of a block besides its chunks, and of a chunk; 0 where there is nothing to choose.
    times: [f64; 2],
}

/// Launches a kernel on such a grid, in clusters of so many blocks along x, of which no two are on a multiprocessor if that is asked for.
type LaunchFn<D> = unsafe fn(&Stream, [u32; 3], (u32, bool), Args<D>) -> Result<()>;

impl<D> Retrieval<D> {
    const fn of<K: Kernel<Args = Args<D>>, S: ProductKeyShape>() -> Self {
        Self {
            kernel: K::DECLARATION,
            launch: launch::<D, K>,
            rows: S::ROWS,
            most: S::MOST,
            chunk: S::CHUNK,
            resident: S::MIN_BLOCKS,
            times: [0.0; 2],
        }
    }

    const fn of_cluster<K: Kernel<Args = Args<D>>, S: ProductKeyShape>(times: [f64; 2]) -> Self {
        Self { launch: launch_clusters::<D, K>, times, ..Self::of::<K, S>() }
    }

    /// How many clusters of so many blocks find room at a time. Parts of the GPU have room for whole clusters only: for about a tenth less where they
    /// are large.
    fn room(&self, cluster: u32, multiprocessors: u32) -> usize {
        (multiprocessors * self.resident * if cluster == 2 { 10 } else { 9 } / 10 / cluster) as usize
    }

    /// How long it takes in clusters of so many blocks, for rows that share sub-keys, of each of `heads` groups of them.
    fn time(&self, [rows, heads, n]: [usize; 3], cluster: u32, multiprocessors: u32) -> f64 {
        let clusters = rows.div_ceil(self.rows as usize) * heads;
        let waves = clusters.div_ceil(self.room(cluster, multiprocessors).max(1));
        // Each block has a half of the queries, and all blocks of the cluster for that half share the sub-keys.
        let chunks = n.div_ceil(self.chunk as usize).div_ceil(cluster as usize / 2);
        waves as f64 * (self.times[0] + chunks as f64 * self.times[1])
    }
}

/// Launches the kernel `K`, which knows no clusters.
///
/// # Safety
///
/// As for [`ProductKeyShape::retrieve`], until the stream's work is done.
unsafe fn launch<D, K: Kernel<Args = Args<D>>>(
    stream: &Stream,
    grid: [u32; 3],
    _: (u32, bool),
    args: Args<D>,
) -> Result<()> {
    let kernel = stream.device().kernel::<K>()?;
    // SAFETY: the caller's promise is the kernel's.
    unsafe { kernel.launch(stream, grid, args) }
}

/// Launches the kernel `K` in clusters.
///
/// # Safety
///
/// As for [`ProductKeyShape::retrieve`], until the stream's work is done.
unsafe fn launch_clusters<D, K: Kernel<Args = Args<D>>>(
    stream: &Stream,
    grid: [u32; 3],
    (cluster, apart): (u32, bool),
    args: Args<D>,
) -> Result<()> {
    let kernel = stream.device().kernel::<K>()?;
    let cluster = [cluster, 1, 1];
    // SAFETY: the caller's promise is the kernel's.
    unsafe {
        if apart {
            kernel.launch_early_clusters_apart(stream, grid, cluster, args)
        } else {
            kernel.launch_early_clusters(stream, grid, cluster, args)
        }
    }
}

/// A launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice<D> {
    /// What the kernel declares.
    pub(super) kernel: Declaration,
    launch: LaunchFn<D>,
    /// Blocks.
    pub(super) grid: [u32; 3],
    /// Blocks that share rows: 1, 2, 4 or 8.
    pub(super) cluster: u32,
    /// Whether a multiprocessor is to have one block only.
    apart: bool,
}

impl<D> Choice<D> {
    /// `of` for rows that share sub-keys, of each of `heads` groups of them.
    fn of(of: &Retrieval<D>, [rows, heads]: [usize; 2], cluster: u32) -> Self {
        // Fewer than 2³¹ rows, and heads that a grid takes.
        let grid = [(rows as u32).div_ceil(of.rows) * cluster, heads as u32, 1];
        Self { kernel: of.kernel, launch: of.launch, grid, cluster, apart: false }
    }

    /// Launches the kernel.
    ///
    /// # Safety
    ///
    /// The arguments are valid for what the kernel does with them until the stream's work is done.
    pub(super) unsafe fn launch(&self, stream: &Stream, args: Args<D>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { (self.launch)(stream, self.grid, (self.cluster, self.apart), args) }
    }
}

/// The launch that finds `k` experts of n² for so many rows that share sub-keys, of each of `heads` groups of them. By clusters
/// where there are any and a block may have the `shared_bytes` that they take, and by as many blocks as keep the
/// multiprocessors busy.
pub(super) fn choose<D>(
    kernels: &Kernels<D>,
    [rows, heads, n, k]: [usize; 4],
    compute_capability: (u32, u32),
    [multiprocessors, shared_bytes]: [u32; 2],
) -> Choice<D> {
    let of = |retrieval: &Retrieval<D>, cluster: u32| Choice::of(retrieval, [rows, heads], cluster);
    if k > kernels.few.most as usize {
        return of(&kernels.many, 1);
    }
    let takes = |retrieval: &Retrieval<D>| retrieval.kernel.shared_bytes;
    let is_missing = |of: &Retrieval<D>| !is_built(of.kernel.family) || shared_bytes < takes(of);
    if compute_capability < (9, 0) || kernels.clusters.iter().any(is_missing) {
        return of(&kernels.few, 1);
    }
    let candidates = kernels.clusters.iter().flat_map(|of| [2, 4, 8].map(|cluster| (of, cluster)));
    let candidates = candidates.filter(|(of, cluster)| of.room(*cluster, multiprocessors) > 0);
    let time = |(of, cluster): &(&Retrieval<D>, u32)| of.time([rows, heads, n], *cluster, multiprocessors);
    let best = candidates.min_by(|one, other| time(one).total_cmp(&time(other)));
    best.map_or_else(|| of(&kernels.few, 1), |(kernel, cluster)| of(kernel, cluster))
}

/// Which tokens' experts are found first, and the launch that finds the others' while those are evaluated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division<D> {
    /// Tokens that are first: some, and not all.
    pub(super) first: usize,
    /// The launch for the others.
    pub(super) others: Choice<D>,
    /// Microseconds on an H100 that it takes.
    pub(super) time: f64,
}

/// Times that a cluster takes rows beside other work, at most.
const MOST_ROUNDS: usize = 2;
/// What a block that has a multiprocessor to itself takes of the time that two of them do.
const ALONE: f64 = 0.75;

/// How tokens whose launch would be `all` are divided, if its blocks are two on a multiprocessor and come one after the other: one time or, beside other
/// work, up to [`MOST_ROUNDS`] times more. A token has so many rows that share sub-keys, in each of `heads` groups of such.
///
/// What finds room at a time comes first. The rest takes place while experts are evaluated: by a block for each multiprocessor, so that there is room
/// beside it, and by no more clusters than find room at once. While one waits for room, no block of a later launch would begin.
pub(super) fn divided<D>(
    kernels: &Kernels<D>,
    [tokens, rows_of_token, heads, n]: [usize; 4],
    all: &Choice<D>,
    multiprocessors: u32,
) -> Option<Division<D>> {
    let of = kernels.rounds.as_ref()?;
    if all.cluster != 2
        || !kernels.clusters.iter().any(|like| like.kernel.name == all.kernel.name && like.rows == of.rows)
    {
        return None;
    }
    // Whole tokens, so that the last cluster may have fewer rows than it could.
    let first = of.room(2, multiprocessors) / heads * of.rows as usize / rows_of_token;
    let at_once = multiprocessors as usize / 2 / heads;
    if first == 0 || tokens <= first || at_once == 0 {
        return None;
    }
    let rows = (tokens - first) * rows_of_token;
    let clusters = rows.div_ceil(of.rows as usize);
    let rounds = clusters.div_ceil(at_once);
    if rounds > MOST_ROUNDS {
        return None;
    }
    let others = Choice::of(of, [clusters.div_ceil(rounds) * of.rows as usize, heads], 2);
    let chunks = n.div_ceil(of.chunk as usize) as f64;
    let time = rounds as f64 * ALONE * (of.times[0] + chunks * of.times[1]);
    Some(Division { first, others: Choice { apart: true, ..others }, time })
}

/// The launch of these blocks, if there are such for `k` experts.
pub(super) fn forced<D>(
    kernels: &Kernels<D>,
    [rows, heads, k]: [usize; 3],
    blocks: RetrievalBlocks,
) -> Option<Choice<D>> {
    let (of, cluster) = match blocks {
        RetrievalBlocks::One if k > kernels.few.most as usize => (&kernels.many, 1),
        RetrievalBlocks::One => (&kernels.few, 1),
        RetrievalBlocks::Cluster { rows, blocks } => {
            let of = kernels.clusters.iter().find(|of| of.rows == rows && k <= of.most as usize)?;
            (of, [2, 4, 8].contains(&blocks).then_some(blocks)?)
        }
    };
    Some(Choice::of(of, [rows, heads], cluster))
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::{Choice, Division, RoutingInput, choose, divided};

    /// The launch for `tokens` tokens and eight heads that share n sub-keys.
    fn of(tokens: usize, n: usize, k: usize, capability: (u32, u32)) -> Choice<warpsmith_dsl::float::Bf16> {
        let kib = if capability >= (12, 0) { 99 } else { 227 };
        choose(&bf16::KERNELS, [tokens * 8, 1, n, k], capability, [132, kib << 10])
    }

    /// The first tokens, and the grid for the others, where tokens have so many rows for each of so many heads with sub-keys of their own.
    fn division(tokens: usize, rows: usize, heads: usize) -> Option<(usize, [u32; 3])> {
        let all = choose(&bf16::KERNELS, [tokens * rows, heads, 1024, 16], (9, 0), [132, 227 << 10]);
        let Division { first, others, .. } = divided(&bf16::KERNELS, [tokens, rows, heads, 1024], &all, 132)?;
        Some((first, others.grid))
    }

    #[test]
    fn tokens_are_divided_where_two_blocks_one_after_the_other_would_take_them() {
        // Eight heads that have sub-keys of their own, or share them.
        assert_eq!(division(2048, 1, 8), Some((1024, [16, 8, 1])));
        assert_eq!(division(2048, 8, 1), Some((1056, [124, 1, 1])));
        assert_eq!(division(1320, 8, 1), None, "blocks of 32 rows take less time");
        assert_eq!(division(1321, 8, 1), Some((1056, [68, 1, 1])));
        // One round of at most 66 clusters, or two.
        assert_eq!(division(1584, 8, 1), Some((1056, [132, 1, 1])));
        assert_eq!(division(1585, 8, 1), Some((1056, [68, 1, 1])));
        assert_eq!(division(2112, 8, 1), Some((1056, [132, 1, 1])));
        assert_eq!(division(2113, 8, 1), None, "a third round");
        let all = of(2048, 1024, 16, (8, 0));
        assert!(divided(&bf16::KERNELS, [2048, 8, 1, 1024], &all, 132).is_none(), "no clusters");
        let all = choose(&f32::KERNELS, [8 * 2048, 1, 1024, 16], (9, 0), [132, 227 << 10]);
        assert!(divided(&f32::KERNELS, [2048, 8, 1, 1024], &all, 132).is_none(), "no blocks of 64 rows");
    }

    #[test]
    fn clusters_are_counted_for_the_tokens_that_are_left_whole() {
        // 8448 rows find room at a time, which are 1689 tokens of five heads and three rows of the next one. Those rows are found with the others.
        assert_eq!(division(2533, 5, 1), Some((1689, [132, 1, 1])));
        assert_eq!(division(2534, 5, 1), Some((1689, [68, 1, 1])), "4224 rows and one more: a second round");
        assert_eq!(division(3378, 5, 1), Some((1689, [132, 1, 1])));
        assert_eq!(division(3379, 5, 1), None, "8448 rows and two more: a third round");
    }

    #[test]
    fn few_rows_are_shared_by_more_blocks_than_many() {
        let choice = |tokens, n| {
            let Choice { kernel, grid, cluster, .. } = of(tokens, n, 16, (9, 0));
            (kernel.name, grid[0], cluster)
        };
        let [few, many] = ["product_key_topk_cluster_32_bf16", "product_key_topk_cluster_64_bf16"];
        assert_eq!(choice(1, 1024), (few, 4, 4));
        assert_eq!(choice(64, 1024), (few, 64, 4));
        // Twice as many clusters of four would not find room.
        assert_eq!(choice(128, 1024), (few, 64, 2));
        assert_eq!(choice(256, 1024), (few, 128, 2));
        assert_eq!(choice(512, 1024), (few, 256, 2));
        assert_eq!(
            [1024, 2048, 16384].map(|tokens| choice(tokens, 1024)),
            [256, 512, 4096].map(|blocks| (many, blocks, 2))
        );
        // Nothing can be shared.
        assert_eq!(choice(1, 256), (few, 2, 2));
    }

    #[test]
    fn many_experts_and_devices_without_clusters_for_them_have_kernels_of_their_own() {
        let name = |k, capability| of(1, 1024, k, capability).kernel.name;
        assert_eq!(name(32, (8, 9)), "product_key_topk_bf16_32");
        assert_eq!(name(33, (8, 9)), "product_key_topk_bf16_64");
        assert_eq!(name(33, (9, 0)), "product_key_topk_bf16_64");
        assert_eq!(name(32, (10, 0)), "product_key_topk_cluster_32_bf16");
        assert_eq!(name(32, (12, 0)), "product_key_topk_bf16_32", "too little shared memory");
        let on =
            |multiprocessors| choose(&bf16::KERNELS, [8, 1, 1024, 16], (9, 0), [multiprocessors, 227 << 10]);
        assert_eq!(
            [1, 2, 4, 9].map(|count| on(count).cluster),
            [2, 2, 2, 4],
            "no larger cluster than finds room"
        );
    }

    #[test]
    fn blocks_cover_all_rows_in_whole_clusters() {
        let clusters = |tokens| {
            let Choice { kernel, grid, cluster, .. } =
                choose(&bf16::KERNELS, [tokens, 3, 1024, 16], (9, 0), [132, 227 << 10]);
            assert_eq!(grid[1..], [3, 1]);
            assert_eq!(kernel.name, "product_key_topk_cluster_32_bf16");
            (grid[0] / cluster, grid[0] % cluster)
        };
        assert_eq!([1, 32, 33].map(clusters), [(1, 0), (1, 0), (2, 0)]);
        let blocks = |rows| choose(&bf16::KERNELS, [rows, 1, 1024, 16], (8, 0), [108, 163 << 10]).grid[0];
        assert_eq!([1, 32, 33].map(blocks), [1, 1, 2]);
    }
}
