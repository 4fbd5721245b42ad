//! The types of keys and values: that of the queries, or 8 bits.

use float8::{F8E4M3, F8E5M2};

use super::AttentionInput;
use super::launch::{Instance, PortableKernels};
use crate::cpu::Operand as CpuOperand;
use crate::device::Device;
use crate::tensor::{Element, Tensor};

/// A type of keys and values for queries of type `T`: `T` itself, [`F8E4M3`] and [`F8E5M2`]. GPUs have kernels of the latter for f16 and bf16.
pub trait AttentionKeys<T: Element>: Element + CpuOperand {
    /// Whether they have 8 bits.
    #[doc(hidden)]
    const IS_FP8: bool;

    /// A tensor of keys, if they are of type `T`.
    #[doc(hidden)]
    fn native(keys: &Tensor<Self>) -> Option<&Tensor<T>>;

    /// A tensor of queries as one of keys, if they are of the same type.
    #[doc(hidden)]
    fn of_native(keys: Tensor<T>) -> Option<Tensor<Self>>;

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

    fn of_native(keys: Tensor<T>) -> Option<Tensor<Self>> {
        Some(keys)
    }

    #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
    fn instance(device: &Device, width: usize, value_width: usize, few: bool) -> Option<Instance<T>> {
        <T as PortableKernels>::instance(width, value_width, few).filter(|instance| instance.runs_on(device))
    }
}

macro_rules! fp8_keys {
    ($($keys:ident),*) => {
        $(
            impl<T: AttentionInput> AttentionKeys<T> for $keys {
                const IS_FP8: bool = true;

                fn native(_: &Tensor<Self>) -> Option<&Tensor<T>> {
                    None
                }

                fn of_native(_: Tensor<T>) -> Option<Tensor<Self>> {
                    None
                }

                #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
                fn instance(
                    device: &Device, width: usize, value_width: usize, few: bool
                ) -> Option<Instance<T>> {
                    let instances = <T as PortableKernels>::fp8_instances(width, value_width, few);
                    instances.into_iter().flatten().find(|instance| instance.runs_on(device))
                }
            }
        )*
    };
}
fp8_keys!(F8E4M3, F8E5M2);
