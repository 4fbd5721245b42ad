//! Tensor maps: what the copy engine is told about a tensor, and which bytes a copy of a box of it moves.
//!
//! A kernel names a tensor map and the coordinates of a box; the hardware walks the box, fills in what is outside
//! the tensor, and permutes 16-byte chunks of shared memory so that later reads meet no bank conflicts. [`map`] is the
//! map with the rules of its arguments and its 128 bytes, [`plan`] the walk.

mod map;
pub(crate) mod plan;

pub use map::{
    Interleave, L2Promotion, OobFill, Swizzle, TensorMap, TensorMapArguments, TensorMapError, TensorType,
};
pub(crate) use map::{MAP_BYTES, Tiled};
pub(crate) use plan::{BoxPiece, round_tf32};
