//! Layers beside candle's own, of the same weights.

use candle_core::{DType, Device, Module, Result, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use warpsmith_candle::{Activation, Error, RotaryTable, linear, nn};

use crate::inputs::{Numbers, backward};

/// How far layers of f32 may be apart: both are rounded a few times for each of fewer than 64 terms, all of them at
/// most 4.
const NEAR: f64 = 64.0 * 4.0 * 8.0 * crate::near::U;

fn near(a: &Tensor, b: &Tensor) -> Result<()> {
    assert_eq!(a.dims(), b.dims());
    let off = (a.to_dtype(DType::F64)? - b.to_dtype(DType::F64)?)?.abs()?.max_all()?.to_scalar::<f64>()?;
    assert!(off <= NEAR, "off by {off:e}");
    Ok(())
}

#[test]
fn layers_are_candles_with_the_same_weights_and_names() -> Result<()> {
    let device = Device::Cpu;
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &device);
    let x = Numbers::new(1, &device, DType::F32).tensor(&[2, 5, 16])?;
    let modules: Vec<(Box<dyn Module>, Box<dyn Module>)> = vec![
        (Box::new(nn::linear(16, 7, vb.pp("a"))?), Box::new(candle_nn::linear(16, 7, vb.pp("a"))?)),
        (
            Box::new(nn::linear_no_bias(16, 7, vb.pp("b"))?),
            Box::new(candle_nn::linear_no_bias(16, 7, vb.pp("b"))?),
        ),
        (
            Box::new(nn::linear_b(16, 7, true, vb.pp("c"))?),
            Box::new(candle_nn::linear_b(16, 7, true, vb.pp("c"))?),
        ),
        (
            Box::new(nn::layer_norm(16, 1e-5, vb.pp("d"))?),
            Box::new(candle_nn::layer_norm(16, 1e-5, vb.pp("d"))?),
        ),
        (
            Box::new(nn::layer_norm_no_bias(16, 1e-5, vb.pp("e"))?),
            Box::new(candle_nn::layer_norm_no_bias(16, 1e-5, vb.pp("e"))?),
        ),
        (Box::new(nn::rms_norm(16, 1e-6, vb.pp("f"))?), Box::new(candle_nn::rms_norm(16, 1e-6, vb.pp("f"))?)),
    ];
    for (ours, theirs) in modules {
        near(&ours.forward(&x)?, &theirs.forward(&x)?)?;
    }
    let ids = Tensor::new(&[[3u32, 0], [8, 3]], &device)?;
    let (ours, theirs) = (nn::embedding(9, 4, vb.pp("g"))?, candle_nn::embedding(9, 4, vb.pp("g"))?);
    near(&ours.forward(&ids)?, &theirs.forward(&ids)?)?;
    near(&nn::ops::softmax(&x, 1)?, &candle_nn::ops::softmax(&x, 1)?)?;
    near(&nn::ops::softmax_last_dim(&x)?, &candle_nn::ops::softmax_last_dim(&x)?)?;
    let labels = Tensor::new(&[1u32, 3], &device)?;
    let logits = x.narrow(1, 0, 1)?.squeeze(1)?;
    near(&nn::loss::cross_entropy(&logits, &labels)?, &candle_nn::loss::cross_entropy(&logits, &labels)?)
}

#[test]
fn the_attention_layer_is_what_its_parts_are() -> Result<()> {
    let device = Device::Cpu;
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &device);
    let config =
        nn::AttentionConfig { key_heads: 2, has_bias: true, ..nn::AttentionConfig::new(4, 8) }.causal();
    let layer = nn::attention(16, config, vb.pp("attention"))?;
    let x = Var::from_tensor(&Numbers::new(2, &device, DType::F32).tensor(&[2, 5, 16])?)?;
    let y = layer.forward(&x)?;
    assert_eq!(y.dims(), [2, 5, 16]);
    // Rows depend on no later ones.
    near(&layer.forward(&x.narrow(1, 0, 3)?)?, &y.narrow(1, 0, 3)?)?;
    // Every weight has a gradient.
    let gradients = backward(&y, &y.ones_like()?)?;
    assert_eq!(variables.all_vars().len(), 8);
    for variable in variables.all_vars() {
        assert_eq!(gradients.get(&variable).expect("a gradient").dims(), variable.dims());
    }
    let project = |name: &str| candle_nn::linear(16, 0, vb.pp("attention").pp(name)).err();
    assert!(project("q_proj").is_some(), "a layer of no rows is not the one that is there");
    // A rotation by no angle, of one token, changes nothing.
    let turned = layer.clone().with_rotary(RotaryTable::new(&device, 100.0, 8, 4)?);
    let first = x.narrow(1, 0, 1)?;
    near(&turned.forward(&first)?, &layer.forward(&first)?)?;
    let error = layer.forward(&x.narrow(1, 0, 1)?.squeeze(1)?).unwrap_err();
    assert!(matches!(Error::find(&error), Some(Error::Shape { operand: "xs", .. })));
    let flat = nn::Linear::new(Tensor::zeros((9, 16), DType::F32, &device)?, None);
    let error = nn::Attention::new(config, flat.clone(), flat.clone(), flat.clone(), flat).unwrap_err();
    assert!(matches!(Error::find(&error), Some(Error::Shape { operand: "q", .. })));
    Ok(())
}

#[test]
fn an_update_of_zeros_changes_nothing_and_its_codes_have_gradients() -> Result<()> {
    let device = Device::Cpu;
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &device);
    let layer = nn::generated_update([16, 7], 3, 0.5, true, vb)?;
    let mut numbers = Numbers::new(3, &device, DType::F32);
    let (x, codes) = (numbers.tensor(&[5, 16])?, Var::from_tensor(&numbers.tensor(&[5, 3])?)?);
    let y = layer.forward(&x, &codes)?;
    near(&y, &Module::forward(&layer, &x)?)?;
    let gradients = backward(&y, &y.ones_like()?)?;
    assert_eq!(gradients.get(&codes).expect("a gradient").dims(), [5, 3]);
    assert_eq!(variables.all_vars().iter().filter(|variable| gradients.get(variable).is_some()).count(), 4);
    Ok(())
}

#[test]
fn broadcast_views_are_copied_and_their_gradients_added_up() -> Result<()> {
    let device = Device::Cpu;
    let row = Var::from_tensor(&Numbers::new(4, &device, DType::F32).integers(&[1, 3])?)?;
    let w = Tensor::new(&[[1f32, 2.0, 3.0], [4.0, 5.0, 6.0]], &device)?;
    let y = linear(&row.broadcast_as((4, 3))?, &w).activation(Activation::None).run()?;
    assert_eq!(y.to_vec2::<f32>()?, vec![row.matmul(&w.t()?)?.to_vec2::<f32>()?[0].clone(); 4]);
    let gradients = y.sum_all()?.backward()?;
    assert_eq!(gradients.get(&row).unwrap().to_vec2::<f32>()?, [[20.0, 28.0, 36.0]]);
    Ok(())
}

#[test]
fn threads_that_go_back_through_one_graph_have_the_same_gradients() -> Result<()> {
    let device = Device::Cpu;
    let mut numbers = Numbers::new(5, &device, DType::F32);
    let [x, w, v, u] = [[9, 16], [7, 16], [16, 3], [3, 7]].map(|shape| numbers.tensor(&shape));
    let variables = [x?, w?, v?, u?, numbers.tensor(&[9, 3])?].map(|tensor| Var::from_tensor(&tensor));
    let [x, w, v, u, codes] = variables;
    let (x, w, v, u, codes) = (x?, w?, v?, u?, codes?);
    let y = warpsmith_candle::linear_with_update(&x, &w, &v, &codes, &u, 0.5).run()?;
    let all = [&x, &w, &v, &u, &codes];
    let pass = |factor: f64| -> Result<Vec<Vec<f32>>> {
        let gradients = (y.affine(factor, 0.0)?).sum_all()?.backward()?;
        all.iter()
            .map(|variable| gradients.get(variable).expect("a gradient").flatten_all()?.to_vec1())
            .collect()
    };
    let expected = [pass(1.0)?, pass(2.0)?];
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|index| {
                (
                    index % 2,
                    scope.spawn(move || {
                        (0..20).map(|_| pass(1.0 + (index % 2) as f64)).collect::<Result<Vec<_>>>()
                    }),
                )
            })
            .collect();
        for (index, thread) in threads {
            assert!(thread.join().unwrap().unwrap().iter().all(|got| *got == expected[index]));
        }
    });
    Ok(())
}
