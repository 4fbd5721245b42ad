//! The types of keys and values: that of the queries, or 8 bits.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use super::AttentionInput;
use super::launch::{Fp8Kernels, Instance, PortableKernels};
use crate::cpu::Operand as CpuOperand;
use crate::device::Device;
use crate::tensor::{Element, Tensor};

/// A type of keys and values for queries of type `T`: `T` itself, and for f16 and bf16 also [`F8E4M3`] and [`F8E5M2`].
pub trait AttentionKeys<T: Element>: Element + CpuOperand {
    /// Whether they have 8 bits.
    #[doc(hidden)]
    const IS_FP8: bool;

    /// A tensor of keys, if they are of type `T`.
    #[doc(hidden)]
    fn native(keys: &Tensor<Self>) -> Option<&Tensor<T>>;

    /// The kernel for every such device, for heads of so many columns and values, for few rows or for many.
    #[doc(hidden)]
    #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
    fn instance(device: &Device, width: usize, value_width: usize, few: bool) -> Option<Instance<T>>;
}

impl<T: AttentionInput> AttentionKeys<T> for T {
    const IS_FP8: bool = false;

    fn native(keys: &Tensor<Self>) -> Option<&Tensor<T>> {
        Some(keys)
    }

    #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
    fn instance(device: &Device, width: usize, value_width: usize, few: bool) -> Option<Instance<T>> {
        <T as PortableKernels>::instance(width, value_width, few).filter(|instance| instance.runs_on(device))
    }
}

macro_rules! fp8_keys {
    ($($keys:ident of $element:ident;)*) => {
        $(
            impl AttentionKeys<$element> for $keys {
                const IS_FP8: bool = true;

                fn native(_: &Tensor<Self>) -> Option<&Tensor<$element>> {
                    None
                }

                #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
                fn instance(
                    device: &Device, width: usize, value_width: usize, few: bool
                ) -> Option<Instance<$element>> {
                    let instances = <$element as Fp8Kernels>::instances(width, value_width, few);
                    instances.into_iter().flatten().find(|instance| instance.runs_on(device))
                }
            }
        )*
    };
}
fp8_keys! {
    F8E4M3 of f16;
    F8E4M3 of bf16;
    F8E5M2 of f16;
    F8E5M2 of bf16;
}
