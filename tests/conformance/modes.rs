//! What a GPU leaves open must not show: every shipped kernel gives the same bits whenever its copies and products complete, in
//! whatever order its warps take turns, and on however many threads.

use std::collections::BTreeSet;

use libtest_mimic::{Failed, Trial};
use warpsmith::cpu::{CrossEntropy, Elementwise};
use warpsmith::emulator::Completion;
use warpsmith::layers::CacheFormat;
use warpsmith::ops::attention::{Alignment, Way as AttentionWay, Window};
use warpsmith::ops::gemm::{Access, Tile};
use warpsmith::ops::peer::ExpertFormat;
use warpsmith::ops::update::Way;
use warpsmith::ops::{Activation, Implementation};
use warpsmith::optim::{Rounding, SecondMoment};
use warpsmith::{DType, Device, EmulatorOptions};
use warpsmith_kernels::MODULES;
use warpsmith_lab::cases::{
    AdamWCase, AdamWRows, AttentionCase, CodesPer, CrossEntropyCase, Data, ElementwiseCase, EmbeddingCase,
    ExpertCase, KeyScales, KvCacheCase, LinearBackwardCase, LinearCase, MaskRows, MatmulCase, NormCase,
    Placement, RotaryCase, RoutingCase, Scales, Sequences, SlopesFrom, SoftmaxCase, Terms,
    UpdateBackwardCase, UpdateCase,
};
use warpsmith_lab::validate::{self, Outcome};
use warpsmith_tests::mutants::report::Table;

/// What is done to the sums, with M, K, N.
type Fused = (Activation, Terms, (usize, usize, usize));

/// Every term that there is beside the bias.
const ALL_TERMS: Terms = Terms {
    row_scale: Scales::Each,
    column_scale: Scales::Each,
    beta: 0.5,
    in_place: false,
    mask: true,
    preactivation: true,
    beside: WHOLE,
};

/// The same, added to what the output holds: each part of it is read before what takes its place is stored.
const IN_PLACE: Terms = Terms { in_place: true, ..ALL_TERMS };

/// Several tiles with tails, and sums longer than any ring of stages. Activations alone, and every term, which pass through the
/// boxes that the copy engine stores, since N is a multiple of 8, apart from the output and in it. A mask alone. Every term
/// where it is not, so that warps store row by row.
const FUSED: [Fused; 7] = [
    (Activation::GeluErf, NO_TERMS, (200, 712, 264)),
    (Activation::GeluErf, NO_TERMS, (65, 40, 72)),
    (Activation::Relu, NO_TERMS, (136, 200, 136)),
    (Activation::Relu, MASK, (136, 200, 136)),
    (Activation::Silu, ALL_TERMS, (136, 200, 136)),
    (Activation::Relu, IN_PLACE, (136, 40, 264)),
    (Activation::Relu, ALL_TERMS, (72, 40, 133)),
];

/// The longest sums of kernels that another's stand for: several stages.
const LONGEST_OF_TWINS: usize = 256;

const NO_TERMS: Terms = Terms {
    row_scale: Scales::None,
    column_scale: Scales::None,
    beta: 0.0,
    in_place: false,
    mask: false,
    preactivation: false,
    beside: WHOLE,
};

/// A mask alone.
const MASK: Terms = Terms { mask: true, ..NO_TERMS };

const WHOLE: Placement = Placement { before: 0, after: 0 };

/// Emulated H100s, which run all kernels.
pub(crate) fn devices() -> Result<Vec<(String, Device)>, Failed> {
    devices_of((9, 0), None)
}

/// An emulated GPU in every mode, with so many multiprocessors if they are given. One order is drawn, by the seed of all draws.
fn devices_of(
    compute_capability: (u32, u32),
    multiprocessors: Option<u32>,
) -> Result<Vec<(String, Device)>, Failed> {
    let options = |completion, seed, threads| EmulatorOptions {
        compute_capability,
        multiprocessors,
        completion,
        seed,
        threads: Some(threads),
        ..EmulatorOptions::default()
    };
    let seed = crate::properties::seed()?;
    let all = [
        ("late".to_owned(), options(Completion::Latest, 0, 1)),
        ("at once".to_owned(), options(Completion::Eager, 0, 2)),
        (format!("random, seed {seed}"), options(Completion::Random, seed, 2)),
    ];
    Ok(all.map(|(name, options)| (name, Device::emulator_with(options))).into())
}

/// Runs a tile in every mode, in every way that it stores its results; gives the kernels that ran.
fn check(tile: Tile, [input, output]: [DType; 2], access: Access) -> Result<BTreeSet<String>, Failed> {
    let mut ran = BTreeSet::new();
    let devices = devices()?;
    for (activation, terms, (m, k, n)) in FUSED {
        let case = LinearCase { activation, terms, ..LinearCase::new(input, m, k, n) };
        if !tile.serves_fused(case.fused()) || tile.needs_boxes() && !n.is_multiple_of(8) {
            continue;
        }
        // The kernels of f16 are those of bf16 but for conversions: one of the two sums what is longer than a ring.
        if input == DType::F16 && k > LONGEST_OF_TWINS {
            continue;
        }
        // Rows that start at multiples of 4 bytes.
        let k = if access == Access::Words { k + 4 / input.size() } else { k };
        // Rows that start at multiples of an element.
        let k = if access == Access::Strided { k + 1 } else { k };
        // Few columns, of which pairs are no words.
        let (k, n) = if access == Access::Dense { (k % 128 + 1, n % 128 + 1) } else { (k, n) };
        let precision = tile.precision(input);
        let case = LinearCase { output, activation, terms, precision, ..LinearCase::new(input, m, k, n) };
        let case = LinearCase { tile: Some(tile), parts: tile.shares().then_some(1), ..case };
        let mut first: Option<Vec<u32>> = None;
        for (mode, device) in &devices {
            let context = || format!("{tile}, {} {} {}, {mode}", case.types(), case.shape(), case.options());
            let bits =
                validate::linear_bits(device, &case).map_err(|error| format!("{}: {error}", context()))?;
            match &first {
                Some(first) if *first == bits => {}
                Some(_) => return Err(format!("{}: differs from {}", context(), devices[0].0).into()),
                None => {
                    // What all modes agree on is right as well.
                    let outcome = validate::linear(device, &case)?;
                    assert!(outcome.passed() && outcome.compared == m * n, "{}: {outcome:?}", context());
                    let Implementation::Emulator { kernel, copies: 0, .. } = outcome.implementation else {
                        return Err(format!("{}: {}", context(), outcome.implementation).into());
                    };
                    ran.insert(kernel.to_owned());
                    first = Some(bits);
                }
            }
        }
    }
    Ok(ran)
}

/// Runs every tile of some types, and compares what ran with what ships.
fn check_all([input, output]: [DType; 2]) -> Result<(), Failed> {
    let mut ran = BTreeSet::new();
    for access in [Access::Aligned, Access::Words, Access::Dense, Access::Strided] {
        let serves = |tile: &Tile| tile.serves(input, access) && tile.serves_output(input, output);
        for tile in Tile::ALL.into_iter().filter(serves) {
            ran.extend(check(tile, [input, output], access)?);
        }
    }
    if input == DType::F16 {
        let twins = Table::read()?.twins;
        if let Some(name) = ran.iter().find(|name| !twins.contains_key(*name)) {
            return Err(format!("{name} is nobody's twin: it has to sum what is longer than a ring").into());
        }
    }
    let part = format!("_{input}_{output}_");
    all_ran(&ran, |name| name.contains(&part) && !is_of_updates(name))
}

/// Whether all kernels of a kind are among those that ran.
fn all_ran(ran: &BTreeSet<String>, is_of_kind: impl Fn(&str) -> bool) -> Result<(), Failed> {
    let entries = MODULES.iter().flat_map(|module| module.entries).map(|entry| entry.name);
    let missing: Vec<_> = entries.filter(|name| is_of_kind(name) && !ran.contains(*name)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("not run: {missing:?}").into()) }
}

/// Whether a kernel is of the products that an update is computed as.
fn is_of_updates(name: &str) -> bool {
    name.starts_with("linear_joined_") || name.starts_with("linear_modulated_")
}

/// Runs a case in every mode; gives the kernels that ran.
fn bits_in_every_mode<B: PartialEq>(
    devices: &[(String, Device)],
    what: &str,
    outcome: impl Fn(&Device) -> warpsmith::Result<Outcome>,
    bits: impl Fn(&Device) -> warpsmith::Result<Vec<B>>,
) -> Result<BTreeSet<String>, Failed> {
    let (mut ran, mut first) = (BTreeSet::new(), None);
    for (mode, device) in devices {
        let got = bits(device).map_err(|error| format!("{what}, {mode}: {error}"))?;
        match &first {
            Some(first) if *first == got => {}
            Some(_) => return Err(format!("{what}: {mode} differs from {}", devices[0].0).into()),
            None => {
                // What all modes agree on is right as well.
                let outcome = outcome(device).map_err(|error| format!("{what}, {mode}: {error}"))?;
                assert!(outcome.passed() && outcome.compared > 0, "{what}, {mode}: {outcome:?}");
                let launches = outcome.implementation.launches();
                ran.extend(launches.iter().map(|launch| launch.kernel.to_owned()));
                first = Some(got);
            }
        }
    }
    Ok(ran)
}

/// M, K, N and the rank: several tiles with tails, and sums longer than any ring of stages; few rows, and a sum that several blocks share.
const UPDATED: [(usize, usize, usize, usize); 2] = [(200, 456, 264, 24), (9, 1032, 200, 100)];

/// Every way to an update of a type that is products: onto a linear operation, plain and with a mask, which not every tile has; and alone.
fn updates_of(dtype: DType) -> Result<(), Failed> {
    let (devices, mut ran) = (devices()?, BTreeSet::new());
    let is_of_products = |way: &Way| !matches!(way, Way::Kernel | Way::Products);
    for ((m, k, n, rank), mask) in UPDATED.into_iter().zip([true, false]).chain([(UPDATED[0], false)]) {
        for way in Way::all().into_iter().filter(is_of_products) {
            let case = UpdateCase { way: Some(way), ..UpdateCase::new(dtype, m, k, n, rank) };
            let case = match way {
                Way::Modulated(_) => case.alone(false),
                _ => UpdateCase { activation: Activation::Relu, mask, ..case },
            };
            let what = format!("{} {dtype} {} {}", case.operation(), case.shape(), case.options());
            ran.extend(bits_in_every_mode(
                &devices,
                &what,
                |device| validate::generated_update(device, &case),
                |device| validate::generated_update_bits(device, &case),
            )?);
        }
    }
    let part = format!("_{dtype}_");
    all_ran(&ran, |name| is_of_updates(name) && name.contains(&part))
}

/// Every head size that there are kernels for, with one that is between them.
const WIDTHS: [usize; 6] = [64, 88, 96, 128, 192, 256];

/// Many rows and few, with tails, of more keys than any ring holds, and of more than a block's.
fn attentions() -> Result<(), Failed> {
    let mut ran = BTreeSet::new();
    for compute_capability in [(8, 0), (9, 0)] {
        let devices = devices_of(compute_capability, None)?;
        for (width, dtype) in
            WIDTHS.into_iter().flat_map(|width| crate::attention::TYPES.map(|dtype| (width, dtype)))
        {
            let way = Some(AttentionWay::Hopper);
            let many = AttentionCase { way, ..AttentionCase::new(dtype, [1, 203, 330], [1, 2], width) };
            let causal = Window::new(None, Some(0), Alignment::BottomRight);
            let cases = [
                AttentionCase { window: causal, ..many.clone() },
                AttentionCase { bias: Some([false, false, true, true]), sinks: true, ..many.clone() },
                AttentionCase { way: Some(AttentionWay::Split), ..many },
                // One tile, of the most rows.
                AttentionCase { way, ..AttentionCase::new(dtype, [1, 190, 330], [1, 1], width) },
                AttentionCase::new(dtype, [2, 3, 600], [1, 3], width),
            ];
            for case in cases {
                let what = format!("{compute_capability:?}: {dtype} {} {}", case.shape(), case.options());
                ran.extend(bits_in_every_mode(
                    &devices,
                    &what,
                    |device| validate::attention(device, &case),
                    |device| validate::attention_bits(device, &case),
                )?);
            }
        }
    }
    let of_others = ["attention_fp8_", "attention_gradient_"];
    all_ran(&ran, |name| {
        name.starts_with("attention_") && !of_others.iter().any(|start| name.starts_with(start))
    })
}

/// Gradients by every kernel: of causal rows with sinks, and of packed sequences.
fn attention_gradients() -> Result<(), Failed> {
    let mut ran = BTreeSet::new();
    for compute_capability in [(8, 0), (9, 0)] {
        let devices = devices_of(compute_capability, None)?;
        for width in [40, 96, 128, 192, 256] {
            // Wide ones of f32 have kernels where blocks have Hopper's shared memory.
            let takes_wide = width <= 128 || compute_capability == (9, 0);
            for dtype in
                crate::attention::TYPES.into_iter().filter(|&dtype| takes_wide || dtype != DType::F32)
            {
                let window = Window::new(None, Some(0), Alignment::BottomRight);
                // More than a tile of rows and of keys.
                let plain =
                    AttentionCase { window, ..AttentionCase::new(dtype, [1, 140, 150], [1, 2], width) };
                let packed = Sequences::Packed(vec![[30, 40], [0, 3], [66, 20]]);
                for case in [
                    AttentionCase { sinks: true, ..plain.clone() },
                    AttentionCase { sequences: packed, ..plain },
                ] {
                    let what = format!(
                        "{compute_capability:?}: gradients of {dtype} {} {}",
                        case.shape(),
                        case.options()
                    );
                    ran.extend(bits_in_every_mode(
                        &devices,
                        &what,
                        |device| validate::attention_backward(device, &case),
                        |device| validate::attention_backward_bits(device, &case),
                    )?);
                }
            }
        }
    }
    all_ran(&ran, |name| name.starts_with("attention_gradient_"))
}

/// The same of keys and values of 8 bits, in pages and not.
fn attentions_of_fp8() -> Result<(), Failed> {
    let mut ran = BTreeSet::new();
    let scales = [KeyScales::OfHeads, KeyScales::OfTensor].map(Some);
    for compute_capability in [(8, 0), (9, 0)] {
        let devices = devices_of(compute_capability, None)?;
        for (width, dtype) in
            [64, 128, 256].into_iter().flat_map(|width| [(width, DType::F16), (width, DType::Bf16)])
        {
            let of = |sizes, keys_dtype| AttentionCase {
                keys_dtype: Some(keys_dtype),
                key_scales: scales,
                ..AttentionCase::new(dtype, sizes, [1, 2], width)
            };
            let causal = Window::new(None, Some(0), Alignment::BottomRight);
            let cases = [
                AttentionCase { window: causal, ..of([1, 203, 330], DType::F8E4M3) },
                AttentionCase { way: Some(AttentionWay::Split), ..of([1, 203, 330], DType::F8E5M2) },
                AttentionCase { page_size: Some(30), ..of([2, 3, 600], DType::F8E4M3) },
                AttentionCase { sinks: true, ..of([2, 3, 600], DType::F8E5M2) },
            ];
            for case in cases {
                let what = format!("{compute_capability:?}: {dtype} {} {}", case.shape(), case.options());
                ran.extend(bits_in_every_mode(
                    &devices,
                    &what,
                    |device| validate::attention(device, &case),
                    |device| validate::attention_bits(device, &case),
                )?);
            }
        }
    }
    all_ran(&ran, |name| name.starts_with("attention_fp8_"))
}

/// Caches of every type and format, whose new keys are whole chunks and not.
fn caches() -> Result<(), Failed> {
    let mut ran = BTreeSet::new();
    let devices = devices_of((8, 0), None)?;
    for (dtype, format) in crate::kv_cache::TYPES {
        for gap in [0, 3] {
            let scales = (format != CacheFormat::Same).then_some(KeyScales::OfHeads);
            let case = KvCacheCase::new(dtype, format, [2, 12], [9, 5], [64, 40]);
            let case = KvCacheCase { gap, scales, ..case };
            ran.extend(bits_in_every_mode(
                &devices,
                &format!("cache of {dtype} {} {}", case.shape(), case.options()),
                |device| validate::kv_cache(device, &case),
                |device| validate::kv_cache_bits(device, &case),
            )?);
        }
    }
    all_ran(&ran, |name| name.starts_with("kv_cache_append_"))
}

/// Rows and columns for every kernel of rows, in a block, in a cluster and of several rounds, aligned and not; each has several blocks.
const OF_ROWS: [[usize; 2]; 6] = [[70, 24], [7, 333], [3, 9000], [2, 9001], [2, 70_000], [1, 150_001]];

/// Whether the name of an entry begins with one of some families' and goes on with a type, or with what kinds of kernels of rows are called.
fn is_of_rows(name: &str, families: &[&str]) -> bool {
    families.iter().any(|family| name.strip_prefix(family).is_some_and(|rest| rest.starts_with('_')))
}

/// The types of rows and of results, which are other ones for odd numbers.
fn types_of_rows(number: usize) -> impl Iterator<Item = [DType; 2]> {
    let types = crate::attention::TYPES;
    let output = move |at: usize| types[(at + number % 2) % types.len()];
    types.into_iter().enumerate().map(move |(at, dtype)| [dtype, output(at)])
}

fn norms() -> Result<(), Failed> {
    let (devices, mut ran) = (devices()?, BTreeSet::new());
    for (number, [rows, columns]) in OF_ROWS.into_iter().enumerate() {
        for [dtype, output] in types_of_rows(number) {
            let case = NormCase {
                output,
                weight: Some(output),
                is_centered: number % 3 != 0,
                residual: number % 2 == 1,
                ..NormCase::new(dtype, rows, columns)
            };
            let what = format!("norm {dtype} {} {}", case.shape(), case.options());
            ran.extend(bits_in_every_mode(
                &devices,
                &what,
                |device| validate::norm(device, &case),
                |device| validate::norm_bits(device, &case),
            )?);
        }
    }
    all_ran(&ran, |name| is_of_rows(name, &["norm"]))
}

/// One strip of rows and several, of aligned columns and others; and of every kind of slopes.
fn linear_gradients() -> Result<(), Failed> {
    let (devices, mut ran) = (devices()?, BTreeSet::new());
    let sizes = [[40, 16, 264], [90, 8, 263], [300, 8, 24], [140, 8, 521]];
    for (number, size) in sizes.into_iter().enumerate() {
        for [dtype, gradient] in [[DType::F16; 2], [DType::Bf16, DType::F32], [DType::F32; 2]] {
            let (activation, slopes) = [
                (Activation::None, SlopesFrom::Preactivation),
                (Activation::Silu, SlopesFrom::Preactivation),
                (Activation::Relu, SlopesFrom::Mask),
                (Activation::Relu, SlopesFrom::Output),
            ][number];
            let case = LinearBackwardCase {
                gradient,
                slopes,
                scales: [Scales::Each, Scales::Each],
                dz: number % 2 == 0,
                adds: number % 2 == 1,
                ..LinearBackwardCase::new(dtype, activation, size)
            };
            let what = format!("linear_backward {} {} {}", case.types(), case.shape(), case.options());
            ran.extend(bits_in_every_mode(
                &devices,
                &what,
                |device| validate::linear_backward(device, &case),
                |device| validate::linear_backward_bits(device, &case),
            )?);
        }
    }
    all_ran(&ran, |name| is_of_rows(name, &["linear_gradient"]))
}

/// Codes of each row and of groups, of one strip and of several, onto a linear operation and alone.
fn update_gradients() -> Result<(), Failed> {
    let (devices, mut ran) = (devices()?, BTreeSet::new());
    let sizes = [([40, 16, 24], CodesPer::Token), ([90, 8, 33], CodesPer::Sequence)];
    for ([m, k, n], codes) in sizes.into_iter().chain([([600, 8, 9], CodesPer::Mixed)]) {
        for dtype in [DType::F16, DType::Bf16, DType::F32] {
            let update = UpdateCase {
                ranks: vec![8, 3, 5],
                codes,
                sequence: m / 2,
                activation: if m == 90 { Activation::Silu } else { Activation::None },
                bias: false,
                beta: 1.0,
                ..UpdateCase::new(dtype, m, k, n, 1)
            };
            let update = if m == 600 { update.alone(false) } else { update };
            let case = UpdateBackwardCase { adds: m == 40, ..UpdateBackwardCase::new(update) };
            let options = case.options();
            let what = format!("{} {} {} {options}", case.operation(), case.types(), case.update.shape());
            ran.extend(bits_in_every_mode(
                &devices,
                &what,
                |device| validate::update_backward(device, &case),
                |device| validate::update_backward_bits(device, &case),
            )?);
        }
    }
    all_ran(&ran, |name| is_of_rows(name, &["update_gradient"]))
}

fn softmaxes() -> Result<(), Failed> {
    let (devices, mut ran) = (devices()?, BTreeSet::new());
    for (number, [rows, columns]) in OF_ROWS.into_iter().enumerate() {
        for [dtype, output] in types_of_rows(number) {
            let mask = [MaskRows::All, MaskRows::None, MaskRows::One][number % 3];
            let case = SoftmaxCase { output, mask, ..SoftmaxCase::new(dtype, rows, columns) };
            let what = format!("softmax {dtype} {} {}", case.shape(), case.options());
            ran.extend(bits_in_every_mode(
                &devices,
                &what,
                |device| validate::softmax(device, &case),
                |device| validate::softmax_bits(device, &case),
            )?);
        }
    }
    all_ran(&ran, |name| is_of_rows(name, &["softmax"]))
}

fn losses() -> Result<(), Failed> {
    let (devices, mut ran) = (devices()?, BTreeSet::new());
    let sizes = OF_ROWS.into_iter().chain([[5000, 5]]);
    for (number, [rows, columns]) in sizes.enumerate() {
        for [dtype, output] in types_of_rows(number) {
            let options = CrossEntropy { smoothing: 0.125, z_loss: 1e-3, soft_cap: Some(3.0) };
            let options = if number % 2 == 0 { options } else { CrossEntropy::default() };
            let case = CrossEntropyCase { output, options, ..CrossEntropyCase::new(dtype, rows, columns) };
            let what = format!("cross-entropy {dtype} {} {}", case.shape(), case.options());
            ran.extend(bits_in_every_mode(
                &devices,
                &what,
                |device| validate::cross_entropy(device, &case),
                |device| validate::cross_entropy_bits(device, &case),
            )?);
        }
    }
    all_ran(&ran, |name| is_of_rows(name, &["cross_entropy"]) || matches!(name, "label_counts" | "loss_sums"))
}

/// Steps of AdamW with and without the norm of gradients, aligned and not, of weights of every type and rounding; of whole tensors, of rows and of experts.
fn optimizers() -> Result<(), Failed> {
    let (devices, mut ran) = (devices()?, BTreeSet::new());
    for dtype in crate::attention::TYPES {
        for (rounding, before) in [(Rounding::Master, [0, 0]), (Rounding::Stochastic, [1, 2])] {
            for gradient in crate::attention::TYPES {
                let plain = AdamWCase { rounding, tensors: 3, ..AdamWCase::new(dtype, gradient, 5000) };
                let case = AdamWCase { before, max_norm: Some(0.5), loss_scale: Some(1024.0), ..plain };
                let rows = AdamWRows::Some { columns: 70, used: 11 };
                let of_rows = AdamWCase { rows, length: 50, ..case };
                let rows = AdamWRows::Experts { inputs: 24, hidden: 2, gated: true, used: 9 };
                let second_moment = SecondMoment::PerRow;
                let of_experts = AdamWCase { rows, length: 30, second_moment, ..plain };
                for case in [plain, case, of_rows, of_experts] {
                    ran.extend(bits_in_every_mode(
                        &devices,
                        &format!("adamw {dtype}←{gradient} {} {}", case.shape(), case.options()),
                        |device| validate::adamw(device, &case),
                        |device| validate::adamw_bits(device, &case),
                    )?);
                }
            }
        }
    }
    all_ran(&ran, |name| name.starts_with("adamw_"))
}

/// Element-wise operations, rotations and look-ups with their gradients, and gradients of experts, aligned and not.
fn elements() -> Result<(), Failed> {
    let (devices, mut ran) = (devices()?, BTreeSet::new());
    for (number, dtype) in crate::attention::TYPES.into_iter().enumerate() {
        let functions = [
            Elementwise::Activation(Activation::GeluErf),
            Elementwise::Gated(Activation::Silu),
            Elementwise::GatedGradient(Activation::GeluTanh),
        ];
        // Rows without gaps are one, whose last chunk may be cut.
        let sizes = [([300, 72], 0), ([9, 1001], 0), ([9, 1001], 1)];
        for (function, ([rows, columns], before)) in
            functions.into_iter().flat_map(|function| sizes.map(|size| (function, size)))
        {
            let placement = Placement { before, after: 0 };
            let case = ElementwiseCase { placement, ..ElementwiseCase::new(function, dtype, rows, columns) };
            ran.extend(bits_in_every_mode(
                &devices,
                &format!("{dtype} {} {}", case.shape(), case.options()),
                |device| validate::elementwise(device, &case),
                |device| validate::elementwise_bits(device, &case),
            )?);
        }
        for (width, rotary) in [(128, 64), (38, 34)] {
            let case = RotaryCase { rotary, in_place: true, ..RotaryCase::new(dtype, [2, 30, 5, width]) };
            ran.extend(bits_in_every_mode(
                &devices,
                &format!("{dtype} {} {}", case.sizes(), case.options()),
                |device| validate::rotary(device, &case),
                |device| validate::rotary_bits(device, &case),
            )?);
        }
        // Several tiles and passes of the sort.
        for size in [[70_000, 8, 4500], [300, 21, 70]] {
            let case = EmbeddingCase { different: 2000, ..EmbeddingCase::new(dtype, size) };
            ran.extend(bits_in_every_mode(
                &devices,
                &format!("{dtype} {} {}", case.shape(), case.options()),
                |device| validate::embedding(device, &case),
                |device| validate::embedding_bits(device, &case),
            )?);
        }
        // The sums of embeddings' gradients with weights: of rows that are aligned, and that are not.
        let formats = ExpertFormat::ALL.into_iter().skip(2 * number).take(2);
        let beside = Placement { before: 1, after: 2 };
        for (format, x) in formats.zip([Placement::default(), beside]) {
            let case = ExpertCase { x, y: x, gated: true, ..ExpertCase::new(dtype, format, 5, 104, [2, 3]) };
            ran.extend(bits_in_every_mode(
                &devices,
                &format!("gradients of {format} x {dtype} {} {}", case.shape(), case.options()),
                |device| validate::expert_gradients(device, &case),
                |device| validate::expert_gradient_bits(device, &case),
            )?);
        }
        let case = RoutingCase { affine: true, ..RoutingCase::new(dtype, [5, 24], [40, 20], 6) };
        ran.extend(bits_in_every_mode(
            &devices,
            &format!("gradients of retrieval {dtype} {} {}", case.shape(), case.options()),
            |device| validate::product_key_topk_backward(device, &case),
            |device| validate::product_key_gradient_bits(device, &case),
        )?);
    }
    let families = ["elementwise_", "rotary_", "embedding_", "expert_gradient_", "product_key_gradient_"];
    all_ran(&ran, |name| families.iter().any(|family| name.starts_with(family)))
}

/// Multiprocessors of a GPU, and M, K, N of more tiles than it has blocks for them: some blocks work through two or three, and the next goes
/// around the ring of stages where the one before has stopped.
const PERSISTENT: (u32, (usize, usize, usize)) = (6, (790, 136, 384));

/// Whole tiles and cut ones, in clusters, with an activation that is applied in registers.
fn blocks_that_work_through_several_tiles_are_right() -> Result<(), Failed> {
    for tile in Tile::ALL.into_iter().filter(|tile| tile.is_persistent()) {
        let types = [DType::Bf16, DType::F32].into_iter();
        for input in types.filter(|&input| tile.serves(input, Access::Aligned)) {
            check_persistent(tile, input)?;
        }
    }
    Ok(())
}

fn check_persistent(tile: Tile, input: DType) -> Result<(), Failed> {
    let (multiprocessors, (m, k, n)) = PERSISTENT;
    let case = LinearCase {
        tile: Some(tile),
        precision: tile.precision(input),
        activation: Activation::Relu,
        data: Data::Integers,
        ..LinearCase::new(input, m, k, n)
    };
    for (mode, device) in devices_of((9, 0), Some(multiprocessors))? {
        let blocks = tile.blocks(m as u32, n as u32, 1, device.properties().multiprocessors);
        assert!(blocks < tile.tiles(m as u32, n as u32), "the launch is persistent");
        let outcome = validate::linear(&device, &case).map_err(|error| format!("{mode}: {error}"))?;
        assert!(outcome.passed() && outcome.exact && outcome.compared == m * n, "{mode}: {outcome:?}");
    }
    Ok(())
}

/// M, K, N whose last halves of tiles end in every way: within the first half, at its end, and within the second. Several
/// columns of tiles and one, sums of fewer steps than the ring has stages and of more.
const HALVED: [(usize, usize, usize); 5] =
    [(200, 712, 264), (300, 72, 384), (129, 136, 520), (128, 40, 128), (70, 200, 400)];

/// The sums are the same in the same order, whoever computes them.
fn halves_have_the_bits_of_whole_tiles() -> Result<(), Failed> {
    for (mode, device) in devices()? {
        for (input, (m, k, n)) in
            [DType::Bf16, DType::F32].into_iter().flat_map(|input| HALVED.map(|size| (input, size)))
        {
            for terms in [NO_TERMS, ALL_TERMS, IN_PLACE] {
                let bits = |tile: Tile| {
                    let precision = tile.precision(input);
                    let case = LinearCase { terms, precision, ..LinearCase::new(input, m, k, n) };
                    validate::linear_bits(&device, &LinearCase { tile: Some(tile), parts: Some(1), ..case })
                        .map_err(|error| format!("{tile}, {input} {m}x{k}x{n}, {mode}: {error}"))
                };
                let whole = bits(Tile::HopperCooperative128x256)?;
                let halves = bits(Tile::HopperCooperative128x256Halves)?;
                assert!(whole.len() >= m * n, "y, and what is stored beside it");
                assert!(whole == halves, "{input} {m}x{k}x{n}, {mode}, {terms:?}");
            }
        }
    }
    Ok(())
}

/// M, K, N of several tiles, with sums of more steps than parts of most, and of fewer; the parts, and what is done to the sums.
const SHARED: [((usize, usize, usize), u32, Terms); 3] =
    [((200, 712, 264), 5, NO_TERMS), ((70, 392, 136), 2, ALL_TERMS), ((40, 72, 72), 3, IN_PLACE)];

/// Whoever is last adds the parts up in the order of K.
fn shared_sums_have_the_same_bits() -> Result<(), Failed> {
    let devices = devices()?;
    let all = Tile::ALL.into_iter().flat_map(|tile| [DType::Bf16, DType::F32].map(|input| (tile, input)));
    for (tile, input) in all.filter(|&(tile, input)| tile.serves(input, Access::Aligned) && tile.shares()) {
        for ((m, k, n), parts, terms) in SHARED {
            let (precision, parts, tile) = (tile.precision(input), Some(parts), Some(tile));
            let case = LinearCase { terms, precision, tile, parts, ..LinearCase::new(input, m, k, n) };
            if tile.is_some_and(|tile| !tile.serves_fused(case.fused())) {
                continue;
            }
            let mut first: Option<Vec<u32>> = None;
            for (mode, device) in &devices {
                let context = || format!("{} {} {}, {mode}", case.types(), case.shape(), case.options());
                let bits = validate::linear_bits(device, &case);
                let bits = bits.map_err(|error| format!("{}: {error}", context()))?;
                match &first {
                    Some(first) => assert!(*first == bits, "{}: differs from {}", context(), devices[0].0),
                    None => {
                        let outcome = validate::linear(device, &case)?;
                        assert!(outcome.passed() && outcome.compared == m * n, "{}: {outcome:?}", context());
                        first = Some(bits);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Which operands are MN-major, and how many matrices there are of each.
type Layout = ([bool; 2], [usize; 2]);

const LAYOUTS: [Layout; 5] = [
    ([false, false], [2, 2]),
    ([false, true], [2, 2]),
    ([true, false], [1, 2]),
    ([true, true], [2, 1]),
    ([true, true], [1, 1]),
];

/// M, K, N with tails in every direction.
const SIZE: (usize, usize, usize) = (200, 136, 264);
/// The same with a long sum.
const LONG: (usize, usize, usize) = (20, 2568, 72);

/// Operands along K and across it, of their own for each matrix and shared, with tails in every direction; then with every term, each
/// matrix having its own, added to what it holds; and f32. Tiles that cannot read an operand in place have it copied; each is told from
/// the other.
fn operands_of_every_layout_are_read_where_they_lie() -> Result<(), Failed> {
    // Such scales are exact for integers, and so is what is added.
    let exact = Terms { beta: 1.0, ..IN_PLACE };
    let runs: [(DType, Terms, &[Layout]); 3] = [
        (DType::F16, NO_TERMS, &LAYOUTS),
        (DType::Bf16, exact, &LAYOUTS[1..4]),
        (DType::F32, NO_TERMS, &LAYOUTS[3..4]),
    ];
    for (mode, device) in devices()? {
        for (tile, (input, terms, layouts)) in
            Tile::ALL.into_iter().flat_map(|tile| runs.map(|run| (tile, run)))
        {
            let reads = |across: [bool; 2]| {
                let access = match across {
                    [false, false] => Access::Aligned,
                    [false, true] => Access::WAcross,
                    [true, _] => Access::Across,
                };
                tile.serves(input, access)
            };
            // One portable tile shows what a copy looks like.
            let fused = LinearCase { terms, ..LinearCase::new(input, 1, 1, 1) }.fused();
            if !reads([false, true]) && tile != Tile::T64x64 || !tile.serves_fused(fused) {
                continue;
            }
            // Those for few rows read W across alone, and several of their blocks share a sum that is longer than their rings.
            let is_for_few_rows = !reads([true, true]) && tile != Tile::T64x64;
            let size = if is_for_few_rows { LONG } else { SIZE };
            let read = |layout: &&Layout| !is_for_few_rows || layout.0 == [false, true];
            for &(across, batch) in layouts.iter().filter(read) {
                let product = LinearCase {
                    tile: Some(tile),
                    activation: Activation::Relu,
                    terms,
                    precision: tile.precision(input),
                    data: Data::Integers,
                    ..LinearCase::new(input, size.0, size.1, size.2)
                };
                let case = MatmulCase { product, batch, across };
                let outcome = validate::matmul(&device, &case).map_err(|error| format!("{mode}: {error}"))?;
                let context = || format!("{mode}, {tile}, {input}, {}: {outcome:?}", case.options());
                assert!(outcome.passed() && outcome.exact, "{}", context());
                let [x, w] = across;
                let copied = [[false, false], [x, false], [false, w], [x, w]];
                let suffices = |copied: &[bool; 2]| reads([x && !copied[0], w && !copied[1]]);
                let copies = |copied: [bool; 2]| copied.into_iter().filter(|&copied| copied).count() as u32;
                let expected = copied.into_iter().filter(suffices).map(copies).min();
                assert_eq!(Some(outcome.implementation.copies()), expected, "{}", context());
            }
        }
    }
    Ok(())
}

pub(crate) fn trials() -> Vec<Trial> {
    let all = [
        [DType::F16, DType::F16],
        [DType::F16, DType::F32],
        [DType::Bf16, DType::Bf16],
        [DType::Bf16, DType::F32],
        [DType::F32, DType::F32],
    ];
    let by_types = all.map(|types| {
        let [input, output] = types;
        let name = format!(
            "slow::emulator::modes::every_kernel_of_{input}_{output}_gives_the_same_bits_in_every_mode"
        );
        crate::timed::trial(name, move || check_all(types))
    });
    let name = "slow::emulator::modes::blocks_that_work_through_several_tiles_are_right_in_every_mode";
    let persistent = crate::timed::trial(name, blocks_that_work_through_several_tiles_are_right);
    let name = "slow::emulator::modes::halves_have_the_bits_of_whole_tiles_in_every_mode";
    let halves = crate::timed::trial(name, halves_have_the_bits_of_whole_tiles);
    let name = "slow::emulator::modes::shared_sums_have_the_same_bits_in_every_mode";
    let shared = crate::timed::trial(name, shared_sums_have_the_same_bits);
    let name = "slow::emulator::modes::operands_of_every_layout_are_read_where_they_lie_in_every_mode";
    let layouts = crate::timed::trial(name, operands_of_every_layout_are_read_where_they_lie);
    let updates = [DType::F16, DType::Bf16].map(|dtype| {
        let name = format!(
            "slow::emulator::modes::every_kernel_of_updates_of_{dtype}_gives_the_same_bits_in_every_mode"
        );
        crate::timed::trial(name, move || updates_of(dtype))
    });
    let name = "slow::emulator::modes::attentions_give_the_same_bits_in_every_mode";
    let attentions = crate::timed::trial(name, attentions);
    let name = "slow::emulator::modes::attentions_of_keys_of_8_bits_give_the_same_bits_in_every_mode";
    let attentions_of_fp8 = crate::timed::trial(name, attentions_of_fp8);
    let name = "slow::emulator::modes::gradients_of_attentions_give_the_same_bits_in_every_mode";
    let of_attentions = crate::timed::trial(name, attention_gradients);
    let caches = crate::timed::trial("emulator::modes::caches_hold_the_same_bits_in_every_mode", caches);
    let name = "slow::emulator::modes::elementwise_rotary_and_embedding_give_the_same_bits_in_every_mode";
    let elements = crate::timed::trial(name, elements);
    let name = "slow::emulator::modes::optimizers_give_the_same_bits_in_every_mode";
    let optimizers = crate::timed::trial(name, optimizers);
    let name = "slow::emulator::modes::norms_give_the_same_bits_in_every_mode";
    let norms = crate::timed::trial(name, norms);
    let name = "slow::emulator::modes::gradients_of_layers_give_the_same_bits_in_every_mode";
    let gradients = crate::timed::trial(name, linear_gradients);
    let name = "slow::emulator::modes::softmaxes_give_the_same_bits_in_every_mode";
    let softmaxes = crate::timed::trial(name, softmaxes);
    let name = "slow::emulator::modes::losses_give_the_same_bits_in_every_mode";
    let losses = crate::timed::trial(name, losses);
    let single = [
        persistent,
        halves,
        shared,
        layouts,
        attentions,
        attentions_of_fp8,
        caches,
        elements,
        norms,
        softmaxes,
        losses,
        optimizers,
        gradients,
    ];
    let name = "slow::emulator::modes::gradients_of_updates_give_the_same_bits_in_every_mode";
    let of_updates = crate::timed::trial(name, update_gradients);
    by_types.into_iter().chain(single).chain([of_updates, of_attentions]).chain(updates).collect()
}
