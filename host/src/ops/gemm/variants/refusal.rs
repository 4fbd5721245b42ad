//! What a variant computes: one list of conditions. Candidates are the variants that meet all of them; the error for a variant that was asked for names the
//! first that it does not meet.

use warpsmith_dsl::gemm::narrow;

use super::Tile;
use crate::DType;
use crate::ops::Precision;
use crate::ops::gemm::problem::AMPERE;
use crate::ops::gemm::{Access, Fused, Limits, Problem};

/// Why a variant does not compute a problem on a device. Those that hold for every layout of the operands are before the one that does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    /// It does not run on the device.
    ComputeCapability,
    /// It has no kernel for the inputs' type.
    Input,
    /// It has none for the output's type.
    Output,
    /// It is not as exact.
    Products,
    /// There is no tensor map of a matrix without columns.
    NoColumns,
    /// It takes more shared memory.
    SharedMemory,
    /// It does less to the products.
    Fused,
    /// Its sums do not go on in a second pair of operands.
    Joined,
    /// It cannot store the output.
    Boxes,
    /// It cannot read the operands.
    Operands,
}

/// Whether a variant meets a condition.
type Holds = fn(Tile, &Problem, &Limits) -> bool;

/// What a variant has to meet, in the order in which it is told.
const CONDITIONS: [(Refusal, Holds); 10] = [
    (Refusal::ComputeCapability, |tile, _, limits| tile.runs_on(limits.compute_capability)),
    (Refusal::Input, |tile, problem, _| {
        Access::ALL.into_iter().any(|access| tile.serves(problem.input, access))
    }),
    (Refusal::Output, |tile, problem, _| tile.serves_output(problem.input, problem.output)),
    (Refusal::Products, |tile, problem, _| tile.products(problem.input).is_at_least(problem.products)),
    (Refusal::NoColumns, |tile, problem, _| problem.k > 0 || !tile.is_hopper()),
    (Refusal::SharedMemory, |tile, _, limits| tile.shared_bytes() <= limits.max_shared_per_block),
    (Refusal::Fused, |tile, problem, _| tile.serves_fused(problem.fused)),
    (Refusal::Joined, |tile, problem, _| {
        problem.rank == 0
            || (tile.joins() && problem.access == Access::Aligned && problem.input != DType::F32)
    }),
    (Refusal::Boxes, |tile, problem, _| problem.stores_boxes || !tile.needs_boxes()),
    (Refusal::Operands, |tile, problem, limits| {
        tile.serves(problem.input, problem.access)
            && (problem.batch == 1 || !tile.facts().is_single)
            && (tile != Tile::Narrow16x256 || narrow::fits(problem.k, problem.n))
            // Turing's kernels read chunks.
            && (problem.access == Access::Aligned || limits.compute_capability >= AMPERE)
    }),
];

impl Tile {
    /// The first condition that it does not meet; `None` if it computes the problem on the device.
    pub(in crate::ops::gemm) fn refusal(self, problem: &Problem, limits: &Limits) -> Option<Refusal> {
        let failed = CONDITIONS.iter().find(|(_, holds)| !holds(self, problem, limits));
        failed.map(|&(refusal, _)| refusal)
    }

    /// Whether a device has a kernel with this tile for a problem.
    pub(in crate::ops::gemm) fn computes(self, problem: &Problem, limits: &Limits) -> bool {
        self.refusal(problem, limits).is_none()
    }
}

impl Refusal {
    /// What a tile would have to be in place of `tile`.
    pub(in crate::ops::gemm) fn expected(
        self,
        tile: Tile,
        problem: &Problem,
        precision: Precision,
        limits: &Limits,
    ) -> String {
        let Problem { input, output, .. } = *problem;
        let (major, minor) = limits.compute_capability;
        match self {
            Self::ComputeCapability => format!("one that runs on compute capability {major}.{minor}"),
            Self::Input => format!("one that has a kernel for {input} inputs"),
            Self::Output => format!("one that has a kernel for {output} outputs of {input} inputs"),
            Self::Products => format!("one that multiplies {input} at the precision {precision:?}"),
            Self::NoColumns => {
                "one that takes operands without columns, which no tensor map describes".into()
            }
            Self::SharedMemory => {
                format!("one of at most {} bytes of shared memory", limits.max_shared_per_block)
            }
            Self::Fused if problem.fused == Fused::Own => {
                let own = Tile::of_input(input).filter(|tile| tile.serves_fused(Fused::Own));
                let own: Vec<&str> = own.map(Tile::name).collect();
                format!("one that products with an epilogue of their own have kernels for: {}", own.join(", "))
            }
            Self::Fused => {
                let mask = if tile.serves_fused(Fused::Mask) { ", an activation and a mask" } else { " and an activation" };
                format!("one that does all that is done to these products: this does no more than alpha, a bias{mask}")
            }
            Self::Joined => "one whose sums go on in a second pair of operands".into(),
            Self::Boxes => "one that stores this output: this takes rows of y, of the residual and of the pre-activation that are multiples \
                            of 16 bytes"
                .into(),
            Self::Operands if tile == Tile::Narrow16x256 => {
                "one that reads these operands: this takes one x and one y of few columns, without gaps from a multiple of 16 bytes on".into()
            }
            Self::Operands => "one that reads operands with these layouts".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CONDITIONS, Refusal, Tile};
    use crate::DType;
    use crate::ops::gemm::{Access, Fused, Limits, Problem};
    use crate::ops::{Precision, Products};

    const H100: Limits = Limits {
        compute_capability: (9, 0),
        multiprocessors: 132,
        max_shared_per_block: 232_448,
        shared_per_multiprocessor: 233_472,
        memory_bandwidth: 3_352_320,
        takes_fp8_mma: true,
    };
    const PROBLEM: Problem = Problem {
        m: 256,
        n: 256,
        k: 256,
        batch: 1,
        input: DType::Bf16,
        output: DType::Bf16,
        access: Access::Aligned,
        products: Products::Direct,
        stores_boxes: true,
        fused: Fused::Floor,
        rank: 0,
    };

    #[test]
    fn conditions_are_told_in_the_order_of_their_refusals() {
        assert!(CONDITIONS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn the_first_condition_that_fails_is_told() {
        let full =
            Problem { input: DType::F32, output: DType::F32, products: Products::ThreeTf32, ..PROBLEM };
        let odd = Problem { stores_boxes: false, ..PROBLEM };
        let ampere = Limits { compute_capability: (8, 0), ..H100 };
        let small = Limits { max_shared_per_block: 49_152, ..H100 };
        let fp8 = Problem { input: DType::F8E4M3, fused: Fused::Terms, ..odd };
        let (wide, portable) = (Tile::HopperPingPong128x192, Tile::T64x64);
        for (tile, problem, limits, refusal, expected) in [
            (wide, PROBLEM, H100, None, ""),
            (wide, PROBLEM, ampere, Some(Refusal::ComputeCapability), "runs on compute capability 8.0"),
            (wide, full, ampere, Some(Refusal::ComputeCapability), "runs on compute capability 8.0"),
            (wide, full, H100, Some(Refusal::Input), "a kernel for f32 inputs"),
            (
                wide,
                Problem { output: DType::F32, ..PROBLEM },
                H100,
                Some(Refusal::Output),
                "f32 outputs of bf16 inputs",
            ),
            (Tile::Tf32T64x64, full, H100, Some(Refusal::Products), "multiplies f32 at the precision Full"),
            (wide, Problem { k: 0, ..odd }, H100, Some(Refusal::NoColumns), "without columns"),
            (wide, odd, small, Some(Refusal::SharedMemory), "at most 49152 bytes of shared memory"),
            (
                wide,
                Problem { fused: Fused::Terms, ..odd },
                H100,
                Some(Refusal::Fused),
                "an activation and a mask",
            ),
            (wide, Problem { fused: Fused::Own, ..PROBLEM }, H100, Some(Refusal::Fused), "16x64, "),
            (portable, Problem { fused: Fused::Own, ..PROBLEM }, H100, None, ""),
            (wide, odd, H100, Some(Refusal::Boxes), "multiples of 16 bytes"),
            (Tile::Fp8Hopper64x64, PROBLEM, H100, Some(Refusal::Input), "a kernel for bf16 inputs"),
            (
                Tile::Fp8Hopper64x64,
                Problem { k: 0, ..fp8 },
                H100,
                Some(Refusal::NoColumns),
                "without columns",
            ),
            (Tile::Fp8Hopper64x64, Problem { k: 0, ..fp8 }, ampere, Some(Refusal::ComputeCapability), "8.0"),
            (Tile::Fp8Hopper256x128, fp8, small, Some(Refusal::SharedMemory), "at most 49152 bytes"),
            (Tile::Fp8Portable64x64, Problem { k: 0, ..fp8 }, H100, None, ""),
            (
                Tile::Fp8Portable64x64,
                Problem { batch: 2, ..fp8 },
                H100,
                Some(Refusal::Operands),
                "these layouts",
            ),
            (Tile::Narrow16x256, PROBLEM, H100, Some(Refusal::Operands), "few columns"),
            (
                portable,
                Problem { access: Access::Strided, ..PROBLEM },
                H100,
                Some(Refusal::Operands),
                "these layouts",
            ),
        ] {
            assert_eq!(tile.refusal(&problem, &limits), refusal, "{tile}");
            if let Some(refusal) = refusal {
                let told = refusal.expected(tile, &problem, Precision::Full, &limits);
                assert!(told.contains(expected), "{told}");
            }
        }
    }
}
