//! `wgmma`: matrix products of a warpgroup, four warps that multiply tiles of shared memory on the tensor cores.
//!
//! All of it needs PTX ISA 8.0 and sm_90a. The products run asynchronously: a [`wgmma_fence`] orders them after earlier accesses
//! to their registers, [`wgmma_commit_group`] closes a group of them, and [`wgmma_wait_group`] waits for groups. Between a
//! product and the wait for its group nothing may touch its accumulators or write its operands. [`Accumulators::hold`] keeps
//! the compiler from moving anything that does across the wait.
//!
//! Warp w of the warpgroup holds rows 16·w to 16·w + 15 of the 64 rows; of each 8 columns it holds an accumulator as `mma`'s
//! ([`accumulator_coord`](crate::layout::accumulator_coord)): registers 4·j to 4·j + 3 belong to columns 8·j to 8·j + 7.

use crate::float::{Bf16, Element, F16};

/// `wgmma.fence.sync.aligned`: orders the warpgroup's earlier accesses to accumulators before the products that follow.
///
/// # Safety
///
/// All lanes of the warp execute it.
#[inline(always)]
pub unsafe fn wgmma_fence() {
    // SAFETY: the caller's promise is the instruction's.
    unsafe { instruction!("wgmma.fence.sync.aligned;", options(nostack)) }
}

/// `wgmma.commit_group.sync.aligned`: closes the group of the products since the last one.
///
/// # Safety
///
/// All lanes of the warp execute it.
#[inline(always)]
pub unsafe fn wgmma_commit_group() {
    // SAFETY: the caller's promise is the instruction's.
    unsafe { instruction!("wgmma.commit_group.sync.aligned;", options(nostack)) }
}

/// `wgmma.wait_group.sync.aligned PENDING`: waits until at most `PENDING` (0 to 7) of the newest groups are unfinished.
///
/// # Safety
///
/// All lanes of the warp execute it.
#[inline(always)]
pub unsafe fn wgmma_wait_group<const PENDING: u32>() {
    const { assert!(PENDING < 8, "wgmma.wait_group takes 0 to 7") };
    // SAFETY: the caller's promise is the instruction's.
    unsafe { instruction!("wgmma.wait_group.sync.aligned {};", const PENDING, options(nostack)) }
}

/// How the rows of a matrix are stored in shared memory, as `wgmma` is told of it: a 64-bit descriptor.
///
/// Bits 0–13 are the address, 16–29 the leading byte offset, 32–45 the stride byte offset, each in units of 16 bytes; bits 62–63
/// are the swizzle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct MatrixDescriptor(u64);

impl MatrixDescriptor {
    /// A K-major matrix whose rows are 128 bytes, one after the other, in the 128-byte swizzle.
    ///
    /// The rows start at `address`, a multiple of 1024. Eight rows are a unit of the swizzle, so the stride byte offset is 1024; the
    /// leading byte offset means nothing to a row that is no longer than the swizzle.
    #[inline(always)]
    #[must_use]
    pub const fn rows_of_128_bytes(address: u32) -> Self {
        const STRIDE: u64 = 1024 >> 4;
        const LEADING: u64 = 1;
        const SWIZZLE_128: u64 = 1;
        let address = ((address & 0x3_ffff) >> 4) as u64;
        Self(address | (LEADING << 16) | (STRIDE << 32) | (SWIZZLE_128 << 62))
    }

    /// A matrix of 16-bit elements whose columns are contiguous ("MN-major"), in the 128-byte swizzle: panels of 64 rows, each of
    /// which is 128 bytes, the 64 rows' elements, for every index along K; the next panel is `panel_bytes` further on.
    ///
    /// The first panel starts at `address`, a multiple of 1024. Eight indices along K are a unit of the swizzle, so the stride
    /// byte offset is 1024; the leading byte offset is what leads from panel to panel.
    #[inline(always)]
    #[must_use]
    pub const fn panels_of_128_bytes(address: u32, panel_bytes: u32) -> Self {
        let rows = Self::rows_of_128_bytes(address).0 & !(0x3fff << 16);
        Self(rows | (((panel_bytes >> 4) as u64) << 16))
    }

    /// The matrix `bytes` further on, a multiple of 16: along K within the rows, or from one unit of the swizzle to another.
    ///
    /// The hardware applies the swizzle to addresses, so moving along a row is an addition.
    #[inline(always)]
    #[must_use]
    pub const fn advance(self, bytes: u32) -> Self {
        Self(self.0 + (bytes >> 4) as u64)
    }

    /// The lower half of its bits, which has the address.
    #[inline(always)]
    #[must_use]
    pub const fn low(self) -> u32 {
        self.0 as u32
    }

    /// The upper half of its bits, which says how rows are laid out.
    #[inline(always)]
    #[must_use]
    pub const fn high(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The descriptor's bits.
    #[inline(always)]
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

/// A warpgroup's accumulators, a thread's share: two for each column of the product.
pub trait Accumulators: AsRef<[f32]> + AsMut<[f32]> + Copy + 'static {
    /// Columns of the product.
    const COLUMNS: u32;

    /// The accumulators of a product of half the columns; the same where such a product is not asked for.
    type Half: Accumulators;

    /// Accumulators whose first columns are those of `half`; in the others is whatever is in the registers.
    fn from_half(half: &Self::Half) -> Self;

    /// All zeros.
    fn zero() -> Self;

    /// Whatever is in the registers: no instruction. For products that do not add to what was before.
    fn arbitrary() -> Self;

    /// The four accumulators of columns 8·`index` to 8·`index` + 7.
    fn fragment(&self, index: usize) -> [f32; 4];

    /// No instruction: to the compiler, a use and a change of every accumulator.
    ///
    /// It stands before the first product and after a wait. Without it the compiler, which knows nothing of asynchronous
    /// registers, could use the accumulators before the wait, where they do not hold the product yet.
    fn hold(&mut self);
}

/// A type of inputs whose products `wgmma` adds to accumulators `C`.
pub trait Wgmma<C: Accumulators>: Element {
    /// Whether an operand may be MN-major: its elements contiguous along its rows' index rather than along K.
    const TRANSPOSES: bool;

    /// `c += a bᵀ`, over the next 32 bytes along K of 64 rows of `a` and as many rows of `b` as `c` has columns. `A_MN` and `B_MN`
    /// say which operands are MN-major.
    ///
    /// # Safety
    ///
    /// All lanes of the four warps of an aligned warpgroup execute it with the same descriptors, of shared memory that is
    /// written and visible to the async proxy. Nothing writes it, and nothing touches `c` but further products of this
    /// shape, before a wait for the product's group.
    unsafe fn wgmma<const A_MN: bool, const B_MN: bool>(c: &mut C, a: MatrixDescriptor, b: MatrixDescriptor);

    /// As [`wgmma`](Self::wgmma) if `keep` is not 0, else `c = a bᵀ`, whatever `c` was before.
    ///
    /// # Safety
    ///
    /// As [`wgmma`](Self::wgmma), with the same `keep` in all lanes.
    unsafe fn wgmma_if<const A_MN: bool, const B_MN: bool>(
        c: &mut C,
        a: MatrixDescriptor,
        b: MatrixDescriptor,
        keep: u32,
    );
}

/// Calls macro `$then` for products of so many columns: with the columns, the number of a thread's accumulators, their indices, and
/// the arguments that follow.
macro_rules! for_columns {
    (16, $then:ident! $($arguments:tt)*) => {
        $then!(16, 8, [
            0 1 2 3 4 5 6 7
        ] $($arguments)*);
    };
    (32, $then:ident! $($arguments:tt)*) => {
        $then!(32, 16, [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15
        ] $($arguments)*);
    };
    (64, $then:ident! $($arguments:tt)*) => {
        $then!(64, 32, [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
        ] $($arguments)*);
    };
    (96, $then:ident! $($arguments:tt)*) => {
        $then!(96, 48, [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38
            39 40 41 42 43 44 45 46 47
        ] $($arguments)*);
    };
    (128, $then:ident! $($arguments:tt)*) => {
        $then!(128, 64, [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38
            39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
        ] $($arguments)*);
    };
    (160, $then:ident! $($arguments:tt)*) => {
        $then!(160, 80, [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38
            39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74
            75 76 77 78 79
        ] $($arguments)*);
    };
    (176, $then:ident! $($arguments:tt)*) => {
        $then!(176, 88, [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38
            39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74
            75 76 77 78 79 80 81 82 83 84 85 86 87
        ] $($arguments)*);
    };
    (192, $then:ident! $($arguments:tt)*) => {
        $then!(192, 96, [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38
            39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74
            75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95
        ] $($arguments)*);
    };
    (256, $then:ident! $($arguments:tt)*) => {
        $then!(256, 128, [
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38
            39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74
            75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107
            108 109 110 111 112 113 114 115 116 117 118 119 120 121 122 123 124 125 126 127
        ] $($arguments)*);
    };
}
pub(super) use for_columns;

/// `wgmma.mma_async` of so many columns that adds to the accumulators `$c`. `$form` is the rest of the shape, and the types; then come
/// the operands: A, B, the predicate that says whether the accumulators count, the signs. `$keep` is the predicate's register, if it is
/// in one.
macro_rules! product {
    ($columns:literal, $indices:tt $c:ident, $form:tt, $operands:tt, keep = $keep:expr, $($values:tt)*) => {
        product!(
            @ $columns, $indices $c, $form, $operands,
            "{{ .reg .pred keep; setp.ne.b32 keep, {keep}, 0; ", " }}",
            keep = in(reg32) $keep, $($values)*
        )
    };
    ($columns:literal, $indices:tt $c:ident, $form:tt, $operands:tt, $($values:tt)*) => {
        product!(@ $columns, $indices $c, $form, $operands, "", "", $($values)*)
    };
    (
        @ $columns:literal, [$first:literal $($index:literal)*]
        $c:ident, [$($form:literal)*], $operands:literal, $before:literal, $after:literal, $($values:tt)*
    ) => {
        instruction!(
            concat!(
                $before, "wgmma.mma_async.sync.aligned.m64n", $columns $(, $form)*,
                " {{{", $first, "}" $(, ", {", $index, "}")*, "}}, ", $operands, ";", $after
            ),
            inout(reg32) $c[$first], $(inout(reg32) $c[$index],)*
            $($values)*
            options(nostack)
        )
    };
}
pub(super) use product;

macro_rules! accumulators {
    ($columns:literal, $registers:literal, [$first:literal $($index:literal)*] $half:literal) => {
        impl Accumulators for [f32; $registers] {
            const COLUMNS: u32 = $columns;

            type Half = [f32; $half];

            #[inline(always)]
            fn from_half(half: &[f32; $half]) -> Self {
                let mut all = Self::arbitrary();
                for (to, from) in all.iter_mut().zip(half) {
                    *to = *from;
                }
                all
            }

            #[inline(always)]
            fn zero() -> Self {
                // SAFETY: all-zero bits are numbers. (An array literal of this length would be filled by a loop with a
                // variable index and so live in local memory.)
                unsafe { core::mem::zeroed() }
            }

            #[inline(always)]
            fn arbitrary() -> Self {
                let mut all = Self::zero();
                // SAFETY: a comment, which may leave anything in its outputs: any bits are numbers.
                unsafe {
                    instruction!(
                        concat!("// {", $first, "}" $(, " {", $index, "}")*),
                        out(reg32) all[$first], $(out(reg32) all[$index],)*
                        options(nomem, nostack)
                    )
                }
                all
            }

            #[inline(always)]
            fn fragment(&self, index: usize) -> [f32; 4] {
                [self[4 * index], self[4 * index + 1], self[4 * index + 2], self[4 * index + 3]]
            }

            #[inline(always)]
            fn hold(&mut self) {
                // SAFETY: a comment.
                unsafe {
                    instruction!(
                        concat!("// {", $first, "}" $(, " {", $index, "}")*),
                        inout(reg32) self[$first], $(inout(reg32) self[$index],)*
                        options(nostack)
                    )
                }
            }
        }
    };
}

macro_rules! wgmma {
    ($columns:literal, $registers:literal, $indices:tt $element:ident $type:literal) => {
        #[doc = concat!("`wgmma.mma_async.sync.aligned.m64n", $columns, "k16.f32.", $type, ".", $type, "`, both operands in shared memory.")]
        impl Wgmma<[f32; $registers]> for $element {
            const TRANSPOSES: bool = true;

            #[inline(always)]
            unsafe fn wgmma<const A_MN: bool, const B_MN: bool>(
                c: &mut [f32; $registers],
                a: MatrixDescriptor,
                b: MatrixDescriptor,
            ) {
                // SAFETY: the caller's promise is the instruction's.
                unsafe {
                    product!(
                        $columns, $indices c, ["k16.f32." $type "." $type], "{a}, {b}, 1, 1, 1, {a_mn}, {b_mn}",
                        a = in(reg64) a.bits(), b = in(reg64) b.bits(),
                        a_mn = const A_MN as u32, b_mn = const B_MN as u32,
                    )
                }
            }

            #[inline(always)]
            unsafe fn wgmma_if<const A_MN: bool, const B_MN: bool>(
                c: &mut [f32; $registers],
                a: MatrixDescriptor,
                b: MatrixDescriptor,
                keep: u32,
            ) {
                // SAFETY: the caller's promise is the instruction's.
                unsafe {
                    product!(
                        $columns, $indices c, ["k16.f32." $type "." $type], "{a}, {b}, keep, 1, 1, {a_mn}, {b_mn}",
                        keep = keep, a = in(reg64) a.bits(), b = in(reg64) b.bits(),
                        a_mn = const A_MN as u32, b_mn = const B_MN as u32,
                    )
                }
            }
        }
    };
}

for_columns!(16, accumulators! 8);
for_columns!(32, accumulators! 16);
for_columns!(64, accumulators! 32);
for_columns!(96, accumulators! 48);
for_columns!(128, accumulators! 64);
for_columns!(160, accumulators! 80);
for_columns!(176, accumulators! 88);
for_columns!(192, accumulators! 96);
for_columns!(256, accumulators! 64);
for_columns!(16, wgmma! F16 "f16");
for_columns!(32, wgmma! F16 "f16");
for_columns!(64, wgmma! F16 "f16");
for_columns!(96, wgmma! F16 "f16");
for_columns!(128, wgmma! F16 "f16");
for_columns!(160, wgmma! F16 "f16");
for_columns!(176, wgmma! F16 "f16");
for_columns!(192, wgmma! F16 "f16");
for_columns!(256, wgmma! F16 "f16");
for_columns!(16, wgmma! Bf16 "bf16");
for_columns!(32, wgmma! Bf16 "bf16");
for_columns!(64, wgmma! Bf16 "bf16");
for_columns!(96, wgmma! Bf16 "bf16");
for_columns!(128, wgmma! Bf16 "bf16");
for_columns!(160, wgmma! Bf16 "bf16");
for_columns!(176, wgmma! Bf16 "bf16");
for_columns!(192, wgmma! Bf16 "bf16");
for_columns!(256, wgmma! Bf16 "bf16");

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields as the PTX ISA lists them under "Matrix descriptor", read back one by one.
    #[test]
    fn a_descriptor_says_where_the_rows_are_and_how_they_are_swizzled() {
        for address in [0, 1024, 0x1_8000, 0x3_8400] {
            let bits = MatrixDescriptor::rows_of_128_bytes(address).bits();
            assert_eq!((bits & 0x3fff) << 4, u64::from(address));
            assert_eq!((bits >> 32 & 0x3fff) << 4, 1024, "eight rows of 128 bytes");
            assert_eq!(bits >> 62, 1, "128-byte swizzle");
            assert_eq!(bits >> 49 & 7, 0, "tiles that start at a multiple of 1024 need no base offset");
        }
    }

    #[test]
    fn a_descriptor_of_panels_says_how_far_apart_they_are() {
        let bits = MatrixDescriptor::panels_of_128_bytes(0x1_8000, 8192).bits();
        assert_eq!((bits & 0x3fff) << 4, 0x1_8000);
        assert_eq!((bits >> 16 & 0x3fff) << 4, 8192, "from panel to panel");
        assert_eq!((bits >> 32 & 0x3fff) << 4, 1024, "eight indices along K");
        assert_eq!(bits >> 62, 1);
    }

    #[test]
    fn advancing_changes_the_address_only() {
        let start = MatrixDescriptor::rows_of_128_bytes(0x8000);
        for step in 0..4 {
            let bits = start.advance(32 * step).bits();
            assert_eq!((bits & 0x3fff) << 4, 0x8000 + 32 * u64::from(step));
            assert_eq!(bits >> 14, start.bits() >> 14);
        }
    }

    #[test]
    fn two_registers_a_column_hold_64_rows() {
        fn check<C: Accumulators>() {
            assert_eq!(size_of::<C>() as u32 / 4 * 128, 64 * C::COLUMNS);
        }
        check::<[f32; 8]>();
        check::<[f32; 16]>();
        check::<[f32; 32]>();
        check::<[f32; 48]>();
        check::<[f32; 64]>();
        check::<[f32; 80]>();
        check::<[f32; 88]>();
        check::<[f32; 96]>();
        check::<[f32; 128]>();
    }
}
