//! The cases of copies into aligned rows.

use warpsmith::DType;
use warpsmith_lab::cases::{RepackCase, Source};

use super::Level;

/// Types of one, two and four bytes.
const TYPES: [DType; 3] = [DType::U8, DType::Bf16, DType::F32];
/// Matrices, rows, columns.
const QUICK: [[usize; 3]; 7] =
    [[1, 0, 5], [1, 5, 0], [1, 1, 1], [3, 17, 33], [2, 65, 129], [1, 1, 1000], [1, 1000, 1]];
const MORE: [[usize; 3]; 4] = [[5, 100, 48], [1, 257, 513], [70, 3, 5], [1, 33, 4099]];
/// Elements before and after each row or column in memory: none, whole chunks, and numbers that align nothing.
const BESIDE: [[usize; 2]; 3] = [[0, 0], [16, 16], [1, 2]];

/// The cases of copies into aligned rows.
pub(in super::super) fn copies(level: Level, seed: u64) -> Vec<RepackCase> {
    let sizes = QUICK.into_iter().chain(MORE.into_iter().filter(|_| level >= Level::Default));
    let mut cases = Vec::new();
    for [batch, rows, columns] in sizes {
        for dtype in TYPES {
            for source in [Source::Rows, Source::Columns] {
                for beside in BESIDE {
                    let seed = seed.wrapping_mul(1 << 20).wrapping_add(cases.len() as u64);
                    cases.push(RepackCase { dtype, batch, rows, columns, source, beside, seed });
                }
            }
        }
    }
    cases
}
