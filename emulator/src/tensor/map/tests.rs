//! The rules for the arguments of tensor maps, each at its border.

use super::*;

const PLAIN: TensorMapArguments<'static> = TensorMapArguments {
    data_type: TensorType::Bf16,
    address: 0x7000_0000_0000,
    dims: &[100, 50, 3],
    strides: &[208, 10_400],
    box_dims: &[64, 8, 2],
    element_strides: &[1, 3, 1],
    interleave: Interleave::None,
    swizzle: Swizzle::B128,
    l2_promotion: L2Promotion::B256,
    oob_fill: OobFill::Nan,
};

#[test]
fn a_map_says_what_it_was_made_of() {
    let map = Tiled::decode(TensorMap::encode(&PLAIN).unwrap().as_bytes()).unwrap();
    let expected = Tiled {
        data_type: TensorType::Bf16,
        rank: 3,
        address: 0x7000_0000_0000,
        dims: [100, 50, 3, 1, 1],
        strides: [2, 208, 10_400, 0, 0],
        counts: [64, 3, 2, 1, 1],
        steps: [1, 3, 1, 1, 1],
        swizzle: Swizzle::B128,
        oob_fill: OobFill::Nan,
    };
    assert_eq!(map, expected);
}

#[test]
fn the_largest_arguments_survive() {
    let arguments = TensorMapArguments {
        data_type: TensorType::U8,
        address: !15,
        dims: &[1 << 32; 5],
        strides: &[(1 << 40) - 16; 4],
        box_dims: &[256, 256, 8, 8, 256],
        element_strides: &[8; 5],
        swizzle: Swizzle::None,
        oob_fill: OobFill::Zeros,
        ..PLAIN
    };
    let map = Tiled::decode(TensorMap::encode(&arguments).unwrap().as_bytes()).unwrap();
    assert_eq!((map.dims, map.strides[1..].to_vec()), ([1 << 32; 5], vec![(1 << 40) - 16; 4]));
    // The element stride of the innermost axis has no effect.
    assert_eq!((map.counts, map.steps), ([256, 32, 1, 1, 32], [1, 8, 8, 8, 8]));
}

#[test]
fn every_type_and_swizzle_survives() {
    for data_type in TensorType::ALL {
        for swizzle in [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128] {
            let arguments = TensorMapArguments {
                data_type,
                dims: &[64],
                strides: &[],
                box_dims: &[16 / data_type.bytes()],
                element_strides: &[1],
                swizzle,
                oob_fill: OobFill::Zeros,
                ..PLAIN
            };
            let map = Tiled::decode(TensorMap::encode(&arguments).unwrap().as_bytes()).unwrap();
            assert_eq!((map.data_type, map.swizzle), (data_type, swizzle));
        }
    }
}

#[test]
fn bytes_that_are_no_map_are_not_taken_for_one() {
    let map = TensorMap::encode(&PLAIN).unwrap();
    for at in 0..MAP_BYTES {
        let mut bytes = *map.as_bytes();
        bytes[at] ^= 1;
        assert_eq!(Tiled::decode(&bytes), None, "byte {at}");
    }
    assert_eq!(Tiled::decode(&[0; MAP_BYTES]), None);
}

#[test]
fn each_rule_is_enforced_at_its_border_and_named() {
    let message = |arguments: TensorMapArguments<'_>| match TensorMap::encode(&arguments) {
        Ok(_) => "taken".to_owned(),
        Err(error) => error.to_string(),
    };
    let p = PLAIN;
    let none = TensorMapArguments { swizzle: Swizzle::None, ..PLAIN };
    let bytes = TensorMapArguments { data_type: TensorType::U8, oob_fill: OobFill::Zeros, ..none };
    for (arguments, expected) in [
        (TensorMapArguments { dims: &[], ..p }, "the tensor has 0 axes, expected 1 to 5"),
        (TensorMapArguments { dims: &[1; 6], ..p }, "the tensor has 6 axes, expected 1 to 5"),
        (TensorMapArguments { strides: &[16], ..p }, "the list of strides has 1 numbers, expected 2"),
        (
            TensorMapArguments { box_dims: &[64, 8], ..p },
            "the list of the box's sizes has 2 numbers, expected 3",
        ),
        (
            TensorMapArguments { element_strides: &[1; 4], ..p },
            "the list of element strides has 4 numbers, expected 3",
        ),
        (TensorMapArguments { address: 8, ..p }, "the address is 0x8, expected a multiple of 16"),
        (
            TensorMapArguments { dims: &[1, 0, 1], ..p },
            "the size of axis 1 is 0, expected 1 to 2^32 elements",
        ),
        (
            TensorMapArguments { dims: &[1, 1, (1 << 32) + 1], ..p },
            "the size of axis 2 is 4294967297, expected 1 to 2^32 elements",
        ),
        (
            TensorMapArguments { strides: &[16, 24], ..p },
            "the stride of axis 2 is 24, expected a multiple of 16 below 2^40",
        ),
        (
            TensorMapArguments { strides: &[1 << 40, 16], ..p },
            "the stride of axis 1 is 1099511627776, expected a multiple of 16 below 2^40",
        ),
        (TensorMapArguments { strides: &[0, (1 << 40) - 16], ..p }, "taken"),
        (
            TensorMapArguments { box_dims: &[64, 0, 1], ..p },
            "the box's size of axis 1 is 0, expected 1 to 256 elements",
        ),
        (
            TensorMapArguments { box_dims: &[64, 257, 1], ..p },
            "the box's size of axis 1 is 257, expected 1 to 256 elements",
        ),
        (TensorMapArguments { box_dims: &[64, 256, 1], ..p }, "taken"),
        (TensorMapArguments { box_dims: &[64, 171, 32], ..none }, "taken"),
        (
            TensorMapArguments { box_dims: &[64, 172, 32], ..none },
            "the box has 237568 bytes, expected at most 233472",
        ),
        (
            TensorMapArguments { element_strides: &[1, 0, 1], ..p },
            "the element stride of axis 1 is 0, expected 1 to 8",
        ),
        (
            TensorMapArguments { element_strides: &[1, 1, 9], ..p },
            "the element stride of axis 2 is 9, expected 1 to 8",
        ),
        (
            TensorMapArguments { box_dims: &[63, 1, 1], ..p },
            "the box has 126 bytes along its innermost axis, expected a multiple of 16",
        ),
        (
            TensorMapArguments { box_dims: &[72, 1, 1], ..p },
            "the box has 144 bytes along its innermost axis, expected at most 128, the span of the swizzle",
        ),
        (
            TensorMapArguments { swizzle: Swizzle::B64, ..p },
            "the box has 128 bytes along its innermost axis, expected at most 64, the span of the swizzle",
        ),
        (TensorMapArguments { box_dims: &[256, 1, 1], ..none }, "taken"),
        (
            TensorMapArguments { box_dims: &[24, 1, 1], ..bytes },
            "the box has 24 bytes along its innermost axis, expected a multiple of 16",
        ),
        (
            TensorMapArguments { data_type: TensorType::U16, ..p },
            "elements of type U16 are filled with NaN outside the tensor, expected a floating-point type",
        ),
        (
            TensorMapArguments { interleave: Interleave::B16, ..p },
            "the layout is interleaved by B16, expected no interleaving: other layouts are not supported",
        ),
    ] {
        assert_eq!(message(arguments), expected);
    }
}

#[test]
fn a_swizzle_is_its_own_inverse_and_stays_within_its_span() {
    for swizzle in [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128] {
        for address in 0..4096 {
            let moved = swizzle.apply(address);
            assert_eq!(swizzle.apply(moved), address);
            let span = swizzle.span().max(1);
            assert_eq!(moved / span, address / span);
            assert_eq!(moved % 16, address % 16);
        }
    }
    assert_eq!(Swizzle::B128.apply(7 * 128 + 16), 7 * 128 + 6 * 16);
    assert_eq!(Swizzle::B64.apply(3 * 128 + 64), 3 * 128 + 64 + 48);
    assert_eq!(Swizzle::B32.apply(128), 128 + 16);
}
