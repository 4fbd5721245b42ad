//! Tensors: any layout in, any view out, on every device.

use half::{bf16, f16};
use libtest_mimic::Failed;
use ndarray::{ArrayD, ArrayViewD, Axis, IxDyn, Slice, s};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use warpsmith::{DType, Device, Element, Error, Tensor};

use crate::{Case, On, cases};

#[rustfmt::skip]
pub(crate) const CASES: &[(&str, On, Case)] = &cases![On::All =>
    every_element_type_round_trips,
    arrays_of_any_layout_arrive_in_order,
    views_read_as_the_same_views_of_an_array,
    copies_between_views_move_the_elements_and_nothing_else,
    wide_views_of_many_rows_read_in_order,
    flattening_leading_axes_copies_nothing,
    tensors_without_elements_work,
    absurd_sizes_are_errors,
    wrong_shapes_and_ranges_are_errors,
    overlapping_copies_are_errors,
    other_devices_are_errors_and_to_device_goes_there,
];

/// A test runner that writes nothing to the disk.
fn runner(cases: u32) -> TestRunner {
    TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() })
}

fn numbered(shape: &[usize]) -> ArrayD<i32> {
    let count = i32::try_from(shape.iter().product::<usize>()).unwrap();
    ArrayD::from_shape_vec(IxDyn(shape), (0..count).collect()).unwrap()
}

fn every_element_type_round_trips(device: &Device) -> Result<(), Failed> {
    fn check<T: Element>(device: &Device, values: &[T], dtype: DType) -> Result<(), Failed> {
        let tensor = Tensor::from_slice(device, values, [values.len()])?;
        assert_eq!(tensor.to_vec()?, values);
        assert_eq!(tensor.dtype(), dtype);
        assert_eq!(Tensor::<T>::zeros(device, [3, 5])?.to_vec()?, vec![T::zeroed(); 15]);
        Ok(())
    }
    check(device, &[1.5, -0.0, f32::MAX, f32::INFINITY], DType::F32)?;
    check(device, &[1.5, f64::MIN_POSITIVE], DType::F64)?;
    check(device, &[f16::from_f32(1.5), f16::MAX, f16::MIN_POSITIVE_SUBNORMAL], DType::F16)?;
    check(device, &[bf16::from_f32(-3.0), bf16::EPSILON], DType::Bf16)?;
    check(device, &[0u8, 255, 7], DType::U8)?;
    check(device, &[i32::MIN, i32::MAX], DType::I32)?;
    check(device, &[u32::MAX, 1], DType::U32)?;
    check(device, &[i64::MIN, i64::MAX], DType::I64)
}

fn arrays_of_any_layout_arrive_in_order(device: &Device) -> Result<(), Failed> {
    let array = numbered(&[4, 6, 5]);
    let views = [
        array.view(),
        array.view().permuted_axes(vec![2, 0, 1]),
        array.slice(s![..;2, ..;-1, 1..4]).into_dyn(),
        array.slice(s![3..3, .., ..]).into_dyn(),
        array.slice(s![1, 2, 3]).into_dyn(),
    ];
    for view in views {
        assert_eq!(Tensor::from_array(device, &view)?.to_array()?, view);
    }
    Ok(())
}

/// A view of a matrix.
type TakeView = fn(&Tensor<i32>) -> Tensor<i32>;

/// A step from a view to another one.
#[derive(Clone, Debug)]
enum Step {
    Slice { axis: usize, from: usize, to: usize },
    SwapAxes(usize, usize),
    FlattenLeading,
    Merge,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4usize, 0..9usize, 0..9usize).prop_map(|(axis, from, to)| Step::Slice { axis, from, to }),
        2 => (0..4usize, 0..4usize).prop_map(|(first, second)| Step::SwapAxes(first, second)),
        1 => Just(Step::FlattenLeading),
        1 => Just(Step::Merge),
    ]
}

/// Takes a step with a tensor and with an array; where the tensor refuses for its strides, both stay.
fn step(tensor: Tensor<i32>, array: ArrayD<i32>, step: &Step) -> (Tensor<i32>, ArrayD<i32>) {
    let rank = tensor.rank();
    let reshaped = |array: &ArrayD<i32>, shape: &[usize]| {
        array.as_standard_layout().into_owned().into_shape_with_order(IxDyn(shape)).unwrap()
    };
    match *step {
        Step::Slice { axis, from, to } if rank > 0 => {
            let axis = axis % rank;
            let length = tensor.shape()[axis];
            let (from, to) = (from.min(to).min(length), from.max(to).min(length));
            let view = array.slice_axis(Axis(axis), Slice::from(from..to)).into_owned();
            (tensor.slice(axis, from..to).unwrap(), view)
        }
        Step::SwapAxes(first, second) if rank > 0 => {
            let mut view = array;
            view.swap_axes(first % rank, second % rank);
            (tensor.swap_axes(first % rank, second % rank).unwrap(), view)
        }
        Step::FlattenLeading if rank > 0 => match tensor.flatten_leading() {
            Ok(flat) => {
                let view = reshaped(&array, flat.shape());
                (flat, view)
            }
            Err(Error::Stride { .. }) => (tensor, array),
            Err(other) => panic!("{other}"),
        },
        Step::Merge => match tensor.reshape([tensor.len()]) {
            Ok(flat) => (flat, reshaped(&array, &[array.len()])),
            Err(Error::Stride { .. }) => (tensor, array),
            Err(other) => panic!("{other}"),
        },
        _ => (tensor, array),
    }
}

fn views_read_as_the_same_views_of_an_array(device: &Device) -> Result<(), Failed> {
    let shapes = prop::collection::vec(0..7usize, 0..5);
    let steps = prop::collection::vec(any_step(), 0..5);
    runner(100).run(&(shapes, steps), |(shape, steps)| {
        let array = numbered(&shape);
        let tensor = Tensor::from_array(device, &array).unwrap();
        let (tensor, array) =
            steps.iter().fold((tensor, array), |(tensor, array), next| step(tensor, array, next));
        prop_assert_eq!(tensor.to_array().unwrap(), array.view());
        prop_assert_eq!(tensor.contiguous().unwrap().to_array().unwrap(), array.view());
        prop_assert!(tensor.deep_clone().unwrap().is_contiguous());
        Ok(())
    })?;
    Ok(())
}

fn copies_between_views_move_the_elements_and_nothing_else(device: &Device) -> Result<(), Failed> {
    // A destination that is every kind of view of a larger array, from a source that is every kind of view.
    let views: [fn(ArrayViewD<'_, i32>) -> ArrayD<i32>; 3] = [
        |array| array.slice(s![1..4, 2..6]).into_owned().into_dyn(),
        |array| array.slice(s![2..6, 1..4]).t().into_owned().into_dyn(),
        |array| array.slice(s![0..3, 0..4]).into_owned().into_dyn(),
    ];
    let tensor_views: [TakeView; 3] = [
        |tensor| tensor.slice(0, 1..4).unwrap().slice(1, 2..6).unwrap(),
        |tensor| tensor.slice(0, 2..6).unwrap().slice(1, 1..4).unwrap().swap_axes(0, 1).unwrap(),
        |tensor| tensor.slice(0, 0..3).unwrap().slice(1, 0..4).unwrap(),
    ];
    let array = numbered(&[7, 8]);
    let source = Tensor::from_array(device, &array)?;
    for (take, take_tensor) in views.iter().zip(tensor_views) {
        for place in 0..3 {
            let target = Tensor::<i32>::from_slice(device, &[-1; 56], [7, 8])?;
            let mut view = tensor_views[place](&target);
            view.copy_from(&take_tensor(&source))?;
            let expected = take(array.view());
            assert_eq!(views[place](target.to_array()?.view()), expected);
            assert_eq!(
                target.to_vec()?.iter().filter(|&&x| x == -1).count(),
                56 - 12,
                "only the view is written"
            );

            let target = Tensor::<i32>::from_slice(device, &[-1; 56], [7, 8])?;
            let mut view = tensor_views[place](&target);
            view.write_slice(expected.as_standard_layout().as_slice().unwrap())?;
            assert_eq!(views[place](target.to_array()?.view()), expected);
            assert_eq!(
                target.to_vec()?.iter().filter(|&&x| x == -1).count(),
                56 - 12,
                "only the view is written"
            );
        }
    }
    Ok(())
}

fn wide_views_of_many_rows_read_in_order(device: &Device) -> Result<(), Failed> {
    // More blocks of rows than are read one by one.
    let array = numbered(&[100, 5, 7]);
    let tensor = Tensor::from_array(device, &array)?;
    let view = tensor.slice(1, 1..4)?.slice(2, 2..6)?;
    let expected = array.slice(s![.., 1..4, 2..6]);
    assert_eq!(view.to_array()?, expected.into_dyn());
    assert_eq!(view.deep_clone()?.to_vec()?, view.to_vec()?);
    Ok(())
}

fn flattening_leading_axes_copies_nothing(device: &Device) -> Result<(), Failed> {
    let tensor = Tensor::from_array(device, &numbered(&[2, 3, 4, 8]))?;
    let flat = tensor.flatten_leading()?;
    assert_eq!((flat.shape(), flat.strides()), (&[24, 8][..], &[8, 1][..]));
    assert!(flat.shares_memory(&tensor));
    // A slice of the last axis still has rows with one stride, one of a leading axis has not.
    let columns = tensor.slice(3, 2..5)?.flatten_leading()?;
    assert_eq!((columns.shape(), columns.strides()), (&[24, 3][..], &[8, 1][..]));
    let rows = tensor.slice(1, 0..2)?.flatten_leading();
    assert!(matches!(rows, Err(Error::Stride { operand: "tensor", .. })), "{rows:?}");
    let vector = Tensor::from_array(device, &numbered(&[5]))?.flatten_leading()?;
    assert_eq!(vector.shape(), [1, 5]);
    let scalar = Tensor::from_array(device, &numbered(&[]))?.flatten_leading();
    assert!(matches!(scalar, Err(Error::Shape { .. })), "{scalar:?}");
    Ok(())
}

fn tensors_without_elements_work(device: &Device) -> Result<(), Failed> {
    for shape in [&[0][..], &[3, 0], &[0, 3], &[2, 0, 4]] {
        let mut tensor = Tensor::<f32>::zeros(device, shape)?;
        assert!(tensor.is_empty() && tensor.is_contiguous());
        assert_eq!(tensor.to_array()?.shape(), shape);
        assert_eq!(tensor.deep_clone()?.shape(), shape);
        tensor.copy_from(&Tensor::uninit(device, shape)?)?;
        tensor.write_slice(&[])?;
        assert!(tensor.arg().is_null() && tensor.arg_mut().is_null());
        let flat = tensor.flatten_leading()?;
        assert_eq!(flat.shape()[1], *shape.last().unwrap());
    }
    let tensor = Tensor::from_array(device, &numbered(&[4, 4]))?;
    let none = tensor.slice(0, 4..4)?;
    assert!(none.to_vec()?.is_empty());
    assert_eq!(none.contiguous()?.shape(), [0, 4]);
    assert_eq!(none.reshape([2, 0, 9])?.shape(), [2, 0, 9]);
    Ok(())
}

fn absurd_sizes_are_errors(device: &Device) -> Result<(), Failed> {
    for shape in [&[usize::MAX, 2][..], &[usize::MAX], &[1 << 32, 1 << 32], &[1 << 62], &[usize::MAX, 0, 2]] {
        let result = Tensor::<f32>::uninit(device, shape);
        assert!(matches!(result, Err(Error::SizeLimit { operand: "tensor", .. })), "{shape:?}: {result:?}");
        let result = Tensor::<f32>::from_slice(device, &[], shape);
        assert!(matches!(result, Err(Error::SizeLimit { .. })), "{shape:?}: {result:?}");
    }
    let reshaped = Tensor::<f32>::zeros(device, [0])?.reshape([1 << 40, 1 << 40]);
    assert!(matches!(reshaped, Err(Error::Shape { .. })), "{reshaped:?}");
    Ok(())
}

fn wrong_shapes_and_ranges_are_errors(device: &Device) -> Result<(), Failed> {
    let mut tensor = Tensor::<f32>::zeros(device, [3, 4])?;
    let error = Tensor::from_slice(device, &[1.0f32; 11], [3, 4]).unwrap_err();
    assert!(matches!(&error, Error::Shape { operand: "elements", actual, .. } if actual == &[11]), "{error}");
    assert!(matches!(tensor.write_slice(&[0.0; 13]), Err(Error::Shape { operand: "elements", .. })));
    assert!(matches!(tensor.reshape([5, 2]), Err(Error::Shape { .. })));
    assert!(matches!(tensor.swap_axes(0, 1)?.reshape([12]), Err(Error::Stride { .. })));
    #[allow(clippy::reversed_empty_ranges)]
    for (axis, range) in [(2, 0..1), (0, 0..4), (1, 3..2), (1, 5..5), (0, 0..usize::MAX)] {
        let result = tensor.slice(axis, range.clone());
        assert!(matches!(result, Err(Error::Argument { .. })), "{axis} {range:?}");
    }
    assert!(matches!(tensor.swap_axes(0, 2), Err(Error::Argument { .. })));
    let other = Tensor::<f32>::zeros(device, [4, 3])?;
    assert!(matches!(tensor.copy_from(&other), Err(Error::Shape { operand: "source", .. })));
    Ok(())
}

fn overlapping_copies_are_errors(device: &Device) -> Result<(), Failed> {
    let tensor = Tensor::<f32>::zeros(device, [6, 4])?;
    let mut upper = tensor.slice(0, 0..4)?;
    assert!(matches!(upper.copy_from(&tensor.slice(0, 2..6)?), Err(Error::Overlap { .. })));
    upper.slice(0, 0..2)?.copy_from(&tensor.slice(0, 4..6)?)?;
    Ok(())
}

fn other_devices_are_errors_and_to_device_goes_there(device: &Device) -> Result<(), Failed> {
    let other = Device::emulator();
    let array = numbered(&[3, 4]);
    let mut here = Tensor::from_array(device, &array)?;
    let there = here.swap_axes(0, 1)?.to_device(&other)?;
    assert_eq!(there.device(), &other);
    assert_eq!(there.to_array()?, array.t());
    assert_eq!(there.to_device(device)?.to_array()?, array.t());
    assert!(here.to_device(device)?.shares_memory(&here));
    let there = here.to_device(&other)?;
    assert!(matches!(here.copy_from(&there), Err(Error::DeviceMismatch { operand: "source", .. })));
    Ok(())
}
