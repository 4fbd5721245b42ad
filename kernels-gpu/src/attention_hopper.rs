//! Attention on Hopper, `O = softmax(scale · Q Kᵀ + …) V`: scores live in registers only.

use warpsmith_dsl::attention::hopper::dealt::OwnQueries;
use warpsmith_dsl::attention::hopper::{
    AttentionElement, AttentionShape, CopiedQueries, Ends, KeyMaps, Maps, Scoring, Tile,
};
use warpsmith_dsl::attention::portable::{Parts, Tensors};
use warpsmith_dsl::attention::scores::ScoreOperands;
use warpsmith_dsl::attention::work::{Queue, Sequences, Sizes, Tiles};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::{Global, GlobalMut, TensorMap};
use warpsmith_dsl::{KernelParam, grid, kernel, ptx};

macro_rules! shape {
    ($(#[$doc:meta])* $name:ident, $keys:literal, $columns:literal, $values:literal, $warpgroups:literal) => {
        $(#[$doc])*
        pub struct $name;

        impl AttentionShape for $name {
            type Scores = [f32; $keys / 2];
            type Weights = [[u32; 4]; $keys / 16];
            type Sums = [f32; $values / 2];
            const COLUMNS: u32 = $columns;
            const WARPGROUPS: u32 = $warpgroups;
            const STAGES: u32 = 2;
        }
    };
}
shape!(
    /// Heads of up to 64 columns: 192 rows and blocks of 128 keys.
    Heads64, 128, 64, 64, 3
);
shape!(
    /// Heads of up to 64 columns: 128 rows and blocks of 128 keys, for short sequences.
    Short64, 128, 64, 64, 2
);
shape!(
    /// Heads of up to 96 columns: 128 rows and blocks of 128 keys.
    Heads96, 128, 96, 96, 2
);
shape!(
    /// Heads of up to 128 columns: 128 rows and blocks of 128 keys.
    Heads128, 128, 128, 128, 2
);
shape!(
    /// Heads of up to 192 columns: 128 rows and blocks of 96 keys.
    Heads192, 96, 192, 192, 2
);
shape!(
    /// Heads of up to 256 columns: 128 rows and blocks of 64 keys.
    Heads256, 64, 256, 256, 2
);
shape!(
    /// The same of 128 rows and 64 keys: what changes scores takes registers.
    Changed64, 64, 64, 64, 2
);
shape!(
    /// The same of 128 rows and 64 keys: what changes scores takes registers.
    Changed96, 64, 96, 96, 2
);
shape!(
    /// The same of 128 rows and 64 keys: what changes scores takes registers.
    Changed128, 64, 128, 128, 2
);
shape!(
    /// The same of 128 rows and 32 keys: what changes scores takes registers.
    Changed192, 32, 192, 192, 2
);
shape!(
    /// The same of 128 rows and 32 keys: what changes scores takes registers.
    Changed256, 32, 256, 256, 2
);

/// What a launch is told beside its operands.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct AttentionParams {
    /// Sequences, heads, rows and keys.
    pub sizes: Sizes,
    /// Where sequences begin, and how long they are.
    pub sequences: Sequences,
    /// Which tensors end where sequences do.
    pub ends: Ends,
    /// A counter for the launch, which finds it 0 and leaves it so.
    pub taken: GlobalMut<u32>,
    /// Of a kernel without operands that change scores, what they are multiplied by before they are exponents of 2: positive.
    pub factor: f32,
    /// Keeps the size a multiple of eight; its value is not read.
    pub reserved: u32,
}

/// Attention of rows of Q to keys, on a one-dimensional grid of any number of blocks. An instance's name tells the type, the columns of a head at most, and whether operands change
/// scores.
///
/// # Safety
///
/// `q`, `k`, `v` and `o` describe the tensors as [`Maps`] asks for `S`; the pointers are valid for what `p` describes: `lse`, if it is not null, and `operands`,
/// of which a kernel whose scores do not change reads nothing. O and `lse` overlap nothing else.
#[kernel(
    family = attention_hopper,
    block = [Tile::<S, CHANGES>::THREADS, 1, 1],
    min_blocks = 1,
    shared = Tile::<S, CHANGES>::SHARED_BYTES,
    instances = [
        attention_hopper_f16_64 = <F16, Heads64, false>,
        attention_hopper_f16_64_short = <F16, Short64, false>,
        attention_hopper_f16_96 = <F16, Heads96, false>,
        attention_hopper_f16_128 = <F16, Heads128, false>,
        attention_hopper_f16_192 = <F16, Heads192, false>,
        attention_hopper_f16_256 = <F16, Heads256, false>,
        attention_hopper_f16_64_changed = <F16, Changed64, true>,
        attention_hopper_f16_96_changed = <F16, Changed96, true>,
        attention_hopper_f16_128_changed = <F16, Changed128, true>,
        attention_hopper_f16_192_changed = <F16, Changed192, true>,
        attention_hopper_f16_256_changed = <F16, Changed256, true>,
        attention_hopper_bf16_64 = <Bf16, Heads64, false>,
        attention_hopper_bf16_64_short = <Bf16, Short64, false>,
        attention_hopper_bf16_96 = <Bf16, Heads96, false>,
        attention_hopper_bf16_128 = <Bf16, Heads128, false>,
        attention_hopper_bf16_192 = <Bf16, Heads192, false>,
        attention_hopper_bf16_256 = <Bf16, Heads256, false>,
        attention_hopper_bf16_64_changed = <Bf16, Changed64, true>,
        attention_hopper_bf16_96_changed = <Bf16, Changed96, true>,
        attention_hopper_bf16_128_changed = <Bf16, Changed128, true>,
        attention_hopper_bf16_192_changed = <Bf16, Changed192, true>,
        attention_hopper_bf16_256_changed = <Bf16, Changed256, true>,
    ],
)]
#[allow(clippy::too_many_arguments, reason = "a kernel's parameters")]
pub unsafe fn attention_hopper<T: AttentionElement<S>, S: AttentionShape, const CHANGES: bool>(
    q: &TensorMap,
    k: &TensorMap,
    v: &TensorMap,
    o: &TensorMap,
    lse: GlobalMut<f32>,
    operands: ScoreOperands,
    p: AttentionParams,
) {
    let maps = Maps { q, k, v, o, ends: p.ends };
    let scoring = Scoring { window: p.sizes.window, factor: p.factor, operands, pack: 1 };
    let tiles = || Tiles::new(p.sizes, p.sequences, Tile::<S, CHANGES>::BLOCK_ROWS);
    // SAFETY: the whole grid is here, with the threads and the shared memory that the tile asks for; the caller vouches for maps and
    // pointers, and each row of O belongs to one warpgroup.
    unsafe {
        Tile::<S, CHANGES>::start();
        if Tile::<S, CHANGES>::is_producer() {
            let Some(mut producer) = Tile::<S, CHANGES>::producer() else { return };
            let mut queue = Queue::new(tiles(), p.taken);
            grid::wait_for_earlier_launches();
            while let Some((tile, work)) = queue.next() {
                Tile::<S, CHANGES>::announce(&mut producer, Some(tile));
                Tile::<S, CHANGES>::load(&mut producer, maps, &scoring, p.sizes.key_head(&work), &work);
            }
            Tile::<S, CHANGES>::announce(&mut producer, None);
        } else {
            let mut consumer = Tile::<S, CHANGES>::consumer();
            grid::wait_for_earlier_launches();
            while let Some(tile) = Tile::<S, CHANGES>::next(&mut consumer) {
                let Some(work) = tiles().work(tile) else { continue };
                let attended =
                    Tile::<S, CHANGES>::attend::<T, _>(&mut consumer, &CopiedQueries, &scoring, &work);
                let lse = p.sizes.lse_of_head(lse, &work);
                Tile::<S, CHANGES>::store::<T>(attended, maps, lse, &work);
            }
            Tile::<S, CHANGES>::finish();
        }
    }
}

/// Attention of few rows of Q to many keys, on a one-dimensional grid of any number of blocks: each tile's keys are dealt to the blocks that `parts` says, and rows of
/// `p.sizes.pack` heads alternate in a tile. An instance's name tells the type, and the columns of a head at most.
///
/// # Safety
///
/// `k` and `v` describe the tensors as [`Maps`] asks for `S`. K, V and the pages of `tensors` are not read. Q, O and the pointers are valid for what `p` describes:
/// `lse`, if it is not null, and the parts' results, if there are several. `operands` change no scores, and sequences are not packed. What is written overlaps nothing else.
#[kernel(
    family = attention_hopper,
    block = [Tile::<S, false>::THREADS, 1, 1],
    min_blocks = 1,
    shared = Tile::<S, false>::SHARED_BYTES,
    instances = [
        attention_hopper_dealt_f16_64 = <F16, Short64>,
        attention_hopper_dealt_f16_128 = <F16, Heads128>,
        attention_hopper_dealt_f16_192 = <F16, Heads192>,
        attention_hopper_dealt_f16_256 = <F16, Changed256>,
        attention_hopper_dealt_bf16_64 = <Bf16, Short64>,
        attention_hopper_dealt_bf16_128 = <Bf16, Heads128>,
        attention_hopper_dealt_bf16_192 = <Bf16, Heads192>,
        attention_hopper_dealt_bf16_256 = <Bf16, Changed256>,
    ],
)]
#[allow(clippy::too_many_arguments, reason = "a kernel's parameters")]
pub unsafe fn attention_hopper_dealt<T: AttentionElement<S>, S: AttentionShape>(
    k: &TensorMap,
    v: &TensorMap,
    tensors: Tensors,
    lse: GlobalMut<f32>,
    parts: Parts,
    operands: ScoreOperands,
    p: AttentionParams,
) {
    let maps = KeyMaps { k, v, ends: p.ends };
    let pack = p.sizes.pack.max(1);
    let scoring = Scoring { window: p.sizes.window, factor: p.factor, operands, pack };
    let none = Global::new(0);
    let sequences = Sequences { offsets_q: none, offsets_k: none, ..p.sequences };
    let tiles = || Tiles::new(p.sizes, sequences, Tile::<S, false>::BLOCK_ROWS);
    let count = parts.count.max(1);
    // SAFETY: the whole grid is here, with the threads and the shared memory that the tile asks for; the caller vouches for maps and
    // pointers, and each part of each row belongs to one warpgroup.
    unsafe {
        Tile::<S, false>::start();
        if Tile::<S, false>::is_producer() {
            let Some(mut producer) = Tile::<S, false>::producer() else { return };
            let mut queue = Queue::new(tiles(), p.taken).in_parts(count);
            grid::wait_for_earlier_launches();
            while let Some((place, work)) = queue.next() {
                Tile::<S, false>::announce(&mut producer, Some(place));
                let work = Tile::<S, false>::part_of(&work, &parts, place % count);
                let key_head = p.sizes.key_head(&work);
                Tile::<S, false>::load_keys_of(&mut producer, maps, &scoring, key_head, &work);
            }
            Tile::<S, false>::announce(&mut producer, None);
        } else {
            let mut consumer = Tile::<S, false>::consumer();
            let queries = OwnQueries::<T>::new(&tensors, &p.sizes);
            grid::wait_for_earlier_launches();
            while let Some(place) = Tile::<S, false>::next(&mut consumer) {
                let own = |place: u32| {
                    let (work, part) = (tiles().work(place / count)?, place % count);
                    Some((Tile::<S, false>::part_of(&work, &parts, part), part))
                };
                let Some((work, _)) = own(place) else { continue };
                let attended = Tile::<S, false>::attend::<T, _>(&mut consumer, &queries, &scoring, &work);
                // Again, so that the registers are free meanwhile.
                let Some((work, part)) = own(ptx::opaque(place)) else { continue };
                Tile::<S, false>::store_dealt::<T>(&attended, &tensors, &p.sizes, lse, (&parts, part), &work);
            }
            Tile::<S, false>::finish();
        }
    }
}
