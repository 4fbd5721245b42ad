//! The kernel instances of the linear families, by types, tile and access: the one table that launches go through.

use half::{bf16, f16};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::tile::{Aligned, Words};
use warpsmith_kernels::linear::{
    Tf32Tile16x64, Tf32Tile64x64, Tf32Tile128x128, Tile16x64, Tile64x64, Tile128x64, Tile128x128, linear,
};
use warpsmith_kernels::linear_dots::linear_dots_f32_f32_8x2;
use warpsmith_kernels::linear_hopper::{
    HopperCooperative64x128, HopperCooperative64x160, HopperCooperative128x128, HopperCooperative128x160,
    HopperCooperative128x192, HopperCooperative128x256, HopperCooperative192x176, HopperCooperative256x176,
    HopperPingPong128x128, HopperPingPong128x192, linear_hopper,
};
use warpsmith_kernels::linear_hopper_f32::{
    Split64x64, Split64x128, Split128x128, Split128x256, linear_hopper_f32,
};
use warpsmith_kernels::linear_joined::{linear_joined, linear_joined_few_rows};
use warpsmith_kernels::linear_narrow::linear_narrow;
use warpsmith_kernels::linear_skinny::{
    Skinny16x64, Skinny16x64Split2, Skinny16x64Split4, Skinny32x64, Skinny64x64, Skinny64x64Split2,
    Skinny64x64Split8, Skinny64x64Split8Deep, linear_skinny,
};
use warpsmith_kernels::linear_strided::linear_strided;
use warpsmith_kernels::linear_sums::linear_sums;

use super::Tile;
use crate::cpu::{FromAccumulator, Operand};
use crate::ops::gemm::launch::Instance;
use crate::ops::gemm::passes::{Passes, Sums};
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
    /// The kernel for a tile; `None` if there is none.
    #[doc(hidden)]
    fn instance(tile: Tile) -> Option<Instance<Self, O>>;

    /// The kernel for a tile whose sums go on in a second pair of operands; `None` if there is none.
    #[doc(hidden)]
    fn joined(tile: Tile) -> Option<Instance<Self, O>>;

    /// The kernels that compute sums in parts with a tile, and add these; `None` if there are none.
    #[doc(hidden)]
    fn passes(tile: Tile) -> Option<Passes<Self, O>>;
}

/// The kernels for inputs and outputs of some types, by how they are launched. A tile has the name of its kernels' shape, or is set equal to it.
macro_rules! instances {
    ($($input:ident / $device_input:ident -> $output:ident / $device_output:ident {
        persistent: [$($persistent:ident),* $(,)?],
        halves: [$($halves:ident = $halved:ident),* $(,)?],
        split: [$($split:ident = $split_tile:ident),* $(,)?],
        skinny: [$($skinny:ident),* $(,)?],
        portable: [$($portable:ident = $portable_tile:ident / $access:ident),* $(,)?],
        own: [$($own:ident = $launch:ident $kernel:ty),* $(,)?],
        joined: [$($joined:ident),* $(,)?],
        joined_halves: [$($joined_halves:ident = $joined_halved:ident),* $(,)?],
        joined_few_rows: [$($joined_few_rows:ident),* $(,)?],
    })*) => {
        $(
            impl LinearTypes<$output> for $input {
                fn instance(tile: Tile) -> Option<Instance<Self, $output>> {
                    Some(match tile {
                        $(Tile::$persistent => {
                            Instance::hopper::<linear_hopper<$device_input, $device_output, $persistent>, $persistent>()
                        })*
                        $(Tile::$halves => {
                            Instance::hopper_halves::<linear_hopper<$device_input, $device_output, $halved>, $halved>()
                        })*
                        $(Tile::$split => Instance::split::<linear_hopper_f32<$split_tile>, $split_tile>(),)*
                        $(Tile::$skinny => {
                            Instance::skinny::<linear_skinny<$device_input, $device_output, $skinny>, $skinny>()
                        })*
                        $(Tile::$portable => {
                            Instance::portable::<
                                linear<$device_input, $device_output, $portable_tile, $access>,
                                $portable_tile,
                            >()
                        })*
                        $(Tile::$own => Instance::$launch::<$kernel>(),)*
                        _ => return None,
                    })
                }

                #[allow(clippy::match_single_binding, reason = "some types have none")]
                fn joined(tile: Tile) -> Option<Instance<Self, $output>> {
                    match tile {
                        $(Tile::$joined => Some(Instance::joined::<
                            linear_joined<$device_input, $device_output, $joined>,
                            $joined,
                        >()),)*
                        $(Tile::$joined_halves => Some(Instance::joined_halves::<
                            linear_joined<$device_input, $device_output, $joined_halved>,
                            $joined_halved,
                        >()),)*
                        $(Tile::$joined_few_rows => Some(Instance::joined_few_rows::<
                            linear_joined_few_rows<$device_input, $joined_few_rows>,
                            $joined_few_rows,
                        >()),)*
                        _ => None,
                    }
                }

                fn passes(tile: Tile) -> Option<Passes<Self, $output>> {
                    let parts = <$input as LinearTypes<f32>>::instance(tile).filter(|_| tile.has_passes())?;
                    Some(Passes { parts, sums: Sums::new::<linear_sums<$device_input, $device_output>>() })
                }
            }
        )*
    };
}
instances! {
    f16 / F16 -> f16 / F16 {
        persistent: [
            HopperPingPong128x128, HopperPingPong128x192, HopperCooperative128x256, HopperCooperative128x192,
            HopperCooperative128x128, HopperCooperative64x128, HopperCooperative64x160, HopperCooperative128x160,
            HopperCooperative256x176, HopperCooperative192x176,
        ],
        halves: [HopperCooperative128x256Halves = HopperCooperative128x256],
        split: [],
        skinny: [
            Skinny64x64, Skinny64x64Split2, Skinny64x64Split8, Skinny64x64Split8Deep, Skinny32x64, Skinny16x64,
            Skinny16x64Split2, Skinny16x64Split4,
        ],
        portable: [
            T128x128 = Tile128x128 / Aligned, T128x64 = Tile128x64 / Aligned, T64x64 = Tile64x64 / Words,
            T16x64 = Tile16x64 / Words,
        ],
        own: [Narrow16x256 = narrow linear_narrow<F16>, Strided32x32 = strided linear_strided<F16>],
        joined: [
            HopperPingPong128x128, HopperPingPong128x192, HopperCooperative128x256, HopperCooperative128x192,
            HopperCooperative128x128, HopperCooperative64x128, HopperCooperative64x160, HopperCooperative128x160,
            HopperCooperative256x176, HopperCooperative192x176,
        ],
        joined_halves: [HopperCooperative128x256Halves = HopperCooperative128x256],
        joined_few_rows: [
            Skinny64x64, Skinny64x64Split2, Skinny64x64Split8, Skinny64x64Split8Deep, Skinny32x64, Skinny16x64,
            Skinny16x64Split2, Skinny16x64Split4,
        ],
    }
    f16 / F16 -> f32 / f32 {
        persistent: [HopperPingPong128x128, HopperCooperative128x256, HopperCooperative128x192],
        halves: [HopperCooperative128x256Halves = HopperCooperative128x256],
        split: [],
        skinny: [Skinny16x64, Skinny16x64Split4],
        portable: [
            T128x128 = Tile128x128 / Aligned, T128x64 = Tile128x64 / Aligned, T64x64 = Tile64x64 / Words,
            T16x64 = Tile16x64 / Words,
        ],
        own: [],
        joined: [HopperPingPong128x128, HopperCooperative128x256, HopperCooperative128x192],
        joined_halves: [],
        joined_few_rows: [],
    }
    bf16 / Bf16 -> bf16 / Bf16 {
        persistent: [
            HopperPingPong128x128, HopperPingPong128x192, HopperCooperative128x256, HopperCooperative128x192,
            HopperCooperative128x128, HopperCooperative64x128, HopperCooperative64x160, HopperCooperative128x160,
            HopperCooperative256x176, HopperCooperative192x176,
        ],
        halves: [HopperCooperative128x256Halves = HopperCooperative128x256],
        split: [],
        skinny: [
            Skinny64x64, Skinny64x64Split2, Skinny64x64Split8, Skinny64x64Split8Deep, Skinny32x64, Skinny16x64,
            Skinny16x64Split2, Skinny16x64Split4,
        ],
        portable: [
            T128x128 = Tile128x128 / Aligned, T128x64 = Tile128x64 / Aligned, T64x64 = Tile64x64 / Words,
            T16x64 = Tile16x64 / Words,
        ],
        own: [Narrow16x256 = narrow linear_narrow<Bf16>, Strided32x32 = strided linear_strided<Bf16>],
        joined: [
            HopperPingPong128x128, HopperPingPong128x192, HopperCooperative128x256, HopperCooperative128x192,
            HopperCooperative128x128, HopperCooperative64x128, HopperCooperative64x160, HopperCooperative128x160,
            HopperCooperative256x176, HopperCooperative192x176,
        ],
        joined_halves: [HopperCooperative128x256Halves = HopperCooperative128x256],
        joined_few_rows: [
            Skinny64x64, Skinny64x64Split2, Skinny64x64Split8, Skinny64x64Split8Deep, Skinny32x64, Skinny16x64,
            Skinny16x64Split2, Skinny16x64Split4,
        ],
    }
    bf16 / Bf16 -> f32 / f32 {
        persistent: [HopperPingPong128x128, HopperCooperative128x256, HopperCooperative128x192],
        halves: [HopperCooperative128x256Halves = HopperCooperative128x256],
        split: [],
        skinny: [Skinny16x64, Skinny16x64Split4],
        portable: [
            T128x128 = Tile128x128 / Aligned, T128x64 = Tile128x64 / Aligned, T64x64 = Tile64x64 / Words,
            T16x64 = Tile16x64 / Words,
        ],
        own: [],
        joined: [HopperPingPong128x128, HopperCooperative128x256, HopperCooperative128x192],
        joined_halves: [],
        joined_few_rows: [],
    }
    f32 / f32 -> f32 / f32 {
        persistent: [HopperPingPong128x128, HopperCooperative128x128, HopperCooperative128x256],
        halves: [HopperCooperative128x256Halves = HopperCooperative128x256],
        split: [
            HopperSplit128x256 = Split128x256, HopperSplit128x128 = Split128x128, HopperSplit64x128 = Split64x128,
            HopperSplit64x64 = Split64x64,
        ],
        skinny: [
            Skinny64x64, Skinny64x64Split2, Skinny64x64Split8, Skinny64x64Split8Deep, Skinny32x64, Skinny16x64,
            Skinny16x64Split2, Skinny16x64Split4,
        ],
        portable: [
            T128x64 = Tile128x64 / Aligned, T64x64 = Tile64x64 / Words, T16x64 = Tile16x64 / Words,
            Tf32T128x128 = Tf32Tile128x128 / Aligned, Tf32T64x64 = Tf32Tile64x64 / Words,
            Tf32T16x64 = Tf32Tile16x64 / Words,
        ],
        own: [Dots8x2 = dots linear_dots_f32_f32_8x2],
        joined: [],
        joined_halves: [],
        joined_few_rows: [],
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::{LinearInput, LinearTypes, Tile};
    use crate::DType;
    use crate::ops::Products;
    use crate::ops::gemm::Access;

    fn instances_are_what_select_counts_on<T: LinearInput>() {
        for tile in Tile::ALL {
            let same = <T as LinearTypes<T>>::instance(tile);
            let wide = <T as LinearTypes<f32>>::instance(tile);
            let serves = Access::ALL.into_iter().any(|access| tile.serves(T::DTYPE, access));
            assert_eq!(same.is_some(), serves, "{} {tile}", T::DTYPE);
            let joins = serves && tile.joins() && T::DTYPE != DType::F32;
            assert_eq!(<T as LinearTypes<T>>::joined(tile).is_some(), joins, "{} {tile}", T::DTYPE);
            let in_parts = <T as LinearTypes<f32>>::joined(tile);
            assert_eq!(in_parts.is_some(), joins && tile.has_passes(), "{} {tile}", T::DTYPE);
            assert_eq!(
                wide.is_some(),
                serves && tile.serves_output(T::DTYPE, DType::F32),
                "{} {tile}",
                T::DTYPE
            );
            for declaration in same.iter().map(|i| i.declaration).chain(wide.iter().map(|i| i.declaration)) {
                assert_eq!(declaration.shared_bytes, tile.shared_bytes(), "{}", declaration.name);
                let of_tile = match tile.name().split_once('-') {
                    // Whether there are halves is a parameter.
                    Some((_, rest)) => rest.trim_end_matches("-halves"),
                    None => tile.name(),
                };
                assert_eq!(declaration.family, tile.family(), "{}", declaration.name);
                assert!(declaration.name.contains(&of_tile.replace('-', "_")), "{}", declaration.name);
                let tf32 = tile.products(T::DTYPE) == Products::Tf32;
                assert_eq!(declaration.name.contains("tf32"), tf32, "{}", declaration.name);
                assert_eq!(declaration.cluster, [tile.cluster(), 1, 1], "{}", declaration.name);
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
