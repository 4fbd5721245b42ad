//! What is refused, and how.

use candle_core::{DType, Device, Result, Tensor, Var};
use warpsmith_candle::warpsmith::{self, ops::peer::ExpertFormat};
use warpsmith_candle::*;

fn zeros(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(shape, dtype, &Device::Cpu).unwrap()
}

/// An operation on operands of two types, the second for the last operand.
type Operation = (&'static str, fn(DType, DType) -> warpsmith_candle::Result<Tensor>);

const OPERATIONS: [Operation; 10] = [
    ("w", |a, b| linear(&zeros(&[2, 3], a), &zeros(&[4, 3], b)).run()),
    ("b", |a, b| matmul(&zeros(&[2, 3], a), &zeros(&[3, 4], b)).run()),
    ("u", |a, b| {
        generated_update(&zeros(&[2, 3], a), &zeros(&[3, 1], a), &zeros(&[1], a), &zeros(&[1, 4], b), 1.0)
            .run()
    }),
    ("u", |a, b| {
        let (x, w, v) = (zeros(&[2, 3], a), zeros(&[4, 3], a), zeros(&[3, 1], a));
        linear_with_update(&x, &w, &v, &zeros(&[1], a), &zeros(&[1, 4], b), 1.0).run()
    }),
    ("v", |a, b| {
        attention(&zeros(&[1, 2, 1, 8], a), &zeros(&[1, 2, 1, 8], a), &zeros(&[1, 2, 1, 8], b)).run()
    }),
    ("weight", |a, b| layer_norm(&zeros(&[2, 3], a)).weight(&zeros(&[3], b)).run()),
    ("bias", |a, b| rms_norm(&zeros(&[2, 3], a)).bias(&zeros(&[3], b)).run()),
    ("keys_2", |a, b| {
        let operands = [zeros(&[2, 8], a), zeros(&[8, 8], a), zeros(&[5, 4], a), zeros(&[5, 4], b)];
        let [x, w_q, keys_1, keys_2] = &operands;
        Ok(product_key_topk(x, w_q, keys_1, keys_2, 1, 2).run()?.1)
    }),
    ("v", |a, b| {
        Experts::new(ExpertFormat::F32, &zeros(&[5, 8], a), None, &zeros(&[5, 8], b)).map(|_| zeros(&[], a))
    }),
    ("bias", |a, b| linear(&zeros(&[2, 3], a), &zeros(&[4, 3], a)).bias(&zeros(&[4], b)).run()),
];

#[test]
fn operands_of_other_types_are_refused_by_name() {
    for (last, operation) in OPERATIONS {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            operation(dtype, dtype).unwrap();
            for other in [DType::F32, DType::F16, DType::F64, DType::U8, DType::U32, DType::I64] {
                if other == dtype {
                    continue;
                }
                match operation(dtype, other) {
                    Err(Error::Type { operand, actual, .. }) => assert_eq!((operand, actual), (last, other)),
                    result => panic!("{last} of {other:?} beside {dtype:?}: {result:?}"),
                }
            }
        }
        for dtype in [DType::F64, DType::U8, DType::U32, DType::I64] {
            assert!(matches!(operation(dtype, dtype), Err(Error::Type { actual, .. }) if actual == dtype));
        }
    }
}

#[test]
fn other_operands_of_wrong_types_are_refused_by_name() {
    let (x, ids) = (zeros(&[2, 3], DType::F32), zeros(&[2], DType::F32));
    let heads = zeros(&[1, 2, 1, 8], DType::F32);
    let mask = zeros(&[1, 1, 2, 2], DType::F32);
    let experts =
        Experts::new(ExpertFormat::F32, &zeros(&[5, 3], DType::F32), None, &x.zeros_like().unwrap());
    assert!(matches!(experts, Err(Error::Warpsmith(warpsmith::Error::Shape { .. }))), "{experts:?}");
    let experts =
        Experts::new(ExpertFormat::F32, &zeros(&[5, 3], DType::F32), None, &zeros(&[5, 3], DType::F32))
            .unwrap();
    let gates = zeros(&[2, 1, 1], DType::F16);
    let table = RotaryTable::new(&Device::Cpu, 10.0, 8, 4).unwrap();
    let results = [
        ("ids", embedding(&x, &ids)),
        ("labels", cross_entropy(&x, &ids).run()),
        ("mask", softmax(&x).mask(&x).run()),
        ("mask", attention(&heads, &heads, &heads).mask(&mask).run()),
        ("slopes", attention(&heads, &heads, &heads).alibi(&zeros(&[1], DType::F16)).run()),
        ("sinks", attention(&heads, &heads, &heads).sinks(&zeros(&[1], DType::BF16)).run()),
        ("gates", expert_mlp(&x, &zeros(&[2, 1, 1], DType::U32), &gates, &experts).run()),
        ("ids", expert_mlp(&x, &gates, &gates, &experts).run()),
        ("positions", rotary(&heads, &table).positions(&zeros(&[1, 2], DType::I64)).run()),
        ("x", rotary(&heads.to_dtype(DType::F64).unwrap(), &table).run()),
        ("x", softmax(&x.to_dtype(DType::F64).unwrap()).run()),
        ("table", embedding(&x.to_dtype(DType::U32).unwrap(), &ids)),
        ("logits", cross_entropy(&x.to_dtype(DType::F64).unwrap(), &ids).run()),
    ];
    for (expected, result) in results {
        match result {
            Err(Error::Type { operand, .. }) => assert_eq!(operand, expected),
            result => panic!("{expected}: {result:?}"),
        }
    }
}

#[test]
fn wrong_shapes_are_typed_errors() {
    let x = |shape: &[usize]| zeros(shape, DType::F32);
    let ids = |shape: &[usize]| zeros(shape, DType::U32);
    let experts = Experts::new(ExpertFormat::F32, &x(&[5, 8]), None, &x(&[5, 8])).unwrap();
    let table = RotaryTable::new(&Device::Cpu, 10.0, 8, 4).unwrap();
    let results = [
        linear(&x(&[]), &x(&[4, 3])).run(),
        linear(&x(&[2, 3]), &x(&[])).run(),
        linear(&x(&[2, 3]), &x(&[4, 5])).run(),
        linear(&x(&[2, 3]), &x(&[4, 3])).bias(&x(&[5])).run(),
        matmul(&x(&[3]), &x(&[3, 4])).run(),
        matmul(&x(&[2, 3]), &x(&[])).run(),
        matmul(&x(&[2, 3]), &x(&[4, 5])).run(),
        matmul(&x(&[2, 2, 3]), &x(&[3, 3, 5])).run(),
        generated_update(&x(&[]), &x(&[3, 1]), &x(&[1]), &x(&[1, 4]), 1.0).run(),
        generated_update(&x(&[2, 3]), &x(&[3, 1]), &x(&[2]), &x(&[1, 4]), 1.0).run(),
        generated_update(&x(&[2, 3]), &x(&[3, 1]), &x(&[1]), &x(&[4]), 1.0).run(),
        linear_with_update(&x(&[2, 3]), &x(&[4]), &x(&[3, 1]), &x(&[1]), &x(&[1, 4]), 1.0).run(),
        attention(&x(&[2, 8]), &x(&[1, 2, 1, 8]), &x(&[1, 2, 1, 8])).run(),
        attention(&x(&[]), &x(&[]), &x(&[])).run(),
        attention(&x(&[1, 2, 3, 8]), &x(&[1, 2, 2, 8]), &x(&[1, 2, 2, 8])).run(),
        layer_norm(&x(&[])).run(),
        layer_norm(&x(&[2, 3])).weight(&x(&[2])).run(),
        rms_norm(&x(&[2, 3])).bias(&x(&[1, 3])).run(),
        softmax(&x(&[])).run(),
        softmax(&x(&[2, 3])).mask(&zeros(&[2, 2], DType::U8)).run(),
        cross_entropy(&x(&[2, 3]), &ids(&[3])).run(),
        cross_entropy(&x(&[]), &ids(&[])).run(),
        embedding(&x(&[3]), &ids(&[2])),
        embedding(&x(&[]), &ids(&[2])),
        rotary(&x(&[2, 6]), &table).run(),
        rotary(&x(&[]), &table).run(),
        rotary(&x(&[5, 1, 8]), &table).run(),
        expert_mlp(&x(&[2, 7]), &ids(&[2, 1, 1]), &x(&[2, 1, 1]), &experts).run(),
        expert_mlp(&x(&[]), &ids(&[1, 1]), &x(&[1, 1]), &experts).run(),
        product_key_topk(&x(&[]), &x(&[8, 8]), &x(&[5, 4]), &x(&[5, 4]), 1, 2).run().map(|(ids, _)| ids),
        product_key_topk(&x(&[2, 8]), &x(&[8, 8]), &x(&[5, 4]), &x(&[5, 4]), 1, 9).run().map(|(ids, _)| ids),
    ];
    for (index, result) in results.into_iter().enumerate() {
        assert!(
            matches!(result, Err(Error::Warpsmith(_) | Error::Shape { .. })),
            "number {index}: {result:?}"
        );
    }
}

#[test]
fn options_out_of_their_range_are_refused() {
    let x = zeros(&[2, 3], DType::F32);
    let heads = zeros(&[1, 2, 1, 8], DType::F32);
    let labels = zeros(&[2], DType::U32);
    let results = [
        layer_norm(&x).epsilon(-1.0).run(),
        softmax(&x).scale(0.0).run(),
        cross_entropy(&x, &labels).label_smoothing(2.0).run(),
        attention(&heads, &heads, &heads).soft_cap(-1.0).run(),
        attention(&heads, &heads, &heads).scale(f32::NAN).run(),
    ];
    for result in results {
        assert!(matches!(result, Err(Error::Warpsmith(warpsmith::Error::Argument { .. }))), "{result:?}");
    }
}

#[test]
fn tracked_slopes_are_refused_and_detached_ones_are_not() -> Result<()> {
    let heads = zeros(&[1, 2, 1, 8], DType::F32);
    let slopes = Var::zeros(1, DType::F32, &Device::Cpu)?;
    let refused = attention(&heads, &heads, &heads).alibi(slopes.as_tensor()).run();
    assert!(matches!(refused, Err(Error::NoGradient { operand: "slopes", .. })));
    attention(&heads, &heads, &heads).alibi(&slopes.detach()).run()?;
    Ok(())
}

#[test]
fn an_error_in_a_module_is_found_in_candles() {
    use candle_core::Module;
    let layer = nn::Linear::new(zeros(&[4, 3], DType::F32), None);
    let error = layer.forward(&zeros(&[2, 3], DType::F16)).unwrap_err();
    assert!(
        matches!(Error::find(&error), Some(Error::Type { operation: "linear", operand: "w", .. })),
        "{error}"
    );
    assert!(error.to_string().contains("`w` has elements of type f32, expected f16"), "{error}");
}

/// Of another device than the CPU, where there is one.
#[cfg(feature = "cuda")]
#[test]
fn operands_on_different_devices_are_refused() -> Result<()> {
    let gpu = Device::new_cuda(0)?;
    let (x, w) = (zeros(&[2, 3], DType::F32), Tensor::zeros((4, 3), DType::F32, &gpu)?);
    assert!(matches!(linear(&x, &w).run(), Err(Error::DeviceMismatch { operand: "w", .. })));
    assert!(matches!(linear(&w, &x).run(), Err(Error::DeviceMismatch { operand: "w", .. })));
    let table = RotaryTable::new(&Device::Cpu, 10.0, 8, 4)?;
    let heads = Tensor::zeros((2, 1, 8), DType::F32, &gpu)?;
    assert!(matches!(rotary(&heads, &table).run(), Err(Error::DeviceMismatch { operand: "table", .. })));
    // Another candle device of the same GPU has another stream.
    let other = Tensor::zeros((4, 3), DType::F32, &Device::new_cuda(0)?)?;
    let error = linear(&w, &other).run().unwrap_err();
    assert!(matches!(error, Error::DeviceMismatch { operand: "w", .. }));
    let told = error.to_string();
    assert!(
        told.contains("of its own of cuda:0") && told.contains("a clone of the one that `x` is on"),
        "{told}"
    );
    Ok(())
}
