//! What only compute capability 9.0 has: tensor maps, the copy engine and clusters. What the emulator takes from documents or from
//! others' measurements is compared with the GPU here: both must give what these cases expect.

use half::bf16;
use libtest_mimic::Failed;
use warpsmith::tensor::{OobFill, Swizzle, TensorMapOptions, TensorType};
use warpsmith::{Device, Element, Module, Tensor};

use crate::{Case, On, cases, raw};

#[rustfmt::skip]
pub(crate) const CASES: &[(&str, On, Case)] = &cases![On::Hopper =>
    tiles_are_swizzled_as_expected,
    elements_outside_a_tensor_are_filled_as_expected,
    tf32_maps_round_as_expected,
    element_strides_leave_rows_out,
    boxes_move_between_tensors_and_add_up,
    a_store_writes_the_rest_of_a_chunk_in_which_a_row_ends,
    blocks_of_a_cluster_share_what_they_load,
    launches_in_clusters_of_every_size_work,
    all_of_the_shared_memory_of_a_cluster_can_be_used,
    a_pipelined_product_is_exact,
];

const TEXT: &str = include_str!("hopper.ptx");
/// The emulator's own example of a pipeline, so that a GPU says whether it is one.
const PRODUCT: &str = include_str!("../../../emulator/tests/data/tma_gemm.ptx");

fn module(device: &Device) -> Result<Module, Failed> {
    Ok(device.load_ptx("hopper.ptx", TEXT)?)
}

/// The tile that a load of the box at `(x, y)` leaves in shared memory, in bytes.
fn load_tile<T: Element>(
    tensor: &Tensor<T>,
    box_shape: [usize; 2],
    rows: usize,
    options: &TensorMapOptions,
    (x, y): (i32, i32),
) -> Result<Vec<u8>, Failed> {
    let device = tensor.device();
    let row = box_shape[1] * size_of::<T>();
    let pitch = row.max(options.swizzle.span() as usize);
    let (box_bytes, tile_bytes) = ((row * rows) as u32, (pitch * rows) as u32);
    let map = tensor.tensor_map(box_shape, options)?;
    let mut out = Tensor::<u8>::zeros(device, [tile_bytes as usize])?;
    let address = out.arg_mut().address();
    let function = module(device)?.function("load_tile")?;
    // SAFETY: the arguments are those of `load_tile`; the tensors live until the result is read.
    unsafe {
        let arguments = raw![map, address, x, y, box_bytes, tile_bytes];
        function.launch(&device.default_stream(), [1; 3], [128, 1, 1], tile_bytes, &arguments)?;
    }
    Ok(out.to_vec()?)
}

/// The same by the documents: `element` gives the bytes of the element at a place, whether it is inside or not.
fn expected_tile(
    row_elements: usize,
    rows: usize,
    size: usize,
    swizzle: Swizzle,
    mut element: impl FnMut(usize, usize) -> Vec<u8>,
) -> Vec<u8> {
    let pitch = (row_elements * size).max(swizzle.span() as usize);
    let mut tile = vec![0xaa; pitch * rows];
    for row in 0..rows {
        for column in 0..row_elements {
            let offset = row * pitch + column * size;
            let offset = swizzle.apply(offset as u32) as usize;
            tile[offset..offset + size].copy_from_slice(&element(row, column));
        }
    }
    tile
}

fn numbered(device: &Device, rows: usize, columns: usize) -> Result<Tensor<i32>, Failed> {
    let values: Vec<i32> =
        (0..(rows * columns) as i32).map(|i| i.wrapping_mul(0x0101_6b35) ^ 0x5a5a).collect();
    Ok(Tensor::from_slice(device, &values, [rows, columns])?)
}

fn tiles_are_swizzled_as_expected(device: &Device) -> Result<(), Failed> {
    let x = numbered(device, 64, 48)?;
    let values = x.to_vec()?;
    for swizzle in [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128] {
        for columns in [4, 8, 12, 16, 32] {
            if swizzle != Swizzle::None && columns * 4 > swizzle.span() as usize {
                continue;
            }
            let options = TensorMapOptions { swizzle, ..TensorMapOptions::default() };
            let tile = load_tile(&x, [20, columns], 20, &options, (4, 30))?;
            let expected = expected_tile(columns, 20, 4, swizzle, |row, column| {
                values[(30 + row) * 48 + 4 + column].to_le_bytes().to_vec()
            });
            assert!(tile == expected, "{swizzle:?}, {columns} columns");
        }
    }
    Ok(())
}

fn elements_outside_a_tensor_are_filled_as_expected(device: &Device) -> Result<(), Failed> {
    fn check<T: Element>(device: &Device, oob_fill: OobFill, pattern: [u8; 2]) -> Result<(), Failed> {
        let size = size_of::<T>();
        let values: Vec<u8> = (0..30 * 16 * size).map(|i| (i * 37 + i / 256) as u8 & 0x3f).collect();
        let elements: Vec<T> = bytemuck::pod_collect_to_vec(&values);
        let x = Tensor::from_slice(device, &elements, [30, 16])?;
        let columns = 32 / size;
        // The box begins at a multiple of 16 bytes along the innermost axis.
        for (left, top) in [(-16, -2), (16, 25), (0, 30), (16, 0), (-48, 0), (0, i32::MAX), (i32::MIN, 0)] {
            let options = TensorMapOptions { oob_fill, ..TensorMapOptions::default() };
            let tile = load_tile(&x, [8, columns], 8, &options, (left, top))?;
            let expected = expected_tile(columns, 8, size, Swizzle::None, |row, column| {
                let (i, j) = (i64::from(top) + row as i64, i64::from(left) + column as i64);
                if (0..30).contains(&i) && (0..16).contains(&j) {
                    let at = (i * 16 + j) as usize * size;
                    values[at..at + size].to_vec()
                } else {
                    pattern.iter().copied().cycle().take(size).collect()
                }
            });
            assert!(tile == expected, "{oob_fill:?}, {} bytes, box at ({left}, {top})", size);
        }
        Ok(())
    }
    check::<u8>(device, OobFill::Zeros, [0, 0])?;
    check::<bf16>(device, OobFill::Zeros, [0, 0])?;
    check::<half::f16>(device, OobFill::Nan, [0xf7, 0x7f])?;
    check::<bf16>(device, OobFill::Nan, [0xf7, 0x7f])?;
    check::<f32>(device, OobFill::Nan, [0xf7, 0x7f])?;
    check::<f64>(device, OobFill::Nan, [0xf7, 0x7f])
}

fn tf32_maps_round_as_expected(device: &Device) -> Result<(), Failed> {
    // Everything around the bits that are cut off, with every kind of exponent.
    let mut values = Vec::new();
    for upper in [
        0x0000_0000u32,
        0x0000_2000,
        0x3f80_0000,
        0xbf80_2000,
        0x3fff_e000,
        0x7f7f_e000,
        0x007f_e000,
        0x8000_0000,
    ] {
        values.extend([0, 1, 0xfff, 0x1000, 0x1001, 0x1fff].map(|low| upper | low));
    }
    values.extend([0x7f80_0000, 0xff80_0000, 0x7f80_0001, 0xffc0_0000, 0x7fc1_2345, 0xffff_ffff]);
    values.resize(64, 0x3f80_0000);
    let elements: Vec<f32> = values.iter().map(|&bits| f32::from_bits(bits)).collect();
    let x = Tensor::from_slice(device, &elements, [2, 32])?;
    for (data_type, rounds) in [
        (TensorType::F32, false),
        (TensorType::F32Ftz, false),
        (TensorType::Tf32, true),
        (TensorType::Tf32Ftz, true),
    ] {
        let options = TensorMapOptions { data_type: Some(data_type), ..TensorMapOptions::default() };
        let tile = load_tile(&x, [2, 32], 2, &options, (0, 0))?;
        for (&bits, result) in values.iter().zip(tile.chunks_exact(4)) {
            let result = u32::from_le_bytes(result.try_into()?);
            let expected = match bits & 0x7fff_ffff {
                _ if !rounds => bits,
                0x7f80_0000 => bits,
                0x7f80_0001.. => 0x7fff_e000,
                _ => (bits + 0xfff + (bits >> 13 & 1)) & !0x1fff,
            };
            assert_eq!(
                result, expected,
                "{data_type:?} of {bits:#010x}: {result:#010x}, expected {expected:#010x}"
            );
        }
    }
    Ok(())
}

fn element_strides_leave_rows_out(device: &Device) -> Result<(), Failed> {
    let x = numbered(device, 64, 16)?;
    let values = x.to_vec()?;
    for (step, length, rows) in [(2, 16, 8), (3, 16, 6), (8, 60, 8), (5, 4, 1)] {
        let options = TensorMapOptions { element_strides: vec![step, 1], ..TensorMapOptions::default() };
        let tile = load_tile(&x, [length, 8], rows, &options, (4, 2))?;
        let expected = expected_tile(8, rows, 4, Swizzle::None, |row, column| {
            let inside = 2 + row * step < 64;
            let value = if inside { values[(2 + row * step) * 16 + 4 + column] } else { 0 };
            value.to_le_bytes().to_vec()
        });
        assert!(tile == expected, "every {step} of {length} rows");
    }
    Ok(())
}

fn boxes_move_between_tensors_and_add_up(device: &Device) -> Result<(), Failed> {
    fn check<T: Element>(device: &Device, value: impl Fn(i32) -> T, swizzle: Swizzle) -> Result<(), Failed> {
        // 70 x 48 in a wider tensor, in boxes of 16 x 32: the last ones reach beyond it.
        let element = |i: usize| value((i * 7 % 61) as i32 - 30);
        let values: Vec<T> = (0..70 * 64).map(element).collect();
        let x = Tensor::from_slice(device, &values, [70, 64])?.slice(1, 0..48)?;
        let wide = Tensor::<T>::zeros(device, [70, 64])?;
        let mut y = wide.slice(1, 0..48)?;
        let addends: Vec<T> = (0..70 * 48).map(|i| value(i % 13)).collect();
        let mut sum = Tensor::from_slice(device, &addends, [70, 48])?;
        let options = TensorMapOptions { swizzle, ..TensorMapOptions::default() };
        let width = match swizzle.span() as usize {
            0 => 32,
            span => span / size_of::<T>(),
        };
        let shape = [16, width];
        let maps = (
            x.tensor_map(shape, &options)?,
            y.tensor_map_mut(shape, &options)?,
            sum.tensor_map_mut(shape, &options)?,
        );
        let function = module(device)?.function("move_tiles")?;
        let (step_x, step_y, bytes) = (width as u32, 16u32, (16 * width * size_of::<T>()) as u32);
        let grid = [48usize.div_ceil(width) as u32, 70u32.div_ceil(16), 1];
        // SAFETY: the arguments are those of `move_tiles`; the tensors live until the results are read.
        unsafe {
            let arguments = raw![maps.0, maps.1, maps.2, step_x, step_y, bytes];
            function.launch(&device.default_stream(), grid, [32, 1, 1], bytes, &arguments)?;
        }
        assert_eq!(y.to_vec()?, x.to_vec()?);
        assert!(wide.slice(1, 48..64)?.to_vec()?.iter().all(|&element| element == T::zeroed()));
        let expected: Vec<T> =
            (0..70 * 48).map(|i| value((i / 48 * 64 + i % 48) * 7 % 61 - 30 + i % 13)).collect();
        assert_eq!(sum.to_vec()?, expected, "{swizzle:?}");
        Ok(())
    }
    for swizzle in [Swizzle::None, Swizzle::B64, Swizzle::B128] {
        check(device, |i| i, swizzle)?;
        check(device, |i| i as f32, swizzle)?;
        check(device, |i| bf16::from_f32(i as f32), swizzle)?;
        check(device, |i| half::f16::from_f32(i as f32), swizzle)?;
    }
    check(device, |i| i as u32, Swizzle::B32)
}

fn a_store_writes_the_rest_of_a_chunk_in_which_a_row_ends(device: &Device) -> Result<(), Failed> {
    // Rows of 90 elements, which end within a chunk of 8, in rows of 104; what the loads leave behind them are zeros.
    let element = |i: usize| bf16::from_f32((i * 7 % 61) as f32 + 1.0);
    let x = Tensor::from_slice(device, &(0..40 * 104).map(element).collect::<Vec<_>>(), [40, 104])?;
    let wide = Tensor::from_slice(device, &vec![bf16::from_f32(-5.0); 40 * 104], [40, 104])?;
    let (x_part, mut y) = (x.slice(1, 0..90)?, wide.slice(1, 0..90)?);
    // The kernel adds the box to a third tensor too, whose rows end with a chunk.
    let mut sum = Tensor::<bf16>::zeros(device, [40, 104])?;
    for swizzle in [Swizzle::None, Swizzle::B128] {
        let options = TensorMapOptions { swizzle, ..TensorMapOptions::default() };
        let maps = (
            x_part.tensor_map([16, 64], &options)?,
            y.tensor_map_mut([16, 64], &options)?,
            sum.tensor_map_mut([16, 64], &options)?,
        );
        let function = module(device)?.function("move_tiles")?;
        let (step_x, step_y, bytes) = (64u32, 16u32, 16 * 64 * 2u32);
        // SAFETY: the arguments are those of `move_tiles`; the tensors live until the results are read.
        unsafe {
            let arguments = raw![maps.0, maps.1, maps.2, step_x, step_y, bytes];
            function.launch(&device.default_stream(), [2, 3, 1], [32, 1, 1], bytes, &arguments)?;
        }
        for (i, value) in wide.to_vec()?.into_iter().enumerate() {
            let expected = match i % 104 {
                0..90 => element(i),
                90..96 => bf16::ZERO,
                _ => bf16::from_f32(-5.0),
            };
            assert_eq!(value, expected, "{swizzle:?}, row {}, column {}", i / 104, i % 104);
        }
    }
    Ok(())
}

fn blocks_of_a_cluster_share_what_they_load(device: &Device) -> Result<(), Failed> {
    let values: Vec<bf16> = (0..16 * 64).map(|i| bf16::from_bits(i * 61)).collect();
    let x = Tensor::from_slice(device, &values, [16, 64])?;
    let options = TensorMapOptions { swizzle: Swizzle::B128, ..TensorMapOptions::default() };
    let map = x.tensor_map([8, 64], &options)?;
    let mut out = Tensor::<u8>::zeros(device, [6, 2048])?;
    let address = out.arg_mut().address();
    let function = module(device)?.function("share_tile")?;
    // SAFETY: the arguments are those of `share_tile`; the tensors live until the result is read.
    unsafe { function.launch(&device.default_stream(), [6, 1, 1], [128, 1, 1], 0, &raw![map, address])? };
    let tile = expected_tile(64, 16, 2, Swizzle::B128, |row, column| {
        values[row * 64 + column].to_le_bytes().to_vec()
    });
    assert_eq!(out.to_vec()?, tile.repeat(6));
    Ok(())
}

fn launches_in_clusters_of_every_size_work(device: &Device) -> Result<(), Failed> {
    let function = module(device)?.function("ranks")?;
    let mut out = Tensor::<u32>::zeros(device, [48, 2])?;
    let address = out.arg_mut().address();
    for size in [1, 2, 3, 4, 6, 8, 12, 16] {
        // SAFETY: the argument is that of `ranks`, with room for 48 blocks.
        unsafe {
            let (grid, block, cluster) = ([48, 1, 1], [32, 1, 1], [size, 1, 1]);
            function.launch_clusters(&device.default_stream(), grid, block, cluster, 0, &raw![address])?;
        }
        let expected: Vec<u32> = (0..48).flat_map(|block| [block % size, size]).collect();
        assert_eq!(out.to_vec()?, expected, "clusters of {size}");
    }
    Ok(())
}

fn all_of_the_shared_memory_of_a_cluster_can_be_used(device: &Device) -> Result<(), Failed> {
    let most = device.properties().max_shared_per_block;
    assert_eq!(most, 227 * 1024);
    let function = module(device)?.function("ranks")?;
    let mut out = Tensor::<u32>::zeros(device, [4, 2])?;
    let address = out.arg_mut().address();
    // SAFETY: the argument is that of `ranks`, with room for 4 blocks.
    let launch = |shared| unsafe {
        let (grid, block, cluster) = ([4, 1, 1], [32, 1, 1], [2, 1, 1]);
        function.launch_clusters(&device.default_stream(), grid, block, cluster, shared, &raw![address])
    };
    launch(most)?;
    assert_eq!(out.to_vec()?, [0, 2, 1, 2, 0, 2, 1, 2]);
    assert!(launch(most + 1).is_err());
    Ok(())
}

fn a_pipelined_product_is_exact(device: &Device) -> Result<(), Failed> {
    let function = device.load_ptx("tma_gemm.ptx", PRODUCT)?.function("tma_gemm")?;
    let element = |i: usize, j: usize, salt: usize| ((i * 31 + j * 17 + salt) * 40_503 / 128 % 16) as i32 - 8;
    for [m, n, k] in [[256, 128, 448], [200, 72, 104], [64, 64, 8]] {
        let matrix = |rows: usize, salt: usize| -> Vec<bf16> {
            (0..rows * k).map(|i| bf16::from_f32(element(i / k, i % k, salt) as f32)).collect()
        };
        let a = Tensor::from_slice(device, &matrix(m, 1), [m, k])?;
        let b = Tensor::from_slice(device, &matrix(n, 2), [n, k])?;
        let mut c = Tensor::<f32>::zeros(device, [m, n])?;
        let options = TensorMapOptions { swizzle: Swizzle::B128, ..TensorMapOptions::default() };
        let maps = (
            a.tensor_map([64, 64], &options)?,
            b.tensor_map([32, 64], &options)?,
            c.tensor_map_mut([64, 64], &TensorMapOptions::default())?,
        );
        let tiles = k.div_ceil(64) as u32;
        let grid = [m.div_ceil(128) as u32 * 2, n.div_ceil(64) as u32, 1];
        // SAFETY: the arguments are those of `tma_gemm`; the tensors live until the result is read.
        unsafe {
            let arguments = raw![maps.0, maps.1, maps.2, tiles];
            function.launch(&device.default_stream(), grid, [160, 1, 1], 65_536, &arguments)?;
        }
        let sum = |i: usize, j: usize| (0..k).map(|l| element(i, l, 1) * element(j, l, 2)).sum::<i32>();
        let expected: Vec<f32> = (0..m * n).map(|i| sum(i / n, i % n) as f32).collect();
        assert_eq!(c.to_vec()?, expected, "{m} x {n} x {k}");
    }
    Ok(())
}
