//! Sizes drawn at random, so that what is claimed of speed is judged by sizes that nobody chose.

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
    fn each<T>(self, draw: impl Fn(&mut Random, [usize; 3]) -> T) -> Vec<T> {
        let mut seeds = Random::new(self.seed);
        let one = |_| {
            let mut random = Random::new(seeds.next());
            let shape = shape(&mut random);
            draw(&mut random, shape)
        };
        (0..self.count).map(one).collect()
    }

    /// M, K and N of linear layers.
    pub(super) fn shapes(self) -> Vec<[usize; 3]> {
        self.each(|_, shape| shape)
    }

    /// The same with how the operands lie.
    pub(super) fn layouts(self) -> Vec<([usize; 3], Layout)> {
        self.each(|random, shape| (shape, *random.pick(&[Layout::Nn, Layout::Tn, Layout::Tt])))
    }

    /// The same with a number of matrices.
    pub(super) fn batches(self) -> Vec<([usize; 3], Layout, usize)> {
        self.each(|random, [m, k, n]| {
            let layout = *random.pick(&[Layout::Nt, Layout::Nn]);
            let by_work = (MOST_OPERATIONS / (2.0 * m as f64 * k as f64 * n as f64)) as usize;
            let by_memory = MOST_ELEMENTS / (m * k + k * n + m * n);
            ([m, k, n], layout, log_uniform(random, MATRICES).min(by_work).min(by_memory).max(2))
        })
    }

    /// M, K, N and the rank of updates.
    pub(super) fn updates(self) -> Vec<[usize; 4]> {
        self.each(|random, [m, k, n]| [m, k, n, log_uniform(random, RANKS)])
    }
}

#[cfg(test)]
mod tests {
    use super::{Draw, MATRICES, MOST_OPERATIONS, RANKS, ROWS, SIDES};

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
