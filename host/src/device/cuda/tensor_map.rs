//! Tensor maps as the driver encodes them.

use std::ffi::{c_int, c_uint};
use std::ptr;

use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use warpsmith_emulator::TensorMapArguments;

use crate::driver::{self, sys as cuda};
use crate::error::Result;

/// `CUtensorMap`.
#[repr(C, align(128))]
struct RawMap([u64; 16]);

/// The maps that a GPU's driver has encoded, by all of their arguments, the address too: encoding is a function of these alone.
#[derive(Debug, Default)]
pub(super) struct Maps(RwLock<FxHashMap<Key, [u64; 16]>>);

/// All numbers of a map's arguments.
type Key = SmallVec<[u64; 28]>;

/// Maps that are kept at most. Behind that all are dropped.
const MOST_MAPS: usize = 4096;

impl Maps {
    /// The map of these arguments, which `encode` gives if nobody has asked for it before.
    pub(super) fn get(
        &self,
        arguments: &TensorMapArguments<'_>,
        encode: impl FnOnce() -> Result<[u64; 16]>,
    ) -> Result<[u64; 16]> {
        let key = key(arguments);
        let kept = self.0.read().get(&key).copied();
        if let Some(kept) = kept {
            return Ok(kept);
        }
        let map = encode()?;
        let mut all = self.0.write();
        if all.len() >= MOST_MAPS {
            all.clear();
        }
        all.insert(key, map);
        Ok(map)
    }
}

fn key(arguments: &TensorMapArguments<'_>) -> Key {
    let &TensorMapArguments {
        data_type,
        address,
        dims,
        strides,
        box_dims,
        element_strides,
        interleave,
        swizzle,
        l2_promotion,
        oob_fill,
    } = arguments;
    let enums = [data_type as u64, interleave as u64, swizzle as u64, l2_promotion as u64, oob_fill as u64];
    let enums = enums.into_iter().fold(0, |all, one| (all << 8) | one);
    let lengths = [dims.len(), strides.len(), box_dims.len(), element_strides.len()];
    let mut key = Key::new();
    key.extend([enums, address].into_iter().chain(lengths.map(|length| length as u64)));
    key.extend(dims.iter().chain(strides).copied());
    key.extend(box_dims.iter().chain(element_strides).map(|&number| u64::from(number)));
    key
}

/// The driver's tensor map.
pub(super) fn encode(arguments: &TensorMapArguments<'_>) -> Result<[u64; 16]> {
    arguments.check()?;
    // SAFETY: the arguments were checked.
    unsafe { encode_unchecked(arguments) }
}

/// The same, where the driver has to find what is wrong.
///
/// # Safety
///
/// Each list has a number for each axis that it is about.
unsafe fn encode_unchecked(arguments: &TensorMapArguments<'_>) -> Result<[u64; 16]> {
    let mut map = RawMap([0; 16]);
    // SAFETY: the caller answers for the lengths of the lists; the address is only noted; the map is written to a local variable, which is as
    // large and as aligned as the driver's.
    let encoded = unsafe {
        cuda::cuTensorMapEncodeTiled(
            (&raw mut map).cast(),
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
    };
    driver::check("encoding a tensor map", encoded)?;
    Ok(map.0)
}

#[cfg(test)]
mod tests {
    use warpsmith_emulator::{Interleave, L2Promotion, OobFill, Swizzle, TensorType};

    use super::*;
    use crate::device::cuda::context::GpuContext;
    use crate::{Device, Tensor};

    /// Each number of the arguments decides.
    #[test]
    fn a_map_is_encoded_once_for_the_same_arguments_and_again_for_others() {
        let plain = TensorMapArguments {
            data_type: TensorType::F16,
            address: 1 << 20,
            dims: &[64, 64, 4],
            strides: &[128, 8192],
            box_dims: &[32, 8, 2],
            element_strides: &[1, 1, 1],
            interleave: Interleave::None,
            swizzle: Swizzle::None,
            l2_promotion: L2Promotion::None,
            oob_fill: OobFill::Zeros,
        };
        let maps = Maps::default();
        let mut encoded = 0;
        let mut of = |arguments: &TensorMapArguments<'_>| {
            maps.get(arguments, || {
                encoded += 1;
                Ok([encoded; 16])
            })
            .unwrap()[0]
        };
        let others = [
            plain,
            TensorMapArguments { data_type: TensorType::Bf16, ..plain },
            TensorMapArguments { address: 1 << 21, ..plain },
            TensorMapArguments { dims: &[64, 64, 5], ..plain },
            TensorMapArguments { strides: &[128, 8208], ..plain },
            TensorMapArguments { box_dims: &[32, 8, 1], ..plain },
            TensorMapArguments { element_strides: &[1, 2, 1], ..plain },
            TensorMapArguments { swizzle: Swizzle::B32, ..plain },
            TensorMapArguments { l2_promotion: L2Promotion::B64, ..plain },
            TensorMapArguments { oob_fill: OobFill::Nan, ..plain },
        ];
        for _ in 0..2 {
            for (index, arguments) in others.iter().enumerate() {
                assert_eq!(of(arguments), 1 + index as u64);
            }
        }
    }

    /// Run it with `--ignored` where there is such a GPU.
    #[test]
    #[ignore = "needs a GPU of compute capability 9.0"]
    fn the_driver_takes_what_the_rules_take_and_nothing_else() {
        let device = Device::cuda(0).unwrap();
        let tensor = Tensor::<u8>::zeros(&device, [1 << 20]).unwrap();
        let mut gpu = 0;
        // SAFETY: the handle is written to a local variable.
        unsafe { cuda::cuDeviceGet(&raw mut gpu, 0) }.unwrap();
        let context = GpuContext::new(gpu).unwrap();
        let _bound = context.bind().unwrap();
        let plain = TensorMapArguments {
            data_type: TensorType::F16,
            address: tensor.arg().address(),
            dims: &[64, 64, 4],
            strides: &[128, 8192],
            box_dims: &[32, 8, 2],
            element_strides: &[1, 1, 1],
            interleave: Interleave::None,
            swizzle: Swizzle::None,
            l2_promotion: L2Promotion::None,
            oob_fill: OobFill::Zeros,
        };
        let mut cases = vec![("as it is", plain)];
        for (name, address) in [("address + 8", plain.address + 8), ("address + 16", plain.address + 16)] {
            cases.push((name, TensorMapArguments { address, ..plain }));
        }
        for dims in [
            [0, 64, 4],
            [64, 0, 4],
            [1, 1, 1],
            [1 << 31, 64, 4],
            [64, 1 << 31, 4],
            [64, (1 << 31) + 1, 4],
            [64, 64, 1 << 32],
            [64, 64, (1 << 32) + 1],
        ] {
            cases.push(("dims", TensorMapArguments { dims: Box::leak(Box::new(dims)), ..plain }));
        }
        for strides in [
            [0, 8192],
            [16, 16],
            [128, 0],
            [120, 8192],
            [8192, 128],
            [128, (1 << 40) - 16],
            [128, 1 << 40],
            [(1 << 40) - 16, 8192],
        ] {
            cases.push(("strides", TensorMapArguments { strides: Box::leak(Box::new(strides)), ..plain }));
        }
        for box_dims in [
            [0, 8, 2],
            [32, 0, 2],
            [4, 8, 2],
            [8, 8, 2],
            [256, 8, 2],
            [257, 8, 2],
            [264, 8, 2],
            [32, 256, 256],
            [32, 257, 1],
        ] {
            cases.push(("box", TensorMapArguments { box_dims: Box::leak(Box::new(box_dims)), ..plain }));
        }
        for element_strides in [[0, 1, 1], [2, 1, 1], [8, 1, 1], [9, 1, 1], [1, 0, 1], [1, 8, 8], [1, 9, 1]] {
            let element_strides = Box::leak(Box::new(element_strides));
            cases.push(("element strides", TensorMapArguments { element_strides, ..plain }));
        }
        for (swizzle, box_dims) in [
            (Swizzle::B32, [16, 8, 2]),
            (Swizzle::B32, [24, 8, 2]),
            (Swizzle::B64, [8, 8, 2]),
            (Swizzle::B64, [40, 8, 2]),
            (Swizzle::B128, [64, 8, 2]),
            (Swizzle::B128, [72, 8, 2]),
        ] {
            cases.push((
                "swizzle",
                TensorMapArguments { swizzle, box_dims: Box::leak(Box::new(box_dims)), ..plain },
            ));
        }
        for data_type in TensorType::ALL {
            let arguments = TensorMapArguments { data_type, oob_fill: OobFill::Nan, ..plain };
            cases.push(("fill", arguments));
        }
        for rank in 1..=5 {
            let arguments = TensorMapArguments {
                dims: &[64; 5][..rank],
                strides: &[128, 8192, 16, 32][..rank - 1],
                box_dims: &[8; 5][..rank],
                element_strides: &[1; 5][..rank],
                ..plain
            };
            cases.push(("rank", arguments));
        }
        let wrong: Vec<String> = cases
            .iter()
            .filter_map(|(name, arguments)| {
                // SAFETY: every case has lists of the right lengths.
                let (ours, driver) = (arguments.check(), unsafe { encode_unchecked(arguments) });
                (ours.is_ok() != driver.is_ok()).then(|| {
                    format!("{name}: rules {ours:?}, driver {:?}\n  {arguments:?}", driver.map(|_| ()))
                })
            })
            .collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

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
