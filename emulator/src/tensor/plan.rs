//! The walk over a box: which bytes of the tensor belong where in shared memory.
//!
//! The box is walked row by row, a row being the elements along the innermost axis. Without a swizzle the rows are one
//! behind the other; with one each takes a whole span, and its chunks of 16 bytes change places. What is contiguous on
//! both sides is one piece.

use super::map::{OobFill, Tiled};

/// What fills an element outside the tensor where the map asks for NaN: the same 16 bits in every floating-point type,
/// once, twice or four times.
const OOB_NAN: u16 = 0x7ff7;

/// What a store writes at a time.
const CHUNK_BYTES: u64 = 16;

/// What a load puts in the place of the bits of an f32 where the map's type is TF32: the nearest number, of two the even one,
/// and one NaN for all.
pub(crate) fn round_tf32(bits: u32) -> u32 {
    match bits & 0x7fff_ffff {
        0x7f80_0000 => bits,
        0x7f80_0001.. => 0x7fff_e000,
        _ => (bits + 0xfff + (bits >> 13 & 1)) & !0x1fff,
    }
}

/// Contiguous bytes of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BoxPiece {
    /// The offset in shared memory, from its start.
    pub(crate) shared: u32,
    pub(crate) bytes: u32,
    /// The address in global memory; `None` outside the tensor.
    pub(crate) global: Option<u64>,
}

impl Tiled {
    /// Bytes along the innermost axis of the box.
    fn row_bytes(&self) -> u32 {
        self.counts[0] * self.data_type.bytes()
    }

    /// From one row of the box to the next in shared memory.
    fn pitch(&self) -> u32 {
        self.row_bytes().max(self.swizzle.span())
    }

    fn rows(&self) -> u64 {
        self.counts[1..].iter().map(|&count| u64::from(count)).product()
    }

    /// Bytes that a copy of a box moves, whether or not they are inside the tensor.
    pub(crate) fn box_bytes(&self) -> u64 {
        self.rows() * u64::from(self.row_bytes())
    }

    /// Bytes of shared memory from the start of the tile to its end, rows filled up to the swizzle's span.
    pub(crate) fn shared_bytes(&self) -> u64 {
        self.rows() * u64::from(self.pitch())
    }

    /// What fills 16 bits outside the tensor.
    pub(crate) fn fill(&self) -> u16 {
        match self.oob_fill {
            OobFill::Zeros => 0,
            OobFill::Nan => OOB_NAN,
        }
    }

    /// Whether a box that begins at `start` is in the tensor with its first element; a store must.
    pub(crate) fn negative_axis(&self, start: &[i32; 5]) -> Option<usize> {
        (0..self.rank).find(|&axis| start[axis] < 0)
    }

    /// Walks the box that begins at the coordinates `start`, whose tile begins at `shared`, a multiple of 128.
    ///
    /// The tile ends at most at 2³²: the caller has compared [`shared_bytes`](Self::shared_bytes) with what there is.
    pub(crate) fn pieces(&self, start: &[i32; 5], shared: u32, piece: impl FnMut(BoxPiece)) {
        self.walk(start, shared, 1, piece);
    }

    /// Walks the box as a store does, which writes whole chunks: of one in which the innermost axis of the tensor ends, also the bytes
    /// behind that end.
    pub(crate) fn stored_pieces(&self, start: &[i32; 5], shared: u32, piece: impl FnMut(BoxPiece)) {
        self.walk(start, shared, CHUNK_BYTES, piece);
    }

    /// Walks the box, in whose rows what is inside the tensor ends at a multiple of `unit` bytes.
    fn walk(&self, start: &[i32; 5], shared: u32, unit: u64, mut piece: impl FnMut(BoxPiece)) {
        let size = u64::from(self.data_type.bytes());
        let row_bytes = self.row_bytes();
        // The elements of a row that lie inside the tensor.
        let inside = |at: i64| at.clamp(0, i64::from(self.counts[0])) as u64;
        let first = inside(-i64::from(start[0]));
        let last = inside(self.dims[0].cast_signed() - i64::from(start[0])).max(first);
        let inner = (i64::from(start[0]) + first.cast_signed()).max(0).cast_unsigned().saturating_mul(size);

        let mut merged: Option<BoxPiece> = None;
        let mut emit = |next: BoxPiece| {
            if let Some(before) = &mut merged {
                let follows = match (before.global, next.global) {
                    (None, None) => true,
                    (Some(a), Some(b)) => a.checked_add(u64::from(before.bytes)) == Some(b),
                    _ => false,
                };
                if follows && before.shared + before.bytes == next.shared {
                    before.bytes += next.bytes;
                    return;
                }
                piece(*before);
            }
            merged = Some(next);
        };
        let mut index = [0u32; 5];
        let mut line = shared;
        for _ in 0..self.rows() {
            let mut offset = Some(inner);
            for axis in 1..5 {
                let at = i64::from(start[axis]) + i64::from(index[axis]) * i64::from(self.steps[axis]);
                offset = match offset {
                    Some(offset) if at >= 0 && at.cast_unsigned() < self.dims[axis] => {
                        // As the copy engine computes it, in 64 bits.
                        Some(offset.wrapping_add(at.cast_unsigned().wrapping_mul(self.strides[axis])))
                    }
                    _ => None,
                };
            }
            let (from, to) = match offset {
                // The tensor and the box begin with a chunk, and the box ends with one.
                Some(_) => ((first * size) as u32, (last * size).next_multiple_of(unit) as u32),
                None => (0, 0),
            };
            let global = offset.map(|offset| self.address.wrapping_add(offset));
            for (begin, end, source) in [(0, from, None), (from, to, global), (to, row_bytes, None)] {
                self.place(line, begin, end, source, &mut emit);
            }
            line = line.wrapping_add(self.pitch());
            for (index, &count) in index.iter_mut().zip(&self.counts).skip(1) {
                *index += 1;
                if *index < count {
                    break;
                }
                *index = 0;
            }
        }
        if let Some(last) = merged {
            piece(last);
        }
    }

    /// Gives the pieces of the bytes `begin` to `end` of a row that begins at `line`.
    fn place(&self, line: u32, begin: u32, end: u32, source: Option<u64>, emit: &mut impl FnMut(BoxPiece)) {
        let mut at = begin;
        while at < end {
            let chunk_end = if self.swizzle.span() == 0 { end } else { end.min((at / 16 + 1) * 16) };
            emit(BoxPiece {
                shared: self.swizzle.apply(line + at),
                bytes: chunk_end - at,
                global: source.map(|source| source.saturating_add(u64::from(at - begin))),
            });
            at = chunk_end;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::{Interleave, L2Promotion, Swizzle, TensorMap, TensorMapArguments, TensorType};
    use super::*;

    const BASE: u64 = 1 << 20;
    const SWIZZLES: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

    struct Shape<'a> {
        data_type: TensorType,
        dims: &'a [u64],
        strides: &'a [u64],
        box_dims: &'a [u32],
        element_strides: &'a [u32],
        swizzle: Swizzle,
    }

    impl Shape<'_> {
        fn map(&self) -> Tiled {
            let arguments = TensorMapArguments {
                data_type: self.data_type,
                address: BASE,
                dims: self.dims,
                strides: self.strides,
                box_dims: self.box_dims,
                element_strides: self.element_strides,
                interleave: Interleave::None,
                swizzle: self.swizzle,
                l2_promotion: L2Promotion::None,
                oob_fill: OobFill::Zeros,
            };
            Tiled::decode(TensorMap::encode(&arguments).unwrap().as_bytes()).unwrap()
        }

        /// Where each byte of shared memory comes from, worked out one element and one byte at a time from the arguments.
        fn expected(&self, start: &[i32], shared: u32) -> BTreeMap<u32, Option<u64>> {
            let size = self.data_type.bytes();
            let rank = self.dims.len();
            let steps: Vec<u32> =
                (0..rank).map(|i| if i == 0 { 1 } else { self.element_strides[i] }).collect();
            let counts: Vec<u32> = (0..rank).map(|i| self.box_dims[i].div_ceil(steps[i])).collect();
            let row = counts[0] * size;
            let pitch = if self.swizzle == Swizzle::None { row } else { row.max(self.swizzle.span()) };
            let mut bytes = BTreeMap::new();
            for number in 0..counts.iter().product::<u32>() {
                let (mut rest, mut inside, mut global) = (number, true, BASE.cast_signed());
                for axis in 0..rank {
                    let at = i64::from(start[axis]) + i64::from(rest % counts[axis] * steps[axis]);
                    rest /= counts[axis];
                    inside &= at >= 0 && at < self.dims[axis].cast_signed();
                    global +=
                        at * if axis == 0 { i64::from(size) } else { self.strides[axis - 1].cast_signed() };
                }
                for byte in 0..size {
                    let linear = shared + number / counts[0] * pitch + number % counts[0] * size + byte;
                    let (mask, chunk) = match self.swizzle {
                        Swizzle::None => (0, linear / 16),
                        Swizzle::B32 => (1, linear / 16),
                        Swizzle::B64 => (3, linear / 16),
                        Swizzle::B128 => (7, linear / 16),
                    };
                    let place = (chunk ^ ((linear / 128) & mask)) * 16 + linear % 16;
                    let from = inside.then(|| global.cast_unsigned() + u64::from(byte));
                    assert_eq!(bytes.insert(place, from), None, "two bytes for one place");
                }
            }
            bytes
        }

        fn check(&self, start: &[i32], shared: u32) {
            let map = self.map();
            let mut coordinates = [0; 5];
            coordinates[..start.len()].copy_from_slice(start);
            let mut bytes = BTreeMap::new();
            let (mut moved, mut last) = (0, None::<BoxPiece>);
            map.pieces(&coordinates, shared, |piece| {
                assert!(piece.bytes > 0);
                for i in 0..piece.bytes {
                    let from = piece.global.map(|global| global + u64::from(i));
                    assert_eq!(bytes.insert(piece.shared + i, from), None, "two pieces for one place");
                }
                if let Some(last) = last {
                    let joined = last.shared + last.bytes == piece.shared
                        && last.global.map(|g| g + u64::from(last.bytes)) == piece.global;
                    assert!(!joined, "two pieces that are one: {last:?} {piece:?}");
                }
                moved += u64::from(piece.bytes);
                last = Some(piece);
            });
            assert_eq!(bytes, self.expected(start, shared), "start {start:?}");
            assert_eq!(moved, map.box_bytes());
            let end = shared + map.shared_bytes() as u32;
            assert!(bytes.keys().all(|&at| at >= shared && at < end));
        }
    }

    #[test]
    fn rows_go_where_the_swizzle_says_whatever_the_start_of_the_tile() {
        for swizzle in SWIZZLES {
            for row in [16, 32, 48, 64, 112, 128] {
                if swizzle != Swizzle::None && row > swizzle.span() {
                    continue;
                }
                for data_type in [TensorType::U8, TensorType::Bf16, TensorType::F32, TensorType::F64] {
                    let shape = Shape {
                        data_type,
                        dims: &[1000, 1000],
                        strides: &[8192],
                        box_dims: &[row / data_type.bytes(), 20],
                        element_strides: &[1, 1],
                        swizzle,
                    };
                    for tile in 0..9 {
                        shape.check(&[0, 0], tile * 128);
                    }
                }
            }
        }
    }

    #[test]
    fn boxes_across_every_border_are_filled_up() {
        for swizzle in SWIZZLES {
            let shape = Shape {
                data_type: TensorType::Bf16,
                dims: &[19, 5],
                strides: &[48],
                box_dims: &[16, 4],
                element_strides: &[1, 1],
                swizzle,
            };
            for x in -18..24 {
                for y in -6..8 {
                    shape.check(&[x, y], 256);
                }
            }
            for far in [i32::MIN, i32::MAX] {
                shape.check(&[far, 0], 0);
                shape.check(&[0, far], 0);
            }
        }
    }

    #[test]
    fn each_rank_walks_its_axes_in_order() {
        let dims = [9, 4, 3, 5, 4];
        let strides = [64, 320, 1024, 8192];
        let boxes = [8, 3, 2, 3, 2];
        for rank in 1..=5 {
            for swizzle in SWIZZLES {
                let shape = Shape {
                    data_type: TensorType::F32,
                    dims: &dims[..rank],
                    strides: &strides[..rank - 1],
                    box_dims: &boxes[..rank],
                    element_strides: &[1; 5][..rank],
                    swizzle,
                };
                for axis in 0..rank {
                    for at in -9..10 {
                        let mut start = vec![1; rank];
                        start[axis] = at;
                        if swizzle == Swizzle::None || 32 <= swizzle.span() {
                            shape.check(&start, 0);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn element_strides_leave_elements_out() {
        for steps in [[1, 1, 2], [1, 3, 1], [1, 8, 5], [1, 2, 2]] {
            for swizzle in SWIZZLES {
                let shape = Shape {
                    data_type: TensorType::U16,
                    dims: &[20, 17, 11],
                    strides: &[64, 2048],
                    box_dims: &[16, 9, 5],
                    element_strides: &steps,
                    swizzle,
                };
                for start in [[0, 0, 0], [-3, -2, -1], [10, 12, 8], [0, -1, 7]] {
                    shape.check(&start, 128);
                }
            }
        }
    }

    #[test]
    fn contiguous_rows_are_one_piece() {
        let shape = Shape {
            data_type: TensorType::U8,
            dims: &[64, 10, 10],
            strides: &[64, 640],
            box_dims: &[64, 10, 4],
            element_strides: &[1, 1, 1],
            swizzle: Swizzle::None,
        };
        let mut pieces = Vec::new();
        shape.map().pieces(&[0, 0, 3, 0, 0], 0, |piece| pieces.push(piece));
        assert_eq!(pieces, [BoxPiece { shared: 0, bytes: 2560, global: Some(BASE + 1920) }]);
        shape.map().pieces(&[0, 0, 20, 0, 0], 0, |piece| pieces.push(piece));
        assert_eq!(pieces[1..], [BoxPiece { shared: 0, bytes: 2560, global: None }]);
    }

    #[test]
    fn stores_write_whole_chunks_of_rows_that_have_elements() {
        let shape = Shape {
            data_type: TensorType::Bf16,
            dims: &[19, 5],
            strides: &[48],
            box_dims: &[16, 2],
            element_strides: &[1, 1],
            swizzle: Swizzle::None,
        };
        let stored = |x: i32| {
            let mut pieces = Vec::new();
            shape.map().stored_pieces(&[x, 4, 0, 0, 0], 0, |piece| {
                pieces.extend(piece.global.map(|global| (piece.shared, global - BASE - 192, piece.bytes)));
            });
            pieces
        };
        assert_eq!(stored(0), [(0, 0, 32)]);
        // Elements 8 to 18, and the rest of the chunk that begins with 16.
        assert_eq!(stored(8), [(0, 16, 32)]);
        assert_eq!(stored(16), [(0, 32, 16)]);
        assert_eq!(stored(24), []);
    }

    /// So a last axis may take back what another is too far: what it adds is 2⁶⁴ bytes less that.
    #[test]
    fn addresses_are_sums_in_64_bits() {
        let shape = Shape {
            data_type: TensorType::U8,
            dims: &[16, 1 << 31],
            strides: &[(1 << 34) - 128],
            box_dims: &[16, 1],
            element_strides: &[1, 1],
            swizzle: Swizzle::None,
        };
        let map = shape.map();
        let mut pieces = Vec::new();
        map.pieces(&[0, 1 << 30, 0, 0, 0], 0, |piece| pieces.push(piece));
        let global = Some(map.address.wrapping_sub(128 << 30));
        assert_eq!(pieces, [BoxPiece { shared: 0, bytes: 16, global }]);
    }
}
