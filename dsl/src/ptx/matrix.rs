//! The tensor cores' warp-level instructions: `ldmatrix`, `stmatrix` and `mma.sync`.
//!
//! Which element a lane's register holds is derived, and tested, in [`crate::layout`].

/// `ldmatrix.sync.aligned.m8n8.x4.shared.b16`: four 8×8 matrices of 16-bit elements (or 8×4 of 32-bit elements).
///
/// Lanes 8·i to 8·i + 7 give the addresses of the eight 16-byte rows of matrix i; register i of lane l receives elements
/// 2·(l mod 4) and the next of row l / 4 of matrix i.
///
/// # Safety
///
/// All 32 lanes of the warp execute it; each address is in shared memory, a multiple of 16, and its row is written and
/// visible to the warp.
#[inline(always)]
#[must_use]
pub unsafe fn ldmatrix_x4(address: u32) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{0}, {1}, {2}, {3}}}, [{4}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
            options(nostack)
        )
    };
    [a, b, c, d]
}

/// `ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16`: four 8×8 matrices of 16-bit elements, transposed.
///
/// Lanes 8·i to 8·i + 7 give the addresses of the eight 16-byte rows of matrix i; register i of lane l receives elements
/// l / 4 of rows 2·(l mod 4) and the next of matrix i.
///
/// # Safety
///
/// As [`ldmatrix_x4`].
#[inline(always)]
#[must_use]
pub unsafe fn ldmatrix_x4_trans(address: u32) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{0}, {1}, {2}, {3}}}, [{4}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
            options(nostack)
        )
    };
    [a, b, c, d]
}

/// `ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16`: two 8×8 matrices, as [`ldmatrix_x4_trans`] loads four; lanes 0 to 15 give the
/// addresses.
///
/// # Safety
///
/// As [`ldmatrix_x4`].
#[inline(always)]
#[must_use]
pub unsafe fn ldmatrix_x2_trans(address: u32) -> [u32; 2] {
    let (a, b): (u32, u32);
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {{{0}, {1}}}, [{2}];",
            out(reg32) a, out(reg32) b, in(reg32) address,
            options(nostack)
        )
    };
    [a, b]
}

/// `stmatrix.sync.aligned.m8n8.x4.shared.b16`: four 8×8 matrices of 16-bit elements, the inverse of [`ldmatrix_x4`]. PTX ISA 7.8,
/// sm_90.
///
/// # Safety
///
/// All 32 lanes of the warp execute it; each address is in shared memory, a multiple of 16, and no other thread touches its
/// row meanwhile.
#[inline(always)]
pub unsafe fn stmatrix_x4(address: u32, rows: [u32; 4]) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{0}], {{{1}, {2}, {3}, {4}}};",
            in(reg32) address, in(reg32) rows[0], in(reg32) rows[1], in(reg32) rows[2], in(reg32) rows[3],
            options(nostack)
        )
    }
}

macro_rules! mma {
    ($name:ident, $shape:literal, $types:literal) => {
        #[doc = concat!("`mma.sync.aligned.", $shape, ".row.col.f32.", $types, ".f32`: `c += a · b`, accumulated in f32.")]
        ///
        /// # Safety
        ///
        /// All 32 lanes of the warp execute it.
        #[inline(always)]
        pub unsafe fn $name(c: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(
                    concat!(
                        "mma.sync.aligned.", $shape, ".row.col.f32.", $types, ".f32 ",
                        "{{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, {{{8}, {9}}}, {{{0}, {1}, {2}, {3}}};"
                    ),
                    inout(reg32) c[0], inout(reg32) c[1], inout(reg32) c[2], inout(reg32) c[3],
                    in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3], in(reg32) b[0], in(reg32) b[1],
                    options(pure, nomem, nostack)
                )
            }
        }
    };
}
/// `mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32`: `c += a · b`, accumulated in f32. PTX ISA 6.5, sm_75.
///
/// # Safety
///
/// All 32 lanes of the warp execute it.
#[inline(always)]
pub unsafe fn mma_m16n8k8_f16(c: &mut [f32; 4], a: [u32; 2], b: u32) {
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {{{0}, {1}, {2}, {3}}}, {{{4}, {5}}}, {{{6}}}, {{{0}, {1}, {2}, {3}}};",
            inout(reg32) c[0], inout(reg32) c[1], inout(reg32) c[2], inout(reg32) c[3],
            in(reg32) a[0], in(reg32) a[1], in(reg32) b,
            options(pure, nomem, nostack)
        )
    }
}

mma!(mma_m16n8k16_f16, "m16n8k16", "f16.f16");
mma!(mma_m16n8k16_bf16, "m16n8k16", "bf16.bf16");
mma!(mma_m16n8k8_tf32, "m16n8k8", "tf32.tf32");
// PTX ISA 8.4, sm_89.
mma!(mma_m16n8k32_e4m3_e4m3, "m16n8k32", "e4m3.e4m3");
mma!(mma_m16n8k32_e4m3_e5m2, "m16n8k32", "e4m3.e5m2");
mma!(mma_m16n8k32_e5m2_e4m3, "m16n8k32", "e5m2.e4m3");
mma!(mma_m16n8k32_e5m2_e5m2, "m16n8k32", "e5m2.e5m2");
