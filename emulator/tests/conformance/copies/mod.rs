//! The copy engine as kernels use it: boxes of tensors, ranges of bytes, reductions and multicast, with the same result whenever
//! a copy lands, and what is reported of kernels that get it wrong.

mod errors;
mod ranges;
mod tensors;

use warpsmith_emulator::{
    Completion, Config, Finding, Interleave, L2Promotion, LaunchConfig, LaunchError, Limits, Machine, Module,
    OobFill, Swizzle, TensorMap, TensorMapArguments, TensorType,
};

/// Machines of compute capability 9.0 with every time at which a copy may land.
fn machines() -> impl Iterator<Item = Machine> {
    let modes =
        [(Completion::Eager, 0), (Completion::Latest, 0), (Completion::Random, 1), (Completion::Random, 2)];
    modes.into_iter().map(|(completion, seed)| {
        let limits = Limits { shared_per_block: 227 * 1024, ..Limits::default() };
        let config = Config {
            compute_capability: (9, 0),
            completion,
            seed,
            threads: Some(1),
            limits,
            ..Config::default()
        };
        Machine::new(config)
    })
}

/// A kernel `test` with a tile of `tile` bytes and two mbarriers in shared memory. `%one` holds in thread 0 of a block.
fn kernel(parameters: &str, directives: &str, tile: u64, body: &str) -> Module {
    let text = format!(
        ".version 8.6\n.target sm_90a\n.address_size 64\n\
         .visible .entry test({parameters})\n{directives}\n{{\n\
         .shared .align 1024 .b8 tile[{tile}];\n.shared .align 8 .b8 bars[16];\n\
         .reg .b64 %map, %p, %q, %x<8>;\n.reg .b32 %t, %tile, %bar, %r<16>;\n.reg .b16 %h<4>;\n\
         .reg .pred %one, %c<4>;\n\
         mov.u32 %t, %tid.x;\nsetp.eq.u32 %one, %t, 0;\nmov.u32 %tile, tile;\nmov.u32 %bar, bars;\n\
         {body}\nret;\n}}\n"
    );
    crate::common::parse("test.ptx", &text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Thread 0 makes the mbarrier ready for one arrival a phase, and all threads see it.
const INIT: &str = "@%one mbarrier.init.shared::cta.b64 [%bar], 1;\n\
    @%one fence.mbarrier_init.release.cluster;\nbar.sync 0;\n";
/// All threads wait for the first phase.
const WAIT: &str = "$WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 %c0, [%bar], 0;\n@!%c0 bra $WAIT;\n";

/// The threads fill the tile's `bytes` bytes with `value`, visible to the copy engine.
fn fill_tile(bytes: u64, value: u32) -> String {
    format!(
        "shl.b32 %r0, %t, 2;\n$FILL:\nsetp.ge.u32 %c1, %r0, {bytes};\n@%c1 bra $FILLED;\nadd.u32 %r1, %tile, %r0;\n\
         st.shared.u32 [%r1], {value};\nmov.u32 %r2, %ntid.x;\nmad.lo.u32 %r0, %r2, 4, %r0;\nbra $FILL;\n$FILLED:\n\
         fence.proxy.async.shared::cta;\nbar.sync 0;\n"
    )
}

/// The threads copy the tile's `bytes` bytes to `%p`.
fn dump_tile(bytes: u64) -> String {
    format!(
        "cvta.to.global.u64 %p, %p;\nshl.b32 %r0, %t, 2;\n$DUMP:\nsetp.ge.u32 %c1, %r0, {bytes};\n@%c1 bra $DUMPED;\n\
         add.u32 %r1, %tile, %r0;\nld.shared.u32 %r3, [%r1];\ncvt.u64.u32 %x0, %r0;\nadd.u64 %x0, %x0, %p;\n\
         st.global.u32 [%x0], %r3;\nmov.u32 %r2, %ntid.x;\nmad.lo.u32 %r0, %r2, 4, %r0;\nbra $DUMP;\n$DUMPED:\n"
    )
}

/// The threads fill the tile from `%p`, visible to the copy engine.
fn read_tile(bytes: u64) -> String {
    format!(
        "cvta.to.global.u64 %p, %p;\nshl.b32 %r0, %t, 2;\n$READ:\nsetp.ge.u32 %c1, %r0, {bytes};\n@%c1 bra $DONE;\n\
         add.u32 %r1, %tile, %r0;\ncvt.u64.u32 %x0, %r0;\nadd.u64 %x0, %x0, %p;\nld.global.u32 %r3, [%x0];\n\
         st.shared.u32 [%r1], %r3;\nmov.u32 %r2, %ntid.x;\nmad.lo.u32 %r0, %r2, 4, %r0;\nbra $READ;\n$DONE:\n\
         fence.proxy.async.shared::cta;\nbar.sync 0;\n"
    )
}

/// The address of the parameter `map`, in `%map`.
const MAP: &str = "mov.b64 %map, map;\ncvta.param.u64 %map, %map;\n";

fn run(
    machine: &Machine,
    module: &Module,
    shape: LaunchConfig,
    arguments: &[&[u8]],
) -> Result<(), LaunchError> {
    machine.launch(module, "test", &shape, arguments).map(|_| ())
}

fn finding(result: Result<(), LaunchError>) -> Finding {
    match result {
        Err(LaunchError::Finding(finding)) => *finding,
        other => panic!("expected a finding, got {other:?}"),
    }
}

/// One block of `threads` threads.
fn threads(threads: u32) -> LaunchConfig {
    LaunchConfig { block: [threads, 1, 1], ..LaunchConfig::default() }
}

/// `count` bytes that look like nothing.
fn noise(count: u64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

/// Memory of the machine with these bytes.
fn memory(machine: &Machine, bytes: &[u8]) -> u64 {
    let address = machine.allocate(bytes.len() as u64).unwrap();
    machine.write(address, bytes).unwrap();
    address
}

fn read(machine: &Machine, address: u64, bytes: u64) -> Vec<u8> {
    let mut back = vec![0; bytes as usize];
    machine.read(address, &mut back).unwrap();
    back
}

/// A tensor and its boxes.
#[derive(Clone, Copy)]
struct Shape<'a> {
    data_type: TensorType,
    dims: &'a [u64],
    strides: &'a [u64],
    box_dims: &'a [u32],
    element_strides: &'a [u32],
    swizzle: Swizzle,
    oob_fill: OobFill,
}

impl Shape<'_> {
    fn map(&self, address: u64) -> TensorMap {
        TensorMap::encode(&TensorMapArguments {
            data_type: self.data_type,
            address,
            dims: self.dims,
            strides: self.strides,
            box_dims: self.box_dims,
            element_strides: self.element_strides,
            interleave: Interleave::None,
            swizzle: self.swizzle,
            l2_promotion: L2Promotion::B128,
            oob_fill: self.oob_fill,
        })
        .unwrap()
    }

    fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Bytes of the tensor, from its first element's to its last one's.
    fn bytes(&self) -> u64 {
        let size = u64::from(self.data_type.bytes());
        let outer: u64 = self.dims[1..].iter().zip(self.strides).map(|(n, stride)| (n - 1) * stride).sum();
        outer + self.dims[0] * size
    }

    /// Elements that a box takes along each axis.
    fn counts(&self) -> Vec<u32> {
        (0..self.rank())
            .map(
                |i| {
                    if i == 0 { self.box_dims[0] } else { self.box_dims[i].div_ceil(self.element_strides[i]) }
                },
            )
            .collect()
    }

    fn box_bytes(&self) -> u64 {
        self.counts().iter().map(|&n| u64::from(n)).product::<u64>() * u64::from(self.data_type.bytes())
    }

    fn pitch(&self) -> u32 {
        (self.box_dims[0] * self.data_type.bytes()).max(self.swizzle.span())
    }

    fn tile_bytes(&self) -> u64 {
        self.counts()[1..].iter().map(|&n| u64::from(n)).product::<u64>() * u64::from(self.pitch())
    }

    /// For each element of a box, its offset in the tile (which begins where the swizzle's pattern does), and that in the tensor
    /// if it is inside.
    fn elements(&self, start: &[i32]) -> Vec<(usize, Option<usize>)> {
        let (size, counts) = (self.data_type.bytes(), self.counts());
        let mut elements = Vec::new();
        for number in 0..counts.iter().product::<u32>() {
            let (mut rest, mut inside, mut global) = (number, true, 0i64);
            for axis in 0..self.rank() {
                let step = if axis == 0 { 1 } else { self.element_strides[axis] };
                let at = i64::from(start[axis]) + i64::from(rest % counts[axis] * step);
                rest /= counts[axis];
                inside &= at >= 0 && at < self.dims[axis] as i64;
                global += at * if axis == 0 { i64::from(size) } else { self.strides[axis - 1] as i64 };
            }
            let linear = number / counts[0] * self.pitch() + number % counts[0] * size;
            let mask = match self.swizzle {
                Swizzle::B32 => 1,
                Swizzle::B64 => 3,
                Swizzle::B128 => 7,
                _ => 0,
            };
            let offset = linear ^ (((linear / 128) & mask) * 16);
            elements.push((offset as usize, inside.then_some(global as usize)));
        }
        elements
    }
}
