//! The launches of the kernels that evaluate experts: which kernel, and how a block's threads share columns and hidden units.

use warpsmith_dsl::experts::{ExpertParams, ExpertRows, ExpertShape, Int4, Int8, LANES, MAX_SPLITS, SET};
use warpsmith_dsl::float::{Bf16, F8E4M3, F16};
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel};
use warpsmith_kernels::expert_mlp::{Token, TokenOfMany, expert_mlp};
use warpsmith_kernels::expert_mlp_cluster::{TokenOfCluster, expert_mlp_cluster};

use super::sorted::{Kernels, Plan};
use crate::device::{Device, Properties};
use crate::error::Result;
use crate::experts::{ExpertFormat, ExpertLayout};
use crate::kernel::is_built;
use crate::stream::Stream;

/// The arguments of a kernel.
pub(super) type Args = (Global<u8>, Global<u32>, Global<f32>, ExpertRows, GlobalMut<u8>, ExpertParams);

/// The blocks that evaluate a token's experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExpertBlocks {
    /// One block of four warps, of which a multiprocessor holds many.
    One,
    /// So many blocks of eight warps, from 1 to 8, which read their shares of the experts at the same time: on GPUs of compute capability 9.0 and
    /// later, if each block's share is at most 256 hidden units.
    Cluster(u32),
    /// None of its own: a warp has a group of tokens. All warps go through the table from its first row to its last at the same
    /// time. So rows which several tokens use are read from memory once. For rows of f32, f16 and bf16, if a token has at most
    /// 2048 hidden units.
    Sorted,
}

impl core::fmt::Display for ExpertBlocks {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::One => f.pad("one"),
            Self::Cluster(blocks) => f.pad(&format!("cluster of {blocks}")),
            Self::Sorted => f.pad("sorted"),
        }
    }
}

/// How much there is to evaluate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Tokens, at least 1.
    pub(super) tokens: usize,
    /// Experts of a token.
    pub(super) experts: usize,
    /// Experts of the table.
    pub(super) rows: usize,
}

impl Sizes {
    /// Hidden units of a token.
    pub(super) fn units(&self, layout: &ExpertLayout) -> usize {
        self.experts * layout.hidden()
    }
}

/// A kernel and its launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// What the kernel declares.
    pub(super) kernel: Declaration,
    /// Launches it.
    pub(super) launch: Launch,
    /// Blocks of the launch.
    pub(super) blocks: u32,
    /// Blocks of a token.
    pub(super) cluster: u32,
    /// Chunks of v that a block adds up at a time.
    pub(super) lanes: u32,
    /// Threads that share the units of a chunk.
    pub(super) splits: u32,
    /// Bytes of shared memory that a block has at least.
    pub(super) shared_bytes: u32,
}

/// Launches so many blocks, in clusters of so many, or else with so many bytes of shared memory at least.
type Launch = unsafe fn(&Device, &Stream, [u32; 3], Args) -> Result<()>;

/// A kernel for a format.
#[derive(Clone, Copy, Debug)]
struct Instance {
    kernel: Declaration,
    launch: Launch,
    /// The most blocks of a cluster.
    most: u32,
    /// Hidden units that a block has room for.
    units: u32,
}

impl Instance {
    fn of<K: Kernel<Args = Args>, S: ExpertShape>() -> Self {
        let launch = if S::CLUSTER > 1 { launch_clusters::<K> } else { launch::<K> };
        Self { kernel: K::DECLARATION, launch, most: S::CLUSTER, units: S::UNITS }
    }
}

/// Launches the kernel `K`, which knows no clusters.
///
/// # Safety
///
/// As for [`ExpertShape::evaluate`], until the stream's work is done.
unsafe fn launch<K: Kernel<Args = Args>>(
    device: &Device,
    stream: &Stream,
    [blocks, _, shared_bytes]: [u32; 3],
    args: Args,
) -> Result<()> {
    let kernel = device.kernel::<K>()?;
    // SAFETY: the caller's promise is the kernel's.
    unsafe { kernel.launch_roomy(stream, [blocks, 1, 1], shared_bytes, args) }
}

/// Launches the kernel `K` in clusters.
///
/// # Safety
///
/// As for [`ExpertShape::evaluate`], until the stream's work is done.
unsafe fn launch_clusters<K: Kernel<Args = Args>>(
    device: &Device,
    stream: &Stream,
    [blocks, cluster, _]: [u32; 3],
    args: Args,
) -> Result<()> {
    let kernel = device.kernel::<K>()?;
    // SAFETY: the caller's promise is the kernel's.
    unsafe { kernel.launch_early_clusters(stream, [blocks, 1, 1], [cluster, 1, 1], args) }
}

/// A block for each token.
fn one_block(format: ExpertFormat) -> Instance {
    match format {
        ExpertFormat::F32 => Instance::of::<expert_mlp<Token<f32>>, Token<f32>>(),
        ExpertFormat::F16 => Instance::of::<expert_mlp<Token<F16>>, Token<F16>>(),
        ExpertFormat::Bf16 => Instance::of::<expert_mlp<Token<Bf16>>, Token<Bf16>>(),
        ExpertFormat::Int8 => Instance::of::<expert_mlp<TokenOfMany<Int8>>, TokenOfMany<Int8>>(),
        ExpertFormat::Int4 => Instance::of::<expert_mlp<TokenOfMany<Int4>>, TokenOfMany<Int4>>(),
        ExpertFormat::F8E4M3 => Instance::of::<expert_mlp<TokenOfMany<F8E4M3>>, TokenOfMany<F8E4M3>>(),
    }
}

/// A cluster of blocks for each token.
fn cluster(format: ExpertFormat) -> Instance {
    match format {
        ExpertFormat::F32 => Instance::of::<expert_mlp_cluster<TokenOfCluster<f32>>, TokenOfCluster<f32>>(),
        ExpertFormat::F16 => Instance::of::<expert_mlp_cluster<TokenOfCluster<F16>>, TokenOfCluster<F16>>(),
        ExpertFormat::Bf16 => {
            Instance::of::<expert_mlp_cluster<TokenOfCluster<Bf16>>, TokenOfCluster<Bf16>>()
        }
        ExpertFormat::Int8 => {
            Instance::of::<expert_mlp_cluster<TokenOfCluster<Int8>>, TokenOfCluster<Int8>>()
        }
        ExpertFormat::Int4 => {
            Instance::of::<expert_mlp_cluster<TokenOfCluster<Int4>>, TokenOfCluster<Int4>>()
        }
        ExpertFormat::F8E4M3 => {
            Instance::of::<expert_mlp_cluster<TokenOfCluster<F8E4M3>>, TokenOfCluster<F8E4M3>>()
        }
    }
}

/// Hidden units of which a block of a cluster of `blocks` has its share, if so many blocks can share a token of `units` hidden units.
pub(super) fn share_of_units(format: ExpertFormat, units: u32, blocks: u32) -> Option<u32> {
    let of_cluster = cluster(format);
    if !(1..=of_cluster.most).contains(&blocks) {
        return None;
    }
    let share = units.div_ceil(SET as u32).div_ceil(blocks) * SET as u32;
    (share <= of_cluster.units).then_some(share)
}

/// What evaluates the experts of some tokens, at least one, on a device of these properties.
///
/// Of many tokens, what [pays](is_sorted) to sort is sorted. Of few, as many blocks have a token, up to a cluster's most, as all [find room](of_multiprocessor) at the same
/// time and have a hidden unit or more for each of their warps. If not even one for each token finds room, then smaller ones.
pub(super) fn choose_blocks(layout: &ExpertLayout, sizes: &Sizes, properties: &Properties) -> ExpertBlocks {
    let &Sizes { tokens, .. } = sizes;
    let &Properties { compute_capability, multiprocessors, .. } = properties;
    if is_built("expert_mlp_sorted") && is_sorted(layout, sizes, properties) {
        return ExpertBlocks::Sorted;
    }
    let Instance { kernel, most, .. } = cluster(layout.format());
    let (units, warps) = (sizes.units(layout) as u32, kernel.block[0] / WARP);
    if compute_capability < (9, 0) || !is_built("expert_mlp_cluster") {
        return ExpertBlocks::One;
    }
    let mut blocks = most;
    while blocks > 0 {
        // Only multiprocessors that are neighbours share a cluster: some are left over.
        let room = multiprocessors / blocks * blocks * of_multiprocessor(layout, kernel, blocks);
        if tokens.saturating_mul(blocks as usize) <= room as usize
            && units >= blocks * warps
            && share_of_units(layout.format(), units, blocks).is_some()
        {
            return ExpertBlocks::Cluster(blocks);
        }
        blocks /= 2;
    }
    ExpertBlocks::One
}

/// Blocks of clusters of `blocks` that a multiprocessor is to have at a time: as many as it holds where a token has one, or two of long rows; otherwise one. That
/// is measured on an H100, with the layer that PEER is measured by. Of 64 tokens, clusters of two take 0.78 times as long as
/// clusters of four, which are two for each multiprocessor. For rows of 8 and 4 bits they take 0.62 to 0.73 times as long. Of
/// 128, single
/// blocks 0.92 times as long as clusters of two for such rows, but 1.03 times for those of bf16.
fn of_multiprocessor(layout: &ExpertLayout, kernel: Declaration, blocks: u32) -> u32 {
    let most = if layout.format().is_scaled() { 1 } else { 2 };
    if blocks <= most { kernel.min_blocks_per_sm } else { 1 }
}

/// Bytes of level-2 cache from which on rows stay there until all warps have used them: the rows of three parts of a table as PEER has it.
const CACHE_BYTES: u64 = 32 << 20;

/// Whether it pays to go through the table in its order.
///
/// Where rows are read from memory anyway, that saves the reads of those that several of the tokens use which are worked at the
/// same time. Half of them or more if these tokens use, on the average, each row of the table. What it takes is paid for by a
/// quarter of that. On an H100, with the layer that PEER is measured by, sorted experts take 1.06 times as long where tokens
/// use a quarter as many experts as there are. They take 0.93 times as long for half as many, 0.77 for as many, and 0.56 for
/// twice as many. Experts that are used more often than others make less of a difference, but change nothing about which is
/// faster.
fn is_sorted(layout: &ExpertLayout, sizes: &Sizes, properties: &Properties) -> bool {
    let &Sizes { tokens, experts, rows } = sizes;
    let units = sizes.units(layout);
    let Some(kernels) = Kernels::of(layout.format()) else { return false };
    let Some(plan) = Plan::new(&kernels, [tokens, units, rows], properties) else { return false };
    let is_in_cache = (rows as u64).saturating_mul(layout.row_bytes() as u64) <= properties.l2_bytes;
    // A slice of columns is not to be much more than there are.
    let has_slices = layout.input_chunks().min(layout.output_chunks()) >= LANES as usize;
    has_slices
        && !is_in_cache
        && properties.l2_bytes >= CACHE_BYTES
        && tokens >= kernels.groups_at_once(properties)
        && plan.tokens.saturating_mul(experts) >= rows / 2
}

/// The launch of these blocks, which share tokens of so many experts.
pub(super) fn choose(layout: &ExpertLayout, tokens: usize, blocks: ExpertBlocks) -> Choice {
    let (instance, cluster) = match blocks {
        ExpertBlocks::One | ExpertBlocks::Sorted => (one_block(layout.format()), 1),
        ExpertBlocks::Cluster(cluster) => (self::cluster(layout.format()), cluster),
    };
    let Instance { kernel, launch, .. } = instance;
    let (lanes, splits) = share_of_threads(layout, kernel.block[0]);
    // Fewer than 2³¹ tokens.
    Choice { kernel, launch, blocks: tokens as u32 * cluster, cluster, lanes, splits, shared_bytes: 0 }
}

/// Bytes of shared memory of a block beside blocks of retrieval, each of which has half of a multiprocessor's: two find room beside one of those, and four where
/// there is none.
///
/// All of a multiprocessor's shared memory is asked for then, by both kernels: it takes no blocks of kernels for which it is divided otherwise from
/// the cache until it is empty.
pub(super) fn shared_bytes_beside(properties: &Properties) -> u32 {
    let Properties { shared_per_multiprocessor, reserved_shared_per_block, .. } = *properties;
    (shared_per_multiprocessor / 4).saturating_sub(2 * reserved_shared_per_block)
}

/// Threads of a warp.
const WARP: u32 = 32;

/// How `threads` threads share chunks of columns and units: as many chunks at a time as there are threads, or as there are; in passes of about
/// the same number. Threads that are left share the units.
fn share_of_threads(layout: &ExpertLayout, threads: u32) -> (u32, u32) {
    let chunks = (layout.o().div_ceil(layout.format().chunk()) as u32).max(1);
    let lanes = chunks.div_ceil(chunks.div_ceil(threads));
    (lanes, (threads / lanes).clamp(1, MAX_SPLITS))
}

#[cfg(test)]
mod tests {
    use super::{
        ExpertBlocks, MAX_SPLITS, Sizes, choose, choose_blocks, cluster, one_block, share_of_threads,
    };
    use crate::device::{Device, EmulatorOptions, Properties};
    use crate::ops::peer::{ExpertFormat, ExpertLayout};

    /// Of a GPU as large as an H100.
    fn properties(compute_capability: (u32, u32)) -> Properties {
        let device = Device::emulator_with(EmulatorOptions {
            compute_capability: (9, 0),
            ..EmulatorOptions::default()
        });
        Properties { compute_capability, ..device.properties().clone() }
    }

    /// What is chosen for so many experts of so many tokens, of a million.
    fn chosen(layout: &ExpertLayout, tokens: usize, experts: usize, capability: (u32, u32)) -> ExpertBlocks {
        choose_blocks(layout, &Sizes { tokens, experts, rows: 1 << 20 }, &properties(capability))
    }

    #[test]
    fn threads_have_all_columns_and_none_twice() {
        for format in ExpertFormat::ALL {
            for o in [1, 7, 64, 1000, 1024, 1025, 4096, 5000] {
                let layout = ExpertLayout::new(format, 8, 1, o, false).expect("sizes are fine");
                for threads in [128, 256] {
                    let (lanes, splits) = share_of_threads(&layout, threads);
                    assert!((1..=threads).contains(&lanes) && (1..=MAX_SPLITS).contains(&splits));
                    assert!(lanes * splits <= threads, "{format} {o}");
                    let chunks = o.div_ceil(layout.format().chunk()) as u32;
                    let passes = chunks.div_ceil(lanes);
                    assert_eq!(passes, chunks.div_ceil(threads), "no more passes than are needed");
                }
            }
        }
    }

    #[test]
    fn the_reference_configuration_keeps_every_thread_busy() {
        let layout = ExpertLayout::new(ExpertFormat::Bf16, 1024, 1, 1024, false).expect("sizes are fine");
        let of = |tokens| choose(&layout, tokens, chosen(&layout, tokens, 128, (9, 0)));
        let many = of(2048);
        assert_eq!((many.blocks, many.cluster, many.lanes, many.splits), (2048, 1, 128, 1));
        let few = of(16);
        assert_eq!((few.blocks, few.cluster, few.lanes, few.splits), (8 * 16, 8, 128, 2));
        assert!(few.kernel.name.contains("cluster") && !many.kernel.name.contains("cluster"));
    }

    #[test]
    fn a_token_has_as_many_blocks_as_find_room_at_the_same_time() {
        let layout = ExpertLayout::new(ExpertFormat::Bf16, 1024, 1, 1024, false).expect("sizes are fine");
        let blocks = |tokens| chosen(&layout, tokens, 128, (9, 0));
        for (most, tokens) in [(8, 1), (8, 16), (4, 17), (4, 33), (2, 34), (2, 132), (1, 133), (1, 264)] {
            assert_eq!(blocks(tokens), ExpertBlocks::Cluster(most), "{tokens}");
        }
        assert_eq!(blocks(265), ExpertBlocks::One);
        let short = ExpertLayout::new(ExpertFormat::Int4, 1024, 1, 1024, false).expect("sizes are fine");
        for (most, tokens) in [(8, 16), (4, 33), (2, 66), (1, 67), (1, 264)] {
            assert_eq!(chosen(&short, tokens, 128, (9, 0)), ExpertBlocks::Cluster(most), "{tokens}");
        }
    }

    #[test]
    fn clusters_take_tokens_of_many_units_that_fit_where_there_are_clusters() {
        let layout = ExpertLayout::new(ExpertFormat::Int8, 64, 2, 64, false).expect("sizes are fine");
        let of = |tokens, experts, capability| chosen(&layout, tokens, experts, capability);
        assert_eq!(of(1, 128, (9, 0)), ExpertBlocks::Cluster(8));
        assert_eq!(of(1, 1024, (10, 0)), ExpertBlocks::Cluster(8));
        assert_eq!(of(1, 31, (9, 0)), ExpertBlocks::Cluster(4), "a unit for each warp");
        assert_eq!(of(1, 4, (9, 0)), ExpertBlocks::Cluster(1));
        assert_eq!(of(200, 256, (9, 0)), ExpertBlocks::One, "more units than a block has room for");
        assert_eq!(of(1, 3, (9, 0)), ExpertBlocks::One);
        assert_eq!(of(1, 1025, (9, 0)), ExpertBlocks::One);
        assert_eq!(of(1, 128, (8, 9)), ExpertBlocks::One);
    }

    #[test]
    fn experts_are_sorted_where_tokens_use_half_as_many_as_there_are() {
        let of = |format| ExpertLayout::new(format, 1024, 1, 1024, false).expect("sizes are fine");
        let layout = of(ExpertFormat::Bf16);
        assert_eq!(chosen(&layout, 4095, 128, (9, 0)), ExpertBlocks::One);
        for tokens in [4096, 16384, 1 << 20] {
            assert_eq!(chosen(&layout, tokens, 128, (9, 0)), ExpertBlocks::Sorted);
            assert_eq!(chosen(&of(ExpertFormat::F32), tokens, 128, (9, 0)), ExpertBlocks::Sorted);
            assert_eq!(chosen(&of(ExpertFormat::Int8), tokens, 128, (9, 0)), ExpertBlocks::One);
            assert_eq!(chosen(&layout, tokens, 2049, (9, 0)), ExpertBlocks::One, "no room for the units");
            let short = ExpertLayout::new(ExpertFormat::Bf16, 1024, 1, 248, false).expect("sizes are fine");
            assert_eq!(chosen(&short, tokens, 128, (9, 0)), ExpertBlocks::One, "less than a slice");
        }
        let sizes = |rows, tokens| Sizes { tokens, experts: 128, rows };
        let large = properties((9, 0));
        let blocks = |rows, tokens| choose_blocks(&layout, &sizes(rows, tokens), &large);
        assert_eq!(blocks(10_000, 16384), ExpertBlocks::One, "the table is in the cache");
        assert_eq!(blocks(30_000, 2111), ExpertBlocks::One, "warps without tokens");
        assert_eq!(blocks(30_000, 2112), ExpertBlocks::Sorted);
        assert_eq!(
            blocks(1 << 24, 1 << 20),
            ExpertBlocks::One,
            "of so many experts few are used by several tokens at a time"
        );
        let small = Properties { l2_bytes: 6 << 20, ..large };
        assert_eq!(choose_blocks(&layout, &sizes(1 << 20, 16384), &small), ExpertBlocks::One);
    }

    #[test]
    fn each_format_has_a_kernel_of_its_own() {
        let mut names = ExpertFormat::ALL.map(|format| one_block(format).kernel.name).to_vec();
        names.extend(ExpertFormat::ALL.map(|format| cluster(format).kernel.name));
        let mut unique = names.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), names.len());
    }
}
