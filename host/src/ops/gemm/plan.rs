//! What a product runs: the path to its operands, the launches, the kernel and its blocks.

use std::ops::Deref;
use std::sync::Arc;

use super::batch::{Axes, Launches, PerRole, Role, broadcast_strides};
use super::launch::{Instance, Operands};
use super::operands::{self, Path, Place};
use super::passes::{Passes, sums_blocks};
use super::{
    Access, Fused, Limits, LinearTypes, MOST_PARTS, Options, Problem, Product, TURING, Tile, has_tf32,
};
use crate::cpu::FromAccumulator;
use crate::device::decisions::Key;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::kernel::is_built;
use crate::ops::choice::{Observation, ProductChoice, notice};
use crate::ops::{CHUNK_BYTES, Implementation, Products, ROW_LIMIT, SIDE_LIMIT, has_short_rows};
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};
use crate::tune;

/// A product, planned.
pub(super) struct Plan<T: Element, O: Element> {
    /// The launches; none on the CPU, and none if y has no elements.
    pub(super) launch: Option<Launch<T, O>>,
    pub(super) implementation: Implementation,
}

/// Launches of a kernel that fit the operands.
pub(super) struct Launch<T: Element, O: Element> {
    decided: Arc<Decided>,
    kernels: Kernels<T, O>,
}

/// What computes the product of some matrices.
enum Kernels<T: Element, O: Element> {
    /// All of it.
    One(Instance<T, O>),
    /// Parts of its sums, and what adds them.
    Two(Passes<T, O>),
}

impl<T: Element, O: Element> Launch<T, O> {
    /// Computes the product of some matrices.
    ///
    /// # Safety
    ///
    /// As [`Instance::launch`].
    pub(super) unsafe fn launch(
        &self,
        device: &Device,
        stream: &Stream,
        operands: &Operands<'_, T, O>,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.kernels {
                Kernels::One(instance) => instance.launch(device, stream, self.blocks, operands),
                Kernels::Two(passes) => passes.launch(device, stream, self.blocks, operands),
            }
        }
    }

    /// The kernels of the first matrices, and the operands that are copied before.
    fn implementation(&self, device: &Device) -> Implementation {
        let copies = self.path.repack.into_iter().filter(|&copied| copied).count();
        let first = |kernel| Implementation::kernel(device, kernel, self.blocks).with_copies(copies);
        match &self.kernels {
            Kernels::One(instance) => first(instance.declaration.name),
            Kernels::Two(passes) => {
                let blocks = sums_blocks([self.m, self.n, self.choice.problem.batch]) as u32;
                let sums = Implementation::kernel(device, passes.sums.declaration.name, blocks);
                Implementation::sequence(first(passes.parts.declaration.name), sums)
            }
        }
    }
}

impl<T: Element, O: Element> Deref for Launch<T, O> {
    type Target = Decided;

    fn deref(&self) -> &Decided {
        &self.decided
    }
}

/// What is decided for operands that lie in one way.
pub(super) struct Decided {
    pub(super) path: Path,
    pub(super) launches: Launches,
    pub(super) blocks: u32,
    /// Blocks that share the sums of a tile, of those that are told at each launch, or parts of the sums that a second launch adds.
    pub(super) parts: u32,
    pub(super) m: u32,
    pub(super) n: u32,
    /// Elements of a sum, or of a part of it.
    pub(super) k: u32,
    tile: Tile,
    choice: ProductChoice,
}

impl Decided {
    /// Whether sums are computed in parts that a second launch adds.
    fn is_split(&self) -> bool {
        self.parts > 1 && self.tile.has_passes()
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
    fn repacked<T: Element>(operand: &Tensor<T>, rank: usize) -> Self {
        let shape = operand.shape();
        let columns = shape[shape.len() - 1];
        Self::dense(shape, columns.next_multiple_of(CHUNK_BYTES / size_of::<T>()), rank)
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

impl<T, O> Plan<T, O>
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    /// The plan for an output that lies as `y` does, or has no gaps. All operands have been checked.
    pub(super) fn new(product: &Product<'_, T, O>, y: Option<&Tensor<O>>) -> Result<Self> {
        let device = product.a.device();
        if product.output_shape.contains(&0) {
            return Ok(Self { launch: None, implementation: Implementation::Empty });
        }
        if device.kind() == DeviceKind::Cpu {
            return Ok(Self { launch: None, implementation: Implementation::Cpu });
        }
        let launch = Launch::new(product, y)?;
        let implementation = launch.implementation(device);
        Ok(Self { launch: Some(launch), implementation })
    }
}

impl<T, O> Launch<T, O>
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    fn new(product: &Product<'_, T, O>, y: Option<&Tensor<O>>) -> Result<Self> {
        let device = product.a.device();
        let decided = device.decisions().get(key(product, y), || Self::decide(product, y))?;
        notice(Observation::Product(decided.choice, decided.path.repack));
        let tile = decided.tile;
        let kernels = match decided.is_split() {
            true => T::passes(tile).map(Kernels::Two),
            false => T::instance(tile).map(Kernels::One),
        };
        let kernels = kernels.ok_or_else(|| no_kernel(product, &decided.choice.limits))?;
        Ok(Self { decided, kernels })
    }

    fn decide(product: &Product<'_, T, O>, y: Option<&Tensor<O>>) -> Result<Decided> {
        let device = product.a.device();
        let [a_name, b_name] = product.names;
        let limit = |operand, quantity, limit: String, actual: u64| Error::SizeLimit {
            operation: product.operation,
            operand,
            quantity,
            limit,
            actual: actual.to_string(),
        };
        let side = |operand, quantity, size: usize| match u32::try_from(size) {
            Ok(size) if u64::from(size) < SIDE_LIMIT => Ok(size),
            _ => Err(limit(operand, quantity, format!("less than {SIDE_LIMIT}"), size as u64)),
        };
        let n =
            side(b_name, if b_name == "w" { "number of rows" } else { "number of columns" }, product.n())?;
        let k = product.k();
        let row_bytes = (k as u64).saturating_mul(size_of::<T>() as u64);
        if row_bytes >= ROW_LIMIT {
            return Err(limit(a_name, "size of a row", format!("less than {ROW_LIMIT} bytes"), row_bytes));
        }
        let k = k as u32;

        let operands = [&product.a, &product.b];
        let places = operands.map(place);
        let axes = |repack: [bool; 2]| axes(product, y, repack);
        let properties = device.properties();
        let limits = Limits {
            compute_capability: properties.compute_capability,
            multiprocessors: properties.multiprocessors,
            max_shared_per_block: properties.max_shared_per_block,
            shared_per_multiprocessor: properties.shared_per_multiprocessor,
        };
        let products = products(product);
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let (stores_boxes, fused) = (stores_boxes(product, y), product.options.fused());
        let problem = |repack: [bool; 2], access: Access| {
            let launches = axes(repack).launches();
            let m = number(launches.rows);
            let batch = number(launches.batch);
            (
                Problem {
                    m,
                    n,
                    k,
                    batch,
                    input: T::DTYPE,
                    output: O::DTYPE,
                    access,
                    products,
                    stores_boxes,
                    fused,
                },
                launches.count(),
            )
        };
        let is_dense = is_dense(product, y, &axes([false; 2]).launches());
        let chosen = operands::choose(places, is_dense, product.options.tile, &limits, problem);
        let path = chosen.ok_or_else(|| no_kernel(product, &limits))?;

        let launches = axes(path.repack).launches();
        let m = side(a_name, "number of rows", launches.rows)?;
        let batch = number(launches.batch);
        let problem = Problem {
            m,
            n,
            k,
            batch,
            input: T::DTYPE,
            output: O::DTYPE,
            access: path.access,
            products,
            stores_boxes,
            fused,
        };
        let choice = ProductChoice { problem, limits };
        let tile = match product.options.tile {
            Some(tile) => Some(tile),
            None => tune::choose(device, &choice)?,
        };
        let tile = tile.ok_or_else(|| no_kernel(product, &limits))?;
        if T::instance(tile).is_none() {
            return Err(no_kernel(product, &limits));
        }
        let most_blocks = properties.max_grid[0];
        let tiles = tile.tiles(m, n).saturating_mul(launches.batch as u64);
        let asked = product.options.parts.map(|parts| parts.clamp(1, MOST_PARTS));
        let parts = match asked {
            Some(parts) if tile.shares() => parts,
            _ => tile.parts(&problem, &limits),
        };
        let (parts, k) = if parts > 1 && tile.has_passes() {
            // The second launch has its limit too.
            let parts = if sums_blocks([m, n, batch]) <= u64::from(most_blocks) { parts } else { 1 };
            tile.split_evenly(k, size_of::<T>(), parts)
        } else {
            (parts, k)
        };
        let most_tiles = u64::from(most_blocks / (tile.split() * parts));
        if tiles > most_tiles {
            return Err(limit("y", "number of tiles", format!("at most {most_tiles}"), tiles));
        }
        // No more than `split` times the tiles of all parts, and so a number of 32 bits.
        let blocks = tile.blocks_of_parts([m, n, batch], parts, properties.multiprocessors) as u32;
        Ok(Decided { path, launches, blocks, parts, m, n, k, tile, choice })
    }
}

/// Everything that a product's launches depend on.
fn key<T, O>(product: &Product<'_, T, O>, y: Option<&Tensor<O>>) -> Key
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    let Options { row_scale, terms, tile, .. } = product.options;
    let mut key = Key::new("product");
    key.tensor(&product.a).tensor(&product.b).optional(y).number(O::DTYPE as usize);
    key.number(product.leading.len());
    for &length in &product.leading {
        key.number(length);
    }
    key.optional(*row_scale).number(product.options.fused() as usize).number(products(product) as usize);
    key.number(usize::from(terms.beta != 0.0)).optional(terms.read_residual().map(|(residual, _)| residual));
    key.optional(terms.mask.as_deref()).optional(terms.preactivation.as_deref());
    key.number(tile.map_or(0, |tile| 1 + tile as usize))
        .number(product.options.parts.map_or(0, |parts| 1 + parts as usize));
    key
}

/// How the operands are multiplied.
fn products<T, O>(product: &Product<'_, T, O>) -> Products
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    let tf32 = has_tf32(product.a.device().properties().compute_capability);
    Products::choose(T::DTYPE, product.k(), product.options.precision, tf32)
}

/// Whether the copy engine can store an output that lies as `y` does, or has no gaps, and the options' matrices lie as well: see
/// [`Problem::stores_boxes`].
fn stores_boxes<T, O>(product: &Product<'_, T, O>, y: Option<&Tensor<O>>) -> bool
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    let is_chunked = |elements: usize| (elements * size_of::<O>()).is_multiple_of(CHUNK_BYTES);
    let lies_well = |matrix: &Tensor<O>| {
        let (_, leading) = matrix.strides().split_last().unwrap_or((&1, &[]));
        matrix.arg().address().is_multiple_of(CHUNK_BYTES as u64)
            && leading.iter().all(|&stride| is_chunked(stride))
    };
    let terms = &product.options.terms;
    let residual = terms.read_residual().map(|(residual, _)| residual);
    let has_residual = residual.is_some() || terms.beta != 0.0;
    if has_residual && !has_short_rows(product.n(), size_of::<O>()) {
        return false;
    }
    let preactivation = terms.preactivation.as_deref();
    is_chunked(product.n()) && [y, residual, preactivation].into_iter().flatten().all(lies_well)
}

/// Whether the launches of operands that are read where they lie, and of an output that lies as `y` does or has no gaps, are one as
/// [`Access::Dense`] says.
fn is_dense<T, O>(product: &Product<'_, T, O>, y: Option<&Tensor<O>>, launches: &Launches) -> bool
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    let a = place(&product.a);
    let follow = |role: Role, columns| launches.rows == 1 || launches.row_strides[role] == columns;
    let starts = |address: u64| address.is_multiple_of(CHUNK_BYTES as u64);
    product.options.fused().is_plain()
        && (launches.count(), launches.batch) == (1, 1)
        && (a.columns.0 == 1 || a.columns.1 == 1)
        && follow(Role::A, a.columns.0)
        && follow(Role::Y, product.n())
        && starts(a.address)
        && y.is_none_or(|y| starts(y.arg().address()))
}

/// Where the matrices of an operand are.
fn place<T: Element>(operand: &Tensor<T>) -> Place<'_> {
    let (axes, shape, strides) = (operand.rank() - 2, operand.shape(), operand.strides());
    Place {
        address: operand.arg().address(),
        element_bytes: size_of::<T>() as u64,
        rows: (shape[axes], strides[axes]),
        columns: (shape[axes + 1], strides[axes + 1]),
        leading: (&shape[..axes], &strides[..axes]),
    }
}

/// The axes of a product whose operands have been copied or not.
fn axes<T, O>(product: &Product<'_, T, O>, y: Option<&Tensor<O>>, repack: [bool; 2]) -> Axes
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    let (rank, options, full) = (product.leading.len(), product.options, product.full_shape());
    // The caller may see a matrix of one row as a vector.
    let widened = |shape: &[usize], strides: &[usize]| {
        let (mut shape, mut strides) = (shape.to_vec(), strides.to_vec());
        if shape.len() < full.len() {
            shape.insert(0, 1);
            strides.insert(0, 0);
        }
        Strides::of(&shape, &strides, rank)
    };
    let operand = |operand: &Tensor<T>, repack: bool| {
        if repack {
            Strides::repacked(operand, rank)
        } else {
            Strides::of(operand.shape(), operand.strides(), rank)
        }
    };
    let written = y.map_or_else(
        || Strides::dense(&full, full[full.len() - 1], rank),
        |y| widened(y.shape(), y.strides()),
    );
    let row_scale = options.row_scale.map(|scale| {
        let strides = vec![1; scale.rank()];
        let rows = full[..full.len() - 1].to_vec();
        match scale.shape() {
            [1] => Strides { leading: vec![0; rank], row: 0 },
            [_] if rows.len() > 1 || scale.len() != rows.iter().product::<usize>() => {
                Strides { leading: vec![0; rank], row: strides[0] }
            }
            _ => {
                let mut shape = rows;
                shape.push(1);
                Strides::dense(&shape, 1, rank)
            }
        }
    });
    let mut all = [
        (Role::A, Some(operand(&product.a, repack[0]))),
        // Its rows are the output's columns.
        (Role::B, Some(Strides { row: 0, ..operand(&product.b, repack[1]) })),
        (Role::Y, Some(written.clone())),
        (
            Role::Residual,
            match options.terms.read_residual() {
                Some((residual, _)) => Some(widened(residual.shape(), residual.strides())),
                None => (options.terms.beta != 0.0).then_some(written),
            },
        ),
        (Role::Mask, options.terms.mask.as_deref().map(|mask| widened(mask.shape(), mask.strides()))),
        (
            Role::Preactivation,
            options.terms.preactivation.as_deref().map(|z| widened(z.shape(), z.strides())),
        ),
        (Role::RowScale, row_scale),
    ];
    let mut row_strides = PerRole::default();
    let mut leading: Vec<_> = product.leading.iter().map(|&length| (length, PerRole::default())).collect();
    for (role, strides) in &mut all {
        let Some(strides) = strides else { continue };
        row_strides[*role] = strides.row;
        for ((_, per_role), stride) in leading.iter_mut().zip(&strides.leading) {
            per_role[*role] = *stride;
        }
    }
    Axes { leading, rows: product.m(), row_strides }
}

/// The family whose kernels take what those of no other do.
const LEAST: &str = "linear";

/// The error where no kernel of the device, or none of the tile that was asked for, can run the product.
fn no_kernel<T, O>(product: &Product<'_, T, O>, limits: &Limits) -> Error
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    let (major, minor) = limits.compute_capability;
    let unsupported = |expected: String, actual: String| Error::UnsupportedDevice {
        operation: product.operation,
        device: product.a.device().to_string(),
        expected,
        actual,
    };
    match product.options.tile {
        None if !is_built(LEAST) => Error::MissingFamily { family: LEAST, feature: LEAST },
        Some(tile) => {
            let serves = |access| tile.serves(T::DTYPE, access);
            let expected = if !tile.runs_on(limits.compute_capability) {
                format!("one that runs on compute capability {major}.{minor}")
            } else if !Access::ALL.into_iter().any(serves) {
                format!("one that has a kernel for {} inputs", T::DTYPE)
            } else if !tile.serves_output(T::DTYPE, O::DTYPE) {
                format!("one that has a kernel for {} outputs of {} inputs", O::DTYPE, T::DTYPE)
            } else if tile.is_hopper() && product.k() == 0 {
                "one that takes operands without columns, which no tensor map describes".into()
            } else if tile.shared_bytes() > limits.max_shared_per_block {
                format!("one of at most {} bytes of shared memory", limits.max_shared_per_block)
            } else if tile == Tile::Narrow16x256 {
                "one that serves these operands: this takes one x and one y of few columns, without gaps from a multiple of 16 \
                 bytes on, and no more than alpha, a bias and an activation"
                    .into()
            } else if !tile.serves_fused(Fused::Mask) {
                "one that serves this output: this takes rows of y that are multiples of 16 bytes, and no more than \
                 alpha, a bias and an activation"
                    .into()
            } else if !tile.serves_fused(Fused::Terms) {
                "one that serves this output: this takes rows of y that are multiples of 16 bytes, and no more than \
                 alpha, a bias, an activation and a mask"
                    .into()
            } else if tile.needs_boxes() {
                "one that serves this output: this takes rows of y, of the residual and of the pre-activation that are multiples of 16 bytes"
                    .into()
            } else {
                format!("one that multiplies {} at the precision {:?}", T::DTYPE, product.options.precision)
            };
            Error::Argument {
                operation: product.operation,
                argument: "tile",
                expected,
                actual: tile.to_string(),
            }
        }
        None if limits.compute_capability < TURING => {
            unsupported("compute capability 7.5 or later".into(), format!("{major}.{minor}"))
        }
        None => unsupported(
            format!("at least {} bytes of shared memory a block", Tile::T16x64.shared_bytes()),
            format!("{} bytes", limits.max_shared_per_block),
        ),
    }
}
