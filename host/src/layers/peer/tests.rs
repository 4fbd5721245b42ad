//! The layer beside its definition written out, and behind caches of every size beside itself on the device.

use half::bf16;
use proptest::prelude::*;

use super::{Norm, Peer, PeerConfig, PeerRouter};
use crate::layers::Experts;
use crate::ops::Activation;
use crate::ops::peer::{ExpertFormat, Gate};
use crate::peer::{CacheOptions, ExpertMemory};
use crate::weights::FloatElement;
use crate::{Device, Element, Error, Tensor, Weights};

/// Whole numbers from -`most` to `most` that depend on a seed.
fn integers(count: usize, most: i32, seed: u64) -> Vec<i32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1;
    let span = (2 * most + 1) as u64;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 33) % span) as i32 - most
        })
        .collect()
}

fn tensor<T: Element + FloatElement>(
    device: &Device,
    shape: &[usize],
    values: &[i32],
    unit: f64,
) -> Tensor<T> {
    let values: Vec<T> = values.iter().map(|&value| T::round(f64::from(value) * unit)).collect();
    Tensor::from_slice(device, &values, shape).expect("a small tensor")
}

/// The numbers of a layer, all whole.
#[derive(Clone, Debug)]
struct Numbers {
    config: PeerConfig,
    keys_per_head: bool,
    query: Vec<i32>,
    keys: [Vec<i32>; 2],
    u: Vec<i32>,
    w: Vec<i32>,
    v: Vec<i32>,
}

impl Numbers {
    fn new(config: PeerConfig, keys_per_head: bool, seed: u64) -> Self {
        let PeerConfig { input, output, sub_keys, heads, query, hidden, gated, .. } = config;
        let groups = if keys_per_head { heads } else { 1 };
        let (keys, units) = (groups * sub_keys * query / 2, sub_keys * sub_keys * hidden);
        Self {
            config,
            keys_per_head,
            query: integers(heads * query * input, 2, seed),
            keys: [integers(keys, 2, seed ^ 1), integers(keys, 2, seed ^ 2)],
            u: integers(units * input, 2, seed ^ 3),
            w: if gated { integers(units * input, 1, seed ^ 4) } else { Vec::new() },
            v: integers(units * output, 2, seed ^ 5),
        }
    }

    fn layer<T: super::PeerInput>(&self, device: &Device, config: &PeerConfig, unit: f64) -> Peer<T> {
        let PeerConfig { input, output, sub_keys: n, heads, query, hidden, .. } = *config;
        let keys_shape = if self.keys_per_head { vec![heads, n, query / 2] } else { vec![n, query / 2] };
        let keys = [&self.keys[0], &self.keys[1]].map(|keys| tensor(device, &keys_shape, keys, unit));
        let router = PeerRouter::new(tensor(device, &[heads * query, input], &self.query, unit), keys);
        Peer::new(device, config, router, |range| {
            let part = |values: &[i32], columns: usize| -> Vec<f32> {
                let values = &values[range.start * columns..range.end * columns];
                values.iter().map(|&value| (f64::from(value) * unit) as f32).collect()
            };
            let w = if self.w.is_empty() { Vec::new() } else { part(&self.w, hidden * input) };
            Ok([part(&self.u, hidden * input), w, part(&self.v, hidden * output)])
        })
        .expect("a small layer")
    }

    /// The definition, without norm, with the scores or their positive parts as gates and with ReLU, in whole numbers.
    fn by_definition(&self, x: &[i32], relu_gate: bool) -> Vec<i64> {
        let PeerConfig { input, output, sub_keys: n, heads, query, hidden, experts_per_head: k, .. } =
            self.config;
        let dot = |a: &[i32], b: &[i64]| -> i64 { a.iter().zip(b).map(|(a, b)| i64::from(*a) * b).sum() };
        let mut y = Vec::new();
        for token in x.chunks(input) {
            let token: Vec<i64> = token.iter().map(|&value| value.into()).collect();
            let mut sum = vec![0i64; output];
            for head in 0..heads {
                let q: Vec<i64> = (0..query)
                    .map(|i| dot(&self.query[(head * query + i) * input..][..input], &token))
                    .collect();
                let half = query / 2;
                let first = if self.keys_per_head { head * n } else { 0 };
                let score = |id: usize| {
                    let key =
                        |keys: &[i32], row: usize, q: &[i64]| dot(&keys[(first + row) * half..][..half], q);
                    key(&self.keys[0], id / n, &q[..half]) + key(&self.keys[1], id % n, &q[half..])
                };
                let mut all: Vec<(i64, usize)> = (0..n * n).map(|id| (-score(id), id)).collect();
                all.sort_unstable();
                for &(negative, id) in &all[..k] {
                    let gate = if relu_gate { (-negative).max(0) } else { -negative };
                    for unit in id * hidden..(id + 1) * hidden {
                        let mut h = dot(&self.u[unit * input..][..input], &token).max(0);
                        if !self.w.is_empty() {
                            h *= dot(&self.w[unit * input..][..input], &token);
                        }
                        for (sum, &v) in sum.iter_mut().zip(&self.v[unit * output..][..output]) {
                            *sum += gate * h * i64::from(v);
                        }
                    }
                }
            }
            y.extend(sum);
        }
        y
    }
}

fn small(
    (input, output, sub_keys): (usize, usize, usize),
    (heads, k, half): (usize, usize, usize),
    (hidden, gated): (usize, bool),
) -> PeerConfig {
    PeerConfig::default()
        .input(input)
        .output(output)
        .sub_keys(sub_keys)
        .heads(heads)
        .experts_per_head(k.min(sub_keys))
        .query(2 * half)
        .hidden(hidden)
        .gated(gated)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn whole_numbers_come_out_as_defined(
        sizes in (1usize..10, 1usize..10, 1usize..12), heads in (1usize..4, 1usize..6, 1usize..5),
        units in (1usize..3, any::<bool>()), keys_per_head: bool, relu_gate: bool,
        tokens in 0usize..9, slots in 1usize..100, seed: u64,
    ) {
        let config = small(sizes, heads, units)
            .query_norm(Norm::None)
            .gate(if relu_gate { Gate::Relu } else { Gate::Identity })
            .activation(Activation::Relu)
            .cache(CacheOptions::default().slots(slots));
        let numbers = Numbers::new(config, keys_per_head, seed);
        let x = integers(tokens * config.input, 2, seed ^ 9);
        let expected = numbers.by_definition(&x, relu_gate);
        // Every sum is a whole number that an f32 holds.
        prop_assume!(expected.iter().all(|value| value.abs() < 1 << 22));
        for device in [Device::cpu(), Device::emulator()] {
            let layer = numbers.layer::<f32>(&device, &config, 1.0);
            let x = tensor::<f32>(&device, &[tokens, config.input], &x, 1.0);
            let y = layer.forward(&x).unwrap();
            prop_assert_eq!(y.shape(), [tokens, config.output]);
            let y: Vec<i64> = y.to_vec().unwrap().into_iter().map(|value| value as i64).collect();
            prop_assert_eq!(&y, &expected);
        }
    }

    #[test]
    fn a_cache_of_any_size_changes_no_bit(
        sizes in (1usize..20, 1usize..20, 1usize..9), heads in (1usize..4, 1usize..6, 1usize..9),
        units in (1usize..3, any::<bool>()), format in prop::sample::select(ExpertFormat::ALL.to_vec()),
        norm in prop::sample::select(vec![
            Norm::None, Norm::Layer { epsilon: 1e-5 }, Norm::Rms { epsilon: 1e-5 }, Norm::L2 { epsilon: 1e-5 },
        ]),
        gate in prop::sample::select(Gate::ALL.to_vec()),
        tokens in 1usize..20, slots in 1usize..90, chunk in 1usize..7, poison: bool, seed: u64,
    ) {
        let config = small(sizes, heads, units)
            .query_norm(norm)
            .key_norm(norm)
            .gate(gate)
            .temperature(0.7)
            .format(format)
            .chunk_tokens(chunk);
        let numbers = Numbers::new(config, false, seed);
        for device in [Device::cpu(), Device::emulator()] {
            let resident = numbers.layer::<bf16>(&device, &config.memory(ExpertMemory::Resident), 0.3);
            let cache = CacheOptions::default().slots(slots).poison(poison);
            let config = config.memory(ExpertMemory::Cached).cache(cache);
            let cached = numbers.layer::<bf16>(&device, &config, 0.3);
            for pass in 0..2 {
                let x = integers(tokens * config.input, 9, seed ^ pass);
                let x = tensor::<bf16>(&device, &[tokens, config.input], &x, 0.11);
                let bits = |layer: &Peer<bf16>| -> Vec<u16> {
                    let y = layer.forward(&x).expect("it runs").to_vec().expect("it can be read");
                    y.into_iter().map(bf16::to_bits).collect()
                };
                prop_assert_eq!(bits(&cached), bits(&resident));
            }
            let statistics = cached.statistics().unwrap();
            let requests = 2 * tokens * config.heads * config.experts_per_head;
            prop_assert_eq!(statistics.requests, requests as u64);
            prop_assert_eq!(statistics.hits + statistics.misses, statistics.requests);
            prop_assert!(resident.statistics().is_none());
        }
    }
}

/// A file of the numbers, as f32.
fn file(numbers: &Numbers, leave_out: &str) -> Vec<u8> {
    let PeerConfig { input, output, sub_keys: n, heads, query, .. } = numbers.config;
    let tensors = [
        ("a.query.weight", vec![heads * query, input], &numbers.query),
        ("a.keys_1", vec![n, query / 2], &numbers.keys[0]),
        ("a.keys_2", vec![n, query / 2], &numbers.keys[1]),
        ("a.experts.u", vec![n * n, input], &numbers.u),
        ("a.experts.v", vec![n * n, output], &numbers.v),
    ];
    let tensors = tensors.map(|(name, shape, values)| {
        (name.to_owned(), shape, values.iter().map(|&value| value as f32).collect())
    });
    serialized(&tensors, leave_out)
}

/// A tensor of a file: name, shape and numbers.
type Named = (String, Vec<usize>, Vec<f32>);

/// A file of the tensors but one.
fn serialized(tensors: &[Named], leave_out: &str) -> Vec<u8> {
    let data: Vec<_> = tensors
        .iter()
        .filter(|(name, ..)| name != leave_out)
        .map(|(name, shape, values)| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            (name.as_str(), shape.clone(), bytes)
        })
        .collect();
    let views = data.iter().map(|(name, shape, bytes)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes);
        (*name, view.expect("the data fit"))
    });
    safetensors::serialize(views, None).expect("it serialises")
}

#[test]
fn a_file_gives_the_layer_of_its_tensors_and_names_what_it_lacks() {
    let device = Device::cpu();
    let config = small((6, 5, 4), (2, 3, 2), (1, false));
    let numbers = Numbers::new(config, false, 3);
    let x = tensor::<f32>(&device, &[7, 6], &integers(42, 5, 1), 0.2);
    let expected = numbers.layer::<f32>(&device, &config, 1.0).forward(&x).unwrap().to_vec().unwrap();
    let weights = Weights::from_bytes(file(&numbers, "")).unwrap();
    for config in [config, config.memory(ExpertMemory::Cached).cache(CacheOptions::default().slots(3))] {
        let layer = Peer::<f32>::from_safetensors(&weights, "a", &device, &config).unwrap();
        assert_eq!(layer.forward(&x).unwrap().to_vec().unwrap(), expected);
    }
    Peer::<bf16>::from_safetensors_converted(&weights, "a", &device, &config).unwrap();
    let error = |weights: &Weights, config: PeerConfig| {
        Peer::<f32>::from_safetensors(weights, "a", &device, &config).unwrap_err().to_string()
    };
    assert!(Peer::<bf16>::from_safetensors(&weights, "a", &device, &config).is_err(), "another type");
    for name in ["a.query.weight", "a.keys_2", "a.experts.u", "a.experts.v"] {
        let damaged = Weights::from_bytes(file(&numbers, name)).unwrap();
        let error = error(&damaged, config);
        assert!(error.contains(&format!("`{name}`")), "{error}");
    }
    assert!(error(&weights, config.gated(true)).contains("a.experts.w"));
    assert!(
        error(&weights, config.input(7)).contains("[.., 7]")
            || error(&weights, config.input(7)).contains('7')
    );
    assert!(error(&weights, config.hidden(2)).contains("[16, 2, 6]"));
    let batch = config.query_norm(Norm::Batch { epsilon: 1e-5 });
    assert!(error(&weights, batch).contains("a.query_norm.running_mean"));
}

#[test]
fn optional_tensors_of_a_file_get_to_their_places() {
    let device = Device::cpu();
    let (input, output, n, heads, half, hidden) = (6, 5, 4, 2, 2, 2);
    let query = 2 * half;
    for (query_norm, key_norm, of_norms) in [
        (Norm::Batch { epsilon: 0.1 }, Norm::Rms { epsilon: 0.2 }, None),
        (Norm::Layer { epsilon: 0.1 }, Norm::L2 { epsilon: 0.2 }, Some(heads)),
    ] {
        // A softmax would not see what is added to all sub-keys.
        let config = small((input, output, n), (heads, 3, half), (hidden, true))
            .query_norm(query_norm)
            .key_norm(key_norm)
            .gate(Gate::Identity);
        let norms = |features: usize| of_norms.into_iter().chain([features]).collect::<Vec<_>>();
        let batch = matches!(query_norm, Norm::Batch { .. });
        let statistics = ["query_norm.running_mean", "query_norm.running_var"];
        let mut shapes = vec![
            ("query.weight", vec![heads * query, input]),
            ("query.bias", vec![heads * query]),
            ("keys_1", vec![heads, n, half]),
            ("keys_2", vec![heads, n, half]),
            ("query_norm.weight", norms(query)),
            ("query_norm.bias", norms(query)),
            ("key_norm.weight", norms(half)),
            ("key_norm.bias", norms(half)),
            ("experts.u", vec![n * n, hidden, input]),
            ("experts.w", vec![n * n, hidden, input]),
            ("experts.v", vec![n * n, hidden, output]),
        ];
        if batch {
            shapes.extend(statistics.map(|name| (name, norms(query))));
        }
        let tensors: Vec<Named> = (0u64..)
            .zip(shapes)
            .map(|(seed, (name, shape))| {
                let numbers = integers(shape.iter().product(), 9, seed + 40).into_iter();
                // Above 0, as variances are.
                let numbers = numbers.map(|number| (number as f32 + 9.5) * 0.1);
                let shift = if name.ends_with("running_var") { 0.0 } else { 0.9 };
                (format!("a.{name}"), shape, numbers.map(|number| number - shift).collect())
            })
            .collect();
        let found = |name: &str| {
            tensors.iter().find(|(found, ..)| found.strip_prefix("a.") == Some(name)).expect("its name")
        };
        let of = |name: &str| {
            let (_, shape, values) = found(name);
            Tensor::from_slice(&device, values, shape).expect("a small tensor")
        };
        let router = PeerRouter {
            query: of("query.weight"),
            query_bias: Some(of("query.bias")),
            keys: [of("keys_1"), of("keys_2")],
            query_norm_weight: Some(of("query_norm.weight")),
            query_norm_bias: Some(of("query_norm.bias")),
            query_norm_statistics: batch.then(|| statistics.map(of)),
            key_norm_weight: Some(of("key_norm.weight")),
            key_norm_bias: Some(of("key_norm.bias")),
        };
        let by_hand = Peer::new(&device, &config, router, |range| {
            Ok([("experts.u", input), ("experts.w", input), ("experts.v", output)].map(|(name, columns)| {
                found(name).2[range.start * hidden * columns..range.end * hidden * columns].to_vec()
            }))
        })
        .unwrap();
        let x = tensor::<f32>(&device, &[7, input], &integers(7 * input, 5, 1), 0.2);
        let bits = |layer: &Peer<f32>| -> Vec<u32> {
            layer.forward(&x).unwrap().to_vec().unwrap().into_iter().map(f32::to_bits).collect()
        };
        let load = |leave_out: &str| {
            let weights = Weights::from_bytes(serialized(&tensors, leave_out)).unwrap();
            Peer::<f32>::from_safetensors(&weights, "a", &device, &config)
        };
        let expected = bits(&by_hand);
        assert!(expected.iter().all(|&bits| f32::from_bits(bits).is_finite()));
        assert_eq!(bits(&load("").unwrap()), expected, "{query_norm:?}");
        for (name, ..) in &tensors {
            let optional =
                name == "a.query.bias" || name.ends_with("norm.weight") || name.ends_with("norm.bias");
            match load(name) {
                Ok(layer) => assert!(optional && bits(&layer) != expected, "{name} makes no difference"),
                Err(error) => assert!(!optional && error.to_string().contains(name), "{name}: {error}"),
            }
        }
    }
}

#[test]
fn tokens_that_do_not_fit_are_named() {
    for device in [Device::cpu(), Device::emulator()] {
        let config = small((3, 2, 4), (2, 3, 2), (1, false));
        let numbers = Numbers::new(config, false, 3);
        let cached = config.memory(ExpertMemory::Cached).cache(CacheOptions::default().slots(5));
        for config in [config, cached] {
            let layer = numbers.layer::<f32>(&device, &config, 1.0);
            let all = |x: &Tensor<f32>| {
                let mut y = Tensor::zeros(&device, [5, 2]).unwrap();
                [
                    layer.forward(x).unwrap_err(),
                    layer.forward_into(x, &mut y, &device.default_stream()).unwrap_err(),
                    layer.route(x).unwrap_err(),
                    layer.implementation(x).unwrap_err(),
                ]
            };
            for shape in [vec![5, 4], vec![]] {
                for error in all(&Tensor::zeros(&device, &shape).unwrap()) {
                    let Error::Shape { operation, operand, expected, actual } = error else {
                        panic!("{error}");
                    };
                    assert_eq!((operation, operand), ("Peer::forward", "x"));
                    assert_eq!((expected.as_str(), actual), ("[.., 3]", shape.clone()));
                }
            }
            let other = if device == Device::cpu() { Device::emulator() } else { Device::cpu() };
            for error in all(&Tensor::zeros(&other, [5, 3]).unwrap()) {
                assert!(matches!(error, Error::DeviceMismatch { operand: "x", .. }), "{error}");
            }
        }
    }
}

#[test]
fn configurations_that_make_no_layer_are_errors_that_name_the_number() {
    let device = Device::cpu();
    let config = small((3, 2, 4), (2, 3, 2), (1, false));
    let numbers = Numbers::new(config, false, 3);
    let router = || numbers.layer::<f32>(&device, &config, 1.0).router().clone();
    let refused = |config: PeerConfig, router: PeerRouter<f32>| {
        Peer::new(&device, &config, router, |_| panic!("no experts are asked for")).unwrap_err()
    };
    for (config, name) in [
        (config.heads(0), "heads"),
        (config.query(3), "query"),
        (config.sub_keys(0), "sub_keys"),
        (config.sub_keys(1 << 16), "sub_keys"),
        (config.experts_per_head(0), "experts_per_head"),
        (config.experts_per_head(5), "experts_per_head"),
        (config.key_norm(Norm::Batch { epsilon: 0.1 }), "key_norm"),
        (config.query_norm(Norm::Batch { epsilon: 0.1 }), "query_norm_statistics"),
    ] {
        let error = refused(config, router());
        assert!(matches!(error, Error::Argument { argument, .. } if argument == name), "{name}: {error}");
    }
    for epsilon in [-1.0, f32::NAN, f32::INFINITY] {
        for norm in [Norm::Layer { epsilon }, Norm::Rms { epsilon }, Norm::L2 { epsilon }] {
            for (config, name) in
                [(config.query_norm(norm), "query_norm"), (config.key_norm(norm), "key_norm")]
            {
                let error = refused(config, router());
                assert!(
                    matches!(&error, Error::Argument { argument, actual, .. }
                        if *argument == name && actual.contains(&format!("epsilon: {epsilon:?}"))),
                    "{name}: {error}"
                );
            }
        }
    }
    let wide = PeerRouter { query: Tensor::zeros(&device, [8, 4]).unwrap(), ..router() };
    assert!(matches!(refused(config, wide), Error::Shape { operand: "query", .. }));
    let [first, _] = router().keys;
    let keys = PeerRouter { keys: [first, Tensor::zeros(&device, [4, 3]).unwrap()], ..router() };
    assert!(matches!(refused(config, keys), Error::Shape { operand: "keys_2", .. }));
    let elsewhere = Peer::new(&Device::emulator(), &config, router(), |_| panic!("no experts are asked for"));
    assert!(matches!(elsewhere, Err(Error::DeviceMismatch { .. })));
}

#[test]
fn tensors_of_a_router_that_do_not_fit_are_named() {
    let device = Device::cpu();
    // Two heads, four sub-keys, queries of four numbers.
    let config = small((3, 2, 4), (2, 3, 2), (1, false));
    let numbers = Numbers::new(config, false, 3);
    let router = numbers.layer::<f32>(&device, &config, 1.0).router().clone();
    let zeros = |shape: &[usize]| Tensor::<f32>::zeros(&device, shape).expect("a small tensor");
    let elsewhere = |shape: &[usize]| Tensor::<f32>::zeros(&Device::emulator(), shape).expect("small");
    let batch = config.query_norm(Norm::Batch { epsilon: 0.1 });
    type Change<'a> = &'a dyn Fn(PeerRouter<f32>, Tensor<f32>) -> PeerRouter<f32>;
    let bias: Change<'_> = &|router, bias| PeerRouter { query_bias: Some(bias), ..router };
    let norm_weight: Change<'_> = &|router, weight| PeerRouter { query_norm_weight: Some(weight), ..router };
    let norm_bias: Change<'_> = &|router, bias| PeerRouter { query_norm_bias: Some(bias), ..router };
    let both: Change<'_> = &|router, bias| PeerRouter {
        query_norm_weight: Some(zeros(&[2, 4])),
        query_norm_bias: Some(bias),
        ..router
    };
    let mean: Change<'_> =
        &|router, mean| PeerRouter { query_norm_statistics: Some([mean, zeros(&[4])]), ..router };
    let variance: Change<'_> =
        &|router, variance| PeerRouter { query_norm_statistics: Some([zeros(&[4]), variance]), ..router };
    let key_weight: Change<'_> = &|router, weight| PeerRouter { key_norm_weight: Some(weight), ..router };
    let key_bias: Change<'_> = &|router, bias| PeerRouter { key_norm_bias: Some(bias), ..router };
    let key_2: Change<'_> = &|router, second| {
        let [first, _] = router.keys.clone();
        PeerRouter { keys: [first, second], ..router }
    };
    let in_statistics = |name: &str| format!("{name} of query_norm_statistics");
    let (of_mean, of_variance) = (in_statistics("mean"), in_statistics("variance"));
    let refused = |config: &PeerConfig, router: PeerRouter<f32>| {
        Peer::new(&device, config, router, |_| panic!("no experts are asked for")).unwrap_err()
    };
    for (config, change, name, shape, expectation) in [
        (&config, bias, "query_bias", &[4][..], "[8]"),
        (&config, bias, "query_bias", &[2, 4], "[8]"),
        (&config, norm_weight, "query_norm_weight", &[8], "[4] or [2, 4]"),
        (&config, norm_bias, "query_norm_bias", &[3, 4], "[4] or [2, 4]"),
        (&config, both, "query_norm_bias", &[4], "[2, 4], as the query_norm_weight has"),
        (&batch, mean, &of_mean, &[3], "[4] or [2, 4]"),
        (&batch, variance, &of_variance, &[2], "[4] or [2, 4]"),
        (&batch, variance, &of_variance, &[2, 4], "[4], as the mean of query_norm_statistics has"),
        (&config, key_weight, "key_norm_weight", &[3], "[2] or [1, 2]"),
        (&config, key_bias, "key_norm_bias", &[2, 2], "[2] or [1, 2]"),
        (&config, key_2, "keys_2", &[2, 4, 2], "[4, 2], as keys_1 has"),
    ] {
        let error = refused(config, change(router.clone(), zeros(shape)));
        let Error::Shape { operation, operand, expected, actual } = &error else { panic!("{name}: {error}") };
        assert_eq!((*operation, *operand, actual.as_slice()), ("Peer::new", name, shape), "{error}");
        assert_eq!(expected, expectation, "{error}");
    }
    for (config, change, name, shape) in [
        (&config, bias, "query_bias", &[8][..]),
        (&config, norm_weight, "query_norm_weight", &[4]),
        (&config, norm_bias, "query_norm_bias", &[4]),
        (&batch, mean, &of_mean, &[4]),
        (&batch, variance, &of_variance, &[4]),
        (&config, key_weight, "key_norm_weight", &[2]),
        (&config, key_bias, "key_norm_bias", &[2]),
    ] {
        let error = refused(config, change(router.clone(), elsewhere(shape)));
        assert!(
            matches!(&error, Error::DeviceMismatch { operation: "Peer::new", operand, .. } if *operand == name),
            "{name}: {error}"
        );
    }
    for temperature in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE / 1e6] {
        let error = refused(&config.temperature(temperature), router.clone());
        let Error::Argument { operation, argument, actual, .. } = &error else { panic!("{error}") };
        assert_eq!((*operation, *argument), ("Peer::new", "temperature"));
        assert_eq!(*actual, temperature.to_string());
    }
}

#[test]
fn sub_keys_are_normalised_once() {
    let device = Device::cpu();
    let config = small((3, 2, 4), (2, 3, 2), (1, false));
    let numbers = Numbers::new(config, false, 7);
    let keys = |norm| {
        let [first, _] = numbers.layer::<f32>(&device, &config.key_norm(norm), 1.0).router().keys.clone();
        first.to_vec().unwrap()
    };
    let plain = keys(Norm::None);
    let pairs =
        |values: Vec<f32>| -> Vec<[f32; 2]> { values.chunks(2).map(|pair| [pair[0], pair[1]]).collect() };
    for ((plain, l2), (rms, layer)) in
        pairs(plain).into_iter().zip(pairs(keys(Norm::L2 { epsilon: 1e-9 }))).zip(
            pairs(keys(Norm::Rms { epsilon: 0.0 }))
                .into_iter()
                .zip(pairs(keys(Norm::Layer { epsilon: 0.0 }))),
        )
    {
        let [a, b] = plain;
        let length = a.hypot(b);
        if length > 0.0 {
            assert!((l2[0] - a / length).abs() < 1e-6 && (l2[1] - b / length).abs() < 1e-6);
            assert!(
                (rms[0] - l2[0] * 2f32.sqrt()).abs() < 1e-6 && (rms[1] - l2[1] * 2f32.sqrt()).abs() < 1e-6
            );
        }
        if a != b {
            assert_eq!(layer, if a > b { [1.0, -1.0] } else { [-1.0, 1.0] });
        }
    }
}

#[test]
fn a_layer_says_what_runs() {
    let device = Device::emulator();
    let config = small((3, 2, 4), (2, 3, 2), (1, false));
    let numbers = Numbers::new(config, false, 7);
    let x = Tensor::<f32>::zeros(&device, [2, 5, 3]).unwrap();
    let resident = numbers.layer::<f32>(&device, &config, 1.0);
    let text = resident.implementation(&x).unwrap().to_string();
    assert!(text.contains("product_key_topk") && text.contains("expert_mlp"), "{text}");
    assert!(text.ends_with("16 experts on the device"), "{text}");
    let cache = CacheOptions::default().slots(5);
    let cached = numbers.layer::<f32>(&device, &config.memory(ExpertMemory::Cached).cache(cache), 1.0);
    let text = cached.implementation(&x).unwrap().to_string();
    assert!(text.ends_with("16 experts in host memory behind a cache of 5"), "{text}");
    assert_eq!(cached.forward(&x).unwrap().shape(), [2, 5, 2]);
    let experts: &Experts = cached.experts();
    assert_eq!((experts.capacity(), experts.count(), experts.is_resident()), (5, 16, false));
    assert_eq!(PeerConfig::default().expert_count(), 1 << 20);
}
