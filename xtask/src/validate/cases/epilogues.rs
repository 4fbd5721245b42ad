//! The cases of scales, residuals, masks and pre-activations on every tile that serves them, by name: small products would be given to
//! other tiles than large ones, which store what belongs to an epilogue in other ways.

use warpsmith::DType;
use warpsmith::ops::Activation;
use warpsmith::ops::gemm::{Access, Fused, Tile};
use warpsmith_lab::cases::{Data, LinearCase, MatmulCase, Placement, Scales, Terms};

use super::{Level, Target};

/// What is asked for beside a bias, and what the operands are drawn from. What finds most comes first.
const TERMS: [(Terms, Activation, Data); 11] = [
    (ALL, Activation::Silu, Data::Uniform),
    (Terms { mask: true, beta: 1.0, in_place: true, ..NONE }, Activation::Relu, Data::Integers),
    (Terms { preactivation: true, beta: -0.5, ..NONE }, Activation::GeluErf, Data::Uniform),
    (Terms { row_scale: Scales::Each, column_scale: Scales::Each, ..NONE }, Activation::Relu, Data::Uniform),
    (Terms { beta: 0.5, ..NONE }, Activation::None, Data::Uniform),
    (Terms { beta: -1.0, in_place: true, ..NONE }, Activation::None, Data::Integers),
    (Terms { row_scale: Scales::Each, ..NONE }, Activation::None, Data::Integers),
    (Terms { column_scale: Scales::Each, ..NONE }, Activation::Relu, Data::Integers),
    (Terms { mask: true, ..NONE }, Activation::Relu, Data::Integers),
    (Terms { preactivation: true, ..NONE }, Activation::GeluTanh, Data::Uniform),
    (Terms { in_place: true, row_scale: Scales::One, ..ALL }, Activation::Relu, Data::Integers),
];

/// The mask alone.
const MASK: usize = 8;

const WHOLE: Placement = at(0, 0);

const NONE: Terms = Terms {
    row_scale: Scales::None,
    column_scale: Scales::None,
    beta: 0.0,
    in_place: false,
    mask: false,
    preactivation: false,
    beside: WHOLE,
};

const ALL: Terms = Terms {
    row_scale: Scales::Each,
    column_scale: Scales::Each,
    beta: 2.0,
    mask: true,
    preactivation: true,
    ..NONE
};

/// The place of y, and where what belongs to the epilogue: rows of both may start at multiples of 16 bytes or anywhere, and be as far apart or not.
const PLACES: [(Placement, Placement); 6] = [
    (WHOLE, WHOLE),
    (at(8, 16), WHOLE),
    (at(1, 2), WHOLE),
    (WHOLE, at(8, 8)),
    (at(4, 0), at(1, 2)),
    (at(0, 3), at(4, 4)),
];

const fn at(before: usize, after: usize) -> Placement {
    Placement { before, after }
}

/// M, K and N around those of a tile: whole ones, and ends of rows within every part of one; sums shorter than a row of shared memory, and
/// longer than any ring of stages.
fn sizes(tile: Tile) -> [(usize, usize, usize); 7] {
    let (rows, columns) = tile.shape();
    let (rows, columns) = (rows as usize, columns as usize);
    [
        (rows + 1, 136, columns + 1),
        (rows + 72, 72, columns + 44),
        (rows / 2 + 3, 40, columns - 61),
        (2 * rows, 128, 2 * columns),
        (rows + 9, 200, columns + 32),
        (2 * rows - 1, 64, columns - 56),
        (rows, 712, columns / 2),
    ]
}

/// Multiprocessors of an H100, and of the emulated one.
const MULTIPROCESSORS: u32 = 132;

/// The tiles that serve such epilogues.
fn tiles(types: [DType; 2], target: Target) -> impl Iterator<Item = Tile> {
    serving(Fused::Terms, types, target)
}

/// The tiles that do this to products.
fn serving(fused: Fused, [input, output]: [DType; 2], target: Target) -> impl Iterator<Item = Tile> {
    Tile::ALL.into_iter().filter(move |tile| {
        tile.runs_on(target.compute_capability)
            && tile.serves_fused(fused)
            && tile.serves(input, Access::Aligned)
            && tile.serves_output(input, output)
    })
}

/// The cases of linear layers of these types. Most are of Hopper's persistent tiles: what is chosen for small products is among the
/// other tiles, and has more cases elsewhere.
pub(super) fn on_tiles(types: [DType; 2], level: Level, target: Target) -> Vec<LinearCase> {
    let mut cases = Vec::new();
    for (index, tile) in tiles(types, target).enumerate() {
        let count = match (level, tile.is_persistent()) {
            (Level::Quick, true) => 4,
            (Level::Quick, false) => 0,
            (Level::Default, true) => TERMS.len(),
            (Level::Default, false) => 2,
            (Level::Full, true) => 3 * TERMS.len(),
            (Level::Full, false) => TERMS.len(),
        };
        // Each tile goes on where another has stopped.
        let first = TERMS.len() * index;
        cases.extend((first..first + count).map(|number| numbered(tile, types, number)));
        if tile.is_persistent() {
            // The emulator takes a second for it.
            if level == Level::Full || level == Level::Default && types == [DType::Bf16; 2] {
                cases.push(tall(tile, types));
            }
            // What differs between the 16-bit types has nothing to do with the number of tiles.
            if level == Level::Full && target.on_gpu && types[0] != DType::F16 {
                cases.extend(wide(tile, types));
            }
        }
    }
    cases.extend(masked_on_tiles(types, level, target));
    cases
}

/// The cases of a mask alone, on the tiles that serve no other terms.
fn masked_on_tiles(types: [DType; 2], level: Level, target: Target) -> Vec<LinearCase> {
    let count = match level {
        Level::Quick => 0,
        Level::Default => 3,
        Level::Full => 7,
    };
    let tiles = serving(Fused::Mask, types, target).filter(|tile| !tile.serves_fused(Fused::Terms));
    let of_tile = |(index, tile)| {
        // Each goes on where another has stopped.
        (count * index..count * (index + 1)).map(move |number| {
            let sizes = sizes(tile);
            let (y, beside) = PLACES[number % PLACES.len()];
            let case = of_terms(tile, types, sizes[number % sizes.len()], MASK, [y, beside]);
            match number % 3 {
                2 => LinearCase { activation: Activation::Silu, data: Data::Uniform, scale: -0.37, ..case },
                _ => case,
            }
        })
    };
    tiles.enumerate().flat_map(of_tile).collect()
}

/// The cases of batches of products of these types, on Hopper's persistent tiles: what belongs to an epilogue is each matrix's own.
pub(super) fn in_batches(types: [DType; 2], level: Level, target: Target) -> Vec<MatmulCase> {
    let count = match level {
        Level::Quick => 1,
        Level::Default => 4,
        Level::Full => TERMS.len(),
    };
    let persistent = tiles(types, target).filter(|tile| tile.is_persistent());
    let of_tile = |(index, tile): (usize, Tile)| {
        let first = TERMS.len() * index;
        (first..first + count).map(move |number| MatmulCase {
            product: numbered(tile, types, number),
            batch: [[2, 2], [1, 2], [3, 1]][number % 3],
            across: [number & 1 == 1, number & 2 == 2],
        })
    };
    persistent.enumerate().flat_map(of_tile).collect()
}

/// Some of the cases with numbers of which every result is exact.
pub(super) fn exact_on_tiles(types: [DType; 2], target: Target) -> Vec<LinearCase> {
    let exact = |case: LinearCase| LinearCase {
        data: Data::Integers,
        activation: Activation::Relu,
        scale: 0.5,
        terms: Terms { beta: if case.terms.beta == 0.0 { 0.0 } else { 1.0 }, ..case.terms },
        ..case
    };
    on_tiles(types, Level::Quick, target).into_iter().map(exact).collect()
}

/// Blocks that share the sums of a tile, where they can.
const PARTS: [u32; 5] = [1, 2, 3, 7, 40];

/// Case `number` of a tile. The numbers of terms, places and sizes have no common factor, so that all combinations have their turn, and as many in a row as there are
/// terms have each.
fn numbered(tile: Tile, types: [DType; 2], number: usize) -> LinearCase {
    let sizes = sizes(tile);
    let (y, beside) = PLACES[number % PLACES.len()];
    let case = of_terms(tile, types, sizes[number % sizes.len()], number % TERMS.len(), [y, beside]);
    let parts = tile.shares().then_some(PARTS[number % PARTS.len()]);
    LinearCase { parts, ..case }
}

fn of_terms(
    tile: Tile,
    [input, output]: [DType; 2],
    (m, k, n): (usize, usize, usize),
    terms: usize,
    [y, beside]: [Placement; 2],
) -> LinearCase {
    let (terms, activation, data) = TERMS[terms];
    // What some tiles serve is chunks of 16 bytes.
    let multiple = if tile.needs_boxes() { 8 } else { 1 };
    let [y, beside] = [y, beside]
        .map(|place| at(place.before.next_multiple_of(multiple), place.after.next_multiple_of(multiple)));
    let n = n.next_multiple_of(multiple);
    LinearCase {
        output,
        activation,
        data,
        scale: if data == Data::Integers { 0.5 } else { -0.37 },
        terms: Terms { beside, ..terms },
        precision: tile.precision(input),
        tile: Some(tile),
        y,
        ..LinearCase::new(input, m, k, n)
    }
}

/// All terms, on some more tiles than a GPU has blocks for: blocks go on with a second one. For an emulator's sake there is one
/// column of tiles, and next to nothing to sum up.
fn tall(tile: Tile, types: [DType; 2]) -> LinearCase {
    let (rows, columns) = tile.shape();
    let blocks = tile.blocks(u32::MAX / 2, 1, 1, MULTIPROCESSORS) as usize;
    let m = rows as usize * (blocks + 2) - 37;
    of_terms(tile, types, (m, 8, columns as usize - 61), 0, [WHOLE, at(8, 8)])
}

/// The same in rows and columns of tiles, with a residual in place as well, where rows are aligned.
fn wide(tile: Tile, types: [DType; 2]) -> [LinearCase; 2] {
    let (rows, columns) = tile.shape();
    let side = 1 + MULTIPROCESSORS.isqrt() as usize;
    let (m, n) = (side * rows as usize - 59, side * columns as usize);
    [
        of_terms(tile, types, (m, 72, n - 61), 0, [WHOLE, WHOLE]),
        of_terms(tile, types, (m, 200, n - 32), 1, [at(8, 16), WHOLE]),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use warpsmith::DType;
    use warpsmith::ops::gemm::{Fused, Tile};

    use super::super::{Level, Target};
    use super::{PLACES, TERMS, numbered, on_tiles, serving, sizes, tiles};

    const HOPPER: Target = Target { on_gpu: true, compute_capability: (9, 0) };
    const BF16: [DType; 2] = [DType::Bf16; 2];

    #[test]
    fn every_persistent_tile_is_asked_for_every_term_by_default_and_none_that_has_no_terms() {
        for types in [BF16, [DType::F16, DType::F32], [DType::F32; 2]] {
            let cases = on_tiles(types, Level::Default, HOPPER);
            for tile in tiles(types, HOPPER).filter(|tile| tile.is_persistent()) {
                let of_tile = || cases.iter().filter(|case| case.tile == Some(tile));
                let asks =
                    |part: fn(&warpsmith_lab::cases::Terms) -> bool| of_tile().any(|case| part(&case.terms));
                assert!(of_tile().count() >= TERMS.len(), "{tile}");
                assert!(asks(|terms| terms.mask) && asks(|terms| terms.preactivation), "{tile}");
                assert!(asks(|terms| terms.in_place) && asks(|terms| !terms.in_place && terms.beta != 0.0));
            }
            assert!(cases.iter().all(|case| case.tile.is_some_and(|tile| tile.serves_fused(case.fused()))));
            for tile in serving(Fused::Mask, types, HOPPER).filter(|tile| tile.is_persistent()) {
                assert!(cases.iter().any(|case| case.tile == Some(tile) && case.terms.mask), "{tile}");
            }
        }
        let cases = on_tiles(BF16, Level::Quick, HOPPER);
        for tile in [Tile::HopperPingPong128x128, Tile::HopperCooperative128x256] {
            assert!(cases.iter().any(|case| case.tile == Some(tile)), "{tile}");
        }
    }

    #[test]
    fn numbers_reach_every_combination() {
        let tile = Tile::HopperPingPong128x128;
        let all = TERMS.len() * PLACES.len() * sizes(tile).len();
        let options = (0..all).map(|number| numbered(tile, BF16, number));
        let distinct: BTreeSet<_> =
            options.map(|case| format!("{} {}", case.shape(), case.options())).collect();
        // What is stored in place lies where y does, and one place beside it is like the other where there is nothing.
        assert!(distinct.len() > all * 4 / 5, "{} of {all}", distinct.len());
        assert!(on_tiles(BF16, Level::Full, HOPPER).len() > on_tiles(BF16, Level::Default, HOPPER).len());
    }
}
