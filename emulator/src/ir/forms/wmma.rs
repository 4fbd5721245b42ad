//! `wmma`: matrices that a warp loads, multiplies and stores as a whole. How they are dealt out to the lanes is this
//! emulator's own business: PTX leaves it open.

use super::*;
use crate::ir::op::{Wmma, WmmaPart};

/// Rows, columns and depth.
fn shape(c: &Chosen<'_>) -> (u8, u8, u8) {
    let shapes = [
        ("m16n16k16", (16, 16, 16)),
        ("m8n32k16", (8, 32, 16)),
        ("m32n8k16", (32, 8, 16)),
        ("m16n16k8", (16, 16, 8)),
        ("m8n8k4", (8, 8, 4)),
    ];
    c.pick(&shapes, (16, 16, 16))
}

/// The elements of a matrix that a lane has.
pub(crate) fn per_lane(total: u16, ty: Ty) -> u8 {
    match ty {
        // Four registers of two halves at least, so that small matrices are there several times.
        Ty::F16 => (total / 32).max(16) as u8,
        _ => (total / 32) as u8,
    }
}

/// What `wmma.load` and `wmma.store` move.
fn part(c: &Chosen<'_>) -> Op {
    let (m, n, k) = shape(c);
    let (m, n, k) = (u16::from(m), u16::from(n), u16::from(k));
    let (rows, columns) = if c.has("a") {
        (m, k)
    } else if c.has("b") {
        (k, n)
    } else {
        (m, n)
    };
    let ty = c.ty(0);
    let accumulator = !(c.has("a") || c.has("b"));
    // A sum's place does not depend on how it lies in memory; an operand's lines are those in memory.
    let across = accumulator && c.has("col");
    let line = if c.has("col") && !accumulator { rows } else { columns };
    let total = rows * columns;
    let per_lane = if accumulator { (total / 32) as u8 } else { per_lane(total, ty) };
    Op::WmmaAddress(WmmaPart { line, total, per_lane, bytes: ty.bytes() as u8, across })
}

fn product(c: &Chosen<'_>) -> Op {
    let (m, n, k) = shape(c);
    let types: Vec<Ty> = c.types().collect();
    // Of f16, only the types of the sums are named.
    let (d, a, b, from) = match types[..] {
        [d, a, b, from] => (d, a, b, from),
        [d, from] => (d, Ty::F16, Ty::F16, from),
        _ => (Ty::F32, Ty::F16, Ty::F16, Ty::F32),
    };
    let mut layouts = c.modifiers.iter().filter(|m| matches!(**m, "row" | "col")).map(|m| *m == "col");
    let mut layout = || layouts.next().unwrap_or(false);
    let columns = [layout(), layout()];
    Op::Wmma(Wmma { m, n, k, a, b, c: from, d, columns, satfinite: c.has("satfinite") })
}

pub(super) static ROWS: &[Form] = rows! {
    "wmma", "load a sync aligned row|col m16n16k16|m8n32k16|m32n8k16 global|shared|shared::cta? f16",
        "=b32*8 [] b32?", part;
    "wmma", "load b sync aligned row|col m16n16k16|m8n32k16|m32n8k16 global|shared|shared::cta? f16",
        "=b32*8 [] b32?", part;
    "wmma", "load a sync aligned row|col m16n16k16 global|shared|shared::cta? bf16", "=b32*4 [] b32?", part;
    "wmma", "load a sync aligned row|col m8n32k16 global|shared|shared::cta? bf16", "=b32*2 [] b32?", part;
    "wmma", "load a sync aligned row|col m32n8k16 global|shared|shared::cta? bf16", "=b32*8 [] b32?", part;
    "wmma", "load b sync aligned row|col m16n16k16 global|shared|shared::cta? bf16", "=b32*4 [] b32?", part;
    "wmma", "load b sync aligned row|col m8n32k16 global|shared|shared::cta? bf16", "=b32*8 [] b32?", part;
    "wmma", "load b sync aligned row|col m32n8k16 global|shared|shared::cta? bf16", "=b32*2 [] b32?", part;
    "wmma", "load a sync aligned row|col m16n16k16 global|shared|shared::cta? s8|u8", "=b32*2 [] b32?", part;
    "wmma", "load a sync aligned row|col m8n32k16 global|shared|shared::cta? s8|u8", "=b32*1 [] b32?", part;
    "wmma", "load a sync aligned row|col m32n8k16 global|shared|shared::cta? s8|u8", "=b32*4 [] b32?", part;
    "wmma", "load b sync aligned row|col m16n16k16 global|shared|shared::cta? s8|u8", "=b32*2 [] b32?", part;
    "wmma", "load b sync aligned row|col m8n32k16 global|shared|shared::cta? s8|u8", "=b32*4 [] b32?", part;
    "wmma", "load b sync aligned row|col m32n8k16 global|shared|shared::cta? s8|u8", "=b32*1 [] b32?", part;
    "wmma", "load a sync aligned row|col m16n16k8 global|shared|shared::cta? tf32", "=b32*4 [] b32?", part;
    "wmma", "load a sync aligned row|col m8n8k4 global|shared|shared::cta? f64", "=f64*1 [] b32?", part;
    "wmma", "load b sync aligned row|col m16n16k8 global|shared|shared::cta? tf32", "=b32*4 [] b32?", part;
    "wmma", "load b sync aligned row|col m8n8k4 global|shared|shared::cta? f64", "=f64*1 [] b32?", part;
    "wmma", "load c sync aligned row|col m16n16k16|m8n32k16|m32n8k16 global|shared|shared::cta? f16",
        "=b32*4 [] b32?", part;
    "wmma", "load c sync aligned row|col m16n16k16|m8n32k16|m32n8k16 global|shared|shared::cta? f32|s32",
        "=b32*8 [] b32?", part;
    "wmma", "load c sync aligned row|col m16n16k8 global|shared|shared::cta? f32", "=b32*8 [] b32?", part;
    "wmma", "load c sync aligned row|col m8n8k4 global|shared|shared::cta? f64", "=f64*2 [] b32?", part;
    "wmma", "store d sync aligned row|col m16n16k16|m8n32k16|m32n8k16 global|shared|shared::cta? f16",
        "[] b32*4 b32?", part;
    "wmma", "store d sync aligned row|col m16n16k16|m8n32k16|m32n8k16 global|shared|shared::cta? f32|s32",
        "[] b32*8 b32?", part;
    "wmma", "store d sync aligned row|col m16n16k8 global|shared|shared::cta? f32", "[] b32*8 b32?", part;
    "wmma", "store d sync aligned row|col m8n8k4 global|shared|shared::cta? f64", "[] f64*2 b32?", part;
    "wmma", "mma sync aligned row|col row|col m16n16k16|m8n32k16|m32n8k16 f16 f16 satfinite?",
        "=b32*4 b32*8 b32*8 b32*4", product;
    "wmma", "mma sync aligned row|col row|col m16n16k16|m8n32k16|m32n8k16 f16 f32 satfinite?",
        "=b32*4 b32*8 b32*8 b32*8", product;
    "wmma", "mma sync aligned row|col row|col m16n16k16|m8n32k16|m32n8k16 f32 f16 satfinite?",
        "=b32*8 b32*8 b32*8 b32*4", product;
    "wmma", "mma sync aligned row|col row|col m16n16k16|m8n32k16|m32n8k16 f32 f32 satfinite?",
        "=b32*8 b32*8 b32*8 b32*8", product;
    "wmma", "mma sync aligned row|col row|col m16n16k16 f32 bf16 bf16 f32", "=f32*8 b32*4 b32*4 f32*8", product;
    "wmma", "mma sync aligned row|col row|col m8n32k16 f32 bf16 bf16 f32", "=f32*8 b32*2 b32*8 f32*8", product;
    "wmma", "mma sync aligned row|col row|col m32n8k16 f32 bf16 bf16 f32", "=f32*8 b32*8 b32*2 f32*8", product;
    "wmma", "mma sync aligned row|col row|col m16n16k16 s32 s8|u8 s8|u8 s32 satfinite?",
        "=s32*8 b32*2 b32*2 s32*8", product;
    "wmma", "mma sync aligned row|col row|col m8n32k16 s32 s8|u8 s8|u8 s32 satfinite?",
        "=s32*8 b32*1 b32*4 s32*8", product;
    "wmma", "mma sync aligned row|col row|col m32n8k16 s32 s8|u8 s8|u8 s32 satfinite?",
        "=s32*8 b32*4 b32*1 s32*8", product;
    "wmma", "mma sync aligned row|col row|col m16n16k8 f32 tf32 tf32 f32", "=f32*8 b32*4 b32*4 f32*8", product;
    "wmma", "mma sync aligned row|col row|col m8n8k4 rn? f64 f64 f64 f64", "=f64*2 f64*1 f64*1 f64*2", product;
};
