//! Sums along K that several blocks share: each has a part of the steps, and whichever is done last adds the parts up.
//!
//! Nobody waits: the others end when they have written their sums. The parts are added in the order of K, whichever block does it, so the result does not
//! depend on which came first.

use crate::launch::{GlobalMut, KernelParam};
use crate::ptx;
use crate::shared::SharedAddress;
use crate::thread;

/// How many blocks share the sums of a tile, and where they meet.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Parts {
    /// Room for the sums of all parts of all tiles: as many numbers as these have elements, aligned to 16 bytes. Not read if `count` is 1.
    pub sums: GlobalMut<f32>,
    /// A word for each tile, zero when the launch begins and when it has ended. Not read if `count` is 1.
    pub arrived: GlobalMut<u32>,
    /// Blocks that share the sums of a tile, at least 1.
    pub count: u32,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

// SAFETY: a fixed layout of kernel parameters without padding.
unsafe impl KernelParam for Parts {}

/// A block's part of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The tile's number in the launch.
    pub tile: u32,
    /// The part's number, in the order of K.
    pub index: u32,
}

impl Parts {
    /// A launch in which a block has a tile's sums to itself.
    pub const WHOLE: Self =
        Self { sums: GlobalMut::new(0), arrived: GlobalMut::new(0), count: 1, reserved: 0 };

    /// What block `block` of the launch has: blocks that share a tile follow each other.
    #[inline(always)]
    #[must_use]
    pub const fn of_block(&self, block: u32) -> Part {
        if self.count <= 1 {
            return Part { tile: block, index: 0 };
        }
        Part { tile: block / self.count, index: block % self.count }
    }

    /// The first of `steps` steps along K that part `index` has, and how many. There are fewer than 2³² / `count` steps.
    #[inline(always)]
    #[must_use]
    pub const fn steps(&self, index: u32, steps: u32) -> [u32; 2] {
        if self.count <= 1 {
            return [0, steps];
        }
        let first = index * steps / self.count;
        [first, (index + 1) * steps / self.count - first]
    }

    /// Gives a block's sums to the others that share its tile. True in the block that is last, whose `sums` are then those of all parts; the others have
    /// nothing more to do.
    ///
    /// # Safety
    ///
    /// All `threads` threads of the block call it, with the same `part`, when none reads the word of shared memory at `word` any more; every block that
    /// shares the tile calls it once. The places of this launch's `sums` and `arrived` are the launch's own.
    #[inline(always)]
    pub unsafe fn combine<S: Quads>(
        &self,
        sums: &mut S,
        part: Part,
        threads: u32,
        word: SharedAddress,
    ) -> bool {
        let thread = thread::thread_idx_x();
        let quads = S::COUNT;
        // A thread's numbers lie where the same thread of another part has its own, four by four beside those of its neighbours.
        let place = |index: u32| {
            let first = (part.tile as u64 * self.count as u64 + index as u64) * (quads * threads) as u64;
            self.sums.address() + (first + thread as u64) * 16
        };
        let stride = threads as u64 * 16;
        let own = place(part.index);
        let last = self.count - 1;
        // SAFETY: the launch's own memory: of each place in `sums` one thread of one block writes, and others read it once they know that it has.
        // What the threads have written is ordered before the number by the barrier, and behind it what the last block reads.
        unsafe {
            sums.each(|index, quad| {
                ptx::st_global_v4_b32(own + index as u64 * stride, quad.map(f32::to_bits))
            });
            thread::sync_threads();
            if thread == 0 {
                let arrived = self.arrived.offset(part.tile as u64).address();
                // It starts again at zero behind the last.
                ptx::st_shared_b32(word.get(), ptx::atom_acq_rel_gpu_inc_u32(arrived, last));
            }
            thread::sync_threads();
            if ptx::ld_shared_b32(word.get()) != last {
                return false;
            }
            let first = place(0);
            sums.each(|index, quad| {
                *quad = ptx::ld_global_v4_b32(first + index as u64 * stride).map(f32::from_bits);
            });
            let mut index = 1;
            while index < self.count {
                let next = place(index);
                sums.each(|index, quad| {
                    let more = ptx::ld_global_v4_b32(next + index as u64 * stride).map(f32::from_bits);
                    for (sum, more) in quad.iter_mut().zip(&more) {
                        *sum += more;
                    }
                });
                // Opaque: the loop would be unrolled.
                index = ptx::opaque(index + 1);
            }
        }
        true
    }
}

/// A thread's sums, four by four.
pub trait Quads {
    /// How many fours there are.
    const COUNT: u32;

    /// Calls `change` with each and its number.
    fn each(&mut self, change: impl FnMut(u32, &mut [f32; 4]));
}

impl<const NI: usize, const MI: usize> Quads for [[[f32; 4]; NI]; MI] {
    const COUNT: u32 = (NI * MI) as u32;

    #[inline(always)]
    fn each(&mut self, mut change: impl FnMut(u32, &mut [f32; 4])) {
        for (i, row) in self.iter_mut().enumerate() {
            for (j, quad) in row.iter_mut().enumerate() {
                change((i * NI + j) as u32, quad);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, Parts};
    use std::collections::HashSet;

    #[test]
    fn the_parts_of_every_tile_have_all_steps_once() {
        for count in [1, 2, 3, 8, 64] {
            let parts = Parts { count, ..Parts::WHOLE };
            for steps in [0, 1, 5, 64, 1000] {
                let mut seen = HashSet::new();
                for block in 0..3 * count {
                    let Part { tile, index } = parts.of_block(block);
                    let [first, own] = parts.steps(index, steps);
                    assert!(own <= steps.div_ceil(count));
                    assert!((first..first + own).all(|step| step < steps && seen.insert((tile, step))));
                }
                assert_eq!(seen.len() as u32, 3 * steps);
            }
        }
    }
}
