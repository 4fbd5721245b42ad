//! How the kernels of the linear families are run: on sizes that reach every path of a tile, with results known exactly.
//!
//! Inputs are small integers, so that every sum is exact in f32 and rounded once; only the smooth activations are compared with a
//! tolerance. `instance` reads an entry's name, `size` has the words for a problem, `case` its data and its launch, `update`
//! those of a low-rank update. Here is which problems an entry gets, and in `hopper` which of them Hopper's persistent kernels
//! do.

mod case;
mod hopper;
mod instance;
mod numbers;
mod size;
mod update;

use warpsmith_dsl::gemm::{TileShape, dots};
use warpsmith_kernels::linear::Tile16x64;

use super::Problem;
use case::Case;
use instance::{Family, Instance};
use size::{FULL, Function, Fused, PLAIN, Scales, Size, plain, size};

/// The problems that an entry of these families is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let instance = Instance::named(name)?;
    let mut sizes = match instance.family {
        Family::Portable | Family::Fp8Portable | Family::Fp8Ada => instance.portable_sizes(),
        Family::Update => instance.update_sizes(),
        Family::UpdateHopper(boxes) => instance.update_hopper_sizes(boxes),
        Family::UpdateFewRows => {
            let sizes = instance.skinny_sizes(1).into_iter().filter(|size| size.mn == [false; 2]);
            sizes.filter_map(Size::narrowly_updated).collect()
        }
        Family::Hopper(boxes) | Family::Fp8Hopper(boxes) | Family::Split(boxes) => {
            instance.hopper_sizes(boxes)
        }
        Family::Narrow => instance.narrow_sizes(),
        Family::Dots => instance.dots_sizes(),
        Family::Strided => instance.strided_sizes(),
        Family::Sums => sums_sizes(),
        Family::Skinny(boxes, split) => {
            // Only 16-bit numbers are multiplied where they lie across.
            let transposes = boxes.transposes && instance.input.bytes() == 2;
            let reads = |size: &Size| transposes || size.mn == [false; 2];
            instance.skinny_sizes(split).into_iter().filter(reads).collect()
        }
    };
    if instance.is_joined {
        sizes.retain(|size| {
            size.batch == 1 && size.split == 1 && size.mn == [false; 2] && size.halves == [u32::MAX, 0]
        });
        // Sums that end in each of several steps of the second matrices.
        let step = 128 / instance.input.bytes();
        let [m, n] = instance.tile;
        sizes.extend((1..=9).map(|steps| plain(m + 3, 2 * steps * step - 8, n.min(24)).boxed(8).clusters(1)));
    }
    if instance.adds_again() {
        sizes.extend(instance.infinite_sizes());
    }
    sizes.sort_by_key(|size| size.cost(instance.tile, 128 / instance.input.bytes()));
    Some(sizes.into_iter().map(|size| Box::new(Case::new(instance, size)) as Box<dyn Problem>).collect())
}

/// As many parts as K: those that are loaded together, fewer and more; rows and columns that end within a warp's, and all that an epilogue does.
fn sums_sizes() -> Vec<Size> {
    let mut sizes: Vec<Size> = (1..=9).map(|parts| size(5, parts, 6)).collect();
    for (at, &(m, n)) in EDGES.iter().enumerate() {
        let fused = if at % 2 == 0 { FULL } else { PLAIN };
        let size = plain(m, 3, n).fused(fused);
        sizes.push(if at % 3 == 2 { size.odd() } else { size });
    }
    sizes.extend([127, 128, 129, 260].map(|n| plain(3, 5, n).fused(FULL)));
    sizes.push(plain(20, 4, 21).fused(FULL).batch(3, [false, true]));
    sizes.push(plain(9, 2, 40).odd().batch(2, [false, false]));
    sizes.extend(SINGLE.map(|fused| plain(20, 3, 21).fused(fused)));
    sizes
}

impl Instance {
    fn portable_sizes(self) -> Vec<Size> {
        // Columns of x in a slot of the ring: rows of 64 bytes in the large tiles of wider types, of 128 in the others.
        let is_fp8 = self.family == Family::Fp8Ada;
        let slot = if self.tile[0] == 128 && !is_fp8 { 64 } else { 128 } / self.input.bytes();
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
        if !is_fp8 && self.family != Family::Fp8Portable {
            sizes.push(plain(20, chunk, 70).fused(FULL).batch(2, [false, false]));
            sizes.push(plain(70, chunk, 20).batch(3, [false, true]));
        }
        if self.tile[0] == Tile16x64::BLOCK_M && self.family == Family::Portable {
            // Parts of several steps, and of none; several tiles and matrices.
            sizes.push(plain(37, 5 * slot - chunk, 70).fused(FULL).parts(2));
            sizes.push(plain(20, slot + chunk, 21).parts(3));
            sizes.push(plain(70, 2 * slot, 20).batch(2, [false, true]).parts(2));
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
        if is_fp8 {
            // Rows that end at every element of a chunk and at the end of each pass of their copies, in every slot.
            sizes.extend([1, 2, 15].map(|tail| size(37, chunk + tail, 53)));
            for (m, n) in [(20, 37), (37, 20), (45, 70), (70, 101), (101, 45)] {
                sizes.push(size(m, 9 * slot + 1, n));
            }
            // Each pair of types has a main loop of its own.
            let pairs = [[false, false], [false, true], [true, false], [true, true]];
            sizes = sizes.iter().flat_map(|size| pairs.map(|[x, w]| size.second_type(x, w))).collect();
        }
        sizes
    }

    /// Infinities in every part of a tile and beyond its edges, in sums of one step and of several, and in batches.
    fn infinite_sizes(self) -> Vec<Size> {
        let [m, n] = self.tile;
        let added = Fused { residual: true, ..PLAIN };
        let sizes = [
            plain(m + 3, 12, n + 5),
            plain(m - 5, 36, n - 3).fused(added).odd(),
            plain(7, 72, 2 * n - 1).fused(Fused { function: Function::Relu, ..added }),
        ];
        let sizes = sizes.map(Size::infinite);
        match self.family {
            Family::Update => [[3, 2], [60, 30], [64, 1]]
                .into_iter()
                .zip(sizes)
                .map(|(ranks, size)| size.updated(ranks, [1, 3]).row_tiles(2))
                .collect(),
            Family::Split(_) => {
                let batches = [[true, false], [false, false], [false, true]];
                let all = batches.into_iter().zip(sizes).map(|(shared, size)| size.batch(2, shared));
                all.map(|size| size.clusters(1)).collect()
            }
            _ => {
                let batches = [[true, false], [false, false], [false, true]];
                batches.into_iter().zip(sizes).map(|(shared, size)| size.batch(2, shared)).collect()
            }
        }
    }

    /// Whether its kernel reads rows of X and W that start at multiples of 4 bytes.
    fn reads_words(self) -> bool {
        self.family == Family::Portable && self.tile[0] < 128
    }

    /// Ranks on both sides of what a fragment, a k-step, a slot and the registers hold, with sums that end in each slot of the
    /// ring. Then what [`portable_sizes`](Self::portable_sizes) has of edges and epilogues. Blocks of one tile and of several.
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

    /// Sums that end in every part of a step and of the steps that a warp asks for at a time, of rows that begin at chunks and between them. Teams
    /// of each number of warps, with several tiles each, and some with none.
    fn dots_sizes(self) -> Vec<Size> {
        let step = dots::STEP_BYTES / self.input.bytes();
        let words = |size: Size| size.words([4, 4]);
        let mut sizes: Vec<Size> = (1..=12).map(|at| plain(at, 1 + 5 * at % 23, 1 + at % 5)).collect();
        let lengths =
            [32, 33, step - 1, step, step + 1, 2 * step, 2 * step + 3, 3 * step - 1, 4 * step + 9, 5 * step];
        for (k, at) in lengths.into_iter().zip(1..) {
            sizes.extend([plain(at, k, 1 + at % 3), words(plain(11 - at, k, 1 + at % 4))]);
        }
        for (parts, m) in [(2, 9), (4, 3), (8, 8)] {
            let of_team = |size: Size| size.parts(parts).clusters(2);
            let (full, short) = (plain(m, 2 * parts * step + 7, 9), plain(m - 1, (parts - 1) * step, 5));
            sizes.extend([full, short, words(full), words(short)].map(of_team));
            sizes.push(of_team(plain(2 * m, step + 1, 7)).clusters(1));
            // Chunks of four steps at a time, once and twice.
            sizes.extend([4 * parts * step + 3, (8 * parts + 1) * step + 5].map(|k| of_team(plain(m, k, 3))));
        }
        sizes.extend([plain(17, 9, 75).clusters(1), plain(3, 40, 37).clusters(2), size(5, 0, 9)]);
        sizes.push(plain(2, 70, 3).fused(Fused { bias: false, function: Function::Relu, ..PLAIN }));
        for function in [Function::Relu, Function::GeluTanh, Function::Silu] {
            let fused = Fused { function, alpha: 0.5, bias: function != Function::GeluTanh, ..PLAIN };
            sizes.push(plain(7, 18, 5).fused(fused));
        }
        sizes.push(words(plain(9, 17, 4).batch(2, [false, false])));
        sizes.push(plain(5, 20, 3).batch(3, [false, true]));
        sizes.push(plain(3, 33, 5).batch(2, [true, false]));
        sizes
    }

    /// Sums that end at each element of a k-step, in each part of a slot and in each of several slots. Rows and columns that
    /// end in every part of a tile. Operands along K and across, at multiples of one element.
    fn strided_sizes(self) -> Vec<Size> {
        let odd = |size: Size| size.words([2, 2]);
        let mut sizes: Vec<Size> = (1..=17).map(|k| odd(plain(1 + 3 * k % 40, k, 1 + 5 * k % 37))).collect();
        sizes.extend([31, 63, 64, 65, 100, 127, 128, 129, 192, 250, 257, 400].map(|k| odd(size(37, k, 35))));
        for (at, &(m, n)) in EDGES.iter().enumerate() {
            let fused = if at % 2 == 0 { FULL } else { PLAIN };
            let size = plain(m, 9, n).fused(Fused { bias: at % 4 != 1, ..fused });
            sizes.push(odd(if at % 3 == 2 { size.odd() } else { size }));
        }
        sizes.extend(SINGLE.map(|fused| odd(plain(20, 9, 21).fused(fused))));
        for (x, w) in [(false, true), (true, false), (true, true)] {
            let across = |size: Size| odd(size).mn(x, w);
            sizes.extend([(33, 5, 40), (7, 133, 64), (64, 64, 9)].map(|(m, k, n)| across(plain(m, k, n))));
            sizes.push(across(plain(34, 19, 35).fused(FULL).batch(2, [x, w])));
        }
        sizes.push(odd(plain(20, 17, 40).batch(2, [false, false])));
        sizes.push(odd(plain(40, 17, 20).fused(FULL).batch(3, [false, true])));
        sizes
    }

    /// Sums of fewer steps than blocks share them, of as many as their rings have stages and of more. Rows that end in every
    /// fragment of accumulators, columns that end in every warp's part. W along K, and along its rows.
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
        // Lanes that store all their rows at once: y ends in each of those.
        sizes.extend((8..m).step_by(8).map(|rows| plain(rows + 5, 16, 24)));
        // W across, in rings that come round.
        sizes.extend([
            plain(m, 128 * split, n).mn(false, true),
            plain(m + 3, 72, n + 8).fused(FULL).mn(false, true),
            plain(7, 136, 24).batch(2, [false, true]).mn(false, true),
        ]);
        sizes.extend([5, 10, 15, 29].map(|boxes| plain(7, 64 * split * boxes, 16).mn(false, true)));
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
