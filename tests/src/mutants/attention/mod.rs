//! How the kernels of attention are run: on rows and keys around tiles and key blocks, with windows, sequences of every kind, and everything that changes scores. What is
//! expected is computed in f64.

mod case;
mod combine;
mod gradient;
mod number;
mod run;

use warpsmith_dsl::attention::hopper::{AttentionShape, Tile};
use warpsmith_dsl::attention::portable::{PortableShape, PortableTile};
use warpsmith_dsl::attention::window::Window;
use warpsmith_dsl::float::Bf16;
use warpsmith_dsl::ptx::Accumulators;
use warpsmith_kernels::attention_hopper::{
    Changed64, Changed96, Changed128, Changed192, Changed256, Heads64, Heads96, Heads128, Heads192, Heads256,
    Short64,
};
use warpsmith_kernels::attention_shapes::{
    Few64, Few96, Few128, Few192, Few256, Fp8Few64, Rows64, Rows96, Rows128, Rows192, Rows256, Single64,
    Single128, Single256,
};

use super::Problem;
use case::{EVERYTHING, Numbers, Size, size};
use number::Number;
use run::{Case, Instance};

/// The problems that an entry of these families is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let parts: Vec<&str> = name.strip_prefix("attention_")?.split('_').collect();
    let number = |name: &str| match name {
        "f16" => Some(Number::F16),
        "bf16" => Some(Number::Bf16),
        "f32" => Some(Number::F32),
        _ => None,
    };
    let instance = match parts[..] {
        ["gradient", ref of_gradient @ ..] => return gradient::problems(of_gradient, number),
        ["combine", of] => return Some(combine::problems(number(of)?)),
        ["fp8", of, columns] | ["fp8", "ada", of, columns] => fp8(number(of)?, columns, false)?,
        ["fp8", of, columns, "few"] | ["fp8", "ada", of, columns, "few"] => fp8(number(of)?, columns, true)?,
        ["hopper", "dealt", of, columns] => dealt(number(of)?, columns)?,
        ["hopper", of, columns] => hopper(number(of)?, columns, false)?,
        ["hopper", of, "64", "short"] => hopper(number(of)?, "64_short", false)?,
        ["hopper", of, columns, "changed"] => hopper(number(of)?, columns, true)?,
        [of, columns] => portable(number(of)?, columns, false)?,
        [of, columns, "few"] => portable(number(of)?, columns, true)?,
        _ => return None,
    };
    let sizes = match (instance.is_few, instance.is_dealt) {
        (true, _) => sizes_of_few(instance),
        (_, true) => sizes_of_dealt(instance),
        _ => sizes(instance),
    };
    let fits = |mut size: Size| {
        size.columns[1] = size.columns[1].min(instance.values);
        size
    };
    // Of 8 bits either type in turn, with either kind of scales and without.
    let kinds = [Some(true), Some(false), None];
    let of_fp8 = |(number, size): (usize, Size)| {
        let fp8 = instance.fp8.map(|_| [Number::E4m3, Number::E5m2][number % 2]);
        let scales = if fp8.is_some() { [kinds[number % 3], kinds[(number / 2 + 1) % 3]] } else { [None; 2] };
        (Instance { fp8, ..instance }, Size { scales, ..size })
    };
    let cases =
        sizes.into_iter().map(fits).enumerate().map(of_fp8).map(|(instance, size)| Case::new(instance, size));
    Some(cases.map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

fn hopper_tile<S: AttentionShape, const CHANGES: bool>(of: Number) -> Instance {
    Instance {
        of,
        rows: Tile::<S, CHANGES>::BLOCK_ROWS,
        keys: Tile::<S, CHANGES>::BLOCK_KEYS,
        columns: S::COLUMNS,
        values: S::Sums::COLUMNS,
        is_hopper: true,
        changes: CHANGES,
        is_few: false,
        is_dealt: false,
        fp8: None,
    }
}

fn hopper(of: Number, columns: &str, changes: bool) -> Option<Instance> {
    Some(match (columns, changes) {
        ("64", false) => hopper_tile::<Heads64, false>(of),
        ("64_short", false) => hopper_tile::<Short64, false>(of),
        ("96", false) => hopper_tile::<Heads96, false>(of),
        ("128", false) => hopper_tile::<Heads128, false>(of),
        ("192", false) => hopper_tile::<Heads192, false>(of),
        ("256", false) => hopper_tile::<Heads256, false>(of),
        ("64", true) => hopper_tile::<Changed64, true>(of),
        ("96", true) => hopper_tile::<Changed96, true>(of),
        ("128", true) => hopper_tile::<Changed128, true>(of),
        ("192", true) => hopper_tile::<Changed192, true>(of),
        ("256", true) => hopper_tile::<Changed256, true>(of),
        _ => return None,
    })
}

/// Hopper's kernels whose keys are dealt to several blocks.
fn dealt(of: Number, columns: &str) -> Option<Instance> {
    let instance = match columns {
        "64" => hopper_tile::<Short64, false>(of),
        "128" => hopper_tile::<Heads128, false>(of),
        "192" => hopper_tile::<Heads192, false>(of),
        "256" => hopper_tile::<Changed256, false>(of),
        _ => return None,
    };
    Some(Instance { is_dealt: true, ..instance })
}

fn tile<S: PortableShape>(of: Number) -> Instance {
    Instance {
        of,
        rows: PortableTile::<Bf16, S>::BLOCK_ROWS,
        keys: PortableTile::<Bf16, S>::BLOCK_KEYS,
        columns: S::COLUMNS,
        values: S::Sums::COLUMNS,
        is_hopper: false,
        changes: true,
        is_few: S::KEY_WARPS > 1,
        is_dealt: false,
        fp8: None,
    }
}

/// Those of keys and values of 8 bits, of which there are two types.
fn fp8(of: Number, columns: &str, is_few: bool) -> Option<Instance> {
    let instance = match (columns, is_few) {
        ("64", false) => tile::<Rows64>(of),
        ("128", false) => tile::<Rows128>(of),
        ("256", false) => tile::<Rows256>(of),
        ("64", true) => tile::<Fp8Few64>(of),
        ("128", true) => tile::<Few128>(of),
        ("256", true) => tile::<Few256>(of),
        _ => return None,
    };
    Some(Instance { fp8: Some(Number::E4m3), ..instance })
}

fn portable(of: Number, columns: &str, is_few: bool) -> Option<Instance> {
    if of == Number::F32 {
        return match (columns, is_few) {
            ("64", false) => Some(tile::<Single64>(of)),
            ("128", false) => Some(tile::<Single128>(of)),
            ("256", false) => Some(tile::<Single256>(of)),
            _ => None,
        };
    }
    Some(match (columns, is_few) {
        ("64", false) => tile::<Rows64>(of),
        ("96", false) => tile::<Rows96>(of),
        ("128", false) => tile::<Rows128>(of),
        ("192", false) => tile::<Rows192>(of),
        ("256", false) => tile::<Rows256>(of),
        ("64", true) => tile::<Few64>(of),
        ("96", true) => tile::<Few96>(of),
        ("128", true) => tile::<Few128>(of),
        ("192", true) => tile::<Few192>(of),
        ("256", true) => tile::<Few256>(of),
        _ => return None,
    })
}

const fn causal(is_bottom_right: u32) -> Window {
    Window { right: 0, is_bottom_right, ..EVERYTHING }
}

const fn window(left: u32, right: u32, is_bottom_right: u32) -> Window {
    Window { left, right, is_bottom_right, reserved: 0 }
}

/// Problems of tiles of many rows.
fn sizes(instance: Instance) -> Vec<Size> {
    let Instance { rows, keys, columns: most, .. } = instance;
    // V's columns, of which a chunk is not whole where that may be.
    let odd = if instance.is_hopper { most - 8 } else { most - 9 };
    let mut sizes = vec![
        size(1, 1, [most, most]),
        Size { heads: 2, group: 2, lse: false, ..size(5, keys + 1, [13, 16]) },
        Size { batch: 2, window: causal(1), ..size(7, keys - 1, [most - 11, odd]) },
        Size { numbers: Numbers::Equal, ..size(3, keys, [16, 8]) },
        Size {
            batch: 2,
            heads: 3,
            group: 3,
            window: window(3, 2, 0),
            lengths: [Some(vec![5, 20]), Some(vec![keys + 9, 0])],
            grid: 2,
            section: 2,
            ..size(9, keys + 12, [24, 32])
        },
        Size {
            batch: 4,
            heads: 2,
            group: 2,
            window: causal(1),
            offsets: Some([vec![1, 4, 4, 9, 12], vec![2, 7, 11, 11, keys + 14]]),
            ..size(14, keys + 16, [16, 24])
        },
        Size { numbers: Numbers::Selected, ..size(rows + 1, 3 * keys + 5, [most, most]) },
        Size { window: causal(0), grid: 2, ..size(rows - 1, keys + 3, [13, odd]) },
        Size {
            window: window(keys / 2 + 3, 5, 1),
            numbers: Numbers::Selected,
            ..size(rows + 3, rows + 2 * keys, [most, 8])
        },
        Size {
            batch: 3,
            offsets: Some([vec![0, rows + 1, rows + 1, rows + 8], vec![0, keys, keys + 3, 2 * keys + 4]]),
            window: window(Window::UNBOUNDED, 3, 0),
            grid: 3,
            ..size(rows + 8, 2 * keys + 4, [16, 8])
        },
    ];
    if instance.changes {
        sizes.extend(changed_sizes(instance));
    }
    if !instance.is_hopper {
        sizes.extend(odd_columns(instance));
        sizes.extend([
            Size { batch: 2, page: Some(1), ..size(2, 5, [8, 7]) },
            Size {
                batch: 2,
                heads: 2,
                group: 2,
                page: Some(16),
                lengths: [None, Some(vec![keys + 3, 17])],
                ..size(3, keys + 20, [16, 8])
            },
        ]);
    }
    sizes
}

/// Problems with each operand that changes scores.
fn changed_sizes(instance: Instance) -> Vec<Size> {
    let Instance { rows, keys, .. } = instance;
    let few = if instance.is_few { 5 } else { 11 };
    let two = |size: Size| Size { batch: 2, heads: 2, ..size };
    let mut sizes = vec![
        Size { sinks: true, bias: true, scale: -0.5, ..two(size(few, keys + 3, [16, 16])) },
        Size { slopes: true, window: window(7, 3, 1), sinks: true, ..two(size(few, keys - 5, [16, 8])) },
        Size { slopes: true, cap: 1.5, is_shared: true, mask: true, ..two(size(few, keys + 2, [24, 8])) },
        Size {
            blocks: Some([3, keys / 4 + 1]),
            lengths: [Some(vec![few - 1, few]), Some(vec![2 * keys, keys + 7])],
            ..two(size(few, 3 * keys - 1, [8, 24]))
        },
        Size {
            blocks: Some([2, 3]),
            mask: true,
            bias: true,
            is_shared: true,
            group: 2,
            window: causal(1),
            sinks: true,
            ..two(size(few + 3, keys + 9, [16, 8]))
        },
        Size {
            blocks: Some([rows / 2, 2 * keys]),
            sinks: true,
            lse: false,
            ..size(if instance.is_few { few } else { rows + 2 }, 5 * keys + 1, [8, 8])
        },
    ];
    sizes.extend(ends(instance));
    sizes
}

/// Problems of one row of each of a thread's two, of so many keys that each of a thread's columns is once the first behind them: what is there of an operand is behind its end.
fn ends(instance: Instance) -> impl Iterator<Item = Size> {
    let columns = (0..instance.keys).step_by(8).flat_map(|first| [first + 2, first + 3]);
    columns.flat_map(|keys| {
        [1, 9].map(|rows| Size { bias: true, mask: true, blocks: Some([1, 1]), ..size(rows, keys, [8, 8]) })
    })
}

/// Problems whose last column is the first of each fragment's.
fn odd_columns(instance: Instance) -> impl Iterator<Item = Size> {
    (0..instance.columns).step_by(8).map(|first| size(9, 2, [8, first + 1]))
}

/// Problems of tiles whose keys are dealt to several blocks, and whose rows may be those of several heads.
fn sizes_of_dealt(instance: Instance) -> Vec<Size> {
    let Instance { rows, keys, columns: most, .. } = instance;
    let packed = |group: u32, size: Size| Size { heads: 2 * group, group, packs: true, ..size };
    let mut sizes = vec![
        size(1, 1, [most, most]),
        Size { lse: false, ..packed(3, size(2, keys / 4 + 1, [13, 13])) },
        Size { batch: 2, window: causal(1), ..packed(2, size(3, keys - 1, [most - 8, most - 9])) },
        Size { numbers: Numbers::Equal, ..size(3, keys, [16, 8]) },
        // Parts: all keys, some without any that rows attend to, and sums of pairs of columns.
        Size { part: Some(keys), ..size(2, 2 * keys + 1, [most, 7]) },
        Size {
            batch: 2,
            part: Some(keys),
            lengths: [Some(vec![2, 1]), Some(vec![keys / 2, 2 * keys + 3])],
            window: window(keys + 5, 0, 1),
            section: 2,
            grid: 2,
            ..packed(2, size(3, 3 * keys - 1, [16, 24]))
        },
        Size {
            part: Some(2 * keys),
            numbers: Numbers::Selected,
            grid: 3,
            ..size(rows, 4 * keys, [most, most])
        },
        // More than a tile, of which the last has rows of one warpgroup or of both.
        Size { numbers: Numbers::Selected, grid: 2, ..packed(2, size(rows / 2 + 5, 3 * keys + 5, [13, 16])) },
        Size { window: causal(0), ..packed(3, size(rows / 3 + 30, keys / 2 + 20, [16, most])) },
        Size {
            batch: 2,
            part: Some(keys),
            lengths: [None, Some(vec![keys + 3, 0])],
            window: window(Window::UNBOUNDED, 3, 0),
            ..packed(5, size(21, 2 * keys + 9, [24, 8]))
        },
    ];
    sizes.extend(odd_columns(instance));
    sizes
}

/// Problems of tiles of few rows.
fn sizes_of_few(instance: Instance) -> Vec<Size> {
    let Instance { rows, keys, columns: most, .. } = instance;
    let mut sizes = vec![
        size(1, 1, [most, most]),
        Size { heads: 3, group: 3, packs: true, lse: false, ..size(2, keys / 4 + 1, [13, 13]) },
        Size {
            batch: 2,
            heads: 4,
            group: 2,
            packs: true,
            window: causal(1),
            ..size(3, keys - 1, [most - 8, most - 9])
        },
        Size { numbers: Numbers::Equal, ..size(3, keys, [16, 8]) },
        // Parts: all keys, some without any that rows attend to, and sums of pairs of columns.
        Size { part: Some(keys), ..size(2, 2 * keys + 1, [most, 7]) },
        Size {
            batch: 2,
            heads: 4,
            group: 2,
            packs: true,
            part: Some(keys),
            sinks: true,
            lengths: [Some(vec![2, 1]), Some(vec![keys / 2, 2 * keys + 3])],
            window: window(keys + 5, 0, 1),
            section: 2,
            ..size(3, 3 * keys - 1, [16, 24])
        },
        Size { part: Some(2 * keys), numbers: Numbers::Selected, ..size(rows, 4 * keys, [most, most]) },
        Size {
            numbers: Numbers::Selected,
            heads: 2,
            group: 2,
            packs: true,
            ..size(rows - 1, 3 * keys + 5, [13, 16])
        },
        Size { window: causal(0), ..size(rows + 1, keys / 2, [16, most]) },
        Size {
            batch: 4,
            heads: 2,
            group: 2,
            packs: true,
            window: causal(1),
            offsets: Some([vec![1, 4, 4, 14, 16], vec![2, 7, 11, 11, keys + 14]]),
            ..size(18, keys + 16, [16, 24])
        },
        Size { batch: 2, page: Some(1), ..size(2, 5, [8, 7]) },
        Size {
            batch: 2,
            heads: 4,
            group: 2,
            packs: true,
            page: Some(16),
            part: Some(keys),
            lengths: [None, Some(vec![keys + 3, 17])],
            ..size(3, keys + 20, [16, 8])
        },
    ];
    sizes.extend(odd_columns(instance));
    sizes.extend(changed_sizes(instance));
    sizes.extend(changed_sizes(instance).into_iter().take(5).map(|size| Size {
        group: 2,
        packs: true,
        ..size
    }));
    sizes
}
