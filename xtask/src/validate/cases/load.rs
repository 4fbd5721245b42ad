//! What runs under load: every operation, with every kernel that a device has by name where it has one, and the others by sizes that they are chosen for.
//!
//! On a GPU there are some hundred blocks of each, so that they share multiprocessors, with sums that go round a ring of stages
//! several times and end within a step of it. Where a stage is read too late, the zeros behind the last columns show. In the
//! emulator the sizes are small.

use warpsmith::cpu::{CrossEntropy, Elementwise};
use warpsmith::layers::CacheFormat;
use warpsmith::ops::attention::Way as AttentionWay;
use warpsmith::ops::cross_entropy::Reduction;
use warpsmith::ops::gemm::{Access, Fused, Tile};
use warpsmith::ops::peer::{ExpertBlocks, ExpertFormat, Gate};
use warpsmith::ops::update::Way;
use warpsmith::ops::{Activation, Pairing, Precision};
use warpsmith::optim::SecondMoment;
use warpsmith::{DType, Device, DeviceKind};
use warpsmith_lab::cases::PeerSizes;
use warpsmith_lab::cases::{
    AdamWCase, AdamWRows, AttentionCase, CodesPer, CrossEntropyCase, Data, ElementwiseCase, EmbeddingCase,
    ExpertCase, KeyScales, KvCacheCase, LinearBackwardCase, LinearCase, MaskRows, MatmulBackwardCase,
    MatmulCase, NormCase, NormKind, Placement, Residence, RotaryCase, RoutingCase, RoutingKind, ScaleKind,
    ScaledBackwardCase, ScaledCase, Scales, SlopesFrom, SoftmaxCase, Terms, TopkCase, UpdateBackwardCase,
    UpdateCase,
};
use warpsmith_lab::validate::load::Work;

use super::routing::blocks;
use super::{TYPES, Target};
use crate::validate::Operation;

const ELEMENTS: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

/// M, K and N on a GPU.
const ON_GPU: (usize, usize, usize) = (333, 1000, 640);
/// Tiles of a large output: more than an H100 has multiprocessors, and blocks go through several.
const MANY_TILES: usize = 300;
/// Elements of a large output at most.
const MOST_ELEMENTS: usize = 8 << 20;

/// Every term that there is beside the bias, onto what Y holds.
const ALL_TERMS: Terms = Terms {
    row_scale: Scales::Each,
    column_scale: Scales::Each,
    beta: 0.5,
    in_place: true,
    mask: true,
    preactivation: true,
    beside: WHOLE,
};
/// The same of a residual in memory of its own.
const APART: Terms = Terms { in_place: false, ..ALL_TERMS };
const MASK: Terms =
    Terms { row_scale: Scales::None, column_scale: Scales::None, beta: 0.0, preactivation: false, ..APART };
const WHOLE: Placement = Placement { before: 0, after: 0 };

/// The works of an operation, or of all, for a device.
pub(in super::super) fn load(device: &Device, op: Option<Operation>, seed: u64) -> Vec<Work> {
    works(Target::of(device), device.kind() != DeviceKind::Cpu, op, seed)
}

/// The same for a target. On the CPU, which has no kernels, a case is the same with every tile.
pub(in super::super) fn works(
    target: Target,
    has_kernels: bool,
    op: Option<Operation>,
    seed: u64,
) -> Vec<Work> {
    let mut works = Vec::new();
    let mut number = seed.wrapping_mul(1 << 20);
    let mut next = || {
        number = number.wrapping_add(1);
        number
    };
    let asked = |operation| op.is_none_or(|op| op == operation);
    if asked(Operation::Linear) {
        let cases = if has_kernels { linear(target) } else { on_cpu() };
        works.extend(cases.into_iter().map(|case| Work::linear(LinearCase { seed: next(), ..case })));
    }
    if asked(Operation::Matmul) {
        let cases = if has_kernels { matmul(target) } else { Vec::new() };
        for mut case in cases.into_iter().chain(chosen(target)) {
            case.product.seed = next();
            works.push(Work::matmul(case));
        }
    }
    if asked(Operation::LinearBackward) && has_kernels {
        let cases = linear_gradients(target).into_iter();
        works.extend(cases.map(|case| Work::linear_backward(LinearBackwardCase { seed: next(), ..case })));
    }
    if asked(Operation::MatmulBackward) && has_kernels {
        for mut case in matmul_gradients(target) {
            case.product.product.seed = next();
            works.push(Work::matmul_backward(case));
        }
    }
    if asked(Operation::LinearScaledBackward) && has_kernels {
        for mut case in scaled_gradients(target) {
            case.product.seed = next();
            works.push(Work::scaled_backward(case));
        }
    }
    if asked(Operation::UpdateBackward) && has_kernels {
        for mut case in update_gradients(target) {
            case.update.seed = next();
            works.push(Work::update_backward(case));
        }
    }
    if asked(Operation::LinearScaled) {
        let cases = scaled(target).into_iter();
        let cases = cases.filter(|case| has_kernels || case.tile == Some(Tile::Fp8Portable64x64));
        works.extend(cases.map(|case| Work::linear_scaled(ScaledCase { seed: next(), ..case })));
    }
    if asked(Operation::Update) {
        let cases = updates(target).into_iter();
        works.extend(cases.map(|case| Work::generated_update(UpdateCase { seed: next(), ..case })));
    }
    if asked(Operation::Attention) {
        let cases = attentions(target, has_kernels).into_iter();
        works.extend(cases.map(|case| Work::attention(AttentionCase { seed: next(), ..case })));
    }
    if asked(Operation::AttentionBackward) && has_kernels {
        for case in attention_gradients(target) {
            works.push(Work::attention_backward(AttentionCase { seed: next(), ..case }));
        }
    }
    if asked(Operation::Topk) {
        works
            .extend(selections(target).into_iter().map(|case| Work::topk(TopkCase { seed: next(), ..case })));
    }
    if asked(Operation::Norm) && has_kernels {
        works.extend(norms(target).into_iter().map(|case| Work::norm(NormCase { seed: next(), ..case })));
    }
    if asked(Operation::Softmax) && has_kernels {
        let cases = softmaxes(target).into_iter();
        works.extend(cases.map(|case| Work::softmax(SoftmaxCase { seed: next(), ..case })));
    }
    if asked(Operation::CrossEntropy) && has_kernels {
        let cases = losses(target).into_iter();
        works.extend(cases.map(|case| Work::cross_entropy(CrossEntropyCase { seed: next(), ..case })));
    }
    if asked(Operation::Adamw) && has_kernels {
        let cases = optimizers(target).into_iter();
        works.extend(cases.map(|case| Work::adamw(AdamWCase { seed: next(), ..case })));
    }
    if asked(Operation::Elementwise) && has_kernels {
        let cases = functions(target).into_iter();
        works.extend(cases.map(|case| Work::elementwise(ElementwiseCase { seed: next(), ..case })));
    }
    if asked(Operation::Rotary) && has_kernels {
        let cases = rotations(target).into_iter();
        works.extend(cases.map(|case| Work::rotary(RotaryCase { seed: next(), ..case })));
    }
    if asked(Operation::KvCache) && has_kernels {
        works.extend(
            caches(target).into_iter().map(|case| Work::kv_cache(KvCacheCase { seed: next(), ..case })),
        );
    }
    if asked(Operation::Embedding) && has_kernels {
        let cases = embeddings(target).into_iter();
        works.extend(cases.map(|case| Work::embedding(EmbeddingCase { seed: next(), ..case })));
    }
    if asked(Operation::ProductKeyTopk) {
        let cases = retrievals(target).into_iter();
        works.extend(cases.map(|case| Work::product_key_topk(RoutingCase { seed: next(), ..case })));
    }
    if asked(Operation::ProductKeyTopkBackward) && has_kernels {
        let cases = retrieval_gradients(target).into_iter();
        works.extend(cases.map(|case| Work::product_key_gradients(RoutingCase { seed: next(), ..case })));
    }
    if asked(Operation::ExpertMlp) {
        let cases = experts(target, has_kernels).into_iter();
        works.extend(cases.map(|case| Work::experts(ExpertCase { seed: next(), ..case })));
    }
    if asked(Operation::ExpertMlpBackward) && has_kernels {
        let cases = expert_gradients(target).into_iter();
        works.extend(cases.map(|case| Work::expert_gradients(ExpertCase { seed: next(), ..case })));
    }
    if asked(Operation::Repack) {
        works.extend(copies(target));
    }
    if op.is_none() {
        works.extend(layers(target, next()));
    }
    works
}

/// A linear operation for each pair of types.
fn on_cpu() -> Vec<LinearCase> {
    let case =
        |(input, output)| LinearCase { output, terms: ALL_TERMS, ..LinearCase::new(input, 33, 70, 40) };
    TYPES.map(case).to_vec()
}

/// Every tile with every access: few tiles, in part with terms, and on a GPU many tiles.
fn linear(target: Target) -> Vec<LinearCase> {
    let mut cases = Vec::new();
    let accesses = [Access::Aligned, Access::Words, Access::Dense, Access::Strided];
    for (input, output) in TYPES {
        for tile in Tile::ALL.into_iter().filter(|tile| runs(*tile, [input, output], target)) {
            let case = |(m, k, n)| LinearCase {
                output,
                tile: Some(tile),
                precision: tile.precision(input),
                ..LinearCase::new(input, m, k, n)
            };
            for access in accesses.into_iter().filter(|&access| tile.serves(input, access)) {
                let plain = case(size(access, tile, input, target));
                if access == Access::Aligned {
                    for (fused, terms) in
                        [(Fused::Terms, ALL_TERMS), (Fused::Terms, APART), (Fused::Mask, MASK)]
                    {
                        // In the emulator it is one of the three for each tile.
                        let often = target.on_gpu || terms == ALL_TERMS && input != DType::F16;
                        if often && tile.serves_fused(fused) {
                            cases.push(LinearCase { terms, ..plain.clone() });
                        }
                    }
                    if target.on_gpu && input == output && input != DType::F16 {
                        cases.push(case(large(tile)));
                    }
                }
                if tile.shares() {
                    cases.push(LinearCase { parts: Some(5), ..plain.clone() });
                }
                cases.push(LinearCase { parts: tile.shares().then_some(1), ..plain });
            }
        }
    }
    cases
}

fn runs(tile: Tile, [input, output]: [DType; 2], target: Target) -> bool {
    tile.runs_on(target.compute_capability) && tile.serves_output(input, output)
}

/// M, K and N of few tiles, of which rows start as an access takes them.
fn size(access: Access, tile: Tile, input: DType, target: Target) -> (usize, usize, usize) {
    let (rows, columns) = tile.shape();
    match (access, target.on_gpu) {
        (Access::Aligned, true) => ON_GPU,
        // A tail, and more columns than one stage has.
        (Access::Aligned, false) => (rows as usize / 2 + 3, 136, columns as usize + 8),
        // Rows that start at multiples of 4 bytes.
        (Access::Words, true) => (ON_GPU.0, ON_GPU.1 + 4 / input.size(), ON_GPU.2),
        (Access::Words, false) => (20, 136 + 4 / input.size(), 70),
        (Access::Dense, true) => (20_000, 101, 99),
        (Access::Dense, false) => (97, 37, 61),
        (_, true) => (513, 301, 255),
        (_, false) => (33, 65, 45),
    }
}

/// M, K and N of many tiles, the last of which are cut.
fn large(tile: Tile) -> (usize, usize, usize) {
    let (rows, columns) = tile.shape();
    let (rows, columns) = (rows as usize, columns as usize);
    let count = (MOST_ELEMENTS / (rows * columns)).min(MANY_TILES);
    let along_m = ((count * columns) as f64 / rows as f64).sqrt().round().max(1.0) as usize;
    let along_n = count.div_ceil(along_m);
    (along_m * rows - 7, ON_GPU.1, along_n * columns - 8)
}

/// Every tile with every layout that it has a kernel for but the usual one, single and in batches.
fn matmul(target: Target) -> Vec<MatmulCase> {
    let layouts = [
        (Access::WAcross, [false, true]),
        (Access::Across, [true, false]),
        (Access::Across, [true, true]),
        (Access::Strided, [true, true]),
    ];
    let mut cases = Vec::new();
    for (input, output) in TYPES {
        for tile in Tile::ALL.into_iter().filter(|tile| runs(*tile, [input, output], target)) {
            for (_, across) in layouts.into_iter().filter(|&(access, _)| tile.serves(input, access)) {
                let (rows, columns) = tile.shape();
                let (m, k, n) = match target.on_gpu {
                    true => (336, 1000, 640),
                    false => ((rows as usize / 2).next_multiple_of(8), 136, columns as usize + 8),
                };
                let product = LinearCase {
                    output,
                    tile: Some(tile),
                    precision: tile.precision(input),
                    activation: Activation::None,
                    bias: false,
                    ..LinearCase::new(input, m, k, n)
                };
                let batch = if target.on_gpu { [2, 2] } else { [1, 1] };
                cases.push(MatmulCase { product, batch, across });
            }
        }
    }
    cases
}

/// Products for which the kernel is chosen, among them those whose operands are copied first.
fn chosen(target: Target) -> Vec<MatmulCase> {
    let mut cases = Vec::new();
    for (input, output) in TYPES {
        let (m, k, n) = if target.on_gpu { (333, 999, 517) } else { (33, 65, 37) };
        let activation = Activation::None;
        let product = LinearCase { output, bias: false, activation, ..LinearCase::new(input, m, k, n) };
        for (batch, across) in [([1, 1], [true, true]), ([1, 3], [false, true]), ([2, 2], [true, false])] {
            cases.push(MatmulCase { product: product.clone(), batch, across });
        }
        if input == DType::F32 {
            let product = LinearCase { precision: Precision::Tf32, ..product };
            cases.push(MatmulCase { product, batch: [2, 1], across: [false, false] });
        }
    }
    cases
}

/// Every tile for 8-bit types, with terms and without, and operands of both types.
fn scaled(target: Target) -> Vec<ScaledCase> {
    let (m, k, n) = if target.on_gpu { (333, 1008, 640) } else { (70, 272, 144) };
    let mut cases = Vec::new();
    for output in ELEMENTS {
        for tile in Tile::of_input(DType::F8E4M3).filter(|tile| tile.runs_on(target.compute_capability)) {
            let plain = ScaledCase { output, tile: Some(tile), ..ScaledCase::new(m, k, n) };
            let terms = Terms { row_scale: Scales::None, column_scale: Scales::None, ..ALL_TERMS };
            cases.push(ScaledCase { terms, ..plain.clone() });
            if target.on_gpu {
                let many = ScaledCase { output, tile: Some(tile), ..ScaledCase::new(2041, k, 2168) };
                cases.push(ScaledCase { terms: Terms { in_place: false, ..terms }, ..many.clone() });
                cases.push(many);
            }
            if tile.shares() {
                cases.push(ScaledCase { parts: Some(3), ..plain.clone() });
            }
            cases.push(ScaledCase { x_type: DType::F8E5M2, ..plain.clone() });
            cases.push(plain);
        }
    }
    cases
}

/// Updates alone and with a linear operation, of few ranks and many, few rows and many.
fn updates(target: Target) -> Vec<UpdateCase> {
    let mut sizes =
        vec![[65, 136, 72, 4], [65, 136, 72, 8], [130, 72, 136, 64], [9, 200, 72, 8], [128, 136, 128, 128]];
    if target.on_gpu {
        // The first two ran into a stage that was filled again while it was read.
        sizes = vec![
            [333, 1000, 640, 4],
            [333, 1000, 640, 8],
            [333, 1000, 641, 8],
            [333, 1000, 640, 64],
            [3, 1000, 768, 8],
            [16, 1000, 640, 16],
            [128, 768, 768, 8],
            [4096, 768, 768, 8],
            [2041, 1000, 2304, 8],
            [2041, 1000, 2304, 16],
            [2041, 1000, 2304, 64],
            [2041, 1000, 2304, 128],
            [1000, 1000, 1537, 24],
            [5120, 2048, 3072, 8],
            [16_384, 768, 768, 8],
        ];
    }
    let mut cases = Vec::new();
    for dtype in ELEMENTS {
        let case = |[m, k, n, rank]: [usize; 4]| UpdateCase::new(dtype, m, k, n, rank);
        for &size in &sizes {
            cases.extend([case(size), case(size).alone(false)]);
        }
        if !target.on_gpu {
            // So many rows that blocks with few of them would take turns, which another kernel is for.
            cases.push(case([8192, 16, 16, 48]).alone(false));
        }
        let first = case(sizes[0]);
        cases.push(first.clone().alone(true));
        cases.push(UpdateCase {
            beta: 0.5,
            in_place: true,
            mask: true,
            preactivation: true,
            activation: Activation::Relu,
            ..first.clone()
        });
        // Every way, with rows of X that are aligned and, where codes are applied to f32 sums, with others.
        let has_way = |way: &Way| dtype != DType::F32 || matches!(way, Way::Kernel | Way::Products);
        for way in Way::all().into_iter().filter(has_way) {
            let case = UpdateCase { way: Some(way), ..case([130, 136, 200, 12]) };
            cases.push(if matches!(way, Way::Joined(_) | Way::JoinedInParts(_)) {
                case
            } else {
                case.alone(false)
            });
        }
        // One kernel where two products would be taken: of many rows alone, and with a residual.
        let by_kernel = |size| UpdateCase { way: Some(Way::Kernel), ..case(size) };
        cases.push(by_kernel([2041, 1000, 2304, 8]).alone(false));
        cases.push(UpdateCase { beta: 0.5, ..by_kernel([130, 136, 200, 12]) });
        let x = Placement { before: 1, after: 0 };
        cases.push(UpdateCase { way: Some(Way::Products), x, ..first.clone() }.alone(false));
        cases.push(UpdateCase { ranks: vec![8, 3, 5, 16], codes: CodesPer::Mixed, ..first });
    }
    cases
}

fn selections(target: Target) -> Vec<TopkCase> {
    let sizes = if target.on_gpu {
        vec![[2048, 1000, 16], [2048, 1000, 64], [64, 50_257, 50], [1, 100_003, 7]]
    } else {
        vec![[5, 1000, 16], [3, 500, 64]]
    };
    let of_type = |dtype| {
        sizes.iter().map(move |&[rows, columns, k]| TopkCase {
            dtype,
            rows,
            columns,
            k,
            data: Data::Uniform,
            seed: 0,
        })
    };
    let all = ELEMENTS.into_iter().flat_map(of_type).collect();
    if target.compute_capability < (8, 0) { Vec::new() } else { all }
}

/// Rows and columns for every kernel of rows: of a part of a warp, of a block, of a cluster and of several rounds, aligned and not.
fn of_rows(target: Target) -> &'static [[usize; 2]] {
    if target.on_gpu {
        &[[4096, 120], [2048, 4096], [300, 1001], [16, 40_000], [3, 70_001], [1, 600_000]]
    } else {
        &[[9, 40], [5, 77], [2, 9000], [1, 9001]]
    }
}

/// Gradients of linear layers by every kernel: of one strip of rows and of several, aligned and not, with an activation and without.
fn linear_gradients(target: Target) -> Vec<LinearBackwardCase> {
    let sizes = if target.on_gpu {
        [[60, 512, 2048], [2041, 768, 1000], [1003, 100, 1001], [8192, 1024, 1024]]
    } else {
        [[9, 16, 264], [70, 8, 264], [70, 8, 131], [300, 8, 24]]
    };
    let mut cases = Vec::new();
    for (input, output) in TYPES {
        for (number, size) in sizes.into_iter().enumerate() {
            let (activation, slopes) = [
                (Activation::None, SlopesFrom::Preactivation),
                (Activation::GeluTanh, SlopesFrom::Preactivation),
                (Activation::Relu, SlopesFrom::Mask),
                (Activation::Silu, SlopesFrom::Preactivation),
            ][number];
            let case = LinearBackwardCase::new(input, activation, size);
            let gradient = if number % 2 == 0 { input } else { DType::F32 };
            cases.push(LinearBackwardCase { output, gradient, slopes, dz: number == 2, ..case });
        }
    }
    if target.compute_capability < (8, 0) { Vec::new() } else { cases }
}

/// Gradients of matrix products: of as many matrices of each operand, and of one for all, summed in place and after copies.
fn matmul_gradients(target: Target) -> Vec<MatmulBackwardCase> {
    let [m, k, n] = if target.on_gpu { [500, 512, 777] } else { [20, 16, 37] };
    let mut cases = Vec::new();
    for input in ELEMENTS {
        for (number, batch) in [[1, 1], [3, 3], [4, 1], [1, 4]].into_iter().enumerate() {
            let output = if number % 2 == 0 { input } else { DType::F32 };
            let activation = Activation::None;
            let product = LinearCase { output, bias: false, activation, ..LinearCase::new(input, m, k, n) };
            let across = [number == 3, number == 2];
            cases.push(MatmulBackwardCase { product: MatmulCase { product, batch, across }, adds: false });
        }
    }
    if target.compute_capability < (8, 0) { Vec::new() } else { cases }
}

/// Gradients of scaled linear layers: products of 8-bit numbers and of widened ones, of every type of dy.
fn scaled_gradients(target: Target) -> Vec<ScaledBackwardCase> {
    let [m, k, n] = if target.on_gpu { [1024, 784, 1000] } else { [40, 32, 50] };
    let mut cases = Vec::new();
    for (number, dy_type) in
        [DType::F8E5M2, DType::F8E4M3, DType::Bf16, DType::F16, DType::F32].into_iter().enumerate()
    {
        for scale in [ScaleKind::Tensor, ScaleKind::Rows] {
            let case = ScaledBackwardCase::new(m, k, n);
            let output = [DType::Bf16, DType::F32][number % 2];
            let product = ScaledCase { output, x_scale: scale, w_scale: scale, ..case.product.clone() };
            cases.push(ScaledBackwardCase { product, dy_type, ..case });
        }
    }
    if target.compute_capability < (8, 0) { Vec::new() } else { cases }
}

/// Gradients of generated updates: with codes of every kind, alone and onto linear operations, of one update and several.
fn update_gradients(target: Target) -> Vec<UpdateBackwardCase> {
    let sizes = if target.on_gpu {
        [[4096, 768, 768], [2048, 1000, 641], [5120, 512, 1024]]
    } else {
        [[64, 24, 40], [300, 16, 37], [1200, 8, 16]]
    };
    let mut cases = Vec::new();
    for dtype in ELEMENTS {
        for (number, [m, k, n]) in sizes.into_iter().enumerate() {
            let update = UpdateCase {
                ranks: [vec![8], vec![16, 3], vec![4, 8, 8]][number].clone(),
                codes: [CodesPer::Token, CodesPer::Sequence, CodesPer::Mixed][number],
                sequence: m / 2,
                bias: false,
                activation: [Activation::None, Activation::Silu, Activation::Relu][number],
                beta: 1.0,
                ..UpdateCase::new(dtype, m, k, n, 1)
            };
            let gradient = if number % 2 == 0 { dtype } else { DType::F32 };
            let case = UpdateBackwardCase { gradient, ..UpdateBackwardCase::new(update.clone()) };
            let slopes = if number == 2 { SlopesFrom::Mask } else { SlopesFrom::Preactivation };
            cases.push(UpdateBackwardCase { slopes, ..case.clone() });
            cases.push(UpdateBackwardCase { update: update.alone(false), ..case });
        }
    }
    if target.compute_capability < (8, 0) { Vec::new() } else { cases }
}

/// Norms and their gradients by every kernel.
fn norms(target: Target) -> Vec<NormCase> {
    let of_type = |dtype| {
        of_rows(target).iter().enumerate().map(move |(number, &[rows, columns])| NormCase {
            weight: Some(dtype),
            is_centered: number % 2 == 0,
            ..NormCase::new(dtype, rows, columns)
        })
    };
    let all = ELEMENTS.into_iter().flat_map(of_type).collect();
    if target.compute_capability < (8, 0) { Vec::new() } else { all }
}

/// Softmax and its gradient by every kernel.
fn softmaxes(target: Target) -> Vec<SoftmaxCase> {
    let of_type = |dtype| {
        let masks = [MaskRows::All, MaskRows::None, MaskRows::One].into_iter().cycle();
        of_rows(target).iter().zip(masks).map(move |(&[rows, columns], mask)| SoftmaxCase {
            scale: 0.75,
            mask,
            ..SoftmaxCase::new(dtype, rows, columns)
        })
    };
    let all = ELEMENTS.into_iter().flat_map(of_type).collect();
    if target.compute_capability < (8, 0) { Vec::new() } else { all }
}

/// Losses and their gradient by every kernel, of so many rows, too, that they are added up in parts.
fn losses(target: Target) -> Vec<CrossEntropyCase> {
    let of_type = |dtype| {
        let reductions = [Reduction::Mean, Reduction::Sum, Reduction::None].into_iter().cycle();
        let sizes = of_rows(target).iter().copied().chain([[5000, 24]]).zip(reductions).enumerate();
        sizes.map(move |(number, ([rows, columns], reduction))| CrossEntropyCase {
            labels: [DType::I64, DType::I32, DType::U32][number % 3],
            options: match number % 2 {
                0 => CrossEntropy { smoothing: 0.125, z_loss: 1e-3, soft_cap: Some(3.0) },
                _ => CrossEntropy::default(),
            },
            reduction,
            ..CrossEntropyCase::new(dtype, rows, columns)
        })
    };
    let all = ELEMENTS.into_iter().flat_map(of_type).collect();
    if target.compute_capability < (8, 0) { Vec::new() } else { all }
}

/// Steps of an optimiser, with the norm of its gradients and without, aligned and not; of whole tensors, of rows and of experts.
fn optimizers(target: Target) -> Vec<AdamWCase> {
    let sizes = if target.on_gpu { [[1, 1_000_000], [40, 20_001]] } else { [[1, 4200], [3, 77]] };
    let mut cases = Vec::new();
    for (dtype, gradient) in ELEMENTS.into_iter().zip([DType::F16, DType::F32, DType::Bf16]) {
        for [tensors, length] in sizes {
            let plain = AdamWCase { tensors, ..AdamWCase::new(dtype, gradient, length) };
            let (max_norm, loss_scale) = (Some(0.5), Some(1024.0));
            cases.extend([plain, AdamWCase { before: [1, 3], max_norm, loss_scale, ..plain }]);
        }
        let [rows, columns, used] = if target.on_gpu { [2000, 132, 300] } else { [40, 20, 9] };
        for rows_of in [
            AdamWRows::Some { columns, used },
            AdamWRows::Experts { inputs: columns, hidden: 2, gated: true, used },
        ] {
            let max_norm = Some(0.5);
            let plain = AdamWCase { rows: rows_of, max_norm, ..AdamWCase::new(dtype, gradient, rows) };
            cases.extend([plain, AdamWCase { second_moment: SecondMoment::PerRow, ..plain }]);
        }
    }
    if target.compute_capability < (8, 0) { Vec::new() } else { cases }
}

/// Every function of elements, aligned and not.
fn functions(target: Target) -> Vec<ElementwiseCase> {
    let [aligned, odd] = if target.on_gpu { [[2041, 1000], [1003, 1001]] } else { [[9, 72], [5, 77]] };
    // Rows without gaps are one, of which all but the end is aligned.
    let sizes = [(aligned, 0), (odd, 0), (odd, 1)];
    let functions = [
        Elementwise::Activation(Activation::None),
        Elementwise::Activation(Activation::GeluTanh),
        Elementwise::Add,
        Elementwise::Multiply,
        Elementwise::Gated(Activation::Silu),
        Elementwise::ActivationGradient(Activation::GeluErf),
        Elementwise::GatedGradient(Activation::Silu),
    ];
    let mut cases = Vec::new();
    for (dtype, other) in ELEMENTS.into_iter().zip([DType::F32, DType::Bf16, DType::F16]) {
        for (number, function) in functions.into_iter().enumerate() {
            for ([rows, columns], after) in sizes {
                let other = if number % 2 == 0 { other } else { dtype };
                let placement = Placement { before: 0, after };
                let case = ElementwiseCase::new(function, dtype, rows, columns);
                cases.push(ElementwiseCase { other, placement, ..case });
            }
        }
    }
    if target.compute_capability < (8, 0) { Vec::new() } else { cases }
}

/// Rotations of whole heads and of parts of them, aligned and not.
fn rotations(target: Target) -> Vec<RotaryCase> {
    let (batch, length, heads) = if target.on_gpu { (2, 1000, 16) } else { (2, 9, 3) };
    let mut cases = Vec::new();
    for dtype in ELEMENTS {
        for (width, rotary) in [(128, 128), (80, 48), (38, 34)] {
            let case = RotaryCase { rotary, ..RotaryCase::new(dtype, [batch, length, heads, width]) };
            cases.extend([case, RotaryCase { pairing: Pairing::Neighbours, offset: None, ..case }]);
        }
    }
    if target.compute_capability < (8, 0) { Vec::new() } else { cases }
}

/// Caches of every type and format, whose new keys are whole chunks and not.
fn caches(target: Target) -> Vec<KvCacheCase> {
    let tokens = if target.on_gpu { [900, 1] } else { [9, 1] };
    let mut cases = Vec::new();
    for dtype in ELEMENTS {
        for format in [CacheFormat::Same, CacheFormat::F8E4M3, CacheFormat::F8E5M2] {
            if dtype == DType::F32 && format != CacheFormat::Same {
                continue;
            }
            let case = KvCacheCase::new(dtype, format, [3, tokens[0] + 4], tokens, [64, 40]);
            cases.extend([case, KvCacheCase { gap: 3, ..case }]);
        }
    }
    if target.compute_capability < (8, 0) { Vec::new() } else { cases }
}

/// Look-ups with their gradients, of few ids and of many, aligned and not.
fn embeddings(target: Target) -> Vec<EmbeddingCase> {
    let sizes = if target.on_gpu {
        [[50_257, 768, 8192], [32_000, 101, 20_000]]
    } else {
        [[900, 32, 70], [300, 21, 50]]
    };
    let mut cases = Vec::new();
    for dtype in ELEMENTS {
        for (number, size) in sizes.into_iter().enumerate() {
            let case = EmbeddingCase { is_wide: number == 0, ..EmbeddingCase::new(dtype, size) };
            cases.extend([case, EmbeddingCase { different: 7, ..case }]);
        }
    }
    if target.compute_capability < (8, 0) { Vec::new() } else { cases }
}

/// Retrievals with every kind of blocks.
fn retrievals(target: Target) -> Vec<RoutingCase> {
    let tokens = if target.on_gpu { [300, 80] } else { [9, 5] };
    let mut cases = Vec::new();
    for dtype in ELEMENTS {
        let case = |tokens: usize, columns, keys, k| RoutingCase {
            heads: 3,
            ..RoutingCase::new(dtype, [tokens, columns], keys, k)
        };
        for blocks in blocks(dtype, target) {
            let sizes = [case(tokens[0], 40, [356, 40], 16), case(tokens[1], 64, [1100, 128], 32)];
            let keep = if target.on_gpu { 2 } else { 1 };
            cases.extend(
                sizes.into_iter().take(keep).map(|case| RoutingCase { blocks: Some(blocks), ..case }),
            );
        }
        cases.push(case(tokens[1], 40, [100, 33], 64));
    }
    if target.compute_capability < (8, 0) { Vec::new() } else { cases }
}

/// Every width of a kernel, many rows and few, with operands that change scores and without, and keys in pages.
fn attentions(target: Target, has_kernels: bool) -> Vec<AttentionCase> {
    let mut cases = Vec::new();
    if has_kernels && target.compute_capability < (8, 0) {
        return cases;
    }
    for dtype in [DType::F16, DType::Bf16, DType::F32] {
        // Wider ones in f32 take more shared memory than every GPU has.
        let has_shared = matches!(target.compute_capability, (8, 0 | 7) | (9..=11, _));
        let most = if dtype == DType::F32 && has_kernels && !has_shared { 128 } else { 256 };
        for width in [40, 96, 128, 192, 256].into_iter().filter(|&width| width <= most) {
            for (rows, sinks, way, page_size) in [
                (70, false, Some(AttentionWay::Hopper), None),
                (70, true, Some(AttentionWay::Hopper), None),
                (190, false, Some(AttentionWay::Hopper), None),
                (70, false, Some(AttentionWay::Split), None),
                (70, false, None, Some(30)),
                (3, true, None, None),
                (3, true, None, Some(30)),
            ] {
                let case = AttentionCase::new(dtype, [2, rows, 390], [2, 3], width);
                cases.push(AttentionCase { sinks, way, page_size, ..case });
            }
            if dtype == DType::F32 || ![40, 128, 256].contains(&width) {
                continue;
            }
            for (rows, way, page_size, keys_dtype) in [
                (70, None, None, DType::F8E4M3),
                (70, Some(AttentionWay::Split), Some(30), DType::F8E5M2),
                (3, None, Some(30), DType::F8E4M3),
                (3, None, None, DType::F8E5M2),
            ] {
                let key_scales = [Some(KeyScales::OfHeads); 2];
                let keys_dtype = Some(keys_dtype);
                let case = AttentionCase::new(dtype, [2, rows, 390], [2, 3], width);
                cases.push(AttentionCase { way, page_size, keys_dtype, key_scales, ..case });
            }
        }
    }
    cases
}

/// Gradients by every kernel: on Hopper by its own and by those for every GPU.
fn attention_gradients(target: Target) -> Vec<AttentionCase> {
    let mut cases = Vec::new();
    if target.compute_capability < (8, 0) {
        return cases;
    }
    for dtype in [DType::F16, DType::Bf16, DType::F32] {
        let most = super::attention::widest_gradients(dtype, &target.emulator());
        for width in [40, 96, 128, 192, 256].into_iter().filter(|&width| width <= most) {
            for (rows, sinks, way) in
                [(70, true, None), (190, false, None), (190, true, Some(AttentionWay::Whole))]
            {
                let case = AttentionCase::new(dtype, [2, rows, 150], [2, 3], width);
                cases.push(AttentionCase { sinks, way, ..case });
            }
        }
    }
    cases
}

/// Gradients of retrievals, of every type.
fn retrieval_gradients(target: Target) -> Vec<RoutingCase> {
    let (tokens, keys, k) = if target.on_gpu { ([300, 512], [256, 128], 16) } else { ([5, 40], [33, 20], 6) };
    let cases = ELEMENTS.into_iter().flat_map(|dtype| {
        let case = RoutingCase::new(dtype, tokens, keys, k);
        let own = RoutingCase {
            per_head: true,
            bias: true,
            affine: true,
            norm: NormKind::Rms,
            gate: Gate::Sigmoid,
            ..case.clone()
        };
        [case, own]
    });
    if target.compute_capability < (8, 0) { Vec::new() } else { cases.collect() }
}

/// Experts of every format and type, by every kind of blocks.
fn experts(target: Target, has_kernels: bool) -> Vec<ExpertCase> {
    let mut cases = Vec::new();
    for format in ExpertFormat::ALL {
        for dtype in ELEMENTS {
            let (tokens, d, sizes, experts) =
                if target.on_gpu { (256, 1000, [4, 8], 512) } else { (5, 100, [3, 4], 61) };
            let plain = ExpertCase { experts, ..ExpertCase::new(dtype, format, tokens, d, sizes) };
            let mut kinds = vec![ExpertBlocks::One];
            if has_kernels && target.compute_capability >= (9, 0) {
                kinds.push(ExpertBlocks::Cluster(4));
            }
            if has_kernels && !format.is_scaled() {
                kinds.push(ExpertBlocks::Sorted);
            }
            for blocks in kinds {
                let plain = ExpertCase { blocks: Some(blocks), ..plain.clone() };
                if target.on_gpu {
                    let (routing, residence) = (RoutingKind::Skewed, Residence::Mixed);
                    cases.push(ExpertCase { routing, residence, gated: true, ..plain.clone() });
                }
                cases.push(plain);
            }
        }
    }
    cases
}

/// Gradients of experts of every format and type, of rows that are aligned and that are not.
fn expert_gradients(target: Target) -> Vec<ExpertCase> {
    let mut cases = experts(target, false);
    for case in &mut cases {
        // The next format has the other kind.
        if ExpertFormat::ALL.iter().position(|format| *format == case.format).is_some_and(|at| at % 2 == 0) {
            let columns = if target.on_gpu { 1024 } else { 104 };
            (case.d, case.o) = (columns, columns);
        } else {
            let beside = Placement { before: 1, after: 2 };
            (case.x, case.y) = (beside, beside);
        }
    }
    cases
}

/// Copies by every kernel: of words of every width, and transposed.
fn copies(target: Target) -> Vec<Work> {
    let size = if target.on_gpu { [1000, 999] } else { [33, 45] };
    let mut works = Vec::new();
    for dtype in [DType::U8, DType::F16, DType::F32] {
        for before in [1, 2, 4, 8].map(|bytes: usize| bytes.div_ceil(dtype.size())) {
            // Rows start at odd multiples of `before`, so that no wider word is chosen, and are whole words.
            let columns = size[1] / before * before;
            let after = (2 * before - columns % (2 * before)) % (2 * before);
            let placement = Placement { before, after };
            works.push(Work::repack(dtype, [size[0], columns], placement, false));
        }
        works.push(Work::repack(dtype, size, Placement { before: 1, after: 2 }, true));
    }
    works
}

/// PEER layers with the experts on the device and behind a cache.
fn layers(target: Target, seed: u64) -> Vec<Work> {
    let small = PeerSizes {
        tokens: 6,
        input: 24,
        output: 16,
        heads: 2,
        top_k: 3,
        query: 8,
        sub_keys: 6,
        dtype: DType::Bf16,
        format: ExpertFormat::Bf16,
    };
    let large = PeerSizes { input: 512, output: 512, query: 128, sub_keys: 64, ..PeerSizes::reference(300) };
    let sizes = if target.on_gpu { large } else { small };
    let formats = [
        (DType::Bf16, ExpertFormat::Bf16),
        (DType::F16, ExpertFormat::Int8),
        (DType::F32, ExpertFormat::F32),
    ];
    let all = formats.into_iter().flat_map(|(dtype, format)| {
        [false, true].map(|is_cached| Work::peer(PeerSizes { dtype, format, ..sizes }, is_cached, seed))
    });
    if target.compute_capability < (8, 0) { Vec::new() } else { all.collect() }
}
