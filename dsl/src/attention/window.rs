//! Which keys a row attends to by its place alone.

use crate::KernelParam;

/// The keys around a row that it attends to. Row i stands beside key i + offset, where the offset is 0, or as many as there are more keys than rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, KernelParam)]
#[repr(C)]
pub struct Window {
    /// Keys before that one, at most; [`UNBOUNDED`](Self::UNBOUNDED) for all.
    pub left: u32,
    /// Keys behind it; [`UNBOUNDED`](Self::UNBOUNDED) for all.
    pub right: u32,
    /// 1 if the last row stands beside the last key, else 0: the first stands beside the first.
    pub is_bottom_right: u32,
    /// Keeps the size a multiple of eight; its value is not read.
    pub reserved: u32,
}

impl Window {
    /// No bound. All others, and the lengths of sequences, are below 2³⁰.
    pub const UNBOUNDED: u32 = u32::MAX;

    /// The key beside row 0, of so many rows and keys.
    #[inline(always)]
    #[must_use]
    pub const fn offset(self, rows: u32, keys: u32) -> i32 {
        if self.is_bottom_right != 0 { keys as i32 - rows as i32 } else { 0 }
    }

    /// The first key that `row` attends to, and the one behind the last; there are none if the first is not before that.
    #[inline(always)]
    #[must_use]
    pub const fn keys_of(self, row: u32, offset: i32, keys: u32) -> [i32; 2] {
        let beside = row as i32 + offset;
        let first = if self.left == Self::UNBOUNDED { 0 } else { beside - self.left as i32 };
        let end = if self.right == Self::UNBOUNDED { keys as i32 } else { beside + self.right as i32 + 1 };
        [if first > 0 { first } else { 0 }, if end < keys as i32 { end } else { keys as i32 }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_within_the_window() {
        for is_bottom_right in [0, 1] {
            for (left, right) in [(0, 0), (2, 0), (Window::UNBOUNDED, 0), (1, Window::UNBOUNDED), (3, 2)] {
                let window = Window { left, right, is_bottom_right, reserved: 0 };
                for (rows, keys) in [(1, 1), (5, 9), (9, 5), (4, 0), (7, 7)] {
                    let offset = window.offset(rows, keys);
                    for row in 0..rows {
                        let [first, end] = window.keys_of(row, offset, keys);
                        for key in 0..keys as i32 {
                            let distance = key - (row as i32 + offset);
                            let is_within = (left == Window::UNBOUNDED || distance >= -(left as i32))
                                && (right == Window::UNBOUNDED || distance <= right as i32);
                            assert_eq!(first <= key && key < end, is_within, "{window:?} {row} {key}");
                        }
                    }
                }
            }
        }
    }
}
