//! The problems of the persistent kernels of Hopper.

use super::SINGLE;
use super::instance::{Boxes, Family, Instance};
use super::size::{FULL, Function, Fused, PLAIN, Scales, Size, plain, size};

impl Instance {
    /// As [`hopper_sizes`](Self::hopper_sizes), with ranks on both sides of a chunk, of a part, and of what is resident of U; each tile
    /// with its own H, or exchanged among tiles of which each block has one or several.
    pub(super) fn update_hopper_sizes(self, boxes: Boxes) -> Vec<Size> {
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
            // Tiles after tiles that are stored row by row, from where the next one's part of U then goes.
            own(plain(8 * all_m, chunk, 9), [3, 0]),
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
            sizes.retain(|size| size.fits_boxes(self.output.bytes(), boxes.passes_boxes));
        }
        sizes
    }

    /// Every term through boxes: tiles after tiles, whose boxes take the buffers that others are stored from. Boxes that lack
    /// rows or columns. Matrices with terms of their own. Whole tiles and halves. Stored by the copy engine, and by lanes. And
    /// each term row by
    /// row, where there is that way too.
    fn sizes_with_terms(self, boxes: Boxes) -> Vec<Size> {
        let [m, n] = self.tile;
        let all_m = m * boxes.cluster[0];
        let (step, chunk) = (128 / self.input.bytes(), self.input.chunk());
        // Boxes that are only fetched, and ones that are only stored twice.
        let added = Fused { residual: true, ..PLAIN };
        let kept = Fused { preactivation: true, ..PLAIN };
        let mut sizes = vec![
            plain(2 * all_m + 2, step, n - 8).boxed(16).fused(FULL),
            plain(2 * all_m + 2, chunk, n).boxed(8).fused(added),
            plain(m - 3, chunk, n).boxed(8).fused(kept),
            plain(m - 5, chunk, 40).boxed(8).fused(FULL).batch(2, [false, true]),
        ];
        if boxes.stores_rows {
            sizes.extend(SINGLE.map(|fused| plain(20, chunk, 21).fused(fused)));
        }
        if boxes.lanes_store {
            sizes.extend([
                plain(2 * all_m + 2, chunk, n - 8).boxed(16).fused(FULL).by_lanes(),
                plain(m - 3, chunk, n).boxed(8).fused(added).by_lanes(),
                plain(20, chunk, 40).boxed(8).fused(kept).by_lanes().batch(2, [true, false]),
            ]);
        }
        if boxes.halves {
            sizes.extend([
                // A whole tile, two halves of one, and a narrow one.
                plain(all_m + 3, step, n + 24).boxed(8).fused(FULL).halved(1, 1),
                plain(m + 5, chunk, n / 2 + 40).boxed(8).fused(FULL).halved(0, 0),
                plain(all_m + 3, chunk, n).boxed(8).fused(added).halved(1, 0),
            ]);
        }
        sizes
    }

    /// Sums of fewer steps than the ring has stages, of as many and of more. Tiles that are within y and tiles at its edges.
    /// Blocks with no tile, with one and with several. What only the rows' way of storing does, and what the copy engine does.
    pub(super) fn hopper_sizes(self, boxes: Boxes) -> Vec<Size> {
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
        if !matches!(self.family, Family::Split(_)) {
            // Parts that are matrices of y: whole ones, one that ends within K, and one beyond it; of several tiles and matrices.
            sizes.extend([
                plain(m + 3, step * 4, 24).boxed(8).split(2),
                plain(16, step * 3 - chunk, n + 16).boxed(8).split(2),
                plain(3 * all_m, step * 7, 16).boxed(8).split(3),
                plain(20, step * 2, 39).split(5),
            ]);
        }
        if boxes.transposes && self.input.bytes() == 2 {
            for [x, w] in [[false, true], [true, false], [true, true]] {
                sizes.push(plain(m + 3, step * 5, n + 9).mn(x, w).split(2));
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
                // Each box and each row of lanes ends somewhere.
                plain(18, chunk, 24).boxed(8).by_lanes(),
                plain(22, chunk, n - 8).boxed(16).by_lanes(),
                plain(26, chunk, n - 16).boxed(8).by_lanes(),
                plain(m - 5, chunk, 24)
                    .boxed(8)
                    .fused(Fused { function: Function::GeluTanh, ..PLAIN })
                    .by_lanes(),
            ]);
            // Those of FP8 operands know no batch.
            if !matches!(self.family, Family::Fp8Hopper(_)) {
                sizes.push(plain(m + 3, chunk, n - 32).boxed(8).by_lanes().batch(2, [false, false]));
            }
        }
        if boxes.halves {
            // Halves alone, after whole tiles and before narrow ones, in rings that come round at every step; stored in both ways.
            sizes.extend([
                plain(m + 3, step * 3, n).boxed(8).halved(0, 0),
                plain(m + 3, step * 4, n).boxed(8).halved(0, 0).split(2),
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
        if boxes.passes_boxes {
            sizes.extend(self.sizes_with_terms(boxes));
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
            sizes.retain(|size| size.fits_boxes(self.output.bytes(), boxes.passes_boxes));
            for tail in 1..=n / 8 {
                sizes.push(plain(1 + 5 * tail % m, chunk, 8 * tail).boxed(8 * (tail % 2)));
            }
        }
        sizes.into_iter().map(|size| size.clusters(size.clusters.max(1))).collect()
    }
}
