//! What the blocks of a launch work on: rows of one head of one sequence, and in which order.

use super::window::Window;
use crate::KernelParam;
use crate::launch::{Global, GlobalMut};
use crate::{ptx, thread};

/// Where sequences begin and how long they are. What is null is not given.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct Sequences {
    /// Of packed sequences: the first row of Q of each, and behind the last of all.
    pub offsets_q: Global<u32>,
    /// The same of K and V.
    pub offsets_k: Global<u32>,
    /// Of padded sequences: how many rows of Q count.
    pub lengths_q: Global<u32>,
    /// The same of K and V.
    pub lengths_k: Global<u32>,
}

/// The sizes of a launch.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct Sizes {
    /// Elements of the log-sum-exp from one sequence to the next; 0 for packed sequences.
    pub lse_batch: u64,
    /// Elements of it from one head to the next.
    pub lse_head: u64,
    /// Sequences.
    pub batch: u32,
    /// Heads of Q.
    pub heads: u32,
    /// Heads of Q for each head of K and V.
    pub group: u32,
    /// Heads of Q whose rows alternate in a tile, at least 1: one, or those of a head of K and V.
    pub pack: u32,
    /// Rows of Q: of each sequence, or of all packed sequences together.
    pub rows: u32,
    /// Keys, in the same way.
    pub keys: u32,
    /// Tiles of rows of a head: of one sequence, or of all packed sequences, each of which may begin a tile more.
    pub tiles: u32,
    /// Heads whose tiles alternate in the order, at least 1: those whose keys and values the level-2 cache holds together.
    pub section: u32,
    /// Heads, of which those that alternate count once, of all sequences, or of all packed sequences together.
    pub rows_of_heads: u32,
    /// Keeps the size a multiple of eight; its value is not read.
    pub reserved: u32,
    /// Which keys a row attends to by its place.
    pub window: Window,
}

impl Sizes {
    /// The head of K and V that the work's head of Q has.
    #[inline(always)]
    #[must_use]
    pub const fn key_head(&self, work: &Work) -> u32 {
        work.head * self.pack / at_least_1(self.group)
    }

    /// The row and the head of Q of row `row` of the work's rows.
    #[inline(always)]
    #[must_use]
    pub const fn row_and_head(&self, work: &Work, row: u32) -> [u32; 2] {
        let pack = at_least_1(self.pack);
        [row / pack, work.head * pack + row % pack]
    }

    /// Where the log-sum-exp of row 0 of the work's head is; null if it is not asked for.
    #[inline(always)]
    #[must_use]
    pub const fn lse_of_head(&self, lse: GlobalMut<f32>, work: &Work) -> GlobalMut<f32> {
        if lse.is_null() {
            return lse;
        }
        lse.offset(work.place.batch as u64 * self.lse_batch + work.head as u64 * self.lse_head)
    }
}

/// Rows of one sequence and one head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The sequence.
    pub sequence: u32,
    /// The head of Q, or, of heads whose rows alternate, the number of their group.
    pub head: u32,
    /// The first row, within the sequence; of heads whose rows alternate the first of all of their rows.
    pub row: u32,
    /// Rows of the sequence that count.
    pub rows: u32,
    /// Rows of it that are written: those that do not count as zeros.
    pub written: u32,
    /// Keys of the sequence.
    pub keys: u32,
    /// The sequence's index, first row and first key in the tensors.
    pub place: Place,
    /// The key beside row 0.
    pub offset: i32,
    /// The first key that any of the rows attends to, and the one behind the last.
    pub within: [u32; 2],
}

/// Where a sequence is in the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its index along the tensors' first axis.
    pub batch: u32,
    /// Its first row in Q.
    pub row: u32,
    /// Its first key.
    pub key: u32,
}

/// The tiles of a launch, in the order in which blocks take them.
#[derive(Clone, Copy)]
pub struct Tiles {
    /// Rows of a tile.
    of_tile: u32,
    sizes: Sizes,
    sequences: Sequences,
}

impl Tiles {
    /// Those of a launch, of so many rows each.
    #[inline(always)]
    #[must_use]
    pub fn new(sizes: Sizes, sequences: Sequences, of_tile: u32) -> Self {
        Self { of_tile, sizes, sequences }
    }

    /// The tile at place `index` of the order, if it has rows to write.
    ///
    /// # Safety
    ///
    /// Pointers to offsets and lengths are valid, and nothing writes there.
    #[inline(always)]
    pub unsafe fn work(&self, index: u32) -> Option<Work> {
        let Sizes { batch, window, tiles, rows_of_heads, section, .. } = self.sizes;
        let pack = at_least_1(self.sizes.pack);
        let heads = self.sizes.heads / pack;
        let [tile, head] = place_in_order(index, tiles, rows_of_heads, section);
        let Sequences { offsets_q, offsets_k, lengths_q, lengths_k } = self.sequences;
        // SAFETY: the caller's promise: each sequence has a length, and an offset, behind which there is one more.
        let read = |from: Global<u32>, index: u32| unsafe {
            ptx::ld_global_nc_f32(from.offset(index as u64).address()).to_bits()
        };
        let (sequence, head, tile, place, [rows, written, keys]) = if offsets_q.is_null() {
            let heads = at_least_1(heads);
            let sequence = head / heads;
            let length =
                |of: Global<u32>, all: u32| if of.is_null() { all } else { read(of, sequence).min(all) };
            let rows = length(lengths_q, self.sizes.rows);
            let keys = length(lengths_k, self.sizes.keys);
            let place = Place { batch: sequence, row: 0, key: 0 };
            (sequence, head % heads, tile, place, [rows, self.sizes.rows, keys])
        } else {
            let offset_q = |index| read(offsets_q, index).min(self.sizes.rows);
            let offset_k = |index| read(offsets_k, index).min(self.sizes.keys);
            let first_tile = |sequence| offset_q(sequence) * pack / at_least_1(self.of_tile) + sequence;
            let (mut sequence, mut end) = (0, batch);
            while end - sequence > 1 {
                let middle = sequence + (end - sequence) / 2;
                if first_tile(middle) <= tile {
                    sequence = middle;
                } else {
                    end = middle;
                }
            }
            let place = Place { batch: 0, row: offset_q(sequence), key: offset_k(sequence) };
            let rows = offset_q(sequence + 1).saturating_sub(place.row);
            let keys = offset_k(sequence + 1).saturating_sub(place.key);
            // Before the first sequence there may be rows of none.
            let tile = tile.checked_sub(first_tile(sequence))?;
            (sequence, head, tile, place, [rows, rows, keys])
        };
        let row = tile * self.of_tile;
        if row >= written * pack {
            return None;
        }
        let offset = window.offset(rows, keys);
        let within = if row < rows * pack {
            let last = (rows * pack).min(row + self.of_tile) - 1;
            let [first, _] = window.keys_of(row / pack, offset, keys);
            let [_, end] = window.keys_of(last / pack, offset, keys);
            if first < end { [first as u32, end as u32] } else { [0, 0] }
        } else {
            [0, 0]
        };
        Some(Work { sequence, head, row, rows, written, keys, place, offset, within })
    }
}

/// Hands out a launch's tiles, or parts of them: each block has the one of its own number first, and then whichever nobody has.
pub struct Queue {
    tiles: Tiles,
    /// Parts of each tile's keys, which are handed out one by one.
    parts: u32,
    /// How many have been taken beside the first of each block.
    taken: GlobalMut<u32>,
    has_first: bool,
}

impl Queue {
    /// The tiles, on a one-dimensional grid of no more blocks than there are of them or of their parts, with a counter that is 0 when the launch begins. Parts of all tiles are
    /// fewer than 2³¹.
    #[inline(always)]
    #[must_use]
    pub fn new(tiles: Tiles, taken: GlobalMut<u32>) -> Self {
        Self { tiles, parts: 1, taken, has_first: false }
    }

    /// The same, which hands out each of `parts` parts of the tiles' keys: place `index` is of tile `index / parts`.
    #[inline(always)]
    #[must_use]
    pub fn in_parts(self, parts: u32) -> Self {
        Self { parts: at_least_1(parts), ..self }
    }

    /// The next place in the order whose tile has rows to write, and what that works on. When all blocks have found that there is none, the counter is 0 again.
    ///
    /// # Safety
    ///
    /// As [`Tiles::work`]. One thread of each block calls it, until there is none; nothing else touches the counter.
    #[inline(always)]
    pub unsafe fn next(&mut self) -> Option<(u32, Work)> {
        let all = self.tiles.sizes.tiles * self.tiles.sizes.rows_of_heads * self.parts;
        loop {
            let index = if self.has_first {
                // Each place but the first of each block is taken once, and each block finds once that there is none: as often as there are places.
                // SAFETY: the caller's promise.
                thread::grid_dim_x() + unsafe { ptx::atom_acq_rel_gpu_inc_u32(self.taken.address(), all - 1) }
            } else {
                self.has_first = true;
                thread::block_idx_x()
            };
            if index >= all {
                return None;
            }
            // SAFETY: the caller's promise.
            if let Some(work) = unsafe { self.tiles.work(index / self.parts) } {
                return Some((index, work));
            }
        }
    }
}

/// The tile and the head at place `index` of the order: sections of heads, one after the other. Of each section the
/// last tiles of all heads come first. These have the most keys where a row attends to those before it.
#[inline(always)]
const fn place_in_order(index: u32, tiles: u32, heads: u32, section: u32) -> [u32; 2] {
    // At least 1 all: a division by zero would be a trap.
    let of_section = at_least_1(tiles * section);
    let first = index / of_section * section;
    let within = index % of_section;
    let left = heads - first;
    let width = at_least_1(if left < section { left } else { section });
    [tiles - 1 - within / width, first + within % width]
}

/// `size`, which is not 0.
#[inline(always)]
const fn at_least_1(size: u32) -> u32 {
    if size == 0 { 1 } else { size }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::place_in_order;

    #[test]
    fn each_tile_of_each_head_comes_once() {
        for (tiles, heads, section) in [(1, 1, 1), (5, 7, 3), (4, 6, 6), (3, 2, 8), (9, 5, 1)] {
            let mut seen = vec![false; (tiles * heads) as usize];
            let mut last = tiles;
            for index in 0..tiles * heads {
                let [tile, head] = place_in_order(index, tiles, heads, section);
                let place = (head * tiles + tile) as usize;
                assert!(!seen[place], "{tile} {head}");
                seen[place] = true;
                // Longest first within a section.
                assert!(tile <= last || tile == tiles - 1);
                last = tile;
            }
            assert!(seen.into_iter().all(|seen| seen));
        }
    }
}
