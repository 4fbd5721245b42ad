//! What `#[kernel]` makes for the host: the typed launch and the declaration of every instance.

use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::{Global, GlobalMut, Kernel, KernelArgs, KernelParam, ParamLayout, TensorMap};
use warpsmith_dsl::{KernelParam, kernel};

/// Sizes of a test kernel.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct Sizes {
    /// A stride.
    pub stride: u64,
    /// A size.
    pub n: u32,
    /// A factor.
    pub factor: f32,
}

trait Shape: 'static {
    const THREADS: u32;
}

enum Wide {}

impl Shape for Wide {
    const THREADS: u32 = 256;
}

/// # Safety
///
/// Never launched.
#[kernel(
    family = scaling,
    block = [S::THREADS, 2, 1],
    min_blocks = 3,
    shared = S::THREADS * STAGES * size_of::<T>() as u32,
    instances = [
        scale_f16_2 = <F16, Wide, 2>,
        scale_f32_3 = <f32, Wide, 3>,
    ],
)]
unsafe fn scale<T: 'static, S: Shape, const STAGES: u32>(
    x: Global<T>,
    y: GlobalMut<T>,
    sizes: Sizes,
    last: u32,
) {
    let _ = (x, y, sizes.n, sizes.stride, sizes.factor, last);
}

/// # Safety
///
/// Never launched.
#[kernel(family = fill, block = [32, 1, 1])]
unsafe fn fill(y: GlobalMut<Bf16>, n: u32) {
    let _ = (y, n);
}

/// Two tensor maps in one parameter.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct Maps {
    /// The first.
    pub x: TensorMap,
    /// The second.
    pub y: TensorMap,
}

/// # Safety
///
/// Never launched.
#[kernel(
    family = copying,
    block = [128, 1, 1],
    cluster = [BLOCKS, 1, 1],
    instances = [copy_1 = <1>, copy_2 = <2>],
)]
unsafe fn copy<const BLOCKS: u32>(n: u32, x: &TensorMap, maps: &Maps) {
    let _ = (n, x.address(), maps.y.address());
}

#[test]
fn a_reference_is_passed_by_value_with_the_alignment_of_what_it_refers_to() {
    type Args = <copy<2> as Kernel>::Args;
    let layout = |size, align| ParamLayout { size, align };
    assert_eq!(Args::LAYOUT, [layout(4, 4), layout(128, 64), layout(256, 64)]);
    assert_eq!(<Maps as KernelParam>::PARAM_ALIGN, TensorMap::ALIGN);
    assert_eq!(<Sizes as KernelParam>::PARAM_ALIGN, 8);

    let map = TensorMap::from_words(std::array::from_fn(|word| word as u64));
    let args: Args = (1, map, Maps { x: map, y: map });
    args.with_raw(|raw| {
        // SAFETY: the arguments live until this closure returns, and kernel parameters have no padding.
        let bytes = unsafe { std::slice::from_raw_parts(raw[1].data, raw[1].size) };
        assert_eq!(bytes.len(), TensorMap::BYTES);
        assert_eq!(bytes[15 * 8..], 15u64.to_ne_bytes());
    });
}

#[test]
fn an_instance_declares_its_cluster() {
    assert_eq!(<copy<1> as Kernel>::DECLARATION.cluster, [1, 1, 1]);
    assert_eq!(<copy<2> as Kernel>::DECLARATION.cluster, [2, 1, 1]);
    assert_eq!(<fill as Kernel>::DECLARATION.cluster, [1, 1, 1]);
}

#[test]
fn an_instance_declares_what_its_generic_arguments_say() {
    let declaration = <scale<F16, Wide, 2> as Kernel>::DECLARATION;
    assert_eq!(declaration.name, "scale_f16_2");
    assert_eq!(declaration.family, "scaling");
    assert_eq!(declaration.block, [256, 2, 1]);
    assert_eq!(declaration.min_blocks_per_sm, 3);
    assert_eq!(declaration.shared_bytes, 256 * 2 * 2);
    assert_eq!(declaration.params, ["x", "y", "sizes", "last"]);
    assert_eq!(<scale<f32, Wide, 3> as Kernel>::DECLARATION.shared_bytes, 256 * 3 * 4);
}

#[test]
fn every_instance_is_listed_once() {
    let names: Vec<_> = SCALE_INSTANCES.iter().map(|declaration| declaration.name).collect();
    assert_eq!(names, ["scale_f16_2", "scale_f32_3"]);
    assert_eq!(FILL_INSTANCES.len(), 1);
}

#[test]
fn a_kernel_without_generic_parameters_is_its_own_instance() {
    let declaration = <fill as Kernel>::DECLARATION;
    assert_eq!((declaration.name, declaration.min_blocks_per_sm, declaration.shared_bytes), ("fill", 1, 0));
}

#[test]
fn arguments_are_handed_over_byte_by_byte_in_order() {
    type Args = <scale<f32, Wide, 3> as Kernel>::Args;
    let layout = |size, align| ParamLayout { size, align };
    assert_eq!(Args::LAYOUT, [layout(8, 8), layout(8, 8), layout(16, 8), layout(4, 4)]);

    let sizes = Sizes { stride: 0x1122_3344_5566_7788, n: 7, factor: 1.5 };
    let args: Args = (Global::new(1), GlobalMut::new(2), sizes, 9);
    let bytes: Vec<Vec<u8>> = args.with_raw(|raw| {
        raw.iter()
            // SAFETY: the arguments live until this closure returns, and kernel parameters have no padding.
            .map(|arg| unsafe { std::slice::from_raw_parts(arg.data, arg.size) }.to_vec())
            .collect()
    });
    assert_eq!(bytes[0], 1u64.to_ne_bytes());
    assert_eq!(bytes[1], 2u64.to_ne_bytes());
    assert_eq!(bytes[2][..8], sizes.stride.to_ne_bytes());
    assert_eq!(bytes[2][8..12], 7u32.to_ne_bytes());
    assert_eq!(bytes[2][12..], 1.5f32.to_ne_bytes());
    assert_eq!(bytes[3], 9u32.to_ne_bytes());
}

/// A launch with a wrong argument, and a kernel that could not be launched, do not compile.
#[test]
fn mistakes_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}

/// One that its launch cannot harm, and that names no family.
#[kernel(block = [64, 1, 1])]
fn nothing(n: u32) {
    let _ = n;
}

#[test]
fn a_safe_function_is_a_kernel_that_its_launch_cannot_harm() {
    fn declaration<K: warpsmith_dsl::launch::SafeKernel>() -> warpsmith_dsl::launch::Declaration {
        K::DECLARATION
    }
    assert_eq!((declaration::<nothing>().family, declaration::<nothing>().name), ("", "nothing"));
}

#[test]
fn a_safe_function_has_a_fingerprint_of_its_own_and_an_unsafe_one_none() {
    mod other {
        use super::kernel;

        /// Of the same name and signature, for other blocks.
        #[kernel(block = [32, 1, 1])]
        fn nothing(n: u32) {
            let _ = n;
        }

        pub(super) const SOURCE: Option<u64> = <nothing as warpsmith_dsl::launch::Kernel>::DECLARATION.source;
    }
    let source = <nothing as Kernel>::DECLARATION.source;
    assert!(source.is_some() && other::SOURCE.is_some());
    assert_ne!(source, other::SOURCE);
    assert_eq!(<fill as Kernel>::DECLARATION.source, None);
}
