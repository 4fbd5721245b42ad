//! Which keys a row attends to by its place.

use std::ops::Range;

/// Which row and key stand beside each other where a sequence has more keys than rows, or less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alignment {
    /// The first row beside the first key.
    TopLeft,
    /// The last row beside the last key.
    BottomRight,
}

impl Alignment {
    /// What is added to a row's number to have that of the key beside it, of a sequence with so many rows and keys.
    #[must_use]
    pub fn offset(self, [rows, keys]: [usize; 2]) -> i64 {
        match self {
            Self::TopLeft => 0,
            Self::BottomRight => keys as i64 - rows as i64,
        }
    }
}

/// The keys that each row attends to: those from `left` before the key beside it to `right` after it, both included.
///
/// Of a row i and a key j that is `i + offset − left ≤ j ≤ i + offset + right`, with the offset of the [`Alignment`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    alignment: Option<Alignment>,
    left: Option<u32>,
    right: Option<u32>,
}

impl Window {
    /// The window of so many keys to each side; `None` is all of them.
    #[must_use]
    pub const fn new(left: Option<u32>, right: Option<u32>, alignment: Alignment) -> Self {
        Self { alignment: Some(alignment), left, right }
    }

    /// The alignment, which is [`Alignment::BottomRight`] unless one was given.
    #[must_use]
    pub fn alignment(&self) -> Alignment {
        self.alignment.unwrap_or(Alignment::BottomRight)
    }

    /// Keys to the left; `None` is all of them.
    #[must_use]
    pub const fn left(&self) -> Option<u32> {
        self.left
    }

    /// Keys to the right; `None` is all of them.
    #[must_use]
    pub const fn right(&self) -> Option<u32> {
        self.right
    }

    /// The keys that row `row` attends to, of a sequence with `keys` keys and this offset.
    pub(crate) fn keys(&self, row: usize, offset: i64, keys: usize) -> Range<usize> {
        let (beside, keys) = (row as i64 + offset, keys as i64);
        let start = self.left.map_or(0, |left| (beside - i64::from(left)).clamp(0, keys));
        let end = self.right.map_or(keys, |right| (beside + i64::from(right) + 1).clamp(0, keys));
        start as usize..end.max(start) as usize
    }
}
