//! How many of something each rank has.

use std::ops::Range;

/// What rank `rank` of `size` has of `total` things where all have as many, or one more or less. Those with more come first.
///
/// ```
/// use warpsmith_parallel::ranges::even_range;
///
/// assert_eq!((0..3).map(|rank| even_range(7, 3, rank)).collect::<Vec<_>>(), [0..3, 3..5, 5..7]);
/// ```
#[must_use]
pub fn even_range(total: usize, size: usize, rank: usize) -> Range<usize> {
    let size = size.max(1);
    let rank = rank.min(size);
    let (each, more) = (total / size, total % size);
    let start = each * rank + rank.min(more);
    start..(start + each + usize::from(rank < more)).min(total)
}

/// What rank `rank` of `size` has of `total` things where the first ranks have ⌈total / size⌉ and the last ones what is left,
/// which may be nothing. So collectives of equally long parts fit, with a tail that nobody uses.
///
/// ```
/// use warpsmith_parallel::ranges::block_range;
///
/// assert_eq!((0..4).map(|rank| block_range(5, 4, rank)).collect::<Vec<_>>(), [0..2, 2..4, 4..5, 5..5]);
/// ```
#[must_use]
pub fn block_range(total: usize, size: usize, rank: usize) -> Range<usize> {
    let block = block_len(total, size);
    let at = |rank: usize| rank.saturating_mul(block).min(total);
    at(rank)..at(rank.saturating_add(1))
}

/// ⌈total / size⌉, the length of the blocks of [`block_range`].
#[must_use]
pub fn block_len(total: usize, size: usize) -> usize {
    total.div_ceil(size.max(1))
}

#[cfg(test)]
mod tests {
    use super::{block_range, even_range};

    #[test]
    fn ranges_follow_each_other_and_cover_all() {
        for range in [even_range, block_range] {
            for size in 1..9 {
                for total in 0..40 {
                    let mut end = 0;
                    for rank in 0..size {
                        let next = range(total, size, rank);
                        assert_eq!(next.start, end, "{total} over {size}");
                        end = next.end;
                    }
                    assert_eq!(end, total);
                }
            }
        }
    }

    #[test]
    fn even_ranges_differ_by_one_at_most() {
        for size in 1..9 {
            for total in 0..40 {
                let lengths = (0..size).map(|rank| even_range(total, size, rank).len());
                let (least, most) = (lengths.clone().min(), lengths.max());
                assert!(most.unwrap_or(0) - least.unwrap_or(0) <= 1);
            }
        }
    }
}
