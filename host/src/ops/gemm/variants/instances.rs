//! The kernel instances of the linear families, by types, tile and access: the one table that launches go through.

use half::{bf16, f16};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::tile::{Aligned, Words};
use warpsmith_kernels::linear::{
    Tf32Tile16x64, Tf32Tile64x64, Tf32Tile128x128, Tile16x64, Tile64x64, Tile128x64, Tile128x128, linear,
};
use warpsmith_kernels::linear_hopper::{
    HopperCooperative64x128, HopperCooperative64x160, HopperCooperative128x128, HopperCooperative128x160,
    HopperCooperative128x192, HopperCooperative128x256, HopperCooperative192x176,
    HopperCooperative192x192AlongN, HopperCooperative256x176, HopperPingPong128x128, HopperPingPong128x192,
    linear_hopper,
};
use warpsmith_kernels::linear_hopper_f32::{
    Split64x64, Split64x128, Split128x128, Split128x256, linear_hopper_f32,
};
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

    /// The kernels that compute sums in parts with a tile, and add these; `None` if there are none.
    #[doc(hidden)]
    fn passes(tile: Tile) -> Option<Passes<Self, O>>;
}

macro_rules! instances {
    ($($input:ident / $device_input:ident -> $output:ident / $device_output:ident: [$($tile:ident),* $(,)?];)*) => {
        $(
            impl LinearTypes<$output> for $input {
                fn instance(tile: Tile) -> Option<Instance<Self, $output>> {
                    instances!(@arms $device_input, $device_output, tile, [$($tile),*])
                }

                fn passes(tile: Tile) -> Option<Passes<Self, $output>> {
                    let parts = <$input as LinearTypes<f32>>::instance(tile).filter(|_| tile.has_passes())?;
                    Some(Passes { parts, sums: Sums::new::<linear_sums<$device_input, $device_output>>() })
                }
            }
        )*
    };
    (@arms $t:ident, $o:ident, $choice:expr, [$($tile:ident),*]) => {
        match $choice {
            $(Tile::$tile => Some(instances!(@instance $t, $o, $tile)),)*
            #[allow(unreachable_patterns, reason = "types that have every combination leave nothing over")]
            _ => None,
        }
    };
    (@instance $t:ident, $o:ident, HopperPingPong128x128) => { instances!(@hopper $t, $o, HopperPingPong128x128) };
    (@instance $t:ident, $o:ident, HopperPingPong128x192) => { instances!(@hopper $t, $o, HopperPingPong128x192) };
    (@instance $t:ident, $o:ident, HopperCooperative128x256) => { instances!(@hopper $t, $o, HopperCooperative128x256) };
    (@instance $t:ident, $o:ident, HopperCooperative128x256Halves) => {
        Instance::hopper_halves::<linear_hopper<$t, $o, HopperCooperative128x256>, HopperCooperative128x256>()
    };
    (@instance $t:ident, $o:ident, HopperCooperative128x192) => { instances!(@hopper $t, $o, HopperCooperative128x192) };
    (@instance $t:ident, $o:ident, HopperCooperative128x128) => { instances!(@hopper $t, $o, HopperCooperative128x128) };
    (@instance $t:ident, $o:ident, HopperCooperative64x128) => { instances!(@hopper $t, $o, HopperCooperative64x128) };
    (@instance $t:ident, $o:ident, HopperCooperative64x160) => { instances!(@hopper $t, $o, HopperCooperative64x160) };
    (@instance $t:ident, $o:ident, HopperCooperative128x160) => { instances!(@hopper $t, $o, HopperCooperative128x160) };
    (@instance $t:ident, $o:ident, HopperCooperative192x192AlongN) => {
        instances!(@hopper $t, $o, HopperCooperative192x192AlongN)
    };
    (@instance $t:ident, $o:ident, HopperCooperative256x176) => { instances!(@hopper $t, $o, HopperCooperative256x176) };
    (@instance $t:ident, $o:ident, HopperCooperative192x176) => { instances!(@hopper $t, $o, HopperCooperative192x176) };
    (@instance $t:ident, $o:ident, Skinny64x64) => { instances!(@skinny $t, $o, Skinny64x64) };
    (@instance $t:ident, $o:ident, Skinny64x64Split2) => { instances!(@skinny $t, $o, Skinny64x64Split2) };
    (@instance $t:ident, $o:ident, Skinny64x64Split8) => { instances!(@skinny $t, $o, Skinny64x64Split8) };
    (@instance $t:ident, $o:ident, Skinny64x64Split8Deep) => { instances!(@skinny $t, $o, Skinny64x64Split8Deep) };
    (@instance $t:ident, $o:ident, Skinny32x64) => { instances!(@skinny $t, $o, Skinny32x64) };
    (@instance $t:ident, $o:ident, Skinny16x64) => { instances!(@skinny $t, $o, Skinny16x64) };
    (@instance $t:ident, $o:ident, Skinny16x64Split2) => { instances!(@skinny $t, $o, Skinny16x64Split2) };
    (@instance $t:ident, $o:ident, Skinny16x64Split4) => { instances!(@skinny $t, $o, Skinny16x64Split4) };
    (@instance $t:ident, $o:ident, Narrow16x256) => { Instance::narrow::<linear_narrow<$t>>() };
    (@instance $t:ident, $o:ident, Strided32x32) => { Instance::strided::<linear_strided<$t>>() };
    (@instance $t:ident, $o:ident, HopperSplit128x256) => { instances!(@split Split128x256) };
    (@instance $t:ident, $o:ident, HopperSplit128x128) => { instances!(@split Split128x128) };
    (@instance $t:ident, $o:ident, HopperSplit64x128) => { instances!(@split Split64x128) };
    (@instance $t:ident, $o:ident, HopperSplit64x64) => { instances!(@split Split64x64) };
    (@instance $t:ident, $o:ident, $tile:ident) => {
        instances!(@portable $t, $o, $tile)
    };
    (@hopper $t:ident, $o:ident, $tile:ident) => { Instance::hopper::<linear_hopper<$t, $o, $tile>, $tile>() };
    (@skinny $t:ident, $o:ident, $tile:ident) => { Instance::skinny::<linear_skinny<$t, $o, $tile>, $tile>() };
    (@split $tile:ident) => { Instance::split::<linear_hopper_f32<$tile>, $tile>() };
    (@portable $t:ident, $o:ident, T128x128) => { instances!(@portable $t, $o, Tile128x128, Aligned) };
    (@portable $t:ident, $o:ident, T128x64) => { instances!(@portable $t, $o, Tile128x64, Aligned) };
    (@portable $t:ident, $o:ident, T64x64) => { instances!(@portable $t, $o, Tile64x64, Words) };
    (@portable $t:ident, $o:ident, T16x64) => { instances!(@portable $t, $o, Tile16x64, Words) };
    (@portable $t:ident, $o:ident, Tf32T128x128) => { instances!(@portable $t, $o, Tf32Tile128x128, Aligned) };
    (@portable $t:ident, $o:ident, Tf32T64x64) => { instances!(@portable $t, $o, Tf32Tile64x64, Words) };
    (@portable $t:ident, $o:ident, Tf32T16x64) => { instances!(@portable $t, $o, Tf32Tile16x64, Words) };
    (@portable $t:ident, $o:ident, $tile:ident, $access:ident) => { Instance::portable::<linear<$t, $o, $tile, $access>, $tile>() };
}
instances! {
    f16 / F16 -> f16 / F16:
        [HopperPingPong128x128, HopperPingPong128x192, HopperCooperative128x256, HopperCooperative128x256Halves,
         HopperCooperative128x192, HopperCooperative128x128, HopperCooperative64x128, HopperCooperative64x160, HopperCooperative128x160,
         HopperCooperative192x192AlongN, HopperCooperative256x176, HopperCooperative192x176, Skinny64x64, Skinny64x64Split2, Skinny64x64Split8, Skinny64x64Split8Deep, Skinny32x64, Skinny16x64, Skinny16x64Split2, Skinny16x64Split4,
         Narrow16x256, Strided32x32, T128x128, T128x64, T64x64, T16x64];
    f16 / F16 -> f32 / f32:
        [HopperPingPong128x128, HopperCooperative128x256, HopperCooperative128x256Halves, HopperCooperative128x192,
         Skinny16x64, Skinny16x64Split4,
         T128x128, T128x64, T64x64, T16x64];
    bf16 / Bf16 -> bf16 / Bf16:
        [HopperPingPong128x128, HopperPingPong128x192, HopperCooperative128x256, HopperCooperative128x256Halves,
         HopperCooperative128x192, HopperCooperative128x128, HopperCooperative64x128, HopperCooperative64x160, HopperCooperative128x160,
         HopperCooperative192x192AlongN, HopperCooperative256x176, HopperCooperative192x176,
 Skinny64x64, Skinny64x64Split2, Skinny64x64Split8, Skinny64x64Split8Deep, Skinny32x64, Skinny16x64, Skinny16x64Split2, Skinny16x64Split4,
         Narrow16x256, Strided32x32, T128x128, T128x64, T64x64, T16x64];
    bf16 / Bf16 -> f32 / f32:
        [HopperPingPong128x128, HopperCooperative128x256, HopperCooperative128x256Halves, HopperCooperative128x192,
         Skinny16x64, Skinny16x64Split4,
         T128x128, T128x64, T64x64, T16x64];
    f32 / f32 -> f32 / f32:
        [HopperPingPong128x128, HopperCooperative128x128, HopperCooperative128x256, HopperCooperative128x256Halves,
         HopperSplit128x256, HopperSplit128x128, HopperSplit64x128, HopperSplit64x64,
         Skinny64x64, Skinny64x64Split2, Skinny64x64Split8, Skinny64x64Split8Deep, Skinny32x64, Skinny16x64, Skinny16x64Split2, Skinny16x64Split4,
         T128x64, T64x64, T16x64, Tf32T128x128, Tf32T64x64, Tf32T16x64];
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
