//! The plan of a product: how its operands are read, which launches compute it, with which variant and on how many blocks.
//!
//! A plan depends on no type and on no data, and is kept for the next product that is asked for in the same way.

use std::sync::Arc;

use super::batch::{Axes, Launches, PerRole, Role, broadcast_strides};
use super::cost::MOST_PARTS;
use super::operands::{self, OperandView, Path};
use super::passes::{has_passes, sums_blocks};
use super::problem::{ADA, is_fp8};
use super::variants::Refusal;
use super::{Access, Fused, Limits, Problem, TURING, Tile, has_tf32, is_hopper};
use crate::device::decisions::Key;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::kernel::is_built;
use crate::ops::choice::{Observation, ProductChoice, notice};
use crate::ops::{CHUNK_BYTES, Implementation, Precision, Products, ROW_LIMIT, SIDE_LIMIT, has_short_rows};
use crate::tensor::{DType, View};
use crate::tune;

/// What is asked for: a product, whatever the types of its operands are.
pub(crate) struct Request<'r> {
    /// The operation's name in errors.
    pub(crate) operation: &'static str,
    /// The operands' names there.
    pub(crate) names: [&'static str; 2],
    pub(crate) device: &'r Device,
    /// The inputs' type; of 8-bit types, for which the same kernels run, any.
    pub(crate) input: DType,
    /// The output's type.
    pub(crate) output: DType,
    /// `[.., M, K]` and `[.., N, K]`.
    pub(crate) operands: [View<'r>; 2],
    /// The leading axes of both, broadcast.
    pub(crate) leading: &'r [usize],
    /// `[.., M, N]`, or `[.., N]` for one row; `None` for an output without gaps.
    pub(crate) y: Option<View<'r>>,
    pub(crate) row_scale: Option<View<'r>>,
    pub(crate) residual: Option<View<'r>>,
    /// Whether what the output holds is added.
    pub(crate) adds_y: bool,
    pub(crate) mask: Option<View<'r>>,
    pub(crate) preactivation: Option<View<'r>>,
    /// What is done to the products.
    pub(crate) fused: Fused,
    pub(crate) precision: Precision,
    /// The only variant that will do.
    pub(crate) tile: Option<Tile>,
    /// How many blocks share the sums of a tile, where the variant's kernels can do that.
    pub(crate) parts: Option<u32>,
    /// Whether there are the kernels for Hopper: of an epilogue of a program's own it may have left them out.
    pub(crate) has_hopper: bool,
}

/// What runs for a request: kernels `K`, or something without any.
pub(crate) enum Planned<K> {
    /// Nothing: the output has no elements.
    Empty,
    /// The CPU implementation.
    Cpu,
    /// Kernels.
    Kernels(Arc<Plan>, K),
}

/// The kernels that compute a product, for some types of operands.
pub(crate) trait Kernels: Sized {
    /// Those of a plan; `None` if these types have none, which the variant then does not serve.
    fn of(plan: &Plan) -> Option<Self>;

    /// What runs.
    fn implementation(&self, plan: &Plan, device: &Device) -> Implementation;
}

impl<K: Kernels> Planned<K> {
    /// What runs for a request whose operands have been checked.
    pub(crate) fn of(request: &Request<'_>) -> Result<Self> {
        if request.leading.contains(&0) || request.m() == 0 || request.n() == 0 {
            return Ok(Self::Empty);
        }
        if request.device.kind() == DeviceKind::Cpu {
            return Ok(Self::Cpu);
        }
        let plan = Plan::of(request)?;
        let kernels = K::of(&plan).ok_or_else(|| {
            let ProductChoice { problem, limits } = &plan.choice;
            request.no_kernel(Some(Refusal::Input), problem, limits)
        })?;
        Ok(Self::Kernels(plan, kernels))
    }

    pub(crate) fn implementation(&self, device: &Device) -> Implementation {
        match self {
            Self::Empty => Implementation::Empty,
            Self::Cpu => Implementation::Cpu,
            Self::Kernels(plan, kernels) => kernels.implementation(plan, device),
        }
    }
}

/// How the sums of a problem are dealt out to the blocks of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    /// Blocks that share the sums of a tile, of those that are told at each launch, or parts of the sums that a second launch adds.
    pub(crate) parts: u32,
    /// Elements of a sum, or of a part of it.
    pub(crate) k: u32,
    /// Blocks of the launch, of the first if there are two.
    pub(crate) blocks: u32,
}

impl Division {
    /// That of a variant, with `asked` parts or as many as are fastest, on at most `most_blocks` blocks; the error is the most tiles that such a launch has.
    pub(crate) fn of(
        tile: Tile,
        problem: &Problem,
        asked: Option<u32>,
        limits: &Limits,
        most_blocks: u32,
    ) -> std::result::Result<Self, u32> {
        let &Problem { m, n, k, batch, .. } = problem;
        let sizes = [m, n, batch];
        let asked = asked.map(|parts| parts.clamp(1, MOST_PARTS));
        let parts = match asked {
            Some(parts) if tile.shares() && (!tile.has_passes() || has_passes(tile, problem.fused)) => parts,
            _ => tile.parts(problem, limits),
        };
        let (parts, k) = if parts > 1 && tile.has_passes() {
            // The second launch has its limit too.
            let parts = if sums_blocks(sizes) <= u64::from(most_blocks) { parts } else { 1 };
            tile.split_evenly(k, problem.input.size(), parts)
        } else {
            (parts, k)
        };
        let most_tiles = most_blocks / (tile.split() * parts);
        if tile.tiles(m, n).saturating_mul(batch.into()) > u64::from(most_tiles) {
            return Err(most_tiles);
        }
        // No more than `split` times the tiles of all parts, and so a number of 32 bits.
        let blocks = tile.blocks_of_parts(sizes, parts, limits.multiprocessors) as u32;
        Ok(Self { parts, k, blocks })
    }
}

/// How a product is computed.
pub(crate) struct Plan {
    pub(crate) path: Path,
    pub(crate) launches: Launches,
    pub(crate) tile: Tile,
    /// Blocks of each launch, of the first if there are two.
    pub(crate) blocks: u32,
    /// Blocks that share the sums of a tile, of those that are told at each launch, or parts of the sums that a second launch adds.
    pub(crate) parts: u32,
    pub(crate) m: u32,
    pub(crate) n: u32,
    /// Elements of a sum, or of a part of it.
    pub(crate) k: u32,
    choice: ProductChoice,
}

/// The first driver that takes PTX 8.4, by the version of CUDA.
const FP8_MMA_DRIVER: (u32, u32) = (12, 4);

impl Plan {
    /// The plan for a request whose operands have been checked, and whose output has elements.
    fn of(request: &Request<'_>) -> Result<Arc<Self>> {
        let plan = request
            .device
            .decisions()
            .get(request.key(), || Self::decide(request).inspect(|plan| plan.note(request.operation)))?;
        notice(Observation { choice: plan.choice, copied: plan.path.repack });
        Ok(plan)
    }

    /// Tells a subscriber of `tracing` what was chosen.
    fn note(&self, operation: &'static str) {
        let (Self { tile, blocks, parts, path, .. }, Problem { m, n, k, batch, .. }) =
            (self, &self.choice.problem);
        tracing::debug!(
            target: "warpsmith::plan", operation, m, n, k, batch, %tile, blocks, parts, copied = ?path.repack, "plan chosen"
        );
    }

    /// Whether sums are computed in parts that a second launch adds.
    pub(crate) fn is_split(&self) -> bool {
        self.parts > 1 && self.tile.has_passes()
    }

    /// The kernels of the first matrices, by their names, and the operands that are copied before.
    pub(crate) fn implementation(
        &self,
        device: &Device,
        first: &'static str,
        sums: Option<&'static str>,
    ) -> Implementation {
        let copies = self.path.repack.into_iter().filter(|&copied| copied).count();
        let first = Implementation::kernel(device, first, self.blocks).with_copies(copies);
        let Some(sums) = sums else { return first };
        let blocks = sums_blocks([self.m, self.n, self.choice.problem.batch]) as u32;
        first.then(Implementation::kernel(device, sums, blocks))
    }

    fn decide(request: &Request<'_>) -> Result<Self> {
        let [a_name, b_name] = request.names;
        let (k, n) = (request.k(), request.n());
        let n =
            request.side(b_name, if b_name == "w" { "number of rows" } else { "number of columns" }, n)?;
        if is_fp8(request.input) {
            // Their variants compute one matrix, and some take copies in f16.
            let rows = request.leading.iter().fold(request.m(), |rows, &length| rows.saturating_mul(length));
            request.side(a_name, "number of rows", rows)?;
            let (bytes, chunk) = (DType::F16.size() as u64, CHUNK_BYTES as u64);
            if (k.next_multiple_of(CHUNK_BYTES) as u64).saturating_mul(bytes) >= ROW_LIMIT {
                let limit = format!("at most {}", ROW_LIMIT / bytes - chunk);
                return Err(request.limit(a_name, "number of columns", limit, k as u64));
            }
        }
        let row_bytes = (k as u64).saturating_mul(request.input.size() as u64);
        if row_bytes >= ROW_LIMIT {
            let limit = format!("less than {ROW_LIMIT} bytes");
            return Err(request.limit(a_name, "size of a row", limit, row_bytes));
        }
        let k = k as u32;

        let properties = request.device.properties();
        let is_older = is_hopper(properties.compute_capability) && !request.has_hopper;
        let limits = Limits {
            compute_capability: if is_older { ADA } else { properties.compute_capability },
            multiprocessors: properties.multiprocessors,
            max_shared_per_block: properties.max_shared_per_block,
            shared_per_multiprocessor: properties.shared_per_multiprocessor,
            memory_bandwidth: properties.memory_bandwidth(),
            takes_fp8_mma: properties.driver_version.is_none_or(|version| version >= FP8_MMA_DRIVER),
        };
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let (products, stores_boxes) = (request.products(), request.stores_boxes());
        let problem_of = |launches: &Launches, access: Access| Problem {
            m: number(launches.rows),
            n,
            k,
            batch: number(launches.batch),
            input: request.input,
            output: request.output,
            access,
            products,
            stores_boxes,
            fused: request.fused,
            rank: 0,
        };
        let problem = |repack: [bool; 2], access: Access| {
            let launches = request.axes(repack).launches();
            (problem_of(&launches, access), launches.count())
        };
        let views = request.operands.map(OperandView::of);
        let is_dense = request.is_dense(&request.axes([false; 2]).launches());
        let chosen = operands::choose(views, is_dense, request.tile, &limits, problem);
        let path = chosen.map_err(|refusal| {
            let (problem, _) = problem([true; 2], Access::Aligned);
            request.no_kernel(refusal, &problem, &limits)
        })?;

        let launches = request.axes(path.repack).launches();
        let m = request.side(a_name, "number of rows", launches.rows)?;
        let problem = problem_of(&launches, path.access);
        let choice = ProductChoice { problem, limits };
        let tile = match request.tile {
            Some(tile) => Some(tile),
            None => tune::choose(request.device, &choice)?,
        };
        let tile = tile.ok_or_else(|| request.no_kernel(None, &problem, &limits))?;
        let division = Division::of(tile, &problem, request.parts, &limits, properties.max_grid[0]);
        let Division { parts, k, blocks } = division.map_err(|most_tiles| {
            let tiles = tile.tiles(m, n).saturating_mul(launches.batch as u64);
            request.limit("y", "number of tiles", format!("at most {most_tiles}"), tiles)
        })?;
        Ok(Self { path, launches, tile, blocks, parts, m, n, k, choice })
    }
}

impl Request<'_> {
    /// Rows of a matrix of the output.
    fn m(&self) -> usize {
        let shape = self.operands[0].shape;
        shape[shape.len() - 2]
    }

    /// Columns of the output.
    fn n(&self) -> usize {
        let shape = self.operands[1].shape;
        shape[shape.len() - 2]
    }

    /// The length of the sums.
    fn k(&self) -> usize {
        let shape = self.operands[0].shape;
        shape[shape.len() - 1]
    }

    /// Everything that its plan depends on.
    fn key(&self) -> Key {
        let mut key = Key::new("product");
        let [a, b] = self.operands;
        key.view(a).view(b).optional(self.y).number(self.output as usize).number(self.leading.len());
        for &length in self.leading {
            key.number(length);
        }
        key.optional(self.row_scale).number(self.fused as usize).number(self.products() as usize);
        key.number(self.adds_y.into()).optional(self.residual);
        key.optional(self.mask).optional(self.preactivation);
        key.number(self.tile.map_or(0, |tile| 1 + tile as usize))
            .number(self.parts.map_or(0, |parts| 1 + parts as usize))
            .number(self.has_hopper.into());
        key
    }

    /// How the operands are multiplied.
    fn products(&self) -> Products {
        let tf32 = has_tf32(self.device.properties().compute_capability);
        Products::choose(self.input, self.k(), self.precision, tf32)
    }

    /// Whether the copy engine can store the output and what else is stored and read by tiles: see [`Problem::stores_boxes`].
    fn stores_boxes(&self) -> bool {
        let bytes = self.output.size();
        let is_chunked = |elements: usize| (elements * bytes).is_multiple_of(CHUNK_BYTES);
        let is_aligned = |matrix: View<'_>| {
            let (_, leading) = matrix.strides.split_last().unwrap_or((&1, &[]));
            matrix.address.is_multiple_of(CHUNK_BYTES as u64)
                && leading.iter().all(|&stride| is_chunked(stride))
        };
        let has_residual = self.residual.is_some() || self.adds_y;
        if has_residual && !has_short_rows(self.n(), bytes) {
            return false;
        }
        is_chunked(self.n())
            && [self.y, self.residual, self.preactivation].into_iter().flatten().all(is_aligned)
    }

    /// Whether the launches of operands that are read in place are one as [`Access::Dense`] says.
    fn is_dense(&self, launches: &Launches) -> bool {
        let a = OperandView::of(self.operands[0]);
        let follow = |role: Role, columns| launches.rows == 1 || launches.row_strides[role] == columns;
        let starts = |address: u64| address.is_multiple_of(CHUNK_BYTES as u64);
        self.fused.is_plain()
            && (launches.count(), launches.batch) == (1, 1)
            && (a.columns.0 == 1 || a.columns.1 == 1)
            && follow(Role::A, a.columns.0)
            && follow(Role::Y, self.n())
            && starts(a.address)
            && self.y.is_none_or(|y| starts(y.address))
    }

    /// The axes of the product when operands have been copied or not.
    fn axes(&self, repack: [bool; 2]) -> Axes {
        let rank = self.leading.len();
        let mut full = self.leading.to_vec();
        full.extend([self.m(), self.n()]);
        // The caller may see a matrix of one row as a vector.
        let widened = |view: View<'_>| {
            let (mut shape, mut strides) = (view.shape.to_vec(), view.strides.to_vec());
            if shape.len() < full.len() {
                shape.insert(0, 1);
                strides.insert(0, 0);
            }
            Strides::of(&shape, &strides, rank)
        };
        let operand = |at: usize| {
            let view = self.operands[at];
            if repack[at] {
                Strides::repacked(view, rank)
            } else {
                Strides::of(view.shape, view.strides, rank)
            }
        };
        let written = self.y.map_or_else(|| Strides::dense(&full, full[full.len() - 1], rank), &widened);
        let row_scale = self.row_scale.map(|scale| {
            let rows = full[..full.len() - 1].to_vec();
            match *scale.shape {
                [1] => Strides { leading: vec![0; rank], row: 0 },
                [length] if rows.len() > 1 || length != rows.iter().product::<usize>() => {
                    Strides { leading: vec![0; rank], row: 1 }
                }
                _ => {
                    let mut shape = rows;
                    shape.push(1);
                    Strides::dense(&shape, 1, rank)
                }
            }
        });
        let residual = match self.residual {
            Some(residual) => Some(widened(residual)),
            None => self.adds_y.then(|| written.clone()),
        };
        let all = [
            (Role::A, Some(operand(0))),
            // Its rows are the output's columns.
            (Role::B, Some(Strides { row: 0, ..operand(1) })),
            (Role::Y, Some(written)),
            (Role::Residual, residual),
            (Role::Mask, self.mask.map(widened)),
            (Role::Preactivation, self.preactivation.map(widened)),
            (Role::RowScale, row_scale),
        ];
        let mut row_strides = PerRole::default();
        let mut leading: Vec<_> = self.leading.iter().map(|&length| (length, PerRole::default())).collect();
        for (role, strides) in &all {
            let Some(strides) = strides else { continue };
            row_strides[*role] = strides.row;
            for ((_, per_role), stride) in leading.iter_mut().zip(&strides.leading) {
                per_role[*role] = *stride;
            }
        }
        Axes { leading, rows: self.m(), row_strides }
    }

    fn limit(&self, operand: &'static str, quantity: &'static str, limit: String, actual: u64) -> Error {
        Error::SizeLimit { operation: self.operation, operand, quantity, limit, actual: actual.to_string() }
    }

    fn side(&self, operand: &'static str, quantity: &'static str, size: usize) -> Result<u32> {
        match u32::try_from(size) {
            Ok(size) if u64::from(size) < SIDE_LIMIT => Ok(size),
            _ => Err(self.limit(operand, quantity, format!("less than {SIDE_LIMIT}"), size as u64)),
        }
    }

    /// The error where no kernel of the device, or not the one that was asked for, which refuses the problem, can compute the product.
    fn no_kernel(&self, refusal: Option<Refusal>, problem: &Problem, limits: &Limits) -> Error {
        let unsupported = |expected: String, actual: String| Error::UnsupportedDevice {
            operation: self.operation,
            device: self.device.to_string(),
            expected,
            actual,
        };
        if let (Some(tile), Some(refusal)) = (self.tile, refusal) {
            return Error::Argument {
                operation: self.operation,
                argument: "tile",
                expected: refusal.expected(tile, problem, self.precision, limits),
                actual: tile.to_string(),
            };
        }
        let least = Tile::least(self.input);
        let family = least.family();
        let (major, minor) = limits.compute_capability;
        if self.fused != Fused::Own && !is_built(family) {
            Error::MissingFamily { family, feature: family }
        } else if limits.compute_capability < TURING {
            unsupported("compute capability 7.5 or later".into(), format!("{major}.{minor}"))
        } else {
            unsupported(
                format!("at least {} bytes of shared memory a block", least.shared_bytes()),
                format!("{} bytes", limits.max_shared_per_block),
            )
        }
    }
}

/// The strides of a tensor of shape `[.., rows, columns]` apart: of the leading axes, and of the rows.
#[derive(Clone, Debug)]
struct Strides {
    leading: Vec<usize>,
    row: usize,
}

impl Strides {
    fn of(shape: &[usize], strides: &[usize], rank: usize) -> Self {
        let axes = shape.len() - 2;
        let leading = broadcast_strides(&shape[..axes], &strides[..axes], rank);
        Self { leading, row: strides[axes] }
    }

    /// Those of a copy into aligned rows.
    fn repacked(view: View<'_>, rank: usize) -> Self {
        let columns = view.shape[view.shape.len() - 1];
        Self::dense(view.shape, columns.next_multiple_of(CHUNK_BYTES / view.element.size()), rank)
    }

    /// Those of a tensor without gaps, but that rows are `pitch` elements apart.
    fn dense(shape: &[usize], pitch: usize, rank: usize) -> Self {
        let mut strides = vec![1; shape.len()];
        let mut next = pitch;
        for (stride, length) in strides.iter_mut().zip(shape).rev().skip(1) {
            *stride = next;
            next = next.saturating_mul((*length).max(1));
        }
        Self::of(shape, &strides, rank)
    }
}

#[cfg(test)]
mod tests {
    use float8::F8E4M3;
    use half::bf16;

    use crate::device::{Device, EmulatorOptions};
    use crate::ops;
    use crate::tensor::{Element, Tensor};

    fn device(compute_capability: (u32, u32)) -> Device {
        Device::emulator_with(EmulatorOptions { compute_capability, ..EmulatorOptions::default() })
    }

    fn zeros<T: Element>(device: &Device, shape: [usize; 2]) -> Tensor<T> {
        Tensor::zeros(device, shape).expect("memory")
    }

    #[test]
    fn an_operation_is_planned_once_for_operands_of_one_layout() {
        let device = device((9, 0));
        let (x, w) = (zeros::<bf16>(&device, [32, 64]), zeros::<bf16>(&device, [16, 64]));
        let (x8, w8) = (zeros::<F8E4M3>(&device, [32, 64]), zeros::<F8E4M3>(&device, [16, 64]));
        for _ in 0..2 {
            ops::linear(&x, &w).run().expect("a kernel");
            ops::matmul(&x, &w).transpose_b().run().expect("a kernel");
            assert_eq!(device.decisions().count(), 1);
        }
        for _ in 0..2 {
            ops::linear_scaled(&x8, &w8).run().expect("a kernel");
            assert_eq!(device.decisions().count(), 2);
        }
        ops::linear_scaled(&x8.slice(0, 1..32).expect("rows"), &w8).run().expect("a kernel");
        assert_eq!(device.decisions().count(), 3);
    }

    #[test]
    fn a_device_without_kernels_is_told_from_which_compute_capability_on_there_are_some() {
        let device = device((7, 0));
        let (x, x8) = (zeros::<bf16>(&device, [32, 64]), zeros::<F8E4M3>(&device, [32, 64]));
        let refused = [ops::linear(&x, &x).run().map(drop), ops::linear_scaled(&x8, &x8).run().map(drop)];
        for error in refused.map(|refused| refused.expect_err("no kernel").to_string()) {
            assert!(error.contains("compute capability 7.5 or later"), "{error}");
        }
    }
}
