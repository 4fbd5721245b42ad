//! The launches of the kernels that evaluate experts: which kernel, and how a block's threads share columns and hidden units.

use warpsmith_dsl::experts::{ExpertParams, ExpertRows, ExpertShape, Int4, Int8, MAX_SPLITS};
use warpsmith_dsl::float::{Bf16, F8E4M3, F16};
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel};
use warpsmith_kernels::expert_mlp::{Token, TokenOfMany, expert_mlp};
use warpsmith_kernels::expert_mlp_cluster::{TokenOfCluster, expert_mlp_cluster};

use super::layout::{ExpertFormat, ExpertLayout};
use crate::device::Device;
use crate::error::Result;
use crate::stream::Stream;

/// The arguments of a kernel.
pub(super) type Args = (Global<u8>, Global<u32>, Global<f32>, ExpertRows, GlobalMut<u8>, ExpertParams);

/// A kernel and its launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// What the kernel declares.
    pub(super) kernel: Declaration,
    /// Launches it.
    pub(super) launch: Launch,
    /// Blocks of the launch.
    pub(super) blocks: u32,
    /// Chunks of v that a block adds up at a time.
    pub(super) lanes: u32,
    /// Threads that share the units of a chunk.
    pub(super) splits: u32,
}

type Launch = unsafe fn(&Device, &Stream, u32, Args) -> Result<()>;

/// A kernel for a format.
#[derive(Clone, Copy, Debug)]
struct Instance {
    kernel: Declaration,
    launch: Launch,
    cluster: u32,
    /// Units of a set, and what a block has room for.
    set: u32,
    units: u32,
}

impl Instance {
    fn of<K: Kernel<Args = Args>, S: ExpertShape>() -> Self {
        let (cluster, set, units) = (S::CLUSTER, S::SET, S::UNITS);
        Self { kernel: K::DECLARATION, launch: launch::<K>, cluster, set, units }
    }
}

/// Launches the kernel `K`.
///
/// # Safety
///
/// As for [`ExpertShape::evaluate`], until the stream's work is done.
unsafe fn launch<K: Kernel<Args = Args>>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    args: Args,
) -> Result<()> {
    let kernel = device.kernel::<K>()?;
    // SAFETY: the caller's promise is the kernel's.
    unsafe { kernel.launch(stream, [blocks, 1, 1], args) }
}

/// A block for each token.
fn one_block(format: ExpertFormat) -> Instance {
    match format {
        ExpertFormat::F32 => Instance::of::<expert_mlp<Token<f32>>, Token<f32>>(),
        ExpertFormat::F16 => Instance::of::<expert_mlp<Token<F16>>, Token<F16>>(),
        ExpertFormat::Bf16 => Instance::of::<expert_mlp<Token<Bf16>>, Token<Bf16>>(),
        ExpertFormat::Int8 => Instance::of::<expert_mlp<Token<Int8>>, Token<Int8>>(),
        ExpertFormat::Int4 => Instance::of::<expert_mlp<TokenOfMany<Int4>>, TokenOfMany<Int4>>(),
        ExpertFormat::F8E4M3 => Instance::of::<expert_mlp<Token<F8E4M3>>, Token<F8E4M3>>(),
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

/// Tokens for each multiprocessor from which on a block for each keeps the memory busy: it holds so many blocks' loads in flight.
const TOKENS_OF_BLOCKS: u32 = 2;

/// The kernel that evaluates `experts` experts of each of `tokens` tokens, at least one, on a device of so many multiprocessors: by clusters if there
/// are few tokens, and a unit or more for each of a cluster's warps.
pub(super) fn choose(
    layout: &ExpertLayout,
    tokens: usize,
    experts: usize,
    compute_capability: (u32, u32),
    multiprocessors: u32,
) -> Choice {
    let of_cluster = cluster(layout.format());
    let units = (experts * layout.hidden()) as u32;
    let share = units.div_ceil(of_cluster.set).div_ceil(of_cluster.cluster) * of_cluster.set;
    let by_cluster = compute_capability >= (9, 0)
        && tokens < (multiprocessors * TOKENS_OF_BLOCKS) as usize
        && share <= of_cluster.units
        && units >= of_cluster.cluster * of_cluster.kernel.block[0] / WARP;
    let Instance { kernel, launch, cluster, .. } =
        if by_cluster { of_cluster } else { one_block(layout.format()) };
    let (lanes, splits) = share_of_threads(layout, kernel.block[0]);
    // Fewer than 2³¹ tokens.
    Choice { kernel, launch, blocks: tokens as u32 * cluster, lanes, splits }
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
    use super::{MAX_SPLITS, choose, cluster, one_block, share_of_threads};
    use crate::ops::peer::{ExpertFormat, ExpertLayout};

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
        let choice = choose(&layout, 2048, 128, (9, 0), 132);
        assert_eq!((choice.blocks, choice.lanes, choice.splits), (2048, 128, 1));
        let few = choose(&layout, 16, 128, (9, 0), 132);
        assert_eq!((few.blocks, few.lanes, few.splits), (8 * 16, 128, 2));
        assert!(few.kernel.name.contains("cluster"));
    }

    #[test]
    fn clusters_take_few_tokens_of_many_units_that_fit_where_there_are_clusters() {
        let layout = ExpertLayout::new(ExpertFormat::Int8, 64, 2, 64, false).expect("sizes are fine");
        let is_cluster = |tokens, experts, capability| {
            choose(&layout, tokens, experts, capability, 132).kernel.cluster != [1; 3]
        };
        assert!(is_cluster(1, 128, (9, 0)) && is_cluster(263, 32, (10, 0)) && is_cluster(1, 1024, (9, 0)));
        assert!(!is_cluster(1, 128, (8, 9)) && !is_cluster(264, 128, (9, 0)));
        assert!(!is_cluster(1, 31, (9, 0)) && !is_cluster(1, 1025, (9, 0)));
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
