//! The variants of kernels: what follows from the `table` for each. That is which operands and outputs it serves, and how many blocks a launch has.

mod fp8;
mod instances;
mod refusal;
mod table;

pub use fp8::{ScaledInput, ScaledOutput};
pub use instances::{LinearInput, LinearTypes};
pub(crate) use refusal::Refusal;
pub use table::Tile;

use warpsmith_dsl::gemm::dots;
use warpsmith_kernels::linear_hopper::HopperCooperative128x256;

use super::halves::{Halves, halves_of};
use super::problem::{HOPPER, is_fp8};
use super::{Access, Fused, Limits, Problem};
use crate::DType;
use crate::ops::{Precision, Products};
use table::Schedule;

impl Tile {
    /// The one whose family has kernels where no other has, for inputs of type `input`.
    pub(super) const fn least(input: DType) -> Self {
        if is_fp8(input) { Self::Fp8Portable64x64 } else { Self::T16x64 }
    }

    /// The kernel family of its kernels.
    #[must_use]
    pub const fn family(self) -> &'static str {
        self.facts().family
    }

    /// Rows and columns of the tile.
    #[must_use]
    pub const fn shape(self) -> (u32, u32) {
        self.facts().shape
    }

    /// Shared memory that a block of it takes, in bytes.
    #[must_use]
    pub const fn shared_bytes(self) -> u32 {
        self.facts().shared_bytes
    }

    /// Whether it runs on Hopper only.
    #[must_use]
    pub const fn is_hopper(self) -> bool {
        !matches!(self.facts().schedule, Schedule::Portable { .. } | Schedule::Teams { .. })
    }

    /// Whether it multiplies 8-bit operands by `mma.sync`, on Ada and later.
    #[must_use]
    pub const fn is_ada(self) -> bool {
        matches!(self, Self::Fp8Ada128x128 | Self::Fp8Ada64x64 | Self::Fp8Ada16x64)
    }

    /// Blocks of a cluster.
    #[must_use]
    pub const fn cluster(self) -> u32 {
        match self.facts().schedule {
            Schedule::Portable { .. } | Schedule::Teams { .. } => 1,
            Schedule::Persistent { cluster: [along_m, along_n], .. } => along_m * along_n,
            Schedule::Split { parts } => parts,
        }
    }

    /// Blocks that share the sum over K of a tile.
    #[must_use]
    pub const fn split(self) -> u32 {
        match self.facts().schedule {
            Schedule::Split { parts } => parts,
            _ => 1,
        }
    }

    /// Whether as many blocks share the sum over K of a tile as a launch says: by themselves, or in [two passes](Self::has_passes).
    #[must_use]
    pub const fn shares(self) -> bool {
        matches!(self.facts().schedule, Schedule::Portable { shares: true, .. }) || self.has_passes()
    }

    /// Whether sums along K can be split into parts that a second pass adds: of tiles that have kernels for f32 outputs.
    #[must_use]
    pub const fn has_passes(self) -> bool {
        self.facts().has_passes
    }

    /// Whether it has kernels whose sums go on in a [second pair](Problem::rank) of operands, of 16-bit types.
    #[must_use]
    pub fn joins(self) -> bool {
        matches!(self.family(), "linear_hopper" | "linear_skinny")
    }

    /// Bytes of each row that a step along K takes, of a tile whose sums blocks can [share](Self::shares).
    const fn step_bytes(self) -> u64 {
        match self.facts().schedule {
            Schedule::Portable { step_bytes, .. } | Schedule::Persistent { step_bytes, .. } => {
                step_bytes as u64
            }
            Schedule::Teams { .. } | Schedule::Split { .. } => 1,
        }
    }

    /// Steps along K of rows of so many bytes, of a tile whose sums blocks can [share](Self::shares).
    pub(super) const fn steps(self, row_bytes: u64) -> u64 {
        row_bytes.div_ceil(self.step_bytes())
    }

    /// How sums over `k` elements of `bytes` bytes are split into at most `parts` parts that a [second pass](Self::has_passes) adds: how many parts there
    /// are, none of them empty, and elements of each, which are whole steps.
    pub(crate) fn split_evenly(self, k: u32, bytes: usize, parts: u32) -> (u32, u32) {
        let steps = self.steps(u64::from(k) * bytes as u64).max(1);
        let of_part = steps.div_ceil(u64::from(parts.max(1)));
        let elements = of_part * self.step_bytes() / bytes as u64;
        // No more than `parts`, and no more than a step beyond K, whose rows have less than 2³¹ bytes.
        (steps.div_ceil(of_part) as u32, elements as u32)
    }

    /// Whether a block works through several tiles, with the copies of the next under way; not so the warps of [`Dots8x2`](Self::Dots8x2).
    #[must_use]
    pub const fn is_persistent(self) -> bool {
        matches!(self.facts().schedule, Schedule::Persistent { .. })
    }

    /// Whether its kernels serve only outputs that are [stored as boxes](super::Problem::stores_boxes).
    #[must_use]
    pub const fn needs_boxes(self) -> bool {
        match self.facts().schedule {
            Schedule::Persistent { stores_rows, .. } => !stores_rows,
            _ => false,
        }
    }

    /// Whether its kernels do this to the products.
    #[must_use]
    pub const fn serves_fused(self, fused: Fused) -> bool {
        match (fused, self.facts().schedule) {
            // Those that are never far from the fastest, as for f32 outputs. Halves of tiles take code of their own.
            (Fused::Own, _) => self.facts().is_wide && !matches!(self, Self::HopperCooperative128x256Halves),
            (Fused::Floor | Fused::Activation, _) => true,
            _ if self.facts().is_plain => false,
            (_, Schedule::Persistent { stores_rows, passes_boxes, stores_masks, .. }) => {
                stores_rows || passes_boxes || (stores_masks && matches!(fused, Fused::Mask))
            }
            _ => true,
        }
    }

    /// Whether there is a kernel with this tile for inputs of type `input`, read with `access`.
    #[must_use]
    pub fn serves(self, input: DType, access: Access) -> bool {
        self.accesses(input).contains(&access)
    }

    /// How its kernels read inputs of type `input`; empty if it has none for them.
    const fn accesses(self, input: DType) -> &'static [Access] {
        let facts = self.facts();
        match input {
            DType::F16 | DType::Bf16 => facts.halves,
            DType::F32 => facts.f32,
            input if is_fp8(input) => facts.fp8,
            _ => &[],
        }
    }

    /// The tiles that have kernels for inputs of type `input`.
    pub fn of_input(input: DType) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |tile| !tile.accesses(input).is_empty())
    }

    /// Whether a tile that [serves](Self::serves) inputs of type `input` has a kernel for outputs of type `output`.
    #[must_use]
    pub fn serves_output(self, input: DType, output: DType) -> bool {
        if is_fp8(input) {
            return matches!(output, DType::F16 | DType::Bf16 | DType::F32);
        }
        output == input || (output == DType::F32 && self.facts().is_wide)
    }

    /// How its kernels multiply inputs of type `input`.
    #[must_use]
    pub fn products(self, input: DType) -> Products {
        if input == DType::F32 { self.facts().of_f32 } else { Products::Direct }
    }

    /// The least exact precision that its kernels are for, with inputs of type `input`.
    #[must_use]
    pub fn precision(self, input: DType) -> Precision {
        if self.products(input) == Products::Tf32 { Precision::Tf32 } else { Precision::Full }
    }

    /// Whether its kernels run on a device of this compute capability.
    #[must_use]
    pub fn runs_on(self, compute_capability: (u32, u32)) -> bool {
        if self.is_hopper() { compute_capability == HOPPER } else { compute_capability >= self.facts().since }
    }

    /// How its launch for these rows, columns and matrices is dealt out, if it may have halves.
    pub(super) fn halves(self, sizes: [u32; 3], multiprocessors: u32) -> Option<Halves> {
        let has_halves = self == Self::HopperCooperative128x256Halves;
        has_halves.then(|| halves_of::<HopperCooperative128x256>(sizes, multiprocessors))
    }

    /// Whether its launch differs from those of all tiles before it: one with halves may have none.
    pub(super) fn is_distinct(self, problem: &Problem, limits: &Limits) -> bool {
        let halves = self.halves([problem.m, problem.n, problem.batch], limits.multiprocessors);
        halves.is_none_or(|halves| halves.pieces > 0)
    }

    /// The tiles that cover an output of `m` × `n`, whole clusters of them; each side below 2³¹.
    #[must_use]
    pub fn tiles(self, m: u32, n: u32) -> u64 {
        let (rows, columns) = self.shape();
        // The tiles of a cluster are neighbours, unless its blocks share one.
        let [along_m, along_n] = match self.facts().schedule {
            Schedule::Persistent { cluster, .. } => cluster,
            _ => [1, 1],
        };
        let along_m = m.div_ceil(rows).next_multiple_of(along_m);
        u64::from(along_m) * u64::from(n.div_ceil(columns).next_multiple_of(along_n))
    }

    /// The blocks of a launch, of the first if there are two, where each `parts` blocks share the sums of a tile.
    #[must_use]
    pub fn blocks_of_parts(self, [m, n, batch]: [u32; 3], parts: u32, multiprocessors: u32) -> u64 {
        if self.has_passes() {
            self.blocks(m, n, batch.saturating_mul(parts), multiprocessors)
        } else {
            self.blocks(m, n, batch, multiprocessors).saturating_mul(parts.into())
        }
    }

    /// The blocks of a launch for `batch` outputs of `m` × `n`: one for each tile, or at most as many as the multiprocessors hold
    /// where a block works through several, or as many for each as share it.
    #[must_use]
    pub fn blocks(self, m: u32, n: u32, batch: u32, multiprocessors: u32) -> u64 {
        if let Some(halves) = self.halves([m, n, batch], multiprocessors) {
            return halves.clusters * u64::from(self.cluster());
        }
        let tiles = self.tiles(m, n).saturating_mul(batch.into());
        match self.facts().schedule {
            Schedule::Portable { .. } => tiles,
            Schedule::Persistent { resident, .. } => {
                tiles.min(blocks_at_once(multiprocessors, resident, self.cluster()).into())
            }
            Schedule::Teams { resident } => {
                tiles.min(u64::from(multiprocessors.max(1)) * u64::from(resident))
            }
            Schedule::Split { parts } => tiles.saturating_mul(parts.into()),
        }
    }
}

/// How a launch of [`Tile::Dots8x2`] shares its sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Teams {
    /// The logarithm to base two of the warps of a team.
    pub(super) log2_warps: u32,
    /// Tiles that a team has one after the other.
    pub(super) rounds: u64,
    /// Steps that a warp takes for each.
    pub(super) steps: u64,
}

impl Teams {
    /// Steps that would take as long as what a tile takes beside its own.
    const OF_TILE: u64 = 6;

    /// Those that are soonest done with so many tiles, over rows of so many bytes; of equals the larger ones.
    pub(super) fn of(tiles: u64, row_bytes: u64, multiprocessors: u32) -> Self {
        let blocks = u64::from(multiprocessors.max(1)) * u64::from(dots::RESIDENT);
        let steps = row_bytes.div_ceil(dots::STEP_BYTES.into());
        let of = |log2_warps: u32| Self {
            log2_warps,
            rounds: tiles.div_ceil(blocks * u64::from(dots::WARPS >> log2_warps)),
            steps: steps.div_ceil(1 << log2_warps),
        };
        let sizes = (0..=dots::WARPS.ilog2()).rev().map(of);
        sizes.min_by_key(|teams| teams.rounds.saturating_mul(teams.steps + Self::OF_TILE)).unwrap_or(of(0))
    }
}

/// The blocks that run at a time where a multiprocessor holds `resident` of them: whole clusters of `cluster` blocks, at least one.
pub(crate) fn blocks_at_once(multiprocessors: u32, resident: u32, cluster: u32) -> u32 {
    let cluster = cluster.max(1);
    let all = multiprocessors.saturating_mul(resident) / cluster;
    // Clusters of four do not fill every part of a GPU in which they have to be: 30 of them run at a time on the 132
    // multiprocessors of an H100.
    let most = if cluster > 2 { all - all / 11 } else { all };
    most.max(1) * cluster
}

impl std::fmt::Display for Tile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.name())
    }
}

impl std::str::FromStr for Tile {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|tile| tile.name() == text).ok_or_else(|| crate::Error::Argument {
            operation: "linear",
            argument: "tile",
            expected: format!("one of {}", Self::ALL.map(Self::name).join(", ")),
            actual: format!("`{text}`"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Teams;

    /// A block has eight warps, and 132 multiprocessors hold 264 blocks at a time. A step is 512 bytes of a row.
    #[test]
    fn teams_are_as_large_as_the_multiprocessors_hold_at_a_time() {
        let of = |tiles, row_bytes| Teams::of(tiles, row_bytes, 132);
        assert_eq!(of(264, 1 << 14), Teams { log2_warps: 3, rounds: 1, steps: 4 });
        assert_eq!(of(265, 1 << 14), Teams { log2_warps: 2, rounds: 1, steps: 8 });
        assert_eq!(of(1056, 1 << 14), Teams { log2_warps: 1, rounds: 1, steps: 16 });
        // A second round for one tile takes longer than three of half the length.
        assert_eq!(of(2112, 1 << 14), Teams { log2_warps: 0, rounds: 1, steps: 32 });
        assert_eq!(of(2113, 1 << 14), Teams { log2_warps: 1, rounds: 3, steps: 16 });
        // Of sizes that take as long, the largest.
        assert_eq!(of(1, 0), Teams { log2_warps: 3, rounds: 1, steps: 0 });
        assert_eq!(of(2000, 512), Teams { log2_warps: 0, rounds: 1, steps: 1 });
        assert_eq!(of(u64::from(u32::MAX), 512).log2_warps, 0);
    }
}
