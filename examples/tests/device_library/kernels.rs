//! A kernel for every function of the device library that kernels of one's own use.

use warpsmith_dsl::prelude::*;

macro_rules! unary {
    ($($name:ident)*) => { $(
        #[doc = concat!("`y[i] = ", stringify!($name), "(x[i])`")]
        #[kernel(block = [128, 1, 1])]
        pub fn $name(x: GlobalSlice<f32>, mut y: GlobalSliceMut<f32>) {
            let i = thread::index_1d();
            if let Some(mut y) = y.get_mut(i) {
                y.write(math::$name(x.at(i.get())));
            }
        }
    )* };
}
unary!(exp exp2 ln log2 log10 sqrt rsqrt tanh sin cos tan sigmoid);

/// `z[i] = x[i]` to the power of `y[i]`
#[kernel(block = [128, 1, 1])]
pub fn pow(x: GlobalSlice<f32>, y: GlobalSlice<f32>, mut z: GlobalSliceMut<f32>) {
    let i = thread::index_1d();
    if let Some(mut z) = z.get_mut(i) {
        z.write(math::pow(x.at(i.get()), y.at(i.get())));
    }
}

shared_memory! {
    /// As many bytes as any of the types below has.
    struct Scratch {
        f32: SharedArray<f32, 32>,
        u32: SharedArray<u32, 32>,
        i32: SharedArray<i32, 32>,
    }
}

/// A number with its place in the shared memory.
pub trait Scratched: Number {
    /// # Safety
    ///
    /// The kernel has `Scratch::BYTES` of shared memory.
    unsafe fn scratch() -> block::Scratch<Self>;
}
macro_rules! scratched {
    ($($number:ident)*) => { $(
        impl Scratched for $number {
            #[inline(always)]
            unsafe fn scratch() -> block::Scratch<Self> {
                // SAFETY: who asks for it has as much.
                unsafe { Scratch::new() }.$number
            }
        }
    )* };
}
scratched!(f32 u32 i32);

/// For each thread fourteen results: sum, max, min, inclusive and exclusive sum of its warp and of its block, and two shuffles.
#[kernel(
    block = [160, 2, 1],
    shared = Scratch::BYTES,
    instances = [lanes_f32 = <f32>, lanes_u32 = <u32>, lanes_i32 = <i32>],
)]
pub fn lanes<T: Scratched>(x: GlobalSlice<T>, y: GlobalMatrixMut<T>) {
    let own = thread::index_1d().get();
    // SAFETY: the kernel has as much.
    let (value, scratch) = (x.at(own), unsafe { T::scratch() });
    // SAFETY: all threads of the block are here, ten whole warps; nothing else uses the scratch. Each thread writes a row.
    unsafe {
        let results = [
            warp::sum(value),
            warp::max(value),
            warp::min(value),
            warp::inclusive_sum(value),
            warp::exclusive_sum(value),
            block::sum(value, scratch),
            block::max(value, scratch),
            block::min(value, scratch),
            block::inclusive_sum(value, scratch),
            block::exclusive_sum(value, scratch),
            warp::shuffle(value, 7),
            warp::shuffle_xor(value, 5),
            warp::shuffle_up(value, 3),
            warp::shuffle_down(value, 3),
        ];
        let mut column = 0;
        while column < 14 {
            y.write(own, column, results[column]);
            column += 1;
        }
    }
}

/// For each thread five results: ballot, any and all of its warp, any and all of its block, for `x[i] ≥ least`.
#[kernel(block = [96, 1, 1])]
pub fn votes(x: GlobalSlice<i32>, least: i32, y: GlobalMatrixMut<u32>) {
    let own = thread::index_1d().get();
    let holds = x.at(own) >= least;
    // SAFETY: all threads of the block are here, three whole warps. Each thread writes a row.
    unsafe {
        y.write(own, 0, warp::ballot(holds));
        y.write(own, 1, warp::any(holds) as u32);
        y.write(own, 2, warp::all(holds) as u32);
        y.write(own, 3, block::any(holds) as u32);
        y.write(own, 4, block::all(holds) as u32);
    }
}

macro_rules! atomics {
    ($($name:ident, $number:ident, $initial:expr; $($function:ident = $index:literal)*,)*) => { $(
        #[doc = concat!("The atomics of ", stringify!($number), ": in global memory, and in shared memory, which is then copied to the block's part of `y`.")]
        #[kernel(block = [64, 1, 1], shared = 32)]
        pub fn $name(x: GlobalSlice<$number>, global: GlobalAtomics<$number>, y: GlobalSliceMut<$number>) {
            let (i, own) = (thread::index_1d().get(), block::thread_rank() as usize);
            // SAFETY: the kernel has 32 bytes. Each thread writes its own element; then atomics only, between barriers that all threads reach. Each
            // block has a part of `y`.
            unsafe {
                let shared = <SharedArray<$number, 8> as warpsmith_dsl::shared::InShared>::at(
                    warpsmith_dsl::shared::SharedAddress::dynamic(),
                );
                if own < 8 {
                    shared.write(own, $initial);
                }
                sync_threads();
                if let Some(value) = x.get(i) {
                    $(
                        global.$function($index, value);
                        shared.$function($index, value);
                    )*
                }
                sync_threads();
                if own < 8 {
                    y.write(8 * block::index_in_grid() + own, shared.read(own));
                }
            }
        }
    )* };
}
atomics! {
    atomics_u32, u32, 0; fetch_add = 0 fetch_max = 1 fetch_min = 2 fetch_and = 3 fetch_or = 4 fetch_xor = 5,
    atomics_i32, i32, 0; fetch_add = 0 fetch_max = 1 fetch_min = 2,
    atomics_f32, f32, 0.0; fetch_add = 0 fetch_max = 1 fetch_min = 2,
    atomics_f16, F16, F16(0); fetch_add = 0,
    atomics_bf16, Bf16, Bf16(0); fetch_add = 0,
}

/// A lock-free maximum by `compare_exchange`, and what `exchange` has taken out, added up.
#[kernel(block = [64, 1, 1])]
pub fn exchanges(x: GlobalSlice<u32>, y: GlobalAtomics<u32>) {
    let Some(value) = x.get(thread::index_1d().get()) else { return };
    let mut before = y.load(0);
    while before < value {
        let found = y.compare_exchange(0, before, value);
        if found == before {
            break;
        }
        before = found;
    }
    let taken = y.exchange(1, value);
    y.fetch_add(2, taken);
}

macro_rules! copies {
    ($($name:ident $number:ty;)*) => { $(
        #[doc = concat!("Copies ", stringify!($number), " through shared memory, and doubles what it finds in `y`'s second half.")]
        #[kernel(block = [64, 1, 1], shared = 512)]
        pub fn $name(x: GlobalSlice<$number>, mut y: GlobalSliceMut<$number>) {
            let (i, own) = (thread::index_1d(), block::thread_rank() as usize);
            // SAFETY: the kernel has 64 numbers of 8 bytes. Each thread has its own element before the barrier, which all reach, and reads another one
            // behind it.
            let value = unsafe {
                let shared = <SharedArray<$number, 64> as warpsmith_dsl::shared::InShared>::at(
                    warpsmith_dsl::shared::SharedAddress::dynamic(),
                );
                if let Some(value) = x.get(i.get()) {
                    shared.write(own, value);
                }
                sync_threads();
                x.get(i.get() ^ 1).map(|_| shared.read(own ^ 1))
            };
            if let (Some(value), Some(mut y)) = (value, y.get_mut(i)) {
                y.write(value);
            }
        }
    )* };
}
copies! {
    copy_u8 u8;
    copy_f16 F16;
    copy_bf16 Bf16;
    copy_u32 u32;
    copy_i64 i64;
    copy_f64 f64;
}

/// The own row and column in a matrix: `1000 · row + column`, for a grid of any extent along z.
#[kernel(block = [8, 4, 2])]
pub fn places(mut y: GlobalMatrixMut<u32>) {
    let own = thread::index_2d();
    if let Some(mut y) = y.get_mut(own) {
        y.write((own.row() * 1000 + own.column()) as u32);
    }
}

/// `y = 2 x`, a thread for each element.
#[kernel(block = [8, 4, 1])]
pub fn doubled(x: GlobalMatrix<f32>, mut y: GlobalMatrixMut<f32>) {
    let own = thread::index_2d();
    if let Some(mut y) = y.get_mut(own) {
        y.write(2.0 * x.at(own.row(), own.column()));
    }
}

/// Which blocks have each of the indices below the length, and each row and column of a matrix: their numbers plus 1, added up.
#[kernel(block = [32, 2, 1])]
pub fn turns(by_index: GlobalAtomics<u32>, columns: u32, by_place: GlobalAtomics<u32>) {
    if block::thread_rank() != 0 {
        return;
    }
    let own = block::index_in_grid() as u32 + 1;
    for index in block::indices(by_index.len()) {
        by_index.fetch_add(index, own);
    }
    let columns = columns as usize;
    let rows = by_place.len().checked_div(columns).unwrap_or(0);
    for [row, column] in block::indices_2d([rows, columns]) {
        by_place.fetch_add(row * columns + column, own);
    }
}

/// How many threads have each index, of a grid of three dimensions.
#[kernel(block = [5, 3, 2])]
pub fn ranks(counts: GlobalAtomics<u32>, mut by_index: GlobalSliceMut<u32>) {
    let own = thread::index_1d();
    counts.fetch_add(own.get(), 1);
    if let Some(mut element) = by_index.get_mut(own) {
        element.write(block::thread_rank());
    }
}

/// `y[i] += x[i]` by pointers.
///
/// # Safety
///
/// The pointers are valid for `n` elements.
#[kernel(block = [64, 1, 1])]
pub unsafe fn pointers(x: Global<u32>, y: GlobalMut<u32>, n: u32) {
    let i = thread::index_1d().get();
    if i < n as usize {
        // SAFETY: `i` is below `n`, and no other thread has it.
        unsafe { y.write(i, x.read(i).wrapping_add(y.read(i))) }
    }
}
