//! Heads that are turned.

use warpsmith::DType;
use warpsmith::ops::Pairing;

use super::elementwise::beside;
use super::linear::Placement;

/// One rotation to validate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotaryCase {
    /// The elements' type: f16, bf16 or f32.
    pub dtype: DType,
    /// Sequences, tokens of each, heads, and elements of each.
    pub shape: [usize; 4],
    /// Elements of a head that are turned.
    pub rotary: usize,
    /// Which elements are pairs.
    pub pairing: Pairing,
    /// The first token's position; none if tokens have positions of their own, of which some are not in the table.
    pub offset: Option<usize>,
    /// Whether heads are turned back.
    pub is_inverse: bool,
    /// Whether the result takes the place of the heads.
    pub in_place: bool,
    /// Where heads are in larger ones.
    pub placement: Placement,
    /// Decides the elements, and positions.
    pub seed: u64,
}

impl RotaryCase {
    /// A rotation of whole heads without gaps.
    #[must_use]
    pub fn new(dtype: DType, shape: [usize; 4]) -> Self {
        Self {
            dtype,
            shape,
            rotary: shape[3],
            pairing: Pairing::Halves,
            offset: Some(0),
            is_inverse: false,
            in_place: false,
            placement: Placement { before: 0, after: 0 },
            seed: 0,
        }
    }

    /// The sizes in short.
    #[must_use]
    pub fn sizes(&self) -> String {
        self.shape.map(|size| size.to_string()).join("×")
    }

    /// The options in short.
    #[must_use]
    pub fn options(&self) -> String {
        let pairing = match self.pairing {
            Pairing::Halves => "halves",
            Pairing::Neighbours => "neighbours",
        };
        let mut told = format!("{pairing} of {}", self.rotary);
        match self.offset {
            None => told.push_str(" positions"),
            Some(0) => {}
            Some(offset) => told.push_str(&format!(" from {offset}")),
        }
        for (is_so, what) in [(self.is_inverse, " back"), (self.in_place, " in place")] {
            if is_so {
                told.push_str(what);
            }
        }
        told + &beside(self.placement)
    }
}
