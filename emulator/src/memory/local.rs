//! Plain bytes with initialisation bits: a block's shared memory, and the local memory of a warp's lanes.

/// Bytes that one thread of the host works on.
#[derive(Clone)]
pub(crate) struct Bytes {
    bytes: Vec<u8>,
    /// A bit for each byte.
    written: Vec<u8>,
}

impl Bytes {
    /// `count` bytes, none of them written.
    pub(crate) fn new(count: usize) -> Self {
        // A little longer, so that a mask of 16 bits can be read at the last byte.
        Self { bytes: vec![0; count], written: vec![0; count.div_ceil(8) + 4] }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Copies bytes out, and which of them were written.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8], written: &mut [bool]) {
        into.copy_from_slice(&self.bytes[offset..offset + into.len()]);
        for (i, written) in written.iter_mut().enumerate() {
            *written = self.written(offset + i, 1) == 1;
        }
    }

    /// Copies bytes in; `written` says which of them count as written.
    pub(crate) fn write(&mut self, offset: usize, from: &[u8], written: &[bool]) {
        self.bytes[offset..offset + from.len()].copy_from_slice(from);
        for (i, &written) in written.iter().enumerate() {
            self.set_written(offset + i, 1, written);
        }
    }

    /// Copies bytes from one place to another, with what is known of them.
    pub(crate) fn copy_within(&mut self, from: usize, to: usize, count: usize) {
        self.bytes.copy_within(from..from + count, to);
        for i in 0..count {
            let written = self.written(from + i, 1) == 1;
            self.set_written(to + i, 1, written);
        }
    }

    /// The `N` bytes at `offset`, which is inside.
    #[inline(always)]
    pub(crate) fn load<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes[offset..offset + N]);
        out
    }

    #[inline(always)]
    pub(crate) fn store<const N: usize>(&mut self, offset: usize, value: [u8; N]) {
        self.bytes[offset..offset + N].copy_from_slice(&value);
    }

    /// Stores 16 bytes and marks them as written.
    #[inline(always)]
    pub(crate) fn store_block(&mut self, offset: usize, value: [u8; 16]) {
        self.store(offset, value);
        if offset.is_multiple_of(8) {
            self.written[offset / 8..offset / 8 + 2].copy_from_slice(&[0xff; 2]);
        } else {
            self.set_written(offset, 16, true);
        }
    }

    /// The 16 bytes at `offset`, and a bit for each that was written.
    #[inline(always)]
    pub(crate) fn load_block(&self, offset: usize) -> ([u8; 16], u32) {
        let value = self.load(offset);
        if offset.is_multiple_of(8) {
            let at = offset / 8;
            let written = &self.written[at..at + 2];
            (value, u32::from(u16::from_le_bytes([written[0], written[1]])))
        } else {
            (value, self.written(offset, 16))
        }
    }

    /// A bit for each of the `count` (at most 16) bytes from `offset` that was written.
    #[inline(always)]
    pub(crate) fn written(&self, offset: usize, count: u32) -> u32 {
        let at = offset / 8;
        let bits = u32::from(self.written[at])
            | u32::from(self.written[at + 1]) << 8
            | u32::from(self.written[at + 2]) << 16;
        bits >> (offset % 8) & ((1 << count) - 1)
    }

    /// Whether all of the `count` bytes from `offset` were written.
    #[inline(always)]
    pub(crate) fn all_written(&self, offset: usize, count: u32) -> bool {
        if !offset.is_multiple_of(8) || !count.is_multiple_of(8) {
            let parts = (0..count).step_by(8).map(|at| (at, (count - at).min(8)));
            return parts
                .into_iter()
                .all(|(at, part)| self.written(offset + at as usize, part) == (1 << part) - 1);
        }
        self.written[offset / 8..(offset + count as usize) / 8].iter().all(|&bits| bits == 0xff)
    }

    /// Sets which of the `count` bytes from `offset` are written.
    pub(crate) fn set_bytes(&mut self, offset: usize, count: u32, written: u32) {
        (0..count).for_each(|byte| self.set_written(offset + byte as usize, 1, written >> byte & 1 == 1));
    }

    /// Sets whether the `count` (at most 16) bytes from `offset` are written.
    #[inline(always)]
    pub(crate) fn set_written(&mut self, offset: usize, count: u32, value: bool) {
        let at = offset / 8;
        let mask = ((1u32 << count) - 1) << (offset % 8);
        for i in 0..3 {
            let byte = (mask >> (8 * i)) as u8;
            if byte == 0 {
                continue;
            }
            if value {
                self.written[at + i] |= byte;
            } else {
                self.written[at + i] &= !byte;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initialisation_bits_follow_the_bytes() {
        for offset in 0..20 {
            for count in 1..=16 {
                let mut bytes = Bytes::new(40);
                bytes.set_written(offset, count, true);
                let marked: Vec<usize> = (0..40).filter(|&i| bytes.written(i, 1) == 1).collect();
                assert_eq!(marked, (offset..offset + count as usize).collect::<Vec<_>>());
                assert_eq!(bytes.written(offset, count), (1 << count) - 1);
                bytes.set_written(offset, 1, false);
                assert_eq!(bytes.written(offset, count), (1 << count) - 2);
            }
        }
    }
}
