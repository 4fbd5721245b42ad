//! The tiles that every product has kernels for, whatever its epilogue is: none of the others is ever far from the fastest of these.

use crate::gemm::mma_sync::MmaTile;
use crate::gemm::split_k::TransposedTile;
use crate::gemm::wgmma::{AlongN, Cooperative, PingPong, WgmmaTile};

/// 128 × 128 outputs by four warps, for 16-bit types: the most products for each byte loaded.
pub type Tile128x128 = MmaTile<4, 8, 2, 2, 4, 64>;
/// 128 × 64 outputs by four warps: the largest tile for f32, which needs twice the registers for its operands.
pub type Tile128x64 = MmaTile<4, 4, 2, 2, 4, 64>;
/// 64 × 64 outputs by four warps: more blocks for a smaller Y.
pub type Tile64x64 = MmaTile<2, 4, 2, 2, 4, 128>;
/// 16 × 64 outputs by four warps: for a few rows of X, where the time goes into reading W.
pub type Tile16x64 = MmaTile<1, 2, 1, 4, 6, 128>;
/// 128 × 128 outputs by each of two warpgroups in turn.
pub type HopperPingPong128x128 = WgmmaTile<[f32; 64], 2, PingPong, 6, 1>;
/// 128 × 256 outputs by two warpgroups together, in clusters of two blocks: the most products for each byte loaded, for operands
/// that are slow to load.
pub type HopperCooperative128x256 = WgmmaTile<[f32; 128], 1, Cooperative<2>, 4, 2>;
/// 128 × 192 outputs by two warpgroups together, in clusters of two blocks along N: for a Y that a tile for each of nearly all multiprocessors covers.
/// For epilogues that need no memory, and aligned rows only.
pub type HopperCooperative128x192 = WgmmaTile<[f32; 96], 1, AlongN<Cooperative<2>, 2>, 5, 2>;
/// 16 × 64 outputs by one block.
pub type Skinny16x64 = TransposedTile<[f32; 8], 1, 2, 4, 5, 1, 2>;
/// 16 × 64 outputs by four blocks.
pub type Skinny16x64Split4 = TransposedTile<[f32; 8], 1, 2, 4, 5, 4, 2>;
