//! Matrix instructions.

use super::*;

/// The shapes of a warpgroup's products: 64 rows, any multiple of 8 columns, and a depth that the macro is given.
macro_rules! shapes {
    ($before:literal, $k:literal, $after:literal) => {
        concat!(
            $before, " m64n8", $k, "|m64n16", $k, "|m64n24", $k, "|m64n32", $k, "|m64n40", $k, "|m64n48", $k,
            "|m64n56", $k, "|m64n64", $k, "|m64n72", $k, "|m64n80", $k, "|m64n88", $k, "|m64n96", $k,
            "|m64n104", $k, "|m64n112", $k, "|m64n120", $k, "|m64n128", $k, "|m64n136", $k, "|m64n144", $k,
            "|m64n152", $k, "|m64n160", $k, "|m64n168", $k, "|m64n176", $k, "|m64n184", $k, "|m64n192", $k,
            "|m64n200", $k, "|m64n208", $k, "|m64n216", $k, "|m64n224", $k, "|m64n232", $k, "|m64n240", $k,
            "|m64n248", $k, "|m64n256", $k, " ", $after
        )
    };
}

/// The shapes of integer products, which have fewer widths.
const INTEGER_SHAPES: &str = "mma_async sync aligned m64n8k32|m64n16k32|m64n24k32|m64n32k32|m64n48k32|m64n64k32|\
    m64n80k32|m64n96k32|m64n112k32|m64n128k32|m64n144k32|m64n160k32|m64n176k32|m64n192k32|m64n208k32|m64n224k32|\
    m64n240k32|m64n256k32 satfinite? s32 s8|u8 s8|u8 satfinite?";

fn small(ty: Ty, b: Ty, k: u8, rows: u8, satfinite: bool) -> Op {
    Op::SmallMma { ty, b, k, rows, satfinite }
}

fn load_matrix(c: &Chosen<'_>, count: u8) -> Op {
    Op::LoadMatrix { count, transpose: c.has("trans"), space: space(c) }
}

fn store_matrix(c: &Chosen<'_>, count: u8) -> Op {
    Op::StoreMatrix { count, transpose: c.has("trans"), space: space(c) }
}

/// The operands that choose signs and transpositions are taken in by `lower`.
fn wgmma(c: &Chosen<'_>) -> Op {
    let shape = c.modifiers.iter().find_map(|m| m.strip_prefix("m64n"));
    let n = shape.and_then(|s| s.split('k').next()?.parse().ok()).unwrap_or(8);
    Op::Wgmma(Wgmma {
        n,
        a: c.ty(1),
        b: c.ty(2),
        accumulator: c.ty(0),
        registers: false,
        negate: [false; 2],
        transpose: [false; 2],
        satfinite: c.has("satfinite"),
    })
}

pub(super) static ROWS: &[Form] = rows! {
    "mma", "sync aligned m16n8k16 row col f32 f16 f16 f32", "=f32*4 b32*4 b32*2 f32*4", mma;
    "mma", "sync aligned m16n8k16 row col f32 bf16 bf16 f32", "=f32*4 b32*4 b32*2 f32*4", mma;
    "mma", "sync aligned m16n8k8 row col f32 f16 f16 f32", "=f32*4 b32*2 b32*1 f32*4", mma;
    "mma", "sync aligned m16n8k8 row col f32 bf16 bf16 f32", "=f32*4 b32*2 b32*1 f32*4", mma;
    "mma", "sync aligned m16n8k16 row col f16 f16 f16 f16", "=b32*2 b32*4 b32*2 b32*2", mma;
    "mma", "sync aligned m16n8k8 row col f16 f16 f16 f16", "=b32*2 b32*2 b32*1 b32*2", mma;
    "mma", "sync aligned m16n8k8 row col f32 tf32 tf32 f32", "=f32*4 b32*4 b32*2 f32*4", mma;
    "mma", "sync aligned m16n8k4 row col f32 tf32 tf32 f32", "=f32*4 b32*2 b32*1 f32*4", mma;
    "mma", "sync aligned m16n8k32 row col f32 e4m3|e5m2 e4m3|e5m2 f32", "=f32*4 b32*4 b32*2 f32*4", mma;
    "mma", "sync aligned m16n8k32 row col satfinite? s32 s8|u8 s8|u8 s32", "=s32*4 b32*4 b32*2 s32*4", mma;
    "mma", "sync aligned m16n8k16 row col satfinite? s32 s8|u8 s8|u8 s32", "=s32*4 b32*2 b32*1 s32*4", mma;
    "mma", "sync aligned m8n8k4 row col rn? f64 f64 f64 f64",
        "=f64*2 f64*1 f64*1 f64*2", |_| small(Ty::F64, Ty::F64, 4, 8, false);
    "mma", "sync aligned m16n8k4 row col f64 f64 f64 f64",
        "=f64*4 f64*2 f64*1 f64*4", |_| small(Ty::F64, Ty::F64, 4, 16, false);
    "mma", "sync aligned m16n8k8 row col f64 f64 f64 f64",
        "=f64*4 f64*4 f64*2 f64*4", |_| small(Ty::F64, Ty::F64, 8, 16, false);
    "mma", "sync aligned m16n8k16 row col f64 f64 f64 f64",
        "=f64*4 f64*8 f64*4 f64*4", |_| small(Ty::F64, Ty::F64, 16, 16, false);
    "mma", "sync aligned m8n8k16 row col satfinite? s32 s8|u8 s8|u8 s32", "=s32*2 b32*1 b32*1 s32*2",
        |c| small(c.ty(1), c.ty(2), 16, 8, c.has("satfinite"));
    "wgmma", shapes!("mma_async sync aligned", "k16", "f32 f16 f16"), "+f32*d b32*4/b64 b64 pred # # # #?", wgmma;
    "wgmma", shapes!("mma_async sync aligned", "k16", "f16 f16 f16"), "+b32*d b32*4/b64 b64 pred # # # #?", wgmma;
    "wgmma", shapes!("mma_async sync aligned", "k16", "f32 bf16 bf16"), "+f32*d b32*4/b64 b64 pred # # # #?", wgmma;
    "wgmma", shapes!("mma_async sync aligned", "k8", "f32 tf32 tf32"), "+f32*d b32*4/b64 b64 pred # #", wgmma;
    "wgmma", shapes!("mma_async sync aligned", "k32", "f32 e4m3|e5m2 e4m3|e5m2"), "+f32*d b32*4/b64 b64 pred # #", wgmma;
    "wgmma", shapes!("mma_async sync aligned", "k32", "f16 e4m3|e5m2 e4m3|e5m2"), "+b32*d b32*4/b64 b64 pred # #", wgmma;
    "wgmma", INTEGER_SHAPES, "+s32*d b32*4/b64 b64 pred", wgmma;
    "wgmma", "fence sync aligned", "", |_| Op::WgmmaFence;
    "wgmma", "commit_group sync aligned", "", |_| Op::WgmmaCommit;
    "wgmma", "wait_group sync aligned", "#", |_| Op::WgmmaWait;
    "ldmatrix", "sync aligned m8n8 x1 trans? shared|shared::cta? b16", "=b32*1 []",
        |c| load_matrix(c, 1);
    "ldmatrix", "sync aligned m8n8 x2 trans? shared|shared::cta? b16", "=b32*2 []",
        |c| load_matrix(c, 2);
    "ldmatrix", "sync aligned m8n8 x4 trans? shared|shared::cta? b16", "=b32*4 []",
        |c| load_matrix(c, 4);
    "stmatrix", "sync aligned m8n8 x1 trans? shared|shared::cta? b16", "[] b32*1",
        |c| store_matrix(c, 1);
    "stmatrix", "sync aligned m8n8 x2 trans? shared|shared::cta? b16", "[] b32*2",
        |c| store_matrix(c, 2);
    "stmatrix", "sync aligned m8n8 x4 trans? shared|shared::cta? b16", "[] b32*4",
        |c| store_matrix(c, 4);
};
