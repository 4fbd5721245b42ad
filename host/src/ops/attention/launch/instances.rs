//! The kernels for every GPU from compute capability 8.0 on.

use half::{bf16, f16};
use warpsmith_dsl::attention::portable::{
    Fp8Keys, Parts, PortableElement, PortableShape, PortableTile, Tensors,
};
use warpsmith_dsl::attention::scores::ScoreOperands;
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel, KernelArgs};
use warpsmith_dsl::ptx::Accumulators;
use warpsmith_kernels::attention::{CombineParams, attention, attention_combine};
use warpsmith_kernels::attention_fp8::attention_fp8;
use warpsmith_kernels::attention_fp8_ada::attention_fp8_ada;
use warpsmith_kernels::attention_shapes::{
    AttentionParams, Few64, Few96, Few128, Few192, Few256, Fp8Few64, Rows64, Rows96, Rows128, Rows192,
    Rows256, Single64, Single128, Single256,
};

use crate::device::Device;
use crate::error::Result;
use crate::kernel::is_built;
use crate::stream::Stream;
use crate::tensor::Element;

/// What all kernels are given first.
pub(super) type First = (Tensors, GlobalMut<f32>, Parts, ScoreOperands);
/// The arguments of a kernel.
type Args = (Tensors, GlobalMut<f32>, Parts, ScoreOperands, AttentionParams);
/// Those of one for keys and values of 8 bits.
type Fp8Args = (Tensors, GlobalMut<f32>, Parts, ScoreOperands, Fp8Keys, AttentionParams);
/// The arguments of one that adds up parts.
pub(super) type CombineArgs<D> = (Parts, GlobalMut<D>, GlobalMut<f32>, Global<f32>, CombineParams);

/// A kernel, its tile, and how it is launched.
#[derive(Clone, Copy)]
pub struct Instance<T: Element> {
    declaration: Declaration,
    /// The least compute capability.
    least: (u32, u32),
    pub(super) rows: u32,
    pub(super) keys: u32,
    /// Columns of V that a launch has.
    pub(super) values: u32,
    launch: Launches,
    /// What adds up parts.
    pub(super) combine: Declaration,
    pub(super) launch_combine: Launch<CombineArgs<T::Device>>,
}

/// How one of either kind is launched.
#[derive(Clone, Copy)]
enum Launches {
    Plain(Launch<Args>),
    Fp8(Launch<Fp8Args>),
}

/// How a kernel is launched on so many blocks.
pub(super) type Launch<A> = unsafe fn(&Device, &Stream, u32, A) -> Result<()>;

/// Launches the kernel `K`.
///
/// # Safety
///
/// The arguments are valid for what the kernel does with them.
unsafe fn launch<A: KernelArgs, K: Kernel<Args = A>>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    args: A,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { device.kernel::<K>()?.launch(stream, [blocks, 1, 1], args) }
}

/// The kernels of an element type.
#[doc(hidden)]
pub trait Kernels: Element {
    /// The kernel for heads of so many columns and values, for few rows or for many.
    #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
    fn instance(width: usize, value_width: usize, few: bool) -> Option<Instance<Self>>;

    /// Those for keys and values of 8 bits, the faster one first.
    #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
    fn fp8_instances(width: usize, value_width: usize, few: bool) -> [Option<Instance<Self>>; 2];
}

macro_rules! kernels {
    ($element:ident $device:ident, $columns:expr, rows: [$($rows:literal $of_rows:ident),*], few: [$($few:literal $of_few:ident),*], fp8: [$($fp8:literal $of_fp8:ident $of_few_fp8:ident),*]) => {
        impl Kernels for $element {
            #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
            fn instance(width: usize, value_width: usize, few: bool) -> Option<Instance<Self>> {
                let columns: fn(usize, usize) -> usize = $columns;
                Some(match (columns(width, value_width), few) {
                    $((..=$rows, false) => kernels!(@of $device, $of_rows),)*
                    $((..=$few, true) => kernels!(@of $device, $of_few),)*
                    _ => return None,
                })
            }

            #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
            fn fp8_instances(width: usize, value_width: usize, few: bool) -> [Option<Instance<Self>>; 2] {
                match (width.max(value_width), few) {
                    $(
                        (..=$fp8, false) => kernels!(@of_fp8 $device, $of_fp8),
                        (..=$fp8, true) => kernels!(@of_fp8 $device, $of_few_fp8),
                    )*
                    _ => [None, None],
                }
            }
        }
    };
    (@of_fp8 $device:ident, $shape:ident) => {
        [
            Some(Instance::of_fp8::<attention_fp8_ada<$device, $shape>, attention_combine<$device>, $shape>((8, 9))),
            Some(Instance::of_fp8::<attention_fp8<$device, $shape>, attention_combine<$device>, $shape>((8, 0))),
        ]
    };
    (@of $device:ident, $shape:ident) => { Instance::of::<attention<$device, $shape>, attention_combine<$device>, $shape>() };
}
macro_rules! half_kernels {
    ($($element:ident $device:ident),*) => {
        $(kernels!(
            $element $device,
            usize::max,
            rows: [64 Rows64, 96 Rows96, 128 Rows128, 192 Rows192, 256 Rows256],
            few: [64 Few64, 96 Few96, 128 Few128, 192 Few192, 256 Few256],
            fp8: [64 Rows64 Fp8Few64, 128 Rows128 Few128, 256 Rows256 Few256]
        );)*
    };
}
half_kernels!(f16 F16, bf16 Bf16);
// What values have more columns than a kernel takes another launch.
kernels!(f32 f32, |width, values| width.max(values.min(128)), rows: [64 Single64, 128 Single128, 256 Single256], few: [], fp8: []);

impl<T: Element> Instance<T>
where
    T::Device: PortableElement,
{
    fn of<K: Kernel<Args = Args>, C: Kernel<Args = CombineArgs<T::Device>>, S: PortableShape>() -> Self {
        Self::with::<C, S>(K::DECLARATION, Launches::Plain(launch::<Args, K>), (8, 0))
    }

    fn of_fp8<K: Kernel<Args = Fp8Args>, C: Kernel<Args = CombineArgs<T::Device>>, S: PortableShape>(
        least: (u32, u32),
    ) -> Self {
        Self::with::<C, S>(K::DECLARATION, Launches::Fp8(launch::<Fp8Args, K>), least)
    }

    fn with<C: Kernel<Args = CombineArgs<T::Device>>, S: PortableShape>(
        declaration: Declaration,
        launch_one: Launches,
        least: (u32, u32),
    ) -> Self {
        Self {
            declaration,
            least,
            rows: PortableTile::<T::Device, S>::BLOCK_ROWS,
            keys: PortableTile::<T::Device, S>::BLOCK_KEYS,
            values: S::Sums::COLUMNS,
            launch: launch_one,
            combine: C::DECLARATION,
            launch_combine: launch::<CombineArgs<T::Device>, C>,
        }
    }
}

impl<T: Element> Instance<T> {
    pub(in super::super) fn runs_on(&self, device: &Device) -> bool {
        let properties = device.properties();
        properties.compute_capability >= self.least
            && is_built(self.declaration.family)
            && self.declaration.shared_bytes <= properties.max_shared_per_block
    }

    /// The kernel's name.
    pub(super) fn name(&self) -> &'static str {
        self.declaration.name
    }

    /// Launches the kernel.
    ///
    /// # Safety
    ///
    /// The arguments are valid for what the kernel does with them; the format is that of keys and values.
    pub(super) unsafe fn launch(
        &self,
        stream: &Stream,
        blocks: u32,
        (tensors, lse, parts, operands): First,
        fp8: Fp8Keys,
        params: AttentionParams,
    ) -> Result<()> {
        let device = stream.device();
        // SAFETY: the caller's promise.
        unsafe {
            match self.launch {
                Launches::Plain(launch) => {
                    launch(device, stream, blocks, (tensors, lse, parts, operands, params))
                }
                Launches::Fp8(launch) => {
                    launch(device, stream, blocks, (tensors, lse, parts, operands, fp8, params))
                }
            }
        }
    }
}
