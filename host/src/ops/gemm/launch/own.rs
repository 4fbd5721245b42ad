//! How products with an epilogue of a program's own are launched: the library's variants, in kernels that the program brings.

use std::marker::PhantomData;

use warpsmith_dsl::gemm::product::{
    FewRowsArgs, HopperCooperative128x192, HopperCooperative128x256, HopperPingPong128x128, PersistentArgs,
    PortableArgs, ProductKernels, Skinny16x64, Skinny16x64Split4, SumsArgs, Tile16x64, Tile64x64, Tile128x64,
    Tile128x128,
};
use warpsmith_dsl::gemm::{PersistentTile, SplitKTile, TileShape};
use warpsmith_dsl::launch::{Declaration, Kernel, KernelParam};

use super::persistent::{Dealt, hopper_launch};
use super::pointers::{Workspace, linear_params};
use super::{Instance, Operands, is_early, skinny_launch};
use crate::device::Device;
use crate::error::Result;
use crate::ops::Implementation;
use crate::ops::fused::Loaded;
use crate::ops::gemm::passes::{parts_of, sums_params};
use crate::ops::gemm::plan::{self, Plan};
use crate::ops::gemm::{LinearTypes, Tile};
use crate::stream::Stream;
use crate::tensor::Element;

/// The kernels of a plan for the products `F` of inputs of type `T`.
pub(crate) struct OwnKernels<F, T: Element> {
    tile: Tile,
    declaration: Declaration,
    /// The library's kernel for parts of the sums, if they are split.
    parts: Option<Instance<T, f32>>,
    products: PhantomData<fn() -> F>,
}

impl<F: ProductKernels, T: LinearTypes<f32>> plan::Kernels for OwnKernels<F, T> {
    fn of(plan: &Plan) -> Option<Self> {
        let declaration = match plan.tile {
            Tile::T128x128 => F::T128x128::DECLARATION,
            Tile::T128x64 => F::T128x64::DECLARATION,
            Tile::T64x64 => F::T64x64::DECLARATION,
            Tile::T16x64 => F::T16x64::DECLARATION,
            Tile::HopperPingPong128x128 => F::PingPong128x128::DECLARATION,
            Tile::HopperCooperative128x256 => F::Cooperative128x256::DECLARATION,
            Tile::HopperCooperative128x192 => F::Cooperative128x192::DECLARATION,
            Tile::Skinny16x64 => F::Skinny16x64::DECLARATION,
            Tile::Skinny16x64Split4 => F::Skinny16x64Split4::DECLARATION,
            _ => return None,
        };
        let parts = match plan.is_split() {
            true => Some(<T as LinearTypes<f32>>::instance(plan.tile)?),
            false => None,
        };
        Some(Self { tile: plan.tile, declaration, parts, products: PhantomData })
    }

    fn implementation(&self, plan: &Plan, device: &Device) -> Implementation {
        match &self.parts {
            Some(parts) => {
                plan.implementation(device, parts.declaration.name, Some(F::Sums::DECLARATION.name))
            }
            None => plan.implementation(device, self.declaration.name, None),
        }
    }
}

impl<F: ProductKernels, T: LinearTypes<f32> + Element<Device = F::Input>> OwnKernels<F, T> {
    /// Computes one product. What `operands` has as epilogue is plain.
    ///
    /// # Safety
    ///
    /// The operands, of one matrix, and those of `epilogue` are valid for what the body of the variant in
    /// [`product`](warpsmith_dsl::gemm::product) does with them, and live until the stream's work is done.
    pub(crate) unsafe fn launch<O: Element<Device = F::Output>>(
        &self,
        loaded: &Loaded,
        stream: &Stream,
        blocks: u32,
        operands: &Operands<'_, T, O>,
        epilogue: F::Epilogue,
    ) -> Result<()> {
        let own = OwnLaunch { loaded, stream, blocks, operands, epilogue };
        // SAFETY: the caller's promise; each tile is that of the kernel, as `ProductKernels` says.
        unsafe {
            match self.tile {
                _ if self.parts.is_some() => self.launch_parts(&own),
                Tile::T128x128 => own.portable::<F::T128x128, Tile128x128>(),
                Tile::T128x64 => own.portable::<F::T128x64, Tile128x64>(),
                Tile::T64x64 => own.portable::<F::T64x64, Tile64x64>(),
                Tile::HopperPingPong128x128 => own.persistent::<F::PingPong128x128, HopperPingPong128x128>(),
                Tile::HopperCooperative128x256 => {
                    own.persistent::<F::Cooperative128x256, HopperCooperative128x256>()
                }
                Tile::HopperCooperative128x192 => {
                    own.persistent::<F::Cooperative128x192, HopperCooperative128x192>()
                }
                Tile::Skinny16x64 => own.few_rows::<F::Skinny16x64, Skinny16x64>(),
                Tile::Skinny16x64Split4 => own.few_rows::<F::Skinny16x64Split4, Skinny16x64Split4>(),
                // `of` has named no other.
                _ => own.portable::<F::T16x64, Tile16x64>(),
            }
        }
    }

    /// Launches the library's kernel for parts of the sums, and the program's that adds them.
    ///
    /// # Safety
    ///
    /// As [`launch`](Self::launch).
    unsafe fn launch_parts<O: Element<Device = F::Output>>(
        &self,
        own: &OwnLaunch<'_, T, O, F::Epilogue>,
    ) -> Result<()> {
        let Some(first) = &self.parts else { return Ok(()) };
        let &OwnLaunch { loaded, stream, blocks, operands, epilogue } = own;
        let &Operands { x, w, y, y_arg, m, n, k, parts, joined, .. } = operands;
        let batch = y.shape()[0] as u32;
        let (mut sums, columns) = parts_of(stream, [m, n, batch], parts)?;
        let (sums_arg, plain) = (sums.arg_mut(), warpsmith_dsl::epilogue::LinearEpilogue::plain());
        let of_parts =
            Operands { x, w, y: &sums, y_arg: sums_arg, m, n: columns, k, parts, epilogue: plain, joined };
        let (grid, params) = sums_params(&sums, y, [m, n, batch], parts);
        let second = loaded.kernel::<F::Sums>()?;
        // SAFETY: the parts are this product's own, in the order of the stream, of whole groups of columns; the rest is the
        // caller's promise.
        unsafe {
            first.launch(stream.device(), stream, blocks, &of_parts)?;
            let args: SumsArgs<O::Device, F::Epilogue> = (sums.arg(), y_arg, epilogue, params);
            second.launch_early(stream, grid, args)
        }
    }
}

/// One launch.
struct OwnLaunch<'a, T: Element, O: Element, E> {
    loaded: &'a Loaded,
    stream: &'a Stream,
    blocks: u32,
    operands: &'a Operands<'a, T, O>,
    epilogue: E,
}

impl<T: Element, O: Element, E: KernelParam> OwnLaunch<'_, T, O, E> {
    /// # Safety
    ///
    /// As [`OwnKernels::launch`], of a kernel of tile `S`.
    unsafe fn portable<K, S: TileShape>(&self) -> Result<()>
    where
        K: Kernel<Args = PortableArgs<T::Device, O::Device, E>>,
    {
        let &Self { loaded, stream, blocks, operands, epilogue } = self;
        let workspace = Workspace::new(stream, operands.parts, blocks, S::BLOCK_M * S::BLOCK_N)?;
        let (x, w, y) = (operands.x.arg(), operands.w.arg(), operands.y_arg);
        let args = (x, w, y, epilogue, workspace.parts(), linear_params(operands));
        // SAFETY: the workspace is this launch's in the order of its stream; the rest is the caller's promise.
        unsafe { loaded.kernel::<K>()?.launch(stream, [blocks, 1, 1], args) }
    }

    /// # Safety
    ///
    /// As [`OwnKernels::launch`], of a kernel of tile `S`.
    unsafe fn persistent<K, S: PersistentTile>(&self) -> Result<()>
    where
        K: Kernel<Args = PersistentArgs<O::Device, E>>,
    {
        let &Self { loaded, stream, blocks, operands, epilogue } = self;
        let &Operands { y_arg, m, n, k, .. } = operands;
        let dealt = Dealt::whole::<T, O, S>(stream, operands, blocks);
        // No more than the stream has multiprocessors for.
        let blocks = dealt.blocks;
        let launch = hopper_launch::<T, O, S>(operands, &dealt)?;
        let kernel = loaded.kernel::<K>()?;
        let args = (launch.x, launch.w, launch.y_boxes, y_arg, epilogue, launch.params);
        let row_bytes = u64::from(k) * size_of::<T>() as u64;
        let multiprocessors = stream.device().properties().multiprocessors;
        // SAFETY: the maps are of matrices of `T`, with the boxes that the tile asks for; the rest is the caller's promise.
        unsafe {
            if is_early::<S>(row_bytes, [m, n], blocks, dealt.are_only, multiprocessors) {
                kernel.launch_early(stream, [blocks, 1, 1], args)
            } else {
                kernel.launch(stream, [blocks, 1, 1], args)
            }
        }
    }

    /// # Safety
    ///
    /// As [`OwnKernels::launch`], of a kernel of tile `S`.
    unsafe fn few_rows<K, S: SplitKTile>(&self) -> Result<()>
    where
        K: Kernel<Args = FewRowsArgs<O::Device, E>>,
    {
        let &Self { loaded, stream, blocks, operands, epilogue } = self;
        let launch = skinny_launch::<T, O, S>(operands)?;
        let kernel = loaded.kernel::<K>()?;
        let args = (launch.x, launch.w, operands.y_arg, epilogue, launch.params);
        // SAFETY: the maps are of matrices of `T`, with the boxes that the tile asks for; the rest is the caller's promise.
        unsafe {
            if launch.is_early {
                kernel.launch_early(stream, [blocks, 1, 1], args)
            } else {
                kernel.launch(stream, [blocks, 1, 1], args)
            }
        }
    }
}
