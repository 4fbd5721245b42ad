//! Updates as two matrix products with the codes in between: `H = X V` in f32, `G = H ⊙ codes` in the operands' type, and `G U`.
//!
//! Each product takes whichever kernel of the linear operation is the fastest for its sizes, and none computes a part of H twice. That is worth
//! two launches more wherever X V is more than a little work, or more than a block's.

use half::{bf16, f16};
use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::gemm::SplitKTile;
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel, TensorMap};
use warpsmith_kernels::codes::Codes;
use warpsmith_kernels::linear_modulated::linear_modulated;
use warpsmith_kernels::modulate::{BLOCK_ROWS, ModulateParams, modulate};
use warpsmith_kernels::skinny::{
    Skinny16x64, Skinny16x64Split2, Skinny16x64Split4, Skinny32x64, Skinny64x64, Skinny64x64Split2,
    Skinny64x64Split8, SkinnyParams,
};

use super::check::Checked;
use super::operands::{Problem, concatenated, in_chunks, is_chunked};
use super::{UpdateInput, Way, no_way};
use crate::device::Device;
use crate::error::Result;
use crate::kernel::is_built;
use crate::ops::gemm::{
    self, Access, Fused, Limits, Operands, Tile, estimate, estimate_of_launch, skinny_launch,
};
use crate::ops::linear::{LinearOp, with_output};
use crate::ops::matrix::row_stride;
use crate::ops::{CHUNK_BYTES, Implementation};
use crate::stream::{Operand, Stream};
use crate::tensor::{DType, Element, Tensor};

/// The tiles of the products that apply the codes.
pub(super) const TILES: [Tile; 7] = [
    Tile::Skinny64x64,
    Tile::Skinny64x64Split2,
    Tile::Skinny64x64Split8,
    Tile::Skinny32x64,
    Tile::Skinny16x64,
    Tile::Skinny16x64Split2,
    Tile::Skinny16x64Split4,
];
/// What a launch takes more that waits for another one, in picoseconds on an H100.
pub(super) const NEXT: u128 = 1_400_000;
impl CodesChoice {
    /// Blocks of the launch that makes G; `None` if there are two.
    pub(super) fn blocks(self) -> Option<u32> {
        match self {
            Self::Together { blocks, .. } => Some(blocks),
            Self::Apart => None,
        }
    }
}

/// What a launch that copies V takes, in picoseconds on an H100.
const COPY: u128 = 1_500_000;
/// What the launch of the codes takes beside its bytes, in picoseconds on an H100.
const MODULATE: u128 = 1_500_000;
/// Bytes that it moves in a microsecond: most of them are in the level-2 cache.
const MODULATE_RATE: u128 = 3_000_000;

/// The kernels of an element type.
pub trait Kernels: Element {
    /// That which multiplies by codes.
    #[doc(hidden)]
    type Modulate: Kernel<Args = (Global<f32>, Codes<Self::Device>, GlobalMut<Self::Device>, ModulateParams)>;

    /// The product with a tile that applies the codes; `None` if there is none.
    #[doc(hidden)]
    #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
    fn together(tile: Tile) -> Option<Together<Self>>;
}

macro_rules! kernels {
    ($($element:ident $device:ident),*) => {
        $(
            impl Kernels for $element {
                type Modulate = modulate<$device>;

                #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
                fn together(tile: Tile) -> Option<Together<Self>> {
                    Some(match tile {
                        Tile::Skinny64x64 => kernels!(@of $device, Skinny64x64),
                        Tile::Skinny64x64Split2 => kernels!(@of $device, Skinny64x64Split2),
                        Tile::Skinny64x64Split8 => kernels!(@of $device, Skinny64x64Split8),
                        Tile::Skinny32x64 => kernels!(@of $device, Skinny32x64),
                        Tile::Skinny16x64 => kernels!(@of $device, Skinny16x64),
                        Tile::Skinny16x64Split2 => kernels!(@of $device, Skinny16x64Split2),
                        Tile::Skinny16x64Split4 => kernels!(@of $device, Skinny16x64Split4),
                        _ => return None,
                    })
                }
            }
        )*
    };
    (@of $device:ident, $shape:ident) => { Together::of::<linear_modulated<$device, $shape>, $shape>() };
}
kernels!(f16 F16, bf16 Bf16);

impl Kernels for f32 {
    type Modulate = modulate<f32>;

    #[allow(private_interfaces, reason = "nothing outside this crate implements or calls it")]
    fn together(_: Tile) -> Option<Together<Self>> {
        None
    }
}

/// The layout of V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VLies {
    /// Rows of Vᵗ are contiguous, and start at multiples of 16 bytes.
    AlongK,
    /// Rows of V are.
    AlongR,
    /// In another way: it is copied.
    Otherwise,
}

/// What makes G.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodesChoice {
    /// A product that applies the codes before it rounds.
    Together { tile: Tile, blocks: u32, copies_v: bool },
    /// A product whose f32 sums another kernel multiplies by the codes.
    Apart,
}

/// The fastest way to make G, and its time in picoseconds on an H100 by the model of the linear operation; `None` if no kernel runs on the device, or
/// none with the `only` tile that will do.
pub(super) fn choose_codes(
    problem: &Problem,
    v: VLies,
    only: Option<Tile>,
    limits: &Limits,
) -> Option<(CodesChoice, u128)> {
    if limits.compute_capability < (8, 0) {
        // One kernel does all there.
        return None;
    }
    let &Problem { m, k, rank, dtype, .. } = problem;
    let sums = problem.product([m, rank, k], DType::F32, limits);
    let bytes = u128::from(m) * u128::from(rank) * (4 + dtype.size() as u128);
    let apart = estimate(None, &sums, limits)
        .filter(|_| is_built("modulate"))
        .map(|time| (CodesChoice::Apart, time + MODULATE + bytes * 1_000_000 / MODULATE_RATE));
    let is_hopper = gemm::is_hopper(limits.compute_capability) && is_built("linear_modulated");
    let has_kernels = is_hopper && dtype != DType::F32 && k > 0;
    let ways = match v {
        _ if !has_kernels || !problem.x_is_chunked => &[][..],
        VLies::AlongK => &[(Access::Aligned, false)],
        VLies::AlongR => &[(Access::WAcross, false), (Access::Aligned, true)],
        VLies::Otherwise => &[(Access::Aligned, true)],
    };
    let together = ways.iter().flat_map(|&(access, copies_v)| {
        let tiles = TILES.into_iter().filter(move |&tile| only.is_none_or(|only| only == tile));
        tiles.filter_map(move |tile| {
            let product = gemm::Problem { access, output: dtype, ..sums };
            let time = estimate_of_launch(tile, &product, limits)?;
            let blocks = u32::try_from(tile.blocks(m, rank, 1, limits.multiprocessors)).ok()?;
            let choice = CodesChoice::Together { tile, blocks, copies_v };
            (blocks <= i32::MAX as u32).then_some((choice, time + if copies_v { COPY } else { 0 }))
        })
    });
    together.chain(apart.filter(|_| only.is_none())).min_by_key(|&(_, time)| time)
}

/// How the updates alone are computed in two products, and how long that takes, by the same model.
pub(super) fn choose(
    problem: &Problem,
    v: VLies,
    only: Option<Tile>,
    limits: &Limits,
) -> Option<(CodesChoice, u128)> {
    let &Problem { m, n, rank, dtype, fits_registers, y_is_chunked, .. } = problem;
    let is_whole = (n as usize * dtype.size()).is_multiple_of(CHUNK_BYTES);
    let second = gemm::Problem {
        access: if problem.u_is_chunked { Access::WAcross } else { Access::Aligned },
        stores_boxes: y_is_chunked && is_whole,
        fused: if fits_registers { Fused::Floor } else { Fused::Terms },
        ..problem.product([m, n, rank], dtype, limits)
    };
    // Where no kernel reads U as it lies, it is copied.
    let aligned = gemm::Problem { access: Access::Aligned, ..second };
    let copied = || estimate(None, &aligned, limits).map(|time| time + COPY);
    let second = if problem.u_is_chunked { estimate(None, &second, limits) } else { None };
    let second = second.or_else(copied)?;
    let (codes, first) = choose_codes(problem, v, only, limits)?;
    Some((codes, first + NEXT + second))
}

/// The arguments of the products that apply the codes.
type TogetherArgs<D> = (TensorMap, TensorMap, GlobalMut<D>, Codes<D>, SkinnyParams);

/// A kernel that makes G and how it is launched.
#[doc(hidden)]
pub struct Together<T: Element> {
    declaration: Declaration,
    launch: LaunchTogether<T>,
}

type LaunchTogether<T> =
    unsafe fn(&Device, &Stream, u32, &Operands<'_, T, T>, Codes<<T as Element>::Device>) -> Result<()>;

impl<T: Element> Together<T> {
    fn of<K: Kernel<Args = TogetherArgs<T::Device>>, S: SplitKTile>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_together::<T, K, S> }
    }
}

/// Launches the kernel `K` of tile `S`.
///
/// # Safety
///
/// The operands and the codes are valid for what the kernel does with them, and live until the stream's work is done.
unsafe fn launch_together<T: Element, K: Kernel<Args = TogetherArgs<T::Device>>, S: SplitKTile>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    operands: &Operands<'_, T, T>,
    codes: Codes<T::Device>,
) -> Result<()> {
    let launch = skinny_launch::<T, T, S>(operands)?;
    let kernel = device.kernel::<K>()?;
    let args = (launch.x, launch.w, operands.y_arg, codes, launch.params);
    // A few clusters find room at once, however large they are.
    let are_few = blocks <= device.properties().multiprocessors / 2;
    // SAFETY: the maps are of matrices of `T`, with the boxes that the tile asks for; the rest is the caller's promise.
    unsafe {
        if launch.is_early || are_few {
            kernel.launch_early(stream, [blocks, 1, 1], args)
        } else {
            kernel.launch(stream, [blocks, 1, 1], args)
        }
    }
}

impl<T: UpdateInput> Checked<T> {
    /// The layout of V.
    pub(super) fn v_layout(&self) -> VLies {
        match (&self.packed, &self.factors[..]) {
            (Some(_), _) => VLies::AlongK,
            (None, [(v, _)]) if v.swap_axes(0, 1).is_ok_and(|vt| is_chunked(&vt)) => VLies::AlongK,
            // A single row of V would be one column of Vᵗ.
            (None, [(v, _)]) if self.k > 1 && is_chunked(v) => VLies::AlongR,
            _ => VLies::Otherwise,
        }
    }

    /// `G = (X V) ⊙ codes`, `[M, R]`, rounded to the operands' type, in rows that start at multiples of 16 bytes.
    pub(super) fn modulated(&self, choice: CodesChoice, stream: &Stream) -> Result<Tensor<T>> {
        let rank = self.rank();
        let columns = rank.next_multiple_of(CHUNK_BYTES / size_of::<T>());
        // With columns that become zero, up to whole chunks: kernels read those.
        let mut g = stream.between_launches::<T>([self.m, columns])?;
        match choice {
            CodesChoice::Together { tile, blocks, copies_v } => {
                self.modulate_together(tile, blocks, copies_v, stream, &mut g)?;
            }
            CodesChoice::Apart => self.modulate_apart(stream, &mut g)?,
        }
        g.slice(1, 0..rank)
    }

    /// Makes G in one kernel.
    fn modulate_together(
        &self,
        tile: Tile,
        blocks: u32,
        copies_v: bool,
        stream: &Stream,
        g: &mut Tensor<T>,
    ) -> Result<()> {
        let kernel = T::together(tile).ok_or_else(|| no_way(self.operation, Way::Modulated(tile)))?;
        let mut projections = self.projections()?;
        let vt = match projections.pop() {
            Some(vt) if projections.is_empty() && !copies_v => vt,
            Some(vt) if projections.is_empty() => in_chunks(stream, &vt)?,
            last => concatenated(stream, 0, &projections.into_iter().chain(last).collect::<Vec<_>>())?,
        };
        let y_arg = g.arg_mut();
        let (x, w, y) = (one_of_a_batch(&self.x), one_of_a_batch(&vt), one_of_a_batch(g));
        let operands = Operands {
            x: &x,
            w: &w,
            y: &y,
            y_arg,
            m: self.m as u32,
            n: g.shape()[1] as u32,
            k: self.k as u32,
            parts: 1,
            epilogue: LinearEpilogue::plain(),
            joined: None,
        };
        let mut used: Vec<&dyn Operand> = vec![&x, &w, &y];
        used.extend(self.codes.iter().map(|codes| &codes.codes as &dyn Operand));
        stream.with_operands(&used, || {
            // SAFETY: shapes, strides and device of the operands have been checked, and G is as large as M and the ranks ask. Tensors are freed in
            // the order of their home streams, which `with_operands` makes wait for this work.
            unsafe { (kernel.launch)(self.x.device(), stream, blocks, &operands, self.codes()) }
        })
    }

    /// Makes G of f32 sums.
    fn modulate_apart(&self, stream: &Stream, g: &mut Tensor<T>) -> Result<()> {
        let columns = self.rank().next_multiple_of(CHUNK_BYTES / 4);
        let h = Tensor::<f32>::uninit_on(stream, [self.m, columns])?;
        let mut first = 0;
        for vt in self.projections()? {
            let end = first + vt.shape()[0];
            let mut columns = h.slice(1, first..end)?;
            with_output::<T, f32>(&self.x, &vt).on(stream).run_into(&mut columns)?;
            first = end;
        }
        let (h_arg, g_arg) = (h.arg(), g.arg_mut());
        let (m, stride_h, stride_g) = (self.m as u32, row_stride(&h), row_stride(g));
        let params = ModulateParams { stride_h, stride_g, m, columns: g.shape()[1] as u32 };
        let kernel = self.x.device().kernel::<T::Modulate>()?;
        let mut used: Vec<&dyn Operand> = vec![&h, &*g];
        used.extend(self.codes.iter().map(|codes| &codes.codes as &dyn Operand));
        stream.with_operands(&used, || {
            // SAFETY: as in `modulate_together`, and H is as large as G.
            unsafe {
                kernel.launch(stream, [m.div_ceil(BLOCK_ROWS), 1, 1], (h_arg, self.codes(), g_arg, params))
            }
        })
    }

    /// V of each update, transposed: a view, `[R, K1]`.
    fn projections(&self) -> Result<Vec<Tensor<T>>> {
        match &self.packed {
            Some(packed) => Ok(vec![packed.vt.clone()]),
            None => self.factors.iter().map(|(v, _)| v.swap_axes(0, 1)).collect(),
        }
    }

    /// U of all updates, transposed: `[K2, R]`, in place if its own rows or those are whole chunks, since it is small beside Y.
    fn expansion(&self, stream: &Stream) -> Result<Tensor<T>> {
        match (&self.packed, &self.factors[..]) {
            (None, [(_, u)]) if self.rank() > 1 && is_chunked(u) => u.swap_axes(0, 1),
            _ => self.expansion_in_chunks(stream),
        }
    }

    /// Runs the updates alone into the matrix `y`, or adds them to it.
    pub(super) fn run_products(
        &self,
        codes: CodesChoice,
        stream: &Stream,
        y: &mut Tensor<T>,
        add: bool,
    ) -> Result<()> {
        let (g, ut) = (self.modulated(codes, stream)?, self.expansion(stream)?);
        let second: LinearOp<'_, T, T> = with_output(&g, &ut);
        second.beta(if add { 1.0 } else { 0.0 }).on(stream).run_into(y)
    }

    /// What makes G.
    pub(super) fn implementation_of_codes(&self, choice: CodesChoice) -> Result<Implementation> {
        let device = self.x.device();
        if let CodesChoice::Together { tile, blocks, copies_v } = choice {
            let name = T::together(tile).map_or("", |kernel| kernel.declaration.name);
            return Ok(Implementation::kernel(device, name, blocks).with_copies(copies_v.into()));
        }
        let mut all = Implementation::Empty;
        for vt in self.projections()? {
            let first = with_output::<T, f32>(&self.x, &vt).implementation()?;
            // A kernel that is launched again is there once.
            let is_there =
                |kernel| all.launches().iter().any(|launch: &crate::ops::Launch| launch.kernel == kernel);
            if !first.launches().iter().all(|launch| is_there(launch.kernel)) {
                all = all.then(first);
            }
        }
        let name = <T::Modulate as Kernel>::DECLARATION.name;
        let codes = Implementation::kernel(device, name, (self.m as u32).div_ceil(BLOCK_ROWS));
        Ok(all.then(codes))
    }

    /// What runs the updates alone as products.
    pub(super) fn implementation_of_products(&self, codes: CodesChoice) -> Result<Implementation> {
        let stream = self.x.device().default_stream();
        let columns = self.rank().next_multiple_of(CHUNK_BYTES / size_of::<T>());
        let g = Tensor::<T>::uninit_on(&stream, [self.m, columns])?.slice(1, 0..self.rank())?;
        let ut = self.expansion(&stream)?;
        let second = with_output::<T, T>(&g, &ut).implementation()?;
        Ok(self.implementation_of_codes(codes)?.then(second))
    }
}

/// A matrix as the only one of a batch.
pub(super) fn one_of_a_batch<T: Element>(matrix: &Tensor<T>) -> Tensor<T> {
    let shape = matrix.shape();
    // Of a single row or column no map asks for the stride that it happens to have.
    let rows = if shape[0] <= 1 { 0 } else { matrix.strides()[0] };
    let columns = if shape[1] <= 1 { 1 } else { matrix.strides()[1] };
    matrix.with_axes(0, &[1, shape[0], shape[1]], &[0, rows, columns])
}
