//! The kernel instances of the families for 8-bit types, by the output's type and tile.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use warpsmith_dsl::float::{self as device_float, Bf16, F16};
use warpsmith_kernels::linear_fp8::{Fp8Portable64x64, linear_fp8, widen_fp8};
use warpsmith_kernels::linear_fp8_ada::{Fp8Ada16x64, Fp8Ada64x64, Fp8Ada128x128, linear_fp8_ada};
use warpsmith_kernels::linear_fp8_hopper::{
    Fp8Hopper64x64, Fp8Hopper64x128, Fp8Hopper128x128, Fp8Hopper128x192, Fp8Hopper256x128, linear_fp8_hopper,
};
use warpsmith_kernels::linear_sums::linear_sums;

use super::Tile;
use crate::cpu::{FromAccumulator, Operand};
use crate::error::Result;
use crate::ops::gemm::launch::fp8::{Instance, widen};
use crate::ops::gemm::passes::Sums;
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};

mod sealed {
    pub trait Sealed {}
}

/// An 8-bit type of x or w: [`F8E4M3`](float8::F8E4M3) or [`F8E5M2`](float8::F8E5M2).
pub trait ScaledInput: Element + Operand + sealed::Sealed {
    /// Whether it is e5m2.
    #[doc(hidden)]
    const IS_E5M2: bool;
    /// Copies a matrix of whole chunks to f16.
    #[doc(hidden)]
    fn widen_to_f16(stream: &Stream, from: &Tensor<Self>, to: &mut Tensor<f16>) -> Result<()>;
}

macro_rules! inputs {
    ($($host:ident, $is_e5m2:literal;)*) => {
        $(
            impl sealed::Sealed for $host {}
            impl ScaledInput for $host {
                const IS_E5M2: bool = $is_e5m2;

                fn widen_to_f16(stream: &Stream, from: &Tensor<Self>, to: &mut Tensor<f16>) -> Result<()> {
                    widen::<Self, widen_fp8<device_float::$host>>(stream, from, to)
                }
            }
        )*
    };
}
inputs! {
    F8E4M3, false;
    F8E5M2, true;
}

/// A type of y: [`f16`](half::f16), [`bf16`](half::bf16) or `f32`.
pub trait ScaledOutput: Element + FromAccumulator<f32> + Operand + sealed::Sealed {
    /// The kernel for a tile; `None` if there is none.
    #[doc(hidden)]
    fn instance(tile: Tile) -> Option<Instance<Self>>;
    /// The kernel that adds sums that are in parts.
    #[doc(hidden)]
    fn sums() -> Sums<Self, Self>;
}

macro_rules! outputs {
    ($($host:ident / $device:ident;)*) => {
        $(
            impl sealed::Sealed for $host {}
            impl ScaledOutput for $host {
                fn instance(tile: Tile) -> Option<Instance<Self>> {
                    Some(match tile {
                        Tile::Fp8Hopper256x128 => outputs!(@hopper $device, Fp8Hopper256x128),
                        Tile::Fp8Hopper128x192 => outputs!(@hopper $device, Fp8Hopper128x192),
                        Tile::Fp8Hopper128x128 => outputs!(@hopper $device, Fp8Hopper128x128),
                        Tile::Fp8Hopper64x128 => outputs!(@hopper $device, Fp8Hopper64x128),
                        Tile::Fp8Hopper64x64 => outputs!(@hopper $device, Fp8Hopper64x64),
                        Tile::Fp8Ada128x128 => Instance::ada::<linear_fp8_ada<$device, Fp8Ada128x128>>(),
                        Tile::Fp8Ada64x64 => Instance::ada::<linear_fp8_ada<$device, Fp8Ada64x64>>(),
                        Tile::Fp8Ada16x64 => Instance::ada::<linear_fp8_ada<$device, Fp8Ada16x64>>(),
                        Tile::Fp8Portable64x64 => Instance::portable::<linear_fp8<$device, Fp8Portable64x64>>(),
                        _ => return None,
                    })
                }

                fn sums() -> Sums<Self, Self> {
                    Sums::new::<linear_sums<$device, $device>>()
                }
            }
        )*
    };
    (@hopper $device:ident, $tile:ident) => { Instance::hopper::<linear_fp8_hopper<$device, $tile>, $tile>() };
}
outputs! {
    f16 / F16;
    bf16 / Bf16;
    f32 / f32;
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::{ScaledOutput, Tile};
    use crate::DType;

    fn instances_are_what_the_table_says<O: ScaledOutput>() {
        for tile in Tile::ALL {
            let instance = O::instance(tile);
            let serves = Tile::of_input(DType::F8E4M3).any(|one| one == tile);
            assert_eq!(instance.is_some(), serves, "{tile}");
            let Some(declaration) = instance.map(|instance| instance.declaration) else { continue };
            assert_eq!(declaration.shared_bytes, tile.shared_bytes(), "{}", declaration.name);
            let (rows, columns) = tile.shape();
            assert!(declaration.name.ends_with(&format!("_{rows}x{columns}")), "{}", declaration.name);
            assert_eq!(declaration.family, tile.family(), "{}", declaration.name);
            assert!(declaration.name.contains(O::DTYPE.name()), "{}", declaration.name);
            assert_eq!(declaration.cluster, [tile.cluster(), 1, 1], "{}", declaration.name);
        }
    }

    #[test]
    fn every_tile_for_8_bit_types_has_its_kernel() {
        instances_are_what_the_table_says::<f16>();
        instances_are_what_the_table_says::<bf16>();
        instances_are_what_the_table_says::<f32>();
    }
}
