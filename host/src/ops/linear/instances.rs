//! The kernel instances of the linear family, by types, tile and access: the one table that launches go through.

use half::{bf16, f16};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel};
use warpsmith_dsl::tile::{Aligned, Unaligned};
use warpsmith_kernels::linear::{LinearParams, Tile16x64, Tile64x64, Tile128x64, Tile128x128, linear};

use super::select::{Access, Tile};
use crate::cpu::{FromAccumulator, Operand};
use crate::device::Device;
use crate::error::Result;
use crate::stream::Stream;
use crate::tensor::Element;

/// An element type of x, w and the bias: [`f16`](half::f16), [`bf16`](half::bf16) or `f32`.
pub trait LinearInput: LinearTypes<Self> + LinearTypes<f32> + FromAccumulator<f32> {}

impl LinearInput for f16 {}
impl LinearInput for bf16 {}
impl LinearInput for f32 {}

/// A type of inputs that has kernels for outputs of type `O`: each input type for itself and for `f32`.
pub trait LinearTypes<O>: Element + Operand
where
    O: Element + FromAccumulator<f32>,
{
    /// The kernel for a tile and an access; `None` if there is none.
    #[doc(hidden)]
    fn instance(tile: Tile, access: Access) -> Option<Instance<Self, O>>;
}

/// The arguments of a linear kernel.
pub(crate) type Args<T, O> = (
    Global<<T as Element>::Device>,
    Global<<T as Element>::Device>,
    Global<<T as Element>::Device>,
    GlobalMut<<O as Element>::Device>,
    LinearParams,
);

/// A kernel and how it is launched.
#[doc(hidden)]
pub struct Instance<T: Element, O: Element> {
    pub(crate) declaration: Declaration,
    launch: Launch<T, O>,
}

type Launch<T, O> = unsafe fn(&Device, &Stream, u32, Args<T, O>) -> Result<()>;

impl<T: Element, O: Element> Instance<T, O> {
    fn of<K: Kernel<Args = Args<T, O>>>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch::<T, O, K> }
    }

    /// Launches the kernel on `blocks` blocks.
    ///
    /// # Safety
    ///
    /// The arguments are what [`linear`] asks for, and the tensors they point into live until the stream's work is done.
    pub(crate) unsafe fn launch(
        &self,
        device: &Device,
        stream: &Stream,
        blocks: u32,
        args: Args<T, O>,
    ) -> Result<()> {
        // SAFETY: the caller's promise is the kernel's.
        unsafe { (self.launch)(device, stream, blocks, args) }
    }
}

/// Launches `K`, loading it if this is its first use on the device.
///
/// # Safety
///
/// As [`Instance::launch`].
unsafe fn launch<T: Element, O: Element, K: Kernel<Args = Args<T, O>>>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    args: Args<T, O>,
) -> Result<()> {
    let kernel = device.kernel::<K>()?;
    // SAFETY: the caller's promise is the kernel's.
    unsafe { kernel.launch(stream, [blocks, 1, 1], args) }
}

macro_rules! instances {
    ($($input:ident / $device_input:ident -> $output:ident / $device_output:ident: [$($tile:ident $access:ident),* $(,)?];)*) => {
        $(
            impl LinearTypes<$output> for $input {
                fn instance(tile: Tile, access: Access) -> Option<Instance<Self, $output>> {
                    instances!(@arms $device_input, $device_output, (tile, access), [$($tile $access),*])
                }
            }
        )*
    };
    (@arms $t:ident, $o:ident, $choice:expr, [$($tile:ident $access:ident),*]) => {
        match $choice {
            $((Tile::$tile, Access::$access) => Some(Instance::of::<linear<$t, $o, instances!(@tile $tile), $access>>()),)*
            #[allow(unreachable_patterns, reason = "types that have every combination leave nothing over")]
            _ => None,
        }
    };
    (@tile T128x128) => { Tile128x128 };
    (@tile T128x64) => { Tile128x64 };
    (@tile T64x64) => { Tile64x64 };
    (@tile T16x64) => { Tile16x64 };
}
instances! {
    f16 / F16 -> f16 / F16:
        [T128x128 Aligned, T128x64 Aligned, T64x64 Aligned, T16x64 Aligned, T64x64 Unaligned, T16x64 Unaligned];
    f16 / F16 -> f32 / f32:
        [T128x128 Aligned, T128x64 Aligned, T64x64 Aligned, T16x64 Aligned, T64x64 Unaligned, T16x64 Unaligned];
    bf16 / Bf16 -> bf16 / Bf16:
        [T128x128 Aligned, T128x64 Aligned, T64x64 Aligned, T16x64 Aligned, T64x64 Unaligned, T16x64 Unaligned];
    bf16 / Bf16 -> f32 / f32:
        [T128x128 Aligned, T128x64 Aligned, T64x64 Aligned, T16x64 Aligned, T64x64 Unaligned, T16x64 Unaligned];
    f32 / f32 -> f32 / f32:
        [T128x64 Aligned, T64x64 Aligned, T16x64 Aligned, T64x64 Unaligned, T16x64 Unaligned];
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::{Access, LinearInput, LinearTypes, Tile};

    fn instances_are_what_select_counts_on<T: LinearInput>() {
        for tile in Tile::ALL {
            for access in [Access::Aligned, Access::Unaligned] {
                let same = <T as LinearTypes<T>>::instance(tile, access);
                let wide = <T as LinearTypes<f32>>::instance(tile, access);
                assert_eq!(same.is_some(), tile.serves(T::DTYPE, access), "{} {tile} {access:?}", T::DTYPE);
                assert_eq!(wide.is_some(), same.is_some());
                for declaration in
                    same.iter().map(|i| i.declaration).chain(wide.iter().map(|i| i.declaration))
                {
                    assert_eq!(declaration.shared_bytes, tile.shared_bytes(), "{}", declaration.name);
                    assert!(declaration.name.contains(tile.name()), "{} is for {tile}", declaration.name);
                    let unaligned = declaration.name.contains("unaligned");
                    assert_eq!(unaligned, access == Access::Unaligned, "{}", declaration.name);
                }
            }
        }
    }

    #[test]
    fn every_tile_that_select_offers_has_its_kernel() {
        instances_are_what_select_counts_on::<f16>();
        instances_are_what_select_counts_on::<bf16>();
        instances_are_what_select_counts_on::<f32>();
    }
}
