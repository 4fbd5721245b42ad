//! PTX written by hand, and the types of its kernels.

use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel, KernelParam};

pub(crate) const TEXT: &str = r"
.version 7.0
.target sm_80
.address_size 64

.extern .shared .align 16 .b8 dynamic_shared[];

// y[i] = x[i] * factor for i < count
.visible .entry scale(
    .param .u64 scale_x,
    .param .u64 scale_y,
    .param .align 4 .b8 scale_p[8]
)
.reqntid 128, 1, 1
{
    .reg .pred %p<2>;
    .reg .b32 %r<5>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [scale_x];
    ld.param.u64 %rd2, [scale_y];
    ld.param.f32 %f1, [scale_p];
    ld.param.u32 %r1, [scale_p+4];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r2, 128, %r3;
    setp.ge.u32 %p1, %r4, %r1;
    @%p1 bra $L_scale_end;
    mul.wide.u32 %rd3, %r4, 4;
    cvta.to.global.u64 %rd4, %rd1;
    cvta.to.global.u64 %rd5, %rd2;
    add.s64 %rd6, %rd4, %rd3;
    add.s64 %rd7, %rd5, %rd3;
    ld.global.f32 %f2, [%rd6];
    mul.rn.f32 %f3, %f2, %f1;
    st.global.f32 [%rd7], %f3;
$L_scale_end:
    ret;
}

// *y = value, after the value went through the dynamic shared memory at `offset`
.visible .entry through_shared(
    .param .u64 through_shared_y,
    .param .u32 through_shared_offset,
    .param .u32 through_shared_value
)
{
    .reg .b32 %r<6>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [through_shared_y];
    ld.param.u32 %r1, [through_shared_offset];
    ld.param.u32 %r2, [through_shared_value];
    mov.u32 %r3, dynamic_shared;
    add.s32 %r4, %r3, %r1;
    st.shared.u32 [%r4], %r2;
    ld.shared.u32 %r5, [%r4];
    cvta.to.global.u64 %rd2, %rd1;
    st.global.u32 [%rd2], %r5;
    ret;
}

// *y = value after `loops` turns (one at least) of `late_value`'s loop, which takes its time
.visible .entry late_store(
    .param .u64 late_store_y,
    .param .u32 late_store_loops,
    .param .u32 late_store_value
)
.maxntid 32, 1, 1
{
    .reg .pred %p<2>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [late_store_y];
    ld.param.u32 %r1, [late_store_loops];
    ld.param.u32 %r2, [late_store_value];
    mov.u32 %r3, 0;
    mov.u32 %r4, %r2;
$L_late_store_loop:
    mad.lo.s32 %r4, %r4, 1664525, 1013904223;
    add.s32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, %r1;
    @%p1 bra $L_late_store_loop;
    cvta.to.global.u64 %rd2, %rd1;
    st.global.u32 [%rd2], %r4;
    ret;
}
";

/// What `late_store` writes.
pub(crate) fn late_value(loops: u32, value: u32) -> u32 {
    (0..loops.max(1)).fold(value, |value, _| value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223))
}

/// The last parameter of `scale`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ScaleParams {
    pub(crate) factor: f32,
    pub(crate) count: u32,
}

// SAFETY: two numbers of 4 bytes in declaration order, without padding.
unsafe impl KernelParam for ScaleParams {}

const SCALE: Declaration = Declaration {
    name: "scale",
    family: "hand-written",
    block: [128, 1, 1],
    cluster: [1, 1, 1],
    min_blocks_per_sm: 1,
    shared_bytes: 0,
    params: &["x", "y", "p"],
    source: None,
};

/// The entry `scale`.
pub(crate) struct Scale;

// SAFETY: the arguments are those of the entry above.
unsafe impl Kernel for Scale {
    type Args = (Global<f32>, GlobalMut<f32>, ScaleParams);
    const DECLARATION: Declaration = SCALE;
}

/// A type that takes `scale` for an entry with a parameter less.
pub(crate) struct ScaleWithoutParams;

// SAFETY: this type is wrong on purpose; it is never launched.
unsafe impl Kernel for ScaleWithoutParams {
    type Args = (Global<f32>, GlobalMut<f32>);
    const DECLARATION: Declaration = SCALE;
}

/// A type that takes `scale`'s last parameter for a larger one.
pub(crate) struct ScaleWithWideParams;

// SAFETY: this type is wrong on purpose; it is never launched.
unsafe impl Kernel for ScaleWithWideParams {
    type Args = (Global<f32>, GlobalMut<f32>, ScaleParams2);
    const DECLARATION: Declaration = SCALE;
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ScaleParams2(ScaleParams, ScaleParams);

// SAFETY: four numbers of 4 bytes.
unsafe impl KernelParam for ScaleParams2 {}

/// A type that takes `scale` for an entry with larger blocks.
pub(crate) struct ScaleWithLargeBlock;

// SAFETY: this type is wrong on purpose; it is never launched.
unsafe impl Kernel for ScaleWithLargeBlock {
    type Args = (Global<f32>, GlobalMut<f32>, ScaleParams);
    const DECLARATION: Declaration = Declaration { block: [256, 1, 1], ..SCALE };
}

/// An entry that is in no PTX.
pub(crate) struct Absent;

// SAFETY: there is no such entry; it is never launched.
unsafe impl Kernel for Absent {
    type Args = ();
    const DECLARATION: Declaration = Declaration { name: "absent", params: &[], ..SCALE };
}

/// One of the kernels that come with this crate.
pub(crate) type ShippedLinear = warpsmith_kernels::linear::linear<
    f32,
    f32,
    warpsmith_kernels::linear::Tile16x64,
    warpsmith_dsl::tile::Words,
>;

/// A type that takes it for an entry without parameters.
pub(crate) struct ShippedLinearWithoutArguments;

// SAFETY: this type is wrong on purpose; it is never launched.
unsafe impl Kernel for ShippedLinearWithoutArguments {
    type Args = ();
    const DECLARATION: Declaration = <ShippedLinear as Kernel>::DECLARATION;
}

/// The arguments of an untyped launch.
#[macro_export]
macro_rules! raw {
    ($($argument:expr),* $(,)?) => {
        [$(warpsmith::kernel::RawArg { data: (&raw const $argument).cast(), size: size_of_val(&$argument) }),*]
    };
}
