//! Sizes drawn at random, so that what is claimed of speed is judged by sizes that nobody chose.

use serde::Serialize;

use super::case::Layout;
use crate::random::Random;

/// Operations that a product has at most.
const MOST_OPERATIONS: f64 = 2e12;
/// Elements that the matrices of a batch have together at most.
const MOST_ELEMENTS: usize = 1 << 30;
/// The least and the most rows of x, and the least and the most of the other sides.
const ROWS: [usize; 2] = [1, 16384];
const SIDES: [usize; 2] = [64, 16384];
/// The least and the most ranks of updates, and matrices of a batch.
const RANKS: [usize; 2] = [1, 128];
const MATRICES: [usize; 2] = [2, 64];
/// Of attentions, the least and the most sequences, heads of keys, queries for each of them, rows or keys, and columns by eights.
const SEQUENCES: [usize; 2] = [1, 64];
const KEY_HEADS: [usize; 2] = [1, 32];
const GROUPS: [usize; 2] = [1, 8];
const LENGTHS: [usize; 2] = [1, 32768];
const EIGHTHS: [usize; 2] = [4, 32];
/// The columns of half of the heads.
const WIDTHS: [usize; 4] = [64, 96, 128, 256];
/// The least and the most operations of an attention, and the most bytes of its operands in 16 bits.
const ATTENTION_OPERATIONS: [f64; 2] = [1e9, MOST_OPERATIONS];
const ATTENTION_BYTES: f64 = 4e9;
/// Of operations on rows, the least and the most rows, columns and elements.
const MANY_ROWS: [usize; 2] = [1, 262_144];
const COLUMNS: [usize; 2] = [16, 131_072];
const ROW_ELEMENTS: [usize; 2] = [1 << 14, 1 << 27];
/// Of a hundred sizes, those whose K and N are multiples of 8.
const MULTIPLES_OF_8: usize = 80;

/// Which sizes are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Draw {
    /// What the sizes of the suites `random…` are drawn from: a number names the same sizes for good.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// How many are drawn.
    #[arg(long, default_value_t = 40)]
    pub(crate) count: usize,
}

/// A number whose logarithm is drawn evenly from those of a range, both ends included.
fn log_uniform(random: &mut Random, [least, most]: [usize; 2]) -> usize {
    // 53 bits make a number from 0 up to 1.
    let unit = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
    let (least, most) = (least as f64, most as f64 + 1.0);
    (least * (most / least).powf(unit)) as usize
}

/// The lengths of `count` vectors that have `total` elements together, which are at least as many: their logarithms are drawn evenly, over four powers of 10.
pub(super) fn lengths(seed: u64, count: usize, total: usize) -> Vec<usize> {
    const RANGE: [usize; 2] = [1, 10_000];
    let mut random = Random::new(seed);
    let drawn: Vec<usize> = (0..count).map(|_| log_uniform(&mut random, RANGE)).collect();
    let (sum, beyond) = (drawn.iter().sum::<usize>().max(1), total.saturating_sub(count));
    // One each, and the rest by what was drawn.
    let mut lengths: Vec<usize> = drawn.iter().map(|length| 1 + length * beyond / sum).collect();
    let left = total.saturating_sub(lengths.iter().sum());
    lengths.first_mut().into_iter().for_each(|first| *first += left);
    lengths
}

/// The sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct AttentionSizes {
    /// Sequences.
    pub(super) batch: usize,
    /// Heads of queries, a multiple of those of keys.
    pub(super) heads: usize,
    pub(super) key_heads: usize,
    /// Rows of each sequence.
    pub(super) rows: usize,
    pub(super) keys: usize,
    /// Columns of a head.
    pub(super) width: usize,
    /// Whether the last row stands beside the last key and attends to it and to those before.
    pub(super) causal: bool,
}

impl AttentionSizes {
    /// Of sequences, heads, heads of keys, rows and columns, with as many keys as rows.
    pub(super) const fn equal([batch, heads, key_heads, rows, width]: [usize; 5]) -> Self {
        Self { batch, heads, key_heads, rows, keys: rows, width, causal: false }
    }

    /// Operations of the products, half of them where it is causal.
    fn operations(&self) -> f64 {
        let pairs = self.batch as f64 * self.heads as f64 * self.rows as f64 * self.keys as f64;
        4.0 * pairs * self.width as f64 * if self.causal { 0.5 } else { 1.0 }
    }

    /// Bytes of the operands and the result in 16 bits.
    fn bytes(&self) -> f64 {
        let rows = 2 * (self.heads * self.rows + self.key_heads * self.keys);
        2.0 * self.batch as f64 * rows as f64 * self.width as f64
    }
}

fn attention(random: &mut Random) -> AttentionSizes {
    loop {
        let (batch, key_heads) = (log_uniform(random, SEQUENCES), log_uniform(random, KEY_HEADS));
        let heads = key_heads * log_uniform(random, GROUPS);
        let lengths = [log_uniform(random, LENGTHS), log_uniform(random, LENGTHS)];
        let width = if random.chance(50) { *random.pick(&WIDTHS) } else { 8 * log_uniform(random, EIGHTHS) };
        let causal = random.chance(50);
        let [rows, keys] = match (random.chance(50), causal) {
            (true, _) => [lengths[0]; 2],
            // Rows that stand before all keys would attend to nothing.
            (false, true) => [lengths[0].min(lengths[1]), lengths[0].max(lengths[1])],
            (false, false) => lengths,
        };
        let sizes = AttentionSizes { batch, heads, key_heads, rows, keys, width, causal };
        let [least, most] = ATTENTION_OPERATIONS;
        if (least..=most).contains(&sizes.operations()) && sizes.bytes() < ATTENTION_BYTES {
            return sizes;
        }
    }
}

/// Rows and columns, four of five times a multiple of 8.
fn row_shape(random: &mut Random) -> [usize; 2] {
    loop {
        let (rows, columns) = (log_uniform(random, MANY_ROWS), log_uniform(random, COLUMNS));
        let columns = if random.chance(MULTIPLES_OF_8) { columns / 8 * 8 } else { columns };
        if (ROW_ELEMENTS[0]..=ROW_ELEMENTS[1]).contains(&(rows * columns)) {
            return [rows, columns];
        }
    }
}

/// M, K and N.
fn shape(random: &mut Random) -> [usize; 3] {
    loop {
        let m = log_uniform(random, ROWS);
        let mut sides = [log_uniform(random, SIDES), log_uniform(random, SIDES)];
        if random.chance(MULTIPLES_OF_8) {
            sides = sides.map(|side| side / 8 * 8);
        }
        let [k, n] = sides;
        if 2.0 * m as f64 * k as f64 * n as f64 <= MOST_OPERATIONS {
            return [m, k, n];
        }
    }
}

impl Draw {
    /// As many as asked for, each by its own generator: so the sizes are the same whatever else is drawn with them, and the first ones whatever the count.
    fn each<T>(self, draw: impl Fn(&mut Random) -> T) -> Vec<T> {
        let mut seeds = Random::new(self.seed);
        (0..self.count).map(|_| draw(&mut Random::new(seeds.next()))).collect()
    }

    /// The same of M, K and N, and what is drawn with them.
    fn with_shape<T>(self, draw: impl Fn(&mut Random, [usize; 3]) -> T) -> Vec<T> {
        self.each(|random| {
            let shape = shape(random);
            draw(random, shape)
        })
    }

    /// The sizes of attentions.
    pub(super) fn attentions(self) -> Vec<AttentionSizes> {
        self.each(attention)
    }

    /// Rows and columns of operations on rows.
    pub(super) fn row_shapes(self) -> Vec<[usize; 2]> {
        self.each(row_shape)
    }

    /// M, K and N of linear layers.
    pub(super) fn shapes(self) -> Vec<[usize; 3]> {
        self.each(shape)
    }

    /// The same with the layout of the operands.
    pub(super) fn layouts(self) -> Vec<([usize; 3], Layout)> {
        self.with_shape(|random, shape| (shape, *random.pick(&[Layout::Nn, Layout::Tn, Layout::Tt])))
    }

    /// The same with a number of matrices.
    pub(super) fn batches(self) -> Vec<([usize; 3], Layout, usize)> {
        self.with_shape(|random, [m, k, n]| {
            let layout = *random.pick(&[Layout::Nt, Layout::Nn]);
            let by_work = (MOST_OPERATIONS / (2.0 * m as f64 * k as f64 * n as f64)) as usize;
            let by_memory = MOST_ELEMENTS / (m * k + k * n + m * n);
            ([m, k, n], layout, log_uniform(random, MATRICES).min(by_work).min(by_memory).max(2))
        })
    }

    /// M, K, N and the rank of updates.
    pub(super) fn updates(self) -> Vec<[usize; 4]> {
        self.with_shape(|random, [m, k, n]| [m, k, n, log_uniform(random, RANKS)])
    }
}

#[cfg(test)]
mod tests {
    use super::{ATTENTION_BYTES, Draw, MATRICES, MOST_OPERATIONS, RANKS, ROWS, SIDES, WIDTHS, lengths};

    const DRAW: Draw = Draw { seed: 20261126, count: 2000 };

    #[test]
    fn sizes_are_spread_over_their_ranges_by_their_logarithms() {
        let shapes = DRAW.shapes();
        assert_eq!(shapes.len(), 2000);
        let within = |[least, most]: [usize; 2], size: usize| (least..=most).contains(&size);
        assert!(shapes.iter().all(|&[m, k, n]| within(ROWS, m) && within(SIDES, k) && within(SIDES, n)));
        assert!(
            shapes
                .iter()
                .all(|shape| 2.0 * shape.map(|side| side as f64).iter().product::<f64>() <= MOST_OPERATIONS)
        );
        // Half of the rows below the root of the ends' product, but for the large ones that are drawn again.
        let few = shapes.iter().filter(|[m, ..]| *m < 128).count();
        assert!((950..1200).contains(&few), "{few}");
        let in_chunks = shapes.iter().filter(|[_, k, n]| k % 8 == 0 && n % 8 == 0).count();
        assert!((1540..1720).contains(&in_chunks), "{in_chunks}");
    }

    #[test]
    fn lengths_have_their_sum_and_differ_much() {
        let all = lengths(1, 200, 1 << 20);
        assert_eq!((all.len(), all.iter().sum::<usize>()), (200, 1 << 20));
        let (least, most) = (all.iter().min().copied(), all.iter().max().copied());
        assert!(least.is_some_and(|least| (1..100).contains(&least)), "{least:?}");
        assert!(most.is_some_and(|most| most > 20_000), "{most:?}");
        assert!(all.iter().any(|length| length % 2 == 1), "{all:?}");
        assert_eq!(lengths(1, 3, 3), [1; 3]);
        assert!(lengths(1, 0, 5).is_empty());
    }

    #[test]
    fn attentions_are_drawn_within_their_limits_half_of_them_of_each_kind() {
        let all = DRAW.attentions();
        let share = |of: &dyn Fn(&super::AttentionSizes) -> bool| {
            all.iter().filter(|sizes| of(sizes)).count() as f64 / all.len() as f64
        };
        assert!(all.iter().all(|sizes| (1e9..=MOST_OPERATIONS).contains(&sizes.operations())));
        assert!(all.iter().all(|sizes| sizes.bytes() < ATTENTION_BYTES));
        assert!(all.iter().all(|sizes| sizes.width % 8 == 0 && (32..=256).contains(&sizes.width)));
        assert!(all.iter().all(|sizes| sizes.heads % sizes.key_heads == 0));
        assert!(all.iter().all(|sizes| !sizes.causal || sizes.rows <= sizes.keys));
        // What has too little or too much to do is drawn again, and that is not the same share of each kind.
        let kinds = [
            share(&|sizes| sizes.causal),
            share(&|sizes| sizes.rows == sizes.keys),
            share(&|sizes| WIDTHS.contains(&sizes.width)),
        ];
        assert!(kinds.iter().all(|share| (0.4..0.65).contains(share)), "{kinds:?}");
        assert_eq!(Draw { count: 7, ..DRAW }.attentions(), all[..7]);
    }

    #[test]
    fn what_is_drawn_beside_the_sizes_does_not_change_them() {
        let shapes = DRAW.shapes();
        let first = Draw { count: 7, ..DRAW };
        assert_eq!(first.shapes(), shapes[..7]);
        assert!(DRAW.layouts().iter().zip(&shapes).all(|((shape, _), other)| shape == other));
        for ((shape, _, batch), other) in DRAW.batches().iter().zip(&shapes) {
            assert!(shape == other && (MATRICES[0]..=MATRICES[1]).contains(batch));
        }
        for ([m, k, n, rank], other) in DRAW.updates().iter().zip(&shapes) {
            assert!([*m, *k, *n] == *other && (RANKS[0]..=RANKS[1]).contains(rank));
        }
    }
}
