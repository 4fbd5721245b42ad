#![no_std]
#![feature(abi_ptx, stdarch_nvptx, asm_experimental_arch, core_intrinsics, f16)]
#![allow(internal_features, clippy::all)]
use core::arch::nvptx::*;

#[inline(always)]
fn index() -> usize {
    unsafe { (_block_idx_x() * _block_dim_x() + _thread_idx_x()) as usize }
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn axpy(n: u32, a: f32, x: *const f32, y: *mut f32) {
    let i = index();
    if i < n as usize { unsafe { *y.add(i) = a * *x.add(i) + *y.add(i) } }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct P { a: u64, b: u32, c: f32, d: u16, e: u8, f: i8 }

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn integers(p: P, x: *const i64, y: *mut i64, n: usize) {
    let i = index();
    if i >= n { return; }
    unsafe {
        let v = *x.add(i);
        let w = v as i32;
        let mut r = v.wrapping_mul(p.a as i64);
        r ^= v.rotate_left(p.b & 63) ;
        r = r.wrapping_add((v.count_ones() + w.leading_zeros() + (v.trailing_zeros())) as i64);
        r ^= (v / (p.b as i64 | 1)) ^ (v % (p.d as i64 | 1));
        r = r.wrapping_add((w as u32).swap_bytes() as i64).wrapping_add(w.reverse_bits() as i64);
        r ^= (v as i128).wrapping_mul(p.a as i128).wrapping_shr(64) as i64;
        r ^= (w.saturating_add(p.f as i32) as i64) << (p.e & 31);
        r = r.wrapping_add(v.min(p.a as i64)).wrapping_sub(w.abs_diff(17) as i64).max(-5_000_000_000_000);
        r ^= (v as u64).checked_add(p.a).unwrap_or(99) as i64;
        let q = (v as u16).wrapping_mul(p.d).wrapping_sub(3);
        r ^= q as i64;
        r ^= (v as u8).wrapping_add(p.e).leading_zeros() as i64;
        *y.add(i) = r;
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn floats(x: *const f32, y: *mut f32, d: *mut f64, n: u32) {
    let i = index();
    if i >= n as usize { return; }
    unsafe {
        let v = *x.add(i);
        let mut r = core::intrinsics::fmaf32(v, v, 1.5) / (v + 3.0);
        r += core::intrinsics::sqrtf32(v.abs()) + v.min(2.0).max(-1.0);
        r += v as i32 as f32 + (v as u64 as f32) + (v as i64 as f32) + (v as u8 as f32);
        r = r.copysign(v) + core::intrinsics::floorf32(v) + core::intrinsics::round_ties_even_f32(v) + core::intrinsics::truncf32(v);
        if r.is_nan() || v > 1e30 { r = -1.0; }
        *y.add(i) = r;
        let w = v as f64;
        *d.add(i) = (w * w + 1.0) / (w - 0.25) + (w as i32) as f64 + (r as f16) as f64 + f32::from_bits(v.to_bits() ^ 0x8000) as f64;
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn histogram(x: *const u8, bins: *mut u32, n: u32) {
    static mut BINS: [u32; 4] = [0; 4];
    let i = index();
    unsafe {
        if i < n as usize {
            let v = *x.add(i);
            let slot = match v { 0 => 3, 1 => 9, 2 => 27, 3 => 81, 4 => 243, 5 => 5, 6 => 77, 7 => 1, _ => v as usize & 7 };
            core::intrinsics::atomic_xadd::<u32, u32, {core::intrinsics::AtomicOrdering::Relaxed}>(bins.add(slot), 1);
            core::intrinsics::atomic_xadd::<u32, u32, {core::intrinsics::AtomicOrdering::Relaxed}>((&raw mut BINS).cast::<u32>().add(slot & 3), 1);
        }
    }
}

#[inline(never)]
fn collatz(mut n: u64) -> u32 { let mut c = 0; while n > 1 { n = if n & 1 == 0 { n / 2 } else { 3 * n + 1 }; c += 1; } c }

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn diverge(y: *mut u32, n: u32) {
    let i = index();
    if i < n as usize {
        let mut n = i as u64 + 1; let mut c = 0; while n > 1 { n = if n & 1 == 0 { n / 2 } else { 3 * n + 1 }; c += 1; }
        unsafe { *y.add(i) = c }
    }
}
static TABLE: [u16; 16] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3];
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn local_array(y: *mut u32, k: u32) {
    let i = index();
    let mut a = [0u32; 16];
    for j in 0..16 { a[(j * k as usize) & 15] += (TABLE[j] as u32) ^ i as u32; }
    let mut s = 0; for j in 0..16 { s = s * 31 + a[(i + j * 3) & 15]; }
    unsafe { *y.add(i) = s; }
}
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn sum(x: *const f32, y: *mut f32, n: u32) {
    let mut s = 0.0f32; let mut i = unsafe { _thread_idx_x() };
    while i < n { s += unsafe { *x.add(i as usize) }; i += 32; }
    for m in [16u32, 8, 4, 2, 1] {
        let other: f32; unsafe { core::arch::asm!("shfl.sync.bfly.b32 {0}, {1}, {2}, 0x1f, 0xffffffff;", out(reg32) other, in(reg32) s, in(reg32) m); }
        s += other;
    }
    unsafe { core::arch::asm!("bar.warp.sync 0xffffffff;"); _syncthreads(); if _thread_idx_x() == 0 { *y = s; } }
}
