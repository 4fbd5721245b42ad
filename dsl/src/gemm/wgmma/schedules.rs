//! How the warpgroups of a block share its tiles.

use core::marker::PhantomData;

/// How a block's consumers share its work.
pub trait Schedule: 'static {
    /// Warpgroups that consume.
    const CONSUMERS: u32;
    /// Warpgroups that work on the same tile.
    const CONSUMERS_OF_TILE: u32;
    /// Blocks of a cluster whose tiles are neighbours along N.
    const CLUSTER_N: u32 = 1;
}

/// Schedule `S` in clusters of which `BLOCKS` blocks are neighbours along N: they share rows of A.
pub struct AlongN<S, const BLOCKS: u32>(PhantomData<S>);

impl<S: Schedule, const BLOCKS: u32> Schedule for AlongN<S, BLOCKS> {
    const CONSUMERS: u32 = S::CONSUMERS;
    const CONSUMERS_OF_TILE: u32 = S::CONSUMERS_OF_TILE;
    const CLUSTER_N: u32 = BLOCKS;
}

/// All of `CONSUMERS` warpgroups work on one tile, each on its own rows.
pub struct Cooperative<const CONSUMERS: u32>;

impl<const CONSUMERS: u32> Schedule for Cooperative<CONSUMERS> {
    const CONSUMERS: u32 = CONSUMERS;
    const CONSUMERS_OF_TILE: u32 = CONSUMERS;
}

/// Two warpgroups have a tile each and take turns with the tensor cores.
pub struct PingPong;

impl Schedule for PingPong {
    const CONSUMERS: u32 = 2;
    const CONSUMERS_OF_TILE: u32 = 1;
}
