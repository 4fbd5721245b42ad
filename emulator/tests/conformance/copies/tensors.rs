//! Boxes of tensors.

use warpsmith_emulator::{FindingKind, LaunchConfig, Machine, Module, OobFill, Swizzle, TensorType};

use super::{
    INIT, MAP, Shape, WAIT, dump_tile, fill_tile, finding, kernel, machines, memory, noise, read, read_tile,
    run, threads,
};

const MATRIX: Shape<'static> = Shape {
    data_type: TensorType::Bf16,
    dims: &[100, 40],
    strides: &[208],
    box_dims: &[64, 16],
    element_strides: &[1, 1],
    swizzle: Swizzle::B128,
    oob_fill: OobFill::Zeros,
};

/// The parameters `c0`… and their loads to `%r8`…; the list of coordinates.
fn coordinates(rank: usize) -> (String, String, String) {
    let parameters = (0..rank).map(|i| format!(", .param .u32 c{i}")).collect();
    let loads = (0..rank).map(|i| format!("ld.param.u32 %r{}, [c{i}];\n", 8 + i)).collect();
    let names: Vec<_> = (0..rank).map(|i| format!("%r{}", 8 + i)).collect();
    (parameters, loads, names.join(", "))
}

/// A kernel that loads a box to a tile of other bytes and writes the tile out.
fn loader(shape: &Shape<'_>) -> Module {
    let rank = shape.rank();
    let (parameters, loads, names) = coordinates(rank);
    let tile = shape.tile_bytes();
    // Tiles are what is meant where no mode is named.
    let mode = if rank == 2 { "" } else { ".tile" };
    let body = format!(
        "ld.param.u64 %p, [out];\n{loads}{MAP}{}{INIT}@!%one bra $WAIT;\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {};\n\
         cp.async.bulk.tensor.{rank}d.shared::cluster.global{mode}.mbarrier::complete_tx::bytes\n\
         [%tile], [%map, {{{names}}}], [%bar];\n{WAIT}{}",
        fill_tile(tile, 0xaaaa_aaaa),
        shape.box_bytes(),
        dump_tile(tile),
    );
    kernel(&format!(".param .align 64 .b8 map[128], .param .u64 out{parameters}"), "", tile, &body)
}

fn load(machine: &Machine, module: &Module, shape: &Shape<'_>, tensor: u64, start: &[i32]) -> Vec<u8> {
    let tile = shape.tile_bytes();
    let out = machine.allocate(tile).unwrap();
    let map = shape.map(tensor);
    let mut arguments: Vec<Vec<u8>> = vec![map.as_bytes().to_vec(), out.to_le_bytes().to_vec()];
    arguments.extend(start.iter().map(|c| c.to_le_bytes().to_vec()));
    let arguments: Vec<&[u8]> = arguments.iter().map(|a| &a[..]).collect();
    run(machine, module, threads(64), &arguments).unwrap_or_else(|error| panic!("{error}"));
    read(machine, out, tile)
}

fn expected(shape: &Shape<'_>, data: &[u8], start: &[i32], outside: u16, value: fn(u32) -> u32) -> Vec<u8> {
    let size = shape.data_type.bytes() as usize;
    let mut tile = vec![0xaa; shape.tile_bytes() as usize];
    for (offset, from) in shape.elements(start) {
        let to = &mut tile[offset..offset + size];
        match from {
            Some(from) => to.copy_from_slice(&data[from..from + size]),
            None => to.iter_mut().enumerate().for_each(|(i, byte)| *byte = outside.to_le_bytes()[i % 2]),
        }
        if from.is_some() && size == 4 {
            let bits = value(u32::from_le_bytes(to.try_into().unwrap()));
            to.copy_from_slice(&bits.to_le_bytes());
        }
    }
    tile
}

fn check(shape: &Shape<'_>, starts: &[&[i32]], outside: u16, value: fn(u32) -> u32) {
    let data = noise(shape.bytes());
    let module = loader(shape);
    for machine in machines() {
        let tensor = memory(&machine, &data);
        for start in starts {
            let tile = load(&machine, &module, shape, tensor, start);
            let expected = expected(shape, &data, start, outside, value);
            assert!(tile == expected, "{:?} {:?} at {start:?}", shape.swizzle, shape.box_dims);
        }
    }
}

#[test]
fn a_load_fills_the_tile_as_the_swizzle_says_and_nothing_else() {
    for swizzle in [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128] {
        for bytes in [16, 32, 48, 64, 128] {
            if swizzle == Swizzle::None || bytes <= swizzle.span() {
                let box_dims = [bytes / 2, 16];
                let shape = Shape { swizzle, box_dims: &box_dims, ..MATRIX };
                check(&shape, &[&[0, 0], &[8, 3]], 0, |bits| bits);
            }
        }
    }
}

#[test]
fn elements_outside_the_tensor_are_filled() {
    let starts: [&[i32]; 8] =
        [&[-8, 0], &[88, 0], &[0, -7], &[0, 30], &[96, 39], &[104, 0], &[i32::MIN, 0], &[0, i32::MAX]];
    check(&MATRIX, &starts, 0, |bits| bits);
    check(&Shape { oob_fill: OobFill::Nan, ..MATRIX }, &starts, 0x7ff7, |bits| bits);
    let single = Shape { data_type: TensorType::F32, dims: &[50, 40], box_dims: &[32, 16], ..MATRIX };
    check(&Shape { oob_fill: OobFill::Nan, ..single }, &[&[40, 35]], 0x7ff7, |bits| bits);
}

#[test]
fn tensors_of_every_rank_are_loaded() {
    let strides = [64, 512, 4096, 16_384];
    for rank in 1..=5 {
        let shape = Shape {
            data_type: TensorType::S32,
            dims: &[16, 7, 6, 4, 3][..rank],
            strides: &strides[..rank - 1],
            box_dims: &[8, 3, 2, 2, 2][..rank],
            element_strides: &[1; 5][..rank],
            swizzle: Swizzle::B32,
            oob_fill: OobFill::Zeros,
        };
        check(&shape, &[&[4, 5, 1, 3, 2][..rank], &[-4, -1, 5, -1, 0][..rank]], 0, |bits| bits);
    }
}

#[test]
fn element_strides_leave_rows_out() {
    let shape = Shape { element_strides: &[1, 3], ..MATRIX };
    check(&shape, &[&[0, 0], &[8, -2], &[40, 33]], 0, |bits| bits);
}

#[test]
fn maps_of_type_tf32_round_to_the_nearest_even_number() {
    let shape = Shape {
        data_type: TensorType::Tf32,
        dims: &[64, 20],
        strides: &[256],
        box_dims: &[32, 16],
        ..MATRIX
    };
    check(&shape, &[&[0, 0], &[40, 10]], 0, |bits| {
        let value = f32::from_bits(bits);
        if value.is_nan() {
            return 0x7fff_e000;
        }
        // The two neighbours with ten bits of fraction; the nearer one, or of two the even one.
        let (low, high) = (bits & !0x1fff, (bits & !0x1fff) + 0x2000);
        match (bits - low).cmp(&(high - bits)) {
            _ if value.is_infinite() => bits,
            std::cmp::Ordering::Less => low,
            std::cmp::Ordering::Greater => high,
            std::cmp::Ordering::Equal => {
                if low & 0x2000 == 0 {
                    low
                } else {
                    high
                }
            }
        }
    });
    check(&Shape { data_type: TensorType::F32Ftz, ..shape }, &[&[0, 0]], 0, |bits| bits);
}

/// A kernel that stores a tile to a box, or reduces with it.
fn storer(shape: &Shape<'_>, instruction: &str) -> Module {
    let (parameters, loads, names) = coordinates(shape.rank());
    let tile = shape.tile_bytes();
    let body = format!(
        "ld.param.u64 %p, [in];\n{loads}{MAP}{}@!%one bra $END;\n\
         {instruction} [%map, {{{names}}}], [%tile];\n\
         cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n$END:",
        read_tile(tile),
    );
    kernel(&format!(".param .align 64 .b8 map[128], .param .u64 in{parameters}"), "", tile, &body)
}

/// Stores a tile of noise to a tensor of other noise, and compares all of it with what `combine` makes of old and new.
fn check_store(
    shape: &Shape<'_>,
    instruction: &str,
    starts: &[&[i32]],
    combine: impl Fn(&[u8], &[u8]) -> Vec<u8>,
) {
    check_store_of(shape, instruction, starts, |byte, _| byte, combine);
}

/// The same with noise that `change` has changed, which gets each byte and its offset.
fn check_store_of(
    shape: &Shape<'_>,
    instruction: &str,
    starts: &[&[i32]],
    change: impl Fn(u8, usize) -> u8,
    combine: impl Fn(&[u8], &[u8]) -> Vec<u8>,
) {
    let noise = |count: u64| -> Vec<u8> {
        noise(count).into_iter().enumerate().map(|(i, byte)| change(byte, i)).collect()
    };
    let (old, tile) =
        (noise(shape.bytes()), noise(shape.bytes() + shape.tile_bytes())[shape.bytes() as usize..].to_vec());
    let module = storer(shape, instruction);
    let size = shape.data_type.bytes() as usize;
    for machine in machines() {
        for start in starts {
            let tensor = memory(&machine, &old);
            let input = memory(&machine, &tile);
            let map = shape.map(tensor);
            let mut arguments: Vec<Vec<u8>> = vec![map.as_bytes().to_vec(), input.to_le_bytes().to_vec()];
            arguments.extend(start.iter().map(|c| c.to_le_bytes().to_vec()));
            let arguments: Vec<&[u8]> = arguments.iter().map(|a| &a[..]).collect();
            run(&machine, &module, threads(64), &arguments).unwrap_or_else(|error| panic!("{error}"));
            let mut expected = old.clone();
            for (offset, to) in shape.elements(start) {
                let Some(to) = to else { continue };
                let new = combine(&old[to..to + size], &tile[offset..offset + size]);
                expected[to..to + size].copy_from_slice(&new);
            }
            assert!(read(&machine, tensor, shape.bytes()) == expected, "{instruction} at {start:?}");
        }
    }
}

#[test]
fn a_store_writes_what_lies_inside_the_tensor() {
    for swizzle in [Swizzle::None, Swizzle::B128] {
        let shape = Shape { swizzle, dims: &[104, 40], ..MATRIX };
        let starts: [&[i32]; 5] = [&[0, 0], &[32, 20], &[48, 35], &[104, 0], &[0, 40]];
        let instruction = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group";
        check_store(&shape, instruction, &starts, |_, new| new.to_vec());
    }
    let row = Shape { dims: &[104], strides: &[], box_dims: &[64], element_strides: &[1], ..MATRIX };
    check_store(&row, "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group", &[&[40], &[8]], |_, new| {
        new.to_vec()
    });
}

/// As an H100 does it: a box's row ends with the chunk of 16 bytes in which the tensor's row ends.
#[test]
fn a_store_writes_the_rest_of_a_chunk_in_which_the_tensor_ends() {
    let shape = Shape { dims: &[90, 20], ..MATRIX };
    // What a store changes: the same tensor with whole chunks in its rows.
    let whole = Shape { dims: &[96, 20], ..shape };
    let module = storer(&shape, "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group");
    let (old, tile) = (noise(whole.bytes()), noise(shape.tile_bytes()));
    for machine in machines() {
        for start in [[64, 0], [40, 10], [88, 4], [0, 0]] {
            let (tensor, input) = (memory(&machine, &old), memory(&machine, &tile));
            let map = shape.map(tensor);
            let [x, y] = start.map(i32::to_le_bytes);
            run(&machine, &module, threads(64), &[map.as_bytes(), &input.to_le_bytes(), &x, &y])
                .unwrap_or_else(|error| panic!("{error}"));
            let mut expected = old.clone();
            for (offset, to) in whole.elements(&start) {
                let Some(to) = to else { continue };
                expected[to..to + 2].copy_from_slice(&tile[offset..offset + 2]);
            }
            assert!(read(&machine, tensor, whole.bytes()) == expected, "at {start:?}");
        }
        // Behind the last row there are only two more bytes.
        let tensor = memory(&machine, &old[..shape.bytes() as usize + 2]);
        let input = memory(&machine, &tile);
        let map = shape.map(tensor);
        let [x, y] = [64i32, 10].map(i32::to_le_bytes);
        let result = run(&machine, &module, threads(64), &[map.as_bytes(), &input.to_le_bytes(), &x, &y]);
        let found = finding(result);
        assert_eq!(found.kind, FindingKind::OutOfBounds, "{found}");
    }
}

#[test]
fn a_reduction_combines_elements_of_the_map_s_type() {
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    let shape = |data_type| Shape { data_type, dims: &[48, 40], box_dims: &[32, 16], ..MATRIX };
    let instruction =
        |op: &str| format!("cp.reduce.async.bulk.tensor.2d.global.shared::cta.{op}.tile.bulk_group");
    let starts: [&[i32]; 2] = [&[0, 0], &[24, 30]];
    type Combine = fn(u32, u32) -> u32;
    let words: [(&str, TensorType, Combine); 7] = [
        ("add", TensorType::U32, u32::wrapping_add),
        ("min", TensorType::U32, u32::min),
        ("max", TensorType::S32, |a, b| (a as i32).max(b as i32) as u32),
        ("and", TensorType::U32, |a, b| a & b),
        ("xor", TensorType::S32, |a, b| a ^ b),
        ("inc", TensorType::U32, |a, b| if a >= b { 0 } else { a + 1 }),
        ("dec", TensorType::U32, |a, b| if a == 0 || a > b { b } else { a - 1 }),
    ];
    for (op, data_type, combine) in words {
        check_store(&shape(data_type), &instruction(op), &starts, |old, new| {
            combine(word(old), word(new)).to_le_bytes().to_vec()
        });
    }
    // Subnormal numbers count as zeros where the map says so, and zero is what becomes of them.
    let float = |bytes: &[u8], flush: bool| {
        let bits = word(bytes);
        f32::from_bits(if flush && bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits })
    };
    for (data_type, flush) in [(TensorType::F32, false), (TensorType::F32Ftz, true)] {
        // In boxes of bytes that make small numbers.
        let small = shape(data_type);
        check_store_of(
            &small,
            &instruction("add"),
            &starts,
            |byte, i| if i % 4 == 3 { byte & 0x81 } else { byte },
            |old, new| {
                let sum = (float(old, flush) + float(new, flush)).to_le_bytes();
                float(&sum, flush).to_le_bytes().to_vec()
            },
        );
    }
    let half = |bytes: &[u8]| half::bf16::from_le_bytes(bytes.try_into().unwrap());
    check_store(&MATRIX, &instruction("add"), &starts, |old, new| {
        let sum = half(old).to_f32() + half(new).to_f32();
        let bits = if sum.is_nan() { 0x7fff } else { half::bf16::from_f32(sum).to_bits() };
        bits.to_le_bytes().to_vec()
    });
    // Of two numbers the smaller one; a number rather than a NaN; of zeros the negative one.
    check_store(&MATRIX, &instruction("min"), &starts, |old, new| {
        let (old, new) = (half(old), half(new));
        let bits = match (old.is_nan(), new.is_nan()) {
            (true, true) => 0x7fff,
            (true, false) => new.to_bits(),
            (false, true) => old.to_bits(),
            _ if old == new => old.to_bits() | new.to_bits(),
            _ => if old < new { old } else { new }.to_bits(),
        };
        bits.to_le_bytes().to_vec()
    });
}

#[test]
fn a_multicast_load_fills_the_same_tile_of_each_block_it_names() {
    // Each of two blocks loads one half of a tile for both.
    let shape = Shape { box_dims: &[64, 8], ..MATRIX };
    let half = shape.tile_bytes();
    let body = format!(
        "ld.param.u64 %p, [out];\n{MAP}{INIT}barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n\
         mov.u32 %r4, %cluster_ctarank;\n@!%one bra $WAIT;\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {};\n\
         mad.lo.u32 %r5, %r4, {half}, %tile;\nshl.b32 %r6, %r4, 3;\nmov.u16 %h0, 3;\n\
         cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster\n\
         [%r5], [%map, {{16, %r6}}], [%bar], %h0;\n{WAIT}\
         mov.u32 %r5, %ctaid.x;\nmul.wide.u32 %x1, %r5, {};\nadd.u64 %p, %p, %x1;\n{}\
         barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
        2 * half,
        2 * half,
        dump_tile(2 * half),
    );
    let module = kernel(
        ".param .align 64 .b8 map[128], .param .u64 out",
        ".explicitcluster\n.reqnctapercluster 2, 1, 1",
        2 * half,
        &body,
    );
    let data = noise(shape.bytes());
    let whole = Shape { box_dims: &[64, 16], ..shape };
    let tile = expected(&whole, &data, &[16, 0], 0, |bits| bits);
    for machine in machines() {
        let tensor = memory(&machine, &data);
        let out = machine.allocate(8 * half).unwrap();
        let launch = LaunchConfig { grid: [4, 1, 1], cluster: [2, 1, 1], ..threads(64) };
        run(&machine, &module, launch, &[shape.map(tensor).as_bytes(), &out.to_le_bytes()])
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(read(&machine, out, 8 * half) == tile.repeat(4));
    }
}

#[test]
fn maps_are_found_in_global_and_constant_memory_too() {
    let tile = MATRIX.tile_bytes();
    let body = format!(
        "ld.param.u64 %p, [out];\nld.param.u64 %map, [at];\n{INIT}@!%one bra $WAIT;\nprefetch.tensormap [%map];\n\
         fence.proxy.tensormap::generic.acquire.gpu [%map], 128;\n\
         createpolicy.fractional.L2::evict_last.b64 %x1, 0f3F800000;\n\
         cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%map, {{0, 4}}];\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {tile};\n\
         cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint\n\
         [%tile], [%map+128, {{0, 4}}], [%bar], %x1;\n{WAIT}{}",
        dump_tile(tile)
    );
    let module = kernel(".param .u64 at, .param .u64 out", "", tile, &body);
    let data = noise(MATRIX.bytes());
    for machine in machines() {
        let tensor = memory(&machine, &data);
        let map = MATRIX.map(tensor);
        let maps = memory(&machine, &map.as_bytes().repeat(2));
        let out = machine.allocate(tile).unwrap();
        run(&machine, &module, threads(32), &[&maps.to_le_bytes(), &out.to_le_bytes()])
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(read(&machine, out, tile) == expected(&MATRIX, &data, &[0, 4], 0, |bits| bits));
    }
}
