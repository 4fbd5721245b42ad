//! Tensor maps as the driver encodes them.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use warpsmith_emulator::TensorMapArguments;

use crate::driver;
use crate::error::Result;

/// `CUtensorMap`.
#[repr(C, align(128))]
struct RawMap([u64; 16]);

type EncodeTiled = unsafe extern "C" fn(
    map: *mut RawMap,
    data_type: c_int,
    rank: c_uint,
    address: *mut c_void,
    dims: *const u64,
    strides: *const u64,
    box_dims: *const u32,
    element_strides: *const u32,
    interleave: c_int,
    swizzle: c_int,
    l2_promotion: c_int,
    oob_fill: c_int,
) -> c_int;

/// The driver's tensor map. The arguments have been checked, so that the lists have a number for each axis.
pub(super) fn encode(arguments: &TensorMapArguments<'_>) -> Result<[u64; 16]> {
    arguments.check()?;
    let mut map = RawMap([0; 16]);
    // SAFETY: the driver's function of this name has this type. The lists have the lengths that the rank says, since the
    // arguments were checked; the address is only noted; the map is written to a local variable.
    unsafe {
        driver::call("encoding a tensor map", "cuTensorMapEncodeTiled\0", |encode: EncodeTiled| {
            encode(
                &raw mut map,
                // All these enums have their values in the driver's order.
                arguments.data_type as c_int,
                arguments.dims.len() as c_uint,
                ptr::without_provenance_mut(arguments.address as usize),
                arguments.dims.as_ptr(),
                arguments.strides.as_ptr(),
                arguments.box_dims.as_ptr(),
                arguments.element_strides.as_ptr(),
                arguments.interleave as c_int,
                arguments.swizzle as c_int,
                arguments.l2_promotion as c_int,
                arguments.oob_fill as c_int,
            )
        })?;
    }
    Ok(map.0)
}

#[cfg(test)]
mod tests {
    use warpsmith_emulator::{Interleave, L2Promotion, OobFill, Swizzle, TensorType};

    use super::*;

    #[test]
    fn enums_have_the_drivers_numbers() {
        for (number, data_type) in TensorType::ALL.into_iter().enumerate() {
            assert_eq!(data_type as usize, number);
        }
        assert_eq!(
            (TensorType::F16 as c_int, TensorType::Bf16 as c_int, TensorType::Tf32 as c_int),
            (6, 9, 11)
        );
        assert_eq!((Interleave::None as c_int, Interleave::B32 as c_int), (0, 2));
        assert_eq!((Swizzle::None as c_int, Swizzle::B32 as c_int, Swizzle::B128 as c_int), (0, 1, 3));
        assert_eq!((L2Promotion::None as c_int, L2Promotion::B256 as c_int), (0, 3));
        assert_eq!((OobFill::Zeros as c_int, OobFill::Nan as c_int), (0, 1));
        assert_eq!((size_of::<RawMap>(), align_of::<RawMap>()), (128, 128));
    }
}
