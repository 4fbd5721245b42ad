//! How the kernels of the linear families are run: on sizes that reach every path of a tile, with results known exactly.
//!
//! Inputs are small integers, so that every sum is exact in f32 and rounded once; only the smooth activations are compared with a
//! tolerance. `size` has the words for a problem, `case` its data and its launch, `update` those of a low-rank update; here is which
//! problems an entry gets.

mod case;
mod numbers;
mod size;
mod update;

use warpsmith_dsl::gemm::wgmma::UpdateTile;
use warpsmith_dsl::gemm::wgmma_f32::SplitTile;
use warpsmith_dsl::gemm::{PersistentTile, SplitKTile};
use warpsmith_kernels::linear_fp8_hopper::{Fp8Hopper128x128, Fp8Hopper128x192, Fp8Hopper256x128};
use warpsmith_kernels::linear_hopper::{
    HopperCooperative64x128, HopperCooperative64x160, HopperCooperative128x128, HopperCooperative128x160,
    HopperCooperative128x256, HopperCooperative192x176, HopperCooperative192x192, HopperCooperative256x176,
    HopperPingPong128x128, HopperPingPong128x192,
};
use warpsmith_kernels::linear_hopper_f32::{Split64x64, Split64x128, Split128x128, Split128x256};
use warpsmith_kernels::linear_skinny::{Skinny16x64, Skinny32x64, Skinny64x64};
use warpsmith_kernels::linear_update_hopper::{
    UpdateCooperative128x192, UpdateOwn128x128, UpdatePingPong128x128, UpdatePingPong128x192,
};

use super::Problem;
use case::Case;
use numbers::Float;
use size::{FULL, Function, Fused, PLAIN, Scales, Size, plain, size};

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// `linear`.
    Portable,
    /// `linear_fp8`, of operands that have been widened.
    Fp8Portable,
    /// `linear_update`.
    Update,
    /// `linear_update_hopper`.
    UpdateHopper(Boxes),
    /// The same, for few rows of X.
    UpdateFewRows,
    /// `linear_hopper`.
    Hopper(Boxes),
    /// `linear_fp8_hopper`.
    Fp8Hopper(Boxes),
    /// `linear_hopper_f32`, whose products are made of the parts of each number.
    Split(Boxes),
    /// `linear_narrow`.
    Narrow,
    /// `linear_skinny`, of which a cluster of so many blocks shares a tile.
    Skinny(Boxes, u32),
}

/// How a kernel gets at X and W by tensor maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Boxes {
    /// The rows of the boxes of X and of W.
    rows: [u32; 2],
    /// Bytes of the rows of the boxes of Y.
    stored_row_bytes: u32,
    /// Tiles of a cluster along M and along N.
    cluster: [u32; 2],
    /// Whether operands may be contiguous along their rows' index.
    transposes: bool,
    /// Whether y may lie anywhere, with any epilogue.
    stores_rows: bool,
    /// Whether lanes can store boxes, and not only the copy engine.
    lanes_store: bool,
    /// Whether tiles may be in halves.
    halves: bool,
    /// Whether tiles with updates compute H for themselves whatever they are told.
    is_own: bool,
}

impl Boxes {
    /// Blocks of a cluster that has a tile for each.
    const fn blocks(self) -> u32 {
        self.cluster[0] * self.cluster[1]
    }
}

/// The problems that an entry of these families is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let instance = Instance::named(name)?;
    let mut sizes = match instance.family {
        Family::Portable | Family::Fp8Portable => instance.portable_sizes(),
        Family::Update => instance.update_sizes(),
        Family::UpdateHopper(boxes) => instance.update_hopper_sizes(boxes),
        Family::UpdateFewRows => {
            instance.skinny_sizes(1).into_iter().filter_map(Size::narrowly_updated).collect()
        }
        Family::Hopper(boxes) | Family::Fp8Hopper(boxes) | Family::Split(boxes) => {
            instance.hopper_sizes(boxes)
        }
        Family::Narrow => instance.narrow_sizes(),
        Family::Skinny(_, split) => instance.skinny_sizes(split),
    };
    sizes.sort_by_key(|size| size.cost(instance.tile, 128 / instance.input.bytes()));
    Some(sizes.into_iter().map(|size| Box::new(Case::new(instance, size)) as Box<dyn Problem>).collect())
}

/// What an entry's name says of it: `linear_<input>_<output>_<M>x<N>`, `linear_update_<type>_<M>x<N>`, `linear_fp8_<output>_<M>x<N>`,
/// `linear_update_hopper_<type>_[<schedule>_|own_]<M>x<N>`,
/// `linear_hopper_<input>_<output>_<schedule>_<M>x<N>`, `linear_fp8_hopper_<output>_<M>x<N>`, `linear_narrow_<input>_<output>_<M>x<N>` or
/// `linear_skinny_<input>_<output>_<M>x<N>[_split<blocks>]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instance {
    family: Family,
    /// The type of X and W, if they have the same one.
    input: Float,
    output: Float,
    tile: [u32; 2],
}

fn boxes<S: PersistentTile>() -> Boxes {
    Boxes {
        rows: [S::A_BOX_ROWS, S::B_BOX_ROWS],
        stored_row_bytes: S::STORED_ROW_BYTES,
        cluster: [S::CLUSTER_M, S::CLUSTER_N],
        transposes: S::TRANSPOSES,
        stores_rows: S::STORES_ROWS,
        lanes_store: S::LANES_STORE,
        halves: S::HALVES,
        is_own: false,
    }
}

/// The same of a tile of f32.
fn split_boxes<S: SplitTile>() -> Boxes {
    Boxes {
        rows: [S::A_BOX_ROWS, S::B_BOX_ROWS],
        stored_row_bytes: 128,
        cluster: [S::CLUSTER_M, 1],
        transposes: false,
        stores_rows: true,
        lanes_store: false,
        halves: false,
        is_own: false,
    }
}

/// The same of a tile that an update is added to.
fn update_boxes<S: UpdateTile>() -> Boxes {
    Boxes {
        rows: [S::A_BOX_ROWS, S::B_BOX_ROWS],
        stored_row_bytes: 128,
        cluster: [S::CLUSTER_M, 1],
        transposes: false,
        stores_rows: S::STORES_ROWS,
        lanes_store: false,
        halves: false,
        is_own: S::IS_OWN,
    }
}

/// The same of a tile that all blocks of a cluster share.
fn shared_boxes<S: SplitKTile>() -> Boxes {
    Boxes {
        rows: [S::A_BOX_ROWS, S::B_BOX_ROWS],
        stored_row_bytes: 128,
        cluster: [1, 1],
        transposes: false,
        stores_rows: true,
        lanes_store: false,
        halves: false,
        is_own: false,
    }
}

/// How many blocks share a tile, of what follows the tile in an entry's name.
fn blocks_of(split: &[&str]) -> Option<u32> {
    match split {
        [] => Some(1),
        [split] => split.strip_prefix("split")?.parse().ok(),
        _ => None,
    }
}

impl Instance {
    fn named(name: &str) -> Option<Self> {
        let parts: Vec<&str> = name.strip_prefix("linear_")?.split('_').collect();
        let (family, input, output, shape) = match parts[..] {
            ["hopper", input, output, "pingpong", shape @ "128x128"] => {
                (Family::Hopper(boxes::<HopperPingPong128x128>()), input, output, shape)
            }
            ["hopper", input, output, "pingpong", shape @ "128x192"] => {
                (Family::Hopper(boxes::<HopperPingPong128x192>()), input, output, shape)
            }
            ["hopper", input, output, "split", shape] => {
                let boxes = match shape {
                    "128x256" => split_boxes::<Split128x256>(),
                    "128x128" => split_boxes::<Split128x128>(),
                    "64x128" => split_boxes::<Split64x128>(),
                    "64x64" => split_boxes::<Split64x64>(),
                    _ => return None,
                };
                (Family::Split(boxes), input, output, shape)
            }
            ["hopper", input, output, "cooperative", shape @ "128x128"] => {
                (Family::Hopper(boxes::<HopperCooperative128x128>()), input, output, shape)
            }
            ["hopper", input, output, "cooperative", shape @ "128x256"] => {
                (Family::Hopper(boxes::<HopperCooperative128x256>()), input, output, shape)
            }
            ["hopper", input, output, "cooperative", shape @ "64x128"] => {
                (Family::Hopper(boxes::<HopperCooperative64x128>()), input, output, shape)
            }
            ["hopper", input, output, "cooperative", shape @ "64x160"] => {
                (Family::Hopper(boxes::<HopperCooperative64x160>()), input, output, shape)
            }
            ["hopper", input, output, "cooperative", shape @ "128x160"] => {
                (Family::Hopper(boxes::<HopperCooperative128x160>()), input, output, shape)
            }
            ["hopper", input, output, "cooperative", shape @ "192x192"] => {
                (Family::Hopper(boxes::<HopperCooperative192x192>()), input, output, shape)
            }
            ["hopper", input, output, "cooperative", shape @ "256x176"] => {
                (Family::Hopper(boxes::<HopperCooperative256x176>()), input, output, shape)
            }
            ["hopper", input, output, "cooperative", shape @ "192x176"] => {
                (Family::Hopper(boxes::<HopperCooperative192x176>()), input, output, shape)
            }
            ["fp8", "hopper", output, shape @ "128x128"] => {
                (Family::Fp8Hopper(boxes::<Fp8Hopper128x128>()), "e4m3", output, shape)
            }
            ["fp8", "hopper", output, shape @ "128x192"] => {
                (Family::Fp8Hopper(boxes::<Fp8Hopper128x192>()), "e4m3", output, shape)
            }
            ["fp8", "hopper", output, shape @ "256x128"] => {
                (Family::Fp8Hopper(boxes::<Fp8Hopper256x128>()), "e4m3", output, shape)
            }
            ["narrow", input, output, shape] => (Family::Narrow, input, output, shape),
            ["skinny", input, output, shape, ref split @ ..] => {
                // The boxes are the same however many blocks share a tile.
                let boxes = match shape {
                    "64x64" => shared_boxes::<Skinny64x64>(),
                    "32x64" => shared_boxes::<Skinny32x64>(),
                    "16x64" => shared_boxes::<Skinny16x64>(),
                    _ => return None,
                };
                (Family::Skinny(boxes, blocks_of(split)?), input, output, shape)
            }
            ["update", "hopper", input, "pingpong", shape @ "128x128"] => {
                (Family::UpdateHopper(update_boxes::<UpdatePingPong128x128>()), input, input, shape)
            }
            ["update", "hopper", input, "own", shape @ "128x128"] => {
                (Family::UpdateHopper(update_boxes::<UpdateOwn128x128>()), input, input, shape)
            }
            ["update", "hopper", input, "pingpong", shape @ "128x192"] => {
                (Family::UpdateHopper(update_boxes::<UpdatePingPong128x192>()), input, input, shape)
            }
            ["update", "hopper", input, "cooperative", shape @ "128x192"] => {
                (Family::UpdateHopper(update_boxes::<UpdateCooperative128x192>()), input, input, shape)
            }
            ["update", "hopper", input, shape @ "16x64"] => (Family::UpdateFewRows, input, input, shape),
            ["update", input, shape] => (Family::Update, input, input, shape),
            ["fp8", output, shape] => (Family::Fp8Portable, "f16", output, shape),
            [input, output, shape] => (Family::Portable, input, output, shape),
            _ => return None,
        };
        let (m, n) = shape.split_once('x')?;
        let tile = [m.parse().ok()?, n.parse().ok()?];
        Some(Self { family, input: Float::named(input)?, output: Float::named(output)?, tile })
    }

    /// The type of X, or of W.
    fn input(self, size: &Size, which: usize) -> Float {
        if self.input == Float::E4m3 && size.second_type[which] { Float::E5m2 } else { self.input }
    }

    /// The type of the bias.
    fn bias(self) -> Float {
        match self.family {
            Family::Fp8Portable | Family::Fp8Hopper(_) => self.output,
            _ => self.input,
        }
    }

    /// Whether products are made of the parts of each number.
    fn has_parts(self) -> bool {
        matches!(self.family, Family::Split(_))
    }

    fn portable_sizes(self) -> Vec<Size> {
        // Columns of x in a slot of the ring: rows of 64 bytes in the large tiles, of 128 in the others.
        let slot = if self.tile[0] == 128 { 64 } else { 128 } / self.input.bytes();
        let chunk = self.input.chunk();
        // Sums that end in each slot of the ring before it comes round, some with the slot and some within it; longer
        // ones that end in its first, its last and between.
        let mut sizes = vec![size(5, 0, 9)];
        for slots in 1..=SLOTS {
            sizes.push(size(5, slots * slot, 6));
            sizes.push(size(37, slots * slot - slot / 2, 53));
        }
        for slots in [11, 12, 14, 17] {
            sizes.push(size(61, slots * slot - chunk, 61));
        }
        // Rows and columns that end in every part of a tile, and leave every number of columns after fours.
        for (at, &(m, n)) in EDGES.iter().enumerate() {
            let bias = at % 4 != 1;
            let fused = if at % 2 == 0 { FULL } else { PLAIN };
            let size = plain(m, chunk, n).fused(Fused { bias, ..fused });
            sizes.push(if at % 3 == 2 { size.odd() } else { size });
        }
        sizes.push(plain(100, chunk, 100).fused(FULL));
        sizes.push(plain(33, chunk, 75).fused(FULL).odd());
        sizes.push(plain(33, chunk, 67).fused(FULL));
        sizes.push(plain(20, chunk, 40).fused(FULL).odd());
        sizes.extend(SINGLE.map(|fused| plain(20, chunk, 21).fused(fused)));
        if self.family != Family::Fp8Portable {
            sizes.push(plain(20, chunk, 70).fused(FULL).batch(2, [false, false]));
            sizes.push(plain(70, chunk, 20).batch(3, [false, true]));
        }
        sizes.push(size(64, slot + chunk + 3, 64));
        if self.reads_words() {
            // Rows that end at every element of a chunk, in every slot, and start at multiples of 4 and of 8 bytes.
            for slots in 1..=SLOTS {
                for tail in 1..=chunk {
                    let columns = (slots - 1) * slot + chunk + tail;
                    sizes.push(size(64, columns, 64).words([4, 4]));
                    sizes.push(size(64, columns, 64).words([8, 8]));
                }
            }
            sizes.push(size(37, slot + chunk, 53).words([16, 4]));
            sizes.push(size(37, slot + chunk, 53).words([8, 16]));
            sizes.push(plain(70, chunk, 20).batch(2, [false, true]).words([8, 4]));
        }
        sizes
    }

    /// Whether its kernel reads rows of X and W that start at multiples of 4 bytes.
    fn reads_words(self) -> bool {
        self.family == Family::Portable && self.tile[0] < 128
    }

    /// Ranks on both sides of what a fragment, a k-step, a slot and the registers hold, with sums that end in each slot of the ring; then
    /// what [`portable_sizes`](Self::portable_sizes) has of edges and epilogues; blocks of one tile and of several.
    fn update_sizes(self) -> Vec<Size> {
        let [tile_m, tile_n] = self.tile;
        let (slot, chunk) = (64 / self.input.bytes(), self.input.chunk());
        let ranks = [
            [1, 0],
            [7, 1],
            [5, 4],
            [8, 8],
            [16, 1],
            [20, 13],
            [64, 0],
            [63, 2],
            [33, 47],
            [1, 95],
            [100, 28],
        ];
        let mut sizes: Vec<Size> = ranks
            .iter()
            .zip(0..)
            .map(|(&ranks, at)| {
                let slots = 1 + at % SLOTS;
                let k = slots * slot - if at % 2 == 0 { 0 } else { slot / 2 };
                size(5 + 16 * at, k, 6 + 12 * at).updated(ranks, [1, 1 + at])
            })
            .collect();
        for (at, &(m, n)) in EDGES.iter().enumerate() {
            let bias = at % 4 != 1;
            let fused = if at % 2 == 0 { FULL } else { PLAIN };
            let size = plain(m, chunk, n).fused(Fused { bias, ..fused }).updated([3, 2], [1, m]);
            sizes.push(if at % 3 == 2 { size.odd() } else { size });
        }
        sizes.push(plain(100, chunk, 100).fused(FULL).updated([2, 9], [7, 1]));
        sizes.push(plain(33, chunk, 75).fused(FULL).odd().updated([1, 1], [1, 1]));
        sizes.push(plain(20, chunk, 40).fused(FULL).odd().updated([1, 1], [1, 1]));
        sizes.extend(SINGLE.map(|fused| plain(20, chunk, 21).fused(fused).updated([2, 0], [1, 1])));
        for (row_tiles, ranks, slots) in [(2, [9, 0], 3), (3, [60, 10], 4), (3, [17, 3], 5)] {
            let size = plain(tile_m + 3, slots * slot, 3 * tile_n - 3).updated(ranks, [1, 1]);
            sizes.push(size.row_tiles(row_tiles));
        }
        sizes
    }

    /// As [`hopper_sizes`](Self::hopper_sizes), with ranks on both sides of a chunk, of a part, and of what is resident of U; each tile
    /// with its own H, or exchanged among tiles of which each block has one or several.
    fn update_hopper_sizes(self, boxes: Boxes) -> Vec<Size> {
        let [m, n] = self.tile;
        let (all_m, step, chunk) = (m * boxes.cluster[0], 128 / self.input.bytes(), self.input.chunk());
        let own = |size: Size, ranks: [u32; 2]| size.updated(ranks, [1, 3]).clusters(2);
        // As many clusters as chunks, or a few more.
        let exchanged = |size: Size, ranks: [u32; 2], more: u32| {
            let chunks = (ranks[0] + ranks[1]).div_ceil(8);
            size.updated(ranks, [1, 3]).exchanged().clusters(chunks + more)
        };
        let wide = |chunks: u32| (chunks - 1) * n + 16;
        let mut sizes = vec![
            own(plain(5, chunk, 8).boxed(8), [1, 0]),
            own(plain(all_m, step, n).boxed(8), [5, 3]),
            own(size(m - 1, step * 3 - chunk, n - 8).boxed(8), [2, 2]),
            own(plain(4 * all_m, step * 6, 16).boxed(8), [7, 0]),
            own(plain(m + 3, step - chunk, n + 6).odd(), [8, 0]),
            own(plain(20, chunk, 37).odd().fused(FULL), [3, 1]),
            own(plain(all_m + 3, step, n + 5).fused(FULL), [4, 4]),
        ];
        let with_exchange = [
            exchanged(plain(m + 3, chunk, 8).boxed(8), [3, 0], 0),
            exchanged(plain(5 * all_m, step * 5, 2 * n).boxed(8), [4, 8], 0),
            exchanged(plain(3 * all_m - 5, step * 2, wide(3)).boxed(8), [17, 0], 2),
            exchanged(plain(20, chunk, wide(5)).boxed(8), [3, 37], 0),
            exchanged(plain(20, chunk, wide(9)).boxed(8), [60, 10], 0),
            exchanged(plain(m + 1, chunk, wide(2) + 1).fused(FULL), [9, 7], 1),
        ];
        sizes.extend(with_exchange.into_iter().filter(|_| !boxes.is_own));
        let singles = SINGLE.map(|fused| own(plain(20, chunk, 24).boxed(8).fused(fused), [2, 0]));
        sizes.extend(singles);
        for tail in 1..=n / 8 {
            sizes
                .push(own(plain(1 + 5 * tail % m, chunk, 8 * tail).boxed(8 * (tail % 2)), [1 + tail % 8, 0]));
        }
        if !boxes.stores_rows {
            sizes.retain(|size| size.fits_boxes(self.output.bytes()));
        }
        sizes
    }

    /// Sums of fewer steps than the ring has stages, of as many and of more; tiles that lie within y and tiles at its edges; blocks
    /// with no tile, with one and with several; what only the rows' way of storing does, and what the copy engine does.
    fn hopper_sizes(self, boxes: Boxes) -> Vec<Size> {
        let [m, n] = [self.tile[0], self.tile[1]];
        // The tiles of a cluster together.
        let [all_m, all_n] = [m * boxes.cluster[0], n * boxes.cluster[1]];
        let step = 128 / self.input.bytes();
        let chunk = self.input.chunk();
        let unbiased = Fused { bias: false, ..PLAIN };
        let rectified = Fused { function: Function::Relu, ..unbiased };
        let mut sizes = vec![
            size(5, chunk, 9),
            plain(all_m, step, all_n).boxed(8).fused(unbiased).clusters(2),
            plain(m + 3, step - chunk, n + 6).odd(),
            plain(all_m, step * 3, 2 * all_n).boxed(8),
            plain(all_m + 5, step * 5, all_n + 7),
            size(m - 1, step * 7 + chunk, 2 * n - 2).clusters(2),
            size(all_m, step * 9, all_n),
            // Aligned for whole tiles, of which one lacks rows and one columns.
            plain(m - 1, step, n).boxed(8),
            plain(m, step, n - 8).boxed(16),
            // So many tiles that the ring comes round after every number of them.
            plain(8 * all_m, step, 9),
            plain(8 * all_m, step, 8).boxed(8),
            plain(5 * all_m, step * 3, 10),
            plain(8 * all_m, step, 9).fused(rectified),
            plain(3 * all_m, step * 7, 16).boxed(8).fused(rectified),
            plain(8 * all_m, step, 16).boxed(8).fused(rectified),
            plain(m, chunk, 16).boxed(8).fused(rectified),
            plain(m, chunk, 16).boxed(8).fused(Fused { function: Function::Relu, ..PLAIN }),
            plain(3 * all_m, step, all_n + 16).boxed(8),
            plain(all_m + 3, step, all_n + 5).fused(FULL),
            plain(2 * all_m, step, all_n).boxed(8).fused(FULL),
            plain(20, chunk, 37).odd().fused(FULL),
            plain(20, chunk, 40).odd().fused(FULL),
            plain(20, chunk, 39).fused(FULL),
            plain(20, chunk, 39).odd().fused(FULL),
        ];
        sizes.extend(SINGLE.map(|fused| plain(20, chunk, 24).boxed(8).fused(fused)));
        // Columns that end in every strip of a tile, rows and columns that are aligned or are not.
        for tail in 1..=n / 8 {
            let (columns, rows) = (8 * tail - tail % 4, 1 + 5 * tail % m);
            let fused = if tail % 3 == 0 && tail % 4 != 0 { FULL } else { PLAIN };
            sizes.push(plain(rows, chunk, columns).boxed(8 - columns % 8).fused(fused));
            if tail % 4 == 0 {
                sizes.push(plain(rows, chunk, columns).odd());
            }
        }
        for (m, n) in [(m - 1, n - 1), (m, n - 1), (m - 1, n), (m, n - 2), (m - 2, n - 3)] {
            sizes.push(plain(m, chunk, n).boxed(8 - n % 8));
        }
        if let Family::Fp8Hopper(_) = self.family {
            for [x, w] in [[false, true], [true, false], [true, true]] {
                sizes.push(plain(m + 3, step * 3 - chunk, n + 9).second_type(x, w));
                sizes.push(plain(3 * all_m, step * 5, 16).boxed(8).second_type(x, w));
            }
        } else {
            sizes.extend([
                plain(m + 3, step * 2, 24).boxed(8).batch(2, [false, false]),
                plain(m - 5, chunk, n + 9).fused(FULL).batch(3, [true, false]),
                plain(16, step, n + 16).boxed(8).batch(2, [false, true]),
            ]);
        }
        if boxes.transposes && self.input.bytes() == 2 {
            for [x, w] in [[false, true], [true, false], [true, true]] {
                // Loops for every layout, with a bias and without, with ReLU and without, and rings that come round at every step.
                for fused in [PLAIN, rectified] {
                    sizes.push(plain(8 * all_m, step, 16).boxed(8).fused(fused).mn(x, w));
                    sizes.push(plain(3 * all_m, step * 6 + 3 * chunk, 16).boxed(8).fused(fused).mn(x, w));
                }
                sizes.push(plain(m + 3, step * 3 - chunk, n + 9).mn(x, w));
                sizes.push(plain(70, step, 80).mn(x, w).batch(2, [x, w]));
            }
        }
        if boxes.lanes_store {
            // Whole tiles, and boxes that lack rows or columns; stored once for every accumulator, and in a loop.
            sizes.extend([
                plain(all_m, step, all_n).boxed(8).by_lanes(),
                plain(m - 1, step, n).boxed(8).fused(rectified).by_lanes(),
                plain(m, chunk, n - 8).boxed(16).by_lanes(),
                plain(m + 3, chunk, n - 32).boxed(8).by_lanes().batch(2, [false, false]),
                plain(m - 5, chunk, 24)
                    .boxed(8)
                    .fused(Fused { function: Function::GeluTanh, ..PLAIN })
                    .by_lanes(),
            ]);
        }
        if boxes.halves {
            // Halves alone, after whole tiles and before narrow ones, in rings that come round at every step; stored in both ways.
            sizes.extend([
                plain(m + 3, step * 3, n).boxed(8).halved(0, 0),
                plain(3 * all_m, step * 3, n + 16).boxed(8).clusters(2).halved(2, 1),
                plain(all_m + 5, step * 9, n + 7).clusters(2).halved(1, 1),
                plain(m - 1, step * 5 - chunk, n / 2).boxed(8).fused(rectified).clusters(2).halved(0, 1),
                plain(8 * all_m, step, n / 2 + 16).boxed(8).fused(rectified).halved(3, 0),
                plain(all_m + 3, step, n + 5).fused(FULL).halved(0, 1),
                plain(20, chunk, n / 2 + 39).odd().fused(FULL).halved(0, 0),
                plain(m + 3, step * 2, n + 24).boxed(8).batch(2, [false, true]).halved(1, 1),
            ]);
            if boxes.transposes && self.input.bytes() == 2 {
                for [x, w] in [[false, true], [true, false], [true, true]] {
                    sizes.push(plain(3 * all_m, step * 6 + 3 * chunk, n + 16).boxed(8).mn(x, w).halved(1, 1));
                    sizes.push(plain(m + 3, step * 3 - chunk, n / 2 + 9).mn(x, w).halved(0, 0));
                }
            }
        }
        // Rows that end in each half of a warp's, in each of a consumer's blocks.
        let scaled = Fused { row_scale: Scales::Each, ..PLAIN };
        sizes.extend([28, 84, 92].map(|m| plain(m, chunk, 24).boxed(8).fused(scaled)));
        // Tiles that begin and end with each stage of a ring.
        for steps in 2..=6 {
            sizes.push(plain(4 * all_m, step * steps, 16).boxed(8).fused(if steps % 2 == 0 {
                PLAIN
            } else {
                rectified
            }));
        }
        sizes.push(plain(4 * all_m, step * 3, 16).boxed(8));
        sizes.push(plain(all_m, step * 7, 16).boxed(8));
        // Boxes are stored by code of its own for each activation: several tiles by each, whose buffers are used again.
        for function in [Function::GeluTanh, Function::GeluErf, Function::Silu] {
            sizes.push(plain(3 * all_m, step, all_n).boxed(8).fused(Fused { function, ..PLAIN }));
        }
        if !boxes.stores_rows {
            sizes.retain(|size| size.fits_boxes(self.output.bytes()));
            for tail in 1..=n / 8 {
                sizes.push(plain(1 + 5 * tail % m, chunk, 8 * tail).boxed(8 * (tail % 2)));
            }
        }
        sizes.into_iter().map(|size| size.clusters(size.clusters.max(1))).collect()
    }
}

impl Instance {
    /// Rows of each length up to several k-steps, that end in each part of a tile; rings that come round.
    fn narrow_sizes(self) -> Vec<Size> {
        let dense = |m, k, n| Size { pad: 0, ..plain(m, k, n) };
        let [rows, _] = self.tile;
        let mut sizes: Vec<Size> =
            (1..=34).map(|k| dense(1 + 11 * k % (2 * rows), k, 1 + 7 * k % 37)).collect();
        sizes
            .extend([47, 64, 79, 80, 95, 100, 101, 112, 127, 128].map(|k| dense(rows + k % 7, k, 3 + k % 5)));
        sizes.extend([31, 32, 33, 64, 67, 96, 127, 128, 129, 255, 256].map(|n| dense(9 + n % 8, 9, n)));
        for (blocks, tiles) in [(1, 8), (1, 17), (2, 33), (1, 70)] {
            let clusters = |size: Size| size.clusters(blocks);
            sizes.extend([dense(rows * tiles - 5, 3, 2), dense(rows * tiles, 4, 3)].map(clusters));
        }
        for function in [Function::Relu, Function::GeluTanh, Function::Silu] {
            let fused = Fused { function, alpha: 0.5, bias: function != Function::GeluTanh, ..PLAIN };
            sizes.push(dense(rows + 3, 18, 35).fused(fused));
        }
        sizes.extend([dense(40, 21, 13), dense(33, 100, 36)].map(|size| size.mn(false, true)));
        sizes
    }

    /// Sums of fewer steps than blocks share them, of as many as their rings have stages and of more; rows that end in every fragment of
    /// accumulators, columns that end in every warp's part.
    fn skinny_sizes(self, split: u32) -> Vec<Size> {
        let [m, n] = self.tile;
        let mut sizes = vec![
            plain(9, 0, 10),
            size(5, 8, 9),
            plain(m, 128 * split, n),
            plain(m + 3, 128 * split + 8, n + 6).odd(),
            plain(6, 16, 12).fused(Fused { bias: false, ..PLAIN }),
            size(m - 1, 128 * split * 3 - 40, 2 * n - 1),
            plain(m + 3, 16, n + 5).fused(FULL),
            plain(m, 16, n).fused(FULL),
            plain(m - 3, 72, n + 3).odd().fused(FULL),
            plain(12, 16, 40).odd().fused(FULL),
            plain(m + 2, 136, 21).batch(2, [false, false]),
            plain(m - 5, 8, n + 9).fused(FULL).batch(2, [true, false]),
            plain(7, 136, 12).batch(3, [false, true]),
        ];
        // Each ring comes round with every number of steps left, in steps of one box or of two.
        sizes.extend(
            [4, 5, 6, 9, 10, 11, 13, 15, 17, 19, 29, 41].map(|boxes| plain(7, 64 * split * boxes, 10)),
        );
        sizes.extend(SINGLE.map(|fused| plain(12, 16, 24).fused(fused)));
        for tail in 1..=m / 8 {
            let fused = if tail % 2 == 0 { FULL } else { PLAIN };
            sizes.push(plain(8 * tail - tail % 3, 16, 20 + tail % 4).fused(fused));
        }
        for tail in 1..=n / 8 {
            let fused = if tail % 2 == 1 { FULL } else { PLAIN };
            sizes.push(plain(1 + 5 * tail % m, 16, 8 * tail - tail % 5).fused(fused));
        }
        sizes
    }
}

/// More slots than any ring has.
const SLOTS: u32 = 7;

/// Rows and columns of y.
const EDGES: [(u32, u32); 12] = [
    (1, 1),
    (3, 64),
    (20, 101),
    (64, 67),
    (37, 85),
    (52, 70),
    (70, 52),
    (85, 37),
    (101, 20),
    (117, 117),
    (65, 66),
    (130, 131),
];

/// What needs more than a bias and a ReLU, each without the others.
const SINGLE: [Fused; 8] = [
    Fused { residual: true, ..PLAIN },
    Fused { mask: true, ..PLAIN },
    Fused { preactivation: true, ..PLAIN },
    Fused { row_scale: Scales::Each, ..PLAIN },
    Fused { column_scale: Scales::Each, ..PLAIN },
    Fused { row_scale: Scales::One, column_scale: Scales::One, alpha: -1.0, ..PLAIN },
    Fused { function: Function::Silu, ..PLAIN },
    Fused { function: Function::GeluTanh, alpha: 0.125, ..PLAIN },
];
