//! Matrix instructions.

use super::*;

pub(super) static ROWS: &[Form] = rows! {
    "mma", "sync aligned m16n8k16 row col f32 f16 f16 f32", "=f32*4 b32*4 b32*2 f32*4", mma;
    "mma", "sync aligned m16n8k16 row col f32 bf16 bf16 f32", "=f32*4 b32*4 b32*2 f32*4", mma;
    "mma", "sync aligned m16n8k8 row col f32 f16 f16 f32", "=f32*4 b32*2 b32*1 f32*4", mma;
    "mma", "sync aligned m16n8k8 row col f32 bf16 bf16 f32", "=f32*4 b32*2 b32*1 f32*4", mma;
    "mma", "sync aligned m16n8k16 row col f16 f16 f16 f16", "=b32*2 b32*4 b32*2 b32*2", mma;
    "mma", "sync aligned m16n8k8 row col f16 f16 f16 f16", "=b32*2 b32*2 b32*1 b32*2", mma;
    "mma", "sync aligned m16n8k8 row col f32 tf32 tf32 f32", "=f32*4 b32*4 b32*2 f32*4", mma;
    "mma", "sync aligned m16n8k4 row col f32 tf32 tf32 f32", "=f32*4 b32*2 b32*1 f32*4", mma;
    "ldmatrix", "sync aligned m8n8 x1 trans? shared|shared::cta? b16", "=b32*1 []",
        |c| Op::LoadMatrix { count: 1, transpose: c.has("trans") };
    "ldmatrix", "sync aligned m8n8 x2 trans? shared|shared::cta? b16", "=b32*2 []",
        |c| Op::LoadMatrix { count: 2, transpose: c.has("trans") };
    "ldmatrix", "sync aligned m8n8 x4 trans? shared|shared::cta? b16", "=b32*4 []",
        |c| Op::LoadMatrix { count: 4, transpose: c.has("trans") };
};
