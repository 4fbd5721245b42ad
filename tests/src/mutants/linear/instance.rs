//! What an entry's name says of it: how it is launched, its types, and its tile.

use warpsmith_dsl::gemm::wgmma::UpdateTile;
use warpsmith_dsl::gemm::wgmma_f32::SplitTile;
use warpsmith_dsl::gemm::{PersistentTile, SplitKTile};
use warpsmith_kernels::linear_fp8_hopper::{
    Fp8Hopper64x64, Fp8Hopper64x128, Fp8Hopper128x128, Fp8Hopper128x192, Fp8Hopper256x128,
};
use warpsmith_kernels::linear_hopper::{
    HopperCooperative64x128, HopperCooperative64x160, HopperCooperative128x128, HopperCooperative128x160,
    HopperCooperative128x192, HopperCooperative128x256, HopperCooperative192x176, HopperCooperative256x176,
    HopperPingPong128x128, HopperPingPong128x192,
};
use warpsmith_kernels::linear_hopper_f32::{Split64x64, Split64x128, Split128x128, Split128x256};
use warpsmith_kernels::linear_skinny::{Skinny16x64, Skinny32x64, Skinny64x64, Skinny64x64Split8};
use warpsmith_kernels::linear_update_hopper::{
    UpdateCooperative128x192, UpdateOwn128x128, UpdatePingPong128x192,
};

use super::numbers::Float;
use super::size::Size;

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// `linear`.
    Portable,
    /// `linear_fp8`, of operands that have been widened.
    Fp8Portable,
    /// `linear_fp8_ada`.
    Fp8Ada,
    /// `linear_update`.
    Update,
    /// `linear_update_hopper`.
    UpdateHopper(Boxes),
    /// The same, for few rows of X.
    UpdateFewRows,
    /// `linear_hopper`.
    Hopper(Boxes),
    /// `linear_fp8_hopper`.
    Fp8Hopper(Boxes),
    /// `linear_hopper_f32`, whose products are made of the parts of each number.
    Split(Boxes),
    /// `linear_narrow`.
    Narrow,
    /// `linear_dots`.
    Dots,
    /// `linear_strided`.
    Strided,
    /// `linear_sums`.
    Sums,
    /// `linear_skinny`, of which a cluster of so many blocks shares a tile.
    Skinny(Boxes, u32),
}

/// How a kernel gets at X and W by tensor maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Boxes {
    /// The rows of the boxes of X and of W.
    pub(super) rows: [u32; 2],
    /// Bytes of the rows of the boxes of Y.
    pub(super) stored_row_bytes: u32,
    /// Tiles of a cluster along M and along N.
    pub(super) cluster: [u32; 2],
    /// Whether operands may be contiguous along their rows' index.
    pub(super) transposes: bool,
    /// Whether y may be anywhere.
    pub(super) stores_rows: bool,
    /// Whether all that an epilogue reads and writes goes through boxes, where these are for y.
    pub(super) passes_boxes: bool,
    /// Whether lanes can store boxes, and not only the copy engine.
    pub(super) lanes_store: bool,
    /// Whether tiles may be in halves.
    pub(super) halves: bool,
    /// Whether tiles with updates compute H for themselves whatever they are told.
    pub(super) is_own: bool,
}

impl Boxes {
    /// Blocks of a cluster that has a tile for each.
    pub(super) const fn blocks(self) -> u32 {
        self.cluster[0] * self.cluster[1]
    }
}
/// What an entry's name says of it: `linear_<input>_<output>_<M>x<N>`, `linear_update_<type>_<M>x<N>`, `linear_fp8_<output>_<M>x<N>`,
/// `linear_fp8_ada_<output>_<M>x<N>`,
/// `linear_update_hopper_<type>_[<schedule>_|own_]<M>x<N>`,
/// `linear_hopper_<input>_<output>_<schedule>_<M>x<N>`, `linear_fp8_hopper_<output>_<M>x<N>`, `linear_narrow_<input>_<output>_<M>x<N>`,
/// `linear_dots_<input>_<output>_<M>x<N>`, `linear_strided_<input>_<output>_<M>x<N>`, `linear_sums_<input>_<output>`, `linear_joined_<input>_<output>_[<schedule>_]<M>x<N>[_split<blocks>[_deep]]` or `linear_skinny_<input>_<output>_<M>x<N>[_split<blocks>[_deep]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instance {
    pub(super) family: Family,
    /// The type of X and W, if they have the same one.
    pub(super) input: Float,
    pub(super) output: Float,
    pub(super) tile: [u32; 2],
    /// Whether f32 is rounded to TF32.
    pub(super) rounds: bool,
    /// Whether the last columns of X and W are matrices of their own.
    pub(super) is_joined: bool,
}

fn boxes<S: PersistentTile>() -> Boxes {
    Boxes {
        rows: [S::A_BOX_ROWS, S::B_BOX_ROWS],
        stored_row_bytes: S::STORED_ROW_BYTES,
        cluster: [S::CLUSTER_M, S::CLUSTER_N],
        transposes: S::TRANSPOSES,
        stores_rows: S::STORES_ROWS,
        passes_boxes: S::PASSES_BOXES,
        lanes_store: S::LANES_STORE,
        halves: S::HALVES,
        is_own: false,
    }
}

/// The same of a tile of FP8 operands, whose kernels store row by row what needs more than scales.
fn fp8_boxes<S: PersistentTile>() -> Boxes {
    Boxes { passes_boxes: false, stores_rows: true, ..boxes::<S>() }
}

/// The same of a tile of f32.
fn split_boxes<S: SplitTile>() -> Boxes {
    Boxes {
        rows: [S::A_BOX_ROWS, S::B_BOX_ROWS],
        stored_row_bytes: 128,
        cluster: [S::CLUSTER_M, 1],
        transposes: false,
        stores_rows: true,
        passes_boxes: false,
        lanes_store: false,
        halves: false,
        is_own: false,
    }
}

/// The same of a tile that an update is added to.
fn update_boxes<S: UpdateTile>() -> Boxes {
    Boxes {
        rows: [S::A_BOX_ROWS, S::B_BOX_ROWS],
        stored_row_bytes: 128,
        cluster: [S::CLUSTER_M, 1],
        transposes: false,
        stores_rows: S::STORES_ROWS,
        passes_boxes: false,
        lanes_store: false,
        halves: false,
        is_own: S::IS_OWN,
    }
}

/// The same of a tile that all blocks of a cluster share.
fn shared_boxes<S: SplitKTile>() -> Boxes {
    Boxes {
        rows: [S::A_BOX_ROWS, S::B_BOX_ROWS],
        stored_row_bytes: 128,
        cluster: [1, 1],
        transposes: S::TRANSPOSES,
        stores_rows: true,
        passes_boxes: false,
        lanes_store: false,
        halves: false,
        is_own: false,
    }
}

/// How many blocks share a tile, of what follows the tile in an entry's name.
fn blocks_of(split: &[&str]) -> Option<u32> {
    match split {
        [] => Some(1),
        [split] | [split, "deep"] => split.strip_prefix("split")?.parse().ok(),
        _ => None,
    }
}

impl Instance {
    pub(super) fn named(name: &str) -> Option<Self> {
        if let Some(joined) = name.strip_prefix("linear_joined_") {
            // As those of one pair of matrices.
            let is_persistent = joined.contains("_pingpong_") || joined.contains("_cooperative_");
            let family = if is_persistent { "hopper" } else { "skinny" };
            let alike = Self::named(&format!("linear_{family}_{joined}"))?;
            return Some(Self { is_joined: true, ..alike });
        }
        let parts: Vec<&str> = name.strip_prefix("linear_")?.split('_').collect();
        let (family, input, output, shape) = match parts[..] {
            ["hopper", input, output, "pingpong", shape @ "128x128"] => {
                (Family::Hopper(boxes::<HopperPingPong128x128>()), input, output, shape)
            }
            ["hopper", input, output, "pingpong", shape @ "128x192"] => {
                (Family::Hopper(boxes::<HopperPingPong128x192>()), input, output, shape)
            }
            ["hopper", input, output, "split", shape] => {
                let boxes = match shape {
                    "128x256" => split_boxes::<Split128x256>(),
                    "128x128" => split_boxes::<Split128x128>(),
                    "64x128" => split_boxes::<Split64x128>(),
                    "64x64" => split_boxes::<Split64x64>(),
                    _ => return None,
                };
                (Family::Split(boxes), input, output, shape)
            }
            ["hopper", input, output, "cooperative", shape @ "128x128"] => {
                (Family::Hopper(boxes::<HopperCooperative128x128>()), input, output, shape)
            }
            ["hopper", input, output, "cooperative", shape @ "128x192"] => {
                (Family::Hopper(boxes::<HopperCooperative128x192>()), input, output, shape)
            }
            ["hopper", input, output, "cooperative", shape @ "128x256"] => {
                (Family::Hopper(boxes::<HopperCooperative128x256>()), input, output, shape)
            }
            ["hopper", input, output, "cooperative", shape @ "64x128"] => {
                (Family::Hopper(boxes::<HopperCooperative64x128>()), input, output, shape)
            }
            ["hopper", input, output, "cooperative", shape @ "64x160"] => {
                (Family::Hopper(boxes::<HopperCooperative64x160>()), input, output, shape)
            }
            ["hopper", input, output, "cooperative", shape @ "128x160"] => {
                (Family::Hopper(boxes::<HopperCooperative128x160>()), input, output, shape)
            }
            ["hopper", input, output, "cooperative", shape @ "256x176"] => {
                (Family::Hopper(boxes::<HopperCooperative256x176>()), input, output, shape)
            }
            ["hopper", input, output, "cooperative", shape @ "192x176"] => {
                (Family::Hopper(boxes::<HopperCooperative192x176>()), input, output, shape)
            }
            ["fp8", "hopper", output, shape @ "64x64"] => {
                (Family::Fp8Hopper(fp8_boxes::<Fp8Hopper64x64>()), "e4m3", output, shape)
            }
            ["fp8", "hopper", output, shape @ "64x128"] => {
                (Family::Fp8Hopper(fp8_boxes::<Fp8Hopper64x128>()), "e4m3", output, shape)
            }
            ["fp8", "hopper", output, shape @ "128x128"] => {
                (Family::Fp8Hopper(fp8_boxes::<Fp8Hopper128x128>()), "e4m3", output, shape)
            }
            ["fp8", "hopper", output, shape @ "128x192"] => {
                (Family::Fp8Hopper(fp8_boxes::<Fp8Hopper128x192>()), "e4m3", output, shape)
            }
            ["fp8", "hopper", output, shape @ "256x128"] => {
                (Family::Fp8Hopper(fp8_boxes::<Fp8Hopper256x128>()), "e4m3", output, shape)
            }
            // A warp's part of a row.
            ["sums", input, output] => (Family::Sums, input, output, "1x128"),
            ["narrow", input, output, shape] => (Family::Narrow, input, output, shape),
            ["dots", input, output, shape] => (Family::Dots, input, output, shape),
            ["strided", input, output, shape] => (Family::Strided, input, output, shape),
            ["skinny", input, output, shape, ref split @ ..] => {
                let blocks = blocks_of(split)?;
                // The boxes are the same however many blocks share a tile; what they may be filled with is not.
                let boxes = match (shape, blocks) {
                    ("64x64", 8) => shared_boxes::<Skinny64x64Split8>(),
                    ("64x64", _) => shared_boxes::<Skinny64x64>(),
                    ("32x64", _) => shared_boxes::<Skinny32x64>(),
                    ("16x64", _) => shared_boxes::<Skinny16x64>(),
                    _ => return None,
                };
                (Family::Skinny(boxes, blocks), input, output, shape)
            }
            ["update", "hopper", input, "own", shape @ "128x128"] => {
                (Family::UpdateHopper(update_boxes::<UpdateOwn128x128>()), input, input, shape)
            }
            ["update", "hopper", input, "pingpong", shape @ "128x192"] => {
                (Family::UpdateHopper(update_boxes::<UpdatePingPong128x192>()), input, input, shape)
            }
            ["update", "hopper", input, "cooperative", shape @ "128x192"] => {
                (Family::UpdateHopper(update_boxes::<UpdateCooperative128x192>()), input, input, shape)
            }
            ["update", "hopper", input, shape @ "16x64"] => (Family::UpdateFewRows, input, input, shape),
            ["update", input, shape] => (Family::Update, input, input, shape),
            ["fp8", "ada", output, shape] => (Family::Fp8Ada, "e4m3", output, shape),
            ["fp8", output, shape] => (Family::Fp8Portable, "f16", output, shape),
            [input, output, shape] => (Family::Portable, input, output, shape),
            _ => return None,
        };
        let (m, n) = shape.split_once('x')?;
        let tile = [m.parse().ok()?, n.parse().ok()?];
        let rounds = input == "tf32";
        let (input, output) = (Float::named(input)?, Float::named(output)?);
        Some(Self { family, input, output, tile, rounds, is_joined: false })
    }

    /// The type of X, or of W.
    pub(super) fn input(self, size: &Size, which: usize) -> Float {
        if self.input == Float::E4m3 && size.second_type[which] { Float::E5m2 } else { self.input }
    }

    /// The type of the bias.
    pub(super) fn bias(self) -> Float {
        match self.family {
            Family::Fp8Portable | Family::Fp8Ada | Family::Fp8Hopper(_) => self.output,
            _ => self.input,
        }
    }

    /// Whether sums that are not finite are added up again: those of f32 at its own accuracy.
    pub(super) fn adds_again(self) -> bool {
        let family = matches!(self.family, Family::Portable | Family::Update | Family::Split(_));
        family && self.input == Float::F32 && !self.rounds
    }

    /// Whether products are made of the parts of each number.
    pub(super) fn has_parts(self) -> bool {
        matches!(self.family, Family::Split(_))
    }
}
