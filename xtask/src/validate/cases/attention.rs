//! The cases of attention: sizes, every option alone and several drawn together, sequences of different lengths, and what is easily got wrong.

use warpsmith::ops::attention::{Alignment, Way, Window};
use warpsmith::{DType, Device, DeviceKind};
use warpsmith_lab::cases::{AttentionCase, AttentionLayout, Data, KeyScales, Sequences, Slopes};

use Alignment::{BottomRight, TopLeft};

use super::Level;
use crate::random::Random;

/// The types of attention.
const TYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];
/// Those of keys and values of 8 bits.
const FP8: [DType; 2] = [DType::F8E4M3, DType::F8E5M2];
/// The most columns of f32 that every device takes, and the shared memory that more of them take.
const WIDE: (usize, u32) = (128, 112 << 10);

/// Sequences, rows and keys; heads of keys, and of queries for each; the widths of keys and of values.
type Size = ([usize; 3], [usize; 2], [usize; 2]);

/// Nothing at all, single elements, few rows, one more and one less than blocks, groups that are no powers of two, every width of a kernel.
const QUICK_SIZES: [Size; 15] = [
    ([0, 5, 7], [1, 1], [8, 8]),
    ([2, 0, 7], [1, 2], [8, 8]),
    ([2, 5, 0], [1, 2], [8, 16]),
    ([1, 1, 1], [1, 1], [8, 8]),
    ([2, 17, 31], [2, 3], [8, 8]),
    ([1, 64, 64], [1, 1], [64, 64]),
    ([1, 65, 129], [2, 2], [128, 128]),
    ([1, 130, 67], [1, 4], [72, 40]),
    ([2, 1, 300], [2, 5], [64, 64]),
    ([1, 63, 255], [1, 2], [256, 256]),
    ([1, 129, 80], [1, 1], [192, 128]),
    ([1, 3, 1000], [1, 8], [128, 64]),
    ([2, 5, 9], [1, 2], [1, 1]),
    ([1, 33, 70], [1, 1], [13, 5]),
    ([1, 2, 8200], [1, 1], [16, 16]),
];
const MORE_SIZES: [Size; 7] = [
    ([3, 127, 191], [1, 1], [96, 96]),
    ([1, 257, 513], [2, 1], [128, 128]),
    ([2, 300, 300], [1, 6], [64, 64]),
    ([1, 4, 4096], [2, 4], [128, 128]),
    ([5, 33, 65], [3, 1], [80, 8]),
    ([1, 128, 176], [1, 2], [248, 256]),
    ([1, 1, 5000], [1, 16], [128, 128]),
];
/// Widths that only the CPU takes.
const WIDE_SIZES: [Size; 1] = [([1, 20, 40], [2, 1], [300, 257])];
/// What is validated on a GPU.
const LARGE_SIZES: [Size; 4] = [
    ([2, 2048, 2048], [4, 4], [128, 128]),
    ([1, 4096, 8192], [2, 4], [64, 64]),
    ([1, 1, 131_072], [1, 8], [128, 128]),
    ([1, 8192, 8192], [1, 1], [256, 256]),
];
/// What options are validated with, each alone.
const OF_OPTIONS: Size = ([2, 70, 90], [2, 3], [40, 24]);
/// Above so many columns, gradients of f32 take so many bytes of shared memory.
const WIDE_GRADIENTS: (usize, u32) = (128, 197_120);
/// The most scores of a sequence whose gradients are validated.
const MOST_SCORES: usize = 1 << 23;
/// Keys to the left and right.
const REACHES: [(Option<u32>, Option<u32>); 7] = [
    (None, Some(0)),
    (Some(64), Some(0)),
    (Some(0), Some(0)),
    (Some(7), Some(3)),
    (None, Some(5)),
    (Some(5), None),
    (Some(1000), Some(u32::MAX)),
];

/// The cases of attention on a device.
pub(in super::super) fn attentions(level: Level, device: &Device, seed: u64) -> Vec<AttentionCase> {
    let is_cpu = device.kind() == DeviceKind::Cpu;
    if !is_cpu && device.properties().compute_capability < (8, 0) {
        return Vec::new();
    }
    let on_gpu = matches!(device.kind(), DeviceKind::Cuda(_));
    let mut cases = Vec::new();
    for dtype in TYPES {
        let case = |size| of_size(dtype, size);
        let mut sizes = QUICK_SIZES.to_vec();
        if is_cpu {
            sizes.extend(WIDE_SIZES);
        }
        if level >= Level::Default {
            sizes.extend(MORE_SIZES);
        }
        if level == Level::Full && on_gpu {
            sizes.extend(LARGE_SIZES);
        }
        for &size in &sizes {
            cases.push(case(size));
            cases.extend(exact(case(size)));
            cases.extend(exact(causal(case(size), BottomRight)));
            cases.push(causal(case(size), TopLeft));
        }
        cases.extend(options(&case(OF_OPTIONS)));
        cases.extend(edges(&case));
        if dtype != DType::F32 {
            cases.extend(of_fp8(&case));
        }
        if level == Level::Full {
            cases.extend(long_edges(&case, on_gpu));
        }
        let count = match level {
            Level::Quick => 12,
            Level::Default => 60,
            Level::Full => 240,
        };
        let mut random = Random::new(seed.wrapping_mul(31).wrapping_add(dtype.size() as u64));
        cases.extend((0..count).map(|_| drawn(dtype, &mut random)));
    }
    let (columns, shared) = WIDE;
    let takes_wide = is_cpu || device.properties().max_shared_per_block >= shared;
    cases.retain(|case| takes_wide || case.dtype != DType::F32 || case.width <= columns);
    for (number, case) in cases.iter_mut().enumerate() {
        // As the planner would, and in each way in turn.
        case.way = Way::ALL.get(number % (Way::ALL.len() + 1)).copied();
        case.seed = seed.wrapping_mul(1 << 20).wrapping_add(number as u64);
    }
    cases
}

/// The most columns of a head whose gradients a device has shared memory for.
pub(in super::super) fn widest_gradients(dtype: DType, device: &Device) -> usize {
    let (columns, shared) = WIDE_GRADIENTS;
    let takes_wide = device.kind() == DeviceKind::Cpu || device.properties().max_shared_per_block >= shared;
    if takes_wide || dtype != DType::F32 { 256 } else { columns }
}

/// The cases of attention's gradients on a device: those of attention that have some, but for the longest.
pub(in super::super) fn attention_gradients(level: Level, device: &Device, seed: u64) -> Vec<AttentionCase> {
    let mut cases = attentions(level, device, seed);
    cases.retain(|case| {
        let [_, rows, keys] = case.sequences.axes();
        let has_kernel = case.width.max(case.value_width) <= widest_gradients(case.dtype, device);
        let scores = rows.saturating_mul(keys).saturating_mul(case.heads());
        has_kernel && case.page_size.is_none() && case.keys_dtype.is_none() && scores <= MOST_SCORES
    });
    cases
}

fn of_size(dtype: DType, (sequences, heads, [width, value_width]): Size) -> AttentionCase {
    AttentionCase { value_width, ..AttentionCase::new(dtype, sequences, heads, width) }
}

fn causal(case: AttentionCase, alignment: Alignment) -> AttentionCase {
    AttentionCase { window: Window::new(None, Some(0), alignment), ..case }
}

/// The case with one key that has all the weight of a row, if the columns can tell its keys apart.
fn exact(case: AttentionCase) -> Option<AttentionCase> {
    let digits = u32::try_from(case.width / 3).unwrap_or(u32::MAX);
    let base: usize = if case.keys_dtype.is_some() { 3 } else { 16 };
    let keys = (0..case.sequences.batch()).map(|b| case.sequences.lengths(b)[1]).max().unwrap_or(0);
    (base.saturating_pow(digits) >= keys).then_some(AttentionCase { data: Data::Integers, ..case })
}

/// Every option alone, with every way that it can be told.
fn options(case: &AttentionCase) -> Vec<AttentionCase> {
    let mut cases = Vec::new();
    for alignment in [TopLeft, BottomRight] {
        for (left, right) in REACHES {
            let window = Window::new(left, right, alignment);
            let case = AttentionCase { window, ..case.clone() };
            let more_rows = Sequences::Equal { batch: 1, rows: 100, keys: 37 };
            cases.extend(exact(case.clone()));
            cases.push(AttentionCase { sequences: more_rows, ..case.clone() });
            cases.push(case);
        }
    }
    let broadcasts = [
        [false; 4],
        [true; 4],
        [true, true, false, false],
        [false, true, true, false],
        [true, false, false, true],
    ];
    for axes in broadcasts {
        let masked = AttentionCase { mask: Some(axes), ..case.clone() };
        cases.extend(exact(masked.clone()));
        cases.push(masked);
        cases.push(AttentionCase { bias: Some(axes), ..case.clone() });
    }
    for (axes, sizes) in [
        ([false, false], [16, 32]),
        ([true, false], [64, 64]),
        ([false, true], [1, 1]),
        ([true, true], [1000, 1000]),
        ([false, false], [7, 128]),
    ] {
        let blocked = AttentionCase { blocks: Some((axes, sizes)), ..case.clone() };
        cases.extend(exact(blocked.clone()));
        cases.push(causal(blocked.clone(), BottomRight));
        cases.push(blocked);
    }
    for slopes in [Slopes::OfHeads, Slopes::OfSequences] {
        let sloped = AttentionCase { slopes: Some(slopes), ..case.clone() };
        cases.push(causal(sloped.clone(), TopLeft));
        cases.push(causal(sloped.clone(), BottomRight));
        cases.push(sloped);
    }
    cases.extend([
        AttentionCase { soft_cap: Some(0.5), ..case.clone() },
        AttentionCase { soft_cap: Some(30.0), scale: Some(10.0), ..case.clone() },
        AttentionCase { scale: Some(-0.7), ..case.clone() },
        AttentionCase { scale: Some(0.0), ..case.clone() },
        AttentionCase { sinks: true, ..case.clone() },
        causal(
            AttentionCase { sinks: true, ..of_size(case.dtype, ([1, 40, 20], [2, 2], [16, 16])) },
            BottomRight,
        ),
    ]);
    for size in [1, 9, 30, 90] {
        let paged = AttentionCase { page_size: Some(size), ..case.clone() };
        cases.extend(exact(causal(paged.clone(), BottomRight)));
        cases.push(AttentionCase { mask: Some([true, false, false, false]), ..paged.clone() });
        cases.push(paged);
    }
    for layout in [AttentionLayout::Heads, AttentionLayout::Among] {
        let case = AttentionCase { layout, ..case.clone() };
        cases.extend(exact(case.clone()));
        cases.extend(exact(causal(case.clone(), BottomRight)));
        cases.push(case);
    }
    cases
}

/// Keys and values of 8 bits: sizes, scales, sequences and options.
fn of_fp8(case: &impl Fn(Size) -> AttentionCase) -> Vec<AttentionCase> {
    let of = |case: AttentionCase, keys_dtype, key_scales| AttentionCase {
        keys_dtype: Some(keys_dtype),
        key_scales,
        ..case
    };
    let [tensor, heads] = [KeyScales::OfTensor, KeyScales::OfHeads].map(Some);
    let mut cases = Vec::new();
    for (number, size) in QUICK_SIZES.into_iter().enumerate() {
        let keys_dtype = FP8[number % 2];
        let scales = [[None, tensor, heads][number % 3], [heads, None, tensor][number % 3]];
        cases.push(of(case(size), keys_dtype, scales));
        cases.extend(exact(causal(of(case(size), keys_dtype, scales), BottomRight)));
    }
    for keys_dtype in FP8 {
        let one = of(case(OF_OPTIONS), keys_dtype, [heads, heads]);
        let lengths = vec![[70, 90], [1, 0], [0, 90], [33, 65]];
        cases.extend([
            AttentionCase { page_size: Some(9), ..one.clone() },
            AttentionCase { mask: Some([true, false, false, false]), sinks: true, ..one.clone() },
            AttentionCase { soft_cap: Some(0.5), slopes: Some(Slopes::OfHeads), ..one.clone() },
            AttentionCase { layout: AttentionLayout::Heads, ..one.clone() },
            AttentionCase { layout: AttentionLayout::Among, ..one.clone() },
            causal(
                AttentionCase { sequences: Sequences::Packed(lengths.clone()), ..one.clone() },
                BottomRight,
            ),
            AttentionCase {
                sequences: Sequences::Padded { rows: 70, keys: 90, lengths },
                page_size: Some(30),
                ..one.clone()
            },
            AttentionCase {
                sequences: Sequences::Equal { batch: 2, rows: 1, keys: 1536 },
                page_size: Some(16),
                ..one
            },
        ]);
    }
    cases
}

/// What implementations are known to get wrong.
fn edges(case: &impl Fn(Size) -> AttentionCase) -> Vec<AttentionCase> {
    let packed = |lengths: &[[usize; 2]], heads, widths| AttentionCase {
        sequences: Sequences::Packed(lengths.to_vec()),
        ..case(([0; 3], heads, widths))
    };
    let padded = |[rows, keys]: [usize; 2], lengths: &[[usize; 2]], heads, widths| AttentionCase {
        sequences: Sequences::Padded { rows, keys, lengths: lengths.to_vec() },
        ..case(([0; 3], heads, widths))
    };
    let window = |case: AttentionCase, left, right, alignment| AttentionCase {
        window: Window::new(left, right, alignment),
        ..case
    };
    // Sequences without rows, without keys, and without either, first, last and in a row.
    let empty = [[0, 0], [5, 9], [4, 0], [0, 6], [0, 0], [70, 130], [0, 3], [3, 0]];
    let mut cases = vec![
        // Many rows of one key each.
        causal(packed(&[[76, 1], [34, 1], [146, 1]], [1, 1], [32, 32]), BottomRight),
        // A short prefix.
        AttentionCase { scale: Some(0.11471), ..causal(packed(&[[3, 7]], [16, 1], [192, 192]), BottomRight) },
        // The first rows are before the first key.
        causal(case(([1, 256, 128], [1, 2], [64, 64])), BottomRight),
        window(case(([1, 129, 33], [1, 1], [64, 64])), Some(32), Some(64), BottomRight),
        // Several blocks on the diagonal.
        causal(case(([1, 300, 300], [1, 1], [128, 128])), BottomRight),
        // A limit for each row, of rows that may be taken together with those of other heads.
        causal(case(([1, 5, 333], [1, 8], [128, 128])), BottomRight),
        window(case(([2, 7, 200], [2, 3], [64, 64])), Some(50), Some(0), BottomRight),
        // Many keys to the left of the window.
        window(case(([1, 17, 512], [1, 2], [64, 64])), Some(1), None, BottomRight),
        window(case(([1, 128, 512], [1, 4], [64, 64])), Some(64), None, BottomRight),
        window(case(([1, 1, 2000], [1, 2], [64, 64])), Some(511), Some(0), BottomRight),
        packed(&empty, [2, 2], [64, 64]),
        packed(&[[0, 0], [0, 0]], [1, 1], [8, 8]),
        packed(&[], [1, 1], [8, 8]),
        packed(&[[1, 1]; 33], [1, 2], [16, 16]),
        padded([70, 130], &empty[1..], [2, 2], [64, 64]),
        padded([1, 1024], &[[1, 900], [1, 1000], [1, 120], [1, 500]], [2, 4], [128, 128]),
        padded([1, 1024], &[[1, 0], [0, 1000], [1, 1024]], [1, 1], [64, 64]),
    ];
    for alignment in [TopLeft, BottomRight] {
        for sequences in [
            Sequences::Packed(empty.to_vec()),
            Sequences::Padded { rows: 70, keys: 130, lengths: empty.to_vec() },
        ] {
            let case = causal(AttentionCase { sequences, ..case(([0; 3], [2, 3], [64, 64])) }, alignment);
            let slopes = Some(Slopes::OfSequences);
            cases.push(AttentionCase { slopes, sinks: true, ..case.clone() });
            cases.push(case);
        }
    }
    // Keys in pages: of one key, of parts of a kernel's blocks and of several, behind whose end a sequence may end.
    for (size, layout) in [
        (1, AttentionLayout::Rows),
        (16, AttentionLayout::Heads),
        (64, AttentionLayout::Among),
        (256, AttentionLayout::Rows),
    ] {
        let paged = |case: AttentionCase| AttentionCase {
            page_size: Some(size),
            layout,
            ..causal(case, BottomRight)
        };
        cases.push(paged(case(([2, 150, 256], [2, 3], [64, 64]))));
        cases.push(paged(case(([2, 1, 1536], [2, 4], [128, 128]))));
        cases.push(paged(padded([70, 256], &empty[1..], [2, 2], [64, 64])));
        cases.push(paged(padded([1, 1024], &[[1, 900], [1, 0], [0, 120], [1, 1024]], [2, 4], [72, 40])));
    }
    for layout in [AttentionLayout::Heads, AttentionLayout::Among] {
        cases.push(AttentionCase { layout, ..packed(&empty, [1, 2], [64, 64]) });
        cases.push(AttentionCase { layout, ..case(([2, 1, 1500], [1, 4], [64, 64])) });
    }
    let plain = cases.iter().filter(|case| case.slopes.is_none() && !case.sinks);
    let plain = plain.cloned().map(|case| AttentionCase { scale: None, ..case });
    let exact: Vec<_> = plain.filter_map(exact).collect();
    cases.extend(exact);
    cases
}

/// The same at the sizes at which they were reported.
fn long_edges(case: &impl Fn(Size) -> AttentionCase, on_gpu: bool) -> Vec<AttentionCase> {
    let packed = |lengths: &[[usize; 2]], heads, widths| AttentionCase {
        sequences: Sequences::Packed(lengths.to_vec()),
        ..case(([0; 3], heads, widths))
    };
    let mut cases = vec![
        causal(case(([1, 2048, 1024], [1, 1], [64, 64])), BottomRight),
        packed(&[[0, 2538], [1208, 1742], [840, 840], [0, 3072]], [1, 4], [256, 256]),
        case(([1, 1, 4096], [8, 2], [128, 128])),
    ];
    let [rows, keys]: [&[usize]; 2] =
        if on_gpu { [&[17, 128, 300, 1024], &[512, 1024, 4096]] } else { [&[17, 128, 300], &[512, 1024]] };
    for &rows in rows {
        for &keys in keys {
            for (left, group) in [1, 64, 333, 4096].into_iter().zip([1, 2, 4, 8]) {
                let window = Window::new(Some(left), None, BottomRight);
                cases.push(AttentionCase { window, ..case(([1, rows, keys], [1, group], [64, 64])) });
            }
        }
    }
    cases
}

/// A case with several options at once.
fn drawn(dtype: DType, random: &mut Random) -> AttentionCase {
    let side = |random: &mut Random| match random.below(4) {
        0 => random.below(20),
        1 => *random.pick(&[63, 64, 65, 127, 128, 129]),
        _ => 1 + random.below(200),
    };
    let width = |random: &mut Random| {
        let most = if random.chance(80) { 16 } else { 32 };
        8 * (1 + random.below(most))
    };
    let batch = 1 + random.below(4);
    let rows = side(random);
    // Beyond what one block has of a sequence's keys, if there are few rows.
    let keys = if rows < 20 && random.chance(50) { 257 + random.below(450) } else { side(random) };
    let lengths = |random: &mut Random| -> Vec<[usize; 2]> {
        (0..batch).map(|_| [random.below(rows + 1), random.below(keys + 1)]).collect()
    };
    let sequences = match random.below(3) {
        0 => Sequences::Equal { batch, rows, keys },
        1 => Sequences::Padded { rows, keys, lengths: lengths(random) },
        _ => Sequences::Packed(lengths(random)),
    };
    let is_packed = matches!(sequences, Sequences::Packed(_));
    let page_size = (!is_packed && random.chance(30)).then(|| *random.pick(&[1, 8, 16, 24, 128]));
    let sequences = match (sequences, page_size) {
        (Sequences::Equal { batch, rows, keys }, Some(size)) => {
            Sequences::Equal { batch, rows, keys: keys.next_multiple_of(size) }
        }
        (Sequences::Padded { rows, keys, lengths }, Some(size)) => {
            Sequences::Padded { rows, keys: keys.next_multiple_of(size), lengths }
        }
        (sequences, _) => sequences,
    };
    let (key_heads, group) = (1 + random.below(3), 1 + random.below(5));
    let [width, value_width] = [width(random), width(random)];
    let reach = |random: &mut Random| random.chance(60).then(|| random.below(100) as u32);
    let mut case = AttentionCase {
        sequences,
        page_size,
        value_width: if random.chance(50) { width } else { value_width },
        ..AttentionCase::new(dtype, [0; 3], [key_heads, group], width)
    };
    if random.chance(60) {
        let right = if random.chance(50) { Some(0) } else { reach(random) };
        case.window = Window::new(reach(random), right, *random.pick(&[TopLeft, BottomRight]));
    }
    if dtype != DType::F32 && random.chance(25) {
        case.keys_dtype = Some(*random.pick(&FP8));
        case.key_scales =
            [(); 2].map(|()| *random.pick(&[None, Some(KeyScales::OfTensor), Some(KeyScales::OfHeads)]));
    }
    let axes = |random: &mut Random| [(); 4].map(|()| random.chance(40));
    case.mask = (!is_packed && random.chance(40)).then(|| axes(random));
    case.blocks = (!is_packed && random.chance(30)).then(|| {
        let [first, second, ..] = axes(random);
        ([first, second], [(); 2].map(|()| *random.pick(&[1, 16, 50, 64, 128, 256])))
    });
    case.layout = *random.pick(&[AttentionLayout::Rows, AttentionLayout::Heads, AttentionLayout::Among]);
    if random.chance(25)
        && let Some(exact) = exact(case.clone())
    {
        return exact;
    }
    case.bias = (!is_packed && random.chance(40)).then(|| axes(random));
    case.scale = random.chance(30).then(|| *random.pick(&[0.02, 0.3, -0.25]));
    case.soft_cap = random.chance(30).then(|| *random.pick(&[0.3, 2.0, 50.0]));
    case.slopes = random.chance(30).then(|| *random.pick(&[Slopes::OfHeads, Slopes::OfSequences]));
    case.sinks = random.chance(30);
    case
}

#[cfg(test)]
mod tests {
    use warpsmith::{DType, Device};
    use warpsmith_lab::cases::{AttentionCase, Data, Sequences};

    use super::super::Level;
    use super::{FP8, TYPES, WIDE, attention_gradients, attentions};

    #[test]
    fn each_level_holds_more_cases_and_every_option_is_among_the_first() {
        let cases = |level| attentions(level, &Device::cpu(), 1);
        let quick = cases(Level::Quick);
        assert!(quick.len() < cases(Level::Default).len());
        assert!(cases(Level::Default).len() < cases(Level::Full).len());
        assert!(quick.iter().any(|case| matches!(&case.sequences, Sequences::Packed(all) if all.len() > 5)));
        assert!(quick.iter().any(|case| matches!(case.sequences, Sequences::Padded { .. })));
        let has = |is: fn(&warpsmith_lab::cases::AttentionCase) -> bool| quick.iter().any(is);
        assert!(has(|case| case.mask.is_some()) && has(|case| case.bias.is_some()));
        assert!(has(|case| case.blocks.is_some()) && has(|case| case.slopes.is_some()));
        assert!(has(|case| case.sinks) && has(|case| case.soft_cap.is_some()));
        assert!(has(|case| case.data == Data::Integers));
        for keys_dtype in FP8 {
            let is = |case: &&AttentionCase| case.keys_dtype == Some(keys_dtype);
            assert!(quick.iter().filter(is).any(|case| case.page_size.is_some()));
            assert!(quick.iter().filter(is).any(|case| case.data == Data::Integers));
        }
        assert!(has(|case| case.page_size == Some(1)) && has(|case| case.page_size > Some(100)));
        let all_at_once = |case: &&warpsmith_lab::cases::AttentionCase| {
            case.bias.is_some() && case.slopes.is_some() && case.sinks && case.soft_cap.is_some()
        };
        assert!(cases(Level::Full).iter().any(|case| all_at_once(&case)));
    }

    #[test]
    fn devices_have_cases_of_what_they_have_kernels_for() {
        let cases = |device: &str| attentions(Level::Quick, &device.parse().unwrap(), 1);
        assert!(cases("emulator:7.5").is_empty());
        for device in ["emulator:8.0", "emulator:8.9", "emulator:9.0"] {
            assert!(TYPES.iter().all(|&dtype| cases(device).iter().any(|case| case.dtype == dtype)));
        }
        // More columns of f32 take more shared memory than such a GPU has.
        let is_wide = |case: &AttentionCase| case.dtype == DType::F32 && case.width > WIDE.0;
        assert!(!cases("emulator:8.9").iter().any(is_wide) && cases("emulator:8.0").iter().any(is_wide));
        let gradients = |device: &str| attention_gradients(Level::Quick, &device.parse().unwrap(), 1);
        assert!(
            !gradients("emulator:8.0").iter().any(is_wide) && gradients("emulator:9.0").iter().any(is_wide)
        );
    }
}
