//! The gradient of a table whose rows ids name, on the CPU.

use std::collections::BTreeMap;

use super::number::Accumulator;

/// The tokens of each id below `limit`, in ascending order of ids, and of tokens of equal ones.
pub(crate) fn tokens_of_ids(ids: &[Option<usize>]) -> BTreeMap<usize, Vec<usize>> {
    let mut tokens: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (token, id) in ids.iter().enumerate() {
        if let Some(id) = id {
            tokens.entry(*id).or_default().push(token);
        }
    }
    tokens
}

/// Adds rows of `dy`, which have as many columns as `sum`, to it in the order of `tokens`.
pub(crate) fn add_rows<A: Accumulator>(dy: &[f32], tokens: &[usize], sum: &mut [A]) {
    let columns = sum.len();
    for &token in tokens {
        for (sum, &dy) in sum.iter_mut().zip(&dy[token * columns..]) {
            *sum += A::from_f32(dy);
        }
    }
}
