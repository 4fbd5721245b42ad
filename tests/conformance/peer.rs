//! PEER layers: outputs are the same bit for bit wherever the experts are.

use half::bf16;
use libtest_mimic::Failed;
use warpsmith::layers::{ExpertOptions, Experts, Peer, PeerConfig, PeerRouter};
use warpsmith::ops::peer::{ExpertFormat, ExpertLayout, ExpertTable, Gate, Routing};
use warpsmith::ops::{expert_mlp, linear, product_key_topk};
use warpsmith::peer::{CacheOptions, CachedRows, ExpertMemory};
use warpsmith::weights::FloatElement;
use warpsmith::{Device, DeviceKind, Tensor};

use crate::{Case, cases};

pub(crate) const CASES: &[(&str, Case)] = cases![
    thrashing_caches_in_pinned_memory_change_no_bit,
    thrashing_caches_in_managed_memory_change_no_bit,
    experts_behind_a_cache_are_sorted_as_resident_ones_are,
    copies_that_are_waited_for_are_stalls,
    layers_of_few_tokens_are_those_of_many,
    captured_layers_do_what_layers_do,
    captured_operations_do_what_operations_do,
];

/// Cases for GPUs as large as an H100.
pub(crate) const H100_CASES: &[(&str, Case)] =
    cases![layers_in_parts_do_what_their_operations_do, layers_in_parts_are_captured_together,];

/// Tokens of [`layer`] that an H100 works in parts. Clusters of the second part have rows once, and twice.
const IN_PARTS: [usize; 2] = [4000, 5600];

/// Numbers from -1 to 1.
fn numbers(count: usize, seed: u64) -> impl Iterator<Item = f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f64 / f64::from(1u32 << 23) - 1.0
    })
}

fn tensor(device: &Device, shape: &[usize], seed: u64) -> Result<Tensor<bf16>, Failed> {
    let values: Vec<bf16> = numbers(shape.iter().product(), seed).map(bf16::round).collect();
    Ok(Tensor::from_slice(device, &values, shape)?)
}

/// A layer of n² experts, and of as many inputs as it is good for on the device.
fn layer(device: &Device, config: &PeerConfig, (input, n): (usize, usize)) -> Result<Peer<bf16>, Failed> {
    let (heads, query) = (3, 32);
    let config = config
        .input(input)
        .output(input + 8)
        .sub_keys(n)
        .heads(heads)
        .experts_per_head(7)
        .query(query)
        .gate(Gate::Sigmoid);
    let keys = [tensor(device, &[n, query / 2], 2)?, tensor(device, &[n, query / 2], 3)?];
    let router = PeerRouter::new(tensor(device, &[heads * query, input], 1)?, keys);
    let layer = Peer::new(device, &config, router, |range| {
        let part = |columns: usize, salt: u64| -> Vec<f32> {
            let of = |expert: usize| numbers(columns, expert as u64 * 2 + salt).map(|number| number as f32);
            range.clone().flat_map(of).collect()
        };
        Ok([part(input, 0), Vec::new(), part(input + 8, 1)])
    })?;
    Ok(layer)
}

fn bits(y: &Tensor<bf16>) -> Result<Vec<u16>, Failed> {
    Ok(y.to_vec()?.into_iter().map(bf16::to_bits).collect())
}

/// Inputs, sub-keys and tokens.
fn sizes(device: &Device) -> (usize, usize, usize) {
    match device.kind() {
        DeviceKind::Cuda(_) => (1024, 128, 1500),
        _ => (72, 12, 30),
    }
}

fn thrashing_caches(device: &Device, managed: bool) -> Result<(), Failed> {
    let (input, n, tokens) = sizes(device);
    let base = PeerConfig::default().format(ExpertFormat::Int8);
    let resident = layer(device, &base.memory(ExpertMemory::Resident), (input, n))?;
    let inputs = [tensor(device, &[tokens, input], 8)?, tensor(device, &[tokens, input], 9)?];
    let expected = [bits(&resident.forward(&inputs[0])?)?, bits(&resident.forward(&inputs[1])?)?];
    for (slots, chunk) in
        [(1, tokens / 3), (n, tokens / 9), (n * n / 3, tokens / 9), (n * n, 1 + tokens / 20)]
    {
        let cache = CacheOptions::default().slots(slots).managed(managed).poison(true);
        let config = base.memory(ExpertMemory::Cached).cache(cache).chunk_tokens(chunk);
        let cached = layer(device, &config, (input, n))?;
        let streams = [device.new_stream()?, device.new_stream()?];
        for pass in 0..6 {
            // The host does not wait for one pass before it enqueues the next, on another stream.
            let first = cached.forward_on(&inputs[pass % 2], &streams[pass % 2])?;
            let second = cached.forward_on(&inputs[(pass + 1) % 2], &streams[(pass + 1) % 2])?;
            for (y, expected) in [(first, &expected[pass % 2]), (second, &expected[(pass + 1) % 2])] {
                assert!(bits(&y)? == *expected, "pass {pass}, {slots} slots, chunks of {chunk}");
            }
        }
        let statistics = cached.statistics().ok_or("there is a cache")?;
        assert_eq!(statistics.hits + statistics.misses, statistics.requests, "{statistics}");
        assert_eq!(statistics.requests, (12 * tokens * 21) as u64);
        assert!(slots < n * n || statistics.evictions == 0, "{statistics}");
    }
    Ok(())
}

fn thrashing_caches_in_pinned_memory_change_no_bit(device: &Device) -> Result<(), Failed> {
    thrashing_caches(device, false)
}

fn thrashing_caches_in_managed_memory_change_no_bit(device: &Device) -> Result<(), Failed> {
    thrashing_caches(device, true)
}

/// Of so many tokens that their experts are sorted, chunks are sorted too, even where they are far too few to be by themselves.
fn experts_behind_a_cache_are_sorted_as_resident_ones_are(device: &Device) -> Result<(), Failed> {
    let properties = device.properties();
    if device.kind() == DeviceKind::Cpu || properties.l2_bytes < 32 << 20 {
        // Nothing is sorted there.
        return Ok(());
    }
    let is_gpu = matches!(device.kind(), DeviceKind::Cuda(_));
    let (d, o) = if is_gpu { (1024, 1024) } else { (512, 264) };
    let layout = ExpertLayout::new(ExpertFormat::Bf16, d, 1, o, false)?;
    // A table that the level-2 cache does not hold, a token and more for each warp, and half as many uses as there are experts.
    let count = if is_gpu { 1 << 16 } else { 0 }.max(properties.l2_bytes as usize / layout.row_bytes() + 100);
    let tokens = properties.multiprocessors as usize * if is_gpu { 31 } else { 16 } + 5;
    let (heads, k) = (2, if is_gpu { 32 } else { (count / 2).div_ceil(2 * tokens) });
    let routing = Routing {
        ids: {
            let id = |number: f64| ((number * number) * count as f64) as u32 % count as u32;
            let ids: Vec<u32> = numbers(tokens * heads * k, 51).map(id).collect();
            Tensor::from_slice(device, &ids, [tokens, heads, k])?
        },
        gates: {
            let gates: Vec<f32> = numbers(tokens * heads * k, 52).map(|gate| gate as f32).collect();
            Tensor::from_slice(device, &gates, [tokens, heads, k])?
        },
    };
    let x = tensor(device, &[tokens, d], 53)?;
    let experts = |options: ExpertOptions| {
        Experts::new(device, layout, count, &options, |range| {
            let part = |columns: usize, salt: u64| -> Vec<f32> {
                let of =
                    |expert: usize| numbers(columns, expert as u64 * 2 + salt).map(|number| number as f32);
                range.clone().flat_map(of).collect()
            };
            Ok([part(d, 0), Vec::new(), part(o, 1)])
        })
    };
    let is_sorted = |experts: &Experts, x: &Tensor<bf16>, routing: &Routing| -> Result<bool, Failed> {
        Ok(experts.implementation(x, routing)?.to_string().contains("expert_mlp_order"))
    };
    let resident = experts(ExpertOptions::default().memory(ExpertMemory::Resident))?;
    assert!(is_sorted(&resident, &x, &routing)?, "{}", resident.implementation(&x, &routing)?);
    let expected = bits(&resident.forward(&x, &routing)?)?;
    // All experts, a part of them, and so few that most of a chunk's are read where they are.
    for (slots, chunk) in [(count, None), (count / 5, Some(tokens / 9)), (count / 40, Some(tokens / 2))] {
        let cache = CacheOptions::default().slots(slots).managed(false).poison(true);
        let options = ExpertOptions::default().memory(ExpertMemory::Cached).cache(cache);
        let cached = experts(chunk.map_or(options, |chunk| options.chunk_tokens(chunk)))?;
        assert!(is_sorted(&cached, &x, &routing)?);
        let few = chunk.unwrap_or(tokens / 4);
        let part = Routing { ids: routing.ids.slice(0, 0..few)?, gates: routing.gates.slice(0, 0..few)? };
        assert!(!is_sorted(&cached, &x.slice(0, 0..few)?, &part)?, "{few} tokens are few");
        // The second pass finds in the cache what the first has left there.
        for pass in 0..if is_gpu { 3 } else { 1 } {
            let y = bits(&cached.forward(&x, &routing)?)?;
            assert!(y == expected, "pass {pass}, {slots} slots of {count}, chunks of {chunk:?}");
        }
        let statistics = cached.statistics().ok_or("there is a cache")?;
        assert!(statistics.steps > 1, "{statistics}");
        assert_eq!(statistics.evictions + statistics.pin_failures == 0, slots == count, "{statistics}");
        assert!(slots != count / 5 || statistics.evictions > 0, "{statistics}");
    }
    Ok(())
}

/// On a GPU copies take their time, and what reads them at once waits; elsewhere they are done when they have been asked for.
fn copies_that_are_waited_for_are_stalls(device: &Device) -> Result<(), Failed> {
    /// A host that is busy with other tests may come to the read when the copies are done, but not each time.
    const ATTEMPTS: usize = 20;
    let is_gpu = matches!(device.kind(), DeviceKind::Cuda(_));
    let (rows, row_bytes) = if is_gpu { (1 << 14, 1 << 14) } else { (40, 64) };
    let options = CacheOptions::default().slots(rows).managed(false);
    let mut cached = CachedRows::new(device, rows, row_bytes, &options)?;
    let stream = device.new_stream()?;
    let ids: Vec<u32> = (0..rows as u32).collect();
    let mut stalls_of_pass = |is_first| -> warpsmith::Result<u64> {
        let before = cached.statistics().stalls;
        if is_first {
            cached.reset();
        }
        // 256 MiB in the first pass, nothing after that.
        let step = cached.stage(&ids)?;
        if !is_first {
            device.synchronize()?;
        }
        cached.begin_reading(&step, &stream)?;
        cached.release(step, &stream)?;
        device.synchronize()?;
        Ok(cached.statistics().stalls - before)
    };
    for _ in 0..ATTEMPTS {
        let stalls = stalls_of_pass(true)?;
        assert!(stalls <= u64::from(is_gpu), "{stalls} stalls of one step");
        for pass in 1..3 {
            assert_eq!(stalls_of_pass(false)?, 0, "pass {pass}, of rows that are there");
        }
        if stalls == u64::from(is_gpu) {
            return Ok(());
        }
    }
    Err(format!("in none of {ATTEMPTS} attempts was a copy waited for").into())
}

/// Whole numbers come out exactly however many tokens there are and in whatever memory: one at a time they are the rows of all at once.
fn layers_of_few_tokens_are_those_of_many(device: &Device) -> Result<(), Failed> {
    let (input, n, tokens) = (16, 9, 40);
    let whole = |count: usize, seed: u64| numbers(count, seed).map(|number| (number * 2.99) as i32 as f64);
    let tensor = |shape: &[usize], seed| -> Result<Tensor<bf16>, Failed> {
        let values: Vec<bf16> = whole(shape.iter().product(), seed).map(bf16::round).collect();
        Ok(Tensor::from_slice(device, &values, shape)?)
    };
    let config = PeerConfig::default()
        .input(input)
        .output(input)
        .sub_keys(n)
        .heads(2)
        .experts_per_head(3)
        .query(4)
        .query_norm(warpsmith::layers::Norm::None)
        .gate(Gate::Relu)
        .activation(warpsmith::ops::Activation::Relu);
    let router = || -> Result<_, Failed> {
        Ok(PeerRouter::new(tensor(&[8, input], 1)?, [tensor(&[n, 2], 2)?, tensor(&[n, 2], 3)?]))
    };
    let part = |range: std::ops::Range<usize>| {
        let of = |salt: u64| -> Vec<f32> {
            range
                .clone()
                .flat_map(|expert| whole(input, expert as u64 * 2 + salt))
                .map(|v| v as f32)
                .collect()
        };
        Ok([of(0), Vec::new(), of(1)])
    };
    let resident = Peer::<bf16>::new(device, &config, router()?, part)?;
    let cache = CacheOptions::default().slots(5).poison(true);
    let cached =
        Peer::<bf16>::new(device, &config.memory(ExpertMemory::Cached).cache(cache), router()?, part)?;
    let x = tensor(&[tokens, input], 5)?;
    let all = bits(&resident.forward(&x)?)?;
    for count in [1, 2, 7] {
        for first in (0..tokens).step_by(count) {
            let range = first..tokens.min(first + count);
            let some = x.slice(0, range.clone())?;
            let expected = &all[range.start * input..range.end * input];
            assert_eq!(bits(&resident.forward(&some)?)?, expected, "tokens {range:?}");
            assert_eq!(bits(&cached.forward(&some)?)?, expected, "tokens {range:?}, cached");
        }
    }
    Ok(())
}

/// A captured layer gives for new inputs what the layer gives, bit for bit, from whichever stream, for few tokens and for many.
fn captured_layers_do_what_layers_do(device: &Device) -> Result<(), Failed> {
    let (input, n, most) = sizes(device);
    for format in [ExpertFormat::Bf16, ExpertFormat::Int8] {
        let config = PeerConfig::default().format(format).memory(ExpertMemory::Resident);
        let layer = layer(device, &config, (input, n))?;
        for (tokens, at_home) in [(1, false), (1, true), (most, false), (most, true)] {
            // A stream of one's own, which nobody else uses while it is captured. The weights have the default stream as their home.
            let stream = device.new_stream()?;
            let home = if at_home { stream.clone() } else { device.default_stream() };
            let mut x = Tensor::<bf16>::zeros_on(&home, [tokens, input])?;
            let mut y = Tensor::<bf16>::zeros_on(&home, [tokens, input + 8])?;
            // Views of the same memory.
            let (read, mut written) = (x.clone(), y.clone());
            let work = || layer.forward_into(&read, &mut written, &stream);
            // SAFETY: the work borrows the tensors that it uses, and the layer that has the others; what it makes it drops.
            let mut graph = unsafe { stream.capture(work)? };
            for seed in 21..25 {
                let next = tensor(device, &[tokens, input], seed)?;
                let expected = bits(&layer.forward(&next)?)?;
                x.write_slice(&next.to_vec()?)?;
                graph.launch()?;
                assert!(bits(&y)? == expected, "{format}, {tokens} tokens, input {seed}");
                y.write_slice(&vec![bf16::NAN; y.len()])?;
            }
            // The host enqueues the next launch before the last one is over, and drops the graph meanwhile.
            let expected = bits(&layer.forward(&x)?)?;
            (0..3).try_for_each(|_| graph.launch())?;
            drop(graph);
            assert!(bits(&y)? == expected, "{format}, {tokens} tokens, after the last launch");
        }
    }
    Ok(())
}

/// A layer that an H100 works in parts.
fn layer_in_parts(device: &Device) -> Result<Peer<bf16>, Failed> {
    let config = PeerConfig::default().memory(ExpertMemory::Resident);
    let layer = layer(device, &config, (1024, 64))?;
    for tokens in IN_PARTS {
        let ran = layer.implementation(&Tensor::zeros(device, [tokens, 1024])?)?;
        assert!(ran.in_parts, "{tokens} tokens: {ran}");
    }
    Ok(layer)
}

/// What the layer's operations give for `x`, one after the other.
fn one_after_the_other(layer: &Peer<bf16>, x: &Tensor<bf16>) -> Result<Vec<u16>, Failed> {
    bits(&layer.experts().forward(x, &layer.route(x)?)?)
}

/// Layers whose tokens are worked in two parts at the same time, as they are and captured. (In the emulator a test of the host crate does that, with layers
/// that would gain nothing by it.)
fn layers_in_parts_do_what_their_operations_do(device: &Device) -> Result<(), Failed> {
    let layer = layer_in_parts(device)?;
    for tokens in IN_PARTS {
        let stream = device.new_stream()?;
        let mut x = tensor(device, &[tokens, 1024], 31)?;
        let y = Tensor::<bf16>::zeros_on(&stream, [tokens, 1024 + 8])?;
        let (read, mut written) = (x.clone(), y.clone());
        let work = || layer.forward_into(&read, &mut written, &stream);
        // SAFETY: the work borrows the tensors that it uses, and the layer that has the others; what it makes it drops.
        let mut graph = unsafe { stream.capture(work)? };
        for seed in 32..36 {
            x.write_slice(&tensor(device, &[tokens, 1024], seed)?.to_vec()?)?;
            let expected = one_after_the_other(&layer, &x)?;
            assert!(bits(&layer.forward(&x)?)? == expected, "{tokens} tokens, input {seed}");
            assert!(bits(&layer.forward_on(&x, &stream)?)? == expected, "{tokens} tokens on a stream");
            graph.launch()?;
            assert!(bits(&y)? == expected, "{tokens} tokens, captured, input {seed}");
        }
    }
    Ok(())
}

/// Two such layers in one capture, and others on another stream meanwhile.
fn layers_in_parts_are_captured_together(device: &Device) -> Result<(), Failed> {
    let layer = layer_in_parts(device)?;
    let (stream, other) = (device.new_stream()?, device.new_stream()?);
    let mut x = [tensor(device, &[IN_PARTS[0], 1024], 41)?, tensor(device, &[IN_PARTS[1], 1024], 42)?];
    let output = |tokens| Tensor::<bf16>::zeros_on(&stream, [tokens, 1024 + 8]);
    let y = [output(IN_PARTS[0])?, output(IN_PARTS[1])?];
    let (read, mut written) = (x.clone(), y.clone());
    let work = || {
        let [first, second] = &mut written;
        layer.forward_into(&read[0], first, &stream)?;
        layer.forward_into(&read[1], second, &stream)
    };
    // SAFETY: the work borrows the tensors that it uses, and the layer that has the others; what it makes it drops.
    let mut graph = unsafe { stream.capture(work)? };
    for seed in 43..46 {
        for (x, tokens) in x.iter_mut().zip(IN_PARTS) {
            x.write_slice(&tensor(device, &[tokens, 1024], seed)?.to_vec()?)?;
        }
        graph.launch()?;
        let beside = layer.forward_on(&x[1], &other)?;
        graph.launch()?;
        for (x, y) in x.iter().zip(&y) {
            assert!(bits(y)? == one_after_the_other(&layer, x)?, "input {seed}");
        }
        assert!(bits(&beside)? == bits(&y[1])?, "input {seed}, on another stream");
    }
    Ok(())
}

/// The operations of a layer, each captured by itself.
fn captured_operations_do_what_operations_do(device: &Device) -> Result<(), Failed> {
    let (input, n, tokens) = sizes(device);
    let (heads, k, query) = (3, 7, 32);
    let stream = device.new_stream()?;
    let w = tensor(device, &[heads * query, input], 1)?;
    let keys = [tensor(device, &[n, query / 2], 2)?, tensor(device, &[n, query / 2], 3)?];
    let layout = ExpertLayout::new(ExpertFormat::Bf16, input, 1, input, false)?;
    let mut experts = ExpertTable::zeros(device, layout, n * n)?;
    for expert in 0..n * n {
        let part = |salt: u64| -> Vec<f32> {
            numbers(input, expert as u64 * 2 + salt).map(|number| number as f32).collect()
        };
        let (u, v) = (part(0), part(1));
        let mut row = vec![0; layout.row_bytes()];
        layout.pack(warpsmith::ops::peer::ExpertVectors { u: &u, w: &[], v: &v }, &mut row)?;
        experts.write_rows(expert, &row)?;
    }
    let find = |x| product_key_topk(x, &w, &keys[0], &keys[1], heads, k).gate(Gate::Sigmoid);

    let mut input_of_all = tensor(device, &[tokens, input], 4)?;
    // A view of the same memory.
    let x = input_of_all.clone();
    let found = find(&x).run()?;
    let z = Tensor::<bf16>::zeros_on(&stream, [tokens, heads * query])?;
    let y = Tensor::<bf16>::zeros_on(&stream, [tokens, input])?;
    // A copy into a tensor is captured if this is its home stream.
    let ids = Tensor::<u32>::zeros_on(&stream, [tokens, heads, k])?;
    let gates = Tensor::<f32>::zeros_on(&stream, [tokens, heads, k])?;

    let mut output = z.clone();
    let work = || linear(&x, &w).on(&stream).run_into(&mut output);
    // SAFETY: the work borrows the tensors that it uses; what it makes it drops. So do those below.
    let mut linear_graph = unsafe { stream.capture(work)? };
    let mut routing = Routing {
        ids: Tensor::zeros_on(&stream, [tokens, heads, k])?,
        gates: Tensor::zeros_on(&stream, [tokens, heads, k])?,
    };
    let mut to_routing = Routing { ids: routing.ids.clone(), gates: routing.gates.clone() };
    let work = || find(&x).on(&stream).run_into(&mut to_routing);
    // SAFETY: as above.
    let mut find_into_graph = unsafe { stream.capture(work)? };
    let (mut to_ids, mut to_gates) = (ids.clone(), gates.clone());
    let work = || {
        let found = find(&x).on(&stream).run()?;
        to_ids.copy_from(&found.ids)?;
        to_gates.copy_from(&found.gates)
    };
    // SAFETY: as above.
    let mut find_graph = unsafe { stream.capture(work)? };
    let mut output = y.clone();
    let work = || expert_mlp(&x, &found, &experts).on(&stream).run_into(&mut output);
    // SAFETY: as above.
    let mut expert_graph = unsafe { stream.capture(work)? };

    for seed in 5..8 {
        let next = tensor(device, &[tokens, input], seed)?;
        input_of_all.write_slice(&next.to_vec()?)?;
        linear_graph.launch()?;
        find_graph.launch()?;
        routing.ids.write_slice(&vec![u32::MAX; routing.ids.len()])?;
        routing.gates.write_slice(&vec![f32::NAN; routing.gates.len()])?;
        find_into_graph.launch()?;
        expert_graph.launch()?;
        assert!(bits(&z)? == bits(&linear(&next, &w).run()?)?, "linear, input {seed}");
        let expected = find(&x).run()?;
        assert!(ids.to_vec()? == expected.ids.to_vec()?, "product_key_topk, input {seed}");
        assert!(gates.to_vec()? == expected.gates.to_vec()?, "product_key_topk, input {seed}");
        assert!(routing.ids.to_vec()? == expected.ids.to_vec()?, "product_key_topk into, input {seed}");
        assert!(routing.gates.to_vec()? == expected.gates.to_vec()?, "product_key_topk into, input {seed}");
        assert!(bits(&y)? == bits(&expert_mlp(&next, &found, &experts).run()?)?, "expert_mlp, input {seed}");
    }
    Ok(())
}
