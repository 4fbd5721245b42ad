//! Moving the bytes of transfers.

use super::agent::{Piece, Place};
use super::code::Core;
use crate::memory::local::Bytes;
use crate::memory::storage::Storage;
use crate::tensor::round_tf32;

/// What is moved at once where nothing is missing or misaligned.
const BLOCK: usize = 16;

impl Core<'_> {
    /// Moves the bytes of a piece.
    pub(super) fn carry_out(&mut self, piece: Piece) {
        let table = self.launch.table;
        match piece {
            Piece::Load {
                from: Place::Global { allocation, offset: from },
                to: Place::Shared { rank, offset: to },
                bytes,
            } => {
                if let (Some(source), Some(block)) = (table.get(allocation), self.peer(rank)) {
                    load(&source.storage, from, &mut block.shared, to as usize, bytes as usize);
                }
            }
            Piece::Load {
                from: Place::Shared { rank, offset: from },
                to: Place::Global { allocation, offset: to },
                bytes,
            } => {
                if let (Some(target), Some(block)) = (table.get(allocation), self.peer(rank)) {
                    store(&block.shared, from as usize, &target.storage, to, bytes as usize);
                }
            }
            _ => self.transform(piece),
        }
    }

    /// Moves the bytes of a piece that changes them, or that stays within shared memory.
    fn transform(&mut self, piece: Piece) {
        let (from, to, bytes) = piece.parts();
        let mut data = vec![0u8; bytes as usize];
        let mut written = vec![true; bytes as usize];
        if let Some(from) = from {
            self.fetch(from, &mut data, &mut written);
        }
        if let Piece::Fill { pattern, .. } = piece {
            data.iter_mut().zip(pattern.to_le_bytes().iter().cycle()).for_each(|(to, &from)| *to = from);
        }
        if let Piece::Write { data: given, written: which, .. } = piece {
            data.copy_from_slice(&given[..bytes as usize]);
            written.iter_mut().enumerate().for_each(|(i, written)| *written = which >> i & 1 == 1);
        }
        if let Piece::LoadRounded { .. } = piece {
            for number in data.as_chunks_mut().0 {
                *number = round_tf32(u32::from_le_bytes(*number)).to_le_bytes();
            }
        }
        if let Piece::Reduce { op, ty, flush, .. } = piece {
            let mut old = vec![0u8; bytes as usize];
            let mut there = vec![true; bytes as usize];
            self.fetch(to, &mut old, &mut there);
            let size = ty.bytes() as usize;
            for (new, old) in data.chunks_exact_mut(size).zip(old.chunks_exact(size)) {
                let value =
                    |bytes: &[u8]| bytes.iter().rev().fold(0u64, |all, &byte| all << 8 | u64::from(byte));
                let flushed =
                    |bits: u64| if flush && bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits };
                let result = super::atomic::apply(op, ty, flushed(value(old)), flushed(value(new)), 0);
                let result = flushed(result);
                new.copy_from_slice(&result.to_le_bytes()[..size]);
            }
            written.iter_mut().zip(there).for_each(|(written, there)| *written &= there);
        }
        match to {
            Place::Shared { rank, offset } => {
                if let Some(block) = self.peer(rank) {
                    block.shared.write(offset as usize, &data, &written);
                }
            }
            Place::Global { allocation, offset } => {
                if let Some(allocation) = self.launch.table.get(allocation) {
                    allocation.storage.write(offset, &data);
                    for (i, _) in written.iter().enumerate().filter(|(_, written)| !**written) {
                        allocation.storage.set_written(offset + i as u64, 1, false);
                    }
                }
            }
        }
    }

    fn fetch(&mut self, from: Place, data: &mut [u8], written: &mut [bool]) {
        match from {
            Place::Shared { rank, offset } => {
                if let Some(block) = self.peer(rank) {
                    block.shared.read(offset as usize, data, written);
                }
            }
            Place::Global { allocation, offset } => {
                if let Some(allocation) = self.launch.table.get(allocation) {
                    allocation.storage.read(offset, data);
                    allocation.storage.read_written(offset, written);
                }
            }
        }
    }
}

/// Copies from global to shared memory, and which bytes were written.
fn load(source: &Storage, from: u64, shared: &mut Bytes, to: usize, bytes: usize) {
    let mut data = [0; BLOCK];
    let mut written = [true; BLOCK];
    for at in (0..bytes).step_by(BLOCK) {
        let (from, to, count) = (from + at as u64, to + at, BLOCK.min(bytes - at));
        if count == BLOCK
            && let Some([low, high]) = source.written_block(from)
        {
            let block = u128::from(high) << 64 | u128::from(low);
            shared.store_block(to, block.to_le_bytes());
        } else {
            source.read(from, &mut data[..count]);
            source.read_written(from, &mut written[..count]);
            shared.write(to, &data[..count], &written[..count]);
        }
    }
}

/// Copies from shared to global memory, and which bytes were written.
fn store(shared: &Bytes, from: usize, target: &Storage, to: u64, bytes: usize) {
    let mut data = [0; BLOCK];
    let mut written = [true; BLOCK];
    for at in (0..bytes).step_by(BLOCK) {
        let (from, to, count) = (from + at, to + at as u64, BLOCK.min(bytes - at));
        shared.read(from, &mut data[..count], &mut written[..count]);
        target.write(to, &data[..count]);
        for (i, _) in written[..count].iter().enumerate().filter(|(_, written)| !**written) {
            target.set_written(to + i as u64, 1, false);
        }
    }
}
