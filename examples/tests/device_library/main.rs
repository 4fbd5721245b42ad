//! The functions of the device library that kernels of one's own use, in the emulator, against f64 and against plain Rust.

mod kernels;
mod lanes;
mod launches;
mod math;

use half::{bf16, f16};
use warpsmith::tensor::Element;
use warpsmith::{Device, KernelFile, KernelModule, Result, Tensor};

const KERNELS: KernelFile = warpsmith::include_kernels!("kernels");

fn module() -> Result<(Device, KernelModule)> {
    let device = Device::emulator();
    let module = device.load_kernels(&KERNELS)?;
    Ok((device, module))
}

fn vector<T: Element>(device: &Device, elements: &[T]) -> Result<Tensor<T>> {
    Tensor::from_slice(device, elements, [elements.len()])
}

/// So many zeros of the type of `x`.
fn zeros<T: Element>(device: &Device, _: &[T], count: usize) -> Result<Tensor<T>> {
    Tensor::zeros(device, [count])
}

/// Elements that a test draws: all different, from all over the type.
fn words(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| i.wrapping_mul(0x9e37_79b9).rotate_left(7)).collect()
}

macro_rules! atomics {
    ($test:ident: $kernel:ident, $number:ty, $x:expr, $expected:expr) => {
        #[test]
        fn $test() -> Result<()> {
            let (device, module) = module()?;
            let x: Vec<$number> = $x;
            let expected: Vec<$number> = $expected(&x);
            let (mut global, mut shared) = (zeros(&device, &x, 8)?, zeros(&device, &x, 24)?);
            let args = (&vector(&device, &x)?, &mut global, &mut shared);
            // The further blocks have no elements.
            module.kernel::<kernels::$kernel>()?.run(&device.default_stream(), [1, 3, 1], args)?;
            assert_eq!(global.to_vec()?[..expected.len()], expected, "global memory");
            assert_eq!(shared.to_vec()?[..expected.len()], expected, "shared memory");
            assert_eq!(shared.to_vec()?[8..], zeros(&device, &x, 16)?.to_vec()?, "of other blocks");
            Ok(())
        }
    };
}
atomics!(atomics_of_u32_are_exact: atomics_u32, u32, words(61), |x: &[u32]| {
    let add = x.iter().fold(0u32, |a, b| a.wrapping_add(*b));
    let xor = x.iter().fold(0, |a, b| a ^ b);
    vec![add, *x.iter().max().unwrap(), 0, 0, x.iter().fold(0, |a, b| a | b), xor]
});
atomics!(atomics_of_i32_are_exact: atomics_i32, i32, words(61).into_iter().map(|x| x as i32).collect(), |x: &[i32]| {
    vec![x.iter().fold(0i32, |a, b| a.wrapping_add(*b)), *x.iter().max().unwrap(), *x.iter().min().unwrap()]
});
atomics!(atomics_of_f32_are_exact_where_sums_are: atomics_f32, f32, (0..61).map(|i| (i * 7 % 61 - 30) as f32 * 0.5).collect(), |x: &[f32]| {
    vec![x.iter().sum(), 15.0, -15.0]
});
atomics!(atomics_of_f16_are_exact_where_sums_are: atomics_f16, f16, (0..61).map(|i| f16::from_f32((i % 5) as f32)).collect(), |x: &[f16]| {
    vec![f16::from_f32(x.iter().map(|x| x.to_f32()).sum())]
});
atomics!(atomics_of_bf16_are_exact_where_sums_are: atomics_bf16, bf16, (0..61).map(|i| bf16::from_f32((i % 5) as f32)).collect(), |x: &[bf16]| {
    vec![bf16::from_f32(x.iter().map(|x| x.to_f32()).sum())]
});

#[test]
fn the_index_of_an_atomic_outside_ends_the_kernel() -> Result<()> {
    let (device, module) = module()?;
    let (mut global, mut shared) = (Tensor::<u32>::zeros(&device, [5])?, Tensor::<u32>::zeros(&device, [8])?);
    let args = (&vector(&device, &[1u32])?, &mut global, &mut shared);
    let run = module.kernel::<kernels::atomics_u32>()?.run(&device.default_stream(), [1, 1, 1], args);
    assert!(run.unwrap_err().to_string().contains("trap"));
    Ok(())
}

#[test]
fn exchanges_lose_nothing() -> Result<()> {
    let (device, module) = module()?;
    let x: Vec<u32> = (0..200).map(|i| i * 37 % 211).collect();
    let mut y = Tensor::<u32>::zeros(&device, [3])?;
    let args = (&vector(&device, &x)?, &mut y);
    module.kernel::<kernels::exchanges>()?.run_over(&device.default_stream(), x.len(), args)?;
    let y = y.to_vec()?;
    assert_eq!(y[0], *x.iter().max().unwrap());
    // What was put first is in the sum, but for what is still there.
    assert_eq!(y[1] + y[2], x.iter().sum::<u32>());
    Ok(())
}

macro_rules! copies {
    ($($test:ident: $kernel:ident, $from:expr;)*) => { $(
        #[test]
        fn $test() -> Result<()> {
            let (device, module) = module()?;
            for length in [2, 62, 64, 190] {
                let x: Vec<_> = words(length).into_iter().map($from).collect();
                let mut y = zeros(&device, &x, length)?;
                let args = (&vector(&device, &x)?, &mut y);
                module.kernel::<kernels::$kernel>()?.run_over(&device.default_stream(), length, args)?;
                for (pair, expected) in y.to_vec()?.chunks(2).zip(x.chunks(2)) {
                    assert_eq!([pair[0], pair[1]], [expected[1], expected[0]]);
                }
            }
            Ok(())
        }
    )* };
}
copies! {
    bytes_are_copied: copy_u8, |word| word as u8;
    f16_are_copied: copy_f16, |word| f16::from_bits(word as u16 & 0xbfff);
    bf16_are_copied: copy_bf16, |word| bf16::from_bits(word as u16 & 0xbfff);
    words_are_copied: copy_u32, |word| word;
    i64_are_copied: copy_i64, |word| i64::from(word) * -2_000_000_011;
    f64_are_copied: copy_f64, |word| f64::from(word) / 3.0;
}

#[test]
fn pointers_are_read_and_written() -> Result<()> {
    let (device, module) = module()?;
    let (x, before) = (crate::words(100), crate::words(203)[103..].to_vec());
    let (of_x, mut y) = (vector(&device, &x)?, vector(&device, &before)?);
    let kernel = module.kernel::<kernels::pointers>()?;
    // SAFETY: both have the 100 elements that the kernel touches, and outlive the launch.
    unsafe { kernel.launch(&device.default_stream(), [2, 1, 1], (of_x.arg(), y.arg_mut(), 100))? };
    let expected: Vec<u32> = x.iter().zip(&before).map(|(x, y)| x.wrapping_add(*y)).collect();
    assert_eq!(y.to_vec()?, expected);
    Ok(())
}

#[test]
fn a_thread_has_one_place_in_a_matrix() -> Result<()> {
    let (device, module) = module()?;
    for [rows, columns] in [[1, 1], [4, 8], [9, 17]] {
        let mut y = Tensor::<u32>::zeros(&device, [rows, columns])?;
        let grid = [columns.div_ceil(8) as u32, rows.div_ceil(4) as u32, 2];
        module.kernel::<kernels::places>()?.run(&device.default_stream(), grid, (&mut y,))?;
        let expected = (0..rows * columns).map(|i| (i / columns * 1000 + i % columns) as u32);
        assert_eq!(y.to_vec()?, expected.collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn a_block_has_its_indices_alone_in_any_grid() -> Result<()> {
    let (device, module) = module()?;
    for (grid, [rows, columns]) in [
        ([1, 1, 1], [3, 5]),
        ([2, 3, 4], [7, 11]),
        ([1, 1, 9], [1, 4]),
        ([1, 5, 1], [13, 1]),
        ([3, 1, 2], [0, 7]),
        ([2, 2, 2], [5, 0]),
    ] {
        let blocks = grid.iter().product::<u32>() as usize;
        let (mut by_index, mut by_place) = (
            Tensor::<u32>::zeros(&device, [rows + columns])?,
            Tensor::<u32>::zeros(&device, [rows * columns])?,
        );
        let args = (&mut by_index, columns as u32, &mut by_place);
        module.kernel::<kernels::turns>()?.run(&device.default_stream(), grid, args)?;
        for of_blocks in [by_index.to_vec()?, by_place.to_vec()?] {
            let expected: Vec<u32> = (0..of_blocks.len()).map(|index| (index % blocks) as u32 + 1).collect();
            assert_eq!(of_blocks, expected, "{rows} × {columns}, grid {grid:?}");
        }
    }
    Ok(())
}

#[test]
fn a_thread_has_one_index_in_a_grid_of_three_dimensions() -> Result<()> {
    let (device, module) = module()?;
    let threads = 30 * 2 * 3 * 4;
    let mut counts = Tensor::<u32>::zeros(&device, [threads])?;
    let mut ranks = Tensor::<u32>::zeros(&device, [threads])?;
    let args = (&mut counts, &mut ranks);
    module.kernel::<kernels::ranks>()?.run(&device.default_stream(), [2, 3, 4], args)?;
    assert!(counts.to_vec()?.iter().all(|&count| count == 1));
    assert!(ranks.to_vec()?.iter().enumerate().all(|(i, &rank)| rank as usize == i % 30));
    Ok(())
}
