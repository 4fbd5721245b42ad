//! Where a warpgroup's product finds a matrix in shared memory.
//!
//! A matrix is read in units of 16 bytes. The descriptor has its first address, two distances, and a swizzle that
//! stores a unit at another place among its neighbours, so that what is read together is in different banks.
//!
//! | major | swizzle | a unit's place |
//! |---|---|---|
//! | K: the 32 bytes of a row or column are together | none | `row % 8 · 16 + row / 8 · stride + unit · leading` |
//! | | of `s` bytes | `row % 8 · s + row / 8 · stride + unit · 16` |
//! | M or N: 8 rows or columns are together in a unit | none | `unit · stride + k % 8 · 16 + k / 8 · leading` |
//! | | of `s` bytes | `unit % (s/16) · 16 + unit / (s/16) · leading + k % 8 · s + k / 8 · stride` |
//!
//! To that comes the first address; then bits 7 to 9 of the sum, less the base offset, are added (without carry) to
//! bits 4 to 6: three of them for 128 bytes, two for 64, one for 32. All this agrees with what an H100 read, which the
//! tests replay.

/// A descriptor, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    address: u32,
    leading: u32,
    stride: u32,
    base: u32,
    /// Units in the width of the swizzle; 1 is none.
    width: u32,
}

impl Descriptor {
    /// Takes a descriptor apart; gives the bits that should be zeros if some are not.
    pub(crate) fn parse(bits: u64) -> Result<Self, u64> {
        const RESERVED: u64 = 0x3ff1_c000_c000_c000;
        if bits & RESERVED != 0 {
            return Err(bits & RESERVED);
        }
        let field = |from: u32| (bits >> from & 0x3fff) as u32 * 16;
        let width = match bits >> 62 {
            0 => 1,
            1 => 8,
            2 => 4,
            _ => 2,
        };
        Ok(Self {
            address: field(0),
            leading: field(16),
            stride: field(32),
            base: (bits >> 49 & 7) as u32,
            width,
        })
    }

    /// The offsets of a matrix's units. Units are in the order in which [`super::operand`] wants them: those of row
    /// 0, those of row 1 (`transposed`: those of k = 0, those of k = 1). For A, `rows` are a warp's; for B, they are
    /// columns.
    pub(crate) fn units(self, rows: std::ops::Range<u32>, transposed: bool, to: &mut Vec<u32>) {
        let Self { leading, stride, width, .. } = self;
        to.clear();
        if transposed {
            for k in 0..16 {
                for unit in rows.start / 8..rows.end / 8 {
                    let place = if width == 1 {
                        unit * stride + k % 8 * 16 + k / 8 * leading
                    } else {
                        unit % width * 16 + unit / width * leading + k % 8 * width * 16 + k / 8 * stride
                    };
                    to.push(self.swizzled(place));
                }
            }
        } else {
            let unit = if width == 1 { leading } else { 16 };
            for row in rows {
                let place = row % 8 * width * 16 + row / 8 * stride;
                to.push(self.swizzled(place));
                to.push(self.swizzled(place + unit));
            }
        }
    }

    #[inline(always)]
    fn swizzled(self, place: u32) -> u32 {
        let address = self.address + place;
        address ^ ((address >> 7).wrapping_sub(self.base) & (self.width - 1)) << 4
    }
}

/// The runs of bytes that some units cover, ascending: first offset and length.
pub(crate) fn runs(units: &[u32]) -> Vec<(u32, u32)> {
    let (Some(&low), Some(&high)) = (units.iter().min(), units.iter().max()) else { return Vec::new() };
    let first = low / 16;
    let mut covered = vec![0u64; ((high / 16 - first) / 64 + 1) as usize];
    for unit in units {
        let at = unit / 16 - first;
        covered[at as usize / 64] |= 1 << (at % 64);
    }
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for (word, &bits) in covered.iter().enumerate() {
        let mut rest = bits;
        while rest != 0 {
            let from = rest.trailing_zeros();
            let length = (!(rest >> from)).trailing_zeros().min(64 - from);
            let offset = (first + word as u32 * 64 + from) * 16;
            match runs.last_mut() {
                Some((start, bytes)) if *start + *bytes == offset => *bytes += length * 16,
                _ => runs.push((offset, length * 16)),
            }
            rest = if from + length == 64 { 0 } else { rest >> (from + length) << (from + length) };
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swizzles_permute_the_units_of_their_atom() {
        for (swizzle, width) in [(1u64, 8u32), (2, 4), (3, 2)] {
            // A matrix of 8 rows, taken in steps of 32 bytes of K, fills rows of the swizzle's width.
            let mut all = Vec::new();
            for step in 0..width / 2 {
                let bits = swizzle << 62 | u64::from(step * 2) | 64 << 32;
                let mut units = Vec::new();
                Descriptor::parse(bits).unwrap().units(0..8, false, &mut units);
                all.extend(units);
            }
            all.sort_unstable();
            assert_eq!(all, (0..8 * width).map(|i| 16 * i).collect::<Vec<_>>());
        }
    }

    #[test]
    fn reserved_bits_are_refused() {
        for bit in [14, 15, 30, 31, 46, 48, 52, 61] {
            assert_eq!(Descriptor::parse(1 << bit), Err(1 << bit));
        }
        for bit in [0, 13, 16, 29, 32, 45, 49, 51, 62, 63] {
            assert!(Descriptor::parse(1 << bit).is_ok());
        }
    }

    #[test]
    fn runs_join_neighbours() {
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[32, 0, 16, 64]), [(0, 48), (64, 16)]);
        let all: Vec<u32> = (3..300).map(|i| 16 * i).collect();
        assert_eq!(runs(&all), [(48, 297 * 16)]);
        let alternate: Vec<u32> = (0..200).map(|i| 32 * i).collect();
        assert_eq!(runs(&alternate).len(), 200);
    }
}
